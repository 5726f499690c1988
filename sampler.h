// sampler.c: logits -> one id.
#ifndef SAMPLER_H
#define SAMPLER_H

#include "kernels/kernels.h"
#include "model.h"

typedef heads_sampler_options SamplerOptions;  // here with the defaults filled in
typedef heads_sampler Sampler;

enum { DEFAULT_REPEAT_LAST = 64 };  // of ./run and of the library

// kernels: for exp; all give the same bits. rules: the model's, which must outlive the sampler;
// NULL: none. Errors: an option out of range, no memory.
Sampler *sampler_new(const Kernels *kernels, int vocab_size, const SamplerOptions *options,
                     const Rules *rules, Error *err);

#endif
