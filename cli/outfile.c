#include "outfile.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "platform.h"
#include "print.h"

static NewFile file;
static volatile sig_atomic_t unfinished;  // its temporary file is to be removed

static void remove_temporary(void) {
    if (unfinished) unlink(file.temporary);
}

static void on_signal(int number) {
    remove_temporary();
    raise(number);  // SA_RESETHAND: this one ends the program
}

// A signal removes the temporary file from its first moment on.
FILE *outfile_open(const char *path, const char *input) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    Error err;
    sigset_t set, before;
    if (same_file(path, input))
        die("cannot write %s: it is the model itself; name another file", path);
    sigemptyset(&set);
    for (int i = 0; i < 3; i++) {
        struct sigaction old, new = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
        sigaction(numbers[i], NULL, &old);
        if (old.sa_handler == SIG_DFL) sigaction(numbers[i], &new, NULL);
        sigaddset(&set, numbers[i]);
    }
    atexit(remove_temporary);
    sigprocmask(SIG_BLOCK, &set, &before);
    int status = newfile_open(&file, path, &err);
    unfinished = !status && *file.temporary;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (status) die("%s", err.text);
    return file.stream;
}

void outfile_close(void) {
    Error err;
    if (newfile_close(&file, 0, &err)) die("%s", err.text);
    unfinished = 0;
}
