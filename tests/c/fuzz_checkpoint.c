// What the engine does with damaged files: each mutation is parsed, and if that succeeds the chat, the tokenizer, the
// session and one token are run as well. Meant to be built with ASan and UBSan; with clang and -DLIBFUZZER
// -fsanitize=fuzzer a fuzz target.
//   fuzz_checkpoint FILE truncate STEP     every STEP bytes
//   fuzz_checkpoint FILE flip COUNT SEED   one flipped bit in the header, the metadata or the tensor table, COUNT times
//   fuzz_checkpoint FILE overwrite COUNT SEED   a 32-bit word of the same part set to an extreme value
//   fuzz_checkpoint FILE grow              bytes behind the end
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat.h"

static void use_chat(const Model *model) {
    static const Message messages[] = {{"system", " Be\xE2\x80\x83", 6}, {"user", "Hi </think>\n", 12},
                                       {"assistant", "\x1C", 1}, {"user", "Bye", 3}};
    Error err;
    Chat *chat = chat_new(model, &err);
    for (int i = 0; chat && i < 16; i++) {
        ChatOptions options = {.add_generation_prompt = i & 1, .no_think = i & 2, .clock = 1000000000};
        size_t len, first = i & 4 ? 1 : 0, n = i & 8 ? 3 : 4;
        char *text = chat_render(chat, messages + first, n - first, &options, &len, &err);
        if (text && strlen(text) > len) abort();
        free(text);
    }
    if (chat) chat_describe(chat);
    chat_free(chat);
}

static int use_tokenizer(const Model *model) {
    static const char text[] = "Hello, w\xC3\xB6rld 12\n\xF0\x9F\xA6\x8A\xFF <s>";
    Error err;
    const char *out;
    size_t len;
    int *ids = NULL;
    Tokenizer *t = tokenizer_new(model, &err);
    if (!t) return -1;
    Decoder *d = decoder_new(t, true, &err);
    long n = tokenizer_encode(t, text, sizeof text - 1, true, &ids, &err);
    for (long i = 0; i < n && d; i++) {
        if (ids[i] < 0 || ids[i] >= model->vocab_size) abort();  // forward() would have to refuse it
        decoder_push(d, ids[i], &out, &len, &err);
        tokenizer_is_eos(t, ids[i]);
    }
    for (int id = 0; id < 300 && id < model->vocab_size && d; id++) decoder_push(d, id, &out, &len, &err);
    if (d) decoder_finish(d, &out, &len, &err);
    tokenizer_describe(t);
    decoder_free(d);
    tokenizer_free(t);
    free(ids);
    return 0;
}

static int use_session(const Model *model) {
    Error err;
    SessionOptions options = {.context = model->context < 16 ? model->context : 16, .chunk = 2, .n_threads = 1,
                              .k_dtype = F16, .v_dtype = F16, .logit_rows = 1};
    Session *s = session_new(model, &options, &err);
    if (!s) return -1;
    const float *logits = forward(s, (int[]){0}, 1, 1, &err);
    volatile float sum = 0;
    for (int i = 0; i < model->vocab_size && logits; i++) sum = sum + logits[i];
    session_free(s);
    return logits ? 0 : -1;
}

// 1 if the bytes were accepted and run, 0 if they were refused. The copy is exactly as long as the bytes, so that ASan sees
// whatever is read beyond.
static int try_bytes(const uint8_t *bytes, size_t size, Error *err) {
    void *copy;
    if (posix_memalign(&copy, 64, size ? size : 1)) abort();
    memcpy(copy, bytes, size);
    Model model;
    int accepted = 0;
    strcpy(err->text, "");
    if (model_parse(&model, copy, size, err) == 0) {
        use_chat(&model);
        int tokenizer = use_tokenizer(&model), session = use_session(&model);
        accepted = tokenizer == 0 && session == 0;
        model.map = (Mapping){0};  // ours
        model_close(&model);
    } else if (!err->text[0]) {
        abort();  // a refusal says why
    }
    free(copy);
    return accepted;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    Error err;
    try_bytes(bytes, size, &err);
    return 0;
}

#ifndef LIBFUZZER

static uint64_t next_random(uint64_t *state) {  // splitmix64
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t u64_at(const uint8_t *p) {
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | p[i];
    return n;
}

static void mutate(uint8_t *bytes, size_t part, bool flip, uint64_t *state) {
    static const uint32_t extremes[] = {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x40000000, 0x00FFFFFF, 0x7F800000};
    if (flip) {
        uint64_t bit = next_random(state) % (part * 8);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    } else {
        memcpy(bytes + next_random(state) % (part / 4) * 4, &extremes[next_random(state) % 8], 4);
    }
}

int main(int argc, char **argv) {
    Error err;
    Mapping file;
    if (argc < 3 || map_file(&file, argv[1], &err)) {
        fprintf(stderr, "usage: fuzz_checkpoint FILE truncate STEP | flip COUNT SEED | overwrite COUNT SEED | grow\n");
        return 2;
    }
    uint8_t *bytes = malloc(file.size + 64);
    if (!bytes || file.size < 64) return 2;
    memcpy(bytes, file.data, file.size);
    memset(bytes + file.size, 0, 64);
    long tried = 0, accepted = 0, count = argc > 3 ? atol(argv[3]) : 0;
    if (!try_bytes(bytes, file.size, &err)) {
        printf("not ok the undamaged file: %s\n", err.text);
        return 1;
    }
    if (strcmp(argv[2], "truncate") == 0) {
        for (size_t n = 0; count > 0 && n < file.size; n += (size_t)count, tried++) accepted += try_bytes(bytes, n, &err);
    } else if (strcmp(argv[2], "grow") == 0) {
        for (size_t n = 1; n <= 64; n++, tried++) accepted += try_bytes(bytes, file.size + n, &err);
    } else {
        uint64_t state = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
        size_t part = 64 + (size_t)u64_at(bytes + 24) + (size_t)u64_at(bytes + 32);
        for (; tried < count; tried++) {
            memcpy(bytes, file.data, part);
            mutate(bytes, part, strcmp(argv[2], "flip") == 0, &state);
            accepted += try_bytes(bytes, file.size, &err);
        }
    }
    printf("%ld tried, %ld accepted\n", tried, accepted);
    free(bytes);
    unmap_file(&file);
    return 0;
}

#endif
