// lib/lock.c: mutexes and conditions that outlive the threads that fork leaves behind.
//
// A child of fork has one thread. A mutex that another thread held at that moment would stay locked, and a condition
// that thread was to signal would never come. So a mutex remembers in which process it was locked; in another one it is
// free. Its owner may have been in the middle of a change: sections are short and store what links last, and where that
// is not enough, who takes the mutex over repairs what it guards.
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "threads.h"

#define PAGE 4096
#define SPINS 100
enum { LOCKED = 1, WAITERS = 2, PROCESS_SHIFT = 2 };

// The kernel clears this page in a child, so that knowing the process costs a load. Part of the library's own data:
// nothing to give back when it is unloaded.
static union {
    _Atomic uint32_t process;
    char page[PAGE];
} cleared __attribute__((aligned(PAGE)));
static _Atomic uint32_t processes;
static _Atomic int mode; // of telling processes apart
enum { MODE_UNKNOWN, MODE_PAGE, MODE_PID };

static uint32_t process_slow(void) {
    int m = atomic_load(&mode);
    if (m == MODE_UNKNOWN) {
        int saved = errno;
        bool page = sysconf(_SC_PAGESIZE) == PAGE && !madvise(&cleared, PAGE, MADV_WIPEONFORK);
        errno = saved;
        m = page ? MODE_PAGE : MODE_PID;
        atomic_store(&mode, m);
    }
    if (m == MODE_PID) {
        return (uint32_t)getpid();
    }
    uint32_t none = 0, mine = atomic_fetch_add(&processes, 1) + 1;
    return atomic_compare_exchange_strong(&cleared.process, &none, mine) ? mine : none;
}

uint32_t tj_process(void) {
    uint32_t p = atomic_load_explicit(&cleared.process, memory_order_relaxed);
    return TJ_LIKELY(p) ? p : process_slow();
}

static void wait_on(_Atomic uint32_t *word, uint32_t value, const struct timespec *t) {
    int saved = errno;
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, t, NULL, 0);
    errno = saved;
}

static void wake(_Atomic uint32_t *word, int n) {
    int saved = errno;
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
    errno = saved;
}

static bool lock_slow(tj_mutex *m, uint32_t mine) {
    for (unsigned spins = 0;;) {
        uint32_t w = atomic_load_explicit(&m->word, memory_order_relaxed);
        if (!w || w >> PROCESS_SHIFT != mine >> PROCESS_SHIFT) { // free, or its owner isn't here
            if (atomic_compare_exchange_weak_explicit(&m->word, &w, mine | (spins < SPINS ? 0 : WAITERS),
                                                      memory_order_acquire, memory_order_relaxed)) {
                return w != 0;
            }
            continue;
        }
        if (spins < SPINS) {
            spins++;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            continue;
        }
        if (!(w & WAITERS) && !atomic_compare_exchange_weak_explicit(&m->word, &w, w | WAITERS, memory_order_relaxed,
                                                                     memory_order_relaxed)) {
            continue;
        }
        wait_on(&m->word, w | WAITERS, NULL);
    }
}

bool tj_lock(tj_mutex *m) {
    uint32_t none = 0, mine = tj_process() << PROCESS_SHIFT | LOCKED;
    if (TJ_UNLIKELY(!atomic_compare_exchange_strong_explicit(&m->word, &none, mine, memory_order_acquire,
                                                             memory_order_relaxed))) {
        return lock_slow(m, mine);
    }
    return false;
}

void tj_unlock(tj_mutex *m) {
    if (TJ_UNLIKELY(atomic_exchange_explicit(&m->word, 0, memory_order_release) & WAITERS)) {
        wake(&m->word, 1);
    }
}

void tj_cond_wait(tj_cond *c, tj_mutex *m, uint64_t ns) {
    uint32_t seen = atomic_load(&c->changes);
    tj_unlock(m);
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    wait_on(&c->changes, seen, ns == TJ_FOREVER ? NULL : &t);
    (void)tj_lock(m);
}

void tj_cond_wake(tj_cond *c) {
    (void)atomic_fetch_add(&c->changes, 1);
    wake(&c->changes, INT_MAX);
}
