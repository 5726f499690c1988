// interrupt.c: Ctrl-C ends the work, not the program.
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <signal.h>

extern volatile sig_atomic_t interrupted;

// From now on Ctrl-C sets `interrupted`. The flags are sigaction's: SA_RESTART, and a system call
// that waits goes on; SA_RESETHAND, and a second Ctrl-C ends the program at once.
void catch_interrupt(unsigned flags);

#endif
