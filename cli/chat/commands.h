// commands.c: what a line that begins with / asks the chat itself.
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/chat/conversation.h"

// Does what the line asks. False: it asks to leave.
bool do_command(Conversation *c, const char *line);
const char *command_name(int i);  // "/help", ..; NULL: there are no more

#endif
