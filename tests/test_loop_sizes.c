// tests/test_loop_sizes.c: counted loops over extents that change: one symbolic plan serves all sizes, with the bits of
// exact plans, of the interpreter and of the body written out.
#include "../include/tracejit.h"
#include "tj_test.h"

typedef trace_tensor T;
#define OK(expr) ck_assert_msg((expr) == TRACE_OK, "line %d: %s", __LINE__, trace_last_error(NULL))

// ---- bodies: x [n, m], w [m, m], h carried [n, m] -------------------------------------------------------------------

static T *pointwise(T *h, T *x, T *w) {
    (void)w;
    return trace_mul_f(trace_add(h, x), 0.5);
}
static T *product(T *h, T *x, T *w) { return trace_tanh(trace_add(trace_matmul(h, w), x)); }
static T *rows(T *h, T *x, T *w) {
    (void)w;
    return trace_add(trace_softmax(h, -1), x);
}
static T *columns(T *h, T *x, T *w) {
    (void)w;
    return trace_sub(h, trace_mul(trace_mean(h, TRACE_DIMS(0), true), x));
}
static T *reshaped(T *h, T *x, T *w) {
    (void)w;
    int64_t n = trace_size(x, 0), m = trace_size(x, 1);
    T *flat = trace_reshape(trace_add(h, x), TRACE_DIMS(n * m));
    return trace_reshape(trace_flip(flat, TRACE_DIMS(0)), TRACE_DIMS(n, m));
}
static T *turned(T *h, T *x, T *w) { // a reshape that copies
    (void)w;
    int64_t n = trace_size(x, 0), m = trace_size(x, 1);
    T *t = trace_reshape(trace_transpose(h, 0, 1), TRACE_DIMS(n, m));
    return trace_mul_f(trace_add(t, x), 0.75);
}
static T *narrowed(T *h, T *x, T *w) {
    (void)w;
    int64_t n = trace_size(x, 0), k = n / 2;
    T *a = trace_narrow(h, 0, 0, k), *b = trace_narrow(h, 0, k, n - k);
    return trace_add(trace_cat(TRACE_ARGS(b, a), 0), x);
}
static T *padded(T *h, T *x, T *w) {
    (void)w;
    int64_t n = trace_size(x, 0);
    T *p = trace_pad(h, (int64_t[]){0, 0, 1, 2}, 4, TRACE_PAD_CONSTANT, 0.25);
    return trace_sub(trace_narrow(p, 0, 2, n), x);
}
static T *nested(T *h, T *x, T *w) {
    T *g = trace_mul_f(h, 0.5);
    trace_repeat(2, &g, 1);
    g = trace_add(trace_matmul(g, w), x);
    trace_repeat_end(&g, 1);
    return trace_tanh(g);
}
static T *wide(T *h, T *x, T *w) { // an inner carried value of another shape, made of the outer one
    T *s = trace_sum(h, TRACE_DIMS(1), false);
    trace_repeat(3, &s, 1);
    s = trace_mul_f(trace_add(s, trace_select(x, 1, 0)), 0.25);
    trace_repeat_end(&s, 1);
    return trace_add(trace_matmul(h, w), trace_unsqueeze(s, 1));
}
static T *written(T *h, T *x, T *w) { // a write inside
    (void)w;
    T *c = trace_clone(h);
    trace_add_(trace_narrow(c, 0, 0, 1 + trace_size(x, 0) / 3), trace_narrow(x, 0, 0, 1 + trace_size(x, 0) / 3));
    return trace_mul_f(c, 0.9);
}

static trace_context *making; // for sources
static T *counting_here(T *h, T *x, T *w) {
    (void)w;
    int64_t n = trace_size(x, 0);
    T *i = trace_arange(making, 0, n, 1, TRACE_I64);
    return trace_add(trace_index_select(h, 0, trace_rsub_i(i, n - 1)), x);
}

static const struct {
    const char *name;
    T *(*body)(T *h, T *x, T *w);
} cases[] = {{"pointwise", pointwise},    {"product", product}, {"rows", rows},         {"columns", columns},
             {"reshaped", reshaped},      {"turned", turned},   {"narrowed", narrowed}, {"padded", padded},
             {"counting", counting_here}, {"nested", nested},   {"wide", wide},         {"written", written}};

// Runs a case over one size; `turns` of the loop, or written out.
static void run(trace_context *ctx, trace_region *r, size_t c, int64_t n, int64_t m, int turns, bool loop, float *out) {
    uint64_t seed = (uint64_t)(n * 131 + m);
    float *v = malloc((size_t)(2 * n * m + m * m + 1) * sizeof *v);
    ck_assert_ptr_nonnull(v);
    for (int64_t i = 0; i < 2 * n * m + m * m; i++)
        v[i] = 0.5f * tj_test_uniform(&seed);
    T *x = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(n, m)),
      *h0 = trace_from(ctx, TRACE_F32, v + n * m, TRACE_DIMS(n, m));
    T *w = trace_from(ctx, TRACE_F32, v + 2 * n * m, TRACE_DIMS(m, m)), *y[2] = {NULL, NULL};
    making = ctx;
    if (trace_begin(r, TRACE_ARGS(x, h0, w))) {
        T *h = trace_mul_f(h0, 1.5);
        if (loop) {
            trace_repeat(turns, &h, 1);
            h = cases[c].body(h, x, w);
            trace_repeat_end(&h, 1);
        } else {
            for (int i = 0; i < turns; i++)
                h = cases[c].body(h, x, w);
        }
        y[0] = trace_add_f(h, 1);
        y[1] = trace_sum(h, TRACE_SCALAR, false);
    }
    OK(trace_end(r, y, 2));
    OK(trace_read(y[0], out, (size_t)(n * m) * sizeof *out));
    OK(trace_read(y[1], out + n * m, sizeof *out));
    for (int i = 0; i < 2; i++)
        trace_release(y[i]);
    trace_release(x);
    trace_release(h0);
    trace_release(w);
    free(v);
}

static trace_context *context(const char *no) {
    trace_context *ctx;
    ck_assert_int_eq(setenv("TRACEJIT_NO", no, 1), 0);
    OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = tj_test_quiet), &ctx));
    ck_assert_int_eq(unsetenv("TRACEJIT_NO"), 0);
    return ctx;
}

START_TEST(one_plan) {
    static const int64_t sizes[][2] = {{3, 4}, {7, 4}, {5, 6}, {16, 9}, {33, 2}, {2, 17}, {40, 8}, {5, 5}};
    static float got[2048], want[2048];
    trace_context *ctx = context(""), *plain = context("jit");
    bool compiled = tj_test_compiler();
    for (size_t c = 0; c < TJ_COUNT(cases); c++) {
        for (int mode = TRACE_DYNAMIC_AUTO; mode <= TRACE_DYNAMIC_ON; mode++) {
            trace_region *r, *exact, *interp, *once;
            OK(trace_region_create(ctx, cases[c].name, TRACE_REGION_OPTIONS(.dynamic = mode), &r));
            OK(trace_region_create(ctx, "written out", TRACE_REGION_OPTIONS(.dynamic = TRACE_DYNAMIC_OFF), &exact));
            OK(trace_region_create(plain, "interpreted", NULL, &interp));
            OK(trace_region_create(ctx, "one turn", TRACE_REGION_OPTIONS(.dynamic = mode), &once));
            for (size_t s = 0; s < TJ_COUNT(sizes); s++) {
                int64_t n = sizes[s][0], m = sizes[s][1];
                int turns = (int)(s + c) % 4;
                run(ctx, r, c, n, m, turns, true, got);
                run(ctx, once, c, n, m, 1, false, want);
                run(plain, interp, c, n, m, turns, true, want);
                TJ_ASSERT_BITS(got, want, (size_t)(n * m + 1) * sizeof *got);
                if (s % 3 == 0) {
                    run(ctx, exact, c, n, m, turns, false, want);
                    TJ_ASSERT_BITS(got, want, (size_t)(n * m + 1) * sizeof *got);
                }
            }
            trace_stats st = {.size = sizeof st}, plans = st;
            trace_region_stats(r, &st);
            trace_region_stats(once, &plans);
            ck_assert_msg(!compiled || st.graphs <= plans.graphs,
                          "%s, mode %d: %d plans for %zu sizes, %d without a loop", cases[c].name, mode, (int)st.graphs,
                          TJ_COUNT(sizes), (int)plans.graphs);
            ck_assert(!compiled || mode == TRACE_DYNAMIC_OFF || st.graphs <= 4);
            ck_assert_msg(!compiled || !st.interpreted_ops, "%s, mode %d: %d ops interpreted", cases[c].name, mode,
                          (int)st.interpreted_ops);
            trace_region_release(r);
            trace_region_release(exact);
            trace_region_release(interp);
            trace_region_release(once);
        }
    }
    trace_context_release(ctx);
    trace_context_release(plain);
}
END_TEST

// Extents of 0 and 1 between others, and a guard of the body alone: two leaves that it needs to be equal.
START_TEST(odd_sizes) {
    static const int64_t sizes[][2] = {{4, 3}, {1, 3}, {0, 3}, {6, 1}, {1, 1}, {8, 0}, {9, 3}, {0, 0}, {5, 7}};
    static float got[256], want[256];
    trace_context *ctx = context(""), *plain = context("jit");
    for (size_t c = 0; c < TJ_COUNT(cases); c++) {
        if (cases[c].body == written || cases[c].body == wide) // their narrow and select need an element
            continue;
        trace_region *r, *interp;
        OK(trace_region_create(ctx, cases[c].name, NULL, &r));
        OK(trace_region_create(plain, "interpreted", NULL, &interp));
        for (size_t s = 0; s < TJ_COUNT(sizes); s++) {
            int64_t n = sizes[s][0], m = sizes[s][1];
            run(ctx, r, c, n, m, 2, true, got);
            run(plain, interp, c, n, m, 2, true, want);
            for (int64_t i = 0; i <= n * m; i++)
                ck_assert_msg(!memcmp(&got[i], &want[i], 4) || (isnan(got[i]) && isnan(want[i])),
                              "%s [%d, %d], element %d: %g, not %g", cases[c].name, (int)n, (int)m, (int)i,
                              (double)got[i], (double)want[i]);
        }
        trace_region_release(r);
        trace_region_release(interp);
    }
    trace_context_release(ctx);
    trace_context_release(plain);
}
END_TEST

// A body over two captured tensors whose extents agree in some runs only.
START_TEST(guards) {
    trace_context *ctx = context("");
    trace_region *r;
    OK(trace_region_create(ctx, "guards", TRACE_REGION_OPTIONS(.dynamic = TRACE_DYNAMIC_ON), &r));
    static const int64_t sizes[][2] = {{4, 4}, {6, 6}, {5, 1}, {7, 7}, {8, 1}, {3, 3}};
    for (size_t s = 0; s < TJ_COUNT(sizes); s++) {
        float a[8], b[8], v[8];
        for (int i = 0; i < 8; i++) {
            a[i] = (float)i;
            b[i] = (float)(10 * i + 1);
        }
        T *x = trace_from(ctx, TRACE_F32, a, TRACE_DIMS(sizes[s][0]));
        T *w = trace_from(ctx, TRACE_F32, b, TRACE_DIMS(sizes[s][1])), *h = NULL;
        if (trace_begin(r, TRACE_ARGS(x, w))) {
            h = trace_mul_f(x, 1);
            trace_repeat(3, &h, 1);
            h = trace_add(h, w); // equal extents, or 1
            trace_repeat_end(&h, 1);
        }
        OK(trace_end(r, &h, 1));
        OK(trace_read(h, v, (size_t)sizes[s][0] * 4));
        for (int i = 0; i < sizes[s][0]; i++)
            ck_assert(v[i] == a[i] + 3 * (sizes[s][1] == 1 ? 1 : b[i]));
        trace_release(h);
        trace_release(x);
        trace_release(w);
    }
    trace_stats st = {.size = sizeof st};
    trace_region_stats(r, &st);
    ck_assert(st.graphs <= 2 || !tj_test_compiler());
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

TJ_TEST_MAIN("loop_sizes", one_plan, odd_sizes, guards)
