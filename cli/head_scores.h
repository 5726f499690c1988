// head_scores.c: what an attention head does with a text, as numbers, and whether that is a role.
#ifndef CLI_HEAD_SCORES_H
#define CLI_HEAD_SCORES_H

#include <stdbool.h>

#include "heads.h"

// The first seven are those that a head may have a role by.
enum { PREVIOUS, DUPLICATE, INDUCTION, FIRST, NEXT, LAST, DIAGONAL, N_ROLES,
       DISTANCE = N_ROLES, ENTROPY, LAST8, N_SCORES };
extern const char *const score_names[N_SCORES];

typedef struct {  // the texts of a map
    int mask;         // MASK_*
    int n_rows, n;    // tokens that look, and that there are to be seen
    const int *ids;   // [n_rows], of those that look
    const int *same;  // [n_rows]: the last position before with the same token, -1: there is none
} MapTexts;

// Whether maps with this mask have a score: some mean nothing for them.
bool has_score(int mask, int score);

typedef struct {  // the key is neither the query itself nor the first token; nor the last one where
                  // that is seen by all
    int query, key;
    float weight;
} TokenPair;

typedef struct {  // of one row: what one token looks at
    double value[N_SCORES];  // NAN: it does not have what the score asks for
    TokenPair strongest;     // weight 0: it has none
} RowScores;

enum { MAX_PAIRS = 5 };

typedef struct {
    double sum[N_SCORES];
    long rows[N_SCORES];         // that have what the score asks for
    TokenPair pairs[MAX_PAIRS];  // the strongest first, no two of one row
    int n_pairs;
} HeadScores;

RowScores score_row(const MapTexts *texts, const heads_attention_row *row);
// To be called in the order of positions: then no bit depends on how passes are cut.
void add_row_scores(HeadScores *head, const RowScores *row);
// The mean, NAN of no rows.
double head_score(const HeadScores *head, int score);
// The role of a head, beside one that looks at all that its layer sees alike; -1: none.
int head_role(const HeadScores *head, const HeadScores *uniform);
bool role_rests(int role);  // on an end of the text, which says that there is nothing to do

#endif
