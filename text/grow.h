// Arrays that grow. RESERVE(s, array, n) makes room for n elements in s->array, which has room for
// s->array_room. false: no memory; the array stays as it was.
#ifndef GROW_H
#define GROW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline bool make_room(void *array, size_t *room, size_t n, size_t size) {
    if (n <= *room) return true;
    size_t more = n + n / 2 + 16;
    void *old, *p;
    memcpy(&old, array, sizeof old);
    if (more > SIZE_MAX / size || !(p = realloc(old, more * size))) return false;
    memcpy(array, &p, sizeof p);
    *room = more;
    return true;
}
#define RESERVE(s, array, n) make_room(&(s)->array, &(s)->array##_room, n, sizeof *(s)->array)

#endif
