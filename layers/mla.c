// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in its absorbed form: the cache holds
// one latent c and one rope key a token. A head's score q . (U c) is computed as (U^T q) . c, and V
// is applied to the mix of latents, so that the keys and values of heads are never computed.
// Between the two, attention.c sees an ordinary layer with one KV head.
#include "layers/mla.h"

#include <string.h>

LatentBuffers latent_buffers(Arena *a, const Attention *at, int n) {
    const Latent *l = &at->latent;
    if (!l->rank) return (LatentBuffers){0};
    size_t heads = (size_t)at->n_heads, rows = (size_t)n, rank = (size_t)l->rank;
    size_t nope = (size_t)l->n_nope, value = (size_t)l->n_value;
    LatentBuffers b;
    b.projected = arena_rows(a, rows, (size_t)at->q.n_out);
    b.q_down = arena_input(a, rows, (size_t)l->q_down.n_out);
    b.head_in = arena_input(a, heads * rows, nope > rank ? nope : rank);
    b.head_out = arena_rows(a, heads * rows, value > rank ? value : rank);
    b.groups = arena_array(a, heads, sizeof *b.groups);
    return b;
}

typedef struct {
    const Attention *at;
    LatentBuffers *b;
    Buffer q, mixed;
    int n;
} LatentPass;

// The rows of one head lie together, so that they meet its matrix in one product.
static float *latent_row(const LatentPass *p, Buffer b, int h, int t) {
    return row(b, h * p->n + t);
}

// Copies the part of each query head that has no rope to its head's rows.
static void split_query(const void *arg, int t, int thread) {
    const LatentPass *p = arg;
    const Latent *l = &p->at->latent;
    const float *q = row(p->b->projected, t);
    int width = l->n_nope + p->at->head_dim - l->rank;
    for (int h = 0; h < p->at->n_heads; h++, q += width)
        memcpy(latent_row(p, p->b->head_in, h, t), q, sizeof *q * (size_t)l->n_nope);
}

// A query head is [U^T q; rope part].
static void join_query(const void *arg, int t, int thread) {
    const LatentPass *p = arg;
    size_t rank = (size_t)p->at->latent.rank, nope = (size_t)p->at->latent.n_nope;
    size_t rope = (size_t)p->at->head_dim - rank;
    float *q = row(p->q, t), *from = row(p->b->projected, t) + nope;
    for (int h = 0; h < p->at->n_heads; h++, q += rank + rope, from += nope + rope) {
        memcpy(q, latent_row(p, p->b->head_out, h, t), sizeof *q * rank);
        memcpy(q + rank, from, sizeof *q * rope);
    }
}

// head_out = stack[h] head_in for the rows of each head h
static void multiply_heads(Workspace *w, const LatentPass *p, const Matrix *stack) {
    int n_heads = p->at->n_heads;
    for (int h = 0; h < n_heads; h++) p->b->groups[h] = (Group){h, h * p->n, p->n};
    Product product = {p->b->head_out, stack};
    multiply_groups(w, &product, 1, p->b->head_in, n_heads * p->n, p->b->groups, n_heads);
}

void latent_project(Workspace *w, const Attention *at, LatentBuffers *b, Buffer q, Buffer keys,
                    Buffer y) {
    const Latent *l = &at->latent;
    int n = w->n_rows;
    LatentPass p = {.at = at, .b = b, .q = q, .n = n};
    if (l->q_down.data) {
        multiply_each(w, (Product[]){{b->q_down, &l->q_down}, {keys, &at->k}}, 2, y, n);
        norm_rows(w, b->q_down, &l->q_down_norm, b->q_down, l->q_down.n_out, n);
        multiply(w, b->projected, &at->q, b->q_down, n);
    } else {
        multiply_each(w, (Product[]){{b->projected, &at->q}, {keys, &at->k}}, 2, y, n);
    }
    norm_rows(w, keys, &l->norm, keys, l->rank, n);
    parallel_for(w->pool, n, split_query, &p);
    multiply_heads(w, &p, &l->k_up);
    parallel_for(w->pool, n, join_query, &p);
}

static void split_mixed(const void *arg, int t, int thread) {
    const LatentPass *p = arg;
    size_t rank = (size_t)p->at->latent.rank;
    for (int h = 0; h < p->at->n_heads; h++)
        memcpy(latent_row(p, p->b->head_in, h, t), row(p->mixed, t) + (size_t)h * rank,
               sizeof(float) * rank);
}

static void join_values(const void *arg, int t, int thread) {
    const LatentPass *p = arg;
    size_t width = (size_t)p->at->latent.n_value;
    for (int h = 0; h < p->at->n_heads; h++)
        memcpy(row(p->mixed, t) + (size_t)h * width, latent_row(p, p->b->head_out, h, t),
               sizeof(float) * width);
}

void latent_values(Workspace *w, const Attention *at, LatentBuffers *b, Buffer mixed) {
    LatentPass p = {.at = at, .b = b, .mixed = mixed, .n = w->n_rows};
    parallel_for(w->pool, w->n_rows, split_mixed, &p);
    multiply_heads(w, &p, &at->latent.v_up);
    parallel_for(w->pool, w->n_rows, join_values, &p);
}
