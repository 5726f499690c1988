// What generation_config.json forbids or forces in a text, before the sampler picks.
#ifndef SAMPLER_RULES_H
#define SAMPLER_RULES_H

#include "model.h"

// Sets the logits of tokens that may not follow text[0..n_text) to minus infinity. most: the most
// tokens that the text will have, 0: any number; a rule may force the last of them.
void apply_rules(const Rules *rules, float *logits, int vocab_size, const int *text, int n_text,
                 int most);

#endif
