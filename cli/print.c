#include "print.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/unicode.h"

static int percent_shown = -1;

void progress_end(void) {
    if (percent_shown >= 0 && isatty(STDERR_FILENO)) fprintf(stderr, "\n");
    percent_shown = -1;
}

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    progress_end();
    fprintf(stderr, "run: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

void usage(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "run: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, " (./run --help lists the options)\n");
    va_end(args);
    exit(2);
}

volatile sig_atomic_t interrupted;

static void on_interrupt(int number) { interrupted = 1; }

void catch_interrupt(unsigned flags) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)flags};
    sigaction(SIGINT, &action, NULL);
}

bool write_out(const char *text, size_t len) {
    if (fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0) return true;
    if (errno != EPIPE) die("cannot write to stdout: %s", strerror(errno));
    return false;
}

void progress(long done, long total, const char *format, ...) {
    bool terminal = isatty(STDERR_FILENO);
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
