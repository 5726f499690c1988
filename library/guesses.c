// Guesses at the next tokens of a request run in the same pass as its last token. A guess counts
// only where the sampler picks the same token, so no text depends on guesses.
#include <stdlib.h>
#include <string.h>

#include "library/scheduler.h"
#include "sequence/guesser.h"
#include "sequence/sequence.h"

int heads_lookup(const int *ids, int n, int most, int *guesses) {
    enum { LONGEST = 8, SHORTEST = 2 };
    int best = 0, after = 0;
    if (!ids || !guesses || most < 1 || n <= SHORTEST) return 0;
    for (int i = n - 1; i >= SHORTEST && best < LONGEST; i--) {
        int same = 0;
        while (same < LONGEST && same < i && ids[i - 1 - same] == ids[n - 1 - same]) same++;
        if (same > best) best = same, after = i;
    }
    if (best < SHORTEST) return 0;
    int found = n - after < most ? n - after : most;
    memcpy(guesses, ids + after, (size_t)found * sizeof *guesses);
    return found;
}

// Brings the draft model's sequence to ids[n] and returns the logits that follow.
static const float *catch_up(Sequence *draft, const int *ids, int n, Error *err) {
    int common = heads_sequence_common(draft, ids, n - 1);
    if (heads_sequence_rewind(draft, common, NULL)) heads_sequence_rewind(draft, common = 0, NULL);
    const float *logits = heads_forward(draft, ids + common, n - common, 1, err);
    return logits && heads_sequence_mark(draft, err) == 0 ? logits : NULL;
}

int heads_draft(Sequence *draft, heads_sampler *greedy, const int *ids, int n, int most,
                int *guesses, Error *err) {
    if (need(draft, "a sequence", err) || need(greedy, "a sampler", err) ||
        need(ids, "ids", err) || need(guesses, "room for guesses", err))
        return -1;
    if (n < 1 || most < 1 || most > heads_workspace_context(draft->workspace) - n) return 0;
    const float *logits = catch_up(draft, ids, n, err);
    for (int i = 0; logits; logits = heads_forward(draft, &guesses[i - 1], 1, 1, err)) {
        guesses[i] = heads_sampler_pick(greedy, logits);
        if (guesses[i] < 0) return i;
        if (++i == most) return most;
    }
    return -1;
}

static int least_of(int a, int b) { return a < b ? a : b; }

// Most guesses of a pass: by the text, by the draft model, by the model's own layers.
static int wanted(const heads_batch *b, const Request *r) {
    if (r->asked.lookup) return r->asked.lookup;
    return b->draft ? b->n_draft : b->w->guesser ? b->w->guesser->most : 0;
}

static GuessCost *cost_of(heads_batch *b, int n_runs) {
    return &b->costs[least_of(n_runs, MAX_COSTS - 1)];
}

// Tokens that the draft model, if that guesses, has not read.
static int behind(const heads_batch *b, const Request *r) {
    return !b->draft || r->asked.lookup ? 0 : r->n_ids - heads_sequence_length(r->draft);
}

// How many guesses may follow the last token of a run's request in this pass, of `room`.
static int most_guesses(heads_batch *b, const Run *run, Request *r, int room) {
    if (run->sequence != r->sequence || run->n != 1 || r->n_ids == r->n_prompt) return 0;
    int most = least_of(wanted(b, r), room);
    most = least_of(most, r->max_tokens - (r->n_ids - r->n_prompt) - 1);
    most = least_of(most, heads_sequence_room(r->sequence) - 1);
    if (most < 1) return 0;
    return guard_most(&r->guard, cost_of(b, b->n_runs), b->n_runs, behind(b, r), most);
}

// Guesses behind the request's ids, by its text or by the batch's draft model; none if that fails.
static int guess(const heads_batch *b, Request *r, int most) {
    int *guesses = r->ids + r->n_ids;
    if (r->asked.lookup) return heads_lookup(r->ids, r->n_ids, most, guesses);
    if (!r->draft) r->draft = heads_sequence_new(b->draft, false, NULL);
    if (!r->draft) return 0;
    int n = heads_draft(r->draft, b->greedy, r->ids, r->n_ids, most, guesses, NULL);
    return n < 0 ? 0 : n;
}

// Whether the pass is of requests that generate, a token each, and of nothing else.
static bool generates_alone(const heads_batch *b) {
    for (int i = 0; i < b->n_runs; i++) {
        const Request *r = b->owners[i];
        if (b->runs[i].sequence != r->sequence || b->runs[i].n != 1 || r->n_ids == r->n_prompt)
            return false;
    }
    return b->n_runs > 0;
}

void add_guesses(heads_batch *b, int room) {
    int rows = b->w->logit_rows - b->n_rows;
    b->n_guesses = b->behind = 0;
    b->measured = generates_alone(b);
    for (int i = 0; i < b->n_runs; i++) b->owners[i]->guessed = 0;
    if (b->n_runs == 0 || guard_rests(cost_of(b, b->n_runs))) return;
    for (int i = 0; i < b->n_runs; i++) {
        Request *r = b->owners[i];
        int most = most_guesses(b, &b->runs[i], r, least_of(room, rows));
        if (most > 0 && make_room(r, most, NULL)) most = 0;
        if (most > 0) b->runs[i].tokens = r->ids + r->n_ids - 1;
        b->jobs[i] = (GuessJob){r->sequence, most ? r->ids[r->n_ids - 1] : 0, most,
                                r->ids + r->n_ids, 0};
        if (most > 0 && (r->asked.lookup || b->draft)) {
            b->behind += behind(b, r);
            b->jobs[i].most = 0;
            b->jobs[i].n = most = guess(b, r, most);
        }
        room -= most;
        rows -= most;
    }
    guess_each(b->w, b->jobs, b->n_runs);
    for (int i = 0; i < b->n_runs; i++) {
        Request *r = b->owners[i];
        int n = b->jobs[i].n;
        if (n == 0 || mark_at(r->sequence, r->sequence->length + 1, NULL)) continue;
        b->runs[i].n += n;
        b->runs[i].n_logits += n;
        b->n_rows += n;
        b->n_guesses += r->guessed = n;
    }
}

void measure_guesses(heads_batch *b, double time) {
    if (b->measured) guard_measure(cost_of(b, b->n_runs), b->n_guesses, b->behind, time);
}

// Where a mixer's state keeps the sequence from forgetting the wrong guesses alone, it goes back to
// the mark before all of them, and the right ones, if any, run again as tokens that are known.
void settle_guesses(heads_batch *b, Request *r) {
    int n = r->n_ids - 1, marked = r->sequence->length - r->guessed, right = n - marked;
    int again = 0;
    if (r->sequence->length > n && heads_sequence_rewind(r->sequence, n, NULL)) {
        heads_sequence_rewind(r->sequence, marked, &r->error);
        again = right;
    }
    guard_learn(&r->guard, cost_of(b, b->n_runs), b->n_runs, r->guessed, right, again);
    b->drafted += (size_t)r->guessed;
    b->accepted += (size_t)right;
    r->guessed = 0;
    r->scored = n;
}
