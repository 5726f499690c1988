#include "layers/logits.h"

Buffer prediction_head(Workspace *w, int n) {
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

void cap_logits(Workspace *w, Buffer logits, int n) {
    Cap cap = {w, logits, (w->model->vocab_size + CAP_COLUMNS - 1) / CAP_COLUMNS};
    parallel_for(w->pool, n * cap.slices, cap_slice, &cap);
}

static void show_logits(const Workspace *w, int i, int logit_row) {
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++)
        for (int r = s->n - s->n_logits; r < s->n; r++)
            w->probe.lens(w->probe.context, &(heads_lens_row){s->sequence, i, s->pos + r,
                                                              row(w->logits, logit_row++)});
}

void show_lens(Workspace *w, int i, int logit_row) {
    if (w->stack != &w->model->text) return;
    copy_rows(w->out, w->x, w->model->n_embd, w->n_rows);
    compute_logits(w, logit_row);
    show_logits(w, i, logit_row);
    copy_rows(w->x, w->out, w->model->n_embd, w->n_rows);
}

int enter_layer(const Workspace *w, int i) {
    if (!w->probe.enter || i == w->stack->first + w->stack->n) return i;
    int next = w->probe.enter(w->probe.context, &(heads_layer_input){
        i, w->x.data, w->x.stride, w->n_rows, w->model->n_embd});
    return next > i ? next : i;
}
