// From runs (which tokens of which sequences come next) to passes of at most a chunk of rows.
#include <string.h>

#include "sequence/sequence.h"

// ---- passes ----

// Padding inside a text has a place of its own, and the tokens after it do not count it.
void add_span(Workspace *w, Sequence *s, const int *tokens, int n, int pos, int n_logits) {
    for (int i = 0, next = pos; i < n; i++) {
        int place = tokens[i] == w->tower->padding ? w->model->context : next++;
        w->tokens[w->n_rows + i] = (Token){s, tokens[i], pos + i, place, w->n_spans};
    }
    w->spans[w->n_spans++] = (Span){s, w->n_rows, n, pos, n_logits, 0};
    w->n_rows += n;
}

// Adds the next n tokens of a text.
static void add_tokens(Workspace *w, Sequence *s, const int *tokens, int n, int n_logits) {
    add_span(w, s, tokens, n, s->length, n_logits);
    memmove(s->tokens + s->length, tokens, sizeof *tokens * (size_t)n);
}

// Runs the spans that were added; returns how many rows of logits they gave.
static int run_pass(Workspace *w, int logit_row) {
    int n_logits = 0;
    forward_pass(w, logit_row);
    for (Span *s = w->spans; s < w->spans + w->n_spans; s++) {
        s->sequence->length += s->n;
        if (s->sequence->high < s->sequence->length) s->sequence->high = s->sequence->length;
        n_logits += s->n_logits;
    }
    w->n_spans = w->n_rows = 0;
    return n_logits;
}

// Prepares a sequence for n more tokens. If the new length needs other tables of rope, the tokens
// in the cache run again.
static int prepare(Workspace *w, Sequence *s, int n, Error *err) {
    if (prepare_cache(s, n, err)) return -1;
    int length = choose_rope_tables(s, n, err);
    while (s->length < length) {
        int left = length - s->length;
        add_tokens(w, s, s->tokens + s->length, left < w->chunk ? left : w->chunk, 0);
        run_pass(w, 0);
    }
    return length < 0 ? -1 : 0;
}

// ---- runs ----

int check_run(Workspace *w, const Run *r, int length, Error *err) {
    int context = w->kv.context;
    if (need(r->sequence, "a sequence", err)) return -1;
    if (r->sequence->workspace != w)
        return fail(err, "a sequence of another workspace cannot run in this one");
    if (r->sequence->call == w->call) return fail(err, "a sequence stands in two runs");
    if (r->n < 1 || r->n_logits < 0 || r->n_logits > r->n)
        return fail(err, "%d tokens with %d rows of logits asked for; expected a token or more, "
                    "and no more rows than tokens", r->n, r->n_logits);
    if (r->n > context - length)
        return fail(err, "%d tokens after %d do not fit into a context of %d", r->n, length,
                    context);
    if (need(r->tokens, "the tokens of a run", err)) return -1;
    for (int i = 0; i < r->n; i++)
        if (r->tokens[i] < 0 || r->tokens[i] >= w->tower->vocab_size)
            return fail(err, "token %d is %d, the vocabulary has 0..%d", i, r->tokens[i],
                        w->tower->vocab_size - 1);
    r->sequence->call = w->call;
    return 0;
}

// Checks what a model asks of a run of its text.
static int check_text(const Workspace *w, const Run *r, Error *err) {
    const Model *m = w->model;
    int length = r->sequence->length;
    if (r->n_logits && !w->hidden && !m->output.data)
        return fail(err, "the model gives hidden states and has no logits");
    if (m->encoder && length)
        return fail(err, "an encoder runs a text as a whole, and this one has %d tokens already; "
                    "rewind it to 0", length);
    if (m->source.n && !r->sequence->source.n)
        return fail(err, "the model's decoder looks at a source, and this sequence has none yet");
    return 0;
}

int check_runs(Workspace *w, const Run *runs, int n_runs, int *failed, Error *err) {
    int n_logits = 0;
    if (n_runs < 0) return fail(err, "no room for %d runs", n_runs);
    if (n_runs && need(runs, "runs", err)) return -1;
    w->tower = &w->model->text;
    w->call++;
    for (int i = 0; i < n_runs; i++) {
        const Run *r = &runs[i];
        *failed = i;
        if (check_run(w, r, r->sequence ? r->sequence->length : 0, err) || check_text(w, r, err))
            return -1;
        n_logits += r->n_logits;
        if (n_logits > w->logit_rows)
            return fail(err, "more than the %d rows of logits that the workspace was made for",
                        w->logit_rows);
    }
    for (int i = 0; i < n_runs; i++) {
        *failed = i;
        if (prepare(w, runs[i].sequence, runs[i].n, err)) return -1;
    }
    return 0;
}

// Whether a row is finite: infinity and NaN times 0 are NaN. Sums are in lanes, for the compiler.
static bool finite_row(const float *x, int n) {
    float zeros[LANES] = {0}, sum = 0.0f;
    for (int i = 0; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) zeros[j] += x[i + j] * 0.0f;
    for (int i = n / LANES * LANES; i < n; i++) sum += x[i] * 0.0f;
    for (int j = 0; j < LANES; j++) sum += zeros[j];
    return sum == 0.0f;
}

// Weights or activations that overflow a float end as NaN, and a sampler would still pick tokens.
int check_logits(const Workspace *w, const Run *r, const float *logits, Error *err) {
    for (int i = 0; i < r->n_logits; i++, logits += w->logits.stride)
        if (!finite_row(logits, logit_width(w)))
            return fail(err, "the logits of position %d are no finite numbers: weights or "
                        "activations are beyond what a float holds",
                        r->sequence->length - r->n_logits + i);
    return 0;
}

// Cuts runs into passes. whole: a run's tokens see those after them, so it stays in one pass.
void run_passes(Workspace *w, const Run *runs, int n_runs, bool whole) {
    int n_logits = 0;
    for (const Run *r = runs; r < runs + n_runs; r++)
        for (int done = 0, n; done < r->n; done += n) {
            if (whole && w->n_rows && r->n > w->pass_rows - w->n_rows)
                n_logits += run_pass(w, n_logits);
            int room = whole ? w->chunk : w->pass_rows - w->n_rows;
            n = r->n - done < room ? r->n - done : room;
            int first = r->n - r->n_logits > done ? r->n - r->n_logits : done;  // logits wanted
            int wanted = done + n > first ? done + n - first : 0;
            add_tokens(w, r->sequence, r->tokens + done, n, wanted);
            if (w->n_rows >= w->pass_rows) n_logits += run_pass(w, n_logits);
        }
    if (w->n_rows) run_pass(w, n_logits);
}

const float *heads_forward_runs(Workspace *w, const Run *runs, int n_runs, Error *err) {
    if (need(w, "a workspace", err)) return NULL;
    const float *logits = w->logits.data;
    int failed;
    if (check_runs(w, runs, n_runs, &failed, err)) return NULL;
    run_passes(w, runs, n_runs, w->model->encoder);
    for (const Run *r = runs; r < runs + n_runs; r++) {
        if (check_logits(w, r, logits, err)) return NULL;
        logits += (size_t)r->n_logits * w->logits.stride;
    }
    return w->logits.data;
}

const float *heads_forward(Sequence *s, const int *tokens, int n, int n_logits, Error *err) {
    if (need(s, "a sequence", err)) return NULL;
    return heads_forward_runs(s->workspace, &(Run){s, tokens, n, n_logits}, 1, err);
}
