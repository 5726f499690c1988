// The token's embedding beside the residual stream, which attention in a nested layer reads.
#ifndef BESIDE_H
#define BESIDE_H

#include "engine.h"

// w->y = norm([x; embedding]), 2 n_embd numbers
Buffer beside_embedding(Workspace *w, const Norm *norm);

#endif
