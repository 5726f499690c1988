// The choice of a table at start-up, and the few facts about layouts that everyone shares.
#include "kernels.h"

#include <string.h>

const int8_t Q4_CODES[16] = {-127, -95, -74, -58, -44, -31, -20, -8, 4, 16, 29, 42, 56, 72, 91, 114};

size_t panel_bytes(Dtype dtype, int n_in) {
    size_t k = (size_t)n_in, blocks = (k + BLOCK - 1) / BLOCK, scales = (blocks + 1) / 2 * 64;
    switch (dtype) {
    case F32: return k * 64;
    case F16: return k * 32;
    case BF16: return blocks * 1024;
    case Q8: return blocks * 512 + scales;
    default: return blocks * 256 + scales;
    }
}

static int has_avx2(void) {
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return 0;
#endif
}

static int has_avx512(void) {
#ifdef __x86_64__
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#else
    return 0;
#endif
}

static int always(void) { return 1; }

const Kernels *kernels_choose(const char *heads_isa, const char **why) {
    static const struct {
        const Kernels *table;
        int (*available)(void);
        const char *reason;
    } roads[] = {  // fastest first
#ifdef __x86_64__
        {&avx512_kernels, has_avx512, "the processor has AVX-512 with VNNI"},
        {&avx2_kernels, has_avx2, "the processor has AVX2, FMA and F16C, but not AVX-512 with VNNI"},
#endif
        {&scalar_kernels, always, "this build has no vector kernels for the processor"},
    };
    for (size_t i = 0; i < sizeof roads / sizeof *roads; i++) {
        if (heads_isa && strcmp(heads_isa, roads[i].table->name) != 0) continue;
        if (roads[i].available()) {
            *why = heads_isa ? "HEADS_ISA asks for it" : roads[i].reason;
            return roads[i].table;
        }
    }
    *why = has_avx512() || has_avx2() ? "HEADS_ISA must be scalar, avx2 or avx512" : "HEADS_ISA names what this processor or build lacks";
    return NULL;
}
