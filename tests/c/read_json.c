// Reads many JSON texts and writes them again, for the test that compares the reader with Python's.
//
//   read_json < records > answers
//
// A record is u32 length, bytes. Its answer is u32 read (1, or 0: refused), u32 length, and the
// value as JSON again, integers that an int64 holds as such and other numbers with 17 digits; or
// the message.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "text/json.h"

static void stop(const char *what) {
    fprintf(stderr, "read_json: %s\n", what);
    exit(1);
}

static void put_string(FILE *out, const char *text, size_t len) {
    Text quoted = {0};
    json_quote(&quoted, text, len);
    fwrite(quoted.data, 1, quoted.size, out);
    free(quoted.data);
}

static void put_value(FILE *out, const Json *v) {
    switch (v->type) {
        case JSON_NULL: fputs("null", out); break;
        case JSON_BOOL: fputs(v->boolean ? "true" : "false", out); break;
        case JSON_STRING: put_string(out, v->text, v->len); break;
        case JSON_NUMBER:
            if (v->is_integer) fprintf(out, "%" PRId64, v->integer);
            else fprintf(out, "%.17e", v->number);
            break;
        default:
            fputc(v->type == JSON_ARRAY ? '[' : '{', out);
            for (const Json *m = v->first; m; m = m->next) {
                if (m->key) put_string(out, m->key, m->key_len), fputc(':', out);
                put_value(out, m);
                if (m->next) fputc(',', out);
            }
            fputc(v->type == JSON_ARRAY ? ']' : '}', out);
    }
}

int main(void) {
    for (uint32_t len; fread(&len, sizeof len, 1, stdin) == 1;) {
        char *record = malloc(len ? len : 1), *answer = NULL;
        if (!record || fread(record, 1, len, stdin) != len) stop("a record is cut off");
        heads_error err;
        size_t size = 0;
        const Json *root = json_parse(record, len, &err);
        FILE *out = open_memstream(&answer, &size);
        if (!out) stop("no memory");
        if (root) put_value(out, root);
        else fputs(err.text, out);
        fclose(out);
        uint32_t head[] = {root != NULL, (uint32_t)size};
        if (fwrite(head, sizeof head, 1, stdout) != 1 || fwrite(answer, 1, size, stdout) != size)
            stop("cannot write");
        json_free(root);
        free(answer);
        free(record);
    }
    return 0;
}
