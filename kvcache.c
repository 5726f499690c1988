// What the KV cache costs, where its rows lie, and how they get there.
//
// A layer's cache is a run of slots of 16 positions. A slot holds, for one KV head after the other, its keys as a panel (the
// layout of a weight matrix whose rows are positions, so that scores are the ordinary product) and then its values as 16
// rows (latent attention has none: its values are a part of the keys). Positions fill slots in order, so the memory in use
// is a growing prefix of each layer's part; a layer with a sliding window reuses its slots as a ring. A layer without
// attention has a state of fixed size instead.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "session.h"

static int round_up(int n, int to) { return (n + to - 1) / to * to; }

const char *dtype_name(Dtype dtype) {
    static const char *const names[N_DTYPES] = {[F32] = "f32", [BF16] = "bf16", [Q8] = "q8", [Q4] = "q4", [F16] = "f16"};
    return names[dtype];
}

// Bytes that a layer without attention remembers: the last inputs of its convolution, and the matrices of the delta rule.
static size_t state_bytes(const Layer *l) {
    size_t conv = (size_t)(l->n_taps - 1) * (size_t)l->n_channels;
    size_t delta = (size_t)l->n_v_heads * (size_t)l->k_dim * (size_t)l->v_dim;
    return (conv + delta + LANES - 1) / LANES * LANES * sizeof(float);
}

// A layer's geometry, but for its offset: as it is, or with the heads of latent attention expanded.
static KvLayer kv_layer(const Layer *layer, bool expanded, int context, Dtype k_dtype, Dtype v_dtype) {
    if (layer->mixer != MIXER_ATTENTION) return (KvLayer){.state = state_bytes(layer)};
    KvLayer kv = {.n_slots = (context + LANES - 1) / LANES};
    int k_dim = layer->head_dim, v_dim = layer->head_dim;
    if (layer->latent && expanded) k_dim += layer->n_nope - layer->latent, v_dim = layer->n_value;
    if (layer->window && !layer->kv_read) {
        int ring = (layer->window + LANES - 1) / LANES + RING_RUN / LANES + 1;
        if (ring < kv.n_slots) kv.n_slots = ring;
    }
    kv.k_bytes = panel_bytes(k_dtype, k_dim);
    if (layer->latent && !expanded) {
        kv.v_dim = layer->latent;  // values are a part of the keys
        return kv;
    }
    kv.v_dim = round_up(v_dim, v_dtype == Q8 ? BLOCK : LANES);
    kv.v_scales = (size_t)LANES * (size_t)kv.v_dim * (v_dtype == F32 ? 4 : v_dtype == F16 ? 2 : 1);
    kv.v_bytes = kv.v_scales + (v_dtype == Q8 ? (size_t)LANES * (size_t)kv.v_dim / BLOCK * 2 : 0);
    return kv;
}

// Bytes of a slot of a layer, all heads.
static size_t slot_bytes(const Layer *layer, const KvLayer *kv, int n_kv_heads) {
    return (size_t)(n_kv_heads ? n_kv_heads : layer->n_kv_heads) * (kv->k_bytes + kv->v_bytes);
}

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

KvPlan kv_plan(const Model *model, int n_kv_heads, int context, Dtype k_dtype, Dtype v_dtype) {
    KvPlan plan = {0};
    for (int i = 0; i < model->n_layers; i++) {
        if (model->layers[i].kv_source >= 0) continue;
        KvLayer kv = kv_layer(&model->layers[i], n_kv_heads, context, k_dtype, v_dtype);
        size_t slot = slot_bytes(&model->layers[i], &kv, n_kv_heads);
        plan.bytes_per_token += slot / LANES;
        plan.state += kv.state;
        plan.reserved += slot * (size_t)kv.n_slots + kv.state;
    }
    plan.reserved = (plan.reserved + page_size() - 1) / page_size() * page_size();
    return plan;
}

size_t kv_bytes_at(const Model *model, int n_kv_heads, int n, Dtype k_dtype, Dtype v_dtype) {
    size_t bytes = 0;
    for (int i = 0; i < model->n_layers; i++) {
        if (model->layers[i].kv_source >= 0) continue;
        KvLayer kv = kv_layer(&model->layers[i], n_kv_heads, n, k_dtype, v_dtype);
        size_t held = (size_t)kv.n_slots * LANES < (size_t)n ? (size_t)kv.n_slots * LANES : (size_t)n;
        bytes += slot_bytes(&model->layers[i], &kv, n_kv_heads) / LANES * held + (n ? kv.state : 0);
    }
    return bytes;
}

int kv_new(Session *s, Error *err) {
    const Model *m = s->model;
    KvCache *kv = &s->kv;
    kv->bytes = kv_plan(m, 0, s->context, s->k_dtype, s->v_dtype).reserved;
    kv->layers = calloc((size_t)m->n_layers, sizeof *kv->layers);
    void *data = mmap(NULL, kv->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data != MAP_FAILED) kv->data = data;
    if (!kv->layers || !kv->data)
        return fail(err, "cannot reserve %zu bytes for a KV cache of %d positions; choose fewer with -c", kv->bytes,
                    s->context);
#ifdef MADV_NOHUGEPAGE
    madvise(kv->data, kv->bytes, MADV_NOHUGEPAGE);  // or the memory in use would grow by 2 MB at a time
#endif
    size_t offset = 0;
    for (int i = 0; i < m->n_layers; i++) {
        if (m->layers[i].kv_source >= 0) {
            kv->layers[i] = kv->layers[m->layers[i].kv_source];
            continue;
        }
        kv->layers[i] = kv_layer(&m->layers[i], false, s->context, s->k_dtype, s->v_dtype);
        kv->layers[i].offset = offset;
        offset += slot_bytes(&m->layers[i], &kv->layers[i], 0) * (size_t)kv->layers[i].n_slots + kv->layers[i].state;
    }
    return 0;
}

void kv_free(KvCache *kv) {
    if (kv->data) munmap(kv->data, kv->bytes);
    free(kv->layers);
    *kv = (KvCache){0};
}

uint8_t *kv_keys(const Session *s, int layer, int block, int h) {
    const KvLayer *kv = &s->kv.layers[layer];
    size_t heads = (size_t)(block % kv->n_slots) * (size_t)s->model->layers[layer].n_kv_heads + (size_t)h;
    return s->kv.data + kv->offset + heads * (kv->k_bytes + kv->v_bytes);
}

uint8_t *kv_values(const Session *s, int layer, int block, int h) {
    return kv_keys(s, layer, block, h) + s->kv.layers[layer].k_bytes;
}

float *kv_state(const Session *s, int layer) { return (float *)(s->kv.data + s->kv.layers[layer].offset); }

void kv_clear(Session *s) {
    for (int i = 0; i < s->model->n_layers && s->position; i++) memset(kv_state(s, i), 0, s->kv.layers[i].state);
    s->position = 0;
}

// ---- append ----

typedef struct {
    Session *s;
    int layer, first, n, pos;
} Append;

// A row of int8 and f16 scales from f32, 32 elements at a time.
typedef struct {
    int8_t q[BLOCK];
    uint16_t scale;
} Q8Block;

static Q8Block q8_block(const Session *s, const float *x, int n) {
    Q8Block b;
    float scale;
    int32_t offset;
    s->k->to_q8(b.q, &scale, &offset, x, n < BLOCK ? n : BLOCK, false);
    b.scale = f32_to_f16(scale);
    return b;
}

// One key, as column `lane` of a panel.
static void store_key(const Session *s, uint8_t *panel, int lane, const float *x, int head_dim) {
    if (s->k_dtype == F32)
        for (int d = 0; d < head_dim; d++) ((float *)panel)[(size_t)d * LANES + lane] = x[d];
    else if (s->k_dtype == F16)
        for (int d = 0; d < head_dim; d++) ((uint16_t *)panel)[(size_t)d * LANES + lane] = f32_to_f16(x[d]);
    else {
        uint8_t *scales = panel + (size_t)round_up(head_dim, BLOCK) * LANES;
        for (int d = 0; d < head_dim; d += BLOCK, scales += 2 * LANES, panel += BLOCK * LANES) {
            Q8Block b = q8_block(s, x + d, head_dim - d);
            for (int k = 0; k < BLOCK; k++) panel[k / 4 * 64 + lane * 4 + k % 4] = (uint8_t)(128 + b.q[k]);
            memcpy(scales + 2 * lane, &b.scale, sizeof b.scale);
        }
    }
}

// One value, as row `lane`; what pads it stays zero.
static void store_value(const Session *s, const KvLayer *kv, uint8_t *values, int lane, const float *x, int head_dim) {
    size_t row = (size_t)lane * (size_t)kv->v_dim;
    if (s->v_dtype == F32) memcpy((float *)values + row, x, sizeof *x * (size_t)head_dim);
    else if (s->v_dtype == F16) s->k->to_f16((uint16_t *)values + row, x, head_dim);
    else
        for (int d = 0; d < head_dim; d += BLOCK) {
            Q8Block b = q8_block(s, x + d, head_dim - d);
            memcpy(values + row + d, b.q, BLOCK);
            memcpy(values + kv->v_scales + 2 * (d / BLOCK * LANES + lane), &b.scale, sizeof b.scale);
        }
}

// One KV head, all tokens: heads share no cache line, tokens do.
static void append_head(void *arg, int h, int thread) {
    (void)thread;
    const Append *a = arg;
    const Session *s = a->s;
    int head_dim = s->model->layers[a->layer].head_dim;
    for (int t = 0; t < a->n; t++) {
        int pos = a->pos + t;
        size_t column = (size_t)h * (size_t)head_dim;
        store_key(s, kv_keys(s, a->layer, pos / LANES, h), pos % LANES, row(&s->keys, a->first + t) + column, head_dim);
        if (s->model->layers[a->layer].latent) continue;
        store_value(s, &s->kv.layers[a->layer], kv_values(s, a->layer, pos / LANES, h), pos % LANES,
                    row(&s->values, a->first + t) + column, head_dim);
    }
}

void kv_append(Session *s, int layer, int first, int n, int pos) {
    Append a = {s, layer, first, n, pos};
    const KvLayer *kv = &s->kv.layers[layer];
    int n_heads = s->model->layers[layer].n_kv_heads;
    for_each(s, (kv->k_bytes + kv->v_bytes) / LANES * (size_t)(n_heads * n), n_heads, append_head, &a);
}

// ---- usage ----

static void mark(uint8_t *pages, const Session *s, const uint8_t *from, size_t bytes) {
    size_t begin = (size_t)(from - s->kv.data), end = begin + bytes;
    for (size_t p = begin / page_size(); p * page_size() < end; p++) pages[p] = 1;
}

// The pages that the positions so far must have touched: of the slot that is being filled, whole panels of keys and the rows
// of values that are there.
static void mark_layer(uint8_t *pages, const Session *s, int layer) {
    const KvLayer *kv = &s->kv.layers[layer];
    if (kv->state && s->position) mark(pages, s, s->kv.data + kv->offset, kv->state);
    if (!kv->n_slots) return;
    int n_heads = s->model->layers[layer].n_kv_heads, n_blocks = s->position / LANES, rest = s->position % LANES;
    int full = n_blocks < kv->n_slots ? n_blocks : kv->n_slots;
    if (full) mark(pages, s, s->kv.data + kv->offset, (kv->k_bytes + kv->v_bytes) * (size_t)n_heads * (size_t)full);
    if (!rest) return;
    for (int h = 0; h < n_heads; h++) {
        mark(pages, s, kv_keys(s, layer, n_blocks, h), kv->k_bytes);
        if (!kv->v_bytes) continue;
        mark(pages, s, kv_values(s, layer, n_blocks, h), kv->v_scales / LANES * (size_t)rest);
        size_t scales = kv->v_bytes - kv->v_scales;
        if (scales) mark(pages, s, kv_values(s, layer, n_blocks, h) + kv->v_scales, scales);
    }
}

KvUsage session_kv_usage(const Session *s) {
    KvUsage use = {.reserved = s->kv.bytes, .in_use = kv_bytes_at(s->model, 0, s->position, s->k_dtype, s->v_dtype)};
    size_t n_pages = s->kv.bytes / page_size();
    unsigned char *pages = calloc(n_pages + 1, 1);
    if (!pages) return use;
    for (int i = 0; i < s->model->n_layers; i++) mark_layer(pages, s, i);
    for (size_t p = 0; p < n_pages; p++) use.expected_resident += pages[p] * page_size();
    if (mincore(s->kv.data, s->kv.bytes, pages) == 0)
        for (size_t p = 0; p < n_pages; p++) use.resident += (pages[p] & 1) * page_size();
    free(pages);
    return use;
}
