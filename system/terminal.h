// What stdin, stdout and stderr are, and the terminal that someone types at.
#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

bool is_terminal(FILE *stream);
bool is_screen(FILE *stream);  // a terminal that understands escape sequences
bool same_output(void);        // stdout and stderr go to the same place, as after 2>&1
// Whether the reader of stdout has gone, which made a write fail. error: its errno; 0: it is past.
bool reader_has_gone(int error);
// Waits so long at most until stdin, unbuffered, has something to read, if only its end.
bool input_waits(int milliseconds);

// Columns or rows; 0: it is no terminal, or does not say.
int terminal_columns(FILE *stream);
int terminal_rows(FILE *stream);

// From now on stdin gives keys as they are typed, not lines, and pastes between marks; nothing is
// echoed; Ctrl-C and Ctrl-Z are signals as before. A stop, the end of the process, by exit or by a
// signal, and terminal_restore give the terminal its old mode back. False: stdin is no terminal.
bool terminal_raw(void);
void terminal_restore(void);
// How often the mode was set: it grows when the process was stopped, and goes on.
int terminal_resumed(void);
// Reads what was typed, waiting so long at most. 0: nothing was; -1: the end of input.
int terminal_read(char *keys, size_t size, int milliseconds);

#endif
