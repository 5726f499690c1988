// The model: a stack of layers, each made of parts such as a mixer and a feed-forward network.
// load/ reads it from a checkpoint, and refuses what it does not understand. It never changes after
// that, so any number of workspaces may share one. Weights are borrowed from the mapped file.
//
// (n_out, n_in) beside a matrix is its shape, [n] beside a vector its length. A matrix without
// data, or a norm or vector that is NULL, is absent.
#ifndef MODEL_H
#define MODEL_H

#include "load/metadata.h"

enum {
    MAX_LAYERS = 4096, MAX_HEADS = 1 << 14, MAX_LATENT_HEADS = 255, MAX_TAPS = 64,
    MAX_EXPERTS = 4096, MAX_TOP_K = 64, MAX_GROUPS = 64, MAX_ROPE_SETS = 8, MAX_CONTEXT = 1 << 30
};

// ---- matrices, norms, convolutions ----

typedef struct {  // a matrix in panels of 16 rows (docs/format.md)
    const uint8_t *data;
    Dtype dtype;
    int n_out, n_in;
    const float *bias;  // [n_out]
    int n;              // matrices in a stack; else 1
} Matrix;  // A stack is several matrices of one shape, each with rows and biases padded to 16.

typedef struct {  // w NULL: there is no norm
    const float *w, *b;
    float eps;
    bool layernorm;     // else RMSNorm, which has no b
} Norm;

typedef struct {  // a depthwise causal convolution over the last n_taps tokens
    int n_taps, n_channels;
    const float *taps;  // [n_taps][n_channels], the oldest token's first
    const float *bias;  // [n_channels]
} Conv;

// ---- mixers: attention, and what layers have in its place ----

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in its absorbed form: one KV head,
// whose values are the first `rank` numbers of its keys. The cached key is [latent; rope part], of
// head_dim numbers. A query head has n_nope + (head_dim - rank) numbers, and its first n_nope go
// through k_up. A head's mix of latents becomes n_value numbers through v_up.
typedef struct {
    int rank;  // 0: no latent attention; all members mean nothing
    int n_nope, n_value;
    Matrix q_down;         // (query rank, n_embd), before q; absent: q reads the layer's input
    Norm q_down_norm;      // [query rank]
    Norm norm;             // [rank]
    Matrix k_up, v_up;     // stacks of n_heads: (rank, n_nope), (n_value, rank)
} Latent;

enum { QK_PER_HEAD, QK_WHOLE, QK_DISTINCT, QK_AFTER_ROPE, N_QK_NORMS };
enum { MASK_CAUSAL, MASK_ALL, MASK_SOURCE, N_MASKS };

typedef struct {
    int n_heads, n_kv_heads, head_dim;
    int rope, q_temp;      // rope set, -1: none; 1: Model.q_temp multiplies queries
    int mask;              // MASK_*: a token sees earlier tokens, all tokens, or the source's
    int window, chunked;   // positions seen to a side, with its own; 0: all. 1: in chunks of it
    float scale;           // of scores
    float softcap, clip;   // of scores; of q, k and v; 0: none
    int qk_norm;           // QK_*: whether q_norm and k_norm apply to a head or to all, and when
    int kv_from;           // the layer whose keys and values it reads; -1: its own
    bool kv_shared;        // another layer reads its keys and values, so all are kept
    Matrix q, k, v;        // (n_heads head_dim, n_embd), 2 x (n_kv_heads head_dim, n_embd); in a
                           // NESTED layer with 2 n_embd columns, for [x; embedding]
    Matrix o;              // (n_embd, n_heads head_dim)
    Norm q_norm, k_norm;   // [head_dim]; of all heads side by side if QK_WHOLE or QK_DISTINCT
    Norm v_norm;           // [head_dim], of each value head
    Norm sub_norm;         // [n_heads head_dim], before o
    Matrix out_gate;       // (n_heads head_dim or n_heads, n_embd): its sigmoid multiplies heads
    const float *sinks;    // [n_heads], a score that only adds to the sum of exponentials
    const float *slopes;   // [n_heads], of ALiBi
    const float *relative; // [n_heads][2 reach + 1], added to scores by the key's distance,
    int reach;             // clamped to -reach..reach
    Matrix pos_k, pos_q;   // stacks of n_heads: keys and queries of distances (layers/positions.c)
    Latent latent;
} Attention;

typedef struct {  // LFM2's short convolution
    Conv conv;             // n_embd channels
    Matrix in, out;        // (3 n_embd, n_embd), (n_embd, n_embd)
} ShortConv;

typedef struct {  // gated delta rule (arXiv 2412.06464)
    int n_k_heads, n_v_heads, k_dim, v_dim;
    int n_decays, sigmoid; // 1 a value head, or k_dim; 1: of the gate, which else is a SiLU
    Conv conv;             // of q, k and v side by side
    Matrix in, out;        // (channels, n_embd), (n_embd, n_v_heads v_dim)
    Matrix gate, gate_down;          // (n_v_heads v_dim, n_embd), and (n_v_heads n_decays, n_embd):
    Matrix beta, decay, decay_down;  // or from the rows of `down`. beta is (n_v_heads, n_embd)
    float beta_scale;      // beta's sigmoid is multiplied by it
    const float *rate;     // [n_v_heads n_decays], how fast the state decays
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
    const float *skip;     // [n_heads], times x, added to the output
    Norm norm;             // [n_heads head_dim], of each group by itself; may be absent
} Mamba2;

typedef struct {  // Mamba-1 (arXiv 2312.00752)
    int width, rank, d_state;  // channels; of the steps; numbers of a channel's state
    Conv conv;             // of the channels
    Matrix in, gate, out;  // 2 x (width, n_embd), (n_embd, width)
    Matrix low;            // (rank + 2 d_state, width): the steps' low rank, B and C,
    Norm low_norms[3];     // whose norms may be absent
    Matrix step;           // (width, rank)
    const float *rate;     // [d_state][width], how fast the state decays
    const float *skip;     // [width], times x, added to the output
} Mamba1;

typedef struct {  // a real-gated linear recurrent unit (Griffin, arXiv 2402.19427)
    int n_heads, head_dim;
    Conv conv;             // n_heads head_dim channels
    Matrix in, gate, out;  // 2 x (n_heads head_dim, n_embd), (n_embd, n_heads head_dim)
    Matrix decay, input;   // stacks of n_heads: (head_dim, head_dim)
    const float *rate;     // [n_heads head_dim], how fast the state decays
} RgLru;

// ---- feed-forward ----

typedef struct {
    Act kind;
    bool gated;            // act(gate) * up, else act(up)
    const float *params;   // [4], of the activations that have some
} Activation;

typedef struct {  // the dense network, for every token
    int d_ff;              // 0: there is none
    Activation act;
    Matrix gate, up, down; // 2 x (d_ff, n_embd), (n_embd, d_ff); gate if gated
    Norm sub_norm;         // [d_ff], before down
    Matrix token_gate;     // (1, n_embd): its sigmoid multiplies the network's output
} Ffn;

enum { ROUTE_SOFTMAX, ROUTE_SIGMOID, ROUTE_SPARSEMIXER, N_ROUTES };
enum { GROUP_MAX, GROUP_TOP2 };  // a group scores as its best expert does, or as its two best

typedef struct {  // mixture of experts: a router chooses a few networks for each token
    int n, top_k, d_expert;     // n 0: there are none
    int route, weigh_input;     // ROUTE_*: how scores become weights; 1: of what experts read
    int n_groups, top_groups, group_score;  // experts come from the best groups; n_groups 1: all
    bool renorm;                // weights of the chosen are divided by their sum + renorm_eps,
    float renorm_eps, scale;    // then multiplied by scale
    float jitter;               // sparsemixer: how far below the best a score may be
    Activation act;
    Matrix router;              // (n, n_embd)
    const float *selection_bias;  // [n], added to the scores for the choice alone
    Matrix gate, up, down;      // stacks of n: 2 x (d_expert, n_embd), (n_embd, d_expert)
    // Gemma 4: experts and router read norm(residual stream), not the input of ffn.
    Norm norm, post_norm;       // [n_embd], of the experts' input and output
    Norm dense_norm;            // [n_embd], of ffn's output
} Experts;

// ---- the layer and the model ----

// A third branch of a layer, gated by the layer's own embedding of the token.
typedef struct {
    Matrix gate, out;      // (width, n_embd), (n_embd, width)
    Norm norm;             // [n_embd], of its output
} EmbedBranch;

enum { MIXER_ATTENTION, MIXER_SHORTCONV, MIXER_DELTANET, MIXER_MAMBA2, MIXER_NONE, MIXER_MAMBA1,
       MIXER_RGLRU, N_MIXERS };
// How a layer joins branches and norms: transformer.c has the five side by side.
enum { SEQUENTIAL, PARALLEL, POST_NORM, NORMED_RESIDUAL, NESTED, N_TOPOLOGIES };

typedef struct {
    int topology;          // SEQUENTIAL ..
    float residual_scale;  // times a branch's output
    Norm attn_norm, ffn_norm;  // [n_embd], of a branch's input (POST_NORM: of the sum). A parallel
                               // ffn without a norm reads the mixer's input
    Norm attn_post_norm, ffn_post_norm;  // [n_embd], of a branch's output; NESTED: of the sum
    int mixer;             // MIXER_*: which of the structs below it has. Other mixers' structs are
                           // zero, except for numbers of attention that every file states
    size_t state_bytes;    // of a mixer that keeps a state instead of keys and values
    bool mamba2_beside;    // it has Mamba-2 besides attention, with the same input; both outputs
                           // are added. In a NESTED layer Mamba-2 comes after the ffn
    Attention attention;
    ShortConv shortconv;
    DeltaNet deltanet;
    Mamba2 mamba2;
    Mamba1 mamba1;
    RgLru rglru;
    Ffn ffn;
    Experts experts;
    EmbedBranch embed_branch;
    Attention cross;       // an encoder-decoder's cross-attention, between mixer and ffn; k and v
    Norm cross_norm;       // read the encoder's hidden states. n_heads 0: none
    const float *out_scale;  // [1], times the residual stream after the layer
} Layer;

typedef struct {
    int n_pairs;             // half of a head's rotated numbers
    const float *inv_freq;   // [n_pairs]
    float multiplier;
    const float *long_freq;  // [n_pairs], for texts of more than `length` tokens; NULL: the same
    float long_multiplier;
    int length;
} RopeSet;

typedef struct {  // per-layer embeddings
    int width;               // of a layer's embedding; 0: none
    Matrix table, in;        // (vocab_size, n_layers width), (n_layers width, n_embd)
    Norm in_norm;            // [width]
} LayerEmbed;

typedef struct {  // after the last norm: x = norm(act(dense x)); each of the three may be absent
    Activation act;
    Matrix dense;
    Norm norm;
} HeadStep;

typedef struct {  // an encoder or a decoder: embedding, layers, last norm
    int first, n;            // of Model.layers
    int vocab_size;
    Matrix embed, embed_pos; // (vocab_size, d_embed); (context, d_embed), if positions are learned
    int padding;             // token whose position is a last row of embed_pos; -1: none
    Norm embed_norm;         // [d_embed]
    Norm norm;               // [n_embd]; may be absent
} Tower;

// Rules for generated texts, from generation_config.json.
typedef struct {
    int room;                // tokens that a text can have
    int last;                // forced as the last token of a text cut at its limit; -1: none is
    int least, most;         // tokens of a text, `start` included; 0: no limit
    int no_repeat;           // so many tokens must not occur twice in the same order; 0: they may
    bool greedy;             // the most likely token is the default
    Ints start;              // first tokens of every text
    Ints eos;                // end a text once it has `least` tokens
    Ints languages;          // tokens that name a text's language
    int n_banned;            // token sequences that must not occur:
    const int32_t *banned_begin, *banned;  // [n_banned + 1]; banned[banned_begin[i] ..]
} Rules;

typedef struct heads_model {
    Checkpoint file;
    Mapping mapped;          // by model_open; empty if the bytes are the caller's
    int vocab_size, n_embd, n_layers, context;
    int d_embed;             // width of the embedding; if not n_embd, embed_proj follows it
    bool encoder;            // an encoder alone: tokens see those after them, a text runs whole in
                             // one pass, and keeps no keys and values
    bool layernorm;          // norms are LayerNorm, but for mixers whose norms are always RMSNorm
    float norm_eps, emb_scale, final_softcap;  // final_softcap 0: none
    const float *q_temp;     // [n_q_temp]: queries at position p are multiplied by element
                             // (p + q_temp_ahead) / q_temp_length, the last one at most
    int n_q_temp, q_temp_length, q_temp_ahead;
    Ints distances;          // the row of pos_k and pos_q of each distance -n / 2 .. n / 2
    int n_rope_sets;
    RopeSet rope[MAX_ROPE_SETS];
    Tower text;              // which gives hidden states and logits
    Tower source;            // an encoder-decoder's encoder, which reads the source; n 0: none
    Rules rules;
    const float *embed_type; // [n_types][d_embed], added to each embedding; may be absent
    int n_types, widest;     // widest: columns of rows between layers and results
    Matrix embed_proj;       // (n_embd, d_embed); absent: both are equal
    HeadStep head;           // in masked language models: dense is (d_embed, n_embd)
    Matrix output;           // (vocab_size, d_embed), or the embedding if they are tied; absent:
                             // the model gives hidden states and no logits
    struct Readout *vector, *classes;  // load/readout.h: from hidden states to results; or NULL
    int most_read;           // tokens of a text for either; longer ones are cut
    LayerEmbed layer_embed;
    Layer *layers;           // [n_layers]
    // Layers that guess next tokens, a model of their own, which borrows the rest; or NULL. Its
    // embed_proj, (n_embd, 2 n_embd), reads [embedding; hidden_norm of the text's hidden state].
    struct heads_model *guess;
    Norm hidden_norm;        // [n_embd]
    size_t weight_bytes;     // tensor bytes that one generated token reads: only chosen experts,
                             // and no embedding that is only looked up
} Model;

// Reads a checkpoint's knobs and tensors. Every message names the knob or tensor, what was expected
// and what was found. After success no product of a layer's dimensions overflows an int.
int model_parse(Model *model, const uint8_t *bytes, size_t size, Error *err);
// Maps a file and parses it. model_close frees what either of the two made, and unmaps.
int model_open(Model *model, const char *path, Error *err);
void model_close(Model *model);

static inline bool has_ffn(const Layer *l) { return l->ffn.d_ff || l->experts.n; }

// Width of a query head's mix of values.
static inline int mixed_dim(const Attention *a) {
    return a->latent.rank ? a->latent.rank : a->head_dim;
}

#endif
