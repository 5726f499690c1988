#include "cli/bench/samples.h"

#include <stdlib.h>
#include <string.h>

void add_sample(Samples *s, double value) {
    if (s->n < MAX_SAMPLES) s->values[s->n++] = value;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

Spread spread(const Samples *s) {
    double v[MAX_SAMPLES];
    memcpy(v, s->values, (size_t)s->n * sizeof *v);
    qsort(v, (size_t)s->n, sizeof *v, ascending);
    return (Spread){v[0], (v[(s->n - 1) / 2] + v[s->n / 2]) / 2, v[s->n - 1]};
}
