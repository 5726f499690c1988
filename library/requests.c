// heads_batch_add: checks a request, copies it, and puts it into the queue.
#include <stdlib.h>
#include <string.h>

#include "library/scheduler.h"
#include "math/adapted.h"
#include "sequence/sequence.h"

enum { MAX_TOP = 1000 };

void free_request(Request *r) {
    release_prefix(r->prefix);
    set_adapted(&r->adapted, NULL, 0);
    heads_sequence_free(r->sequence);
    heads_sequence_free(r->draft);
    release_steering(r->steering);
    heads_sampler_free(r->sampler);
    heads_decoder_free(r->decoder);
    free(r->ids);
    free(r->text);
    free(r->allowed);
    free(r->top);
    free(r);
}

int make_room(Request *r, int n, Error *err) {
    if (r->n_ids + n <= r->room) return 0;
    int room = r->n_ids + n > 2 * r->room ? r->n_ids + n : 2 * r->room;
    int *larger = realloc(r->ids, sizeof *r->ids * (size_t)room);
    if (!larger) return fail(err, "no memory for %d tokens", room);
    r->ids = larger;
    r->room = room;
    return 0;
}

static int check_ids(const int *ids, int n, int room, int vocab_size, Error *err) {
    if (n < 1) return fail(err, "the prompt is empty, and nothing is put before it");
    if (n > room)
        return fail(err, "the prompt has %d tokens and the context has room for %d", n, room);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return fail(err, "the text has token %d, which the model does not know; its ids are 0 "
                        "to %d", ids[i], vocab_size - 1);
    return 0;
}

static int check_request(const heads_batch *b, const heads_request *q, Error *err) {
    const Model *m = b->w->model;
    if (m->encoder) return fail(err, "the model is an encoder: it continues no text");
    if (!m->source.n != !q->source || (!q->source && q->n_source))
        return fail(err, m->source.n ? "the model reads one text and writes another: a request "
                    "needs a source" : "the model has no encoder to read a source with");
    if (q->lang && (!q->source || q->ids))
        return fail(err, "a language is for what an encoder-decoder writes, and takes the place of "
                    "ids");
    int context = heads_workspace_context(b->w);
    int room = context + (q->n_scored > 0 && q->max_tokens == 0);  // a last one, scored, never runs
    if (q->source && check_ids(q->source, q->n_source, context, m->source.vocab_size, err))
        return -1;
    if ((q->ids || !q->source) && check_ids(q->ids, q->ids ? q->n : 0, room, m->vocab_size, err))
        return -1;
    if (q->max_tokens < 0 || q->n_scored < 0 || q->n_scored >= (q->ids ? q->n : 1))
        return fail(err, "%d tokens to generate, %d to score; expected 0 or more, and fewer than "
                    "the prompt has", q->max_tokens, q->n_scored);
    if (check_adapter(b->w, q->adapter, q->adapter_scale, err)) return -1;
    if (q->lookup < 0) return fail(err, "lookup %d; expected 0 or more guesses", q->lookup);
    if (q->n_steers < 0 || (q->n_steers && !q->steers))
        return fail(err, "%d steering vectors; expected 0 or more, and where they are",
                    q->n_steers);
    if (q->n_top < 0 || q->n_top > MAX_TOP)
        return fail(err, "%d most likely tokens; expected 0..%d", q->n_top, MAX_TOP);
    if (q->n_stops < 0 || q->n_stop_ids < 0 || (q->n_stops && !q->stops) ||
        (q->n_stop_ids && !q->stop_ids))
        return fail(err, "%d stop strings and %d ids; expected 0 or more, and where they are",
                    q->n_stops, q->n_stop_ids);
    if (q->n_stops && !b->tokenizer) return fail(err, "stop strings need a tokenizer");
    for (int i = 0; i < q->n_stops; i++)
        if (!q->stops[i].text || !q->stops[i].len) return fail(err, "stop string %d is empty", i);
    heads_sampler *sampler = heads_sampler_new(b->w, &q->sampler, err);
    heads_sampler_free(sampler);
    return sampler ? 0 : -1;
}

// Copies bytes to *at, and moves *at behind them.
static void *put(char **at, const void *from, size_t bytes) {
    void *copy = *at;
    if (bytes) memcpy(copy, from, bytes);
    *at += round_up(bytes, sizeof(void *));
    return copy;
}

// ---- copies ----

// Allocates a Request, with copies of stops, ids, biases and source behind it in the same memory.
static Request *copy_request(const heads_request *q) {
    size_t source = sizeof *q->source * (size_t)q->n_source;
    size_t ids = sizeof *q->stop_ids * (size_t)q->n_stop_ids;
    size_t stops = sizeof *q->stops * (size_t)q->n_stops, strings = 0;
    size_t biases = sizeof *q->sampler.biases * (size_t)q->sampler.n_biases;
    for (int i = 0; i < q->n_stops; i++) strings += round_up(q->stops[i].len, sizeof(void *));
    size_t copied = source + ids + stops + strings + biases + 4 * sizeof(void *);
    Request *r = calloc(1, sizeof *r + copied);
    if (!r) return NULL;
    char *at = (char *)(r + 1);
    heads_stop *copies = put(&at, q->stops, stops);
    for (int i = 0; i < q->n_stops; i++)
        copies[i].text = put(&at, q->stops[i].text, q->stops[i].len);
    r->asked = *q;
    set_adapted(&r->adapted, q->adapter, q->adapter_scale ? q->adapter_scale : 1);
    r->asked.stops = copies;
    r->asked.source = q->source ? put(&at, q->source, source) : NULL;
    r->asked.stop_ids = put(&at, q->stop_ids, ids);
    r->asked.sampler.biases = put(&at, q->sampler.biases, biases);
    return r;
}

// Copies the prompt. Without ids, the prompt is the start tokens of q->lang. With a source, all of
// the prompt but its first token counts towards max_tokens, as in transformers.
static int set_prompt(heads_batch *b, Request *r, Error *err) {
    const Model *m = b->w->model;
    heads_request *q = &r->asked;
    r->max_tokens = q->max_tokens;
    if (!q->ids) {
        int *source = (int *)q->source;
        if (heads_source_language(m, b->tokenizer, q->lang, source, q->n_source, err)) return -1;
        long n = heads_start_tokens(m, b->tokenizer, q->lang, &r->ids, err);
        if (n < 0) return -1;
        r->n_prompt = (int)n;
    } else {
        r->n_prompt = q->n;
        r->ids = malloc(sizeof *q->ids * (size_t)q->n);
        if (!r->ids) return fail(err, "no memory for a prompt of %d tokens", q->n);
        memcpy(r->ids, q->ids, sizeof *q->ids * (size_t)q->n);
    }
    r->n_ids = r->room = r->n_prompt;
    q->ids = NULL;
    q->lang = NULL;
    r->scored = shareable_length(r);
    q->sampler.most = 0;
    q->sampler.n_prompt = r->n_prompt;
    if (!q->source) return 0;
    int begun = r->n_prompt - 1, room = heads_workspace_context(b->w) - begun;
    r->max_tokens = q->max_tokens > begun ? q->max_tokens - begun : 0;
    if (r->max_tokens > room) r->max_tokens = room;
    q->sampler.most = r->n_prompt + r->max_tokens;
    return 0;
}

static int set_steering(const heads_batch *b, Request *r, Error *err) {
    for (const heads_steer *s = r->asked.steers; s < r->asked.steers + r->asked.n_steers; s++)
        if (need(s->vector, "a steering vector", err) ||
            steer(b->w->model, &r->steering, s->layer, s->vector, s->scale, err))
            return -1;
    r->asked.steers = NULL;
    return 0;
}

// ---- the queue ----

static int join_queue(heads_batch *b, Request *r) {
    if (b->next == b->n_waiting) b->next = b->searched = b->n_waiting = 0;
    if (b->n_waiting == b->waiting_room) {
        long room = 2 * b->waiting_room + 16;
        Request **larger = realloc(b->waiting, sizeof *larger * (size_t)room);
        if (!larger) return -1;
        b->waiting = larger;
        b->waiting_room = room;
    }
    b->waiting[b->n_waiting++] = r;
    return 0;
}

long heads_batch_add(heads_batch *b, const heads_request *request, Error *err) {
    if (need(b, "a batch", err) || need(request, "a request", err)) return -1;
    if (check_request(b, request, err)) return -1;
    Request *r = copy_request(request);
    if (!r) return fail(err, "no memory for a request");
    int failed = set_prompt(b, r, err) || set_steering(b, r, err);
    if (!failed && r->asked.mask) {
        r->allowed = calloc(((size_t)b->w->model->vocab_size + 31) / 32, sizeof *r->allowed);
        if (!r->allowed) failed = fail(err, "no memory for a mask");
    }
    if (!failed && join_queue(b, r)) failed = fail(err, "no memory for one more request");
    if (!failed) return r->number = b->n_added++;
    free_request(r);
    return -1;
}
