// Threads for WebAssembly where memory is shared: what threads.c needs of pthread.h, since zig's
// libc has none. A thread is a worker of JavaScript with an instance of its own (system/wasm.js).
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

enum { STACK = 1 << 20 };

typedef struct Thread {  // follows its stack, which grows down, towards thread-local variables
    struct Thread *next;
    void *(*run)(void *);
    void *arg;
    _Atomic int busy;
} Thread;

static Thread *threads;

static void wait_while(_Atomic int *at, int value) {
    __builtin_wasm_memory_atomic_wait32((int *)at, value, -1);
}

static void wake(_Atomic int *at, unsigned n) { __builtin_wasm_memory_atomic_notify((int *)at, n); }

// ---- threads ----

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
static size_t room_below(void) { return STACK + whole_lines(__builtin_wasm_tls_size()); }

// A thread for one more worker, whose stack ends where the thread begins. NULL: no memory.
__attribute__((export_name("wasm_thread_new"))) Thread *wasm_thread_new(void) {
    char *room = aligned_alloc(64, room_below() + whole_lines(sizeof(Thread)));
    if (!room) return NULL;
    Thread *thread = (Thread *)(room + room_below());
    *thread = (Thread){.next = threads};
    return threads = thread;
}

void __wasm_init_tls(void *storage);

// Runs what pthread_create gives the thread, for ever.
__attribute__((export_name("wasm_thread_run"))) void wasm_thread_run(Thread *thread) {
    __wasm_init_tls((char *)thread - room_below());
    for (;;) {
        while (!atomic_load(&thread->busy)) wait_while(&thread->busy, 0);
        thread->run(thread->arg);
        atomic_store(&thread->busy, 0);
        wake(&thread->busy, 1);
    }
}

int pthread_create(pthread_t *made, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    Thread *thread = threads;
    while (thread && atomic_load(&thread->busy)) thread = thread->next;
    if (!thread) return EAGAIN;
    thread->run = run;
    thread->arg = arg;
    atomic_store(&thread->busy, 1);
    wake(&thread->busy, 1);
    *made = (pthread_t)thread;
    return 0;
}

int pthread_join(pthread_t thread_, void **result) {
    Thread *thread = (Thread *)thread_;
    while (atomic_load(&thread->busy)) wait_while(&thread->busy, 1);
    return 0;
}

// ---- locks: 0 free, 1 taken, 2 taken and perhaps waited for ----

int pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attr) {
    atomic_store((_Atomic int *)lock, 0);
    return 0;
}

int pthread_mutex_destroy(pthread_mutex_t *lock) { return 0; }

int pthread_mutex_lock(pthread_mutex_t *lock) {
    _Atomic int *state = (_Atomic int *)lock;
    int nobody = 0;
    if (atomic_compare_exchange_strong(state, &nobody, 1)) return 0;
    while (atomic_exchange(state, 2)) wait_while(state, 2);
    return 0;
}

int pthread_mutex_unlock(pthread_mutex_t *lock) {
    if (atomic_exchange((_Atomic int *)lock, 0) == 2) wake((_Atomic int *)lock, 1);
    return 0;
}

// ---- conditions: how often they were signalled ----

int pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr) {
    atomic_store((_Atomic int *)cond, 0);
    return 0;
}

int pthread_cond_destroy(pthread_cond_t *cond) { return 0; }

int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock) {
    _Atomic int *signals = (_Atomic int *)cond;
    int before = atomic_load(signals);
    pthread_mutex_unlock(lock);
    wait_while(signals, before);
    return pthread_mutex_lock(lock);
}

int pthread_cond_signal(pthread_cond_t *cond) {
    atomic_fetch_add((_Atomic int *)cond, 1);
    wake((_Atomic int *)cond, 1);
    return 0;
}

int pthread_cond_broadcast(pthread_cond_t *cond) {
    atomic_fetch_add((_Atomic int *)cond, 1);
    wake((_Atomic int *)cond, UINT32_MAX);
    return 0;
}
