// print.c: stdout carries what was asked for, stderr everything else; and ways to end.
#ifndef CLI_PRINT_H
#define CLI_PRINT_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

// Prints a sentence to stderr and exits: 1, failed; 2, wrong usage.
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void usage(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

// From catch_interrupt on, Ctrl-C sets `interrupted`: it ends the work, not the program. The flags
// are sigaction's: SA_RESTART, and a system call that waits goes on; SA_RESETHAND, and a second
// Ctrl-C ends the program at once.
extern volatile sig_atomic_t interrupted;
void catch_interrupt(unsigned flags);

// Writes to stdout and flushes. False: its reader has closed it, which is no error.
bool write_out(const char *text, size_t len);

// A bar on stderr, or where that is no terminal, a line for each tenth. format: what stands beside
// the percentage. progress_end finishes the bar's line, wherever it has come to.
void progress(long done, long total, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void progress_end(void);

// "1,234,567", in a static buffer that the eighth call from now reuses.
const char *commas(size_t n);
double rate(double amount, double time);
// Text from a file, safe to show: control characters escaped as in JSON, bytes that are no UTF-8
// replaced. Returns the columns it took, a character being one.
int print_escaped(const char *text, size_t len);
void print_json_string(const char *key, const char *text, size_t len);

#endif
