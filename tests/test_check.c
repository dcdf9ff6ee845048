// tests/test_check.c: checked runs: what is right passes, and a wrong instruction is named by op and line.
//
// Faults are made where kernels are compiled: an instruction of one op becomes another one, everywhere, or only in
// kernels with other ops beside it.
#include <pthread.h>

#include "../jit/kcache.h"
#include "../trace/ir.h"
#include "tj_test.h"

typedef trace_tensor T;

// ---- faults ---------------------------------------------------------------------------------------------------------

static int fault_from = -1, fault_to; // TJ_OP_* or TJ_KOP_*
static int64_t fault_imm = -1;        // of REDUCE: to enum tj_reduce
static unsigned fault_beside;         // only in kernels with that many pointwise instructions and one result; 0: all
static bool fault_tiles;              // products start from what C held
static struct tj_kernel *mutants[256];
static size_t nmutants;
static pthread_mutex_t mutants_lock = PTHREAD_MUTEX_INITIALIZER;

static void mutate(struct tj_unit *units, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (units[i].kind != TJ_UNIT_LOOP) {
            if (fault_tiles)
                units[i].gemm.a_packed = !units[i].gemm.a_packed;
            continue;
        }
        unsigned pointwise = 0, stores = 0;
        for (uint16_t k = 0; k < units[i].loop->nins; k++) {
            pointwise += units[i].loop->ins[k].op < TJ_OP_COUNT;
            stores += units[i].loop->ins[k].op == TJ_KOP_STORE;
        }
        if (fault_from < 0 || pointwise < fault_beside || (fault_beside && stores > 1))
            continue;
        struct tj_kernel *copy = tj_kernel_copy(units[i].loop);
        ck_assert_ptr_nonnull(copy);
        for (uint16_t k = 0; k < copy->nins; k++) {
            struct tj_kins *ins = &copy->ins[k];
            if (ins->op != fault_from)
                continue;
            if (fault_imm >= 0)
                ins->imm = fault_imm;
            else
                ins->op = (uint16_t)fault_to;
            if (fault_from == TJ_KOP_CHECK) { // no check: a constant that nobody uses
                *ins = (struct tj_kins){.op = TJ_KOP_CONST, .dtype = TRACE_I64, .level = ins->level, .pass = ins->pass};
                for (size_t j = 0; j < TJ_COUNT(ins->in); j++)
                    ins->in[j] = TJ_KNONE;
            }
        }
        pthread_mutex_lock(&mutants_lock);
        ck_assert(nmutants < TJ_COUNT(mutants));
        mutants[nmutants++] = copy;
        pthread_mutex_unlock(&mutants_lock);
        units[i].loop = copy;
    }
}

static void fault(int from, int to) {
    fault_from = from;
    fault_to = to;
    fault_imm = -1;
    fault_beside = 0;
    tj_unit_hook = mutate;
}

static void fault_over(void) {
    tj_unit_hook = NULL;
    fault_from = -1;
    fault_imm = -1;
    fault_tiles = false;
    for (size_t i = 0; i < nmutants; i++)
        tj_free(mutants[i]);
    nmutants = 0;
}

// ---- a context whose runs are checked -------------------------------------------------------------------------------

static trace_context *ctx;
static trace_region *region;
static int events;
static char event_where[300], event_what[1100];

static void on_event(void *user, const trace_event *e) {
    (void)user;
    if (e->kind != TRACE_EVENT_CHECK)
        return;
    __atomic_fetch_add(&events, 1, __ATOMIC_RELAXED);
    snprintf(event_where, sizeof event_where, "%s", e->where);
    snprintf(event_what, sizeof event_what, "%s", e->what);
}

static void start(trace_region_options opt) {
    opt.size = sizeof opt;
    opt.check = true;
    events = 0;
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = on_event, .threads = 2), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "model", &opt, &region));
}

static void stop(void) {
    trace_region_release(region);
    trace_context_release(ctx);
    fault_over();
}

static trace_stats stats(void) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(region, &s);
    return s;
}

static T *random_tensor(uint64_t seed, const int64_t *dims, size_t rank) {
    float data[24 * 24];
    size_t n = 1;
    for (size_t i = 0; i < rank; i++)
        n *= (size_t)dims[i];
    ck_assert(n <= TJ_COUNT(data));
    for (size_t i = 0; i < n; i++)
        data[i] = tj_test_uniform(&seed);
    T *t = trace_from(ctx, TRACE_F32, data, dims, rank);
    ck_assert_ptr_nonnull(t);
    return t;
}

// Runs body over x [8, 48] and y [8, 48]; st: how it ends.
typedef T *body_fn(T *x, T *y, int *line);
static enum trace_status run(body_fn *body, int *line) {
    T *x = random_tensor(1, TRACE_DIMS(8, 48)), *y = random_tensor(2, TRACE_DIMS(8, 48)), *z = NULL;
    if (trace_begin(region, TRACE_ARGS(x, y)))
        z = body(x, y, line);
    enum trace_status st = trace_end(region, &z, 1);
    trace_release(z);
    trace_release(x);
    trace_release(y);
    return st;
}

static void expect_blamed(const char *op, int line, const char *more) {
    char want[200];
    snprintf(want, sizeof want, "%s (%s:%d) is wrong", op, __FILE__, line);
    ck_assert_msg(strstr(trace_last_error(ctx), want) != NULL, "not '%s': %s", want, trace_last_error(ctx));
    ck_assert_msg(strstr(trace_last_error(ctx), more) != NULL, "not '%s': %s", more, trace_last_error(ctx));
    snprintf(want, sizeof want, "%s:%d", __FILE__, line);
    ck_assert_str_eq(event_where, want);
    ck_assert_int_eq(events, 1);
    trace_stats s = stats();
    ck_assert_uint_eq(s.check_failures, 1);
    ck_assert_uint_ge(s.checks, 1);
}

// ---- what is right --------------------------------------------------------------------------------------------------

static T *mixed(T *x, T *y, int *line) {
    (void)line;
    T *w = trace_full_f(ctx, TRACE_DIMS(48, 48), 0.125, TRACE_F32);
    T *a = trace_gelu(trace_linear(x, w, TRACE_NONE), TRACE_GELU_TANH);
    T *b = trace_softmax(trace_matmul(a, trace_transpose(y, 0, 1)), -1);
    T *q = trace_reshape(x, TRACE_DIMS(1, 2, 8, 24)), *k = trace_reshape(y, TRACE_DIMS(1, 2, 8, 24));
    T *s = trace_scaled_dot_product_attention(q, k, k, TRACE_NONE, true, 0, false);
    T *m = trace_to(trace_argmax(trace_reshape(s, TRACE_DIMS(8, 48)), -1, true), TRACE_F32);
    return trace_add(trace_sum(b, TRACE_DIMS(-1), true),
                     trace_mul(m, trace_gt(trace_mean(s, TRACE_SCALAR, false), trace_neg(m))));
}

START_TEST(right_runs_pass) {
    static const char *const levels[] = {"", "portable"};
    for (size_t i = 0; i < TJ_COUNT(levels); i++) {
        ck_assert_int_eq(setenv("TRACEJIT_CPU", levels[i], 1), 0);
        start((trace_region_options){0});
        ck_assert_int_eq(unsetenv("TRACEJIT_CPU"), 0);
        for (int k = 0; k < 3; k++)
            TJ_ASSERT_OK(run(mixed, NULL));
        trace_stats s = stats();
        ck_assert_uint_eq(s.checks, tj_test_compiler() ? 3 : 0);
        ck_assert_uint_eq(s.check_failures, 0);
        ck_assert_int_eq(events, 0);
        static char report[1 << 17];
        TJ_ASSERT_OK(trace_context_report(ctx, TRACE_FORMAT_TEXT, report, sizeof report, NULL));
        ck_assert_int_eq(strstr(report, "checked against the interpreter 3, different 0") != NULL, tj_test_compiler());
        stop();
    }
}
END_TEST

START_TEST(writes_are_checked_on_copies) {
    start((trace_region_options){0});
    float cache[6 * 4] = {0}, want[6 * 4] = {0};
    T *c = trace_wrap(ctx, TRACE_F32, cache, TRACE_DIMS(6, 4));
    for (int i = 0; i < 6; i++) {
        T *x = trace_from(ctx, TRACE_F32, (const float[]){1, 2, 3, 4}, TRACE_DIMS(1, 4)), *s = NULL;
        if (trace_begin(region, TRACE_ARGS(c, x))) {
            T *before = trace_sum(c, TRACE_SCALAR, false);
            ck_assert_ptr_nonnull(trace_copy_(trace_narrow(c, 0, i, 1), trace_add_i(x, i)));
            ck_assert_ptr_nonnull(trace_add_f_(trace_slice(c, 1, 0, 4, 2), 0.5));
            s = trace_add(before, trace_sum(c, TRACE_SCALAR, false));
        }
        TJ_ASSERT_OK(trace_end(region, &s, 1));
        for (int k = 0; k < 4; k++)
            want[i * 4 + k] = (float)(k + 1 + i);
        for (int k = 0; k < 24; k += 2)
            want[k] += 0.5f;
        trace_release(s);
        trace_release(x);
        TJ_ASSERT_BITS(cache, want, sizeof want);
    }
    ck_assert_uint_eq(stats().checks, tj_test_compiler() ? 6 : 0);
    trace_release(c);
    stop();
}
END_TEST

START_TEST(every_way_to_run_is_checked) {
    static const trace_region_options ways[] = {
        {.mode = TRACE_MODE_REPLAY}, {.background = true, .background_policy = TRACE_POLICY_WAIT}, {.threads = 1}};
    for (size_t i = 0; i < TJ_COUNT(ways); i++) {
        start(ways[i]);
        T *x = random_tensor(3, TRACE_DIMS(64));
        for (int k = 0; k < 5; k++) {
            T *y = NULL;
            if (trace_begin(region, TRACE_ARGS(x)))
                y = trace_exp(trace_mul_f(x, 0.5));
            TJ_ASSERT_OK(trace_end(region, &y, 1));
            trace_release(y);
        }
        trace_stats s = stats();
        ck_assert_uint_eq(s.checks, tj_test_compiler() ? 5 : 0);
        ck_assert_uint_eq(s.replays > 0, ways[i].mode == TRACE_MODE_REPLAY);
        trace_release(x);
        stop();
    }
    // single ops: by the variable alone
    ck_assert_int_eq(setenv("TRACEJIT_CHECK", "1", 1), 0);
    start((trace_region_options){0});
    ck_assert_int_eq(unsetenv("TRACEJIT_CHECK"), 0);
    T *x = random_tensor(4, TRACE_DIMS(64)), *y = trace_exp(x);
    ck_assert_ptr_nonnull(y);
    trace_stats s = {.size = sizeof s};
    trace_context_stats(ctx, &s);
    ck_assert_uint_eq(s.checks, tj_test_compiler() ? 1 : 0);
    trace_release(y);
    trace_release(x);
    stop();
}
END_TEST

// ---- what is wrong --------------------------------------------------------------------------------------------------

static T *chain(T *x, T *y, int *line) {
    T *a = trace_mul(x, y);
    *line = __LINE__ + 1;
    T *b = trace_exp(a);
    T *c = trace_sub(b, y);
    T *d = trace_sum(c, TRACE_DIMS(-1), true);
    return trace_div(c, trace_add_f(trace_square(d), 1));
}

START_TEST(a_wrong_op_is_named) {
    start((trace_region_options){0});
    if (tj_test_compiler()) {
        int line = 0;
        fault(TJ_OP_EXP, TJ_OP_ABS);
        ck_assert_int_eq(run(chain, &line), TRACE_ERR_COMPILE);
        expect_blamed("exp", line, "element 0 of its result f32 [8, 48] is ");
        ck_assert_ptr_null(strstr(trace_last_error(ctx), "in the kernel"));
        // and again, with the plan that is there
        ck_assert_int_eq(run(chain, &line), TRACE_ERR_COMPILE);
        ck_assert_uint_eq(stats().check_failures, 2);
    }
    stop();
}
END_TEST

START_TEST(each_kind_of_op_is_named) {
    static const struct {
        int from, to;
        int64_t imm;
        const char *op;
        int offset; // of its line from the one that `chain` notes
    } faults[] = {
        {TJ_OP_MUL, TJ_OP_ADD, -1, "mul", -2},      {TJ_OP_SUB, TJ_OP_ADD, -1, "sub", 1},
        {TJ_KOP_REDUCE, 0, TJ_RED_MAX, "sum", 2},   {TJ_OP_DIV, TJ_OP_MUL, -1, "div", 3},
        {TJ_OP_SQUARE, TJ_OP_NEG, -1, "square", 3},
    };
    for (size_t i = 0; i < TJ_COUNT(faults); i++) {
        start((trace_region_options){0});
        if (tj_test_compiler()) {
            int line = 0;
            fault(faults[i].from, faults[i].to);
            fault_imm = faults[i].imm;
            ck_assert_int_eq(run(chain, &line), TRACE_ERR_COMPILE);
            expect_blamed(faults[i].op, line + faults[i].offset, "the interpreter's is ");
        }
        stop();
    }
}
END_TEST

START_TEST(what_is_wrong_only_when_fused_is_named) {
    start((trace_region_options){0});
    if (tj_test_compiler()) {
        int line = 0;
        fault(TJ_OP_EXP, TJ_OP_ABS);
        fault_beside = 2;
        ck_assert_int_eq(run(chain, &line), TRACE_ERR_COMPILE);
        expect_blamed("exp", line, "is wrong in the kernel it is fused into");
    }
    stop();
}
END_TEST

static T *products(T *x, T *y, int *line) {
    *line = __LINE__ + 1;
    T *a = trace_linear(x, y, TRACE_NONE);
    T *b = trace_relu(a);
    return trace_argmax(b, -1, false);
}

START_TEST(a_wrong_contraction_is_named) {
    start((trace_region_options){0});
    if (tj_test_compiler()) {
        int line = 0;
        fault(TJ_OP_RELU, TJ_OP_NEG);
        ck_assert_int_eq(run(products, &line), TRACE_ERR_COMPILE);
        expect_blamed("relu", line + 1, "seen in argmax");
    }
    stop();
    start((trace_region_options){0});
    if (tj_test_compiler()) {
        int line = 0;
        fault(-1, 0);
        fault_tiles = true;
        ck_assert_int_eq(run(products, &line), TRACE_ERR_COMPILE);
        expect_blamed("linear", line, "seen in argmax");
    }
    stop();
}
END_TEST

START_TEST(written_tensors_get_the_interpreters_content) {
    start((trace_region_options){0});
    if (tj_test_compiler()) {
        float state[4] = {1, 2, 3, 4};
        T *s = trace_wrap(ctx, TRACE_F32, state, TRACE_DIMS(4)), *y = NULL;
        fault(TJ_OP_MUL, TJ_OP_ADD);
        int line = __LINE__ + 2;
        if (trace_begin(region, TRACE_ARGS(s))) {
            ck_assert_ptr_nonnull(trace_mul_f_(s, 3));
            y = trace_relu(s);
        }
        ck_assert_int_eq(trace_end(region, &y, 1), TRACE_ERR_COMPILE);
        ck_assert_ptr_null(y);
        TJ_ASSERT_BITS(state, ((const float[]){3, 6, 9, 12}), sizeof state);
        expect_blamed("mul_", line, "element 0 of its result f32 [4] is 4, the interpreter's is 3");
        trace_release(s);
    }
    stop();
}
END_TEST

START_TEST(a_break_fails_with_its_segment) {
    start((trace_region_options){0});
    if (tj_test_compiler()) {
        T *x = random_tensor(5, TRACE_DIMS(16)), *y = NULL;
        double v = 7;
        fault(TJ_OP_EXP, TJ_OP_ABS);
        int line = 0;
        if (trace_begin(region, TRACE_ARGS(x))) {
            line = __LINE__ + 1;
            T *e = trace_exp(x);
            ck_assert_int_eq(trace_item_f64(trace_amax(e, TRACE_SCALAR, false), &v), TRACE_ERR_COMPILE);
            y = trace_relu(e);
        }
        ck_assert_int_eq(trace_end(region, &y, 1), TRACE_ERR_COMPILE);
        expect_blamed("exp", line, "seen in amax");
        trace_release(x);
    }
    stop();
}
END_TEST

START_TEST(data_errors_have_to_agree) {
    for (int wrong = 0; wrong < 2; wrong++) {
        start((trace_region_options){0});
        T *x = random_tensor(6, TRACE_DIMS(5, 4)), *y = NULL;
        T *index = trace_from(ctx, TRACE_I64, (const int64_t[]){0, 7, 2}, TRACE_DIMS(3));
        if (wrong)
            fault(TJ_KOP_CHECK, 0);
        int line = __LINE__ + 2;
        if (trace_begin(region, TRACE_ARGS(x, index)))
            y = trace_add_i(trace_index_select(x, 0, index), 1);
        enum trace_status st = trace_end(region, &y, 1);
        if (wrong && tj_test_compiler()) {
            char want[200];
            snprintf(want, sizeof want, "index_select (%s:%d): index 7 is out of range for 5; the plan has not",
                     __FILE__, line);
            ck_assert_int_eq(st, TRACE_ERR_COMPILE);
            ck_assert_msg(strstr(trace_last_error(ctx), want) != NULL, "%s", trace_last_error(ctx));
            ck_assert_uint_eq(stats().check_failures, 1);
        } else {
            ck_assert_int_eq(st, TRACE_ERR_DEVICE);
            ck_assert_uint_eq(stats().check_failures, 0);
        }
        trace_release(x);
        trace_release(index);
        stop();
    }
}
END_TEST

START_TEST(bound_plans_are_checked_when_bound) {
    for (int wrong = 0; wrong < 2; wrong++) {
        start((trace_region_options){0});
        if (!tj_test_compiler()) {
            stop();
            continue;
        }
        float in[4] = {1, 2, 3, 4}, out[4] = {9, 9, 9, 9};
        T *x = trace_wrap_const(ctx, TRACE_F32, in, TRACE_DIMS(4)), *y = trace_wrap(ctx, TRACE_F32, out, TRACE_DIMS(4));
        trace_bound *b = NULL;
        if (wrong)
            fault(TJ_OP_SQUARE, TJ_OP_NEG);
        int line = __LINE__ + 2;
        if (trace_begin(region, TRACE_ARGS(x, y)))
            (void)trace_copy_(y, trace_square(x));
        enum trace_status st = trace_end_bind(region, NULL, &b);
        for (int k = 0; k < 4; k++)
            ck_assert(out[k] == 9); // binding runs nothing on the tensors themselves
        if (wrong) {
            ck_assert_int_eq(st, TRACE_ERR_COMPILE);
            ck_assert_ptr_null(b);
            expect_blamed("square", line, "is -1, the interpreter's is 1");
        } else {
            TJ_ASSERT_OK(st);
            ck_assert_uint_eq(stats().checks, 1);
            TJ_ASSERT_OK(trace_bound_run(b));
            TJ_ASSERT_BITS(out, ((const float[]){1, 4, 9, 16}), sizeof out);
            ck_assert_uint_eq(stats().checks, 1);
        }
        trace_bound_release(b);
        trace_release(x);
        trace_release(y);
        stop();
    }
}
END_TEST

START_TEST(attention_is_held_to_its_bound) {
    start((trace_region_options){0});
    // Large scores: the plan's and the interpreter's weights differ in many bits.
    static float q[2 * 64 * 32], mask[64 * 64];
    uint64_t seed = 9;
    for (size_t i = 0; i < TJ_COUNT(q); i++)
        q[i] = 4 * tj_test_uniform(&seed);
    for (size_t i = 0; i < TJ_COUNT(mask); i++)
        mask[i] = i % 7 ? tj_test_uniform(&seed) : -INFINITY;
    T *x = trace_from(ctx, TRACE_F32, q, TRACE_DIMS(2, 64, 32)),
      *m = trace_from(ctx, TRACE_F32, mask, TRACE_DIMS(64, 64));
    for (int half = 0; half < 2; half++) {
        T *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x, m))) {
            T *h = half ? trace_to(x, TRACE_BF16) : x, *hm = half ? trace_to(m, TRACE_BF16) : m;
            T *s = trace_scaled_dot_product_attention(h, h, h, hm, false, 0, false);
            y = trace_argmax(trace_exp(s), -1, false);
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        trace_release(y);
    }
    ck_assert_uint_eq(stats().check_failures, 0);
    trace_release(x);
    trace_release(m);
    stop();
}
END_TEST

// ---- faults of the host ---------------------------------------------------------------------------------------------

START_TEST(refused_allocations_are_statuses) {
    for (int wrong = 0; wrong < 2; wrong++) {
        size_t refused = 0;
        for (size_t k = 0;; k += wrong ? 3 : 1) {
            start((trace_region_options){0});
            if (!tj_test_compiler()) {
                stop();
                return;
            }
            if (wrong)
                fault(TJ_OP_EXP, TJ_OP_ABS);
            int line;
            (void)run(chain, &line); // compiled
            trace_stats before = stats();
            float state[48] = {0};
            T *x = random_tensor(1, TRACE_DIMS(8, 48)), *y = random_tensor(2, TRACE_DIMS(8, 48)), *z = NULL;
            T *s = trace_wrap(ctx, TRACE_F32, state, TRACE_DIMS(48));
            tj_test_fail_at(k);
            if (trace_begin(region, TRACE_ARGS(x, y)))
                z = chain(x, y, &line);
            enum trace_status st = trace_end(region, &z, 1);
            bool failed = tj_test_failed();
            refused += failed;
            if (wrong)
                ck_assert_msg(st == TRACE_ERR_MEMORY || st == TRACE_ERR_COMPILE, "%s", trace_last_error(ctx));
            else
                ck_assert_msg(st == (failed && !z ? TRACE_ERR_MEMORY : TRACE_OK), "%d: %s", (int)st,
                              trace_last_error(ctx));
            ck_assert_uint_eq(stats().check_failures > before.check_failures, st == TRACE_ERR_COMPILE);
            trace_release(z);
            trace_release(s);
            trace_release(x);
            trace_release(y);
            stop();
            if (!failed)
                break;
        }
        ck_assert_uint_gt(refused, 10);
    }
}
END_TEST

static void *many_runs(void *arg) {
    for (int i = 0; i < 20; i++) {
        int line;
        if (run(mixed, &line) != TRACE_OK)
            return arg;
    }
    return NULL;
}

START_TEST(threads_check_side_by_side) {
    start((trace_region_options){0});
    pthread_t t[4];
    for (size_t i = 0; i < TJ_COUNT(t); i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, many_runs, ctx), 0);
    for (size_t i = 0; i < TJ_COUNT(t); i++) {
        void *failed;
        ck_assert_int_eq(pthread_join(t[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    ck_assert_uint_eq(stats().checks, tj_test_compiler() ? 80 : 0);
    stop();
}
END_TEST

// A product of other bits inside nested loops: what the inner loop leaves changes with the outer one's turns, so it is
// no value of the plan around them.
static void nested(bool broken) {
    start((trace_region_options){0});
    if (broken)
        fault(TJ_OP_TANH, TJ_OP_EXP);
    T *x = random_tensor(1, (const int64_t[]){8, 24}, 2), *w = random_tensor(2, (const int64_t[]){24, 24}, 2),
      *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x, w))) {
        T *h = x;
        TJ_ASSERT_OK(trace_repeat(3, &h, 1));
        T *inner = trace_matmul(h, w);
        TJ_ASSERT_OK(trace_repeat(2, &inner, 1));
        inner = trace_tanh(trace_mul_f(inner, 0.25));
        TJ_ASSERT_OK(trace_repeat_end(&inner, 1));
        h = trace_add(trace_mul_f(inner, 0.5), x);
        TJ_ASSERT_OK(trace_repeat_end(&h, 1));
        y = h;
    }
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), broken && tj_test_compiler() ? TRACE_ERR_COMPILE : TRACE_OK);
    trace_release(x), trace_release(w), trace_release(y);
    stop();
}
START_TEST(nested_loops) {
    nested(false);
    nested(true);
}
END_TEST

TJ_TEST_MAIN("check", nested_loops, right_runs_pass, writes_are_checked_on_copies, every_way_to_run_is_checked,
             a_wrong_op_is_named, each_kind_of_op_is_named, what_is_wrong_only_when_fused_is_named,
             a_wrong_contraction_is_named, written_tensors_get_the_interpreters_content, a_break_fails_with_its_segment,
             data_errors_have_to_agree, bound_plans_are_checked_when_bound, attention_is_held_to_its_bound,
             refused_allocations_are_statuses, threads_check_side_by_side)
