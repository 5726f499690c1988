#include "layers/beside.h"

typedef struct {
    const Workspace *w;
    const Norm *norm;
} Beside;

static void join_row(const void *arg, int t, int thread) {
    const Beside *b = arg;
    const Workspace *w = b->w;
    int n = w->model->n_embd;
    float *y = row(w->y, t), *embedding = y + n;
    memcpy(y, row(w->x, t), sizeof *y * (size_t)n);
    unpack_row(w, embedding, &w->stack->embed, w->tokens[t].id);
    w->k->scale(embedding, w->model->emb_scale, n);
    norm_row(w, y, b->norm, y, 2 * n);
}

Buffer beside_embedding(Workspace *w, const Norm *norm) {
    parallel_for(w->pool, w->n_rows, join_row, &(Beside){w, norm});
    return w->y;
}
