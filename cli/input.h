// input.c: memory, texts that grow, texts from files and stdin, and typed ids. On failure each call
// exits with a sentence.
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include <stddef.h>
#include <stdio.h>

void *allocate(size_t count, size_t size);  // zeros
// Returns an array of *room elements with room for `count`, moved if need be.
void *grown(void *array, size_t count, size_t *room, size_t size);

typedef struct {
    char *data;  // owned
    size_t size;
    size_t room;  // of data, in bytes; 0: it does not grow
} Text;

// Appends to a text that began as { 0 }; a zero byte follows it.
void text_add(Text *text, const char *data, size_t size);
void text_format(Text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *copy_of(const char *text, size_t size);  // and a zero byte

Text read_file(const char *path);
Text read_stream(FILE *f, const char *name);
// The *n lines of a text, without their line ends, in an array that the caller frees; their bytes
// are borrowed from the text. The last line need not end.
Text *split_lines(Text text, long *n);
void warn_if_not_utf8(Text text);

typedef struct {
    int *data;  // owned
    long n;
} Ids;

// Parses an option's ids: "1 2 3", or with commas.
Ids parse_ids(const char *option, const char *text, int vocab_size);

#endif
