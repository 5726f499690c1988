// input.c: what a verb works on: the model, its tokenizer, texts and ids, and a place to run them.
// Each of these exits with a sentence where it fails.
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include <stdio.h>

#include "options.h"
#include "tokenizer.h"

void *allocate(size_t count, size_t size);  // zeros

// Opens the model, which has weights if the verb needs them.
void open_model(Model *model, const Options *options, const char *path);
void need_weights(const Model *model, const char *path);
Tokenizer *open_tokenizer(const Model *model);  // NULL: the checkpoint has none
// The kernels to use, and why these.
const Kernels *choose_kernels(const Options *options, const char **why);
Workspace *open_workspace(const Options *options, const Model *model, int logit_rows);
Sequence *open_sequence(Workspace *w, bool shared);

typedef struct {
    char *data;  // owned
    size_t size;
} Text;

Text read_file(const char *path);
Text read_stream(FILE *f, const char *name);
// The lines of a text, without what ends them, borrowed from it; the last one need not end. *n of
// them, in an array that the caller frees.
Text *split_lines(Text text, long *n);
void warn_if_not_utf8(Text text);

typedef struct {
    int *data;  // owned
    long n;
} Ids;

Ids encode(const Tokenizer *tokenizer, Text text, bool add_special);
// The text of -p or -f; no data where there is neither.
Text prompt_text(const Options *options);
// The ids of -p, -f, --tokens or --messages. *answer_end, unless that is NULL: of --messages, the
// token that ends an answer besides EOS, -1 if there is none.
Ids prompt_ids(const Options *options, const Model *model, const Tokenizer *tokenizer,
               int *answer_end);
// Ids to be run: each is in the model's vocabulary, and all fit into the context.
Ids to_run(const Options *options, const Model *model, Ids ids);
// Both.
Ids prompt_to_run(const Options *options, const Model *model, const Tokenizer *tokenizer,
                  int *answer_end);
// A tokenizer can have added tokens that the model has no row for.
void check_ids(Ids ids, const Model *model);

// Ids as an option gives them: "1 2 3", or with commas.
Ids parse_ids(const char *option, const char *text, int vocab_size);

int prompt_vocabulary(const Model *model);  // ids that a prompt can have: so many

// ---- source.c: of models that have an encoder and a decoder ----

// Puts the language that --lang FROM:TO says into a prompt.
void set_source_language(const Options *options, const Model *model, const Tokenizer *tokenizer,
                         Ids prompt);
// What their texts begin with, by the checkpoint and --lang.
Ids first_tokens(const Options *options, const Model *model, const Tokenizer *tokenizer);
// What the text begins with, in the place of the prompt, which the sequence reads unless it has;
// --target, or the first tokens. Of a model without an encoder that is the prompt.
Ids read_prompt(const Options *options, const Tokenizer *tokenizer, Sequence *s, Ids prompt);
// Tokens to generate at most after so many, and how they are picked: by the options, or as the
// checkpoint says.
int tokens_to_generate(const Options *options, const Model *model, int n_begin);
SamplerOptions sampling_options(const Options *options, const Model *model);

#endif
