// tests/test_memory.c: what a context keeps: workspaces, packed weights, released buffers; bounds, and giving back.
#include <pthread.h>

#include "../include/tracejit.h"
#include "tj_test.h"

#define MB ((uint64_t)1 << 20)

static trace_context *ctx;
static trace_region *region;

static void start(size_t limit, int dynamic) {
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.memory_limit = limit, .threads = 1), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "memory", TRACE_REGION_OPTIONS(.dynamic = dynamic), &region));
}
static void finish(void) {
    trace_region_release(region);
    trace_context_release(ctx);
}
static trace_stats stats(void) {
    trace_stats s = {.size = sizeof s};
    trace_context_stats(ctx, &s);
    return s;
}

// ---- workspaces -----------------------------------------------------------------------------------------------------

enum { WIDE = 1024 };
static float ones[16 * 6000];

// Two matrix products with a row op between them: rows * WIDE floats of workspace. The row sums are 16 each.
static tj_status request(trace_region *r, trace_tensor *up, trace_tensor *down, int64_t rows, float *first) {
    trace_tensor *x = trace_wrap_const(ctx, TRACE_F32, ones, TRACE_DIMS(rows, 16)), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x)))
        y = trace_linear(trace_softmax(trace_linear(x, up, TRACE_NONE), -1), down, TRACE_NONE);
    tj_status s = trace_end(r, &y, 1);
    if (!s) {
        static float out[6000 * 16];
        TJ_ASSERT_OK(trace_read(y, out, (size_t)rows * 64));
        *first = out[0];
        for (int64_t i = 0; i < rows * 16; i++) // softmax of equal values, times ones: 1 up to rounding
            ck_assert(fabsf(out[i] - 1) < 1e-3f);
    }
    trace_release(x);
    trace_release(y);
    return s;
}
static void weights(trace_tensor **up, trace_tensor **down) {
    for (size_t i = 0; i < TJ_COUNT(ones); i++)
        ones[i] = 1;
    *up = trace_full_f(ctx, TRACE_DIMS(WIDE, 16), 1, TRACE_F32);
    *down = trace_full_f(ctx, TRACE_DIMS(16, WIDE), 1, TRACE_F32);
}

// One large request among small ones: by the plan that serves both, and by one of its own that nobody asks again.
START_TEST(large_request) {
    for (int dynamic = TRACE_DYNAMIC_AUTO; dynamic <= TRACE_DYNAMIC_ON; dynamic++) {
        trace_tensor *up, *down;
        float v;
        start(0, dynamic);
        weights(&up, &down);
        for (int i = 0; i < 6; i++)
            TJ_ASSERT_OK(request(region, up, down, 2 + i % 3, &v));
        uint64_t small = stats().bytes_live;
        TJ_ASSERT_OK(request(region, up, down, 6000, &v));
        if (tj_test_compiler())
            ck_assert_uint_gt(stats().bytes_live, small + 20 * MB);
        for (int i = 0; i < 800; i++)
            TJ_ASSERT_OK(request(region, up, down, 1 + i % 9, &v));
        ck_assert_uint_le(stats().bytes_live, small + MB);
        TJ_ASSERT_OK(request(region, up, down, 6000, &v)); // and it may come back
        trace_release(up), trace_release(down);
        finish();
    }
}
END_TEST

// Sizes that take turns keep their workspace: nothing is allocated once they have been seen.
START_TEST(steady_sizes) {
    trace_tensor *up, *down;
    float v;
    start(0, TRACE_DYNAMIC_ON);
    weights(&up, &down);
    for (int i = 0; i < 200; i++)
        TJ_ASSERT_OK(request(region, up, down, i % 2 ? 900 : 10, &v));
    tj_test_fail_at(SIZE_MAX);
    for (int i = 0; i < 200; i++)
        TJ_ASSERT_OK(request(region, up, down, i % 2 ? 900 : 10, &v));
    size_t allocs = tj_test_allocs;
    (void)tj_test_failed();
    if (tj_test_compiler())
        ck_assert_uint_eq(allocs, 0);
    trace_release(up), trace_release(down);
    finish();
}
END_TEST

// Workspace that lies idle in one region makes no run of another one fail, nor do packed copies.
START_TEST(limit_is_shared) {
    trace_tensor *up, *down;
    trace_region *other;
    float v;
    if (!tj_test_compiler())
        return;                         // the interpreter has more values in memory at once
    start(40 * MB, TRACE_DYNAMIC_AUTO); // one of them needs 25
    TJ_ASSERT_OK(trace_region_create(ctx, "other", NULL, &other));
    weights(&up, &down);
    for (int i = 0; i < 6; i++) {
        TJ_ASSERT_OK(request(i % 2 ? other : region, up, down, 6000, &v));
        TJ_ASSERT_OK(request(i % 2 ? region : other, up, down, 16, &v));
    }
    // what can't be had at all fails, with the limit in its text, and the next run is right
    trace_tensor *big = trace_full_f(ctx, TRACE_DIMS(8 * 1024 * 1024), 1, TRACE_F32);
    ck_assert_ptr_nonnull(big);
    TJ_ASSERT_STATUS(request(region, up, down, 6000, &v), TRACE_ERR_MEMORY);
    ck_assert_msg(strstr(trace_last_error(ctx), "memory_limit"), "%s", trace_last_error(ctx));
    trace_release(big);
    TJ_ASSERT_OK(request(region, up, down, 6000, &v));
    trace_release(up), trace_release(down);
    trace_region_release(other);
    finish();
}
END_TEST

START_TEST(region_goes) {
    start(0, TRACE_DYNAMIC_AUTO);
    trace_tensor *x = trace_full_f(ctx, TRACE_DIMS(1024, 1024), 1, TRACE_F32);
    for (int i = 0; i < 4; i++) {
        trace_tensor *y[40];
        if (trace_begin(region, TRACE_ARGS(x))) {
            for (int k = 0; k < 40; k++)
                y[k] = trace_add_f(x, k);
        }
        TJ_ASSERT_OK(trace_end(region, y, 40));
        for (int k = 0; k < 40; k++)
            trace_release(y[k]);
    }
    ck_assert_uint_ge(stats().bytes_kept, 150 * MB);
    trace_region_release(region);
    ck_assert_uint_le(stats().bytes_kept, 64 * MB);
    trace_release(x);
    trace_context_release(ctx);
}
END_TEST

// ---- packed weights -------------------------------------------------------------------------------------------------

enum { ROWS = 3000, K = 16, N = 32 };
// Row r of the weight is all r: the result of window `at` is K * (at + column).
static void window(trace_tensor *x, trace_tensor *w, int64_t at) {
    trace_tensor *y = NULL;
    float v[4 * N];
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_matmul(x, trace_transpose(trace_narrow(w, 0, at, N), 0, 1));
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    TJ_ASSERT_OK(trace_read(y, v, sizeof v));
    for (int i = 0; i < 4 * N; i++)
        ck_assert_msg(v[i] == (float)(K * (at + i % N)), "window %d: %g", (int)at, (double)v[i]);
    trace_release(y);
}
static trace_tensor *ramp(float scale) {
    static float w[ROWS * K];
    for (int i = 0; i < ROWS * K; i++)
        w[i] = scale * (float)(i / K);
    return trace_from(ctx, TRACE_F32, w, TRACE_DIMS(ROWS, K));
}

START_TEST(sliding_window) {
    for (int limited = 0; limited < 2; limited++) {
        start(limited ? 2 * MB : 0, TRACE_DYNAMIC_AUTO);
        trace_tensor *w = ramp(1), *x = trace_ones(ctx, TRACE_DIMS(4, K), TRACE_F32);
        uint64_t size = ROWS * K * 4;
        for (int64_t at = 0; at + N <= ROWS; at++)
            window(x, w, at);
        trace_stats s = stats();
        ck_assert_uint_le(s.bytes_packed, 3 * size);
        if (tj_test_compiler()) {
            ck_assert_uint_gt(s.packed_copies, 10);
            ck_assert_uint_gt(s.packed_refused, 1000);
            ck_assert_uint_eq(s.packed_dropped, 0);
            // a place that is used again and again is packed, in the room of the longest unused
            for (int i = 0; i < 5; i++)
                window(x, w, 2900);
            ck_assert_uint_gt(stats().packed_dropped, 0);
            uint64_t refused = stats().packed_refused;
            window(x, w, 2900);
            ck_assert_uint_eq(stats().packed_refused, refused);
            ck_assert_uint_le(stats().bytes_packed, 3 * size);
        }
        // new content: none of the copies counts any more
        static float zero[ROWS * K];
        TJ_ASSERT_OK(trace_write(w, zero, sizeof zero));
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_matmul(x, trace_transpose(trace_narrow(w, 0, 2900, N), 0, 1));
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        float v[4 * N];
        TJ_ASSERT_OK(trace_read(y, v, sizeof v));
        ck_assert(v[0] == 0 && v[4 * N - 1] == 0);
        if (tj_test_compiler())
            ck_assert_uint_le(stats().packed_copies, 1);
        trace_release(y), trace_release(w), trace_release(x);
        ck_assert_uint_eq(stats().bytes_packed, 0);
        ck_assert_uint_eq(stats().packed_copies, 0);
        finish();
    }
}
END_TEST

// Colliding hashes: places are told apart by what they are.
START_TEST(collisions) {
    extern bool tj_hash_collide;
    tj_hash_collide = true;
    start(0, TRACE_DYNAMIC_AUTO);
    trace_tensor *w = ramp(1), *x = trace_ones(ctx, TRACE_DIMS(4, K), TRACE_F32);
    for (int turn = 0; turn < 3; turn++) {
        for (int64_t at = 0; at < 300; at += 7)
            window(x, w, at);
    }
    trace_release(w), trace_release(x);
    finish();
    tj_hash_collide = false;
}
END_TEST

static struct {
    trace_tensor *x, *w;
    pthread_barrier_t gate;
} crowd;
static void *crowd_thread(void *arg) {
    pthread_barrier_wait(&crowd.gate);
    for (int i = 0; i < 50; i++) {
        window(crowd.x, crowd.w, 100);
        if (arg && i % 10 == 0)
            (void)trace_context_trim(ctx);
    }
    return NULL;
}
// Many threads, one weight, one copy; and the same while another thread trims.
START_TEST(packed_once) {
    for (int trimming = 0; trimming < 2; trimming++) {
        start(0, TRACE_DYNAMIC_AUTO);
        crowd.w = ramp(1);
        crowd.x = trace_ones(ctx, TRACE_DIMS(4, K), TRACE_F32);
        ck_assert_int_eq(pthread_barrier_init(&crowd.gate, NULL, 6), 0);
        pthread_t t[6];
        for (int i = 0; i < 6; i++)
            ck_assert_int_eq(pthread_create(&t[i], NULL, crowd_thread, trimming && !i ? &crowd : NULL), 0);
        for (int i = 0; i < 6; i++)
            pthread_join(t[i], NULL);
        pthread_barrier_destroy(&crowd.gate);
        ck_assert_uint_le(stats().packed_copies, 1);
        trace_release(crowd.w), trace_release(crowd.x);
        finish();
    }
}
END_TEST

// ---- trim -----------------------------------------------------------------------------------------------------------

START_TEST(trim) {
    trace_tensor *up, *down;
    float v, again;
    ck_assert_uint_eq(trace_context_trim(NULL), 0);
    start(0, TRACE_DYNAMIC_AUTO);
    ck_assert_uint_eq(trace_context_trim(ctx), 0); // nothing has run
    weights(&up, &down);
    uint64_t held = stats().bytes_live;
    for (int i = 0; i < 3; i++)
        TJ_ASSERT_OK(request(region, up, down, 6000, &v));
    trace_stats s = stats();
    if (tj_test_compiler()) {
        ck_assert_uint_ge(s.bytes_idle, 20 * MB);
        ck_assert_uint_gt(s.packed_copies, 0);
        ck_assert_uint_gt(s.bytes_packed, 0);
    }
    size_t back = trace_context_trim(ctx);
    if (tj_test_compiler())
        ck_assert_uint_ge(back, s.bytes_idle + s.bytes_packed + s.bytes_kept);
    s = stats();
    ck_assert_uint_eq(s.bytes_live, held);
    ck_assert_uint_eq(s.bytes_idle, 0);
    ck_assert_uint_eq(s.bytes_kept, 0);
    ck_assert_uint_eq(s.bytes_packed, 0);
    ck_assert_uint_eq(s.bytes_trimmed, back);
    uint64_t graphs = s.graphs;
    TJ_ASSERT_OK(request(region, up, down, 6000, &again));
    ck_assert(again == v);
    ck_assert_uint_eq(stats().graphs, graphs); // plans stay
    // in the middle of a run: what it uses stays
    trace_tensor *x = trace_ones(ctx, TRACE_DIMS(4, 16), TRACE_F32), *y = NULL;
    for (int i = 0; i < 3; i++) {
        ck_assert(trace_begin(region, TRACE_ARGS(x)));
        y = trace_linear(x, up, TRACE_NONE);
        (void)trace_context_trim(ctx);
        y = trace_add_f(y, 1);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        static float out[4 * WIDE];
        TJ_ASSERT_OK(trace_read(y, out, sizeof out));
        ck_assert(out[0] == 17 && out[4 * WIDE - 1] == 17);
        trace_release(y);
    }
    trace_release(x), trace_release(up), trace_release(down);
    finish();
}
END_TEST

START_TEST(trim_and_bound_plans) {
    if (!tj_test_compiler())
        return;
    start(0, TRACE_DYNAMIC_AUTO);
    trace_tensor *w = ramp(1), *x = trace_ones(ctx, TRACE_DIMS(4, K), TRACE_F32);
    static float out[4 * ROWS];
    trace_tensor *y = trace_wrap(ctx, TRACE_F32, out, TRACE_DIMS(4, ROWS));
    trace_bound *b = NULL;
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    (void)trace_copy_(y, trace_add_f(trace_matmul(x, trace_transpose(w, 0, 1)), 1));
    TJ_ASSERT_OK(trace_end_bind(region, NULL, &b));
    uint64_t packed = stats().bytes_packed;
    ck_assert_uint_gt(packed, 0);
    (void)trace_context_trim(ctx);
    ck_assert_uint_eq(stats().bytes_packed, packed);
    TJ_ASSERT_OK(trace_bound_run(b));
    for (int i = 0; i < 4 * ROWS; i++)
        ck_assert(out[i] == (float)(K * (i % ROWS) + 1));
    trace_bound_release(b);
    (void)trace_context_trim(ctx);
    ck_assert_uint_eq(stats().bytes_packed, 0);
    trace_release(y), trace_release(x), trace_release(w);
    finish();
}
END_TEST

// Recordings that are replayed keep their results for the next one; trimmed, they go on.
START_TEST(trim_and_replays) {
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "replay", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_REPLAY), &region));
    trace_tensor *x = trace_ones(ctx, TRACE_DIMS(64, 64), TRACE_F32);
    uint64_t held = stats().bytes_live;
    for (int i = 0; i < 8; i++) {
        trace_tensor *y = NULL;
        double v;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_sum(trace_exp(trace_mul_f(x, 0)), NULL, 0, false);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        TJ_ASSERT_OK(trace_item_f64(y, &v));
        ck_assert(v == 4096);
        trace_release(y);
        if (i % 2) {
            (void)trace_context_trim(ctx);
            ck_assert_uint_eq(stats().bytes_live, held);
        }
    }
    ck_assert_uint_eq(stats().replays, 6);
    trace_release(x);
    finish();
}
END_TEST

TJ_TEST_MAIN("memory", large_request, steady_sizes, limit_is_shared, region_goes, sliding_window, collisions,
             packed_once, trim, trim_and_bound_plans, trim_and_replays)
