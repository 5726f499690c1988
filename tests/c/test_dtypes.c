// The table of types: names and codes find their rows, a packed key is read back within its type's
// rounding, packing a key or a value leaves its 15 neighbours as they were, and rows of kept types
// have their numbers.
#include "tests/c/kernel_checks.h"

enum { N = 2 * BLOCK };

static const Kernels *k = &scalar_kernels;

static void test_names(Dtype dtype) {
    const DtypeInfo *d = &dtypes[dtype];
    bool ok = dtype_of_name(d->name) == dtype && dtype_of_code(d->code) == dtype &&
              (!d->scaled || BLOCK_FORMS[dtype].bits == d->bits);
    report("dtypes", d->name, ok, "its name or its code finds another row");
}

// Unpacking turns a block back as if it were weights, so a key that was not turned is turned once
// more. An f16 key is off by half of its last place. A q8 key is off by half a step and by what its
// f16 scale is off: 127 / 2048 of a step. A q4 key is off by less than a sixth of the largest
// number.
static void test_key_is_read_back(Dtype dtype, const float *x) {
    const DtypeInfo *d = &dtypes[dtype];
    const float rounding = d->bits == 32   ? 0.0f
                           : d->bits == 16 ? 0.5f / 1024
                           : d->bits == 8  ? 0.57f / 127
                                           : 1.0f / 6;
    uint8_t *panel = allocate(panel_bytes(dtype, N));
    float out[N], worst = 0, largest = 0;
    memset(panel, 0, panel_bytes(dtype, N));
    for (int lane = 0; lane < LANES; lane++) d->pack_key(k, panel, lane, x + lane * N, NULL, 0, N);
    for (int lane = 0; lane < LANES; lane++) {
        d->unpack(k, dtype, out, panel, (size_t)lane, N);
        for (int b = 0; d->scaled && !d->turned && b < N; b += BLOCK)
            k->hadamard(out + b, out + b, TURNED_W, BLOCK);
        for (int i = 0; i < N; i++) {
            worst = fmaxf(worst, fabsf(out[i] - x[lane * N + i]));
            largest = fmaxf(largest, fabsf(x[lane * N + i]));
        }
    }
    report("dtypes: key read back", d->name, worst <= rounding * largest, "off by %g of %g",
           (double)worst, (double)largest);
    free(panel);
}

// The same bytes, whichever lane is packed first.
static void test_neighbours(Dtype dtype, const float *x, int n) {
    const DtypeInfo *d = &dtypes[dtype];
    int width = (int)round_up((size_t)n, BLOCK);
    size_t bytes[] = {panel_bytes(dtype, n), values_bytes(dtype, width)};
    for (int values = 0; values < 2; values++) {
        uint8_t *packed[2];
        for (int down = 0; down < 2; down++) {
            packed[down] = memset(allocate(bytes[values]), 0, bytes[values]);
            for (int i = 0; i < LANES; i++) {
                int lane = down ? LANES - 1 - i : i;
                if (values) d->pack_value(k, packed[down], width, lane, x + lane * N, n);
                else d->pack_key(k, packed[down], lane, x + lane * N, NULL, 0, n);
            }
        }
        report(values ? "dtypes: values apart" : "dtypes: keys apart", d->name,
               memcmp(packed[0], packed[1], bytes[values]) == 0, "%d numbers overlap", n);
        free(packed[0]), free(packed[1]);
    }
}

// A row of a kept type is, to the bit of f32, what docs/format.md makes of the panel; its products
// and one sum are exact or rounded once.
static void test_row_is_read(Dtype dtype) {
    enum { COLUMNS = 9 * BLOCK + 7 };
    uint8_t *panel = allocate(panel_bytes(dtype, COLUMNS));
    float out[COLUMNS];
    int wrong = 0;
    random_panel(panel, dtype, COLUMNS, PLAIN);
    for (int lane = 0; lane < LANES; lane++) {
        dtypes[dtype].unpack(k, dtype, out, panel, (size_t)lane, COLUMNS);
        for (int i = 0; i < COLUMNS; i++)
            wrong += out[i] !=
                     (float)weight_alone(panel, dtype, (int)blocks_of(COLUMNS), lane, i);
    }
    report("dtypes: row read", dtypes[dtype].name, wrong == 0, "%d numbers differ", wrong);
    free(panel);
}

int main(void) {
    float *x = random_floats((size_t)LANES * N, PLAIN);
    report("dtypes", "unknown", dtype_of_name("q7") == N_DTYPES && dtype_of_code(99) == N_DTYPES,
           "a type that there is not was found");
    for (int d = 0; d < N_DTYPES; d++) {
        test_names((Dtype)d);
        if (dtypes[d].pack_key && dtypes[d].unpack) test_key_is_read_back((Dtype)d, x);
        if (is_kept((Dtype)d)) test_row_is_read((Dtype)d);
        if (dtypes[d].pack_key) test_neighbours((Dtype)d, x, N), test_neighbours((Dtype)d, x, 37);
    }
    free(x);
    return failures != 0;
}
