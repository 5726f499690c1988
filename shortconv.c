// Short convolution (LFM2): [b, c, x] = in y; a causal convolution of b * x over the last n_taps
// tokens, channel by channel; out = out (c * that). What it remembers of a sequence is the last
// n_taps - 1 inputs of the convolution.
#include "conv.h"

typedef struct {
    Buffer in;     // [n][3 n_embd]: b, c and x side by side
    Buffer window; // conv_rows: b * x
    Buffer mixed;  // [n][n_embd]
} ShortConvBuffers;

static ShortConvBuffers lay_out(Arena *a, const ShortConv *c, const Workspace *w, int n) {
    size_t width = (size_t)c->conv.n_channels;
    ShortConvBuffers b = {.in = take_rows(a, (size_t)n, 3 * width)};
    b.window = take_conv_rows(a, &c->conv, w, n);
    b.mixed = take_input(a, (size_t)n, width);
    return b;
}

typedef struct {
    const Workspace *w;
    const Conv *conv;
    ShortConvBuffers b;
} Job;

static void convolve_input(const void *arg, int t, int thread) {
    const Job *job = arg;
    int n = job->conv->n_channels;
    const float *b = row(job->b.in, t), *x = b + 2 * (size_t)n;
    float *out = conv_row(job->w, job->conv, job->b.window, t);
    for (int i = 0; i < n; i++) out[i] = b[i] * x[i];
}

static void convolve_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    int n = job->conv->n_channels;
    const float *c = row(job->b.in, t) + n;
    float *out = row(job->b.mixed, t);
    convolve(job->w, job->conv, out, job->b.window, t);
    for (int i = 0; i < n; i++) out[i] *= c[i];
}

static void run(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    const ShortConv *c = &l->shortconv;
    int n = w->n_rows;
    Arena a = scratch(w);
    Job job = {w, &c->conv, lay_out(&a, c, w, n)};
    multiply(w, job.b.in, &c->in, y, n);
    conv_recall(w, &c->conv, kv, job.b.window);
    parallel_for(w->pool, n, convolve_input, &job);
    parallel_for(w->pool, n, convolve_row, &job);
    conv_remember(w, &c->conv, kv, job.b.window);
    multiply(w, w->out, &c->out, job.b.mixed, n);
}

static void count(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a) {
    lay_out(a, &l->shortconv, w, w->chunk);
}

static size_t state_bytes(const Layer *l) {
    return round_up(conv_state(&l->shortconv.conv), LANES) * sizeof(float);
}

const Mixer shortconv_mixer = {run, count, state_bytes};
