// threads.c: a pool of threads that share the items of a loop.
#ifndef THREADS_H
#define THREADS_H

#include "system/system.h"

typedef struct Pool Pool;

// A pool of n threads, the caller's one included; 0: as many as the cores that this process may
// use. NULL: threads could not be made.
Pool *pool_new(int n_threads, Error *err);
void pool_free(Pool *pool);
int pool_threads(const Pool *pool);
// Calls work(arg, item, thread) for every item in 0..n-1, once each, in any order, on any thread
// (0..n_threads-1), and returns when all are done. Not to be called from inside work.
typedef void WorkFn(const void *arg, int item, int thread);
void parallel_for(Pool *pool, int n, WorkFn *work, const void *arg);

#endif
