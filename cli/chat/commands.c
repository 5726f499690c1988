#include "cli/chat/commands.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat/history.h"

static void reset(Conversation *c, const char *none) {
    messages_drop(&c->messages, first_turn(&c->messages), c->messages.n);
    c->nearly_full = c->unsaved = false;
}

static void undo(Conversation *c, const char *none) {
    Messages *m = &c->messages;
    size_t question = m->n, first = first_turn(m);
    while (question > first && strcmp(m->items[question - 1].role, "user") != 0) question--;
    if (question == first) {
        say(c, "nothing has been asked yet that could be taken back");
        return;
    }
    if (c->terminal) say(c, "taken back: %.60s", m->items[question - 1].content);
    messages_drop(m, question - 1, m->n);
    c->nearly_full = false;
}

static void save(Conversation *c, const char *file) {
    heads_error err;
    char *path = from_home(file);
    bool any = c->messages.n, failed = any && write_messages(&c->messages, path, &err);
    c->failed |= failed;
    c->unsaved &= failed;
    if (!any) say(c, "nothing has been said yet that could be saved");
    else if (failed) say(c, "%s", err.text);
    else if (c->terminal) say(c, "saved; --messages %s goes on from there", path);
    free(path);
}

static void set_system(Conversation *c, const char *text) {
    Messages *m = &c->messages;
    if (!heads_chat_uses_system(c->chat)) {
        say(c, "the chat template has no place for a system message");
        return;
    }
    messages_drop(m, 0, first_turn(m));
    if (!*text) return;
    messages_add(m, "system", text, strlen(text));
    heads_message system = m->items[m->n - 1];
    memmove(m->items + 1, m->items, (m->n - 1) * sizeof *m->items);
    m->items[0] = system;
}

static void set_seed(Conversation *c, const char *text) {
    char *end;
    errno = 0;
    unsigned long long seed = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno)
        say(c, "/seed wants a whole number from 0 to 2^64 - 1, found \"%.40s\"", text);
    else c->g.sampling.seed = seed;
}

static void set_temperature(Conversation *c, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0 && value <= 1000))
        say(c, "/temp wants a number from 0 to 1000, found \"%.40s\"", text);
    else c->g.sampling.temperature = (float)value;
}

static void help(Conversation *c, const char *none);

static const struct {
    const char *name, *value;  // value: what it needs; in brackets, what it may have; NULL: nothing
    void (*run)(Conversation *c, const char *value);  // NULL: it leaves
    const char *help;
} COMMANDS[] = {
    {"/help", NULL, help, "this list"},
    {"/undo", NULL, undo, "take back the last question and its answer"},
    {"/reset", NULL, reset, "begin anew; the system message stays"},
    {"/save", "FILE", save, "write the conversation, for --messages FILE"},
    {"/system", "[TEXT]", set_system, "another system message, or none"},
    {"/seed", "N", set_seed, "the seed of the answers from now on"},
    {"/temp", "X", set_temperature, "their temperature; 0: always the most likely token"},
    {"/bye", NULL, NULL, "leave, as /exit and Ctrl-D do"},
    {"/exit", NULL, NULL, NULL},
};
enum { N_COMMANDS = sizeof COMMANDS / sizeof COMMANDS[0] };

static void help(Conversation *c, const char *none) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (COMMANDS[i].help)
            say(c, "%-8s%-7s %s", COMMANDS[i].name, COMMANDS[i].value ? COMMANDS[i].value : "",
                COMMANDS[i].help);
    say(c, "Tab completes a command, Ctrl-R searches what was typed before.");
    say(c, "A backslash at the end of a line continues it, and so do \"\"\" around many lines.");
}

const char *command_name(int i) { return i < N_COMMANDS ? COMMANDS[i].name : NULL; }

bool do_command(Conversation *c, const char *line) {
    size_t len = strcspn(line, " ");
    const char *value = line + len + strspn(line + len, " ");
    for (int i = 0; i < N_COMMANDS; i++) {
        const char *name = COMMANDS[i].name, *wants = COMMANDS[i].value;
        if (strlen(name) != len || memcmp(name, line, len) != 0) continue;
        bool right = wants ? *value || *wants == '[' : !*value;
        if (!right) say(c, "%s wants %s; see /help", name, wants ? wants : "nothing after it");
        else if (COMMANDS[i].run) COMMANDS[i].run(c, value);
        return !right || COMMANDS[i].run;
    }
    say(c, "there is no \"%.40s\": /help lists the commands; a message may begin with a space "
        "before its /", line);
    return true;
}
