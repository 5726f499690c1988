// mask.c: fills the masks of a prompt with a masked language model, an encoder.
#ifndef CLI_MASK_H
#define CLI_MASK_H

#include "open.h"

int fill_masks(Program *p);  // closes p

#endif
