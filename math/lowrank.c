// Products with an adapter's matrices, by the kernels of all products. Rows of sequences that have
// none are not touched, and a row's result depends on itself alone, as everywhere.
#include "math/lowrank.h"

#include <stdlib.h>

#include "math/adapted.h"

enum {
    PIECE_ROWS = 16, MAX_PIECES = 64,
    SLICE = 8  // panels of an item
};

struct LowRows {
    int rank;        // the largest that rows have room for, a multiple of 2 BLOCK
    float *reduced;  // [MAX_PIECES][PIECE_ROWS][rank], scale a x
    uint16_t *bf16;  // the same, for b in bf16
};

typedef struct {  // rows first..first+n-1 of a product that have one adapter
    const Product *product;
    const LowRank *pair;
    float scale;
    int which, first, n;
} Piece;

typedef struct {
    Workspace *w;
    Buffer x;
    int n_in, n_rows, n_pieces;
    int slices;                  // items of a piece
    bool bf16, converted;        // some a is; w->input.bf16 has x
    size_t bytes;                // that the pieces read
    Piece pieces[MAX_PIECES];
} LowPass;

// ---- the two products ----

static const uint8_t *panels_of(const Matrix *m, int which, int first) {
    size_t of_one = ((size_t)m->n_out + LANES - 1) / LANES;
    return m->data + ((size_t)which * of_one + (size_t)first) * panel_bytes(m->dtype, m->n_in);
}

static void convert_row(const void *arg, int t, int thread) {
    const LowPass *p = arg;
    size_t at = (size_t)t * blocks_apart((size_t)p->n_in) * BLOCK;
    p->w->k->to_bf16(p->w->input.bf16 + at, row(p->x, t), p->n_in);
}

// reduced = scale a x, of a piece
static void reduce_piece(const void *arg, int item, int thread) {
    const LowPass *p = arg;
    const Piece *piece = &p->pieces[item];
    const Kernels *k = p->w->k;
    const Matrix *a = &piece->pair->a;
    const LowRows *low = p->w->low;
    size_t rank = (size_t)low->rank, at = (size_t)item * PIECE_ROWS * rank;
    size_t blocks = blocks_apart((size_t)a->n_in);
    Rows rows = {.f32 = row(p->x, piece->first), .stride = p->x.stride, .blocks = blocks,
                 .bf16 = p->w->input.bf16 + (size_t)piece->first * blocks * BLOCK};
    float *out = low->reduced + at;
    k->matmul[a->dtype](out, rank, panels_of(a, piece->which, 0), panel_bytes(a->dtype, a->n_in),
                        (a->n_out + LANES - 1) / LANES, a->n_in, &rows, piece->n, 0);
    for (int t = 0; t < piece->n; t++, out += rank, at += rank) {
        k->scale(out, piece->scale, a->n_out);
        if (dtypes[piece->pair->b.dtype].input != INPUT_BF16) continue;
        k->to_bf16(low->bf16 + at, out, a->n_out);
    }
}

// Item: out += b reduced, for some panels of a piece.
static void expand_piece(const void *arg, int item, int thread) {
    const LowPass *p = arg;
    const Piece *piece = &p->pieces[item / p->slices];
    const Kernels *k = p->w->k;
    const Matrix *b = &piece->pair->b;
    const LowRows *low = p->w->low;
    size_t rank = (size_t)low->rank, at = (size_t)(item / p->slices) * PIECE_ROWS * rank;
    int first = item % p->slices * SLICE, left = (b->n_out + LANES - 1) / LANES - first;
    int n = b->n_out - first * LANES < SLICE * LANES ? b->n_out - first * LANES : SLICE * LANES;
    if (left <= 0) return;
    _Alignas(64) float more[PIECE_ROWS][SLICE * LANES];
    Rows rows = {.f32 = low->reduced + at, .stride = rank, .blocks = rank / BLOCK,
                 .bf16 = low->bf16 + at};
    k->matmul[b->dtype](more[0], SLICE * LANES, panels_of(b, piece->which, first),
                        panel_bytes(b->dtype, b->n_in), left < SLICE ? left : SLICE, b->n_in, &rows,
                        piece->n, 0);
    for (int t = 0; t < piece->n; t++)
        k->add(row(piece->product->out, piece->first + t) + first * LANES, more[t], n);
}

static void run_pieces(LowPass *p) {
    Workspace *w = p->w;
    if (p->bf16 && !p->converted) parallel_for(w->pool, p->n_rows, convert_row, p);
    p->converted |= p->bf16;
    parallel_if_large(w, p->bytes, p->n_pieces, reduce_piece, p);
    parallel_if_large(w, p->bytes, p->n_pieces * p->slices, expand_piece, p);
    p->n_pieces = p->slices = 0;
    p->bytes = 0;
}

// ---- which rows ----

const LowRank *low_rank_of(const heads_adapter *a, const Matrix *matrix) {
    const LowRank of = {.of = matrix->data};
    return a ? bsearch(&of, a->pairs, (size_t)a->n, sizeof of, by_matrix) : NULL;
}

static void add_piece(LowPass *p, const Product *product, const Adapted *by, int which, int first,
                      int n) {
    const LowRank *pair = low_rank_of(by->adapter, product->matrix);
    if (!pair) return;
    if (p->n_pieces == MAX_PIECES) run_pieces(p);
    p->pieces[p->n_pieces++] = (Piece){product, pair, by->scale, which, first, n};
    int slices = (pair->b.n_out + SLICE * LANES - 1) / (SLICE * LANES);
    if (slices > p->slices) p->slices = slices;
    p->bytes += (size_t)n * ((size_t)(pair->a.n_out + LANES) * (size_t)pair->a.n_in +
                             (size_t)pair->b.n_out * (size_t)pair->b.n_in) * sizeof(float);
    p->bf16 |= dtypes[pair->a.dtype].input == INPUT_BF16;
}

static const Adapted *adapted_of(const Workspace *w, int t) {
    return &w->tokens[w->row_of ? w->row_of[t] : t % w->n_rows].sequence->adapted;
}

static bool any_adapted(const Workspace *w) {
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++)
        if (s->sequence->adapted.adapter) return true;
    return false;
}

void add_low_ranks(Workspace *w, const Product *products, int n_products, Buffer x, int n_rows,
                   const Group *groups, int n_groups) {
    if (!any_adapted(w)) return;
    LowPass p = {.w = w, .x = x, .n_in = products[0].matrix->n_in, .n_rows = n_rows};
    for (const Group *g = groups; g < groups + n_groups; g++)
        for (int t = g->first, n; t < g->first + g->n; t += n) {
            const Adapted *by = adapted_of(w, t);
            int most = g->first + g->n - t < PIECE_ROWS ? g->first + g->n - t : PIECE_ROWS;
            for (n = 1; n < most && same_adapted(adapted_of(w, t + n), by);) n++;
            for (int i = 0; by->adapter && i < n_products; i++)
                add_piece(&p, &products[i], by, g->which, t, n);
        }
    run_pieces(&p);
}

// ---- memory ----

int make_low_rows(Workspace *w, int rank, Error *err) {
    size_t width = round_up((size_t)rank, 2 * BLOCK), n = MAX_PIECES * PIECE_ROWS * width;
    if (w->low && w->low->rank >= rank) return 0;
    size_t head = round_up(sizeof(LowRows), 64);
    uint8_t *memory = malloc(head + n * (sizeof(float) + sizeof(uint16_t)));
    if (!memory) return fail(err, "no memory for products with an adapter of rank %d", rank);
    free(w->low);
    w->low = (LowRows *)memory;
    *w->low = (LowRows){(int)width, (float *)(memory + head),
                        (uint16_t *)(memory + head + n * sizeof(float))};
    return 0;
}
