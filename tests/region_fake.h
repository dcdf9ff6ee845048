// tests/region_fake.h: regions without a compiler: a backend that counts compiles and runs plans through the
// interpreter.
#ifndef REGION_FAKE_H
#define REGION_FAKE_H
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
__attribute__((unused)) static bool run_nothing; // plans touch no memory: what the interpreter allocates doesn't count
static atomic_int compiles, live_plans, compile_fails, create_fails;
__attribute__((unused)) static atomic_int outs_stored; // of all runs
__attribute__((unused)) static _Atomic uint64_t compile_ns;

static inline tj_status fake_create(trace_context *ctx, void **state) {
    if (atomic_load(&create_fails))
        return tj_fail(TRACE_ERR_UNAVAILABLE, "the test has no compiler");
    *state = ctx;
    return TRACE_OK;
}
static inline void fake_destroy(void *state) { (void)state; }
static inline tj_status fake_compile(void *state, const struct tj_segment *seg, struct tj_plan **plan,
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
static inline tj_status fake_run(struct tj_plan *p, const struct tj_run_args *args) {
    atomic_fetch_add_explicit(&outs_stored, (int)p->seg.nouts, memory_order_relaxed);
    return run_nothing ? TRACE_OK : tj_interp_run(&p->seg, args);
}
static inline void fake_release(struct tj_plan *p) {
    tj_trace_free(&p->trace);
    tj_free(p);
    atomic_fetch_sub(&live_plans, 1);
}
static inline void fake_describe(const struct tj_plan *p, struct tj_strbuf *sb) {
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
    int count[16];
    int input, dim;
    int64_t from, to;
    char last[16][600], where[16][200];
};
static struct events events = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void on_event(void *user, const trace_event *e) {
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

static inline void start_options(trace_region_options opt) {
    memset(events.count, 0, sizeof events.count);
    atomic_store(&compiles, 0);
    run_nothing = false; // tests may share a process
    TJ_ASSERT_OK(
        trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = on_event, .event_user = &events, .threads = 1), &ctx));
    ctx->backend = &fake;
    opt.size = sizeof opt;
    TJ_ASSERT_OK(trace_region_create(ctx, "test", &opt, &region));
}
static inline void start(void) { start_options((trace_region_options){0}); }
static inline void close_all(void) {
    trace_region_release(region);
    ck_assert_ptr_null(ctx->tensors);
    ck_assert_ptr_null(ctx->regions);
    ck_assert_int_eq(atomic_load(&ctx->refs), 1);
    trace_context_release(ctx);
    ck_assert_int_eq(atomic_load(&live_plans), 0);
}
static inline trace_tensor *vec(int n, float first) {
    float v[64];
    for (int i = 0; i < n; i++)
        v[i] = first + (float)i;
    trace_tensor *t = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(n));
    ck_assert_ptr_nonnull(t);
    return t;
}
static inline float first_of(trace_tensor *t) {
    float v[64];
    ck_assert_ptr_nonnull(t);
    TJ_ASSERT_OK(trace_read(t, v, (size_t)trace_numel(t) * sizeof(float)));
    return v[0];
}
static inline trace_stats stats(void) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(region, &s);
    return s;
}
static inline bool error_has(const char *part) { return strstr(trace_last_error(ctx), part) != NULL; }

// ---- what several tests do ----------------------------------------------------------------------------------------

// p7_branch.c's loop: how often it turns depends on the value.
static inline trace_tensor *relax(trace_tensor *x, int trips) {
    for (int i = 0; i < trips; i++) {
        double step = 0;
        trace_tensor *n = trace_mul_f(x, 0.5);
        if (trace_item_f64(trace_sub(x, n), &step))
            return NULL;
        x = n;
    }
    return x;
}
static inline double relax_run(float start, int trips) {
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
static inline void double_it(trace_tensor *x) {
    trace_tensor *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_mul_f_at(x, 2, "model.c", 10);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    trace_release(y);
}
// Standard error of f as text.
static inline const char *stderr_of(void (*f)(void)) {
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

#endif
