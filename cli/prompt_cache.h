// prompt_cache.c: --prompt-cache, a sequence that is kept in a file from one call to the next.
#ifndef CLI_PROMPT_CACHE_H
#define CLI_PROMPT_CACHE_H

#include "input.h"

// A sequence of w that holds as much of the prompt as the file has, but for its last token, whose
// logits are wanted; sequence_length says how much. Empty without the option or the file. Of a
// model with an encoder it has read the prompt, in whose place stands what the text begins with.
Sequence *open_prompt_cache(const Options *options, Workspace *w, const Tokenizer *tokenizer,
                            Ids *prompt);
// Saves it, unless the file is only to be read.
void save_prompt_cache(const Options *options, const Sequence *s);

#endif
