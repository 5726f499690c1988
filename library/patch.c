// Activation patching (Meng et al. 2022, arXiv 2202.05262; Wang et al. 2022, 2211.00593): what an
// answer becomes where one activation of a clean text stands in a run of a corrupted one. Each such
// run begins at its layer with the stream that the corrupted text has there, and at its position
// with the corrupted text's cache. So all that runs again is what the activation can change.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "library/experiments.h"
#include "library/inspect.h"

enum { MOST_RUNS = 64, PASS_ROWS = 256 };  // of a pass

typedef struct {  // what a mixer's heads give for the clean text
    int layer, head, n_heads, width;
    float *rows;  // [n][n_heads][width]
} Given;

typedef struct {     // a pass: runs of several positions, from `last` down, each with several heads
    int layer, start;  // start: the layer that it begins with, `layer` or before it
    int last, n_positions, head, n_heads;
} Cut;

typedef struct {
    const heads_patching *what;
    Workspace *w;
    Sequence *corrupted, *runs[MOST_RUNS];  // runs: its forks, made as they are needed
    int n_heads;           // of a layer of the results, the most that any has
    int first;             // position where the texts begin to differ
    int from_layer, to_layer, from, to;  // layers and positions that are patched: to is behind
    bool whole;            // runs begin at position 0: a state or a window forgets
    float *streams, *clean_streams;  // [n_layers][n][n_embd], what came into layers; clean_streams:
                                     // NULL unless layers are patched
    float *kept;           // where a text that runs leaves its streams
    Given *given;          // [2 n_layers], n_given of them
    int n_given;
    float *clean_logits;   // [vocab_size], after the last token
    Cut cut;
    double clean, base;    // metrics of both texts
    long done, total;      // runs
} Patch;

int heads_of_layer(const Layer *l) {
    int n = l->mixer == MIXER_NONE ? 0 : 1;
    if (l->mixer == MIXER_ATTENTION) n = l->attention.n_heads;
    if (l->mixer == MIXER_DELTANET) n = l->deltanet.n_v_heads;
    if (l->mixer == MIXER_MAMBA2) n = l->mamba2.n_heads;
    return n + (l->mamba2_beside ? l->mamba2.n_heads : 0) + l->cross.n_heads;
}

int heads_model_heads(const Model *m) {
    int most = 0;
    for (int i = 0; m && i < m->n_layers; i++) {
        int n = heads_of_layer(&m->layers[i]);
        most = n > most ? n : most;
    }
    return most;
}

// How many activations of a layer are patched, for each position.
static int patched(const Patch *p, int layer) {
    return p->what->layers ? 1 : heads_of_layer(&p->w->model->layers[layer]);
}

// ---- what both texts give ----

static float *stream(const Patch *p, float *streams, int layer, int pos) {
    size_t n = (size_t)p->what->n;
    return streams + ((size_t)layer * n + (size_t)pos) * (size_t)p->w->model->n_embd;
}

static int keep_stream(void *context, const heads_layer_input *in) {
    const Patch *p = context;
    for (int i = 0; i < in->n; i++)
        memcpy(stream(p, p->kept, in->layer, i), in->rows + (size_t)i * in->stride,
               (size_t)in->width * sizeof(float));
    return in->layer;
}

static void keep_heads(void *context, const heads_mixed *in) {
    Patch *p = context;
    size_t width = (size_t)in->n_heads * (size_t)in->width;
    Given *g = &p->given[p->n_given++];
    *g = (Given){in->layer, in->head, in->n_heads, in->width, NULL};
    g->rows = malloc((size_t)in->n * width * sizeof *g->rows);
    for (int i = 0; g->rows && i < in->n; i++)
        memcpy(g->rows + (size_t)i * width, in->rows + (size_t)i * in->stride,
               width * sizeof *g->rows);
}

static double metric(const Patch *p, const float *logits) {
    const heads_patching *what = p->what;
    return metric_of(what->metric, p->clean_logits, logits, p->w->model->vocab_size, what->answer,
                   what->against);
}

// The metric of a text, while the probe sees it run. keep: where its last logits go, or NULL.
static int run_text(Patch *p, Sequence *s, const int *ids, heads_probe probe, float *keep,
                    double *found, Error *err) {
    int n = p->what->n;
    probe.context = p;
    Changes changes = {p->what->off, p->what->steers, p->what->n_steers};
    if (change_text(s, &changes, n, err)) return -1;
    heads_workspace_probe(p->w, &probe);
    const float *logits = heads_forward(s, ids, n, 1, err);
    heads_workspace_probe(p->w, NULL);
    if (!logits) return -1;
    for (int i = 0; i < p->n_given; i++)
        if (!p->given[i].rows) return fail(err, "no memory for what heads give");
    if (keep) memcpy(keep, logits, (size_t)p->w->model->vocab_size * sizeof *keep);
    *found = metric(p, logits);
    return 0;
}

static int run_texts(Patch *p, Error *err) {
    heads_probe clean = {.mixed = keep_heads};
    if (p->what->layers) clean = (heads_probe){.enter = keep_stream};
    p->kept = p->clean_streams;
    Sequence *s = heads_sequence_new(p->w, false, err);
    int failed = !s || run_text(p, s, p->what->clean, clean, p->clean_logits, &p->clean, err);
    heads_sequence_free(s);
    p->corrupted = failed ? NULL : heads_sequence_new(p->w, false, err);
    if (!p->corrupted) return -1;
    p->kept = p->streams;
    return run_text(p, p->corrupted, p->what->corrupted, (heads_probe){.enter = keep_stream}, NULL,
                    &p->base, err);
}

// ---- the patched runs ----

// Where a run that changes position pos begins.
static int begin(const Patch *p, int pos) { return p->whole ? 0 : pos; }

// The first layer that must run for a change of `layer`: a later one may read its keys.
static int first_layer(const Model *m, int layer) {
    int start = layer;
    for (int i = m->n_layers - 1; i >= start; i--) {
        int from = m->layers[i].attention.kv_from;
        if (m->layers[i].mixer == MIXER_ATTENTION && from >= 0 && from < start) start = from;
    }
    return start;
}

static const Given *given_by(const Patch *p, int layer, int head) {
    const Given *g = p->given;
    while (g->layer != layer || head < g->head || head >= g->head + g->n_heads) g++;
    return g;
}

// Sets the rows that come into the pass's first layer, and what is patched in the stream.
static int enter_patched(void *context, const heads_layer_input *in) {
    const Patch *p = context;
    const Cut *c = &p->cut;
    size_t bytes = (size_t)in->width * sizeof(float);
    bool begins = in->layer == 0;
    int layer = begins ? c->start : in->layer, n = p->what->n;
    float *to = in->rows;
    for (int i = 0; i < c->n_positions * c->n_heads; i++) {
        int pos = c->last - i / c->n_heads;
        for (int t = begin(p, pos); t < n; t++, to += in->stride) {
            if (begins) memcpy(to, stream(p, p->streams, layer, t), bytes);
            if (p->what->layers && layer == c->layer && t == pos)
                memcpy(to, stream(p, p->clean_streams, layer, t), bytes);
        }
    }
    return layer;
}

// Puts the clean text's heads into the rows, a head of a position in each run.
static void patch_heads(void *context, const heads_mixed *in) {
    const Patch *p = context;
    const Cut *c = &p->cut;
    if (in->layer != c->layer) return;
    size_t row = 0, width = (size_t)in->width;
    for (int i = 0; i < c->n_positions * c->n_heads; i++) {
        int pos = c->last - i / c->n_heads, h = c->head + i % c->n_heads, from = begin(p, pos);
        if (h >= in->head && h < in->head + in->n_heads) {
            const Given *g = given_by(p, in->layer, h);
            size_t at = (size_t)(h - in->head) * width, all = (size_t)in->n_heads * width;
            memcpy(in->rows + (row + (size_t)(pos - from)) * in->stride + at,
                   g->rows + (size_t)pos * all + at, width * sizeof(float));
        }
        row += (size_t)(p->what->n - from);
    }
}

// Takes the i-th run's sequence back to where it begins. A position's runs have the same sequences
// in all layers, and positions come from the last to the first: so what is before is untouched.
static int prepare_run(Patch *p, int i, int pos, Run *run, Error *err) {
    Sequence **s = &p->runs[i];
    int from = begin(p, pos);
    if (!*s) *s = heads_sequence_fork(p->corrupted, p->what->n, err);
    if (!*s || heads_sequence_rewind(*s, from, err)) return -1;
    heads_sequence_expect(*s, p->what->n);
    *run = (Run){*s, p->what->corrupted + from, p->what->n - from, 1};
    return 0;
}

static float *result(const Patch *p, float *results, int layer, int head, int pos) {
    size_t row = (size_t)layer * (size_t)p->n_heads + (size_t)head;
    return results + row * (size_t)p->what->n + (size_t)pos;
}

static int run_cut(Patch *p, float *results, Error *err) {
    const Cut *c = &p->cut;
    Run runs[MOST_RUNS];
    int n = c->n_positions * c->n_heads;
    for (int i = 0; i < n; i++)
        if (prepare_run(p, i, c->last - i / c->n_heads, &runs[i], err)) return -1;
    heads_workspace_probe(p->w, &(heads_probe){
        .context = p, .enter = enter_patched, .mixed = p->what->layers ? NULL : patch_heads});
    const float *logits = heads_forward_runs(p->w, runs, n, err);
    heads_workspace_probe(p->w, NULL);
    for (int i = 0; logits && i < n; i++, logits += p->w->logits.stride)
        *result(p, results, c->layer, c->head + i % c->n_heads, c->last - i / c->n_heads) =
            (float)metric(p, logits);
    p->done += n;
    if (!logits) return -1;
    if (p->what->progress && p->what->progress(p->what->context, p->done, p->total))
        return fail(err, "patching was stopped after %ld of %ld runs", p->done, p->total);
    return 0;
}

// How many positions from `last` down fit into a pass, each with all heads; at least one.
static int positions_of_pass(const Patch *p, int last) {
    int n = 0, rows = 0;
    for (int pos = last; pos >= p->first && (n + 1) * p->n_heads <= MOST_RUNS; pos--, n++) {
        rows += p->n_heads * (p->what->n - begin(p, pos));
        if (rows > p->w->chunk) break;
    }
    return n ? n : 1;
}

// All layers and heads of n_positions positions.
static int run_positions(Patch *p, int last, int n_positions, float *results, Error *err) {
    int fit = p->w->chunk / (p->what->n - begin(p, last));
    fit = fit < MOST_RUNS ? fit : MOST_RUNS;
    for (int layer = p->from_layer; layer < p->to_layer; layer++)
        for (int h = 0, n = patched(p, layer), some; h < n; h += some) {
            some = n - h < fit || n_positions > 1 ? n - h : fit;
            p->cut = (Cut){layer, first_layer(p->w->model, layer), last, n_positions, h, some};
            if (run_cut(p, results, err)) return -1;
        }
    return 0;
}

// Where the texts are still alike, nothing that is patched differs.
static void fill_results(Patch *p, float *results) {
    for (int layer = p->from_layer; layer < p->to_layer; layer++)
        for (int h = 0; h < p->n_heads; h++)
            for (int pos = p->from; pos < p->to; pos++)
                *result(p, results, layer, h, pos) =
                    h < patched(p, layer) ? (float)p->base : NAN;
}

static int run_all(Patch *p, float *results, Error *err) {
    const heads_patching *what = p->what;
    if (run_texts(p, err)) return -1;
    fill_results(p, results);
    p->first = p->from;
    for (int i = 0; i < what->n && what->clean[i] == what->corrupted[i]; i++)
        if (p->first <= i) p->first = i + 1;
    p->whole = inspect_forgets(p->w);
    for (int i = p->from_layer; i < p->to_layer && p->first < p->to; i++)
        p->total += (long)patched(p, i) * (p->to - p->first);
    for (int last = p->to - 1, n; last >= p->first; last -= n) {
        n = positions_of_pass(p, last);
        if (run_positions(p, last, n, results, err)) return -1;
    }
    return 0;
}

// ---- the call ----

static int check_part(const char *name, int from, int n, int all, Error *err) {
    if (from >= 0 && n >= 0 && from < all && n <= all - from) return 0;
    return fail(err, "%d %s from %d on: there are 0..%d", n, name, from, all - 1);
}

static int check_patching(const Model *m, const heads_patching *what, const float *results,
                          Error *err) {
    if (need(m, "a model", err) || need(what, "what to patch", err) ||
        need(what->clean, "the clean text", err) ||
        need(what->corrupted, "the corrupted text", err) ||
        need(results, "room for results", err))
        return -1;
    if (check_continues(m, "patching", err)) return -1;
    if (what->n < 1) return fail(err, "%d tokens to patch, expected one or more", what->n);
    if (what->metric < HEADS_DIFFERENCE || what->metric > HEADS_KL)
        return fail(err, "metric: %d, expected 0..%d", (int)what->metric, HEADS_KL);
    if (check_answer(m, what->answer, what->against, 0, err)) return -1;
    if (check_part("layers", what->from_layer, what->n_layers, m->n_layers, err)) return -1;
    return check_part("positions", what->from_position, what->n_positions, what->n, err);
}

static int allocate_patch(Patch *p, Error *err) {
    const Model *m = p->w->model;
    size_t n_layers = (size_t)m->n_layers, floats = n_layers * (size_t)p->what->n;
    floats *= (size_t)m->n_embd;
    p->streams = malloc(floats * sizeof *p->streams);
    if (p->what->layers) p->clean_streams = malloc(floats * sizeof *p->streams);
    p->given = calloc(2 * n_layers, sizeof *p->given);
    p->clean_logits = malloc((size_t)m->vocab_size * sizeof *p->clean_logits);
    if (p->streams && (p->clean_streams || !p->what->layers) && p->given && p->clean_logits)
        return 0;
    return fail(err, "no memory for what comes into %d layers of %d tokens", m->n_layers,
                p->what->n);
}

static void free_patch(Patch *p) {
    for (int i = 0; i < MOST_RUNS; i++) heads_sequence_free(p->runs[i]);
    heads_sequence_free(p->corrupted);
    for (int i = 0; i < p->n_given; i++) free(p->given[i].rows);
    free(p->given);
    free(p->streams);
    free(p->clean_streams);
    free(p->clean_logits);
    workspace_free(p->w);
}

int heads_patch(const Model *m, const WorkspaceOptions *options, const heads_patching *what,
                float *results, double metrics[2], Error *err) {
    WorkspaceOptions o = options ? *options : (WorkspaceOptions){0};
    if (check_patching(m, what, results, err)) return -1;
    if (!o.chunk) o.chunk = PASS_ROWS;
    if (o.chunk < what->n) o.chunk = what->n;
    o.context = what->n;
    o.logit_rows = MOST_RUNS;
    o.hidden = false;
    Patch p = {.what = what, .n_heads = what->layers ? 1 : heads_model_heads(m),
               .from_layer = what->from_layer, .from = what->from_position,
               .to_layer = what->n_layers ? what->from_layer + what->n_layers : m->n_layers,
               .to = what->n_positions ? what->from_position + what->n_positions : what->n};
    p.w = experiment_workspace(m, &o, err);
    int failed = !p.w || allocate_patch(&p, err) || run_all(&p, results, err);
    if (!failed && metrics) metrics[0] = p.clean, metrics[1] = p.base;
    free_patch(&p);
    return failed ? -1 : 0;
}
