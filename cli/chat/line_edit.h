// line_edit.c: a message, typed at a terminal and changed until Enter, with arrows, history and
// pastes.
#ifndef CLI_LINE_EDIT_H
#define CLI_LINE_EDIT_H

#include <stdbool.h>

#include "cli/input.h"

typedef struct LineEdit LineEdit;

// Sets the terminal's mode, until it is freed. NULL: stdin is no terminal. goes_on says at Enter
// whether another line belongs to the message: -1, no; else the line's end replaces so many bytes.
// command(i) is the i-th of the words that Tab completes where a message begins with "/"; NULL: no
// more.
LineEdit *line_edit_new(int (*goes_on)(const char *text, size_t len), const char *(*command)(int i),
                        bool colours);
void line_edit_free(LineEdit *e);
// Reads a message, to be freed. It is empty where Ctrl-C took it back; its data are NULL at the end
// of the input, and at Ctrl-C where nothing was typed.
Text line_edit_read(LineEdit *e);
// Adds a message to the past, as if it had been typed, unless it is the last one there.
void line_edit_remember(LineEdit *e, const char *text, size_t len);

#endif
