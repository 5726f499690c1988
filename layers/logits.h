// Steps that some models have right before and right after the output matrix, and what a probe sees
// of layers.
#ifndef LOGITS_H
#define LOGITS_H

#include "engine.h"

// The input of the output matrix for n rows of w->y: these rows, or in masked language models
// norm(act(dense(y))), in w->x.
Buffer prediction_head(Workspace *w, int n);
// logits = softcap(logits), n rows
void cap_logits(Workspace *w, Buffer logits, int n);
// Shows the probe what layer i would say: the logits of the stream as it is now, which stays. They
// go through w->logits from row logit_row on. Nothing if the pass runs a source.
void show_lens(Workspace *w, int i, int logit_row);
// Lets the probe have the stream before layer i, if there is one; returns the layer to go on with.
int enter_layer(const Workspace *w, int i);

#endif
