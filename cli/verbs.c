#include "verbs.h"

#include "generate.h"
#include "mask.h"
#include "print.h"
#include "probs.h"

// Goes on with a prompt as its model can: fills masks, or generates; or gives the probabilities of
// the prompt's own tokens.
static int continue_prompt(const Options *o) {
    Program p;
    open_program(&p, o, o->models[0], WITH_TOKENIZER);
    if (p.shape.encoder) return fill_masks(&p);
    if (o->probs && o->n_generate == 0) return prompt_probabilities(&p);
    return generate(&p);
}

static const struct {
    Verb verb;
    int (*run)(const Options *options);
} VERBS[] = {
    {GENERATE, continue_prompt}, {CHAT, chat}, {BATCH, batch},
    {LOGITS, show_passes}, {HIDDEN, show_passes}, {HEADS, show_passes}, {LENS, show_passes},
    {PPL, perplexity},
    {EMBED, embed_texts}, {SIMILAR, similar}, {CLASSIFY, classify_texts}, {RANK, rank_lines},
    {PATCH, patch}, {ATTRIBUTE, attribute}, {DISSECT, parts},
    {EXPERIMENT, experiment}, {VERIFY, verify},
    {KV, kv}, {INFO, info}, {CHECK, check}, {TOKENIZE, tokenize}, {BENCH, bench},
};

int run_verb(const Options *options) {
    int i = 0;
    while (VERBS[i].verb != options->verb) i++;
    int status = VERBS[i].run(options);
    write_out("", 0);
    return status;
}
