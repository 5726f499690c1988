// --patch and --attribute: what carries an answer (heads_patch, heads_attribute). --experiment and
// --verify: the same from a file (heads_experiment, heads_verify).
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments.h"
#include "print.h"
#include "prompt.h"
#include "token_text.h"
#include "verbs.h"

enum { LINES = 20 };  // of the strongest, for people

typedef struct {  // a line for people
    int layer, head, position;  // head -1: none
    double value, change;
} Cell;

// ---- tokens ----

// The id that an option's text[0..len) says: a number, or the text of one token.
static int parse_token(const Program *p, const char *option, const char *text, size_t len) {
    Text one = {0};
    text_add(&one, text, len);
    int id = -1;
    if (len && strspn(one.data, "0123456789") == len) {
        Ids ids = parse_ids(option, one.data, p->shape.vocab_size);
        id = ids.data[0];
        free(ids.data);
    } else if (p->tokenizer) {
        Ids ids = encode(p, one, false);
        if (ids.n != 1)
            usage("%s wants a token, found \"%s\", which is %ld; give one, or its id (--tokenize "
                  "tells)", option, one.data, ids.n);
        id = ids.data[0];
        free(ids.data);
    } else {
        usage("%s has no tokenizer; give ids with %s", p->path, option);
    }
    free(one.data);
    return id;
}

// TOKEN or TOKEN,AGAINST
static void parse_answers(Experiment *e, const char *option, const char *text) {
    const char *comma = strchr(text + (*text != 0), ',');
    e->answer = parse_token(&e->p, option, text, comma ? (size_t)(comma - text) : strlen(text));
    e->against = comma ? parse_token(&e->p, option, comma + 1, strlen(comma + 1)) : -1;
}

// The likeliest token after a text.
static int likeliest_after(const Program *p, Ids ids) {
    heads_error err;
    heads_likely best;
    heads_sequence *s = open_text(p, false);
    const float *logits = NULL;
    heads_sequence_expect(s, (int)ids.n);
    for (long done = 0, n; done < ids.n; done += n) {
        n = ids.n - done < p->o->workspace.chunk ? ids.n - done : p->o->workspace.chunk;
        logits = heads_forward(s, ids.data + done, (int)n, done + n == ids.n, &err);
        if (!logits) die("%s", err.text);
    }
    heads_likeliest(p->w, logits, &best, 1);
    heads_sequence_free(s);
    return best.id;
}

// Without --answer: what each text is likeliest to go on with.
static void choose_answers(Experiment *e) {
    if (e->p.o->answer) {
        parse_answers(e, "--answer", e->p.o->answer);
        return;
    }
    open_workspace(&e->p, 1);
    e->answer = likeliest_after(&e->p, e->ids);
    e->against = likeliest_after(&e->p, e->corrupted);
    if (e->answer == e->against && e->p.o->metric == HEADS_DIFFERENCE)
        die("both texts are likeliest to go on with token %d; say what differs, with --answer "
            "TOKEN,AGAINST", e->answer);
}

void open_experiment(Experiment *e, const Options *o, const char *what) {
    open_program(&e->p, o, o->models[0], WITH_TOKENIZER);
    if (!e->p.facts.has_logits)
        usage("%s has no head that gives logits, so %s means nothing for it", e->p.path, what);
    e->ids = prompt_to_run(&e->p, NULL);
    e->n_layers = e->p.shape.n_layers;
    e->n_heads = heads_model_heads(e->p.model);
    e->against = -1;
}

void close_experiment(Experiment *e) {
    free(e->ids.data);
    free(e->corrupted.data);
    close_program(&e->p);
}

// ---- JSON ----

static void add_token(Text *out, const Program *p, int id) {
    text_format(out, "{\"id\": %d, \"text\": ", id);
    add_token_text(out, p, id, false);
    text_add(out, "}", 1);
}

void add_tokens(Text *out, const Program *p, const char *name, Ids ids) {
    text_format(out, ",\n \"%s\": [", name);
    for (long i = 0; i < ids.n; i++) {
        if (i) text_add(out, ", ", 2);
        add_token(out, p, ids.data[i]);
    }
    text_add(out, "]", 1);
}

static void add_number(Text *out, double x) {
    if (isnan(x)) text_format(out, "null");
    else text_format(out, "%.9g", x);
}

const float *add_array(Text *out, const float *x, const int *lengths, int dims) {
    for (int i = 0; i < lengths[0]; i++) {
        text_add(out, i ? ", " : "[", i ? 2 : 1);
        if (dims > 1) x = add_array(out, x, lengths + 1, dims - 1);
        else add_number(out, *x++);
    }
    text_add(out, "]", 1);
    return x;
}

static void begin_json(Text *out, const Experiment *e) {
    const char *name = base_name(e->p.path);
    text_format(out, "{\"model\": ");
    json_quote(out, name, strlen(name));
    text_format(out, ",\n \"answer\": ");
    add_token(out, &e->p, e->answer);
    if (e->against < 0) return;
    text_format(out, ",\n \"against\": ");
    add_token(out, &e->p, e->against);
}

void print_json(Text *out) {
    text_add(out, "}\n", 2);
    write_out(out->data, out->size);
    free(out->data);
}

// ---- for people ----

static int by_change(const void *a, const void *b) {
    const Cell *x = a, *y = b;
    double more = fabs(y->change) - fabs(x->change);
    if (more != 0) return more > 0 ? 1 : -1;
    return x->layer != y->layer ? x->layer - y->layer
         : x->head != y->head ? x->head - y->head : x->position - y->position;
}

static void add_shown(Text *out, const Program *p, int id) { add_token_text(out, p, id, false); }

// ---- patching ----

static const char *const metric_names[] = {"difference", "log_probability", "kl"};

static void print_map(const Experiment *e, const float *results, const double *metrics) {
    bool layers = e->p.o->of_layers;
    int heads[] = {e->n_layers, e->n_heads, (int)e->ids.n}, rows[] = {e->n_layers, (int)e->ids.n};
    Text out = {0};
    begin_json(&out, e);
    text_format(&out, ",\n \"of\": \"%s\", \"metric\": \"%s\", \"clean_metric\": %.9g, "
                "\"corrupted_metric\": %.9g", layers ? "layers" : "heads",
                metric_names[e->p.o->metric], metrics[0], metrics[1]);
    add_tokens(&out, &e->p, "clean", e->ids);
    add_tokens(&out, &e->p, "corrupted", e->corrupted);
    text_format(&out, ",\n \"results\": ");
    if (layers) add_array(&out, results, rows, 2);
    else add_array(&out, results, heads, 3);
    print_json(&out);
}

// The runs that move the metric most, and how far they take it to the clean text's.
static void print_strongest(const Experiment *e, const float *results, const double *metrics) {
    int n_heads = e->p.o->of_layers ? 1 : e->n_heads, n = (int)e->ids.n, n_cells = 0;
    size_t room = (size_t)e->n_layers * (size_t)n_heads * (size_t)n;
    Cell *cells = allocate(room, sizeof *cells);
    for (size_t i = 0; i < room; i++) {
        int head = (int)(i / (size_t)n) % n_heads, layer = (int)(i / (size_t)n) / n_heads;
        if (isnan(results[i])) continue;
        cells[n_cells++] = (Cell){layer, e->p.o->of_layers ? -1 : head, (int)(i % (size_t)n),
                                  results[i], results[i] - metrics[1]};
    }
    qsort(cells, (size_t)n_cells, sizeof *cells, by_change);
    Text out = {0};
    text_format(&out, "%s", metric_names[e->p.o->metric]);
    if (e->p.o->metric != HEADS_KL) text_format(&out, " of "), add_shown(&out, &e->p, e->answer);
    if (e->p.o->metric == HEADS_DIFFERENCE)
        text_format(&out, " against "), add_shown(&out, &e->p, e->against);
    text_format(&out, ": clean %.4f, corrupted %.4f\n%8s  %-28s %9s  returns\n", metrics[0],
                metrics[1], e->p.o->of_layers ? "layer" : "head", "position", "metric");
    for (int i = 0; i < n_cells && i < LINES && cells[i].change != 0; i++) {
        const Cell *c = &cells[i];
        char name[32];
        Text token = {0};
        if (c->head < 0) snprintf(name, sizeof name, "%d", c->layer);
        else snprintf(name, sizeof name, "%d.%d", c->layer, c->head);
        text_format(&token, "%d ", c->position);
        add_shown(&token, &e->p, e->ids.data[c->position]);
        if (e->ids.data[c->position] != e->corrupted.data[c->position]) {
            text_format(&token, " for ");
            add_shown(&token, &e->p, e->corrupted.data[c->position]);
        }
        text_format(&out, "%8s  %-28s %9.4f  %5.1f %%\n", name, token.data, c->value,
                    100 * c->change / (metrics[0] - metrics[1]));
        free(token.data);
    }
    write_out(out.data, out.size);
    free(out.data);
    free(cells);
}

static int show_runs(void *context, long done, long total) {
    const double *start = context;
    if (seconds() - *start > 1) progress(done, total, "run %ld of %ld", done, total);
    return 0;
}

int patch(const Options *o) {
    heads_error err;
    Experiment e = {0};
    double metrics[2], start = seconds();
    open_experiment(&e, o, "--patch");
    Text other = {0};
    text_add(&other, o->patch, strlen(o->patch));
    e.corrupted = o->tokens ? parse_ids("--patch", o->patch, e.p.shape.vocab_size)
                            : encode(&e.p, other, true);
    free(other.data);
    check_ids(&e.p, e.corrupted);
    if (e.ids.n != e.corrupted.n)
        usage("the prompt has %ld tokens and the text of --patch %ld; patching needs as many of "
              "both (--tokenize shows them)", e.ids.n, e.corrupted.n);
    choose_answers(&e);
    if (o->metric == HEADS_DIFFERENCE && e.against < 0)
        usage("the difference of two logits wants --answer TOKEN,AGAINST");
    heads_patching what = {
        .clean = e.ids.data, .corrupted = e.corrupted.data, .n = (int)e.ids.n,
        .layers = o->of_layers, .metric = o->metric, .answer = e.answer,
        .against = e.against < 0 ? 0 : e.against, .off = o->off, .progress = show_runs,
        .context = &start};
    size_t n = (size_t)e.n_layers * (size_t)(o->of_layers ? 1 : e.n_heads) * (size_t)e.ids.n;
    float *results = allocate(n, sizeof *results);
    heads_workspace_options options = reading_options(&e.p);
    options.chunk = 0;
    if (heads_patch(e.p.model, &options, &what, results, metrics, &err)) die("%s", err.text);
    progress_end();
    if (o->json) print_map(&e, results, metrics);
    else print_strongest(&e, results, metrics);
    free(results);
    close_experiment(&e);
    return 0;
}

// ---- attribution ----

static void print_parts_json(const Experiment *e, const float *heads, const float *ffn,
                             const heads_parts *parts) {
    int lengths[] = {e->n_layers, e->n_heads};
    Text out = {0};
    begin_json(&out, e);
    text_format(&out, ",\n \"logit\": %.9g, \"total\": %.9g, \"embedding\": %.9g, \"rest\": %.9g",
                parts->logit, parts->total, parts->embedding, parts->rest);
    add_tokens(&out, &e->p, "tokens", e->ids);
    text_format(&out, ",\n \"ffn\": ");
    add_array(&out, ffn, lengths, 1);
    text_format(&out, ",\n \"heads\": ");
    add_array(&out, heads, lengths, 2);
    print_json(&out);
}

static void print_parts(const Experiment *e, const float *heads, const float *ffn,
                        const heads_parts *parts) {
    int n = e->n_layers * e->n_heads;
    Cell *cells = allocate((size_t)(n + e->n_layers), sizeof *cells);
    for (int i = 0; i < n; i++)
        cells[i] = (Cell){i / e->n_heads, i % e->n_heads, 0, heads[i], heads[i]};
    for (int i = 0; i < e->n_layers; i++) cells[n + i] = (Cell){i, -1, 0, ffn[i], ffn[i]};
    qsort(cells, (size_t)(n + e->n_layers), sizeof *cells, by_change);
    Text out = {0};
    text_format(&out, "logit of ");
    add_shown(&out, &e->p, e->answer);
    if (e->against >= 0) text_format(&out, " less that of "), add_shown(&out, &e->p, e->against);
    text_format(&out, ": %.4f", parts->logit);
    if (parts->total != parts->logit)
        text_format(&out, "; before the softcap, which comes after the sum, %.4f", parts->total);
    text_format(&out, "\n  embedding    %+9.4f\n  rest         %+9.4f   (biases)\n",
                parts->embedding, parts->rest);
    for (int i = 0; i < n + e->n_layers && i < LINES && cells[i].value != 0; i++) {
        char name[32];
        if (cells[i].head < 0) snprintf(name, sizeof name, "network %d", cells[i].layer);
        else snprintf(name, sizeof name, "head %d.%d", cells[i].layer, cells[i].head);
        text_format(&out, "  %-12s %+9.4f\n", name, cells[i].value);
    }
    write_out(out.data, out.size);
    free(out.data);
    free(cells);
}

int attribute(const Options *o) {
    heads_error err;
    heads_parts parts;
    Experiment e = {0};
    open_experiment(&e, o, "--attribute");
    parse_answers(&e, "--attribute", o->attribute);
    float *heads = allocate((size_t)e.n_layers * (size_t)e.n_heads, sizeof *heads);
    float *ffn = allocate((size_t)e.n_layers, sizeof *ffn);
    heads_workspace_options options = reading_options(&e.p);
    if (heads_attribute(e.p.model, &options, e.ids.data, (int)e.ids.n, e.answer, e.against,
                        o->off, heads, ffn, &parts, &err))
        die("%s", err.text);
    if (o->json) print_parts_json(&e, heads, ffn, &parts);
    else print_parts(&e, heads, ffn, &parts);
    free(heads);
    free(ffn);
    close_experiment(&e);
    return 0;
}

// ---- from a file ----

int experiment(const Options *o) {
    heads_error err;
    Program p;
    double start = seconds();
    open_program(&p, o, o->models[0], NO_TOKENIZER);
    Text text = read_file(o->experiment);
    char *result = heads_experiment(p.model, &o->workspace, text.data, text.size, show_runs, &start,
                                    &err);
    if (!result) die("%s: %s", o->experiment, err.text);
    progress_end();
    write_out(result, strlen(result));
    heads_free(result);
    free(text.data);
    close_program(&p);
    return 0;
}

int verify(const Options *o) {
    heads_error err;
    Program p;
    Text out = {0};
    double start = seconds();
    open_program(&p, o, o->models[0], NO_TOKENIZER);
    Text text = read_file(o->verify);
    int found = heads_verify(p.model, &o->workspace, text.data, text.size, show_runs, &start, &err);
    if (found < 0) die("%s: %s", o->verify, err.text);
    progress_end();
    if (found) text_format(&out, "yes: the experiment gives these numbers\n");
    else text_format(&out, "no: %s\n", err.text);
    write_out(out.data, out.size);
    free(out.data);
    free(text.data);
    close_program(&p);
    return !found;
}
