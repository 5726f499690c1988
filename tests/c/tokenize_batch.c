// Tokenizes many texts with one checkpoint's tokenizer, for the tests that compare it with another.
//
//   tokenize_batch MODEL < records > answers
//   tokenize_batch MODEL ids < records > answers
//
// A record is u32 length, bytes: a text or, with `ids`, i32 ids. Its answer is u32 n, i32 ids[n]
// (of a text with the post-processor's, or those given), then the ids decoded one by one: u32
// length, bytes with special tokens, u32 length, bytes without. Numbers are little-endian, as the
// machine has to be.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "tokenizer.h"

static void stop(const char *what) {
    fprintf(stderr, "tokenize_batch: %s\n", what);
    exit(1);
}

static void put(const void *data, size_t size) {
    if (size && fwrite(data, 1, size, stdout) != size) stop("cannot write");
}

static void put_decoded(const Tokenizer *t, const int *ids, long n, bool skip_special) {
    Error err;
    Decoder *d = heads_decoder_new(t, skip_special, &err);
    if (!d) stop(err.text);
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (!memory) stop("no memory");
    for (long i = 0; i <= n; i++) {
        const char *out;
        size_t len;
        int status = i < n ? heads_decoder_push(d, ids[i], &out, &len, &err)
                           : heads_decoder_finish(d, &out, &len, &err);
        if (status) stop(err.text);
        if (len && ((uint8_t)out[0] & 0xC0) == 0x80) {
            stop("what a token decodes to begins inside a character");
        }
        fwrite(out, 1, len, memory);
    }
    fclose(memory);
    uint32_t count = (uint32_t)size;
    put(&count, sizeof count);
    put(text, size);
    free(text);
    heads_decoder_free(d);
}

int main(int argc, char **argv) {
    Error err;
    Model model;
    bool is_ids = argc == 3 && strcmp(argv[2], "ids") == 0;
    if (argc != 2 && !is_ids) stop("usage: tokenize_batch MODEL [ids] < records > answers");
    if (model_open(&model, argv[1], &err)) stop(err.text);
    Tokenizer *t = tokenizer_new(&model.file, &err);
    if (!t) stop(err.text);
    fprintf(stderr, "%s\n", tokenizer_describe(t));
    for (uint32_t len; fread(&len, sizeof len, 1, stdin) == 1;) {
        // No longer than the text, so that ASan sees a step beyond it.
        char *record = malloc(len ? len : 1);
        if (!record || fread(record, 1, len, stdin) != len) stop("a record is cut off");
        int *ids = (int *)record;
        long n = is_ids ? (long)(len / sizeof *ids)
                        : heads_encode(t, record, len, true, &ids, &err);
        if (n < 0) stop(err.text);
        uint32_t count = (uint32_t)n;
        put(&count, sizeof count);
        put(ids, (size_t)n * sizeof *ids);
        put_decoded(t, ids, n, false);
        put_decoded(t, ids, n, true);
        if (!is_ids) free(ids);
        free(record);
    }
    tokenizer_free(t);
    model_close(&model);
    return 0;
}
