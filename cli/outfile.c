#include "outfile.h"

#include <errno.h>
#include <stdlib.h>

#include "library/inspect.h"
#include "print.h"

static NewFile *outs[2];  // NULL: none is open

// No temporary file is left: posix_process.c removes them, and so does the exit of die().
FILE *outfile_open(const char *path, const char *const *inputs, int n_inputs) {
    heads_error err;
    int out = 0;
    while (outs[out]) out++;
    for (int i = 0; i < n_inputs; i++)
        if (same_file(path, inputs[i]))
            die("cannot write %s: it is the model itself; name another file", path);
    atexit(newfile_remove_temporaries);
    outs[out] = newfile_open(path, &err);
    // The temporary name has this process's number: whoever has it is the other file.
    if (!outs[out] && errno == EEXIST)
        die("cannot write %s: two results would go there; name another file", path);
    if (!outs[out]) die("%s", err.text);
    return newfile_stream(outs[out]);
}

void outfile_close(FILE *f) {
    heads_error err;
    int out = 0;
    while (!outs[out] || newfile_stream(outs[out]) != f) out++;
    if (newfile_close(outs[out], 0, &err)) die("%s", err.text);
    outs[out] = NULL;
}
