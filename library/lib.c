// The calls of heads.h that only pass on to the engine. Options that are 0 become its defaults.
#include "heads.h"

#include <stdlib.h>
#include <string.h>

#include "library/chat.h"
#include "library/pooling.h"
#include "sequence/cost.h"
#include "tokenizer.h"

int heads_abi(void) { return HEADS_ABI; }
const char *heads_version(void) { return HEADS_VERSION; }
void heads_free(void *memory) { free(memory); }

// ---- the model ----

heads_model *heads_model_open(const char *path, heads_error *err) {
    if (need(path, "the path of a checkpoint", err)) return NULL;
    heads_model *m = calloc(1, sizeof *m);
    if (!m) fail(err, "no memory to open %s", path);
    else if (model_open(m, path, err) == 0) return m;
    free(m);
    return NULL;
}

heads_model *heads_model_parse(const void *bytes, size_t size, heads_error *err) {
    if (need(bytes, "the bytes of a checkpoint", err)) return NULL;
    heads_model *m = (uintptr_t)bytes % 64 ? NULL : calloc(1, sizeof *m);
    if ((uintptr_t)bytes % 64) fail(err, "a checkpoint's bytes must begin at a multiple of 64");
    else if (!m) fail(err, "no memory to open a checkpoint");
    else if (model_parse(m, bytes, size, err) == 0) return m;
    free(m);
    return NULL;
}

void heads_model_close(heads_model *m) {
    if (m) model_close(m);
    free(m);
}

heads_shape heads_model_shape(const heads_model *m) {
    if (!m) return (heads_shape){0};
    return (heads_shape){m->vocab_size, m->n_embd,       m->n_layers,
                         m->context,    m->weight_bytes, m->encoder,
                         m->source.n ? m->source.vocab_size : 0, m->rules.greedy,
                         checkpoint_meta(&m->file, "tokenizer.target.begin") != NULL,
                         m->vector ? m->vector->width : 0,
                         m->classes ? m->classes->width : 0,
                         m->classes && m->classes->pooling == POOL_NONE,
                         m->vector && m->vector->pooling == POOL_NONE, m->most_read};
}

// ---- text and ids ----

heads_tokenizer *heads_tokenizer_new(const heads_model *m, heads_error *err) {
    return need(m, "a model", err) ? NULL : tokenizer_new(&m->file, err);
}

void heads_tokenizer_free(heads_tokenizer *t) { tokenizer_free(t); }
int heads_is_special(const heads_tokenizer *t, int id) { return t && tokenizer_is_special(t, id); }

// ---- conversations ----

heads_chat *heads_chat_new(const heads_model *m, heads_error *err) {
    return need(m, "a model", err) ? NULL : chat_new(&m->file, err);
}

void heads_chat_free(heads_chat *c) { chat_free(c); }

static int check_messages(const heads_message *messages, size_t n, heads_error *err) {
    if (n && need(messages, "messages", err)) return -1;
    for (size_t i = 0; i < n; i++) {
        const heads_message *m = &messages[i];
        if (!m->role || (m->content_len && !m->content))
            return fail(err, "message %zu has no %s: it is NULL", i + 1,
                        m->role ? "content" : "role");
    }
    return 0;
}

long heads_chat_encode(const heads_chat *c, const heads_tokenizer *t, const heads_message *messages,
                       size_t n, const heads_chat_options *o, int **ids, heads_error *err) {
    static const heads_chat_options defaults;
    if (!o) o = &defaults;
    if (need(ids, "room for ids", err)) return -1;
    *ids = NULL;
    if (check_messages(messages, n, err) || need(c, "a chat template", err) ||
        need(t, "a tokenizer", err))
        return -1;
    size_t len;
    char *text = chat_render(c, messages, n, o, &len, err);
    long count = text ? heads_encode(t, text, len, false, ids, err) : -1;
    free(text);
    return count;
}

const char *heads_chat_template(const heads_model *m, size_t *len) {
    const Meta *meta = m && len ? checkpoint_meta(&m->file, "chat.template") : NULL;
    if (!meta || meta->type != META_U8) return NULL;
    *len = meta->count;
    return meta->values;
}

int heads_chat_end(const heads_chat *c, const heads_tokenizer *t) {
    return c && t ? chat_stop(c, t) : -1;
}

int heads_chat_prints_date(const heads_chat *c) { return c && chat_prints_date(c); }
int heads_chat_has_no_think(const heads_chat *c) { return c && chat_has_no_think(c); }
int heads_chat_uses_system(const heads_chat *c) { return c && chat_system(c) == CHAT_SYSTEM_USED; }

// ---- where passes run ----

int heads_workspace_context(const heads_workspace *w) { return w ? w->kv.context : 0; }
int heads_workspace_threads(const heads_workspace *w) { return w ? pool_threads(w->pool) : 0; }
int heads_workspace_chunk(const heads_workspace *w) { return w ? w->chunk : 0; }
const char *heads_workspace_isa(const heads_workspace *w) { return w ? w->k->name : NULL; }
size_t heads_logit_stride(const heads_workspace *w) { return w ? w->logits.stride : 0; }

void heads_workspace_probe(heads_workspace *w, const heads_probe *probe) {
    if (w) w->probe = probe ? *probe : (heads_probe){0};
}

// ---- texts ----

int heads_sequence_common(const heads_sequence *s, const int *ids, int n) {
    int common = 0;
    if (!s || !ids) return 0;
    while (common < s->length && common < n && s->tokens[common] == ids[common]) common++;
    return common;
}

const int *heads_sequence_source(const heads_sequence *s, int *n) {
    if (n) *n = s ? s->source.n : 0;
    return s ? s->source.tokens : NULL;
}

// ---- vectors and classes of texts ----

long heads_text_ids(const heads_model *m, const heads_tokenizer *t, const char *text, size_t len,
                    int **ids, heads_error *err) {
    if (need(ids, "room for ids", err)) return -1;
    *ids = NULL;
    long n = need(m, "a model", err) ? -1 : heads_encode(t, text, len, true, ids, err);
    return n < 0 ? n : tokenizer_cut(t, *ids, n, m->most_read);
}

long heads_pair_ids(const heads_model *m, const heads_tokenizer *t, const char *first,
                    size_t first_len, const char *then, size_t then_len, int **ids, int *second,
                    heads_error *err) {
    if (need(ids, "room for ids", err)) return -1;
    *ids = NULL;
    if (need(m, "a model", err) || need(t, "a tokenizer", err) ||
        need(second, "room for a number", err) ||
        (first_len && need(first, "the first text", err)) ||
        (then_len && need(then, "the second text", err)))
        return -1;
    const Passage texts[] = {{first, first_len}, {then, then_len}};
    return tokenizer_pair(t, texts, m->most_read, ids, second, err);
}

static int check_parts(const heads_text *text, int i, heads_error *err) {
    if (text->n_parts < 0 || (text->n_parts && !text->bounds))
        return fail(err, "text %d: %d parts, expected 0 or more, with bounds", i, text->n_parts);
    for (int p = 0; p < text->n_parts; p++)
        if (text->bounds[p] < 0 || text->bounds[p + 1] <= text->bounds[p] ||
            text->bounds[p + 1] > text->n)
            return fail(err, "text %d: part %d is ids %d to %d, expected one id or more of 0..%d",
                        i, p, text->bounds[p], text->bounds[p + 1], text->n - 1);
    return 0;
}

static int check_texts(const heads_model *m, const heads_text *texts, int n, const float *results,
                       heads_error *err) {
    if (need(m, "a model", err) || (n > 0 && need(texts, "texts", err)) ||
        (n > 0 && need(results, "room for results", err)))
        return -1;
    if (n < 0) return fail(err, "%d texts; expected 0 or more", n);
    for (int i = 0; i < n; i++) {
        if (texts[i].n < 1 || !texts[i].ids) return fail(err, "text %d has no ids", i);
        if (texts[i].second < 0 || texts[i].second > texts[i].n)
            return fail(err, "text %d: its second text begins at %d, expected 0..%d", i,
                        texts[i].second, texts[i].n);
        for (int j = 0; j < texts[i].n; j++)
            if (texts[i].ids[j] < 0 || texts[i].ids[j] >= m->vocab_size)
                return fail(err, "text %d: token %d is %d, the vocabulary has 0..%d", i, j,
                            texts[i].ids[j], m->vocab_size - 1);
        if (check_parts(&texts[i], i, err)) return -1;
    }
    return 0;
}

// Only a text that has one vector can have one for each part.
static int refuse_parts(const heads_text *texts, int n, heads_error *err) {
    for (int i = 0; i < n; i++)
        if (texts[i].n_parts)
            return fail(err, "text %d has parts, and only a text with one vector can have one for "
                        "each of its parts", i);
    return 0;
}

int heads_embed(const heads_model *m, const heads_workspace_options *options,
                const heads_text *texts, int n, float *vectors, heads_error *err) {
    if (check_texts(m, texts, n, vectors, err)) return -1;
    if (!m->vector)
        return fail(err, "the checkpoint does not say how hidden states become a text's vector: it "
                    "is no encoder and came without modules.json");
    if (m->vector->pooling == POOL_NONE && refuse_parts(texts, n, err)) return -1;
    return read_texts(m, m->vector, options, texts, n, vectors, err);
}

int heads_shorten(const heads_model *m, float *vectors, size_t n, int dimensions,
                  heads_error *err) {
    const char *why;
    const Kernels *k = kernels_choose(NULL, &why);
    if (need(m, "a model", err) || (n && need(vectors, "vectors", err))) return -1;
    int width = m->vector ? m->vector->width : 0;
    if (dimensions < 1 || dimensions > width)
        return fail(err, "vectors of %d numbers cannot have %d dimensions; expected 1..%d", width,
                    dimensions, width);
    for (size_t i = 0; i < n; i++) {
        float *to = vectors + i * (size_t)dimensions;
        memmove(to, vectors + i * (size_t)width, sizeof *to * (size_t)dimensions);
        if (m->vector->unit) k->unit(to, 1.0f, 1e-24f, dimensions);
    }
    return 0;
}

int heads_classify(const heads_model *m, const heads_workspace_options *options,
                   const heads_text *texts, int n, float *scores, heads_error *err) {
    if (check_texts(m, texts, n, scores, err)) return -1;
    if (!m->classes)
        return fail(err, "the checkpoint has no head that classifies: it was no model for "
                    "sequence or token classification");
    if (refuse_parts(texts, n, err) || read_texts(m, m->classes, options, texts, n, scores, err))
        return -1;
    size_t rows = 0;
    for (int i = 0; i < n; i++) rows += result_rows(m->classes, &texts[i]);
    score_classes(m->classes, scores, rows);
    return 0;
}

const char *heads_label(const heads_model *m, int i, size_t *len) {
    if (!m || !len || !m->classes || i < 0 || i >= m->classes->n_labels) return NULL;
    const int32_t *begin = m->classes->label_begin + i;
    *len = (size_t)(begin[1] - begin[0]);
    return m->classes->labels + begin[0];
}

// ---- what a cache costs ----

int heads_model_kv_plan(const heads_model *m, const heads_workspace_options *options,
                        heads_kv_plan *plan, heads_error *err) {
    WorkspaceOptions o = options ? *options : (WorkspaceOptions){0};
    if (need(m, "a model", err) || need(plan, "room for a plan", err)) return -1;
    if (check_kv_types(&o, err)) return -1;
    if (o.context < 0 || o.context > MAX_CONTEXT)
        return fail(err, "context: %d, expected 0..%d", o.context, MAX_CONTEXT);
    int context = o.context ? o.context : m->context;
    *plan = kv_plan(m, 0, context, o.k_type, o.v_type);
    return 0;
}

