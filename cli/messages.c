#include "messages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "print.h"

// ---- a list of messages ----

static char *copy_of(const char *text, size_t len) {
    char *copy = malloc(len + 1);
    if (!copy) die("no memory for a message");
    memcpy(copy, text, len);
    copy[len] = 0;
    return copy;
}

void messages_add(Messages *m, const char *role, const char *content, size_t len) {
    m->items = realloc(m->items, (m->n + 1) * sizeof *m->items);
    if (!m->items) die("no memory for a message");
    m->items[m->n++] = (Message){copy_of(role, strlen(role)), copy_of(content, len), len};
}

void messages_drop_last(Messages *m) {
    m->n--;
    free((char *)m->items[m->n].role);
    free((char *)m->items[m->n].content);
}

void messages_free(Messages *m) {
    while (m->n) messages_drop_last(m);
    free(m->items);
    *m = (Messages){0};
}

// ---- as JSON ----

static bool is_role(const Json *role) {
    static const char *const roles[] = {"system", "user", "assistant"};
    for (int i = 0; i < 3; i++)
        if (role->len == strlen(roles[i]) && strcmp(role->text, roles[i]) == 0) return true;
    return false;
}

int messages_from_json(Messages *m, const Json *array, Error *err) {
    if (array->type != JSON_ARRAY)
        return fail(err, "messages: expected an array of {\"role\", \"content\"}");
    for (const Json *item = array->first; item; item = item->next) {
        const Json *role = json_get(item, "role"), *content = json_get(item, "content");
        size_t known = !!role + !!content;
        if (known != 2 || item->n != 2 || role->type != JSON_STRING || content->type != JSON_STRING)
            return fail(err, "message %zu: expected an object with the strings \"role\" and "
                        "\"content\", and nothing else", m->n + 1);
        if (!is_role(role))
            return fail(err, "message %zu: role is \"%.40s\", expected system, user or assistant",
                        m->n + 1, role->text);
        messages_add(m, role->text, content->text, content->len);
    }
    return m->n ? 0 : fail(err, "messages: the array is empty");
}

Messages read_messages(const char *path) {
    Error err;
    Text text = read_file(path);
    Messages m = {0};
    const Json *json = json_parse(text.data, text.size, &err);
    if (!json || messages_from_json(&m, json, &err)) die("%s: %s", path, err.text);
    json_free(json);
    free(text.data);
    return m;
}

static int write_json(FILE *f, const Messages *m) {
    for (size_t i = 0; i < m->n; i++) {
        const Message *item = &m->items[i];
        size_t len;
        char *content = json_quote(item->content, item->content_len, &len);
        if (!content) return errno = ENOMEM, -1;
        fprintf(f, "%s{\"role\": \"%s\", \"content\": %s}", i ? ",\n " : "[", item->role,
                content);
        free(content);
    }
    fprintf(f, "]\n");
    return 0;
}

int write_messages(const Messages *m, const char *path, Error *err) {
    NewFile file;
    if (newfile_open(&file, path, err)) return -1;
    return newfile_close(&file, write_json(file.stream, m), err);
}

// ---- as text and ids ----

Chat *open_chat(const Model *model, const char *path) {
    Error err;
    Chat *chat = chat_new(&model->file, &err);
    if (!chat) die("%s: %s", path, err.text);
    return chat;
}

// Local time as if it were UTC; SOURCE_DATE_EPOCH is UTC.
static time_t wall_clock(void) {
    const char *fixed = getenv("SOURCE_DATE_EPOCH");
    if (fixed && *fixed) {
        char *end;
        long long value = strtoll(fixed, &end, 10);
        if (*end || value < 0)
            usage("SOURCE_DATE_EPOCH wants seconds since 1970, found \"%s\"", fixed);
        return (time_t)value;
    }
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    return now + local.tm_gmtoff;
}

Ids conversation_ids(const Options *o, const Chat *chat, const Tokenizer *t, const Messages *m,
                     bool prompt, Error *err) {
    size_t len;
    Ids ids = {NULL, -1};
    ChatOptions options = {.add_generation_prompt = prompt, .no_think = o->no_think,
                           .clock = chat_prints_date(chat) ? wall_clock() : 0};
    char *text = chat_render(chat, m->items, m->n, &options, &len, err);
    if (text) ids.n = tokenizer_encode(t, text, len, false, &ids.data, err);
    free(text);
    return ids;
}
