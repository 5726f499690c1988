// Texts read out: several run side by side, the hidden states of each are pooled, and go through
// the steps that the checkpoint has after them.
#include "library/pooling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- one text ----

size_t result_rows(const Readout *r, const TextIds *text) {
    if (r->pooling == POOL_NONE) return (size_t)text->n;
    return text->n_parts ? (size_t)text->n_parts : 1;
}

// The token whose hidden state counts, where it is one of a text's last; -1: the text lacks it.
static int last_token(const Readout *r, const TextIds *text) {
    int last = text->n - 1;
    if (r->eos >= 0) {
        while (last >= 0 && text->ids[last] != r->eos) last--;
        return last;
    }
    while (last > 0 && text->ids[last] == r->pad) last--;
    return text->ids[last] == r->pad ? 0 : last;
}

// How many hidden states of a text are wanted, counted from its end. The first of them is the last
// token's that counts, where that is its vector.
static int wanted_rows(const Readout *r, const TextIds *text) {
    return r->pooling == POOL_LAST && !text->n_parts ? text->n - last_token(r, text) : text->n;
}

static int check_ends(const Readout *r, const TextIds *texts, int n, Error *err) {
    for (int i = 0; r->eos >= 0 && i < n; i++)
        if (last_token(r, &texts[i]) < 0)
            return fail(err, "text %d lacks token %d, at whose place this model's classes are read",
                        i, r->eos);
    return 0;
}

// Pools n rows, which lie a stride apart, into out [width], which may be the first of them.
static void pool_rows(const Workspace *w, int pooling, float *out, const float *rows,
                      size_t stride, int n, int width) {
    bool sums = pooling == POOL_MEAN || pooling == POOL_SQRT;
    if (out != rows) memcpy(out, rows, sizeof *out * (size_t)width);
    for (int t = 1; t < n; t++) {
        const float *next = rows + (size_t)t * stride;
        if (sums) w->k->add(out, next, width);
        if (pooling == POOL_WEIGHTED) w->k->axpby(out, 1.0f, next, (float)(t + 1), width);
        for (int i = 0; pooling == POOL_MAX && i < width; i++) out[i] = fmaxf(out[i], next[i]);
    }
    float weights = pooling == POOL_SQRT ? sqrtf((float)n) : (float)n;
    if (pooling == POOL_WEIGHTED) weights = (float)n * (float)(n + 1) / 2.0f;
    if (sums || pooling == POOL_WEIGHTED) w->k->scale(out, 1.0f / weights, width);
}

// Takes n rows of w->x or w->y through steps; the result is in the one or the other.
static Buffer run_steps(Workspace *w, const HeadStep *steps, int n_steps, Buffer in, int n) {
    for (const HeadStep *s = steps; s < steps + n_steps; s++) {
        Buffer out = in.data == w->x.data ? w->y : w->x;
        int width = s->dense.n_out;
        multiply(w, out, &s->dense, in, n);
        for (int t = 0; s->act.kind == ACT_TANH && t < n; t++)
            w->k->softcap(row(out, t), 1.0f, width);
        if (s->act.kind < ACT_TANH) activate_rows(w, &s->act, out, out, width, n);
        if (s->norm.w) norm_rows(w, out, &s->norm, out, width, n);
        in = out;
    }
    return in;
}

// ---- many texts ----

typedef struct {
    int text, n;
    size_t row;  // of the result, its first
} Length;

typedef struct {        // what becomes one vector
    const float *rows;  // [n][stride], hidden states
    int n;
    float *result;
} Part;

typedef struct {
    Workspace *w;
    const Readout *readout;
    const TextIds *texts;
    float *results;                 // [rows][readout->width]
    Length *order;                  // the shortest first, so that a pass has texts of like length
    int n_texts;
    Sequence **sequences;           // [MAX_TEXTS], made as they are needed
    const Length *pass;             // the texts of this pass
    const float *rows[MAX_TEXTS];   // their hidden states
    int *late;                      // [logit_rows]: their ids, as a decoder with a source reads
    Part parts[MAX_TEXTS];          // [n_parts], that are not pooled yet
    int n_parts;
} Reading;

static int by_length(const void *a, const void *b) {
    const Length *x = a, *y = b;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->text > y->text) - (x->text < y->text);
}

static float *result_of(const Reading *v, int i) {
    return v->results + v->pass[i].row * (size_t)v->readout->width;
}

static void pool_part(const void *arg, int i, int thread) {
    const Reading *v = arg;
    const Part *part = &v->parts[i];
    size_t stride = v->w->logits.stride;
    int skipped = v->readout->pooling == POOL_LAST ? part->n - 1 : 0;
    pool_rows(v->w, v->readout->pooling, row(v->w->y, i), part->rows + (size_t)skipped * stride,
              stride, part->n - skipped, v->w->model->n_embd);
}

static void finish_result(const Reading *v, float *result, const float *from) {
    const Readout *r = v->readout;
    memcpy(result, from, sizeof *result * (size_t)r->width);
    if (r->unit) v->w->k->unit(result, 1.0f, 1e-24f, r->width);
}

// Pooling first, then the steps.
static void read_parts(Reading *v) {
    const Readout *r = v->readout;
    parallel_for(v->w->pool, v->n_parts, pool_part, v);
    Buffer out = run_steps(v->w, r->steps, r->n_steps, v->w->y, v->n_parts);
    for (int i = 0; i < v->n_parts; i++) finish_result(v, v->parts[i].result, row(out, i));
    v->n_parts = 0;
}

// The n texts of the pass.
static void read_pooled(Reading *v, int n) {
    const Readout *r = v->readout;
    for (int i = 0; i < n; i++) {
        const TextIds *text = &v->texts[v->pass[i].text];
        const int whole[] = {0, r->pooling == POOL_LAST ? 1 : text->n};
        const int *at = text->n_parts ? text->bounds : whole;
        float *result = result_of(v, i);
        for (int p = 0; p < (text->n_parts ? text->n_parts : 1); p++, result += r->width) {
            const float *rows = v->rows[i] + (size_t)at[p] * v->w->logits.stride;
            v->parts[v->n_parts++] = (Part){rows, at[p + 1] - at[p], result};
            if (v->n_parts == MAX_TEXTS || v->n_parts == v->w->chunk) read_parts(v);
        }
    }
    if (v->n_parts) read_parts(v);
}

// Steps on each token of a text. Without pooling these are the result.
static void read_tokens(Reading *v, int i) {
    const Readout *r = v->readout;
    Workspace *w = v->w;
    int n_steps = r->pooling == POOL_NONE ? r->n_steps : r->after;
    size_t width = (size_t)r->width, stride = w->logits.stride;
    float *result = result_of(v, i);
    for (int from = 0, n; from < v->pass[i].n; from += n) {
        n = v->pass[i].n - from < w->chunk ? v->pass[i].n - from : w->chunk;
        Buffer in = {(float *)v->rows[i] + (size_t)from * stride, stride};
        copy_rows(w->y, in, w->model->n_embd, n);
        Buffer out = run_steps(w, r->steps, n_steps, w->y, n);
        if (r->pooling != POOL_NONE) {  // an encoder's text is whole
            pool_rows(w, r->pooling, row(out, 0), row(out, 0), out.stride, n,
                      r->steps[n_steps - 1].dense.n_out);
            out = run_steps(w, r->steps + n_steps, r->n_steps - n_steps, out, 1);
            n = v->pass[i].n;
        }
        for (int t = 0; t < (r->pooling == POOL_NONE ? n : 1); t++)
            finish_result(v, result + (size_t)(from + t) * width, row(out, t));
    }
}

static int empty_sequence(Reading *v, int i, Error *err) {
    if (!v->sequences[i]) v->sequences[i] = heads_sequence_new(v->w, false, err);
    const Adapted *by = &v->w->adapted;
    if (!v->sequences[i] || heads_sequence_rewind(v->sequences[i], 0, err) ||
        heads_sequence_adapter(v->sequences[i], by->adapter, by->scale, err))
        return -1;
    v->sequences[i]->second_text = v->texts[v->pass[i].text].second;
    return 0;
}

// Has the encoder read the texts of a pass. The decoder then reads them too, one token late, after
// the token that all targets begin with.
static int read_sources(Reading *v, Run *runs, int n, Error *err) {
    Run sources[MAX_TEXTS];
    int *late = v->late;
    for (int i = 0; i < n; late += runs[i++].n) {
        sources[i] = (Run){runs[i].sequence, runs[i].tokens, runs[i].n, 0};
        late[0] = v->w->model->rules.start.v[0];
        memcpy(late + 1, runs[i].tokens, sizeof *late * (size_t)(runs[i].n - 1));
        runs[i].tokens = late;
    }
    return heads_read_sources(v->w, sources, n, err);
}

// Runs as many texts from order[from] on as fill a pass; returns how many, or -1.
static int fill_pass(Reading *v, int from, Error *err) {
    Run runs[MAX_TEXTS];
    const Readout *r = v->readout;
    int n = 0, n_rows = 0;
    v->pass = v->order + from;
    for (; n < MAX_TEXTS && from + n < v->n_texts; n++) {
        const Length *next = &v->pass[n];
        if (n && next->n > v->w->chunk - n_rows) break;
        if (empty_sequence(v, n, err)) return -1;
        const TextIds *text = &v->texts[next->text];
        runs[n] = (Run){v->sequences[n], text->ids, next->n, wanted_rows(r, text)};
        n_rows += next->n;
    }
    if (v->late && read_sources(v, runs, n, err)) return -1;
    const float *rows = heads_forward_runs(v->w, runs, n, err);
    if (!rows) return -1;
    for (int i = 0; i < n; rows += (size_t)runs[i++].n_logits * v->w->logits.stride)
        v->rows[i] = rows;
    if (r->pooling != POOL_NONE && !r->after) read_pooled(v, n);
    else
        for (int i = 0; i < n; i++) read_tokens(v, i);
    return n;
}

static int check_finite(const Reading *v, size_t n_rows, Error *err) {
    size_t n = n_rows * (size_t)v->readout->width;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v->results[i]))
            return fail(err, "what follows the hidden states gives no finite numbers: weights are "
                        "beyond what a float holds");
    return 0;
}

int read_out(Workspace *w, Sequence **sequences, const Readout *readout, const TextIds *texts,
             int n, float *results, Error *err) {
    Reading v = {.w = w, .readout = readout, .texts = texts, .results = results, .n_texts = n,
                 .sequences = sequences};
    if (check_ends(readout, texts, n, err)) return -1;
    v.order = malloc((size_t)n * sizeof *v.order + 1);
    if (v.order && readout->eos >= 0) v.late = malloc((size_t)w->logit_rows * sizeof *v.late);
    if (!v.order || (readout->eos >= 0 && !v.late)) {
        free(v.order);
        return fail(err, "no memory for %d texts", n);
    }
    size_t n_rows = 0;
    for (int i = 0; i < n; i++) {
        v.order[i] = (Length){i, texts[i].n, n_rows};
        n_rows += result_rows(readout, &texts[i]);
    }
    qsort(v.order, (size_t)n, sizeof *v.order, by_length);
    int done = 0, more = 0;
    for (; done < n && more >= 0; done += more) more = fill_pass(&v, done, err);
    free(v.order);
    free(v.late);
    return more < 0 ? -1 : check_finite(&v, n_rows, err);
}

// ---- scores ----

static void softmax(float *row, int n) {
    float most = row[0];
    double sum = 0;
    for (int i = 1; i < n; i++) most = fmaxf(most, row[i]);
    for (int i = 0; i < n; i++) sum += exp((double)row[i] - (double)most);
    for (int i = 0; i < n; i++) row[i] = (float)(exp((double)row[i] - (double)most) / sum);
}

void score_classes(const Readout *readout, float *rows, size_t n) {
    size_t width = (size_t)readout->width;
    for (size_t i = 0; readout->scores == SCORES_SOFTMAX && i < n; i++)
        softmax(rows + i * width, readout->width);
    for (size_t i = 0; readout->scores == SCORES_SIGMOID && i < n * width; i++)
        rows[i] = (float)(1 / (1 + exp(-(double)rows[i])));
}
