// heads_pack: float32 rows as the panels of a checkpoint in a type of our own (docs/format.md).
// These are the bytes of exporter/quantize/panels.py: every sum goes in the same order, and a tie
// the same way.
#include <math.h>
#include <string.h>

#include "heads.h"
#include "kernels/blocks.h"
#include "math/dtypes.h"
#include "system/system.h"

#define F16_MAX 65504.0f
#define LEAST_SHARED 0x1p-14f  // below it f16 has no 11 bits
// Inlined, so that the compiler makes a loop for each type.
#define INLINED static inline __attribute__((always_inline))

enum { MOST_TRIALS = 10 };

// How weights over their scale become numbers: those of the type's list, or integers from least to
// most; and the numbers that the largest weight of a block is tried as, with its sign or without.
typedef struct {
    int least, most;
    bool signless;
    int n_trials;
    float trials[MOST_TRIALS];
} Rounded;

static const Rounded ROUNDED[N_DTYPES] = {
    [Q8] = {-127, 127, true, 7, {127.4f, 127, 126.5f, 126, 125.5f, 125, 124.5f}},
    [Q4] = {0, 0, false, 10, {-127, -118, -110, -136, -146, 114, 106, 99, 122, 131}},
    [HEADS_Q2] = {0, 0, false, 10, {-30, -28, -26, -32, -34, 22, 20.5f, 19, 23.5f, 25}},
    [HEADS_Q3] = {0, 0, false, 10, {-29, -27, -25, -31, -33.5f, 24, 22.5f, 21, 25.5f, 27.5f}},
    [HEADS_Q5] = {-16, 15, false, 8, {-16, -15.4f, -14.8f, -16.6f, 15, 14.4f, 13.8f, 15.6f}},
    [HEADS_Q6] = {-32, 31, false, 4, {-32, -30.5f, 31, 29.5f}},
};

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

static void find_nearest(Nearest *to, BlockForm form) {
    const int8_t *numbers = form.numbers;
    int last = (1 << form.bits) - 1;
    for (int i = 0, code = 0; i <= 2 * MIDDLE; i++) {
        while (code < last && i - MIDDLE > numbers[code] + numbers[code + 1]) code++;
        to->codes[i] = (uint8_t)code;
        to->numbers[i] = numbers[code];
    }
}

// The integers nearest to w per_scale, the even one of two, from least to most. The sum with 1.5 *
// 2^23 rounds |x| < 2^22, and its lower bits are the integer.
static inline void integers(int32_t *restrict q, const float *restrict w,
                            const float *restrict per_scale, int32_t least, int32_t most) {
    for (int i = 0; i < GROUP; i++) {
        int32_t n = (int32_t)(bits_of(w[i] * per_scale[i] + 0x1.8p23f) - bits_of(0x1.8p23f));
        n = n < most ? n : most;
        q[i] = n > least ? n : least;
    }
}

// For each column, the same: a row's number.
static inline void for_group(float *restrict out, const float *restrict row, float times) {
    for (int i = 0; i < GROUP; i++) out[i] = row[i % LANES] * times;
}

// q: the numbers that come nearest to the weights when the scale multiplies them. Of a list, n has
// their places in it, and per_scale is twice as large.
INLINED void round_group(float *restrict q, int32_t *restrict n, const float *restrict w,
                         const float *restrict per_scale, Dtype type, const Nearest *list) {
    const bool listed = BLOCK_FORMS[type].numbers;
    integers(n, w, per_scale, listed ? -MIDDLE : ROUNDED[type].least,
             listed ? MIDDLE : ROUNDED[type].most);
    for (int i = 0; i < GROUP; i++) q[i] = listed ? list->numbers[n[i] + MIDDLE] : (float)n[i];
}

// 1 / x, and 0 where x is so small that a scale of it is none.
static inline float inverse(float x) { return fabsf(x) > 0x1p-100f ? 1 / x : 0; }

// For given numbers q of a block w, the best scale is w.q / q.q, which makes its error smaller by
// (w.q)^2 / q.q. w.q is four sums, each of which takes the later of four products first.
INLINED void fit(float *restrict scale, float *restrict gain, Group *w, const float *per_scale,
                 Dtype type, const Nearest *list) {
    Group sums = {0}, norm = {0}, q, per_scales;
    int32_t n[GROUP];
    for_group(per_scales, per_scale, BLOCK_FORMS[type].numbers ? 2 : 1);
    for (int step = 0; step < BLOCK / 4; step++) {
        const float *at = w[step ^ 3];
        round_group(q, n, at, per_scales, type, list);
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
INLINED bool best_scales(float *restrict scale, Group *w, Dtype type, const Nearest *list) {
    float largest[LANES], per_scale[LANES], s[LANES], gain[LANES], best[LANES];
    if (!largest_of(largest, w)) return false;
    for (int i = 0; i < LANES; i++) {
        largest[i] = inverse(ROUNDED[type].signless ? fabsf(largest[i]) : largest[i]);
        best[i] = -1;
        scale[i] = 0;
    }
    for (int trial = 0; trial < ROUNDED[type].n_trials; trial++) {
        float becomes = ROUNDED[type].trials[trial];
        for (int i = 0; i < LANES; i++) per_scale[i] = becomes * largest[i];
        fit(s, gain, w, per_scale, type, list);
        for (int i = 0; i < LANES; i++) {
            bool better = gain[i] > best[i];
            best[i] = better ? gain[i] : best[i];
            scale[i] = better ? s[i] : scale[i];
        }
    }
    if (!to_f16(scale)) return false;
    for (int i = 0; i < LANES; i++) per_scale[i] = inverse(scale[i]);
    fit(scale, gain, w, per_scale, type, list);
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

// Writes the scales of n blocks, which may share an f16, and leaves in scale what was written.
// Returns false if one is too large.
static bool put_scales(uint8_t *scales, uint8_t *shared, BlockForm form, int n,
                       float (*scale)[LANES]) {
    float largest[LANES] = {0};
    for (int b = 0; b < n && form.scales == SCALE; b++)
        for (int i = 0; i < LANES; i++) {
            uint16_t half = f32_to_f16(scale[b][i]);
            memcpy(scales + 2 * (b * LANES + i), &half, sizeof half);
        }
    if (form.scales == SCALE) return true;
    for (int b = 0; b < n; b++)
        for (int i = 0; i < LANES; i++) {
            float size = fabsf(scale[b][i]) * (128 / 127.0f);
            largest[i] = size > largest[i] ? size : largest[i];
        }
    if (!to_f16(largest)) return false;
    for (int i = 0; i < LANES; i++) {
        largest[i] = fmaxf(largest[i], LEAST_SHARED);
        uint16_t half = f32_to_f16(largest[i]);
        memcpy(shared + 2 * i, &half, sizeof half);
        float unit = largest[i] / 128, per_unit = inverse(unit);
        for (int b = 0; b < n; b++) {
            float times = fminf(fmaxf(rintf(scale[b][i] * per_unit), -127), 127);
            scales[b * LANES + i] = (uint8_t)(int8_t)times;
            scale[b][i] = times * unit;
        }
    }
    return true;
}

// Adds the codes n of a group of four columns to their block, cut into parts whose widths divide 8,
// the lowest bits first (docs/format.md).
INLINED void put_codes(uint8_t *codes, const int32_t *n, int group, int bits) {
    for (int width = 8, low = 0; width; width /= 2) {
        if (!(bits & width)) continue;
        int in_byte = 8 / width;
        uint8_t *at = codes + (low + group / in_byte) * GROUP;
        for (int i = 0; i < LANES; i++)
            for (int c = 0; c < 4; c++)
                at[4 * i + c] |= (uint8_t)((n[c * LANES + i] >> low & ((1 << width) - 1))
                                           << group % in_byte * width);
        low += width;
    }
}

// Writes a block of 16 rows in numbers of these scales, and adds its squared error. codes are zero.
INLINED void put_block(uint8_t *codes, const float *scale, Group *w, Dtype type,
                       const Nearest *list, double *error) {
    const BlockForm form = BLOCK_FORMS[type];
    float per_scale[LANES];
    Group per_scales, scale_of, q, sum = {0};
    int32_t n[GROUP];
    for (int i = 0; i < LANES; i++) per_scale[i] = inverse(scale[i]);
    for_group(per_scales, per_scale, form.numbers ? 2 : 1);
    for_group(scale_of, scale, 1);
    for (int g = 0; g < BLOCK / 4; g++) {
        round_group(q, n, w[g], per_scales, type, list);
        for (int i = 0; i < GROUP; i++) {
            float e = q[i] * scale_of[i] - w[g][i];
            sum[i] += e * e;
        }
        for (int i = 0; i < GROUP; i++)
            n[i] = form.numbers ? list->codes[n[i] + MIDDLE] : n[i] - form.least;
        put_codes(codes, n, g, form.bits);
    }
    for (int i = 0; i < GROUP; i++) *error += sum[i];
}

// Some rows of weights, 16 at most, and the panel that they become.
typedef struct {
    const float *weights;
    size_t rows, cols;
    uint8_t *panel;
} Slab;

// Packs a panel, as many blocks at a time as share an f16. Returns false if a weight is too large
// or no number.
INLINED bool pack_panel(const Slab *r, Dtype type, const Nearest *list, double *error) {
    const BlockForm form = BLOCK_FORMS[type];
    size_t n_blocks = blocks_of((int)r->cols), stride = r->cols;
    Blocks w[SHARING];
    float scale[SHARING][LANES];
    for (size_t first = 0; first < n_blocks; first += SHARING) {
        int n = n_blocks - first < SHARING ? (int)(n_blocks - first) : SHARING;
        for (int i = 0; i < n; i++) {
            size_t at = (first + (size_t)i) * BLOCK, left = r->cols - at;
            hadamard(w[i], r->weights + at, r->rows, left < BLOCK ? left : BLOCK, stride);
            if (!best_scales(scale[i], w[i], type, list)) return false;
        }
        uint8_t *codes = r->panel + first * code_bytes(form);
        uint8_t *scales = r->panel + (scales_of(r->panel, form, n_blocks, first) - r->panel);
        uint8_t *shared = r->panel + (shared_of(r->panel, form, n_blocks, first) - r->panel);
        if (!put_scales(scales, shared, form, n, scale)) return false;
        for (int i = 0; i < n; i++)
            put_block(codes + (size_t)i * code_bytes(form), scale[i], w[i], type, list, error);
    }
    return true;
}

typedef bool PackFn(const Slab *r, const Nearest *list, double *error);

#define PACK(name, type)                                                                           \
    static bool pack_##name(const Slab *r, const Nearest *list, double *error) {                   \
        return pack_panel(r, type, list, error);                                                   \
    }
PACK(q8, Q8)
PACK(q6, HEADS_Q6)
PACK(q5, HEADS_Q5)
PACK(q4, Q4)
PACK(q3, HEADS_Q3)
PACK(q2, HEADS_Q2)

static PackFn *const packs[N_DTYPES] = {[Q8] = pack_q8,       [Q4] = pack_q4,
                                        [HEADS_Q2] = pack_q2, [HEADS_Q3] = pack_q3,
                                        [HEADS_Q5] = pack_q5, [HEADS_Q6] = pack_q6};

int heads_pack(const char *name, const float *weights, size_t rows, size_t cols, void *panels,
               size_t size, double *error, heads_error *err) {
    if (need(name, "a dtype", err) || need(weights, "weights", err) ||
        need(panels, "memory for panels", err))
        return -1;
    Dtype dtype = dtype_of_name(name);
    if (dtype == N_DTYPES || !packs[dtype])
        return fail(err, "weights cannot be packed as %s: q8, q6, q5, q4, q3 or q2", name);
    size_t n_panels = rows / LANES + (rows % LANES != 0);
    bool fits = cols <= INT_MAX - BLOCK && (!rows || cols <= SIZE_MAX / 4096 / rows);
    if (!fits || size != n_panels * panel_bytes(dtype, (int)cols))
        return fail(err, "%zu rows of %zu %s weights do not fill %zu bytes of panels", rows, cols,
                    name, size);
    size_t panel = panel_bytes(dtype, (int)cols);
    Nearest list;
    if (BLOCK_FORMS[dtype].numbers) find_nearest(&list, BLOCK_FORMS[dtype]);
    double sum = 0;
    memset(panels, 0, size);
    for (size_t row = 0; row < rows; row += LANES) {
        size_t left = rows - row;
        Slab r = {weights + row * cols, left < LANES ? left : LANES, cols,
                  (uint8_t *)panels + row / LANES * panel};
        if (!packs[dtype](&r, &list, &sum))
            return fail(err, "a weight in rows %zu to %zu is not finite, or too large for %s", row,
                        row + LANES - 1, name);
    }
    if (error) *error = sum / (BLOCK * TURNED_W * TURNED_W);
    return 0;
}
