// All that the engine asks of the operating system, except for threads: a system has a file of its
// own, and posix.c is shared by Linux and macOS. Also how failures are reported (error.c).
#ifndef SYSTEM_H
#define SYSTEM_H

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "heads.h"

typedef heads_error Error;

// Writes err->text, unless err is NULL, and returns -1, for "return fail(err, ...)". Control
// characters become '?': a name in a damaged file must not steer the terminal.
int fail(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Appends to the zero-terminated text[size], as far as there is room.
void text_append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// vsnprintf whose numbers have a point, whatever locale the host program has set.
int write_plain(char *text, size_t size, const char *format, va_list args);

// Fails if the pointer is NULL; what: its name for the message.
int need(const void *pointer, const char *what, Error *err);

// ---- files ----

typedef struct {  // a mapped file
    const uint8_t *data;
    size_t size;
} Mapping;

// Maps a file for reading. Errors: cannot be opened, no regular file, empty.
int map_file(Mapping *map, const char *path, Error *err);
void unmap_file(Mapping *map);
// Maps a file and keeps its descriptor in *fd, for map_private; close_file closes it.
int map_file_shared(Mapping *map, const char *path, int *fd, Error *err);
const char *base_name(const char *path);       // what follows its folders
bool same_file(const char *a, const char *b);  // links followed; false where one is missing
bool is_missing(const char *path);             // false: it is there, or cannot be looked at
bool is_regular(const char *path);             // false: a folder, a pipe, a device, or missing
bool is_folder(const char *path);
FILE *open_to_read(const char *path);          // NULL: errno
int seek_to(FILE *stream, uint64_t offset);    // 0: done

// A new file that replaces the file at `path`, links followed, once it is whole; until then it has
// a temporary name beside it. It gets the mode of the old file. What cannot be replaced, such as a
// pipe, is written directly.
typedef struct NewFile NewFile;

// NULL: an error, which errno explains too; EEXIST: this process is already writing such a file.
NewFile *newfile_open(const char *path, Error *err);
FILE *newfile_stream(const NewFile *file);
const char *newfile_temporary(const NewFile *file);   // "": written directly
// status 0: syncs the file and gives it its name. -1, which errno explains, or an error of the
// stream: removes the temporary file. Frees `file`.
int newfile_close(NewFile *file, int status, Error *err);
// Removes the temporary files of all open NewFiles; a signal handler may call it.
void newfile_remove_temporaries(void);
// A file that only grows, and that this process alone writes; or a pipe. -1, NULL: a failure, which
// errno explains.
typedef struct GrownFile GrownFile;

// Opens a file, or makes it, and locks it if it is regular. EWOULDBLOCK: another process has it.
// own: one that is made is for this user's eyes only; on Windows its folder decides that.
GrownFile *grown_open(const char *path, bool own);
bool grown_regular(const GrownFile *file);
int grown_cut(GrownFile *file, size_t bytes);  // to its first bytes
int grown_write(GrownFile *file, const char *data, size_t size);
int grown_sync(GrownFile *file);               // 0: what was written survives a crash
int grown_close(GrownFile *file);              // frees it in any case

// Fails if the process may not write a file of so many bytes, for which SIGXFSZ would end it.
int check_file_size(const char *path, size_t bytes, Error *err);
const char *system_reason(void);  // why the last call of reserve or reserve_shared gave NULL

// ---- memory: addresses are reserved, and pages take memory when they are first written to ----

size_t page_size(void);
void *reserve(size_t bytes);  // zeros; NULL: no room
// Addresses alone, for a cache that may never fill: pages are used after commit only. Windows
// promises memory when it is committed, other systems when it is written to.
void *reserve_addresses(size_t bytes);
int commit(void *memory, size_t bytes);  // again where it may be; -1: no memory
void release(void *memory, size_t bytes);
// Gives the memory of whole pages back; they are zeros again.
void discard(void *memory, size_t bytes);
// Whether the system has reserve_shared and map_private. If not, forks and loaded sessions are
// copies.
bool has_map_private(void);
// Reserves memory in a nameless file, whose pages map_private can map elsewhere. *fd: its
// descriptor; close_file closes it.
void *reserve_shared(size_t bytes, int *fd);
// Replaces pages of reserve_addresses by pages of a file; writes to them stay private. memory,
// offset and bytes are multiples of a page.
int map_private(void *memory, size_t bytes, int fd, size_t offset);
void close_file(int fd);
// Enters pages that are in memory into the page table; page faults would cost three times as much.
void populate(const void *memory, size_t bytes);
size_t resident_bytes(const void *memory, size_t bytes);  // of pages that are in memory
size_t free_memory(void);  // bytes that the machine has left; 0: unknown

// ---- the machine ----

int usable_cores(void);  // physical cores that this process may use, within a container's quota
size_t last_level_cache(void);      // bytes of a core's largest cache; 0: unknown
double seconds(void);               // of a monotonic clock
double busy_time(void);             // that this thread has computed, in some unit
uint64_t clock_microseconds(void);  // since 1970
int64_t local_clock(void);          // seconds since 1970, in local time
// x86's AMX: the tiles' registers are large, so a kernel may give them only to a process that asks.
bool may_use_tiles(void);
// x86's AVX-512: whether the system begins to save its registers when a thread first uses them.
bool saves_avx512_later(void);
int has_neon_dot(void);  // on Arm: 1 if the processor has NEON's dot product

#endif
