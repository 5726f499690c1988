// vectors.c: --embed prints vectors of texts, --similar ranks a file's lines by likeness to a text.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"
#include "reading.h"
#include "verbs.h"

static void open_vectors(Reading *r, const Options *o) {
    open_reading(r, o);
    if (!r->p.facts.pooling)
        usage("%s does not say how its hidden states become a text's vector: its checkpoint is no "
              "encoder and came without modules.json", r->p.path);
}

// The vectors of all texts, [n][shape.vector], which the caller frees.
static float *run_all(const Reading *r) {
    heads_error err;
    const char *why;
    char what[80];
    double start = seconds();
    choose_kernels(r->p.o, &why);
    float *vectors = allocate((size_t)r->n * (size_t)r->p.shape.vector, sizeof *vectors);
    if (heads_embed(r->p.model, &r->p.o->workspace, r->texts, r->n, vectors, &err))
        die("%s%s", err.text, memory_hint(&err));
    snprintf(what, sizeof what, "; %s of the hidden states", r->p.facts.pooling);
    report_reading(r, start, what, r->p.facts.unit ? ", of length 1" : "");
    return vectors;
}

// ---- the verbs ----

static void print_vector(const float *x, int n) {
    for (int i = 0; i < n; i++) printf("%s%.9g", i ? ", " : "[", (double)x[i]);
    printf("]\n");
}

int embed_texts(const Options *o) {
    Reading r;
    open_vectors(&r, o);
    int width = r.p.shape.vector;
    for (long i = 0; i < r.n_lines; i++) add_text(&r, r.lines[i]);
    float *vectors = r.n ? run_all(&r) : NULL;
    for (int i = 0; i < r.n; i++) print_vector(vectors + (size_t)i * (size_t)width, width);
    free(vectors);
    close_reading(&r);
    return 0;
}

// The cosine of the angle between two vectors.
static double likeness(const float *x, const float *y, int n) {
    double xy = 0, xx = 1e-24, yy = 1e-24;
    for (int i = 0; i < n; i++) {
        xy += (double)x[i] * (double)y[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xy / sqrt(xx * yy);
}

int similar(const Options *o) {
    Reading r;
    open_vectors(&r, o);
    add_text(&r, (Text){.data = (char *)o->similar, .size = strlen(o->similar)});
    for (long i = 0; i < r.n_lines; i++) add_text(&r, r.lines[i]);
    float *vectors = run_all(&r);
    int width = r.p.shape.vector;
    double *cosines = allocate((size_t)r.n_lines, sizeof *cosines);
    for (long i = 0; i < r.n_lines; i++)
        cosines[i] = likeness(vectors + (size_t)(i + 1) * (size_t)width, vectors, width);
    print_ranked(&r, cosines);
    free(cosines);
    free(vectors);
    close_reading(&r);
    return 0;
}
