// The transformer, top to bottom. A pass takes rows (w->tokens, of one or many sequences) through
// all layers. Rows are independent of each other, except in the mixers, where a row depends on the
// rest of its sequence. Shapes: x, y and out are [n_rows][n_embd].
#include "layers/layer_probe.h"
#include "layers/topologies.h"

// x += mix(norm(x)), then x += feed_forward(norm(x)), if the layer has both
static void sequential_branches(Workspace *w, const Layer *l, int i) {
    if (l->mixer != MIXER_NONE) {
        run_mixer(w, l, i, branch_input(w, &l->attn_norm));
        add_branch(w, l, &l->attn_post_norm);
    }
    run_more_mixers(w, l, i);
    if (has_ffn(l)) {
        feed_forward(w, l, branch_input(w, &l->ffn_norm));
        add_branch(w, l, &l->ffn_post_norm);
    }
}

static void layer(Workspace *w, int i) {
    const Layer *l = &w->model->layers[i];
    if (l->topology == SEQUENTIAL) sequential_branches(w, l, i);
    else other_branches(w, l, i);
    if (w->model->layer_embed.width) add_layer_embedding(w, l, i);
    if (l->out_scale) scale_rows(w, w->x, *l->out_scale, w->model->n_embd, w->n_rows);
}

void forward_pass(Workspace *w, int logit_row) {
    const Tower *s = w->tower;
    embed(w);
    for (int i = s->first; (i = enter_layer(w, i)) < s->first + s->n; i++) {
        layer(w, i);
        leave_layer(w, i, logit_row);
    }
    if (s == &w->model->text) compute_logits(w, logit_row);
    else keep_source(w);
}
