// heads.c: the public header and table of contents. One section a file, in reading order.
//
// Conventions: a function that can fail returns 0 or -1 (or a pointer or NULL) and fills the Error; only run.c and its
// report.c print, and only run.c exits. A Model is immutable and may be shared by several Sessions; a Session belongs to one
// caller at a time. Sizes that come from outside are widened to size_t before they are multiplied.
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

typedef struct {
    char text[400];  // a sentence: what was wrong, where, what was expected, what was found
} Error;

// Fills err->text and returns -1, so that "return fail(err, ...)" reads well.
int fail(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// ---- checkpoint.c: bytes -> validated model. The format is docs/format.md. ----------------------------------------------

enum {
    MAX_ROPE_SETS = 8, MAX_DIM = 1 << 24, MAX_LAYERS = 4096, MAX_LATENT_HEADS = 255, MAX_TAPS = 64, MAX_EXPERTS = 4096,
    MAX_TOP_K = 64, MAX_GROUPS = 64
};

typedef struct {  // a mapped file
    const uint8_t *data;
    size_t size;
} Mapping;

typedef struct {  // a matrix (n_out, n_in) in panels, borrowed from the mapping; data NULL: absent
    const uint8_t *data;
    Dtype dtype;
    int n_out, n_in;
    const float *bias;  // [n_out] or NULL
} Matrix;  // A stack is several of one shape, each with its rows and its biases filled up to 16; n_out is that of one.

typedef struct {  // w NULL: absent, the norm is then the identity
    const float *w, *b;
} Norm;

typedef struct {
    int n_pairs;            // n_rot / 2
    const float *inv_freq;  // [n_pairs]
    float multiplier;
    const float *long_freq; // [n_pairs], what a text of more than `length` tokens is turned by instead; NULL: the same
    float long_multiplier;
    int length;
} RopeSet;

enum { SEQUENTIAL, PARALLEL };
enum { NORM_PRE_ATTN = 1, NORM_POST_ATTN = 2, NORM_PRE_FFN = 4, NORM_POST_FFN = 8 };  // bits of Layer.norms
enum { QK_PER_HEAD, QK_WHOLE, QK_DISTINCT, QK_AFTER_ROPE, N_QK_NORMS };
enum { MIXER_ATTENTION, MIXER_SHORTCONV, MIXER_DELTANET, N_MIXERS };
enum { SCORE_SOFTMAX, SCORE_SIGMOID, SCORE_SPARSEMIXER, N_SCORES };  // of the router
enum { GROUP_MAX, GROUP_TOP2 };         // a group of experts is as good as its best, or as the sum of its two best

typedef struct {
    Norm attn_norm, ffn_norm;      // [n_embd], of a branch's input; a parallel ffn without one takes attention's
    Norm attn_post_norm, ffn_post_norm;  // [n_embd], of what the branch adds
    Matrix q, k, v, o;             // (n_heads head_dim, n_embd), 2 x (n_kv_heads head_dim, n_embd),
                                   // (n_embd, n_heads head_dim)
    Norm q_norm, k_norm;           // [head_dim], of all heads side by side if whole or distinct, or absent
    Norm v_norm;                   // [head_dim], of each value head, or absent
    Norm attn_sub_norm, ffn_sub_norm;  // [n_heads head_dim] before o, [d_ff] before down, or absent
    const float *sinks, *slopes;   // [n_heads] or NULL: a score that only the sum of exponentials sees; ALiBi
    const float *act_params;       // [4] or NULL, of the activations that have some
    Matrix gate, up, down;         // 2 x (d_ff, n_embd), (n_embd, d_ff); gate absent if the FFN is plain
    int n_heads, n_kv_heads, head_dim, d_ff;
    int rope;                      // rope set, -1 for none
    int window;                    // 0 for none
    Matrix ple_gate, ple_out;      // (ple, n_embd), (n_embd, ple): the branch gated by the layer's own embedding, or absent
    Norm ple_norm;                 // [n_embd], of what it adds
    const float *out_scale;        // [1] or NULL: the residual stream is multiplied by it behind the layer
    int kv_source;                 // the layer whose keys and values it reads; -1: its own
    bool kv_read;                  // another layer reads its keys and values, so that a window forgets none
    float attn_scale;
    float softcap, clip;  // of scores; of q, k and v; 0 for none
    float residual_scale; // of what a branch adds
    int topology;  // SEQUENTIAL or PARALLEL
    int norms;     // NORM_* that are there
    int qk_norm;   // QK_*
    int gated;     // the FFN has a gate
    int act;       // an Act

    int mixer;     // MIXER_*: what stands where attention does

    // Multi-head latent attention: one KV head, whose values are the first `latent` numbers of its keys. head_dim is that
    // of the cached key [latent; rope part]; a query head is projected to n_nope + (head_dim - latent) numbers, of which
    // the first n_nope go through k_up; what a head mixes becomes n_value numbers through v_up.
    int latent, n_nope, n_value;     // latent 0: no MLA, and none of what follows
    Matrix q_down;                   // (query rank, n_embd); q is then (.., query rank); may be absent
    Norm q_down_norm, latent_norm;   // [query rank], [latent]; RMS with an epsilon of their own, model.latent_eps
    Matrix k_up, v_up;               // stacks of n_heads: (latent, n_nope), (n_value, latent)
    Matrix attn_gate;                // (n_heads head_dim or n_heads, n_embd), its sigmoid multiplies attention; or absent

    // Short convolution and gated delta rule. n_taps of the convolution, n_channels wide; the delta rule's heads and their
    // sizes
    int n_taps, n_channels, n_k_heads, n_v_heads, k_dim, v_dim;
    const float *conv;               // [n_taps][n_channels]
    Matrix mix_in, mix_out;          // (3 n_embd or n_channels, n_embd); (n_embd, n_embd or n_v_heads v_dim)
    Matrix delta_gate, delta_beta, delta_decay;  // (n_v_heads v_dim, n_embd), 2 x (n_v_heads, n_embd)
    const float *delta_rate;         // [n_v_heads], how fast the state decays
    Norm delta_norm;                 // [v_dim]

    // Mixture of experts. The matrices above are then of the expert that every token passes; d_ff 0: there is none.
    int n_experts, top_k, d_expert;  // n_experts 0: none
    int score;                       // SCORE_*
    int n_groups, top_groups, group_score;  // only the best groups' experts are chosen from; 1 group: from all
    int renorm;                      // the weights of the chosen are divided by their sum + renorm_eps
    float renorm_eps, routed_scale;  // and multiplied by routed_scale
    float jitter;                    // of the sparsemixer: how far below the best a score may be to count
    Matrix router, shared_gate;      // (n_experts, n_embd), (1, n_embd); shared_gate may be absent
    const float *selection_bias;     // [n_experts], added to the scores for the choice alone; or NULL
    Matrix expert_gate, expert_up, expert_down;  // stacks of 2 x (d_expert, n_embd), (n_embd, d_expert)
} Layer;

typedef struct {  // one piece of metadata, borrowed from the mapping
    const char *key;
    size_t key_len, count;
    uint32_t type;  // META_*
    const void *values;
    bool used;  // something in the engine knows it
} Meta;
enum { META_U8 = 1, META_I32 = 2, META_F32 = 3 };

typedef struct {  // one row of the tensor table
    const char *name;
    size_t name_len, rows, cols, bytes;
    Dtype dtype;
    const uint8_t *data;
    bool used;
} Tensor;

typedef struct Model {
    Mapping map;
    int vocab_size, n_embd, n_layers, context;
    bool layernorm;  // every norm of the model is LayerNorm, not RMSNorm
    float norm_eps, emb_scale, latent_eps, final_softcap;  // final_softcap 0: none
    const float *q_temp;  // [n_q_temp] or NULL: q at position p is multiplied by element p / q_temp_length
    int n_q_temp, q_temp_length;
    int n_rope_sets;
    RopeSet rope[MAX_ROPE_SETS];
    Matrix embed, embed_pos, output;  // output is embed where they are tied; embed_pos may be absent
    int ple;                          // numbers that each token has for each layer besides its embedding; 0: none
    Matrix ple_table, ple_in;         // (vocab_size, n_layers ple), (n_layers ple, n_embd)
    Norm ple_in_norm;                 // [ple]
    Norm embed_norm, norm;            // embed_norm may be absent
    Layer *layers;  // [n_layers]
    Meta *meta;
    Tensor *tensors;
    int n_meta, n_tensors;
    size_t weight_bytes;  // tensor bytes that one generated token reads: all, but for experts that are not chosen and an
                          // embedding that is only looked up
} Model;

// Maps a file for reading. Errors: cannot be opened, a directory, empty. unmap_file undoes it.
int map_file(Mapping *map, const char *path, Error *err);
void unmap_file(Mapping *map);

// Validates bytes[0..size) as a checkpoint, size and every offset included, and points *model into them; the bytes must be
// aligned to 64 and outlive the model. Every message names the field, what was expected and what was found.
int model_parse(Model *model, const uint8_t *bytes, size_t size, Error *err);
// Maps and parses a file; model_close frees what either of the two made.
int model_open(Model *model, const char *path, Error *err);
void model_close(Model *model);
// Reads the whole file and compares its CRC-32 with the header's.
int model_check(const Model *model, Error *err);
// The metadata entry of that key, or NULL.
const Meta *model_meta(const Model *model, const char *key);

// ---- model.c: the decoder ------------------------------------------------------------------------------------------------

typedef struct {
    int context;             // positions to reserve; 0: the model's
    int chunk;               // most tokens of one pass, 1..
    int n_threads;           // 0: the physical cores this process may use
    Dtype k_dtype, v_dtype;  // F32, F16 or Q8
    int logit_rows;          // most rows of logits wanted of one pass, 1..chunk
} SessionOptions;

typedef struct Session Session;

// A session: KV cache and scratch for one sequence, threads included. The model is borrowed and must outlive it;
// session_free frees it. Errors: an option out of range, no memory, HEADS_ISA names what is not there.
Session *session_new(const Model *model, const SessionOptions *options, Error *err);
void session_free(Session *session);

// Runs n tokens through the decoder at the positions that follow those already in the cache, and returns the logits of the
// last n_logits of them, [n_logits][session_logit_stride] floats owned by the session until the next call; n_logits may be 0
// (then the result is not NULL but holds nothing). Passes of at most `chunk` tokens; logits do not depend on how the tokens
// are cut into calls, on chunk or on n_threads. NULL: a token outside the vocabulary, more tokens than the context has room
// for, more logits than logit_rows.
const float *forward(Session *session, const int *tokens, int n, int n_logits, Error *err);
size_t session_logit_stride(const Session *session);  // vocab_size, rounded up to 16
int session_position(const Session *session);         // tokens in the cache
int session_context(const Session *session);
int session_threads(const Session *session);
const char *session_isa(const Session *session, const char **why);
// Says that the text will have n tokens at least, those in the cache included. A model whose rope depends on the text's
// length (longrope) then turns all of them as that length asks; unsaid, it runs what is in the cache again when the text
// outgrows its first table.
void session_expect(Session *session, int n);
// Forgets every token, so that the next call starts at position 0.
void session_reset(Session *session);

// ---- attention.c: rope, scores, softmax, mix. Internal; declared in session.h --------------------------------------------

// ---- mla.c: latent attention's way to attention and back. shortconv.c, deltanet.c: other mixers. moe.c: experts. Internal

// ---- kvcache.c: what the cache costs, and where its rows lie -------------------------------------------------------------

typedef struct KvPlan {
    size_t bytes_per_token;  // of all layers, as long as no window is full
    size_t state;            // bytes that do not grow with the text: the states of layers without attention
    size_t reserved;         // bytes of the whole context, windows as rings, and the states, rounded up to pages
} KvPlan;

// What n_kv_heads (0: each layer's own) cost at `context` positions; heads of latent attention count as they are expanded.
// The allocator and the report both use this.
KvPlan kv_plan(const Model *model, int n_kv_heads, int context, Dtype k_dtype, Dtype v_dtype);
// Bytes that hold the first `n` positions: n * bytes_per_token until a window is full, and the states.
size_t kv_bytes_at(const Model *model, int n_kv_heads, int n, Dtype k_dtype, Dtype v_dtype);
// The session's own cache: bytes reserved, bytes in use by the tokens so far, bytes of it that are in memory (measured), and
// bytes that must be in memory if the layout is what the plan says (computed).
typedef struct {
    size_t reserved, in_use, resident, expected_resident;
} KvUsage;
KvUsage session_kv_usage(const Session *session);
const char *dtype_name(Dtype dtype);

// ---- tokenizer.c: text <-> ids -------------------------------------------------------------------------------------------

typedef struct Tokenizer Tokenizer;

// Reads the model's tokenizer.* metadata; borrows it. NULL: metadata missing or inconsistent.
Tokenizer *tokenizer_new(const Model *model, Error *err);
void tokenizer_free(Tokenizer *tokenizer);
// The ids of text[0..len), which need not be valid UTF-8 (a bad byte is replaced by U+FFFD, as lossy decoders do) and may
// hold zero bytes. add_special puts the ids of the checkpoint's post-processor around (BOS ..). *ids is malloc'd, the
// caller frees it. Returns the count, or -1 (no memory). Work is near-linear in len.
long tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t len, bool add_special, int **ids, Error *err);
// Appends the bytes of one token to what decoding the ids so far gave. A token's bytes may end inside a UTF-8 character:
// the Decoder holds them back until the rest comes, so what is handed out is always valid UTF-8 (bytes that can never
// become valid are replaced by U+FFFD). out is borrowed until the next call. skip_special leaves out special tokens.
typedef struct Decoder Decoder;
Decoder *decoder_new(const Tokenizer *tokenizer, bool skip_special, Error *err);
void decoder_free(Decoder *decoder);
int decoder_push(Decoder *decoder, int id, const char **out, size_t *len, Error *err);
// What is still held back, as the end of the text.
int decoder_finish(Decoder *decoder, const char **out, size_t *len, Error *err);
bool tokenizer_is_eos(const Tokenizer *tokenizer, int id);
bool tokenizer_is_special(const Tokenizer *tokenizer, int id);  // programs that show text leave it out
// For --info: a sentence such as "byte-level BPE, 49152 tokens, pre-tokenizer digits + gpt2, BOS 1, EOS 2". Owned by the
// tokenizer.
const char *tokenizer_describe(const Tokenizer *tokenizer);

// ---- sampler.c: logits -> one id -----------------------------------------------------------------------------------------

typedef struct {
    float temperature;     // 0: greedy
    int top_k;             // 0: all
    float top_p;           // 1: all
    float min_p;           // 0: all
    float repeat_penalty;  // 1: none; over the last repeat_last tokens
    int repeat_last;
    uint64_t seed;
} SamplerOptions;
typedef struct Sampler Sampler;

Sampler *sampler_new(int vocab_size, const SamplerOptions *options, Error *err);
void sampler_free(Sampler *sampler);
// Tells the sampler of a token of the text, prompt or generated, for the repetition penalty.
void sampler_accept(Sampler *sampler, int id);
// Picks an id from logits[0..vocab_size), which it leaves alone. Order: repetition penalty, top-k, temperature, top-p,
// min-p, as transformers' generate has them. Greedy takes the lowest of equal logits.
int sampler_pick(Sampler *sampler, const float *logits);

// ---- threads.c: parallel_for ---------------------------------------------------------------------------------------------

typedef struct Pool Pool;

// A pool of n threads, the caller's one included. NULL: threads could not be made.
Pool *pool_new(int n_threads, Error *err);
void pool_free(Pool *pool);
int pool_threads(const Pool *pool);
// Calls work(arg, item, thread) for every item in 0..n-1, once each, in any order, on any thread (0..n_threads-1), and
// returns when all are done. Not to be called from inside work.
void parallel_for(Pool *pool, int n, void (*work)(void *arg, int item, int thread), void *arg);
int physical_cores(void);
double seconds(void);  // of a clock that only goes forward

#endif
