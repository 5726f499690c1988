// reading.c: texts that are read as a whole, for their vectors or classes: -p TEXT, or each line of
// -f FILE or stdin. On failure each call exits with a sentence.
#ifndef CLI_READING_H
#define CLI_READING_H

#include "input.h"
#include "open.h"

typedef struct {
    Program p;
    Text given;         // what -p, -f or stdin gave
    Text *lines;        // [n_lines], parts of it
    long n_lines;
    heads_text *texts;  // [n], whose ids are owned
    int n, longest, n_cut;
    long n_tokens;
} Reading;

// Opens the model, which must have a tokenizer, and finds the texts; adds none.
void open_reading(Reading *r, const Options *o);
void add_text(Reading *r, Text text);
void add_pair(Reading *r, Text first, Text second);
// Reports on stderr how fast the texts ran since `start`, what came of them, and what was cut.
void report_reading(const Reading *r, double start, const char *what, const char *more);
// Prints the lines, each after its number, the highest first.
void print_ranked(const Reading *r, const double *numbers);
void close_reading(Reading *r);

#endif
