// process.h for Windows.
#include "system/process.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>

#include "system/terminal.h"
#include "system/windows.h"

volatile int interrupted;
static volatile bool catches, ends_next;
static const char *program;  // its name

// Windows calls this on a thread of its own.
static BOOL WINAPI on_control(DWORD event) {
    if (event == CTRL_C_EVENT && catches) {
        interrupted = 1;
        if (ends_next) catches = false;
        return TRUE;
    }
    newfile_remove_temporaries();
    terminal_restore();
    return FALSE;  // the process ends
}

void catch_interrupt(bool ends) {
    ends_next = ends;
    catches = true;
}

void interrupt_reads(bool on) {}  // a read of a console ends anyway, and input_waits comes before

// ---- a mapped file whose disk has failed ----

static LONG WINAPI on_fault(EXCEPTION_POINTERS *fault) {
    static const char *const sentence[] = {
        "\n", NULL, ": a file's disk failed, while it was in use; run again with the whole file\n"};
    if (fault->ExceptionRecord->ExceptionCode != (DWORD)EXCEPTION_IN_PAGE_ERROR)
        return EXCEPTION_CONTINUE_SEARCH;
    newfile_remove_temporaries();
    for (int i = 0; i < 3; i++) {
        const char *text = sentence[i] ? sentence[i] : program;
        DWORD written;
        WriteFile(GetStdHandle(STD_ERROR_HANDLE), text, (DWORD)strlen(text), &written, NULL);
    }
    TerminateProcess(GetCurrentProcess(), 1);
    return EXCEPTION_CONTINUE_SEARCH;
}

// ---- arguments ----

static char **arguments(int *argc, char **argv) {
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), argc);
    char **args = wide ? calloc((size_t)*argc + 1, sizeof *args) : NULL;
    for (int i = 0; args && i < *argc; i++)
        if (!(args[i] = narrow(wide[i]))) return argv;
    return args ? args : argv;
}

char **prepare_process(const char *name, int *argc, char **argv) {
    program = name;
    bool typed = is_terminal(stdin);  // a console ends its lines by \r\n, and its input by Ctrl-Z
    _setmode(0, typed ? _O_TEXT : _O_BINARY);
    _setmode(1, _O_BINARY);
    _setmode(2, _O_BINARY);
    console_prepare();
    SetConsoleCtrlHandler(on_control, TRUE);
    SetUnhandledExceptionFilter(on_fault);
    return arguments(argc, argv);
}

// ---- another program ----

const char PYTHON[] = "python";

// Appends an argument to a command line as CommandLineToArgvW reads it.
static wchar_t *append_argument(wchar_t *to, const wchar_t *argument) {
    *to++ = L'"';
    for (const wchar_t *c = argument; *c; c++) {
        size_t n = wcsspn(c, L"\\");
        size_t times = c[n] == L'"' ? 2 * n + 1 : c[n] ? n : 2 * n;  // before a quote, two for one
        for (size_t i = 0; i < times; i++) *to++ = L'\\';
        if (!c[n]) break;
        c += n;
        *to++ = *c;
    }
    *to++ = L'"';
    *to++ = L' ';
    return to;
}

static wchar_t *command_line(const char *const *argv) {
    size_t room = 1;
    for (const char *const *a = argv; *a; a++) room += 2 * strlen(*a) + 3;
    wchar_t *line = malloc(room * sizeof *line), *end = line;
    for (const char *const *a = argv; line && *a; a++) {
        wchar_t *argument = wide(*a);
        if (argument) end = append_argument(end, argument);
        free(argument);
    }
    if (line) *end = 0;
    return line;
}

static void read_all(HANDLE from, char *out, size_t size) {
    char more[256];
    size_t used = 0;
    for (DWORD n; ReadFile(from, more, sizeof more, &n, NULL) && n;) {
        size_t kept = n < size - 1 - used ? n : size - 1 - used;
        memcpy(out + used, more, kept);
        used += kept;
    }
    out[used] = 0;
}

int run_command(const char *const *argv, char *out, size_t size) {
    SECURITY_ATTRIBUTES inherited = {.nLength = sizeof inherited, .bInheritHandle = TRUE};
    STARTUPINFOW start = {.cb = sizeof start, .dwFlags = STARTF_USESTDHANDLES};
    PROCESS_INFORMATION child;
    HANDLE from;
    DWORD status = 0;
    out[0] = 0;
    if (!CreatePipe(&from, &start.hStdOutput, &inherited, 0)) return errno = ENOMEM, -1;
    SetHandleInformation(from, HANDLE_FLAG_INHERIT, 0);
    start.hStdInput = GetStdHandle(STD_INPUT_HANDLE);
    start.hStdError = GetStdHandle(STD_ERROR_HANDLE);
    wchar_t *line = command_line(argv);
    BOOL begun =
        line && CreateProcessW(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &start, &child);
    free(line);
    CloseHandle(start.hStdOutput);
    if (begun) read_all(from, out, size);
    CloseHandle(from);
    if (!begun) return errno = ENOENT, -1;
    WaitForSingleObject(child.hProcess, INFINITE);
    GetExitCodeProcess(child.hProcess, &status);
    CloseHandle(child.hProcess);
    CloseHandle(child.hThread);
    return (int)status;
}

int own_path(char *path, size_t size) {
    wchar_t own[MAX_PATH];
    DWORD n = GetModuleFileNameW(NULL, own, MAX_PATH);
    if (!n || n >= MAX_PATH) return -1;
    return WideCharToMultiByte(CP_UTF8, 0, own, -1, path, (int)size, NULL, NULL) ? 0 : -1;
}
