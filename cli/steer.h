// steer.c: the control vectors of --steer, and of a request's "steer".
#ifndef CLI_STEER_H
#define CLI_STEER_H

#include <stdbool.h>

#include "library/inspect.h"

typedef struct {
    heads_steer *data;  // [n], to free with heads_free; NULL: none
    int n;
} Steers;

// Reads FILE[:SCALE]; without a scale it is 1. Errors: as of heads_read_steers.
int read_steers(Steers *steers, const heads_model *model, const char *text, heads_error *err);

#endif
