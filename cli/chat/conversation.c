#include "cli/chat/conversation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print.h"
#include "cli/prompt.h"
#include "cli/wrap.h"

static const char BEGIN_THOUGHT[] = "<think>", END_THOUGHT[] = "</think>";

// ---- printing ----

static void print_text(Conversation *c, const char *text, size_t len) {
    if (len > 0 && !c->g.closed) c->g.closed = !write_words(text, len);
}

// A thought is dim.
static void set_thinking(Conversation *c, bool thinking) {
    if (!c->colours || c->thinking == thinking || c->g.closed) return;
    c->thinking = thinking;
    c->g.closed = !write_out(thinking ? "\033[2m" : "\033[0m", 4);
}

// A thought turns dim only when its tag is whole, which may be a token late.
void print_answer(void *to, const char *text, size_t len) {
    Conversation *c = to;
    text_add(&c->answer, text, len);
    bool ended = strstr(c->answer.data, END_THOUGHT);
    if (!ended && strstr(c->answer.data, BEGIN_THOUGHT)) set_thinking(c, true);
    print_text(c, text, len);
    if (ended) set_thinking(c, false);
}

void say(const Conversation *c, const char *format, ...) {
    char text[1024] = "";
    va_list args;
    va_start(args, format);
    if (!c->terminal) snprintf(text, sizeof text, "%s: ", program_name());
    vsnprintf(text + strlen(text), sizeof text - strlen(text) - 1, format, args);
    va_end(args);
    strcat(text, "\n");
    say_words(text);
}

// ---- the cache ----

// Rewinds the sequence to what it has in common with ids[0..n). If it cannot be rewound, the fork
// takes its place, or an empty sequence.
static void go_back(Conversation *c, const int *ids, int n) {
    heads_sequence **s = &c->g.sequence;
    if (heads_sequence_rewind(*s, heads_sequence_common(*s, ids, n), NULL) == 0) return;
    heads_sequence_free(*s);
    *s = c->fork;
    c->fork = NULL;
    if (*s && heads_sequence_rewind(*s, heads_sequence_common(*s, ids, n), NULL) == 0) return;
    heads_sequence_free(*s);
    *s = open_text(&c->p, inspect_forgets(c->p.w));
}

// Keeps a fork where the past turns end in the prompt, if the model may forget. Templates may write
// the answer differently once it is past; without the fork all of the conversation would run again.
static void keep_past(Conversation *c, Ids prompt, Ids past) {
    heads_error err;
    const float *logits;
    heads_sequence *s = c->g.sequence;
    int n = 0;
    if (!inspect_forgets(c->p.w)) return;
    while (n < past.n && n < prompt.n - 1 && past.data[n] == prompt.data[n]) n++;
    if (n == 0 || n < heads_sequence_length(s)) return;
    heads_sequence_expect(s, (int)prompt.n);
    if (prefill(&c->g, (Ids){prompt.data, n}, &logits, &err)) die("%s", err.text);
    if (interrupted) return;
    heads_sequence_free(c->fork);
    c->fork = heads_sequence_fork(s, n, &err);
    if (!c->fork) die("%s", err.text);
}

// ---- the prompt ----

size_t first_turn(const Messages *m) {
    return m->n > 0 && strcmp(m->items[0].role, "system") == 0;
}

// The ids without the messages from the first turn up to `begin`.
static Ids ids_from(const Conversation *c, size_t begin, heads_error *err) {
    const Messages *m = &c->messages;
    size_t system = first_turn(m);
    Messages part = {.items = allocate(m->n, sizeof *m->items), .n = m->n - (begin - system)};
    memcpy(part.items, m->items, system * sizeof *m->items);
    memcpy(part.items + system, m->items + begin, (m->n - begin) * sizeof *m->items);
    Ids ids = conversation_ids(&c->p, c->chat, &part, true, err);
    free(part.items);
    return ids;
}

// Tokens that an answer should have room for.
static int answer_room(const Conversation *c) {
    int quarter = heads_workspace_context(c->p.w) / 4, most = c->p.o->n_generate;
    return most < quarter ? most : quarter;
}

// The ids of the conversation. If they leave no room for an answer, the oldest turns are dropped,
// so many that the rest takes half of the context, since the cache loses all that came after them.
static Ids fitting_ids(Conversation *c, heads_error *err) {
    Messages *m = &c->messages;
    int context = heads_workspace_context(c->p.w), turns = 0;
    size_t first = first_turn(m), begin = first;
    Ids ids = ids_from(c, begin, err);
    if (ids.n + answer_room(c) <= context) return ids;
    while (ids.n > context / 2) {
        size_t next = begin + 1;
        while (next < m->n && strcmp(m->items[next].role, "user") != 0) next++;
        if (next >= m->n) break;
        free(ids.data);
        ids = ids_from(c, begin = next, err);
        turns++;
    }
    if (ids.n < 0 || ids.n >= context || turns == 0) return ids;
    messages_drop(m, first, begin);
    c->nearly_full = false;
    if (turns == 1) say(c, "the context is full: the oldest turn is dropped");
    else say(c, "the context is full: the %d oldest turns are dropped", turns);
    return ids;
}

// False: it cannot be written or does not fit; says why.
static bool render(Conversation *c, Ids *ids) {
    heads_error err;
    int context = heads_workspace_context(c->p.w);
    *ids = fitting_ids(c, &err);
    long unknown = 0;
    while (unknown < ids->n && ids->data[unknown] < c->p.shape.vocab_size) unknown++;
    if (ids->n < 0) say(c, "%s; say it otherwise, or /reset", err.text);
    else if (ids->n == 0) say(c, "the chat template makes nothing of this conversation");
    else if (unknown < ids->n)
        say(c, "the model has no token %d, which the tokenizer finds in this; say it otherwise",
            ids->data[unknown]);
    else if (ids->n >= context)
        say(c, "the message makes a prompt of %ld tokens, and the context has room for %d: a "
            "shorter one or a larger -c may do", ids->n, context);
    else return true;
    c->failed |= ids->n < 0 && no_memory(&err);
    free(ids->data);
    return false;
}

// ---- the answer ----

// Whether a prompt ends in the beginning of a thought, as some templates have it.
static bool begins_thought(const Conversation *c, Ids prompt) {
    heads_error err;
    enum { LAST = 8, TAG = sizeof BEGIN_THOUGHT - 1 };
    char end[LAST * 64] = "";
    size_t used = 0, len;
    const char *text;
    heads_decoder *d = heads_decoder_new(c->p.tokenizer, false, &err);
    if (!d) die("%s", err.text);
    for (long i = prompt.n > LAST ? prompt.n - LAST : 0; i < prompt.n; i++) {
        if (heads_decoder_push(d, prompt.data[i], &text, &len, &err)) die("%s", err.text);
        if (len > sizeof end - used) len = sizeof end - used;
        memcpy(end + used, text, len);
        used += len;
    }
    heads_decoder_free(d);
    while (used > 0 && strchr(" \n", end[used - 1])) used--;
    return used >= TAG && memcmp(end + used - TAG, BEGIN_THOUGHT, TAG) == 0;
}

static void generate_answer(Conversation *c, Ids prompt) {
    heads_error err, unused;
    Ids past = conversation_ids(&c->p, c->chat, &c->messages, false, &unused);
    go_back(c, prompt.data, (int)prompt.n - 1);
    c->g.reused += heads_sequence_length(c->g.sequence);
    keep_past(c, prompt, past);
    free(past.data);
    start_text(&c->g);
    for (long i = 0; i < prompt.n; i++) heads_sampler_accept(c->g.sampler, prompt.data[i]);
    c->answer.size = 0;
    set_thinking(c, begins_thought(c, prompt));
    if (generate_text(&c->g, prompt, &err)) die("%s", err.text);
    set_thinking(c, false);
    print_text(c, "\n", 1);
}

// Says why an answer was cut off, and that turns will be dropped before they are: unless the next
// message takes more than a quarter of the context.
static void report(Conversation *c) {
    bool full = strcmp(c->g.stop, "context full") == 0, once = c->p.o->prompt;
    int context = heads_workspace_context(c->p.w);
    int used = heads_sequence_length(c->g.sequence) + answer_room(c);
    bool told = c->nearly_full;
    c->nearly_full = full || used > context - context / 4;
    if (strcmp(c->g.stop, "-n reached") == 0)
        say(c, "the answer was cut off at -n %d", c->p.o->n_generate);
    if (full && once) say(c, "the context is full, which ended the answer; choose a larger -c");
    else if (full || (c->nearly_full && !told && !once))
        say(c, "the context is %s: the oldest turns are dropped next; /save FILE keeps them, and a "
            "larger -c has room for more", full ? "full, which ended the answer" : "nearly full");
}

bool answer(Conversation *c) {
    Ids prompt;
    if (!render(c, &prompt)) return false;
    generate_answer(c, prompt);
    free(prompt.data);
    if (c->answer.size == 0) {  // which many templates cannot write
        say(c, "there is no answer, so the message is forgotten");
        return false;
    }
    messages_add(&c->messages, "assistant", c->answer.data, c->answer.size);
    report(c);
    return true;
}
