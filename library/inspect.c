// Reads the engine's structs for reports.
#include "library/inspect.h"

#include "layers/attention_tiles.h"
#include "load/adapter.h"
#include "load/readout.h"
#include "sampler.h"
#include "sequence/cost.h"
#include "sequence/steering.h"

// ---- the checkpoint ----

ModelFacts inspect_model(const Model *m) {
    static const char *const poolings[N_POOLINGS] = {
        "each token", "mean", "first token", "last token", "maximum", "weighted mean",
        "sum by the root of the length"};
    return (ModelFacts){
        .file_bytes = m->file.map.size, .bytes = m->file.map.data,
        .checksum = checkpoint_crc(&m->file), .shape = m->file.shape,
        .has_tokenizer = has_tokenizer(&m->file),
        .has_chat = checkpoint_meta(&m->file, "chat.template"), .has_logits = m->output.data,
        .learned_positions = m->text.embed_pos.data, .n_meta = m->file.n_meta,
        .n_tensors = m->file.n_tensors, .n_encoder = m->text.first,
        .n_attentions = n_kv_layers(m), .most_tokens = m->rules.most,
        .pooling = m->vector ? poolings[m->vector->pooling] : NULL,
        .unit = m->vector && m->vector->unit};
}

MetaFacts inspect_meta(const Model *m, int i) {
    const Meta *meta = &m->file.meta[i];
    const char *text = meta->type == META_U8 ? meta->values : NULL;
    return (MetaFacts){meta->key, text, meta->key_len, meta->count};
}

TensorFacts inspect_tensor(const Model *m, int i) {
    const Tensor *t = &m->file.tensors[i];
    return (TensorFacts){t->name, dtypes[t->dtype].name, t->name_len, t->rows, t->cols, t->bytes};
}

uint32_t inspect_adapter(const heads_adapter *a) { return checkpoint_crc(&a->file); }
int inspect_checksum(const Model *m, Error *err) { return checkpoint_check(&m->file, err); }

static bool same_meta(const Model *a, const Model *b, const char *key) {
    static const size_t width[] = {[META_U8] = 1, [META_I32] = 4, [META_F32] = 4};
    const Meta *x = checkpoint_meta(&a->file, key), *y = checkpoint_meta(&b->file, key);
    if (!x || !y) return x == y;
    return x->type == y->type && x->count == y->count &&
           memcmp(x->values, y->values, x->count * width[x->type]) == 0;
}

bool inspect_same_tokens(const Model *a, const Model *b) {
    return a->vocab_size == b->vocab_size && same_meta(a, b, "tokenizer.token.begin") &&
           same_meta(a, b, "tokenizer.token.text") && same_meta(a, b, "tokenizer.token.kind");
}

// ---- layers ----

LayerFacts inspect_layer(const Model *m, int i) {
    bool cross = i >= m->n_layers;
    if (cross) i -= m->text.n;
    const Layer *l = &m->layers[i];
    const Attention *a = cross ? &l->cross : &l->attention;
    const Mixer *mixer = mixers[l->mixer];
    return (LayerFacts){
        .mixer = !mixer ? "none" : a->latent.rank ? "latent attention" : mixer->name,
        .number = i < m->text.first ? i : i - m->text.first,
        .attends = mixer == &attention_mixer, .sees = (Sight)a->mask, .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads, .head_dim = a->head_dim, .window = a->window,
        .rope = a->rope, .latent_rank = a->latent.rank, .kv_from = a->kv_from, .sinks = a->sinks,
        .d_ff = l->ffn.d_ff};
}

const char *inspect_attention(int n_heads, int n_kv_heads) {
    return attention_name(n_heads, n_kv_heads);
}

void inspect_shape_line(const Model *m, char *text, size_t size) {
    snprintf(text, size, "%s%d layers, n_embd %d, vocabulary %d, context %d, %s (eps %g)%s%s%s",
             m->encoder ? "encoder, " : m->source.n ? "encoder and decoder, " : "", m->n_layers,
             m->n_embd, m->vocab_size, m->context, m->layernorm ? "LayerNorm" : "RMSNorm",
             (double)m->norm_eps,
             !m->output.data ? ", no output"
             : m->output.data == m->text.embed.data ? ", output tied to the embedding" : "",
             m->head.dense.data ? " through a head" : "",
             m->text.embed_pos.data ? ", learned positions" : "");
}

static void describe_mixer(const Mixer *mixer, const Layer *l, char *text, size_t size) {
    if (mixer && mixer->describe) mixer->describe(l, text, size);
    else snprintf(text, size, "%s", mixer ? mixer->name : "no mixer");
}

static void describe_activation(const Activation *act, char *text, size_t size) {
    static const char *const names[N_ACTS] = {"SiLU",  "GELU (erf)", "GELU (tanh)",   "ReLU",
                                              "ReLU^2", "xIELU",     "clamped SwiGLU"};
    text_append(text, size, "%s%s", names[act->kind], act->gated ? ", gated" : "");
}

static void describe_feed_forward(const Layer *l, char *text, size_t size) {
    const Experts *e = &l->experts;
    if (l->ffn.d_ff) {
        text_append(text, size, "; feed-forward %d, ", l->ffn.d_ff);
        describe_activation(&l->ffn.act, text, size);
        if (e->n) text_append(text, size, ", for all tokens");
    }
    if (e->n) {
        text_append(text, size, "; %d of %d experts of %d, ", e->top_k, e->n, e->d_expert);
        describe_activation(&e->act, text, size);
    }
}

void inspect_layer_line(const Model *m, int i, char *text, size_t size) {
    static const char *const joined[N_TOPOLOGIES] = {
        "", "; attention and feed-forward in parallel", "; norms of the sums",
        "; norms of the stream itself", "; each reads the one before, attention the embedding too"};
    const Layer *l = &m->layers[i];
    describe_mixer(mixers[l->mixer], l, text, size);
    if (l->mamba2_beside) {
        text_append(text, size, l->topology == NESTED ? "; at the end " : "; beside it ");
        size_t used = strlen(text);
        describe_mixer(&mamba2_mixer, l, text + used, size - used);
    }
    describe_feed_forward(l, text, size);
    text_append(text, size, "%s%s%s", l->cross.n_heads ? "; looks at the source" : "",
           joined[l->topology], i < m->n_layers ? "" : "; guesses next tokens");
}

bool inspect_rope_line(const Model *m, int i, char *text, size_t size) {
    if (i >= m->n_rope_sets) return false;
    const RopeSet *r = &m->rope[i];
    snprintf(text, size, "rotates %d of a head's elements, multiplier %g", 2 * r->n_pairs,
             (double)r->multiplier);
    if (r->long_freq)
        text_append(text, size, "; another table for texts of more than %d tokens", r->length);
    return true;
}

// ---- what caches cost ----

KvPlan inspect_kv_plan(const Model *m, int n_kv_heads, int context, heads_type k, heads_type v) {
    return kv_plan(m, n_kv_heads, context, k, v);
}

size_t inspect_kv_bytes(const Model *m, int n_kv_heads, int n, int n_source, heads_type k,
                        heads_type v) {
    return kv_bytes_at(m, n_kv_heads, n, n_source, k, v);
}

size_t inspect_kv_padding(const Model *m, heads_type v) {
    return kv_padding_per_token(m, 0, v);
}

bool inspect_same_steering(const Sequence *a, const Sequence *b) {
    return compare_steering(a->steering, b->steering) == 0;
}

bool inspect_forgets(const Workspace *w) {
    for (int i = 0; i < w->model->n_layers; i++)
        if (w->kv.layers[i].ring || w->kv.layers[i].state) return true;
    return false;
}

// ---- what the processor can do ----

const char *inspect_kernels(const char *isa, const char **why) {
    const Kernels *k = kernels_choose(isa, why);
    return k ? k->name : NULL;
}

// Adds the products of one token. chosen: the matrices of a stack that it meets; 0: all. An absent
// matrix has no rows.
static void add_products(double *products, const Matrix *w, int chosen) {
    products[w->dtype] += (double)(chosen ? chosen : w->n) * w->n_out * w->n_in;
}

static void add_mixer(double *products, const Mixer *mixer, const Layer *l) {
    const Matrix *found[MAX_MIXER_MATRICES];
    int n = mixer ? mixer->matrices(l, found) : 0;
    for (int i = 0; i < n; i++) add_products(products, found[i], 0);
}

static void add_layer(double *products, const Layer *l) {
    const Ffn *f = &l->ffn;
    const Experts *e = &l->experts;
    const Matrix *others[] = {&f->gate, &f->up, &f->down, &f->token_gate, &e->router,
                              &l->embed_branch.gate, &l->embed_branch.out};
    const Matrix *stacks[] = {&e->gate, &e->up, &e->down};
    add_mixer(products, mixers[l->mixer], l);
    if (l->mamba2_beside) add_mixer(products, &mamba2_mixer, l);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        add_products(products, others[i], 0);
    for (int i = 0; i < 3; i++) add_products(products, stacks[i], e->top_k);
}

Products inspect_products(const Model *m) {
    double products[N_DTYPES] = {0};
    int most = F32;
    Products p = {.logits = (double)m->output.n_out * m->output.n_in};
    add_products(products, &m->layer_embed.in, 0);
    for (int i = 0; i < m->n_layers; i++) add_layer(products, &m->layers[i]);
    for (int d = 0; d < N_DTYPES; d++) {
        p.token += products[d];
        if (products[d] > products[most]) most = d;
    }
    p.dtype = most;
    p.dtype_name = dtypes[most].name;
    return p;
}

typedef struct {
    const Kernels *k;
    InputForm input;
    size_t steps, n_lines, n_streams;
    const uint8_t *lines;
} Work;

enum { READ_LINES = 1 << 14 };  // of an item: a megabyte

static void peak_item(const void *arg, int item, int thread) {
    const Work *work = arg;
    work->k->peak[work->input](work->steps);
}

static void read_item(const void *arg, int item, int thread) {
    const Work *work = arg;
    size_t first = (size_t)item * READ_LINES, left = work->n_lines - first;
    size_t n = left < READ_LINES ? left : READ_LINES;
    volatile uint64_t sum = work->k->read(work->lines + first * 64, n, work->n_streams);
    (void)sum;
}

static void no_item(const void *arg, int item, int thread) {}

double inspect_peak(Workspace *w, int dtype, size_t steps, int n) {
    Work work = {.k = w->k, .input = dtypes[dtype].input, .steps = steps};
    if (n) parallel_for(w->pool, n, peak_item, &work);
    else peak_item(&work, 0, 0);
    return w->k->peak[work.input](1) * (double)steps * (n ? n : 1);
}

void inspect_read(Workspace *w, const void *lines, size_t n_lines, int n_streams) {
    Work work = {w->k, .n_lines = n_lines, .n_streams = (size_t)n_streams, .lines = lines};
    parallel_for(w->pool, (int)((n_lines + READ_LINES - 1) / READ_LINES), read_item, &work);
}

void inspect_nothing(Workspace *w) { parallel_for(w->pool, pool_threads(w->pool), no_item, NULL); }
