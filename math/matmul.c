// Products of activations with weights. Threads share a product as items: some panels times some
// rows. No cut changes a bit, since one kernel call does all of a panel and a row.
#include "engine.h"
#include "math/probe.h"

typedef struct {  // products of one input
    const Workspace *w;
    const Product *products;
    Buffer x;
    const Group *groups;
    int panels_per_item, items_per_group;
    int rows_per_item, n_cuts;    // n_cuts: items that share a group's rows
    bool bf16, q8;                // some matrix needs this form of x
} Matmul;

static int input_width(const Matmul *m) { return m->products[0].w->n_in; }

// ---- the input, rounded for the weights' dtypes ----

static void convert_row(const void *arg, int t, int thread) {
    const Matmul *m = arg;
    const Kernels *k = m->w->k;
    const InputForms *in = &m->w->input;
    int n_in = input_width(m);
    size_t block = (size_t)t * blocks_apart((size_t)n_in);
    const float *x = row(m->x, t);
    if (m->bf16) k->to_bf16(in->bf16 + block * BLOCK, x, n_in);
    if (m->q8)
        k->to_q8(in->q8 + block * BLOCK, in->scale + block, in->offset + block, x, n_in, true);
}

// The rows of x from `first` on, in every form.
static Rows forms_of(const Matmul *m, int first) {
    const InputForms *in = &m->w->input;
    size_t blocks = blocks_apart((size_t)input_width(m)), block = (size_t)first * blocks;
    return (Rows){.f32 = row(m->x, first), .stride = m->x.stride, .blocks = blocks,
                  .bf16 = in->bf16 + block * BLOCK, .q = in->q8 + block * BLOCK,
                  .scale = in->scale + block, .offset = in->offset + block};
}

// ---- items ----

static int n_panels(const Matrix *matrix) { return (matrix->n_out + LANES - 1) / LANES; }

// Items of one matrix's panels.
static int n_items_of(const Matmul *m, const Matrix *matrix) {
    return (n_panels(matrix) + m->panels_per_item - 1) / m->panels_per_item;
}

// Multiplies panels first..first+n-1 of matrix `which` by rows from..from+n_rows-1 of x.
static void multiply_panels(const Matmul *m, const Product *product, int which, int first, int n,
                            int from, int n_rows) {
    const Kernels *k = m->w->k;
    const Matrix *matrix = product->w;
    Buffer out = product->out;
    size_t bytes = panel_bytes(matrix->dtype, matrix->n_in);
    size_t panel = (size_t)which * (size_t)n_panels(matrix) + (size_t)first;
    Rows rows = forms_of(m, from);
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
    const Matmul *m = arg;
    const Group *g = &m->groups[item / m->n_cuts / m->items_per_group];
    int from = item % m->n_cuts * m->rows_per_item, left = g->n - from;
    if (left <= 0) return;
    int i = item / m->n_cuts % m->items_per_group;
    const Product *p = m->products;
    for (; i >= n_items_of(m, p->w); p++) i -= n_items_of(m, p->w);
    int first = i * m->panels_per_item, n = n_panels(p->w) - first;
    multiply_panels(m, p, g->which, first, n < m->panels_per_item ? n : m->panels_per_item,
                    g->first + from, left < m->rows_per_item ? left : m->rows_per_item);
}

// Cuts groups, of `most` rows at most, so that an item's rows, if the kernels don't want more, stay
// in the second-level cache while its panels pass; and further, down to FEWEST rows, if there would
// be too few items for the threads. n_uncut: items without such cuts.
static void cut_rows(Matmul *m, int most, int n_uncut) {
    enum { CACHED = 1 << 18, FEWEST = 64 };
    int rows = CACHED / (input_width(m) * (m->q8 ? 1 : m->bf16 ? 2 : 4));
    int wanted = m->w->k->rows_wanted, enough = 8 * pool_threads(m->w->pool);
    m->n_cuts = (most + FEWEST - 1) / (rows > wanted ? rows : wanted);
    if (m->n_cuts * n_uncut < enough) m->n_cuts = enough / n_uncut;
    if (m->n_cuts > most / FEWEST) m->n_cuts = most / FEWEST;
    if (m->n_cuts < 1) m->n_cuts = 1;
    m->rows_per_item = (most + m->n_cuts - 1) / m->n_cuts;
}

// ---- products ----

void multiply_groups(Workspace *w, const Product *products, int n_products, Buffer x, int n_rows,
                     const Group *groups, int n_groups) {
    Matmul m = {.w = w, .products = products, .x = x, .groups = groups};
    int total = 0, most = 0;
    size_t bytes = 0;  // of weights, for each row
    for (int i = 0; i < n_products; i++) {
        const Matrix *matrix = products[i].w;
        m.bf16 |= dtypes[matrix->dtype].input == INPUT_BF16;
        m.q8 |= dtypes[matrix->dtype].input == INPUT_INT8;
        total += n_panels(matrix) * n_groups;
        bytes += (size_t)n_panels(matrix) * panel_bytes(matrix->dtype, matrix->n_in);
    }
    for (int i = 0; i < n_groups; i++) most = groups[i].n > most ? groups[i].n : most;
    if (w->probe.product) probe_products(w, products, n_products, x, groups, n_groups);
    if (m.bf16 || m.q8) parallel_for(w->pool, n_rows, convert_row, &m);
    // 8 items a thread, so that shares are even, but no item below 4 panels; kernels are fastest
    // with multiples of 4.
    int share = total / (8 * pool_threads(w->pool)) / 4 * 4;
    m.panels_per_item = share < 4 ? 4 : share > 16 ? 16 : share;
    for (int i = 0; i < n_products; i++) m.items_per_group += n_items_of(&m, products[i].w);
    cut_rows(&m, most, m.items_per_group * n_groups);
    int n_items = m.items_per_group * n_groups * m.n_cuts;
    parallel_if_large(w, bytes * (size_t)n_rows, n_items, multiply_item, &m);
}

void unpack_row(const Workspace *w, float *out, const Matrix *matrix, int r) {
    size_t bytes = panel_bytes(matrix->dtype, matrix->n_in);
    dtypes[matrix->dtype].unpack(w->k, out, matrix->data + (size_t)(r / LANES) * bytes,
                                 (size_t)(r % LANES), matrix->n_in);
}

void multiply_each(Workspace *w, const Product *products, int n_products, Buffer x, int n) {
    multiply_groups(w, products, n_products, x, n, &(Group){.n = n}, 1);
}

void multiply(Workspace *w, Buffer out, const Matrix *matrix, Buffer x, int n) {
    multiply_each(w, &(Product){out, matrix}, 1, x, n);
}
