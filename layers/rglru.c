// Griffin's recurrence (De et al. 2024, arXiv 2402.19427), a real-gated linear recurrent unit: each
// channel keeps one number s, and a gate of each token says how far it decays:
//
//     a = exp(-rate sigmoid(decay x));   s = a s + sqrt(1 - a^2) sigmoid(input x) x
//
// x is convolved; both gates are products with x, head by head; s is gated by the layer's
// activation. A text's first token is not multiplied by the root. The state is
// the last inputs of the convolution, then s. Tokens of a sequence are taken one after another.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "layers/conv.h"
#include "layers/layer_probe.h"

typedef struct {
    const Workspace *w;
    const Layer *l;
    const KvLayer *kv;
    Buffer in;               // [n][width], before the convolution and after
    Buffer window;           // conv_rows
    Buffer gate, decay, mixed;  // [n][width]: decay is a, mixed what a token adds, then s
    Buffer heads, gates[2];  // [n_heads n][head_dim], the rows of one head together
    Group *groups;           // [n_heads]
} RglruPass;

static int width_of(const RgLru *m) { return m->n_heads * m->head_dim; }

static RglruPass lay_out(Arena *a, const Layer *l, const Workspace *w, const KvLayer *kv, int n) {
    const RgLru *m = &l->rglru;
    size_t rows = (size_t)n, width = (size_t)width_of(m), heads = (size_t)m->n_heads;
    RglruPass p = {.w = w, .l = l, .kv = kv, .in = arena_rows(a, rows, width)};
    p.window = conv_rows(a, &m->conv, w, n);
    p.gate = arena_input(a, rows, width);
    p.decay = arena_rows(a, rows, width);
    p.mixed = arena_rows(a, rows, width);
    p.heads = arena_input(a, heads * rows, (size_t)m->head_dim);
    for (int i = 0; i < 2; i++) p.gates[i] = arena_rows(a, heads * rows, (size_t)m->head_dim);
    p.groups = arena_array(a, heads, sizeof *p.groups);
    return p;
}

static void convolve_row(const void *arg, int t, int thread) {
    const RglruPass *p = arg;
    const RgLru *m = &p->l->rglru;
    float *x = row(p->in, t);
    size_t dim = (size_t)m->head_dim;
    convolve(p->w, &m->conv, x, p->window, t);
    for (int h = 0; h < m->n_heads; h++, x += dim)
        memcpy(row(p->heads, h * p->w->n_rows + t), x, sizeof *x * dim);
}

// decay = a; mixed = what the token adds
static void prepare_row(const void *arg, int t, int thread) {
    const RglruPass *p = arg;
    const RgLru *m = &p->l->rglru;
    const Kernels *k = p->w->k;
    int width = width_of(m);
    float *a = row(p->decay, t), *add = row(p->mixed, t);
    for (int h = 0; h < m->n_heads; h++) {
        size_t at = (size_t)h * (size_t)m->head_dim, bytes = sizeof *a * (size_t)m->head_dim;
        memcpy(a + at, row(p->gates[0], h * p->w->n_rows + t), bytes);
        memcpy(add + at, row(p->gates[1], h * p->w->n_rows + t), bytes);
    }
    k->act_mul(a, m->rate, ACT_SIGMOID, width);
    k->scale(a, -1.0f, width);
    k->exp_sum(a, 0.0f, (int)round_up((size_t)width, LANES));
    k->act_mul(add, row(p->in, t), ACT_SIGMOID, width);
    for (int i = 0; i < width && p->w->tokens[t].pos > 0; i++) {
        float left = 1.0f - a[i] * a[i];
        add[i] *= sqrtf(left > 0.0f ? left : 0.0f);
    }
}

// Item: all tokens of a span.
static void run_span(const void *arg, int item, int thread) {
    const RglruPass *p = arg;
    const RgLru *m = &p->l->rglru;
    const Span *s = &p->w->spans[item];
    float *state = kv_state(p->kv, s->sequence) + conv_state(&m->conv);
    for (int t = s->first; t < s->first + s->n; t++) {
        const float *a = row(p->decay, t);
        float *out = row(p->mixed, t), *gate = row(p->gate, t);
        for (int i = 0; i < width_of(m); i++) out[i] = state[i] = a[i] * state[i] + out[i];
        p->w->k->act_mul(gate, out, p->l->ffn.act.kind, width_of(m));
    }
}

static void forward(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    const RgLru *m = &l->rglru;
    int n = w->n_rows;
    Arena a = scratch(w);
    RglruPass p = lay_out(&a, l, w, kv, n);
    Product products[] = {{p.in, &m->in}, {p.gate, &m->gate}};
    Product gates[] = {{p.gates[0], &m->decay}, {p.gates[1], &m->input}};
    for (int h = 0; h < m->n_heads; h++) p.groups[h] = (Group){h, h * n, n};
    multiply_each(w, products, 2, y, n);
    conv_fill(w, &m->conv, kv, p.window, p.in);
    parallel_for(w->pool, n, convolve_row, &p);
    conv_remember(w, &m->conv, kv, p.window);
    multiply_groups(w, gates, 2, p.heads, m->n_heads * n, p.groups, m->n_heads);
    parallel_for(w->pool, n, prepare_row, &p);
    run_spans(w, &m->conv, kv, 1, run_span, &p);
    show_mixed(w, l, 0, p.gate, 1, width_of(m));
    multiply(w, w->out, &m->out, p.gate, n);
}

static void add_scratch(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a) {
    lay_out(a, l, w, kv, w->chunk);
}

static size_t state_bytes(const Layer *l) {
    const RgLru *m = &l->rglru;
    return round_up(conv_state(&m->conv) + (size_t)width_of(m), LANES) * sizeof(float);
}

static int matrices(const Layer *l, const Matrix **out) {
    const RgLru *m = &l->rglru;
    out[0] = &m->in;
    out[1] = &m->gate;
    out[2] = &m->decay;
    out[3] = &m->input;
    out[4] = &m->out;
    return 5;
}

static void describe(const Layer *l, char *text, size_t size) {
    const RgLru *m = &l->rglru;
    snprintf(text, size, "RG-LRU, %d heads of %d, convolution over %d tokens", m->n_heads,
             m->head_dim, m->conv.n_taps);
}

const Mixer rglru_mixer = {"RG-LRU", forward, add_scratch, matrices, state_bytes, describe};
