// How attention's work is cut into units that threads take: spans by queries and, where such units
// are few, units into single tiles of keys. No cut changes a bit.
#include "layers/attention_tiles.h"

// ---- buffers ----

// Tokens whose queries a unit takes: as many as fill QUERY_ROWS, one at least.
static int tokens_per_unit(const Attention *a) {
    int tokens = QUERY_ROWS / group_size(a);
    return tokens > 16 ? 16 : tokens > 1 ? tokens : 1;
}

// Units that keep all threads busy: with fewer, a tile becomes a unit of its own.
static int enough_units(const Workspace *w) { return 8 * pool_threads(w->pool); }

// Spans of a pass of n rows that can be split: few, since each has n_kv_heads units at least.
static size_t most_split(const Workspace *w, const Attention *a, int n) {
    int spans = enough_units(w) / a->n_kv_heads + 1;
    return (size_t)(spans < n ? spans : n);
}

// Rows of partial results that a pass of n rows can need: one for each row and head, and one for
// each tile of spans that are split.
static size_t partial_rows(const Workspace *w, const Attention *a, int n) {
    size_t heads = (size_t)a->n_heads, n_tiles = (size_t)w->kv.context / TILE + 1;
    return heads * ((size_t)n + most_split(w, a, n) * (size_t)tokens_per_unit(a) * n_tiles);
}

// Units of a pass of n rows: at most one for each row and KV head, and one for each tile that is
// split off.
static size_t most_units(const Workspace *w, const Attention *a, int n) {
    size_t heads = (size_t)a->n_kv_heads, n_tiles = (size_t)w->kv.context / TILE + 1;
    return heads * ((size_t)n + most_split(w, a, n) * n_tiles);
}

static HeadScratch head_scratch(Arena *arena, const Workspace *w, const Attention *a,
                                const KvLayer *kv) {
    size_t group = (size_t)group_size(a), rows = group > QUERY_ROWS ? group : QUERY_ROWS;
    size_t blocks = rows * blocks_apart((size_t)a->head_dim);
    HeadScratch x;
    x.q = arena_array(arena, rows * (size_t)a->head_dim, sizeof *x.q);
    x.q8 = arena_array(arena, blocks * BLOCK, sizeof *x.q8);
    x.q8_scale = arena_array(arena, blocks, sizeof *x.q8_scale);
    x.q8_offset = arena_array(arena, blocks, sizeof *x.q8_offset);
    x.scores = arena_array(arena, SOFTMAX_ROWS * TILE, sizeof *x.scores);
    x.mix = arena_array(arena, SOFTMAX_ROWS * (size_t)kv->v_dim, sizeof *x.mix);
    x.weights = arena_array(arena, round_up((size_t)w->kv.context, LANES), sizeof *x.weights);
    return x;
}

// Of disentangled attention.
static PositionBuffers position_buffers(Arena *arena, const Attention *a, int n) {
    size_t heads = (size_t)a->n_heads, rows = heads * (size_t)n;
    PositionBuffers b;
    if (!a->pos_k.data && !a->pos_q.data) return (PositionBuffers){0};
    b.heads = arena_input(arena, rows, (size_t)a->head_dim);
    b.of_query = arena_rows(arena, rows, (size_t)a->pos_k.n_out);
    b.of_key = arena_rows(arena, rows, (size_t)a->pos_q.n_out);
    b.groups = arena_array(arena, heads, sizeof *b.groups);
    return b;
}

AttentionBuffers attention_buffers(Arena *arena, const Workspace *w, const Attention *a,
                                   const KvLayer *kv, int n_rows) {
    size_t n = (size_t)n_rows, heads = (size_t)a->n_heads, dim = (size_t)a->head_dim;
    size_t value = a->latent.rank && a->latent.n_value > a->head_dim ? (size_t)a->latent.n_value
                                                                     : dim;
    size_t rows = partial_rows(w, a, n_rows);
    AttentionBuffers b;
    b.q = arena_rows(arena, n, heads * dim);
    b.keys = arena_rows(arena, n, (size_t)a->n_kv_heads * dim);
    b.values = arena_rows(arena, n, (size_t)a->n_kv_heads * dim);
    b.mixed = arena_input(arena, n, heads * value);
    b.out_gate = arena_rows(arena, n, (size_t)a->out_gate.n_out);
    b.latent = latent_buffers(arena, a, n_rows);
    b.positions = position_buffers(arena, a, n_rows);
    b.spans = arena_array(arena, n, sizeof *b.spans);
    b.units = arena_array(arena, most_units(w, a, n_rows), sizeof *b.units);
    b.threads = arena_array(arena, (size_t)pool_threads(w->pool), sizeof *b.threads);
    for (int t = 0; t < pool_threads(w->pool); t++) {
        HeadScratch x = head_scratch(arena, w, a, kv);
        if (b.threads) b.threads[t] = x;
    }
    b.partial = arena_array(arena, times(rows, (size_t)kv->v_dim), sizeof *b.partial);
    b.partial_max = arena_array(arena, rows, sizeof *b.partial_max);
    b.partial_sum = arena_array(arena, rows, sizeof *b.partial_sum);
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

// The positions that tokens first..last of a unit's span see.
static Range seen_by(const AttentionPass *p, const Span *s, int first, int last) {
    int end = text_end(p->a, s), low = seen_from(p->a, s->pos + first, end).low;
    return (Range){low, seen_from(p->a, s->pos + last, end).high};
}

// The units of a span that are not split, or split 0. The last tokens, which see most, come first.
static void cut_span(AttentionPass *p, const Span *s, size_t *n_rows) {
    const Attention *a = p->a;
    int most = tokens_per_unit(a);
    for (int token = (s->n - 1) / most * most; token >= 0; token -= most) {
        int n = s->n - token < most ? s->n - token : most;
        Range seen = seen_by(p, s, token, token + n - 1);
        for (int h = 0; h < a->n_kv_heads; h++) {
            Unit *u = &p->b.units[p->n_units++];
            *u = (Unit){.span = s, .token = token, .n_tokens = n, .h = h, .group = group_size(a),
                        .n_rows = n * group_size(a), .seen = seen, .n_splits = 1,
                        .first_row = *n_rows};
            *n_rows += (size_t)u->n_rows;
        }
    }
}

// Splits the units of a span, one for each KV head, tile by tile.
static void split_units(AttentionPass *p, Unit *units, size_t *n_rows) {
    int n_heads = p->a->n_kv_heads, first = units->seen.low / TILE, last = units->seen.high / TILE;
    int others = p->n_units;
    for (int split = 1; split <= last - first; split++)
        for (int h = 0; h < n_heads; h++) {
            Unit *u = &p->b.units[p->n_units++];
            *u = units[h];
            u->split = split;
            u->seen.low = (first + split) * TILE;
            if (split < last - first) u->seen.high = u->seen.low + TILE - 1;
            u->first_row = *n_rows;
            *n_rows += (size_t)u->n_rows;
        }
    for (int h = 0; h < n_heads && last > first; h++) {
        units[h].n_splits = last - first + 1;
        units[h].seen.high = (first + 1) * TILE - 1;
        units[h].others = others + h;
    }
}

// Spans of a few tokens deep in a text, if there are few of them, are split.
void cut_spans(AttentionPass *p) {
    int n_heads = p->a->n_kv_heads, per_unit = tokens_per_unit(p->a);
    size_t n_rows = 0;
    bool few = p->n_spans * n_heads < enough_units(p->w);
    p->n_units = 0;
    for (const Span *s = p->spans; s < p->spans + p->n_spans; s++) cut_span(p, s, &n_rows);
    p->n_merged = p->n_units;
    for (int i = 0; few && i < p->n_merged; i += n_heads)
        if (p->b.units[i].span->n <= per_unit) split_units(p, &p->b.units[i], &n_rows);
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
    for (int i = 0; i < p->n_units; i++) n_merges += (size_t)p->b.units[i].n_rows;
    return n_merges * (MERGE + sizeof(float) * (size_t)p->kv->v_dim);
}

// ---- where things lie ----

float *head_row(const Unit *u, Buffer buffer, int r, int width) {
    return row(buffer, u->span->first + u->token + r / u->group) +
           (size_t)row_head(u, r) * (size_t)width;
}

KeyTile key_tile(const AttentionPass *p, const Unit *u, int first, ptrdiff_t ahead) {
    Range seen = u->seen;
    KeyTile t = {.first = first, .begin = first, .ahead = ahead};
    if (seen.low > first) t.begin = seen.low / LANES * LANES;
    t.stop = seen.high < first + TILE - 1 ? seen.high + 1 : first + TILE;
    t.end = (int)round_up((size_t)t.stop, LANES);
    uint8_t *(*values)(const KvLayer *, const Sequence *, int, int) =
        p->a->latent.rank ? kv_keys : kv_values;
    for (int i = t.begin; i < t.end; i += LANES)
        t.values[(i - first) / LANES] = values(p->kv, u->span->sequence, i / LANES, u->h);
    return t;
}

// ---- prefetching ----

static uintptr_t keys_of(const AttentionPass *p, const Unit *u, int tile) {
    return (uintptr_t)kv_keys(p->kv, u->span->sequence, tile * (TILE / LANES), u->h);
}

// Rows that are few enough to read a tile just once, of a text that has several tiles, ask for what
// they want next. The two may lie in different mappings; nothing is read through the difference.
ptrdiff_t bytes_ahead(const AttentionPass *p, const Unit *u, const Unit *next, int tile) {
    int first = u->seen.low / TILE, last = u->seen.high / TILE;
    if (u->n_rows > SOFTMAX_ROWS || (first == last && u->n_splits == 1)) return 0;
    if (tile < last) return (ptrdiff_t)(keys_of(p, u, tile + 1) - keys_of(p, u, tile));
    return next ? (ptrdiff_t)(keys_of(p, next, next->seen.low / TILE) - keys_of(p, u, tile)) : 0;
}
