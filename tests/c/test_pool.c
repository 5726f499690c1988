// The pool of threads: every item of a loop is worked on once, whatever the numbers of threads and
// of items; and a thread that is held up delays only its own item.
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "system/threads.h"

enum { MAX_THREADS = 9, MAX_ITEMS = 300, LOOPS = 2000, LATE = 2, LONGEST = 10 };

typedef struct {
    int n, n_threads;
    _Atomic int *times;  // [n]: of each item
    _Atomic int done, wrong;
} Loop;

static void count(const void *arg, int item, int thread) {
    Loop *loop = (Loop *)arg;
    if (item < 0 || item >= loop->n || thread < 0 || thread >= loop->n_threads) loop->wrong++;
    else loop->times[item]++;
    loop->done++;
}

#ifndef _OPENMP
// An item of the late thread takes as long as all others.
static void count_late(const void *arg, int item, int thread) {
    static const struct timespec moment = {0, 100000};
    Loop *loop = (Loop *)arg;
    double begin = seconds();
    do nanosleep(&moment, NULL);
    while (thread == LATE && loop->done < loop->n - 1 && seconds() - begin < LONGEST);
    count(arg, item, thread);
}
#endif

static int wrong_items(Loop *loop) {
    int wrong = loop->wrong;
    for (int i = 0; i < loop->n; i++) wrong += loop->times[i] != 1;
    return wrong;
}

int main(void) {
    static _Atomic int times[MAX_ITEMS];
    int failed = 0, loops = 0;
    Error err;
    for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
        Pool *pool = pool_new(n_threads, &err);
        if (!pool) return printf("not ok: %s\n", err.text), 1;
        for (int i = 0; i < LOOPS; i++, loops++) {
            Loop loop = {i * i * 7 % MAX_ITEMS, n_threads, times, 0, 0};
            memset(times, 0, sizeof times);
            parallel_for(pool, loop.n, count, &loop);
            failed += wrong_items(&loop) > 0;
        }
        pool_free(pool);
    }
    printf("%s %d loops of up to %d items on 1 to %d threads: %d wrong\n",
           failed ? "not ok:" : "ok", loops, MAX_ITEMS, MAX_THREADS, failed);
#ifndef _OPENMP
    Pool *pool = pool_new(4, &err);
    if (!pool) return printf("not ok: %s\n", err.text), 1;
    Loop loop = {64, 4, times, 0, 0};
    memset(times, 0, sizeof times);
    double begin = seconds();
    parallel_for(pool, loop.n, count_late, &loop);
    int late = seconds() - begin > LONGEST || wrong_items(&loop) > 0;
    printf("%s a thread that is held up delays its item alone\n", late ? "not ok:" : "ok");
    failed += late;
    pool_free(pool);
#endif
    return failed > 0;
}
