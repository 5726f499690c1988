// kv.c: what a model's KV cache costs, and what it would cost as MHA, with fewer KV heads, and as
// MLA. Report and allocation share kv_plan(), and a sequence is measured beside it.
#include <stdio.h>
#include <stdlib.h>

#include "input.h"
#include "print.h"
#include "verbs.h"

enum { MEASURED_TOKENS = 256, MOST_TOKENS = 2000000000 };

typedef struct {
    const char *scheme;        // MHA, GQA, MQA, MLA; "own" where the layers differ
    int n_kv_heads;            // 0: does not apply
    size_t bytes_per_token, bytes_at_2048, bytes_at_context;
    size_t tokens_that_fit;    // in the memory that is free now, at most MOST_TOKENS
    double ratio_to_mha;
    bool own;                  // the model's own scheme
} Row;

typedef struct {
    const char *path;
    Model model;
    int context, filled;       // positions reserved, and in the cache when it was measured
    Dtype k_dtype, v_dtype;
    size_t free_memory;        // bytes, 0 if the system does not say
    int mla_rank, mla_rope;    // the MLA row's latent rank and rope dim; rank 0: no such row
    KvPlan plan;               // of the model as it is
    size_t padding;            // bytes of a token that fill up values of few numbers
    KvUsage usage, fork;       // of the measured sequence, and of a fork of it
    Row *rows;                 // owned
    int n_rows;
} Report;

const char *attention_name(int n_heads, int n_kv_heads) {
    return n_kv_heads == n_heads ? "MHA" : n_kv_heads == 1 ? "MQA" : "GQA";
}

// The first layer's attention, NULL if there is none. *layer, if not NULL: which it is.
static const Attention *first_attention(const Model *model, int *layer) {
    for (int i = 0; i < model->n_layers; i++) {
        if (layer) *layer = i;
        if (model->layers[i].mixer == MIXER_ATTENTION) return &model->layers[i].attention;
    }
    return NULL;
}

static int n_attention_layers(const Model *model) {
    int n = 0;
    for (int i = 0; i < model->n_layers; i++) n += model->layers[i].mixer == MIXER_ATTENTION;
    return n;
}

// The number of query heads (or KV heads) of every layer that has attention, 0 if they differ.
static int common_heads(const Model *model, bool kv) {
    int common = 0;
    for (int i = 0; i < model->n_layers; i++) {
        const Attention *a = &model->layers[i].attention;
        if (model->layers[i].mixer != MIXER_ATTENTION) continue;
        int n = kv ? a->n_kv_heads : a->n_heads;
        if (common && n != common) return 0;
        common = n;
    }
    return common;
}

// ---- rows ----

static size_t bytes_at(const Report *r, int n_kv_heads, int n) {
    return kv_bytes_at(&r->model, n_kv_heads, n, r->k_dtype, r->v_dtype);
}

static size_t bytes_per_token(const Report *r, int n_kv_heads) {
    return kv_plan(&r->model, n_kv_heads, r->context, r->k_dtype, r->v_dtype).bytes_per_token;
}

// The largest number of tokens whose cache fits in `bytes`; a window's ring stops growing, so this
// need not be a quotient.
static size_t tokens_that_fit(const Report *r, int n_kv_heads, size_t bytes) {
    int fits = 0, too_many = MOST_TOKENS;
    while (too_many - fits > 1) {
        int n = fits + (too_many - fits) / 2;
        if (bytes_at(r, n_kv_heads, n) <= bytes) {
            fits = n;
        } else {
            too_many = n;
        }
    }
    return (size_t)fits;
}

static Row head_row(const Report *r, const char *scheme, int n_kv_heads, size_t mha_bytes) {
    Row row = {.scheme = scheme, .n_kv_heads = n_kv_heads};
    row.bytes_per_token = bytes_per_token(r, n_kv_heads);
    row.bytes_at_2048 = bytes_at(r, n_kv_heads, 2048);
    row.bytes_at_context = bytes_at(r, n_kv_heads, r->context);
    row.tokens_that_fit = tokens_that_fit(r, n_kv_heads, r->free_memory);
    row.ratio_to_mha = mha_bytes ? (double)row.bytes_per_token / (double)mha_bytes : 1.0;
    return row;
}

// Bytes of 32 cached numbers: q8 has one f16 scale for 32.
static size_t bytes_of_32(Dtype dtype) { return dtype == F32 ? 128 : dtype == F16 ? 64 : 34; }

// MLA caches one latent of rank r and one rope key of d_R numbers for all heads: layers (r + d_R)
// bytes an element (DeepSeek-V2, arXiv 2405.04434). d_R is taken as half of head_dim, DeepSeek's
// own proportion, the element as that of the keys, and r is the largest rank whose cache stays
// under an eighth of MHA's. Every position is kept: a window does not help.
static void mla_row(Report *r, size_t mha_bytes) {
    size_t per_32 = (size_t)n_attention_layers(&r->model) * bytes_of_32(r->k_dtype);
    size_t elements = (mha_bytes * 4 - 1) / per_32;  // the most with less than mha_bytes / 8
    size_t rope = (size_t)first_attention(&r->model, NULL)->head_dim / 2, state = r->plan.state;
    if (elements <= rope) return;
    size_t bytes = elements * per_32 / 32;
    r->mla_rank = (int)(elements - rope);
    r->mla_rope = (int)rope;
    r->rows[r->n_rows++] = (Row){
        .scheme = "MLA",
        .bytes_per_token = bytes,
        .bytes_at_2048 = bytes * 2048 + state,
        .bytes_at_context = bytes * (size_t)r->context + state,
        .tokens_that_fit = r->free_memory > state ? (r->free_memory - state) / bytes : 0,
        .ratio_to_mha = (double)bytes / (double)mha_bytes,
    };
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
        r->rows[r->n_rows++] = head_row(r, "own", 0, r->plan.bytes_per_token);
        r->rows[0].own = true;
        return;
    }
    bool latent = first_attention(&r->model, NULL)->latent.rank > 0;
    size_t mha_bytes = bytes_per_token(r, n_heads);
    for (int n = n_heads; n >= 1; n--) {
        if (n_heads % n != 0) continue;
        Row *row = &r->rows[r->n_rows++];
        *row = head_row(r, attention_name(n_heads, n), n, mha_bytes);
        row->own = n == own && !latent;
    }
    if (!latent) {
        mla_row(r, mha_bytes);
    } else {
        r->rows[r->n_rows] = head_row(r, "MLA", 0, mha_bytes);
        r->rows[r->n_rows++].own = true;
    }
}

// Fills the first positions of a new cache with one token over and over: what is measured does not
// depend on the text. Then a fork is measured, whose cache shares pages with that one.
static void measure(Report *r, const Options *o) {
    static const int tokens[MEASURED_TOKENS];
    Error err;
    Workspace *w = open_workspace(o, &r->model, 0);
    Sequence *s = open_sequence(w, true);
    r->context = workspace_context(w);
    r->filled = r->context < MEASURED_TOKENS ? r->context : MEASURED_TOKENS;
    if (!forward(s, tokens, r->filled, 0, &err)) die("%s", err.text);
    r->usage = sequence_kv_usage(s);
    Sequence *fork = sequence_fork(s, r->filled, &err);
    if (!fork) die("%s", err.text);
    r->fork = sequence_kv_usage(fork);
    sequence_free(fork);
    sequence_free(s);
    workspace_free(w);
}

static void make_report(Report *r, const char *path, const Options *o) {
    r->path = path;
    r->k_dtype = o->workspace.k_dtype;
    r->v_dtype = o->workspace.v_dtype;
    r->free_memory = free_memory();
    open_model(&r->model, o, path);
    if (r->model.encoder && o->n_models > 1) {
        usage("%s is an encoder: it has no KV cache to compare", path);
    }
    if (r->model.encoder) return;
    measure(r, o);
    r->plan = kv_plan(&r->model, 0, r->context, r->k_dtype, r->v_dtype);
    r->padding = kv_padding_per_token(&r->model, 0, r->v_dtype);
    make_rows(r);
}

// ---- as text ----

static void print_row(const Row *row, bool memory_known) {
    char heads[16] = "-", ratio[16];
    const char *fit = !memory_known                               ? "-"
                      : row->tokens_that_fit >= MOST_TOKENS - 1 ? "any"
                                                                  : commas(row->tokens_that_fit);
    if (row->n_kv_heads > 0) snprintf(heads, sizeof heads, "%d", row->n_kv_heads);
    snprintf(ratio, sizeof ratio, "%.4f", row->ratio_to_mha);
    printf("%c %-6s %8s %12s %18s %18s %9s %18s\n", row->own ? '*' : ' ', row->scheme, heads,
           commas(row->bytes_per_token), commas(row->bytes_at_2048), commas(row->bytes_at_context),
           ratio, fit);
}

static void print_shape(const Report *r) {
    int n = n_attention_layers(&r->model), layer;
    const Attention *a = first_attention(&r->model, &layer);
    printf("%s: %d layers", r->path, r->model.n_layers);
    if (n < r->model.n_layers) printf(", %d with attention", n);
    if (a && a->latent.rank) {
        printf(", %d query heads, latent %d + %d", a->n_heads, a->latent.rank,
               a->head_dim - a->latent.rank);
    } else if (a) {
        printf(", %d query heads, %d KV heads, head_dim %d", a->n_heads, a->n_kv_heads,
               a->head_dim);
    }
    if (a && r->n_rows == 1 && r->rows[0].n_kv_heads == 0) {
        printf(" (layer %d; others differ)", layer);
    }
    printf("; keys %s", dtype_name(r->k_dtype));
    if (!a || !a->latent.rank) printf(", values %s", dtype_name(r->v_dtype));
    printf("; context %d\n\n", r->context);
}

static const char *agreement(size_t formula, size_t measured) {
    return formula == measured ? "as the formula says" : "NOT what the formula says";
}

static void print_measured(const Report *r) {
    const KvUsage *u = &r->usage;
    printf("measured: reserved %s bytes (%s: %s); after a run of %d tokens, resident %s bytes "
           "(%s: %s)\n", commas(u->reserved), agreement(r->plan.reserved, u->reserved),
           commas(r->plan.reserved), r->filled, commas(u->resident),
           agreement(u->expected_resident, u->resident), commas(u->expected_resident));
    printf("a fork of that run: %s of its %s bytes in use are the same memory\n",
           commas(r->fork.shared), commas(r->fork.in_use));
}

static void print_report(const Report *r) {
    char at_context[32];
    print_shape(r);
    snprintf(at_context, sizeof at_context, "bytes at %s", commas((size_t)r->context));
    printf("  %-6s %8s %12s %18s %18s %9s %18s\n", "scheme", "KV heads", "bytes/token",
           "bytes at 2,048", at_context, "of MHA", "tokens that fit");
    for (int i = 0; i < r->n_rows; i++) print_row(&r->rows[i], r->free_memory > 0);
    printf("\n* this model. \"tokens that fit\": in the %s bytes of memory that are free now.\n",
           commas(r->free_memory));
    if (r->mla_rank > 0) {
        printf("MLA: the largest latent rank under 1/8 of MHA is %d, with a rope dim of %d (half "
               "of head_dim).\n", r->mla_rank, r->mla_rope);
    }
    if (r->padding) {
        printf("padding: %s of this model's %s bytes a token fill each value up to %d numbers.\n",
               commas(r->padding), commas(r->plan.bytes_per_token), r->v_dtype == Q8 ? 32 : 16);
    }
    if (r->plan.state) {
        printf("state: %s bytes of layers without attention, however long the text.\n",
               commas(r->plan.state));
    }
    print_measured(r);
}

// The measured lines of several models side by side.
static void print_table(const Report *reports, int n) {
    static const Attention none;
    printf("%-24s %6s %7s %8s %8s %12s %9s %16s %10s %16s\n", "model", "layers", "q heads",
           "KV heads", "head_dim", "bytes/token", "of MHA", "reserved bytes", "run tokens",
           "resident bytes");
    for (const Report *r = reports; r < reports + n; r++) {
        const Attention *a = first_attention(&r->model, NULL);
        double ratio = 1;
        if (!a) a = &none;
        for (int j = 0; j < r->n_rows; j++) {
            if (r->rows[j].own) ratio = r->rows[j].ratio_to_mha;
        }
        printf("%-24s %6d %7d %8d %8d %12s %9.4f %16s %10d %16s\n", r->path, r->model.n_layers,
               a->n_heads, a->n_kv_heads, a->head_dim, commas(r->plan.bytes_per_token), ratio,
               commas(r->usage.reserved), r->filled, commas(r->usage.resident));
    }
    printf("\nmeasured; keys %s, values %s; each at its context (reserved) and after a run "
           "(resident)\n", dtype_name(reports[0].k_dtype), dtype_name(reports[0].v_dtype));
}

// ---- as JSON ----

static void print_report_json(const Report *r) {
    printf("{\"context\": %d,\n \"rows\": [", r->context);
    for (int i = 0; i < r->n_rows; i++) {
        const Row *row = &r->rows[i];
        char heads[16] = "null";
        if (row->n_kv_heads > 0) snprintf(heads, sizeof heads, "%d", row->n_kv_heads);
        printf("%s\n  {\"scheme\": \"%s\", \"n_kv_heads\": %s, \"bytes_per_token\": %zu, "
               "\"bytes_at_2048\": %zu, \"bytes_at_context\": %zu, \"ratio_to_mha\": %.9g, "
               "\"own\": %s}", i ? "," : "", row->scheme, heads, row->bytes_per_token,
               row->bytes_at_2048, row->bytes_at_context, row->ratio_to_mha,
               row->own ? "true" : "false");
    }
    printf("],\n \"reserved_bytes\": %zu, \"resident_bytes\": %zu, \"state_bytes\": %zu, "
           "\"padding_per_token\": %zu, \"fork_shared_bytes\": %zu}", r->usage.reserved,
           r->usage.resident, r->plan.state, r->padding, r->fork.shared);
}

static void print_json(const Report *reports, int n) {
    if (n > 1) printf("[");
    for (int i = 0; i < n; i++) {
        if (i > 0) printf(",\n");
        print_report_json(&reports[i]);
    }
    printf(n > 1 ? "]\n" : "\n");
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
    for (int i = 0; i < n; i++) make_report(&reports[i], o->models[i], o);
    if (reports[0].model.encoder) {
        report_encoder(o, &reports[0].model);
    } else if (o->json) {
        print_json(reports, n);
    } else if (n == 1) {
        print_report(&reports[0]);
    } else {
        print_table(reports, n);
    }
    for (int i = 0; i < n; i++) {
        free(reports[i].rows);
        model_close(&reports[i].model);
    }
    free(reports);
    return 0;
}
