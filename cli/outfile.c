#include "outfile.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "platform.h"
#include "print.h"

static struct {
    NewFile file;
    volatile sig_atomic_t unfinished;  // its temporary file is to be removed
    bool open;
} outs[2];
enum { N_OUTS = sizeof outs / sizeof *outs };

static void remove_temporaries(void) {
    for (int i = 0; i < N_OUTS; i++)
        if (outs[i].unfinished) unlink(outs[i].file.temporary);
}

static void on_signal(int number) {
    remove_temporaries();
    raise(number);  // SA_RESETHAND: this one ends the program
}

// A signal removes the temporary file from its first moment on.
FILE *outfile_open(const char *path, char **inputs, int n_inputs) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    Error err;
    sigset_t set, before;
    int out = 0;
    while (outs[out].open) out++;
    for (int i = 0; i < n_inputs; i++)
        if (same_file(path, inputs[i]))
            die("cannot write %s: it is the model itself; name another file", path);
    sigemptyset(&set);
    for (int i = 0; i < 3; i++) {
        struct sigaction old, new = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
        sigaction(numbers[i], NULL, &old);
        if (old.sa_handler == SIG_DFL) sigaction(numbers[i], &new, NULL);
        sigaddset(&set, numbers[i]);
    }
    atexit(remove_temporaries);
    sigprocmask(SIG_BLOCK, &set, &before);
    int status = newfile_open(&outs[out].file, path, &err);
    outs[out].open = !status;
    outs[out].unfinished = !status && *outs[out].file.temporary;
    sigprocmask(SIG_SETMASK, &before, NULL);
    // The temporary name has this process's number: whoever has it is the other file.
    if (status && errno == EEXIST)
        die("cannot write %s: two results would go there; name another file", path);
    if (status) die("%s", err.text);
    return outs[out].file.stream;
}

void outfile_close(FILE *f) {
    Error err;
    int out = 0;
    while (!outs[out].open || outs[out].file.stream != f) out++;
    if (newfile_close(&outs[out].file, 0, &err)) die("%s", err.text);
    outs[out].unfinished = outs[out].open = false;
}
