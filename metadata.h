// Metadata of a model, read with its bounds: every number of a file is checked before it is used. What is read is borrowed
// from the mapping. All return 0, or -1 and a message that names the key, what was expected and what was found.
#ifndef METADATA_H
#define METADATA_H

#include "model.h"

typedef struct {  // metadata of type i32; n 0: absent or empty
    const int32_t *v;
    size_t n;
} Ints;

// Integers min..max; where `count` is not SIZE_MAX there must be so many.
int meta_ints(const Model *model, const char *key, size_t count, int min, int max, Ints *out, Error *err);
// `count` bytes 0..max.
int meta_bytes(const Model *model, const char *key, size_t count, int max, const uint8_t **out,
               Error *err);
// A string; *out is NULL and *len 0 where there is no such key.
int meta_text(const Model *model, const char *key, const char **out, size_t *len, Error *err);
// One integer; `absent` where there is no such key.
int meta_int(const Model *model, const char *key, int min, int max, int absent, int *out, Error *err);
// Where n lists begin that follow each other without gaps, and where the last one ends: n + 1 offsets from 0 upwards.
int meta_offsets(const Model *model, const char *key, size_t n, const int32_t **out, size_t *end,
                 Error *err);

#endif
