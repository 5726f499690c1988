// system.h for WebAssembly: one memory, which grows and never shrinks, a clock, and no
// files: a checkpoint is bytes (heads_model_parse).
#include <errno.h>
#include <string.h>
#include <time.h>

#include "system/system.h"
#include "system/temporaries.h"

int write_plain(char *text, size_t size, const char *format, va_list args) {
    return vsnprintf(text, size, format, args);
}

// ---- files ----

static int no_files(const char *path, Error *err) {
    errno = ENOSYS;
    return fail(err, "cannot open %s: WebAssembly has no files", path);
}

int map_file(Mapping *map, const char *path, Error *err) { return no_files(path, err); }
int map_file_shared(Mapping *map, const char *path, int *fd, Error *err) {
    return no_files(path, err);
}
void unmap_file(Mapping *map) {}
bool same_file(const char *a, const char *b) { return strcmp(a, b) == 0; }

NewFile *newfile_open(const char *path, Error *err) {
    no_files(path, err);
    return NULL;
}

FILE *newfile_stream(const NewFile *f) { return NULL; }
const char *newfile_temporary(const NewFile *f) { return ""; }
int newfile_close(NewFile *f, int status, Error *err) { return -1; }
int seek_to(FILE *f, uint64_t offset) { return -1; }
void remove_temporary(const NewFile *file) {}
int check_file_size(const char *path, size_t bytes, Error *err) { return 0; }

// ---- memory ----

enum { PAGE = 1 << 16 };

typedef struct Free {  // released pages, in the order of their addresses; none touch
    struct Free *next;
    size_t bytes;
} Free;

static Free *released;

size_t page_size(void) { return PAGE; }
const char *system_reason(void) { return "WebAssembly has 4 GiB, of which some are in use"; }

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

// Takes the end of the first released pages that are enough; NULL: none are.
static void *take_released(size_t bytes) {
    for (Free **at = &released; *at; at = &(*at)->next) {
        Free *block = *at;
        if (block->bytes < bytes) continue;
        block->bytes -= bytes;
        void *memory = (uint8_t *)block + block->bytes;
        if (!block->bytes) *at = block->next;
        return memset(memory, 0, bytes);
    }
    return NULL;
}

void *reserve(size_t bytes) {
    if (bytes > SIZE_MAX - PAGE) return NULL;
    bytes = whole_pages(bytes);
    void *memory = take_released(bytes);
    if (memory) return memory;
    size_t page = __builtin_wasm_memory_grow(0, bytes / PAGE);
    return page == SIZE_MAX ? NULL : (void *)(page * PAGE);
}

// Joins two blocks if they touch.
static void join(Free *block) {
    Free *next = block->next;
    if (!next || (uint8_t *)block + block->bytes != (uint8_t *)next) return;
    *block = (Free){next->next, block->bytes + next->bytes};
}

void release(void *memory, size_t bytes) {
    if (!memory) return;
    Free **at = &released, *before = NULL;
    for (; *at && (void *)*at < memory; at = &(*at)->next) before = *at;
    Free *block = memory;
    *block = (Free){*at, whole_pages(bytes)};
    *at = block;
    join(block);
    if (before) join(before);
}

void discard(void *memory, size_t bytes) { memset(memory, 0, bytes); }

void *reserve_addresses(size_t bytes) { return reserve(bytes); }
int commit(void *memory, size_t bytes) { return 0; }
bool has_map_private(void) { return false; }
void *reserve_shared(size_t bytes, int *fd) { return NULL; }
int map_private(void *memory, size_t bytes, int fd, size_t offset) { return -1; }
void close_file(int fd) {}
void populate(const void *memory, size_t bytes) {}
size_t resident_bytes(const void *memory, size_t bytes) { return bytes; }
size_t free_memory(void) { return 0; }

// ---- the machine ----

int usable_cores(void) { return 1; }

double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double busy_time(void) { return seconds(); }

bool may_use_tiles(void) { return false; }
bool saves_avx512_later(void) { return false; }
int has_neon_dot(void) { return 0; }
