// What sequence.c and sequence_file.c share: files whose pages sequences map.
#ifndef SEQUENCE_H
#define SEQUENCE_H

#include <stdatomic.h>

#include "workspace.h"

// A file whose pages several sequences map: one sequence's cache, which only that one writes to, or
// a saved session, which nobody does.
struct KvFile {
    int fd;
    size_t *offsets;    // [n_layers], where each layer's part begins; NULL: as in the cache. Owned
    atomic_int users;
    atomic_int frozen;  // positions that sequences other than its writer have mapped
    atomic_bool frozen_source;  // and what it keeps of a source
};

KvFile *kv_file_new(int fd);  // owns fd; NULL: no memory
// Maps bytes from..to-1 of s's cache from its file, whole pages of it; what lies beside them is
// copied from `source`, which holds the same bytes.
int map_from_file(Sequence *s, const KvFile *file, int layer, size_t from, size_t to,
                  const uint8_t *source);
// Slots of a layer that the tokens so far have written to.
size_t used_slots(const Sequence *s, const KvLayer *kv);

#endif
