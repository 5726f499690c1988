#include "layers/layer_embed.h"

#include <math.h>

#include "layers/topologies.h"

// (norm(in x / sqrt(n_embd)) + sqrt(width) table[token]) / sqrt(2), layer by layer
static void layer_embed_row(const void *arg, int t, int thread) {
    const Workspace *w = arg;
    const Model *m = w->model;
    const LayerEmbed *e = &m->layer_embed;
    int n = m->n_layers * e->width;
    float *p = row(w->layer_embed, t), *looked_up = row(w->layer_embed, w->chunk + thread);
    w->k->scale(p, 1.0f / sqrtf((float)m->n_embd), n);
    for (int i = 0; i < n; i += e->width) norm_row(w, p + i, &e->in_norm, p + i, e->width);
    unpack_row(w, looked_up, &e->table, w->tokens[t].id);
    w->k->axpby(p, sqrtf(0.5f), looked_up, sqrtf(0.5f * (float)e->width), n);
}

void layer_embed(Workspace *w) {
    if (!w->model->layer_embed.width) return;
    multiply(w, w->layer_embed, &w->model->layer_embed.in, w->x, w->n_rows);
    parallel_for(w->pool, w->n_rows, layer_embed_row, w);
}

void layer_embed_scratch(Workspace *w, Arena *a) {
    const Model *m = w->model;
    size_t rows = (size_t)(w->chunk + pool_threads(w->pool));  // one a thread, to look up in
    if (m->layer_embed.width)
        w->layer_embed = arena_rows(a, rows, (size_t)m->n_layers * (size_t)m->layer_embed.width);
}

// ---- the branch ----

typedef struct {
    const Workspace *w;
    Buffer gate;
    int column;
    Act act;
} GateBranch;

static void gate_branch_row(const void *arg, int t, int thread) {
    const GateBranch *a = arg;
    const Workspace *w = a->w;
    w->k->act_mul(row(a->gate, t), row(w->layer_embed, t) + a->column, a->act,
                  w->model->layer_embed.width);
}

void add_layer_embedding(Workspace *w, const Layer *l, int i) {
    const EmbedBranch *e = &l->embed_branch;
    int width = w->model->layer_embed.width;
    Arena a = scratch(w);
    Buffer rows = arena_input(&a, (size_t)w->n_rows, (size_t)width);
    GateBranch gate = {w, rows, i * width, l->ffn.act.kind};
    multiply(w, rows, &e->gate, w->x, w->n_rows);
    parallel_for(w->pool, w->n_rows, gate_branch_row, &gate);
    multiply(w, w->out, &e->out, rows, w->n_rows);
    add_branch(w, l, &e->norm);
}

void embed_branch_scratch(const Workspace *w, int i, Arena *a) {
    int width = w->model->layer_embed.width;
    if (width) arena_input(a, (size_t)w->chunk, (size_t)width);
}
