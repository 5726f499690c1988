// The scalar kernels against their definitions in double precision: mixes of values and keys, q4
// blocks, conversions, exp, sin, cos, the activations, a step of the delta rule and one of Mamba-2.
// Its products are checked by test_kernels.c.
#include "tests/c/kernel_checks.h"

// ---- mixes and q4 blocks ----

// Of panels read as docs/format.md has them.
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

// ---- accuracy ----

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
    const Steps steps = {1, K, V, q, k, v, 0, &decay, 0, false, &beta, 0, out, 0};
    scalar_kernels.delta(state, &steps);
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
    float state[K * V], out[V], q[K], k[K], v[V], decay = 0.75f, step = 0.5f, skip = 0.25f;
    double s[K][V], off = 0;
    for (int i = 0; i < K; i++) q[i] = random_float(PLAIN), k[i] = random_float(PLAIN);
    for (int j = 0; j < V; j++) v[j] = random_float(PLAIN);
    for (int i = 0; i < K * V; i++) s[i / V][i % V] = (double)(state[i] = random_float(PLAIN));
    const Steps steps = {1, K, V, q, k, v, 0, &decay, 0, false, &step, 0, out, 0};
    scalar_kernels.mamba2(state, &steps, skip);
    for (int j = 0; j < V; j++) {
        double want = (double)skip * (double)v[j];
        for (int i = 0; i < K; i++) {
            s[i][j] = s[i][j] * (double)decay + (double)k[i] * (double)step * (double)v[j];
            want += s[i][j] * (double)q[i];
            off = fmax(off, fabs(s[i][j] - (double)state[i * V + j]));
        }
        off = fmax(off, fabs(want - (double)out[j]));
    }
    report("scalar", "a step of Mamba-2", off < 1e-5, "off by %.3g", off);
}

// The same of mamba, on some of the columns.
static void test_mamba(void) {
    enum { K = 5, V = 29, COLUMNS = 27 };
    float state[K * V], rate[K * V], out[V], q[K], k[K], v[V], step[V], skip[V];
    double s[K][V], off = 0;
    for (int i = 0; i < K; i++) q[i] = random_float(PLAIN), k[i] = random_float(PLAIN);
    for (int j = 0; j < V; j++) v[j] = random_float(PLAIN), skip[j] = random_float(PLAIN);
    for (int j = 0; j < V; j++) step[j] = 4 * random_float(PLAIN), out[j] = -7;
    for (int i = 0; i < K * V; i++) rate[i] = fabsf(random_float(PLAIN));
    for (int i = 0; i < K * V; i++) s[i / V][i % V] = (double)(state[i] = random_float(PLAIN));
    scalar_kernels.mamba(state, out, q, k, v, step, rate, skip, K, V, COLUMNS);
    for (int j = 0; j < V; j++) {
        double d = log1p(exp((double)step[j])), want = (double)skip[j] * (double)v[j];
        for (int i = 0; i < K && j < COLUMNS; i++) {
            s[i][j] *= exp(-(double)rate[i * V + j] * d);
            s[i][j] += (double)k[i] * d * (double)v[j];
            want += s[i][j] * (double)q[i];
        }
        off = fmax(off, fabs((j < COLUMNS ? want : -7) - (double)out[j]));
        for (int i = 0; i < K; i++) off = fmax(off, fabs(s[i][j] - (double)state[i * V + j]));
    }
    report("scalar", "a step of Mamba-1", off < 1e-5, "off by %.3g", off);
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
    scalar_kernels.hadamard(once, x, 1.0f, BLOCK);
    scalar_kernels.hadamard(twice, once, 1.0f, BLOCK);
    for (int i = 0; i < BLOCK; i++) {
        double sum = 0;
        for (int k = 0; k < BLOCK; k++)
            sum += __builtin_popcount((unsigned)(i & k)) % 2 ? -(double)x[k] : (double)x[k];
        worst = fmax(worst, fmax(fabs((double)once[i] - sum),
                                 fabs((double)twice[i] / BLOCK - (double)x[i])));
    }
    report("scalar", "hadamard is the Hadamard transform", worst < 1e-5, "off by %.3g", worst);
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

int main(void) {
    test_mix_keys_definition();
    test_mix_q4_definition();
    test_to_q4_definition();
    test_delta_rule();
    test_mamba2();
    test_mamba();
    test_exp();
    test_sincos();
    test_act();
    test_expm1_and_tanh();
    test_f16();
    test_bf16();
    test_turn();
    test_q8();
    return failures != 0;
}
