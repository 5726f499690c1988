// From a prompt's ids to a printed continuation. --chat generates with these calls too, and so does
// --heads of an encoder-decoder.
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include "input.h"
#include "open.h"
#include "speculate.h"

typedef struct {
    const Program *p;
    heads_sequence *sequence;
    heads_sampler *sampler;
    heads_sampler_options sampling;
    heads_decoder *decoder;      // NULL: ids are printed
    Drafter *drafter;            // NULL: there are no guesses
    void (*print)(void *to, const char *text, size_t len);  // NULL: to stdout
    void *to;
    int *text;                   // [context + 1]: the prompt, then the generated tokens
    int n_text, n_prompt;        // tokens of both; of the prompt
    int n_generate;              // most tokens to generate
    int answer_end;              // another token that ends the text, besides EOS; -1: none
    bool echoes, silent;         // the text begins with its prompt; nothing is printed now
    bool closed;                 // the reader of stdout has gone
    bool ended_line;             // the last character on stdout is a newline
    long n_printed;              // ids printed so far
    // For the closing line, sums over all texts:
    long prompt, reused;         // prompt tokens that ran, and that the cache had already
    long generated, stepped;     // tokens generated, and passes that they took
    double prompt_seconds, step_seconds, step_bytes;  // step_bytes: read by these passes
    const char *stop;            // why the text ended
} Generation;

// ---- generation.c ----

// Opens p's workspace, and in it all that one text needs; returns the ids of its prompt, owned.
Ids begin_generation(Generation *g, Program *p);
void end_generation(Generation *g, Program *p, Ids ids);  // saves the prompt cache, frees all
// Opens what texts need in p's workspace, except for a sequence.
void generation_open(Generation *g, const Program *p);
// Begins a text: a sampler that starts from the seed, and a decoder.
void start_text(Generation *g);
void generation_close(Generation *g);

// ---- generate.c ----

// Runs the ids that the sequence does not hold yet, until Ctrl-C. *logits: those after the last id;
// NULL: it was interrupted. -1: an error.
int prefill(Generation *g, Ids ids, const float **logits, heads_error *err);
// Prefills, then generates and prints tokens until g->stop says why to stop. -1: an error.
int generate_text(Generation *g, Ids ids, heads_error *err);
int generate(Program *p);  // the verb; closes p

// ---- closing.c ----

void closing_line(const Generation *g);

#endif
