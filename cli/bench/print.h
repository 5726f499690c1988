// print.c: prints measurements as text and as JSON.
#ifndef CLI_BENCH_PRINT_H
#define CLI_BENCH_PRINT_H

#include "cli/bench/measure.h"

void print_bench(const Bench *b);
void print_bench_json(const Bench *b);

#endif
