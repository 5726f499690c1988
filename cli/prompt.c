#include "prompt.h"

#include <stdlib.h>
#include <string.h>

#include "languages.h"
#include "print.h"

Ids encode(const Program *p, Text text, bool add_special) {
    heads_error err;
    Ids ids;
    const char *data = text.data ? text.data : "";
    ids.n = heads_encode(p->tokenizer, data, text.size, add_special, &ids.data, &err);
    if (ids.n < 0) die("%s", err.text);
    return ids;
}

int prompt_vocabulary(const Program *p) {
    return p->shape.source_vocab ? p->shape.source_vocab : p->shape.vocab_size;
}

void check_ids(const Program *p, Ids ids) {
    int vocab_size = prompt_vocabulary(p);
    for (long i = 0; i < ids.n; i++)
        if (ids.data[i] >= vocab_size)
            die("the text has token %d, which the tokenizer knows and the model does not: its ids "
                "are 0 to %d", ids.data[i], vocab_size - 1);
}

// ---- conversations ----

heads_chat *open_chat(const Program *p) {
    heads_error err;
    heads_chat *chat = heads_chat_new(p->model, &err);
    bool in_repository = strcmp(program_command(), "./run") == 0;
    if (!chat)
        die("%s: %s%s", p->path, err.text,
            in_repository && !p->facts.has_chat ? "; make chat fetches one" : "");
    return chat;
}

int end_of_answer(const Program *p, const heads_chat *chat) {
    int id = heads_chat_end(chat, p->tokenizer);
    if (id < -1) die("no memory to find what ends an answer");
    return id;
}

// Seconds since 1970 in local time; SOURCE_DATE_EPOCH, if set, is taken as it is.
static int64_t wall_clock(void) {
    const char *fixed = getenv("SOURCE_DATE_EPOCH");
    if (fixed && *fixed) {
        char *end;
        long long value = strtoll(fixed, &end, 10);
        if (*end || value < 0)
            usage("SOURCE_DATE_EPOCH wants seconds since 1970, found \"%s\"", fixed);
        return value;
    }
    return local_clock();
}

Ids conversation_ids(const Program *p, const heads_chat *chat, const Messages *m, bool prompt,
                     heads_error *err) {
    Ids ids = {NULL, 0};
    heads_chat_options options = {.answer = prompt, .no_think = p->o->no_think,
                                  .clock = heads_chat_prints_date(chat) ? wall_clock() : 0};
    ids.n = heads_chat_encode(chat, p->tokenizer, m->items, m->n, &options, &ids.data, err);
    return ids;
}

// The ids of --messages' conversation, with the beginning of an answer.
static Ids messages_ids(const Program *p, int *answer_end) {
    heads_error err;
    heads_chat *chat = open_chat(p);
    Messages m = read_messages(p->o->messages);
    Ids ids = conversation_ids(p, chat, &m, true, &err);
    if (ids.n < 0) die("%s: %s", p->o->messages, err.text);
    if (answer_end) *answer_end = end_of_answer(p, chat);
    messages_free(&m);
    heads_chat_free(chat);
    return ids;
}

// ---- the prompt ----

Text prompt_text(const Options *o) {
    Text text = {0};
    if (o->prompt_file) {
        text = read_file(o->prompt_file);
    } else if (o->prompt && strcmp(o->prompt, "-") == 0) {
        text = read_stream(stdin, "stdin");
    } else if (o->prompt) {
        text_add(&text, o->prompt, strlen(o->prompt));
    }
    warn_if_not_utf8(text);
    return text;
}

Ids prompt_ids(const Program *p, int *answer_end) {
    const Options *o = p->o;
    if (!p->tokenizer && !o->tokens)
        usage("%s has no tokenizer; give the prompt as ids, with --tokens", p->path);
    if (o->messages) return messages_ids(p, answer_end);
    Text text = o->tokens ? (Text){0} : prompt_text(o);
    Ids ids = o->tokens ? parse_ids("--tokens", o->tokens, prompt_vocabulary(p))
                        : encode(p, text, true);
    free(text.data);
    set_source_language(p, ids);
    return ids;
}

Ids prompt_to_run(const Program *p, int *answer_end) {
    return to_run(p, prompt_ids(p, answer_end));
}

Ids to_run(const Program *p, Ids ids) {
    int context = wanted_context(p);
    if (ids.n == 0)
        usage("the prompt is empty, and this model's tokenizer puts no BOS token before a text; "
              "give a prompt with -p");
    if (ids.n > context)
        usage("the prompt has %ld tokens and the context has room for %d; shorten it%s", ids.n,
              context, context < p->shape.context ? " or raise -c" : "");
    check_ids(p, ids);
    return ids;
}
