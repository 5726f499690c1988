// system.h as Linux and macOS share it: files, memory, the clock.
#include "system/posix.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "system/temporaries.h"

int write_plain(char *text, size_t size, const char *format, va_list args) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);  // never fails: nothing is loaded
    locale_t hosts = uselocale(plain);
    int length = vsnprintf(text, size, format, args);
    uselocale(hosts);
    freelocale(plain);
    return length;
}

// ---- files ----

int above_standard(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), reason = errno;
    close(fd);
    errno = reason == EINVAL ? EMFILE : reason;  // no descriptor is as high (ulimit -n)
    return higher;
}

static int open_file(const char *path, int flags, mode_t mode) {
    return above_standard(open(path, flags | O_CLOEXEC, mode));
}

static int map_open_file(Mapping *map, int fd, const char *path, Error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return fail(err, "cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return fail(err, "%s is a directory; name a file (export.py makes one of a checkpoint)",
                    path);
    if (!S_ISREG(st.st_mode))
        return fail(err, "%s is no regular file, so it cannot be mapped; copy it to one", path);
    if (st.st_size == 0) return fail(err, "%s: it is empty", path);
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return fail(err, "cannot map %s: %s", path, strerror(errno));
    *map = (Mapping){data, (size_t)st.st_size};
    return 0;
}

int map_file_shared(Mapping *map, const char *path, int *fd, Error *err) {
    *fd = open_file(path, O_RDONLY | O_NONBLOCK, 0);  // a pipe must not make us wait
    if (*fd < 0) return fail(err, "cannot open %s: %s", path, strerror(errno));
    if (map_open_file(map, *fd, path, err) == 0) return 0;
    close(*fd);
    return -1;
}

int map_file(Mapping *map, const char *path, Error *err) {
    int fd;
    if (map_file_shared(map, path, &fd, err)) return -1;
    close(fd);
    return 0;
}

void unmap_file(Mapping *map) {
    if (map->data) munmap((void *)map->data, map->size);
    *map = (Mapping){0};
}

const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool is_missing(const char *path) {
    struct stat st;
    return stat(path, &st) != 0 && errno == ENOENT;
}

bool is_regular(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

FILE *open_to_read(const char *path) { return fopen(path, "rb"); }

int seek_to(FILE *stream, uint64_t offset) { return fseeko(stream, (off_t)offset, SEEK_SET); }

// Why a system call failed.
static const char *reason_of(int number) {
    return number == EFBIG ? "more bytes than a file may have here (ulimit -f)" : strerror(number);
}

const char *system_reason(void) { return reason_of(errno); }

int check_file_size(const char *path, size_t bytes, Error *err) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        bytes <= limit.rlim_cur)
        return 0;
    errno = EFBIG;
    return fail(err, "cannot write %s: its %zu bytes are more than the %llu that a file may have "
                "here (ulimit -f)", path, bytes, (unsigned long long)limit.rlim_cur);
}

// Finds the file that a path leads to, even if it does not exist. Only the last name's links count:
// the system follows links to folders, and a folder may have a longer name than any path.
static int follow_links(const char *path, char target[PATH_MAX]) {
    enum { MOST_LINKS = 40 };
    struct stat st;
    char link[PATH_MAX];
    size_t folder = 0;
    ssize_t n = snprintf(link, sizeof link, "%s", path);
    for (int i = 0; i <= MOST_LINKS; i++) {
        if (folder + (size_t)n >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(target + folder, link, (size_t)n);
        target[folder + (size_t)n] = 0;
        if (lstat(target, &st) != 0 || !S_ISLNK(st.st_mode)) return 0;
        n = readlink(target, link, sizeof link);
        if (n < 0) return -1;
        const char *slash = strrchr(target, '/');
        folder = slash && n && *link != '/' ? (size_t)(slash - target) + 1 : 0;
    }
    errno = ELOOP;
    return -1;
}

// Whether `path`, which leads to target, must be written directly. /dev/stdout is never replaced,
// even if it leads to a file.
static bool is_direct(const char *path, const char *target) {
    struct stat st;
    if (stat(path, &st) != 0) return false;
    return !S_ISREG(st.st_mode) ||
           (strncmp(path, "/dev/", 5) == 0 && strncmp(target, "/dev/", 5) != 0);
}

// This process's own number. No other has it, not even a process with the same id in another
// container, which may have left temporary files behind.
static unsigned long long own_number(void) {
    static atomic_ullong own;
    unsigned long long before = 0;
    struct timespec now;
    if (atomic_load(&own)) return atomic_load(&own);
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long number = (unsigned long long)now.tv_sec * 1000000000u +
                                (unsigned long long)now.tv_nsec;
    return atomic_compare_exchange_strong(&own, &before, number) ? number : before;
}

struct NewFile {
    FILE *stream;
    char path[PATH_MAX];  // where links lead
    char temporary[PATH_MAX + 64];
};

void remove_temporary(const NewFile *file) { unlink(file->temporary); }

static FILE *open_stream(const char *path, int flags, mode_t mode) {
    int fd = open_file(path, flags, mode);
    FILE *stream = fd >= 0 ? fdopen(fd, "wb") : NULL;
    int reason = errno;
    if (fd >= 0 && !stream) close(fd);
    errno = reason;
    return stream;
}

static FILE *open_temporary(NewFile *file) {
    struct stat old;
    const char *slash = strrchr(file->path, '/');
    int folder = slash ? (int)(slash - file->path) + 1 : 0, most = folder + NAME_MAX - 40;
    mode_t mode = stat(file->path, &old) == 0 ? old.st_mode & 0777 : 0666;
    snprintf(file->temporary, sizeof file->temporary, "%.*s.%ld-%llx.tmp", most, file->path,
             (long)getpid(), own_number());
    list_temporary(NULL, file);
    FILE *stream = open_stream(file->temporary, O_WRONLY | O_CREAT | O_EXCL, mode);
    int reason = errno;
    if (stream) return stream;
    list_temporary(file, NULL);
    if (reason != EEXIST) unlink(file->temporary);
    errno = reason;
    return NULL;
}

static void open_new(NewFile *file, const char *path) {
    if (follow_links(path, file->path)) return;
    if (!is_direct(path, file->path)) {
        file->stream = open_temporary(file);
    } else {
        snprintf(file->path, sizeof file->path, "%s", path);
        file->stream = open_stream(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    }
}

NewFile *newfile_open(const char *path, Error *err) {
    NewFile *file = calloc(1, sizeof *file);
    if (file) open_new(file, path);
    if (file && file->stream) return file;
    int reason = errno;
    free(file);
    fail(err, "cannot write %s: %s", path, reason_of(reason));
    errno = reason;
    return NULL;
}

FILE *newfile_stream(const NewFile *file) { return file->stream; }
const char *newfile_temporary(const NewFile *file) { return file->temporary; }

// Syncs the folder of a file, so that its rename survives a crash.
static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int fd = folder ? open_file(folder, O_RDONLY | O_DIRECTORY, 0) : -1;
    if (fd >= 0) {
        sync_file(fd);
        close(fd);
    }
    free(folder);
}

int newfile_close(NewFile *file, int status, Error *err) {
    bool renamed = *file->temporary, ok = !status && fflush(file->stream) == 0;
    ok = ok && !ferror(file->stream) && (!renamed || sync_file(fileno(file->stream)) == 0);
    int reason = errno;
    if (fclose(file->stream) != 0 && ok) ok = false, reason = errno;
    if (ok && renamed && rename(file->temporary, file->path) != 0) ok = false, reason = errno;
    if (ok && renamed) sync_folder(file->path);
    if (!ok && renamed) unlink(file->temporary);
    list_temporary(file, NULL);
    if (!ok) fail(err, "cannot write %s: %s", file->path, reason_of(reason));
    free(file);
    return ok ? 0 : -1;
}

// ---- a file that grows ----

struct GrownFile {
    int fd;
    bool regular;
};

GrownFile *grown_open(const char *path, bool own) {
    struct stat st;
    GrownFile *file = calloc(1, sizeof *file);
    if (!file) return NULL;
    file->regular = stat(path, &st) != 0 || S_ISREG(st.st_mode);
    int flags = (file->regular ? O_RDWR | O_CREAT : O_WRONLY) | O_APPEND;
    file->fd = open_file(path, flags, own ? 0600 : 0666);
    bool ok = file->fd >= 0 && (!file->regular || flock(file->fd, LOCK_EX | LOCK_NB) == 0 ||
                                errno != EWOULDBLOCK);  // not every system of files has locks
    if (ok) return file;
    int reason = errno;
    if (file->fd >= 0) close(file->fd);
    free(file);
    errno = reason;
    return NULL;
}

bool grown_regular(const GrownFile *file) { return file->regular; }
int grown_cut(GrownFile *file, size_t bytes) { return ftruncate(file->fd, (off_t)bytes); }

int grown_write(GrownFile *file, const char *data, size_t size) {
    while (size > 0) {
        ssize_t written = write(file->fd, data, size);
        if (written < 0 && errno != EINTR) return -1;
        if (written < 0) continue;
        data += written;
        size -= (size_t)written;
    }
    return 0;
}

int grown_sync(GrownFile *file) { return sync_file(file->fd); }

int grown_close(GrownFile *file) {
    int status = close(file->fd);
    free(file);
    return status;
}

// ---- memory ----

size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static void *mapped(void *memory, size_t bytes) {
    if (memory == MAP_FAILED) return NULL;
    ask_small_pages(memory, bytes);
    return memory;
}

void *reserve(size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return mapped(mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0), bytes);
}

void *reserve_addresses(size_t bytes) { return reserve(bytes); }
int commit(void *memory, size_t bytes) { return 0; }

void release(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes);
}

bool has_map_private(void) { return true; }

void *reserve_shared(size_t bytes, int *fd) {
    *fd = check_file_size("a nameless file", bytes, NULL) ? -1 : nameless_file();
    if (*fd < 0) return NULL;
    void *memory = ftruncate(*fd, (off_t)bytes) ? MAP_FAILED
                                                : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                                       MAP_SHARED | MAP_NORESERVE, *fd, 0);
    int reason = errno;
    if (memory == MAP_FAILED) close(*fd);
    errno = reason;
    return mapped(memory, bytes);
}

int map_private(void *memory, size_t bytes, int fd, size_t offset) {
    int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    void *p = mmap(memory, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
    return mapped(p, bytes) ? 0 : -1;
}

void close_file(int fd) { close(fd); }

size_t resident_bytes(const void *memory, size_t bytes) {
    enum { AT_ONCE = 1 << 14 };
    unsigned char pages[AT_ONCE];
    size_t page = page_size(), n = 0, stretch;
    for (size_t at = 0; at < bytes; at += stretch) {
        stretch = bytes - at < AT_ONCE * page ? bytes - at : AT_ONCE * page;
        if (mincore((uint8_t *)memory + at, stretch, (void *)pages) != 0) return 0;
        for (size_t i = 0; i * page < stretch; i++) n += pages[i] & 1;
    }
    return n * page;
}

// ---- the machine ----

static double time_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double seconds(void) { return time_of(CLOCK_MONOTONIC); }
double busy_time(void) { return time_of(CLOCK_THREAD_CPUTIME_ID); }

uint64_t clock_microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

int64_t local_clock(void) {
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    return now + local.tm_gmtoff;
}
