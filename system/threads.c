// parallel_for on a pool of threads. Each thread has a run of neighbouring items, so that it reads
// memory in one long stream; who is done takes single items from the ends of others' runs. So a
// thread that loses its core delays only the item that it has begun. If other programs make sharing
// slower than working alone, the caller works alone for a while.
#include "system/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#ifdef _OPENMP
#include <omp.h>

struct Pool {
    int n_threads;
};

Pool *pool_new(int n_threads, Error *err) {
    Pool *pool = malloc(sizeof *pool);
    if (!n_threads) n_threads = usable_cores();
    if (pool) pool->n_threads = n_threads;
    else fail(err, "no memory for a pool of threads");
    return pool;
}

void pool_free(Pool *pool) { free(pool); }

void parallel_for(Pool *pool, int n, WorkFn *work, const void *arg) {
#pragma omp parallel for schedule(guided) num_threads(pool->n_threads) if (n > 1)
    for (int i = 0; i < n; i++) work(arg, i, omp_get_thread_num());
}

#else

enum { SPINS = 10000, YIELD_EVERY = 100, ALONE_MIN = 4, ALONE_MAX = 1024 };

typedef struct {
    Pool *pool;
    int index;
    pthread_t thread;
    _Atomic uint64_t left;  // of its run: the next item, and above 32 bits the end
    char apart[128];        // from the next one's: processors fetch lines in pairs
} Worker;

struct Pool {
    int n_threads;
    WorkFn *work;
    const void *arg;
    int n;                  // items of this loop
    _Atomic int done;       // of them
    _Atomic uint64_t loop;  // its number
    _Atomic int parked;
    int alone;            // loops that the caller still runs alone
    int patience;         // how many it will be the next time
    _Atomic bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    Worker workers[];  // [n_threads]; the first has the caller's run, and no thread
};

// One of up to SPINS pauses. Together they last a fraction of a millisecond, longer than an item
// takes, so that threads in step never park. Now and then it yields the core, which the thread that
// it waits for may need.
static inline void relax(int spin) {
    if (spin % YIELD_EVERY == YIELD_EVERY - 1) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint64_t items(int next, int end) { return (uint64_t)end << 32 | (uint64_t)next; }

// Claims an item of a run: the next one, for its own thread, or the last. -1: none is left.
static int claim(_Atomic uint64_t *left, bool own) {
    uint64_t run = atomic_load(left);
    for (;;) {
        int next = (int)(run & UINT32_MAX), end = (int)(run >> 32);
        if (next == end) return -1;
        uint64_t others = own ? items(next + 1, end) : items(next, end - 1);
        if (atomic_compare_exchange_weak(left, &run, others)) return own ? next : end - 1;
    }
}

// Works on a thread's own run, then on others': the caller looks at all of them, since their
// threads may sleep, the others at a few. The thread that finishes the last item wakes the caller.
static void work_on(Pool *pool, int thread) {
    int worked = 0;
    for (int i = 0; i < pool->n_threads; i += thread ? i + 1 : 1) {
        Worker *of = &pool->workers[(thread + i) % pool->n_threads];
        for (int item; (item = claim(&of->left, i == 0)) >= 0; worked++)
            pool->work(pool->arg, item, thread);
    }
    if (!worked) return;
    int n = pool->n;  // of this loop, which goes on until all that was worked on is counted
    if (atomic_fetch_add(&pool->done, worked) + worked == n) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->finished);
        pthread_mutex_unlock(&pool->lock);
    }
}

static bool news(Pool *pool, uint64_t loop) {
    return atomic_load(&pool->loop) != loop || atomic_load(&pool->stop);
}

static void *worker_main(void *arg) {
    Worker *me = arg;
    Pool *pool = me->pool;
    uint64_t loop = 0;
    while (!atomic_load(&pool->stop)) {
        for (int i = 0; i < SPINS && !news(pool, loop); i++) relax(i);
        if (!news(pool, loop)) {
            pthread_mutex_lock(&pool->lock);
            atomic_fetch_add(&pool->parked, 1);
            while (!news(pool, loop)) pthread_cond_wait(&pool->wake, &pool->lock);
            atomic_fetch_sub(&pool->parked, 1);
            pthread_mutex_unlock(&pool->lock);
        }
        loop = atomic_load(&pool->loop);
        work_on(pool, me->index);
    }
    return NULL;
}

static void wake_all(Pool *pool) {
    if (!atomic_load(&pool->parked)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

Pool *pool_new(int n_threads, Error *err) {
    if (!n_threads) n_threads = usable_cores();
    Pool *pool = calloc(1, sizeof *pool + (size_t)n_threads * sizeof *pool->workers);
    if (!pool) {
        fail(err, "no memory for a pool of %d threads", n_threads);
        return NULL;
    }
    pool->patience = ALONE_MIN;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->finished, NULL);
    for (pool->n_threads = 1; pool->n_threads < n_threads; pool->n_threads++) {
        Worker *worker = &pool->workers[pool->n_threads];
        *worker = (Worker){.pool = pool, .index = pool->n_threads};
        if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) {
            fail(err, "the system allows no more than %d of %d threads", pool->n_threads,
                 n_threads);
            pool_free(pool);
            return NULL;
        }
    }
    return pool;
}

void pool_free(Pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 1; i < pool->n_threads; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static void wait_for_all(Pool *pool) {
    for (int i = 0; i < SPINS && atomic_load(&pool->done) < pool->n; i++) relax(i);
    if (atomic_load(&pool->done) == pool->n) return;
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->done) < pool->n) pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

// The caller did at least one item. If it then waited much longer than it worked, another thread
// has lost its core. The caller then works alone: for a few loops, and for twice as many each time
// that this happens again.
static void judge(Pool *pool, double worked, double waited) {
    if (waited < 2 * worked + 5e-4) {
        if (pool->patience > ALONE_MIN) pool->patience /= 2;
        return;
    }
    pool->alone = pool->patience;
    if (pool->patience < ALONE_MAX) pool->patience *= 2;
}

void parallel_for(Pool *pool, int n, WorkFn *work, const void *arg) {
    if (n <= 1 || pool->n_threads == 1 || pool->alone > 0) {
        for (int i = 0; i < n; i++) work(arg, i, 0);
        pool->alone -= pool->alone > 0;
        return;
    }
    pool->work = work;
    pool->arg = arg;
    pool->n = n;
    atomic_store(&pool->done, 0);
    // Rounded up, so that the caller has an item.
    for (int i = 0, next = 0, end; i < pool->n_threads; i++, next = end) {
        end = (int)(((int64_t)n * (i + 1) + pool->n_threads - 1) / pool->n_threads);
        atomic_store_explicit(&pool->workers[i].left, items(next, end), memory_order_release);
    }
    double begin = seconds();
    atomic_fetch_add(&pool->loop, 1);
    wake_all(pool);
    work_on(pool, 0);
    double middle = seconds();
    wait_for_all(pool);
    judge(pool, middle - begin, seconds() - middle);
}

#endif

int pool_threads(const Pool *pool) { return pool->n_threads; }
