// Memory for the buffers of a workspace: arrays one after the other in one mapping.
#ifndef ARENA_H
#define ARENA_H

#include "kernels/kernels.h"

typedef struct {  // rows of activations
    float *data;
    size_t stride;  // width rounded up to 16: products write whole panels
} Buffer;

// Hands out arrays one after the other, in whole cache lines. With data NULL it only adds up their
// sizes. Arenas are copied by value: arrays of a copy are free again when the copy goes.
typedef struct {
    uint8_t *data;
    size_t used;          // bytes; SIZE_MAX: they overflowed
    size_t input_blocks;  // blocks of the largest input of a product
} Arena;

// The arena with everything up to `end` free: AddressSanitizer then reports uses of older arrays.
Arena arena_unused(Arena a, const uint8_t *end);
void release_buffers(void *memory, size_t bytes);
void *arena_array(Arena *a, size_t count, size_t size);
Buffer arena_rows(Arena *a, size_t n_rows, size_t width);
Buffer arena_input(Arena *a, size_t n_rows, size_t width);  // rows that a product multiplies
// a * b and a + b; SIZE_MAX if they overflow.
size_t times(size_t a, size_t b);
size_t plus(size_t a, size_t b);

static inline float *row(Buffer b, int t) { return b.data + (size_t)t * b.stride; }
static inline Buffer rows_after(Buffer b, int t) { return (Buffer){row(b, t), b.stride}; }

#endif
