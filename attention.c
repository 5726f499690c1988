// One code for MHA, GQA and MQA, which differ only in how many query heads share a KV head. Latent
// attention (layers/mla.c) is MQA whose values are the first numbers of its keys.
//
// The softmax streams over tiles of TILE positions. Each tile gives its own maximum, sum of
// exponentials and mix of values; a row's tiles are merged in order (the recurrence of
// FlashAttention, Dao et al. 2022). Tiles begin at multiples of TILE, so a row's result depends
// only on its own sequence and position, not on the rows beside it or on threads.
#include "layers/attention_tiles.h"

#include <math.h>

// ---- norms of heads, and rope ----

// Norms, clips and rotates the heads of one token, side by side in x: queries or keys.
static void rotate_heads(const AttentionPass *p, const Norm *norm, float *x, int n_heads, int t) {
    const Workspace *w = p->w;
    const Attention *a = p->a;
    if (norm->w && a->qk_norm == QK_WHOLE) norm_row(w, x, norm, x, n_heads * a->head_dim);
    if (a->clip > 0.0f) w->k->clamp(x, a->clip, n_heads * a->head_dim);
    for (int h = 0; h < n_heads; h++, x += a->head_dim) {
        Norm own = *norm;
        if (a->qk_norm == QK_DISTINCT && own.w) own.w += h * a->head_dim;
        if (a->qk_norm == QK_DISTINCT && own.b) own.b += h * a->head_dim;
        if (own.w && a->qk_norm != QK_WHOLE && a->qk_norm != QK_AFTER_ROPE)
            norm_row(w, x, &own, x, a->head_dim);
        if (a->rope >= 0)
            w->k->rope(x + a->latent.rank, row(w->cos[a->rope], t), row(w->sin[a->rope], t),
                       w->model->rope[a->rope].n_pairs);
        if (own.w && a->qk_norm == QK_AFTER_ROPE) norm_row(w, x, &own, x, a->head_dim);
    }
}

// Norms, clips, rotates and scales the queries, keys and values of one token.
static void rotate_row(const void *arg, int t, int thread) {
    const AttentionPass *p = arg;
    const Attention *a = p->a;
    const Kernels *k = p->w->k;
    float *q = row(p->b.q, t);
    rotate_heads(p, &a->q_norm, q, a->n_heads, t);
    if (adds_keys(a)) {
        float *v = row(p->b.values, t);
        rotate_heads(p, &a->k_norm, row(p->b.keys, t), a->n_kv_heads, t);
        if (a->clip > 0.0f && !a->latent.rank) k->clamp(v, a->clip, a->n_kv_heads * a->head_dim);
        for (int h = 0; h < a->n_kv_heads && a->v_norm.w; h++, v += a->head_dim)
            norm_row(p->w, v, &a->v_norm, v, a->head_dim);
    }
    if (a->q_temp) temper_queries(p, q, t);
}

// ---- one tile ----

// Turns a row's scores begin..end-1 into exponentials, and those outside `seen` into zeros.
static void softmax_row(const Kernels *k, float *x, int begin, int end, Range seen, float *max,
                        float *sum) {
    *max = -INFINITY;
    *sum = 0.0f;
    int from = seen.low / LANES * LANES, to = (seen.high / LANES + 1) * LANES;
    if (seen.low > seen.high) from = to = end;
    for (int i = begin; i < from; i++) x[i] = 0.0f;
    for (int i = to; i < end; i++) x[i] = 0.0f;
    if (from == to) return;
    for (int i = from; i < seen.low; i++) x[i] = -INFINITY;
    for (int i = seen.high + 1; i < to; i++) x[i] = -INFINITY;
    *max = k->max(x + from, to - from);
    *sum = k->exp_sum(x + from, *max, to - from);
}

// Turns the scores of row r of a unit into exponentials, over the tile's positions that it sees.
static void probabilities(const AttentionPass *p, const Unit *u, const KeyTile *tile, int r,
                          float *x, float *max, float *sum) {
    int pos = row_position(u, r), first = tile->first, begin = tile->begin, end = tile->end;
    shape_scores(p, u, r, x + begin - first, begin, end - begin);
    Range seen = seen_from(p->a, pos, text_end(p->a, u->span));
    if (seen.low < begin) seen.low = begin;
    if (seen.high >= tile->stop) seen.high = tile->stop - 1;
    softmax_row(p->w->k, x, begin - first, end - first,
                (Range){seen.low - first, seen.high - first}, max, sum);
}

// Merges a tile (mix, max, sum) into the result of the tiles before it, scaled to a common maximum.
static void merge(const Kernels *k, float *out, float *out_max, float *out_sum, const float *mix,
                  float max, float sum, int dim) {
    if (sum == 0.0f) return;  // the row sees nothing of this tile
    float top = *out_max > max ? *out_max : max;
    float e[LANES] = {*out_max, max};
    for (int i = 2; i < LANES; i++) e[i] = -INFINITY;
    k->exp_sum(e, top, LANES);
    k->axpby(out, e[0], mix, e[1], dim);
    *out_sum = *out_sum * e[0] + sum * e[1];
    *out_max = top;
}

// One tile for a unit, merged into out [n_rows][v_dim], out_max, out_sum. It takes
// SOFTMAX_ROWS rows at a time, whose scores stay in the first-level cache until values are mixed.
static void attend_tile(const AttentionPass *p, const Unit *u, const Rows *q, HeadScratch *x,
                        const KeyTile *tile, float *out, float *out_max, float *out_sum) {
    const Kernels *k = p->w->k;
    const KvLayer *kv = p->kv;
    int dim = kv->v_dim, begin = tile->begin - tile->first, stop = tile->stop - tile->first;
    for (int from = 0, n; from < u->n_rows; from += n) {
        n = u->n_rows - from < SOFTMAX_ROWS ? u->n_rows - from : SOFTMAX_ROWS;
        Rows some = queries_after(q, from);
        float max[SOFTMAX_ROWS], sum[SOFTMAX_ROWS];
        dot_keys(p, u, tile, &some, n, x->scores);
        for (int r = 0; r < n; r++)
            probabilities(p, u, tile, from + r, x->scores + r * TILE, &max[r], &sum[r]);
        if (p->a->latent.rank)
            k->mix_keys[kv->k_dtype](x->mix, x->scores, TILE, n, tile->values, begin, stop,
                                     p->a->head_dim, dim);
        else
            k->mix[kv->v_dtype](x->mix, x->scores, TILE, n, tile->values, begin, stop, dim,
                                tile->ahead);
        for (int r = 0; r < n; r++)
            merge(k, out + (size_t)(from + r) * (size_t)dim, &out_max[from + r], &out_sum[from + r],
                  x->mix + (size_t)r * (size_t)dim, max[r], sum[r], dim);
    }
}

// ---- all tiles ----

// All tiles of a unit, merged into its rows of partial results.
static void attend_unit(const AttentionPass *p, const Unit *u, const Unit *next, int thread) {
    size_t dim = (size_t)p->kv->v_dim;
    float *out = p->b.partial + u->first_row * dim;
    float *max = p->b.partial_max + u->first_row, *sum = p->b.partial_sum + u->first_row;
    memset(out, 0, sizeof *out * (size_t)u->n_rows * dim);
    // A sink is like a first key that all rows see and that has no value.
    bool sinks = p->a->sinks && u->split == 0;
    for (int r = 0; r < u->n_rows; r++) {
        max[r] = sinks ? p->a->sinks[row_head(u, r)] : -INFINITY;
        sum[r] = sinks ? 1.0f : 0.0f;
    }
    Rows q = gather_queries(p, u, &p->b.threads[thread]);
    for (int t = u->seen.low / TILE; t <= u->seen.high / TILE; t++) {
        KeyTile tile = key_tile(p, u, t * TILE, bytes_ahead(p, u, next, t));
        attend_tile(p, u, &q, &p->b.threads[thread], &tile, out, max, sum);
    }
}

// Item: some units in a row. The last of them prefetches for the item that this thread probably
// claims next: threads in step claim every n-th item.
static void attend_units(const void *arg, int item, int thread) {
    const AttentionPass *p = arg;
    int n = p->units_per_item, begin = item * n;
    int end = begin + n < p->n_units ? begin + n : p->n_units;
    for (int i = begin; i < end; i++) {
        int next = i + 1 < end ? i + 1 : begin + n * pool_threads(p->w->pool);
        attend_unit(p, &p->b.units[i], next < p->n_units ? &p->b.units[next] : NULL, thread);
    }
}

// Item: a unit with its splits, which are merged in order. Divides each row by its sum, and undoes
// the Hadamard transform of turned values.
static void finish_unit(const void *arg, int item, int thread) {
    const AttentionPass *p = arg;
    const Kernels *k = p->w->k;
    const Unit *u = &p->b.units[item];
    int dim = p->kv->v_dim, width = mixed_dim(p->a);
    for (int r = 0; r < u->n_rows; r++) {
        size_t first = u->first_row + (size_t)r;
        float *out = p->b.partial + first * (size_t)dim;
        float *max = &p->b.partial_max[first], *sum = &p->b.partial_sum[first];
        for (int split = 1; split < u->n_splits; split++) {
            const Unit *v = &p->b.units[u->others + (split - 1) * p->a->n_kv_heads];
            size_t other = v->first_row + (size_t)r;
            merge(k, out, max, sum, p->b.partial + other * (size_t)dim, p->b.partial_max[other],
                  p->b.partial_sum[other], dim);
        }
        if (dtypes[mixed_dtype(p)].turned) k->hadamard(out, out, TURNED_X / *sum, dim);
        else k->scale(out, 1.0f / *sum, dim);
        memcpy(head_row(u, p->b.mixed, r, width), out, sizeof *out * (size_t)width);
    }
}

// From the rows' b.q, b.keys and b.values, projected but not yet rotated, to b.mixed.
static void attend(AttentionPass *p) {
    Workspace *w = p->w;
    parallel_for(w->pool, w->n_rows, rotate_row, p);
    for (int from = 0, n; (n = next_round(p, from)); from += n) {
        if (adds_keys(p->a))
            kv_append(w, p->a, p->kv, p->b.q, p->b.keys, p->b.values, p->spans, p->n_spans);
        cut_spans(p);
        int n_items = (p->n_units + p->units_per_item - 1) / p->units_per_item;
        parallel_if_large(w, key_bytes(p), n_items, attend_units, p);
        parallel_if_large(w, merge_bytes(p), p->n_merged, finish_unit, p);
        if (w->probe.attention) parallel_for(w->pool, p->n_merged, show_unit, p);
    }
}

// ---- the mixer ----

// Projects y to queries, the output's gate, and, if the layer has its own, keys and values.
static void project(AttentionPass *p, Buffer y) {
    const Attention *a = p->a;
    AttentionBuffers *b = &p->b;
    Product products[4] = {{b->q, &a->q}};
    int n = 1;
    if (adds_keys(a)) {
        products[n++] = (Product){b->keys, &a->k};
        products[n++] = (Product){b->values, &a->v};
    }
    if (a->out_gate.data) products[n++] = (Product){b->out_gate, &a->out_gate};
    multiply_each(p->w, products, n, y, p->w->n_rows);
}

void run_attention(Workspace *w, int layer, const Attention *a, const KvLayer *kv, Buffer y) {
    int n = w->n_rows, width = a->n_heads * (a->latent.rank ? a->latent.n_value : a->head_dim);
    Arena arena = scratch(w);
    AttentionPass p = {.w = w, .a = a, .kv = kv, .layer = layer};
    AttentionBuffers *b = &p.b;
    *b = attention_buffers(&arena, w, a, kv, n);
    if (a->latent.rank) latent_project(w, a, &b->latent, b->q, b->keys, y);
    else project(&p, y);
    multiply_positions(&p);
    attend(&p);
    if (a->latent.rank) latent_values(w, a, &b->latent, b->mixed);
    if (a->out_gate.data) gate_rows(w, b->mixed, b->out_gate, a->out_gate.n_out, width, n);
    change_mixed(&p, width);
    if (a->sub_norm.w) norm_rows(w, b->mixed, &a->sub_norm, b->mixed, width, n);
    multiply(w, w->out, &a->o, b->mixed, n);
}

static void forward(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    run_attention(w, (int)(l - w->model->layers), &l->attention, kv, y);
}

static void add_scratch(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *arena) {
    attention_buffers(arena, w, &l->attention, kv, w->chunk);
}

static int matrices(const Layer *l, const Matrix **out) {
    const Attention *a = &l->attention;
    const Matrix *all[] = {&a->q, &a->k, &a->v, &a->o, &a->out_gate, &a->latent.q_down,
                           &a->latent.k_up, &a->latent.v_up, &a->pos_k, &a->pos_q};
    memcpy(out, all, sizeof all);
    return sizeof all / sizeof *all;
}

const Mixer attention_mixer = {"attention", forward, add_scratch, matrices, NULL,
                               describe_attention};
