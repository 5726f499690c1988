#include "print.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library/inspect.h"

static bool installed;

// A file that was downloaded may be called heads-linux-x86_64.
void name_program(const char *argv0) {
    installed = strncmp(base_name(argv0), "heads", 5) == 0;
}

const char *program_name(void) { return installed ? "heads" : "run"; }
const char *program_command(void) { return installed ? "heads" : "./run"; }

static int percent_shown = -1;

void progress_end(void) {
    if (percent_shown >= 0 && is_terminal(stderr)) fprintf(stderr, "\n");
    percent_shown = -1;
}

static void print_sentence(const char *format, va_list args, const char *end) {
    progress_end();
    fprintf(stderr, "%s: ", program_name());
    vfprintf(stderr, format, args);
    fprintf(stderr, "%s\n", end);
}

void warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_sentence(format, args, "");
    va_end(args);
}

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_sentence(format, args, "");
    va_end(args);
    exit(1);
}

void usage(const char *format, ...) {
    char hint[64];
    va_list args;
    va_start(args, format);
    snprintf(hint, sizeof hint, " (%s --help lists the options)", program_command());
    print_sentence(format, args, hint);
    va_end(args);
    exit(2);
}

bool write_out(const char *text, size_t len) {
    bool written = fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0;
    if (written && !ferror(stdout)) return true;
    int error = written ? 0 : errno;
    if (!reader_has_gone(error))
        die("cannot write to stdout: %s", error ? strerror(error) : "a part of it is lost");
    clearerr(stdout);
    return false;
}

void end_line(bool on) {
    if (is_terminal(stdout)) write_out("\n", 1);
    else if (on && same_output()) fprintf(stderr, "\n");
}

void progress(long done, long total, const char *format, ...) {
    bool terminal = is_terminal(stderr);
    int percent = total > 0 ? (int)(100 * done / total) : 100;
    if (!terminal) percent -= percent % 10;
    if (percent == percent_shown || (!terminal && percent == 0)) return;
    percent_shown = percent;
    char bar[41] = "";
    for (int i = 0; i < 40; i++) bar[i] = i < percent * 40 / 100 ? '#' : '.';
    if (terminal) fprintf(stderr, "\r[%s] ", bar);
    fprintf(stderr, "%3d%%  ", percent);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, terminal ? "\033[K" : "\n");
}

void show_wait(double since, long done, long total, const char *what) {
    if (is_terminal(stderr) && seconds() - since > 1)
        progress(done, total, "%s: %ld of %ld tokens", what, done, total);
}

void end_wait(void) {
    if (percent_shown >= 0) fprintf(stderr, "\r\033[K");
    percent_shown = -1;
}

const char *commas(size_t n) {
    static char buffers[8][32];
    static int next;
    char *end = buffers[next = (next + 1) % 8] + sizeof buffers[0], *p = end;
    *--p = 0;
    for (int digits = 0; digits == 0 || n > 0; digits++, n /= 10) {
        if (digits > 0 && digits % 3 == 0) *--p = ',';
        *--p = (char)('0' + n % 10);
    }
    return p;
}

const char *size_text(size_t bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    static char buffers[4][64];
    static int next;
    char *text = buffers[next = (next + 1) % 4];
    double size = (double)bytes / 1024;
    int unit = 0;
    for (; size >= 1024 && unit < 3; size /= 1024) unit++;
    int n = snprintf(text, sizeof buffers[0], "%s bytes", commas(bytes));
    if (unit) snprintf(text + n, sizeof buffers[0] - (size_t)n, " (%.1f %s)", size, units[unit]);
    return text;
}

double rate(double amount, double time) { return time > 0 ? amount / time : 0; }

int print_escaped(const char *text, size_t len) {
    int columns = 0;
    for (size_t i = 0; i < len; columns++) {
        size_t n = utf8_length(text + i, len - i);
        unsigned char c = (unsigned char)text[i];
        bool upper_control = c == 0xC2 && n == 2 && (unsigned char)text[i + 1] < 0xA0;
        if (n == 0) {
            printf("\xEF\xBF\xBD");
            n = 1;
        } else if (c < 0x20 || c == 0x7F || upper_control) {
            columns += printf("\\u%04x", upper_control ? (unsigned char)text[i + 1] : c) - 1;
        } else if (c == '"' || c == '\\') {
            columns += printf("\\%c", c) - 1;
        } else {
            fwrite(text + i, 1, n, stdout);
        }
        i += n;
    }
    return columns;
}

void print_json_string(const char *key, const char *text, size_t len) {
    printf("\"%s\": \"", key);
    print_escaped(text, len);
    printf("\"");
}
