// scores.c: what an attention head does with a text, as scores, and the role that follows.
#ifndef CLI_HEADS_SCORES_H
#define CLI_HEADS_SCORES_H

#include "library/inspect.h"

// Each of the first eight scores belongs to a role.
enum { PREVIOUS, ITSELF, DUPLICATE, INDUCTION, FIRST, NEXT, LAST, DIAGONAL, N_ROLES,
       DISTANCE = N_ROLES, ENTROPY, LAST8, N_SCORES };
extern const char *const score_names[N_SCORES];

typedef struct {  // the texts of a map
    Sight sees;
    int n_rows, n;    // tokens of the rows (queries), and of the columns (keys)
    const int *ids;   // [n_rows], of the rows
    const int *same;  // [n_rows]: the last earlier position with the same token; -1: none
} MapTexts;

// Whether a score means anything for tokens that see so much.
bool has_score(Sight sees, int score);

typedef struct {  // the key is not the query itself and not the first token; nor the last token
                  // where all tokens see it
    int query, key;
    float weight;
} TokenPair;

typedef struct {  // of one row, the weights of one query
    double value[N_SCORES];  // NAN: the row lacks what the score is about
    TokenPair strongest;     // weight 0: it has none
} RowScores;

enum { MAX_PAIRS = 5 };

typedef struct {
    double sum[N_SCORES];
    long rows[N_SCORES];         // that have the score
    TokenPair pairs[MAX_PAIRS];  // the strongest first, one of a row at most
    int n_pairs;
} HeadScores;

RowScores score_row(const MapTexts *texts, const heads_attention_row *row);
// To be called in the order of positions, so that no bit depends on how passes are cut.
void add_row_scores(HeadScores *head, const RowScores *row);
// The mean over rows; NAN: there are none.
double head_score(const HeadScores *head, int score);
// The role of a head, compared with one of equal weights; -1: none.
int head_role(const HeadScores *head, const HeadScores *uniform);
bool role_rests(int role);  // on an end of the text or on the token itself: it has nothing to do

#endif
