// Metadata read with its bounds: every number of a file is checked before it is used.
#include "metadata.h"

#include <limits.h>

// Metadata of a type; *out is NULL and *n is 0 where it is absent.
static int read_values(Reader *r, const char *key, uint32_t type, const void **out, size_t *n) {
    const Meta *meta = read_meta(r, key);
    *out = NULL;
    *n = 0;
    if (!meta) return 0;
    if (meta->type != type)
        return fail(r->err, "metadata %s: type is %u, expected %u (%s)", key, meta->type, type,
                    type == META_U8 ? "u8" : "i32");
    *out = meta->values;
    *n = meta->count;
    return 0;
}

int read_ints(Reader *r, const char *key, size_t count, int min, int max, Ints *out) {
    const void *values;
    if (read_values(r, key, META_I32, &values, &out->n)) return -1;
    out->v = values;
    if (count != SIZE_MAX && out->n != count)
        return fail(r->err, "metadata %s: it has %zu values, expected %zu", key, out->n, count);
    for (size_t i = 0; i < out->n; i++)
        if (out->v[i] < min || out->v[i] > max)
            return fail(r->err, "metadata %s: value %zu is %d, expected %d..%d", key, i, out->v[i],
                        min, max);
    return 0;
}

int read_bytes(Reader *r, const char *key, size_t count, int max, const uint8_t **out) {
    const void *values;
    size_t n;
    if (read_values(r, key, META_U8, &values, &n)) return -1;
    *out = values;
    if (n != count)
        return fail(r->err, "metadata %s: it has %zu values, expected %zu", key, n, count);
    for (size_t i = 0; max < UINT8_MAX && i < n; i++)
        if ((*out)[i] > max)
            return fail(r->err, "metadata %s: value %zu is %u, expected 0..%d", key, i, (*out)[i],
                        max);
    return 0;
}

int read_text(Reader *r, const char *key, const char **out, size_t *len) {
    const void *values;
    if (read_values(r, key, META_U8, &values, len)) return -1;
    *out = values;
    return 0;
}

int read_int(Reader *r, const char *key, int min, int max, int absent, int *out) {
    Ints one;
    *out = absent;
    if (!read_meta(r, key)) return 0;
    if (read_ints(r, key, 1, min, max, &one)) return -1;
    *out = one.v[0];
    return 0;
}

int read_offsets(Reader *r, const char *key, size_t n, const int32_t **out, size_t *end) {
    Ints offsets;
    if (read_ints(r, key, n + 1, 0, INT_MAX, &offsets)) return -1;
    if (offsets.v[0] != 0)
        return fail(r->err, "metadata %s: value 0 is %d, expected 0", key, offsets.v[0]);
    for (size_t i = 0; i < n; i++)
        if (offsets.v[i + 1] < offsets.v[i])
            return fail(r->err, "metadata %s: value %zu is %d, less than the one before it", key,
                        i + 1, offsets.v[i + 1]);
    *out = offsets.v;
    *end = (size_t)offsets.v[n];
    return 0;
}

int lower_bound(const int32_t *v, int low, int high, int64_t x) {
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (v[mid] < x) low = mid + 1;
        else high = mid;
    }
    return low;
}
