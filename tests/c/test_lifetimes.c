// Handles freed in every order that heads.h allows, and processes that fork: a child makes what it
// needs of its own, or leaves everything alone, while its parent's threads go on.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "heads.h"

enum { PREFIX = 40, LENGTH = 48, N_SEQUENCES = 5 };

static heads_model *model;
static int vocab_size, ids[LENGTH];
static float *expected;  // [vocab_size], of the whole text
static char saved[] = "/tmp/heads-lifetimes-XXXXXX";

static void *need(const void *p, const char *what, const heads_error *err) {
    if (p) return (void *)p;
    printf("not ok %s: %s\n", what, err->text);
    exit(1);
}

static void check(int ok, const char *what) {
    if (ok) return;
    printf("not ok %s\n", what);
    exit(1);
}

static heads_workspace *open_workspace(int n_threads) {
    heads_error err;
    heads_workspace_options o = {.n_threads = n_threads, .context = 2 * LENGTH};
    return need(heads_workspace_new(model, &o, &err), "heads_workspace_new", &err);
}

static heads_sequence *open_sequence(heads_workspace *w, int shared) {
    heads_error err;
    heads_sequence *s = need(heads_sequence_new(w, shared, &err), "heads_sequence_new", &err);
    need(heads_forward(s, ids, PREFIX, 0, &err), "heads_forward", &err);
    return s;
}

// Whether the text goes on from its prefix with the logits that it has by itself.
static int goes_on(heads_sequence *s) {
    heads_error err;
    const float *logits = need(heads_forward(s, ids + PREFIX, LENGTH - PREFIX, 1, &err),
                               "heads_forward", &err);
    return memcmp(logits, expected, sizeof *logits * (size_t)vocab_size) == 0;
}

// ---- orders of freeing ----

// A text whose pages forks map, its fork, that one's fork, a saved copy of it, and that one's fork.
static void make_family(heads_workspace *w, heads_sequence **s, int shared) {
    heads_error err;
    s[0] = open_sequence(w, shared);
    s[1] = need(heads_sequence_fork(s[0], PREFIX, &err), "heads_sequence_fork", &err);
    s[2] = need(heads_sequence_fork(s[1], PREFIX, &err), "heads_sequence_fork", &err);
    check(heads_sequence_save(s[2], saved, &err) == 0, err.text);
    s[3] = need(heads_sequence_load(w, saved, &err), "heads_sequence_load", &err);
    s[4] = need(heads_sequence_fork(s[3], PREFIX, &err), "heads_sequence_fork", &err);
}

// Frees all but the last of an order, which then goes on.
static void free_in_order(heads_workspace *w, const int *order, int shared) {
    heads_sequence *s[N_SEQUENCES];
    make_family(w, s, shared);
    for (int i = 0; i + 1 < N_SEQUENCES; i++) heads_sequence_free(s[order[i]]);
    check(goes_on(s[order[N_SEQUENCES - 1]]), "a sequence whose relatives are free");
    heads_sequence_free(s[order[N_SEQUENCES - 1]]);
}

// The next order, as C++'s next_permutation; 0: that was the last.
static int next_order(int *order) {
    int i = N_SEQUENCES - 2, j = N_SEQUENCES - 1;
    while (i >= 0 && order[i] > order[i + 1]) i--;
    if (i < 0) return 0;
    while (order[j] < order[i]) j--;
    int swapped = order[i];
    order[i] = order[j], order[j] = swapped;
    for (int a = i + 1, b = N_SEQUENCES - 1; a < b; a++, b--)
        swapped = order[a], order[a] = order[b], order[b] = swapped;
    return 1;
}

static void all_orders(void) {
    heads_workspace *w = open_workspace(1);
    int order[N_SEQUENCES] = {0, 1, 2, 3, 4}, n = 0;
    do free_in_order(w, order, n++ % 2);
    while (next_order(order));
    heads_workspace_free(w);
    printf("ok %d orders of freeing %d sequences\n", n, N_SEQUENCES);
}

// What is freed before what it was made with, and after it, where both may be.
static void others(void) {
    heads_error err;
    heads_workspace *w = open_workspace(1), *guest, *other = open_workspace(2);
    heads_workspace_options o = {.threads_of = other, .context = 2 * LENGTH};
    heads_sampler_options heat = {.temperature = 1, .seed = 1};
    heads_sampler *sampler = need(heads_sampler_new(w, &heat, &err), "heads_sampler_new", &err);
    guest = need(heads_workspace_new(model, &o, &err), "heads_workspace_new", &err);
    heads_workspace_free(w);
    int id = heads_sampler_pick(sampler, expected);
    check(id >= 0 && id < vocab_size, "a sampler whose workspace is free");
    heads_sampler_accept(sampler, id);
    heads_sequence *s = open_sequence(guest, 0);
    check(goes_on(s), "a workspace with another's threads");
    heads_sequence_free(s);
    heads_workspace_free(guest);
    s = open_sequence(other, 0);
    check(goes_on(s), "a workspace whose threads were shared");
    heads_sequence_free(s);
    heads_workspace_free(other);
    heads_sampler_free(sampler);
    printf("ok samplers and shared threads\n");
}

// A batch is freed with requests that wait, run and have ended, some of one prefix.
static void batches(void) {
    heads_error err;
    heads_tokenizer *t = need(heads_tokenizer_new(model, &err), "heads_tokenizer_new", &err);
    const heads_stop stop = {"the end", 7};
    for (int steps = 0; steps < 12; steps++) {
        heads_workspace *w = open_workspace(1);
        heads_batch_options o = {.places = 2, .keep = steps % 3, .tokenizer = t};
        heads_batch *b = need(heads_batch_new(w, &o, &err), "heads_batch_new", &err);
        for (int i = 0; i < 5; i++) {
            heads_request r = {.ids = ids, .n = PREFIX + i, .max_tokens = 3, .n_top = i,
                               .likely = 1, .stops = &stop, .n_stops = 1};
            check(heads_batch_add(b, &r, &err) == i, err.text);
        }
        const heads_event *events;
        for (int i = 0; i < steps; i++) check(heads_batch_step(b, &events, &err) >= 0, err.text);
        if (steps % 2) heads_batch_cancel(b, steps % 5);
        heads_batch_free(b);
        heads_workspace_free(w);
    }
    heads_tokenizer_free(t);
    printf("ok batches freed after 0 to 11 steps\n");
}

// ---- forks of the process ----

static void wait_for(pid_t child, const char *what) {
    int status = -1;
    check(child > 0 && waitpid(child, &status, 0) == child, "fork");
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, what);
}

static void processes(void) {
    // Static: a child, which must leave them alone, has then not lost them.
    static heads_workspace *w;
    static heads_sequence *s, *other;
    w = open_workspace(2);
    s = open_sequence(w, 1), other = open_sequence(w, 0);
    fflush(stdout);
    pid_t idle = fork();
    if (idle == 0) exit(0);  // with what a program does at its end
    pid_t busy = fork();
    if (busy == 0) {
        heads_workspace *own = open_workspace(2);
        heads_sequence *text = open_sequence(own, 0);
        int same = goes_on(text);
        heads_sequence_free(text);
        heads_workspace_free(own);
        exit(!same);
    }
    check(goes_on(s), "the parent beside its children");
    wait_for(idle, "a child that touches nothing");
    wait_for(busy, "a child with a workspace of its own");
    check(goes_on(other), "the parent after its children");
    heads_sequence_free(s);
    heads_sequence_free(other);
    heads_workspace_free(w);
    printf("ok a child that touches nothing, and one with a workspace of its own\n");
}

int main(void) {
    heads_error err;
    int fd = mkstemp(saved);
    model = need(heads_model_open("models/stories.bin", &err), "heads_model_open", &err);
    vocab_size = heads_model_shape(model).vocab_size;
    for (int i = 0; i < LENGTH; i++) ids[i] = (i * i * 31 + i * 7) % vocab_size;
    heads_workspace *w = open_workspace(1);
    heads_sequence *s = need(heads_sequence_new(w, 0, &err), "heads_sequence_new", &err);
    expected = malloc(sizeof *expected * (size_t)vocab_size);
    memcpy(expected, need(heads_forward(s, ids, LENGTH, 1, &err), "heads_forward", &err),
           sizeof *expected * (size_t)vocab_size);
    heads_sequence_free(s);
    heads_workspace_free(w);
    all_orders();
    others();
    batches();
    processes();
    free(expected);
    heads_model_close(model);
    close(fd);
    unlink(saved);
    return 0;
}
