// From a row of logits to a token: log-probabilities, masks, and the sampler's pick.
#include <math.h>
#include <string.h>

#include "library/scheduler.h"
#include "library/inspect.h"

// Inserts a token into the list top[n] of the largest logits so far, which holds n_top at most;
// returns its new length. Equal logits stay in the order of insertion, which is by id.
static int insert(heads_likely *top, int n, int n_top, int id, float logit) {
    int at = n < n_top ? n++ : n - 1;
    for (; at > 0 && (float)top[at - 1].log_probability < logit; at--) top[at] = top[at - 1];
    top[at] = (heads_likely){id, logit};
    return n;
}

// log(sum of exp(logit)): a logit minus this is its token's log-probability.
static double log_sum(const float *logits, int vocab_size) {
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < vocab_size; i++) max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < vocab_size; i++) sum += exp(logits[i] - max);
    return max + log(sum);
}

double log_probability(const float *logits, int vocab_size, int id) {
    return id < 0 || id >= vocab_size ? -INFINITY : logits[id] - log_sum(logits, vocab_size);
}

// The same by the kernels' exp, to 1e-7, in a fifth of the time: floats are summed PIECE at a time.
static double quick_log_sum(const Kernels *k, const float *row, int n, float max) {
    enum { PIECE = 1024 };
    float piece[PIECE];
    double sum = 0;
    for (int at = 0; at < n; at += PIECE) {
        int some = n - at < PIECE ? n - at : PIECE, padded = (int)round_up((size_t)some, LANES);
        memcpy(piece, row + at, sizeof *row * (size_t)some);
        for (int i = some; i < padded; i++) piece[i] = -INFINITY;
        sum += k->exp_sum(piece, max, padded);
    }
    return max + log(sum);
}

// Sets top[n_top] to the largest logits of a row; returns how many there are. *best: the largest.
static int rank_row(const float *row, int vocab_size, heads_likely *top, int n_top, int *best) {
    float least = n_top ? -INFINITY : INFINITY;  // a logit has to exceed it to enter the list
    int n = 0;
    *best = 0;
    for (int id = 0; id < vocab_size; id++) {
        if (row[id] > row[*best]) *best = id;
        if (row[id] <= least) continue;
        n = insert(top, n, n_top, id, row[id]);
        if (n == n_top) least = (float)top[n - 1].log_probability;
    }
    return n;
}

int heads_likeliest(const heads_workspace *w, const float *logits, heads_likely *top, int n_top) {
    if (!w || !logits || !top || n_top < 1) return 0;
    int best, vocab_size = w->model->vocab_size;
    int n = rank_row(logits, vocab_size, top, n_top, &best);
    double sum = log_sum(logits, vocab_size);
    for (int i = 0; i < n; i++) top[i].log_probability -= sum;
    return n;
}

// Sets c->best and c->top[n_top], with their log-probabilities; returns the row's log_sum.
static double rank_tokens(const Workspace *w, Choice *c) {
    const float *row = c->logits;
    int vocab_size = w->model->vocab_size;
    int n = rank_row(row, vocab_size, c->top, c->request->asked.n_top, &c->best);
    double sum = c->given ? log_sum(row, vocab_size)
                          : quick_log_sum(w->k, row, vocab_size, row[c->best]);
    for (int i = 0; i < n; i++) c->top[i].log_probability -= sum;
    return sum;
}

typedef struct {
    const Workspace *w;
    const float *logits;
    const int *ids;
    double *loss;
} Losses;

static void lose(const void *arg, int i, int thread) {
    const Losses *l = arg;
    int vocab_size = l->w->model->vocab_size, best;
    const float *row = l->logits + (size_t)i * l->w->logits.stride;
    rank_row(row, vocab_size, NULL, 0, &best);
    l->loss[i] = quick_log_sum(l->w->k, row, vocab_size, row[best]) - row[l->ids[i]];
}

void token_losses(heads_workspace *w, const float *logits, const int *ids, int n, double *loss) {
    parallel_for(w->pool, n, lose, &(Losses){w, logits, ids, loss});
}

// Item: a choice.
static void choose(const void *arg, int item, int thread) {
    Choice *c = (Choice *)arg + item;
    Request *r = c->request;
    const Workspace *w = r->sequence->workspace;
    if (!c->due || r->error.text[0]) return;  // its mask failed
    c->made = true;
    bool asked = c->given || r->asked.likely;
    double sum = asked ? rank_tokens(w, c) : 0;
    if (!c->given) c->id = heads_sampler_pick(r->sampler, c->logits);
    if (c->id < 0)
        fail(&r->error, r->allowed ? "the mask allows no token that could be picked"
             : "biases and the checkpoint's rules leave no token that could be picked");
    if (r->error.text[0]) return;
    if (!c->given) heads_sampler_accept(r->sampler, c->id);
    c->log_probability = asked ? c->logits[c->id] - sum : 0;
}

// Whether a choice is made in this round: all are in the first, but those behind guesses, which
// come one a round while the guess before was picked.
static bool is_due(const Choice *c, int round) {
    const Request *r = c->request;
    if (c->at != round || round == 0) return c->at == round;
    return c[-1].made && !r->error.text[0] && c[-1].id == r->ids[r->n_ids + round - 1];
}

// Asks the request's mask, which sees the guesses that were right.
static void ask_mask(const heads_batch *b, const Choice *c, int round) {
    Request *r = c->request;
    size_t n_words = ((size_t)b->w->model->vocab_size + 31) / 32;
    memset(r->allowed, 0xff, n_words * sizeof *r->allowed);
    if (r->asked.mask(r->asked.mask_context, r->ids + r->n_prompt,
                      r->n_ids - r->n_prompt + round, r->allowed))
        fail(&r->error, "the mask gave an error");
    heads_sampler_allow(r->sampler, r->allowed);
}

void make_choices(heads_batch *b, Choice *choices, int n) {
    for (int round = 0, any = n; any; round++) {
        any = 0;
        for (int i = 0; i < n; i++) {
            Choice *c = &choices[i];
            c->due = is_due(c, round);
            any |= c->due;
            if (c->due && round) check_logits(b->w, &(Run){c->request->sequence, NULL, 1, 1},
                                              c->logits, &c->request->error);
            if (c->due && !c->given && c->request->allowed) ask_mask(b, c, round);
        }
        if (any) parallel_for(b->w->pool, n, choose, choices);
    }
}
