// lib/threads.h: mutexes, the clock, processor count, and the thread pool.
#ifndef TJ_LIB_THREADS_H
#define TJ_LIB_THREADS_H
#include "base.h"
#include <pthread.h>
#include <stdatomic.h>

// Mutexes and conditions that survive fork: what a thread of the parent holds is free in the child. Zeroed memory is an
// unlocked mutex, or a condition; neither has to be destroyed. errno is preserved.
typedef struct {
    _Atomic uint32_t word;
} tj_mutex;
typedef struct {
    _Atomic uint32_t changes;
} tj_cond;
#define TJ_FOREVER UINT64_MAX
// True: a thread that fork left behind held m, in the middle of a change perhaps.
bool tj_lock(tj_mutex *m);
void tj_unlock(tj_mutex *m);
// Gives m up while it waits, for at most ns nanoseconds; may return early. Wake: all that wait; the change they wait
// for was made with the mutex held.
void tj_cond_wait(tj_cond *c, tj_mutex *m, uint64_t ns);
void tj_cond_wake(tj_cond *c);
// Number of the process, another one in a child of fork; never 0. What a thread of another process was doing, nobody
// will finish.
uint32_t tj_process(void);
uint64_t tj_now_ns(void); // monotonic
// Starts a thread that leaves the host's signals to the host; faults: it still gets those that it raises itself. stack:
// bytes, 0: the default. 0, or an error number (EAGAIN: no more threads are allowed). errno is preserved.
int tj_thread_start(pthread_t *t, size_t stack, bool faults, void *(*f)(void *), void *arg);
// Bytes of its stack that the calling thread has left; 0: unknown.
size_t tj_stack_left(void);
// Test hook: when set, asked before every thread; false makes it fail with EAGAIN.
extern bool (*tj_thread_hook)(void);
// Number of the calling thread, as the system and its debuggers show it, and its name (16 bytes at most).
uint32_t tj_thread_id(void);
uint32_t tj_process_id(void); // of the process, as the system numbers it
void tj_thread_name(char *buf, size_t cap);
int tj_cpu_count(void); // affinity mask and cgroup quota respected, at least 1
// Processors the cgroup quotas leave, rounded up, INT_MAX without one. self: /proc/self/cgroup, mount: /sys/fs/cgroup.
int tj_cgroup_cpus(const char *self, const char *mount);

// A pool runs `n` independent tasks body(arg, i), each exactly once, on the caller and its workers, and
// returns when all are done. Tasks may run in any order or one at a time. Calls from several threads are
// legal: whoever finds the pool busy runs its tasks on its own thread. Calls from inside a task run inline.
// Workers start at the first parallel call, are named "tracejit-N", block every signal
// but the synchronous faults (a host's crash handler still sees those), take over the default floating-point
// environment, spin briefly after work (not when the machine has one processor), then sleep on a futex. After fork the
// child's pool has no workers and runs inline until new ones start.
struct tj_pool;
typedef void (*tj_task)(void *arg, size_t i);
// threads: total including the caller, 0 = tj_cpu_count(). With host_for, the pool only forwards to it.
struct tj_pool *tj_pool_create(int threads, void (*host_for)(void *user, size_t n, tj_task body, void *arg),
                               void *user);
void tj_pool_destroy(struct tj_pool *p); // joins; no call may be in flight
int tj_pool_threads(const struct tj_pool *p);
// Workers that could not be started, when it was tried last. It is tried again now and then.
int tj_pool_missing(const struct tj_pool *p);
void tj_pool_run(struct tj_pool *p, size_t n, tj_task body, void *arg);
// Whether host_for lost or repeated tasks of a job of the calling thread since the last question, as text. All tasks
// were run once nevertheless.
bool tj_pool_fault(char *text, size_t cap);

// Floating-point environment: kernels run with round-to-nearest, no FTZ/DAZ, exceptions masked.
// Enter saves the caller's control word, leave restores it. Cheap (two instructions) when already default.
typedef struct {
    uint64_t saved;
    bool changed;
} tj_fpenv;
void tj_fpenv_enter(tj_fpenv *e);
void tj_fpenv_leave(const tj_fpenv *e);
// a / b and 1 / sqrt(a) as the default environment rounds them, whatever the caller's is.
double tj_quotient(double a, double b);
double tj_inverse_root(double a);
#endif
