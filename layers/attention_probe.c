// Attention weights for a probe (heads_workspace_probe). Scores are computed again after the layer
// has merged its tiles, so that nothing the layer computes changes.
#include <math.h>

#include "layers/head_watch.h"

static void watch(const AttentionPass *p, const Unit *u, int r, Range seen, const float *x,
                  bool shaped) {
    const HeadWatch *watch = p->w->watch;
    if (watch) watch->see(watch, p, u, r, seen, x, shaped);
}

// Row r of a unit, with the maximum and the sum that the merged row has; x [context].
static void show_row(const AttentionPass *p, const Unit *u, const Rows *q, int r, float *x,
                     int thread) {
    const Kernels *k = p->w->k;
    int pos = row_position(u, r), head = row_head(u, r);
    Range seen = seen_from(p->a, pos, text_end(p->a, u->span));
    Rows one = queries_after(q, r);
    Unit whole = *u;
    whole.seen = seen;
    for (int t = seen.low / TILE; t <= seen.high / TILE; t++) {
        KeyTile tile = key_tile(p, &whole, t * TILE, 0);
        dot_keys(p, u, &tile, &one, 1, x + tile.first);
    }
    int from = seen.low / LANES * LANES, to = (seen.high / LANES + 1) * LANES;
    watch(p, u, r, seen, x, false);
    shape_scores(p, u, r, x + from, from, to - from);
    watch(p, u, r, seen, x, true);
    size_t merged = u->first_row + (size_t)r;
    float max = p->b.partial_max[merged], scale = 1.0f / p->b.partial_sum[merged];
    k->exp_sum(x + from, max, to - from);
    k->scale(x + from, scale, to - from);
    heads_attention_row row = {
        .sequence = u->span->sequence, .layer = p->layer, .head = head, .position = pos,
        .first = seen.low, .n = seen.high - seen.low + 1, .weights = x + seen.low,
        .of_source = p->kv->of_source,
        .sink = p->a->sinks ? expf(p->a->sinks[head] - max) * scale : 0.0f,
    };
    p->w->probe.attention(p->w->probe.context, &row, thread);
}

void show_unit(const void *arg, int item, int thread) {
    const AttentionPass *p = arg;
    const Unit *u = &p->b.units[item];
    HeadScratch *x = &p->b.threads[thread];
    Rows q = gather_queries(p, u, x);
    for (int r = 0; r < u->n_rows; r++) show_row(p, u, &q, r, x->weights, thread);
}
