// sampler.c: logits -> one id.
#ifndef SAMPLER_H
#define SAMPLER_H

#include "kernels/kernels.h"
#include "model.h"

typedef heads_sampler_options SamplerOptions;  // but no 0 stands for a default here
typedef heads_sampler Sampler;

enum { DEFAULT_REPEAT_LAST = 64 };  // of ./run and of the library

// kernels: whose exp it uses; all give the same bits. Errors: an option out of range, no memory.
// rules: of the model, which outlive it; NULL: there are none.
Sampler *sampler_new(const Kernels *kernels, int vocab_size, const SamplerOptions *options,
                     const Rules *rules, Error *err);
void sampler_free(Sampler *sampler);
// Tells the sampler of a token of the text, prompt or generated.
void sampler_accept(Sampler *sampler, int id);
// Picks an id from logits[0..vocab_size), which it leaves alone. Order: repetition penalty, the
// model's rules, top-k, temperature, top-p, min-p, as transformers' generate has them. Greedy takes
// the lowest id of equal logits.
int sampler_pick(Sampler *sampler, const float *logits);
// The natural logarithm of the probability that softmax(logits) gives to id.
double log_probability(const float *logits, int vocab_size, int id);

#endif
