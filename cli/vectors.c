// vectors.c: --embed, the vectors of texts, and --similar, lines by the likeness of theirs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"
#include "verbs.h"

typedef struct {
    const Options *o;
    Model model;
    Tokenizer *tokenizer;
    Workspace *w;
    Ids *ids;          // [n], of each text
    float *vectors;    // [n][n_embd]
    int n, longest, n_cut;
    long n_tokens;
} Vectors;

// ---- texts ----

static void add_text(Vectors *v, Text text) {
    Ids *ids = &v->ids[v->n++];
    *ids = encode(v->tokenizer, text, true);
    int most = v->model.pooling.most_tokens, context = v->o->workspace.context;
    if (context && context < most) most = context;
    v->n_cut += ids->n > most;
    ids->n = tokenizer_cut(v->tokenizer, ids->data, ids->n, most);
    if (ids->n == 0)
        die("text %d is empty, and this model's tokenizer puts no token around a text", v->n);
    check_ids(*ids, &v->model);
    v->n_tokens += ids->n;
    if (ids->n > v->longest) v->longest = (int)ids->n;
}

// ---- their vectors ----

static void run_all(Vectors *v) {
    Error err;
    Options o = *v->o;
    size_t n = (size_t)v->n;
    double start = seconds();
    o.workspace.context = v->longest;
    int rows = o.workspace.chunk > v->longest ? o.workspace.chunk : v->longest;
    v->w = open_workspace(&o, &v->model, rows);
    v->vectors = allocate(n * (size_t)v->model.n_embd, sizeof *v->vectors);
    TextIds *texts = allocate(n, sizeof *texts);
    for (int i = 0; i < v->n; i++) texts[i] = (TextIds){v->ids[i].data, (int)v->ids[i].n};
    if (text_vectors(v->w, texts, v->n, v->vectors, &err)) die("%s", err.text);
    free(texts);
    static const char *const poolings[] = {"", "mean", "first token", "last token", "maximum"};
    fprintf(stderr, "%s texts of %s tokens, %.0f tok/s; %s of the hidden states%s", commas(n),
            commas((size_t)v->n_tokens), rate((double)v->n_tokens, seconds() - start),
            poolings[v->model.pooling.pooling], v->model.pooling.unit ? ", of length 1" : "");
    if (v->n_cut) fprintf(stderr, "; %d cut at %d tokens", v->n_cut, v->longest);
    fprintf(stderr, "\n");
}

// ---- opening and closing ----

static void open_vectors(Vectors *v, const Options *o, long n) {
    *v = (Vectors){.o = o};
    open_model(&v->model, o, o->models[0]);
    if (!v->model.pooling.pooling)
        usage("%s does not say how its hidden states become a text's vector: its checkpoint is no "
              "encoder and came without modules.json", o->models[0]);
    v->tokenizer = open_tokenizer(&v->model);
    if (!v->tokenizer) usage("%s has no tokenizer, so it cannot read texts", o->models[0]);
    if (n > INT32_MAX) die("%ld texts are too many", n);
    v->ids = allocate((size_t)n, sizeof *v->ids);
}

static void close_vectors(Vectors *v) {
    for (int i = 0; i < v->n; i++) free(v->ids[i].data);
    free(v->ids);
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
    bool is_file = o->prompt_file, from_stdin = !is_file && strcmp(o->prompt, "-") == 0;
    Text given = {(char *)o->prompt, is_file ? 0 : strlen(o->prompt)}, *texts = &given;
    long n = 1;
    if (is_file) given = read_file(o->prompt_file);
    else if (from_stdin) given = read_stream(stdin, "stdin");
    if (is_file || from_stdin) texts = split_lines(given, &n);
    open_vectors(&v, o, n);
    if (is_file || from_stdin) warn_if_not_utf8(given);
    for (long i = 0; i < n; i++) add_text(&v, texts[i]);
    if (v.n) run_all(&v);
    for (int i = 0; i < v.n; i++)
        print_vector(v.vectors + (size_t)i * (size_t)v.model.n_embd, v.model.n_embd);
    close_vectors(&v);
    if (texts != &given) {
        free(texts);
        free(given.data);
    }
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
    long n_lines;
    Text text = read_file(o->prompt_file), *lines = split_lines(text, &n_lines);
    open_vectors(&v, o, n_lines + 1);
    warn_if_not_utf8(text);
    add_text(&v, (Text){(char *)o->similar, strlen(o->similar)});
    for (long i = 0; i < n_lines; i++) add_text(&v, lines[i]);
    run_all(&v);
    int n = v.n - 1, width = v.model.n_embd;
    Match *matches = allocate((size_t)v.n, sizeof *matches);
    for (int i = 0; i <= n; i++) {
        float *x = v.vectors + (size_t)i * (size_t)width;
        unit_vector(v.w, x);
        matches[i] = (Match){0, i};
        for (int j = 0; j < width; j++) matches[i].cosine += (double)x[j] * (double)v.vectors[j];
    }
    qsort(matches + 1, (size_t)n, sizeof *matches, by_likeness);
    for (int i = 1; i <= n; i++) {
        const Text *line = &lines[matches[i].line - 1];
        printf("%.4f\t%.*s\n", matches[i].cosine, (int)line->size, line->data);
    }
    free(matches);
    free(lines);
    close_vectors(&v);
    free(text.data);
    return 0;
}
