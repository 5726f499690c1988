// Byte-pair encoding: merges neighbours into larger tokens, the pair with the lowest rank first.
#ifndef BPE_H
#define BPE_H

#include "load/metadata.h"

typedef struct {
    const int32_t *begin;  // [n_tokens + 1]: token i is the left of merges begin[i]..begin[i + 1]
    const int32_t *right, *rank, *merged;  // of each merge; right ascends for each left
} Merges;

typedef struct {
    int id, prev, next;  // neighbours, or -1
    int merge;           // number of the merge with the next symbol, or -1
} Symbol;

// Reads tokenizer.merge.*.
int load_merges(Merges *m, Reader *r, int n_tokens);
// Merges n > 0 linked symbols as far as possible; symbols[0] stays the first. heap: [3 n].
void merge_symbols(const Merges *m, Symbol *symbols, int n, uint64_t *heap);

#endif
