// generate.c: continues a prompt.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "print.h"
#include "prompt_cache.h"
#include "speculate.h"
#include "verbs.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

// ---- what is printed ----

typedef struct {
    Decoder *decoder;  // NULL: ids are printed
    bool closed;       // whoever read stdout is gone
    long printed;      // ids so far
} Printer;

static void put_token(Printer *out, int id) {
    Error err;
    char number[16];
    const char *text = number;
    size_t len = 0;
    if (!out->decoder) {
        len = (size_t)snprintf(number, sizeof number, "%s%d", out->printed++ ? " " : "", id);
    } else if (decoder_push(out->decoder, id, &text, &len, &err)) {
        die("%s", err.text);
    }
    if (len > 0 && !out->closed) out->closed = !write_out(text, len);
}

static void finish_output(Printer *out) {
    Error err;
    const char *text = "\n";
    size_t len = 1;
    if (out->decoder && decoder_finish(out->decoder, &text, &len, &err)) die("%s", err.text);
    if (len > 0 && !out->closed) write_out(text, len);
    decoder_free(out->decoder);
}

// ---- prompt, then token by token ----

typedef struct {
    const Options *o;
    const Model *model;
    const Tokenizer *tokenizer;  // NULL: there is none
    Workspace *w;
    Sequence *sequence;
    Sampler *sampler;
    SamplerOptions sampling;
    Drafter *drafter;            // NULL: there are no guesses
    int *text;                   // [context + 1], prompt and what was generated
    int n_text;
    Printer out;
    long prompt, reused, generated, passes;  // tokens; passes of those generated, but for the last
    double prompt_seconds, step_seconds, step_bytes;
    const char *stop;
} Generation;

// Runs the prompt, a chunk at a time so that Ctrl-C is heard in between. NULL: it was, or an error.
static const float *prefill(Generation *g, Ids ids, Error *err) {
    const float *logits = NULL;
    double start = seconds();
    int chunk = g->o->workspace.chunk;
    long done = g->reused = sequence_length(g->sequence);
    sequence_expect(g->sequence, (int)ids.n);
    while (done < ids.n && !interrupted) {
        long left = ids.n - done;
        int n = left < chunk ? (int)left : chunk;
        logits = forward(g->sequence, ids.data + done, n, n == left, err);
        if (!logits) {
            g->stop = "error";
            return NULL;
        }
        done += n;
        g->prompt += n;
    }
    g->prompt_seconds = seconds() - start;
    return done == ids.n ? logits : NULL;
}

// Why generation should end; NULL: go on. The text's last token did not run if it was generated.
static const char *stop_reason(const Generation *g) {
    int last = g->generated ? g->text[g->n_text - 1] : -1;
    if (last >= 0 && g->tokenizer && tokenizer_is_eos(g->tokenizer, last)) {
        return "end-of-text token";
    }
    if (g->out.closed) return "output closed";
    if (interrupted) return "interrupted";
    if (g->generated == g->o->n_generate) return "-n reached";
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
    int run[1 + MAX_DRAFT] = {g->text[g->n_text - 1]}, most = g->o->n_generate - (int)g->generated;
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
    size_t cache = kv_bytes_at(g->model, 0, length, w->k_dtype, w->v_dtype);
    g->passes++;
    g->step_bytes += (double)g->model->weight_bytes + (double)cache;
}

static void learn(const Generation *g, int n_guesses, int right, double time) {
    if (g->drafter && g->passes) draft_learn(g->drafter, n_guesses, right, time);
}

// Picks and prints a token, and runs it to get the next one's logits, until something says stop. A
// token that was guessed has run already: its logits are in the next row.
static void decode(Generation *g, const float *logits, Error *err) {
    int guesses[MAX_DRAFT], n_guesses = 0, right = 0, marked = 0;
    double start = seconds(), begin = start;
    while (!(g->stop = stop_reason(g))) {
        bool ran = !g->generated || (right < n_guesses && guesses[right] == g->text[g->n_text - 1]);
        if (ran) {
            right += g->generated > 0;
        } else {
            learn(g, n_guesses, right, seconds() - begin);
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
        g->generated++;
        put_token(&g->out, id);
    }
    learn(g, n_guesses, right, seconds() - begin);
    Error unused;
    take_back(g, g->n_text - (g->generated > 0), marked, &unused);
    g->step_seconds = seconds() - start;
}

static void closing_line(const Generation *g) {
    KvUsage kv = sequence_kv_usage(g->sequence);
    long steps = g->generated > 0 ? g->generated - 1 : 0;
    if (isatty(STDOUT_FILENO)) fprintf(stderr, "\n");
    fprintf(stderr, "prompt %ld tokens, %.1f tok/s", g->prompt,
            rate((double)g->prompt, g->prompt_seconds));
    if (g->reused) fprintf(stderr, ", %ld from %s", g->reused, g->o->prompt_cache);
    fprintf(stderr, "; generated %ld, %.1f tok/s, %.2f GB/s; ", g->generated,
            rate((double)steps, g->step_seconds), rate(g->step_bytes, g->step_seconds) * 1e-9);
    if (g->drafter) {
        fprintf(stderr, "drafted %ld, accepted %ld; ", drafted_tokens(g->drafter),
                accepted_tokens(g->drafter));
    }
    fprintf(stderr, "KV cache %s of %s bytes in use", commas(kv.in_use), commas(kv.reserved));
    if (g->sampling.temperature > 0) {
        fprintf(stderr, "; seed %llu", (unsigned long long)g->sampling.seed);
    }
    fprintf(stderr, "; stopped: %s\n", g->stop);
}

// The prompt's text and then the model's; returns the exit status.
static int continue_prompt(Generation *g, Ids ids) {
    Error err = {""};
    for (long i = 0; i < ids.n; i++) {
        put_token(&g->out, ids.data[i]);
        sampler_accept(g->sampler, ids.data[i]);
        g->text[g->n_text++] = ids.data[i];
    }
    const float *logits = prefill(g, ids, &err);
    if (logits) decode(g, logits, &err);
    finish_output(&g->out);
    closing_line(g);
    if (strcmp(g->stop, "error") == 0) die("%s", err.text);
    save_prompt_cache(g->o, g->sequence);
    return interrupted ? 130 : 0;
}

static uint64_t clock_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

// A second Ctrl-C ends the program at once.
static void listen_for_interrupt(void) {
    struct sigaction action = {.sa_handler = on_interrupt,
                               .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
    sigaction(SIGINT, &action, NULL);
}

int generate(const Options *o) {
    Error err;
    Model model;
    const char *why;
    open_model(&model, o, o->models[0]);
    Tokenizer *tokenizer = open_tokenizer(&model);
    Ids ids = prompt_to_run(o, &model, tokenizer);
    Workspace *w = open_workspace(o, &model, 1 + MAX_DRAFT);
    Generation g = {.o = o, .model = &model, .tokenizer = tokenizer, .sampling = o->sampler,
                    .w = w, .sequence = open_prompt_cache(o, w, ids),
                    .drafter = drafter_new(o, &model, w), .stop = "interrupted"};
    if (!o->seeded) g.sampling.seed = clock_seed();
    g.sampler = sampler_new(workspace_kernels(w, &why), model.vocab_size, &g.sampling, &err);
    if (!g.sampler) die("%s", err.text);
    if (tokenizer && !o->ids && !(g.out.decoder = decoder_new(tokenizer, true, &err))) {
        die("%s", err.text);
    }
    g.text = malloc(((size_t)workspace_context(w) + 1) * sizeof *g.text);
    if (!g.text) die("no memory for the ids of the text");
    listen_for_interrupt();
    int status = continue_prompt(&g, ids);
    free(g.text);
    drafter_free(g.drafter);
    sampler_free(g.sampler);
    sequence_free(g.sequence);
    workspace_free(w);
    tokenizer_free(tokenizer);
    free(ids.data);
    model_close(&model);
    return status;
}
