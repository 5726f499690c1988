// generate.c: continues a prompt.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "input.h"
#include "interrupt.h"
#include "print.h"
#include "verbs.h"

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
    Sequence *sequence;
    Sampler *sampler;
    SamplerOptions sampling;
    int context;
    Printer out;
    long prompt, generated, steps;  // tokens; steps: passes of one token, one fewer than generated
    double prompt_seconds, step_seconds, step_bytes;
    const char *stop;
} Generation;

// Runs the prompt, a chunk at a time so that Ctrl-C is heard in between. NULL: it was, or an error.
static const float *prefill(Generation *g, Ids ids, Error *err) {
    const float *logits = NULL;
    double start = seconds();
    int chunk = g->o->workspace.chunk;
    sequence_expect(g->sequence, (int)ids.n);
    while (g->prompt < ids.n && !interrupted) {
        long left = ids.n - g->prompt;
        int n = left < chunk ? (int)left : chunk;
        logits = forward(g->sequence, ids.data + g->prompt, n, n == left, err);
        if (!logits) {
            g->stop = "error";
            return NULL;
        }
        g->prompt += n;
    }
    g->prompt_seconds = seconds() - start;
    return g->prompt == ids.n ? logits : NULL;
}

// Why generation should end after `id` (-1: nothing generated yet); NULL: go on.
static const char *stop_reason(const Generation *g, int id) {
    if (id >= 0 && g->tokenizer && tokenizer_is_eos(g->tokenizer, id)) return "end-of-text token";
    if (g->out.closed) return "output closed";
    if (interrupted) return "interrupted";
    if (g->generated == g->o->n_generate) return "-n reached";
    if (id >= 0 && sequence_length(g->sequence) == g->context) return "context full";
    return NULL;
}

// Picks and prints a token, and runs it to get the next one's logits, until something says stop.
static void decode(Generation *g, const float *logits, Error *err) {
    const WorkspaceOptions *w = &g->o->workspace;
    double start = seconds();
    for (int id = -1; !(g->stop = stop_reason(g, id));) {
        if (id >= 0 && !(logits = forward(g->sequence, &id, 1, 1, err))) {
            g->stop = "error";
            break;
        }
        if (id >= 0) {
            int length = sequence_length(g->sequence);
            size_t cache = kv_bytes_at(g->model, 0, length, w->k_dtype, w->v_dtype);
            g->steps++;
            g->step_bytes += (double)g->model->weight_bytes + (double)cache;
        }
        id = sampler_pick(g->sampler, logits);
        sampler_accept(g->sampler, id);
        g->generated++;
        put_token(&g->out, id);
    }
    g->step_seconds = seconds() - start;
}

static void closing_line(const Generation *g) {
    KvUsage kv = sequence_kv_usage(g->sequence);
    if (isatty(STDOUT_FILENO)) fprintf(stderr, "\n");
    fprintf(stderr, "prompt %ld tokens, %.1f tok/s; generated %ld, %.1f tok/s, %.2f GB/s; ",
            g->prompt, rate((double)g->prompt, g->prompt_seconds), g->generated,
            rate((double)g->steps, g->step_seconds), rate(g->step_bytes, g->step_seconds) * 1e-9);
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
    }
    const float *logits = prefill(g, ids, &err);
    if (logits) decode(g, logits, &err);
    finish_output(&g->out);
    closing_line(g);
    if (*err.text) die("%s", err.text);
    return interrupted ? 130 : 0;
}

static uint64_t clock_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

int generate(const Options *o) {
    Error err;
    Model model;
    const char *why;
    open_model(&model, o, o->models[0]);
    Tokenizer *tokenizer = open_tokenizer(&model);
    Ids ids = prompt_to_run(o, &model, tokenizer);
    Workspace *w = open_workspace(o, &model, 1);
    Generation g = {.o = o, .model = &model, .tokenizer = tokenizer, .sampling = o->sampler,
                    .sequence = open_sequence(w, false), .context = workspace_context(w),
                    .stop = "interrupted"};
    if (!o->seeded) g.sampling.seed = clock_seed();
    g.sampler = sampler_new(workspace_kernels(w, &why), model.vocab_size, &g.sampling, &err);
    if (!g.sampler) die("%s", err.text);
    if (tokenizer && !o->ids && !(g.out.decoder = decoder_new(tokenizer, true, &err))) {
        die("%s", err.text);
    }
    catch_interrupts();
    int status = continue_prompt(&g, ids);
    sampler_free(g.sampler);
    sequence_free(g.sequence);
    workspace_free(w);
    tokenizer_free(tokenizer);
    free(ids.data);
    model_close(&model);
    return status;
}
