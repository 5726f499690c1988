// chat.c: --chat, a conversation. Each turn renders the whole conversation anew, since a template
// may write the past otherwise than the present; what the cache holds of it does not run again.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate.h"
#include "messages.h"
#include "print.h"
#include "verbs.h"

typedef struct {
    Generation g;
    Chat *chat;
    Messages messages;
    Sequence *base;   // a fork at the end of the past, where the model may forget it; or NULL
    bool terminal;    // both ends are one: a prompt, dim thoughts
    char *answer;     // so far
    size_t answer_len;
    bool thinking;
} Conversation;

// ---- printing ----

// Thoughts are dim at a terminal. A tag is seen when it is whole, so its end may be late by a token.
static void print_answer(void *to, const char *text, size_t len) {
    static const char begin[] = "<think>", end[] = "</think>";
    Conversation *c = to;
    char *longer = realloc(c->answer, c->answer_len + len + 1);
    if (!longer) die("no memory for the answer");
    c->answer = longer;
    memcpy(c->answer + c->answer_len, text, len);
    c->answer_len += len;
    c->answer[c->answer_len] = 0;
    if (c->terminal && !c->thinking && strstr(c->answer, begin) && !strstr(c->answer, end)) {
        c->thinking = true;
        c->g.closed |= !write_out("\033[2m", 4);
    }
    if (len > 0 && !c->g.closed) c->g.closed = !write_out(text, len);
    if (c->thinking && strstr(c->answer, end)) {
        c->thinking = false;
        c->g.closed |= !write_out("\033[0m", 4);
    }
}

static void say(const Conversation *c, const char *text) {
    fprintf(stderr, "%s%s\n", c->terminal ? "" : "run: ", text);
}

// ---- the cache ----

static int common_length(const Sequence *s, const int *ids, int n) {
    int common = 0, length = sequence_length(s);
    const int *had = sequence_tokens(s);
    while (common < length && common < n && had[common] == ids[common]) common++;
    return common;
}

// Leaves in the sequence what it has in common with the first n ids. Where it has forgotten how to
// go back, the fork at the end of the past takes its place, or an empty one.
static void go_back(Conversation *c, const int *ids, int n) {
    Error err;
    int common = common_length(c->g.sequence, ids, n);
    if (sequence_rewind(c->g.sequence, common, &err) == 0) return;
    sequence_free(c->g.sequence);
    c->g.sequence = c->base;
    c->base = NULL;
    common = c->g.sequence ? common_length(c->g.sequence, ids, n) : 0;
    if (c->g.sequence && sequence_rewind(c->g.sequence, common, &err) == 0) return;
    sequence_free(c->g.sequence);
    c->g.sequence = open_sequence(c->g.w, true);
}

// Runs the ids that the past and the prompt have in common, and keeps a fork there: an answer that a
// template writes otherwise once it is past would else cost the whole conversation.
static int keep_base(Conversation *c, Ids prompt, Ids past, Error *err) {
    int n = 0, length = sequence_length(c->g.sequence);
    while (n < past.n && n < prompt.n - 1 && past.data[n] == prompt.data[n]) n++;
    sequence_free(c->base);
    c->base = NULL;
    if (!workspace_forgets(c->g.w) || n < length) return 0;
    while (length < n) {
        int left = n - length, chunk = c->g.o->workspace.chunk;
        const int *ids = prompt.data + length;
        if (!forward(c->g.sequence, ids, left < chunk ? left : chunk, 0, err)) return -1;
        length = sequence_length(c->g.sequence);
    }
    c->base = sequence_fork(c->g.sequence, n, err);
    return c->base || n == 0 ? 0 : -1;
}

// ---- a turn ----

// The ids of the conversation so far. False: it cannot be written or does not fit, which is said.
static bool render(Conversation *c, bool prompt, Ids *ids) {
    Error err;
    *ids = conversation_ids(c->g.o, c->chat, c->g.tokenizer, &c->messages, prompt, &err);
    if (ids->n < 0) {
        say(c, err.text);
        return false;
    }
    check_ids(*ids, &c->g.model);
    int context = workspace_context(c->g.w);
    if (ids->n < context) return true;
    fprintf(stderr, "the conversation has %ld tokens and the context room for %d: /reset begins "
            "anew, a larger -c or a shorter message may do\n", ids->n, context);
    free(ids->data);
    return false;
}

// Answers the last message; false: it could not be.
static bool answer(Conversation *c) {
    Error err;
    Ids prompt, past;
    if (!render(c, true, &prompt)) return false;
    past = conversation_ids(c->g.o, c->chat, c->g.tokenizer, &c->messages, false, &err);
    if (past.n < 0) past.n = 0;
    go_back(c, prompt.data, (int)prompt.n - 1);
    for (long i = sequence_length(c->g.sequence); i < prompt.n; i++)
        sampler_accept(c->g.sampler, prompt.data[i]);
    c->answer_len = 0;
    interrupted = 0;
    if (keep_base(c, prompt, past, &err) || generate_text(&c->g, prompt, &err)) die("%s", err.text);
    free(prompt.data);
    free(past.data);
    if (c->thinking) c->g.closed |= !write_out("\033[0m", 4);
    c->thinking = false;
    c->g.closed |= !write_out("\n", 1);
    messages_add(&c->messages, "assistant", c->answer ? c->answer : "", c->answer_len);
    if (strcmp(c->g.stop, "context full") == 0)
        say(c, "the context is full: /reset begins anew, or start with a larger -c");
    return true;
}

// ---- what is typed ----

// A turn: a line, or several of which all but the last end in a backslash. NULL: no more.
static char *read_turn(const Conversation *c, size_t *len) {
    char *turn = NULL, *line = NULL;
    size_t size = 0, used = 0;
    for (bool more = true; more;) {
        if (c->terminal) fputs(used ? "... " : "> ", stderr);
        catch_interrupt(false);  // Ctrl-C ends the waiting
        ssize_t n = getline(&line, &size, stdin);
        catch_interrupt(true);
        if (n < 0) break;
        if (n > 0 && line[n - 1] == '\n') n--;
        more = n > 0 && line[n - 1] == '\\';
        if (more) line[n - 1] = '\n';
        turn = realloc(turn, used + (size_t)n + 1);
        if (!turn) die("no memory for a message");
        memcpy(turn + used, line, (size_t)n);
        used += (size_t)n;
        turn[used] = 0;
    }
    free(line);
    *len = used;
    return turn;
}

static void reset(Conversation *c) {
    bool system = c->messages.n && strcmp(c->messages.items[0].role, "system") == 0;
    while (c->messages.n > system) messages_drop_last(&c->messages);
}

// True: it was a command, and is done.
static bool command(Conversation *c, const char *turn, bool *leave) {
    Error err;
    if (turn[0] != '/') return false;
    *leave = strcmp(turn, "/exit") == 0;
    if (*leave) return true;
    if (strcmp(turn, "/reset") == 0) {
        reset(c);
    } else if (strncmp(turn, "/save ", 6) == 0 && turn[6]) {
        if (write_messages(&c->messages, turn + 6, &err)) say(c, err.text);
    } else {
        say(c, "there is /reset, /save FILE (for --messages) and /exit");
    }
    return true;
}

static void converse(Conversation *c) {
    bool leave = false;
    size_t len;
    interrupted = 0;
    for (char *turn; !leave && !c->g.closed && (turn = read_turn(c, &len)); free(turn)) {
        if (len == 0 || command(c, turn, &leave)) continue;
        messages_add(&c->messages, "user", turn, len);
        if (!answer(c)) messages_drop_last(&c->messages);
        interrupted = 0;
    }
    if (c->terminal && !leave) fputc('\n', stderr);
}

// ---- the verb ----

static void begin(Conversation *c, const Options *o) {
    if (!c->g.tokenizer) usage("%s has no tokenizer, so it cannot chat", o->models[0]);
    c->chat = open_chat(&c->g.model, o->models[0]);
    if (o->no_think && !chat_has_no_think(c->chat))
        usage("--no-think: the template of %s has no switch for thinking", o->models[0]);
    if (o->messages) c->messages = read_messages(o->messages);
    if (o->system) {
        if (chat_system(c->chat) != CHAT_SYSTEM_USED)
            usage("-sys: the template of %s has no place for a system message", o->models[0]);
        if (c->messages.n) usage("-sys and --messages: give one of them");
        messages_add(&c->messages, "system", o->system, strlen(o->system));
    }
    c->g.answer_end = chat_stop(c->chat, c->g.tokenizer);
    c->g.sequence = open_sequence(c->g.w, workspace_forgets(c->g.w));
    c->g.print = print_answer;
    c->g.to = c;
    c->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

int chat(const Options *o) {
    static Conversation c;
    generation_open(&c.g, o);
    begin(&c, o);
    const Message *last = c.messages.n ? &c.messages.items[c.messages.n - 1] : NULL;
    if (last && strcmp(last->role, "user") == 0) answer(&c);  // of --messages
    converse(&c);
    closing_line(&c.g);
    messages_free(&c.messages);
    chat_free(c.chat);
    sequence_free(c.base);
    free(c.answer);
    generation_close(&c.g);
    return interrupted ? 130 : 0;
}
