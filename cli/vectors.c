// vectors.c: --embed, the vectors of texts, and --similar, lines by the likeness of theirs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"
#include "verbs.h"

enum { MAX_TEXTS = 128 };  // that share a pass

typedef struct {
    const char *begin;
    size_t size;
    Ids ids;
} Line;

typedef struct {
    const Options *o;
    Model model;
    Tokenizer *tokenizer;
    Workspace *w;
    Line *lines;
    int *order;        // the lines, the shortest first: those of a pass are of a length
    float *vectors;    // [n][n_embd]
    int n, longest, n_cut;
    long n_tokens;
    Sequence *sequences[MAX_TEXTS];
} Vectors;

// ---- texts ----

static void *need(void *memory) {
    if (!memory) die("no memory for the texts");
    return memory;
}

static void add_line(Vectors *v, const char *begin, size_t size) {
    Line *line = &v->lines[v->n++];
    *line = (Line){begin, size, encode(v->tokenizer, (Text){(char *)begin, size}, true)};
    int most = v->model.pooling.most_tokens, context = v->o->workspace.context;
    if (context && context < most) most = context;
    v->n_cut += line->ids.n > most;
    line->ids.n = tokenizer_cut(v->tokenizer, line->ids.data, line->ids.n, most);
    if (line->ids.n == 0) {
        die("text %d is empty, and this model's tokenizer puts no token around a text", v->n);
    }
    check_ids(line->ids, &v->model);
    v->n_tokens += line->ids.n;
    if (line->ids.n > v->longest) v->longest = (int)line->ids.n;
}

// A text a line; the last line need not end.
static void add_lines(Vectors *v, Text text) {
    const char *p = text.data, *end = p + text.size;
    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        add_line(v, p, (size_t)(stop - p));
        p = stop + 1;
    }
}

static size_t count_lines(Text text) {
    size_t n = 1;
    for (size_t i = 0; i < text.size; i++) n += text.data[i] == '\n';
    return n;
}

// ---- passes ----

static const Vectors *sorted;  // for qsort

static int by_length(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    long m = sorted->lines[x].ids.n, n = sorted->lines[y].ids.n;
    return m != n ? (m > n) - (m < n) : (x > y) - (x < y);
}

typedef struct {
    const Vectors *v;
    const float *rows;
    const int *which;
    size_t begin[MAX_TEXTS];  // in rows
    int n[MAX_TEXTS];
} PoolTexts;

static void pool_one(const void *arg, int i, int thread) {
    const PoolTexts *p = arg;
    float *out = p->v->vectors + (size_t)p->which[i] * (size_t)p->v->model.n_embd;
    pool_rows(p->v->w, out, p->rows + p->begin[i] * logit_stride(p->v->w), p->n[i]);
}

// As many of the texts from `from` on as fill a pass; returns how many.
static int run_some(Vectors *v, int from) {
    Error err;
    Run runs[MAX_TEXTS];
    PoolTexts p = {.v = v, .which = v->order + from};
    int n = 0, n_rows = 0, n_wanted = 0;
    for (; n < MAX_TEXTS && from + n < v->n; n++) {
        const Ids *ids = &v->lines[v->order[from + n]].ids;
        if (n && n_rows + ids->n > workspace_chunk(v->w)) break;
        if (!v->sequences[n]) v->sequences[n] = open_sequence(v->w, false);
        if (sequence_rewind(v->sequences[n], 0, &err)) die("%s", err.text);
        p.begin[n] = (size_t)n_wanted;
        p.n[n] = pooled_rows(v->w, (int)ids->n);
        runs[n] = (Run){v->sequences[n], ids->data, (int)ids->n, p.n[n]};
        n_rows += (int)ids->n;
        n_wanted += p.n[n];
    }
    p.rows = forward_runs(v->w, runs, n, &err);
    if (!p.rows) die("%s", err.text);
    workspace_each(v->w, n, pool_one, &p);
    return n;
}

static void run_all(Vectors *v) {
    Options o = *v->o;
    size_t n = (size_t)v->n;
    double start = seconds();
    o.workspace.context = v->longest;
    int rows = o.workspace.chunk > v->longest ? o.workspace.chunk : v->longest;
    v->w = open_workspace(&o, &v->model, rows);
    v->order = need(malloc(n * sizeof *v->order));
    v->vectors = need(malloc(n * (size_t)v->model.n_embd * sizeof *v->vectors));
    for (int i = 0; i < v->n; i++) v->order[i] = i;
    sorted = v;
    qsort(v->order, n, sizeof *v->order, by_length);
    for (int i = 0; i < v->n;) i += run_some(v, i);
    static const char *const poolings[] = {"", "mean", "first token", "last token", "maximum"};
    fprintf(stderr, "%s texts of %s tokens, %.0f tok/s; %s of the hidden states%s", commas(n),
            commas((size_t)v->n_tokens), rate((double)v->n_tokens, seconds() - start),
            poolings[v->model.pooling.pooling], v->model.pooling.unit ? ", of length 1" : "");
    if (v->n_cut) fprintf(stderr, "; %d cut at %d tokens", v->n_cut, v->longest);
    fprintf(stderr, "\n");
}

// ---- opening and closing ----

static void open_vectors(Vectors *v, const Options *o, size_t most) {
    *v = (Vectors){.o = o};
    open_model(&v->model, o, o->models[0]);
    if (!v->model.pooling.pooling) {
        usage("%s does not say how its hidden states become a text's vector: its checkpoint is no "
              "encoder and came without modules.json", o->models[0]);
    }
    v->tokenizer = open_tokenizer(&v->model);
    if (!v->tokenizer) usage("%s has no tokenizer, so it cannot read texts", o->models[0]);
    if (most > INT32_MAX) die("%zu texts are too many", most);
    v->lines = need(malloc(most * sizeof *v->lines));
}

static void close_vectors(Vectors *v) {
    for (int i = 0; i < v->n; i++) free(v->lines[i].ids.data);
    for (int i = 0; i < MAX_TEXTS; i++) sequence_free(v->sequences[i]);
    free(v->lines);
    free(v->order);
    free(v->vectors);
    workspace_free(v->w);
    tokenizer_free(v->tokenizer);
    model_close(&v->model);
}

// ---- the verbs ----

static void print_vector(const float *x, int n) {
    for (int i = 0; i < n; i++) printf("%s%.9g", i ? ", " : "[", (double)x[i]);
    printf("]\n");
}

int embed_texts(const Options *o) {
    Vectors v;
    Text text = {NULL, 0};
    if (o->prompt_file) text = read_file(o->prompt_file);
    else if (strcmp(o->prompt, "-") == 0) text = read_stream(stdin, "stdin");
    open_vectors(&v, o, count_lines(text));
    warn_if_not_utf8(text);
    if (text.data) add_lines(&v, text);
    else add_line(&v, o->prompt, strlen(o->prompt));
    if (v.n) run_all(&v);
    for (int i = 0; i < v.n; i++) {
        print_vector(v.vectors + (size_t)i * (size_t)v.model.n_embd, v.model.n_embd);
    }
    close_vectors(&v);
    free(text.data);
    return 0;
}

typedef struct {
    double cosine;
    int line;
} Match;

static int by_likeness(const void *a, const void *b) {
    const Match *x = a, *y = b;
    if (x->cosine != y->cosine) return (x->cosine < y->cosine) - (x->cosine > y->cosine);
    return (x->line > y->line) - (x->line < y->line);
}

int similar(const Options *o) {
    Vectors v;
    Text text = read_file(o->prompt_file);
    open_vectors(&v, o, count_lines(text) + 1);
    warn_if_not_utf8(text);
    add_line(&v, o->similar, strlen(o->similar));
    add_lines(&v, text);
    run_all(&v);
    int n = v.n - 1, width = v.model.n_embd;
    Match *matches = need(malloc((size_t)v.n * sizeof *matches));
    for (int i = 0; i <= n; i++) {
        float *x = v.vectors + (size_t)i * (size_t)width;
        unit_vector(v.w, x);
        matches[i] = (Match){0, i};
        for (int j = 0; j < width; j++) matches[i].cosine += (double)x[j] * (double)v.vectors[j];
    }
    qsort(matches + 1, (size_t)n, sizeof *matches, by_likeness);
    for (int i = 1; i <= n; i++) {
        const Line *line = &v.lines[matches[i].line];
        printf("%.4f\t%.*s\n", matches[i].cosine, (int)line->size, line->begin);
    }
    free(matches);
    close_vectors(&v);
    free(text.data);
    return 0;
}
