// What the checks of kernels share: a line for each, random numbers, and panels made of them.
#ifndef KERNEL_CHECKS_H
#define KERNEL_CHECKS_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/blocks.h"
#include "math/dtypes.h"
#include "kernels/steps.h"

static int failures;

__attribute__((format(printf, 4, 5)))
static inline void report(const char *table, const char *name, bool ok, const char *why, ...) {
    va_list args;
    va_start(args, why);
    printf("%s %s %s", ok ? "ok" : "not ok", table, name);
    if (!ok) printf(": "), vprintf(why, args);
    printf("\n");
    va_end(args);
    failures += !ok;
}

// ---- random numbers, the same on every machine ----

static uint64_t state = 88172645463325252u;

static inline uint32_t random_bits(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static inline int between(int low, int high) {
    return low + (int)(random_bits() % (uint32_t)(high - low + 1));
}

typedef enum { PLAIN, EXTREME } Kind;

static inline float random_float(Kind kind) {
    static const float odd[] = {0.0f,  -0.0f,  1e-45f,   -1e-40f,  1e-30f, -1e-20f,
                                3e38f, -3e38f, INFINITY, 65504.0f, 1.0f,   -1.0f};
    if (kind == EXTREME && between(0, 3)) return odd[between(0, sizeof odd / sizeof *odd - 1)];
    return (float)(int32_t)random_bits() * 0x1p-30f;  // -2..2
}

static inline void *allocate(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);  // exact, so that a sanitizer sees what lies outside
    if (!p) exit(1);
    return p;
}

static inline float *random_floats(size_t n, Kind kind) {
    float *x = allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float(kind);
    return x;
}

static inline uint16_t random_f16(Kind kind) {
    if (kind == PLAIN) return f32_to_f16(random_float(PLAIN));
    return (uint16_t)(random_bits() & 0xfbff);  // no infinity, no NaN
}

// The first of n floats that differ, or -1; one NaN is as good as another.
static inline long first_difference(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bits_of(a[i]) != bits_of(b[i]) && !(isnan(a[i]) && isnan(b[i]))) return (long)i;
    return -1;
}

static inline void random_panel(uint8_t *panel, Dtype dtype, int n_in, Kind kind) {
    size_t bytes = panel_bytes(dtype, n_in);
    for (size_t i = 0; i < bytes; i++) panel[i] = (uint8_t)random_bits();
    if (dtype == F32)
        for (size_t i = 0; i < bytes / 4; i++) ((float *)panel)[i] = random_float(kind);
    else if (dtype == BF16)
        for (size_t i = 0; i < bytes / 2; i++)
            ((uint16_t *)panel)[i] = (uint16_t)(bits_of(random_float(kind)) >> 16);
    else if (dtype == F16)
        for (size_t i = 0; i < bytes; i += 2) *(uint16_t *)(panel + i) = random_f16(kind);
    else {
        const BlockForm form = BLOCK_FORMS[dtype];
        const size_t n = blocks_of(n_in), after = round_up(n, 2);
        const bool f16 = form.scales == SCALE || form.scales == SCALE_MIN;
        uint8_t *from = panel + (size_t)(scales_of(panel, form, n, f16 ? 0 : after) - panel);
        if (form.scales == SCALE_K)  // six bits, as GGUF has them
            for (uint8_t *p = panel + n * code_bytes(form); p < from; p++) *p &= 63;
        for (; from < panel + bytes; from += 2) *(uint16_t *)from = random_f16(kind);
    }
}

// ---- types of weights alone ----

static inline bool is_kept(Dtype dtype) { return BLOCK_FORMS[dtype].kept; }

// The code of row r and column j of a block, from docs/format.md.
static inline int code_at(const uint8_t *block, int bits, int r, int j) {
    int byte = r * 4 + j % 4, group = j / 4, code;
    if (bits == 8) return block[group * 64 + byte];
    if (bits < 4) {
        code = block[j / 16 * 64 + byte] >> j % 16 / 4 * 2 & 3;
        return bits == 3 ? code + 4 * (block[128 + byte] >> group & 1) : code;
    }
    code = j % 8 < 4 ? block[j / 8 * 64 + byte] & 15 : block[j / 8 * 64 + byte] >> 4;
    if (bits == 5) code += 16 * (block[256 + byte] >> group & 1);
    if (bits == 6) code += 16 * (block[256 + j / 16 * 64 + byte] >> j % 16 / 4 * 2 & 3);
    return code;
}

// The number of row r and column k of a panel of such a type.
static inline double weight_alone(const uint8_t *panel, Dtype dtype, int n_blocks, int r, int k) {
    static const int8_t mxfp4[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    static const int8_t two_bits[] = {-30, -10, 5, 22};
    static const int8_t three_bits[] = {-29, -17, -10, -4, 2, 8, 15, 24};
    static const int8_t iq4[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
    const int b = k / BLOCK, j = k % BLOCK, bits = dtypes[dtype].bits, two = (n_blocks + 1) / 2 * 2;
    const uint8_t *scales = panel + 64 * bits * n_blocks;
    const int code = code_at(panel + 64 * bits * b, bits, r, j);
    const uint16_t *f16 = (const uint16_t *)scales;
    switch (dtype) {
    case HEADS_Q8_0: return (code - 128) * (double)f16_to_f32(f16[b * 16 + r]);
    case HEADS_Q4_0: return (code - 8) * (double)f16_to_f32(f16[b * 16 + r]);
    case HEADS_Q5_0: return (code - 16) * (double)f16_to_f32(f16[b * 16 + r]);
    case HEADS_IQ4_NL: return iq4[code] * (double)f16_to_f32(f16[b * 16 + r]);
    case HEADS_MXFP4: return mxfp4[code] * (double)f16_to_f32(f16[b * 16 + r]);
    case HEADS_Q4_1:
    case HEADS_Q5_1:
        f16 += b * 32;
        return code * (double)f16_to_f32(f16[r]) + (double)f16_to_f32(f16[16 + r]);
    case HEADS_Q6_K:
        f16 = (const uint16_t *)(scales + 32 * two);
        return (code - 32) * (double)f16_to_f32(f16[b / 8 * 16 + r]) *
               (int8_t)scales[b * 32 + j / 16 * 16 + r];
    case HEADS_TQ2_0:
    case HEADS_Q2:
    case HEADS_Q3:
    case HEADS_Q5:
    case HEADS_Q6: {
        f16 = (const uint16_t *)(scales + 16 * two) + b / 8 * 16;
        const int8_t *listed = bits == 2 ? two_bits : three_bits;
        int number = dtype == HEADS_TQ2_0 ? code - 1
                     : bits < 4           ? listed[code]
                                          : code - (1 << (bits - 1));
        return number * (double)f16_to_f32(f16[r]) * (int8_t)scales[b * 16 + r] / 128;
    }
    default: {  // Q4_K, Q5_K, IQ4_XS
        f16 = (const uint16_t *)(scales + 32 * two) + b / 8 * 32;
        int number = dtype == HEADS_IQ4_XS ? iq4[code] : code;
        return number * (double)f16_to_f32(f16[r]) * (int8_t)scales[b * 32 + r] -
               (double)f16_to_f32(f16[16 + r]) * (int8_t)scales[b * 32 + 16 + r];
    }
    }
}

#endif
