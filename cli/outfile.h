// outfile.c: a file that is written whole or not at all, whatever ends the program.
#ifndef CLI_OUTFILE_H
#define CLI_OUTFILE_H

#include <stdio.h>

// Opens a file as newfile_open does; two may be open at a time. Exits if it cannot be written, or
// if it is one of the inputs, which are mapped, or what the other one is to become.
FILE *outfile_open(const char *path, char **inputs, int n_inputs);
void outfile_close(FILE *f);

#endif
