// A temperature of queries that grows with the position (Llama 4), by a table of steps.
#include "layers/attention_tiles.h"

void temper_queries(const AttentionPass *p, float *q, int t) {
    const Model *m = p->w->model;
    if (!m->q_temp) return;
    int step = (p->w->tokens[t].pos + m->q_temp_ahead) / m->q_temp_length;
    if (step >= m->n_q_temp) step = m->n_q_temp - 1;
    p->w->k->scale(q, m->q_temp[step], p->a->n_heads * p->a->head_dim);
}
