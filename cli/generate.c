// The verb: continues a prompt, the plainest road through the library. prefill() runs the prompt;
// decode() loops: pick, print, run.
#include "generate.h"

#include <stdio.h>
#include <string.h>

#include "print.h"
#include "probs.h"
#include "wrap.h"

// ---- what is printed ----

static void put_text(Generation *g, const char *text, size_t len) {
    if (g->print) {
        g->print(g->to, text, len);
    } else if (len > 0 && !g->closed && !g->silent) {
        g->ended_line = text[len - 1] == '\n';
        g->closed = !write_words(text, len);
    }
}

static void put_token(Generation *g, int id) {
    heads_error err;
    char number[16];
    const char *text = number;
    size_t len = 0;
    if (!g->decoder)
        len = (size_t)snprintf(number, sizeof number, "%s%d", g->n_printed++ ? " " : "", id);
    else if (heads_decoder_push(g->decoder, id, &text, &len, &err)) die("%s", err.text);
    put_text(g, text, len);
}

static void finish_output(Generation *g) {
    heads_error err;
    const char *text = "\n";
    size_t len = 1;
    if (g->decoder && heads_decoder_finish(g->decoder, &text, &len, &err)) die("%s", err.text);
    put_text(g, text, len);
}

// The text begins with its prompt. With --no-echo the decoder still reads it, since the space
// before a word may depend on what came before.
static void show_prompt(Generation *g, Ids ids) {
    g->silent = g->p->o->no_echo;
    for (long i = 0; i < ids.n; i++) put_token(g, ids.data[i]);
    if (g->silent) g->n_printed = 0;
    g->silent = false;
}

// ---- prompt, then token by token ----

// A chunk a call, so that Ctrl-C takes effect between them.
int prefill(Generation *g, Ids ids, const float **logits, heads_error *err) {
    double start = seconds();
    int chunk = g->p->o->workspace.chunk;
    long done = heads_sequence_length(g->sequence);
    heads_sequence_expect(g->sequence, (int)ids.n);
    for (int n; done < ids.n && !interrupted; done += n) {
        n = ids.n - done < chunk ? (int)(ids.n - done) : chunk;
        *logits = heads_forward(g->sequence, ids.data + done, n, done + n == ids.n, err);
        if (!*logits) return -1;
        g->prompt += n;
        show_wait(start, done + n, ids.n, "prompt");
    }
    end_wait();
    g->prompt_seconds += seconds() - start;
    if (done < ids.n) *logits = NULL;
    return 0;
}

static int n_generated(const Generation *g) { return g->n_text - g->n_prompt; }

static bool ends_text(const Generation *g, int id) {
    return (g->p->tokenizer && heads_is_eos(g->p->tokenizer, id)) || id == g->answer_end;
}

// Why generation should end; NULL: go on. A generated last token has not run yet.
static const char *stop_reason(const Generation *g) {
    int last = n_generated(g) ? g->text[g->n_text - 1] : -1;
    if (last >= 0 && ends_text(g, last)) return "end-of-text token";
    if (g->closed) return "output closed";
    if (interrupted) return "interrupted";
    if (n_generated(g) == g->n_generate) return "-n reached";
    if (last >= 0 && g->n_text > heads_workspace_context(g->p->w)) return "context full";
    return NULL;
}

// Runs the text's last token, unless it ran as a guess; returns the logits after it.
static const float *run_last(Generation *g, heads_error *err) {
    bool ran = true;
    const float *logits =
        g->drafter ? run_guessing(g->drafter, g->sequence, g->text, g->n_text,
                                  g->n_generate - n_generated(g), &ran, err)
                   : heads_forward(g->sequence, &g->text[g->n_text - 1], 1, 1, err);
    if (ran && logits) g->step_bytes += pass_bytes(g->p, g->sequence);
    return logits;
}

// Picks and prints a token, then runs it for the next one's logits, until stop_reason.
static int decode(Generation *g, const float *logits, heads_error *err) {
    double start = seconds();
    while (!(g->stop = stop_reason(g))) {
        if (n_generated(g) && !(logits = run_last(g, err))) break;
        int id = heads_sampler_pick(g->sampler, logits);
        if (id < 0) {
            snprintf(err->text, sizeof err->text, "the checkpoint's rules leave no token to pick");
            return -1;
        }
        heads_sampler_accept(g->sampler, id);
        g->text[g->n_text++] = id;
        if (g->p->o->probs) g->closed = !show_probabilities(g->p, g->n_text - 2, logits, id);
        else if (!g->decoder || !ends_text(g, id)) put_token(g, id);
    }
    int n = n_generated(g);
    if (g->drafter) end_guessing(g->drafter, g->sequence, g->text, g->n_text - (n > 0));
    g->generated += n;
    g->stepped += n > 0 ? n - 1 : 0;
    g->step_seconds += seconds() - start;
    return logits ? 0 : -1;
}

int generate_text(Generation *g, Ids ids, heads_error *err) {
    const float *logits = NULL;
    memcpy(g->text, ids.data, (size_t)ids.n * sizeof *g->text);
    g->n_text = g->n_prompt = (int)ids.n;
    int status = prefill(g, ids, &logits, err);
    if (g->echoes) show_prompt(g, ids);
    g->stop = "interrupted";
    if (logits) status = decode(g, logits, err);
    if (status) g->stop = "error";
    finish_output(g);
    return status;
}

// ---- the verb ----

int generate(Program *p) {
    heads_error err;
    Generation g;
    Ids ids = begin_generation(&g, p);
    int status = generate_text(&g, ids, &err);
    closing_line(&g);
    if (status) die("%s", err.text);
    end_generation(&g, p, ids);
    return interrupted ? 130 : 0;
}
