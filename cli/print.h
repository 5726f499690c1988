// print.c: results go to stdout, everything else to stderr; and ways to end.
#ifndef CLI_PRINT_H
#define CLI_PRINT_H

#include <stdbool.h>
#include <stddef.h>

// The program's name in sentences: "heads" if its file's name begins so, else "run"; and how it is
// called in a shell.
void name_program(const char *argv0);
const char *program_name(void);
const char *program_command(void);

// Prints a sentence to stderr; warn goes on, the others exit: 1, failed; 2, wrong usage.
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void usage(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

// Writes to stdout and flushes. False: its reader has closed it, which is no error.
bool write_out(const char *text, size_t len);

// Ends an unfinished line of text on stdout: at a terminal, or, if `on`, where stderr goes to the
// same file.
void end_line(bool on);

// Shows progress on stderr: a bar, or a line for each tenth where that is no terminal. format: the
// text beside the percentage. progress_end ends the bar's line.
void progress(long done, long total, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void progress_end(void);
// A bar at a terminal, once a wait has taken a second (since: seconds() at its start). end_wait
// wipes it away.
void show_wait(double since, long done, long total, const char *what);
void end_wait(void);

// "1,234,567", in one of eight static buffers, which calls use in turn.
const char *commas(size_t n);
// "1,466,880 bytes (1.4 MiB)", in one of four static buffers, which calls use in turn.
const char *size_text(size_t bytes);
double rate(double amount, double time);
// Prints text from a file safely: control characters escaped as in JSON, invalid UTF-8 replaced.
// Returns its width in characters.
int print_escaped(const char *text, size_t len);
void print_json_string(const char *key, const char *text, size_t len);

#endif
