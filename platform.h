// platform.c: all that is asked of the operating system, so that porting to another is one file.
#ifndef PLATFORM_H
#define PLATFORM_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "heads.h"

typedef heads_error Error;

// Fills err->text, unless err is NULL, and returns -1, so that "return fail(err, ...)" reads well.
// Control characters become '?': a name out of a damaged file must not steer the terminal.
int fail(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// ---- files ----

typedef struct {  // a mapped file
    const uint8_t *data;
    size_t size;
} Mapping;

// Maps a file for reading. Errors: cannot be opened, no regular file, empty.
int map_file(Mapping *map, const char *path, Error *err);
void unmap_file(Mapping *map);
// The same with its descriptor, so that others can map parts of it; close_file(*fd) when done.
int map_file_shared(Mapping *map, const char *path, int *fd, Error *err);
bool same_file(const char *a, const char *b);  // links followed; false where one is missing

// A file that takes the place of `path`, or of where links from there lead, only when it is whole:
// until then it has a temporary name beside it. It gets the mode of the file whose place it takes.
// What no file can take the place of, such as a pipe, is written directly.
typedef struct {
    FILE *stream;
    char path[PATH_MAX];            // where links lead
    char temporary[PATH_MAX + 32];  // "": written directly
} NewFile;

int newfile_open(NewFile *file, const char *path, Error *err);
// status 0: puts it in its place, on the disk. -1, which errno explains, or an error of the stream:
// the temporary file goes.
int newfile_close(NewFile *file, int status, Error *err);

// ---- memory: reserved in pages, in memory only once it is written to ----

size_t page_size(void);
void *reserve(size_t bytes);  // zeros, readable and writable; NULL: no room
void release(void *memory, size_t bytes);
// Makes them zeros again that take no memory; whole pages of it.
void discard(void *memory, size_t bytes);
// A memory file of zeros, mapped so that others can map its pages too. *fd: to close.
void *reserve_shared(size_t bytes, int *fd);
// Puts pages of a file in the place of reserved ones: what is written there stays private.
// memory, offset and bytes are multiples of a page.
int map_private(void *memory, size_t bytes, int fd, size_t offset);
void close_file(int fd);
// Maps what is in memory already, at a third of what faults page by page would cost. A hint.
void populate(const void *memory, size_t bytes);
// Bytes of memory[0..bytes) that are in memory, in whole pages.
size_t resident_bytes(const void *memory, size_t bytes);
size_t free_memory(void);  // bytes that this machine could still give; 0: it does not say

// ---- the machine ----

int usable_cores(void);  // physical cores that this process may use, a container's quota counted
double seconds(void);    // of a clock that only goes forward

#endif
