// The core's structs and calls: the workspace and its buffers, the sequence and its KV cache, the
// pass and its steps. Sections follow the files in reading order.
#ifndef ENGINE_H
#define ENGINE_H

#include "heads.h"
#include "model.h"
#include "system/arena.h"
#include "system/threads.h"

// The library's types, under the engine's names.
typedef heads_workspace Workspace;
typedef heads_sequence Sequence;
typedef heads_workspace_options WorkspaceOptions;
typedef heads_run Run;
typedef heads_kv_plan KvPlan;

enum {
    TILE = MAX_KEYS,   // positions of a tile of attention; tiles begin at multiples of it
    RING_SPARE = 64,   // positions of a window's ring besides the window
};

// ---- workspace.c: kernels, threads and buffers ----

enum { DEFAULT_CHUNK = 128 };  // most tokens of a pass

int logit_width(const Workspace *w);  // vocab_size, or n_embd with options.hidden
void workspace_free(Workspace *w);    // but for its reader and text

// ---- kvcache.c: where keys, values and states lie ----

// One layer's place in a sequence's cache: a mixer's state, if it keeps one, then slots of 16
// positions. A slot holds, for each KV head, a panel of 16 keys and then 16 values.
typedef struct {
    size_t offset;                      // in the cache
    int n_heads;                        // KV heads
    size_t k_bytes, v_bytes, v_scales;  // of a KV head in a slot; v_scales: where scales begin
    size_t slot_bytes;                  // of all heads
    int n_slots;
    int ring_slots;                     // slots that a sliding window needs; 0: it has no window
    int v_dim;                          // head_dim, padded for the mix
    Dtype k_dtype, v_dtype;
    bool ring;                          // slots are used again, since n_slots is ring_slots
    bool borrowed;                      // it has no slots, and reads another layer's
    bool passing;                       // an encoder's: gone when the text has run
    bool of_source;                     // its positions are the source's
    size_t state;                       // bytes of the mixer's state
} KvLayer;

typedef struct {  // of every sequence of a workspace
    int context;
    Dtype k_dtype, v_dtype;
    size_t bytes;
    size_t passing;   // offset of the encoder's keys and values, on a page of their own
    int n_layers;
    KvLayer *layers;  // [n_layers]: the model's layers, then the decoder's cross-attentions
} KvLayout;

// Fails if a cache cannot hold keys or values of the options' types.
int check_kv_types(const WorkspaceOptions *o, Error *err);
int kv_layout_new(KvLayout *layout, const Model *m, const WorkspaceOptions *o, Error *err);
void kv_layout_free(KvLayout *layout);
// KV head h's panel of 16 keys, and its 16 values, at positions 16 slot .. 16 slot + 15.
uint8_t *kv_keys(const KvLayer *kv, const Sequence *s, int slot, int h);
uint8_t *kv_values(const KvLayer *kv, const Sequence *s, int slot, int h);
// The mixer's state; zeros at the beginning of a sequence.
float *kv_state(const KvLayer *kv, const Sequence *s);

// ---- sequence/: a text and its cache. sequence.h has the calls ----

typedef struct KvFile KvFile;  // a file that sequences map pages of
typedef struct Sum Sum;        // of a layer's bytes in a saved session
typedef struct Guesser Guesser;      // sequence/guesser.h: what guesses for its sequences
typedef struct GuessRows GuessRows;  // what layers that guess have read of a text
typedef struct Steering Steering;  // vectors to be added after layers (sequence/steering.h)

typedef struct {  // pages of the cache that are a file's
    KvFile *file;     // NULL: none
    int length;       // positions 0..length-1 are mapped from it; -1: the file is this cache, which
                      // forks may map
    bool used;        // the sequence ran since it mapped them
    Sum *unchecked;   // [layout.n_layers], of a loaded cache before it is compared, or NULL
} SharedPages;

typedef struct {  // where a sequence with states can go back to
    uint8_t *states;  // the mixers' states then, or NULL
    int length;       // above the sequence's: where they are to be kept
} Mark;

typedef struct {  // what an encoder has read
    int *tokens;      // [context]
    int n;
    bool mapped;      // its keys and values are a file's pages too
} Source;

typedef struct {  // rope may have other tables for long texts
    int expected;     // least length that the text will have
    unsigned tables;  // rope sets, a bit each, that rotated it by their tables for long texts
} LongRope;

typedef struct {  // what is added to products for a sequence's rows, times the scale
    heads_adapter *adapter;  // NULL: nothing
    float scale;
} Adapted;

struct heads_sequence {
    Workspace *workspace;
    uint8_t *cache;   // [layout.bytes]
    int *tokens;      // [context]
    int length;       // tokens in the cache
    int high;         // largest length ever: how far rings have been overwritten
    int second_text;  // of a pair of texts: where tokens of type 1 begin; 0: nowhere
    bool *off;        // [layout.n_layers][most heads], those switched off, or NULL
    Steering *steering;  // of the residual stream, or NULL
    unsigned call;    // the last call of check_run that had it
    Adapted adapted;
    Source source;
    GuessRows *guesses;  // or NULL
    SharedPages pages;
    Mark mark;
    LongRope rope;
};

// ---- forward.c: the tokens of many sequences, pass by pass ----

typedef struct {  // rows first..first+n-1 of a pass: tokens of one sequence from position pos on
    Sequence *sequence;
    int first, n, pos;
    int n_logits;     // logits are wanted of the last n_logits rows
    int rest;         // rows behind the sequence's mark, while those before it run
} Span;

typedef struct {  // a row of a pass
    const Sequence *sequence;
    int id, pos, place, span;  // place: the row of embed_pos
} Token;

// The input of a product, rounded for the weights' dtypes (kernels.h, Rows).
typedef struct {
    uint16_t *bf16;
    Int8Rows turned, parts;  // of H x in blocks, of x in parts of 16
} InputForms;

typedef struct LowRows LowRows;  // math/lowrank.c: what adapters compute with

typedef struct HeadWatch HeadWatch;  // layers/head_watch.h: sees how scores come about

typedef struct TextReader TextReader;  // library/reader.c: another workspace, which reads texts out

struct heads_workspace {
    const Model *model;
    const Tower *tower;   // that the current pass runs
    const Kernels *k;
    Pool *pool;
    bool own_pool;
    TextReader *reader;   // kept for the next call of heads_embed or heads_classify, or NULL
    struct KeptText *text;  // library/kept.c: kept for the next experiment, or NULL
    Guesser *guesser;     // of sequences to come, or NULL
    heads_probe probe;    // called by passes
    const HeadWatch *watch;  // called where probe.attention is, or NULL
    Adapted adapted;      // of sequences to come
    LowRows *low;         // NULL: no sequence has had an adapter
    int chunk;            // most rows of a pass; buffers have as many
    int pass_rows;        // rows that end a pass: chunk, or less for encoders
    bool hidden;          // hidden states instead of logits
    int logit_rows;
    KvLayout kv;
    void *memory;         // of all buffers below: one mapping, whose pages are used as needed
    size_t bytes;

    unsigned call;
    Span *spans;          // [chunk], of the current pass
    Token *tokens;        // [chunk]
    int n_spans, n_rows;
    int *wanted;          // [chunk], the rows whose logits are wanted
    const int *row_of;    // row of the pass that a product's row belongs to; NULL: row % n_rows
    Buffer x;             // [chunk][n_embd], the residual stream
    Buffer y;             // [chunk][n_embd], norm(x), a branch's input
    Buffer out;           // [chunk][n_embd], a branch's output, to be added to x
    Buffer cos[MAX_ROPE_SETS], sin[MAX_ROPE_SETS];  // [chunk][n_pairs], of the rows' positions
    Buffer layer_embed;   // [chunk + n_threads][n_layers width]
    Buffer embedded;      // [chunk][embed_proj.n_in], if there is an embed_proj
    Buffer logits;        // [logit_rows][logit_width]
    InputForms input;
    Arena scratch;        // for buffers of the part of a layer that is running
};

// Adds n tokens of a sequence, the first one at position pos, to the pass; the logits of the last
// n_logits are wanted.
void add_span(Workspace *w, Sequence *s, const int *tokens, int n, int pos, int n_logits);
// Checks a run of a sequence whose text has `length` tokens so far, for any tower, and marks the
// sequence as one of this call.
int check_run(Workspace *w, const Run *run, int length, Error *err);
// heads_forward_runs in three steps, for a caller whose runs fail one by one. On an error,
// check_runs sets *failed to the run to blame, of which nothing has run.
int check_runs(Workspace *w, const Run *runs, int n_runs, int *failed, Error *err);
// whole: no run is cut into passes, since its tokens see each other.
void run_passes(Workspace *w, const Run *runs, int n_runs, bool whole);
// Fails if a number in the run's rows of logits is not finite.
int check_logits(const Workspace *w, const Run *run, const float *logits, Error *err);

// The scratch memory, with all of it free.
static inline Arena scratch(const Workspace *w) {
    return arena_unused(w->scratch, (const uint8_t *)w->memory + w->bytes);
}

// ---- transformer.c: one pass ----

// Runs w->spans through all layers; wanted logits go to w->logits from row `logit_row` on.
void forward_pass(Workspace *w, int logit_row);
// What lays out the scratch of each part of layer i, NULL at the end. Parts run one by one.
typedef void ScratchFn(const Workspace *w, int i, Arena *a);
extern ScratchFn *const layer_parts[];  // layers/topologies.c

// ---- layers/embed.c: from tokens to rows ----

// w->x = the rows' embeddings; w->cos and w->sin = the angles of their positions.
void embed(Workspace *w);
void embed_scratch(Workspace *w, Arena *a);

// ---- layers/branch.c: the steps of a layer's branches ----

// A branch's input: w->y = norm(w->x), or w->x itself if there is no norm.
Buffer branch_input(Workspace *w, const Norm *norm);
// w->out = mixer(y), of layer i: attention, or what the layer has in its place.
void run_mixer(Workspace *w, const Layer *l, int i, Buffer y);
// w->out = ffn(y) + experts(y), as far as the layer has them.
void feed_forward(Workspace *w, const Layer *l, Buffer y);
// w->x += residual_scale * norm(w->out)
void add_branch(Workspace *w, const Layer *l, const Norm *post_norm);
void ffn_scratch(const Workspace *w, int i, Arena *a);

// ---- mixers: attention.c, and in layers/ mla, shortconv, deltanet, mamba2, mamba1, rglru ----

enum { MAX_MIXER_MATRICES = 10 };

// A mixer, for the engine, its reports and its planner. layers/mixers.c lists all of them.
typedef struct {
    const char *name;
    // w->out = mixer(y), for the rows of the pass.
    void (*forward)(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y);
    // Allocates the same buffers as forward, so that their sizes can be added up.
    void (*scratch)(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a);
    // Lists its matrices in out[MAX_MIXER_MATRICES]; returns how many. An absent one has no data.
    // A token meets all matrices of a stack.
    int (*matrices)(const Layer *l, const Matrix **out);
    // Bytes of its state in a sequence; NULL: it caches keys and values instead.
    size_t (*state_bytes)(const Layer *l);
    // Writes kind and numbers for people: "Mamba-2, 8 heads of 64 ..". NULL: the name is enough.
    void (*describe)(const Layer *l, char *text, size_t size);
} Mixer;

extern const Mixer attention_mixer, shortconv_mixer, deltanet_mixer, mamba2_mixer, mamba1_mixer,
    rglru_mixer, *const mixers[N_MIXERS];  // NULL for MIXER_NONE

typedef struct {  // positions low..high
    int low, high;
} Range;

// The mask: the positions that the token at pos sees, of n tokens.
static inline Range seen_from(const Attention *a, int pos, int n) {
    if (a->mask == MASK_SOURCE) return (Range){0, n - 1};
    if (a->chunked) return (Range){pos - pos % a->window, pos};
    int reach = a->window ? a->window - 1 : n, high = n - pos > reach ? pos + reach : n - 1;
    return (Range){pos > reach ? pos - reach : 0, a->mask == MASK_ALL ? high : pos};
}

// Stores the spans' rows of keys and values in the cache, at their positions. Rounding to q4 keeps
// what the tokens' own queries weigh most.
void kv_append(Workspace *w, const Attention *a, const KvLayer *kv, Buffer queries, Buffer keys,
               Buffer values, const Span *spans, int n_spans);

// ---- layers/moe.c: experts ----

// w->out += experts(y). They may overwrite y's buffer.
void add_experts(Workspace *w, const Experts *e, Buffer y);
void experts_scratch(const Workspace *w, int i, Arena *a);

// ---- layers/logits.c: behind the last layer ----

// y = norm(x) for n rows, with the tower's last norm.
void last_norm(Workspace *w, Buffer y, Buffer x, int n);
// logits = output(head(norm(w->x))), for the wanted rows; or norm(w->x), if w->hidden.
void compute_logits(Workspace *w, int logit_row);

// ---- math/matmul.c: products with weights ----

typedef struct {  // out = matrix x; several products may have the same input x
    Buffer out;
    const Matrix *matrix;
} Product;

typedef struct {  // rows first..first+n-1 are multiplied by matrix `which` of a stack
    int which, first, n;
} Group;

// out = matrix x + bias for n rows of x.
void multiply(Workspace *w, Buffer out, const Matrix *matrix, Buffer x, int n);
// Several products of one input x; the matrices have the same n_in.
void multiply_each(Workspace *w, const Product *products, int n_products, Buffer x, int n);
// Products with stacks: each group of rows has its own matrix. n_rows: of all groups together.
void multiply_groups(Workspace *w, const Product *products, int n_products, Buffer x, int n_rows,
                     const Group *groups, int n_groups);
// Row r of a matrix, as f32: the lookup of an embedding.
void unpack_row(const Workspace *w, float *out, const Matrix *matrix, int r);

// ---- math/rows.c: operations on n rows, each row by itself ----

// parallel_for, unless the items read too few bytes in all to be worth waking the other threads.
void parallel_if_large(Workspace *w, size_t bytes, int n, WorkFn *work, const void *arg);
void norm_row(const Workspace *w, float *out, const Norm *norm, const float *in, int width);
void norm_rows(Workspace *w, Buffer out, const Norm *norm, Buffer in, int width, int n);
void add_rows(Workspace *w, Buffer out, float scale, Buffer in, int width, int n);  // out += ..
void scale_rows(Workspace *w, Buffer out, float scale, int width, int n);
void copy_rows(Buffer out, Buffer in, int width, int n);
void zero_rows(Buffer out, int n);
// out *= sigmoid(gate), where each gate scales width / n_gates numbers. gate is overwritten.
void gate_rows(Workspace *w, Buffer out, Buffer gate, int n_gates, int width, int n);
// gate = act(gate) * up, or, without a gate, up = act(up). Returns the buffer of the result.
Buffer activate_rows(Workspace *w, const Activation *act, Buffer gate, Buffer up, int width, int n);

#endif
