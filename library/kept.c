// The text of an experiment, which the workspace of its threads keeps for the next one: where a
// text goes on, only its new tokens run. With it go the streams that came into all layers.
#include <stdlib.h>
#include <string.h>

#include "library/experiments.h"
#include "library/pooling.h"
#include "math/adapted.h"
#include "sequence/guess.h"

enum { KEPT = 1 << 26, MORE = 2 };  // most bytes between calls; how much longer a text may become

static void kept_free(KeptText *t) {
    if (!t) return;
    heads_sequence_free(t->s);
    workspace_free(t->w);
    free(t->streams);
    free(t->off);
    free(t);
}

void heads_workspace_free(heads_workspace *w) {
    if (w) reader_free(w->reader);
    if (w) kept_free(w->text);
    if (w) guesser_free(w->guesser);
    workspace_free(w);
}

static Workspace *host_of(const Model *m, const WorkspaceOptions *o) {
    return o->threads_of && o->threads_of->model == m ? o->threads_of : NULL;
}

static bool fits(const KeptText *t, const WorkspaceOptions *o) {
    const Workspace *w = t->w;
    const char *why;
    return w->k == kernels_choose(o->isa, &why) && w->kv.context >= o->context &&
           w->kv.k_dtype == o->k_type && w->kv.v_dtype == o->v_type &&
           same_adapted(&w->adapted, &o->threads_of->adapted);
}

static size_t n_floats(const Model *m, int context) {
    return (size_t)(m->n_layers + 1) * (size_t)context * (size_t)m->n_embd;
}

KeptText *kept_take(const Model *m, const WorkspaceOptions *options, int n, Error *err) {
    WorkspaceOptions o = *options;
    Workspace *host = host_of(m, &o);
    KeptText *t = host ? host->text : NULL;
    if (host) host->text = NULL;
    o.context = n;
    if (t && fits(t, &o)) return t;
    kept_free(t);
    if (host && host->kv.context > n)
        o.context = host->kv.context / MORE < n ? host->kv.context : MORE * n;
    o.chunk = o.context;
    o.logit_rows = 1;
    o.hidden = m->encoder || !m->output.data;
    t = calloc(1, sizeof *t);
    if (t && (t->streams = malloc(n_floats(m, o.context) * sizeof *t->streams))) {
        if ((t->w = experiment_workspace(m, &o, err))) return t;
    } else {
        fail(err, "no memory for what comes into %d layers of %d tokens", m->n_layers, o.context);
    }
    kept_free(t);
    return NULL;
}

void kept_give(KeptText *t, const WorkspaceOptions *o, bool failed) {
    if (!t) return;
    Workspace *host = host_of(t->w->model, o);
    size_t bytes = t->w->bytes + t->w->kv.bytes +
                   n_floats(t->w->model, t->w->kv.context) * sizeof *t->streams;
    t->mixed = NULL;
    if (host && !failed && bytes <= KEPT) host->text = t;
    else kept_free(t);
}

const float *kept_stream(const KeptText *t, int layer, int pos) {
    size_t row = (size_t)layer * (size_t)t->w->kv.context + (size_t)pos;
    return t->streams + row * (size_t)t->w->model->n_embd;
}

static int keep_rows(void *context, const heads_layer_input *in) {
    const KeptText *t = context;
    for (int i = 0; i < in->n; i++)
        memcpy((float *)(uintptr_t)kept_stream(t, in->layer, t->from + i),
               in->rows + (size_t)i * in->stride, (size_t)in->width * sizeof(float));
    return in->layer;
}

static void show_mixed(void *context, const heads_mixed *in) {
    const KeptText *t = context;
    t->mixed(t->context, in);
}

// Whether the tokens so far have other numbers in a longer text.
static bool depends_on_length(const Model *m) {
    for (int i = 0; i < m->n_rope_sets; i++)
        if (m->rope[i].long_freq) return true;
    return m->encoder;
}

// Sets t->from to how much of ids has run already, with the same changes; the last is to run.
static int begin_text(KeptText *t, const int *ids, int n, const Changes *c, Error *err) {
    const char *off = c->off ? c->off : "";
    bool same = t->off && strcmp(t->off, off) == 0 && !t->steered && !c->n_steers &&
                !depends_on_length(t->w->model);
    t->from = same ? heads_sequence_common(t->s, ids, n - 1) : 0;
    if (same && !heads_sequence_rewind(t->s, t->from, err)) return 0;
    heads_sequence_free(t->s);
    free(t->off);
    t->from = 0;
    t->steered = c->n_steers > 0;
    t->off = malloc(strlen(off) + 1);
    t->s = heads_sequence_new(t->w, false, err);
    if (!t->off) return fail(err, "no memory for a list of heads");
    strcpy(t->off, off);
    return t->s ? change_text(t->s, c, n, err) : -1;
}

const float *kept_run(KeptText *t, const int *ids, int n, const Changes *c, Error *err) {
    if (begin_text(t, ids, n, c, err)) return NULL;
    heads_workspace_probe(t->w, &(heads_probe){
        .context = t, .enter = keep_rows, .mixed = t->mixed ? show_mixed : NULL});
    const float *found = heads_forward(t->s, ids + t->from, n - t->from, 1, err);
    heads_workspace_probe(t->w, NULL);
    const int n_layers = t->w->model->n_layers, n_embd = t->w->model->n_embd;
    if (found)
        memcpy((float *)(uintptr_t)kept_stream(t, n_layers, n - 1),
               row(t->w->x, n - t->from - 1), (size_t)n_embd * sizeof(float));
    return found;
}
