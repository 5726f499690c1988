// input.c: memory, texts that grow, texts from files and stdin, and typed ids. On failure each call
// exits with a sentence.
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include <stddef.h>
#include <stdio.h>

#include "text/json.h"

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
// json_parse, which leaves what to do without memory to its caller.
const Json *parse_json(const char *text, size_t len, heads_error *err);
void json_quote(Text *out, const char *text, size_t len);  // appends a JSON string (text/json.h)
// The path of FILE or FILE:SCALE, to free; *scale is 1 without one.
char *path_and_scale(const char *text, float *scale);

// All that is read is a text, of which a byte order mark is no part; read_raw leaves it.
Text read_file(const char *path);
Text read_stream(FILE *f, const char *name);
Text read_raw(const char *path);
void drop_mark(Text *text, size_t begin);  // where the text begins

// All that is read by lines ends them with \n or \r\n. The size of a line without its \r:
size_t line_size(const char *line, size_t size);
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
