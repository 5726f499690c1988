#ifndef HEAD_WATCH_H
#define HEAD_WATCH_H

#include "layers/attention_tiles.h"

// Sees how the weights of rows of a unit come about (library/dissect.c): before and after
// shape_scores the scores x[position] of the positions `seen`, by the thread that computes them.
struct HeadWatch {
    void (*see)(const HeadWatch *watch, const AttentionPass *p, const Unit *u, int r, Range seen,
                const float *x, bool shaped);
};

#endif
