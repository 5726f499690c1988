// The tokens of a recurrence, for one head whose state S is [n_k][n_v].
#ifndef STEPS_H
#define STEPS_H

#include "kernels.h"

struct Steps {  // [n] tokens, each `stride` after the one before
    int n, n_k, n_v;
    const float *q, *k, *v;  // [n_k], [n_k], [n_v]
    size_t stride;
    const float *decay;      // a number, or one for each row of S
    size_t decay_stride;
    bool by_row;
    const float *step;       // a number
    size_t step_stride;
    float *out;              // [n_v]
    size_t out_stride;
};

// The same without the first t tokens.
static inline Steps steps_from(const Steps *all, int t) {
    Steps s = *all;
    s.n -= t;
    s.q += (size_t)t * s.stride;
    s.k += (size_t)t * s.stride;
    s.v += (size_t)t * s.stride;
    s.decay += (size_t)t * s.decay_stride;
    s.step += (size_t)t * s.step_stride;
    s.out += (size_t)t * s.out_stride;
    return s;
}

#endif
