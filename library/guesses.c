// Guesses at the next tokens of a request run in the same pass as its last token. A guess counts
// only where the sampler picks the same token, so no text depends on guesses.
#include <stdlib.h>
#include <string.h>

#include "library/scheduler.h"

enum { FEW = 3, MISSES = 4, FIRST_PAUSE = 16, LONGEST_PAUSE = 256 };

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

// Guesses behind the request's ids, by its text or by the batch's draft model; none if that fails.
static int guess(const heads_batch *b, Request *r, int most) {
    int *guesses = r->ids + r->n_ids;
    if (r->asked.lookup) return heads_lookup(r->ids, r->n_ids, most, guesses);
    if (!r->draft) r->draft = heads_sequence_new(b->draft, false, NULL);
    if (!r->draft) return 0;
    int n = heads_draft(r->draft, b->greedy, r->ids, r->n_ids, most, guesses, NULL);
    return n < 0 ? 0 : n;
}

static int least_of(int a, int b) { return a < b ? a : b; }

// Most guesses of a pass.
static int wanted(const heads_batch *b, const Request *r) {
    return r->asked.lookup ? r->asked.lookup : b->draft ? b->n_draft : 0;
}

// How many guesses may follow a request's last token in this pass.
static int most_guesses(const heads_batch *b, const Request *r, int room) {
    const Guessing *g = &r->guessing;
    int most = least_of(g->now ? g->now : FEW, wanted(b, r));
    most = least_of(most, least_of(room, b->w->logit_rows - b->n_rows));
    most = least_of(most, r->max_tokens - (r->n_ids - r->n_prompt) - 1);
    return least_of(most, heads_sequence_room(r->sequence) - 1);
}

int add_guesses(heads_batch *b, int i, int room) {
    Request *r = b->owners[i];
    Run *run = &b->runs[i];
    r->guessed = 0;
    bool generates = run->sequence == r->sequence && run->n == 1 && r->n_ids > r->n_prompt;
    if (!generates || !wanted(b, r) || r->max_tokens == 0) return 0;
    if (r->guessing.pause > 0) {
        r->guessing.pause--;
        return 0;
    }
    int most = most_guesses(b, r, room);
    if (most < 1 || make_room(r, most, NULL)) return 0;
    run->tokens = r->ids + r->n_ids - 1;
    int n = guess(b, r, most);
    if (n == 0 || heads_sequence_mark(r->sequence, NULL)) return 0;
    run->n += n;
    run->n_logits += n;
    b->n_rows += n;
    return r->guessed = n;
}

// More guesses after right ones; after passes without any, a pause, each twice as long as the last.
static void learn(Request *r, int right, int most) {
    Guessing *g = &r->guessing;
    int now = g->now ? g->now : FEW;
    if (right == r->guessed) g->now = least_of(2 * now + 1, most);
    else if (right < FEW) g->now = FEW;
    if (right > 0) {
        g->misses = 0;
        g->next_pause = FIRST_PAUSE;
    } else if (++g->misses == MISSES) {
        g->misses = 0;
        g->pause = g->next_pause ? g->next_pause : FIRST_PAUSE;
        g->next_pause = least_of(2 * g->pause, LONGEST_PAUSE);
    }
}

// Where a mixer's state keeps the sequence from forgetting the wrong guesses alone, it goes back to
// the mark before all of them, and the right ones run again as tokens that are known.
void settle_guesses(const heads_batch *b, Request *r) {
    int n = r->n_ids - 1, before = r->sequence->length - r->guessed - 1;
    learn(r, n - before - 1, wanted(b, r));
    r->guessed = 0;
    r->scored = n;
    if (r->sequence->length > n && heads_sequence_rewind(r->sequence, n, NULL))
        heads_sequence_rewind(r->sequence, before, &r->error);
}
