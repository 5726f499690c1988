// --parts: one head computing, for one token (heads_dissect).
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments.h"
#include "print.h"
#include "steer.h"
#include "token_text.h"
#include "verbs.h"

enum { LINES = 20 };  // of the largest weights, for people

static bool take_number(const char **text, int *number) {
    char *end;
    if (**text < '0' || **text > '9') return false;
    long value = strtol(*text, &end, 10);
    *number = value < INT_MAX ? (int)value : INT_MAX;
    *text = end;
    return true;
}

// LAYER.HEAD or LAYER.HEAD:POSITION
static void parse_head(const char *text, heads_dissection *what) {
    const char *at = text;
    bool ok = take_number(&at, &what->layer) && *at++ == '.' && take_number(&at, &what->head);
    if (ok && *at) ok = *at++ == ':' && take_number(&at, &what->position) && !*at;
    if (!ok)
        usage("--parts wants LAYER.HEAD or LAYER.HEAD:POSITION, such as 5.3 or 5.3:7, found \"%s\"",
              text);
}

// ---- JSON ----

static void add_rows(Text *out, const char *name, const float *x, int rows, int columns) {
    int lengths[] = {rows, columns};
    text_format(out, ",\n  \"%s\": ", name);
    if (rows) add_array(out, x, lengths, 2);
    else add_array(out, x, lengths + 1, 1);
}

static void add_scoring(Text *out, const char *name, const heads_scoring *s,
                        const heads_head_parts *p) {
    text_format(out, ",\n \"%s\": {\n  \"sink\": %.9g", name, (double)s->sink);
    add_rows(out, "q", s->q, 0, p->dim);
    add_rows(out, "k", s->k, p->n, p->dim);
    add_rows(out, "products", s->products, 0, p->n);
    add_rows(out, "scores", s->scores, 0, p->n);
    add_rows(out, "weights", s->weights, 0, p->n);
    text_add(out, "}", 1);
}

static void print_parts(const Experiment *e, const heads_dissection *what,
                        const heads_head_parts *p) {
    Text out = {0};
    const char *name = base_name(e->p.path);
    text_format(&out, "{\"model\": ");
    json_quote(&out, name, strlen(name));
    text_format(&out, ",\n \"layer\": %d, \"head\": %d, \"position\": %d, \"first\": %d, "
                "\"kv_layer\": %d, \"kv_head\": %d, \"sharing\": [%d, %d], \"rope\": [%d, %d], "
                "\"scale\": %.9g", what->layer, what->head, what->position, p->first, p->kv_layer,
                p->kv_head, p->sharing, p->sharing + p->n_sharing - 1, p->rope, p->n_rope,
                (double)p->scale);
    add_tokens(&out, &e->p, "tokens", e->ids);
    add_scoring(&out, "turned", &p->turned, p);
    add_scoring(&out, "plain", &p->plain, p);
    add_rows(&out, "v", p->v, p->n, p->v_dim);
    add_rows(&out, "mix", p->mix, 0, p->v_dim);
    add_rows(&out, "mixed", p->mixed, 0, p->v_dim);
    add_rows(&out, "out", p->out, 0, p->n_embd);
    if (p->rank) {
        add_rows(&out, "latents", p->latents, p->n, p->rank);
        add_rows(&out, "q_latent", p->q_latent, 0, p->rank);
        add_rows(&out, "mix_latent", p->mix_latent, 0, p->rank);
    }
    print_json(&out);
}

// ---- for people ----

static double length(const float *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

typedef struct {
    int at;
    float weight;
} Seen;

static int by_weight(const void *a, const void *b) {
    const Seen *x = a, *y = b;
    return x->weight != y->weight ? (x->weight < y->weight ? 1 : -1) : x->at - y->at;
}

static void print_table(const Experiment *e, const heads_dissection *what,
                        const heads_head_parts *p) {
    Text out = {0};
    Seen *seen = allocate((size_t)p->n, sizeof *seen);
    for (int i = 0; i < p->n; i++) seen[i] = (Seen){i, p->turned.weights[i]};
    qsort(seen, (size_t)p->n, sizeof *seen, by_weight);
    text_format(&out, "head %d.%d at position %d, ", what->layer, what->head, what->position);
    add_token_text(&out, &e->p, e->ids.data[what->position], false);
    text_format(&out, ": KV head %d of layer %d, which heads %d to %d read\n", p->kv_head,
                p->kv_layer, p->sharing, p->sharing + p->n_sharing - 1);
    text_format(&out, "%-28s %9s %9s %8s %13s\n", "position", "q.k scaled", "score", "weight",
                "without rope");
    for (int i = 0; i < p->n && i < LINES; i++) {
        int t = seen[i].at;
        Text token = {0};
        text_format(&token, "%d ", p->first + t);
        add_token_text(&token, &e->p, e->ids.data[p->first + t], false);
        text_format(&out, "%-28s %9.4f %9.4f %8.4f %13.4f\n", token.data,
                    (double)p->turned.products[t], (double)p->turned.scores[t],
                    (double)p->turned.weights[t], (double)p->plain.weights[t]);
        free(token.data);
    }
    if (p->turned.sink > 0)
        text_format(&out, "%-28s %28.4f %13.4f\n", "sink", (double)p->turned.sink,
                    (double)p->plain.sink);
    text_format(&out, "lengths: q %.4f, mix %.4f, what it adds to the stream %.4f\n",
                length(p->turned.q, p->dim), length(p->mix, p->v_dim), length(p->out, p->n_embd));
    write_out(out.data, out.size);
    free(out.data);
    free(seen);
}

int parts(const Options *o) {
    heads_error err;
    Experiment e = {0};
    Steers steers = {0};
    open_experiment(&e, o, "--parts");
    if (o->steer && read_steers(&steers, e.p.model, o->steer, &err)) die("%s", err.text);
    heads_dissection what = {.ids = e.ids.data, .n = (int)e.ids.n, .off = o->off,
                             .position = (int)e.ids.n - 1, .steers = steers.data,
                             .n_steers = steers.n};
    parse_head(o->parts, &what);
    heads_workspace_options options = reading_options(&e.p);
    heads_head_parts *p = heads_dissect(e.p.model, &options, &what, &err);
    if (!p) die("%s", err.text);
    if (o->json) print_parts(&e, &what, p);
    else print_table(&e, &what, p);
    heads_free(p);
    heads_free(steers.data);
    close_experiment(&e);
    return 0;
}
