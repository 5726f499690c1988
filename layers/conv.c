#include "layers/conv.h"

#include <string.h>

size_t conv_state(const Conv *c) { return (size_t)(c->n_taps - 1) * (size_t)c->n_channels; }

Buffer conv_rows(Arena *a, const Conv *c, const Workspace *w, int n) {
    int n_spans = w->n_spans ? w->n_spans : w->chunk;
    size_t before = (size_t)(c->n_taps - 1) * (size_t)n_spans;
    return arena_rows(a, (size_t)n + before, (size_t)c->n_channels);
}

StepBuffers step_buffers(Arena *a, const Conv *c, const Workspace *w, int n, int n_heads,
                              int head_dim) {
    size_t rows = (size_t)n, heads = (size_t)n_heads, width = heads * (size_t)head_dim;
    StepBuffers b;
    b.in = arena_rows(a, rows, (size_t)c->n_channels);
    b.window = conv_rows(a, c, w, n);
    b.gate = arena_input(a, rows, width);
    b.mixed = arena_rows(a, rows, width);
    b.step = arena_rows(a, rows, heads);
    b.decay = arena_rows(a, rows, heads);
    return b;
}

float *conv_row(const Workspace *w, const Conv *c, Buffer window, int t) {
    return row(window, t + (c->n_taps - 1) * (w->tokens[t].span + 1));
}

void convolve(const Workspace *w, const Conv *c, float *out, Buffer window, int t) {
    const float *first = conv_row(w, c, window, t) - (size_t)(c->n_taps - 1) * window.stride;
    w->k->conv(out, first, window.stride, c->taps, c->bias, c->n_taps, c->n_channels);
}

// Copies n_taps - 1 rows between a sequence's state and the window, from row t of the pass on.
static void copy_state(const Workspace *w, const Conv *c, float *state, Buffer window, int t,
                      bool to_state) {
    size_t width = (size_t)c->n_channels;
    float *from = conv_row(w, c, window, t) - (size_t)(c->n_taps - 1) * window.stride;
    for (int j = 0; j < c->n_taps - 1; j++, from += window.stride, state += width)
        memcpy(to_state ? state : from, to_state ? from : state, sizeof *state * width);
}

void conv_recall(const Workspace *w, const Conv *c, const KvLayer *kv, Buffer window) {
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++)
        copy_state(w, c, kv_state(kv, s->sequence), window, s->first, false);
}

typedef struct {
    const Workspace *w;
    const Conv *c;
    Buffer window, in;
} Fill;

static void fill_row(const void *arg, int t, int thread) {
    const Fill *f = arg;
    float *to = conv_row(f->w, f->c, f->window, t);
    memcpy(to, row(f->in, t), sizeof *to * (size_t)f->c->n_channels);
}

void conv_fill(const Workspace *w, const Conv *c, const KvLayer *kv, Buffer window, Buffer in) {
    conv_recall(w, c, kv, window);
    parallel_for(w->pool, w->n_rows, fill_row, &(Fill){w, c, window, in});
}

// The layer's part of the states that the mark keeps.
static float *marked_state(const Workspace *w, const KvLayer *kv, const Sequence *s) {
    uint8_t *states = s->mark.states;
    for (const KvLayer *before = w->kv.layers; before < kv; before++) states += before->state;
    return (float *)states;
}

// Rows of a span up to its sequence's mark; 0: this is not among them.
static int rows_to_mark(const Span *s) {
    int n = s->sequence->mark.length - s->pos;
    return n > 0 && n <= s->n ? n : 0;
}

// The last n_taps - 1 inputs of each span, some of them from before it where it is short.
void conv_remember(const Workspace *w, const Conv *c, const KvLayer *kv, Buffer window) {
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++) {
        int n = rows_to_mark(s);
        Buffer ends = rows_after(window, s->n), marks = rows_after(window, n);
        copy_state(w, c, kv_state(kv, s->sequence), ends, s->first, true);
        if (n) copy_state(w, c, marked_state(w, kv, s->sequence), marks, s->first, true);
    }
}

void run_spans(Workspace *w, const Conv *c, const KvLayer *kv, int items, WorkFn *run,
               const void *pass) {
    Span *end = w->spans + w->n_spans;
    bool marked = false;
    for (Span *s = w->spans; s < end; s++) {
        int n = rows_to_mark(s);
        s->rest = n ? s->n - n : 0;
        s->n -= s->rest;
        marked |= n > 0;
    }
    parallel_for(w->pool, w->n_spans * items, run, pass);
    if (!marked) return;
    for (Span *s = w->spans; s < end; s++) {
        size_t from = conv_state(c);
        if (rows_to_mark(s))
            memcpy(marked_state(w, kv, s->sequence) + from, kv_state(kv, s->sequence) + from,
                   kv->state - from * sizeof(float));
        int n = s->n;
        s->first += n;
        s->n = s->rest;
        s->rest = n;
    }
    parallel_for(w->pool, w->n_spans * items, run, pass);
    for (Span *s = w->spans; s < end; s++) {
        s->first -= s->rest;
        s->n += s->rest;
    }
}
