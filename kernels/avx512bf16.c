// AVX-512 with the dot product of bf16 pairs, which rounds in a way of its own: bf16 weights give other bits here than
// elsewhere, everything else the same.
#define BF16_DOT
#define INCLUDED
#include "avx512.c"

#if defined(__x86_64__)
const Kernels avx512bf16_kernels = {
    .name = "avx512bf16",
    TILES_KERNELS(matmul_bf16),
    LANES_KERNELS,
};
#endif
