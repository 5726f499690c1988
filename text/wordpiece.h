// BERT's way from a text to tokens: its normalizer, step by step, and WordPiece, which cuts a word
// into the longest tokens from left to right.
#ifndef WORDPIECE_H
#define WORDPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The steps of the normalizer, as docs/format.md numbers them.
enum { NORM_CLEAN = 5, NORM_PAD_IDEOGRAPHS, NORM_STRIP_ACCENTS, NORM_LOWER };
// Runs one over *chars, malloc'd, *n of them; false: no memory.
bool bert_normalize(int step, uint32_t **chars, size_t *n);

// The token whose text that is, or -1.
typedef int FindToken(const void *arg, const uint8_t *text, size_t len);
// Cuts text[0..len), a space and a word of UTF-8: ids has room for len. Returns how many, 0 if the
// tokens do not cover the word. `longest` is the bytes of the longest token.
size_t wordpiece(const uint8_t *text, size_t len, size_t longest, FindToken *find, const void *arg,
                 int *ids);

#endif
