// The library when a call of its own fails, with fault_shim.so preloaded: for every n and each
// scenario, the n-th allocation, system call or thread. A call must then fail with a sentence, or
// give the same as without; and once all is freed, nothing is left: no memory, descriptor, mapping.
//
//   LD_PRELOAD=fault_shim.so library_faults MODEL... FOLDER [STRIDE]
//
// The models: TEXTS TALKER TRANSLATOR ENCODER CLASSIFIER. FOLDER is for session files. Prints a
// line per scenario and exits with 1 if one failed.
#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heads.h"

static char **paths;  // of the models, and the folder
static heads_error err;
static char got[16384];  // what a scenario found out
static size_t n_got;

static void note(const char *text, size_t len) {
    if (len > sizeof got - n_got) len = sizeof got - n_got;
    memcpy(got + n_got, text, len);
    n_got += len;
}

// What a scenario has open.
typedef struct {
    heads_model *model;
    heads_tokenizer *tokenizer;
    heads_chat *chat;
    heads_workspace *w;
    heads_sequence *s, *fork, *loaded;
    heads_sampler *sampler;
    heads_decoder *decoder;
    heads_batch *batch;
    int *ids, *start;
} Scene;

static bool open_scene(Scene *x, int model, int n_threads) {
    heads_workspace_options options = {.context = 64, .chunk = 8, .n_threads = n_threads};
    return (x->model = heads_model_open(paths[model], &err)) &&
           (x->tokenizer = heads_tokenizer_new(x->model, &err)) &&
           (x->w = heads_workspace_new(x->model, &options, &err));
}

static void close_scene(Scene *x) {
    heads_batch_free(x->batch);
    heads_decoder_free(x->decoder);
    heads_sampler_free(x->sampler);
    heads_sequence_free(x->loaded);
    heads_sequence_free(x->fork);
    heads_sequence_free(x->s);
    heads_workspace_free(x->w);
    heads_chat_free(x->chat);
    heads_tokenizer_free(x->tokenizer);
    heads_model_close(x->model);
    heads_free(x->ids);
    heads_free(x->start);
}

// ---- scenarios: true, or false with a sentence in err ----

static bool generate(Scene *x, int n_threads) {
    heads_sampler_options sampling = {.temperature = 1, .top_p = 0.9f, .seed = 3,
                                      .repeat_penalty = 1.1f};
    const char *text;
    size_t len;
    long n;
    if (!open_scene(x, 0, n_threads) || !(x->s = heads_sequence_new(x->w, 0, &err)) ||
        (n = heads_encode(x->tokenizer, "One day, caf\xC3\xA9", 13, 1, &x->ids, &err)) < 0 ||
        !(x->sampler = heads_sampler_new(x->w, &sampling, &err)) ||
        !(x->decoder = heads_decoder_new(x->tokenizer, 0, &err)))
        return false;
    const float *logits = heads_forward(x->s, x->ids, (int)n, 1, &err);
    for (int i = 0; logits && i < 6; i++) {
        int id = heads_sampler_pick(x->sampler, logits);
        heads_sampler_accept(x->sampler, id);
        if (heads_decoder_push(x->decoder, id, &text, &len, &err)) return false;
        note(text, len);
        logits = heads_forward(x->s, &id, 1, 1, &err);
    }
    return logits && heads_decoder_finish(x->decoder, &text, &len, &err) == 0;
}

static bool text(Scene *x) { return generate(x, 1); }
#ifdef __SANITIZE_ADDRESS__
static bool threads(Scene *x) { return generate(x, 1); }  // it dies itself where a new thread fails
#else
static bool threads(Scene *x) { return generate(x, 3); }
#endif

static bool sequences(Scene *x) {
    static const int ids[] = {5, 6, 7, 8, 9, 10, 11, 12, 13};
    char path[512];
    snprintf(path, sizeof path, "%s/session", paths[5]);
    const float *logits;
    if (!open_scene(x, 0, 1) || !(x->s = heads_sequence_new(x->w, 1, &err)) ||
        !heads_forward(x->s, ids, 6, 1, &err) || heads_sequence_mark(x->s, &err) ||
        !(x->fork = heads_sequence_fork(x->s, 4, &err)) ||
        !heads_forward(x->fork, ids + 4, 5, 1, &err) || heads_sequence_save(x->fork, path, &err) ||
        !(x->loaded = heads_sequence_load(x->w, path, &err)) ||
        heads_sequence_rewind(x->loaded, 8, &err) ||
        !(logits = heads_forward(x->loaded, ids + 8, 1, 1, &err)))
        return false;
    heads_kv_usage use = heads_sequence_kv_usage(x->fork);
    note((const char *)logits, 64);
    note((const char *)&use.in_use, sizeof use.in_use);
    return true;
}

static int allow_all(void *context, const int *tokens, int n_tokens, uint32_t *bits) { return 0; }

enum { BLOCK = 256 };  // bytes of what is noted of a request
static const char FAILED[] = "failed, and said why";

// Notes what became of each request.
static bool run_requests(Scene *x, const heads_request *requests, int n) {
    enum { MOST = 8 };
    char texts[MOST][BLOCK] = {""};
    for (int i = 0; i < n; i++)
        if (heads_batch_add(x->batch, &requests[i], &err) != i) return false;
    for (heads_batch_counts c; c = heads_batch_count(x->batch), c.waiting + c.running > 0;) {
        const heads_event *e;
        int n_events = heads_batch_step(x->batch, &e, &err);
        if (n_events < 0) return false;
        for (; n_events > 0; n_events--, e++) {
            char *end = texts[e->request] + strlen(texts[e->request]);
            if (e->kind == HEADS_FAILED) {
                strcpy(texts[e->request], *e->error ? FAILED : "failed");
            } else {
                snprintf(end, 60, "%d %d %.*s %.3f;", e->kind, e->id, (int)e->len, e->text,
                         e->log_probability);
            }
        }
    }
    n_got = (n_got + BLOCK - 1) / BLOCK * BLOCK;
    for (int i = 0; i < n; i++) note(texts[i], BLOCK);
    return true;
}

static bool batch(Scene *x) {
    static const int ids[] = {5, 6, 7, 8, 9};
    static int alike[40];
    for (int i = 0; i < 40; i++) alike[i] = 5 + i % 7;
    heads_stop stop = {"zq", 2};
    heads_request requests[] = {
        {.ids = ids, .n = 5, .max_tokens = 3, .stops = &stop, .n_stops = 1},
        {.ids = alike, .n = 39, .max_tokens = 2, .likely = 1, .n_top = 3, .n_scored = 2},
        {.ids = alike, .n = 40, .max_tokens = 2, .stop_ids = ids, .n_stop_ids = 1},
        {.ids = ids, .n = 3, .max_tokens = 3, .sampler.temperature = 1, .mask = allow_all},
    };
    return open_scene(x, 0, 1) &&
           (x->batch = heads_batch_new(
                x->w, &(heads_batch_options){.places = 3, .keep = 2, .tokenizer = x->tokenizer},
                &err)) &&
           run_requests(x, requests, 4);
}

static bool chat(Scene *x) {
    heads_message messages[] = {{"user", "what is it?", 11}, {"assistant", "a fox", 5},
                                {"user", "a2", 2}};
    heads_chat_options options = {.answer = 1};
    if (!open_scene(x, 1, 1) || !(x->chat = heads_chat_new(x->model, &err))) return false;
    long n = heads_chat_encode(x->chat, x->tokenizer, messages, 3, &options, &x->ids, &err);
    if (n < 0) return false;
    note((const char *)x->ids, sizeof *x->ids * (size_t)n);
    int end = heads_chat_end(x->chat, x->tokenizer);
    note((const char *)&end, sizeof end);
    if (end < -1) strcpy(err.text, "no memory");
    return end >= -1;
}

static bool translate(Scene *x) {
    long n, begun;
    if (!open_scene(x, 2, 1) || !(x->s = heads_sequence_new(x->w, 1, &err)) ||
        (n = heads_encode(x->tokenizer, "cab", 3, 1, &x->ids, &err)) < 0 ||
        heads_source_language(x->model, x->tokenizer, "ro_RO:fr_XX", x->ids, n, &err) ||
        (begun = heads_start_tokens(x->model, x->tokenizer, "fr_XX", &x->start, &err)) < 0)
        return false;
    heads_run run = {x->s, x->ids, (int)n, 0};
    if (heads_read_sources(x->w, &run, 1, &err) ||
        !(x->fork = heads_sequence_fork(x->s, 0, &err)))
        return false;
    const float *logits = heads_forward(x->fork, x->start, (int)begun, 1, &err);
    if (!logits) return false;
    note((const char *)logits, 64);
    heads_request requests[] = {
        {.source = x->ids, .n_source = (int)n, .lang = "fr_XX", .max_tokens = 4},
        {.source = x->ids, .n_source = (int)n, .lang = "ro_RO", .max_tokens = 4},
    };
    heads_batch_options options = {.keep = 1, .tokenizer = x->tokenizer};
    return (x->batch = heads_batch_new(x->w, &options, &err)) && run_requests(x, requests, 2);
}

static bool embed(Scene *x) {
    float vectors[2 * 64];
    if (!open_scene(x, 3, 1)) return false;
    long n = heads_text_ids(x->model, x->tokenizer, "the quick fox", 13, &x->ids, &err);
    if (n < 0) return false;
    heads_text texts[] = {{.ids = x->ids, .n = (int)n}, {.ids = x->ids, .n = (int)n}};
    heads_workspace_options options = {.threads_of = x->w};
    if (heads_embed(x->model, &options, texts, 1, vectors, &err) ||
        heads_embed(x->model, &options, texts, 2, vectors, &err))
        return false;
    note((const char *)vectors, 2 * sizeof *vectors * (size_t)heads_model_shape(x->model).n_embd);
    return true;
}

static bool classify(Scene *x) {
    static const int ids[] = {3, 1, 4, 1, 5};
    float scores[2 * 8];
    if (!(x->model = heads_model_open(paths[4], &err))) return false;
    heads_text texts[] = {{.ids = ids, .n = 5, .second = 2}, {.ids = ids, .n = 2}};
    heads_workspace_options options = {.n_threads = 1};
    if (heads_classify(x->model, &options, texts, 2, scores, &err)) return false;
    note((const char *)scores, 2 * sizeof *scores * (size_t)heads_model_shape(x->model).n_labels);
    return true;
}

static const struct {
    const char *name;
    bool (*run)(Scene *x);
} SCENARIOS[] = {
    {"text", text}, {"threads", threads}, {"sequences", sequences}, {"batch", batch},
    {"chat", chat}, {"translate", translate}, {"embed", embed},
    {"classify", classify},
};

// ---- ladders ----

static void (*fault_order)(int64_t n, int kinds, int onward);
static int64_t (*fault_count)(void), (*fault_live)(void);

typedef struct {
    int64_t allocations;
    int descriptors, mappings;
} Held;

static int entries(const char *path, bool lines) {
    FILE *f = lines ? fopen(path, "r") : NULL;
    DIR *folder = lines ? NULL : opendir(path);
    int n = 0;
    for (int c; f && (c = getc(f)) != EOF;) n += c == '\n';
    while (folder && readdir(folder)) n++;
    if (f) fclose(f);
    if (folder) closedir(folder);
    return n;
}

static Held held(void) {
    Held h = {.descriptors = entries("/proc/self/fd", false)};
#ifndef __SANITIZE_ADDRESS__  // whose allocator maps more as it goes
    h.mappings = entries("/proc/self/maps", true);
#endif
    h.allocations = fault_live();
    return h;
}

// Runs a scenario whose n-th call fails. Returns whether it succeeded.
static bool attempt(int scenario, int64_t n, bool onward) {
    Scene x = {0};
    n_got = 0;
    memset(got, 0, sizeof got);
    *err.text = 0;
    fault_order(n, 7, onward);
    bool ok = SCENARIOS[scenario].run(&x);
    fault_order(-1, 0, 0);
    close_scene(&x);
    return ok;
}

// Whether a scenario found what it should. A request that failed has no say in what others give.
static bool as_expected(const char *expected) {
    for (size_t i = 0; i < sizeof got; i += BLOCK)
        if (memcmp(got + i, expected + i, BLOCK) != 0 && strcmp(got + i, FAILED) != 0) return false;
    return true;
}

static const char *step(int scenario, int64_t n, bool onward, const char *expected) {
    Held before = held();
    bool ok = attempt(scenario, n, onward);
    Held after = held();
    if (ok && !as_expected(expected)) return "succeeded with another result";
    if (!ok && !*err.text) return "failed without a sentence";
    if (after.allocations != before.allocations) return "memory is left";
    if (after.descriptors != before.descriptors) return "a descriptor is left";
    return after.mappings > before.mappings ? "a mapping is left" : NULL;
}

static int climb(int scenario, int stride) {
    static char expected[sizeof got];
    int failures = 0, runs = 0;
    for (int i = 0; i < 3; i++)
        if (!attempt(scenario, 0, false)) {
            printf("not ok %s: %s\n", SCENARIOS[scenario].name, err.text);
            return 1;
        }
    memcpy(expected, got, sizeof got);
    int64_t n_calls = fault_count();
    for (int64_t n = 1; n <= n_calls; n += stride)
        for (int onward = 0; onward < 2; onward++, runs++) {
            const char *wrong = step(scenario, n, onward, expected);
            failures += wrong != NULL;
            if (wrong) printf("not ok %s, call %lld%s: %s (%s)\n", SCENARIOS[scenario].name,
                              (long long)n, onward ? " onward" : "", wrong, err.text);
        }
    if (!failures && runs) printf("ok %s: %d runs of %lld calls\n", SCENARIOS[scenario].name, runs,
                          (long long)n_calls);
    return failures + !runs;
}

int main(int argc, char **argv) {
    int (*fault_filter)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "fault_filter");
    fault_order = (void (*)(int64_t, int, int))dlsym(RTLD_DEFAULT, "fault_order");
    fault_count = (int64_t (*)(void))dlsym(RTLD_DEFAULT, "fault_count");
    fault_live = (int64_t (*)(void))dlsym(RTLD_DEFAULT, "fault_live");
    paths = argv + 1;
    int failures = 0;
    if (argc < 7 || !fault_filter || fault_filter()) {
        fprintf(stderr, "usage: LD_PRELOAD=fault_shim.so library_faults TEXTS TALKER TRANSLATOR "
                        "ENCODER CLASSIFIER FOLDER [STRIDE]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof SCENARIOS / sizeof *SCENARIOS; i++)
        failures += climb((int)i, argc > 7 ? atoi(argv[7]) : 1);
    return failures != 0;
}
