// The short causal convolution of shortconv.c, deltanet.c and mamba2.c, and the buffers of the
// latter two. Its input is a window of rows: for each span of the pass, the n_taps - 1 inputs
// before it and then its own.
#ifndef CONV_H
#define CONV_H

#include "engine.h"

// Room for the window of n rows: with the spans of the current pass, or before one with the most.
Buffer conv_rows(Arena *a, const Conv *c, const Workspace *w, int n);
// Where row t of the pass lies in the window.
float *conv_row(const Workspace *w, const Conv *c, Buffer window, int t);
// out = the sum of taps times inputs that ends at row t.
void convolve(const Workspace *w, const Conv *c, float *out, Buffer window, int t);
// conv_recall fills the rows before each span from its sequence's state; conv_fill also copies the
// spans' own rows from `in`.
void conv_recall(const Workspace *w, const Conv *c, const KvLayer *kv, Buffer window);
void conv_fill(const Workspace *w, const Conv *c, const KvLayer *kv, Buffer window, Buffer in);
// Keeps the last rows of each span in its sequence's state, and those before its mark.
void conv_remember(const Workspace *w, const Conv *c, const KvLayer *kv, Buffer window);
// A mixer's tokens, one after another: runs `items` items for each span, and where a sequence comes
// to its mark keeps the state there, but for the convolution's part, which conv_remember keeps.
void run_spans(Workspace *w, const Conv *c, const KvLayer *kv, int items, WorkFn *run,
               const void *pass);
// Numbers that the convolution has in the layer's state, where they come first.
size_t conv_state(const Conv *c);

typedef struct {  // of a mixer whose heads keep a matrix, to which each token adds something
    Buffer in;           // [n][channels], before the convolution and after
    Buffer window;       // conv_rows
    Buffer gate, mixed;  // [n][n_heads head_dim]
    Buffer step, decay;  // [n][n_heads]
} StepBuffers;

StepBuffers step_buffers(Arena *a, const Conv *c, const Workspace *w, int n, int n_heads,
                              int head_dim);

#endif
