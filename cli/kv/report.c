// The cost of a model's KV cache: as it is, as MHA, with fewer KV heads, and as MLA. The figures
// are the allocation's own plan, and a real sequence is measured beside it.
#include "cli/kv/report.h"

#include <stdlib.h>

#include "cli/input.h"
#include "cli/print.h"

enum { MEASURED_TOKENS = 256 };

// Finds the layers with attention, and whether they are alike.
static void find_attention(Report *r) {
    for (int i = r->p.facts.n_encoder; i < r->p.shape.n_layers; i++) {
        LayerFacts l = inspect_layer(r->p.model, i);
        if (!l.attends) continue;
        if (!r->n_attention++) r->first = l, r->first_layer = i;
        r->alike = (r->n_attention == 1 || r->alike) && l.n_heads == r->first.n_heads &&
                   l.n_kv_heads == r->first.n_kv_heads;
    }
}

// ---- schemes ----

// Bytes of 32 cached numbers: q8 and q4 have one f16 scale for 32.
static size_t bytes_of_32(heads_type type) {
    return type == HEADS_F32 ? 128 : type == HEADS_F16 ? 64 : type == HEADS_Q8 ? 34 : 18;
}

size_t scheme_bytes_at(const Report *r, const Scheme *scheme, int n, KvTypes types) {
    if (!scheme->mla_numbers)
        return inspect_kv_bytes(r->p.model, scheme->n_kv_heads, n, 0, types.k, types.v);
    size_t bytes = scheme->mla_numbers * bytes_of_32(types.k) / 32;
    return bytes * (size_t)n + (n ? scheme->plan.state : 0);
}

// The largest number of tokens whose cache fits in the memory: a search, since the rings of windows
// stop growing.
static size_t tokens_that_fit(const Report *r, const Scheme *scheme, KvTypes types) {
    int fits = 0, too_many = MOST_TOKENS;
    while (too_many - fits > 1) {
        int n = fits + (too_many - fits) / 2;
        if (scheme_bytes_at(r, scheme, n, types) <= r->memory) fits = n;
        else too_many = n;
    }
    return (size_t)fits;
}

// Adds a scheme whose plan is known.
static void add_scheme(Report *r, Scheme scheme, size_t mha_bytes) {
    scheme.bytes_at_2048 = scheme_bytes_at(r, &scheme, 2048, r->type);
    scheme.bytes_at_context = scheme_bytes_at(r, &scheme, r->context, r->type);
    scheme.ratio_to_mha = mha_bytes ? (double)scheme.plan.bytes_per_token / (double)mha_bytes : 1.0;
    for (int i = 0; i < r->n_types; i++)
        scheme.fits[i] = tokens_that_fit(r, &scheme, r->types[i]);
    r->schemes[r->n_schemes] = scheme;
    if (scheme.own) r->own = &r->schemes[r->n_schemes];
    r->n_schemes++;
}

static heads_kv_plan plan_of(const Report *r, int n_kv_heads) {
    return inspect_kv_plan(r->p.model, n_kv_heads, r->context, r->type.k, r->type.v);
}

static void add_heads(Report *r, const char *name, int n_kv_heads, size_t mha_bytes, bool own) {
    Scheme scheme = {.name = name, .n_kv_heads = n_kv_heads, .own = own};
    scheme.plan = plan_of(r, n_kv_heads);
    add_scheme(r, scheme, mha_bytes);
}

// MLA caches one latent of rank r and one rope key of d_R numbers for all heads: layers (r + d_R)
// bytes an element (DeepSeek-V2, arXiv 2405.04434). d_R is taken as half of head_dim, DeepSeek's
// own proportion. An element has the keys' type. r is the largest rank whose cache stays under an
// eighth of MHA's. Every position is kept: a window does not help.
static void add_mla(Report *r, size_t mha_bytes) {
    size_t layers = (size_t)r->n_attention, element = bytes_of_32(r->type.k);
    size_t elements = (mha_bytes * 4 - 1) / (layers * element);  // the most under mha_bytes / 8
    size_t rope = (size_t)r->first.head_dim / 2;
    if (elements <= rope) return;
    r->mla_rank = (int)(elements - rope);
    r->mla_rope = (int)rope;
    Scheme scheme = {.name = "MLA", .mla_numbers = layers * elements};
    scheme.plan.bytes_per_token = scheme.plan.growing = scheme.mla_numbers * element / 32;
    scheme.plan.state = plan_of(r, 0).state;
    add_scheme(r, scheme, mha_bytes);
}

// MHA, each GQA divisor from large to small, MQA, and MLA: the model's own or add_mla's. If layers
// differ in their heads, only the model itself is listed. For a model with MLA, every other scheme
// has its heads expanded.
static void add_schemes(Report *r) {
    int n_heads = r->alike ? r->first.n_heads : 0, n_divisors = 0;
    for (int n = 1; n <= n_heads; n++) n_divisors += n_heads % n == 0;
    r->schemes = allocate((size_t)n_divisors + 2, sizeof *r->schemes);
    if (n_heads == 0) {
        add_heads(r, "own", 0, plan_of(r, 0).bytes_per_token, true);
        return;
    }
    bool latent = r->first.latent_rank;
    size_t mha_bytes = plan_of(r, n_heads).bytes_per_token;
    for (int n = n_heads; n >= 1; n--)
        if (n_heads % n == 0)
            add_heads(r, inspect_attention(n_heads, n), n, mha_bytes,
                      n == r->first.n_kv_heads && !latent);
    if (latent) add_heads(r, "MLA", 0, mha_bytes, true);
    else add_mla(r, mha_bytes);
}

// ---- the report ----

// Measures a new cache whose first positions are filled with one token over and over, since the
// cost does not depend on the text; then a fork of it, which shares its pages.
static void measure(Report *r) {
    static const int tokens[MEASURED_TOKENS];
    heads_error err;
    const Options *given = r->p.o;
    Options as_made = *given;
    if (as_made.workspace.context > r->p.shape.context) as_made.workspace.context = 0;
    r->p.o = &as_made;
    open_workspace(&r->p, 0);
    heads_sequence *s = open_sequence(r->p.w, true);
    int context = heads_workspace_context(r->p.w);
    r->measured_plan = inspect_kv_plan(r->p.model, 0, context, r->type.k, r->type.v).reserved;
    r->filled = context < MEASURED_TOKENS ? context : MEASURED_TOKENS;
    heads_run source = {.sequence = s, .tokens = tokens, .n = r->filled};
    if (r->p.shape.source_vocab && heads_read_sources(r->p.w, &source, 1, &err))
        die("%s", err.text);
    if (!heads_forward(s, tokens, r->filled, 0, &err)) die("%s", err.text);
    r->usage = heads_sequence_kv_usage(s);
    heads_sequence *fork = heads_sequence_fork(s, r->filled, &err);
    if (!fork) die("%s", err.text);
    r->fork = heads_sequence_kv_usage(fork);
    heads_sequence_free(fork);
    heads_sequence_free(s);
    heads_workspace_free(r->p.w);
    r->p.w = NULL;
    r->p.o = given;
}

// The types of Scheme.fits: keys and values of one type, then the user's choice if it is another.
static void choose_types(Report *r) {
    static const heads_type types[] = {HEADS_F32, HEADS_F16, HEADS_Q8, HEADS_Q4};
    for (int i = 0; i < 4; i++) r->types[r->n_types++] = (KvTypes){types[i], types[i]};
    if (r->type.k != r->type.v) r->types[r->n_types++] = r->type;
}

void make_report(Report *r, const char *path, size_t memory, const Options *o) {
    open_program(&r->p, o, path, NO_TOKENIZER);
    if (r->p.shape.encoder && o->n_models > 1)
        usage("%s is an encoder: it has no KV cache to compare", path);
    if (r->p.shape.encoder) return;
    r->context = wanted_context(&r->p);
    r->type = (KvTypes){o->workspace.k_type, o->workspace.v_type};
    r->memory = memory;
    for (int i = 0; i < r->p.facts.n_tensors; i++)
        r->weights += inspect_tensor(r->p.model, i).bytes;
    choose_types(r);
    find_attention(r);
    if (!r->p.facts.shape) measure(r);
    r->padding = inspect_kv_padding(r->p.model, r->type.v);
    add_schemes(r);
}

void free_report(Report *r) {
    free(r->schemes);
    close_program(&r->p);
}
