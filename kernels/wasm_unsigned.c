// simd128 with relaxed multiply-adds, and a dot product one operand of which may be unsigned bytes.
#define RELAXED
#define DOT_UNSIGNED
#define INCLUDED
#include "wasm.c"

#if defined(__wasm_relaxed_simd__)
const Kernels wasm_unsigned_kernels = {
    .name = "wasm-unsigned",
    TILES_KERNELS,
    PEAK_KERNELS(peak_floats),
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
