// batch.c: --batch. Reads requests, one a line, adds them to the library's scheduler, and writes
// their results in the same order.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/batch/requests.h"
#include "cli/batch/results.h"
#include "cli/languages.h"
#include "cli/print.h"
#include "cli/speculate.h"
#include "cli/verbs.h"

enum {
    DEFAULT_PLACES = 16,
    AT_ONCE = 1024,  // requests added at a time: the scheduler finds common beginnings among these
};

typedef struct {  // a request, from its line to its result
    Line line;
    Text text;        // generated so far,
    Ids tokens;       // and the same as ids
    size_t ids_room;
    Text result;      // its line, once it is done; data NULL: not yet
} Request;

typedef struct {
    Program p;
    Defaults defaults;
    OpenedAdapter *adapters;  // that requests name
    heads_batch *scheduler;
    Results results;
    bool closed;              // the reader of stdout has gone
    Text *lines;              // [n_lines]
    long n_lines;
    long added, written;      // lines before these were added, and their results written
    long finished, kept;      // results of this run, and of one that it continues
    long errors;              // of both
    Request **requests;       // [n_lines]; NULL: not added yet, or written
    long *line_of;            // [n_lines], by the scheduler's number of a request
    double start;
    size_t generated;
} Batch;

// ---- results ----

static void finish_request(Batch *b, Request *request, const char *error, const char *stopped) {
    Text *out = &request->result;
    text_add(out, request->line.start.data, request->line.start.size);
    if (error) {
        text_format(out, "error\": ");
        json_quote(out, error, strlen(error));
        text_format(out, "}\n");
        b->errors++;
    } else {
        if (b->p.tokenizer) {
            text_format(out, "text\": ");
            json_quote(out, request->text.data, request->text.size);
            text_format(out, ", \"");
        }
        text_format(out, "tokens\": [");
        for (long i = 0; i < request->tokens.n; i++)
            text_format(out, "%s%d", i ? ", " : "", request->tokens.data[i]);
        text_format(out, "], \"stopped\": \"%s\"}\n", stopped);
        b->generated += (size_t)request->tokens.n;
    }
    b->finished++;
    progress(b->kept + b->finished, b->n_lines, "%ld of %ld requests, %.0f tok/s",
             b->kept + b->finished, b->n_lines, rate((double)b->generated, seconds() - b->start));
}

static void free_request(Request *request) {
    if (!request) return;
    free_line(&request->line);
    free(request->text.data);
    free(request->tokens.data);
    free(request->result.data);
    free(request);
}

// Writes the results that are done and have no unfinished request before them.
static void write_results(Batch *b) {
    for (; b->written < b->added && b->requests[b->written]->result.data; b->written++) {
        Request *request = b->requests[b->written];
        if (!b->closed) b->closed = !put_result(&b->results, request->result);
        free_request(request);
        b->requests[b->written] = NULL;
    }
}

// ---- requests ----

static void add_requests(Batch *b) {
    for (int i = 0; i < AT_ONCE && b->added < b->n_lines; i++, b->added++) {
        if (b->requests[b->added]) continue;  // it was done before
        Text line = b->lines[b->added];
        Request *request = b->requests[b->added] = allocate(1, sizeof *request);
        request->line = read_line(&b->defaults, line.data, line.size);
        long number = add_line(b->scheduler, &request->line);
        if (number < 0) finish_request(b, request, request->line.error.text, NULL);
        else b->line_of[number] = b->added;
    }
}

static void append_token(Request *request, const heads_event *event) {
    Ids *ids = &request->tokens;
    text_add(&request->text, event->text, event->len);
    ids->data = grown(ids->data, (size_t)ids->n + 1, &request->ids_room, sizeof *ids->data);
    ids->data[ids->n++] = event->id;
}

static void step(Batch *b) {
    heads_error err;
    const heads_event *event;
    int n = heads_batch_step(b->scheduler, &event, &err);
    if (n < 0) die("%s", err.text);
    for (; n > 0; n--, event++) {
        Request *request = b->requests[b->line_of[event->request]];
        if (event->kind == HEADS_TOKEN) append_token(request, event);
        else finish_request(b, request, event->error, event->stopped);
    }
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Leaves out the lines that have only white space. Returns how many are left.
static long without_blank(Text *lines, long n) {
    long left = 0;
    for (long i = 0; i < n; i++) {
        size_t at = 0;
        while (at < lines[i].size && is_blank(lines[i].data[at])) at++;
        if (at < lines[i].size) lines[left++] = lines[i];
    }
    return left;
}

// ---- all of it ----

static void run_batch(Batch *b) {
    b->start = b->results.synced = seconds();
    for (;;) {
        while (!heads_batch_count(b->scheduler).waiting && b->added < b->n_lines) add_requests(b);
        write_results(b);
        bool done = b->kept + b->finished == b->n_lines;
        if (done || interrupted || b->closed) return;
        step(b);
    }
}

static void open_batch(Batch *b) {
    heads_error err;
    int places = b->p.o->sequences.n ? b->p.o->sequences.values[0] : DEFAULT_PLACES;
    open_workspace(&b->p, places * (1 + guesses_of_pass(&b->p)));
    heads_batch_options options = {.places = places, .tokenizer = b->p.tokenizer};
    open_guesses(&b->p);
    b->scheduler = heads_batch_new(b->p.w, &options, &err);
    if (!b->scheduler) die("%s", err.text);
    b->requests = allocate((size_t)b->n_lines, sizeof *b->requests);
    b->line_of = allocate((size_t)b->n_lines, sizeof *b->line_of);
}

// Takes over what the file has already.
static void resume(Batch *b, bool again) {
    Text *later = allocate((size_t)b->n_lines, sizeof *later);
    b->kept = resume_results(&b->results, b->lines, b->n_lines, &b->defaults, again, later,
                             &b->errors);
    b->added = b->written = b->kept;
    for (long i = 0; i < b->n_lines; i++) {
        if (!later[i].data) continue;
        b->requests[i] = allocate(1, sizeof **b->requests);
        b->requests[i]->result = later[i];
        b->kept++;
    }
    free(later);
}

static void close_batch(Batch *b) {
    for (long i = b->written; i < b->n_lines; i++) free_request(b->requests[i]);
    heads_batch_free(b->scheduler);
    free(b->requests);
    free(b->line_of);
    free(b->lines);
    close_adapters(b->adapters);
    close_program(&b->p);
    free(b);
}

static void closing_line(const Batch *b) {
    double time = seconds() - b->start;
    heads_batch_counts counts = heads_batch_count(b->scheduler);
    progress_end();
    fprintf(stderr, "%ld request%s", b->finished, b->finished == 1 ? "" : "s");
    if (b->kept) fprintf(stderr, " and %ld that were done before", b->kept);
    if (b->errors) fprintf(stderr, ", %ld of them with an error", b->errors);
    fprintf(stderr, "; prompts %s tokens, %s of them spared by shared beginnings; ",
            commas(counts.prompt_tokens), commas(counts.spared));
    fprintf(stderr, "generated %s, %.1f tok/s", commas(b->generated),
            rate((double)b->generated, time));
    if (counts.drafted)
        fprintf(stderr, "; drafted %s, accepted %s", commas(counts.drafted),
                commas(counts.accepted));
    fprintf(stderr, "\n");
}

int batch(const Options *o) {
    Batch *b = allocate(1, sizeof *b);
    open_program(&b->p, o, o->models[0], WITH_TOKENIZER);
    bool from_stdin = strcmp(o->batch, "-") == 0;
    Text text = from_stdin ? read_stream(stdin, "stdin") : read_file(o->batch);
    b->defaults.program = &b->p;
    b->defaults.adapters = &b->adapters;
    heads_chat *chat = heads_chat_new(b->p.model, &b->defaults.no_chat);
    b->defaults.chat = chat;
    b->lines = split_lines(text, &b->n_lines);
    b->n_lines = without_blank(b->lines, b->n_lines);
    free(first_tokens(&b->p).data);  // a usage error, if --lang is none
    open_batch(b);
    b->results = open_results(o->out, o->models[0], from_stdin ? "/dev/stdin" : o->batch);
    if (b->results.regular) set_maker(&b->defaults);
    resume(b, o->again);
    catch_interrupt(true);
    run_batch(b);
    close_results(&b->results);
    closing_line(b);
    int status = interrupted ? 130 : b->errors && !b->closed ? 1 : 0;
    heads_chat_free(chat);
    close_batch(b);
    free(text.data);
    return status;
}
