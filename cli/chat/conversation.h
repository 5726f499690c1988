// conversation.c: the messages of a chat, what the cache holds of them, and an answer to the last.
// Each turn renders the whole conversation anew, since a template may write past turns differently.
// Tokens that the cache has already do not run again.
#ifndef CLI_CONVERSATION_H
#define CLI_CONVERSATION_H

#include "cli/generate.h"
#include "cli/messages.h"

typedef struct {
    Program p;
    Generation g;
    heads_sequence *fork;  // as long as the past turns, for models that may forget; or NULL
    heads_chat *chat;
    Messages messages;
    bool terminal;    // stdin and stdout are terminals
    bool colours;
    Text answer;
    bool thinking;
    bool nearly_full;  // that was said
    bool unsaved;      // something was answered since /save
    bool failed;       // /save failed, or there was no memory for a turn
} Conversation;

// Prints a piece of the answer. to: the conversation.
void print_answer(void *to, const char *text, size_t len);
// Says a sentence on stderr.
void say(const Conversation *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Where the messages begin that are no system message.
size_t first_turn(const Messages *m);
// Answers the last message, and drops the oldest turns where they leave no room for that. False:
// it failed, and the reason was printed.
bool answer(Conversation *c);

#endif
