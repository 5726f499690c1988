// prompt_cache.c: --prompt-cache, a session saved in a file for the next call.
#ifndef CLI_PROMPT_CACHE_H
#define CLI_PROMPT_CACHE_H

#include "input.h"
#include "open.h"

// Loads the saved session, and rewinds it to the tokens that it has in common with the prompt, but
// for the prompt's last token, whose logits are wanted. Empty without the option or the file. With
// an encoder, the prompt becomes the source, and *prompt the beginning of the text.
heads_sequence *open_prompt_cache(const Program *p, Ids *prompt);
// Saves the session, unless the file is only to be read.
void save_prompt_cache(const Options *options, const heads_sequence *s);

#endif
