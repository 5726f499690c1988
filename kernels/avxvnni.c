// AVX2 with the int8 dot product of AVX-VNNI (processors since 2021 that lack AVX-512).
#define AVX_VNNI
#define INCLUDED
#include "avx2.c"

#if defined(__x86_64__)
const Kernels avxvnni_kernels = {
    .name = "avxvnni",
    TILES_KERNELS,
    PEAK_KERNELS(peak_floats),
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
