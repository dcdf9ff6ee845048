// tests/test_contexts.c: programs of several contexts on one thread: regions and single ops of one inside a body of
// another, errors and breaks inside them, three deep, and eager scopes whose handles are retained and released.
#include <string.h>

#include "../include/tracejit.h"
#include "../trace/context.h"
#include "../trace/region.h"
#include "tj_test.h"

enum { N = 4, CONTEXTS = 3 };
static trace_context *ctx[CONTEXTS];
static trace_region *region[CONTEXTS];
static trace_tensor *x[CONTEXTS]; // 1, 2, 3, 4 and so on from 10 times the number

static void quiet(void *user, const trace_event *e) { (void)user, (void)e; }
static void open_all(const trace_region_options *o) {
    for (int c = 0; c < CONTEXTS; c++) {
        char name[] = "A";
        name[0] = (char)('A' + c);
        TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = quiet, .threads = 1), &ctx[c]));
        TJ_ASSERT_OK(trace_region_create(ctx[c], name, c ? NULL : o, &region[c]));
        x[c] = trace_from(ctx[c], TRACE_F32, (float[N]){1 + 10.0f * c, 2 + 10.0f * c, 3 + 10.0f * c, 4 + 10.0f * c},
                          TRACE_DIMS(N));
        ck_assert(x[c]);
    }
}
static void close_all(void) {
    ck_assert_ptr_null(tj_current);
    for (int c = 0; c < CONTEXTS; c++) {
        ck_assert_int_eq(atomic_load(&x[c]->refs), 1);
        trace_release(x[c]);
        ck_assert_ptr_null(ctx[c]->tensors); // nothing is left
        trace_region_release(region[c]);
        trace_context_release(ctx[c]);
    }
}
static float at(trace_tensor *t, int i) {
    float v[N] = {0};
    TJ_ASSERT_OK(trace_read(t, v, sizeof v));
    return v[i];
}
static float take(trace_tensor *t, int i) {
    float v = at(t, i);
    trace_release(t);
    return v;
}
// What a library does with a context of its own: 2 x + 1 by a region, then -3 (2 x + 1) by ops alone.
static float library(int c, int i) {
    trace_tensor *y = NULL;
    if (trace_begin(region[c], TRACE_ARGS(x[c])))
        y = trace_add_f(trace_mul_f(x[c], 2), 1);
    TJ_ASSERT_OK(trace_end(region[c], &y, 1));
    trace_tensor *z = trace_mul_f(y, -3), *whole = trace_to(z, TRACE_F32), *sum = trace_sum(z, NULL, 0, false);
    trace_tensor *half[2] = {NULL, NULL};
    double v = 0;
    TJ_ASSERT_OK(trace_item_f64(sum, &v));
    double want = 0;
    for (int k = 0; k < N; k++)
        want -= 3 * (2 * (1 + k + 10 * c) + 1);
    ck_assert(v == want);
    TJ_ASSERT_OK(trace_split(z, 2, 0, half, 2));
    ck_assert_int_eq(trace_size(half[1], 0), 2);
    trace_release(half[0]), trace_release(half[1]);
    trace_release(y), trace_release(sum), trace_release(whole);
    return take(z, i);
}

// _i: modes of the outer region; + 3: with a graph break.
START_TEST(region_and_ops_of_another) {
    open_all(TRACE_REGION_OPTIONS(.mode = (enum trace_mode)(_i % 3)));
    for (int run = 0; run < 5; run++) {
        trace_tensor *y = NULL;
        if (trace_begin(region[0], TRACE_ARGS(x[0]))) {
            trace_tensor *h = trace_exp(trace_mul_f(x[0], 0));
            ck_assert(library(1, 2) == -81);
            double v = 1;
            if (_i >= 3)
                TJ_ASSERT_OK(trace_item_f64(trace_sum(h, NULL, 0, false), &v));
            ck_assert(v == (_i >= 3 ? 4 : 1));
            ck_assert(library(2, 0) == -129);
            ck_assert(!trace_failed(ctx[0]) && !trace_failed(ctx[1]) && !trace_failed(NULL));
            y = trace_add(h, x[0]);
        } else {
            ck_abort_msg("replayed: the host would miss what the other context does");
        }
        TJ_ASSERT_OK(trace_end(region[0], &y, 1));
        ck_assert(take(y, 3) == 5);
    }
    close_all();
}
END_TEST

// Values of the outer run are recorded there while an inner run of another context is open.
START_TEST(values_of_the_run_around) {
    open_all(NULL);
    for (int run = 0; run < 3; run++) {
        trace_tensor *y = NULL, *z = NULL, *w = NULL;
        ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
        trace_tensor *h = trace_mul_f(x[0], 10);
        ck_assert(trace_begin(region[1], TRACE_ARGS(x[1])));
        z = trace_neg(x[1]);
        y = trace_add(h, x[0]); // 11 x, in the run around
        ck_assert_int_eq(trace_rank(h), 1);
        ck_assert_int_eq(trace_size(y, 0), N);
        ck_assert_ptr_eq(trace_retain(h), h);
        trace_release(h);
        ck_assert(trace_begin(region[2], TRACE_ARGS(x[2])));
        w = trace_add_f(x[2], 0.5);
        z = trace_mul(z, x[1]);
        ck_assert(trace_begin(region[0], TRACE_ARGS(y))); // inlined, two runs further out
        y = trace_sub_f(y, 1);
        w = trace_mul_f(w, 2);
        TJ_ASSERT_OK(trace_end(region[0], &y, 1));
        TJ_ASSERT_OK(trace_end(region[2], &w, 1));
        double v = 0;
        TJ_ASSERT_OK(trace_item_f64(trace_select(y, 0, 1), &v)); // a break of the run around
        ck_assert(v == 21);
        TJ_ASSERT_OK(trace_write(x[0], (float[N]){5, 6, 7, 8}, sizeof(float[N])));
        TJ_ASSERT_OK(trace_end(region[1], &z, 1));
        y = trace_add(y, x[0]);
        TJ_ASSERT_OK(trace_end(region[0], &y, 1));
        ck_assert(take(y, 0) == 10 + 5 && take(z, 0) == -121 && take(w, 3) == 49);
        TJ_ASSERT_OK(trace_write(x[0], (float[N]){1, 2, 3, 4}, sizeof(float[N])));
    }
    close_all();
}
END_TEST

// Errors inside are those of the inner context's calls alone.
START_TEST(errors_stay_inside) {
    open_all(NULL);
    for (int run = 0; run < 2; run++) {
        trace_tensor *y = NULL, *z = NULL;
        ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
        y = trace_mul_f(x[0], 3);
        ck_assert_ptr_null(trace_reshape(x[1], TRACE_DIMS(3))); // an op alone
        ck_assert(strstr(trace_last_error(ctx[1]), "reshape"));
        ck_assert_ptr_null(trace_neg(trace_add(trace_reshape(x[1], TRACE_DIMS(3)), x[1])));
        ck_assert_ptr_null(trace_neg(trace_from(ctx[1], TRACE_F32, NULL, TRACE_DIMS(3))));
        ck_assert_ptr_null(trace_neg(trace_wrap(ctx[1], TRACE_F32, NULL, TRACE_DIMS(3))));
        ck_assert_ptr_null(trace_neg(trace_zeros(ctx[1], TRACE_DIMS(-3), TRACE_F32)));
        if (trace_begin(region[1], TRACE_ARGS(x[1]))) // a region
            z = trace_reshape(x[1], TRACE_DIMS(5));
        TJ_ASSERT_STATUS(trace_end(region[1], &z, 1), TRACE_ERR_SHAPE);
        ck_assert(strstr(trace_last_error(ctx[1]), "region 'B'") && strstr(trace_last_error(ctx[1]), "reshape"));
        ck_assert_ptr_null(z);
        ck_assert_ptr_null(trace_relu(z));
        TJ_ASSERT_STATUS(trace_repeat(-1, (trace_tensor *[]){x[1]}, 1), TRACE_ERR_ARGUMENT);
        z = NULL;
        TJ_ASSERT_STATUS(trace_repeat_end(&z, 1), TRACE_ERR_ARGUMENT);
        ck_assert(!trace_begin_at(region[1], NULL, 1, "here", 1)); // refused
        TJ_ASSERT_STATUS(trace_end(region[1], NULL, 0), TRACE_ERR_ARGUMENT);
        ck_assert(trace_begin(region[1], NULL, 0)); // abandoned
        z = trace_neg(x[1]);
        trace_abandon(region[1]);
        trace_abandon(region[1]);
        TJ_ASSERT_STATUS(trace_end(region[1], &z, 1), TRACE_ERR_STATE);
        ck_assert(!trace_failed(NULL) && !trace_failed(ctx[0]));
        y = trace_sub_f(y, 1);
        TJ_ASSERT_OK(trace_end(region[0], &y, 1));
        ck_assert(take(y, 1) == 5);
        // a NULL of theirs in an op of ours is an error of ours
        ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
        ck_assert_ptr_null(trace_neg(trace_reshape(x[1], TRACE_DIMS(9))));
        ck_assert(!trace_failed(ctx[0]));
        ck_assert_ptr_null(trace_add(x[0], trace_neg(trace_reshape(x[1], TRACE_DIMS(9)))));
        ck_assert(trace_failed(ctx[0]));
        TJ_ASSERT_STATUS(trace_end(region[0], NULL, 0), TRACE_ERR_SHAPE);
        ck_assert(strstr(trace_last_error(NULL), "reshape") && strstr(trace_last_error(NULL), "[9]"));
        // both in one op: an error of the run, whatever comes first
        for (int first = 0; first < 2; first++) {
            ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
            ck_assert_ptr_null(trace_add(x[first], x[1 - first]));
            TJ_ASSERT_STATUS(trace_end(region[0], NULL, 0), TRACE_ERR_ARGUMENT);
            ck_assert(strstr(trace_last_error(NULL), "another context"));
        }
        // the outer one ends, or goes, while the inner one is open
        ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
        ck_assert(trace_begin(region[1], TRACE_ARGS(x[1])));
        ck_assert(trace_begin(region[1], TRACE_ARGS(x[1])));
        TJ_ASSERT_STATUS(trace_end(region[0], NULL, 0), TRACE_ERR_STATE);
        ck_assert(strstr(trace_last_error(NULL), "region 'A' ends while region 'B'"));
        ck_assert_ptr_null(tj_current);
        ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
        ck_assert(trace_begin(region[1], TRACE_ARGS(x[1])));
        ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
        TJ_ASSERT_STATUS(trace_context_shutdown(ctx[0], 0), TRACE_ERR_STATE); // inside a run of it, two out
        trace_abandon(region[1]);                                             // and the scope inside it
        ck_assert(tj_current && tj_current->ctx == ctx[0] && tj_current->nscopes == 1);
        trace_abandon(region[0]);
        ck_assert_ptr_null(tj_current);
        ck_assert(library(1, 0) == -69);
    }
    close_all();
}
END_TEST

// A loop of one context inside a body, and inside a loop, of another.
START_TEST(loops_of_another) {
    open_all(NULL);
    for (int run = 0; run < 2; run++) {
        trace_tensor *h = x[0], *g = x[1];
        ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
        TJ_ASSERT_OK(trace_repeat(3, &h, 1));
        h = trace_mul_f(h, 2);
        TJ_ASSERT_OK(trace_repeat(2, &g, 1));
        g = trace_add_f(g, 5);
        TJ_ASSERT_OK(trace_repeat_end(&g, 1));
        ck_assert(take(g, 0) == 21);
        TJ_ASSERT_OK(trace_repeat_end(&h, 1));
        TJ_ASSERT_OK(trace_end(region[0], &h, 1));
        ck_assert(take(h, 2) == 24);
        g = x[1];
        ck_assert(trace_begin(region[0], TRACE_ARGS(x[0]))); // a loop that never ends goes with the run around it
        TJ_ASSERT_OK(trace_repeat(2, &g, 1));
        trace_abandon(region[0]);
        ck_assert_ptr_null(tj_current);
    }
    close_all();
}
END_TEST

// A bound plan of one context made and run inside a body of another; one made of a body in which the other works.
START_TEST(bound_plans_of_another) {
    open_all(NULL);
    float memory[2][N] = {{0}};
    trace_tensor *out[2] = {trace_wrap(ctx[0], TRACE_F32, memory[0], TRACE_DIMS(N)),
                            trace_wrap(ctx[1], TRACE_F32, memory[1], TRACE_DIMS(N))},
                 *y = NULL;
    trace_bound *b[2] = {NULL, NULL};
    ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
    y = trace_neg(x[0]);
    ck_assert(trace_begin(region[1], TRACE_ARGS(x[1])));
    trace_copy_(out[1], trace_mul_f(x[1], 2));
    enum trace_status st = trace_end_bind(region[1], NULL, &b[1]);
    if (st != TRACE_ERR_UNAVAILABLE) {
        TJ_ASSERT_OK(st);
        TJ_ASSERT_OK(trace_bound_run(b[1]));
        ck_assert(memory[1][0] == 22);
    }
    TJ_ASSERT_OK(trace_end(region[0], &y, 1));
    ck_assert(take(y, 3) == -4);
    ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
    trace_copy_(out[0], trace_mul_f(x[0], 3));
    ck_assert(library(1, 2) == -81);
    if (trace_end_bind(region[0], NULL, &b[0]) == TRACE_OK) {
        TJ_ASSERT_OK(trace_bound_run(b[0]));
        ck_assert(memory[0][1] == 6);
    }
    trace_bound_release(b[0]), trace_bound_release(b[1]);
    trace_release(out[0]), trace_release(out[1]);
    close_all();
}
END_TEST

// ---- handles of eager scopes ----------------------------------------------------------------------------------------

static uint64_t live(int c) {
    trace_stats s = {.size = sizeof s};
    trace_context_stats(ctx[c], &s);
    return s.bytes_live;
}

// _i: by mode, by TRACEJIT_DISABLE, by mode around another context's eager scope
START_TEST(eager_handles) {
    if (_i == 1)
        ck_assert_int_eq(setenv("TRACEJIT_DISABLE", "1", 1), 0);
    open_all(TRACE_REGION_OPTIONS(.mode = _i == 1 ? TRACE_MODE_RECORD : TRACE_MODE_EAGER));
    (void)unsetenv("TRACEJIT_DISABLE");
    trace_region *inner, *theirs;
    TJ_ASSERT_OK(trace_region_create(ctx[0], "inner", NULL, &inner));
    TJ_ASSERT_OK(trace_region_create(ctx[1], "theirs", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_EAGER), &theirs));
    uint64_t before = live(0), before1 = live(1);
    for (int run = 0; run < 3; run++) {
        trace_tensor *o[5], *l[2];
        if (_i == 2)
            ck_assert(trace_begin(theirs, TRACE_ARGS(x[1])));
        ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
        trace_tensor *h = trace_relu(x[0]), *g = trace_neg(h);
        for (int k = 0; k < 3; k++) // a helper keeps it, and lets go of it
            ck_assert_ptr_eq(trace_retain(h), h);
        for (int k = 0; k < 3; k++)
            trace_release(h);
        ck_assert(at(h, 1) == 2);
        trace_retain(g), trace_release(g), trace_release(g); // the last one ends it before the scope does
        ck_assert_uint_eq(ctx[0]->tensors->refs, 1);
        trace_tensor *same = trace_to(x[0], TRACE_F32), *again = trace_contiguous(h);
        trace_release(same); // of an op that makes nothing
        ck_assert(at(x[0], 0) == 1 && at(again, 0) == 1);
        o[0] = o[1] = h, o[2] = x[0], o[3] = trace_add_f(h, 1), o[4] = again;
        // outputs of a scope inside: its own, of the scope around, inputs, twice the same
        ck_assert(trace_begin(inner, TRACE_ARGS(h)));
        trace_tensor *v[5] = {h, x[0], trace_neg(h), NULL, NULL};
        v[3] = v[2], v[4] = trace_exp(h);
        TJ_ASSERT_OK(trace_end(inner, v, 5));
        for (int k = 0; k < 4; k++) // as a caller of that region would
            trace_release(v[k]);
        ck_assert(at(h, 3) == 4 && at(x[0], 3) == 4);
        if (_i == 2) { // the other context's scope holds its own
            trace_tensor *t = trace_neg(x[1]);
            trace_retain(t), trace_release(t);
            ck_assert(at(t, 0) == -11);
        }
        l[0] = trace_item_later(trace_select(h, 0, 2)), l[1] = trace_item_later(h);
        trace_release(l[1]);
        TJ_ASSERT_OK(trace_end(region[0], o, 5));
        if (_i == 2)
            TJ_ASSERT_OK(trace_end(theirs, NULL, 0));
        double third = 0;
        TJ_ASSERT_OK(trace_item_f64(l[0], &third));
        ck_assert(third == 3);
        trace_release(l[0]);
        ck_assert(take(o[0], 0) == 1 && take(o[1], 1) == 2 && take(o[2], 2) == 3 && take(o[3], 3) == 5);
        trace_release(o[4]);
        ck_assert_int_eq(atomic_load(&x[0]->refs), 1);
        ck_assert_uint_eq(live(0), before);
        ck_assert_uint_eq(live(1), before1);
    }
    // kept beyond the scope: retained there, released after it
    ck_assert(trace_begin(region[0], TRACE_ARGS(x[0])));
    trace_tensor *h = trace_retain(trace_relu(x[0]));
    TJ_ASSERT_OK(trace_end(region[0], NULL, 0));
    ck_assert(take(h, 1) == 2);
    ck_assert_uint_eq(live(0), before);
    trace_region_release(inner), trace_region_release(theirs);
    close_all();
}
END_TEST

TJ_TEST_MAIN_TURNS("contexts", {region_and_ops_of_another, 6}, {values_of_the_run_around, 1}, {errors_stay_inside, 1},
                   {loops_of_another, 1}, {bound_plans_of_another, 1}, {eager_handles, 3})
