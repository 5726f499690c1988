// How attention's work is cut: spans into blocks of queries, blocks into units that threads take,
// and where there are few units, units into single tiles of keys. No cut changes a bit.
#include "layers/attention_tiles.h"

// ---- buffers ----

// Tokens whose queries a block takes: as many as fill QUERY_ROWS, one at least.
static int tokens_per_block(const Attention *a) {
    int tokens = QUERY_ROWS / group_size(a);
    return tokens > 16 ? 16 : tokens > 1 ? tokens : 1;
}

// Units that keep all threads busy: with fewer, a tile becomes a unit of its own.
static int enough_units(const Workspace *w) { return 8 * pool_threads(w->pool); }

// Rows of partial results that a pass of n rows can need: one for each row and head, and one for
// each tile of spans that are cut into tiles: few spans, since each has n_kv_heads units at least.
static size_t partial_rows(const Workspace *w, const Attention *a, int n) {
    size_t heads = (size_t)a->n_heads, n_tiles = (size_t)w->kv.context / TILE + 1;
    size_t n_cut = (size_t)(enough_units(w) / a->n_kv_heads + 1);
    if (n_cut > (size_t)n) n_cut = (size_t)n;
    return heads * ((size_t)n + n_cut * (size_t)tokens_per_block(a) * n_tiles);
}

static HeadScratch head_scratch(Arena *m, const Workspace *w, const Attention *a,
                                const KvLayer *kv) {
    size_t group = (size_t)group_size(a), rows = group > QUERY_ROWS ? group : QUERY_ROWS;
    size_t blocks = rows * blocks_apart((size_t)a->head_dim);
    HeadScratch x;
    x.q = arena_array(m, rows * (size_t)a->head_dim, sizeof *x.q);
    x.q8 = arena_array(m, blocks * BLOCK, sizeof *x.q8);
    x.q8_scale = arena_array(m, blocks, sizeof *x.q8_scale);
    x.q8_offset = arena_array(m, blocks, sizeof *x.q8_offset);
    x.scores = arena_array(m, SOFTMAX_ROWS * TILE, sizeof *x.scores);
    x.mix = arena_array(m, SOFTMAX_ROWS * (size_t)kv->v_dim, sizeof *x.mix);
    x.weights = arena_array(m, round_up((size_t)w->kv.context, LANES), sizeof *x.weights);
    return x;
}

// Of disentangled attention.
static PositionBuffers position_buffers(Arena *m, const Attention *a, int n) {
    size_t heads = (size_t)a->n_heads, rows = heads * (size_t)n;
    PositionBuffers b;
    if (!a->pos_k.data && !a->pos_q.data) return (PositionBuffers){0};
    b.heads = arena_input(m, rows, (size_t)a->head_dim);
    b.of_query = arena_rows(m, rows, (size_t)a->pos_k.n_out);
    b.of_key = arena_rows(m, rows, (size_t)a->pos_q.n_out);
    b.groups = arena_array(m, heads, sizeof *b.groups);
    return b;
}

AttentionBuffers attention_buffers(Arena *m, const Workspace *w, const Attention *a,
                                   const KvLayer *kv, int n_rows) {
    size_t n = (size_t)n_rows, heads = (size_t)a->n_heads, dim = (size_t)a->head_dim;
    size_t value = a->latent.rank && a->latent.n_value > a->head_dim ? (size_t)a->latent.n_value
                                                                     : dim;
    size_t rows = partial_rows(w, a, n_rows);
    AttentionBuffers b;
    b.q = arena_rows(m, n, heads * dim);
    b.keys = arena_rows(m, n, (size_t)a->n_kv_heads * dim);
    b.values = arena_rows(m, n, (size_t)a->n_kv_heads * dim);
    b.mixed = arena_input(m, n, heads * value);
    b.out_gate = arena_rows(m, n, (size_t)a->out_gate.n_out);
    b.latent = latent_buffers(m, a, n_rows);
    b.positions = position_buffers(m, a, n_rows);
    b.spans = arena_array(m, n, sizeof *b.spans);
    b.cuts = arena_array(m, n, sizeof *b.cuts);
    b.threads = arena_array(m, (size_t)pool_threads(w->pool), sizeof *b.threads);
    for (int t = 0; t < pool_threads(w->pool); t++) {
        HeadScratch x = head_scratch(m, w, a, kv);
        if (b.threads) b.threads[t] = x;
    }
    b.partial = arena_array(m, times(rows, (size_t)kv->v_dim), sizeof *b.partial);
    b.partial_max = arena_array(m, rows, sizeof *b.partial_max);
    b.partial_sum = arena_array(m, rows, sizeof *b.partial_sum);
    return b;
}

// ---- rounds ----

// A ring has room for its window and RING_SPARE tokens more: what these overwrite, none of them
// sees. A text that sees itself as a whole has no ring.
int next_round(AttentionPass *p, int from) {
    const Workspace *w = p->w;
    if (!p->a->window || p->a->mask != MASK_CAUSAL) {
        p->spans = w->spans;
        p->n_spans = w->n_spans;
        return from ? 0 : w->n_rows;
    }
    p->spans = p->b.spans;
    p->n_spans = 0;
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++) {
        int left = s->n - from;
        if (left <= 0) continue;
        p->b.spans[p->n_spans++] = (Span){
            .sequence = s->sequence, .first = s->first + from, .pos = s->pos + from,
            .n = left < RING_SPARE ? left : RING_SPARE};
    }
    return p->n_spans ? RING_SPARE : 0;
}

// ---- units ----

// Spans of a few tokens deep in a text, if there are few of them, are cut into tiles.
void cut_spans(AttentionPass *p) {
    const Attention *a = p->a;
    int per_block = tokens_per_block(a);
    size_t n_rows = 0;
    bool few = p->n_spans * a->n_kv_heads < enough_units(p->w);
    p->n_units = 0;
    for (int i = 0; i < p->n_spans; i++) {
        const Span *s = &p->spans[i];
        Cut *cut = &p->b.cuts[i];
        *cut = (Cut){.n_blocks = (s->n + per_block - 1) / per_block, .n_splits = 1,
                     .first_tile = seen_from(a, s->pos, text_end(a, s)).low / TILE,
                     .first_unit = p->n_units, .first_row = n_rows};
        if (few && cut->n_blocks == 1)
            cut->n_splits = (text_end(a, s) - 1) / TILE - cut->first_tile + 1;
        p->n_units += a->n_kv_heads * cut->n_blocks * cut->n_splits;
        n_rows += (size_t)a->n_heads * (size_t)s->n * (size_t)cut->n_splits;
    }
    int share = few ? p->n_units / enough_units(p->w) : 1;
    p->units_per_item = share < 1 ? 1 : share > 8 ? 8 : share;
}

size_t key_bytes(const AttentionPass *p) {
    size_t bytes = 0;
    for (const Span *s = p->spans; s < p->spans + p->n_spans; s++) {
        int end = text_end(p->a, s), n_seen = end - seen_from(p->a, s->pos, end).low;
        bytes += p->kv->slot_bytes / LANES * (size_t)n_seen * (size_t)s->n;
    }
    return bytes;
}

size_t merge_bytes(const AttentionPass *p) {
    enum { MERGE = 1024 };  // bytes that are read in the time of a merge, whatever its size
    size_t n_merges = 0;
    for (int i = 0; i < p->n_spans; i++)
        n_merges += (size_t)(p->spans[i].n * p->a->n_heads) * (size_t)p->b.cuts[i].n_splits;
    return n_merges * (MERGE + sizeof(float) * (size_t)p->kv->v_dim);
}

// The last tokens come first, since they see the most; and heads change fastest, since their keys
// lie side by side.
QueryBlock block_of(const AttentionPass *p, int span, int i) {
    const Attention *a = p->a;
    const Cut *cut = &p->b.cuts[span];
    QueryBlock b = {.span = &p->spans[span], .cut = cut, .h = i % a->n_kv_heads,
                    .token = (cut->n_blocks - 1 - i / a->n_kv_heads) * tokens_per_block(a),
                    .group = group_size(a)};
    int left = b.span->n - b.token;
    b.n_tokens = left < tokens_per_block(a) ? left : tokens_per_block(a);
    b.n_rows = b.n_tokens * b.group;
    return b;
}

Range seen_by(const AttentionPass *p, const QueryBlock *b) {
    int first = row_position(b, 0), last = first + b->n_tokens - 1;
    int end = text_end(p->a, b->span);
    return (Range){seen_from(p->a, first, end).low, seen_from(p->a, last, end).high};
}

Unit unit_of(const AttentionPass *p, int i) {
    int span = 0;
    while (span + 1 < p->n_spans && p->b.cuts[span + 1].first_unit <= i) span++;
    const Cut *cut = &p->b.cuts[span];
    int n_blocks = cut->n_blocks * p->a->n_kv_heads;
    i -= cut->first_unit;
    Unit u = {.block = block_of(p, span, i % n_blocks), .split = i / n_blocks};
    Range seen = seen_by(p, &u.block);
    u.first_tile = seen.low / TILE;
    u.last_tile = seen.high / TILE;
    if (cut->n_splits > 1) u.first_tile = u.last_tile = cut->first_tile + u.split;
    return u;
}

// ---- where things lie ----

float *head_row(const QueryBlock *b, Buffer buffer, int r, int width) {
    return row(buffer, b->span->first + b->token + r / b->group) +
           (size_t)row_head(b, r) * (size_t)width;
}

size_t partial_row(const AttentionPass *p, const QueryBlock *b, int split) {
    size_t split_of_head = (size_t)b->h * (size_t)b->cut->n_splits + (size_t)split;
    size_t token = split_of_head * (size_t)b->span->n + (size_t)b->token;
    return b->cut->first_row + token * (size_t)b->group;
}

KeyTile key_tile(const AttentionPass *p, const QueryBlock *b, int tile, ptrdiff_t ahead) {
    Range seen = seen_by(p, b);
    KeyTile t = {.first = tile, .begin = tile, .ahead = ahead};
    if (seen.low > tile) t.begin = seen.low / LANES * LANES;
    t.stop = seen.high < tile + TILE - 1 ? seen.high + 1 : tile + TILE;
    t.end = (int)round_up((size_t)t.stop, LANES);
    uint8_t *(*values)(const KvLayer *, const Sequence *, int, int) =
        p->a->latent.rank ? kv_keys : kv_values;
    for (int i = t.begin; i < t.end; i += LANES)
        t.values[(i - tile) / LANES] = values(p->kv, b->span->sequence, i / LANES, b->h);
    return t;
}

// ---- prefetching ----

static uintptr_t keys_of(const AttentionPass *p, const Unit *u, int tile) {
    const QueryBlock *b = &u->block;
    return (uintptr_t)kv_keys(p->kv, b->span->sequence, tile * (TILE / LANES), b->h);
}

// Rows that are few enough to read a tile just once, of a text that has several tiles, ask for what
// they want next. The two may lie in different mappings; nothing is read through the difference.
ptrdiff_t bytes_ahead(const AttentionPass *p, const Unit *u, const Unit *next, int tile) {
    const QueryBlock *b = &u->block;
    if (b->n_rows > SOFTMAX_ROWS || seen_by(p, b).high / TILE <= b->cut->first_tile) return 0;
    if (tile < u->last_tile) return (ptrdiff_t)(keys_of(p, u, tile + 1) - keys_of(p, u, tile));
    return next ? (ptrdiff_t)(keys_of(p, next, next->first_tile) - keys_of(p, u, tile)) : 0;
}
