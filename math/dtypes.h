// The types of numbers, a row each: how panels, keys and values of 16 rows are made and read. What
// multiplies them is in the kernels' tables. docs/types.md says how to add one.
#ifndef DTYPES_H
#define DTYPES_H

#include "kernels/kernels.h"

// x [dim], a key, as column `lane` of a panel of 16 keys. queries [n_queries][dim]: the token's
// own, of the heads that share the key's, say what a q4 key should keep best; n_queries may be 0.
typedef void PackKeyFn(const Kernels *k, uint8_t *panel, int lane, const float *x,
                       const float *queries, int n_queries, int dim);
// x [dim], a value, as row `lane` of 16 rows of `width` numbers; what pads it stays zero.
typedef void PackValueFn(const Kernels *k, uint8_t *values, int width, int lane, const float *x,
                         int dim);
// out [n_in] = row `lane` of a panel of weights of that type.
typedef void UnpackFn(const Kernels *k, Dtype dtype, float *out, const uint8_t *panel, size_t lane,
                      int n_in);

typedef struct {
    const char *name;       // "f32", "bf16" ..
    uint32_t code;          // in checkpoints and sessions
    int bits;               // of a number, without scales
    int block;              // a row's numbers are padded to a multiple of it
    bool scaled;            // the numbers of a block share scales (kernels/blocks.h)
    bool turned;            // a cache holds H x, not x
    InputForm input;        // of products with weights
    UnpackFn *unpack;       // NULL: weights are never of this type
    PackKeyFn *pack_key;    // NULL: neither are keys and values
    PackValueFn *pack_value;
} DtypeInfo;

extern const DtypeInfo dtypes[N_DTYPES];

// The type of that code, or of that name; N_DTYPES: there is none.
Dtype dtype_of_code(uint32_t code);
Dtype dtype_of_name(const char *name);
// Bytes of a panel, 16 rows with n_in columns; of 16 values of `width` numbers, before their scales
// and with them.
size_t panel_bytes(Dtype dtype, int n_in);
size_t value_bytes(Dtype dtype, int width);
size_t values_bytes(Dtype dtype, int width);

// blocks.c, of types with scales: panel_bytes, and their UnpackFn.
size_t block_panel_bytes(Dtype dtype, int n_in);
void row_blocks(const Kernels *k, Dtype dtype, float *out, const uint8_t *panel, size_t lane,
                int n_in);

#endif
