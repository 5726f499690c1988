// AVX-512 with VNNI: one register holds 16 lanes. avx512bf16.c and amx.c include this file and make
// tables of their own.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))

typedef __m512 Floats;
typedef __m512i Ints, Bytes;

INLINE Floats v_zero(void) { return _mm512_setzero_ps(); }
INLINE Floats v_set1(float x) { return _mm512_set1_ps(x); }
INLINE Floats v_add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
INLINE Floats v_mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
INLINE Floats v_fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Floats v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, Floats v) { _mm512_storeu_ps(p, v); }
INLINE Floats v_load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
INLINE Floats v_load_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

INLINE Floats v_swap(Floats v, int h) {
    return h == 8   ? _mm512_shuffle_f32x4(v, v, 0x4e)
           : h == 4 ? _mm512_shuffle_f32x4(v, v, 0xb1)
           : h == 2 ? _mm512_permute_ps(v, 0x4e)
                    : _mm512_permute_ps(v, 0xb1);
}

INLINE __m512i set1_32(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

// Of each pair of bf16, the even or the odd one: a bf16 is the upper half of an f32.
INLINE Floats half(__m512i v, int odd) {
    return _mm512_castsi512_ps(odd ? _mm512_and_si512(v, _mm512_set1_epi32((int32_t)0xffff0000))
                                   : _mm512_slli_epi32(v, 16));
}
INLINE Floats v_load_bf16(const uint8_t *p, int odd) { return half(_mm512_loadu_si512(p), odd); }
INLINE Floats v_set1_bf16(const uint16_t *p, int odd) { return half(set1_32(p), odd); }

#ifdef BF16_DOT
typedef __m512bh Pairs;
INLINE Pairs v_load_pairs(const uint8_t *p) { return (__m512bh)_mm512_loadu_si512(p); }
INLINE Pairs v_set1_pair(const uint16_t *p) { return (__m512bh)set1_32(p); }
INLINE Floats v_dot_bf16(Floats sum, Pairs w, Pairs x) { return _mm512_dpbf16_ps(sum, w, x); }
#endif

INLINE void v_load_q8(Bytes w[2], const uint8_t *p) {
    w[0] = _mm512_loadu_si512(p);
    w[1] = _mm512_loadu_si512(p + 64);
}

INLINE void v_load_q4(Bytes w[2], const uint8_t *p, const int8_t *numbers) {
    const __m128i codes =
        _mm_xor_si128(_mm_loadu_si128((const void *)numbers), _mm_set1_epi8(-128));
    const __m512i table = _mm512_broadcast_i32x4(codes);
    const __m512i low = _mm512_set1_epi8(15), v = _mm512_loadu_si512(p);
    w[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(v, low));
    w[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
}

// The bits of each byte from `from` on, as those from `to` on that the mask has.
INLINE __m512i move_bits(__m512i v, int from, int to, int mask) {
    if (from < to) v = _mm512_slli_epi16(v, (unsigned)(to - from));
    if (from > to) v = _mm512_srli_epi16(v, (unsigned)(from - to));
    return _mm512_and_si512(v, _mm512_set1_epi8((char)mask));
}

INLINE void v_load_codes(Bytes w[2], const uint8_t *low, const uint8_t *high, int g, int bits,
                         const int8_t *numbers) {
    const __m512i v = _mm512_loadu_si512(low);
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)
        w[i] = bits < 4 ? move_bits(v, (g + i) % 4 * 2, 0, 3) : move_bits(v, 4 * i, 0, 15);
    if (bits != 2 && bits != 4) {
        const __m512i more = _mm512_loadu_si512(bits == 6 ? high + g / 4 * 64 : high);
        _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)
            w[i] = _mm512_or_si512(
                w[i], bits == 6 ? move_bits(more, (g + i) % 4 * 2, 4, 0x30)
                                : move_bits(more, g + i, bits - 1, 1 << (bits - 1)));
    }
    if (!numbers) return;
    const __m128i codes =
        _mm_add_epi8(_mm_loadu_si128((const void *)numbers), _mm_set1_epi8(32));
    const __m512i table = _mm512_broadcast_i32x4(codes);
    for (int i = 0; i < 2; i++) w[i] = _mm512_shuffle_epi8(table, w[i]);
}

INLINE void v_load_bytes(Bytes w[2], const uint8_t *p) { v_load_q8(w, p); }

INLINE Ints v_start(int32_t n) { return _mm512_set1_epi32(n); }
INLINE Ints v_dot_start(int32_t offset) { return _mm512_set1_epi32(offset); }
INLINE Ints v_dot(Ints sum, Bytes w, const int8_t *x) {
    return _mm512_dpbusd_epi32(sum, w, set1_32(x));
}
INLINE Ints v_dot_codes(Ints sum, const Bytes w[4], const int8_t *x, int bits) {
    (void)bits;
    return v_dot(v_dot(v_dot(v_dot(sum, w[0], x), w[1], x + 4), w[2], x + 8), w[3], x + 12);
}
INLINE Floats v_dot_end(Ints sum) { return _mm512_cvtepi32_ps(sum); }

#define ROUND_BYTES  // as in lanes.h
static inline int32_t round_bytes(int8_t *out, const float *x, float inverse, int n) {
    const __m512 scale = _mm512_set1_ps(inverse), magic = _mm512_set1_ps(ROUND_MAGIC);
    __m128i sum = _mm_setzero_si128();
    _Pragma("GCC unroll 4") for (int i = 0; i < n; i += 16) {
        const __m512 v = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), scale, magic);
        const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(v));
        _mm_storeu_si128((void *)(out + i), bytes);
        sum = _mm_dpbusd_epi32(sum, _mm_set1_epi8(1), bytes);
    }
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

#define Q4_WORDS
static inline void look_up(void *out, const void *table, const uint16_t *index) {
    for (int i = 0; i < Q4_AT_ONCE; i += 32)
        _mm512_storeu_si512((uint16_t *)out + i,
                            _mm512_permutexvar_epi16(_mm512_loadu_si512(index + i),
                                                     _mm512_loadu_si512(table)));
}

// In every 128 bits, the sums of the four numbers that a, b, c and d have there.
INLINE __m512i sum_fours(__m512i a, __m512i b, __m512i c, __m512i d) {
    a = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    c = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c));
}

static inline void dots(int32_t out[8], const int16_t *x, int x_step, const int16_t *y, int y_step,
                        int n) {
    __m512i sum[2][4] = {0};
    _Pragma("GCC unroll 4") for (int t = 0; t < n; t++)
        _Pragma("GCC unroll 2") for (int b = 0; b < 2; b++)
            sum[b][t] = _mm512_madd_epi16(_mm512_loadu_si512(x + t * x_step + b * BLOCK),
                                          _mm512_loadu_si512(y + t * y_step + b * BLOCK));
    const __m512i first = sum_fours(sum[0][0], sum[0][1], sum[0][2], sum[0][3]);
    const __m512i second = sum_fours(sum[1][0], sum[1][1], sum[1][2], sum[1][3]);
    const __m512i half = _mm512_add_epi32(_mm512_shuffle_i32x4(first, second, 0x88),
                                          _mm512_shuffle_i32x4(first, second, 0xdd));
    const __m512i all = _mm512_add_epi32(half, _mm512_shuffle_i32x4(half, half, 0xb1));
    _mm256_storeu_si256((void *)out,
                        _mm512_castsi512_si256(_mm512_shuffle_i32x4(all, all, 0x88)));
}

#define ONE_CHAINS 2  // registers hold both
#ifdef INCLUDED
#define WEIGHTS_TILES(body, P, T) BORROWED_TILES(avx512_##body, body, P, T)
#else
#define WEIGHTS_TILES(body, P, T) LENT_TILES(avx512_##body, body, P, T)
// Processors without bf16 are Intel's. On Ice Lake, decode is 5 to 19 % faster with these.
#define SEVERAL_STREAMS
#define FORESEEN (1 << 10)
#define AHEAD_TO 3
#endif
#include "tiles.h"
#include "quantize.h"

MATMUL(f32, 4, 6, 1, 512)
MATMUL(f16, 4, 6, 1, 512)
#ifdef BF16_DOT
MATMUL(bf16, 4, 6, BLOCK, 32)
#else
MATMUL(bf16, 2, 6, BLOCK, 32)
#endif
MATMUL_BLOCKS(2, 6)
MIX(f32, 1, 4, 6)
MIX(f16, 1, 4, 6)
MIX(q8, 2, 4, 6)
INT_MIX(4)
MIX_KEYS(f32, F32, 4)
MIX_KEYS(f16, F16, 4)
MIX_KEYS(q8, Q8, 4)
MIX_KEYS(q4, Q4, 4)
STATES(4, 4)
PEAK(2, 6)

#ifndef INCLUDED
const Kernels avx512_kernels = {
    .name = "avx512",
    TILES_KERNELS,
    PEAK_KERNELS(peak_floats),
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
#endif
