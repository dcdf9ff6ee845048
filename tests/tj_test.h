// tests/tj_test.h: what every test program uses on top of libcheck.
//
//     #include "tj_test.h"
//     START_TEST(adds) { ck_assert_int_eq(1 + 1, 2); } END_TEST
//     TJ_TEST_MAIN("sums", adds)
//
// The program takes names of tests as arguments, to run only those. CK_FORK=no keeps them in one process (debugger).
#ifndef TJ_TEST_H
#define TJ_TEST_H
#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/base.h"

#define TJ_TEST_MAIN(suite, ...)                                                                                       \
    int main(int argc, char **argv) {                                                                                  \
        const TTest *const tests[] = {__VA_ARGS__};                                                                    \
        return tj_test_main(suite, tests, TJ_COUNT(tests), argc, argv);                                                \
    }

// The same for tests that run several times, with _i from 0 on; they may take longer.
#define TJ_TEST_MAIN_TURNS(suite, ...)                                                                                 \
    int main(int argc, char **argv) {                                                                                  \
        const struct tj_test tests[] = {__VA_ARGS__};                                                                  \
        Suite *s = suite_create(suite);                                                                                \
        bool added = false;                                                                                            \
        for (size_t i = 0; i < TJ_COUNT(tests); i++) {                                                                 \
            added |= tj_test_add(s, tests[i].test, tests[i].turns, 300, argc, argv);                                   \
        }                                                                                                              \
        return tj_test_run(s, suite, added);                                                                           \
    }
struct tj_test {
    const TTest *test;
    int turns;
};

static inline bool tj_test_add(Suite *s, const TTest *test, int turns, int seconds, int argc, char **argv) {
    bool wanted = argc < 2;
    for (int a = 1; a < argc; a++) {
        wanted |= !strcmp(argv[a], test->name);
    }
    if (wanted) {
        TCase *c = tcase_create(test->name);
        tcase_set_timeout(c, seconds);
        tcase_add_loop_test(c, test, 0, turns);
        suite_add_tcase(s, c);
    }
    return wanted;
}

static inline int tj_test_run(Suite *s, const char *suite, bool added) {
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    if (!added) {
        fprintf(stderr, "%s: no such test\n", suite);
    }
    return failed || !added;
}

static inline int tj_test_main(const char *suite, const TTest *const *tests, size_t n, int argc, char **argv) {
    Suite *s = suite_create(suite);
    bool added = false;
    for (size_t i = 0; i < n; i++) {
        added |= tj_test_add(s, tests[i], 1, 120, argc, argv);
    }
    return tj_test_run(s, suite, added);
}

// Whether the library has a compiler: known once something was compiled.
static inline void tj_test_quiet(void *user, const trace_event *e) { (void)user, (void)e; }
static inline bool tj_test_compiler(void) {
    static int known;
    if (!known) {
        trace_context *c;
        trace_stats s = {.size = sizeof s};
        trace_context_options o = {.size = sizeof o, .on_event = tj_test_quiet};
        ck_assert_int_eq(trace_context_create(&o, &c), TRACE_OK);
        const int64_t two = 2;
        trace_tensor *x = trace_from(c, TRACE_F32, (const float[]){1, 2}, &two, 1), *y = (trace_neg)(x);
        ck_assert_ptr_nonnull(y);
        trace_context_stats(c, &s);
        known = s.interpreted_ops ? 1 : 2;
        trace_release(y);
        trace_release(x);
        trace_context_release(c);
    }
    return known == 2;
}

// Status `expr` returns, with the error text when it isn't the expected one.
#define TJ_ASSERT_STATUS(expr, want)                                                                                   \
    do {                                                                                                               \
        tj_status tj_got_ = (expr);                                                                                    \
        ck_assert_msg(tj_got_ == (want), "%s gave %s, not %s: %s", #expr, tj_status_name(tj_got_),                     \
                      tj_status_name(want), tj_last_error());                                                          \
    } while (0)
#define TJ_ASSERT_OK(expr) TJ_ASSERT_STATUS(expr, TRACE_OK)

// Equal bit for bit, so that NaN payloads and the sign of zero count.
#define TJ_ASSERT_BITS(got, want, bytes) tj_test_bits(__FILE__, __LINE__, (got), (want), (bytes))
static inline void tj_test_bits(const char *file, int line, const void *got, const void *want, size_t bytes) {
    const unsigned char *g = got, *w = want;
    for (size_t i = 0; i < bytes; i++) {
        ck_assert_msg(g[i] == w[i], "%s:%d: byte %zu of %zu is %02x, not %02x", file, line, i, bytes, g[i], w[i]);
    }
}

// |got - want| <= atol + rtol |want| in each element; NaN matches NaN, an infinity itself.
#define TJ_ASSERT_NEAR(got, want, n, rtol, atol) tj_test_near(__FILE__, __LINE__, (got), (want), (n), (rtol), (atol))
static inline void tj_test_near(const char *file, int line, const float *got, const float *want, size_t n, double rtol,
                                double atol) {
    for (size_t i = 0; i < n; i++) {
        double g = (double)got[i], w = (double)want[i];
        bool ok = isnan(w) ? isnan(g) : isinf(w) ? g == w : fabs(g - w) <= atol + rtol * fabs(w);
        ck_assert_msg(ok, "%s:%d: element %zu of %zu is %.9g, not %.9g", file, line, i, n, g, w);
    }
}

// Makes the allocation numbered `at` (from 0) and all later ones fail; SIZE_MAX: none, only count. To try each
// allocation of f: for (size_t k = 0;; k++) { tj_test_fail_at(k); f(); if (!tj_test_failed()) break; }
static size_t tj_test_allocs, tj_test_limit;
static inline bool tj_test_hook(size_t bytes) {
    (void)bytes;
    return __atomic_fetch_add(&tj_test_allocs, 1, __ATOMIC_RELAXED) < tj_test_limit;
}
static inline void tj_test_fail_at(size_t at) {
    tj_test_allocs = 0;
    tj_test_limit = at;
    tj_alloc_hook = tj_test_hook;
}
// Ends it; true when an allocation was refused.
static inline bool tj_test_failed(void) {
    tj_alloc_hook = NULL;
    return tj_test_allocs > tj_test_limit;
}

// A generator with the same values everywhere, so that a failing case can be run again from its seed.
static inline uint64_t tj_test_random(uint64_t *state) { // splitmix64
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static inline float tj_test_uniform(uint64_t *state) { // [-1, 1)
    return (float)(int32_t)(tj_test_random(state) >> 40) / 8388608.0f - 1.0f;
}

#endif
