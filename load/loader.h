// What the loader's files share: knobs.c reads numbers, tensors.c weights,
// readout.c both of what follows the last norm; model.c calls them.
#ifndef LOADER_H
#define LOADER_H

#include "model.h"

enum { PRE_ATTN = 1, POST_ATTN = 2, PRE_FFN = 4, POST_FFN = 8, ALL_NORMS = 15 };  // layer.norms

typedef struct {  // a layer that is being read, and the knobs that only the loader needs
    Layer l;
    int norms;               // bits PRE_ATTN ..
    int renorm;              // Experts.renorm
    int act, gated;          // of ffn and experts
    int n_taps;              // of the layer's convolution, whichever mixer has it
    int beside, norm_first;  // of Mamba-2
    int ssm_heads, ssm_head_dim, ssm_groups, ssm_state;  // of Mamba and an RG-LRU
    int by_channel;          // DeltaNet.n_decays is k_dim
    float delta_eps;         // of the delta rule's norm; -1: model.norm_eps
    float ssm_eps;           // of Mamba-1's norms; -1: the same
} NewLayer;

typedef struct {
    Reader r;
    Error *err;
    Model *m;
    int has_logits;   // 1: the model turns hidden states into logits
    int n_guess;      // of the layers, the last: model.guess_layers
    NewLayer *new_layers;    // [n_layers]
    float latent_eps;
} Loader;

typedef struct {
    char text[80];
} Name;  // of a knob or a tensor

// ---- knobs.c ----

int load_model_knobs(Loader *x);
int load_layer_knobs(Loader *x);  // makes new_layers and layers

// ---- readout.c ----

int load_readouts(Loader *x);  // knobs and tensors

// ---- tensors.c ----

int load_tensors(Loader *x);
// A step of a readout, whose tensors begin with `name`; *width: of its input, then of its output.
int load_step(Loader *x, HeadStep *step, const char *name, int *width);
size_t matrix_bytes(Dtype dtype, size_t n_out, int n_in);  // of whole panels

#endif
