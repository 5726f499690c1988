// What a sequence gives does not depend on what runs beside it, on whether its beginning is shared,
// rewound, saved or loaded, or on how its tokens are cut into calls.
//
//   sequences MODEL K_DTYPE V_DTYPE N_SEQUENCES SEED [ISA]
//
// Runs N random texts, each alone in one call, and then all of them side by side in random pieces,
// with random rewinds, forks and saved copies in between; every row of logits must have the same
// bits. Prints "ok" and what was done. tests/engine/test_sequences.py calls it for all kinds of
// models.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"

enum { LONGEST = 180, MAX_SEQUENCES = 64, LOGIT_ROWS = 512 };

typedef struct {
    int n, tokens[LONGEST];
    float *logits;  // [n][vocab], of the text alone
    Sequence *s;
} Text;

static struct {
    int rows, passes, rewinds, refused, forks, shared_forks, saves;
} done;

static uint64_t state;

static int below(int n) {  // a random number 0..n-1
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static void give_up(const char *what, const Error *err) {
    printf("not ok: %s: %s\n", what, err->text);
    exit(1);
}

static Dtype dtype_of(const char *name) {
    Dtype d = dtype_of_name(name);
    if (d < N_DTYPES) return d;
    printf("not ok: there is no dtype %s\n", name);
    exit(1);
}

static void run_alone(Workspace *w, Text *t, int vocab_size) {
    Error err;
    Sequence *s = heads_sequence_new(w, false, &err);
    if (!s) give_up("heads_sequence_new", &err);
    const float *logits = heads_forward(s, t->tokens, t->n, t->n, &err);
    if (!logits) give_up("forward", &err);
    t->logits = malloc(sizeof *logits * (size_t)t->n * (size_t)vocab_size);
    for (int i = 0; i < t->n; i++)
        memcpy(t->logits + (size_t)i * (size_t)vocab_size,
               logits + (size_t)i * heads_logit_stride(w),
               sizeof *logits * (size_t)vocab_size);
    heads_sequence_free(s);
}

static void compare(const Text *t, int pos, const float *logits, int vocab_size) {
    const float *want = t->logits + (size_t)pos * (size_t)vocab_size;
    done.rows++;
    if (memcmp(want, logits, sizeof *want * (size_t)vocab_size) == 0) return;
    printf("not ok: position %d of a text of %d has other logits than alone, after %d rows, %d "
           "rewinds, %d forks\n", pos, t->n, done.rows, done.rewinds, done.forks);
    exit(1);
}

// Some random pieces of some texts, in one call.
static void run_some(Workspace *w, Text *texts, int n_texts, int vocab_size) {
    Error err;
    Run runs[MAX_SEQUENCES];
    Text *of[MAX_SEQUENCES];
    int n_runs = 0, n_rows = 0;
    for (int i = 0; i < n_texts; i++) {
        Text *t = &texts[i];
        int length = heads_sequence_length(t->s), left = t->n - length;
        if (!left || below(4) == 0) continue;
        int n = below(2) ? 1 : 1 + below(left), n_logits = below(n + 1);
        if (n_rows + n_logits > LOGIT_ROWS) continue;
        n_rows += n_logits;
        of[n_runs] = t;
        runs[n_runs++] = (Run){t->s, t->tokens + length, n, n_logits};
    }
    const float *logits = heads_forward_runs(w, runs, n_runs, &err);
    if (!logits) give_up("heads_forward_runs", &err);
    done.passes++;
    for (int i = 0; i < n_runs; i++)
        for (int j = 0; j < runs[i].n_logits; j++, logits += heads_logit_stride(w))
            compare(of[i], heads_sequence_length(runs[i].sequence) - runs[i].n_logits + j, logits,
                    vocab_size);
}

static Sequence *saved_copy(Workspace *w, const Sequence *s) {
    Error err;
    char path[] = "/tmp/heads-sequence-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || heads_sequence_save(s, path, &err)) give_up("heads_sequence_save", &err);
    Sequence *copy = heads_sequence_load(w, path, &err);
    if (!copy) give_up("heads_sequence_load", &err);
    close(fd);
    unlink(path);
    return copy;
}

// Puts a text's sequence back, or a fork or a copy from a file in its place.
static void disturb(Workspace *w, Text *t, Sequence **kept) {
    Error err;
    int length = heads_sequence_length(t->s);
    int n = below(3) ? below(length + 1) : length, what = below(3);
    if (what == 0) {
        if (heads_sequence_rewind(t->s, n, &err)) done.refused++;
        else done.rewinds++;
    } else if (what == 1) {
        Sequence *fork = heads_sequence_fork(t->s, n, &err);
        done.refused += !fork;
        if (!fork) return;
        done.forks++;
        done.shared_forks += heads_sequence_kv_usage(fork).shared > 0;
        heads_sequence_free(*kept);  // one parent lives on, so that shared pages have two users
        *kept = t->s;
        t->s = fork;
    } else if (length) {
        Sequence *copy = saved_copy(w, t->s);
        heads_sequence_free(t->s);
        t->s = copy;
        done.saves++;
    }
    heads_sequence_expect(t->s, t->n);
}

static bool finished(const Text *texts, int n) {
    for (int i = 0; i < n; i++)
        if (heads_sequence_length(texts[i].s) < texts[i].n) return false;
    return true;
}

static void run_together(Workspace *w, Text *texts, int n, int vocab_size) {
    Error err;
    Sequence *kept = NULL;
    for (int i = 0; i < n; i++) {
        texts[i].s = heads_sequence_new(w, below(2), &err);
        if (!texts[i].s) give_up("heads_sequence_new", &err);
        heads_sequence_expect(texts[i].s, texts[i].n);
    }
    while (!finished(texts, n)) {
        run_some(w, texts, n, vocab_size);
        if (done.passes < 200 && below(2)) disturb(w, &texts[below(n)], &kept);
    }
    heads_sequence_free(kept);
    for (int i = 0; i < n; i++) heads_sequence_free(texts[i].s);
}

int main(int argc, char **argv) {
    Error err;
    Model m;
    static Text texts[MAX_SEQUENCES];
    if (argc < 6 || model_open(&m, argv[1], &err)) give_up("usage: MODEL K V N SEED [ISA]", &err);
    int n = atoi(argv[4]), longest = m.context < LONGEST ? m.context : LONGEST;
    state = (uint64_t)atoll(argv[5]);
    WorkspaceOptions o = {.context = longest, .chunk = 1 + below(200), .n_threads = 1 + below(3),
                          .k_type = dtype_of(argv[2]), .v_type = dtype_of(argv[3]),
                          .logit_rows = LOGIT_ROWS, .isa = argc > 6 ? argv[6] : NULL};
    Workspace *w = heads_workspace_new(&m, &o, &err);
    if (!w) give_up("heads_workspace_new", &err);
    for (int i = 0; i < n; i++) {
        Text *t = &texts[i];
        t->n = 1 + below(longest);
        for (int j = 0; j < t->n; j++)  // many texts share a beginning, as prompts do
            t->tokens[j] = i && j < 20 && i % 2 ? texts[0].tokens[j] : below(m.vocab_size);
        run_alone(w, t, m.vocab_size);
    }
    run_together(w, texts, n, m.vocab_size);
    for (int i = 0; i < n; i++) free(texts[i].logits);
    heads_workspace_free(w);
    model_close(&m);
    printf("ok: %d rows in %d passes, %d rewinds, %d refused, %d forks, %d shared, %d saved\n",
           done.rows, done.passes, done.rewinds, done.refused, done.forks, done.shared_forks,
           done.saves);
}
