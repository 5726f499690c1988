// This engine for tests/reference/compare_peers.py: a session that stays open, as the peers' do.
//
//     compare_peers MODEL THREADS CHUNK CONTEXT
//
// For each line "DEPTH N AT_ONCE" of stdin, runs N tokens behind the first DEPTH, AT_ONCE at a time with the logits of the
// last, and prints the seconds that took. The tokens before are put into the cache first, if they are not there yet.
#include <stdio.h>
#include <stdlib.h>

#include "session.h"

static void die(const Error *err) {
    fprintf(stderr, "compare_peers: %s\n", err->text);
    exit(1);
}

int main(int argc, char **argv) {
    Error err;
    Model model;
    if (argc != 5) die(&(Error){"expected MODEL THREADS CHUNK CONTEXT"});
    SessionOptions options = {.n_threads = atoi(argv[2]), .chunk = atoi(argv[3]), .context = atoi(argv[4]),
                              .k_dtype = F16, .v_dtype = F16, .logit_rows = 1};
    if (model_open(&model, argv[1], &err)) die(&err);
    Session *session = session_new(&model, &options, &err);
    int *tokens = malloc((size_t)options.context * sizeof *tokens);
    if (!session) die(&err);
    if (!tokens) die(&(Error){"no memory for the tokens"});
    for (int i = 0; i < options.context; i++) tokens[i] = (int)((unsigned)i * 7919u % (unsigned)model.vocab_size);
    for (int depth, n, at_once, filled = 0; scanf("%d %d %d", &depth, &n, &at_once) == 3;) {
        session->position = filled < depth ? filled : depth;
        if (filled < depth && !forward(session, tokens + filled, depth - filled, 0, &err)) die(&err);
        double start = seconds();
        for (int i = 0; i < n; i += at_once)
            if (!forward(session, tokens + depth + i, at_once, 1, &err)) die(&err);
        printf("%.9f\n", seconds() - start);
        fflush(stdout);
        filled = depth + n > filled ? depth + n : filled;
    }
    free(tokens);
    session_free(session);
    model_close(&model);
    return 0;
}
