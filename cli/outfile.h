// outfile.c: writes a file whole or not at all, even if a signal ends the program.
#ifndef CLI_OUTFILE_H
#define CLI_OUTFILE_H

#include <stdio.h>

// Opens a file as newfile_open does; two may be open at a time. Exits if it cannot be written, if
// it is one of the inputs, which are mapped, or if the other open file has the same path.
FILE *outfile_open(const char *path, const char *const *inputs, int n_inputs);
void outfile_close(FILE *f);

#endif
