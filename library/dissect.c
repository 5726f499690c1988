// One head computing, for one token: its query, the keys, products, scores, weights, values, their
// mix and what that adds to the output (Vaswani et al. 2017, arXiv 1706.03762). The numbers are
// copied while a pass of this layer alone computes them, from what came into it. A second one has
// the angles of position 0 for all positions, so all that it computes is as without rope.
#include <stdlib.h>
#include <string.h>

#include "layers/head_watch.h"
#include "library/experiments.h"

typedef struct {
    HeadWatch watch;
    KeptText *text;
    Workspace *w;
    const heads_dissection *what;
    const Layer *l;
    heads_head_parts *parts;
    bool plain;             // the pass without rope runs
    float *row;             // [n_heads][v_dim], what all heads of the token give
    float *weights;         // [row_room(n_in)], a row of a matrix
    double *added;          // [n_heads + 1][n_embd]
} Dissection;

static const Attention *attention_of(const Dissection *d) { return &d->l->attention; }
static heads_scoring *scoring(const Dissection *d) {
    return d->plain ? &d->parts->plain : &d->parts->turned;
}

// The parts' numbers, which the caller may only read.
static void copy(const float *to, const float *from, int n) {
    memcpy((float *)(uintptr_t)to, from, (size_t)n * sizeof *to);
}

// ---- what the passes show ----

// MLA: a key that all heads share is [latent; rope part], and a head's [k_up^T latent; rope part].
static void expand_keys(const Dissection *d, const heads_scoring *s, Buffer keys) {
    const Attention *a = attention_of(d);
    const Latent *l = &a->latent;
    const heads_head_parts *p = d->parts;
    int rope = a->head_dim - l->rank, up = d->what->head * (int)round_up((size_t)l->rank, LANES);
    float *k = (float *)(uintptr_t)s->k;
    memset(k, 0, (size_t)p->n * (size_t)p->dim * sizeof *k);
    for (int r = 0; r < l->rank; r++) {
        unpack_adapted_row(d->w, d->weights, &l->k_up, up + r);
        for (int t = 0; t < p->n; t++)
            for (int i = 0; i < l->n_nope; i++)
                k[t * p->dim + i] += row(keys, p->first + t)[r] * d->weights[i];
    }
    for (int t = 0; t < p->n; t++) {
        copy(k + t * p->dim + l->n_nope, row(keys, p->first + t) + l->rank, rope);
        copy(p->latents + t * l->rank, row(keys, p->first + t), l->rank);
    }
}

// Values, or a mix of them, are v_up latent: of latents[n][rank].
static void expand_values(const Dissection *d, const float *values, const float *latents, int n) {
    const Latent *l = &attention_of(d)->latent;
    int up = d->what->head * (int)round_up((size_t)l->n_value, LANES);
    float *v = (float *)(uintptr_t)values;
    for (int i = 0; i < l->n_value; i++) {
        unpack_adapted_row(d->w, d->weights, &l->v_up, up + i);
        for (int t = 0; t < n; t++) {
            double sum = 0;
            for (int r = 0; r < l->rank; r++)
                sum += (double)d->weights[r] * (double)latents[t * l->rank + r];
            v[t * l->n_value + i] = (float)sum;
        }
    }
}

static void keep_keys(const Dissection *d, const AttentionPass *pass) {
    const heads_head_parts *p = d->parts;
    const heads_scoring *s = scoring(d);
    if (attention_of(d)->latent.rank) {
        expand_keys(d, s, pass->b.keys);
        if (!d->plain) expand_values(d, p->v, p->latents, p->n);
        return;
    }
    for (int t = 0; t < p->n; t++) {
        size_t column = (size_t)p->kv_head * (size_t)p->dim;
        copy(s->k + t * p->dim, row(pass->b.keys, p->first + t) + column, p->dim);
        if (!d->plain)
            copy(p->v + t * p->v_dim, row(pass->b.values, p->first + t) + column, p->v_dim);
    }
}

static void keep_query(const Dissection *d, const AttentionPass *pass, const Unit *u, int r) {
    const Attention *a = attention_of(d);
    const heads_head_parts *p = d->parts;
    const float *q = head_row(u, pass->b.q, r, a->head_dim), *to = scoring(d)->q;
    int t = u->span->first + u->token + r / u->group;
    if (!a->latent.rank) {
        copy(to, q, p->dim);
    } else {  // before k_up it is as q projects it, but for its rope part
        size_t column = (size_t)d->what->head * (size_t)p->dim;
        copy(to, row(pass->b.latent.projected, t) + column, a->latent.n_nope);
        copy(to + a->latent.n_nope, q + a->latent.rank, a->head_dim - a->latent.rank);
        if (!d->plain) copy(p->q_latent, q, a->latent.rank);
    }
    if (d->plain) return;
    const float *mix = head_row(u, pass->b.mixed, r, mixed_dim(a));
    copy(a->latent.rank ? p->mix_latent : p->mix, mix, mixed_dim(a));
}

static void see(const HeadWatch *watch, const AttentionPass *pass, const Unit *u, int r,
                Range seen, const float *x, bool shaped) {
    const Dissection *d = (const Dissection *)watch;
    const heads_head_parts *p = d->parts;
    int head = row_head(u, r), n = seen.high - seen.low + 1;
    if (row_position(u, r) != d->what->position) return;
    if (!shaped && pass->layer == p->kv_layer && head == p->kv_head * u->group)
        keep_keys(d, pass);
    if (pass->layer != d->what->layer || head != d->what->head) return;
    if (shaped) {
        copy(scoring(d)->scores, x + seen.low, n);
        return;
    }
    copy(scoring(d)->products, x + seen.low, n);
    keep_query(d, pass, u, r);
}

static void keep_weights(void *context, const heads_attention_row *row, int thread) {
    const Dissection *d = context;
    const heads_dissection *what = d->what;
    if (row->layer != what->layer || row->head != what->head || row->position != what->position)
        return;
    copy(scoring(d)->weights, row->weights, row->n);
    scoring(d)->sink = row->sink;
}

static void keep_mixed(void *context, const heads_mixed *in) {
    const Dissection *d = context;
    if (in->layer == d->what->layer && !in->head && !d->plain)
        copy(d->row, in->rows + (size_t)d->what->position * in->stride, in->n_heads * in->width);
}

// ---- the passes ----

// The next layer that is needed, with what came into it.
static int skip_layers(void *context, const heads_layer_input *in) {
    const Dissection *d = context;
    const Workspace *w = d->w;
    const Model *m = w->model;
    int next = in->layer <= d->parts->kv_layer ? d->parts->kv_layer
             : in->layer <= d->what->layer ? d->what->layer : m->n_layers;
    for (int t = 0; next < m->n_layers && t < in->n; t++)
        copy(in->rows + (size_t)t * in->stride, kept_stream(d->text, next, t), in->width);
    for (int i = 0; d->plain && i < m->n_rope_sets; i++)
        for (int t = 1; t < in->n; t++) {
            copy(row(w->cos[i], t), row(w->cos[i], 0), m->rope[i].n_pairs);
            copy(row(w->sin[i], t), row(w->sin[i], 0), m->rope[i].n_pairs);
        }
    return next;
}

static int run(Dissection *d, Error *err) {
    const heads_dissection *what = d->what;
    heads_sequence *s = heads_sequence_new(d->w, false, err);
    if (!s) return -1;
    int failed = change_text(s, &(Changes){what->off, what->steers, what->n_steers}, what->n, err);
    d->w->watch = &d->watch;
    heads_workspace_probe(d->w, &(heads_probe){
        .attention = keep_weights, .context = d, .mixed = keep_mixed,
        .enter = skip_layers});
    if (!failed) failed = heads_forward(s, what->ids, what->n, 0, err) ? 0 : -1;
    heads_sequence_free(s);
    heads_workspace_probe(d->w, NULL);
    d->w->watch = NULL;
    return failed;
}

// The head's part of what the output matrix gives.
static void keep_output(const Dissection *d) {
    const Attention *a = attention_of(d);
    const heads_head_parts *p = d->parts;
    int n_heads = a->n_heads;
    size_t begin = (size_t)d->what->head * (size_t)p->v_dim;
    copy(p->mixed, d->row + begin, p->v_dim);
    if (a->sub_norm.w) norm_row(d->w, d->row, &a->sub_norm, d->row, n_heads * p->v_dim);
    split_output(d->w, &a->o, d->row, n_heads, p->v_dim, d->weights, d->added);
    float *out = (float *)(uintptr_t)p->out;
    for (int i = 0; i < p->n_embd; i++)
        out[i] = (float)d->added[(size_t)d->what->head * (size_t)p->n_embd + (size_t)i];
}

// ---- the call ----

static int check(const Model *m, const heads_dissection *what, Error *err) {
    if (need(m, "a model", err) || need(what, "the head to look at", err) ||
        need(what->ids, "ids", err))
        return -1;
    if (m->source.n)
        return fail(err, "this model is an encoder-decoder, and a head's parts are shown of models "
                    "that read one text");
    if (what->n < 1) return fail(err, "%d tokens, expected one or more", what->n);
    if (what->position < 0 || what->position >= what->n)
        return fail(err, "position %d: the text has 0..%d", what->position, what->n - 1);
    if (what->layer < 0 || what->layer >= m->n_layers)
        return fail(err, "layer %d: the model has 0..%d", what->layer, m->n_layers - 1);
    const Layer *l = &m->layers[what->layer];
    if (l->mixer != MIXER_ATTENTION)
        return fail(err, "layer %d has no attention: %s", what->layer,
                    l->mixer == MIXER_NONE ? "it has no mixer" : mixers[l->mixer]->name);
    if (what->head < 0 || what->head >= l->attention.n_heads)
        return fail(err, "head %d: layer %d has 0..%d", what->head, what->layer,
                    l->attention.n_heads - 1);
    return 0;
}

// Gives n floats of *room, or only counts them. Blocks of 16 begin on a line of the cache.
static const float *part(float *room, size_t *used, int rows, int columns) {
    const float *at = room ? room + *used : NULL;
    *used += round_up((size_t)rows * (size_t)columns, LANES);
    return at;
}

static void lay_out_scoring(heads_scoring *s, const heads_head_parts *p, float *room,
                            size_t *used) {
    s->q = part(room, used, 1, p->dim);
    s->k = part(room, used, p->n, p->dim);
    s->products = part(room, used, 1, p->n);
    s->scores = part(room, used, 1, p->n);
    s->weights = part(room, used, 1, p->n);
}

static size_t lay_out(heads_head_parts *p, float *room) {
    size_t used = 0;
    lay_out_scoring(&p->turned, p, room, &used);
    lay_out_scoring(&p->plain, p, room, &used);
    p->v = part(room, &used, p->n, p->v_dim);
    p->mix = part(room, &used, 1, p->v_dim);
    p->mixed = part(room, &used, 1, p->v_dim);
    p->out = part(room, &used, 1, p->n_embd);
    if (!p->rank) return used;
    p->latents = part(room, &used, p->n, p->rank);
    p->q_latent = part(room, &used, 1, p->rank);
    p->mix_latent = part(room, &used, 1, p->rank);
    return used;
}

static heads_head_parts describe(const Model *m, const heads_dissection *what) {
    const Attention *a = &m->layers[what->layer].attention;
    const Latent *l = &a->latent;
    int end = a->mask == MASK_CAUSAL ? what->position + 1 : what->n;
    Range seen = seen_from(a, what->position, end);
    int group = a->n_heads / a->n_kv_heads;
    return (heads_head_parts){
        .first = seen.low, .n = seen.high - seen.low + 1,
        .kv_layer = a->kv_from < 0 ? what->layer : a->kv_from, .kv_head = what->head / group,
        .sharing = what->head / group * group, .n_sharing = group,
        .dim = l->rank ? l->n_nope + a->head_dim - l->rank : a->head_dim,
        .v_dim = l->rank ? l->n_value : a->head_dim, .n_embd = m->n_embd, .rank = l->rank,
        .rope = l->rank ? l->n_nope : 0,
        .n_rope = a->rope < 0 ? 0 : 2 * m->rope[a->rope].n_pairs, .scale = a->scale};
}

static heads_head_parts *parts_new(const heads_head_parts *of) {
    heads_head_parts counted = *of;
    size_t head = round_up(sizeof *of, LANES * sizeof(float)), floats = lay_out(&counted, NULL);
    uint8_t *memory = calloc(1, head + floats * sizeof(float));
    if (!memory) return NULL;
    heads_head_parts *p = (heads_head_parts *)(void *)memory;
    *p = *of;
    lay_out(p, (float *)(void *)(memory + head));
    return p;
}

static int larger(int a, int b) { return a > b ? a : b; }

static int allocate(Dissection *d, Error *err) {
    const heads_head_parts *p = d->parts;
    const Attention *a = attention_of(d);
    size_t n_embd = (size_t)p->n_embd, heads = (size_t)a->n_heads;
    int width = larger(a->n_heads * p->v_dim, larger(p->rank, a->latent.n_nope));
    d->row = malloc(heads * (size_t)p->v_dim * sizeof *d->row);
    d->weights = malloc(row_room(d->w, (size_t)width) * sizeof *d->weights);
    d->added = malloc((heads + 1) * n_embd * sizeof *d->added);
    if (d->row && d->weights && d->added) return 0;
    return fail(err, "no memory for the parts of a head");
}

heads_head_parts *heads_dissect(const Model *m, const WorkspaceOptions *options,
                                const heads_dissection *what, Error *err) {
    WorkspaceOptions o = options ? *options : (WorkspaceOptions){0};
    if (check(m, what, err)) return NULL;
    KeptText *text = kept_take(m, &o, what->n, err);
    if (!text) return NULL;
    Dissection d = {.watch = {see}, .text = text, .w = text->w, .what = what,
                    .l = &m->layers[what->layer]};
    heads_head_parts of = describe(m, what);
    const Changes changes = {what->off, what->steers, what->n_steers};
    if (!(d.parts = parts_new(&of))) fail(err, "no memory for the parts of a head");
    int failed = !d.parts || allocate(&d, err) ||
                 !kept_run(text, what->ids, what->n, &changes, err) || run(&d, err);
    if (!failed) {
        keep_output(&d);
        if (of.rank) expand_values(&d, d.parts->mix, d.parts->mix_latent, 1);
        d.plain = true;
        failed = run(&d, err);
    }
    free(d.row);
    free(d.weights);
    free(d.added);
    kept_give(text, &o, failed);
    if (!failed) return d.parts;
    free(d.parts);
    return NULL;
}
