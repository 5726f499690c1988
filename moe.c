// Mixture of experts: the router chooses a few feed-forward networks for each token.
//
// The rows of a pass are gathered by expert, so that an expert's weights are read once for all its
// tokens, and those of an expert that no token chose are not read at all. What a token gets depends
// on its own row alone: its experts are added in the order of their scores, whichever tokens share
// them.
#include <math.h>
#include <string.h>

#include "workspace.h"

typedef struct {  // one of a token's experts
    int expert, row;  // row: of by_expert
    float weight;
} Choice;

typedef struct {
    Buffer score, selection;  // [n][experts]
    Choice *choices;          // [n][top_k]
    Group *groups;            // [experts]
    Buffer by_expert;         // [n top_k][n_embd], rows of one expert after those of another
    Buffer gate, up;          // [n top_k][d_expert]
} MoeBuffers;

static MoeBuffers lay_out(Arena *a, const Experts *e, int n_embd, int n_rows) {
    size_t n = (size_t)n_rows, chosen = n * (size_t)e->top_k;
    MoeBuffers b;
    b.score = take_rows(a, n, (size_t)e->n);
    b.selection = take_rows(a, n, (size_t)e->n);
    b.choices = take(a, chosen, sizeof *b.choices);
    b.groups = take(a, (size_t)e->n, sizeof *b.groups);
    b.by_expert = take_input(a, chosen, (size_t)n_embd);
    b.gate = take_input(a, chosen, (size_t)e->d_expert);
    b.up = take_input(a, chosen, (size_t)e->d_expert);
    return b;
}

typedef struct {
    const Workspace *w;
    const Experts *e;
    Buffer y, out;  // out: what the answers are added to
    MoeBuffers b;
} Job;

static Choice *choices_of(const Job *job, int t) {
    return job->b.choices + (size_t)t * (size_t)job->e->top_k;
}

// ---- the router ----

static int best_of(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

// Leaves in `selection` the experts of the best groups; the others can no longer be chosen.
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

// The sparsemixer's weight of the best that is left (Phi-3.5-MoE, arXiv 2409.12136, without the
// noise of training): that of a softmax over those that are left and not far below it.
static float weight_among_near(const Job *job, const float *score, const float *left, int best) {
    int n = job->e->n, padded = (int)round_up((size_t)n, LANES);
    float near[MAX_EXPERTS], top = left[best];
    for (int i = 0; i < n; i++) {
        float size = fabsf(score[i]) > top ? fabsf(score[i]) : top;
        near[i] = (top - score[i]) / size > 2.0f * job->e->jitter ? -INFINITY : left[i];
    }
    for (int i = n; i < padded; i++) near[i] = -INFINITY;
    return 1.0f / job->w->k->exp_sum(near, top, padded);
}

// The router's scores, as its kind has them.
static void route(const Job *job, float *score) {
    const Kernels *k = job->w->k;
    int n = job->e->n, padded = (int)round_up((size_t)n, LANES);
    if (job->e->route == ROUTE_SOFTMAX) {
        for (int i = n; i < padded; i++) score[i] = -INFINITY;
        k->scale(score, 1.0f / k->exp_sum(score, k->max(score, padded), padded), n);
    } else if (job->e->route == ROUTE_SIGMOID) {
        k->act(score, ACT_SIGMOID, n);
    }
}

// The experts of one token and their weights, from the router's row of scores.
static void choose_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    const Experts *e = job->e;
    float *score = row(job->b.score, t), *selection = row(job->b.selection, t), sum = 0.0f;
    Choice *choice = choices_of(job, t);
    route(job, score);
    memcpy(selection, score, sizeof *selection * (size_t)e->n);
    if (e->selection_bias) job->w->k->add(selection, e->selection_bias, e->n);
    if (e->n_groups > 1) keep_best_groups(e, selection);
    for (int j = 0; j < e->top_k; j++) {
        int i = best_of(selection, e->n);
        choice[j] = (Choice){.expert = i, .weight = score[i]};
        if (e->route == ROUTE_SPARSEMIXER)
            choice[j].weight = weight_among_near(job, score, selection, i);
        selection[i] = -INFINITY;
        sum += choice[j].weight;
    }
    float factor = e->scale / (e->renorm ? sum + e->renorm_eps : 1.0f);
    for (int j = 0; j < e->top_k; j++) choice[j].weight *= factor;
}

// ---- rows by expert, and back ----

// One group for each expert that some of the n tokens chose; returns their number and fills in the
// rows of the choices.
static int group_rows(const Job *job, int n) {
    int n_groups = 0, next[MAX_EXPERTS] = {0};
    Choice *choices = job->b.choices, *end = choices_of(job, n);
    for (Choice *c = choices; c < end; c++) next[c->expert]++;
    for (int e = 0, first = 0; e < job->e->n; e++) {
        int count = next[e];
        next[e] = first;
        if (count) job->b.groups[n_groups++] = (Group){e, first, count};
        first += count;
    }
    for (Choice *c = choices; c < end; c++) c->row = next[c->expert]++;
    return n_groups;
}

static void scatter_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    size_t width = (size_t)job->w->model->n_embd;
    const Choice *choice = choices_of(job, t);
    for (int j = 0; j < job->e->top_k; j++)
        memcpy(row(job->b.by_expert, choice[j].row), row(job->y, t), sizeof(float) * width);
}

static void sum_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    const Workspace *w = job->w;
    const Choice *choice = choices_of(job, t);
    for (int j = 0; j < job->e->top_k; j++)
        w->k->axpby(row(job->out, t), 1.0f, row(job->b.by_expert, choice[j].row), choice[j].weight,
                    w->model->n_embd);
}

void experts(Workspace *w, const Experts *e, Buffer y) {
    int n = w->n_rows, n_chosen = n * e->top_k;
    Arena a = scratch(w);
    Job job = {w, e, y, w->out, lay_out(&a, e, w->model->n_embd, n)};
    MoeBuffers *b = &job.b;
    multiply(w, b->score, &e->router, y, n);
    parallel_for(w->pool, n, choose_row, &job);
    int n_groups = group_rows(&job, n);
    parallel_for(w->pool, n, scatter_row, &job);
    Product products[] = {{b->up, &e->up}, {b->gate, &e->gate}};
    multiply_groups(w, products, e->act.gated ? 2 : 1, b->by_expert, n_chosen, b->groups, n_groups);
    Buffer hidden = activate_rows(w, &e->act, b->gate, b->up, e->d_expert, n_chosen);
    Product down = {b->by_expert, &e->down};
    multiply_groups(w, &down, 1, hidden, n_chosen, b->groups, n_groups);
    if (!e->post_norm.w) {
        parallel_for(w->pool, n, sum_row, &job);
        return;
    }
    job.out = y;  // which is read no more
    zero_rows(y, n);
    parallel_for(w->pool, n, sum_row, &job);
    norm_rows(w, y, &e->post_norm, y, w->model->n_embd, n);
    add_rows(w, w->out, 1.0f, y, w->model->n_embd, n);
}

void experts_scratch(const Workspace *w, const Layer *l, Arena *a) {
    if (l->experts.n) lay_out(a, &l->experts, w->model->n_embd, w->chunk);
}
