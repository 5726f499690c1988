// Metadata read with its bounds: every number of a file is checked before it is used.
#include "metadata.h"

#include <limits.h>

// Metadata of a type; *out is NULL and *n is 0 where it is absent.
static int meta_values(const Model *model, const char *key, uint32_t type, const void **out, size_t *n,
                       Error *err) {
    const Meta *meta = model_meta(model, key);
    *out = NULL;
    *n = 0;
    if (!meta) return 0;
    if (meta->type != type)
        return fail(err, "metadata %s: type is %u, expected %u (%s)", key, meta->type, type,
                    type == META_U8 ? "u8" : "i32");
    *out = meta->values;
    *n = meta->count;
    return 0;
}

int meta_ints(const Model *model, const char *key, size_t count, int min, int max, Ints *out, Error *err) {
    const void *values;
    if (meta_values(model, key, META_I32, &values, &out->n, err)) return -1;
    out->v = values;
    if (count != SIZE_MAX && out->n != count)
        return fail(err, "metadata %s: it has %zu values, expected %zu", key, out->n, count);
    for (size_t i = 0; i < out->n; i++)
        if (out->v[i] < min || out->v[i] > max)
            return fail(err, "metadata %s: value %zu is %d, expected %d..%d", key, i, out->v[i], min, max);
    return 0;
}

int meta_bytes(const Model *model, const char *key, size_t count, int max, const uint8_t **out,
               Error *err) {
    const void *values;
    size_t n;
    if (meta_values(model, key, META_U8, &values, &n, err)) return -1;
    *out = values;
    if (n != count) return fail(err, "metadata %s: it has %zu values, expected %zu", key, n, count);
    for (size_t i = 0; max < UINT8_MAX && i < n; i++)
        if ((*out)[i] > max)
            return fail(err, "metadata %s: value %zu is %u, expected 0..%d", key, i, (*out)[i], max);
    return 0;
}

int meta_text(const Model *model, const char *key, const char **out, size_t *len, Error *err) {
    const void *values;
    if (meta_values(model, key, META_U8, &values, len, err)) return -1;
    *out = values;
    return 0;
}

int meta_int(const Model *model, const char *key, int min, int max, int absent, int *out, Error *err) {
    Ints one;
    *out = absent;
    if (!model_meta(model, key)) return 0;
    if (meta_ints(model, key, 1, min, max, &one, err)) return -1;
    *out = one.v[0];
    return 0;
}

int meta_offsets(const Model *model, const char *key, size_t n, const int32_t **out, size_t *end,
                 Error *err) {
    Ints offsets;
    if (meta_ints(model, key, n + 1, 0, INT_MAX, &offsets, err)) return -1;
    if (offsets.v[0] != 0) return fail(err, "metadata %s: value 0 is %d, expected 0", key, offsets.v[0]);
    for (size_t i = 0; i < n; i++)
        if (offsets.v[i + 1] < offsets.v[i])
            return fail(err, "metadata %s: value %zu is %d, less than the one before it", key, i + 1,
                        offsets.v[i + 1]);
    *out = offsets.v;
    *end = (size_t)offsets.v[n];
    return 0;
}
