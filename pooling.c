// How the hidden states of a text become one vector.
#include <math.h>
#include <string.h>

#include "workspace.h"

int pooled_rows(const Workspace *w, int n) {
    return w->model->pooling.pooling == POOL_LAST ? 1 : n;
}

void pool_rows(const Workspace *w, float *out, const float *rows, int n) {
    const Model *m = w->model;
    size_t stride = w->logits.stride, bytes = sizeof *out * (size_t)m->n_embd;
    memcpy(out, rows, bytes);
    for (int t = 1; t < n; t++) {
        const float *next = rows + (size_t)t * stride;
        if (m->pooling.pooling == POOL_MEAN) w->k->add(out, next, m->n_embd);
        for (int i = 0; m->pooling.pooling == POOL_MAX && i < m->n_embd; i++)
            out[i] = fmaxf(out[i], next[i]);
    }
    if (m->pooling.pooling == POOL_MEAN) w->k->scale(out, 1.0f / (float)n, m->n_embd);
    if (m->pooling.unit) unit_vector(w, out);
}

void unit_vector(const Workspace *w, float *x) { w->k->unit(x, 1.0f, 1e-24f, w->model->n_embd); }
