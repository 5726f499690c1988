// Texts, run side by side, and how the hidden states of each become one vector.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "workspace.h"

enum { MAX_TEXTS = 128 };  // that share a pass

// ---- one vector ----

// How many hidden states of a text of n tokens are pooled: these are its last.
static int pooled_rows(const Model *m, int n) {
    return m->pooling.pooling == POOL_LAST ? 1 : n;
}

// out [n_embd] of n rows, logit_stride(w) apart.
static void pool_rows(const Workspace *w, float *out, const float *rows, int n) {
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

// ---- those of many texts ----

typedef struct {
    int text, n;
} Length;

typedef struct {
    Workspace *w;
    const TextIds *texts;
    float *vectors;                 // [n_texts][n_embd]
    Length *order;                  // the shortest first: texts of a pass are of a length
    int n_texts;
    Sequence *sequences[MAX_TEXTS];
    const Length *pass;             // the texts of this pass
    const float *rows[MAX_TEXTS];   // their hidden states
} Vectors;

static int by_length(const void *a, const void *b) {
    const Length *x = a, *y = b;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->text > y->text) - (x->text < y->text);
}

static void pool_text(const void *arg, int i, int thread) {
    const Vectors *v = arg;
    const Model *m = v->w->model;
    float *out = v->vectors + (size_t)v->pass[i].text * (size_t)m->n_embd;
    pool_rows(v->w, out, v->rows[i], pooled_rows(m, v->pass[i].n));
}

static int empty_sequence(Vectors *v, int i, Error *err) {
    if (!v->sequences[i]) v->sequences[i] = sequence_new(v->w, false, err);
    return v->sequences[i] ? sequence_rewind(v->sequences[i], 0, err) : -1;
}

// Runs texts from `from` on, as many as fill a pass; returns how many, or -1.
static int run_some(Vectors *v, int from, Error *err) {
    Run runs[MAX_TEXTS];
    int n = 0, n_rows = 0;
    v->pass = v->order + from;
    for (; n < MAX_TEXTS && from + n < v->n_texts; n++) {
        const Length *next = &v->pass[n];
        if (n && next->n > v->w->chunk - n_rows) break;
        if (empty_sequence(v, n, err)) return -1;
        runs[n] = (Run){v->sequences[n], v->texts[next->text].ids, next->n,
                        pooled_rows(v->w->model, next->n)};
        n_rows += next->n;
    }
    const float *rows = forward_runs(v->w, runs, n, err);
    if (!rows) return -1;
    for (int i = 0; i < n; rows += (size_t)runs[i++].n_logits * logit_stride(v->w))
        v->rows[i] = rows;
    parallel_for(v->w->pool, n, pool_text, v);
    return n;
}

int text_vectors(Workspace *w, const TextIds *texts, int n, float *vectors, Error *err) {
    Vectors v = {.w = w, .texts = texts, .vectors = vectors, .n_texts = n};
    v.order = malloc((size_t)n * sizeof *v.order + 1);
    if (!v.order) return fail(err, "no memory for %d texts", n);
    for (int i = 0; i < n; i++) v.order[i] = (Length){i, texts[i].n};
    qsort(v.order, (size_t)n, sizeof *v.order, by_length);
    int done = 0, more = 0;
    for (; done < n && more >= 0; done += more) more = run_some(&v, done, err);
    for (int i = 0; i < MAX_TEXTS; i++) sequence_free(v.sequences[i]);
    free(v.order);
    return more < 0 ? -1 : 0;
}
