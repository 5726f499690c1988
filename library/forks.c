// Where a request's sequence comes from: a fork of one that begins with the same tokens, an ended
// request's that is emptied, or a new one.
#include <string.h>

#include "library/scheduler.h"
#include "math/adapted.h"
#include "system/system.h"

// Prompts of this many tokens get a cache whose pages forks can map instead of copying them.
enum { MAPPED_FROM = 256 };

// ---- the longest common beginning ----

typedef struct {
    const Sequence *sequence;  // to fork; NULL: none
    int n;                     // its first n tokens are the request's
    bool wait;                 // a busy request's sequence will soon have more of them
} Beginning;

static int common_tokens(const Request *r, const int *ids, int n) {
    int most = shareable_length(r) < n ? shareable_length(r) : n, common = 0;
    while (common < most && r->ids[common] == ids[common]) common++;
    return common;
}

// Whether keys and values of the same tokens are the same.
static bool same_ground(const Request *r, const int *source, int n, const Steering *steering,
                        const Adapted *adapted) {
    return same_adapted(&r->adapted, adapted) && r->asked.n_source == n &&
           compare_steering(r->steering, steering) == 0 &&
           (n == 0 || memcmp(r->asked.source, source, sizeof *source * (size_t)n) == 0);
}

// Searches spare and busy sequences for a longer beginning than `found`, a prefix's or none. With a
// source, only sequences of the same source count, even if they have no token in common.
static Beginning longest_beginning(const heads_batch *b, const Request *r, Beginning found) {
    int later = 0;
    if (!found.sequence) found.n = r->asked.n_source ? -1 : MIN_SHARED - 1;
    for (int i = 0; i < b->n_spare; i++) {
        const Sequence *s = b->spare[i];
        int n = common_tokens(r, s->tokens, s->length);
        if (n > found.n &&
            same_ground(r, s->source.tokens, s->source.n, s->steering, &s->adapted))
            found = (Beginning){s, n, false};
    }
    for (int i = 0; i < b->n_busy; i++) {
        const Request *other = b->busy[i];
        if (!other->sequence || other == r || other->restarted || other->error.text[0]) continue;
        const int *source = other->asked.source;
        if (!same_ground(r, source, other->asked.n_source, other->steering,
                         &other->adapted)) continue;
        int n = common_tokens(r, other->ids, other->n_ids), there = other->sequence->length;
        if (n > later) later = n;
        if (other->asked.n_source && !other->source_read) found.wait = true;
        else if ((there < n ? there : n) > found.n)
            found = (Beginning){other->sequence, there < n ? there : n, found.wait};
    }
    found.wait |= later >= found.n + MIN_SHARED;
    return found;
}

// ---- sequences ----

// Gives a sequence the adapter and the steering of a request.
static void set_ground(Sequence *s, const Request *r) {
    set_adapted(&s->adapted, r->adapted.adapter, r->adapted.scale);
    share_steering(&s->steering, r->steering);
}

// Empties the oldest spare sequence, unless that is kept, or makes one. shared: forks can map it.
static Sequence *empty_sequence(heads_batch *b, bool shared, Error *err) {
    while (!shared && b->n_spare && (!b->keep || b->n_spare == b->most_spare)) {
        Sequence *s = b->spare[0];
        memmove(b->spare, b->spare + 1, sizeof *b->spare * (size_t)--b->n_spare);
        if (!s->pages.file && heads_sequence_rewind(s, 0, NULL) == 0) return s;
        heads_sequence_free(s);
    }
    return heads_sequence_new(b->w, shared, err);
}

void leave_sequence(heads_batch *b, Request *r) {
    Sequence *s = r->sequence;
    r->sequence = NULL;
    // A fork is not reused: the first write to each page that it shares would copy the page.
    if (!s || r->error.text[0] || !b->most_spare || (!b->keep && s->pages.file)) {
        heads_sequence_free(s);
        return;
    }
    if (b->n_spare == b->most_spare) {
        heads_sequence_free(b->spare[0]);
        memmove(b->spare, b->spare + 1, sizeof *b->spare * (size_t)--b->n_spare);
    }
    b->spare[b->n_spare++] = s;
}

// The tokens that ran for a prefix count for the first request, or longer prefix, that forks it.
static int claim(Prefix *p) {
    int unclaimed = p->unclaimed;
    p->unclaimed = 0;
    return unclaimed;
}

static void begin_prefix(heads_batch *b, Prefix *p, const Request *r) {
    Prefix *parent = usable_prefix(p->parent);
    if (parent) p->sequence = heads_sequence_fork(parent->sequence, parent->length, NULL);
    p->unclaimed = p->sequence ? p->length - parent->length + claim(parent) : p->length;
    if (!p->sequence) p->sequence = heads_sequence_new(b->w, true, NULL);
    p->failed = !p->sequence;
    if (p->failed) return;
    set_ground(p->sequence, r);
    heads_sequence_expect(p->sequence, p->shortest);
}

// Makes the request's sequence. False: it waits for a busy request with a longer beginning.
static bool begin_sequence(heads_batch *b, Request *r) {
    Prefix *p = usable_prefix(r->prefix);
    Beginning from = {p ? p->sequence : NULL, p ? p->length : 0, false};
    if (b->keep && !r->restarted) from = longest_beginning(b, r, from);
    if (from.wait) return false;
    if (from.sequence) r->sequence = heads_sequence_fork(from.sequence, from.n, NULL);
    if (!r->sequence && p) {
        from = (Beginning){p->sequence, p->length, false};
        r->sequence = heads_sequence_fork(from.sequence, from.n, NULL);
    }
    r->source_read = r->sequence != NULL;
    bool shared = b->keep && has_map_private() && !r->restarted && !r->asked.n_source &&
                  tokens_to_run(r) >= MAPPED_FROM;
    if (r->sequence) r->spared = from.n - (p && from.sequence == p->sequence ? claim(p) : 0);
    else r->sequence = empty_sequence(b, shared, &r->error);
    release_prefix(r->prefix);
    r->prefix = NULL;
    if (!r->sequence) return true;
    set_ground(r->sequence, r);
    heads_sequence_expect(r->sequence, tokens_to_run(r));
    return true;
}

void choose_sequence(heads_batch *b, Request *r) {
    Prefix *missing = r->sequence ? NULL : missing_prefix(r->prefix);
    r->running = NULL;
    if (missing && !missing->sequence) begin_prefix(b, missing, r);
    if (missing && missing->failed) {
        choose_sequence(b, r);
        return;
    }
    if (missing) {
        r->running = missing->sequence;
        r->until = missing->length;
        return;
    }
    if (!r->sequence && !begin_sequence(b, r)) return;
    r->running = r->sequence;
    r->until = tokens_to_run(r);
}
