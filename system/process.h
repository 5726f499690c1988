// What a program, unlike a library, has of its process: arguments, descriptors 0, 1 and 2, and
// signals. One that ends the program leaves a sentence, if possible, and no temporary files.
#ifndef PROCESS_H
#define PROCESS_H

#include <stdbool.h>

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

#endif
