// Mixture of experts: the router chooses a few feed-forward networks for each token.
//
// The rows of a chunk are gathered by expert, so that an expert's weights are read once for all its tokens, and those of an
// expert that nobody chose not at all. What a token gets depends on its own row alone: its experts are added in the order
// of their scores, whoever shares them.
#include <math.h>
#include <string.h>

#include "session.h"

typedef struct {
    Session *s;
    const Layer *layer;
    const Buffer *y;
} Moe;

// ---- the router ----

static int best_of(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

// Leaves in `selection` the experts of the best groups; the others can no longer be chosen.
static void keep_best_groups(const Layer *l, float *selection) {
    int size = l->n_experts / l->n_groups;
    float worth[MAX_GROUPS];
    bool kept[MAX_GROUPS] = {false};
    for (int g = 0; g < l->n_groups; g++) {
        const float *x = selection + g * size;
        int best = best_of(x, size);
        float second = -INFINITY;
        for (int e = 0; e < size; e++)
            if (e != best && x[e] > second) second = x[e];
        worth[g] = l->group_score == GROUP_MAX ? x[best] : x[best] + second;
    }
    for (int i = 0; i < l->top_groups; i++) {
        int g = best_of(worth, l->n_groups);
        kept[g] = true;
        worth[g] = -INFINITY;
    }
    for (int e = 0; e < l->n_experts; e++)
        if (!kept[e / size]) selection[e] = -INFINITY;
}

// The sparsemixer's weight of the best that is left (Phi-3.5-MoE, arXiv 2409.12136, without the noise of training): that of
// a softmax over those that are left and not far below it.
static float weight_among_near(const Session *s, const Layer *l, const float *score, const float *left, int best) {
    int n = l->n_experts, padded = (n + LANES - 1) / LANES * LANES;
    float near[MAX_EXPERTS], top = left[best];
    for (int e = 0; e < n; e++) {
        float size = fabsf(score[e]) > top ? fabsf(score[e]) : top;
        near[e] = (top - score[e]) / size > 2.0f * l->jitter ? -INFINITY : left[e];
    }
    for (int e = n; e < padded; e++) near[e] = -INFINITY;
    return 1.0f / s->k->exp_sum(near, top, padded);
}

// The experts of one token and their weights, from the router's row of scores.
static void choose_token(void *arg, int t, int thread) {
    (void)thread;
    const Moe *a = arg;
    const Session *s = a->s;
    const Layer *l = a->layer;
    int n = l->n_experts, padded = (n + LANES - 1) / LANES * LANES;
    float *score = row(&s->scores, t), *selection = row(&s->selection, t), sum = 0.0f;
    if (l->score == SCORE_SOFTMAX) {
        for (int e = n; e < padded; e++) score[e] = -INFINITY;
        s->k->scale(score, 1.0f / s->k->exp_sum(score, s->k->max(score, padded), padded), n);
    } else if (l->score == SCORE_SIGMOID) {
        s->k->act(score, ACT_SIGMOID, n);
    }
    memcpy(selection, score, sizeof *selection * (size_t)n);
    if (l->selection_bias) s->k->add(selection, l->selection_bias, n);
    if (l->n_groups > 1) keep_best_groups(l, selection);
    Choice *choice = s->choices + (size_t)t * (size_t)l->top_k;
    for (int j = 0; j < l->top_k; j++) {
        int e = best_of(selection, n);
        choice[j] = (Choice){.expert = e, .weight = score[e]};
        if (l->score == SCORE_SPARSEMIXER) choice[j].weight = weight_among_near(s, l, score, selection, e);
        selection[e] = -INFINITY;
        sum += choice[j].weight;
    }
    float factor = l->routed_scale / (l->renorm ? sum + l->renorm_eps : 1.0f);
    for (int j = 0; j < l->top_k; j++) choice[j].weight *= factor;
}

// ---- rows by expert, and back ----

// One group for each expert that some of the n tokens chose; returns their number and fills in the rows of the choices.
static int group_rows(Session *s, const Layer *l, int n) {
    int n_groups = 0, next[MAX_EXPERTS] = {0};
    for (int i = 0; i < n * l->top_k; i++) next[s->choices[i].expert]++;
    for (int e = 0, first = 0; e < l->n_experts; e++) {
        int count = next[e];
        next[e] = first;
        if (count) s->groups[n_groups++] = (Group){e, first, count};
        first += count;
    }
    for (int i = 0; i < n * l->top_k; i++) s->choices[i].row = next[s->choices[i].expert]++;
    return n_groups;
}

static void scatter_token(void *arg, int t, int thread) {
    (void)thread;
    const Moe *a = arg;
    const Session *s = a->s;
    const Choice *choice = s->choices + (size_t)t * (size_t)a->layer->top_k;
    for (int j = 0; j < a->layer->top_k; j++)
        memcpy(row(&s->by_expert, choice[j].row), row(a->y, t), sizeof(float) * (size_t)s->model->n_embd);
}

static void sum_token(void *arg, int t, int thread) {
    (void)thread;
    const Moe *a = arg;
    const Session *s = a->s;
    const Choice *choice = s->choices + (size_t)t * (size_t)a->layer->top_k;
    for (int j = 0; j < a->layer->top_k; j++)
        s->k->axpby(row(&s->out, t), 1.0f, row(&s->by_expert, choice[j].row), choice[j].weight, s->model->n_embd);
}

void experts(Session *s, int layer, const Buffer *y, int n) {
    const Layer *l = &s->model->layers[layer];
    Moe moe = {s, l, y};
    int rows = n * l->top_k;
    multiply(s, (const Matrix *[]){&l->router}, (const Buffer *[]){&s->scores}, 1, y, n);
    parallel_for(s->pool, n, choose_token, &moe);
    int n_groups = group_rows(s, l, n);
    parallel_for(s->pool, n, scatter_token, &moe);
    multiply_groups(s, (const Matrix *[]){&l->expert_up, &l->expert_gate},
                    (const Buffer *[]){&s->expert_up, &s->expert_gate}, l->gated ? 2 : 1, &s->by_expert, rows, s->groups,
                    n_groups);
    activate(s, l, &s->expert_gate, &s->expert_up, l->d_expert, rows);
    multiply_groups(s, (const Matrix *[]){&l->expert_down}, (const Buffer *[]){&s->by_expert}, 1,
                    l->gated ? &s->expert_gate : &s->expert_up, rows, s->groups, n_groups);
    parallel_for(s->pool, n, sum_token, &moe);
}
