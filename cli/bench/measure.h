// measure.c: times prefill and decode, of one sequence and of several side by side, and two
// ceilings of this processor: multiply-adds in the unit that the weights' dtype uses, and reading
// memory as a stream. Every round measures all of them in turn, so that a neighbour or a change of
// clock affects them alike, and each sample is compared with a ceiling measured right after it.
#ifndef CLI_BENCH_MEASURE_H
#define CLI_BENCH_MEASURE_H

#include "cli/bench/samples.h"
#include "cli/open.h"

enum {
    MAX_ROUNDS = 15, MIN_ROUNDS = 3,
    N_PROMPTS = 3, N_DEPTHS = 4,
    BATCH_DEPTHS = 2,  // sequences side by side are measured at the first two
};

typedef struct {  // sequences that run on from the same number of cached tokens
    int tokens;                         // in the cache before the first timed one
    heads_sequence *base;               // has all of these but the last
    heads_sequence *at[MAX_SEQUENCES];  // forks of it, made when they are needed
} Depth;

typedef struct {  // a line of the report
    int tokens;                   // of the prompt, or in the cache before the first token
    int sequences;                // side by side
    Depth *depth;
    double operations, bytes;     // of one token
    Samples rate;                 // tokens per second
    Samples of_peak, of_read;     // divided by the ceilings measured right after it
    Samples chunk, of_chunk;      // prefill of as many rows: tokens per second; rate / chunk
} Case;

typedef struct {
    Program p;
    const char *isa, *why;     // the kernels, and why these
    Products products;
    int *tokens;               // [context]
    Depth depths[N_DEPTHS];
    Case prefill[N_PROMPTS], decode[N_DEPTHS], batch[BATCH_DEPTHS * MAX_LIST];
    int n_prefill, n_decode, n_batch, most_sequences;
    int decode_tokens;         // of one sample
    Samples peak, read, empty; // operations and bytes per second; seconds of an empty parallel_for
    const void *lines;         // to read, [n_lines][64]
    size_t n_lines;
    int n_streams;             // of a thread that reads them
    void *buffer;              // owns the lines; NULL: they are the model's
    size_t cache_bytes;        // of the last-level cache
    size_t steps;              // of one item of `peak`
    int filled;                // tokens that filled the cache, and the time it took
    double fill_seconds;
} Bench;

// Chooses the cases that fit into a context; returns the context that they need.
int choose_cases(Bench *b, int context);
void measure(Bench *b);

#endif
