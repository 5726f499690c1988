// NEON with dot product (Armv8.2): four registers hold 16 lanes.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define SEVERAL_STREAMS
#define EACH _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)

typedef struct {
    float32x4_t v[4];
} Floats;
typedef struct {
    int32x4_t v[4];
} Ints;
typedef struct {
    int8x16_t v[4];
} Bytes;  // signed

INLINE Floats v_set1(float x) {
    return (Floats){{vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)}};
}
INLINE Floats v_zero(void) { return v_set1(0.0f); }
INLINE Floats v_add(Floats x, Floats y) {
    EACH x.v[i] = vaddq_f32(x.v[i], y.v[i]);
    return x;
}
INLINE Floats v_mul(Floats x, Floats y) {
    EACH x.v[i] = vmulq_f32(x.v[i], y.v[i]);
    return x;
}
INLINE Floats v_fma(Floats x, Floats y, Floats z) {
    EACH z.v[i] = vfmaq_f32(z.v[i], x.v[i], y.v[i]);
    return z;
}
INLINE Floats v_load(const float *p) {
    Floats x;
    EACH x.v[i] = vld1q_f32(p + 4 * i);
    return x;
}
INLINE void v_store(float *p, Floats x) { EACH vst1q_f32(p + 4 * i, x.v[i]); }

INLINE Floats v_load_f16(const uint8_t *p) {
    Floats x;
    EACH x.v[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)));
    return x;
}
INLINE Floats v_load_i8(const uint8_t *p) {
    int8x16_t b = vreinterpretq_s8_u8(vld1q_u8(p));
    int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_s8(vget_high_s8(b));
    return (Floats){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                     vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                     vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                     vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
INLINE Floats v_swap(Floats v, int h) {
    Floats x;
    EACH x.v[i] = h >= 4   ? v.v[i ^ h / 4]
                  : h == 2 ? vextq_f32(v.v[i], v.v[i], 2)
                           : vrev64q_f32(v.v[i]);
    return x;
}

// Of each pair of bf16, the even or the odd one: a bf16 is the upper half of an f32.
INLINE Floats v_load_bf16(const uint8_t *p, int odd) {
    Floats x;
    EACH {
        uint32x4_t pair = vreinterpretq_u32_u8(vld1q_u8(p + 16 * i));
        x.v[i] = vreinterpretq_f32_u32(odd ? vandq_u32(pair, vdupq_n_u32(0xffff0000))
                                           : vshlq_n_u32(pair, 16));
    }
    return x;
}
INLINE Floats v_set1_bf16(const uint16_t *p, int odd) { return v_set1(bf16_to_f32(p[odd])); }

INLINE void v_load_q8(Bytes w[2], const uint8_t *p) {
    for (int g = 0; g < 2; g++)
        EACH w[g].v[i] =
            vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 64 * g + 16 * i), vdupq_n_u8(128)));
}

INLINE void v_load_q4(Bytes w[2], const uint8_t *p, const int8_t *numbers) {
    const int8x16_t table = vld1q_s8(numbers);
    EACH {
        uint8x16_t codes = vld1q_u8(p + 16 * i);
        w[0].v[i] = vqtbl1q_s8(table, vandq_u8(codes, vdupq_n_u8(15)));
        w[1].v[i] = vqtbl1q_s8(table, vshrq_n_u8(codes, 4));
    }
}

// The bits of each byte from `from` on, as those from `to` on that the mask has: a shift by a
// negative number is one to the right.
INLINE uint8x16_t move_bits(uint8x16_t v, int from, int to, int mask) {
    return vandq_u8(vshlq_u8(v, vdupq_n_s8((int8_t)(to - from))), vdupq_n_u8((uint8_t)mask));
}

INLINE void v_load_codes(Bytes w[2], const uint8_t *low, const uint8_t *high, int g, int bits,
                         const int8_t *numbers) {
    const int8x16_t table =
        numbers ? vaddq_s8(vld1q_s8(numbers), vdupq_n_s8(32)) : vdupq_n_s8(0);
    if (bits == 6) high += g / 4 * 64;
    _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) {
        const int pair = (g + j) % 4 * 2;  // where two bits of a group begin in a byte
        EACH {
            const uint8x16_t v = vld1q_u8(low + 16 * i);
            uint8x16_t codes = bits < 4 ? move_bits(v, pair, 0, 3) : move_bits(v, 4 * j, 0, 15);
            if (bits == 6)
                codes = vorrq_u8(codes, move_bits(vld1q_u8(high + 16 * i), pair, 4, 0x30));
            else if (bits % 2)
                codes = vorrq_u8(codes, move_bits(vld1q_u8(high + 16 * i), g + j, bits - 1,
                                                  1 << (bits - 1)));
            w[j].v[i] = numbers ? vqtbl1q_s8(table, codes) : vreinterpretq_s8_u8(codes);
        }
    }
}

INLINE void v_load_bytes(Bytes w[2], const uint8_t *p) {
    for (int g = 0; g < 2; g++)
        EACH w[g].v[i] = vreinterpretq_s8_u8(vld1q_u8(p + 64 * g + 16 * i));
}

INLINE Ints v_start(int32_t n) {
    return (Ints){{vdupq_n_s32(n), vdupq_n_s32(n), vdupq_n_s32(n), vdupq_n_s32(n)}};
}
INLINE Ints v_dot_start(int32_t offset) {
    (void)offset;
    return (Ints){{vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}};
}
INLINE Ints v_dot(Ints sum, Bytes w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    EACH sum.v[i] = vdotq_s32(sum.v[i], w.v[i], vreinterpretq_s8_s32(vdupq_n_s32(four)));
    return sum;
}
INLINE Ints v_dot_codes(Ints sum, const Bytes w[4], const int8_t *x, int bits) {
    (void)bits;
    return v_dot(v_dot(v_dot(v_dot(sum, w[0], x), w[1], x + 4), w[2], x + 8), w[3], x + 12);
}
INLINE Floats v_dot_end(Ints sum) {
    Floats x;
    EACH x.v[i] = vcvtq_f32_s32(sum.v[i]);
    return x;
}

static inline void look_up(void *out, const void *table, const uint8_t *index) {
    const uint8x16x2_t both = vld1q_u8_x2(table);
    for (int i = 0; i < Q4_AT_ONCE; i += 16)
        vst1q_u8((uint8_t *)out + i, vqtbl2q_u8(both, vld1q_u8(index + i)));
}

INLINE void dots_block(int32_t out[4], const int16_t *x, int x_step, const int16_t *y, int y_step,
                       int n) {
    int32x4_t sum[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
    _Pragma("GCC unroll 4") for (int t = 0; t < n; t++)
        _Pragma("GCC unroll 8") for (int i = 0; i < BLOCK; i += 4)
            sum[t] = vmlal_s16(sum[t], vld1_s16(x + t * x_step + i),
                               vld1_s16(y + t * y_step + i));
    vst1q_s32(out, vpaddq_s32(vpaddq_s32(sum[0], sum[1]), vpaddq_s32(sum[2], sum[3])));
}

static inline void dots(int32_t out[8], const int16_t *x, int x_step, const int16_t *y, int y_step,
                        int n) {
    dots_block(out, x, x_step, y, y_step, n);
    dots_block(out + 4, x + BLOCK, x_step, y + BLOCK, y_step, n);
}

#include "tiles.h"
#include "quantize.h"

MATMUL(f32, 2, 3, 1, 512)
MATMUL(f16, 2, 3, 1, 512)
MATMUL(bf16, 2, 2, BLOCK, 32)
MATMUL_BLOCKS(2, 2)
MIX(f32, 1, 2, 3)
MIX(f16, 1, 2, 3)
MIX(q8, 2, 4, 1)
INT_MIX(1)
MIX_KEYS(f32, F32, 4)
MIX_KEYS(f16, F16, 4)
MIX_KEYS(q8, Q8, 4)
MIX_KEYS(q4, Q4, 4)
STATES(2, 2)
PEAK(1, 6)

const Kernels neon_kernels = {
    .name = "neon",
    TILES_KERNELS,
    PEAK_KERNELS(peak_floats),
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
