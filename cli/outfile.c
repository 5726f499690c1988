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

enum { MAX_FILES = 2 };  // open at a time

typedef struct {
    FILE *f;                              // NULL: not open
    char name[PATH_MAX], target[PATH_MAX];  // as it was given; the file that links lead to
    char temporary[PATH_MAX + 16];
    volatile sig_atomic_t unfinished;     // temporary is to be removed
} OutFile;

static OutFile files[MAX_FILES];

static void remove_temporaries(void) {
    for (int i = 0; i < MAX_FILES; i++)
        if (files[i].unfinished) unlink(files[i].temporary);
}

static void on_signal(int number) {
    remove_temporaries();
    raise(number);  // SA_RESETHAND: this one ends the program
}

// Creates the temporary file, which a signal removes from its first moment on.
static int create_temporary(OutFile *o, mode_t mode) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t set, before;
    sigemptyset(&set);
    for (int i = 0; i < 3; i++) {
        struct sigaction old, new = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
        sigaction(numbers[i], NULL, &old);
        if (old.sa_handler == SIG_DFL) sigaction(numbers[i], &new, NULL);
        sigaddset(&set, numbers[i]);
    }
    atexit(remove_temporaries);
    sigprocmask(SIG_BLOCK, &set, &before);
    int fd = open(o->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    o->unfinished = fd >= 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return fd;
}

// Whether the path names something that no other file can take the place of; if not, where its
// links lead is in target. /dev/stdout is such a thing even where it is sent to a file.
static bool is_direct(OutFile *o, const char *input) {
    struct stat out, in;
    if (stat(o->name, &out) != 0) {
        snprintf(o->target, sizeof o->target, "%s", o->name);
        return lstat(o->name, &out) == 0;  // a link to what is not there yet
    }
    if (stat(input, &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        die("cannot write %s: it is the model itself; name another file", o->name);
    return !S_ISREG(out.st_mode) || !realpath(o->name, o->target) ||
           (strncmp(o->name, "/dev/", 5) == 0 && strncmp(o->target, "/dev/", 5) != 0);
}

FILE *outfile_open(const char *path, const char *input) {
    struct stat old;
    OutFile *o = files;
    while (o->f) o++;
    snprintf(o->name, sizeof o->name, "%s", path);
    if (is_direct(o, input)) {
        o->f = fopen(path, "ab");
    } else {
        snprintf(o->temporary, sizeof o->temporary, "%s.%ld", o->target, (long)getpid());
        int fd = create_temporary(o, stat(o->target, &old) == 0 ? old.st_mode & 0777 : 0666);
        // The name has this process's number: whoever has it is the other file.
        if (fd < 0 && errno == EEXIST)
            die("cannot write %s: two results would go there; name another file", path);
        if (fd >= 0) o->f = fdopen(fd, "wb");
    }
    if (!o->f) die("cannot write %s: %s", path, strerror(errno));
    return o->f;
}

void outfile_close(FILE *f) {
    OutFile *o = files;
    while (o->f != f) o++;
    bool ok = !ferror(f) && fflush(f) == 0 && (!o->unfinished || fsync(fileno(f)) == 0);
    if (fclose(f) != 0 || !ok || (o->unfinished && rename(o->temporary, o->target) != 0))
        die("cannot write %s: %s", o->name, strerror(errno));
    o->unfinished = 0;
    o->f = NULL;
}
