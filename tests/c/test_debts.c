// What guesses cost a server's texts: each begins with what the ones before it lost, and with
// nothing of what they won. Guesses take the time that this test says, not their own.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library/scheduler.h"

enum { LETTERS = 4, PROMPT = 18, TOKENS = 20, TEXTS = 24 };

static const double PRICE = 0.9;                   // of a guess, in passes
static const double LOST = 0.75, ALLOWED = 0.004;  // tokens, and more of them for each pass
// Every pair of letters: so there is a guess after any letter.
static const int prompt[PROMPT] = {3, 3, 4, 3, 5, 3, 6, 4, 4, 5, 4, 6, 5, 5, 6, 6, 3, 3};
static int words;  // of a mask

static void check(int ok, const char *what) {
    if (ok) return;
    printf("not ok %s\n", what);
    exit(1);
}

// A mask that leaves one token: the guess, or where *context is 0, another letter.
static int one_token(void *context, const int *tokens, int n, uint32_t *bits) {
    int text[PROMPT + TOKENS], id;
    memcpy(text, prompt, sizeof prompt);
    memcpy(text + PROMPT, tokens, sizeof *tokens * (size_t)n);
    check(heads_lookup(text, PROMPT + n, 1, &id) == 1, "there is no guess");
    if (!*(const int *)context) id = 3 + (id - 3 + 1) % LETTERS;
    memset(bits, 0, sizeof *bits * (size_t)words);
    bits[id / 32] = 1u << id % 32;
    return 0;
}

// Runs a text; returns the guesses that were made for it.
static int run_text(heads_batch *b, double price, int right) {
    heads_error err;
    const heads_event *events;
    size_t before = b->drafted;
    heads_request request = {.ids = prompt, .n = PROMPT, .max_tokens = TOKENS, .lookup = 3,
                             .mask = one_token, .mask_context = &right};
    check(heads_batch_add(b, &request, &err) >= 0, "heads_batch_add");
    while (heads_batch_count(b).waiting + heads_batch_count(b).running) {
        b->costs[1] = (GuessCost){.pass = 1, .each = price, .passes = 3, .samples = 10};
        int n = heads_batch_step(b, &events, &err);
        for (int i = 0; i < n; i++) check(events[i].kind != HEADS_FAILED, "a text failed");
    }
    return (int)(b->drafted - before);
}

int main(void) {
    heads_error err;
    heads_model *model = heads_model_open("models/stories.bin", &err);
    check(model != NULL, "models/stories.bin");
    words = (heads_model_shape(model).vocab_size + 31) / 32;
    heads_workspace *w = heads_workspace_new(model, NULL, &err);
    heads_batch *b = w ? heads_batch_new(w, NULL, &err) : NULL;
    check(b != NULL, "heads_batch_new");
    check(run_text(b, 0.1, 1) > TOKENS / 2 && b->accepted == b->drafted, "right guesses are made");
    int made = 0, texts = 0;
    for (int i = 0; i < TEXTS; i++) {
        int n = run_text(b, PRICE, 0);
        made += n;
        texts += n > 0;
    }
    double most = 1 + (LOST + ALLOWED * TEXTS * TOKENS) / PRICE;
    printf("%d guesses in %d of %d texts, at most %.2f\n", made, texts, TEXTS, most);
    check(made <= most, "texts lose no more together than one alone");
    check(texts > 1, "a debt that is paid allows a guess again");
    printf("ok debts\n");
    heads_batch_free(b);
    heads_workspace_free(w);
    heads_model_close(model);
    return 0;
}
