// Unigram: cuts a piece into the tokens with the largest sum of scores.
#ifndef UNIGRAM_H
#define UNIGRAM_H

#include "load/metadata.h"

typedef struct {
    Ints ids;               // the tokens, ascending by text; n 0: the model is no Unigram
    const uint8_t *scores;  // [ids.n + 1] doubles: of each token, then of an unknown character;
                            // NaN: unigram_cut ignores the token, only unigram_find gives it
    bool single;            // sums are floats, not doubles
    const int32_t *begin;   // token i is text[begin[i]..begin[i + 1])
    const uint8_t *text;
    size_t first[257];      // ids.v[first[b]..first[b + 1]): tokens whose first byte is b
} Unigram;

typedef struct {
    double score;  // of the best cut of the text before this byte
    int32_t id;    // the token that begins here in the best cut of the whole text
    int32_t to;    // where that token ends
} UnigramNode;

// Reads tokenizer.unigram. Token i is text[begin[i] .. begin[i + 1]), i < n_tokens.
int load_unigram(Unigram *u, Reader *r, int n_tokens, const int32_t *begin, const uint8_t *text);
// Cuts text[0..len), UTF-8, len > 0, into nodes[len + 1]: from node 0, follow `to`. An unknown
// character becomes `unk`.
void unigram_cut(const Unigram *u, const uint8_t *text, size_t len, int unk, UnigramNode *nodes);
// The token with that text, or -1.
int unigram_find(const Unigram *u, const uint8_t *text, size_t len);

#endif
