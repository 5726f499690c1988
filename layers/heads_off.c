// Heads that a sequence has switched off: zero ablation (Michel, Levy and Neubig 2019, arXiv
// 1905.10650). Their part of the mix is zero before the layer's norm of it and its output matrix.
#include "layers/heads_off.h"

#include <stdlib.h>
#include <string.h>

#include "layers/attention_tiles.h"
#include "layers/layer_probe.h"

size_t most_heads(const Model *m) {
    int most = 1;
    for (const Layer *l = m->layers; l < m->layers + m->n_layers; l++) {
        most = l->attention.n_heads > most ? l->attention.n_heads : most;
        most = l->cross.n_heads > most ? l->cross.n_heads : most;
    }
    return (size_t)most;
}

// Zeroes the parts of a span's rows.
static void switch_off(const AttentionPass *p, const Span *s, size_t head_width) {
    size_t layer = (size_t)(p->kv - p->w->kv.layers), n_heads = (size_t)p->a->n_heads;
    const bool *off = s->sequence->off + layer * most_heads(p->w->model);
    for (size_t h = 0; h < n_heads; h++)
        for (int i = 0; off[h] && i < s->n; i++)
            memset(row(p->b.mixed, s->first + i) + h * head_width, 0, head_width * sizeof(float));
}

void change_mixed(const AttentionPass *p, int width) {
    const Workspace *w = p->w;
    const Layer *l = &w->model->layers[p->layer];
    int head_width = width / p->a->n_heads;
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++)
        if (s->sequence->off) switch_off(p, s, (size_t)head_width);
    show_mixed(w, l, p->a == &l->cross ? l->attention.n_heads : 0, p->b.mixed, p->a->n_heads,
               head_width);
}

int copy_heads_off(Sequence *to, const Sequence *from, Error *err) {
    if (!from->off) return 0;
    size_t bytes = (size_t)from->workspace->kv.n_layers * most_heads(from->workspace->model);
    to->off = malloc(bytes);
    if (!to->off) return fail(err, "no memory for a list of heads");
    memcpy(to->off, from->off, bytes);
    return 0;
}
