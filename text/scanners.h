// Pre-tokenizers: each step of one is a scanner, which says where the piece that begins at a
// character ends.
#ifndef SCANNERS_H
#define SCANNERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {  // characters and their classes; or bytes, without
    const uint32_t *c;
    const uint16_t *cls;
} Text;

typedef struct Scanner Scanner;
struct Scanner {
    const char *name;
    // The end of the match that begins at i, or i: none. Nothing at or after end counts; i < end.
    size_t (*scan)(const Scanner *s, const Text *t, size_t i, size_t end);
    uint16_t cls;                 // the characters that it joins
    size_t most;                  // digits, or characters, of one piece
    bool contractions, bytes;     // bytes: it works on bytes, not on characters
    bool spaced;                  // a white space before the piece belongs to it
    bool only_matches;            // what no match covers is left out
    bool whole_runs;              // no match at i: none in the rest of the run of cls either
    const uint32_t (*ranges)[2];  // of characters, ends included, ascending
    size_t n_ranges;
};

// The steps as docs/format.md numbers them, from 1. Those named here are no scanners: they change
// the text before it is cut.
enum { METASPACE_NEVER = 1, METASPACE_FIRST, METASPACE_ALWAYS, PREFIX_SPACE = 23, N_SCANNERS = 33 };
extern const Scanner scanners[N_SCANNERS];

#endif
