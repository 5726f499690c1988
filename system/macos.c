// system.h as macOS alone has it. It is compiled and linked without a Mac, and was not run.
#include <fcntl.h>
#include <libproc.h>
#include <mach/mach.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include "system/posix.h"
#include "system/process.h"

// fsync leaves what was written in the disk's own memory. Not every file system has F_FULLFSYNC.
int sync_file(int fd) { return fcntl(fd, F_FULLFSYNC) == 0 ? 0 : fsync(fd); }

// Memory files cannot be mapped privately.
int nameless_file(void) {
    FILE *f = tmpfile();
    int fd = f ? fcntl(fileno(f), F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
    if (f) fclose(f);
    return fd;
}

const char *mapped_path(const void *address, char text[], size_t size) {
    int n = proc_regionfilename(getpid(), (uintptr_t)address, text, (uint32_t)size);
    return n > 0 ? text : NULL;
}

// ---- memory ----

void ask_small_pages(void *memory, size_t bytes) {}

// Nothing is given back, since pages of a file cannot be.
void discard(void *memory, size_t bytes) {
#ifdef MADV_ZERO
    size_t page = page_size(), skip = (page - (uintptr_t)memory % page) % page;
    if (bytes < skip + page) return;
    memory = (uint8_t *)memory + skip;
    bytes = (bytes - skip) / page * page;
    if (madvise(memory, bytes, MADV_ZERO) == 0) return;  // touches no page that is not there
#endif
    memset(memory, 0, bytes);
}

void populate(const void *memory, size_t bytes) {}

size_t free_memory(void) {
    vm_statistics64_data_t pages;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&pages, &n)) return 0;
    return ((size_t)pages.free_count + pages.inactive_count) * page_size();
}

// ---- the machine ----

int usable_cores(void) {
    // An efficiency core would make the others wait.
    static const char *const names[] = {"hw.perflevel0.physicalcpu", "hw.physicalcpu"};
    for (int i = 0; i < 2; i++) {
        int n = 0;
        size_t size = sizeof n;
        if (sysctlbyname(names[i], &n, &size, NULL, 0) == 0 && n > 0) return n;
    }
    return 1;
}

size_t last_level_cache(void) {
    static const char *const names[] = {"hw.l3cachesize", "hw.perflevel0.l2cachesize"};
    for (int i = 0; i < 2; i++) {
        int64_t bytes = 0;
        size_t size = sizeof bytes;
        if (sysctlbyname(names[i], &bytes, &size, NULL, 0) == 0 && bytes > 0) return (size_t)bytes;
    }
    return 0;
}

bool may_use_tiles(void) { return false; }
bool saves_avx512_later(void) { return true; }
int has_neon_dot(void) { return 1; }

int own_path(char *path, size_t size) {
    return proc_pidpath(getpid(), path, (uint32_t)size) > 0 ? 0 : -1;
}
