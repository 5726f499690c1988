// The workspace: its options, its memory; and forward_runs, which cuts runs into passes.
#include <stdlib.h>
#include <string.h>

#include "workspace.h"

// ---- the workspace ----

// Scratch of the part that needs most of it. Parts work one after the other.
static size_t scratch_bytes(const Workspace *w, Arena *a) {
    size_t most = 0;
    for (int i = 0; i < w->model->n_layers; i++) {
        const Layer *l = &w->model->layers[i];
        for (int part = 0; part < 6; part++) {
            Arena one = {.input_blocks = a->input_blocks};
            if (part == 0 && mixers[l->mixer])
                mixers[l->mixer]->scratch(w, l, &w->kv.layers[i], &one);
            else if (part == 1 && l->mamba2_beside)
                mamba2_mixer.scratch(w, l, &w->kv.layers[i], &one);
            else if (part == 2) ffn_scratch(w, l, &one);
            else if (part == 3) experts_scratch(w, l, &one);
            else if (part == 4) embed_branch_scratch(w, l, &one);
            else if (part == 5) cross_scratch(w, i, &one);
            if (one.used > most) most = one.used;
            a->input_blocks = one.input_blocks;
        }
    }
    return most;
}

// Numbers of a row that forward gives.
static int logit_width(const Workspace *w) {
    return w->hidden ? w->model->n_embd : w->model->vocab_size;
}

// Lays out every buffer. Called twice: to add up, and to hand out.
static size_t lay_out(Workspace *w, uint8_t *memory) {
    const Model *m = w->model;
    size_t chunk = (size_t)w->chunk, n_embd = (size_t)m->n_embd, d_embed = (size_t)m->d_embed;
    size_t wide = n_embd > d_embed ? n_embd : d_embed;  // the head goes from the one to the other
    Arena a = {.data = memory};
    w->spans = take(&a, chunk, sizeof *w->spans);
    w->rows = take(&a, chunk, sizeof *w->rows);
    w->x = take_input(&a, chunk, wide);
    w->y = take_input(&a, chunk, wide);
    w->out = take_rows(&a, chunk, n_embd);
    w->logits = take_rows(&a, (size_t)w->logit_rows, (size_t)logit_width(w));
    embed_scratch(w, &a);
    size_t bytes = scratch_bytes(w, &a);
    w->input.bf16 = take(&a, times(a.input_blocks, BLOCK), sizeof *w->input.bf16);
    w->input.q8 = take(&a, times(a.input_blocks, BLOCK), sizeof *w->input.q8);
    w->input.scale = take(&a, a.input_blocks, sizeof *w->input.scale);
    w->input.offset = take(&a, a.input_blocks, sizeof *w->input.offset);
    w->scratch = (Arena){.data = take(&a, bytes, 1)};
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
    const Dtype types[] = {o->k_dtype, o->v_dtype};
    for (int i = 0; i < 2; i++)
        if ((unsigned)types[i] >= N_DTYPES || types[i] == BF16)
            return fail(err, "the KV cache holds f32, f16, q8 or q4, not type %d", (int)types[i]);
    return 0;
}

static int workspace_make(Workspace *w, const Model *model, WorkspaceOptions o, Error *err) {
    w->model = model;
    if (model->file.shape)
        return fail(err, "the file is a shape: it has a model's numbers, but no weights to run");
    if (check_options(model, &o, err)) return -1;
    if (!o.context) o.context = model->context;
    w->chunk = w->full = o.chunk;
    bool whole = model->encoder || model->source.n;  // a text runs in one pass, or its source
    if (whole && w->chunk < o.context) w->chunk = o.context;
    w->hidden = o.hidden;
    w->logit_rows = o.logit_rows;
    const char *why;
    w->k = kernels_choose(o.isa, &why);
    if (!w->k) return fail(err, "kernels \"%s\": %s", o.isa, why);
    w->own_pool = !o.threads_of;
    w->pool = o.threads_of ? o.threads_of->pool
                           : pool_new(o.n_threads ? o.n_threads : usable_cores(), err);
    if (!w->pool || kv_layout_new(&w->kv, w->model, &o, err)) return -1;
    return make_buffers(w, err);
}

Workspace *workspace_new(const Model *model, const WorkspaceOptions *options, Error *err) {
    Workspace *w = calloc(1, sizeof *w);
    if (!w) fail(err, "no memory for a workspace");
    else if (workspace_make(w, model, *options, err) == 0) return w;
    workspace_free(w);
    return NULL;
}

void workspace_free(Workspace *w) {
    if (!w) return;
    release_buffers(w->memory, w->bytes);
    kv_layout_free(&w->kv);
    if (w->own_pool) pool_free(w->pool);
    free(w);
}

const Model *workspace_model(const Workspace *w) { return w->model; }
const Kernels *workspace_kernels(const Workspace *w) { return w->k; }
int workspace_threads(const Workspace *w) { return pool_threads(w->pool); }
int workspace_context(const Workspace *w) { return w->kv.context; }
int workspace_chunk(const Workspace *w) { return w->chunk; }
Pool *workspace_pool(const Workspace *w) { return w->pool; }

void workspace_probe(Workspace *w, const heads_probe *probe) {
    w->probe = probe ? *probe : (heads_probe){0};
}

size_t logit_stride(const Workspace *w) { return w->logits.stride; }

bool workspace_forgets(const Workspace *w) {
    for (int i = 0; i < w->model->n_layers; i++)
        if (w->kv.layers[i].ring || w->kv.layers[i].state) return true;
    return false;
}

// ---- passes ----

// Adds n tokens of a sequence to the pass, of whose last n_logits the logits are wanted.
static void add_span(Workspace *w, Sequence *s, const int *tokens, int n, int n_logits) {
    bool of_source = w->stack == &w->model->source;
    int from = of_source ? 0 : s->length;
    Span span = {s, w->n_rows, n, from, n_logits};
    for (int i = 0; i < n; i++)
        w->rows[w->n_rows + i] = (Row){s, tokens[i], from + i, w->n_spans};
    memmove((of_source ? s->source : s->tokens) + from, tokens, sizeof *tokens * (size_t)n);
    if (of_source) s->n_source = n;
    w->spans[w->n_spans++] = span;
    w->n_rows += n;
}

// Runs the spans that were added; returns how many rows of logits they gave.
static int run_pass(Workspace *w, int logit_row) {
    int n_logits = 0;
    pass(w, logit_row);
    for (Span *s = w->spans; s < w->spans + w->n_spans; s++) {
        if (w->stack == &w->model->source) continue;
        s->sequence->length += s->n;
        if (s->sequence->high < s->sequence->length) s->sequence->high = s->sequence->length;
        n_logits += s->n_logits;
    }
    w->n_spans = w->n_rows = 0;
    return n_logits;
}

// The sets of rope, a bit each, that rotate a text of n tokens by their tables for long ones.
static unsigned long_tables(const Model *m, int n) {
    unsigned sets = 0;
    for (int i = 0; i < m->n_rope_sets; i++)
        if (m->rope[i].long_freq && n > m->rope[i].length) sets |= 1u << i;
    return sets;
}

int sequence_room(const Sequence *s) {
    const Model *m = s->workspace->model;
    int room = s->workspace->kv.context - s->length;
    for (int i = 0; i < m->n_rope_sets; i++) {
        int left = m->rope[i].length - s->length;
        bool changes = m->rope[i].long_freq && left > 0 && s->expected <= m->rope[i].length;
        if (changes && left < room) room = left;
    }
    return room;
}

// Gets a sequence ready for n more tokens: what is in the cache runs again if the text's length now
// asks for other tables of rope.
static int prepare(Workspace *w, Sequence *s, int n, Error *err) {
    if (first_use(s, err)) return -1;
    if (w->stack == &w->model->source) {
        s->source_in_file = false;
        return 0;
    }
    sequence_expect(s, s->length + n);
    unsigned tables = long_tables(w->model, s->expected);
    if (tables == s->long_tables) return 0;
    int length = s->length, expected = s->expected;
    if (sequence_rewind(s, 0, err)) return -1;
    s->expected = expected;
    s->long_tables = tables;
    while (s->length < length) {
        int left = length - s->length;
        add_span(w, s, s->tokens + s->length, left < w->chunk ? left : w->chunk, 0);
        run_pass(w, 0);
    }
    return 0;
}

// ---- runs ----

static int check_run(const Workspace *w, const Run *r, Error *err) {
    const Model *m = w->model;
    bool of_source = w->stack == &m->source;
    int context = w->kv.context, length = r->sequence->length;
    if (r->sequence->workspace != w)
        return fail(err, "a sequence of another workspace cannot run in this one");
    if (r->sequence->call == w->call) return fail(err, "a sequence stands in two runs");
    if (r->n < 1 || r->n_logits < 0 || r->n_logits > r->n)
        return fail(err, "%d tokens with %d rows of logits asked for; expected a token or more, "
                    "and no more rows than tokens", r->n, r->n_logits);
    if (r->n > context - length)
        return fail(err, "%d tokens after %d do not fit into a context of %d", r->n, length,
                    context);
    for (int i = 0; i < r->n; i++)
        if (r->tokens[i] < 0 || r->tokens[i] >= w->stack->vocab_size)
            return fail(err, "token %d is %d, the vocabulary has 0..%d", i, r->tokens[i],
                        w->stack->vocab_size - 1);
    if (r->n_logits && !w->hidden && !m->output.data)
        return fail(err, "the model gives hidden states and has no logits");
    if (m->encoder && length)
        return fail(err, "an encoder runs a text as a whole, and this one has %d tokens already; "
                    "rewind it to 0", length);
    if (of_source && (length || frozen_source(r->sequence)))
        return fail(err, "a sequence of %d tokens%s cannot get another source; rewind it to 0, or "
                    "take a new one", length, length ? "" : " whose source forks share");
    if (m->source.n && !of_source && !r->sequence->n_source)
        return fail(err, "the model's decoder looks at a source, and this sequence has none yet");
    return 0;
}

static int check_runs(Workspace *w, const Stack *stack, const Run *runs, int n_runs, Error *err) {
    int n_logits = 0;
    w->stack = stack;
    w->call++;
    for (int i = 0; i < n_runs; i++) {
        if (check_run(w, &runs[i], err)) return -1;
        runs[i].sequence->call = w->call;
        n_logits += runs[i].n_logits;
        if (n_logits > w->logit_rows)
            return fail(err, "more than the %d rows of logits that the workspace was made for",
                        w->logit_rows);
    }
    for (int i = 0; i < n_runs; i++)
        if (prepare(w, runs[i].sequence, runs[i].n, err)) return -1;
    return 0;
}

// Whether all of a row's numbers are finite: the others are not 0 when multiplied by 0. In lanes,
// so that the compiler can take several at a time.
static bool finite_row(const float *x, int n) {
    float zeros[LANES] = {0}, sum = 0.0f;
    for (int i = 0; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) zeros[j] += x[i + j] * 0.0f;
    for (int i = n / LANES * LANES; i < n; i++) sum += x[i] * 0.0f;
    for (int j = 0; j < LANES; j++) sum += zeros[j];
    return sum == 0.0f;
}

// Weights or activations beyond what a float can hold end as NaN, and a sampler would make a text
// of them all the same.
static int check_logits(const Workspace *w, const Run *runs, int n_runs, Error *err) {
    const float *logits = w->logits.data;
    for (const Run *r = runs; r < runs + n_runs; r++)
        for (int i = 0; i < r->n_logits; i++, logits += w->logits.stride)
            if (!finite_row(logits, logit_width(w)))
                return fail(err, "the logits of position %d are no finite numbers: weights or "
                            "activations are beyond what a float holds",
                            r->sequence->length - r->n_logits + i);
    return 0;
}

// Runs whose tokens see each other as a whole stand in one pass; those of others are cut.
static void run_passes(Workspace *w, const Run *runs, int n_runs, bool whole) {
    int n_logits = 0;
    for (const Run *r = runs; r < runs + n_runs; r++)
        for (int done = 0, n; done < r->n; done += n) {
            if (whole && w->n_rows && r->n > w->full - w->n_rows) n_logits += run_pass(w, n_logits);
            int room = whole ? w->chunk : w->full - w->n_rows;
            n = r->n - done < room ? r->n - done : room;
            int first = r->n - r->n_logits > done ? r->n - r->n_logits : done;  // that needs logits
            int wanted = done + n > first ? done + n - first : 0;
            add_span(w, r->sequence, r->tokens + done, n, wanted);
            if (w->n_rows >= w->full) n_logits += run_pass(w, n_logits);
        }
    if (w->n_rows) run_pass(w, n_logits);
}

const float *forward_runs(Workspace *w, const Run *runs, int n_runs, Error *err) {
    if (check_runs(w, &w->model->text, runs, n_runs, err)) return NULL;
    run_passes(w, runs, n_runs, w->model->encoder);
    return check_logits(w, runs, n_runs, err) ? NULL : w->logits.data;
}

int read_sources(Workspace *w, const Run *runs, int n_runs, Error *err) {
    if (!w->model->source.n) return fail(err, "the model has no encoder to read a source with");
    if (check_runs(w, &w->model->source, runs, n_runs, err)) return -1;
    run_passes(w, runs, n_runs, true);
    for (const Run *r = runs; r < runs + n_runs; r++)
        discard(r->sequence->cache + w->kv.passing, w->kv.bytes - w->kv.passing);
    return 0;
}

const float *forward(Sequence *s, const int *tokens, int n, int n_logits, Error *err) {
    return forward_runs(s->workspace, &(Run){s, tokens, n, n_logits}, 1, err);
}
