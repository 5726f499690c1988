// What the checks of kernels share: a line for each, random numbers, and panels made of them.
#ifndef KERNEL_CHECKS_H
#define KERNEL_CHECKS_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

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
    else {
        size_t scales =
            dtype == F16 ? 0 : (size_t)(n_in + BLOCK - 1) / BLOCK * (dtype == Q8 ? 512 : 256);
        for (size_t i = scales; i < bytes; i += 2) *(uint16_t *)(panel + i) = random_f16(kind);
    }
}

#endif
