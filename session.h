// What the files of one session share: the decoder (model.c), attention (attention.c) and the KV cache (kvcache.c).
#ifndef SESSION_H
#define SESSION_H

#include "model.h"

enum {
    TILE = MAX_KEYS,  // positions that one softmax covers; tiles begin at multiples of it
    QUERY_ROWS = 64,  // rows (tokens times query heads of a KV head) that attention takes together, if a token has no more
    SOFTMAX_ROWS = 12, // of these, how many are scored, turned into probabilities and mixed at once
    RING_RUN = 64,    // tokens that a window's ring has room for besides the window
};

// One layer's part of the cache: slots of 16 positions; a slot holds, for each KV head, a panel of 16 keys and then 16
// values.
typedef struct {
    size_t offset;                      // of the layer in the cache
    size_t k_bytes, v_bytes, v_scales;  // of one KV head in a slot; where the scales of q8 values begin
    int n_slots, v_dim;                 // positions / 16 (a ring if the layer has a window); head_dim padded for the mix
    size_t state;                       // bytes at offset that a layer without attention remembers; it has no slots
} KvLayer;

typedef struct {
    uint8_t *data;    // one anonymous mapping, touched as positions fill
    size_t bytes;
    KvLayer *layers;  // [n_layers]
} KvCache;

typedef struct {  // rows of activations, [chunk][stride]
    float *data;
    size_t stride;  // width rounded up to 16: products write whole panels
} Buffer;

typedef struct {      // what one thread needs in attention; rows = QUERY_ROWS, or the heads of a group if those are more
    float *q;         // [rows][head_dim], scaled
    int8_t *q8;       // [rows][head_dim padded to 32], with its scales and offsets
    float *q8_scale;
    int32_t *q8_offset;
    float *p;         // [SOFTMAX_ROWS][TILE] scores, then probabilities
    float *mix;       // [SOFTMAX_ROWS][v_dim] of one tile
} Scratch;

typedef struct {  // rows first..first+n-1 meet matrix `which` of a stack
    int which, first, n;
} Group;

typedef struct {  // one of a token's experts
    int expert, row;  // row: of s->grouped
    float weight;
} Choice;

struct Session {
    const Model *model;
    const Kernels *k;
    const char *why;  // of the choice of kernels
    Pool *pool;
    int context, chunk, logit_rows, position;
    int length;    // of the text as far as is known, which chooses between tables of rope
    int *history;  // [context] the text, if such a choice may change; or NULL
    Dtype k_dtype, v_dtype;
    KvCache kv;

    uint8_t *arena;  // everything below; one anonymous mapping
    size_t arena_bytes;
    Buffer x;                      // the residual stream, n_embd
    Buffer y;                      // a normalised copy of it, n_embd
    Buffer q, keys, values, att;   // n_heads head_dim, 2 x n_kv_heads head_dim, n_heads head_dim
    Buffer attn_gate;              // n_heads head_dim
    Buffer out;                    // what a branch adds to x, n_embd
    Buffer ple, ple_gate;          // the layers' own embeddings, n_layers ple; a branch's inside, ple
    Buffer gate, up;               // d_ff
    Buffer scores, selection;      // n_experts
    Choice *choices;               // [chunk][top_k]
    Group *groups;                 // [n_experts], [n_heads]
    Buffer by_expert, expert_gate, expert_up;  // [chunk * top_k] rows by expert: n_embd, 2 x d_expert
    Buffer projected, q_down;      // latent attention: the query heads as q gives them; the query's own latent
    Buffer head_in, head_out;      // [n_heads * chunk] rows by head: n_nope or latent, latent or n_value
    Buffer mix_in, conv;           // 3 n_embd or n_channels; [n_taps - 1 + chunk] n_channels, the convolution's input
    Buffer delta_gate, beta, decay;  // n_v_heads v_dim, 2 x n_v_heads
    Buffer logits;                 // [logit_rows][vocab_size]
    uint16_t *bf16;                // the input of a product as bf16 or int8, [chunk][widest input padded to 32]
    int8_t *q8;
    float *q8_scale;
    int32_t *q8_offset;
    Buffer cos[MAX_ROPE_SETS], sin[MAX_ROPE_SETS];  // of the chunk's positions, n_pairs
    Scratch *scratch;              // [n_threads]
    float *part, *part_max, *part_sum;  // partial results of attention: [parts][rows][v_dim], [parts][rows]
};

// model.c
static inline float *row(const Buffer *b, int t) { return b->data + (size_t)t * b->stride; }
// parallel_for, unless the items together read so few bytes that waking the other threads would cost more.
void for_each(Session *s, size_t bytes, int n, void (*work)(void *arg, int item, int thread), void *arg);
// out[i] = w[i] x + bias for n rows of x. All w have the same input dimension.
void multiply(Session *s, const Matrix *const *w, const Buffer *const *out, int n_matrices, const Buffer *x, int n);
// The same for stacks: each group of rows with a matrix of its own. n_rows: of all groups.
void multiply_groups(Session *s, const Matrix *const *w, const Buffer *const *out, int n_matrices, const Buffer *x,
                     int n_rows, const Group *groups, int n_groups);
// out = norm of x, both [n]; out may be x.
void norm_row(const Session *s, const Norm *norm, float *out, const float *x, int n);
// gate = act(gate) * up, or up = act(up) in a layer that is not gated; n rows of `width`.
void activate(Session *s, const Layer *l, const Buffer *gate, const Buffer *up, int width, int n);

// mla.c. From n rows of y to s->q and s->keys, as attention() takes them; from s->att, latents by head, to values by head.
void mla_project(Session *s, int layer, const Buffer *y, int n);
void mla_values(Session *s, int layer, int n);

// shortconv.c, deltanet.c. s->out = what the mixer makes of n rows of y.
void shortconv(Session *s, int layer, const Buffer *y, int n);
void deltanet(Session *s, int layer, const Buffer *y, int n);
// The first n_taps - 1 rows of s->conv from what the layer remembers of earlier tokens; and what it shall remember of n
// more.
void conv_remember(Session *s, int layer);
void conv_keep(Session *s, int layer, int n_tokens);

// moe.c. s->out += the experts' answer to each of n rows of y.
void experts(Session *s, int layer, const Buffer *y, int n);

// kvcache.c
int kv_new(Session *s, Error *err);
void kv_free(KvCache *kv);
// The panel of 16 keys, and the 16 values, of KV head h at the positions from 16 * block on.
uint8_t *kv_keys(const Session *s, int layer, int block, int h);
uint8_t *kv_values(const Session *s, int layer, int block, int h);
// What a layer without attention remembers, zero at position 0; kv_clear makes it so.
float *kv_state(const Session *s, int layer);
void kv_clear(Session *s);
// Stores keys and values of n tokens, rows of s->keys and s->values from `first` on, at the positions from pos on.
void kv_append(Session *s, int layer, int first, int n, int pos);

// attention.c. From s->q, s->keys, s->values (projected, not yet rotated) of n tokens to s->att.
void attention(Session *s, int layer, int n);
// What attention needs of an arena; with s->arena NULL it only adds up.
void attention_scratch(Session *s, size_t *used);
void *arena_take(Session *s, size_t *used, size_t count, size_t size);

#endif
