// outfile.c: a file that is written whole or not at all, whatever ends the program.
#ifndef CLI_OUTFILE_H
#define CLI_OUTFILE_H

#include <stdio.h>

// Opens a file under a temporary name beside `path`, one at a time. A device, a pipe or what stdout
// is sent to is written directly. Exits if it cannot be written, or if it is one of the
// inputs, which are mapped.
FILE *outfile_open(const char *path, char **inputs, int n_inputs);
// Ends it: what was at `path` is replaced at once.
void outfile_close(FILE *f);

#endif
