#include "text/unigram.h"

#include <math.h>
#include <string.h>

#include "text/unicode.h"

static size_t length(const Unigram *u, size_t i) {
    int32_t id = u->ids.v[i];
    return (size_t)(u->begin[id + 1] - u->begin[id]);
}

static const uint8_t *text_of(const Unigram *u, size_t i) {
    return u->text + u->begin[u->ids.v[i]];
}

static double score(const Unigram *u, size_t i) {
    double value;
    memcpy(&value, u->scores + i * sizeof value, sizeof value);
    return value;
}

int load_unigram(Unigram *u, Reader *r, int n_tokens, const int32_t *begin, const uint8_t *text) {
    const char *key = "tokenizer.unigram";
    int single;
    if (read_ints(r, key, SIZE_MAX, 0, n_tokens - 1, &u->ids)) return -1;
    if (u->ids.n == 0) return 0;
    if (read_bytes(r, "tokenizer.unigram.score", (u->ids.n + 1) * sizeof(double), UINT8_MAX,
                   &u->scores) ||
        read_int(r, "tokenizer.unigram.single", 0, 1, 0, &single))
        return -1;
    u->single = single;
    u->begin = begin;
    u->text = text;
    for (size_t i = 0; i < u->ids.n; i++) {
        size_t len = length(u, i), before = i ? length(u, i - 1) : 0;
        size_t least = len < before ? len : before;
        int order = memcmp(text_of(u, i ? i - 1 : 0), text_of(u, i), least);
        if (len == 0 || order > 0 || (order == 0 && before >= len))
            return fail(r->err, "metadata %s: token %d is empty, or not above the one before in "
                        "the order of bytes", key, u->ids.v[i]);
        for (int b = text_of(u, i)[0] + 1; b < 257; b++) u->first[b] = i + 1;
    }
    return 0;
}

// Tokens low..high-1 agree in k bytes. Returns the first whose next byte is at least `byte`.
static size_t bound(const Unigram *u, size_t low, size_t high, size_t k, int byte) {
    while (low < high) {
        size_t mid = (low + high) / 2;
        int own = k < length(u, mid) ? text_of(u, mid)[k] : -1;
        if (own < byte) low = mid + 1;
        else high = mid;
    }
    return low;
}

// Narrows *low..*high-1, the tokens that begin with text[0..k), to those that go on with text[k].
// Returns whether the first of them ends there.
static bool narrow(const Unigram *u, const uint8_t *text, size_t k, size_t *low, size_t *high) {
    *high = k ? bound(u, *low, *high, k, text[k] + 1) : u->first[text[0] + 1];
    *low = k ? bound(u, *low, *high, k, text[k]) : u->first[text[0]];
    return *low < *high && length(u, *low) == k + 1;
}

int unigram_find(const Unigram *u, const uint8_t *text, size_t len) {
    size_t low = 0, high = u->ids.n;
    for (size_t k = 0; k < len && low < high; k++)
        if (narrow(u, text, k, &low, &high) && k + 1 == len) return u->ids.v[low];
    return -1;
}

// Offers a token from `at` to `to`. It replaces an earlier offer only if its sum is larger.
static void offer(const Unigram *u, UnigramNode *nodes, size_t at, size_t to, int id,
                  double score) {
    double sum = nodes[at].score + score;
    if (u->single) sum = (float)sum;
    if (nodes[to].to >= 0 && !(sum > nodes[to].score)) return;
    nodes[to] = (UnigramNode){sum, id, (int32_t)at};
}

void unigram_cut(const Unigram *u, const uint8_t *text, size_t len, int unk, UnigramNode *nodes) {
    double unknown = score(u, u->ids.n);
    for (size_t i = 0; i <= len; i++) nodes[i] = (UnigramNode){0, unk, -1};
    for (size_t at = 0, step; at < len; at += step) {  // the best token that ends at each place
        uint32_t c;
        bool whole, known = false;
        step = utf8_decode(text + at, len - at, &c, &whole);
        size_t low = 0, high = u->ids.n;
        for (size_t k = 0; at + k < len && low < high; k++) {
            if (!narrow(u, text + at, k, &low, &high) || isnan(score(u, low))) continue;
            offer(u, nodes, at, at + k + 1, u->ids.v[low], score(u, low));
            known |= k + 1 == step;
        }
        if (!known) offer(u, nodes, at, at + step, unk, unknown);
    }
    // Back along the best cut: each token moves from the node at its end to the one at its start.
    int32_t id = nodes[len].id;
    for (int32_t to = (int32_t)len, at = nodes[len].to; to > 0;) {
        UnigramNode before = nodes[at];
        nodes[at].id = id;
        nodes[at].to = to;
        to = at;
        at = before.to;
        id = before.id;
    }
}
