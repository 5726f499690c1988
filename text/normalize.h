// The normalizer's steps: each rewrites a stretch of text before it is cut into pieces.
#ifndef NORMALIZE_H
#define NORMALIZE_H

#include "metadata.h"

// As docs/format.md numbers them. Those from NORM_CLEAN to NORM_LOWER are in text/wordpiece.c.
enum {
    NORM_NFC = 1, NORM_PREPEND_MARK, NORM_SPACES_TO_MARK, NORM_PREPEND_SPACE, NORM_NFD = 9,
    NORM_NFKC, NORM_NFKD, NORM_NO_MARKS, NORM_CHARSMAP, NORM_LONGEST_CHARSMAP, NORM_STRIP_LEFT,
    NORM_STRIP_RIGHT, NORM_REPLACE, NORM_NMT, NORM_SQUEEZE, N_NORM
};
enum { SPACE_MARK = 0x2581, MAX_STEPS = 16 };  // a space inside SentencePiece

typedef struct {
    Ints steps;
    const int32_t *replace;  // [2 n + 1]: begin list of what is replaced and by what, in turn
    const int32_t *replace_chars;
    const uint8_t *repeats;  // [n]: 1: what follows and equals the last character goes too
    size_t n_replace;
    const uint8_t *charsmap, *texts;  // a double array of n_units; its values are offsets in texts
    size_t n_units, text_bytes;
} Normalizer;

int load_normalizer(Normalizer *z, Reader *r);
const char *normalizer_name(int step);
// Runs all steps over *chars, malloc'd, *n of them; false: no memory.
bool normalize(const Normalizer *z, uint32_t **chars, size_t *n);

#endif
