// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in its absorbed form: the cache holds
// one latent c and one rope key a token. A head's key U c meets its query as (U^T q) . c, and V
// is applied to the mixed latents at the end, so that the keys and values of heads are never
// computed. Between the two, attention() sees an ordinary layer with one KV head.
#include "mla.h"

#include <string.h>

LatentBuffers take_latent(Arena *a, const Attention *at, int n) {
    const Latent *l = &at->latent;
    if (!l->rank) return (LatentBuffers){0};
    size_t heads = (size_t)at->n_heads, rows = (size_t)n, rank = (size_t)l->rank;
    size_t nope = (size_t)l->n_nope, value = (size_t)l->n_value;
    LatentBuffers b;
    b.projected = take_rows(a, rows, (size_t)at->q.n_out);
    b.q_down = take_input(a, rows, (size_t)l->q_down.n_out);
    b.head_in = take_input(a, heads * rows, nope > rank ? nope : rank);
    b.head_out = take_rows(a, heads * rows, value > rank ? value : rank);
    b.groups = take(a, heads, sizeof *b.groups);
    return b;
}

typedef struct {
    const Attention *at;
    LatentBuffers *b;
    Buffer q, mixed;
    int n;
} Job;

// Rows of one head lie together, as its matrix in the stack wants them.
static float *head_row(const Job *job, Buffer b, int h, int t) { return row(b, h * job->n + t); }

// The part of each query head without rope goes to its head's rows.
static void split_query(const void *arg, int t, int thread) {
    const Job *job = arg;
    const Latent *l = &job->at->latent;
    const float *q = row(job->b->projected, t);
    int width = l->n_nope + job->at->head_dim - l->rank;
    for (int h = 0; h < job->at->n_heads; h++, q += width)
        memcpy(head_row(job, job->b->head_in, h, t), q, sizeof *q * (size_t)l->n_nope);
}

// A query head is [U^T q; rope part].
static void join_query(const void *arg, int t, int thread) {
    const Job *job = arg;
    size_t rank = (size_t)job->at->latent.rank, nope = (size_t)job->at->latent.n_nope;
    size_t rope = (size_t)job->at->head_dim - rank;
    float *q = row(job->q, t), *from = row(job->b->projected, t) + nope;
    for (int h = 0; h < job->at->n_heads; h++, q += rank + rope, from += nope + rope) {
        memcpy(q, head_row(job, job->b->head_out, h, t), sizeof *q * rank);
        memcpy(q + rank, from, sizeof *q * rope);
    }
}

// head_out = w[h] head_in for the rows of each head h
static void multiply_heads(Workspace *w, const Job *job, const Matrix *stack) {
    int n_heads = job->at->n_heads;
    for (int h = 0; h < n_heads; h++) job->b->groups[h] = (Group){h, h * job->n, job->n};
    Product product = {job->b->head_out, stack};
    multiply_groups(w, &product, 1, job->b->head_in, n_heads * job->n, job->b->groups, n_heads);
}

void latent_project(Workspace *w, const Attention *at, LatentBuffers *b, Buffer q, Buffer keys,
                    Buffer y) {
    const Latent *l = &at->latent;
    int n = w->n_rows;
    Job job = {.at = at, .b = b, .q = q, .n = n};
    if (l->q_down.data) {
        multiply_each(w, (Product[]){{b->q_down, &l->q_down}, {keys, &at->k}}, 2, y, n);
        norm_rows(w, b->q_down, &l->q_down_norm, b->q_down, l->q_down.n_out, n);
        multiply(w, b->projected, &at->q, b->q_down, n);
    } else {
        multiply_each(w, (Product[]){{b->projected, &at->q}, {keys, &at->k}}, 2, y, n);
    }
    norm_rows(w, keys, &l->norm, keys, l->rank, n);
    parallel_for(w->pool, n, split_query, &job);
    multiply_heads(w, &job, &l->k_up);
    parallel_for(w->pool, n, join_query, &job);
}

static void split_mixed(const void *arg, int t, int thread) {
    const Job *job = arg;
    size_t rank = (size_t)job->at->latent.rank;
    for (int h = 0; h < job->at->n_heads; h++)
        memcpy(head_row(job, job->b->head_in, h, t), row(job->mixed, t) + (size_t)h * rank,
               sizeof(float) * rank);
}

static void join_values(const void *arg, int t, int thread) {
    const Job *job = arg;
    size_t width = (size_t)job->at->latent.n_value;
    for (int h = 0; h < job->at->n_heads; h++)
        memcpy(row(job->mixed, t) + (size_t)h * width, head_row(job, job->b->head_out, h, t),
               sizeof(float) * width);
}

void latent_values(Workspace *w, const Attention *at, LatentBuffers *b, Buffer mixed) {
    Job job = {.at = at, .b = b, .mixed = mixed, .n = w->n_rows};
    parallel_for(w->pool, w->n_rows, split_mixed, &job);
    multiply_heads(w, &job, &at->latent.v_up);
    parallel_for(w->pool, w->n_rows, join_values, &job);
}
