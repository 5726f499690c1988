// A strict JSON reader by recursive descent. One allocation holds all values of a text, then all of
// its strings. Its size is known beforehand: each value but the first follows one of [ { , : and a
// string is no longer than its spelling.
#include "text/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/unicode.h"

typedef struct {
    const char *text;
    size_t len, at;
    Json *values;
    char *strings;
    size_t n_values, n_strings;
    heads_error *err;
} Parser;

static int wrong(const Parser *r, const char *what) {
    return fail(r->err, "byte %zu: %s", r->at, what);
}

// The byte at r->at; -1 at the end.
static int current(const Parser *r) { return r->at < r->len ? (uint8_t)r->text[r->at] : -1; }

static bool is_digit(int byte) { return byte >= '0' && byte <= '9'; }

// The next byte that is no white space.
static int peek(Parser *r) {
    while (current(r) > 0 && strchr(" \t\n\r", current(r))) r->at++;
    return current(r);
}

static bool accept(Parser *r, const char *word) {
    size_t n = strlen(word);
    bool found = n <= r->len - r->at && memcmp(r->text + r->at, word, n) == 0;
    if (found) r->at += n;
    return found;
}

// ---- strings ----

// Four hexadecimal digits.
static int read_hex(Parser *r, uint32_t *c) {
    *c = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int byte = current(r);
        const int letter = (byte | 32) - 'a';
        if (!is_digit(byte) && (byte < 0 || letter < 0 || letter > 5))
            return wrong(r, "\\u is not followed by four hexadecimal digits");
        *c = *c << 4 | (uint32_t)(is_digit(byte) ? byte - '0' : letter + 10);
    }
    return 0;
}

// What follows a backslash.
static int read_escape(Parser *r, uint32_t *c) {
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *name = current(r) > 0 ? strchr(names, current(r)) : NULL;
    size_t begin = r->at;
    if (name) {
        *c = (uint8_t)meanings[name - names];
        r->at++;
        return 0;
    }
    if (!accept(r, "u")) return wrong(r, "unknown escape in a string");
    if (read_hex(r, c)) return -1;
    if (*c < 0xD800 || *c > 0xDFFF) return 0;
    uint32_t low = 0;
    if (*c < 0xDC00 && accept(r, "\\u") && read_hex(r, &low)) return -1;
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
        const char *p = r->text + r->at;
        size_t n = utf8_length(p, r->len - r->at);
        if (n == 0) return wrong(r, "not UTF-8");
        if ((uint8_t)*p < 0x20)
            return wrong(r, "a control character in a string; it must be escaped");
        r->at += n;
        if (*p == '\\') {
            uint32_t c;
            if (read_escape(r, &c)) return -1;
            out += utf8_encode(c, (uint8_t *)out);
        } else {
            memcpy(out, p, n);
            out += n;
        }
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
    if (!is_digit(current(r))) return wrong(r, "expected a digit");
    while (is_digit(current(r))) r->at++;
    return 0;
}

// The number that digits[n] spell, behind which there is room for EXPONENT bytes. What strtod takes
// for a point is the locale's, so it is given a whole number and an exponent.
enum { EXPONENT = 24 };
static double to_double(char *digits, size_t n) {
    const size_t whole = strcspn(digits, ".eE"), mantissa = strcspn(digits, "eE");
    long long exponent = mantissa < n ? strtoll(digits + mantissa + 1, NULL, 10) : 0;
    if (exponent > INT32_MAX) exponent = INT32_MAX;  // too large or too small whatever comes
    if (exponent < INT32_MIN) exponent = INT32_MIN;
    if (whole < mantissa) {
        const size_t decimals = mantissa - whole - 1;
        memmove(digits + whole, digits + whole + 1, decimals);
        exponent -= (long long)decimals;
        snprintf(digits + mantissa - 1, EXPONENT, "e%lld", exponent);
    }
    return strtod(digits, NULL);
}

static int read_number(Parser *r, Json *value) {
    size_t begin = r->at;
    accept(r, "-");
    if (!accept(r, "0") && read_digits(r)) return -1;
    if (is_digit(current(r))) return wrong(r, "a number that begins with 0");
    size_t whole = r->at;
    if (accept(r, ".") && read_digits(r)) return -1;
    if (accept(r, "e") || accept(r, "E")) {
        if (!accept(r, "+")) accept(r, "-");
        if (read_digits(r)) return -1;
    }
    char *digits = r->strings + r->n_strings;  // free room, which the next string may overwrite
    memcpy(digits, r->text + begin, r->at - begin);
    digits[r->at - begin] = 0;
    value->type = JSON_NUMBER;
    errno = 0;
    value->integer = r->at == whole ? strtoll(digits, NULL, 10) : 0;
    value->is_integer = r->at == whole && !errno;
    value->number = to_double(digits, r->at - begin);
    if (isfinite(value->number)) return 0;
    r->at = begin;
    return wrong(r, "a number that is too large");
}

static int compare_keys(const void *a, const void *b) {
    const Json *x = *(const Json *const *)a, *y = *(const Json *const *)b;
    size_t n = x->key_len < y->key_len ? x->key_len : y->key_len;
    int order = memcmp(x->key, y->key, n);
    return order ? order : (x->key_len > y->key_len) - (x->key_len < y->key_len);
}

static int check_keys(const Parser *r, const Json *object) {
    if (object->n < 2) return 0;
    const Json **members = calloc(object->n, sizeof *members);
    size_t n = 0;
    if (!members) return fail(r->err, "no memory for %zu keys", object->n);
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
    const char *close = is_object ? "}" : "]";
    const Json **link = &value->first;
    value->type = is_object ? JSON_OBJECT : JSON_ARRAY;
    if (depth == JSON_MAX_DEPTH)
        return fail(r->err, "byte %zu: deeper than %d brackets", r->at, JSON_MAX_DEPTH);
    r->at++;
    peek(r);
    if (accept(r, close)) return 0;
    for (;;) {
        Json *member = &r->values[r->n_values];
        *member = (Json){0};
        if (is_object) {
            if (peek(r) != '"') return wrong(r, "expected a key in quotes");
            if (read_string(r, &member->key, &member->key_len)) return -1;
            peek(r);
            if (!accept(r, ":")) return wrong(r, "expected a colon after a key");
        }
        r->n_values++;
        if (read_value(r, member, depth + 1)) return -1;
        *link = member;
        link = (const Json **)&member->next;
        value->n++;
        peek(r);
        if (accept(r, close)) return is_object ? check_keys(r, value) : 0;
        if (!accept(r, ","))
            return wrong(r, is_object ? "expected a comma or } in an object"
                                      : "expected a comma or ] in an array");
    }
}

static int read_value(Parser *r, Json *value, int depth) {
    int byte = peek(r);
    if (byte < 0) return wrong(r, "the text ends where a value is expected");
    if (byte == '{' || byte == '[') return read_container(r, value, depth);
    if (byte == '-' || is_digit(byte)) return read_number(r, value);
    if (byte == '"') {
        value->type = JSON_STRING;
        return read_string(r, &value->text, &value->len);
    }
    if (accept(r, "null")) return 0;
    value->type = JSON_BOOL;
    value->boolean = accept(r, "true");
    return value->boolean || accept(r, "false") ? 0 : wrong(r, "expected a value");
}

// ---- the document ----

const Json *json_parse(const char *text, size_t len, heads_error *err) {
    size_t most = 2;  // the root, and a value that begins before its key is found missing
    for (size_t i = 0; i < len; i++)
        most += text[i] == '[' || text[i] == '{' || text[i] == ',' || text[i] == ':';
    bool fits = most < SIZE_MAX / 2 / sizeof(Json);
    Json *root = fits ? calloc(most * sizeof *root + len + 1 + EXPONENT, 1) : NULL;
    if (!root) {
        fail(err, "no memory for %zu bytes of JSON", len);
        return NULL;
    }
    Parser r = {.text = text, .len = len, .values = root, .n_values = 1,
                .strings = (char *)(root + most), .err = err};
    int status = read_value(&r, root, 0);
    if (!status && peek(&r) >= 0) status = wrong(&r, "more text after the value");
    if (!status) return root;
    free(root);
    return NULL;
}

void json_free(const Json *root) { free((void *)root); }

bool json_has_key(const Json *member, const char *key) {
    return member->key_len == strlen(key) && memcmp(member->key, key, member->key_len) == 0;
}

const Json *json_get(const Json *object, const char *key) {
    if (object->type != JSON_OBJECT) return NULL;
    for (const Json *m = object->first; m; m = m->next)
        if (json_has_key(m, key)) return m;
    return NULL;
}

size_t json_spell(char *out, const char *text, size_t len) {
    static const char names[] = "\"\\\b\f\n\r\t", escapes[] = "\"\\bfnrt";
    static const char hex[] = "0123456789abcdef";
    char *begin = out;
    *out++ = '"';
    for (size_t i = 0, n; i < len; i += n ? n : 1) {
        n = utf8_length(text + i, len - i);
        const char *name = text[i] ? strchr(names, text[i]) : NULL;
        const char *from = n ? text + i : "\xEF\xBF\xBD";
        const char kind = 'u', *letter = name ? escapes + (name - names) : &kind;
        char escape[] = {'\\', *letter, '0', '0', hex[text[i] >> 4 & 15], hex[text[i] & 15]};
        bool escaped = name || (n && (uint8_t)text[i] < 0x20);
        size_t size = escaped ? (name ? 2 : 6) : n ? n : 3;
        memcpy(out, escaped ? escape : from, size);
        out += size;
    }
    *out++ = '"';
    return (size_t)(out - begin);
}
