// A batch in C: two requests of one prompt, of which one may use even ids alone. Prints "ok".
//   mask MODEL
#include <stdio.h>

#include "heads.h"

static int only_even(void *context, const int *tokens, int n, uint32_t *bits) {
    int words = *(const int *)context;
    for (int i = 0; i < words; i++) bits[i] &= 0x55555555u;
    return n > 0 && tokens[n - 1] % 2;  // what was picked before was even too
}

int main(int argc, char **argv) {
    heads_error err = {"usage: mask MODEL"};
    heads_model *model = argc > 1 ? heads_model_open(argv[1], &err) : NULL;
    heads_workspace *w = model ? heads_workspace_new(model, NULL, &err) : NULL;
    heads_batch *b = w ? heads_batch_new(w, NULL, &err) : NULL;
    int ids[] = {5, 6, 7}, words = model ? (heads_model_shape(model).vocab_size + 31) / 32 : 0;
    heads_request request = {.ids = ids, .n = 3, .max_tokens = 30};
    request.sampler = (heads_sampler_options){.temperature = 2, .seed = 4};
    long free_one = heads_batch_add(b, &request, &err), odd[2] = {0, 0}, n_tokens = 0;
    request.mask = only_even;
    request.mask_context = &words;
    if (heads_batch_add(b, &request, &err) < 0) printf("not ok: %s\n", err.text);
    for (heads_batch_counts left = {0}; left = heads_batch_count(b), left.waiting + left.running;) {
        const heads_event *event;
        for (int n = heads_batch_step(b, &event, &err); n > 0; n--, event++) {
            if (event->kind == HEADS_FAILED) printf("not ok: %s\n", event->error);
            if (event->kind != HEADS_TOKEN) continue;
            odd[event->request != free_one] += event->id % 2;
            n_tokens++;
        }
    }
    puts(n_tokens == 60 && odd[0] && !odd[1] ? "ok" : "not ok: an odd token, or too few");
    heads_batch_free(b);
    heads_workspace_free(w);
    heads_model_close(model);
    return 0;
}
