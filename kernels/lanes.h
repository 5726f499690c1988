// Everything that is not a product of matrices, written once in plain C. Each instruction set's
// file includes this and is compiled with its own flags, so the compiler turns the loops over lanes
// into that set's vectors; the bits stay the same, because every operation is an IEEE one in a
// stated order and fused multiply-adds are spelled fmaf (-ffp-contract=off).
#ifndef LANES_H
#define LANES_H

#include <math.h>

#include "kernels.h"

#define UNROLL _Pragma("GCC unroll 16")

// e^x = 2^n (1 + m): x = n ln2 + r, |r| <= ln2 / 2, and m = e^r - 1 by a minimax polynomial of
// degree 6.
typedef struct {
    float m, power;  // power = 2^n
} ExpParts;

static inline ExpParts exp_parts(float x) {
    float t = fmaf(x, 1.44269504f, ROUND_MAGIC);
    float n = t - ROUND_MAGIC;
    float r = fmaf(n, -1.42860682e-6f, fmaf(n, -0.693145752f, x));
    float p = 0.00138131389f;
    p = fmaf(p, r, 0.00836941972f);
    p = fmaf(p, r, 0.0416684560f);
    p = fmaf(p, r, 0.166665152f);
    p = fmaf(p, r, 0.499999940f);
    return (ExpParts){fmaf(p, r * r, r),
                      from_bits((bits_of(t) - bits_of(ROUND_MAGIC) + 127u) << 23)};
}

// e^x within 1.1 ulp for x <= 88.3; below -87 it is 0 (no denormals). Cases are masks of bits:
// given a choice between floats, compilers branch and leave the lanes.
static inline float exp_finite(float x) {
    ExpParts e = exp_parts(x);
    uint32_t kept = 0u - (uint32_t)!(x < -87.0f);
    return from_bits(bits_of((e.m + 1.0f) * e.power) & kept);
}

// The same for any x: above 88.3 it is infinite.
static inline float exp_lane(float x) {
    uint32_t over = 0u - (uint32_t)(x > 88.3f);
    return from_bits((bits_of(exp_finite(x)) & ~over) | (bits_of(INFINITY) & over));
}

// e^x - 1 within 1.6 ulp: 2^n m + (2^n - 1). Below -87 it is -1, above 88.3 infinite.
static inline float expm1_lane(float x) {
    ExpParts e = exp_parts(x);
    float y = fmaf(e.power, e.m, e.power - 1.0f);
    y = x < -87.0f ? -1.0f : y;
    return x > 88.3f ? INFINITY : y;
}

// Within 3 ulp: (e^2x - 1) / (e^2x + 1), of |x| so that it is odd to the bit.
static inline float tanh_lane(float x) {
    float a = fabsf(x) < 16.0f ? fabsf(x) : 16.0f, e = expm1_lane(2.0f * a);
    return copysignf(e / (e + 2.0f), x);
}

// The standard normal's tail P(X > x) for x >= 0: e^(-x^2/2) times a minimax polynomial in
// t = 1 / (1 + 0.3 x). Relative error 2e-7 near 0, growing with the rounding of x^2 to 3e-6 at 9;
// x times it is off by 2.4e-7 at most.
static inline float normal_tail(float x) {
    float t = 1.0f / fmaf(0.3f, x, 1.0f);
    float p = 0.0356756113f;
    p = fmaf(p, t, -0.157206222f);
    p = fmaf(p, t, 0.206358388f);
    p = fmaf(p, t, -0.0536876917f);
    p = fmaf(p, t, 0.128563553f);
    p = fmaf(p, t, 0.0999129638f);
    p = fmaf(p, t, 0.120754033f);
    p = fmaf(p, t, 0.119629294f);
    return p * t * exp_lane(-0.5f * x * x);
}

static inline float sigmoid_lane(float x) { return 1.0f / (1.0f + exp_lane(-x)); }

static inline float silu_lane(float x) { return x / (1.0f + exp_lane(-x)); }

static inline float gelu_erf_lane(float x) {
    float tail = x * normal_tail(fabsf(x));
    return x > 0.0f ? x - tail : tail;
}

// 0.5 x (1 + tanh u) = x / (1 + e^-2u)
static inline float gelu_tanh_lane(float x) {
    float u = 0.797884561f * fmaf(0.044715f * x * x, x, x);
    return x / (1.0f + exp_lane(-2.0f * u));
}

static void lanes_act(float *x, Act act, int n) {
    if (act == ACT_SILU)
        for (int i = 0; i < n; i++) x[i] = silu_lane(x[i]);
    else if (act == ACT_GELU_ERF)
        for (int i = 0; i < n; i++) x[i] = gelu_erf_lane(x[i]);
    else if (act == ACT_GELU_TANH)
        for (int i = 0; i < n; i++) x[i] = gelu_tanh_lane(x[i]);
    else if (act == ACT_SIGMOID)
        for (int i = 0; i < n; i++) x[i] = sigmoid_lane(x[i]);
    else if (act == ACT_RELU)
        for (int i = 0; i < n; i++) x[i] = x[i] > 0.0f ? x[i] : 0.0f;
    else
        for (int i = 0; i < n; i++) x[i] = x[i] > 0.0f ? x[i] * x[i] : 0.0f;
}

static void lanes_act_mul(float *restrict x, const float *restrict y, Act act, int n) {
    lanes_act(x, act, n);
    for (int i = 0; i < n; i++) x[i] *= y[i];
}

static void lanes_xielu(float *restrict x, const float p[4], int n) {
    float positive = p[0], negative = p[1], beta = p[2], eps = p[3];
    for (int i = 0; i < n; i++) {
        float v = x[i], below = negative * (expm1_lane(v < eps ? v : eps) - v);
        x[i] = fmaf(beta, v, v > 0.0f ? positive * v * v : below);
    }
}

static void lanes_clamped_swiglu(float *restrict x, const float *restrict y, float alpha,
                                 float limit, int n) {
    for (int i = 0; i < n; i++) {
        float gate = x[i] < limit ? x[i] : limit, up = y[i] < limit ? y[i] : limit;
        up = up > -limit ? up : -limit;
        x[i] = (up + 1.0f) * (gate / (1.0f + exp_lane(-alpha * gate)));
    }
}

static void lanes_clamp(float *x, float limit, int n) {
    for (int i = 0; i < n; i++) {
        float v = x[i] < limit ? x[i] : limit;
        x[i] = v > -limit ? v : -limit;
    }
}

static void lanes_softcap(float *x, float cap, int n) {
    for (int i = 0; i < n; i++) x[i] = cap * tanh_lane(x[i] / cap);
}

static void lanes_add_ramp(float *x, float first, float slope, int n) {
    for (int i = 0; i < n; i++) x[i] = fmaf(slope, first + (float)i, x[i]);
}

// Cosine and sine in double precision: angles grow with the position, so the reduction by pi/2
// needs the digits.
static void lanes_sincos(float *c, float *s, const float *angle, float multiplier, int n) {
    const double magic = 6755399441055744.0;  // as ROUND_MAGIC, for |angle| < 2^50
    for (int i = 0; i < n; i++) {
        double a = angle[i], t = fma(a, 0.63661977236758134, magic), k = t - magic;
        uint64_t quadrant;
        memcpy(&quadrant, &t, sizeof quadrant);
        double r = fma(k, -6.123233995736766e-17, fma(k, -1.5707963267948966, a)), r2 = r * r;
        double sn = fma(r2, -2.50521083854417e-8, 2.75573192239859e-6);
        sn = fma(sn, r2, -1.98412698412698e-4);
        sn = fma(sn, r2, 8.33333333333333e-3);
        sn = fma(sn, r2, -0.166666666666666667);
        sn = fma(sn * r2, r, r);
        double cs = fma(r2, 2.08767569878681e-9, -2.75573192239859e-7);
        cs = fma(cs, r2, 2.48015873015873e-5);
        cs = fma(cs, r2, -1.38888888888889e-3);
        cs = fma(cs, r2, 4.16666666666667e-2);
        cs = fma(cs, r2, -0.5);
        cs = fma(cs, r2, 1.0);
        double cosine = quadrant & 1 ? sn : cs, sine = quadrant & 1 ? cs : sn;
        cosine = (quadrant + 1) & 2 ? -cosine : cosine;
        sine = quadrant & 2 ? -sine : sine;
        c[i] = (float)cosine * multiplier;
        s[i] = (float)sine * multiplier;
    }
}

static void lanes_rope(float *x, const float *restrict c, const float *restrict s, int n_pairs) {
    float *restrict a = x, *restrict b = x + n_pairs;
    for (int i = 0; i < n_pairs; i++) {
        float u = a[i], v = b[i];
        a[i] = fmaf(u, c[i], -(v * s[i]));
        b[i] = fmaf(v, c[i], u * s[i]);
    }
}

static void lanes_add(float *restrict x, const float *restrict y, int n) {
    for (int i = 0; i < n; i++) x[i] += y[i];
}

static void lanes_scale(float *x, float a, int n) {
    for (int i = 0; i < n; i++) x[i] *= a;
}

static void lanes_axpby(float *restrict x, float a, const float *restrict y, float b, int n) {
    for (int i = 0; i < n; i++) x[i] = fmaf(y[i], b, x[i] * a);
}

// The fixed tree of every reduction: lanes 8 apart, then 4, 2, 1.
static inline float sum_lanes(float v[LANES]) {
    for (int i = 0; i < 8; i++) v[i] += v[i + 8];
    for (int i = 0; i < 4; i++) v[i] += v[i + 4];
    return (v[0] + v[2]) + (v[1] + v[3]);
}

static inline float sum(const float *x, int n) {
    float v[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) v[j] += x[i + j];
    for (int j = 0; i + j < n; j++) v[j] += x[i + j];
    return sum_lanes(v);
}

// The sum of (x - mean)^2.
static inline float sum_squares(const float *x, float mean, int n) {
    float v[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) v[j] = fmaf(x[i + j] - mean, x[i + j] - mean, v[j]);
    for (int j = 0; i + j < n; j++) v[j] = fmaf(x[i + j] - mean, x[i + j] - mean, v[j]);
    return sum_lanes(v);
}

static void lanes_rmsnorm(float *out, const float *x, const float *w, int n, float eps) {
    float r = 1.0f / sqrtf(sum_squares(x, 0.0f, n) / (float)n + eps);
    for (int i = 0; i < n; i++) out[i] = x[i] * r * w[i];
}

static void lanes_layernorm(float *out, const float *x, const float *w, const float *b, int n,
                            float eps) {
    float mean = sum(x, n) / (float)n;
    float r = 1.0f / sqrtf(sum_squares(x, mean, n) / (float)n + eps);
    if (b)
        for (int i = 0; i < n; i++) out[i] = fmaf((x[i] - mean) * r, w[i], b[i]);
    else
        for (int i = 0; i < n; i++) out[i] = (x[i] - mean) * r * w[i];
}

static void lanes_unit(float *x, float scale, float eps, int n) {
    float r = scale / sqrtf(sum_squares(x, 0.0f, n) + eps);
    for (int i = 0; i < n; i++) x[i] *= r;
}

static void lanes_conv(float *restrict out, const float *restrict x, size_t stride,
                       const float *restrict w, const float *restrict b, int n_taps, int n) {
    for (int i = 0; i < n; i++) out[i] = b ? b[i] : 0.0f;
    for (int j = 0; j < n_taps; j++, x += stride, w += n)
        for (int i = 0; i < n; i++) out[i] = fmaf(w[i], x[i], out[i]);
}

// log(1 + e^x) = max(x, 0) + 2 atanh(e / (2 + e)) with e = e^-|x|: the argument is at most 1/3, and
// the series of atanh ends with a relative error of 1e-8.
static inline float softplus_lane(float x) {
    float e = exp_lane(-fabsf(x)), t = e / (2.0f + e), t2 = t * t;
    float p = 1.0f / 15.0f;
    p = fmaf(p, t2, 1.0f / 13.0f);
    p = fmaf(p, t2, 1.0f / 11.0f);
    p = fmaf(p, t2, 1.0f / 9.0f);
    p = fmaf(p, t2, 1.0f / 7.0f);
    p = fmaf(p, t2, 1.0f / 5.0f);
    p = fmaf(p, t2, 1.0f / 3.0f);
    p = fmaf(p * t2, t, t);
    return fmaf(2.0f, p, x > 0.0f ? x : 0.0f);
}

static void lanes_decay(float *restrict x, const float *restrict rate, int n) {
    for (int i = 0; i < n; i++) x[i] = exp_lane(-rate[i] * softplus_lane(x[i]));
}

// The columns j..j+n-1 of a state, n <= 64, whose sums stay in registers: S = decay S + k change^T;
// out = S^T q.
__attribute__((always_inline))
static inline void add_outer(float *restrict state, float *restrict out, const float *restrict q,
                             const float *restrict k, const float *restrict change, float decay,
                             int n_k, int n_v, int n) {
    float sum[4 * LANES] = {0};
    for (int i = 0; i < n_k; i++) {
        float *s = state + (size_t)i * (size_t)n_v;
        for (int j = 0; j < n; j++) {
            float x = fmaf(k[i], change[j], s[j] * decay);
            s[j] = x;
            sum[j] = fmaf(x, q[i], sum[j]);
        }
    }
    for (int j = 0; j < n; j++) out[j] = sum[j];
}

// The same columns, of the delta rule.
__attribute__((always_inline))
static inline void delta_columns(float *restrict state, float *restrict out,
                                 const float *restrict q, const float *restrict k,
                                 const float *restrict v, float decay, float beta, int n_k, int n_v,
                                 int n) {
    float change[4 * LANES] = {0};
    for (int i = 0; i < n_k; i++) {
        const float *s = state + (size_t)i * (size_t)n_v;
        for (int j = 0; j < n; j++) change[j] = fmaf(s[j] * decay, k[i], change[j]);
    }
    for (int j = 0; j < n; j++) change[j] = beta * (v[j] - change[j]);
    add_outer(state, out, q, k, change, decay, n_k, n_v, n);
}

static void lanes_delta(float *state, float *out, const float *q, const float *k, const float *v,
                        float decay, float beta, int n_k, int n_v) {
    int j = 0;
    for (; j + 4 * LANES <= n_v; j += 4 * LANES)
        delta_columns(state + j, out + j, q, k, v + j, decay, beta, n_k, n_v, 4 * LANES);
    for (; j + LANES <= n_v; j += LANES)
        delta_columns(state + j, out + j, q, k, v + j, decay, beta, n_k, n_v, LANES);
    if (j < n_v) delta_columns(state + j, out + j, q, k, v + j, decay, beta, n_k, n_v, n_v - j);
}

static void lanes_step(float *restrict x, float *restrict decay, const float *restrict rate,
                       float least, float most, int n) {
    for (int i = 0; i < n; i++) {
        float y = softplus_lane(x[i]);
        y = y < least ? least : y;
        x[i] = y > most ? most : y;
        decay[i] = exp_lane(-rate[i] * x[i]);
    }
}

// The same columns, of Mamba-2.
__attribute__((always_inline))
static inline void mamba2_columns(float *restrict state, float *restrict out,
                                  const float *restrict q, const float *restrict k,
                                  const float *restrict v, float decay, float step, int n_k,
                                  int n_v, int n) {
    float change[4 * LANES] = {0};
    for (int j = 0; j < n; j++) change[j] = step * v[j];
    add_outer(state, out, q, k, change, decay, n_k, n_v, n);
}

static void lanes_mamba2(float *state, float *out, const float *q, const float *k, const float *v,
                         float decay, float step, int n_k, int n_v) {
    int j = 0;
    for (; j + 4 * LANES <= n_v; j += 4 * LANES)
        mamba2_columns(state + j, out + j, q, k, v + j, decay, step, n_k, n_v, 4 * LANES);
    for (; j + LANES <= n_v; j += LANES)
        mamba2_columns(state + j, out + j, q, k, v + j, decay, step, n_k, n_v, LANES);
    if (j < n_v) mamba2_columns(state + j, out + j, q, k, v + j, decay, step, n_k, n_v, n_v - j);
}

// Integers in the order of floats, of which compilers know how to take a maximum in lanes. (A NaN
// is the largest number of its sign.)
static inline int32_t in_order(float x) {
    int32_t u = (int32_t)bits_of(x);
    return u ^ (u >> 31 & 0x7fffffff);
}

static inline float from_order(int32_t v) {
    return from_bits((uint32_t)(v ^ (v >> 31 & 0x7fffffff)));
}

static float lanes_max(const float *x, int n) {
    int32_t top = INT32_MIN;
    for (int i = 0; i < n; i++) top = in_order(x[i]) > top ? in_order(x[i]) : top;
    return from_order(top);
}

static float lanes_exp_sum(float *x, float max, int n) {
    float v[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float e = exp_finite(x[i + j] - max);
            x[i + j] = e;
            v[j] += e;
        }
    return sum_lanes(v);
}

static inline uint16_t bf16_lane(float x) {  // to nearest even; a NaN stays one
    uint32_t u = bits_of(x);
    return x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void lanes_to_bf16(uint16_t *restrict out, const float *restrict x, int n) {
    for (int i = 0; i < n; i++) out[i] = bf16_lane(x[i]);
    for (int i = n; i % BLOCK; i++) out[i] = 0;
}

static void lanes_to_f16(uint16_t *restrict out, const float *restrict x, int n) {
    for (int i = 0; i < n; i++) out[i] = f32_to_f16(x[i]);
}

// Codes of q4 while they are chosen are bytes, or words of 16 bits where those are looked up as
// fast.
#ifdef Q4_WORDS
typedef uint16_t Q4Code;
typedef int16_t Q4Number;
#else
typedef uint8_t Q4Code;
typedef int8_t Q4Number;
#endif

// Of the file that includes this: H x of a block; out[i] = table[index[i]] for Q4_AT_ONCE codes, of
// a table of 32, index[i] below it; and sums of 32 products, modulo 2^32, for blocks b < 2 and
// t < n <= 4: out[4 b + t] = x[t * x_step + 32 b ..] . y[t * y_step + 32 b ..].
static inline void turn_block(float *out, const float *x);
static inline void look_up(void *out, const void *table, const Q4Code *index);
static inline void dots(int32_t out[8], const int16_t *x, int x_step, const int16_t *y, int y_step,
                        int n);

// The largest |x|, found in the order of integers.
static inline float largest(const float *restrict x, int n) {
    int32_t top = 0;
    for (int i = 0; i < n; i++) {
        int32_t u = (int32_t)(bits_of(x[i]) & 0x7fffffff);
        top = u > top ? u : top;
    }
    return from_bits((uint32_t)top);
}

static void lanes_turn(float *out, const float *x, float scale, int n) {
    for (int d = 0; d < n; d += BLOCK) {
        float block[BLOCK];
        for (int i = 0; i < BLOCK; i++) block[i] = x[d + i] * scale;
        turn_block(out + d, block);
    }
}

#ifndef ROUND_BYTES
// The bytes next to x * inverse, n of them; returns their sum.
static inline int32_t round_bytes(int8_t *restrict out, const float *restrict x, float inverse,
                                  int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) {
        // the sum's bits, not a conversion: those of a NaN are then some byte on every machine
        int32_t v = (int32_t)(bits_of(fmaf(x[i], inverse, ROUND_MAGIC)) << 24) >> 24;
        out[i] = (int8_t)v;
        sum += v;
    }
    return sum;
}
#endif

static inline void q8_block(int8_t *restrict q, float *restrict scale, int32_t *restrict offset,
                            const float *restrict x) {
    float amax = largest(x, BLOCK), inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    *offset = -128 * round_bytes(q, x, inverse, BLOCK);
    *scale = amax / 127.0f;
}

static void lanes_to_q8(int8_t *restrict q, float *restrict scale, int32_t *restrict offset,
                        const float *restrict x, int n, bool turned) {
    float block[BLOCK];
    for (int b = 0; b * BLOCK < n; b++) {
        const float *from = x + b * BLOCK;
        int left = n - b * BLOCK;
        if (left < BLOCK) {
            memset(block, 0, sizeof block);
            from = memcpy(block, from, sizeof *x * (size_t)left);
        }
        if (turned) {
            turn_block(block, from);
            from = block;
        }
        q8_block(q + b * BLOCK, scale + b, offset + b, from);
        if (turned) scale[b] *= TURNED_X;
    }
}

// A block as integers, of which the largest is Q4_PARTS or -Q4_PARTS. (NaNs give some 16 bits.)
enum { Q4_PARTS = 4095 };

static inline float parts_in(float amax) { return amax > 0.0f ? (float)Q4_PARTS / amax : 0.0f; }

static inline int16_t part_of(float x, float inverse) {  // the sum's bits as in round_bytes
    return (int16_t)((int32_t)(bits_of(fmaf(x, inverse, ROUND_MAGIC)) << 16) >> 16);
}

static inline void to_parts(int16_t *restrict out, const float *restrict x, float inverse) {
    for (int i = 0; i < BLOCK; i++) out[i] = part_of(x[i], inverse);
}

static inline void turn_weights(float *restrict out, const float *restrict x) {
    turn_block(out, x);
    for (int i = 0; i < BLOCK; i++) out[i] *= TURNED_W;
}

static inline void direction_parts(int16_t *restrict out, const float *restrict x) {
    float turned[BLOCK];
    turn_weights(turned, x);
    to_parts(out, turned, parts_in(largest(turned, BLOCK)));
}

// H x / 4 in parts, all of them negated if the largest is below 0. Returns what a part means.
static inline float positive_parts(int16_t *restrict out, const float *restrict x) {
    float turned[BLOCK];
    int32_t top = INT32_MIN, bottom = INT32_MAX;
    turn_weights(turned, x);
    for (int i = 0; i < BLOCK; i++) {
        int32_t v = in_order(turned[i]);
        top = v > top ? v : top;
        bottom = v < bottom ? v : bottom;
    }
    float amax = from_bits((uint32_t)(top > ~bottom ? top : ~bottom)), inverse = parts_in(amax);
    uint32_t below = -part_of(from_order(bottom), inverse) > part_of(from_order(top), inverse);
    uint32_t sign = below << 31;  // not a choice between floats: half of them would be foreseen
    to_parts(out, turned, from_bits(bits_of(inverse) ^ sign));
    return from_bits(bits_of(amax / (float)Q4_PARTS) ^ sign);
}

// What the largest number of a block is tried as, since others may then meet their codes better;
// and where codes change, if Q4_PARTS means that number. These limits are more than 256 parts
// apart, so each cell of so many has one at most: from 256 i - 4096 on the code is codes[i], and
// the next one from there on where what is left of the part, less 128, is above limits[i].
enum { Q4_TRIALS = 4, Q4_CELLS = 32 };
#define LIMIT(number, sum) ((sum) * Q4_PARTS / (2 * (number)) + 4096)
#define EACH_LIMIT(DO, n, x)                                                                       \
    DO(LIMIT(n, -127 - 95), x) DO(LIMIT(n, -95 - 74), x) DO(LIMIT(n, -74 - 58), x)                 \
    DO(LIMIT(n, -58 - 44), x) DO(LIMIT(n, -44 - 31), x) DO(LIMIT(n, -31 - 20), x)                  \
    DO(LIMIT(n, -20 - 8), x) DO(LIMIT(n, -8 + 4), x) DO(LIMIT(n, 4 + 16), x)                       \
    DO(LIMIT(n, 16 + 29), x) DO(LIMIT(n, 29 + 42), x) DO(LIMIT(n, 42 + 56), x)                     \
    DO(LIMIT(n, 56 + 72), x) DO(LIMIT(n, 72 + 91), x) DO(LIMIT(n, 91 + 114), x)
#define IS_BELOW(limit, part) + ((limit) < (part))
#define IF_IN_CELL(limit, cell) + ((limit) / 256 == (cell) ? (limit) % 256 - 255 : 0)
#define CELL_CODE(n, cell) EACH_LIMIT(IS_BELOW, n, 256 * (cell))
#define CELL_LIMIT(n, cell) 127 EACH_LIMIT(IF_IN_CELL, n, cell)
#define CELL_WORD(n, cell) 256 * (CELL_CODE(n, cell)) + 127 - (CELL_LIMIT(n, cell))
#define EACH_CELL(DO, n)                                                                           \
    {DO(n, 0),  DO(n, 1),  DO(n, 2),  DO(n, 3),  DO(n, 4),  DO(n, 5),  DO(n, 6),  DO(n, 7),        \
     DO(n, 8),  DO(n, 9),  DO(n, 10), DO(n, 11), DO(n, 12), DO(n, 13), DO(n, 14), DO(n, 15),       \
     DO(n, 16), DO(n, 17), DO(n, 18), DO(n, 19), DO(n, 20), DO(n, 21), DO(n, 22), DO(n, 23),       \
     DO(n, 24), DO(n, 25), DO(n, 26), DO(n, 27), DO(n, 28), DO(n, 29), DO(n, 30), DO(n, 31)}
static const Q4Number Q4_NUMBERS[32] = {-127, -95, -74, -58, -44, -31, -20, -8,
                                        4,    16,  29,  42,  56,  72,  91,  114};

// A trial's table; where parts, or their negatives, lie: the cell, and what is left of them; and
// the codes whose numbers are next to that, with these numbers. All this is for two blocks side by
// side, since a processor waits less with two to work on.
#ifdef Q4_WORDS
#define TRIAL(n) {EACH_CELL(CELL_WORD, n)}
typedef struct {  // words[i] plus what is left of the part has the code as its upper byte
    uint16_t words[Q4_CELLS];
} Q4Trial;

typedef struct {
    uint16_t from[Q4_AT_ONCE];
} Q4Places;

static inline void q4_places(Q4Places *restrict out, const int16_t *restrict w, int sign) {
    for (int i = 0; i < Q4_AT_ONCE; i++) out->from[i] = (uint16_t)(4096 + sign * w[i]);
}

static inline void q4_codes(Q4Code *restrict codes, int16_t *restrict numbers,
                            const Q4Places *restrict at, const Q4Trial *restrict trial) {
    uint16_t cell[Q4_AT_ONCE], first[Q4_AT_ONCE];
    for (int i = 0; i < Q4_AT_ONCE; i++) cell[i] = at->from[i] >> 8;
    look_up(first, trial->words, cell);
    for (int i = 0; i < Q4_AT_ONCE; i++)
        codes[i] = (uint16_t)(first[i] + (at->from[i] & 255)) >> 8;
    look_up(numbers, Q4_NUMBERS, codes);
}
#else
#define TRIAL(n) {EACH_CELL(CELL_CODE, n), EACH_CELL(CELL_LIMIT, n)}
typedef struct {
    int8_t codes[Q4_CELLS], limits[Q4_CELLS];
} Q4Trial;

typedef struct {
    uint8_t cell[Q4_AT_ONCE];
    int8_t left[Q4_AT_ONCE];
} Q4Places;

static inline void q4_places(Q4Places *restrict out, const int16_t *restrict w, int sign) {
    for (int i = 0; i < Q4_AT_ONCE; i++) {
        uint16_t from = (uint16_t)(4096 + sign * w[i]);
        out->cell[i] = (uint8_t)(from >> 8 & (Q4_CELLS - 1));
        out->left[i] = (int8_t)(from ^ 128);
    }
}

static inline void q4_codes(Q4Code *restrict codes, int16_t *restrict numbers,
                            const Q4Places *restrict at, const Q4Trial *restrict trial) {
    uint8_t first[Q4_AT_ONCE];
    int8_t limits[Q4_AT_ONCE], bytes[Q4_AT_ONCE];
    look_up(limits, trial->limits, at->cell);
    look_up(first, trial->codes, at->cell);
    for (int i = 0; i < Q4_AT_ONCE; i++)
        codes[i] = (uint8_t)(first[i] + (at->left[i] > limits[i]));
    look_up(bytes, Q4_NUMBERS, codes);
    for (int i = 0; i < Q4_AT_ONCE; i++) numbers[i] = bytes[i];
}
#endif

static const int8_t Q4_SIGNS[Q4_TRIALS] = {-1, 1, -1, 1};
static const Q4Trial Q4_TRIED[Q4_TRIALS] = {TRIAL(127), TRIAL(114), TRIAL(138), TRIAL(124)};

// How much more than in others an error counts in the direction that to_q4 is given.
#define Q4_EMPHASIS 16.0f

// Of the trials t of block b, at 4 b + t: <w, q> and <q, q>; and where a block's best is.
enum { Q4_CHOICES = 2 * Q4_TRIALS };
typedef struct {
    float wq[Q4_CHOICES], qq[Q4_CHOICES];
    uint32_t best[2];
} Q4Choice;

// Parts of w and of the direction u [2], numbers of the trials q. With <x, y> = x.y + c (x.u)(u.y)
// the scale that brings q closest to w is <w, q> / <q, q>, and <w, q>^2 / <q, q> what it saves of
// the error <w, w>.
__attribute__((always_inline))
static inline void q4_choose(Q4Choice *out, int16_t parts[2][Q4_AT_ONCE],
                             int16_t q[Q4_TRIALS][Q4_AT_ONCE], bool directed, int n_trials) {
    int32_t wq[Q4_CHOICES] = {0}, qq[Q4_CHOICES] = {0};
    int32_t wu[Q4_CHOICES] = {0}, uu[Q4_CHOICES] = {0}, qu[Q4_CHOICES] = {0};
    uint32_t saved[Q4_CHOICES];
    if (directed) {
        dots(wu, parts[1], 0, parts[0], 0, n_trials);
        dots(uu, parts[1], 0, parts[1], 0, n_trials);
        dots(qu, parts[1], 0, q[0], Q4_AT_ONCE, n_trials);
    }
    dots(wq, parts[0], 0, q[0], Q4_AT_ONCE, n_trials);
    dots(qq, q[0], Q4_AT_ONCE, q[0], Q4_AT_ONCE, n_trials);
    for (int i = 0; i < Q4_CHOICES; i++) {
        float u = (float)qu[i], c = Q4_EMPHASIS / ((float)uu[i] + 1e-9f);
        out->wq[i] = fmaf(c * (float)wu[i], u, (float)wq[i]);
        out->qq[i] = fmaf(c * u, u, (float)qq[i]);
        // Floats above 0 are in the order of integers; the trial takes their last bits.
        uint32_t x = bits_of(out->wq[i] * out->wq[i] / out->qq[i]);
        saved[i] = (x & ~3u) | (uint32_t)(i & 3);
    }
    for (int b = 0; b < 2; b++) {
        uint32_t best = 0;
        for (int i = 4 * b; i < 4 * b + n_trials; i++) best = saved[i] > best ? saved[i] : best;
        out->best[b] = (best & 3) + 4 * (uint32_t)b;
    }
}

__attribute__((always_inline))
static inline void q4_blocks(uint8_t *restrict codes, uint16_t *restrict scale,
                             const float *restrict x, const float *restrict direction,
                             int n_trials) {
    int16_t parts[2][Q4_AT_ONCE], q[Q4_TRIALS][Q4_AT_ONCE];
    Q4Code tried[Q4_TRIALS][Q4_AT_ONCE];
    float part[2];
    Q4Places at[2];  // w, -w
    Q4Choice choice;
    UNROLL for (int b = 0; b < 2; b++)
        part[b] = positive_parts(parts[0] + b * BLOCK, x + b * BLOCK);
    if (direction)
        UNROLL for (int b = 0; b < 2; b++)
            direction_parts(parts[1] + b * BLOCK, direction + b * BLOCK);
    q4_places(&at[0], parts[0], 1);
    q4_places(&at[1], parts[0], -1);
    UNROLL for (int t = 0; t < n_trials; t++)
        q4_codes(tried[t], q[t], &at[Q4_SIGNS[t] < 0], &Q4_TRIED[t]);
    q4_choose(&choice, parts, q, direction, n_trials);
    UNROLL for (int b = 0; b < 2; b++) {
        uint32_t best = choice.best[b];
        const Q4Code *chosen = tried[best % 4] + b * BLOCK;
        for (int i = 0; i < BLOCK; i++) codes[b * BLOCK + i] = (uint8_t)chosen[i];
        scale[b] = f32_to_f16(choice.wq[best] / choice.qq[best] * part[b]);
    }
}

// out = the sum of n_rows rows, of n numbers each, filled up with zeros.
__attribute__((always_inline))
static inline void sum_rows(float out[Q4_AT_ONCE], const float *x, size_t stride, int n_rows,
                            int n) {
    float sum[Q4_AT_ONCE] = {0};
    for (int r = 0; r < n_rows; r++, x += stride)
        for (int i = 0; i < n; i++) sum[i] += x[i];
    memcpy(out, sum, sizeof sum);
}

static void lanes_to_q4(uint8_t *codes, uint16_t *scale, const float *x, const float *directions,
                        size_t stride, int n_directions, int n) {
    float filled[Q4_AT_ONCE], direction[Q4_AT_ONCE];
    bool whole = n == Q4_AT_ONCE;
    if (!whole) {
        sum_rows(filled, x, 0, 1, n);
        x = filled;
    }
    if (!n_directions) {
        q4_blocks(codes, scale, x, NULL, Q4_TRIALS / 2);
        return;
    }
    if (whole) sum_rows(direction, directions, stride, n_directions, Q4_AT_ONCE);
    else sum_rows(direction, directions, stride, n_directions, n);
    q4_blocks(codes, scale, x, direction, Q4_TRIALS);
}

// Probabilities times the scales of 32 dims as integers; and what undoes that a dot product adds
// 128 to every code, as the offset of Rows.
typedef struct {
    int8_t n[MAX_KEYS];
    int32_t offset[MAX_KEYS / MIX_RUN];
    float step[MAX_KEYS / MIX_RUN];
} MixWeights;

// One run, from a [MIX_RUN].
static inline void mix_weights(MixWeights *restrict out, const float *restrict a, int run) {
    float amax = largest(a, MIX_RUN), inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    out->offset[run] = -128 * round_bytes(out->n + run * MIX_RUN, a, inverse, MIX_RUN);
    out->step[run] = amax * (1.0f / 127.0f);
}

// Four streams at once, as the product with one token has them.
static uint64_t lanes_read(const uint8_t *lines, size_t n_lines) {
    enum { STREAMS = 4, RUN = 64 };  // words
    uint64_t sum[RUN] = {0};
    const uint64_t *words = (const uint64_t *)lines;
    const size_t n = 8 * n_lines, stream = n / STREAMS / RUN * RUN;
    for (size_t at = 0; at < stream; at += RUN)
        for (size_t s = 0; s < STREAMS; s++)
            for (size_t i = 0; i < RUN; i++) sum[i] ^= words[s * stream + at + i];
    for (size_t i = STREAMS * stream; i < n; i++) sum[0] ^= words[i];
    for (size_t i = 1; i < RUN; i++) sum[0] ^= sum[i];
    return sum[0];
}

// The members of Kernels that this file implements.
#define LANES_KERNELS                                                                              \
    .to_bf16 = lanes_to_bf16, .to_f16 = lanes_to_f16, .to_q8 = lanes_to_q8, .to_q4 = lanes_to_q4,  \
    .turn = lanes_turn,                                                                            \
    .rmsnorm = lanes_rmsnorm, .layernorm = lanes_layernorm, .add = lanes_add,                      \
    .scale = lanes_scale, .axpby = lanes_axpby, .act = lanes_act, .act_mul = lanes_act_mul,        \
    .rope = lanes_rope, .sincos = lanes_sincos, .max = lanes_max, .exp_sum = lanes_exp_sum,        \
    .xielu = lanes_xielu, .clamped_swiglu = lanes_clamped_swiglu, .clamp = lanes_clamp,            \
    .softcap = lanes_softcap, .add_ramp = lanes_add_ramp, .unit = lanes_unit, .conv = lanes_conv,  \
    .decay = lanes_decay, .delta = lanes_delta, .step = lanes_step, .mamba2 = lanes_mamba2,        \
    .read = lanes_read

#endif
