// Keys and values in the cache's dtypes: f32, f16, q8 and q4. docs/format.md has the layouts; keys
// lie like weights, values so that the mix reads them.
#include "math/pack.h"

#include <string.h>

// A block of int8 and its f16 scale.
typedef struct {
    int8_t q[BLOCK];
    uint16_t scale;
} Q8Block;

static Q8Block q8_block(const Kernels *kernels, const float *x, int n) {
    Q8Block b;
    float scale;
    int32_t offset;
    kernels->to_q8(b.q, &scale, &offset, x, n < BLOCK ? n : BLOCK, false);
    b.scale = f32_to_f16(scale);
    return b;
}

// A head's queries lean to one side, so the error of a key counts most on that side; the token's
// own queries are near enough to say which side it is. (The keys of a source have none.)
static void pack_q4_key(const Kernels *kernels, uint8_t *panel, int lane, const float *x,
                        const float *queries, int n_queries, int dim) {
    uint8_t *scales = panel + blocks_of(dim) * BLOCK * LANES / 2, codes[Q4_AT_ONCE];
    uint16_t scale[2];
    for (int d = 0; d < dim; d += Q4_AT_ONCE) {
        int n = dim - d < Q4_AT_ONCE ? dim - d : Q4_AT_ONCE;
        kernels->to_q4(codes, scale, x + d, n_queries ? queries + d : NULL, (size_t)dim,
                       n_queries, n);
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

void pack_key(const Kernels *kernels, const KvLayer *kv, uint8_t *panel, int lane, const float *x,
              const float *queries, int n_queries, int dim) {
    if (kv->k_dtype == Q4) pack_q4_key(kernels, panel, lane, x, queries, n_queries, dim);
    else if (kv->k_dtype == F32)
        for (int d = 0; d < dim; d++) ((float *)panel)[(size_t)d * LANES + lane] = x[d];
    else if (kv->k_dtype == F16)
        for (int d = 0; d < dim; d++)
            ((uint16_t *)panel)[(size_t)d * LANES + lane] = f32_to_f16(x[d]);
    else {
        uint8_t *scales = panel + round_up((size_t)dim, BLOCK) * LANES;
        for (int d = 0; d < dim; d += BLOCK, scales += 2 * LANES, panel += BLOCK * LANES) {
            Q8Block b = q8_block(kernels, x + d, dim - d);
            for (int k = 0; k < BLOCK; k++)
                panel[k / 4 * 64 + lane * 4 + k % 4] = (uint8_t)(128 + b.q[k]);
            memcpy(scales + 2 * lane, &b.scale, sizeof b.scale);
        }
    }
}

// One value, as position `lane`; codes share bytes with those of the position four before or after.
static void pack_q4_value(const Kernels *kernels, const KvLayer *kv, uint8_t *values, int lane,
                          const float *x, int dim) {
    const int shift = 8 * (lane % 4) + (lane % 8 < 4 ? 0 : 4);  // in a word of eight positions
    uint32_t *at = (uint32_t *)(values + lane / 8 * 64);
    uint8_t *scales = values + kv->v_scales + 2 * lane, codes[Q4_AT_ONCE];
    uint16_t scale[2];
    for (int d = 0; d < dim; d += Q4_AT_ONCE) {
        int n = dim - d < Q4_AT_ONCE ? dim - d : Q4_AT_ONCE;
        kernels->to_q4(codes, scale, x + d, NULL, 0, 0, n);
        for (int k = 0; k < (int)round_up((size_t)n, BLOCK); k += LANES, at += 2 * LANES)
            for (int i = 0; i < LANES; i++)
                at[i] = (at[i] & ~(15u << shift)) | (uint32_t)codes[k + i] << shift;
        for (int b = 0; b * BLOCK < n; b++, scales += 2 * LANES)
            memcpy(scales, &scale[b], sizeof *scale);
    }
}

void pack_value(const Kernels *kernels, const KvLayer *kv, uint8_t *values, int lane,
                const float *x, int dim) {
    size_t row = (size_t)lane * (size_t)kv->v_dim;
    if (kv->v_dtype == F32) memcpy((float *)values + row, x, sizeof *x * (size_t)dim);
    else if (kv->v_dtype == F16) kernels->to_f16((uint16_t *)values + row, x, dim);
    else if (kv->v_dtype == Q4) pack_q4_value(kernels, kv, values, lane, x, dim);
    else
        for (int d = 0; d < dim; d += BLOCK) {
            Q8Block b = q8_block(kernels, x + d, dim - d);
            uint8_t *scale = values + kv->v_scales + 2 * (d / BLOCK * LANES + lane);
            memcpy(values + row + d, b.q, BLOCK);
            memcpy(scale, &b.scale, sizeof b.scale);
        }
}

