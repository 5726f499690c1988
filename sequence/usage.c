// The cost of a cache: by formula for a number of positions, and measured for a sequence.
#include "sequence/cost.h"
#include "sequence/sequence.h"

// ---- by formula ----

size_t kv_bytes_at(const Model *m, int n_kv_heads, int n, int n_source, Dtype k_dtype,
                   Dtype v_dtype) {
    size_t bytes = 0, passing = 0;
    for (int i = 0; i < n_kv_layers(m); i++) {
        bool crosses = i >= m->n_layers;
        KvLayer kv = kv_layer(m, i, n_kv_heads, crosses ? n_source : n, k_dtype, v_dtype);
        size_t held = kv_layer_bytes_at(&kv, crosses ? n_source : n);
        if (kv.passing) passing = held > passing ? held : passing;
        else if (!kv.borrowed) bytes = plus(bytes, held);
    }
    return m->encoder ? passing : bytes;
}

size_t kv_padding_per_token(const Model *m, int n_kv_heads, Dtype v_dtype) {
    size_t bytes = 0;
    for (int i = m->text.first; i < m->n_layers; i++) {
        const Attention *a = &m->layers[i].attention;
        KvLayer kv = kv_layer(m, i, n_kv_heads, LANES, F32, v_dtype);
        if (kv.borrowed || !kv.v_bytes) continue;
        int dim = a->latent.rank ? a->latent.n_value : a->head_dim;
        size_t of_16_numbers = kv.v_scales / (size_t)kv.v_dim;
        bytes += (size_t)kv.n_heads * of_16_numbers * (size_t)(kv.v_dim - dim) / LANES;
    }
    return bytes;
}

// ---- of a sequence ----

enum { PAGES_AT_ONCE = 1 << 14 };

typedef struct {
    const Sequence *s;
    size_t first;                    // page of the cache
    uint8_t touched[PAGES_AT_ONCE];  // from there on; 1: the page was written to
} Pages;

static void touch(Pages *p, const uint8_t *from, size_t bytes) {
    size_t begin = (size_t)(from - p->s->cache), end = begin + bytes, page = page_size();
    size_t i = begin / page > p->first ? begin / page : p->first;
    for (; bytes && i * page < end && i < p->first + PAGES_AT_ONCE; i++)
        p->touched[i - p->first] = 1;
}

// Marks the pages to which the positions so far were written. In the last slot, if it is not full,
// these are whole panels of keys, and the rows of its values (all rows of q4 values, which share
// bytes).
static void touch_layer(Pages *p, const KvLayer *kv) {
    const Sequence *s = p->s;
    int n = kv->of_source ? s->source.n : s->length;
    if (s->length) touch(p, s->cache + kv->offset, kv->state);
    if (!kv->n_slots || kv->passing) return;
    int slot = n / LANES, rest = n % LANES;
    int full = slot < kv->n_slots ? slot : kv->n_slots;
    touch(p, s->cache + kv->offset + kv->state, kv->slot_bytes * (size_t)full);
    for (int h = 0; h < kv->n_heads && rest; h++) {
        uint8_t *values = kv_values(kv, s, slot, h);
        touch(p, kv_keys(kv, s, slot, h), kv->k_bytes);
        bool share_bytes = dtypes[kv->v_dtype].bits < 8;  // positions do
        touch(p, values, kv->v_scales / LANES * (size_t)(share_bytes ? LANES : rest));
        touch(p, values + kv->v_scales, kv->v_bytes - kv->v_scales);
    }
}

// Bytes of n positions, and of n_source of the source, in layers without a ring.
static size_t unringed_bytes(const Sequence *s, int n, int n_source) {
    const Workspace *w = s->workspace;
    size_t bytes = 0;
    for (int i = 0; i < w->kv.n_layers; i++) {
        const KvLayer *kv = &w->kv.layers[i];
        int there = kv->of_source ? n_source : n;
        bool keeps = !kv->borrowed && !kv->ring && !kv->passing;
        if (keeps && there) bytes += kv_layer_bytes_at(kv, there) - kv->state;
    }
    return bytes;
}

// Bytes of the pages to which the positions so far were written.
static size_t touched_bytes(const Sequence *s) {
    const KvLayout *kv = &s->workspace->kv;
    size_t n = 0;
    for (size_t first = 0; first * page_size() < kv->bytes; first += PAGES_AT_ONCE) {
        Pages pages = {.s = s, .first = first};
        for (int i = 0; i < kv->n_layers; i++) touch_layer(&pages, &kv->layers[i]);
        for (int i = 0; i < PAGES_AT_ONCE; i++) n += pages.touched[i];
    }
    return n * page_size();
}

KvUsage heads_sequence_kv_usage(const Sequence *s) {
    if (!s) return (KvUsage){0};
    const Workspace *w = s->workspace;
    const KvLayout *kv = &w->kv;
    int n_source = shared_source(s) ? s->source.n : 0;
    KvUsage use = {.reserved = kv->bytes,
                   .shared = unringed_bytes(s, shared_length(s), n_source)};
    use.in_use = kv_bytes_at(w->model, 0, s->length, s->source.n, kv->k_dtype, kv->v_dtype);
    use.resident = resident_bytes(s->cache, kv->bytes);
    use.expected_resident = touched_bytes(s);
    return use;
}
