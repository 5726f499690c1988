// system.h as Linux alone has it: what to give back, cores and control groups.
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "system/posix.h"
#include "system/process.h"

int sync_file(int fd) { return fsync(fd); }

// As a system call, since glibc has it from 2.27 on.
int nameless_file(void) {
    enum { CLOEXEC = 1 };
    return above_standard((int)syscall(SYS_memfd_create, "heads.c sequence", CLOEXEC));
}

// ---- a mapped file that lost its end ----

static uintptr_t hex(const char **p) {
    uintptr_t n = 0;
    for (; **p; (*p)++) {
        const char *digits = "0123456789abcdef", *digit = strchr(digits, **p);
        if (!digit) break;
        n = n << 4 | (uintptr_t)(digit - digits);
    }
    return n;
}

// The path in a line of /proc/self/maps, "begin-end rights offset device inode path"; NULL: the
// address is not in that mapping.
static const char *path_in(const char *line, uintptr_t address) {
    const char *p = line;
    uintptr_t begin = hex(&p), end = *p ? (p++, hex(&p)) : 0;
    return begin <= address && address < end ? strchr(line, '/') : NULL;
}

const char *mapped_path(const void *address, char line[], size_t size) {
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    const char *path = NULL;
    size_t n = 0;
    char c;
    while (fd >= 0 && !path && read(fd, &c, 1) == 1) {
        if (c != '\n' && n + 1 < size) line[n++] = c;
        if (c != '\n') continue;
        line[n] = 0;
        path = path_in(line, (uintptr_t)address);
        n = 0;
    }
    if (fd >= 0) close(fd);
    return path;
}

// ---- memory ----

void ask_small_pages(void *memory, size_t bytes) { madvise(memory, bytes, MADV_NOHUGEPAGE); }

void discard(void *memory, size_t bytes) {
    size_t page = page_size(), skip = (page - (uintptr_t)memory % page) % page;
    if (bytes < skip + page) return;
    uint8_t *from = (uint8_t *)memory + skip;
    bytes = (bytes - skip) / page * page;
    if (madvise(from, bytes, MADV_REMOVE) == 0) return;  // pages of a file
    if (madvise(from, bytes, MADV_DONTNEED) == 0) return;
    memset(from, 0, bytes);
}

void populate(const void *memory, size_t bytes) {
#ifdef MADV_POPULATE_READ
    uintptr_t from = (uintptr_t)memory / page_size() * page_size();
    madvise((void *)from, bytes + ((uintptr_t)memory - from), MADV_POPULATE_READ);
#endif
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

// The first hardware thread of cpu's core, or cpu itself if the system does not say.
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

// Cores that this process may run on; the hardware threads of a core count as one.
static int physical_cores(void) {
    cpu_set_t allowed, seen;
    CPU_ZERO(&seen);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        for (int i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &allowed)) CPU_SET(first_sibling(i), &seen);
    if (CPU_COUNT(&seen) > 0) return CPU_COUNT(&seen);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

// The quota of one control group, in processors; INFINITY: no limit. Version 2 has "quota period"
// or "max period" in one file, version 1 has a file for each number.
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

// The least quota of this process's control group and of those around it. A container usually sees
// its own group as the root.
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

size_t last_level_cache(void) {
    size_t kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (!f) return 0;
    if (fscanf(f, "%zuK", &kib) != 1) kib = 0;
    fclose(f);
    return kib * 1024;
}

bool may_use_tiles(void) {
#ifdef SYS_arch_prctl
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

bool saves_avx512_later(void) { return false; }

int has_neon_dot(void) {
    enum { ASIMDDP = 20 };
    return (getauxval(AT_HWCAP) & (1UL << ASIMDDP)) != 0;
}

int own_path(char *path, size_t size) {
    ssize_t n = readlink("/proc/self/exe", path, size);
    if (n < 0 || (size_t)n >= size) return -1;
    path[n] = 0;
    return 0;
}
