// speculate.c: speculative decoding. Guesses at the next tokens run together in one pass; a guess
// is kept only if the sampler picks the same token, so the text does not depend on guesses.
#ifndef CLI_SPECULATE_H
#define CLI_SPECULATE_H

#include "open.h"

enum { MAX_DRAFT = 32, DEFAULT_GUESSES = 3 };

typedef struct Drafter Drafter;

int guesses_of_pass(const Program *p);  // by the model's own layers, as --guess says; 0: none
// Has them guess in p's workspace; returns the same. Exits where the model has no such layers.
int open_guesses(const Program *p);

// A drafter for --guess, --lookup or -md; NULL: none of them guesses. It comes before p's workspace
// has sequences, and a draft model shares its threads. Exits if that model's vocabulary is another,
// or if it cannot be opened.
Drafter *drafter_new(const Program *p);
void drafter_free(Drafter *d);
// The logits after text[0..n), of which the sequence holds all but the last token, or ran that one
// too as a guess. most: how many tokens may still be generated. *ran: whether there was a pass.
const float *run_guessing(Drafter *d, heads_sequence *s, const int *text, int n, int most,
                          bool *ran, heads_error *err);
// At the end of a text: removes unused guesses, so that the sequence holds text[0..n).
void end_guessing(Drafter *d, heads_sequence *s, const int *text, int n);
long drafted_tokens(const Drafter *d);
long accepted_tokens(const Drafter *d);

#endif
