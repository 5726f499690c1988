// heads_pack: float32 rows as the q8 or q4 panels of a checkpoint (docs/format.md). These are the
// bytes of exporter/quantize/panels.py: every sum goes in the same order, and a tie the same way.
#include <math.h>
#include <string.h>

#include "heads.h"
#include "kernels/blocks.h"
#include "math/dtypes.h"
#include "system/system.h"

#define F16_MAX 65504.0f
// Inlined, so that the compiler makes a loop for q8, whose q4 is NULL, and another for q4.
#define INLINED static inline __attribute__((always_inline))

// Numbers that the largest weight of a block is tried as.
static const float Q8_TRIALS[] = {127.4f, 127, 126.5f, 126, 125.5f, 125, 124.5f};
static const float Q4_TRIALS[] = {-127, -118, -110, -136, -146, 114, 106, 99, 122, 131};

enum { MIDDLE = 256 };  // where Nearest has 0

// For a weight over its scale, doubled, rounded and shifted: the nearest code and its number. The
// limits between codes are halves, so doubling loses nothing but ties, of which the lower wins.
typedef struct {
    uint8_t codes[2 * MIDDLE + 1];
    float numbers[2 * MIDDLE + 1];
} Nearest;

// Four neighbours of a block in each row of a panel, a column's numbers side by side; and a block
// of each row. What is done to one row is done to all at once.
enum { GROUP = 4 * LANES };
typedef float Group[GROUP];
typedef Group Blocks[BLOCK / 4];

static void find_nearest(Nearest *to) {
    for (int i = 0, code = 0; i <= 2 * MIDDLE; i++) {
        while (code < 15 && i - MIDDLE > Q4_CODES[code] + Q4_CODES[code + 1]) code++;
        to->codes[i] = (uint8_t)code;
        to->numbers[i] = Q4_CODES[code];
    }
}

// The integers nearest to w per_scale, the even one of two, from -most to most. The sum with 1.5 *
// 2^23 rounds |x| < 2^22, and its lower bits are the integer.
static inline void integers(int32_t *restrict q, const float *restrict w,
                            const float *restrict per_scale, int32_t most) {
    for (int i = 0; i < GROUP; i++) {
        int32_t n = (int32_t)(bits_of(w[i] * per_scale[i] + 0x1.8p23f) - bits_of(0x1.8p23f));
        n = n < most ? n : most;
        q[i] = n > -most ? n : -most;
    }
}

// For each column, the same: a row's number.
static inline void for_group(float *restrict out, const float *restrict row, float times) {
    for (int i = 0; i < GROUP; i++) out[i] = row[i % LANES] * times;
}

// q: the numbers that come nearest to the weights when the scale multiplies them. Of q4, n has
// their places in Nearest, and per_scale is twice as large.
static inline void round_group(float *restrict q, int32_t *restrict n, const float *restrict w,
                               const float *restrict per_scale, const Nearest *q4) {
    integers(n, w, per_scale, q4 ? MIDDLE : 127);
    for (int i = 0; i < GROUP; i++) q[i] = q4 ? q4->numbers[n[i] + MIDDLE] : (float)n[i];
}

// 1 / x, and 0 where x is so small that a scale of it is none.
static inline float inverse(float x) { return fabsf(x) > 0x1p-100f ? 1 / x : 0; }

// For given numbers q of a block w, the best scale is w.q / q.q, which makes its error smaller by
// (w.q)^2 / q.q. w.q is four sums, each of which takes the later of four products first.
INLINED void fit(float *restrict scale, float *restrict gain, Group *w, const float *per_scale,
                 const Nearest *q4) {
    Group sums = {0}, norm = {0}, q, per_scales;
    int32_t n[GROUP];
    for_group(per_scales, per_scale, q4 ? 2 : 1);
    for (int step = 0; step < BLOCK / 4; step++) {
        const float *at = w[step ^ 3];
        round_group(q, n, at, per_scales, q4);
        for (int i = 0; i < GROUP; i++) {
            sums[i] += at[i] * q[i];
            norm[i] += q[i] * q[i];
        }
    }
    for (int i = 0; i < LANES; i++) {
        const float *s = sums + i, *r = norm + i;
        float product = (s[0] + s[LANES]) + (s[2 * LANES] + s[3 * LANES]);
        float square = (r[0] + r[LANES]) + (r[2 * LANES] + r[3 * LANES]);  // of integers: exact
        square = square > 1 ? square : 1;
        scale[i] = product / square;
        gain[i] = product * product / square;
    }
}

// The largest weight of each block, of equals the first. Returns false if one is too large, or no
// number.
static bool largest_of(float *largest, Group *w) {
    int32_t most[GROUP] = {0}, limit = (int32_t)bits_of(127 * F16_MAX);  // ordered like magnitudes
    for (int g = 0; g < BLOCK / 4; g++)
        for (int i = 0; i < GROUP; i++) {
            int32_t size = (int32_t)bits_of(fabsf(w[g][i]));
            most[i] = size > most[i] ? size : most[i];
        }
    for (int i = 0; i < LANES; i++) {
        for (int c = i + LANES; c < GROUP; c += LANES)
            if (most[c] > most[i]) most[i] = most[c];
        if (most[i] > limit) return false;
        const float *at = w[0] + i;
        while ((int32_t)bits_of(fabsf(*at)) != most[i]) at += LANES;
        largest[i] = *at;
    }
    return true;
}

// To the nearest scale in f16. Returns false if one is too large.
static bool to_f16(float *scale) {
    bool fits = true;
    for (int i = 0; i < LANES; i++) {
        fits &= fabsf(scale[i]) <= F16_MAX;
        scale[i] = f16_to_f32(f32_to_f16(scale[i]));
    }
    return fits;
}

// The scales that bring numbers closest to the blocks. The best trial's scales give the last
// numbers, which give the last scales. Returns false if a weight is too large or no number.
INLINED bool best_scales(float *restrict scale, Group *w, const Nearest *q4) {
    float largest[LANES], per_scale[LANES], s[LANES], gain[LANES], best[LANES];
    if (!largest_of(largest, w)) return false;
    for (int i = 0; i < LANES; i++) {
        largest[i] = inverse(q4 ? largest[i] : fabsf(largest[i]));
        best[i] = -1;
        scale[i] = 0;
    }
    for (int trial = 0; trial < (q4 ? 10 : 7); trial++) {
        float becomes = (q4 ? Q4_TRIALS : Q8_TRIALS)[trial];
        for (int i = 0; i < LANES; i++) per_scale[i] = becomes * largest[i];
        fit(s, gain, w, per_scale, q4);
        for (int i = 0; i < LANES; i++) {
            bool better = gain[i] > best[i];
            best[i] = better ? gain[i] : best[i];
            scale[i] = better ? s[i] : scale[i];
        }
    }
    if (!to_f16(scale)) return false;
    for (int i = 0; i < LANES; i++) per_scale[i] = inverse(scale[i]);
    fit(scale, gain, w, per_scale, q4);
    return to_f16(scale);
}

// H w / 4 of up to 32 weights of up to 16 rows.
static void hadamard(Group *out, const float *weights, size_t rows, size_t cols, size_t stride) {
    float *block = out[0];  // [BLOCK][LANES]
    memset(block, 0, sizeof(Blocks));
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < cols; k++) block[k * LANES + i] = weights[i * stride + k];
    for (int step = BLOCK / 2 * LANES; step >= LANES; step /= 2)
        for (int begin = 0; begin < BLOCK * LANES; begin += 2 * step) {
            float *restrict first = block + begin, *restrict second = first + step;
            for (int i = 0; i < step; i++) {
                float a = first[i], b = second[i];
                first[i] = a + b;
                second[i] = a - b;
            }
        }
    for (int i = 0; i < BLOCK * LANES; i++) block[i] *= TURNED_W;
}

// Writes a block of 16 rows, and adds its squared error. codes are zero.
INLINED bool pack_blocks(uint8_t *codes, uint8_t *scales, Group *w, const Nearest *q4,
                         double *error) {
    float scale[LANES], per_scale[LANES];
    Group per_scales, scale_of, q, sum = {0};
    int32_t n[GROUP];
    if (!best_scales(scale, w, q4)) return false;
    for (int i = 0; i < LANES; i++) {
        uint16_t half = f32_to_f16(scale[i]);
        memcpy(scales + 2 * i, &half, sizeof half);
        per_scale[i] = inverse(scale[i]);
    }
    for_group(per_scales, per_scale, q4 ? 2 : 1);
    for_group(scale_of, scale, 1);
    for (int g = 0; g < BLOCK / 4; g++) {
        round_group(q, n, w[g], per_scales, q4);
        for (int i = 0; i < GROUP; i++) {
            float e = q[i] * scale_of[i] - w[g][i];
            sum[i] += e * e;
        }
        for (int i = 0; i < GROUP; i++)
            n[i] = q4 ? q4->codes[n[i] + MIDDLE] << g % 2 * 4 : n[i] + 128;
        for (int i = 0; i < LANES; i++) {
            uint8_t *out = codes + (q4 ? g / 2 : g) * GROUP + 4 * i;
            for (int c = 0; c < 4; c++) out[c] |= (uint8_t)n[c * LANES + i];
        }
    }
    for (int i = 0; i < GROUP; i++) *error += sum[i];
    return true;
}

// Packs a block for one type.
typedef bool PackFn(uint8_t *codes, uint8_t *scales, Group *w, const Nearest *q4, double *error);

static bool pack_q8(uint8_t *codes, uint8_t *scales, Group *w, const Nearest *q4, double *error) {
    return pack_blocks(codes, scales, w, NULL, error);
}

static bool pack_q4(uint8_t *codes, uint8_t *scales, Group *w, const Nearest *q4, double *error) {
    return pack_blocks(codes, scales, w, q4, error);
}

static PackFn *const packs[N_DTYPES] = {[Q8] = pack_q8, [Q4] = pack_q4};

int heads_pack(const char *name, const float *weights, size_t rows, size_t cols, void *panels,
               size_t size, double *error, heads_error *err) {
    if (need(name, "a dtype", err) || need(weights, "weights", err) ||
        need(panels, "memory for panels", err))
        return -1;
    Dtype dtype = dtype_of_name(name);
    if (dtype == N_DTYPES || !packs[dtype])
        return fail(err, "weights cannot be packed as %s: q8 or q4", name);
    size_t n_panels = rows / LANES + (rows % LANES != 0);
    bool fits = cols <= INT_MAX - BLOCK && (!rows || cols <= SIZE_MAX / 4096 / rows);
    if (!fits || size != n_panels * panel_bytes(dtype, (int)cols))
        return fail(err, "%zu rows of %zu %s weights do not fill %zu bytes of panels", rows, cols,
                    name, size);
    size_t n_blocks = blocks_of((int)cols), panel = panel_bytes(dtype, (int)cols);
    size_t block = code_bytes(BLOCK_FORMS[dtype]);
    Nearest nearest;
    find_nearest(&nearest);
    double sum = 0;
    memset(panels, 0, size);
    for (size_t row = 0; row < rows; row += LANES) {
        uint8_t *at = (uint8_t *)panels + row / LANES * panel;
        for (size_t b = 0; b < n_blocks; b++) {
            size_t left = cols - b * BLOCK, below = rows - row;
            uint8_t *scales = at + block * n_blocks + 2 * LANES * b;
            Blocks w;
            hadamard(w, weights + row * cols + b * BLOCK, below < LANES ? below : LANES,
                 left < BLOCK ? left : BLOCK, cols);
            if (!packs[dtype](at + block * b, scales, w, &nearest, &sum))
                return fail(err, "a weight in rows %zu to %zu is not finite, or too large for %s",
                            row, row + LANES - 1, name);
        }
    }
    if (error) *error = sum / (BLOCK * TURNED_W * TURNED_W);
    return 0;
}
