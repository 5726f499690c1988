#include "prefixes.h"

#include <stdlib.h>

#include "input.h"

// Tokens that two prompts share, each keeping one to run.
static int common_length(const Prompt *a, const Prompt *b) {
    int most = (a->n < b->n ? a->n : b->n) - 1, n = 0;
    while (n < most && a->tokens[n] == b->tokens[n]) n++;
    return n;
}

static int by_tokens(const void *x, const void *y) {
    const Prompt *a = x, *b = y;
    int n = common_length(a, b);
    if (a->tokens[n] != b->tokens[n]) return a->tokens[n] < b->tokens[n] ? -1 : 1;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

static Prefix *new_prefix(const Prompt *prompts, long n, int length, Prefix *parent) {
    Prefix *p = allocate(1, sizeof *p);
    *p = (Prefix){.parent = parent, .depth = parent ? parent->depth + 1 : 1, .length = length,
                  .tokens = prompts->tokens, .shortest = prompts->n, .first = prompts->index};
    for (long i = 0; i < n; i++) {
        if (prompts[i].n < p->shortest) p->shortest = prompts[i].n;
        if (prompts[i].index < p->first) p->first = prompts[i].index;
    }
    if (parent) parent->users++;
    return p;
}

// Takes n prompts in the order of their tokens, which all begin with `parent`; share[i] is how many
// tokens prompt i has in common with the next. Neighbours that share enough beyond the parent get a
// prefix of their own, and its prompts are divided in the same way.
static void divide(Prompt *prompts, const int *share, long n, Prefix *parent, Prefix **all) {
    int enough = (parent ? parent->length : 0) + MIN_SHARED;
    for (long begin = 0, end; begin < n; begin = end) {
        int length = 0;
        for (end = begin + 1; end < n && share[end - 1] >= enough; end++)
            if (!length || share[end - 1] < length) length = share[end - 1];
        if (!length) {
            prompts[begin].prefix = parent;
            if (parent) parent->users++;
            continue;
        }
        Prefix *p = new_prefix(prompts + begin, end - begin, length, parent);
        p->next = *all;
        *all = p;
        divide(prompts + begin, share + begin, end - begin, p, all);
    }
}

// The prompts below a prefix stand where the first of them was given.
static int by_start(const void *x, const void *y) {
    const Prompt *a = x, *b = y;
    const Prefix *p = a->prefix, *q = b->prefix;
    long i = a->index, j = b->index;
    while (p != q) {
        if (!q || (p && p->depth >= q->depth)) i = p->first, p = p->parent;
        else j = q->first, q = q->parent;
    }
    return (i > j) - (i < j);
}

void find_prefixes(Prompt *prompts, long n, Prefix **all) {
    int *share = allocate((size_t)n, sizeof *share);
    qsort(prompts, (size_t)n, sizeof *prompts, by_tokens);
    for (long i = 0; i + 1 < n; i++) share[i] = common_length(&prompts[i], &prompts[i + 1]);
    divide(prompts, share, n, NULL, all);
    qsort(prompts, (size_t)n, sizeof *prompts, by_start);
    free(share);
}

void free_prefixes(Prefix *all) {
    while (all) {
        Prefix *next = all->next;
        sequence_free(all->sequence);
        free(all);
        all = next;
    }
}
