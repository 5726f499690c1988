// The transformer, top to bottom. A pass takes rows (w->tokens, of one or many sequences) through
// all layers. Rows are independent of each other, except in the mixers, where a row depends on the
// rest of its sequence. Shapes: x, y and out are [n_rows][n_embd].
#include "layers/branches.h"
#include "layers/logits.h"

static void layer(Workspace *w, int i);

void forward_pass(Workspace *w, int logit_row) {
    const Stack *s = w->stack;
    embed(w);
    for (int i = s->first; (i = enter_layer(w, i)) < s->first + s->n; i++) {
        layer(w, i);
        if (w->probe.lens) show_lens(w, i, logit_row);
    }
    if (s == &w->model->text) compute_logits(w, logit_row);
    else keep_source(w);
}

// ---- a layer ----

Buffer branch_input(Workspace *w, const Norm *norm) {
    if (!norm->w) return w->x;
    norm_rows(w, w->y, norm, w->x, w->model->n_embd, w->n_rows);
    return w->y;
}

void mix(Workspace *w, const Layer *l, int i, Buffer y) {
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

// x += mix(norm(x)), then x += feed_forward(norm(x)), if the layer has both
static void sequential_branches(Workspace *w, const Layer *l, int i) {
    if (l->mixer != MIXER_NONE) {
        mix(w, l, i, branch_input(w, &l->attn_norm));
        add_branch(w, l, &l->attn_post_norm);
    }
    mix_more(w, l, i);
    if (has_ffn(l)) {
        feed_forward(w, l, branch_input(w, &l->ffn_norm));
        add_branch(w, l, &l->ffn_post_norm);
    }
}

static void layer(Workspace *w, int i) {
    const Layer *l = &w->model->layers[i];
    if (l->topology == SEQUENTIAL) sequential_branches(w, l, i);
    else other_branches(w, l, i);
    if (w->model->layer_embed.width) add_layer_embedding(w, l, i);
    if (l->out_scale) scale_rows(w, w->x, *l->out_scale, w->model->n_embd, w->n_rows);
}

// ---- logits ----

void last_norm(Workspace *w, Buffer y, Buffer x, int n) {
    const Norm *norm = &w->stack->norm;
    if (norm->w) norm_rows(w, y, norm, x, w->model->n_embd, n);
    else copy_rows(y, x, w->model->n_embd, n);
}

void compute_logits(Workspace *w, int logit_row) {
    const Model *m = w->model;
    int n = 0;
    for (const Span *s = w->spans; s < w->spans + w->n_spans; n += s++->n_logits)
        if (s->n_logits) {
            Buffer wanted = rows_after(w->x, s->first + s->n - s->n_logits);
            last_norm(w, rows_after(w->y, n), wanted, s->n_logits);
        }
    if (!n) return;
    Buffer logits = rows_after(w->logits, logit_row);
    if (w->hidden) {
        copy_rows(logits, w->y, m->n_embd, n);
        return;
    }
    multiply(w, logits, &m->output, prediction_head(w, n), n);
    if (m->final_softcap > 0.0f) cap_logits(w, logits, n);
}

// ---- scratch ----

void ffn_scratch(const Workspace *w, int i, Arena *a) {
    const Layer *l = &w->model->layers[i];
    if (l->ffn.d_ff) ffn_buffers(a, &l->ffn, w->chunk);
}
