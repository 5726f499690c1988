#include "languages.h"

#include <stdlib.h>
#include <string.h>

#include "print.h"

void set_source_language(const Program *p, Ids ids) {
    heads_error err;
    if (heads_source_language(p->model, p->tokenizer, p->o->lang, ids.data, ids.n, &err))
        usage("--lang: %s", err.text);
}

Ids first_tokens(const Program *p) {
    heads_error err;
    Ids ids;
    ids.n = heads_start_tokens(p->model, p->tokenizer, p->o->lang, &ids.data, &err);
    if (ids.n < 0) usage("--lang: %s", err.text);
    return ids;
}

Ids read_prompt(const Program *p, heads_sequence *s, Ids prompt) {
    heads_error err;
    int n;
    const int *source = heads_sequence_source(s, &n);
    if (!p->shape.source_vocab) return prompt;
    if (n != prompt.n || memcmp(source, prompt.data, (size_t)n * sizeof *source) != 0) {
        heads_run run = {.sequence = s, .tokens = prompt.data, .n = (int)prompt.n};
        if (heads_sequence_rewind(s, 0, &err) || heads_read_sources(p->w, &run, 1, &err))
            die("%s", err.text);
    }
    free(prompt.data);
    return p->o->target ? parse_ids("--target", p->o->target, p->shape.vocab_size)
                        : first_tokens(p);
}

int target_length(const Program *p, int n_begin, heads_sampler_options *sampling) {
    int room = heads_workspace_context(p->w) + 1 - n_begin;
    int most = tokens_to_generate(p, n_begin);
    if (most > room) most = room;
    sampling->most = n_begin + most;
    return most;
}
