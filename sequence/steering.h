// Steering vectors: what a sequence adds to the residual stream after layers.
#ifndef STEERING_H
#define STEERING_H

#include <stdatomic.h>

#include "engine.h"

struct Steering {
    atomic_int users;
    int n, n_embd;    // n: layers that have a vector
    int *layers;      // [n]
    float vectors[];  // [n][n_embd], times their scales
};

// Adds to what *steering has (NULL: nothing) as heads_sequence_steer says. *steering is then
// another object, since those never change: sequences and requests share them.
int steer(const Model *m, Steering **steering, int layer, const float *vector, float scale,
          Error *err);
// Gives *to what another has, in the place of its own.
void share_steering(Steering **to, Steering *from);
void release_steering(Steering *steering);
// 0: both add the same; else the order of the two.
int compare_steering(const Steering *a, const Steering *b);
// The vector to be added after a layer, [n_embd], or NULL.
const float *steering_after(const Steering *steering, int layer);

#endif
