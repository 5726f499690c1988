// messages.c: the messages of a conversation, and --messages FILE, their JSON.
#ifndef CLI_MESSAGES_H
#define CLI_MESSAGES_H

#include "input.h"
#include "text/json.h"

typedef struct {
    heads_message *items;  // [room]; their strings are owned too
    size_t n, room;
} Messages;

void messages_add(Messages *m, const char *role, const char *content, size_t len);
void messages_drop(Messages *m, size_t begin, size_t end);
void messages_drop_last(Messages *m);
void messages_free(Messages *m);
// Reads a JSON array of {"role", "content"}. -1: it is something else; the error says where.
int messages_from_json(Messages *m, const Json *array, heads_error *err);
Messages read_messages(const char *path);  // exits if it cannot
// Writes such an array.
int write_messages(const Messages *m, const char *path, heads_error *err);

#endif
