// Memory for buffers. One mapping holds them all, so a build with AddressSanitizer poisons the gaps
// between them: otherwise it could not tell where a buffer ends.
#include "system/arena.h"

#include "system/system.h"

#if defined(__SANITIZE_ADDRESS__)
#define POISONED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONED 1
#endif
#endif

#ifdef POISONED
#include <sanitizer/asan_interface.h>
enum { GAP = 64 };
static void poison(void *p, size_t n) { __asan_poison_memory_region(p, n); }
static void unpoison(void *p, size_t n) { __asan_unpoison_memory_region(p, n); }
#else
enum { GAP = 0 };
static void poison(void *p, size_t n) {}
static void unpoison(void *p, size_t n) {}
#endif

size_t times(size_t a, size_t b) {
    size_t n;
    return __builtin_mul_overflow(a, b, &n) ? SIZE_MAX : n;
}

size_t plus(size_t a, size_t b) {
    size_t n;
    return __builtin_add_overflow(a, b, &n) ? SIZE_MAX : n;
}

void *arena_array(Arena *a, size_t count, size_t size) {
    enum { LINE = 64 };
    size_t bytes = times(count, size), lines = plus(bytes, LINE - 1) / LINE;
    void *p = a->data ? a->data + a->used : NULL;
    if (p) {
        poison(p, lines * LINE + GAP);
        unpoison(p, bytes);
    }
    a->used = plus(a->used, plus(times(lines, LINE), GAP));
    return p;
}

Buffer arena_rows(Arena *a, size_t n_rows, size_t width) {
    size_t stride = round_up(width, LANES);
    return (Buffer){arena_array(a, times(n_rows, stride), sizeof(float)), stride};
}

Buffer arena_input(Arena *a, size_t n_rows, size_t width) {
    size_t blocks = times(n_rows, blocks_apart(width));
    if (blocks > a->input_blocks) a->input_blocks = blocks;
    return arena_rows(a, n_rows, width);
}

Arena arena_unused(Arena a, const uint8_t *end) {
    poison(a.data, (size_t)(end - a.data));
    return a;
}

void release_buffers(void *memory, size_t bytes) {
    if (memory) unpoison(memory, bytes);
    release(memory, bytes);
}
