// One attention block for MHA, GQA and MQA: they differ in how many query heads share a KV head, nothing else. Latent
// attention is MQA whose values are a part of the keys.
//
// Softmax streams over tiles of TILE positions that begin at multiples of TILE: each tile gives its own maximum m, sum l
// of exponentials and mix o of values, and the tiles of a row are merged in order (the recurrence of FlashAttention, Dao et
// al. 2022). A row's result therefore depends on nothing but its own position: not on the rows beside it, nor on the
// threads.
#include <math.h>
#include <string.h>

#include "session.h"

// ---- norms of heads, and rope ----

typedef struct {
    Session *s;
    const Layer *layer;
} Heads;

// Norms, clips and turns the heads of one token, side by side in x: queries or keys.
static void rotate_heads(const Session *s, const Layer *l, const Norm *norm, float *x, int n_heads, int token) {
    const Model *m = s->model;
    if (norm->w && l->qk_norm == QK_WHOLE) norm_row(s, norm, x, x, n_heads * l->head_dim);
    if (l->clip > 0.0f) s->k->clamp(x, l->clip, n_heads * l->head_dim);
    for (int h = 0; h < n_heads; h++, x += l->head_dim) {
        Norm own = *norm;
        if (l->qk_norm == QK_DISTINCT && own.w) own.w += h * l->head_dim;
        if (l->qk_norm == QK_DISTINCT && own.b) own.b += h * l->head_dim;
        if (own.w && l->qk_norm != QK_WHOLE && l->qk_norm != QK_AFTER_ROPE) norm_row(s, &own, x, x, l->head_dim);
        if (l->rope >= 0) {
            const float *c = row(&s->cos[l->rope], token), *sn = row(&s->sin[l->rope], token);
            s->k->rope(x + l->latent, c, sn, m->rope[l->rope].n_pairs);
        }
        if (own.w && l->qk_norm == QK_AFTER_ROPE) norm_row(s, &own, x, x, l->head_dim);
    }
}

static void rotate_token(void *arg, int t, int thread) {
    (void)thread;
    const Heads *a = arg;
    Session *s = a->s;
    const Model *m = s->model;
    const Layer *l = a->layer;
    float *q = row(&s->q, t);
    rotate_heads(s, l, &l->q_norm, q, l->n_heads, t);
    if (l->kv_source < 0) {
        float *v = row(&s->values, t);
        rotate_heads(s, l, &l->k_norm, row(&s->keys, t), l->n_kv_heads, t);
        if (l->clip > 0.0f && !l->latent) s->k->clamp(v, l->clip, l->n_kv_heads * l->head_dim);
        for (int h = 0; h < l->n_kv_heads && l->v_norm.w; h++, v += l->head_dim) norm_row(s, &l->v_norm, v, v, l->head_dim);
    }
    if (!m->q_temp) return;
    int step = (s->position + t) / m->q_temp_length;
    s->k->scale(q, m->q_temp[step < m->n_q_temp ? step : m->n_q_temp - 1], l->n_heads * l->head_dim);
}

// ---- one tile ----

// The work on a run of tokens: rows of the chunk from `first` on, at the positions from `pos` on.
typedef struct {
    Session *s;
    int layer, first, n, pos;
    int tokens_per_block, n_blocks;  // queries are taken by blocks of tokens
    int first_tile, n_parts;  // parts are single tiles, or one is all
    int n_units, units_per_item;
} Run;

typedef struct {  // the queries of one block of tokens that share KV head h
    int token, n_tokens;  // in the run
    int h, group, n_rows;
} Block;

// The positions that the token at pos sees: low..pos.
static int lowest(const Layer *l, int pos) { return l->window && pos >= l->window ? pos - l->window + 1 : 0; }

// The last tokens come first, since they see the most; and heads change fastest, since their keys lie side by side.
static Block block_of(const Run *run, int i) {
    const Layer *l = &run->s->model->layers[run->layer];
    Block b = {.h = i % l->n_kv_heads,
               .token = (run->n_blocks - 1 - i / l->n_kv_heads) * run->tokens_per_block,
               .group = l->n_heads / l->n_kv_heads};
    b.n_tokens = run->n - b.token < run->tokens_per_block ? run->n - b.token : run->tokens_per_block;
    b.n_rows = b.n_tokens * b.group;
    return b;
}

// Where row r of a block lies in a buffer that has, for each token, heads of that width side by side.
static float *head_of(const Run *run, const Block *b, const Buffer *buffer, int r, int width) {
    return row(buffer, run->first + b->token + r / b->group) + (size_t)(b->h * b->group + r % b->group) * (size_t)width;
}

// The block's queries, scaled, one row after the other, in the form that the keys' dtype multiplies.
static Rows gather(const Run *run, const Block *b, Scratch *x) {
    const Session *s = run->s;
    const Layer *l = &s->model->layers[run->layer];
    size_t d = (size_t)l->head_dim, n_blocks = blocks_of(l->head_dim);
    for (int r = 0; r < b->n_rows; r++) {
        float *q = x->q + (size_t)r * d;
        memcpy(q, head_of(run, b, &s->q, r, l->head_dim), sizeof *q * d);
        s->k->scale(q, l->attn_scale, l->head_dim);
        if (s->k_dtype == Q8)
            s->k->to_q8(x->q8 + (size_t)r * n_blocks * BLOCK, x->q8_scale + (size_t)r * n_blocks,
                        x->q8_offset + (size_t)r * n_blocks, q, l->head_dim, false);
    }
    return (Rows){.f32 = x->q, .stride = d, .q = x->q8, .scale = x->q8_scale, .offset = x->q8_offset};
}

// Some of the block's rows of queries.
static Rows rows_from(const Rows *q, int r) {
    size_t blocks = (size_t)r * blocks_of((int)q->stride);
    return (Rows){.f32 = q->f32 + (size_t)r * q->stride, .stride = q->stride, .q = q->q + blocks * BLOCK,
                  .scale = q->scale + blocks, .offset = q->offset + blocks};
}

// Scores of n rows against the panels of positions begin..end (multiples of 16), p[row][position - begin of the tile].
static void scores(const Run *run, int h, const Rows *q, int n_rows, float *p, int tile, int begin, int end,
                   ptrdiff_t ahead) {
    const Session *s = run->s;
    const Layer *l = &s->model->layers[run->layer];
    const KvLayer *kv = &s->kv.layers[run->layer];
    size_t slot = (size_t)l->n_kv_heads * (kv->k_bytes + kv->v_bytes);
    for (int i = begin / LANES, n; i < end / LANES; i += n) {
        n = kv->n_slots - i % kv->n_slots;  // as far as the ring runs on
        if (n > end / LANES - i) n = end / LANES - i;
        s->k->matmul[s->k_dtype](p + i * LANES - tile, TILE, kv_keys(s, run->layer, i, h), slot, n, l->head_dim, q, n_rows,
                                 ahead);
    }
}

// What a layer does to n scores of a query head before they meet the softmax; x[i] is that of the key at the query's own
// position plus first + i. Scores that the mask hides may be anything.
static void shape_scores(const Session *s, const Layer *l, float *x, int n, int head, int first) {
    if (l->softcap > 0.0f) s->k->softcap(x, l->softcap, n);
    if (l->slopes) s->k->add_ramp(x, (float)first, l->slopes[head], n);
}

// Turns a row's scores into exponentials, and zeros where it sees nothing. The row sees low..high within begin..end.
static void softmax_row(const Session *s, float *p, int begin, int end, int low, int high, float *max, float *sum) {
    *max = -INFINITY;
    *sum = 0.0f;
    if (low > high) {
        memset(p + begin, 0, sizeof *p * (size_t)(end - begin));
        return;
    }
    int from = low / LANES * LANES, to = (high / LANES + 1) * LANES;
    for (int i = begin; i < from; i++) p[i] = 0.0f;
    for (int i = from; i < low; i++) p[i] = -INFINITY;
    for (int i = high + 1; i < to; i++) p[i] = -INFINITY;
    for (int i = to; i < end; i++) p[i] = 0.0f;
    *max = s->k->max(p + from, to - from);
    *sum = s->k->exp_sum(p + from, *max, to - from);
}

// Adds a tile (max, sum, mix) to what the tiles before it gave, all scaled by their maxima.
static void merge(const Session *s, float *out, float *out_max, float *out_sum, const float *mix, float max, float sum,
                  int dim) {
    if (sum == 0.0f) return;  // the row sees nothing of this tile
    float top = *out_max > max ? *out_max : max;
    float e[LANES] = {*out_max, max};
    for (int i = 2; i < LANES; i++) e[i] = -INFINITY;
    s->k->exp_sum(e, top, LANES);
    s->k->axpby(out, e[0], mix, e[1], dim);
    *out_sum = *out_sum * e[0] + sum * e[1];
    *out_max = top;
}

// One tile of positions for a block of queries, merged into out [n_rows][v_dim], max, sum. SOFTMAX_ROWS at a time, whose
// scores stay in the first-level cache until they are mixed. `ahead`: from this tile's keys and values to those of the next,
// for rows that are few enough to read them just once.
static void attend_tile(const Run *run, const Block *b, const Rows *q, Scratch *x, int tile, ptrdiff_t ahead, float *out,
                        float *out_max, float *out_sum) {
    const Session *s = run->s;
    const Layer *l = &s->model->layers[run->layer];
    int dim = s->kv.layers[run->layer].v_dim, first = run->pos + b->token, last = first + b->n_tokens - 1;
    int begin = lowest(l, first) > tile ? lowest(l, first) / LANES * LANES : tile;
    int stop = last < tile + TILE - 1 ? last + 1 : tile + TILE, end = (stop + LANES - 1) / LANES * LANES;
    const uint8_t *values[TILE / LANES];
    for (int i = begin; i < end; i += LANES)
        values[(i - tile) / LANES] = (l->latent ? kv_keys : kv_values)(s, run->layer, i / LANES, b->h);
    for (int from = 0, n; from < b->n_rows; from += n) {
        n = b->n_rows - from < SOFTMAX_ROWS ? b->n_rows - from : SOFTMAX_ROWS;
        Rows some = rows_from(q, from);
        float max[SOFTMAX_ROWS], sum[SOFTMAX_ROWS];
        scores(run, b->h, &some, n, x->p, tile, begin, end, ahead);
        for (int r = 0; r < n; r++) {
            int pos = first + (from + r) / b->group, low = lowest(l, pos) > begin ? lowest(l, pos) : begin,
                high = pos < stop ? pos : stop - 1;
            shape_scores(s, l, x->p + r * TILE + begin - tile, end - begin, b->h * b->group + (from + r) % b->group,
                         begin - pos);
            softmax_row(s, x->p + r * TILE, begin - tile, end - tile, low - tile, high - tile, &max[r], &sum[r]);
        }
        if (l->latent)
            s->k->mix_keys[s->k_dtype](x->mix, x->p, TILE, n, values, begin - tile, stop - tile, l->head_dim, dim);
        else s->k->mix[s->v_dtype](x->mix, x->p, TILE, n, values, begin - tile, stop - tile, dim, ahead);
        for (int r = 0; r < n; r++)
            merge(s, out + (size_t)(from + r) * dim, &out_max[from + r], &out_sum[from + r], x->mix + (size_t)r * dim,
                  max[r], sum[r], dim);
    }
}

// ---- all tiles ----

static size_t part_row(const Run *run, const Block *b, int part) {
    size_t item = (size_t)b->h * run->n_blocks + (size_t)(b->token / run->tokens_per_block);
    return (item * run->n_parts + (size_t)part) * (size_t)(run->tokens_per_block * b->group);
}

// From the keys and values of head h in a tile to those of head `other` in another.
static ptrdiff_t way(const Run *run, int tile, int h, int other_tile, int other) {
    return kv_keys(run->s, run->layer, other_tile * TILE / LANES, other) -
           kv_keys(run->s, run->layer, tile * TILE / LANES, h);
}

// Unit: (part, block of queries, KV head). `next` is the one that this thread does after it.
static void attend_part(const Run *run, int unit, int next, int thread) {
    Session *s = run->s;
    const Layer *l = &s->model->layers[run->layer];
    int n_blocks = run->n_blocks * l->n_kv_heads;
    Block b = block_of(run, unit % n_blocks);
    int part = unit / n_blocks, dim = s->kv.layers[run->layer].v_dim;
    size_t row = part_row(run, &b, part);
    float *out = s->part + row * dim, *max = s->part_max + row, *sum = s->part_sum + row;
    memset(out, 0, sizeof *out * (size_t)b.n_rows * dim);
    // A sink is like a key that all rows see first and that has no value.
    bool sinks = l->sinks && part == 0;
    for (int r = 0; r < b.n_rows; r++)
        max[r] = sinks ? l->sinks[b.h * b.group + r % b.group] : -INFINITY, sum[r] = sinks ? 1.0f : 0.0f;
    Rows q = gather(run, &b, &s->scratch[thread]);
    int first = run->pos + b.token, last = first + b.n_tokens - 1, from = lowest(l, first) / TILE, to = last / TILE;
    int begin = run->n_parts > 1 ? run->first_tile + part : from, end = run->n_parts > 1 ? begin : to;
    ptrdiff_t ahead = run->n_parts == 1 || b.n_rows > SOFTMAX_ROWS
                          ? 0
                          : way(run, begin, b.h, run->first_tile + next / n_blocks, next % l->n_kv_heads);
    for (int t = begin; t <= end; t++)
        attend_tile(run, &b, &q, &s->scratch[thread], t * TILE, ahead, out, max, sum);
}

// Item: some units in a row. Threads in step take every n-th item, so this one probably goes on with that.
static void attend_units(void *arg, int item, int thread) {
    const Run *run = arg;
    int n = run->units_per_item, begin = item * n, end = begin + n < run->n_units ? begin + n : run->n_units;
    for (int i = begin; i < end; i++)
        attend_part(run, i, i + 1 < end ? i + 1 : begin + n * pool_threads(run->s->pool), thread);
}

// Merges the parts of a query head in order, token by token, and divides by the sum.
static void finish(void *arg, int head, int thread) {
    (void)thread;
    const Run *run = arg;
    const Session *s = run->s;
    const Layer *l = &s->model->layers[run->layer];
    int dim = s->kv.layers[run->layer].v_dim, width = l->latent ? l->latent : l->head_dim;
    for (int i = 0; i < run->n_blocks; i++) {
        Block b = block_of(run, i * l->n_kv_heads + head / (l->n_heads / l->n_kv_heads));
        for (int r = head % b.group; r < b.n_rows; r += b.group) {
            size_t row = part_row(run, &b, 0) + (size_t)r;
            float *out = s->part + row * dim, *max = &s->part_max[row], *sum = &s->part_sum[row];
            for (int part = 1; part < run->n_parts; part++) {
                size_t other = part_row(run, &b, part) + (size_t)r;
                merge(s, out, max, sum, s->part + other * dim, s->part_max[other], s->part_sum[other], dim);
            }
            s->k->scale(out, 1.0f / *sum, width);
            memcpy(head_of(run, &b, &s->att, r, width), out, sizeof *out * (size_t)width);
        }
    }
}

// Rows of queries that one block takes, and tokens: as many as fill QUERY_ROWS, one at least.
static int tokens_per_block(const Layer *l) {
    int tokens = QUERY_ROWS / (l->n_heads / l->n_kv_heads);
    return tokens > 16 ? 16 : tokens > 1 ? tokens : 1;
}

static void attend_run(Session *s, int layer, int first, int n, int pos) {
    const Layer *l = &s->model->layers[layer];
    const KvLayer *kv = &s->kv.layers[layer];
    Run run = {.s = s, .layer = layer, .first = first, .n = n, .pos = pos, .tokens_per_block = tokens_per_block(l)};
    run.n_blocks = (n + run.tokens_per_block - 1) / run.tokens_per_block;
    run.first_tile = lowest(l, pos) / TILE;
    // A few tokens deep in a text have more tiles than KV heads: then threads share the tiles.
    run.n_parts = run.n_blocks == 1 ? (pos + n - 1) / TILE - run.first_tile + 1 : 1;
    size_t key_bytes = (kv->k_bytes + kv->v_bytes) / LANES * (size_t)l->n_kv_heads * (size_t)(pos + n - lowest(l, pos));
    run.n_units = l->n_kv_heads * run.n_blocks * run.n_parts;
    int share = run.n_parts == 1 ? 1 : run.n_units / (8 * pool_threads(s->pool));
    run.units_per_item = share < 1 ? 1 : share > 8 ? 8 : share;
    for_each(s, key_bytes * (size_t)n, (run.n_units + run.units_per_item - 1) / run.units_per_item, attend_units, &run);
    enum { MERGE = 1024 };  // bytes that are read in the time of a merge, whatever its size
    size_t merges = (size_t)(n * l->n_heads) * (size_t)run.n_parts;
    for_each(s, merges * (MERGE + sizeof(float) * (size_t)kv->v_dim), l->n_heads, finish, &run);
}

void attention(Session *s, int layer, int n) {
    const Layer *l = &s->model->layers[layer];
    Heads heads = {s, l};
    parallel_for(s->pool, n, rotate_token, &heads);
    // A ring has room for its window and RING_RUN tokens more: what they overwrite, none of them sees.
    int run = l->window ? RING_RUN : n;
    for (int i = 0; i < n; i += run) {
        int m = n - i < run ? n - i : run;
        if (l->kv_source < 0) kv_append(s, layer, i, m, s->position + i);
        attend_run(s, layer, i, m, s->position + i);
    }
}

// ---- scratch ----

void attention_scratch(Session *s, size_t *used) {
    const Model *m = s->model;
    size_t q = 0, q8 = 0, mix = 0, rows = QUERY_ROWS, parts = 0, part_rows = 0;
    for (int i = 0; i < m->n_layers; i++) {
        const Layer *l = &m->layers[i];
        if (l->mixer != MIXER_ATTENTION) continue;
        size_t group = (size_t)(l->n_heads / l->n_kv_heads), dim = (size_t)s->kv.layers[i].v_dim;
        size_t block = (size_t)tokens_per_block(l), n_blocks = ((size_t)s->chunk + block - 1) / block;
        size_t n_tiles = (size_t)s->context / TILE + 1;
        size_t most = (size_t)l->n_heads * block * (n_blocks > n_tiles ? n_blocks : n_tiles);
        if (group > rows) rows = group;
        if ((size_t)l->head_dim > q) q = (size_t)l->head_dim;
        if (dim > mix) mix = dim;
        if (most * dim > parts) parts = most * dim;
        if (most > part_rows) part_rows = most;
    }
    q8 = blocks_of((int)q);
    for (int t = 0; t < pool_threads(s->pool); t++) {
        Scratch x = {
            .q = arena_take(s, used, rows * q, sizeof *x.q),
            .q8 = arena_take(s, used, rows * q8 * BLOCK, sizeof *x.q8),
            .q8_scale = arena_take(s, used, rows * q8, sizeof *x.q8_scale),
            .q8_offset = arena_take(s, used, rows * q8, sizeof *x.q8_offset),
            .p = arena_take(s, used, SOFTMAX_ROWS * TILE, sizeof *x.p),
            .mix = arena_take(s, used, SOFTMAX_ROWS * mix, sizeof *x.mix),
        };
        if (s->arena) s->scratch[t] = x;
    }
    s->part = arena_take(s, used, parts, sizeof *s->part);
    s->part_max = arena_take(s, used, part_rows, sizeof *s->part_max);
    s->part_sum = arena_take(s, used, part_rows, sizeof *s->part_sum);
}
