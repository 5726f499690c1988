// process.h for Windows.
#include "system/process.h"

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
