// One key or value of a head, stored in the dtype of the cache.
#ifndef PACK_H
#define PACK_H

#include "engine.h"

// x [dim], a key, as column `lane` of a panel of 16 keys. queries [n_queries][dim]: those of the
// token that share the key's head, which say what a q4 key should keep best; n_queries may be 0.
void pack_key(const Kernels *kernels, const KvLayer *kv, uint8_t *panel, int lane, const float *x,
              const float *queries, int n_queries, int dim);
// x [dim], a value, as row `lane` of 16; what pads it stays zero.
void pack_value(const Kernels *kernels, const KvLayer *kv, uint8_t *values, int lane,
                const float *x, int dim);

#endif
