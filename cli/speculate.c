// Guesses at the next tokens of a text come from the model's own layers for it, a smaller model or
// the text itself; a pass of the model checks them.
#include "speculate.h"

#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"
#include "source.h"

struct Drafter {
    int most;             // guesses of a pass
    bool lookup, own;     // by the text, by the model's own layers
    heads_model *model;   // of -md
    heads_workspace *w;
    heads_sequence *sequence;
    heads_sampler *greedy;
    long drafted, accepted;
    // The last pass: its guesses, how many of them are right so far, the sequence's length before
    // them, tokens that the draft model had not read, when it began, its logits. n_guesses -1:
    // there is nothing to learn of it.
    int guesses[MAX_DRAFT], n_guesses, right, marked, behind;
    double begin;
    const float *logits;
    size_t stride;
    TextGuard *guard;
};

// ---- a draft model ----

static void open_draft_model(Drafter *d, const Program *p) {
    heads_error err;
    const char *path = p->o->draft_model;
    heads_workspace_options options = p->o->workspace;
    heads_sampler_options greedy = {.temperature = 0};
    d->model = heads_model_open(find_checkpoint(path), &err);
    if (!d->model) die("%s", err.text);
    need_weights(d->model, path);
    if (!inspect_same_tokens(d->model, p->model))
        die("-md %s: its vocabulary is not that of %s; a draft model needs the same tokens", path,
            p->path);
    if (!draft_pays(d->model, p->model))
        warn("-md %s: it reads half as many bytes a token as %s, or more, so it guesses nothing",
             path, p->path);
    int context = heads_workspace_context(p->w), own = heads_model_shape(d->model).context;
    options.context = context < own ? context : own;
    options.logit_rows = 1;
    options.threads_of = p->w;
    d->w = heads_workspace_new(d->model, &options, &err);
    if (!d->w) die("%s: %s", path, err.text);
    d->sequence = open_sequence(d->w, false);
    d->greedy = heads_sampler_new(d->w, &greedy, &err);
    if (!d->greedy) die("%s", err.text);
}

static int draft_by_model(Drafter *d, const int *text, int n, int most, int *guesses) {
    heads_error err;
    int found = heads_draft(d->sequence, d->greedy, text, n, most, guesses, &err);
    if (found < 0) die("the draft model: %s", err.text);
    return found;
}

// ---- all three ----

int guesses_of_pass(const Program *p) {
    int usual = heads_guess_layers(p->model) ? DEFAULT_GUESSES : 0;
    return p->o->n_guess < 0 ? usual : p->o->n_guess;
}

int open_guesses(const Program *p) {
    heads_error err;
    int n = guesses_of_pass(p);
    if (n && heads_workspace_guess(p->w, n, &err)) die("--guess %d: %s", n, err.text);
    return n;
}

Drafter *drafter_new(const Program *p) {
    const Options *o = p->o;
    int own = o->lookup || o->draft_model ? 0 : open_guesses(p);
    if (!o->lookup && !o->draft_model && !own) return NULL;
    Drafter *d = allocate(1, sizeof *d);
    d->lookup = o->lookup > 0;
    d->own = own > 0;
    d->most = own ? own : d->lookup ? o->lookup : o->n_draft;
    d->n_guesses = -1;
    d->stride = heads_logit_stride(p->w);
    if (!d->lookup && !own) open_draft_model(d, p);
    if (!(d->guard = text_guard_new(p->model, d->model))) die("no memory for guesses");
    return d;
}

void drafter_free(Drafter *d) {
    if (!d) return;
    heads_sampler_free(d->greedy);
    heads_sequence_free(d->sequence);
    heads_workspace_free(d->w);
    heads_model_close(d->model);
    free(d->guard);
    free(d);
}

// At most `most` guesses of the tokens after text[0..n), which `s` holds but for the last.
static int draft(Drafter *d, heads_sequence *s, const int *text, int n, int most) {
    heads_error err;
    if (most > d->most) most = d->most;
    d->behind = d->sequence ? n - heads_sequence_length(d->sequence) : 0;
    most = text_guard_most(d->guard, d->behind, most);
    if (most < 1) return 0;
    if (d->lookup) return heads_lookup(text, n, most, d->guesses);
    if (!d->own) return draft_by_model(d, text, n, most, d->guesses);
    int found = heads_guess(s, text, n, most, d->guesses, &err);
    if (found < 0) die("%s", err.text);
    return found;
}

// Books the last pass, which ends now, or with it a second one, without guesses.
static void learn(Drafter *d, int passes) {
    int n = d->n_guesses;
    if (n < 0) return;
    text_guard_learn(d->guard, n, d->behind, d->right, passes, busy_time() - d->begin);
    d->drafted += n;
    d->accepted += d->right;
}

// ---- passes ----

// Removes wrong guesses, so that the sequence holds text[0..n). Where a mixer's state prevents
// that, it goes back to the mark before all guesses. Returns its length then; -1: an error.
static int take_back(const Drafter *d, heads_sequence *s, int n, heads_error *err) {
    if (heads_sequence_length(s) > n && heads_sequence_rewind(s, n, NULL) &&
        heads_sequence_rewind(s, d->marked, err))
        return -1;
    return heads_sequence_length(s);
}

const float *run_guessing(Drafter *d, heads_sequence *s, const int *text, int n, int most,
                          bool *ran, heads_error *err) {
    int run[1 + MAX_DRAFT] = {text[n - 1]};
    *ran = !(d->right < d->n_guesses && d->guesses[d->right] == text[n - 1]);
    if (!*ran) return d->logits + (size_t)++d->right * d->stride;
    int length = take_back(d, s, n - 1, err);
    if (length < 0) return NULL;
    if (length < n - 1) {  // right guesses run again, in the pass of the token after them
        d->logits = heads_forward(s, text + length, n - length, 1, err);
        learn(d, 2);
        d->n_guesses = -1;
        return d->logits;
    }
    learn(d, 1);
    d->begin = busy_time();
    int room = heads_sequence_room(s) - 1;
    d->marked = length + 1;
    d->right = 0;
    d->n_guesses = draft(d, s, text, n, room < most - 1 ? room : most - 1);
    if (d->n_guesses && text_guard_mark(s, err)) return NULL;
    for (int i = 0; i < d->n_guesses; i++) run[1 + i] = d->guesses[i];
    return d->logits = heads_forward(s, run, 1 + d->n_guesses, 1 + d->n_guesses, err);
}

void end_guessing(Drafter *d, heads_sequence *s, const int *text, int n) {
    int length = take_back(d, s, n, NULL);
    if (length >= 0 && length < n) heads_forward(s, text + length, n - length, 0, NULL);
    learn(d, 1);
    d->n_guesses = -1;
    d->right = 0;
}

long drafted_tokens(const Drafter *d) { return d->drafted; }
long accepted_tokens(const Drafter *d) { return d->accepted; }
