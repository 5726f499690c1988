// terminal.h for Windows: the console.
#include "system/terminal.h"

#include <errno.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>

#include "system/windows.h"

// ---- what stdin, stdout and stderr are ----

static HANDLE handle_of(FILE *stream) {
    int fd = _fileno(stream);
    return fd < 0 ? INVALID_HANDLE_VALUE : (HANDLE)_get_osfhandle(fd);
}

bool is_terminal(FILE *stream) {
    DWORD mode;
    return GetConsoleMode(handle_of(stream), &mode);
}

bool is_screen(FILE *stream) {
    DWORD mode;
    return GetConsoleMode(handle_of(stream), &mode) && mode & ENABLE_VIRTUAL_TERMINAL_PROCESSING;
}

bool same_output(void) {
    typedef BOOL WINAPI Compare(HANDLE, HANDLE);  // Windows 10's, and of no library to link with
    HMODULE base = GetModuleHandleW(L"kernelbase.dll");
    Compare *same = base ? (Compare *)(void *)GetProcAddress(base, "CompareObjectHandles") : NULL;
    return same && same(handle_of(stdout), handle_of(stderr));
}

bool reader_has_gone(int error) {
    unsigned long last = 0;
    _get_doserrno(&last);
    return error == EPIPE || last == ERROR_NO_DATA || last == ERROR_BROKEN_PIPE ||
           last == ERROR_PIPE_NOT_CONNECTED;
}

bool input_waits(int milliseconds) {
    enum { STEP = 5 };
    HANDLE in = handle_of(stdin);
    if (is_terminal(stdin)) return WaitForSingleObject(in, (DWORD)milliseconds) == WAIT_OBJECT_0;
    if (GetFileType(in) != FILE_TYPE_PIPE) return true;
    for (DWORD there = 0;; milliseconds -= STEP) {
        if (!PeekNamedPipe(in, NULL, 0, NULL, &there, NULL) || there > 0) return true;
        if (milliseconds <= 0) return false;
        Sleep(STEP);
    }
}

static SMALL_RECT window(FILE *stream) {
    CONSOLE_SCREEN_BUFFER_INFO screen;
    bool known = GetConsoleScreenBufferInfo(handle_of(stream), &screen);
    return known ? screen.srWindow : (SMALL_RECT){0, 0, -1, -1};
}

int terminal_columns(FILE *stream) { return window(stream).Right - window(stream).Left + 1; }

int terminal_rows(FILE *stream) { return window(stream).Bottom - window(stream).Top + 1; }

// ---- modes ----

typedef struct {  // of a console; not known: the stream is none
    bool known;
    DWORD mode;
} Mode;

static Mode old_in, old_out, old_error;
static UINT old_in_page, old_out_page;

static Mode mode_of(FILE *stream) {
    Mode old = {0};
    old.known = GetConsoleMode(handle_of(stream), &old.mode);
    return old;
}

static void set_mode(FILE *stream, Mode old, DWORD add, DWORD drop) {
    if (old.known) SetConsoleMode(handle_of(stream), (old.mode | add) & ~drop);
}

static void leave_console(void) {
    set_mode(stdout, old_out, 0, 0);
    set_mode(stderr, old_error, 0, 0);
    if (old_in_page) SetConsoleCP(old_in_page);
    if (old_out_page) SetConsoleOutputCP(old_out_page);
}

void console_prepare(void) {
    old_out = mode_of(stdout);
    old_error = mode_of(stderr);
    if (is_terminal(stdin)) old_in_page = GetConsoleCP(), SetConsoleCP(CP_UTF8);
    if (old_out.known || old_error.known)
        old_out_page = GetConsoleOutputCP(), SetConsoleOutputCP(CP_UTF8);
    set_mode(stdout, old_out, ENABLE_VIRTUAL_TERMINAL_PROCESSING, 0);
    set_mode(stderr, old_error, ENABLE_VIRTUAL_TERMINAL_PROCESSING, 0);
    atexit(leave_console);
}

static void say(const char *text) {
    DWORD written;
    WriteFile(handle_of(stdout), text, (DWORD)strlen(text), &written, NULL);
}

bool terminal_raw(void) {
    old_in = mode_of(stdin);
    if (!old_in.known) return false;
    atexit(terminal_restore);
    set_mode(stdin, old_in, ENABLE_VIRTUAL_TERMINAL_INPUT, ENABLE_LINE_INPUT | ENABLE_ECHO_INPUT);
    say("\033[?2004h");  // pastes come between marks
    return true;
}

void terminal_restore(void) {
    if (!old_in.known) return;
    set_mode(stdin, old_in, 0, 0);
    old_in.known = false;
    say("\033[m\033[?2004l");
}

int terminal_resumed(void) { return 0; }

// ---- keys ----

// The unit of UTF-16 that an event types; 0: none. The number pad types a character when Alt rises.
static wchar_t unit_of(const INPUT_RECORD *event) {
    const KEY_EVENT_RECORD *key = &event->Event.KeyEvent;
    bool types = event->EventType == KEY_EVENT &&
                 (key->bKeyDown || key->wVirtualKeyCode == VK_MENU);
    return types ? key->uChar.UnicodeChar : 0;
}

int terminal_read(char *keys, size_t size, int milliseconds) {
    enum { EVENTS = 64, UTF8 = 3 };  // most bytes of a unit
    static wchar_t units[EVENTS + 1];
    static int n_units;  // 1: the first half of a character has come
    INPUT_RECORD events[EVENTS];
    HANDLE in = handle_of(stdin);
    DWORD n = 0;
    if (WaitForSingleObject(in, (DWORD)milliseconds) != WAIT_OBJECT_0) return 0;
    DWORD most = size / UTF8 < EVENTS ? (DWORD)(size / UTF8) : EVENTS;
    if (!ReadConsoleInputW(in, events, most, &n)) return -1;
    for (DWORD i = 0; i < n; i++)
        if (unit_of(&events[i])) units[n_units++] = unit_of(&events[i]);
    bool half = n_units > 0 && units[n_units - 1] >> 10 == 0xD800 >> 10;
    n_units -= half;
    int bytes = n_units ? WideCharToMultiByte(CP_UTF8, 0, units, n_units, keys, (int)size, NULL,
                                              NULL) : 0;
    units[0] = units[n_units];
    n_units = half;
    return bytes;
}
