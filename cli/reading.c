#include "reading.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"
#include "prompt.h"

// ---- texts ----

static void find_lines(Reading *r, const Options *o) {
    bool is_file = o->prompt_file, from_stdin = !is_file && strcmp(o->prompt, "-") == 0;
    if (is_file) r->given = read_file(o->prompt_file);
    else if (from_stdin) r->given = read_stream(stdin, "stdin");
    else text_add(&r->given, o->prompt, strlen(o->prompt));
    if (is_file || from_stdin) {
        r->lines = split_lines(r->given, &r->n_lines);
        return;
    }
    r->n_lines = 1;
    r->lines = allocate(1, sizeof *r->lines);
    r->lines[0] = r->given;
}

static void add_ids(Reading *r, heads_text text) {
    r->texts[r->n++] = text;
    if (text.n == 0)
        die("text %d is empty, and this model's tokenizer puts no token around a text", r->n);
    check_ids(&r->p, (Ids){(int *)text.ids, text.n});
    r->n_tokens += text.n;
    if (text.n > r->longest) r->longest = text.n;
}

void add_text(Reading *r, Text text) {
    Ids ids = encode(&r->p, text, true);
    int most = r->p.shape.most_read, context = r->p.o->workspace.context;
    if (context && context < most) most = context;
    r->n_cut += ids.n > most;
    ids.n = tokenizer_cut(r->p.tokenizer, ids.data, ids.n, most);
    add_ids(r, (heads_text){.ids = ids.data, .n = (int)ids.n});
}

// Whether a pair that has n ids, the most, had more. Special tokens stand around an empty one too.
static bool is_cut(const Reading *r, Text first, Text then, long n) {
    const Text none = {.data = ""};
    long whole = 0;
    for (int i = 0; i < 2; i++) {
        Ids ids = encode(&r->p, i ? then : first, false);
        whole += ids.n;
        free(ids.data);
    }
    int *ids, second;
    long special = heads_pair_ids(r->p.model, r->p.tokenizer, none.data, 0, none.data, 0, &ids,
                                  &second, NULL);
    heads_free(ids);
    return special + whole > n;
}

void add_pair(Reading *r, Text first, Text second) {
    heads_error err;
    heads_text text = {0};
    int *ids;
    long n = heads_pair_ids(r->p.model, r->p.tokenizer, first.data, first.size, second.data,
                            second.size, &ids, &text.second, &err);
    if (n < 0) die("%s: %s", r->p.path, err.text);
    text.ids = ids;
    text.n = (int)n;
    r->n_cut += n == r->p.shape.most_read && is_cut(r, first, second, n);
    add_ids(r, text);
}

// ---- opening and closing ----

void open_reading(Reading *r, const Options *o) {
    *r = (Reading){.n = 0};
    find_lines(r, o);
    open_program(&r->p, o, o->models[0], WITH_TOKENIZER);
    if (!r->p.tokenizer) usage("%s has no tokenizer, so it cannot read texts", r->p.path);
    if (r->n_lines >= INT32_MAX) die("%ld texts are too many", r->n_lines);
    r->texts = allocate((size_t)r->n_lines + 1, sizeof *r->texts);
    if (o->prompt_file || strcmp(o->prompt, "-") == 0) warn_if_not_utf8(r->given);
}

void report_reading(const Reading *r, double start, const char *what, const char *more) {
    fprintf(stderr, "%s texts of %s tokens, %.0f tok/s%s%s", commas((size_t)r->n),
            commas((size_t)r->n_tokens), rate((double)r->n_tokens, seconds() - start), what, more);
    if (r->n_cut) fprintf(stderr, "; %d cut at %d tokens", r->n_cut, r->longest);
    fprintf(stderr, "\n");
}

typedef struct {
    double number;
    long line;
} Ranked;

static int by_number(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->number != y->number) return (x->number < y->number) - (x->number > y->number);
    return (x->line > y->line) - (x->line < y->line);
}

void print_ranked(const Reading *r, const double *numbers) {
    Ranked *ranked = allocate((size_t)r->n_lines, sizeof *ranked);
    for (long i = 0; i < r->n_lines; i++) ranked[i] = (Ranked){numbers[i], i};
    qsort(ranked, (size_t)r->n_lines, sizeof *ranked, by_number);
    for (long i = 0; i < r->n_lines; i++) {
        const Text *line = &r->lines[ranked[i].line];
        printf("%.4f\t%.*s\n", ranked[i].number, (int)line->size, line->data);
    }
    free(ranked);
}

void close_reading(Reading *r) {
    for (int i = 0; i < r->n; i++) free((int *)r->texts[i].ids);
    free(r->texts);
    free(r->lines);
    free(r->given.data);
    close_program(&r->p);
}
