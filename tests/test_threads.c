// tests/test_threads.c: many threads on one region, background compiles, cancel, shutdown, fork, the host's threads.
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "region_fake.h"

// ---- one program of several kinds of kernels ------------------------------------------------------------------------

enum { ROWS = 96, WIDE = 160, BIG = 70000, RESULTS = ROWS * WIDE + ROWS + 1 };
struct data {
    trace_context *ctx;
    trace_region *region;
    trace_tensor *x, *w, *big;
};

static void data_open(struct data *d, trace_context *c, trace_region_options opt) {
    static float v[BIG];
    uint64_t seed = 7;
    d->ctx = c;
    opt.size = sizeof opt;
    TJ_ASSERT_OK(trace_region_create(c, "program", &opt, &d->region));
    for (int i = 0; i < BIG; i++)
        v[i] = tj_test_uniform(&seed);
    d->x = trace_from(c, TRACE_F32, v, TRACE_DIMS(ROWS, WIDE));
    d->w = trace_from(c, TRACE_F32, v + 11, TRACE_DIMS(WIDE, WIDE));
    d->big = trace_from(c, TRACE_F32, v, TRACE_DIMS(BIG));
    ck_assert(d->x && d->w && d->big);
}

static void data_close(struct data *d) {
    trace_release(d->x);
    trace_release(d->w);
    trace_release(d->big);
    trace_region_release(d->region);
    trace_context_release(d->ctx);
}

static enum trace_status data_run(const struct data *d, float *out) {
    trace_tensor *o[3] = {NULL};
    if (trace_begin(d->region, TRACE_ARGS(d->x, d->big))) {
        trace_tensor *h = trace_gelu(trace_matmul(d->x, d->w), TRACE_GELU_TANH);
        o[0] = trace_softmax(trace_add(h, d->x), -1);
        o[1] = trace_mean(trace_square(h), TRACE_DIMS(1), false);
        o[2] = trace_sum(trace_exp(d->big), NULL, 0, false);
    }
    enum trace_status st = trace_end(d->region, o, 3);
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        size_t n = o[i] ? (size_t)trace_numel(o[i]) : 0;
        if (!st)
            st = trace_read(o[i], out + at, n * sizeof *out);
        at += n;
        trace_release(o[i]);
    }
    return st;
}

// What the program gives on one thread.
static const float *reference(void) {
    static float want[RESULTS];
    static bool made;
    if (!made) {
        trace_context *c;
        struct data d;
        TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &c));
        data_open(&d, c, (trace_region_options){0});
        TJ_ASSERT_OK(data_run(&d, want));
        data_close(&d);
        made = true;
    }
    return want;
}

// ---- 64 threads -----------------------------------------------------------------------------------------------------

enum { MANY = 64, TURNS = 5 };
static struct {
    struct data d;
    pthread_barrier_t gate;
    const float *want;
} crowd;

static void *crowd_thread(void *arg) {
    float *out = malloc(RESULTS * sizeof *out);
    const char *bad = out ? NULL : "no memory";
    pthread_barrier_wait(&crowd.gate);
    for (int i = 0; i < TURNS && !bad; i++) {
        errno = 4321;
        if (data_run(&crowd.d, out))
            bad = "run failed";
        else if (memcmp(out, crowd.want, RESULTS * sizeof *out))
            bad = "other bits";
        else if (errno != 4321)
            bad = "errno changed";
    }
    free(out);
    (void)arg;
    return (void *)(uintptr_t)bad;
}

static void crowd_run(int threads, bool background) {
    trace_context *c;
    pthread_t t[MANY];
    crowd.want = reference();
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = threads), &c));
    data_open(&crowd.d, c, (trace_region_options){.background = background, .background_policy = TRACE_POLICY_WAIT});
    ck_assert_int_eq(pthread_barrier_init(&crowd.gate, NULL, MANY), 0);
    for (int i = 0; i < MANY; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, crowd_thread, NULL), 0);
    for (int i = 0; i < MANY; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        ck_assert_msg(!bad, "thread %d: %s", i, (const char *)bad);
    }
    trace_stats s = {.size = sizeof s};
    trace_region_stats(crowd.d.region, &s);
    ck_assert_uint_eq(s.graphs, 1);
    ck_assert_uint_eq(s.recompiles, 0);
    ck_assert_uint_eq(s.runs, MANY * TURNS);
    ck_assert_uint_eq(s.errors, 0);
    pthread_barrier_destroy(&crowd.gate);
    TJ_ASSERT_OK(trace_context_shutdown(c, 10000));
    data_close(&crowd.d);
}

START_TEST(sixty_four_threads) {
    crowd_run(2, false);
    crowd_run(1, true);
}
END_TEST

START_TEST(thread_counts) {
    const float *want = reference();
    float *out = malloc(RESULTS * sizeof *out);
    for (int threads = 1; threads <= 3; threads++) {
        trace_context *c;
        struct data d;
        TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = threads), &c));
        data_open(&d, c, (trace_region_options){0});
        for (int i = 0; i < 2; i++) {
            TJ_ASSERT_OK(data_run(&d, out));
            ck_assert_mem_eq(out, want, RESULTS * sizeof *out);
        }
        data_close(&d);
    }
    free(out);
}
END_TEST

// ---- the host's parallel_for ----------------------------------------------------------------------------------------

typedef void (*task_fn)(void *arg, size_t i);
enum { IN_ORDER, BACKWARDS, ON_THREADS, NESTED, LOSES, REPEATS, TOO_MANY, BEGINS, KINDS };
struct host_pool {
    int kind, calls;
    struct data *inner; // BEGINS: a region that the callback runs
    enum trace_status inner_status;
};
struct slice {
    task_fn body;
    void *arg;
    size_t lo, hi;
};
static void *slice_main(void *p) {
    struct slice *s = p;
    for (size_t i = s->lo; i < s->hi; i++)
        s->body(s->arg, i);
    return NULL;
}
static void halves(task_fn body, void *arg, size_t lo, size_t hi) {
    if (hi - lo < 2) {
        if (hi > lo)
            body(arg, lo);
        return;
    }
    halves(body, arg, lo + (hi - lo) / 2, hi);
    halves(body, arg, lo, lo + (hi - lo) / 2);
}
static void host_for(void *user, size_t n, task_fn body, void *arg) {
    struct host_pool *h = user;
    h->calls++;
    switch (h->kind) {
    case IN_ORDER:
    case BEGINS:
        for (size_t i = 0; i < n; i++)
            body(arg, i);
        if (h->kind == BEGINS && h->inner) {
            static float out[RESULTS];
            struct data *d = h->inner;
            h->inner = NULL;
            h->inner_status = data_run(d, out);
            h->inner = d;
        }
        break;
    case BACKWARDS:
        while (n-- > 0)
            body(arg, n);
        break;
    case ON_THREADS: {
        struct slice s[3];
        pthread_t t[3];
        for (size_t k = 0; k < 3; k++) {
            s[k] = (struct slice){body, arg, n * k / 3, n * (k + 1) / 3};
            ck_assert_int_eq(pthread_create(&t[k], NULL, slice_main, &s[k]), 0);
        }
        for (size_t k = 0; k < 3; k++)
            pthread_join(t[k], NULL);
        break;
    }
    case NESTED: halves(body, arg, 0, n); break;
    case LOSES:
        for (size_t i = 1; i < n; i++)
            body(arg, i);
        break;
    case REPEATS:
        for (size_t i = 0; i < n; i++) {
            body(arg, i);
            body(arg, i / 2);
        }
        break;
    default:
        for (size_t i = 0; i <= n; i++)
            body(arg, i);
    }
}

START_TEST(host_variants) {
    const float *want = reference();
    float *out = malloc(RESULTS * sizeof *out);
    for (int kind = 0; kind < KINDS; kind++) {
        struct host_pool h = {.kind = kind};
        trace_context *c;
        struct data d, inner;
        TJ_ASSERT_OK(trace_context_create(
            TRACE_CONTEXT_OPTIONS(.threads = 4, .parallel_for = host_for, .parallel_user = &h), &c));
        data_open(&d, c, (trace_region_options){0});
        if (kind == BEGINS) {
            trace_context *other;
            TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &other));
            data_open(&inner, other, (trace_region_options){0});
            h.inner = &inner;
        }
        bool bad = kind == LOSES || kind == REPEATS || kind == TOO_MANY;
        for (int i = 0; i < 2; i++) {
            enum trace_status st = data_run(&d, out);
            if (!strcmp(tj_backend_cpu.name, "none"))
                bad = false; // the interpreter asks for no tasks
            else
                ck_assert_int_gt(h.calls, 0);
            ck_assert_msg(st == (bad ? TRACE_ERR_STATE : TRACE_OK), "kind %d: %s", kind, trace_last_error(c));
            if (bad)
                ck_assert_msg(error_has("parallel_for"), "%s", trace_last_error(c));
            else
                ck_assert_mem_eq(out, want, RESULTS * sizeof *out);
        }
        h.kind = IN_ORDER; // the next run is right
        TJ_ASSERT_OK(data_run(&d, out));
        ck_assert_mem_eq(out, want, RESULTS * sizeof *out);
        if (kind == BEGINS) {
            TJ_ASSERT_OK(h.inner_status);
            data_close(&inner);
        }
        data_close(&d);
    }
    free(out);
}
END_TEST

struct from_task {
    struct data *d;
    const float *want;
    int bad;
};
static void run_in_task(void *arg, size_t i) {
    struct from_task *f = arg;
    float *out = malloc(RESULTS * sizeof *out);
    if (!out || data_run(f->d, out) || memcmp(out, f->want, RESULTS * sizeof *out))
        f->bad++;
    free(out);
    (void)i;
}
START_TEST(from_inside_a_task) {
    struct host_pool h = {.kind = BACKWARDS}, outer = {.kind = NESTED};
    trace_context *c;
    struct data d;
    TJ_ASSERT_OK(
        trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 4, .parallel_for = host_for, .parallel_user = &h), &c));
    data_open(&d, c, (trace_region_options){0});
    struct from_task f = {&d, reference(), 0};
    host_for(&outer, 3, run_in_task, &f);
    ck_assert_int_eq(f.bad, 0);
    data_close(&d);
}
END_TEST

// ---- background -----------------------------------------------------------------------------------------------------

static enum trace_status twice(int n, float *first) {
    trace_tensor *x = vec(n, 1), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_mul_f(x, 2);
    enum trace_status st = trace_end(region, &y, 1);
    *first = st ? 0 : first_of(y);
    trace_release(y);
    trace_release(x);
    return st;
}

static void start_background(int policy, uint64_t ns) {
    atomic_store(&compile_ns, ns);
    atomic_store(&compile_fails, 0);
    start_options((trace_region_options){.background = true, .background_policy = policy});
}

#define MS 1000000u
START_TEST(policies) {
    float v;
    for (int policy = TRACE_POLICY_AUTO; policy <= TRACE_POLICY_FAIL; policy++) {
        start_background(policy, 60 * MS);
        enum trace_status st = twice(4, &v);
        ck_assert_int_eq(st, policy == TRACE_POLICY_FAIL ? TRACE_ERR_BUSY : TRACE_OK);
        trace_stats s = stats();
        bool waited = policy == TRACE_POLICY_WAIT;
        if (policy == TRACE_POLICY_FAIL)
            ck_assert_msg(error_has("not ready yet"), "%s", trace_last_error(ctx));
        else
            ck_assert(v == 2);
        ck_assert_uint_eq(s.misses, 1);
        ck_assert_uint_eq(s.graphs, waited);
        if (!waited)
            ck_assert_int_eq(events.count[TRACE_EVENT_COMPILE], 0);
        if (!waited)
            TJ_ASSERT_STATUS(trace_wait_ready(region, 1), TRACE_ERR_TIMEOUT);
        TJ_ASSERT_OK(trace_wait_ready(region, 10000));
        TJ_ASSERT_OK(twice(4, &v));
        ck_assert(v == 2);
        ck_assert_uint_eq(stats().graphs, 1);
        ck_assert_uint_eq(stats().hits, 1);
        ck_assert_int_eq(events.count[TRACE_EVENT_COMPILE], 1);
        (void)twice(5, &v);
        close_all(); // releases while it compiles
    }
}
END_TEST

START_TEST(warm_up) {
    float v;
    start_background(TRACE_POLICY_FAIL, 20 * MS);
    trace_tensor *x = trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(4)), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_mul_f(x, 3);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    TJ_ASSERT_STATUS(trace_read(y, &v, 16), TRACE_ERR_STATE);
    trace_release(x);
    trace_release(y);
    TJ_ASSERT_OK(trace_wait_ready(region, -1));
    float host[4] = {1, 2, 3, 4};
    x = trace_wrap_const(ctx, TRACE_F32, host, TRACE_DIMS(4)), y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_mul_f(x, 5); // another scalar: the same plan
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 5);
    ck_assert_int_eq(atomic_load(&compiles), 1);
    trace_release(x);
    trace_release(y);
    close_all();
}
END_TEST

START_TEST(failed_compile) {
    float v;
    start_background(TRACE_POLICY_INTERPRET, 1 * MS);
    atomic_store(&compile_fails, 1);
    TJ_ASSERT_OK(twice(4, &v));
    TJ_ASSERT_STATUS(trace_wait_ready(region, 10000), TRACE_ERR_COMPILE);
    ck_assert_msg(error_has("the test's compiler fails"), "%s", trace_last_error(ctx));
    TJ_ASSERT_OK(trace_wait_ready(region, 10000)); // told once
    ck_assert_int_eq(events.count[TRACE_EVENT_FALLBACK], 1);
    TJ_ASSERT_OK(twice(4, &v));
    ck_assert(v == 2);
    ck_assert_int_eq(atomic_load(&compiles), 1);
    atomic_store(&compile_fails, 0);
    close_all();
}
END_TEST

// A breaking loop whose plans come while it runs.
START_TEST(breaks_in_background) {
    start_background(TRACE_POLICY_AUTO, 2 * MS);
    for (int i = 0; i < 20; i++) {
        ck_assert(relax_run(8, 4) == 0.5);
        if (i % 5 == 4)
            TJ_ASSERT_OK(trace_wait_ready(region, 10000));
    }
    int now = atomic_load(&compiles);
    ck_assert(relax_run(8, 4) == 0.5);
    TJ_ASSERT_OK(trace_wait_ready(region, 10000));
    ck_assert_int_eq(atomic_load(&compiles), now);
    close_all();
}
END_TEST

START_TEST(estimates) { // a large product waits, a small one doesn't
    start_background(TRACE_POLICY_AUTO, 5 * MS);
    float *zero = calloc(300 * 300, sizeof *zero);
    trace_tensor *x = trace_from(ctx, TRACE_F32, zero, TRACE_DIMS(300, 300)), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_matmul(x, x);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert_uint_eq(stats().graphs, 1);
    trace_release(y);
    trace_release(x);
    free(zero);
    close_all();
}
END_TEST

// A callback that begins the region it is told about: it runs, or is told why not; nothing waits for itself.
static enum trace_status told;
static atomic_int telling;
static void begins(void *user, const trace_event *e) {
    float v;
    (void)user;
    if (e->kind == TRACE_EVENT_LINT || atomic_exchange(&telling, 1))
        return;
    told = twice(6, &v); // the graph that is being made
    ck_assert(told || v == 2);
}
START_TEST(events_that_begin) {
    for (int background = 0; background < 2; background++) {
        for (int fails = 0; fails < 2; fails++) {
            float v;
            atomic_store(&compile_ns, 0);
            atomic_store(&telling, 0);
            atomic_store(&compile_fails, fails);
            told = TRACE_ERR_BUSY;
            TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = begins, .threads = 1), &ctx));
            ctx->backend = &fake;
            TJ_ASSERT_OK(trace_region_create(
                ctx, "test", TRACE_REGION_OPTIONS(.background = background, .background_policy = TRACE_POLICY_WAIT),
                &region));
            TJ_ASSERT_OK(twice(6, &v));
            ck_assert(v == 2);
            TJ_ASSERT_STATUS(trace_wait_ready(region, 10000), background && fails ? TRACE_ERR_COMPILE : TRACE_OK);
            TJ_ASSERT_OK(told);
            close_all();
        }
    }
    atomic_store(&compile_fails, 0);
}
END_TEST

// ---- shutdown and cancel --------------------------------------------------------------------------------------------

START_TEST(shutdown_cancels) {
    float v;
    start_background(TRACE_POLICY_INTERPRET, 60 * MS);
    for (int n = 3; n < 8; n++)
        TJ_ASSERT_OK(twice(n, &v));
    while (!atomic_load(&compiles))
        usleep(1000);
    TJ_ASSERT_STATUS(trace_context_shutdown(ctx, 0), TRACE_ERR_TIMEOUT);
    TJ_ASSERT_OK(trace_context_shutdown(ctx, 10000));
    ck_assert_int_le(atomic_load(&compiles), 1);
    TJ_ASSERT_STATUS(trace_wait_ready(region, 10000), TRACE_ERR_SHUTDOWN);
    ck_assert(!trace_begin(region, NULL, 0));
    TJ_ASSERT_STATUS(trace_end(region, NULL, 0), TRACE_ERR_SHUTDOWN);
    TJ_ASSERT_OK(trace_context_shutdown(ctx, 0));
    close_all();
}
END_TEST

static void *wait_for_compile(void *arg) {
    float v;
    *(enum trace_status *)arg = twice(9, &v);
    return NULL;
}
START_TEST(shutdown_tells_waiters) {
    start_background(TRACE_POLICY_WAIT, 80 * MS);
    pthread_t t[2];
    enum trace_status st[2];
    ck_assert_int_eq(pthread_create(&t[0], NULL, wait_for_compile, &st[0]), 0);
    while (!atomic_load(&compiles))
        usleep(1000);
    ck_assert_int_eq(pthread_create(&t[1], NULL, wait_for_compile, &st[1]), 0);
    TJ_ASSERT_OK(trace_context_shutdown(ctx, 10000));
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    ck_assert(st[0] == TRACE_OK); // its compile was under way
    ck_assert(st[1] == TRACE_OK || st[1] == TRACE_ERR_SHUTDOWN);
    close_all();
}
END_TEST

static atomic_int long_begun;
static void *long_run(void *arg) {
    trace_tensor *x = arg, *y = x;
    if (trace_begin(region, TRACE_ARGS(x))) {
        for (int i = 0; i < 60; i++)
            y = trace_matmul(y, x);
    }
    atomic_store(&long_begun, 1);
    enum trace_status st = trace_end(region, &y, 1);
    ck_assert(st || y);
    trace_release(y);
    return (void *)(uintptr_t)st;
}
START_TEST(cancel) {
    float v;
    atomic_store(&compile_ns, 0);
    start();
    trace_region_cancel(NULL);
    trace_region_cancel(region); // nothing runs
    TJ_ASSERT_OK(twice(4, &v));
    // before its end
    trace_tensor *x = vec(4, 1), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_mul_f(x, 2);
    trace_region_cancel(region);
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_SHUTDOWN);
    ck_assert_ptr_null(y);
    ck_assert_msg(error_has("cancelled"), "%s", trace_last_error(ctx));
    trace_release(x);
    TJ_ASSERT_OK(twice(4, &v));
    // between ops
    float *zero = calloc(300 * 300, sizeof *zero);
    x = trace_from(ctx, TRACE_F32, zero, TRACE_DIMS(300, 300));
    pthread_t t;
    void *st;
    atomic_store(&long_begun, 0);
    ck_assert_int_eq(pthread_create(&t, NULL, long_run, x), 0);
    while (!atomic_load(&long_begun))
        usleep(1000);
    usleep(20000);
    trace_region_cancel(region);
    pthread_join(t, &st);
    ck_assert_uint_eq((uintptr_t)st, TRACE_ERR_SHUTDOWN);
    trace_stats s = stats();
    ck_assert_uint_lt(s.launches, 62);
    TJ_ASSERT_OK(twice(4, &v));
    trace_release(x);
    free(zero);
    close_all();
}
END_TEST

// ---- bounds ---------------------------------------------------------------------------------------------------------

START_TEST(bounds) {
    float v;
    start();
    TJ_ASSERT_STATUS(trace_region_dynamic(NULL, 0, 0, 1, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_dynamic(region, -1, 0, 1, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_dynamic(region, 0, -1, 1, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_dynamic(region, 0, TRACE_MAX_RANK, 1, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_dynamic(region, 0, 0, 3, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_dynamic(region, 0, 0, -1, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_OK(trace_region_dynamic(region, 0, 0, 0, 100));
    TJ_ASSERT_OK(trace_region_dynamic(region, 0, 0, 2, 8)); // the later one counts
    TJ_ASSERT_OK(twice(2, &v));
    TJ_ASSERT_OK(twice(8, &v));
    ck_assert_uint_eq(stats().graphs, 2); // exact for now
    TJ_ASSERT_STATUS(twice(1, &v), TRACE_ERR_SHAPE);
    TJ_ASSERT_STATUS(twice(9, &v), TRACE_ERR_SHAPE);
    ck_assert_msg(error_has("dim 0 of input 0 is 9") && error_has("2 to 8"), "%s", trace_last_error(ctx));
    trace_tensor *x = vec(4, 1);
    ck_assert(!trace_begin(region, NULL, 0));
    TJ_ASSERT_STATUS(trace_end(region, NULL, 0), TRACE_ERR_ARGUMENT);
    trace_tensor *scalar = trace_from(ctx, TRACE_F32, &v, TRACE_SCALAR);
    ck_assert(!trace_begin(region, TRACE_ARGS(scalar)));
    TJ_ASSERT_STATUS(trace_end(region, NULL, 0), TRACE_ERR_SHAPE);
    TJ_ASSERT_STATUS(trace_region_dynamic(region, 0, 0, 1, 2), TRACE_ERR_STATE);
    trace_release(scalar);
    trace_release(x);
    TJ_ASSERT_OK(twice(4, &v));
    close_all();
}
END_TEST

// ---- fork -----------------------------------------------------------------------------------------------------------

// The child runs what `f` runs, within a time; its exit status tells.
static void in_child(bool (*f)(void *arg), void *arg) {
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (!pid) {
        alarm(60);
        _exit(f(arg) ? 0 : 3);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: %s %d",
                  WIFSIGNALED(status) ? "signal" : "exit",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static bool child_runs(void *arg) {
    struct data *d = arg;
    static float out[RESULTS];
    if (data_run(d, out)) {
        fprintf(stderr, "child: %s\n", trace_last_error(NULL));
        return false;
    }
    if (memcmp(out, reference(), sizeof out))
        return false;
    if (trace_wait_ready(d->region, 30000) || data_run(d, out) || memcmp(out, reference(), sizeof out))
        return false;
    return trace_context_shutdown(d->ctx, 10000) == TRACE_OK;
}
static void *run_once(void *arg) {
    static float out[RESULTS];
    return (void *)(uintptr_t)data_run(arg, out);
}

#ifdef __SANITIZE_THREAD__ // it doesn't follow a child that starts threads
#define FORK_TESTS false
#else
#define FORK_TESTS true
#endif

START_TEST(fork_around_a_compile) {
    if (!FORK_TESTS)
        return;
    (void)reference();
    for (int background = 0; background < 2; background++) {
        for (int delay = 0; delay < 6; delay++) {
            trace_context *c;
            struct data d;
            pthread_t t;
            void *st;
            TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 2), &c));
            data_open(&d, c, (trace_region_options){.background = background, .background_policy = TRACE_POLICY_WAIT});
            in_child(child_runs, &d); // before
            ck_assert_int_eq(pthread_create(&t, NULL, run_once, &d), 0);
            usleep((useconds_t)(1000 + 4000 * delay));
            in_child(child_runs, &d); // during, most likely
            pthread_join(t, &st);
            ck_assert_uint_eq((uintptr_t)st, TRACE_OK);
            in_child(child_runs, &d); // after
            data_close(&d);
        }
    }
}
END_TEST

static atomic_bool steady_stop;
static void *steady(void *arg) {
    struct data *d = arg;
    float *out = malloc(RESULTS * sizeof *out);
    while (out && !atomic_load(&steady_stop)) {
        if (data_run(d, out)) {
            free(out);
            return arg;
        }
    }
    free(out);
    return NULL;
}
START_TEST(fork_while_others_run) {
    if (!FORK_TESTS)
        return;
    trace_context *c;
    struct data d;
    pthread_t t[3];
    (void)reference();
    atomic_store(&steady_stop, false);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 2), &c));
    data_open(&d, c, (trace_region_options){0});
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, steady, &d), 0);
    for (int i = 0; i < 30; i++)
        in_child(child_runs, &d);
    atomic_store(&steady_stop, true);
    for (int i = 0; i < 3; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        ck_assert_ptr_null(bad);
    }
    data_close(&d);
}
END_TEST

// A queue that the parent had not come to: the child's own thread works it off.
static bool child_compiles(void *arg) {
    (void)arg;
    float v;
    return !trace_wait_ready(region, 20000) && stats().graphs == 3 && !twice(5, &v) && v == 2 && stats().graphs == 3;
}
START_TEST(fork_with_a_queue) {
    if (!FORK_TESTS)
        return;
    float v;
    start_background(TRACE_POLICY_INTERPRET, 100 * MS);
    for (int n = 3; n < 6; n++)
        TJ_ASSERT_OK(twice(n, &v));
    while (!atomic_load(&compiles))
        usleep(1000);
    in_child(child_compiles, NULL);
    close_all();
}
END_TEST

// ---- the library's threads ------------------------------------------------------------------------------------------

static unsigned long long blocked_of(const char *task, char *name, size_t cap) {
    char path[300], line[200];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (!strncmp(line, "Name:\t", 6)) {
            snprintf(name, cap, "%s", line + 6);
            name[strcspn(name, "\n")] = '\0';
        }
        (void)sscanf(line, "SigBlk: %llx", &mask);
    }
    if (f)
        fclose(f);
    return mask;
}

START_TEST(names_and_masks) {
    if (!strcmp(tj_backend_cpu.name, "none"))
        return; // the interpreter starts no threads
    trace_context *c;
    struct data d;
    static float out[RESULTS];
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 3), &c));
    data_open(&d, c, (trace_region_options){.background = true, .background_policy = TRACE_POLICY_WAIT});
    TJ_ASSERT_OK(data_run(&d, out));
    int pool = 0, background = 0;
    char self[20];
    snprintf(self, sizeof self, "%d", (int)getpid());
    for (int tries = 0; tries < 1000 && (pool != 2 || background != 1); tries++) { // a thread names itself as it starts
        usleep(tries ? 5000 : 0);
        DIR *dir = opendir("/proc/self/task");
        ck_assert_ptr_nonnull(dir);
        pool = background = 0;
        for (struct dirent *e; (e = readdir(dir));) {
            if (e->d_name[0] == '.' || !strcmp(e->d_name, self))
                continue;
            char name[200] = "";
            unsigned long long mask = blocked_of(e->d_name, name, sizeof name);
            if (strncmp(name, "tracejit-", 9))
                continue; // a sanitizer's
            static const int host[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD, SIGPIPE, SIGPROF};
            for (size_t i = 0; i < TJ_COUNT(host); i++)
                ck_assert_msg(mask >> (host[i] - 1) & 1, "%s: signal %d", name, host[i]);
            background += !strcmp(name, "tracejit-bg");
            pool += name[9] >= '0' && name[9] <= '9';
        }
        closedir(dir);
    }
    ck_assert_int_eq(background, 1);
    ck_assert_int_eq(pool, 2);
    TJ_ASSERT_OK(trace_context_shutdown(c, 5000));
    data_close(&d);
}
END_TEST

// ---- threads that can't be started ----------------------------------------------------------------------------------

static atomic_int allowed; // threads that may be started; -1: any number
static bool no_threads(void) {
    int n = atomic_load(&allowed);
    return n < 0 || (n > 0 && atomic_fetch_sub(&allowed, 1) > 0);
}
static atomic_int fallbacks;
static char fallback[300];
static void count_fallbacks(void *user, const trace_event *e) {
    (void)user;
    if (e->kind == TRACE_EVENT_FALLBACK) {
        atomic_fetch_add(&fallbacks, 1);
        snprintf(fallback, sizeof fallback, "%s", e->what);
    }
}

static uint64_t kernels_of(trace_context *c) {
    trace_stats s = {.size = sizeof s};
    trace_context_stats(c, &s);
    return s.kernels;
}

// A graph of its own for each k; whether its value is right.
static bool other_graph(trace_context *c, trace_region *r, int k) {
    trace_tensor *x = trace_full_f(c, TRACE_DIMS(3), 2, TRACE_F32), *y = NULL;
    double v = 0;
    if (trace_begin(r, TRACE_ARGS(x))) {
        y = trace_exp(trace_mul_f(x, 0));
        for (int i = 0; i < k; i++)
            y = trace_add(y, x);
        y = trace_sum(y, NULL, 0, false);
    }
    bool ok = trace_end(r, &y, 1) == TRACE_OK && trace_item_f64(y, &v) == TRACE_OK && v == 3 + 6 * k;
    trace_release(x), trace_release(y);
    return ok;
}

// The compiler works on the calling thread where its stack is large enough.
START_TEST(compiles_without_a_thread) {
    if (!strcmp(tj_backend_cpu.name, "none"))
        return;
    trace_context *c;
    struct data d;
    static float out[RESULTS];
    tj_thread_hook = no_threads;
    for (int background = 0; background < 2; background++) {
        atomic_store(&allowed, 0);
        atomic_store(&fallbacks, 0);
        TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 3, .on_event = count_fallbacks), &c));
        data_open(&d, c, (trace_region_options){.background = background, .background_policy = TRACE_POLICY_WAIT});
        for (int run = 0; run < 3; run++) {
            TJ_ASSERT_OK(data_run(&d, out));
            ck_assert_mem_eq(out, reference(), sizeof out);
        }
        ck_assert_uint_gt(kernels_of(c), 0);
        // one event for the pool, one for the thread that compiles in the background
        ck_assert_int_eq(atomic_load(&fallbacks), 1 + background);
        atomic_store(&allowed, -1);
        for (int run = 0; run < 40; run++) // the pool gets its threads
            TJ_ASSERT_OK(data_run(&d, out));
        ck_assert_int_eq(tj_pool_missing(c->pool), 0);
        ck_assert_mem_eq(out, reference(), sizeof out);
        data_close(&d);
    }
    atomic_store(&allowed, 1); // of the two that the pool wants
    atomic_store(&fallbacks, 0);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 3, .on_event = count_fallbacks), &c));
    struct tj_pool *p = c->pool;
    data_open(&d, c, (trace_region_options){0});
    TJ_ASSERT_OK(data_run(&d, out));
    ck_assert_mem_eq(out, reference(), sizeof out);
    ck_assert_int_gt(tj_pool_missing(p), 0);
    ck_assert_int_eq(atomic_load(&fallbacks), 1);
    ck_assert(strstr(fallback, "of 3 threads"));
    tj_thread_hook = NULL;
    data_close(&d);
}
END_TEST

// On a small stack the interpreter takes over, says so once, and gives way when there are threads again.
static void *small_stack(void *arg) {
    trace_context *c = arg;
    trace_region *r;
    size_t left = tj_stack_left();
    ck_assert(left > 0 && left <= 256 << 10);
    TJ_ASSERT_OK(trace_region_create(c, "small", NULL, &r));
    atomic_store(&allowed, 0);
    for (int k = 0; k < 12; k++)
        ck_assert(other_graph(c, r, k) && other_graph(c, r, k));
    ck_assert_int_eq(atomic_load(&fallbacks), 1);
    ck_assert_msg(strstr(fallback, "no thread can be started") && strstr(fallback, "stack"), "%s", fallback);
    ck_assert_uint_eq(kernels_of(c), 0);
    TJ_ASSERT_STATUS(trace_warmup(r, NULL, 0), TRACE_ERR_BUSY);
    atomic_store(&allowed, -1);
    for (int k = 0; k < 70 && !kernels_of(c); k++)
        ck_assert(other_graph(c, r, 3));
    ck_assert_uint_gt(kernels_of(c), 0);
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    uint64_t was = s.interpreted_ops;
    for (int k = 0; k < 8; k++)
        ck_assert(other_graph(c, r, k));
    trace_region_stats(r, &s);
    ck_assert_uint_eq(s.interpreted_ops, was);
    atomic_store(&allowed, 0); // told again
    ck_assert(other_graph(c, r, 20));
    ck_assert_int_eq(atomic_load(&fallbacks), 2);
    trace_bound *b = NULL;
    trace_tensor *x = trace_full_f(c, TRACE_DIMS(5), 2, TRACE_F32);
    ck_assert(trace_begin(r, TRACE_ARGS(x)));
    trace_copy_(x, trace_tanh(trace_div(x, trace_exp(x))));
    ck_assert_int_ne(trace_end_bind(r, NULL, &b), TRACE_OK);
    ck_assert_ptr_null(b);
    trace_release(x);
    trace_region_release(r);
    return NULL;
}
START_TEST(interprets_without_a_thread) {
    if (!strcmp(tj_backend_cpu.name, "none"))
        return;
    trace_context *c;
    pthread_t t;
    pthread_attr_t attr;
    atomic_store(&fallbacks, 0);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = count_fallbacks), &c));
    ck_assert(!pthread_attr_init(&attr) && !pthread_attr_setstacksize(&attr, 256 << 10));
    tj_thread_hook = no_threads;
    ck_assert_int_eq(pthread_create(&t, &attr, small_stack, c), 0);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    tj_thread_hook = NULL;
    (void)pthread_attr_destroy(&attr);
    trace_context_release(c);
}
END_TEST

TJ_TEST_MAIN("threads", sixty_four_threads, thread_counts, host_variants, from_inside_a_task, policies, warm_up,
             failed_compile, breaks_in_background, estimates, events_that_begin, shutdown_cancels,
             shutdown_tells_waiters, cancel, bounds, fork_around_a_compile, fork_while_others_run, fork_with_a_queue,
             names_and_masks, compiles_without_a_thread, interprets_without_a_thread)
