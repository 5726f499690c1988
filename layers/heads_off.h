// heads_off.c: a sequence's list of the heads that are off has a flag for each head,
// [kv.n_layers][most_heads].
#ifndef HEADS_OFF_H
#define HEADS_OFF_H

#include "engine.h"

// The most heads that any attention of the model has.
size_t most_heads(const Model *m);
// Gives a new sequence the list of another. Errors: no memory.
int copy_heads_off(Sequence *to, const Sequence *from, Error *err);

#endif
