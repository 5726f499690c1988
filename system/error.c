// How failures are reported.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "system/system.h"

// Of a sentence that is too long, as with a long path, the middle is left out: its end has the
// reason.
static void leave_middle_out(Error *err, const char *format, va_list args, size_t len) {
    enum { GAP = 5, HALF = (sizeof err->text - 1 - GAP) / 2 };
    char *whole = malloc(len + 1);
    if (!whole) return;
    write_plain(whole, len + 1, format, args);
    snprintf(err->text, sizeof err->text, "%.*s ... %s", HALF, whole, whole + strlen(whole) - HALF);
    free(whole);
}

int fail(Error *err, const char *format, ...) {
    if (!err) return -1;
    va_list args;
    va_start(args, format);
    size_t len = (size_t)write_plain(err->text, sizeof err->text, format, args);
    va_end(args);
    va_start(args, format);
    if (len >= sizeof err->text) leave_middle_out(err, format, args, len);
    va_end(args);
    for (char *c = err->text; *c; c++)
        if ((unsigned char)*c < ' ') *c = '?';
    return -1;
}

void text_append(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    write_plain(text + used, size - used, format, args);
    va_end(args);
}

int need(const void *pointer, const char *what, Error *err) {
    return pointer ? 0 : fail(err, "the call needs %s, and was given NULL", what);
}
