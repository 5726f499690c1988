// A checkpoint's knobs -> the numbers of a Model and its layers. docs/format.md says what each knob
// means; this file has its range, its default, and its owner, which a layer must have.
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "load/loader.h"
#include "system/arena.h"

// ---- the model's knobs ----

static Name rope_key(int set, const char *what) {
    Name name;
    snprintf(name.text, sizeof name.text, "model.rope.%d.%s", set, what);
    return name;
}

// Reads the set's frequencies for long texts, if it has some.
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

// Token sequences that must not occur in a generated text.
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

int load_model_knobs(Loader *x) {
    Model *m = x->m;
    Reader *r = &x->r;
    int layernorm, n_source;
    if (need_int(r, "model.vocab_size", 1, MAX_DIM, &m->vocab_size) ||
        need_int(r, "model.n_embd", 1, MAX_DIM, &m->n_embd) ||
        need_int(r, "model.n_layers", 1, MAX_LAYERS, &m->n_layers) ||
        need_int(r, "model.context", 1, MAX_CONTEXT, &m->context) ||
        need_int(r, "model.norm", 0, 1, &layernorm) ||
        need_float(r, "model.norm_eps", 0.0f, &m->norm_eps) ||
        read_int(r, "model.source_layers", 1, m->n_layers - 1, 0, &n_source) ||
        read_int(r, "model.guess_layers", 1, m->n_layers - 1, 0, &x->n_guess))
        return -1;
    m->source = (Tower){.n = n_source, .vocab_size = m->vocab_size};
    m->text = (Tower){n_source, m->n_layers - n_source - x->n_guess, .vocab_size = m->vocab_size};
    m->layernorm = layernorm;
    int *width = &m->layer_embed.width;  // of per-layer embeddings
    if (read_float(r, "model.emb_scale", -FLT_MAX, 1.0f, &m->emb_scale) ||
        read_float(r, "model.final_softcap", 0.0f, 0.0f, &m->final_softcap) ||
        read_int(r, "model.ple", 0, MAX_DIM / m->n_layers, 0, width) ||
        read_int(r, "model.d_embed", 1, MAX_DIM, m->n_embd, &m->d_embed) ||
        read_int(r, "model.head", 0, 1, 1, &x->has_logits) ||
        read_floats(r, "model.q_temp", 1, MAX_DIM, &m->q_temp, &m->n_q_temp) ||
        (m->q_temp && need_int(r, "model.q_temp_length", 1, MAX_CONTEXT, &m->q_temp_length)) ||
        (m->q_temp && read_int(r, "model.q_temp_ahead", 0, MAX_CONTEXT, 0, &m->q_temp_ahead)))
        return -1;
    if (read_ints(r, "model.distances", SIZE_MAX, 0, MAX_DIM - 1, &m->distances)) return -1;
    if (read_meta(r, "model.distances") && m->distances.n % 2 == 0)
        return fail(x->err, "metadata model.distances: it has %zu numbers, expected an odd number",
                    m->distances.n);
    return get_rope_sets(x) || get_rules(x);
}

// ---- the layers' knobs ----

// What a layer must have so that a knob means anything.
typedef enum {
    ANYTHING, ATTENTION, PLAIN_ATTENTION, LATENT, CONVOLUTION, DELTA_RULE, MAMBA, MAMBA1, MAMBA2,
    EXPERTS, RENORM, SPARSEMIXER, N_OWNERS
} Owner;

static const char *const OWNERS[N_OWNERS] = {
    "anything", "attention", "attention without a latent", "latent attention", "a convolution",
    "a gated delta rule", "Mamba or an RG-LRU", "Mamba-1", "Mamba-2", "experts",
    "experts whose weights are divided by their sum", "a sparsemixer",
};

static bool has(const NewLayer *d, Owner owner) {
    bool attention = d->l.mixer == MIXER_ATTENTION, experts = d->l.experts.n > 0;
    switch (owner) {
    case ATTENTION: return attention;
    case PLAIN_ATTENTION: return attention && !d->l.attention.latent.rank;
    case LATENT: return attention && d->l.attention.latent.rank;
    case CONVOLUTION:
        return d->l.mixer == MIXER_SHORTCONV || has(d, DELTA_RULE) || has(d, MAMBA);
    case DELTA_RULE: return d->l.mixer == MIXER_DELTANET;
    case MAMBA: return has(d, MAMBA1) || has(d, MAMBA2) || d->l.mixer == MIXER_RGLRU;
    case MAMBA1: return d->l.mixer == MIXER_MAMBA1;
    case MAMBA2: return d->l.mixer == MIXER_MAMBA2 || (attention && d->beside);
    case EXPERTS: return experts;
    case RENORM: return experts && d->renorm;
    case SPARSEMIXER: return experts && d->l.experts.route == ROUTE_SPARSEMIXER;
    default: return true;
    }
}

// usual: the value if the file has no such knob; MUST: the file has it, even where no layer has its
// owner. Bounds are doubles, which hold every int and every float.
typedef struct {
    const char *key;
    size_t field;
    uint32_t type;
    double least, most, usual;
    Owner owner;
} Knob;

#define MUST NAN
#define INT(key, member, least, most, usual, owner) \
    {key, offsetof(NewLayer, member), META_I32, least, most, usual, owner}
#define FLOAT(key, member, least, usual, owner) \
    {key, offsetof(NewLayer, member), META_F32, least, FLT_MAX, usual, owner}

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
    INT("layer.chunked", l.attention.chunked, 0, 1, 0, ATTENTION),
    INT("layer.q_temp", l.attention.q_temp, 0, 1, 1, ATTENTION),
    INT("layer.mask", l.attention.mask, 0, MASK_ALL, MASK_CAUSAL, ATTENTION),
    INT("layer.qk_norm", l.attention.qk_norm, 0, N_QK_NORMS - 1, QK_PER_HEAD, PLAIN_ATTENTION),
    INT("layer.kv_source", l.attention.kv_from, -1, MAX_LAYERS - 1, -1, PLAIN_ATTENTION),
    INT("layer.latent", l.attention.latent.rank, 0, MAX_DIM, 0, ATTENTION),
    INT("layer.n_nope", l.attention.latent.n_nope, 0, MAX_DIM, 0, LATENT),
    INT("layer.n_value", l.attention.latent.n_value, 0, MAX_DIM, 0, LATENT),

    INT("layer.taps", n_taps, 0, MAX_TAPS, 0, CONVOLUTION),
    INT("layer.delta_k_heads", l.deltanet.n_k_heads, 0, MAX_HEADS, 0, DELTA_RULE),
    INT("layer.delta_v_heads", l.deltanet.n_v_heads, 0, MAX_HEADS, 0, DELTA_RULE),
    INT("layer.delta_k_dim", l.deltanet.k_dim, 0, MAX_DIM, 0, DELTA_RULE),
    INT("layer.delta_v_dim", l.deltanet.v_dim, 0, MAX_DIM, 0, DELTA_RULE),
    INT("layer.delta_by_channel", by_channel, 0, 1, 0, DELTA_RULE),
    INT("layer.delta_sigmoid", l.deltanet.sigmoid, 0, 1, 0, DELTA_RULE),
    FLOAT("layer.delta_beta", l.deltanet.beta_scale, 0.0f, 1.0f, DELTA_RULE),
    FLOAT("layer.delta_eps", delta_eps, 0.0f, -1.0f, DELTA_RULE),
    INT("layer.ssm_heads", ssm_heads, 0, MAX_HEADS, 0, MAMBA),
    INT("layer.ssm_head_dim", ssm_head_dim, 0, MAX_DIM, 0, MAMBA),
    INT("layer.ssm_groups", ssm_groups, 0, MAX_HEADS, 0, MAMBA),
    INT("layer.ssm_state", ssm_state, 0, MAX_DIM, 0, MAMBA),
    INT("layer.ssm_norm_first", norm_first, 0, 1, 0, MAMBA2),
    FLOAT("layer.ssm_least_step", l.mamba2.least_step, 0.0f, 0.0f, MAMBA2),
    FLOAT("layer.ssm_most_step", l.mamba2.most_step, 0.0f, FLT_MAX, MAMBA2),
    FLOAT("layer.ssm_eps", ssm_eps, 0.0f, -1.0f, MAMBA1),

    INT("layer.experts", l.experts.n, 0, MAX_EXPERTS, 0, ANYTHING),
    INT("layer.top_k", l.experts.top_k, 0, MAX_TOP_K, 0, EXPERTS),
    INT("layer.d_expert", l.experts.d_expert, 0, MAX_DIM, 0, EXPERTS),
    INT("layer.score", l.experts.route, 0, N_ROUTES - 1, ROUTE_SOFTMAX, EXPERTS),
    INT("layer.weigh_input", l.experts.weigh_input, 0, 1, 0, EXPERTS),
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

// Reads a knob for all layers.
static int get_knob(Loader *x, const Knob *k) {
    bool absent = !isnan(k->usual) && !read_meta(&x->r, k->key);
    const Meta *meta = absent ? NULL
                              : need_meta(&x->r, k->key, k->type, (size_t)x->m->n_layers);
    if (!absent && !meta) return -1;
    for (int i = 0; i < x->m->n_layers; i++) {
        void *field = (char *)&x->new_layers[i] + k->field;
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

static double value_of(const NewLayer *d, const Knob *k) {
    const void *field = (const char *)d + k->field;
    return k->type == META_I32 ? *(const int *)field : (double)*(const float *)field;
}

// A single value applies to the layers that have the knob's owner, at least one. In a list, layers
// without the owner have the usual value.
static int check_owner(Loader *x, const Knob *k) {
    const Meta *meta = checkpoint_meta(&x->m->file, k->key);
    if (!meta || isnan(k->usual)) return 0;
    bool owned = false;
    for (int i = 0; i < x->m->n_layers; i++) {
        bool owns = has(&x->new_layers[i], k->owner);
        owned |= owns;
        if (meta->count > 1 && !owns && value_of(&x->new_layers[i], k) != k->usual)
            return fail(x->err, "metadata %s of layer %d needs %s, which that layer does not have",
                        k->key, i, OWNERS[k->owner]);
    }
    if (owned || value_of(&x->new_layers[0], k) == k->usual) return 0;
    return fail(x->err, "metadata %s needs %s, which no layer has", k->key, OWNERS[k->owner]);
}

// The same for a knob of the model that some layers use.
static int check_model_owner(Loader *x, const char *key, Owner owner) {
    for (int i = 0; i < x->m->n_layers; i++)
        if (has(&x->new_layers[i], owner)) return 0;
    if (!read_meta(&x->r, key)) return 0;
    return fail(x->err, "metadata %s needs %s, which no layer has", key, OWNERS[owner]);
}

// ---- checks of several knobs together ----

// Checks a tensor's dimension that is the product of two knobs, each MAX_DIM at most.
static int check_width(Loader *x, int layer, const char *what, int a, int b) {
    if (times((size_t)a, (size_t)b) <= MAX_DIM) return 0;
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
    int query = latent->n_nope + a->head_dim - latent->rank;  // each MAX_DIM at most
    return check_width(x, i, "n_heads times n_nope and the rope part", a->n_heads, query) ||
           check_width(x, i, "n_heads times n_value", a->n_heads, latent->n_value);
}

static int check_attention(Loader *x, int i) {
    const Layer *l = &x->new_layers[i].l;
    const Attention *a = &l->attention;
    int rotated = a->head_dim - a->latent.rank;
    if (a->n_heads % a->n_kv_heads)
        return fail(x->err, "layer %d: n_heads %d is no multiple of n_kv_heads %d", i, a->n_heads,
                    a->n_kv_heads);
    if (check_width(x, i, "n_heads times head_dim", a->n_heads, a->head_dim)) return -1;
    if (a->rope >= x->m->n_rope_sets)
        return fail(x->err, "metadata layer.rope of layer %d is %d, expected -1..%d", i, a->rope,
                    x->m->n_rope_sets - 1);
    if (a->chunked && (!a->window || a->mask != MASK_CAUSAL))
        return fail(x->err, "layer %d: layer.chunked needs a window and layer.mask 0, not %d and "
                    "%d", i, a->window, a->mask);
    if (!a->q_temp && !x->m->q_temp)
        return fail(x->err, "layer %d: layer.q_temp is 0, but there is no model.q_temp", i);
    if (a->latent.rank && check_latent(x, i, a)) return -1;
    if (l->mixer == MIXER_ATTENTION && a->rope >= 0 && 2 * x->m->rope[a->rope].n_pairs > rotated)
        return fail(x->err, "layer %d: rope set %d rotates %d elements, head_dim is %d%s", i,
                    a->rope, 2 * x->m->rope[a->rope].n_pairs, rotated,
                    a->latent.rank ? " without the latent" : "");
    return 0;
}

// A layer may read the cached keys and values of an earlier layer of the same shape, which is then
// marked as shared.
static int check_kv_from(Loader *x, int i) {
    const Attention *a = &x->new_layers[i].l.attention;
    if (a->kv_from < 0) return 0;
    Layer *earlier = a->kv_from < i ? &x->new_layers[a->kv_from].l : NULL;
    Attention *b = earlier ? &earlier->attention : NULL;
    if (!b || earlier->mixer != MIXER_ATTENTION || b->kv_from >= 0 || b->latent.rank ||
        b->n_kv_heads != a->n_kv_heads || b->head_dim != a->head_dim)
        return fail(x->err, "layer %d: kv_source is %d, expected an earlier layer with KV heads of "
                    "its own of the same shape", i, a->kv_from);
    b->kv_shared = true;
    return 0;
}

static int check_deltanet(Loader *x, int i, DeltaNet *d) {
    if (d->n_k_heads < 1 || d->n_v_heads % d->n_k_heads || d->n_v_heads < 1 || d->k_dim < 1 ||
        d->v_dim < 1)
        return fail(x->err, "layer %d: the delta rule has %d key heads of %d and %d value heads of "
                    "%d, expected a multiple of them", i, d->n_k_heads, d->k_dim, d->n_v_heads,
                    d->v_dim);
    size_t keys = times((size_t)d->n_k_heads, (size_t)d->k_dim);
    size_t values = times((size_t)d->n_v_heads, (size_t)d->v_dim);
    if (keys > MAX_DIM || values > MAX_DIM || 2 * keys + values > MAX_DIM ||
        times(values, (size_t)d->k_dim) > (size_t)MAX_DIM * LANES)
        return fail(x->err, "layer %d: heads of the delta rule exceed %d numbers, or their state "
                    "%d", i, MAX_DIM, MAX_DIM * LANES);
    d->conv.n_channels = (int)(2 * keys + values);
    d->n_decays = x->new_layers[i].by_channel ? d->k_dim : 1;
    return check_width(x, i, "decays of the delta rule", d->n_v_heads, d->n_decays);
}

// Mamba-1 has one head of all its channels, of which it convolves x alone, as an RG-LRU does.
static int check_mamba(Loader *x, int i) {
    NewLayer *d = &x->new_layers[i];
    Layer *l = &d->l;
    int heads = d->ssm_heads, dim = d->ssm_head_dim, groups = d->ssm_groups, state = d->ssm_state;
    Mamba2 *m = &l->mamba2;
    if (groups < 1 || heads < 1 || heads % groups || dim < 1 || state < 1 ||
        m->least_step > m->most_step)
        return fail(x->err, "layer %d: Mamba (layer.mixer 3, 5, or layer.beside) has %d heads of "
                    "%d in %d groups, a state of %d, steps from %g to %g, expected whole groups, "
                    "none of them 0, and a range", i, heads, dim, groups, state,
                    (double)m->least_step, (double)m->most_step);
    if (has(d, MAMBA1) && heads > 1)
        return fail(x->err, "layer %d: Mamba-1 (layer.mixer 5) has %d heads, expected 1 of all its "
                    "channels", i, heads);
    size_t width = times((size_t)heads, (size_t)dim);
    size_t shared = times(2 * (size_t)groups, (size_t)state);
    if (plus(width, shared) > MAX_DIM || times(width, (size_t)state) > (size_t)MAX_DIM * LANES)
        return fail(x->err, "layer %d: heads of Mamba exceed %d numbers, or their state %d", i,
                    MAX_DIM, MAX_DIM * LANES);
    if (l->mixer == MIXER_RGLRU && (groups > 1 || state > 1 || l->ffn.act.kind >= N_PLAIN_ACTS))
        return fail(x->err, "layer %d: an RG-LRU (layer.mixer 6) has %d groups, a state of %d and "
                    "activation %d, expected 1, 1 and 0..%d", i, groups, state, l->ffn.act.kind,
                    N_PLAIN_ACTS - 1);
    if (has(d, MAMBA2)) {
        m->n_heads = heads, m->head_dim = dim, m->n_groups = groups, m->d_state = state;
        m->conv.n_channels = (int)(width + shared);
    } else if (has(d, MAMBA1)) {
        l->mamba1 = (Mamba1){.width = (int)width, .d_state = state, .conv.n_channels = (int)width};
    } else {
        l->rglru = (RgLru){.n_heads = heads, .head_dim = dim, .conv.n_channels = (int)width};
    }
    return 0;
}

static int check_shortconv(Loader *x, int i, ShortConv *s) {
    s->conv.n_channels = x->m->n_embd;
    return check_width(x, i, "the input of a short convolution", 3, x->m->n_embd);
}

// Checks the mixer that has a convolution, and sets the convolution's size.
static int check_convolution(Loader *x, int i) {
    NewLayer *d = &x->new_layers[i];
    Layer *l = &d->l;
    if (!has(d, CONVOLUTION)) return 0;
    bool delta = has(d, DELTA_RULE), mamba = has(d, MAMBA);
    Conv *conv = delta             ? &l->deltanet.conv
                 : has(d, MAMBA2)  ? &l->mamba2.conv
                 : has(d, MAMBA1)  ? &l->mamba1.conv
                 : mamba           ? &l->rglru.conv
                                   : &l->shortconv.conv;
    if (delta   ? check_deltanet(x, i, &l->deltanet)
        : mamba ? check_mamba(x, i)
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
    const NewLayer *d = &x->new_layers[i];
    const Layer *l = &d->l;
    const Experts *e = &l->experts;
    Activation act = l->ffn.act;
    if (!has_ffn(l) && (l->mixer == MIXER_NONE || d->norms & (PRE_FFN | POST_FFN)))
        return fail(x->err, "layer %d: d_ff is 0, and there are no experts, but layer.norms is %d "
                    "and layer.mixer %d", i, d->norms, l->mixer);
    if (e->n && (e->top_k < 1 || e->top_k > e->n || e->d_expert < 1))
        return fail(x->err, "layer %d: %d of %d experts of width %d, expected 1 or more of each, "
                    "and no more than there are", i, e->top_k, e->n, e->d_expert);
    if (e->n && check_groups(x, i, &x->new_layers[i].l.experts)) return -1;
    if (act.kind == ACT_XIELU && act.gated)
        return fail(x->err, "layer %d: activation %d takes no gate", i, act.kind);
    if (act.kind == ACT_CLAMPED_SWIGLU && !act.gated)
        return fail(x->err, "layer %d: activation %d needs a gate", i, act.kind);
    if (x->m->layer_embed.width && act.kind >= N_PLAIN_ACTS)
        return fail(x->err, "layer %d: model.ple has no activation %d, expected 0..%d", i, act.kind,
                    N_PLAIN_ACTS - 1);
    return 0;
}

// Nested branches are attention, a feed-forward network and Mamba-2, one in the other.
static int check_nested(Loader *x, int i) {
    const NewLayer *d = &x->new_layers[i];
    if (!has(d, PLAIN_ATTENTION) || !d->l.mamba2_beside || !has_ffn(&d->l) ||
        d->norms != (PRE_ATTN | PRE_FFN | POST_FFN))
        return fail(x->err, "layer %d: layer.topology 4 needs attention without a latent, "
                    "layer.beside 1, a feed-forward network, and layer.norms 13, not %d", i,
                    d->norms);
    if (x->m->d_embed != x->m->n_embd)
        return fail(x->err, "layer %d: layer.topology 4 needs an embedding of n_embd %d numbers, "
                    "but model.d_embed is %d", i, x->m->n_embd, x->m->d_embed);
    return check_width(x, i, "the input of attention", 2, x->m->n_embd);
}

// A sequential layer may have two mixers or none, and any norms. The other topologies need one
// mixer, a feed-forward network, and certain norms.
static int check_topology(Loader *x, int i) {
    const NewLayer *d = &x->new_layers[i];
    const Layer *l = &d->l;
    int both = d->norms & (PRE_ATTN | PRE_FFN);
    if (l->mixer == MIXER_NONE && d->norms & (PRE_ATTN | POST_ATTN))
        return fail(x->err, "layer %d: layer.mixer %d has no norms, but layer.norms is %d", i,
                    l->mixer, d->norms);
    if (l->topology == SEQUENTIAL) return 0;
    if (l->topology == NESTED) return check_nested(x, i);
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

static bool sees_all(const NewLayer *d) {
    return has(d, ATTENTION) && d->l.attention.mask == MASK_ALL;
}

// An encoder's layers use one place in the cache in turn, so each needs keys and values of its own,
// and no state.
static int check_encoder(Loader *x) {
    Model *m = x->m;
    for (int i = 0; i < m->n_layers && !m->source.n; i++) m->encoder |= sees_all(&x->new_layers[i]);
    for (int i = 0; i < (m->encoder ? m->n_layers : m->source.n); i++)
        if (!has(&x->new_layers[i], ATTENTION) || has(&x->new_layers[i], MAMBA) ||
            x->new_layers[i].l.attention.kv_from >= 0)
            return fail(x->err, "layer %d: layer.mask 1 needs attention with keys and values of "
                        "its own, and nothing beside it, in every layer", i);
    for (int i = 0; m->source.n && i < m->n_layers; i++) {
        const NewLayer *d = &x->new_layers[i];
        if (sees_all(d) != (i < m->source.n))
            return fail(x->err, "layer %d: layer.mask is %d, but model.source_layers is %d", i,
                        d->l.attention.mask, m->source.n);
        if (i >= m->source.n && (!has(d, PLAIN_ATTENTION) ||
            (d->l.topology != SEQUENTIAL && d->l.topology != POST_NORM)))
            return fail(x->err, "layer %d: model.source_layers needs attention without a latent, "
                        "and layer.topology 0 or 2", i);
    }
    if (m->source.n && (m->layer_embed.width || m->d_embed != m->n_embd))
        return fail(x->err, "model.source_layers knows no model.ple and d_embed");
    if (m->distances.n && !m->encoder)
        return fail(x->err, "model.distances needs layer.mask 1 in every layer");
    return 0;
}

// Layers that guess go back with the text at any time, so they keep no state.
static int check_guesses(Loader *x) {
    const Model *m = x->m;
    int first = m->n_layers - x->n_guess, n_attend = 0;
    if (!x->n_guess) return 0;
    if (m->encoder || m->source.n || m->layer_embed.width || m->d_embed != m->n_embd ||
        !x->has_logits)
        return fail(x->err, "model.guess_layers is for decoders with logits, without model.ple and "
                    "model.d_embed");
    for (int i = first; i < m->n_layers; i++) {
        const NewLayer *d = &x->new_layers[i];
        bool attends = has(d, ATTENTION) && !has(d, MAMBA) && d->l.attention.kv_from < 0;
        n_attend += attends;
        if ((!attends && d->l.mixer != MIXER_NONE) || d->l.topology == NESTED)
            return fail(x->err, "layer %d: model.guess_layers needs layers with attention of their "
                        "own, and nothing beside it, or without a mixer", i);
    }
    return n_attend ? 0 : fail(x->err, "model.guess_layers: none of them has attention");
}

// Cross-attention has the layer's own numbers, except for those that depend on positions.
static Attention cross_of(const Attention *a) {
    return (Attention){.n_heads = a->n_heads, .n_kv_heads = a->n_kv_heads,
                       .head_dim = a->head_dim, .rope = -1, .mask = MASK_SOURCE,
                       .scale = a->scale, .softcap = a->softcap, .kv_from = -1,
                       .q_temp = a->q_temp};
}

static int check_mixers(Loader *x) {
    for (int i = 0; i < x->m->n_layers - x->n_guess; i++)
        if (x->new_layers[i].l.mixer != MIXER_NONE) return 0;
    return fail(x->err, "layer.mixer is %d, none, in every layer: nothing looks at other tokens",
                MIXER_NONE);
}

// Moves the draft's knobs into the layer, and zeroes the structs of what the layer lacks.
static void settle_layer(NewLayer *d) {
    Layer *l = &d->l;
    l->experts.renorm = d->renorm;
    l->ffn.act = l->experts.act = (Activation){.kind = (Act)d->act, .gated = d->gated};
    if (d->norms < 0) d->norms = l->topology == PARALLEL ? PRE_ATTN : PRE_ATTN | PRE_FFN;
    if (!has(d, LATENT)) l->attention.latent = (Latent){0};
    if (!has(d, PLAIN_ATTENTION)) l->attention.kv_from = -1;
    if (!has(d, DELTA_RULE)) l->deltanet = (DeltaNet){0};
    if (!has(d, MAMBA2)) l->mamba2 = (Mamba2){0};
    l->mamba2_beside = has(d, MAMBA2) && l->mixer == MIXER_ATTENTION;
    l->mamba2.norm_first = has(d, MAMBA2) && d->norm_first;
    if (!has(d, EXPERTS)) l->experts = (Experts){0};
}

int load_layer_knobs(Loader *x) {
    Model *m = x->m;
    x->new_layers = calloc((size_t)m->n_layers, sizeof *x->new_layers);
    m->layers = calloc((size_t)m->n_layers, sizeof *m->layers);
    if (!x->new_layers || !m->layers) return fail(x->err, "no memory for %d layers", m->n_layers);
    for (int k = 0; k < N_KNOBS; k++)
        if (get_knob(x, &KNOBS[k])) return -1;
    for (int k = 0; k < N_KNOBS; k++)
        if (check_owner(x, &KNOBS[k])) return -1;
    if (check_model_owner(x, "model.q_temp", ATTENTION) ||
        check_model_owner(x, "model.latent_eps", LATENT) ||
        read_float(&x->r, "model.latent_eps", 0.0f, m->norm_eps, &x->latent_eps))
        return -1;
    for (int i = 0; i < m->n_layers; i++) {
        settle_layer(&x->new_layers[i]);
        if (check_attention(x, i) || check_kv_from(x, i) || check_convolution(x, i) ||
            check_ffn(x, i) || check_topology(x, i))
            return -1;
    }
    if (check_encoder(x) || check_mixers(x) || check_guesses(x)) return -1;
    for (int i = 0; i < m->n_layers; i++) m->layers[i] = x->new_layers[i].l;
    for (int i = m->text.first; m->source.n && i < m->n_layers; i++)
        m->layers[i].cross = cross_of(&m->layers[i].attention);
    return 0;
}
