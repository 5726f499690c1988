// cost.c: what the text's loss becomes without a head.
#ifndef CLI_HEADS_COST_H
#define CLI_HEADS_COST_H

#include "cli/heads/maps.h"

// Whether the text has a loss: the model predicts its tokens one after the other, from two on.
bool has_costs(const HeadsPage *p);
// Sets the costs of all heads: the loss of each token after the first without the head, minus that
// with it. The text runs once for each head, several side by side where they fit into a pass.
void measure_costs(HeadsPage *p);

#endif
