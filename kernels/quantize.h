// Rows to blocks of q8 and q4. An instruction set's file defines look_up, dots and turn_block (or
// includes tiles.h, which has it), then includes this:
//
//   turn_block(out, x)           H x of a block (kernels.h)
//   look_up(out, table, index)   out[i] = table[index[i]], index[i] < 32, for Q4_AT_ONCE numbers
//   dots(out, x, x_step, y, y_step, n)
//                                out[4 b + t] = the sum, modulo 2^32, of the 32 products
//                                x[t x_step + 32 b ..] y[t y_step + 32 b ..], for b < 2, t < n <= 4
#ifndef QUANTIZE_H
#define QUANTIZE_H

#include "lanes.h"

static void lanes_turn(float *out, const float *x, float scale, int n) {
    for (int d = 0; d < n; d += BLOCK) {
        float block[BLOCK];
        for (int i = 0; i < BLOCK; i++) block[i] = x[d + i] * scale;
        turn_block(out + d, block);
    }
}

// ---- q8 ----

// n numbers: a block, or a part of one.
static inline void to_bytes(int8_t *restrict q, float *restrict scale, int32_t *restrict offset,
                            const float *restrict x, int n) {
    float amax = largest(x, n), inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    *offset = -128 * round_bytes(q, x, inverse, n);
    *scale = amax / 127.0f;
}

// Block b of n numbers, padded with zeros in `block` where x ends inside it.
static inline const float *whole_block(float block[BLOCK], const float *x, int b, int n) {
    const int left = n - b * BLOCK;
    if (left >= BLOCK) return x + b * BLOCK;
    memset(block, 0, BLOCK * sizeof *block);
    return memcpy(block, x + b * BLOCK, sizeof *x * (size_t)left);
}

static void lanes_to_q8(int8_t *restrict q, float *restrict scale, int32_t *restrict offset,
                        const float *restrict x, int n, bool turned) {
    float block[BLOCK];
    for (int b = 0; b * BLOCK < n; b++) {
        const float *from = whole_block(block, x, b, n);
        if (turned) {
            turn_block(block, from);
            from = block;
        }
        to_bytes(q + b * BLOCK, scale + b, offset + b, from, BLOCK);
        if (turned) scale[b] *= TURNED_X;
    }
}

enum { PART = BLOCK / 2 };

// Part `at` of a row, rounded twice if its scale is above `limit`. Returns the sum of what it is
// rounded to.
static inline float round_part(const Int8Rows *out, int at, const float *restrict x, float limit) {
    int8_t *q = out->q + at * PART;
    to_bytes(q, out->scale + at, out->offset + at, x, PART);
    const float scale = out->scale[at], sum = scale * (float)(out->offset[at] / -128);
    out->rest_scale[at] = 0.0f;
    if (!(scale > limit)) return sum;
    float rest[PART];
    for (int i = 0; i < PART; i++) rest[i] = fmaf(-scale, (float)q[i], x[i]);
    to_bytes(out->rest + at * PART, out->rest_scale + at, out->rest_offset + at, rest, PART);
    return sum + out->rest_scale[at] * (float)(out->rest_offset[at] / -128);
}

static void lanes_to_parts(const Int8Rows *out, const float *restrict x, int n) {
    const float limit = TWICE_ABOVE / 127.0f * sqrtf(sum_squares(x, 0.0f, n) / (float)n);
    float block[BLOCK];
    for (int b = 0; b * BLOCK < n; b++) {
        const float *from = whole_block(block, x, b, n);
        const float first = round_part(out, 2 * b, from, limit);
        out->sum[b] = first + round_part(out, 2 * b + 1, from + PART, limit);
    }
}

// ---- q4 ----

// The type of codes while they are chosen: bytes, or 16 bits where they are looked up as fast.
#ifdef Q4_WORDS
typedef uint16_t Q4Code;
typedef int16_t Q4Number;
#else
typedef uint8_t Q4Code;
typedef int8_t Q4Number;
#endif

// A block in "parts", integers of which the largest is Q4_PARTS or -Q4_PARTS. A NaN is any 16 bits.
enum { Q4_PARTS = 4095 };

static inline float parts_in(float amax) { return amax > 0.0f ? (float)Q4_PARTS / amax : 0.0f; }

static inline int16_t part_of(float x, float inverse) {  // as in round_bytes
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

// H x / 4 in parts, all negated if the largest is negative. Returns the value of a part.
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
    uint32_t sign = below << 31;  // no branch, which would be mispredicted half the time
    to_parts(out, turned, from_bits(bits_of(inverse) ^ sign));
    return from_bits(bits_of(amax / (float)Q4_PARTS) ^ sign);
}

// The largest number of a block is tried as 127, 114, 138 and 124, since the block's other numbers
// may then be closer to codes' numbers. Each trial has a table from parts to codes, with a cell for
// every 256 parts. Limits between codes are further apart, so a cell has at most one: cell i begins
// at part 256 i - 4096 with codes[i]; above its place limits[i] + 128 is the next code.
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

// Q4Trial: a trial's table. Q4Places: the cells of parts, or of their negatives, and the places in
// them. q4_codes: the codes nearest to these, and the codes' numbers. All are for two blocks at
// once, which keeps the processor busier.
#ifdef Q4_WORDS
#define TRIAL(n) {EACH_CELL(CELL_WORD, n)}
typedef struct {  // the upper byte of words[i] plus the place in the cell is the code
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

// How much more an error along to_q4's direction counts than one across it.
#define Q4_EMPHASIS 16.0f

// <w, q> and <q, q> of trial t of block b are at 4 b + t; best[b] is where the block's best are.
enum { Q4_CHOICES = 2 * Q4_TRIALS };
typedef struct {
    float wq[Q4_CHOICES], qq[Q4_CHOICES];
    uint32_t best[2];
} Q4Choice;

// Chooses the best trial of each block. parts: of w and of the direction u; q: the numbers of the
// trials' codes. With <x, y> = x.y + c (x.u)(u.y), the scale that brings q closest to w is
// <w, q> / <q, q>, and it reduces the error <w, w> by <w, q>^2 / <q, q>.
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
        // Positive floats are ordered as integers; the last two bits hold the trial.
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

// out = the sum of n_rows rows of n numbers, padded with zeros.
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

// The members of Kernels that this file implements.
#define QUANTIZE_KERNELS                                                                           \
    .to_q8 = lanes_to_q8, .to_parts = lanes_to_parts, .to_q4 = lanes_to_q4, .hadamard = lanes_turn

#endif
