// What a model is made of: a stack of layers, each of them made of parts. model.c reads it from a
// checkpoint and refuses what it does not understand; after that nothing ever changes it, so any
// number of workspaces may share one. Weights are borrowed from the mapping.
//
// (n_out, n_in) beside a matrix is its shape, [n] beside a vector its length. A matrix whose data
// is NULL, or a norm or vector that is NULL, is absent.
#ifndef MODEL_H
#define MODEL_H

#include "metadata.h"

enum {
    MAX_LAYERS = 4096, MAX_HEADS = 1 << 14, MAX_LATENT_HEADS = 255, MAX_TAPS = 64,
    MAX_EXPERTS = 4096, MAX_TOP_K = 64, MAX_GROUPS = 64, MAX_ROPE_SETS = 8, MAX_CONTEXT = 1 << 30
};

// ---- what parts are made of ----

typedef struct {  // a matrix in panels of 16 rows (docs/format.md)
    const uint8_t *data;
    Dtype dtype;
    int n_out, n_in;
    const float *bias;  // [n_out]
} Matrix;  // A stack is several of one shape, each with its rows and biases padded to 16.

typedef struct {  // w NULL: the norm is the identity
    const float *w, *b;
    float eps;
    bool layernorm;     // else RMSNorm, which has no b
} Norm;

typedef struct {  // a depthwise causal convolution over the last n_taps tokens
    int n_taps, n_channels;
    const float *taps;  // [n_taps][n_channels], the oldest token's first
    const float *bias;  // [n_channels]
} Conv;

// ---- mixers: what a layer has to look at other tokens ----

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in its absorbed form: one KV head,
// whose values are the first `rank` numbers of its keys. head_dim is that of the cached key
// [latent; rope part]. A query head is projected to n_nope + (head_dim - rank) numbers, of which
// the first n_nope go through k_up; what a head mixes becomes n_value numbers through v_up.
typedef struct {
    int rank;  // 0: no latent attention, and none of what follows
    int n_nope, n_value;
    Matrix q_down;         // (query rank, n_embd); q is then (.., query rank); may be absent
    Norm q_down_norm;      // [query rank]
    Norm norm;             // [rank]
    Matrix k_up, v_up;     // stacks of n_heads: (rank, n_nope), (n_value, rank)
} Latent;

enum { QK_PER_HEAD, QK_WHOLE, QK_DISTINCT, QK_AFTER_ROPE, N_QK_NORMS };
enum { MASK_CAUSAL, MASK_ALL, MASK_SOURCE, N_MASKS };

typedef struct {
    int n_heads, n_kv_heads, head_dim;
    int rope;              // rope set, -1: none
    int mask;              // MASK_*: whether a token sees those after it too, or only another
                           // text, the source's
    int window;            // this many positions to a side, its own included; 0: all
    float scale;           // of scores
    float softcap, clip;   // of scores; of q, k and v; 0: none
    int qk_norm;           // QK_*: what q_norm and k_norm norm
    int kv_source;         // the layer whose keys and values it reads; -1: its own
    bool kv_read;          // another layer reads its keys and values: a window forgets none
    Matrix q, k, v, o;     // (n_heads head_dim, n_embd), 2 x (n_kv_heads head_dim, n_embd),
                           // (n_embd, n_heads head_dim)
    Norm q_norm, k_norm;   // [head_dim], or of all heads side by side if whole or distinct
    Norm v_norm;           // [head_dim], of each value head
    Norm sub_norm;         // [n_heads head_dim], before o
    Matrix out_gate;       // (n_heads head_dim or n_heads, n_embd): its sigmoid multiplies heads
    const float *sinks;    // [n_heads], a score that only the sum of exponentials sees
    const float *slopes;   // [n_heads], of ALiBi
    const float *relative; // [n_heads][2 reach + 1], added to the scores of keys at distances
    int reach;             // -reach..reach; of those beyond, as at the end
    Latent latent;
} Attention;

typedef struct {  // LFM2's short convolution
    Conv conv;             // n_embd channels
    Matrix in, out;        // (3 n_embd, n_embd), (n_embd, n_embd)
} ShortConv;

typedef struct {  // gated delta rule (arXiv 2412.06464)
    int n_k_heads, n_v_heads, k_dim, v_dim;
    Conv conv;             // of q, k and v side by side
    Matrix in, out;        // (channels, n_embd), (n_embd, n_v_heads v_dim)
    Matrix gate;           // (n_v_heads v_dim, n_embd)
    Matrix beta, decay;    // 2 x (n_v_heads, n_embd)
    float beta_scale;      // beta's sigmoid is multiplied by it
    const float *rate;     // [n_v_heads], how fast the state decays
    Norm norm;             // [v_dim]
} DeltaNet;

typedef struct {  // Mamba-2 (arXiv 2405.21060)
    int n_heads, head_dim, d_state;
    int n_groups;          // of heads, which share B and C
    float least_step, most_step;
    bool norm_first;       // before the gate, not after it
    Conv conv;             // of x, B and C side by side
    Matrix in, out;        // (channels, n_embd), (n_embd, n_heads head_dim)
    Matrix gate;           // (n_heads head_dim, n_embd)
    Matrix step;           // (n_heads, n_embd)
    const float *rate;     // [n_heads], how fast the state decays
    const float *skip;     // [n_heads], how much of x goes by the state
    Norm norm;             // [n_heads head_dim], of each group by itself; may be absent
} Mamba2;

// ---- feed-forward ----

typedef struct {
    Act kind;
    bool gated;            // act(gate) * up, else act(up)
    const float *params;   // [4], of the activations that have some
} Activation;

typedef struct {  // what every token passes
    int d_ff;              // 0: there is none
    Activation act;
    Matrix gate, up, down; // 2 x (d_ff, n_embd), (n_embd, d_ff); gate if gated
    Norm sub_norm;         // [d_ff], before down
    Matrix token_gate;     // (1, n_embd): its sigmoid multiplies what a token gets
} Ffn;

enum { ROUTE_SOFTMAX, ROUTE_SIGMOID, ROUTE_SPARSEMIXER, N_ROUTES };
enum { GROUP_MAX, GROUP_TOP2 };  // a group of experts is as good as its best, or its two best

typedef struct {  // what each token chooses a few of
    int n, top_k, d_expert;     // n 0: there are none
    int route;                  // ROUTE_*: how the router's scores become weights
    int n_groups, top_groups, group_score;  // only the best groups' are chosen from; 1: from all
    bool renorm;                // the weights of the chosen are divided by their sum + renorm_eps
    float renorm_eps, scale;    // and multiplied by scale
    float jitter;               // of the sparsemixer: how far below the best a score may be
    Activation act;
    Matrix router;              // (n, n_embd)
    const float *selection_bias;  // [n], added to the scores for the choice alone
    Matrix gate, up, down;      // stacks of n: 2 x (d_expert, n_embd), (n_embd, d_expert)
    Norm norm, post_norm;       // [n_embd], of what they and the router read, which is then the
                                // stream and not what ffn reads, and of what they add
    Norm beside_norm;           // [n_embd], then also of what ffn adds. All three or none
} Experts;

// ---- the layer and the model ----

// A branch that the layer's own embedding of the token gates (Gemma 3n's per-layer embeddings).
typedef struct {
    Matrix gate, out;      // (width, n_embd), (n_embd, width)
    Norm norm;             // [n_embd], of what it adds
} EmbedBranch;

enum { MIXER_ATTENTION, MIXER_SHORTCONV, MIXER_DELTANET, MIXER_MAMBA2, MIXER_NONE, N_MIXERS };
// How branches and norms are joined.
enum { SEQUENTIAL, PARALLEL, POST_NORM, NORMED_RESIDUAL, N_TOPOLOGIES };

typedef struct {
    int topology;          // of the above; transformer.c has them side by side
    float residual_scale;  // of what a branch adds
    Norm attn_norm, ffn_norm;  // [n_embd], of a branch's input; a parallel ffn without one takes
                               // attention's. Post-norm: of the sum
    Norm attn_post_norm, ffn_post_norm;  // [n_embd], of what a branch adds
    int mixer;             // MIXER_*: which of them it has. Parts that it does not have are zero,
                           // but for attention's numbers, which stand in every file
    bool mamba2_beside;    // Mamba-2 reads what attention reads, and both add to the stream
    Attention attention;
    ShortConv shortconv;
    DeltaNet deltanet;
    Mamba2 mamba2;
    Ffn ffn;
    Experts experts;
    EmbedBranch embed_branch;
    Attention cross;       // to the source, between mixer and ffn, in the decoder of a model that
    Norm cross_norm;       // has an encoder too; k and v read what the encoder gave. n_heads 0:
                           // there is none
    const float *out_scale;  // [1]: the residual stream is multiplied by it after the layer
} Layer;

typedef struct {
    int n_pairs;             // of a head's numbers, half of those that are rotated
    const float *inv_freq;   // [n_pairs]
    float multiplier;
    const float *long_freq;  // [n_pairs], for texts of more than `length` tokens; NULL: the same
    float long_multiplier;
    int length;
} RopeSet;

typedef struct {  // embeddings that each layer has of its own
    int width;               // numbers a layer; 0: none
    Matrix table, in;        // (vocab_size, n_layers width), (n_layers width, n_embd)
    Norm in_norm;            // [width]
} LayerEmbed;

typedef struct {  // between the last norm and the output, in masked language models
    Activation act;
    Matrix dense;            // (d_embed, n_embd); may be absent
    Norm norm;               // [d_embed]
} PredictionHead;

enum { POOL_NONE, POOL_MEAN, POOL_FIRST, POOL_LAST, POOL_MAX, N_POOLINGS };

typedef struct {  // how a text's hidden states become one vector
    int pooling;             // POOL_*
    bool unit;               // it is divided by its length
    int most_tokens;         // a longer text is cut
} Pooling;

typedef struct {  // layers that a text passes, and what it is before and after them
    int first, n;            // of Model.layers
    int vocab_size;
    Matrix embed, embed_pos; // (vocab_size, d_embed); (context, d_embed), if positions are learned
    Norm embed_norm;         // [d_embed]
    Norm norm;               // [n_embd]; may be absent
} Stack;

// What generation must keep to, where the checkpoint says so: generation_config.json.
typedef struct {
    int room;                // tokens that a text can have
    int last;                // the last token where the number asked for ends a text; -1: any
    int least, most;         // tokens that a text has, those of start included; 0: no limit
    int no_repeat;           // no row of this many tokens occurs twice; 0: they may
    bool greedy;             // the likeliest token is taken unless the user asks for chance
    Ints start;              // what every text begins with
    Ints eos;                // any of which ends a text that has `least` tokens
    Ints languages;          // tokens that say which language a text is in
    int n_banned;
    const int32_t *banned_begin, *banned;  // [n_banned + 1], rows of tokens that must not occur
} Rules;

typedef struct heads_model {
    Checkpoint file;
    Mapping mapped;          // what model_open mapped; empty where the bytes are the caller's
    int vocab_size, n_embd, n_layers, context;
    int d_embed;             // width of the embedding: n_embd, or embed_proj leads there
    bool encoder;            // no more than that: tokens see those after them, a text runs whole,
                             // in one pass, and leaves no keys and values for a next one
    bool layernorm;          // its norms are LayerNorm but for those of mixers that are always RMS
    float norm_eps, emb_scale, final_softcap;  // final_softcap 0: none
    const float *q_temp;     // [n_q_temp]: q at position p times element p / q_temp_length
    int n_q_temp, q_temp_length;
    int n_rope_sets;
    RopeSet rope[MAX_ROPE_SETS];
    Stack text;              // what gives hidden states and logits
    Stack source;            // an encoder, whose text the other's layers see; n 0: there is none
    Rules rules;
    const float *embed_type; // [d_embed], added to each embedding; may be absent
    Matrix embed_proj;       // (n_embd, d_embed); absent: they are the same
    PredictionHead head;
    Matrix output;           // (vocab_size, d_embed); embed where they are tied; data NULL: the
                             // model gives hidden states and no logits
    Pooling pooling;
    LayerEmbed layer_embed;
    Layer *layers;           // [n_layers]
    size_t weight_bytes;     // tensor bytes that one generated token reads: all, but for experts
                             // that are not chosen and an embedding that is only looked up
} Model;

// Reads a checkpoint's knobs and tensors. Every message names the knob or tensor, what was
// expected and what was found. After success no product of a layer's dimensions overflows an int:
// each is a tensor's dimension, MAX_DIM at most.
int model_parse(Model *model, const uint8_t *bytes, size_t size, Error *err);
// Maps a file and parses it; model_close frees what either of the two made, and unmaps.
int model_open(Model *model, const char *path, Error *err);
void model_close(Model *model);

static inline bool has_ffn(const Layer *l) { return l->ffn.d_ff || l->experts.n; }

// Numbers of a query head's output before o: what attention() leaves in its buffer.
static inline int mixed_dim(const Attention *a) {
    return a->latent.rank ? a->latent.rank : a->head_dim;
}

#endif
