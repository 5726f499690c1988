// batch.c: --batch. Many requests, N of them at a time: a pass takes the next token of each that
// generates, and fills the rest of its rows with prompts. What a request gives does not depend on
// the others.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "prefixes.h"
#include "print.h"
#include "requests.h"
#include "results.h"
#include "verbs.h"

enum {
    DEFAULT_SLOTS = 16,
    WINDOW = 1024,  // lines that are searched for shared beginnings
};

typedef struct {  // a request, from its line to its result
    Request request;
    Prefix *prefix;   // what its prompt shares with others, until it has its own sequence
    Text text;        // what was generated; in a buffer of `capacity` bytes
    size_t capacity;
    Ids tokens;       // the same
    Text result;      // its line, once it is done
} Job;

typedef struct {  // a place for a request at work
    Job *job;
    Sequence *sequence;  // kept for the next request, unless it is a fork
    bool begun, forked;  // the job has its sequence; which is a fork
    bool alone;          // runs in passes of its own: its neighbours' pass failed
    Sampler *sampler;
    Decoder *decoder;    // NULL: the model has no tokenizer
    const float *logits; // of the pass that was run
    int picked;          // from them
} Slot;

typedef struct {
    const Options *o;
    Defaults defaults;
    Workspace *w;
    Results results;
    bool closed;              // the reader of stdout has gone
    Text *lines;
    long n_lines, loaded, written, finished, kept, errors;
    Job **jobs;               // [n_lines]: those that are loaded and not written yet
    Prompt waiting[WINDOW];   // loaded and not started, from `next` on
    long n_waiting, next;
    Prefix *prefixes;
    Slot **slots;             // [n_slots], the busy ones first, in the order they were started
    int n_slots, n_busy;
    Run *runs;                // [n_slots], of the next pass
    Slot **owners;            // whose they are; NULL: a prefix
    int n_runs;
    unsigned step;
    double start;
    size_t prompt_tokens, generated, forked_tokens, prefix_tokens;
} Batch;

// ---- results ----

static void finish_job(Batch *b, Job *job, const char *stopped) {
    FILE *f = open_memstream(&job->result.data, &job->result.size);
    const char *error = job->request.error;
    const char *string = error ? error : job->text.data ? job->text.data : "";
    size_t len = error ? strlen(error) : job->text.size;
    char *quoted = json_quote(string, len, &len);
    if (!f || !quoted) die("no memory for a result");
    fputs(job->request.start, f);
    if (error) {
        fprintf(f, "error\": %s}\n", quoted);
        b->errors++;
    } else {
        if (b->defaults.tokenizer) fprintf(f, "text\": %s, \"", quoted);
        fputs("tokens\": [", f);
        for (long i = 0; i < job->tokens.n; i++)
            fprintf(f, "%s%d", i ? ", " : "", job->tokens.data[i]);
        fprintf(f, "], \"stopped\": \"%s\"}\n", stopped);
        b->prompt_tokens += (size_t)(job->request.prompt.n + job->request.source.n);
        b->generated += (size_t)job->tokens.n;
    }
    if (fclose(f) != 0) die("no memory for a result");
    free(quoted);
    b->finished++;
    progress(b->kept + b->finished, b->n_lines, "%ld of %ld requests, %.0f tok/s",
             b->kept + b->finished, b->n_lines, rate((double)b->generated, seconds() - b->start));
}

static void free_job(Job *job) {
    if (!job) return;
    free_request(&job->request);
    free(job->text.data);
    free(job->tokens.data);
    free(job->result.data);
    free(job);
}

// Results are written in the requests' order, each as soon as all before it are there.
static void write_results(Batch *b) {
    for (; b->written < b->loaded && b->jobs[b->written]->result.data; b->written++) {
        Job *job = b->jobs[b->written];
        if (!b->closed) b->closed = !put_result(&b->results, job->result);
        free_job(job);
        b->jobs[b->written] = NULL;
    }
}

// ---- requests that wait ----

// Reads the next lines, and finds out what they share.
static void load_window(Batch *b) {
    b->n_waiting = b->next = 0;
    for (int i = 0; i < WINDOW && b->loaded < b->n_lines; i++, b->loaded++) {
        Text line = b->lines[b->loaded];
        Job *job = b->jobs[b->loaded] = allocate(1, sizeof *job);
        job->request = read_request(&b->defaults, line.data, line.size);
        if (job->request.error || job->request.max_tokens == 0) {
            finish_job(b, job, "max_tokens");
            continue;
        }
        Ids prompt = job->request.prompt;
        b->waiting[b->n_waiting++] = (Prompt){prompt.data, (int)prompt.n, b->loaded, NULL};
    }
    find_prefixes(b->waiting, b->n_waiting, &b->prefixes);
}

// NULL: there are no more.
static Job *next_job(Batch *b) {
    while (b->next == b->n_waiting && b->loaded < b->n_lines) load_window(b);
    if (b->next == b->n_waiting) return NULL;
    const Prompt *prompt = &b->waiting[b->next++];
    Job *job = b->jobs[prompt->index];
    job->prefix = prompt->prefix;
    return job;
}

// ---- prefixes ----

static void release_prefix(Prefix *p) {
    if (!p || --p->users > 0) return;
    sequence_free(p->sequence);
    p->sequence = NULL;
}

static Sequence *fork_prefix(const Prefix *p) {
    Error err;
    return p ? sequence_fork(p->sequence, p->length, &err) : NULL;  // it could also run again
}

// The prefix that has to be run first before this one can be forked; NULL: it can.
static Prefix *missing_prefix(Prefix *p) {
    if (!p || (p->sequence && sequence_length(p->sequence) == p->length)) return NULL;
    Prefix *before = p->sequence ? NULL : missing_prefix(p->parent);
    return before ? before : p;
}

static void begin_prefix(Batch *b, Prefix *p) {
    p->sequence = fork_prefix(p->parent);
    if (p->sequence) b->forked_tokens += (size_t)p->parent->length;
    else p->sequence = open_sequence(b->w, true);
    sequence_expect(p->sequence, p->shortest);
    b->prefix_tokens += (size_t)p->length;
    release_prefix(p->parent);
}

// ---- a slot's request ----

// What the sampler and the decoder have to know of the prompt.
static int begin_text(const Batch *b, Slot *slot, Error *err) {
    const Request *r = &slot->job->request;
    const char *text;
    size_t len;
    int vocab_size = b->defaults.model->vocab_size;
    slot->sampler = sampler_new(workspace_kernels(b->w), vocab_size, &r->sampler,
                                &b->defaults.model->rules, err);
    if (!slot->sampler) return -1;
    const Tokenizer *tokenizer = b->defaults.tokenizer;
    if (tokenizer && !(slot->decoder = decoder_new(tokenizer, !r->is_chat, err))) return -1;
    for (long i = 0; i < r->prompt.n; i++) {
        sampler_accept(slot->sampler, r->prompt.data[i]);
        if (slot->decoder && !r->is_chat && !r->source.data &&
            decoder_push(slot->decoder, r->prompt.data[i], &text, &len, err))
            return -1;
    }
    return 0;
}

static void end_text(Slot *slot) {
    sampler_free(slot->sampler);
    decoder_free(slot->decoder);
    slot->sampler = NULL;
    slot->decoder = NULL;
}

static void start_job(Batch *b, Job *job) {
    Error err;
    Slot *slot = b->slots[b->n_busy++];
    int most = b->defaults.context - (int)job->request.prompt.n + 1;
    if (job->request.max_tokens < most) most = job->request.max_tokens;
    job->tokens.data = allocate((size_t)most, sizeof *job->tokens.data);
    slot->job = job;
    slot->begun = slot->alone = false;
    if (begin_text(b, slot, &err)) die("%s", err.text);
}

static void end_job(Batch *b, Slot *slot, const char *stopped) {
    int i = 0;
    end_text(slot);
    finish_job(b, slot->job, stopped);
    slot->job = NULL;
    while (b->slots[i] != slot) i++;
    b->n_busy--;
    memmove(b->slots + i, b->slots + i + 1, sizeof *b->slots * (size_t)(b->n_slots - 1 - i));
    b->slots[b->n_slots - 1] = slot;
}

// Gives the job a sequence: a fork of what its prompt shares, or the one that the slot had.
static void begin_sequence(Batch *b, Slot *slot) {
    Error err;
    Prefix *prefix = slot->job->prefix;
    Sequence *fork = fork_prefix(prefix);
    if (fork || slot->forked) {
        sequence_free(slot->sequence);
        slot->sequence = fork;
    }
    slot->forked = fork;
    if (fork) b->forked_tokens += (size_t)prefix->length;
    else if (!slot->sequence) slot->sequence = open_sequence(b->w, false);
    else if (sequence_rewind(slot->sequence, 0, &err)) die("%s", err.text);
    sequence_expect(slot->sequence, (int)slot->job->request.prompt.n);
    slot->begun = true;
    release_prefix(prefix);
    slot->job->prefix = NULL;
}

// ---- what it generates ----

// Appends to the text. Whether a stop string is in it now, before which the text then ends.
static bool append_text(Job *job, const char *text, size_t len) {
    size_t old = job->text.size, size = old + len;
    if (size > job->capacity) {
        job->capacity = 2 * size;
        job->text.data = realloc(job->text.data, job->capacity);
        if (!job->text.data) die("no memory for %zu bytes of text", job->capacity);
    }
    if (len > 0) memcpy(job->text.data + old, text, len);
    job->text.size = size;
    for (int i = 0; len > 0 && i < job->request.n_stops; i++) {
        Text stop = job->request.stops[i];
        size_t from = old < stop.size ? 0 : old - stop.size + 1;
        const char *found = memmem(job->text.data + from, size - from, stop.data, stop.size);
        size_t at = found ? (size_t)(found - job->text.data) : size;
        if (at < job->text.size) job->text.size = at;
    }
    return job->text.size < size;
}

static bool ends_text(const Batch *b, const Job *job, int id) {
    const Tokenizer *tokenizer = b->defaults.tokenizer;
    return (tokenizer && tokenizer_is_eos(tokenizer, id)) || id == job->request.answer_end;
}

static const char *stop_reason(const Batch *b, const Slot *slot, int id) {
    const Job *job = slot->job;
    if (ends_text(b, job, id)) return "eos";
    if (job->tokens.n == job->request.max_tokens) return "max_tokens";
    if (sequence_length(slot->sequence) == b->defaults.context) return "context";
    return NULL;
}

static void accept_token(Batch *b, Slot *slot, int id) {
    Error err;
    Job *job = slot->job;
    const char *text = "";
    size_t len = 0;
    sampler_accept(slot->sampler, id);
    job->tokens.data[job->tokens.n++] = id;
    bool shown = slot->decoder && !ends_text(b, job, id);
    if (shown && decoder_push(slot->decoder, id, &text, &len, &err)) die("%s", err.text);
    const char *stopped = append_text(job, text, len) ? "stop" : stop_reason(b, slot, id);
    if (!stopped) return;
    if (slot->decoder && strcmp(stopped, "stop") != 0) {
        if (decoder_finish(slot->decoder, &text, &len, &err)) die("%s", err.text);
        if (append_text(job, text, len)) stopped = "stop";
    }
    end_job(b, slot, stopped);
}

// ---- passes ----

static bool in_prompt(const Slot *slot) {
    return !slot->begun || sequence_length(slot->sequence) < slot->job->request.prompt.n;
}

static void add_run(Batch *b, Slot *owner, Run run) {
    b->owners[b->n_runs] = owner;
    b->runs[b->n_runs++] = run;
}

// Adds up to `room` tokens; returns how many.
static int add_prefix(Batch *b, Prefix *p, int room) {
    if (p->step == b->step) return 0;  // for another of its prompts
    p->step = b->step;
    if (!p->sequence) begin_prefix(b, p);
    int done = sequence_length(p->sequence), n = p->length - done;
    if (n > room) n = room;
    add_run(b, NULL, (Run){p->sequence, p->tokens + done, n, 0});
    return n;
}

static int add_prompt(Batch *b, Slot *slot, int room) {
    Prefix *missing = slot->begun ? NULL : missing_prefix(slot->job->prefix);
    if (missing) return add_prefix(b, missing, room);
    if (!slot->begun) begin_sequence(b, slot);
    Ids prompt = slot->job->request.prompt;
    int done = sequence_length(slot->sequence), n = (int)prompt.n - done;
    bool whole = n <= room;
    if (!whole) n = room;
    add_run(b, slot, (Run){slot->sequence, prompt.data + done, n, whole});
    return n;
}

static void add_token(Batch *b, Slot *slot) {
    Ids tokens = slot->job->tokens;
    add_run(b, slot, (Run){slot->sequence, tokens.data + tokens.n - 1, 1, 1});
}

// After a pass that failed for one of its requests, which it does not name: each runs by itself,
// from its beginning.
static void start_over_alone(Batch *b, const Error *why) {
    Error err;
    int n = 0;
    for (int i = 0; i < b->n_runs; i++) {
        Slot *slot = b->owners[i];
        if (!b->runs[i].n_logits) continue;
        end_text(slot);
        slot->job->tokens.n = 0;
        slot->job->text.size = 0;
        slot->begun = false;
        slot->alone = true;
        if (begin_text(b, slot, &err)) die("%s", err.text);
        n++;
    }
    if (n == 0) die("%s", why->text);
}

static void pick(const void *arg, int item, int thread) {
    Slot *slot = ((Slot *const *)arg)[item];
    (void)thread;
    slot->picked = sampler_pick(slot->sampler, slot->logits);
}

// Each slot whose logits were wanted takes its next token.
static void take_logits(Batch *b, const float *logits) {
    int n = 0;
    for (int i = 0; i < b->n_runs; i++) {
        if (!b->runs[i].n_logits) continue;
        b->owners[n] = b->owners[i];
        b->owners[n++]->logits = logits;
        logits += logit_stride(b->w);
    }
    parallel_for(workspace_pool(b->w), n, pick, b->owners);
    for (int i = 0; i < n; i++) accept_token(b, b->owners[i], b->owners[i]->picked);
}

// Sources of requests that are to begin, side by side.
static void read_new_sources(Batch *b) {
    Error err;
    b->n_runs = 0;
    for (int i = 0; i < b->n_busy; i++) {
        Slot *slot = b->slots[i];
        Ids source = slot->job->request.source;
        if (!source.data || slot->begun) continue;
        begin_sequence(b, slot);
        add_run(b, slot, (Run){slot->sequence, source.data, (int)source.n, 0});
    }
    if (b->n_runs && read_sources(b->w, b->runs, b->n_runs, &err)) die("%s", err.text);
}

static void run_together(Batch *b) {
    Error err;
    int room = workspace_chunk(b->w);
    read_new_sources(b);
    b->n_runs = 0;
    for (int i = 0; i < b->n_busy; i++)
        if (!b->slots[i]->alone && !in_prompt(b->slots[i])) add_token(b, b->slots[i]);
    room = b->n_runs < room ? room - b->n_runs : 1;
    for (int i = 0; i < b->n_busy && room > 0; i++)
        if (!b->slots[i]->alone && in_prompt(b->slots[i])) room -= add_prompt(b, b->slots[i], room);
    if (b->n_runs == 0) return;
    const float *logits = forward_runs(b->w, b->runs, b->n_runs, &err);
    if (logits) take_logits(b, logits);
    else start_over_alone(b, &err);
}

static void run_alone(Batch *b, Slot *slot) {
    Error err;
    b->n_runs = 0;
    if (in_prompt(slot)) add_prompt(b, slot, workspace_chunk(b->w));
    else add_token(b, slot);
    const float *logits = forward_runs(b->w, b->runs, b->n_runs, &err);
    if (logits) {
        take_logits(b, logits);
    } else {
        slot->job->request.error = strdup(err.text);
        end_job(b, slot, NULL);
    }
}

static void step(Batch *b) {
    b->step++;
    run_together(b);
    for (int i = b->n_busy - 1; i >= 0; i--)  // one that ends moves those after it
        if (b->slots[i]->alone) run_alone(b, b->slots[i]);
}

// ---- all of it ----

static void run_batch(Batch *b) {
    Job *job;
    b->start = b->results.synced = seconds();
    for (;;) {
        while (b->n_busy < b->n_slots && (job = next_job(b))) start_job(b, job);
        write_results(b);
        if (b->n_busy == 0 || interrupted || b->closed) return;
        step(b);
    }
}

static void open_slots(Batch *b) {
    b->n_slots = b->o->sequences.n ? b->o->sequences.values[0] : DEFAULT_SLOTS;
    size_t n = (size_t)b->n_slots;
    b->w = open_workspace(b->o, b->defaults.model, b->n_slots);
    b->defaults.context = workspace_context(b->w);
    b->slots = allocate(n, sizeof *b->slots);
    b->runs = allocate(n, sizeof *b->runs);
    b->owners = allocate(n, sizeof *b->owners);
    for (size_t i = 0; i < n; i++) b->slots[i] = allocate(1, sizeof **b->slots);
}

static void close_slots(Batch *b) {
    for (int i = 0; i < b->n_slots; i++) {
        end_text(b->slots[i]);
        sequence_free(b->slots[i]->sequence);
        free(b->slots[i]);
    }
    for (long i = b->written; i < b->loaded; i++) free_job(b->jobs[i]);
    free_prefixes(b->prefixes);
    free(b->slots);
    free(b->runs);
    free(b->owners);
    free(b->jobs);
    free(b->lines);
    workspace_free(b->w);
}

static void closing_line(const Batch *b) {
    double time = seconds() - b->start;
    progress_end();
    fprintf(stderr, "%ld requests", b->finished);
    if (b->kept) fprintf(stderr, " and %ld that were done before", b->kept);
    if (b->errors) fprintf(stderr, ", %ld of them with an error", b->errors);
    fprintf(stderr, "; prompts %s tokens, ", commas(b->prompt_tokens));
    fprintf(stderr, "%s of them spared by shared beginnings; ",
            commas(b->forked_tokens > b->prefix_tokens ? b->forked_tokens - b->prefix_tokens : 0));
    fprintf(stderr, "generated %s, %.1f tok/s\n", commas(b->generated),
            rate((double)b->generated, time));
}

int batch(const Options *o) {
    Model model;
    Batch *b = allocate(1, sizeof *b);
    open_model(&model, o, o->models[0]);
    Tokenizer *tokenizer = open_tokenizer(&model);
    bool from_stdin = strcmp(o->batch, "-") == 0;
    Text text = from_stdin ? read_stream(stdin, "stdin") : read_file(o->batch);
    b->o = o;
    b->defaults = (Defaults){.options = o, .model = &model, .tokenizer = tokenizer};
    Chat *chat = chat_new(&model.file, &b->defaults.no_chat);
    b->defaults.chat = chat;
    b->lines = split_lines(text, &b->n_lines);
    b->jobs = allocate((size_t)b->n_lines, sizeof *b->jobs);
    free(first_tokens(o, &model, tokenizer).data);  // a usage error, if --lang is none
    open_slots(b);
    b->results = open_results(o->out, o->models[0], from_stdin ? "/dev/stdin" : o->batch);
    b->kept = resume_results(&b->results, b->lines, b->n_lines, &b->defaults, &b->errors);
    b->loaded = b->written = b->kept;
    catch_interrupt(SA_RESTART | SA_RESETHAND);
    run_batch(b);
    close_results(&b->results);
    closing_line(b);
    int status = interrupted ? 130 : b->errors && !b->closed ? 1 : 0;
    close_slots(b);
    free(b);
    free(text.data);
    chat_free(chat);
    tokenizer_free(tokenizer);
    model_close(&model);
    return status;
}
