// What attention.c shares with the rooms behind it: how its work is cut (attention_tiles.c), scores
// of queries and keys (attention_scores.c), and what a probe sees (attention_probe.c).
#ifndef ATTENTION_TILES_H
#define ATTENTION_TILES_H

#include "layers/mla.h"

enum {
    QUERY_ROWS = 64,    // rows (tokens times query heads of a KV head) that a block takes, unless
                        // one token alone has more
    SOFTMAX_ROWS = 12,  // rows that are scored, made probabilities and mixed at once
};

// What one thread works in. `rows` is the most that a unit has: QUERY_ROWS, or the query heads of a
// KV head where these are more.
typedef struct {
    float *q;          // [rows][head_dim], scaled
    int8_t *q8;        // [rows][head_dim padded to 32], with its scales and offsets
    float *q8_scale;
    int32_t *q8_offset;
    float *scores;     // [SOFTMAX_ROWS][TILE], then probabilities
    float *mix;        // [SOFTMAX_ROWS][v_dim] of one tile
    float *weights;    // [context], of a row that a probe sees
} HeadScratch;

// What one thread does at a time: it takes some of a span's tokens and the query heads that share a
// KV head, and all keys that these queries see. Where units are few, one whose keys fill several
// tiles is split into units of a tile each.
typedef struct {
    const Span *span;
    int token, n_tokens;        // in the span
    int h, group, n_rows;       // KV head; its query heads; rows = tokens times query heads
    Range seen;                 // positions that some token of it sees
    int split, n_splits;        // results of all splits are merged into split 0
    int others;                 // of split 0: where split 1 is among units; the next is a KV head's
                                // units behind it
    size_t first_row;           // of partial results
} Unit;

typedef struct {
    Buffer heads;            // [n_heads n][head_dim], rows by head
    Buffer of_query, of_key; // [n_heads n][rows of pos_k or pos_q]
    Group *groups;           // [n_heads]
} PositionBuffers;

typedef struct {
    Buffer q, keys, values;  // [n][n_heads head_dim], 2 x [n][n_kv_heads head_dim]
    Buffer mixed;            // [n][n_heads head_dim], or values of n_value
    Buffer out_gate;         // [n][rows of out_gate]
    LatentBuffers latent;
    PositionBuffers positions;
    Span *spans;             // [n], of a round
    Unit *units;             // [most_units]
    HeadScratch *threads;    // [n_threads]
    float *partial, *partial_max, *partial_sum;  // results of splits: [rows][v_dim], 2 x [rows]
} AttentionBuffers;

typedef struct {             // attention of one layer in the current pass
    Workspace *w;
    const Attention *a;
    const KvLayer *kv;
    int layer;
    AttentionBuffers b;
    const Span *spans;
    int n_spans, n_units, units_per_item;
    int n_merged;            // units that are split 0, in which others are merged, stand first
} AttentionPass;

// A tile of positions, as far as a unit sees it: begin..stop-1, in whole slots ..end-1.
typedef struct {
    int first, begin, stop, end;  // first: the tile's first position
    ptrdiff_t ahead;  // from its keys and values to those that this thread wants next; 0: unknown
    const uint8_t *values[TILE / LANES];
} KeyTile;

static inline int group_size(const Attention *a) { return a->n_heads / a->n_kv_heads; }

// Whether it has keys and values of its own to add to the cache.
static inline bool adds_keys(const Attention *a) {
    return a->kv_from < 0 && a->mask != MASK_SOURCE;
}

// How many tokens can be seen: the span's text up to its last token, or its source.
static inline int text_end(const Attention *a, const Span *s) {
    return a->mask == MASK_SOURCE ? s->sequence->source.n : s->pos + s->n;
}

// The position and the query head of row r of a unit.
static inline int row_position(const Unit *u, int r) {
    return u->span->pos + u->token + r / u->group;
}
static inline int row_head(const Unit *u, int r) { return u->h * u->group + r % u->group; }

// The type of the numbers that are mixed.
static inline Dtype mixed_dtype(const AttentionPass *p) {
    return p->a->latent.rank ? p->kv->k_dtype : p->kv->v_dtype;
}

// ---- attention.c ----

// w->out = o(attention of y), for any attention of a layer: its own, or to a source.
void run_attention(Workspace *w, int layer, const Attention *a, const KvLayer *kv, Buffer y);

// ---- attention_tiles.c: how the work is cut; no cut changes a bit ----

AttentionBuffers attention_buffers(Arena *arena, const Workspace *w, const Attention *a,
                                   const KvLayer *kv, int n_rows);
// Sets p->spans to the tokens that may enter the cache together, from token `from` of each span on:
// all of them, or RING_SPARE where the cache is a ring. Returns how many at most; 0: none left.
int next_round(AttentionPass *p, int from);
// Cuts the round's spans into p->b.units.
void cut_spans(AttentionPass *p);
KeyTile key_tile(const AttentionPass *p, const Unit *u, int first, ptrdiff_t ahead);
// Where row r of a unit lies in a buffer that has each token's heads, `width` numbers each.
float *head_row(const Unit *u, Buffer buffer, int r, int width);
// Bytes from a tile's keys to those that the thread reads after it, `next` being its next unit or
// NULL: a hint for prefetching. 0: unknown, or not worth it.
ptrdiff_t bytes_ahead(const AttentionPass *p, const Unit *u, const Unit *next, int tile);
// Bytes of keys and values that the round reads; and those that take as long as its merges.
size_t key_bytes(const AttentionPass *p);
size_t merge_bytes(const AttentionPass *p);

// ---- attention_scores.c ----

// The unit's queries, scaled, one row after the other, in the form that the keys' dtype wants.
Rows gather_queries(const AttentionPass *p, const Unit *u, HeadScratch *x);
Rows queries_after(const Rows *q, int r);  // from row r on
// scores[row][position - first] = q . k, for n_rows rows of queries.
void dot_keys(const AttentionPass *p, const Unit *u, const KeyTile *tile, const Rows *q,
              int n_rows, float *scores);
// What a layer does to n scores of row r of a unit before the softmax: softcap, ALiBi, biases by
// distance. x[i] belongs to the key at position begin + i. Scores that the mask hides may be
// anything.
void shape_scores(const AttentionPass *p, const Unit *u, int r, float *x, int begin, int n);

// ---- positions.c: disentangled attention ----

void multiply_positions(AttentionPass *p);
void add_positions(const AttentionPass *p, const Unit *u, int r, float *x, int begin, int n);

// ---- q_temp.c ----

// Multiplies the queries of row t, of all heads, by what the model has for its position.
void temper_queries(const AttentionPass *p, float *q, int t);

// ---- attention_probe.c ----

// Shows the rows of a unit to the workspace's probe. arg: the AttentionPass.
void show_unit(const void *arg, int unit, int thread);

// ---- heads_off.c ----

// Zeroes the parts of p->b.mixed, of `width` numbers a row, whose heads are off in its sequence. A
// probe may then change all of it.
void change_mixed(const AttentionPass *p, int width);

// ---- attention_describe.c ----

const char *attention_name(int n_heads, int n_kv_heads);  // MHA, GQA or MQA
void describe_attention(const Layer *l, char *text, size_t size);

#endif
