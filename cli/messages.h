// messages.c: conversations: --messages FILE, and their text by the checkpoint's chat template.
#ifndef CLI_MESSAGES_H
#define CLI_MESSAGES_H

#include "input.h"
#include "json.h"
#include "text/chat.h"

typedef struct {
    Message *items;  // their strings are owned too
    size_t n;
} Messages;

void messages_add(Messages *m, const char *role, const char *content, size_t len);
void messages_drop_last(Messages *m);
void messages_free(Messages *m);
// A JSON array of {"role", "content"}. -1: it is something else, the message says where.
int messages_from_json(Messages *m, const Json *array, Error *err);
Messages read_messages(const char *path);  // exits if it cannot
// Writes such an array.
int write_messages(const Messages *m, const char *path, Error *err);

Chat *open_chat(const Model *model, const char *path);  // exits if there is none
// The ids of a conversation, with the beginning of an answer if `prompt`. n -1: an error.
Ids conversation_ids(const Options *o, const Chat *chat, const Tokenizer *t, const Messages *m,
                     bool prompt, Error *err);

#endif
