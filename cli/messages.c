#include "messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"

// ---- a list of messages ----

void messages_add(Messages *m, const char *role, const char *content, size_t len) {
    m->items = grown(m->items, m->n + 1, &m->room, sizeof *m->items);
    m->items[m->n++] = (heads_message){copy_of(role, strlen(role)), copy_of(content, len), len};
}

void messages_drop(Messages *m, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        free((char *)m->items[i].role);
        free((char *)m->items[i].content);
    }
    if (end < m->n) memmove(m->items + begin, m->items + end, (m->n - end) * sizeof *m->items);
    m->n -= end - begin;
}

void messages_drop_last(Messages *m) { messages_drop(m, m->n - 1, m->n); }

void messages_free(Messages *m) {
    if (m->n) messages_drop(m, 0, m->n);
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

int messages_from_json(Messages *m, const Json *array, heads_error *err) {
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
    heads_error err;
    Text text = read_file(path);
    Messages m = {0};
    const Json *json = parse_json(text.data, text.size, &err);
    if (!json) die("%s is no JSON: %s", path, err.text);
    if (messages_from_json(&m, json, &err)) die("%s: %s", path, err.text);
    json_free(json);
    free(text.data);
    return m;
}

int write_messages(const Messages *m, const char *path, heads_error *err) {
    Text json = {0};
    for (size_t i = 0; i < m->n; i++) {
        text_format(&json, "%s{\"role\": \"%s\", \"content\": ", i ? ",\n " : "[",
                    m->items[i].role);
        json_quote(&json, m->items[i].content, m->items[i].content_len);
        text_add(&json, "}", 1);
    }
    text_add(&json, "]\n", 2);
    NewFile *file = newfile_open(path, err);
    if (file) fwrite(json.data, 1, json.size, newfile_stream(file));
    free(json.data);
    return file ? newfile_close(file, 0, err) : -1;
}
