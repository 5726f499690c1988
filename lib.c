// heads.h's calls, each the engine's own. A handle is the engine's pointer under another name;
// options that are 0 become the engine's defaults.
#include "heads.h"

#include <stdlib.h>

#include "sampler.h"
#include "session.h"
#include "tokenizer.h"

_Static_assert(sizeof(heads_error) == sizeof(Error), "an error is the engine's");

// The engine's error; where the caller wants none, it still has a place to go.
static Error *inner_error(heads_error *err) {
    static _Thread_local Error unwanted;
    return err ? (Error *)err : &unwanted;
}

int heads_abi(void) { return HEADS_ABI; }
const char *heads_version(void) { return HEADS_VERSION; }
void heads_free(void *memory) { free(memory); }

// ---- the model ----

struct heads_model {
    Model model;
};

heads_model *heads_model_open(const char *path, heads_error *err) {
    heads_model *m = calloc(1, sizeof *m);
    if (!m) fail(inner_error(err), "no memory to open %s", path);
    else if (model_open(&m->model, path, inner_error(err)) == 0) return m;
    free(m);
    return NULL;
}

void heads_model_close(heads_model *m) {
    if (m) model_close(&m->model);
    free(m);
}

heads_shape heads_model_shape(const heads_model *m) {
    const Model *model = &m->model;
    return (heads_shape){model->vocab_size, model->n_embd, model->n_layers, model->context,
                         model->weight_bytes};
}

// ---- text and ids ----

heads_tokenizer *heads_tokenizer_new(const heads_model *m, heads_error *err) {
    return (heads_tokenizer *)tokenizer_new(&m->model.file, inner_error(err));
}

void heads_tokenizer_free(heads_tokenizer *t) { tokenizer_free((Tokenizer *)t); }

long heads_encode(const heads_tokenizer *t, const char *text, size_t len, int add_special,
                  int **ids, heads_error *err) {
    return tokenizer_encode((const Tokenizer *)t, text, len, add_special, ids, inner_error(err));
}

int heads_is_eos(const heads_tokenizer *t, int id) {
    return tokenizer_is_eos((const Tokenizer *)t, id);
}

heads_decoder *heads_decoder_new(const heads_tokenizer *t, int skip_special, heads_error *err) {
    return (heads_decoder *)decoder_new((const Tokenizer *)t, skip_special, inner_error(err));
}

void heads_decoder_free(heads_decoder *d) { decoder_free((Decoder *)d); }

int heads_decoder_push(heads_decoder *d, int id, const char **text, size_t *len,
                       heads_error *err) {
    return decoder_push((Decoder *)d, id, text, len, inner_error(err));
}

int heads_decoder_finish(heads_decoder *d, const char **text, size_t *len, heads_error *err) {
    return decoder_finish((Decoder *)d, text, len, inner_error(err));
}

// ---- where passes run ----

static int set_type(Dtype *type, const char *what, heads_type from, Error *err) {
    static const Dtype types[] = {[HEADS_F16] = F16, [HEADS_F32] = F32, [HEADS_Q8] = Q8};
    if ((unsigned)from >= sizeof types / sizeof *types)
        return fail(err, "%s: type %d, expected HEADS_F16, HEADS_F32 or HEADS_Q8", what,
                    (int)from);
    *type = types[from];
    return 0;
}

static int inner_options(WorkspaceOptions *out, const heads_workspace_options *o, Error *err) {
    static const heads_workspace_options defaults;
    if (!o) o = &defaults;
    *out = (WorkspaceOptions){.context = o->context, .chunk = o->chunk ? o->chunk : 128,
                              .n_threads = o->n_threads, .isa = o->isa,
                              .threads_of = (const Workspace *)o->threads_of};
    out->logit_rows = o->logit_rows ? o->logit_rows : out->chunk;
    if (set_type(&out->k_dtype, "cached keys", o->k_type, err)) return -1;
    return set_type(&out->v_dtype, "cached values", o->v_type, err);
}

heads_workspace *heads_workspace_new(const heads_model *m, const heads_workspace_options *options,
                                     heads_error *err) {
    WorkspaceOptions o;
    if (inner_options(&o, options, inner_error(err))) return NULL;
    return (heads_workspace *)workspace_new(&m->model, &o, inner_error(err));
}

void heads_workspace_free(heads_workspace *w) { workspace_free((Workspace *)w); }

int heads_workspace_context(const heads_workspace *w) {
    return workspace_context((const Workspace *)w);
}

int heads_workspace_threads(const heads_workspace *w) {
    return workspace_threads((const Workspace *)w);
}

const char *heads_workspace_isa(const heads_workspace *w) {
    const char *why;
    return workspace_kernels((const Workspace *)w, &why)->name;
}

size_t heads_logit_stride(const heads_workspace *w) { return logit_stride((const Workspace *)w); }

// ---- texts ----

heads_sequence *heads_sequence_new(heads_workspace *w, int shared, heads_error *err) {
    return (heads_sequence *)sequence_new((Workspace *)w, shared, inner_error(err));
}

void heads_sequence_free(heads_sequence *s) { sequence_free((Sequence *)s); }

heads_sequence *heads_sequence_fork(const heads_sequence *s, int n, heads_error *err) {
    return (heads_sequence *)sequence_fork((const Sequence *)s, n, inner_error(err));
}

int heads_sequence_rewind(heads_sequence *s, int n, heads_error *err) {
    return sequence_rewind((Sequence *)s, n, inner_error(err));
}

int heads_sequence_mark(heads_sequence *s, heads_error *err) {
    return sequence_mark((Sequence *)s, inner_error(err));
}

void heads_sequence_expect(heads_sequence *s, int n) { sequence_expect((Sequence *)s, n); }

int heads_sequence_length(const heads_sequence *s) { return sequence_length((const Sequence *)s); }

const int *heads_sequence_tokens(const heads_sequence *s) {
    return sequence_tokens((const Sequence *)s);
}

int heads_sequence_save(const heads_sequence *s, const char *path, heads_error *err) {
    return sequence_save((const Sequence *)s, path, inner_error(err));
}

heads_sequence *heads_sequence_load(heads_workspace *w, const char *path, heads_error *err) {
    return (heads_sequence *)sequence_load((Workspace *)w, path, inner_error(err));
}

// ---- passes ----

const float *heads_forward_runs(heads_workspace *w, const heads_run *runs, int n_runs,
                                heads_error *err) {
    Run *inner = n_runs < 0 ? NULL : calloc((size_t)n_runs + 1, sizeof *inner);
    if (!inner) {
        fail(inner_error(err), "no room for %d runs", n_runs);
        return NULL;
    }
    for (int i = 0; i < n_runs; i++)
        inner[i] = (Run){(Sequence *)runs[i].sequence, runs[i].tokens, runs[i].n, runs[i].n_logits};
    const float *logits = forward_runs((Workspace *)w, inner, n_runs, inner_error(err));
    free(inner);
    return logits;
}

const float *heads_forward(heads_sequence *s, const int *tokens, int n, int n_logits,
                           heads_error *err) {
    return forward((Sequence *)s, tokens, n, n_logits, inner_error(err));
}

// ---- looking into a pass ----

void heads_workspace_probe(heads_workspace *w, const heads_probe *probe) {
    workspace_probe((Workspace *)w, probe);
}

// ---- from logits to an id ----

heads_sampler *heads_sampler_new(const heads_workspace *w, const heads_sampler_options *options,
                                 heads_error *err) {
    static const heads_sampler_options greedy;
    const heads_sampler_options *o = options ? options : &greedy;
    const Workspace *inner = (const Workspace *)w;
    const char *why;
    SamplerOptions s = {.temperature = o->temperature, .top_k = o->top_k,
                        .top_p = o->top_p != 0 ? o->top_p : 1, .min_p = o->min_p,
                        .repeat_penalty = o->repeat_penalty != 0 ? o->repeat_penalty : 1,
                        .repeat_last = o->repeat_last ? o->repeat_last : 64, .seed = o->seed};
    return (heads_sampler *)sampler_new(workspace_kernels(inner, &why),
                                        workspace_model(inner)->vocab_size, &s, inner_error(err));
}

void heads_sampler_free(heads_sampler *s) { sampler_free((Sampler *)s); }
void heads_sampler_accept(heads_sampler *s, int id) { sampler_accept((Sampler *)s, id); }

int heads_sampler_pick(heads_sampler *s, const float *logits) {
    return sampler_pick((Sampler *)s, logits);
}

// ---- what a cache costs ----

int heads_model_kv_plan(const heads_model *m, const heads_workspace_options *options,
                        heads_kv_plan *plan, heads_error *err) {
    WorkspaceOptions o;
    if (inner_options(&o, options, inner_error(err))) return -1;
    if (o.context < 0 || o.context > MAX_CONTEXT)
        return fail(inner_error(err), "context: %d, expected 0..%d", o.context, MAX_CONTEXT);
    int context = o.context ? o.context : m->model.context;
    KvPlan p = kv_plan(&m->model, 0, context, o.k_dtype, o.v_dtype);
    *plan = (heads_kv_plan){p.bytes_per_token, p.state, p.reserved};
    return 0;
}

heads_kv_usage heads_sequence_kv_usage(const heads_sequence *s) {
    KvUsage u = sequence_kv_usage((const Sequence *)s);
    return (heads_kv_usage){u.reserved, u.in_use, u.resident, u.expected_resident, u.shared};
}
