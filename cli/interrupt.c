#include "interrupt.h"

volatile sig_atomic_t interrupted;

static void on_interrupt(int number) { interrupted = 1; }

void catch_interrupt(unsigned flags) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)flags};
    sigaction(SIGINT, &action, NULL);
}
