// probs.c: --probs, the likeliest next tokens with their probabilities.
#ifndef CLI_PROBS_H
#define CLI_PROBS_H

#include "cli/open.h"

// Prints a line for the token at a position of the text: the id that follows it (-1: none), and the
// tokens that its logits make likeliest. False: stdout's reader has closed it.
bool show_probabilities(const Program *p, long position, const float *logits, int id);
// Does so for every position of the prompt, and generates nothing. Returns the exit status.
int prompt_probabilities(Program *p);

#endif
