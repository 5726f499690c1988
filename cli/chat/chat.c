// chat.c: --chat, a conversation: what is typed, and the verb.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat/commands.h"
#include "cli/chat/conversation.h"
#include "cli/chat/history.h"
#include "cli/chat/line_edit.h"
#include "cli/print.h"
#include "cli/prompt.h"
#include "cli/verbs.h"
#include "cli/wrap.h"

static const char QUOTES[] = "\"\"\"";  // around a message of many lines
enum { N_QUOTES = sizeof QUOTES - 1 };

// ---- a line, from a file or a terminal without a cursor ----

// Waits for input or Ctrl-C, with a timeout, since Ctrl-C may come just before.
static void wait_for_input(void) {
    enum { MILLISECONDS = 50 };
    while (!interrupted && !input_waits(MILLISECONDS)) {
    }
}

// Appends a line, without its end. False: there is none.
static bool read_line(Text *turn) {
    static bool later;  // a line was read before
    size_t begin = turn->size;
    int byte = getc(stdin);
    if (byte == EOF) return false;
    text_add(turn, "", 0);
    for (; byte != EOF && byte != '\n'; byte = getc(stdin))
        text_add(turn, (char[]){(char)byte}, 1);
    if (!later) drop_mark(turn, begin);
    later = true;
    turn->size = begin + line_size(turn->data + begin, turn->size - begin);
    turn->data[turn->size] = 0;
    return true;
}

// Whether another line belongs to a message: -1, no; else the line's end replaces so many bytes. A
// backslash continues a line.
static int continues(const char *text, size_t len) {
    return len > 0 && text[len - 1] == '\\' ? 1 : -1;
}

// The same at a terminal, where a message may stand in quotes.
static int goes_on(const char *text, size_t len) {
    bool begins = len >= N_QUOTES && memcmp(text, QUOTES, N_QUOTES) == 0;
    if (!begins) return continues(text, len);
    bool ends = len >= 2 * N_QUOTES && memcmp(text + len - N_QUOTES, QUOTES, N_QUOTES) == 0;
    return ends ? -1 : 0;
}

// The data are NULL at the end of the input.
static Text read_lines(const Conversation *c) {
    Text turn = {0};
    for (int replaced = 0; replaced >= 0;) {
        if (c->terminal) fputs(turn.data ? "... " : "> ", stderr);
        wait_for_input();
        interrupt_reads(true);
        bool line = !interrupted && read_line(&turn);
        if (ferror(stdin) && !interrupted) die("cannot read stdin: %s", strerror(errno));
        interrupt_reads(false);
        if (!line) break;
        replaced = (c->terminal ? goes_on : continues)(turn.data, turn.size);
        if (replaced >= 0) {
            turn.size -= (size_t)replaced;
            text_add(&turn, "\n", 1);
        }
    }
    if (!interrupted) return turn;
    free(turn.data);
    return (Text){0};
}

// ---- turns ----

// Takes the quotes off, with the ends of their own lines.
static void unquote(Text *turn) {
    bool quoted = turn->size >= 2 * N_QUOTES && memcmp(turn->data, QUOTES, N_QUOTES) == 0;
    if (!quoted) return;
    size_t begin = N_QUOTES, end = turn->size - N_QUOTES;
    if (begin < end && turn->data[begin] == '\n') begin++;
    if (begin < end && turn->data[end - 1] == '\n') end--;
    turn->size = end - begin;
    memmove(turn->data, turn->data + begin, turn->size);
    turn->data[turn->size] = 0;
}

static Text read_turn(const Conversation *c, LineEdit *editor, bool history) {
    Text turn = editor ? line_edit_read(editor) : read_lines(c);
    if (!turn.data && interrupted && c->terminal && c->unsaved) {
        say(c, "Ctrl-C once more leaves, and the conversation is lost; /save FILE keeps it");
        interrupted = 0;
        turn = editor ? line_edit_read(editor) : read_lines(c);
    }
    if (history && turn.size) history_add(turn);
    if (c->terminal) unquote(&turn);
    return turn;
}

// False: there is no answer, and so no question.
static bool ask(Conversation *c, Text question) {
    messages_add(&c->messages, "user", question.data, question.size);
    bool answered = answer(c);
    if (!answered) messages_drop_last(&c->messages);
    c->unsaved |= answered;
    return answered;
}

static void converse(Conversation *c, LineEdit *editor) {
    bool stays = true, history = editor && !c->p.o->no_history;
    interrupted = 0;
    if (history) history_load(editor);
    for (Text turn; stays && !c->g.closed; free(turn.data)) {
        turn = read_turn(c, editor, history);
        if (!turn.data) break;
        if (turn.size == 0) continue;
        if (turn.data[0] == '/') {
            stays = do_command(c, turn.data);
            continue;
        }
        ask(c, turn);
        interrupted = 0;
        if (c->terminal && !c->g.closed) c->g.closed = !write_out("\n", 1);
    }
}

// ---- the verb ----

static void begin(Conversation *c, const Options *o) {
    if (!c->p.tokenizer) usage("%s has no tokenizer, so it cannot chat", c->p.path);
    c->chat = open_chat(&c->p);
    if (o->no_think && !heads_chat_has_no_think(c->chat))
        usage("--no-think: the template of %s has no switch for thinking", c->p.path);
    if (o->messages) c->messages = read_messages(o->messages);
    if (o->system) {
        if (!heads_chat_uses_system(c->chat))
            usage("-sys: the template of %s has no place for a system message", c->p.path);
        if (c->messages.n) usage("-sys and --messages: give one of them");
        messages_add(&c->messages, "system", o->system, strlen(o->system));
    }
    c->g.answer_end = end_of_answer(&c->p, c->chat);
    c->g.sequence = open_text(&c->p, inspect_forgets(c->p.w));
    c->g.print = print_answer;
    c->g.to = c;
    c->g.stop = "nothing was asked";
    c->terminal = is_terminal(stdin) && is_terminal(stdout);
    c->colours = c->terminal && has_colours(stdout);
    catch_interrupt(false);
}

static void greet(const Conversation *c) {
    say(c, "%s: %.0f MiB, context %s tokens. /help lists commands, Ctrl-C stops an answer, /bye or "
        "Ctrl-D leaves.", base_name(c->p.path),
        (double)c->p.facts.file_bytes / (1 << 20), commas((size_t)heads_workspace_context(c->p.w)));
}

static void talk(Conversation *c) {
    const heads_message *last = c->messages.n ? &c->messages.items[c->messages.n - 1] : NULL;
    bool asked = last && strcmp(last->role, "user") == 0;  // --messages ends with a question
    LineEdit *editor = NULL;
    setvbuf(stdin, NULL, _IONBF, 0);  // so that input_waits knows of all that was not read
    if (c->terminal) greet(c);
    if (asked && !answer(c)) messages_drop_last(&c->messages);
    if (c->terminal && is_screen(stdout)) editor = line_edit_new(goes_on, command_name, c->colours);
    converse(c, editor);
    if (editor) line_edit_free(editor);
}

int chat(const Options *o) {
    static Conversation c;
    open_program(&c.p, o, o->models[0], WITH_TOKENIZER);
    open_workspace(&c.p, 1 + MAX_DRAFT);
    generation_open(&c.g, &c.p);
    begin(&c, o);
    Text question = prompt_text(o);
    if (question.data) c.failed = !ask(&c, question);  // one turn
    else talk(&c);
    closing_line(&c.g);
    free(question.data);
    messages_free(&c.messages);
    heads_chat_free(c.chat);
    free(c.answer.data);
    heads_sequence_free(c.fork);
    generation_close(&c.g);
    close_program(&c.p);
    return interrupted ? 130 : c.failed;
}
