// languages.c: encoder-decoders: their sources, and the languages of sources and texts.
#ifndef CLI_LANGUAGES_H
#define CLI_LANGUAGES_H

#include "input.h"
#include "open.h"

// Puts FROM of --lang FROM:TO into a source.
void set_source_language(const Program *p, Ids prompt);
// The first tokens of a text that the decoder writes, by the checkpoint and --lang.
Ids first_tokens(const Program *p);
// Has the encoder read the prompt as the source of s, unless it has, and returns the beginning of
// the text in its place: --target, or first_tokens. Without an encoder it returns the prompt.
Ids read_prompt(const Program *p, heads_sequence *s, Ids prompt);
// The most tokens to generate after the first n_begin, by -n or the checkpoint, as far as they fit.
// Sets sampling->most.
int target_length(const Program *p, int n_begin, heads_sampler_options *sampling);

#endif
