// The text of a request: decoded a token at a time, and ended by EOS, stop strings or limits.
#include <stdlib.h>
#include <string.h>

#include "library/scheduler.h"

int begin_text(heads_batch *b, Request *r) {
    const char *text;
    size_t len;
    bool continues = !r->asked.answer && !r->asked.n_source;  // the text goes on after the prompt
    if (r->max_tokens == 0) return 0;
    r->sampler = heads_sampler_new(b->w, &r->asked.sampler, &r->error);
    if (!r->sampler) return -1;
    if (b->tokenizer) r->decoder = heads_decoder_new(b->tokenizer, !r->asked.answer, &r->error);
    if (b->tokenizer && !r->decoder) return -1;
    for (int i = 0; i < r->n_prompt; i++) {
        heads_sampler_accept(r->sampler, r->ids[i]);
        if (r->decoder && continues &&
            heads_decoder_push(r->decoder, r->ids[i], &text, &len, &r->error))
            return -1;
    }
    return 0;
}

// ---- stop strings ----

// Where a stop string begins in text[from..size), or `size`.
static size_t find_stop(const char *text, size_t size, size_t from, const heads_stop *stop) {
    for (size_t at = from; at + stop->len <= size; at++)
        if (memcmp(text + at, stop->text, stop->len) == 0) return at;
    return size;
}

// How many bytes at the end of a text may be the beginning of a stop string.
static size_t begun_stop(const char *text, size_t size, const heads_stop *stop) {
    size_t n = stop->len - 1 < size ? stop->len - 1 : size;
    while (n && memcmp(text + size - n, stop->text, n) != 0) n--;
    return n;
}

// Appends to r->text. Returns 1 where a stop string has come, before which the text is cut; else 0.
// -1: no memory.
static int append(Request *r, const char *text, size_t len) {
    size_t old = r->size, size = old + len;
    if (size > r->text_room) {
        char *larger = realloc(r->text, 2 * size);
        if (!larger) return fail(&r->error, "no memory for %zu bytes of text", 2 * size);
        r->text = larger;
        r->text_room = 2 * size;
    }
    if (len) memcpy(r->text + old, text, len);
    r->size = size;
    for (int i = 0; len && i < r->asked.n_stops; i++) {
        const heads_stop *stop = &r->asked.stops[i];
        size_t from = old < stop->len ? 0 : old - stop->len + 1;
        size_t at = find_stop(r->text, size, from, stop);
        if (at < r->size) r->size = at;
    }
    return r->size < size;
}

// ---- tokens ----

static bool ends_text(const heads_batch *b, const Request *r, int id) {
    for (int i = 0; i < r->asked.n_stop_ids; i++)
        if (r->asked.stop_ids[i] == id) return true;
    return b->tokenizer && heads_is_eos(b->tokenizer, id);
}

// Sets r->given: all bytes but those that may begin a stop string. finish: the text has ended, so
// what the decoder and stop strings held back is given too. Returns as append does.
static int give_text(Request *r, bool finish) {
    const char *text;
    size_t len, held = 0;
    int stopped = 0;
    if (finish && r->decoder) {
        if (heads_decoder_finish(r->decoder, &text, &len, &r->error)) return -1;
        stopped = append(r, text, len);
    }
    for (int i = 0; !finish && i < r->asked.n_stops; i++) {
        size_t begun = begun_stop(r->text, r->size, &r->asked.stops[i]);
        if (begun > held) held = begun;
    }
    r->given = r->size - held - r->shown;
    return stopped;
}

void forget_given(Request *r) {
    size_t gone = r->shown + r->given;
    r->size -= gone;
    if (r->size) memmove(r->text, r->text + gone, r->size);
    r->shown = r->given = 0;
}

const char *add_token(heads_batch *b, Request *r, int id, bool *failed) {
    const char *text = "", *stopped = NULL;
    size_t len = 0;
    bool ends = ends_text(b, r, id);
    r->shown += r->given;
    *failed = r->decoder && !ends && heads_decoder_push(r->decoder, id, &text, &len, &r->error);
    int found = *failed ? -1 : append(r, text, len);
    if (found > 0) stopped = "stop";
    else if (ends) stopped = "eos";
    else if (r->n_ids - r->n_prompt == r->max_tokens) stopped = "max_tokens";
    else if (r->n_ids - 1 == heads_workspace_context(b->w)) stopped = "context";
    if (found == 0) found = give_text(r, stopped != NULL);
    else r->given = r->size - r->shown;
    *failed = found < 0;
    return found > 0 ? "stop" : stopped;
}
