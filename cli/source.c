// source.c: what the texts of an encoder-decoder begin with, and the source that they look at.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"

// ---- languages ----

static bool is_language(const Rules *r, int id) {
    for (int i = 0; i < r->n_languages; i++)
        if (r->languages[i] == id) return true;
    return false;
}

// All that the model has, as its tokenizer writes them.
static void refuse_language(const Model *model, const Tokenizer *tokenizer, const char *code) {
    char known[4096] = "";
    size_t len, used = 0;
    const char *text;
    Decoder *d = decoder_new(tokenizer, false, NULL);
    for (int i = 0; d && i < model->rules.n_languages; i++) {
        if (decoder_push(d, model->rules.languages[i], &text, &len, NULL)) break;
        if (used + len + 2 > sizeof known) break;
        used += (size_t)sprintf(known + used, " %.*s", (int)len, text);
    }
    decoder_free(d);
    usage("--lang %s: the model knows no such language; it has%s", code, known);
}

// The token of a language, named as the tokenizer does: fr_XX, fra_Latn, or fr for __fr__.
static int language_token(const Model *model, const Tokenizer *tokenizer, const char *code,
                          int len) {
    char names[2][64];
    snprintf(names[0], sizeof names[0], "%.*s", len, code);
    snprintf(names[1], sizeof names[1], "__%.*s__", len, code);
    for (int i = 0; i < 2; i++) {
        Ids ids = encode(tokenizer, (Text){names[i], strlen(names[i])}, false);
        int id = ids.n == 1 ? ids.data[0] : -1;
        free(ids.data);
        if (is_language(&model->rules, id)) return id;
    }
    refuse_language(model, tokenizer, names[0]);
    return -1;
}

// Of --lang TO or FROM:TO.
static int asked_language(const Options *o, const Model *model, const Tokenizer *tokenizer,
                          bool from) {
    const char *colon = o->lang ? strchr(o->lang, ':') : NULL;
    if (!o->lang || (from && !colon)) return -1;
    if (!model->rules.n_languages || !tokenizer)
        usage("--lang: %s knows no languages", o->models[0]);
    const char *code = from || !colon ? o->lang : colon + 1;
    return language_token(model, tokenizer, code, from ? (int)(colon - code) : (int)strlen(code));
}

void set_source_language(const Options *o, const Model *model, const Tokenizer *tokenizer,
                         Ids ids) {
    int id = asked_language(o, model, tokenizer, true);
    for (long i = 0; id >= 0 && i < ids.n; i++)  // it stands at the beginning or at the end
        if ((i < 2 || i >= ids.n - 2) && is_language(&model->rules, ids.data[i])) ids.data[i] = id;
}

// ---- what a text begins with ----

Ids first_tokens(const Options *o, const Model *model, const Tokenizer *tokenizer) {
    const Rules *r = &model->rules;
    int id = asked_language(o, model, tokenizer, false);
    Ids ids = {allocate((size_t)r->n_start + 1, sizeof *ids.data), r->n_start};
    memcpy(ids.data, r->start, (size_t)r->n_start * sizeof *ids.data);
    if (id < 0) return ids;
    // The language stands in the place of the last that there is, or after the start.
    bool replaces = r->n_start > 1 || is_language(r, r->start[0]);
    if (!replaces) ids.n++;
    ids.data[ids.n - 1] = id;
    return ids;
}

Ids read_prompt(const Options *o, const Tokenizer *tokenizer, Sequence *s, Ids prompt) {
    Error err;
    const Model *model = workspace_model(sequence_workspace(s));
    if (!model->source.n) return prompt;
    int n;
    const int *source = sequence_source(s, &n);
    if (n != prompt.n || memcmp(source, prompt.data, (size_t)n * sizeof *source) != 0) {
        Run run = {.sequence = s, .tokens = prompt.data, .n = (int)prompt.n};
        if (sequence_rewind(s, 0, &err) ||
            read_sources(sequence_workspace(s), &run, 1, &err))
            die("%s", err.text);
    }
    free(prompt.data);
    return o->target ? parse_ids("--target", o->target, model->vocab_size)
                     : first_tokens(o, model, tokenizer);
}

// ---- how it goes on ----

int tokens_to_generate(const Options *o, const Model *model, int n_begin) {
    // What follows the first token counts, as transformers counts it.
    int most = model->rules.most ? model->rules.most - 1 : 256, begun = n_begin > 1 ? n_begin - 1 : 0;
    if (o->n_generate >= 0) most = o->n_generate;
    return most > begun ? most - begun : 0;
}

SamplerOptions sampling_options(const Options *o, const Model *model) {
    SamplerOptions sampling = o->sampler;
    if (model->rules.greedy && !o->samples) sampling.temperature = 0;
    return sampling;
}
