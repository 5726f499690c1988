// parallel_for on a pool of threads. Free threads claim items, several at first, single ones at the
// end. So a thread that loses its core delays only the items that it claimed. If other programs
// make sharing slower than working alone, the caller works alone for a while.
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

// A ticket holds the loop's number, its number of items and the next item. So a claim is one atomic
// exchange, and a late thread sees that its loop is over. A claim takes a CLAIMS-th of a thread's
// share of the items left.
enum {
    ITEM_BITS = 24, MAX_ITEMS = (1 << ITEM_BITS) - 1, CLAIMS = 4,
    SPINS = 10000, YIELD_EVERY = 100, ALONE_MIN = 4, ALONE_MAX = 1024
};
#define ITEMS(ticket) ((int)((ticket) >> ITEM_BITS & MAX_ITEMS))
#define ITEM(ticket) ((int)((ticket) & MAX_ITEMS))
#define LOOP(ticket) ((ticket) >> 2 * ITEM_BITS)

typedef struct {
    Pool *pool;
    int index;
    pthread_t thread;
} Worker;

struct Pool {
    int n_threads;
    WorkFn *work;
    const void *arg;
    int first;  // item 0 of this loop is item `first` of the caller's
    _Atomic uint64_t ticket;
    _Atomic int done;  // items of this loop
    _Atomic int parked;
    int alone;            // loops that the caller still runs alone
    int patience;         // how many it will be the next time
    _Atomic bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    Worker workers[];  // [n_threads]; the first is the caller's, and unused
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

// Works on the items that are left. The thread that finishes the last one wakes the caller.
static void work_on(Pool *pool, int thread) {
    for (;;) {
        uint64_t t = atomic_load(&pool->ticket);
        int n = ITEMS(t), first = ITEM(t), left = n - first;
        int share = left / (CLAIMS * pool->n_threads);
        int claimed = share > 1 ? share : 1;
        if (left == 0) return;
        if (!atomic_compare_exchange_weak(&pool->ticket, &t, t + (uint64_t)claimed)) continue;
        for (int i = first; i < first + claimed; i++)
            pool->work(pool->arg, pool->first + i, thread);
        if (atomic_fetch_add(&pool->done, claimed) + claimed == n) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static bool news(Pool *pool, uint64_t loop) {
    return LOOP(atomic_load(&pool->ticket)) != loop || atomic_load(&pool->stop);
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
        loop = LOOP(atomic_load(&pool->ticket));
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

static void wait_for_all(Pool *pool, int n) {
    for (int i = 0; i < SPINS && atomic_load(&pool->done) < n; i++) relax(i);
    if (atomic_load(&pool->done) == n) return;
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->done) < n) pthread_cond_wait(&pool->finished, &pool->lock);
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

// Runs a loop of at most MAX_ITEMS items.
static void run_loop(Pool *pool, int n) {
    atomic_store(&pool->done, 0);
    uint64_t loop = LOOP(atomic_load(&pool->ticket)) + 1;
    double begin = seconds();
    atomic_store(&pool->ticket, loop << 2 * ITEM_BITS | (uint64_t)n << ITEM_BITS);
    wake_all(pool);
    work_on(pool, 0);
    double middle = seconds();
    wait_for_all(pool, n);
    judge(pool, middle - begin, seconds() - middle);
}

void parallel_for(Pool *pool, int n, WorkFn *work, const void *arg) {
    if (n <= 1 || pool->n_threads == 1 || pool->alone > 0) {
        for (int i = 0; i < n; i++) work(arg, i, 0);
        pool->alone -= pool->alone > 0;
        return;
    }
    pool->work = work;
    pool->arg = arg;
    for (pool->first = 0; n - pool->first > MAX_ITEMS; pool->first += MAX_ITEMS)
        run_loop(pool, MAX_ITEMS);
    run_loop(pool, n - pool->first);
}

#endif

int pool_threads(const Pool *pool) { return pool->n_threads; }
