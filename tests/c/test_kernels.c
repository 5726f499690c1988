// Every kernel of every table that this processor can run against the scalar one, bit for bit; the
// scalar one against the definitions in double precision: products over weights read as
// docs/format.md lays them out, conversions, exp, sin, cos and the activations.
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"

static int failures;

__attribute__((format(printf, 4, 5)))
static void report(const char *table, const char *name, bool ok, const char *why, ...) {
    va_list args;
    va_start(args, why);
    printf("%s %s %s", ok ? "ok" : "not ok", table, name);
    if (!ok) printf(": "), vprintf(why, args);
    printf("\n");
    va_end(args);
    failures += !ok;
}

// ---- random numbers, the same on every machine ----

static uint64_t state = 88172645463325252u;

static uint32_t random_bits(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static int between(int low, int high) {
    return low + (int)(random_bits() % (uint32_t)(high - low + 1));
}

typedef enum { PLAIN, EXTREME } Kind;

static float random_float(Kind kind) {
    static const float odd[] = {0.0f,  -0.0f,  1e-45f,   -1e-40f,  1e-30f, -1e-20f,
                                3e38f, -3e38f, INFINITY, 65504.0f, 1.0f,   -1.0f};
    if (kind == EXTREME && between(0, 3)) return odd[between(0, sizeof odd / sizeof *odd - 1)];
    return (float)(int32_t)random_bits() * 0x1p-30f;  // -2..2
}

static void *allocate(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);  // exact, so that a sanitizer sees what lies outside
    if (!p) exit(1);
    return p;
}

static float *random_floats(size_t n, Kind kind) {
    float *x = allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float(kind);
    return x;
}

static uint16_t random_f16(Kind kind) {
    if (kind == PLAIN) return f32_to_f16(random_float(PLAIN));
    return (uint16_t)(random_bits() & 0xfbff);  // no infinity, no NaN
}

// The first of n floats that differ, or -1; one NaN is as good as another.
static long first_difference(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bits_of(a[i]) != bits_of(b[i]) && !(isnan(a[i]) && isnan(b[i]))) return (long)i;
    return -1;
}

// ---- products ----

typedef struct {
    Dtype dtype;
    int n_in, n_panels, n_tokens, n_blocks;
    size_t panel_stride, out_stride;
    uint8_t *panels;
    float *f32, *scale;
    uint16_t *bf16;
    int8_t *q;
    int32_t *offset;
    Rows rows;
} Product;

static void random_panel(uint8_t *panel, Dtype dtype, int n_in, Kind kind) {
    size_t bytes = panel_bytes(dtype, n_in);
    for (size_t i = 0; i < bytes; i++) panel[i] = (uint8_t)random_bits();
    if (dtype == F32)
        for (size_t i = 0; i < bytes / 4; i++) ((float *)panel)[i] = random_float(kind);
    else if (dtype == BF16)
        for (size_t i = 0; i < bytes / 2; i++)
            ((uint16_t *)panel)[i] = (uint16_t)(bits_of(random_float(kind)) >> 16);
    else {
        size_t scales =
            dtype == F16 ? 0 : (size_t)(n_in + BLOCK - 1) / BLOCK * (dtype == Q8 ? 512 : 256);
        for (size_t i = scales; i < bytes; i += 2) *(uint16_t *)(panel + i) = random_f16(kind);
    }
}

static Product random_product(Dtype dtype, int n_in, int n_panels, int n_tokens, Kind kind) {
    Product p = {.dtype = dtype, .n_in = n_in, .n_panels = n_panels, .n_tokens = n_tokens};
    p.n_blocks = (n_in + BLOCK - 1) / BLOCK;
    p.panel_stride = panel_bytes(dtype, n_in) + (size_t)between(0, 1) * 64;
    p.out_stride = (size_t)n_panels * LANES + (size_t)between(0, 5);
    p.panels = allocate(p.panel_stride * (size_t)n_panels);
    for (int i = 0; i < n_panels; i++)
        random_panel(p.panels + (size_t)i * p.panel_stride, dtype, n_in, kind);
    size_t stride = (size_t)(n_in + between(0, 3)), blocks = (size_t)n_tokens * (size_t)p.n_blocks;
    p.f32 = random_floats((size_t)n_tokens * stride, kind);
    p.bf16 = allocate(blocks * BLOCK * sizeof *p.bf16);
    p.q = allocate(blocks * BLOCK);
    p.scale = allocate(blocks * sizeof *p.scale);
    p.offset = allocate(blocks * sizeof *p.offset);
    for (int t = 0; t < n_tokens; t++) {
        size_t b = (size_t)t * (size_t)p.n_blocks;
        scalar_kernels.to_bf16(p.bf16 + b * BLOCK, p.f32 + (size_t)t * stride, n_in);
        scalar_kernels.to_q8(p.q + b * BLOCK, p.scale + b, p.offset + b, p.f32 + (size_t)t * stride,
                             n_in, true);
    }
    p.rows = (Rows){p.f32, stride, p.bf16, p.q, p.scale, p.offset};
    return p;
}

static void free_product(Product *p) {
    free(p->panels), free(p->f32), free(p->bf16), free(p->q), free(p->scale), free(p->offset);
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

static bool same_product(const Kernels *table, const char *name, Dtype dtype, int n_in,
                         int n_panels, int n_tokens, Kind kind) {
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

static const char *const MATMUL_NAMES[] = {"matmul f32", "matmul bf16", "matmul q8", "matmul q4",
                                           "matmul f16"};

// Whether a table's bf16 products round in their own way (kernels.h).
static bool own_rounding(const Kernels *table, Dtype dtype) {
    return dtype == BF16 && !strcmp(table->name, "avx512bf16");
}

static void test_matmul(const Kernels *table) {
    for (Dtype dtype = F32; dtype < N_DTYPES; dtype++) {
        if (own_rounding(table, dtype)) continue;
        const char *name = MATMUL_NAMES[dtype];
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
    default: {
        int codes = panel[b * 256 + j / 8 * 64 + r * 4 + j % 4];
        int code = j % 8 < 4 ? codes & 15 : codes >> 4;
        return Q4_CODES[code] * (double)f16_to_f32(halves[n_blocks * 128 + b * 16 + r]);
    }
    }
}

static double activation(const Product *p, int t, int k) {
    size_t b = (size_t)t * (size_t)p->n_blocks + (size_t)(k / BLOCK);
    if (p->dtype == F32 || p->dtype == F16)
        return (double)p->f32[(size_t)t * p->rows.stride + (size_t)k];
    if (p->dtype == BF16) return (double)bf16_to_f32(p->bf16[b * BLOCK + (size_t)(k % BLOCK)]);
    return p->q[b * BLOCK + (size_t)(k % BLOCK)] * (double)p->scale[b];
}

// Products within 1e-6 of the sum of magnitudes, of the scalar table and of one that rounds in its
// own way.
static void test_matmul_definition(const Kernels *table) {
    for (Dtype dtype = F32; dtype < N_DTYPES; dtype++) {
        if (table != &scalar_kernels && !own_rounding(table, dtype)) continue;
        Product p = random_product(dtype, 333, 3, 2, PLAIN);
        float *out = multiply(table, &p);
        double worst = 0;
        for (int t = 0; t < p.n_tokens; t++)
            for (int row = 0; row < p.n_panels * LANES; row++) {
                double sum = 0, size = 0;
                // the padding of q8 and q4 has been turned too
                int n_in = dtype == Q8 || dtype == Q4 ? p.n_blocks * BLOCK : p.n_in;
                for (int k = 0; k < n_in; k++) {
                    const uint8_t *panel = p.panels + (size_t)(row / LANES) * p.panel_stride;
                    double w = weight(panel, dtype, p.n_blocks, row % LANES, k);
                    double term = w * activation(&p, t, k);
                    sum += term, size += fabs(term);
                }
                double got = (double)out[(size_t)t * p.out_stride + (size_t)row];
                worst = fmax(worst, fabs(got - sum) / size);
            }
        report(table->name, MATMUL_NAMES[dtype], worst < 1e-6,
               "off by %.3g of the sum of magnitudes", worst);
        free(out), free_product(&p);
    }
}

// Where a table rounds in its own way, a row of x must give the same bits alone and beside others.
static void test_matmul_own_rounding(const Kernels *table) {
    bool ok = true;
    for (int panels = 1; ok && panels <= 9; panels++)
        for (int tokens = 1; ok && tokens <= 20; tokens++) {
            int n_in = panels == 9 ? 4113 : between(1, 200);
            Product p = random_product(BF16, n_in, panels, tokens, PLAIN);
            float *all = multiply(table, &p);
            for (int t = 0; ok && t < tokens; t++) {
                Product one = p;
                one.n_tokens = 1;
                one.rows.bf16 += (size_t)t * (size_t)p.n_blocks * BLOCK;
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

// The scalar one is the definition, in double precision, of panels read as docs/format.md has them.
static void test_mix_keys_definition(void) {
    enum { N_IN = 37, DIM = 21, END = 40 };
    uint8_t *panels[3];
    float p[48] = {0};
    double worst = 0;
    for (int i = 0; i < END; i++) p[i] = random_float(PLAIN);
    for (int i = 0; i < 3; i++)
        random_panel(panels[i] = allocate(panel_bytes(Q8, N_IN)), Q8, N_IN, PLAIN);
    float out[DIM];
    scalar_kernels.mix_keys[Q8](out, p, 48, 1, (const uint8_t *const *)panels, 0, END, N_IN, DIM);
    for (int d = 0; d < DIM; d++) {
        double sum = 0, size = 0;
        for (int i = 0; i < END; i++) {
            const uint8_t *panel = panels[i / LANES];
            uint16_t scale;
            memcpy(&scale, panel + 2 * 512 + (d / BLOCK) * 32 + i % LANES * 2, sizeof scale);
            int q = panel[d / BLOCK * 512 + d % BLOCK / 4 * 64 + i % LANES * 4 + d % 4] - 128;
            double key = q * (double)f16_to_f32(scale);
            sum += (double)p[i] * key, size += fabs((double)p[i] * key);
        }
        worst = fmax(worst, fabs((double)out[d] - sum) / size);
    }
    report("scalar", "mix_keys as defined", worst < 1e-6, "off by %.3g", worst);
    for (int i = 0; i < 3; i++) free(panels[i]);
}

// Of q4 values, read as kernels.h has them: off by what rounding probabilities to steps makes of
// them, whose variance is a twelfth of a step's square.
static void test_mix_q4_definition(void) {
    enum { DIM = 64, BEGIN = 48, END = 150, BLOCKS = 10, CODES = LANES * DIM / 2 };
    static uint8_t blocks[BLOCKS][CODES + LANES * DIM / BLOCK * 2];
    const uint8_t *v[BLOCKS];
    float p[BLOCKS * LANES] = {0}, out[DIM];
    double worst = 0;
    for (int i = BEGIN; i < END; i++) p[i] = fabsf(random_float(PLAIN));
    for (int b = 0; b < BLOCKS; b++) {
        for (size_t i = 0; i < sizeof blocks[b]; i++) blocks[b][i] = (uint8_t)random_bits();
        for (size_t i = CODES; i < sizeof blocks[b]; i += 2)
            *(uint16_t *)(blocks[b] + i) = random_f16(PLAIN);
        v[b] = blocks[b];
    }
    scalar_kernels.mix[Q4](out, p, BLOCKS * LANES, 1, v, BEGIN, END, DIM, 0);
    for (int d = 0; d < DIM; d++) {
        double sum = 0, variance = 0, a[BLOCKS * LANES];
        double largest[BLOCKS * LANES / MIX_RUN + 1] = {0};
        for (int i = BEGIN; i < END; i++) {
            const uint16_t *scales = (const uint16_t *)(v[i / LANES] + CODES);
            a[i] = (double)p[i] * (double)f16_to_f32(scales[d / BLOCK * LANES + i % LANES]);
            largest[i / MIX_RUN] = fmax(largest[i / MIX_RUN], fabs(a[i]));
        }
        for (int i = BEGIN; i < END; i++) {
            int byte = v[i / LANES][d / 16 * 128 + i % 16 / 8 * 64 + d % 16 * 4 + i % 4];
            int code = Q4_CODES[i % 8 < 4 ? byte & 15 : byte >> 4];
            double step = largest[i / MIX_RUN] / 127 * code;
            sum += a[i] * code, variance += step * step / 12;
        }
        worst = fmax(worst, fabs((double)out[d] - sum) / sqrt(variance));
    }
    report("scalar", "mix q4 as defined", worst > 1 && worst < 4.5,
           "off by %.3g standard deviations", worst);
}

// What codes lose of a block's H x / 4, as a share of its square; and what of the direction's.
static void test_to_q4_definition(void) {
    double lost = 0, plain = 0, towards = 0;
    for (int i = 0; i < 1000; i++) {
        float *x = random_floats(BLOCK, PLAIN), *u = random_floats(BLOCK, PLAIN);
        for (int with = 0; with < 2; with++) {
            uint8_t codes[Q4_AT_ONCE];
            uint16_t scale[2];
            double size = 0, error = 0, along = 0;
            scalar_kernels.to_q4(codes, scale, x, u, 0, with, BLOCK);
            for (int k = 0; k < BLOCK; k++) {
                double w = 0, side = 0;
                for (int j = 0; j < BLOCK; j++) {
                    int sign = __builtin_popcount((unsigned)(j & k)) % 2 ? -1 : 1;
                    w += sign * (double)x[j] / 4, side += sign * (double)u[j] / 4;
                }
                double e = w - Q4_CODES[codes[k]] * (double)f16_to_f32(scale[0]);
                size += w * w, error += e * e, along += e * side;
            }
            if (!with) lost += error / size / 1000;
            *(with ? &towards : &plain) += along * along / 1000;
        }
        free(x), free(u);
    }
    report("scalar", "q4 blocks keep 99 %", lost > 0.001 && lost < 0.01, "lost %.3g", lost);
    report("scalar", "q4 blocks keep a direction", towards < 0.2 * plain, "%.3g, not of %.3g",
           towards, plain);
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
CALL(turn, k->turn(u->x, u->x, u->a, n / BLOCK * BLOCK))
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
static void call_delta(const Kernels *k, Buffers *u, int n) {  // the state in x, then the result
    int n_v = 1 + n % 37, n_k = n / (n_v + 1);
    if (n_k) k->delta(u->x, u->x + n_k * n_v, u->y, u->y + 100, u->z, u->a, u->b, n_k, n_v);
}
CALL(step, k->step(u->x, u->y, u->z, 0.25f, 1.5f, n))
static void call_mamba2(const Kernels *k, Buffers *u, int n) {  // as call_delta
    int n_v = 1 + n % 37, n_k = n / (n_v + 1);
    if (n_k) k->mamba2(u->x, u->x + n_k * n_v, u->y, u->y + 100, u->z, u->a, u->b, n_k, n_v);
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
    {"turn in place", call_turn},
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

// ---- accuracy, of the scalar table ----

static double ulp(double x) {
    return ldexp(1.0, (x == 0 ? -126 : ilogb(x) < -126 ? -126 : ilogb(x)) - 23);
}

static void test_exp(void) {
    double worst = 0, worst_at = 0;
    for (float low = -87.0f; low < 88.0f; low += 0.0137f) {
        float x[LANES], in[LANES];
        for (int i = 0; i < LANES; i++) in[i] = x[i] = low + (float)i * 0.00085f;
        scalar_kernels.exp_sum(x, 0.0f, LANES);
        for (int i = 0; i < LANES; i++) {
            double want = exp((double)in[i]), e = fabs((double)x[i] - want) / ulp(want);
            if (e > worst) worst = e, worst_at = (double)in[i];
        }
    }
    report("scalar", "exp within 1.1 ulp", worst < 1.1, "%.3f ulp at %.9g", worst, worst_at);
    float x[LANES] = {-INFINITY, -88.0f, 89.0f, 0.0f, -0.0f, -INFINITY,
                      -INFINITY, -INFINITY, -1e30f, -1e4f, 1e-30f};
    scalar_kernels.exp_sum(x, 0.0f, LANES);
    bool ok = x[0] == 0 && x[1] == 0 && isinf(x[2]) && x[3] == 1 && x[4] == 1;
    ok = ok && x[8] == 0 && x[10] == 1;
    report("scalar", "exp at its ends", ok, "-inf, -88, 89, 0, -1e30 give %g %g %g %g %g",
           (double)x[0], (double)x[1], (double)x[2], (double)x[3], (double)x[8]);
}

// Angles up to the largest context a rope could see, one radian a position.
static void test_sincos(void) {
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        float angle = random_float(PLAIN) * (i % 2 ? 8.0f : 8e6f), c, s;
        scalar_kernels.sincos(&c, &s, &angle, 1.0f, 1);
        worst = fmax(worst, fmax(fabs((double)c - cos((double)angle)),
                                 fabs((double)s - sin((double)angle))));
    }
    report("scalar", "sincos within 3e-8", worst < 3e-8, "off by %.3g", worst);
}

static double exact_act(Act act, double x) {
    if (act == ACT_SILU) return x / (1 + exp(-x));
    if (act == ACT_GELU_ERF) return 0.5 * x * erfc(-x * sqrt(0.5));
    if (act == ACT_RELU || act == ACT_RELU2) return x < 0 ? 0 : act == ACT_RELU ? x : x * x;
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void test_act(void) {
    static const struct {
        const char *name;
        double bound;  // of the error, in |x|
    } acts[] = {{"silu within 1.5e-7 |x|", 1.5e-7},
                {"gelu_erf within 2.5e-7 |x|", 2.5e-7},
                {"gelu_tanh within 1.5e-7 |x|", 1.5e-7},
                {"relu is exact", 1e-30},
                {"relu^2 within 1.2e-6 |x|", 1.2e-6}};
    for (Act act = ACT_SILU; act < N_PLAIN_ACTS; act++) {
        double worst = 0, worst_at = 0;
        for (int i = -200000; i <= 200000; i++) {
            float x = (float)i * 1e-4f, y = x;
            scalar_kernels.act(&y, act, 1);
            double e = fabs((double)y - exact_act(act, (double)x)) / (i ? fabs((double)x) : 1);
            if (e > worst) worst = e, worst_at = (double)x;
        }
        report("scalar", acts[act].name, worst < acts[act].bound, "off by %.3g |x| at %.9g", worst,
               worst_at);
    }
}

// xIELU with p = (0, 1, 1, 0) is expm1 below zero, and a softcap of 1 is tanh.
static void test_expm1_and_tanh(void) {
    double worst[2] = {0}, worst_at[2] = {0};
    for (int i = 1; i <= 400000; i++) {
        float x = (float)i * (i % 2 ? 2.2e-4f : 1e-7f), y[2] = {-x, x};
        scalar_kernels.xielu(&y[0], (float[4]){0.0f, 1.0f, 1.0f, 0.0f}, 1);
        scalar_kernels.softcap(&y[1], 1.0f, 1);
        // xielu subtracts x and adds it again, which costs an ulp of x
        double want[2] = {expm1(-(double)x), tanh((double)x)};
        double unit[2] = {ulp((double)x), ulp(want[1])};
        for (int j = 0; j < 2; j++) {
            double e = fabs((double)y[j] - want[j]) / unit[j];
            if (e > worst[j]) worst[j] = e, worst_at[j] = (double)x;
        }
    }
    report("scalar", "expm1 in xielu within 1.6 ulp", worst[0] < 1.6, "%.3f ulp at -%.9g", worst[0],
           worst_at[0]);
    report("scalar", "tanh within 3 ulp", worst[1] < 3, "%.3f ulp at %.9g", worst[1], worst_at[1]);
    float ends[4] = {-INFINITY, INFINITY, -0.0f, -100.0f};
    scalar_kernels.softcap(ends, 2.0f, 4);
    report("scalar", "tanh at its ends",
           ends[0] == -2 && ends[1] == 2 && signbit(ends[2]) && ends[3] == -2, "%g %g %g %g",
           (double)ends[0], (double)ends[1], (double)ends[2], (double)ends[3]);
}

// decay, unit and delta against their definitions in double precision.
static void test_delta_rule(void) {
    double worst = 0;
    for (int i = -3000; i <= 3000; i++) {
        float x = (float)i * 0.01f, rate = 0.7f, y = x;
        scalar_kernels.decay(&y, &rate, 1);
        worst = fmax(worst, fabs((double)y - exp(-(double)rate * log1p(exp((double)x)))));
    }
    report("scalar", "decay within 2e-7", worst < 2e-7, "off by %.3g", worst);
    enum { K = 5, V = 21 };
    float state[K * V], out[V], q[K], k[K], v[V], decay = 0.75f, beta = 0.5f;
    double s[K][V], want = 0, off = 0;
    for (int i = 0; i < K; i++) q[i] = random_float(PLAIN), k[i] = random_float(PLAIN);
    for (int j = 0; j < V; j++) v[j] = random_float(PLAIN);
    for (int i = 0; i < K * V; i++) s[i / V][i % V] = (double)(state[i] = random_float(PLAIN));
    scalar_kernels.delta(state, out, q, k, v, decay, beta, K, V);
    for (int j = 0; j < V; j++) {
        double said = 0;
        for (int i = 0; i < K; i++) said += (s[i][j] *= (double)decay) * (double)k[i];
        for (int i = 0; i < K; i++) s[i][j] += (double)k[i] * (double)beta * ((double)v[j] - said);
        want = 0;
        for (int i = 0; i < K; i++) {
            want += s[i][j] * (double)q[i];
            off = fmax(off, fabs(s[i][j] - (double)state[i * V + j]));
        }
        off = fmax(off, fabs(want - (double)out[j]));
    }
    report("scalar", "a step of the delta rule", off < 1e-5, "off by %.3g", off);
    scalar_kernels.unit(k, 2.0f, 0.0f, K);
    double length = 0;
    for (int i = 0; i < K; i++) length += (double)k[i] * (double)k[i];
    report("scalar", "unit vectors", fabs(length - 4) < 1e-6, "squared length %.9g, expected 4",
           length);
}

// step and mamba2 against their definitions in double precision.
static void test_mamba2(void) {
    double worst = 0;
    for (int i = -3000; i <= 3000; i++) {
        float x = (float)i * 0.01f, rate = 0.7f, y = x, decay;
        scalar_kernels.step(&y, &decay, &rate, 0.125f, 4.0f, 1);
        double want = fmin(fmax(log1p(exp((double)x)), 0.125), 4);
        worst = fmax(worst, fabs((double)y - want) / want);
        worst = fmax(worst, fabs((double)decay - exp(-(double)rate * want)));
    }
    report("scalar", "steps within 4e-7", worst < 4e-7, "off by %.3g", worst);
    enum { K = 5, V = 21 };
    float state[K * V], out[V], q[K], k[K], v[V], decay = 0.75f, step = 0.5f;
    double s[K][V], off = 0;
    for (int i = 0; i < K; i++) q[i] = random_float(PLAIN), k[i] = random_float(PLAIN);
    for (int j = 0; j < V; j++) v[j] = random_float(PLAIN);
    for (int i = 0; i < K * V; i++) s[i / V][i % V] = (double)(state[i] = random_float(PLAIN));
    scalar_kernels.mamba2(state, out, q, k, v, decay, step, K, V);
    for (int j = 0; j < V; j++) {
        double want = 0;
        for (int i = 0; i < K; i++) {
            s[i][j] = s[i][j] * (double)decay + (double)k[i] * (double)step * (double)v[j];
            want += s[i][j] * (double)q[i];
            off = fmax(off, fabs(s[i][j] - (double)state[i * V + j]));
        }
        off = fmax(off, fabs(want - (double)out[j]));
    }
    report("scalar", "a step of Mamba-2", off < 1e-5, "off by %.3g", off);
}

// Every f16 comes back from f32; a number between two of them goes to the nearer one, or to the
// even one.
static void test_f16(void) {
    int bad = 0;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double here = (double)f16_to_f32((uint16_t)h);
        double exact = h < 0x400 ? ldexp(h, -24) : ldexp((h & 0x3ff) | 0x400, (int)(h >> 10) - 25);
        bad += here != exact || f32_to_f16((float)here) != h ||
               f32_to_f16((float)-here) != (h | 0x8000);
        if (h == 0x7bff) continue;
        float middle = (float)((here + (double)f16_to_f32((uint16_t)(h + 1))) / 2);
        bad += f32_to_f16(middle) != h + (h & 1) || f32_to_f16(nextafterf(middle, 0)) != h ||
               f32_to_f16(nextafterf(middle, 1e6f)) != h + 1;
    }
    bad += f32_to_f16(1e30f) != 0x7bff || f32_to_f16(-INFINITY) != 0xfbff ||
           f32_to_f16(65519.0f) != 0x7bff;
    bad += !isinf(f16_to_f32(0x7c00)) || !isnan(f16_to_f32(0x7e00)) ||
           bits_of(f16_to_f32(0x8000)) != 0x80000000;
    report("scalar", "f16 conversions", bad == 0, "%d are wrong", bad);
}

static void test_bf16(void) {
    int bad = 0;
    for (int i = 0; i < 100000; i++) {
        float x = from_bits((random_bits() & 0x807fffff) | (uint32_t)between(1, 253) << 23);
        uint16_t out[BLOCK];
        scalar_kernels.to_bf16(out, &x, 1);
        double step = ldexp(1.0, ilogbf(x) - 7);
        double off = fabs((double)bf16_to_f32(out[0]) - (double)x);
        bad += off > step / 2 || (off == step / 2 && (out[0] & 1)) || out[1] != 0 ||
               out[BLOCK - 1] != 0;
    }
    report("scalar", "bf16 conversion", bad == 0, "%d are wrong", bad);
}

// Against the matrix itself: 1 or -1 as the bits that i and k share are even or odd in number.
static void test_turn(void) {
    float x[BLOCK], once[BLOCK], twice[BLOCK];
    double worst = 0;
    for (int i = 0; i < BLOCK; i++) x[i] = random_float(PLAIN);
    scalar_kernels.turn(once, x, 1.0f, BLOCK);
    scalar_kernels.turn(twice, once, 1.0f, BLOCK);
    for (int i = 0; i < BLOCK; i++) {
        double sum = 0;
        for (int k = 0; k < BLOCK; k++)
            sum += __builtin_popcount((unsigned)(i & k)) % 2 ? -(double)x[k] : (double)x[k];
        worst = fmax(worst, fmax(fabs((double)once[i] - sum),
                                 fabs((double)twice[i] / BLOCK - (double)x[i])));
    }
    report("scalar", "turn is a Hadamard transform", worst < 1e-5, "off by %.3g", worst);
}

static void test_q8(void) {
    double worst = 0;
    int bad = 0;
    for (int i = 0; i < 2000; i++) {
        int n = between(1, BLOCK);
        float *x = random_floats((size_t)n, PLAIN), scale, amax = 0;
        int8_t q[BLOCK];
        int32_t offset, sum = 0;
        scalar_kernels.to_q8(q, &scale, &offset, x, n, false);
        for (int k = 0; k < BLOCK; k++) {
            sum += q[k];
            bad += q[k] == -128 || (k >= n && q[k] != 0);
            if (k >= n) continue;
            amax = fmaxf(amax, fabsf(x[k]));
            worst = fmax(worst, fabs(q[k] * (double)scale - (double)x[k]) / (double)scale);
        }
        bad += offset != -128 * sum || fabsf(scale * 127.0f - amax) > 1e-6f * amax;
        free(x);
    }
    bool ok = bad == 0 && worst < 0.50002;
    report("scalar", "q8 activations within half a step", ok, "%d are wrong, off by %.6f steps",
           bad, worst);
}

// What --bench holds the others against: reading gives the exclusive or of all words, whatever the
// number of lines, and operations are counted by the step.
static void test_ceilings(const Kernels *table) {
    uint64_t words[8 * 300], expected = 0;
    bool reads = true, counts = true;
    for (int n = 0; n < 300; n++) {
        reads &= table->read((const uint8_t *)words, (size_t)n) == expected;
        for (int i = 8 * n; i < 8 * n + 8; i++) {
            words[i] = (uint64_t)random_bits() << 32 | random_bits();
            expected ^= words[i];
        }
    }
    report(table->name, "read", reads, "not the exclusive or of the words");
    for (int dtype = 0; dtype < N_DTYPES; dtype++) {
        double one = table->peak[dtype](1);
        counts &= one > 0 && table->peak[dtype](1000) == 1000 * one;
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

int main(void) {
    test_matmul_definition(&scalar_kernels);
    test_mix_keys_definition();
    test_mix_q4_definition();
    test_to_q4_definition();
    test_delta_rule();
    test_mamba2();
    test_exp();
    test_sincos();
    test_act();
    test_expm1_and_tanh();
    test_f16();
    test_bf16();
    test_turn();
    test_q8();
    test_ceilings(&scalar_kernels);
#ifdef EMULATED
    test_table(&amx_kernels);
    test_table(&avxvnni_kernels);
#endif
    static const char *const vector_tables[] = {"amx", "avx512bf16", "avx512",
                                                "avxvnni", "avx2", "neon"};
    for (size_t i = 0; i < sizeof vector_tables / sizeof *vector_tables; i++) {
        const char *why;
        const Kernels *table = kernels_choose(vector_tables[i], &why);
        if (table) test_table(table);
        else printf("ok %s # skipped: %s\n", vector_tables[i], why);
    }
    return failures != 0;
}
