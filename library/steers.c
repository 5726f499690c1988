// heads_read_steers: the control vectors of a GGUF file (version 2 or 3). Of its metadata only the
// alignment matters. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "system/system.h"

enum { GGUF_U32 = 4, GGUF_STRING = 8, GGUF_ARRAY = 9, GGUF_TYPES = 13, GGML_F32 = 0,
       DEEPEST = 4, MAX_DIMS = 4 };

typedef struct {
    const uint8_t *at, *end;
    bool cut;  // something would lie behind the end; all that is read then is 0
} Bytes;

static const uint8_t *take(Bytes *r, uint64_t n) {
    const uint8_t *taken = r->at;
    if (n > (uint64_t)(r->end - r->at)) r->cut = true;
    if (r->cut) return NULL;
    r->at += n;
    return taken;
}

static uint64_t take_number(Bytes *r, int bytes) {
    const uint8_t *data = take(r, (uint64_t)bytes);
    uint64_t value = 0;
    for (int i = 0; data && i < bytes; i++) value |= (uint64_t)data[i] << (8 * i);
    return value;
}

typedef struct {
    const char *text;
    size_t len;
} String;

static String take_string(Bytes *r) {
    uint64_t len = take_number(r, 8);
    const uint8_t *text = take(r, len);
    return (String){(const char *)text, text ? (size_t)len : 0};
}

static bool begins(String s, const char *with) {
    return s.len >= strlen(with) && memcmp(s.text, with, strlen(with)) == 0;
}

static void skip_value(Bytes *r, uint32_t type, int depth) {
    static const uint8_t sizes[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type >= GGUF_TYPES || depth > DEEPEST) r->cut = true;
    else if (type == GGUF_STRING) take_string(r);
    else if (type != GGUF_ARRAY) take(r, sizes[type]);
    if (r->cut || type != GGUF_ARRAY) return;
    uint32_t element = (uint32_t)take_number(r, 4);
    uint64_t n = take_number(r, 8);
    for (uint64_t i = 0; i < n && !r->cut; i++) skip_value(r, element, depth + 1);
}

// Skips the metadata; returns the alignment of tensors' data.
static uint64_t skip_metadata(Bytes *r, uint64_t n) {
    uint64_t alignment = 32;
    for (uint64_t i = 0; i < n && !r->cut; i++) {
        String key = take_string(r);
        uint32_t type = (uint32_t)take_number(r, 4);
        Bytes value = *r;
        skip_value(r, type, 0);
        if (key.len == 17 && begins(key, "general.alignment") && type == GGUF_U32)
            alignment = take_number(&value, 4);
    }
    if (!alignment) r->cut = true;
    return alignment;
}

typedef struct {
    String name;
    int layer;         // of direction.N; -1: it is another tensor
    uint32_t n_dims, type;
    uint64_t n, offset;  // n: numbers in the first dimension; offset: in the data
} Direction;

static Direction take_tensor(Bytes *r) {
    static const char prefix[] = "direction.";
    Direction d = {.name = take_string(r), .layer = -1};
    d.n_dims = (uint32_t)take_number(r, 4);
    if (d.n_dims > MAX_DIMS) r->cut = true;
    for (uint32_t i = 0; i < d.n_dims && !r->cut; i++) {
        uint64_t n = take_number(r, 8);
        if (i == 0) d.n = n;
    }
    d.type = (uint32_t)take_number(r, 4);
    d.offset = take_number(r, 8);
    size_t at = sizeof prefix - 1, digits = d.name.len - at;
    if (!begins(d.name, prefix) || digits < 1 || digits > 6) return d;
    for (d.layer = 0; at < d.name.len && d.layer >= 0; at++) {
        int digit = d.name.text[at] - '0';
        d.layer = digit < 0 || digit > 9 ? -1 : 10 * d.layer + digit;
    }
    return d;
}

static int check_direction(const Model *m, const Direction *d, Error *err) {
    if (d->layer >= m->n_layers)
        return fail(err, "direction.%d is of a layer that the model has not: there are 0..%d",
                    d->layer, m->n_layers - 1);
    if (d->n_dims != 1 || d->type != GGML_F32)
        return fail(err, "direction.%d is no vector of F32 numbers: it has type %u and %u "
                    "dimensions", d->layer, d->type, d->n_dims);
    if (d->n == (uint64_t)m->n_embd) return 0;
    return fail(err, "direction.%d has %llu numbers, and the model's stream %d: it is for another "
                "model", d->layer, (unsigned long long)d->n, m->n_embd);
}

// Room for n vectors and their list.
static heads_steer *new_steers(size_t n, size_t n_embd) {
    heads_steer *steers = calloc(n, sizeof *steers + n_embd * sizeof(float));
    float *vectors = (float *)(steers + n);
    for (size_t i = 0; steers && i < n; i++) steers[i].vector = vectors + i * n_embd;
    return steers;
}

static long take_steers(const Model *m, Mapping map, float scale, heads_steer **steers,
                        Error *err) {
    static const char cut[] = "it is cut off or damaged";
    Bytes r = {map.data, map.data + map.size, false};
    uint32_t magic = (uint32_t)take_number(&r, 4), version = (uint32_t)take_number(&r, 4);
    if (r.cut || magic != 0x46554747 || version < 2 || version > 3)
        return fail(err, "it is no GGUF file of version 2 or 3");
    uint64_t n_tensors = take_number(&r, 8), n_values = take_number(&r, 8);
    uint64_t alignment = skip_metadata(&r, n_values);
    Bytes again = r;
    long n = 0;
    for (uint64_t i = 0; i < n_tensors && !r.cut; i++) {
        Direction d = take_tensor(&r);
        if (r.cut || d.layer < 0) continue;
        if (check_direction(m, &d, err)) return -1;
        n++;
    }
    if (r.cut) return fail(err, cut);
    if (!n) return fail(err, "it has no control vectors, tensors direction.1, direction.2 ..");
    uint64_t begin = (uint64_t)(r.at - map.data);
    begin += (alignment - begin % alignment) % alignment;
    if (begin > map.size) return fail(err, cut);
    size_t n_embd = (size_t)m->n_embd, bytes = n_embd * sizeof(float);
    heads_steer *to = *steers = new_steers((size_t)n, n_embd);
    if (!to) return fail(err, "no memory for %ld vectors", n);
    for (uint64_t i = 0; i < n_tensors; i++) {
        Direction d = take_tensor(&again);
        if (d.layer < 0) continue;
        Bytes data = {map.data + begin, map.data + map.size, false};
        take(&data, d.offset);
        const uint8_t *vector = take(&data, bytes);
        if (!vector) return fail(err, cut);
        memcpy((float *)to->vector, vector, bytes);
        to->layer = d.layer;
        to++->scale = scale;
    }
    return n;
}

long heads_read_steers(const heads_model *m, const char *path, float scale, heads_steer **steers,
                       heads_error *err) {
    Mapping map;
    Error why;
    if (need(steers, "room for vectors", err)) return -1;
    *steers = NULL;
    if (need(m, "a model", err) || need(path, "the path of a file", err) ||
        map_file(&map, path, err))
        return -1;
    long n = take_steers(m, map, scale, steers, &why);
    unmap_file(&map);
    if (n >= 0) return n;
    free(*steers);
    *steers = NULL;
    return fail(err, "%s: %s", path, why.text);
}
