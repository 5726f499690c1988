// A strict JSON reader by recursive descent. All values of a text lie in one block and all its
// strings in another: each value but the first follows one of [ , : and a string is shorter than
// its source, which bounds both beforehand.
#include "cli/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Json root;      // what the caller holds
    char *strings;
    Json values[];  // all others
} Document;

typedef struct {
    const uint8_t *text;
    size_t len, at;
    Json *values;
    char *strings;
    size_t n_values, n_strings;
    Error *err;
} Parser;

static int wrong(const Parser *r, const char *what) {
    return fail(r->err, "byte %zu: %s", r->at, what);
}

static void skip_space(Parser *r) {
    while (r->at < r->len && strchr(" \t\n\r", r->text[r->at]) && r->text[r->at]) r->at++;
}

// The next byte that is no white space; -1 at the end.
static int peek(Parser *r) {
    skip_space(r);
    return r->at < r->len ? r->text[r->at] : -1;
}

static bool is_digit(const Parser *r) {
    return r->at < r->len && r->text[r->at] >= '0' && r->text[r->at] <= '9';
}

// ---- strings ----

// Bytes of the UTF-8 character at text[0..len), 1..4; 0: it is none.
static size_t utf8_length(const uint8_t *text, size_t len) {
    uint8_t a = text[0];
    size_t n = a < 0x80 ? 1 : a < 0xC2 ? 0 : a < 0xE0 ? 2 : a < 0xF0 ? 3 : a < 0xF5 ? 4 : 0;
    if (n > len) return 0;
    for (size_t i = 1; i < n; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    bool overlong = (a == 0xE0 && text[1] < 0xA0) || (a == 0xF0 && text[1] < 0x90);
    bool outside = (a == 0xED && text[1] > 0x9F) ||
                   (a == 0xF4 && text[1] > 0x8F);  // a surrogate; above U+10FFFF
    return overlong || outside ? 0 : n;
}

static char *put_utf8(char *out, uint32_t c) {
    if (c < 0x80) {
        *out++ = (char)c;
        return out;
    }
    if (c < 0x800) {
        *out++ = (char)(0xC0 | c >> 6);
    } else {
        if (c < 0x10000) {
            *out++ = (char)(0xE0 | c >> 12);
        } else {
            *out++ = (char)(0xF0 | c >> 18);
            *out++ = (char)(0x80 | (c >> 12 & 63));
        }
        *out++ = (char)(0x80 | (c >> 6 & 63));
    }
    *out++ = (char)(0x80 | (c & 63));
    return out;
}

// Four hexadecimal digits.
static int read_hex(Parser *r, uint32_t *c) {
    *c = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        static const char digits[] = "0123456789abcdef";
        int byte = r->at < r->len ? r->text[r->at] : 0;
        const char *digit =
            byte ? strchr(digits, byte >= 'A' && byte <= 'F' ? byte + 32 : byte) : NULL;
        if (!digit) return wrong(r, "\\u is not followed by four hexadecimal digits");
        *c = *c << 4 | (uint32_t)(digit - digits);
    }
    return 0;
}

// What follows a backslash, r->at at it.
static int read_escape(Parser *r, uint32_t *c) {
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    int byte = r->at < r->len ? r->text[r->at] : 0;
    const char *name = byte ? strchr(names, byte) : NULL;
    if (name) {
        *c = (uint8_t)meanings[name - names];
        r->at++;
        return 0;
    }
    if (byte != 'u') return wrong(r, "unknown escape in a string");
    size_t begin = r->at++;
    if (read_hex(r, c)) return -1;
    if (*c < 0xD800 || *c > 0xDFFF) return 0;
    uint32_t low = 0;
    bool pair =
        *c < 0xDC00 && r->len - r->at > 1 && r->text[r->at] == '\\' && r->text[r->at + 1] == 'u';
    if (pair) {
        r->at += 2;
        if (read_hex(r, &low)) return -1;
    }
    if (low < 0xDC00 || low > 0xDFFF) {
        r->at = begin;
        return wrong(r, "half a surrogate pair");
    }
    *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
    return 0;
}

static int read_string(Parser *r, const char **text, size_t *len) {
    char *out = r->strings + r->n_strings;
    *text = out;
    size_t begin = r->at++;
    while (r->at < r->len && r->text[r->at] != '"') {
        const uint8_t *p = r->text + r->at;
        size_t n = utf8_length(p, r->len - r->at);
        if (n == 0) return wrong(r, "not UTF-8");
        if (*p < 0x20) return wrong(r, "a control character in a string; it must be escaped");
        if (*p != '\\') {
            memcpy(out, p, n);
            out += n;
            r->at += n;
            continue;
        }
        uint32_t c = 0;
        r->at++;
        if (read_escape(r, &c)) return -1;
        out = put_utf8(out, c);
    }
    if (r->at == r->len) {
        r->at = begin;
        return wrong(r, "a string that does not end");
    }
    r->at++;
    *len = (size_t)(out - *text);
    *out++ = 0;
    r->n_strings = (size_t)(out - r->strings);
    return 0;
}

// ---- other values ----

static int read_digits(Parser *r) {
    if (!is_digit(r)) return wrong(r, "expected a digit");
    while (is_digit(r)) r->at++;
    return 0;
}

static int read_number(Parser *r, Json *value) {
    size_t begin = r->at;
    value->type = JSON_NUMBER;
    value->is_integer = true;
    if (r->text[r->at] == '-') r->at++;
    if (r->at < r->len && r->text[r->at] == '0') r->at++;
    else if (read_digits(r)) return -1;
    if (is_digit(r)) return wrong(r, "a number that begins with 0");
    if (r->at < r->len && r->text[r->at] == '.') {
        r->at++;
        value->is_integer = false;
        if (read_digits(r)) return -1;
    }
    if (r->at < r->len && (r->text[r->at] | 32) == 'e') {
        r->at++;
        value->is_integer = false;
        if (r->at < r->len && (r->text[r->at] == '+' || r->text[r->at] == '-')) r->at++;
        if (read_digits(r)) return -1;
    }
    char *digits = r->strings + r->n_strings;  // there is room for them, and no need afterwards
    memcpy(digits, r->text + begin, r->at - begin);
    digits[r->at - begin] = 0;
    value->number = strtod(digits, NULL);
    errno = 0;
    value->integer = value->is_integer ? strtoll(digits, NULL, 10) : 0;
    if (errno) value->is_integer = false;
    if (isfinite(value->number)) return 0;
    r->at = begin;
    return wrong(r, "a number that is too large");
}

static int read_word(Parser *r, Json *value) {
    static const struct {
        const char *word;
        JsonType type;
        bool boolean;
    } words[] = {{"null", JSON_NULL, false},
                 {"true", JSON_BOOL, true},
                 {"false", JSON_BOOL, false}};
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i].word);
        if (n > r->len - r->at || memcmp(r->text + r->at, words[i].word, n) != 0) continue;
        value->type = words[i].type;
        value->boolean = words[i].boolean;
        r->at += n;
        return 0;
    }
    return wrong(r, "expected a value");
}

static int compare_keys(const void *a, const void *b) {
    const Json *x = *(const Json *const *)a, *y = *(const Json *const *)b;
    size_t n = x->key_len < y->key_len ? x->key_len : y->key_len;
    int order = memcmp(x->key, y->key, n);
    return order ? order : (x->key_len > y->key_len) - (x->key_len < y->key_len);
}

static int check_keys(const Parser *r, const Json *object) {
    if (object->n < 2) return 0;
    const Json **members = malloc(object->n * sizeof *members);
    if (!members) return fail(r->err, "no memory to read JSON");
    size_t n = 0;
    for (const Json *m = object->first; m; m = m->next) members[n++] = m;
    qsort(members, n, sizeof *members, compare_keys);
    int status = 0;
    for (size_t i = 1; i < n && !status; i++)
        if (compare_keys(&members[i - 1], &members[i]) == 0)
            status = fail(r->err, "byte %zu: the object that ends here has the key \"%.60s\" twice",
                          r->at - 1, members[i]->key);
    free(members);
    return status;
}

static int read_value(Parser *r, Json *value, int depth);

// An array or an object, r->at at its bracket.
static int read_container(Parser *r, Json *value, int depth) {
    bool is_object = r->text[r->at] == '{';
    int close = is_object ? '}' : ']';
    const Json **link = &value->first;
    value->type = is_object ? JSON_OBJECT : JSON_ARRAY;
    if (depth == JSON_MAX_DEPTH)
        return fail(r->err, "byte %zu: deeper than %d brackets", r->at, JSON_MAX_DEPTH);
    r->at++;
    if (peek(r) == close) {
        r->at++;
        return 0;
    }
    for (;;) {
        Json *member = &r->values[r->n_values];
        *member = (Json){0};
        if (is_object) {
            if (peek(r) != '"') return wrong(r, "expected a key in quotes");
            if (read_string(r, &member->key, &member->key_len)) return -1;
            if (peek(r) != ':') return wrong(r, "expected a colon after a key");
            r->at++;
        }
        r->n_values++;
        if (read_value(r, member, depth + 1)) return -1;
        *link = member;
        link = (const Json **)&member->next;
        value->n++;
        int byte = peek(r);
        if (byte != ',' && byte != close)
            return wrong(r, is_object ? "expected a comma or } in an object"
                                      : "expected a comma or ] in an array");
        r->at++;
        if (byte == close) return is_object ? check_keys(r, value) : 0;
    }
}

static int read_value(Parser *r, Json *value, int depth) {
    int byte = peek(r);
    if (byte < 0) return wrong(r, "the text ends where a value is expected");
    if (byte == '{' || byte == '[') return read_container(r, value, depth);
    if (byte == '-' || is_digit(r)) return read_number(r, value);
    if (byte != '"') return read_word(r, value);
    value->type = JSON_STRING;
    return read_string(r, &value->text, &value->len);
}

// ---- the document ----

const Json *json_parse(const char *text, size_t len, Error *err) {
    size_t most =
        1;  // values besides the root, and one that is begun before its key is found missing
    for (size_t i = 0; i < len; i++)
        most += text[i] == '[' || text[i] == '{' || text[i] == ',' || text[i] == ':';
    Document *d = malloc(sizeof *d + most * sizeof d->values[0]);
    char *strings = malloc(len + 1);
    if (!d || !strings) {
        free(d);
        free(strings);
        fail(err, "no memory to read %zu bytes of JSON", len);
        return NULL;
    }
    d->root = (Json){0};
    d->strings = strings;
    Parser r = {.text = (const uint8_t *)text,
                .len = len,
                .values = d->values,
                .strings = strings,
                .err = err};
    int status = read_value(&r, &d->root, 0);
    if (!status && peek(&r) >= 0) status = wrong(&r, "more text after the value");
    if (!status) return &d->root;
    json_free(&d->root);
    return NULL;
}

void json_free(const Json *root) {
    if (!root) return;
    Document *d = (Document *)root;  // its first member
    free(d->strings);
    free(d);
}

const Json *json_get(const Json *object, const char *key) {
    size_t n = strlen(key);
    if (object->type != JSON_OBJECT) return NULL;
    for (const Json *m = object->first; m; m = m->next)
        if (m->key_len == n && memcmp(m->key, key, n) == 0) return m;
    return NULL;
}

char *json_quote(const char *text, size_t len, size_t *out_len) {
    static const char names[] = "\"\\\b\f\n\r\t", escapes[] = "\"\\bfnrt";
    char *out = len < SIZE_MAX / 8 ? malloc(6 * len + 3) : NULL, *end = out;
    if (!out) return NULL;
    *end++ = '"';
    for (size_t i = 0; i < len;) {
        const uint8_t *p = (const uint8_t *)text + i;
        size_t n = utf8_length(p, len - i);
        const char *name = *p ? strchr(names, *p) : NULL;
        if (n == 0) end = put_utf8(end, 0xFFFD);
        else if (name) *end++ = '\\', *end++ = escapes[name - names];
        else if (*p < 0x20) end += sprintf(end, "\\u%04x", *p);
        else memcpy(end, p, n), end += n;
        i += n ? n : 1;
    }
    *end++ = '"';
    *end = 0;
    *out_len = (size_t)(end - out);
    return out;
}
