// The choice of a table at start-up, and the few facts about layouts that everyone shares.
#include "kernels.h"

#include <string.h>
#ifdef SCALAR
// The reference alone: make SCALAR=1.
#elif defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

const int8_t Q4_CODES[16] = {-127, -95, -74, -58, -44, -31, -20, -8,
                             4, 16, 29, 42, 56, 72, 91, 114};

const char *dtype_name(Dtype dtype) {
    static const char *const names[N_DTYPES] = {
        [F32] = "f32", [BF16] = "bf16", [Q8] = "q8", [Q4] = "q4", [F16] = "f16",
    };
    return names[dtype];
}

size_t panel_bytes(Dtype dtype, int n_in) {
    size_t k = (size_t)n_in, blocks = blocks_of(n_in), scales = (blocks + 1) / 2 * 64;
    switch (dtype) {
    case F32: return k * 64;
    case F16: return k * 32;
    case BF16: return blocks * 1024;
    case Q8: return blocks * 512 + scales;
    default: return blocks * 256 + scales;
    }
}

#ifdef SCALAR
#elif defined(__x86_64__)
static int has_avx2(void) {
    unsigned a, b, c, d;  // clang's __builtin_cpu_supports does not know f16c
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

static int has_bf16_dot(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

// Zen 4 and 5 run the bf16 dot at twice the speed of an f32 fma, counted in products; the Xeons
// that have it at half.
static int has_fast_bf16_dot(void) { return has_bf16_dot() && __builtin_cpu_is("amd"); }

// A bit of CPUID's leaf 7, where compilers' names for it are too new.
static int leaf7(unsigned subleaf, int of_edx, int bit) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, subleaf, &a, &b, &c, &d) && (((of_edx ? d : a) >> bit) & 1);
}

static int has_avx_vnni(void) { return has_avx2() && leaf7(1, 0, 4); }

// The tiles' registers are large, so the kernel gives them only to a process that asks.
static int has_amx(void) {
#ifdef __linux__
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    enum { AMX_BF16 = 22, AMX_TILE = 24, AMX_INT8 = 25 };
    return has_avx512() && leaf7(0, 1, AMX_TILE) && leaf7(0, 1, AMX_BF16) &&
           leaf7(0, 1, AMX_INT8) && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}
#elif defined(__aarch64__)
static int has_neon_dot(void) {
#ifdef __linux__
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return 1;  // every Apple processor has it
#endif
}
#endif

static int always(void) { return 1; }

const Kernels *kernels_choose(const char *name, const char **why) {
    static const struct {
        const Kernels *table;
        int (*available)(void), (*preferred)(void);
        const char *reason;
    } tables[] = {  // fastest first
#ifdef SCALAR
#elif defined(__x86_64__)
        {&amx_kernels, has_amx, always, "the processor has AMX, and the system lets us use it"},
        {&avx512bf16_kernels, has_bf16_dot, has_fast_bf16_dot,
         "the processor has AVX-512 with VNNI and a fast bf16 dot product"},
        {&avx512_kernels, has_avx512, always,
         "the processor has AVX-512 with VNNI, but no fast bf16 dot product"},
        {&avxvnni_kernels, has_avx_vnni, always,
         "the processor has AVX2 with VNNI, but not AVX-512"},
        {&avx2_kernels, has_avx2, always, "the processor has AVX2, FMA and F16C, but no VNNI"},
#elif defined(__aarch64__)
        {&neon_kernels, has_neon_dot, always, "the processor has NEON with dot product"},
#endif
        {&scalar_kernels, always, always, "there are no vector kernels for this processor"},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (name && strcmp(name, tables[i].table->name) != 0) continue;
        if (tables[i].available() && (name || tables[i].preferred())) {
            *why = name ? "it was asked for" : tables[i].reason;
            return tables[i].table;
        }
    }
    *why = "it must be scalar, avx2, avxvnni, avx512, avx512bf16, amx or neon, "
           "and the processor must have it";
    return NULL;
}
