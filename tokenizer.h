// tokenizer.c: text -> ids, and tokens' texts. heads.h declares the calls of the library.
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "load/checkpoint.h"

typedef heads_tokenizer Tokenizer;

// Reads the checkpoint's tokenizer.* metadata, and borrows it. Errors: missing or inconsistent.
Tokenizer *tokenizer_new(const Checkpoint *file, Error *err);
void tokenizer_free(Tokenizer *tokenizer);
// Whether the checkpoint has any such metadata.
bool has_tokenizer(const Checkpoint *file);
typedef heads_decoder Decoder;  // text/decoder.c

// Cuts ids[n], which were made with add_special, to at most `most`; returns how many are left. The
// special tokens at the end are kept.
long tokenizer_cut(const Tokenizer *tokenizer, int *ids, long n, long most);
typedef struct {
    const char *text;  // [len]
    size_t len;
} Passage;

// The ids of two texts as one, at most `most` of them; *second as in heads_pair_ids (text/pairs.c).
long tokenizer_pair(const Tokenizer *tokenizer, const Passage texts[2], long most, int **ids,
                    int *second, Error *err);
// The id of the mask token, -1: none; *text [*len]: how a prompt spells it; *strips: white space
// before it is dropped.
int tokenizer_mask(const Tokenizer *tokenizer, const char **text, size_t *len, bool *strips);
bool tokenizer_is_special(const Tokenizer *tokenizer, int id);  // such as BOS
// The text of a token, [*len], borrowed; it need not be UTF-8. *len 0: an unknown id.
const char *tokenizer_text(const Tokenizer *tokenizer, int id, size_t *len);
// The same for an id that the model writes, if these are others than those that it reads.
const char *tokenizer_written(const Tokenizer *tokenizer, int id, size_t *len);
bool tokenizer_marks_spaces(const Tokenizer *tokenizer);  // spaces are U+2581 in these texts
// A sentence such as "byte-level BPE, 49152 tokens, pre-tokenizer digits + gpt2, prefix 1, EOS 2",
// owned by the tokenizer.
const char *tokenizer_describe(const Tokenizer *tokenizer);

#endif
