// The table of types, and how rows are packed and unpacked. docs/format.md has the layouts:
// keys lie like weights, values so that the mix reads them.
#include "math/dtypes.h"

#include <string.h>

// ---- f32, f16, bf16 ----

static void key_f32(const Kernels *k, uint8_t *panel, int lane, const float *x,
                    const float *queries, int n_queries, int dim) {
    for (int d = 0; d < dim; d++) ((float *)panel)[(size_t)d * LANES + lane] = x[d];
}

static void value_f32(const Kernels *k, uint8_t *values, int width, int lane, const float *x,
                      int dim) {
    memcpy((float *)values + (size_t)lane * (size_t)width, x, sizeof *x * (size_t)dim);
}

static void row_f32(const Kernels *k, Dtype dtype, float *out, const uint8_t *panel,
                    size_t lane, int n_in) {
    for (int i = 0; i < n_in; i++) out[i] = ((const float *)panel)[(size_t)i * LANES + lane];
}

static void key_f16(const Kernels *k, uint8_t *panel, int lane, const float *x,
                    const float *queries, int n_queries, int dim) {
    for (int d = 0; d < dim; d++) ((uint16_t *)panel)[(size_t)d * LANES + lane] = f32_to_f16(x[d]);
}

static void value_f16(const Kernels *k, uint8_t *values, int width, int lane, const float *x,
                      int dim) {
    k->to_f16((uint16_t *)values + (size_t)lane * (size_t)width, x, dim);
}

static void row_f16(const Kernels *k, Dtype dtype, float *out, const uint8_t *panel,
                    size_t lane, int n_in) {
    for (int i = 0; i < n_in; i++)
        out[i] = f16_to_f32(((const uint16_t *)panel)[(size_t)i * LANES + lane]);
}

static void row_bf16(const Kernels *k, Dtype dtype, float *out, const uint8_t *panel,
                     size_t lane, int n_in) {
    for (size_t i = 0; i < (size_t)n_in; i++)
        out[i] = bf16_to_f32(((const uint16_t *)panel)[i / 2 * 2 * LANES + 2 * lane + i % 2]);
}

// ---- q8 ----

typedef struct {  // a block of int8 and its f16 scale
    int8_t q[BLOCK];
    uint16_t scale;
} Q8Block;

static Q8Block q8_block(const Kernels *k, const float *x, int n) {
    Q8Block b;
    float scale;
    int32_t offset;
    k->to_q8(b.q, &scale, &offset, x, n < BLOCK ? n : BLOCK, false);
    b.scale = f32_to_f16(scale);
    return b;
}

static void key_q8(const Kernels *kernels, uint8_t *panel, int lane, const float *x,
                   const float *queries, int n_queries, int dim) {
    uint8_t *scales = panel + round_up((size_t)dim, BLOCK) * LANES;
    for (int d = 0; d < dim; d += BLOCK, scales += 2 * LANES, panel += BLOCK * LANES) {
        Q8Block b = q8_block(kernels, x + d, dim - d);
        for (int k = 0; k < BLOCK; k++)
            panel[k / 4 * 64 + lane * 4 + k % 4] = (uint8_t)(128 + b.q[k]);
        memcpy(scales + 2 * lane, &b.scale, sizeof b.scale);
    }
}

static void value_q8(const Kernels *k, uint8_t *values, int width, int lane, const float *x,
                     int dim) {
    uint8_t *row = values + (size_t)lane * (size_t)width;
    uint8_t *scales = values + value_bytes(Q8, width) + 2 * lane;
    for (int d = 0; d < dim; d += BLOCK, scales += 2 * LANES) {
        Q8Block b = q8_block(k, x + d, dim - d);
        memcpy(row + d, b.q, BLOCK);
        memcpy(scales, &b.scale, sizeof b.scale);
    }
}

// ---- q4 ----

// A head's queries lean to one side, so the error of a key counts most on that side; the token's
// own queries are near enough to say which side it is. (The keys of a source have none.)
static void key_q4(const Kernels *kernels, uint8_t *panel, int lane, const float *x,
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

// A code shares a byte with the code of the position four before it or after it.
static void value_q4(const Kernels *kernels, uint8_t *values, int width, int lane, const float *x,
                     int dim) {
    const int shift = 8 * (lane % 4) + (lane % 8 < 4 ? 0 : 4);  // in a word of eight positions
    uint32_t *at = (uint32_t *)(values + lane / 8 * 64);
    uint8_t *scales = values + value_bytes(Q4, width) + 2 * lane, codes[Q4_AT_ONCE];
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

// ---- the table ----

// Of weights alone: a type of GGUF, and one of our own.
#define KEPT(type, name, code, bits)                                                               \
    [type] = {name, code, bits, BLOCK, true, false, INPUT_INT8, row_blocks, NULL, NULL}
#define TURNED(type, name, code, bits)                                                             \
    [type] = {name, code, bits, BLOCK, true, false, INPUT_TURNED, row_blocks, NULL, NULL}

const DtypeInfo dtypes[N_DTYPES] = {
    [F32] = {"f32", 0, 32, 1, false, false, INPUT_F32, row_f32, key_f32, value_f32},
    [BF16] = {"bf16", 1, 16, BLOCK, false, false, INPUT_BF16, row_bf16, NULL, NULL},
    [Q8] = {"q8", 2, 8, BLOCK, true, false, INPUT_TURNED, row_blocks, key_q8, value_q8},
    [Q4] = {"q4", 3, 4, BLOCK, true, true, INPUT_TURNED, row_blocks, key_q4, value_q4},
    [F16] = {"f16", 4, 16, 1, false, false, INPUT_F32, row_f16, key_f16, value_f16},
    KEPT(HEADS_Q8_0, "q8_0", 5, 8), KEPT(HEADS_Q4_0, "q4_0", 6, 4),
    KEPT(HEADS_Q4_1, "q4_1", 7, 4), KEPT(HEADS_Q5_0, "q5_0", 8, 5),
    KEPT(HEADS_Q5_1, "q5_1", 9, 5), KEPT(HEADS_IQ4_NL, "iq4_nl", 10, 4),
    KEPT(HEADS_MXFP4, "mxfp4", 11, 4), KEPT(HEADS_Q4_K, "q4_k", 12, 4),
    KEPT(HEADS_Q5_K, "q5_k", 13, 5), KEPT(HEADS_Q6_K, "q6_k", 14, 6),
    KEPT(HEADS_IQ4_XS, "iq4_xs", 15, 4), KEPT(HEADS_TQ2_0, "tq2_0", 20, 2),
    TURNED(HEADS_Q2, "q2", 16, 2), TURNED(HEADS_Q3, "q3", 17, 3),
    TURNED(HEADS_Q5, "q5", 18, 5), TURNED(HEADS_Q6, "q6", 19, 6),
};

Dtype dtype_of_code(uint32_t code) {
    int d = 0;
    while (d < N_DTYPES && dtypes[d].code != code) d++;
    return (Dtype)d;
}

Dtype dtype_of_name(const char *name) {
    int d = 0;
    while (d < N_DTYPES && strcmp(dtypes[d].name, name) != 0) d++;
    return (Dtype)d;
}

size_t panel_bytes(Dtype dtype, int n_in) {
    const DtypeInfo *d = &dtypes[dtype];
    if (d->scaled) return block_panel_bytes(dtype, n_in);
    return round_up((size_t)n_in, (size_t)d->block) * LANES * (size_t)d->bits / 8;
}

size_t value_bytes(Dtype dtype, int width) {
    return (size_t)LANES * (size_t)width * (size_t)dtypes[dtype].bits / 8;
}

size_t values_bytes(Dtype dtype, int width) {
    size_t scales = (size_t)width / BLOCK * LANES * sizeof(uint16_t);
    return value_bytes(dtype, width) + (dtypes[dtype].scaled ? scales : 0);
}
