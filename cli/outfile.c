#include "outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "print.h"

static char name[PATH_MAX], target[PATH_MAX];  // as it was given; the file that links lead to
static char temporary[PATH_MAX + 16];
static volatile sig_atomic_t unfinished;       // temporary is to be removed

static void remove_temporary(void) {
    if (unfinished) unlink(temporary);
}

static void on_signal(int number) {
    remove_temporary();
    raise(number);  // SA_RESETHAND: this one ends the program
}

// Creates the temporary file, which a signal removes from its first moment on.
static int create_temporary(mode_t mode) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t set, before;
    sigemptyset(&set);
    for (int i = 0; i < 3; i++) {
        struct sigaction old, new = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
        sigaction(numbers[i], NULL, &old);
        if (old.sa_handler == SIG_DFL) sigaction(numbers[i], &new, NULL);
        sigaddset(&set, numbers[i]);
    }
    atexit(remove_temporary);
    sigprocmask(SIG_BLOCK, &set, &before);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    unfinished = fd >= 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return fd;
}

// Whether the path names something that no other file can take the place of; if not, where its
// links lead is in target. /dev/stdout is such a thing even where it is sent to a file.
static bool is_direct(const char *path, char **inputs, int n_inputs) {
    struct stat out, in;
    if (stat(path, &out) != 0) {
        snprintf(target, sizeof target, "%s", path);
        return lstat(path, &out) == 0;  // a link to what is not there yet
    }
    for (int i = 0; i < n_inputs; i++)
        if (stat(inputs[i], &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            die("cannot write %s: it is the model itself; name another file", path);
    return !S_ISREG(out.st_mode) || !realpath(path, target) ||
           (strncmp(path, "/dev/", 5) == 0 && strncmp(target, "/dev/", 5) != 0);
}

FILE *outfile_open(const char *path, char **inputs, int n_inputs) {
    struct stat old;
    snprintf(name, sizeof name, "%s", path);
    bool direct = is_direct(path, inputs, n_inputs);
    FILE *f = NULL;
    if (direct) {
        f = fopen(path, "ab");
    } else {
        snprintf(temporary, sizeof temporary, "%s.%ld", target, (long)getpid());
        int fd = create_temporary(stat(target, &old) == 0 ? old.st_mode & 0777 : 0666);
        if (fd >= 0) f = fdopen(fd, "wb");
    }
    if (!f) die("cannot write %s: %s", path, strerror(errno));
    return f;
}

void outfile_close(FILE *f) {
    bool ok = !ferror(f) && fflush(f) == 0 && (!unfinished || fsync(fileno(f)) == 0);
    if (fclose(f) != 0 || !ok || (unfinished && rename(temporary, target) != 0)) {
        die("cannot write %s: %s", name, strerror(errno));
    }
    unfinished = 0;
}
