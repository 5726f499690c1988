// AMX tiles and the dot product of AVX-VNNI in plain C, from Intel's description of the
// instructions and, for the sums of TDPBF16PS, from what they were seen to be. `make EMULATED=1`
// puts it before kernels/amx.c and kernels/avxvnni.c, so that test_kernels checks their logic on
// processors that lack the units.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    int rows, row_bytes;
    uint8_t data[16][64];
} emulated_tiles[8];

#define EMULATED_CHECK(condition)                                                        \
    do {                                                                                 \
        if (!(condition)) fprintf(stderr, "emulated AMX: not " #condition "\n"), abort(); \
    } while (0)

static inline void emulated_loadconfig(const uint8_t *config) {
    EMULATED_CHECK(config[0] == 1 && config[1] == 0);
    for (int i = 0; i < 8; i++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, config + 16 + 2 * i, sizeof row_bytes);
        EMULATED_CHECK(row_bytes <= 64 && config[48 + i] <= 16 && !row_bytes == !config[48 + i]);
        emulated_tiles[i].rows = config[48 + i];
        emulated_tiles[i].row_bytes = row_bytes;
    }
}

static inline void emulated_release(void) { memset(emulated_tiles, 0, sizeof emulated_tiles); }

static inline void emulated_zero(int t) {
    EMULATED_CHECK(emulated_tiles[t].rows > 0);
    memset(emulated_tiles[t].data, 0, sizeof emulated_tiles[t].data);
}

static inline void emulated_loadd(int t, const void *base, size_t stride) {
    emulated_zero(t);
    for (int i = 0; i < emulated_tiles[t].rows; i++)
        memcpy(emulated_tiles[t].data[i], (const uint8_t *)base + (size_t)i * stride,
               (size_t)emulated_tiles[t].row_bytes);
}

static inline void emulated_stored(int t, void *base, size_t stride) {
    EMULATED_CHECK(emulated_tiles[t].rows > 0);
    for (int i = 0; i < emulated_tiles[t].rows; i++)
        memcpy((uint8_t *)base + (size_t)i * stride, emulated_tiles[t].data[i],
               (size_t)emulated_tiles[t].row_bytes);
}

static inline float emulated_bf16(const uint8_t *p) {
    uint32_t u = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline void emulated_check_product(int c, int a, int b) {
    EMULATED_CHECK(emulated_tiles[c].rows == emulated_tiles[a].rows);
    EMULATED_CHECK(emulated_tiles[a].row_bytes == 4 * emulated_tiles[b].rows);
    EMULATED_CHECK(emulated_tiles[c].row_bytes == emulated_tiles[b].row_bytes);
}

// c[m][n] += the chain over even k + the chain over odd k, each of fused multiply-adds from 0.
static inline void emulated_dpbf16ps(int c, int a, int b) {
    emulated_check_product(c, a, b);
    for (int m = 0; m < emulated_tiles[c].rows; m++)
        for (int n = 0; n < emulated_tiles[c].row_bytes / 4; n++) {
            float sum, chain[2] = {0};
            for (int k = 0; k < emulated_tiles[b].rows; k++)
                for (int odd = 0; odd < 2; odd++)
                    chain[odd] = fmaf(emulated_bf16(&emulated_tiles[a].data[m][4 * k + 2 * odd]),
                                      emulated_bf16(&emulated_tiles[b].data[k][4 * n + 2 * odd]),
                                      chain[odd]);
            memcpy(&sum, &emulated_tiles[c].data[m][4 * n], sizeof sum);
            sum += chain[0] + chain[1];
            memcpy(&emulated_tiles[c].data[m][4 * n], &sum, sizeof sum);
        }
}

// c[m][n] += products of signed bytes.
static inline void emulated_dpbssd(int c, int a, int b) {
    emulated_check_product(c, a, b);
    for (int m = 0; m < emulated_tiles[c].rows; m++)
        for (int n = 0; n < emulated_tiles[c].row_bytes / 4; n++) {
            int32_t sum;
            memcpy(&sum, &emulated_tiles[c].data[m][4 * n], sizeof sum);
            for (int k = 0; k < emulated_tiles[a].row_bytes; k++)
                sum += (int8_t)emulated_tiles[a].data[m][k] *
                       (int8_t)emulated_tiles[b].data[k / 4][4 * n + k % 4];
            memcpy(&emulated_tiles[c].data[m][4 * n], &sum, sizeof sum);
        }
}

// sum + four products of unsigned by signed bytes, in each of 8 lanes.
static inline __m256i emulated_dpbusd(__m256i sum, __m256i u, __m256i s) {
    int32_t out[8];
    uint8_t a[32];
    int8_t b[32];
    memcpy(out, &sum, sizeof out), memcpy(a, &u, sizeof a), memcpy(b, &s, sizeof b);
    for (int i = 0; i < 32; i++) out[i / 4] += a[i] * b[i];
    memcpy(&sum, out, sizeof out);
    return sum;
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _mm256_dpbusd_avx_epi32
#define _tile_loadconfig(config) emulated_loadconfig((const uint8_t *)(config))
#define _tile_release() emulated_release()
#define _tile_zero(t) emulated_zero(t)
#define _tile_loadd(t, base, stride) emulated_loadd(t, base, stride)
#define _tile_stored(t, base, stride) emulated_stored(t, base, stride)
#define _tile_dpbf16ps(c, a, b) emulated_dpbf16ps(c, a, b)
#define _tile_dpbssd(c, a, b) emulated_dpbssd(c, a, b)
#define _mm256_dpbusd_avx_epi32(sum, u, s) emulated_dpbusd(sum, u, s)
