// The JSON reader on any bytes: what it reads must come back equal when its strings are written and
// read again. Meant to be built with ASan and UBSan; with clang and -DLIBFUZZER -fsanitize=fuzzer a
// fuzz target.   fuzz_json COUNT SEED     random texts made of pieces of JSON
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "text/json.h"

// Reads and counts everything that hangs on a value.
static size_t use(const Json *v, int depth) {
    heads_error err;
    size_t n = 0, members = 1;
    if (depth > JSON_MAX_DEPTH) abort();
    if (v->type == JSON_STRING) {
        if (v->text[v->len]) abort();
        Text quoted = {0};
        json_quote(&quoted, v->text, v->len);
        const Json *again = json_parse(quoted.data, quoted.size, &err);
        if (!again || again->type != JSON_STRING || again->len != v->len ||
            memcmp(again->text, v->text, v->len))
            abort();
        json_free(again);
        free(quoted.data);
    }
    for (const Json *m = v->first; m; m = m->next, n++) {
        members += use(m, depth + 1);
        if (m->key && json_get(v, m->key) != m && !memchr(m->key, 0, m->key_len)) abort();
    }
    if (n != v->n) abort();
    return members;
}

// 1 if the bytes were read. The copy is exactly as long as the bytes, so that ASan sees whatever is
// read beyond.
static int try_bytes(const uint8_t *bytes, size_t size) {
    heads_error err;
    char *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, bytes, size);
    const Json *root = json_parse(copy, size, &err);
    free(copy);
    if (root && use(root, 0) > size) abort();
    json_free(root);
    return root != NULL;
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    try_bytes(bytes, size);
    return 0;
}
#else
int main(int argc, char **argv) {
    static const char *const pieces[] = {
        "{",        "}",      "[",       "]",           ",",
        ":",        "\"",     "\"a\"",   "\"a\":",      "\"b\": ",
        "1",        "-0.5e3", "null",    "true",        "false",
        " ",        "\\u",    "\\ud83e", "\\udd8a",     "\\n",
        "\xC3\xA9", "\xFF",   "[[[[",    "]]]]",        "{\"a\":{\"a\":",
        "}}",       "[1,2",   ",3]",     "\"\\u0000\"",
    };
    if (argc != 3) {
        fprintf(stderr, "usage: fuzz_json COUNT SEED\n");
        return 2;
    }
    uint64_t state = strtoull(argv[2], NULL, 10);
    long read = 0, count = strtol(argv[1], NULL, 10);
    for (long i = 0; i < count; i++) {
        char text[200] = "";
        size_t n =
            1 + (size_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 60);
        for (size_t j = 0; j < n; j++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            strcat(text, pieces[(state >> 33) % (sizeof pieces / sizeof *pieces)]);
        }
        read += try_bytes((const uint8_t *)text, strlen(text));
    }
    printf("%ld texts, %ld read\n", count, read);
    return 0;
}
#endif
