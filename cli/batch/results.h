// results.c: writes a batch's results, one a line, to stdout or to a file. A later run of the same
// batch continues the file.
#ifndef CLI_BATCH_RESULTS_H
#define CLI_BATCH_RESULTS_H

#include "cli/batch/requests.h"

typedef struct {
    const char *path;  // NULL: stdout
    GrownFile *file;
    bool regular;      // a regular file, no pipe or device
    double synced;     // seconds() of the last sync
} Results;

// Opens the file, and locks it. Exits if it cannot be written, or if it is the checkpoint or the
// requests themselves.
Results open_results(const char *path, const char *model, const char *requests);
// Returns how many results of these lines the file begins with, and cuts off what comes after them.
// *n_errors: how many that stay are errors. Exits if the file holds anything else but a torn last
// line. again: results of other requests, options or models are no reason to, and later[n_lines]
// becomes the lines behind them that stay; data NULL: none.
long resume_results(const Results *results, const Text *lines, long n_lines,
                    const Defaults *defaults, bool again, Text *later, long *n_errors);
// Writes a line. False: the reader of stdout has closed it.
bool put_result(Results *results, Text line);
void close_results(Results *results);

#endif
