#include "library/sampler_rules.h"

#include <math.h>
#include <string.h>

typedef struct {
    float *logits;
    int vocab_size;
    const int *text;
    int n_text;
} Next;  // the token to be picked

// Bans the last of row[n] if the text ends in the tokens before it.
static void ban_row(const Next *next, const int *row, int n) {
    const int *end = next->text + next->n_text - (n - 1);
    if (n - 1 > next->n_text || memcmp(end, row, sizeof *row * (size_t)(n - 1)) != 0) return;
    if (row[n - 1] >= 0 && row[n - 1] < next->vocab_size) next->logits[row[n - 1]] = -INFINITY;
}

void apply_rules(const Rules *r, float *logits, int vocab_size, const int *text, int n_text,
                 int most) {
    Next next = {logits, vocab_size, text, n_text};
    for (int i = 0; i < r->n_banned; i++)
        ban_row(&next, r->banned + r->banned_begin[i],
                r->banned_begin[i + 1] - r->banned_begin[i]);
    for (int i = 0; r->no_repeat && i + r->no_repeat <= n_text; i++)
        ban_row(&next, text + i, r->no_repeat);
    for (size_t i = 0; n_text < r->least && i < r->eos.n; i++) logits[r->eos.v[i]] = -INFINITY;
    if (r->last < 0 || !most || n_text != most - 1) return;
    for (int i = 0; i < vocab_size; i++) logits[i] = i == r->last ? 0.0f : -INFINITY;
}
