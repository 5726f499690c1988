// Per-layer embeddings (Gemma 4): a token's own embedding for each layer, which gates a branch.
#ifndef LAYER_EMBED_H
#define LAYER_EMBED_H

#include "engine.h"

// The embeddings of the rows for all layers, to w->layer_embed.
void layer_embed(Workspace *w);
void layer_embed_scratch(Workspace *w, Arena *a);
void embed_branch_scratch(const Workspace *w, int i, Arena *a);

#endif
