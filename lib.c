// heads.h's calls, each the engine's own; options that are 0 become the engine's defaults.
#include "heads.h"

#include <stdlib.h>

#include "sampler.h"
#include "session.h"
#include "text/chat.h"
#include "tokenizer.h"

int heads_abi(void) { return HEADS_ABI; }
const char *heads_version(void) { return HEADS_VERSION; }
void heads_free(void *memory) { free(memory); }

// ---- the model ----

heads_model *heads_model_open(const char *path, heads_error *err) {
    heads_model *m = calloc(1, sizeof *m);
    if (!m) fail(err, "no memory to open %s", path);
    else if (model_open(m, path, err) == 0) return m;
    free(m);
    return NULL;
}

void heads_model_close(heads_model *m) {
    if (m) model_close(m);
    free(m);
}

heads_shape heads_model_shape(const heads_model *m) {
    return (heads_shape){m->vocab_size, m->n_embd,       m->n_layers,
                         m->context,    m->weight_bytes, m->encoder,
                         m->source.n ? m->source.vocab_size : 0, m->rules.greedy,
                         checkpoint_meta(&m->file, "tokenizer.target.begin") != NULL};
}

// ---- text and ids ----

heads_tokenizer *heads_tokenizer_new(const heads_model *m, heads_error *err) {
    return tokenizer_new(&m->file, err);
}

void heads_tokenizer_free(heads_tokenizer *t) { tokenizer_free(t); }

long heads_encode(const heads_tokenizer *t, const char *text, size_t len, int add_special,
                  int **ids, heads_error *err) {
    return tokenizer_encode(t, text, len, add_special, ids, err);
}

int heads_is_eos(const heads_tokenizer *t, int id) { return tokenizer_is_eos(t, id); }

heads_decoder *heads_decoder_new(const heads_tokenizer *t, int skip_special, heads_error *err) {
    return decoder_new(t, skip_special, err);
}

void heads_decoder_free(heads_decoder *d) { decoder_free(d); }

int heads_decoder_push(heads_decoder *d, int id, const char **text, size_t *len, heads_error *err) {
    return decoder_push(d, id, text, len, err);
}

int heads_decoder_finish(heads_decoder *d, const char **text, size_t *len, heads_error *err) {
    return decoder_finish(d, text, len, err);
}

// ---- conversations ----

heads_chat *heads_chat_new(const heads_model *m, heads_error *err) {
    return chat_new(&m->file, err);
}

void heads_chat_free(heads_chat *c) { chat_free(c); }

long heads_chat_encode(const heads_chat *c, const heads_tokenizer *t, const heads_message *messages,
                       size_t n, const heads_chat_options *o, int **ids, heads_error *err) {
    ChatOptions options = {.add_generation_prompt = o->answer, .no_think = o->no_think,
                           .clock = (time_t)o->clock};
    size_t len;
    char *text = chat_render(c, messages, n, &options, &len, err);
    long count = text ? heads_encode(t, text, len, false, ids, err) : -1;
    free(text);
    return count;
}

int heads_chat_end(const heads_chat *c, const heads_tokenizer *t) { return chat_stop(c, t); }
int heads_chat_prints_date(const heads_chat *c) { return chat_prints_date(c); }

// ---- where passes run ----

static int set_type(Dtype *type, const char *what, heads_type from, Error *err) {
    static const Dtype types[] = {[HEADS_F16] = F16, [HEADS_F32] = F32, [HEADS_Q8] = Q8,
                                  [HEADS_Q4] = Q4};
    if ((unsigned)from >= sizeof types / sizeof *types)
        return fail(err, "%s: type %d, expected HEADS_F16, HEADS_F32, HEADS_Q8 or HEADS_Q4", what,
                    (int)from);
    *type = types[from];
    return 0;
}

static int inner_options(WorkspaceOptions *out, const heads_workspace_options *o, Error *err) {
    static const heads_workspace_options defaults;
    if (!o) o = &defaults;
    *out = (WorkspaceOptions){.context = o->context, .chunk = o->chunk ? o->chunk : DEFAULT_CHUNK,
                              .n_threads = o->n_threads, .isa = o->isa,
                              .threads_of = o->threads_of};
    out->logit_rows = o->logit_rows ? o->logit_rows : out->chunk;
    if (set_type(&out->k_dtype, "cached keys", o->k_type, err)) return -1;
    return set_type(&out->v_dtype, "cached values", o->v_type, err);
}

heads_workspace *heads_workspace_new(const heads_model *m, const heads_workspace_options *options,
                                     heads_error *err) {
    WorkspaceOptions o;
    if (inner_options(&o, options, err)) return NULL;
    return workspace_new(m, &o, err);
}

void heads_workspace_free(heads_workspace *w) { workspace_free(w); }

int heads_workspace_context(const heads_workspace *w) { return workspace_context(w); }

int heads_workspace_threads(const heads_workspace *w) { return workspace_threads(w); }

const char *heads_workspace_isa(const heads_workspace *w) { return workspace_kernels(w)->name; }

size_t heads_logit_stride(const heads_workspace *w) { return logit_stride(w); }

// ---- texts ----

heads_sequence *heads_sequence_new(heads_workspace *w, int shared, heads_error *err) {
    return sequence_new(w, shared, err);
}

void heads_sequence_free(heads_sequence *s) { sequence_free(s); }

heads_sequence *heads_sequence_fork(const heads_sequence *s, int n, heads_error *err) {
    return sequence_fork(s, n, err);
}

int heads_sequence_rewind(heads_sequence *s, int n, heads_error *err) {
    return sequence_rewind(s, n, err);
}

int heads_sequence_mark(heads_sequence *s, heads_error *err) { return sequence_mark(s, err); }

void heads_sequence_expect(heads_sequence *s, int n) { sequence_expect(s, n); }

int heads_sequence_length(const heads_sequence *s) { return sequence_length(s); }

const int *heads_sequence_tokens(const heads_sequence *s) { return sequence_tokens(s); }

int heads_sequence_save(const heads_sequence *s, const char *path, heads_error *err) {
    return sequence_save(s, path, err);
}

heads_sequence *heads_sequence_load(heads_workspace *w, const char *path, heads_error *err) {
    return sequence_load(w, path, err);
}

// ---- passes ----

const float *heads_forward_runs(heads_workspace *w, const heads_run *runs, int n_runs,
                                heads_error *err) {
    if (n_runs >= 0) return forward_runs(w, runs, n_runs, err);
    fail(err, "no room for %d runs", n_runs);
    return NULL;
}

const float *heads_forward(heads_sequence *s, const int *tokens, int n, int n_logits,
                           heads_error *err) {
    return forward(s, tokens, n, n_logits, err);
}

// ---- models that read one text and write another ----

int heads_read_sources(heads_workspace *w, const heads_run *runs, int n_runs, heads_error *err) {
    if (n_runs >= 0) return read_sources(w, runs, n_runs, err);
    return fail(err, "no room for %d runs", n_runs);
}

long heads_start_tokens(const heads_model *m, const heads_tokenizer *t, const char *lang,
                        int **ids, heads_error *err) {
    return start_tokens(m, t, lang, ids, err);
}

int heads_source_language(const heads_model *m, const heads_tokenizer *t, const char *lang,
                          int *ids, long n, heads_error *err) {
    return source_language(m, t, lang, ids, n, err);
}

// ---- vectors of texts ----

long heads_text_ids(const heads_model *m, const heads_tokenizer *t, const char *text, size_t len,
                    int **ids, heads_error *err) {
    long n = heads_encode(t, text, len, true, ids, err);
    return n < 0 ? n : tokenizer_cut(t, *ids, n, m->pooling.most_tokens);
}

static int check_texts(const heads_model *m, const heads_text *texts, int n, heads_error *err) {
    if (m->pooling.pooling == POOL_NONE)
        return fail(err, "the checkpoint does not say how hidden states become a text's vector: it "
                    "is no encoder and came without modules.json");
    for (int i = 0; i < n; i++)
        if (texts[i].n < 1) return fail(err, "text %d has no ids", i);
    return 0;
}

int heads_embed(const heads_model *m, const heads_workspace_options *options,
                const heads_text *texts, int n, float *vectors, heads_error *err) {
    WorkspaceOptions o;
    if (inner_options(&o, options, err) || check_texts(m, texts, n, err)) return -1;
    o.context = 1;
    for (int i = 0; i < n; i++)
        if (texts[i].n > o.context) o.context = texts[i].n;
    o.logit_rows = o.chunk > o.context ? o.chunk : o.context;
    o.hidden = true;
    Workspace *w = workspace_new(m, &o, err);
    int failed = !w || text_vectors(w, texts, n, vectors, err);
    workspace_free(w);
    return failed ? -1 : 0;
}

// ---- looking into a pass ----

void heads_workspace_probe(heads_workspace *w, const heads_probe *probe) {
    workspace_probe(w, probe);
}

// ---- from logits to an id ----

heads_sampler *heads_sampler_new(const heads_workspace *w, const heads_sampler_options *options,
                                 heads_error *err) {
    SamplerOptions o = options ? *options : (SamplerOptions){0};
    if (o.top_p == 0) o.top_p = 1;
    if (o.repeat_penalty == 0) o.repeat_penalty = 1;
    if (o.repeat_last == 0) o.repeat_last = DEFAULT_REPEAT_LAST;
    return sampler_new(workspace_kernels(w), workspace_model(w)->vocab_size, &o,
                       &workspace_model(w)->rules, err);
}

void heads_sampler_free(heads_sampler *s) { sampler_free(s); }
void heads_sampler_accept(heads_sampler *s, int id) { sampler_accept(s, id); }

int heads_sampler_pick(heads_sampler *s, const float *logits) { return sampler_pick(s, logits); }

typedef struct {  // rows of logits, and what is asked of each
    const float *logits;
    size_t stride;
    int vocab_size;
    heads_sampler *const *samplers;
    int *ids;  // picked
    const int *given;
    double *log_probabilities;
    int *best;
} LogitRows;

static void pick_row(const void *arg, int i, int thread) {
    const LogitRows *r = arg;
    r->ids[i] = heads_sampler_pick(r->samplers[i], r->logits + (size_t)i * r->stride);
}

void heads_sampler_pick_each(heads_workspace *w, heads_sampler *const *samplers, int n,
                             const float *logits, int *ids) {
    LogitRows rows = {.logits = logits, .stride = logit_stride(w), .samplers = samplers,
                      .ids = ids};
    parallel_for(workspace_pool(w), n, pick_row, &rows);
}

static void score_row(const void *arg, int i, int thread) {
    const LogitRows *r = arg;
    const float *row = r->logits + (size_t)i * r->stride;
    int best = 0;
    for (int id = 1; id < r->vocab_size; id++) best = row[id] > row[best] ? id : best;
    r->log_probabilities[i] = log_probability(row, r->vocab_size, r->given[i]);
    r->best[i] = best;
}

void heads_log_probabilities(heads_workspace *w, const float *logits, const int *ids, int n,
                             double *log_probabilities, int *best) {
    LogitRows rows = {.logits = logits, .stride = logit_stride(w),
                      .vocab_size = workspace_model(w)->vocab_size, .given = ids,
                      .log_probabilities = log_probabilities, .best = best};
    parallel_for(workspace_pool(w), n, score_row, &rows);
}

// ---- what a cache costs ----

int heads_model_kv_plan(const heads_model *m, const heads_workspace_options *options,
                        heads_kv_plan *plan, heads_error *err) {
    WorkspaceOptions o;
    if (inner_options(&o, options, err)) return -1;
    if (o.context < 0 || o.context > MAX_CONTEXT)
        return fail(err, "context: %d, expected 0..%d", o.context, MAX_CONTEXT);
    int context = o.context ? o.context : m->context;
    *plan = kv_plan(m, 0, context, o.k_dtype, o.v_dtype);
    return 0;
}

heads_kv_usage heads_sequence_kv_usage(const heads_sequence *s) { return sequence_kv_usage(s); }
