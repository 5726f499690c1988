// A saved sequence goes on in any context that has room for it, as the same text does there.
//
//   contexts MODEL K_TYPE V_TYPE N_PAIRS SEED
//
// Saves random texts, some of them put back by a few tokens, in random contexts, and loads each in
// another, and from there in the first again: the logits of what follows must have the bits that
// they have in a run of their own.
// Types: 0 f16, 1 f32, 2 q8, 3 q4. Prints "ok" and what was done. tests/engine/test_sequences.py
// calls it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "heads.h"

enum { LONGEST = 200, LEAST = 4, MORE = 12 };

static uint64_t state;
static char file[] = "/tmp/heads-contexts-XXXXXX";

static int below(int n) {  // a random number 0..n-1
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static void check(int ok, const char *what, int from, int to, int n, const heads_error *err) {
    if (ok) return;
    printf("not ok: context %d, then %d, a text of %d: %s: %s\n", from, to, n, what, err->text);
    unlink(file);
    exit(1);
}

typedef struct {  // two workspaces and a text
    const heads_model *model;
    heads_workspace_options options;
    int from, to, n, length, n_source;  // length: what is saved of its first n tokens
    int tokens[LONGEST + MORE], source[LEAST];
} Pair;

static heads_workspace *workspace(const Pair *p, int context) {
    heads_error err;
    heads_workspace_options o = p->options;
    o.context = context;
    heads_workspace *w = heads_workspace_new(p->model, &o, &err);
    check(w != NULL, "heads_workspace_new", p->from, p->to, p->n, &err);
    return w;
}

// A sequence of w with the first n tokens.
static heads_sequence *sequence(const Pair *p, heads_workspace *w, int n) {
    heads_error err;
    heads_sequence *s = heads_sequence_new(w, below(2), &err);
    check(s != NULL, "heads_sequence_new", p->from, p->to, p->n, &err);
    heads_run source = {s, p->source, p->n_source, 0};
    check(!p->n_source || !heads_read_sources(w, &source, 1, &err), "heads_read_sources", p->from,
          p->to, p->n, &err);
    check(heads_forward(s, p->tokens, n, 0, &err) != NULL, "heads_forward", p->from, p->to, p->n,
          &err);
    return s;
}

// Goes on with some tokens; returns the logits of the last one.
static const float *go_on(const Pair *p, heads_sequence *s, int n) {
    heads_error err;
    const float *logits = heads_forward(s, p->tokens + p->length, n, 1, &err);
    check(logits != NULL, "heads_forward", p->from, p->to, p->n, &err);
    return logits;
}

// Loads the file in w and goes on: the logits must be `alone`. Leaves a file that w has saved.
static void try_context(const Pair *p, heads_workspace *w, int n, const float *alone,
                        size_t bytes) {
    heads_error err;
    heads_sequence *s = heads_sequence_load(w, file, &err);
    check(s != NULL, "heads_sequence_load", p->from, p->to, p->length, &err);
    check(!heads_sequence_save(s, file, &err), "heads_sequence_save", p->from, p->to, p->n, &err);
    check(memcmp(go_on(p, s, n), alone, bytes) == 0, "other logits", p->from, p->to, p->length,
          &(heads_error){"than in a run of its own"});
    heads_sequence_free(s);
}

// Whether it could be put back before it was saved.
static int try_pair(Pair *p, int vocab_size) {
    heads_error err;
    heads_workspace *a = workspace(p, p->from), *b = workspace(p, p->to);
    heads_sequence *s = sequence(p, a, p->n);
    int back = p->length < p->n && !heads_sequence_rewind(s, p->length, &err);
    p->length = heads_sequence_length(s);
    int least = p->to < p->from ? p->to : p->from, room = least - p->length;
    check(!heads_sequence_save(s, file, &err), "heads_sequence_save", p->from, p->to, p->n, &err);
    if (room >= 1) {
        int n = room < MORE ? room : 1 + below(MORE);
        size_t bytes = sizeof(float) * (size_t)vocab_size;
        float *alone = malloc(bytes);
        heads_sequence *other = sequence(p, b, p->length);
        memcpy(alone, go_on(p, other, n), bytes);
        try_context(p, b, n, alone, bytes);
        try_context(p, a, n, alone, bytes);  // and back again
        free(alone);
        heads_sequence_free(other);
    }
    heads_sequence_free(s);
    heads_workspace_free(a);
    heads_workspace_free(b);
    return back;
}

int main(int argc, char **argv) {
    heads_error err = {""};
    int fd = mkstemp(file), n_back = 0;
    heads_model *m = argc == 6 && fd >= 0 ? heads_model_open(argv[1], &err) : NULL;
    check(m != NULL, "usage: MODEL K V N_PAIRS SEED", 0, 0, 0, &err);
    heads_shape shape = heads_model_shape(m);
    int most = shape.context < LONGEST ? shape.context : LONGEST, n_pairs = atoi(argv[4]);
    state = (uint64_t)atoll(argv[5]);
    for (int i = 0; i < n_pairs; i++) {
        Pair p = {.model = m, .options = {.n_threads = 1, .k_type = (heads_type)atoi(argv[2]),
                                          .v_type = (heads_type)atoi(argv[3])}};
        p.n_source = shape.source_vocab ? 1 + below(LEAST) : 0;
        p.from = LEAST + below(most - LEAST + 1);
        p.n = p.length = 1 + below(p.from);
        if (below(4)) p.length -= below(p.n < 70 ? p.n : 70);
        int tight = below(2);  // a context that has hardly room for the text, where rings are fewer
        p.to = p.length + below(tight && most - p.length > 3 ? 3 : most - p.length + 1);
        if (p.to < LEAST) p.to = LEAST;
        for (int j = 0; j < LONGEST + MORE; j++) p.tokens[j] = below(shape.vocab_size);
        for (int j = 0; j < p.n_source; j++) p.source[j] = below(shape.source_vocab);
        n_back += try_pair(&p, shape.vocab_size);
    }
    heads_model_close(m);
    close(fd);
    unlink(file);
    printf("ok: %d pairs, %d put back\n", n_pairs, n_back);
}
