// Direct logit attribution (Elhage et al. 2021, transformer-circuits.pub): the last norm's scale
// held as it is, a logit is a sum over all that was added to the residual stream. What multiplies
// the stream after a layer is a direction, which goes back from the logit through the layers.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "library/experiments.h"
#include "math/lowrank.h"

typedef struct {  // what the heads of a mixer give for the last token
    int layer, head, n_heads, width;
    float *row;   // [n_heads][width]
} Mix;

typedef struct {
    Workspace *w;
    int n_heads;       // of a layer of the results
    double *streams;   // [n_layers + 1][n_embd], of the last token, before each layer and behind
    Mix *mixes;        // [2 n_layers], n_mixes of them
    int n_mixes;
    double *direction; // [n_embd]: what a number of the stream adds to the logit
    double *folded;    // [n_embd], the same before a branch's own norm
    double *parts;     // [n_heads + 1][n_embd]: what a mixer's heads and its bias add to its output
    float *weights;    // [row_room(n_in)], a row of its output matrix
    double biases;     // what those add to the logit
} Attribution;

static double *stream_before(const Attribution *a, int layer) {
    return a->streams + (size_t)layer * (size_t)a->w->model->n_embd;
}

static void keep_mix(void *context, const heads_mixed *in) {
    Attribution *a = context;
    size_t width = (size_t)in->n_heads * (size_t)in->width;
    Mix *m = &a->mixes[a->n_mixes++];
    *m = (Mix){in->layer, in->head, in->n_heads, in->width, malloc(width * sizeof(float))};
    if (m->row) memcpy(m->row, in->rows + (size_t)(in->n - 1) * in->stride, width * sizeof(float));
}

// ---- norms, their scale held ----

// Sets out[n] so that out . v is what a part v of the norm's input x adds to d . norm(x). Returns
// what the norm's bias adds. out may be d.
static double fold(const Norm *norm, const double *x, const double *d, double *out, int n) {
    double mean = 0, square = 0, bias = 0, out_mean = 0;
    for (int i = 0; norm->layernorm && i < n; i++) mean += x[i] / n;
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / n;
    double scale = 1 / sqrt(square + (double)norm->eps);
    for (int i = 0; i < n; i++) {
        if (norm->b) bias += d[i] * (double)norm->b[i];
        out[i] = d[i] * (double)norm->w[i] * scale;
        out_mean += out[i] / n;
    }
    for (int i = 0; norm->layernorm && i < n; i++) out[i] -= out_mean;
    return bias;
}

static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// ---- a layer ----

// The matrix that a mix goes into.
static const Matrix *output_of(const Layer *l, const Mix *m) {
    if (m->head) return &l->mamba2.out;
    return l->mixer == MIXER_ATTENTION ? &l->attention.o
         : l->mixer == MIXER_DELTANET ? &l->deltanet.out
         : l->mixer == MIXER_MAMBA2 ? &l->mamba2.out
         : l->mixer == MIXER_MAMBA1 ? &l->mamba1.out
         : l->mixer == MIXER_RGLRU ? &l->rglru.out : &l->shortconv.out;
}

size_t row_room(const Workspace *w, size_t n_in) {
    const heads_adapter *adapter = w->adapted.adapter;
    return adapter ? 2 * n_in + (size_t)adapter->most_rank : n_in;
}

void unpack_adapted_row(const Workspace *w, float *weights, const Matrix *matrix, int r) {
    unpack_row(w, weights, matrix, r);
    const LowRank *pair = low_rank_of(w->adapted.adapter, matrix);
    if (!pair) return;
    const size_t in_stack = (size_t)r / round_up((size_t)matrix->n_out, LANES);
    float *a = weights + matrix->n_in, *b = a + matrix->n_in;
    unpack_row(w, b, &pair->b, r);
    for (int i = 0; i < pair->a.n_out; i++) {
        unpack_row(w, a, &pair->a, (int)(in_stack * round_up((size_t)pair->a.n_out, LANES)) + i);
        for (int j = 0; j < matrix->n_in; j++) weights[j] += w->adapted.scale * b[i] * a[j];
    }
}

void split_output(const Workspace *w, const Matrix *o, const float *mixed, int n_heads, int width,
                  float *weights, double *parts) {
    size_t n_embd = (size_t)o->n_out;
    for (size_t r = 0; r < n_embd; r++) {
        unpack_adapted_row(w, weights, o, (int)r);
        for (int h = 0, i = 0; h < n_heads; h++) {
            double sum = 0;
            for (int end = i + width; i < end; i++) sum += (double)weights[i] * (double)mixed[i];
            parts[(size_t)h * n_embd + r] = sum;
        }
        parts[(size_t)n_heads * n_embd + r] = o->bias ? (double)o->bias[r] : 0;
    }
}

// Sets parts[n_heads] to what a mixer's heads add to the logit; returns their sum and its biases'.
static double attribute_mix(Attribution *a, const Mix *m, float *parts) {
    const Layer *l = &a->w->model->layers[m->layer];
    const Norm *post = &l->attn_post_norm, *before = &l->attention.sub_norm;
    int n = a->w->model->n_embd;
    size_t n_embd = (size_t)n;
    double *bias = a->parts + (size_t)m->n_heads * n_embd, *d = a->direction, sum = 0, of_bias = 0;
    if (!m->head && l->mixer == MIXER_ATTENTION && before->w)
        norm_row(a->w, m->row, before, m->row, m->n_heads * m->width);
    split_output(a->w, output_of(l, m), m->row, m->n_heads, m->width, a->weights, a->parts);
    if (post->w) {
        double *whole = d = a->folded;
        memcpy(whole, bias, n_embd * sizeof *whole);
        for (size_t i = 0; i < (size_t)m->n_heads * n_embd; i++) whole[i % n_embd] += a->parts[i];
        of_bias = fold(post, whole, a->direction, d, n);
    }
    for (int h = 0; h < m->n_heads; h++) {
        double part = (double)l->residual_scale * dot(d, a->parts + (size_t)h * n_embd, n);
        parts[m->head + h] = (float)part;
        sum += part;
    }
    of_bias = (double)l->residual_scale * (of_bias + dot(d, bias, n));
    a->biases += of_bias;
    return sum + of_bias;
}

// What the layer's network adds is what its mixers do not. The direction then is that before it.
static void attribute_layer(Attribution *a, int i, float *heads, float *ffn) {
    const Layer *l = &a->w->model->layers[i];
    int n = a->w->model->n_embd;
    double added = dot(a->direction, stream_before(a, i + 1), n);
    for (int j = 0; l->out_scale && j < n; j++) a->direction[j] *= (double)*l->out_scale;
    added -= dot(a->direction, stream_before(a, i), n);
    for (const Mix *m = a->mixes; m < a->mixes + a->n_mixes; m++)
        if (m->layer == i) added -= attribute_mix(a, m, heads);
    *ffn = has_ffn(l) ? (float)added : 0;
    if (!has_ffn(l)) a->biases += added;
}

// ---- the logit ----

// Sets the direction to the rows of the output for answer and against, before the last norm.
static void begin_direction(Attribution *a, int answer, int against) {
    const Model *m = a->w->model;
    float *row = a->weights;
    for (int i = 0; i < m->n_embd; i++) a->direction[i] = 0;
    for (int sign = 1; sign >= -1; sign -= 2) {
        int id = sign > 0 ? answer : against;
        if (id < 0) continue;
        unpack_adapted_row(a->w, row, &m->output, id);
        for (int i = 0; i < m->n_embd; i++) a->direction[i] += sign * (double)row[i];
        if (m->output.bias) a->biases += sign * (double)m->output.bias[id];
    }
    if (m->text.norm.w)
        a->biases += fold(&m->text.norm, stream_before(a, m->n_layers), a->direction,
                          a->direction, m->n_embd);
}

static int run_text(Attribution *a, KeptText *text, const int *ids, int n, const Changes *changes,
                    const float **logits, Error *err) {
    text->mixed = keep_mix;
    text->context = a;
    if (!(*logits = kept_run(text, ids, n, changes, err))) return -1;
    for (int layer = 0; layer <= a->w->model->n_layers; layer++)
        for (int i = 0; i < a->w->model->n_embd; i++)
            stream_before(a, layer)[i] = (double)kept_stream(text, layer, n - 1)[i];
    for (int i = 0; i < a->n_mixes; i++)
        if (!a->mixes[i].row) return fail(err, "no memory for what heads give");
    return 0;
}

static void attribute(Attribution *a, const float *logits, int answer, int against, float *heads,
                      float *ffn, heads_parts *parts) {
    const Model *m = a->w->model;
    for (size_t i = 0; i < (size_t)m->n_layers * (size_t)a->n_heads; i++) heads[i] = 0;
    begin_direction(a, answer, against);
    double total = a->biases + dot(a->direction, stream_before(a, m->n_layers), m->n_embd);
    for (int i = m->n_layers - 1; i >= 0; i--)
        attribute_layer(a, i, heads + (size_t)i * (size_t)a->n_heads, &ffn[i]);
    parts->embedding = dot(a->direction, stream_before(a, 0), m->n_embd);
    parts->logit = (double)logits[answer] - (against < 0 ? 0 : (double)logits[against]);
    parts->total = m->final_softcap > 0 ? total : parts->logit;
    parts->rest = a->biases + parts->total - total;
}

// ---- the call ----

static int check_model(const Model *m, Error *err) {
    if (check_continues(m, "attribution", err)) return -1;
    if (m->head.dense.data)
        return fail(err, "the model has a network between its last norm and the logits, so these "
                    "are no sum over layers");
    for (int i = 0; i < m->n_layers; i++)
        if (m->layers[i].topology != SEQUENTIAL && m->layers[i].topology != PARALLEL)
            return fail(err, "layer %d %s, so a logit is no sum over what branches add", i,
                        m->layers[i].topology == NESTED ? "sends one branch through the next"
                                                        : "norms the residual stream itself");
    return 0;
}

static int check_attribution(const Model *m, const int *ids, int n, int answer, int against,
                             Error *err) {
    if (need(m, "a model", err) || need(ids, "ids", err) || check_model(m, err)) return -1;
    if (n < 1) return fail(err, "%d tokens, expected one or more", n);
    return check_answer(m, answer, against, -1, err);
}

// The most numbers that a mixer's heads give for a token.
static size_t widest_mix(const Attribution *a) {
    size_t most = (size_t)a->w->model->n_embd;
    for (const Mix *m = a->mixes; m < a->mixes + a->n_mixes; m++) {
        size_t width = (size_t)m->n_heads * (size_t)m->width;
        most = width > most ? width : most;
    }
    return most;
}

int attribute_text(const Model *m, const WorkspaceOptions *options, const int *ids, int n,
                   int answer, int against, const Changes *changes, float *heads, float *ffn,
                   heads_parts *parts, Error *err) {
    WorkspaceOptions o = options ? *options : (WorkspaceOptions){0};
    if (check_attribution(m, ids, n, answer, against, err) ||
        need(heads, "room for heads", err) || need(ffn, "room for networks", err) ||
        need(parts, "room for parts", err))
        return -1;
    KeptText *text = kept_take(m, &o, n, err);
    if (!text) return -1;
    Attribution a = {.w = text->w, .n_heads = heads_model_heads(m)};
    size_t n_layers = (size_t)m->n_layers, n_embd = (size_t)m->n_embd;
    const float *logits = NULL;
    a.streams = malloc((n_layers + 1) * n_embd * sizeof *a.streams);
    a.mixes = calloc(2 * n_layers, sizeof *a.mixes);
    a.direction = malloc(n_embd * sizeof *a.direction);
    a.folded = malloc(n_embd * sizeof *a.folded);
    a.parts = malloc((size_t)(a.n_heads + 1) * n_embd * sizeof *a.parts);
    int failed = !a.streams || !a.mixes || !a.direction || !a.folded || !a.parts
               ? fail(err, "no memory for the parts of a logit")
               : run_text(&a, text, ids, n, changes, &logits, err);
    if (!failed && !(a.weights = malloc(row_room(a.w, widest_mix(&a)) * sizeof *a.weights)))
        failed = fail(err, "no memory for the parts of a logit");
    if (!failed) attribute(&a, logits, answer, against, heads, ffn, parts);
    for (int i = 0; i < a.n_mixes; i++) free(a.mixes[i].row);
    free(a.streams);
    free(a.mixes);
    free(a.direction);
    free(a.folded);
    free(a.parts);
    free(a.weights);
    kept_give(text, &o, failed);
    return failed ? -1 : 0;
}

int heads_attribute(const Model *m, const WorkspaceOptions *options, const int *ids, int n,
                    int answer, int against, const char *off, float *heads, float *ffn,
                    heads_parts *parts, Error *err) {
    return attribute_text(m, options, ids, n, answer, against, &(Changes){.off = off}, heads, ffn,
                          parts, err);
}
