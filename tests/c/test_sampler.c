// The sampler against exact probabilities, computed here from the definitions by sorting; each kept
// set; ties; odd logits.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library/inspect.h"
#include "sampler.h"

static int failures;
static int draws = 40000;  // of each distribution

static void check(bool ok, const char *name, const char *why) {
    if (ok) printf("ok %s\n", name);
    else printf("not ok %s: %s\n", name, why);
    failures += !ok;
}

static const SamplerOptions PLAIN = {
    .temperature = 1, .top_p = 1, .repeat_penalty = 1, .repeat_last = 64, .seed = 7,
};

static Sampler *make(int vocab_size, SamplerOptions options) {
    Error err;
    Sampler *s = sampler_new(&scalar_kernels, vocab_size, &options, &err);
    if (!s) {
        printf("not ok sampler_new: %s\n", err.text);
        exit(1);
    }
    return s;
}

// The same numbers on every machine, roughly normal: sums of 12 values of a linear congruential
// generator.
static void fill(float *logits, int n, float spread) {
    uint32_t state = 12345;
    for (int i = 0; i < n; i++) {
        int sum = 0;
        for (int j = 0; j < 12; j++) sum += (int)((state = state * 1664525u + 1013904223u) >> 22);
        logits[i] = (float)(sum - 6138) / 1024 * spread;
    }
}

// ---- exact probabilities ----

static const double *sort_key;

static int by_probability(const void *a, const void *b) {
    int i = *(const int *)a, j = *(const int *)b;
    if (sort_key[i] != sort_key[j]) return sort_key[i] > sort_key[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

// p[0..n) of the distribution that the options ask for: the definitions one after the other,
// everything sorted.
static void exact(double *p, const float *logits, int n, const SamplerOptions *o) {
    int *order = malloc(sizeof *order * (size_t)n);
    double total = 0, before = 0, max = -INFINITY;
    for (int i = 0; i < n; i++) if (logits[i] > max) max = logits[i];
    for (int i = 0; i < n; i++) {
        p[i] = exp((logits[i] - max) / o->temperature);
        order[i] = i;
    }
    sort_key = p;
    qsort(order, (size_t)n, sizeof *order, by_probability);
    int kept = n;
    if (o->top_k > 0 && o->top_k < n)
        for (kept = o->top_k; kept < n && p[order[kept]] == p[order[o->top_k - 1]];) kept++;
    for (int i = 0; i < kept; i++) total += p[order[i]];
    if (o->top_p < 1) {
        int most = kept;
        for (kept = 0; kept < most && before < o->top_p * total; kept++) before += p[order[kept]];
    }
    while (p[order[kept - 1]] < o->min_p) kept--;
    for (int i = kept; i < n; i++) p[order[i]] = 0;
    total = 0;
    for (int i = 0; i < n; i++) total += p[i];
    for (int i = 0; i < n; i++) p[i] /= total;
    free(order);
}

static double chi_term(double count, double expected) {
    return (count - expected) * (count - expected) / expected;
}

// Draws from the sampler and compares counts with the exact probabilities: nothing outside the kept
// set, and chi-square within five standard deviations of its mean (the seed is fixed, so this never
// fails by chance).
static void distribution(const char *name, int n, float spread, SamplerOptions options) {
    float *logits = malloc(sizeof *logits * (size_t)n);
    double *p = malloc(sizeof *p * (size_t)n), chi = 0;
    int *counts = calloc((size_t)n, sizeof *counts), cells = 0, outside = 0;
    char why[120];
    fill(logits, n, spread);
    exact(p, logits, n, &options);
    Sampler *s = make(n, options);
    for (int i = 0; i < draws; i++) counts[sampler_pick(s, logits)]++;
    double rest = 0, rest_count = 0;
    for (int i = 0; i < n; i++) {
        double expected = p[i] * draws;
        outside += p[i] == 0 && counts[i] > 0;
        if (expected < 20) {  // rare ids together
            rest += expected;
            rest_count += counts[i];
        } else {
            chi += chi_term(counts[i], expected);
            cells++;
        }
    }
    if (rest > 0) {
        chi += chi_term(rest_count, rest);
        cells++;
    }
    double bound = cells - 1 + 5 * sqrt(2.0 * (cells - 1)) + 1;
    snprintf(why, sizeof why,
             "chi-square %.1f over %d cells, at most %.1f; %d ids outside the kept set", chi, cells,
             bound, outside);
    check(chi <= bound && outside == 0 && cells >= 3, name, why);
    sampler_free(s);
    free(logits);
    free(p);
    free(counts);
}

static void distributions(void) {
    SamplerOptions o = PLAIN;
    distribution("temperature 1", 50, 1, o);
    o.temperature = 0.7f;
    distribution("temperature 0.7", 50, 1, o);
    o.temperature = 2.5f;
    distribution("temperature 2.5", 50, 2, o);
    o = PLAIN, o.top_k = 7;
    distribution("top-k", 50, 1, o);
    o = PLAIN, o.top_p = 0.8f;
    distribution("top-p", 50, 1.5f, o);
    o = PLAIN, o.min_p = 0.1f;
    distribution("min-p", 50, 1, o);
    o = PLAIN, o.top_k = 12, o.top_p = 0.7f;
    distribution("top-k and top-p", 50, 1, o);
    o = PLAIN, o.top_k = 20, o.top_p = 0.9f, o.min_p = 0.15f, o.temperature = 0.9f;
    distribution("all filters", 50, 1, o);
    o = PLAIN, o.top_k = 20, o.top_p = 0.9f, o.min_p = 0.02f, o.temperature = 0.9f;
    distribution("all filters, min-p idle", 50, 1, o);
    o = PLAIN, o.top_p = 0.95f;
    distribution("top-p of 3,000", 3000, 2.5f, o);
}

// ---- kept sets ----

// The ids drawn in 2,000 picks, as a string such as "0 3 4".
static const char *drawn(const float *logits, int n, SamplerOptions options) {
    static char text[200];
    bool seen[32] = {false};
    Sampler *s = make(n, options);
    for (int i = 0; i < 2000; i++) seen[sampler_pick(s, logits)] = true;
    sampler_free(s);
    text[0] = 0;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(text);
        if (seen[i]) snprintf(text + len, sizeof text - len, "%s%d", len ? " " : "", i);
    }
    return text;
}

static void kept(const char *name, const char *want, const float *logits, int n,
                 SamplerOptions options) {
    char why[300];
    const char *found = drawn(logits, n, options);
    snprintf(why, sizeof why, "expected ids %s, drew %s", want, found);
    check(strcmp(found, want) == 0, name, why);
}

static void kept_sets(void) {
    const float tied[] = {1, 3, 2, 3, 2, 2, 0}, equal[10] = {0};
    // probabilities 1/2, 1/4, 1/8, 1/16, 1/16, out of order
    const float halves[] = {-1.3862944f, -2.7725887f, -0.6931472f, -2.0794415f, -2.7725887f};
    SamplerOptions o = PLAIN;
    kept("nothing filtered", "0 1 2 3 4", halves, 5, o);
    o.top_k = 2, kept("top-k 2", "0 2", halves, 5, o);
    o.top_k = 5, kept("top-k of everything", "0 1 2 3 4", halves, 5, o);
    o.top_k = 3, kept("top-k keeps what ties with the last", "1 2 3 4 5", tied, 7, o);
    o.top_k = 1, kept("top-k 1 keeps both best", "1 3", tied, 7, o);
    o = PLAIN;
    o.top_p = 0.74f, kept("top-p just below 3/4", "0 2", halves, 5, o);
    o.top_p = 0.76f, kept("top-p just above 3/4", "0 2 3", halves, 5, o);
    o.top_p = 0.3f, kept("top-p always keeps one", "2", halves, 5, o);
    o.top_p = 0.5f, kept("top-p takes the lower ids of equals", "0 1 2 3 4", equal, 10, o);
    o.top_p = 1e-6f, kept("top-p next to nothing", "0", equal, 10, o);
    o = PLAIN;
    o.min_p = 0.24f, kept("min-p just below 1/4", "0 2 3", halves, 5, o);
    o.min_p = 0.26f, kept("min-p just above 1/4", "0 2", halves, 5, o);
    o.min_p = 1, kept("min-p 1 keeps the best", "1 3", tied, 7, o);
    o = PLAIN;
    o.top_k = 3, o.top_p = 0.8f;  // 4/7 + 2/7 > 0.8
    kept("top-p counts what top-k left", "0 2", halves, 5, o);
    o.min_p = 0.6f, kept("min-p after both", "2", halves, 5, o);
}

// ---- penalty ----

static void picks(Sampler *s, const float *logits, int want, const char *name) {
    char why[60];
    int found = sampler_pick(s, logits);
    snprintf(why, sizeof why, "expected id %d, picked %d", want, found);
    check(found == want, name, why);
}

static void penalty(void) {
    const float logits[] = {2, 1.5f, -1, -1.5f};
    SamplerOptions o = PLAIN;
    o.temperature = 0, o.repeat_penalty = 2, o.repeat_last = 2;
    Sampler *s = make(4, o);
    picks(s, logits, 0, "penalty: none before a token is accepted");
    sampler_accept(s, 0);
    picks(s, logits, 1, "penalty: a logit above 0 is divided");
    sampler_accept(s, 0);
    const float twice[] = {2, 0.8f, -1, -1.5f};
    picks(s, twice, 0, "penalty: counts once");
    sampler_accept(s, 1);
    picks(s, logits, 0, "penalty: 2/2 beats 1.5/2");
    sampler_accept(s, 3);
    picks(s, logits, 0, "penalty: an id leaves the window");
    sampler_accept(s, -5);
    sampler_accept(s, 4);
    picks(s, logits, 0, "penalty: ids outside the vocabulary are ignored");
    sampler_free(s);
    const float near[] = {2, 1.5f, -1, 1.9f};
    s = make(4, o);
    sampler_accept(s, 3);
    picks(s, near, 0, "penalty: only what was accepted");
    sampler_accept(s, 3);
    sampler_accept(s, 0);
    sampler_accept(s, 0);
    picks(s, near, 3, "penalty: two ids of the window");
    sampler_accept(s, 3);
    sampler_accept(s, 0);
    picks(s, near, 1, "penalty: 1.5 beats 2/2 and 1.9/2");
    sampler_free(s);
    const float negative[] = {-3, -1, -2, -9};
    s = make(4, o);
    sampler_accept(s, 1);
    sampler_accept(s, 0);
    picks(s, negative, 1, "penalty: -2 and -2 tie, the lower id wins");
    sampler_free(s);
    o.repeat_penalty = 3;
    s = make(4, o);
    sampler_accept(s, 1);
    picks(s, negative, 2, "penalty: a logit below 0 is multiplied");
    sampler_free(s);
}

// ---- odd logits ----

static void odd_logits(void) {
    SamplerOptions options[6];
    for (int i = 0; i < 6; i++) options[i] = PLAIN;
    options[0].temperature = 0;
    options[2].top_k = 2;
    options[3].top_p = 0.5f;
    options[4].temperature = 1e-30f, options[4].min_p = 0.5f;
    options[5].temperature = 1000, options[5].repeat_penalty = 1e-3f;
    options[5].top_k = 3, options[5].top_p = 0.9f;
    const struct {
        const char *name;
        float logits[5];
        int want;
    } cases[] = {
        {"NaN is never picked", {NAN, -900, NAN, NAN, NAN}, 1},
        {"minus infinity is never picked", {-INFINITY, -INFINITY, -INFINITY, 5, -INFINITY}, 3},
        {"all NaN gives no id", {NAN, NAN, NAN, NAN, NAN}, -1},
        {"all minus infinity gives no id",
         {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, -1},
        {"infinity is picked", {0, 0, INFINITY, -3e38f, NAN}, 2},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bool ok = true;
        for (int i = 0; i < 6; i++) {
            Sampler *s = make(5, options[i]);
            sampler_accept(s, 2);
            for (int j = 0; j < 50; j++) {
                ok = ok && sampler_pick(s, cases[c].logits) == cases[c].want;
            }
            sampler_free(s);
        }
        check(ok, cases[c].name, "another id was picked");
    }
    const float large[] = {3e38f, 3e38f, -3e38f, -3e38f, 3e38f};
    bool ok = true;
    for (int i = 0; i < 6; i++) {
        Sampler *s = make(5, options[i]);
        for (int j = 0; j < 200; j++) ok = ok && strchr("014", '0' + sampler_pick(s, large));
        sampler_free(s);
    }
    check(ok, "the largest floats", "a logit of -3e38 was picked");
    const float ties[] = {-1, 4, 4, 2};
    Sampler *s = make(4, options[0]);
    check(sampler_pick(s, ties) == 1, "greedy takes the lowest of equals", "expected id 1");
    sampler_free(s);
}

// ---- the seed ----

static void seeds(void) {
    // Made by a few lines of Python: splitmix64 of 42, its upper 53 bits over 2^53, times the
    // total, walked from the last id down, or from the most likely one where top-p has put them in
    // order.
    static const int golden[] = {6, 33, 28, 26, 37, 4, 28, 6, 26, 11, 30, 18};
    static const int golden_top_p[] = {26, 28, 28, 1, 6, 11, 28, 4, 1, 34, 28, 37};
    float logits[40], copy[40];
    fill(logits, 40, 1);
    memcpy(copy, logits, sizeof logits);
    SamplerOptions o = PLAIN, p = PLAIN;
    o.seed = p.seed = 42;
    p.top_p = 0.6f;
    Sampler *a = make(40, o), *b = make(40, p);
    bool same = true, same_p = true;
    for (int i = 0; i < 12; i++) {
        same = sampler_pick(a, logits) == golden[i] && same;
        same_p = sampler_pick(b, logits) == golden_top_p[i] && same_p;
    }
    check(same, "seed 42 gives the ids it gives everywhere", "other ids");
    check(same_p, "seed 42 with top-p gives the ids it gives everywhere", "other ids");
    check(memcmp(copy, logits, sizeof logits) == 0, "logits are left alone", "they changed");
    sampler_free(a);
    sampler_free(b);
    o.seed = 1, a = make(40, o);
    o.seed = 2, b = make(40, o);
    int equal = 0;
    for (int i = 0; i < 100; i++)
        equal += sampler_pick(a, logits) == sampler_pick(b, logits);
    check(equal < 50, "seeds 1 and 2 differ", "they mostly gave the same ids");
    sampler_free(a);
    sampler_free(b);
}

// Of a softmax; an id that the model does not have gets none, and nothing beside the row is read.
static void probabilities(void) {
    enum { N = 5 };
    float *logits = malloc(N * sizeof *logits);  // so that ASan sees a step beyond it
    for (int i = 0; i < N; i++) logits[i] = 0.5f * (float)i;
    double sum = 0;
    for (int i = 0; i < N; i++) sum += exp(log_probability(logits, N, i));
    check(fabs(sum - 1) < 1e-12, "probabilities add up to 1", "they do not");
    check(log_probability(logits, N, N) == -INFINITY && log_probability(logits, N, -1) == -INFINITY,
          "an id that the model does not have has probability 0", "it has another");
    free(logits);
}

static void refused(const char *name, int vocab_size, SamplerOptions options) {
    Error err = {""};
    Sampler *s = sampler_new(&scalar_kernels, vocab_size, &options, &err);
    check(!s && err.text[0], name, "it was accepted, or without a message");
    sampler_free(s);
}

static void refusals(void) {
    SamplerOptions o = PLAIN;
    refused("refuses an empty vocabulary", 0, o);
    o.temperature = -1, refused("refuses a temperature below 0", 4, o);
    o.temperature = NAN, refused("refuses a temperature that is no number", 4, o);
    o = PLAIN, o.top_k = -1, refused("refuses top-k below 0", 4, o);
    o = PLAIN, o.top_p = 0, refused("refuses top-p 0", 4, o);
    o = PLAIN, o.top_p = 1.5f, refused("refuses top-p above 1", 4, o);
    o = PLAIN, o.min_p = 2, refused("refuses min-p above 1", 4, o);
    o = PLAIN, o.repeat_penalty = 0, refused("refuses a penalty of 0", 4, o);
    o = PLAIN, o.repeat_last = -1, refused("refuses repeat_last below 0", 4, o);
}

int main(int argc, char **argv) {  // one argument: how often each distribution is drawn from
    if (argc > 1) draws = atoi(argv[1]);
    distributions();
    kept_sets();
    penalty();
    odd_logits();
    seeds();
    probabilities();
    refusals();
    return failures > 0;
}
