#include "text/added.h"

#include <stdio.h>

#include "text/unicode.h"

enum { MAX_ADDED_LENGTH = 1024 };

// Whether added token i is below token i + 1 in the order of characters.
static bool ascends(const Added *a, size_t i) {
    int32_t p = a->begin[i], q = a->begin[i + 1], end = a->begin[i + 2];
    for (; p < a->begin[i + 1] && q < end; p++, q++)
        if (a->chars[p] != a->chars[q]) return a->chars[p] < a->chars[q];
    return p == a->begin[i + 1] && q < end;
}

int load_added(Added *a, Reader *r, const char *where, int n_tokens) {
    enum { BEGIN, CHARS, IDS, FLAGS };
    char key[4][64];
    const char *const names[] = {"begin", "chars", "id", "flags"};
    for (int i = 0; i < 4; i++) snprintf(key[i], sizeof key[i], "tokenizer.%s.%s", where, names[i]);
    size_t n_chars;
    Ints ids, chars;
    if (read_ints(r, key[IDS], SIZE_MAX, 0, n_tokens - 1, &ids)) return -1;
    a->n = ids.n;
    if (a->n == 0) return 0;
    if (read_offsets(r, key[BEGIN], a->n, &a->begin, &n_chars) ||
        read_ints(r, key[CHARS], n_chars, 0, 0x10FFFF, &chars) ||
        read_bytes(r, key[FLAGS], a->n, LSTRIP | RSTRIP | SINGLE_WORD | AT_START, &a->flags))
        return -1;
    a->chars = chars.v;
    a->ids = ids.v;
    for (size_t i = 0; i < a->n; i++) {
        int length = a->begin[i + 1] - a->begin[i];
        if (length < 1 || length > MAX_ADDED_LENGTH)
            return fail(r->err, "metadata %s: token %zu has %d characters, expected 1..%d",
                        key[BEGIN], i, length, MAX_ADDED_LENGTH);
        if (i + 1 < a->n && !ascends(a, i))
            return fail(r->err, "metadata %s: token %zu is not above the one before", key[CHARS],
                        i + 1);
        a->starts[a->chars[a->begin[i]] & 255] = true;
    }
    return 0;
}

// Tokens low..high-1 agree in their first k characters. Returns the first whose next character is
// at least c.
static size_t bound(const Added *a, size_t low, size_t high, int32_t k, int64_t c) {
    while (low < high) {
        size_t mid = (low + high) / 2;
        int64_t own = a->begin[mid] + k < a->begin[mid + 1] ? a->chars[a->begin[mid] + k] : -1;
        if (own < c) low = mid + 1;
        else high = mid;
    }
    return low;
}

// The longest added token that chars[0..n) begins with, and its length; -1: none.
static int longest_at(const Added *a, const uint32_t *chars, size_t n, size_t *len) {
    int best = -1;
    if (n == 0 || !a->starts[chars[0] & 255]) return -1;
    size_t low = 0, high = a->n;
    for (size_t k = 0; k < n && low < high; k++) {
        low = bound(a, low, high, (int32_t)k, chars[k]);
        high = bound(a, low, high, (int32_t)k, (int64_t)chars[k] + 1);
        if (low < high && (size_t)(a->begin[low + 1] - a->begin[low]) == k + 1) {
            best = (int)low;
            *len = k + 1;
        }
    }
    return best;
}

static bool has_class(const uint32_t *chars, size_t n, size_t i, uint16_t class) {
    return i < n && unicode_class(chars[i]) & class;
}

bool next_added(const Added *a, const uint32_t *chars, size_t n, AddedSearch *s) {
    const size_t rest = s->stop;  // end of the text that found tokens have
    for (size_t i = s->next, len = 0; a->n && i < n; i += len) {
        int token = longest_at(a, chars + i, n - i, &len);
        if (token < 0) {
            len = 1;
            continue;
        }
        size_t start = i, stop = i + len;
        int flags = a->flags[token];
        bool in_word = has_class(chars, n, start - 1, WORD) || has_class(chars, n, stop, WORD);
        if (flags & SINGLE_WORD && in_word) continue;
        if (flags & AT_START && (i != rest || i == s->start_end)) continue;
        if (flags & LSTRIP) {
            while (start > rest && has_class(chars, n, start - 1, SPACE)) start--;
            if (start < rest) start = rest;
        }
        if (flags & RSTRIP) {
            if (stop < s->spaces_end) stop = s->spaces_end;
            while (has_class(chars, n, stop, SPACE)) stop++;
            s->spaces_end = stop;
        }
        if (flags & AT_START) s->start_end = stop;
        s->start = start, s->stop = stop;
        s->next = i + len;
        s->id = a->ids[token];
        return true;
    }
    s->next = n;
    return false;
}
