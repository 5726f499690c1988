// Bytes -> validated model. Every number read is checked against the file's size or a stated maximum before it is used.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model.h"

_Static_assert(sizeof(size_t) == 8, "sizes of checkpoints need 64 bits");

enum { HEADER_BYTES = 64, VERSION = 2, MAX_META = 4096, MAX_TENSORS = 1 << 20 };

int fail(Error *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    for (char *c = err->text; *c; c++)
        if ((unsigned char)*c < ' ') *c = '?';  // a name out of a damaged file must not steer the terminal
    return -1;
}

// ---- files ----

int map_file(Mapping *map, const char *path, Error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(err, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    int status = 0;
    if (fstat(fd, &st) != 0) status = fail(err, "cannot read %s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode)) status = fail(err, "%s is a directory; export.py makes a checkpoint file from one", path);
    else if (st.st_size == 0) status = fail(err, "%s is empty", path);
    else {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) status = fail(err, "cannot map %s: %s", path, strerror(errno));
        else *map = (Mapping){data, (size_t)st.st_size};
    }
    close(fd);
    return status;
}

void unmap_file(Mapping *map) {
    if (map->data) munmap((void *)map->data, map->size);
    *map = (Mapping){0};
}

// ---- header, metadata, tensor table ----

static uint32_t u32_at(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }
static uint64_t u64_at(const uint8_t *p) { return u32_at(p) | (uint64_t)u32_at(p + 4) << 32; }
static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// How much of a name from the file goes into a message.
static int shown(size_t len) { return len < 80 ? (int)len : 80; }

typedef struct {  // what is left of a section of the file
    const uint8_t *base, *at, *end;
} Cursor;

// The next n bytes, padded to 8; NULL if the section ends before.
static const uint8_t *take(Cursor *c, uint64_t n) {
    size_t left = (size_t)(c->end - c->at);
    if (n > left || round_up(n, 8) > left) return NULL;
    const uint8_t *p = c->at;
    c->at += round_up(n, 8);
    return p;
}

// A section ends where its last entry, padded to 64, ends.
static int section_done(const Cursor *c, const char *what, Error *err) {
    if ((size_t)(c->end - c->at) < 64) return 0;
    return fail(err, "%s: %zu bytes are left after the last entry", what, (size_t)(c->end - c->at));
}

static bool key_is(const Meta *m, const char *key) {
    return strlen(key) == m->key_len && memcmp(key, m->key, m->key_len) == 0;
}

static int parse_meta(Model *m, Cursor c, Error *err) {
    static const size_t width[] = {[META_U8] = 1, [META_I32] = 4, [META_F32] = 4};
    for (int i = 0; i < m->n_meta; i++) {
        const uint8_t *p = take(&c, 16);
        if (!p) return fail(err, "metadata ends inside entry %d of %d, at byte %zu", i, m->n_meta, (size_t)(c.at - c.base));
        uint32_t type = u32_at(p), key_len = u32_at(p + 4);
        uint64_t count = u64_at(p + 8);
        const char *key = (const char *)take(&c, key_len);
        if (!key || key_len == 0) return fail(err, "metadata entry %d: its key does not fit into the metadata", i);
        if (type < META_U8 || type > META_F32)
            return fail(err, "metadata %.*s: type is %u, expected 1 (u8), 2 (i32) or 3 (f32)", shown(key_len), key, type);
        const uint8_t *values = count <= SIZE_MAX / 8 ? take(&c, count * width[type]) : NULL;
        if (!values)
            return fail(err, "metadata %.*s: its %llu values do not fit into the metadata", shown(key_len), key,
                        (unsigned long long)count);
        m->meta[i] = (Meta){key, key_len, (size_t)count, type, values, false};
        for (int j = 0; j < i; j++)
            if (m->meta[j].key_len == key_len && memcmp(m->meta[j].key, key, key_len) == 0)
                return fail(err, "metadata %.*s occurs twice", shown(key_len), key);
    }
    return section_done(&c, "metadata", err);
}

// Tensors must follow each other exactly, so that none can overlap another or leave the file.
static int parse_tensors(Model *m, Cursor c, size_t size, Error *err) {
    size_t expected = (size_t)(c.end - c.base);
    for (int i = 0; i < m->n_tensors; i++) {
        const uint8_t *p = take(&c, 40);
        if (!p)
            return fail(err, "tensor table ends inside entry %d of %d, at byte %zu", i, m->n_tensors,
                        (size_t)(c.at - c.base));
        uint32_t dtype = u32_at(p), name_len = u32_at(p + 4);
        uint64_t rows = u64_at(p + 8), cols = u64_at(p + 16), offset = u64_at(p + 24), bytes = u64_at(p + 32);
        const char *name = (const char *)take(&c, name_len);
        if (!name || name_len == 0) return fail(err, "tensor %d: its name does not fit into the table", i);
        int n = shown(name_len);
        if (dtype > Q4)
            return fail(err, "tensor %.*s: dtype is %u, expected 0 (f32), 1 (bf16), 2 (q8) or 3 (q4)", n, name, dtype);
        if (rows < 1 || rows > MAX_DIM || cols < 1 || cols > MAX_DIM)
            return fail(err, "tensor %.*s: shape is (%llu, %llu), expected 1..%d", n, name, (unsigned long long)rows,
                        (unsigned long long)cols, MAX_DIM);
        if (offset != expected)
            return fail(err, "tensor %.*s: data begin at byte %llu, expected %zu, where the data before it end", n, name,
                        (unsigned long long)offset, expected);
        if (bytes > size - expected || round_up(bytes, 64) > size - expected)
            return fail(err, "tensor %.*s: its %llu bytes at %zu do not fit into the file of %zu", n, name,
                        (unsigned long long)bytes, expected, size);
        m->tensors[i] = (Tensor){name, name_len, rows, cols, bytes, (Dtype)dtype, m->map.data + offset, false};
        expected += round_up(bytes, 64);
    }
    if (expected != size) return fail(err, "data end at byte %zu, but the file has %zu", expected, size);
    return section_done(&c, "tensor table", err);
}

static int parse_header(Model *m, const uint8_t *bytes, size_t size, Error *err) {
    if (size < HEADER_BYTES || memcmp(bytes, "heads.c", 8) != 0)
        return fail(err, "not a heads.c checkpoint: it does not begin with \"heads.c\"; make one with export.py");
    if (u32_at(bytes + 8) != VERSION)
        return fail(err, "version is %u, this build reads version %d; export the model again", u32_at(bytes + 8), VERSION);
    uint64_t file_size = u64_at(bytes + 16), meta_size = u64_at(bytes + 24), table_size = u64_at(bytes + 32);
    if (file_size != size)
        return fail(err, "the header says %llu bytes, the file has %zu: it is %s", (unsigned long long)file_size, size,
                    size < file_size ? "truncated" : "longer than it was written");
    if (meta_size % 64 || table_size % 64 || meta_size > size - HEADER_BYTES || table_size > size - HEADER_BYTES - meta_size)
        return fail(err, "metadata of %llu and tensor table of %llu bytes do not fit into the file of %zu",
                    (unsigned long long)meta_size, (unsigned long long)table_size, size);
    uint32_t n_meta = u32_at(bytes + 40), n_tensors = u32_at(bytes + 44);
    if (n_meta > MAX_META || n_tensors > MAX_TENSORS || n_meta > meta_size / 16 || n_tensors > table_size / 40)
        return fail(err, "%u metadata entries and %u tensors do not fit into %llu and %llu bytes", n_meta, n_tensors,
                    (unsigned long long)meta_size, (unsigned long long)table_size);
    m->n_meta = (int)n_meta;
    m->n_tensors = (int)n_tensors;
    m->meta = calloc(n_meta + 1, sizeof *m->meta);
    m->tensors = calloc(n_tensors + 1, sizeof *m->tensors);
    if (!m->meta || !m->tensors)
        return fail(err, "no memory for the tables of %u metadata entries and %u tensors", n_meta, n_tensors);
    const uint8_t *table = bytes + HEADER_BYTES + meta_size;
    if (parse_meta(m, (Cursor){bytes, bytes + HEADER_BYTES, table}, err)) return -1;
    return parse_tensors(m, (Cursor){bytes, table, table + table_size}, size, err);
}

// ---- knobs ----

const Meta *model_meta(const Model *model, const char *key) {
    for (int i = 0; i < model->n_meta; i++)
        if (key_is(&model->meta[i], key)) {
            model->meta[i].used = true;
            return &model->meta[i];
        }
    return NULL;
}

// The entry of that key, which must have that type and `count` values or, where it is a layer's knob, one for all layers.
static int need_meta(const Model *m, const char *key, uint32_t type, size_t count, const Meta **out, Error *err) {
    const Meta *meta = model_meta(m, key);
    if (!meta) return fail(err, "metadata %s is missing", key);
    if (meta->type != type) return fail(err, "metadata %s: type is %u, expected %u", key, meta->type, type);
    if (meta->count != 1 && meta->count != count)
        return fail(err, "metadata %s: it has %zu values, expected %s%zu", key, meta->count, count > 1 ? "1 or " : "",
                    count);
    *out = meta;
    return 0;
}

static int get_int(const Model *m, const char *key, int min, int max, int *out, Error *err) {
    const Meta *meta = NULL;
    if (need_meta(m, key, META_I32, 1, &meta, err)) return -1;
    *out = *(const int32_t *)meta->values;
    if (*out < min || *out > max) return fail(err, "metadata %s is %d, expected %d..%d", key, *out, min, max);
    return 0;
}

static int get_float(const Model *m, const char *key, float *out, Error *err) {
    const Meta *meta = NULL;
    if (need_meta(m, key, META_F32, 1, &meta, err)) return -1;
    *out = *(const float *)meta->values;
    return isfinite(*out) ? 0 : fail(err, "metadata %s is not a finite number", key);
}

static int check_finite(const char *key, const Meta *meta, Error *err) {
    for (size_t i = 0; i < meta->count; i++)
        if (!isfinite(((const float *)meta->values)[i]))
            return fail(err, "metadata %s: value %zu is not a finite number", key, i);
    return 0;
}

// The table of set i for long texts, if it has one.
static int get_long_rope(Model *m, int i, RopeSet *rope, Error *err) {
    char key[64], length[64];
    snprintf(key, sizeof key, "model.rope.%d.long_freq", i);
    const Meta *meta = model_meta(m, key);
    if (!meta) return 0;
    if (meta->type != META_F32 || meta->count != (size_t)rope->n_pairs)
        return fail(err, "metadata %s: expected %d numbers of type f32", key, rope->n_pairs);
    rope->long_freq = meta->values;
    snprintf(length, sizeof length, "model.rope.%d.length", i);
    if (check_finite(key, meta, err) || get_int(m, length, 1, 1 << 30, &rope->length, err)) return -1;
    snprintf(key, sizeof key, "model.rope.%d.long_multiplier", i);
    return model_meta(m, key) ? get_float(m, key, &rope->long_multiplier, err) : 0;
}

static int get_rope_sets(Model *m, Error *err) {
    for (; m->n_rope_sets < MAX_ROPE_SETS; m->n_rope_sets++) {
        char key[64];
        RopeSet *rope = &m->rope[m->n_rope_sets];
        snprintf(key, sizeof key, "model.rope.%d.inv_freq", m->n_rope_sets);
        const Meta *meta = model_meta(m, key);
        if (!meta) return 0;
        if (meta->type != META_F32 || meta->count < 1 || meta->count > MAX_DIM)
            return fail(err, "metadata %s: expected 1..%d numbers of type f32", key, MAX_DIM);
        *rope = (RopeSet){(int)meta->count, meta->values, .multiplier = 1.0f, .long_multiplier = 1.0f};
        if (check_finite(key, meta, err)) return -1;
        snprintf(key, sizeof key, "model.rope.%d.multiplier", m->n_rope_sets);
        if (model_meta(m, key) && get_float(m, key, &rope->multiplier, err)) return -1;
        if (get_long_rope(m, m->n_rope_sets, rope, err)) return -1;
    }
    return 0;
}

// Multipliers of queries, by position.
static int get_q_temp(Model *m, Error *err) {
    const Meta *meta = model_meta(m, "model.q_temp");
    if (!meta) return 0;
    if (meta->type != META_F32 || meta->count < 1 || meta->count > MAX_DIM)
        return fail(err, "metadata model.q_temp: expected 1..%d numbers of type f32", MAX_DIM);
    m->q_temp = meta->values;
    m->n_q_temp = (int)meta->count;
    return check_finite("model.q_temp", meta, err) ||
           get_int(m, "model.q_temp_length", 1, 1 << 30, &m->q_temp_length, err);
}

// What norms a layer has where the file does not say.
static int usual_norms(const Layer *l) {
    return l->topology == SEQUENTIAL ? NORM_PRE_ATTN | NORM_PRE_FFN : NORM_PRE_ATTN;
}

static int get_layer_ints(Model *m, Error *err) {
    enum { REQUIRED = 1 };
    const struct {
        const char *key;
        size_t field;
        int min, max, required;
    } knobs[] = {
        {"layer.n_heads", offsetof(Layer, n_heads), 1, MAX_DIM, REQUIRED},
        {"layer.n_kv_heads", offsetof(Layer, n_kv_heads), 1, MAX_DIM, REQUIRED},
        {"layer.head_dim", offsetof(Layer, head_dim), 1, MAX_DIM, REQUIRED},
        {"layer.rope", offsetof(Layer, rope), -1, m->n_rope_sets - 1, REQUIRED},
        {"layer.window", offsetof(Layer, window), 0, 1 << 30, REQUIRED},
        {"layer.topology", offsetof(Layer, topology), SEQUENTIAL, PARALLEL, REQUIRED},
        {"layer.d_ff", offsetof(Layer, d_ff), 0, MAX_DIM, REQUIRED},
        {"layer.ffn", offsetof(Layer, gated), 0, 1, REQUIRED},
        {"layer.act", offsetof(Layer, act), 0, N_ACTS - 1, REQUIRED},
        {"layer.norms", offsetof(Layer, norms), 0, 15, 0},
        {"layer.qk_norm", offsetof(Layer, qk_norm), 0, N_QK_NORMS - 1, 0},
        {"layer.mixer", offsetof(Layer, mixer), 0, N_MIXERS - 1, 0},
        {"layer.latent", offsetof(Layer, latent), 0, MAX_DIM, 0},
        {"layer.n_nope", offsetof(Layer, n_nope), 1, MAX_DIM, 0},
        {"layer.n_value", offsetof(Layer, n_value), 1, MAX_DIM, 0},
        {"layer.taps", offsetof(Layer, n_taps), 0, MAX_TAPS, 0},
        {"layer.delta_k_heads", offsetof(Layer, n_k_heads), 0, MAX_DIM, 0},
        {"layer.delta_v_heads", offsetof(Layer, n_v_heads), 0, MAX_DIM, 0},
        {"layer.delta_k_dim", offsetof(Layer, k_dim), 0, MAX_DIM, 0},
        {"layer.delta_v_dim", offsetof(Layer, v_dim), 0, MAX_DIM, 0},
        {"layer.experts", offsetof(Layer, n_experts), 0, MAX_EXPERTS, 0},
        {"layer.top_k", offsetof(Layer, top_k), 0, MAX_TOP_K, 0},
        {"layer.d_expert", offsetof(Layer, d_expert), 0, MAX_DIM, 0},
        {"layer.score", offsetof(Layer, score), 0, N_SCORES - 1, 0},
        {"layer.groups", offsetof(Layer, n_groups), 0, MAX_GROUPS, 0},
        {"layer.top_groups", offsetof(Layer, top_groups), 0, MAX_GROUPS, 0},
        {"layer.group_score", offsetof(Layer, group_score), 0, GROUP_TOP2, 0},
        {"layer.renorm", offsetof(Layer, renorm), 0, 1, 0},
        {"layer.kv_source", offsetof(Layer, kv_source), -1, m->n_layers - 1, 0},
    };
    for (int i = 0; i < m->n_layers; i++) m->layers[i].kv_source = -1;
    for (size_t k = 0; k < sizeof knobs / sizeof *knobs; k++) {
        const Meta *meta = NULL;
        if (!knobs[k].required && !model_meta(m, knobs[k].key)) continue;
        if (need_meta(m, knobs[k].key, META_I32, (size_t)m->n_layers, &meta, err)) return -1;
        for (int i = 0; i < m->n_layers; i++) {
            int32_t v = ((const int32_t *)meta->values)[meta->count == 1 ? 0 : i];
            if (v < knobs[k].min || v > knobs[k].max)
                return fail(err, "metadata %s of layer %d is %d, expected %d..%d", knobs[k].key, i, v, knobs[k].min,
                            knobs[k].max);
            memcpy((char *)&m->layers[i] + knobs[k].field, &v, sizeof v);
        }
    }
    for (int i = 0; i < m->n_layers && !model_meta(m, "layer.norms"); i++) m->layers[i].norms = usual_norms(&m->layers[i]);
    return 0;
}

static int get_layer_floats(Model *m, Error *err) {
    static const struct {
        const char *key;
        size_t field;
        float usual, min;  // usual: where the file does not say; NAN: it must
    } knobs[] = {
        {"layer.attn_scale", offsetof(Layer, attn_scale), NAN, -INFINITY},
        {"layer.softcap", offsetof(Layer, softcap), 0.0f, 0.0f},
        {"layer.clip", offsetof(Layer, clip), 0.0f, 0.0f},
        {"layer.residual_scale", offsetof(Layer, residual_scale), 1.0f, -INFINITY},
        {"layer.renorm_eps", offsetof(Layer, renorm_eps), 0.0f, 0.0f},
        {"layer.jitter", offsetof(Layer, jitter), 0.0f, 0.0f},
        {"layer.routed_scale", offsetof(Layer, routed_scale), 1.0f, -INFINITY},
    };
    for (size_t k = 0; k < sizeof knobs / sizeof *knobs; k++) {
        const Meta *meta = NULL;
        bool needed = isnan(knobs[k].usual) || model_meta(m, knobs[k].key);
        if (needed && need_meta(m, knobs[k].key, META_F32, (size_t)m->n_layers, &meta, err)) return -1;
        for (int i = 0; i < m->n_layers; i++) {
            float v = meta ? ((const float *)meta->values)[meta->count == 1 ? 0 : i] : knobs[k].usual;
            if (!isfinite(v)) return fail(err, "metadata %s of layer %d is not a finite number", knobs[k].key, i);
            if (v < knobs[k].min)
                return fail(err, "metadata %s of layer %d is %g, expected %g or more", knobs[k].key, i, (double)v,
                            (double)knobs[k].min);
            memcpy((char *)&m->layers[i] + knobs[k].field, &v, sizeof v);
        }
    }
    return 0;
}

static int check_experts(const Layer *l, int i, Error *err) {
    if (!l->n_experts) return l->d_ff ? 0 : fail(err, "layer %d: d_ff is 0, and there are no experts", i);
    if (l->top_k < 1 || l->top_k > l->n_experts || l->d_expert < 1)
        return fail(err, "layer %d: %d of %d experts of width %d, expected 1 or more of each, and no more than there are", i,
                    l->top_k, l->n_experts, l->d_expert);
    if (l->n_groups < 2) return 0;
    if (l->n_experts % l->n_groups || l->top_groups < 1 || l->top_groups > l->n_groups ||
        l->n_experts / l->n_groups * l->top_groups < l->top_k)
        return fail(err, "layer %d: %d experts in %d groups, of which %d are kept, leave no %d to choose", i, l->n_experts,
                    l->n_groups, l->top_groups, l->top_k);
    return 0;
}

// What latent attention and other mixers need; sets the width of a convolution.
static int check_mixer(const Model *m, Layer *l, int i, Error *err) {
    int longest = MAX_DIM / l->n_heads;
    if (l->latent && (l->mixer != MIXER_ATTENTION || l->n_kv_heads != 1 || l->latent > l->head_dim))
        return fail(err, "layer %d: a latent of %d numbers needs attention with one KV head at least as long, not %d of %d",
                    i, l->latent, l->n_kv_heads, l->head_dim);
    if (l->latent && (l->n_heads > MAX_LATENT_HEADS || l->n_nope < 1 || l->n_nope + l->head_dim > longest ||
                      l->n_value < 1 || l->n_value > longest))
        return fail(err, "layer %d: latent attention has %d heads of %d and %d numbers, expected 1..%d of 1 or more", i,
                    l->n_heads, l->n_nope, l->n_value, MAX_LATENT_HEADS);
    if (l->mixer == MIXER_ATTENTION) return 0;
    if (l->n_taps < 1) return fail(err, "layer %d: taps is %d, its mixer has a convolution", i, l->n_taps);
    l->n_channels = m->n_embd;
    if (l->mixer == MIXER_SHORTCONV) return 3 * (int64_t)m->n_embd <= MAX_DIM ? 0 : fail(err, "n_embd is %d", m->n_embd);
    if (l->n_k_heads < 1 || l->n_v_heads < 1 || l->n_v_heads % l->n_k_heads || l->k_dim < 1 || l->v_dim < 1)
        return fail(err, "layer %d: the delta rule has %d key heads of %d and %d value heads of %d, expected a multiple of "
                    "them", i, l->n_k_heads, l->k_dim, l->n_v_heads, l->v_dim);
    int64_t channels = 2 * (int64_t)l->n_k_heads * l->k_dim + (int64_t)l->n_v_heads * l->v_dim;
    if (channels > MAX_DIM || (int64_t)l->n_v_heads * l->k_dim * l->v_dim > (int64_t)MAX_DIM * LANES)
        return fail(err, "layer %d: heads of the delta rule exceed %d numbers", i, MAX_DIM);
    l->n_channels = (int)channels;
    return 0;
}

// A layer may read what one before it, of the same shape, has put into the cache. Marks that one.
static int check_kv_source(const Model *m, int i, Error *err) {
    const Layer *l = &m->layers[i];
    if (l->kv_source < 0) return 0;
    Layer *source = &m->layers[l->kv_source];
    if (l->kv_source >= i || source->kv_source >= 0 || source->n_kv_heads != l->n_kv_heads ||
        source->head_dim != l->head_dim || l->mixer != MIXER_ATTENTION || source->mixer != MIXER_ATTENTION || l->latent ||
        source->latent)
        return fail(err, "layer %d: kv_source is %d, expected an earlier layer with KV heads of its own of the same shape",
                    i, l->kv_source);
    source->kv_read = true;
    return 0;
}

static int check_layer(const Model *m, int i, Error *err) {
    Layer *l = &m->layers[i];
    if (l->n_heads % l->n_kv_heads)
        return fail(err, "layer %d: n_heads %d is no multiple of n_kv_heads %d", i, l->n_heads, l->n_kv_heads);
    if ((int64_t)l->n_heads * l->head_dim > MAX_DIM)
        return fail(err, "layer %d: n_heads %d times head_dim %d exceeds %d", i, l->n_heads, l->head_dim, MAX_DIM);
    if (check_mixer(m, l, i, err) || check_experts(l, i, err) || check_kv_source(m, i, err)) return -1;
    if (l->rope >= 0 && 2 * m->rope[l->rope].n_pairs > l->head_dim - l->latent)
        return fail(err, "layer %d: rope set %d rotates %d elements, head_dim is %d%s", i, l->rope,
                    2 * m->rope[l->rope].n_pairs, l->head_dim - l->latent, l->latent ? " without the latent" : "");
    if ((l->act == ACT_XIELU && l->gated) || (l->act == ACT_CLAMPED_SWIGLU && !l->gated))
        return fail(err, "layer %d: activation %d %s", i, l->act, l->gated ? "takes no gate" : "needs a gate");
    return 0;
}

static int parse_knobs(Model *m, Error *err) {
    int layernorm;
    if (get_int(m, "model.vocab_size", 1, MAX_DIM, &m->vocab_size, err) ||
        get_int(m, "model.n_embd", 1, MAX_DIM, &m->n_embd, err) ||
        get_int(m, "model.n_layers", 1, MAX_LAYERS, &m->n_layers, err) ||
        get_int(m, "model.context", 1, 1 << 30, &m->context, err) || get_int(m, "model.norm", 0, 1, &layernorm, err) ||
        get_float(m, "model.norm_eps", &m->norm_eps, err))
        return -1;
    m->layernorm = layernorm;
    m->emb_scale = 1.0f;
    if (model_meta(m, "model.emb_scale") && get_float(m, "model.emb_scale", &m->emb_scale, err)) return -1;
    m->latent_eps = m->norm_eps;
    if (model_meta(m, "model.latent_eps") && get_float(m, "model.latent_eps", &m->latent_eps, err)) return -1;
    if (model_meta(m, "model.ple") && get_int(m, "model.ple", 0, MAX_DIM / m->n_layers, &m->ple, err)) return -1;
    if (model_meta(m, "model.final_softcap") && get_float(m, "model.final_softcap", &m->final_softcap, err)) return -1;
    if (m->final_softcap < 0.0f)
        return fail(err, "metadata model.final_softcap is %g, expected 0 or more", (double)m->final_softcap);
    m->layers = calloc((size_t)m->n_layers, sizeof *m->layers);
    if (!m->layers) return fail(err, "no memory for %d layers", m->n_layers);
    if (get_rope_sets(m, err) || get_q_temp(m, err) || get_layer_ints(m, err) || get_layer_floats(m, err)) return -1;
    for (int i = 0; i < m->n_layers; i++)
        if (check_layer(m, i, err)) return -1;
    return 0;
}

// ---- tensors by name ----

typedef struct {  // the tensor table, sorted by name
    const Tensor **sorted;
    int n;
} Index;

static int compare_names(const char *a, size_t a_len, const char *b, size_t b_len) {
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int by_name(const void *a, const void *b) {
    const Tensor *x = *(const Tensor *const *)a, *y = *(const Tensor *const *)b;
    return compare_names(x->name, x->name_len, y->name, y->name_len);
}

static int make_index(Index *index, const Model *m, Error *err) {
    *index = (Index){malloc(sizeof *index->sorted * (size_t)(m->n_tensors + 1)), m->n_tensors};
    if (!index->sorted) return fail(err, "no memory for an index of %d tensors", m->n_tensors);
    for (int i = 0; i < m->n_tensors; i++) index->sorted[i] = &m->tensors[i];
    qsort(index->sorted, (size_t)m->n_tensors, sizeof *index->sorted, by_name);
    for (int i = 1; i < m->n_tensors; i++)
        if (by_name(&index->sorted[i - 1], &index->sorted[i]) == 0)
            return fail(err, "tensor %.*s occurs twice", shown(index->sorted[i]->name_len), index->sorted[i]->name);
    return 0;
}

static Tensor *find(const Index *index, const char *name) {
    int low = 0, high = index->n;
    while (low < high) {
        int mid = (low + high) / 2;
        const Tensor *t = index->sorted[mid];
        int order = compare_names(t->name, t->name_len, name, strlen(name));
        if (order == 0) {
            ((Tensor *)t)->used = true;
            return (Tensor *)t;
        }
        if (order < 0) low = mid + 1;
        else high = mid;
    }
    return NULL;
}

// A tensor's name: that of the layer, or of the model where layer is -1.
typedef struct {
    char text[80];
} Name;

static Name name_of(int layer, const char *stem, const char *suffix) {
    Name name;
    if (layer < 0) snprintf(name.text, sizeof name.text, "%s%s", stem, suffix);
    else snprintf(name.text, sizeof name.text, "layers.%d.%s%s", layer, stem, suffix);
    return name;
}

// An f32 vector of n; *out stays NULL if the file has none.
static int get_vector(const Index *index, const char *name, int n, const float **out, Error *err) {
    const Tensor *t = find(index, name);
    if (!t) return 0;
    if (t->dtype != F32 || t->rows != 1 || t->cols != (size_t)n || t->bytes != 4 * (size_t)n)
        return fail(err, "tensor %s: it is %s (%zu, %zu) of %zu bytes, expected f32 (1, %d)", name, dtype_name(t->dtype),
                    t->rows, t->cols, t->bytes, n);
    *out = (const float *)t->data;
    return 0;
}

// weight is required where `need` says so.
static int get_norm(const Index *index, int layer, const char *stem, int n, bool need, Norm *out, Error *err) {
    Name w = name_of(layer, stem, ""), b = name_of(layer, stem, ".bias");
    if (get_vector(index, w.text, n, &out->w, err) || get_vector(index, b.text, n, &out->b, err)) return -1;
    if (out->w || (!need && !out->b)) return 0;
    return fail(err, "tensor %s is missing", w.text);
}

static size_t matrix_bytes(Dtype dtype, int n_out, int n_in) {
    return round_up((size_t)n_out, LANES) / LANES * panel_bytes(dtype, n_in);
}

// n matrices, each but the last filled up to whole panels.
static int get_stack(const Index *index, int layer, const char *stem, int n, int n_out, int n_in, Matrix *out, Error *err) {
    Name name = name_of(layer, stem, ""), bias = name_of(layer, stem, ".bias");
    const Tensor *t = find(index, name.text);
    if (!t) return fail(err, "tensor %s is missing", name.text);
    size_t rows = (size_t)(n - 1) * round_up((size_t)n_out, LANES) + (size_t)n_out;
    if (rows > MAX_DIM) return fail(err, "tensor %s: %d matrices of %d rows exceed %d", name.text, n, n_out, MAX_DIM);
    size_t bytes = matrix_bytes(t->dtype, (int)rows, n_in);
    if (t->rows != rows || t->cols != (size_t)n_in || t->bytes != bytes)
        return fail(err, "tensor %s: it is (%zu, %zu) of %zu bytes, expected (%zu, %d) of %zu", name.text, t->rows, t->cols,
                    t->bytes, rows, n_in, bytes);
    *out = (Matrix){t->data, t->dtype, n_out, n_in, NULL};
    return get_vector(index, bias.text, (int)rows, &out->bias, err);
}

static int get_matrix(const Index *index, int layer, const char *stem, int n_out, int n_in, Matrix *out, Error *err) {
    return get_stack(index, layer, stem, 1, n_out, n_in, out, err);
}

static int get_optional_matrix(const Index *x, int layer, const char *stem, int n_out, int n_in, Matrix *out, Error *err) {
    return find(x, name_of(layer, stem, "").text) ? get_matrix(x, layer, stem, n_out, n_in, out, err) : 0;
}

static int need_vector(const Index *x, int layer, const char *stem, int n, const float **out, Error *err) {
    Name name = name_of(layer, stem, "");
    if (get_vector(x, name.text, n, out, err)) return -1;
    return *out ? 0 : fail(err, "tensor %s is missing", name.text);
}

// The norms of the residual stream that layer.norms names.
static int get_layer_norms(const Model *m, const Index *x, int i, Error *err) {
    Layer *l = &m->layers[i];
    const struct {
        int bit;
        const char *name;
        Norm *norm;
    } norms[] = {
        {NORM_PRE_ATTN, "attn_norm", &l->attn_norm},
        {NORM_POST_ATTN, "attn_post_norm", &l->attn_post_norm},
        {NORM_PRE_FFN, "ffn_norm", &l->ffn_norm},
        {NORM_POST_FFN, "ffn_post_norm", &l->ffn_post_norm},
    };
    for (size_t k = 0; k < sizeof norms / sizeof *norms; k++)
        if (l->norms & norms[k].bit && get_norm(x, i, norms[k].name, m->n_embd, true, norms[k].norm, err)) return -1;
    return 0;
}

static int get_act_params(const Index *x, int i, Layer *l, Error *err) {
    return l->act < N_PLAIN_ACTS ? 0 : need_vector(x, i, "ffn_act", 4, &l->act_params, err);
}

static int get_attention(const Index *x, int i, int d, Layer *l, Error *err) {
    int q = l->n_heads * l->head_dim, kv = l->n_kv_heads * l->head_dim;
    bool all_heads = l->qk_norm == QK_WHOLE || l->qk_norm == QK_DISTINCT;
    const Tensor *gate = find(x, name_of(i, "attn_gate", "").text);
    int gates = gate && gate->rows == (size_t)l->n_heads ? l->n_heads : q;
    if (l->kv_source < 0 &&
        (get_matrix(x, i, "attn_k", kv, d, &l->k, err) || get_matrix(x, i, "attn_v", kv, d, &l->v, err) ||
         get_norm(x, i, "attn_k_norm", all_heads ? kv : l->head_dim, false, &l->k_norm, err) ||
         get_norm(x, i, "attn_v_norm", l->head_dim, false, &l->v_norm, err)))
        return -1;
    return get_matrix(x, i, "attn_q", q, d, &l->q, err) || get_matrix(x, i, "attn_o", d, q, &l->o, err) ||
           get_norm(x, i, "attn_q_norm", all_heads ? q : l->head_dim, false, &l->q_norm, err) ||
           get_norm(x, i, "attn_sub_norm", q, false, &l->attn_sub_norm, err) ||
           get_optional_matrix(x, i, "attn_gate", gates, d, &l->attn_gate, err);
}

static int get_latent_attention(const Index *x, int i, int d, Layer *l, Error *err) {
    int rank = d, heads = l->n_heads;
    const Tensor *down = find(x, name_of(i, "attn_q_down", "").text);
    if (down) {
        rank = (int)down->rows;
        if (get_matrix(x, i, "attn_q_down", rank, d, &l->q_down, err) ||
            get_norm(x, i, "attn_q_down_norm", rank, true, &l->q_down_norm, err))
            return -1;
    }
    return get_matrix(x, i, "attn_q", heads * (l->n_nope + l->head_dim - l->latent), rank, &l->q, err) ||
           get_matrix(x, i, "attn_k", l->head_dim, d, &l->k, err) ||
           get_norm(x, i, "attn_latent_norm", l->latent, true, &l->latent_norm, err) ||
           get_stack(x, i, "attn_k_up", heads, l->latent, l->n_nope, &l->k_up, err) ||
           get_stack(x, i, "attn_v_up", heads, l->n_value, l->latent, &l->v_up, err) ||
           get_matrix(x, i, "attn_o", d, heads * l->n_value, &l->o, err);
}

static int get_mixer(const Index *x, int i, int d, Layer *l, Error *err) {
    int heads = l->n_v_heads, width = heads * l->v_dim, conv = l->n_taps * l->n_channels;
    switch (l->mixer) {
    case MIXER_SHORTCONV:
        return get_matrix(x, i, "mix_in", 3 * d, d, &l->mix_in, err) || need_vector(x, i, "conv", conv, &l->conv, err) ||
               get_matrix(x, i, "mix_out", d, d, &l->mix_out, err);
    case MIXER_DELTANET:
        return get_matrix(x, i, "mix_in", l->n_channels, d, &l->mix_in, err) ||
               need_vector(x, i, "conv", conv, &l->conv, err) ||
               get_matrix(x, i, "mix_out", d, width, &l->mix_out, err) ||
               get_matrix(x, i, "delta_gate", width, d, &l->delta_gate, err) ||
               get_matrix(x, i, "delta_beta", heads, d, &l->delta_beta, err) ||
               get_matrix(x, i, "delta_decay", heads, d, &l->delta_decay, err) ||
               need_vector(x, i, "delta_rate", heads, &l->delta_rate, err) ||
               get_norm(x, i, "delta_norm", l->v_dim, true, &l->delta_norm, err);
    default: return l->latent ? get_latent_attention(x, i, d, l, err) : get_attention(x, i, d, l, err);
    }
}

static int get_ffn(const Index *x, int i, int d, Layer *l, Error *err) {
    return get_norm(x, i, "ffn_sub_norm", l->d_ff, false, &l->ffn_sub_norm, err) ||
           (l->gated && get_matrix(x, i, "ffn_gate", l->d_ff, d, &l->gate, err)) ||
           get_matrix(x, i, "ffn_up", l->d_ff, d, &l->up, err) || get_matrix(x, i, "ffn_down", d, l->d_ff, &l->down, err) ||
           (l->n_experts && get_optional_matrix(x, i, "shared_gate", 1, d, &l->shared_gate, err));
}

static int get_experts(const Index *x, int i, int d, Layer *l, Error *err) {
    int n = l->n_experts;
    return get_matrix(x, i, "router", n, d, &l->router, err) ||
           get_vector(x, name_of(i, "selection_bias", "").text, n, &l->selection_bias, err) ||
           (l->gated && get_stack(x, i, "expert_gate", n, l->d_expert, d, &l->expert_gate, err)) ||
           get_stack(x, i, "expert_up", n, l->d_expert, d, &l->expert_up, err) ||
           get_stack(x, i, "expert_down", n, d, l->d_expert, &l->expert_down, err);
}

// The layer's part of what tokens have for each layer.
static int get_ple(const Index *x, int i, int d, int ple, Layer *l, Error *err) {
    return get_matrix(x, i, "ple_gate", ple, d, &l->ple_gate, err) ||
           get_matrix(x, i, "ple_out", d, ple, &l->ple_out, err) ||
           get_norm(x, i, "ple_norm", d, true, &l->ple_norm, err);
}

static int get_layer(const Model *m, const Index *x, int i, Error *err) {
    Layer *l = &m->layers[i];
    return get_layer_norms(m, x, i, err) ||
           get_vector(x, name_of(i, "attn_sinks", "").text, l->n_heads, &l->sinks, err) ||
           get_vector(x, name_of(i, "attn_slopes", "").text, l->n_heads, &l->slopes, err) || get_act_params(x, i, l, err) ||
           get_vector(x, name_of(i, "out_scale", "").text, 1, &l->out_scale, err) ||
           (m->ple && get_ple(x, i, m->n_embd, m->ple, l, err)) || get_mixer(x, i, m->n_embd, l, err) ||
           (l->d_ff && get_ffn(x, i, m->n_embd, l, err)) || (l->n_experts && get_experts(x, i, m->n_embd, l, err));
}

static int get_tensors(Model *m, const Index *x, Error *err) {
    if (get_matrix(x, -1, "embed", m->vocab_size, m->n_embd, &m->embed, err) ||
        get_norm(x, -1, "embed_norm", m->n_embd, false, &m->embed_norm, err) ||
        get_norm(x, -1, "norm", m->n_embd, true, &m->norm, err))
        return -1;
    if (find(x, "embed_pos")) {
        if (get_matrix(x, -1, "embed_pos", m->context, m->n_embd, &m->embed_pos, err)) return -1;
        if (m->embed_pos.dtype != F32)
            return fail(err, "tensor embed_pos is %s, expected f32", dtype_name(m->embed_pos.dtype));
    }
    int all = m->n_layers * m->ple;
    if (m->ple && (get_matrix(x, -1, "ple_table", m->vocab_size, all, &m->ple_table, err) ||
                   get_matrix(x, -1, "ple_in", all, m->n_embd, &m->ple_in, err) ||
                   get_norm(x, -1, "ple_in_norm", m->ple, true, &m->ple_in_norm, err)))
        return -1;
    m->output = m->embed;
    if (find(x, "output") && get_matrix(x, -1, "output", m->vocab_size, m->n_embd, &m->output, err)) return -1;
    if (get_vector(x, "output.bias", m->vocab_size, &m->output.bias, err)) return -1;
    for (int i = 0; i < m->n_layers; i++)
        if (get_layer(m, x, i, err)) return -1;
    return 0;
}

// ---- the whole ----

// Bytes of one matrix of a stack, its bias included.
static size_t bytes_of_one(const Matrix *w) {
    size_t bias = w->bias ? round_up((size_t)w->n_out, LANES) * sizeof *w->bias : 0;
    return matrix_bytes(w->dtype, w->n_out, w->n_in) + bias;
}

// Bytes of the experts that a token does not choose.
static size_t idle_bytes(const Layer *l) {
    size_t one = bytes_of_one(&l->expert_gate) + bytes_of_one(&l->expert_up) + bytes_of_one(&l->expert_down);
    return one * (size_t)(l->n_experts - l->top_k);
}

// Whatever nobody asked for, this build does not know: a result without it would be wrong.
static int refuse_unknown(Model *m, Error *err) {
    for (int i = 0; i < m->n_meta; i++) {
        const Meta *k = &m->meta[i];
        bool knob = (k->key_len > 6 && !memcmp(k->key, "model.", 6)) || (k->key_len > 6 && !memcmp(k->key, "layer.", 6));
        if (knob && !k->used) return fail(err, "knob %.*s is not known to this build", shown(k->key_len), k->key);
    }
    for (int i = 0; i < m->n_tensors; i++) {
        const Tensor *t = &m->tensors[i];
        if (!t->used) return fail(err, "tensor %.*s is not known to this build", shown(t->name_len), t->name);
        m->weight_bytes += t->bytes;
    }
    for (int i = 0; i < m->n_layers; i++) m->weight_bytes -= idle_bytes(&m->layers[i]);
    if (m->output.data != m->embed.data) m->weight_bytes -= matrix_bytes(m->embed.dtype, m->vocab_size, m->n_embd);
    if (m->ple) m->weight_bytes -= matrix_bytes(m->ple_table.dtype, m->vocab_size, m->n_layers * m->ple);
    if (m->embed_pos.data) m->weight_bytes -= matrix_bytes(F32, m->context, m->n_embd);
    return 0;
}

int model_parse(Model *model, const uint8_t *bytes, size_t size, Error *err) {
    *model = (Model){.map = {bytes, size}};
    Index index = {0};
    int status = parse_header(model, bytes, size, err) || parse_knobs(model, err) || make_index(&index, model, err) ||
                 get_tensors(model, &index, err) || refuse_unknown(model, err);
    free(index.sorted);
    if (!status) return 0;
    model->map = (Mapping){0};  // it stays the caller's
    model_close(model);
    return -1;
}

int model_open(Model *model, const char *path, Error *err) {
    Mapping map = {0};
    if (map_file(&map, path, err)) return -1;
    Error why;
    if (model_parse(model, map.data, map.size, &why) == 0) return 0;
    unmap_file(&map);
    return fail(err, "%s: %s", path, why.text);
}

void model_close(Model *model) {
    unmap_file(&model->map);
    free(model->meta);
    free(model->tensors);
    free(model->layers);
    *model = (Model){0};
}

// CRC-32 with the reflected polynomial 0xedb88320 (IEEE 802.3).
static uint32_t crc32(const uint8_t *p, size_t n) {
    uint32_t table[8][256], crc = ~0u;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
        table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
    for (; n >= 8; n -= 8, p += 8) {  // eight bytes a step: table k moves a byte's remainder over k more bytes
        uint32_t low = crc ^ u32_at(p), high = u32_at(p + 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; n; n--, p++) crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
    return ~crc;
}

int model_check(const Model *model, Error *err) {
    uint32_t expected = u32_at(model->map.data + 12);
    uint32_t found = crc32(model->map.data + HEADER_BYTES, model->map.size - HEADER_BYTES);
    if (found == expected) return 0;
    return fail(err, "the checksum is %08x, the header says %08x: the file is damaged; export or copy it again", found,
                expected);
}
