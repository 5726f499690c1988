// generate.c: continues a prompt.
#include "generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "messages.h"
#include "print.h"
#include "prompt_cache.h"
#include "verbs.h"

// ---- what is printed ----

static void put_text(Generation *g, const char *text, size_t len) {
    if (g->print) {
        g->print(g->to, text, len);
    } else if (len > 0 && !g->closed) {
        g->ended_line = text[len - 1] == '\n';
        g->closed = !write_out(text, len);
    }
}

static void put_token(Generation *g, int id) {
    Error err;
    char number[16];
    const char *text = number;
    size_t len = 0;
    if (!g->decoder)
        len = (size_t)snprintf(number, sizeof number, "%s%d", g->n_printed++ ? " " : "", id);
    else if (decoder_push(g->decoder, id, &text, &len, &err)) die("%s", err.text);
    put_text(g, text, len);
}

static void finish_output(Generation *g) {
    Error err;
    const char *text = "\n";
    size_t len = 1;
    if (g->decoder && decoder_finish(g->decoder, &text, &len, &err)) die("%s", err.text);
    put_text(g, text, len);
}

// ---- prompt, then token by token ----

static int keep_fork(Generation *g, Error *err) {
    sequence_free(g->fork);
    g->fork = sequence_fork(g->sequence, g->fork_at, err);
    return g->fork ? 0 : -1;
}

// Runs the prompt, a chunk at a time so that Ctrl-C is heard in between. NULL: it was, or an error.
static const float *prefill(Generation *g, Ids ids, Error *err) {
    const float *logits = NULL;
    double start = seconds();
    int chunk = g->o->workspace.chunk;
    long done = sequence_length(g->sequence);
    g->reused += done;
    sequence_expect(g->sequence, (int)ids.n);
    while (done < ids.n && !interrupted) {
        long left = (done < g->fork_at ? g->fork_at : ids.n) - done;
        int n = left < chunk ? (int)left : chunk;
        bool ok = done != g->fork_at || keep_fork(g, err) == 0;
        logits = ok ? forward(g->sequence, ids.data + done, n, done + n == ids.n, err) : NULL;
        if (!logits) {
            g->stop = "error";
            return NULL;
        }
        done += n;
        g->prompt += n;
    }
    g->prompt_seconds += seconds() - start;
    return done == ids.n ? logits : NULL;
}

static int n_generated(const Generation *g) { return g->n_text - g->n_prompt; }

static bool ends_text(const Generation *g, int id) {
    return (g->tokenizer && tokenizer_is_eos(g->tokenizer, id)) || id == g->answer_end;
}

// Why generation should end; NULL: go on. The text's last token did not run if it was generated.
static const char *stop_reason(const Generation *g) {
    int last = n_generated(g) ? g->text[g->n_text - 1] : -1;
    if (last >= 0 && ends_text(g, last)) return "end-of-text token";
    if (g->closed) return "output closed";
    if (interrupted) return "interrupted";
    if (n_generated(g) == g->n_generate) return "-n reached";
    if (last >= 0 && g->n_text > workspace_context(g->w)) return "context full";
    return NULL;
}

// Takes wrong guesses back, so that the sequence holds the first n tokens of the text. States that
// cannot come back were marked before the guesses; from there the right ones run again.
static int take_back(Generation *g, int n, int marked, Error *err) {
    if (sequence_length(g->sequence) <= n || sequence_rewind(g->sequence, n, err) == 0) return 0;
    if (sequence_rewind(g->sequence, marked, err)) return -1;
    return forward(g->sequence, g->text + marked, n - marked, 0, err) ? 0 : -1;
}

// Runs the text's last token and n_guesses that may follow it; the logits of all of them.
static const float *run_last(Generation *g, int *guesses, int *n_guesses, Error *err) {
    int run[1 + MAX_DRAFT] = {g->text[g->n_text - 1]}, most = g->n_generate - n_generated(g);
    int room = sequence_room(g->sequence) - 1;
    *n_guesses = 0;
    if (g->drafter) {
        *n_guesses = draft(g->drafter, g->text, g->n_text, room < most - 1 ? room : most - 1,
                           guesses);
        if (*n_guesses && sequence_mark(g->sequence, err)) return NULL;
    }
    for (int i = 0; i < *n_guesses; i++) run[1 + i] = guesses[i];
    return forward(g->sequence, run, 1 + *n_guesses, 1 + *n_guesses, err);
}

static void count_pass(Generation *g) {
    const WorkspaceOptions *w = &g->o->workspace;
    int length = sequence_length(g->sequence);
    int n_source;
    sequence_source(g->sequence, &n_source);
    size_t cache = kv_bytes_at(&g->model, 0, length, n_source, w->k_dtype, w->v_dtype);
    g->step_bytes += (double)g->model.weight_bytes + (double)cache;
}

// Picks and prints a token, and runs it to get the next one's logits, until something says stop. A
// token that was guessed has run already: its logits are in the next row.
static void decode(Generation *g, const float *logits, Error *err) {
    int guesses[MAX_DRAFT], n_guesses = 0, right = 0, marked = 0;
    double start = seconds(), begin = start;
    bool ran = false;
    while (!(g->stop = stop_reason(g))) {
        bool first = n_generated(g) == 0;
        if (first || (right < n_guesses && guesses[right] == g->text[g->n_text - 1])) {
            right += !first;
        } else {
            if (ran && g->drafter) draft_learn(g->drafter, n_guesses, right, seconds() - begin);
            ran = true;
            begin = seconds();
            g->stop = "error";
            if (take_back(g, g->n_text - 1, marked, err)) break;
            marked = sequence_length(g->sequence);
            if (!(logits = run_last(g, guesses, &n_guesses, err))) break;
            right = 0;
            count_pass(g);
        }
        int id = sampler_pick(g->sampler, logits + (size_t)right * logit_stride(g->w));
        sampler_accept(g->sampler, id);
        g->text[g->n_text++] = id;
        if (!g->decoder || !ends_text(g, id)) put_token(g, id);
    }
    if (ran && g->drafter) draft_learn(g->drafter, n_guesses, right, seconds() - begin);
    take_back(g, g->n_text - (n_generated(g) > 0), marked, NULL);
    g->generated += n_generated(g);
    g->stepped += n_generated(g) > 0 ? n_generated(g) - 1 : 0;
    g->step_seconds += seconds() - start;
}

int generate_text(Generation *g, Ids ids, Error *err) {
    memcpy(g->text, ids.data, (size_t)ids.n * sizeof *g->text);
    g->n_text = g->n_prompt = (int)ids.n;
    g->stop = "interrupted";
    const float *logits = prefill(g, ids, err);
    if (logits) decode(g, logits, err);
    finish_output(g);
    return strcmp(g->stop, "error") == 0 ? -1 : 0;
}

// Where stdout and stderr are one pipe or file (2>&1).
static bool one_stream(void) {
    struct stat out, err;
    return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
           out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

void closing_line(const Generation *g) {
    KvUsage kv = sequence_kv_usage(g->sequence);
    if (!g->ended_line && isatty(STDOUT_FILENO)) write_out("\n", 1);
    else if (!g->ended_line && !g->print && one_stream()) fprintf(stderr, "\n");
    fprintf(stderr, "prompt %ld tokens, %.1f tok/s", g->prompt,
            rate((double)g->prompt, g->prompt_seconds));
    if (g->reused) {
        const char *from = g->o->prompt_cache ? g->o->prompt_cache : "earlier turns";
        fprintf(stderr, ", %ld from %s", g->reused, from);
    }
    fprintf(stderr, "; generated %ld, %.1f tok/s, %.2f GB/s; ", g->generated,
            rate((double)g->stepped, g->step_seconds),
            rate(g->step_bytes, g->step_seconds) * 1e-9);
    if (g->drafter)
        fprintf(stderr, "drafted %ld, accepted %ld; ", drafted_tokens(g->drafter),
                accepted_tokens(g->drafter));
    fprintf(stderr, "KV cache %s of %s bytes in use", commas(kv.in_use), commas(kv.reserved));
    if (g->sampling.temperature > 0)
        fprintf(stderr, "; seed %llu", (unsigned long long)g->sampling.seed);
    fprintf(stderr, "; stopped: %s\n", g->stop);
}

// ---- the verb ----

static uint64_t clock_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

// An answer is written with its special tokens: they may be the marks around a thought.
void start_text(Generation *g) {
    Error err;
    bool skip_special = !g->o->messages && g->o->verb != CHAT;
    sampler_free(g->sampler);
    g->sampler = sampler_new(workspace_kernels(g->w), g->model.vocab_size, &g->sampling,
                             &g->model.rules, &err);
    if (!g->sampler) die("%s", err.text);
    if (!g->tokenizer || g->o->ids) return;
    decoder_free(g->decoder);
    g->decoder = decoder_new(g->tokenizer, skip_special, &err);
    if (!g->decoder) die("%s", err.text);
}

void generation_open(Generation *g, const Options *o) {
    *g = (Generation){.o = o, .answer_end = -1, .fork_at = -1};
    open_model(&g->model, o, o->models[0]);
    g->sampling = sampling_options(o, &g->model);
    g->n_generate = tokens_to_generate(o, &g->model, 0);
    g->tokenizer = open_tokenizer(&g->model);
    g->w = open_workspace(o, &g->model, g->model.encoder ? g->model.context : 1 + MAX_DRAFT);
    g->drafter = drafter_new(o, &g->model, g->w);
    if (!o->seeded) g->sampling.seed = clock_seed();
    start_text(g);
    g->text = allocate((size_t)workspace_context(g->w) + 1, sizeof *g->text);
}

void generation_close(Generation *g) {
    free(g->text);
    decoder_free(g->decoder);
    drafter_free(g->drafter);
    sampler_free(g->sampler);
    sequence_free(g->sequence);
    sequence_free(g->fork);
    workspace_free(g->w);
    tokenizer_free(g->tokenizer);
    model_close(&g->model);
}

// The text that a decoder is to write of a source, whose length the checkpoint may bound.
static void begin_target(Generation *g, int n_begin) {
    int context = workspace_context(g->w);
    g->n_generate = tokens_to_generate(g->o, &g->model, n_begin);
    if (g->n_generate > context + 1 - n_begin) g->n_generate = context + 1 - n_begin;
    g->sampling.most = n_begin + g->n_generate;
    start_text(g);
}

static void print_nothing(void *to, const char *text, size_t len) {}

Ids written_target(const Options *o, Workspace *w, Tokenizer *tokenizer, Ids source,
                   bool *sampled) {
    Error err;
    Generation g = {.o = o, .model = *workspace_model(w), .tokenizer = tokenizer, .w = w,
                    .answer_end = -1, .fork_at = -1, .print = print_nothing};
    g.sampling = sampling_options(o, &g.model);
    if (!o->seeded) g.sampling.seed = clock_seed();
    g.text = allocate((size_t)workspace_context(w) + 1, sizeof *g.text);
    g.sequence = open_sequence(w, false);
    Ids read = {allocate((size_t)source.n, sizeof *read.data), source.n};
    memcpy(read.data, source.data, (size_t)source.n * sizeof *read.data);
    Ids begun = read_prompt(o, tokenizer, g.sequence, read);
    begin_target(&g, (int)begun.n);
    for (long i = 0; i < begun.n; i++) sampler_accept(g.sampler, begun.data[i]);
    if (generate_text(&g, begun, &err)) die("%s", err.text);
    Ids target = {g.text, sequence_length(g.sequence)};
    *sampled = g.sampling.temperature > 0;
    free(begun.data);
    decoder_free(g.decoder);
    sampler_free(g.sampler);
    sequence_free(g.sequence);
    return target;
}

int generate(const Options *o) {
    Error err;
    Generation g;
    generation_open(&g, o);
    if (g.model.encoder) return fill_masks(&g);
    Ids ids = prompt_to_run(o, &g.model, g.tokenizer, &g.answer_end);
    double start = seconds();
    bool reads = g.model.source.n;
    g.prompt = reads ? ids.n : 0;
    g.sequence = open_prompt_cache(o, g.w, g.tokenizer, &ids);
    g.prompt_seconds = reads ? seconds() - start : 0;
    if (reads) begin_target(&g, (int)ids.n);
    catch_interrupt(SA_RESTART | SA_RESETHAND);
    for (long i = 0; i < ids.n; i++) {
        if (!o->messages && !reads) put_token(&g, ids.data[i]);
        sampler_accept(g.sampler, ids.data[i]);
    }
    int status = generate_text(&g, ids, &err);
    closing_line(&g);
    if (status) die("%s", err.text);
    save_prompt_cache(o, g.sequence);
    free(ids.data);
    generation_close(&g);
    return interrupted ? 130 : 0;
}
