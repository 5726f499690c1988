// The workspace: its options and its buffers.
#include <stdlib.h>

#include "engine.h"

// ---- buffers ----

// The most scratch that a part of a layer needs. Parts run one after the other.
static size_t scratch_bytes(const Workspace *w, Arena *all) {
    Arena a = {.input_blocks = all->input_blocks};
    size_t most = 0;
    for (int i = 0; i < w->model->n_layers; i++)
        for (ScratchFn *const *part = layer_parts; *part; part++) {
            (*part)(w, i, &a);
            most = a.used > most ? a.used : most;
            a.used = 0;
        }
    all->input_blocks = a.input_blocks;
    return most;
}

int logit_width(const Workspace *w) { return w->hidden ? w->model->n_embd : w->model->vocab_size; }

static Int8Rows lay_out_int8(Arena *a, size_t n_blocks, size_t parts) {
    Int8Rows rows = {.q = arena_array(a, times(n_blocks, BLOCK), sizeof *rows.q)};
    rows.scale = arena_array(a, times(n_blocks, parts), sizeof *rows.scale);
    rows.offset = arena_array(a, times(n_blocks, parts), sizeof *rows.offset);
    return rows;
}

// Lays out every buffer. Called twice: with memory NULL to add up sizes, then to set pointers.
static size_t lay_out(Workspace *w, uint8_t *memory) {
    const Model *m = w->model;
    size_t chunk = (size_t)w->chunk, n_embd = (size_t)m->n_embd, wide = (size_t)m->widest;
    Arena a = {.data = memory};
    w->spans = arena_array(&a, chunk, sizeof *w->spans);
    w->tokens = arena_array(&a, chunk, sizeof *w->tokens);
    w->wanted = arena_array(&a, chunk, sizeof *w->wanted);
    w->x = arena_input(&a, chunk, wide);
    w->y = arena_input(&a, chunk, wide);
    w->out = arena_rows(&a, chunk, n_embd);
    w->logits = arena_rows(&a, (size_t)w->logit_rows, (size_t)logit_width(w));
    embed_scratch(w, &a);
    size_t bytes = scratch_bytes(w, &a);
    w->input.bf16 = arena_array(&a, times(a.input_blocks, BLOCK), sizeof *w->input.bf16);
    w->input.turned = lay_out_int8(&a, a.input_blocks, 1);
    Int8Rows *parts = &w->input.parts, rest = lay_out_int8(&a, a.input_blocks, 2);
    *parts = lay_out_int8(&a, a.input_blocks, 2);
    parts->rest = rest.q, parts->rest_scale = rest.scale, parts->rest_offset = rest.offset;
    parts->sum = arena_array(&a, a.input_blocks, sizeof *parts->sum);
    w->scratch = (Arena){.data = arena_array(&a, bytes, 1)};
    return a.used;
}

static int make_buffers(Workspace *w, Error *err) {
    w->bytes = lay_out(w, NULL);
    if (w->bytes != SIZE_MAX) w->memory = reserve(w->bytes);
    if (!w->memory)
        return fail(err, "cannot reserve %zu bytes for the activations of %d tokens", w->bytes,
                    w->chunk);
    lay_out(w, w->memory);
    return 0;
}

// ---- options ----

static int check_range(const char *what, int value, int min, int max, Error *err) {
    if (value >= min && value <= max) return 0;
    return fail(err, "%s: %d, expected %d..%d", what, value, min, max);
}

static int check_options(const Model *m, const WorkspaceOptions *o, Error *err) {
    if (check_range("context", o->context, 0, MAX_CONTEXT, err) ||
        check_range("tokens of a pass", o->chunk, 1, 1 << 16, err) ||
        check_range("threads", o->n_threads, 0, 1024, err) ||
        check_range("rows of logits", o->logit_rows, 0, 1 << 20, err))
        return -1;
    if (m->text.embed_pos.data && o->context > m->context)
        return fail(err, "context is %d, but the model has learned positions for %d tokens only",
                    o->context, m->context);
    return check_kv_types(o, err);
}

static int workspace_make(Workspace *w, const Model *model, WorkspaceOptions o, Error *err) {
    if (!o.chunk) o.chunk = DEFAULT_CHUNK;
    if (!o.logit_rows) o.logit_rows = o.chunk;
    w->model = model;
    if (model->file.shape)
        return fail(err, "a shape, which has no weights and is for --kv, --info and --check of "
                    "./run; for all else export the model without --shape-only");
    if (check_options(model, &o, err)) return -1;
    if (!o.context) o.context = model->context;
    w->chunk = w->pass_rows = o.chunk;
    bool whole = model->encoder || model->source.n;  // a text runs in one pass, or its source
    if (whole && w->chunk < o.context) w->chunk = o.context;
    w->hidden = o.hidden;
    w->logit_rows = o.logit_rows;
    const char *why;
    w->k = kernels_choose(o.isa, &why);
    if (!w->k) return fail(err, "kernels \"%s\": %s", o.isa, why);
    w->own_pool = !o.threads_of;
    w->pool = o.threads_of ? o.threads_of->pool
                           : pool_new(o.n_threads, err);
    if (!w->pool || kv_layout_new(&w->kv, w->model, &o, err)) return -1;
    return make_buffers(w, err);
}

Workspace *heads_workspace_new(const Model *model, const WorkspaceOptions *options, Error *err) {
    static const WorkspaceOptions defaults;
    if (need(model, "a model", err)) return NULL;
    Workspace *w = calloc(1, sizeof *w);
    if (!w) fail(err, "no memory for a workspace");
    else if (workspace_make(w, model, options ? *options : defaults, err) == 0) return w;
    workspace_free(w);
    return NULL;
}

void workspace_free(Workspace *w) {
    if (!w) return;
    release_buffers(w->memory, w->bytes);
    kv_layout_free(&w->kv);
    if (w->own_pool) pool_free(w->pool);
    heads_adapter_close(w->adapted.adapter);
    free(w->low);
    free(w);
}
