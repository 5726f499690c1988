// The normalizer's steps, each of which rewrites a stretch of text before it is cut into pieces.
#ifndef NORMALIZE_H
#define NORMALIZE_H

#include "load/metadata.h"

// As docs/format.md numbers them. Those from NORM_CLEAN to NORM_LOWER are BERT's.
enum {
    NORM_NFC = 1, NORM_PREPEND_MARK, NORM_SPACES_TO_MARK, NORM_PREPEND_SPACE, NORM_CLEAN,
    NORM_PAD_IDEOGRAPHS, NORM_STRIP_ACCENTS, NORM_LOWER, NORM_NFD, NORM_NFKC, NORM_NFKD,
    NORM_NO_MARKS, NORM_CHARSMAP, NORM_LONGEST_CHARSMAP, NORM_STRIP_LEFT, NORM_STRIP_RIGHT,
    NORM_REPLACE, NORM_NMT, NORM_SQUEEZE, N_NORM
};
enum { SPACE_MARK = 0x2581, MAX_STEPS = 16 };  // SPACE_MARK: SentencePiece's space

typedef struct {
    Ints steps;
    const int32_t *replace;  // [2 n + 1] offsets into replace_chars. Replacement i: its pattern is
                             // [2 i]..[2 i + 1], the new text [2 i + 1]..[2 i + 2]
    const int32_t *replace_chars;
    const uint8_t *repeats;  // [n]: 1: repetitions of the pattern's last character go too
    size_t n_replace;
    const uint8_t *charsmap, *texts;  // a double array of n_units; its values are offsets in texts
    size_t n_units, text_bytes;
} Normalizer;

int load_normalizer(Normalizer *z, Reader *r);
const char *normalizer_name(int step);
// Runs all steps over (*chars)[*n], malloc'd; false: no memory.
bool normalize(const Normalizer *z, uint32_t **chars, size_t *n);

#endif
