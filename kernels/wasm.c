// WebAssembly's simd128: four registers hold 16 lanes. relaxed.c includes this file and makes
// tables of its own, with fused multiply-adds.
#if defined(__wasm_simd128__)
#include <wasm_simd128.h>

#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define PREFETCHES 0
#define ONE_P 1
#define EACH _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)

// What fmaf is here: compilers turn its contraction into vectors, and the Makefile these into calls
// of fused4, and single numbers into calls of the library's fmaf.
INLINE float fused(float a, float b, float c) {
#pragma clang fp contract(on)
    return a * b + c;
}
#define fmaf fused

// Reads a number of each of eight lines a kilobyte ahead, the last line first, so that eight wait
// for memory at once. On Zen 5, V8 then decodes 1.6 times as fast; with the first line first, no
// faster.
enum { READ_AHEAD = 512 };

INLINE void read_ahead(const uint8_t *p) {
    const uintptr_t wanted = (uintptr_t)p + 1024;
    const uintptr_t last = ((uintptr_t)__builtin_wasm_memory_size(0) << 16) - READ_AHEAD;
    const uintptr_t from = wanted < last ? wanted : last;
    _Pragma("GCC unroll 8") for (int line = READ_AHEAD - 64; line >= 0; line -= 64)
        __asm__ volatile("" ::"r"(*(const int *)(from + (uintptr_t)line)));
}

typedef struct {
    v128_t v[4];
} Floats;
typedef Floats Ints;

#ifdef RELAXED
INLINE v128_t fma4(v128_t x, v128_t y, v128_t z) { return wasm_f32x4_relaxed_madd(x, y, z); }
#else
// p + d in double precision, rounded to odd: e is what the sum to nearest lacks, and where it is
// not 0, an even sum goes one unit towards it.
INLINE v128_t sum_to_odd(v128_t p, v128_t d) {
    const v128_t s = wasm_f64x2_add(p, d), t = wasm_f64x2_sub(s, p);
    const v128_t e = wasm_f64x2_add(wasm_f64x2_sub(p, wasm_f64x2_sub(s, t)), wasm_f64x2_sub(d, t));
    const v128_t one = wasm_i64x2_const_splat(1);
    v128_t inexact = wasm_f64x2_gt(wasm_f64x2_abs(e), wasm_f64x2_const_splat(0.0));
    v128_t away = wasm_u64x2_shr(wasm_v128_xor(s, e), 63);
    v128_t step = wasm_i64x2_sub(one, wasm_i64x2_add(away, away));
    v128_t even = wasm_i64x2_sub(wasm_v128_and(s, one), one);
    return wasm_i64x2_add(s, wasm_v128_and(wasm_v128_and(step, inexact), even));
}

INLINE v128_t upper(v128_t x) { return wasm_i64x2_shuffle(x, x, 1, 1); }

// x * y + z, rounded once (Boldo and Melquiond 2008). A product is exact in double precision; after
// a sum that is rounded to odd, rounding to float is right in every case. Of a sum to nearest it is
// right too, unless that lies in the middle of two floats or the float is subnormal: so the long
// way is rare.
INLINE v128_t fma4(v128_t x, v128_t y, v128_t z) {
    const v128_t z_low = wasm_f64x2_promote_low_f32x4(z);
    const v128_t z_high = wasm_f64x2_promote_low_f32x4(upper(z));
    v128_t low = wasm_f64x2_mul(wasm_f64x2_promote_low_f32x4(x), wasm_f64x2_promote_low_f32x4(y));
    v128_t high = wasm_f64x2_mul(wasm_f64x2_promote_low_f32x4(upper(x)),
                                 wasm_f64x2_promote_low_f32x4(upper(y)));
    const v128_t below = wasm_i64x2_const_splat(0x1fffffff);  // bits that a float does not have
    const v128_t middle = wasm_i64x2_const_splat(0x10000000);
    v128_t sum = wasm_f64x2_add(low, z_low), sum_high = wasm_f64x2_add(high, z_high);
    v128_t near = wasm_i32x4_shuffle(wasm_f32x4_demote_f64x2_zero(sum),
                                     wasm_f32x4_demote_f64x2_zero(sum_high), 0, 1, 4, 5);
    v128_t doubtful = wasm_v128_or(wasm_i64x2_eq(wasm_v128_and(sum, below), middle),
                                   wasm_i64x2_eq(wasm_v128_and(sum_high, below), middle));
    v128_t tiny = wasm_f32x4_le(wasm_f32x4_abs(near), wasm_f32x4_const_splat(0x1p-126f));
    if (__builtin_expect(!wasm_v128_any_true(wasm_v128_or(doubtful, tiny)), 1)) return near;
    low = sum_to_odd(low, z_low);
    high = sum_to_odd(high, z_high);
    return wasm_i64x2_shuffle(wasm_f32x4_demote_f64x2_zero(low), wasm_f32x4_demote_f64x2_zero(high),
                              0, 2);
}
#endif

typedef float Four __attribute__((vector_size(16)));
__attribute__((used)) static Four fused4(Four x, Four y, Four z) {
    return (Four)fma4((v128_t)x, (v128_t)y, (v128_t)z);
}

INLINE Floats v_set1(float x) {
    v128_t v = wasm_f32x4_splat(x);
    return (Floats){{v, v, v, v}};
}
INLINE Floats v_zero(void) { return v_set1(0.0f); }
INLINE Floats v_add(Floats x, Floats y) {
    EACH x.v[i] = wasm_f32x4_add(x.v[i], y.v[i]);
    return x;
}
INLINE Floats v_mul(Floats x, Floats y) {
    EACH x.v[i] = wasm_f32x4_mul(x.v[i], y.v[i]);
    return x;
}
INLINE Floats v_fma(Floats x, Floats y, Floats z) {
    EACH z.v[i] = fma4(x.v[i], y.v[i], z.v[i]);
    return z;
}
INLINE Floats v_load(const float *p) {
    Floats x;
    EACH x.v[i] = wasm_v128_load(p + 4 * i);
    return x;
}
INLINE void v_store(float *p, Floats x) { EACH wasm_v128_store(p + 4 * i, x.v[i]); }

// As f16_to_f32, of four that were extended with their sign: a special one gets its exponent before
// the product, which leaves it as it is.
INLINE v128_t half_to_float(v128_t h) {
    v128_t x = wasm_v128_and(wasm_i32x4_shl(h, 13), wasm_i32x4_const_splat((int32_t)0x8fffe000));
    const v128_t top = wasm_i32x4_const_splat(0x0f800000);
    v128_t special = wasm_i32x4_eq(wasm_v128_and(x, top), top);
    x = wasm_v128_or(x, wasm_v128_and(special, wasm_i32x4_const_splat(0x7f800000)));
    return wasm_f32x4_mul(x, wasm_f32x4_const_splat(0x1p112f));
}
INLINE Floats v_load_f16(const uint8_t *p) {
    Floats x;
    EACH x.v[i] = half_to_float(wasm_i32x4_load16x4(p + 8 * i));
    return x;
}
INLINE Floats v_load_i8(const uint8_t *p) {
    Floats x;
    EACH x.v[i] = wasm_f32x4_convert_i32x4(
        wasm_i32x4_extend_low_i16x8(wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(p + 4 * i))));
    return x;
}
INLINE Floats v_swap(Floats v, int h) {
    Floats x;
    EACH x.v[i] = h >= 4   ? v.v[i ^ h / 4]
                  : h == 2 ? wasm_i32x4_shuffle(v.v[i], v.v[i], 2, 3, 0, 1)
                           : wasm_i32x4_shuffle(v.v[i], v.v[i], 1, 0, 3, 2);
    return x;
}

// Of each pair of bf16, the even or the odd one: a bf16 is the upper half of an f32.
INLINE Floats v_load_bf16(const uint8_t *p, int odd) {
    Floats x;
    EACH {
        v128_t pair = wasm_v128_load(p + 16 * i);
        x.v[i] = odd ? wasm_v128_and(pair, wasm_i32x4_const_splat((int32_t)0xffff0000))
                     : wasm_i32x4_shl(pair, 16);
    }
    return x;
}
INLINE Floats v_set1_bf16(const uint16_t *p, int odd) { return v_set1(bf16_to_f32(p[odd])); }

// Weights are taken with +128, which the offset undoes, but where the dot product is of signed
// bytes. In 16 bits, the even k of four rows are one register and the odd k another.
#if defined(DOT_UNSIGNED) || defined(DOT_SIGNED)
typedef Ints Bytes;

INLINE v128_t in_place(v128_t w) {
#ifdef DOT_SIGNED
    return wasm_v128_xor(w, wasm_i8x16_const_splat(-128));
#else
    return w;
#endif
}
INLINE void set_codes(Bytes *w, int i, v128_t codes) { w->v[i] = codes; }
INLINE void set_bytes(Bytes *w, int i, v128_t bytes) { set_codes(w, i, in_place(bytes)); }

INLINE Ints v_dot(Ints sum, Bytes w, const int8_t *x) {
    v128_t a = wasm_v128_load32_splat(x);
    EACH sum.v[i] = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(a, w.v[i], sum.v[i]);
    return sum;
}
#else
typedef struct {
    v128_t even[4], odd[4];
} Bytes;

INLINE void set_codes(Bytes *w, int i, v128_t codes) {
    w->even[i] = wasm_v128_and(codes, wasm_i16x8_const_splat(255));
    w->odd[i] = wasm_u16x8_shr(codes, 8);
}
INLINE void set_bytes(Bytes *w, int i, v128_t bytes) { set_codes(w, i, bytes); }

INLINE Ints v_dot(Ints sum, Bytes w, const int8_t *x) {
    v128_t a = wasm_v128_load32_splat(x);
    v128_t even = wasm_i16x8_shr(wasm_i16x8_shl(a, 8), 8), odd = wasm_i16x8_shr(a, 8);
    EACH sum.v[i] = wasm_i32x4_add(wasm_i32x4_add(sum.v[i], wasm_i32x4_dot_i16x8(w.even[i], even)),
                                   wasm_i32x4_dot_i16x8(w.odd[i], odd));
    return sum;
}
#endif

INLINE Ints v_start(int32_t n) {
    v128_t v = wasm_i32x4_splat(n);
    return (Ints){{v, v, v, v}};
}
INLINE Ints v_dot_start(int32_t offset) {
#ifdef DOT_SIGNED
    offset = 0;
#endif
    return v_start(offset);
}
INLINE Floats v_dot_end(Ints sum) {
    EACH sum.v[i] = wasm_f32x4_convert_i32x4(sum.v[i]);
    return sum;
}

INLINE void v_load_q8(Bytes w[2], const uint8_t *p) {
    for (int g = 0; g < 2; g++) EACH set_bytes(&w[g], i, wasm_v128_load(p + 64 * g + 16 * i));
}

INLINE void v_load_q4(Bytes w[2], const uint8_t *p, const int8_t *numbers) {
    const v128_t table = wasm_v128_xor(wasm_v128_load(numbers), wasm_i8x16_const_splat(-128));
    EACH {
        v128_t codes = wasm_v128_load(p + 16 * i);
        v128_t low = wasm_v128_and(codes, wasm_i8x16_const_splat(15));
        set_bytes(&w[0], i, wasm_i8x16_swizzle(table, low));
        set_bytes(&w[1], i, wasm_i8x16_swizzle(table, wasm_u8x16_shr(codes, 4)));
    }
}

// The bits of each byte from `from` on, as those from `to` on that the mask has.
INLINE v128_t move_bits(v128_t v, int from, int to, int mask) {
    if (from < to) v = wasm_i8x16_shl(v, (uint32_t)(to - from));
    if (from > to) v = wasm_u8x16_shr(v, (uint32_t)(from - to));
    return wasm_v128_and(v, wasm_i8x16_splat((int8_t)mask));
}

INLINE void v_load_codes(Bytes w[2], const uint8_t *low, const uint8_t *high, int g, int bits,
                         const int8_t *numbers) {
    const v128_t table = wasm_i8x16_add(numbers ? wasm_v128_load(numbers) : wasm_i8x16_splat(0),
                                        wasm_i8x16_const_splat(32));
    if (bits == 6) high += g / 4 * 64;
    _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) {
        const int pair = (g + j) % 4 * 2;  // where two bits of a group begin in a byte
        EACH {
            const v128_t v = wasm_v128_load(low + 16 * i);
            v128_t codes = bits < 4 ? move_bits(v, pair, 0, 3) : move_bits(v, 4 * j, 0, 15);
            if (bits == 6)
                codes = wasm_v128_or(codes,
                                     move_bits(wasm_v128_load(high + 16 * i), pair, 4, 0x30));
            else if (bits % 2)
                codes = wasm_v128_or(codes, move_bits(wasm_v128_load(high + 16 * i), g + j,
                                                      bits - 1, 1 << (bits - 1)));
            if (numbers) codes = wasm_i8x16_swizzle(table, codes);
            set_codes(&w[j], i, codes);
        }
    }
}

INLINE void v_load_bytes(Bytes w[2], const uint8_t *p) {
    for (int g = 0; g < 2; g++) EACH set_codes(&w[g], i, wasm_v128_load(p + 64 * g + 16 * i));
}

INLINE Ints v_dot_codes(Ints sum, const Bytes w[4], const int8_t *x, int bits) {
    (void)bits;
    return v_dot(v_dot(v_dot(v_dot(sum, w[0], x), w[1], x + 4), w[2], x + 8), w[3], x + 12);
}

static inline void look_up(void *out, const void *table, const uint8_t *index) {
    const v128_t first = wasm_v128_load(table);
    const v128_t second = wasm_v128_load((const uint8_t *)table + 16);
    for (int i = 0; i < Q4_AT_ONCE; i += 16) {
        const v128_t at = wasm_v128_load(index + i);  // beyond 15 a swizzle gives 0
        const v128_t beyond = wasm_i8x16_sub(at, wasm_i8x16_const_splat(16));
        wasm_v128_store((uint8_t *)out + i, wasm_v128_or(wasm_i8x16_swizzle(first, at),
                                                         wasm_i8x16_swizzle(second, beyond)));
    }
}

static inline void dots(int32_t out[8], const int16_t *x, int x_step, const int16_t *y, int y_step,
                        int n) {
    for (int t = 0; t < n; t++, x += x_step, y += y_step)
        for (int b = 0; b < 2; b++) {
            v128_t sum = wasm_i32x4_const_splat(0);
            EACH sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(
                wasm_v128_load(x + b * BLOCK + 8 * i), wasm_v128_load(y + b * BLOCK + 8 * i)));
            sum = wasm_i32x4_add(sum, wasm_i32x4_shuffle(sum, sum, 2, 3, 0, 1));
            out[4 * b + t] = wasm_i32x4_extract_lane(sum, 0) + wasm_i32x4_extract_lane(sum, 1);
        }
}

#include "tiles.h"
#include "quantize.h"

#ifdef RELAXED
#define ROWS 4
#else
#define ROWS 2  // an exact multiply-add is fifty instructions
#endif

MATMUL(f32, 2, ROWS, 1, 512)
MATMUL(f16, 2, ROWS, 1, 512)
MATMUL(bf16, 2, ROWS, BLOCK, 32)
MATMUL_BLOCKS(2, ROWS)
MIX(f32, 1, 2, ROWS)
MIX(f16, 1, 2, ROWS)
MIX(q8, 2, 4, 1)
INT_MIX(1)
MIX_KEYS(f32, F32, 2)
MIX_KEYS(f16, F16, 2)
MIX_KEYS(q8, Q8, 2)
MIX_KEYS(q4, Q4, 2)
STATES(1, 1)
PEAK(1, 3)

#ifndef INCLUDED
const Kernels wasm_kernels = {
    .name = "wasm",
    TILES_KERNELS,
    PEAK_KERNELS(peak_floats),
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
#endif
