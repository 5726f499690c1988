// From tokens to rows: embeddings, learned positions, and the angles of rope.
#include "layers/layer_embed.h"

// Cosines and sines of row t's position, for every rope set.
static void rope_angles(const Workspace *w, int t) {
    const Token *token = &w->tokens[t];
    for (int i = 0; i < w->model->n_rope_sets; i++) {
        const RopeSet *set = &w->model->rope[i];
        bool is_long = set->long_freq && token->sequence->rope.expected > set->length;
        const float *freq = is_long ? set->long_freq : set->inv_freq;
        float multiplier = is_long ? set->long_multiplier : set->multiplier;
        float *angle = row(w->cos[i], t);
        for (int j = 0; j < set->n_pairs; j++) angle[j] = (float)token->pos * freq[j];
        w->k->sincos(angle, row(w->sin[i], t), angle, multiplier, set->n_pairs);
    }
}

static const float *type_of(const Model *m, const Token *token) {
    int second = token->sequence->second_text;
    return m->embed_type + (second && token->pos >= second ? (m->n_types - 1) * m->d_embed : 0);
}

// x = norm(embedding * scale + type + learned position)
static void embed_row(const void *arg, int t, int thread) {
    const Workspace *w = arg;
    const Model *m = w->model;
    const Tower *s = w->tower;
    float *x = row(m->embed_proj.data ? w->embedded : w->x, t), *learned = row(w->y, t);
    unpack_row(w, x, &s->embed, w->tokens[t].id);
    if (m->emb_scale != 1.0f) w->k->scale(x, m->emb_scale, m->d_embed);
    if (m->embed_type) w->k->add(x, type_of(m, &w->tokens[t]), m->d_embed);
    if (s->embed_pos.data) {
        unpack_row(w, learned, &s->embed_pos, w->tokens[t].place);
        w->k->add(x, learned, m->d_embed);
    }
    if (s->embed_norm.w) norm_row(w, x, &s->embed_norm, x, m->d_embed);
    rope_angles(w, t);
}

void embed(Workspace *w) {
    const Model *m = w->model;
    parallel_for(w->pool, w->n_rows, embed_row, w);
    if (m->embed_proj.data) multiply(w, w->x, &m->embed_proj, w->embedded, w->n_rows);
    layer_embed(w);
}

void embed_scratch(Workspace *w, Arena *a) {
    const Model *m = w->model;
    size_t chunk = (size_t)w->chunk;
    for (int i = 0; i < m->n_rope_sets; i++) {
        w->cos[i] = arena_rows(a, chunk, (size_t)m->rope[i].n_pairs);
        w->sin[i] = arena_rows(a, chunk, (size_t)m->rope[i].n_pairs);
    }
    if (m->embed_proj.data) w->embedded = arena_input(a, chunk, (size_t)m->embed_proj.n_in);
    layer_embed_scratch(w, a);
}
