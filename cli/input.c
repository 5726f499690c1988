#include "input.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library/inspect.h"
#include "print.h"

// ---- memory ----

void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) die("no memory for %zu times %zu bytes", count, size);
    return memory;
}

void *grown(void *array, size_t count, size_t *room, size_t size) {
    if (count <= *room) return array;
    bool fits = count <= SIZE_MAX / 2 / size;
    void *larger = fits ? realloc(array, 2 * count * size) : NULL;
    if (!larger) die("no memory for %zu times %zu bytes", count, size);
    *room = 2 * count;
    return larger;
}

// ---- texts ----

void text_add(Text *text, const char *data, size_t size) {
    text->data = grown(text->data, text->size + size + 1, &text->room, 1);
    if (size) memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = 0;
}

void text_format(Text *text, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    size_t size = (size_t)vsnprintf(NULL, 0, format, args);
    text->data = grown(text->data, text->size + size + 1, &text->room, 1);
    vsnprintf(text->data + text->size, size + 1, format, again);
    text->size += size;
    va_end(args);
    va_end(again);
}

const Json *parse_json(const char *text, size_t len, heads_error *err) {
    const Json *json = json_parse(text, len, err);
    if (!json && strncmp(err->text, "no memory", 9) == 0) die("%s", err->text);
    return json;
}

void json_quote(Text *out, const char *text, size_t len) {
    char *spelled = allocate(6 * len + 2, 1);
    text_add(out, spelled, json_spell(spelled, text, len));
    free(spelled);
}

char *copy_of(const char *text, size_t size) {
    char *copy = allocate(size + 1, 1);
    memcpy(copy, text, size);
    return copy;
}

char *path_and_scale(const char *text, float *scale) {
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    *scale = colon && colon[1] ? strtof(colon + 1, &end) : 1.0f;
    if (end && !*end && colon > text) return copy_of(text, (size_t)(colon - text));
    *scale = 1.0f;
    return copy_of(text, strlen(text));
}

// A byte order mark says how a text is written, and is none of it.
void drop_mark(Text *text, size_t begin) {
    if (text->size < begin + 3 || memcmp(text->data + begin, "\xEF\xBB\xBF", 3) != 0)
        return;
    text->size -= 3;
    memmove(text->data + begin, text->data + begin + 3, text->size - begin);
}

static Text read_all(FILE *f, const char *name) {
    enum { AT_ONCE = 1 << 16 };
    Text text = {0};
    size_t got = 1;
    while (got > 0) {
        text.data = grown(text.data, text.size + AT_ONCE, &text.room, 1);
        got = fread(text.data + text.size, 1, text.room - text.size, f);
        text.size += got;
    }
    if (ferror(f)) die("cannot read %s: %s", name, strerror(errno));
    return text;
}

Text read_stream(FILE *f, const char *name) {
    Text text = read_all(f, name);
    drop_mark(&text, 0);
    return text;
}

Text read_raw(const char *path) {
    FILE *f = open_to_read(path);
    if (!f) die("cannot open %s: %s", path, strerror(errno));
    Text text = read_all(f, path);
    fclose(f);
    return text;
}

Text read_file(const char *path) {
    Text text = read_raw(path);
    drop_mark(&text, 0);
    return text;
}

size_t line_size(const char *line, size_t size) {
    return size && line[size - 1] == '\r' ? size - 1 : size;
}

Text *split_lines(Text text, long *n) {
    size_t n_lines = 0;
    const char *p = text.data, *end = text.data + text.size, *newline;
    for (size_t i = 0; i < text.size; i++) n_lines += text.data[i] == '\n';
    Text *lines = allocate(n_lines + 1, sizeof *lines);
    for (*n = 0; p < end; p = newline + 1, ++*n) {
        newline = memchr(p, '\n', (size_t)(end - p));
        if (!newline) newline = end;
        lines[*n] = (Text){.data = (char *)p, .size = line_size(p, (size_t)(newline - p))};
    }
    return lines;
}

void warn_if_not_utf8(Text text) {
    for (size_t i = 0, n; i < text.size; i += n) {
        n = utf8_length(text.data + i, text.size - i);
        if (n == 0) {
            warn("the text is not UTF-8 at byte %zu; bad bytes are read as U+FFFD", i);
            return;
        }
    }
}

// ---- ids ----

Ids parse_ids(const char *option, const char *text, int vocab_size) {
    static const char between[] = " ,\t\n";
    Ids ids = {allocate(strlen(text) / 2 + 1, sizeof(int)), 0};
    for (const char *p = text + strspn(text, between); *p; p += strspn(p, between)) {
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || (*end && !strchr(between, *end)))
            usage("%s wants ids such as \"1 2 3\", found \"%.40s\"", option, p);
        if (errno || id < 0 || id >= vocab_size)
            usage("%s: %.*s is no token of this model; its ids are 0 to %d", option,
                  (int)(end - p), p, vocab_size - 1);
        ids.data[ids.n++] = (int)id;
        p = end;
    }
    if (ids.n == 0) usage("%s is empty; give at least one id", option);
    return ids;
}
