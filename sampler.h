// sampler.c: logits -> one id.
#ifndef SAMPLER_H
#define SAMPLER_H

#include "kernels/kernels.h"
#include "model.h"

typedef heads_sampler_options SamplerOptions;  // here with the defaults filled in
typedef struct Sampler Sampler;

enum { DEFAULT_REPEAT_LAST = 64 };  // of ./run and of the library

// kernels: for exp; all give the same bits. Errors: an option out of range, no memory.
Sampler *sampler_new(const Kernels *kernels, int vocab_size, const SamplerOptions *options,
                     Error *err);
void sampler_free(Sampler *s);
void sampler_accept(Sampler *s, int id);
// An id from logits[vocab_size]; -1: there is none to pick.
int sampler_pick(Sampler *s, const float *logits);

#endif
