// heads.h: the library. A model, its tokenizer, a sampler, and passes over any number of texts.
//
//   heads_error err;
//   heads_model *model = heads_model_open("model.bin", &err);
//   heads_workspace *w = heads_workspace_new(model, NULL, &err);  // threads, kernels, buffers
//   heads_sequence *s = heads_sequence_new(w, 0, &err);           // one text and its KV cache
//   const float *logits = heads_forward(s, ids, n, 1, &err);      // runs n more tokens of it
//
// Errors. What can fail takes a heads_error, which may be NULL, and returns NULL or -1; the error
// then holds a sentence. After success its text means nothing. A call that takes none cannot fail.
// NULL where a call needs something is an error; a call that takes no heads_error then does nothing
// and returns 0, NULL or -1, which is no id. Nothing is printed, no environment variable is read,
// and no signal is touched.
// Ownership. What heads_.._new, _open, _fork and _load return is the caller's, to free with the
// call beside it; freeing NULL does nothing. Ids returned through a pointer are the caller's too,
// and NULL after an error. What is "borrowed" belongs to the handle. A model must outlive its
// tokenizers, chats, workspaces and samplers, a tokenizer its decoders, a workspace its sequences.
// Paths are UTF-8 on every system, Windows too.
// Threads. A model, a tokenizer and a chat never change: any number of threads may use one. A
// workspace and all of its sequences have one caller at a time, and so have a decoder and a
// sampler; a sequence or a batch that no call uses may be freed meanwhile. Passes in several
// threads need a workspace each. A fork()'s child makes its own and leaves its parent's alone.
//
// Options. Initialise a struct of options with { 0 }: a member that is 0 means its default, and
// NULL means a struct of zeros. When members are added at the end, HEADS_ABI grows.
#ifndef HEADS_H
#define HEADS_H

#include <stddef.h>
#include <stdint.h>

#define HEADS_ABI 14         // grows when a program must be compiled again
#define HEADS_VERSION "0.1"  // of this header
#define HEADS_VERSION_NUMBER 100  // the same: 10000 major + 100 minor + patch

#if defined(__GNUC__)
#define HEADS_API __attribute__((visibility("default")))
#else
#define HEADS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

HEADS_API int heads_abi(void);              // HEADS_ABI of the library that is linked
HEADS_API const char *heads_version(void);  // its HEADS_VERSION

typedef struct {
    char text[400];  // a sentence: what was wrong, where, what was expected, what was found
} heads_error;

// ---- the model ----

typedef struct heads_model heads_model;

typedef struct {
    int vocab_size, n_embd, n_layers;
    int context;          // positions that it was made for
    size_t weight_bytes;  // bytes of weights that one generated token reads
    int encoder;          // 1: tokens see those after them, so a text runs whole (heads_embed)
    int source_vocab;     // vocabulary of an encoder-decoder's encoder; 0: there is none
    int greedy;           // 1: by default the checkpoint wants the most likely token each time
    int target_ids;       // 1: its output has ids of its own, which heads_encode does not give
    int vector;           // numbers of heads_embed's vectors; 0: the checkpoint does not say how
    int n_labels;         // classes of heads_classify; 0: the checkpoint has no such head
    int token_classes;    // 1: each token of a text has them, not the text
    int token_vectors;    // 1: each token of a text has a vector, not the text (ColBERT)
    int most_read;        // tokens at which heads_text_ids and heads_pair_ids cut
} heads_shape;

// Maps a checkpoint that export.py made and checks all of it but its checksum; weights are read
// when a pass first needs them. Errors: no such file, no checkpoint, damaged, not implemented.
HEADS_API heads_model *heads_model_open(const char *path, heads_error *err);
// The same of bytes in memory, which begin at a multiple of 64 and must outlive the model.
HEADS_API heads_model *heads_model_parse(const void *bytes, size_t size, heads_error *err);
HEADS_API void heads_model_close(heads_model *model);
HEADS_API heads_shape heads_model_shape(const heads_model *model);

// ---- adapters ----

// What fine-tuning has changed of a model (LoRA), kept apart from it: products with its matrices W
// become W x + scale b (a x), for the texts that have the adapter, and for no others beside them.
typedef struct heads_adapter heads_adapter;

// Maps an adapter that export.py --adapter DIR OUT --for BASE.bin made, and checks all of it. The
// file fits the base in whatever types its matrices are. Errors: no such file, no adapter, damaged,
// of another model, a number that is not finite.
HEADS_API heads_adapter *heads_adapter_open(const heads_model *model, const char *path,
                                            heads_error *err);
// The same of bytes in memory, which stay the caller's and begin at a multiple of 64.
HEADS_API heads_adapter *heads_adapter_parse(const heads_model *model, const void *bytes,
                                             size_t size, heads_error *err);
// Sequences and workspaces may go on with it. The model must outlive them, and so must the bytes.
HEADS_API void heads_adapter_close(heads_adapter *adapter);

// ---- text and ids ----

typedef struct heads_tokenizer heads_tokenizer;
typedef struct heads_decoder heads_decoder;

// Errors: the checkpoint has no tokenizer, or one that is inconsistent.
HEADS_API heads_tokenizer *heads_tokenizer_new(const heads_model *model, heads_error *err);
HEADS_API void heads_tokenizer_free(heads_tokenizer *tokenizer);
// The ids of text[0..len), which may hold zero bytes; what is not UTF-8 counts as U+FFFD.
// add_special: with the special tokens that the model wants around a text, such as BOS. Returns how
// many, or -1; *ids is the caller's, to free with heads_free. An id may lie beyond vocab_size where
// the tokenizer knows tokens that the model does not: passes refuse it. Errors: no memory.
HEADS_API long heads_encode(const heads_tokenizer *tokenizer, const char *text, size_t len,
                            int add_special, int **ids, heads_error *err);
HEADS_API void heads_free(void *memory);
HEADS_API int heads_is_eos(const heads_tokenizer *tokenizer, int id);      // 1: it ends a text
HEADS_API int heads_is_special(const heads_tokenizer *tokenizer, int id);  // 1: such as BOS
// The bytes of a token inside of a text, perhaps no whole characters. Writes the first `room` of
// them to bytes; returns how many there are, 0: no such token. Special tokens have theirs too.
HEADS_API long heads_token_bytes(const heads_tokenizer *tokenizer, int id, char *bytes,
                                 size_t room);

// From ids to text, one by one. push returns the text that an id adds, whole UTF-8 characters;
// finish what is still held back. text[0..len) is borrowed until the decoder's next call, and no
// zero byte follows it. skip_special: BOS and the like give no text. Errors: a negative id, memory.
HEADS_API heads_decoder *heads_decoder_new(const heads_tokenizer *tokenizer, int skip_special,
                                           heads_error *err);
HEADS_API void heads_decoder_free(heads_decoder *decoder);
HEADS_API int heads_decoder_push(heads_decoder *decoder, int id, const char **text, size_t *len,
                                 heads_error *err);
HEADS_API int heads_decoder_finish(heads_decoder *decoder, const char **text, size_t *len,
                                   heads_error *err);

// ---- conversations ----

typedef struct heads_chat heads_chat;

typedef struct {
    const char *role;     // "system" (only the first message), "user" or "assistant"
    const char *content;  // UTF-8, which may hold zero bytes
    size_t content_len;
} heads_message;

typedef struct {
    int answer;     // 1: the ids end with the beginning of an answer, which the model continues
    int no_think;   // 1: thinking is switched off; an error where the template has no such switch
    int64_t clock;  // for a template that prints the date: seconds since 1970, in local time
} heads_chat_options;

// The checkpoint's chat template. Errors: it has none, or one that export.py could not compile.
HEADS_API heads_chat *heads_chat_new(const heads_model *model, heads_error *err);
HEADS_API void heads_chat_free(heads_chat *chat);
// The ids of a conversation, as the template writes it. Returns how many, or -1; *ids is the
// caller's, to free with heads_free. Errors: a conversation that the template refuses, or for which
// export.py could not prove its compilation exact; no memory.
HEADS_API long heads_chat_encode(const heads_chat *chat, const heads_tokenizer *tokenizer,
                                 const heads_message *messages, size_t n,
                                 const heads_chat_options *options, int **ids, heads_error *err);
// The id that ends an answer besides what heads_is_eos knows; -1: none, -2: no memory to tell.
HEADS_API int heads_chat_end(const heads_chat *chat, const heads_tokenizer *tokenizer);
// The template as the model came with it, in Jinja, [*len], borrowed from the model; NULL: none.
HEADS_API const char *heads_chat_template(const heads_model *model, size_t *len);
// 1: the template prints the date, which options.clock says; it has a switch for thinking, for
// options.no_think; it writes a system message, which others ignore or refuse.
HEADS_API int heads_chat_prints_date(const heads_chat *chat);
HEADS_API int heads_chat_has_no_think(const heads_chat *chat);
HEADS_API int heads_chat_uses_system(const heads_chat *chat);

// ---- where passes run ----

typedef struct heads_workspace heads_workspace;

// Types of numbers. Keys and values are cached in one of the first four; weights may be of all.
// Those from HEADS_Q8_0 to HEADS_IQ4_XS and HEADS_TQ2_0 are GGUF's, under llama.cpp's names.
typedef enum {
    HEADS_F16, HEADS_F32, HEADS_Q8, HEADS_Q4, HEADS_BF16, HEADS_Q8_0, HEADS_Q4_0, HEADS_Q4_1,
    HEADS_Q5_0, HEADS_Q5_1, HEADS_IQ4_NL, HEADS_MXFP4, HEADS_Q4_K, HEADS_Q5_K, HEADS_Q6_K,
    HEADS_IQ4_XS, HEADS_Q2, HEADS_Q3, HEADS_Q5, HEADS_Q6, HEADS_TQ2_0
} heads_type;

typedef struct {
    int context;        // positions of each sequence, up to 2^30; 0: the model's. More than these
                        // run, unless positions are learned, on texts longer than it was made for
    int chunk;          // most tokens of a pass, all runs together, up to 65536; 0: 128
    int n_threads;      // the caller's included, up to 1024; 0: the physical cores it may use
    int logit_rows;     // most rows of logits that one call may ask for, up to 2^20; 0: chunk
    heads_type k_type, v_type;  // of cached keys, and of cached values
    const char *isa;    // kernels: "scalar", "avx2", ..; NULL: the best that the processor has
    heads_workspace *threads_of;  // use its threads; both then have one caller, and it lives longer
    int hidden;         // 1: passes give hidden states after the last norm, [n_embd], not logits
} heads_workspace_options;

// Errors: an option out of range, kernels that the processor lacks, no memory.
HEADS_API heads_workspace *heads_workspace_new(const heads_model *model,
                                               const heads_workspace_options *options,
                                               heads_error *err);
HEADS_API void heads_workspace_free(heads_workspace *w);
HEADS_API int heads_workspace_context(const heads_workspace *w);
HEADS_API int heads_workspace_threads(const heads_workspace *w);
// Most tokens of a pass: the option, or the context where an encoder reads whole texts.
HEADS_API int heads_workspace_chunk(const heads_workspace *w);
HEADS_API const char *heads_workspace_isa(const heads_workspace *w);  // static
// Floats from one row of logits (or hidden states) to the next: vocab_size (or n_embd), rounded up.
HEADS_API size_t heads_logit_stride(const heads_workspace *w);
// The adapter of sequences made or loaded from now on, and of what heads_embed, _classify, _patch,
// _attribute and _dissect run with threads_of w; NULL: none. Errors: as of heads_sequence_adapter.
HEADS_API int heads_workspace_adapter(heads_workspace *w, heads_adapter *adapter, float scale,
                                      heads_error *err);

// ---- texts ----

typedef struct heads_sequence heads_sequence;

// An empty sequence. Its cache takes memory as tokens fill it. shared: forks map its pages instead
// of copying them; filling it costs more. Errors: no memory.
HEADS_API heads_sequence *heads_sequence_new(heads_workspace *w, int shared, heads_error *err);
HEADS_API void heads_sequence_free(heads_sequence *s);
// A new sequence of the same workspace with the first n tokens of s; either may be freed first.
// Errors: n outside 0..length, no memory, and what heads_sequence_rewind refuses.
HEADS_API heads_sequence *heads_sequence_fork(const heads_sequence *s, int n, heads_error *err);
// Forgets all tokens but the first n. Errors, after which nothing has changed: a window or a state
// has forgotten what the next token would see (never if n is 0), or forks share more than n.
HEADS_API int heads_sequence_rewind(heads_sequence *s, int n, heads_error *err);
// Keeps a copy of the mixers' states, so that a rewind to the present length works. A later mark
// replaces it. Errors: no memory.
HEADS_API int heads_sequence_mark(heads_sequence *s, heads_error *err);
// Says that the text will have at least n tokens. Models whose rope depends on the length need not
// run its beginning twice if they know it before the first pass.
HEADS_API void heads_sequence_expect(heads_sequence *s, int n);
// Tokens that can be added until the context is full, or until rope would make the text run again.
HEADS_API int heads_sequence_room(const heads_sequence *s);
HEADS_API int heads_sequence_length(const heads_sequence *s);  // tokens in the cache
HEADS_API const int *heads_sequence_tokens(const heads_sequence *s);  // [length], until it changes
// How many of ids[0..n) the sequence begins with: these need not run again.
HEADS_API int heads_sequence_common(const heads_sequence *s, const int *ids, int n);
// save writes the tokens and their cache to a file, under another name and then renamed. load maps
// it, in a workspace of the same checkpoint and types whose context has room for it. The cache is
// compared with its checksums when the sequence first runs, or is forked or saved: these fail if
// the file is damaged there. Errors: the file, another checkpoint, other types, an empty sequence.
HEADS_API int heads_sequence_save(const heads_sequence *s, const char *path, heads_error *err);
HEADS_API heads_sequence *heads_sequence_load(heads_workspace *w, const char *path,
                                              heads_error *err);
// In memory, *bytes, [*size], which heads_free frees. parse copies; bytes begin at a multiple of 8.
HEADS_API int heads_sequence_bytes(const heads_sequence *s, void **bytes, size_t *size,
                                   heads_error *err);
HEADS_API heads_sequence *heads_sequence_parse(heads_workspace *w, const void *bytes, size_t size,
                                               heads_error *err);

// Switches attention heads off in all that s will run: what they give is zero before the layer's
// output matrix (Michel et al. 2019, arXiv 1905.10650). heads: "5.3,7.*", layers with their query
// heads, counted from 0; of a model that reads a source "e5.3" for the encoder's layers and "x5.3"
// for attention to the source. It replaces an earlier list; NULL or "": all are on. Forks have the
// same list. A source must be read again. Errors: the sequence has tokens, no such head, a layer
// without attention, no memory.
HEADS_API int heads_sequence_off(heads_sequence *s, const char *heads, heads_error *err);

typedef struct {  // a steering vector
    int layer;            // it is added after this one; they are counted as probes count them
    const float *vector;  // [n_embd]
    float scale;          // times which
} heads_steer;

// Adds scale vector[n_embd] to the residual stream after a layer, at each position that s runs from
// now on (activation addition: Turner et al. 2023, arXiv 2308.10248). Several vectors of a layer
// add up; vector NULL: the layer has none any more. The vector is copied. Forks and saved sessions
// have the same, neighbours in a pass their own; what has run stays as it is, a source too. Errors,
// after which nothing has changed: no such layer, a number that is not finite, no memory.
HEADS_API int heads_sequence_steer(heads_sequence *s, int layer, const float *vector, float scale,
                                   heads_error *err);
// Reads the control vectors of a GGUF file as repeng and llama.cpp write them: tensors direction.N,
// f32 [n_embd], to be added after layer N, counted from 0. Returns how many there are, or -1;
// (*steers)[..], with their numbers and the given scale, are the caller's, to free with heads_free.
// Errors: the file, one without control vectors or with those of another model, no memory.
HEADS_API long heads_read_steers(const heads_model *model, const char *path, float scale,
                                 heads_steer **steers, heads_error *err);

// The adapter of all that s will run, times scale; NULL: none. It takes the place of an earlier
// one. Forks have it too, and neighbours in a pass their own. A saved session loads where the
// workspace has the same adapter and scale. A source must be read again. Errors: the sequence has
// tokens, an adapter of another model, a scale that is not finite, no memory.
HEADS_API int heads_sequence_adapter(heads_sequence *s, heads_adapter *adapter, float scale,
                                     heads_error *err);

// ---- passes ----

typedef struct {
    heads_sequence *sequence;
    const int *tokens;  // [n], the sequence's next tokens; borrowed for the call
    int n, n_logits;    // logits are wanted after each of the last n_logits of them
} heads_run;

// Runs the tokens of all runs, prompts and single tokens in any mixture, and returns their logits,
// [sum of n_logits][stride] floats, run after run, borrowed until the workspace's next pass. No bit
// of them depends on what runs beside a sequence, on how its tokens are cut into calls, on chunk or
// on threads. Errors: a token outside the vocabulary, more than the context has room for, a
// sequence twice or of another workspace, logits that are not finite. What ran before stays.
HEADS_API const float *heads_forward_runs(heads_workspace *w, const heads_run *runs, int n_runs,
                                          heads_error *err);
// The same for one sequence.
HEADS_API const float *heads_forward(heads_sequence *s, const int *tokens, int n, int n_logits,
                                     heads_error *err);

// ---- models that read one text and write another ----

// Has the encoder read the source of each run's sequence, runs[i].tokens. The sequence must be
// empty; its tokens will attend to the source. n_logits is 0. Errors: as of heads_forward_runs, and
// that the model has no encoder (its shape's source_vocab is 0).
HEADS_API int heads_read_sources(heads_workspace *w, const heads_run *runs, int n_runs,
                                 heads_error *err);
// The source's ids, [*n], borrowed until the sequence next changes.
HEADS_API const int *heads_sequence_source(const heads_sequence *s, int *n);
// The first tokens of a text that the decoder writes. lang: NULL; the language to write, as the
// tokenizer names it; or FROM:TO. Returns how many, or -1; *ids is the caller's, to free with
// heads_free. Errors: no such language, no memory.
HEADS_API long heads_start_tokens(const heads_model *model, const heads_tokenizer *tokenizer,
                                  const char *lang, int **ids, heads_error *err);
// Puts FROM of lang FROM:TO into a source's ids[n], in the place of the language token there; any
// other lang changes nothing. Errors: no such language.
HEADS_API int heads_source_language(const heads_model *model, const heads_tokenizer *tokenizer,
                                    const char *lang, int *ids, long n, heads_error *err);

// ---- vectors and classes of texts ----

typedef struct {
    const int *ids;  // [n], as heads_text_ids or heads_pair_ids gives them
    int n;
    int second;      // of a pair: as heads_pair_ids gives it; of one text 0
    const int *bounds;  // [n_parts + 1], growing: part i, ids[bounds[i] .. bounds[i + 1]), has a
    int n_parts;        // vector of its own, pooled as a text's is ("late chunking", Guenther et
                        // al. 2024, arXiv 2409.04701). 0: the text has one vector
} heads_text;

// The ids of a text for heads_embed and heads_classify: with the special tokens around it, and cut
// to the length that the checkpoint allows such texts, the last special token kept. Returns how
// many, or -1; *ids is the caller's, to free with heads_free. Errors: no memory.
HEADS_API long heads_text_ids(const heads_model *model, const heads_tokenizer *tokenizer,
                              const char *text, size_t len, int **ids, heads_error *err);
// The same of two texts that are read as one, such as a question and a passage. The longer of the
// two is cut first. *second: where the second begins, if the model tells the kinds of tokens apart;
// else 0. Errors: the checkpoint does not say how two texts are joined, no memory.
HEADS_API long heads_pair_ids(const heads_model *model, const heads_tokenizer *tokenizer,
                              const char *first, size_t first_len, const char *then,
                              size_t then_len, int **ids, int *second, heads_error *err);
// Writes vectors[..][shape.vector], one for each text, or for each of its parts, or where the shape
// says token_vectors for each id: the hidden states there, pooled as the checkpoint says.
// As many texts as fit into a pass run side by side, in a workspace that is made for the call from
// these options; context and logit_rows are set to what the texts need. threads_of a workspace of
// the model: until it is freed, it keeps the other one, up to 64 MiB, for the next call. No bit of
// a vector depends on the other texts. Errors: the checkpoint does not say how to pool, a text
// without ids, parts that are none, no such option or token, no memory.
HEADS_API int heads_embed(const heads_model *model, const heads_workspace_options *options,
                          const heads_text *texts, int n, float *vectors, heads_error *err);
// Leaves the first `dimensions` numbers of each of vectors[n][shape.vector], one after another, and
// makes each length 1 again where the checkpoint's vectors have it. That is for vectors that were
// trained for it (Kusupati et al. 2022, arXiv 2205.13147). Errors: not 1..shape.vector.
HEADS_API int heads_shorten(const heads_model *model, float *vectors, size_t n, int dimensions,
                            heads_error *err);
// Writes scores[n][n_labels]: a row for each text or, where the shape says token_classes, each id.
// The numbers are probabilities, which sum to 1 where a text has one class, or a regression's as
// the model gives them. Workspace and bits are as in heads_embed. Errors: as of heads_embed, no
// such head, and of an encoder-decoder a text without the token that ends one.
HEADS_API int heads_classify(const heads_model *model, const heads_workspace_options *options,
                             const heads_text *texts, int n, float *scores, heads_error *err);
// The name of class i, [*len], UTF-8 as the checkpoint has it, borrowed from the model; NULL: there
// is no such class.
HEADS_API const char *heads_label(const heads_model *model, int i, size_t *len);

// ---- looking into a pass ----

typedef struct {  // the attention of one query head of one token: a row of its weights
    const heads_sequence *sequence;
    int layer, head, position;  // position: the token's
    int first, n;          // it attends to positions first .. first + n - 1
    const float *weights;  // [n], after the softmax; borrowed for the call
    float sink;            // weight of the layer's sink, 0: it has none; all weights sum to 1
    int of_source;         // 1: the positions are the source's
} heads_attention_row;

typedef struct {  // the input of a product with matrices, before it is rounded for their dtype
    const char *const *tensors;  // [n_tensors], the matrices' names in the checkpoint
    int n_tensors;
    int which;                   // of stacks: which matrix of each, an expert's or a head's; else 0
    const float *rows;           // row i is rows[i stride .. i stride + width - 1]
    size_t stride;
    int n, width;
} heads_product_input;

typedef struct {  // what a layer would say (the logit lens: nostalgebraist 2020)
    const heads_sequence *sequence;
    int layer, position;  // after the last layer that gives logits they are the pass's own
    const float *logits;  // [vocab_size]; of a workspace of hidden states [n_embd]
} heads_lens_row;

typedef struct {  // what comes into a layer: the residual stream of a pass's tokens, in order
    int layer;
    float *rows;      // row i is rows[i stride .. i stride + width - 1]
    size_t stride;
    int n, width;
} heads_layer_input;

typedef struct {  // what heads give for a pass's tokens, in order, before a layer's output matrix
    int layer, head;  // head: the first's number; Mamba-2's, or a source's, follow attention's
    float *rows;      // row i is rows[i stride ..], of [n_heads][width]
    size_t stride;
    int n, n_heads, width;
} heads_mixed;

// Functions that passes call with what they compute, each with `context`. NULL: not called, at no
// cost. No bit depends on them, except on `enter` and `mixed`. They must not call the workspace,
// and what they are given is borrowed for the call. Layers come in order. A token that runs twice,
// for want of heads_sequence_expect, comes twice. `attention` is called by the workspace's threads
// (0 .. heads_workspace_threads - 1, 0 being the caller's), several at a time and in any order; the
// others by the caller's thread alone: `product` before each product with weights, in order (a
// matrix that several layers share has its first name in the file); `lens` after each layer of the
// text, not of a source, for each token whose logits are wanted.
// `enter` is called before each layer. It may change the rows. It returns the layer that runs next
// on them: input->layer, a later one, or the number of layers, for none. A layer that is passed
// over leaves no keys, values or state, so the sequence is of no use after the call, and a layer
// that reads its keys may not run.
// `mixed` is called once a layer for each of its mixers, and may change the rows: heads' outputs
// after their gates, of a gated delta rule (its value heads) and Mamba-2 after their norm, of
// attention before a norm over all heads (BitNet). Heads that are off are zeros by then. Mamba-1,
// RG-LRU and short convolutions have no heads, and show their whole output as one.
typedef struct {
    void (*attention)(void *context, const heads_attention_row *row, int thread);
    void *context;
    void (*product)(void *context, const heads_product_input *input);
    void (*lens)(void *context, const heads_lens_row *row);
    int (*enter)(void *context, const heads_layer_input *input);
    void (*mixed)(void *context, const heads_mixed *mixed);
} heads_probe;

HEADS_API void heads_workspace_probe(heads_workspace *w, const heads_probe *probe);  // NULL: none

// ---- experiments: what carries an answer ----

// What is measured after the last token: the logit of `answer` minus the logit of `against`; the
// natural logarithm of the probability of `answer`; KL(clean || patched) of the next, in nats.
typedef enum { HEADS_DIFFERENCE, HEADS_LOG_PROBABILITY, HEADS_KL } heads_metric;
// Called after each pass with how many runs are done; not 0: the call ends with an error. NULL: not
// called. It must not call the workspace of threads_of.
typedef int heads_progress(void *context, long done, long total);

typedef struct {
    const int *clean, *corrupted;  // [n], two texts
    int n;
    int layers;           // patched are: 0: what heads give; 1: the residual stream before layers
    heads_metric metric;
    int answer, against;  // ids
    const char *off;      // heads that are off in all runs, as in heads_sequence_off; NULL: none
    heads_progress *progress;
    void *context;
    int from_layer, n_layers, from_position, n_positions;  // 0: all behind; other results stay
    const heads_steer *steers;  // [n_steers], in all runs, as by heads_sequence_steer
    int n_steers;
} heads_patching;

// The most heads that a layer has, as heads_mixed numbers them: mixers without heads have one.
HEADS_API int heads_model_heads(const heads_model *model);
// Activation patching (Meng et al. 2022, arXiv 2202.05262): the metric of a run of the corrupted
// text in which one activation is the clean text's, for each of them: results[n_layers][heads][n],
// heads being heads_model_heads, or with `layers` [n_layers][n]; NAN where a layer has fewer heads.
// metrics, unless NULL: of the clean text and of the corrupted one. What an activation cannot
// change does not run again, and positions before the texts differ do not run. It runs in a
// workspace made for the call from these options, context and logit_rows set to what it needs; no
// bit depends on chunk and threads. Errors: an encoder, an encoder-decoder or a model without
// logits; no such id, metric, option or head; more tokens than learned positions; logits that are
// not finite; no memory; progress said so.
HEADS_API int heads_patch(const heads_model *model, const heads_workspace_options *options,
                          const heads_patching *what, float *results, double metrics[2],
                          heads_error *err);

typedef struct {       // what makes a logit, or a difference of two, besides heads and networks
    double embedding;  // the embeddings of the last token
    double rest;       // biases; also what rounding the output's input for its weights changes
    double total;      // all parts; before a softcap of the logits, where the model has one
    double logit;      // as the model gives it
} heads_parts;

// Direct logit attribution (Elhage et al. 2021): of the logit of `answer` after ids[n], less the
// logit of `against` (-1: less nothing), what each head adds, heads[n_layers][heads_model_heads], 0
// where a layer has fewer, and each layer's network, ffn[n_layers]. The scales of the last norm and
// of branches' own norms are held as they are. A layer's network is all that its mixers do not add:
// experts and its biases, a Gemma 4's embeddings of layers, the rounding of o's input. off: as in
// heads_patching. Errors: as of heads_patch; and models whose logits are no such sum: layers that
// norm the stream itself (post-norm), Zamba's nested branches, a network before the logits.
HEADS_API int heads_attribute(const heads_model *model, const heads_workspace_options *options,
                              const int *ids, int n, int answer, int against, const char *off,
                              float *heads, float *ffn, heads_parts *parts, heads_error *err);

typedef struct {
    const int *ids;             // [n], a text
    int n, layer, head, position;
    const char *off;            // as in heads_patching
    const heads_steer *steers;  // [n_steers], as by heads_sequence_steer
    int n_steers;
} heads_dissection;

typedef struct {         // how a head weighs the n tokens that it sees
    const float *q, *k;  // [dim], [n][dim], after norms and rope
    const float *products, *scores, *weights;  // [n]: scale q . k; those after softcap and biases;
    float sink;          // and after the softmax, in which the layer's sink has a weight too, or 0
} heads_scoring;

typedef struct {             // one head computing, for one token
    int first, n;            // it sees positions first .. first + n - 1; the mask hides the others
    int kv_layer, kv_head;   // whose keys and values it reads
    int sharing, n_sharing;  // query heads sharing .. sharing + n_sharing - 1 read these
    int dim, v_dim, n_embd, rank;  // rank: of MLA's latents, which k and v are expanded from, or 0
    int rope, n_rope;        // rope turns n_rope numbers of q and k, from number `rope` on; 0: none
    float scale;
    heads_scoring turned, plain;   // as the model computes it; the same without rope in this layer
    const float *v, *mix, *mixed;  // [n][v_dim]; [v_dim], their sum by weights; then gated or off
    const float *out;              // [n_embd], what that adds to the output matrix's result
    const float *latents, *q_latent, *mix_latent;  // MLA: [n][rank]; [rank], q for these; their sum
} heads_head_parts;

// What one head computes for one token (Vaswani et al. 2017, arXiv 1706.03762). weights and mixed
// have the bits that a probe is shown. Keys and values are as computed, before the cache rounds
// them to its types; biases of the output matrix are no head's. The workspace is as in heads_patch.
// The result is the caller's, to free with heads_free. Errors: an encoder-decoder, no such head or
// position, a layer without attention, what heads_sequence_off and _steer refuse, no memory.
HEADS_API heads_head_parts *heads_dissect(const heads_model *model,
                                          const heads_workspace_options *options,
                                          const heads_dissection *what, heads_error *err);

// Runs the experiment that json[len] describes (docs/heads.md). Returns its result, JSON with a
// SHA-256 that is the same on each machine: zero-terminated, the caller's, to free with heads_free.
// Of the options, threads and kernels count. Errors: JSON that is none, what is missing, unknown or
// out of range, another model's checksum, what the calls above refuse, no memory; progress said so.
HEADS_API char *heads_experiment(const heads_model *model, const heads_workspace_options *options,
                                 const char *json, size_t len, heads_progress *progress,
                                 void *context, heads_error *err);
// Whether the result json[len] is what its experiment gives: 1; or 0, and err says what differs
// first: model, description, a number or the SHA-256. Errors: as of heads_experiment.
HEADS_API int heads_verify(const heads_model *model, const heads_workspace_options *options,
                           const char *json, size_t len, heads_progress *progress, void *context,
                           heads_error *err);

// ---- from logits to an id ----

typedef struct {
    int id;
    double log_probability;  // natural logarithm
} heads_likely;

// Sets top[n_top] to the likeliest tokens after logits[vocab_size], with their log-probabilities,
// the likeliest first, of equal ones the lowest id. Returns how many there are, n_top or the whole
// vocabulary; 0: nothing was given. Neither temperature nor a sampler has a part in them.
HEADS_API int heads_likeliest(const heads_workspace *w, const float *logits, heads_likely *top,
                              int n_top);

typedef struct heads_sampler heads_sampler;

typedef struct {
    int id;
    float value;  // added to its logit; -INFINITY bans it
} heads_bias;

typedef struct {
    float temperature;     // 0: the most likely token, the lowest of equal ones
    int top_k;             // 0: all
    float top_p;           // 0 or 1: all
    float min_p;           // 0: all
    float repeat_penalty;  // 0 or 1: none; over the last repeat_last tokens
    int repeat_last;       // 0: 64
    uint64_t seed;         // the same seed gives the same ids
    int most;              // most tokens of the text, 0: any number; some models force its last one
    const heads_bias *biases;  // [n_biases], added before the options above have a say; copied
    int n_biases;
    // Taken from a token's logit: the first for each time that it was generated, the second once.
    float frequency_penalty, presence_penalty;
    int n_prompt;          // the first so many accepted tokens were not generated
} heads_sampler_options;

// How ./run, the module and the server choose tokens where nothing else is said, of a text that
// goes on, or (1) in a conversation. The model's own distribution has temperature 1 and all else 0.
HEADS_API heads_sampler_options heads_sampler_defaults(int conversation);

// A sampler for one text; w may be freed before it. Errors: an option out of range, a bias that is
// no number or of no token, no memory.
HEADS_API heads_sampler *heads_sampler_new(const heads_workspace *w,
                                           const heads_sampler_options *options,
                                           heads_error *err);
HEADS_API void heads_sampler_free(heads_sampler *sampler);
// Adds a token of the text, prompt or generated, to what the repetition penalty covers.
HEADS_API void heads_sampler_accept(heads_sampler *sampler, int id);
// Later picks are among the ids whose bit id % 32 of bits[id / 32] is 1. The bits,
// [ceil(vocab_size / 32)], are borrowed, may change between picks; NULL: all. Forced ends stay.
HEADS_API void heads_sampler_allow(heads_sampler *sampler, const uint32_t *bits);
// Picks an id from logits[vocab_size], which stay as they are. The caller then accepts it. -1: each
// logit is NaN or minus infinity, or banned by biases, bits and the checkpoint's rules.
HEADS_API int heads_sampler_pick(heads_sampler *sampler, const float *logits);
// Picks for n texts on the threads of w: ids[i] by samplers[i] from row i of logits[n][stride].
HEADS_API void heads_sampler_pick_each(heads_workspace *w, heads_sampler *const *samplers, int n,
                                       const float *logits, int *ids);

// Guesses at the next tokens, guesses[most]; each call returns how many, or -1. Run them with the
// last token in one pass, and keep each that the sampler picks too. By what followed where most of
// ids[n]'s last 2 to 8 tokens stood before (Prompt Lookup Decoding, Saxena 2023):
HEADS_API int heads_lookup(const int *ids, int n, int most, int *guesses);
// by a smaller model with the same tokens (arXiv 2211.17192), whose sequence `draft` is brought to
// ids[n], and of whose workspace `greedy` is a sampler; 0 where its context is full:
HEADS_API int heads_draft(heads_sequence *draft, heads_sampler *greedy, const int *ids, int n,
                          int most, int *guesses, heads_error *err);
// by the model's own layers for it (arXiv 2412.19437), heads_guess_layers many, which read along
// from heads_workspace_guess on; batches then take up to `most` a pass. ids[n]: s's and one more.
HEADS_API int heads_guess_layers(const heads_model *model);
HEADS_API int heads_workspace_guess(heads_workspace *w, int most, heads_error *err);
HEADS_API int heads_guess(heads_sequence *s, const int *ids, int n, int most, int *guesses,
                          heads_error *err);

// ---- many requests side by side ----
//   heads_batch *b = heads_batch_new(w, &(heads_batch_options){.tokenizer = tokenizer}, &err);
//   heads_batch_add(b, &(heads_request){.ids = ids, .n = n, .max_tokens = 64}, &err);  // and more
//   while (heads_batch_count(b).waiting + heads_batch_count(b).running > 0) {
//       int n_events = heads_batch_step(b, &events, &err);  // one pass
//       for (int i = 0; i < n_events; i++) ..  // tokens, requests that are done or failed
//   }
// Up to `places` requests share the passes of a workspace; the others wait in the order in which
// they were added. Nothing that a request gives depends on the others. In a pass, requests that
// generate come first, with one token each. Half of the room that they leave belongs to the prompt
// that was added first, the other half to those with the fewest tokens left to run. So a short
// prompt beside a long one starts within two passes. Of prompts that begin alike, a beginning of 32
// tokens or more runs once for all that were added between two steps.
// What is wrong with a request is an error of heads_batch_add. What fails later, such as an
// allocation or logits that are not finite, ends that request alone, with HEADS_FAILED.
// A batch has one caller at a time, the workspace's, and outlives neither that nor the tokenizer.

typedef struct heads_batch heads_batch;

typedef struct {
    int places;  // requests that run at a time, at most the workspace's logit_rows; 0: 16, or less
    int keep;    // caches of ended requests to keep for later ones that begin, or whose sources
                 // are, alike, up to 2^30; 0: none
    const heads_tokenizer *tokenizer;  // for text and EOS; NULL: events have ids only
    heads_workspace *draft;  // of a smaller model with the same tokens, with threads_of this one's;
    int n_draft;             // it makes up to n_draft (0: 5) guesses of a pass where lookup is 0
} heads_batch_options;

typedef struct {
    const char *text;  // [len], UTF-8
    size_t len;
} heads_stop;

typedef struct {
    const int *ids;  // [n], the prompt. All that a request points to is copied, but mask_context
    int n;
    int n_scored;    // events are wanted for the last n_scored prompt tokens, at most n - 1
    int max_tokens;  // to generate; 0: none. The workspace's context or more: until it is full
    heads_sampler_options sampler;  // `most` and `n_prompt` are not read
    int answer;      // 1: the text is an answer, in which special tokens show; 0: it continues the
                     // prompt
    const heads_stop *stops;  // [n_stops], strings before which the text ends; none is empty
    int n_stops;
    const int *stop_ids;      // [n_stop_ids], tokens that end it besides heads_is_eos's
    int n_stop_ids;
    int likely;      // 1: TOKEN events have log-probabilities; SCORE events always do
    int n_top;       // and the n_top most likely tokens, up to 1000: in TOKEN events if `likely`
    const int *source;  // [n_source], of an encoder-decoder; else NULL. The prompt then begins the
    int n_source;       // output, and all of it but the first token counts towards max_tokens
    const char *lang;   // ids NULL: for heads_start_tokens and heads_source_language
    // Called before each pick, by the thread in heads_batch_step, with the tokens generated so far,
    // and with bits [ceil(vocab_size / 32)], all 1; it clears bit id % 32 of bits[id / 32] where id
    // is not allowed. Not 0: the request fails. It must not call the batch or its workspace.
    int (*mask)(void *context, const int *tokens, int n_tokens, uint32_t *bits);
    void *mask_context;
    int lookup;  // most guesses of a pass by heads_lookup; the text is the same, sooner; 0: none
    const heads_steer *steers;  // [n_steers], for all of the text, as by heads_sequence_steer
    int n_steers;
    heads_adapter *adapter;  // times adapter_scale (0: 1); NULL: none, whatever the workspace has.
    float adapter_scale;     // Prompts that begin alike share that only with the same adapter
} heads_request;

typedef enum { HEADS_TOKEN, HEADS_SCORE, HEADS_DONE, HEADS_FAILED } heads_event_kind;

typedef struct {
    long request;           // as heads_batch_add numbered it
    heads_event_kind kind;  // a token was generated; one of n_scored; the request has ended
    int id;                 // TOKEN, SCORE: the token
    int best;               // SCORE, or TOKEN with `likely`: the most likely token there,
    double log_probability; // of `id`, by the model alone (no temperature, penalty or mask),
    const heads_likely *top;  // and [n_top], the most likely first
    int n_top;
    const char *text;       // TOKEN: [len], appended to the text: whole UTF-8 characters, and
    size_t len;             // nothing that may be the beginning of a stop string
    const char *stopped;    // DONE: why it ended, static: "eos", "max_tokens", "stop" or "context"
    const char *error;      // FAILED: a sentence
} heads_event;

typedef struct {
    long waiting;          // requests without a place
    int running;           // requests with a place
    size_t prompt_tokens, spared;  // of requests that are done; run before for another
    size_t drafted, accepted;      // guesses at next tokens, those that were right
} heads_batch_counts;

// Errors: options out of range, a workspace of hidden states, a draft with other tokens, no memory.
HEADS_API heads_batch *heads_batch_new(heads_workspace *w, const heads_batch_options *options,
                                       heads_error *err);
HEADS_API void heads_batch_free(heads_batch *b);  // its requests too, without events
// Returns the request's number: 0, 1, .. in the order of calls. Errors, after which nothing has
// changed: an empty prompt or source, or one too long for the context; ids, biases or penalties of
// no token; a number or a sampler's option out of range; stop strings without the batch's
// tokenizer, or an empty one; an adapter of another model; a source that the model cannot read, or
// none where it needs one; a language beside ids or without a source, or none such; what
// heads_sequence_steer refuses; an encoder; no memory.
HEADS_API long heads_batch_add(heads_batch *b, const heads_request *request, heads_error *err);
// Runs one pass. Returns how many events it gave, which may be none; they and what they point to
// are borrowed until the next step, cancel or free. Errors: NULL for the batch or the events.
HEADS_API int heads_batch_step(heads_batch *b, const heads_event **events, heads_error *err);
// Ends a request, which has no events then. Returns 1, or 0 where it had ended or never was.
HEADS_API int heads_batch_cancel(heads_batch *b, long request);
HEADS_API heads_batch_counts heads_batch_count(const heads_batch *b);

// ---- weights to a checkpoint's blocks ----

// Packs weights[rows][cols] as "q8", "q6", "q5", "q4", "q3" or "q2" into panels[size], as a matrix
// of a checkpoint has them: the bytes that the exporter writes, on every machine, as many as
// docs/format.md says. Sets *error, unless it is NULL, to the sum of squares of what rounding
// changed. Any number of threads may pack at once. Returns 0. Errors: the dtype is none of these,
// or size is another; a weight is not finite or too large for the dtype, and panels then hold
// nothing of use.
HEADS_API int heads_pack(const char *dtype, const float *weights, size_t rows, size_t cols,
                         void *panels, size_t size, double *error, heads_error *err);

// ---- what a cache costs, in bytes ----

typedef struct {
    size_t bytes_per_token;  // until a sliding window is full
    size_t growing;          // part of these: of layers without a window
    size_t windows;          // all layers with a window, once it is full
    size_t state;            // mixers' states, whatever the length
    size_t reserved;         // address space for the whole context; SIZE_MAX: it does not fit
    size_t bytes_per_source_token;  // for cross-attention
} heads_kv_plan;

typedef struct {
    size_t reserved, in_use;             // for the whole context; for the tokens so far
    size_t resident, expected_resident;  // in memory: measured; as the layout says
    size_t shared;                       // part of in_use that shares memory with other sequences
} heads_kv_usage;

// Fills *plan with what one sequence would cost in a workspace with these options, of which only
// context, k_type and v_type count. Errors: one of these is out of range.
HEADS_API int heads_model_kv_plan(const heads_model *model, const heads_workspace_options *options,
                                  heads_kv_plan *plan, heads_error *err);
HEADS_API heads_kv_usage heads_sequence_kv_usage(const heads_sequence *s);

#ifdef __cplusplus
}
#endif

#endif
