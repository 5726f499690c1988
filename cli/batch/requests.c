#include "cli/batch/requests.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print.h"

// ---- values ----

// A member that is there; null says nothing.
static const Json *given(const Json *object, const char *key) {
    const Json *found = json_get(object, key);
    return found && found->type != JSON_NULL ? found : NULL;
}

static const struct {
    const char *key;
    bool whole;
    size_t field;  // in heads_request
    double min, max;
} NUMBERS[] = {  // with the command line's bounds
    {"max_tokens", true, offsetof(heads_request, max_tokens), 0, 1e9},
    {"max_completion_tokens", true, offsetof(heads_request, max_tokens), 0, 1e9},
    {"temperature", false, offsetof(heads_request, sampler.temperature), 0, 1000},
    {"top_k", true, offsetof(heads_request, sampler.top_k), 0, 1e9},
    {"top_p", false, offsetof(heads_request, sampler.top_p), 1e-6, 1},
    {"min_p", false, offsetof(heads_request, sampler.min_p), 0, 1},
    {"repeat_penalty", false, offsetof(heads_request, sampler.repeat_penalty), 1e-3, 1000},
    {"frequency_penalty", false, offsetof(heads_request, sampler.frequency_penalty), -2, 2},
    {"presence_penalty", false, offsetof(heads_request, sampler.presence_penalty), -2, 2},
};
enum { N_NUMBERS = sizeof NUMBERS / sizeof NUMBERS[0] };

// Whether it is a whole number, *n: which. 64.0 is one, as other programs write it.
static bool is_whole(const Json *value, int64_t *n) {
    if (value->type != JSON_NUMBER) return false;
    double number = value->number;
    *n = value->is_integer ? value->integer : fabs(number) < 0x1p53 ? (int64_t)number : 0;
    return value->is_integer || number == (double)*n;
}

static int set_number(Line *r, int which, const Json *value, heads_error *err) {
    bool whole = NUMBERS[which].whole;
    double min = NUMBERS[which].min, max = NUMBERS[which].max;
    int64_t n = 0;
    bool ok = whole ? is_whole(value, &n) : value->type == JSON_NUMBER;
    if (!ok || value->number < min || value->number > max)
        return fail(err, "\"%s\" has to be a %snumber from %g to %.10g", NUMBERS[which].key,
                    whole ? "whole " : "", min, max);
    void *field = (char *)&r->asked + NUMBERS[which].field;
    if (whole) *(int *)field = (int)n;
    else *(float *)field = (float)value->number;
    return 0;
}

static int set_seed(Line *r, const Json *value, heads_error *err) {
    int64_t seed;
    if (!is_whole(value, &seed) || seed < 0)
        return fail(err, "\"seed\" has to be a whole number from 0 to 2^63 - 1");
    r->asked.sampler.seed = (uint64_t)seed;
    return 0;
}

static int set_id(Line *r, const Json *value, heads_error *err) {
    bool whole = value->type == JSON_NUMBER && value->is_integer;
    if (!whole && value->type != JSON_STRING)
        return fail(err, "\"%s\" has to be a string, or a whole number of 64 bits", value->key);
    text_format(&r->start, "\"%s\": ", value->key);
    if (whole) text_format(&r->start, "%lld", (long long)value->integer);
    else json_quote(&r->start, value->text, value->len);
    text_format(&r->start, ", ");
    return 0;
}

static int set_lang(Line *r, const Json *value, const Defaults *d, heads_error *err) {
    if (!d->program->shape.source_vocab)
        return fail(err, "\"lang\" means nothing here: the model is no encoder-decoder");
    if (value->type != JSON_STRING || strlen(value->text) != value->len)
        return fail(err, "\"lang\" has to be a string: the language to write, or FROM:TO");
    free(r->lang);
    r->lang = copy_of(value->text, value->len);
    return 0;
}

static int set_steers(Line *r, const Json *value, const Defaults *d, heads_error *err) {
    heads_error why;
    if (value->type != JSON_STRING || strlen(value->text) != value->len)
        return fail(err, "\"steer\" has to be a string, FILE or FILE:SCALE, as after --steer");
    heads_free(r->steers.data);
    if (read_steers(&r->steers, d->program->model, value->text, &why))
        return fail(err, "\"steer\": %s", why.text);
    r->asked.steers = r->steers.data;
    r->asked.n_steers = r->steers.n;
    return 0;
}

static int set_stops(Line *r, const Json *value, const Defaults *d, heads_error *err) {
    const Json *first = value->type == JSON_ARRAY ? value->first : value;
    if (!d->program->tokenizer)
        return fail(err, "\"stop\" needs a tokenizer, and the model has none");
    r->stops = allocate(value->type == JSON_ARRAY ? value->n : 1, sizeof *r->stops);
    for (const Json *stop = first; stop; stop = value->type == JSON_ARRAY ? stop->next : NULL) {
        if (stop->type != JSON_STRING || stop->len == 0)
            return fail(err, "\"stop\" has to be a string, or an array of strings, none of them "
                        "empty");
        r->stops[r->asked.n_stops++] = (heads_stop){copy_of(stop->text, stop->len), stop->len};
    }
    return 0;
}

// The adapter of that name, opened once for all requests.
static const OpenedAdapter *adapter_named(const Defaults *d, const char *given, heads_error *err) {
    for (const OpenedAdapter *a = *d->adapters; a; a = a->next)
        if (strcmp(a->given, given) == 0) return a;
    float scale;
    heads_adapter *adapter = open_adapter(d->program->model, given, &scale, err);
    if (!adapter) return NULL;
    OpenedAdapter *opened = allocate(1, sizeof *opened);
    *opened = (OpenedAdapter){*d->adapters, copy_of(given, strlen(given)), adapter, scale};
    return *d->adapters = opened;
}

void close_adapters(OpenedAdapter *a) {
    while (a) {
        OpenedAdapter *next = a->next;
        heads_adapter_close(a->adapter);
        free(a->given);
        free(a);
        a = next;
    }
}

static int set_adapter(Line *r, const Json *value, const Defaults *d, heads_error *err) {
    if (value->type != JSON_STRING || strlen(value->text) != value->len)
        return fail(err, "\"adapter\" has to be a string: FILE or FILE:SCALE, or \"\" for none");
    const OpenedAdapter *a = *value->text ? adapter_named(d, value->text, err) : NULL;
    r->asked.adapter = a && a->scale ? a->adapter : NULL;  // 0 would mean 1 there
    r->asked.adapter_scale = a ? a->scale : 0;
    return *value->text && !a ? -1 : 0;
}

// ---- prompts ----

static int prompt_from_text(Line *r, const Json *text, const Defaults *d, heads_error *err) {
    if (text->type != JSON_STRING) return fail(err, "\"prompt\" has to be a string");
    if (!d->program->tokenizer)
        return fail(err, "the model has no tokenizer; give \"tokens\" instead");
    r->prompt.n =
        heads_encode(d->program->tokenizer, text->text, text->len, true, &r->prompt.data, err);
    return r->prompt.n < 0 ? -1 : 0;
}

static int prompt_from_tokens(Line *r, const Json *tokens, const Defaults *d, heads_error *err) {
    int vocab_size = prompt_vocabulary(d->program);
    if (tokens->type != JSON_ARRAY) return fail(err, "\"tokens\" has to be an array of ids");
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

static int prompt_from_messages(Line *r, const Json *messages, const Defaults *d,
                                heads_error *err) {
    Messages m = {0};
    if (!d->chat) return fail(err, "messages: %s", d->no_chat.text);
    if (!d->program->tokenizer) return fail(err, "messages: there is no tokenizer");
    int status = messages_from_json(&m, messages, err);
    if (!status) r->prompt = conversation_ids(d->program, d->chat, &m, true, err);
    messages_free(&m);
    r->asked.answer = true;
    r->answer_end = end_of_answer(d->program, d->chat);
    return status || r->prompt.n < 0 ? -1 : 0;
}

static int check_prompt(const Line *r, const Defaults *d, heads_error *err) {
    for (long i = 0; i < r->prompt.n; i++)
        if (r->prompt.data[i] >= prompt_vocabulary(d->program))
            return fail(err, "the text has token %d, which the tokenizer knows and the model does "
                        "not", r->prompt.data[i]);
    return 0;
}

static int set_prompt(Line *r, const Json *line, const Defaults *d, heads_error *err) {
    const Json *text = given(line, "prompt"), *tokens = given(line, "tokens");
    const Json *messages = given(line, "messages");
    if (!!text + !!tokens + !!messages != 1)
        return fail(err, "a request has to have one of \"prompt\", \"tokens\" and \"messages\"");
    int status = text     ? prompt_from_text(r, text, d, err)
                 : tokens ? prompt_from_tokens(r, tokens, d, err)
                          : prompt_from_messages(r, messages, d, err);
    return status ? status : check_prompt(r, d, err);
}

// ---- lines ----

static int set_member(Line *r, const Json *value, const Defaults *d, heads_error *err) {
    static const char *const others[] = {"id",     "custom_id", "model",
                                         "prompt", "tokens",    "messages"};
    enum { N_OTHERS = sizeof others / sizeof others[0] };
    if (value->type == JSON_NULL) return 0;
    if (json_has_key(value, "seed")) return set_seed(r, value, err);
    if (json_has_key(value, "stop")) return set_stops(r, value, d, err);
    if (json_has_key(value, "lang")) return set_lang(r, value, d, err);
    if (json_has_key(value, "steer")) return set_steers(r, value, d, err);
    if (json_has_key(value, "adapter")) return set_adapter(r, value, d, err);
    for (int i = 0; i < N_OTHERS; i++)
        if (json_has_key(value, others[i])) return 0;
    for (int i = 0; i < N_NUMBERS; i++)
        if (json_has_key(value, NUMBERS[i].key)) return set_number(r, i, value, err);
    bool zero = strlen(value->key) < value->key_len;
    return fail(err, "unknown key \"%.60s\"%s; a request may have id or custom_id, model, prompt, "
                "tokens, messages, max_tokens, temperature, top_k, top_p, min_p, repeat_penalty, "
                "frequency_penalty, presence_penalty, seed, stop, lang, steer and adapter",
                value->key, zero ? ", with a zero byte" : "");
}

static int set_members(Line *r, const Json *asked, const Defaults *d, heads_error *err) {
    bool answer = given(asked, "messages");
    r->asked.max_tokens = answer ? d->program->o->n_answer : tokens_to_generate(d->program, 0);
    r->asked.sampler = sampling_options(d->program, answer);
    r->asked.steers = d->program->steers.data;
    r->asked.n_steers = d->program->steers.n;
    r->asked.adapter = d->program->adapter_scale ? d->program->adapter : NULL;
    r->asked.adapter_scale = d->program->adapter_scale;
    for (const Json *member = asked->first; member; member = member->next)
        if (set_member(r, member, d, err)) return -1;
    return set_prompt(r, asked, d, err);
}

// A line of OpenAI's batches, whose request is its body: {"custom_id", "method", "url", "body"}.
static int set_body(Line *r, const Json *line, const Json *body, const Defaults *d,
                    heads_error *err) {
    static const char *const around[] = {"id", "custom_id", "method", "url", "body"};
    for (const Json *member = line->first; member; member = member->next) {
        bool known = member->type == JSON_NULL;
        for (int i = 0; i < 5; i++) known |= json_has_key(member, around[i]);
        if (!known) return fail(err, "\"%.60s\" is beside \"body\", not in it", member->key);
    }
    if (body->type != JSON_OBJECT) return fail(err, "\"body\" has to be an object");
    return set_members(r, body, d, err);
}

static int set_all(Line *r, const Json *line, const Defaults *d, heads_error *err) {
    const Json *id = given(line, "id"), *custom = given(line, "custom_id");
    const Json *body = given(line, "body");
    if (line->type != JSON_OBJECT)
        return fail(err, "a request has to be an object, such as {\"prompt\": \"Once\"}");
    if (id && custom) return fail(err, "a request has one of \"id\" and \"custom_id\"");
    if ((id || custom) && set_id(r, id ? id : custom, err)) return -1;
    return body ? set_body(r, line, body, d, err) : set_members(r, line, d, err);
}

// ---- what a result was made by ----

enum { SUM = 8, PART = SUM + 1, PARTS = 3 };  // a sum's digits, and one with what parts it

// FNV-1a. https://datatracker.ietf.org/doc/html/rfc9923
static uint32_t sum_of(const char *data, size_t size) {
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < size; i++) sum = (sum ^ (uint8_t)data[i]) * 16777619u;
    return sum;
}

static void add_sampling(Text *text, heads_sampler_options s) {
    text_format(text, "%.9g %d %.9g %.9g %.9g %" PRIu64 " ", s.temperature, s.top_k, s.top_p,
                s.min_p, s.repeat_penalty, s.seed);
}

void set_maker(Defaults *d) {
    const Program *p = d->program;
    const heads_workspace_options *w = &p->o->workspace;
    Text said = {0};
    add_sampling(&said, sampling_options(p, false));
    add_sampling(&said, sampling_options(p, true));
    if (p->adapter)
        text_format(&said, "%08" PRIx32 " %.9g ", inspect_adapter(p->adapter), p->adapter_scale);
    text_format(&said, "%d %d %d %d %d %s%s%s", tokens_to_generate(p, 0), p->o->n_answer,
                heads_workspace_context(p->w), w->k_type, w->v_type, p->o->lang ? p->o->lang : "",
                p->o->steer ? " " : "", p->o->steer ? p->o->steer : "");
    snprintf(d->maker, sizeof d->maker, "%08" PRIx32 "-%08" PRIx32 "-", p->facts.checksum,
             sum_of(said.data, said.size));
    free(said.data);
}

const char *unlike(const Line *r, Text result) {
    static const char *const why[PARTS] = {
        "was made by another model", "was made with other options", "was made for another request"};
    size_t n = result.size < r->start.size ? result.size : r->start.size, at = r->fingerprint;
    if (memcmp(result.data, r->start.data, n) == 0) return NULL;
    if (n < at + PARTS * PART || memcmp(result.data, r->start.data, at) != 0)
        return "is not the result of the request in that place";
    int part = 0;
    while (part < PARTS - 1 && memcmp(result.data + at, r->start.data + at, SUM) == 0) {
        part++;
        at += PART;
    }
    return why[part];
}

Line read_line(const Defaults *defaults, const char *line, size_t len) {
    const Program *p = defaults->program;
    Line r = {.lang = p->o->lang ? copy_of(p->o->lang, strlen(p->o->lang)) : NULL,
              .answer_end = -1};
    text_add(&r.start, "{", 1);
    heads_error unread;
    const Json *json = parse_json(line, len, &unread);
    if (!json)
        fail(&r.error, "a request has to be a line of JSON, such as {\"prompt\": \"Once\"}; %s",
             unread.text);
    r.wrong = !json || set_all(&r, json, defaults, &r.error);
    json_free(json);
    text_add(&r.start, "\"", 1);
    if (defaults->maker[0]) {
        text_format(&r.start, "fingerprint\": \"");
        r.fingerprint = r.start.size;
        text_format(&r.start, "%s%08" PRIx32 "\", \"", defaults->maker, sum_of(line, len));
    }
    if (p->shape.source_vocab) {  // the prompt is the source
        r.asked.source = r.prompt.data;
        r.asked.n_source = (int)r.prompt.n;
        r.asked.lang = r.lang;
    } else {
        r.asked.ids = r.prompt.data;
        r.asked.n = (int)r.prompt.n;
    }
    r.asked.stops = r.stops;
    return r;
}

void free_line(Line *r) {
    for (int i = 0; i < r->asked.n_stops; i++) free((char *)r->stops[i].text);
    free(r->stops);
    free(r->prompt.data);
    free(r->lang);
    heads_free(r->steers.data);
    free(r->start.data);
}

long add_line(heads_batch *b, Line *r) {
    r->asked.stop_ids = &r->answer_end;
    r->asked.n_stop_ids = r->answer_end >= 0;
    return r->wrong ? -1 : heads_batch_add(b, &r->asked, &r->error);
}
