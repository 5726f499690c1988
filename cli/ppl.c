// ppl.c: --ppl, how well the model predicts a text.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "print.h"
#include "prompt.h"
#include "verbs.h"

typedef struct {
    Program p;
    heads_sequence *s;
    Ids prefix, ids;  // the tokens that begin each window; the text
    int *window;      // [context]
    double sum, start;
    long scored;
} Perplexity;

// Runs a window: the tokenizer's prefix (BOS), then as many tokens of the text from `at` on as fit.
// Every token is scored by those before it in the window; without a prefix the first is not scored.
// Returns where the next window begins.
static long score_window(Perplexity *x, long at) {
    heads_error err;
    int n = 0, rows, context = heads_workspace_context(x->p.w), chunk = x->p.o->workspace.chunk;
    int from = x->prefix.n > 0 ? (int)x->prefix.n : 1;  // the first that is scored
    int vocab_size = x->p.shape.vocab_size;
    while (n < x->prefix.n) x->window[n] = x->prefix.data[n], n++;
    while (n < context && at < x->ids.n) x->window[n++] = x->ids.data[at++];
    if (heads_sequence_rewind(x->s, 0, &err)) die("%s", err.text);
    heads_sequence_expect(x->s, n);
    for (int i = 0; i < n; i += rows) {
        rows = n - i < chunk ? n - i : chunk;
        const float *logits = heads_forward(x->s, x->window + i, rows, rows, &err);
        if (!logits) die("%s", err.text);
        for (int next = i + 1; next <= i + rows && next < n; next++) {
            if (next >= from) x->scored++;
            if (next >= from) x->sum -= log_probability(logits, vocab_size, x->window[next]);
            logits += heads_logit_stride(x->p.w);
        }
        long done = at - n + i + rows;
        progress(done, x->ids.n, "%ld of %ld tokens, %.0f tok/s", done, x->ids.n,
                 rate((double)done, seconds() - x->start));
    }
    return at;
}

int perplexity(const Options *o) {
    Perplexity x = {.start = 0};
    open_program(&x.p, o, o->models[0], WITH_TOKENIZER);
    if (!x.p.tokenizer) usage("%s has no tokenizer, so --ppl cannot read a text", x.p.path);
    Text text = read_file(o->ppl);
    warn_if_not_utf8(text);
    x.ids = encode(&x.p, text, false);
    x.prefix = encode(&x.p, (Text){0}, true);
    free(text.data);
    check_ids(&x.p, x.ids);
    check_ids(&x.p, x.prefix);
    open_workspace(&x.p, o->workspace.chunk);
    x.s = open_text(&x.p, false);
    int context = heads_workspace_context(x.p.w);
    long n = x.ids.n + x.prefix.n;
    if (n < 2) usage("--ppl %s: at least two tokens are needed, found %ld", o->ppl, n);
    if (context < x.prefix.n + 1 || context < 2) usage("-c %d is too small for --ppl", context);
    x.window = allocate((size_t)context, sizeof *x.window);
    x.start = seconds();
    for (long at = 0; at < x.ids.n;) at = score_window(&x, at);
    progress_end();
    double nats = x.sum / (double)x.scored;
    printf("perplexity %.4f (%.5f nats a token; %ld tokens scored in windows of %d)\n", exp(nats),
           nats, x.scored, context);
    free(x.window);
    free(x.ids.data);
    free(x.prefix.data);
    heads_sequence_free(x.s);
    close_program(&x.p);
    return 0;
}
