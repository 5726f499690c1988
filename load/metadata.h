// Reads metadata; every number is checked before it is used. Values are borrowed from the mapping.
// Functions return 0, or -1 and a message that names the key, what was expected and what was found.
#ifndef METADATA_H
#define METADATA_H

#include "load/checkpoint.h"

typedef struct {  // values of type i32; n 0: absent or empty
    const int32_t *v;
    size_t n;
} Ints;

// The entry of that type, with one value or `count`. NULL: there is none, or it is another.
const Meta *need_meta(Reader *r, const char *key, uint32_t type, size_t count);
// One number. Without such a key, need_ fails and read_ gives `absent`.
int need_int(Reader *r, const char *key, int min, int max, int *out);
int read_int(Reader *r, const char *key, int min, int max, int absent, int *out);
int need_float(Reader *r, const char *key, float min, float *out);
int read_float(Reader *r, const char *key, float min, float absent, float *out);
// Integers min..max: `count` of them, or any number if count is SIZE_MAX.
int read_ints(Reader *r, const char *key, size_t count, int min, int max, Ints *out);
// Finite numbers, least..most of them; without such a key *out is NULL and *n 0.
int read_floats(Reader *r, const char *key, int least, int most, const float **out, int *n);
// `count` bytes 0..max.
int read_bytes(Reader *r, const char *key, size_t count, int max, const uint8_t **out);
// A string; without such a key *out is NULL and *len 0.
int read_text(Reader *r, const char *key, const char **out, size_t *len);
// n + 1 ascending offsets from 0: list i is out[i]..out[i + 1]. *end: the last of them.
int read_offsets(Reader *r, const char *key, size_t n, const int32_t **out, size_t *end);
// The same for *n lists, least..most of them.
int read_lists(Reader *r, const char *key, int least, int most, int *n, const int32_t **out,
               size_t *end);
// The index of the first number in v[low..high), ascending, that is at least x; high: none is.
int lower_bound(const int32_t *v, int low, int high, int64_t x);

#endif
