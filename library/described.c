#include "library/described.h"

#include <stdlib.h>
#include <string.h>

#include "text/grow.h"

static const char *const METRICS[] = {"difference", "log_probability", "kl"};
static const char *const KV[] = {"f16", "f32", "q8", "q4"};  // by heads_type
enum { N_METRICS = 3, N_KV = 4, MOST_TOKENS = 1 << 16 };

// ---- reading ----

typedef struct {  // what is wrong stands at a place, such as steer[2].layer
    Described *d;
    const Model *m;
    heads_tokenizer *tokenizer;  // made when a text first needs it
    char place[64];
    Error *err;
} Reading;

static int wrong(const Reading *r, const char *what) {
    return fail(r->err, "the experiment's \"%s\": %s", r->place, what);
}

static void at_place(Reading *r, const char *name) {
    r->place[0] = 0;
    text_append(r->place, sizeof r->place, "%s", name);
}

static int check_keys(const Reading *r, const Json *object, const char *const *names, int n) {
    if (object->type != JSON_OBJECT) return wrong(r, "expected an object");
    for (const Json *v = object->first; v; v = v->next) {
        int i = 0;
        while (i < n && !json_has_key(v, names[i])) i++;
        if (i == n)
            return fail(r->err, "the experiment%s%s has a key \"%.40s\", which means nothing",
                        r->place[0] ? "'s " : "", r->place, v->key);
    }
    return 0;
}

static bool is_null(const Json *v) { return !v || v->type == JSON_NULL; }

static int take_int(const Reading *r, const Json *v, int least, int most, int *out) {
    if (v->type != JSON_NUMBER || !v->is_integer || v->integer < least || v->integer > most)
        return fail(r->err, "the experiment's \"%s\": expected a whole number from %d to %d",
                    r->place, least, most);
    *out = (int)v->integer;
    return 0;
}

static int take_float(const Reading *r, const Json *v, float *out) {
    if (v->type != JSON_NUMBER) return wrong(r, "expected a number");
    *out = (float)v->number;
    return *out - *out == 0.0f ? 0 : wrong(r, "a number that no float holds");
}

static int take_word(const Reading *r, const Json *v, const char *const *words, int n, int *out) {
    for (*out = 0; v->type == JSON_STRING && *out < n; ++*out)
        if (strcmp(v->text, words[*out]) == 0) return 0;
    char all[80] = "";
    for (int i = 0; i < n; i++)
        text_append(all, sizeof all, "%s%s", i ? ", " : "", words[i]);
    return fail(r->err, "the experiment's \"%s\": expected one of %s", r->place, all);
}

// The ids of a text, or a list of them; *ids is to free.
static int take_ids(Reading *r, const Json *v, bool special, int **ids, int *n) {
    if (v->type == JSON_STRING) {
        if (!r->tokenizer && !(r->tokenizer = heads_tokenizer_new(r->m, r->err))) return -1;
        long count = heads_encode(r->tokenizer, v->text, v->len, special, ids, r->err);
        if (count > MOST_TOKENS) return wrong(r, "more than 65536 tokens");
        *n = (int)count;
        return count < 0 ? -1 : count ? 0 : wrong(r, "it has no tokens");
    }
    if (v->type != JSON_ARRAY || !v->n || v->n > MOST_TOKENS)
        return wrong(r, "expected a text, or a list of 1 to 65536 ids");
    if (!(*ids = malloc(v->n * sizeof **ids))) return wrong(r, "no memory");
    *n = (int)v->n;
    int i = 0;
    for (const Json *id = v->first; id; id = id->next, i++)
        if (take_int(r, id, 0, r->m->vocab_size - 1, &(*ids)[i])) return -1;
    return 0;
}

// An id, or the text of one token.
static int take_token(Reading *r, const Json *v, int *id) {
    if (v->type == JSON_NUMBER) return take_int(r, v, 0, r->m->vocab_size - 1, id);
    int *ids = NULL, n = 0;
    int failed = v->type != JSON_STRING ? wrong(r, "expected an id, or the text of one token")
                                        : take_ids(r, v, false, &ids, &n);
    if (!failed && n != 1)
        failed = fail(r->err, "the experiment's \"%s\": \"%.40s\" is %d tokens; give one, or its "
                      "id", r->place, v->text, n);
    if (!failed) *id = ids[0];
    free(ids);
    return failed;
}

static int take_model(Reading *r, const Json *v) {
    char *end;
    if (v->type != JSON_STRING || v->len != 8 || strspn(v->text, "0123456789abcdef") != 8)
        return wrong(r, "expected the checkpoint's checksum, 8 hexadecimal digits in quotes");
    r->d->model = (uint32_t)strtoul(v->text, &end, 16);
    r->d->names_model = true;
    return 0;
}

static int take_kv(Reading *r, const Json *v) {
    const Json *both[] = {v, v};
    if (v->type == JSON_ARRAY && v->n == 2) both[0] = v->first, both[1] = v->first->next;
    for (int i = 0; i < 2; i++) {
        int type = 0;
        if (take_word(r, both[i], KV, N_KV, &type)) return -1;
        r->d->kv[i] = (heads_type)type;
    }
    return 0;
}

static int take_off(Reading *r, const Json *v) {
    if (v->type != JSON_STRING) return wrong(r, "expected heads in quotes, such as \"5.3,7.*\"");
    r->d->changes.off = v->text;
    return 0;
}

static int take_vector(Reading *r, const Json *v, heads_steer *steer) {
    static const char *const keys[] = {"layer", "scale", "vector"};
    if (check_keys(r, v, keys, 3)) return -1;
    const Json *layer = json_get(v, "layer"), *scale = json_get(v, "scale");
    const Json *vector = json_get(v, "vector");
    size_t n = (size_t)r->m->n_embd;
    if (!layer || !vector) return wrong(r, "expected a \"layer\" and a \"vector\"");
    if (take_int(r, layer, 0, r->m->n_layers - 1, &steer->layer)) return -1;
    if (scale && take_float(r, scale, &steer->scale)) return -1;
    if (vector->type != JSON_ARRAY || vector->n != n)
        return fail(r->err, "the experiment's \"%s\": its vector has %zu numbers, and the model's "
                    "stream %zu", r->place, vector->n, n);
    float *to = r->d->vectors + n * (size_t)r->d->changes.n_steers;
    steer->vector = to;
    for (const Json *x = vector->first; x; x = x->next)
        if (take_float(r, x, to++)) return -1;
    return 0;
}

static int take_steer(Reading *r, const Json *v) {
    Described *d = r->d;
    if (v->type != JSON_ARRAY || v->n > 1000) return wrong(r, "expected a list of vectors");
    d->steers = calloc(v->n + 1, sizeof *d->steers);
    d->vectors = calloc(v->n * (size_t)r->m->n_embd + 1, sizeof *d->vectors);
    if (!d->steers || !d->vectors) return wrong(r, "no memory");
    for (const Json *one = v->first; one; one = one->next) {
        at_place(r, "");
        text_append(r->place, sizeof r->place, "steer[%d]", d->changes.n_steers);
        heads_steer *steer = &d->steers[d->changes.n_steers];
        *steer = (heads_steer){.scale = 1};
        if (take_vector(r, one, steer)) return -1;
        d->changes.n_steers++;
    }
    d->changes.steers = d->steers;
    return 0;
}

static int take_place(Reading *r, const Json *v, Place *p) {
    static const char *const keys[] = {"layer", "head", "position"};
    if (check_keys(r, v, keys, 3)) return -1;
    const Json *layer = json_get(v, "layer"), *head = json_get(v, "head");
    const Json *position = json_get(v, "position");
    if (!layer || !position) return wrong(r, "expected a \"layer\" and a \"position\"");
    p->head = -1;
    if (take_int(r, layer, 0, r->m->n_layers - 1, &p->layer)) return -1;
    int n_heads = heads_of_layer(&r->m->layers[p->layer]);
    if (!is_null(head) && take_int(r, head, 0, n_heads - 1, &p->head)) return -1;
    return take_int(r, position, 0, r->d->n - 1, &p->position);
}

static int by_place(const void *a, const void *b) {
    const Place *x = a, *y = b;
    if (x->layer != y->layer) return x->layer - y->layer;
    return x->head != y->head ? x->head - y->head : x->position - y->position;
}

static int take_patch(Reading *r, const Json *v) {
    static const char *const words[] = {"heads", "layers"};
    Described *d = r->d;
    if (v->type == JSON_STRING) {
        if (take_word(r, v, words, 2, &d->patch)) return -1;
        d->patch += PATCH_HEADS;
        return 0;
    }
    if (v->type != JSON_ARRAY || !v->n || v->n > MOST_TOKENS)
        return wrong(r, "expected \"heads\", \"layers\" or a list of places");
    d->patch = PATCH_PLACES;
    if (!(d->places = calloc(v->n, sizeof *d->places))) return wrong(r, "no memory");
    for (const Json *one = v->first; one; one = one->next) {
        at_place(r, "");
        text_append(r->place, sizeof r->place, "patch[%d]", d->n_places);
        if (take_place(r, one, &d->places[d->n_places++])) return -1;
    }
    qsort(d->places, (size_t)d->n_places, sizeof *d->places, by_place);
    int n = 1;
    for (int i = 1; i < d->n_places; i++)
        if (by_place(&d->places[i], &d->places[n - 1])) d->places[n++] = d->places[i];
    d->n_places = n;
    return 0;
}

static int take_sampler(Reading *r, const Json *v) {
    static const char *const keys[] = {"max_tokens", "temperature", "top_k", "top_p", "min_p",
                                       "repeat_penalty", "repeat_last", "frequency_penalty",
                                       "presence_penalty", "seed"};
    heads_sampler_options *o = &r->d->sampler;
    float *floats[] = {NULL, &o->temperature, NULL, &o->top_p, &o->min_p, &o->repeat_penalty, NULL,
                       &o->frequency_penalty, &o->presence_penalty, NULL};
    if (check_keys(r, v, keys, 10)) return -1;
    r->d->samples = true;
    r->d->max_tokens = 16;
    for (int i = 0; i < 10; i++) {
        const Json *one = json_get(v, keys[i]);
        at_place(r, "sampler.");
        text_append(r->place, sizeof r->place, "%s", keys[i]);
        if (is_null(one)) continue;
        if (i == 9 && (one->type != JSON_NUMBER || !one->is_integer || one->integer < 0))
            return wrong(r, "expected a whole number from 0 on");
        if (i == 9) o->seed = (uint64_t)one->integer;
        else if (floats[i] ? take_float(r, one, floats[i])
                           : take_int(r, one, i == 0, MOST_TOKENS,
                                      i == 0 ? &r->d->max_tokens : i == 2 ? &o->top_k
                                                                          : &o->repeat_last))
            return -1;
    }
    return 0;
}

static int take_text(Reading *r, const Json *v) {
    return take_ids(r, v, true, &r->d->ids, &r->d->n);
}

static int take_corrupted(Reading *r, const Json *v) {
    return take_ids(r, v, true, &r->d->corrupted, &r->d->n_corrupted);
}

static int take_metric(Reading *r, const Json *v) {
    int metric;
    if (take_word(r, v, METRICS, N_METRICS, &metric)) return -1;
    r->d->metric = (heads_metric)metric;
    r->d->measures = true;
    return 0;
}

static int take_answer(Reading *r, const Json *v) { return take_token(r, v, &r->d->answer); }
static int take_against(Reading *r, const Json *v) { return take_token(r, v, &r->d->against); }

static int take_attribute(Reading *r, const Json *v) {
    if (v->type != JSON_BOOL) return wrong(r, "expected true or false");
    r->d->attribute = v->boolean;
    return 0;
}

static int take_version(Reading *r, const Json *v) {
    int version;
    return take_int(r, v, 1, 1, &version);
}

static const struct {
    const char *name;
    int (*take)(Reading *r, const Json *v);
} KEYS[] = {  // places of patches are read after the text
    {"version", take_version}, {"model", take_model}, {"kv", take_kv}, {"text", take_text},
    {"corrupted", take_corrupted}, {"off", take_off}, {"steer", take_steer},
    {"patch", take_patch}, {"metric", take_metric}, {"answer", take_answer},
    {"against", take_against}, {"attribute", take_attribute}, {"sampler", take_sampler}};
enum { N_KEYS = sizeof KEYS / sizeof *KEYS };

// What must stand beside what.
static int check_whole(const Reading *r) {
    const Described *d = r->d;
    if (d->patch && d->n != d->n_corrupted)
        return fail(r->err, "the experiment's \"patch\" needs a \"corrupted\" text with as many "
                    "tokens as \"text\": they have %d and %d", d->n_corrupted, d->n);
    if (!d->measures && !d->attribute && !d->samples)
        return fail(r->err, "the experiment asks for nothing: give \"answer\" or \"metric\", "
                    "\"attribute\" or \"sampler\"");
    if (d->measures && d->metric != HEADS_KL && d->answer < 0)
        return fail(r->err, "the experiment's \"metric\" needs \"answer\"");
    if (d->measures && d->metric == HEADS_DIFFERENCE && d->against < 0)
        return fail(r->err, "the experiment's \"metric\", a difference, needs \"against\"");
    if (d->measures && d->metric == HEADS_KL && !d->n_corrupted)
        return fail(r->err, "the experiment's \"metric\" kl needs a \"corrupted\" text");
    if (d->attribute && d->answer < 0)
        return fail(r->err, "the experiment's \"attribute\" needs \"answer\"");
    return 0;
}

int read_description(Described *d, const Model *m, const Json *root, Error *err) {
    const char *names[N_KEYS];
    *d = (Described){.answer = -1, .against = -1};
    Reading r = {.d = d, .m = m, .err = err};
    for (int i = 0; i < N_KEYS; i++) names[i] = KEYS[i].name;
    int failed = root->type != JSON_OBJECT ? fail(err, "an experiment is a JSON object, {..}")
                                           : check_keys(&r, root, names, N_KEYS);
    if (!failed && is_null(json_get(root, "text")))
        failed = fail(err, "the experiment has no \"text\"");
    for (int i = 0; !failed && i < N_KEYS; i++) {
        const Json *v = json_get(root, names[i]);
        at_place(&r, names[i]);
        if (!is_null(v)) failed = KEYS[i].take(&r, v);
    }
    heads_tokenizer_free(r.tokenizer);
    if (d->answer >= 0 && !d->attribute) d->measures = true;
    if (d->patch == PATCH_HEADS || d->patch == PATCH_LAYERS) d->measures = true;
    return failed || check_whole(&r) ? -1 : 0;
}

void described_free(Described *d) {
    free(d->ids);
    free(d->corrupted);
    free(d->steers);
    free(d->vectors);
    free(d->places);
}

int check_model(const Described *d, const Model *m, Error *err) {
    uint32_t crc = checkpoint_crc(&m->file);
    if (!d->names_model || d->model == crc) return 0;
    return fail(err, "the experiment is of a model with the checksum %08x, and this one has %08x",
                (unsigned)d->model, (unsigned)crc);
}

// ---- writing ----

typedef struct {
    char *text;
    size_t text_room, n;
    bool full;  // no memory; what is added is lost
} Out;

static void add(Out *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(Out *out, const char *format, ...) {
    va_list args;
    char piece[256];
    va_start(args, format);
    int n = write_plain(piece, sizeof piece, format, args);
    va_end(args);
    if (!RESERVE(out, text, out->n + (size_t)n + 1)) out->full = true;
    if (out->full) return;
    memcpy(out->text + out->n, piece, (size_t)n + 1);
    out->n += (size_t)n;
}

static void add_word(Out *out, uint32_t word, bool is_float) {
    float x;
    memcpy(&x, &word, sizeof x);
    if (!is_float) add(out, "%d", (int)word);
    else if (x - x != 0.0f) add(out, "null");
    else add(out, "%.9g", (double)x);
}

static const uint32_t *add_array(Out *out, const uint32_t *words, const int *lengths, int dims,
                                 bool floats) {
    add(out, "[");
    for (int i = 0; i < lengths[0]; i++) {
        if (i) add(out, ", ");
        if (dims > 1) words = add_array(out, words, lengths + 1, dims - 1, floats);
        else add_word(out, *words++, floats);
    }
    add(out, "]");
    return words;
}

static const Record *record_of(const Records *r, const char *name) {
    const Record *one = r->list;
    while (strcmp(one->name, name) != 0) one++;
    return one;
}

static void add_record(Out *out, const Record *r) {
    add_array(out, r->words, r->lengths, r->dims, r->floats);
}

static void add_off(Out *out, const Record *off) {
    if (off->n) add(out, ",\n  \"off\": \"");
    for (size_t i = 0; i < off->n; i += 2)
        add(out, "%s%d.%d", i ? "," : "", (int)off->words[i], (int)off->words[i + 1]);
    if (off->n) add(out, "\"");
}

static void add_steering(Out *out, const Record *layers, const Record *vectors) {
    const uint32_t *words = vectors->words;
    if (layers->n) add(out, ",\n  \"steer\": [");
    for (size_t i = 0; i < layers->n; i++) {
        add(out, "%s{\"layer\": %d, \"vector\": ", i ? ",\n   " : "", (int)layers->words[i]);
        words = add_array(out, words, vectors->lengths + 1, 1, true);
        add(out, "}");
    }
    if (layers->n) add(out, "]");
}

static void add_patches(Out *out, const Described *d) {
    if (d->patch == PATCH_HEADS) add(out, ",\n  \"patch\": \"heads\"");
    if (d->patch == PATCH_LAYERS) add(out, ",\n  \"patch\": \"layers\"");
    if (d->patch == PATCH_PLACES) add(out, ",\n  \"patch\": [");
    for (int i = 0; i < d->n_places; i++) {
        const Place *p = &d->places[i];
        add(out, "%s{\"layer\": %d, ", i ? ",\n   " : "", p->layer);
        if (p->head >= 0) add(out, "\"head\": %d, ", p->head);
        add(out, "\"position\": %d}", p->position);
    }
    if (d->patch == PATCH_PLACES) add(out, "]");
}

static void add_sampler(Out *out, const Described *d) {
    const heads_sampler_options *o = &d->sampler;
    if (!d->samples) return;
    add(out, ",\n  \"sampler\": {\"max_tokens\": %d, \"temperature\": %.9g, \"top_k\": %d, "
        "\"top_p\": %.9g, \"min_p\": %.9g", d->max_tokens, (double)o->temperature, o->top_k,
        (double)o->top_p, (double)o->min_p);
    add(out, ", \"repeat_penalty\": %.9g, \"repeat_last\": %d, \"frequency_penalty\": %.9g, "
        "\"presence_penalty\": %.9g, \"seed\": %llu}", (double)o->repeat_penalty, o->repeat_last,
        (double)o->frequency_penalty, (double)o->presence_penalty, (unsigned long long)o->seed);
}

static void add_description(Out *out, const Described *d, const Records *r) {
    add(out, "{\"experiment\": {\n  \"version\": 1, \"model\": \"%08x\", \"kv\": [\"%s\", \"%s\"]",
        (unsigned)record_of(r, "model")->words[0], KV[d->kv[0]], KV[d->kv[1]]);
    add(out, ",\n  \"text\": ");
    add_record(out, record_of(r, "text"));
    if (d->n_corrupted) {
        add(out, ",\n  \"corrupted\": ");
        add_record(out, record_of(r, "corrupted"));
    }
    add_off(out, record_of(r, "off"));
    add_steering(out, record_of(r, "steer.layers"), record_of(r, "steer.vectors"));
    add_patches(out, d);
    if (d->measures) add(out, ",\n  \"metric\": \"%s\"", METRICS[d->metric]);
    if (d->answer >= 0) add(out, ",\n  \"answer\": %d", d->answer);
    if (d->against >= 0) add(out, ",\n  \"against\": %d", d->against);
    if (d->attribute) add(out, ",\n  \"attribute\": true");
    add_sampler(out, d);
    add(out, "}");
}

char *write_result(const Described *d, const Records *description, const Records *results,
                   const char *described, const char *digest, Error *err) {
    Out out = {0};
    add_description(&out, d, description);
    add(&out, ",\n \"results\": {");
    for (int i = 0; i < results->n; i++) {
        add(&out, "%s\n  \"%s\": ", i ? "," : "", results->list[i].name);
        add_record(&out, &results->list[i]);
    }
    add(&out, "},\n \"description\": \"%s\",\n \"sha256\": \"%s\"}\n", described, digest);
    if (!out.full) return out.text;
    free(out.text);
    fail(err, "no memory for the result of an experiment");
    return NULL;
}
