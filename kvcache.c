// What a cache costs, where its rows lie, and how they get there.
//
// A layer's cache is a run of slots of 16 positions. A slot holds, for each KV head in turn,
// its keys as a panel (the layout of a weight matrix whose rows are positions, so that scores are
// the ordinary product) and then its values as 16 rows (latent attention has none: its values are a
// part of the keys). Positions fill slots in order, so the memory in use is a growing prefix of
// each layer's part; a layer with a sliding window reuses its slots as a ring. A mixer without
// keys has a state of fixed size instead; where both stand side by side, the state comes first.
#include <stdlib.h>
#include <string.h>

#include "workspace.h"

// ---- geometry ----

// Whether 32 numbers share a scale.
static bool in_blocks(Dtype dtype) { return dtype == Q8 || dtype == Q4; }

// Numbers of a cached value, padded for the mix.
static int padded_value(int dim, Dtype v_dtype) {
    return (int)round_up((size_t)dim, in_blocks(v_dtype) ? BLOCK : LANES);
}

// Bytes of 16 values of `dim` numbers, without their scales.
static size_t value_bytes(int dim, Dtype dtype) {
    size_t bits = dtype == F32 ? 32 : dtype == F16 ? 16 : dtype == Q8 ? 8 : 4;
    return (size_t)LANES * (size_t)dim * bits / 8;
}

// Geometry of what attention caches, except for its offset: as it is (n_kv_heads 0), or with
// n_kv_heads, those of latent attention expanded. An encoder's keys and values live for one pass,
// and are not rounded.
static KvLayer attention_part(const Attention *a, int n_kv_heads, int context, Dtype k_dtype,
                              Dtype v_dtype) {
    KvLayer kv = {.n_heads = n_kv_heads ? n_kv_heads : a->n_kv_heads,
                  .borrowed = a->kv_source >= 0, .n_slots = (context + LANES - 1) / LANES,
                  .passing = a->mask == MASK_ALL, .of_source = a->mask == MASK_SOURCE};
    int k_dim = a->head_dim, v_dim = a->head_dim;
    kv.k_dtype = kv.passing ? F32 : k_dtype;
    kv.v_dtype = kv.passing ? F32 : v_dtype;
    if (a->latent.rank && n_kv_heads) {
        k_dim += a->latent.n_nope - a->latent.rank;
        v_dim = a->latent.n_value;
    }
    if (a->window && a->mask == MASK_CAUSAL && !a->kv_read) {
        int ring = (a->window + LANES - 1) / LANES + RING_RUN / LANES + 1;
        kv.ring = ring < kv.n_slots;
        if (kv.ring) kv.n_slots = ring;
    }
    kv.k_bytes = panel_bytes(kv.k_dtype, k_dim);
    if (a->latent.rank && !n_kv_heads) {
        // values are a part of the keys, of q4 whole blocks, which have been turned
        kv.v_dim = kv.k_dtype == Q4 ? padded_value(a->latent.rank, Q4) : a->latent.rank;
    } else {
        kv.v_dim = padded_value(v_dim, kv.v_dtype);
        kv.v_scales = kv.v_bytes = value_bytes(kv.v_dim, kv.v_dtype);
        if (in_blocks(kv.v_dtype)) kv.v_bytes += (size_t)(LANES * kv.v_dim / BLOCK) * 2;
    }
    kv.slot_bytes = times((size_t)kv.n_heads, kv.k_bytes + kv.v_bytes);
    return kv;
}

// Parts of a sequence's cache: one for each layer, then one for each that looks at a source.
static int n_parts(const Model *m) { return m->n_layers + (m->source.n ? m->text.n : 0); }

static KvLayer kv_part(const Model *m, int i, int n_kv_heads, int context, Dtype k_dtype,
                       Dtype v_dtype) {
    if (i >= m->n_layers)
        return attention_part(&m->layers[i - m->text.n].cross, n_kv_heads, context, k_dtype,
                              v_dtype);
    const Layer *l = &m->layers[i];
    KvLayer kv = {0};
    if (l->mixer == MIXER_NONE) return kv;
    if (l->mixer == MIXER_ATTENTION)
        kv = attention_part(&l->attention, n_kv_heads, context, k_dtype, v_dtype);
    const Mixer *mixer = l->mamba2_beside ? &mamba2_mixer : mixers[l->mixer];
    if (mixer->state_bytes) kv.state = mixer->state_bytes(l);
    return kv;
}

// Bytes of a layer's part of the cache.
static size_t layer_bytes(const KvLayer *kv) {
    return plus(times(kv->slot_bytes, (size_t)kv->n_slots), kv->state);
}

// Bytes that positions 0..n-1 take of it.
static size_t bytes_at(const KvLayer *kv, int n) {
    size_t held = (size_t)kv->n_slots * LANES;
    return times(kv->slot_bytes / LANES, held < (size_t)n ? held : (size_t)n) + (n ? kv->state : 0);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t whole_pages(size_t bytes) {
    size_t pages = plus(bytes, page_size() - 1) / page_size();
    return bytes == SIZE_MAX ? SIZE_MAX : pages * page_size();
}

// Parts have places side by side; an encoder's layers, which run one after the other over a whole
// text, share one place after them.
KvPlan kv_plan(const Model *m, int n_kv_heads, int context, Dtype k_dtype, Dtype v_dtype) {
    KvPlan plan = {0};
    size_t passing = 0, per_pass_token = 0;
    for (int i = 0; i < n_parts(m); i++) {
        KvLayer kv = kv_part(m, i, n_kv_heads, context, k_dtype, v_dtype);
        size_t per_token = kv.slot_bytes / LANES;
        if (kv.borrowed) continue;
        if (kv.passing) {
            passing = larger(passing, layer_bytes(&kv));
            per_pass_token = larger(per_pass_token, per_token);
            continue;
        }
        plan.reserved = plus(plan.reserved, layer_bytes(&kv));
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
    plan.reserved = plus(whole_pages(plan.reserved), whole_pages(passing));
    return plan;
}

size_t kv_bytes_at(const Model *m, int n_kv_heads, int n, int n_source, Dtype k_dtype,
                   Dtype v_dtype) {
    size_t bytes = 0, passing = 0;
    for (int i = 0; i < n_parts(m); i++) {
        bool crosses = i >= m->n_layers;
        KvLayer kv = kv_part(m, i, n_kv_heads, crosses ? n_source : n, k_dtype, v_dtype);
        if (kv.passing) passing = larger(passing, bytes_at(&kv, n));
        else if (!kv.borrowed) bytes = plus(bytes, bytes_at(&kv, crosses ? n_source : n));
    }
    return m->encoder ? passing : bytes;
}

size_t kv_padding_per_token(const Model *m, int n_kv_heads, Dtype v_dtype) {
    size_t bytes = 0;
    for (int i = m->text.first; i < m->n_layers; i++) {
        const Attention *a = &m->layers[i].attention;
        KvLayer kv = kv_part(m, i, n_kv_heads, LANES, F32, v_dtype);
        if (kv.borrowed || !kv.v_bytes) continue;
        int dim = a->latent.rank ? a->latent.n_value : a->head_dim;
        bytes += (size_t)kv.n_heads * value_bytes(kv.v_dim - dim, kv.v_dtype) / LANES;
    }
    return bytes;
}

int kv_layout_new(KvLayout *layout, const Model *m, const WorkspaceOptions *o, Error *err) {
    size_t offset = 0;
    *layout = (KvLayout){.context = o->context, .k_dtype = o->k_dtype, .v_dtype = o->v_dtype,
                         .n_parts = n_parts(m)};
    layout->bytes = kv_plan(m, 0, o->context, o->k_dtype, o->v_dtype).reserved;
    layout->layers = calloc((size_t)layout->n_parts, sizeof *layout->layers);
    if (layout->bytes == SIZE_MAX || !layout->layers)
        return fail(err, "a KV cache of %d positions is more than memory can hold", o->context);
    for (int i = 0; i < layout->n_parts; i++) {
        KvLayer *kv = &layout->layers[i];
        *kv = kv_part(m, i, 0, o->context, o->k_dtype, o->v_dtype);
        kv->offset = offset;
        if (kv->borrowed) {
            *kv = layout->layers[m->layers[i].attention.kv_source];
            kv->borrowed = true;
        } else if (!kv->passing) {
            offset += layer_bytes(kv);
        }
    }
    layout->passing = whole_pages(offset);
    for (int i = 0; i < m->n_layers; i++)
        if (layout->layers[i].passing) layout->layers[i].offset = layout->passing;
    return 0;
}

const KvLayer *kv_cross(const Workspace *w, int i) { return &w->kv.layers[i + w->model->text.n]; }

void kv_layout_free(KvLayout *layout) { free(layout->layers); }

uint8_t *kv_keys(const KvLayer *kv, const Sequence *s, int block, int h) {
    size_t slot = (size_t)(block % kv->n_slots) * kv->slot_bytes;
    return s->cache + kv->offset + kv->state + slot + (size_t)h * (kv->k_bytes + kv->v_bytes);
}

uint8_t *kv_values(const KvLayer *kv, const Sequence *s, int block, int h) {
    return kv_keys(kv, s, block, h) + kv->k_bytes;
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

// A block of int8 and its f16 scale.
typedef struct {
    int8_t q[BLOCK];
    uint16_t scale;
} Q8Block;

static Q8Block q8_block(const Workspace *w, const float *x, int n) {
    Q8Block b;
    float scale;
    int32_t offset;
    w->k->to_q8(b.q, &scale, &offset, x, n < BLOCK ? n : BLOCK, false);
    b.scale = f32_to_f16(scale);
    return b;
}

// One key, as column `lane` of a panel of q4. A head's queries lean to one side, so what counts of
// a key's error is what is left on that side; the token's own queries of the head, n_q of them side
// by side, are near enough to say which it is. (The keys of a source have none, n_q = 0.)
static void store_q4_key(const Workspace *w, uint8_t *panel, int lane, const float *x,
                         const float *q, int n_q, int dim) {
    uint8_t *scales = panel + blocks_of(dim) * BLOCK * LANES / 2, codes[Q4_AT_ONCE];
    uint16_t scale[2];
    for (int d = 0; d < dim; d += Q4_AT_ONCE) {
        int n = dim - d < Q4_AT_ONCE ? dim - d : Q4_AT_ONCE;
        w->k->to_q4(codes, scale, x + d, n_q ? q + d : NULL, (size_t)dim, n_q, n);
        for (int k = 0; k < (int)round_up((size_t)n, BLOCK); k += 8, panel += 4 * LANES) {
            uint32_t first, second;  // four codes each
            memcpy(&first, codes + k, sizeof first);
            memcpy(&second, codes + k + 4, sizeof second);
            first |= second << 4;
            memcpy(panel + lane * 4, &first, sizeof first);
        }
        for (int b = 0; b * BLOCK < n; b++, scales += 2 * LANES)
            memcpy(scales + 2 * lane, &scale[b], sizeof *scale);
    }
}

// One key, as column `lane` of a panel.
static void store_key(const Workspace *w, const KvLayer *kv, uint8_t *panel, int lane,
                      const float *x, int dim) {
    if (kv->k_dtype == F32)
        for (int d = 0; d < dim; d++) ((float *)panel)[(size_t)d * LANES + lane] = x[d];
    else if (kv->k_dtype == F16)
        for (int d = 0; d < dim; d++)
            ((uint16_t *)panel)[(size_t)d * LANES + lane] = f32_to_f16(x[d]);
    else {
        uint8_t *scales = panel + round_up((size_t)dim, BLOCK) * LANES;
        for (int d = 0; d < dim; d += BLOCK, scales += 2 * LANES, panel += BLOCK * LANES) {
            Q8Block b = q8_block(w, x + d, dim - d);
            for (int k = 0; k < BLOCK; k++)
                panel[k / 4 * 64 + lane * 4 + k % 4] = (uint8_t)(128 + b.q[k]);
            memcpy(scales + 2 * lane, &b.scale, sizeof b.scale);
        }
    }
}

// One value, as position `lane`; codes share bytes with those of the position four before or after.
static void store_q4_value(const Workspace *w, const KvLayer *kv, uint8_t *values, int lane,
                           const float *x, int dim) {
    const int shift = 8 * (lane % 4) + (lane % 8 < 4 ? 0 : 4);  // in a word of eight positions
    uint32_t *at = (uint32_t *)(values + lane / 8 * 64);
    uint8_t *scales = values + kv->v_scales + 2 * lane, codes[Q4_AT_ONCE];
    uint16_t scale[2];
    for (int d = 0; d < dim; d += Q4_AT_ONCE) {
        int n = dim - d < Q4_AT_ONCE ? dim - d : Q4_AT_ONCE;
        w->k->to_q4(codes, scale, x + d, NULL, 0, 0, n);
        for (int k = 0; k < (int)round_up((size_t)n, BLOCK); k += LANES, at += 2 * LANES)
            for (int i = 0; i < LANES; i++)
                at[i] = (at[i] & ~(15u << shift)) | (uint32_t)codes[k + i] << shift;
        for (int b = 0; b * BLOCK < n; b++, scales += 2 * LANES)
            memcpy(scales, &scale[b], sizeof *scale);
    }
}

// One value, as row `lane`; what fills it up stays zero.
static void store_value(const Workspace *w, const KvLayer *kv, uint8_t *values, int lane,
                        const float *x, int dim) {
    size_t row = (size_t)lane * (size_t)kv->v_dim;
    if (kv->v_dtype == F32) memcpy((float *)values + row, x, sizeof *x * (size_t)dim);
    else if (kv->v_dtype == F16) w->k->to_f16((uint16_t *)values + row, x, dim);
    else if (kv->v_dtype == Q4) store_q4_value(w, kv, values, lane, x, dim);
    else
        for (int d = 0; d < dim; d += BLOCK) {
            Q8Block b = q8_block(w, x + d, dim - d);
            uint8_t *scale = values + kv->v_scales + 2 * (d / BLOCK * LANES + lane);
            memcpy(values + row + d, b.q, BLOCK);
            memcpy(scale, &b.scale, sizeof b.scale);
        }
}

// The queries of row t that share KV head h, NULL if there are none.
static const float *queries_of(const Append *a, int t, int h) {
    int width = a->a->n_heads / a->a->n_kv_heads * a->a->head_dim;
    return a->queries.data ? row(a->queries, t) + (size_t)h * (size_t)width : NULL;
}

// Item: (span, KV head), all tokens: heads share no cache line, tokens do.
static void append_head(const void *arg, int item, int thread) {
    const Append *a = arg;
    int n_heads = a->a->n_kv_heads, dim = a->a->head_dim, h = item % n_heads;
    int group = a->queries.data ? a->a->n_heads / n_heads : 0;
    const Span *s = &a->spans[item / n_heads];
    for (int t = 0; t < s->n; t++) {
        int slot = (s->pos + t) / LANES, lane = (s->pos + t) % LANES;
        size_t column = (size_t)h * (size_t)dim;
        const float *key = row(a->keys, s->first + t) + column;
        uint8_t *panel = kv_keys(a->kv, s->sequence, slot, h);
        if (a->kv->k_dtype == Q4)
            store_q4_key(a->w, panel, lane, key, queries_of(a, s->first + t, h), group, dim);
        else store_key(a->w, a->kv, panel, lane, key, dim);
        if (a->kv->v_bytes)
            store_value(a->w, a->kv, kv_values(a->kv, s->sequence, slot, h), lane,
                        row(a->values, s->first + t) + column, dim);
    }
}

void kv_append(Workspace *w, const Attention *a, const KvLayer *kv, Buffer queries, Buffer keys,
               Buffer values, const Span *spans, int n_spans) {
    Append append = {w, a, kv, queries, keys, values, spans};
    size_t n = 0;
    for (int i = 0; i < n_spans; i++) n += (size_t)spans[i].n;
    for_each(w, kv->slot_bytes / LANES * n, n_spans * a->n_kv_heads, append_head, &append);
}

// ---- usage ----

typedef struct {
    const Sequence *s;
    uint8_t *pages;  // [pages of the cache] 1: in use
} Marks;

static void mark(const Marks *m, const uint8_t *from, size_t bytes) {
    size_t begin = (size_t)(from - m->s->cache), end = begin + bytes, page = page_size();
    for (size_t p = begin / page; bytes && p * page < end; p++) m->pages[p] = 1;
}

// The pages that the positions so far must have touched: of the slot that is being filled, whole
// panels of keys and the rows of values that are there; of q4 values all, since rows share bytes.
static void mark_layer(const Marks *m, const KvLayer *kv) {
    const Sequence *s = m->s;
    int n = kv->of_source ? s->n_source : s->length;
    if (s->length) mark(m, s->cache + kv->offset, kv->state);
    if (!kv->n_slots || kv->passing) return;
    int n_blocks = n / LANES, rest = n % LANES;
    int full = n_blocks < kv->n_slots ? n_blocks : kv->n_slots;
    mark(m, s->cache + kv->offset + kv->state, kv->slot_bytes * (size_t)full);
    for (int h = 0; h < kv->n_heads && rest; h++) {
        uint8_t *values = kv_values(kv, s, n_blocks, h);
        mark(m, kv_keys(kv, s, n_blocks, h), kv->k_bytes);
        mark(m, values, kv->v_scales / LANES * (size_t)(kv->v_dtype == Q4 ? LANES : rest));
        mark(m, values + kv->v_scales, kv->v_bytes - kv->v_scales);
    }
}

// Bytes of positions 0..n-1 in layers that keep all of them, and of the source's first n_source.
static size_t unringed_bytes(const Sequence *s, int n, int n_source) {
    const Workspace *w = s->workspace;
    size_t bytes = 0;
    for (int i = 0; i < w->kv.n_parts; i++) {
        const KvLayer *kv = &w->kv.layers[i];
        int there = kv->of_source ? n_source : n;
        bool keeps = !kv->borrowed && !kv->ring && !kv->passing;
        if (keeps && there) bytes += bytes_at(kv, there) - kv->state;
    }
    return bytes;
}

KvUsage sequence_kv_usage(const Sequence *s) {
    const Workspace *w = s->workspace;
    const KvLayout *kv = &w->kv;
    size_t n_pages = kv->bytes / page_size();
    int n_source = shared_source(s) ? s->n_source : 0;
    KvUsage use = {.reserved = kv->bytes,
                   .shared = unringed_bytes(s, shared_length(s), n_source)};
    use.in_use = kv_bytes_at(w->model, 0, s->length, s->n_source, kv->k_dtype, kv->v_dtype);
    use.resident = resident_bytes(s->cache, kv->bytes);
    Marks m = {s, calloc(n_pages + 1, 1)};
    for (int i = 0; m.pages && i < kv->n_parts; i++) mark_layer(&m, &kv->layers[i]);
    for (size_t p = 0; m.pages && p < n_pages; p++)
        use.expected_resident += m.pages[p] * page_size();
    free(m.pages);
    return use;
}
