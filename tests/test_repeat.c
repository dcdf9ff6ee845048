// tests/test_repeat.c: counted loops: values against the body written out, counts without compiles, nesting, breaks
// around them, bound plans, misuse; and that equal layers and loops of the host are told and paid for once.
#include <pthread.h>

#include "../include/tracejit.h"
#include "tj_test.h"

typedef trace_tensor T;
#define OK(expr) ck_assert_msg((expr) == TRACE_OK, "line %d: %s", __LINE__, trace_last_error(NULL))

static trace_context *context(void) {
    trace_context *ctx;
    OK(trace_context_create(NULL, &ctx));
    return ctx;
}
static trace_region *region(trace_context *ctx) {
    trace_region *r;
    OK(trace_region_create(ctx, "loops", NULL, &r));
    return r;
}
static trace_stats stats(const trace_region *r) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    return s;
}
// Everything below is run with the compiler, with single-op kernels, in the interpreter, and op by op.
static void in_tiers(void (*test)(trace_context *ctx)) {
    static const char *const vars[][2] = {
        {"TRACEJIT_NO", ""}, {"TRACEJIT_NO", "fuse,simplify,reuse"}, {"TRACEJIT_NO", "jit"}, {"TRACEJIT_DISABLE", "1"}};
    for (size_t i = 0; i < TJ_COUNT(vars); i++) {
        ck_assert_int_eq(setenv(vars[i][0], vars[i][1], 1), 0);
        trace_context *ctx = context();
        test(ctx);
        trace_context_release(ctx);
        ck_assert_int_eq(unsetenv(vars[i][0]), 0);
    }
}
static T *random_tensor(trace_context *ctx, uint64_t seed, const int64_t *dims, size_t rank) {
    int64_t n = 1;
    for (size_t i = 0; i < rank; i++)
        n *= dims[i];
    float *v = malloc((size_t)(n ? n : 1) * sizeof *v);
    ck_assert(v != NULL);
    for (int64_t i = 0; i < n; i++)
        v[i] = 0.5f * tj_test_uniform(&seed);
    T *t = trace_from(ctx, TRACE_F32, v, dims, rank);
    ck_assert_msg(t != NULL, "%s", trace_last_error(NULL));
    free(v);
    return t;
}
static void same(T *a, T *b, int line) {
    ck_assert_int_eq(trace_numel(a), trace_numel(b));
    size_t bytes = (size_t)trace_numel(a) * 4;
    unsigned char *x = malloc(2 * bytes + 1);
    ck_assert(x != NULL);
    ck_assert_msg(!trace_read(a, x, bytes) && !trace_read(b, x + bytes, bytes), "line %d: %s", line,
                  trace_last_error(NULL));
    for (size_t i = 0; i < bytes; i++)
        ck_assert_msg(x[i] == x[bytes + i], "line %d: byte %zu of %zu is %02x, not %02x", line, i, bytes, x[i],
                      x[bytes + i]);
    free(x);
}
#define SAME(a, b) same(a, b, __LINE__)

// ---- values ---------------------------------------------------------------------------------------------------------

struct gru {
    T *x, *h, *w[4];
};
static void gru_make(trace_context *ctx, struct gru *g) {
    g->x = random_tensor(ctx, 1, TRACE_DIMS(2, 12));
    g->h = random_tensor(ctx, 2, TRACE_DIMS(2, 20));
    g->w[0] = random_tensor(ctx, 3, TRACE_DIMS(60, 12));
    g->w[1] = random_tensor(ctx, 4, TRACE_DIMS(60, 20));
    g->w[2] = random_tensor(ctx, 5, TRACE_DIMS(60));
    g->w[3] = random_tensor(ctx, 6, TRACE_DIMS(60));
}
static void gru_free(struct gru *g) {
    trace_release(g->x);
    trace_release(g->h);
    for (int i = 0; i < 4; i++)
        trace_release(g->w[i]);
}
static T *gru_step(const struct gru *g, T *h) { return trace_gru_cell(g->x, h, g->w[0], g->w[1], g->w[2], g->w[3]); }
static T *gru_run(trace_region *r, const struct gru *g, int turns, bool loop) {
    T *h = g->h;
    if (trace_begin(r, TRACE_ARGS(g->x, g->h))) {
        if (loop) {
            OK(trace_repeat(turns, &h, 1));
            h = gru_step(g, h);
            OK(trace_repeat_end(&h, 1));
        } else {
            for (int i = 0; i < turns; i++)
                h = gru_step(g, h);
        }
    }
    OK(trace_end(r, &h, 1));
    return h;
}
static void rnn_in(trace_context *ctx) {
    static const int counts[] = {0, 1, 2, 10, 1000};
    struct gru g;
    gru_make(ctx, &g);
    trace_region *r = region(ctx), *plain = region(ctx);
    uint64_t graphs = 0;
    for (size_t i = 0; i < TJ_COUNT(counts); i++) {
        T *y = gru_run(r, &g, counts[i], true), *want = gru_run(plain, &g, counts[i] > 10 ? 300 : counts[i], false);
        if (counts[i] > 10) { // 1000 turns against the same loop in pieces
            trace_release(want);
            struct gru part = g;
            want = trace_retain(g.h);
            for (int k = 0; k < 10; k++) {
                part.h = want;
                T *next = gru_run(plain, &part, 100, false);
                trace_release(want);
                want = next;
            }
        }
        SAME(y, want);
        trace_release(y);
        trace_release(want);
        if (i == 0)
            graphs = stats(r).graphs;
    }
    ck_assert_uint_eq(stats(r).graphs, graphs);
    trace_region_release(r);
    trace_region_release(plain);
    gru_free(&g);
}
START_TEST(rnn) { in_tiers(rnn_in); }
END_TEST

// A body over n carried values, recorded in a loop or written out.
enum { MAX_CARRIED = 4 };
struct body {
    trace_context *ctx;
    T *a, *m; // tensors from outside: [4, 6], [6, 6]
    T *pre;   // computed in the run before the loop: [4, 6]
};
typedef void body_fn(const struct body *b, T **v);
static void repeat(body_fn *f, const struct body *b, int64_t turns, bool loop, T **v, size_t n) {
    if (!loop) {
        for (int64_t i = 0; i < turns; i++)
            f(b, v);
        return;
    }
    OK(trace_repeat(turns, v, n));
    f(b, v);
    OK(trace_repeat_end(v, n));
}
// own: the body writes to what it carries, which is memory of its own then.
static void compare(trace_context *ctx, body_fn *f, size_t n, bool own, int line) {
    static const int counts[] = {3, 0, 1, 2, 5};
    trace_region *r[2] = {region(ctx), region(ctx)};
    struct body b = {ctx, random_tensor(ctx, 7, TRACE_DIMS(4, 6)), random_tensor(ctx, 8, TRACE_DIMS(6, 6)), NULL};
    T *init[MAX_CARRIED];
    for (size_t i = 0; i < n; i++)
        init[i] = random_tensor(ctx, 20 + i, TRACE_DIMS(4, 6));
    for (size_t c = 0; c < TJ_COUNT(counts); c++) {
        T *out[2][MAX_CARRIED];
        for (int loop = 0; loop < 2; loop++) {
            T **v = out[loop];
            if (trace_begin(r[loop], init, n)) {
                b.pre = trace_tanh(trace_add(b.a, init[0]));
                for (size_t i = 0; i < n; i++) // one plain tensor, one value, one view
                    v[i] = i == 0   ? (own ? trace_clone(init[0]) : init[0])
                           : i == 1 ? trace_mul_f(init[i], 0.5)
                                    : trace_transpose(trace_reshape(init[i], TRACE_DIMS(6, 4)), 0, 1);
                repeat(f, &b, counts[c], loop != 0, v, n);
                for (size_t i = 0; i < n; i++)
                    v[i] = trace_add_f(v[i], 1);
            }
            OK(trace_end(r[loop], v, n));
        }
        for (size_t i = 0; i < n; i++) {
            same(out[0][i], out[1][i], line);
            trace_release(out[0][i]);
            trace_release(out[1][i]);
        }
    }
    trace_stats s = stats(r[1]);
    if (!getenv("TRACEJIT_DISABLE"))
        ck_assert_msg(s.graphs == 1, "line %d: %d graphs", line, (int)s.graphs);
    for (size_t i = 0; i < n; i++)
        trace_release(init[i]);
    trace_release(b.a);
    trace_release(b.m);
    trace_region_release(r[0]);
    trace_region_release(r[1]);
}
#define COMPARE(ctx, f, n) compare(ctx, f, n, false, __LINE__)

static void plain(const struct body *b, T **v) { v[0] = trace_sin(trace_add(trace_mul(v[0], b->a), b->pre)); }
static void swap(const struct body *b, T **v) { // next values are first ones of the turn
    (void)b;
    T *sum = trace_add(v[0], v[1]);
    v[0] = v[1];
    v[1] = sum;
}
static void rotate(const struct body *b, T **v) { // nothing is computed
    (void)b;
    T *first = v[0];
    v[0] = v[1];
    v[1] = v[2];
    v[2] = first;
}
static void fixed(const struct body *b, T **v) { // next values that don't change, a carried value that isn't read
    v[2] = trace_mul(v[0], v[1]);
    v[1] = b->pre;
    v[0] = b->a;
}
static void power(const struct body *b, T **v) { // [4, 6] times [6, 6], rows normed
    T *y = trace_matmul(v[0], trace_softmax(trace_add_f(b->m, 1), -1));
    T *norm = trace_sqrt(trace_sum(trace_square(y), TRACE_DIMS(1), true));
    v[0] = trace_div(y, trace_add_f(norm, 0.1));
}
static void updates(const struct body *b, T **v) {
    T *z = trace_zeros(b->ctx, TRACE_DIMS(4, 6), TRACE_F32); // memory made in the turn
    trace_add_(trace_narrow(z, 1, 1, 3), trace_narrow(v[0], 1, 2, 3));
    trace_mul_f_(z, 2);
    T *w = trace_mul(b->a, b->pre); // the same in every turn, then changed
    trace_add_(w, b->a);
    trace_sub_(trace_select(w, 0, 1), trace_select(v[0], 0, 2));
    trace_add_(v[0], z); // a carried value itself
    trace_mul_f_(trace_narrow(v[0], 0, 0, 2), 0.5);
    v[0] = trace_add(v[0], trace_mul_f(w, 0.25));
}
static void in_place_only(const struct body *b, T **v) {
    trace_mul_(v[0], b->a);
    trace_add_(v[0], b->pre);
}
static void views(const struct body *b, T **v) {
    T *t = trace_transpose(trace_reshape(v[0], TRACE_DIMS(6, 4)), 0, 1);
    v[0] = trace_add(t, trace_transpose(trace_reshape(b->pre, TRACE_DIMS(6, 4)), 0, 1));
    v[1] = trace_reshape(trace_transpose(v[1], 0, 1), TRACE_DIMS(4, 6));
}
static void inner(const struct body *b, T **v) { v[0] = trace_sub(trace_mul(v[0], b->pre), b->a); }
static void nest(const struct body *b, T **v) { // the inner loop uses what the outer one carries
    struct body in = *b;
    T *w[2] = {trace_mul_f(v[0], 0.5), v[1]};
    in.pre = trace_cos(v[0]);
    OK(trace_repeat(3, w, 2));
    inner(&in, w);
    w[1] = trace_add(w[1], trace_mul(v[0], w[0]));
    OK(trace_repeat_end(w, 2));
    v[0] = w[0];
    v[1] = trace_mul_f(w[1], 0.5);
}
static void apart(const struct body *b, T **v) { // the inner loop is the same in every turn of the outer one
    T *w = b->a;
    OK(trace_repeat(2, &w, 1));
    inner(b, &w);
    OK(trace_repeat_end(&w, 1));
    v[0] = trace_add(v[0], w);
}
static void half_apart(const struct body *b, T **v) { // only one of the values that the inner loop carries changes
    T *w[2] = {b->a, b->pre};
    OK(trace_repeat(2, w, 2));
    w[1] = trace_add(w[1], trace_mul(w[0], v[0]));
    inner(b, w);
    OK(trace_repeat_end(w, 2));
    v[0] = trace_tanh(w[1]);
    v[1] = trace_add(v[1], w[0]);
}
static void three_deep(const struct body *b, T **v) {
    T *w = v[0];
    OK(trace_repeat(2, &w, 1));
    T *u = trace_add(w, b->a);
    OK(trace_repeat(2, &u, 1));
    u = trace_mul(trace_sin(u), trace_add(w, v[0]));
    OK(trace_repeat_end(&u, 1));
    w = trace_add(u, b->pre);
    OK(trace_repeat_end(&w, 1));
    v[0] = w;
}
static void two_loops(const struct body *b, T **v) {
    T *w = v[0], *u = v[1];
    OK(trace_repeat(2, &w, 1));
    inner(b, &w);
    OK(trace_repeat_end(&w, 1));
    OK(trace_repeat(0, &u, 1));
    u = trace_mul(u, w);
    OK(trace_repeat_end(&u, 1));
    v[0] = trace_add(w, u);
    v[1] = w;
}
static void kinds(const struct body *b, T **v) { // other dtypes on the way, gathers, rows
    T *i = trace_argmax(v[0], 1, false);
    T *h = trace_to(trace_index_select(trace_transpose(b->m, 0, 1), 0, i), TRACE_F16);
    v[0] = trace_softmax(trace_add(trace_mul_f(v[0], 0.5), trace_to(h, TRACE_F32)), -1);
}
static void bodies_in(trace_context *ctx) {
    COMPARE(ctx, plain, 1);
    COMPARE(ctx, swap, 2);
    COMPARE(ctx, rotate, 3);
    COMPARE(ctx, fixed, 3);
    COMPARE(ctx, power, 1);
    compare(ctx, updates, 1, true, __LINE__);
    compare(ctx, in_place_only, 1, true, __LINE__);
    COMPARE(ctx, views, 2);
    COMPARE(ctx, kinds, 1);
}
START_TEST(bodies) { in_tiers(bodies_in); }
END_TEST
static void nested_in(trace_context *ctx) {
    COMPARE(ctx, nest, 2);
    COMPARE(ctx, apart, 1);
    COMPARE(ctx, half_apart, 2);
    COMPARE(ctx, three_deep, 1);
    COMPARE(ctx, two_loops, 2);
}
START_TEST(nested) { in_tiers(nested_in); }
END_TEST

// ---- what is around -------------------------------------------------------------------------------------------------

static void around_in(trace_context *ctx) { // breaks before and after, values from outside written around the loop
    trace_region *r[2] = {region(ctx), region(ctx)};
    uint64_t graphs = 0;
    for (int64_t turns = 3; turns >= 0; turns--) {
        T *last[2];
        double first[2], middle[2];
        for (int loop = 0; loop < 2; loop++) {
            struct body b = {ctx, random_tensor(ctx, 7, TRACE_DIMS(4, 6)), NULL, NULL};
            T *x = random_tensor(ctx, 9, TRACE_DIMS(4, 6)), *v[2];
            if (trace_begin(r[loop], TRACE_ARGS(x))) {
                b.pre = trace_mul(x, b.a);
                OK(trace_item_f64(trace_sum(b.pre, NULL, 0, false), &first[loop]));
                trace_add_(b.a, x); // the loop sees this
                v[0] = trace_add(b.pre, x);
                v[1] = b.a;
                repeat(two_loops, &b, turns, loop != 0, v, 2);
                trace_copy_(b.a, v[1]); // and not this
                OK(trace_item_f64(trace_amax(v[0], NULL, 0, false), &middle[loop]));
                v[0] = trace_add(v[0], v[1]);
                repeat(inner, &b, 2, loop != 0, v, 1); // begins with a value that a break has stored
                trace_copy_(x, v[0]);
            }
            OK(trace_end(r[loop], NULL, 0));
            last[loop] = trace_add(b.a, x);
            trace_release(b.a);
            trace_release(x);
        }
        ck_assert(first[0] == first[1] && middle[0] == middle[1]);
        SAME(last[0], last[1]);
        trace_release(last[0]);
        trace_release(last[1]);
        if (turns == 3) // the first run learns what its breaks have to store
            continue;
        if (turns == 2)
            graphs = stats(r[1]).graphs;
        ck_assert_uint_eq(stats(r[1]).graphs, graphs);
    }
    trace_region_release(r[0]);
    trace_region_release(r[1]);
}
START_TEST(around) { in_tiers(around_in); }
END_TEST

static void results_in(trace_context *ctx) { // two results of one loop, asked for one after the other
    trace_region *r = region(ctx);
    for (int k = 0; k < 3; k++) {
        struct body b = {ctx, random_tensor(ctx, 7, TRACE_DIMS(4, 6)), NULL, NULL};
        T *x = random_tensor(ctx, 9, TRACE_DIMS(4, 6)), *v[2] = {x, x}, *y = NULL;
        double sum = 0, want;
        if (trace_begin(r, TRACE_ARGS(x))) {
            b.pre = trace_neg(x);
            v[1] = trace_mul_f(x, 2);
            repeat(two_loops, &b, 4, true, v, 2);
            OK(trace_item_f64(trace_sum(v[0], NULL, 0, false), &sum));
            y = v[1];
        }
        OK(trace_end(r, &y, 1));
        T *u[2] = {x, trace_mul_f(x, 2)}, *first = u[1];
        b.pre = trace_neg(x);
        for (int i = 0; i < 4; i++) { // op by op, outside regions
            T *w = u[0], *q;
            for (int m = 0; m < 2; m++) {
                T *p = trace_mul(w, b.pre);
                q = trace_sub(p, b.a);
                trace_release(p);
                if (w != u[0])
                    trace_release(w);
                w = q;
            }
            q = trace_add(w, u[1]);
            if (u[0] != x)
                trace_release(u[0]);
            trace_release(u[1]);
            u[0] = q;
            u[1] = w;
        }
        (void)first;
        SAME(y, u[1]);
        T *s = trace_sum(u[0], NULL, 0, false);
        OK(trace_item_f64(s, &want));
        ck_assert(sum == want);
        T *all[] = {s, u[0], u[1], b.pre, b.a, x, y};
        for (size_t i = 0; i < TJ_COUNT(all); i++)
            trace_release(all[i]);
    }
    trace_region_release(r);
}
START_TEST(results) { in_tiers(results_in); }
END_TEST

static void inlined_in(trace_context *ctx) { // regions around and inside, one of which fails
    trace_region *r = region(ctx), *in = region(ctx);
    T *x = random_tensor(ctx, 3, TRACE_DIMS(4, 6)), *bad = random_tensor(ctx, 4, TRACE_DIMS(5)), *y = NULL, *z = NULL;
    for (int way = 0; way < 2; way++) {
        T **to = way ? &z : &y;
        if (trace_begin(r, TRACE_ARGS(x))) {
            T *v = x;
            OK(trace_repeat(3, &v, 1));
            T *w = NULL;
            if (way && trace_begin(in, TRACE_ARGS(v))) { // dropped with the loop that is open in it
                T *u = v;
                OK(trace_repeat(2, &u, 1));
                w = trace_add(u, bad);
                ck_assert(!w);
            }
            if (way) {
                TJ_ASSERT_STATUS(trace_end(in, &w, 1), TRACE_ERR_SHAPE);
                if (trace_begin(in, TRACE_ARGS(v)))
                    (void)trace_sin(v);
                trace_abandon(in);
            }
            if (trace_begin(in, TRACE_ARGS(v))) {
                w = v;
                OK(trace_repeat(2, &w, 1));
                w = trace_sin(trace_add(w, x));
                OK(trace_repeat_end(&w, 1));
            }
            OK(trace_end(in, &w, 1));
            v = trace_mul(w, v);
            OK(trace_repeat_end(&v, 1));
            *to = v;
        }
        OK(trace_end(r, to, 1));
    }
    SAME(y, z);
    T *all[] = {x, y, z, bad};
    for (size_t i = 0; i < TJ_COUNT(all); i++)
        trace_release(all[i]);
    trace_region_release(in);
    trace_region_release(r);
}
START_TEST(inlined) {
    trace_context *ctx = context();
    inlined_in(ctx);
    trace_context_release(ctx);
    ck_assert_int_eq(setenv("TRACEJIT_NO", "jit", 1), 0);
    ctx = context();
    inlined_in(ctx);
    trace_context_release(ctx);
}
END_TEST

START_TEST(outside) { // of regions: recorded, and run at its end
    trace_context *ctx = context();
    struct gru g;
    gru_make(ctx, &g);
    trace_region *r = region(ctx);
    for (int turns = 0; turns < 4; turns++) {
        T *h = g.h, *want = gru_run(r, &g, turns, false);
        OK(trace_repeat(turns, &h, 1));
        h = gru_step(&g, h);
        OK(trace_repeat_end(&h, 1));
        SAME(h, want);
        trace_release(h);
        trace_release(want);
    }
    T *v[2] = {g.h, g.h}, *w;
    OK(trace_repeat(3, v, 2));
    w = v[1];
    OK(trace_repeat(2, &w, 1)); // nested
    w = trace_tanh(w);
    OK(trace_repeat_end(&w, 1));
    v[1] = trace_add(w, v[0]);
    OK(trace_repeat_end(v, 2));
    SAME(v[0], g.h);
    trace_release(v[0]);
    trace_release(v[1]);
    v[0] = g.h; // failures leave nothing behind
    OK(trace_repeat(3, v, 1));
    v[0] = trace_add(v[0], g.w[2]);
    ck_assert(!v[0]);
    TJ_ASSERT_STATUS(trace_repeat_end(v, 1), TRACE_ERR_SHAPE);
    ck_assert_msg(strstr(trace_last_error(NULL), "test_repeat.c") != NULL, "%s", trace_last_error(NULL));
    v[0] = g.h;
    TJ_ASSERT_STATUS(trace_repeat(-1, v, 1), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_repeat_end(v, 1), TRACE_ERR_ARGUMENT);
    ck_assert_msg(strstr(trace_last_error(NULL), "-1 turns") != NULL, "%s", trace_last_error(NULL));
    TJ_ASSERT_STATUS(trace_repeat_end(v, 1), TRACE_ERR_STATE);
    w = trace_add(g.h, g.h);
    ck_assert(w != NULL);
    trace_release(w);
    gru_free(&g);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

START_TEST(counted) { // launches count the turns; counts and scalars compile nothing; weights are packed once
    trace_context *ctx = context();
    if (!strstr(trace_context_describe(ctx), "avx") && !strstr(trace_context_describe(ctx), "LLVM")) {
        trace_context_release(ctx);
        return;
    }
    trace_region *r = region(ctx);
    T *x = random_tensor(ctx, 1, TRACE_DIMS(8, 64)), *w = random_tensor(ctx, 2, TRACE_DIMS(64, 64));
    trace_stats s[3];
    for (int k = 0; k < 3; k++) {
        T *h = x;
        if (trace_begin(r, TRACE_ARGS(x))) {
            OK(trace_repeat(k == 0 ? 1 : k == 1 ? 2 : 102, &h, 1));
            h = trace_mul_f(trace_tanh(trace_linear(h, w, TRACE_NONE)), 0.5 + k);
            OK(trace_repeat_end(&h, 1));
        }
        OK(trace_end(r, &h, 1));
        trace_release(h);
        s[k] = stats(r);
    }
    ck_assert_uint_eq(s[2].graphs, 1);
    ck_assert_uint_eq(s[2].recompiles, 0);
    ck_assert_uint_eq(s[2].kernels, s[0].kernels);
    uint64_t two = s[1].launches - s[0].launches, many = s[2].launches - s[1].launches;
    ck_assert_uint_eq(many - two, 100 * (two - s[0].launches));
    trace_stats c = {.size = sizeof c};
    trace_context_stats(ctx, &c);
    ck_assert_uint_le(c.bytes_packed, 2 * 64 * 64 * 4);
    trace_release(x);
    trace_release(w);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

START_TEST(bound) { // nothing is allocated in a run
    trace_context *ctx = context();
    struct gru g;
    gru_make(ctx, &g);
    trace_region *r = region(ctx), *plain_region = region(ctx);
    T *h = random_tensor(ctx, 2, TRACE_DIMS(2, 20)), *want = trace_retain(g.h);
    trace_bound *p = NULL;
    if (trace_begin(r, TRACE_ARGS(g.x, h))) {
        T *v[2] = {h, h};
        OK(trace_repeat(7, v, 2));
        v[1] = trace_neg(v[0]);
        OK(trace_repeat(1, &v[0], 1)); // and a loop inside
        v[0] = gru_step(&g, v[0]);
        OK(trace_repeat_end(&v[0], 1));
        OK(trace_repeat_end(v, 2));
        trace_copy_(h, v[0]);
    }
    enum trace_status st = trace_end_bind(r, NULL, &p);
    if (st != TRACE_ERR_UNAVAILABLE) {
        OK(st);
        for (int k = 0; k < 4; k++) {
            tj_test_fail_at(0);
            st = trace_bound_run(p);
            ck_assert(!tj_test_failed() || tj_test_allocs == 0);
            OK(st);
            struct gru part = g;
            part.h = want;
            T *next = gru_run(plain_region, &part, 7, false);
            trace_release(want);
            want = next;
            SAME(h, want);
        }
        trace_bound_release(p);
    }
    trace_release(want);
    trace_release(h);
    gru_free(&g);
    trace_region_release(plain_region);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

struct caller {
    trace_region *r;
    const struct gru *g;
    T *want[6];
};
static void *call_loop(void *arg) {
    struct caller *c = arg;
    for (int k = 0; k < 60; k++) {
        T *y = gru_run(c->r, c->g, k % 6, true);
        SAME(y, c->want[k % 6]);
        trace_release(y);
    }
    return NULL;
}
START_TEST(threads) {
    trace_context *ctx = context();
    struct gru g;
    gru_make(ctx, &g);
    trace_region *r = region(ctx), *plain_region = region(ctx);
    struct caller c = {.r = r, .g = &g};
    for (int i = 0; i < 6; i++)
        c.want[i] = gru_run(plain_region, &g, i, false);
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, call_loop, &c), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_join(t[i], NULL), 0);
    ck_assert_uint_eq(stats(r).graphs, 1);
    for (int i = 0; i < 6; i++)
        trace_release(c.want[i]);
    gru_free(&g);
    trace_region_release(plain_region);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

static void *call_for_ever(void *arg) {
    struct caller *c = arg;
    T *h = c->g->h;
    if (trace_begin(c->r, TRACE_ARGS(c->g->x, c->g->h))) {
        (void)trace_repeat(INT64_MAX, &h, 1);
        h = gru_step(c->g, h);
        (void)trace_repeat_end(&h, 1);
    }
    enum trace_status st = trace_end(c->r, &h, 1);
    ck_assert(!h);
    return (void *)(intptr_t)st;
}
START_TEST(cancelled) { // between turns
    trace_context *ctx = context();
    struct gru g;
    gru_make(ctx, &g);
    struct caller c = {.r = region(ctx), .g = &g};
    pthread_t t;
    void *st;
    ck_assert_int_eq(pthread_create(&t, NULL, call_for_ever, &c), 0);
    while (!stats(c.r).graphs)
        sched_yield();
    trace_region_cancel(c.r);
    ck_assert_int_eq(pthread_join(t, &st), 0);
    ck_assert_int_eq((int)(intptr_t)st, TRACE_ERR_SHUTDOWN);
    gru_free(&g);
    trace_region_release(c.r);
    trace_context_release(ctx);
}
END_TEST

static void extents_in(trace_context *ctx) { // that change from run to run, also those that only the body has
    trace_region *r[2] = {region(ctx), region(ctx)};
    static const int64_t rows[] = {4, 5, 7, 4, 1, 9, 5}, taken[] = {3, 3, 3, 2, 3, 5, 6};
    for (size_t c = 0; c < TJ_COUNT(rows); c++) {
        T *x = random_tensor(ctx, c, TRACE_DIMS(rows[c], 6)), *m = random_tensor(ctx, 50, TRACE_DIMS(6, 6)), *y[2];
        for (int loop = 0; loop < 2; loop++) {
            T *v = x;
            if (trace_begin(r[loop], TRACE_ARGS(x))) {
                if (loop)
                    OK(trace_repeat(3, &v, 1));
                for (int i = loop ? 2 : 0; i < 3; i++) {
                    T *part = trace_narrow(trace_matmul(v, m), 1, 0, taken[c]);
                    v = trace_add(trace_sin(v), trace_sum(part, TRACE_DIMS(1), true));
                }
                if (loop)
                    OK(trace_repeat_end(&v, 1));
            }
            OK(trace_end(r[loop], &v, 1));
            y[loop] = v;
        }
        SAME(y[0], y[1]);
        T *all[] = {x, m, y[0], y[1]};
        for (size_t i = 0; i < TJ_COUNT(all); i++)
            trace_release(all[i]);
    }
    trace_region_release(r[0]);
    trace_region_release(r[1]);
}
START_TEST(extents) { in_tiers(extents_in); }
END_TEST

// ---- misuse ---------------------------------------------------------------------------------------------------------

struct misuse {
    trace_context *ctx;
    trace_region *r, *in;
    T *x, *y; // [4, 6]
    trace_tensor *v[2];
};
typedef void misuse_fn(struct misuse *m);
static void no_begin(struct misuse *m) { (void)trace_repeat_end(m->v, 1); }
static void no_end(struct misuse *m) {
    (void)trace_repeat(2, m->v, 1);
    m->v[0] = trace_neg(m->v[0]);
}
static void no_end_inner(struct misuse *m) {
    if (trace_begin(m->in, NULL, 0))
        no_end(m);
    ck_assert_int_ne(trace_end(m->in, m->v, 1), TRACE_OK);
    m->v[1] = m->v[0];
}
static void end_inside(struct misuse *m) { // in an inner region
    (void)trace_repeat(2, m->v, 1);
    if (trace_begin(m->in, NULL, 0))
        (void)trace_repeat_end(m->v, 1);
    ck_assert_int_ne(trace_end(m->in, m->v, 1), TRACE_OK);
    ck_assert_msg(strstr(trace_last_error(NULL), "end the region first") != NULL, "%s", trace_last_error(NULL));
}
static void negative(struct misuse *m) { (void)trace_repeat(-2, m->v, 1); }
static void nothing(struct misuse *m) { (void)trace_repeat(2, m->v, 0); }
static void no_array(struct misuse *m) {
    (void)m;
    (void)trace_repeat(2, NULL, 1);
}
static void too_many(struct misuse *m) {
    T *v[65];
    for (size_t i = 0; i < TJ_COUNT(v); i++)
        v[i] = m->x;
    (void)trace_repeat(2, v, TJ_COUNT(v));
}
static void null_init(struct misuse *m) {
    m->v[1] = NULL;
    (void)trace_repeat(2, m->v, 2);
}
static void none_init(struct misuse *m) {
    m->v[1] = TRACE_NONE;
    (void)trace_repeat(2, m->v, 2);
}
static void null_next(struct misuse *m) {
    (void)trace_repeat(2, m->v, 2);
    m->v[1] = NULL;
    (void)trace_repeat_end(m->v, 2);
}
static void other_n(struct misuse *m) {
    (void)trace_repeat(2, m->v, 2);
    (void)trace_repeat_end(m->v, 1);
}
static void other_shape(struct misuse *m) {
    (void)trace_repeat(2, m->v, 1);
    m->v[0] = trace_sum(m->v[0], TRACE_DIMS(1), true);
    (void)trace_repeat_end(m->v, 1);
}
static void other_dtype(struct misuse *m) {
    (void)trace_repeat(2, m->v, 1);
    m->v[0] = trace_to(m->v[0], TRACE_F64);
    (void)trace_repeat_end(m->v, 1);
}
static void item(struct misuse *m) {
    double d;
    (void)trace_repeat(2, m->v, 1);
    ck_assert_int_ne(trace_item_f64(trace_sum(m->v[0], NULL, 0, false), &d), TRACE_OK);
    (void)trace_repeat_end(m->v, 1);
}
static void read_back(struct misuse *m) {
    float f[24];
    (void)trace_repeat(2, m->v, 1);
    ck_assert_int_ne(trace_read(trace_neg(m->v[0]), f, sizeof f), TRACE_OK);
}
static void data(struct misuse *m) {
    const void *p;
    (void)trace_repeat(2, m->v, 1);
    ck_assert_int_ne(trace_data(trace_neg(m->v[0]), &p), TRACE_OK);
}
static void print(struct misuse *m) {
    (void)trace_repeat(2, m->v, 1);
    (void)trace_print(trace_neg(m->v[0]), "x");
}
static void later(struct misuse *m) {
    (void)trace_repeat(2, m->v, 1);
    ck_assert(!trace_item_later(trace_sum(m->v[0], NULL, 0, false)));
}
static void print_later(struct misuse *m) {
    (void)trace_repeat(2, m->v, 1);
    (void)trace_print_later(m->v[0], "x");
}
static void host_write(struct misuse *m) {
    static float mem[24];
    float f[24] = {0};
    T *w = trace_wrap(m->ctx, TRACE_F32, mem, TRACE_DIMS(4, 6)), *sum = trace_add(w, m->x);
    (void)trace_repeat(2, m->v, 1);
    m->v[0] = trace_add(m->v[0], sum);
    (void)trace_write(w, f, sizeof f);
    trace_release(w);
}
static void write_leaf(struct misuse *m) {
    (void)trace_repeat(2, m->v, 1);
    trace_copy_(m->y, m->v[0]);
    (void)trace_repeat_end(m->v, 1);
}
static void write_value(struct misuse *m) {
    T *z = trace_neg(m->y);
    (void)trace_repeat(2, m->v, 1);
    trace_add_(trace_narrow(z, 0, 0, 1), trace_narrow(m->v[0], 0, 0, 1));
    (void)trace_repeat_end(m->v, 1);
}
static void used_after(struct misuse *m) {
    (void)trace_repeat(2, m->v, 1);
    m->v[1] = trace_neg(m->v[0]);
    m->v[0] = trace_sin(m->v[1]);
    (void)trace_repeat_end(m->v, 1);
    m->v[1] = trace_add(m->v[0], m->v[1]);
}
static void written_after(struct misuse *m) { // memory made in the body, changed there with a carried value
    (void)trace_repeat(2, m->v, 1);
    m->v[1] = trace_zeros(m->ctx, TRACE_DIMS(4, 6), TRACE_F32);
    trace_add_(m->v[1], m->v[0]);
    m->v[0] = trace_sin(m->v[0]);
    (void)trace_repeat_end(m->v, 1);
    m->v[1] = trace_neg(m->v[1]);
}
static void too_deep(struct misuse *m) {
    for (int i = 0; i < 9; i++)
        (void)trace_repeat(2, m->v, 1);
}
static const struct {
    const char *name;
    misuse_fn *f;
    enum trace_status want;
    const char *text;
    bool eager; // the same with TRACEJIT_DISABLE
} misuses[] = {
    {"no_begin", no_begin, TRACE_ERR_STATE, "no loop is open", true},
    {"no_end", no_end, TRACE_ERR_STATE, "trace_repeat_end", true},
    {"no_end_inner", no_end_inner, TRACE_ERR_STATE, "end its body with trace_repeat_end", false},
    {"end_inside", end_inside, TRACE_ERR_STATE, "the loop is still open", false},
    {"negative", negative, TRACE_ERR_ARGUMENT, "-2 turns; want 0 or more", true},
    {"nothing", nothing, TRACE_ERR_ARGUMENT, "nothing is carried", true},
    {"no_array", no_array, TRACE_ERR_ARGUMENT, "NULL", true},
    {"too_many", too_many, TRACE_ERR_ARGUMENT, "65 carried values, more than 64", true},
    {"null_init", null_init, TRACE_ERR_ARGUMENT, "NULL", true},
    {"none_init", none_init, TRACE_ERR_ARGUMENT, "TRACE_NONE", true},
    {"null_next", null_next, TRACE_ERR_ARGUMENT, "the next value 1 is NULL", true},
    {"other_n", other_n, TRACE_ERR_ARGUMENT, "1 next values for a loop", true},
    {"other_shape", other_shape, TRACE_ERR_SHAPE, "begins as [4, 6], its next value is [4, 1]", true},
    {"other_dtype", other_dtype, TRACE_ERR_DTYPE, "begins as f32, its next value is f64", true},
    {"item", item, TRACE_ERR_BREAK, "carry it and read it after trace_repeat_end", true},
    {"read", read_back, TRACE_ERR_BREAK, "trace_read", true},
    {"data", data, TRACE_ERR_BREAK, "trace_data", true},
    {"print", print, TRACE_ERR_BREAK, "trace_print", true},
    {"later", later, TRACE_ERR_BREAK, "trace_item_later", true},
    {"print_later", print_later, TRACE_ERR_BREAK, "trace_print_later", true},
    {"host_write", host_write, TRACE_ERR_BREAK, "trace_write", false},
    {"write_leaf", write_leaf, TRACE_ERR_STATE, "writes a tensor from outside the loop", true},
    {"write_value", write_value, TRACE_ERR_STATE, "writes a tensor from outside the loop", true},
    {"used_after", used_after, TRACE_ERR_DEAD, "changes with the turns of a loop that is over", false},
    {"written_after", written_after, TRACE_ERR_DEAD, "changes with the turns of a loop that is over", false},
    {"too_deep", too_deep, TRACE_ERR_BUDGET, "more than 8 loops", true},
};
static void misuse_in(bool eager) {
    trace_context *ctx = context();
    for (size_t i = 0; i < TJ_COUNT(misuses); i++) {
        if (eager && !misuses[i].eager)
            continue;
        struct misuse m = {.ctx = ctx, .r = region(ctx), .in = region(ctx)};
        m.x = random_tensor(ctx, 1, TRACE_DIMS(4, 6));
        m.y = random_tensor(ctx, 2, TRACE_DIMS(4, 6));
        for (int k = 0; k < 2; k++) {
            m.v[0] = m.x;
            m.v[1] = m.y;
            if (trace_begin(m.r, TRACE_ARGS(m.x)))
                misuses[i].f(&m);
            T *out = m.v[1];
            enum trace_status st = trace_end(m.r, &out, 1);
            const char *text = trace_last_error(ctx);
            ck_assert_msg(st == misuses[i].want && strstr(text, misuses[i].text), "%s: %s: %s", misuses[i].name,
                          trace_status_name(st), text);
            ck_assert_msg(strstr(text, "test_repeat.c:") != NULL, "%s: no line: %s", misuses[i].name, text);
            ck_assert(!out);
        }
        // nothing is left of it
        T *y = NULL;
        if (trace_begin(m.r, TRACE_ARGS(m.x)))
            y = trace_neg(m.x);
        OK(trace_end(m.r, &y, 1));
        trace_release(y);
        trace_release(m.x);
        trace_release(m.y);
        trace_region_release(m.r);
        trace_region_release(m.in);
    }
    trace_context_release(ctx);
}
START_TEST(misused) { misuse_in(false); }
END_TEST
START_TEST(misused_eager) {
    ck_assert_int_eq(setenv("TRACEJIT_DISABLE", "1", 1), 0);
    misuse_in(true);
}
END_TEST

static void faulty_in(trace_context *ctx) { // data errors name the op in the body
    trace_region *r = region(ctx);
    T *x = random_tensor(ctx, 1, TRACE_DIMS(4, 6)), *v[2], *y = NULL;
    int line = 0;
    if (trace_begin(r, TRACE_ARGS(x))) {
        v[0] = x;
        v[1] = trace_full_i(ctx, TRACE_DIMS(2), 1, TRACE_I64);
        (void)trace_repeat(9, v, 2);
        (void)trace_repeat(1, &v[0], 1);
        v[0] = trace_add(v[0], trace_sum(trace_index_select(x, 0, v[1]), TRACE_DIMS(0), true)), line = __LINE__;
        (void)trace_repeat_end(&v[0], 1);
        v[1] = trace_add_i(v[1], 1);
        (void)trace_repeat_end(v, 2);
        y = v[0];
    }
    TJ_ASSERT_STATUS(trace_end(r, &y, 1), TRACE_ERR_DEVICE);
    char want[64];
    (void)snprintf(want, sizeof want, "test_repeat.c:%d", line);
    if (!getenv("TRACEJIT_DISABLE"))
        ck_assert_msg(strstr(trace_last_error(NULL), want) && strstr(trace_last_error(NULL), "index_select"), "%s: %s",
                      want, trace_last_error(NULL));
    trace_release(x);
    trace_region_release(r);
}
START_TEST(faulty) { in_tiers(faulty_in); }
END_TEST

START_TEST(starved) { // refused allocations become a status, and nothing is left of them
    trace_context *ctx = context();
    struct gru g;
    gru_make(ctx, &g);
    trace_region *plain_region = region(ctx);
    T *want = gru_run(plain_region, &g, 3, false);
    for (size_t at = 0, done = 0; !done; at += 1 + at / 16) {
        trace_region *r = region(ctx);
        T *h = g.h;
        tj_test_fail_at(at);
        if (trace_begin(r, TRACE_ARGS(g.x, g.h))) {
            (void)trace_repeat(3, &h, 1);
            h = gru_step(&g, h);
            (void)trace_repeat_end(&h, 1);
        }
        enum trace_status st = trace_end(r, &h, 1);
        done = !tj_test_failed();
        ck_assert_msg(st == TRACE_OK || st == TRACE_ERR_MEMORY, "%zu: %s", at, trace_last_error(ctx));
        ck_assert(!done || st == TRACE_OK);
        if (st == TRACE_OK)
            SAME(h, want);
        trace_release(h);
        trace_region_release(r);
    }
    trace_release(want);
    trace_region_release(plain_region);
    gru_free(&g);
    trace_context_release(ctx);
}
END_TEST

// ---- equal layers and loops of the host -----------------------------------------------------------------------------

// A pre-norm transformer layer, with weights of its own.
enum { WIDTH = 32, HEADS = 2, TOKENS = 6, LAYER = 12 };
static void layer_weights(trace_context *ctx, uint64_t seed, T **w) {
    static const int64_t dims[LAYER][2] = {{WIDTH, 0},     {WIDTH, 0}, {3 * WIDTH, WIDTH}, {3 * WIDTH, 0},
                                           {WIDTH, WIDTH}, {WIDTH, 0}, {WIDTH, 0},         {WIDTH, 0},
                                           {64, WIDTH},    {64, 0},    {WIDTH, 64},        {WIDTH, 0}};
    for (uint64_t i = 0; i < LAYER; i++)
        w[i] = random_tensor(ctx, seed * LAYER + i, dims[i], dims[i][1] ? 2 : 1);
}
static T *layer(T *x, T *const *w) {
    T *n = trace_layer_norm(x, TRACE_DIMS(WIDTH), w[0], w[1], 1e-5);
    T *qkv = trace_reshape(trace_linear(n, w[2], w[3]), TRACE_DIMS(TOKENS, 3, HEADS, WIDTH / HEADS));
    T *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = trace_transpose(trace_select(qkv, 1, i), 0, 1);
    T *a = trace_scaled_dot_product_attention(part[0], part[1], part[2], TRACE_NONE, false, 0, false);
    a = trace_reshape(trace_transpose(a, 0, 1), TRACE_DIMS(TOKENS, WIDTH));
    x = trace_add(x, trace_linear(a, w[4], w[5]));
    n = trace_layer_norm(x, TRACE_DIMS(WIDTH), w[6], w[7], 1e-5);
    return trace_add(x, trace_linear(trace_gelu(trace_linear(n, w[8], w[9]), 0), w[10], w[11]));
}
static trace_stats layers(int n) {
    trace_context *ctx = context();
    trace_region *r = region(ctx);
    T *w[24][LAYER], *x = random_tensor(ctx, 1, TRACE_DIMS(TOKENS, WIDTH)), *y = x;
    for (int i = 0; i < n; i++)
        layer_weights(ctx, (uint64_t)i + 1, w[i]);
    if (trace_begin(r, TRACE_ARGS(x))) {
        for (int i = 0; i < n; i++)
            y = layer(y, w[i]);
    }
    OK(trace_end(r, &y, 1));
    trace_stats s = stats(r);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < LAYER; k++)
            trace_release(w[i][k]);
    }
    trace_release(y);
    trace_release(x);
    trace_region_release(r);
    trace_context_release(ctx);
    return s;
}
START_TEST(equal_layers) { // each kernel is compiled once: the first, the last and one between them need their own
    trace_stats three = layers(3), twelve = layers(12), more = layers(24);
    ck_assert_uint_eq(twelve.kernels, three.kernels);
    ck_assert_uint_eq(more.kernels, three.kernels);
    ck_assert_uint_eq(twelve.bytes_code, three.bytes_code);
    ck_assert_uint_eq(more.launches - twelve.launches, 12 * ((twelve.launches - three.launches) / 9));
}
END_TEST

struct reason {
    char text[600];
    int64_t from, to;
    int n;
};
static void on_event(void *user, const trace_event *e) {
    struct reason *r = user;
    if (e->kind != TRACE_EVENT_RECOMPILE)
        return;
    (void)snprintf(r->text, sizeof r->text, "%s", e->what);
    r->from = e->from;
    r->to = e->to;
    r->n++;
}
// A host loop with ops around it. what: bit 0 weights of each turn's own, bit 1 a list that is joined behind it.
static int host_loop(T *x, T *const *w, int turns, unsigned what, T **y, int *last) {
    int first;
    T *v = trace_mul_f(x, 0.5), *all[32];
    for (int i = 0; i < turns; i++) {
        first = __LINE__;
        v = trace_tanh(trace_add(v, w[what & 1 ? i : 0]));
        v = trace_mul(v, trace_neg(w[0]));
        *last = __LINE__ - 1;
        all[i] = v;
    }
    *y = trace_sin(what & 2 ? trace_cat(all, (size_t)turns, 0) : v);
    return first;
}
START_TEST(told) { // a recompile for another number of turns says so
    struct reason why = {.n = 0};
    trace_context *ctx;
    OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = on_event, .event_user = &why), &ctx));
    T *x = random_tensor(ctx, 1, TRACE_DIMS(4, 6)), *w[32];
    for (uint64_t i = 0; i < 32; i++)
        w[i] = random_tensor(ctx, 2 + i, TRACE_DIMS(4, 6));
    static const int counts[][2] = {{3, 5}, {5, 3}, {1, 2}, {2, 1}, {4, 32}, {7, 8}};
    for (unsigned what = 0; what < 4; what++) {
        for (size_t c = 0; c < TJ_COUNT(counts); c++) {
            trace_region *r = region(ctx);
            int first = 0, last = 0;
            why = (struct reason){.n = 0};
            for (int k = 0; k < 2; k++) {
                T *y = NULL;
                if (trace_begin(r, TRACE_ARGS(x)))
                    first = host_loop(x, w, counts[c][k], what, &y, &last) + 1;
                OK(trace_end(r, &y, 1));
                trace_release(y);
            }
            char want[300];
            (void)snprintf(want, sizeof want, "test_repeat.c:%d-%d were recorded %d times, are now %d times", first,
                           last, counts[c][0], counts[c][1]);
            ck_assert_msg(why.n == 1 && strstr(why.text, want) && strstr(why.text, "trace_repeat"), "%u: %s: %s", what,
                          want, why.text);
            ck_assert(why.from == counts[c][0] && why.to == counts[c][1]);
            trace_region_release(r);
        }
    }
    // other ops are told as such
    trace_region *r = region(ctx);
    for (int k = 0; k < 3; k++) {
        T *y = NULL;
        why = (struct reason){.n = 0};
        if (trace_begin(r, TRACE_ARGS(x))) {
            y = trace_add(x, w[0]);
            if (k == 1)
                y = trace_tanh(y);
            y = k == 2 ? trace_cos(y) : trace_sin(y);
        }
        OK(trace_end(r, &y, 1));
        ck_assert_msg(!strstr(why.text, "host loop") && (k == 0 || strstr(why.text, "recorded ops differ")), "%s",
                      why.text);
        trace_release(y);
    }
    trace_region_release(r);
    trace_release(x);
    for (int i = 0; i < 32; i++)
        trace_release(w[i]);
    trace_context_release(ctx);
}
END_TEST

TJ_TEST_MAIN("repeat", rnn, bodies, nested, around, results, inlined, outside, counted, bound, extents, threads,
             cancelled, misused, misused_eager, faulty, starved, equal_layers, told)
