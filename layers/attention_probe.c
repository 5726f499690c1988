// Attention weights for a probe (heads_workspace_probe). Scores are computed again after the layer
// has merged its tiles, so that nothing the layer computes changes.
#include <math.h>

#include "layers/attention_tiles.h"

// Row r of a unit's block, with the maximum and the sum that the merged row has; x [context].
static void show_row(const AttentionPass *p, const Unit *u, const Rows *q, int r, float *x,
                     int thread) {
    const QueryBlock *b = &u->block;
    const Kernels *k = p->w->k;
    Rows one = queries_after(q, r);
    for (int t = u->first_tile; t <= seen_by(p, b).high / TILE; t++) {
        KeyTile tile = key_tile(p, b, t * TILE, 0);
        dot_keys(p, b, &tile, &one, 1, x + tile.first);
    }
    int pos = row_position(b, r), head = row_head(b, r);
    Range seen = seen_from(p->a, pos, text_end(p->a, b->span));
    int from = seen.low / LANES * LANES, to = (seen.high / LANES + 1) * LANES;
    shape_scores(p, b, r, x + from, from, to - from);
    size_t merged = partial_row(p, b, 0) + (size_t)r;
    float max = p->b.partial_max[merged], scale = 1.0f / p->b.partial_sum[merged];
    k->exp_sum(x + from, max, to - from);
    k->scale(x + from, scale, to - from);
    heads_attention_row row = {
        .sequence = b->span->sequence, .layer = p->layer, .head = head, .position = pos,
        .first = seen.low, .n = seen.high - seen.low + 1, .weights = x + seen.low,
        .of_source = p->kv->of_source,
        .sink = p->a->sinks ? expf(p->a->sinks[head] - max) * scale : 0.0f,
    };
    p->w->probe.attention(p->w->probe.context, &row, thread);
}

// The first split of a block shows all tiles.
void show_unit(const void *arg, int unit, int thread) {
    const AttentionPass *p = arg;
    Unit u = unit_of(p, unit);
    if (u.split > 0) return;
    HeadScratch *x = &p->b.threads[thread];
    Rows q = gather_queries(p, &u.block, x);
    for (int r = 0; r < u.block.n_rows; r++) show_row(p, &u, &q, r, x->weights, thread);
}
