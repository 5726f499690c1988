// What is asked of the operating system: files, memory, cores, the clock. And how failure is
// reported.
#include "platform.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int fail(Error *err, const char *format, ...) {
    if (!err) return -1;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    for (char *c = err->text; *c; c++)
        if ((unsigned char)*c < ' ') *c = '?';
    return -1;
}

// ---- files ----

static int map_open_file(Mapping *map, int fd, const char *path, Error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return fail(err, "cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return fail(err, "%s is a directory; name a file (export.py makes one of a checkpoint)",
                    path);
    if (!S_ISREG(st.st_mode))
        return fail(err, "%s is no regular file, so it cannot be mapped; copy it to one", path);
    if (st.st_size == 0) return fail(err, "%s is empty", path);
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return fail(err, "cannot map %s: %s", path, strerror(errno));
    *map = (Mapping){data, (size_t)st.st_size};
    return 0;
}

int map_file_shared(Mapping *map, const char *path, int *fd, Error *err) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not make us wait
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

bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Whether no other file can take the place of `path`; if one can, where links lead is in target.
// /dev/stdout cannot be replaced even where it is sent to a file.
static bool is_direct(const char *path, char target[PATH_MAX]) {
    struct stat st;
    if (stat(path, &st) != 0) {
        snprintf(target, PATH_MAX, "%s", path);
        return lstat(path, &st) == 0;  // a link to what is not there yet
    }
    return !S_ISREG(st.st_mode) || !realpath(path, target) ||
           (strncmp(path, "/dev/", 5) == 0 && strncmp(target, "/dev/", 5) != 0);
}

int newfile_open(NewFile *file, const char *path, Error *err) {
    struct stat old;
    *file->temporary = 0;
    if (is_direct(path, file->path)) {
        snprintf(file->path, sizeof file->path, "%s", path);
        file->stream = fopen(path, "ab");
    } else {
        snprintf(file->temporary, sizeof file->temporary, "%s.%ld.tmp", file->path, (long)getpid());
        mode_t mode = stat(file->path, &old) == 0 ? old.st_mode & 0777 : 0666;
        int fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        file->stream = fd >= 0 ? fdopen(fd, "wb") : NULL;
    }
    return file->stream ? 0 : fail(err, "cannot write %s: %s", path, strerror(errno));
}

// A rename lasts through a crash once the folder that holds the name is synced.
static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

int newfile_close(NewFile *file, int status, Error *err) {
    bool renamed = *file->temporary, ok = !status && fflush(file->stream) == 0;
    ok = ok && !ferror(file->stream) && (!renamed || fsync(fileno(file->stream)) == 0);
    int reason = errno;
    if (fclose(file->stream) != 0 && ok) ok = false, reason = errno;
    if (ok && renamed && rename(file->temporary, file->path) != 0) ok = false, reason = errno;
    if (ok && renamed) sync_folder(file->path);
    if (!ok && renamed) unlink(file->temporary);
    return ok ? 0 : fail(err, "cannot write %s: %s", file->path, strerror(reason));
}

// ---- memory ----

size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

// Small pages: with huge ones the memory in use would grow by 2 MB at a time.
static void *small_pages(void *memory, size_t bytes) {
    if (memory == MAP_FAILED) return NULL;
#ifdef MADV_NOHUGEPAGE
    madvise(memory, bytes, MADV_NOHUGEPAGE);
#endif
    return memory;
}

void *reserve(size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return small_pages(mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0), bytes);
}

void release(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes);
}

void discard(void *memory, size_t bytes) {
    size_t page = page_size(), skip = (page - (uintptr_t)memory % page) % page;
    if (bytes < skip + page) return;
    uint8_t *from = (uint8_t *)memory + skip;
    bytes = (bytes - skip) / page * page;
#ifdef __linux__
    if (madvise(from, bytes, MADV_REMOVE) == 0) return;  // pages of a file
    if (madvise(from, bytes, MADV_DONTNEED) == 0) return;
#endif
    memset(from, 0, bytes);
}

// A file without a name, in memory where the system can.
static int nameless_file(void) {
#ifdef __linux__
    return memfd_create("heads.c sequence", MFD_CLOEXEC);
#else
    FILE *f = tmpfile();
    int fd = f ? dup(fileno(f)) : -1;
    if (f) fclose(f);
    return fd;
#endif
}

void *reserve_shared(size_t bytes, int *fd) {
    *fd = nameless_file();
    if (*fd < 0) return NULL;
    void *memory = ftruncate(*fd, (off_t)bytes) ? MAP_FAILED
                                                : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                                       MAP_SHARED | MAP_NORESERVE, *fd, 0);
    if (memory == MAP_FAILED) close(*fd);
    return small_pages(memory, bytes);
}

int map_private(void *memory, size_t bytes, int fd, size_t offset) {
    int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    void *p = mmap(memory, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
    return small_pages(p, bytes) ? 0 : -1;
}

void close_file(int fd) { close(fd); }

void populate(const void *memory, size_t bytes) {
#ifdef MADV_POPULATE_READ
    uintptr_t from = (uintptr_t)memory / page_size() * page_size();
    madvise((void *)from, bytes + ((uintptr_t)memory - from), MADV_POPULATE_READ);
#endif
}

size_t resident_bytes(const void *memory, size_t bytes) {
    size_t n_pages = (bytes + page_size() - 1) / page_size(), n = 0;
    unsigned char *pages = malloc(n_pages);
    if (pages && mincore((void *)memory, bytes, pages) == 0)
        for (size_t i = 0; i < n_pages; i++) n += pages[i] & 1;
    free(pages);
    return n * page_size();
}

size_t free_memory(void) {
    char line[128];
    size_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %zu", &kib) != 1) {
    }
    fclose(f);
    return kib * 1024;
}

// ---- the machine ----

double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#ifdef __linux__
// The first of the hardware threads that share cpu's core, or cpu itself where nothing says so.
static int first_sibling(int cpu) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "r");
    int first = cpu;
    if (f) {
        if (fscanf(f, "%d", &first) != 1) first = cpu;
        fclose(f);
    }
    return first >= 0 && first < CPU_SETSIZE ? first : cpu;
}
#endif

// Cores this process may run on, hardware threads of one core counted once.
static int physical_cores(void) {
#ifdef __linux__
    cpu_set_t allowed, seen;
    CPU_ZERO(&seen);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        for (int i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &allowed)) CPU_SET(first_sibling(i), &seen);
    if (CPU_COUNT(&seen) > 0) return CPU_COUNT(&seen);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

// The processors' time that one control group allows, in processors; INFINITY: no limit. Version 2
// has "quota period" or "max period" in one file, version 1 the two in a file each.
static double quota_in(const char *folder) {
    char path[512];
    double quota = -1, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%lf %lf", &quota, &period) != 2) quota = -1;
        fclose(f);
        return quota > 0 && period > 0 ? quota / period : INFINITY;
    }
    const char *names[] = {"cpu.cfs_quota_us", "cpu.cfs_period_us"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (!(f = fopen(path, "r"))) return INFINITY;
        if (fscanf(f, "%lf", i ? &period : &quota) != 1) quota = -1;
        fclose(f);
    }
    return quota > 0 && period > 0 ? quota / period : INFINITY;
}

// The tightest quota of this process's control group and those around it. A container usually sees
// its own group at the root of the file system.
static double cpu_quota(void) {
    char line[400], folder[480];
    double least = fmin(quota_in("/sys/fs/cgroup"), quota_in("/sys/fs/cgroup/cpu"));
    FILE *f = fopen("/proc/self/cgroup", "r");
    if (!f) return least;
    while (fgets(line, sizeof line, f)) {
        bool version_2 = strncmp(line, "0::/", 4) == 0, cpu = strstr(line, "cpu") != NULL;
        char *path = strchr(line, '/');
        if (!path || !(version_2 || cpu)) continue;
        path[strcspn(path, "\n")] = 0;
        for (char *end = path + strlen(path); end > path; end = strrchr(path, '/')) {
            *end = 0;  // from the innermost group outwards
            snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", version_2 ? "" : "/cpu", path);
            least = fmin(least, quota_in(folder));
        }
    }
    fclose(f);
    return least;
}

int usable_cores(void) {
    int cores = physical_cores();
    double quota = cpu_quota();
    return quota >= cores ? cores : quota < 1 ? 1 : (int)ceil(quota);
}
