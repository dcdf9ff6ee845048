/* The scenarios of tests/cases: caching, shapes, mutation, errors, told in steps there and written out here. Each runs
 * with the compiler and in the interpreter tier. Every scenario is either here or in pending.txt. */
#include "../include/tracejit.h"
#include "json.h"

#include <check.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef trace_tensor T;
#define F32(...)                                                                                                       \
    (const float[]) { __VA_ARGS__ }
#define OK(expr) ck_assert_msg((expr) == TRACE_OK, "line %d: %s", __LINE__, trace_last_error(NULL))

static trace_region *region_of(trace_context *ctx) {
    trace_region *r;
    OK(trace_region_create(ctx, "scenario", NULL, &r));
    return r;
}

/* One run of body over the inputs; the result is the caller's. */
typedef T *body_fn(T *const *in, const void *arg);
static T *run(trace_region *r, body_fn *body, const void *arg, size_t n, T *const *in) {
    T *y = NULL;
    if (trace_begin(r, in, n))
        y = body(in, arg);
    ck_assert_msg(trace_end(r, &y, 1) == TRACE_OK, "%s", trace_last_error(NULL));
    return y;
}
#define RUN(r, body, arg, ...) run(r, body, arg, TRACE_ARGS_COUNT(__VA_ARGS__), (T *const[]){__VA_ARGS__})
#define TRACE_ARGS_COUNT(...) (sizeof((T *const[]){__VA_ARGS__}) / sizeof(T *))

static void same(T *t, size_t n, const float *want, int line) {
    float *got = malloc((n + 1) * sizeof *got);
    ck_assert(got);
    ck_assert_msg(trace_read(t, got, n * sizeof *got) == TRACE_OK, "line %d: %s", line, trace_last_error(NULL));
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(got[i] == want[i] && !signbit(got[i]) == !signbit(want[i]), "line %d: [%zu] is %g, not %g", line,
                      i, (double)got[i], (double)want[i]);
    free(got);
}
#define SAME(t, ...) same(t, sizeof(F32(__VA_ARGS__)) / sizeof(float), F32(__VA_ARGS__), __LINE__)

static trace_stats stats_of(trace_region *r) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    return s;
}

/* ---- cache ---------------------------------------------------------------------------------------------------- */

static T *minus_mean(T *const *in, const void *arg) {
    (void)arg;
    return trace_sub(in[0], trace_mean(in[0], TRACE_DIMS(0), false));
}

static void batch_one_then_four(trace_context *ctx) {
    T *one = trace_from(ctx, TRACE_F32, F32(7, -2, 3.5f), TRACE_DIMS(1, 3));
    T *four = trace_from(ctx, TRACE_F32, F32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), TRACE_DIMS(4, 3));
    for (int first = 0; first < 2; first++) {
        trace_region *r = region_of(ctx);
        for (int i = 0; i < 3; i++) {
            bool small = (i + first) % 2 == 0;
            T *y = RUN(r, minus_mean, NULL, small ? one : four);
            if (small)
                SAME(y, 0, 0, 0);
            else
                SAME(y, -4.5f, -4.5f, -4.5f, -1.5f, -1.5f, -1.5f, 1.5f, 1.5f, 1.5f, 4.5f, 4.5f, 4.5f);
            trace_release(y);
        }
        trace_region_release(r);
    }
    trace_release(one);
    trace_release(four);
}

static T *add_add_f(T *const *in, const void *arg) {
    return trace_add_f(trace_add(in[0], in[1]), *(const double *)arg);
}
static T *add_add_i(T *const *in, const void *arg) {
    return trace_add_i(trace_add(in[0], in[1]), *(const int64_t *)arg);
}

static void scalar_argument(trace_context *ctx) {
    trace_region *r = region_of(ctx);
    T *a = trace_from(ctx, TRACE_F32, F32(1, 1, 1, 1, 1, 1, 1, 1, 1), TRACE_DIMS(3, 3));
    T *zero = trace_from(ctx, TRACE_F32, F32(-0.0f, -0.0f, -0.0f), TRACE_DIMS(3));
    static const double ts[] = {6, 3, 1.5};
    for (int i = 0; i < 3; i++) {
        T *y = RUN(r, add_add_f, &ts[i], a, a);
        float w = 2 + (float)ts[i];
        SAME(y, w, w, w, w, w, w, w, w, w);
        trace_release(y);
    }
    ck_assert_uint_eq(stats_of(r).graphs, 1); /* a scalar is a parameter */
    for (int i = 0; i < 2; i++) {
        double t = i ? 0.0 : -0.0;
        T *y = RUN(r, add_add_f, &t, zero, zero);
        if (i)
            SAME(y, 0.0f, 0.0f, 0.0f);
        else
            SAME(y, -0.0f, -0.0f, -0.0f);
        trace_release(y);
    }
    const int64_t ones[] = {1, 2, 3}, one = 1;
    const double one_f = 1;
    T *ints = trace_from(ctx, TRACE_I64, ones, TRACE_DIMS(3));
    T *y = RUN(r, add_add_i, &one, ints, ints);
    ck_assert_int_eq(trace_dtype_of(y), TRACE_I64);
    int64_t got[3];
    OK(trace_read(y, got, sizeof got));
    ck_assert(got[0] == 3 && got[1] == 5 && got[2] == 7);
    trace_release(y);
    y = RUN(r, add_add_f, &one_f, ints, ints);
    ck_assert_int_eq(trace_dtype_of(y), TRACE_F32);
    SAME(y, 3, 5, 7);
    trace_release(y);
    trace_release(ints);
    trace_release(zero);
    trace_release(a);
    trace_region_release(r);
}

static T *sum_selected(T *const *in, const void *arg) {
    (void)arg;
    return trace_sum(trace_index_select(in[0], 0, in[1]), TRACE_SCALAR, false);
}

static void reduce_over_changing_extent(trace_context *ctx) {
    static const int64_t order[] = {0, 1, 2, 3};
    static const struct {
        int64_t n;
        float sum;
    } turns[] = {{1, 1}, {2, 3}, {3, 7}, {4, 15}, {2, 3}};
    trace_region *r = region_of(ctx);
    T *buf = trace_from(ctx, TRACE_F32, F32(1, 2, 4, 8, 16), TRACE_DIMS(5));
    for (int i = 0; i < 5; i++) {
        T *idx = trace_from(ctx, TRACE_I64, order, TRACE_DIMS(turns[i].n));
        T *y = RUN(r, sum_selected, NULL, buf, idx);
        SAME(y, turns[i].sum);
        trace_release(y);
        trace_release(idx);
    }
    trace_release(buf);
    trace_region_release(r);
}

static T *flat_times_ten(T *const *in, const void *arg) {
    (void)arg;
    return trace_mul_f(trace_reshape(in[0], TRACE_DIMS(6)), 10);
}

static void stride_change(trace_context *ctx) {
    trace_region *r = region_of(ctx);
    T *base[4] = {trace_from(ctx, TRACE_F32, F32(0, 1, 2, 3, 4, 5), TRACE_DIMS(2, 3)),
                  trace_from(ctx, TRACE_F32, F32(0, 3, 1, 4, 2, 5), TRACE_DIMS(3, 2)),
                  trace_from(ctx, TRACE_F32, F32(0, 1, 2, -9, 3, 4, 5, -9), TRACE_DIMS(2, 4)),
                  trace_from(ctx, TRACE_F32, F32(0, 1, 2), TRACE_DIMS(1, 3))};
    T *x[4] = {trace_retain(base[0]), trace_transpose(base[1], 0, 1), trace_narrow(base[2], 1, 0, 3),
               trace_expand(base[3], TRACE_DIMS(2, 3))};
    trace_stats before = {0};
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 4; i++) {
            T *y = RUN(r, flat_times_ten, NULL, x[i]);
            if (i < 3)
                SAME(y, 0, 10, 20, 30, 40, 50);
            else
                SAME(y, 0, 10, 20, 0, 10, 20);
            trace_release(y);
        }
        if (!turn)
            before = stats_of(r);
    }
    ck_assert_uint_eq(stats_of(r).graphs, before.graphs);
    ck_assert_uint_eq(stats_of(r).kernels, before.kernels);
    for (int i = 0; i < 4; i++) {
        trace_release(x[i]);
        trace_release(base[i]);
    }
    trace_region_release(r);
}

/* ---- mutation ------------------------------------------------------------------------------------------------- */

static T *plus_one(T *const *in, const void *arg) {
    (void)arg;
    return trace_add_i(in[0], 1);
}

static void result_buffer_reused(trace_context *ctx) {
    trace_region *r = region_of(ctx);
    T *in[4], *y[4];
    for (int i = 0; i < 4; i++) {
        in[i] = trace_from(ctx, TRACE_F32, F32(i % 2 ? 4.5f : 3.5f), TRACE_DIMS(1));
        y[i] = RUN(r, plus_one, NULL, in[i]);
    }
    T *equal = trace_eq(y[2], y[3]);
    int64_t v = -1;
    OK(trace_item_i64(equal, &v));
    ck_assert_int_eq(v, 0);
    for (int i = 0; i < 4; i++) {
        SAME(y[i], i % 2 ? 5.5f : 4.5f);
        trace_release(y[i]);
        trace_release(in[i]);
    }
    trace_release(equal);
    trace_region_release(r);
}

static T *square_plus_one(T *const *in, const void *arg) {
    (void)arg;
    return trace_add_i(trace_mul(in[0], in[0]), 1);
}

static void output_overwritten_by_next_run(trace_context *ctx) {
    trace_region *r = region_of(ctx);
    T *two = trace_from(ctx, TRACE_F32, F32(2), TRACE_DIMS(1)),
      *three = trace_from(ctx, TRACE_F32, F32(3), TRACE_DIMS(1));
    T *y = RUN(r, square_plus_one, NULL, two), *view = trace_reshape(y, TRACE_DIMS(1, 1));
    trace_release(y);
    y = RUN(r, square_plus_one, NULL, three);
    SAME(view, 5);
    SAME(y, 10);
    trace_release(y);
    trace_release(view);
    T *x = trace_from(ctx, TRACE_F32, F32(1), TRACE_DIMS(1));
    trace_region *step = region_of(ctx);
    for (int i = 0; i < 5; i++) {
        y = RUN(step, plus_one, NULL, x);
        trace_release(x);
        x = y;
        SAME(x, (float)(i + 2));
    }
    trace_release(x);
    trace_release(two);
    trace_release(three);
    trace_region_release(step);
    trace_region_release(r);
}

static T *grow_state(T *const *in, const void *arg) {
    T *a = *(T *const *)arg;
    T *out;
    trace_add_(a, in[0]);
    out = trace_mul_i(a, 2);
    trace_mul_(a, a);
    return out;
}

static void state_not_in_output(trace_context *ctx) {
    trace_region *r = region_of(ctx);
    T *a = trace_from(ctx, TRACE_F32, F32(1), TRACE_DIMS(1)), *x = trace_from(ctx, TRACE_F32, F32(2), TRACE_DIMS(1));
    static const float want[] = {6, 22, 246}, state[] = {9, 121, 15129};
    for (int i = 0; i < 3; i++) {
        T *y = RUN(r, grow_state, &a, x);
        SAME(y, want[i]);
        SAME(a, state[i]);
        trace_release(y);
    }
    trace_release(x);
    trace_release(a);
    trace_region_release(r);
}

static T *add_captured(T *const *in, const void *arg) { return trace_add(in[0], *(T *const *)arg); }

static void constant_captured(trace_context *ctx) {
    trace_region *r = region_of(ctx);
    T *a = trace_from(ctx, TRACE_F32, F32(10, 20), TRACE_DIMS(2));
    T *b[2] = {trace_from(ctx, TRACE_F32, F32(1), TRACE_DIMS(1)), trace_from(ctx, TRACE_F32, F32(2), TRACE_DIMS(1))};
    for (int i = 0; i < 3; i++) {
        T *y = RUN(r, add_captured, &b[i / 2], a);
        SAME(y, i < 2 ? 11.0f : 12.0f, i < 2 ? 21.0f : 22.0f);
        trace_release(y);
    }
    ck_assert_uint_eq(stats_of(r).graphs, 1);
    T *c = trace_from(ctx, TRACE_F32, F32(1, 2), TRACE_DIMS(2)), *y = RUN(r, add_captured, &c, a);
    SAME(y, 11, 22);
    trace_release(y);
    OK(trace_write(c, F32(10, 2), 2 * sizeof(float)));
    y = RUN(r, add_captured, &c, a);
    SAME(y, 20, 22);
    trace_release(y);
    T *view = trace_select(c, 0, 1);
    trace_fill_f_(view, 5);
    trace_release(view);
    y = RUN(r, add_captured, &c, a);
    SAME(y, 20, 25);
    trace_release(y);
    trace_release(c);
    c = trace_from(ctx, TRACE_F32, F32(100, 200), TRACE_DIMS(2));
    y = RUN(r, add_captured, &c, a);
    SAME(y, 110, 220);
    trace_release(y);
    trace_release(c);
    trace_release(b[0]);
    trace_release(b[1]);
    trace_release(a);
    trace_region_release(r);
}

static T *double_then_add(T *const *in, const void *arg) {
    (void)arg;
    trace_mul_i_(in[0], 2);
    return trace_add(in[0], in[1]);
}

static void recompile_on_alias(trace_context *ctx) {
    trace_region *r = region_of(ctx);
    T *x = trace_from(ctx, TRACE_F32, F32(1, 2, 3), TRACE_DIMS(3)),
      *y = trace_from(ctx, TRACE_F32, F32(10, 20, 30), TRACE_DIMS(3));
    T *z = RUN(r, double_then_add, NULL, x, y);
    SAME(z, 12, 24, 36);
    trace_release(z);
    trace_release(y);
    trace_release(x);
    T *base = trace_from(ctx, TRACE_F32, F32(1, 2, 3, 4, 5, 6), TRACE_DIMS(6));
    x = trace_narrow(base, 0, 0, 3);
    y = trace_narrow(base, 0, 1, 3);
    z = RUN(r, double_then_add, NULL, x, y);
    SAME(z, 6, 10, 10);
    SAME(base, 2, 4, 6, 4, 5, 6);
    trace_release(z);
    trace_release(y);
    trace_release(x);
    trace_release(base);
    x = trace_from(ctx, TRACE_F32, F32(1, 2, 3), TRACE_DIMS(3));
    z = RUN(r, double_then_add, NULL, x, x);
    SAME(z, 4, 8, 12);
    trace_release(z);
    trace_release(x);
    base = trace_from(ctx, TRACE_F32, F32(1, 2, 3, 4, 5, 6), TRACE_DIMS(6));
    x = trace_slice(base, 0, 0, 6, 2);
    y = trace_slice(base, 0, 1, 6, 2);
    z = RUN(r, double_then_add, NULL, x, y);
    SAME(z, 4, 10, 16);
    trace_release(z);
    trace_release(y);
    trace_release(x);
    trace_release(base);
    trace_region_release(r);
}

/* ---- shapes --------------------------------------------------------------------------------------------------- */

static T *pad_to(T *x, int64_t rows, int64_t cols) {
    return trace_pad(x, TRACE_DIMS(0, cols - trace_size(x, 1), 0, rows - trace_size(x, 0)), TRACE_PAD_CONSTANT, 0);
}
static T *padded_add(T *const *in, const void *arg) {
    (void)arg;
    int64_t r0 = trace_size(in[0], 0), r1 = trace_size(in[1], 0), c0 = trace_size(in[0], 1), c1 = trace_size(in[1], 1);
    int64_t rows = r0 > r1 ? r0 : r1, cols = c0 > c1 ? c0 : c1;
    return trace_add(pad_to(in[0], rows, cols), pad_to(in[1], rows, cols));
}

static void max_of_extents(trace_context *ctx) {
    trace_region *r = region_of(ctx);
    T *x = trace_from(ctx, TRACE_F32, F32(0, 1, 2, 3, 4, 5), TRACE_DIMS(2, 3));
    T *y = trace_from(ctx, TRACE_F32, F32(0, 100, 200, 300, 400, 500), TRACE_DIMS(3, 2));
    T *z = RUN(r, padded_add, NULL, x, y);
    SAME(z, 0, 101, 2, 203, 304, 5, 400, 500, 0);
    trace_release(z);
    trace_release(y);
    trace_release(x);
    x = trace_from(ctx, TRACE_F32, F32(0, 1, 2, 3), TRACE_DIMS(2, 2));
    y = trace_from(ctx, TRACE_F32, F32(0, 1, 2, 3, 4, 5, 6, 7, 8), TRACE_DIMS(3, 3));
    z = RUN(r, padded_add, NULL, x, y);
    SAME(z, 0, 2, 2, 5, 7, 5, 6, 7, 8);
    trace_release(z);
    trace_release(y);
    trace_release(x);
    trace_region_release(r);
}

static T *plus_column_sum(T *const *in, const void *arg) {
    return trace_sum(trace_add(in[0], *(T *const *)arg), TRACE_DIMS(0, 1), false);
}

static void zero_one_extents(trace_context *ctx) {
    static const struct {
        int64_t rows, cols;
        float sum;
    } turns[] = {{1, 4, 36}, {3, 4, 36}, {1, 0, 0}, {1, 1, 9}};
    float twos[12];
    for (int i = 0; i < 12; i++)
        twos[i] = 2;
    T *ones = trace_from(ctx, TRACE_F32, F32(1, 1, 1), TRACE_DIMS(3, 1));
    trace_region *r = region_of(ctx);
    for (int i = 0; i < 4; i++) {
        T *x = trace_from(ctx, TRACE_F32, twos, TRACE_DIMS(turns[i].rows, turns[i].cols));
        T *y = RUN(r, plus_column_sum, &ones, x);
        SAME(y, turns[i].sum);
        trace_release(y);
        trace_release(x);
    }
    trace_region_release(r);
    trace_release(ones);
    r = region_of(ctx);
    static const int64_t batches[] = {1, 2, 3, 8, 5, 13, 21, 1, 34};
    float values[34 * 3];
    for (int i = 0; i < 34 * 3; i++)
        values[i] = (float)(i / 3); /* row i holds i */
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        int64_t n = batches[i];
        T *x = trace_from(ctx, TRACE_F32, values, TRACE_DIMS(n, 3)), *y = RUN(r, minus_mean, NULL, x);
        float got[34 * 3];
        OK(trace_read(y, got, (size_t)n * 3 * sizeof(float)));
        for (int64_t k = 0; k < n * 3; k++)
            ck_assert_msg(got[k] == (float)(k / 3) - (float)(n - 1) / 2, "batch %d, element %d", (int)n, (int)k);
        trace_release(y);
        trace_release(x);
    }
    ck_assert_uint_le(stats_of(r).kernels, 6); /* a new extent may cost a plan, seldom a compilation */
    trace_region_release(r);
}

/* ---- robustness ----------------------------------------------------------------------------------------------- */

static T *times_two(T *const *in, const void *arg) {
    (void)arg;
    return trace_mul_i(in[0], 2);
}

static void usable_after_error(trace_context *ctx) {
    trace_region *r = region_of(ctx), *bad = region_of(ctx), *other = region_of(ctx);
    const int64_t far[] = {0, 5};
    T *x = trace_from(ctx, TRACE_F32, F32(1, 2), TRACE_DIMS(2)), *idx = trace_from(ctx, TRACE_I64, far, TRACE_DIMS(2));
    uint64_t live = 0;
    for (int i = 0; i < 1000; i++) {
        T *y = NULL;
        if (trace_begin(bad, TRACE_ARGS(x, idx)))
            y = trace_add_i(trace_index_select(x, 0, idx), 1);
        ck_assert_int_eq(trace_end(bad, &y, 1), TRACE_ERR_DEVICE);
        ck_assert_ptr_null(y);
        ck_assert_msg(strstr(trace_last_error(ctx), "index_select"), "%s", trace_last_error(ctx));
        y = NULL; /* 2^62 bytes */
        if (trace_begin(bad, TRACE_ARGS(x)))
            y = trace_add(trace_zeros(ctx, TRACE_DIMS((int64_t)1 << 60), TRACE_F32), x);
        ck_assert_int_ne(trace_end(bad, &y, 1), TRACE_OK);
        ck_assert_ptr_null(y);
        y = RUN(r, plus_one, NULL, x);
        SAME(y, 2, 3);
        trace_release(y);
        y = RUN(other, times_two, NULL, x);
        SAME(y, 2, 4);
        trace_release(y);
        trace_stats s = {.size = sizeof s};
        trace_context_stats(ctx, &s);
        if (i == 10)
            live = s.bytes_live;
        if (i > 10)
            ck_assert_uint_le(s.bytes_live, live);
    }
    trace_release(idx);
    trace_release(x);
    trace_region_release(other);
    trace_region_release(bad);
    trace_region_release(r);
}

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void long_chain(trace_context *ctx) {
    trace_region *r = region_of(ctx);
    T *x = trace_from(ctx, TRACE_F32, F32(0), TRACE_DIMS(1));
    for (int call = 0; call < 2; call++) {
        T *out[30] = {NULL};
        if (trace_begin(r, TRACE_ARGS(x))) {
            T *y = x;
            for (int i = 1; i <= 300; i++) {
                y = trace_add_i(y, 1);
                if (i % 10 == 0)
                    out[i / 10 - 1] = y;
            }
        }
        OK(trace_end(r, out, 30));
        for (int i = 0; i < 30; i++) {
            SAME(out[i], (float)(10 * (i + 1)));
            trace_release(out[i]);
        }
    }
    double took[2];
    for (int big = 0; big < 2; big++) {
        int n = big ? 20000 : 2500;
        double start = seconds();
        T *y = x;
        if (trace_begin(r, TRACE_ARGS(x)))
            for (int i = 0; i < n; i++)
                y = trace_add_i(y, 1);
        OK(trace_end(r, &y, 1));
        took[big] = seconds() - start;
        SAME(y, (float)n);
        trace_release(y);
    }
    ck_assert_msg(took[1] < 32 * took[0] + 0.1, "2500 ops take %g s, 20000 take %g s", took[0], took[1]);
    trace_release(x);
    trace_region_release(r);
}

/* An allocator whose memory is full of NaN patterns, before its use and after. */
static void *nan_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes ? bytes : 1))
        return NULL;
    return memset(p, 0xff, bytes);
}
static void nan_free(void *user, void *p, size_t bytes) {
    (void)user;
    if (p)
        memset(p, 0xff, bytes);
    free(p);
}

struct two_convs {
    T *w1, *w2;
};
static T *conv_upsample_conv(T *const *in, const void *arg) {
    static const int64_t pad[2] = {1, 1};
    const struct two_convs *m = arg;
    T *x = trace_conv2d(in[0], m->w1, TRACE_NONE, NULL, pad, NULL, 1);
    int64_t h = trace_size(x, 2), w = trace_size(x, 3);
    x = trace_expand(trace_reshape(x, TRACE_DIMS(1, 4, h, 1, w, 1)), TRACE_DIMS(1, 4, h, 2, w, 2));
    return trace_conv2d(trace_reshape(x, TRACE_DIMS(1, 4, 2 * h, 2 * w)), m->w2, TRACE_NONE, NULL, pad, NULL, 1);
}

static void deterministic_repeat(trace_context *unused) {
    (void)unused;
    static const int64_t sizes[][2] = {{46, 46}, {46, 80}, {47, 47}};
    static float xs[3 * 47 * 80], w1[4 * 3 * 9], w2[4 * 4 * 9], first[4 * 4 * 47 * 80], again[4 * 4 * 47 * 80];
    for (int i = 0; i < 3 * 47 * 80; i++)
        xs[i] = (float)(i % 17) / 17;
    for (int i = 0; i < 4 * 3 * 9; i++)
        w1[i] = (float)(i % 5 - 2);
    for (int i = 0; i < 4 * 4 * 9; i++)
        w2[i] = (float)(i % 5 - 2);
    for (int size = 0; size < 3; size++) {
        int64_t h = sizes[size][0], w = sizes[size][1];
        size_t n = (size_t)(4 * 4 * h * w);
        for (int threads = 1; threads <= 8; threads += 7) {
            trace_context *ctx;
            OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = threads, .alloc = nan_alloc, .free = nan_free),
                                    &ctx));
            trace_region *r = region_of(ctx);
            struct two_convs m = {trace_from(ctx, TRACE_F32, w1, TRACE_DIMS(4, 3, 3, 3)),
                                  trace_from(ctx, TRACE_F32, w2, TRACE_DIMS(4, 4, 3, 3))};
            T *x = trace_from(ctx, TRACE_F32, xs, TRACE_DIMS(1, 3, h, w));
            for (int i = 0; i < 3; i++) {
                T *y = RUN(r, conv_upsample_conv, &m, x);
                float *to = threads == 1 && i == 0 ? first : again;
                OK(trace_read(y, to, n * sizeof(float)));
                trace_release(y);
                for (size_t k = 0; k < n; k++)
                    ck_assert_msg(!isnan(to[k]), "NaN at %zu", k);
                if (to == again)
                    ck_assert_msg(!memcmp(first, again, n * sizeof(float)), "run %d, %d threads differs", i, threads);
            }
            trace_release(x);
            trace_release(m.w1);
            trace_release(m.w2);
            trace_region_release(r);
            trace_context_release(ctx);
        }
    }
}

static T *cast_input(T *const *in, const void *arg) { return trace_to(in[0], *(const enum trace_dtype *)arg); }
struct constant {
    trace_context *ctx;
    double value;
    enum trace_dtype to;
};
static T *cast_constant(T *const *in, const void *arg) {
    const struct constant *c = arg;
    T *k = trace_to(trace_full_f(c->ctx, TRACE_DIMS(1), c->value, TRACE_F32), c->to);
    return trace_add(k, trace_mul_i(trace_to(in[0], c->to), 0)); /* beside an input, so that a graph remains */
}
static int64_t element(T *t, int64_t i, enum trace_dtype d) {
    uint8_t all[700 * 8];
    OK(trace_read(t, all, (size_t)trace_numel(t) * (d == TRACE_U8 ? 1 : d == TRACE_I32 ? 4 : 8)));
    if (d == TRACE_U8)
        return all[i];
    int32_t w;
    int64_t v;
    memcpy(&w, all + 4 * i, 4);
    memcpy(&v, all + (d == TRACE_I64 ? 8 * i : 0), 8);
    return d == TRACE_I32 ? w : v;
}

static void cast_out_of_range_policy(trace_context *ctx) {
    static const float values[] = {NAN, INFINITY, -INFINITY, 3e9f, -3e9f, 300.5f, -1.5f};
    static const enum trace_dtype types[] = {TRACE_I32, TRACE_I64, TRACE_U8};
    static const int64_t want[3][7] = {{0, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 300, -1},
                                       {0, INT64_MAX, INT64_MIN, 3000000000, -3000000000, 300, -1},
                                       {0, 255, 0, 255, 0, 255, 0}};
    trace_region *r = region_of(ctx);
    for (int k = 0; k < 3; k++) {
        enum trace_dtype d = types[k];
        static const int64_t sizes[] = {7, 700, 1};
        float many[700];
        for (int s = 0; s < 3; s++) {
            for (int i = 0; i < (s == 2 ? 7 : 1); i++) {
                for (int64_t e = 0; e < sizes[s]; e++)
                    many[e] = values[(e + i) % 7];
                T *x = trace_from(ctx, TRACE_F32, many, TRACE_DIMS(sizes[s])), *y = RUN(r, cast_input, &d, x),
                  *eager = trace_to(x, d);
                for (int64_t e = 0; e < sizes[s]; e++) {
                    ck_assert_int_eq(element(y, e, d), want[k][(e + i) % 7]);
                    ck_assert_int_eq(element(eager, e, d), want[k][(e + i) % 7]);
                }
                trace_release(eager);
                trace_release(y);
                trace_release(x);
            }
        }
        T *x = trace_from(ctx, TRACE_F32, F32(0), TRACE_DIMS(1));
        for (int i = 0; i < 7; i++) {
            struct constant c = {ctx, values[i], d};
            T *y = RUN(r, cast_constant, &c, x);
            ck_assert_int_eq(element(y, 0, d), want[k][i]);
            trace_release(y);
        }
        trace_release(x);
    }
    trace_region_release(r);
}

/* ---- the list ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *id;
    void (*steps)(trace_context *ctx);
} scenarios[] = {
    {"cache-batch-one-then-four", batch_one_then_four},
    {"cache-scalar-argument", scalar_argument},
    {"cache-reduce-over-changing-extent", reduce_over_changing_extent},
    {"cache-stride-change", stride_change},
    {"mut-result-buffer-reused", result_buffer_reused},
    {"mut-output-overwritten-by-next-run", output_overwritten_by_next_run},
    {"mut-state-not-in-output", state_not_in_output},
    {"mut-constant-captured", constant_captured},
    {"mut-recompile-on-alias", recompile_on_alias},
    {"dyn-max-of-extents", max_of_extents},
    {"dyn-zero-one-extents", zero_one_extents},
    {"robust-usable-after-error", usable_after_error},
    {"robust-long-chain", long_chain},
    {"robust-deterministic-repeat", deterministic_repeat},
    {"robust-cast-out-of-range-policy", cast_out_of_range_policy},
};
enum { NSCENARIOS = sizeof scenarios / sizeof scenarios[0] };

static void quiet(void *user, const trace_event *e) {
    (void)user;
    (void)e;
}

START_TEST(scenario_holds) {
    bool jit = _i < NSCENARIOS;
    trace_context *ctx;
    if (!jit)
        ck_assert_int_eq(setenv("TRACEJIT_NO", "jit", 1), 0);
    OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = quiet), &ctx));
    unsetenv("TRACEJIT_NO");
    scenarios[_i % NSCENARIOS].steps(ctx);
    trace_context_release(ctx);
}
END_TEST

static char *read_file(const char *folder, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    char *text = f ? calloc(1, 1 << 20) : NULL;
    if (text)
        (void)!fread(text, 1, (1 << 20) - 1, f);
    if (f)
        fclose(f);
    return text;
}

START_TEST(every_scenario_is_here_or_pending) {
    const char *folder = getenv("TJ_CASES") ? getenv("TJ_CASES") : "tests/cases";
    DIR *dir = opendir(folder);
    char *pending = read_file(folder, "pending.txt");
    ck_assert(dir && pending);
    for (struct dirent *d; (d = readdir(dir));) {
        size_t n = strlen(d->d_name), at;
        if (n < 6 || strcmp(d->d_name + n - 5, ".json") != 0)
            continue;
        const char *error;
        char *text = read_file(folder, d->d_name);
        struct json *all = text ? json_parse(text, &error, &at) : NULL;
        ck_assert_msg(all, "%s", d->d_name);
        for (const struct json *c = all->child; c; c = c->next) {
            char line[200];
            if (!json_get(c, "scenario"))
                continue;
            bool here = false;
            for (size_t i = 0; i < NSCENARIOS; i++)
                here |= !strcmp(scenarios[i].id, json_text(c, "id"));
            snprintf(line, sizeof line, "\n%s scenario:", json_text(c, "id"));
            ck_assert_msg(here != (strstr(pending, line) != NULL), "%s", json_text(c, "id"));
        }
        json_free(all);
        free(text);
    }
    closedir(dir);
    free(pending);
}
END_TEST

int main(void) {
    Suite *s = suite_create("scenarios");
    TCase *tc = tcase_create("scenarios");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, scenario_holds, 0, 2 * NSCENARIOS);
    tcase_add_test(tc, every_scenario_is_here_or_pending);
    suite_add_tcase(s, tc);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
