// Byte-pair encoding: neighbours are merged into larger tokens, the pair of the lowest rank first.
#ifndef BPE_H
#define BPE_H

#include "metadata.h"

typedef struct {
    const int32_t *begin;  // [n_tokens + 1]: of token i on the left, begin[i]..begin[i + 1]
    const int32_t *right, *rank, *merged;  // of each merge; right ascends for each left
} Merges;

typedef struct {
    int id, prev, next;  // neighbours, or -1
    int merge;           // number of the merge with the next symbol, or -1
} Symbol;

// Reads tokenizer.merge.*.
int load_merges(Merges *m, Reader *r, int n_tokens);
// Merges all that can be merged of n > 0 linked symbols. What is left begins with the first one.
// heap: room for 3 n.
void merge_symbols(const Merges *m, Symbol *symbols, int n, uint64_t *heap);

#endif
