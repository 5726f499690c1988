// adapter.c: an adapter beside its base. math/lowrank.c adds what it says.
#ifndef ADAPTER_H
#define ADAPTER_H

#include <stdatomic.h>

#include "model.h"

typedef struct {  // scale b (a x) is added to products with one matrix of the base
    const uint8_t *of;  // that matrix's data
    Matrix a, b;        // (rank, n_in), (n_out, rank); stacks where it is one
} LowRank;

struct heads_adapter {
    const Model *model;
    Checkpoint file;
    Mapping mapped;     // empty if the bytes are the caller's
    LowRank *pairs;     // [n], by ascending `of`
    int n, most_rank;
    atomic_int users;   // the caller, and the sequences and workspaces that have it
};

#endif
