// The report as text and as JSON.
#include <stdio.h>
#include <string.h>

#include "kv.h"
#include "print.h"

const char *types_name(KvTypes types) {
    static char name[16];
    bool same = types.k == types.v;
    snprintf(name, sizeof name, "%s%s%s", dtype_name(types.k), same ? "" : "/",
             same ? "" : dtype_name(types.v));
    return name;
}

// ---- as text ----

static const char *heads_of(const Row *row) {
    return row->n_kv_heads ? commas((size_t)row->n_kv_heads) : "-";
}

static void print_fits_head(const Report *r, const char *label, int width, const Options *o) {
    printf("\ntokens that fit in %s bytes (%s), with keys and values in\n", commas(r->memory),
           o->memory ? "--memory" : "what is free now");
    printf("  %-*s", width, label);
    for (int i = 0; i < r->n_types; i++) printf(" %14s", types_name(r->types[i]));
    printf("\n");
}

static void print_fits(const Report *r, const Row *row) {
    for (int i = 0; i < r->n_types; i++)
        printf(" %14s", row->fits[i] >= MOST_TOKENS - 1 ? "any" : commas(row->fits[i]));
    printf("\n");
}

static void print_shape(const Report *r) {
    int n = n_attention_layers(&r->model), layer;
    const Attention *a = first_attention(&r->model, &layer);
    printf("%s: %d layers", r->path, r->model.n_layers);
    if (r->model.source.n)
        printf(" of an encoder and a decoder, whose %d keep a cache", n);
    else if (n < r->model.n_layers) printf(", %d with attention", n);
    if (a && a->latent.rank)
        printf(", %d query heads, latent %d + %d", a->n_heads, a->latent.rank,
               a->head_dim - a->latent.rank);
    else if (a)
        printf(", %d query heads, %d KV heads, head_dim %d", a->n_heads, a->n_kv_heads,
               a->head_dim);
    if (a && r->n_rows == 1 && r->rows[0].n_kv_heads == 0)
        printf(" (layer %d; others differ)", layer);
    printf("; keys %s", dtype_name(r->type.k));
    if (!a || !a->latent.rank) printf(", values %s", dtype_name(r->type.v));
    printf("; context %d\n", r->context);
}

static void print_beyond(const Report *r) {
    if (r->context > r->model.context)
        printf("note: %s was made for %s tokens; %s is what they would cost.\n", r->path,
               commas((size_t)r->model.context), commas((size_t)r->context));
}

static size_t fixed(const Row *row) {
    return row->plan.windows + row->plan.state;
}

// What a token costs once all windows are full, and what does not grow, have columns only where
// some row has windows or states.
static void print_rows(const Report *r) {
    char at_context[32];
    snprintf(at_context, sizeof at_context, "bytes at %s", commas((size_t)r->context));
    bool any_fixed = false;
    for (const Row *row = r->rows; row < r->rows + r->n_rows; row++) any_fixed |= fixed(row) > 0;
    printf("\n  %-6s %8s %12s", "scheme", "KV heads", "bytes/token");
    if (any_fixed) printf(" %13s %13s", "past windows", "fixed");
    printf(" %15s %18s %8s\n", "bytes at 2,048", at_context, "of MHA");
    for (const Row *row = r->rows; row < r->rows + r->n_rows; row++) {
        printf("%c %-6s %8s %12s", row->own ? '*' : ' ', row->scheme, heads_of(row),
               commas(row->plan.bytes_per_token));
        if (any_fixed) printf(" %13s %13s", commas(row->plan.growing), commas(fixed(row)));
        printf(" %15s %18s %8.4f\n", commas(row->bytes_at_2048), commas(row->bytes_at_context),
               row->ratio_to_mha);
    }
}

// What the columns mean, where it is not plain.
static void print_notes(const Report *r) {
    const KvPlan *plan = &r->own->plan;
    printf("\n* this model.");
    if (plan->windows)
        printf(" Its windows, once they are full, hold %s bytes (fixed), and a token adds\n"
               "what the other layers cache (past windows).", commas(plan->windows));
    printf("\n");
    if (plan->state)
        printf("state: %s bytes of other mixers than attention, however long the text.\n",
               commas(plan->state));
    if (plan->bytes_per_source_token)
        printf("cross-attention: %s bytes for each token of the source, read once and beside the "
               "table above.\n", commas(plan->bytes_per_source_token));
    if (r->mla_rank)
        printf("MLA: the largest latent rank under 1/8 of MHA is %d, with a rope dim of %d (half "
               "of head_dim).\n", r->mla_rank, r->mla_rope);
    if (r->padding)
        printf("padding: %s of this model's %s bytes a token fill each value up to %d numbers.\n",
               commas(r->padding), commas(plan->bytes_per_token),
               r->type.v == Q8 || r->type.v == Q4 ? 32 : 16);
    printf("weights: %s bytes, beside the cache.\n", commas(r->weights));
    print_beyond(r);
}

static const char *agreement(size_t formula, size_t measured) {
    return formula == measured ? "as the formula says" : "NOT what the formula says";
}

static void print_measured(const Report *r) {
    const KvUsage *u = &r->usage;
    if (!r->filled) {
        printf("measured: nothing, since this is a shape without weights; by the formula, %s bytes "
               "are reserved\n", commas(r->own->plan.reserved));
        return;
    }
    printf("measured%s: reserved %s bytes (%s: %s); after %sa run of %d tokens, resident %s bytes "
           "(%s: %s)\n", r->context > r->model.context ? " at the context it was made for" : "",
           commas(u->reserved), agreement(r->measured_plan, u->reserved),
           commas(r->measured_plan), r->model.source.n ? "a source as long as " : "", r->filled,
           commas(u->resident),
           agreement(u->expected_resident, u->resident), commas(u->expected_resident));
    printf("a fork of that run: %s of its %s bytes in use are the same memory\n",
           commas(r->fork.shared), commas(r->fork.in_use));
}

void print_report(const Report *r, const Options *o) {
    print_shape(r);
    print_rows(r);
    print_notes(r);
    if (r->memory) {
        print_fits_head(r, "scheme KV heads", 15, o);
        for (const Row *row = r->rows; row < r->rows + r->n_rows; row++) {
            printf("%c %-6s %8s", row->own ? '*' : ' ', row->scheme, heads_of(row));
            print_fits(r, row);
        }
    }
    printf("\n");
    print_measured(r);
}

// What the models themselves cost, side by side.
void print_reports(const Report *reports, int n, const Options *o) {
    static const Attention none;
    printf("%-24s %6s %7s %8s %8s %12s %14s %9s %18s %10s %16s\n", "model", "layers", "q heads",
           "KV heads", "head_dim", "bytes/token", "fixed", "of MHA", "reserved bytes",
           "run tokens", "resident bytes");
    for (const Report *r = reports; r < reports + n; r++) {
        const Attention *a = first_attention(&r->model, NULL);
        const KvPlan *plan = &r->own->plan;
        if (!a) a = &none;
        printf("%-24s %6d %7d %8d %8d %12s %14s %9.4f %18s %10s %16s\n", r->path,
               r->model.n_layers, a->n_heads, a->n_kv_heads, a->head_dim,
               commas(plan->bytes_per_token), commas(plan->windows + plan->state),
               r->own->ratio_to_mha, commas(r->filled ? r->usage.reserved : plan->reserved),
               r->filled ? commas((size_t)r->filled) : "-",
               r->filled ? commas(r->usage.resident) : "-");
    }
    if (reports[0].memory) {
        print_fits_head(reports, "model", 24, o);
        for (const Report *r = reports; r < reports + n; r++) {
            printf("  %-24s", r->path);
            print_fits(r, r->own);
        }
    }
    printf("\nkeys %s, values %s; reserved is for the context, resident was measured after a run, "
           "which a shape\nwithout weights cannot do\n", dtype_name(reports[0].type.k),
           dtype_name(reports[0].type.v));
    for (const Report *r = reports; r < reports + n; r++) print_beyond(r);
}

// ---- as JSON ----

static void print_row_json(const Report *r, const Row *row) {
    const KvPlan *plan = &row->plan;
    printf("{\"scheme\": \"%s\", \"n_kv_heads\": ", row->scheme);
    printf(row->n_kv_heads ? "%d" : "null", row->n_kv_heads);
    printf(", \"bytes_per_token\": %zu, \"growing_per_token\": %zu, \"window_bytes\": %zu, "
           "\"bytes_at_2048\": %zu, \"bytes_at_context\": %zu, \"ratio_to_mha\": %.9g, "
           "\"own\": %s,\n   \"tokens_that_fit\": {", plan->bytes_per_token, plan->growing,
           plan->windows, row->bytes_at_2048, row->bytes_at_context, row->ratio_to_mha,
           row->own ? "true" : "false");
    for (int i = 0; i < r->n_types; i++)
        printf("%s\"%s\": %zu", i ? ", " : "", types_name(r->types[i]), row->fits[i]);
    printf("},\n   \"curve\": [");
    for (long n = 1; n < r->context; n *= 2)
        printf("[%ld, %zu], ", n, row_bytes_at(r, row, (int)n, r->type));
    printf("[%d, %zu]]}", r->context, row->bytes_at_context);
}

static void print_report_json(const Report *r) {
    printf("{");
    print_json_string("model", r->path, strlen(r->path));
    printf(", \"shape\": %s, \"context\": %d, \"model_context\": %d, \"memory_bytes\": %zu, "
           "\"weight_bytes\": %zu,\n \"rows\": [", r->filled ? "false" : "true", r->context,
           r->model.context, r->memory, r->weights);
    for (int i = 0; i < r->n_rows; i++) {
        printf(i ? ",\n  " : "\n  ");
        print_row_json(r, &r->rows[i]);
    }
    if (r->model.source.n)
        printf("],\n \"bytes_per_source_token\": %zu", r->own->plan.bytes_per_source_token);
    else printf("]");
    printf(",\n \"reserved_bytes\": %zu, \"state_bytes\": %zu, \"padding_per_token\": %zu, ",
           r->filled ? r->usage.reserved : r->own->plan.reserved, r->own->plan.state, r->padding);
    if (r->filled)
        printf("\"resident_bytes\": %zu, \"fork_shared_bytes\": %zu}", r->usage.resident,
               r->fork.shared);
    else
        printf("\"resident_bytes\": null, \"fork_shared_bytes\": null}");
}

void print_reports_json(const Report *reports, int n) {
    if (n > 1) printf("[");
    for (int i = 0; i < n; i++) {
        if (i > 0) printf(",\n");
        print_report_json(&reports[i]);
    }
    printf(n > 1 ? "]\n" : "\n");
}
