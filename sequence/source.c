// The source of an encoder-decoder: the encoder reads it as a whole, and what the decoder's
// cross-attention wants of it stays in the cache.
#include <string.h>

#include "sequence/sequence.h"

static int check_source(Workspace *w, const Run *r, Error *err) {
    if (check_run(w, r, 0, err)) return -1;
    int length = r->sequence->length;
    if (length || frozen_source(r->sequence))
        return fail(err, "a sequence of %d tokens%s cannot get another source; rewind it to 0, or "
                    "take a new one", length, length ? "" : " whose source forks share");
    return 0;
}

static int check_sources(Workspace *w, const Run *runs, int n_runs, Error *err) {
    if (n_runs < 0) return fail(err, "no room for %d runs", n_runs);
    if (n_runs && need(runs, "runs", err)) return -1;
    w->tower = &w->model->source;
    w->call++;
    for (const Run *r = runs; r < runs + n_runs; r++)
        if (check_source(w, r, err)) return -1;
    for (const Run *r = runs; r < runs + n_runs; r++)
        if (prepare_cache(r->sequence, r->n, err)) return -1;
    return 0;
}

static void run_pass(Workspace *w) {
    if (w->n_rows) forward_pass(w, 0);
    w->n_spans = w->n_rows = 0;
}

static void add_source(Workspace *w, Sequence *s, const int *tokens, int n) {
    if (n > w->pass_rows - w->n_rows) run_pass(w);
    add_span(w, s, tokens, n, 0, 0);
    memmove(s->source.tokens, tokens, sizeof *tokens * (size_t)n);
    s->source.n = n;
    s->source.mapped = false;
}

int heads_read_sources(Workspace *w, const Run *runs, int n_runs, Error *err) {
    if (need(w, "a workspace", err)) return -1;
    if (!w->model->source.n) return fail(err, "the model has no encoder to read a source with");
    if (check_sources(w, runs, n_runs, err)) return -1;
    for (const Run *r = runs; r < runs + n_runs; r++) add_source(w, r->sequence, r->tokens, r->n);
    run_pass(w);
    for (const Run *r = runs; r < runs + n_runs; r++)
        discard(r->sequence->cache + w->kv.passing, w->kv.bytes - w->kv.passing);
    return 0;
}
