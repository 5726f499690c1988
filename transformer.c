// The transformer, top to bottom. A pass takes rows (w->tokens, of one or many sequences) through
// all layers. Rows are independent of each other, except in the mixers, where a row depends on the
// rest of its sequence. Shapes: x, y and out are [n_rows][n_embd].
#include "layers/beside.h"
#include "layers/cross.h"
#include "layers/layer_embed.h"
#include "layers/logits.h"

static void layer(Workspace *w, int i);
static void classify(Workspace *w, int logit_row);
static void last_norm(Workspace *w, Buffer y, Buffer x, int n);
static void show_lens(Workspace *w, int i, int logit_row);

void forward_pass(Workspace *w, int logit_row) {
    const Stack *s = w->stack;
    embed(w);
    for (int i = s->first; (i = enter_layer(w, i)) < s->first + s->n; i++) {
        layer(w, i);
        if (w->probe.lens && s == &w->model->text) show_lens(w, i, logit_row);
    }
    if (s == &w->model->text) {
        classify(w, logit_row);
    } else {  // the encoder's hidden states become keys and values for the decoder
        last_norm(w, w->y, w->x, w->n_rows);
        keep_source(w, w->y);
    }
}

// ---- a layer ----

// A branch's input: y = norm(x), or x itself if there is no norm.
static Buffer branch_input(Workspace *w, const Norm *norm) {
    if (!norm->w) return w->x;
    norm_rows(w, w->y, norm, w->x, w->model->n_embd, w->n_rows);
    return w->y;
}

// out = mixer(y): attention, or what the layer has in its place
static void mix(Workspace *w, const Layer *l, int i, Buffer y) {
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

// out = ffn(y) + experts(y), as far as the layer has them
static void feed_forward(Workspace *w, const Layer *l, Buffer y) {
    const Experts *e = &l->experts;
    if (l->ffn.d_ff) gated_linear_units(w, &l->ffn, y);
    else zero_rows(w->out, w->n_rows);
    if (e->norm.w) {
        norm_rows(w, w->out, &e->beside_norm, w->out, w->model->n_embd, w->n_rows);
        y = branch_input(w, &e->norm);
    }
    if (e->n) experts(w, e, y);
}

// x += residual_scale * norm(out)
static void add_branch(Workspace *w, const Layer *l, const Norm *post_norm) {
    int n_embd = w->model->n_embd;
    if (post_norm->w) norm_rows(w, w->out, post_norm, w->out, n_embd, w->n_rows);
    add_rows(w, w->x, l->residual_scale, w->out, n_embd, w->n_rows);
}

// x += mix(norm(x)), then x += feed_forward(norm(x)), if the layer has both
static void sequential_branches(Workspace *w, const Layer *l, int i) {
    if (l->mixer != MIXER_NONE) {
        Buffer y = branch_input(w, &l->attn_norm);
        mix(w, l, i, y);
        add_branch(w, l, &l->attn_post_norm);
        if (l->mamba2_beside) {
            mamba2_mixer.forward(w, l, &w->kv.layers[i], y);
            add_branch(w, l, &l->attn_post_norm);
        }
    }
    attend_to_source(w, i, false);
    if (has_ffn(l)) {
        feed_forward(w, l, branch_input(w, &l->ffn_norm));
        add_branch(w, l, &l->ffn_post_norm);
    }
}

// x += mix(norm(x)) + feed_forward(norm(x)), where both read the same x
static void parallel_branches(Workspace *w, const Layer *l, int i) {
    Buffer y = branch_input(w, &l->attn_norm);
    mix(w, l, i, y);
    if (l->ffn_norm.w) y = branch_input(w, &l->ffn_norm);
    add_branch(w, l, &l->attn_post_norm);
    feed_forward(w, l, y);
    add_branch(w, l, &l->ffn_post_norm);
}

// x = norm(x + mix(x)), then x = norm(x + feed_forward(x))
static void post_norm_branches(Workspace *w, const Layer *l, int i) {
    int n_embd = w->model->n_embd, n = w->n_rows;
    mix(w, l, i, w->x);
    add_branch(w, l, &l->attn_post_norm);
    norm_rows(w, w->x, &l->attn_norm, w->x, n_embd, n);
    attend_to_source(w, i, true);
    feed_forward(w, l, w->x);
    add_branch(w, l, &l->ffn_post_norm);
    norm_rows(w, w->x, &l->ffn_norm, w->x, n_embd, n);
}

// x = norm(x), x += mix(x), then x = norm(x), x += feed_forward(x)
static void normed_residual_branches(Workspace *w, const Layer *l, int i) {
    int n_embd = w->model->n_embd, n = w->n_rows;
    norm_rows(w, w->x, &l->attn_norm, w->x, n_embd, n);
    mix(w, l, i, w->x);
    add_branch(w, l, &l->attn_post_norm);
    norm_rows(w, w->x, &l->ffn_norm, w->x, n_embd, n);
    feed_forward(w, l, w->x);
    add_branch(w, l, &l->ffn_post_norm);
}

// x += mamba2(norm(x + feed_forward(norm(mix(norm([x; embedding]))))))
static void nested_branches(Workspace *w, const Layer *l, int i) {
    int n_embd = w->model->n_embd, n = w->n_rows;
    mix(w, l, i, beside_embedding(w, &l->attn_norm));
    norm_rows(w, w->y, &l->ffn_norm, w->out, n_embd, n);
    feed_forward(w, l, w->y);
    add_rows(w, w->out, 1.0f, w->x, n_embd, n);
    norm_rows(w, w->y, &l->ffn_post_norm, w->out, n_embd, n);
    mamba2_mixer.forward(w, l, &w->kv.layers[i], w->y);
    add_branch(w, l, &l->attn_post_norm);
}

static void layer(Workspace *w, int i) {
    const Layer *l = &w->model->layers[i];
    if (l->topology == PARALLEL) parallel_branches(w, l, i);
    else if (l->topology == POST_NORM) post_norm_branches(w, l, i);
    else if (l->topology == NORMED_RESIDUAL) normed_residual_branches(w, l, i);
    else if (l->topology == NESTED) nested_branches(w, l, i);
    else sequential_branches(w, l, i);
    if (w->model->layer_embed.width) {
        embed_branch(w, &l->embed_branch, i, l->ffn.act);
        add_branch(w, l, &l->embed_branch.norm);
    }
    if (l->out_scale) scale_rows(w, w->x, *l->out_scale, w->model->n_embd, w->n_rows);
}

// ---- the classifier ----

// y = norm(x)
static void last_norm(Workspace *w, Buffer y, Buffer x, int n) {
    const Norm *norm = &w->stack->norm;
    if (norm->w) norm_rows(w, y, norm, x, w->model->n_embd, n);
    else copy_rows(y, x, w->model->n_embd, n);
}

// logits = output(head(norm(x))), for the wanted rows; or norm(x), if w->hidden
static void classify(Workspace *w, int logit_row) {
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

// Shows the probe what layer i would say: classify() on the stream as it is now, which stays.
static void show_lens(Workspace *w, int i, int logit_row) {
    copy_rows(w->out, w->x, w->model->n_embd, w->n_rows);
    classify(w, logit_row);
    show_logits(w, i, logit_row);
    copy_rows(w->x, w->out, w->model->n_embd, w->n_rows);
}

// ---- scratch ----

void ffn_scratch(const Workspace *w, const Layer *l, Arena *a) {
    if (l->ffn.d_ff) ffn_buffers(a, &l->ffn, w->chunk);
}
