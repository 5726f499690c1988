// wrap.c: at a terminal, words that would cross its last column go to the next line. Other output
// stays as it is.
#ifndef CLI_WRAP_H
#define CLI_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

// Whether this stream is a screen that may show colours.
bool has_colours(FILE *stream);

// Writes a piece of text to stdout, at once, and flushes. A word that grows beyond the last column
// is taken back and written again below. The first piece begins a line. False: as write_out.
bool write_words(const char *text, size_t len);
// Writes whole sentences to stderr.
void say_words(const char *text);

#endif
