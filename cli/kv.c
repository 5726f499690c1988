// kv.c: what a model's KV cache costs, and what it would cost as MHA, with fewer KV heads, and as
// MLA. Report and allocation share kv_plan(), and a sequence is measured beside it, unless the file
// is a shape.
#include "kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"
#include "verbs.h"

enum { MEASURED_TOKENS = 256 };

const char *attention_name(int n_heads, int n_kv_heads) {
    return n_kv_heads == n_heads ? "MHA" : n_kv_heads == 1 ? "MQA" : "GQA";
}

const Attention *first_attention(const Model *model, int *layer) {
    for (int i = model->text.first; i < model->n_layers; i++) {
        if (layer) *layer = i;
        if (model->layers[i].mixer == MIXER_ATTENTION) return &model->layers[i].attention;
    }
    return NULL;
}

int n_attention_layers(const Model *model) {
    int n = 0;
    for (int i = model->text.first; i < model->n_layers; i++)
        n += model->layers[i].mixer == MIXER_ATTENTION;
    return n;
}

// The number of query heads (or KV heads) of every layer that has attention, 0 if they differ.
static int common_heads(const Model *model, bool kv) {
    int common = 0;
    for (int i = model->text.first; i < model->n_layers; i++) {
        const Attention *a = &model->layers[i].attention;
        if (model->layers[i].mixer != MIXER_ATTENTION) continue;
        int n = kv ? a->n_kv_heads : a->n_heads;
        if (common && n != common) return 0;
        common = n;
    }
    return common;
}

// ---- rows ----

// Bytes of 32 cached numbers: q8 and q4 have one f16 scale for 32.
static size_t bytes_of_32(Dtype dtype) {
    return dtype == F32 ? 128 : dtype == F16 ? 64 : dtype == Q8 ? 34 : 18;
}

size_t row_bytes_at(const Report *r, const Row *row, int n, KvTypes types) {
    if (!row->mla_numbers) return kv_bytes_at(&r->model, row->n_kv_heads, n, 0, types.k, types.v);
    size_t bytes = row->mla_numbers * bytes_of_32(types.k) / 32;
    return bytes * (size_t)n + (n ? row->plan.state : 0);
}

// The largest number of tokens whose cache fits in the memory; a window's ring stops growing, so
// this need not be a quotient.
static size_t tokens_that_fit(const Report *r, const Row *row, KvTypes types) {
    int fits = 0, too_many = MOST_TOKENS;
    while (too_many - fits > 1) {
        int n = fits + (too_many - fits) / 2;
        if (row_bytes_at(r, row, n, types) <= r->memory) fits = n;
        else too_many = n;
    }
    return (size_t)fits;
}

// Adds a row, of which the plan and what it stands for are known.
static Row *add_row(Report *r, Row row, size_t mha_bytes) {
    row.bytes_at_2048 = row_bytes_at(r, &row, 2048, r->type);
    row.bytes_at_context = row_bytes_at(r, &row, r->context, r->type);
    row.ratio_to_mha = mha_bytes ? (double)row.plan.bytes_per_token / (double)mha_bytes : 1.0;
    for (int i = 0; i < r->n_types; i++) row.fits[i] = tokens_that_fit(r, &row, r->types[i]);
    r->rows[r->n_rows] = row;
    if (row.own) r->own = &r->rows[r->n_rows];
    return &r->rows[r->n_rows++];
}

static KvPlan plan_of(const Report *r, int n_kv_heads) {
    return kv_plan(&r->model, n_kv_heads, r->context, r->type.k, r->type.v);
}

static void add_head_row(Report *r, const char *scheme, int n_kv_heads, size_t mha_bytes,
                         bool own) {
    Row row = {.scheme = scheme, .n_kv_heads = n_kv_heads, .own = own};
    row.plan = plan_of(r, n_kv_heads);
    add_row(r, row, mha_bytes);
}

// MLA caches one latent of rank r and one rope key of d_R numbers for all heads: layers (r + d_R)
// bytes an element (DeepSeek-V2, arXiv 2405.04434). d_R is taken as half of head_dim, DeepSeek's
// own proportion, the element as that of the keys, and r is the largest rank whose cache stays
// under an eighth of MHA's. Every position is kept: a window does not help.
static void add_mla_row(Report *r, size_t mha_bytes) {
    size_t layers = (size_t)n_attention_layers(&r->model), element = bytes_of_32(r->type.k);
    size_t elements = (mha_bytes * 4 - 1) / (layers * element);  // the most under mha_bytes / 8
    size_t rope = (size_t)first_attention(&r->model, NULL)->head_dim / 2;
    if (elements <= rope) return;
    r->mla_rank = (int)(elements - rope);
    r->mla_rope = (int)rope;
    Row row = {.scheme = "MLA", .mla_numbers = layers * elements};
    row.plan.bytes_per_token = row.plan.growing = row.mla_numbers * element / 32;
    row.plan.state = plan_of(r, 0).state;
    add_row(r, row, mha_bytes);
}

// MHA, each GQA divisor from large to small, MQA, and MLA, the model's own or one that would be
// small; only the model itself if its layers differ in their heads. Of a model with MLA, the others
// are what its heads would cost expanded.
static void make_rows(Report *r) {
    int n_heads = common_heads(&r->model, false), own = common_heads(&r->model, true);
    int n_divisors = 0;
    for (int n = 1; n <= n_heads; n++) n_divisors += n_heads % n == 0;
    r->rows = calloc((size_t)n_divisors + 2, sizeof *r->rows);
    if (!r->rows) die("no memory for the report's %d rows", n_divisors + 2);
    if (n_heads == 0 || own == 0) {
        add_head_row(r, "own", 0, plan_of(r, 0).bytes_per_token, true);
        return;
    }
    bool latent = first_attention(&r->model, NULL)->latent.rank > 0;
    size_t mha_bytes = plan_of(r, n_heads).bytes_per_token;
    for (int n = n_heads; n >= 1; n--)
        if (n_heads % n == 0)
            add_head_row(r, attention_name(n_heads, n), n, mha_bytes, n == own && !latent);
    if (latent) add_head_row(r, "MLA", 0, mha_bytes, true);
    else add_mla_row(r, mha_bytes);
}

// ---- the report ----

// Fills the first positions of a new cache with one token over and over: what is measured does not
// depend on the text. Then a fork is measured, whose cache shares pages with that one.
static void measure(Report *r, const Options *o) {
    static const int tokens[MEASURED_TOKENS];
    Error err;
    Options as_made = *o;
    if (as_made.workspace.context > r->model.context) as_made.workspace.context = 0;
    Workspace *w = open_workspace(&as_made, &r->model, 0);
    Sequence *s = open_sequence(w, true);
    int context = workspace_context(w);
    r->measured_plan = kv_plan(&r->model, 0, context, r->type.k, r->type.v).reserved;
    r->filled = context < MEASURED_TOKENS ? context : MEASURED_TOKENS;
    Run source = {.sequence = s, .tokens = tokens, .n = r->filled};
    if (r->model.source.n && read_sources(w, &source, 1, &err)) die("%s", err.text);
    if (!forward(s, tokens, r->filled, 0, &err)) die("%s", err.text);
    r->usage = sequence_kv_usage(s);
    Sequence *fork = sequence_fork(s, r->filled, &err);
    if (!fork) die("%s", err.text);
    r->fork = sequence_kv_usage(fork);
    sequence_free(fork);
    sequence_free(s);
    workspace_free(w);
}

// Keys and values of one type each, and the user's choice if it is none of these.
static void choose_types(Report *r) {
    static const Dtype dtypes[] = {F32, F16, Q8, Q4};
    for (int i = 0; i < 4; i++) r->types[r->n_types++] = (KvTypes){dtypes[i], dtypes[i]};
    if (r->type.k != r->type.v) r->types[r->n_types++] = r->type;
}

static void make_report(Report *r, const char *path, size_t memory, const Options *o) {
    open_model(&r->model, o, path);
    if (r->model.encoder && o->n_models > 1)
        usage("%s is an encoder: it has no KV cache to compare", path);
    if (r->model.encoder) return;
    r->path = path;
    r->context = o->workspace.context ? o->workspace.context : r->model.context;
    r->type = (KvTypes){o->workspace.k_dtype, o->workspace.v_dtype};
    r->memory = memory;
    for (int i = 0; i < r->model.file.n_tensors; i++) r->weights += r->model.file.tensors[i].bytes;
    choose_types(r);
    if (!r->model.file.shape) measure(r, o);
    r->padding = kv_padding_per_token(&r->model, 0, r->type.v);
    make_rows(r);
}

// An encoder has no cache to report, but its keys and values need room while a text runs.
static void report_encoder(const Options *o, const Model *m) {
    int context = o->workspace.context ? o->workspace.context : m->context;
    KvPlan plan = kv_plan(m, 0, context, F32, F32);
    if (o->json) {
        printf("{\"encoder\": true, \"context\": %d, \"bytes_per_token_of_a_pass\": %zu, "
               "\"bytes_of_a_pass\": %zu}\n", context, plan.bytes_per_token, plan.reserved);
        return;
    }
    printf("%s is an encoder: it keeps no KV cache between tokens. All positions of a text see\n"
           "each other in one pass; while that runs, the layers take turns with %s bytes a token\n"
           "for keys and values (f32), %s bytes for a text of %d tokens.\n", o->models[0],
           commas(plan.bytes_per_token), commas(plan.reserved), context);
}

int kv(const Options *o) {
    int n = o->n_models;
    Report *reports = calloc((size_t)n, sizeof *reports);
    if (!reports) die("no memory for the report");
    size_t memory = o->memory ? o->memory : free_memory();
    for (int i = 0; i < n; i++) make_report(&reports[i], o->models[i], memory, o);
    if (o->svg) write_kv_svg(reports, n, o);
    if (reports[0].model.encoder) report_encoder(o, &reports[0].model);
    else if (o->json) print_reports_json(reports, n);
    else if (n == 1) print_report(reports, o);
    else print_reports(reports, n, o);
    for (int i = 0; i < n; i++) {
        free(reports[i].rows);
        model_close(&reports[i].model);
    }
    free(reports);
    return 0;
}
