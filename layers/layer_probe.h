// What a probe sees of layers, and may change before them.
#ifndef LAYER_PROBE_H
#define LAYER_PROBE_H

#include "engine.h"

// Shows the probe what layer i would say: the logits of the stream as it is now, which stays. They
// go through w->logits from row logit_row on. Nothing if the pass runs a source.
void show_lens(Workspace *w, int i, int logit_row);
// Lets the probe have the stream before layer i, if there is one; returns the layer to go on with.
int enter_layer(const Workspace *w, int i);
// Lets it have what heads give, [n_rows][n_heads][width], before layer l's output matrix. first:
// the number of the first of them in the layer.
void show_mixed(const Workspace *w, const Layer *l, int first, Buffer heads, int n_heads,
                int width);

#endif
