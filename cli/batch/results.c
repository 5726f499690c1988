#include "cli/batch/results.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/json.h"
#include "cli/print.h"

enum { SECONDS_BETWEEN_SYNCS = 2 };

static void fail_to_write(const Results *r) __attribute__((noreturn));
static void fail_to_write(const Results *r) {
    die("cannot write %s: %s", r->path, strerror(errno));
}

// ---- opening ----

Results open_results(const char *path, const char *model, const char *requests) {
    Results r = {.path = path};
    if (!path) return r;
    r.file = grown_open(path, false);
    if (!r.file && errno == EWOULDBLOCK)
        die("cannot write %s: another batch is writing it", path);
    if (!r.file) fail_to_write(&r);
    r.regular = grown_regular(r.file);
    if (same_file(path, model)) die("cannot write %s: it is the model itself", path);
    if (r.regular && same_file(path, requests)) die("cannot write %s: it has the requests", path);
    return r;
}

// ---- going on ----

static void refuse(const Results *r, long number, const char *why, bool again)
    __attribute__((noreturn));
static void refuse(const Results *r, long number, const char *why, bool again) {
    die("%s: line %ld %s; name a new file with -o, or remove this one%s", r->path, number, why,
        again ? "" : ", or make such lines again with --again");
}

// Whether a whole line is a result; *error: it reports an error.
static bool is_result(Text line, bool *error) {
    heads_error err;
    const Json *json = parse_json(line.data, line.size, &err);
    bool result = json && json_get(json, "tokens") && json_get(json, "stopped");
    *error = json && json_get(json, "error");
    json_free(json);
    return result || *error;
}

long resume_results(const Results *r, const Text *lines, long n_lines, const Defaults *defaults,
                    bool again, Text *later, long *n_errors) {
    long number = 0, n = 0;
    size_t at = 0, stays = 0;
    *n_errors = 0;
    if (!r->regular) return 0;
    Text file = read_raw(r->path);
    for (bool torn = false; at < file.size && !torn; number++) {
        const char *end = memchr(file.data + at, '\n', file.size - at);
        Text line = {.data = file.data + at};
        line.size = end ? (size_t)(end - line.data) : file.size - at;
        torn = !end;
        const char *why = "is one more than there are requests";
        if (number < n_lines) {
            Line request = read_line(defaults, lines[number].data, lines[number].size);
            why = unlike(&request, line);
            free_line(&request);
        }
        bool error = false, result = torn ? !why || number : is_result(line, &error);
        if (!result) refuse(r, number + 1, why ? why : "is no result", true);
        if (why && !again) refuse(r, number + 1, why, false);
        at += line.size + !torn;
        if (why || torn) continue;
        *n_errors += error;
        if (n == number) n++, stays = at;
        else text_add(&later[number], line.data, line.size + 1);
    }
    if (grown_cut(r->file, stays)) fail_to_write(r);
    free(file.data);
    return n;
}

// ---- writing ----

// The system says once that it could not write: no sync may go unheard.
static void sync_results(Results *r) {
    if (grown_sync(r->file)) fail_to_write(r);
    r->synced = seconds();
}

bool put_result(Results *r, Text line) {
    if (!r->path) return write_out(line.data, line.size);
    if (grown_write(r->file, line.data, line.size)) fail_to_write(r);
    if (r->regular && seconds() - r->synced > SECONDS_BETWEEN_SYNCS) sync_results(r);
    return true;
}

void close_results(Results *r) {
    if (!r->path) return;
    if (r->regular) sync_results(r);
    if (grown_close(r->file)) fail_to_write(r);
}
