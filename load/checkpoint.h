// checkpoint.c: the container, docs/format.md. Bytes -> metadata and tensors, every number checked.
// What they mean is up to model.c, the tokenizer and the chat template.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "math/dtypes.h"
#include "system/system.h"

enum { META_U8 = 1, META_I32 = 2, META_F32 = 3 };
enum { MAX_DIM = 1 << 24 };  // rows or columns of a tensor

typedef struct {  // one entry of metadata, borrowed from the mapping
    const char *key;
    size_t key_len, count;
    uint32_t type;  // META_*
    const void *values;
} Meta;

typedef struct {  // one row of the tensor table
    const char *name;
    size_t name_len, rows, cols, bytes;
    Dtype dtype;
    const uint8_t *data;  // without weights: an address that tells tensors apart, not to be read
} Tensor;

typedef struct {
    Mapping map;
    Meta *meta;
    const Meta **by_key;     // the same, sorted
    Tensor *tensors;         // in the order of the file
    const Tensor **by_name;  // the same, sorted
    int n_meta, n_tensors;
    bool shape;              // the file ends with the tensor table and has no weights
} Checkpoint;

// Checks bytes[0..size), aligned to 64, and points *file into them; they must outlive it.
// checkpoint_free frees the tables, not the bytes. Every message names the entry, what was expected
// and what was found.
int checkpoint_parse(Checkpoint *file, const uint8_t *bytes, size_t size, Error *err);
void checkpoint_free(Checkpoint *file);
// Compares the CRC-32 of the whole file with the header's.
int checkpoint_check(const Checkpoint *file, Error *err);
uint32_t checkpoint_crc(const Checkpoint *file);  // the header's
// CRC-32 with the reflected polynomial 0xedb88320 (IEEE 802.3), of bytes that follow others, whose
// CRC is `before`; of none it is 0.
uint32_t crc32_after(uint32_t before, const uint8_t *p, size_t n);
// The entry with that key or name, or NULL.
const Meta *checkpoint_meta(const Checkpoint *file, const char *key);
const Tensor *checkpoint_tensor(const Checkpoint *file, const char *name);

// Notes what was read, so that the rest can be refused: a result that ignored it would be wrong.
// The flags are the reader's, so a Checkpoint never changes.
typedef struct {
    const Checkpoint *file;
    bool *meta_read, *tensor_read;  // [n_meta], [n_tensors]
    Error *err;
} Reader;

int reader_open(Reader *r, const Checkpoint *file, Error *err);
void reader_close(Reader *r);
const Meta *read_meta(Reader *r, const char *key);        // NULL: there is none
const Tensor *read_tensor(Reader *r, const char *name);   // likewise
int refuse_unread_meta(const Reader *r, const char *prefix);  // keys that begin with prefix
int refuse_unread_tensors(const Reader *r);

#endif
