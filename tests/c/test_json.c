// The JSON reader and writer: what is read, what is refused and where, and the writer's escapes.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "text/json.h"

static int failures;

static void check(bool ok, const char *name, const char *why) {
    if (ok) printf("ok %s\n", name);
    else printf("not ok %s: %s\n", name, why);
    failures += !ok;
}

// A copy that is exactly as long as the text, so that ASan sees a step beyond it.
static const Json *parse(const char *text, size_t len, heads_error *err) {
    char *copy = malloc(len ? len : 1);
    memcpy(copy, text, len);
    const Json *root = json_parse(copy, len, err);
    free(copy);  // nothing is borrowed
    return root;
}

static void refused(const char *text, size_t len, const char *message) {
    heads_error err;
    char why[600];
    const Json *root = parse(text, len, &err);
    snprintf(why, sizeof why, "expected \"%s\", found \"%s\"", message,
             root ? "it was read" : err.text);
    check(!root && strcmp(err.text, message) == 0, message, why);
    json_free(root);
}

#define REFUSED(text, message) refused(text, sizeof text - 1, message)

static void refusals(void) {
    REFUSED("", "byte 0: the text ends where a value is expected");
    REFUSED(" [1, ", "byte 5: the text ends where a value is expected");
    REFUSED("[1,]", "byte 3: expected a value");
    REFUSED("nul", "byte 0: expected a value");
    REFUSED("NaN", "byte 0: expected a value");
    REFUSED("\xEF\xBB\xBF{}", "byte 0: expected a value");
    REFUSED("[1 2]", "byte 3: expected a comma or ] in an array");
    REFUSED("{\"a\" 1}", "byte 5: expected a colon after a key");
    REFUSED("{\"a\": 1 \"b\": 2}", "byte 8: expected a comma or } in an object");
    REFUSED("{a: 1}", "byte 1: expected a key in quotes");
    REFUSED("{\"a\": 1,}", "byte 8: expected a key in quotes");
    REFUSED("{} {}", "byte 3: more text after the value");
    REFUSED("1\0", "byte 1: more text after the value");
    REFUSED("[\"abc]", "byte 1: a string that does not end");
    REFUSED("\"a\nb\"", "byte 2: a control character in a string; it must be escaped");
    REFUSED("\"\\x\"", "byte 2: unknown escape in a string");
    REFUSED("\"\\u12g4\"", "byte 5: \\u is not followed by four hexadecimal digits");
    REFUSED("\"\\u12", "byte 5: \\u is not followed by four hexadecimal digits");
    REFUSED("\"\\ud800\"", "byte 2: half a surrogate pair");
    REFUSED("\"\\ud800\\u0041\"", "byte 2: half a surrogate pair");
    REFUSED("\"\\udc00\\ud800\"", "byte 2: half a surrogate pair");
    REFUSED("\"ab\xFF\"", "byte 3: not UTF-8");
    REFUSED("\"\xC0\x80\"", "byte 1: not UTF-8");
    REFUSED("\"\xED\xA0\x80\"", "byte 1: not UTF-8");
    REFUSED("\"\xF4\x90\x80\x80\"", "byte 1: not UTF-8");
    REFUSED("\"\xE2\x82\"", "byte 1: not UTF-8");
    REFUSED("01", "byte 1: a number that begins with 0");
    REFUSED("-", "byte 1: expected a digit");
    REFUSED("1.", "byte 2: expected a digit");
    REFUSED(".5", "byte 0: expected a value");
    REFUSED("1e+", "byte 3: expected a digit");
    REFUSED("[1e999]", "byte 1: a number that is too large");
    REFUSED("{\"a\": 1, \"b\": 2, \"\\u0061\": 3}",
            "byte 28: the object that ends here has the key \"a\" twice");
}

static void depth(void) {
    char text[3 * JSON_MAX_DEPTH];
    heads_error err;
    memset(text, '[', JSON_MAX_DEPTH);
    memset(text + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    const Json *root = parse(text, 2 * JSON_MAX_DEPTH, &err);
    check(root, "the deepest brackets", "refused");
    json_free(root);
    memset(text, '[', JSON_MAX_DEPTH + 1);
    refused(text, JSON_MAX_DEPTH + 1, "byte 64: deeper than 64 brackets");
}

static void values(void) {
    static const char text[] =
        " {\"s\": \"a\\u0000\\\"\\/\\n\\u00e9\\ud83e\\udd8a\xC3\xB6\", \"t\\u0000u\": null,"
        "\"list\": [1, -0, 2.5e1, 9223372036854775807, 9223372036854775808, true, {}, []]}\n";
    heads_error err;
    const Json *root = parse(text, sizeof text - 1, &err);
    if (!root) {
        check(false, "values", err.text);
        return;
    }
    const Json *s = json_get(root, "s"), *list = json_get(root, "list");
    static const char want[] = "a\0\"/\n\xC3\xA9\xF0\x9F\xA6\x8A\xC3\xB6";
    check(root->type == JSON_OBJECT && root->n == 3 && !root->next, "an object of three",
          "it has another number");
    check(s && s->type == JSON_STRING && s->len == sizeof want - 1 &&
              memcmp(s->text, want, sizeof want) == 0,
          "escapes, a zero byte and a surrogate pair", "another text");
    check(!json_get(root, "t") && s->next->key_len == 3 && memcmp(s->next->key, "t\0u", 4) == 0 &&
              s->next->type == JSON_NULL, "a key with a zero byte", "another key");
    const Json *v = list ? list->first : NULL;
    check(list && list->n == 8 && v->is_integer && v->integer == 1 && v->number == 1, "1",
          "another number");
    check((v = v->next)->is_integer && v->integer == 0 && signbit(v->number), "-0",
          "another number");
    check(!(v = v->next)->is_integer && v->number == 25, "2.5e1", "another number");
    check((v = v->next)->is_integer && v->integer == INT64_MAX, "the largest int64",
          "another number");
    check(!(v = v->next)->is_integer && v->number == 0x1p63, "an integer that no int64 holds",
          "another number");
    check((v = v->next)->type == JSON_BOOL && v->boolean, "true", "another value");
    check((v = v->next)->type == JSON_OBJECT && v->n == 0 && !v->first, "an empty object",
          "another value");
    check((v = v->next)->type == JSON_ARRAY && v->n == 0 && !v->next, "an empty array",
          "another value");
    check(!json_get(list, "s"), "no member of an array", "one was found");
    json_free(root);
    json_free(NULL);
}

static void quoting(void) {
    static const char text[] = "a\"\\/\b\f\n\r\t\x01\x1F\x7F\0\xC3\xA9\xFF\xE2\x82";
    static const char want[] = "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7F\\u0000\xC3\xA9"
                               "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"";
    Text out = {0};
    json_quote(&out, text, sizeof text - 1);
    check(out.size == sizeof want - 1 && memcmp(out.data, want, sizeof want) == 0,
          "the writer's escapes", out.data);
    free(out.data);
}

int main(void) {
    refusals();
    depth();
    values();
    quoting();
    return failures != 0;
}
