// Mamba (Gu and Dao 2023, arXiv 2312.00752): each of `width` channels has d_state numbers s, which
// decay at rates of their own. A token's step d says how far; the token adds B d x, and C reads:
//
//     s = exp(-rate d) s + B d x;   o = C . s + skip x
//
// x is convolved and goes through SiLU; B, C and a low rank of the steps are products with it, and
// may be normalised; o is gated. The state is the last inputs of the convolution, then s
// [d_state][width]. Tokens of a sequence are taken one after another, channels and sequences in
// parallel, as in mamba2.c.
#include <stdio.h>

#include "layers/conv.h"
#include "layers/layer_probe.h"

enum { COLUMNS = 64 };  // channels of an item

typedef struct {
    const Workspace *w;
    const Mamba1 *m;
    const KvLayer *kv;
    Buffer in;           // [n][width], before the convolution and after
    Buffer window;       // conv_rows
    Buffer gate, mixed;  // [n][width]
    Buffer low;          // [n][rank + 2 d_state]: the steps' low rank, B and C
    Buffer step;         // [n][width]
} MambaPass;

static MambaPass lay_out(Arena *a, const Mamba1 *m, const Workspace *w, const KvLayer *kv, int n) {
    size_t rows = (size_t)n, width = (size_t)m->width;
    MambaPass p = {.w = w, .m = m, .kv = kv, .in = arena_input(a, rows, width)};
    p.window = conv_rows(a, &m->conv, w, n);
    p.gate = arena_input(a, rows, width);
    p.mixed = arena_rows(a, rows, width);
    p.low = arena_input(a, rows, (size_t)m->low.n_out);
    p.step = arena_rows(a, rows, width);
    return p;
}

static void convolve_row(const void *arg, int t, int thread) {
    const MambaPass *p = arg;
    float *x = row(p->in, t);
    convolve(p->w, &p->m->conv, x, p->window, t);
    p->w->k->act(x, ACT_SILU, p->m->width);
}

// The low rank of the steps, B and C, each normalised if it has a norm.
static void norm_low(const void *arg, int t, int thread) {
    const MambaPass *p = arg;
    const Mamba1 *m = p->m;
    float *x = row(p->low, t);
    int widths[] = {m->rank, m->d_state, m->d_state};
    for (int i = 0; i < 3; x += widths[i++])
        if (m->low_norms[i].w) norm_row(p->w, x, &m->low_norms[i], x, widths[i]);
}

static int blocks(const Mamba1 *m) { return (m->width + COLUMNS - 1) / COLUMNS; }

// Item: all tokens of a span, for COLUMNS channels.
static void run_columns(const void *arg, int item, int thread) {
    const MambaPass *p = arg;
    const Mamba1 *m = p->m;
    const Span *s = &p->w->spans[item / blocks(m)];
    int first = item % blocks(m) * COLUMNS, left = m->width - first;
    float *state = kv_state(p->kv, s->sequence) + conv_state(&m->conv) + first;
    for (int t = s->first; t < s->first + s->n; t++) {
        const float *b = row(p->low, t) + m->rank;
        p->w->k->mamba(state, row(p->mixed, t) + first, b + m->d_state, b, row(p->in, t) + first,
                       row(p->step, t) + first, m->rate + first, m->skip + first,
                       m->d_state, m->width, left < COLUMNS ? left : COLUMNS);
    }
}

static void gate_row(const void *arg, int t, int thread) {
    const MambaPass *p = arg;
    p->w->k->act_mul(row(p->gate, t), row(p->mixed, t), ACT_SILU, p->m->width);
}

static void forward(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    const Mamba1 *m = &l->mamba1;
    int n = w->n_rows;
    Arena a = scratch(w);
    MambaPass p = lay_out(&a, m, w, kv, n);
    Product products[] = {{p.in, &m->in}, {p.gate, &m->gate}};
    multiply_each(w, products, 2, y, n);
    conv_fill(w, &m->conv, kv, p.window, p.in);
    parallel_for(w->pool, n, convolve_row, &p);
    conv_remember(w, &m->conv, kv, p.window);
    multiply(w, p.low, &m->low, p.in, n);
    parallel_for(w->pool, n, norm_low, &p);
    multiply(w, p.step, &m->step, p.low, n);
    run_spans(w, &m->conv, kv, blocks(m), run_columns, &p);
    parallel_for(w->pool, n, gate_row, &p);
    show_mixed(w, l, 0, p.gate, 1, m->width);
    multiply(w, w->out, &m->out, p.gate, n);
}

static void add_scratch(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a) {
    lay_out(a, &l->mamba1, w, kv, w->chunk);
}

static size_t state_bytes(const Layer *l) {
    const Mamba1 *m = &l->mamba1;
    size_t numbers = (size_t)m->d_state * (size_t)m->width;
    return round_up(conv_state(&m->conv) + numbers, LANES) * sizeof(float);
}

static int matrices(const Layer *l, const Matrix **out) {
    const Mamba1 *m = &l->mamba1;
    out[0] = &m->in;
    out[1] = &m->gate;
    out[2] = &m->low;
    out[3] = &m->step;
    out[4] = &m->out;
    return 5;
}

static void describe(const Layer *l, char *text, size_t size) {
    const Mamba1 *m = &l->mamba1;
    snprintf(text, size, "Mamba-1, %d channels, states of %d, steps of rank %d, convolution over "
             "%d tokens", m->width, m->d_state, m->rank, m->conv.n_taps);
}

const Mixer mamba1_mixer = {"Mamba-1", forward, add_scratch, matrices, state_bytes, describe};
