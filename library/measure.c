// What is measured after a text, with the same bits on every machine. C libraries differ in exp and
// log, so these are of sums and products alone, to a unit or two in the last place.
#include <math.h>

#include "library/experiments.h"

static const double LN2_HIGH = 0x1.62e42feep-1, LN2_LOW = 0x1.a39ef35793c76p-33;  // their sum: ln 2

// x = n ln 2 + r with |r| <= ln 2 / 2, and exp(r) by its series.
static double plain_exp(double x) {
    if (x < -745) return 0;
    double n = floor(x / (LN2_HIGH + LN2_LOW) + 0.5), r = x - n * LN2_HIGH - n * LN2_LOW, sum = 1;
    for (int i = 14; i > 0; i--) sum = 1 + sum * r / i;
    return ldexp(sum, (int)n);
}

// x = m 2^n with m near 1, and log(m) = 2 artanh((m - 1) / (m + 1)) by its series.
static double plain_log(double x) {
    int n;
    double m = frexp(x, &n);
    if (m < 0x1.6a09e667f3bcdp-1) m *= 2, n--;
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int i = 27; i > 0; i -= 2) sum = sum * square + 1.0 / i;
    return n * LN2_HIGH + (2 * s * sum + n * LN2_LOW);
}

// log(sum of exp(logit))
static double log_sum(const float *logits, int n) {
    double max = (double)logits[0], sum = 0;
    for (int i = 1; i < n; i++) max = (double)logits[i] > max ? (double)logits[i] : max;
    for (int i = 0; i < n; i++) sum += plain_exp((double)logits[i] - max);
    return max + plain_log(sum);
}

// KL(clean || what the logits say), in nats.
static double divergence(const float *clean, const float *logits, int n) {
    double sum = 0, of_clean = log_sum(clean, n), of_logits = log_sum(logits, n);
    for (int i = 0; i < n; i++) {
        double p = (double)clean[i] - of_clean;
        sum += plain_exp(p) * (p - ((double)logits[i] - of_logits));
    }
    return sum;
}

double metric_of(heads_metric metric, const float *clean, const float *logits, int n, int answer,
               int against) {
    if (metric == HEADS_KL) return divergence(clean, logits, n);
    if (metric == HEADS_LOG_PROBABILITY) return (double)logits[answer] - log_sum(logits, n);
    return (double)logits[answer] - (double)logits[against];
}

// ---- what experiments refuse, and how their texts begin ----

int check_continues(const Model *m, const char *what, Error *err) {
    if (m->encoder || m->source.n)
        return fail(err, "%s is for models that continue a text, and this one is an encoder%s",
                    what, m->source.n ? "-decoder" : "");
    if (!m->output.data)
        return fail(err, "%s is for models that continue a text, and this one gives hidden states "
                    "and has no logits", what);
    return 0;
}

int check_answer(const Model *m, int answer, int against, int least, Error *err) {
    if (answer >= 0 && answer < m->vocab_size && against >= least && against < m->vocab_size)
        return 0;
    return fail(err, "answer is %d and against %d, the vocabulary has 0..%d", answer, against,
                m->vocab_size - 1);
}

Workspace *experiment_workspace(const Model *m, const WorkspaceOptions *o, Error *err) {
    const Workspace *host = o->threads_of;
    Workspace *w = heads_workspace_new(m, o, err);
    if (!w || !host || host->model != m) return w;
    if (!heads_workspace_adapter(w, host->adapted.adapter, host->adapted.scale, err)) return w;
    workspace_free(w);
    return NULL;
}

int change_text(Sequence *s, const Changes *c, int n, Error *err) {
    if (c->n_steers > 0 && need(c->steers, "steering vectors", err)) return -1;
    if (heads_sequence_off(s, c->off, err)) return -1;
    for (int i = 0; i < c->n_steers; i++) {
        const heads_steer *v = &c->steers[i];
        if (heads_sequence_steer(s, v->layer, v->vector, v->scale, err)) return -1;
    }
    heads_sequence_expect(s, n);
    return 0;
}
