#include "text/bpe.h"

#include <limits.h>

int load_merges(Merges *m, Reader *r, int n_tokens) {
    size_t n;
    Ints right, rank, merged;
    if (read_offsets(r, "tokenizer.merge.begin", (size_t)n_tokens, &m->begin, &n) ||
        read_ints(r, "tokenizer.merge.right", n, 0, n_tokens - 1, &right) ||
        read_ints(r, "tokenizer.merge.rank", n, 0, INT_MAX, &rank) ||
        read_ints(r, "tokenizer.merge.id", n, 0, n_tokens - 1, &merged))
        return -1;
    for (int left = 0; left < n_tokens; left++)
        for (int i = m->begin[left] + 1; i < m->begin[left + 1]; i++)
            if (right.v[i] <= right.v[i - 1])
                return fail(r->err, "metadata tokenizer.merge.right: value %d of token %d is not "
                            "above the one before", i, left);
    m->right = right.v;
    m->rank = rank.v;
    m->merged = merged.v;
    return 0;
}

static int find_merge(const Merges *m, int left, int right) {
    int end = m->begin[left + 1], i = lower_bound(m->right, m->begin[left], end, right);
    return i < end && m->right[i] == right ? i : -1;
}

// ---- a heap of possible merges ----

typedef struct {
    uint64_t *keys;  // rank << 32 | position of the left symbol
    size_t n;
} Heap;

static void heap_push(Heap *h, uint64_t key) {
    size_t i = h->n++;
    for (; i > 0 && h->keys[(i - 1) / 2] > key; i = (i - 1) / 2) h->keys[i] = h->keys[(i - 1) / 2];
    h->keys[i] = key;
}

static uint64_t heap_pop(Heap *h) {
    uint64_t top = h->keys[0], last = h->keys[--h->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->keys[child + 1] < h->keys[child]) child++;
        if (h->keys[child] >= last) break;
        h->keys[i] = h->keys[child];
    }
    h->keys[i] = last;
    return top;
}

// Puts the merge of symbol i and the next one into the heap, if there is one.
static void offer_merge(const Merges *m, Symbol *symbols, int i, Heap *h) {
    Symbol *s = &symbols[i];
    s->merge = s->next < 0 ? -1 : find_merge(m, s->id, symbols[s->next].id);
    if (s->merge >= 0) heap_push(h, (uint64_t)m->rank[s->merge] << 32 | (uint32_t)i);
}

// Among equal ranks the leftmost pair goes first. Heap entries whose pair is gone are skipped. The
// heap gets at most one entry for each symbol, and two for each merge.
void merge_symbols(const Merges *m, Symbol *symbols, int n, uint64_t *heap) {
    Heap h = {heap, 0};
    for (int i = 0; i < n; i++) offer_merge(m, symbols, i, &h);
    while (h.n > 0) {
        uint64_t key = heap_pop(&h);
        int i = (int)(uint32_t)key;
        Symbol *s = &symbols[i];
        if (s->merge < 0 || (uint64_t)m->rank[s->merge] != key >> 32) continue;
        Symbol *right = &symbols[s->next];
        s->id = m->merged[s->merge];
        s->next = right->next;
        right->merge = -1;
        if (s->next >= 0) symbols[s->next].prev = i;
        offer_merge(m, symbols, i, &h);
        if (s->prev >= 0) offer_merge(m, symbols, s->prev, &h);
    }
}
