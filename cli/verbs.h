// A verb is something that ./run can do: it returns the exit status.
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

#include "options.h"

int generate(const Options *options);    // generate.c
int chat(const Options *options);        // chat.c
int batch(const Options *options);       // batch.c
int look(const Options *options);        // eval.c: --logits, --hidden, --heads
int perplexity(const Options *options);
int embed_texts(const Options *options);  // vectors.c
int similar(const Options *options);
int info(const Options *options);        // info.c
int check(const Options *options);
int tokenize(const Options *options);
int kv(const Options *options);          // kv.c
int bench(const Options *options);       // bench.c

// MHA, GQA or MQA. kv.c
const char *attention_name(int n_heads, int n_kv_heads);

#endif
