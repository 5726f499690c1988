// samples.c: repeated measurements of one figure.
#ifndef CLI_BENCH_SAMPLES_H
#define CLI_BENCH_SAMPLES_H

enum { MAX_SAMPLES = 540 };  // a ceiling's: 36 in each of 15 rounds

typedef struct {
    double values[MAX_SAMPLES];
    int n;
} Samples;

void add_sample(Samples *s, double value);

typedef struct {
    double min, median, max;
} Spread;

Spread spread(const Samples *s);  // s->n > 0

#endif
