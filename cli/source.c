// source.c: models that read one text and write another.
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"

void set_source_language(const Options *o, const Model *model, const Tokenizer *tokenizer,
                         Ids ids) {
    Error err;
    if (source_language(model, tokenizer, o->lang, ids.data, ids.n, &err))
        usage("--lang: %s", err.text);
}

Ids first_tokens(const Options *o, const Model *model, const Tokenizer *tokenizer) {
    Error err;
    Ids ids;
    ids.n = start_tokens(model, tokenizer, o->lang, &ids.data, &err);
    if (ids.n < 0) usage("--lang: %s", err.text);
    return ids;
}

Ids read_prompt(const Options *o, const Tokenizer *tokenizer, Sequence *s, Ids prompt) {
    Error err;
    Workspace *w = sequence_workspace(s);
    const Model *model = workspace_model(w);
    int n;
    const int *source = sequence_source(s, &n);
    if (!model->source.n) return prompt;
    if (n != prompt.n || memcmp(source, prompt.data, (size_t)n * sizeof *source) != 0) {
        Run run = {.sequence = s, .tokens = prompt.data, .n = (int)prompt.n};
        if (sequence_rewind(s, 0, &err) || read_sources(w, &run, 1, &err)) die("%s", err.text);
    }
    free(prompt.data);
    return o->target ? parse_ids("--target", o->target, model->vocab_size)
                     : first_tokens(o, model, tokenizer);
}

int tokens_to_generate(const Options *o, const Model *model, int n_begin) {
    // What follows the first token counts, as transformers counts it.
    int most = model->rules.most ? model->rules.most - 1 : 256;
    int begun = n_begin > 1 ? n_begin - 1 : 0;
    if (o->n_generate >= 0) most = o->n_generate;
    return most > begun ? most - begun : 0;
}

SamplerOptions sampling_options(const Options *o, const Model *model) {
    SamplerOptions sampling = o->sampler;
    if (model->rules.greedy && !o->samples) sampling.temperature = 0;
    return sampling;
}
