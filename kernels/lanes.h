// Operations on rows, written once in plain C. Each instruction set's file includes this and is
// compiled with its own flags, so the compiler turns the loops over lanes into that set's vectors.
// The bits stay the same, because every operation is an IEEE one in a stated order and fused
// multiply-adds are spelled fmaf (-ffp-contract=off).
#ifndef LANES_H
#define LANES_H

#include <math.h>

#include "steps.h"

#ifdef __clang__  // which takes "GCC unroll 16" to leave loops over a tile as they are
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

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

// e^x within 1.1 ulp for x <= 88.3; below -87 it is 0 (no denormals). Cases are masks of bits: for
// a choice between floats, compilers branch instead of using vectors.
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

// Cosine and sine in double precision, since angles grow with the position and are reduced by pi/2.
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

// The delta rule for one token, on n <= 16 columns from j on.
static inline void delta_token(float *restrict state, const Steps *s, int j, int n) {
    float change[LANES] = {0}, sum[LANES] = {0};
    for (int i = 0; i < s->n_k; i++) {
        float *x = state + (size_t)i * (size_t)s->n_v + j, decay = s->decay[s->by_row ? i : 0];
        for (int c = 0; c < n; c++) {
            x[c] *= decay;
            change[c] = fmaf(x[c], s->k[i], change[c]);
        }
    }
    for (int c = 0; c < n; c++) change[c] = *s->step * (s->v[j + c] - change[c]);
    for (int i = 0; i < s->n_k; i++) {
        float *x = state + (size_t)i * (size_t)s->n_v + j;
        for (int c = 0; c < n; c++) {
            x[c] = fmaf(s->k[i], change[c], x[c]);
            sum[c] = fmaf(x[c], s->q[i], sum[c]);
        }
    }
    memcpy(s->out + j, sum, sizeof *sum * (size_t)n);
}

// The columns from j on.
static void delta_from(float *state, const Steps *all, int j) {
    for (; j < all->n_v; j += LANES)
        for (int t = 0; t < all->n; t++) {
            const Steps s = steps_from(all, t);
            delta_token(state, &s, j, all->n_v - j < LANES ? all->n_v - j : LANES);
        }
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

// Mamba-2 for one token, on n <= 16 columns from j on.
static inline void mamba2_token(float *restrict state, const Steps *s, float skip, int j, int n) {
    float change[LANES], sum[LANES] = {0};
    for (int c = 0; c < n; c++) change[c] = *s->step * s->v[j + c];
    for (int i = 0; i < s->n_k; i++) {
        float *x = state + (size_t)i * (size_t)s->n_v + j;
        for (int c = 0; c < n; c++) {
            x[c] = fmaf(s->k[i], change[c], x[c] * *s->decay);
            sum[c] = fmaf(x[c], s->q[i], sum[c]);
        }
    }
    for (int c = 0; c < n; c++) s->out[j + c] = fmaf(s->v[j + c], skip, sum[c]);
}

// The columns from j on.
static void mamba2_from(float *state, const Steps *all, float skip, int j) {
    for (; j < all->n_v; j += LANES)
        for (int t = 0; t < all->n; t++) {
            const Steps s = steps_from(all, t);
            mamba2_token(state, &s, skip, j, all->n_v - j < LANES ? all->n_v - j : LANES);
        }
}

// Mamba-1 for n <= 64 columns.
__attribute__((always_inline))
static inline void mamba_columns(float *restrict state, float *restrict out,
                                 const float *restrict q, const float *restrict k,
                                 const float *restrict v, const float *restrict step,
                                 const float *restrict rate, const float *restrict skip,
                                 int n_k, int n_v, int n) {
    float d[4 * LANES] = {0}, change[4 * LANES] = {0}, sum[4 * LANES] = {0};
    for (int j = 0; j < n; j++) {
        d[j] = softplus_lane(step[j]);
        change[j] = d[j] * v[j];
        sum[j] = skip[j] * v[j];
    }
    for (int i = 0; i < n_k; i++, state += n_v, rate += n_v)
        for (int j = 0; j < n; j++) {
            float x = fmaf(k[i], change[j], state[j] * exp_lane(-rate[j] * d[j]));
            state[j] = x;
            sum[j] = fmaf(x, q[i], sum[j]);
        }
    for (int j = 0; j < n; j++) out[j] = sum[j];
}

static void lanes_mamba(float *state, float *out, const float *q, const float *k, const float *v,
                        const float *step, const float *rate, const float *skip, int n_k, int n_v,
                        int n) {
    int j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES)
        mamba_columns(state + j, out + j, q, k, v + j, step + j, rate + j, skip + j, n_k, n_v,
                      4 * LANES);
    for (; j + LANES <= n; j += LANES)
        mamba_columns(state + j, out + j, q, k, v + j, step + j, rate + j, skip + j, n_k, n_v,
                      LANES);
    if (j < n)
        mamba_columns(state + j, out + j, q, k, v + j, step + j, rate + j, skip + j, n_k, n_v,
                      n - j);
}

// An integer for each float, in the same order: compilers make vectors of a maximum of integers. A
// NaN is beyond all numbers of its sign.
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

// The largest |x|, compared as integers.
static inline float largest(const float *restrict x, int n) {
    int32_t top = 0;
    for (int i = 0; i < n; i++) {
        int32_t u = (int32_t)(bits_of(x[i]) & 0x7fffffff);
        top = u > top ? u : top;
    }
    return from_bits((uint32_t)top);
}

#ifndef ROUND_BYTES
// Rounds n numbers x * inverse to bytes; returns the bytes' sum.
static inline int32_t round_bytes(int8_t *restrict out, const float *restrict x, float inverse,
                                  int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) {
        // the low bits, not a conversion: a NaN then becomes some byte on every machine
        int32_t v = (int32_t)(bits_of(fmaf(x[i], inverse, ROUND_MAGIC)) << 24) >> 24;
        out[i] = (int8_t)v;
        sum += v;
    }
    return sum;
}
#endif

// Probabilities times the scales of 32 dims, as integers n times step. offset undoes the +128 that
// a dot product adds to codes, as in Rows.
typedef struct {
    int8_t n[MAX_KEYS];
    int32_t offset[MAX_KEYS / MIX_RUN];
    float step[MAX_KEYS / MIX_RUN];
} MixWeights;

// Makes one run from a [MIX_RUN].
static inline void mix_weights(MixWeights *restrict out, const float *restrict a, int run) {
    float amax = largest(a, MIX_RUN), inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    out->offset[run] = -128 * round_bytes(out->n + run * MIX_RUN, a, inverse, MIX_RUN);
    out->step[run] = amax * (1.0f / 127.0f);
}

static uint64_t lanes_read(const uint8_t *lines, size_t n_lines, size_t n_streams) {
    enum { RUN = 64 };  // words
    uint64_t sum[RUN] = {0};
    const uint64_t *words = (const uint64_t *)lines;
    const size_t n = 8 * n_lines, stream = n / n_streams / RUN * RUN;
    for (size_t at = 0; at < stream; at += RUN)
        for (size_t s = 0; s < n_streams; s++)
            for (size_t i = 0; i < RUN; i++) sum[i] ^= words[s * stream + at + i];
    for (size_t i = n_streams * stream; i < n; i++) sum[0] ^= words[i];
    for (size_t i = 1; i < RUN; i++) sum[0] ^= sum[i];
    return sum[0];
}

#ifndef ROWS_WANTED  // of Kernels
#define ROWS_WANTED 64
#endif

// The members of Kernels that this file implements.
#define LANES_KERNELS                                                                              \
    .rows_wanted = ROWS_WANTED,                                                                    \
    .to_bf16 = lanes_to_bf16, .to_f16 = lanes_to_f16,                                              \
    .rmsnorm = lanes_rmsnorm, .layernorm = lanes_layernorm, .add = lanes_add,                      \
    .scale = lanes_scale, .axpby = lanes_axpby, .act = lanes_act, .act_mul = lanes_act_mul,        \
    .rope = lanes_rope, .sincos = lanes_sincos, .max = lanes_max, .exp_sum = lanes_exp_sum,        \
    .xielu = lanes_xielu, .clamped_swiglu = lanes_clamped_swiglu, .clamp = lanes_clamp,            \
    .softcap = lanes_softcap, .add_ramp = lanes_add_ramp, .unit = lanes_unit, .conv = lanes_conv,  \
    .decay = lanes_decay, .step = lanes_step, .mamba = lanes_mamba, .read = lanes_read

#endif
