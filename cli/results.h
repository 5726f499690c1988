// results.c: where a batch's results go, a line each: stdout, or a file that an interrupted batch
// continues.
#ifndef CLI_RESULTS_H
#define CLI_RESULTS_H

#include "requests.h"

typedef struct {
    const char *path;  // NULL: stdout
    int fd;
    bool regular;      // a file, rather than a pipe or a device
    double synced;     // when it was last written to the disk
} Results;

// Opens the file, and locks it. Exits if it cannot be written, or if it is the checkpoint or the
// requests themselves.
Results open_results(const char *path, const char *model, const char *requests);
// How many results of these lines the file has already; a torn last one is cut off. Exits if what
// is in it cannot be their results. *n_errors: how many of them are errors.
long resume_results(const Results *results, const Text *lines, long n_lines,
                    const Defaults *defaults, long *n_errors);
// False: its reader has closed stdout.
bool put_result(Results *results, Text line);
void close_results(Results *results);

#endif
