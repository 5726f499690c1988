// prompt.c: from the prompt's options to ids that can run. On failure it exits with a sentence.
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include "input.h"
#include "messages.h"
#include "open.h"

int prompt_vocabulary(const Program *p);  // the prompt's ids are below this
Ids encode(const Program *p, Text text, bool add_special);
// The text of -p or -f; data NULL: neither is given.
Text prompt_text(const Options *options);
// The ids of -p, -f, --tokens or --messages. With --messages, *answer_end (unless NULL) becomes the
// token that ends an answer besides EOS, -1: none.
Ids prompt_ids(const Program *p, int *answer_end);
// Exits unless the ids are in the vocabulary and fit into the context; returns them.
Ids to_run(const Program *p, Ids ids);
Ids prompt_to_run(const Program *p, int *answer_end);
// Exits at an id that the tokenizer knows and the model does not.
void check_ids(const Program *p, Ids ids);

heads_chat *open_chat(const Program *p);  // exits if there is none
// The id that ends an answer besides EOS; -1: none.
int end_of_answer(const Program *p, const heads_chat *chat);
// The ids of a conversation; prompt: with the beginning of an answer. n -1: an error.
Ids conversation_ids(const Program *p, const heads_chat *chat, const Messages *m, bool prompt,
                     heads_error *err);

#endif
