// heads_sampler: the engine's sampler, and what changes logits before it picks: biases, penalties,
// bits of the ids that may come, and what generation_config.json forbids or forces.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "sampler.h"

struct heads_sampler {
    Sampler *sampler;
    const Rules *rules;
    heads_sampler_options options;
    int vocab_size;
    heads_bias *biases;       // [options.n_biases]
    float *row;               // [vocab_size]: logits after the changes
    int *text;                // [rules->room]: the text so far, for the rules
    int n_text;
    int *counts;              // [vocab_size]: how often each token was generated
    long n_accepted;
    const uint32_t *allowed;  // bits of ids; NULL: all
};

typedef heads_sampler Sampling;

// ---- what changes logits ----

// Bans the last of ids[n] if the text ends in those before it.
static void ban_row(const Sampling *s, float *logits, const int *ids, int n) {
    const int *end = s->text + s->n_text - (n - 1);
    if (n - 1 > s->n_text || memcmp(end, ids, sizeof *ids * (size_t)(n - 1)) != 0) return;
    if (ids[n - 1] >= 0 && ids[n - 1] < s->vocab_size) logits[ids[n - 1]] = -INFINITY;
}

static void apply_rules(const Sampling *s, float *logits) {
    const Rules *r = s->rules;
    int most = s->options.most, n_text = s->n_text;
    for (int i = 0; i < r->n_banned; i++)
        ban_row(s, logits, r->banned + r->banned_begin[i],
                r->banned_begin[i + 1] - r->banned_begin[i]);
    for (int i = 0; r->no_repeat && i + r->no_repeat <= n_text; i++)
        ban_row(s, logits, s->text + i, r->no_repeat);
    for (size_t i = 0; n_text < r->least && i < r->eos.n; i++) logits[r->eos.v[i]] = -INFINITY;
    if (r->last < 0 || !most || n_text != most - 1) return;
    for (int i = 0; i < s->vocab_size; i++) logits[i] = i == r->last ? 0.0f : -INFINITY;
}

// One penalty is taken as often as the token was generated, so that sums are as of one at a time.
static void add_biases(const Sampling *s, float *row) {
    const heads_sampler_options *o = &s->options;
    for (int i = 0; i < o->n_biases; i++) row[o->biases[i].id] += o->biases[i].value;
    if (o->frequency_penalty == 0 && o->presence_penalty == 0) return;
    for (int id = 0; id < s->vocab_size; id++) {
        for (int i = 0; i < s->counts[id]; i++) row[id] -= o->frequency_penalty;
        if (s->counts[id]) row[id] -= o->presence_penalty;
    }
}

static bool has_rules(const Rules *r) {
    return r->n_banned || r->no_repeat || r->least || r->last >= 0;
}

// The logits after all of these, in s->row; or the same pointer if there are none.
static const float *changed(const Sampling *s, const float *logits) {
    float *row = s->row;
    const heads_sampler_options *o = &s->options;
    bool biased = o->n_biases || o->frequency_penalty != 0 || o->presence_penalty != 0;
    if (!biased && !s->allowed && !has_rules(s->rules)) return logits;
    memcpy(row, logits, sizeof *row * (size_t)s->vocab_size);
    add_biases(s, row);
    for (int id = 0; s->allowed && id < s->vocab_size; id++)
        if (!(s->allowed[id / 32] >> (id % 32) & 1)) row[id] = -INFINITY;
    apply_rules(s, row);
    return row;
}

// ---- making and freeing ----

heads_sampler_options heads_sampler_defaults(int conversation) {
    heads_sampler_options text = {.temperature = 0.8f, .top_p = 0.95f, .repeat_penalty = 1};
    // Small models repeat themselves less, and answer better.
    heads_sampler_options answer = {.temperature = 0.5f, .top_p = 0.9f, .repeat_penalty = 1.1f};
    return conversation ? answer : text;
}

static int check_changes(const heads_sampler_options *o, int vocab_size, Error *err) {
    if (o->n_biases < 0 || (o->n_biases && !o->biases))
        return fail(err, "%d biases; expected 0 or more, and where they are", o->n_biases);
    for (int i = 0; i < o->n_biases; i++) {
        heads_bias bias = o->biases[i];
        if (bias.id < 0 || bias.id >= vocab_size || !(bias.value < INFINITY))
            return fail(err, "bias %d is %g for token %d; expected a number, or -inf for a ban, "
                        "and an id from 0 to %d", i, (double)bias.value, bias.id, vocab_size - 1);
    }
    if (!isfinite(o->frequency_penalty) || !isfinite(o->presence_penalty))
        return fail(err, "penalties of %g and %g; expected numbers", (double)o->frequency_penalty,
                    (double)o->presence_penalty);
    if (o->n_prompt < 0) return fail(err, "n_prompt %d; expected 0 or more", o->n_prompt);
    return 0;
}

static int allocate(Sampling *s) {
    size_t vocab_size = (size_t)s->vocab_size, n_biases = (size_t)s->options.n_biases;
    s->biases = calloc(n_biases + 1, sizeof *s->biases);
    s->row = calloc(vocab_size, sizeof *s->row);
    s->counts = calloc(vocab_size, sizeof *s->counts);
    s->text = calloc((size_t)s->rules->room + 1, sizeof *s->text);
    if (!s->biases || !s->row || !s->counts || !s->text) return -1;
    if (n_biases) memcpy(s->biases, s->options.biases, n_biases * sizeof *s->biases);
    s->options.biases = s->biases;
    return 0;
}

heads_sampler *heads_sampler_new(const heads_workspace *w, const heads_sampler_options *options,
                                 heads_error *err) {
    heads_sampler_options o = options ? *options : (heads_sampler_options){0};
    if (need(w, "a workspace", err)) return NULL;
    int vocab_size = w->model->vocab_size;
    if (check_changes(&o, vocab_size, err)) return NULL;
    if (o.top_p == 0) o.top_p = 1;
    if (o.repeat_penalty == 0) o.repeat_penalty = 1;
    if (o.repeat_last == 0) o.repeat_last = DEFAULT_REPEAT_LAST;
    Sampler *sampler = sampler_new(w->k, vocab_size, &o, err);
    Sampling *s = sampler ? calloc(1, sizeof *s) : NULL;
    if (!sampler) return NULL;
    if (!s) sampler_free(sampler);
    else *s = (Sampling){.sampler = sampler, .rules = &w->model->rules, .options = o,
                         .vocab_size = vocab_size};
    if (s && allocate(s) == 0) return s;
    heads_sampler_free(s);
    fail(err, "no memory for a sampler over %d tokens", vocab_size);
    return NULL;
}

void heads_sampler_free(heads_sampler *s) {
    if (!s) return;
    sampler_free(s->sampler);
    free(s->biases);
    free(s->row);
    free(s->counts);
    free(s->text);
    free(s);
}

// ---- a text, token by token ----

void heads_sampler_accept(heads_sampler *s, int id) {
    if (!s) return;
    if (s->n_text < s->rules->room) s->text[s->n_text++] = id;
    bool generated = s->n_accepted++ >= s->options.n_prompt;
    if (generated && id >= 0 && id < s->vocab_size) s->counts[id]++;
    sampler_accept(s->sampler, id);
}

void heads_sampler_allow(heads_sampler *s, const uint32_t *bits) {
    if (s) s->allowed = bits;
}

int heads_sampler_pick(heads_sampler *s, const float *logits) {
    return s && logits ? sampler_pick(s->sampler, changed(s, logits)) : -1;
}

typedef struct {  // rows of logits, and the ids picked from them
    const float *logits;
    size_t stride;
    heads_sampler *const *samplers;
    int *ids;
} LogitRows;

static void pick_row(const void *arg, int i, int thread) {
    const LogitRows *r = arg;
    r->ids[i] = heads_sampler_pick(r->samplers[i], r->logits + (size_t)i * r->stride);
}

void heads_sampler_pick_each(heads_workspace *w, heads_sampler *const *samplers, int n,
                             const float *logits, int *ids) {
    if (!w || !samplers || !logits || !ids) return;
    LogitRows rows = {.logits = logits, .stride = heads_logit_stride(w), .samplers = samplers,
                      .ids = ids};
    parallel_for(w->pool, n, pick_row, &rows);
}
