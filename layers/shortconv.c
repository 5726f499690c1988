// Short convolution (LFM2): [b, c, x] = in y; u = b * x; out = out(c * conv(u)), where conv sums
// the last n_taps tokens channel by channel. The state is the last n_taps - 1 rows of u.
#include <stdio.h>

#include "layers/conv.h"
#include "layers/layer_probe.h"

typedef struct {
    Buffer in;     // [n][3 n_embd]: b, c and x side by side
    Buffer window; // conv_rows: b * x
    Buffer mixed;  // [n][n_embd]
} ShortConvBuffers;

static ShortConvBuffers lay_out(Arena *a, const ShortConv *c, const Workspace *w, int n) {
    size_t width = (size_t)c->conv.n_channels;
    ShortConvBuffers b = {.in = arena_rows(a, (size_t)n, 3 * width)};
    b.window = conv_rows(a, &c->conv, w, n);
    b.mixed = arena_input(a, (size_t)n, width);
    return b;
}

typedef struct {
    const Workspace *w;
    const Conv *conv;
    ShortConvBuffers b;
} ShortConvPass;

static void convolve_input(const void *arg, int t, int thread) {
    const ShortConvPass *p = arg;
    int n = p->conv->n_channels;
    const float *b = row(p->b.in, t), *x = b + 2 * (size_t)n;
    float *out = conv_row(p->w, p->conv, p->b.window, t);
    for (int i = 0; i < n; i++) out[i] = b[i] * x[i];
}

static void convolve_row(const void *arg, int t, int thread) {
    const ShortConvPass *p = arg;
    int n = p->conv->n_channels;
    const float *c = row(p->b.in, t) + n;
    float *out = row(p->b.mixed, t);
    convolve(p->w, p->conv, out, p->b.window, t);
    for (int i = 0; i < n; i++) out[i] *= c[i];
}

static void forward(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    const ShortConv *c = &l->shortconv;
    int n = w->n_rows;
    Arena a = scratch(w);
    ShortConvPass p = {w, &c->conv, lay_out(&a, c, w, n)};
    multiply(w, p.b.in, &c->in, y, n);
    conv_recall(w, &c->conv, kv, p.b.window);
    parallel_for(w->pool, n, convolve_input, &p);
    parallel_for(w->pool, n, convolve_row, &p);
    conv_remember(w, &c->conv, kv, p.b.window);
    show_mixed(w, l, 0, p.b.mixed, 1, c->conv.n_channels);
    multiply(w, w->out, &c->out, p.b.mixed, n);
}

static void add_scratch(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a) {
    lay_out(a, &l->shortconv, w, w->chunk);
}

static size_t state_bytes(const Layer *l) {
    return round_up(conv_state(&l->shortconv.conv), LANES) * sizeof(float);
}

static int matrices(const Layer *l, const Matrix **out) {
    const ShortConv *m = &l->shortconv;
    out[0] = &m->in;
    out[1] = &m->out;
    return 2;
}

static void describe(const Layer *l, char *text, size_t size) {
    snprintf(text, size, "convolution over %d tokens", l->shortconv.conv.n_taps);
}

const Mixer shortconv_mixer = {"short convolution", forward, add_scratch,
                               matrices, state_bytes, describe};
