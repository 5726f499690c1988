// What the engine does with damaged sessions: one either is refused with a sentence, or goes on as
// the text that was saved, to the bit.
//
//   fuzz_session MODEL K_TYPE V_TYPE COUNT SEED
//
// Saves random texts in several contexts. Each input is one of the files, loaded in any context:
//   damaged   blocks swapped, repeated, moved or cleared, bits flipped, or an end cut off or added
//   forged    the same or a changed header, under sums that fit, or as a file of an older build:
//             only what is read outside of it could be wrong
//   whole     as it was saved
// Types: 0 f16, 1 f32, 2 q8, 3 q4. Prints "ok" and what was done.
#include <stdlib.h>
#include <sys/mman.h>

#include "fuzzing.h"
#include "heads.h"
#include "sequence/checksum.h"

enum { N_CONTEXTS = 5, N_FILES = 8, LONGEST = 150, MORE = 2, EXTRA = 1 << 17 };
enum { AT_VERSION = 8, AT_SUM = 12, AT_SIZE = 16, AT_LAYERS = 36, AT_LENGTH = 40, AT_SOURCE = 56,
       AT_STEERED = 60, HEADER = 64, ENTRY = 32 };  // sequence/saved.c

typedef struct {  // a saved text
    uint8_t *bytes;
    size_t size;
    int n, tokens[LONGEST], next[MORE];  // the text, and how it goes on:
    float *logits;                       // [vocab_size] of the last of `next`
} File;

static heads_model *model;
static heads_shape shape;
static heads_workspace *w[N_CONTEXTS];
static File files[N_FILES];
static uint64_t state;
static int input;        // a file in memory, the one to be loaded
static char path[40];    // its name
static char saved[] = "/tmp/heads-session-XXXXXX";
static struct {
    long refused, refused_later, same, forged_taken;
} found;

static void give_up(const char *what, const heads_error *err) {
    printf("not ok input %ld: %s: %s\n", tried, what, err->text);
    unlink(saved);
    exit(1);
}

// ---- files ----

static void read_file(File *f) {
    FILE *in = fopen(saved, "rb");
    if (!in || fseek(in, 0, SEEK_END)) exit(2);
    f->size = (size_t)ftell(in);
    f->bytes = malloc(f->size);
    rewind(in);
    if (!f->bytes || fread(f->bytes, 1, f->size, in) != f->size) exit(2);
    fclose(in);
}

static void write_input(const uint8_t *bytes, size_t size) {
    if (ftruncate(input, 0) || pwrite(input, bytes, size, 0) != (ssize_t)size) exit(2);
}

// A text in one of the contexts, sometimes put back; a window's ring may have come round.
static void make_file(File *f, heads_workspace *in) {
    heads_error err;
    int room = heads_workspace_context(in) - MORE, source[4];
    int n = room - (int)below(&state, (size_t)room / 2), n_source = 1 + (int)below(&state, 4);
    heads_sequence *s = heads_sequence_new(in, (int)below(&state, 2), &err);
    if (!s) give_up("heads_sequence_new", &err);
    for (int i = 0; i < n; i++) f->tokens[i] = (int)below(&state, (size_t)shape.vocab_size);
    for (int i = 0; i < MORE; i++) f->next[i] = (int)below(&state, (size_t)shape.vocab_size);
    for (int i = 0; i < n_source && shape.source_vocab; i++)
        source[i] = (int)below(&state, (size_t)shape.source_vocab);
    heads_run reads = {s, source, n_source, 0};
    if (shape.source_vocab && heads_read_sources(in, &reads, 1, &err)) give_up("source", &err);
    float *vector = calloc((size_t)shape.n_embd, sizeof *vector);
    if (vector) vector[0] = 1.0f;
    for (int i = (int)below(&state, 3); i > 0; i--)
        if (heads_sequence_steer(s, i % shape.n_layers, vector, 0.1f, &err))
            give_up("heads_sequence_steer", &err);
    free(vector);
    if (!heads_forward(s, f->tokens, n, 0, &err)) give_up("heads_forward", &err);
    if (n > 4 && below(&state, 2)) heads_sequence_rewind(s, n - 3, &err);  // may have forgotten
    f->n = heads_sequence_length(s);
    if (heads_sequence_save(s, saved, &err)) give_up("heads_sequence_save", &err);
    read_file(f);
    const float *logits = heads_forward(s, f->next, MORE, 1, &err);
    f->logits = malloc(sizeof *logits * (size_t)shape.vocab_size);
    if (!logits || !f->logits) give_up("heads_forward", &err);
    memcpy(f->logits, logits, sizeof *logits * (size_t)shape.vocab_size);
    heads_sequence_free(s);
}

// ---- what is done to them ----

static uint32_t u32_at(const uint8_t *p) {
    uint32_t n;
    memcpy(&n, p, sizeof n);
    return n;
}

static uint64_t u64_at(const uint8_t *p) {
    uint64_t n;
    memcpy(&n, p, sizeof n);
    return n;
}

// Gives the file the sums that fit to what it has become, where its table can be found.
static void seal(uint8_t *bytes, size_t size) {
    if (size < HEADER) return;
    uint32_t version = u32_at(bytes + AT_VERSION);
    size_t n_layers = u32_at(bytes + AT_LAYERS), table = n_layers * ENTRY;
    size_t n = u32_at(bytes + AT_LENGTH), n_source = u32_at(bytes + AT_SOURCE);
    size_t steered = version < 4 ? 0 : u32_at(bytes + AT_STEERED);
    size_t vectors = 4 * steered * (size_t)shape.n_embd;
    if (n_layers > 1000 || n > size || n_source > size || steered > size ||
        HEADER + table + 4 * (n + n_source + steered) + vectors > size)
        return;
    for (size_t i = 0; i < n_layers; i++) {
        uint8_t *e = bytes + HEADER + i * ENTRY;
        uint64_t offset = u64_at(e), used = u64_at(e + 8);
        if (used > size || offset > size - used || offset % 8) continue;
        uint64_t sum = (version == 2 ? xor_words : checksum)(bytes + offset, used);
        memcpy(e + 24, &sum, sizeof sum);
    }
    const size_t parts[] = {HEADER - AT_SIZE, table, 4 * n, 4 * n_source, 4 * steered, vectors};
    const uint8_t *part = bytes + AT_SIZE;
    uint32_t old = 2166136261u;
    uint64_t sum = version;
    for (int i = 0; i < (version < 4 ? 4 : 6); part += parts[i++]) {
        old = fnv_words(old, part, parts[i]);
        sum = checksum_after(sum, part, parts[i]);
    }
    uint32_t to = version == 2 ? old : (uint32_t)sum;
    memcpy(bytes + AT_SUM, &to, sizeof to);
}

static size_t other_size(uint8_t *bytes, size_t size) {
    switch (below(&state, 4)) {
    case 0: return below(&state, size);
    case 1: return size - 1 - below(&state, size < 128 ? size - 1 : 127);
    case 2: return size + 1 + below(&state, EXTRA);
    default: return HEADER + below(&state, 300);
    }
}

// Changes bytes, a copy of the file: mostly a layer's. Returns the size that they then have.
static size_t mutate(uint8_t *bytes, const uint8_t *file, size_t size, int forged) {
    size_t head = HEADER + u32_at(file + AT_LAYERS) * ENTRY + 4 * u32_at(file + AT_LENGTH);
    if (forged && below(&state, 4) == 0) bytes[AT_VERSION] = 2;
    for (size_t n = below(&state, 3) + !forged; n > 0; n--) {
        size_t where = below(&state, 6), n_layers = u32_at(file + AT_LAYERS);
        const uint8_t *layer = file + HEADER + below(&state, n_layers) * ENTRY;
        if (where == 0) damage(bytes, size, &state);
        else if (where == 1) overwrite(bytes + AT_SIZE, head - AT_SIZE, &state);
        else if (where == 2) flip(bytes, head, &state);
        else damage(bytes + u64_at(layer), u64_at(layer + 8), &state);
    }
    if (below(&state, 8) == 0) {
        size = other_size(bytes, size);
        uint64_t says = size;
        if (forged && size >= HEADER) memcpy(bytes + AT_SIZE, &says, sizeof says);
    }
    if (forged) seal(bytes, size);
    return size;
}

// ---- what comes of it ----

static const float *go_on(const File *f, heads_sequence *s, heads_error *err) {
    heads_sequence *fork = NULL;
    const float *logits = NULL;
    size_t how = below(&state, 16);
    if (how > 8 && !(fork = heads_sequence_fork(s, heads_sequence_length(s), err))) return NULL;
    if (how == 0 && heads_sequence_save(s, saved, err)) return NULL;
    logits = heads_forward(fork ? fork : s, f->next, MORE, 1, err);
    heads_sequence_free(fork);  // the logits are the workspace's
    return logits;
}

// A file that was not forged: refused, or the same text.
static void check_same(const File *f, const heads_sequence *s, const float *logits) {
    heads_error what = {"it is another text"};
    if (heads_sequence_length(s) != f->n + MORE &&
        heads_sequence_length(s) != f->n)  // a fork went on
        give_up("its length", &what);
    if (memcmp(heads_sequence_tokens(s), f->tokens, sizeof(int) * (size_t)f->n))
        give_up("its tokens", &what);
    if (memcmp(logits, f->logits, sizeof(float) * (size_t)shape.vocab_size))
        give_up("its logits", &what);
    found.same++;
}

// whole: nothing was changed, so that only the context may be too short.
static void try_file(const File *f, heads_workspace *in, const uint8_t *bytes, size_t size,
                     int forged, int whole) {
    heads_error err = {""};
    write_input(bytes, size);
    heads_sequence *s = heads_sequence_load(in, path, &err);
    const float *logits = s ? go_on(f, s, &err) : NULL;
    if (!logits && !err.text[0]) give_up("a refusal says nothing", &err);
    if (!logits && whole && f->n + MORE <= heads_workspace_context(in)) give_up("refused", &err);
    if (!s) found.refused++;
    else if (!logits) found.refused_later++;
    else if (forged) found.forged_taken++;
    else check_same(f, s, logits);
    heads_sequence_free(s);
}

int main(int argc, char **argv) {
    heads_error err = {"usage: MODEL K_TYPE V_TYPE COUNT SEED"};
    int fd = mkstemp(saved);
    input = memfd_create("input", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", input);
    model = argc == 6 && fd >= 0 && input >= 0 ? heads_model_open(argv[1], &err) : NULL;
    if (!model) give_up("heads_model_open", &err);
    shape = heads_model_shape(model);
    state = strtoull(argv[5], NULL, 10);
    heads_workspace_options o = {.n_threads = 1, .k_type = (heads_type)atoi(argv[2]),
                                 .v_type = (heads_type)atoi(argv[3]), .isa = getenv("HEADS_ISA")};
    for (int i = 0; i < N_CONTEXTS; i++) {
        o.context = (int)below(&state, LONGEST - 16) + 16;
        if (o.context > shape.context) o.context = shape.context;
        w[i] = heads_workspace_new(model, &o, &err);
        if (!w[i]) give_up("heads_workspace_new", &err);
    }
    for (int i = 0; i < N_FILES; i++) make_file(&files[i], w[i % N_CONTEXTS]);
    watch();
    long count = atol(argv[4]);
    for (long i = 0; i < count; i++) {
        next_input(i);
        const File *f = &files[below(&state, N_FILES)];
        int whole = below(&state, 16) == 0, forged = !whole && below(&state, 3) == 0;
        uint8_t *bytes = calloc(1, f->size + EXTRA + 1);
        if (!bytes) return 2;
        memcpy(bytes, f->bytes, f->size);
        size_t size = whole ? f->size : mutate(bytes, f->bytes, f->size, forged);
        try_file(f, w[below(&state, N_CONTEXTS)], bytes, size, forged, whole);
        free(bytes);
    }
    for (int i = 0; i < N_FILES; i++) free(files[i].bytes), free(files[i].logits);
    for (int i = 0; i < N_CONTEXTS; i++) heads_workspace_free(w[i]);
    heads_model_close(model);
    close(fd);
    unlink(saved);
    printf("ok: %ld tried, %ld refused, %ld refused when used, %ld the same text, %ld forged and "
           "taken\n", count, found.refused, found.refused_later, found.same, found.forged_taken);
}
