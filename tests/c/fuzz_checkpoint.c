// What the engine does with damaged files: each mutation is parsed, and if that succeeds all that a
// model can be asked for is asked: tokens, sources, vectors, conversations. Meant to be built with
// ASan and UBSan; with clang and -DLIBFUZZER -fsanitize=fuzzer it is a fuzz target.
//   fuzz_checkpoint FILE truncate STEP          every STEP bytes
//   fuzz_checkpoint FILE grow                   bytes after the end
//   fuzz_checkpoint FILE flip COUNT SEED        one flipped bit before the tensors' data
//   fuzz_checkpoint FILE overwrite COUNT SEED   a 32-bit word there set to an extreme value
//   fuzz_checkpoint FILE damage COUNT SEED      blocks there swapped, repeated, moved, cleared
//   fuzz_checkpoint FILE weights COUNT SEED     the same in the tensors' data
//   fuzz_checkpoint FILE knobs COUNT SEED       metadata chosen by key and set to extremes, up to
//                                               four entries at once
//   fuzz_checkpoint FILE tokenizer COUNT SEED   the same of the tokenizer's entries,
//   fuzz_checkpoint FILE chat COUNT SEED        of the chat template's
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "fuzzing.h"
#include "library/chat.h"
#include "sequence/cost.h"
#include "tokenizer.h"

// ---- what is done with a file ----

enum { MOST_IDS = 16 };

static void use_chat(const Model *model, const Tokenizer *tokenizer) {
    static const Message messages[] = {{"system", " Be\xE2\x80\x83", 6},
                                       {"user", "Hi </think>\n", 12},
                                       {"assistant", "\x1C", 1}, {"user", "Bye", 3}};
    Error err;
    int *ids;
    Chat *chat = chat_new(&model->file, &err);
    for (int i = 0; chat && i < 16; i++) {
        ChatOptions options = {.answer = i & 1, .no_think = i & 2, .clock = 1000000000};
        size_t len, first = i & 4 ? 1 : 0, n = i & 8 ? 3 : 4;
        char *text = chat_render(chat, messages + first, n - first, &options, &len, &err);
        if (text && strlen(text) > len) abort();
        free(text);
    }
    if (chat && tokenizer) {
        heads_chat_options options = {.answer = 1};
        long n = heads_chat_encode(chat, tokenizer, messages, 4, &options, &ids, &err);
        if ((n < 0) != (ids == NULL)) abort();
        free(ids);
        if (heads_chat_end(chat, tokenizer) < -1) abort();
    }
    if (chat) chat_describe(chat);
    chat_free(chat);
}

// Some text of the vocabulary's own, so that tokens are found in it.
static size_t text_of_tokens(const Tokenizer *t, char *text, size_t room) {
    static const char begin[] = "Hello, w\xC3\xB6rld 12\n\xF0\x9F\xA6\x8A\xFF <s> 3 kites";
    size_t used = sizeof begin - 1, len;
    memcpy(text, begin, used);
    for (int id = 3; id < 400; id += id < 40 ? 5 : 37) {
        const char *token = tokenizer_text(t, id, &len);
        if (len > room - used) break;
        memcpy(text + used, token, len);
        used += len;
    }
    return used;
}

static void decode(const Tokenizer *t, const int *ids, long n) {
    Error err;
    const char *out;
    size_t len;
    Decoder *d = heads_decoder_new(t, true, &err);
    for (long i = 0; i < n && d; i++) {
        if (ids[i] < 0) abort();
        heads_decoder_push(d, ids[i], &out, &len, &err);
        heads_is_eos(t, ids[i]);
        tokenizer_written(t, ids[i], &len);
    }
    for (int id = 0; id < 300 && d; id++) heads_decoder_push(d, id, &out, &len, &err);
    if (d) heads_decoder_finish(d, &out, &len, &err);
    heads_decoder_free(d);
}

static void use_tokenizer(const Tokenizer *t) {
    Error err;
    char text[300];
    const char *mask;
    size_t len;
    bool strips;
    int *ids;
    long n = heads_encode(t, text, text_of_tokens(t, text, sizeof text), true, &ids, &err);
    decode(t, ids, n);
    if (n > 0 && tokenizer_cut(t, ids, n, 3) > n) abort();
    tokenizer_mask(t, &mask, &len, &strips);
    tokenizer_describe(t);
    free(ids);
}

// ---- passes ----

// The first tokens of a text, in ids; returns how many. Languages are asked for by their names.
static int begin_text(const Model *m, const Tokenizer *t, int ids[MOST_IDS]) {
    Error err;
    const Ints *languages = &m->rules.languages;
    char lang[200] = "";
    size_t from, to;
    int *start, source[] = {m->vocab_size - 1, 0, 0};
    if (t && languages->n) {
        const char *a = tokenizer_text(t, languages->v[0], &from);
        const char *b = tokenizer_text(t, languages->v[languages->n - 1], &to);
        snprintf(lang, sizeof lang, "%.*s:%.*s", (int)from, a, (int)to, b);
        source[0] = languages->v[0];
        heads_source_language(m, t, lang, source, 3, &err);
    }
    long n = heads_start_tokens(m, t, "none:such", &start, &err);
    if (n >= 0) abort();
    n = heads_start_tokens(m, t, *lang ? lang : NULL, &start, &err);
    if (n < 0) n = heads_start_tokens(m, t, NULL, &start, &err);
    if (n > MOST_IDS) n = MOST_IDS;
    if (n > 0) memcpy(ids, start, (size_t)n * sizeof *ids);
    free(start);
    return n < 0 ? 0 : (int)n;
}

static int read_source(Workspace *w, Sequence *s, int n_tokens) {
    Error err;
    int last = w->model->source.vocab_size - 1, source[] = {last, 0, last / 2}, n;
    Run run = {s, source, n_tokens, 0};
    int status = heads_read_sources(w, &run, 1, &err);
    if (heads_sequence_source(s, &n) && status == 0 && n != n_tokens) abort();
    return status;
}

// Picks some tokens by the model's rules, and runs them.
static void generate(Workspace *w, Sequence *s, const float *logits, const int *ids, int n) {
    Error err;
    heads_sampler_options options = {.repeat_penalty = 1.5f, .most = n + 2};
    heads_sampler *sampler = heads_sampler_new(w, &options, &err);
    for (int i = 0; i < n && sampler; i++) heads_sampler_accept(sampler, ids[i]);
    for (int i = 0; i < 3 && logits && sampler; i++) {
        int id = heads_sampler_pick(sampler, logits);
        if (id < 0 || id >= w->model->vocab_size) abort();
        heads_sampler_accept(sampler, id);
        logits = heads_forward(s, &id, 1, 1, &err);
    }
    heads_sampler_free(sampler);
}

// A prompt, a token, a fork that goes another way, back to the start, and on by the sampler.
static int run_tokens(Workspace *w, const Tokenizer *t, int n_tokens) {
    Error err;
    int last = w->model->vocab_size - 1, ids[MOST_IDS];
    const int prompt[] = {0, last, last / 2};
    Sequence *s = heads_sequence_new(w, true, &err), *fork = NULL;
    bool reads = w->model->source.n;
    if (s && reads && read_source(w, s, n_tokens)) {
        heads_sequence_free(s);
        return -1;
    }
    const float *logits = s ? heads_forward(s, prompt, n_tokens, 1, &err) : NULL;
    volatile float sum = 0;
    for (int i = 0; i < logit_width(w) && logits; i++) sum = sum + logits[i];
    if (logits) fork = heads_sequence_fork(s, n_tokens - 1, &err);
    if (fork) heads_forward(fork, prompt, 1, 1, &err);
    if (logits) heads_forward(s, prompt, 1, 0, &err);
    heads_sequence_free(fork);  // it would keep s from going back
    int status = logits ? 0 : -1;
    if (logits && heads_sequence_rewind(s, 0, &err) == 0) {
        int n = begin_text(w->model, t, ids);
        if (n == 0) ids[n++] = 0;
        logits = heads_forward(s, ids, n, 1, &err);
        if (logits && w->model->output.data) generate(w, s, logits, ids, n);
    }
    heads_sequence_free(s);
    return status;
}

// Two texts' vectors and classes: a model either says how it makes them or is refused.
static void use_texts(const Model *model, const Tokenizer *t, const heads_workspace_options *o) {
    Error err;
    static const char words[] = "a kite, a fox.";
    int few[] = {0, model->vocab_size - 1}, *ids = NULL;
    long n = t ? heads_text_ids(model, t, words, sizeof words - 1, &ids, &err) : -1;
    heads_text texts[] = {{.ids = few, .n = 2},
                          {.ids = n > 0 ? ids : few, .n = n > 0 ? (int)n : 1}};
    heads_shape shape = heads_model_shape(model);
    size_t n_ids = 2 + (size_t)texts[1].n;
    size_t n_scores = (size_t)shape.n_labels * (shape.token_classes ? n_ids : 2);
    size_t n_vectors = shape.token_vectors ? n_ids : 2;
    float *vectors = calloc(n_vectors * (size_t)shape.vector + 1, sizeof *vectors);
    float *scores = calloc(n_scores + 1, sizeof *scores);
    if (!vectors || !scores) abort();
    if (heads_embed(model, o, texts, 2, vectors, &err) == 0 && !shape.vector) abort();
    if (heads_classify(model, o, texts, 2, scores, &err) == 0 && !shape.n_labels) abort();
    free(vectors);
    free(scores);
    free(ids);
}

static int use_model(const Model *model, const Tokenizer *tokenizer) {
    static const Dtype types[] = {F16, Q8, Q4, F32};
    Error err;
    int context = model->context < 16 ? model->context : 16;
    uint32_t crc = checkpoint_crc(&model->file);
    Dtype dtype = types[crc % 4];
    WorkspaceOptions options = {.context = context, .chunk = 2, .n_threads = 1, .k_type = dtype,
                                .v_type = dtype, .logit_rows = 1, .isa = getenv("HEADS_ISA"),
                                .hidden = !model->output.data};
    kv_plan(model, 0, model->context, dtype, dtype);
    kv_bytes_at(model, 0, model->context, model->context, dtype, dtype);
    Workspace *w = heads_workspace_new(model, &options, &err);
    if (!w) return -1;
    int status = run_tokens(w, tokenizer, context < 3 ? context : 3);
    heads_workspace_free(w);
    heads_workspace_options of_texts = {.chunk = 2, .n_threads = 1, .isa = options.isa};
    use_texts(model, tokenizer, &of_texts);
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
        Tokenizer *t = tokenizer_new(&model.file, err);
        if (t) use_tokenizer(t);
        use_chat(&model, t);
        int run = use_model(&model, t);
        checkpoint_check(&model.file, err);
        if (model.file.shape && run == 0) abort();
        accepted = (t || !has_tokenizer(&model.file)) && (run == 0 || model.file.shape);
        tokenizer_free(t);
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

static bool begins(const Meta *m, const char *prefix) {
    return m->key_len > strlen(prefix) && memcmp(m->key, prefix, strlen(prefix)) == 0;
}

// Whether an entry belongs to a part: "tokenizer", "chat", or else "knobs".
static bool is_of(const Meta *m, const char *part) {
    bool knob = begins(m, "model.") || begins(m, "layer.");
    return strcmp(part, "knobs") == 0 ? knob : begins(m, part);
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

// Mutates up to four entries, of a part rather than others. false: these bytes are no container.
static bool mutate_part(uint8_t *bytes, size_t size, const char *part, uint64_t *state) {
    Error err;
    Checkpoint file;
    if (checkpoint_parse(&file, bytes, size, &err)) return false;
    bool dimensions = strcmp(part, "knobs") == 0 && below(state, 2);
    for (size_t n = 1 + below(state, 4); n > 0 && file.n_meta; n--) {
        const Meta *m = &file.meta[below(state, (size_t)file.n_meta)];
        for (int tries = 0; tries < 20 && !is_of(m, part); tries++)
            m = &file.meta[below(state, (size_t)file.n_meta)];
        if (dimensions) mutate_dimension(&file, state);
        else mutate_entry(&file, m, state);
    }
    checkpoint_free(&file);
    return true;
}

#ifdef LIBFUZZER

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

// Half of the mutations are of entries; others keep the header's size right: nothing else does.
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    uint64_t state = seed;
    static const char *const parts[] = {"knobs", "knobs", "tokenizer", "chat"};
    const char *part = parts[below(&state, 4)];
    if (below(&state, 2) && mutate_part(data, size, part, &state)) return size;
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

static int usage(void) {
    fprintf(stderr, "usage: fuzz_checkpoint FILE truncate STEP | grow | flip COUNT SEED | "
            "overwrite COUNT SEED | damage COUNT SEED | weights COUNT SEED | knobs COUNT SEED | "
            "tokenizer COUNT SEED | chat COUNT SEED\n");
    return 2;
}

// Mutates bytes, of which the first `part` stand before the tensors' data.
static void mutate(uint8_t *bytes, size_t size, size_t part, const char *mode, uint64_t *state) {
    if (strcmp(mode, "flip") == 0) flip(bytes, part, state);
    else if (strcmp(mode, "overwrite") == 0) overwrite(bytes, part, state);
    else if (strcmp(mode, "damage") == 0) damage(bytes + 64, part - 64, state);
    else if (strcmp(mode, "weights") == 0) damage(bytes + part, size - part, state);
    else mutate_part(bytes, size, mode, state);
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
    long n = 0, accepted = 0, count = argc > 3 ? atol(argv[3]) : 0;
    const char *mode = argv[2];
    watch();
    if (!try_bytes(bytes, file.size, &err)) {
        printf("not ok the undamaged file: %s\n", err.text);
        return 1;
    }
    if (strcmp(mode, "truncate") == 0) {
        for (size_t size = 0; count > 0 && size < file.size; size += (size_t)count, next_input(n++))
            accepted += try_bytes(bytes, size, &err);
    } else if (strcmp(mode, "grow") == 0) {
        for (; n < 64; next_input(++n))
            accepted += try_bytes(bytes, file.size + (size_t)n + 1, &err);
    } else {
        uint64_t state = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
        size_t part = 64 + (size_t)u64_at(bytes + 24) + (size_t)u64_at(bytes + 32);
        for (; n < count; n++) {
            next_input(n);
            memcpy(bytes, file.data, strcmp(mode, "weights") == 0 ? file.size : part);
            mutate(bytes, file.size, part, mode, &state);
            accepted += try_bytes(bytes, file.size, &err);
        }
    }
    printf("%ld tried, %ld accepted\n", n, accepted);
    free(bytes);
    unmap_file(&file);
    return 0;
}

#endif
