#include "results.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"
#include "print.h"

enum { SECONDS_BETWEEN_SYNCS = 2 };

// ---- opening ----

Results open_results(const char *path, const char *model, const char *requests) {
    Results r = {.path = path, .fd = STDOUT_FILENO};
    struct stat file;
    if (!path) return r;
    r.regular = stat(path, &file) != 0 || S_ISREG(file.st_mode);
    int flags = r.regular ? O_RDWR | O_CREAT : O_WRONLY;
    r.fd = open(path, flags | O_APPEND | O_CLOEXEC, 0666);
    if (r.fd < 0) die("cannot write %s: %s", path, strerror(errno));
    if (same_file(path, model)) die("cannot write %s: it is the model itself", path);
    if (r.regular && same_file(path, requests)) die("cannot write %s: it has the requests", path);
    if (r.regular && flock(r.fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        die("cannot write %s: another batch is writing it", path);
    return r;
}

// ---- going on ----

static void refuse(const Results *r, long number, const char *why) __attribute__((noreturn));
static void refuse(const Results *r, long number, const char *why) {
    die("%s: line %ld %s; name a new file with -o, or remove this one", r->path, number, why);
}

// Whether a whole line is a result; *error: an error's.
static bool is_result(Text line, bool *error) {
    Error err;
    const Json *json = json_parse(line.data, line.size, &err);
    bool result = json && json_get(json, "tokens") && json_get(json, "stopped");
    *error = json && json_get(json, "error");
    json_free(json);
    return result || *error;
}

// Only the beginning of a torn line can be compared. Returns whether it is an error's line.
static bool check_kept(const Results *r, long number, Text line, bool torn,
                       const Request *request) {
    size_t n = strlen(request->start);
    if (torn && line.size < n) n = line.size;
    bool error = false, ok = line.size >= n && memcmp(line.data, request->start, n) == 0;
    if (!ok || (!torn && !is_result(line, &error)))
        refuse(r, number, "is not the result of the request in that place");
    return error;
}

long resume_results(const Results *r, const Text *lines, long n_lines, const Defaults *defaults,
                    long *n_errors) {
    long n = 0;
    size_t at = 0;
    *n_errors = 0;
    if (!r->regular) return 0;
    Text file = read_file(r->path);
    while (at < file.size) {
        if (n == n_lines) refuse(r, n + 1, "is one more than there are requests");
        const char *end = memchr(file.data + at, '\n', file.size - at);
        Text line = {file.data + at, end ? (size_t)(end - file.data) - at : file.size - at};
        Request request = read_request(defaults, lines[n].data, lines[n].size);
        *n_errors += check_kept(r, n + 1, line, !end, &request);
        free_request(&request);
        if (!end) break;
        at += line.size + 1;
        n++;
    }
    if (ftruncate(r->fd, (off_t)at) != 0) die("cannot write %s: %s", r->path, strerror(errno));
    free(file.data);
    return n;
}

// ---- writing ----

static void write_all(const Results *r, const char *data, size_t size) {
    while (size > 0) {
        ssize_t written = write(r->fd, data, size);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) die("cannot write %s: %s", r->path, strerror(errno));
        data += written;
        size -= (size_t)written;
    }
}

bool put_result(Results *r, Text line) {
    if (!r->path) return write_out(line.data, line.size);
    write_all(r, line.data, line.size);
    if (r->regular && seconds() - r->synced > SECONDS_BETWEEN_SYNCS) {
        fsync(r->fd);
        r->synced = seconds();
    }
    return true;
}

void close_results(Results *r) {
    if (!r->path) return;
    if ((r->regular && fsync(r->fd) != 0) || close(r->fd) != 0)
        die("cannot write %s: %s", r->path, strerror(errno));
}
