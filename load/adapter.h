// adapter.c: an adapter beside its base. math/lowrank.c adds what it says.
#ifndef ADAPTER_H
#define ADAPTER_H

#include <stdatomic.h>

#include "model.h"

typedef struct {  // scale b (a x) is added to products with one matrix of the base
    const uint8_t *of;  // that matrix's data
    Matrix a, b;        // (rank, n_in), (n_out, rank); stacks where it is one
} LowRank;

// The order of pairs, by `of`.
static inline int by_matrix(const void *a, const void *b) {
    const uint8_t *x = ((const LowRank *)a)->of, *y = ((const LowRank *)b)->of;
    return (x > y) - (x < y);
}

struct heads_adapter {
    const Model *model;
    Checkpoint file;
    Mapping mapped;     // empty if the bytes are the caller's
    LowRank *pairs;     // [n], by ascending `of`
    int n, most_rank;
    atomic_int users;   // the caller, and the sequences and workspaces that have it
};

#endif
