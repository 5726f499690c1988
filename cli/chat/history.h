// history.c: what was typed in conversations before, kept in ~/.heads_history, which only its owner
// may read.
#ifndef CLI_HISTORY_H
#define CLI_HISTORY_H

#include "cli/chat/line_edit.h"

// Returns the path with the user's folder in place of a "~" before its first "/"; to be freed.
char *from_home(const char *path);
// Gives the editor the messages that the file has. What is no file, or cannot be read, has none.
void history_load(LineEdit *editor);
// Appends a message. A file that cannot be written loses it without a word.
void history_add(Text message);

#endif
