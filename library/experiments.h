// What experiments share: patching (patch.c), attribution (attribute.c), one head (dissect.c), and
// what is written down of them (experiment.c).
#ifndef EXPERIMENTS_H
#define EXPERIMENTS_H

#include "engine.h"

typedef struct {  // of how a model runs
    const char *off;
    const heads_steer *steers;  // [n_steers]
    int n_steers;
} Changes;

// ---- measure.c ----

// The metric of logits[n], against those of the clean text if it is KL.
double metric_of(heads_metric metric, const float *clean, const float *logits, int n, int answer,
               int against);
// Fails for encoders, encoder-decoders and models without logits. what: the experiment's name.
int check_continues(const Model *m, const char *what, Error *err);
// Fails if these are no ids; against may be `least` and more.
int check_answer(const Model *m, int answer, int against, int least, Error *err);
// A workspace beside threads_of, whose adapter its sequences have, if it is the model's.
Workspace *experiment_workspace(const Model *m, const WorkspaceOptions *o, Error *err);
// Changes an empty sequence, whose text will have n tokens.
int change_text(Sequence *s, const Changes *c, int n, Error *err);

// ---- kept.c ----

struct KeptText {
    Workspace *w;
    Sequence *s;
    float *streams;  // [n_layers + 1][context][n_embd]: what came into layers, and behind the last
    int from;        // tokens that the last run did not have to run
    char *off;       // of the sequence's Changes; NULL: it has not run
    bool steered;
    void (*mixed)(void *context, const heads_mixed *mixed);  // sees the next run; or NULL
    void *context;
};
typedef struct KeptText KeptText;

// A text for an experiment on n tokens, which threads_of kept from the last one, or a new one. Its
// workspace runs them in one pass.
KeptText *kept_take(const Model *m, const WorkspaceOptions *o, int n, Error *err);
// Ends the experiment; t may be NULL.
void kept_give(KeptText *t, const WorkspaceOptions *o, bool failed);
// Runs what is new of ids[n]; returns the logits after the last, or hidden states where the model
// has none, or NULL.
const float *kept_run(KeptText *t, const int *ids, int n, const Changes *c, Error *err);
const float *kept_stream(const KeptText *t, int layer, int pos);  // [n_embd]

// ---- patch.c ----

int heads_of_layer(const Layer *l);  // as heads_mixed numbers them

// ---- attribute.c ----

// heads_attribute of a changed run; what steering adds counts as the layer's network's.
int attribute_text(const Model *m, const WorkspaceOptions *options, const int *ids, int n,
                   int answer, int against, const Changes *changes, float *heads, float *ffn,
                   heads_parts *parts, Error *err);
// Sets weights[n_in] to row r of a matrix, with what the adapter of w adds to it. Behind them
// is room to work in, row_room() floats together.
void unpack_adapted_row(const Workspace *w, float *weights, const Matrix *matrix, int r);
size_t row_room(const Workspace *w, size_t n_in);
// Sets parts[n_heads + 1][n_out] to what each head's part of mixed[n_heads][width]
// adds to o's result, and behind them to its bias. weights: [row_room(n_in)], to work in.
void split_output(const Workspace *w, const Matrix *o, const float *mixed, int n_heads, int width,
                  float *weights, double *parts);

#endif
