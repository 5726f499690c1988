// simd128 with relaxed multiply-adds, and a dot product of signed bytes.
#define RELAXED
#define DOT_SIGNED
#define INCLUDED
#include "wasm.c"

#if defined(__wasm_relaxed_simd__)
const Kernels wasm_signed_kernels = {
    .name = "wasm-signed",
    TILES_KERNELS,
    PEAK_KERNELS(peak_floats),
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
