// What the command line needs beside heads.h: for reports a checkpoint's contents, its layers, the
// cost of other caches and the processor's limits; and the calls of the engine that it shares. It
// opens none of their structs. Nothing declared here changes a model, a tokenizer or a chat, and
// the library does not export it. Strings and bytes are borrowed from the handle, or static.
#ifndef INSPECT_H
#define INSPECT_H

#include "library/chat.h"
#include "system/process.h"
#include "system/terminal.h"
#include "text/unicode.h"

// ---- the checkpoint ----

typedef struct {
    size_t file_bytes;
    const void *bytes;       // [file_bytes], mapped
    uint32_t checksum;       // of them, as the header has it
    bool shape;              // a file without weights (export.py --shape-only)
    bool has_tokenizer, has_chat;
    bool has_logits;         // else it gives hidden states only
    bool learned_positions;  // so its context cannot be exceeded
    int n_meta, n_tensors;
    int n_encoder;           // of an encoder-decoder: its encoder's layers, which come first
    int n_attentions;        // for inspect_layer: all layers, then the decoder's cross-attentions
    int most_tokens;         // of a text that it writes; 0: the checkpoint does not say
    const char *pooling;     // "mean", "first token", ..; NULL: the checkpoint does not say
    bool unit;               // pooled vectors have length 1
} ModelFacts;

ModelFacts inspect_model(const heads_model *m);

typedef struct {
    const char *key, *text;  // text NULL: the value is no string
    size_t key_len, len;     // len: of the text, or of an array of numbers
} MetaFacts;

MetaFacts inspect_meta(const heads_model *m, int i);  // i < n_meta

typedef struct {
    const char *name, *dtype;
    size_t name_len, rows, cols, bytes;
} TensorFacts;

TensorFacts inspect_tensor(const heads_model *m, int i);  // i < n_tensors

uint32_t inspect_adapter(const heads_adapter *adapter);  // its checksum, as the header has it
// Reads the whole file. -1: its checksum is wrong, so it is damaged.
int inspect_checksum(const heads_model *m, heads_error *err);
// Whether two models have the same tokens, so that one can draft for the other.
bool inspect_same_tokens(const heads_model *a, const heads_model *b);

// ---- layers ----

// What a token attends to: tokens up to itself, all, or the source.
typedef enum { SEES_BEFORE, SEES_ALL, SEES_SOURCE, N_SIGHTS } Sight;

typedef struct {
    const char *mixer;   // its name: "attention", "latent attention", "Mamba-2", .., "none"
    int number;          // counted from 0 among the encoder's layers, or the decoder's
    bool attends;        // its mixer is attention; else the members up to `sinks` mean nothing
    Sight sees;
    int n_heads, n_kv_heads, head_dim, window, rope;  // window 0: none; rope -1: none
    int latent_rank;     // of MLA; 0: it is not
    int kv_from;         // the layer whose keys and values it reads; -1: its own
    bool sinks;
    int d_ff;            // of the feed-forward network; 0: none
} LayerFacts;

LayerFacts inspect_layer(const heads_model *m, int i);  // i < n_attentions
// "MHA", "GQA" or "MQA".
const char *inspect_attention(int n_heads, int n_kv_heads);

// Write a line for people to text[size], cut if need be: the model's shape, layer i, rope set i.
// Layers with equal lines are alike. inspect_rope_line returns false where there is no set i.
void inspect_shape_line(const heads_model *m, char *text, size_t size);
void inspect_layer_line(const heads_model *m, int i, char *text, size_t size);
bool inspect_rope_line(const heads_model *m, int i, char *text, size_t size);

// ---- logits ----

// The natural logarithm of the probability that softmax(logits) gives to id; minus infinity where
// the model has no such id.
double log_probability(const float *logits, int vocab_size, int id);
// loss[i] = -log p(ids[i]) by row i of logits[n][stride], to 1e-7, on the threads of w.
void token_losses(heads_workspace *w, const float *logits, const int *ids, int n, double *loss);

// ---- what caches cost ----

// The plan of a cache with n_kv_heads in each layer, MLA's heads expanded; 0: of the model's own.
heads_kv_plan inspect_kv_plan(const heads_model *m, int n_kv_heads, int context, heads_type k,
                              heads_type v);
// Bytes of the cache after n tokens, with a source of n_source tokens.
size_t inspect_kv_bytes(const heads_model *m, int n_kv_heads, int n, int n_source, heads_type k,
                        heads_type v);
size_t inspect_kv_padding(const heads_model *m, heads_type v);  // bytes a token that hold no value
// Whether both have the same steering vectors.
bool inspect_same_steering(const heads_sequence *a, const heads_sequence *b);
// Whether a rewind may fail, since some layer has a window or a state.
bool inspect_forgets(const heads_workspace *w);

// ---- what the processor can do ----

// The name of the kernels that `isa` (NULL: the best) gives; NULL: none. *why: the reason, static.
const char *inspect_kernels(const char *isa, const char **why);

typedef struct {           // multiply-adds with weights,
    double token, logits;  // of one token in all layers, of one row of logits
    int dtype;             // the dtype of most of `token`
    const char *dtype_name;
} Products;

Products inspect_products(const heads_model *m);
// Work to be timed, on the threads of w. inspect_peak: n items (0: one, on the caller's thread) of
// multiply-adds from registers, as many as fit into `steps` steps; returns the operations done.
// inspect_read: reads lines of 64 bytes, a thread in n_streams places at once. inspect_nothing: an
// empty item a thread.
double inspect_peak(heads_workspace *w, int dtype, size_t steps, int n);
void inspect_read(heads_workspace *w, const void *lines, size_t n_lines, int n_streams);
void inspect_nothing(heads_workspace *w);

// guard.c: how many tokens to guess, for one text at a time, so that guessing does not cost more
// than it saves. draft: the model that guesses; NULL: something else does. NULL: no memory; free()
// frees one.
typedef struct TextGuard TextGuard;
TextGuard *text_guard_new(const heads_model *model, const heads_model *draft);
// Whether a draft model is small enough to be asked for guesses at all.
bool draft_pays(const heads_model *draft, const heads_model *model);
// Guesses of the next pass, at most `most`. behind: tokens that a draft model has not read.
int text_guard_most(TextGuard *g, int behind, int most);
// A pass took so long, with n guesses, of which the first `right` were right; passes 2: and one
// without guesses after it, in which right ones ran again.
void text_guard_learn(TextGuard *g, int n, int behind, int right, int passes, double time);
// As heads_sequence_mark, of the states that the sequence will have after its next token.
int text_guard_mark(heads_sequence *s, heads_error *err);

#endif
