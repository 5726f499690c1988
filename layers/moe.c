// Mixture of experts: the router chooses a few feed-forward networks for each token.
//
// The rows of a pass are gathered by expert, so that an expert's weights are read once for all its
// tokens, and not at all if no token chose it. A token's result depends on its own row alone: its
// experts are added in the order of their scores, whichever tokens share them.
#include <math.h>
#include <string.h>

#include "engine.h"

typedef struct {  // one of a token's experts
    int expert, row;  // row: of by_expert
    float weight;
} Choice;

typedef struct {
    Buffer score, selection;  // [n][experts]
    Choice *choices;          // [n][top_k]
    Group *groups;            // [experts]
    int *row_of;              // [n top_k], the pass's rows in the order of experts
    Buffer by_expert;         // [n top_k][n_embd], rows in the order of experts
    Buffer gate, up;          // [n top_k][d_expert]
} MoeBuffers;

static MoeBuffers lay_out(Arena *a, const Experts *e, int n_embd, int n_rows) {
    size_t n = (size_t)n_rows, chosen = n * (size_t)e->top_k;
    MoeBuffers b;
    b.score = arena_rows(a, n, (size_t)e->n);
    b.selection = arena_rows(a, n, (size_t)e->n);
    b.choices = arena_array(a, chosen, sizeof *b.choices);
    b.groups = arena_array(a, (size_t)e->n, sizeof *b.groups);
    b.row_of = arena_array(a, chosen, sizeof *b.row_of);
    b.by_expert = arena_input(a, chosen, (size_t)n_embd);
    b.gate = arena_input(a, chosen, (size_t)e->d_expert);
    b.up = arena_input(a, chosen, (size_t)e->d_expert);
    return b;
}

typedef struct {
    const Workspace *w;
    const Experts *e;
    Buffer y, out;  // out: what the answers are added to
    MoeBuffers b;
} MoePass;

static Choice *choices_of(const MoePass *p, int t) {
    return p->b.choices + (size_t)t * (size_t)p->e->top_k;
}

// ---- the router ----

static int best_of(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

// Keeps the experts of the best groups in `selection`; the others can no longer be chosen.
static void keep_best_groups(const Experts *e, float *selection) {
    int size = e->n / e->n_groups;
    float worth[MAX_GROUPS];
    bool kept[MAX_GROUPS] = {false};
    for (int g = 0; g < e->n_groups; g++) {
        const float *x = selection + g * size;
        int best = best_of(x, size);
        float second = -INFINITY;
        for (int i = 0; i < size; i++)
            if (i != best && x[i] > second) second = x[i];
        worth[g] = e->group_score == GROUP_MAX ? x[best] : x[best] + second;
    }
    for (int i = 0; i < e->top_groups; i++) {
        int g = best_of(worth, e->n_groups);
        kept[g] = true;
        worth[g] = -INFINITY;
    }
    for (int i = 0; i < e->n; i++)
        if (!kept[i / size]) selection[i] = -INFINITY;
}

// Sparsemixer (Phi-3.5-MoE, arXiv 2409.12136, without the noise of training): the weight of the
// best expert left is its softmax among the experts left that are not far below it.
static float weight_among_near(const MoePass *p, const float *score, const float *left, int best) {
    int n = p->e->n, padded = (int)round_up((size_t)n, LANES);
    float near[MAX_EXPERTS], top = left[best];
    for (int i = 0; i < n; i++) {
        float size = fabsf(score[i]) > top ? fabsf(score[i]) : top;
        near[i] = (top - score[i]) / size > 2.0f * p->e->jitter ? -INFINITY : left[i];
    }
    for (int i = n; i < padded; i++) near[i] = -INFINITY;
    return 1.0f / p->w->k->exp_sum(near, top, padded);
}

// Turns the router's logits into scores.
static void route(const MoePass *p, float *score) {
    const Kernels *k = p->w->k;
    int n = p->e->n, padded = (int)round_up((size_t)n, LANES);
    if (p->e->route == ROUTE_SOFTMAX) {
        for (int i = n; i < padded; i++) score[i] = -INFINITY;
        k->scale(score, 1.0f / k->exp_sum(score, k->max(score, padded), padded), n);
    } else if (p->e->route == ROUTE_SIGMOID) {
        k->act(score, ACT_SIGMOID, n);
    }
}

// The experts of one token and their weights, from the router's row of scores.
static void choose_row(const void *arg, int t, int thread) {
    const MoePass *p = arg;
    const Experts *e = p->e;
    float *score = row(p->b.score, t), *selection = row(p->b.selection, t), sum = 0.0f;
    Choice *choice = choices_of(p, t);
    route(p, score);
    memcpy(selection, score, sizeof *selection * (size_t)e->n);
    if (e->selection_bias) p->w->k->add(selection, e->selection_bias, e->n);
    if (e->n_groups > 1) keep_best_groups(e, selection);
    for (int j = 0; j < e->top_k; j++) {
        int i = best_of(selection, e->n);
        choice[j] = (Choice){.expert = i, .weight = score[i]};
        if (e->route == ROUTE_SPARSEMIXER)
            choice[j].weight = weight_among_near(p, score, selection, i);
        selection[i] = -INFINITY;
        sum += choice[j].weight;
    }
    float factor = e->scale / (e->renorm ? sum + e->renorm_eps : 1.0f);
    for (int j = 0; j < e->top_k; j++) choice[j].weight *= factor;
}

// ---- rows by expert, and back ----

// Makes a group for each expert that some of the n tokens chose, and sets the rows of the choices.
// Returns the number of groups.
static int group_rows(const MoePass *p, int n) {
    int n_groups = 0, next[MAX_EXPERTS] = {0};
    Choice *choices = p->b.choices, *end = choices_of(p, n);
    for (Choice *c = choices; c < end; c++) next[c->expert]++;
    for (int e = 0, first = 0; e < p->e->n; e++) {
        int count = next[e];
        next[e] = first;
        if (count) p->b.groups[n_groups++] = (Group){e, first, count};
        first += count;
    }
    for (Choice *c = choices; c < end; c++) {
        c->row = next[c->expert]++;
        p->b.row_of[c->row] = (int)(c - choices) / p->e->top_k;
    }
    return n_groups;
}

static void scatter_row(const void *arg, int t, int thread) {
    const MoePass *p = arg;
    size_t width = (size_t)p->w->model->n_embd;
    const Choice *choice = choices_of(p, t);
    for (int j = 0; j < p->e->top_k; j++) {
        float *x = memcpy(row(p->b.by_expert, choice[j].row), row(p->y, t), sizeof(float) * width);
        if (p->e->weigh_input) p->w->k->scale(x, choice[j].weight, (int)width);
    }
}

static void sum_row(const void *arg, int t, int thread) {
    const MoePass *p = arg;
    const Workspace *w = p->w;
    const Choice *choice = choices_of(p, t);
    for (int j = 0; j < p->e->top_k; j++)
        w->k->axpby(row(p->out, t), 1.0f, row(p->b.by_expert, choice[j].row),
                    p->e->weigh_input ? 1.0f : choice[j].weight, w->model->n_embd);
}

// Where experts have a norm of their own, they and the router read norm(x) in place of y.
void add_experts(Workspace *w, const Experts *e, Buffer y) {
    if (e->norm.w) {
        norm_rows(w, w->out, &e->dense_norm, w->out, w->model->n_embd, w->n_rows);
        norm_rows(w, w->y, &e->norm, w->x, w->model->n_embd, w->n_rows);
        y = w->y;
    }
    int n = w->n_rows, n_chosen = n * e->top_k;
    Arena a = scratch(w);
    MoePass p = {w, e, y, w->out, lay_out(&a, e, w->model->n_embd, n)};
    MoeBuffers *b = &p.b;
    multiply(w, b->score, &e->router, y, n);
    parallel_for(w->pool, n, choose_row, &p);
    int n_groups = group_rows(&p, n);
    parallel_for(w->pool, n, scatter_row, &p);
    Product products[] = {{b->up, &e->up}, {b->gate, &e->gate}};
    w->row_of = b->row_of;
    multiply_groups(w, products, e->act.gated ? 2 : 1, b->by_expert, n_chosen, b->groups, n_groups);
    Buffer hidden = activate_rows(w, &e->act, b->gate, b->up, e->d_expert, n_chosen);
    Product down = {b->by_expert, &e->down};
    multiply_groups(w, &down, 1, hidden, n_chosen, b->groups, n_groups);
    w->row_of = NULL;
    if (!e->post_norm.w) {
        parallel_for(w->pool, n, sum_row, &p);
        return;
    }
    p.out = y;  // which is read no more
    zero_rows(y, n);
    parallel_for(w->pool, n, sum_row, &p);
    norm_rows(w, y, &e->post_norm, y, w->model->n_embd, n);
    add_rows(w, w->out, 1.0f, y, w->model->n_embd, n);
}

void experts_scratch(const Workspace *w, int i, Arena *a) {
    const Layer *l = &w->model->layers[i];
    if (l->experts.n) lay_out(a, &l->experts, w->model->n_embd, w->chunk);
}
