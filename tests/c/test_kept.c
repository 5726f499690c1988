// A text that goes on: experiments on it run its new tokens alone, and have the bits of a text that
// runs whole.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library/experiments.h"

enum { LENGTH = 40, LAYERS = 5, HEADS = 8 };

static heads_model *model;
static int ids[LENGTH];

static void check(int ok, const char *what) {
    if (ok) return;
    printf("not ok %s\n", what);
    exit(1);
}

typedef struct {
    float heads[LAYERS][HEADS], ffn[LAYERS];
    heads_parts parts;
} Found;

static Found attributed(heads_workspace *w, int n, const char *off) {
    heads_error err;
    Found f;
    memset(&f, 0, sizeof f);
    heads_workspace_options o = {.threads_of = w};
    check(heads_attribute(model, &o, ids, n, 7, 9, off, f.heads[0], f.ffn, &f.parts, &err) == 0,
          "heads_attribute");
    return f;
}

static heads_head_parts *dissected(heads_workspace *w, int n, const heads_steer *steer) {
    heads_error err;
    heads_workspace_options o = {.threads_of = w};
    heads_dissection what = {.ids = ids, .n = n, .layer = 3, .head = 5, .position = n - 1,
                             .steers = steer, .n_steers = steer != NULL};
    heads_head_parts *p = heads_dissect(model, &o, &what, &err);
    check(p != NULL, "heads_dissect");
    return p;
}

static heads_workspace *open_workspace(int context) {
    heads_error err;
    heads_workspace_options o = {.n_threads = 1, .context = context};
    heads_workspace *w = heads_workspace_new(model, &o, &err);
    check(w != NULL, "heads_workspace_new");
    return w;
}

static void compare(heads_workspace *w, int n, const char *off, const heads_steer *steer) {
    heads_workspace *own = open_workspace(LENGTH);
    Found a = attributed(w, n, off), b = attributed(own, n, off);
    check(memcmp(&a, &b, sizeof a) == 0, "parts of a logit");
    heads_head_parts *p = dissected(w, n, steer), *q = dissected(own, n, steer);
    size_t n_embd = (size_t)p->n_embd * sizeof(float);
    size_t n_keys = (size_t)(n * p->dim) * sizeof(float);
    check(!memcmp(p->out, q->out, n_embd) && !memcmp(p->turned.k, q->turned.k, n_keys) &&
          !memcmp(p->plain.k, q->plain.k, n_keys), "parts of a head");
    heads_free(p);
    heads_free(q);
    heads_workspace_free(own);
}

// Another text, and one with other heads or a vector, runs from where it differs.
static void goes_on(int context, int most) {
    heads_workspace *w = open_workspace(context);
    float vector[256] = {[3] = 4};
    const heads_steer steer = {.layer = 1, .vector = vector, .scale = 1};
    for (int n = 10; n <= most; n++) {
        attributed(w, n, NULL);  // there is room for twice the first text, and then for all
        check(w->text->from == (n == 10 || n == 21 ? 0 : n - 1), "the new token alone");
        heads_free(dissected(w, n, NULL));
        check(w->text->from == n - 1, "no token twice for two experiments");
    }
    compare(w, most, NULL, NULL);
    attributed(w, most, "1.2");
    check(w->text->from == 0, "all of it with a head off");
    compare(w, most, "1.2", NULL);
    compare(w, most, NULL, &steer);
    compare(w, most, NULL, NULL);
    ids[5]++;
    attributed(w, most, NULL);
    check(w->text->from == 5, "what begins alike");
    compare(w, most, NULL, NULL);
    heads_workspace_free(w);
    printf("ok texts that go on, up to %d of %d tokens\n", most, context);
}

int main(void) {
    heads_error err;
    model = heads_model_open("models/stories.bin", &err);
    check(model != NULL, "heads_model_open");
    for (int i = 0; i < LENGTH; i++) ids[i] = 5 + 37 * i % 1000;
    goes_on(LENGTH, LENGTH);
    goes_on(200, 15);
    heads_model_close(model);
    return 0;
}
