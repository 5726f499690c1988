// The knobs and the tensors of readouts: model.pooling and its like, model.class_pooling and its.
#include "load/readout.h"

#include <stdio.h>
#include <stdlib.h>

#include "load/loader.h"

// The steps, an activation each in the metadata `acts` and tensors that `stem` and a number name.
static int get_steps(Loader *x, Readout *out, const char *acts, const char *stem) {
    Ints kinds;
    if (read_ints(&x->r, acts, SIZE_MAX, 0, ACT_NONE, &kinds)) return -1;
    if (kinds.n > MAX_STEPS)
        return fail(x->err, "metadata %s: %zu steps, expected at most %d", acts, kinds.n,
                    MAX_STEPS);
    out->n_steps = (int)kinds.n;
    out->width = x->m->n_embd;
    for (int i = 0; i < out->n_steps; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s.%d", stem, i);
        int act = kinds.v[i];
        if (act >= N_PLAIN_ACTS && act < ACT_SIGMOID)
            return fail(x->err, "metadata %s: %d is no activation of a step", acts, act);
        out->steps[i].act.kind = (Act)act;
        if (load_step(x, &out->steps[i], name, &out->width)) return -1;
        if (out->width > x->m->widest) x->m->widest = out->width;
    }
    return 0;
}

static Readout *new_readout(Loader *x, Readout **at) {
    *at = calloc(1, sizeof **at);
    if (!*at) fail(x->err, "no memory for what follows the hidden states");
    else (*at)->pad = (*at)->eos = -1;
    return *at;
}

static int get_vector_of_text(Loader *x) {
    Reader *r = &x->r;
    int pooling, unit;
    if (read_int(r, "model.pooling", 0, VECTOR_EACH, POOL_NONE, &pooling)) return -1;
    if (pooling == POOL_NONE) return 0;
    Readout *out = new_readout(x, &x->m->vector);
    if (!out || read_int(r, "model.pooling_unit", 0, 1, 0, &unit) ||
        get_steps(x, out, "model.pooling_acts", "pooling") ||
        read_int(r, "model.pooling_dimensions", 1, out->width, out->width, &out->width))
        return -1;
    out->pooling = pooling == VECTOR_EACH ? POOL_NONE : pooling;
    out->unit = unit;
    return 0;
}

static int get_labels(Loader *x, Readout *out) {
    Reader *r = &x->r;
    size_t end, len;
    if (read_lists(r, "model.labels.begin", 1, MAX_LABELS, &out->n_labels, &out->label_begin,
                   &end) ||
        read_text(r, "model.labels", &out->labels, &len))
        return -1;
    if (len != end)
        return fail(x->err, "metadata model.labels: it has %zu bytes, model.labels.begin says %zu",
                    len, end);
    if (out->n_labels != out->width)
        return fail(x->err, "metadata model.labels.begin: %d labels, but tensor classes.%d has %d "
                    "rows", out->n_labels, out->n_steps - 1, out->width);
    return 0;
}

static int get_classes(Loader *x) {
    Reader *r = &x->r;
    if (!read_meta(r, "model.class_acts")) return 0;
    Readout *out = new_readout(x, &x->m->classes);
    if (!out || get_steps(x, out, "model.class_acts", "classes") || get_labels(x, out) ||
        need_int(r, "model.class_pooling", 0, N_POOLINGS - 1, &out->pooling) ||
        need_int(r, "model.class_scores", 0, N_SCORES - 1, &out->scores) ||
        read_int(r, "model.class_after", 0, out->n_steps, 0, &out->after) ||
        read_int(r, "model.class_pad", 0, x->m->vocab_size - 1, -1, &out->pad) ||
        read_int(r, "model.class_eos", 0, x->m->vocab_size - 1, -1, &out->eos))
        return -1;
    if (out->after && (out->pooling == POOL_NONE || !x->m->encoder))
        return fail(x->err, "metadata model.class_after: it needs an encoder, and a "
                    "model.class_pooling that is not 0");
    if (out->pad >= 0 && out->pooling != POOL_LAST)
        return fail(x->err, "metadata model.class_pad: model.class_pooling is %d, expected %d",
                    out->pooling, POOL_LAST);
    if ((out->eos >= 0) != (x->m->source.n > 0) || (out->eos >= 0 && out->pooling != POOL_LAST))
        return fail(x->err, "metadata model.class_eos: models with model.source_layers and "
                    "model.class_pooling %d have it, and no others", POOL_LAST);
    return 0;
}

int load_readouts(Loader *x) {
    Model *m = x->m;
    m->widest = m->n_embd > m->d_embed ? m->n_embd : m->d_embed;
    for (int i = 0; i < m->n_layers; i++)
        if (m->layers[i].topology == NESTED) m->widest = 2 * m->n_embd;
    m->most_read = m->context;
    if (get_vector_of_text(x) || get_classes(x)) return -1;
    if (!m->vector && !m->classes && !m->encoder) return 0;
    return read_int(&x->r, "model.pooling_tokens", 1, m->context, m->context, &m->most_read);
}
