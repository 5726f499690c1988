// Saved sessions. A file holds a sequence's tokens and its part of every layer's cache as it lies
// in memory, so that loading it is a mapping: nothing is read before it is needed, and what was
// mapped is checked against its sum when the sequence first runs.
//
//   Header; the Parts' table; the tokens and those of the source (i32); the parts, each at an
//   offset that equals that of its place in the cache modulo 64 KB, a multiple of any page's size.
//   Little-endian.
#include <stdlib.h>
#include <string.h>

#include "sequence.h"

enum { SESSION_VERSION = 2, PHASE = 1 << 16 };
static const char MAGIC[8] = "heads.s";

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t sum;         // of all words from the next field to the end of the tokens
    uint64_t file_size;
    uint32_t checkpoint;  // the checkpoint's own CRC-32
    uint32_t k_dtype, v_dtype, n_parts;
    int32_t length, high, expected;
    uint32_t long_tables;
    int32_t n_source, zero;
} Header;

typedef struct {
    uint64_t offset, bytes;
    uint64_t n_slots;
    uint64_t sum;  // the exclusive or of its 64-bit words
} Part;

static uint64_t part_sum(const uint8_t *data, size_t bytes) {
    uint64_t sum = 0, word;
    for (size_t i = 0; i < bytes; i += sizeof word) {
        memcpy(&word, data + i, sizeof word);
        sum ^= word;
    }
    return sum;
}

// FNV-1a over 32-bit words.
static uint32_t add_words(uint32_t sum, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)data + i, 4);
        sum = (sum ^ word) * 16777619u;
    }
    return sum;
}

static uint32_t head_sum(const Header *h, const Part *parts, const int *tokens,
                         const int *source) {
    size_t skip = offsetof(Header, file_size);
    uint32_t sum = add_words(2166136261u, (const uint8_t *)h + skip, sizeof *h - skip);
    sum = add_words(sum, parts, h->n_parts * sizeof *parts);
    sum = add_words(sum, tokens, (size_t)h->length * sizeof *tokens);
    return add_words(sum, source, (size_t)h->n_source * sizeof *source);
}

// Bytes of a layer's part that a sequence uses.
static size_t used_bytes(const Sequence *s, const KvLayer *kv) {
    return kv->borrowed || kv->passing ? 0 : used_slots(s, kv) * kv->slot_bytes + kv->state;
}

// ---- saving ----

typedef struct {
    const Sequence *s;
    Header header;
    Part *parts;  // [n_parts]
} Session;

static void fill_in(Session *session) {
    const Sequence *s = session->s;
    const Workspace *w = s->workspace;
    Header *h = &session->header;
    *h = (Header){.version = SESSION_VERSION, .checkpoint = checkpoint_crc(&w->model->file),
                  .k_dtype = w->kv.k_dtype, .v_dtype = w->kv.v_dtype,
                  .n_parts = (uint32_t)w->kv.n_parts, .length = s->length, .high = s->high,
                  .expected = s->expected, .long_tables = s->long_tables,
                  .n_source = s->n_source};
    memcpy(h->magic, MAGIC, sizeof MAGIC);
    size_t n_tokens = (size_t)s->length + (size_t)s->n_source;
    size_t end = sizeof *h + h->n_parts * sizeof(Part) + n_tokens * sizeof *s->tokens;
    for (uint32_t i = 0; i < h->n_parts; i++) {
        const KvLayer *kv = &w->kv.layers[i];
        size_t bytes = used_bytes(s, kv), phase = kv->offset % PHASE;
        if (bytes) end = round_up(end + PHASE - phase, PHASE) - PHASE + phase;
        session->parts[i] = (Part){end, bytes, (uint64_t)kv->n_slots,
                                   part_sum(s->cache + kv->offset, bytes)};
        end += bytes;
    }
    h->file_size = end;
    h->sum = head_sum(h, session->parts, s->tokens, s->source);
}

static int write_session(FILE *f, const Session *session) {
    const Sequence *s = session->s;
    const Header *h = &session->header;
    size_t n = (size_t)s->length, n_source = (size_t)s->n_source;
    if (fwrite(h, sizeof *h, 1, f) != 1 ||
        fwrite(session->parts, sizeof *session->parts, h->n_parts, f) != h->n_parts ||
        fwrite(s->tokens, sizeof *s->tokens, n, f) != n ||
        fwrite(s->source, sizeof *s->source, n_source, f) != n_source)
        return -1;
    for (uint32_t i = 0; i < h->n_parts; i++) {
        const Part *part = &session->parts[i];
        const uint8_t *data = s->cache + s->workspace->kv.layers[i].offset;
        if (part->bytes && (fseek(f, (long)part->offset, SEEK_SET) != 0 ||
                            fwrite(data, 1, part->bytes, f) != part->bytes))
            return -1;
    }
    return 0;
}

int sequence_save(const Sequence *s, const char *path, Error *err) {
    Session session = {.s = s};
    if (s->length == 0 || s->workspace->model->encoder)
        return fail(err, "%s has nothing to save to %s",
                    s->length ? "an encoder, which keeps no keys and values," : "an empty sequence",
                    path);
    if (check_loaded(s, err)) return -1;
    session.parts = calloc((size_t)s->workspace->kv.n_parts, sizeof *session.parts);
    if (!session.parts) return fail(err, "no memory to save a sequence");
    fill_in(&session);
    NewFile file;
    int status = newfile_open(&file, path, err) ||
                 newfile_close(&file, write_session(file.stream, &session), err) ? -1 : 0;
    free(session.parts);
    return status;
}

// ---- loading ----

static int check_header(const Workspace *w, const Header *h, size_t size, Error *err) {
    size_t n_parts = (size_t)w->kv.n_parts;
    if (size < sizeof *h || memcmp(h->magic, MAGIC, sizeof MAGIC) != 0)
        return fail(err, "it is not a saved session: it does not begin with \"%s\"", MAGIC);
    if (h->version != SESSION_VERSION)
        return fail(err, "its version is %u, this build reads %d", h->version, SESSION_VERSION);
    if (h->checkpoint != checkpoint_crc(&w->model->file) || h->n_parts != n_parts)
        return fail(err, "it was made with another checkpoint");
    if (h->k_dtype != w->kv.k_dtype || h->v_dtype != w->kv.v_dtype) {
        bool known = h->k_dtype < N_DTYPES && h->v_dtype < N_DTYPES;
        return fail(err, "its keys and values are %s and %s, here they are %s and %s",
                    known ? dtype_name((Dtype)h->k_dtype) : "of an unknown type",
                    known ? dtype_name((Dtype)h->v_dtype) : "an unknown type",
                    dtype_name(w->kv.k_dtype), dtype_name(w->kv.v_dtype));
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
    size_t tokens = ((size_t)h->length + (size_t)h->n_source) * sizeof(int);
    if (h->high < h->length || size - sizeof *h < n_parts * sizeof(Part) + tokens)
        return fail(err, "its header is damaged");
    return 0;
}

static int check_parts(const Sequence *s, const Part *parts, size_t size, Error *err) {
    const Workspace *w = s->workspace;
    for (int i = 0; i < w->kv.n_parts; i++) {
        const KvLayer *kv = &w->kv.layers[i];
        const Part *p = &parts[i];
        // Rings of different lengths agree as long as none has come round.
        size_t fewer = p->n_slots < (size_t)kv->n_slots ? p->n_slots : (size_t)kv->n_slots;
        bool same = p->n_slots == (size_t)kv->n_slots || (size_t)s->high <= fewer * LANES;
        if (!same)
            return fail(err, "layer %d has a window whose ring was another for its context", i);
        if (p->bytes != used_bytes(s, kv) || p->bytes > size || p->offset > size - p->bytes ||
            (p->bytes && p->offset % PHASE != kv->offset % PHASE))
            return fail(err, "its table is damaged at layer %d", i);
    }
    for (int i = 0; i < s->length; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= w->model->vocab_size)
            return fail(err, "its token %d is %d, the vocabulary has 0..%d", i, s->tokens[i],
                        w->model->vocab_size - 1);
    for (int i = 0; i < s->n_source; i++)
        if (s->source[i] < 0 || s->source[i] >= w->model->source.vocab_size)
            return fail(err, "its source's token %d is %d, the vocabulary has 0..%d", i,
                        s->source[i], w->model->source.vocab_size - 1);
    return 0;
}

// Takes over what the mapped file says; its pages are mapped, and nothing of them is read.
static int take_over(Sequence *s, const Mapping *map, Error *err) {
    const Workspace *w = s->workspace;
    const Header *h = (const Header *)map->data;
    const Part *parts = (const Part *)(h + 1);
    const int *tokens = (const int *)(parts + w->kv.n_parts), *source = tokens + h->length;
    if (h->sum != head_sum(h, parts, tokens, source)) return fail(err, "its header is damaged");
    s->length = h->length, s->high = h->high, s->expected = h->expected;
    s->long_tables = h->long_tables;
    s->n_source = h->n_source;
    memcpy(s->tokens, tokens, sizeof *tokens * (size_t)s->length);
    memcpy(s->source, source, sizeof *source * (size_t)s->n_source);
    if (check_parts(s, parts, map->size, err)) return -1;
    size_t n_parts = (size_t)w->kv.n_parts;
    s->unchecked = calloc(n_parts, sizeof *s->unchecked);
    s->file->offsets = calloc(n_parts, sizeof *s->file->offsets);
    if (!s->unchecked || !s->file->offsets) return fail(err, "no memory for its table");
    for (int i = 0; i < w->kv.n_parts; i++) {
        size_t from = w->kv.layers[i].offset, to = from + parts[i].bytes;
        s->unchecked[i] = (PartSum){parts[i].bytes, parts[i].sum};
        s->file->offsets[i] = parts[i].offset;
        if (parts[i].bytes &&
            map_from_file(s, s->file, i, from, to, map->data + parts[i].offset))
            return fail(err, "it cannot be mapped");
    }
    s->in_file = s->length;
    s->source_in_file = s->n_source > 0;
    return 0;
}

Sequence *sequence_load(Workspace *w, const char *path, Error *err) {
    Mapping map;
    Error why;
    int fd;
    if (map_file_shared(&map, path, &fd, err)) return NULL;
    Sequence *s = NULL;
    int status = check_header(w, (const Header *)map.data, map.size, &why);
    if (!status && !(s = sequence_new(w, false, &why))) status = -1;
    if (!status && !(s->file = kv_file_new(fd))) status = fail(&why, "no memory for it");
    if (!s || !s->file) close_file(fd);
    if (!status) status = take_over(s, &map, &why);
    unmap_file(&map);
    if (!status) return s;
    sequence_free(s);
    fail(err, "%s: %s", path, why.text);
    return NULL;
}

int check_loaded(const Sequence *s, Error *err) {
    for (int i = 0; s->unchecked && i < s->workspace->kv.n_parts; i++) {
        const uint8_t *part = s->cache + s->workspace->kv.layers[i].offset;
        if (part_sum(part, s->unchecked[i].bytes) != s->unchecked[i].sum)
            return fail(err, "the saved session is damaged in layer %d; save it again", i);
    }
    return 0;
}
