// Several callers at once: each thread has a workspace of its own, with two threads, on one model
// and one tokenizer. What its sequences give, forked from one another and loaded from one file, has
// the bits that one thread alone gets. Meanwhile others open and close models. `make tsan` runs
// it under ThreadSanitizer.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "heads.h"

enum {
    N_CALLERS = 4, N_THREADS = 6, N_OPENED = 3, N_TEXTS = 3, PREFIX = 50, LENGTH = 90, PIECE = 7
};

static heads_model *model;
static heads_tokenizer *tokenizer;
static int vocab_size;
static int texts[N_TEXTS][LENGTH];  // that begin with the same PREFIX tokens
static float *expected[N_TEXTS];    // [LENGTH][vocab_size], each text by itself in one thread
static char saved[] = "/tmp/heads-threads-XXXXXX";
static pthread_barrier_t barrier;

static const char path[] = "models/stories.bin";

static void *need(void *p, const char *what, const heads_error *err) {
    if (p) return p;
    printf("not ok: %s: %s\n", what, err->text);
    exit(1);
}

static heads_workspace *open_workspace(int n_threads) {
    heads_error err;
    heads_workspace_options o = {.n_threads = n_threads, .context = LENGTH};
    return need(heads_workspace_new(model, &o, &err), "workspace", &err);
}

// Whether n rows of logits are text t's from position pos on.
static int same_rows(const heads_workspace *w, const float *logits, int t, int pos, int n) {
    size_t bytes = sizeof *logits * (size_t)vocab_size;
    for (int i = 0; i < n; i++) {
        const float *want = expected[t] + (size_t)(pos + i) * (size_t)vocab_size;
        if (memcmp(logits + (size_t)i * heads_logit_stride(w), want, bytes) != 0) return 0;
    }
    return 1;
}

// Each text by itself; saves the prefix.
static void run_alone(void) {
    heads_error err;
    heads_workspace *w = open_workspace(1);
    size_t row = (size_t)vocab_size;
    for (int t = 0; t < N_TEXTS; t++) {
        heads_sequence *s = need(heads_sequence_new(w, 0, &err), "sequence", &err);
        expected[t] = malloc(sizeof *expected[t] * row * LENGTH);
        const float *logits = heads_forward(s, texts[t], LENGTH, LENGTH, &err);
        need((void *)logits, "forward", &err);
        for (int i = 0; i < LENGTH; i++)
            memcpy(expected[t] + (size_t)i * row, logits + (size_t)i * heads_logit_stride(w),
                   sizeof *logits * row);
        if (heads_sequence_rewind(s, PREFIX, &err) || heads_sequence_save(s, saved, &err))
            need(NULL, "saving", &err);
        heads_sequence_free(s);
    }
    heads_workspace_free(w);
}

// All sequences side by side from the prefix to the end; s[i] has text i, the last one text 0.
static int run_on(heads_workspace *w, heads_sequence **s) {
    heads_error err;
    heads_run runs[N_TEXTS + 1];
    int wrong = 0;
    for (int pos = PREFIX, n; pos < LENGTH; pos += n) {
        n = LENGTH - pos < PIECE ? LENGTH - pos : PIECE;
        for (int i = 0; i <= N_TEXTS; i++)
            runs[i] = (heads_run){s[i], texts[i % N_TEXTS] + pos, n, n};
        const float *logits = heads_forward_runs(w, runs, N_TEXTS + 1, &err);
        need((void *)logits, "heads_forward_runs", &err);
        for (int i = 0; i <= N_TEXTS; i++, logits += (size_t)n * heads_logit_stride(w))
            wrong += !same_rows(w, logits, i % N_TEXTS, pos, n);
    }
    return wrong;
}

// Whether the tokenizer reads back what it made of a text.
static int round_trip(void) {
    static const char text[] = "Once upon a time, there was a small girl named Mia.";
    heads_error err;
    const char *piece;
    char back[256];
    size_t len, n_back = 0;
    int *ids;
    long n = heads_encode(tokenizer, text, sizeof text - 1, 1, &ids, &err);
    heads_decoder *d = need(heads_decoder_new(tokenizer, 1, &err), "decoder", &err);
    for (long i = 0; i < n; i++) {
        if (heads_decoder_push(d, ids[i], &piece, &len, &err)) need(NULL, "decoding", &err);
        if (n_back + len > sizeof back) return 0;
        memcpy(back + n_back, piece, len);
        n_back += len;
    }
    heads_decoder_free(d);
    heads_free(ids);
    return n_back == sizeof text - 1 && memcmp(back, text, n_back) == 0;
}

static void *caller(void *wrong) {
    heads_error err;
    pthread_barrier_wait(&barrier);
    heads_workspace *w = open_workspace(2);
    heads_sequence *s[N_TEXTS + 1];
    s[0] = need(heads_sequence_new(w, 1, &err), "sequence", &err);
    const float *logits = heads_forward(s[0], texts[0], PREFIX, PREFIX, &err);
    need((void *)logits, "forward", &err);
    *(int *)wrong += !same_rows(w, logits, 0, 0, PREFIX);
    for (int i = 1; i < N_TEXTS; i++)
        s[i] = need(heads_sequence_fork(s[i - 1], PREFIX, &err), "fork", &err);
    s[N_TEXTS] = need(heads_sequence_load(w, saved, &err), "load", &err);
    *(int *)wrong += run_on(w, s) + !round_trip();
    for (int i = 0; i <= N_TEXTS; i++) heads_sequence_free(s[i]);
    heads_workspace_free(w);
    return NULL;
}

// Each time all that a program would make of a model, and a chat template that it lacks.
static void *opener(void *wrong) {
    heads_error err;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < N_OPENED; i++) {
        heads_model *m = need(heads_model_open(path, &err), "model", &err);
        heads_tokenizer *t = need(heads_tokenizer_new(m, &err), "tokenizer", &err);
        heads_workspace *w = need(heads_workspace_new(m, NULL, &err), "workspace", &err);
        heads_sequence *s = need(heads_sequence_new(w, i % 2, &err), "sequence", &err);
        const float *logits = heads_forward(s, texts[0], PIECE, PIECE, &err);
        need((void *)logits, "forward", &err);
        *(int *)wrong += !same_rows(w, logits, 0, 0, PIECE);
        *(int *)wrong += heads_chat_new(m, &err) != NULL || !strstr(err.text, "template");
        heads_sequence_free(s);
        heads_workspace_free(w);
        heads_tokenizer_free(t);
        heads_model_close(m);
    }
    return NULL;
}

int main(void) {
    heads_error err;
    pthread_t threads[N_THREADS];
    int wrong[N_THREADS] = {0}, all = 0, fd = mkstemp(saved);
    model = need(heads_model_open(path, &err), "model", &err);
    tokenizer = need(heads_tokenizer_new(model, &err), "tokenizer", &err);
    vocab_size = heads_model_shape(model).vocab_size;
    for (int t = 0; t < N_TEXTS; t++)
        for (int i = 0; i < LENGTH; i++)
            texts[t][i] = (i * i * 31 + i * 7 + (i < PREFIX ? 0 : 1 + t * 101)) % vocab_size;
    run_alone();
    pthread_barrier_init(&barrier, NULL, N_THREADS);
    for (int i = 0; i < N_THREADS; i++)
        if (pthread_create(&threads[i], NULL, i < N_CALLERS ? caller : opener, &wrong[i])) return 1;
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL), all += wrong[i];
    if (all) printf("not ok: %d runs have other bits than in one thread\n", all);
    else printf("ok %d callers, %d sequences each; %d models opened\n", N_CALLERS, N_TEXTS + 1,
                (N_THREADS - N_CALLERS) * N_OPENED);
    for (int t = 0; t < N_TEXTS; t++) free(expected[t]);
    heads_tokenizer_free(tokenizer);
    heads_model_close(model);
    close(fd);
    unlink(saved);
    return all > 0;
}
