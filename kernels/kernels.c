// The choice of a table at start-up, and the few facts about layouts that everyone shares.
#include "kernels.h"

#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__) && !defined(SCALAR)
#include <cpuid.h>
#endif
#if defined(__wasm_relaxed_simd__)
#include <wasm_simd128.h>
#endif

#include "system/system.h"

const int8_t Q4_CODES[16] = {-127, -95, -74, -58, -44, -31, -20, -8,
                             4, 16, 29, 42, 56, 72, 91, 114};
const int8_t IQ4_CODES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1, 13, 25, 38, 53, 69, 89, 113};
// The numbers that leave least of a Gaussian's blocks, each by its best scale; from -32 to 31.
const int8_t Q3_CODES[16] = {-29, -17, -10, -4, 2, 8, 15, 24}, Q2_CODES[16] = {-30, -10, 5, 22};
// Twice the numbers of E2M1 (OCP Microscaling Formats 1.0).
const int8_t MXFP4_CODES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#ifdef SCALAR
#elif defined(__x86_64__)
// Whether a register of CPUID has all these bits. __builtin_cpu_supports knows nothing where zig
// compiles.
static int has(unsigned leaf, unsigned subleaf, int of, unsigned bits) {
    unsigned registers[4] = {0};
    __get_cpuid_count(leaf, subleaf, &registers[0], &registers[1], &registers[2], &registers[3]);
    return (registers[of] & bits) == bits;
}

enum { EAX, EBX, ECX, EDX, LEAF7 = 7 };
#define BIT(n) (1u << (n))

// Whether the system saves registers when it switches threads: their bits in XCR0.
static int saved(unsigned bits) {
    if (!has(1, 0, ECX, bit_OSXSAVE)) return 0;
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & bits) == bits;
}

static int has_avx2(void) {
    enum { YMM = BIT(1) | BIT(2) };
    return has(1, 0, ECX, bit_FMA | bit_F16C) && has(LEAF7, 0, EBX, bit_AVX2) && saved(YMM);
}

static int has_avx512(void) {
    enum { VNNI = BIT(11), ZMM = BIT(5) | BIT(6) | BIT(7) };
    const unsigned parts = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    return has_avx2() && has(LEAF7, 0, EBX, parts) && has(LEAF7, 0, ECX, VNNI) &&
           (saved(ZMM) || saves_avx512_later());
}

static int has_bf16_dot(void) { return has_avx512() && has(LEAF7, 1, EAX, BIT(5)); }

// Zen 4 and 5 run the bf16 dot at twice the speed of an f32 fma, counted in products; the Xeons
// that have it at half.
static int has_fast_bf16_dot(void) {
    unsigned most, name[3];
    return has_bf16_dot() && __get_cpuid(0, &most, &name[0], &name[2], &name[1]) &&
           memcmp(name, "AuthenticAMD", sizeof name) == 0;
}

static int has_avx_vnni(void) { return has_avx2() && has(LEAF7, 1, EAX, BIT(4)); }

static int has_amx(void) {
    enum { AMX_BF16 = BIT(22), AMX_TILE = BIT(24), AMX_INT8 = BIT(25) };
    return has_avx512() && has(LEAF7, 0, EDX, AMX_BF16 | AMX_TILE | AMX_INT8) && may_use_tiles();
}
#elif defined(__wasm_relaxed_simd__)
extern const Kernels wasm_relaxed_kernels, wasm_unsigned_kernels, wasm_signed_kernels;

// Relaxed instructions do what is fastest where they run, so each is asked: the numbers are
// volatile, since a compiler would answer in its own way.
static int has_fused_madd(void) {
    volatile float one = 1.0f;
    v128_t x = wasm_f32x4_splat(one + 0x1p-23f), square = wasm_f32x4_splat(-1.0f - 0x1p-22f);
    return wasm_f32x4_extract_lane(wasm_f32x4_relaxed_madd(x, x, square), 0) == 0x1p-46f;
}

// The dot product of four times x with four times y.
static int32_t dot(int x, int y) {
    volatile int8_t a = (int8_t)x, b = (int8_t)y;
    v128_t sum = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(
        wasm_i8x16_splat(a), wasm_i8x16_splat(b), wasm_i32x4_const_splat(1));
    return wasm_i32x4_extract_lane(sum, 0) - 1;
}

static int has_unsigned_dot(void) {
    return has_fused_madd() && dot(127, 255) == 4 * 127 * 255 && dot(-127, 255) == -4 * 127 * 255;
}

static int has_signed_dot(void) {
    return has_fused_madd() && dot(127, -128) == -4 * 127 * 128 && dot(-127, -128) == 4 * 127 * 128;
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
#elif defined(__wasm_simd128__)
#ifdef __wasm_relaxed_simd__
        {&wasm_unsigned_kernels, has_unsigned_dot, always,
         "multiply-adds are fused, and dot products take unsigned bytes"},
        {&wasm_signed_kernels, has_signed_dot, always,
         "multiply-adds are fused, and dot products take signed bytes"},
        {&wasm_relaxed_kernels, has_fused_madd, always, "multiply-adds are fused"},
#endif
        {&wasm_kernels, always, always, "the module is made for simd128"},
#endif
        {&scalar_kernels, always, always, "there are no vector kernels for this processor"},
    };
    // A virtual machine's host answers CPUID, which takes it microseconds, so it is asked once.
    static atomic_size_t best;  // 1 + the place of the table without a name; 0: not asked yet
    size_t known = name ? 0 : atomic_load(&best);
    if (known) {
        *why = tables[known - 1].reason;
        return tables[known - 1].table;
    }
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (name && strcmp(name, tables[i].table->name) != 0) continue;
        if (tables[i].available() && (name || tables[i].preferred())) {
            *why = name ? "it was asked for" : tables[i].reason;
            if (!name) atomic_store(&best, i + 1);
            return tables[i].table;
        }
    }
    *why = "it must be scalar, avx2, avxvnni, avx512, avx512bf16, amx, neon or wasm, "
           "and the processor must have it";
    return NULL;
}
