// Added tokens, such as <|endoftext|>: they are found in a text before the rest of it is cut.
#ifndef ADDED_H
#define ADDED_H

#include "load/metadata.h"

enum { LSTRIP = 1, RSTRIP = 2, SINGLE_WORD = 4, AT_START = 8 };  // flags of an added token

typedef struct {  // sorted by their characters
    size_t n;
    const int32_t *begin;  // [n + 1]: token i is chars[begin[i]..begin[i + 1])
    const int32_t *chars, *ids;
    const uint8_t *flags;
    bool starts[256];  // whether a token begins with a character whose low byte is this
} Added;

// The search through a text. It starts with {.start_end = SIZE_MAX}, all else 0.
typedef struct {
    size_t start, stop;  // the found token and the white space that it strips; start >= stop: an
                         // earlier token has taken all of it
    int id;
    size_t next;         // where the search goes on
    size_t spaces_end;   // where the last white space stripped ends
    size_t start_end;    // where the last token with AT_START ends
} AddedSearch;

// Reads tokenizer.WHERE.*.
int load_added(Added *a, Reader *r, const char *where, int n_tokens);
// Finds the next added token in chars[0..n); false: there is none. As in `tokenizers`, a token is
// found even if it begins in the white space that the token before it strips.
bool next_added(const Added *a, const uint32_t *chars, size_t n, AddedSearch *s);

#endif
