// classes.c: --classify prints the classes of texts or of their tokens, --rank sorts a file's lines
// by a cross-encoder's scores beside a query.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"
#include "reading.h"
#include "verbs.h"

enum { SHOWN = 5 };  // classes of a line, of a text that has more

// Scores of all texts, row after row, which the caller frees.
static float *run_all(Reading *r) {
    heads_error err;
    const char *why;
    double start = seconds();
    size_t rows = (size_t)(r->p.shape.token_classes ? r->n_tokens : r->n);
    choose_kernels(r->p.o, &why);
    float *scores = allocate(rows * (size_t)r->p.shape.n_labels, sizeof *scores);
    heads_workspace_options options = reading_options(&r->p);
    if (heads_classify(r->p.model, &options, r->texts, r->n, scores, &err))
        die("%s%s", err.text, memory_hint(&err));
    report_reading(r, start, "", "");
    return scores;
}

// ---- classes ----

typedef struct {
    float score;
    int label;
} Class;

static int by_score(const void *a, const void *b) {
    const Class *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return (x->label > y->label) - (x->label < y->label);
}

static void add_class(const Reading *r, Text *out, Class c, const char *token, size_t token_len) {
    size_t len;
    const char *label = heads_label(r->p.model, c.label, &len);
    text_format(out, "{");
    if (token) {
        text_format(out, "\"token\": ");
        json_quote(out, token, token_len);
        text_format(out, ", ");
    }
    text_format(out, "\"label\": ");
    json_quote(out, label, len);
    text_format(out, ", \"score\": %.9g}", (double)c.score);
}

static void print_class(const Reading *r, Class c, const char *between) {
    size_t len;
    const char *label = heads_label(r->p.model, c.label, &len);
    print_escaped(label, len);
    printf("%s%.4f", between, (double)c.score);
}

// A text's classes, on a line.
static void print_text(const Reading *r, const float *scores, Class *order) {
    int n = r->p.shape.n_labels;
    Text out = {0};
    for (int i = 0; i < n; i++) order[i] = (Class){scores[i], i};
    qsort(order, (size_t)n, sizeof *order, by_score);
    for (int i = 0; r->p.o->json && i < n; i++) {
        text_format(&out, i ? ", " : "[");
        add_class(r, &out, order[i], NULL, 0);
    }
    for (int i = 0; !r->p.o->json && i < n && i < SHOWN; i++) {
        if (i) printf(", ");
        print_class(r, order[i], " ");
    }
    if (r->p.o->json) printf("%s]", out.data);
    printf("\n");
    free(out.data);
}

// The likeliest class of each token of a text: a line each, or one of JSON.
static void print_tokens(const Reading *r, const heads_text *text, const float *scores) {
    int n = r->p.shape.n_labels;
    Text out = {0};
    for (int t = 0; t < text->n; t++, scores += n) {
        Class best = {scores[0], 0};
        for (int i = 1; i < n; i++)
            if (scores[i] > best.score) best = (Class){scores[i], i};
        size_t len;
        const char *token = tokenizer_text(r->p.tokenizer, text->ids[t], &len);
        if (r->p.o->json) {
            text_format(&out, t ? ", " : "[");
            add_class(r, &out, best, token, len);
            continue;
        }
        print_escaped(token, len);
        printf("\t");
        print_class(r, best, "\t");
        printf("\n");
    }
    if (r->p.o->json) printf("%s]", out.data);
    printf("\n");
    free(out.data);
}

int classify_texts(const Options *o) {
    Reading r;
    open_reading(&r, o);
    if (!r.p.shape.n_labels)
        usage("%s has no head that classifies: it was no model for sequence or token "
              "classification", r.p.path);
    for (long i = 0; i < r.n_lines; i++) add_text(&r, r.lines[i]);
    float *scores = r.n ? run_all(&r) : NULL, *at = scores;
    Class *order = allocate((size_t)r.p.shape.n_labels, sizeof *order);
    for (int i = 0; i < r.n; i++) {
        if (r.p.shape.token_classes) print_tokens(&r, &r.texts[i], at);
        else print_text(&r, at, order);
        at += r.p.shape.n_labels * (r.p.shape.token_classes ? r.texts[i].n : 1);
    }
    free(order);
    free(scores);
    close_reading(&r);
    return 0;
}

// ---- documents ----

int rank_lines(const Options *o) {
    Reading r;
    open_reading(&r, o);
    if (r.p.shape.n_labels != 1 || r.p.shape.token_classes)
        usage("%s cannot rank: that needs the head of a cross-encoder, which gives a pair of texts "
              "a single score, and it has %d classes%s", r.p.path, r.p.shape.n_labels,
              r.p.shape.token_classes ? " of each token" : "");
    Text query = {.data = (char *)o->rank, .size = strlen(o->rank)};
    for (long i = 0; i < r.n_lines; i++) add_pair(&r, query, r.lines[i]);
    float *scores = r.n ? run_all(&r) : NULL;
    double *numbers = allocate((size_t)r.n, sizeof *numbers);
    for (int i = 0; i < r.n; i++) numbers[i] = (double)scores[i];
    print_ranked(&r, numbers);
    free(numbers);
    free(scores);
    close_reading(&r);
    return 0;
}
