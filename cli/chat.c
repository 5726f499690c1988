// chat.c: --chat, a conversation. Each turn renders the whole conversation anew, since a template
// may write past turns differently; what the cache holds of it is not run again.
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate.h"
#include "messages.h"
#include "print.h"
#include "verbs.h"

static const char BEGIN_THOUGHT[] = "<think>", END_THOUGHT[] = "</think>";

typedef struct {
    Generation g;
    Chat *chat;
    Messages messages;
    bool terminal;    // both ends are one: a prompt, dim thoughts
    char *answer;     // so far, NULL or with a zero byte after it
    size_t answer_len;
    bool thinking;
} Conversation;

// ---- printing ----

static void print_text(Conversation *c, const char *text, size_t len) {
    if (len > 0 && !c->g.closed) c->g.closed = !write_out(text, len);
}

// A thought is dim at a terminal.
static void set_thinking(Conversation *c, bool thinking) {
    if (!c->terminal || c->thinking == thinking) return;
    c->thinking = thinking;
    print_text(c, thinking ? "\033[2m" : "\033[0m", 4);
}

// A tag is seen when it is whole, so a thought may turn dim late by a token.
static void print_answer(void *to, const char *text, size_t len) {
    Conversation *c = to;
    char *longer = realloc(c->answer, c->answer_len + len + 1);
    if (!longer) die("no memory for the answer");
    c->answer = longer;
    memcpy(c->answer + c->answer_len, text, len);
    c->answer_len += len;
    c->answer[c->answer_len] = 0;
    bool ended = strstr(c->answer, END_THOUGHT);
    if (!ended && strstr(c->answer, BEGIN_THOUGHT)) set_thinking(c, true);
    print_text(c, text, len);
    if (ended) set_thinking(c, false);
}

__attribute__((format(printf, 2, 3)))
static void say(const Conversation *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs(c->terminal ? "" : "run: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

// ---- the cache ----

// Leaves in the sequence what it has in common with the first n ids. Where it has forgotten how to
// go back, the fork at the end of the past takes its place, or an empty one.
static void go_back(Conversation *c, const int *ids, int n) {
    Error err;
    int common = sequence_common(c->g.sequence, ids, n);
    if (sequence_rewind(c->g.sequence, common, &err) == 0) return;
    sequence_free(c->g.sequence);
    c->g.sequence = c->g.fork;
    c->g.fork = NULL;
    common = c->g.sequence ? sequence_common(c->g.sequence, ids, n) : 0;
    if (c->g.sequence && sequence_rewind(c->g.sequence, common, &err) == 0) return;
    sequence_free(c->g.sequence);
    c->g.sequence = open_sequence(c->g.w, workspace_forgets(c->g.w));
}

// Where the past ends in the prompt. A fork is kept there if the model may forget: an answer that a
// template writes otherwise once it is past would else cost the whole conversation.
static int end_of_past(const Conversation *c, Ids prompt, Ids past) {
    int n = 0;
    if (!workspace_forgets(c->g.w)) return -1;
    while (n < past.n && n < prompt.n - 1 && past.data[n] == prompt.data[n]) n++;
    return n > 0 ? n : -1;
}

// ---- a turn ----

// The ids of the conversation so far. False: it cannot be written or does not fit, which is said.
static bool render(Conversation *c, Ids *ids) {
    Error err;
    int context = workspace_context(c->g.w);
    *ids = conversation_ids(c->g.o, c->chat, c->g.tokenizer, &c->messages, true, &err);
    long unknown = 0;
    while (unknown < ids->n && ids->data[unknown] < c->g.model.vocab_size) unknown++;
    if (ids->n < 0) say(c, "%s; say it otherwise, or /reset", err.text);
    else if (ids->n == 0) say(c, "the chat template makes nothing of this conversation");
    else if (unknown < ids->n)
        say(c, "the model has no token %d, which the tokenizer finds in this; say it otherwise",
            ids->data[unknown]);
    else if (ids->n >= context)
        say(c, "the conversation has %ld tokens and the context room for %d: /reset begins anew, "
            "a shorter message or a larger -c may do", ids->n, context);
    else return true;
    free(ids->data);
    return false;
}

// Whether a prompt ends in the beginning of a thought, as some templates have it.
static bool begins_thought(const Conversation *c, Ids prompt) {
    Error err;
    enum { LAST = 8, TAG = sizeof BEGIN_THOUGHT - 1 };
    char end[LAST * 64] = "";
    size_t used = 0, len;
    const char *text;
    Decoder *d = decoder_new(c->g.tokenizer, false, &err);
    if (!d) die("%s", err.text);
    for (long i = prompt.n > LAST ? prompt.n - LAST : 0; i < prompt.n; i++) {
        if (decoder_push(d, prompt.data[i], &text, &len, &err)) die("%s", err.text);
        if (len > sizeof end - used) len = sizeof end - used;
        memcpy(end + used, text, len);
        used += len;
    }
    decoder_free(d);
    while (used > 0 && strchr(" \n", end[used - 1])) used--;
    return used >= TAG && memcmp(end + used - TAG, BEGIN_THOUGHT, TAG) == 0;
}

static void generate_answer(Conversation *c, Ids prompt) {
    Error err, unused;
    Ids past = conversation_ids(c->g.o, c->chat, c->g.tokenizer, &c->messages, false, &unused);
    go_back(c, prompt.data, (int)prompt.n - 1);
    c->g.fork_at = end_of_past(c, prompt, past);
    free(past.data);
    start_text(&c->g);
    for (long i = 0; i < prompt.n; i++) sampler_accept(c->g.sampler, prompt.data[i]);
    c->answer_len = 0;
    set_thinking(c, c->terminal && begins_thought(c, prompt));
    if (generate_text(&c->g, prompt, &err)) die("%s", err.text);
    set_thinking(c, false);
    print_text(c, "\n", 1);
}

// Answers the last message. False: it could not be, which is said.
static bool answer(Conversation *c) {
    Ids prompt;
    if (!render(c, &prompt)) return false;
    generate_answer(c, prompt);
    free(prompt.data);
    if (c->answer_len == 0) {  // many a template cannot write such an answer
        say(c, "there is no answer, so the message is forgotten");
        return false;
    }
    messages_add(&c->messages, "assistant", c->answer, c->answer_len);
    if (strcmp(c->g.stop, "context full") == 0)
        say(c, "the context is full: /reset begins anew, or start with a larger -c");
    else if (strcmp(c->g.stop, "-n reached") == 0)
        say(c, "the answer was cut off at -n %d", c->g.o->n_generate);
    return true;
}

// ---- what is typed ----

// Waits for input or Ctrl-C. It looks now and then, as Ctrl-C may come just before it waits.
static void wait_for_input(void) {
    enum { MILLISECONDS = 50 };
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!interrupted && poll(&in, 1, MILLISECONDS) <= 0) {
    }
}

// A turn: a line, or several of which all but the last end in a backslash. NULL: no more.
static char *read_turn(const Conversation *c, size_t *len) {
    char *turn = NULL, *line = NULL;
    size_t size = 0, used = 0;
    for (bool more = true; more;) {
        if (c->terminal) fputs(used ? "... " : "> ", stderr);
        wait_for_input();
        catch_interrupt(0);  // Ctrl-C ends the reading too
        ssize_t n = interrupted ? -1 : getline(&line, &size, stdin);
        catch_interrupt(SA_RESTART);
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
    if (!interrupted) return turn;
    free(turn);
    return NULL;
}

static void reset(Conversation *c) {
    bool system = c->messages.n && strcmp(c->messages.items[0].role, "system") == 0;
    while (c->messages.n > system) messages_drop_last(&c->messages);
}

static void save(const Conversation *c, const char *path) {
    Error err;
    if (c->messages.n == 0) say(c, "nothing has been said yet that could be saved");
    else if (write_messages(&c->messages, path, &err)) say(c, "%s", err.text);
    else if (c->terminal) say(c, "saved; --messages %s goes on from there", path);
}

// True: it was a command, and is done.
static bool command(Conversation *c, const char *turn, bool *leave) {
    if (turn[0] != '/') return false;
    if (strcmp(turn, "/exit") == 0) *leave = true;
    else if (strcmp(turn, "/reset") == 0) reset(c);
    else if (strncmp(turn, "/save ", 6) == 0 && turn[6]) save(c, turn + 6);
    else
        say(c, "there is /reset, /save FILE (for --messages) and /exit; a message may begin with "
            "a space before its /");
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
    c->g.stop = "nothing was asked";
    c->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    setvbuf(stdin, NULL, _IONBF, 0);  // what is not read yet can be waited for
    catch_interrupt(SA_RESTART);
}

int chat(const Options *o) {
    static Conversation c;
    generation_open(&c.g, o);
    begin(&c, o);
    const Message *last = c.messages.n ? &c.messages.items[c.messages.n - 1] : NULL;
    bool asked = last && strcmp(last->role, "user") == 0;  // by --messages
    if (asked && !answer(&c)) messages_drop_last(&c.messages);
    converse(&c);
    closing_line(&c.g);
    messages_free(&c.messages);
    chat_free(c.chat);
    free(c.answer);
    generation_close(&c.g);
    return interrupted ? 130 : 0;
}
