// The inputs of products for a probe (heads_workspace_probe).
#ifndef PROBE_H
#define PROBE_H

#include "engine.h"

void probe_products(const Workspace *w, const Product *products, int n_products, Buffer x,
                    const Group *groups, int n_groups);

#endif
