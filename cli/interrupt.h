// interrupt.c: Ctrl-C ends the work, not the program.
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <signal.h>

extern volatile sig_atomic_t interrupted;

// From now on Ctrl-C sets `interrupted`; a second one ends the program at once.
void catch_interrupts(void);

#endif
