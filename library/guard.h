// How many tokens to guess, so that guessing does not cost more than it saves: whoever guesses, and
// however. The costs are measured where they arise.
#ifndef GUARD_H
#define GUARD_H

#include <stdbool.h>

#include "model.h"

enum { MAX_SHARES = 32 };

typedef struct {     // of busy_time(), 0: not measured yet
    double pass;     // of a pass without guesses
    double each;     // that one guess adds to it, with what it took to make it
    double behind;   // that it takes a draft model to read a token of a text it has fallen behind
    int passes;      // since the first
    int samples;     // of `each`
    double before;   // `each`, in passes, as long as there is no sample; 0: nobody knows
} GuessCost;

// A text's guesses so far. All zero at its beginning, but for what texts before it still owe.
typedef struct {
    float share[MAX_SHARES];  // of the guesses at a place behind right ones: those that are right
    int known;                // places that this trial has seen
    int trial;                // passes with guesses, still to come, that measure anew
    int pause;                // passes without guesses, still to come
    bool begun, tried;        // it tries, or guesses; it has tried before
    // Tokens that guessing has won, less those that it cost, with an allowance for each pass.
    double spare;
} Guard;

// What a guess by the draft model adds to a pass of the model, in passes, as their weights say it.
double draft_price(const Model *draft, const Model *model);
// To be called before each pass. Whether it should have no guesses at all, so that what it costs is
// measured again.
bool guard_rests(GuessCost *cost);
// How many guesses the next pass should have, at most `most`. tokens: how many tokens a pass gives
// without any, of all its texts. behind: tokens that a draft model has not read. To be called once
// a pass.
int guard_most(Guard *g, const GuessCost *cost, int tokens, int behind, int most);
// The last pass had n guesses of this text, n > 0, of which the first `right` were right. again:
// how many tokens run again for it, which is not measured; each costs a guess at most.
void guard_learn(Guard *g, const GuessCost *cost, int tokens, int n, int right, int again);
// A pass took so long, with so many guesses in all, for which a draft model read `behind` tokens.
void guard_measure(GuessCost *cost, int n, int behind, double time);

#endif
