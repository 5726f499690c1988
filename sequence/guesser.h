#ifndef GUESSER_H
#define GUESSER_H

#include "engine.h"

// What guesses for a workspace's sequences, and what it does with each one's rows
// (sequence/guess.c).
struct Guesser {
    Workspace *w;  // of Model.guess, with the threads of the text's workspace
    int most;      // guesses of a pass
    void (*keep_hidden)(Workspace *w);
    void (*rewind)(GuessRows *g, int n);
    GuessRows *(*fork)(const GuessRows *g, int n);
    void (*free)(GuessRows *g);
    size_t (*save)(const GuessRows *g, void **bytes);  // returns how many; 0: none, or no memory
    // Of a text of `length` tokens; NULL: they are no such bytes.
    GuessRows *(*load)(Workspace *w, int length, const void *bytes, size_t size);
};

#endif
