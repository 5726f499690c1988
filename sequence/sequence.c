// Sequences: a text's tokens and its cache. Forks share the memory pages of a common prefix. The
// memory management unit does what block tables do in other engines, so attention sees one
// contiguous cache (the idea of vAttention, Prabhu et al. 2024).
#include "layers/heads_off.h"
#include "math/adapted.h"
#include "sequence/guesser.h"
#include "sequence/sequence.h"
#include "sequence/steering.h"

#include <stdlib.h>
#include <string.h>

KvFile *kv_file_new(int fd) {
    KvFile *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->fd = fd;
    atomic_init(&f->users, 1);
    return f;
}

void kv_file_release(KvFile *f) {
    if (!f || atomic_fetch_sub(&f->users, 1) > 1) return;
    close_file(f->fd);
    free(f->offsets);
    free(f);
}

// Whether the file is the sequence's own cache, which other sequences map.
static bool writes_file(const Sequence *s) { return s->pages.file && s->pages.length < 0; }

static int frozen_length(const Sequence *s) {
    bool others = s->pages.file && atomic_load(&s->pages.file->users) > 1;
    return others ? atomic_load(&s->pages.file->frozen) : 0;
}

int shared_length(const Sequence *s) {
    int n = writes_file(s) ? frozen_length(s) : s->pages.length;
    return n < s->length ? n : s->length;
}

bool frozen_source(const Sequence *s) {
    return writes_file(s) && atomic_load(&s->pages.file->users) > 1 &&
           atomic_load(&s->pages.file->frozen_source);
}

bool shared_source(const Sequence *s) { return s->source.mapped || frozen_source(s); }

// ---- making and freeing ----

static uint8_t *reserve_cache(Sequence *s, bool shared) {
    size_t bytes = s->workspace->kv.bytes;
    if (!shared || !has_map_private()) return reserve_addresses(bytes);
    int fd;
    uint8_t *cache = reserve_shared(bytes, &fd);
    if (!cache) return NULL;
    s->pages.length = -1;
    s->pages.file = kv_file_new(fd);
    if (s->pages.file) return cache;
    close_file(fd);
    release(cache, bytes);
    return NULL;
}

static size_t slots_of(size_t n) { return (n + LANES - 1) / LANES; }

int commit_cache(Sequence *s, int n, Error *err) {
    const KvLayout *kv = &s->workspace->kv;
    // A saved session may have come from a longer context, and its `high` have any value.
    size_t longest = (size_t)(s->high > s->length ? s->high : s->length);
    if (longest < (size_t)s->source.n) longest = (size_t)s->source.n;
    size_t slots = slots_of(longest + (size_t)n);
    if (n && slots == slots_of(longest)) return 0;
    for (int i = 0; i < kv->n_layers; i++) {
        const KvLayer *layer = &kv->layers[i];
        size_t n_slots = slots < (size_t)layer->n_slots ? slots : (size_t)layer->n_slots;
        if (!layer->borrowed &&
            commit(s->cache + layer->offset, layer->state + n_slots * layer->slot_bytes))
            return fail(err, "no memory (%s) for the keys and values of %zu tokens",
                        system_reason(), longest + (size_t)n);
    }
    return 0;
}

Sequence *heads_sequence_new(Workspace *w, int shared, Error *err) {
    if (need(w, "a workspace", err)) return NULL;
    Sequence *s = calloc(1, sizeof *s);
    if (s) {
        s->workspace = w;
        set_adapted(&s->adapted, w->adapted.adapter, w->adapted.scale);
        s->tokens = reserve((size_t)w->kv.context * sizeof *s->tokens);
        s->source.tokens = reserve((size_t)w->kv.context * sizeof *s->source.tokens);
        s->cache = reserve_cache(s, shared);
    }
    bool reserved = s && s->tokens && s->source.tokens && s->cache;
    if (reserved && commit_cache(s, 0, err) == 0) return s;
    if (!reserved)
        fail(err, "cannot reserve %zu bytes (%s) for a KV cache of %d positions", w->kv.bytes,
             system_reason(), w->kv.context);
    heads_sequence_free(s);
    return NULL;
}

void heads_sequence_free(Sequence *s) {
    if (!s) return;
    release(s->cache, s->workspace->kv.bytes);
    release(s->tokens, (size_t)s->workspace->kv.context * sizeof *s->tokens);
    release(s->source.tokens, (size_t)s->workspace->kv.context * sizeof *s->source.tokens);
    kv_file_release(s->pages.file);
    free(s->mark.states);
    free(s->pages.unchecked);
    free(s->off);
    release_steering(s->steering);
    heads_adapter_close(s->adapted.adapter);
    if (s->guesses) s->workspace->guesser->free(s->guesses);
    free(s);
}

int heads_sequence_length(const Sequence *s) { return s ? s->length : 0; }
const int *heads_sequence_tokens(const Sequence *s) { return s ? s->tokens : NULL; }

// ---- going back ----

// Whether layer i still has everything that a token at position n sees.
static bool remembers(const Sequence *s, int i, int n) {
    const KvLayer *kv = &s->workspace->kv.layers[i];
    bool at_state = n == s->length || (s->mark.states && n == s->mark.length);
    if (kv->state && !at_state) return false;
    if (!kv->ring_slots) return true;
    int low = seen_from(&s->workspace->model->layers[i].attention, n, n + 1).low;
    return low / LANES > (s->high - 1) / LANES - kv->ring_slots;
}

// wish: what of n tokens is refused where the sequence has no such length.
static int check_remembers(const Sequence *s, int n, const char *wish, Error *err) {
    if (n < 0 || n > s->length)
        return fail(err, "the sequence has %d tokens, so %s %d", s->length, wish, n);
    if (n && s->workspace->model->encoder)
        return fail(err, "an encoder keeps nothing of a text that has run, so nothing can follow "
                    "its first %d tokens", n);
    for (int i = 0; n && i < s->workspace->model->n_layers; i++)
        if (!remembers(s, i, n))
            return fail(err, "layer %d of the model has forgotten what stood before token %d: its "
                        "window or state goes on with the text", i, n);
    return 0;
}

// Copies all states to a buffer, or back; returns their bytes. buffer NULL: it only counts them.
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

int mark_at(Sequence *s, int n, Error *err) {
    size_t bytes = copy_states(s, NULL, false);
    if (bytes && !s->mark.states && !(s->mark.states = malloc(bytes)))
        return fail(err, "no memory for a copy of %zu bytes of states", bytes);
    s->mark.length = n;
    return 0;
}

int heads_sequence_mark(Sequence *s, Error *err) {
    if (need(s, "a sequence", err) || mark_at(s, s->length, err)) return -1;
    copy_states(s, s->mark.states, false);
    return 0;
}

int heads_sequence_rewind(Sequence *s, int n, Error *err) {
    if (need(s, "a sequence", err)) return -1;
    if (check_remembers(s, n, "it cannot go back to", err)) return -1;
    if (writes_file(s) && n < frozen_length(s))
        return fail(err, "forks share the sequence's first %d tokens, so it cannot go back to %d",
                    frozen_length(s), n);
    if (n && n < s->length && s->mark.states) copy_states(s, s->mark.states, true);
    if (n < s->mark.length) s->mark.length = -1;
    if (n == 0 && !s->source.n) {
        free(s->pages.unchecked);  // nothing of the loaded cache is left
        s->pages.unchecked = NULL;
    }
    if (s->pages.length > n) s->pages.length = n;
    s->length = s->rope.expected = n;
    if (n == 0) s->high = 0;
    if (s->guesses) s->workspace->guesser->rewind(s->guesses, n);
    return 0;
}

// ---- mapped pages ----

int check_sums(const Sequence *s, Error *err) {
    for (int i = 0; s->pages.unchecked && i < s->workspace->kv.n_layers; i++) {
        const uint8_t *layer = s->cache + s->workspace->kv.layers[i].offset;
        const Sum *sum = &s->pages.unchecked[i];
        if (sum->bytes && sum->of(layer, sum->bytes) != sum->sum)
            return fail(err, "the saved session is damaged in layer %d; save it again", i);
    }
    return 0;
}

int prepare_cache(Sequence *s, int n, Error *err) {
    const Workspace *w = s->workspace;
    for (int i = 0; s->pages.length > 0 && !s->pages.used && i < w->kv.n_layers; i++) {
        const KvLayer *kv = &w->kv.layers[i];
        uint8_t *slots = s->cache + kv->offset + kv->state;
        if (!kv->borrowed) populate(slots, used_slots(s, kv) * kv->slot_bytes);
    }
    if (commit_cache(s, n, err) || check_sums(s, err)) return -1;
    // A page that is read before it is written costs two faults, and every thread an interrupt.
    for (int i = 0; !s->length && i < w->kv.n_layers; i++)
        memset(kv_state(&w->kv.layers[i], s), 0, w->kv.layers[i].state);
    free(s->pages.unchecked);
    s->pages.unchecked = NULL;
    s->pages.used = true;
    return 0;
}

int map_pages(Sequence *s, const KvFile *file, int layer, size_t from, size_t to,
              const uint8_t *same) {
    size_t page = page_size(), begin = round_up(from, page), end = to / page * page;
    if (begin >= end) {
        memcpy(s->cache + from, same, to - from);
        return 0;
    }
    memcpy(s->cache + from, same, begin - from);
    memcpy(s->cache + end, same + (end - from), to - end);
    size_t offset = begin;  // in the file
    if (file->offsets) offset += file->offsets[layer] - s->workspace->kv.layers[layer].offset;
    return map_private(s->cache + begin, end - begin, file->fd, offset);
}

size_t used_slots(const Sequence *s, const KvLayer *kv) {
    int n = kv->ring ? s->high : kv->of_source ? s->source.n : kv->passing ? 0 : s->length;
    size_t slots = slots_of((size_t)n);
    return slots < (size_t)kv->n_slots ? slots : (size_t)kv->n_slots;
}

// ---- forks ----

// Fills layer i of a fork: the first `shared` positions are mapped from the file, the others
// copied. A layer of the source is mapped as a whole, or copied.
static int fork_layer(Sequence *fork, const Sequence *s, int i, int shared) {
    const KvLayer *kv = &s->workspace->kv.layers[i];
    size_t from = kv->offset + kv->state, slots = used_slots(fork, kv), mapped = 0;
    if (kv->borrowed) return 0;
    // A last shared slot that is not full is copied, since the file's may get other positions.
    if (kv->of_source) mapped = fork->source.mapped ? slots : 0;
    else if (!kv->ring) mapped = shared == fork->length ? slots : (size_t)shared / LANES;
    size_t shared_end = from + mapped * kv->slot_bytes;
    size_t end = from + slots * kv->slot_bytes;
    if (mapped && map_pages(fork, s->pages.file, i, from, shared_end, s->cache + from)) return -1;
    memcpy(fork->cache + shared_end, s->cache + shared_end, end - shared_end);
    memcpy(kv_state(kv, fork), kv_state(kv, s), kv->state);
    return 0;
}

Sequence *heads_sequence_fork(const Sequence *s, int n, Error *err) {
    if (need(s, "a sequence", err)) return NULL;
    Workspace *w = s->workspace;
    if (check_remembers(s, n, "no fork can have its first", err) || check_sums(s, err))
        return NULL;
    Sequence *fork = heads_sequence_new(w, false, err);
    if (!fork) return NULL;
    if (copy_heads_off(fork, s, err)) {
        heads_sequence_free(fork);
        return NULL;
    }
    share_steering(&fork->steering, s->steering);
    set_adapted(&fork->adapted, s->adapted.adapter, s->adapted.scale);
    fork->length = fork->rope.expected = n;
    fork->high = n ? s->high : 0;
    fork->rope.tables = s->rope.tables;
    fork->source.n = s->source.n;
    fork->source.mapped = s->source.n && (writes_file(s) || s->source.mapped);
    int shared = writes_file(s) ? n : s->pages.length < n ? s->pages.length : n;
    int status = commit_cache(fork, 0, err);
    for (int i = 0; !status && (n || s->source.n) && i < w->kv.n_layers; i++)
        if (fork_layer(fork, s, i, shared))
            status = fail(err, "cannot map the %d positions that the fork shares", n);
    if (status) {
        heads_sequence_free(fork);
        return NULL;
    }
    if (n && n < s->length && s->mark.states) copy_states(fork, s->mark.states, true);
    memcpy(fork->tokens, s->tokens, sizeof *s->tokens * (size_t)n);
    if (s->guesses) fork->guesses = w->guesser->fork(s->guesses, n);
    memcpy(fork->source.tokens, s->source.tokens, sizeof *s->source.tokens * (size_t)s->source.n);
    KvFile *file = s->pages.file;
    if (fork->source.mapped) atomic_store(&file->frozen_source, true);
    if (shared || fork->source.mapped) {
        fork->pages.file = file;
        fork->pages.length = shared;
        atomic_fetch_add(&file->users, 1);
        if (shared > atomic_load(&file->frozen)) atomic_store(&file->frozen, shared);
    }
    return fork;
}
