// mla.c: the products before and after attention where it is latent.
#ifndef MLA_H
#define MLA_H

#include "engine.h"

typedef struct {
    Buffer projected, q_down;  // [n] the query heads as q gives them; [n] the query's own latent
    Buffer head_in, head_out;  // [n_heads n] rows by head: n_nope or rank, rank or n_value
    Group *groups;             // [n_heads]
} LatentBuffers;

LatentBuffers latent_buffers(Arena *a, const Attention *at, int n);
// From rows of y to query heads and keys, as attention.c takes them.
void latent_project(Workspace *w, const Attention *at, LatentBuffers *b, Buffer q, Buffer keys,
                    Buffer y);
// From each head's mix of latents to its values, in place.
void latent_values(Workspace *w, const Attention *at, LatentBuffers *b, Buffer mixed);

#endif
