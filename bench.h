// bench.c: what --bench measures and prints, on stdout; its progress goes to stderr.
#ifndef BENCH_H
#define BENCH_H

#include "model.h"

// Measures prefill and decode of the model, and the two ceilings beside them, and prints a table or a JSON object.
int bench(const Model *model, const SessionOptions *options, bool json, Error *err);

#endif
