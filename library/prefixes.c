// Which prompts begin alike: sorted by adapter, steering and tokens, such prompts are neighbours.
#include <stdlib.h>

#include "library/scheduler.h"
#include "math/adapted.h"

// Requests with a source get no prefix: keys and values of their tokens depend on the source.
static int most_shared(const Request *r) { return r->asked.n_source ? 0 : shareable_length(r); }

// Any order in which those with the same adapter, scale and steering are neighbours; 0: they are
// the same. Others have nothing in common.
static int ground_order(const Request *a, const Request *b) {
    uintptr_t x = (uintptr_t)a->adapted.adapter, y = (uintptr_t)b->adapted.adapter;
    float s = a->adapted.scale, t = b->adapted.scale;
    if (same_adapted(&a->adapted, &b->adapted)) return compare_steering(a->steering, b->steering);
    return x != y ? (x > y) - (x < y) : (s > t) - (s < t);
}

static int common_length(const Request *a, const Request *b) {
    int most = most_shared(a) < most_shared(b) ? most_shared(a) : most_shared(b), n = 0;
    if (ground_order(a, b)) return 0;
    while (n < most && a->ids[n] == b->ids[n]) n++;
    return n;
}

static int by_tokens(const void *x, const void *y) {
    const Request *a = *(Request *const *)x, *b = *(Request *const *)y;
    int ground = ground_order(a, b);
    if (ground) return ground;
    int n = common_length(a, b), rest_a = most_shared(a) - n, rest_b = most_shared(b) - n;
    if (rest_a && rest_b) return a->ids[n] < b->ids[n] ? -1 : 1;
    if (rest_a != rest_b) return rest_a < rest_b ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

static Prefix *new_prefix(Request *const *requests, long n, int length, Prefix *parent) {
    Prefix *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    *p = (Prefix){.parent = parent, .depth = parent ? parent->depth + 1 : 1, .length = length,
                  .shortest = tokens_to_run(requests[0]), .first = requests[0]->number};
    for (long i = 1; i < n; i++) {
        int tokens = tokens_to_run(requests[i]);
        if (tokens < p->shortest) p->shortest = tokens;
        if (requests[i]->number < p->first) p->first = requests[i]->number;
    }
    if (parent) parent->users++;
    return p;
}

// Gives prefixes to n requests, sorted by their tokens, which all begin with `parent`; share[i] is
// the number of tokens that request i has in common with the next. Neighbours that share MIN_SHARED
// more than the parent get a prefix of their own, and are divided in the same way.
static void divide(Request **requests, const int *share, long n, Prefix *parent) {
    int enough = (parent ? parent->length : 0) + MIN_SHARED;
    for (long begin = 0, end; begin < n; begin = end) {
        int length = 0;
        for (end = begin + 1; end < n && share[end - 1] >= enough; end++)
            if (!length || share[end - 1] < length) length = share[end - 1];
        Prefix *p = length ? new_prefix(requests + begin, end - begin, length, parent) : NULL;
        if (p) {
            divide(requests + begin, share + begin, end - begin, p);
            continue;
        }
        for (long i = begin; i < end; i++) requests[i]->prefix = parent;
        if (parent) parent->users += (int)(end - begin);
    }
}

// By number; but a prefix's requests stand together, where the first of them was added. So prefixes
// of different branches are compared by their first requests.
static int by_start(const void *x, const void *y) {
    const Request *a = *(Request *const *)x, *b = *(Request *const *)y;
    const Prefix *p = a->prefix, *q = b->prefix;
    long i = a->number, j = b->number;
    while (p != q) {
        if (!q || (p && p->depth >= q->depth)) i = p->first, p = p->parent;
        else j = q->first, q = q->parent;
    }
    return (i > j) - (i < j);
}

void find_prefixes(Request **requests, long n) {
    int *share = n > 1 ? calloc((size_t)n, sizeof *share) : NULL;
    if (!share) return;
    qsort(requests, (size_t)n, sizeof *requests, by_tokens);
    for (long i = 0; i + 1 < n; i++) share[i] = common_length(requests[i], requests[i + 1]);
    divide(requests, share, n, NULL);
    qsort(requests, (size_t)n, sizeof *requests, by_start);
    free(share);
}

Prefix *usable_prefix(Prefix *p) {
    while (p && p->failed) p = p->parent;
    return p;
}

Prefix *missing_prefix(Prefix *p) {
    p = usable_prefix(p);
    if (!p || (p->sequence && heads_sequence_length(p->sequence) == p->length)) return NULL;
    Prefix *before = p->sequence ? NULL : missing_prefix(p->parent);
    return before ? before : p;
}

void release_prefix(Prefix *p) {
    if (!p || --p->users > 0) return;
    heads_sequence_free(p->sequence);
    release_prefix(p->parent);
    free(p);
}
