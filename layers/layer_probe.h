// What stands between layers: probes, and vectors that steer the stream.
#ifndef LAYER_PROBE_H
#define LAYER_PROBE_H

#include "engine.h"

// Adds steering vectors to the stream after layer i, and shows the probe what the layer would say:
// the stream's logits, which go through w->logits from row logit_row on (not of a source).
void leave_layer(Workspace *w, int i, int logit_row);
// Lets the probe have the stream before layer i, if there is one; returns the layer to go on with.
int enter_layer(const Workspace *w, int i);
// Lets it have what heads give, [n_rows][n_heads][width], before layer l's output matrix. first:
// the number of the first of them in the layer.
void show_mixed(const Workspace *w, const Layer *l, int first, Buffer heads, int n_heads,
                int width);

#endif
