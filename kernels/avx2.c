// AVX2, FMA and F16C: two registers hold 16 lanes. avxvnni.c includes this file and makes a table
// of its own.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    __m256 a, b;
} Floats;
typedef struct {
    __m256i a, b;
} Ints;
typedef Ints Bytes;  // signed, but with AVX_VNNI

INLINE Floats v_zero(void) { return (Floats){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE Floats v_set1(float x) { return (Floats){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Floats v_add(Floats x, Floats y) {
    return (Floats){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
INLINE Floats v_mul(Floats x, Floats y) {
    return (Floats){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
INLINE Floats v_fma(Floats x, Floats y, Floats z) {
    return (Floats){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE Floats v_load(const float *p) {
    return (Floats){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INLINE void v_store(float *p, Floats v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

INLINE __m256 swap(__m256 v, int h) {
    return h == 4   ? _mm256_permute2f128_ps(v, v, 1)
           : h == 2 ? _mm256_permute_ps(v, 0x4e)
                    : _mm256_permute_ps(v, 0xb1);
}
INLINE Floats v_swap(Floats v, int h) {
    return h == 8 ? (Floats){v.b, v.a} : (Floats){swap(v.a, h), swap(v.b, h)};
}

INLINE __m128i load128(const void *p) { return _mm_loadu_si128(p); }
INLINE Ints load512(const void *p) {
    return (Ints){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
INLINE __m256i set1_32(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

INLINE Floats v_load_f16(const uint8_t *p) {
    return (Floats){_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 16))};
}
INLINE Floats v_load_i8(const uint8_t *p) {
    __m128i v = load128(p);
    return (Floats){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v)))};
}

// Of each pair of bf16, the even or the odd one: a bf16 is the upper half of an f32.
INLINE __m256 half(__m256i v, int odd) {
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(v, _mm256_set1_epi32((int32_t)0xffff0000))
                                   : _mm256_slli_epi32(v, 16));
}
INLINE Floats v_load_bf16(const uint8_t *p, int odd) {
    Ints v = load512(p);
    return (Floats){half(v.a, odd), half(v.b, odd)};
}
INLINE Floats v_set1_bf16(const uint16_t *p, int odd) {
    __m256 v = half(set1_32(p), odd);
    return (Floats){v, v};
}

#ifdef AVX_VNNI
#define V_BIAS -128  // added to weights: the unsigned operand of the dot product
#else
#define V_BIAS 0
#endif

INLINE void v_load_q8(Bytes w[2], const uint8_t *p) {
    const __m256i flip = _mm256_set1_epi8(-128 - V_BIAS);
    for (int i = 0; i < 2; i++) {
        Ints v = load512(p + 64 * i);
        w[i] = (Bytes){_mm256_xor_si256(v.a, flip), _mm256_xor_si256(v.b, flip)};
    }
}

INLINE void v_load_q4(Bytes w[2], const uint8_t *p, const int8_t *numbers) {
    const __m128i codes = _mm_xor_si128(load128(numbers), _mm_set1_epi8(V_BIAS));
    const __m256i table = _mm256_broadcastsi128_si256(codes), low = _mm256_set1_epi8(15);
    Ints v = load512(p);
    w[0] = (Bytes){_mm256_shuffle_epi8(table, _mm256_and_si256(v.a, low)),
                   _mm256_shuffle_epi8(table, _mm256_and_si256(v.b, low))};
    w[1] = (Bytes){_mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v.a, 4), low)),
                   _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v.b, 4), low))};
}

// The bits of each byte from `from` on, as those from `to` on that the mask has.
INLINE Ints move_bits(Ints v, int from, int to, int mask) {
    const __m256i kept = _mm256_set1_epi8((char)mask);
    if (from < to) v = (Ints){_mm256_slli_epi16(v.a, to - from), _mm256_slli_epi16(v.b, to - from)};
    if (from > to) v = (Ints){_mm256_srli_epi16(v.a, from - to), _mm256_srli_epi16(v.b, from - to)};
    return (Ints){_mm256_and_si256(v.a, kept), _mm256_and_si256(v.b, kept)};
}

INLINE void v_load_codes(Bytes w[2], const uint8_t *low, const uint8_t *high, int g, int bits,
                         const int8_t *numbers) {
    const Ints v = load512(low);
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)
        w[i] = bits < 4 ? move_bits(v, (g + i) % 4 * 2, 0, 3) : move_bits(v, 4 * i, 0, 15);
    if (bits != 2 && bits != 4) {
        const Ints more = load512(bits == 6 ? high + g / 4 * 64 : high);
        _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) {
            const Ints upper = bits == 6 ? move_bits(more, (g + i) % 4 * 2, 4, 0x30)
                                         : move_bits(more, g + i, bits - 1, 1 << (bits - 1));
            w[i] = (Bytes){_mm256_or_si256(w[i].a, upper.a), _mm256_or_si256(w[i].b, upper.b)};
        }
    }
    if (!numbers) return;
    const __m128i codes = _mm_add_epi8(load128(numbers), _mm_set1_epi8(32));
    const __m256i table = _mm256_broadcastsi128_si256(codes);
    for (int i = 0; i < 2; i++)
        w[i] = (Bytes){_mm256_shuffle_epi8(table, w[i].a), _mm256_shuffle_epi8(table, w[i].b)};
}

INLINE void v_load_bytes(Bytes w[2], const uint8_t *p) {
    for (int i = 0; i < 2; i++) {
        w[i] = load512(p + 64 * i);
        __asm__("" : "+x"(w[i].a), "+x"(w[i].b));  // or gcc loads them again for each row
    }
}

#ifdef AVX_VNNI
INLINE Ints v_dot_start(int32_t offset) {
    return (Ints){_mm256_set1_epi32(offset), _mm256_set1_epi32(offset)};
}
INLINE __m256i dot4(__m256i sum, __m256i w, __m256i x) {
    return _mm256_dpbusd_avx_epi32(sum, w, x);
}
#else
INLINE Ints v_dot_start(int32_t offset) {
    (void)offset;
    return (Ints){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

// |w| times x with the sign of w: a pair is at most 2 x 128 x 127, which 16 bits hold.
INLINE __m256i dot4(__m256i sum, __m256i w, __m256i x) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    __asm__("" : "+x"(sum));  // or gcc adds several pairs to each other first, and spills registers
    return sum;
}
#endif

INLINE Ints v_start(int32_t n) { return (Ints){_mm256_set1_epi32(n), _mm256_set1_epi32(n)}; }

// 16 columns of 8 rows.
#ifdef AVX_VNNI
INLINE __m256i dot16(__m256i sum, const __m256i w[4], const __m256i x[4], int bits) {
    (void)bits;
    return dot4(dot4(dot4(dot4(sum, w[0], x[0]), w[1], x[1]), w[2], x[2]), w[3], x[3]);
}
#else
// 16 bits hold the sum of eight products of codes of five bits, and of four products of six bits.
INLINE __m256i dot16(__m256i sum, const __m256i w[4], const __m256i x[4], int bits) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i pairs[4];
    for (int i = 0; i < 4; i++) pairs[i] = _mm256_maddubs_epi16(w[i], x[i]);
    const __m256i first = _mm256_add_epi16(pairs[0], pairs[1]);
    const __m256i last = _mm256_add_epi16(pairs[2], pairs[3]);
    if (bits < 6)
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(first, last), ones));
    return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(first, ones),
                                                  _mm256_madd_epi16(last, ones)));
}
#endif

INLINE Ints v_dot_codes(Ints sum, const Bytes w[4], const int8_t *x, int bits) {
    const __m256i a[4] = {w[0].a, w[1].a, w[2].a, w[3].a};
    const __m256i b[4] = {w[0].b, w[1].b, w[2].b, w[3].b};
    const __m256i v[4] = {set1_32(x), set1_32(x + 4), set1_32(x + 8), set1_32(x + 12)};
    return (Ints){dot16(sum.a, a, v, bits), dot16(sum.b, b, v, bits)};
}

INLINE Ints v_dot(Ints sum, Bytes w, const int8_t *x) {
    __m256i a = set1_32(x);
    return (Ints){dot4(sum.a, w.a, a), dot4(sum.b, w.b, a)};
}
#ifndef AVX_VNNI
#define v_dot_numbers v_dot_numbers
// |x| times w with the sign of x, where w is no -128, whose sign cannot change.
INLINE __m256i dot_numbers(__m256i sum, __m256i w, __m256i x) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    __asm__("" : "+x"(sum));
    return sum;
}
INLINE Ints v_dot_numbers(Ints sum, Bytes w, const int8_t *x) {
    __m256i a = set1_32(x);
    return (Ints){dot_numbers(sum.a, w.a, a), dot_numbers(sum.b, w.b, a)};
}
#endif
INLINE Floats v_dot_end(Ints sum) {
    return (Floats){_mm256_cvtepi32_ps(sum.a), _mm256_cvtepi32_ps(sum.b)};
}

INLINE __m256i twice(const void *p) { return _mm256_broadcastsi128_si256(load128(p)); }

static inline void look_up(void *out, const void *table, const uint8_t *index) {
    const __m256i first = twice(table), second = twice((const uint8_t *)table + 16);
    for (int i = 0; i < Q4_AT_ONCE; i += BLOCK) {
        const __m256i at = _mm256_loadu_si256((const void *)(index + i));
        const __m256i low = _mm256_shuffle_epi8(first, at), high = _mm256_shuffle_epi8(second, at);
        // the index's bit of 16 becomes the sign of its byte
        _mm256_storeu_si256((void *)((uint8_t *)out + i),
                            _mm256_blendv_epi8(low, high, _mm256_slli_epi16(at, 3)));
    }
}

// In every 128 bits, the sums of the four numbers that each v has there.
INLINE __m256i sum_fours(const __m256i v[4]) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
}

static inline void dots(int32_t out[8], const int16_t *x, int x_step, const int16_t *y, int y_step,
                        int n) {
    __m256i sum[2][4] = {0};
    _Pragma("GCC unroll 4") for (int t = 0; t < n; t++)
        _Pragma("GCC unroll 2") for (int b = 0; b < 2; b++) {
            const Ints v = load512(x + t * x_step + b * BLOCK);
            const Ints w = load512(y + t * y_step + b * BLOCK);
            sum[b][t] = _mm256_add_epi32(_mm256_madd_epi16(v.a, w.a), _mm256_madd_epi16(v.b, w.b));
        }
    const __m256i first = sum_fours(sum[0]), second = sum_fours(sum[1]);
    _mm256_storeu_si256((void *)out,
                        _mm256_add_epi32(_mm256_permute2x128_si256(first, second, 0x20),
                                         _mm256_permute2x128_si256(first, second, 0x31)));
}

#include "tiles.h"
#include "quantize.h"

MATMUL(f32, 2, 3, 1, 512)
MATMUL(f16, 2, 2, 1, 512)
MATMUL(bf16, 2, 2, BLOCK, 32)
#ifdef AVX_VNNI  // a dot product takes five cycles and two begin in each: so ten chains at least
MATMUL_BLOCKS(1, 6)
#else  // |w| too wants registers
MATMUL_BLOCKS(1, 4)
#endif
MIX(f32, 1, 2, 2)
MIX(f16, 1, 2, 2)
MIX(q8, 2, 4, 1)
INT_MIX(1)
MIX_KEYS(f32, F32, 2)
MIX_KEYS(f16, F16, 2)
MIX_KEYS(q8, Q8, 2)
MIX_KEYS(q4, Q4, 2)
STATES(2, 1)
PEAK(1, 6)

#ifndef INCLUDED
const Kernels avx2_kernels = {
    .name = "avx2",
    TILES_KERNELS,
    PEAK_KERNELS(peak_floats),
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
#endif
