// A sequence is a text and its cache. sequence.c makes, forks and rewinds it, saved.c saves and
// loads it, usage.c says what it costs. These calls are the engine's own; heads.h has the others.
#ifndef SEQUENCE_H
#define SEQUENCE_H

#include <stdatomic.h>

#include "engine.h"
#include "sequence/checksum.h"

// A file whose pages several sequences map. It is the cache of one sequence, which alone writes to
// it, or a saved session, to which nobody writes.
struct KvFile {
    int fd;
    size_t *offsets;    // [n_layers], where a layer's bytes begin, owned; NULL: as in the cache
    atomic_int users;
    atomic_int frozen;  // positions that sequences other than the writer have mapped
    atomic_bool frozen_source;  // they have mapped the source's keys and values
};

KvFile *kv_file_new(int fd);  // owns fd; NULL: no memory
void kv_file_release(KvFile *file);
// Makes the cache usable for n more tokens. It must be, before anything is written to it.
int commit_cache(Sequence *s, int n, Error *err);
// Fills bytes from..to-1 of s's cache, all in one layer: maps whole pages from the file, and copies
// the bytes beside them from `same`, whose first byte is that at `from`.
int map_pages(Sequence *s, const KvFile *file, int layer, size_t from, size_t to,
              const uint8_t *same);
size_t used_slots(const Sequence *s, const KvLayer *kv);  // slots written to so far
// How many of the sequence's positions share memory with other sequences.
int shared_length(const Sequence *s);
bool shared_source(const Sequence *s);  // whether the source's keys and values share it
bool frozen_source(const Sequence *s);  // whether forks map them, so that s must not change them

struct Sum {  // of the first bytes of a layer
    size_t bytes;  // 0: there is nothing to compare
    uint64_t sum;
    SumOf *of;
};

// Compares a loaded cache with its sums, unless that was done. Errors: its file is damaged.
int check_sums(const Sequence *s, Error *err);
// To be called before a sequence runs n tokens: commits memory, and checks and populates the pages
// that it has mapped.
int prepare_cache(Sequence *s, int n, Error *err);

// As heads_sequence_mark, but of the states that the sequence will have after n tokens, more than
// now: the pass that comes to them keeps a copy.
int mark_at(Sequence *s, int n, Error *err);

// adapter.c: makes room for products with an adapter, which may be NULL. Errors: it is of another
// model, or the scale is not finite; no memory.
int check_adapter(Workspace *w, const heads_adapter *adapter, float scale, Error *err);
// A checksum of an adapter and its scale; 0: there is none.
uint32_t adapted_sum(const Adapted *a);

// longrope.c: chooses rope's tables for n more tokens. If these are new, it rewinds the sequence to
// 0, and its tokens must run again. Returns its length before that, or -1.
int choose_rope_tables(Sequence *s, int n, Error *err);

#endif
