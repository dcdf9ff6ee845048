// tests/test_half.c: contractions over f16 and bf16 read their operands as they are: no f32 copy of a weight is made,
// a stable one is packed once in 16 bits, and what is widened by the program itself is read past the cast, but never
// past a write. Operands are small integers, so that sums are exact and every result is known to the last bit.
#include "op_call.h"
#include "tj_test.h"

typedef trace_tensor T;
enum { TIERS = 6, N = 67, K = 37 };
static const char *const tier_no[TIERS] = {"", "jit", "simplify", "fuse,epilogue", "prepack", ""};

// The last tier is compiled for the portable level.
static trace_context *open_tier(int tier) {
    trace_context *c;
    ck_assert(setenv("TRACEJIT_NO", tier_no[tier], 1) == 0);
    ck_assert((tier == TIERS - 1 ? setenv("TRACEJIT_CPU", "portable", 1) : unsetenv("TRACEJIT_CPU")) == 0);
    trace_context_options o = {.size = sizeof o, .on_event = tj_test_quiet};
    ck_assert_msg(trace_context_create(&o, &c) == TRACE_OK, "%s", trace_last_error(NULL));
    return c;
}

static int value(int64_t i, int salt) { return (int)((i * 7 + salt * 5 + i / 11) % 9) - 4; }

// n elements of small integers, in memory of the caller's.
static void fill(enum trace_dtype d, void *p, int64_t n, int salt) {
    for (int64_t i = 0; i < n; i++)
        op_store(d, p, (size_t)i, value(i, salt));
}

static T *tensor(trace_context *c, enum trace_dtype d, int salt, const int64_t *dims, size_t rank) {
    int64_t n = 1;
    for (size_t i = 0; i < rank; i++)
        n *= dims[i];
    void *p = malloc((size_t)n * 4 + 1);
    ck_assert_ptr_nonnull(p);
    fill(d, p, n, salt);
    T *t = trace_from(c, d, p, dims, rank);
    ck_assert_msg(t != NULL, "%s", trace_last_error(c));
    free(p);
    return t;
}

// Element (i, j) of x w^T (+ bias), rounded to d: values with these salts; bias salt 0: none.
static double want(enum trace_dtype d, int64_t i, int64_t j, int x, int w, int bias) {
    double sum = bias ? value(j, bias) : 0;
    unsigned char one[8];
    for (int64_t k = 0; k < K; k++)
        sum += (double)value(i * K + k, x) * value(j * K + k, w);
    op_store(d, one, 0, sum);
    return op_load(d, one, 0);
}

static void check(trace_context *c, T *y, enum trace_dtype d, int64_t m, int x, int w, int bias, const char *what) {
    unsigned char out[9 * N * 4];
    ck_assert_msg(y && trace_read(y, out, (size_t)(m * N) * op_dtype_size(d)) == TRACE_OK, "%s: %s", what,
                  trace_last_error(c));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < N; j++) {
            double got = op_load(d, out, (size_t)(i * N + j)), right = want(d, i, j, x, w, bias);
            ck_assert_msg(got == right, "%s, %d rows, dtype %d: element %d, %d is %g, not %g", what, (int)m, d, (int)i,
                          (int)j, got, right);
        }
}

static trace_region *region(trace_context *c, const char *name) {
    trace_region *r;
    trace_region_options o = {.size = sizeof o};
    ck_assert(trace_region_create(c, name, &o, &r) == TRACE_OK);
    return r;
}

static uint64_t packed(const trace_context *c) {
    trace_stats s = {.size = sizeof s};
    trace_context_stats(c, &s);
    return s.bytes_packed;
}
static uint64_t launches(const trace_context *c) {
    trace_stats s = {.size = sizeof s};
    trace_context_stats(c, &s);
    return s.launches;
}

START_TEST(packed_once) {
    static const enum trace_dtype halves[] = {TRACE_F16, TRACE_BF16};
    for (int tier = 0; tier < TIERS; tier++)
        for (size_t h = 0; h < 2; h++)
            for (int64_t m = 1; m <= 9; m += m == 4 ? 5 : 1) {
                enum trace_dtype d = halves[h];
                trace_context *c = open_tier(tier);
                trace_region *r = region(c, "half");
                T *x = tensor(c, d, 1, TRACE_DIMS(m, K)), *w = tensor(c, d, 2, TRACE_DIMS(N, K)),
                  *b = tensor(c, d, 3, TRACE_DIMS(N)), *in[] = {x, w, b};
                uint64_t after_one = 0, before = launches(c);
                for (int run = 0; run < 4; run++) {
                    uint16_t changed[N * K];
                    if (run == 2) {
                        fill(d, changed, (int64_t)N * K, 4);
                        ck_assert(trace_write(w, changed, sizeof changed) == TRACE_OK);
                    }
                    T *y = NULL;
                    if (trace_begin(r, in, 3))
                        y = trace_linear(x, w, b);
                    ck_assert(trace_end(r, &y, 1) == TRACE_OK);
                    check(c, y, d, m, 1, run < 2 ? 2 : 4, 3, "linear");
                    trace_release(y);
                    if (run == 0)
                        after_one = packed(c);
                    ck_assert_msg(packed(c) == after_one, "packed again: %llu", (unsigned long long)packed(c));
                }
                if (tj_test_compiler() && tier == 0) {
                    ck_assert_uint_eq(launches(c) - before, 4); // nothing but the product
                    // Whole panels: at most 128 columns, 16 bits an element.
                    ck_assert_uint_gt(after_one, 0);
                    ck_assert_uint_le(after_one, 128 * K * 2 + 128);
                }
                trace_release(x), trace_release(w), trace_release(b);
                trace_region_release(r);
                trace_context_release(c);
            }
}
END_TEST

// Wrapped memory changes without notice: nothing of it is kept.
START_TEST(volatile_weights) {
    static const enum trace_dtype dtypes[] = {TRACE_F32, TRACE_F16, TRACE_BF16};
    for (int tier = 0; tier < TIERS; tier++)
        for (int mix = 0; mix < 6; mix++) {
            enum trace_dtype d = dtypes[mix % 3];
            trace_context *c = open_tier(tier);
            trace_region *r = region(c, "volatile");
            unsigned char memory[N * K * 4], turned[N * K * 4];
            T *w = mix < 3 ? trace_wrap(c, d, memory, TRACE_DIMS(N, K)) : trace_wrap(c, d, turned, TRACE_DIMS(K, N));
            for (int64_t m = 1; m <= 9; m++) {
                T *x = tensor(c, d, 1, TRACE_DIMS(m, K)), *in[] = {x, w}, *y = NULL;
                for (int run = 0; run < 2; run++) {
                    fill(d, memory, (int64_t)N * K, 5 + run);
                    for (size_t i = 0; i < N * K; i++)
                        op_store(d, turned, i, value((int64_t)(i % N * K + i / N), 5 + run));
                    if (trace_begin(r, in, 2))
                        y = mix < 3 ? trace_linear(x, w, TRACE_NONE) : trace_matmul(x, w);
                    ck_assert(trace_end(r, &y, 1) == TRACE_OK);
                    check(c, y, d, m, 1, 5 + run, 0, mix < 3 ? "linear" : "matmul");
                    trace_release(y), y = NULL;
                }
                trace_release(x);
            }
            ck_assert_uint_eq(packed(c), 0);
            trace_release(w);
            trace_region_release(r);
            trace_context_release(c);
        }
}
END_TEST

// A program that widens weights itself, some through views, gets results in f32 and no copy of the weights.
START_TEST(casts) {
    static const enum trace_dtype halves[] = {TRACE_F16, TRACE_BF16};
    for (int tier = 0; tier < TIERS; tier++)
        for (int form = 0; form < 4; form++) {
            enum trace_dtype d = halves[form % 2];
            trace_context *c = open_tier(tier);
            trace_region *r = region(c, "casts");
            T *x = tensor(c, TRACE_F32, 1, TRACE_DIMS(2, K)), *w = tensor(c, d, 2, TRACE_DIMS(N, K)), *in[] = {x, w},
              *y = NULL;
            uint64_t before = launches(c);
            if (trace_begin(r, in, 2)) {
                T *f = trace_to(w, TRACE_F32);
                y = form < 2 ? trace_linear(x, f, TRACE_NONE) : trace_matmul(x, trace_transpose(f, 0, 1));
            }
            ck_assert(trace_end(r, &y, 1) == TRACE_OK);
            check(c, y, TRACE_F32, 2, 1, 2, 0, "cast");
            if (tj_test_compiler() && tier == 0)
                ck_assert_uint_eq(launches(c) - before, 1);
            trace_release(y), trace_release(x), trace_release(w);
            trace_region_release(r);
            trace_context_release(c);
        }
}
END_TEST

// Widened before it is written, multiplied after: by what it was.
START_TEST(cast_before_write) {
    for (int tier = 0; tier < TIERS; tier++)
        for (int form = 0; form < 2; form++) {
            trace_context *c = open_tier(tier);
            trace_region *r = region(c, "written");
            T *x = tensor(c, TRACE_F32, 1, TRACE_DIMS(2, K)), *w = tensor(c, TRACE_BF16, 2, TRACE_DIMS(N, K)),
              *other = tensor(c, TRACE_BF16, 4, TRACE_DIMS(N, K)), *in[] = {x, w, other}, *y[2] = {NULL};
            if (trace_begin(r, in, 3)) {
                T *f = trace_to(w, TRACE_F32);
                T *v = form ? trace_transpose(f, 0, 1) : f;
                trace_copy_(w, other);
                y[0] = form ? trace_matmul(x, v) : trace_linear(x, v, TRACE_NONE);
                y[1] = trace_linear(x, trace_to(w, TRACE_F32), TRACE_NONE);
            }
            ck_assert_msg(trace_end(r, y, 2) == TRACE_OK, "%s", trace_last_error(c));
            check(c, y[0], TRACE_F32, 2, 1, 2, 0, "before the write");
            check(c, y[1], TRACE_F32, 2, 1, 4, 0, "after the write");
            trace_release(y[0]), trace_release(y[1]), trace_release(x), trace_release(w), trace_release(other);
            trace_region_release(r);
            trace_context_release(c);
        }
}
END_TEST

TJ_TEST_MAIN("half", packed_once, volatile_weights, casts, cast_before_write)
