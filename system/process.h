// What a program, unlike a library, has of its process: arguments, descriptors 0, 1 and 2, and
// signals. One that ends the program leaves a sentence, if possible, and no temporary files.
#ifndef PROCESS_H
#define PROCESS_H

#include <stdbool.h>
#include <stddef.h>

// To be called first. name: the program's, for its sentences. Returns the arguments in UTF-8. Where
// 0, 1 or 2 is closed, no file that is opened later gets its number. Signals that are ignored
// already stay ignored.
char **prepare_process(const char *name, int *argc, char **argv);

// After catch_interrupt, Ctrl-C sets `interrupted`: it ends the work, not the program. ends_next: a
// second Ctrl-C ends the program at once.
extern volatile int interrupted;
void catch_interrupt(bool ends_next);
// Whether Ctrl-C, once it is caught, ends a read that waits. At first it does not.
void interrupt_reads(bool on);

// Runs a program that PATH finds, and waits. out: the first bytes that it writes to its stdout,
// zero-terminated; it has our stdin and stderr. Returns its exit status; -1: it could not be
// started, which errno explains, or a signal ended it.
int run_command(const char *const *argv, char *out, size_t size);
extern const char PYTHON[];  // the name of Python 3's program
// The file of the program that runs, in path[size]; -1: unknown.
int own_path(char *path, size_t size);

#endif
