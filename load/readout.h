// What becomes of a text's hidden states besides logits: its vector, or a number for each class.
#ifndef LOAD_READOUT_H
#define LOAD_READOUT_H

#include "model.h"

enum {
    POOL_NONE, POOL_MEAN, POOL_FIRST, POOL_LAST, POOL_MAX, POOL_WEIGHTED, POOL_SQRT, N_POOLINGS,
    VECTOR_EACH = N_POOLINGS  // of model.pooling: POOL_NONE, where 0 means that it does not say
};
enum { SCORES_RAW, SCORES_SOFTMAX, SCORES_SIGMOID, N_SCORES };
enum { MAX_STEPS = 8, MAX_LABELS = 1 << 16 };

typedef struct Readout {
    int pooling;   // POOL_*: rows become one; POOL_NONE: a row for each token
    int after;     // steps before the pooling
    int n_steps;
    HeadStep steps[MAX_STEPS];
    int width;     // of the result: the first numbers that the last step gives, or all
    bool unit;     // the result is divided by its length
    int pad;       // POOL_LAST: such tokens at a text's end do not count; -1: all do
    int eos;       // of encoder-decoders: the last such token of a text counts; else -1
    int scores;    // SCORES_*, what becomes of numbers for classes
    int n_labels;  // names of the classes; 0: the result is a vector
    const char *labels;           // label i is labels[label_begin[i] .. label_begin[i + 1])
    const int32_t *label_begin;
} Readout;

#endif
