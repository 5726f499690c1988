// From the hidden states of texts to vectors, or to numbers for classes, as a Readout says.
#ifndef POOLING_H
#define POOLING_H

#include "engine.h"
#include "load/readout.h"

typedef heads_text TextIds;

enum { MAX_TEXTS = 128 };  // of one pass

// Rows of the result that a text has: one, or one for each of its parts, or for each of its tokens
// where nothing is pooled.
size_t result_rows(const Readout *readout, const TextIds *text);
// Writes results[..][readout->width], the rows of each text, text after text. The workspace gives
// hidden states, its context has room for each text, and its logit_rows are no fewer than its chunk
// and its context. sequences[MAX_TEXTS] are its own, or NULL where none is made yet. Errors: as of
// heads_forward_runs, and numbers that are not finite.
int read_out(Workspace *w, Sequence **sequences, const Readout *readout, const TextIds *texts,
             int n, float *results, Error *err);
// Makes probabilities of n rows of results, as readout->scores says.
void score_classes(const Readout *readout, float *rows, size_t n);

// ---- reader.c ----

// read_out in a workspace of these options, which options->threads_of keeps if it is the model's.
int read_texts(const Model *m, const Readout *readout, const WorkspaceOptions *options,
               const TextIds *texts, int n, float *results, Error *err);
void reader_free(TextReader *r);

#endif
