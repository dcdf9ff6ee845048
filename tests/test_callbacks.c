// tests/test_callbacks.c: callbacks that call the library: each of them with each sensible call. What they interrupt,
// its values, status, text and errno, is as if they did nothing.
#include <errno.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "../include/tracejit.h"
#include "../trace/context.h"
#include "tj_test.h"

enum { N = 1 << 16 }; // large enough for parallel_for
enum from { EVENT, LOOP, ALLOC, FREE, DONE, MAP, SEAL, UNMAP, FROMS };
enum action {
    ABANDON_OTHER,
    ABANDON_OWN,
    ERROR,
    OPS,
    REGION,
    REGION_FAILS,
    NEVER_ENDS,
    REPORT,
    SHUTDOWN,
    WAIT,
    READ,
    LOOP_OPEN,
    EAGER,
    OTHER_CONTEXT,
    TRIM,
    ACTIONS
};
static struct {
    trace_context *ctx, *second;
    trace_region *own, *other, *eager;
    trace_tensor *x, *two; // of the program; of the callbacks
    enum from from;
    enum action action;
    bool on, busy;
    int calls, bad;
    bool in_region; // the callback interrupts a run
} h;

static void expect(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "callback %d, action %d: %s: %s\n", (int)h.from, (int)h.action, what, trace_last_error(NULL));
        h.bad++;
    }
}

static void use_region(trace_region *r, trace_tensor *two) {
    trace_tensor *y = NULL;
    if (trace_begin(r, TRACE_ARGS(two)))
        y = trace_add_f(trace_exp(trace_mul_f(two, 0)), h.calls);
    float v = 0;
    expect(!trace_end(r, &y, 1) && !trace_read(y, &v, sizeof v) && v == (float)(1 + h.calls), "region");
    trace_release(y);
}

static void act(void) {
    trace_context *ctx = h.ctx;
    trace_stats stats = {.size = sizeof stats};
    size_t need = 0;
    double v = 0;
    switch (h.action) {
    case ABANDON_OTHER: trace_abandon(h.other); break;
    case ABANDON_OWN: trace_abandon(h.own); break;
    case ERROR:
        expect(!trace_reshape(h.two, TRACE_DIMS(7)), "reshape");
        expect(strstr(trace_last_error(ctx), "reshape") != NULL, "text");
        expect(!trace_begin(NULL, NULL, 0), "begin");
        errno = E2BIG;
        break;
    case OPS: {
        trace_tensor *y = trace_sum(trace_retain(h.two), NULL, 0, false);
        expect(y && !trace_item_f64(y, &v) && v == 2, "ops");
        trace_release(y), trace_release(h.two);
        break;
    }
    case REGION: use_region(h.other, h.two); break;
    case REGION_FAILS: {
        trace_tensor *y = NULL;
        if (trace_begin(h.other, TRACE_ARGS(h.two)))
            y = trace_softmax(h.two, 5);
        expect(trace_end(h.other, &y, 1) == TRACE_ERR_ARGUMENT && !y, "end");
        expect(trace_end(h.own, NULL, 0) == TRACE_ERR_STATE, "end of the run it interrupts");
        break;
    }
    case NEVER_ENDS:
        expect(trace_begin(h.other, TRACE_ARGS(h.two)), "begin");
        (void)!trace_neg(h.two);
        break;
    case REPORT:
        trace_context_stats(ctx, &stats);
        trace_region_stats(h.own, &stats);
        expect(trace_context_report(ctx, TRACE_FORMAT_TEXT, NULL, 0, &need) == TRACE_ERR_MEMORY && need, "report");
        expect(trace_explain(h.own, TRACE_FORMAT_PROMETHEUS, NULL, 0, &need) == TRACE_ERR_ARGUMENT, "explain");
        expect(!trace_failed(ctx), "failed");
        break;
    case SHUTDOWN:
        if (h.in_region)
            expect(trace_context_shutdown(ctx, 0) == TRACE_ERR_STATE, "shutdown");
        break;
    case WAIT: expect(trace_wait_ready(h.own, -1) == TRACE_OK, "wait"); break;
    case READ:
        expect(!trace_item_f64(h.two, &v) && v == 2, "read");
        expect(!trace_write(h.two, &(float){2}, 4), "write");
        break;
    case LOOP_OPEN: {
        trace_tensor *c = h.two;
        expect(!trace_repeat(2, &c, 1), "repeat"); // and never ends it
        break;
    }
    case EAGER: {
        trace_tensor *y = NULL;
        if (trace_begin(h.eager, TRACE_ARGS(h.two)))
            y = trace_neg(trace_square(h.two));
        expect(!trace_end(h.eager, &y, 1) && !trace_item_f64(y, &v) && v == -4, "eager");
        trace_release(y);
        break;
    }
    case OTHER_CONTEXT: {
        trace_tensor *y = trace_full_f(h.second, TRACE_DIMS(2), 3, TRACE_F32), *z = trace_sum(y, NULL, 0, false);
        expect(z && !trace_item_f64(z, &v) && v == 6, "other context");
        trace_release(y), trace_release(z);
        break;
    }
    case TRIM: (void)trace_context_trim(ctx); break;
    case ACTIONS: break;
    }
}

static void called(enum from from) {
    if (!h.on || h.busy || from != h.from)
        return;
    h.busy = true;
    h.calls++;
    if (h.action != NEVER_ENDS && h.action != LOOP_OPEN) // parallel_for does so for every task
        expect(tj_current == NULL, "no open run");
    act();
    h.busy = false;
}
static void on_event(void *user, const trace_event *e) { (void)user, (void)e, called(EVENT); }
static void loop(void *user, size_t n, void (*body)(void *arg, size_t i), void *arg) {
    (void)user;
    for (size_t i = 0; i < n; i++) {
        called(LOOP);
        body(arg, i);
    }
    called(LOOP);
}
static void *alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    void *p = NULL;
    called(ALLOC);
    return posix_memalign(&p, align, bytes) ? NULL : p;
}
static void release(void *user, void *p, size_t bytes) {
    (void)user, (void)bytes;
    free(p);
    called(FREE);
}
static void done(void *user) { (void)user, called(DONE); }
static void *map(void *user, size_t bytes) {
    (void)user;
    called(MAP);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}
static int seal(void *user, void *p, size_t bytes) {
    (void)user;
    called(SEAL);
    return mprotect(p, bytes, PROT_READ | PROT_EXEC);
}
static void unmap(void *user, void *p, size_t bytes) {
    (void)user;
    called(UNMAP);
    ck_assert_int_eq(munmap(p, bytes), 0);
}

// Runs of everything that calls back: wrapped memory that ends in a body, a graph break, results, an error, an op
// alone.
static void program(void) {
    static float memory[64], out[N];
    for (int run = 0; run < 2; run++) {
        trace_tensor *y = NULL;
        trace_tensor *w = trace_wrap_desc(h.ctx, TRACE_TENSOR_DESC(.dtype = TRACE_F32, .dims = (int64_t[]){64},
                                                                   .rank = 1, .data = memory, .done = done));
        ck_assert(w);
        h.in_region = true;
        ck_assert(trace_begin(h.own, TRACE_ARGS(h.x)));
        trace_release(w); // ends in the body
        errno = 77;
        y = trace_exp(trace_mul_f(h.x, run));
        double sum = 0;
        TJ_ASSERT_OK(trace_item_f64(trace_sum(trace_narrow(y, 0, 0, 2 + run), NULL, 0, false), &sum));
        ck_assert(sum == 2 + run);
        trace_tensor *half = trace_from(h.ctx, TRACE_F32, (float[]){0.5f}, TRACE_DIMS(1));
        y = trace_add(trace_add(y, trace_cos(h.x)), half);
        trace_release(half);
        TJ_ASSERT_OK(trace_end(h.own, &y, 1));
        ck_assert_int_eq(errno, 77);
        h.in_region = false;
        TJ_ASSERT_OK(trace_read(y, out, sizeof out));
        ck_assert(out[0] == 2.5f && out[N - 1] == 2.5f);
        trace_release(y);
        // an error with events and allocations on its way
        h.in_region = true;
        if (trace_begin(h.own, TRACE_ARGS(h.x))) {
            TJ_ASSERT_OK(trace_item_f64(trace_sum(trace_sub_f(h.x, run), NULL, 0, false), &sum));
            y = trace_reshape(h.x, TRACE_DIMS(3));
        }
        TJ_ASSERT_STATUS(trace_end(h.own, &y, 1), TRACE_ERR_SHAPE);
        h.in_region = false;
        ck_assert_msg(strstr(trace_last_error(NULL), "reshape") && strstr(trace_last_error(NULL), "[3]"), "%s",
                      trace_last_error(NULL));
        trace_tensor *z = trace_tanh(h.x); // an op alone, while nothing is open
        ck_assert(z);
        TJ_ASSERT_OK(trace_read(z, out, sizeof out));
        ck_assert(out[N / 2] == 0);
        trace_release(z);
        z = trace_full_i(h.ctx, TRACE_DIMS(3), 5 + run, TRACE_I64); // without operands
        ck_assert(z);
        trace_release(z);
    }
}

// _i: what calls back
START_TEST(callbacks_call) {
    h.from = (enum from)_i;
    bool compiled = strcmp(tj_backend_cpu.name, "none") != 0 && !getenv("TRACEJIT_NO");
    static float zeros[N];
    h.on = false;
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 2, .on_event = on_event, .parallel_for = loop,
                                                            .alloc = alloc, .free = release, .code_map = map,
                                                            .code_seal = seal, .code_unmap = unmap),
                                      &h.ctx));
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = on_event), &h.second));
    TJ_ASSERT_OK(trace_region_create(h.ctx, "other", NULL, &h.other));
    TJ_ASSERT_OK(trace_region_create(h.ctx, "eager", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_EAGER), &h.eager));
    h.x = trace_from(h.ctx, TRACE_F32, zeros, TRACE_DIMS(N));
    h.two = trace_from(h.ctx, TRACE_F32, (float[]){2}, TRACE_DIMS(1));
    ck_assert(h.x && h.two);
    for (h.action = 0; h.action < ACTIONS; h.action++) {
        h.calls = h.bad = 0;
        TJ_ASSERT_OK(trace_region_create(h.ctx, "own", NULL, &h.own));
        h.on = true;
        program();
        trace_region *own = h.own;
        h.own = h.other;
        trace_region_release(own);
        if (h.from == ALLOC || h.from == FREE || h.from >= MAP) // the next turn allocates and compiles again
            (void)trace_context_trim(h.ctx);
        h.on = false;
        ck_assert_int_eq(h.bad, 0);
        ck_assert_msg(h.calls > 0 || (!compiled && (h.from >= MAP || h.from == LOOP)), "never called");
        ck_assert_ptr_null(tj_current);
        ck_assert_int_eq(atomic_load(&h.x->refs), 1);
        ck_assert_int_eq(atomic_load(&h.two->refs), 1);
    }
    trace_release(h.x), trace_release(h.two);
    trace_region_release(h.other), trace_region_release(h.eager);
    TJ_ASSERT_OK(trace_context_shutdown(h.ctx, 1000));
    trace_context_release(h.ctx), trace_context_release(h.second);
}
END_TEST

// A handler gives back what is being used: the region of the run, the context of an op alone, the operands.
static struct {
    trace_context *ctx;
    trace_region *region;
    trace_tensor *x;
} gone;
static void gives_back(void *user, const trace_event *e) {
    (void)user, (void)e;
    trace_release(gone.x), trace_region_release(gone.region), trace_context_release(gone.ctx);
    gone.x = NULL, gone.region = NULL, gone.ctx = NULL;
}
START_TEST(handlers_release) {
    for (int alone = 0; alone < 3; alone++) {
        TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = gives_back), &gone.ctx));
        TJ_ASSERT_OK(trace_region_create(gone.ctx, "gone", NULL, &gone.region));
        trace_region *r = gone.region;
        trace_tensor *x = gone.x = trace_from(gone.ctx, TRACE_F32, (float[]){3, 4}, TRACE_DIMS(2)), *y = NULL;
        float v[2] = {0};
        if (alone == 2) {
            trace_release(gone.x), trace_region_release(gone.region);
            gone.x = NULL, gone.region = NULL;
            y = trace_full_f(gone.ctx, TRACE_DIMS(2), 16, TRACE_F32);
        } else if (alone) {
            trace_region_release(gone.region);
            gone.region = NULL;
            trace_retain(x); // operands stay for the call
            y = trace_square(x);
            trace_release(x);
        } else {
            if (trace_begin(r, TRACE_ARGS(x)))
                y = trace_square(x);
            TJ_ASSERT_OK(trace_end(r, &y, 1));
        }
        ck_assert(y);
        TJ_ASSERT_OK(trace_read(y, v, sizeof v));
        ck_assert(v[1] == 16);
        ck_assert_ptr_null(gone.ctx);
        trace_release(y); // and with it all
    }
}
END_TEST

// A handler that leaves by a longjmp, out of a run begun in another handler.
static jmp_buf away;
static int leave_at;
static void leaves(void *user, const trace_event *e) {
    (void)user, (void)e;
    if (!leave_at || !h.on)
        return;
    if (--leave_at == 0)
        longjmp(away, 1);
    trace_tensor *y = NULL;
    if (trace_begin(h.other, TRACE_ARGS(h.two)))
        y = trace_add_f(trace_sin(h.two), leave_at);
    if (trace_end(h.other, &y, 1) == TRACE_OK)
        trace_release(y);
}
START_TEST(handlers_leave) {
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = leaves), &h.ctx));
    TJ_ASSERT_OK(trace_region_create(h.ctx, "other", TRACE_REGION_OPTIONS(.dynamic = TRACE_DYNAMIC_OFF), &h.other));
    h.two = trace_from(h.ctx, TRACE_F32, (float[]){2}, TRACE_DIMS(1));
    h.on = true;
    for (volatile int turn = 0; turn < 6; turn++) {
        TJ_ASSERT_OK(trace_region_create(h.ctx, "own", NULL, &h.own));
        trace_tensor *volatile y = NULL;
        leave_at = 1 + turn % 2;
        if (!setjmp(away)) {
            trace_tensor *z = NULL;
            if (turn >= 4) {
                z = trace_amax(trace_cos(h.two), NULL, 0, false);
            } else {
                if (trace_begin(h.own, TRACE_ARGS(h.two)))
                    z = trace_log(trace_add_f(h.two, turn));
                ck_assert(trace_end(h.own, &z, 1) == TRACE_OK);
            }
            y = z;
        }
        leave_at = 0;
        trace_abandon(h.own);
        ck_assert_ptr_null(tj_current);
        ck_assert_ptr_null(tj_executing);
        trace_tensor *z = NULL;
        if (trace_begin(h.own, TRACE_ARGS(h.two)))
            z = trace_mul(h.two, h.two);
        TJ_ASSERT_OK(trace_end(h.own, &z, 1));
        double v = 0;
        TJ_ASSERT_OK(trace_item_f64(z, &v));
        ck_assert(v == 4);
        trace_release(z), trace_release(y);
        trace_region_release(h.own);
        h.own = h.other;
    }
    trace_release(h.two);
    trace_region_release(h.other);
    TJ_ASSERT_OK(trace_context_shutdown(h.ctx, 1000));
    trace_context_release(h.ctx);
}
END_TEST

// An event of a background compile, on the thread that compiles.
static atomic_int background_bad, background_calls;
static void on_background(void *user, const trace_event *e) {
    trace_region *r = h.own;
    (void)user;
    if (e->kind != TRACE_EVENT_COMPILE)
        return;
    atomic_fetch_add(&background_calls, 1);
    bool ok = trace_wait_ready(r, -1) == TRACE_ERR_STATE && trace_context_shutdown(h.ctx, -1) == TRACE_ERR_STATE;
    trace_abandon(r);
    double v = 0;
    trace_tensor *y = trace_full_f(h.ctx, TRACE_SCALAR, 8, TRACE_F64);
    ok = ok && y && trace_item_f64(y, &v) == TRACE_OK && v == 8;
    trace_release(y);
    atomic_fetch_add(&background_bad, !ok);
}
START_TEST(background_events) {
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = on_background), &h.ctx));
    TJ_ASSERT_OK(trace_region_create(
        h.ctx, "own", TRACE_REGION_OPTIONS(.background = true, .background_policy = TRACE_POLICY_WAIT), &h.own));
    trace_tensor *x = trace_from(h.ctx, TRACE_F32, (float[]){2}, TRACE_DIMS(1)), *y = NULL;
    if (trace_begin(h.own, TRACE_ARGS(x)))
        y = trace_square(x);
    TJ_ASSERT_OK(trace_end(h.own, &y, 1));
    TJ_ASSERT_OK(trace_wait_ready(h.own, -1));
    ck_assert_int_eq(atomic_load(&background_bad), 0);
    ck_assert_int_gt(atomic_load(&background_calls), 0);
    trace_release(x), trace_release(y);
    trace_region_release(h.own);
    TJ_ASSERT_OK(trace_context_shutdown(h.ctx, 5000));
    trace_context_release(h.ctx);
}
END_TEST

TJ_TEST_MAIN_TURNS("callbacks", {callbacks_call, FROMS}, {handlers_release, 1}, {handlers_leave, 1},
                   {background_events, 1})
