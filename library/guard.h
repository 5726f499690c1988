// How many tokens to guess, so that guessing does not cost more than it saves: whoever guesses, and
// however. The costs are measured where they arise.
#ifndef GUARD_H
#define GUARD_H

#include <stdbool.h>

enum { MAX_SHARES = 32 };

typedef struct {     // seconds, 0: not measured yet
    double pass;     // of a pass without guesses
    double each;     // that one guess adds to it, with what it took to make it
    int passes;      // since the first
} GuessCost;

// A text's guesses so far. All zero at its beginning.
typedef struct {
    float share[MAX_SHARES];  // of the guesses at a place behind right ones: those that are right
    int trial;                // passes with guesses, still to come, that measure anew
    int pause, next_pause;    // passes without guesses, still to come; of the next pause
    bool begun;               // it tries, or guesses
} Guard;

// To be called before each pass. Whether it should have no guesses at all, so that what it costs is
// measured again.
bool guard_rests(GuessCost *cost);
// How many guesses the next pass should have, at most `most`. tokens: how many tokens a pass gives
// without any, of all its texts. To be called once a pass.
int guard_most(Guard *g, const GuessCost *cost, int tokens, int most);
// The last pass had n guesses of this text, n > 0, of which the first `right` were right.
void guard_learn(Guard *g, int n, int right);
// A pass took so long, with so many guesses in all.
void guard_measure(GuessCost *cost, int n, double time);

#endif
