// adapted.c: who has an adapter. It goes with the last that does.
#ifndef ADAPTED_H
#define ADAPTED_H

#include "engine.h"

// *to = adapter and scale; what was there is given back.
void set_adapted(Adapted *to, heads_adapter *adapter, float scale);
static inline bool same_adapted(const Adapted *a, const Adapted *b) {
    return a->adapter == b->adapter && (!a->adapter || a->scale == b->scale);
}

#endif
