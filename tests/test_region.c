// tests/test_region.c: regions without a compiler: states, nesting, breaks, plan tables, reports, threads. A backend of
// the test's own counts compiles and runs plans through the interpreter.
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "../include/tracejit.h"
#include "../lib/hash.h"
#include "../lib/strbuf.h"
#include "../trace/region.h"
#include "tj_test.h"

// ---- the backend ----------------------------------------------------------------------------------------------------

struct tj_plan {
    struct tj_trace trace;
    struct tj_segment seg;
    tj_ref outs[256], writes[256];
};
static bool run_nothing; // plans touch no memory: what the interpreter allocates doesn't count
static atomic_int compiles, live_plans, compile_fails, create_fails;
static atomic_int outs_stored; // of all runs
static _Atomic uint64_t compile_ns;

static tj_status fake_create(trace_context *ctx, void **state) {
    if (atomic_load(&create_fails))
        return tj_fail(TRACE_ERR_UNAVAILABLE, "the test has no compiler");
    *state = ctx;
    return TRACE_OK;
}
static void fake_destroy(void *state) { (void)state; }
static tj_status fake_compile(void *state, const struct tj_segment *seg, struct tj_plan **plan,
                              struct tj_plan_info *info) {
    (void)state;
    char err[200];
    ck_assert_msg(tj_trace_verify(seg->trace, err, sizeof err), "segment: %s", err);
    for (uint32_t i = 0; i < seg->trace->nleaves; i++)
        ck_assert_ptr_nonnull(seg->trace->leaves[i].tensor);
    atomic_fetch_add(&compiles, 1);
    if (atomic_load(&compile_ns)) {
        uint64_t end = tj_now_ns() + atomic_load(&compile_ns);
        while (tj_now_ns() < end)
            continue;
    }
    if (atomic_load(&compile_fails))
        return tj_fail(TRACE_ERR_COMPILE, "the test's compiler fails");
    struct tj_plan *p = tj_calloc(1, sizeof *p);
    if (!p)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory");
    ck_assert(seg->nouts <= 256 && seg->nwrites <= 256);
    tj_trace_init(&p->trace);
    if (!tj_trace_copy(&p->trace, seg->trace)) {
        tj_free(p);
        return tj_fail(TRACE_ERR_MEMORY, "out of memory");
    }
    p->seg = *seg;
    p->seg.trace = &p->trace;
    memcpy(p->outs, seg->outs, seg->nouts * sizeof(tj_ref));
    memcpy(p->writes, seg->writes, seg->nwrites * sizeof(tj_ref));
    p->seg.outs = p->outs;
    p->seg.writes = p->writes;
    atomic_fetch_add(&live_plans, 1);
    *info = (struct tj_plan_info){.ops = seg->trace->nnodes, .kernels = 1, .new_kernels = 1, .bytes_code = 1000};
    *plan = p;
    return TRACE_OK;
}
static tj_status fake_run(struct tj_plan *p, const struct tj_run_args *args) {
    atomic_fetch_add_explicit(&outs_stored, (int)p->seg.nouts, memory_order_relaxed);
    return run_nothing ? TRACE_OK : tj_interp_run(&p->seg, args);
}
static void fake_release(struct tj_plan *p) {
    tj_trace_free(&p->trace);
    tj_free(p);
    atomic_fetch_sub(&live_plans, 1);
}
static void fake_describe(const struct tj_plan *p, struct tj_strbuf *sb) {
    tj_sb_printf(sb, "fake plan of %u nodes", p->trace.nnodes);
}
static const struct tj_backend fake = {.name = "fake",
                                       .create = fake_create,
                                       .destroy = fake_destroy,
                                       .compile = fake_compile,
                                       .run = fake_run,
                                       .release = fake_release,
                                       .describe = fake_describe};

// ---- events ---------------------------------------------------------------------------------------------------------

struct events {
    pthread_mutex_t lock;
    int count[8];
    int input, dim;
    int64_t from, to;
    char last[8][600], where[8][200];
};
static struct events events = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_event(void *user, const trace_event *e) {
    struct events *k = user;
    pthread_mutex_lock(&k->lock);
    k->count[e->kind]++;
    snprintf(k->last[e->kind], sizeof k->last[0], "%s", e->what);
    snprintf(k->where[e->kind], sizeof k->where[0], "%s", e->where);
    if (e->kind == TRACE_EVENT_RECOMPILE)
        k->input = e->input, k->dim = e->dim, k->from = e->from, k->to = e->to;
    pthread_mutex_unlock(&k->lock);
}

static trace_context *ctx;
static trace_region *region;

static void start_options(trace_region_options opt) {
    memset(events.count, 0, sizeof events.count);
    atomic_store(&compiles, 0);
    TJ_ASSERT_OK(
        trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = on_event, .event_user = &events, .threads = 1), &ctx));
    ctx->backend = &fake;
    opt.size = sizeof opt;
    TJ_ASSERT_OK(trace_region_create(ctx, "test", &opt, &region));
}
static void start(void) { start_options((trace_region_options){0}); }
static void close_all(void) {
    trace_region_release(region);
    ck_assert_ptr_null(ctx->tensors);
    ck_assert_ptr_null(ctx->regions);
    ck_assert_int_eq(atomic_load(&ctx->refs), 1);
    trace_context_release(ctx);
    ck_assert_int_eq(atomic_load(&live_plans), 0);
}
static trace_tensor *vec(int n, float first) {
    float v[64];
    for (int i = 0; i < n; i++)
        v[i] = first + (float)i;
    trace_tensor *t = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(n));
    ck_assert_ptr_nonnull(t);
    return t;
}
static float first_of(trace_tensor *t) {
    float v[64];
    ck_assert_ptr_nonnull(t);
    TJ_ASSERT_OK(trace_read(t, v, (size_t)trace_numel(t) * sizeof(float)));
    return v[0];
}
static trace_stats stats(void) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(region, &s);
    return s;
}
static bool error_has(const char *part) { return strstr(trace_last_error(ctx), part) != NULL; }

// ---- states ---------------------------------------------------------------------------------------------------------

START_TEST(runs_and_hits) {
    start();
    trace_tensor *x = vec(4, 1);
    for (int i = 0; i < 5; i++) {
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_relu(trace_mul_f(x, 2 + i));
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == (float)(2 + i));
        trace_release(y);
    }
    trace_stats s = stats();
    ck_assert_uint_eq(s.runs, 5);
    ck_assert_uint_eq(s.misses, 1);
    ck_assert_uint_eq(s.hits, 4);
    ck_assert_uint_eq(s.graphs, 1);
    ck_assert_uint_eq(s.recompiles, 0);
    ck_assert_uint_eq(s.ops_recorded, 10);
    ck_assert_int_eq(atomic_load(&compiles), 1);
    ck_assert_int_eq(events.count[TRACE_EVENT_COMPILE], 1);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(wrong_order) {
    start();
    trace_tensor *x = vec(4, 1), *y = x;
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_STATE); // no begin
    ck_assert_ptr_null(y);
    ck_assert(error_has("was not begun"));
    ck_assert(!trace_begin(NULL, NULL, 0));
    TJ_ASSERT_STATUS(trace_end(NULL, NULL, 0), TRACE_ERR_ARGUMENT);
    ck_assert(!trace_begin(region, (trace_tensor *[]){NULL}, 1)); // NULL input
    ck_assert(trace_failed(ctx));
    TJ_ASSERT_STATUS(trace_end(region, NULL, 0), TRACE_ERR_ARGUMENT);
    ck_assert(error_has("region 'test'") && error_has("input 0"));
    ck_assert(!trace_failed(ctx));
    // an output that isn't there
    y = NULL;
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_ARGUMENT);
    // a stale handle
    trace_tensor *old = NULL;
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    old = trace_relu(x);
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    y = trace_relu(old);
    ck_assert_ptr_null(y);
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_DEAD);
    double d = 1;
    TJ_ASSERT_STATUS(trace_item_f64(old, &d), TRACE_ERR_DEAD);
    ck_assert(isnan(d));
    // the first error wins, and the next run is right
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    trace_tensor *z = vec(3, 1);
    y = trace_add(x, z);
    ck_assert_ptr_null(y);
    y = trace_relu(y);
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_SHAPE);
    ck_assert(error_has("add"));
    y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_add(x, x);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 2);
    trace_release(y);
    // abandon
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    (void)trace_relu(x);
    trace_abandon(region);
    trace_abandon(region);
    TJ_ASSERT_STATUS(trace_end(region, NULL, 0), TRACE_ERR_STATE);
    ck_assert_uint_eq(stats().errors, 4);
    trace_release(x);
    trace_release(z);
    close_all();
}
END_TEST

static void *end_elsewhere(void *arg) {
    (void)arg;
    ck_assert(trace_end(region, NULL, 0) == TRACE_ERR_STATE);
    ck_assert_msg(error_has("another thread") && error_has("host.c:7"), "%s", trace_last_error(ctx));
    return NULL;
}
START_TEST(ended_on_another_thread) {
    start();
    pthread_t t;
    ck_assert(trace_begin_at(region, NULL, 0, "host.c", 7));
    ck_assert_int_eq(pthread_create(&t, NULL, end_elsewhere, NULL), 0);
    pthread_join(t, NULL);
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    close_all();
}
END_TEST

START_TEST(outputs) {
    start();
    float memory[4] = {1, 2, 3, 4};
    trace_tensor *x = vec(4, 1), *w = trace_wrap(ctx, TRACE_F32, memory, TRACE_DIMS(4)), *out[6] = {0};
    if (trace_begin(region, TRACE_ARGS(x, w))) {
        trace_tensor *h = trace_add(x, w);
        out[0] = h, out[1] = h;                      // twice: two references
        out[2] = x;                                  // an input: itself
        out[3] = trace_reshape(x, TRACE_DIMS(2, 2)); // a view of an input: shares its memory
        out[4] = trace_reshape(w, TRACE_DIMS(2, 2)); // of borrowed memory: a copy
        out[5] = trace_reshape(h, TRACE_DIMS(2, 2)); // of a computed value: a tensor of its own
    }
    TJ_ASSERT_OK(trace_end(region, out, 6));
    ck_assert_ptr_eq(out[0], out[1]);
    ck_assert_ptr_eq(out[2], x);
    ck_assert_ptr_eq(out[3]->st, x->st);
    ck_assert(out[4]->st != w->st);
    TJ_ASSERT_OK(trace_write(x, (float[]){9, 8, 7, 6}, 16));
    ck_assert(first_of(out[3]) == 9);
    memory[0] = 5;
    ck_assert(first_of(out[4]) == 1);
    ck_assert(first_of(out[5]) == 2 && trace_rank(out[5]) == 2);
    for (int i = 0; i < 6; i++)
        trace_release(out[i]);
    // written input returned through a view: the memory after the run
    trace_tensor *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        y = trace_reshape(x, TRACE_DIMS(2, 2));
        trace_add_f_(x, 1);
    }
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 10 && first_of(x) == 10);
    trace_release(y);
    trace_release(x);
    trace_release(w);
    close_all();
}
END_TEST

START_TEST(placeholders) {
    start();
    float memory[4] = {1, 2, 3, 4};
    trace_tensor *p = trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(4)), *y = NULL;
    trace_tensor *x = trace_wrap(ctx, TRACE_F32, memory, TRACE_DIMS(4));
    if (trace_begin(region, TRACE_ARGS(p)))
        y = trace_mul_f(p, 3);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert_int_eq(atomic_load(&compiles), 1);
    float v[4];
    TJ_ASSERT_STATUS(trace_read(y, v, sizeof v), TRACE_ERR_STATE);
    trace_release(y);
    y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_mul_f(x, 3);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 3);
    ck_assert_int_eq(atomic_load(&compiles), 1);
    trace_release(y);
    trace_release(x);
    trace_release(p);
    close_all();
}
END_TEST

// ---- nesting --------------------------------------------------------------------------------------------------------

static enum trace_status inner(trace_region *r, trace_tensor *x, bool good, trace_tensor **y) {
    *y = NULL;
    if (trace_begin(r, &x, 1))
        *y = good ? trace_relu(x) : trace_reshape(x, TRACE_DIMS(77));
    return trace_end(r, y, 1);
}
START_TEST(nesting) {
    start();
    trace_region *in;
    TJ_ASSERT_OK(trace_region_create(ctx, "inner", NULL, &in));
    trace_tensor *x = vec(4, 1), *y = NULL, *e = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        TJ_ASSERT_OK(inner(in, x, true, &e));
        ck_assert(tj_is_value(e));
        y = trace_add_f(e, 1);
        trace_release(e);
    }
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 2);
    trace_release(y);
    ck_assert_uint_eq(stats().nested, 1);
    ck_assert_uint_eq(stats().graphs, 1);
    // a failed inner end rolls back and leaves the outer alone
    y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        trace_tensor *h = trace_mul_f(x, 2);
        uint32_t before = tj_current->trace.nnodes;
        TJ_ASSERT_STATUS(inner(in, h, false, &e), TRACE_ERR_SHAPE);
        ck_assert(error_has("region 'inner'"));
        ck_assert_ptr_null(e);
        ck_assert(!trace_failed(ctx));
        for (uint32_t i = before; i < tj_current->trace.nnodes; i++)
            ck_assert_int_eq(tj_current->values[i].state, TJ_V_DEAD);
        TJ_ASSERT_OK(inner(in, h, true, &e));
        y = e;
    }
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 2);
    trace_release(y);
    // a write inside a failed scope is undone
    if (trace_begin(region, TRACE_ARGS(x))) {
        if (trace_begin(in, TRACE_ARGS(x)))
            trace_add_f_(x, 100), e = trace_reshape(x, TRACE_DIMS(5));
        ck_assert(trace_end(in, &e, 1) != TRACE_OK);
    }
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    ck_assert(first_of(x) == 1);
    // the outer end tells the inner error when its output hangs on it
    y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        (void)!inner(in, x, false, &e);
        (void)!inner(in, e, true, &y);
    }
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_SHAPE);
    ck_assert_msg(error_has("reshape"), "%s", trace_last_error(ctx));
    // open inner scope at the outer end
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    ck_assert(trace_begin(in, TRACE_ARGS(x)));
    y = x;
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_STATE);
    ck_assert(error_has("inner"));
    ck_assert_ptr_null(y);
    ck_assert_ptr_null(tj_current);
    // abandoned inner scope
    y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        if (trace_begin(in, TRACE_ARGS(x)))
            (void)trace_relu(x);
        trace_abandon(in);
        y = trace_mul_f(x, 4);
    }
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 4);
    trace_release(y);
    trace_release(x);
    trace_region_release(in);
    close_all();
}
END_TEST

START_TEST(nested_refused) {
    start();
    trace_region *in, *other;
    trace_context *second;
    TJ_ASSERT_OK(trace_region_create(ctx, "strict", TRACE_REGION_OPTIONS(.nested_is_error = true), &in));
    TJ_ASSERT_OK(trace_context_create(NULL, &second));
    TJ_ASSERT_OK(trace_region_create(second, "other", NULL, &other));
    trace_tensor *x = vec(4, 1), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        ck_assert(!trace_begin(in, TRACE_ARGS(x)));
        TJ_ASSERT_STATUS(trace_end(in, NULL, 0), TRACE_ERR_STATE);
        ck_assert(!trace_begin(other, NULL, 0));
        TJ_ASSERT_STATUS(trace_end(other, NULL, 0), TRACE_ERR_STATE);
        y = trace_relu(x);
    }
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    trace_release(y);
    trace_release(x);
    trace_region_release(in);
    trace_region_release(other);
    trace_context_release(second);
    close_all();
}
END_TEST

// ---- breaks ---------------------------------------------------------------------------------------------------------

// p7_branch.c's loop: how often it turns depends on the value.
static trace_tensor *relax(trace_tensor *x, int trips) {
    for (int i = 0; i < trips; i++) {
        double step = 0;
        trace_tensor *n = trace_mul_f(x, 0.5);
        if (trace_item_f64(trace_sub(x, n), &step))
            return NULL;
        x = n;
    }
    return x;
}
static double relax_run(float start, int trips) {
    trace_tensor *x = vec(1, start), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = relax(x, trips);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    double v;
    TJ_ASSERT_OK(trace_item_f64(y, &v));
    trace_release(y);
    trace_release(x);
    return v;
}
START_TEST(loop_with_break) {
    start();
    ck_assert(relax_run(8, 3) == 1);
    int first = atomic_load(&compiles);
    ck_assert_msg(first <= 5, "%d plans", first);
    ck_assert(relax_run(1024, 10) == 1);
    ck_assert_msg(atomic_load(&compiles) == first, "the second run compiled %d", atomic_load(&compiles) - first);
    ck_assert(relax_run(ldexpf(1, 100), 100) == 1);
    ck_assert(relax_run(ldexpf(1, 57), 57) == 1);
    ck_assert_int_eq(atomic_load(&compiles), first);
    ck_assert_int_eq(events.count[TRACE_EVENT_BREAK], 1);
    ck_assert(strstr(events.last[TRACE_EVENT_BREAK], "trace_item_f64"));
    ck_assert(strstr(events.last[TRACE_EVENT_BREAK], "after trace_end"));
    ck_assert_uint_eq(stats().breaks, 170);
    ck_assert_uint_eq(stats().recompiles, 0);
    // a steady turn stores what is read and what is used
    atomic_store(&outs_stored, 0);
    (void)relax_run(1024, 10);
    ck_assert_int_le(atomic_load(&outs_stored), 20);
    close_all();
}
END_TEST

START_TEST(break_in_branch) {
    start();
    trace_tensor *x = vec(1, 3);
    for (int i = 0; i < 4; i++) {
        double v;
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            trace_tensor *h = trace_mul_f(x, 2), *k = trace_add_f(h, 1), *unused = trace_mul_f(k, 5);
            (void)unused;
            TJ_ASSERT_OK(trace_item_f64(k, &v));
            ck_assert(v == 7);
            y = v > 5 ? trace_mul(h, k) : h;
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == 42);
        trace_release(y);
        if (i == 0)
            atomic_store(&compiles, 0);
    }
    ck_assert_int_eq(atomic_load(&compiles), 0);
    trace_release(x);
    close_all();
}
END_TEST

// A value that the first runs don't use is computed again when a later one does, and stored from then on.
START_TEST(late_use) {
    start();
    trace_tensor *x = vec(1, 3);
    int made[6];
    for (int i = 0; i < 6; i++) {
        double v;
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            trace_tensor *h = trace_mul_f(x, 2), *k = trace_add_f(h, 1);
            TJ_ASSERT_OK(trace_item_f64(k, &v));
            y = i < 2 ? trace_neg(k) : trace_mul_f(h, 10);
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == (i < 2 ? -7 : 60));
        trace_release(y);
        made[i] = atomic_load(&compiles);
    }
    ck_assert_int_eq(made[1], made[0]);
    ck_assert_int_eq(made[4], made[3]);
    ck_assert_int_eq(made[5], made[3]);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(break_and_writes) {
    start();
    for (int round = 0; round < 3; round++) {
        trace_tensor *x = vec(2, 1), *s = vec(1, 5), *out[3] = {0};
        double v, v2;
        if (trace_begin(region, TRACE_ARGS(x, s))) {
            trace_tensor *old = trace_mul_f(x, 10); // of the content before the write: must survive it
            trace_tensor *lazy = trace_mul_f(old, 2);
            trace_add_f_(x, 1);
            trace_tensor *mid = trace_mul_f(x, 100); // of the content between two writes
            trace_add_f_(x, 1);
            TJ_ASSERT_OK(trace_item_f64(trace_mul_f(s, 2), &v));
            ck_assert(v == 10);
            trace_add_f_(x, 1);
            float now[2];
            TJ_ASSERT_OK(trace_read(x, now, sizeof now)); // its pending write runs
            ck_assert(now[0] == 4);
            TJ_ASSERT_OK(trace_item_f64(trace_mul_f(s, 3), &v2));
            out[0] = old, out[1] = lazy, out[2] = mid;
        }
        TJ_ASSERT_OK(trace_end(region, out, 3));
        ck_assert(first_of(x) == 4);
        ck_assert(first_of(out[0]) == 10);
        ck_assert(first_of(out[1]) == 20);
        ck_assert(first_of(out[2]) == 200);
        for (int i = 0; i < 3; i++)
            trace_release(out[i]);
        trace_release(x);
        trace_release(s);
        if (round == 0)
            atomic_store(&compiles, 0);
    }
    ck_assert_int_eq(atomic_load(&compiles), 0);
    close_all();
}
END_TEST

START_TEST(host_write_inside) {
    start();
    float memory[2] = {1, 2};
    trace_tensor *w = trace_wrap(ctx, TRACE_F32, memory, TRACE_DIMS(2)), *o = vec(2, 1), *out[4] = {0};
    if (trace_begin(region, TRACE_ARGS(w, o))) {
        out[0] = trace_mul_f(w, 10);
        TJ_ASSERT_OK(trace_write(w, (float[]){7, 8}, 8)); // a break of kind write
        out[1] = trace_mul_f(w, 10);
        out[2] = trace_mul_f(o, 10);
        TJ_ASSERT_OK(trace_write(o, (float[]){7, 8}, 8)); // the run keeps the old buffer
        out[3] = trace_mul_f(o, 10);
    }
    TJ_ASSERT_OK(trace_end(region, out, 4));
    ck_assert(first_of(out[0]) == 10);
    ck_assert(first_of(out[1]) == 70);
    ck_assert(first_of(out[2]) == 10);
    ck_assert(first_of(out[3]) == 70);
    ck_assert_int_eq(events.count[TRACE_EVENT_BREAK], 1);
    for (int i = 0; i < 4; i++)
        trace_release(out[i]);
    trace_release(w);
    trace_release(o);
    close_all();
}
END_TEST

START_TEST(kinds_of_readback) {
    start();
    trace_tensor *x = vec(2, 1), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        trace_tensor *h = trace_mul_f(x, 2);
        const void *p, *q;
        float v[2];
        TJ_ASSERT_OK(trace_data(h, &p));
        ck_assert(((const float *)p)[1] == 4);
        TJ_ASSERT_OK(trace_read(trace_mul_f(h, 2), v, sizeof v));
        ck_assert(v[1] == 8);
        TJ_ASSERT_OK(trace_data(h, &q)); // stored already
        ck_assert_ptr_eq(p, q);
        ck_assert(((const float *)p)[1] == 4);
        TJ_ASSERT_OK(trace_read(x, v, sizeof v)); // a tensor: no break
        int64_t i;
        TJ_ASSERT_STATUS(trace_read(x, v, 3), TRACE_ERR_ARGUMENT); // a mistake with a tensor leaves the run alone
        ck_assert(!trace_failed(ctx));
        ck_assert(!trace_item_i64(trace_reshape(trace_mul_f(trace_reshape(h, TRACE_DIMS(1, 2)), 2), TRACE_DIMS(2)),
                                  &i) == false); // two elements: fails the run
        ck_assert(trace_failed(ctx));
    }
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_SHAPE);
    ck_assert_uint_eq(stats().breaks, 2);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(fullgraph) {
    start_options((trace_region_options){.fullgraph = true});
    trace_tensor *x = vec(1, 1), *y = NULL;
    int64_t v = 5;
    if (trace_begin(region, TRACE_ARGS(x))) {
        trace_tensor *h = trace_mul_f_at(x, 2, "gen.c", 85);
        TJ_ASSERT_STATUS(trace_item_i64_at(h, &v, "gen.c", 88), TRACE_ERR_BREAK);
        ck_assert_int_eq(v, 0);
        ck_assert_msg(
            error_has("region 'test' is fullgraph: trace_item_i64 (gen.c:88) needs mul (gen.c:85); read it after"),
            "%s", trace_last_error(ctx));
        y = trace_relu(h);
        ck_assert_ptr_null(y);
    }
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_BREAK);
    ck_assert(error_has("gen.c:88"));
    // in an inner scope until its end
    trace_region *outer;
    TJ_ASSERT_OK(trace_region_create(ctx, "outer", NULL, &outer));
    if (trace_begin(outer, TRACE_ARGS(x))) {
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_mul_f(x, 2);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        TJ_ASSERT_OK(trace_item_i64(y, &v));
        ck_assert_int_eq(v, 2);
    }
    TJ_ASSERT_OK(trace_end(outer, NULL, 0));
    trace_region_release(outer);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(deferred) {
    start();
    trace_tensor *x = vec(1, 4), *later = NULL, *fails = NULL, *of_leaf = NULL;
    double v;
    if (trace_begin(region, TRACE_ARGS(x))) {
        trace_tensor *h = trace_mul_f(x, 2);
        later = trace_item_later(h);
        of_leaf = trace_item_later(x);
        trace_add_f_(x, 1);
        TJ_ASSERT_OK(trace_print_later(h, "h"));
        ck_assert_ptr_nonnull(later);
        TJ_ASSERT_STATUS(trace_item_f64(later, &v), TRACE_ERR_STATE);
    }
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    TJ_ASSERT_OK(trace_item_f64(later, &v));
    ck_assert(v == 8);
    TJ_ASSERT_OK(trace_item_f64(of_leaf, &v));
    ck_assert(v == 4);
    ck_assert_uint_eq(stats().breaks, 0);
    if (trace_begin(region, TRACE_ARGS(x))) {
        fails = trace_item_later(trace_mul_f(x, 2));
        (void)trace_reshape(x, TRACE_DIMS(9));
    }
    ck_assert(trace_end(region, NULL, 0) != TRACE_OK);
    ck_assert(trace_item_f64(fails, &v) != TRACE_OK);
    // across a break whose write overwrites what it was made from
    trace_tensor *l = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        l = trace_item_later(trace_mul_f(x, 3)); // x is 5
        trace_add_f_(x, 1);
        TJ_ASSERT_OK(trace_item_f64(trace_mul_f(x, 1), &v));
        ck_assert(v == 6);
    }
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    TJ_ASSERT_OK(trace_item_f64(l, &v));
    ck_assert(v == 15);
    trace_release(l);
    trace_release(fails);
    trace_release(later);
    trace_release(of_leaf);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(lint) {
    start();
    trace_tensor *x = vec(1, 4);
    for (int i = 0; i < 3; i++) {
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            if (trace_gt_f_at(x, 1.0, "host.c", 12))
                y = trace_mul_f(x, 0.5);
            (void)trace_where(trace_lt_f(x, 2), x, y); // used: no complaint
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        trace_release(y);
    }
    ck_assert_int_eq(events.count[TRACE_EVENT_LINT], 1);
    ck_assert_str_eq(events.where[TRACE_EVENT_LINT], "host.c:12");
    ck_assert(strstr(events.last[TRACE_EVENT_LINT], "if (handle)"));
    trace_release(x);
    close_all();
}
END_TEST

// ---- plan tables ----------------------------------------------------------------------------------------------------

static void double_it(trace_tensor *x) {
    trace_tensor *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_mul_f_at(x, 2, "model.c", 10);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    trace_release(y);
}
START_TEST(recompile_reasons) {
    start();
    trace_tensor *x = vec(4, 1), *y = NULL;
    double_it(x);
    trace_tensor *x8 = vec(8, 1);
    double_it(x8);
    ck_assert_int_eq(events.count[TRACE_EVENT_RECOMPILE], 1);
    ck_assert_msg(strstr(events.last[TRACE_EVENT_RECOMPILE], "input 0: extent of dim 0 was 4, is 8"), "%s",
                  events.last[TRACE_EVENT_RECOMPILE]);
    ck_assert(events.input == 0 && events.dim == 0 && events.from == 4 && events.to == 8);
    trace_tensor *i32 = trace_from(ctx, TRACE_F64, (double[]){1, 2, 3, 4}, TRACE_DIMS(4));
    double_it(i32);
    ck_assert(strstr(events.last[TRACE_EVENT_RECOMPILE], "dtype f32 became f64"));
    trace_tensor *x22 = trace_from(ctx, TRACE_F32, (float[]){1, 2, 3, 4}, TRACE_DIMS(2, 2));
    double_it(x22);
    ck_assert(strstr(events.last[TRACE_EVENT_RECOMPILE], "rank"));
    trace_tensor *t22 = trace_transpose(x22, 0, 1);
    double_it(t22);
    ck_assert_msg(strstr(events.last[TRACE_EVENT_RECOMPILE], "layout was contiguous, is strided"), "%s",
                  events.last[TRACE_EVENT_RECOMPILE]);
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_relu_at(x, "model.c", 20);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    trace_release(y);
    ck_assert_msg(strstr(events.last[TRACE_EVENT_RECOMPILE], "recorded ops differ"), "%s",
                  events.last[TRACE_EVENT_RECOMPILE]);
    ck_assert_uint_eq(stats().recompiles, 5);
    int before = atomic_load(&compiles);
    double_it(x), double_it(x8), double_it(i32), double_it(x22), double_it(t22);
    ck_assert_int_eq(atomic_load(&compiles), before);
    trace_release(x), trace_release(x8), trace_release(i32), trace_release(x22), trace_release(t22);
    close_all();
}
END_TEST

START_TEST(bounded) {
    start_options((trace_region_options){.max_graphs = 8});
    trace_tensor *hot = vec(3, 1);
    for (int i = 0; i < 20; i++)
        double_it(hot);
    int64_t zeros[1];
    float *v = calloc(1100, sizeof *v);
    for (int n = 10; n < 1010; n++) {
        zeros[0] = n;
        trace_tensor *x = trace_from(ctx, TRACE_F32, v, zeros, 1);
        double_it(x);
        trace_release(x);
        if (n % 5 == 0)
            double_it(hot);
    }
    int before = atomic_load(&compiles);
    double_it(hot);
    ck_assert_int_eq(atomic_load(&compiles), before);
    ck_assert_int_eq(before, 1001);
    ck_assert_int_le(atomic_load(&live_plans), 8 + TJ_HINTS + TJ_PREDICT);
    ck_assert_uint_eq(stats().evictions, 1001 - 8);
    ck_assert_int_eq(events.count[TRACE_EVENT_EVICT], 1001 - 8);
    free(v);
    trace_release(hot);
    close_all();
}
END_TEST

START_TEST(code_limit) {
    memset(events.count, 0, sizeof events.count);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.code_limit = 10000, .threads = 1), &ctx));
    ctx->backend = &fake;
    TJ_ASSERT_OK(trace_region_create(ctx, "test", NULL, &region));
    for (int n = 1; n <= 40; n++) {
        trace_tensor *x = vec(n, 1);
        double_it(x);
        trace_release(x);
    }
    trace_stats s = stats();
    ck_assert_uint_le(s.bytes_code, 10000);
    ck_assert_uint_eq(s.evictions, 30);
    close_all();
}
END_TEST

START_TEST(colliding_hashes) {
    tj_hash_collide = true;
    start();
    for (int round = 0; round < 2; round++) {
        for (int n = 1; n <= 25; n++) {
            trace_tensor *x = vec(n, 1), *y = NULL, *z = NULL;
            if (trace_begin(region, TRACE_ARGS(x)))
                y = trace_mul_f(x, n);
            TJ_ASSERT_OK(trace_end(region, &y, 1));
            if (trace_begin(region, TRACE_ARGS(x)))
                z = trace_add_f(x, n);
            TJ_ASSERT_OK(trace_end(region, &z, 1));
            ck_assert(first_of(y) == (float)n && first_of(z) == (float)(n + 1));
            trace_release(x), trace_release(y), trace_release(z);
        }
    }
    ck_assert_int_eq(atomic_load(&compiles), 50);
    close_all();
    tj_hash_collide = false;
}
END_TEST

START_TEST(fallbacks) {
    start();
    trace_tensor *x = vec(4, 1), *x5 = vec(5, 1);
    atomic_store(&compile_fails, 1);
    double_it(x), double_it(x);
    ck_assert_int_eq(events.count[TRACE_EVENT_FALLBACK], 1); // once a signature
    double_it(x5);
    ck_assert_int_eq(events.count[TRACE_EVENT_FALLBACK], 2);
    ck_assert(strstr(events.last[TRACE_EVENT_FALLBACK], "the test's compiler fails"));
    ck_assert_uint_gt(stats().interpreted_ops, 0);
    atomic_store(&compile_fails, 0);
    trace_release(x), trace_release(x5);
    close_all();
    atomic_store(&create_fails, 1);
    start();
    x = vec(4, 1), x5 = vec(5, 1);
    double_it(x), double_it(x5);
    trace_tensor *e = trace_mul_f(x, 2);
    ck_assert(first_of(e) == 2);
    ck_assert_int_eq(events.count[TRACE_EVENT_FALLBACK], 1); // once a context
    ck_assert(strstr(events.last[TRACE_EVENT_FALLBACK], "the test has no compiler"));
    atomic_store(&create_fails, 0);
    trace_release(x), trace_release(x5), trace_release(e);
    close_all();
}
END_TEST

// ---- eager ----------------------------------------------------------------------------------------------------------

START_TEST(eager_ops) {
    start();
    trace_tensor *x = vec(4, 1), *y = trace_mul_f(x, 3), *v = trace_reshape(x, TRACE_DIMS(2, 2));
    ck_assert(first_of(y) == 3);
    ck_assert_ptr_eq(v->st, x->st);
    ck_assert_ptr_eq(trace_add_f_(x, 1), x);
    ck_assert(first_of(v) == 2);
    ck_assert_ptr_null(trace_add(x, y == NULL ? x : v));
    ck_assert(strlen(trace_last_error(ctx)) > 0);
    trace_stats s = {.size = sizeof s};
    trace_context_stats(ctx, &s);
    ck_assert_uint_eq(s.eager_ops, 3);
    trace_release(x), trace_release(y), trace_release(v);
    close_all();
}
END_TEST

START_TEST(eager_scope) {
    start_options((trace_region_options){.mode = TRACE_MODE_EAGER});
    trace_tensor *x = vec(4, 1), *y = NULL;
    for (int i = 0; i < 3; i++) {
        if (trace_begin(region, TRACE_ARGS(x))) {
            trace_tensor *h = trace_mul_f(x, 3), *k = trace_mul_f(h, 2), *gone = trace_mul_f(h, 7);
            float f[4];
            TJ_ASSERT_OK(trace_read(k, f, sizeof f)); // there at once
            ck_assert(f[0] == 6);
            trace_release(gone);
            y = trace_add(k, h);
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == 9);
        trace_release(y);
    }
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_reshape(trace_mul_f(x, 3), TRACE_DIMS(9));
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_SHAPE);
    trace_release(x);
    close_all();
}
END_TEST

// ---- statistics, reports --------------------------------------------------------------------------------------------

START_TEST(sized_stats) {
    start();
    trace_tensor *x = vec(4, 1);
    double_it(x);
    unsigned char raw[sizeof(trace_stats) + 16];
    memset(raw, 0xAA, sizeof raw);
    size_t small = sizeof(size_t) + sizeof(uint64_t);
    memcpy(raw, &small, sizeof small);
    trace_region_stats(region, (trace_stats *)(void *)raw);
    ck_assert_uint_eq(((trace_stats *)(void *)raw)->runs, 1);
    for (size_t i = small; i < sizeof raw; i++)
        ck_assert_uint_eq(raw[i], 0xAA);
    size_t none = 0;
    memcpy(raw, &none, sizeof none);
    trace_context_stats(ctx, (trace_stats *)(void *)raw);
    ck_assert_uint_eq(raw[sizeof(size_t) + sizeof(uint64_t)], 0xAA);
    trace_context_stats(ctx, NULL);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(option_sizes) {
    struct {
        trace_context_options o;
        uint64_t tail[2];
    } big;
    memset(&big, 0, sizeof big);
    big.o.size = sizeof big;
    TJ_ASSERT_OK(trace_context_create(&big.o, &ctx)); // larger, with a zero tail
    trace_context_release(ctx);
    big.tail[1] = 1;
    TJ_ASSERT_STATUS(trace_context_create(&big.o, &ctx), TRACE_ERR_ARGUMENT);
    ck_assert_ptr_null(ctx);
    big.o.size = 0;
    TJ_ASSERT_STATUS(trace_context_create(&big.o, &ctx), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_context_create(TRACE_CONTEXT_OPTIONS(.device = TRACE_DEVICE_CUDA), &ctx),
                     TRACE_ERR_UNAVAILABLE);
    ck_assert(strstr(trace_last_error(NULL), "no CUDA backend"));
    TJ_ASSERT_STATUS(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = -1), &ctx), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_context_create(NULL, NULL), TRACE_ERR_ARGUMENT);
    memset(events.count, 0, sizeof events.count);
    TJ_ASSERT_OK(trace_context_create(
        TRACE_CONTEXT_OPTIONS(.device = TRACE_DEVICE_AUTO, .on_event = on_event, .event_user = &events), &ctx));
    ck_assert_int_eq(events.count[TRACE_EVENT_FALLBACK], 1);
    ck_assert(strlen(trace_context_describe(ctx)) > 10);
    trace_region *r;
    TJ_ASSERT_STATUS(trace_region_create(ctx, "x", TRACE_REGION_OPTIONS(.mode = 9), &r), TRACE_ERR_ARGUMENT);
    ck_assert_ptr_null(r);
    trace_context_release(ctx);
    ck_assert_str_eq(trace_version(), "0.1.0");
    ck_assert_str_eq(trace_dtype_name(TRACE_BF16), "bf16");
}
END_TEST

START_TEST(reports) {
    start();
    (void)relax_run(8, 3);
    trace_tensor *x = vec(4, 1);
    double_it(x);
    size_t need = 0, need2 = 0;
    static char buf[1 << 16];
    TJ_ASSERT_STATUS(trace_context_report(ctx, TRACE_FORMAT_TEXT, NULL, 0, &need), TRACE_ERR_MEMORY);
    ck_assert_uint_gt(need, 100);
    TJ_ASSERT_OK(trace_context_report(ctx, TRACE_FORMAT_TEXT, buf, sizeof buf, &need2));
    ck_assert_uint_eq(strlen(buf), need2);
    ck_assert(strstr(buf, "region 'test'") && strstr(buf, "graph break: trace_item_f64") && strstr(buf, "fake plan"));
    memset(buf, 'x', 20);
    TJ_ASSERT_STATUS(trace_context_report(ctx, TRACE_FORMAT_TEXT, buf, 10, NULL), TRACE_ERR_MEMORY);
    ck_assert_uint_eq(strlen(buf), 9);
    ck_assert_int_eq(buf[10], 'x');
    TJ_ASSERT_OK(trace_context_report(ctx, TRACE_FORMAT_JSON, buf, sizeof buf, NULL));
    ck_assert(buf[0] == '{' && strstr(buf, "\"breaks\":[{"));
    TJ_ASSERT_OK(trace_context_report(ctx, TRACE_FORMAT_PROMETHEUS, buf, sizeof buf, NULL));
    ck_assert(strstr(buf, "tracejit_region_runs_total{region=\"test\"} 2"));
    TJ_ASSERT_STATUS(trace_context_report(ctx, TRACE_FORMAT_HTML, buf, sizeof buf, NULL), TRACE_ERR_UNAVAILABLE);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(shutdown) {
    start();
    trace_tensor *x = vec(4, 1);
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    TJ_ASSERT_STATUS(trace_context_shutdown(ctx, 0), TRACE_ERR_STATE);
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    TJ_ASSERT_OK(trace_context_shutdown(ctx, 100));
    ck_assert(!trace_begin(region, TRACE_ARGS(x)));
    TJ_ASSERT_STATUS(trace_end(region, NULL, 0), TRACE_ERR_SHUTDOWN);
    ck_assert_ptr_null(trace_relu(x));
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(released_while_open) {
    start();
    trace_tensor *x = vec(4, 1), *y = NULL;
    trace_context *c = ctx;
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    y = trace_relu(x);
    trace_region_release(region);
    trace_context_release(c);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 1);
    ck_assert_int_eq(atomic_load(&live_plans), 0);
    trace_release(y);
    trace_release(x);
}
END_TEST

START_TEST(data_errors) {
    start();
    trace_tensor *x = vec(4, 1), *i = trace_from(ctx, TRACE_I64, (int64_t[]){1, 9}, TRACE_DIMS(2)), *y = NULL,
                 *z = NULL;
    if (trace_begin(region, TRACE_ARGS(x, i)))
        y = trace_index_select_at(x, 0, i, "host.c", 33);
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_DEVICE);
    ck_assert_ptr_null(y);
    ck_assert_msg(error_has("index_select (host.c:33)") && error_has("index 9") && error_has("4"), "%s",
                  trace_last_error(ctx));
    double v;
    if (trace_begin(region, TRACE_ARGS(x, i))) {
        TJ_ASSERT_STATUS(trace_item_f64(trace_slice(trace_index_select(x, 0, i), 0, 0, 1, 1), &v), TRACE_ERR_DEVICE);
        ck_assert(trace_failed(ctx));
    }
    TJ_ASSERT_STATUS(trace_end(region, NULL, 0), TRACE_ERR_DEVICE);
    y = trace_index_select(x, 0, i); // outside a region too
    ck_assert_ptr_null(y);
    ck_assert(error_has("index 9"));
    TJ_ASSERT_OK(trace_write(i, (int64_t[]){1, 2}, 16));
    if (trace_begin(region, TRACE_ARGS(x, i)))
        z = trace_index_select(x, 0, i);
    TJ_ASSERT_OK(trace_end(region, &z, 1));
    ck_assert(first_of(z) == 2);
    trace_release(z), trace_release(x), trace_release(i);
    close_all();
}
END_TEST

// Standard error of f as text.
static const char *stderr_of(void (*f)(void)) {
    static char text[8192];
    FILE *to = tmpfile();
    int saved = dup(2);
    ck_assert(to && saved >= 0);
    fflush(stderr);
    dup2(fileno(to), 2);
    f();
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(to);
    text[fread(text, 1, sizeof text - 1, to)] = 0;
    fclose(to);
    return text;
}
static void log_recompiles(void) {
    setenv("TRACEJIT_LOG", "recompiles,breaks", 1);
    start();
    unsetenv("TRACEJIT_LOG");
    trace_tensor *x = vec(4, 1), *x8 = vec(8, 1);
    double_it(x), double_it(x8);
    (void)relax_run(8, 2);
    trace_release(x), trace_release(x8);
    close_all();
}
START_TEST(log_lines) {
    const char *text = stderr_of(log_recompiles);
    ck_assert_msg(strstr(text, "compiling new graph: region 'test': input 0: extent of dim 0 was 4, is 8"), "%s", text);
    ck_assert_msg(strstr(text, " ms)\n"), "%s", text);
    ck_assert_msg(strstr(text, "graph break: region 'test': trace_item_f64 needs sub"), "%s", text);
}
END_TEST

START_TEST(op_by_op) {
    setenv("TRACEJIT_DISABLE", "1", 1);
    start();
    unsetenv("TRACEJIT_DISABLE");
    ck_assert(relax_run(8, 3) == 1);
    ck_assert_uint_eq(stats().breaks, 0);
    trace_stats s = {.size = sizeof s};
    trace_context_stats(ctx, &s);
    ck_assert_uint_eq(s.eager_ops, 6);
    close_all();
}
END_TEST

static void print_two(void) {
    start();
    trace_tensor *x = vec(2, 1);
    if (trace_begin(region, TRACE_ARGS(x))) {
        TJ_ASSERT_OK(trace_print_later(trace_mul_f(x, 3), "later"));
        TJ_ASSERT_OK(trace_print(trace_mul_f(x, 2), "now"));
    }
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    trace_release(x);
    close_all();
}
START_TEST(prints) {
    const char *text = stderr_of(print_two);
    const char *now = strstr(text, "now = f32[2] [2, 4]\n"), *later = strstr(text, "later = f32[2] [3, 6]\n");
    ck_assert_msg(now && later && now < later, "%s", text);
}
END_TEST

// ---- random programs ------------------------------------------------------------------------------------------------

// A random body over three tensors (owned, wrapped, a view of the wrapped one's memory): ops, writes, readbacks,
// releases. Eagerly it gives what it must give in a region, wherever breaks fall; run again it compiles nothing.
enum { WIDTH = 3, VALUES = 40, SEEN = 64 };
struct program {
    uint64_t seed;
    int steps;
    bool in_region;
    double seen[SEEN];
    int nseen;
    float outs[4][WIDTH], memory[2][WIDTH + 1];
    int nouts;
};

static void wrote(const trace_tensor *t) { ck_assert_msg(t != NULL, "%s", trace_last_error(ctx)); }

static void body(struct program *p, trace_tensor **leaf, trace_tensor **out, trace_tensor **later, int *nlater) {
    uint64_t rng = p->seed;
    trace_tensor *v[VALUES];
    bool gone[VALUES] = {0};
    int n = 0;
    for (int i = 0; i < 3; i++)
        v[n++] = leaf[i];
    *nlater = 0;
    for (int i = 0; i < p->steps && n < VALUES - 1; i++) {
        trace_tensor *a, *b;
        int ia, ib;
        do
            ia = (int)(tj_test_random(&rng) % (uint64_t)n);
        while (gone[ia]);
        do
            ib = (int)(tj_test_random(&rng) % (uint64_t)n);
        while (gone[ib]);
        a = v[ia], b = v[ib];
        switch (tj_test_random(&rng) % 18) {
        case 0:
        case 1: v[n++] = trace_add(a, b); break;
        case 2:
        case 3: v[n++] = trace_mul_f(a, 0.5 + (double)(i % 4)); break;
        case 4: v[n++] = trace_maximum(a, b); break;
        case 5: v[n++] = trace_sub_f(a, 1); break;
        case 6: v[n++] = trace_reshape(a, TRACE_DIMS(WIDTH)); break; // a view
        case 7:
            v[n++] = trace_transpose(trace_transpose(trace_reshape(a, TRACE_DIMS(WIDTH, 1)), 0, 1), 0, 1),
            v[n - 1] = trace_reshape(v[n - 1], TRACE_DIMS(WIDTH));
            break;
        case 8: wrote(trace_add_(a, trace_mul_f(b, 0.25))); break;
        case 9: wrote(trace_mul_f_(trace_slice(a, 0, 1, 3, 1), 0.5)); break;
        case 10: wrote(trace_copy_(a, trace_mul_f(b, 1))); break;
        case 11:
        case 12: { // a readback that steers
            double d = 0;
            TJ_ASSERT_OK(trace_item_f64(trace_slice(a, 0, 2, 3, 1), &d));
            if (p->nseen < SEEN)
                p->seen[p->nseen++] = d;
            if (d > 1)
                v[n++] = trace_add(a, b);
            break;
        }
        case 13: {
            float f[WIDTH];
            TJ_ASSERT_OK(trace_read(a, f, sizeof f));
            if (p->nseen < SEEN)
                p->seen[p->nseen++] = (double)f[0] + (double)f[1] * 3;
            break;
        }
        case 14:
            if (p->in_region && ia > 2)
                trace_release(a);
            gone[ia] = ia > 2;
            break;
        case 15: {
            float f[WIDTH] = {(float)i, 1, (float)-i};
            TJ_ASSERT_OK(trace_write(leaf[ia % 3], f, sizeof f));
            break;
        }
        case 16:
            if (*nlater < 4) { // eagerly: the value now
                a = trace_slice(a, 0, 0, 1, 1);
                later[*nlater] = p->in_region ? trace_item_later(a) : trace_clone(a);
                wrote(later[*nlater]);
                if (!p->in_region)
                    (void)trace_retain(later[*nlater]); // the scope releases its own
                (*nlater)++;
            }
            break;
        default: v[n++] = trace_relu(a); break;
        }
        ck_assert_msg(v[n - 1] != NULL, "%s", trace_last_error(ctx));
    }
    for (int i = n - 1; i > 2 && p->nouts < 4; i--) {
        if (!gone[i])
            out[p->nouts++] = trace_clone(v[i]);
    }
}

static void run_program(struct program *p) {
    float own[WIDTH] = {1, -2, 3}, wrapped[WIDTH + 1] = {0.5f, 4, -1, 2};
    trace_tensor *leaf[3], *out[4] = {0}, *later[4];
    int nlater = 0;
    leaf[0] = trace_from(ctx, TRACE_F32, own, TRACE_DIMS(WIDTH));
    trace_tensor *whole = trace_wrap(ctx, TRACE_F32, wrapped, TRACE_DIMS(WIDTH + 1));
    leaf[1] = trace_slice(whole, 0, 0, WIDTH, 1);
    leaf[2] = trace_slice(whole, 0, 1, WIDTH + 1, 1); // overlaps
    p->nseen = p->nouts = 0;
    trace_region *eager;
    TJ_ASSERT_OK(trace_region_create(ctx, "reference", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_EAGER), &eager));
    trace_region *r = p->in_region ? region : eager;
    if (trace_begin(r, NULL, 0))
        body(p, leaf, out, later, &nlater);
    TJ_ASSERT_OK(trace_end(r, out, (size_t)p->nouts));
    for (int i = 0; i < p->nouts; i++) {
        TJ_ASSERT_OK(trace_read(out[i], p->outs[i], sizeof p->outs[i]));
        trace_release(out[i]);
    }
    for (int i = 0; i < nlater; i++) {
        double d;
        TJ_ASSERT_OK(trace_item_f64(later[i], &d));
        if (p->nseen < SEEN)
            p->seen[p->nseen++] = d;
        trace_release(later[i]);
    }
    TJ_ASSERT_OK(trace_read(leaf[0], p->memory[0], sizeof own));
    memcpy(p->memory[1], wrapped, sizeof wrapped);
    for (int i = 0; i < 3; i++)
        trace_release(leaf[i]);
    trace_release(whole);
    trace_region_release(eager);
}

START_TEST(random_programs) {
    const char *one = getenv("TJ_SEED");
    for (uint64_t seed = one ? strtoull(one, NULL, 0) : 1; seed <= (one ? strtoull(one, NULL, 0) : 400); seed++) {
        start();
        struct program want = {.seed = seed * 7919, .steps = 6 + (int)(seed % 30)}, got;
        run_program(&want);
        int before = 0;
        for (int round = 0; round < 3; round++) {
            memset(&got, 0, sizeof got);
            got.seed = want.seed, got.steps = want.steps, got.in_region = true;
            if (round == 1)
                before = atomic_load(&compiles);
            run_program(&got);
            ck_assert_msg(got.nseen == want.nseen && got.nouts == want.nouts, "seed %" PRIu64 " run %d", seed, round);
            for (int i = 0; i < want.nseen; i++)
                ck_assert_msg(got.seen[i] == want.seen[i], "seed %" PRIu64 " run %d: value %d is %g, not %g", seed,
                              round, i, got.seen[i], want.seen[i]);
            for (int i = 0; i < want.nouts; i++)
                for (int k = 0; k < WIDTH; k++)
                    ck_assert_msg(got.outs[i][k] == want.outs[i][k],
                                  "seed %" PRIu64 " run %d: output %d[%d] is %g, not %g", seed, round, i, k,
                                  (double)got.outs[i][k], (double)want.outs[i][k]);
            ck_assert_msg(!memcmp(got.memory, want.memory, sizeof got.memory), "seed %" PRIu64 " run %d: memory", seed,
                          round);
        }
        ck_assert_msg(atomic_load(&compiles) == before, "seed %" PRIu64 ": %d plans made by later runs", seed,
                      atomic_load(&compiles) - before);
        close_all();
    }
}
END_TEST

// ---- steady state, faults, threads ----------------------------------------------------------------------------------

START_TEST(steady_run_allocates_nothing) {
    start();
    trace_tensor *x = vec(4, 1), *w = vec(4, 2);
    for (int i = 0; i < 200; i++) {
        if (i == 50) {
            tj_test_fail_at(SIZE_MAX);
            run_nothing = true;
        }
        trace_tensor *y = NULL;
        double v = 0;
        if (trace_begin(region, TRACE_ARGS(x))) {
            trace_tensor *h = trace_relu(trace_add(trace_mul_f(x, 2), w));
            if (i % 2)
                (void)!trace_item_f64(trace_mul_f(trace_slice(h, 0, 0, 1, 1), 2), &v);
            y = trace_mul(h, h);
        }
        ck_assert_int_eq(trace_end(region, &y, 1), TRACE_OK);
        trace_release(y);
    }
    tj_alloc_hook = NULL;
    run_nothing = false;
    ck_assert_uint_eq(tj_test_allocs, 0);
    trace_release(x), trace_release(w);
    close_all();
}
END_TEST

START_TEST(every_allocation_may_fail) {
    for (size_t k = 0; k < 400; k++) {
        start();
        trace_tensor *x = vec(2, 1), *s = vec(1, 5), *y = NULL;
        double v;
        tj_test_fail_at(k);
        bool ok = false;
        if (trace_begin(region, TRACE_ARGS(x, s))) {
            trace_tensor *h = trace_mul_f(x, 3);
            trace_add_f_(x, 1);
            if (!trace_item_f64(trace_mul_f(s, 2), &v))
                y = trace_add(h, x);
        }
        ok = trace_end(region, &y, 1) == TRACE_OK;
        bool failed = tj_test_failed();
        if (!ok) {
            ck_assert(failed);
            ck_assert_ptr_null(y);
            ck_assert(strlen(trace_last_error(ctx)) > 0);
        } else {
            ck_assert(first_of(y) == 5);
        }
        trace_release(y);
        // the next run is right
        trace_tensor *z = NULL;
        if (trace_begin(region, TRACE_ARGS(s)))
            z = trace_mul_f(s, 2);
        TJ_ASSERT_OK(trace_end(region, &z, 1));
        ck_assert(first_of(z) == 10);
        trace_release(z);
        trace_release(x), trace_release(s);
        close_all();
        if (!failed)
            return;
    }
}
END_TEST

enum { THREADS = 4, TURNS = 300 };
static void *worker(void *arg) {
    int id = (int)(intptr_t)arg;
    for (int i = 0; i < TURNS; i++) {
        int n = 1 + (i + id) % 5;
        float v[8];
        for (int k = 0; k < n; k++)
            v[k] = (float)id;
        trace_tensor *x = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(n)), *y = NULL;
        double d = 0;
        if (trace_begin(region, TRACE_ARGS(x))) {
            trace_tensor *h = trace_mul_f(x, 2);
            if (n == 1)
                (void)!trace_item_f64(h, &d);
            y = trace_add(h, x);
        }
        ck_assert(trace_end(region, &y, 1) == TRACE_OK);
        ck_assert(first_of(y) == (float)(3 * id));
        trace_stats s = {.size = sizeof s};
        if (i % 50 == 0)
            trace_context_stats(ctx, &s);
        trace_release(x), trace_release(y);
    }
    return NULL;
}
START_TEST(threads) {
    start();
    atomic_store(&compile_ns, 2000000);
    pthread_t t[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, worker, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    atomic_store(&compile_ns, 0);
    trace_stats s = stats();
    ck_assert_uint_eq(s.runs, THREADS * TURNS);
    ck_assert_uint_eq((uint64_t)atomic_load(&compiles), s.graphs); // each once
    ck_assert_uint_le(s.graphs, 8);
    close_all();
}
END_TEST

TJ_TEST_MAIN("region", runs_and_hits, wrong_order, ended_on_another_thread, outputs, placeholders, nesting,
             nested_refused, loop_with_break, break_in_branch, late_use, break_and_writes, host_write_inside,
             kinds_of_readback, fullgraph, deferred, lint, recompile_reasons, bounded, code_limit, colliding_hashes,
             fallbacks, eager_ops, eager_scope, sized_stats, option_sizes, reports, shutdown, released_while_open,
             data_errors, log_lines, op_by_op, prints, random_programs, steady_run_allocates_nothing,
             every_allocation_may_fail, threads)
