// Conversations as the text that a model was trained on: its chat template, compiled by export.py
// into the tables of docs/format.md, "The chat template".
#ifndef CHAT_H
#define CHAT_H

#include <time.h>

#include "tokenizer.h"

typedef heads_message Message;

typedef struct {
    bool add_generation_prompt;  // ends with the beginning of an answer
    bool no_think;               // by the template's switch for thinking
    time_t clock;  // what a template that prints the date prints, read as UTC: for local time the
                   // caller adds its zone's offset
} ChatOptions;

typedef heads_chat Chat;

// Reads the model's chat.* metadata; borrows it. NULL: there is none, it is inconsistent, or the
// template was refused when it was compiled; the message says why.
Chat *chat_new(const Checkpoint *file, Error *err);
void chat_free(Chat *chat);

// The text of a conversation, exactly as the template writes it, malloc'd; the caller frees it, and
// tokenizes it as a whole, without the tokenizer's own prefix and suffix: a BOS stands in the text
// where the template wants one. NULL: what the template cannot write, or would write in a way that
// was not compiled; the message says which message and why.
char *chat_render(const Chat *chat, const Message *messages, size_t n, const ChatOptions *options,
                  size_t *len, Error *err);

typedef enum { CHAT_SYSTEM_REFUSED, CHAT_SYSTEM_IGNORED, CHAT_SYSTEM_USED } ChatSystem;
ChatSystem chat_system(const Chat *chat);     // what becomes of a system message
bool chat_has_no_think(const Chat *chat);     // options.no_think is possible
bool chat_prints_date(const Chat *chat);      // options.clock counts
// For --info: "system yes, thinking yes (off: enable_thinking=false), date no". Owned by the chat.
const char *chat_describe(const Chat *chat);
// The special token that begins what follows an answer, which ends an answer besides the
// tokenizer's EOS; -1: none, or no memory.
int chat_stop(const Chat *chat, const Tokenizer *tokenizer);

#endif
