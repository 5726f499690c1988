// width.c: how many columns of a terminal a character takes, and a text.
#ifndef CLI_WIDTH_H
#define CLI_WIDTH_H

#include <stddef.h>
#include <stdint.h>

// 0, 1 or 2, as Unicode says; control characters, which are the caller's to draw, count 1.
int character_width(uint32_t c);
int text_width(const char *text, size_t len);

#endif
