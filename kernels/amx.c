// AMX: bf16 products of several rows in tiles; everything else as in avx512.c. A block of a bf16 panel is a B tile as it lies
// in the file, and TDPBF16PS sums as every road does: one chain over the even k of a block, one over the odd, then their sum
// to the accumulator. (It takes denormals for 0, which the others don't.)
#define INCLUDED
#include "avx512.c"

#if defined(__x86_64__)

// Tiles 0..3 are sums [16 tokens][16 rows of a panel], 4 and 5 activations [16 tokens][32 k], 6 and 7 weights.
typedef struct {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

// Shapes the tiles for `a` and then `b` tokens, up to 16 each.
static void shape_tiles(int a, int b) {
    const uint8_t rows[8] = {(uint8_t)a, (uint8_t)a, (uint8_t)b, (uint8_t)b, (uint8_t)a, (uint8_t)b, 16, 16};
    TileConfig config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        if (!rows[i]) continue;
        config.rows[i] = rows[i];
        config.row_bytes[i] = 64;
    }
    __asm__ volatile("" : : "m"(config));  // gcc 12 believes that the next line reads 8 bytes, and drops stores to the rest
    _tile_loadconfig(&config);
}

// P panels times G groups of up to 16 tokens, all k.
INLINE void tile_amx(const Tile *tile, int P, int G) {
    const size_t x_stride = tile->n_steps * BLOCK, out_bytes = tile->out_stride * sizeof(float);
    const uint16_t *x = tile->x->bf16 + tile->row * x_stride;
    _tile_zero(0);
    if (P > 1) _tile_zero(1);
    if (G > 1) _tile_zero(2);
    if (P > 1 && G > 1) _tile_zero(3);
    for (size_t b = 0; b < tile->n_steps; b++) {
        _tile_loadd(6, tile->w + b * 1024, 64);
        _tile_loadd(4, x + b * BLOCK, x_stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        if (P > 1) {
            _tile_loadd(7, tile->w + tile->panel_stride + b * 1024, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (G > 1) {
            _tile_loadd(5, x + 16 * x_stride + b * BLOCK, x_stride * 2);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (P > 1 && G > 1) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, tile->out, out_bytes);
    if (P > 1) _tile_stored(1, tile->out + 16, out_bytes);
    if (G > 1) _tile_stored(2, tile->out + 16 * tile->out_stride, out_bytes);
    if (P > 1 && G > 1) _tile_stored(3, tile->out + 16 * tile->out_stride + 16, out_bytes);
}

// All panels times `rows` <= 32 rows from tile.row on.
static void walk_amx(Tile tile, int n_panels, int rows) {
    shape_tiles(rows < 16 ? rows : 16, rows < 16 ? 0 : rows - 16);
    for (int width; n_panels > 0; n_panels -= width) {
        width = n_panels > 1 ? 2 : 1;
        if (rows > 16) width == 2 ? tile_amx(&tile, 2, 2) : tile_amx(&tile, 1, 2);
        else width == 2 ? tile_amx(&tile, 2, 1) : tile_amx(&tile, 1, 1);
        tile.w += (size_t)width * tile.panel_stride;
        tile.out += 16 * width;
    }
}

// A single row streams the panels through fma, with the same bits.
static void matmul_amx(float *out, size_t out_stride, const uint8_t *panels, size_t panel_stride, int n_panels, int n_in,
                       const Rows *x, int n_tokens, ptrdiff_t ahead) {
    if (n_tokens == 1) {
        matmul_bf16(out, out_stride, panels, panel_stride, n_panels, n_in, x, 1, ahead);
        return;
    }
    Tile tile = {out, out_stride, panel_stride, panels, x, 0, 0, 0, blocks_of(n_in), 0};
    for (int rows; n_tokens > 0; n_tokens -= rows) {
        rows = n_tokens < 32 ? n_tokens : 32;
        walk_amx(tile, n_panels, rows);
        tile.row += (size_t)rows;
        tile.out += (size_t)rows * out_stride;
    }
    _tile_release();
}

// Two activations times two weights at a step, as in tile_amx, but always the same.
static double peak_tiles(size_t steps) {
    float out[16 * 16] = {0};
    shape_tiles(16, 16);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, out, 64);
    _tile_loadd(5, out, 64);
    _tile_loadd(6, out, 64);
    _tile_loadd(7, out, 64);
    for (size_t i = 0; i < steps; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, 64);
    _tile_release();
    used(v_load(out));
    return 2.0 * 4 * 16 * 16 * BLOCK * (double)steps;
}

const Kernels amx_kernels = {
    .name = "amx",
    TILES_KERNELS(matmul_amx),
    PEAK_KERNELS(peak_tiles),
    LANES_KERNELS,
};
#endif
