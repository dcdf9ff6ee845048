// tests/test_region.c: regions: states, nesting, plan tables, single ops, reports, faults, threads.
#include "region_fake.h"

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
        ck_assert(trace_begin(other, NULL, 0)); // of another context: a run of its own
        TJ_ASSERT_OK(trace_end(other, NULL, 0));
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

// ---- plan tables ----------------------------------------------------------------------------------------------------
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
    TJ_ASSERT_OK(trace_context_report(ctx, TRACE_FORMAT_HTML, buf, sizeof buf, NULL));
    ck_assert(!strncmp(buf, "<!doctype html>", 15) && strstr(buf, "trace_item_f64") && strstr(buf, "</html>"));
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

static void *run_shape(void *arg) {
    trace_tensor *x = vec(*(int *)arg, 1), *y = NULL;
    (void)trace_begin(region, TRACE_ARGS(x));
    y = trace_neg(x);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    trace_release(y), trace_release(x);
    return NULL;
}
// Threads that are gone leave run objects behind: those keep no plan that was dropped, recorded or replayed.
START_TEST(dropped_plans_go) {
    for (int mode = TRACE_MODE_RECORD; mode <= TRACE_MODE_REPLAY; mode++) {
        start_options((trace_region_options){.mode = mode, .max_graphs = 3, .dynamic = TRACE_DYNAMIC_OFF});
        int before = atomic_load(&live_plans);
        for (int n = 1; n <= 40; n++) { // from thread to thread, each shape several times
            for (int i = 0; i < 5; i++) {
                pthread_t t;
                ck_assert_int_eq(pthread_create(&t, NULL, run_shape, &n), 0);
                pthread_join(t, NULL);
            }
        }
        // the run that drops a plan may have it in hand
        ck_assert_msg(atomic_load(&live_plans) - before <= 3 + 1, "%d plans", atomic_load(&live_plans) - before);
        close_all();
    }
}
END_TEST

TJ_TEST_MAIN("region", runs_and_hits, wrong_order, ended_on_another_thread, outputs, placeholders, nesting,
             nested_refused, recompile_reasons, bounded, code_limit, colliding_hashes, fallbacks, eager_ops,
             eager_scope, sized_stats, option_sizes, reports, shutdown, released_while_open, data_errors, log_lines,
             op_by_op, steady_run_allocates_nothing, every_allocation_may_fail, threads, dropped_plans_go)
