// fault_shim.c: preloaded, fails the n-th call of a program that may fail: an allocation, a system
// call on files or mappings, a new thread. What the C library calls within itself counts too:
// allocations come through its own calls of malloc, system calls through a filter of the kernel's
// (seccomp), whose signal the shim answers. tests/support/faults.py drives it.
//
// A program with HEADS_FAULTS=in,out in its environment becomes a server before its main: from
// descriptor `in` it reads orders, runs a child for each, and writes what became of it to `out`. A
// host that calls the library itself, such as Python, calls fault_filter, fault_order, fault_count.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define SEEN __attribute__((visibility("default")))
enum { MEMORY = 1, THREADS = 2, FILES = 4, ALARM_SECONDS = 300 };

typedef struct {
    int64_t n;       // the call that fails, from 1; 0: none
    int32_t kinds;   // that count: MEMORY | THREADS | FILES
    int32_t again;   // 0: no later call fails; k: every k-th does, as on a full disk
    int32_t signal;  // if not 0, it comes during the call, which does not fail: half of a write
    int32_t zero;
} Order;

typedef struct {
    int64_t calls;      // that counted
    int64_t status;     // waitpid's
    int64_t where;      // the failed call's return address, less the program's base
    char what[40];      // "malloc", or the number of a system call
} Outcome;

static Order order;
static bool counting;
static Outcome own, *outcome = &own;  // a server's and its child's memory
static _Atomic int64_t calls, live;  // live: allocations that nobody has freed

// Whether a call comes from the part of the host that HEADS_FAULTS_OF names, such as "libheads".
static bool is_ours(void *caller) {
    Dl_info from;
    const char *ours = getenv("HEADS_FAULTS_OF");
    return !ours || (dladdr(caller, &from) && strstr(from.dli_fname, ours));
}

// Counts a call. True: it fails.
static bool fails(int kind, const char *what, void *caller) {
    if (!counting || !(order.kinds & kind) || !is_ours(caller)) return false;
    int64_t number = atomic_fetch_add(&calls, 1) + 1;
    outcome->calls = number;
    int64_t later = number - order.n;
    bool failed = order.n && (later == 0 || (order.again && later > 0 && later % order.again == 0));
    if (number == order.n) {
        Dl_info from;
        snprintf(outcome->what, sizeof outcome->what, "%s", what);
        outcome->where = dladdr(caller, &from) ? (char *)caller - (char *)from.dli_fbase : 0;
    }
    return failed;
}

// ---- allocations ----

// dlsym may allocate before it has found what allocates.
static _Alignas(16) char early_memory[4096];

static void *early(size_t size) {
    static size_t used;
    void *p = early_memory + used;
    used += (size + 15) / 16 * 16;
    return used <= sizeof early_memory ? p : NULL;
}

static bool is_early(const void *p) {
    return (const char *)p >= early_memory && (const char *)p < early_memory + sizeof early_memory;
}

static void *next(const char *name, void **found) {
    static volatile bool looking;  // before there are threads; dlsym may come back here
    if (*found || looking) return *found;
    looking = true;
    *found = dlsym(RTLD_NEXT, name);
    looking = false;
    return *found;
}

static void *counted(void *p) {
    if (p) atomic_fetch_add(&live, 1);
    return p;
}

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

static void *get(size_t size, void *caller) {
    static void *found;
    void *(*real)(size_t) = next("malloc", &found);
    if (!real) return early(size);
    return fails(MEMORY, "malloc", caller) ? no_memory() : counted(real(size));
}

SEEN void *malloc(size_t size) { return get(size, __builtin_return_address(0)); }

SEEN void *calloc(size_t n, size_t size) {
    static void *found;
    void *(*real)(size_t, size_t) = next("calloc", &found);
    if (!real) return early(n * size);
    if (fails(MEMORY, "calloc", __builtin_return_address(0))) return no_memory();
    return counted(real(n, size));
}

SEEN void *realloc(void *old, size_t size) {
    static void *found;
    void *(*real)(void *, size_t) = next("realloc", &found);
    if (fails(MEMORY, "realloc", __builtin_return_address(0))) return no_memory();
    void *p = real(old, size);
    return old ? p : counted(p);
}

// HEADS_CLOCK=stopped: everything takes no time, so that guesses always pay.
SEEN int clock_gettime(clockid_t clock, struct timespec *now) {
    static void *found;
    int (*real)(clockid_t, struct timespec *) = next("clock_gettime", &found);
    bool stopped = clock == CLOCK_MONOTONIC || clock == CLOCK_THREAD_CPUTIME_ID;
    if (!stopped || !getenv("HEADS_CLOCK")) return real(clock, now);
    *now = (struct timespec){1, 0};
    return 0;
}

SEEN void free(void *p) {
    static void *found;
    void (*real)(void *) = next("free", &found);
    if (!p || !real || is_early(p)) return;
    atomic_fetch_sub(&live, 1);
    real(p);
}

// A sanitizer's own would not come through malloc.
SEEN char *strdup(const char *text) {
    char *copy = get(strlen(text) + 1, __builtin_return_address(0));
    return copy ? strcpy(copy, text) : NULL;
}

SEEN char *strndup(const char *text, size_t most) {
    size_t len = strnlen(text, most);
    char *copy = get(len + 1, __builtin_return_address(0));
    if (copy) memcpy(copy, text, len), copy[len] = 0;
    return copy;
}

// ---- threads ----

SEEN int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                        void *argument) {
    static void *found;
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        next("pthread_create", &found);
    if (fails(THREADS, "pthread_create", __builtin_return_address(0))) return EAGAIN;
    return real(thread, attributes, run, argument);
}

// ---- system calls ----

static const struct {
    int number, error;
} SYSTEM_CALLS[] = {
#ifdef SYS_open
    {SYS_open, EMFILE}, {SYS_rename, EACCES},
#endif
    {SYS_openat, EMFILE}, {SYS_renameat, EACCES}, {SYS_renameat2, EACCES},
    {SYS_mmap, ENOMEM}, {SYS_memfd_create, EMFILE}, {SYS_ftruncate, ENOSPC},
    {SYS_read, EIO}, {SYS_write, ENOSPC}, {SYS_writev, ENOSPC}, {SYS_pwrite64, ENOSPC},
    {SYS_fsync, EIO}, {SYS_close, EIO},
};
enum { N_SYSTEM_CALLS = sizeof SYSTEM_CALLS / sizeof *SYSTEM_CALLS };

static int error_of(int number) {
    for (int i = 0; i < N_SYSTEM_CALLS; i++)
        if (SYSTEM_CALLS[i].number == number) return SYSTEM_CALLS[i].error;
    return 0;
}

// A sanitizer's calls are its own.
static bool is_sanitizer(void *caller) {
    Dl_info from;
    return dladdr(caller, &from) && from.dli_fname && strstr(from.dli_fname, "san.so");
}

static void on_system_call(int signal, siginfo_t *info, void *context) {
    mcontext_t *m = &((ucontext_t *)context)->uc_mcontext;
#ifdef __x86_64__
    greg_t *r = m->gregs;
    long a[] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
#else  // aarch64
    unsigned long long *r = m->regs;
    long a[] = {(long)r[0], (long)r[1], (long)r[2], (long)r[3], (long)r[4], (long)r[5]};
#endif
    int number = info->si_syscall, before = errno, error = error_of(number);
    char what[40];
    snprintf(what, sizeof what, "system call %d, %s", number, strerrorname_np(error));
    bool says = (number == SYS_write || number == SYS_writev) && a[0] == STDERR_FILENO;
    bool failed = !says && !is_sanitizer(info->si_call_addr) &&
                  fails(FILES, what, info->si_call_addr);
    bool killed = failed && order.signal;
    if (killed && number == SYS_write) a[2] = (a[2] + 1) / 2;
    failed &= !killed;
    long result = failed && number != SYS_close
                      ? -error
                      : syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (failed) result = -error;
    else if (result == -1) result = -errno;
    if (killed) raise(order.signal);
    errno = before;
#ifdef __x86_64__
    r[REG_RAX] = result;
#else
    r[0] = (unsigned long long)result;
#endif
}

// Has the kernel send SIGSYS for these system calls, unless they come from libc's syscall(), by
// which the handler makes them.
SEEN int fault_filter(void) {
    enum { HEAD = 5 };
    uint32_t begin = (uint32_t)(uintptr_t)syscall;
    struct sock_filter f[HEAD + N_SYSTEM_CALLS + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, begin, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, begin + 64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < N_SYSTEM_CALLS; i++)
        f[HEAD + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                   (uint32_t)SYSTEM_CALLS[i].number,
                                                   (uint8_t)(N_SYSTEM_CALLS - i), 0);
    f[HEAD + N_SYSTEM_CALLS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    f[HEAD + N_SYSTEM_CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    struct sock_fprog program = {sizeof f / sizeof *f, f};
    struct sigaction action = {.sa_sigaction = on_system_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (sigaction(SIGSYS, &action, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

// ---- orders ----

// n -1: no call counts any more.
SEEN void fault_order(int64_t n, int kinds, int again) {
    counting = false;
    if (n < 0) return;
    order = (Order){.n = n, .kinds = kinds, .again = again};
    calls = 0;
    *outcome = (Outcome){0};
    counting = true;
}

SEEN int64_t fault_count(void) { return calls; }
SEEN int64_t fault_live(void) { return live; }

static void begin_child(int in, int out) {
    close(in);
    close(out);
    if (lseek(STDIN_FILENO, 0, SEEK_SET) < 0 || ftruncate(STDOUT_FILENO, 0) ||
        lseek(STDOUT_FILENO, 0, SEEK_SET) < 0 || ftruncate(STDERR_FILENO, 0) ||
        lseek(STDERR_FILENO, 0, SEEK_SET) < 0 || fault_filter()) {
        perror("fault_shim");
        _exit(125);
    }
    alarm(ALARM_SECONDS);
    counting = true;
}

// Returns in children only.
static void serve(int in, int out) {
    int flags = MAP_SHARED | MAP_ANONYMOUS;
    outcome = mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, flags, -1, 0);
    while (read(in, &order, sizeof order) == sizeof order) {
        int status = 0;
        *outcome = (Outcome){0};
        pid_t child = fork();
        if (child == 0) {
            begin_child(in, out);
            return;
        }
        if (child < 0 || waitpid(child, &status, 0) < 0) _exit(125);
        outcome->status = status;
        if (write(out, outcome, sizeof *outcome) != sizeof *outcome) _exit(125);
    }
    _exit(0);
}

#ifdef COVERAGE
// What make coverage counts is written at exit, by calls that are none of the program's.
static void stop_counting(void) { counting = false; }
#endif

static int (*program_main)(int, char **, char **);

static int main_of_child(int argc, char **argv, char **environment) {
    int in, out;
    const char *descriptors = getenv("HEADS_FAULTS");
    if (descriptors && sscanf(descriptors, "%d,%d", &in, &out) == 2) serve(in, out);
#ifdef COVERAGE
    atexit(stop_counting);
#endif
    return program_main(argc, argv, environment);
}

SEEN int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
                           void (*init)(void), void (*fini)(void), void (*ld_fini)(void),
                           void *stack_end) {
    int (*real)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void),
                void (*)(void), void *) = dlsym(RTLD_NEXT, "__libc_start_main");
    program_main = main;
    return real(main_of_child, argc, argv, init, fini, ld_fini, stack_end);
}
