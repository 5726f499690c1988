// From tokens to rows: embeddings, learned positions, the angles of rope; and the embeddings that
// each layer may have of its own.
#include <math.h>

#include "workspace.h"

// ---- the residual stream's first rows ----

// Cosines and sines of a position, for every set of rope frequencies.
static void rope_angles(const Workspace *w, int t) {
    const Row *r = &w->rows[t];
    for (int i = 0; i < w->model->n_rope_sets; i++) {
        const RopeSet *set = &w->model->rope[i];
        bool is_long = set->long_freq && r->sequence->expected > set->length;
        const float *freq = is_long ? set->long_freq : set->inv_freq;
        float multiplier = is_long ? set->long_multiplier : set->multiplier;
        float *angle = row(w->cos[i], t);
        for (int j = 0; j < set->n_pairs; j++) angle[j] = (float)r->pos * freq[j];
        w->k->sincos(angle, row(w->sin[i], t), angle, multiplier, set->n_pairs);
    }
}

// embedding, times its scale, plus the type's and the learned position's, normalised
static void embed_row(const void *arg, int t, int thread) {
    const Workspace *w = arg;
    const Model *m = w->model;
    const Stack *s = w->stack;
    float *x = row(m->embed_proj.data ? w->embedded : w->x, t), *learned = row(w->y, t);
    unpack_row(w, x, &s->embed, w->rows[t].token);
    if (m->emb_scale != 1.0f) w->k->scale(x, m->emb_scale, m->d_embed);
    if (m->embed_type) w->k->add(x, m->embed_type, m->d_embed);
    if (s->embed_pos.data) {
        unpack_row(w, learned, &s->embed_pos, w->rows[t].pos);
        w->k->add(x, learned, m->d_embed);
    }
    if (s->embed_norm.w) norm_row(w, x, &s->embed_norm, x, m->d_embed);
    rope_angles(w, t);
}

// ---- layers' own embeddings ----

static void layer_embed_row(const void *arg, int t, int thread) {
    const Workspace *w = arg;
    const Model *m = w->model;
    const LayerEmbed *e = &m->layer_embed;
    int n = m->n_layers * e->width;
    float *p = row(w->layer_embed, t), *looked_up = row(w->layer_embed, w->chunk + thread);
    w->k->scale(p, 1.0f / sqrtf((float)m->n_embd), n);
    for (int i = 0; i < n; i += e->width) norm_row(w, p + i, &e->in_norm, p + i, e->width);
    unpack_row(w, looked_up, &e->table, w->rows[t].token);
    w->k->axpby(p, sqrtf(0.5f), looked_up, sqrtf(0.5f * (float)e->width), n);
}

void embed(Workspace *w) {
    const Model *m = w->model;
    parallel_for(w->pool, w->n_rows, embed_row, w);
    if (m->embed_proj.data) multiply(w, w->x, &m->embed_proj, w->embedded, w->n_rows);
    if (!m->layer_embed.width) return;
    // (norm(in x / sqrt(n_embd)) + sqrt(width) table[token]) / sqrt(2), layer by layer
    multiply(w, w->layer_embed, &m->layer_embed.in, w->x, w->n_rows);
    parallel_for(w->pool, w->n_rows, layer_embed_row, w);
}

void embed_scratch(Workspace *w, Arena *a) {
    const Model *m = w->model;
    size_t n_threads = (size_t)pool_threads(w->pool), chunk = (size_t)w->chunk;
    for (int i = 0; i < m->n_rope_sets; i++) {
        w->cos[i] = take_rows(a, chunk, (size_t)m->rope[i].n_pairs);
        w->sin[i] = take_rows(a, chunk, (size_t)m->rope[i].n_pairs);
    }
    if (m->embed_proj.data) w->embedded = take_input(a, chunk, (size_t)m->d_embed);
    if (m->layer_embed.width)  // and a row a thread, to look one up
        w->layer_embed = take_rows(a, chunk + n_threads,
                                   (size_t)m->n_layers * (size_t)m->layer_embed.width);
}

// ---- the branch that they gate ----

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

// out = out(act(gate x) * the layer's embedding)
void embed_branch(Workspace *w, const EmbedBranch *e, int layer, Activation act) {
    int width = w->model->layer_embed.width;
    Arena a = scratch(w);
    Buffer rows = take_input(&a, (size_t)w->n_rows, (size_t)width);
    GateBranch gate = {w, rows, layer * width, act.kind};
    multiply(w, rows, &e->gate, w->x, w->n_rows);
    parallel_for(w->pool, w->n_rows, gate_branch_row, &gate);
    multiply(w, w->out, &e->out, rows, w->n_rows);
}

void embed_branch_scratch(const Workspace *w, const Layer *l, Arena *a) {
    int width = w->model->layer_embed.width;
    if (width) take_input(a, (size_t)w->chunk, (size_t)width);
}
