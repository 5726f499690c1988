// Every kernel of every table that this processor can run against the scalar one, bit for bit; and
// products against their definition in double precision, over weights read as docs/format.md lays
// them out: the scalar table's products, and a table's that rounds in its own way. The scalar
// table's other kernels are checked by test_scalar_kernels.c.
#include "tests/c/kernel_checks.h"

// ---- products ----

typedef struct {
    Dtype dtype;
    int n_in, n_panels, n_tokens, n_blocks;
    size_t panel_stride, out_stride;
    uint8_t *panels;
    float *f32, *scale, *rest_scale, *sum;
    uint16_t *bf16;
    int8_t *q, *rest;
    int32_t *offset, *rest_offset;
    Rows rows;
} Product;

static Product random_product(Dtype dtype, int n_in, int n_panels, int n_tokens, Kind kind) {
    Product p = {.dtype = dtype, .n_in = n_in, .n_panels = n_panels, .n_tokens = n_tokens};
    p.n_blocks = (n_in + BLOCK - 1) / BLOCK;
    p.panel_stride = panel_bytes(dtype, n_in) + (size_t)between(0, 1) * 64;
    p.out_stride = (size_t)n_panels * LANES + (size_t)between(0, 5);
    p.panels = allocate(p.panel_stride * (size_t)n_panels);
    for (int i = 0; i < n_panels; i++)
        random_panel(p.panels + (size_t)i * p.panel_stride, dtype, n_in, kind);
    size_t stride = (size_t)(n_in + between(0, 3));
    size_t apart = blocks_apart((size_t)n_in) + 2 * (size_t)between(0, 1);
    size_t blocks = (size_t)n_tokens * apart;
    p.f32 = random_floats((size_t)n_tokens * stride, kind);
    p.bf16 = allocate(blocks * BLOCK * sizeof *p.bf16);
    p.q = allocate(blocks * BLOCK);
    p.scale = allocate(2 * blocks * sizeof *p.scale);
    p.offset = allocate(2 * blocks * sizeof *p.offset);
    p.sum = allocate(blocks * sizeof *p.sum);
    p.rest = allocate(blocks * BLOCK);
    p.rest_scale = allocate(2 * blocks * sizeof *p.rest_scale);
    p.rest_offset = allocate(2 * blocks * sizeof *p.rest_offset);
    for (int t = 0; t < n_tokens; t++) {
        size_t b = (size_t)t * apart;
        float *x = p.f32 + (size_t)t * stride;
        if (is_kept(dtype) && t % 2 == 0) x[between(0, n_in - 1)] *= 100;  // its part rounds twice
        scalar_kernels.to_bf16(p.bf16 + b * BLOCK, x, n_in);
        if (is_kept(dtype))
            scalar_kernels.to_parts(
                &(Int8Rows){.q = p.q + b * BLOCK, .rest = p.rest + b * BLOCK,
                            .scale = p.scale + 2 * b, .rest_scale = p.rest_scale + 2 * b,
                            .offset = p.offset + 2 * b, .rest_offset = p.rest_offset + 2 * b,
                            .sum = p.sum + b},
                x, n_in);
        else scalar_kernels.to_q8(p.q + b * BLOCK, p.scale + b, p.offset + b, x, n_in, true);
    }
    p.rows = (Rows){p.f32,    stride, apart,  p.bf16,       p.q,          p.scale,
                    p.offset, p.sum,  p.rest, p.rest_scale, p.rest_offset};
    return p;
}

static void free_product(Product *p) {
    free(p->panels), free(p->f32), free(p->bf16), free(p->q), free(p->scale), free(p->offset);
    free(p->sum), free(p->rest), free(p->rest_scale), free(p->rest_offset);
}

// out [n_tokens][out_stride] of a table; the gaps between rows keep a mark.
static float *multiply(const Kernels *table, const Product *p) {
    size_t n = (size_t)p->n_tokens * p->out_stride - (p->out_stride - (size_t)p->n_panels * LANES);
    float *out = allocate(n * sizeof *out);
    for (size_t i = 0; i < n; i++) out[i] = 12345.0f;
    table->matmul[p->dtype](out, p->out_stride, p->panels, p->panel_stride, p->n_panels, p->n_in,
                            &p->rows, p->n_tokens, between(-1, 1) * 4096);
    return out;
}

static int every = 1;  // of how many products one is computed

static bool left_out(void) {
    static int n;
    return n++ % every != 0;
}

static bool same_product(const Kernels *table, const char *name, Dtype dtype, int n_in,
                         int n_panels, int n_tokens, Kind kind) {
    if (left_out()) return true;
    Product p = random_product(dtype, n_in, n_panels, n_tokens, kind);
    float *want = multiply(&scalar_kernels, &p), *got = multiply(table, &p);
    long i = first_difference(want, got,
                              (size_t)(n_tokens - 1) * p.out_stride + (size_t)n_panels * LANES);
    if (i >= 0)
        report(table->name, name, false,
               "n_in %d, %d panels, %d tokens, %s numbers: element %ld is %.9g, not %.9g", n_in,
               n_panels, n_tokens, kind == PLAIN ? "plain" : "extreme", i, (double)got[i],
               (double)want[i]);
    free(want), free(got), free_product(&p);
    return i < 0;
}

static const char *matmul_name(Dtype dtype) {
    static char name[32];
    snprintf(name, sizeof name, "matmul %s", dtypes[dtype].name);
    return name;
}

// Whether a table's bf16 products round in their own way (kernels.h).
static bool own_rounding(const Kernels *table, Dtype dtype) {
    return dtype == BF16 && !strcmp(table->name, "avx512bf16");
}

static void test_matmul(const Kernels *table) {
    for (Dtype dtype = 0; dtype < N_DTYPES; dtype++) {
        if (own_rounding(table, dtype)) continue;
        const char *name = matmul_name(dtype);
        bool ok = true, flushes = dtype == BF16 && !strcmp(table->name, "amx");  // denormals to 0
        for (int panels = 1; ok && panels <= 9; panels++)  // every tile
            for (int tokens = 1; ok && tokens <= 20; tokens++)
                ok = same_product(table, name, dtype, between(1, 200), panels, tokens,
                                  flushes ? PLAIN : (Kind)(tokens % 2));
        for (int n_in = 1; ok && n_in <= 100; n_in++)
            ok = same_product(table, name, dtype, n_in, 5, 7, PLAIN) &&
                 same_product(table, name, dtype, 5 * n_in, 2, 26, PLAIN);
        for (int tokens = 21; ok && tokens <= 70; tokens += 7)
            ok = same_product(table, name, dtype, 77, 3, tokens, PLAIN);
        // around the pieces that k is cut into
        static const int large[] = {511, 512, 513, 1024, 1031, 2048, 2080, 4113};
        for (size_t i = 0; ok && i < sizeof large / sizeof *large; i++)
            ok = same_product(table, name, dtype, large[i], 3, 8, PLAIN) &&
                 same_product(table, name, dtype, large[i], 2, 26, PLAIN) &&
                 same_product(table, name, dtype, large[i], 5, 1, PLAIN);
        // several pieces, groups and pairs of panels
        ok = ok && same_product(table, name, dtype, 1160, 5, 70, PLAIN);
        if (ok) report(table->name, name, true, " ");
    }
}

// The weight of row r and column k of a panel, and its activation, from docs/format.md.
static double weight(const uint8_t *panel, Dtype dtype, int n_blocks, int r, int k) {
    int b = k / BLOCK, j = k % BLOCK;
    const uint16_t *halves = (const uint16_t *)panel;
    switch (dtype) {
    case F32: return (double)((const float *)panel)[k * 16 + r];
    case F16: return (double)f16_to_f32(halves[k * 16 + r]);
    case BF16: return (double)bf16_to_f32(halves[k / 2 * 32 + r * 2 + k % 2]);
    case Q8:
        return (panel[b * 512 + j / 4 * 64 + r * 4 + j % 4] - 128) *
               (double)f16_to_f32(halves[n_blocks * 256 + b * 16 + r]);
    case Q4:
        return Q4_CODES[code_at(panel + b * 256, 4, r, j)] *
               (double)f16_to_f32(halves[n_blocks * 128 + b * 16 + r]);
    default: return weight_alone(panel, dtype, n_blocks, r, k);
    }
}

static double activation(const Product *p, int t, int k) {
    size_t b = (size_t)t * p->rows.blocks + (size_t)(k / BLOCK);
    if (p->dtype == F32 || p->dtype == F16)
        return (double)p->f32[(size_t)t * p->rows.stride + (size_t)k];
    if (p->dtype == BF16) return (double)bf16_to_f32(p->bf16[b * BLOCK + (size_t)(k % BLOCK)]);
    const size_t part = is_kept(p->dtype) ? 2 * b + (size_t)(k % BLOCK / 16) : b;
    const size_t at = b * BLOCK + (size_t)(k % BLOCK);
    const bool twice = is_kept(p->dtype) && p->rest_scale[part] > 0.0f;
    return p->q[at] * (double)p->scale[part] +
           (twice ? p->rest[at] * (double)p->rest_scale[part] : 0.0);
}

// Products within 1e-6 of the sum of magnitudes, of the scalar table and of one that rounds in its
// own way.
static void test_matmul_definition(const Kernels *table) {
    for (Dtype dtype = 0; dtype < N_DTYPES; dtype++) {
        if (table != &scalar_kernels && !own_rounding(table, dtype)) continue;
        Product p = random_product(dtype, 333, 3, 2, PLAIN);
        float *out = multiply(table, &p);
        double worst = 0;
        for (int t = 0; t < p.n_tokens; t++)
            for (int row = 0; row < p.n_panels * LANES; row++) {
                double sum = 0, size = 0;
                // the padding of q8 and q4 has been turned too, and others have minima
                int n_in = dtypes[dtype].scaled ? p.n_blocks * BLOCK : p.n_in;
                for (int k = 0; k < n_in; k++) {
                    const uint8_t *panel = p.panels + (size_t)(row / LANES) * p.panel_stride;
                    double w = weight(panel, dtype, p.n_blocks, row % LANES, k);
                    double term = w * activation(&p, t, k);
                    sum += term, size += fabs(term);
                }
                double got = (double)out[(size_t)t * p.out_stride + (size_t)row];
                worst = fmax(worst, fabs(got - sum) / size);
            }
        report(table->name, matmul_name(dtype), worst < 1e-6,
               "off by %.3g of the sum of magnitudes", worst);
        free(out), free_product(&p);
    }
}

// Where a table rounds in its own way, a row of x must give the same bits alone and beside others.
static void test_matmul_own_rounding(const Kernels *table) {
    bool ok = true;
    for (int panels = 1; ok && panels <= 9; panels++)
        for (int tokens = 1; ok && tokens <= 20; tokens++) {
            if (left_out()) continue;
            int n_in = panels == 9 ? 4113 : between(1, 200);
            Product p = random_product(BF16, n_in, panels, tokens, PLAIN);
            float *all = multiply(table, &p);
            for (int t = 0; ok && t < tokens; t++) {
                Product one = p;
                one.n_tokens = 1;
                one.rows.bf16 += (size_t)t * p.rows.blocks * BLOCK;
                float *alone = multiply(table, &one);
                ok = first_difference(alone, all + (size_t)t * p.out_stride,
                                      (size_t)panels * LANES) < 0;
                free(alone);
            }
            if (!ok)
                report(table->name, "bf16 row by row", false,
                       "%d panels, %d tokens differ from one", panels, tokens);
            free(all), free_product(&p);
        }
    if (ok) report(table->name, "bf16 row by row", true, " ");
}

// ---- the mix ----

static bool same_mix(const Kernels *table, const char *name, Dtype dtype, int n_rows, int begin,
                     int end, int dim, Kind kind) {
    int n_blocks = (end + LANES - 1) / LANES;
    size_t elements = (size_t)LANES * (size_t)dim, codes = dtype == Q4 ? elements / 2 : elements;
    size_t bytes = dtype == F32   ? elements * 4
                   : dtype == F16 ? elements * 2
                                  : codes + elements / BLOCK * 2;
    const uint8_t **v = allocate((size_t)n_blocks * sizeof *v);
    for (int b = 0; b < n_blocks; b++) {
        uint8_t *block = allocate(bytes);
        for (size_t i = 0; i < bytes; i++) block[i] = (uint8_t)random_bits();
        for (size_t i = 0; dtype == F32 && i < elements; i++)
            ((float *)block)[i] = random_float(kind);
        bool blocks = dtype == Q8 || dtype == Q4;
        for (size_t i = blocks ? codes : 0; dtype != F32 && i < bytes; i += 2)
            *(uint16_t *)(block + i) = random_f16(kind);
        v[b] = block;
    }
    size_t p_stride = (size_t)(n_blocks * LANES + between(0, 9)), n = (size_t)n_rows * (size_t)dim;
    float *p = random_floats(p_stride * (size_t)n_rows, dtype == Q4 ? PLAIN : kind);
    for (int r = 0; r < n_rows && dtype == Q4; r++)
        for (int i = end; i < n_blocks * LANES; i++) p[(size_t)r * p_stride + (size_t)i] = 0.0f;
    float *want = random_floats(n, PLAIN), *got = random_floats(n, PLAIN);
    scalar_kernels.mix[dtype](want, p, p_stride, n_rows, v, begin, end, dim, 0);
    table->mix[dtype](got, p, p_stride, n_rows, v, begin, end, dim, 1 << 20);
    long i = first_difference(want, got, n);
    if (i >= 0)
        report(table->name, name, false,
               "%d rows, positions %d to %d, dim %d: element %ld is %.9g, not %.9g", n_rows, begin,
               end, dim, i, (double)got[i], (double)want[i]);
    for (int b = 0; b < n_blocks; b++) free((void *)v[b]);
    free(v), free(p), free(want), free(got);
    return i < 0;
}

static void test_mix(const Kernels *table) {
    static const struct {
        Dtype dtype;
        const char *name;
        int dim_step;
    } mixes[] = {{F32, "mix f32", 16}, {F16, "mix f16", 16}, {Q8, "mix q8", 32},
                 {Q4, "mix q4", 32}};
    for (size_t m = 0; m < sizeof mixes / sizeof *mixes; m++) {
        bool ok = true;
        for (int rows = 1; ok && rows <= 20; rows++)
            for (int dim = mixes[m].dim_step; ok && dim <= 256; dim += mixes[m].dim_step) {
                int begin = between(0, 40), end = begin + between(0, rows % 5 ? 70 : 200);
                if (mixes[m].dtype == Q4) begin = begin / LANES * LANES;
                ok = same_mix(table, mixes[m].name, mixes[m].dtype, rows, begin, end, dim,
                              (Kind)(rows % 2));
            }
        if (ok) report(table->name, mixes[m].name, true, " ");
    }
}

static bool same_mix_keys(const Kernels *table, const char *name, Dtype dtype, int n_rows,
                          int begin, int end, int n_in, int dim, Kind kind) {
    int n_panels = (end + LANES - 1) / LANES;
    size_t p_stride = (size_t)n_panels * LANES + (size_t)between(0, 5);
    size_t n_out = (size_t)n_rows * (size_t)dim;
    const uint8_t **keys = allocate((size_t)n_panels * sizeof *keys);
    for (int i = 0; i < n_panels; i++) {
        uint8_t *panel = allocate(panel_bytes(dtype, n_in));
        random_panel(panel, dtype, n_in, kind);
        keys[i] = panel;
    }
    float *p = random_floats((size_t)n_rows * p_stride, PLAIN);
    float *want = allocate(n_out * sizeof *want), *got = allocate(n_out * sizeof *got);
    for (int r = 0; r < n_rows; r++)
        for (int i = end; i < n_panels * LANES; i++) p[(size_t)r * p_stride + (size_t)i] = 0.0f;
    scalar_kernels.mix_keys[dtype](want, p, p_stride, n_rows, keys, begin, end, n_in, dim);
    table->mix_keys[dtype](got, p, p_stride, n_rows, keys, begin, end, n_in, dim);
    long i = first_difference(want, got, n_out);
    if (i >= 0)
        report(table->name, name, false,
               "row %ld dim %ld of %d rows, %d..%d, %d of %d dims: %.9g, expected %.9g", i / dim,
               i % dim, n_rows, begin, end, dim, n_in, (double)got[i], (double)want[i]);
    for (int k = 0; k < n_panels; k++) free((void *)keys[k]);
    free(keys), free(p), free(want), free(got);
    return i < 0;
}

static void test_mix_keys(const Kernels *table) {
    static const struct {
        Dtype dtype;
        const char *name;
    } mixes[] = {{F32, "mix_keys f32"}, {F16, "mix_keys f16"}, {Q8, "mix_keys q8"},
                 {Q4, "mix_keys q4"}};
    for (size_t m = 0; m < sizeof mixes / sizeof *mixes; m++) {
        bool ok = true;
        for (int rows = 1; ok && rows <= 20; rows++)
            for (int dim = 1; ok && dim <= 70; dim += between(1, 7)) {
                int begin = between(0, 3) * LANES, end = begin + between(1, 70);
                ok = same_mix_keys(table, mixes[m].name, mixes[m].dtype, rows, begin, end,
                                   dim + between(0, 40), dim, (Kind)(rows % 2));
            }
        if (ok) report(table->name, mixes[m].name, true, " ");
    }
}

// ---- everything else, of n floats ----

enum { MAX_N = 600 };

typedef struct {  // in and out; each function uses what it needs
    float x[MAX_N], y[MAX_N], z[MAX_N], a, b;
    uint16_t half[MAX_N + BLOCK];
    int8_t q[MAX_N + Q4_AT_ONCE];
    int32_t offset[MAX_N / BLOCK + 1];
} Buffers;

#define CALL(name, ...) \
    static void call_##name(const Kernels *k, Buffers *u, int n) { __VA_ARGS__; }

CALL(to_bf16, k->to_bf16(u->half, u->x, n))
CALL(to_f16, k->to_f16(u->half, u->x, n))
CALL(to_q8, k->to_q8(u->q, u->y, u->offset, u->x, n, false))
static int next_of(int n, int i) { return n - i < Q4_AT_ONCE ? n - i : Q4_AT_ONCE; }
CALL(to_q4, for (int i = 0; i < n; i += Q4_AT_ONCE)
         k->to_q4((uint8_t *)u->q + i, u->half + i, u->x + i, NULL, 0, 0, next_of(n, i)))
CALL(to_q4_towards, for (int i = 0; i < n; i += Q4_AT_ONCE)
         k->to_q4((uint8_t *)u->q + i, u->half + i, u->x + i, u->y + i, (size_t)(u->z - u->y), 2,
                  next_of(n, i)))
CALL(to_q8_turned, k->to_q8(u->q, u->y, u->offset, u->x, n, true))
CALL(hadamard, k->hadamard(u->x, u->x, u->a, n / BLOCK * BLOCK))
CALL(rmsnorm, k->rmsnorm(u->y, u->x, u->z, n, 1e-5f))
CALL(rmsnorm_in_place, k->rmsnorm(u->x, u->x, u->z, n, 1e-5f))
CALL(layernorm, k->layernorm(u->x, u->x, u->z, u->y, n, 1e-5f))
CALL(layernorm_plain, k->layernorm(u->y, u->x, u->z, NULL, n, 1e-5f))
CALL(add, k->add(u->x, u->y, n))
CALL(scale, k->scale(u->x, u->a, n))
CALL(axpby, k->axpby(u->x, u->a, u->y, u->b, n))
CALL(silu, k->act(u->x, ACT_SILU, n))
CALL(gelu_erf, k->act(u->x, ACT_GELU_ERF, n))
CALL(gelu_tanh, k->act(u->x, ACT_GELU_TANH, n))
CALL(silu_mul, k->act_mul(u->x, u->y, ACT_SILU, n))
CALL(gelu_erf_mul, k->act_mul(u->x, u->y, ACT_GELU_ERF, n))
CALL(gelu_tanh_mul, k->act_mul(u->x, u->y, ACT_GELU_TANH, n))
CALL(relu, k->act(u->x, ACT_RELU, n))
CALL(relu2_mul, k->act_mul(u->x, u->y, ACT_RELU2, n))
CALL(xielu, k->xielu(u->x, (float[4]){u->a, u->b, 0.5f, -1e-6f}, n))
CALL(clamped_swiglu, k->clamped_swiglu(u->x, u->y, 1.702f, 7.0f, n))
CALL(clamp, k->clamp(u->x, 0.5f, n))
CALL(softcap, k->softcap(u->x, 0.75f, n))
CALL(add_ramp, k->add_ramp(u->x, -50.0f, u->a, n))
CALL(sigmoid, k->act(u->x, ACT_SIGMOID, n))
CALL(unit, k->unit(u->x, u->a, 1e-6f, n))
static void call_conv(const Kernels *k, Buffers *u, int n) {
    int taps = 3, width = n / taps;
    k->conv(u->x, u->y, (size_t)width, u->z, NULL, taps, width);
}
static void call_conv_bias(const Kernels *k, Buffers *u, int n) {
    int taps = 3, width = n / (taps + 1);
    k->conv(u->x, u->y, (size_t)width, u->z, u->z + taps * width, taps, width);
}
CALL(decay, k->decay(u->x, u->y, n))
// The state in x, then the results of a few tokens.
static Steps steps_of(Buffers *u, int n) {
    int n_v = 2 + n % 87, n_t = 1 + n % 19, n_k = n / n_v - n_t;
    size_t few = (size_t)n % 3;
    return (Steps){.n = n_t, .n_k = n_k, .n_v = n_v,
                   .q = u->y, .k = u->y + few, .v = u->y + 2 * few, .stride = 1 + few,
                   .decay = u->z, .decay_stride = few, .by_row = n % 2,
                   .step = u->z + few, .step_stride = 1, .out = u->x + n_k * n_v,
                   .out_stride = (size_t)n_v};
}
static void call_delta(const Kernels *k, Buffers *u, int n) {
    Steps s = steps_of(u, n);
    if (s.n_k > 0) k->delta(u->x, &s);
}
CALL(step, k->step(u->x, u->y, u->z, 0.25f, 1.5f, n))
static void call_mamba2(const Kernels *k, Buffers *u, int n) {
    Steps s = steps_of(u, n);
    if (s.n_k > 0) k->mamba2(u->x, &s, u->a);
}
static void call_mamba(const Kernels *k, Buffers *u, int n) {  // the rates and skips in z
    int n_v = 1 + n % 87, n_k = n / (n_v + 1), columns = n_v - n_v / 3;
    if (n_k > 0)
        k->mamba(u->x, u->x + n_k * n_v, u->y, u->y + 100, u->y + 200, u->y + 300, u->z, u->z + 50,
                 n_k, n_v, columns);
}
CALL(rope, k->rope(u->x, u->y, u->z, n / 2))
static void call_sincos(const Kernels *k, Buffers *u, int n) {
    for (int i = 0; i < n; i++) u->x[i] *= 1000.0f;
    k->sincos(u->x, u->y, u->x, u->a, n);
}
CALL(max, u->a = k->max(u->x, (int)round_up((size_t)n, LANES)))
static void call_exp_sum(const Kernels *k, Buffers *u, int n) {
    for (int i = 0; i < n; i++) u->x[i] = i % 7 == 3 ? -INFINITY : u->x[i] * (float)(i % 60);
    u->a = k->exp_sum(u->x, u->b * 8.0f, (int)round_up((size_t)n, LANES));
}

static const struct {
    const char *name;
    void (*call)(const Kernels *k, Buffers *u, int n);
} VECTOR_CALLS[] = {
    {"to_bf16", call_to_bf16},
    {"to_f16", call_to_f16},
    {"to_q8", call_to_q8},
    {"to_q8 turned", call_to_q8_turned},
    {"to_q4", call_to_q4},
    {"to_q4 towards a direction of two rows", call_to_q4_towards},
    {"hadamard in place", call_hadamard},
    {"rmsnorm", call_rmsnorm},
    {"rmsnorm in place", call_rmsnorm_in_place},
    {"layernorm in place", call_layernorm},
    {"layernorm without bias", call_layernorm_plain},
    {"add", call_add},
    {"scale", call_scale},
    {"axpby", call_axpby},
    {"silu", call_silu},
    {"gelu_erf", call_gelu_erf},
    {"gelu_tanh", call_gelu_tanh},
    {"silu_mul", call_silu_mul},
    {"gelu_erf_mul", call_gelu_erf_mul},
    {"gelu_tanh_mul", call_gelu_tanh_mul},
    {"rope", call_rope},
    {"sigmoid", call_sigmoid},
    {"unit", call_unit},
    {"conv", call_conv},
    {"decay", call_decay},
    {"delta", call_delta},
    {"conv with a bias", call_conv_bias},
    {"step", call_step},
    {"mamba2", call_mamba2},
    {"mamba", call_mamba},
    {"relu", call_relu},
    {"relu2_mul", call_relu2_mul},
    {"xielu", call_xielu},
    {"clamped_swiglu", call_clamped_swiglu},
    {"clamp", call_clamp},
    {"softcap", call_softcap},
    {"add_ramp", call_add_ramp},
    {"sincos in place", call_sincos},
    {"max", call_max},
    {"exp_sum", call_exp_sum},
};

static const char *difference(const Buffers *a, const Buffers *b) {
    if (first_difference(a->x, b->x, MAX_N) >= 0) return "x";
    if (first_difference(a->y, b->y, MAX_N) >= 0) return "y";
    if (first_difference(&a->a, &b->a, 1) >= 0) return "the result";
    if (memcmp(a->half, b->half, sizeof a->half)) return "the 16-bit floats";
    if (memcmp(a->q, b->q, sizeof a->q)) return "q";
    if (memcmp(a->offset, b->offset, sizeof a->offset)) return "offset";
    return NULL;
}

static void test_vectors(const Kernels *table) {
    static Buffers want, got;
    for (size_t c = 0; c < sizeof VECTOR_CALLS / sizeof *VECTOR_CALLS; c++) {
        const char *different = NULL;
        int n = 0;
        while (!different && n < MAX_N - LANES) {
            n += n < 70 ? 1 : between(1, 30);
            n = n < MAX_N - LANES ? n : MAX_N - LANES;
            Kind kind = (Kind)(n % 2);
            for (int i = 0; i < MAX_N; i++)
                want.x[i] = random_float(kind), want.y[i] = random_float(kind),
                want.z[i] = random_float(kind);
            want.a = random_float(PLAIN), want.b = random_float(PLAIN);
            got = want;
            VECTOR_CALLS[c].call(&scalar_kernels, &want, n);
            VECTOR_CALLS[c].call(table, &got, n);
            different = difference(&want, &got);
        }
        report(table->name, VECTOR_CALLS[c].name, !different, "%s differ(s) for n = %d",
               different ? different : "", n);
    }
}

// ---- ceilings ----

// What --bench holds the others against: reading gives the exclusive or of all words, whatever the
// number of lines, and operations are counted by the step.
static void test_ceilings(const Kernels *table) {
    uint64_t words[8 * 300], expected = 0;
    bool reads = true, counts = true;
    for (int n = 0; n < 300; n++) {
        for (size_t streams = 1; streams <= 8; streams *= 2)
            reads &= table->read((const uint8_t *)words, (size_t)n, streams) == expected;
        for (int i = 8 * n; i < 8 * n + 8; i++) {
            words[i] = (uint64_t)random_bits() << 32 | random_bits();
            expected ^= words[i];
        }
    }
    report(table->name, "read", reads, "not the exclusive or of the words");
    for (int input = 0; input < N_INPUTS; input++) {
        double one = table->peak[input](1);
        counts &= one > 0 && table->peak[input](1000) == 1000 * one;
    }
    report(table->name, "peak", counts, "the operations are not those of the steps");
}

static void test_table(const Kernels *table) {
    test_matmul(table);
    if (own_rounding(table, BF16)) {
        test_matmul_definition(table);
        test_matmul_own_rounding(table);
    }
    test_mix(table);
    test_mix_keys(table);
    test_vectors(table);
    test_ceilings(table);
}

int main(int argc, char **argv) {  // one argument: of how many products one is computed
    if (argc > 1) every = atoi(argv[1]);
    test_matmul_definition(&scalar_kernels);
    test_ceilings(&scalar_kernels);
    const char *why;
#ifdef EMULATED
    test_table(&avxvnni_kernels);
    if (kernels_choose("avx512", &why)) test_table(&amx_kernels);  // beside its tiles it is AVX-512
    else printf("ok amx, emulated # skipped: %s\n", why);
#endif
    static const char *const vector_tables[] = {"amx", "avx512bf16", "avx512",
                                                "avxvnni", "avx2", "neon"};
    for (size_t i = 0; i < sizeof vector_tables / sizeof *vector_tables; i++) {
        const Kernels *table = kernels_choose(vector_tables[i], &why);
        if (table) test_table(table);
        else printf("ok %s # skipped: %s\n", vector_tables[i], why);
    }
    return failures != 0;
}
