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

static int vector_width(const Reading *r) {
    return r->p.o->dimensions ? r->p.o->dimensions : r->p.shape.vector;
}

// How many vectors a text has.
static size_t n_vectors(const Reading *r, int i) {
    return r->p.shape.token_vectors ? (size_t)r->texts[i].n : 1;
}

// The vectors of all texts, [vector_width] numbers each, which the caller frees.
static float *run_all(Reading *r) {
    heads_error err;
    const char *why;
    char what[80];
    double start = seconds();
    size_t n = (size_t)(r->p.shape.token_vectors ? r->n_tokens : r->n);
    choose_kernels(r->p.o, &why);
    float *vectors = allocate(n * (size_t)r->p.shape.vector, sizeof *vectors);
    heads_workspace_options options = reading_options(&r->p);
    if (heads_embed(r->p.model, &options, r->texts, r->n, vectors, &err) ||
        (r->p.o->dimensions &&
         heads_shorten(r->p.model, vectors, n, r->p.o->dimensions, &err)))
        die("%s%s", err.text, memory_hint(&err));
    snprintf(what, sizeof what, "; %s of the hidden states", r->p.facts.pooling);
    report_reading(r, start, what, r->p.facts.unit ? ", of length 1" : "");
    return vectors;
}

// ---- the verbs ----

static void print_vector(const float *x, int n) {
    for (int i = 0; i < n; i++) printf("%s%.9g", i ? ", " : "[", (double)x[i]);
    printf("]");
}

int embed_texts(const Options *o) {
    Reading r;
    open_vectors(&r, o);
    int width = vector_width(&r);
    for (long i = 0; i < r.n_lines; i++) add_text(&r, r.lines[i]);
    float *vectors = r.n ? run_all(&r) : NULL, *at = vectors;
    for (int i = 0; i < r.n; i++) {
        for (size_t t = 0; t < n_vectors(&r, i); t++, at += width) {
            if (r.p.shape.token_vectors) printf(t ? ", " : "[");
            print_vector(at, width);
        }
        printf(r.p.shape.token_vectors ? "]\n" : "\n");
    }
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

// Of token vectors, the sum over the query's of the most alike of a line's (MaxSim: Khattab and
// Zaharia 2020, arXiv 2004.12832).
static double max_likeness(const float *query, size_t n_query, const float *x, size_t n,
                           int width) {
    double sum = 0;
    for (size_t i = 0; i < n_query; i++) {
        double most = -INFINITY;
        for (size_t t = 0; t < n; t++)
            most = fmax(most, likeness(query + i * (size_t)width, x + t * (size_t)width, width));
        sum += most;
    }
    return sum;
}

int similar(const Options *o) {
    Reading r;
    open_vectors(&r, o);
    add_text(&r, (Text){.data = (char *)o->similar, .size = strlen(o->similar)});
    for (long i = 0; i < r.n_lines; i++) add_text(&r, r.lines[i]);
    float *vectors = run_all(&r);
    int width = vector_width(&r);
    size_t n_query = n_vectors(&r, 0), at = n_query;
    double *numbers = allocate((size_t)r.n_lines, sizeof *numbers);
    for (int i = 1; i < r.n; i++) {
        numbers[i - 1] = max_likeness(vectors, n_query, vectors + at * (size_t)width,
                                      n_vectors(&r, i), width);
        at += n_vectors(&r, i);
    }
    print_ranked(&r, numbers);
    free(numbers);
    free(vectors);
    close_reading(&r);
    return 0;
}
