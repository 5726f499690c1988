// This engine for tests/reference/compare_peers.py: a sequence that stays open, as the peers' do.
//
//     compare_peers MODEL THREADS CHUNK CONTEXT
//
// For each line "DEPTH N AT_ONCE" of stdin, runs N tokens after the first DEPTH, AT_ONCE at a time
// with the logits of the last, and prints the seconds that took. The tokens before are put into the
// cache first, if they are not there yet.
//
// For each line "DEPTH -N STEPS", N sequences side by side, forks of the first DEPTH tokens: STEPS
// tokens of each, one by one. An encoder reads N texts of STEPS tokens at once.
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"

enum { MAX_SEQUENCES = 256 };

static void die(const Error *err) {
    fprintf(stderr, "compare_peers: %s\n", err->text);
    exit(1);
}

static void run(Sequence *s, const int *tokens, int n, int n_logits) {
    Error err;
    if (n && !heads_forward(s, tokens, n, n_logits, &err)) die(&err);
}

static void go_to(Sequence *s, const int *tokens, int depth) {
    Error err;
    if (heads_sequence_length(s) > depth && heads_sequence_rewind(s, depth, &err)) die(&err);
    run(s, tokens + heads_sequence_length(s), depth - heads_sequence_length(s), 0);
}

// The seconds of so many passes of all runs, after some that are not timed. Frees the sequences.
static double run_all(Workspace *w, Run *runs, int n, int untimed, int timed) {
    Error err;
    double start = 0;
    for (int i = -untimed; i < timed; i++) {
        if (i == 0) start = seconds();
        if (!heads_forward_runs(w, runs, n, &err)) die(&err);
    }
    double time = seconds() - start;
    for (int i = 0; i < n; i++) heads_sequence_free(runs[i].sequence);
    return time;
}

static double run_batch(Workspace *w, const Sequence *parent, int depth, int n, int steps,
                        const int *tokens) {
    Error err;
    Run runs[MAX_SEQUENCES];
    for (int i = 0; i < n; i++) {
        runs[i] = (Run){heads_sequence_fork(parent, depth, &err), tokens + depth + i, 1, 1};
        if (!runs[i].sequence) die(&err);
    }
    return run_all(w, runs, n, 1, steps);
}

static double run_texts(Workspace *w, int n, int length, const int *tokens) {
    Error err;
    Run runs[MAX_SEQUENCES];
    for (int i = 0; i < n; i++) {
        runs[i] = (Run){heads_sequence_new(w, false, &err), tokens + i * length, length, length};
        if (!runs[i].sequence) die(&err);
    }
    return run_all(w, runs, n, 0, 1);
}

int main(int argc, char **argv) {
    Error err;
    Model model;
    if (argc != 5) die(&(Error){"expected MODEL THREADS CHUNK CONTEXT"});
    int context = atoi(argv[4]);
    WorkspaceOptions options = {.n_threads = atoi(argv[2]), .chunk = atoi(argv[3]),
                                .context = context, .k_type = F16, .v_type = F16,
                                .logit_rows = MAX_SEQUENCES};
    if (model_open(&model, argv[1], &err)) die(&err);
    bool encoder = heads_model_shape(&model).encoder;
    options.hidden = encoder;
    Workspace *w = heads_workspace_new(&model, &options, &err);
    Sequence *s = w ? heads_sequence_new(w, true, &err) : NULL;
    int *tokens = malloc((size_t)(context + MAX_SEQUENCES) * sizeof *tokens);
    if (!s) die(&err);
    if (!tokens) die(&(Error){"no memory for the tokens"});
    for (int i = 0; i < context + MAX_SEQUENCES; i++)
        tokens[i] = (int)((unsigned)i * 7919u % (unsigned)model.vocab_size);
    for (int depth, n, m; scanf("%d %d %d", &depth, &n, &m) == 3;) {
        if (-n > MAX_SEQUENCES) die(&(Error){"too many sequences"});
        go_to(s, tokens, depth);
        double start = seconds(), time = 0;
        if (n < 0)
            time = encoder ? run_texts(w, -n, m, tokens) : run_batch(w, s, depth, -n, m, tokens);
        for (int i = 0; i < n; i += m) run(s, tokens + depth + i, m, 1);
        printf("%.9f\n", n < 0 ? time : seconds() - start);
        fflush(stdout);
    }
    free(tokens);
    heads_sequence_free(s);
    heads_workspace_free(w);
    model_close(&model);
    return 0;
}
