// A workspace runs passes; a sequence is one text in its KV cache; a run says which tokens of a
// sequence are next. One pass takes any number of runs, in prefill or decode, and a sequence's
// results do not depend on the others.
#ifndef SESSION_H
#define SESSION_H

#include "heads.h"
#include "model.h"
#include "threads.h"

// What the library hands out is the engine's own, under names that cannot meet a program's.
typedef heads_workspace Workspace;
typedef heads_sequence Sequence;
typedef heads_run Run;
typedef heads_kv_plan KvPlan;
typedef heads_kv_usage KvUsage;
typedef heads_text TextIds;

enum { DEFAULT_CHUNK = 128 };  // of ./run and of the library

typedef struct {
    int context;             // positions of each sequence; 0: the model's
    int chunk;               // most rows (tokens of all runs) of a pass, 1..; a text that sees
                             // itself as a whole (Model.encoder) may have more
    int n_threads;           // 0: the cores this process may use
    Dtype k_dtype, v_dtype;  // not BF16; an encoder's, which no later token reads, are F32
    int logit_rows;          // most rows of logits wanted of one call
    bool hidden;             // in place of logits, hidden states after the last norm are wanted
    const char *isa;         // kernels to use; NULL: the best that the processor has
    const Workspace *threads_of;  // whose threads to use, for workspaces that take turns; it must
                                  // outlive this one. NULL: threads of its own
} WorkspaceOptions;

// Kernels, threads, and buffers for a chunk of rows. The model is borrowed and must outlive it.
// One caller at a time; several workspaces may share a model, each with its own threads.
// Errors: an option out of range, no memory.
Workspace *workspace_new(const Model *model, const WorkspaceOptions *options, Error *err);
void workspace_free(Workspace *w);
const Model *workspace_model(const Workspace *w);
const Kernels *workspace_kernels(const Workspace *w);
int workspace_threads(const Workspace *w);
int workspace_context(const Workspace *w);
int workspace_chunk(const Workspace *w);
// Its threads: parallel_for may use them between the workspace's calls.
Pool *workspace_pool(const Workspace *w);
// heads.h says what a probe sees, and when. NULL: nothing.
void workspace_probe(Workspace *w, const heads_probe *probe);

// An empty sequence of w, which must outlive it. `shared`: its cache is a memory file, so that a
// fork maps the pages instead of copying them; filling it costs more.
Sequence *sequence_new(Workspace *w, bool shared, Error *err);
void sequence_free(Sequence *s);
// Whether sequences of w may refuse to be rewound: some layer has a window or a state.
bool workspace_forgets(const Workspace *w);
// A sequence whose first n positions are those of s. Where s is shared (or a fork itself) they are
// the same memory until one of the two writes there. Errors: n outside 0..length, s has forgotten
// (see sequence_rewind), no memory.
Sequence *sequence_fork(const Sequence *s, int n, Error *err);
// Forgets all tokens but the first n. -1, and nothing happens: a window's ring or a mixer's state
// has forgotten what token n would have to see (n = 0 and a marked length always work), or forks
// share more than n.
int sequence_rewind(Sequence *s, int n, Error *err);
// Notes the mixers' states as they are, so that the sequence can be rewound to its present length.
// One place at a time. Costs what the states are; nothing where there are none. Errors: no memory.
int sequence_mark(Sequence *s, Error *err);
// Tokens that fit in before the context ends, or the text's length makes its rope another.
int sequence_room(const Sequence *s);
// Says that the text will have n tokens at least. A model whose rope depends on the text's length
// (longrope) then rotates all of them as that length asks; unsaid, it runs what is in the cache
// again when the text outgrows its first table.
void sequence_expect(Sequence *s, int n);
int sequence_length(const Sequence *s);         // tokens in the cache
int sequence_common(const Sequence *s, const int *ids, int n);  // how many of ids it begins with
const int *sequence_tokens(const Sequence *s);  // [length], borrowed
const int *sequence_source(const Sequence *s, int *n);  // [*n], that an encoder has read, borrowed
Workspace *sequence_workspace(const Sequence *s);
int sequence_save(const Sequence *s, const char *path, Error *err);
Sequence *sequence_load(Workspace *w, const char *path, Error *err);

// Runs the tokens of all runs and returns their logits, run after run, [sum of n_logits][stride]
// floats that w owns until its next call; with none wanted the result is not NULL but holds
// nothing. Passes have at most `chunk` rows; no bit depends on how tokens are cut into calls and
// passes, on what runs beside them, on chunk or on threads. NULL: a token outside the vocabulary,
// more than a context has room for, a sequence twice, logits that are no numbers or that the model
// does not have, an encoder's sequence that was not rewound. Tokens that ran before an error stay
// in the sequences.
const float *forward_runs(Workspace *w, const Run *runs, int n_runs, Error *err);
// Reads texts with the encoder: what a sequence's tokens will look at, from the first one on. A run
// wants no logits; the sequence holds no token yet. Errors: as above, or the model has no encoder.
int read_sources(Workspace *w, const Run *runs, int n_runs, Error *err);
// The same for one sequence.
const float *forward(Sequence *s, const int *tokens, int n, int n_logits, Error *err);
size_t logit_stride(const Workspace *w);  // vocab_size or n_embd, rounded up to 16

// ---- source.c: what an encoder-decoder's texts begin with ----

// lang: NULL, the language to write, or FROM:TO. *ids is the caller's to free. Returns how many;
// -1: the model has no such language.
long start_tokens(const Model *model, const heads_tokenizer *tokenizer, const char *lang,
                  int **ids, Error *err);
// Puts FROM in the place of the language that ids, what is to be read, begin or end with.
int source_language(const Model *model, const heads_tokenizer *tokenizer, const char *lang,
                    int *ids, long n, Error *err);

// ---- pooling.c: one vector of a text's hidden states, as Model.pooling says ----

// vectors [n][n_embd] of n texts, in a workspace for hidden states, whose context has room for each
// of them and whose logit_rows are no fewer than its chunk and its context. Errors: forward_runs'.
int text_vectors(Workspace *w, const TextIds *texts, int n, float *vectors, Error *err);
void unit_vector(const Workspace *w, float *x);  // x [n_embd], divided by its length

// ---- what a cache costs; the report and the allocation both ask kvcache.c ----

// What a cache of n_kv_heads a layer (0: each layer's own) costs at `context` positions; given a
// number, the heads of latent attention count as expanded.
KvPlan kv_plan(const Model *model, int n_kv_heads, int context, Dtype k_dtype, Dtype v_dtype);
// Bytes that the first n positions take (n bytes_per_token until a window is full, and the states)
// and n_source tokens that an encoder has read.
size_t kv_bytes_at(const Model *model, int n_kv_heads, int n, int n_source, Dtype k_dtype,
                   Dtype v_dtype);
// Bytes of a token that only pad its values to 16 numbers (32 for q8 and q4).
size_t kv_padding_per_token(const Model *model, int n_kv_heads, Dtype v_dtype);

KvUsage sequence_kv_usage(const Sequence *s);

#endif
