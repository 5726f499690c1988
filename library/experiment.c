// experiment.json: what is run, and what came of it, so that anyone can run it again. Description
// and results are records, each a name and numbers of 4 bytes; the SHA-256 is of these, whatever
// their JSON looks like (docs/heads.md).
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "library/described.h"
#include "sequence/steering.h"

// ---- records ----

uint32_t *record_add(Records *r, const char *name, bool floats, const int *lengths, int dims) {
    size_t n = 1;
    for (int i = 0; i < dims; i++) n *= (size_t)lengths[i];
    Record *one = &r->list[r->n];
    *one = (Record){.name = name, .floats = floats, .n = n, .dims = dims};
    for (int i = 0; i < dims; i++) one->lengths[i] = lengths[i];
    one->words = calloc(n + 1, sizeof *one->words);
    if (one->words) r->n++;
    return one->words;
}

void records_free(Records *r) {
    for (int i = 0; i < r->n; i++) free(r->list[i].words);
    r->n = 0;
}

static void hash_number(Sha256 *s, uint32_t x) {
    uint8_t bytes[4] = {(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)};
    sha256_add(s, bytes, sizeof bytes);
}

static void hash_records(Sha256 *s, const Records *r) {
    for (const Record *one = r->list; one < r->list + r->n; one++) {
        sha256_add(s, one->name, strlen(one->name) + 1);
        hash_number(s, (uint32_t)one->n);
        for (size_t i = 0; i < one->n; i++) hash_number(s, one->words[i]);
    }
}

static float as_float(uint32_t word) {
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

// Of a NaN the bits that all machines write.
static uint32_t as_word(double x) {
    float f = (float)x;
    uint32_t word = 0x7fc00000;
    if (!isnan(f)) memcpy(&word, &f, sizeof word);
    return word;
}

static uint32_t *add_ints(Records *r, const char *name, const int *ids, int n) {
    uint32_t *words = record_add(r, name, false, &n, 1);
    for (int i = 0; words && i < n; i++) words[i] = (uint32_t)ids[i];
    return words;
}

static bool add_floats(Records *r, const char *name, const float *x, const int *lengths,
                       int dims) {
    uint32_t *words = record_add(r, name, true, lengths, dims);
    for (size_t i = 0; words && i < r->list[r->n - 1].n; i++) words[i] = as_word((double)x[i]);
    return words != NULL;
}

// ---- one run ----

typedef struct {
    Described d;
    const Model *m;
    WorkspaceOptions options;
    heads_progress *progress;
    void *context;
    Workspace *w;
    Sequence *text;      // the one that goes on
    Records description, results;
    float *kept;         // what the clean text gives at the places that are patched, one by one
    size_t *kept_at;     // [n_places + 1]
    bool puts;           // a run is given what is kept
    float *clean;        // [vocab_size], logits after the clean text
    char described[SHA256_HEX], digest[SHA256_HEX];
} Experiment;

static int longest(const Described *d) { return d->n_corrupted > d->n ? d->n_corrupted : d->n; }
static int expected(const Described *d) { return d->samples ? d->max_tokens : 0; }

static int no_memory(Error *err) { return fail(err, "no memory for an experiment"); }

static int open_workspace(Experiment *e, Error *err) {
    const Described *d = &e->d;
    WorkspaceOptions o = {.n_threads = e->options.n_threads, .isa = e->options.isa,
                          .threads_of = e->options.threads_of, .k_type = d->kv[0],
                          .v_type = d->kv[1], .logit_rows = 1};
    o.context = longest(d) + expected(d);
    o.chunk = longest(d);
    e->options = o;
    e->w = heads_workspace_new(e->m, &o, err);
    return e->w ? 0 : -1;
}

static Sequence *new_text(const Experiment *e, Error *err) {
    const Described *d = &e->d;
    Sequence *s = heads_sequence_new(e->w, false, err);
    if (!s || change_text(s, &d->changes, longest(d) + expected(d), err) == 0) return s;
    heads_sequence_free(s);
    return NULL;
}

// Keeps what a run gives at a place that is patched, or puts there what was kept.
static void exchange(const Experiment *e, int place, float *row, size_t n) {
    float *kept = e->kept + e->kept_at[place];
    memcpy(e->puts ? row : kept, e->puts ? kept : row, n * sizeof *row);
}

static int enter(void *context, const heads_layer_input *in) {
    const Experiment *e = context;
    for (int i = 0; i < e->d.n_places; i++) {
        const Place *p = &e->d.places[i];
        if (p->head < 0 && p->layer == in->layer && p->position < in->n)
            exchange(e, i, in->rows + (size_t)p->position * in->stride, (size_t)in->width);
    }
    return in->layer;
}

static void mixed(void *context, const heads_mixed *in) {
    const Experiment *e = context;
    for (int i = 0; i < e->d.n_places; i++) {
        const Place *p = &e->d.places[i];
        if (p->layer == in->layer && p->head >= in->head && p->head < in->head + in->n_heads) {
            size_t at = (size_t)(p->head - in->head) * (size_t)in->width;
            exchange(e, i, in->rows + (size_t)p->position * in->stride + at, (size_t)in->width);
        }
    }
}

// Runs a text as the one that goes on. look: it is the clean text, or the patched one.
static const float *run(Experiment *e, const int *ids, int n, bool look, Error *err) {
    heads_sequence_free(e->text);
    e->text = new_text(e, err);
    if (!e->text) return NULL;
    if (look && e->d.n_places)
        heads_workspace_probe(e->w, &(heads_probe){.context = e, .enter = enter, .mixed = mixed});
    const float *logits = heads_forward(e->text, ids, n, 1, err);
    heads_workspace_probe(e->w, NULL);
    return logits;
}

// ---- the description ----

static bool describe_off(Experiment *e, const Sequence *s) {
    size_t n_heads = most_heads(e->m);
    int n = 0, *off = malloc(2 * (size_t)e->m->n_layers * n_heads * sizeof *off);
    for (size_t i = 0; off && s->off && i < (size_t)e->m->n_layers * n_heads; i++) {
        if (!s->off[i]) continue;
        off[n++] = (int)(i / n_heads);
        off[n++] = (int)(i % n_heads);
    }
    bool done = off && add_ints(&e->description, "off", off, n);
    free(off);
    return done;
}

static bool describe_steering(Experiment *e, const Steering *s) {
    int lengths[] = {s ? s->n : 0, e->m->n_embd};
    return add_ints(&e->description, "steer.layers", s ? s->layers : NULL, lengths[0]) &&
           add_floats(&e->description, "steer.vectors", s ? s->vectors : NULL, lengths, 2);
}

static bool describe_patches(Experiment *e) {
    const Described *d = &e->d;
    int n = 1 + 3 * d->n_places;
    uint32_t *words = record_add(&e->description, "patch", false, &n, 1);
    if (!words) return false;
    words[0] = (uint32_t)d->patch;
    for (int i = 0; i < d->n_places; i++) {
        words[1 + 3 * i] = (uint32_t)d->places[i].layer;
        words[2 + 3 * i] = (uint32_t)d->places[i].head;
        words[3 + 3 * i] = (uint32_t)d->places[i].position;
    }
    return true;
}

static bool describe_sampler(Experiment *e) {
    const heads_sampler_options *o = &e->d.sampler;
    uint32_t all[] = {(uint32_t)e->d.max_tokens, as_word((double)o->temperature),
                      (uint32_t)o->top_k, as_word((double)o->top_p), as_word((double)o->min_p),
                      as_word((double)o->repeat_penalty), (uint32_t)o->repeat_last,
                      as_word((double)o->frequency_penalty), as_word((double)o->presence_penalty),
                      (uint32_t)o->seed, (uint32_t)(o->seed >> 32)};
    int n = e->d.samples ? sizeof all / sizeof *all : 0;
    uint32_t *words = record_add(&e->description, "sampler", false, &n, 1);
    if (words) memcpy(words, all, (size_t)n * sizeof *words);
    return words != NULL;
}

// What is run, in one order and with all defaults. Heads and vectors are those that a text has.
static int describe(Experiment *e, Error *err) {
    const Described *d = &e->d;
    Records *r = &e->description;
    int crc = (int)checkpoint_crc(&e->m->file), kv[] = {d->kv[0], d->kv[1]};
    int asked[] = {d->measures, d->metric, d->answer, d->against, d->attribute};
    Sequence *s = new_text(e, err);
    if (!s) return -1;
    bool done = add_ints(r, "model", &crc, 1) && add_ints(r, "kv", kv, 2) &&
                add_ints(r, "text", d->ids, d->n) &&
                add_ints(r, "corrupted", d->corrupted, d->n_corrupted) && describe_off(e, s) &&
                describe_steering(e, s->steering) && describe_patches(e) &&
                add_ints(r, "asked", asked, 5) && describe_sampler(e);
    heads_sequence_free(s);
    if (!done) return no_memory(err);
    Sha256 hash;
    sha256_begin(&hash);
    hash_records(&hash, r);
    sha256_end(hash, e->described);
    return 0;
}

// ---- what is asked ----

static double metric(const Experiment *e, const float *logits) {
    const Described *d = &e->d;
    return metric_of(d->metric, e->clean, logits, e->m->vocab_size, d->answer, d->against);
}

// Room for what the places have: a head's numbers are no more than the stream's, or all heads'.
static int keep_room(Experiment *e, Error *err) {
    size_t width = (size_t)(e->m->widest > e->m->n_embd ? e->m->widest : e->m->n_embd);
    size_t n = (size_t)e->d.n_places;
    for (const Layer *l = e->m->layers; l < e->m->layers + e->m->n_layers; l++) {
        size_t widths[] = {(size_t)l->rglru.out.n_in, (size_t)l->shortconv.out.n_in,
                           (size_t)l->mamba1.out.n_in, (size_t)l->mamba2.out.n_in,
                           (size_t)l->deltanet.out.n_in, (size_t)l->attention.o.n_in};
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            if (widths[i] > width) width = widths[i];
    }
    e->kept = calloc(n * width + 1, sizeof *e->kept);
    e->kept_at = calloc(n + 1, sizeof *e->kept_at);
    e->clean = calloc((size_t)e->m->vocab_size, sizeof *e->clean);
    for (size_t i = 0; e->kept_at && i < n; i++) e->kept_at[i] = i * width;
    return e->kept && e->kept_at && e->clean ? 0 : no_memory(err);
}

// The metrics of the clean text, the corrupted one, and that one with all the list's patches.
static int run_texts(Experiment *e, Error *err) {
    const Described *d = &e->d;
    float metrics[3];
    int n = 0;
    const float *logits = run(e, d->ids, d->n, true, err);
    if (!logits) return -1;
    memcpy(e->clean, logits, (size_t)e->m->vocab_size * sizeof *logits);
    if (d->measures) metrics[n++] = (float)metric(e, logits);
    for (int i = 0; i < 2; i++) {
        e->puts = i == 1;
        if (i ? !d->n_places : !d->n_corrupted || !d->measures) continue;
        logits = run(e, d->corrupted, d->n_corrupted, e->puts, err);
        if (!logits) return -1;
        if (d->measures) metrics[n++] = (float)metric(e, logits);
    }
    bool corrupted = d->n_corrupted && !d->n_places;  // was the last to run
    if (d->samples && corrupted && !run(e, d->ids, d->n, false, err)) return -1;
    return !d->measures || add_floats(&e->results, "metrics", metrics, &n, 1) ? 0 : no_memory(err);
}

static int sample(Experiment *e, heads_sampler *sampler, const heads_tokenizer *t,
                  const float *logits, Error *err) {
    const Described *d = &e->d;
    int n = 0, *ids = malloc((size_t)d->max_tokens * sizeof *ids);
    const int *text = heads_sequence_tokens(e->text);
    for (int i = 0; ids && i < heads_sequence_length(e->text); i++)
        heads_sampler_accept(sampler, text[i]);
    int failed = ids ? 0 : no_memory(err);
    while (!failed && n < d->max_tokens) {
        int id = heads_sampler_pick(sampler, logits);
        if (id < 0) failed = fail(err, "no token can come after %d of them", n);
        if (failed) break;
        ids[n++] = id;
        heads_sampler_accept(sampler, id);
        if ((t && heads_is_eos(t, id)) || n == d->max_tokens) break;
        logits = heads_forward(e->text, &id, 1, 1, err);
        if (!logits) failed = -1;
    }
    if (!failed && !add_ints(&e->results, "generated", ids, n)) failed = no_memory(err);
    free(ids);
    return failed;
}

// Goes on with the patched text, or the clean one.
static int generate(Experiment *e, Error *err) {
    const float *logits = e->w->logits.data;  // of the last run
    heads_sampler_options o = e->d.sampler;
    o.n_prompt = heads_sequence_length(e->text);
    heads_sampler *sampler = heads_sampler_new(e->w, &o, err);
    Error none;
    heads_tokenizer *t = heads_tokenizer_new(e->m, &none);
    int failed = sampler ? sample(e, sampler, t, logits, err) : -1;
    heads_sampler_free(sampler);
    heads_tokenizer_free(t);
    return failed;
}

static int draw_map(Experiment *e, Error *err) {
    const Described *d = &e->d;
    bool layers = d->patch == PATCH_LAYERS;
    int lengths[] = {e->m->n_layers, heads_model_heads(e->m), d->n}, rows[] = {lengths[0], d->n};
    size_t n = (size_t)lengths[0] * (size_t)(layers ? 1 : lengths[1]) * (size_t)d->n;
    float *results = malloc(n * sizeof *results);
    heads_patching what = {.clean = d->ids, .corrupted = d->corrupted, .n = d->n, .layers = layers,
                           .metric = d->metric, .answer = d->answer < 0 ? 0 : d->answer,
                           .against = d->against < 0 ? 0 : d->against, .off = d->changes.off,
                           .progress = e->progress, .context = e->context,
                           .steers = d->changes.steers, .n_steers = d->changes.n_steers};
    WorkspaceOptions o = e->options;
    o.threads_of = e->w;
    o.chunk = 0;
    int failed = !results ? no_memory(err) : heads_patch(e->m, &o, &what, results, NULL, err);
    const int *shape = layers ? rows : lengths;
    if (!failed && !add_floats(&e->results, "map", results, shape, layers ? 2 : 3))
        failed = no_memory(err);
    free(results);
    return failed;
}

static int attribute(Experiment *e, Error *err) {
    const Described *d = &e->d;
    int lengths[] = {e->m->n_layers, heads_model_heads(e->m)}, four = 4;
    float *heads = calloc((size_t)lengths[0] * (size_t)lengths[1], sizeof *heads);
    float *ffn = calloc((size_t)lengths[0], sizeof *ffn);
    heads_parts p;
    WorkspaceOptions o = e->options;
    o.threads_of = e->w;
    int failed = !heads || !ffn ? no_memory(err)
               : attribute_text(e->m, &o, d->ids, d->n, d->answer, d->against, &d->changes, heads,
                                ffn, &p, err);
    if (!failed) {
        float sums[] = {(float)p.embedding, (float)p.rest, (float)p.total, (float)p.logit};
        if (!add_floats(&e->results, "heads", heads, lengths, 2) ||
            !add_floats(&e->results, "ffn", ffn, lengths, 1) ||
            !add_floats(&e->results, "sums", sums, &four, 1))
            failed = no_memory(err);
    }
    free(heads);
    free(ffn);
    return failed;
}

static int run_all(Experiment *e, Error *err) {
    const Described *d = &e->d;
    if (keep_room(e, err) || run_texts(e, err)) return -1;
    if (d->samples && generate(e, err)) return -1;
    if ((d->patch == PATCH_HEADS || d->patch == PATCH_LAYERS) && draw_map(e, err)) return -1;
    if (d->attribute && attribute(e, err)) return -1;
    Sha256 hash;
    sha256_begin(&hash);
    hash_records(&hash, &e->description);
    hash_records(&hash, &e->results);
    sha256_end(hash, e->digest);
    return 0;
}

static void close_experiment(Experiment *e) {
    heads_sequence_free(e->text);
    workspace_free(e->w);
    records_free(&e->description);
    records_free(&e->results);
    free(e->kept);
    free(e->kept_at);
    free(e->clean);
    described_free(&e->d);
}

static int open_experiment(Experiment *e, const Json *root, Error *err) {
    if (read_description(&e->d, e->m, root, err)) return -1;
    return open_workspace(e, err) || describe(e, err) ? -1 : 0;
}

static int check_call(const Model *m, const char *json, Error *err) {
    if (need(m, "a model", err) || need(json, "the JSON of an experiment", err)) return -1;
    return check_continues(m, "an experiment", err);
}

char *heads_experiment(const Model *m, const WorkspaceOptions *options, const char *json,
                       size_t len, heads_progress *progress, void *context, Error *err) {
    Experiment e = {.m = m, .progress = progress, .context = context};
    if (options) e.options = *options;
    if (check_call(m, json, err)) return NULL;
    const Json *root = json_parse(json, len, err);
    if (!root) return NULL;
    char *text = NULL;
    if (!open_experiment(&e, root, err) && !check_model(&e.d, m, err) && !run_all(&e, err))
        text = write_result(&e.d, &e.description, &e.results, e.described, e.digest, err);
    close_experiment(&e);
    json_free(root);
    return text;
}

// ---- whether a result holds ----

typedef struct {  // through nested arrays
    const Json *at[4];
    int depth;
} Walk;

// The next value that is no array. NULL: there is none.
static const Json *next_number(Walk *w) {
    while (w->depth >= 0) {
        const Json *v = w->at[w->depth];
        if (!v) {
            if (--w->depth >= 0) w->at[w->depth] = w->at[w->depth]->next;
        } else if (v->type == JSON_ARRAY && w->depth < 3) {
            w->at[++w->depth] = v->first;
        } else {
            w->at[w->depth] = v->next;
            return v;
        }
    }
    return NULL;
}

// Writes [2][0][5] for number i of a record.
static void write_place(char *text, size_t size, const Record *r, size_t i) {
    size_t below = r->n;
    *text = 0;
    for (int d = 0; d < r->dims; d++) {
        below /= (size_t)r->lengths[d];
        text_append(text, size, "[%zu]", i / below);
        i %= below;
    }
}

static int compare_record(const Record *r, const Json *stored, Error *err) {
    char place[80];
    Walk walk = {{stored ? stored->first : NULL}, 0};
    if (!stored || stored->type != JSON_ARRAY)
        return fail(err, "the result has no \"%s\", which the experiment gives", r->name);
    for (size_t i = 0; i < r->n; i++) {
        const Json *v = next_number(&walk);
        write_place(place, sizeof place, r, i);
        if (!v) return fail(err, "\"%s\" of the result ends before %s", r->name, place);
        if (!r->floats && (int32_t)r->words[i] != v->integer)
            return fail(err, "%s%s is %.9g in the result, and %d here", r->name, place, v->number,
                        (int)r->words[i]);
        double x = v->type == JSON_NUMBER ? v->number : (double)NAN;
        if (r->floats && r->words[i] != as_word(x))
            return fail(err, "%s%s is %.9g in the result, and %.9g here", r->name, place, x,
                        (double)as_float(r->words[i]));
    }
    if (next_number(&walk))
        return fail(err, "\"%s\" of the result has more than %zu numbers", r->name, r->n);
    return 0;
}

static bool same_text(const Json *stored, const char *hex) {
    return stored && stored->type == JSON_STRING && strcmp(stored->text, hex) == 0;
}

// -1: an error; 0: it does not, as err says; 1: it does.
static int verify(Experiment *e, const Json *root, Error *err) {
    const Json *results = json_get(root, "results");
    const Json *experiment = json_get(root, "experiment");
    if (!experiment || !results)
        return fail(err, "this is no result: it has no \"%s\"",
                    experiment ? "results" : "experiment");
    if (open_experiment(e, experiment, err)) return -1;
    if (check_model(&e->d, e->m, err)) return 0;
    if (!same_text(json_get(root, "description"), e->described)) {
        fail(err, "the description was changed: its SHA-256 is %s, and \"description\" says "
             "another", e->described);
        return 0;
    }
    if (run_all(e, err)) return -1;
    for (const Record *r = e->results.list; r < e->results.list + e->results.n; r++)
        if (compare_record(r, json_get(results, r->name), err)) return 0;
    if ((size_t)e->results.n != results->n) {
        fail(err, "\"results\" has %zu members, and the experiment gives %d", results->n,
             e->results.n);
        return 0;
    }
    if (same_text(json_get(root, "sha256"), e->digest)) return 1;
    fail(err, "all numbers are right, but their SHA-256 is %s, and \"sha256\" says another",
         e->digest);
    return 0;
}

int heads_verify(const Model *m, const WorkspaceOptions *options, const char *json, size_t len,
                 heads_progress *progress, void *context, Error *err) {
    Experiment e = {.m = m, .progress = progress, .context = context};
    if (options) e.options = *options;
    if (check_call(m, json, err)) return -1;
    const Json *root = json_parse(json, len, err);
    if (!root) return -1;
    int found = verify(&e, root, err);
    close_experiment(&e);
    json_free(root);
    return found;
}
