// Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): each head keeps a matrix S of d_state times head_dim
// numbers. A token's step says how far S decays; the token adds the product of B and step x to S,
// and reads S with C:
//
//     S = exp(-rate step) S;   S += B (step x)^T;   o = S^T C + skip x
//
// x, B and C come out of a short convolution with SiLU; B and C are shared by the heads of a group;
// o is gated and normalised. This recurrence is the definition; the chunks of papers compute the
// same. The state is the last inputs of the convolution, then the matrices. Tokens of a sequence
// are taken one after another, heads and sequences in parallel, so that the result depends neither
// on threads nor on how tokens are cut into passes.
#include <stdio.h>

#include "kernels/steps.h"
#include "layers/conv.h"
#include "layers/layer_probe.h"

static StepBuffers lay_out(Arena *a, const Mamba2 *m, const Workspace *w, int n_rows) {
    return step_buffers(a, &m->conv, w, n_rows, m->n_heads, m->head_dim);
}

typedef struct {
    const Workspace *w;
    const Mamba2 *m;
    const KvLayer *kv;
    StepBuffers b;
} Mamba2Pass;

// x, B and C of one token, step and decay
static void prepare_row(const void *arg, int t, int thread) {
    const Mamba2Pass *p = arg;
    const Mamba2 *m = p->m;
    const Kernels *kernels = p->w->k;
    float *x = row(p->b.in, t);
    convolve(p->w, &m->conv, x, p->b.window, t);
    kernels->act(x, ACT_SILU, m->conv.n_channels);
    kernels->step(row(p->b.step, t), row(p->b.decay, t), m->rate, m->least_step, m->most_step,
                  m->n_heads);
}

// Item: all tokens of a span, for one head.
static void run_head(const void *arg, int item, int thread) {
    const Mamba2Pass *p = arg;
    const Mamba2 *m = p->m;
    const Span *s = &p->w->spans[item / m->n_heads];
    int h = item % m->n_heads, group = h / (m->n_heads / m->n_groups);
    size_t d_state = (size_t)m->d_state, head_dim = (size_t)m->head_dim;
    size_t head = (size_t)h * head_dim, width = (size_t)m->n_heads * head_dim;
    float *matrices = kv_state(p->kv, s->sequence) + conv_state(&m->conv);
    float *state = matrices + (size_t)h * d_state * head_dim;
    const float *x = row(p->b.in, s->first), *b = x + width + (size_t)group * d_state;
    Steps steps = {.n = s->n, .n_k = m->d_state, .n_v = m->head_dim,
                   .q = b + (size_t)m->n_groups * d_state, .k = b, .v = x + head,
                   .decay = row(p->b.decay, s->first) + h, .step = row(p->b.step, s->first) + h,
                   .out = row(p->b.mixed, s->first) + head,
                   .stride = p->b.in.stride, .decay_stride = p->b.decay.stride,
                   .step_stride = p->b.step.stride, .out_stride = p->b.mixed.stride};
    p->w->k->mamba2(state, &steps, m->skip[h]);
}

// The heads of each group as a whole.
static void norm_groups(const Mamba2Pass *p, float *x) {
    const Mamba2 *m = p->m;
    int width = m->n_heads / m->n_groups * m->head_dim;
    Norm norm = m->norm;
    for (int g = 0; g < m->n_groups; g++, x += width, norm.w += width)
        norm_row(p->w, x, &norm, x, width);
}

// gate = norm(silu(gate) * o), or silu(gate) * norm(o)
static void gate_row(const void *arg, int t, int thread) {
    const Mamba2Pass *p = arg;
    const Mamba2 *m = p->m;
    float *o = row(p->b.mixed, t), *gate = row(p->b.gate, t);
    if (m->norm.w && m->norm_first) norm_groups(p, o);
    p->w->k->act_mul(gate, o, ACT_SILU, m->n_heads * m->head_dim);
    if (m->norm.w && !m->norm_first) norm_groups(p, gate);
}

static void forward(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    const Mamba2 *m = &l->mamba2;
    int n = w->n_rows;
    Arena a = scratch(w);
    Mamba2Pass p = {w, m, kv, lay_out(&a, m, w, n)};
    Product products[] = {{p.b.in, &m->in}, {p.b.gate, &m->gate}, {p.b.step, &m->step}};
    multiply_each(w, products, 3, y, n);
    conv_fill(w, &m->conv, kv, p.b.window, p.b.in);
    parallel_for(w->pool, n, prepare_row, &p);
    conv_remember(w, &m->conv, kv, p.b.window);
    run_spans(w, &m->conv, kv, m->n_heads, run_head, &p);
    parallel_for(w->pool, n, gate_row, &p);
    int first = l->mamba2_beside ? l->attention.n_heads : 0;
    show_mixed(w, l, first, p.b.gate, m->n_heads, m->head_dim);
    multiply(w, w->out, &m->out, p.b.gate, n);
}

static void add_scratch(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a) {
    lay_out(a, &l->mamba2, w, w->chunk);
}

static size_t state_bytes(const Layer *l) {
    const Mamba2 *m = &l->mamba2;
    size_t matrices = (size_t)m->n_heads * (size_t)m->d_state * (size_t)m->head_dim;
    return round_up(conv_state(&m->conv) + matrices, LANES) * sizeof(float);
}

static int matrices(const Layer *l, const Matrix **out) {
    const Mamba2 *m = &l->mamba2;
    out[0] = &m->in;
    out[1] = &m->gate;
    out[2] = &m->step;
    out[3] = &m->out;
    return 4;
}

static void describe(const Layer *l, char *text, size_t size) {
    const Mamba2 *m = &l->mamba2;
    snprintf(text, size, "Mamba-2, %d heads of %d in %d groups, states of %d, convolution over %d "
             "tokens", m->n_heads, m->head_dim, m->n_groups, m->d_state, m->conv.n_taps);
}

const Mixer mamba2_mixer = {"Mamba-2", forward, add_scratch, matrices, state_bytes, describe};
