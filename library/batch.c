// The scheduler's step, heads_batch_step, at the end of this file: fill the places, choose each
// request's sequence, plan a pass, run it, give events. requests.c adds requests, prefixes.c and
// forks.c find common beginnings, choices.c picks tokens, stops.c decodes them and ends texts.
#include "library/inspect.h"
#include "library/scheduler.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_PLACES = 16, DEFAULT_DRAFT = 5 };

// ---- making and freeing ----

static int allocate_batch(heads_batch *b) {
    size_t places = (size_t)b->places, rows = (size_t)b->w->logit_rows;
    b->busy = calloc(places, sizeof *b->busy);
    b->order = calloc(places, sizeof *b->order);
    b->spare = calloc((size_t)b->most_spare, sizeof *b->spare);
    b->runs = calloc(places, sizeof *b->runs);
    b->owners = calloc(places, sizeof *b->owners);
    b->jobs = calloc(places, sizeof *b->jobs);
    b->choices = calloc(rows, sizeof *b->choices);
    b->events = calloc(rows + 2 * places, sizeof *b->events);
    if (b->draft && !(b->greedy = heads_sampler_new(b->draft, NULL, NULL))) return -1;
    bool all = b->busy && b->order && b->spare && b->runs && b->owners && b->jobs && b->choices;
    return all && b->events ? 0 : -1;
}

heads_batch *heads_batch_new(heads_workspace *w, const heads_batch_options *options, Error *err) {
    heads_batch_options o = options ? *options : (heads_batch_options){0};
    if (need(w, "a workspace", err)) return NULL;
    if (w->hidden)
        return fail(err, "a batch picks from logits, and the workspace gives hidden states"), NULL;
    if (o.places == 0) o.places = w->logit_rows < DEFAULT_PLACES ? w->logit_rows : DEFAULT_PLACES;
    if (o.places < 1 || o.places > w->logit_rows || o.keep < 0 || o.keep > MAX_CONTEXT)
        return fail(err, "a batch of %d places that keeps %d; expected 1..%d, as many as the "
                    "workspace has rows of logits, and 0 or more", o.places, o.keep,
                    w->logit_rows), NULL;
    if (o.draft && !inspect_same_tokens(o.draft->model, w->model))
        return fail(err, "the draft model has other tokens than the model"), NULL;
    if (o.n_draft < 0) return fail(err, "n_draft %d; expected 0 or more", o.n_draft), NULL;
    heads_batch *b = calloc(1, sizeof *b);
    if (b) {
        *b = (heads_batch){.w = w, .tokenizer = o.tokenizer, .places = o.places, .keep = o.keep,
                           .most_spare = o.keep ? o.keep : o.places, .draft = o.draft,
                           .n_draft = o.n_draft ? o.n_draft : DEFAULT_DRAFT};
        for (int i = 0; o.draft && i < MAX_COSTS; i++)
            b->costs[i].before = draft_price(o.draft->model, w->model);
        if (allocate_batch(b) == 0) return b;
    }
    heads_batch_free(b);
    return fail(err, "no memory for a batch of %d places", o.places), NULL;
}

void heads_batch_free(heads_batch *b) {
    if (!b) return;
    for (long i = b->next; i < b->n_waiting; i++) free_request(b->waiting[i]);
    for (int i = 0; i < b->n_busy; i++) free_request(b->busy[i]);
    for (int i = 0; i < b->n_spare; i++) heads_sequence_free(b->spare[i]);
    heads_sampler_free(b->greedy);
    free(b->waiting);
    free(b->busy);
    free(b->order);
    free(b->spare);
    free(b->runs);
    free(b->owners);
    free(b->jobs);
    free(b->choices);
    free(b->events);
    free(b);
}

// ---- places ----

static heads_event *add_event(heads_batch *b, const Request *r, heads_event_kind kind) {
    heads_event *event = &b->events[b->n_events++];
    *event = (heads_event){.request = r->number, .kind = kind};
    return event;
}

static void fail_request(heads_batch *b, Request *r) {
    r->ended = true;
    add_event(b, r, HEADS_FAILED)->error = r->error.text;
}

static void end_request(heads_batch *b, Request *r, const char *stopped) {
    r->ended = true;
    b->prompt_tokens += (size_t)(r->n_prompt + r->asked.n_source);
    b->spared += (size_t)r->spared;
    add_event(b, r, HEADS_DONE)->stopped = stopped;
}

static void leave_place(heads_batch *b, int place) {
    double spare = b->busy[place]->guard.spare;
    b->owed = spare < 0 ? spare : 0;
    leave_sequence(b, b->busy[place]);
    free_request(b->busy[place]);
    memmove(b->busy + place, b->busy + place + 1,
            sizeof *b->busy * (size_t)(--b->n_busy - place));
}

// Frees requests that ended in an earlier step, and gives their places to those that wait.
static void fill_places(heads_batch *b) {
    for (int i = b->n_busy - 1; i >= 0; i--)
        if (b->busy[i]->ended) leave_place(b, i);
    find_prefixes(b->waiting + b->searched, b->n_waiting - b->searched);
    b->searched = b->n_waiting;
    while (b->n_busy < b->places && b->next < b->n_waiting) {
        Request *r = b->busy[b->n_busy++] = b->waiting[b->next++];
        r->guard.spare = b->owed;
        if (begin_text(b, r)) fail_request(b, r);
        else if (r->max_tokens == 0 && r->asked.n_scored == 0) end_request(b, r, "max_tokens");
    }
}

int heads_batch_cancel(heads_batch *b, long request) {
    for (int i = 0; b && i < b->n_busy; i++) {
        if (b->busy[i]->number != request || b->busy[i]->ended) continue;
        leave_place(b, i);
        return 1;
    }
    for (long i = b ? b->next : 0; b && i < b->n_waiting; i++) {
        if (b->waiting[i]->number != request) continue;
        free_request(b->waiting[i]);
        memmove(b->waiting + i, b->waiting + i + 1,
                sizeof *b->waiting * (size_t)(--b->n_waiting - i));
        b->searched -= i < b->searched;
        return 1;
    }
    return 0;
}

heads_batch_counts heads_batch_count(const heads_batch *b) {
    heads_batch_counts counts = {0};
    if (!b) return counts;
    counts.waiting = b->n_waiting - b->next;
    for (int i = 0; i < b->n_busy; i++) counts.running += !b->busy[i]->ended;
    counts.prompt_tokens = b->prompt_tokens;
    counts.spared = b->spared;
    counts.drafted = b->drafted;
    counts.accepted = b->accepted;
    return counts;
}

// ---- a pass ----

// Tokens that a request still has to run, beyond a prefix too.
static int tokens_left(const Request *r) {
    return tokens_to_run(r) - heads_sequence_length(r->running);
}

// Those of them that the sequence at hand can take: a prefix ends before its requests do.
static int next_tokens(const Request *r) { return r->until - heads_sequence_length(r->running); }

// Chooses each request's sequence, and has the encoder read new sources, all in one call.
static void choose_sequences(heads_batch *b) {
    Error err;
    b->n_runs = 0;
    for (int i = 0; i < b->n_busy; i++) {
        Request *r = b->busy[i];
        if (r->ended) continue;
        choose_sequence(b, r);
        if (r->error.text[0]) fail_request(b, r);
        if (!r->sequence || !r->asked.source || r->source_read) continue;
        b->owners[b->n_runs] = r;
        b->runs[b->n_runs++] = (Run){r->sequence, r->asked.source, r->asked.n_source, 0};
    }
    bool read = b->n_runs && heads_read_sources(b->w, b->runs, b->n_runs, &err) == 0;
    for (int i = 0; i < b->n_runs; i++) {
        Request *r = b->owners[i];
        r->source_read = read;
        if (!read) r->error = err;
        if (!read) fail_request(b, r);
    }
}

// Sorts the requests that can run, the fewest tokens left first; returns how many. Where several
// need the same prefix, the first of them stands for all.
static int order_by_tokens_left(heads_batch *b) {
    int n = 0;
    for (int i = 0; i < b->n_busy; i++) {
        Request *r = b->busy[i];
        bool skip = r->ended || !r->running;
        for (int j = 0; j < n; j++) skip |= b->order[j]->running == r->running;
        if (skip) continue;
        int at = n++;
        for (; at > 0 && tokens_left(b->order[at - 1]) > tokens_left(r); at--)
            b->order[at] = b->order[at - 1];
        b->order[at] = r;
    }
    return n;
}

// Adds up to `most` of a request's next tokens to the pass, as far as there are rows for the logits
// that they want; returns how many.
static int add_run(heads_batch *b, Request *r, int most) {
    int done = heads_sequence_length(r->running), n = next_tokens(r), wanted = 0;
    int rows = b->w->logit_rows - b->n_rows;
    if (n > most) n = most;
    if (r->running == r->sequence) wanted = done + n - (done > r->scored ? done : r->scored);
    if (wanted > rows) n -= wanted - rows;
    if (wanted > rows) wanted = rows;
    if (n <= 0) return 0;
    if (wanted < 0) wanted = 0;
    b->owners[b->n_runs] = r;
    b->runs[b->n_runs++] = (Run){r->running, r->ids + done, n, wanted};
    b->n_rows += wanted;
    return n;
}

// Fills a pass of `chunk` tokens. Requests with one token left, which are those that generate, come
// first. Half of the remaining room (rounded up in every other pass) is due to the oldest prompt,
// the rest goes to prompts by tokens left.
static void plan_pass(heads_batch *b) {
    int n = order_by_tokens_left(b), i = 0, room = b->w->chunk, due = 0;
    const Request *oldest = NULL;
    b->n_runs = b->n_rows = 0;
    for (; i < n && tokens_left(b->order[i]) == 1; i++) room -= add_run(b, b->order[i], 1);
    if (room < 1) room = 1;
    for (int j = i; j < n; j++)
        if (!oldest || b->order[j]->number < oldest->number) oldest = b->order[j];
    if (oldest) due = (room + (int)(b->n_passes++ % 2)) / 2;
    if (oldest && next_tokens(oldest) < due) due = next_tokens(oldest);
    for (; i < n && room > 0; i++) {
        if (b->order[i] == oldest) due = 0;
        room -= add_run(b, b->order[i], room - due);
    }
    add_guesses(b, room);
}

// Takes run i out of the pass, since it cannot run. A prefix has failed then, and its requests do
// without it. A request starts once more, in a sequence that shares nothing; then it fails.
static void drop_run(heads_batch *b, int i, const Error *why) {
    Request *r = b->owners[i];
    b->n_runs--;
    memmove(b->owners + i, b->owners + i + 1, sizeof *b->owners * (size_t)(b->n_runs - i));
    memmove(b->runs + i, b->runs + i + 1, sizeof *b->runs * (size_t)(b->n_runs - i));
    if (r->running != r->sequence) {
        missing_prefix(r->prefix)->failed = true;
    } else if (!r->restarted) {
        heads_sequence_free(r->sequence);
        r->sequence = NULL;
        r->restarted = true;
        r->spared = r->guessed = 0;
    } else {
        r->error = *why;
        fail_request(b, r);
    }
}

// Returns the rows of logits, run after run; NULL: there was nothing to run.
static const float *run_pass(heads_batch *b) {
    Error err;
    int failed;
    while (b->n_runs &&
           check_runs(b->w, b->runs, b->n_runs, &failed, &err))
        drop_run(b, failed, &err);
    if (!b->n_runs) return NULL;
    run_passes(b->w, b->runs, b->n_runs, false);
    return b->w->logits.data;
}

// ---- events ----

// Makes a choice of each row of logits of one run; returns how many.
static int add_choices(heads_batch *b, Request *r, const Run *run, const float *logits,
                       Choice *choices) {
    int n_top = r->asked.n_top, n = run->n_logits;
    const Run known = {run->sequence, run->tokens, run->n, n - r->guessed};
    if (check_logits(b->w, &known, logits, &r->error)) return 0;
    if (n * n_top > r->top_room) {
        free(r->top);
        r->top_room = n * n_top;
        r->top = malloc(sizeof *r->top * (size_t)r->top_room);
        if (!r->top) r->top_room = 0, fail(&r->error, "no memory for %d likely tokens", n * n_top);
        if (!r->top) return 0;
    }
    for (int i = 0; i < n; i++) {
        bool given = ++r->scored < r->n_prompt;
        choices[i] = (Choice){.request = r, .given = given, .id = given ? r->ids[r->scored] : 0,
                              .logits = (float *)logits + (size_t)i * b->w->logits.stride,
                              .last = !r->max_tokens && r->scored == r->n_prompt - 1,
                              .top = r->top + (size_t)i * (size_t)n_top,
                              .at = r->guessed ? i : 0};
    }
    return n;
}

// Appends a picked token to its request, and gives the events of a choice.
static void accept(heads_batch *b, const Choice *c) {
    Request *r = c->request;
    const char *stopped = NULL;
    bool failed = r->error.text[0];
    if (!failed && !c->given) {
        failed = make_room(r, 1, &r->error);
        if (!failed) r->ids[r->n_ids++] = c->id;
        if (!failed) stopped = add_token(b, r, c->id, &failed);
    }
    if (failed) {
        fail_request(b, r);
        return;
    }
    heads_event *event = add_event(b, r, c->given ? HEADS_SCORE : HEADS_TOKEN);
    event->id = c->id;
    event->best = c->best;
    event->log_probability = c->log_probability;
    event->top = c->top;
    event->n_top = c->given || r->asked.likely ? r->asked.n_top : 0;
    if (!c->given) event->text = r->text + r->shown, event->len = r->given;
    if (c->last) stopped = "max_tokens";
    if (stopped) end_request(b, r, stopped);
}

// Several tokens of a step have their texts side by side, wherever these are at its end.
static void place_texts(heads_batch *b, const Request *r) {
    const char *text = r->text;
    for (heads_event *e = b->events; e < b->events + b->n_events; e++) {
        if (e->request != r->number || e->kind != HEADS_TOKEN) continue;
        e->text = text;
        text += e->len;
    }
}

static void use_logits(heads_batch *b, const float *logits) {
    int n = 0;
    for (int i = 0; i < b->n_runs; i++) {
        const Run *run = &b->runs[i];
        Request *r = b->owners[i];
        forget_given(r);
        if (run->n_logits) n += add_choices(b, r, run, logits, b->choices + n);
        if (r->error.text[0]) fail_request(b, r);
        logits += (size_t)run->n_logits * b->w->logits.stride;
    }
    make_choices(b, b->choices, n);
    for (int i = 0; i < n; i++)
        if (b->choices[i].made && !b->choices[i].request->ended) accept(b, &b->choices[i]);
    for (int i = 0; i < b->n_runs; i++) {
        Request *r = b->owners[i];
        if (r->guessed) place_texts(b, r);
        if (r->guessed) settle_guesses(b, r);
        if (r->error.text[0] && !r->ended) fail_request(b, r);
    }
}

int heads_batch_step(heads_batch *b, const heads_event **events, Error *err) {
    if (need(b, "a batch", err) || need(events, "room for its events", err)) return -1;
    b->n_events = 0;
    fill_places(b);
    choose_sequences(b);
    double begin = busy_time();
    plan_pass(b);
    const float *logits = run_pass(b);
    if (logits) use_logits(b, logits);
    measure_guesses(b, busy_time() - begin);
    *events = b->events;
    return b->n_events;
}
