// Cross-attention: a decoder's layer attends to the source that an encoder has read.
#ifndef CROSS_H
#define CROSS_H

#include "engine.h"

// The keys and values that layer i's cross-attention reads.
const KvLayer *kv_cross(const Workspace *w, int i);
// x += cross(norm(x)) or, with post_norm, x = norm(x + cross(x)), if layer i has cross-attention.
void attend_to_source(Workspace *w, int i, bool post_norm);
void cross_scratch(const Workspace *w, int i, Arena *a);

#endif
