// What the engine does with damaged files: each mutation is parsed, and if that succeeds the
// tokenizer, a workspace and some tokens are run as well. Meant to be built with ASan and UBSan;
// with clang and -DLIBFUZZER -fsanitize=fuzzer it is a fuzz target.
//   fuzz_checkpoint FILE truncate STEP          every STEP bytes
//   fuzz_checkpoint FILE grow                   bytes after the end
//   fuzz_checkpoint FILE flip COUNT SEED        one flipped bit before the tensors' data
//   fuzz_checkpoint FILE overwrite COUNT SEED   a 32-bit word there set to an extreme value
//   fuzz_checkpoint FILE knobs COUNT SEED       metadata chosen by key and set to extremes, up to
//                                               four entries at once
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"
#include "text/chat.h"
#include "tokenizer.h"

// ---- what is done with a file ----

static void use_chat(const Model *model) {
    static const Message messages[] = {{"system", " Be\xE2\x80\x83", 6},
                                       {"user", "Hi </think>\n", 12},
                                       {"assistant", "\x1C", 1}, {"user", "Bye", 3}};
    Error err;
    Chat *chat = chat_new(&model->file, &err);
    for (int i = 0; chat && i < 16; i++) {
        ChatOptions options = {.add_generation_prompt = i & 1, .no_think = i & 2,
                               .clock = 1000000000};
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
    Tokenizer *t = tokenizer_new(&model->file, &err);
    if (!t) return has_tokenizer(&model->file) ? -1 : 0;
    Decoder *d = decoder_new(t, true, &err);
    long n = tokenizer_encode(t, text, sizeof text - 1, true, &ids, &err);
    for (long i = 0; i < n && d; i++) {
        if (ids[i] < 0) abort();
        decoder_push(d, ids[i], &out, &len, &err);
        tokenizer_is_eos(t, ids[i]);
    }
    for (int id = 0; id < 300 && d; id++) decoder_push(d, id, &out, &len, &err);
    if (d) decoder_finish(d, &out, &len, &err);
    tokenizer_describe(t);
    decoder_free(d);
    tokenizer_free(t);
    free(ids);
    return 0;
}

// A prompt in two passes, a token, a fork that goes another way, and back to the start.
static int run_tokens(Workspace *w, int n_tokens) {
    Error err;
    int last = workspace_model(w)->vocab_size - 1;
    const int prompt[] = {0, last, last / 2};
    Sequence *s = sequence_new(w, true, &err), *fork = NULL;
    const float *logits = s ? forward(s, prompt, n_tokens, 1, &err) : NULL;
    volatile float sum = 0;
    for (int i = 0; i <= last && logits; i++) sum = sum + logits[i];
    if (logits) fork = sequence_fork(s, n_tokens - 1, &err);
    if (fork) forward(fork, prompt, 1, 1, &err);
    if (logits) forward(s, prompt, 1, 0, &err);
    if (logits && sequence_rewind(s, 0, &err) == 0) forward(s, prompt, 1, 1, &err);
    sequence_free(fork);
    sequence_free(s);
    return logits ? 0 : -1;
}

static int use_model(const Model *model) {
    static const Dtype dtypes[] = {F16, Q8, Q4, F32};
    Error err;
    int context = model->context < 16 ? model->context : 16;
    Dtype dtype = dtypes[checkpoint_crc(&model->file) % 4];
    WorkspaceOptions options = {.context = context, .chunk = 2, .n_threads = 1, .k_dtype = dtype,
                                .v_dtype = dtype, .logit_rows = 1, .isa = getenv("HEADS_ISA")};
    kv_plan(model, 0, model->context, dtype, dtype);
    kv_bytes_at(model, 0, model->context, model->context, dtype, dtype);
    Workspace *w = workspace_new(model, &options, &err);
    if (!w) return -1;
    int status = run_tokens(w, context < 3 ? context : 3);
    workspace_free(w);
    return status;
}

// 1 if the bytes were accepted and run, or are a shape, which must not run; 0 if they were refused.
// The copy is exactly as long as the bytes, so that ASan sees whatever is read beyond.
static int try_bytes(const uint8_t *bytes, size_t size, Error *err) {
    void *copy;
    if (posix_memalign(&copy, 64, size ? size : 1)) abort();
    memcpy(copy, bytes, size);
    Model model;
    int accepted = 0;
    strcpy(err->text, "");
    if (model_parse(&model, copy, size, err) == 0) {
        use_chat(&model);
        int tokenizer = use_tokenizer(&model), run = use_model(&model);
        checkpoint_check(&model.file, err);
        if (model.file.shape && run == 0) abort();
        accepted = tokenizer == 0 && (run == 0 || model.file.shape);
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

// ---- mutations ----

static uint64_t next_random(uint64_t *state) {  // splitmix64
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static size_t below(uint64_t *state, size_t n) { return next_random(state) % n; }

static int32_t extreme_int(uint64_t *state) {
    static const int32_t extremes[] = {
        0, 1, -1, 2, 3, 255, 256, 1 << 14, (1 << 24) - 1, 1 << 24, 1 << 30, INT_MAX, INT_MIN,
    };
    enum { N = sizeof extremes / sizeof *extremes };
    size_t i = below(state, N + 8);  // else a power of two, or next to it
    return i < N ? extremes[i] : (int32_t)((1u << below(state, 31)) + below(state, 3) - 1);
}

static float extreme_float(uint64_t *state) {
    static const float extremes[] = {
        0.0f, -0.0f, 1.0f, -1.0f, 1e-45f, 1e-20f, 1e20f, 3.4e38f, -3.4e38f, INFINITY, -INFINITY,
        NAN,
    };
    return extremes[below(state, sizeof extremes / sizeof *extremes)];
}

static void set_value(const Meta *m, size_t i, uint64_t *state) {
    uint8_t *values = (uint8_t *)(uintptr_t)m->values;  // of bytes that are ours
    int32_t n = extreme_int(state);
    float x = extreme_float(state);
    if (m->type == META_U8) values[i] = (uint8_t)n;
    else memcpy(values + 4 * i, m->type == META_I32 ? (const void *)&n : &x, 4);
}

// Sets one value of an entry, or all, or makes it have one more or less where that fits into the
// same bytes, or takes the values of another entry.
static void mutate_entry(const Checkpoint *file, const Meta *m, uint64_t *state) {
    const Meta *other = &file->meta[below(state, (size_t)file->n_meta)];
    size_t how = below(state, 8);
    if (m->count == 0) return;
    if (how == 0) {
        uint8_t *count = (uint8_t *)(uintptr_t)m->key - 8;
        if (m->type != META_U8) *count ^= m->count % 2 ? 3 : 1;  // 1 <-> 2
    } else if (how == 1) {
        size_t n = m->count < other->count ? m->count : other->count;
        if (other->type == m->type)
            memmove((void *)(uintptr_t)m->values, other->values, n * (m->type == META_U8 ? 1 : 4));
    } else if (how < 5) {
        set_value(m, below(state, m->count), state);
    } else {
        for (size_t i = 0; i < m->count; i++) set_value(m, i, state);
    }
}

static bool is_knob(const Meta *m) {
    return m->key_len > 6 &&
           (memcmp(m->key, "model.", 6) == 0 || memcmp(m->key, "layer.", 6) == 0);
}

// Sets a knob that others are multiplied with to a power of two, in all layers.
static void mutate_dimension(const Checkpoint *file, uint64_t *state) {
    static const char *const keys[] = {
        "model.n_embd", "model.n_layers", "model.ple", "layer.n_heads", "layer.head_dim",
        "layer.d_ff", "layer.latent", "layer.n_nope", "layer.n_value", "layer.taps",
        "layer.delta_k_heads", "layer.delta_v_heads", "layer.delta_k_dim", "layer.delta_v_dim",
        "layer.ssm_heads", "layer.ssm_head_dim", "layer.ssm_groups", "layer.ssm_state",
        "layer.experts", "layer.d_expert", "layer.window", "model.context",
    };
    const Meta *m = checkpoint_meta(file, keys[below(state, sizeof keys / sizeof *keys)]);
    int32_t n = 1 << below(state, 25);
    for (size_t i = 0; m && m->type == META_I32 && i < m->count; i++)
        memcpy((uint8_t *)(uintptr_t)m->values + 4 * i, &n, sizeof n);
}

// Mutates up to four entries, knobs rather than the tokenizer's. false: these bytes are no
// container.
static bool mutate_knobs(uint8_t *bytes, size_t size, uint64_t *state) {
    Error err;
    Checkpoint file;
    if (checkpoint_parse(&file, bytes, size, &err)) return false;
    bool dimensions = below(state, 2);
    for (size_t n = 1 + below(state, 4); n > 0 && file.n_meta; n--) {
        const Meta *m = &file.meta[below(state, (size_t)file.n_meta)];
        for (int tries = 0; tries < 8 && !is_knob(m); tries++)
            m = &file.meta[below(state, (size_t)file.n_meta)];
        if (dimensions) mutate_dimension(&file, state);
        else mutate_entry(&file, m, state);
    }
    checkpoint_free(&file);
    return true;
}

#ifdef LIBFUZZER

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

// Half of the mutations are of knobs; others keep the header's size right, which nothing else does.
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    uint64_t state = seed;
    if (next_random(&state) % 2 == 0 && mutate_knobs(data, size, &state)) return size;
    size = LLVMFuzzerMutate(data, size, max_size) / 64 * 64;
    if (size >= 64)
        for (int i = 0; i < 8; i++) data[16 + i] = (uint8_t)((uint64_t)size >> 8 * i);
    return size;
}

#else

static uint64_t u64_at(const uint8_t *p) {
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | p[i];
    return n;
}

static void flip(uint8_t *bytes, size_t part, uint64_t *state) {
    size_t bit = below(state, part * 8);
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

static void overwrite(uint8_t *bytes, size_t part, uint64_t *state) {
    static const uint32_t extremes[] = {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x40000000,
                                        0x00FFFFFF, 0x7F800000};
    memcpy(bytes + below(state, part / 4) * 4, &extremes[below(state, 8)], 4);
}

static int usage(void) {
    fprintf(stderr, "usage: fuzz_checkpoint FILE truncate STEP | grow | flip COUNT SEED | "
            "overwrite COUNT SEED | knobs COUNT SEED\n");
    return 2;
}

int main(int argc, char **argv) {
    Error err;
    Mapping file;
    void *copy;
    if (argc < 3 || map_file(&file, argv[1], &err)) return usage();
    if (file.size < 64 || posix_memalign(&copy, 64, file.size + 64)) return 2;
    uint8_t *bytes = copy;
    memcpy(bytes, file.data, file.size);
    memset(bytes + file.size, 0, 64);
    long tried = 0, accepted = 0, count = argc > 3 ? atol(argv[3]) : 0;
    const char *mode = argv[2];
    if (!try_bytes(bytes, file.size, &err)) {
        printf("not ok the undamaged file: %s\n", err.text);
        return 1;
    }
    if (strcmp(mode, "truncate") == 0) {
        for (size_t n = 0; count > 0 && n < file.size; n += (size_t)count, tried++)
            accepted += try_bytes(bytes, n, &err);
    } else if (strcmp(mode, "grow") == 0) {
        for (size_t n = 1; n <= 64; n++, tried++) accepted += try_bytes(bytes, file.size + n, &err);
    } else {
        uint64_t state = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
        size_t part = 64 + (size_t)u64_at(bytes + 24) + (size_t)u64_at(bytes + 32);
        for (; tried < count; tried++) {
            memcpy(bytes, file.data, part);
            if (strcmp(mode, "knobs") == 0) mutate_knobs(bytes, file.size, &state);
            else (strcmp(mode, "flip") == 0 ? flip : overwrite)(bytes, part, &state);
            accepted += try_bytes(bytes, file.size, &err);
        }
    }
    printf("%ld tried, %ld accepted\n", tried, accepted);
    free(bytes);
    unmap_file(&file);
    return 0;
}

#endif
