// A checkpoint's knobs and tensors -> Model, and every refusal. docs/format.md says what a knob
// means; here are its range, its default, and what a layer must have for it to mean anything.
#include "model.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRE_ATTN = 1, POST_ATTN = 2, PRE_FFN = 4, POST_FFN = 8, ALL_NORMS = 15 };  // layer.norms

typedef struct {  // a layer, and what only the loader asks of it
    Layer l;
    int norms;                            // the bits above
    int renorm;                           // as l has it
    int act, gated;                       // of ffn and experts
    int n_taps;                           // of whichever convolution there is
    int beside, norm_first;               // of Mamba-2
    float delta_eps;                      // of the delta rule's norm; -1: as the others'
} Draft;

typedef struct {
    Reader r;
    Error *err;
    Model *m;
    bool has_logits;  // its hidden states become logits
    Draft *drafts;    // [n_layers]
    float latent_eps;
} Loader;

// ---- the model's knobs ----

typedef struct {
    char text[80];
} Name;

static Name rope_key(int set, const char *what) {
    Name name;
    snprintf(name.text, sizeof name.text, "model.rope.%d.%s", set, what);
    return name;
}

// The table for long texts, if the set has one.
static int get_long_rope(Reader *r, int set, RopeSet *rope) {
    int n = rope->n_pairs;
    if (read_floats(r, rope_key(set, "long_freq").text, n, n, &rope->long_freq, &n)) return -1;
    if (!rope->long_freq) return 0;
    return need_int(r, rope_key(set, "length").text, 1, MAX_CONTEXT, &rope->length) ||
           read_float(r, rope_key(set, "long_multiplier").text, -FLT_MAX, 1.0f,
                      &rope->long_multiplier);
}

static int get_rope_sets(Loader *x) {
    Reader *r = &x->r;
    int *n = &x->m->n_rope_sets;
    for (; *n < MAX_ROPE_SETS; ++*n) {
        RopeSet *rope = &x->m->rope[*n];
        if (read_floats(r, rope_key(*n, "inv_freq").text, 1, MAX_DIM, &rope->inv_freq,
                        &rope->n_pairs))
            return -1;
        if (!rope->inv_freq) return 0;
        if (read_float(r, rope_key(*n, "multiplier").text, -FLT_MAX, 1.0f, &rope->multiplier) ||
            get_long_rope(r, *n, rope))
            return -1;
    }
    return 0;
}

// What a masked language model has before its output, and what becomes of a text's hidden states.
static int get_head_knobs(Loader *x) {
    Model *m = x->m;
    Reader *r = &x->r;
    Pooling *p = &m->pooling;
    int head, unit = 0;
    p->most_tokens = m->context;
    if (read_int(r, "model.d_embed", 1, MAX_DIM, m->n_embd, &m->d_embed) ||
        read_int(r, "model.head", 0, 1, 1, &head) ||
        read_int(r, "model.pooling", 0, N_POOLINGS - 1, 0, &p->pooling) ||
        (p->pooling && (read_int(r, "model.pooling_unit", 0, 1, 0, &unit) ||
                        read_int(r, "model.pooling_tokens", 1, m->context, m->context,
                                 &p->most_tokens))))
        return -1;
    x->has_logits = head;
    p->unit = unit;
    return 0;
}

// Rows of tokens that must not occur.
static int get_banned(Loader *x, Rules *rules) {
    size_t n;
    Ints ids;
    if (!read_meta(&x->r, "model.banned.begin")) return 0;
    if (read_lists(&x->r, "model.banned.begin", 1, MAX_DIM, &rules->n_banned, &rules->banned_begin,
                   &n) ||
        read_ints(&x->r, "model.banned", n, 0, x->m->vocab_size - 1, &ids))
        return -1;
    rules->banned = ids.v;
    for (int i = 0; i < rules->n_banned; i++)
        if (rules->banned_begin[i] == rules->banned_begin[i + 1])
            return fail(x->err, "metadata model.banned.begin: row %d is empty", i);
    return 0;
}

static int get_rules(Loader *x) {
    Rules *rules = &x->m->rules;
    Reader *r = &x->r;
    int greedy, last = x->m->vocab_size - 1;
    *rules = (Rules){.room = x->m->context + 1, .last = -1};
    if (!x->m->source.n) return 0;
    if (read_ints(r, "model.start", SIZE_MAX, 0, last, &rules->start) ||
        read_int(r, "model.last", 0, last, -1, &rules->last) ||
        read_int(r, "model.least", 1, MAX_CONTEXT, 0, &rules->least) ||
        read_int(r, "model.most", 2, MAX_CONTEXT, 0, &rules->most) ||
        read_int(r, "model.no_repeat", 1, MAX_CONTEXT, 0, &rules->no_repeat) ||
        read_int(r, "model.greedy", 0, 1, 0, &greedy) ||
        read_ints(r, "model.eos", SIZE_MAX, 0, last, &rules->eos) ||
        read_ints(r, "model.languages", SIZE_MAX, 0, last, &rules->languages) ||
        get_banned(x, rules))
        return -1;
    rules->greedy = greedy;
    if (rules->start.n < 1 || rules->start.n > (size_t)x->m->context)
        return fail(x->err, "metadata model.start: a model with model.source_layers needs a token "
                    "that its texts begin with");
    return 0;
}

static int get_model_knobs(Loader *x) {
    Model *m = x->m;
    Reader *r = &x->r;
    int layernorm, n_source;
    if (need_int(r, "model.vocab_size", 1, MAX_DIM, &m->vocab_size) ||
        need_int(r, "model.n_embd", 1, MAX_DIM, &m->n_embd) ||
        need_int(r, "model.n_layers", 1, MAX_LAYERS, &m->n_layers) ||
        need_int(r, "model.context", 1, MAX_CONTEXT, &m->context) ||
        need_int(r, "model.norm", 0, 1, &layernorm) ||
        need_float(r, "model.norm_eps", 0.0f, &m->norm_eps) ||
        read_int(r, "model.source_layers", 1, m->n_layers - 1, 0, &n_source))
        return -1;
    m->source = (Stack){.n = n_source, .vocab_size = m->vocab_size};
    m->text = (Stack){n_source, m->n_layers - n_source, .vocab_size = m->vocab_size};
    m->layernorm = layernorm;
    int *width = &m->layer_embed.width;  // of "ple", per-layer embeddings
    if (read_float(r, "model.emb_scale", -FLT_MAX, 1.0f, &m->emb_scale) ||
        read_float(r, "model.final_softcap", 0.0f, 0.0f, &m->final_softcap) ||
        read_int(r, "model.ple", 0, MAX_DIM / m->n_layers, 0, width) ||
        get_head_knobs(x) ||
        read_floats(r, "model.q_temp", 1, MAX_DIM, &m->q_temp, &m->n_q_temp) ||
        (m->q_temp && need_int(r, "model.q_temp_length", 1, MAX_CONTEXT, &m->q_temp_length)))
        return -1;
    return get_rope_sets(x) || get_rules(x);
}

// ---- the layers' knobs ----

// What a layer must have for a knob to mean anything.
typedef enum {
    ANYTHING, ATTENTION, PLAIN_ATTENTION, LATENT, CONVOLUTION, DELTA_RULE, MAMBA, EXPERTS, RENORM,
    SPARSEMIXER, N_OWNERS
} Owner;

static const char *const OWNERS[N_OWNERS] = {
    "anything", "attention", "attention without a latent", "latent attention", "a convolution",
    "a gated delta rule", "Mamba-2", "experts", "experts whose weights are divided by their sum",
    "a sparsemixer",
};

static bool has(const Draft *d, Owner owner) {
    bool attention = d->l.mixer == MIXER_ATTENTION, experts = d->l.experts.n > 0;
    switch (owner) {
    case ATTENTION: return attention;
    case PLAIN_ATTENTION: return attention && !d->l.attention.latent.rank;
    case LATENT: return attention && d->l.attention.latent.rank;
    case CONVOLUTION:
        return d->l.mixer == MIXER_SHORTCONV || has(d, DELTA_RULE) || has(d, MAMBA);
    case DELTA_RULE: return d->l.mixer == MIXER_DELTANET;
    case MAMBA: return d->l.mixer == MIXER_MAMBA2 || (attention && d->beside);
    case EXPERTS: return experts;
    case RENORM: return experts && d->renorm;
    case SPARSEMIXER: return experts && d->l.experts.route == ROUTE_SPARSEMIXER;
    default: return true;
    }
}

// usual: the value where the file does not say. A knob that must be there is there for all layers,
// whatever they have. Numbers are doubles, which hold every int and every float.
typedef struct {
    const char *key;
    size_t field;
    uint32_t type;
    double least, most, usual;
    Owner owner;
} Knob;

#define MUST NAN
#define INT(key, member, least, most, usual, owner) \
    {key, offsetof(Draft, member), META_I32, least, most, usual, owner}
#define FLOAT(key, member, least, usual, owner) \
    {key, offsetof(Draft, member), META_F32, least, FLT_MAX, usual, owner}

static const Knob KNOBS[] = {
    INT("layer.topology", l.topology, 0, N_TOPOLOGIES - 1, MUST, ANYTHING),
    INT("layer.norms", norms, 0, ALL_NORMS, -1, ANYTHING),
    INT("layer.mixer", l.mixer, 0, N_MIXERS - 1, MIXER_ATTENTION, ANYTHING),
    INT("layer.beside", beside, 0, 1, 0, ATTENTION),
    INT("layer.d_ff", l.ffn.d_ff, 0, MAX_DIM, MUST, ANYTHING),
    INT("layer.ffn", gated, 0, 1, MUST, ANYTHING),
    INT("layer.act", act, 0, N_ACTS - 1, MUST, ANYTHING),

    INT("layer.n_heads", l.attention.n_heads, 1, MAX_HEADS, MUST, ATTENTION),
    INT("layer.n_kv_heads", l.attention.n_kv_heads, 1, MAX_HEADS, MUST, ATTENTION),
    INT("layer.head_dim", l.attention.head_dim, 1, MAX_DIM, MUST, ATTENTION),
    INT("layer.rope", l.attention.rope, -1, MAX_ROPE_SETS - 1, MUST, ATTENTION),
    INT("layer.window", l.attention.window, 0, MAX_CONTEXT, MUST, ATTENTION),
    INT("layer.mask", l.attention.mask, 0, MASK_ALL, MASK_CAUSAL, ATTENTION),
    INT("layer.qk_norm", l.attention.qk_norm, 0, N_QK_NORMS - 1, QK_PER_HEAD, PLAIN_ATTENTION),
    INT("layer.kv_source", l.attention.kv_source, -1, MAX_LAYERS - 1, -1, PLAIN_ATTENTION),
    INT("layer.latent", l.attention.latent.rank, 0, MAX_DIM, 0, ATTENTION),
    INT("layer.n_nope", l.attention.latent.n_nope, 0, MAX_DIM, 0, LATENT),
    INT("layer.n_value", l.attention.latent.n_value, 0, MAX_DIM, 0, LATENT),

    INT("layer.taps", n_taps, 0, MAX_TAPS, 0, CONVOLUTION),
    INT("layer.delta_k_heads", l.deltanet.n_k_heads, 0, MAX_HEADS, 0, DELTA_RULE),
    INT("layer.delta_v_heads", l.deltanet.n_v_heads, 0, MAX_HEADS, 0, DELTA_RULE),
    INT("layer.delta_k_dim", l.deltanet.k_dim, 0, MAX_DIM, 0, DELTA_RULE),
    INT("layer.delta_v_dim", l.deltanet.v_dim, 0, MAX_DIM, 0, DELTA_RULE),
    FLOAT("layer.delta_beta", l.deltanet.beta_scale, 0.0f, 1.0f, DELTA_RULE),
    FLOAT("layer.delta_eps", delta_eps, 0.0f, -1.0f, DELTA_RULE),
    INT("layer.ssm_heads", l.mamba2.n_heads, 0, MAX_HEADS, 0, MAMBA),
    INT("layer.ssm_head_dim", l.mamba2.head_dim, 0, MAX_DIM, 0, MAMBA),
    INT("layer.ssm_groups", l.mamba2.n_groups, 0, MAX_HEADS, 0, MAMBA),
    INT("layer.ssm_state", l.mamba2.d_state, 0, MAX_DIM, 0, MAMBA),
    INT("layer.ssm_norm_first", norm_first, 0, 1, 0, MAMBA),
    FLOAT("layer.ssm_least_step", l.mamba2.least_step, 0.0f, 0.0f, MAMBA),
    FLOAT("layer.ssm_most_step", l.mamba2.most_step, 0.0f, FLT_MAX, MAMBA),

    INT("layer.experts", l.experts.n, 0, MAX_EXPERTS, 0, ANYTHING),
    INT("layer.top_k", l.experts.top_k, 0, MAX_TOP_K, 0, EXPERTS),
    INT("layer.d_expert", l.experts.d_expert, 0, MAX_DIM, 0, EXPERTS),
    INT("layer.score", l.experts.route, 0, N_ROUTES - 1, ROUTE_SOFTMAX, EXPERTS),
    INT("layer.groups", l.experts.n_groups, 0, MAX_GROUPS, 0, EXPERTS),
    INT("layer.top_groups", l.experts.top_groups, 0, MAX_GROUPS, 0, EXPERTS),
    INT("layer.group_score", l.experts.group_score, 0, GROUP_TOP2, GROUP_MAX, EXPERTS),
    INT("layer.renorm", renorm, 0, 1, 0, EXPERTS),

    FLOAT("layer.residual_scale", l.residual_scale, -FLT_MAX, 1.0f, ANYTHING),
    FLOAT("layer.attn_scale", l.attention.scale, -FLT_MAX, MUST, ATTENTION),
    FLOAT("layer.softcap", l.attention.softcap, 0.0f, 0.0f, ATTENTION),
    FLOAT("layer.clip", l.attention.clip, 0.0f, 0.0f, PLAIN_ATTENTION),
    FLOAT("layer.renorm_eps", l.experts.renorm_eps, 0.0f, 0.0f, RENORM),
    FLOAT("layer.jitter", l.experts.jitter, 0.0f, 0.0f, SPARSEMIXER),
    FLOAT("layer.routed_scale", l.experts.scale, -FLT_MAX, 1.0f, EXPERTS),
};

enum { N_KNOBS = sizeof KNOBS / sizeof *KNOBS };

static int refuse_value(Loader *x, const Knob *k, int i, double value) {
    if (k->type == META_I32)
        return fail(x->err, "metadata %s of layer %d is %.0f, expected %.0f..%.0f", k->key, i,
                    value, k->least, k->most);
    if (!isfinite(value))
        return fail(x->err, "metadata %s of layer %d is not a finite number", k->key, i);
    return fail(x->err, "metadata %s of layer %d is %g, expected %g or more", k->key, i, value,
                k->least);
}

// One knob, of all layers.
static int get_knob(Loader *x, const Knob *k) {
    bool absent = !isnan(k->usual) && !read_meta(&x->r, k->key);
    const Meta *meta = absent ? NULL
                              : need_meta(&x->r, k->key, k->type, (size_t)x->m->n_layers);
    if (!absent && !meta) return -1;
    for (int i = 0; i < x->m->n_layers; i++) {
        void *field = (char *)&x->drafts[i] + k->field;
        int at = meta && meta->count > 1 ? i : 0;
        double value = k->usual;
        if (meta && k->type == META_I32) value = ((const int32_t *)meta->values)[at];
        else if (meta) value = (double)((const float *)meta->values)[at];
        if (meta && !(value >= k->least && value <= k->most)) return refuse_value(x, k, i, value);
        if (k->type == META_I32) *(int *)field = (int)value;
        else *(float *)field = (float)value;
    }
    return 0;
}

static double value_of(const Draft *d, const Knob *k) {
    const void *field = (const char *)d + k->field;
    return k->type == META_I32 ? *(const int *)field : (double)*(const float *)field;
}

// A knob of one value counts for the layers that have what it belongs to, and some layer must. In
// a list, a layer that lacks it must have the value that absence means.
static int check_owner(Loader *x, const Knob *k) {
    const Meta *meta = checkpoint_meta(&x->m->file, k->key);
    if (!meta || isnan(k->usual)) return 0;
    bool owned = false;
    for (int i = 0; i < x->m->n_layers; i++) {
        bool owns = has(&x->drafts[i], k->owner);
        owned |= owns;
        if (meta->count > 1 && !owns && value_of(&x->drafts[i], k) != k->usual)
            return fail(x->err, "metadata %s of layer %d needs %s, which that layer does not have",
                        k->key, i, OWNERS[k->owner]);
    }
    if (owned || value_of(&x->drafts[0], k) == k->usual) return 0;
    return fail(x->err, "metadata %s needs %s, which no layer has", k->key, OWNERS[k->owner]);
}

// A knob of the model that counts for layers.
static int check_model_owner(Loader *x, const char *key, Owner owner) {
    for (int i = 0; i < x->m->n_layers; i++)
        if (has(&x->drafts[i], owner)) return 0;
    if (!read_meta(&x->r, key)) return 0;
    return fail(x->err, "metadata %s needs %s, which no layer has", key, OWNERS[owner]);
}

// ---- what the knobs must be together ----

// Rows or columns of a tensor that a product of knobs says; each of the two is MAX_DIM at most.
static int check_width(Loader *x, int layer, const char *what, int a, int b) {
    if ((size_t)a * (size_t)b <= MAX_DIM) return 0;
    return fail(x->err, "layer %d: %s is %d times %d, which exceeds %d", layer, what, a, b,
                MAX_DIM);
}

static int check_latent(Loader *x, int i, const Attention *a) {
    const Latent *latent = &a->latent;
    if (a->n_kv_heads != 1 || latent->rank > a->head_dim)
        return fail(x->err, "layer %d: layer.latent %d needs one KV head at least as long, not %d "
                    "of %d", i, latent->rank, a->n_kv_heads, a->head_dim);
    if (a->n_heads > MAX_LATENT_HEADS || latent->n_nope < 1 || latent->n_value < 1)
        return fail(x->err, "layer %d: layer.latent needs 1..%d heads, and n_nope and n_value of 1 "
                    "or more, not %d, %d and %d", i, MAX_LATENT_HEADS, a->n_heads, latent->n_nope,
                    latent->n_value);
    int query = latent->n_nope + a->head_dim - latent->rank;  // of two below MAX_DIM
    return check_width(x, i, "n_heads times n_nope and the rope part", a->n_heads, query) ||
           check_width(x, i, "n_heads times n_value", a->n_heads, latent->n_value);
}

static int check_attention(Loader *x, int i) {
    const Layer *l = &x->drafts[i].l;
    const Attention *a = &l->attention;
    int rotated = a->head_dim - a->latent.rank;
    if (a->n_heads % a->n_kv_heads)
        return fail(x->err, "layer %d: n_heads %d is no multiple of n_kv_heads %d", i, a->n_heads,
                    a->n_kv_heads);
    if (check_width(x, i, "n_heads times head_dim", a->n_heads, a->head_dim)) return -1;
    if (a->rope >= x->m->n_rope_sets)
        return fail(x->err, "metadata layer.rope of layer %d is %d, expected -1..%d", i, a->rope,
                    x->m->n_rope_sets - 1);
    if (a->latent.rank && check_latent(x, i, a)) return -1;
    if (l->mixer == MIXER_ATTENTION && a->rope >= 0 && 2 * x->m->rope[a->rope].n_pairs > rotated)
        return fail(x->err, "layer %d: rope set %d rotates %d elements, head_dim is %d%s", i,
                    a->rope, 2 * x->m->rope[a->rope].n_pairs, rotated,
                    a->latent.rank ? " without the latent" : "");
    return 0;
}

// A layer may read what one before it, of the same shape, has put into the cache. Marks that one.
static int check_kv_source(Loader *x, int i) {
    const Attention *a = &x->drafts[i].l.attention;
    if (a->kv_source < 0) return 0;
    Layer *source = a->kv_source < i ? &x->drafts[a->kv_source].l : NULL;
    Attention *b = source ? &source->attention : NULL;
    if (!b || source->mixer != MIXER_ATTENTION || b->kv_source >= 0 || b->latent.rank ||
        b->n_kv_heads != a->n_kv_heads || b->head_dim != a->head_dim)
        return fail(x->err, "layer %d: kv_source is %d, expected an earlier layer with KV heads of "
                    "its own of the same shape", i, a->kv_source);
    b->kv_read = true;
    return 0;
}

static int check_deltanet(Loader *x, int i, DeltaNet *d) {
    if (d->n_k_heads < 1 || d->n_v_heads % d->n_k_heads || d->n_v_heads < 1 || d->k_dim < 1 ||
        d->v_dim < 1)
        return fail(x->err, "layer %d: the delta rule has %d key heads of %d and %d value heads of "
                    "%d, expected a multiple of them", i, d->n_k_heads, d->k_dim, d->n_v_heads,
                    d->v_dim);
    size_t keys = (size_t)d->n_k_heads * (size_t)d->k_dim;
    size_t values = (size_t)d->n_v_heads * (size_t)d->v_dim;
    if (2 * keys + values > MAX_DIM || values * (size_t)d->k_dim > (size_t)MAX_DIM * LANES)
        return fail(x->err, "layer %d: heads of the delta rule exceed %d numbers, or their state "
                    "%d", i, MAX_DIM, MAX_DIM * LANES);
    d->conv.n_channels = (int)(2 * keys + values);
    return 0;
}

static int check_mamba2(Loader *x, int i, Mamba2 *m) {
    if (m->n_groups < 1 || m->n_heads < 1 || m->n_heads % m->n_groups || m->head_dim < 1 ||
        m->d_state < 1 || m->least_step > m->most_step)
        return fail(x->err, "layer %d: Mamba-2 (layer.mixer 3, or layer.beside) has %d heads of %d "
                    "in %d groups, a state of %d and steps from %g to %g, expected whole groups, "
                    "none of them 0, and a range", i, m->n_heads, m->head_dim, m->n_groups,
                    m->d_state, (double)m->least_step, (double)m->most_step);
    size_t width = (size_t)m->n_heads * (size_t)m->head_dim;
    size_t shared = 2 * (size_t)m->n_groups * (size_t)m->d_state;
    if (width + shared > MAX_DIM || width * (size_t)m->d_state > (size_t)MAX_DIM * LANES)
        return fail(x->err, "layer %d: heads of Mamba-2 exceed %d numbers, or their state %d", i,
                    MAX_DIM, MAX_DIM * LANES);
    m->conv.n_channels = (int)(width + shared);
    return 0;
}

static int check_shortconv(Loader *x, int i, ShortConv *s) {
    s->conv.n_channels = x->m->n_embd;
    return check_width(x, i, "the input of a short convolution", 3, x->m->n_embd);
}

// Gives the layer's convolution its size.
static int check_convolution(Loader *x, int i) {
    Draft *d = &x->drafts[i];
    Layer *l = &d->l;
    if (!has(d, CONVOLUTION)) return 0;
    bool delta = has(d, DELTA_RULE), mamba = has(d, MAMBA);
    Conv *conv = delta ? &l->deltanet.conv : mamba ? &l->mamba2.conv : &l->shortconv.conv;
    if (delta   ? check_deltanet(x, i, &l->deltanet)
        : mamba ? check_mamba2(x, i, &l->mamba2)
                : check_shortconv(x, i, &l->shortconv))
        return -1;
    conv->n_taps = d->n_taps;
    if (conv->n_taps < 1)
        return fail(x->err, "layer %d: taps is %d, its mixer has a convolution", i, conv->n_taps);
    return check_width(x, i, "taps times channels", conv->n_taps, conv->n_channels);
}

static int check_groups(Loader *x, int i, Experts *e) {
    if (e->n_groups < 2) e->n_groups = 1;
    if (e->n_groups < 2 && !e->top_groups) e->top_groups = 1;
    if (e->n % e->n_groups || e->top_groups < 1 || e->top_groups > e->n_groups ||
        e->n / e->n_groups * e->top_groups < e->top_k)
        return fail(x->err, "layer %d: layer.top_groups: %d experts in %d groups, of which %d are "
                    "kept, leave no %d to choose", i, e->n, e->n_groups, e->top_groups, e->top_k);
    if (e->group_score == GROUP_TOP2 && e->n < 2 * e->n_groups)
        return fail(x->err, "layer %d: layer.group_score 1 needs two experts in a group", i);
    if (e->route == ROUTE_SPARSEMIXER && e->n_groups > 1)
        return fail(x->err, "layer %d: layer.score 2 (sparsemixer) knows no layer.groups", i);
    return 0;
}

static int check_ffn(Loader *x, int i) {
    const Draft *d = &x->drafts[i];
    const Layer *l = &d->l;
    const Experts *e = &l->experts;
    Activation act = l->ffn.act;
    if (!has_ffn(l) && (l->mixer == MIXER_NONE || d->norms & (PRE_FFN | POST_FFN)))
        return fail(x->err, "layer %d: d_ff is 0, and there are no experts, but layer.norms is %d "
                    "and layer.mixer %d", i, d->norms, l->mixer);
    if (e->n && (e->top_k < 1 || e->top_k > e->n || e->d_expert < 1))
        return fail(x->err, "layer %d: %d of %d experts of width %d, expected 1 or more of each, "
                    "and no more than there are", i, e->top_k, e->n, e->d_expert);
    if (e->n && check_groups(x, i, &x->drafts[i].l.experts)) return -1;
    if (act.kind == ACT_XIELU && act.gated)
        return fail(x->err, "layer %d: activation %d takes no gate", i, act.kind);
    if (act.kind == ACT_CLAMPED_SWIGLU && !act.gated)
        return fail(x->err, "layer %d: activation %d needs a gate", i, act.kind);
    if (x->m->layer_embed.width && act.kind >= N_PLAIN_ACTS)
        return fail(x->err, "layer %d: model.ple has no activation %d, expected 0..%d", i, act.kind,
                    N_PLAIN_ACTS - 1);
    return 0;
}

// A mixer beside another, or none, makes sense where branches follow one another; the other ways
// to join branches with both branches, and with some of the norms only.
static int check_topology(Loader *x, int i) {
    const Draft *d = &x->drafts[i];
    const Layer *l = &d->l;
    int both = d->norms & (PRE_ATTN | PRE_FFN);
    if (l->mixer == MIXER_NONE && d->norms & (PRE_ATTN | POST_ATTN))
        return fail(x->err, "layer %d: layer.mixer %d has no norms, but layer.norms is %d", i,
                    l->mixer, d->norms);
    if (l->topology == SEQUENTIAL) return 0;
    if (l->mixer == MIXER_NONE || l->mamba2_beside || !has_ffn(l))
        return fail(x->err, "layer %d: layer.topology %d needs one mixer and a feed-forward "
                    "network", i, l->topology);
    if (l->topology == PARALLEL && !both)
        return fail(x->err, "layer %d: layer.topology 1 needs attn_norm or ffn_norm, but "
                    "layer.norms is %d", i, d->norms);
    if (l->topology != PARALLEL && both != (PRE_ATTN | PRE_FFN))
        return fail(x->err, "layer %d: layer.topology %d needs attn_norm and ffn_norm, but "
                    "layer.norms is %d", i, l->topology, d->norms);
    return 0;
}

static bool sees_all(const Draft *d) {
    return has(d, ATTENTION) && d->l.attention.mask == MASK_ALL;
}

// Where tokens see those after them, layers take turns with one place for keys and values.
static int check_encoder(Loader *x) {
    Model *m = x->m;
    for (int i = 0; i < m->n_layers && !m->source.n; i++) m->encoder |= sees_all(&x->drafts[i]);
    for (int i = 0; i < (m->encoder ? m->n_layers : m->source.n); i++)
        if (!has(&x->drafts[i], ATTENTION) || has(&x->drafts[i], MAMBA) ||
            x->drafts[i].l.attention.kv_source >= 0)
            return fail(x->err, "layer %d: layer.mask 1 needs attention with keys and values of "
                        "its own, and nothing beside it, in every layer", i);
    for (int i = 0; m->source.n && i < m->n_layers; i++) {
        const Draft *d = &x->drafts[i];
        if (sees_all(d) != (i < m->source.n))
            return fail(x->err, "layer %d: layer.mask is %d, but model.source_layers is %d", i,
                        d->l.attention.mask, m->source.n);
        if (i >= m->source.n && (!has(d, PLAIN_ATTENTION) ||
            (d->l.topology != SEQUENTIAL && d->l.topology != POST_NORM)))
            return fail(x->err, "layer %d: model.source_layers needs attention without a latent, "
                        "and layer.topology 0 or 2", i);
    }
    if (m->source.n && (m->layer_embed.width || m->d_embed != m->n_embd || !x->has_logits))
        return fail(x->err, "model.source_layers knows no model.ple, d_embed and head");
    return 0;
}

// Attention to the source: the layer's own, but for what belongs to positions.
static Attention cross_of(const Attention *a) {
    return (Attention){.n_heads = a->n_heads, .n_kv_heads = a->n_kv_heads,
                       .head_dim = a->head_dim, .rope = -1, .mask = MASK_SOURCE,
                       .scale = a->scale, .softcap = a->softcap, .kv_source = -1};
}

static int check_mixers(Loader *x) {
    for (int i = 0; i < x->m->n_layers; i++)
        if (x->drafts[i].l.mixer != MIXER_NONE) return 0;
    return fail(x->err, "layer.mixer is %d, none, in every layer: nothing looks at other tokens",
                MIXER_NONE);
}

// What the layer's parts are made of; parts that it does not have are zero.
static void settle_layer(Draft *d) {
    Layer *l = &d->l;
    l->experts.renorm = d->renorm;
    l->ffn.act = l->experts.act = (Activation){.kind = (Act)d->act, .gated = d->gated};
    if (d->norms < 0) d->norms = l->topology == PARALLEL ? PRE_ATTN : PRE_ATTN | PRE_FFN;
    if (!has(d, LATENT)) l->attention.latent = (Latent){0};
    if (!has(d, PLAIN_ATTENTION)) l->attention.kv_source = -1;
    if (!has(d, DELTA_RULE)) l->deltanet = (DeltaNet){0};
    if (!has(d, MAMBA)) l->mamba2 = (Mamba2){0};
    l->mamba2_beside = has(d, MAMBA) && l->mixer == MIXER_ATTENTION;
    l->mamba2.norm_first = has(d, MAMBA) && d->norm_first;
    if (!has(d, EXPERTS)) l->experts = (Experts){0};
}

static int get_layer_knobs(Loader *x) {
    Model *m = x->m;
    x->drafts = calloc((size_t)m->n_layers, sizeof *x->drafts);
    m->layers = calloc((size_t)m->n_layers, sizeof *m->layers);
    if (!x->drafts || !m->layers) return fail(x->err, "no memory for %d layers", m->n_layers);
    for (int k = 0; k < N_KNOBS; k++)
        if (get_knob(x, &KNOBS[k])) return -1;
    for (int k = 0; k < N_KNOBS; k++)
        if (check_owner(x, &KNOBS[k])) return -1;
    if (check_model_owner(x, "model.q_temp", ATTENTION) ||
        check_model_owner(x, "model.latent_eps", LATENT) ||
        read_float(&x->r, "model.latent_eps", 0.0f, m->norm_eps, &x->latent_eps))
        return -1;
    for (int i = 0; i < m->n_layers; i++) {
        settle_layer(&x->drafts[i]);
        if (check_attention(x, i) || check_kv_source(x, i) || check_convolution(x, i) ||
            check_ffn(x, i) || check_topology(x, i))
            return -1;
    }
    if (check_encoder(x) || check_mixers(x)) return -1;
    for (int i = 0; i < m->n_layers; i++) m->layers[i] = x->drafts[i].l;
    for (int i = m->text.first; m->source.n && i < m->n_layers; i++)
        m->layers[i].cross = cross_of(&m->layers[i].attention);
    return 0;
}

// ---- tensors ----

// A tensor's name: that of the layer, or of the model where layer is -1.
static Name name_of(int layer, const char *stem, const char *suffix) {
    Name name;
    if (layer < 0) snprintf(name.text, sizeof name.text, "%s%s", stem, suffix);
    else snprintf(name.text, sizeof name.text, "layers.%d.%s%s", layer, stem, suffix);
    return name;
}

static int missing(Loader *x, Name name) { return fail(x->err, "tensor %s is missing", name.text); }

// An f32 vector of n; *out stays NULL if the file has none.
static int get_vector(Loader *x, const float **out, Name name, size_t n) {
    const Tensor *t = read_tensor(&x->r, name.text);
    if (!t) return 0;
    *out = (const float *)t->data;
    if (t->dtype == F32 && t->rows == 1 && t->cols == n && t->bytes == sizeof(float) * n) return 0;
    return fail(x->err, "tensor %s: it is %s (%zu, %zu) of %zu bytes, expected f32 (1, %zu)",
                name.text, dtype_name(t->dtype), t->rows, t->cols, t->bytes, n);
}

static int need_vector(Loader *x, const float **out, int layer, const char *stem, size_t n) {
    Name name = name_of(layer, stem, "");
    if (get_vector(x, out, name, n)) return -1;
    return *out ? 0 : missing(x, name);
}

static int optional_vector(Loader *x, const float **out, int layer, const char *stem, size_t n) {
    return get_vector(x, out, name_of(layer, stem, ""), n);
}

static int get_norm(Loader *x, Norm *out, int layer, const char *stem, int n, bool layernorm) {
    Name w = name_of(layer, stem, ""), b = name_of(layer, stem, ".bias");
    if (get_vector(x, &out->w, w, (size_t)n) || get_vector(x, &out->b, b, (size_t)n)) return -1;
    out->eps = x->m->norm_eps;
    out->layernorm = layernorm;
    if (out->b && !layernorm) return fail(x->err, "tensor %s: an RMSNorm has no bias", b.text);
    return out->b && !out->w ? missing(x, w) : 0;
}

static int optional_norm(Loader *x, Norm *out, int layer, const char *stem, int n) {
    return get_norm(x, out, layer, stem, n, x->m->layernorm);
}

static int need_norm(Loader *x, Norm *out, int layer, const char *stem, int n) {
    if (optional_norm(x, out, layer, stem, n)) return -1;
    return out->w ? 0 : missing(x, name_of(layer, stem, ""));
}

// A norm that is RMS whatever model.norm says of the others.
static int need_rms_norm(Loader *x, Norm *out, int layer, const char *stem, int n) {
    if (get_norm(x, out, layer, stem, n, false)) return -1;
    return out->w ? 0 : missing(x, name_of(layer, stem, ""));
}

static size_t matrix_bytes(Dtype dtype, size_t n_out, int n_in) {
    return round_up(n_out, LANES) / LANES * panel_bytes(dtype, n_in);
}

// n matrices, each but the last padded to whole panels.
static int need_stack(Loader *x, Matrix *out, int layer, const char *stem, int n, int n_out,
                      int n_in) {
    Name name = name_of(layer, stem, "");
    const Tensor *t = read_tensor(&x->r, name.text);
    if (!t) return missing(x, name);
    size_t rows = (size_t)(n - 1) * round_up((size_t)n_out, LANES) + (size_t)n_out;
    if (rows > MAX_DIM)
        return fail(x->err, "tensor %s: %d matrices of %d rows exceed %d", name.text, n, n_out,
                    MAX_DIM);
    size_t bytes = matrix_bytes(t->dtype, rows, n_in);
    if (t->rows != rows || t->cols != (size_t)n_in || t->bytes != bytes)
        return fail(x->err, "tensor %s: it is (%zu, %zu) of %zu bytes, expected (%zu, %d) of %zu",
                    name.text, t->rows, t->cols, t->bytes, rows, n_in, bytes);
    *out = (Matrix){t->data, t->dtype, n_out, n_in, NULL};
    return get_vector(x, &out->bias, name_of(layer, stem, ".bias"), rows);
}

static int need_matrix(Loader *x, Matrix *out, int layer, const char *stem, int n_out, int n_in) {
    return need_stack(x, out, layer, stem, 1, n_out, n_in);
}

static int optional_matrix(Loader *x, Matrix *out, int layer, const char *stem, int n_out,
                           int n_in) {
    if (!read_tensor(&x->r, name_of(layer, stem, "").text)) return 0;
    return need_matrix(x, out, layer, stem, n_out, n_in);
}

// A matrix whose rows are looked up, and which can have no bias.
static int need_table(Loader *x, Matrix *out, const char *name, int n_out, int n_in) {
    if (need_matrix(x, out, -1, name, n_out, n_in)) return -1;
    return out->bias ? fail(x->err, "tensor %s.bias: a table that is looked up has none", name) : 0;
}

// ---- the tensors of a layer ----

// The norms of the residual stream that layer.norms names.
static int get_layer_norms(Loader *x, int i, Layer *l) {
    const struct {
        int bit;
        const char *name;
        Norm *norm;
    } norms[] = {
        {PRE_ATTN, "attn_norm", &l->attn_norm},
        {POST_ATTN, "attn_post_norm", &l->attn_post_norm},
        {PRE_FFN, "ffn_norm", &l->ffn_norm},
        {POST_FFN, "ffn_post_norm", &l->ffn_post_norm},
    };
    for (size_t k = 0; k < sizeof norms / sizeof *norms; k++)
        if (x->drafts[i].norms & norms[k].bit &&
            need_norm(x, norms[k].norm, i, norms[k].name, x->m->n_embd))
            return -1;
    return 0;
}

static int get_own_keys(Loader *x, int i, Attention *a, bool all_heads) {
    int kv = a->n_kv_heads * a->head_dim, d = x->m->n_embd;
    return need_matrix(x, &a->k, i, "attn_k", kv, d) || need_matrix(x, &a->v, i, "attn_v", kv, d) ||
           optional_norm(x, &a->k_norm, i, "attn_k_norm", all_heads ? kv : a->head_dim) ||
           optional_norm(x, &a->v_norm, i, "attn_v_norm", a->head_dim);
}

static int get_plain_attention(Loader *x, int i, Attention *a) {
    int q = a->n_heads * a->head_dim, d = x->m->n_embd;
    bool all_heads = a->qk_norm == QK_WHOLE || a->qk_norm == QK_DISTINCT;
    const Tensor *gate = checkpoint_tensor(&x->m->file, name_of(i, "attn_gate", "").text);
    int gates = gate && gate->rows == (size_t)a->n_heads ? a->n_heads : q;
    if (a->kv_source < 0 && get_own_keys(x, i, a, all_heads)) return -1;
    return need_matrix(x, &a->q, i, "attn_q", q, d) || need_matrix(x, &a->o, i, "attn_o", d, q) ||
           optional_norm(x, &a->q_norm, i, "attn_q_norm", all_heads ? q : a->head_dim) ||
           optional_norm(x, &a->sub_norm, i, "attn_sub_norm", q) ||
           optional_matrix(x, &a->out_gate, i, "attn_gate", gates, d);
}

static int get_latent_attention(Loader *x, int i, Attention *a) {
    Latent *latent = &a->latent;
    int d = x->m->n_embd, heads = a->n_heads, rank = latent->rank, query_rank = d;
    const Tensor *down = read_tensor(&x->r, name_of(i, "attn_q_down", "").text);
    if (down) {
        query_rank = (int)down->rows;
        if (need_matrix(x, &latent->q_down, i, "attn_q_down", query_rank, d) ||
            need_rms_norm(x, &latent->q_down_norm, i, "attn_q_down_norm", query_rank))
            return -1;
    }
    int q = heads * (latent->n_nope + a->head_dim - rank), n_value = latent->n_value;
    if (need_rms_norm(x, &latent->norm, i, "attn_latent_norm", rank)) return -1;
    latent->norm.eps = latent->q_down_norm.eps = x->latent_eps;
    return need_matrix(x, &a->q, i, "attn_q", q, query_rank) ||
           need_matrix(x, &a->k, i, "attn_k", a->head_dim, d) ||
           need_stack(x, &latent->k_up, i, "attn_k_up", heads, rank, latent->n_nope) ||
           need_stack(x, &latent->v_up, i, "attn_v_up", heads, n_value, rank) ||
           need_matrix(x, &a->o, i, "attn_o", d, heads * n_value);
}

// Biases of scores by distance: a row of an odd number of them for each head.
static int get_relative(Loader *x, int i, Attention *a) {
    Name name = name_of(i, "attn_relative", "");
    const Tensor *t = checkpoint_tensor(&x->m->file, name.text);
    if (!t) return 0;
    size_t heads = (size_t)a->n_heads, row = t->cols / heads;
    if (t->cols % heads || row % 2 == 0)
        return fail(x->err, "tensor %s: it has %zu numbers, expected an odd number for each of %d "
                    "heads", name.text, t->cols, a->n_heads);
    a->reach = (int)(row / 2);
    return get_vector(x, &a->relative, name, t->cols);
}

static int get_attention(Loader *x, int i, Attention *a) {
    return optional_vector(x, &a->sinks, i, "attn_sinks", (size_t)a->n_heads) ||
           optional_vector(x, &a->slopes, i, "attn_slopes", (size_t)a->n_heads) ||
           get_relative(x, i, a) ||
           (a->latent.rank ? get_latent_attention(x, i, a) : get_plain_attention(x, i, a));
}

static int get_cross(Loader *x, int i, Layer *l) {
    Attention *a = &l->cross;
    int q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim, d = x->m->n_embd;
    if (!a->n_heads) return 0;
    return need_norm(x, &l->cross_norm, i, "cross_norm", d) ||
           need_matrix(x, &a->q, i, "cross_q", q, d) ||
           need_matrix(x, &a->k, i, "cross_k", kv, d) ||
           need_matrix(x, &a->v, i, "cross_v", kv, d) ||
           need_matrix(x, &a->o, i, "cross_o", d, q);
}

static int get_conv(Loader *x, int i, Conv *conv) {
    size_t n = (size_t)conv->n_taps * (size_t)conv->n_channels;
    return need_vector(x, &conv->taps, i, "conv", n) ||
           optional_vector(x, &conv->bias, i, "conv.bias", (size_t)conv->n_channels);
}

static int get_shortconv(Loader *x, int i, ShortConv *s) {
    int d = x->m->n_embd;
    return need_matrix(x, &s->in, i, "mix_in", 3 * d, d) || get_conv(x, i, &s->conv) ||
           need_matrix(x, &s->out, i, "mix_out", d, d);
}

static int get_deltanet(Loader *x, int i, DeltaNet *n) {
    int d = x->m->n_embd, heads = n->n_v_heads, width = heads * n->v_dim;
    float eps = x->drafts[i].delta_eps;
    if (need_rms_norm(x, &n->norm, i, "delta_norm", n->v_dim)) return -1;
    if (eps >= 0.0f) n->norm.eps = eps;
    return need_matrix(x, &n->in, i, "mix_in", n->conv.n_channels, d) || get_conv(x, i, &n->conv) ||
           need_matrix(x, &n->out, i, "mix_out", d, width) ||
           need_matrix(x, &n->gate, i, "delta_gate", width, d) ||
           need_matrix(x, &n->beta, i, "delta_beta", heads, d) ||
           need_matrix(x, &n->decay, i, "delta_decay", heads, d) ||
           need_vector(x, &n->rate, i, "delta_rate", (size_t)heads);
}

static int get_mamba2(Loader *x, int i, Mamba2 *m) {
    int d = x->m->n_embd, heads = m->n_heads, width = heads * m->head_dim;
    return need_matrix(x, &m->in, i, "mix_in", m->conv.n_channels, d) || get_conv(x, i, &m->conv) ||
           need_matrix(x, &m->out, i, "mix_out", d, width) ||
           need_matrix(x, &m->gate, i, "ssm_gate", width, d) ||
           need_matrix(x, &m->step, i, "ssm_step", heads, d) ||
           need_vector(x, &m->rate, i, "ssm_rate", (size_t)heads) ||
           need_vector(x, &m->skip, i, "ssm_skip", (size_t)heads) ||
           get_norm(x, &m->norm, i, "ssm_norm", width, false);
}

static int get_mixer(Loader *x, int i, Layer *l) {
    switch (l->mixer) {
    case MIXER_SHORTCONV: return get_shortconv(x, i, &l->shortconv);
    case MIXER_DELTANET: return get_deltanet(x, i, &l->deltanet);
    case MIXER_MAMBA2: return get_mamba2(x, i, &l->mamba2);
    case MIXER_NONE: return 0;
    default:
        return get_attention(x, i, &l->attention) ||
               (l->mamba2_beside && get_mamba2(x, i, &l->mamba2));
    }
}

// The parameters that xIELU and the clamped SwiGLU have, of which the latter leaves two zero.
static int get_act_params(Loader *x, int i, Layer *l) {
    const float **params = &l->ffn.act.params;
    if (l->ffn.act.kind < N_PLAIN_ACTS) return 0;
    if (need_vector(x, params, i, "ffn_act", 4)) return -1;
    if (!x->m->file.shape && l->ffn.act.kind == ACT_CLAMPED_SWIGLU &&
        ((*params)[2] != 0.0f || (*params)[3] != 0.0f))
        return fail(x->err, "tensor layers.%d.ffn_act: the last two of activation %d are 0", i,
                    l->ffn.act.kind);
    l->experts.act.params = *params;
    return 0;
}

static int get_ffn(Loader *x, int i, Layer *l) {
    Ffn *f = &l->ffn;
    int d = x->m->n_embd;
    if (!f->d_ff) return 0;
    return optional_norm(x, &f->sub_norm, i, "ffn_sub_norm", f->d_ff) ||
           (f->act.gated && need_matrix(x, &f->gate, i, "ffn_gate", f->d_ff, d)) ||
           need_matrix(x, &f->up, i, "ffn_up", f->d_ff, d) ||
           need_matrix(x, &f->down, i, "ffn_down", d, f->d_ff) ||
           (l->experts.n && optional_matrix(x, &f->token_gate, i, "shared_gate", 1, d));
}

static int get_expert_norms(Loader *x, int i, Layer *l) {
    Experts *e = &l->experts;
    int d = x->m->n_embd;
    if (l->topology != SEQUENTIAL || !l->ffn.d_ff) return 0;
    return optional_norm(x, &e->norm, i, "expert_norm", d) ||
           (e->norm.w && (need_norm(x, &e->post_norm, i, "expert_post_norm", d) ||
                          need_norm(x, &e->beside_norm, i, "ffn_beside_norm", d)));
}

static int get_experts(Loader *x, int i, Layer *l) {
    Experts *e = &l->experts;
    int n = e->n, d = x->m->n_embd, width = e->d_expert;
    if (!n) return 0;
    return get_expert_norms(x, i, l) || need_matrix(x, &e->router, i, "router", n, d) ||
           (e->route != ROUTE_SPARSEMIXER &&
            optional_vector(x, &e->selection_bias, i, "selection_bias", (size_t)n)) ||
           (e->act.gated && need_stack(x, &e->gate, i, "expert_gate", n, width, d)) ||
           need_stack(x, &e->up, i, "expert_up", n, width, d) ||
           need_stack(x, &e->down, i, "expert_down", n, d, width);
}

static int get_embed_branch(Loader *x, int i, EmbedBranch *b) {
    int d = x->m->n_embd, width = x->m->layer_embed.width;
    if (!width) return 0;
    return need_matrix(x, &b->gate, i, "ple_gate", width, d) ||
           need_matrix(x, &b->out, i, "ple_out", d, width) ||
           need_norm(x, &b->norm, i, "ple_norm", d);
}

static int get_layer(Loader *x, int i) {
    Layer *l = &x->m->layers[i];
    return get_layer_norms(x, i, l) || get_mixer(x, i, l) || get_cross(x, i, l) ||
           get_act_params(x, i, l) ||
           get_ffn(x, i, l) || get_experts(x, i, l) ||
           get_embed_branch(x, i, &l->embed_branch) ||
           optional_vector(x, &l->out_scale, i, "out_scale", 1);
}

// ---- the tensors of the model ----

// What stands before a stack's layers beside its embedding, and after them: tensors whose names
// begin with `prefix`.
static int get_stack(Loader *x, Stack *s, const char *prefix) {
    Name pos = name_of(-1, prefix, "embed_pos"), embed_norm = name_of(-1, prefix, "embed_norm");
    Name norm = name_of(-1, prefix, "norm");
    int d = x->m->d_embed;
    if (optional_norm(x, &s->embed_norm, -1, embed_norm.text, d) ||
        optional_norm(x, &s->norm, -1, norm.text, x->m->n_embd))
        return -1;
    if (!read_tensor(&x->r, pos.text)) return 0;
    if (need_table(x, &s->embed_pos, pos.text, x->m->context, d)) return -1;
    if (s->embed_pos.dtype == F32) return 0;
    return fail(x->err, "tensor %s is %s, expected f32", pos.text, dtype_name(s->embed_pos.dtype));
}

// The source's embedding is the text's where the file has no other, perhaps of other tokens.
static int get_source(Loader *x) {
    Model *m = x->m;
    Stack *s = &m->source;
    const Tensor *own = checkpoint_tensor(&m->file, "source_embed");
    s->embed = m->text.embed;
    if (!s->n) return 0;
    if (own) s->vocab_size = (int)own->rows;
    if (own && need_table(x, &s->embed, "source_embed", s->vocab_size, m->n_embd)) return -1;
    return get_stack(x, s, "source_");
}

static int get_embeddings(Loader *x) {
    Model *m = x->m;
    LayerEmbed *e = &m->layer_embed;
    int all = m->n_layers * e->width;
    int d = m->d_embed;
    if (need_table(x, &m->text.embed, "embed", m->vocab_size, d) ||
        optional_vector(x, &m->embed_type, -1, "embed_type", (size_t)d) ||
        (d == m->n_embd ? optional_matrix : need_matrix)(x, &m->embed_proj, -1, "embed_proj",
                                                         m->n_embd, d) ||
        get_stack(x, &m->text, "") || get_source(x))
        return -1;
    return e->width && (need_table(x, &e->table, "ple_table", m->vocab_size, all) ||
                        need_matrix(x, &e->in, -1, "ple_in", all, m->n_embd) ||
                        need_norm(x, &e->in_norm, -1, "ple_in_norm", e->width));
}

static int get_head(Loader *x) {
    Model *m = x->m;
    int d = m->d_embed, act = 0;
    m->output = m->text.embed;
    if (optional_matrix(x, &m->head.dense, -1, "head_dense", d, m->n_embd) ||
        (m->head.dense.data && (need_norm(x, &m->head.norm, -1, "head_norm", d) ||
                                need_int(&x->r, "model.head_act", 0, N_PLAIN_ACTS - 1, &act))) ||
        optional_matrix(x, &m->output, -1, "output", m->vocab_size, d) ||
        optional_vector(x, &m->output.bias, -1, "output.bias", (size_t)m->vocab_size))
        return -1;
    m->head.act.kind = (Act)act;
    if (!m->head.dense.data && d != m->n_embd)
        return fail(x->err, "model.d_embed is %d and n_embd %d: logits need head_dense", d,
                    m->n_embd);
    return 0;
}

static int get_tensors(Loader *x) {
    Model *m = x->m;
    if (get_embeddings(x) || (x->has_logits && get_head(x))) return -1;
    for (int i = 0; i < m->n_layers; i++)
        if (get_layer(x, i)) return -1;
    return 0;
}

// ---- the whole ----

// Bytes of one matrix of a stack, its bias included.
static size_t bytes_of_one(const Matrix *w) {
    size_t bias = w->bias ? round_up((size_t)w->n_out, LANES) * sizeof *w->bias : 0;
    return matrix_bytes(w->dtype, (size_t)w->n_out, w->n_in) + bias;
}

// Whether a tensor is only read once for each source: the encoder's, and cross-attention's keys and
// values.
static bool of_source(const Model *m, const Tensor *t) {
    char name[80];
    int layer, at = 0;
    snprintf(name, sizeof name, "%.*s", (int)t->name_len, t->name);
    if (!m->source.n) return false;
    if (strncmp(name, "source_", 7) == 0) return true;
    if (sscanf(name, "layers.%d.%n", &layer, &at) < 1 || !at) return false;
    return layer < m->source.n || strncmp(name + at, "cross_k", 7) == 0 ||
           strncmp(name + at, "cross_v", 7) == 0;
}

static size_t count_weight_bytes(const Model *m) {
    size_t bytes = 0;
    for (int i = 0; i < m->file.n_tensors; i++)
        if (!of_source(m, &m->file.tensors[i])) bytes += m->file.tensors[i].bytes;
    for (int i = m->text.first; i < m->n_layers; i++) {  // experts that a token does not choose
        const Experts *e = &m->layers[i].experts;
        size_t one = bytes_of_one(&e->gate) + bytes_of_one(&e->up) + bytes_of_one(&e->down);
        bytes -= one * (size_t)(e->n - e->top_k);
    }
    if (m->output.data != m->text.embed.data) bytes -= bytes_of_one(&m->text.embed);
    return bytes - bytes_of_one(&m->layer_embed.table) - bytes_of_one(&m->text.embed_pos);
}

int model_parse(Model *model, const uint8_t *bytes, size_t size, Error *err) {
    *model = (Model){0};
    Loader x = {.err = err, .m = model};
    if (checkpoint_parse(&model->file, bytes, size, err)) return -1;
    int status = reader_open(&x.r, &model->file, err) || get_model_knobs(&x) ||
                 get_layer_knobs(&x) || get_tensors(&x) || refuse_unread_meta(&x.r, "model.") ||
                 refuse_unread_meta(&x.r, "layer.") || refuse_unread_tensors(&x.r);
    reader_close(&x.r);
    free(x.drafts);
    if (status) model_close(model);
    else model->weight_bytes = count_weight_bytes(model);
    return status ? -1 : 0;
}

int model_open(Model *model, const char *path, Error *err) {
    Mapping map = {0};
    if (map_file(&map, path, err)) return -1;
    Error why;
    if (model_parse(model, map.data, map.size, &why) == 0) {
        model->mapped = map;
        return 0;
    }
    unmap_file(&map);
    return fail(err, "%s: %s", path, why.text);
}

void model_close(Model *model) {
    checkpoint_free(&model->file);
    unmap_file(&model->mapped);
    free(model->layers);
    *model = (Model){0};
}
