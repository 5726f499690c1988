// The hot functions, one table per instruction set, and the layouts that they read.
//
// Every table gives the same bits, except for bf16 weights in avx512bf16. docs/format.md has the
// layouts. An fma rounds once:
//  - a product sums k = 0, 1, .. in order, one chain of fma a row, from 0;
//  - a reduction (norms, softmax) sums element i in lane i % 16, then the lanes as a fixed tree;
//  - exp, sin, cos and erf are the polynomials of lanes.h, all else is IEEE +, *, /, sqrt, fma.
#ifndef KERNELS_H
#define KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "heads.h"

// Rows of a panel; numbers of a block, which share a scale; most numbers in a call of to_q4.
enum { LANES = 16, BLOCK = 32, Q4_AT_ONCE = 2 * BLOCK };

// The types of numbers, under the engine's names. math/dtypes.h says what they are.
typedef heads_type Dtype;
#define F32 HEADS_F32
#define BF16 HEADS_BF16
#define Q8 HEADS_Q8
#define Q4 HEADS_Q4
#define F16 HEADS_F16
#define N_DTYPES (HEADS_TQ2_0 + 1)

extern const int8_t Q4_CODES[16];

// x + ROUND_MAGIC holds the nearest integer (ties to even) in its low bits, for |x| < 2^22.
#define ROUND_MAGIC 12582912.0f

static inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// The blocks of a row of n numbers, the last one padded; and those from a row of activations to the
// next, an even number, so that every row begins a cache line.
static inline size_t blocks_of(int n) { return ((size_t)n + BLOCK - 1) / BLOCK; }
static inline size_t blocks_apart(size_t n) { return round_up(n, 2 * BLOCK) / BLOCK; }

// Rows of activations in the form that the weights' dtype multiplies: F32 and F16 take f32; BF16
// takes bf16; types of blocks take int8, in blocks of 32. Borrowed.
typedef struct {
    const float *f32;      // [n_tokens][stride]
    size_t stride, blocks; // blocks is even
    const uint16_t *bf16;  // [n_tokens][blocks][32], zero past n_in in its last block
    const int8_t *q;       // [n_tokens][blocks][32], of x that is zero past n_in
    const float *scale;    // [n_tokens][blocks], of kept types [n_tokens][blocks][2]
    const int32_t *offset; // of the same: -128 times the sum of q, which undoes the weights' +128
    // For kept types:
    const float *sum;          // [n_tokens][blocks]: of what x is rounded to
    const int8_t *rest;        // as q, of parts of 16 that are rounded twice: what q leaves of x
    const float *rest_scale;   // as scale; 0 if the part is rounded once
    const int32_t *rest_offset;
} Rows;

// out[t * out_stride + 16 p + lane] = sum over k of row lane of panel p times row t of x,
// for p < n_panels, t < n_tokens. Panels lie panel_stride bytes apart. n_in > 0. Per dtype:
//   F32, F16  acc = fma(w[k], x[k], acc)
//   BF16      per 32 k: e over even k, o over odd k (both fma chains from 0), then
//             acc = acc + (e + o)
//   blocks    per 32 k, of kept types per 16: acc = fma((float)exact integer sum, scale of w *
//             scale of x, acc), of a part that is rounded twice the same with its rest; after a
//             block, of types with minima, acc = fma(minimum of w, sum of x, acc)
// ahead: a hint for prefetching: the distance from the panels to the bytes needed next; 0: unknown.
typedef void MatmulFn(float *out, size_t out_stride, const uint8_t *panels, size_t panel_stride,
                      int n_panels, int n_in, const Rows *x, int n_tokens, ptrdiff_t ahead);

// The mix of attention: out[r][0..dim) = sum over positions i = begin..end-1 of p[r][i] * v[i], one
// fma chain a dim in the order of i, from 0. dim is a multiple of 16, out [n_rows][dim], p
// [n_rows][p_stride], readable in whole sixteens. Values lie in slots of 16 positions: position i
// is row i % 16 of v[i / 16], which is float or f16 [16][dim], or for Q8 int8 [16][dim]
// followed by f16 scales [dim / 32][16] (dim a multiple of 32), and p * scale is rounded first.
//
// Q4 sums integers. A slot of 16 positions has codes for each 16 dims, and then f16 scales as Q8
// has. The codes lie as in a panel of q4 weights whose rows are dims and whose k are positions:
// [2][16][4] bytes, with position 8 g + j in the low half of byte j < 4, and position 8 g + 4 + j
// in the high half. Positions are summed in runs of MIX_RUN, which begin at its multiples. For each
// 32 dims a run takes these steps, from out = 0:
//   a[i] = p[i] * scale
//   step = the largest |a| / 127
//   n[i] = the integer nearest to a[i] / step
//   out = fma((float)(sum of n[i] * code), step, out)
// begin is a multiple of 16, and there are at most MAX_KEYS positions. p is finite, and 0 from end
// to the next multiple of 16.
enum { MAX_KEYS = 256, MIX_RUN = 64 };
typedef void MixFn(float *out, const float *p, size_t p_stride, int n_rows, const uint8_t *const *v,
                   int begin, int end, int dim, ptrdiff_t ahead);

// Weights of q8 and q4 in the file are H w / 4, activations H x / 8, and H H = 32 (docs/format.md).
#define TURNED_X 0.125f
#define TURNED_W 0.25f

// The mix of a layer whose values are the first dim numbers of its keys: out[r][0..dim) = sum over
// positions i = begin..end-1, MAX_KEYS at most, of p[r][i] * key[i]. keys[i / 16] is the panel of
// keys 16 (i / 16) .. + 15, each n_in long, of type F32, F16, Q8 or Q4. Positions are lanes, so the
// sum is a reduction: fma into lane i % 16, then the tree (Q8, Q4: p * scale is rounded before it).
// begin is a multiple of 16, and p is 0 from end to the next one. out [n_rows][dim], p
// [n_rows][p_stride].
typedef void MixKeysFn(float *out, const float *p, size_t p_stride, int n_rows,
                       const uint8_t *const *keys, int begin, int end, int n_in, int dim);

// Activations from N_PLAIN_ACTS on have parameters, and their own kernels.
typedef enum {
    ACT_SILU, ACT_GELU_ERF, ACT_GELU_TANH, ACT_RELU, ACT_RELU2, N_PLAIN_ACTS,
    ACT_XIELU = N_PLAIN_ACTS, ACT_CLAMPED_SWIGLU, N_ACTS,
    ACT_SIGMOID = N_ACTS, ACT_TANH, ACT_NONE  // of gates and heads, not of feed-forward networks
} Act;

// The form in which a product reads its input: members of Rows. Types that are turned read H x.
typedef enum { INPUT_F32, INPUT_BF16, INPUT_TURNED, INPUT_INT8, N_INPUTS } InputForm;

// A part of 16 numbers is rounded twice if its largest is this many times the row's root mean
// square: rounded once, its small numbers would be lost beside that one.
#define TWICE_ABOVE 5.0f

// Rows in int8 while they are written, as Rows has them; sum and rest only for kept types.
typedef struct {
    int8_t *q, *rest;
    float *scale, *rest_scale, *sum;
    int32_t *offset, *rest_offset;
} Int8Rows;

typedef struct Steps Steps;  // steps.h: tokens of one head of a recurrence

typedef struct {
    const char *name;
    int rows_wanted;  // fewest rows of a product at which its kernels are at their best
    MatmulFn *matmul[N_DTYPES];
    MixFn *mix[N_DTYPES];  // F32, F16, Q8, Q4
    MixKeysFn *mix_keys[N_DTYPES];
    // Activations to a form of Rows; n may be any number.
    void (*to_bf16)(uint16_t *out, const float *x, int n);
    void (*to_f16)(uint16_t *out, const float *x, int n);  // to nearest even, saturating at +-65504
    void (*to_q8)(int8_t *q, float *scale, int32_t *offset, const float *x, int n, bool turned);
    void (*to_parts)(const Int8Rows *out, const float *x, int n);  // for kept types
    // Rounds H x / 4, n <= Q4_AT_ONCE numbers padded with zeros to two blocks, to codes
    // [Q4_AT_ONCE] and f16 scales [2], by the trial of quantize.h that has the least square error.
    // directions: [n_directions][stride], n numbers each. An error along their sum counts more than
    // one across it.
    void (*to_q4)(uint8_t *codes, uint16_t *scale, const float *x, const float *directions,
                  size_t stride, int n_directions, int n);
    // out = H (x * scale) of each block of 32, the Hadamard transform: at strides h of 16, 8, 4, 2,
    // 1 in this order, x[i] and x[i + h] become their sum and their difference. n is a multiple of
    // 32. to_q8 with `turned` rounds H x * TURNED_X, for weights that are turned too. out may be x.
    void (*hadamard)(float *out, const float *x, float scale, int n);
    // out may be x. w: [n]; b: [n] or NULL.
    void (*rmsnorm)(float *out, const float *x, const float *w, int n, float eps);
    void (*layernorm)(float *out, const float *x, const float *w, const float *b, int n, float eps);
    void (*add)(float *x, const float *y, int n);                      // x += y
    void (*scale)(float *x, float a, int n);                           // x *= a
    void (*axpby)(float *x, float a, const float *y, float b, int n);  // x = fma(y, b, x * a)
    void (*act)(float *x, Act act, int n);                             // x = act(x)
    void (*act_mul)(float *x, const float *y, Act act, int n);         // x = act(x) * y
    // xIELU (Huang et al. 2024): for x > 0 it is p[0] x^2 + p[2] x,
    // else p[1] (expm1(min(x, p[3])) - x) + p[2] x
    void (*xielu)(float *x, const float p[4], int n);
    // gpt-oss: x = (y + 1) x sigmoid(alpha x), x at most limit, y within +-limit
    void (*clamped_swiglu)(float *x, const float *y, float alpha, float limit, int n);
    void (*clamp)(float *x, float limit, int n);                       // to +-limit
    void (*softcap)(float *x, float cap, int n);                       // x = cap tanh(x / cap)
    // x[i] = fma(slope, first + i, x[i])
    void (*add_ramp)(float *x, float first, float slope, int n);
    // Rotates (x[i], x[i + n_pairs]) by the angle whose cosine and sine are c[i], s[i].
    void (*rope)(float *x, const float *c, const float *s, int n_pairs);
    // Both times multiplier; c may be angle.
    void (*sincos)(float *c, float *s, const float *angle, float multiplier, int n);
    // x *= scale / sqrt(sum of squares + eps)
    void (*unit)(float *x, float scale, float eps, int n);
    // out = b[i] + sum over j < n_taps of w[j][i] * x[j][i], one fma chain in the order of j;
    // w [n_taps][n], x [n_taps][stride], b [n] or NULL
    void (*conv)(float *out, const float *x, size_t stride, const float *w, const float *b,
                 int n_taps, int n);
    void (*decay)(float *x, const float *rate, int n);  // x = exp(-rate * softplus(x))
    // The gated delta rule: S *= decay; S += k (step (v - S^T k))^T; out = S^T q.
    void (*delta)(float *state, const Steps *steps);
    // x = softplus(x), within least..most; decay = exp(-rate * x)
    void (*step)(float *x, float *decay, const float *rate, float least, float most, int n);
    // Mamba-2: S = decay S + k (step v)^T; out = S^T q + skip v.
    void (*mamba2)(float *state, const Steps *steps, float skip);
    // One step of Mamba-1 on n columns of S [n_k][n_v], whose numbers have a rate each:
    // d = softplus(step); S = exp(-rate d) S + k (d v)^T; out = S^T q + skip v.
    void (*mamba)(float *state, float *out, const float *q, const float *k, const float *v,
                  const float *step, const float *rate, const float *skip, int n_k, int n_v, int n);
    // n is a multiple of 16
    float (*max)(const float *x, int n);
    // x = exp(x - max), -INFINITY gives 0; returns the sum
    float (*exp_sum)(float *x, float max, int n);
    // The ceilings of --bench. peak: multiply-adds from registers, as fast as the input's unit can;
    // returns the operations done, two for each, proportional to `steps`. read: the exclusive or of
    // the 64-bit words of cache lines, as so many streams side by side.
    double (*peak[N_INPUTS])(size_t steps);
    uint64_t (*read)(const uint8_t *lines, size_t n_lines, size_t n_streams);
} Kernels;

extern const Kernels scalar_kernels, avx2_kernels, avxvnni_kernels, avx512_kernels,
    avx512bf16_kernels, amx_kernels, neon_kernels, wasm_kernels;

// The table of that name; name NULL: the best for this processor. Returns NULL if there is no such
// table, or this processor or build lacks it. *why, static: why it was chosen, or why not.
const Kernels *kernels_choose(const char *name, const char **why);

// ---- one number at a time ----
static inline uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float bf16_to_f32(uint16_t h) { return from_bits((uint32_t)h << 16); }

// A multiplication moves the exponent: it is exact, and normalises denormals.
static inline float f16_to_f32(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    if (magnitude >= 0x0f800000)  // infinity and NaN
        return from_bits(sign | 0x70000000 | magnitude);
    return from_bits(sign | bits_of(from_bits(magnitude) * 0x1p112f));
}

// To nearest even, saturating. Normal numbers are rounded as integers; denormals of f16 by the sum
// with 0.5, which has the same last place (2^-24).
static inline uint16_t f32_to_f16(float x) {
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    a = a > 0x477fe000 ? 0x477fe000 : a;  // 65504, the largest
    uint32_t normal = (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13;
    uint32_t denormal = bits_of(from_bits(a) + 0.5f) - 0x3f000000;
    return (uint16_t)(sign | (a < 0x38800000 ? denormal : normal));
}

#endif
