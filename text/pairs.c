// Two texts as the ids of one: prefix, first, what stands between, second, suffix.
#include <stdlib.h>
#include <string.h>

#include "text/vocabulary.h"
#include "tokenizer.h"

// Cuts n[0] and n[1] to at most `most` together, as tokenizers does ("longest first"): the longer
// one alone if that is enough, else both to halves.
static void cut_longest(long n[2], long most) {
    int longer = n[0] <= n[1];
    if (n[0] + n[1] <= most) return;
    if (n[!longer] < most - n[!longer]) {
        n[longer] = most - n[!longer];
        return;
    }
    n[!longer] = most / 2;
    n[longer] = most - most / 2;
}

static int *append(int *to, const int *ids, size_t n) {
    if (n) memcpy(to, ids, n * sizeof *ids);
    return to + n;
}

static long join(const Tokenizer *t, int *const parts[2], long n[2], long most, int **ids,
                 int *second, Error *err) {
    long special = (long)(t->prefix.n + t->between.n + t->suffix.n);
    if (special >= most)
        return fail(err, "two texts have %ld special tokens, and the checkpoint cuts them at %ld",
                    special, most);
    cut_longest(n, most - special);
    long total = special + n[0] + n[1];
    int *to = *ids = malloc(((size_t)total + 1) * sizeof *to);
    if (!to) return fail(err, "no memory for %ld tokens", total);
    to = append(to, t->prefix.v, t->prefix.n);
    to = append(to, parts[0], (size_t)n[0]);
    to = append(to, t->between.v, t->between.n);
    *second = t->second_type ? (int)(to - *ids) : 0;
    to = append(to, parts[1], (size_t)n[1]);
    append(to, t->suffix.v, t->suffix.n);
    return total;
}

long tokenizer_pair(const Tokenizer *t, const Passage texts[2], long most, int **ids, int *second,
                    Error *err) {
    int *parts[2] = {NULL, NULL};
    long n[2] = {0, 0}, total = -1;
    if (t->second_type < 0)
        return fail(err, "the checkpoint does not say how two texts are read as one: it was "
                    "exported without a head for them, or its tokenizer joins none");
    for (int i = 0; i < 2 && n[i] >= 0; i++)
        n[i] = heads_encode(t, texts[i].text, texts[i].len, false, &parts[i], err);
    if (n[0] >= 0 && n[1] >= 0) total = join(t, parts, n, most, ids, second, err);
    free(parts[0]);
    free(parts[1]);
    return total;
}
