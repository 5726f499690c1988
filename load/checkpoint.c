// The container: header, metadata, tensor table (docs/format.md). Every number is checked against
// the file's size or a maximum before it is used.
#include "load/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "heads.c computes from the mapped file, which is little-endian; this machine is not"
#endif

enum { HEADER_BYTES = 64, VERSION = 2, MAX_META = 4096, MAX_TENSORS = 1 << 20, SHOWN = 80 };
static const size_t MOST_BYTES = SIZE_MAX / 4 + 1;  // of a file without weights

static uint32_t u32_at(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t u64_at(const uint8_t *p) { return u32_at(p) | (uint64_t)u32_at(p + 4) << 32; }

// How many bytes of a name go into a message.
static int shown(size_t len) { return len < SHOWN ? (int)len : SHOWN; }

static int compare_names(const char *a, size_t a_len, const char *b, size_t b_len) {
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

// ---- sections ----

typedef struct {  // the rest of a section: at..end
    const uint8_t *base, *at, *end;
} Cursor;

// The next n bytes, padded to 8; NULL: the section ends before.
static const uint8_t *next_bytes(Cursor *c, uint64_t n) {
    size_t left = (size_t)(c->end - c->at);
    if (n > left || round_up(n, 8) > left) return NULL;
    const uint8_t *p = c->at;
    c->at += round_up(n, 8);
    return p;
}

static size_t offset_of(const Cursor *c) { return (size_t)(c->at - c->base); }

// A section ends with its last entry, padded to 64.
static int section_done(const Cursor *c, const char *what, Error *err) {
    size_t left = (size_t)(c->end - c->at);
    return left < 64 ? 0 : fail(err, "%s: %zu bytes are left after the last entry", what, left);
}

static int parse_meta_entry(Meta *meta, Cursor *c, int i, int n, Error *err) {
    static const size_t width[] = {[META_U8] = 1, [META_I32] = 4, [META_F32] = 4};
    const uint8_t *p = next_bytes(c, 16);
    if (!p)
        return fail(err, "metadata ends inside entry %d of %d, at byte %zu", i, n, offset_of(c));
    uint32_t type = u32_at(p), key_len = u32_at(p + 4);
    uint64_t count = u64_at(p + 8);
    const char *key = (const char *)next_bytes(c, key_len);
    if (!key || key_len == 0)
        return fail(err, "metadata entry %d: its key does not fit into the metadata", i);
    if (type < META_U8 || type > META_F32)
        return fail(err, "metadata %.*s: type is %u, expected 1 (u8), 2 (i32) or 3 (f32)",
                    shown(key_len), key, type);
    const uint8_t *values = count <= SIZE_MAX / 8 ? next_bytes(c, count * width[type]) : NULL;
    if (!values)
        return fail(err, "metadata %.*s: its %llu values do not fit into the metadata",
                    shown(key_len), key, (unsigned long long)count);
    *meta = (Meta){key, key_len, (size_t)count, type, values};
    return 0;
}

static int by_key(const void *a, const void *b) {
    const Meta *x = *(const Meta *const *)a, *y = *(const Meta *const *)b;
    return compare_names(x->key, x->key_len, y->key, y->key_len);
}

static int parse_meta(Checkpoint *file, Cursor c, Error *err) {
    for (int i = 0; i < file->n_meta; i++) {
        if (parse_meta_entry(&file->meta[i], &c, i, file->n_meta, err)) return -1;
        file->by_key[i] = &file->meta[i];
    }
    qsort(file->by_key, (size_t)file->n_meta, sizeof *file->by_key, by_key);
    for (int i = 1; i < file->n_meta; i++) {
        const Meta *m = file->by_key[i];
        if (by_key(&file->by_key[i - 1], &file->by_key[i]) == 0)
            return fail(err, "metadata %.*s occurs twice", shown(m->key_len), m->key);
    }
    return section_done(&c, "metadata", err);
}

typedef struct {  // the tensors so far
    size_t end;             // where their data end
    const Tensor **owners;  // those with their own data, by ascending offsets
    int n_owners;
} Places;

static uint64_t offset_of_data(const Checkpoint *file, const Tensor *t) {
    return file->shape ? u64_at(t->data + 24) : (uint64_t)(t->data - file->map.data);
}

// An earlier tensor with the same data, or NULL: layers may share their weights.
static const Tensor *same_data(const Checkpoint *file, const Places *places, uint64_t offset) {
    int low = 0, high = places->n_owners;
    while (low < high) {
        int mid = (low + high) / 2;
        if (offset_of_data(file, places->owners[mid]) <= offset) low = mid + 1;
        else high = mid;
    }
    const Tensor *last = low ? places->owners[low - 1] : NULL;
    return last && offset_of_data(file, last) == offset ? last : NULL;
}

// A tensor's data begin where all data so far end, or they are exactly an earlier tensor's. So no
// two tensors overlap in part, and none leaves the file.
static int parse_tensor(Checkpoint *file, int i, Cursor *c, size_t size, Places *places,
                        Error *err) {
    const uint8_t *p = next_bytes(c, 40);
    if (!p)
        return fail(err, "tensor table ends inside entry %d of %d, at byte %zu", i, file->n_tensors,
                    offset_of(c));
    uint32_t code = u32_at(p), len = u32_at(p + 4);
    uint64_t rows = u64_at(p + 8), cols = u64_at(p + 16);
    uint64_t offset = u64_at(p + 24), bytes = u64_at(p + 32);
    const char *name = (const char *)next_bytes(c, len);
    if (!name || len == 0) return fail(err, "tensor %d: its name does not fit into the table", i);
    int n = shown(len);
    Dtype dtype = dtype_of_code(code);
    if (dtype == N_DTYPES || !dtypes[dtype].unpack)
        return fail(err, "tensor %.*s: dtype is %u, expected 0..%u", n, name, code,
                    dtypes[N_DTYPES - 1].code);
    if (rows < 1 || rows > MAX_DIM || cols < 1 || cols > MAX_DIM)
        return fail(err, "tensor %.*s: shape is (%llu, %llu), expected 1..%d", n, name,
                    (unsigned long long)rows, (unsigned long long)cols, MAX_DIM);
    size_t end = places->end;
    const Tensor *same = offset < end ? same_data(file, places, offset) : NULL;
    if (same && same->dtype == dtype && same->rows == rows && same->cols == cols &&
        same->bytes == bytes) {
        file->tensors[i] = *same;
        file->tensors[i].name = name, file->tensors[i].name_len = len;
        return 0;
    }
    if (offset != end)
        return fail(err, "tensor %.*s: data begin at byte %llu, expected %zu, where the data "
                    "before it end", n, name, (unsigned long long)offset, end);
    if (bytes > size - end || round_up(bytes, 64) > size - end)
        return fail(err, "tensor %.*s: its %llu bytes at %zu do not fit into the file of %zu", n,
                    name, (unsigned long long)bytes, end, size);
    const uint8_t *data = file->shape ? p : file->map.data + offset;
    file->tensors[i] = (Tensor){name, len, rows, cols, bytes, dtype, data};
    places->owners[places->n_owners++] = &file->tensors[i];
    places->end += round_up(bytes, 64);
    return 0;
}

static int by_name(const void *a, const void *b) {
    const Tensor *x = *(const Tensor *const *)a, *y = *(const Tensor *const *)b;
    return compare_names(x->name, x->name_len, y->name, y->name_len);
}

static int parse_tensors(Checkpoint *file, Cursor c, Error *err) {
    size_t n = (size_t)file->n_tensors, size = file->shape ? MOST_BYTES : file->map.size;
    Places places = {.end = (size_t)(c.end - c.base), .owners = file->by_name};
    for (int i = 0; i < file->n_tensors; i++)
        if (parse_tensor(file, i, &c, size, &places, err)) return -1;
    if (places.end != size && !file->shape)
        return fail(err, "data end at byte %zu, but the file has %zu", places.end, size);
    for (size_t i = 0; i < n; i++) file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, n, sizeof *file->by_name, by_name);
    for (size_t i = 1; i < n; i++) {
        const Tensor *t = file->by_name[i];
        if (by_name(&file->by_name[i - 1], &file->by_name[i]) == 0)
            return fail(err, "tensor %.*s occurs twice", shown(t->name_len), t->name);
    }
    return section_done(&c, "tensor table", err);
}

// ---- the whole ----

static const char POINTER[] = "version https://git-lfs.github.com/spec/";

static int parse_header(const uint8_t *bytes, size_t size, Error *err) {
    if (size == 0) return fail(err, "it is empty");
    if (size >= 4 && memcmp(bytes, "GGUF", 4) == 0)
        return fail(err, "a GGUF file, which export.py reads: python3 export.py FILE.gguf "
                    "model.bin, then ./run model.bin");
    if (size > sizeof POINTER && memcmp(bytes, POINTER, sizeof POINTER - 1) == 0)
        return fail(err, "a pointer of Git LFS, not the file itself; fetch it: git lfs install, "
                    "then git lfs pull");
    if (size < HEADER_BYTES || memcmp(bytes, "heads.c", 8) != 0)
        return fail(err, "not a heads.c checkpoint: it does not begin with \"heads.c\"; make one "
                    "with export.py");
    if (u32_at(bytes + 8) != VERSION)
        return fail(err, "version is %u, this build reads version %d; export the model again",
                    u32_at(bytes + 8), VERSION);
    uint64_t file_size = u64_at(bytes + 16);
    uint64_t meta_size = u64_at(bytes + 24), table_size = u64_at(bytes + 32);
    if (file_size != size)
        return fail(err, "the header says %llu bytes, the file has %zu: it is %s",
                    (unsigned long long)file_size, size,
                    size < file_size ? "truncated" : "longer than it was written");
    size_t room = size - HEADER_BYTES;
    if (meta_size % 64 || table_size % 64 || meta_size > room || table_size > room - meta_size)
        return fail(err, "metadata of %llu and tensor table of %llu bytes do not fit into the file "
                    "of %zu", (unsigned long long)meta_size, (unsigned long long)table_size, size);
    uint32_t n_meta = u32_at(bytes + 40), n_tensors = u32_at(bytes + 44);
    if (n_meta > MAX_META || n_tensors > MAX_TENSORS || n_meta > meta_size / 16 ||
        n_tensors > table_size / 40)
        return fail(err, "%u metadata entries and %u tensors do not fit into %llu and %llu bytes",
                    n_meta, n_tensors, (unsigned long long)meta_size,
                    (unsigned long long)table_size);
    return 0;
}

static int make_tables(Checkpoint *file, Error *err) {
    size_t n_meta = (size_t)file->n_meta, n_tensors = (size_t)file->n_tensors;
    file->meta = calloc(n_meta + 1, sizeof *file->meta);
    file->by_key = calloc(n_meta + 1, sizeof *file->by_key);
    file->tensors = calloc(n_tensors + 1, sizeof *file->tensors);
    file->by_name = calloc(n_tensors + 1, sizeof *file->by_name);
    if (file->meta && file->by_key && file->tensors && file->by_name) return 0;
    return fail(err, "no memory for the tables of %zu metadata entries and %zu tensors", n_meta,
                n_tensors);
}

int checkpoint_parse(Checkpoint *file, const uint8_t *bytes, size_t size, Error *err) {
    *file = (Checkpoint){.map = {bytes, size}};
    if (parse_header(bytes, size, err)) return -1;
    file->n_meta = (int)u32_at(bytes + 40);
    file->n_tensors = (int)u32_at(bytes + 44);
    const uint8_t *table = bytes + HEADER_BYTES + u64_at(bytes + 24);
    const uint8_t *end = table + u64_at(bytes + 32);
    file->shape = file->n_tensors && end == bytes + size;
    if (make_tables(file, err) ||
        parse_meta(file, (Cursor){bytes, bytes + HEADER_BYTES, table}, err) ||
        parse_tensors(file, (Cursor){bytes, table, end}, err)) {
        checkpoint_free(file);
        return -1;
    }
    return 0;
}

void checkpoint_free(Checkpoint *file) {
    free(file->meta);
    free(file->by_key);
    free(file->tensors);
    free(file->by_name);
    *file = (Checkpoint){0};
}

const Meta *checkpoint_meta(const Checkpoint *file, const char *key) {
    Meta wanted = {.key = key, .key_len = strlen(key)};
    const Meta *one = &wanted, **found;
    found = bsearch(&one, file->by_key, (size_t)file->n_meta, sizeof *file->by_key, by_key);
    return found ? *found : NULL;
}

const Tensor *checkpoint_tensor(const Checkpoint *file, const char *name) {
    int low = 0, high = file->n_tensors;
    while (low < high) {
        int mid = (low + high) / 2;
        const Tensor *t = file->by_name[mid];
        int order = compare_names(t->name, t->name_len, name, strlen(name));
        if (order == 0) return t;
        if (order < 0) low = mid + 1;
        else high = mid;
    }
    return NULL;
}

// ---- the checksum ----

uint32_t crc32_after(uint32_t before, const uint8_t *p, size_t n) {
    uint32_t table[8][256], crc = ~before;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
        table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
    // Eight bytes a step: table k has a byte's remainder after k more bytes.
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t low = crc ^ u32_at(p), high = u32_at(p + 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
              table[4][low >> 24] ^ table[3][high & 255] ^ table[2][high >> 8 & 255] ^
              table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; n; n--, p++) crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
    return ~crc;
}

uint32_t checkpoint_crc(const Checkpoint *file) { return u32_at(file->map.data + 12); }

int checkpoint_check(const Checkpoint *file, Error *err) {
    uint32_t expected = checkpoint_crc(file);
    uint32_t found =
        crc32_after(0, file->map.data + HEADER_BYTES, file->map.size - HEADER_BYTES);
    if (found == expected) return 0;
    return fail(err, "the checksum is %08x, the header says %08x: the file is damaged; export or "
                "copy it again", found, expected);
}

// ---- readers ----

int reader_open(Reader *r, const Checkpoint *file, Error *err) {
    size_t n_meta = (size_t)file->n_meta, n_tensors = (size_t)file->n_tensors;
    *r = (Reader){file, calloc(n_meta + 1, sizeof(bool)), calloc(n_tensors + 1, sizeof(bool)), err};
    if (r->meta_read && r->tensor_read) return 0;
    reader_close(r);
    return fail(err, "no memory to read a checkpoint");
}

void reader_close(Reader *r) {
    free(r->meta_read);
    free(r->tensor_read);
    *r = (Reader){0};
}

const Meta *read_meta(Reader *r, const char *key) {
    const Meta *meta = checkpoint_meta(r->file, key);
    if (meta) r->meta_read[meta - r->file->meta] = true;
    return meta;
}

const Tensor *read_tensor(Reader *r, const char *name) {
    const Tensor *tensor = checkpoint_tensor(r->file, name);
    if (tensor) r->tensor_read[tensor - r->file->tensors] = true;
    return tensor;
}

int refuse_unread_meta(const Reader *r, const char *prefix) {
    size_t len = strlen(prefix);
    for (int i = 0; i < r->file->n_meta; i++) {
        const Meta *m = &r->file->meta[i];
        if (r->meta_read[i] || m->key_len < len || memcmp(m->key, prefix, len) != 0) continue;
        return fail(r->err, "knob %.*s is not known to this build, or nothing needs it",
                    shown(m->key_len), m->key);
    }
    return 0;
}

int refuse_unread_tensors(const Reader *r) {
    for (int i = 0; i < r->file->n_tensors; i++) {
        const Tensor *t = &r->file->tensors[i];
        if (r->tensor_read[i]) continue;
        return fail(r->err, "tensor %.*s is not known to this build, or the knobs leave no place "
                    "for it", shown(t->name_len), t->name);
    }
    return 0;
}
