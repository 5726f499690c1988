// Pre-tokenizers. Each step is a scanner, which finds the end of the piece that begins at a place.
#ifndef SCANNERS_H
#define SCANNERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {  // characters and their classes; or bytes, and cls NULL
    const uint32_t *c;
    const uint16_t *cls;
} Text;

typedef struct Scanner Scanner;
struct Scanner {
    const char *name;
    // The end of the match that begins at i < end, or i: none. It ends at `end` at most.
    size_t (*scan)(const Scanner *s, const Text *t, size_t i, size_t end);
    uint16_t cls;                 // classes of the characters that it joins
    uint16_t alone;               // a class whose characters go with none but each other
    size_t most;                  // most digits, or characters, of a piece
    bool contractions;            // English contractions are pieces: 's, 't ..
    bool bytes;                   // it works on bytes, not on characters
    bool spaced;                  // a white space before the piece belongs to it
    bool only_matches;            // text that no match covers is dropped
    bool apart;                   // line ends do not belong to punctuation before them
    bool slash;                   // / counts as one of these line ends
    bool bounded;                 // no match before a character of a word
    bool powers;                  // runs of white space are cut into powers of two
    bool whole_runs;              // no match at i means none in the rest of the run of cls
    const uint32_t (*ranges)[2];  // of characters, ends included, ascending
    size_t n_ranges;
    const char *before;           // what stands in front of the characters of ranges
    char after;                   // and behind them
};

// The steps by their numbers in docs/format.md, from 1. The named ones do not scan: they change the
// text before later steps cut it.
enum { METASPACE_NEVER = 1, METASPACE_FIRST, METASPACE_ALWAYS, PREFIX_SPACE = 23, N_SCANNERS = 55 };
extern const Scanner scanners[N_SCANNERS];

#endif
