// Encoder-decoders: the first tokens of a text, and the tokens at an end of a text or a source that
// name its language.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "tokenizer.h"

static bool is_language(const Rules *r, int id) {
    for (size_t i = 0; i < r->languages.n; i++)
        if (r->languages.v[i] == id) return true;
    return false;
}

// Whether a token's text is a language's code, alone or as __code__.
static bool names_language(const char *text, size_t len, const char *code, size_t n) {
    if (len == n + 4 && memcmp(text, "__", 2) == 0 && memcmp(text + 2 + n, "__", 2) == 0)
        text += 2, len = n;
    return len == n && memcmp(text, code, n) == 0;
}

// The token of a language, as the tokenizer names it: fr_XX, fra_Latn, or fr for __fr__. -1: the
// model has no such language, and *err says which it has.
static int language_token(const Model *model, const Tokenizer *tokenizer, const char *code, int n,
                          Error *err) {
    const Rules *r = &model->rules;
    char known[256] = "";
    size_t len, used = 0;
    bool all = true;
    if (!r->languages.n)
        return fail(err, "the model names no languages that a text could be in");
    if (need(tokenizer, "a tokenizer", err)) return -1;
    for (size_t i = 0; i < r->languages.n; i++) {
        const char *text = tokenizer_text(tokenizer, r->languages.v[i], &len);
        if (names_language(text, len, code, (size_t)n)) return r->languages.v[i];
        all = all && used + len + 1 < sizeof known;
        if (all)
            used += (size_t)snprintf(known + used, sizeof known - used, " %.*s", (int)len, text);
    }
    return fail(err, "the model knows no language \"%.*s\"; it has%s%s", n, code, known,
                all ? "" : " ..");
}

int heads_source_language(const Model *model, const Tokenizer *tokenizer, const char *lang,
                          int *ids, long n, Error *err) {
    const char *colon = lang ? strchr(lang, ':') : NULL;
    if (need(model, "a model", err) || (n && need(ids, "ids", err))) return -1;
    if (!colon) return 0;
    int id = language_token(model, tokenizer, lang, (int)(colon - lang), err);
    for (long i = 0; id >= 0 && i < n; i++)
        if ((i < 2 || i >= n - 2) && is_language(&model->rules, ids[i])) ids[i] = id;
    return id < 0 ? -1 : 0;
}

long heads_start_tokens(const Model *model, const Tokenizer *tokenizer, const char *lang,
                        int **ids, Error *err) {
    if (need(ids, "room for ids", err)) return -1;
    *ids = NULL;
    if (need(model, "a model", err)) return -1;
    const Rules *r = &model->rules;
    const char *colon = lang ? strchr(lang, ':') : NULL, *code = colon ? colon + 1 : lang;
    int n = (int)r->start.n;
    int id = lang ? language_token(model, tokenizer, code, (int)strlen(code), err) : -1;
    if (lang && id < 0) return -1;
    *ids = calloc((size_t)n + 1, sizeof **ids);
    if (!*ids) return fail(err, "no memory for %d tokens", n + 1);
    if (n) memcpy(*ids, r->start.v, (size_t)n * sizeof **ids);
    if (!lang) return n;
    // The language replaces the last start token. A single start token that is no language stays.
    bool replaces = n > 1 || (n && is_language(r, r->start.v[0]));
    if (!replaces) n++;
    (*ids)[n - 1] = id;
    return n;
}
