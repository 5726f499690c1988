// speculate.c: guesses at the next tokens, so that several can run in one pass. A guess is kept
// only if it is what the sampler picks, so the text does not depend on it.
#ifndef CLI_SPECULATE_H
#define CLI_SPECULATE_H

#include "options.h"

enum { MAX_DRAFT = 32 };

typedef struct Drafter Drafter;

// Guesses by --lookup or -md, as the options say; NULL: they ask for neither. w: where the text
// itself runs; a draft model shares its threads. Exits if the draft model does not fit.
Drafter *drafter_new(const Options *options, const Model *model, Workspace *w);
void drafter_free(Drafter *d);
// Guesses of what follows text[0..n), at most `most`; returns how many. None while that did not
// pay lately.
int draft(Drafter *d, const int *text, int n, int most, int *guesses);
// How it went: of `n` guesses that ran with a token, `right` were; guessing and running took
// `time` seconds.
void draft_learn(Drafter *d, int n, int right, double time);
long drafted_tokens(const Drafter *d);
long accepted_tokens(const Drafter *d);

#endif
