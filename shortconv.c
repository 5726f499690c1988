// Short convolution (LFM2): [b, c, x] = W_in y; a causal convolution of b * x over the last n_taps tokens, channel by
// channel; out = W_out (c * that). What it remembers is the last n_taps - 1 inputs of the convolution.
#include <string.h>

#include "session.h"

typedef struct {
    Session *s;
    const Layer *layer;
    int before;  // rows of s->conv before the first token's
} Conv;

static void multiply_token(void *arg, int t, int thread) {
    (void)thread;
    const Conv *a = arg;
    int n = a->layer->n_channels;
    const float *b = row(&a->s->mix_in, t), *x = b + 2 * (size_t)n;
    float *out = row(&a->s->conv, a->before + t);
    for (int i = 0; i < n; i++) out[i] = b[i] * x[i];
}

static void convolve_token(void *arg, int t, int thread) {
    (void)thread;
    const Conv *a = arg;
    const Session *s = a->s;
    const Layer *l = a->layer;
    int n = l->n_channels;
    const float *c = row(&s->mix_in, t) + n;
    float *out = row(&s->att, t);
    s->k->conv(out, row(&s->conv, t), s->conv.stride, l->conv, l->n_taps, n);
    for (int i = 0; i < n; i++) out[i] *= c[i];
}

void shortconv(Session *s, int layer, const Buffer *y, int n) {
    const Layer *l = &s->model->layers[layer];
    Conv conv = {s, l, l->n_taps - 1};
    multiply(s, (const Matrix *[]){&l->mix_in}, (const Buffer *[]){&s->mix_in}, 1, y, n);
    conv_remember(s, layer);
    parallel_for(s->pool, n, multiply_token, &conv);
    parallel_for(s->pool, n, convolve_token, &conv);
    conv_keep(s, layer, n);
    multiply(s, (const Matrix *[]){&l->mix_out}, (const Buffer *[]){&s->out}, 1, &s->att, n);
}

// ---- what a convolution remembers; deltanet.c has one too ----

void conv_remember(Session *s, int layer) {
    const Layer *l = &s->model->layers[layer];
    size_t n = (size_t)l->n_channels;
    for (int j = 0; j < l->n_taps - 1; j++)
        memcpy(row(&s->conv, j), kv_state(s, layer) + (size_t)j * n, sizeof(float) * n);
}

void conv_keep(Session *s, int layer, int n_tokens) {
    const Layer *l = &s->model->layers[layer];
    size_t n = (size_t)l->n_channels;
    for (int j = 0; j < l->n_taps - 1; j++)
        memcpy(kv_state(s, layer) + (size_t)j * n, row(&s->conv, n_tokens + j), sizeof(float) * n);
}
