// From the last layer's rows to logits.
#include "engine.h"

void last_norm(Workspace *w, Buffer y, Buffer x, int n) {
    const Norm *norm = &w->tower->norm;
    if (norm->w) norm_rows(w, y, norm, x, w->model->n_embd, n);
    else copy_rows(y, x, w->model->n_embd, n);
}

// The input of the output matrix for n rows of w->y: these rows, or in masked language models
// norm(act(dense(y))), in w->x.
static Buffer prediction_head(Workspace *w, int n) {
    const Model *m = w->model;
    if (!m->head.dense.data) return w->y;
    multiply(w, w->x, &m->head.dense, w->y, n);
    activate_rows(w, &m->head.act, w->x, w->x, m->d_embed, n);
    norm_rows(w, w->x, &m->head.norm, w->x, m->d_embed, n);
    return w->x;
}

enum { CAP_COLUMNS = 8192 };  // of an item: some columns of a row of logits

typedef struct {
    const Workspace *w;
    Buffer logits;
    int slices;
} Cap;

static void cap_slice(const void *arg, int item, int thread) {
    const Cap *c = arg;
    const Model *m = c->w->model;
    int from = item % c->slices * CAP_COLUMNS, n = m->vocab_size - from;
    float *logits = row(c->logits, item / c->slices) + from;
    c->w->k->softcap(logits, m->final_softcap, n < CAP_COLUMNS ? n : CAP_COLUMNS);
}

// logits = softcap(logits), n rows
static void cap_logits(Workspace *w, Buffer logits, int n) {
    Cap cap = {w, logits, (w->model->vocab_size + CAP_COLUMNS - 1) / CAP_COLUMNS};
    parallel_for(w->pool, n * cap.slices, cap_slice, &cap);
}

void compute_logits(Workspace *w, int logit_row) {
    const Model *m = w->model;
    int n = 0;
    for (const Span *s = w->spans; s < w->spans + w->n_spans; n += s++->n_logits)
        if (s->n_logits) {
            int first = s->first + s->n - s->n_logits;
            last_norm(w, rows_after(w->y, n), rows_after(w->x, first), s->n_logits);
            for (int i = 0; i < s->n_logits; i++) w->wanted[n + i] = first + i;
        }
    if (!n) return;
    Buffer logits = rows_after(w->logits, logit_row);
    if (w->hidden) {
        copy_rows(logits, w->y, m->n_embd, n);
        return;
    }
    w->row_of = w->wanted;
    multiply(w, logits, &m->output, prediction_head(w, n), n);
    w->row_of = NULL;
    if (m->final_softcap > 0.0f) cap_logits(w, logits, n);
}
