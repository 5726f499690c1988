// The ways in which layers join branches and norms, besides transformer.c's sequential_branches.
#include "layers/topologies.h"

#include <string.h>

#include "layers/cross.h"
#include "layers/layer_embed.h"

// Mamba-2 beside attention: the same input, and outputs are added one after the other.
static void mix_states(Workspace *w, const Layer *l, int i) {
    mamba2_mixer.forward(w, l, &w->kv.layers[i], l->attn_norm.w ? w->y : w->x);
    add_branch(w, l, &l->attn_post_norm);
}

void run_more_mixers(Workspace *w, const Layer *l, int i) {
    if (l->mamba2_beside) mix_states(w, l, i);
    attend_to_source(w, i, false);
}

// x += mix(norm(x)) + feed_forward(norm(x)), where both read the same x
static void parallel_branches(Workspace *w, const Layer *l, int i) {
    Buffer y = branch_input(w, &l->attn_norm);
    run_mixer(w, l, i, y);
    if (l->ffn_norm.w) y = branch_input(w, &l->ffn_norm);
    add_branch(w, l, &l->attn_post_norm);
    feed_forward(w, l, y);
    add_branch(w, l, &l->ffn_post_norm);
}

// x = norm(x + mix(x)), then x = norm(x + feed_forward(x))
static void post_norm_branches(Workspace *w, const Layer *l, int i) {
    int n_embd = w->model->n_embd, n = w->n_rows;
    run_mixer(w, l, i, w->x);
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
    run_mixer(w, l, i, w->x);
    add_branch(w, l, &l->attn_post_norm);
    norm_rows(w, w->x, &l->ffn_norm, w->x, n_embd, n);
    feed_forward(w, l, w->x);
    add_branch(w, l, &l->ffn_post_norm);
}

typedef struct {
    const Workspace *w;
    const Norm *norm;
} JoinEmbedding;

// y = norm([x; embedding]), 2 n_embd numbers
static void join_row(const void *arg, int t, int thread) {
    const JoinEmbedding *join = arg;
    const Workspace *w = join->w;
    int n = w->model->n_embd;
    float *y = row(w->y, t), *embedding = y + n;
    memcpy(y, row(w->x, t), sizeof *y * (size_t)n);
    unpack_row(w, embedding, &w->tower->embed, w->tokens[t].id);
    w->k->scale(embedding, w->model->emb_scale, n);
    norm_row(w, y, join->norm, y, 2 * n);
}

// x += mamba2(norm(x + feed_forward(norm(mix(norm([x; embedding]))))))
static void nested_branches(Workspace *w, const Layer *l, int i) {
    int n_embd = w->model->n_embd, n = w->n_rows;
    parallel_for(w->pool, n, join_row, &(JoinEmbedding){w, &l->attn_norm});
    run_mixer(w, l, i, w->y);
    norm_rows(w, w->y, &l->ffn_norm, w->out, n_embd, n);
    feed_forward(w, l, w->y);
    add_rows(w, w->out, 1.0f, w->x, n_embd, n);
    norm_rows(w, w->y, &l->ffn_post_norm, w->out, n_embd, n);
    mamba2_mixer.forward(w, l, &w->kv.layers[i], w->y);
    add_branch(w, l, &l->attn_post_norm);
}

void other_branches(Workspace *w, const Layer *l, int i) {
    if (l->topology == PARALLEL) parallel_branches(w, l, i);
    else if (l->topology == POST_NORM) post_norm_branches(w, l, i);
    else if (l->topology == NORMED_RESIDUAL) normed_residual_branches(w, l, i);
    else nested_branches(w, l, i);
}

// ---- scratch ----

static void mixer_scratch(const Workspace *w, int i, Arena *a) {
    const Layer *l = &w->model->layers[i];
    if (l->mixer != MIXER_NONE) mixers[l->mixer]->scratch(w, l, &w->kv.layers[i], a);
}

static void mamba2_scratch(const Workspace *w, int i, Arena *a) {
    const Layer *l = &w->model->layers[i];
    if (l->mamba2_beside) mamba2_mixer.scratch(w, l, &w->kv.layers[i], a);
}

ScratchFn *const layer_parts[] = {
    mixer_scratch, mamba2_scratch, cross_scratch, ffn_scratch, experts_scratch,
    embed_branch_scratch, NULL,
};
