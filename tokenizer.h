// tokenizer.c: text <-> ids.
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "checkpoint.h"

typedef heads_tokenizer Tokenizer;

// Reads the checkpoint's tokenizer.* metadata; borrows it. NULL: missing or inconsistent.
Tokenizer *tokenizer_new(const Checkpoint *file, Error *err);
void tokenizer_free(Tokenizer *tokenizer);
// Whether the checkpoint has a tokenizer at all.
bool has_tokenizer(const Checkpoint *file);
// The ids of text[0..len), which need not be valid UTF-8 (a bad byte is replaced by U+FFFD, as
// lossy decoders do) and may hold zero bytes. add_special puts the ids of the checkpoint's
// post-processor around (BOS ..). *ids is malloc'd, the caller frees it. Returns the count, or -1
// (no memory). Work is near-linear in len.
long tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t len, bool add_special,
                      int **ids, Error *err);
// Appends the bytes of one token to what decoding the ids so far gave. A token's bytes may end
// inside a UTF-8 character: the Decoder holds them back until the rest comes, so what is handed
// out is always valid UTF-8 (bytes that can never become valid are replaced by U+FFFD). out is
// borrowed until the next call. skip_special leaves out special tokens.
typedef heads_decoder Decoder;
Decoder *decoder_new(const Tokenizer *tokenizer, bool skip_special, Error *err);
void decoder_free(Decoder *decoder);
int decoder_push(Decoder *decoder, int id, const char **out, size_t *len, Error *err);
// What is still held back, as the end of the text.
int decoder_finish(Decoder *decoder, const char **out, size_t *len, Error *err);
// Cuts ids that tokenizer_encode gave with add_special to `most`, what is put after a text kept.
// Returns how many are left.
long tokenizer_cut(const Tokenizer *tokenizer, int *ids, long n, long most);
// The token that stands for a word left out in a masked language model, -1: there is none; its
// text in a prompt, and whether it takes white space before it along.
int tokenizer_mask(const Tokenizer *tokenizer, const char **text, size_t *len, bool *strips);
bool tokenizer_is_eos(const Tokenizer *tokenizer, int id);
bool tokenizer_is_special(const Tokenizer *tokenizer, int id);  // not for people who read
// What a token stands for in decoded text, *len bytes, borrowed, which need not be UTF-8; of an id
// that the tokenizer does not know, none.
const char *tokenizer_text(const Tokenizer *tokenizer, int id, size_t *len);
// The same of a token that is written, where those are others than what is read.
const char *tokenizer_written(const Tokenizer *tokenizer, int id, size_t *len);
bool tokenizer_marks_spaces(const Tokenizer *tokenizer);  // by U+2581 in these texts
// A sentence such as "byte-level BPE, 49152 tokens, pre-tokenizer digits + gpt2, prefix 1, EOS 2",
// owned by the tokenizer.
const char *tokenizer_describe(const Tokenizer *tokenizer);

#endif
