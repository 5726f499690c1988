// Guess i of a pass is worth making if it is right often enough: the time that a right one saves,
// times the share of right ones, against what each costs.
#include "library/guard.h"

#include <stdlib.h>

#include "library/inspect.h"

enum { TRIAL = 3, FEW = 3, FIRST_PAUSE = 128, LONGEST_PAUSE = 2048 };
enum { REFRESH = 64 };

static double towards(double mean, double value, double step) {
    return mean > 0 ? mean + step * (value - mean) : value;
}

void guard_measure(GuessCost *cost, int n, double time) {
    double each = n ? (time - cost->pass) / n : 0, least = cost->pass / 1000;
    if (n == 0) cost->pass = towards(cost->pass, time > 1e-9 ? time : 1e-9, 0.1);
    else cost->each = towards(cost->each, each > least ? each : least, 0.1);
}

bool guard_rests(GuessCost *cost) { return ++cost->passes % REFRESH == 0; }

static void begin_trial(Guard *g) {
    g->begun = true;
    g->trial = TRIAL;
    if (!g->next_pause) g->next_pause = FIRST_PAUSE;
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

int guard_most(Guard *g, const GuessCost *cost, int tokens, int most) {
    if (g->pause > 0) return g->pause--, 0;
    if (most < 1 || cost->pass <= 0) return 0;
    if (!g->begun) begin_trial(g);
    int n = cost->each > 0 ? worthwhile(g, cost, tokens, most) : most < FEW ? most : FEW;
    if (n == 0 && g->trial > 0 && cost->each * tokens < cost->pass) n = 1;
    if (g->trial > 0) g->trial--;
    else if (n > 0) g->next_pause = FIRST_PAUSE;
    if (n > 0) return n;
    g->pause = g->next_pause;
    g->next_pause = g->next_pause < LONGEST_PAUSE ? 2 * g->next_pause : LONGEST_PAUSE;
    g->begun = false;
    return 0;
}

void guard_learn(Guard *g, int n, int right) {
    for (int i = 0; i < n && i <= right && i < MAX_SHARES; i++)
        g->share[i] += 0.15f * ((float)(i < right) - g->share[i]);
    // Of guesses further ahead than any yet, the last that was tried tells most.
    for (int i = n; i < MAX_SHARES && right >= n - 1; i++) g->share[i] = g->share[n - 1];
}

// ---- of one text at a time ----

struct TextGuard {
    Guard guard;
    GuessCost cost;
};

TextGuard *text_guard_new(void) { return calloc(1, sizeof(TextGuard)); }

int text_guard_most(TextGuard *g, int most) {
    return guard_rests(&g->cost) ? 0 : guard_most(&g->guard, &g->cost, 1, most);
}

void text_guard_learn(TextGuard *g, int n, int right, double time) {
    guard_measure(&g->cost, n, time);
    if (n > 0) guard_learn(&g->guard, n, right);
}
