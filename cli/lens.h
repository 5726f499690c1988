// lens.c: --lens, what each layer would say (heads_lens_row).
#ifndef CLI_LENS_H
#define CLI_LENS_H

#include "cli/input.h"
#include "cli/open.h"

// Runs the ids in s, and writes FILE: of *.f32 the last token's logits after each layer, float32
// [n_layers][vocab_size]; of *.json the likeliest tokens after each layer, for every token.
void write_lens(const Program *p, heads_sequence *s, Ids ids);

#endif
