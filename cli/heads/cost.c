// A head's cost: the mean over the text's tokens, the first one left out, of -log p(token) with the
// head switched off, minus the same with it, in nats (zero ablation: Michel et al. 2019, arXiv
// 1905.10650; Voita et al. 2019, 1905.09418).
#include "cli/heads/cost.h"

#include <stdlib.h>
#include <string.h>

#include "cli/print.h"

typedef struct {  // texts that run side by side, each without its head
    HeadsPage *page;
    int n_texts, n, chunk;      // texts; tokens of each that have a loss; of a pass
    heads_sequence **sequences; // [n_texts]
    double *losses;             // [n_texts][n]
    double *whole;              // [n], with all heads
} Ablation;

bool has_costs(const HeadsPage *p) {
    return !p->p->shape.encoder && p->p->facts.has_logits && p->texts.ids.n > 1 &&
           !p->p->o->no_cost;
}

// Switches the head off, besides the heads of --off; NULL: no other.
static void prepare(const Ablation *a, heads_sequence *s, const Head *head) {
    heads_error err;
    char name[64] = "";
    const Program *p = a->page->p;
    const char *off = p->o->off ? p->o->off : "", *kind = "";
    if (head && head->layer->texts.sees == SEES_SOURCE) kind = "x";
    if (head && head->layer->texts.sees == SEES_ALL) kind = "e";
    if (head) snprintf(name, sizeof name, "%s%d.%d", kind, head->layer->facts.number, head->number);
    Text list = {0};
    text_format(&list, "%s%s%s", off, *off && head ? "," : "", name);
    if (heads_sequence_rewind(s, 0, &err) || heads_sequence_off(s, list.data, &err))
        die("%s", err.text);
    free(list.data);
    Ids source = a->page->texts.source;
    heads_run run = {.sequence = s, .tokens = source.data, .n = (int)source.n};
    if (run.n && heads_read_sources(p->w, &run, 1, &err)) die("%s", err.text);
    heads_sequence_expect(s, a->n);
}

// Runs n_texts texts from token `from` on, n tokens of each, and keeps the losses.
static void run(const Ablation *a, int n_texts, int from, int n) {
    heads_error err;
    heads_workspace *w = a->page->p->w;
    const int *ids = a->page->texts.ids.data;
    heads_run *runs = allocate((size_t)n_texts, sizeof *runs);
    for (int t = 0; t < n_texts; t++) runs[t] = (heads_run){a->sequences[t], ids + from, n, n};
    const float *logits = heads_forward_runs(w, runs, n_texts, &err);
    if (!logits) die("%s", err.text);
    for (int t = 0; t < n_texts; t++, logits += (size_t)n * heads_logit_stride(w))
        token_losses(w, logits, ids + from + 1, n, a->losses + (size_t)t * (size_t)a->n + from);
    free(runs);
}

// The losses of heads[0..n_texts), or with all heads.
static void run_texts(const Ablation *a, const Head *heads, int n_texts) {
    for (int t = 0; t < n_texts; t++) prepare(a, a->sequences[t], heads ? &heads[t] : NULL);
    for (int from = 0, n; from < a->n; from += n) {
        n = a->n - from < a->chunk ? a->n - from : a->chunk;
        run(a, n_texts, from, n);
    }
}

static void keep_costs(const Ablation *a, Head *head, const double *losses) {
    head->costs = allocate((size_t)a->n, sizeof *head->costs);
    double sum = 0;
    for (int i = 0; i < a->n; i++) {
        sum += losses[i] - a->whole[i];
        head->costs[i] = (float)(losses[i] - a->whole[i]);
    }
    head->cost = sum / a->n;
}

void measure_costs(HeadsPage *p) {
    Ablation a = {.page = p, .n = (int)p->texts.ids.n - 1,
                  .chunk = p->p->o->workspace.chunk};
    double start = seconds();
    a.n_texts = a.chunk / a.n < 1 ? 1 : a.chunk / a.n;
    a.sequences = allocate((size_t)a.n_texts, sizeof *a.sequences);
    a.losses = allocate((size_t)a.n_texts * (size_t)a.n, sizeof *a.losses);
    a.whole = allocate((size_t)a.n, sizeof *a.whole);
    for (int t = 0; t < a.n_texts; t++) a.sequences[t] = open_text(p->p, false);
    run_texts(&a, NULL, 1);
    memcpy(a.whole, a.losses, (size_t)a.n * sizeof *a.whole);
    for (size_t h = 0; h < p->n_heads; h += (size_t)a.n_texts) {
        size_t left = p->n_heads - h;
        int n = left < (size_t)a.n_texts ? (int)left : a.n_texts;
        run_texts(&a, &p->heads[h], n);
        for (int t = 0; t < n; t++) keep_costs(&a, &p->heads[h + t], a.losses + (size_t)t * a.n);
        if (seconds() - start > 1)
            progress((long)h + n, (long)p->n_heads, "the loss without each of %zu heads "
                     "(--no-cost leaves it out)", p->n_heads);
    }
    for (int t = 0; t < a.n_texts; t++) heads_sequence_free(a.sequences[t]);
    free(a.sequences);
    free(a.losses);
    free(a.whole);
}
