// Products of activations with weights. A product is cut into items of some panels and some rows,
// which threads share; no cut changes a bit, since a panel and a row meet in one kernel call.
#include <stdio.h>
#include <string.h>

#include "workspace.h"

typedef struct {
    const Workspace *ws;
    const Product *products;
    Buffer x;
    const Group *groups;
    int panels_per_item, items_per_group;
    int rows_per_item, n_pieces;  // a group's rows are cut into pieces
    bool bf16, q8;                // forms of x that some matrix needs
} Job;

static int input_width(const Job *job) { return job->products[0].w->n_in; }

static void prepare_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    const Kernels *k = job->ws->k;
    const InputForms *in = &job->ws->input;
    int n_in = input_width(job);
    size_t block = (size_t)t * blocks_of(n_in);
    const float *x = row(job->x, t);
    if (job->bf16) k->to_bf16(in->bf16 + block * BLOCK, x, n_in);
    if (job->q8)
        k->to_q8(in->q8 + block * BLOCK, in->scale + block, in->offset + block, x, n_in, true);
}

// The rows of x from `first` on, in every form.
static Rows forms_of(const Job *job, int first) {
    const InputForms *in = &job->ws->input;
    size_t block = (size_t)first * blocks_of(input_width(job));
    return (Rows){
        .f32 = row(job->x, first), .stride = job->x.stride, .bf16 = in->bf16 + block * BLOCK,
        .q = in->q8 + block * BLOCK, .scale = in->scale + block, .offset = in->offset + block,
    };
}

static int n_panels(const Matrix *w) { return (w->n_out + LANES - 1) / LANES; }

// Items that the panels of one matrix make.
static int n_cuts(const Job *job, const Matrix *w) {
    return (n_panels(w) + job->panels_per_item - 1) / job->panels_per_item;
}

// Panels first..first+n-1 of one matrix of a stack, times rows from..from+n_rows-1 of all groups.
static void multiply_panels(const Job *job, const Product *p, int which, int first, int n, int from,
                            int n_rows) {
    const Kernels *k = job->ws->k;
    const Matrix *w = p->w;
    size_t bytes = panel_bytes(w->dtype, w->n_in);
    size_t panel = (size_t)which * (size_t)n_panels(w) + (size_t)first;
    Rows rows = forms_of(job, from);
    k->matmul[w->dtype](row(p->out, from) + first * LANES, p->out.stride, w->data + panel * bytes,
                        bytes, n, w->n_in, &rows, n_rows, 0);
    if (!w->bias) return;
    int begin = first * LANES, end = begin + n * LANES < w->n_out ? begin + n * LANES : w->n_out;
    for (int t = from; t < from + n_rows; t++)
        k->add(row(p->out, t) + begin, w->bias + panel * LANES, end - begin);
}

// Item: (group, some panels of one of the matrices, piece of the group's rows).
static void multiply_item(const void *arg, int item, int thread) {
    const Job *job = arg;
    const Group *g = &job->groups[item / job->n_pieces / job->items_per_group];
    int from = item % job->n_pieces * job->rows_per_item, left = g->n - from;
    if (left <= 0) return;
    int cut = item / job->n_pieces % job->items_per_group;
    const Product *p = job->products;
    for (; cut >= n_cuts(job, p->w); p++) cut -= n_cuts(job, p->w);
    int first = cut * job->panels_per_item, n = n_panels(p->w) - first;
    multiply_panels(job, p, g->which, first, n < job->panels_per_item ? n : job->panels_per_item,
                    g->first + from, left < job->rows_per_item ? left : job->rows_per_item);
}

// Cuts the rows of a group, `most` at most, so that those of an item stay in the second-level
// cache while its panels pass; and further, down to FEWEST rows, where the threads would have too
// little to share. n_uncut: items if no rows were cut.
static void cut_rows(Job *job, int most, int n_uncut) {
    enum { CACHED = 1 << 18, FEWEST = 64 };
    int row_bytes = input_width(job) * (job->q8 ? 1 : job->bf16 ? 2 : 4);
    int rows = CACHED / row_bytes, enough = 8 * pool_threads(job->ws->pool);
    job->n_pieces = (most + FEWEST - 1) / (rows > FEWEST ? rows : FEWEST);
    if (job->n_pieces * n_uncut < enough) job->n_pieces = enough / n_uncut;
    if (job->n_pieces > most / FEWEST) job->n_pieces = most / FEWEST;
    if (job->n_pieces < 1) job->n_pieces = 1;
    job->rows_per_item = (most + job->n_pieces - 1) / job->n_pieces;
}

// ---- what a probe sees ----

enum { MAX_PRODUCTS = 4 };  // of one input

// The name that the checkpoint has for a matrix.
static void name_of(const Workspace *ws, const Matrix *w, char *name, size_t size) {
    const Checkpoint *file = &ws->model->file;
    const Tensor *t = file->tensors;
    while (t < file->tensors + file->n_tensors - 1 && t->data != w->data) t++;
    snprintf(name, size, "%.*s", (int)t->name_len, t->name);
}

static void show_input(const Job *job, int n_products, const Group *groups, int n_groups) {
    const Workspace *ws = job->ws;
    char names[MAX_PRODUCTS][64];
    const char *tensors[MAX_PRODUCTS];
    for (int i = 0; i < n_products; i++) {
        name_of(ws, job->products[i].w, names[i], sizeof names[i]);
        tensors[i] = names[i];
    }
    for (const Group *g = groups; g < groups + n_groups; g++)
        ws->probe.product(ws->probe.context, &(heads_product_input){
            tensors, n_products, g->which, row(job->x, g->first), job->x.stride, g->n,
            input_width(job)});
}

// ---- products ----

void multiply_groups(Workspace *ws, const Product *products, int n_products, Buffer x, int n_rows,
                     const Group *groups, int n_groups) {
    Job job = {.ws = ws, .products = products, .x = x, .groups = groups};
    int total = 0, most = 0;
    size_t bytes = 0;  // of weights, for each row
    for (int i = 0; i < n_products; i++) {
        const Matrix *w = products[i].w;
        job.bf16 |= w->dtype == BF16;
        job.q8 |= w->dtype == Q8 || w->dtype == Q4;
        total += n_panels(w) * n_groups;
        bytes += (size_t)n_panels(w) * panel_bytes(w->dtype, w->n_in);
    }
    for (int i = 0; i < n_groups; i++) most = groups[i].n > most ? groups[i].n : most;
    if (ws->probe.product) show_input(&job, n_products, groups, n_groups);
    if (job.bf16 || job.q8) parallel_for(ws->pool, n_rows, prepare_row, &job);
    // Enough items for the threads to share evenly, each large enough to be worth a claim; kernels
    // like multiples of 4.
    int share = total / (8 * pool_threads(ws->pool)) / 4 * 4;
    job.panels_per_item = share < 4 ? 4 : share > 16 ? 16 : share;
    for (int i = 0; i < n_products; i++) job.items_per_group += n_cuts(&job, products[i].w);
    cut_rows(&job, most, job.items_per_group * n_groups);
    int n_items = job.items_per_group * n_groups * job.n_pieces;
    for_each(ws, bytes * (size_t)n_rows, n_items, multiply_item, &job);
}

void multiply_each(Workspace *ws, const Product *products, int n_products, Buffer x, int n) {
    multiply_groups(ws, products, n_products, x, n, &(Group){.n = n}, 1);
}

void multiply(Workspace *ws, Buffer out, const Matrix *w, Buffer x, int n) {
    multiply_each(ws, &(Product){out, w}, 1, x, n);
}

// ---- single rows ----

// Block b of row `lane` of a q8 or q4 panel, with the Hadamard turn undone.
static void unpack_block(const Workspace *ws, float *out, const Matrix *w, const uint8_t *panel,
                         size_t lane, size_t b) {
    size_t block_bytes = w->dtype == Q8 ? 512 : 256;
    const uint16_t *scales = (const uint16_t *)(panel + blocks_of(w->n_in) * block_bytes);
    float scale = f16_to_f32(scales[b * LANES + lane]) * TURNED_X;
    const uint8_t *q = panel + b * block_bytes;
    for (size_t k = 0; k < BLOCK; k++) {
        size_t byte = k / 4 * 64 + lane * 4 + k % 4;
        if (w->dtype == Q8) {
            out[k] = scale * (float)(q[byte] - 128);
        } else {
            uint8_t codes = q[byte / 128 * 64 + byte % 64];
            out[k] = scale * (float)Q4_CODES[byte % 128 < 64 ? codes & 15 : codes >> 4];
        }
    }
    ws->k->turn(out, out, 1.0f, BLOCK);
}

void unpack_row(const Workspace *ws, float *out, const Matrix *w, int r) {
    const uint8_t *panel = w->data + (size_t)(r / LANES) * panel_bytes(w->dtype, w->n_in);
    size_t lane = (size_t)(r % LANES), n_in = (size_t)w->n_in;
    if (w->dtype == F32)
        for (size_t k = 0; k < n_in; k++) out[k] = ((const float *)panel)[k * LANES + lane];
    else if (w->dtype == BF16)
        for (size_t k = 0; k < n_in; k++)
            out[k] = bf16_to_f32(((const uint16_t *)panel)[k / 2 * 2 * LANES + 2 * lane + k % 2]);
    else
        for (size_t k = 0; k < n_in; k += BLOCK) {
            float block[BLOCK];
            unpack_block(ws, block, w, panel, lane, k / BLOCK);
            memcpy(out + k, block, sizeof *out * (n_in - k < BLOCK ? n_in - k : BLOCK));
        }
}
