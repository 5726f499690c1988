#include "interrupt.h"

volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

void catch_interrupts(void) {
    struct sigaction action = {.sa_handler = on_interrupt,
                               .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
    sigaction(SIGINT, &action, NULL);
}
