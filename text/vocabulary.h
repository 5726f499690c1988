// A tokenizer's data: its tokens, and the tables of docs/format.md, "The tokenizer".
#ifndef VOCABULARY_H
#define VOCABULARY_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/unigram.h"

typedef heads_tokenizer Tokenizer;

enum { KIND_PLAIN, KIND_SPECIAL, KIND_BYTE, N_KINDS };  // of a token
// U+2581 in a token's text decodes to itself, to a space, or in the first token to nothing.
enum { MARKS_STAY, MARKS_TO_SPACES, FIRST_MARKS_VANISH };
enum { BYTE_BPE, CHARACTER_BPE, UNIGRAM, WORDPIECE, N_MODELS };  // how a piece becomes tokens

typedef struct {
    int n;
    const int32_t *begin;   // [n + 1]: token i is text[begin[i]..begin[i + 1])
    const uint8_t *text;    // decoded
    const uint8_t *kinds;   // [n]
} Tokens;

struct heads_tokenizer {
    Tokens tokens, target;  // that the model reads, and that it writes; most often the same
    const int32_t *bytes;   // [256]: the token of a byte, or -1
    int model;              // BYTE_BPE ..
    bool by_chars;          // the model reads characters, not bytes
    Ints chars, char_ids;   // of CHARACTER_BPE: characters, ascending, and their tokens
    Merges merges;          // of BPE
    Ints words;             // tokens looked up by text, in whose order they are; n 0: none
    size_t longest_word;    // bytes of the longest of them
    int longest_cut;        // characters; WordPiece makes a longer word unk
    Unigram unigram;
    int unk;                // the token of unknown characters; -1: they vanish
    bool fuse_unk;          // one for several in a row
    Added raw, normalized;  // added tokens to find before and after the normalizer
    Normalizer normalizer;
    Ints splits;            // the pre-tokenizer's steps
    Ints prefix, suffix, eos;
    Ints between;           // tokens between two texts that are read as one
    int second_type;        // type of the second's tokens, 0 or 1; -1: two cannot be read as one
    int mask;               // the mask token, -1: none
    int marks;              // MARKS_STAY ..
    int strip;              // spaces to drop at the beginning of a decoded text
    char description[400];
};

// Reads tokenizer.*; every number is checked before it is used.
int load_vocabulary(Tokenizer *t, Reader *r);
// The text of a token, [*len]; *len 0: an unknown id.
const uint8_t *token_text(const Tokens *tokens, int id, size_t *len);
// The token of `words` with that text, or -1.
int find_word(const Tokenizer *t, const uint8_t *text, size_t len);

#endif
