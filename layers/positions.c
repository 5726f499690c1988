// Disentangled attention (DeBERTa, arXiv 2006.03654): to q . k a score adds q . p and k . p', where
// p and p' are the key and the query that the layer has for the distance between the two. They are
// multiplied for all distances at once, head by head, before the scores pick theirs.
#include "layers/attention_tiles.h"

typedef struct {
    const Attention *a;
    Buffer from, to;
    int n;
} Split;

// The rows of one head lie together, so that they meet its matrix in one product.
static void split_row(const void *arg, int t, int thread) {
    const Split *s = arg;
    size_t dim = (size_t)s->a->head_dim;
    for (int h = 0; h < s->a->n_heads; h++)
        memcpy(row(s->to, h * s->n + t), row(s->from, t) + (size_t)h * dim, sizeof(float) * dim);
}

static void multiply_heads(AttentionPass *p, Buffer out, const Matrix *stack, Buffer heads) {
    PositionBuffers *b = &p->b.positions;
    int n = p->w->n_rows, n_heads = p->a->n_heads;
    if (!stack->data) return;
    parallel_for(p->w->pool, n, split_row, &(Split){p->a, heads, b->heads, n});
    for (int h = 0; h < n_heads; h++) b->groups[h] = (Group){h, h * n, n};
    multiply_groups(p->w, &(Product){out, stack}, 1, b->heads, n_heads * n, b->groups, n_heads);
}

void multiply_positions(AttentionPass *p) {
    multiply_heads(p, p->b.positions.of_query, &p->a->pos_k, p->b.q);
    multiply_heads(p, p->b.positions.of_key, &p->a->pos_q, p->b.keys);
}

void add_positions(const AttentionPass *p, const Unit *u, int r, float *x, int begin, int n) {
    const PositionBuffers *pos = &p->b.positions;
    const Ints *rows = &p->w->model->distances;
    const Span *s = u->span;
    int reach = (int)rows->n / 2, at = row_position(u, r), end = text_end(p->a, s);
    int head = row_head(u, r) * p->w->n_rows + s->first - s->pos;  // row of the text's beginning
    for (int i = begin; i < begin + n && i < end; i++) {
        int distance = i - at < -reach ? -reach : i - at > reach ? reach : i - at;
        int j = rows->v[reach + distance];
        float sum = p->a->pos_k.data ? row(pos->of_query, head + at)[j] : 0.0f;
        if (p->a->pos_q.data) sum += row(pos->of_key, head + i)[j];
        x[i - begin] += p->a->scale * sum;
    }
}
