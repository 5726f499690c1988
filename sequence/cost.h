// The cost of a cache in bytes. Reports and allocation use the same numbers, kvcache.c's.
#ifndef COST_H
#define COST_H

#include "engine.h"

typedef heads_kv_usage KvUsage;

// How many layers a cache has: the model's, then the cross-attentions of its decoder's layers.
int n_kv_layers(const Model *m);
// Layer i of a cache, without its offset. n_kv_heads 0: as the model has it; else with so many KV
// heads, and latent attention expanded to them.
KvLayer kv_layer(const Model *m, int i, int n_kv_heads, int context, Dtype k_dtype, Dtype v_dtype);
// Bytes of a layer after n positions, its state included.
size_t kv_layer_bytes_at(const KvLayer *kv, int n);

// The plan of a cache of `context` positions; n_kv_heads as above.
KvPlan kv_plan(const Model *model, int n_kv_heads, int context, Dtype k_dtype, Dtype v_dtype);
// Bytes of a cache after n positions, with a source of n_source tokens, states included.
size_t kv_bytes_at(const Model *model, int n_kv_heads, int n, int n_source, Dtype k_dtype,
                   Dtype v_dtype);
// Bytes of a token that pad its values to 16 numbers (32 for q8 and q4).
size_t kv_padding_per_token(const Model *model, int n_kv_heads, Dtype v_dtype);

#endif
