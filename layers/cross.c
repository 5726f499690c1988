#include "layers/cross.h"

#include "layers/attention_tiles.h"
#include "layers/topologies.h"

const KvLayer *kv_cross(const Workspace *w, int i) { return &w->kv.layers[i + w->model->text.n]; }

void attend_to_source(Workspace *w, int i, bool post_norm) {
    const Layer *l = &w->model->layers[i];
    int n_embd = w->model->n_embd, n = w->n_rows;
    if (!l->cross.n_heads) return;
    if (!post_norm) norm_rows(w, w->y, &l->cross_norm, w->x, n_embd, n);
    run_attention(w, i, &l->cross, kv_cross(w, i), post_norm ? w->x : w->y);
    add_rows(w, w->x, l->residual_scale, w->out, n_embd, n);
    if (post_norm) norm_rows(w, w->x, &l->cross_norm, w->x, n_embd, n);
}

void cross_scratch(const Workspace *w, int i, Arena *a) {
    const Attention *cross = &w->model->layers[i].cross;
    if (cross->n_heads) attention_buffers(a, w, cross, kv_cross(w, i), w->chunk);
}

void keep_source(Workspace *w) {
    const Tower *text = &w->model->text;
    last_norm(w, w->y, w->x, w->n_rows);
    for (int i = text->first; i < text->first + text->n; i++) {
        const Attention *a = &w->model->layers[i].cross;
        Arena arena = scratch(w);
        AttentionBuffers b = attention_buffers(&arena, w, a, kv_cross(w, i), w->n_rows);
        multiply_each(w, (Product[]){{b.keys, &a->k}, {b.values, &a->v}}, 2, w->y, w->n_rows);
        kv_append(w, a, kv_cross(w, i), (Buffer){0}, b.keys, b.values, w->spans, w->n_spans);
    }
}
