// Writes conversations by a model's chat template, which export.py compiles into the tables of
// docs/format.md, "The chat template".
#ifndef CHAT_H
#define CHAT_H

#include "tokenizer.h"

typedef heads_message Message;

typedef heads_chat_options ChatOptions;
typedef heads_chat Chat;

// Reads the checkpoint's chat.* metadata, and borrows it. Errors: there is none, it contradicts
// itself, or the template could not be compiled.
Chat *chat_new(const Checkpoint *file, Error *err);
void chat_free(Chat *chat);

// The text of a conversation, exactly as the template writes it, malloc'd. The caller tokenizes it
// as a whole, without the tokenizer's prefix and suffix: the template itself writes a BOS where it
// wants one. Errors: the template cannot write it, or was not compiled for it; they name the
// message.
char *chat_render(const Chat *chat, const Message *messages, size_t n, const ChatOptions *options,
                  size_t *len, Error *err);

typedef enum { CHAT_SYSTEM_REFUSED, CHAT_SYSTEM_IGNORED, CHAT_SYSTEM_USED } ChatSystem;
ChatSystem chat_system(const Chat *chat);     // what happens to a system message
bool chat_has_no_think(const Chat *chat);     // whether options.no_think is possible
bool chat_prints_date(const Chat *chat);      // whether options.clock matters
// For --info: "system yes, thinking yes (off: enable_thinking=false), date no". Owned by the chat.
const char *chat_describe(const Chat *chat);
// The special token that the template writes after an answer. It ends an answer, as EOS does. -1:
// none, -2: no memory to tell.
int chat_stop(const Chat *chat, const Tokenizer *tokenizer);

#endif
