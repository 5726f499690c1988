// token_text.c: a token's text as people read it, and the tokens that logits make likeliest.
#ifndef CLI_TOKEN_TEXT_H
#define CLI_TOKEN_TEXT_H

#include "cli/input.h"
#include "cli/open.h"

// Appends the text of a token as a JSON string: bytes that are no character in hexadecimal, in
// angle brackets; a token without a text as its id. written: the id is of what the model writes,
// which may differ from what it reads.
void add_token_text(Text *out, const Program *p, int id, bool written);
// Appends [{"id", "text", "probability"}, ..] for the n likeliest tokens.
void add_likeliest(Text *out, const Program *p, const heads_likely *likeliest, int n);

#endif
