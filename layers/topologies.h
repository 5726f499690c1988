// What a layer may have beside the two branches of transformer.c.
#ifndef TOPOLOGIES_H
#define TOPOLOGIES_H

#include "engine.h"

// ---- topologies.c ----

// A layer whose topology is not SEQUENTIAL.
void other_branches(Workspace *w, const Layer *l, int i);
// What few layers have after their mixer: Mamba-2 with the same input, attention to a source.
void run_more_mixers(Workspace *w, const Layer *l, int i);

// ---- cross.c ----

// Caches the keys and values of every cross-attention, made of w->x, behind the last norm: at the
// end of a source's pass.
void keep_source(Workspace *w);

// ---- layer_embed.c ----

// x += norm(out(act(gate x) * the token's own embedding for the layer))
void add_layer_embedding(Workspace *w, const Layer *l, int i);

#endif
