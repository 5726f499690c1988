// Guess i of a pass is worth making if it is right often enough: the time that a right one saves,
// times the share of right ones, against what each costs. What guessing lost is kept small: a text
// that has lost some tokens' time rests, until there is an allowance for another trial.
#include "library/guard.h"

#include <stdlib.h>

#include "library/inspect.h"
#include "sequence/sequence.h"

// Passes: before the first guess, of a trial, between trials and between measures; samples.
enum { PLAIN = 2, TRIAL = 3, PAUSE = 128, REFRESH = 64, SAMPLES = 10 };
enum { FAR_BEHIND = 8 };                       // tokens; fewer are a part of what a guess costs
static const double ALLOWANCE = 0.004;         // of a token, for each pass
static const double MOST_LOST = 0.75;          // tokens
static const double MOST_PRICE = 0.5;          // passes, of a guess that nobody has measured

// One sample moves a mean by a part of half a pass at most: a busy machine may have interrupted it.
static double towards(double mean, double value, double step, double pass) {
    double far = value - mean, most = pass / 2;
    return mean + step * (far > most ? most : far < -most ? -most : far);
}

double draft_price(const Model *draft, const Model *model) {
    return (double)draft->weight_bytes / (double)model->weight_bytes;
}

bool draft_pays(const Model *draft, const Model *model) {
    return draft_price(draft, model) < MOST_PRICE;
}

void guard_measure(GuessCost *cost, int n, int behind, double time) {
    double pass = cost->pass;
    if (n == 0) {
        if (cost->samples == 0) cost->each = cost->before * time;
        if (time <= 0) time = 1e-9;
        bool first = pass <= 0 || time < pass / 2;  // or what was measured was an interruption
        cost->pass = first ? time : towards(pass, time, 0.25, pass);
    } else if (behind > FAR_BEHIND) {
        double read = (time - pass - n * cost->each) / behind;
        cost->behind = read > 0 ? read : 0;
    } else {
        double step = cost->samples < SAMPLES ? 1.0 / ++cost->samples : 0.1, least = pass / 1000;
        double each = towards(cost->each, (time - pass) / n, step, pass);
        cost->each = each > least ? each : least;
    }
}

bool guard_rests(GuessCost *cost) { return ++cost->passes % REFRESH == 0; }

static void begin_trial(Guard *g) {
    g->begun = true;
    g->tried = true;
    g->trial = TRIAL;
    g->known = 0;
    for (int i = 0; i < MAX_SHARES; i++) g->share[i] = 0.7f;
}

// The most guesses of which the last still makes the pass give more tokens a second.
static int worthwhile(const Guard *g, const GuessCost *cost, int tokens, int most) {
    double time = cost->pass, given = tokens, chance = 1;
    int n = 0;
    for (; n < most; n++) {
        chance *= g->share[n < MAX_SHARES ? n : MAX_SHARES - 1];
        if (chance * time <= cost->each * given) break;
        time += cost->each;
        given += chance;
    }
    return n;
}

int guard_most(Guard *g, const GuessCost *cost, int tokens, int behind, int most) {
    g->spare += ALLOWANCE;
    if (g->pause > 0) return g->pause--, 0;
    if (most < 1 || cost->pass <= 0 || cost->passes <= PLAIN) return 0;
    if (!g->begun) {
        // The first guess of a large draft model costs most, since all its weights are touched.
        if (cost->samples == 0 && cost->each * tokens >= MOST_PRICE * cost->pass) return 0;
        double price = behind > FAR_BEHIND ? behind * cost->behind * tokens / cost->pass : 0;
        if (g->tried && g->spare < price) return 0;
        if (g->tried) g->spare -= price;
        begin_trial(g);
    }
    int n = worthwhile(g, cost, tokens, most < g->known + 1 ? most : g->known + 1);
    if (n == 0 && g->trial > 0 && cost->each * tokens < cost->pass) n = 1;
    if (g->trial > 0) g->trial--;
    if (n > 0 && g->spare > -MOST_LOST) return n;
    g->pause = PAUSE;
    g->begun = false;
    return 0;
}

void guard_learn(Guard *g, const GuessCost *cost, int tokens, int n, int right, int again) {
    if (cost->pass > 0) g->spare += right - (n + again) * cost->each * tokens / cost->pass;
    for (int i = 0; i < n && i <= right && i < MAX_SHARES; i++)
        g->share[i] += 0.07f * ((float)(i < right) - g->share[i]);
    if (n > g->known) g->known = n;
    // What is further ahead than any yet is as good as the last that was tried. Where there could
    // have been more, hope for the next grows.
    for (int i = g->known; i < MAX_SHARES; i++) g->share[i] = g->share[i - 1];
    if (right == n && n < g->known && n < MAX_SHARES)
        g->share[n] += 0.03f * (g->share[n - 1] - g->share[n]);
}

// ---- of one text at a time ----

struct TextGuard {
    Guard guard;
    GuessCost cost;
};

TextGuard *text_guard_new(const Model *model, const Model *draft) {
    TextGuard *g = calloc(1, sizeof *g);
    if (g && draft) g->cost.before = draft_price(draft, model);
    return g;
}

int text_guard_most(TextGuard *g, int behind, int most) {
    return guard_rests(&g->cost) ? 0 : guard_most(&g->guard, &g->cost, 1, behind, most);
}

void text_guard_learn(TextGuard *g, int n, int behind, int right, int passes, double time) {
    guard_measure(&g->cost, n, behind, time - (passes - 1) * g->cost.pass);
    if (n > 0) guard_learn(&g->guard, &g->cost, 1, n, right, 0);
}

int text_guard_mark(heads_sequence *s, Error *err) {
    return mark_at(s, heads_sequence_length(s) + 1, err);
}
