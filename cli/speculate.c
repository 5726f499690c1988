#include "speculate.h"

#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"

struct Drafter {
    int most, now;        // guesses of one pass; at present, few until they are right
    bool lookup;
    Model model;          // of -md
    Workspace *w;
    Sequence *sequence;
    Sampler *greedy;
    long drafted, accepted;
    // What guessing has won or lost lately, in seconds; after a loss it pauses.
    double single, credit;  // time of a pass of one token
    int pause, next_pause;  // tokens still without guesses; how many there are the next time
};

enum { FIRST_PAUSE = 64, LONGEST_PAUSE = 1024, FEW = 3 };

// ---- a draft model ----

static bool same_meta(const Model *a, const Model *b, const char *key) {
    static const size_t width[] = {[META_U8] = 1, [META_I32] = 4, [META_F32] = 4};
    const Meta *x = checkpoint_meta(&a->file, key), *y = checkpoint_meta(&b->file, key);
    if (!x || !y) return x == y;
    return x->type == y->type && x->count == y->count &&
           memcmp(x->values, y->values, x->count * width[x->type]) == 0;
}

static void open_draft_model(Drafter *d, const Options *o, const Model *model, Workspace *w) {
    static const char *const keys[] = {"tokenizer.token.begin", "tokenizer.token.text",
                                       "tokenizer.token.kind"};
    Error err;
    WorkspaceOptions options = o->workspace;
    if (model_open(&d->model, o->draft_model, &err)) die("%s", err.text);
    need_weights(&d->model, o->draft_model);
    bool same = d->model.vocab_size == model->vocab_size;
    for (int i = 0; i < 3; i++) same &= same_meta(&d->model, model, keys[i]);
    if (!same)
        die("-md %s: its vocabulary is not that of %s; a draft model needs the same tokens",
            o->draft_model, o->models[0]);
    int context = workspace_context(w);
    options.context = context < d->model.context ? context : d->model.context;
    options.logit_rows = 1;
    options.threads_of = w;
    d->w = workspace_new(&d->model, &options, &err);
    if (!d->w) die("%s: %s", o->draft_model, err.text);
    d->sequence = open_sequence(d->w, false);
    SamplerOptions greedy = {.top_p = 1, .repeat_penalty = 1};
    d->greedy = sampler_new(workspace_kernels(d->w), d->model.vocab_size, &greedy,
                            &d->model.rules, &err);
    if (!d->greedy) die("%s", err.text);
}

// Brings the draft model's sequence to text[0..n) and returns the logits that follow it.
static const float *catch_up(Drafter *d, const int *text, int n) {
    Error err;
    int common = sequence_common(d->sequence, text, n - 1);
    if (sequence_rewind(d->sequence, common, NULL)) sequence_rewind(d->sequence, common = 0, NULL);
    const float *logits = forward(d->sequence, text + common, n - common, 1, &err);
    if (!logits || sequence_mark(d->sequence, &err)) die("the draft model: %s", err.text);
    return logits;
}

static int draft_by_model(Drafter *d, const int *text, int n, int most, int *guesses) {
    Error err;
    if (n + most > workspace_context(d->w)) return 0;
    const float *logits = catch_up(d, text, n);
    for (int i = 0;;) {
        guesses[i] = sampler_pick(d->greedy, logits);
        if (++i == most) return most;
        logits = forward(d->sequence, &guesses[i - 1], 1, 1, &err);
        if (!logits) die("the draft model: %s", err.text);
    }
}

// ---- the text itself ----

// What followed the last place where the text's end, two tokens at least, stood before (Prompt
// Lookup Decoding, Saxena 2023); the place where most of it did.
static int draft_by_lookup(const int *text, int n, int most, int *guesses) {
    enum { LONGEST = 8, SHORTEST = 2 };
    int best = 0, after = 0;
    for (int i = n - 1; i >= SHORTEST && best < LONGEST; i--) {
        int same = 0;
        while (same < LONGEST && same < i && text[i - 1 - same] == text[n - 1 - same]) same++;
        if (same > best) best = same, after = i;
    }
    if (best < SHORTEST) return 0;
    int found = n - after < most ? n - after : most;
    memcpy(guesses, text + after, (size_t)found * sizeof *guesses);
    return found;
}

// ---- both ----

Drafter *drafter_new(const Options *o, const Model *model, Workspace *w) {
    if (!o->lookup && !o->draft_model) return NULL;
    Drafter *d = allocate(1, sizeof *d);
    d->lookup = o->lookup > 0;
    d->most = d->lookup ? o->lookup : o->n_draft;
    d->now = d->most < FEW ? d->most : FEW;
    d->pause = 4;  // to see how long one token takes
    d->next_pause = FIRST_PAUSE;
    if (!d->lookup) open_draft_model(d, o, model, w);
    return d;
}

void drafter_free(Drafter *d) {
    if (!d) return;
    sampler_free(d->greedy);
    sequence_free(d->sequence);
    workspace_free(d->w);
    if (!d->lookup) model_close(&d->model);
    free(d);
}

int draft(Drafter *d, const int *text, int n, int most, int *guesses) {
    if (most > d->now) most = d->now;
    if (d->pause > 0 || most <= 0) return 0;
    return d->lookup ? draft_by_lookup(text, n, most, guesses)
                     : draft_by_model(d, text, n, most, guesses);
}

// The credit is what the right guesses would have taken, less what guessing took. It is kept small,
// so that a change for the worse shows soon; each pause after a loss is twice as long as the last.
void draft_learn(Drafter *d, int n, int right, double time) {
    if (n == 0) {
        if (d->pause > 0) d->pause--;
        d->single = d->single > 0 ? 0.9 * d->single + 0.1 * time : time;
        return;
    }
    d->drafted += n;
    d->accepted += right;
    if (right == n) d->now = 2 * d->now + 1 < d->most ? 2 * d->now + 1 : d->most;
    else if (right < FEW) d->now = d->most < FEW ? d->most : FEW;
    d->credit += (1 + right) * d->single - time;
    if (d->credit > 4 * d->single) {
        d->credit = 4 * d->single;
        d->next_pause = FIRST_PAUSE;
    }
    if (d->credit > -d->single) return;
    d->credit = 0;
    d->pause = d->next_pause;
    if (d->next_pause < LONGEST_PAUSE) d->next_pause *= 2;
}

long drafted_tokens(const Drafter *d) { return d->drafted; }
long accepted_tokens(const Drafter *d) { return d->accepted; }
