// simd128 with relaxed multiply-adds, where the engine fuses them.
#define RELAXED
#define INCLUDED
#include "wasm.c"

#if defined(__wasm_relaxed_simd__)
const Kernels wasm_relaxed_kernels = {
    .name = "wasm-relaxed",
    TILES_KERNELS,
    PEAK_KERNELS(peak_floats),
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
