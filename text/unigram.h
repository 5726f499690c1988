// Unigram: the cut of a piece into tokens whose scores have the largest sum.
#ifndef UNIGRAM_H
#define UNIGRAM_H

#include "metadata.h"

typedef struct {
    Ints ids;               // the tokens, ascending by text; none: this is no Unigram
    const uint8_t *scores;  // [ids + 1] doubles: of each, and of an unknown character; NaN: the
                            // token is no piece, and only stands for a run of unknowns
    bool single;            // sums are float, not double
    const int32_t *begin;   // of all tokens
    const uint8_t *text;
    size_t first[257];      // ids of tokens whose first byte is b: first[b]..first[b + 1]
} Unigram;

typedef struct {
    double score;  // of the best cut of what lies before
    int32_t id;    // of the token that begins here in the best cut of all
    int32_t to;    // and where it ends
} UnigramNode;

// Reads tokenizer.unigram; `begin` and `text` are those of the n_tokens tokens.
int load_unigram(Unigram *u, Reader *r, int n_tokens, const int32_t *begin, const uint8_t *text);
// Cuts text[0..len), UTF-8, len > 0: fills the nodes from 0 on along the best cut; there is room
// for len + 1. An unknown character is `unk`.
void unigram_cut(const Unigram *u, const uint8_t *text, size_t len, int unk, UnigramNode *nodes);
// The token whose text that is, -1: none.
int unigram_find(const Unigram *u, const uint8_t *text, size_t len);

#endif
