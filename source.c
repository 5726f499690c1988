// What the texts of an encoder-decoder begin with, and the languages that its sources and texts are
// in: tokens that stand at an end of them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"
#include "tokenizer.h"

static bool is_language(const Rules *r, int id) {
    for (size_t i = 0; i < r->languages.n; i++)
        if (r->languages.v[i] == id) return true;
    return false;
}

// The token of a language, named as the tokenizer does: fr_XX, fra_Latn, or fr for __fr__. -1: the
// model has no such language, and *err says which it has.
static int language_token(const Model *model, const Tokenizer *tokenizer, const char *code, int n,
                          Error *err) {
    const Rules *r = &model->rules;
    char known[256] = "", marked[64];
    size_t len, used = 0, n_code = (size_t)n;
    if (!r->languages.n || !tokenizer)
        return fail(err, "the model names no languages that a text could be in");
    int n_marked = snprintf(marked, sizeof marked, "__%.*s__", n, code);
    for (size_t i = 0; i < r->languages.n; i++) {
        const char *text = tokenizer_text(tokenizer, r->languages.v[i], &len);
        if ((len == n_code && memcmp(text, code, len) == 0) ||
            (len == (size_t)n_marked && memcmp(text, marked, len) == 0))
            return r->languages.v[i];
        if (used + len + 8 < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, " %.*s", (int)len, text);
    }
    return fail(err, "the model knows no language \"%.*s\"; it has%s%s", n, code, known,
                r->languages.n > 30 ? " .." : "");
}

int source_language(const Model *model, const Tokenizer *tokenizer, const char *lang, int *ids,
                    long n, Error *err) {
    const char *colon = lang ? strchr(lang, ':') : NULL;
    if (!colon) return 0;
    int id = language_token(model, tokenizer, lang, (int)(colon - lang), err);
    for (long i = 0; id >= 0 && i < n; i++)
        if ((i < 2 || i >= n - 2) && is_language(&model->rules, ids[i])) ids[i] = id;
    return id < 0 ? -1 : 0;
}

long start_tokens(const Model *model, const Tokenizer *tokenizer, const char *lang, int **ids,
                  Error *err) {
    const Rules *r = &model->rules;
    const char *colon = lang ? strchr(lang, ':') : NULL, *code = colon ? colon + 1 : lang;
    int n = (int)r->start.n;
    int id = lang ? language_token(model, tokenizer, code, (int)strlen(code), err) : -1;
    if (lang && id < 0) return -1;
    *ids = calloc((size_t)n + 1, sizeof **ids);
    if (!*ids) return fail(err, "no memory for %d tokens", n + 1);
    if (n) memcpy(*ids, r->start.v, (size_t)n * sizeof **ids);
    if (!lang) return n;
    // The language takes the place of a last one that is there, or stands after the start.
    bool replaces = n > 1 || (n && is_language(r, r->start.v[0]));
    if (!replaces) n++;
    (*ids)[n - 1] = id;
    return n;
}
