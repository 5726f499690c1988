// The reference: what every other kernel computes, bit for bit, in the plainest C.
#include "blocks.h"
#include "lanes.h"

static inline void turn_block(float *out, const float *x) {
    memmove(out, x, BLOCK * sizeof *out);
    for (int h = BLOCK / 2; h; h /= 2)
        for (int i = 0; i < BLOCK; i++) {
            if (i & h) continue;
            float a = out[i], b = out[i + h];
            out[i] = a + b;
            out[i + h] = a - b;
        }
}

static inline void look_up(void *out, const void *table, const uint8_t *index) {
    for (int i = 0; i < Q4_AT_ONCE; i++) ((uint8_t *)out)[i] = ((const uint8_t *)table)[index[i]];
}

// Unsigned, since parts of NaNs may be any 16 bits.
static inline void dots(int32_t out[8], const int16_t *x, int x_step, const int16_t *y, int y_step,
                        int n) {
    for (int t = 0; t < n; t++, x += x_step, y += y_step)
        for (int b = 0; b < 2; b++) {
            uint32_t sum = 0;
            for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++) sum += (uint32_t)(x[i] * y[i]);
            out[4 * b + t] = (int32_t)sum;
        }
}

#include "quantize.h"

static float f16_at(const uint8_t *p, size_t i) {
    uint16_t h;
    memcpy(&h, p + 2 * i, sizeof h);
    return f16_to_f32(h);
}

#define UNUSED __attribute__((unused))

static float float_at(Dtype dtype, const uint8_t *p, size_t i) {
    return dtype == F32 ? ((const float *)p)[i] : f16_at(p, i);
}

static void matmul_floats(Dtype dtype, float *out, size_t out_stride, const uint8_t *panels,
                          size_t panel_stride, int n_panels, int n_in, const Rows *x,
                          int n_tokens) {
    for (int p = 0; p < n_panels; p++) {
        const uint8_t *w = panels + (size_t)p * panel_stride;  // [n_in][16]
        for (int t = 0; t < n_tokens; t++) {
            const float *a = x->f32 + (size_t)t * x->stride;
            float acc[LANES] = {0};
            for (int k = 0; k < n_in; k++)
                for (int r = 0; r < LANES; r++)
                    acc[r] = fmaf(float_at(dtype, w, (size_t)k * LANES + r), a[k], acc[r]);
            memcpy(out + (size_t)t * out_stride + (size_t)p * LANES, acc, sizeof acc);
        }
    }
}

static void matmul_bf16(float *out, size_t out_stride, const uint8_t *panels, size_t panel_stride,
                        int n_panels, int n_in, const Rows *x, int n_tokens,
                        UNUSED ptrdiff_t ahead) {
    int n_blocks = (int)blocks_of(n_in);
    for (int p = 0; p < n_panels; p++)
        for (int t = 0; t < n_tokens; t++) {
            // [n_blocks * 16][16][2]
            const uint16_t *w = (const uint16_t *)(panels + (size_t)p * panel_stride);
            const uint16_t *a = x->bf16 + (size_t)t * x->blocks * BLOCK;
            float acc[LANES] = {0};
            for (int b = 0; b < n_blocks; b++) {
                float even[LANES] = {0}, odd[LANES] = {0};
                for (int k = 0; k < BLOCK; k += 2, w += 2 * LANES, a += 2)
                    for (int r = 0; r < LANES; r++) {
                        even[r] = fmaf(bf16_to_f32(w[2 * r]), bf16_to_f32(a[0]), even[r]);
                        odd[r] = fmaf(bf16_to_f32(w[2 * r + 1]), bf16_to_f32(a[1]), odd[r]);
                    }
                for (int r = 0; r < LANES; r++) acc[r] += even[r] + odd[r];
            }
            memcpy(out + (size_t)t * out_stride + (size_t)p * LANES, acc, sizeof acc);
        }
}

// A loop for each form.
#define INLINED static inline __attribute__((always_inline))

// The products of the columns first..last-1 of a block, which share scales.
INLINED void add_products(float acc[LANES], const uint8_t *panel, BlockForm form, size_t n,
                         size_t b, const int8_t *x, float x_scale, int first, int last) {
    const uint8_t *codes = panel + b * code_bytes(form), *scales = scales_of(panel, form, n, b);
    const uint8_t *shared = shared_of(panel, form, n, b);
    const size_t at = form.scales == SCALE_K16 && first ? LANES : 0;
    for (size_t r = 0; r < LANES; r++) {
        int32_t dot = 0;
        for (int k = first; k < last; k++)
            dot += block_number(codes, form, (size_t)k / 4, 4 * r + (size_t)k % 4) * x[k];
        float scale = form.scales == SCALE || form.scales == SCALE_MIN
                          ? f16_at(scales, r)
                          : (float)(int8_t)scales[at + r] * f16_at(shared, r);
        if (form.scales == SCALE_8) scale *= 0x1p-7f;
        acc[r] = fmaf((float)dot, scale * x_scale, acc[r]);
    }
}

INLINED void add_minima(float acc[LANES], const uint8_t *panel, BlockForm form, size_t n, size_t b,
                       float x_sum) {
    const uint8_t *scales = scales_of(panel, form, n, b), *shared = shared_of(panel, form, n, b);
    for (size_t r = 0; r < LANES; r++)
        acc[r] = fmaf(form.scales == SCALE_MIN
                          ? f16_at(scales, LANES + r)
                          : (float)(int8_t)scales[LANES + r] * -f16_at(shared, LANES + r),
                      x_sum, acc[r]);
}

INLINED void matmul_blocks(BlockForm form, float *out, size_t out_stride, const uint8_t *panels,
                          size_t panel_stride, int n_panels, int n_in, const Rows *x,
                          int n_tokens) {
    const size_t n = blocks_of(n_in);
    const int parts = form.kept ? 2 : 1, step = BLOCK / parts;
    for (int p = 0; p < n_panels; p++)
        for (int t = 0; t < n_tokens; t++) {
            const uint8_t *w = panels + (size_t)p * panel_stride;
            float acc[LANES] = {0};
            for (size_t b = 0; b < n; b++) {
                size_t at = (size_t)t * x->blocks + b;
                for (int i = 0; i < parts; i++) {
                    const size_t at_part = at * (size_t)parts + (size_t)i;
                    add_products(acc, w, form, n, b, x->q + at * BLOCK, x->scale[at_part],
                                 i * step, (i + 1) * step);
                    if (form.kept && x->rest_scale[at_part] > 0.0f)
                        add_products(acc, w, form, n, b, x->rest + at * BLOCK,
                                     x->rest_scale[at_part], i * step, (i + 1) * step);
                }
                if (form.scales == SCALE_MIN || form.scales == SCALE_K)
                    add_minima(acc, w, form, n, b, x->sum[at]);
            }
            memcpy(out + (size_t)t * out_stride + (size_t)p * LANES, acc, sizeof acc);
        }
}

#define MATMUL(name, products, kind)                                                               \
    static void matmul_##name(float *out, size_t out_stride, const uint8_t *panels,                \
                              size_t panel_stride, int n_panels, int n_in, const Rows *x,          \
                              int n_tokens, UNUSED ptrdiff_t ahead) {                              \
        products(kind, out, out_stride, panels, panel_stride, n_panels, n_in, x, n_tokens);        \
    }
#define MATMUL_BLOCKS(name, dtype, ...) MATMUL(name, matmul_blocks, BLOCK_FORMS[dtype])
MATMUL(f32, matmul_floats, F32)
MATMUL(f16, matmul_floats, F16)
MATMUL_BLOCKS(q8, Q8)
MATMUL_BLOCKS(q4, Q4)
EACH_CODES(MATMUL_BLOCKS, , )
EACH_WEIGHTS(MATMUL_BLOCKS, , )
EACH_RARE(MATMUL_BLOCKS)
EACH_BORROWER(MATMUL_BLOCKS)

static void mix_floats(Dtype dtype, float *out, const float *p, size_t p_stride, int n_rows,
                       const uint8_t *const *v, int begin, int end, int dim) {
    memset(out, 0, sizeof *out * (size_t)n_rows * (size_t)dim);
    for (int r = 0; r < n_rows; r++, p += p_stride, out += dim)
        for (int i = begin; i < end; i++) {
            size_t row = (size_t)(i % LANES) * (size_t)dim;
            for (int d = 0; d < dim; d++)
                out[d] = fmaf(p[i], float_at(dtype, v[i / LANES], row + (size_t)d), out[d]);
        }
}

#define MIX(name, dtype)                                                                           \
    static void mix_##name(float *out, const float *p, size_t p_stride, int n_rows,                \
                           const uint8_t *const *v, int begin, int end, int dim,                   \
                           UNUSED ptrdiff_t ahead) {                                               \
        mix_floats(dtype, out, p, p_stride, n_rows, v, begin, end, dim);                           \
    }
MIX(f32, F32)
MIX(f16, F16)

static void mix_q8(float *out, const float *p, size_t p_stride, int n_rows, const uint8_t *const *v,
                   int begin, int end, int dim, UNUSED ptrdiff_t ahead) {
    memset(out, 0, sizeof *out * (size_t)n_rows * (size_t)dim);
    for (int r = 0; r < n_rows; r++, p += p_stride, out += dim)
        for (int i = begin; i < end; i++) {
            const uint8_t *q = v[i / LANES], *scales = q + (size_t)LANES * dim;
            for (int d = 0; d < dim; d++) {
                size_t at = (size_t)(i % LANES) * dim + d;
                float scale = f16_at(scales, (size_t)(d / BLOCK * LANES + i % LANES));
                out[d] = fmaf((float)(int8_t)q[at], p[i] * scale, out[d]);
            }
        }
}

// The code of position `lane` and dim d of a slot of values.
static int32_t value_code(const uint8_t *v, int d, int lane) {
    uint8_t codes = v[d / LANES * 128 + lane / 8 * 64 + d % LANES * 4 + lane % 4];
    return Q4_CODES[lane % 8 < 4 ? codes & 15 : codes >> 4];
}

// 32 dims of one row from d on.
static void mix_q4_block(float *out, const float *p, const uint8_t *const *v, int begin, int end,
                         int dim, int d) {
    MixWeights w;
    memset(out, 0, BLOCK * sizeof *out);
    for (int first = begin / MIX_RUN * MIX_RUN; first < end; first += MIX_RUN) {
        int from = first > begin ? first : begin;
        int to = first + MIX_RUN < end ? first + MIX_RUN : end;
        float a[MIX_RUN] = {0};
        for (int i = from; i < to; i++)
            a[i - first] = p[i] * f16_at(v[i / LANES] + (size_t)LANES * dim / 2,
                                         (size_t)(d / BLOCK * LANES + i % LANES));
        mix_weights(&w, a, 0);
        for (int j = 0; j < BLOCK; j++) {
            int32_t sum = 0;
            for (int i = from; i < to; i++)
                sum += w.n[i - first] * value_code(v[i / LANES], d + j, i % LANES);
            out[j] = fmaf((float)sum, w.step[0], out[j]);
        }
    }
}

static void mix_q4(float *out, const float *p, size_t p_stride, int n_rows, const uint8_t *const *v,
                   int begin, int end, int dim, UNUSED ptrdiff_t ahead) {
    for (int r = 0; r < n_rows; r++, p += p_stride)
        for (int d = 0; d < dim; d += BLOCK, out += BLOCK)
            mix_q4_block(out, p, v, begin, end, dim, d);
}

// Number d of key `lane` of a panel, but for the scale of q8 and q4.
static float key_at(Dtype dtype, const uint8_t *panel, int d, int lane) {
    if (dtype == Q4) {
        uint8_t codes = panel[(size_t)(d / 8) * 64 + (size_t)lane * 4 + d % 4];
        return (float)Q4_CODES[d % 8 < 4 ? codes & 15 : codes >> 4];
    }
    if (dtype == F32) return ((const float *)panel)[(size_t)d * LANES + lane];
    if (dtype == F16) return f16_at(panel, (size_t)d * LANES + lane);
    return (float)(panel[(size_t)(d / 4) * 64 + (size_t)lane * 4 + d % 4] - 128);
}

static void mix_keys(Dtype dtype, float *out, const float *p, size_t p_stride, int n_rows,
                     const uint8_t *const *keys, int begin, int end, int n_in, int dim) {
    size_t n_blocks = blocks_of(n_in);
    for (int r = 0; r < n_rows; r++, p += p_stride, out += dim)
        for (int d = 0; d < dim; d++) {
            float acc[LANES] = {0};
            for (int i = begin; i < end; i += LANES)
                for (int j = 0; j < LANES; j++) {
                    const uint8_t *panel = keys[i / LANES];
                    const uint8_t *scales =
                        panel + n_blocks * (dtype == Q4 ? 256 : 512) + (size_t)(d / BLOCK) * 32;
                    bool blocks = dtype == Q8 || dtype == Q4;
                    float a = blocks ? p[i + j] * f16_at(scales, (size_t)j) : p[i + j];
                    acc[j] = fmaf(key_at(dtype, panel, d, j), a, acc[j]);
                }
            out[d] = sum_lanes(acc);
        }
}

#define MIX_KEYS(name, dtype)                                                                      \
    static void mix_keys_##name(float *out, const float *p, size_t p_stride, int n_rows,           \
                                const uint8_t *const *keys, int begin, int end, int n_in,          \
                                int dim) {                                                         \
        mix_keys(dtype, out, p, p_stride, n_rows, keys, begin, end, n_in, dim);                    \
    }
MIX_KEYS(f32, F32)
MIX_KEYS(f16, F16)
MIX_KEYS(q8, Q8)
MIX_KEYS(q4, Q4)

static double peak_floats(size_t steps) {
    volatile float start = 1.0f;
    float sum[4 * LANES], w = start, a[2] = {1e-3f * start, -1e-3f * start};
    for (int i = 0; i < 4 * LANES; i++) sum[i] = start;
    for (size_t k = 0; k < steps; k++)
        for (int i = 0; i < 4 * LANES; i++) sum[i] = fmaf(w, a[k % 2], sum[i]);
    for (int i = 0; i < 4 * LANES; i++) start += sum[i];
    return 2.0 * 4 * LANES * (double)steps;
}

static double peak_blocks(size_t steps) {
    volatile int32_t start = 1;
    int32_t sum[4 * LANES] = {0};
    int8_t w[4 * LANES], a[2] = {(int8_t)start, (int8_t)-start};
    for (int i = 0; i < 4 * LANES; i++) w[i] = (int8_t)(start + i);
    for (size_t k = 0; k < steps; k++)
        for (int i = 0; i < 4 * LANES; i++) sum[i] += w[i] * a[k % 2];
    for (int i = 0; i < 4 * LANES; i++) start += sum[i];
    return 2.0 * 4 * LANES * (double)steps;
}

static void delta(float *state, const Steps *s) { delta_from(state, s, 0); }
static void mamba2(float *state, const Steps *s, float skip) { mamba2_from(state, s, skip, 0); }

const Kernels scalar_kernels = {
    .name = "scalar",
    .matmul = {[F32] = matmul_f32, [F16] = matmul_f16, [BF16] = matmul_bf16,
               [Q8] = matmul_q8, [Q4] = matmul_q4, WEIGHTS_PRODUCTS},
    .mix = {[F32] = mix_f32, [F16] = mix_f16, [Q8] = mix_q8, [Q4] = mix_q4},
    .mix_keys = {[F32] = mix_keys_f32, [F16] = mix_keys_f16, [Q8] = mix_keys_q8,
                 [Q4] = mix_keys_q4},
    .peak = {[INPUT_F32] = peak_floats, [INPUT_BF16] = peak_floats,
             [INPUT_TURNED] = peak_blocks, [INPUT_INT8] = peak_blocks},
    .delta = delta,
    .mamba2 = mamba2,
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
