// Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): each value head keeps a matrix S that maps
// keys to values. A token lets S decay, moves what S gives for the token's key towards the token's
// value by a step beta, and reads S with the token's query:
//
//     S = g S;   S += k (beta (v - S^T k))^T;   o = S^T q
//
// q, k and v come out of a short convolution with SiLU; q and k have unit length; o is normalised
// and gated. Value head j uses query and key head j / (n_v_heads / n_k_heads). What it remembers of
// a sequence is the last inputs of the convolution, then the matrices. Tokens of a sequence are
// taken one after another, heads and sequences in parallel, so that the result depends neither on
// threads nor on how tokens are cut into passes.
#include <math.h>

#include "conv.h"

enum { Q_AND_K = 2 };
static const float UNIT_EPS = 1e-6f;

static StepBuffers lay_out(Arena *a, const DeltaNet *d, const Workspace *w, int n_rows) {
    return take_step_buffers(a, &d->conv, w, n_rows, d->n_v_heads, d->v_dim);
}

typedef struct {
    const Workspace *w;
    const DeltaNet *d;
    const KvLayer *kv;
    StepBuffers b;
} Job;

// q, k and v of one token, its step (beta) and decay
static void prepare_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    const DeltaNet *d = job->d;
    const Kernels *kernels = job->w->k;
    float *x = row(job->b.in, t), q_scale = 1.0f / sqrtf((float)d->k_dim);
    convolve(job->w, &d->conv, x, job->b.window, t);
    kernels->act(x, ACT_SILU, d->conv.n_channels);
    for (int h = 0; h < Q_AND_K * d->n_k_heads; h++) {
        float scale = h < d->n_k_heads ? q_scale : 1.0f;
        kernels->unit(x + (size_t)h * (size_t)d->k_dim, scale, UNIT_EPS, d->k_dim);
    }
    kernels->act(row(job->b.step, t), ACT_SIGMOID, d->n_v_heads);
    kernels->scale(row(job->b.step, t), d->beta_scale, d->n_v_heads);
    kernels->decay(row(job->b.decay, t), d->rate, d->n_v_heads);
}

// Item: all tokens of a span, for one value head.
static void run_head(const void *arg, int item, int thread) {
    const Job *job = arg;
    const DeltaNet *d = job->d;
    const Span *s = &job->w->spans[item / d->n_v_heads];
    int h = item % d->n_v_heads;
    size_t k_dim = (size_t)d->k_dim, v_dim = (size_t)d->v_dim, keys = (size_t)d->n_k_heads * k_dim;
    size_t k_head = (size_t)(h / (d->n_v_heads / d->n_k_heads)) * k_dim, v_head = (size_t)h * v_dim;
    float *matrices = kv_state(job->kv, s->sequence) + conv_state(&d->conv);
    float *state = matrices + (size_t)h * k_dim * v_dim;
    for (int t = s->first; t < s->first + s->n; t++) {
        const float *q = row(job->b.in, t) + k_head, *k = q + keys;
        const float *v = row(job->b.in, t) + Q_AND_K * keys + v_head;
        job->w->k->delta(state, row(job->b.mixed, t) + v_head, q, k, v, row(job->b.decay, t)[h],
                         row(job->b.step, t)[h], d->k_dim, d->v_dim);
    }
}

// gate = silu(gate) * norm(o), head by head
static void gate_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    const DeltaNet *d = job->d;
    float *o = row(job->b.mixed, t);
    for (int h = 0; h < d->n_v_heads; h++, o += d->v_dim)
        norm_row(job->w, o, &d->norm, o, d->v_dim);
    int width = d->n_v_heads * d->v_dim;
    job->w->k->act_mul(row(job->b.gate, t), row(job->b.mixed, t), ACT_SILU, width);
}

static void run(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    const DeltaNet *d = &l->deltanet;
    int n = w->n_rows;
    Arena a = scratch(w);
    Job job = {w, d, kv, lay_out(&a, d, w, n)};
    Product products[] = {{job.b.in, &d->in}, {job.b.gate, &d->gate}, {job.b.step, &d->beta},
                          {job.b.decay, &d->decay}};
    multiply_each(w, products, 4, y, n);
    conv_fill(w, &d->conv, kv, job.b.window, job.b.in);
    parallel_for(w->pool, n, prepare_row, &job);
    conv_remember(w, &d->conv, kv, job.b.window);
    parallel_for(w->pool, w->n_spans * d->n_v_heads, run_head, &job);
    parallel_for(w->pool, n, gate_row, &job);
    multiply(w, w->out, &d->out, job.b.gate, n);
}

static void count(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a) {
    lay_out(a, &l->deltanet, w, w->chunk);
}

static size_t state_bytes(const Layer *l) {
    const DeltaNet *d = &l->deltanet;
    size_t matrices = (size_t)d->n_v_heads * (size_t)d->k_dim * (size_t)d->v_dim;
    return round_up(conv_state(&d->conv) + matrices, LANES) * sizeof(float);
}

const Mixer deltanet_mixer = {run, count, state_bytes};
