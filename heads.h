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
// Nothing is printed, no environment variable is read, and no signal is touched.
//
// Ownership. What heads_.._new, _open, _fork and _load return is the caller's, to free with the
// call beside it; freeing NULL does nothing. What is "borrowed" belongs to the handle. A model
// outlives its tokenizers and workspaces, a tokenizer its decoders, a workspace its sequences.
//
// Threads. A model and a tokenizer never change: any number of threads may use one. A workspace and
// all of its sequences have one caller at a time, and so have a decoder and a sampler. To run
// passes in several threads, make a workspace for each. The child of a fork() has none of their
// threads: it makes workspaces of its own and leaves its parent's alone.
//
// Options. Initialise a struct of options with { 0 }: a member that is 0 means its default, and
// NULL means a struct of zeros. When members are added at the end, HEADS_ABI grows.
#ifndef HEADS_H
#define HEADS_H

#include <stddef.h>
#include <stdint.h>

#define HEADS_ABI 6          // grows when a program must be compiled again
#define HEADS_VERSION "0.1"  // of this header

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
    size_t weight_bytes;  // that one generated token reads
    int encoder;          // 1: tokens see those after them, so a text runs whole, and nothing
                          // continues it; heads_embed has its vector
    int source_vocab;     // how many ids an encoder-decoder's encoder knows; else 0
    int greedy;           // 1: the checkpoint wants the most likely tokens, unless one samples
    int target_ids;       // 1: what it writes has ids of its own, which heads_encode does not give
} heads_shape;

// Maps a checkpoint that export.py made and checks all of it but its checksum; weights are read
// when a pass first needs them. Errors: no such file, no checkpoint, damaged, not implemented.
HEADS_API heads_model *heads_model_open(const char *path, heads_error *err);
HEADS_API void heads_model_close(heads_model *model);
HEADS_API heads_shape heads_model_shape(const heads_model *model);

// ---- text and ids ----

typedef struct heads_tokenizer heads_tokenizer;
typedef struct heads_decoder heads_decoder;

// Errors: the checkpoint has no tokenizer, or one that is inconsistent.
HEADS_API heads_tokenizer *heads_tokenizer_new(const heads_model *model, heads_error *err);
HEADS_API void heads_tokenizer_free(heads_tokenizer *tokenizer);
// The ids of text[0..len), which may hold zero bytes; what is not UTF-8 counts as U+FFFD.
// add_special: with those that the model wants around a text, such as BOS. Returns how many; *ids
// is the caller's, to free with heads_free. An id may lie beyond vocab_size where the tokenizer
// knows tokens that the model does not. Errors: no memory.
HEADS_API long heads_encode(const heads_tokenizer *tokenizer, const char *text, size_t len,
                            int add_special, int **ids, heads_error *err);
HEADS_API void heads_free(void *memory);
// 1: the id ends a text.
HEADS_API int heads_is_eos(const heads_tokenizer *tokenizer, int id);

// From ids to text, one at a time. A token may end inside a UTF-8 character, which is held back
// until the rest of it comes: what is handed out is always valid UTF-8. skip_special: tokens such
// as BOS give no text. text[0..len) is borrowed until the decoder's next call, and does not end in
// a zero. finish hands out what is still held back. Errors: a negative id, no memory.
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
    int answer;     // 1: ends with the beginning of an answer, for the model to go on from
    int no_think;   // 1: by the template's switch for thinking; an error where it has none
    int64_t clock;  // seconds since 1970 in the zone that a template should print the date of
} heads_chat_options;

// The checkpoint's chat template. Errors: it has none, or one that export.py could not compile.
HEADS_API heads_chat *heads_chat_new(const heads_model *model, heads_error *err);
HEADS_API void heads_chat_free(heads_chat *chat);
// The ids of a conversation of n messages, exactly as the template writes it. Returns how many;
// *ids is the caller's, to free with heads_free. Errors: what the template cannot write, or would
// write in a way that was not proven exact; no memory.
HEADS_API long heads_chat_encode(const heads_chat *chat, const heads_tokenizer *tokenizer,
                                 const heads_message *messages, size_t n,
                                 const heads_chat_options *options, int **ids, heads_error *err);
// The id that ends an answer besides those of heads_is_eos; -1: none.
HEADS_API int heads_chat_end(const heads_chat *chat, const heads_tokenizer *tokenizer);
// 1: the template prints the date, so that options.clock counts.
HEADS_API int heads_chat_prints_date(const heads_chat *chat);

// ---- where passes run ----

typedef struct heads_workspace heads_workspace;

typedef enum { HEADS_F16, HEADS_F32, HEADS_Q8, HEADS_Q4 } heads_type;  // of cached keys and values

typedef struct {
    int context;        // positions of each sequence; 0: the model's
    int chunk;          // most tokens of a pass, of all runs together; 0: 128
    int n_threads;      // the caller's included; 0: the physical cores that this process may use
    int logit_rows;     // most rows of logits that one call may ask for; 0: as many as chunk
    heads_type k_type, v_type;
    const char *isa;    // kernels: "scalar", "avx2", ..; NULL: the best that the processor has
    const heads_workspace *threads_of;  // whose threads to use, by one caller for both; it outlives
                                        // this one. NULL: threads of its own
} heads_workspace_options;

// Errors: an option out of range, kernels that the processor lacks, no memory.
HEADS_API heads_workspace *heads_workspace_new(const heads_model *model,
                                               const heads_workspace_options *options,
                                               heads_error *err);
HEADS_API void heads_workspace_free(heads_workspace *w);
HEADS_API int heads_workspace_context(const heads_workspace *w);
HEADS_API int heads_workspace_threads(const heads_workspace *w);
HEADS_API const char *heads_workspace_isa(const heads_workspace *w);  // static
// Floats from one row of logits to the next: vocab_size, rounded up.
HEADS_API size_t heads_logit_stride(const heads_workspace *w);

// ---- texts ----

typedef struct heads_sequence heads_sequence;

// An empty one. Its cache takes memory as tokens fill it. shared: forks map its pages instead of
// copying them; filling it costs more. Errors: no memory.
HEADS_API heads_sequence *heads_sequence_new(heads_workspace *w, int shared, heads_error *err);
HEADS_API void heads_sequence_free(heads_sequence *s);
// Another one of the same workspace that begins with the first n tokens of s; s may be freed
// before it. Errors: n outside 0..length, as in rewind, no memory.
HEADS_API heads_sequence *heads_sequence_fork(const heads_sequence *s, int n, heads_error *err);
// Forgets all tokens but the first n. Errors, after which nothing has changed: a sliding window or
// a mixer's state has forgotten what the next token would see (n = 0 always works), or forks share
// more than n. mark: a state can go back to the present length; one such place at a time. Errors:
// no memory.
HEADS_API int heads_sequence_rewind(heads_sequence *s, int n, heads_error *err);
HEADS_API int heads_sequence_mark(heads_sequence *s, heads_error *err);
// Says that the text will have n tokens at least. To be called before the first pass where the
// length is known: models whose rope depends on it spare themselves a second run.
HEADS_API void heads_sequence_expect(heads_sequence *s, int n);
HEADS_API int heads_sequence_length(const heads_sequence *s);  // tokens in the cache
// [length], borrowed until the sequence next changes.
HEADS_API const int *heads_sequence_tokens(const heads_sequence *s);
// A file of the tokens and their cache, written under another name and then renamed. It is loaded
// by mapping, with the same checkpoint and types, in any context that has room for it. Errors: the
// file, another checkpoint, other types, an empty sequence.
HEADS_API int heads_sequence_save(const heads_sequence *s, const char *path, heads_error *err);
HEADS_API heads_sequence *heads_sequence_load(heads_workspace *w, const char *path,
                                              heads_error *err);

// ---- passes ----

typedef struct {
    heads_sequence *sequence;
    const int *tokens;  // [n], that follow those already in the sequence; borrowed for the call
    int n, n_logits;    // logits of the last n_logits of them are wanted
} heads_run;

// Runs the tokens of all runs, prompts and single tokens in any mixture, and returns their logits,
// [sum of n_logits][stride] floats, run after run, borrowed until the workspace's next pass. No bit
// of them depends on what runs beside a sequence, on how its tokens are cut into calls, on chunk or
// on threads. Errors: a token outside the vocabulary, more than the context has room for, a
// sequence twice or of another workspace, logits that are not finite. Tokens that ran before an
// error stay in the sequences.
HEADS_API const float *heads_forward_runs(heads_workspace *w, const heads_run *runs, int n_runs,
                                          heads_error *err);
// The same for one sequence.
HEADS_API const float *heads_forward(heads_sequence *s, const int *tokens, int n, int n_logits,
                                     heads_error *err);

// ---- models that read one text and write another ----

// Has an encoder read texts, each of which the tokens of its sequence will look at; the sequence
// has no token yet. Runs want no logits. Errors: as above; the model has no encoder (source_vocab
// of its shape is 0).
HEADS_API int heads_read_sources(heads_workspace *w, const heads_run *runs, int n_runs,
                                 heads_error *err);
// What a text then begins with, the first tokens of its sequence. lang: NULL; the language to
// write, as the tokenizer names it; or FROM:TO, of which the other call puts FROM into the ids of a
// source. Returns how many; *ids is the caller's, to free with heads_free. Errors: no such
// language.
HEADS_API long heads_start_tokens(const heads_model *model, const heads_tokenizer *tokenizer,
                                  const char *lang, int **ids, heads_error *err);
HEADS_API int heads_source_language(const heads_model *model, const heads_tokenizer *tokenizer,
                                    const char *lang, int *ids, long n, heads_error *err);

// ---- vectors of texts ----

typedef struct {
    const int *ids;  // [n], as heads_text_ids gives them
    int n;
} heads_text;

// The ids of a text of which a vector is wanted: with those that the model wants around it, and cut
// where the checkpoint says that such texts end, the last of those around it kept. Returns how
// many; *ids is the caller's, to free with heads_free. Errors: no memory.
HEADS_API long heads_text_ids(const heads_model *model, const heads_tokenizer *tokenizer,
                              const char *text, size_t len, int **ids, heads_error *err);
// Writes vectors[n][n_embd], one for each text: its hidden states, pooled as the checkpoint says.
// As many texts as a pass takes run side by side, in a workspace that is made for the call with
// these options, except for context and logit_rows, which are as large as the texts need. No bit of
// a vector depends on the other texts. Errors: the checkpoint does not say how to pool (it is no
// encoder and came without modules.json), a text without ids, an option out of range, a token
// outside the vocabulary, no memory.
HEADS_API int heads_embed(const heads_model *model, const heads_workspace_options *options,
                          const heads_text *texts, int n, float *vectors, heads_error *err);

// ---- looking into a pass ----

typedef struct {  // what one query head of a layer makes of one token
    const heads_sequence *sequence;
    int layer, head, position;  // position: the token's, whose query it is
    int first, n;          // it sees the positions first .. first + n - 1
    const float *weights;  // [n], after the softmax; borrowed for the call
    float sink;            // what the layer's sink takes; 0 where it has none. All sum to 1
    int of_source;         // 1: those are positions of the source
} heads_attention_row;

typedef struct {  // what some matrices multiply, before it is rounded to the form that they want
    const char *const *tensors;  // [n_tensors], their names in the checkpoint (docs/format.md)
    int n_tensors;
    int which;                   // of stacks: the matrix of each, an expert's or a head's; else 0
    const float *rows;           // row i is rows[i stride .. i stride + width - 1]
    size_t stride;
    int n, width;
} heads_product_input;

// Functions that passes call with what they compute, each with `context`; NULL: nobody looks, and
// it costs nothing. No bit of a pass depends on them. They are called while heads_forward_runs
// or heads_read_sources runs, and must not call the workspace; what they are given is borrowed for
// the call. Layers come one after the other. A token that heads_sequence_expect would have spared
// a second run comes twice. `attention` is called by the workspace's threads (0 ..
// heads_workspace_threads - 1, 0 being the caller's), several at a time and in any order; `product`
// by the caller's alone, before each product with weights, in their order. A matrix that several
// layers share, or that is the embedding and the output, has the name that the file has first.
typedef struct {
    void (*attention)(void *context, const heads_attention_row *row, int thread);
    void *context;
    void (*product)(void *context, const heads_product_input *input);
} heads_probe;

// Shows passes from now on to *probe, which is copied; NULL ends that.
HEADS_API void heads_workspace_probe(heads_workspace *w, const heads_probe *probe);

// ---- from logits to an id ----

typedef struct heads_sampler heads_sampler;

typedef struct {
    float temperature;     // 0: the most likely token, the lowest of equal ones
    int top_k;             // 0: all
    float top_p;           // 0 or 1: all
    float min_p;           // 0: all
    float repeat_penalty;  // 0 or 1: none; over the last repeat_last tokens
    int repeat_last;       // 0: 64
    uint64_t seed;         // the same seed gives the same ids
    int most;              // tokens that the text will have at most: the last is then the end that
                           // the checkpoint forces, if it does; 0: any
} heads_sampler_options;

// One for each text. It does not keep w. Errors: an option out of range, no memory.
HEADS_API heads_sampler *heads_sampler_new(const heads_workspace *w,
                                           const heads_sampler_options *options,
                                           heads_error *err);
HEADS_API void heads_sampler_free(heads_sampler *sampler);
// Tells it of a token of the text, prompt or generated, for the repetition penalty.
HEADS_API void heads_sampler_accept(heads_sampler *sampler, int id);
// An id for logits[0..vocab_size), which it leaves alone.
HEADS_API int heads_sampler_pick(heads_sampler *sampler, const float *logits);
// The same for n texts, on the threads of w: ids[i] is what samplers[i] picks from row i of logits.
HEADS_API void heads_sampler_pick_each(heads_workspace *w, heads_sampler *const *samplers, int n,
                                       const float *logits, int *ids);
// How likely row i of logits, out of n, makes ids[i]: the natural logarithm of its probability;
// and which id it makes most likely, in best[i].
HEADS_API void heads_log_probabilities(heads_workspace *w, const float *logits, const int *ids,
                                       int n, double *log_probabilities, int *best);

// ---- what a cache costs, in bytes ----

typedef struct {
    size_t bytes_per_token;  // as long as no sliding window is full
    size_t growing;          // of these, of layers that keep every position
    size_t windows;          // of the layers that do not, once their windows are full
    size_t state;            // that does not grow with the text
    size_t reserved;         // of the whole context; SIZE_MAX: more than an address can say
    size_t bytes_per_source_token;  // for cross-attention
} heads_kv_plan;

typedef struct {
    size_t reserved, in_use;
    size_t resident, expected_resident;  // in memory: measured, and as the layout says
    size_t shared;                       // of in_use, in the same memory as other sequences'
} heads_kv_usage;

// What one sequence with these options would cost, before anything is made. Only context, k_type
// and v_type count. Errors: one of these is out of range.
HEADS_API int heads_model_kv_plan(const heads_model *model, const heads_workspace_options *options,
                                  heads_kv_plan *plan, heads_error *err);
HEADS_API heads_kv_usage heads_sequence_kv_usage(const heads_sequence *s);

#ifdef __cplusplus
}
#endif

#endif
