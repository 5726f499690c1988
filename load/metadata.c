// Reads metadata; every number is checked before it is used.
#include "load/metadata.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

static int check_type(Reader *r, const char *key, const Meta *meta, uint32_t type) {
    static const char *const names[] = {[META_U8] = "u8", [META_I32] = "i32", [META_F32] = "f32"};
    if (meta->type == type) return 0;
    return fail(r->err, "metadata %s: type is %u, expected %u (%s)", key, meta->type, type,
                names[type]);
}

const Meta *need_meta(Reader *r, const char *key, uint32_t type, size_t count) {
    const Meta *meta = read_meta(r, key);
    if (!meta) fail(r->err, "metadata %s is missing", key);
    else if (check_type(r, key, meta, type)) return NULL;
    else if (meta->count == 1 || meta->count == count) return meta;
    else
        fail(r->err, "metadata %s: it has %zu values, expected %s%zu", key, meta->count,
             count > 1 ? "1 or " : "", count);
    return NULL;
}

int need_int(Reader *r, const char *key, int min, int max, int *out) {
    const Meta *meta = need_meta(r, key, META_I32, 1);
    if (!meta) return -1;
    *out = *(const int32_t *)meta->values;
    if (*out >= min && *out <= max) return 0;
    return fail(r->err, "metadata %s is %d, expected %d..%d", key, *out, min, max);
}

int read_int(Reader *r, const char *key, int min, int max, int absent, int *out) {
    *out = absent;
    return read_meta(r, key) ? need_int(r, key, min, max, out) : 0;
}

int need_float(Reader *r, const char *key, float min, float *out) {
    const Meta *meta = need_meta(r, key, META_F32, 1);
    if (!meta) return -1;
    *out = *(const float *)meta->values;
    if (!isfinite(*out)) return fail(r->err, "metadata %s is not a finite number", key);
    if (*out >= min) return 0;
    return fail(r->err, "metadata %s is %g, expected %g or more", key, (double)*out, (double)min);
}

int read_float(Reader *r, const char *key, float min, float absent, float *out) {
    *out = absent;
    return read_meta(r, key) ? need_float(r, key, min, out) : 0;
}

// Values of one type; absent: *out is NULL and *n 0.
static int read_values(Reader *r, const char *key, uint32_t type, const void **out, size_t *n) {
    const Meta *meta = read_meta(r, key);
    *out = NULL;
    *n = 0;
    if (!meta) return 0;
    if (check_type(r, key, meta, type)) return -1;
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

int read_floats(Reader *r, const char *key, int least, int most, const float **out, int *n) {
    const Meta *meta = read_meta(r, key);
    *out = NULL;
    *n = 0;
    if (!meta) return 0;
    if (meta->type != META_F32 || meta->count < (size_t)least || meta->count > (size_t)most) {
        char range[32] = "";
        if (least < most) snprintf(range, sizeof range, "%d..", least);
        return fail(r->err, "metadata %s: expected %s%d numbers of type f32", key, range, most);
    }
    *out = meta->values;
    *n = (int)meta->count;
    for (int i = 0; i < *n; i++)
        if (!isfinite((*out)[i]))
            return fail(r->err, "metadata %s: value %d is not a finite number", key, i);
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

int read_lists(Reader *r, const char *key, int least, int most, int *n, const int32_t **out,
               size_t *end) {
    const Meta *meta = read_meta(r, key);
    size_t count = meta ? meta->count : 0;
    if (count <= (size_t)least || count > (size_t)most + 1)
        return fail(r->err, "metadata %s: it has %zu values, expected %d..%d", key, count,
                    least + 1, most + 1);
    *n = (int)count - 1;
    return read_offsets(r, key, (size_t)*n, out, end);
}

int lower_bound(const int32_t *v, int low, int high, int64_t x) {
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (v[mid] < x) low = mid + 1;
        else high = mid;
    }
    return low;
}
