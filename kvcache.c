// The KV cache: its layout, its cost in bytes, and how keys and values are stored in it.
//
// A layer's cache is an array of slots of 16 positions. A slot holds, for each KV head in turn, its
// keys as a panel (the layout of a weight matrix whose rows are positions, so that scores are an
// ordinary product) and then its values as 16 rows. Latent attention caches no values: they are the
// first numbers of the keys. Positions fill slots in order, so a layer's memory in use is its
// beginning; a layer with a sliding window reuses its slots as a ring. A mixer without keys has a
// state of fixed size instead; where both stand side by side, the state comes first.
#include <stdlib.h>

#include "sequence/cost.h"

// ---- geometry ----

// Width of a cached value, padded for the mix.
static int padded_value(int dim, Dtype v_dtype) {
    return (int)round_up((size_t)dim, dtypes[v_dtype].scaled ? BLOCK : LANES);
}

// The geometry of an attention layer's cache, without its offset. With n_kv_heads 0 it is the
// model's own; else it has that many KV heads, and latent attention is expanded to them. An
// encoder's keys and values live for one pass, and are not rounded.
static KvLayer attention_layer(const Attention *a, int n_kv_heads, int context, Dtype k_dtype,
                              Dtype v_dtype) {
    KvLayer kv = {.n_heads = n_kv_heads ? n_kv_heads : a->n_kv_heads,
                  .borrowed = a->kv_from >= 0, .n_slots = (context + LANES - 1) / LANES,
                  .passing = a->mask == MASK_ALL, .of_source = a->mask == MASK_SOURCE};
    int k_dim = a->head_dim, v_dim = a->head_dim;
    kv.k_dtype = kv.passing ? F32 : k_dtype;
    kv.v_dtype = kv.passing ? F32 : v_dtype;
    if (a->latent.rank && n_kv_heads) {
        k_dim += a->latent.n_nope - a->latent.rank;
        v_dim = a->latent.n_value;
    }
    if (a->window && a->mask == MASK_CAUSAL && !a->kv_shared) {
        int ring = (a->window + LANES - 1) / LANES + RING_SPARE / LANES + 1;
        kv.ring_slots = ring, kv.ring = ring < kv.n_slots;
        if (kv.ring) kv.n_slots = ring;
    }
    kv.k_bytes = panel_bytes(kv.k_dtype, k_dim);
    if (a->latent.rank && !n_kv_heads) {
        // values are the first numbers of the keys: whole blocks, if these are turned
        int rank = a->latent.rank;
        kv.v_dim = dtypes[kv.k_dtype].turned ? padded_value(rank, kv.k_dtype) : rank;
    } else {
        kv.v_dim = padded_value(v_dim, kv.v_dtype);
        kv.v_scales = value_bytes(kv.v_dtype, kv.v_dim);
        kv.v_bytes = values_bytes(kv.v_dtype, kv.v_dim);
    }
    kv.slot_bytes = times((size_t)kv.n_heads, kv.k_bytes + kv.v_bytes);
    return kv;
}

int n_kv_layers(const Model *m) { return m->n_layers + (m->source.n ? m->text.n : 0); }

KvLayer kv_layer(const Model *m, int i, int n_kv_heads, int context, Dtype k_dtype,
                 Dtype v_dtype) {
    bool cross = i >= m->n_layers;
    const Layer *l = &m->layers[cross ? i - m->text.n : i];
    if (cross) return attention_layer(&l->cross, n_kv_heads, context, k_dtype, v_dtype);
    KvLayer kv = {0};
    if (l->mixer == MIXER_ATTENTION)
        kv = attention_layer(&l->attention, n_kv_heads, context, k_dtype, v_dtype);
    kv.state = l->state_bytes;
    return kv;
}

// Bytes of a layer.
static size_t layer_bytes(const KvLayer *kv) {
    return plus(times(kv->slot_bytes, (size_t)kv->n_slots), kv->state);
}

size_t kv_layer_bytes_at(const KvLayer *kv, int n) {
    size_t held = (size_t)kv->n_slots * LANES;
    return times(kv->slot_bytes / LANES, held < (size_t)n ? held : (size_t)n) + (n ? kv->state : 0);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t whole_pages(size_t bytes) {
    size_t pages = plus(bytes, page_size() - 1) / page_size();
    return bytes == SIZE_MAX ? SIZE_MAX : pages * page_size();
}

// Each layer begins on a page of its own, so that a saved one can be mapped in any context. An
// encoder's layers, one of which runs at a time, share one place behind the rest.
KvPlan kv_plan(const Model *m, int n_kv_heads, int context, Dtype k_dtype, Dtype v_dtype) {
    KvPlan plan = {0};
    size_t passing = 0, per_pass_token = 0;
    for (int i = 0; i < n_kv_layers(m); i++) {
        KvLayer kv = kv_layer(m, i, n_kv_heads, context, k_dtype, v_dtype);
        size_t per_token = kv.slot_bytes / LANES;
        if (kv.borrowed) continue;
        if (kv.passing) {
            passing = larger(passing, layer_bytes(&kv));
            per_pass_token = larger(per_pass_token, per_token);
            continue;
        }
        plan.reserved = plus(plan.reserved, whole_pages(layer_bytes(&kv)));
        if (kv.of_source) {
            plan.bytes_per_source_token = plus(plan.bytes_per_source_token, per_token);
            continue;
        }
        plan.bytes_per_token = plus(plan.bytes_per_token, per_token);
        if (kv.ring) plan.windows = plus(plan.windows, layer_bytes(&kv) - kv.state);
        else plan.growing = plus(plan.growing, per_token);
        plan.state += kv.state;
    }
    if (m->encoder) plan.bytes_per_token = plan.growing = per_pass_token;
    plan.reserved = plus(plan.reserved, whole_pages(passing));
    return plan;
}

int check_kv_types(const WorkspaceOptions *o, Error *err) {
    const Dtype types[] = {o->k_type, o->v_type};
    for (int i = 0; i < 2; i++)
        if ((unsigned)types[i] >= N_DTYPES || !dtypes[types[i]].pack_key)
            return fail(err, "%s: type %d, expected HEADS_F16, HEADS_F32, HEADS_Q8 or HEADS_Q4",
                        i ? "cached values" : "cached keys", (int)types[i]);
    return 0;
}

int kv_layout_new(KvLayout *layout, const Model *m, const WorkspaceOptions *o, Error *err) {
    size_t offset = 0;
    *layout = (KvLayout){.context = o->context, .k_dtype = o->k_type, .v_dtype = o->v_type,
                         .n_layers = n_kv_layers(m)};
    layout->bytes = kv_plan(m, 0, o->context, o->k_type, o->v_type).reserved;
    layout->layers = calloc((size_t)layout->n_layers, sizeof *layout->layers);
    if (layout->bytes == SIZE_MAX || !layout->layers)
        return fail(err, "a KV cache of %d positions is more than memory can hold", o->context);
    for (int i = 0; i < layout->n_layers; i++) {
        KvLayer *kv = &layout->layers[i];
        *kv = kv_layer(m, i, 0, o->context, o->k_type, o->v_type);
        kv->offset = offset;
        if (kv->borrowed) {
            *kv = layout->layers[m->layers[i].attention.kv_from];
            kv->borrowed = true;
        } else if (!kv->passing) {
            offset += whole_pages(layer_bytes(kv));
        }
    }
    layout->passing = offset;
    for (int i = 0; i < m->n_layers; i++)
        if (layout->layers[i].passing) layout->layers[i].offset = layout->passing;
    return 0;
}

void kv_layout_free(KvLayout *layout) { free(layout->layers); }

uint8_t *kv_keys(const KvLayer *kv, const Sequence *s, int slot, int h) {
    size_t offset = (size_t)(slot % kv->n_slots) * kv->slot_bytes;
    return s->cache + kv->offset + kv->state + offset + (size_t)h * (kv->k_bytes + kv->v_bytes);
}

uint8_t *kv_values(const KvLayer *kv, const Sequence *s, int slot, int h) {
    return kv_keys(kv, s, slot, h) + kv->k_bytes;
}

float *kv_state(const KvLayer *kv, const Sequence *s) { return (float *)(s->cache + kv->offset); }

// ---- append ----

typedef struct {
    const Workspace *w;
    const Attention *a;
    const KvLayer *kv;
    Buffer queries, keys, values;
    const Span *spans;
} Append;

// Item: (span, KV head), with all tokens, since tokens share cache lines and heads do not.
static void append_head(const void *arg, int item, int thread) {
    const Append *a = arg;
    const Kernels *k = a->w->k;
    int n_heads = a->a->n_kv_heads, dim = a->a->head_dim, h = item % n_heads;
    int group = a->queries.data ? a->a->n_heads / n_heads : 0;
    size_t column = (size_t)h * (size_t)dim;
    const Span *s = &a->spans[item / n_heads];
    for (int t = s->first; t < s->first + s->n; t++) {
        int pos = s->pos + t - s->first, slot = pos / LANES, lane = pos % LANES;
        const float *queries = group ? row(a->queries, t) + column * (size_t)group : NULL;
        dtypes[a->kv->k_dtype].pack_key(k, kv_keys(a->kv, s->sequence, slot, h), lane,
                                        row(a->keys, t) + column, queries, group, dim);
        if (a->kv->v_bytes)
            dtypes[a->kv->v_dtype].pack_value(k, kv_values(a->kv, s->sequence, slot, h),
                                              a->kv->v_dim, lane, row(a->values, t) + column, dim);
    }
}

void kv_append(Workspace *w, const Attention *a, const KvLayer *kv, Buffer queries, Buffer keys,
               Buffer values, const Span *spans, int n_spans) {
    Append append = {w, a, kv, queries, keys, values, spans};
    size_t n = 0;
    for (int i = 0; i < n_spans; i++) n += (size_t)spans[i].n;
    parallel_if_large(w, kv->slot_bytes / LANES * n, n_spans * a->n_kv_heads, append_head, &append);
}
