// Metadata of a model, read with its bounds: every number of a file is checked before it is used.
// What is read is borrowed from the mapping. All return 0, or -1 and a message that names the key,
// what was expected and what was found.
#ifndef METADATA_H
#define METADATA_H

#include "checkpoint.h"

typedef struct {  // metadata of type i32; n 0: absent or empty
    const int32_t *v;
    size_t n;
} Ints;

// The entry of that key: there must be one, of that type, with one value or `count`. NULL: refused.
const Meta *need_meta(Reader *r, const char *key, uint32_t type, size_t count);
// One number; need_: there must be one, read_: `absent` where there is no such key.
int need_int(Reader *r, const char *key, int min, int max, int *out);
int read_int(Reader *r, const char *key, int min, int max, int absent, int *out);
int need_float(Reader *r, const char *key, float min, float *out);
int read_float(Reader *r, const char *key, float min, float absent, float *out);
// Integers min..max; where `count` is not SIZE_MAX there must be that many.
int read_ints(Reader *r, const char *key, size_t count, int min, int max, Ints *out);
// Finite numbers, least..most of them; *out is NULL and *n 0 where there is no such key.
int read_floats(Reader *r, const char *key, int least, int most, const float **out, int *n);
// `count` bytes 0..max.
int read_bytes(Reader *r, const char *key, size_t count, int max, const uint8_t **out);
// A string; *out is NULL and *len 0 where there is no such key.
int read_text(Reader *r, const char *key, const char **out, size_t *len);
// Where n lists begin that follow each other without gaps, and where the last one ends: n + 1
// offsets from 0 upwards.
int read_offsets(Reader *r, const char *key, size_t n, const int32_t **out, size_t *end);
// The same of *n lists, least..most of them.
int read_lists(Reader *r, const char *key, int least, int most, int *n, const int32_t **out,
               size_t *end);
// Where x, or the first that is larger, is in v[low..high), which ascend; high: there is none.
int lower_bound(const int32_t *v, int low, int high, int64_t x);

#endif
