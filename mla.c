// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in its absorbed form: the cache holds one latent c and one
// rope key a token. A head's key U c meets its query as (U^T q) . c, and its value V c is taken of the mixed latents at the
// end, so that keys and values of heads are never made. Between the two, attention() sees an ordinary layer with one KV
// head.
#include <string.h>

#include "session.h"

typedef struct {
    Session *s;
    const Layer *layer;
    int n;
} Mla;

// Rows of one head lie together, as its matrix in the stack wants them: row h n + t is of head h and token t.
static float *head_row(const Buffer *b, const Mla *a, int h, int t) { return row(b, h * a->n + t); }

// The latent is normalised, and the part of each query head without rope goes to its head's rows.
static void split_token(void *arg, int t, int thread) {
    (void)thread;
    const Mla *a = arg;
    const Session *s = a->s;
    const Layer *l = a->layer;
    float *c = row(&s->keys, t), *q = row(&s->projected, t);
    s->k->rmsnorm(c, c, l->latent_norm.w, l->latent, s->model->latent_eps);
    for (int h = 0; h < l->n_heads; h++, q += l->n_nope + l->head_dim - l->latent)
        memcpy(head_row(&s->head_in, a, h, t), q, sizeof *q * (size_t)l->n_nope);
}

// A query head is [U^T q; rope part].
static void join_token(void *arg, int t, int thread) {
    (void)thread;
    const Mla *a = arg;
    const Session *s = a->s;
    const Layer *l = a->layer;
    size_t latent = (size_t)l->latent, rope = (size_t)l->head_dim - latent;
    float *q = row(&s->q, t), *from = row(&s->projected, t) + l->n_nope;
    for (int h = 0; h < l->n_heads; h++, q += latent + rope, from += (size_t)l->n_nope + rope) {
        memcpy(q, head_row(&s->head_out, a, h, t), sizeof *q * latent);
        memcpy(q + latent, from, sizeof *q * rope);
    }
}

static void norm_query(void *arg, int t, int thread) {
    (void)thread;
    const Mla *a = arg;
    float *x = row(&a->s->q_down, t);
    a->s->k->rmsnorm(x, x, a->layer->q_down_norm.w, a->layer->q_down.n_out, a->s->model->latent_eps);
}

// head_out = w[h] head_in for the rows of each head h
static void multiply_heads(Mla *a, const Matrix *w) {
    for (int h = 0; h < a->layer->n_heads; h++) a->s->groups[h] = (Group){h, h * a->n, a->n};
    multiply_groups(a->s, &w, (const Buffer *[]){&a->s->head_out}, 1, &a->s->head_in, a->layer->n_heads * a->n, a->s->groups,
                    a->layer->n_heads);
}

void mla_project(Session *s, int layer, const Buffer *y, int n) {
    const Layer *l = &s->model->layers[layer];
    Mla a = {s, l, n};
    if (l->q_down.data) {
        multiply(s, (const Matrix *[]){&l->q_down, &l->k}, (const Buffer *[]){&s->q_down, &s->keys}, 2, y, n);
        parallel_for(s->pool, n, norm_query, &a);
        multiply(s, (const Matrix *[]){&l->q}, (const Buffer *[]){&s->projected}, 1, &s->q_down, n);
    } else {
        multiply(s, (const Matrix *[]){&l->q, &l->k}, (const Buffer *[]){&s->projected, &s->keys}, 2, y, n);
    }
    parallel_for(s->pool, n, split_token, &a);
    multiply_heads(&a, &l->k_up);
    parallel_for(s->pool, n, join_token, &a);
}

static void split_mixed(void *arg, int t, int thread) {
    (void)thread;
    const Mla *a = arg;
    size_t latent = (size_t)a->layer->latent;
    for (int h = 0; h < a->layer->n_heads; h++)
        memcpy(head_row(&a->s->head_in, a, h, t), row(&a->s->att, t) + (size_t)h * latent, sizeof(float) * latent);
}

static void join_values(void *arg, int t, int thread) {
    (void)thread;
    const Mla *a = arg;
    size_t width = (size_t)a->layer->n_value;
    for (int h = 0; h < a->layer->n_heads; h++)
        memcpy(row(&a->s->att, t) + (size_t)h * width, head_row(&a->s->head_out, a, h, t), sizeof(float) * width);
}

void mla_values(Session *s, int layer, int n) {
    const Layer *l = &s->model->layers[layer];
    Mla a = {s, l, n};
    parallel_for(s->pool, n, split_mixed, &a);
    multiply_heads(&a, &l->v_up);
    parallel_for(s->pool, n, join_values, &a);
}
