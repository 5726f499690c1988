// batch.c: three prompts side by side in every pass, each continued by its most likely tokens.
//   cc -o batch examples/batch.c $(pkg-config --cflags --libs heads) && ./batch models/stories.bin
#include <heads.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, LONGEST = 120 };  // prompts; tokens of a text, the prompt's included
static const char *const prompts[N] = {"Once upon a time", "The little dog", "One day, Lily"};
static heads_error err;

static void check(int ok) {
    if (!ok) fprintf(stderr, "batch: %s\n", err.text), exit(1);
}

static void print_text(const heads_tokenizer *tokenizer, const heads_sequence *s) {
    const char *text;
    size_t len;
    heads_decoder *decoder = heads_decoder_new(tokenizer, 1, &err);
    check(decoder != NULL);
    for (int i = 0; i < heads_sequence_length(s); i++) {
        check(heads_decoder_push(decoder, heads_sequence_tokens(s)[i], &text, &len, &err) == 0);
        fwrite(text, 1, len, stdout);
    }
    heads_decoder_free(decoder);
    printf("\n\n");
}

int main(int argc, char **argv) {
    heads_model *model = heads_model_open(argc > 1 ? argv[1] : "model.bin", &err);
    heads_tokenizer *tokenizer = model ? heads_tokenizer_new(model, &err) : NULL;
    heads_workspace *w = tokenizer ? heads_workspace_new(model, NULL, &err) : NULL;
    heads_sampler *greedy = w ? heads_sampler_new(w, NULL, &err) : NULL;
    check(greedy != NULL);
    heads_sequence *texts[N];
    heads_run runs[N];
    int *ids[N], next[N], n_runs = 0;
    for (; n_runs < N; n_runs++) {
        const char *prompt = prompts[n_runs];
        long n = heads_encode(tokenizer, prompt, strlen(prompt), 1, &ids[n_runs], &err);
        check(n >= 0 && (texts[n_runs] = heads_sequence_new(w, 0, &err)) != NULL);
        heads_run run = {texts[n_runs], ids[n_runs], (int)n, 1};
        runs[n_runs] = run;
    }
    while (n_runs > 0) {
        const float *logits = heads_forward_runs(w, runs, n_runs, &err);
        check(logits != NULL);
        int left = 0;  // texts that go on
        for (int i = 0; i < n_runs; i++, logits += heads_logit_stride(w)) {
            next[left] = heads_sampler_pick(greedy, logits);
            int full = heads_sequence_length(runs[i].sequence) == LONGEST;
            if (full || heads_is_eos(tokenizer, next[left])) continue;
            heads_run run = {runs[i].sequence, &next[left], 1, 1};
            runs[left++] = run;
        }
        n_runs = left;
    }
    for (int i = 0; i < N; i++) print_text(tokenizer, texts[i]);
    return 0;  // a longer program would free each sequence, the workspace, .. (heads.h)
}
