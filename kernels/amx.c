// AMX: products of several rows in tiles, with the bits of the other kernels; everything else as in
// avx512.c. A product of tiles takes a cycle for each row of its first factor, however wide that
// is, so 32 k cost the same in int8 as in bf16.
#define INCLUDED
#define ROWS_WANTED 128
#define SEVERAL_STREAMS
#include "avx512.c"

#if defined(__x86_64__)

typedef struct {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

// Shapes the eight tiles; one without rows is not used.
static void shape_tiles(const uint8_t rows[8], const uint8_t row_bytes[8]) {
    TileConfig config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        if (!rows[i]) continue;
        config.rows[i] = rows[i];
        config.row_bytes[i] = row_bytes[i];
    }
    // gcc 12 believes that _tile_loadconfig reads 8 bytes, and drops stores to the rest.
    __asm__ volatile("" : : "m"(config));
    _tile_loadconfig(&config);
}

// ---- bf16 ---------------------------------------------------------------------------------------
//
// A block of a panel is a second factor as it lies in the file, and TDPBF16PS sums as the other
// kernels do: one chain over the even k of a block, one over the odd, then their sum to the
// accumulator. (It takes denormals for 0; the others don't.)

// For `a` and then `b` tokens, up to 16 each: tiles 0..3 are sums [16 tokens][16 rows of a panel],
// 4 and 5 activations [16 tokens][32 k], 6 and 7 weights.
static void shape_bf16(int a, int b) {
    const uint8_t A = (uint8_t)a, B = (uint8_t)b;
    shape_tiles((uint8_t[]){A, A, B, B, A, B, 16, 16}, (uint8_t[]){64, 64, 64, 64, 64, 64, 64, 64});
}

// Up to L2_STEPS blocks of two panels, and of 128 to 256 tokens, stay in the second-level cache
// while they are multiplied. Shorter pieces, of which panels fit the first level, cost more than
// they gain: at each border the sums go to memory and back.
enum { L2_STEPS = 64, STEP_BYTES = 1024 };

// Sums [16 tokens][16 rows of a panel] so far.
#define LOAD_SUMS(C, sums)                                                                         \
    do {                                                                                           \
        if (tile->from) _tile_loadd(C, sums, out_bytes);                                           \
        else _tile_zero(C);                                                                        \
    } while (0)

// P panels times G groups of up to 16 tokens. With every block it asks for `fetched` bytes of each
// panel that comes next.
INLINE void tile_amx_bf16(const Tile *tile, size_t fetched, int P, int G) {
    const size_t x_stride = tile->x->blocks * BLOCK, out_bytes = tile->out_stride * sizeof(float);
    const uint16_t *x = tile->x->bf16 + tile->row * x_stride;
    float *out = tile->out, *out2 = out + 16 * tile->out_stride;
    LOAD_SUMS(0, out);
    if (P > 1) LOAD_SUMS(1, out + 16);
    if (G > 1) LOAD_SUMS(2, out2);
    if (P > 1 && G > 1) LOAD_SUMS(3, out2 + 16);
    for (size_t b = tile->from; b < tile->to; b++) {
        const uint8_t *w = tile->w + b * STEP_BYTES;
        _tile_loadd(6, w, 64);
        _tile_loadd(4, x + b * BLOCK, x_stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        if (P > 1) {
            _tile_loadd(7, w + tile->panel_stride, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (G > 1) {
            _tile_loadd(5, x + 16 * x_stride + b * BLOCK, x_stride * 2);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (P > 1 && G > 1) _tile_dpbf16ps(3, 5, 7);
        for (size_t i = 0; i < fetched; i += 64)
            UNROLL for (int p = 0; p < P; p++)
                prefetch(w + (size_t)p * tile->panel_stride + i, tile->ahead, 64);
    }
    _tile_stored(0, out, out_bytes);
    if (P > 1) _tile_stored(1, out + 16, out_bytes);
    if (G > 1) _tile_stored(2, out2, out_bytes);
    if (P > 1 && G > 1) _tile_stored(3, out2 + 16, out_bytes);
}

// All panels times n groups of `rows` <= 32 rows from tile.row on. All panels pass for a piece of k
// before the next piece begins, so that the rows' piece stays in the second-level cache however
// long a row is.
static void walk_amx_bf16(Tile tile, int n_panels, size_t n, int rows) {
    const uint8_t *panels = tile.w;
    float *out = tile.out;
    const size_t first = tile.row;
    const size_t fetched = (STEP_BYTES / 64 + n - 1) / n * 64;  // each group asks for its share
    shape_bf16(rows < 16 ? rows : 16, rows < 16 ? 0 : rows - 16);
    for (tile.from = 0; tile.from < tile.n_steps; tile.from = tile.to) {
        tile.to = tile.from + (size_t)next_rows((int)(tile.n_steps - tile.from), L2_STEPS);
        for (int p = 0; p < n_panels; p += 2) {
            tile.w = panels + (size_t)p * tile.panel_stride;
            // Next come two more panels, the next piece of the first ones, or what lies after all
            // panels.
            const uint8_t *now = tile.w + tile.from * STEP_BYTES, *next;
            if (p + 2 < n_panels) next = now + 2 * tile.panel_stride;
            else if (tile.to < tile.n_steps) next = panels + tile.to * STEP_BYTES;
            else next = panels + (size_t)n_panels * tile.panel_stride;
            for (size_t g = 0; g < n; g++) {
                const size_t row = g * (size_t)rows;
                tile.row = first + row;
                tile.out = out + row * tile.out_stride + 16 * p;
                tile.ahead = next - now + (ptrdiff_t)(g * fetched);
                const bool pair = p + 1 < n_panels;
                if (rows > 16 && pair) tile_amx_bf16(&tile, fetched, 2, 2);
                else if (rows > 16) tile_amx_bf16(&tile, fetched, 1, 2);
                else if (pair) tile_amx_bf16(&tile, fetched, 2, 1);
                else tile_amx_bf16(&tile, fetched, 1, 1);
            }
        }
    }
}

// Groups of 32 rows, then the rest: other shapes take long to set. A single row streams the panels
// through fma.
static void matmul_amx_bf16(float *out, size_t out_stride, const uint8_t *panels,
                            size_t panel_stride, int n_panels, int n_in, const Rows *x,
                            int n_tokens, ptrdiff_t ahead) {
    if (n_tokens == 1) {
        matmul_bf16(out, out_stride, panels, panel_stride, n_panels, n_in, x, 1, ahead);
        return;
    }
    Tile tile = {out, out_stride, panel_stride, panels, x, 0, 0, 0, blocks_of(n_in), 0, NULL, NULL};
    const int rest = n_tokens % 32;
    if (n_tokens >= 32) walk_amx_bf16(tile, n_panels, (size_t)n_tokens / 32, 32);
    tile.row = (size_t)(n_tokens - rest);
    tile.out += tile.row * out_stride;
    if (rest) walk_amx_bf16(tile, n_panels, 1, rest);
    _tile_release();
}

// ---- q8 and q4 ----------------------------------------------------------------------------------
//
// A product of tiles is one block, the exact integers; vectors make them floats, scale them and add
// them to the sums, as tile_blocks in tiles.h does. Tiles are loaded and stored through the ports
// that vectors need, a row at a time, so each is loaded for as many products as possible: 16 tokens
// of two blocks are a first factor, and each of the blocks, with zeros in the place of the other,
// is a second factor that stays while all tokens pass.

// PIECE blocks are unpacked at once. They and the sums of MOST_GROUPS groups of tokens stay in the
// first-level cache.
enum { PIECE = 16, MOST_GROUPS = 8 };

// A piece of a panel. While it is used, what is wanted next is fetched, n_lines cache lines with
// each group of tokens.
typedef struct {
    // int8: an even block in the first half of the rows, an odd one in the second; zeros elsewhere
    _Alignas(64) uint8_t w[PIECE][16][LANES][4];
    float scale[PIECE][LANES];
    uintptr_t next;
    size_t n_lines;
} Piece;
typedef void UnpackFn(Piece *piece, const Tile *tile);

INLINE void unpack_form(Piece *piece, const Tile *tile, BlockForm form) {
    const size_t n = tile->to - tile->from, block_bytes = code_bytes(form);
    const uint8_t *w = tile->w + tile->from * block_bytes;
    const uint8_t *scales = scales_of(tile->w, form, tile->n_steps, tile->from);
    for (size_t b = 0; b < n; b++) {
        UNROLL for (size_t g = 0; g < 8; g += 2) {
            Bytes v[2];
            load_groups(v, w + b * block_bytes, (int)g, form, form.numbers);
            UNROLL for (size_t i = 0; i < 2; i++)
                _mm512_store_si512(piece->w[b][b % 2 * 8 + g + i],
                                   _mm512_xor_si512(v[i], _mm512_set1_epi8(-128)));
        }
        v_store(piece->scale[b], v_load_f16(scales + b * scale_bytes(form)));
    }
    __asm__ volatile("" : : "m"(*piece));  // gcc does not know that tiles are loaded from memory
}

// For T tokens: tiles 0 and 1 are totals [T][16 rows of a panel] of one block each, 2 activations
// [T][64 k], 4 and 5 weights.
static void shape_int8(int T) {
    const uint8_t t = (uint8_t)T;
    shape_tiles((uint8_t[]){t, t, t, 0, 16, 16, 0, 0}, (uint8_t[]){64, 64, 64, 0, 64, 64, 0, 0});
}

typedef int32_t Totals[2][16][LANES];  // of two blocks

// x [T][x_bytes]: two blocks of each token.
INLINE void multiply_pair(Totals total, const int8_t *x, size_t x_bytes, bool both) {
    _tile_loadd(2, x, x_bytes);
    _tile_zero(0);
    _tile_dpbssd(0, 2, 4);
    _tile_stored(0, total[0], 64);
    if (!both) return;
    _tile_zero(1);
    _tile_dpbssd(1, 2, 5);
    _tile_stored(1, total[1], 64);
}

INLINE Floats add_block(Floats sum, const int32_t *total, Floats scale, const float *x_scale) {
    return v_fma(v_dot_end(_mm512_load_si512(total)), v_mul(scale, v_set1(*x_scale)), sum);
}

// Adds two blocks to sum [T][16 rows of a panel]; scale [2][16 rows], x_scale [T][stride].
INLINE void add_pair(float sum[][LANES], Totals total, float scale[2][LANES],
                     const float *x_scale, size_t stride, int T, bool both) {
    const Floats first = v_load(scale[0]), second = both ? v_load(scale[1]) : v_zero();
    UNROLL for (int t = 0; t < T; t++, x_scale += stride) {
        Floats s = add_block(v_load(sum[t]), total[0][t], first, x_scale);
        if (both) s = add_block(s, total[1][t], second, x_scale + 1);
        v_store(sum[t], s);
    }
}

// G groups of T tokens times two blocks of a piece, added to sum [G T][16 rows of a panel]. The
// totals of a group are added while tiles multiply the next one.
INLINE void tile_amx_int8(const Tile *tile, Piece *piece, size_t b, float sum[][LANES],
                          size_t G, int T, bool both) {
    const size_t stride = tile->x->blocks, group = (size_t)T * stride;
    const size_t at = tile->row * stride + tile->from + b;
    const int8_t *x = tile->x->q + at * BLOCK;
    const float *x_scale = tile->x->scale + at;
    _Alignas(64) Totals total[2];
    _tile_loadd(4, piece->w[b], 64);
    if (both) _tile_loadd(5, piece->w[b + 1], 64);
    multiply_pair(total[0], x, stride * BLOCK, both);
    for (size_t g = 0; g < G; g++, x_scale += group) {
        if (g + 1 < G)
            multiply_pair(total[(g + 1) % 2], x += group * BLOCK, stride * BLOCK, both);
        add_pair(sum + g * (size_t)T, total[g % 2], piece->scale + b, x_scale, stride, T, both);
        for (size_t line = 0; line < piece->n_lines; line++, piece->next += 64)
            __builtin_prefetch((const void *)piece->next, 0, 2);
    }
}

// All panels times G <= MOST_GROUPS groups of T = 16 or 8 rows from tile.row on.
INLINE void walk_groups(Tile tile, UnpackFn *unpack_piece, int n_panels, size_t G, int T) {
    Piece piece;
    _Alignas(64) float sum[MOST_GROUPS * 16][LANES];
    const size_t n_rows = G * (size_t)T;
    memset(piece.w, 0, sizeof piece.w);
    for (; n_panels > 0; n_panels--, tile.out += LANES, tile.w += tile.panel_stride) {
        memset(sum, 0, sizeof *sum * n_rows);
        for (tile.from = 0; tile.from < tile.n_steps; tile.from = tile.to) {
            tile.to = tile.n_steps - tile.from < PIECE ? tile.n_steps : tile.from + PIECE;
            unpack_piece(&piece, &tile);
            const size_t n = tile.to - tile.from, times = G * ((n + 1) / 2);
            const size_t at = tile.panel_stride * tile.from / tile.n_steps;
            const size_t bytes = tile.panel_stride * n / tile.n_steps;
            piece.next = (uintptr_t)tile.w + at + (tile.ahead ? (size_t)tile.ahead : bytes);
            piece.n_lines = (bytes / 64 + times - 1) / times;
            for (size_t b = 0; b + 2 <= n; b += 2)
                tile_amx_int8(&tile, &piece, b, sum, G, T, true);
            if (n % 2) tile_amx_int8(&tile, &piece, n - 1, sum, G, T, false);
        }
        for (size_t t = 0; t < n_rows; t++)
            v_store(tile.out + t * tile.out_stride, v_load(sum[t]));
    }
}

static void walk_amx_int8(const Tile *tile, UnpackFn *unpack_piece, int n_panels, size_t G, int T) {
    shape_int8(T);
    T == 16 ? walk_groups(*tile, unpack_piece, n_panels, G, 16)
            : walk_groups(*tile, unpack_piece, n_panels, G, 8);
}

// Groups of 16 rows, then one of 8, then the rest by VNNI: for fewer the unpacking costs more than
// the tiles gain.
INLINE void matmul_amx_int8(float *out, size_t out_stride, const uint8_t *panels,
                            size_t panel_stride, int n_panels, int n_in, const Rows *x,
                            int n_tokens, ptrdiff_t ahead, UnpackFn *unpack_piece,
                            MatmulFn *matmul_vnni) {
    Tile tile = {out,  out_stride, panel_stride,    panels, x,    0, 0,
                 0,    blocks_of(n_in), ahead, NULL, NULL};
    size_t left = (size_t)n_tokens;
    for (size_t G, T = 16; left >= 8; left -= G * T) {
        if (left < T) T = 8;
        G = left / T < MOST_GROUPS ? left / T : MOST_GROUPS;
        walk_amx_int8(&tile, unpack_piece, n_panels, G, (int)T);
        tile.row += G * T;
        tile.out += G * T * out_stride;
    }
    if (tile.row) _tile_release();
    if (left == 0) return;
    const size_t block = tile.row * x->blocks;
    const Rows rest = {.blocks = x->blocks,
                       .q = x->q + block * BLOCK,
                       .scale = x->scale + block,
                       .offset = x->offset + block};
    matmul_vnni(tile.out, out_stride, panels, panel_stride, n_panels, n_in, &rest, (int)left,
                ahead);
}

#define MATMUL_INT8(name, dtype)                                                                   \
    static void unpack_##name(Piece *piece, const Tile *tile) {                                    \
        unpack_form(piece, tile, BLOCK_FORMS[dtype]);                                              \
    }                                                                                              \
    static void matmul_amx_##name(float *out, size_t out_stride, const uint8_t *panels,            \
                                  size_t panel_stride, int n_panels, int n_in, const Rows *x,      \
                                  int n_tokens, ptrdiff_t ahead) {                                 \
        matmul_amx_int8(out, out_stride, panels, panel_stride, n_panels, n_in, x, n_tokens, ahead, \
                        unpack_##name, matmul_##name);                                             \
    }
MATMUL_INT8(q8, Q8)
MATMUL_INT8(q4, Q4)

// ---- the table ----------------------------------------------------------------------------------

// Two first factors times two second ones at a step, as in tile_amx_bf16, but always the same.
INLINE double peak_tiles(size_t steps, bool int8) {
    float out[16 * 16] = {0};
    shape_bf16(16, 16);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, out, 64);
    _tile_loadd(5, out, 64);
    _tile_loadd(6, out, 64);
    _tile_loadd(7, out, 64);
    for (size_t i = 0; i < steps; i++)
        if (int8) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    _tile_stored(0, out, 64);
    _tile_release();
    used(v_load(out));
    return 2.0 * 4 * 16 * 16 * (int8 ? 64 : 32) * (double)steps;
}

static double peak_tiles_bf16(size_t steps) { return peak_tiles(steps, false); }
static double peak_tiles_int8(size_t steps) { return peak_tiles(steps, true); }

const Kernels amx_kernels = {
    .name = "amx",
    .matmul = {[F32] = matmul_f32, [F16] = matmul_f16, [BF16] = matmul_amx_bf16,
               [Q8] = matmul_amx_q8, [Q4] = matmul_amx_q4,
               WEIGHTS_PRODUCTS},  // by VNNI: a tile's sum is of 32 columns
    MIX_KERNELS,
    .peak = {[INPUT_F32] = peak_floats, [INPUT_BF16] = peak_tiles_bf16,
             [INPUT_TURNED] = peak_tiles_int8, [INPUT_INT8] = peak_tiles_int8},
    LANES_KERNELS,
    QUANTIZE_KERNELS,
};
#endif
