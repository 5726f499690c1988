// Saved sessions. A file holds a sequence's tokens and the bytes of its cache as they lie in
// memory, so that loading maps them: nothing is read before it is needed, and each layer is
// compared with its checksum when the sequence first runs.
//
//   Header; an entry for each layer; the text's and the source's tokens (i32); layers with steering
//   vectors (i32), and these (f32); the layers' bytes; what layers that guess have of the text, on
//   which no text depends.
//   Little-endian. A layer begins at a multiple of 64 KB, which is one of any page size. In files
//   of older builds it may begin elsewhere; it is then copied.
#include <stdlib.h>
#include <string.h>

#include "sequence/guesser.h"
#include "sequence/sequence.h"
#include "sequence/steering.h"

enum { SESSION_VERSION = 4, OLDEST_VERSION = 2, ALIGNMENT = 1 << 16 };
enum { GUESSES_ALIGNMENT = 64 };
static const char MAGIC[8] = "heads.s";

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t sum;         // of all that follows, to the end of the tokens
    uint64_t file_size;
    uint32_t checkpoint;  // the checkpoint's own CRC-32, ^ adapted_sum
    uint32_t k_dtype, v_dtype, n_layers;
    int32_t length, high, expected;
    uint32_t long_tables;
    int32_t n_source, n_steered;  // n_steered: 0 before version 4
} Header;

typedef struct {  // where a layer's bytes are in the file
    uint64_t offset, bytes;
    uint64_t n_slots;
    uint64_t sum;  // checksum of them
} LayerEntry;

// Older builds summed by exclusive or and FNV-1a.
static SumOf *sum_of_layers(const Header *h) {
    return h->version == OLDEST_VERSION ? xor_words : checksum;
}

enum { N_PARTS = 5, PARTS_BEFORE = 3 };  // before version 4
typedef struct {  // what stands between header and layers, in order
    const void *data;
    size_t bytes;
} Part;

// Sets parts' bytes; returns their sum.
static size_t measure(Part *parts, const Header *h, const Model *m) {
    size_t n = h->version < SESSION_VERSION ? 0 : (size_t)h->n_steered, sum = 0;
    const size_t bytes[N_PARTS] = {
        h->n_layers * sizeof(LayerEntry), (size_t)h->length * sizeof(int),
        (size_t)h->n_source * sizeof(int), n * sizeof(int),
        n * (size_t)m->n_embd * sizeof(float)};
    for (int i = 0; i < N_PARTS; i++) sum += parts[i].bytes = bytes[i];
    return sum;
}

static uint32_t header_sum(const Header *h, const Part *parts) {
    const uint8_t *rest = (const uint8_t *)&h->file_size;
    size_t bytes = sizeof *h - offsetof(Header, file_size);
    uint32_t old = fnv_words(2166136261u, rest, bytes);
    uint64_t sum = checksum_after(h->version, rest, bytes);
    for (int i = 0; i < (h->version < SESSION_VERSION ? PARTS_BEFORE : N_PARTS); i++) {
        if (h->version == OLDEST_VERSION) old = fnv_words(old, parts[i].data, parts[i].bytes);
        else sum = checksum_after(sum, parts[i].data, parts[i].bytes);
    }
    return h->version == OLDEST_VERSION ? old : (uint32_t)sum;
}

// Bytes of a layer that a sequence uses.
static size_t used_bytes(const Sequence *s, const KvLayer *kv) {
    return kv->borrowed || kv->passing ? 0 : used_slots(s, kv) * kv->slot_bytes + kv->state;
}

// Bytes of a layer that its text alone needs. A ring that has come round uses more.
static size_t text_bytes(const Sequence *s, const KvLayer *kv) {
    size_t used = used_bytes(s, kv), slots = round_up((size_t)s->length, LANES) / LANES;
    size_t bytes = slots * kv->slot_bytes + kv->state;
    return bytes < used ? bytes : used;
}

// ---- saving ----

typedef struct {
    const Sequence *s;
    Header header;
    LayerEntry *layers;  // [n_layers]
    Part parts[N_PARTS];
    void *guesses;       // [n_guesses], owned, from at_guesses on
    size_t n_guesses, at_guesses;
} Session;

// How far rings have been overwritten. Until one has come round, what stands after the text is
// nothing that a context without room for it would miss.
static int overwritten(const Sequence *s) {
    for (int i = 0; i < s->workspace->kv.n_layers; i++) {
        int slots = s->workspace->kv.layers[i].ring_slots;
        if (slots && s->high > slots * LANES) return s->high;
    }
    return s->length;
}

static void make_header(Session *session) {
    const Sequence *s = session->s;
    const Workspace *w = s->workspace;
    Header *h = &session->header;
    *h = (Header){.version = SESSION_VERSION,
                  .checkpoint = checkpoint_crc(&w->model->file) ^ adapted_sum(&s->adapted),
                  .k_dtype = dtypes[w->kv.k_dtype].code, .v_dtype = dtypes[w->kv.v_dtype].code,
                  .n_layers = (uint32_t)w->kv.n_layers, .length = s->length, .high = s->high,
                  .expected = s->rope.expected, .long_tables = s->rope.tables,
                  .n_source = s->source.n, .n_steered = s->steering ? s->steering->n : 0};
    memcpy(h->magic, MAGIC, sizeof MAGIC);
    const void *data[N_PARTS] = {session->layers, s->tokens, s->source.tokens, "", ""};
    if (s->steering) data[3] = s->steering->layers, data[4] = s->steering->vectors;
    for (int i = 0; i < N_PARTS; i++) session->parts[i].data = data[i];
    size_t end = sizeof *h + measure(session->parts, h, w->model);
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const KvLayer *kv = &w->kv.layers[i];
        size_t bytes = used_bytes(s, kv);
        if (bytes) end = round_up(end, ALIGNMENT);
        uint64_t sum = checksum(s->cache + kv->offset, bytes);
        session->layers[i] = (LayerEntry){end, bytes, (uint64_t)kv->n_slots, sum};
        end += bytes;
    }
    session->at_guesses = round_up(end, GUESSES_ALIGNMENT);
    if (s->guesses) session->n_guesses = w->guesser->save(s->guesses, &session->guesses);
    if (session->n_guesses) end = session->at_guesses + session->n_guesses;
    h->file_size = end;
    h->sum = header_sum(h, session->parts);
}

typedef struct {     // a file, or memory
    FILE *file;
    uint8_t *bytes;  // zeros, if there is no file
    size_t at;
} Out;

static int put(Out *out, const void *data, size_t n) {
    if (out->file) return fwrite(data, 1, n, out->file) == n ? 0 : -1;
    if (n) memcpy(out->bytes + out->at, data, n);
    out->at += n;
    return 0;
}

static int go_to(Out *out, uint64_t offset) {
    out->at = (size_t)offset;
    return out->file ? seek_to(out->file, offset) : 0;
}

static int write_session(Out *out, const Session *session) {
    const Sequence *s = session->s;
    const Header *h = &session->header;
    if (put(out, h, sizeof *h)) return -1;
    for (const Part *p = session->parts; p < session->parts + N_PARTS; p++)
        if (put(out, p->data, p->bytes)) return -1;
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const LayerEntry *layer = &session->layers[i];
        const uint8_t *data = s->cache + s->workspace->kv.layers[i].offset;
        if (layer->bytes && (go_to(out, layer->offset) || put(out, data, layer->bytes))) return -1;
    }
    return session->n_guesses && (go_to(out, session->at_guesses) ||
                                  put(out, session->guesses, session->n_guesses)) ? -1 : 0;
}

static void end_session(Session *session) {
    free(session->layers);
    free(session->guesses);
}

static int write_file(const Session *session, const char *path, Error *err) {
    NewFile *file = newfile_open(path, err);
    if (!file) return -1;
    Out out = {.file = newfile_stream(file)};
    if (*newfile_temporary(file)) return newfile_close(file, write_session(&out, session), err);
    newfile_close(file, 0, err);
    return fail(err, "cannot write %s: it is no regular file, so a session in it could not be "
                "mapped; name a file", path);
}

// Fills *session, which is the caller's to end; *copy: what it is of.
static int begin_session(Session *session, Sequence *copy, const Sequence *s, const char *path,
                         Error *err) {
    *copy = *s;
    copy->high = overwritten(s);
    *session = (Session){.s = copy};
    if (s->length == 0 || s->workspace->model->encoder)
        return fail(err, "%s has nothing to save to %s",
                    s->length ? "an encoder, which keeps no keys and values," : "an empty sequence",
                    path);
    if (s->off)
        return fail(err, "a sequence with heads switched off is not saved to %s, since whoever "
                    "loads it could not know", path);
    if (check_sums(s, err)) return -1;
    session->layers = calloc((size_t)s->workspace->kv.n_layers, sizeof *session->layers);
    if (!session->layers) return fail(err, "no memory to save a sequence");
    make_header(session);
    return 0;
}

int heads_sequence_save(const Sequence *s, const char *path, Error *err) {
    Session session;
    Sequence copy;
    if (need(s, "a sequence", err) || need(path, "the path of a file", err)) return -1;
    if (begin_session(&session, &copy, s, path, err)) return -1;
    int status = check_file_size(path, session.header.file_size, err) ||
                 write_file(&session, path, err) ? -1 : 0;
    end_session(&session);
    return status;
}

int heads_sequence_bytes(const Sequence *s, void **bytes, size_t *size, Error *err) {
    Session session;
    Sequence copy;
    if (need(bytes, "room for bytes", err)) return -1;
    *bytes = NULL;
    if (need(s, "a sequence", err) || need(size, "room for a number", err)) return -1;
    if (begin_session(&session, &copy, s, "memory", err)) return -1;
    *size = session.header.file_size;
    Out out = {.bytes = *bytes = calloc(*size, 1)};
    if (out.bytes) write_session(&out, &session);
    end_session(&session);
    return out.bytes ? 0 : fail(err, "no memory for a session of %zu bytes", *size);
}

// ---- loading ----

static int check_header(const Workspace *w, const Header *h, size_t size, Error *err) {
    size_t n_layers = (size_t)w->kv.n_layers;
    if (size < sizeof *h || memcmp(h->magic, MAGIC, sizeof MAGIC) != 0)
        return fail(err, "it is not a saved session: it does not begin with \"%s\"", MAGIC);
    if (h->version < OLDEST_VERSION || h->version > SESSION_VERSION)
        return fail(err, "its version is %u, this build reads %d to %d", h->version,
                    OLDEST_VERSION, SESSION_VERSION);
    uint32_t base = checkpoint_crc(&w->model->file), adapted = adapted_sum(&w->adapted);
    if (adapted && h->checkpoint == base) return fail(err, "it was made without an adapter");
    if (h->checkpoint != (base ^ adapted) || h->n_layers != n_layers)
        return fail(err, "it was made with another checkpoint, or another adapter or scale");
    Dtype k_dtype = dtype_of_code(h->k_dtype), v_dtype = dtype_of_code(h->v_dtype);
    if (k_dtype != w->kv.k_dtype || v_dtype != w->kv.v_dtype) {
        bool known = k_dtype < N_DTYPES && v_dtype < N_DTYPES;
        return fail(err, "its keys and values are %s and %s, here they are %s and %s",
                    known ? dtypes[k_dtype].name : "of an unknown type",
                    known ? dtypes[v_dtype].name : "an unknown type",
                    dtypes[w->kv.k_dtype].name, dtypes[w->kv.v_dtype].name);
    }
    if (h->file_size != size)
        return fail(err, "the header says %llu bytes, the file has %zu: it is truncated or has "
                    "grown", (unsigned long long)h->file_size, size);
    if (h->length < 1 || h->length > w->kv.context)
        return fail(err, "it holds %d tokens, the context has room for %d", h->length,
                    w->kv.context);
    if (h->n_source < 0 || h->n_source > w->kv.context || (w->model->source.n && !h->n_source))
        return fail(err, "it holds %d tokens of a source, the context has room for %d",
                    h->n_source, w->kv.context);
    Part parts[N_PARTS];
    bool steered = h->n_steered >= 0 && h->n_steered <= w->model->n_layers;
    if (h->high < h->length || !steered || size - sizeof *h < measure(parts, h, w->model))
        return fail(err, "its header is damaged");
    return 0;
}

static int check_entries(const Sequence *s, const LayerEntry *layers, size_t size, Error *err) {
    const Workspace *w = s->workspace;
    for (int i = 0; i < w->kv.n_layers; i++) {
        const KvLayer *kv = &w->kv.layers[i];
        const LayerEntry *e = &layers[i];
        size_t n_slots = (size_t)kv->n_slots, fewer = e->n_slots < n_slots ? e->n_slots : n_slots;
        // A ring and a context with fewer slots agree where the text has not come round.
        if (e->n_slots != n_slots && !kv->of_source && (size_t)s->length > fewer * LANES)
            return fail(err, "layer %d has a window whose ring was another in the build that saved "
                        "it; run the text again", i);
        if (e->bytes < text_bytes(s, kv) || e->bytes > size || e->offset > size - e->bytes ||
            (!kv->ring_slots && e->bytes != used_bytes(s, kv)))
            return fail(err, "its table is damaged at layer %d", i);
    }
    for (int i = 0; i < s->length; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= w->model->vocab_size)
            return fail(err, "its token %d is %d, the vocabulary has 0..%d", i, s->tokens[i],
                        w->model->vocab_size - 1);
    for (int i = 0; i < s->source.n; i++)
        if (s->source.tokens[i] < 0 || s->source.tokens[i] >= w->model->source.vocab_size)
            return fail(err, "its source's token %d is %d, the vocabulary has 0..%d", i,
                        s->source.tokens[i], w->model->source.vocab_size - 1);
    return 0;
}

// Restores layer i of s from the mapped file; maps: its pages can be mapped into the cache.
static int restore_layer(Sequence *s, int i, const LayerEntry *e, const Mapping *map, bool maps,
                         Error *err) {
    const uint8_t *data = map->data + e->offset;
    SumOf *sum_of = sum_of_layers((const Header *)map->data);
    const KvLayer *kv = &s->workspace->kv.layers[i];
    size_t used = used_bytes(s, kv), bytes = e->bytes < used ? e->bytes : used;
    size_t from = kv->offset;
    if (s->pages.file) s->pages.file->offsets[i] = e->offset;
    s->pages.unchecked[i] = (Sum){bytes, e->sum, sum_of};
    if (bytes < e->bytes) {  // a ring, in a context that has no room for all of it
        if (sum_of(data, e->bytes) != e->sum) return fail(err, "it is damaged in layer %d", i);
        s->pages.unchecked[i].bytes = 0;
    }
    if (!maps) memcpy(s->cache + from, data, bytes);
    else if (bytes && map_pages(s, s->pages.file, i, from, from + bytes, data))
        return fail(err, "it cannot be mapped");
    return 0;
}

// Restores s from a mapped file, whose bytes are mapped, not read; without a file from memory.
static int restore(Sequence *s, const Mapping *map, Error *err) {
    const Workspace *w = s->workspace;
    const Header *h = (const Header *)map->data;
    const uint8_t *at = (const uint8_t *)(h + 1);
    Part parts[N_PARTS];
    measure(parts, h, w->model);
    for (Part *p = parts; p < parts + N_PARTS; at += p++->bytes) p->data = at;
    const LayerEntry *layers = parts[0].data;
    const int *steered = parts[3].data;
    const float *vectors = parts[4].data;
    if (h->sum != header_sum(h, parts)) return fail(err, "its header is damaged");
    s->length = h->length, s->high = h->high, s->rope.expected = h->expected;
    s->rope.tables = h->long_tables;
    s->source.n = h->n_source;
    memcpy(s->tokens, parts[1].data, parts[1].bytes);
    memcpy(s->source.tokens, parts[2].data, parts[2].bytes);
    for (size_t i = 0; i < parts[3].bytes / sizeof *steered; i++, vectors += w->model->n_embd)
        if (heads_sequence_steer(s, steered[i], vectors, 1.0f, err)) return -1;
    if (check_entries(s, layers, map->size, err) || commit_cache(s, 0, err)) return -1;
    size_t n_layers = (size_t)w->kv.n_layers;
    s->pages.unchecked = calloc(n_layers, sizeof *s->pages.unchecked);
    bool maps = s->pages.file && has_map_private();
    if (s->pages.file) s->pages.file->offsets = calloc(n_layers, sizeof *s->pages.file->offsets);
    if (!s->pages.unchecked || (s->pages.file && !s->pages.file->offsets))
        return fail(err, "no memory for its table");
    for (size_t i = 0; i < n_layers; i++)
        if (layers[i].bytes && layers[i].offset % page_size()) maps = false;
    for (int i = 0; i < w->kv.n_layers; i++)
        if (restore_layer(s, i, &layers[i], map, maps, err)) return -1;
    s->pages.length = maps ? s->length : 0;
    s->source.mapped = maps && s->source.n > 0;
    size_t end = (size_t)(at - map->data);
    for (size_t i = 0; i < n_layers; i++)
        if (layers[i].bytes) end = (size_t)(layers[i].offset + layers[i].bytes);
    end = round_up(end, GUESSES_ALIGNMENT);
    if (w->guesser && end < map->size)
        s->guesses = w->guesser->load(s->workspace, s->length, map->data + end, map->size - end);
    if (maps) return 0;
    kv_file_release(s->pages.file);
    s->pages.file = NULL;
    return 0;
}

Sequence *heads_sequence_load(Workspace *w, const char *path, Error *err) {
    if (need(w, "a workspace", err) || need(path, "the path of a file", err)) return NULL;
    Mapping map;
    Error why;
    int fd;
    if (map_file_shared(&map, path, &fd, err)) return NULL;
    Sequence *s = NULL;
    int status = check_header(w, (const Header *)map.data, map.size, &why);
    if (!status && !(s = heads_sequence_new(w, false, &why))) status = -1;
    if (!status && !(s->pages.file = kv_file_new(fd))) status = fail(&why, "no memory for it");
    if (!s || !s->pages.file) close_file(fd);
    if (!status) status = restore(s, &map, &why);
    unmap_file(&map);
    if (!status) return s;
    heads_sequence_free(s);
    fail(err, "%s: %s", path, why.text);
    return NULL;
}

Sequence *heads_sequence_parse(Workspace *w, const void *bytes, size_t size, Error *err) {
    if (need(w, "a workspace", err) || need(bytes, "a session's bytes", err)) return NULL;
    Error why;
    Mapping map = {.data = bytes, .size = size};
    Sequence *s = NULL;
    int status = (uintptr_t)bytes % 8 ? fail(&why, "they must begin at a multiple of 8") : 0;
    if (!status) status = check_header(w, (const Header *)bytes, size, &why);
    if (!status && !(s = heads_sequence_new(w, false, &why))) status = -1;
    if (!status) status = restore(s, &map, &why);
    if (!status) return s;
    heads_sequence_free(s);
    fail(err, "a session's bytes: %s", why.text);
    return NULL;
}
