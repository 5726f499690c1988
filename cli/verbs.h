// A verb is something that ./run can do: a function that returns the exit status.
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

#include "options.h"

int run_verb(const Options *options);      // verbs.c: the one that options->verb says

int chat(const Options *options);          // chat/chat.c
int batch(const Options *options);         // batch/batch.c
int show_passes(const Options *options);   // passes.c: --logits, --hidden, --heads, --lens
int perplexity(const Options *options);    // ppl.c
int embed_texts(const Options *options);   // vectors.c
int similar(const Options *options);
int classify_texts(const Options *options);  // classes.c
int rank_lines(const Options *options);
int info(const Options *options);          // info.c
int check(const Options *options);
int tokenize(const Options *options);
int patch(const Options *options);         // experiments.c
int attribute(const Options *options);
int experiment(const Options *options);
int verify(const Options *options);
int parts(const Options *options);         // parts.c
int kv(const Options *options);            // kv/kv.c
int bench(const Options *options);         // bench/bench.c

#endif
