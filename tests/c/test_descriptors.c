// A host that has closed 0, 1 and 2: no file of the library's gets these numbers, so nothing that
// the host prints goes into one.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heads.h"

enum { LENGTH = 40 };

static int report;  // where stdout goes on
static int n_synced, lowest_synced = 1 << 20;

// In the C library's place: the descriptors of what is saved.
int fsync(int fd) {
    n_synced++;
    if (fd < lowest_synced) lowest_synced = fd;
    return (int)syscall(SYS_fsync, fd);
}

static int check(int ok, const char *what) {
    dprintf(report, "%s %s\n", ok ? "ok" : "not ok:", what);
    return !ok;
}

static void *need(void *p, const char *what, const heads_error *err) {
    if (p) return p;
    dprintf(report, "not ok: %s: %s\n", what, err->text);
    exit(1);
}

static int all_closed(const char *what) {
    int ok = 1;
    for (int fd = 0; fd < 3; fd++) ok &= fcntl(fd, F_GETFD) == -1;
    return check(ok, what);
}

int main(void) {
    heads_error err;
    char folder[] = "/tmp/heads-descriptors-XXXXXX", path[64];
    int ids[LENGTH], failed = 0;
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/s", folder);
    for (int i = 0; i < LENGTH; i++) ids[i] = 5 + i % 9;
    report = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
    for (int fd = 0; fd < 3; fd++) close(fd);

    heads_model *m = need(heads_model_open("models/stories.bin", &err), "model", &err);
    failed |= all_closed("a model is open");
    heads_workspace_options options = {.n_threads = 2, .context = 2 * LENGTH};
    heads_workspace *w = need(heads_workspace_new(m, &options, &err), "workspace", &err);
    heads_sequence *s = need(heads_sequence_new(w, 1, &err), "sequence", &err);
    need((void *)heads_forward(s, ids, LENGTH, 1, &err), "forward", &err);
    heads_sequence *fork = need(heads_sequence_fork(s, LENGTH / 2, &err), "fork", &err);
    failed |= all_closed("a sequence runs and has a fork");

    int saved = heads_sequence_save(s, path, &err) == 0;
    failed |= check(saved && n_synced && lowest_synced > 2, "a session is saved");
    heads_sequence *loaded = need(heads_sequence_load(w, path, &err), "load", &err);
    int same = heads_sequence_common(loaded, ids, LENGTH) == LENGTH;
    failed |= check(same && heads_forward(loaded, ids, 1, 1, &err), "and loads");
    failed |= all_closed("all of it is open");

    heads_sequence_free(loaded);
    heads_sequence_free(fork);
    heads_sequence_free(s);
    heads_workspace_free(w);
    heads_model_close(m);
    unlink(path);
    rmdir(folder);
    return failed;
}
