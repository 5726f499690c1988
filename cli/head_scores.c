// A row A[i, j] says what token i takes of token j, for the positions j = low..i that it sees; low
// is 0, or where a sliding window begins. A score is a mean over the rows that have what it asks
// for among the positions that they see:
//
//   previous    A[i, i-1], of rows i >= 1
//   duplicate   the sum of A[i, j] over j < i where token j is token i
//   induction   the sum of A[i, j] over 1 <= j <= i where token j-1, j-1 < i, is token i
//   first       A[i, 0], of rows i >= 1
//   distance    the sum of A[i, j] (i - j), over that of equal weights, of rows i >= 1
//   entropy     the sum of -A[i, j] log A[i, j], over that of equal weights, of rows i >= 1
//   last8       the sum of A[i, j] over j > i - 8, of rows i >= 1
//
// Previous-token and induction heads: Olsson et al. 2022 (arXiv 2209.11895). Heads that rest on the
// first token: Xiao et al. 2023 (2309.17453), and Gu et al. 2024 (2410.10781), whose threshold all
// roles have here. A head that finds nothing to do rests there too, so that any other role goes
// before. Distance and entropy take the weights over their sum, which is less than 1 where a layer
// has sinks.
#include "head_scores.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static const double LEAST_SCORE = 0.3, TIMES_UNIFORM = 3;
enum { LAST = 8 };

const char *const score_names[N_SCORES] = {
    [PREVIOUS] = "previous", [DUPLICATE] = "duplicate", [INDUCTION] = "induction",
    [FIRST] = "first", [DISTANCE] = "distance", [ENTROPY] = "entropy", [LAST8] = "last8",
};

// Distance, entropy and the last positions' share of n >= 2 weights, the last of which is the
// query's own.
static void score_spread(double *value, const float *weights, int n) {
    double sum = 0, distance = 0, entropy = 0, last = 0;
    for (int j = 0; j < n; j++) {
        double p = weights[j];
        sum += p;
        distance += p * (n - 1 - j);
        if (p > 0) entropy -= p * log(p);
        if (j >= n - LAST) last += p;
    }
    value[LAST8] = last;
    if (sum <= 0) return;
    value[DISTANCE] = distance / sum / (0.5 * (n - 1));
    value[ENTROPY] = (entropy / sum + log(sum)) / log(n);
}

RowScores score_row(const heads_attention_row *row, const int *same) {
    RowScores s = {.strongest = {.weight = 0}};
    int i = row->position, low = row->first;
    const float *a = row->weights - low;  // a[j]: of position j
    for (int k = 0; k < N_SCORES; k++) s.value[k] = NAN;
    if (row->n < 2) return s;
    s.value[PREVIOUS] = a[i - 1];
    if (low == 0) s.value[FIRST] = a[0];
    score_spread(s.value, row->weights, row->n);
    double duplicate = 0, induction = 0;
    for (int j = same[i]; j >= 0 && j + 1 >= low; j = same[j]) {
        s.value[INDUCTION] = induction += a[j + 1];
        if (j >= low) s.value[DUPLICATE] = duplicate += a[j];
    }
    for (int j = low > 1 ? low : 1; j < i; j++)
        if (a[j] > s.strongest.weight) s.strongest = (TokenPair){i, j, a[j]};
    return s;
}

static void add_pair(HeadScores *head, TokenPair pair) {
    int at = head->n_pairs;
    while (at > 0 && head->pairs[at - 1].weight < pair.weight) at--;
    if (pair.weight <= 0 || at == MAX_PAIRS) return;
    if (head->n_pairs < MAX_PAIRS) head->n_pairs++;
    memmove(&head->pairs[at + 1], &head->pairs[at],
            sizeof pair * (size_t)(head->n_pairs - 1 - at));
    head->pairs[at] = pair;
}

void add_row_scores(HeadScores *head, const RowScores *row) {
    for (int k = 0; k < N_SCORES; k++) {
        if (isnan(row->value[k])) continue;
        head->sum[k] += row->value[k];
        head->rows[k]++;
    }
    add_pair(head, row->strongest);
}

double head_score(const HeadScores *head, int score) {
    return head->rows[score] ? head->sum[score] / (double)head->rows[score] : NAN;
}

int head_role(const HeadScores *head, const HeadScores *uniform) {
    int best = -1;
    for (int k = 0; k < N_ROLES; k++) {
        double score = head_score(head, k), least = TIMES_UNIFORM * head_score(uniform, k);
        bool has = score >= LEAST_SCORE && score >= least;
        if (has && (best < 0 || (k != FIRST && score > head_score(head, best)))) best = k;
    }
    return best;
}
