// What windows.c, windows_process.c and windows_terminal.c share. Paths and arguments are UTF-8, as
// everywhere; Windows' own are UTF-16.
#ifndef WINDOWS_H
#define WINDOWS_H

#include <wchar.h>
#include <windows.h>  // before its other headers

#include <psapi.h>
#include <shellapi.h>

#include "system/system.h"

// All are malloc'd; NULL: errno. A path that Windows would find too long gets its long form.
wchar_t *wide(const char *text);
wchar_t *wide_path(const char *path);
char *narrow(const wchar_t *text);

// Consoles show UTF-8 and understand escape sequences until the process ends.
void console_prepare(void);

#endif
