#include "cli/steer.h"

#include <stdlib.h>

#include "cli/input.h"

int read_steers(Steers *steers, const heads_model *model, const char *text, heads_error *err) {
    float scale;
    char *path = path_and_scale(text, &scale);
    long n = heads_read_steers(model, path, scale, &steers->data, err);
    free(path);
    steers->n = n < 0 ? 0 : (int)n;
    return n < 0 ? -1 : 0;
}
