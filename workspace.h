// What the engine's files share and nothing else sees: a workspace's buffers, the current
// pass, the steps that passes are made of, and where a sequence's cache lies.
#ifndef WORKSPACE_H
#define WORKSPACE_H

#include "session.h"

enum {
    TILE = MAX_KEYS,   // positions that one softmax covers; tiles begin at multiples of it
    RING_RUN = 64,     // tokens that a window's ring has room for in addition to the window
};

// ---- arena.c: memory for buffers ----

typedef struct {  // rows of activations
    float *data;
    size_t stride;  // width rounded up to 16: products write whole panels
} Buffer;

// Memory that is handed out from its beginning, in pieces of whole cache lines. With data NULL it
// only adds up what would be handed out. Copied by value: what the copy hands out is free again
// when the copy is gone.
typedef struct {
    uint8_t *data;
    size_t used;          // SIZE_MAX: more than an address can say
    size_t input_blocks;  // blocks of 32 numbers of the largest input of a product
} Arena;

void release_buffers(void *memory, size_t bytes);
void *take(Arena *a, size_t count, size_t size);
Buffer take_rows(Arena *a, size_t n_rows, size_t width);
Buffer take_input(Arena *a, size_t n_rows, size_t width);  // rows that a product reads
// Products and sums that stay at SIZE_MAX instead of overflowing.
size_t times(size_t a, size_t b);
size_t plus(size_t a, size_t b);

static inline float *row(Buffer b, int t) { return b.data + (size_t)t * b.stride; }
static inline Buffer rows_after(Buffer b, int t) { return (Buffer){row(b, t), b.stride}; }

// ---- kvcache.c: where a sequence's keys, values and states lie ----

// One layer's part of a cache: slots of 16 positions; a slot holds, for each KV head, a panel of
// 16 keys and then 16 values. A mixer that keeps a state of fixed size has that instead; a layer
// may have both.
typedef struct {
    size_t offset;                      // in the cache
    int n_heads;                        // KV heads
    size_t k_bytes, v_bytes, v_scales;  // of a KV head in a slot; where scales of q8 values begin
    size_t slot_bytes;                  // of all heads
    int n_slots;                        // a ring if the layer has a window
    int v_dim;                          // head_dim, padded for the mix
    Dtype k_dtype, v_dtype;
    bool ring, borrowed;                // borrowed: it is another layer's
    bool passing;                       // an encoder's: gone when the text has run
    bool of_source;                     // its positions are those of the source
    size_t state;                       // bytes, which come before the slots
} KvLayer;

typedef struct {  // of every sequence of a workspace
    int context;
    Dtype k_dtype, v_dtype;
    size_t bytes;
    size_t passing;   // where the parts begin that are gone after a pass, on a page of their own
    int n_parts;
    KvLayer *layers;  // [n_parts]: the n_layers', then those of cross-attention
} KvLayout;

int kv_layout_new(KvLayout *layout, const Model *m, const WorkspaceOptions *o, Error *err);
void kv_layout_free(KvLayout *layout);
// The part of layer i that cross-attention reads.
const KvLayer *kv_cross(const Workspace *w, int i);

// The panel of 16 keys, and the 16 values, of KV head h at positions 16 block .. 16 block + 15.
uint8_t *kv_keys(const KvLayer *kv, const Sequence *s, int block, int h);
uint8_t *kv_values(const KvLayer *kv, const Sequence *s, int block, int h);
// What a mixer remembers of a sequence; all zeros at its beginning.
float *kv_state(const KvLayer *kv, const Sequence *s);

// ---- session.c: a sequence and the current pass ----

typedef struct KvFile KvFile;  // a file that sequences map pages of

typedef struct {  // the first bytes of a layer's part, and the exclusive or of their 64-bit words
    size_t bytes;
    uint64_t sum;
} PartSum;

struct heads_sequence {
    Workspace *workspace;
    uint8_t *cache;   // [layout.bytes]
    int *tokens;      // [context]
    int *source;      // [context], the text that an encoder has read for it
    int n_source;
    int length;       // tokens in the cache
    int expected;     // what rope takes for the text's length, where that matters
    int high;         // most tokens there ever were: how far rings have been overwritten
    unsigned long_tables;  // sets of rope, a bit each, whose tables for long texts rotated it
    KvFile *file;     // that positions 0..in_file-1 are mapped from; NULL: none
    int in_file;      // -1: the cache itself is the file, others may map it
    bool source_in_file;  // what it keeps of the source is
    bool used;        // it ran since it mapped them
    uint8_t *marked_states;  // the mixers' states, one after the other, when it was so long:
    int marked;
    PartSum *unchecked;    // [n_parts], of a loaded cache that was not compared yet, or NULL
    unsigned call;    // the last call of forward_runs that had it
};

// Compares a loaded cache with its sums, if that was not done yet. An error: its file is damaged.
int check_loaded(const Sequence *s, Error *err);
// Before a sequence runs: what it has mapped is checked and populated, once.
int first_use(Sequence *s, Error *err);
// Positions whose keys and values other sequences may have in the same memory.
int shared_length(const Sequence *s);
bool shared_source(const Sequence *s);  // and whether they may have what it keeps of the source,
bool frozen_source(const Sequence *s);  // in memory that it must not write to

typedef struct {  // rows first..first+n-1 of a pass: tokens of one sequence from position pos on
    Sequence *sequence;
    int first, n, pos;
    int n_logits;     // of the last of them
} Span;

typedef struct {  // one row of a pass
    const Sequence *sequence;
    int token, pos, span;
} Row;

// The input of a product in the forms that weights' dtypes multiply (kernels.h, Rows).
typedef struct {
    uint16_t *bf16;
    int8_t *q8;
    float *scale;
    int32_t *offset;
} InputForms;

struct heads_workspace {
    const Model *model;
    const Stack *stack;   // whose layers the current pass runs
    const Kernels *k;
    Pool *pool;
    bool own_pool;
    heads_probe probe;    // who looks at passes
    int chunk;            // rows that there is room for
    int full;             // rows with which a pass is full: chunk, or less for encoders
    bool hidden;          // hidden states are wanted in place of logits
    int logit_rows;
    KvLayout kv;
    void *memory;         // all that follows; mapped at once, touched as it is needed
    size_t bytes;

    unsigned call;
    Span *spans;          // [chunk], of the current pass
    Row *rows;            // [chunk]
    int n_spans, n_rows;
    Buffer x;             // [chunk][n_embd], the residual stream
    Buffer y;             // [chunk][n_embd], a normalised copy of it
    Buffer out;           // [chunk][n_embd], what a branch adds to it
    Buffer cos[MAX_ROPE_SETS], sin[MAX_ROPE_SETS];  // [chunk][n_pairs], of the rows' positions
    Buffer layer_embed;   // [chunk + n_threads][n_layers width]
    Buffer embedded;      // [chunk][d_embed], where that is not n_embd
    Buffer logits;        // [logit_rows][vocab_size], or [n_embd] where hidden states are wanted
    InputForms input;
    Arena scratch;        // what parts take their own buffers from while they work
};

// The scratch memory, all of it free.
Arena scratch(const Workspace *w);

// Stores keys and values (rows of the pass) of the spans' tokens at their positions. The tokens'
// own queries say what a q4 key should keep best.
void kv_append(Workspace *w, const Attention *a, const KvLayer *kv, Buffer queries, Buffer keys,
               Buffer values, const Span *spans, int n_spans);

// ---- matmul.c: products with weights ----

typedef struct {  // one of several products of the same input
    Buffer out;
    const Matrix *w;
} Product;

typedef struct {  // rows first..first+n-1 meet matrix `which` of a stack
    int which, first, n;
} Group;

// out = w x + bias for n rows of x.
void multiply(Workspace *ws, Buffer out, const Matrix *w, Buffer x, int n);
// Several at once, whose matrices have the same n_in.
void multiply_each(Workspace *ws, const Product *products, int n_products, Buffer x, int n);
// The same for stacks: each group of rows with a matrix of its own; n_rows: of all groups.
void multiply_groups(Workspace *ws, const Product *products, int n_products, Buffer x, int n_rows,
                     const Group *groups, int n_groups);
// Row r of a matrix, as f32.
void unpack_row(const Workspace *ws, float *out, const Matrix *w, int r);

// ---- rows.c: operations on n rows, each row by itself ----

// parallel_for, unless the items together read so few bytes that waking the other threads would
// cost more.
void for_each(Workspace *w, size_t bytes, int n, WorkFn *work, const void *arg);
void norm_row(const Workspace *w, float *out, const Norm *norm, const float *in, int width);
void norm_rows(Workspace *w, Buffer out, const Norm *norm, Buffer in, int width, int n);
void add_rows(Workspace *w, Buffer out, float scale, Buffer in, int width, int n);  // out += ..
void scale_rows(Workspace *w, Buffer out, float scale, int width, int n);
void zero_rows(Buffer out, int n);
// out *= sigmoid(gate), where each gate scales width / n_gates numbers. gate is overwritten.
void gate_rows(Workspace *w, Buffer out, Buffer gate, int n_gates, int width, int n);
// gate = act(gate) * up, or up = act(up) where there is no gate. Returns the one that it is in.
Buffer activate_rows(Workspace *w, const Activation *act, Buffer gate, Buffer up, int width, int n);

// ---- embed.c: from tokens to rows ----

void embed_scratch(Workspace *w, Arena *a);
// The rows' embeddings, to w->x; and cosines and sines of their positions.
void embed(Workspace *w);
// out = what the layer's own embedding of each token adds.
void embed_branch(Workspace *w, const EmbedBranch *e, int layer, Activation act);
void embed_branch_scratch(const Workspace *w, const Layer *l, Arena *a);

// ---- mixers: attention.c (with mla.c), shortconv.c, deltanet.c, mamba2.c ----

typedef struct {
    // w->out = what the mixer makes of the pass's rows of y.
    void (*run)(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y);
    // Takes its buffers, as run does, so that they can be added up.
    void (*scratch)(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a);
    size_t (*state_bytes)(const Layer *l);  // that it remembers of a sequence; NULL: it caches keys
} Mixer;

extern const Mixer attention_mixer, shortconv_mixer, deltanet_mixer, mamba2_mixer;
// w->out = what layer i's attention to the source makes of y.
void cross_attention(Workspace *w, int i, Buffer y);
void cross_scratch(const Workspace *w, int i, Arena *a);
// Stores the keys and values that cross-attention reads, made of y, what the encoder gave.
void keep_source(Workspace *w, Buffer y);
extern const Mixer *const mixers[N_MIXERS];  // transformer.c; NULL for MIXER_NONE

typedef struct {  // positions low..high
    int low, high;
} Range;

// The mask: the positions that the token at pos sees, of a text of which n tokens are there.
static inline Range seen_from(const Attention *a, int pos, int n) {
    if (a->mask == MASK_SOURCE) return (Range){0, n - 1};
    Range seen = {a->window && pos >= a->window ? pos - a->window + 1 : 0, pos};
    bool cut = a->window && n - pos > a->window;
    if (a->mask == MASK_ALL) seen.high = cut ? pos + a->window - 1 : n - 1;
    return seen;
}

// ---- moe.c: experts. w->out += their answer to each row of y, whose buffer they may use ----

void experts(Workspace *w, const Experts *e, Buffer y);
void experts_scratch(const Workspace *w, const Layer *l, Arena *a);

// ---- transformer.c ----

// One pass over w->spans: the logits that they want go to rows of w->logits from `logit_row` on.
void pass(Workspace *w, int logit_row);
void ffn_scratch(const Workspace *w, const Layer *l, Arena *a);

#endif
