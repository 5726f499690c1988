// Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): each value head keeps a matrix S that maps
// keys to values. A token lets S decay, moves what S gives for the token's key towards the token's
// value by a step beta, and reads S with the token's query:
//
//     S = g S;   S += k (beta (v - S^T k))^T;   o = S^T q
//
// q, k and v come out of a short convolution with SiLU; q and k have unit length; o is normalised
// and gated. Value head j uses query and key head j / (n_v_heads / n_k_heads). g is a number, or
// with n_decays one for each row of S (Kimi Delta Attention, arXiv 2510.26692). The state is the
// last inputs of the convolution, then the matrices. Tokens of a sequence are taken one after
// another, heads and sequences in parallel, so that the result depends neither on threads nor on
// how tokens are cut into passes.
#include <math.h>
#include <stdio.h>

#include "kernels/steps.h"
#include "layers/conv.h"
#include "layers/layer_probe.h"

enum { Q_AND_K = 2 };
static const float UNIT_EPS = 1e-6f;

typedef struct {
    StepBuffers b;                 // whose decay is [n][n_v_heads n_decays]
    Buffer gate_down, decay_down;  // [n][rank]
} DeltaNetBuffers;

static DeltaNetBuffers lay_out(Arena *a, const DeltaNet *d, const Workspace *w, int n_rows) {
    size_t n = (size_t)n_rows;
    DeltaNetBuffers x = {.b = step_buffers(a, &d->conv, w, n_rows, d->n_v_heads, d->v_dim)};
    x.b.decay = arena_rows(a, n, (size_t)(d->n_v_heads * d->n_decays));
    x.gate_down = arena_input(a, n, (size_t)d->gate_down.n_out);
    x.decay_down = arena_input(a, n, (size_t)d->decay_down.n_out);
    return x;
}

typedef struct {
    const Workspace *w;
    const DeltaNet *d;
    const KvLayer *kv;
    StepBuffers b;
} DeltaNetPass;

// q, k and v of one token, its step (beta) and decay
static void prepare_row(const void *arg, int t, int thread) {
    const DeltaNetPass *p = arg;
    const DeltaNet *d = p->d;
    const Kernels *kernels = p->w->k;
    float *x = row(p->b.in, t), q_scale = 1.0f / sqrtf((float)d->k_dim);
    convolve(p->w, &d->conv, x, p->b.window, t);
    kernels->act(x, ACT_SILU, d->conv.n_channels);
    for (int h = 0; h < Q_AND_K * d->n_k_heads; h++) {
        float scale = h < d->n_k_heads ? q_scale : 1.0f;
        kernels->unit(x + (size_t)h * (size_t)d->k_dim, scale, UNIT_EPS, d->k_dim);
    }
    kernels->act(row(p->b.step, t), ACT_SIGMOID, d->n_v_heads);
    kernels->scale(row(p->b.step, t), d->beta_scale, d->n_v_heads);
    kernels->decay(row(p->b.decay, t), d->rate, d->n_v_heads * d->n_decays);
}

// Item: all tokens of a span, for one value head.
static void run_head(const void *arg, int item, int thread) {
    const DeltaNetPass *p = arg;
    const DeltaNet *d = p->d;
    const Span *s = &p->w->spans[item / d->n_v_heads];
    int h = item % d->n_v_heads;
    size_t k_dim = (size_t)d->k_dim, v_dim = (size_t)d->v_dim, keys = (size_t)d->n_k_heads * k_dim;
    size_t k_head = (size_t)(h / (d->n_v_heads / d->n_k_heads)) * k_dim, v_head = (size_t)h * v_dim;
    float *matrices = kv_state(p->kv, s->sequence) + conv_state(&d->conv);
    float *state = matrices + (size_t)h * k_dim * v_dim;
    const float *x = row(p->b.in, s->first);
    Steps steps = {.n = s->n, .n_k = d->k_dim, .n_v = d->v_dim,
                   .q = x + k_head, .k = x + keys + k_head, .v = x + Q_AND_K * keys + v_head,
                   .decay = row(p->b.decay, s->first) + (size_t)h * (size_t)d->n_decays,
                   .by_row = d->n_decays > 1, .step = row(p->b.step, s->first) + h,
                   .out = row(p->b.mixed, s->first) + v_head,
                   .stride = p->b.in.stride, .decay_stride = p->b.decay.stride,
                   .step_stride = p->b.step.stride, .out_stride = p->b.mixed.stride};
    p->w->k->delta(state, &steps);
}

// gate = act(gate) * norm(o), head by head
static void gate_row(const void *arg, int t, int thread) {
    const DeltaNetPass *p = arg;
    const DeltaNet *d = p->d;
    float *o = row(p->b.mixed, t);
    for (int h = 0; h < d->n_v_heads; h++, o += d->v_dim)
        norm_row(p->w, o, &d->norm, o, d->v_dim);
    int width = d->n_v_heads * d->v_dim;
    Act act = d->sigmoid ? ACT_SIGMOID : ACT_SILU;
    p->w->k->act_mul(row(p->b.gate, t), row(p->b.mixed, t), act, width);
}

static void forward(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    const DeltaNet *d = &l->deltanet;
    int n = w->n_rows;
    Arena a = scratch(w);
    DeltaNetBuffers x = lay_out(&a, d, w, n);
    DeltaNetPass p = {w, d, kv, x.b};
    bool two_gates = d->gate_down.data, two_decays = d->decay_down.data;
    Product products[] = {
        {p.b.in, &d->in}, {p.b.step, &d->beta},
        two_gates ? (Product){x.gate_down, &d->gate_down} : (Product){p.b.gate, &d->gate},
        two_decays ? (Product){x.decay_down, &d->decay_down} : (Product){p.b.decay, &d->decay},
    };
    multiply_each(w, products, 4, y, n);
    if (two_gates) multiply(w, p.b.gate, &d->gate, x.gate_down, n);
    if (two_decays) multiply(w, p.b.decay, &d->decay, x.decay_down, n);
    conv_fill(w, &d->conv, kv, p.b.window, p.b.in);
    parallel_for(w->pool, n, prepare_row, &p);
    conv_remember(w, &d->conv, kv, p.b.window);
    run_spans(w, &d->conv, kv, d->n_v_heads, run_head, &p);
    parallel_for(w->pool, n, gate_row, &p);
    show_mixed(w, l, 0, p.b.gate, d->n_v_heads, d->v_dim);
    multiply(w, w->out, &d->out, p.b.gate, n);
}

static void add_scratch(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a) {
    lay_out(a, &l->deltanet, w, w->chunk);
}

static size_t state_bytes(const Layer *l) {
    const DeltaNet *d = &l->deltanet;
    size_t matrices = (size_t)d->n_v_heads * (size_t)d->k_dim * (size_t)d->v_dim;
    return round_up(conv_state(&d->conv) + matrices, LANES) * sizeof(float);
}

static int matrices(const Layer *l, const Matrix **out) {
    const DeltaNet *m = &l->deltanet;
    out[0] = &m->in;
    out[1] = &m->gate;
    out[2] = &m->beta;
    out[3] = &m->decay;
    out[4] = &m->out;
    out[5] = &m->gate_down;
    out[6] = &m->decay_down;
    return 7;
}

static void describe(const Layer *l, char *text, size_t size) {
    const DeltaNet *d = &l->deltanet;
    snprintf(text, size, "gated DeltaNet, %d key heads of %d, %d value heads of %d, %sconvolution "
             "over %d tokens", d->n_k_heads, d->k_dim, d->n_v_heads, d->v_dim,
             d->n_decays > 1 ? "decay by channel, " : "", d->conv.n_taps);
}

const Mixer deltanet_mixer = {"gated DeltaNet", forward, add_scratch,
                              matrices, state_bytes, describe};
