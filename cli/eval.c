// eval.c: --logits, --hidden, --heads and --ppl, what the model says of a text that is given.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"
#include "heads_page.h"
#include "outfile.h"
#include "print.h"
#include "prompt_cache.h"
#include "sampler.h"
#include "verbs.h"

// Runs the next tokens of a text, as many as a pass takes; the logits of all, or of none.
static const float *run_chunk(Sequence *s, const int *ids, long left, int chunk, bool all, int *n) {
    Error err;
    *n = left < chunk ? (int)left : chunk;
    const float *logits = forward(s, ids, *n, all ? *n : 0, &err);
    if (!logits) die("%s", err.text);
    return logits;
}

// n rows of logits, or of hidden states.
static void put_rows(const Workspace *w, const float *rows, size_t row, int n, const char *path,
                     FILE *f) {
    for (int i = 0; i < n; i++)
        if (fwrite(rows + (size_t)i * logit_stride(w), sizeof(float), row, f) < row)
            die("cannot write %s: %s", path, strerror(errno));
}

// The page of the prompt, which the sequence has yet to run. Of a model that has an encoder it is
// the source, and what stands in its place then is the target.
static HeadsPage *open_page(const Options *o, Workspace *w, Tokenizer *tokenizer, Ids *ids) {
    const Model *model = workspace_model(w);
    HeadsTexts texts = {.ids = *ids, .target = "given"};
    bool sampled = false;
    if (model->source.n) {
        texts.source = *ids;
        texts.ids = o->target ? parse_ids("--target", o->target, model->vocab_size)
                              : written_target(o, w, tokenizer, *ids, &sampled);
        if (!o->target) texts.target = sampled ? "sampled" : "greedy";
    }
    *ids = texts.ids;
    return heads_page_open(o, w, tokenizer, texts);
}

int look(const Options *o) {
    Model model;
    const char *path = o->hidden ? o->hidden : o->logits;
    open_model(&model, o, o->models[0]);
    if (o->logits && !model.output.data)
        usage("%s has no head that gives logits; it has --hidden and --embed", o->models[0]);
    Tokenizer *tokenizer = open_tokenizer(&model);
    Ids ids = prompt_to_run(o, &model, tokenizer, NULL);
    int chunk = model.encoder ? (int)ids.n : o->workspace.chunk, n;
    Workspace *w = open_workspace(o, &model, path ? chunk : 1);
    Ids prompt = ids;
    HeadsPage *page = o->heads ? open_page(o, w, tokenizer, &ids) : NULL;
    Sequence *s = page ? open_sequence(w, false) : open_prompt_cache(o, w, tokenizer, &ids);
    long first = sequence_length(s);
    FILE *f = path ? outfile_open(path, o->models, 1) : NULL;
    size_t row = (size_t)(o->hidden ? model.n_embd : model.vocab_size);
    double start = seconds();
    if (page) heads_page_read(page, s);
    sequence_expect(s, (int)ids.n);
    for (long done = first; done < ids.n; done += n) {
        const float *logits = run_chunk(s, ids.data + done, ids.n - done, chunk, f, &n);
        if (f) put_rows(w, logits, row, n, path, f);
        if (page) heads_page_add(page, n);
    }
    long n_rows = ids.n - first;
    double speed = rate((double)n_rows, seconds() - start);
    if (f) outfile_close(f);
    if (page) heads_page_close(page, s);
    fprintf(stderr, "prompt %ld tokens, %.1f tok/s", n_rows, speed);
    if (f) fprintf(stderr, "; float32 [%ld][%zu] written to %s", n_rows, row, path);
    fprintf(stderr, "\n");
    save_prompt_cache(o, s);
    sequence_free(s);
    workspace_free(w);
    tokenizer_free(tokenizer);
    if (page && prompt.data != ids.data) free(prompt.data);
    free(ids.data);
    model_close(&model);
    return 0;
}

typedef struct {
    Workspace *w;
    Sequence *s;
    Ids prefix, ids;  // what begins each window, and the text
    int *window;      // [context]
    double sum, start;
    long scored;
} Perplexity;

// Runs the text from `at` on in a window: the tokenizer's prefix (BOS), and as many tokens as fit.
// Every token is scored from those before it, except the first where there is no prefix. Returns
// where the next window begins.
static long score_window(Perplexity *p, long at) {
    Error err;
    int n = 0, rows, context = workspace_context(p->w);
    int scored_from = p->prefix.n > 0 ? (int)p->prefix.n : 1;
    while (n < p->prefix.n) p->window[n] = p->prefix.data[n], n++;
    while (n < context && at < p->ids.n) p->window[n++] = p->ids.data[at++];
    if (sequence_rewind(p->s, 0, &err)) die("%s", err.text);
    sequence_expect(p->s, n);
    for (int i = 0; i < n; i += rows) {
        const float *logits = run_chunk(p->s, p->window + i, n - i, workspace_chunk(p->w), true,
                                        &rows);
        for (int j = 0; j < rows; j++) {
            int next = i + j + 1;
            if (next < scored_from || next >= n) continue;
            const float *row = logits + (size_t)j * logit_stride(p->w);
            p->sum -= log_probability(row, workspace_model(p->w)->vocab_size, p->window[next]);
            p->scored++;
        }
        long done = at - n + i + rows;
        progress(done, p->ids.n, "%ld of %ld tokens, %.0f tok/s", done, p->ids.n,
                 rate((double)done, seconds() - p->start));
    }
    return at;
}

int perplexity(const Options *o) {
    Model model;
    open_model(&model, o, o->models[0]);
    Tokenizer *tokenizer = open_tokenizer(&model);
    if (!tokenizer) usage("%s has no tokenizer, so --ppl cannot read a text", o->models[0]);
    Text text = read_file(o->ppl);
    warn_if_not_utf8(text);
    Perplexity p = {.ids = encode(tokenizer, text, false),
                    .prefix = encode(tokenizer, (Text){0}, true)};
    free(text.data);
    check_ids(p.ids, &model);
    check_ids(p.prefix, &model);
    p.w = open_workspace(o, &model, o->workspace.chunk);
    p.s = open_sequence(p.w, false);
    int context = workspace_context(p.w);
    long n = p.ids.n + p.prefix.n;
    if (n < 2) usage("--ppl %s: at least two tokens are needed, found %ld", o->ppl, n);
    if (context < p.prefix.n + 1 || context < 2) usage("-c %d is too small for --ppl", context);
    p.window = allocate((size_t)context, sizeof *p.window);
    p.start = seconds();
    for (long at = 0; at < p.ids.n;) at = score_window(&p, at);
    progress_end();
    double nats = p.sum / (double)p.scored;
    printf("perplexity %.4f (%.5f nats a token; %ld tokens scored in windows of %d)\n", exp(nats),
           nats, p.scored, context);
    free(p.window);
    free(p.ids.data);
    free(p.prefix.data);
    sequence_free(p.s);
    workspace_free(p.w);
    tokenizer_free(tokenizer);
    model_close(&model);
    return 0;
}
