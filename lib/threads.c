// lib/threads.c: clock, processor count, floating-point environment, thread pool.
#include "threads.h"

#include <errno.h>
#include <fenv.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t tj_now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint32_t tj_thread_id(void) {
    static _Thread_local uint32_t id, process; // a child of fork has another
    if (!id || process != tj_process()) {
        id = (uint32_t)syscall(SYS_gettid);
        process = tj_process();
    }
    return id;
}

uint32_t tj_process_id(void) { return (uint32_t)getpid(); }

void tj_thread_name(char *buf, size_t cap) {
    char name[16] = "";
    (void)pthread_getname_np(pthread_self(), name, sizeof name);
    (void)snprintf(buf, cap, "%s", name);
}

// ---- threads --------------------------------------------------------------------------------

bool (*tj_thread_hook)(void);

int tj_thread_start(pthread_t *t, size_t stack, bool faults, void *(*f)(void *), void *arg) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t block, old;
    pthread_attr_t attr;
    int saved = errno, err = tj_thread_hook && !tj_thread_hook() ? EAGAIN : pthread_attr_init(&attr);
    if (!err) {
        (void)sigfillset(&block);
        for (size_t i = 0; faults && i < TJ_COUNT(own); i++) {
            (void)sigdelset(&block, own[i]);
        }
        err = stack ? pthread_attr_setstacksize(&attr, stack) : 0;
        err = err ? err : pthread_sigmask(SIG_SETMASK, &block, &old);
        if (!err) {
            err = pthread_create(t, &attr, f, arg);
            (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
        }
        (void)pthread_attr_destroy(&attr);
    }
    errno = saved;
    return err;
}

size_t tj_stack_left(void) {
    pthread_attr_t attr;
    void *base = NULL;
    size_t bytes = 0;
    int saved = errno;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    if (!pthread_getattr_np(pthread_self(), &attr)) {
        if (pthread_attr_getstack(&attr, &base, &bytes)) {
            bytes = 0;
        }
        (void)pthread_attr_destroy(&attr);
    }
    errno = saved;
    uintptr_t low = (uintptr_t)base; // stacks grow down; a stack of the host's own making isn't this one
    return bytes && here > low && here - low <= bytes ? here - low : 0;
}

// ---- processor count ------------------------------------------------------------------------

static int affinity_count(void) {
    // The kernel refuses a set smaller than its own, so grow until it fits.
    for (int bits = CPU_SETSIZE; bits <= 1 << 18; bits *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)bits);
        if (!set) {
            break;
        }
        size_t bytes = CPU_ALLOC_SIZE((size_t)bits);
        int n = sched_getaffinity(0, bytes, set) ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (n > 0) {
            return n;
        }
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < INT_MAX ? (int)n : 1;
}

static bool read_text(const char *path, char *buf, size_t cap) {
    FILE *f = fopen(path, "re");
    if (!f) {
        return false;
    }
    size_t n = fread(buf, 1, cap - 1, f);
    buf[n] = '\0';
    (void)fclose(f);
    return n > 0;
}

// Processors a group's quota is worth, rounded up; INT_MAX when it has none. v2: cpu.max; v1: two files.
static int group_quota(const char *dir, bool v2) {
    char path[PATH_MAX + 32], text[64];
    long long quota = -1, period = 0;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!read_text(path, text, sizeof text)) {
        return INT_MAX;
    }
    if (v2) {
        if (sscanf(text, "%lld %lld", &quota, &period) != 2) {
            return INT_MAX; // "max 100000"
        }
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (sscanf(text, "%lld", &quota) != 1 || !read_text(path, text, sizeof text) ||
            sscanf(text, "%lld", &period) != 1) {
            return INT_MAX;
        }
    }
    if (quota <= 0 || period <= 0) {
        return INT_MAX;
    }
    long long n = quota / period + (quota % period != 0);
    return n < 1 ? 1 : n > INT_MAX ? INT_MAX : (int)n;
}

// The least quota of a group and the groups above it. In a container the path may be the host's while the mount is
// the container's: the walk up ends at the mount, which then is the container's own group.
static int tree_quota(const char *root, const char *path, bool v2) {
    char dir[PATH_MAX];
    size_t base = (size_t)snprintf(dir, sizeof dir, "%s%s", root, strcmp(path, "/") ? path : "");
    if (base >= sizeof dir) {
        return INT_MAX;
    }
    int least = INT_MAX;
    for (base = strlen(root);;) {
        int n = group_quota(dir, v2);
        least = n < least ? n : least;
        char *slash = strrchr(dir + base, '/');
        if (!slash) {
            return least;
        }
        *slash = '\0';
    }
}

int tj_cgroup_cpus(const char *self, const char *mount) {
    FILE *f = fopen(self, "re");
    if (!f) {
        return INT_MAX;
    }
    int least = INT_MAX;
    char text[PATH_MAX + 128];
    while (fgets(text, sizeof text, f)) { // "0::/a/b", or "4:cpu,cpuacct:/a/b"
        text[strcspn(text, "\n")] = '\0';
        char *names = strchr(text, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) {
            continue;
        }
        *names++ = '\0';
        *path++ = '\0';
        char root[512];
        bool v2 = !*names, cpu = false;
        for (const char *w = names; *w && !cpu; w += strcspn(w, ","), w += *w == ',') {
            cpu = strcspn(w, ",") == 3 && !memcmp(w, "cpu", 3);
        }
        if (!v2 && !cpu) {
            continue;
        }
        snprintf(root, sizeof root, v2 ? "%s" : "%s/%s", mount, names);
        int n = tree_quota(root, path, v2);
        least = n < least ? n : least;
    }
    (void)fclose(f);
    return least;
}

int tj_cpu_count(void) {
    int saved = errno;
    int n = affinity_count();
    if (n > 1) {
        int q = tj_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
        n = q < n ? q : n;
    }
    errno = saved;
    return n;
}

// ---- floating-point environment -------------------------------------------------------------

#if defined(__x86_64__)
enum { FP_DEFAULT = 0x1F80, FP_STATUS = 0x3F }; // all exceptions masked, nearest, no FTZ or DAZ
static uint64_t fp_get(void) { return __builtin_ia32_stmxcsr(); }
static void fp_set(uint64_t v) { __builtin_ia32_ldmxcsr((unsigned)v); }
#elif defined(__aarch64__)
enum { FP_DEFAULT = 0, FP_STATUS = 0 };
static uint64_t fp_get(void) {
    uint64_t v;
    __asm__ volatile("mrs %0, fpcr" : "=r"(v));
    return v;
}
static void fp_set(uint64_t v) { __asm__ volatile("msr fpcr, %0" : : "r"(v)); }
#else
enum { FP_DEFAULT = FE_TONEAREST, FP_STATUS = 0 };
static uint64_t fp_get(void) { return (uint64_t)fegetround(); }
static void fp_set(uint64_t v) { (void)fesetround((int)v); }
#endif

void tj_fpenv_enter(tj_fpenv *e) {
    e->saved = fp_get();
    e->changed = (e->saved & ~(uint64_t)FP_STATUS) != FP_DEFAULT;
    if (e->changed) {
        fp_set(FP_DEFAULT);
    }
}

// Brings back the caller's exception flags too, where they are in the same word.
void tj_fpenv_leave(const tj_fpenv *e) {
    if (fp_get() != e->saved) {
        fp_set(e->saved);
    }
}

// Volatile: the compiler knows nothing of the environment and would move the operation out of it.
double tj_quotient(double a, double b) {
    volatile double x = a, y = b, r;
    tj_fpenv env;
    tj_fpenv_enter(&env);
    r = x / y;
    tj_fpenv_leave(&env);
    return r;
}

double tj_inverse_root(double a) {
    volatile double x = a, r;
    tj_fpenv env;
    tj_fpenv_enter(&env);
    r = 1 / sqrt(x);
    tj_fpenv_leave(&env);
    return r;
}

// ---- thread pool ----------------------------------------------------------------------------
//
// One job at a time, owned by the thread that holds `busy`. `ticket` holds the job's task count in its upper half and
// the next task in its lower half, so one fetch_add both takes a task and tells whether there was one:
//
//     owner                                      worker
//     body, arg, left = n                        t = ticket++            (acquires the owner's store)
//     ticket = n << 32          (release)        t.next < t.n: run body(arg, t.next)
//     epoch++, wake sleepers                     ...
//     take tasks as workers do                   left -= tasks run       (release)
//     wait until left is 0      (acquire)
//
// A taken task keeps its job open until `left` says so; hence body and arg are read only after a task was taken, and
// a worker that comes late either finds no task or has one of the job that is current now. Nothing waits for workers
// that sleep: what they don't take, the owner runs.

enum {
    SPIN_IDLE_NS = 20000,  // a worker after work: the next phase of a run comes within this or not at all
    SPIN_DONE_NS = 100000, // an owner whose last tasks run elsewhere; waking it would cost as much
    JOB_MAX = 1 << 30,     // tasks a ticket can count
    WORKERS_MAX = 1023,
    AGAIN_FIRST = 8, // jobs after which workers that could not be started are tried again
    AGAIN_MOST = 1 << 14
};

struct tj_pool {
    // Written once a job by the owner, read by spinning workers.
    _Alignas(64) _Atomic uint64_t ticket;
    _Atomic uint32_t epoch; // futex: workers sleep on it; a job or the end changes it
    _Atomic uint32_t sleepers;
    tj_task body;
    void *arg;
    // Written by workers as they finish.
    _Alignas(64) _Atomic uint32_t left; // futex: tasks not yet done
    _Atomic uint32_t owner_sleeps;
    // Cold.
    _Alignas(64) _Atomic uint32_t busy; // a thread owns the pool
    _Atomic int pid;                    // process the workers belong to; 0 while a child takes over
    _Atomic uint32_t *same_process;     // in a page of its own that the kernel clears in a child; NULL: not to be had
    _Atomic bool stop;
    bool started;
    int threads, workers;     // wanted in all; running besides the owner
    _Atomic int missing;      // workers that could not be started
    uint32_t again, patience; // jobs until that is tried once more, and from one time to the next
    uint64_t spin_idle, spin_done;
    void (*host_for)(void *user, size_t n, tj_task body, void *arg);
    void *user;
    pthread_t *handles;
    tj_mutex jobs_lock;
    struct host_job *jobs; // not in use
};

struct worker_start {
    struct tj_pool *pool;
    int number;
    uint32_t epoch;
};

// This thread is running a task of some pool.
static _Thread_local bool in_task;

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

// Spins until *word differs from value; false when ns went by first.
static bool spin_while(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
    uint64_t end = 0;
    for (unsigned i = 0;; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) {
            return true;
        }
        if (!ns) {
            return false;
        }
        if (i % 32 == 31) {
            uint64_t now = tj_now_ns();
            if (!end) {
                end = now + ns;
            } else if (now >= end) {
                return false;
            }
        }
        relax();
    }
}

static void take_tasks(struct tj_pool *p) {
    uint32_t done = 0;
    for (;;) {
        uint64_t t = atomic_fetch_add_explicit(&p->ticket, 1, memory_order_acq_rel);
        if ((uint32_t)t >= t >> 32) {
            break;
        }
        p->body(p->arg, (uint32_t)t);
        done++;
    }
    // Sequentially consistent with the owner's flag: either it sees 0 left, or this sees it asleep.
    if (done && atomic_fetch_sub(&p->left, done) == done && atomic_load(&p->owner_sleeps)) {
        futex_wake(&p->left, 1);
    }
}

static void *worker(void *arg) {
    struct worker_start s = *(struct worker_start *)arg;
    tj_free(arg);
    struct tj_pool *p = s.pool;
    char name[16];
    snprintf(name, sizeof name, "tracejit-%d", s.number);
    (void)pthread_setname_np(pthread_self(), name);
    (void)fesetenv(FE_DFL_ENV); // a thread starts with its creator's
    in_task = true;
    for (uint32_t seen = s.epoch;;) {
        if (!spin_while(&p->epoch, seen, p->spin_idle)) {
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load(&p->epoch) == seen) {
                futex_wait(&p->epoch, seen);
            }
            atomic_fetch_sub(&p->sleepers, 1);
        }
        seen = atomic_load(&p->epoch);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) {
            return NULL;
        }
        take_tasks(p);
    }
}

// Called by the owner. Threads that can't be started are tried again after some jobs, more of them each time: fewer
// workers are right, only slower.
static void start_workers(struct tj_pool *p) {
    p->started = true;
    if (!p->handles) {
        p->handles = tj_calloc((size_t)p->threads - 1, sizeof *p->handles);
    }
    if (!p->handles) {
        return;
    }
    while (p->workers < p->threads - 1) {
        struct worker_start *s = tj_malloc(sizeof *s);
        if (!s) {
            break;
        }
        *s = (struct worker_start){p, p->workers + 1, atomic_load(&p->epoch)};
        // Signals of the host are for its own threads; a fault still reaches its handler on the thread it happens on.
        if (tj_thread_start(&p->handles[p->workers], 0, true, worker, s)) {
            tj_free(s);
            break;
        }
        p->workers++;
    }
    int missing = p->threads - 1 - p->workers;
    atomic_store_explicit(&p->missing, missing, memory_order_relaxed);
    p->patience = !missing ? 0 : !p->patience ? AGAIN_FIRST : p->patience < AGAIN_MOST ? 2 * p->patience : AGAIN_MOST;
    p->again = p->patience;
}

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

// getpid is a system call and costs as much as a short job; the cleared page tells the same for the price of a load.
static void watch_fork(struct tj_pool *p) {
    void *page = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return;
    }
    if (madvise(page, page_bytes(), MADV_WIPEONFORK)) {
        (void)munmap(page, page_bytes());
        return;
    }
    p->same_process = page;
    atomic_store(p->same_process, 1);
}

static int process_of(const struct tj_pool *p, int pid) {
    return p->same_process && atomic_load_explicit(p->same_process, memory_order_relaxed) ? pid : (int)getpid();
}

struct tj_pool *tj_pool_create(int threads, void (*host_for)(void *, size_t, tj_task, void *), void *user) {
    struct tj_pool *p = tj_aligned_alloc(sizeof *p);
    if (!p) {
        return NULL;
    }
    memset(p, 0, sizeof *p);
    int cpus = tj_cpu_count();
    p->threads = threads > 0 ? threads : cpus;
    if (p->threads > WORKERS_MAX + 1) {
        p->threads = WORKERS_MAX + 1;
    }
    // With more threads than processors a spinning thread keeps a working one from its processor.
    bool spin = cpus > 1 && p->threads <= cpus;
    p->spin_idle = spin ? SPIN_IDLE_NS : 0;
    p->spin_done = spin ? SPIN_DONE_NS : 0;
    p->host_for = host_for;
    p->user = user;
    atomic_init(&p->pid, (int)getpid());
    if (p->threads > 1 && !host_for) {
        int saved = errno;
        watch_fork(p);
        errno = saved;
    }
    return p;
}

int tj_pool_threads(const struct tj_pool *p) { return p->threads; }
int tj_pool_missing(const struct tj_pool *p) { return atomic_load_explicit(&p->missing, memory_order_relaxed); }

static void run_inline(size_t n, tj_task body, void *arg) {
    bool outer = in_task;
    in_task = true;
    for (size_t i = 0; i < n; i++) {
        body(arg, i);
    }
    in_task = outer;
}

// Tasks on threads of the host: calls inside them run inline, and the host's floating-point settings don't count. Each
// task is claimed once: one that comes again is ignored, and the caller runs those that never came. Jobs are kept until
// the pool goes, so that a task that comes too late finds one.
struct host_job {
    struct host_job *next;
    tj_task body;
    void *arg;
    size_t cap;
    _Atomic size_t n, done, repeated;
    _Atomic uint64_t claimed[]; // bit a task
};

static _Thread_local struct { size_t n, lost, repeated; } host_fault;

static bool claim(struct host_job *j, size_t i) {
    uint64_t bit = (uint64_t)1 << i % 64;
    return !(atomic_fetch_or(&j->claimed[i / 64], bit) & bit);
}

static void run_host_task(void *arg, size_t i) {
    struct host_job *j = arg;
    if (i >= atomic_load(&j->n) || !claim(j, i)) {
        (void)atomic_fetch_add(&j->repeated, 1);
        return;
    }
    bool outer = in_task;
    tj_fpenv fp;
    in_task = true;
    tj_fpenv_enter(&fp);
    j->body(j->arg, i);
    tj_fpenv_leave(&fp);
    in_task = outer;
    (void)atomic_fetch_add(&j->done, 1);
}

static struct host_job *host_job_take(struct tj_pool *p, size_t n) {
    tj_lock(&p->jobs_lock);
    struct host_job **at = &p->jobs, *j;
    while ((j = *at) && j->cap < n) {
        at = &j->next;
    }
    if (j) {
        *at = j->next;
    }
    tj_unlock(&p->jobs_lock);
    if (j) {
        return j;
    }
    size_t words = n < 256 ? 4 : (n + 63) / 64;
    j = tj_calloc(1, sizeof *j + words * sizeof j->claimed[0]);
    if (j) {
        j->cap = words * 64;
    }
    return j;
}

static void run_on_host(struct tj_pool *p, size_t n, tj_task body, void *arg) {
    struct host_job *j = host_job_take(p, n);
    if (!j) {
        run_inline(n, body, arg);
        return;
    }
    j->body = body;
    j->arg = arg;
    atomic_store(&j->done, 0);
    atomic_store(&j->repeated, 0);
    for (size_t i = 0; i < (n + 63) / 64; i++) {
        atomic_store(&j->claimed[i], 0);
    }
    atomic_store(&j->n, n);
    p->host_for(p->user, n, run_host_task, j);
    size_t lost = 0;
    if (TJ_UNLIKELY(atomic_load(&j->done) != n)) {
        for (size_t i = 0; i < n; i++) {
            if (claim(j, i)) {
                body(arg, i);
                lost++;
            }
        }
        while (atomic_load(&j->done) + lost != n) { // it returned while others still ran
            (void)sched_yield();
        }
    }
    size_t repeated = atomic_load(&j->repeated);
    if (TJ_UNLIKELY(lost || repeated)) {
        host_fault.n = n;
        host_fault.lost = lost;
        host_fault.repeated = repeated;
    }
    atomic_store(&j->n, 0);
    tj_lock(&p->jobs_lock);
    j->next = p->jobs;
    p->jobs = j;
    tj_unlock(&p->jobs_lock);
}

bool tj_pool_fault(char *text, size_t cap) {
    if (TJ_LIKELY(!host_fault.n)) {
        return false;
    }
    (void)snprintf(text, cap,
                   "the host's parallel_for lost %zu and repeated %zu of %zu tasks; each i < n has to be run once",
                   host_fault.lost, host_fault.repeated, host_fault.n);
    host_fault.n = 0;
    return true;
}

// True when the calling thread now owns the pool. In a child of fork the first caller takes the pool over from a
// process whose threads, the former owner included, aren't here.
static bool acquire(struct tj_pool *p) {
    int pid = atomic_load_explicit(&p->pid, memory_order_acquire), me = process_of(p, pid);
    if (TJ_UNLIKELY(pid != me)) {
        if (!pid || !atomic_compare_exchange_strong(&p->pid, &pid, 0)) {
            return false;
        }
        p->workers = 0;
        p->started = false;
        p->again = p->patience = 0;
        atomic_store(&p->sleepers, 0);
        atomic_store(&p->owner_sleeps, 0);
        atomic_store(&p->busy, 1);
        atomic_store(&p->pid, me);
        if (p->same_process) {
            atomic_store(p->same_process, 1);
        }
        return true;
    }
    return !atomic_load_explicit(&p->busy, memory_order_relaxed) &&
           !atomic_exchange_explicit(&p->busy, 1, memory_order_acquire);
}

static void run_job(struct tj_pool *p, uint32_t n, tj_task body, void *arg) {
    p->body = body;
    p->arg = arg;
    atomic_store_explicit(&p->left, n, memory_order_relaxed);
    atomic_store_explicit(&p->ticket, (uint64_t)n << 32, memory_order_release);
    atomic_fetch_add(&p->epoch, 1);
    uint32_t sleepers = atomic_load(&p->sleepers);
    if (sleepers) {
        futex_wake(&p->epoch, (int)(sleepers < n - 1 ? sleepers : n - 1));
    }
    take_tasks(p);
    uint64_t patience = p->spin_done;
    for (uint32_t left; (left = atomic_load_explicit(&p->left, memory_order_acquire));) {
        if (spin_while(&p->left, left, patience)) {
            continue;
        }
        patience = 0;
        atomic_store(&p->owner_sleeps, 1);
        left = atomic_load(&p->left);
        if (left) {
            futex_wait(&p->left, left);
        }
        atomic_store(&p->owner_sleeps, 0);
    }
}

void tj_pool_run(struct tj_pool *p, size_t n, tj_task body, void *arg) {
    if (n < 2 || n > JOB_MAX || p->threads < 2 || in_task) {
        run_inline(n, body, arg);
        return;
    }
    if (p->host_for) {
        run_on_host(p, n, body, arg);
        return;
    }
    if (!acquire(p)) {
        run_inline(n, body, arg);
        return;
    }
    int saved = errno;
    if (!p->started || TJ_UNLIKELY(p->again && !--p->again)) {
        start_workers(p);
    }
    if (p->workers) {
        in_task = true;
        run_job(p, (uint32_t)n, body, arg);
        in_task = false;
    } else {
        run_inline(n, body, arg);
    }
    atomic_store_explicit(&p->busy, 0, memory_order_release);
    errno = saved;
}

void tj_pool_destroy(struct tj_pool *p) {
    if (!p) {
        return;
    }
    if (p->workers && atomic_load(&p->pid) == (int)getpid()) { // a child has none to join
        atomic_store(&p->stop, true);
        atomic_fetch_add(&p->epoch, 1);
        futex_wake(&p->epoch, INT_MAX);
        for (int i = 0; i < p->workers; i++) {
            (void)pthread_join(p->handles[i], NULL);
        }
    }
    if (p->same_process) {
        (void)munmap(p->same_process, page_bytes());
    }
    while (p->jobs) {
        struct host_job *j = p->jobs;
        p->jobs = j->next;
        tj_free(j);
    }
    tj_free(p->handles);
    tj_aligned_free(p);
}
