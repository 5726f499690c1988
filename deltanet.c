// Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): each value head keeps a matrix S that maps keys to values. A token
// lets it decay, corrects what it says of the token's key towards the token's value by a step beta, and reads it with the
// token's query:
//
//     S = g S;   S += k (beta (v - S^T k))^T;   o = S^T q
//
// q, k and v come out of a short convolution with SiLU; q and k have unit length; o is normalised and gated. Value head j
// uses query and key head j / (n_v_heads / n_k_heads). What it remembers is the last inputs of the convolution, then the
// matrices. Tokens go one after the other, heads side by side, so that the result depends neither on threads nor on chunks.
#include <math.h>

#include "session.h"

enum { Q_AND_K = 2 };
static const float UNIT_EPS = 1e-6f;

typedef struct {
    Session *s;
    const Layer *layer;
    float *state;  // [n_v_heads][k_dim][v_dim]
    int n;
} Delta;

// Of one token: q, k and v in s->mix_in, decay and beta.
static void prepare_token(void *arg, int t, int thread) {
    (void)thread;
    const Delta *a = arg;
    const Session *s = a->s;
    const Layer *l = a->layer;
    float *x = row(&s->mix_in, t), q_scale = 1.0f / sqrtf((float)l->k_dim);
    s->k->conv(x, row(&s->conv, t), s->conv.stride, l->conv, l->n_taps, l->n_channels);
    s->k->act(x, ACT_SILU, l->n_channels);
    for (int h = 0; h < Q_AND_K * l->n_k_heads; h++)
        s->k->unit(x + (size_t)h * (size_t)l->k_dim, h < l->n_k_heads ? q_scale : 1.0f, UNIT_EPS, l->k_dim);
    s->k->act(row(&s->beta, t), ACT_SIGMOID, l->n_v_heads);
    s->k->decay(row(&s->decay, t), l->delta_rate, l->n_v_heads);
}

// All tokens of one value head, to s->att.
static void run_head(void *arg, int h, int thread) {
    (void)thread;
    const Delta *a = arg;
    const Session *s = a->s;
    const Layer *l = a->layer;
    size_t k_dim = (size_t)l->k_dim, v_dim = (size_t)l->v_dim, keys = (size_t)l->n_k_heads * k_dim;
    size_t k_head = (size_t)(h / (l->n_v_heads / l->n_k_heads)) * k_dim, v_head = (size_t)h * v_dim;
    float *state = a->state + (size_t)h * k_dim * v_dim;
    for (int t = 0; t < a->n; t++) {
        const float *x = row(&s->mix_in, t);
        s->k->delta(state, row(&s->att, t) + v_head, x + k_head, x + keys + k_head, x + Q_AND_K * keys + v_head,
                    row(&s->decay, t)[h], row(&s->beta, t)[h], l->k_dim, l->v_dim);
    }
}

// gate = silu(gate) * norm(o), head by head
static void gate_token(void *arg, int t, int thread) {
    (void)thread;
    const Delta *a = arg;
    const Session *s = a->s;
    const Layer *l = a->layer;
    float *o = row(&s->att, t);
    for (int h = 0; h < l->n_v_heads; h++, o += l->v_dim)
        s->k->rmsnorm(o, o, l->delta_norm.w, l->v_dim, s->model->norm_eps);
    s->k->act_mul(row(&s->delta_gate, t), row(&s->att, t), ACT_SILU, l->n_v_heads * l->v_dim);
}

void deltanet(Session *s, int layer, const Buffer *y, int n) {
    const Layer *l = &s->model->layers[layer];
    int before = l->n_taps - 1;
    Delta delta = {s, l, kv_state(s, layer) + (size_t)before * (size_t)l->n_channels, n};
    Buffer conv = {row(&s->conv, before), s->conv.stride};  // the rows of these tokens
    conv_remember(s, layer);
    multiply(s, (const Matrix *[]){&l->mix_in, &l->delta_gate, &l->delta_beta, &l->delta_decay},
             (const Buffer *[]){&conv, &s->delta_gate, &s->beta, &s->decay}, 4, y, n);
    parallel_for(s->pool, n, prepare_token, &delta);
    conv_keep(s, layer, n);
    parallel_for(s->pool, l->n_v_heads, run_head, &delta);
    parallel_for(s->pool, n, gate_token, &delta);
    multiply(s, (const Matrix *[]){&l->mix_out}, (const Buffer *[]){&s->out}, 1, &s->delta_gate, n);
}
