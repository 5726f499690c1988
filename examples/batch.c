// batch.c: three prompts side by side in every pass, each continued by its most likely tokens.
//   cc -o batch examples/batch.c $(pkg-config --cflags --libs heads) && ./batch models/stories.bin
#include <heads.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, LONGEST = 120 };  // prompts; tokens of a text, the prompt's included
static const char *const prompts[N] = {"Once upon a time", "The little dog", "One day, Lily"};
static char texts[N][100 * LONGEST];
static heads_error err;

static void check(int ok) {
    if (!ok) fprintf(stderr, "batch: %s\n", err.text), exit(1);
}

int main(int argc, char **argv) {
    int failed = 0;
    heads_model *model = heads_model_open(argc > 1 ? argv[1] : "model.bin", &err);
    heads_tokenizer *tokenizer = model ? heads_tokenizer_new(model, &err) : NULL;
    heads_workspace *w = tokenizer ? heads_workspace_new(model, NULL, &err) : NULL;
    heads_batch_options options = {N, 0, tokenizer, NULL, 0};
    heads_batch *batch = w ? heads_batch_new(w, &options, &err) : NULL;
    check(batch != NULL);
    for (int i = 0; i < N; i++) {
        int *ids;
        long n = heads_encode(tokenizer, prompts[i], strlen(prompts[i]), 1, &ids, &err);
        check(n >= 0);
        heads_request request;
        memset(&request, 0, sizeof request);
        request.ids = ids;
        request.n = (int)n;
        request.max_tokens = LONGEST - (int)n;
        check(heads_batch_add(batch, &request, &err) == i);  // requests are numbered from 0 on
        heads_free(ids);
        strcpy(texts[i], prompts[i]);
    }
    while (heads_batch_count(batch).waiting + heads_batch_count(batch).running > 0) {
        const heads_event *events;
        int n = heads_batch_step(batch, &events, &err);
        check(n >= 0);
        for (int i = 0; i < n; i++) {
            if (events[i].kind == HEADS_FAILED)
                fprintf(stderr, "batch: %s\n", events[i].error), failed = 1;
            if (events[i].kind != HEADS_TOKEN || events[i].len == 0) continue;
            char *text = texts[events[i].request];
            size_t room = sizeof texts[0] - strlen(text) - 1;
            strncat(text, events[i].text, events[i].len < room ? events[i].len : room);
        }
    }
    for (int i = 0; i < N; i++) printf("%s\n\n", texts[i]);
    heads_batch_free(batch);
    heads_workspace_free(w);
    heads_tokenizer_free(tokenizer);
    heads_model_close(model);
    if (fflush(stdout) != 0 || ferror(stdout)) perror("batch"), failed = 1;
    return failed;
}
