#include "layers/layer_probe.h"
#include "sequence/guesser.h"

#include "sequence/steering.h"

static void show_logits(const Workspace *w, int i, int logit_row) {
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++)
        for (int r = s->n - s->n_logits; r < s->n; r++)
            w->probe.lens(w->probe.context, &(heads_lens_row){s->sequence, i, s->pos + r,
                                                              row(w->logits, logit_row++)});
}

static void show_lens(Workspace *w, int i, int logit_row) {
    copy_rows(w->out, w->x, w->model->n_embd, w->n_rows);
    compute_logits(w, logit_row);
    show_logits(w, i, logit_row);
    copy_rows(w->x, w->out, w->model->n_embd, w->n_rows);
}

void leave_layer(Workspace *w, int i, int logit_row) {
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++) {
        const float *vector = steering_after(s->sequence->steering, i);
        for (int t = s->first; vector && t < s->first + s->n; t++)
            w->k->add(row(w->x, t), vector, w->model->n_embd);
    }
    if (w->guesser && i == w->tower->first + w->tower->n - 1) w->guesser->keep_hidden(w);
    if (w->probe.lens && w->tower == &w->model->text) show_lens(w, i, logit_row);
}

int enter_layer(const Workspace *w, int i) {
    if (!w->probe.enter || i == w->tower->first + w->tower->n) return i;
    int next = w->probe.enter(w->probe.context, &(heads_layer_input){
        i, w->x.data, w->x.stride, w->n_rows, w->model->n_embd});
    return next > i ? next : i;
}

void show_mixed(const Workspace *w, const Layer *l, int first, Buffer heads, int n_heads,
                int width) {
    if (!w->probe.mixed) return;
    w->probe.mixed(w->probe.context, &(heads_mixed){
        (int)(l - w->model->layers), first, heads.data, heads.stride, w->n_rows, n_heads, width});
}
