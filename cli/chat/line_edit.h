// line_edit.c: a message, typed at a terminal and changed until Enter, with arrows, history and
// pastes.
#ifndef CLI_LINE_EDIT_H
#define CLI_LINE_EDIT_H

#include <stdbool.h>

#include "cli/input.h"

typedef struct LineEdit LineEdit;

// Sets the terminal's mode, until it is freed. NULL: stdin is no terminal. goes_on says at Enter
// whether another line belongs to the message: -1, no; else the line's end replaces so many bytes.
LineEdit *line_edit_new(int (*goes_on)(const char *text, size_t len), bool colours);
void line_edit_free(LineEdit *e);
// Reads a message, to be freed. It is empty where Ctrl-C took it back; its data are NULL at the end
// of the input, and at Ctrl-C where nothing was typed.
Text line_edit_read(LineEdit *e);

#endif
