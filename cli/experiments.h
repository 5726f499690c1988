// What --patch, --attribute (experiments.c) and --parts (parts.c) share.
#ifndef CLI_EXPERIMENTS_H
#define CLI_EXPERIMENTS_H

#include "cli/prompt.h"

typedef struct {
    Program p;
    Ids ids, corrupted;  // corrupted: empty, unless patched
    int answer, against; // -1: none
    int n_layers, n_heads;
} Experiment;

// Opens the model and reads the prompt. what: the option, for a refusal.
void open_experiment(Experiment *e, const Options *o, const char *what);
void close_experiment(Experiment *e);

// Append JSON: a member `name`, a list of tokens {"id", "text"}; floats of `dims` lengths, nested,
// of which what follows is returned.
void add_tokens(Text *out, const Program *p, const char *name, Ids ids);
const float *add_array(Text *out, const float *x, const int *lengths, int dims);
// Ends the object, writes it to stdout and frees it.
void print_json(Text *out);

#endif
