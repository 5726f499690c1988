// Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): each head keeps a matrix S of d_state times head_dim
// numbers. A token lets S decay by how long a step it takes, adds the product of B and x times the
// step, and reads S with C:
//
//     S = exp(-rate step) S;   S += B (step x)^T;   o = S^T C + skip x
//
// x, B and C come out of a short convolution with SiLU; B and C are shared by the heads of a group;
// o is gated and normalised. That recurrence is the definition, and what papers compute by chunks
// is the same. What it remembers of a sequence is the last inputs of the convolution, then the
// matrices. Tokens of a sequence are taken one after another, heads and sequences in parallel, so
// that the result depends neither on threads nor on how tokens are cut into passes.
#include "conv.h"

static StepBuffers lay_out(Arena *a, const Mamba2 *m, const Workspace *w, int n_rows) {
    return take_step_buffers(a, &m->conv, w, n_rows, m->n_heads, m->head_dim);
}

typedef struct {
    const Workspace *w;
    const Mamba2 *m;
    const KvLayer *kv;
    StepBuffers b;
} Job;

// x, B and C of one token, step and decay
static void prepare_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    const Mamba2 *m = job->m;
    const Kernels *kernels = job->w->k;
    float *x = row(job->b.in, t);
    convolve(job->w, &m->conv, x, job->b.window, t);
    kernels->act(x, ACT_SILU, m->conv.n_channels);
    kernels->step(row(job->b.step, t), row(job->b.decay, t), m->rate, m->least_step, m->most_step,
                  m->n_heads);
}

// Item: all tokens of a span, for one head.
static void run_head(const void *arg, int item, int thread) {
    const Job *job = arg;
    const Mamba2 *m = job->m;
    const Span *s = &job->w->spans[item / m->n_heads];
    int h = item % m->n_heads, group = h / (m->n_heads / m->n_groups);
    size_t d_state = (size_t)m->d_state, head_dim = (size_t)m->head_dim;
    size_t head = (size_t)h * head_dim, width = (size_t)m->n_heads * head_dim;
    float *matrices = kv_state(job->kv, s->sequence) + conv_state(&m->conv);
    float *state = matrices + (size_t)h * d_state * head_dim;
    for (int t = s->first; t < s->first + s->n; t++) {
        const float *x = row(job->b.in, t), *b = x + width + (size_t)group * d_state;
        const float *c = b + (size_t)m->n_groups * d_state;
        float *out = row(job->b.mixed, t) + head;
        job->w->k->mamba2(state, out, c, b, x + head, row(job->b.decay, t)[h],
                          row(job->b.step, t)[h], m->d_state, m->head_dim);
        job->w->k->axpby(out, 1.0f, x + head, m->skip[h], m->head_dim);
    }
}

// The heads of each group as a whole.
static void norm_groups(const Job *job, float *x) {
    const Mamba2 *m = job->m;
    int width = m->n_heads / m->n_groups * m->head_dim;
    Norm norm = m->norm;
    for (int g = 0; g < m->n_groups; g++, x += width, norm.w += width)
        norm_row(job->w, x, &norm, x, width);
}

// gate = norm(silu(gate) * o), or silu(gate) * norm(o)
static void gate_row(const void *arg, int t, int thread) {
    const Job *job = arg;
    const Mamba2 *m = job->m;
    float *o = row(job->b.mixed, t), *gate = row(job->b.gate, t);
    if (m->norm.w && m->norm_first) norm_groups(job, o);
    job->w->k->act_mul(gate, o, ACT_SILU, m->n_heads * m->head_dim);
    if (m->norm.w && !m->norm_first) norm_groups(job, gate);
}

static void run(Workspace *w, const Layer *l, const KvLayer *kv, Buffer y) {
    const Mamba2 *m = &l->mamba2;
    int n = w->n_rows;
    Arena a = scratch(w);
    Job job = {w, m, kv, lay_out(&a, m, w, n)};
    Product products[] = {{job.b.in, &m->in}, {job.b.gate, &m->gate}, {job.b.step, &m->step}};
    multiply_each(w, products, 3, y, n);
    conv_fill(w, &m->conv, kv, job.b.window, job.b.in);
    parallel_for(w->pool, n, prepare_row, &job);
    conv_remember(w, &m->conv, kv, job.b.window);
    parallel_for(w->pool, w->n_spans * m->n_heads, run_head, &job);
    parallel_for(w->pool, n, gate_row, &job);
    multiply(w, w->out, &m->out, job.b.gate, n);
}

static void count(const Workspace *w, const Layer *l, const KvLayer *kv, Arena *a) {
    lay_out(a, &l->mamba2, w, w->chunk);
}

static size_t state_bytes(const Layer *l) {
    const Mamba2 *m = &l->mamba2;
    size_t matrices = (size_t)m->n_heads * (size_t)m->d_state * (size_t)m->head_dim;
    return round_up(conv_state(&m->conv) + matrices, LANES) * sizeof(float);
}

const Mixer mamba2_mixer = {run, count, state_bytes};
