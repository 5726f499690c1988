// AVX-512 with the dot product of bf16 pairs, which rounds in a way of its own: bf16 weights give
// other bits here than elsewhere, everything else the same.
#define BF16_DOT
#define INCLUDED
#include "avx512.c"

#if defined(__x86_64__)
// As peak_fma in tiles.h.
static double peak_pairs(size_t steps) {
    enum { P = 2, T = 6 };
    uint16_t a[2 * (8 + T)];
    uint8_t weights[64 * P];
    Pairs w[P];
    Floats sum[P][T];
    for (int i = 0; i < 2 * (8 + T); i++) a[i] = i % 4 < 2 ? 0x3a80 : 0xba80;  // 2^-10, -2^-10
    for (int i = 0; i < 64 * P; i++) weights[i] = i % 2 ? 0x3f : (uint8_t)i;
    UNROLL for (int p = 0; p < P; p++) {
        w[p] = v_load_pairs(weights + 64 * p);
        UNROLL for (int t = 0; t < T; t++) sum[p][t] = v_zero();
    }
    for (size_t i = 0; i < steps; i++)
        UNROLL for (int t = 0; t < T; t++) {
            Pairs x = v_set1_pair(a + 2 * (i % 8 + (size_t)t));
            UNROLL for (int p = 0; p < P; p++) sum[p][t] = v_dot_bf16(sum[p][t], w[p], x);
        }
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int t = 0; t < T; t++) used(sum[p][t]);
    return 2.0 * 32 * P * T * (double)steps;
}

const Kernels avx512bf16_kernels = {
    .name = "avx512bf16",
    TILES_KERNELS,
    PEAK_KERNELS(peak_pairs),
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
