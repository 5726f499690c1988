// A branch of a layer, step by step: its input, the mixer or the feed-forward network, the sum.
#include "engine.h"

Buffer branch_input(Workspace *w, const Norm *norm) {
    if (!norm->w) return w->x;
    norm_rows(w, w->y, norm, w->x, w->model->n_embd, w->n_rows);
    return w->y;
}

void run_mixer(Workspace *w, const Layer *l, int i, Buffer y) {
    mixers[l->mixer]->forward(w, l, &w->kv.layers[i], y);
}

typedef struct {
    Buffer gate, up;  // [n_rows][d_ff]
} FfnBuffers;

static FfnBuffers ffn_buffers(Arena *a, const Ffn *f, int n) {
    FfnBuffers b = {arena_input(a, (size_t)n, (size_t)f->d_ff), {0}};
    b.up = arena_input(a, (size_t)n, (size_t)f->d_ff);
    return b;
}

// out = down(act(gate y) * up y)
static void gated_linear_units(Workspace *w, const Ffn *f, Buffer y) {
    int n = w->n_rows;
    Arena a = scratch(w);
    FfnBuffers b = ffn_buffers(&a, f, n);
    multiply_each(w, (Product[]){{b.up, &f->up}, {b.gate, &f->gate}}, f->act.gated ? 2 : 1, y, n);
    Buffer hidden = activate_rows(w, &f->act, b.gate, b.up, f->d_ff, n);
    if (f->sub_norm.w) norm_rows(w, hidden, &f->sub_norm, hidden, f->d_ff, n);
    multiply(w, w->out, &f->down, hidden, n);
    if (!f->token_gate.data) return;
    multiply(w, b.gate, &f->token_gate, y, n);
    gate_rows(w, w->out, b.gate, 1, w->model->n_embd, n);
}

void feed_forward(Workspace *w, const Layer *l, Buffer y) {
    if (l->ffn.d_ff) gated_linear_units(w, &l->ffn, y);
    else zero_rows(w->out, w->n_rows);
    if (l->experts.n) add_experts(w, &l->experts, y);
}

void add_branch(Workspace *w, const Layer *l, const Norm *post_norm) {
    int n_embd = w->model->n_embd;
    if (post_norm->w) norm_rows(w, w->out, post_norm, w->out, n_embd, w->n_rows);
    add_rows(w, w->x, l->residual_scale, w->out, n_embd, w->n_rows);
}

void ffn_scratch(const Workspace *w, int i, Arena *a) {
    const Layer *l = &w->model->layers[i];
    if (l->ffn.d_ff) ffn_buffers(a, &l->ffn, w->chunk);
}
