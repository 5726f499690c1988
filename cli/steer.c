#include "cli/steer.h"

#include <stdlib.h>
#include <string.h>

#include "cli/input.h"

int read_steers(Steers *steers, const heads_model *model, const char *text, heads_error *err) {
    const char *colon = strrchr(text, ':');
    char *end = NULL, *path = copy_of(text, strlen(text));
    float scale = colon ? strtof(colon + 1, &end) : 1.0f;
    bool scaled = colon && colon[1] && !*end;
    if (scaled) path[colon - text] = 0;
    long n = heads_read_steers(model, path, scaled ? scale : 1.0f, &steers->data, err);
    free(path);
    steers->n = n < 0 ? 0 : (int)n;
    return n < 0 ? -1 : 0;
}
