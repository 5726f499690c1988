// lowrank.c: what adapters add to products (Hu et al. 2021, arXiv 2106.09685).
#ifndef LOWRANK_H
#define LOWRANK_H

#include "engine.h"
#include "load/adapter.h"

// out += scale b (a x), for the rows of sequences whose adapter has a pair of matrices a and b for
// the product's own.
void add_low_ranks(Workspace *w, const Product *products, int n_products, Buffer x, int n_rows,
                   const Group *groups, int n_groups);
// What an adapter (NULL: none) adds to products with a matrix; NULL: nothing.
const LowRank *low_rank_of(const heads_adapter *a, const Matrix *matrix);
// Makes w->low large enough for adapters of that rank. Errors: no memory.
int make_low_rows(Workspace *w, int rank, Error *err);

#endif
