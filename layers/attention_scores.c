// Scores: queries times keys, and what a layer adds to them before the softmax.
#include "layers/attention_tiles.h"

Rows gather_queries(const AttentionPass *p, const Unit *u, HeadScratch *x) {
    const Kernels *k = p->w->k;
    int dim = p->a->head_dim;
    const DtypeInfo *keys = &dtypes[p->kv->k_dtype];
    size_t blocks = blocks_apart((size_t)dim);
    for (int r = 0; r < u->n_rows; r++) {
        float *q = x->q + (size_t)r * (size_t)dim;
        size_t block = (size_t)r * blocks;
        memcpy(q, head_row(u, p->b.q, r, dim), sizeof *q * (size_t)dim);
        k->scale(q, p->a->scale, dim);
        if (keys->scaled)
            k->to_q8(x->q8 + block * BLOCK, x->q8_scale + block, x->q8_offset + block, q, dim,
                     keys->turned);
    }
    return (Rows){.f32 = x->q, .stride = (size_t)dim, .blocks = blocks, .q = x->q8,
                  .scale = x->q8_scale, .offset = x->q8_offset};
}

Rows queries_after(const Rows *q, int r) {
    size_t block = (size_t)r * q->blocks;
    return (Rows){.f32 = q->f32 + (size_t)r * q->stride, .stride = q->stride,
                  .blocks = q->blocks, .q = q->q + block * BLOCK, .scale = q->scale + block,
                  .offset = q->offset + block};
}

void dot_keys(const AttentionPass *p, const Unit *u, const KeyTile *tile, const Rows *q,
              int n_rows, float *scores) {
    const KvLayer *kv = p->kv;
    MatmulFn *matmul = p->w->k->matmul[kv->k_dtype];
    for (int i = tile->begin / LANES, n; i < tile->end / LANES; i += n) {
        n = kv->n_slots - i % kv->n_slots;  // as far as the ring runs on
        if (n > tile->end / LANES - i) n = tile->end / LANES - i;
        matmul(scores + i * LANES - tile->first, TILE, kv_keys(kv, u->span->sequence, i, u->h),
               kv->slot_bytes, n, p->a->head_dim, q, n_rows, tile->ahead);
    }
}

// Adds the biases of distances first.. to n scores: those before, within and after the reach.
static void add_relative(const AttentionPass *p, float *x, int n, int head, int first) {
    int reach = p->a->reach, low = -reach - first, high = reach + 1 - first;
    const float *bias = p->a->relative + (size_t)head * (size_t)(2 * reach + 1);
    low = low < 0 ? 0 : low > n ? n : low;
    high = high < 0 ? 0 : high > n ? n : high;
    for (int i = 0; i < low; i++) x[i] += bias[0];
    if (low < high) p->w->k->add(x + low, bias + reach + first + low, high - low);
    for (int i = high; i < n; i++) x[i] += bias[2 * reach];
}

void shape_scores(const AttentionPass *p, const Unit *u, int r, float *x, int begin, int n) {
    const Attention *a = p->a;
    int head = row_head(u, r), first = begin - row_position(u, r);
    if (a->softcap > 0.0f) p->w->k->softcap(x, a->softcap, n);
    if (a->slopes) p->w->k->add_ramp(x, (float)first, a->slopes[head], n);
    if (a->relative) add_relative(p, x, n, head, first);
    if (p->w->model->distances.n) add_positions(p, u, r, x, begin, n);
}
