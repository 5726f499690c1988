// One attention block for MHA, GQA and MQA: they differ in how many query heads share a KV head,
// nothing else. Latent attention is MQA whose values are a part of the keys.
//
// Softmax streams over tiles of TILE positions that begin at multiples of TILE: each tile gives its
// own maximum m, sum l of exponentials and mix o of values, and the tiles of a row are merged in
// order (the recurrence of FlashAttention, Dao et al. 2022). A row's result therefore depends on
// nothing but its own sequence and position: not on the rows beside it, nor on the threads.
#include <math.h>
#include <string.h>

#include "mla.h"

enum {
    QUERY_ROWS = 64,    // rows (tokens times query heads of a KV head) that a block takes, if not
                        // one token has more
    SOFTMAX_ROWS = 12,  // of these, how many are scored, made probabilities and mixed at once
};

// ---- buffers ----

typedef struct {       // what one thread works in; rows = QUERY_ROWS, or a group's heads if more
    float *q;          // [rows][head_dim], scaled
    int8_t *q8;        // [rows][head_dim padded to 32], with its scales and offsets
    float *q8_scale;
    int32_t *q8_offset;
    float *p;          // [SOFTMAX_ROWS][TILE] scores, then probabilities
    float *mix;        // [SOFTMAX_ROWS][v_dim] of one tile
    float *weights;    // [context], of a row that a probe sees
} HeadScratch;

typedef struct {       // how the work on one span is cut
    int n_blocks;      // queries are taken by blocks of tokens
    int first_tile, n_parts;  // parts are single tiles, or one is all
    int first_unit;    // units of work before this span's: (part, block, KV head)
    size_t first_row;  // rows of partial results before
} Cut;

typedef struct {
    Buffer q, keys, values;  // [n][n_heads head_dim], 2 x [n][n_kv_heads head_dim]
    Buffer mixed;            // [n][n_heads head_dim], or values of n_value
    Buffer out_gate;         // [n][rows of out_gate]
    LatentBuffers latent;
    Span *spans;             // [n], of a round
    Cut *cuts;               // [n]
    HeadScratch *threads;    // [n_threads]
    float *part, *part_max, *part_sum;  // partial results: [rows][v_dim], [rows]
} AttentionBuffers;

typedef struct {
    Workspace *w;
    const Attention *a;
    const KvLayer *kv;
    int layer;
    AttentionBuffers b;
    const Span *spans;
    int n_spans, n_units, units_per_item;
} Job;

// The type of what is mixed.
static Dtype mixed_dtype(const Job *job) {
    return job->a->latent.rank ? job->kv->k_dtype : job->kv->v_dtype;
}

static int group_size(const Attention *a) { return a->n_heads / a->n_kv_heads; }

// Whether it has keys and values of its own to add to the cache.
static bool adds_keys(const Attention *a) { return a->kv_source < 0 && a->mask != MASK_SOURCE; }

// Tokens that there are to see: of a span's own text, its last one included, or of its source.
static int text_end(const Attention *a, const Span *s) {
    return a->mask == MASK_SOURCE ? s->sequence->n_source : s->pos + s->n;
}

// Tokens whose queries a block takes: as many as fill QUERY_ROWS, one at least.
static int tokens_per_block(const Attention *a) {
    int tokens = QUERY_ROWS / group_size(a);
    return tokens > 16 ? 16 : tokens > 1 ? tokens : 1;
}

// Units that keep all threads busy: with fewer, a tile becomes a unit of its own.
static int enough_units(const Workspace *w) { return 8 * pool_threads(w->pool); }

// Rows of partial results that a pass of n rows can need: one for each row and head, and those of
// the spans that are cut into tiles, which are few because each has n_kv_heads units at least.
static size_t part_rows(const Workspace *w, const Attention *a, int n) {
    size_t heads = (size_t)a->n_heads, n_tiles = (size_t)w->kv.context / TILE + 1;
    size_t n_cut = (size_t)(enough_units(w) / a->n_kv_heads + 1);
    if (n_cut > (size_t)n) n_cut = (size_t)n;
    return heads * ((size_t)n + n_cut * (size_t)tokens_per_block(a) * n_tiles);
}

static HeadScratch take_head_scratch(Arena *m, const Workspace *w, const Attention *a,
                                     const KvLayer *kv) {
    size_t group = (size_t)group_size(a), rows = group > QUERY_ROWS ? group : QUERY_ROWS;
    size_t blocks = rows * blocks_of(a->head_dim);
    HeadScratch x;
    x.q = take(m, rows * (size_t)a->head_dim, sizeof *x.q);
    x.q8 = take(m, blocks * BLOCK, sizeof *x.q8);
    x.q8_scale = take(m, blocks, sizeof *x.q8_scale);
    x.q8_offset = take(m, blocks, sizeof *x.q8_offset);
    x.p = take(m, SOFTMAX_ROWS * TILE, sizeof *x.p);
    x.mix = take(m, SOFTMAX_ROWS * (size_t)kv->v_dim, sizeof *x.mix);
    x.weights = take(m, round_up((size_t)w->kv.context, LANES), sizeof *x.weights);
    return x;
}

static AttentionBuffers lay_out(Arena *m, const Workspace *w, const Attention *a,
                                const KvLayer *kv, int n_rows) {
    size_t n = (size_t)n_rows, heads = (size_t)a->n_heads, dim = (size_t)a->head_dim;
    size_t value = a->latent.rank && a->latent.n_value > a->head_dim ? (size_t)a->latent.n_value
                                                                     : dim;
    size_t rows = part_rows(w, a, n_rows);
    AttentionBuffers b;
    b.q = take_rows(m, n, heads * dim);
    b.keys = take_rows(m, n, (size_t)a->n_kv_heads * dim);
    b.values = take_rows(m, n, (size_t)a->n_kv_heads * dim);
    b.mixed = take_input(m, n, heads * value);
    b.out_gate = take_rows(m, n, (size_t)a->out_gate.n_out);
    b.latent = take_latent(m, a, n_rows);
    b.spans = take(m, n, sizeof *b.spans);
    b.cuts = take(m, n, sizeof *b.cuts);
    b.threads = take(m, (size_t)pool_threads(w->pool), sizeof *b.threads);
    for (int t = 0; t < pool_threads(w->pool); t++) {
        HeadScratch x = take_head_scratch(m, w, a, kv);
        if (b.threads) b.threads[t] = x;
    }
    b.part = take(m, times(rows, (size_t)kv->v_dim), sizeof *b.part);
    b.part_max = take(m, rows, sizeof *b.part_max);
    b.part_sum = take(m, rows, sizeof *b.part_sum);
    return b;
}

// ---- norms of heads, and rope ----

// Norms, clips and rotates the heads of one token, side by side in x: queries or keys.
static void rotate_heads(const Job *job, const Norm *norm, float *x, int n_heads, int t) {
    const Workspace *w = job->w;
    const Attention *a = job->a;
    if (norm->w && a->qk_norm == QK_WHOLE) norm_row(w, x, norm, x, n_heads * a->head_dim);
    if (a->clip > 0.0f) w->k->clamp(x, a->clip, n_heads * a->head_dim);
    for (int h = 0; h < n_heads; h++, x += a->head_dim) {
        Norm own = *norm;
        if (a->qk_norm == QK_DISTINCT && own.w) own.w += h * a->head_dim;
        if (a->qk_norm == QK_DISTINCT && own.b) own.b += h * a->head_dim;
        if (own.w && a->qk_norm != QK_WHOLE && a->qk_norm != QK_AFTER_ROPE)
            norm_row(w, x, &own, x, a->head_dim);
        if (a->rope >= 0)
            w->k->rope(x + a->latent.rank, row(w->cos[a->rope], t), row(w->sin[a->rope], t),
                       w->model->rope[a->rope].n_pairs);
        if (own.w && a->qk_norm == QK_AFTER_ROPE) norm_row(w, x, &own, x, a->head_dim);
    }
}

static void rotate_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    const Attention *a = job->a;
    const Model *m = job->w->model;
    const Kernels *k = job->w->k;
    float *q = row(job->b.q, t);
    rotate_heads(job, &a->q_norm, q, a->n_heads, t);
    if (adds_keys(a)) {
        float *v = row(job->b.values, t);
        rotate_heads(job, &a->k_norm, row(job->b.keys, t), a->n_kv_heads, t);
        if (a->clip > 0.0f && !a->latent.rank) k->clamp(v, a->clip, a->n_kv_heads * a->head_dim);
        for (int h = 0; h < a->n_kv_heads && a->v_norm.w; h++, v += a->head_dim)
            norm_row(job->w, v, &a->v_norm, v, a->head_dim);
    }
    if (!m->q_temp) return;
    int step = job->w->rows[t].pos / m->q_temp_length;
    k->scale(q, m->q_temp[step < m->n_q_temp ? step : m->n_q_temp - 1], a->n_heads * a->head_dim);
}

// ---- one tile ----

typedef struct {  // the queries of one block of a span's tokens that share KV head h
    const Span *span;
    const Cut *cut;
    int token, n_tokens;  // in the span
    int h, group, n_rows;
} Block;

// The last tokens come first, since they see the most; and heads change fastest, since their keys
// lie side by side.
static Block block_of(const Job *job, int span, int i) {
    const Attention *a = job->a;
    const Cut *cut = &job->b.cuts[span];
    Block b = {.span = &job->spans[span], .cut = cut, .h = i % a->n_kv_heads,
               .token = (cut->n_blocks - 1 - i / a->n_kv_heads) * tokens_per_block(a),
               .group = group_size(a)};
    int left = b.span->n - b.token;
    b.n_tokens = left < tokens_per_block(a) ? left : tokens_per_block(a);
    b.n_rows = b.n_tokens * b.group;
    return b;
}

static int first_pos(const Block *b) { return b->span->pos + b->token; }

// The first and the last position that some token of the block sees.
static Range seen_by(const Job *job, const Block *b) {
    int first = first_pos(b), last = first + b->n_tokens - 1;
    int end = text_end(job->a, b->span);
    return (Range){seen_from(job->a, first, end).low, seen_from(job->a, last, end).high};
}

// Where row r of a block lies in a buffer that has each token's heads, `width` numbers each, side
// by side.
static float *head_of(const Block *b, Buffer buffer, int r, int width) {
    return row(buffer, b->span->first + b->token + r / b->group) +
           (size_t)(b->h * b->group + r % b->group) * (size_t)width;
}

// The block's queries, scaled, one row after the other, in the form that the keys' dtype wants.
static Rows gather(const Job *job, const Block *b, HeadScratch *x) {
    const Kernels *k = job->w->k;
    int dim = job->a->head_dim;
    Dtype dtype = job->kv->k_dtype;
    size_t n_blocks = blocks_of(dim);
    for (int r = 0; r < b->n_rows; r++) {
        float *q = x->q + (size_t)r * (size_t)dim;
        size_t block = (size_t)r * n_blocks;
        memcpy(q, head_of(b, job->b.q, r, dim), sizeof *q * (size_t)dim);
        k->scale(q, job->a->scale, dim);
        if (dtype == Q8 || dtype == Q4)
            k->to_q8(x->q8 + block * BLOCK, x->q8_scale + block, x->q8_offset + block, q, dim,
                     dtype == Q4);
    }
    return (Rows){.f32 = x->q, .stride = (size_t)dim, .q = x->q8, .scale = x->q8_scale,
                  .offset = x->q8_offset};
}

// The block's queries from row r on.
static Rows queries_after(const Rows *q, int r) {
    size_t blocks = (size_t)r * blocks_of((int)q->stride);
    return (Rows){.f32 = q->f32 + (size_t)r * q->stride, .stride = q->stride,
                  .q = q->q + blocks * BLOCK, .scale = q->scale + blocks,
                  .offset = q->offset + blocks};
}

// A tile of positions, as far as a block of queries sees it: begin..stop-1, in whole slots ..end-1.
typedef struct {
    int tile, begin, stop, end;
    ptrdiff_t ahead;  // from its keys and values to those that this thread wants next; 0: unknown
    const uint8_t *values[TILE / LANES];
} View;

// p[row][position - tile] = q . k, for n rows of queries.
static void dot_keys(const Job *job, const Block *b, const View *v, const Rows *q, int n_rows,
                     float *p) {
    const KvLayer *kv = job->kv;
    MatmulFn *matmul = job->w->k->matmul[kv->k_dtype];
    for (int i = v->begin / LANES, n; i < v->end / LANES; i += n) {
        n = kv->n_slots - i % kv->n_slots;  // as far as the ring runs on
        if (n > v->end / LANES - i) n = v->end / LANES - i;
        matmul(p + i * LANES - v->tile, TILE, kv_keys(kv, b->span->sequence, i, b->h),
               kv->slot_bytes, n, job->a->head_dim, q, n_rows, v->ahead);
    }
}

// Adds the biases of distances first.. to n scores: those before, within and after the reach.
static void add_relative(const Job *job, float *x, int n, int head, int first) {
    int reach = job->a->reach, low = -reach - first, high = reach + 1 - first;
    const float *bias = job->a->relative + (size_t)head * (size_t)(2 * reach + 1);
    low = low < 0 ? 0 : low > n ? n : low;
    high = high < 0 ? 0 : high > n ? n : high;
    for (int i = 0; i < low; i++) x[i] += bias[0];
    if (low < high) job->w->k->add(x + low, bias + reach + first + low, high - low);
    for (int i = high; i < n; i++) x[i] += bias[2 * reach];
}

// What a layer does to n scores of a query head before they meet the softmax; x[i] is that of the
// key at the query's own position plus first + i. Scores that the mask hides may be anything.
static void shape_scores(const Job *job, float *x, int n, int head, int first) {
    const Attention *a = job->a;
    if (a->softcap > 0.0f) job->w->k->softcap(x, a->softcap, n);
    if (a->slopes) job->w->k->add_ramp(x, (float)first, a->slopes[head], n);
    if (a->relative) add_relative(job, x, n, head, first);
}

// Turns a row's scores begin..end-1 into exponentials, and zeros where it sees nothing; it sees
// `seen` of them.
static void softmax_row(const Kernels *k, float *p, int begin, int end, Range seen, float *max,
                        float *sum) {
    *max = -INFINITY;
    *sum = 0.0f;
    if (seen.low > seen.high) {
        memset(p + begin, 0, sizeof *p * (size_t)(end - begin));
        return;
    }
    int from = seen.low / LANES * LANES, to = (seen.high / LANES + 1) * LANES;
    for (int i = begin; i < from; i++) p[i] = 0.0f;
    for (int i = from; i < seen.low; i++) p[i] = -INFINITY;
    for (int i = seen.high + 1; i < to; i++) p[i] = -INFINITY;
    for (int i = to; i < end; i++) p[i] = 0.0f;
    *max = k->max(p + from, to - from);
    *sum = k->exp_sum(p + from, *max, to - from);
}

// Adds a tile (max, sum, mix) to what the tiles before it gave, all scaled by their maxima.
static void merge(const Kernels *k, float *out, float *out_max, float *out_sum, const float *mix,
                  float max, float sum, int dim) {
    if (sum == 0.0f) return;  // the row sees nothing of this tile
    float top = *out_max > max ? *out_max : max;
    float e[LANES] = {*out_max, max};
    for (int i = 2; i < LANES; i++) e[i] = -INFINITY;
    k->exp_sum(e, top, LANES);
    k->axpby(out, e[0], mix, e[1], dim);
    *out_sum = *out_sum * e[0] + sum * e[1];
    *out_max = top;
}

static View view_of(const Job *job, const Block *b, int tile, ptrdiff_t ahead) {
    Range seen = seen_by(job, b);
    View v = {.tile = tile, .begin = tile, .ahead = ahead};
    if (seen.low > tile) v.begin = seen.low / LANES * LANES;
    v.stop = seen.high < tile + TILE - 1 ? seen.high + 1 : tile + TILE;
    v.end = (int)round_up((size_t)v.stop, LANES);
    uint8_t *(*values)(const KvLayer *, const Sequence *, int, int) =
        job->a->latent.rank ? kv_keys : kv_values;
    for (int i = v.begin; i < v.end; i += LANES)
        v.values[(i - tile) / LANES] = values(job->kv, b->span->sequence, i / LANES, b->h);
    return v;
}

// Scores of row r, the first of p's, become probabilities of what its token sees of the tile.
static void probabilities(const Job *job, const Block *b, const View *v, int r, float *p,
                          float *max, float *sum) {
    int pos = first_pos(b) + r / b->group, head = b->h * b->group + r % b->group, tile = v->tile;
    shape_scores(job, p + v->begin - tile, v->end - v->begin, head, v->begin - pos);
    Range seen = seen_from(job->a, pos, text_end(job->a, b->span));
    if (seen.low < v->begin) seen.low = v->begin;
    if (seen.high >= v->stop) seen.high = v->stop - 1;
    softmax_row(job->w->k, p, v->begin - tile, v->end - tile,
                (Range){seen.low - tile, seen.high - tile}, max, sum);
}

// One tile for a block of queries, merged into out [n_rows][v_dim], out_max, out_sum. SOFTMAX_ROWS
// at a time, whose scores stay in the first-level cache until they are mixed.
static void attend_tile(const Job *job, const Block *b, const Rows *q, HeadScratch *x,
                        const View *v, float *out, float *out_max, float *out_sum) {
    const Kernels *k = job->w->k;
    const KvLayer *kv = job->kv;
    int dim = kv->v_dim, begin = v->begin - v->tile, stop = v->stop - v->tile;
    for (int from = 0, n; from < b->n_rows; from += n) {
        n = b->n_rows - from < SOFTMAX_ROWS ? b->n_rows - from : SOFTMAX_ROWS;
        Rows some = queries_after(q, from);
        float max[SOFTMAX_ROWS], sum[SOFTMAX_ROWS];
        dot_keys(job, b, v, &some, n, x->p);
        for (int r = 0; r < n; r++)
            probabilities(job, b, v, from + r, x->p + r * TILE, &max[r], &sum[r]);
        if (job->a->latent.rank)
            k->mix_keys[kv->k_dtype](x->mix, x->p, TILE, n, v->values, begin, stop,
                                     job->a->head_dim, dim);
        else k->mix[kv->v_dtype](x->mix, x->p, TILE, n, v->values, begin, stop, dim, v->ahead);
        for (int r = 0; r < n; r++)
            merge(k, out + (size_t)(from + r) * (size_t)dim, &out_max[from + r], &out_sum[from + r],
                  x->mix + (size_t)r * (size_t)dim, max[r], sum[r], dim);
    }
}

// ---- all tiles ----

typedef struct {
    Block block;
    int part, first_tile, last_tile;
} Unit;

static Unit unit_of(const Job *job, int i) {
    int span = 0;
    while (span + 1 < job->n_spans && job->b.cuts[span + 1].first_unit <= i) span++;
    const Cut *cut = &job->b.cuts[span];
    int n_blocks = cut->n_blocks * job->a->n_kv_heads;
    i -= cut->first_unit;
    Unit u = {.block = block_of(job, span, i % n_blocks), .part = i / n_blocks};
    Range seen = seen_by(job, &u.block);
    u.first_tile = seen.low / TILE;
    u.last_tile = seen.high / TILE;
    if (cut->n_parts > 1) u.first_tile = u.last_tile = cut->first_tile + u.part;
    return u;
}

// The row of partial results where those of a block begin.
static size_t part_row(const Job *job, const Block *b, int part) {
    size_t part_of_head = (size_t)b->h * (size_t)b->cut->n_parts + (size_t)part;
    size_t token = part_of_head * (size_t)b->span->n + (size_t)b->token;
    return b->cut->first_row + token * (size_t)b->group;
}

// Bytes from the keys of one unit's block in a tile to those of another's. The two may lie in
// different mappings: this is a hint for prefetching, and nothing is read through it.
static ptrdiff_t distance(const Job *job, const Unit *from, int tile, const Unit *to, int to_tile) {
    enum { SLOTS = TILE / LANES };
    const Block *a = &from->block, *b = &to->block;
    return (ptrdiff_t)((uintptr_t)kv_keys(job->kv, b->span->sequence, to_tile * SLOTS, b->h) -
                       (uintptr_t)kv_keys(job->kv, a->span->sequence, tile * SLOTS, a->h));
}

// `next` is the unit that this thread does after it, if that is known. Rows that are few enough to
// read a tile just once, of a text that has several, ask for what they want next.
static void attend_unit(const Job *job, const Unit *u, const Unit *next, int thread) {
    const Block *b = &u->block;
    HeadScratch *x = &job->b.threads[thread];
    size_t first = part_row(job, b, u->part), dim = (size_t)job->kv->v_dim;
    float *out = job->b.part + first * dim;
    float *max = job->b.part_max + first, *sum = job->b.part_sum + first;
    memset(out, 0, sizeof *out * (size_t)b->n_rows * dim);
    // A sink is like a key that all rows see first and that has no value.
    bool sinks = job->a->sinks && u->part == 0;
    for (int r = 0; r < b->n_rows; r++) {
        max[r] = sinks ? job->a->sinks[b->h * b->group + r % b->group] : -INFINITY;
        sum[r] = sinks ? 1.0f : 0.0f;
    }
    Rows q = gather(job, b, x);
    bool deep = b->n_rows <= SOFTMAX_ROWS && seen_by(job, b).high / TILE > b->cut->first_tile;
    for (int t = u->first_tile; t <= u->last_tile; t++) {
        ptrdiff_t ahead = 0;
        if (deep && t < u->last_tile) ahead = distance(job, u, t, u, t + 1);
        else if (deep && next) ahead = distance(job, u, t, next, next->first_tile);
        View v = view_of(job, b, t * TILE, ahead);
        attend_tile(job, b, &q, x, &v, out, max, sum);
    }
}

// Item: some units in a row. Threads in step take every n-th item, so this one probably goes on
// with that.
static void attend_units(const void *arg, int item, int thread) {
    const Job *job = arg;
    int n = job->units_per_item, begin = item * n;
    int end = begin + n < job->n_units ? begin + n : job->n_units;
    for (int i = begin; i < end; i++) {
        int then = i + 1 < end ? i + 1 : begin + n * pool_threads(job->w->pool);
        Unit unit = unit_of(job, i), next;
        if (then < job->n_units) next = unit_of(job, then);
        attend_unit(job, &unit, then < job->n_units ? &next : NULL, thread);
    }
}

// Item: (span, query head). Merges the parts in order, token by token, divides by the sum, and
// undoes the turn that q4 values were given before they were rounded.
static void merge_head(const void *arg, int item, int thread) {
    const Job *job = arg;
    const Kernels *k = job->w->k;
    const Attention *a = job->a;
    int span = item / a->n_heads, head = item % a->n_heads, width = mixed_dim(a);
    int dim = job->kv->v_dim;
    bool turned = mixed_dtype(job) == Q4;
    const Cut *cut = &job->b.cuts[span];
    for (int i = 0; i < cut->n_blocks; i++) {
        Block b = block_of(job, span, i * a->n_kv_heads + head / group_size(a));
        for (int r = head % b.group; r < b.n_rows; r += b.group) {
            size_t row = part_row(job, &b, 0) + (size_t)r;
            float *out = job->b.part + row * (size_t)dim;
            float *max = &job->b.part_max[row], *sum = &job->b.part_sum[row];
            for (int part = 1; part < cut->n_parts; part++) {
                size_t other = part_row(job, &b, part) + (size_t)r;
                merge(k, out, max, sum, job->b.part + other * (size_t)dim, job->b.part_max[other],
                      job->b.part_sum[other], dim);
            }
            if (turned) k->turn(out, out, TURNED_X / *sum, dim);
            else k->scale(out, 1.0f / *sum, dim);
            memcpy(head_of(&b, job->b.mixed, r, width), out, sizeof *out * (size_t)width);
        }
    }
}

// ---- what a probe sees ----

// Row r of a unit's block from its scores, which are made again, with the maximum and the sum that
// merge_head left. Nothing that the layer computes changes for it.
static void show_row(const Job *job, const Unit *u, const Rows *q, int r, float *p, int thread) {
    const Block *b = &u->block;
    const Kernels *k = job->w->k;
    Rows one = queries_after(q, r);
    for (int t = u->first_tile; t <= seen_by(job, b).high / TILE; t++) {
        View v = view_of(job, b, t * TILE, 0);
        dot_keys(job, b, &v, &one, 1, p + v.tile);
    }
    int pos = first_pos(b) + r / b->group, head = b->h * b->group + r % b->group;
    Range seen = seen_from(job->a, pos, text_end(job->a, b->span));
    int from = seen.low / LANES * LANES, to = (seen.high / LANES + 1) * LANES;
    shape_scores(job, p + from, to - from, head, from - pos);
    size_t merged = part_row(job, b, 0) + (size_t)r;
    float max = job->b.part_max[merged], scale = 1.0f / job->b.part_sum[merged];
    k->exp_sum(p + from, max, to - from);
    k->scale(p + from, scale, to - from);
    heads_attention_row row = {
        .sequence = b->span->sequence, .layer = job->layer, .head = head,
        .position = pos, .first = seen.low, .n = seen.high - seen.low + 1, .weights = p + seen.low,
        .of_source = job->kv->of_source,
        .sink = job->a->sinks ? expf(job->a->sinks[head] - max) * scale : 0.0f,
    };
    job->w->probe.attention(job->w->probe.context, &row, thread);
}

// Item: a unit. The first of a block's shows all tiles.
static void show_unit(const void *arg, int item, int thread) {
    const Job *job = arg;
    Unit u = unit_of(job, item);
    if (u.part > 0) return;
    HeadScratch *x = &job->b.threads[thread];
    Rows q = gather(job, &u.block, x);
    for (int r = 0; r < u.block.n_rows; r++) show_row(job, &u, &q, r, x->weights, thread);
}

// ---- all spans ----

// Cuts the spans into units. Those of a few tokens deep in a text, if they are few, into tiles.
static void cut_spans(Job *job) {
    const Attention *a = job->a;
    int per_block = tokens_per_block(a);
    size_t n_rows = 0;
    bool few = job->n_spans * a->n_kv_heads < enough_units(job->w);
    for (int i = 0; i < job->n_spans; i++) {
        const Span *s = &job->spans[i];
        Cut *cut = &job->b.cuts[i];
        *cut = (Cut){.n_blocks = (s->n + per_block - 1) / per_block, .n_parts = 1,
                     .first_tile = seen_from(a, s->pos, text_end(a, s)).low / TILE,
                     .first_unit = job->n_units, .first_row = n_rows};
        if (few && cut->n_blocks == 1)
            cut->n_parts = (text_end(a, s) - 1) / TILE - cut->first_tile + 1;
        job->n_units += a->n_kv_heads * cut->n_blocks * cut->n_parts;
        n_rows += (size_t)a->n_heads * (size_t)s->n * (size_t)cut->n_parts;
    }
    int share = few ? job->n_units / enough_units(job->w) : 1;
    job->units_per_item = share < 1 ? 1 : share > 8 ? 8 : share;
}

// Attention of some spans, whose keys and values are in the cache, to b.mixed.
static void attend(Job *job) {
    const Attention *a = job->a;
    Workspace *w = job->w;
    enum { MERGE = 1024 };  // bytes that are read in the time of a merge, whatever its size
    size_t key_bytes = 0, n_merges = 0;
    cut_spans(job);
    for (int i = 0; i < job->n_spans; i++) {
        const Span *s = &job->spans[i];
        int end = text_end(a, s), n_seen = end - seen_from(a, s->pos, end).low;
        key_bytes += job->kv->slot_bytes / LANES * (size_t)n_seen * (size_t)s->n;
        n_merges += (size_t)(s->n * a->n_heads) * (size_t)job->b.cuts[i].n_parts;
    }
    int n_items = (job->n_units + job->units_per_item - 1) / job->units_per_item;
    for_each(w, key_bytes, n_items, attend_units, job);
    size_t merge_bytes = n_merges * (MERGE + sizeof(float) * (size_t)job->kv->v_dim);
    for_each(w, merge_bytes, job->n_spans * a->n_heads, merge_head, job);
}

// Tokens from..from+RING_RUN-1 of every span, as far as it has them; returns the number of spans.
static int cut_round(const Workspace *w, Span *out, int from) {
    int n = 0;
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++) {
        int left = s->n - from;
        if (left <= 0) continue;
        out[n++] = (Span){.sequence = s->sequence, .first = s->first + from, .pos = s->pos + from,
                          .n = left < RING_RUN ? left : RING_RUN};
    }
    return n;
}

// From b.q, b.keys and b.values (projected, not yet rotated) of the pass's rows to b.mixed. A ring
// has room for its window and RING_RUN tokens more: what these overwrite, none of them sees. Those
// of a text that sees itself as a whole have no ring.
static void attend_all(Job *job) {
    const Workspace *w = job->w;
    parallel_for(w->pool, w->n_rows, rotate_row, job);
    bool rounds = job->a->window && job->a->mask == MASK_CAUSAL;
    job->spans = w->spans;
    job->n_spans = w->n_spans;
    for (int from = 0; job->n_spans > 0; from += RING_RUN) {
        if (rounds) {
            job->n_spans = cut_round(w, job->b.spans, from);
            job->spans = job->b.spans;
        }
        if (!job->n_spans) return;
        if (adds_keys(job->a))
            kv_append(job->w, job->a, job->kv, job->b.q, job->b.keys, job->b.values, job->spans,
                      job->n_spans);
        job->n_units = 0;
        attend(job);
        if (w->probe.attention) parallel_for(w->pool, job->n_units, show_unit, job);
        if (!rounds) return;
    }
}

// ---- the mixer ----

// Queries, and the gate of the output; keys and values where the layer has its own.
static void project(Job *job, Buffer y) {
    const Attention *a = job->a;
    AttentionBuffers *b = &job->b;
    Product products[4] = {{b->q, &a->q}};
    int n = 1;
    if (adds_keys(a)) {
        products[n++] = (Product){b->keys, &a->k};
        products[n++] = (Product){b->values, &a->v};
    }
    if (a->out_gate.data) products[n++] = (Product){b->out_gate, &a->out_gate};
    multiply_each(job->w, products, n, y, job->w->n_rows);
}

// out = o(attention of y)
static void run_attention(Workspace *w, int layer, const Attention *a, const KvLayer *kv,
                          Buffer y) {
    int n = w->n_rows, width = a->n_heads * (a->latent.rank ? a->latent.n_value : a->head_dim);
    Arena m = scratch(w);
    Job job = {.w = w, .a = a, .kv = kv, .layer = layer, .b = lay_out(&m, w, a, kv, n)};
    AttentionBuffers *b = &job.b;
    if (a->latent.rank) latent_project(w, a, &b->latent, b->q, b->keys, y);
    else project(&job, y);
    attend_all(&job);
    if (a->latent.rank) latent_values(w, a, &b->latent, b->mixed);
    if (a->out_gate.data) gate_rows(w, b->mixed, b->out_gate, a->out_gate.n_out, width, n);
    if (a->sub_norm.w) norm_rows(w, b->mixed, &a->sub_norm, b->mixed, width, n);
    multiply(w, w->out, &a->o, b->mixed, n);
}

static void run(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    run_attention(w, (int)(l - w->model->layers), &l->attention, kv, y);
}

static void count(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *m) {
    lay_out(m, w, &l->attention, kv, w->chunk);
}

const Mixer attention_mixer = {run, count, NULL};

// ---- attention to a source ----

void cross_attention(Workspace *w, int i, Buffer y) {
    run_attention(w, i, &w->model->layers[i].cross, kv_cross(w, i), y);
}

void cross_scratch(const Workspace *w, int i, Arena *a) {
    const Attention *cross = &w->model->layers[i].cross;
    if (cross->n_heads) lay_out(a, w, cross, kv_cross(w, i), w->chunk);
}

void keep_source(Workspace *w, Buffer y) {
    const Stack *text = &w->model->text;
    for (int i = text->first; i < text->first + text->n; i++) {
        const Attention *a = &w->model->layers[i].cross;
        Arena m = scratch(w);
        AttentionBuffers b = lay_out(&m, w, a, kv_cross(w, i), w->n_rows);
        multiply_each(w, (Product[]){{b.keys, &a->k}, {b.values, &a->v}}, 2, y, w->n_rows);
        kv_append(w, a, kv_cross(w, i), (Buffer){0}, b.keys, b.values, w->spans, w->n_spans);
    }
}
