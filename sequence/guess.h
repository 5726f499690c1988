// Guesses by the model's own layers (Model.guess), which run in a workspace of their own. For each
// position p of a text they have a row, of the hidden state at p and the token at p + 1, from which
// they say the token at p + 2. No logits of the text depend on them.
#ifndef GUESS_H
#define GUESS_H

#include "sequence/guesser.h"

enum { KEPT_ROWS = 64 };

// Rows of positions first.. of a text. Those whose hidden state is known, but that have not run,
// wait for the next guess. If too many wait, only the last of all rows are kept.
struct GuessRows {
    Sequence *rows;   // of the Guesser's workspace: row p is at position p - first
    int first;
    float *waiting;   // [KEPT_ROWS][n_embd], inputs of the rows after those: norms of hidden states
    int n_waiting;
};

void guesser_free(Guesser *g);

typedef struct {
    Sequence *sequence;  // of the text: it has run all tokens but the last
    int last;            // that token
    int most;            // guesses wanted, or fewer; 0: none
    int *guesses;        // [most]
    int n;               // guesses made; 0 before
} GuessJob;

// Guesses for several texts of a workspace in the same passes.
void guess_each(Workspace *w, GuessJob *jobs, int n_jobs);

#endif
