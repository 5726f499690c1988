// What experiments share: patching (patch.c), attribution (attribute.c), one head (dissect.c).
#ifndef EXPERIMENTS_H
#define EXPERIMENTS_H

#include "engine.h"

// attribute.c. Sets parts[n_heads + 1][n_out] to what each head's part of mixed[n_heads][width]
// adds to o's result, and behind them to its bias. weights: [n_in], to work in.
void split_output(const Workspace *w, const Matrix *o, const float *mixed, int n_heads, int width,
                  float *weights, double *parts);

#endif
