#include "requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"
#include "print.h"

// ---- values ----

static const struct {
    const char *key;
    bool whole;
    size_t field;  // in Request
    double min, max;
} NUMBERS[] = {  // with the bounds that the command line has for them
    {"max_tokens", true, offsetof(Request, max_tokens), 0, 1e9},
    {"temperature", false, offsetof(Request, sampler.temperature), 0, 1000},
    {"top_k", true, offsetof(Request, sampler.top_k), 0, 1e9},
    {"top_p", false, offsetof(Request, sampler.top_p), 1e-6, 1},
    {"min_p", false, offsetof(Request, sampler.min_p), 0, 1},
    {"repeat_penalty", false, offsetof(Request, sampler.repeat_penalty), 1e-3, 1000},
};
enum { N_NUMBERS = sizeof NUMBERS / sizeof NUMBERS[0] };

static int set_number(Request *r, int which, const Json *value, Error *err) {
    bool whole = NUMBERS[which].whole;
    double min = NUMBERS[which].min, max = NUMBERS[which].max;
    bool ok = value->type == JSON_NUMBER && (!whole || value->is_integer);
    if (!ok || value->number < min || value->number > max)
        return fail(err, "\"%s\" is a %snumber from %g to %.9g", NUMBERS[which].key,
                    whole ? "whole " : "", min, max);
    void *field = (char *)r + NUMBERS[which].field;
    if (whole) *(int *)field = (int)value->integer;
    else *(float *)field = (float)value->number;
    return 0;
}

static int set_seed(Request *r, const Json *value, Error *err) {
    if (value->type != JSON_NUMBER || !value->is_integer || value->integer < 0)
        return fail(err, "\"seed\" is a whole number from 0 to 2^63 - 1");
    r->sampler.seed = (uint64_t)value->integer;
    return 0;
}

static int set_id(Request *r, const Json *value, Error *err) {
    size_t len;
    int n = -1;
    if (value->type == JSON_STRING) {
        char *id = json_quote(value->text, value->len, &len);
        if (id) n = asprintf(&r->start, "{\"id\": %s, \"", id);
        free(id);
    } else if (value->type == JSON_NUMBER && value->is_integer) {
        n = asprintf(&r->start, "{\"id\": %lld, \"", (long long)value->integer);
    } else {
        return fail(err, "\"id\" is a string, or a whole number of 64 bits");
    }
    if (n < 0) die("no memory for an id");
    return 0;
}

static int set_lang(Request *r, const Json *value, const Defaults *d, Error *err) {
    if (!d->model->source.n)
        return fail(err, "\"lang\" means nothing here: the model is no encoder-decoder");
    if (value->type != JSON_STRING || strlen(value->text) != value->len)
        return fail(err, "\"lang\" is a string: the language to write, or FROM:TO");
    r->lang = value->text;
    return 0;
}

static int set_stops(Request *r, const Json *value, const Defaults *d, Error *err) {
    const Json *first = value->type == JSON_ARRAY ? value->first : value;
    if (!d->tokenizer) return fail(err, "\"stop\" needs a tokenizer, and the model has none");
    r->stops = allocate(value->type == JSON_ARRAY ? value->n : 1, sizeof *r->stops);
    for (const Json *stop = first; stop; stop = value->type == JSON_ARRAY ? stop->next : NULL) {
        if (stop->type != JSON_STRING || stop->len == 0)
            return fail(err, "\"stop\" is a string or an array of strings, none of them empty");
        Text *copy = &r->stops[r->n_stops++];
        *copy = (Text){allocate(stop->len, 1), stop->len};
        memcpy(copy->data, stop->text, stop->len);
    }
    return 0;
}

// ---- prompts ----

static int prompt_from_text(Request *r, const Json *text, const Defaults *d, Error *err) {
    if (text->type != JSON_STRING) return fail(err, "\"prompt\" is a string");
    if (!d->tokenizer) return fail(err, "the model has no tokenizer; give \"tokens\" instead");
    r->prompt.n = tokenizer_encode(d->tokenizer, text->text, text->len, true, &r->prompt.data, err);
    return r->prompt.n < 0 ? -1 : 0;
}

static int prompt_from_tokens(Request *r, const Json *tokens, const Defaults *d, Error *err) {
    int vocab_size = prompt_vocabulary(d->model);
    if (tokens->type != JSON_ARRAY) return fail(err, "\"tokens\" is an array of ids");
    r->prompt.data = allocate(tokens->n, sizeof *r->prompt.data);
    for (const Json *id = tokens->first; id; id = id->next) {
        bool ok = id->type == JSON_NUMBER && id->is_integer;
        if (!ok || id->integer < 0 || id->integer >= vocab_size)
            return fail(err, "\"tokens\": element %ld is no token of this model; its ids are 0 to "
                        "%d", r->prompt.n, vocab_size - 1);
        r->prompt.data[r->prompt.n++] = (int)id->integer;
    }
    return 0;
}

// The one place where a conversation becomes a prompt.
static int prompt_from_messages(Request *r, const Json *messages, const Defaults *d, Error *err) {
    Messages m = {0};
    if (!d->chat) return fail(err, "messages: %s", d->no_chat.text);
    if (!d->tokenizer) return fail(err, "messages: there is no tokenizer");
    int status = messages_from_json(&m, messages, err);
    if (!status) r->prompt = conversation_ids(d->options, d->chat, d->tokenizer, &m, true, err);
    messages_free(&m);
    r->is_chat = true;
    r->answer_end = chat_stop(d->chat, d->tokenizer);
    return status || r->prompt.n < 0 ? -1 : 0;
}

static int check_prompt(const Request *r, const Defaults *d, Error *err) {
    if (r->prompt.n == 0)
        return fail(err, "the prompt is empty, and nothing is put before it");
    if (r->prompt.n > d->context)
        return fail(err, "the prompt has %ld tokens and the context has room for %d", r->prompt.n,
                    d->context);
    for (long i = 0; i < r->prompt.n; i++)
        if (r->prompt.data[i] >= prompt_vocabulary(d->model))
            return fail(err, "the text has token %d, which the tokenizer knows and the model does "
                        "not", r->prompt.data[i]);
    return 0;
}

static int set_prompt(Request *r, const Json *line, const Defaults *d, Error *err) {
    const Json *text = json_get(line, "prompt"), *tokens = json_get(line, "tokens");
    const Json *messages = json_get(line, "messages");
    if (!!text + !!tokens + !!messages != 1)
        return fail(err, "a request has one of \"prompt\", \"tokens\" and \"messages\"");
    int status = text     ? prompt_from_text(r, text, d, err)
                 : tokens ? prompt_from_tokens(r, tokens, d, err)
                          : prompt_from_messages(r, messages, d, err);
    return status ? status : check_prompt(r, d, err);
}

// In a model with an encoder the prompt is what that reads; the text begins as the model wants it.
static int set_target(Request *r, const Defaults *d, Error *err) {
    if (!d->model->source.n) return 0;
    r->source = r->prompt;
    r->prompt = (Ids){0};
    if (source_language(d->model, d->tokenizer, r->lang, r->source.data, r->source.n, err))
        return -1;
    r->prompt.n = start_tokens(d->model, d->tokenizer, r->lang, &r->prompt.data, err);
    if (r->prompt.n < 0) return -1;
    int n = (int)r->prompt.n, room = d->context + 1 - n;
    r->max_tokens = r->max_tokens > n - 1 ? r->max_tokens - (n - 1) : 0;
    if (r->max_tokens > room) r->max_tokens = room;
    r->sampler.most = n + r->max_tokens;
    return 0;
}

// ---- lines ----

static int set_member(Request *r, const Json *value, const Defaults *d, Error *err) {
    static const char *const others[] = {"id", "prompt", "tokens", "messages"};
    if (strcmp(value->key, "seed") == 0) return set_seed(r, value, err);
    if (strcmp(value->key, "stop") == 0) return set_stops(r, value, d, err);
    if (strcmp(value->key, "lang") == 0) return set_lang(r, value, d, err);
    for (int i = 0; i < 4; i++)
        if (strcmp(value->key, others[i]) == 0) return 0;
    for (int i = 0; i < N_NUMBERS; i++)
        if (strcmp(value->key, NUMBERS[i].key) == 0) return set_number(r, i, value, err);
    return fail(err, "unknown key \"%.60s\"", value->key);
}

static int set_all(Request *r, const Json *line, const Defaults *d, Error *err) {
    const Json *id = json_get(line, "id");
    if (line->type != JSON_OBJECT) return fail(err, "a request is an object");
    if (id && set_id(r, id, err)) return -1;
    for (const Json *member = line->first; member; member = member->next)
        if (set_member(r, member, d, err)) return -1;
    return set_prompt(r, line, d, err) || set_target(r, d, err) ? -1 : 0;
}

Request read_request(const Defaults *defaults, const char *line, size_t len) {
    Error err;
    const Options *o = defaults->options;
    Request r = {.lang = o->lang, .max_tokens = tokens_to_generate(o, defaults->model, 0),
                 .sampler = sampling_options(o, defaults->model), .answer_end = -1};
    const Json *json = json_parse(line, len, &err);
    if (!json || set_all(&r, json, defaults, &err)) r.error = strdup(err.text);
    json_free(json);
    if (!r.start && !(r.start = strdup("{\""))) die("no memory for a request");
    return r;
}

void free_request(Request *r) {
    for (int i = 0; i < r->n_stops; i++) free(r->stops[i].data);
    free(r->stops);
    free(r->prompt.data);
    free(r->source.data);
    free(r->start);
    free(r->error);
}
