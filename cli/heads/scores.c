// A[i, j] is the weight of token j for token i, for the positions j that it sees: low..i in a
// decoder, where low is 0 or the beginning of a sliding window; those after i too in an encoder;
// all of the source in cross-attention. A score is a mean over the rows that see two tokens or more
// and have the tokens that its definition names:
//
//   previous    A[i, i-1]
//   itself      A[i, i]
//   next        A[i, i+1]
//   duplicate   the sum of A[i, j] over j where token j is token i, j < i; of an encoder j != i
//   induction   the sum of A[i, j] over 1 <= j <= i where token j-1, j-1 < i, is token i
//   first       A[i, 0]; unless it is cross-attention, of rows i >= 1
//   last        A[i, n-1], of n tokens; unless it is cross-attention, of rows i < n-1
//   diagonal    the sum of A[i, j] over j at most 2 from i (n-1) / (rows-1)
//   distance    the sum of A[i, j] |i - j|, over what equal weights give
//   entropy     the sum of -A[i, j] log A[i, j], over what equal weights give
//   last8       the sum of A[i, j] over j > i - 8
//
// Previous-token and induction heads: Olsson et al. 2022 (arXiv 2209.11895). Heads that rest on the
// first token: Xiao et al. 2023 (2309.17453), and Gu et al. 2024 (2410.10781), whose threshold all
// roles have here. In encoders heads of the previous token and the next: Voita et al. 2019
// (1905.09418); heads that rest on the last token, a separator: Clark et al. 2019 (1906.04341). A
// head that finds nothing to do rests on an end, or on the token itself, so any other role goes
// before these. Distance and entropy divide the weights by their sum, which is less than 1 where a
// layer has sinks.
#include "cli/heads/scores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double LEAST_SCORE = 0.3, TIMES_UNIFORM = 3;
enum { LATEST = 8, NEAR = 2 };

const char *const score_names[N_SCORES] = {
    [PREVIOUS] = "previous", [ITSELF] = "itself", [DUPLICATE] = "duplicate",
    [INDUCTION] = "induction", [FIRST] = "first", [NEXT] = "next", [LAST] = "last",
    [DIAGONAL] = "diagonal",
    [DISTANCE] = "distance", [ENTROPY] = "entropy", [LAST8] = "last8",
};

bool has_score(Sight sees, int score) {
    static const unsigned scores[N_SIGHTS] = {
        [SEES_BEFORE] = 1 << PREVIOUS | 1 << ITSELF | 1 << DUPLICATE | 1 << INDUCTION |
                        1 << FIRST | 1 << DISTANCE | 1 << ENTROPY | 1 << LAST8,
        [SEES_ALL] = 1 << PREVIOUS | 1 << ITSELF | 1 << DUPLICATE | 1 << FIRST | 1 << NEXT |
                     1 << LAST | 1 << DISTANCE | 1 << ENTROPY,
        [SEES_SOURCE] = 1 << FIRST | 1 << LAST | 1 << DIAGONAL | 1 << ENTROPY,
    };
    return scores[sees] >> score & 1;
}

// Sets distance, entropy and last8 of a row with two weights or more.
static void score_spread(double *value, const heads_attention_row *row) {
    double sum = 0, distance = 0, equal = 0, entropy = 0, latest = 0;
    for (int j = 0; j < row->n; j++) {
        double p = row->weights[j], far = abs(row->position - row->first - j);
        sum += p;
        distance += p * far;
        equal += far;
        if (p > 0) entropy -= p * log(p);
        if (far < LATEST) latest += p;
    }
    value[LAST8] = latest;
    if (sum <= 0) return;
    value[DISTANCE] = distance / sum / (equal / row->n);
    value[ENTROPY] = (entropy / sum + log(sum)) / log(row->n);
}

// Here and below, a[j] is the weight of position j; the row sees low..high.
static void score_copies(double *value, const MapTexts *t, const float *a, int i, int low,
                         int high) {
    double duplicate = 0, induction = 0;
    if (t->sees == SEES_ALL) {
        for (int j = low; j <= high; j++)
            if (t->ids[j] == t->ids[i] && j != i) value[DUPLICATE] = duplicate += a[j];
        return;
    }
    for (int j = t->same[i]; j >= 0 && j + 1 >= low; j = t->same[j]) {
        value[INDUCTION] = induction += a[j + 1];
        if (j >= low) value[DUPLICATE] = duplicate += a[j];
    }
}

static void score_diagonal(double *value, const MapTexts *t, const float *a, int i) {
    long steps = t->n_rows - 1;
    if (!steps) return;
    value[DIAGONAL] = 0;
    for (int j = 0; j < t->n; j++)
        if (labs(j * steps - i * (t->n - 1L)) <= NEAR * steps) value[DIAGONAL] += a[j];
}

RowScores score_row(const MapTexts *t, const heads_attention_row *row) {
    RowScores s = {.strongest = {.weight = 0}};
    int i = row->position, low = row->first, high = low + row->n - 1;
    bool cross = t->sees == SEES_SOURCE;
    const float *a = row->weights - low;
    for (int k = 0; k < N_SCORES; k++) s.value[k] = NAN;
    if (row->n < 2) return s;
    score_spread(s.value, row);
    if (cross) score_diagonal(s.value, t, a, i);
    else score_copies(s.value, t, a, i, low, high);
    if (!cross) s.value[ITSELF] = a[i];
    if (!cross && i > low) s.value[PREVIOUS] = a[i - 1];
    if (!cross && i < high) s.value[NEXT] = a[i + 1];
    if (low == 0 && (cross || i > 0)) s.value[FIRST] = a[0];
    if (high == t->n - 1 && (cross || i < high)) s.value[LAST] = a[high];
    int end = t->sees == SEES_BEFORE ? i : t->n - 1;  // where pairs end
    for (int j = low > 1 ? low : 1; j <= high && j < end; j++)
        if (a[j] > s.strongest.weight && (cross || j != i)) s.strongest = (TokenPair){i, j, a[j]};
    for (int k = 0; k < N_SCORES; k++)
        if (!has_score(t->sees, k)) s.value[k] = NAN;
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

bool role_rests(int role) { return role == FIRST || role == LAST || role == ITSELF; }

int head_role(const HeadScores *head, const HeadScores *uniform) {
    int best = -1;
    for (int k = 0; k < N_ROLES; k++) {
        double score = head_score(head, k), least = TIMES_UNIFORM * head_score(uniform, k);
        bool has = score >= LEAST_SCORE && score >= least;
        if (!has) continue;
        bool same = best >= 0 && role_rests(k) == role_rests(best);
        if (best < 0 || (same ? score > head_score(head, best) : role_rests(best))) best = k;
    }
    return best;
}
