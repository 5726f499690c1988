// The products and the mix, written once over vectors of 16 lanes. An instruction set's file
// defines the vectors, then includes this:
//
//   INLINE                         static inline, and always so
//   Floats, Ints                   16 lanes of f32, of i32
//   Bytes                          4 k of 16 rows of q8, in whatever form v_dot likes
//   v_zero, v_set1, v_add, v_mul   and v_fma(a, b, c) = a * b + c, rounded once
//   v_load, v_store                16 floats, at any address
//   v_load_f16, v_load_i8          16 numbers, converted exactly
//   v_load_bf16(p, odd)            the even or the odd of 32 bf16, converted
//   v_swap(v, h)                   lane i ^ h in lane i, for h = 8, 4, 2, 1
//   v_set1_bf16(p, odd)            the first or the second of two bf16 in every lane
//   v_load_q8(w, p)                128 bytes of q8, two groups of 4 k, to w[0] and w[1]
//   v_load_q4(w, p, numbers)       the same from 64 bytes of four-bit codes, for a number each
//   v_load_codes(w, low, high, g, bits, numbers)
//                                  codes of groups g and g + 1, as they are: their lowest four (of
//                                  three and fewer: two) bits from 64 bytes, and the others from
//                                  `high`, which has such bits of all groups of the block; or,
//                                  unless it is NULL, 32 + numbers[code]
//   v_load_bytes(w, p)             two groups of codes, a byte each
//   Pairs, v_load_pairs, v_set1_pair, v_dot_bf16(sum, w, x)
//                                  only with BF16_DOT: 16 pairs of bf16, one pair in every lane,
//                                  and sum + the products of pairs in the processor's own rounding
//   v_dot_start, v_dot, v_dot_end  offset + the sum of products of 4, then as float; an instruction
//                                  set that takes the weights signed ignores the offset
//   v_dot_numbers                  v_dot of one row and of weights above -128; may be left out
//   v_start(n)                     n in every lane
//   v_dot_codes(sum, w, x, bits)   sum + the products of four groups of codes
//   PREFETCHES                     0: it has no prefetches, but read_ahead(p), which a tile of one
//                                  row calls once in READ_AHEAD bytes; may be left out
//   ONE_P                          the panels that a single row takes at once; may be left out
//   ONE_CHAINS                     2: one row of bf16 adds even and odd k at once; may be left out
//   SEVERAL_STREAMS                a single row takes several panels of blocks at once, too; may be
//                                  left out. With it, both for those who know better:
//   FORESEEN                       bytes of a panel after which the processor reads ahead by itself
//   AHEAD_TO                       the cache that those before are prefetched to, 3 the first, 2
//                                  the second
//
// A tile is P panels times T rows of x, its sums held in registers: a weight is loaded once for T
// rows, an activation broadcast once for P panels. It is one inline function, instantiated for
// constant P and T, so every loop over p and t is unrolled. Chains of different rows and panels are
// independent, which hides the latency of an fma.
#ifndef TILES_H
#define TILES_H

#include "blocks.h"
#include "lanes.h"

#ifndef v_dot_numbers
#define v_dot_numbers v_dot
#endif
#ifndef PREFETCHES
#define PREFETCHES 1
#endif
#ifndef ONE_P
#define ONE_P 4  // with prefetches, memory is read fastest in several streams
#endif
#ifndef ONE_CHAINS
#define ONE_CHAINS 1
#endif
// One row takes ONE_BLOCKS_P panels of blocks or bf16 at once, and ONE_CODES_P of codes.
#ifdef SEVERAL_STREAMS
#define ONE_BLOCKS_P ONE_P
#define ONE_CODES_P 2  // each lies in three places: codes, scales, what 256 columns share
#ifndef FORESEEN
#define FORESEEN (20 << 10)
#define AHEAD_TO 2
#endif
#else
// Zen 5 is fastest where one row takes a panel after the other. Chains of f32 and f16 are too long
// for it: an fma for each number.
#define ONE_BLOCKS_P 1
#define ONE_CODES_P 1
#define FORESEEN SIZE_MAX
#define AHEAD_TO 3
#endif

// Sums in the lanes whose number lacks h, differences in the others.
INLINE Floats turn_lanes(Floats v, int h) {
    float sign[LANES];
    for (int i = 0; i < LANES; i++) sign[i] = i & h ? -1.0f : 1.0f;
    return v_fma(v, v_load(sign), v_swap(v, h));
}

static inline void turn_block(float *out, const float *x) {
    Floats a = v_load(x), b = v_load(x + LANES);
    Floats half[2] = {v_add(a, b), v_fma(b, v_set1(-1.0f), a)};
    UNROLL for (int i = 0; i < 2; i++)
        v_store(out + i * LANES,
                turn_lanes(turn_lanes(turn_lanes(turn_lanes(half[i], 8), 4), 2), 1));
}

// The largest tile.
enum { MAX_P = 4, MAX_T = 6 };

// Blocks of codes as tiles of several rows read them, UNPACKED / P of each of P panels: they stay
// in the first-level cache with the activations of a tile. A byte is a number less the least one.
enum { UNPACKED = 32 };
typedef struct {
    _Alignas(64) uint8_t codes[UNPACKED][8][64];
    float scale[UNPACKED][2][LANES];   // of each part
    float minimum[UNPACKED][LANES];
} Unpacked;

// What a tile works on: panels w[0..P), rows row..row+T-1 of x, steps from..to-1 of n_steps (a step
// is one k, or one block of 32). If from > 0, out has the sums so far.
typedef struct {
    float *out;  // [T][out_stride], of which 16 P each
    size_t out_stride, panel_stride;
    const uint8_t *w;
    const Rows *x;
    size_t row, from, to, n_steps;
    ptrdiff_t ahead;  // to the bytes that are wanted next, or 0
    const int8_t *numbers;  // of four-bit codes
    Unpacked *unpacked;     // steps from..to-1 of the panels; or NULL
} Tile;
typedef void TileFn(const Tile *tile);

INLINE void load_sums(Floats sum[MAX_P][MAX_T], const Tile *tile, int P, int T) {
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int p = 0; p < P; p++)
            sum[p][t] =
                tile->from ? v_load(tile->out + (size_t)t * tile->out_stride + 16 * p) : v_zero();
}

INLINE void store_sums(Floats sum[MAX_P][MAX_T], const Tile *tile, int P, int T) {
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int p = 0; p < P; p++)
            v_store(tile->out + (size_t)t * tile->out_stride + 16 * p, sum[p][t]);
}

// Prefetches `bytes` that lie `ahead` of p. Work and requests alternate, a few lines at a time:
// more at once would delay the loads of the work itself.
INLINE void prefetch(const uint8_t *p, ptrdiff_t ahead, size_t bytes) {
    UNROLL for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)ahead + line), 0, AHEAD_TO);
}

// The same for the first bytes of P panels; later the processor reads ahead by itself.
INLINE void prefetch_panels(const Tile *tile, size_t at, size_t bytes, int P) {
#if PREFETCHES
    if (at >= FORESEEN) return;
    UNROLL for (int p = 0; p < P; p++)
        prefetch(tile->w + (size_t)p * tile->panel_stride + at, tile->ahead, bytes);
#else
    if (at % READ_AHEAD) return;
    UNROLL for (int p = 0; p < P; p++) read_ahead(tile->w + (size_t)p * tile->panel_stride + at);
#endif
}

// What is wanted next while groups g..g+n-1 of block b are worked on. In one stream, all bytes in
// the order in which they lie, as many with each block: the processor itself reads ahead of that,
// and Zen 5 reads 10 to 16 % faster than in a stream of codes and one of scales. In several
// streams, codes as above, scales, which are too short a stream for the processor, and of a single
// row the codes SOON bytes ahead, but for q8's.
INLINE void want_groups(const Tile *tile, BlockForm form, size_t b, int g, int n, int P, int T) {
    const size_t stride = tile->panel_stride;
#if PREFETCHES && !defined(SEVERAL_STREAMS)
    const size_t bytes = code_bytes(form) + scale_bytes(form) + shared_bytes(form) / SHARING;
    (void)n, (void)T;
    UNROLL for (int p = 0; g == 0 && p < P; p++)
        prefetch(tile->w + (size_t)p * stride + b * bytes, tile->ahead, bytes);
#else
    enum { SOON = 1536 };
    const size_t eighth = code_bytes(form) / 8, bytes = (size_t)n * eighth;
    const size_t at = b * code_bytes(form) + (size_t)g * eighth;
    if (PREFETCHES && g == 0 && b * scale_bytes(form) % 64 == 0)
        UNROLL for (int p = 0; p < P; p++)
            prefetch(scales_of(tile->w + (size_t)p * stride, form, tile->n_steps, b), tile->ahead,
                     64);
    prefetch_panels(tile, at, bytes, P);
    if (PREFETCHES && T == 1 && (form.bits < 8 || form.kept))
        UNROLL for (int p = 0; p < P; p++)
            UNROLL for (size_t line = 0; line < bytes; line += 64)
                __builtin_prefetch(tile->w + (size_t)p * stride + at + line + SOON, 0, 3);
#endif
}

INLINE void tile_float(const Tile *tile, Dtype dtype, int P, int T, bool ahead) {
    const size_t stride = tile->x->stride, k_bytes = dtype == F32 ? 64 : 32;
    const float *x = tile->x->f32 + tile->row * stride;
    Floats sum[MAX_P][MAX_T];
    load_sums(sum, tile, P, T);
    for (size_t k = tile->from; k < tile->to; k++) {
        Floats w[MAX_P];
        if (ahead && k % (64 / k_bytes) == 0) prefetch_panels(tile, k * k_bytes, 64, P);
        UNROLL for (int p = 0; p < P; p++) {
            const uint8_t *at = tile->w + (size_t)p * tile->panel_stride + k * k_bytes;
            w[p] = dtype == F32 ? v_load((const float *)at) : v_load_f16(at);
        }
        UNROLL for (int t = 0; t < T; t++) {
            Floats a = v_set1(x[(size_t)t * stride + k]);
            UNROLL for (int p = 0; p < P; p++) sum[p][t] = v_fma(w[p], a, sum[p][t]);
        }
    }
    store_sums(sum, tile, P, T);
}

INLINE void tile_f32(const Tile *tile, int P, int T, bool ahead) {
    tile_float(tile, F32, P, T, ahead);
}
INLINE void tile_f16(const Tile *tile, int P, int T, bool ahead) {
    tile_float(tile, F16, P, T, ahead);
}

#ifdef BF16_DOT
INLINE void tile_bf16(const Tile *tile, int P, int T, bool ahead) {
    const size_t stride = tile->x->blocks * BLOCK;
    const uint16_t *x = tile->x->bf16 + tile->row * stride;
    Floats sum[MAX_P][MAX_T];
    load_sums(sum, tile, P, T);
    for (size_t k = tile->from * BLOCK; k < tile->to * BLOCK; k += 2) {
        Pairs w[MAX_P];
        if (ahead) prefetch_panels(tile, k * 32, 64, P);
        UNROLL for (int p = 0; p < P; p++)
            w[p] = v_load_pairs(tile->w + (size_t)p * tile->panel_stride + k * 32);
        UNROLL for (int t = 0; t < T; t++) {
            Pairs a = v_set1_pair(x + (size_t)t * stride + k);
            UNROLL for (int p = 0; p < P; p++) sum[p][t] = v_dot_bf16(sum[p][t], w[p], a);
        }
    }
    store_sums(sum, tile, P, T);
}
#else
// A block's chains over its even k (0) and its odd ones (1): those from `first` to `last`.
INLINE void chains_bf16(Floats sum[2][MAX_P][MAX_T], int first, int last, const Tile *tile,
                        size_t b, int P, int T, bool ahead) {
    const size_t stride = tile->x->blocks * BLOCK;
    const uint8_t *w = tile->w + b * BLOCK * 32;
    const uint16_t *x = tile->x->bf16 + tile->row * stride + b * BLOCK;
    UNROLL for (int odd = first; odd <= last; odd++)
        UNROLL for (int p = 0; p < P; p++)
            UNROLL for (int t = 0; t < T; t++) sum[odd][p][t] = v_zero();
    for (size_t k = 0; k < BLOCK; k += 2) {
        if (ahead && first == 0) prefetch_panels(tile, (b * BLOCK + k) * 32, 64, P);
        UNROLL for (int odd = first; odd <= last; odd++) {
            Floats v[MAX_P];
            UNROLL for (int p = 0; p < P; p++)
                v[p] = v_load_bf16(w + (size_t)p * tile->panel_stride + k * 32, odd);
            UNROLL for (int t = 0; t < T; t++) {
                Floats a = v_set1_bf16(x + (size_t)t * stride + k, odd);
                UNROLL for (int p = 0; p < P; p++)
                    sum[odd][p][t] = v_fma(v[p], a, sum[odd][p][t]);
            }
        }
    }
}

// Both chains of one row at once load every weight once; more rows need the registers.
INLINE void tile_bf16(const Tile *tile, int P, int T, bool ahead) {
    Floats sum[MAX_P][MAX_T], chain[2][MAX_P][MAX_T];
    const int last = T == 1 ? ONE_CHAINS - 1 : 0;
    load_sums(sum, tile, P, T);
    for (size_t b = tile->from; b < tile->to; b++) {
        chains_bf16(chain, 0, last, tile, b, P, T, ahead);
        if (last == 0) chains_bf16(chain, 1, 1, tile, b, P, T, ahead);
        UNROLL for (int p = 0; p < P; p++)
            UNROLL for (int t = 0; t < T; t++)
                sum[p][t] = v_add(sum[p][t], v_add(chain[0][p][t], chain[1][p][t]));
    }
    store_sums(sum, tile, P, T);
}
#endif

// Groups g and g + 1, of four columns each, of a block that begins at w.
INLINE void load_groups(Bytes v[2], const uint8_t *w, int g, BlockForm form,
                        const int8_t *numbers) {
    if (form.bits == 8) v_load_q8(v, w + 64 * g);
    else v_load_q4(v, w + 32 * g, numbers);
}

// The scales of a part of block b of a panel, and the block's minima.
INLINE Floats load_scales(const uint8_t *panel, BlockForm form, size_t n, size_t b, int part) {
    const uint8_t *scales = scales_of(panel, form, n, b);
    if (form.scales == SCALE || form.scales == SCALE_MIN) return v_load_f16(scales);
    if (form.scales == SCALE_K16) scales += LANES * part;
    const Floats scale = v_mul(v_load_i8(scales), v_load_f16(shared_of(panel, form, n, b)));
    return form.scales == SCALE_8 ? v_mul(scale, v_set1(0x1p-7f)) : scale;
}
INLINE Floats load_minima(const uint8_t *panel, BlockForm form, size_t n, size_t b) {
    const uint8_t *minima = scales_of(panel, form, n, b) + scale_bytes(form) / 2;
    if (form.scales == SCALE_MIN) return v_load_f16(minima);
    const Floats e = v_load_f16(shared_of(panel, form, n, b) + 2 * LANES);
    return v_mul(v_load_i8(minima), v_mul(e, v_set1(-1.0f)));
}

INLINE Floats add_scaled(Floats sum, Floats product, Floats scale, float x_scale) {
    return v_fma(product, v_mul(scale, v_set1(x_scale)), sum);
}

// The products of a part with what x leaves when it is rounded once; at_part: of x.
INLINE void add_rest(Floats sum[MAX_P][MAX_T], const Tile *tile, BlockForm form, size_t b, int part,
                     size_t at_part, const Floats *scale, int P, int t) {
    const Rows *x = tile->x;
    const int8_t *q = x->rest + at_part * (BLOCK / 2);
    UNROLL for (int p = 0; p < P; p++) {
        const uint8_t *w = tile->w + (size_t)p * tile->panel_stride + b * code_bytes(form);
        Ints total = v_dot_start(x->rest_offset[at_part]);
        UNROLL for (int g = 0; g < 4; g += 2) {
            Bytes v[2];
            load_groups(v, w, 4 * part + g, form, tile->numbers);
            total = v_dot(v_dot(total, v[0], q + 4 * g), v[1], q + 4 * g + 4);
        }
        sum[p][t] = add_scaled(sum[p][t], v_dot_end(total), scale[p], x->rest_scale[at_part]);
    }
}

// The products of one of the parts of a block.
INLINE void add_products(Floats sum[MAX_P][MAX_T], const Tile *tile, BlockForm form, size_t b,
                         int part, int parts, int P, int T, bool ahead) {
    const Rows *x = tile->x;
    const size_t at = tile->row * x->blocks + b, block_bytes = code_bytes(form);  // at: of x
    const size_t at_part = at * (size_t)parts + (size_t)part, apart = x->blocks * (size_t)parts;
    const int n_groups = 8 / parts, first = part * n_groups;
    const int8_t *numbers = form.kept ? tile->numbers : form.numbers;  // kept ones share loops
    Ints total[MAX_P][MAX_T];
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int p = 0; p < P; p++)
            total[p][t] = v_dot_start(x->offset[at_part + (size_t)t * apart]);
    Ints (*const dot)(Ints, Bytes, const int8_t *) = T == 1 && form.numbers ? v_dot_numbers : v_dot;
    UNROLL for (int g = first; g < first + n_groups; g += 2) {
        Bytes v[MAX_P][2];
        if (ahead) want_groups(tile, form, b, g, 2, P, T);
        UNROLL for (int p = 0; p < P; p++)
            load_groups(v[p], tile->w + (size_t)p * tile->panel_stride + b * block_bytes, g, form,
                        numbers);
        UNROLL for (int i = 0; i < 2; i++)
            UNROLL for (int t = 0; t < T; t++) {
                const int8_t *a = x->q + (at + (size_t)t * x->blocks) * BLOCK + 4 * (g + i);
                UNROLL for (int p = 0; p < P; p++) total[p][t] = dot(total[p][t], v[p][i], a);
            }
    }
    Floats scale[MAX_P];
    UNROLL for (int p = 0; p < P; p++)
        scale[p] = load_scales(tile->w + (size_t)p * tile->panel_stride, form, tile->n_steps, b,
                               part);
    UNROLL for (int t = 0; t < T; t++) {
        const size_t at_t = at_part + (size_t)t * apart;
        UNROLL for (int p = 0; p < P; p++)
            sum[p][t] = add_scaled(sum[p][t], v_dot_end(total[p][t]), scale[p], x->scale[at_t]);
        if (form.kept && x->rest_scale[at_t] > 0.0f)
            add_rest(sum, tile, form, b, part, at_t, scale, P, t);
    }
}

INLINE bool has_minima(BlockForm form) {
    return form.scales == SCALE_MIN || form.scales == SCALE_K;
}
INLINE void add_minima(Floats sum[MAX_P][MAX_T], const Tile *tile, BlockForm form, size_t b, int P,
                       int T) {
    const float *x_sum = tile->x->sum + tile->row * tile->x->blocks + b;
    Floats minima[MAX_P];
    UNROLL for (int p = 0; p < P; p++)
        minima[p] = load_minima(tile->w + (size_t)p * tile->panel_stride, form, tile->n_steps, b);
    UNROLL for (int t = 0; t < T; t++) {
        Floats a = v_set1(x_sum[(size_t)t * tile->x->blocks]);
        UNROLL for (int p = 0; p < P; p++) sum[p][t] = v_fma(minima[p], a, sum[p][t]);
    }
}

INLINE void tile_blocks(const Tile *tile, BlockForm form, int P, int T, bool ahead) {
    const int parts = form.kept ? 2 : 1;
    Floats sum[MAX_P][MAX_T];
    load_sums(sum, tile, P, T);
    for (size_t b = tile->from; b < tile->to; b++) {
        UNROLL for (int part = 0; part < parts; part++)
            add_products(sum, tile, form, b, part, parts, P, T, ahead);
        if (has_minima(form)) add_minima(sum, tile, form, b, P, T);
    }
    store_sums(sum, tile, P, T);
}

#define TILE_BLOCKS(name, dtype, ...)                                                              \
    INLINE void tile_##name(const Tile *tile, int P, int T, bool ahead) {                          \
        tile_blocks(tile, BLOCK_FORMS[dtype], P, T, ahead);                                        \
    }
TILE_BLOCKS(q8, Q8)
TILE_BLOCKS(q4, Q4)
EACH_WEIGHTS(TILE_BLOCKS, , )
EACH_RARE(TILE_BLOCKS)

// ---- codes that are numbers: their products are of x with them as they lie, below 64, and what is
// missing, the least number times the sum of x, is what sums begin with ----

// offset: -128 times the sum of a part of x.
INLINE Ints start_codes(int32_t offset, int least) { return v_start((offset >> 7) * -least); }

// The products of a part of a row of x, and of its rest; at_part: of x. Turned ones have no parts.
INLINE Floats add_codes(Floats sum, const Rows *x, size_t at_part, const Bytes *w, Floats scale,
                        int least, int bits, int parts) {
    const size_t at = at_part * (size_t)(BLOCK / parts);
    const Ints total = v_dot_codes(start_codes(x->offset[at_part], least), w, x->q + at, bits);
    Floats product = v_dot_end(total);
    if (parts == 1) {  // a chain for each half; both and their sum are exact
        const Ints other = v_dot_codes(v_start(0), w + 4, x->q + at + BLOCK / 2, bits);
        product = v_add(product, v_dot_end(other));
    }
    sum = add_scaled(sum, product, scale, x->scale[at_part]);
    if (parts == 1 || !(x->rest_scale[at_part] > 0.0f)) return sum;
    const Ints rest =
        v_dot_codes(start_codes(x->rest_offset[at_part], least), w, x->rest + at, bits);
    return add_scaled(sum, v_dot_end(rest), scale, x->rest_scale[at_part]);
}

// One row takes panels as they lie, P at once, and asks for what is wanted next.
INLINE void tile_one(const Tile *tile, BlockForm form, int P) {
    const Rows *x = tile->x;
    const size_t block_bytes = code_bytes(form), n = tile->n_steps;
    const int parts = form.kept ? 2 : 1, n_groups = 8 / parts;
    Floats sum[MAX_P][MAX_T];
    load_sums(sum, tile, P, 1);
    for (size_t b = tile->from; b < tile->to; b++) {
        const size_t at = tile->row * x->blocks + b;
        UNROLL for (int part = 0; part < parts; part++) {
            const size_t at_part = at * (size_t)parts + (size_t)part;
            want_groups(tile, form, b, n_groups * part, n_groups, P, 1);
            UNROLL for (int p = 0; p < P; p++) {
                const uint8_t *panel = tile->w + (size_t)p * tile->panel_stride;
                const uint8_t *w = panel + b * block_bytes;
                Bytes v[8];
                UNROLL for (int i = 0; i < n_groups; i += 2) {
                    const int g = n_groups * part + i;
                    const uint8_t *low = w + (form.bits < 4 ? g / 4 * 64 : 32 * g);
                    v_load_codes(v + i, low, w + (form.bits < 4 ? 128 : 256), g, form.bits,
                                 form.numbers);
                }
                sum[p][0] = add_codes(sum[p][0], x, at_part, v,
                                      load_scales(panel, form, n, b, part), form.least,
                                      form.numbers ? 6 : form.bits, parts);
            }
        }
        if (has_minima(form)) add_minima(sum, tile, form, b, P, 1);
    }
    store_sums(sum, tile, P, 1);
}

// A number - least, by comparisons and masks, of which compilers make vectors: they do not of a
// table, and GCC 12 not of a choice.
INLINE uint8_t unpacked_number(uint8_t code, BlockForm form, int least) {
    if (!form.numbers) return (uint8_t)(code + form.least - least);
    uint8_t number = (uint8_t)(form.numbers[0] - least);
    UNROLL for (int c = 1; c < 1 << form.bits; c++) {
        const uint8_t step = (uint8_t)(form.numbers[c] - form.numbers[c - 1]);
        number = (uint8_t)(number + (step & (uint8_t)-(code >= c)));
    }
    return number;
}

// The steps of P panels for tiles of several rows, whose bytes are numbers - least.
INLINE void unpack_codes(Unpacked *out, const Tile *tile, BlockForm form, int least, int P) {
    for (size_t p = 0, at = 0; p < (size_t)P; p++) {
        const uint8_t *panel = tile->w + p * tile->panel_stride;
        for (size_t b = tile->from; b < tile->to; b++, at++) {
            const uint8_t *codes = panel + b * code_bytes(form);
            UNROLL for (size_t g = 0; g < 8; g++)
                for (size_t j = 0; j < 64; j++)
                    out->codes[at][g][j] =
                        unpacked_number((uint8_t)block_code(codes, form, g, j), form, least);
            UNROLL for (int part = 0; part < 2; part++)
                v_store(out->scale[at][part], load_scales(panel, form, tile->n_steps, b, part));
            if (has_minima(form))
                v_store(out->minimum[at], load_minima(panel, form, tile->n_steps, b));
        }
    }
}

// bits: at most; a byte is a number - least. parts: of a block of x.
INLINE void tile_unpacked(const Tile *tile, int bits, int least, bool minima, int parts, int P,
                          int T) {
    const Rows *x = tile->x;
    const Unpacked *from = tile->unpacked;
    const size_t n = tile->to - tile->from;
    Floats sum[MAX_P][MAX_T];
    Ints total[MAX_P][MAX_T];  // of the first half of a block that has one part
    load_sums(sum, tile, P, T);
    for (size_t b = 0; b < n; b++) {
        const size_t at = tile->row * x->blocks + tile->from + b;  // of x
        UNROLL for (size_t part = 0; part < 2; part++) {
            Bytes w[MAX_P][4];
            Floats scale[MAX_P];
            UNROLL for (int p = 0; p < P; p++) {
                const size_t i = (size_t)p * n + b;
                v_load_bytes(w[p], from->codes[i][4 * part]);
                v_load_bytes(w[p] + 2, from->codes[i][4 * part + 2]);
                scale[p] = v_load(from->scale[i][part]);
            }
            UNROLL for (int t = 0; t < T; t++) {
                const size_t at_t = at + (size_t)t * x->blocks;
                UNROLL for (int p = 0; p < P; p++) {
                    if (parts == 2) {
                        sum[p][t] = add_codes(sum[p][t], x, 2 * at_t + part, w[p], scale[p], least,
                                              bits, 2);
                        continue;
                    }
                    total[p][t] =
                        v_dot_codes(part ? total[p][t] : start_codes(x->offset[at_t], least), w[p],
                                    x->q + at_t * BLOCK + part * (BLOCK / 2), bits);
                    if (part) sum[p][t] = add_scaled(sum[p][t], v_dot_end(total[p][t]), scale[p],
                                                     x->scale[at_t]);
                }
            }
        }
        if (!minima) continue;
        UNROLL for (int p = 0; p < P; p++) {
            const Floats minimum = v_load(from->minimum[(size_t)p * n + b]);
            UNROLL for (int t = 0; t < T; t++)
                sum[p][t] = v_fma(minimum, v_set1(x->sum[at + (size_t)t * x->blocks]), sum[p][t]);
        }
    }
    store_sums(sum, tile, P, T);
}

// The tiles that blocks.h names. LEAST_codes: of the numbers that they take.
enum { LEAST_codes = -16, LEAST_codes_min = 0, LEAST_codes_6 = -32, LEAST_turned = -32 };
#define TILE_CODES(tiles, bits, minima, parts)                                                     \
    INLINE void tile_##tiles(const Tile *tile, int P, int T, bool ahead) {                         \
        (void)ahead;                                                                               \
        tile_unpacked(tile, bits, LEAST_##tiles, minima, parts, P, T);                             \
    }
TILE_CODES(codes, 5, false, 2)
TILE_CODES(codes_min, 5, true, 2)
TILE_CODES(codes_6, 6, false, 2)
TILE_CODES(turned, 6, false, 1)

// So few rows take codes one row after another, since unpacking costs as much as some rows:
// on Zen 5 as much as 12, with AVX2 as 8. They take two panels at once, since they wait for
// arithmetic more than for memory.
enum { FEW_ROWS = 8, FEW_P = PREFETCHES ? 2 : 1 };

// How many of `left` rows come next, so that tiles of at most T are all about as large.
static inline int next_rows(int left, int T) {
    int tiles = (left + T - 1) / T;
    return (left + tiles - 1) / tiles;
}

// Multiplies P panels by all rows of x, then the next P, so that weights are read from memory once.
// It takes `piece` steps at a time: the panels then stay in the second-level cache from tile to
// tile, and a tile's activations in the first; `unpack`, unless it is NULL, makes tile.unpacked of
// them. Rows taken one by one (T 1) have one_P panels and all steps; unless the caller knows
// better, they prefetch the next one_P.
typedef void UnpackCodesFn(const Tile *tile, int n_panels);
static void walk_panels(Tile tile, UnpackCodesFn *unpack, TileFn *const narrow[MAX_T],
                        TileFn *const wide[MAX_T], TileFn *one, int one_P, int P, int T,
                        size_t piece, int n_panels, int n_rows) {
    float *out = tile.out;
    if (T == 1) wide = &one, P = one_P, piece = tile.n_steps;
    if (T == 1 && !tile.ahead) tile.ahead = (ptrdiff_t)((size_t)one_P * tile.panel_stride);
    for (int width; n_panels > 0;
         n_panels -= width, out += 16 * width, tile.w += (size_t)width * tile.panel_stride) {
        width = n_panels < P ? 1 : P;
        for (tile.from = 0; tile.from < tile.n_steps; tile.from = tile.to) {
            tile.to = tile.n_steps - tile.from < piece ? tile.n_steps : tile.from + piece;
            if (unpack) unpack(&tile, width);
            for (int count, row = 0; row < n_rows; row += count) {
                count = next_rows(n_rows - row, T);
                tile.row = (size_t)row;
                tile.out = out + tile.row * tile.out_stride;
                (width < P ? narrow : wide)[count - 1](&tile);
            }
        }
    }
}

// What a tile of the mix works on: 16 P dims from d on, of T rows; positions take the place of k.
typedef struct {
    float *out;      // [T][dim], from d on
    const float *p;  // [T][p_stride]
    size_t p_stride, dim, d;
    const uint8_t *const *v;
    int begin, end;
    ptrdiff_t ahead;  // as in Tile
} MixTile;
typedef void MixTileFn(const MixTile *tile);

// p times the scales of one slot of positions, for each 32 dims.
INLINE void scale_p(float out[MAX_T][MAX_P / 2][LANES], const MixTile *tile, int block, int P,
                    int T) {
    const uint8_t *scales = tile->v[block] + LANES * tile->dim + tile->d / BLOCK * (2 * LANES);
    UNROLL for (int h = 0; h < P / 2; h++) {
        Floats scale = v_load_f16(scales + 2 * LANES * h);
        UNROLL for (int t = 0; t < T; t++)
            v_store(out[t][h],
                    v_mul(v_load(tile->p + (size_t)t * tile->p_stride + LANES * block), scale));
    }
}

INLINE void mix_tile(const MixTile *tile, Dtype dtype, int P, int T, bool ahead) {
    const size_t bytes = dtype == F32 ? 4 : dtype == F16 ? 2 : 1;
    Floats sum[MAX_P][MAX_T];
    float scaled[MAX_T][MAX_P / 2][LANES];
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int t = 0; t < T; t++) sum[p][t] = v_zero();
    for (int i = tile->begin; i < tile->end; i++) {
        const int lane = i % LANES;
        const uint8_t *block = tile->v[i / LANES];
        const size_t at = (size_t)lane * tile->dim + tile->d;
        if (dtype == Q8 && (lane == 0 || i == tile->begin)) scale_p(scaled, tile, i / LANES, P, T);
        if (ahead) prefetch(block + at * bytes, tile->ahead, 16 * (size_t)P * bytes);
        Floats v[MAX_P];
        UNROLL for (int p = 0; p < P; p++) {
            const size_t e = at + 16 * (size_t)p;
            v[p] = dtype == F32   ? v_load((const float *)block + e)
                   : dtype == F16 ? v_load_f16(block + 2 * e)
                                  : v_load_i8(block + e);
        }
        UNROLL for (int t = 0; t < T; t++) {
            const float a = tile->p[(size_t)t * tile->p_stride + (size_t)i];
            UNROLL for (int p = 0; p < P; p++)
                sum[p][t] =
                    v_fma(v[p], v_set1(dtype == Q8 ? scaled[t][p / 2][lane] : a), sum[p][t]);
        }
    }
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int p = 0; p < P; p++)
            v_store(tile->out + (size_t)t * tile->dim + 16 * p, sum[p][t]);
}

INLINE void mix_tile_f32(const MixTile *tile, int P, int T, bool ahead) {
    mix_tile(tile, F32, P, T, ahead);
}
INLINE void mix_tile_f16(const MixTile *tile, int P, int T, bool ahead) {
    mix_tile(tile, F16, P, T, ahead);
}
INLINE void mix_tile_q8(const MixTile *tile, int P, int T, bool ahead) {
    mix_tile(tile, Q8, P, T, ahead);
}

// 16 P dims (at the end of a row 16 Q) of all rows, then the next ones: values are read once.
static void walk_dims(MixTile tile, MixTileFn *const narrow[MAX_T], int Q,
                      MixTileFn *const wide[MAX_T], int P, int T, int n_rows) {
    float *out = tile.out;
    const float *p = tile.p;
    for (int width; tile.d < tile.dim; tile.d += 16 * (size_t)width) {
        width = tile.dim - tile.d < 16 * (size_t)P ? Q : P;
        for (int count, row = 0; row < n_rows; row += count) {
            count = next_rows(n_rows - row, T);
            tile.out = out + (size_t)row * tile.dim + tile.d;
            tile.p = p + (size_t)row * tile.p_stride;
            (width == Q ? narrow : wide)[count - 1](&tile);
        }
    }
}

// The mix of q4 values: 32 dims, which are two panels of 16 rows whose k are positions.
typedef struct {
    const uint8_t *const *v;
    size_t at;  // of the 32 dims' codes in a slot of positions
    const MixWeights *weights;  // [T]
    int origin, begin, end;  // origin: where the run of `begin` begins
    ptrdiff_t ahead;
} IntMixTile;

// total [2][T]: sums over positions from..to-1, in one run, of n times codes.
INLINE void int_mix_run(Ints total[2][MAX_T], const IntMixTile *tile, int from, int to, int T,
                        bool ahead) {
    enum { PANEL = 128, GROUP = 64 };  // bytes of 16 dims, and of 8 positions of them
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int p = 0; p < 2; p++)
            total[p][t] = v_dot_start(tile->weights[t].offset[(from - tile->origin) / MIX_RUN]);
    for (int i = from; i < to; i += LANES) {
        const uint8_t *codes = tile->v[i / LANES] + tile->at;
        if (ahead) prefetch(codes, tile->ahead, 2 * PANEL);
        UNROLL for (int g = 0; g < 2; g++) {
            Bytes w[2][2];
            UNROLL for (int p = 0; p < 2; p++)
                v_load_q4(w[p], codes + p * PANEL + g * GROUP, Q4_CODES);
            UNROLL for (int j = 0; j < 2; j++)
                UNROLL for (int t = 0; t < T; t++) {
                    const int8_t *n = tile->weights[t].n + (i - tile->origin) + 8 * g + 4 * j;
                    UNROLL for (int p = 0; p < 2; p++) total[p][t] = v_dot(total[p][t], w[p][j], n);
                }
        }
    }
}

INLINE void int_mix_tile(float *out, size_t dim, const IntMixTile *tile, int T, bool ahead) {
    Floats sum[2][MAX_T];
    Ints total[2][MAX_T];
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int p = 0; p < 2; p++) sum[p][t] = v_zero();
    for (int from = tile->begin, to; from < tile->end; from = to) {
        const int run = (from - tile->origin) / MIX_RUN, next = tile->origin + (run + 1) * MIX_RUN;
        to = next < tile->end ? next : tile->end;
        int_mix_run(total, tile, from, to, T, ahead);
        UNROLL for (int t = 0; t < T; t++)
            UNROLL for (int p = 0; p < 2; p++)
                sum[p][t] = v_fma(v_dot_end(total[p][t]), v_set1(tile->weights[t].step[run]),
                                  sum[p][t]);
    }
    UNROLL for (int t = 0; t < T; t++)
        UNROLL for (int p = 0; p < 2; p++) v_store(out + (size_t)t * dim + 16 * p, sum[p][t]);
}

// The scales of 32 dims, which begin at `at` in every slot of positions; 0 outside of the tile's.
INLINE void int_mix_scales(float out[MAX_KEYS], const IntMixTile *tile, size_t at) {
    for (int i = tile->origin; i < tile->origin + MAX_KEYS; i += LANES)
        v_store(out + i - tile->origin, i < tile->begin || i >= tile->end
                                            ? v_zero()
                                            : v_load_f16(tile->v[i / LANES] + at));
}

// p from the tile's origin on.
INLINE void int_mix_weights(MixWeights *out, const float *p, const float *scales,
                            const IntMixTile *tile) {
    const int begin = tile->begin - tile->origin, end = tile->end - tile->origin;
    for (int run = begin / MIX_RUN; run * MIX_RUN < end; run++) {
        float a[MIX_RUN];
        UNROLL for (int i = 0; i < MIX_RUN; i += LANES) {
            const int at = run * MIX_RUN + i;
            v_store(a + i, at < begin || at >= end ? v_zero()
                                                   : v_mul(v_load(p + at), v_load(scales + at)));
        }
        mix_weights(out, a, run);
    }
}

// A tile of n <= T rows.
INLINE void int_mix_rows(float *out, size_t dim, const IntMixTile *tile, int n, int T) {
    if (n == 1) int_mix_tile(out, dim, tile, 1, tile->ahead);
    else if (n == 2 && T >= 2) int_mix_tile(out, dim, tile, 2, tile->ahead);
    else if (n == 3 && T >= 3) int_mix_tile(out, dim, tile, 3, tile->ahead);
    else if (n == 4 && T >= 4) int_mix_tile(out, dim, tile, 4, tile->ahead);
    else if (n == 5 && T >= 5) int_mix_tile(out, dim, tile, 5, tile->ahead);
    else if (T >= 6) int_mix_tile(out, dim, tile, 6, tile->ahead);
}

// mix_q4 in tiles of up to T rows.
#define INT_MIX(T)                                                                                 \
    static void mix_q4(float *out, const float *p, size_t p_stride, int n_rows,                    \
                       const uint8_t *const *v, int begin, int end, int dim, ptrdiff_t ahead) {    \
        MixWeights weights[T];                                                                     \
        float scales[MAX_KEYS];                                                                    \
        const int origin = begin / MIX_RUN * MIX_RUN;                                              \
        for (int d = 0; d < dim; d += BLOCK) {                                                     \
            IntMixTile tile = {v, (size_t)d * LANES / 2, weights, origin, begin, end, ahead};      \
            int_mix_scales(scales, &tile, (size_t)(LANES / 2 * dim + d / BLOCK * 32));             \
            for (int row = 0, n; row < n_rows; row += n) {                                         \
                n = next_rows(n_rows - row, T);                                                    \
                for (int t = 0; t < n; t++)                                                        \
                    int_mix_weights(&weights[t], p + (size_t)(row + t) * p_stride + origin, scales,\
                                    &tile);                                                        \
                int_mix_rows(out + (size_t)row * (size_t)dim + d, (size_t)dim, &tile, n, T);       \
            }                                                                                      \
        }                                                                                          \
    }

// The tiles of P panels (of the mix: 16 P dims) and 1..T rows, each by TILE; or by WEIGHTS_TILE,
// where nobody says what is wanted next.
#define TILE(body, P, T, Args)                                                                     \
    static void body##_by##P##x##T(const Args *tile) {                                             \
        PREFETCHES && tile->ahead ? body(tile, P, T, true) : body(tile, P, T, false);              \
    }
#define WEIGHTS_TILE(body, P, T, Args)                                                             \
    static void body##_by##P##x##T(const Args *tile) { body(tile, P, T, false); }
#define TILES_1(K, body, P, Args) K(body, P, 1, Args)
#define TILES_2(K, body, P, Args) TILES_1(K, body, P, Args) K(body, P, 2, Args)
#define TILES_3(K, body, P, Args) TILES_2(K, body, P, Args) K(body, P, 3, Args)
#define TILES_4(K, body, P, Args) TILES_3(K, body, P, Args) K(body, P, 4, Args)
#define TILES_5(K, body, P, Args) TILES_4(K, body, P, Args) K(body, P, 5, Args)
#define TILES_6(K, body, P, Args) TILES_5(K, body, P, Args) K(body, P, 6, Args)
#define NAMES_1(name) name##x1
#define NAMES_2(name) NAMES_1(name), name##x2
#define NAMES_3(name) NAMES_2(name), name##x3
#define NAMES_4(name) NAMES_3(name), name##x4
#define NAMES_5(name) NAMES_4(name), name##x5
#define NAMES_6(name) NAMES_5(name), name##x6
#define TILES(K, body, P, T, Args)                                                                 \
    TILES_##T(K, body, P, Args)                                                                    \
    static void (*const body##_by##P[MAX_T])(const Args *) = {NAMES_##T(body##_by##P)};

// The tiles of a product: of types of the engine's own, and of weights alone. Those of a file that
// others include may be lent to them, since they take long to compile.
#define OWN_TILES(body, P, T) TILES(TILE, body, P, T, Tile)
#ifndef WEIGHTS_TILES
#define WEIGHTS_TILES(body, P, T) TILES(WEIGHTS_TILE, body, P, T, Tile)
#endif
#define BORROWED_TILES(lent, body, P, T)                                                           \
    extern TileFn *const lent##_by##P[MAX_T];                                                      \
    static TileFn *const *const body##_by##P = lent##_by##P;
#define LENT_TILES(lent, body, P, T)                                                               \
    BORROWED_TILES(lent, body, P, T)                                                               \
    TILES_##T(WEIGHTS_TILE, body, P, Tile)                                                         \
    TileFn *const lent##_by##P[MAX_T] = {NAMES_##T(body##_by##P)};

// The tiles of P panels, unless P is 1.
#define WIDE_1(MAKE, body, T)
#define WIDE_2(MAKE, body, T) MAKE(body, 2, T)
#define WIDE_4(MAKE, body, T) MAKE(body, 4, T)

// The loops of products in tiles of up to P panels x T rows, and one_P x 1; a step is `step` k, and
// `piece` steps make about 12 KB of activations.
#define LOOPS(MAKE, name, one_P, P, T, step, piece)                                                \
    MAKE(tile_##name, 1, T)                                                                        \
    WIDE_##P(MAKE, tile_##name, T)                                                                 \
    static void tile_##name##_one(const Tile *tile) { tile_##name(tile, one_P, 1, true); }         \
    static void walk_##name(float *out, size_t out_stride, const uint8_t *panels,                  \
                            size_t panel_stride, int n_panels, int n_in, const Rows *x,            \
                            int n_tokens, ptrdiff_t ahead, const int8_t *numbers) {                \
        const size_t n_steps = ((size_t)n_in + step - 1) / step;                                   \
        Tile tile = {out,  out_stride, panel_stride, panels,  x,   0,                              \
                     0,    0,          n_steps,      ahead,   numbers, NULL};                      \
        walk_panels(tile, NULL, tile_##name##_by1, tile_##name##_by##P, tile_##name##_one, one_P,  \
                    P, n_tokens == 1 ? 1 : T, piece, n_panels, n_tokens);                          \
    }

// matmul_NAME by the loops of another type.
#define MATMUL_BY(name, loops, numbers)                                                            \
    static void matmul_##name(float *out, size_t out_stride, const uint8_t *panels,                \
                              size_t panel_stride, int n_panels, int n_in, const Rows *x,          \
                              int n_tokens, ptrdiff_t ahead) {                                     \
        walk_##loops(out, out_stride, panels, panel_stride, n_panels, n_in, x, n_tokens, ahead,    \
                     numbers);                                                                     \
    }
#define MATMUL(name, P, T, step, piece)                                                            \
    LOOPS(OWN_TILES, name, step == 1 ? ONE_P : ONE_BLOCKS_P, P, T, step, piece)                    \
    MATMUL_BY(name, name, NULL)

// Those of all types of blocks.
#define MATMUL_LOOPS(MAKE, name, dtype, P, T)                                                      \
    LOOPS(MAKE, name, ONE_BLOCKS_P, P, T, BLOCK, 64)                                               \
    MATMUL_BY(name, name, BLOCK_FORMS[dtype].numbers)
#define MATMUL_WEIGHTS(name, dtype, P, T) MATMUL_LOOPS(WEIGHTS_TILES, name, dtype, P, T)
#define MATMUL_RARE(name, dtype) MATMUL_LOOPS(WEIGHTS_TILES, name, dtype, 1, 2)
#define MATMUL_BORROWED(name, dtype, loops) MATMUL_BY(name, loops, BLOCK_FORMS[dtype].numbers)

// Of codes: one row by tiles of the type, several by those of `tiles` above.
#define MATMUL_CODES(name, dtype, tiles, P, T)                                                     \
    static void tile_##name##_two(const Tile *tile) { tile_one(tile, BLOCK_FORMS[dtype], FEW_P); } \
    static void tile_##name##_one(const Tile *tile) { tile_one(tile, BLOCK_FORMS[dtype], 1); }     \
    static void unpack_##name(const Tile *tile, int n) {                                           \
        unpack_codes(tile->unpacked, tile, BLOCK_FORMS[dtype], LEAST_##tiles, n);                  \
    }                                                                                              \
    static void matmul_##name(float *out, size_t out_stride, const uint8_t *panels,                \
                              size_t panel_stride, int n_panels, int n_in, const Rows *x,          \
                              int n_tokens, ptrdiff_t ahead) {                                     \
        Unpacked unpacked;                                                                         \
        Tile tile = {out, out_stride, panel_stride,    panels, x,    0,                            \
                     0,   0,          blocks_of(n_in), ahead,  NULL, &unpacked};                   \
        TileFn *const one = tile_##name##_one;                                                     \
        const bool few = n_tokens <= FEW_ROWS;                                                     \
        const int one_P = n_tokens == 1 ? ONE_CODES_P : FEW_P;                                     \
        walk_panels(tile, few ? NULL : unpack_##name, few ? &one : tile_##tiles##_by1,             \
                    tile_##tiles##_by##P, one_P == 1 ? one : tile_##name##_two, one_P, P,          \
                    few ? 1 : T, UNPACKED / P, n_panels, n_tokens);                                \
    }
#define CODES_TILES(tiles, P, T)                                                                   \
    WEIGHTS_TILES(tile_##tiles, 1, T)                                                              \
    WIDE_##P(WEIGHTS_TILES, tile_##tiles, T)
#define MATMUL_BLOCKS(P, T)                                                                        \
    MATMUL_LOOPS(OWN_TILES, q8, Q8, P, T)                                                          \
    MATMUL_LOOPS(OWN_TILES, q4, Q4, P, T)                                                          \
    CODES_TILES(codes, P, T)                                                                       \
    CODES_TILES(codes_min, P, T)                                                                   \
    CODES_TILES(codes_6, P, T)                                                                     \
    CODES_TILES(turned, P, T)                                                                      \
    EACH_CODES(MATMUL_CODES, P, T)                                                                 \
    EACH_WEIGHTS(MATMUL_WEIGHTS, P, T)                                                             \
    EACH_RARE(MATMUL_RARE)                                                                         \
    EACH_BORROWER(MATMUL_BORROWED)

// mix_NAME in tiles of 16 P dims (at the end of a row 16 Q) x T rows.
#define MIX(name, Q, P, T)                                                                         \
    TILES(TILE, mix_tile_##name, Q, T, MixTile)                                                    \
    TILES(TILE, mix_tile_##name, P, T, MixTile)                                                    \
    static void mix_##name(float *out, const float *p, size_t p_stride, int n_rows,                \
                           const uint8_t *const *v, int begin, int end, int dim,                   \
                           ptrdiff_t ahead) {                                                      \
        MixTile tile = {out, p, p_stride, (size_t)dim, 0, v, begin, end, ahead};                   \
        walk_dims(tile, mix_tile_##name##_by##Q, Q, mix_tile_##name##_by##P, P, T, n_rows);        \
    }

// The mix over panels of keys: KEY_DIMS dims of T rows, positions in lanes.
enum { KEY_DIMS = 4 };

typedef float KeyGroup[KEY_DIMS][LANES];  // four numbers of each key of a panel

// A group of 4 k of q8 or q4 keys, without their scales, of the panels of positions begin..end.
INLINE void load_key_groups(KeyGroup *group, const uint8_t *const *keys, int begin, int end, int d,
                            Dtype dtype) {
    const int shift = d % 8 < 4 ? 0 : 4;  // of the group's codes in their bytes
    for (int i = begin; i < end; i += LANES, group++) {
        const uint8_t *q = keys[i / LANES] + (dtype == Q8 ? d * LANES : d / 8 * 64);
        for (int lane = 0; lane < LANES; lane++)
            for (int j = 0; j < KEY_DIMS; j++) {
                const int byte = q[KEY_DIMS * lane + j];
                (*group)[j][lane] = (float)(dtype == Q8 ? byte - 128
                                                        : Q4_CODES[byte >> shift & 15]);
            }
    }
}

INLINE void mix_keys_tile(float *out, const float *p, size_t p_stride, const uint8_t *const *keys,
                          int begin, int end, const KeyGroup *group, size_t n_blocks, int d,
                          int dim, Dtype dtype, int T) {
    const bool blocks = dtype == Q8 || dtype == Q4;
    const size_t block_bytes = dtype == Q8 ? 512 : 256;
    Floats sum[KEY_DIMS][MAX_T];
    UNROLL for (int j = 0; j < KEY_DIMS; j++)
        UNROLL for (int t = 0; t < T; t++) sum[j][t] = v_zero();
    for (int i = begin; i < end; i += LANES) {
        const uint8_t *panel = keys[i / LANES];
        Floats k[KEY_DIMS], scale = v_zero();
        if (blocks) {
            UNROLL for (int j = 0; j < KEY_DIMS; j++) k[j] = v_load(group[(i - begin) / LANES][j]);
            scale = v_load_f16(panel + n_blocks * block_bytes + (size_t)(d / BLOCK) * 32);
        } else {
            UNROLL for (int j = 0; j < KEY_DIMS; j++) {
                // what is past the end is not stored
                const size_t at = (size_t)(d + j < dim ? d + j : d) * LANES;
                if (dtype == F32) k[j] = v_load((const float *)panel + at);
                else k[j] = v_load_f16(panel + 2 * at);
            }
        }
        UNROLL for (int t = 0; t < T; t++) {
            Floats a = v_load(p + (size_t)t * p_stride + i);
            if (blocks) a = v_mul(a, scale);
            UNROLL for (int j = 0; j < KEY_DIMS; j++) sum[j][t] = v_fma(k[j], a, sum[j][t]);
        }
    }
    for (int j = 0; j < KEY_DIMS && d + j < dim; j++)
        for (int t = 0; t < T; t++) {
            float lanes[LANES];
            v_store(lanes, sum[j][t]);
            out[(size_t)t * (size_t)dim + (size_t)(d + j)] = sum_lanes(lanes);
        }
}

// mix_keys_NAME in tiles of T rows.
#define MIX_KEYS(name, dtype, T)                                                                   \
    static void mix_keys_##name(float *out, const float *p, size_t p_stride, int n_rows,           \
                                const uint8_t *const *keys, int begin, int end, int n_in,          \
                                int dim) {                                                         \
        size_t n_blocks = blocks_of(n_in);                                                         \
        KeyGroup group[MAX_KEYS / LANES];                                                          \
        for (int d = 0; d < dim; d += KEY_DIMS) {                                                  \
            int r = 0;                                                                             \
            if (dtype == Q8 || dtype == Q4)                                                        \
                load_key_groups(group, keys, begin, end, d, dtype);                                \
            for (; r + T <= n_rows; r += T)                                                        \
                mix_keys_tile(out + (size_t)r * dim, p + (size_t)r * p_stride, p_stride, keys,     \
                              begin, end, group, n_blocks, d, dim, dtype, T);                      \
            for (; r < n_rows; r++)                                                                \
                mix_keys_tile(out + (size_t)r * dim, p + (size_t)r * p_stride, p_stride, keys,     \
                              begin, end, group, n_blocks, d, dim, dtype, 1);                      \
        }                                                                                          \
    }

// The ceilings: a tile of P x T sums in registers, and activations that change from step to step,
// so that no product is done just once. `used` makes the compiler believe that the sums matter.
INLINE void used(Floats sum) {
    float lanes[16], total = 0;
    v_store(lanes, sum);
    for (int i = 0; i < 16; i++) total += lanes[i];
    volatile float kept = total;
    (void)kept;
}

INLINE double peak_fma(size_t steps, int P, int T) {
    float a[8 + MAX_T], b[16 + MAX_P];
    Floats w[MAX_P], sum[MAX_P][MAX_T];
    for (int i = 0; i < 8 + MAX_T; i++) a[i] = i % 2 ? 1e-3f : -1e-3f;
    for (int i = 0; i < 16 + MAX_P; i++) b[i] = 1.0f + (float)i;
    UNROLL for (int p = 0; p < P; p++) {
        w[p] = v_load(b + p);
        UNROLL for (int t = 0; t < T; t++) sum[p][t] = w[p];
    }
    for (size_t i = 0; i < steps; i++)
        UNROLL for (int t = 0; t < T; t++) {
            Floats x = v_set1(a[i % 8 + (size_t)t]);
            UNROLL for (int p = 0; p < P; p++) sum[p][t] = v_fma(w[p], x, sum[p][t]);
        }
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int t = 0; t < T; t++) used(sum[p][t]);
    return 2.0 * 16 * P * T * (double)steps;
}

INLINE double peak_dot(size_t steps, int P, int T) {
    int8_t a[4 * (8 + MAX_T)];
    uint8_t weights[128];
    Bytes w[2];
    Ints sum[2][MAX_T];
    for (int i = 0; i < 4 * (8 + MAX_T); i++) a[i] = (int8_t)(i * 37 % 255 - 127);
    for (int i = 0; i < 128; i++) weights[i] = (uint8_t)(i * 53 % 255 + 1);
    v_load_q8(w, weights);
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int t = 0; t < T; t++) sum[p][t] = v_dot_start(0);
    for (size_t i = 0; i < steps; i++)
        UNROLL for (int t = 0; t < T; t++)
            UNROLL for (int p = 0; p < P; p++)
                sum[p][t] = v_dot(sum[p][t], w[p], a + 4 * (i % 8 + (size_t)t));
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int t = 0; t < T; t++) used(v_dot_end(sum[p][t]));
    return 2.0 * 64 * P * T * (double)steps;
}

#define PEAK(P, T)                                                                                 \
    static double peak_floats(size_t steps) { return peak_fma(steps, P, T); }                      \
    static inline double peak_blocks(size_t steps) { return peak_dot(steps, P, T); }

#define PEAK_KERNELS(bf16)                                                                         \
    .peak = {[INPUT_F32] = peak_floats, [INPUT_BF16] = bf16,                                       \
             [INPUT_TURNED] = peak_blocks, [INPUT_INT8] = peak_blocks}

#include "states.h"

// The members of Kernels that this file and states.h implement; a table with products of its own
// takes all but the products.
#define MIX_KERNELS                                                                                \
    .mix = {[F32] = mix_f32, [F16] = mix_f16, [Q8] = mix_q8, [Q4] = mix_q4},                       \
    .mix_keys = {[F32] = mix_keys_f32, [F16] = mix_keys_f16, [Q8] = mix_keys_q8,                   \
                 [Q4] = mix_keys_q4},                                                              \
    STATES_KERNELS
#define TILES_KERNELS                                                                              \
    .matmul = {[F32] = matmul_f32, [F16] = matmul_f16, [BF16] = matmul_bf16,                       \
               [Q8] = matmul_q8, [Q4] = matmul_q4, WEIGHTS_PRODUCTS},                              \
    MIX_KERNELS

#endif
