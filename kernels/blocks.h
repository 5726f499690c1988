// The layouts of blocks in a panel of weights (docs/format.md): a row of the table for each type.
#ifndef BLOCKS_H
#define BLOCKS_H

#include "kernels.h"

enum { SHARING = 8 };  // blocks that share an f16

// What multiplies the numbers of a block, 32 columns, for each of a panel's 16 rows, and what is
// added. All codes of a panel come first, then this, block by block (an even number of blocks),
// then what each 256 columns share.
typedef enum {
    SCALE,        // f16 scale [16]
    SCALE_MIN,    // f16 scale [16], minimum [16]
    SCALE_K,      // int8 s [16], m [16]; of 256: f16 d [16], e [16]; d s and -e m
    SCALE_K16,    // int8 s [16] of the first 16 columns, and of the others; of 256: f16 d [16]; d s
    SCALE_8       // int8 s [16]; of 256: f16 d [16]; d s / 128
} Scales;

// A type of blocks. Code c is numbers[c], of which none is below least, or c + least. kept: another
// program's file has these numbers; products take x as it is, in parts of 16 columns. Other types
// are turned, as x is, in blocks of 32.
typedef struct {
    int bits;
    Scales scales;
    bool kept;
    const int8_t *numbers;
    int least;
} BlockForm;

extern const int8_t IQ4_CODES[16], MXFP4_CODES[16], Q3_CODES[16], Q2_CODES[16];

static const BlockForm BLOCK_FORMS[N_DTYPES] = {
    [HEADS_Q8] = {8, SCALE, false, NULL, -128},
    [HEADS_Q4] = {4, SCALE, false, Q4_CODES, 0},
    [HEADS_Q8_0] = {8, SCALE, true, NULL, -128},
    [HEADS_Q4_0] = {4, SCALE, true, NULL, -8},
    [HEADS_Q4_1] = {4, SCALE_MIN, true, NULL, 0},
    [HEADS_Q5_0] = {5, SCALE, true, NULL, -16},
    [HEADS_Q5_1] = {5, SCALE_MIN, true, NULL, 0},
    [HEADS_IQ4_NL] = {4, SCALE, true, IQ4_CODES, 0},
    [HEADS_MXFP4] = {4, SCALE, true, MXFP4_CODES, 0},
    [HEADS_Q4_K] = {4, SCALE_K, true, NULL, 0},
    [HEADS_Q5_K] = {5, SCALE_K, true, NULL, 0},
    [HEADS_Q6_K] = {6, SCALE_K16, true, NULL, -32},
    [HEADS_IQ4_XS] = {4, SCALE_K, true, IQ4_CODES, 0},
    [HEADS_Q2] = {2, SCALE_8, false, Q2_CODES, -32},
    [HEADS_Q3] = {3, SCALE_8, false, Q3_CODES, -32},
    [HEADS_Q5] = {5, SCALE_8, false, NULL, -16},
    [HEADS_Q6] = {6, SCALE_8, false, NULL, -32},
    [HEADS_TQ2_0] = {2, SCALE_8, true, NULL, -1},
};

// The types of weights alone. X(name, type, tiles, P, T): codes are numbers, and tiles.h says in
// which tiles several rows take them. X(name, type, P, T) and X(name, type): the type has loops of
// its own, small ones where files rarely have it. X(name, type, loops): another's loops serve, with
// the type's own numbers.
#define EACH_CODES(X, P, T)                                                                        \
    X(q4_0, HEADS_Q4_0, codes, P, T)                                                               \
    X(q4_1, HEADS_Q4_1, codes_min, P, T)                                                           \
    X(q5_0, HEADS_Q5_0, codes, P, T)                                                               \
    X(q5_1, HEADS_Q5_1, codes_min, P, T)                                                           \
    X(q4_k, HEADS_Q4_K, codes_min, P, T)                                                           \
    X(q5_k, HEADS_Q5_K, codes_min, P, T)                                                           \
    X(q6_k, HEADS_Q6_K, codes_6, P, T)                                                             \
    X(tq2_0, HEADS_TQ2_0, codes, P, T)                                                             \
    X(q2, HEADS_Q2, turned, P, T)                                                                  \
    X(q3, HEADS_Q3, turned, P, T)                                                                  \
    X(q5, HEADS_Q5, turned, P, T)                                                                  \
    X(q6, HEADS_Q6, turned, P, T)
#define EACH_WEIGHTS(X, P, T) X(q8_0, HEADS_Q8_0, P, T)
#define EACH_RARE(X) X(iq4_nl, HEADS_IQ4_NL) X(iq4_xs, HEADS_IQ4_XS)
#define EACH_BORROWER(X) X(mxfp4, HEADS_MXFP4, iq4_nl)
#define MATMUL_OF(name, dtype, ...) [dtype] = matmul_##name,
#define WEIGHTS_PRODUCTS                                                                           \
    EACH_CODES(MATMUL_OF, , ) EACH_WEIGHTS(MATMUL_OF, , ) EACH_RARE(MATMUL_OF)                     \
    EACH_BORROWER(MATMUL_OF)

// In a panel: bytes of a block's codes and of its scales, and of what 256 columns share.
static inline size_t code_bytes(BlockForm form) { return (size_t)(LANES * BLOCK * form.bits / 8); }
static inline size_t scale_bytes(BlockForm form) {
    return form.scales == SCALE_MIN ? 64 : form.scales == SCALE_8 ? 16 : 32;
}
static inline size_t shared_bytes(BlockForm form) {
    return form.scales == SCALE_K ? 64 : form.scales >= SCALE_K16 ? 32 : 0;
}
// The scales of block b of n, and what its 256 columns share.
static inline const uint8_t *scales_of(const uint8_t *panel, BlockForm form, size_t n, size_t b) {
    return panel + n * code_bytes(form) + b * scale_bytes(form);
}
static inline const uint8_t *shared_of(const uint8_t *panel, BlockForm form, size_t n, size_t b) {
    return scales_of(panel, form, n, round_up(n, 2)) + b / SHARING * shared_bytes(form);
}

// A code of a block: of group g, four columns, byte j of 64 is row j / 4 and column
// 4 g + j % 4. Bytes hold codes of groups g and g + 1 in their halves; of five bits, the fifth ones
// of all groups follow in 64 bytes, of six the others of groups 0-3 and then 4-7. Two bits lie as
// these, and the third ones follow as the fifth.
static inline int block_code(const uint8_t *codes, BlockForm form, size_t g, size_t j) {
    if (form.bits == 8) return codes[64 * g + j];
    int code = form.bits < 4 ? codes[g / 4 * 64 + j] >> g % 4 * 2 & 3
                             : codes[g / 2 * 64 + j] >> g % 2 * 4 & 15;
    if (form.bits == 3) code |= (codes[128 + j] >> g & 1) << 2;
    if (form.bits == 5) code |= (codes[256 + j] >> g & 1) << 4;
    if (form.bits == 6) code |= (codes[256 + g / 4 * 64 + j] >> g % 4 * 2 & 3) << 4;
    return code;
}
static inline int block_number(const uint8_t *codes, BlockForm form, size_t g, size_t j) {
    const int code = block_code(codes, form, g, j);
    return form.numbers ? form.numbers[code] : code + form.least;
}

#endif
