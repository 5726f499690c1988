// prefixes.c: which prompts begin alike, so that what they share is run once.
#ifndef CLI_PREFIXES_H
#define CLI_PREFIXES_H

#include "session.h"

enum { MIN_SHARED = 32 };  // tokens that are worth a sequence of their own

typedef struct Prefix {
    struct Prefix *parent;  // a shorter one that it begins with, or NULL
    int depth;              // 1 where that is NULL
    const int *tokens;      // [length], of one of the prompts
    int length;
    int shortest;           // of its prompts
    long first;             // the first of the prompts, in the order that they were given
    int users;              // prompts and prefixes that have not forked it yet
    Sequence *sequence;     // the caller's
    unsigned step;          // likewise
    struct Prefix *next;    // of all
} Prefix;

typedef struct {
    const int *tokens;
    int n;          // at least 1
    long index;     // where it stands among all
    Prefix *prefix; // the longest that it begins with, shorter than it; NULL: none
} Prompt;

// Puts the prefixes of n prompts before those in `all`, and sorts the prompts: those that share one
// follow each other, otherwise as they were given. Exits if there is no memory.
void find_prefixes(Prompt *prompts, long n, Prefix **all);
void free_prefixes(Prefix *all);  // and their sequences

#endif
