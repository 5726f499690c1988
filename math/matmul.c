// Products of activations with weights. Threads share a product as items: some panels times some
// rows. No cut changes a bit, since one kernel call does all of a panel and a row.
#include "engine.h"
#include "math/lowrank.h"
#include "math/probe.h"

typedef struct {  // products of one input
    const Workspace *w;
    const Product *products;
    Buffer x;
    const Group *groups;
    int panels_per_item, items_per_group;
    int rows_per_item, n_cuts;    // n_cuts: items that share a group's rows
    bool needs[N_INPUTS];         // some matrix needs this form of x
} Matmul;

static int input_width(const Matmul *mul) { return mul->products[0].matrix->n_in; }
static bool needs_int8(const Matmul *mul) {
    return mul->needs[INPUT_TURNED] || mul->needs[INPUT_INT8];
}

// ---- the input, rounded for the weights' dtypes ----

static Int8Rows parts_from(const Int8Rows *p, size_t block) {
    return (Int8Rows){.q = p->q + block * BLOCK, .rest = p->rest + block * BLOCK,
                      .scale = p->scale + 2 * block, .rest_scale = p->rest_scale + 2 * block,
                      .offset = p->offset + 2 * block, .rest_offset = p->rest_offset + 2 * block,
                      .sum = p->sum + block};
}

static void convert_row(const void *arg, int t, int thread) {
    const Matmul *mul = arg;
    const Kernels *k = mul->w->k;
    const InputForms *in = &mul->w->input;
    int n_in = input_width(mul);
    size_t block = (size_t)t * blocks_apart((size_t)n_in);
    const float *x = row(mul->x, t);
    if (mul->needs[INPUT_BF16]) k->to_bf16(in->bf16 + block * BLOCK, x, n_in);
    if (mul->needs[INPUT_TURNED])
        k->to_q8(in->turned.q + block * BLOCK, in->turned.scale + block, in->turned.offset + block,
                 x, n_in, true);
    if (mul->needs[INPUT_INT8]) {
        const Int8Rows out = parts_from(&in->parts, block);
        k->to_parts(&out, x, n_in);
    }
}

// The rows of x from `first` on, in the form that a matrix wants.
static Rows rows_for(const Matmul *mul, const Matrix *matrix, int first) {
    const InputForms *in = &mul->w->input;
    size_t blocks = blocks_apart((size_t)input_width(mul)), block = (size_t)first * blocks;
    Rows rows = {.f32 = row(mul->x, first), .stride = mul->x.stride, .blocks = blocks,
                 .bf16 = in->bf16 + block * BLOCK, .q = in->turned.q + block * BLOCK,
                 .scale = in->turned.scale + block, .offset = in->turned.offset + block};
    if (dtypes[matrix->dtype].input != INPUT_INT8) return rows;
    const Int8Rows p = parts_from(&in->parts, block);
    rows.q = p.q, rows.scale = p.scale, rows.offset = p.offset, rows.sum = p.sum;
    rows.rest = p.rest, rows.rest_scale = p.rest_scale, rows.rest_offset = p.rest_offset;
    return rows;
}

// ---- items ----

static int n_panels(const Matrix *matrix) { return (matrix->n_out + LANES - 1) / LANES; }

// Items of one matrix's panels.
static int n_items_of(const Matmul *mul, const Matrix *matrix) {
    return (n_panels(matrix) + mul->panels_per_item - 1) / mul->panels_per_item;
}

// Multiplies panels first..first+n-1 of matrix `which` by rows from..from+n_rows-1 of x.
static void multiply_panels(const Matmul *mul, const Product *product, int which, int first, int n,
                            int from, int n_rows) {
    const Kernels *k = mul->w->k;
    const Matrix *matrix = product->matrix;
    Buffer out = product->out;
    size_t bytes = panel_bytes(matrix->dtype, matrix->n_in);
    size_t panel = (size_t)which * (size_t)n_panels(matrix) + (size_t)first;
    Rows rows = rows_for(mul, matrix, from);
    k->matmul[matrix->dtype](row(out, from) + first * LANES, out.stride,
                             matrix->data + panel * bytes, bytes, n, matrix->n_in, &rows, n_rows,
                             0);
    if (!matrix->bias) return;
    int begin = first * LANES, end = begin + n * LANES;
    if (end > matrix->n_out) end = matrix->n_out;
    for (int t = from; t < from + n_rows; t++)
        k->add(row(out, t) + begin, matrix->bias + panel * LANES, end - begin);
}

// Item: (group, some panels of one of the matrices, some of the group's rows).
static void multiply_item(const void *arg, int item, int thread) {
    const Matmul *mul = arg;
    const Group *g = &mul->groups[item / mul->n_cuts / mul->items_per_group];
    int from = item % mul->n_cuts * mul->rows_per_item, left = g->n - from;
    if (left <= 0) return;
    int i = item / mul->n_cuts % mul->items_per_group;
    const Product *p = mul->products;
    for (; i >= n_items_of(mul, p->matrix); p++) i -= n_items_of(mul, p->matrix);
    int first = i * mul->panels_per_item, n = n_panels(p->matrix) - first;
    multiply_panels(mul, p, g->which, first, n < mul->panels_per_item ? n : mul->panels_per_item,
                    g->first + from, left < mul->rows_per_item ? left : mul->rows_per_item);
}

// Cuts the rows of groups, `most` in the largest. An item's rows should stay in the second-level
// cache while its panels pass, unless the kernels want more rows. If that leaves too few items for
// the threads, items get fewer rows, down to FEWEST. n_uncut: items if no rows are cut.
static void cut_rows(Matmul *mul, int most, int n_uncut) {
    enum { CACHED = 1 << 18, FEWEST = 64 };
    int rows = CACHED / (input_width(mul) * (needs_int8(mul) ? 1 : mul->needs[INPUT_BF16] ? 2 : 4));
    int wanted = mul->w->k->rows_wanted, enough = 8 * pool_threads(mul->w->pool);
    mul->n_cuts = (most + FEWEST - 1) / (rows > wanted ? rows : wanted);
    if (mul->n_cuts * n_uncut < enough) mul->n_cuts = enough / n_uncut;
    if (mul->n_cuts > most / FEWEST) mul->n_cuts = most / FEWEST;
    if (mul->n_cuts < 1) mul->n_cuts = 1;
    mul->rows_per_item = (most + mul->n_cuts - 1) / mul->n_cuts;
}

// ---- products ----

void multiply_groups(Workspace *w, const Product *products, int n_products, Buffer x, int n_rows,
                     const Group *groups, int n_groups) {
    Matmul mul = {.w = w, .products = products, .x = x, .groups = groups};
    int total = 0, most = 0;
    size_t bytes = 0;  // of weights, for each row
    for (int i = 0; i < n_products; i++) {
        const Matrix *matrix = products[i].matrix;
        mul.needs[dtypes[matrix->dtype].input] = true;
        total += n_panels(matrix) * n_groups;
        bytes += (size_t)n_panels(matrix) * panel_bytes(matrix->dtype, matrix->n_in);
    }
    for (int i = 0; i < n_groups; i++) most = groups[i].n > most ? groups[i].n : most;
    if (w->probe.product) probe_products(w, products, n_products, x, groups, n_groups);
    if (mul.needs[INPUT_BF16] || needs_int8(&mul)) parallel_for(w->pool, n_rows, convert_row, &mul);
    // 8 items a thread, so that shares are even, but no item below 4 panels; kernels are fastest
    // with multiples of 4.
    int share = total / (8 * pool_threads(w->pool)) / 4 * 4;
    mul.panels_per_item = share < 4 ? 4 : share > 16 ? 16 : share;
    for (int i = 0; i < n_products; i++)
        mul.items_per_group += n_items_of(&mul, products[i].matrix);
    cut_rows(&mul, most, mul.items_per_group * n_groups);
    int n_items = mul.items_per_group * n_groups * mul.n_cuts;
    parallel_if_large(w, bytes * (size_t)n_rows, n_items, multiply_item, &mul);
    if (w->low) add_low_ranks(w, products, n_products, x, n_rows, groups, n_groups);
}

void unpack_row(const Workspace *w, float *out, const Matrix *matrix, int r) {
    size_t bytes = panel_bytes(matrix->dtype, matrix->n_in);
    dtypes[matrix->dtype].unpack(w->k, matrix->dtype, out,
                                 matrix->data + (size_t)(r / LANES) * bytes, (size_t)(r % LANES),
                                 matrix->n_in);
}

void multiply_each(Workspace *w, const Product *products, int n_products, Buffer x, int n) {
    multiply_groups(w, products, n_products, x, n, &(Group){.n = n}, 1);
}

void multiply(Workspace *w, Buffer out, const Matrix *matrix, Buffer x, int n) {
    multiply_each(w, &(Product){out, matrix}, 1, x, n);
}
