// tests/test_host.c: what a host is and does around the library: its floating-point modes, its stacks, files and limits
// it took away, forks in the middle of everything, callbacks that use the library, longjmp, threads that end or cancel.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../include/tracejit.h"
#include "../trace/context.h"
#include "tj_test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif
#ifdef __SANITIZE_THREAD__ // it doesn't follow a child that starts threads
#define FORKS false
#else
#define FORKS true
#endif

// ---- a program of several kinds of kernels, readbacks, single ops and a bound plan ----------------------------------

enum { ROWS = 24, WIDE = 40, BIG = 70000, RESULTS = 4 * ROWS * WIDE + 6 };
struct host {
    trace_context *ctx;
    trace_region *region;
    trace_tensor *x, *w, *big, *out;
    float memory[ROWS * WIDE]; // of out
};
static void quiet(void *user, const trace_event *e) { (void)user, (void)e; }

static bool host_open(struct host *h, trace_context_options o) {
    static float v[BIG];
    uint64_t seed = 7;
    o.size = sizeof o;
    if (!o.on_event)
        o.on_event = quiet;
    memset(h, 0, sizeof *h);
    if (trace_context_create(&o, &h->ctx) || trace_region_create(h->ctx, "program", NULL, &h->region))
        return false;
    if (!v[0])
        for (int i = 0; i < BIG; i++) // some too small to be normal numbers
            v[i] = tj_test_uniform(&seed) * (i % 7 == 3 ? 0x1p-130f : 1.0f);
    h->x = trace_from(h->ctx, TRACE_F32, v, TRACE_DIMS(ROWS, WIDE));
    h->w = trace_from(h->ctx, TRACE_F32, v + 11, TRACE_DIMS(WIDE, WIDE));
    h->big = trace_from(h->ctx, TRACE_F32, v, TRACE_DIMS(BIG));
    h->out = trace_wrap(h->ctx, TRACE_F32, h->memory, TRACE_DIMS(ROWS, WIDE));
    return h->x && h->w && h->big && h->out;
}
static void host_close(struct host *h) {
    trace_release(h->x), trace_release(h->w), trace_release(h->big), trace_release(h->out);
    trace_region_release(h->region);
    trace_context_release(h->ctx);
}

// Appends the content of t as floats, and releases it.
static enum trace_status take(trace_tensor *t, float *out, size_t *at) {
    size_t n = t ? (size_t)trace_numel(t) : 0;
    if (*at + n > RESULTS)
        return TRACE_ERR_BUDGET;
    enum trace_status s = trace_read(t, out + *at, n * sizeof *out);
    *at += n;
    trace_release(t);
    return s;
}

// One run with a break, then ops alone, then the same region bound and run. `now` is called after each call.
static enum trace_status host_run(struct host *h, float *out, void (*now)(const char *after)) {
    trace_tensor *o[3] = {NULL};
    double middle = 0;
    size_t at = 0;
    if (trace_begin(h->region, TRACE_ARGS(h->x, h->big))) {
        now("begin");
        trace_tensor *y = trace_gelu(trace_matmul(h->x, h->w), TRACE_GELU_TANH);
        now("matmul");
        o[0] = trace_softmax(trace_add(trace_mul_f(y, 0.1), h->x), -1);
        now("softmax");
        o[1] = trace_sum(trace_exp(h->big), NULL, 0, false);
        now("sum");
        enum trace_status s = trace_item_f64(trace_mean(h->big, NULL, 0, false), &middle);
        now("item");
        if (s) {
            trace_abandon(h->region);
            return s;
        }
        o[2] = trace_div_f(trace_add_f(h->x, middle), 3.0000001);
        now("div_f");
        o[2] = trace_scaled_dot_product_attention(o[2], h->x, h->x, TRACE_NONE, false, 0, false);
        now("attention");
    }
    enum trace_status s = trace_end(h->region, o, 3);
    now("end");
    for (int i = 0; i < 3; i++)
        s = s ? s : take(o[i], out, &at);
    now("read");
    memcpy(out + at, &middle, sizeof middle);
    at += sizeof middle / sizeof *out;
    trace_tensor *a = trace_mul_f(h->x, 1e-3), *b = trace_mul_f(a, 0.7);
    now("single op");
    trace_tensor *third = trace_full_f(h->ctx, TRACE_DIMS(3), 1.0 / 3, TRACE_F64), *c = trace_to(third, TRACE_F32);
    now("full");
    trace_release(third);
    s = s ? s : take(b, out, &at);
    s = s ? s : take(c, out, &at);
    trace_release(a);
    trace_bound *bound = NULL;
    if (!s && trace_begin(h->region, TRACE_ARGS(h->x)))
        trace_copy_(h->out, trace_mul_f(trace_softmax(trace_matmul(h->x, h->w), -1), 0x1p-127));
    if (!s)
        s = trace_end_bind(h->region, TRACE_BIND_OPTIONS(.use_pool = true), &bound);
    now("bind");
    if (s == TRACE_ERR_UNAVAILABLE) // no compiler
        return TRACE_OK;
    s = s ? s : trace_bound_run(bound);
    now("bound run");
    trace_bound_release(bound);
    if (!s)
        memcpy(out + at, h->memory, sizeof h->memory);
    return s;
}
static void nothing(const char *after) { (void)after; }

// Of the tier that runs now: attention rounds otherwise in the interpreter.
static const float *reference(void) {
    static float want[2][RESULTS];
    static bool made[2];
    const char *no = getenv("TRACEJIT_NO");
    int tier = no && !strcmp(no, "jit");
    if (!made[tier]) {
        struct host h;
        ck_assert(host_open(&h, (trace_context_options){.threads = 1}));
        TJ_ASSERT_OK(host_run(&h, want[tier], nothing));
        host_close(&h);
        made[tier] = true;
    }
    return want[tier];
}
// A whole life of a context; what went wrong, or NULL.
static const char *life(trace_context_options o) {
    struct host h;
    static _Thread_local char text[TJ_ERROR_MAX];
    float *out = calloc(RESULTS, sizeof *out);
    const char *bad = NULL;
    if (!out || !host_open(&h, o) || host_run(&h, out, nothing)) {
        (void)snprintf(text, sizeof text, "%s", trace_last_error(NULL));
        bad = text;
    } else if (memcmp(out, reference(), RESULTS * sizeof *out)) {
        bad = "other bits";
    }
    free(out);
    host_close(&h);
    return bad;
}

// ---- the caller's floating-point modes ------------------------------------------------------------------------------

#if defined(__x86_64__)
#define MODES 17
static unsigned mode_get(void) { return __builtin_ia32_stmxcsr() & 0xFFC0; }
static void mode_set(unsigned m) { __builtin_ia32_ldmxcsr(m); }
// Flush to zero and denormals are zero, each or both, in each rounding mode; the last one traps everything.
static unsigned mode_of(unsigned i) {
    return i == 16 ? 0 : 0x1F80 | (i & 1 ? 0x8000 : 0) | (i & 2 ? 0x40 : 0) | (i / 4) << 13;
}
#else
#define MODES 4
static const int roundings[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
static unsigned mode_get(void) { return (unsigned)fegetround(); }
static void mode_set(unsigned m) { (void)fesetround((int)m); }
static unsigned mode_of(unsigned i) { return (unsigned)roundings[i]; }
#endif
static unsigned mode_wanted, mode_default;
static void mode_kept(const char *after) {
    unsigned is = mode_get();
    if (is == mode_wanted)
        return;
    mode_set(mode_default);
    ck_abort_msg("after %s the mode is %x, not %x", after, is, mode_wanted);
}

START_TEST(floating_point_modes) { // _i: without and with the compiler
    (void)setenv("TRACEJIT_NO", _i ? "" : "jit", 1);
    const float *want = reference();
    float *out = calloc(RESULTS, sizeof *out);
    ck_assert_ptr_nonnull(out);
    mode_default = mode_get();
    for (unsigned i = 0; i < MODES; i += _i ? 1 : 4) {
        struct host h;
        memset(out, 0, RESULTS * sizeof *out);
        mode_wanted = mode_of(i);
        mode_set(mode_wanted);
        bool ok = host_open(&h, (trace_context_options){.threads = 2});
        mode_kept("creation");
        enum trace_status s = ok ? host_run(&h, out, mode_kept) : TRACE_ERR_STATE;
        host_close(&h);
        mode_kept("release");
        mode_set(mode_default);
        ck_assert_msg(s == TRACE_OK, "mode %u: %s", i, trace_last_error(NULL));
        for (size_t k = 0; k < RESULTS; k++)
            ck_assert_msg(!memcmp(&out[k], &want[k], sizeof *out), "mode %u: result %zu is %a, not %a", i, k,
                          (double)out[k], (double)want[k]);
    }
    free(out);
    (void)unsetenv("TRACEJIT_NO");
}
END_TEST

// ---- small stacks ---------------------------------------------------------------------------------------------------

#define STACK_USE ((size_t)48 << 10) // docs/embedding.md: what a caller's stack has to have left
static const char *stack_bad;
static void *on_small_stack(void *arg) {
    (void)arg;
    stack_bad = life((trace_context_options){.threads = 2});
    if (!stack_bad) { // errors and reports
        struct host h;
        static char text[20000];
        size_t need;
        bool ok = host_open(&h, (trace_context_options){.threads = 1}) && !trace_softmax(h.x, 7) &&
                  !trace_context_report(h.ctx, TRACE_FORMAT_JSON, text, sizeof text, &need) &&
                  !trace_context_report(h.ctx, TRACE_FORMAT_TEXT, text, sizeof text, &need);
        stack_bad = ok ? NULL : "report";
        host_close(&h);
    }
    return NULL;
}
static void on_stack(size_t bytes, void *(*f)(void *), void *arg, size_t *used) {
    pthread_attr_t attr;
    pthread_t t;
    unsigned char *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    ck_assert(stack != MAP_FAILED);
    memset(stack, 0xA5, bytes);
    ck_assert(!pthread_attr_init(&attr) && !pthread_attr_setstack(&attr, stack, bytes));
    ck_assert_int_eq(pthread_create(&t, &attr, f, arg), 0);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    pthread_attr_destroy(&attr);
    size_t clean = 0;
    while (clean < bytes && stack[clean] == 0xA5)
        clean++;
    *used = bytes - clean;
    (void)munmap(stack, bytes);
}
static void *idle(void *arg) { return arg; }
START_TEST(small_stacks) {
    size_t all, none, need = SANITIZED ? (size_t)512 << 10 : STACK_USE + (8 << 10);
    on_stack((size_t)1 << 20, idle, NULL, &none);
    on_stack((size_t)1 << 20, on_small_stack, NULL, &all);
    ck_assert_msg(!stack_bad, "%s", stack_bad);
    printf("note: %zu bytes of the caller's stack used at most\n", all - none);
    ck_assert_msg(SANITIZED || all - none <= STACK_USE, "%zu bytes of stack used", all - none);
    on_stack((none + need + 4095) / 4096 * 4096, on_small_stack, NULL, &all);
    ck_assert_msg(!stack_bad, "%s", stack_bad);
}
END_TEST

// The host is deep in a recursion of its own.
static char *stack_low;
static int deep(int n) {
    volatile char frame[256];
    frame[0] = (char)n;
    size_t left = (size_t)(&frame[0] - (volatile char *)stack_low);
    if (left > (SANITIZED ? (size_t)512 << 10 : STACK_USE + (16 << 10)))
        return deep(n + 1) + frame[0] * 0;
    stack_bad = life((trace_context_options){.threads = 2});
    return n;
}
static void *recursing(void *arg) {
    pthread_attr_t attr;
    void *low;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attr) || pthread_attr_getstack(&attr, &low, &size))
        return NULL;
    pthread_attr_destroy(&attr);
    stack_low = low;
    *(int *)arg = deep(0);
    return NULL;
}
START_TEST(deep_recursion) {
    int depth = 0;
    size_t used;
    (void)reference();
    stack_bad = "not run";
    on_stack((size_t)2 << 20, recursing, &depth, &used);
    ck_assert_msg(!stack_bad, "%s", stack_bad);
    ck_assert_int_gt(depth, 1000);
}
END_TEST

// ---- what a host may take away --------------------------------------------------------------------------------------

static int fallbacks;
static char told[600];
static void on_fallback(void *user, const trace_event *e) {
    (void)user;
    if (e->kind == TRACE_EVENT_FALLBACK) {
        fallbacks++;
        (void)snprintf(told, sizeof told, "%s", e->what);
    }
}

START_TEST(no_places) { // no HOME, no TMPDIR or one that leads nowhere, a working directory that is gone
    (void)reference();
    char dir[] = "/tmp/tj-host-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(dir));
    int back = open(".", O_RDONLY | O_DIRECTORY);
    ck_assert(back >= 0 && !chdir(dir) && !rmdir(dir));
    for (int i = 0; i < 3; i++) {
        (void)unsetenv("HOME"), (void)unsetenv("XDG_CACHE_HOME");
        if (i)
            (void)setenv("TMPDIR", i == 1 ? "/nonexistent/tmp" : "", 1);
        else
            (void)unsetenv("TMPDIR");
        const char *bad = life((trace_context_options){.threads = 2});
        ck_assert_msg(!bad, "%s", bad);
    }
    (void)unsetenv("TMPDIR");
    ck_assert_int_eq(fchdir(back), 0);
    close(back);
}
END_TEST

// Nothing may be written: dumps and log lines are lost, runs are right, no signal comes.
START_TEST(nothing_to_write_to) {
    (void)reference();
    static const char *const places[] = {"/proc/tracejit-dump", "/dev/null/x", "/nonexistent/a/b", NULL};
    char dir[] = "/tmp/tj-host-XXXXXX", path[300];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    struct rlimit was, none = {0, 0};
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
    none.rlim_max = was.rlim_max;
    int err = dup(2), null = open("/dev/null", O_WRONLY), fds[2];
    ck_assert(err >= 0 && null >= 0 && !pipe(fds));
    close(fds[0]);
    dup2(fds[1], 2); // nobody reads it: a line would raise SIGPIPE
    const char *bad = NULL;
    for (size_t i = 0; i < TJ_COUNT(places) && !bad; i++) {
        (void)setenv("TRACEJIT_DUMP", places[i] ? places[i] : dir, 1);
        (void)setenv("TRACEJIT_LOG", "all", 1);
        if (!places[i])
            (void)setrlimit(RLIMIT_FSIZE, &none); // a write would raise SIGXFSZ
        bad = life((trace_context_options){.threads = 2});
        (void)setrlimit(RLIMIT_FSIZE, &was);
    }
    dup2(err, 2);
    close(err), close(null), close(fds[1]);
    (void)unsetenv("TRACEJIT_DUMP"), (void)unsetenv("TRACEJIT_LOG");
    ck_assert_msg(!bad, "%s", bad);
    sigset_t pending;
    ck_assert(!sigpending(&pending) && !sigismember(&pending, SIGPIPE) && !sigismember(&pending, SIGXFSZ));
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.')
            (void)unlink(path);
    }
    closedir(d);
    ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

// No descriptor is left: a compiler that is loaded goes on; one that isn't can't be, which is told, and the interpreter
// runs. A context made later has the compiler.
START_TEST(no_descriptors) { // _i: whether the compiler was loaded before
    if (_i)
        (void)reference();
    struct rlimit was, none;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    none.rlim_cur = 3;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct host h;
    float *out = calloc(RESULTS, sizeof *out);
    fallbacks = 0;
    bool ok = host_open(&h, (trace_context_options){.threads = 2, .on_event = on_fallback});
    enum trace_status s = ok ? host_run(&h, out, nothing) : TRACE_ERR_STATE;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
    ck_assert_msg(s == TRACE_OK, "%s", trace_last_error(NULL));
    host_close(&h);
    bool none_built = !strcmp(tj_backend_cpu.name, "none");
    size_t same = (size_t)(RESULTS - ROWS * WIDE); // the bound plan needs a compiler
    if (none_built || _i)
        ck_assert_int_eq(fallbacks, none_built);
    ck_assert_msg(fallbacks < 2 && (!fallbacks || none_built || strstr(told, "open")), "%d: %s", fallbacks, told);
    ck_assert(!memcmp(out, reference(), (fallbacks ? (size_t)ROWS * WIDE + 1 : same) * sizeof *out));
    free(out);
    fallbacks = 0;
    const char *bad = life((trace_context_options){.threads = 2, .on_event = on_fallback});
    ck_assert_msg(!bad && fallbacks == none_built, "%s", bad ? bad : told);
}
END_TEST

// The address space ends in the middle of a compile, at some place of LLVM's: that is told, nothing ends, and the
// interpreter runs the graph; or the run has no memory itself.
static int without_memory(size_t more) {
    struct host h;
    float v[4] = {1, 2, 3, 4};
    double first = 0, got = 0;
    fallbacks = 0;
    if (!host_open(&h, (trace_context_options){.threads = 1, .on_event = on_fallback}))
        return 3;
    trace_tensor *x = trace_from(h.ctx, TRACE_F32, v, TRACE_DIMS(4));
    struct rlimit was, small;
    for (int run = 0; run < 3; run++) { // 0: compiles something; 1: with a limit; 2: without
        trace_tensor *y = x;
        if (run == 1) {
            FILE *f = fopen("/proc/self/statm", "r");
            size_t pages;
            if (!f || fscanf(f, "%zu", &pages) != 1 || fclose(f) || getrlimit(RLIMIT_AS, &was))
                return 4;
            small = was;
            small.rlim_cur = pages * 4096 + more;
            (void)setrlimit(RLIMIT_AS, &small);
        }
        if (trace_begin(h.region, TRACE_ARGS(x)))
            for (int i = 0; i < (run ? 36 : 3); i++)
                y = i % 3 == 2 ? trace_softmax(y, -1) : trace_mul_f(trace_tanh(y), 3);
        enum trace_status s = trace_end(h.region, &y, 1);
        if (run == 1) {
            (void)setrlimit(RLIMIT_AS, &was);
            first = s ? 0 : trace_item_f64(trace_select(y, 0, 1), &first) ? -1 : first;
        }
        if (run != 1 && s)
            return 5;
        if (s && s != TRACE_ERR_MEMORY)
            return 6;
        if (run == 2 && trace_item_f64(trace_select(y, 0, 1), &got))
            return 7;
    }
    if (first != 0 && first != got)
        return 8;
    return fallbacks ? 1 : 0; // both are right
}
START_TEST(no_memory_for_the_compiler) {
    if (SANITIZED || !strcmp(tj_backend_cpu.name, "none"))
        return;
    int told_so = 0;
    for (int k = 0; k < 10; k++) {
        pid_t pid = fork();
        int status = 0;
        ck_assert_int_ge(pid, 0);
        if (!pid) {
            alarm(60);
            _exit(without_memory((size_t)k * 250000));
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) < 2, "%d bytes more: %s %d", k * 250000,
                      WIFSIGNALED(status) ? "signal" : "exit",
                      WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        told_so += WEXITSTATUS(status);
    }
    printf("note: the compiler ran out of memory in %d of 10 runs\n", told_so);
}
END_TEST

// One processor, whatever the machine has: the pool is the caller alone, and the bits are the same.
START_TEST(one_processor) {
    (void)reference();
    cpu_set_t was, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof was, &was), 0);
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && !CPU_COUNT(&one); c++)
        if (CPU_ISSET(c, &was))
            CPU_SET(c, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    for (int threads = 0; threads < 5; threads += 2) { // more threads than processors are right, too
        trace_context *c;
        TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = threads), &c));
        ck_assert(strstr(trace_context_describe(c), threads ? "threads" : "1 thread,"));
        trace_context_release(c);
        const char *bad = life((trace_context_options){.threads = threads});
        ck_assert_msg(!bad, "%s", bad);
    }
    ck_assert_int_eq(sched_setaffinity(0, sizeof was, &was), 0);
}
END_TEST

// ---- fork -----------------------------------------------------------------------------------------------------------

static atomic_bool stop, pause_all;
static bool go_on(void) {
    while (atomic_load(&pause_all)) // a child is at work
        usleep(500);
    return !atomic_load(&stop);
}
struct busy {
    struct host *h;
    trace_tensor *weight, *wrapped; // written and read by all
    float memory[WIDE];
    trace_region *region;
};
static enum trace_status uses_both(struct busy *b, float *out) {
    trace_tensor *y = NULL;
    if (trace_begin(b->region, TRACE_ARGS(b->wrapped)))
        y = trace_add(trace_mul_f(b->wrapped, 2), b->weight);
    enum trace_status s = trace_end(b->region, &y, 1);
    if (!s)
        s = trace_read(y, out, WIDE * sizeof *out);
    trace_release(y);
    return s;
}
static bool fill_both(struct busy *b, float a, float c, bool busy_is_fine) {
    float v[WIDE];
    for (int i = 0; i < WIDE; i++)
        v[i] = a;
    if (trace_write(b->weight, v, sizeof v))
        return false;
    for (int i = 0; i < WIDE; i++)
        v[i] = c;
    enum trace_status s = trace_write(b->wrapped, v, sizeof v);
    return !s || (s == TRACE_ERR_BUSY && busy_is_fine);
}
static void *writing(void *arg) {
    for (int i = 0; go_on(); i++)
        if (!fill_both(arg, (float)i, 1, true))
            return arg;
    return NULL;
}
static void *running(void *arg) {
    float out[WIDE];
    while (go_on())
        if (uses_both(arg, out))
            return arg;
    return NULL;
}
static void *making(void *arg) { // tensors and regions come and go
    struct busy *b = arg;
    for (int n = 1; go_on(); n = n % 90 + 1) {
        trace_tensor *t[6] = {NULL};
        trace_region *r = NULL;
        for (int i = 0; i < 6; i++)
            if (!(t[i] = trace_zeros(b->h->ctx, TRACE_DIMS(n, i + 1), TRACE_F32)))
                return arg;
        if (n % 30 == 0 && trace_region_create(b->h->ctx, "made", NULL, &r))
            return arg;
        for (int i = 0; i < 6; i++)
            trace_release(t[i * 5 % 6]);
        trace_region_release(r);
    }
    return NULL;
}
// In the child: everything works, and is right.
static int child(struct busy *b, int turn) {
    float out[WIDE];
    alarm(40);
    for (int i = 0; i < 3; i++) {
        if (!fill_both(b, 5, (float)i, false))
            return 3;
        if (uses_both(b, out) || out[0] != (float)(5 + 2 * i) || out[WIDE - 1] != out[0])
            return 4;
    }
    trace_tensor *t[200], *y = NULL;
    for (int i = 0; i < 200; i++) {
        if (!(t[i] = trace_full_f(b->h->ctx, TRACE_DIMS(i % 13 + 1, 5), i, TRACE_F32)))
            return 5;
    }
    for (int i = 0; i < 200; i++) {
        float v[5 * 13];
        if (trace_read(t[i], v, (size_t)(i % 13 + 1) * 20) || v[0] != (float)i || v[4] != (float)i)
            return 6;
    }
    if (trace_begin(b->region, TRACE_ARGS(t[7]))) // a graph that nobody has compiled
        y = trace_add_f(trace_cat(TRACE_ARGS(t[7], t[turn % 40 + 20]), 0), turn);
    if (trace_end(b->region, &y, 1) || trace_item_f64(trace_amax(y, NULL, 0, false), &(double){0}))
        return 7;
    trace_release(y);
    for (int i = 0; i < 200; i++)
        trace_release(t[i * 7 % 200]);
    trace_tensor *after = trace_full_f(b->h->ctx, TRACE_DIMS(3), 2, TRACE_F32);
    if (!after || trace_item_f64(trace_sum(after, NULL, 0, false), &(double){0}))
        return 8;
    trace_region_release(b->region);
    return trace_context_shutdown(b->h->ctx, 10000) ? 9 : 0;
}
START_TEST(fork_amid_writes) {
    if (SANITIZED) // its own allocator may be locked in the child
        return;
    struct host h;
    static struct busy b;
    b.h = &h;
    ck_assert(host_open(&h, (trace_context_options){.threads = 2}));
    float zero[WIDE] = {0};
    b.weight = trace_from(h.ctx, TRACE_F32, zero, TRACE_DIMS(WIDE));
    b.wrapped = trace_wrap(h.ctx, TRACE_F32, b.memory, TRACE_DIMS(WIDE));
    ck_assert(b.weight && b.wrapped);
    TJ_ASSERT_OK(trace_region_create(h.ctx, "busy", NULL, &b.region));
    float out[WIDE];
    TJ_ASSERT_OK(uses_both(&b, out));
    static void *(*const work[])(void *) = {writing, writing, running, making, making};
    pthread_t t[TJ_COUNT(work)];
    atomic_store(&stop, false);
    for (size_t i = 0; i < TJ_COUNT(work); i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, work[i], &b), 0);
    int bad = 0, turns = 50;
    for (int turn = 0; turn < turns && !bad; turn++) {
        usleep((useconds_t)(turn * 37 % 500));
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (!pid)
            _exit(child(&b, turn));
        atomic_store(&pause_all, true);
        ck_assert_int_eq(waitpid(pid, &bad, 0), pid);
        atomic_store(&pause_all, false);
    }
    atomic_store(&stop, true);
    for (size_t i = 0; i < TJ_COUNT(work); i++) {
        void *failed;
        pthread_join(t[i], &failed);
        ck_assert_msg(!failed, "thread %zu failed", i);
    }
    ck_assert_msg(!bad, "child: %s %d", WIFSIGNALED(bad) ? "signal" : "exit",
                  WIFSIGNALED(bad) ? WTERMSIG(bad) : WEXITSTATUS(bad));
    trace_release(b.weight), trace_release(b.wrapped);
    trace_region_release(b.region);
    host_close(&h);
}
END_TEST

// The thread that forks has a run open: parent and child both end it, and write in it.
START_TEST(fork_inside_a_run) {
    struct host h;
    ck_assert(host_open(&h, (trace_context_options){.threads = 2}));
    if (FORKS)
        for (int turn = 0; turn < 4; turn++) {
            float v[WIDE], memory[WIDE], old[WIDE] = {0};
            for (int i = 0; i < WIDE; i++)
                v[i] = memory[i] = 3;
            trace_tensor *x = trace_from(h.ctx, TRACE_F32, v, TRACE_DIMS(WIDE)), *y = NULL;
            trace_tensor *m = trace_wrap(h.ctx, TRACE_F32, memory, TRACE_DIMS(WIDE));
            pid_t pid = -1;
            int status = 0;
            if (trace_begin(h.region, TRACE_ARGS(x, m))) {
                y = trace_add(trace_mul_f(x, 2), m);
                pid = fork();
                if (!pid)
                    alarm(60);
                if (turn & 1)
                    TJ_ASSERT_OK(trace_write(x, old, sizeof old)); // what was recorded has the content before
                if (turn & 2)
                    TJ_ASSERT_OK(trace_write(m, old, sizeof old));
                y = trace_add_f(y, 1);
            }
            enum trace_status s = trace_end(h.region, &y, 1);
            bool ok = !s && !trace_read(y, v, sizeof v) && v[0] == 10 && v[WIDE - 1] == 10;
            ok = ok && !trace_write(x, old, sizeof old) && !trace_write(m, old, sizeof old) && memory[3] == 0;
            if (!pid)
                _exit(ok ? 0 : 3);
            ck_assert_int_eq(waitpid(pid, &status, 0), pid);
            ck_assert_msg(ok && status == 0, "turn %d: parent %d, child %x", turn, ok, (unsigned)status);
            trace_release(x), trace_release(y), trace_release(m);
        }
    host_close(&h);
}
END_TEST

// ---- leaving a body, callbacks --------------------------------------------------------------------------------------

static jmp_buf out_of_here;
static void leave_body(struct host *h, int depth) {
    trace_tensor *y = NULL;
    if (trace_begin(h->region, TRACE_ARGS(h->x))) {
        y = trace_exp(h->x);
        if (!depth)
            longjmp(out_of_here, 1);
        leave_body(h, depth - 1);
        y = trace_add(y, y);
    }
    ck_assert_int_ne(trace_end(h->region, &y, 1), TRACE_OK);
}
START_TEST(longjmp_out_of_a_body) {
    struct host h;
    float *out = calloc(RESULTS, sizeof *out);
    ck_assert(out && host_open(&h, (trace_context_options){.threads = 2}));
    for (volatile int i = 0; i < 20; i++) {
        if (!setjmp(out_of_here)) {
            leave_body(&h, i % 4);
            ck_abort_msg("came back");
        }
        for (int k = i % 4; k >= 0; k--) // the innermost first, or the outermost at once: the same region
            trace_abandon(h.region);
        ck_assert(!trace_failed(h.ctx) && !tj_current);
        memset(out, 0, RESULTS * sizeof *out);
        TJ_ASSERT_OK(host_run(&h, out, nothing));
        ck_assert_mem_eq(out, reference(), RESULTS * sizeof *out);
    }
    free(out);
    ck_assert_int_eq(atomic_load(&h.x->refs), 1);
    host_close(&h);
}
END_TEST

// An event handler that runs ops, a region, and reads: what it calls is its own.
static struct {
    struct host *h;
    trace_region *own;
    int depth, calls, bad;
} handler;
static void uses_the_library(void *user, const trace_event *e) {
    (void)user, (void)e;
    if (!handler.h || handler.depth)
        return;
    handler.depth++;
    handler.calls++;
    float v = 0;
    trace_tensor *two = trace_full_f(handler.h->ctx, TRACE_DIMS(1), 2, TRACE_F32), *y = trace_mul_f(two, handler.calls);
    handler.bad += !y || trace_read(y, &v, sizeof v) || v != (float)(2 * handler.calls);
    trace_release(y);
    y = NULL;
    if (trace_begin(handler.own, TRACE_ARGS(two)))
        y = trace_sub_f(trace_exp(two), handler.calls);
    handler.bad += trace_end(handler.own, &y, 1) != TRACE_OK;
    trace_release(y), trace_release(two);
    if (handler.calls % 2 && trace_begin(handler.own, NULL, 0)) // and never ends it
        (void)!trace_arange(handler.h->ctx, 0, 4, 1, TRACE_F32);
    handler.depth--;
}
START_TEST(handlers_use_the_library) {
    struct host h;
    handler.h = NULL;
    ck_assert(host_open(&h, (trace_context_options){.threads = 2, .on_event = uses_the_library}));
    TJ_ASSERT_OK(trace_region_create(h.ctx, "handler", NULL, &handler.own));
    handler.h = &h;
    float *out = calloc(RESULTS, sizeof *out);
    TJ_ASSERT_OK(host_run(&h, out, nothing));
    ck_assert_mem_eq(out, reference(), RESULTS * sizeof *out);
    ck_assert_int_gt(handler.calls, 2);
    ck_assert_int_eq(handler.bad, 0);
    free(out);
    trace_region_release(handler.own);
    host_close(&h);
    handler.h = NULL;
}
END_TEST

// The host's parallel_for runs ops of the same context before, between and after the tasks.
static struct {
    struct host *h;
    int calls, bad;
} loop;
static void one_op(void) {
    float v = 0;
    trace_tensor *t = trace_full_f(loop.h->ctx, TRACE_DIMS(4), 1.5, TRACE_F32), *y = trace_sum(t, NULL, 0, false);
    loop.bad += !y || trace_read(y, &v, sizeof v) || v != 6;
    trace_release(t), trace_release(y);
}
static void loop_with_ops(void *user, size_t n, void (*body)(void *arg, size_t i), void *arg) {
    (void)user;
    loop.calls++;
    for (size_t i = n; i-- > 0;) {
        one_op();
        body(arg, i);
    }
    one_op();
}
START_TEST(parallel_for_uses_the_library) {
    struct host h;
    ck_assert(host_open(&h, (trace_context_options){.threads = 3, .parallel_for = loop_with_ops}));
    loop.h = &h;
    loop.calls = loop.bad = 0;
    float *out = calloc(RESULTS, sizeof *out);
    TJ_ASSERT_OK(host_run(&h, out, nothing));
    ck_assert_mem_eq(out, reference(), RESULTS * sizeof *out);
    ck_assert_int_eq(loop.bad, 0);
    ck_assert(loop.calls > 0 || !strcmp(tj_backend_cpu.name, "none"));
    free(out);
    host_close(&h);
}
END_TEST

// ---- eager scopes, leaks --------------------------------------------------------------------------------------------

static uint64_t live_bytes(trace_context *c) {
    trace_stats s = {.size = sizeof s};
    trace_context_stats(c, &s);
    return s.bytes_live;
}
START_TEST(eager_scopes_release) {
    struct host h;
    trace_region *eager, *inner;
    ck_assert(host_open(&h, (trace_context_options){.threads = 1}));
    TJ_ASSERT_OK(trace_region_create(h.ctx, "eager", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_EAGER), &eager));
    TJ_ASSERT_OK(trace_region_create(h.ctx, "inner", NULL, &inner));
    uint64_t before = live_bytes(h.ctx);
    for (int turn = 0; turn < 4; turn++) { // ended, failed, abandoned, with a scope inside
        trace_tensor *y = NULL, *kept = NULL;
        ck_assert(trace_begin(eager, TRACE_ARGS(h.x)));
        for (int i = 0; i < 5; i++)
            y = trace_relu(trace_add_f(trace_mul(h.x, h.x), i));
        ck_assert_uint_gt(live_bytes(h.ctx), before + 8 * ROWS * WIDE * 4);
        if (turn == 3) {
            trace_tensor *z = NULL;
            if (trace_begin(inner, TRACE_ARGS(y)))
                z = trace_neg(trace_neg(y));
            TJ_ASSERT_OK(trace_end(inner, &z, 1));
            y = z;
        }
        kept = trace_retain(y);
        if (turn == 1)
            ck_assert_ptr_null(trace_softmax(y, 9));
        if (turn == 2)
            trace_abandon(eager);
        else
            TJ_ASSERT_STATUS(trace_end(eager, &y, 1), turn == 1 ? TRACE_ERR_ARGUMENT : TRACE_OK);
        uint64_t held = (uint64_t)ROWS * WIDE * 4;
        ck_assert_uint_le(live_bytes(h.ctx), before + held + held / 8 + 64); // in size classes
        float v[ROWS * WIDE];
        TJ_ASSERT_OK(trace_read(kept, v, sizeof v));
        trace_release(kept);
        if (turn == 0 || turn == 3)
            trace_release(y);
        ck_assert_uint_eq(live_bytes(h.ctx), before);
    }
    trace_region_release(eager), trace_region_release(inner);
    host_close(&h);
}
END_TEST

START_TEST(leaks_are_told) {
    (void)setenv("TRACEJIT_LOG", "memory", 1);
    struct host h;
    ck_assert(host_open(&h, (trace_context_options){.threads = 1}));
    (void)unsetenv("TRACEJIT_LOG");
    trace_release(h.w), trace_release(h.big), trace_release(h.out);
    trace_tensor *leak = trace_gelu_at(trace_mul_f_at(h.x, 2, "model.c", 41), TRACE_GELU_NONE, "model.c", 42);
    trace_tensor *inner = NULL;
    ck_assert_ptr_nonnull(leak);
    trace_region_release(h.region);
    FILE *to = tmpfile();
    int err = dup(2);
    ck_assert(to && err >= 0);
    dup2(fileno(to), 2);
    trace_context_release(h.ctx);
    dup2(err, 2);
    close(err);
    static char text[8192];
    rewind(to);
    text[fread(text, 1, sizeof text - 1, to)] = 0;
    fclose(to);
    static const char *const want[] = {"context released with 3 live tensor handles", "gelu (model.c:42): f32, 960",
                                       "mul_f (model.c:41): f32, 960", "from"};
    for (size_t i = 0; i < TJ_COUNT(want); i++)
        ck_assert_msg(strstr(text, want[i]) || (i == 2 && strstr(text, "mul (model.c:41)")), "no '%s' in:\n%s", want[i],
                      text);
    // They still work, and the last of them takes the context along.
    float v[ROWS * WIDE];
    TJ_ASSERT_OK(trace_read(leak, v, sizeof v));
    trace_context *c = h.ctx;
    while ((inner = c->tensors) != NULL && inner != h.x && inner != leak)
        trace_release(inner);
    inner = c->tensors == h.x || c->tensors == leak ? c->tensors->next : NULL;
    for (trace_tensor *t = c->tensors, *n; t; t = n) {
        n = t->next;
        if (t != h.x)
            trace_release(t);
    }
    trace_release(h.x);
}
END_TEST

// ---- threads --------------------------------------------------------------------------------------------------------

static struct {
    struct host *h;
    enum trace_status status;
    char text[600];
    pthread_barrier_t gate;
} other;
static void *ends_it(void *arg) {
    trace_tensor *y = NULL;
    (void)arg;
    other.status = trace_end_at(other.h->region, &y, 0, "worker.c", 77);
    (void)snprintf(other.text, sizeof other.text, "%s", trace_last_error(NULL));
    return NULL;
}
START_TEST(ends_on_another_thread) {
    struct host h;
    pthread_t t;
    ck_assert(host_open(&h, (trace_context_options){.threads = 1}));
    other.h = &h;
    trace_tensor *y = NULL;
    ck_assert(trace_begin_at(h.region, TRACE_ARGS(h.x), "main.c", 12));
    y = trace_exp(h.x);
    ck_assert_int_eq(pthread_create(&t, NULL, ends_it, NULL), 0);
    pthread_join(t, NULL);
    ck_assert_msg(other.status == TRACE_ERR_STATE && strstr(other.text, "worker.c:77") &&
                      strstr(other.text, "main.c:12"),
                  "%s", other.text);
    TJ_ASSERT_OK(trace_end(h.region, &y, 1)); // the run is where it was
    trace_release(y);
    host_close(&h);
}
END_TEST

// A run of many kernels on another thread: shutdown gives up waiting, a cancel ends it between two kernels.
static void *long_run(void *arg) {
    trace_tensor *x = arg, *y = x;
    if (trace_begin(other.h->region, TRACE_ARGS(x)))
        for (int i = 0; i < 200; i++)
            y = trace_matmul(y, x);
    pthread_barrier_wait(&other.gate);
    other.status = trace_end(other.h->region, &y, 1);
    (void)snprintf(other.text, sizeof other.text, "%s", trace_last_error(NULL));
    trace_release(y);
    return NULL;
}
START_TEST(shutdown_and_cancel) {
    enum { N = 700 };
    struct host h;
    pthread_t t;
    ck_assert(host_open(&h, (trace_context_options){.threads = 1}));
    other.h = &h;
    float *zero = calloc(N * N, sizeof *zero);
    ck_assert_ptr_nonnull(zero);
    trace_tensor *x = trace_from(h.ctx, TRACE_F32, zero, TRACE_DIMS(N, N));
    ck_assert_int_eq(pthread_barrier_init(&other.gate, NULL, 2), 0);
    ck_assert_int_eq(pthread_create(&t, NULL, long_run, x), 0);
    pthread_barrier_wait(&other.gate);
    uint64_t end = tj_now_ns() + 2000000000u; // till kernels run
    trace_stats s = {.size = sizeof s};
    do {
        usleep(2000);
        trace_region_stats(h.region, &s);
    } while (!s.graphs && strcmp(tj_backend_cpu.name, "none") && tj_now_ns() < end);
    TJ_ASSERT_STATUS(trace_context_shutdown(h.ctx, 1), TRACE_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(trace_last_error(NULL), "still open after 1 ms"));
    trace_region_cancel(h.region);
    TJ_ASSERT_OK(trace_context_shutdown(h.ctx, 20000));
    pthread_join(t, NULL);
    ck_assert_msg(other.status == TRACE_ERR_SHUTDOWN && strstr(other.text, "cancelled"), "%s", other.text);
    ck_assert(!trace_begin(h.region, NULL, 0));
    TJ_ASSERT_STATUS(trace_end(h.region, NULL, 0), TRACE_ERR_SHUTDOWN);
    pthread_barrier_destroy(&other.gate);
    trace_release(x);
    free(zero);
    host_close(&h);
}
END_TEST

// 64 threads are in the same plan at once: each has a workspace then, and few are kept.
enum { CROWD = 64 };
static struct {
    struct host *h;
    trace_tensor *x;
    pthread_barrier_t gate;
    atomic_int bad;
    _Atomic uint64_t most;
    bool meet;
} crowd;
static void meeting(void *user, size_t n, void (*body)(void *arg, size_t i), void *arg) {
    static _Thread_local bool met;
    (void)user;
    if (crowd.meet && !met) {
        met = true;
        pthread_barrier_wait(&crowd.gate);
        uint64_t now = live_bytes(crowd.h->ctx), was = atomic_load(&crowd.most);
        while (now > was && !atomic_compare_exchange_weak(&crowd.most, &was, now))
            continue;
        pthread_barrier_wait(&crowd.gate);
    }
    for (size_t i = 0; i < n; i++)
        body(arg, i);
}
static enum trace_status crowd_run(double *v) {
    trace_tensor *y = NULL;
    if (trace_begin(crowd.h->region, TRACE_ARGS(crowd.x))) {
        trace_tensor *h = trace_matmul(crowd.x, crowd.x);
        y = trace_sum(trace_matmul(trace_softmax(h, 0), h), NULL, 0, false);
    }
    enum trace_status s = trace_end(crowd.h->region, &y, 1);
    s = s ? s : trace_item_f64(y, v);
    trace_release(y);
    return s;
}
static void *crowd_thread(void *arg) {
    double v;
    if (crowd_run(&v) || v != *(double *)arg)
        (void)atomic_fetch_add(&crowd.bad, 1);
    return NULL;
}
START_TEST(few_instances_are_kept) {
    if (!strcmp(tj_backend_cpu.name, "none"))
        return;
    struct host h;
    ck_assert(host_open(&h, (trace_context_options){.threads = 4, .parallel_for = meeting}));
    crowd.h = &h;
    enum { N = 160 };
    static float v[N * N];
    for (int i = 0; i < N * N; i++)
        v[i] = (float)(i % 17) / 16;
    crowd.x = trace_wrap_const(h.ctx, TRACE_F32, v, TRACE_DIMS(N, N));
    crowd.meet = false;
    atomic_store(&crowd.bad, 0);
    atomic_store(&crowd.most, 0);
    double want;
    TJ_ASSERT_OK(crowd_run(&want));
    uint64_t one = live_bytes(h.ctx);
    crowd.meet = true;
    ck_assert_int_eq(pthread_barrier_init(&crowd.gate, NULL, CROWD), 0);
    pthread_t t[CROWD];
    for (int i = 0; i < CROWD; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, crowd_thread, &want), 0);
    for (int i = 0; i < CROWD; i++)
        pthread_join(t[i], NULL);
    ck_assert_int_eq(atomic_load(&crowd.bad), 0);
    uint64_t each = (uint64_t)N * N * 4, most = atomic_load(&crowd.most), after = live_bytes(h.ctx);
    ck_assert_msg(most > one + 60 * each, "%llu bytes at most", (unsigned long long)most);
    ck_assert_msg(after < one + (most - one) * 20 / CROWD, "%llu bytes kept, %llu at most, %llu with one thread",
                  (unsigned long long)after, (unsigned long long)most, (unsigned long long)one);
    crowd.meet = false;
    double again;
    TJ_ASSERT_OK(crowd_run(&again));
    ck_assert(again == want);
    pthread_barrier_destroy(&crowd.gate);
    trace_release(crowd.x);
    host_close(&h);
}
END_TEST

// ---- executable memory of the host ----------------------------------------------------------------------------------

static struct {
    atomic_int maps, seals, unmaps, refuse; // refuse: 1 maps, 2 seals
    atomic_size_t live;
} pages;
static void *host_map(void *user, size_t bytes) {
    ck_assert_ptr_eq(user, &pages);
    if (atomic_load(&pages.refuse) == 1)
        return NULL;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    atomic_fetch_add(&pages.maps, 1);
    atomic_fetch_add(&pages.live, bytes);
    return p == MAP_FAILED ? NULL : p;
}
static int host_seal(void *user, void *p, size_t bytes) {
    (void)user;
    if (atomic_load(&pages.refuse) == 2)
        return -1;
    atomic_fetch_add(&pages.seals, 1);
    return mprotect(p, bytes, PROT_READ | PROT_EXEC);
}
static void host_unmap(void *user, void *p, size_t bytes) {
    (void)user;
    atomic_fetch_add(&pages.unmaps, 1);
    atomic_fetch_sub(&pages.live, bytes);
    ck_assert_int_eq(munmap(p, bytes), 0);
}

START_TEST(executable_memory_is_the_hosts) {
    static float want[RESULTS], out[RESULTS];
    trace_context_options o = {
        .code_map = host_map, .code_seal = host_seal, .code_unmap = host_unmap, .code_user = &pages, .threads = 1};
    bool jit = strcmp(tj_backend_cpu.name, "none") != 0;
    struct host h;
    ck_assert(host_open(&h, (trace_context_options){.threads = 1}));
    TJ_ASSERT_OK(host_run(&h, want, nothing));
    host_close(&h);
    for (int refuse = 0; refuse <= 2; refuse++) {
        memset(&pages, 0, sizeof pages);
        atomic_store(&pages.refuse, refuse);
        ck_assert(host_open(&h, o));
        if (refuse == 1 && jit) { // out of code memory: a status, and the next run is right
            ck_assert_int_eq(host_run(&h, out, nothing), TRACE_ERR_MEMORY);
            host_close(&h);
            atomic_store(&pages.refuse, 0);
            ck_assert(host_open(&h, o));
        }
        // What can't be sealed is interpreted, up to the bound plan at the end.
        TJ_ASSERT_STATUS(host_run(&h, out, nothing), refuse == 2 && jit ? TRACE_ERR_COMPILE : TRACE_OK);
        ck_assert(refuse == 2 || !memcmp(out, want, sizeof out));
        host_close(&h);
        ck_assert(!jit || atomic_load(&pages.maps) > 0);
        ck_assert(!jit || refuse == 2 || atomic_load(&pages.seals) == atomic_load(&pages.maps));
        ck_assert_int_eq(atomic_load(&pages.unmaps), atomic_load(&pages.maps));
        ck_assert_uint_eq(atomic_load(&pages.live), 0);
    }
    trace_context *ctx;
    o.code_seal = NULL;
    o.size = sizeof o;
    TJ_ASSERT_STATUS(trace_context_create(&o, &ctx), TRACE_ERR_ARGUMENT);
}
END_TEST

TJ_TEST_MAIN_TURNS("host", {floating_point_modes, 2}, {small_stacks, 1}, {deep_recursion, 1}, {no_places, 1},
                   {nothing_to_write_to, 1}, {no_descriptors, 2}, {one_processor, 1}, {no_memory_for_the_compiler, 1},
                   {fork_amid_writes, 1}, {fork_inside_a_run, 1}, {longjmp_out_of_a_body, 1},
                   {handlers_use_the_library, 1}, {parallel_for_uses_the_library, 1}, {eager_scopes_release, 1},
                   {leaks_are_told, 1}, {ends_on_another_thread, 1}, {shutdown_and_cancel, 1},
                   {few_instances_are_kept, 1}, {executable_memory_is_the_hosts, 1})
