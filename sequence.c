// Sequences: a text's tokens and its cache. Forks share the pages of a common prefix: the memory
// management unit does what other engines do with block tables, and attention cannot tell (the idea
// of vAttention, Prabhu et al. 2024).
#include "sequence.h"

#include <stdlib.h>
#include <string.h>

KvFile *kv_file_new(int fd) {
    KvFile *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->fd = fd;
    atomic_init(&f->users, 1);
    return f;
}

static void kv_file_release(KvFile *f) {
    if (!f || atomic_fetch_sub(&f->users, 1) > 1) return;
    close_file(f->fd);
    free(f->offsets);
    free(f);
}

// The sequence that owns a file writes to it at any position; all others have mapped part of it.
static bool writes_file(const Sequence *s) { return s->file && s->in_file < 0; }

static int frozen_length(const Sequence *s) {
    bool others = s->file && atomic_load(&s->file->users) > 1;
    return others ? atomic_load(&s->file->frozen) : 0;
}

int shared_length(const Sequence *s) {
    int n = writes_file(s) ? frozen_length(s) : s->in_file;
    return n < s->length ? n : s->length;
}

bool frozen_source(const Sequence *s) {
    return writes_file(s) && atomic_load(&s->file->users) > 1 &&
           atomic_load(&s->file->frozen_source);
}

bool shared_source(const Sequence *s) { return s->source_in_file || frozen_source(s); }

// ---- making and freeing ----

static uint8_t *reserve_cache(Sequence *s, bool shared) {
    size_t bytes = s->workspace->kv.bytes;
    if (!shared) return reserve(bytes);
    int fd;
    uint8_t *cache = reserve_shared(bytes, &fd);
    if (!cache) return NULL;
    s->in_file = -1;
    s->file = kv_file_new(fd);
    if (s->file) return cache;
    close_file(fd);
    release(cache, bytes);
    return NULL;
}

Sequence *sequence_new(Workspace *w, bool shared, Error *err) {
    Sequence *s = calloc(1, sizeof *s);
    if (s) {
        s->workspace = w;
        s->tokens = reserve((size_t)w->kv.context * sizeof *s->tokens);
        s->source = reserve((size_t)w->kv.context * sizeof *s->source);
        s->cache = reserve_cache(s, shared);
    }
    if (s && s->tokens && s->source && s->cache) return s;
    fail(err, "cannot reserve %zu bytes for a KV cache of %d positions", w->kv.bytes,
         w->kv.context);
    sequence_free(s);
    return NULL;
}

void sequence_free(Sequence *s) {
    if (!s) return;
    release(s->cache, s->workspace->kv.bytes);
    release(s->tokens, (size_t)s->workspace->kv.context * sizeof *s->tokens);
    release(s->source, (size_t)s->workspace->kv.context * sizeof *s->source);
    kv_file_release(s->file);
    free(s->marked_states);
    free(s->unchecked);
    free(s);
}

int sequence_length(const Sequence *s) { return s->length; }
const int *sequence_tokens(const Sequence *s) { return s->tokens; }
Workspace *sequence_workspace(const Sequence *s) { return s->workspace; }

const int *sequence_source(const Sequence *s, int *n) {
    *n = s->n_source;
    return s->source;
}

int sequence_common(const Sequence *s, const int *ids, int n) {
    int common = 0;
    while (common < s->length && common < n && s->tokens[common] == ids[common]) common++;
    return common;
}

void sequence_expect(Sequence *s, int n) {
    int context = s->workspace->kv.context;
    if (n > context) n = context;
    if (n > s->expected) s->expected = n;
}

// ---- going back ----

// Whether layer i still has all that the token after the first n would see.
static bool remembers(const Sequence *s, int i, int n) {
    const KvLayer *kv = &s->workspace->kv.layers[i];
    bool at_state = n == s->length || (s->marked_states && n == s->marked);
    if (kv->state && !at_state) return false;
    if (!kv->ring) return true;
    int low = seen_from(&s->workspace->model->layers[i].attention, n, n + 1).low;
    return low / LANES > (s->high - 1) / LANES - kv->n_slots;
}

static int check_remembers(const Sequence *s, int n, Error *err) {
    if (n < 0 || n > s->length)
        return fail(err, "the sequence has %d tokens, so it cannot go back to %d", s->length, n);
    if (n && s->workspace->model->encoder)
        return fail(err, "an encoder keeps nothing of a text that has run, so nothing can follow "
                    "its first %d tokens", n);
    for (int i = 0; n && i < s->workspace->model->n_layers; i++)
        if (!remembers(s, i, n))
            return fail(err, "layer %d of the model has forgotten what stood before token %d: its "
                        "window or state goes on with the text", i, n);
    return 0;
}

// Copies all states to or from a buffer; returns their bytes. With buffer NULL it only counts.
static size_t copy_states(const Sequence *s, uint8_t *buffer, bool restore) {
    size_t used = 0;
    for (int i = 0; i < s->workspace->model->n_layers; i++) {
        const KvLayer *kv = &s->workspace->kv.layers[i];
        void *state = kv_state(kv, s), *copy = buffer ? buffer + used : NULL;
        if (copy && kv->state) memcpy(restore ? state : copy, restore ? copy : state, kv->state);
        used += kv->state;
    }
    return used;
}

int sequence_mark(Sequence *s, Error *err) {
    size_t bytes = copy_states(s, NULL, false);
    if (bytes && !s->marked_states && !(s->marked_states = malloc(bytes)))
        return fail(err, "no memory for a copy of %zu bytes of states", bytes);
    copy_states(s, s->marked_states, false);
    s->marked = s->length;
    return 0;
}

int sequence_rewind(Sequence *s, int n, Error *err) {
    if (check_remembers(s, n, err)) return -1;
    if (writes_file(s) && n < frozen_length(s))
        return fail(err, "forks share the sequence's first %d tokens, so it cannot go back to %d",
                    frozen_length(s), n);
    const KvLayout *kv = &s->workspace->kv;
    for (int i = 0; n == 0 && s->length && i < s->workspace->model->n_layers; i++)
        memset(kv_state(&kv->layers[i], s), 0, kv->layers[i].state);
    if (n && n < s->length && s->marked_states) copy_states(s, s->marked_states, true);
    if (n < s->marked) s->marked = -1;
    if (n == 0 && !s->n_source) {
        free(s->unchecked);  // nothing is left of it
        s->unchecked = NULL;
    }
    if (s->in_file > n) s->in_file = n;
    s->length = s->expected = n;
    if (n == 0) s->high = 0;
    return 0;
}

// ---- forks ----

int first_use(Sequence *s, Error *err) {
    const Workspace *w = s->workspace;
    for (int i = 0; s->in_file > 0 && !s->used && i < w->kv.n_parts; i++) {
        const KvLayer *kv = &w->kv.layers[i];
        uint8_t *slots = s->cache + kv->offset + kv->state;
        if (!kv->borrowed) populate(slots, used_slots(s, kv) * kv->slot_bytes);
    }
    if (check_loaded(s, err)) return -1;
    free(s->unchecked);
    s->unchecked = NULL;
    s->used = true;
    return 0;
}

int map_from_file(Sequence *s, const KvFile *file, int layer, size_t from, size_t to,
                  const uint8_t *source) {
    size_t page = page_size(), begin = round_up(from, page), end = to / page * page;
    if (begin >= end) {
        memcpy(s->cache + from, source, to - from);
        return 0;
    }
    memcpy(s->cache + from, source, begin - from);
    memcpy(s->cache + end, source + (end - from), to - end);
    size_t place = s->workspace->kv.layers[layer].offset;
    size_t in_file = file->offsets ? begin - place + file->offsets[layer] : begin;
    return map_private(s->cache + begin, end - begin, file->fd, in_file);
}

size_t used_slots(const Sequence *s, const KvLayer *kv) {
    int n = kv->ring ? s->high : kv->of_source ? s->n_source : kv->passing ? 0 : s->length;
    size_t slots = ((size_t)n + LANES - 1) / LANES;
    return slots < (size_t)kv->n_slots ? slots : (size_t)kv->n_slots;
}

// Part i of the first fork->length positions, of which the file has the first `shared`; or all of
// the source, if it has that.
static int fork_part(Sequence *fork, const Sequence *s, int i, int shared) {
    const KvLayer *kv = &s->workspace->kv.layers[i];
    size_t from = kv->offset + kv->state, slots = used_slots(fork, kv), mapped = 0;
    if (kv->borrowed) return 0;
    // A slot that was filled after the fork, in part, is no longer the file's.
    if (kv->of_source) mapped = fork->source_in_file ? slots : 0;
    else if (!kv->ring) mapped = shared == fork->length ? slots : (size_t)shared / LANES;
    size_t shared_end = from + mapped * kv->slot_bytes;
    size_t end = from + slots * kv->slot_bytes;
    if (mapped && map_from_file(fork, s->file, i, from, shared_end, s->cache + from)) return -1;
    memcpy(fork->cache + shared_end, s->cache + shared_end, end - shared_end);
    memcpy(kv_state(kv, fork), kv_state(kv, s), kv->state);
    return 0;
}

Sequence *sequence_fork(const Sequence *s, int n, Error *err) {
    Workspace *w = s->workspace;
    if (check_remembers(s, n, err) || check_loaded(s, err)) return NULL;
    Sequence *fork = sequence_new(w, false, err);
    if (!fork) return NULL;
    fork->length = fork->expected = n;
    fork->high = n ? s->high : 0;
    fork->long_tables = s->long_tables;
    fork->n_source = s->n_source;
    fork->source_in_file = s->n_source && (writes_file(s) || s->source_in_file);
    int shared = writes_file(s) ? n : s->in_file < n ? s->in_file : n;
    for (int i = 0; (n || s->n_source) && i < w->kv.n_parts; i++)
        if (fork_part(fork, s, i, shared)) {
            fail(err, "cannot map the %d positions that the fork shares", n);
            sequence_free(fork);
            return NULL;
        }
    if (n && n < s->length && s->marked_states) copy_states(fork, s->marked_states, true);
    memcpy(fork->tokens, s->tokens, sizeof *s->tokens * (size_t)n);
    memcpy(fork->source, s->source, sizeof *s->source * (size_t)s->n_source);
    if (fork->source_in_file) atomic_store(&s->file->frozen_source, true);
    if (shared || fork->source_in_file) {
        fork->file = s->file;
        fork->in_file = shared;
        atomic_fetch_add(&s->file->users, 1);
        if (shared > atomic_load(&s->file->frozen)) atomic_store(&s->file->frozen, shared);
    }
    return fork;
}
