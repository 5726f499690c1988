#include "cli/kv/print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "cli/print.h"
#include "cli/wrap.h"

const char *types_name(KvTypes types) {
    static char name[16];
    bool same = types.k == types.v;
    snprintf(name, sizeof name, "%s%s%s", type_name(types.k), same ? "" : "/",
             same ? "" : type_name(types.v));
    return name;
}

// ---- as text ----

static const char *heads_of(const Scheme *s) {
    return s->n_kv_heads ? commas((size_t)s->n_kv_heads) : "-";
}

static void print_fits_head(const Report *r, const char *label, int width, const Options *o) {
    printf("\ntokens that fit in %s (%s),\nwith keys and values in\n", size_text(r->memory),
           o->memory ? "--memory" : "what is free now");
    printf("  %-*s", width, label);
    for (int i = 0; i < r->n_types; i++) printf(" %11s", types_name(r->types[i]));
    printf("\n");
}

static void print_fits(const Report *r, const Scheme *s) {
    for (int i = 0; i < r->n_types; i++)
        printf(" %11s", s->fits[i] >= MOST_TOKENS - 1 ? "any" : commas(s->fits[i]));
    printf("\n");
}

static void print_shape(const Report *r) {
    Text line = {0};
    int n = r->n_attention;
    LayerFacts a = r->first;
    text_format(&line, "%s: %d layers", r->p.path, r->p.shape.n_layers);
    if (r->p.shape.source_vocab)
        text_format(&line, " of an encoder and a decoder, whose %d keep a cache", n);
    else if (n < r->p.shape.n_layers) text_format(&line, ", %d with attention", n);
    if (a.latent_rank)
        text_format(&line, ", %d query heads, latent %d + %d", a.n_heads, a.latent_rank,
               a.head_dim - a.latent_rank);
    else if (a.attends)
        text_format(&line, ", %d query heads, %d KV heads, head_dim %d", a.n_heads, a.n_kv_heads,
               a.head_dim);
    if (a.attends && r->n_schemes == 1 && r->schemes[0].n_kv_heads == 0)
        text_format(&line, " (layer %d; others differ)", r->first_layer);
    text_format(&line, "; keys %s", type_name(r->type.k));
    if (!a.latent_rank) text_format(&line, ", values %s", type_name(r->type.v));
    text_format(&line, "; context %d\n", r->context);
    write_words(line.data, line.size);
    free(line.data);
}

static void print_beyond(const Report *r) {
    if (r->context > r->p.shape.context)
        printf("note: %s was made for %s tokens; %s is what they would cost.\n", r->p.path,
               commas((size_t)r->p.shape.context), commas((size_t)r->context));
}

static size_t fixed(const Scheme *s) {
    return s->plan.windows + s->plan.state;
}

static void print_row_name(const Scheme *s) {
    printf("%c %-6s %8s", s->own ? '*' : ' ', s->name, heads_of(s));
}

static void print_schemes(const Report *r) {
    char at_context[32], at_2048[] = "bytes at 2,048";
    snprintf(at_context, sizeof at_context, "bytes at %s", commas((size_t)r->context));
    bool shorter = r->context < 2048;
    printf("\n  scheme KV heads %12s %18s %18s %8s\n", "bytes/token",
           shorter ? at_context : at_2048, shorter ? at_2048 : at_context, "of MHA");
    for (const Scheme *s = r->schemes; s < r->schemes + r->n_schemes; s++) {
        size_t first = shorter ? s->bytes_at_context : s->bytes_at_2048;
        size_t second = shorter ? s->bytes_at_2048 : s->bytes_at_context;
        print_row_name(s);
        printf(" %12s %18s %18s %8.4f\n", commas(s->plan.bytes_per_token), commas(first),
               commas(second), s->ratio_to_mha);
    }
}

// What full windows and states change, if any row has them.
static void print_fixed(const Report *r) {
    bool any = false;
    for (int i = 0; i < r->n_schemes; i++) any |= fixed(&r->schemes[i]) > 0;
    if (!any) return;
    printf("\n  scheme KV heads %18s %18s\n", "past windows", "fixed");
    for (const Scheme *s = r->schemes; s < r->schemes + r->n_schemes; s++) {
        print_row_name(s);
        printf(" %18s %18s\n", commas(s->plan.growing), commas(fixed(s)));
    }
}

// Explains the columns that need it.
static void print_notes(const Report *r) {
    const heads_kv_plan *plan = &r->own->plan;
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
        printf("MLA: the largest latent rank under 1/8 of MHA is %d, with a rope dim of %d\n"
               "(half of head_dim).\n", r->mla_rank, r->mla_rope);
    if (r->padding)
        printf("padding: %s of this model's %s bytes a token fill each value up to %d numbers.\n",
               commas(r->padding), commas(plan->bytes_per_token),
               r->type.v == HEADS_Q8 || r->type.v == HEADS_Q4 ? 32 : 16);
    printf("weights: %s, beside the cache.\n", size_text(r->weights));
    print_beyond(r);
}

static void print_measurement(const char *what, size_t measured, size_t formula) {
    printf("  %s %s, ", what, size_text(measured));
    if (measured == formula) printf("as the formula says\n");
    else printf("NOT the %s of the formula\n", commas(formula));
}

static void print_measured(const Report *r) {
    const heads_kv_usage *u = &r->usage;
    if (!r->filled) {
        printf("measured: nothing, since this is a shape without weights; by the formula,\n"
               "%s are reserved\n", size_text(r->own->plan.reserved));
        return;
    }
    bool beyond = r->context > r->p.shape.context;
    printf("measured%s:\n", beyond ? " at the context it was made for" : "");
    print_measurement("reserved", u->reserved, r->measured_plan);
    printf("  after %sa run of %d tokens:\n",
           r->p.shape.source_vocab ? "a source as long as " : "", r->filled);
    print_measurement("resident", u->resident, u->expected_resident);
    printf("  a fork of that run: %s of its %s bytes in use are the same memory\n",
           commas(r->fork.shared), commas(r->fork.in_use));
}

void print_report(const Report *r, const Options *o) {
    print_shape(r);
    print_schemes(r);
    print_fixed(r);
    print_notes(r);
    if (r->memory) {
        print_fits_head(r, "scheme KV heads", 15, o);
        for (const Scheme *s = r->schemes; s < r->schemes + r->n_schemes; s++) {
            print_row_name(s);
            print_fits(r, s);
        }
    }
    printf("\n");
    print_measured(r);
}

// The model's name for a table: the end of its path, where all of it is too long.
static void print_name(const Report *r, int width) {
    int n = (int)strlen(r->p.path), cut = n > width ? n - width + 2 : 0;
    printf("%s%-*s", cut ? ".." : "", cut ? width - 2 : width, r->p.path + cut);
}

static void print_models(const Report *reports, int n) {
    printf("%-24s %6s %7s %8s %8s %12s %8s\n", "model", "layers", "q heads", "KV heads",
           "head_dim", "bytes/token", "of MHA");
    for (const Report *r = reports; r < reports + n; r++) {
        LayerFacts a = r->first;
        print_name(r, 24);
        printf(" %6d %7d %8d %8d %12s %8.4f\n", r->p.shape.n_layers, a.n_heads, a.n_kv_heads,
               a.head_dim, commas(r->own->plan.bytes_per_token), r->own->ratio_to_mha);
    }
    printf("\n%-24s %12s %17s %15s %7s\n", "model", "fixed", "reserved bytes", "resident bytes",
           "after");
    for (const Report *r = reports; r < reports + n; r++) {
        const heads_kv_plan *plan = &r->own->plan;
        print_name(r, 24);
        printf(" %12s %17s %15s %7s\n", commas(fixed(r->own)),
               commas(r->filled ? r->usage.reserved : plan->reserved),
               r->filled ? commas(r->usage.resident) : "-",
               r->filled ? commas((size_t)r->filled) : "-");
    }
}

void print_reports(const Report *reports, int n, const Options *o) {
    enum { WIDTH = 15 };
    print_models(reports, n);
    if (reports[0].memory) {
        print_fits_head(reports, "model", WIDTH, o);
        for (const Report *r = reports; r < reports + n; r++) {
            printf("  ");
            print_name(r, WIDTH);
            print_fits(r, r->own);
        }
    }
    printf("\nkeys %s, values %s; reserved is for the context, resident was measured after\n"
           "so many tokens, which a shape without weights cannot run\n",
           type_name(reports[0].type.k), type_name(reports[0].type.v));
    for (const Report *r = reports; r < reports + n; r++) print_beyond(r);
}

// ---- as JSON ----

static void print_scheme_json(const Report *r, const Scheme *s) {
    const heads_kv_plan *plan = &s->plan;
    printf("{\"scheme\": \"%s\", \"n_kv_heads\": ", s->name);
    printf(s->n_kv_heads ? "%d" : "null", s->n_kv_heads);
    printf(", \"bytes_per_token\": %zu, \"growing_per_token\": %zu, \"window_bytes\": %zu, "
           "\"bytes_at_2048\": %zu, \"bytes_at_context\": %zu, \"ratio_to_mha\": %.9g, "
           "\"own\": %s,\n   \"tokens_that_fit\": {", plan->bytes_per_token, plan->growing,
           plan->windows, s->bytes_at_2048, s->bytes_at_context, s->ratio_to_mha,
           s->own ? "true" : "false");
    for (int i = 0; i < r->n_types; i++)
        printf("%s\"%s\": %zu", i ? ", " : "", types_name(r->types[i]), s->fits[i]);
    printf("},\n   \"curve\": [");
    for (long n = 1; n < r->context; n *= 2)
        printf("[%ld, %zu], ", n, scheme_bytes_at(r, s, (int)n, r->type));
    printf("[%d, %zu]]}", r->context, s->bytes_at_context);
}

static void print_report_json(const Report *r) {
    printf("{");
    print_json_string("model", r->p.path, strlen(r->p.path));
    printf(", \"shape\": %s, \"context\": %d, \"model_context\": %d, \"memory_bytes\": %zu, "
           "\"weight_bytes\": %zu,\n \"rows\": [", r->filled ? "false" : "true", r->context,
           r->p.shape.context, r->memory, r->weights);
    for (int i = 0; i < r->n_schemes; i++) {
        printf(i ? ",\n  " : "\n  ");
        print_scheme_json(r, &r->schemes[i]);
    }
    if (r->p.shape.source_vocab)
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
