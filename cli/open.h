// open.c: opens what verbs work with: a model, its tokenizer, a workspace.
#ifndef CLI_OPEN_H
#define CLI_OPEN_H

#include "options.h"
#include "steer.h"

typedef struct {
    const Options *o;
    const char *path;
    heads_model *model;
    heads_shape shape;
    ModelFacts facts;
    heads_tokenizer *tokenizer;  // NULL: the checkpoint has none, or the verb needs none
    heads_workspace *w;          // NULL until open_workspace
    Steers steers;               // of --steer
    heads_adapter *adapter;      // --adapter, which all sequences of w have; NULL: none
    float adapter_scale;
} Program;

typedef enum { NO_TOKENIZER, WITH_TOKENIZER } Needs;

// On failure all of these exit with a sentence.

// Opens the model, which may be BUNDLED, and the tokenizer if it has one. Refuses options that mean
// nothing for its kind of model, and a file without weights if the verb runs it.
void open_program(Program *p, const Options *options, const char *path, Needs needs);
// Makes p->w by the options, for up to logit_rows rows of logits (--hidden: of hidden states).
void open_workspace(Program *p, int logit_rows);
// Options of what reads texts as a whole. With --adapter it is by p->w, which is made here.
heads_workspace_options reading_options(Program *p);
// FILE or FILE:SCALE; without the number the scale is 1. NULL: *err says why.
heads_adapter *open_adapter(const heads_model *model, const char *given, float *scale,
                            heads_error *err);
heads_sequence *open_sequence(heads_workspace *w, bool shared);
heads_sequence *open_text(const Program *p, bool shared);  // by --off and --steer
void close_program(Program *p);

// Bytes that the last pass read for one token: weights, and the sequence's cache.
double pass_bytes(const Program *p, const heads_sequence *s);

void need_weights(const heads_model *model, const char *path);
// The name of the kernels to use, and why these.
const char *choose_kernels(const Options *options, const char **why);
bool no_memory(const heads_error *err);  // that was why
// Advice for a failed allocation: which option asks for less; "": none.
const char *memory_hint(const heads_error *err);
// By the options, or else by the checkpoint: positions; the most tokens to generate, for an
// encoder-decoder after the first n_begin of its text; how to pick tokens, of an answer or not.
int wanted_context(const Program *p);
int tokens_to_generate(const Program *p, int n_begin);
heads_sampler_options sampling_options(const Program *p, bool answer);

#endif
