// tests/test_warmup.c: plans ahead of runs, histograms of shapes, and their files.
#include "../include/tracejit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../trace/profile.h"
#include "../trace/warmup.h"
#include "tj_test.h"

static trace_context *ctx;
static trace_region *region;

static void no_event(void *user, const trace_event *e) { (void)user, (void)e; }

static void open_all(const trace_region_options *o) {
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = no_event), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "model", o, &region));
}

static void close_all(void) {
    trace_region_release(region);
    trace_context_release(ctx);
    region = NULL;
    ctx = NULL;
}

static trace_stats stats(void) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(region, &s);
    return s;
}

#define RANDOM_MAX 131072
static trace_tensor *random_tensor(const int64_t *dims, size_t rank, uint64_t seed) {
    static float data[RANDOM_MAX];
    int64_t n;
    ck_assert(tj_numel(dims, rank, &n) && n <= RANDOM_MAX);
    for (int64_t i = 0; i < n; i++)
        data[i] = tj_test_uniform(&seed);
    trace_tensor *t = trace_from(ctx, TRACE_F32, data, dims, rank);
    ck_assert_msg(t != NULL, "%s", trace_last_error(ctx));
    return t;
}

// ---- bodies: what is recorded, for shapes that are made from two extents -------------------------------------------

enum { MOST_IN = 4, MOST_OUT = 3 };
struct body {
    const char *name;
    size_t nin, nweights;
    // rank, then extents: a, b are the sizes that vary
    void (*shape)(int64_t a, int64_t b, int64_t in[MOST_IN][1 + TRACE_MAX_RANK]);
    size_t (*record)(trace_tensor **in, trace_tensor **w, trace_tensor **out);
    int64_t weights[MOST_IN][1 + TRACE_MAX_RANK];
    bool breaks;
};
#define SHAPE(i, ...)                                                                                                  \
    do {                                                                                                               \
        const int64_t s_[] = {__VA_ARGS__};                                                                            \
        in[i][0] = (int64_t)TJ_COUNT(s_);                                                                              \
        memcpy(in[i] + 1, s_, sizeof s_);                                                                              \
    } while (0)

static void two_equal(int64_t a, int64_t b, int64_t in[MOST_IN][1 + TRACE_MAX_RANK]) {
    SHAPE(0, a, b);
    SHAPE(1, a, b);
}
static size_t pointwise(trace_tensor **in, trace_tensor **w, trace_tensor **out) {
    (void)w;
    out[0] = trace_mul_f(trace_add(trace_gelu(in[0], TRACE_GELU_NONE), in[1]), 0.5);
    out[1] = trace_softmax(out[0], -1);
    return 2;
}

static void tokens(int64_t a, int64_t b, int64_t in[MOST_IN][1 + TRACE_MAX_RANK]) {
    SHAPE(0, a, b, 24);
    SHAPE(1, a, 1, 1, b); // mask
}
// Self-attention with heads taken apart by reshapes that name every extent.
static size_t attention(trace_tensor **in, trace_tensor **w, trace_tensor **out) {
    int64_t b = trace_size(in[0], 0), s = trace_size(in[0], 1);
    trace_tensor *x = trace_layer_norm(in[0], TRACE_DIMS(24), w[2], TRACE_NONE, 1e-5);
    trace_tensor *qkv = trace_reshape(trace_linear(x, w[0], TRACE_NONE), TRACE_DIMS(b, s, 3, 4, 6)), *p[3];
    for (int i = 0; i < 3; i++)
        p[i] = trace_transpose(trace_select(qkv, 2, i), 1, 2);
    trace_tensor *mask = trace_expand(in[1], TRACE_DIMS(b, 4, s, s));
    trace_tensor *y = trace_scaled_dot_product_attention(p[0], p[1], p[2], mask, false, 0, false);
    y = trace_reshape(trace_transpose(y, 1, 2), TRACE_DIMS(b * s, 24));
    y = trace_reshape(trace_linear(y, w[1], TRACE_NONE), TRACE_DIMS(b, s, 24));
    out[0] = trace_add(y, in[0]);
    out[1] = trace_mean(out[0], TRACE_DIMS(1), false);
    return 2;
}

static void image(int64_t a, int64_t b, int64_t in[MOST_IN][1 + TRACE_MAX_RANK]) { SHAPE(0, a, 3, b, b + 2); }
static size_t convolution(trace_tensor **in, trace_tensor **w, trace_tensor **out) {
    const int64_t two[2] = {2, 2}, one[2] = {1, 1};
    trace_tensor *y = trace_relu(trace_conv2d(in[0], w[0], TRACE_NONE, one, one, one, 1));
    y = trace_max_pool2d(y, two, two, NULL, NULL, false);
    trace_tensor *z = trace_avg_pool2d(y, two, NULL, NULL, true, true, 0);
    out[0] = trace_pad(y, TRACE_DIMS(1, 2, 0, 1), TRACE_PAD_CONSTANT, 0.25);
    out[1] = trace_flatten(z, 1, -1);
    return 2;
}

static void sequence(int64_t a, int64_t b, int64_t in[MOST_IN][1 + TRACE_MAX_RANK]) { SHAPE(0, a, b, 10); }
// Views with lengths, sources and counts that follow the inputs' extents.
static size_t views(trace_tensor **in, trace_tensor **w, trace_tensor **out) {
    int64_t b = trace_size(in[0], 0), s = trace_size(in[0], 1);
    trace_tensor *pos = trace_narrow(w[0], 0, 0, s); // of a table of 96
    trace_tensor *x = trace_add(in[0], pos);
    trace_tensor *shifted = trace_sub(trace_narrow(x, 1, 1, s - 1), trace_narrow(x, 1, 0, s - 1));
    trace_tensor *last = trace_select(x, 1, -1);
    trace_tensor *steps = trace_to(trace_arange(ctx, 0, s, 1, TRACE_I64), TRACE_F32);
    trace_tensor *zeros = trace_zeros(ctx, TRACE_DIMS(b, 1, 10), TRACE_F32);
    trace_tensor *joined = trace_cat(TRACE_ARGS(zeros, shifted), 1);
    out[0] = trace_mul(joined, trace_unsqueeze(steps, -1));
    out[1] = trace_add(last, trace_flip(trace_select(x, 1, 0), TRACE_DIMS(1)));
    out[2] = trace_reshape(x, TRACE_DIMS(b * s * 2, 5));
    return 3;
}

static void matrices(int64_t a, int64_t b, int64_t in[MOST_IN][1 + TRACE_MAX_RANK]) {
    SHAPE(0, 3, a, b);
    SHAPE(1, b, 7);
}
static size_t products(trace_tensor **in, trace_tensor **w, trace_tensor **out) {
    (void)w;
    trace_tensor *y = trace_matmul(in[0], in[1]);
    out[0] = trace_amax(y, TRACE_DIMS(-1), true);
    out[1] = trace_sum(y, TRACE_DIMS(0, 1), false);
    out[2] = trace_diagonal(trace_select(y, 0, 1), 0, 0, 1);
    return 3;
}

static void cache_and_row(int64_t a, int64_t b, int64_t in[MOST_IN][1 + TRACE_MAX_RANK]) {
    SHAPE(0, a, b);
    SHAPE(1, a);
}
// In-place: a computed value and slices of it.
static size_t writes(trace_tensor **in, trace_tensor **w, trace_tensor **out) {
    (void)w;
    trace_tensor *y = trace_clone(in[0]);
    trace_tensor *col = trace_select(y, 1, 0);
    trace_copy_(col, in[1]);
    trace_add_(trace_narrow(y, 1, 1, trace_size(y, 1) - 1), trace_unsqueeze(in[1], 1));
    out[0] = trace_mul_f(y, 2);
    return 1;
}

static const struct body bodies[] = {
    {"pointwise", 2, 0, two_equal, pointwise, {{0}}, false},
    {"attention", 2, 3, tokens, attention, {{2, 72, 24}, {2, 24, 24}, {1, 24}}, false},
    {"convolution", 1, 1, image, convolution, {{4, 5, 3, 3, 3}}, false},
    {"views", 1, 1, sequence, views, {{2, 96, 10}}, false},
    {"products", 2, 0, matrices, products, {{0}}, false},
    {"writes", 2, 0, cache_and_row, writes, {{0}}, false},
};

// One run of the body; outputs are the caller's.
static size_t run(const struct body *q, trace_region *r, trace_tensor **w, int64_t a, int64_t b, uint64_t seed,
                  trace_tensor **out) {
    int64_t shape[MOST_IN][1 + TRACE_MAX_RANK] = {{0}};
    trace_tensor *in[MOST_IN];
    size_t n = 0;
    q->shape(a, b, shape);
    for (size_t i = 0; i < q->nin; i++)
        in[i] = random_tensor(shape[i] + 1, (size_t)shape[i][0], seed + i);
    if (trace_begin(r, in, q->nin))
        n = q->record(in, w, out);
    TJ_ASSERT_OK(trace_end(r, out, n));
    for (size_t i = 0; i < q->nin; i++)
        trace_release(in[i]);
    return n;
}

static void same_values(const char *name, trace_tensor *x, trace_tensor *y) {
    int64_t n = trace_numel(x);
    ck_assert_int_eq(n, trace_numel(y));
    ck_assert_int_eq(trace_rank(x), trace_rank(y));
    float *p = malloc((size_t)n * sizeof *p + 1), *q = malloc((size_t)n * sizeof *q + 1);
    TJ_ASSERT_OK(trace_read(x, p, (size_t)n * sizeof *p));
    TJ_ASSERT_OK(trace_read(y, q, (size_t)n * sizeof *q));
    ck_assert_msg(!memcmp(p, q, (size_t)n * sizeof *p), "%s: values differ", name);
    free(p);
    free(q);
}

// Records once, warms up for other extents, and runs with them: the plan is there, and gives what a region without
// warm-up gives.
START_TEST(shapes_follow) {
    static const int64_t sizes[][2] = {{5, 9}, {3, 12}, {1, 12}, {3, 1}, {8, 64}, {2, 3}};
    for (size_t k = 0; k < TJ_COUNT(bodies); k++) {
        const struct body *q = &bodies[k];
        open_all(NULL);
        trace_region *plain;
        TJ_ASSERT_OK(trace_region_create(ctx, "plain", NULL, &plain));
        trace_tensor *w[MOST_IN] = {NULL}, *out[MOST_OUT], *want[MOST_OUT];
        for (size_t i = 0; i < q->nweights; i++)
            w[i] = random_tensor(q->weights[i] + 1, (size_t)q->weights[i][0], 100 + i);
        size_t n = run(q, region, w, 3, 7, 1, out);
        for (size_t i = 0; i < n; i++)
            trace_release(out[i]);
        for (size_t z = 0; z < TJ_COUNT(sizes); z++) {
            int64_t a = sizes[z][0], b = sizes[z][1];
            if (b < 4 && q->record == convolution)
                continue; // the second window would not fit
            int64_t shape[MOST_IN][1 + TRACE_MAX_RANK] = {{0}};
            trace_shape s[MOST_IN] = {{0}};
            q->shape(a, b, shape);
            for (size_t i = 0; i < q->nin; i++) {
                s[i].input = (int)i;
                s[i].rank = (int)shape[i][0];
                memcpy(s[i].dims, shape[i] + 1, (size_t)shape[i][0] * sizeof *s[i].dims);
            }
            trace_stats s0 = stats();
            tj_status st = trace_warmup(region, s, q->nin);
            ck_assert_msg(!st, "%s for %d, %d: %s", q->name, (int)a, (int)b, trace_last_error(ctx));
            trace_stats s1 = stats();
            ck_assert_uint_eq(s1.runs, s0.runs);
            ck_assert_uint_eq(s1.misses, s0.misses);
            ck_assert_uint_eq(s1.launches, s0.launches);
            (void)run(q, region, w, a, b, 7 + z, out);
            trace_stats s2 = stats();
            // Extents of 1 can change which ops a body records: those are tried, and may be compiled again.
            if (a != 1 && b != 1)
                ck_assert_msg(s2.misses == s1.misses && s2.graphs == s1.graphs, "%s for %d, %d was not warm", q->name,
                              (int)a, (int)b);
            (void)run(q, plain, w, a, b, 7 + z, want);
            for (size_t i = 0; i < n; i++) {
                same_values(q->name, out[i], want[i]);
                trace_release(out[i]);
                trace_release(want[i]);
            }
        }
        for (size_t i = 0; i < q->nweights; i++)
            trace_release(w[i]);
        trace_region_release(plain);
        close_all();
    }
}
END_TEST

// Inferring the recorded shapes again gives the recorded trace, byte for byte.
START_TEST(same_shapes) {
    for (size_t k = 0; k < TJ_COUNT(bodies); k++) {
        const struct body *q = &bodies[k];
        open_all(NULL);
        trace_tensor *w[MOST_IN] = {NULL}, *out[MOST_OUT];
        for (size_t i = 0; i < q->nweights; i++)
            w[i] = random_tensor(q->weights[i] + 1, (size_t)q->weights[i][0], 100 + i);
        size_t n = run(q, region, w, 3, 7, 1, out);
        const struct tj_trace *t = &region->cache.ring[0]->trace;
        int64_t dims[16][TJ_MAX_RANK];
        ck_assert_uint_le(t->nleaves, TJ_COUNT(dims));
        for (uint32_t i = 0; i < t->nleaves; i++)
            memcpy(dims[i], tj_shape_dims(t, t->leafkeys[i].shape), t->leafkeys[i].rank * sizeof **dims);
        struct tj_trace again;
        tj_ref *at = malloc(t->nnodes * sizeof *at);
        tj_trace_init(&again);
        TJ_ASSERT_OK(tj_trace_again(t, dims[0], NULL, 0, &again, at));
        ck_assert_msg(tj_trace_equal(t, &again), "%s: another trace", q->name);
        tj_trace_free(&again);
        free(at);
        for (size_t i = 0; i < n; i++)
            trace_release(out[i]);
        for (size_t i = 0; i < q->nweights; i++)
            trace_release(w[i]);
        close_all();
    }
}
END_TEST

// ---- random programs -----------------------------------------------------------------------------------------------

// Ops picked by a seed, with arguments that follow the extents: the same program whatever the extents are, unless two
// of them are equal by chance.
enum { VALUES = 24 };

static trace_tensor *random_op(uint64_t what, uint64_t more, trace_tensor *first, trace_tensor *x, trace_tensor **v,
                               size_t n) {
    int rank = trace_rank(x);
    int64_t d = rank ? (int64_t)(more % (uint64_t)rank) : 0, size = rank ? trace_size(x, d) : 1;
    int64_t dims[TRACE_MAX_RANK], to[TRACE_MAX_RANK + 2];
    for (int i = 0; i < rank; i++)
        dims[i] = trace_size(x, i);
    memcpy(to, dims, (size_t)rank * sizeof *to);
    if (!rank)
        return trace_tanh(x);
    switch (what) {
    case 0: return trace_mul(x, trace_mean(x, TRACE_DIMS(d), true));
    case 1: // with another value of this shape
        for (size_t i = 0; i < n; i++) {
            bool same = trace_rank(v[i]) == rank && v[i] != x;
            for (int k = 0; same && k < rank; k++)
                same = trace_size(v[i], k) == dims[k];
            if (same)
                return trace_add(v[i], x);
        }
        return trace_mul_f(x, 0.5);
    case 2: return trace_sum(x, TRACE_DIMS(d), more & 256);
    case 3: return trace_softmax(x, d);
    case 4: return rank > 1 ? trace_transpose(x, d, (d + 1) % rank) : NULL;
    case 5: // neighbours become one dim
        if (d + 1 == rank)
            return NULL;
        to[d] *= dims[d + 1];
        memmove(to + d + 1, dims + d + 2, (size_t)(rank - d - 2) * sizeof *to);
        return trace_reshape(x, to, (size_t)rank - 1);
    case 6: // a fixed extent is taken apart
        if (size != 12 || rank > 4)
            return NULL;
        memcpy(to + d + 2, dims + d + 1, (size_t)(rank - d - 1) * sizeof *to);
        to[d] = 3;
        to[d + 1] = 4;
        return trace_reshape(x, to, (size_t)rank + 1);
    case 7: return rank < 4 ? trace_unsqueeze(x, d) : NULL;
    case 8: return trace_cat(TRACE_ARGS(x, trace_neg(x)), d);
    case 9: return size > 1 ? trace_narrow(x, d, 1, size - 1) : NULL;
    case 10: return size > 1 ? trace_narrow(x, d, 0, size - 1) : NULL;
    case 11: return trace_select(x, d, more & 256 ? -1 : 0);
    case 12: return trace_add(x, trace_to(trace_arange(ctx, 0, dims[rank - 1], 1, TRACE_I64), TRACE_F32));
    case 13: // spread over a leading dim with the extent of a declared input
        to[0] = trace_size(first, 0);
        memcpy(to + 1, dims, (size_t)rank * sizeof *to);
        return rank < 4 ? trace_expand(x, to, (size_t)rank + 1) : NULL;
    case 14: return rank > 1 ? trace_matmul(x, trace_transpose(x, -1, -2)) : NULL;
    case 15: return trace_pad(x, TRACE_DIMS(1, 2), TRACE_PAD_CONSTANT, 0);
    case 16: return trace_flip(x, TRACE_DIMS(d));
    case 17: return rank == 2 ? trace_diagonal(x, 0, 0, 1) : NULL;
    case 18: return size > 1 && rank < 5 ? trace_unfold(x, d, 2, 1) : NULL;
    case 19: return trace_maximum(x, trace_zeros(ctx, dims, (size_t)rank, TRACE_F32));
    default: { // written in place
        trace_tensor *y = trace_clone(x);
        if (size > 1)
            (void)trace_copy_(trace_narrow(y, d, 1, 1), trace_narrow(x, d, 0, 1));
        return y;
    }
    }
}

static size_t random_program(uint64_t seed, trace_tensor **in, trace_tensor **v) {
    size_t n = 0;
    v[n++] = in[0];
    v[n++] = in[1];
    while (n < VALUES) {
        trace_tensor *x = v[n - 1 - tj_test_random(&seed) % (n < 6 ? n : 6)], *y = NULL;
        uint64_t what = tj_test_random(&seed) % 21, more = tj_test_random(&seed);
        y = trace_rank(x) > 4 ? trace_sum(x, TRACE_DIMS(0), false) : random_op(what, more, in[0], x, v, n);
        v[n++] = y ? y : trace_relu(x);
    }
    return n;
}

// Records without running or compiling; the trace is the region's.
static const struct tj_trace *record_random(uint64_t seed, int64_t a, int64_t b, trace_region **r) {
    trace_tensor *v[VALUES], *in[2];
    TJ_ASSERT_OK(trace_region_create(ctx, "random", NULL, r));
    in[0] = trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(a, b, 12));
    in[1] = trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(b, 12));
    size_t n = 2;
    if (trace_begin(*r, in, 2))
        n = random_program(seed, in, v);
    TJ_ASSERT_OK(trace_end(*r, v + 2, n - 2));
    for (size_t i = 2; i < n; i++)
        trace_release(v[i]);
    trace_release(in[0]);
    trace_release(in[1]);
    ck_assert_uint_eq((*r)->cache.n, 1);
    return &(*r)->cache.ring[0]->trace;
}

// What is inferred for other extents is what is recorded with them, byte for byte.
START_TEST(random_programs) {
    ck_assert_int_eq(setenv("TRACEJIT_NO", "jit", 1), 0);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = no_event), &ctx));
    static const int64_t to[][2] = {{8, 21}, {17, 29}, {22, 26}, {31, 37}};
    size_t same = 0, all = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        trace_region *r, *other;
        const struct tj_trace *t = record_random(seed, 7, 19, &r);
        for (size_t k = 0; k < TJ_COUNT(to); k++) {
            int64_t a = to[k][0], b = to[k][1], dims[2][TJ_MAX_RANK] = {{a, b, 12}, {b, 12}};
            const struct tj_extent map[] = {{7, a}, {19, b}, {12, 12}, {19, b}, {12, 12}};
            const struct tj_trace *want = record_random(seed, a, b, &other);
            struct tj_trace again;
            char err[300];
            tj_ref *at = malloc(t->nnodes * sizeof *at);
            tj_trace_init(&again);
            tj_status st = tj_trace_again(t, dims[0], map, TJ_COUNT(map), &again, at);
            ck_assert_msg(st || tj_trace_verify(&again, err, sizeof err), "seed %d: %s", (int)seed, err);
            bool alike = !st && tj_trace_equal(&again, want);
            all++;
            same += alike;
            if (!alike && getenv("TJ_TEST_VERBOSE"))
                fprintf(stderr, "seed %d, %d, %d: %s\n", (int)seed, (int)a, (int)b, st ? tj_last_error() : "differs");
            tj_trace_free(&again);
            free(at);
            trace_region_release(other);
        }
        trace_region_release(r);
    }
    // Where an extent comes to be one that the program looks at (1, 12), or equals another by chance, it isn't.
    ck_assert_msg(same * 100 >= all * 99, "%zu of %zu are what is recorded", same, all);
    trace_context_release(ctx);
    ck_assert_int_eq(unsetenv("TRACEJIT_NO"), 0);
}
END_TEST

// ---- regions with breaks -------------------------------------------------------------------------------------------

static double breaking(trace_region *r, int64_t rows, int64_t cols, trace_tensor *w, trace_tensor **y) {
    trace_tensor *x = random_tensor((const int64_t[]){rows, cols}, 2, (uint64_t)(rows * 1000 + cols));
    double top = 0, low = 0;
    *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x))) {
        trace_tensor *h = trace_relu(trace_linear(x, w, TRACE_NONE));
        trace_tensor *row = trace_sum(h, TRACE_DIMS(1), false);
        TJ_ASSERT_OK(trace_item_f64(trace_amax(row, TRACE_SCALAR, false), &top));
        trace_tensor *z = trace_mul_f(h, 1 / (top + 1));
        TJ_ASSERT_OK(trace_item_f64(trace_select(trace_select(trace_sub(z, h), 0, 0), 0, 0), &low));
        *y = trace_add(trace_mul(z, trace_unsqueeze(row, 1)), h);
    }
    TJ_ASSERT_OK(trace_end(r, y, 1));
    trace_release(x);
    return top + low;
}

START_TEST(breaks_follow) {
    open_all(NULL);
    trace_region *plain;
    TJ_ASSERT_OK(trace_region_create(ctx, "plain", NULL, &plain));
    trace_tensor *w = random_tensor((const int64_t[]){16, 6}, 2, 3), *y, *z;
    (void)breaking(region, 4, 6, w, &y);
    trace_release(y);
    (void)breaking(region, 4, 6, w, &y);
    trace_release(y);
    trace_shape s = {0, 2, {9, 6}};
    TJ_ASSERT_OK(trace_warmup(region, &s, 1));
    trace_stats s0 = stats();
    double got = breaking(region, 9, 6, w, &y), want = breaking(plain, 9, 6, w, &z);
    trace_stats s1 = stats();
    ck_assert_uint_eq(s1.breaks - s0.breaks, 2);
    ck_assert_uint_eq(s1.misses, s0.misses);
    ck_assert_uint_eq(s1.graphs, s0.graphs);
    ck_assert(got == want);
    same_values("breaks", y, z);
    trace_release(y);
    trace_release(z);
    trace_release(w);
    trace_region_release(plain);
    close_all();
}
END_TEST

// A loop of breaks whose turns share a plan.
static void looping(trace_region *r, int64_t n, int turns, trace_tensor **y) {
    trace_tensor *x = random_tensor(&n, 1, (uint64_t)n);
    *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x))) {
        trace_tensor *v = x;
        for (int i = 0; i < turns; i++) {
            double sum;
            v = trace_mul_f(trace_add_f(v, 0.5), 0.75);
            TJ_ASSERT_OK(trace_item_f64(trace_sum(v, TRACE_SCALAR, false), &sum));
        }
        *y = trace_tanh(v);
    }
    TJ_ASSERT_OK(trace_end(r, y, 1));
    trace_release(x);
}

START_TEST(loops_follow) {
    open_all(NULL);
    trace_tensor *y;
    for (int i = 0; i < 2; i++) {
        looping(region, 10, 5, &y);
        trace_release(y);
    }
    trace_shape s = {0, 1, {33}};
    TJ_ASSERT_OK(trace_warmup(region, &s, 1));
    trace_stats s0 = stats();
    looping(region, 33, 5, &y);
    trace_release(y);
    trace_stats s1 = stats();
    ck_assert_uint_eq(s1.misses, s0.misses);
    ck_assert_uint_eq(s1.breaks - s0.breaks, 5);
    close_all();
}
END_TEST

// ---- bad input -----------------------------------------------------------------------------------------------------

static void fails(const trace_shape *s, size_t n, tj_status want, const char *words) {
    trace_stats s0 = stats();
    TJ_ASSERT_STATUS(trace_warmup(region, s, n), want);
    ck_assert_msg(strstr(trace_last_error(ctx), words) != NULL, "no '%s' in: %s", words, trace_last_error(ctx));
    trace_stats s1 = stats();
    ck_assert_uint_eq(s0.graphs, s1.graphs); // nothing partial
}

START_TEST(bad_shapes) {
    open_all(NULL);
    TJ_ASSERT_OK(trace_region_dynamic(region, 0, 0, 1, 100));
    trace_shape s = {0, 2, {4, 6}};
    TJ_ASSERT_STATUS(trace_warmup(NULL, &s, 1), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_warmup(region, NULL, 1), TRACE_ERR_ARGUMENT);
    fails(&s, 1, TRACE_ERR_STATE, "trace_placeholder");
    trace_tensor *w = random_tensor((const int64_t[]){16, 6}, 2, 3);
    trace_tensor *x = random_tensor((const int64_t[]){4, 6}, 2, 1), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x, w, x)))
        y = trace_linear(x, w, TRACE_NONE);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    trace_release(y);
    TJ_ASSERT_OK(trace_warmup(region, NULL, 0)); // the recorded shapes
    fails(&(trace_shape){3, 2, {4, 6}}, 1, TRACE_ERR_ARGUMENT, "input 3 is none");
    fails(&(trace_shape){-1, 2, {4, 6}}, 1, TRACE_ERR_ARGUMENT, "input -1 is none");
    fails(&(trace_shape){2, 2, {4, 6}}, 1, TRACE_ERR_ARGUMENT, "same tensor as an earlier input");
    fails((const trace_shape[]){{0, 2, {5, 6}}, {0, 2, {5, 6}}}, 2, TRACE_ERR_ARGUMENT, "named twice");
    fails(&(trace_shape){0, 3, {4, 6, 1}}, 1, TRACE_ERR_SHAPE, "recorded as [4, 6]");
    fails(&(trace_shape){0, -1, {4, 6}}, 1, TRACE_ERR_SHAPE, "rank -1");
    fails(&(trace_shape){0, 2, {-4, 6}}, 1, TRACE_ERR_SHAPE, "extent -4 of dim 0 is negative");
    fails(&(trace_shape){0, 2, {INT64_MAX, 6}}, 1, TRACE_ERR_SHAPE, "overflows");
    fails(&(trace_shape){0, 2, {101, 6}}, 1, TRACE_ERR_SHAPE, "outside the declared bounds 1 to 100");
    fails(&(trace_shape){0, 2, {0, 6}}, 1, TRACE_ERR_SHAPE, "outside the declared bounds");
    fails(&(trace_shape){0, 2, {4, 7}}, 1, TRACE_ERR_SHAPE, "linear (");
    fails(&(trace_shape){0, 2, {4, 7}}, 1, TRACE_ERR_SHAPE, "[4, 7] and [16, 6]; recorded: [4, 6] and [16, 6]");
    fails(&(trace_shape){0, 2, {4, 7}}, 1, TRACE_ERR_SHAPE, "test_warmup.c:");
    TJ_ASSERT_OK(trace_warmup(region, (const trace_shape[]){{0, 2, {4, 7}}, {1, 2, {16, 7}}}, 2));
    trace_release(x);
    trace_release(w);
    TJ_ASSERT_OK(trace_context_shutdown(ctx, -1));
    fails(&s, 1, TRACE_ERR_SHUTDOWN, "shut down");
    close_all();
    open_all(TRACE_REGION_OPTIONS(.mode = TRACE_MODE_EAGER));
    fails(&s, 1, TRACE_ERR_STATE, "one by one");
    close_all();
}
END_TEST

// A text of the message's size that ops far from the inputs give.
START_TEST(far_misfit) {
    open_all(NULL);
    trace_tensor *x = random_tensor((const int64_t[]){4, 6}, 2, 1), *y = NULL;
    trace_tensor *w = random_tensor((const int64_t[]){24}, 1, 2);
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_add(trace_reshape(trace_relu(x), TRACE_DIMS(24)), w);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    fails(&(trace_shape){0, 2, {5, 6}}, 1, TRACE_ERR_SHAPE, "[30] and [24]; recorded: [24] and [24]");
    fails(&(trace_shape){0, 2, {5, 6}}, 1, TRACE_ERR_SHAPE, "add (");
    TJ_ASSERT_OK(trace_warmup(region, &(trace_shape){0, 2, {8, 3}}, 1));
    trace_release(x);
    trace_release(y);
    trace_release(w);
    close_all();
}
END_TEST

// Placeholders make the first recording; nothing is run by it, nor by the warm-up.
START_TEST(after_placeholders) {
    open_all(NULL);
    trace_tensor *state = random_tensor((const int64_t[]){6}, 1, 1), *y = NULL;
    float before[6], after[6];
    TJ_ASSERT_OK(trace_read(state, before, sizeof before));
    trace_tensor *p = trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(4, 6));
    if (trace_begin(region, TRACE_ARGS(p))) {
        trace_add_(state, trace_sum(p, TRACE_DIMS(0), false));
        y = trace_mul(p, state);
    }
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    trace_release(y);
    trace_release(p);
    trace_shape s = {0, 2, {11, 6}};
    TJ_ASSERT_OK(trace_warmup(region, &s, 1));
    TJ_ASSERT_OK(trace_read(state, after, sizeof after));
    TJ_ASSERT_BITS(after, before, sizeof before);
    trace_stats s0 = stats();
    ck_assert_uint_eq(s0.launches, 0);
    ck_assert_uint_eq(s0.graphs, 2);
    float data[66] = {0}; // wrapped, as a placeholder stands for memory of the host
    trace_tensor *x = trace_wrap(ctx, TRACE_F32, data, TRACE_DIMS(11, 6));
    if (trace_begin(region, TRACE_ARGS(x))) {
        trace_add_(state, trace_sum(x, TRACE_DIMS(0), false));
        y = trace_mul(x, state);
    }
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert_uint_eq(stats().misses, s0.misses);
    struct tj_profile_view v;
    ck_assert(tj_profile_read(region, &v));
    ck_assert_uint_eq(v.total, 1); // runs over placeholders don't count
    tj_profile_view_free(&v);
    trace_release(x);
    trace_release(y);
    trace_release(state);
    close_all();
}
END_TEST

START_TEST(in_background) {
    open_all(TRACE_REGION_OPTIONS(.background = true));
    const struct body *q = &bodies[0];
    trace_tensor *out[MOST_OUT];
    (void)run(q, region, NULL, 3, 7, 1, out);
    trace_release(out[0]);
    trace_release(out[1]);
    TJ_ASSERT_OK(trace_wait_ready(region, -1));
    trace_shape s[2] = {{0, 2, {5, 9}}, {1, 2, {5, 9}}};
    TJ_ASSERT_OK(trace_warmup(region, s, 2));
    TJ_ASSERT_OK(trace_wait_ready(region, -1));
    trace_stats s0 = stats();
    ck_assert_uint_eq(s0.graphs, 2);
    (void)run(q, region, NULL, 5, 9, 1, out);
    trace_release(out[0]);
    trace_release(out[1]);
    ck_assert_uint_eq(stats().misses, s0.misses);
    ck_assert_uint_eq(stats().graphs, 2);
    close_all();
}
END_TEST

// The queue of a background region goes with its context.
START_TEST(background_shutdown) {
    open_all(TRACE_REGION_OPTIONS(.background = true));
    const struct body *q = &bodies[1];
    trace_tensor *out[MOST_OUT], *w[MOST_IN] = {NULL};
    for (size_t i = 0; i < q->nweights; i++)
        w[i] = random_tensor(q->weights[i] + 1, (size_t)q->weights[i][0], 100 + i);
    (void)run(q, region, w, 3, 7, 1, out);
    for (int64_t a = 1; a < 12; a++) {
        trace_shape s[2] = {{0, 3, {a, 9, 24}}, {1, 4, {a, 1, 1, 9}}};
        TJ_ASSERT_OK(trace_warmup(region, s, 2));
    }
    TJ_ASSERT_OK(trace_context_shutdown(ctx, -1));
    trace_shape s = {0, 3, {77, 7, 24}};
    TJ_ASSERT_STATUS(trace_warmup(region, &s, 1), TRACE_ERR_SHUTDOWN);
    for (size_t i = 0; i < q->nweights; i++)
        trace_release(w[i]);
    trace_release(out[0]);
    trace_release(out[1]);
    close_all();
}
END_TEST

// A child of fork counts on and warms up.
START_TEST(in_a_child) {
    open_all(NULL);
    float data[12] = {0};
    for (int i = 0; i < 3; i++) {
        trace_tensor *x = trace_from(ctx, TRACE_F32, data, TRACE_DIMS(2 + i, 3)), *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_relu(x);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        trace_release(x);
        trace_release(y);
    }
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        trace_shape s = {0, 2, {9, 3}};
        struct tj_profile_view v;
        bool ok = trace_warmup(region, &s, 1) == TRACE_OK && tj_profile_read(region, &v) && v.total == 3;
        _exit(ok ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close_all();
}
END_TEST

// ---- counting shapes -----------------------------------------------------------------------------------------------

static void run_shape(trace_region *r, int64_t a, int64_t b) {
    trace_tensor *x = random_tensor((const int64_t[]){a, b}, 2, 1), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x)))
        y = trace_relu(x);
    TJ_ASSERT_OK(trace_end(r, &y, 1));
    trace_release(x);
    trace_release(y);
}

static uint64_t count_of(const struct tj_profile_view *v, int64_t a, int64_t b) {
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->rows[i].inputs[0].dims[0] == a && v->rows[i].inputs[0].dims[1] == b)
            return v->rows[i].count;
    }
    return 0;
}

START_TEST(histogram) {
    open_all(NULL);
    for (int i = 0; i < 30; i++)
        run_shape(region, 2, 5);
    for (int i = 0; i < 20; i++)
        run_shape(region, 3 + i % 2, 5);
    struct tj_profile_view v;
    ck_assert(tj_profile_read(region, &v));
    ck_assert_uint_eq(v.n, 3);
    ck_assert_uint_eq(v.total, 50);
    ck_assert_uint_eq(v.other, 0);
    ck_assert_uint_eq(v.rows[0].count, 30);
    ck_assert_uint_eq(v.rows[0].ninputs, 1);
    ck_assert_int_eq(v.rows[0].inputs[0].dims[0], 2);
    ck_assert_uint_eq(count_of(&v, 4, 5), 10);
    struct tj_profile_value *values;
    ck_assert_int_eq(tj_profile_values(&v, 0, 0, &values), 3);
    ck_assert_int_eq(values[1].value, 3);
    ck_assert_uint_eq(values[1].count, 10);
    tj_free(values);
    ck_assert_int_eq(tj_profile_values(&v, 0, 1, &values), 1);
    ck_assert_uint_eq(values[0].count, 50);
    tj_free(values);
    ck_assert_int_eq(tj_profile_values(&v, 1, 0, &values), 0);
    tj_free(values);
    tj_profile_view_free(&v);
    close_all();
}
END_TEST

// More shapes than rows: the frequent ones stay, no run is lost.
START_TEST(histogram_is_bounded) {
    open_all(NULL);
    uint64_t seed = 5;
    for (int i = 0; i < 1500; i++) {
        run_shape(region, 7, 7);
        run_shape(region, 1 + (int64_t)(tj_test_random(&seed) % 40), 1 + (int64_t)(tj_test_random(&seed) % 40));
    }
    struct tj_profile_view v;
    ck_assert(tj_profile_read(region, &v));
    ck_assert_uint_eq(v.n, TJ_PROFILE_ROWS);
    ck_assert_uint_eq(v.total, 3000);
    ck_assert_uint_gt(v.other, 0);
    ck_assert_uint_ge(count_of(&v, 7, 7), 1500);
    ck_assert_int_eq(v.rows[0].inputs[0].dims[0], 7);
    tj_profile_view_free(&v);
    close_all();
}
END_TEST

// Replays count like runs that record, whatever shapes their plan was made from.
START_TEST(replays_count) {
    open_all(TRACE_REGION_OPTIONS(.mode = TRACE_MODE_REPLAY));
    struct tj_profile_view v;
    for (int64_t n = 4; n < 7; n++) {
        trace_tensor *x = random_tensor((const int64_t[]){n, 4}, 2, 1);
        for (int i = 0; i < 10; i++) {
            trace_tensor *y = NULL;
            if (trace_begin(region, TRACE_ARGS(x)))
                y = trace_relu(x);
            TJ_ASSERT_OK(trace_end(region, &y, 1));
            trace_release(y);
        }
        trace_release(x);
    }
    ck_assert_uint_eq(stats().replays, 24);
    ck_assert(tj_profile_read(region, &v));
    ck_assert_uint_eq(v.n, 3);
    for (int64_t n = 4; n < 7; n++)
        ck_assert_uint_eq(count_of(&v, n, 4), 10);
    tj_profile_view_free(&v);
    close_all();
}
END_TEST

struct worker {
    pthread_t thread;
    int number;
    atomic_bool *stop;
};

static void *work(void *arg) {
    struct worker *w = arg;
    float data[64] = {0};
    for (int i = 0; i < 200; i++) {
        int64_t dims[2] = {1 + w->number % 4, 1 + i / 50};
        trace_tensor *x = trace_from(ctx, TRACE_F32, data, dims, 2), *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_relu(x);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        trace_release(x);
        trace_release(y);
    }
    return NULL;
}

static void *warmer(void *arg) {
    struct worker *w = arg;
    uint64_t seed = (uint64_t)w->number;
    while (!atomic_load(w->stop)) {
        trace_shape s = {0, 2, {1 + (int64_t)(tj_test_random(&seed) % 6), 1 + (int64_t)(tj_test_random(&seed) % 6)}};
        TJ_ASSERT_OK(trace_warmup(region, &s, 1));
        struct tj_profile_view v;
        ck_assert(tj_profile_read(region, &v));
        ck_assert_uint_ge(v.total, 1);
        tj_profile_view_free(&v);
    }
    return NULL;
}

// Runs, warm-ups and readers at once: nothing is lost.
START_TEST(threads) {
    open_all(NULL);
    run_shape(region, 2, 2);
    atomic_bool stop = false;
    struct worker w[8], more[2];
    for (int i = 0; i < 2; i++) {
        more[i] = (struct worker){.number = i, .stop = &stop};
        ck_assert_int_eq(pthread_create(&more[i].thread, NULL, warmer, &more[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        w[i] = (struct worker){.number = i, .stop = &stop};
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(w[i].thread, NULL);
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(more[i].thread, NULL);
    struct tj_profile_view v;
    ck_assert(tj_profile_read(region, &v));
    ck_assert_uint_eq(v.total, 1601);
    ck_assert_uint_eq(count_of(&v, 3, 4), 100);
    tj_profile_view_free(&v);
    ck_assert_uint_le(stats().graphs, 37); // each shape's once
    close_all();
}
END_TEST

// ---- files ---------------------------------------------------------------------------------------------------------

static char dir[] = "/tmp/tj-profile-XXXXXX", path[64];

static void temp_open(void) {
    memcpy(dir + sizeof dir - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/profile", dir);
}
static void temp_close(void) {
    unlink(path);
    ck_assert_int_eq(rmdir(dir), 0); // nothing else was left there
}

static void put(const char *text) {
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

static char *get(void) {
    static char text[65536];
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return text;
}

START_TEST(save_and_load) {
    temp_open();
    open_all(NULL);
    for (int i = 0; i < 6; i++)
        run_shape(region, 2 + i / 2, 5);
    TJ_ASSERT_OK(trace_profile_save(region, path));
    ck_assert_str_eq(get(), "tracejit-profile 1\nregion \"model\"\ncount 2 0:f32[2,5]\ncount 2 0:f32[3,5]\n"
                            "count 2 0:f32[4,5]\nother 0\nend 3\n");
    close_all();
    // Loaded before the first run: the plans are made at its end.
    open_all(TRACE_REGION_OPTIONS(.dynamic = TRACE_DYNAMIC_OFF));
    TJ_ASSERT_OK(trace_profile_load(region, path));
    ck_assert_uint_eq(stats().graphs, 0);
    run_shape(region, 9, 5);
    trace_stats s0 = stats();
    ck_assert_uint_eq(s0.graphs, 4);
    ck_assert_uint_eq(s0.misses, 1);
    for (int i = 2; i < 5; i++)
        run_shape(region, i, 5);
    ck_assert_uint_eq(stats().misses, 1);
    // Counts were added, and are saved with the rest.
    TJ_ASSERT_OK(trace_profile_save(region, path));
    ck_assert_ptr_nonnull(strstr(get(), "count 3 0:f32[3,5]\n"));
    ck_assert_ptr_nonnull(strstr(get(), "count 1 0:f32[9,5]\n"));
    ck_assert_ptr_nonnull(strstr(get(), "end 4\n"));
    close_all();
    // Loaded when there is a recording: at once.
    open_all(TRACE_REGION_OPTIONS(.max_graphs = 4, .dynamic = TRACE_DYNAMIC_OFF));
    run_shape(region, 100, 5);
    TJ_ASSERT_OK(trace_profile_load(region, path));
    ck_assert_uint_eq(stats().graphs, 3); // half of max_graphs
    ck_assert_uint_eq(stats().misses, 1);
    close_all();
    // With symbols, one plan more serves them all.
    open_all(NULL);
    TJ_ASSERT_OK(trace_profile_load(region, path));
    run_shape(region, 9, 5);
    ck_assert_uint_eq(stats().graphs, 2); // without a compiler there are none
    close_all();
    // Of another model: counted, but nothing can be made of it.
    put("tracejit-profile 1\nregion \"model\"\ncount 7 0:f32[2,5] 1:i64[8]\ncount 1 0:f64[2,5]\nother 3\nend 2\n");
    open_all(NULL);
    run_shape(region, 100, 5);
    TJ_ASSERT_OK(trace_profile_load(region, path));
    ck_assert_uint_eq(stats().graphs, 1);
    struct tj_profile_view v;
    ck_assert(tj_profile_read(region, &v));
    ck_assert_uint_eq(v.total, 12);
    ck_assert_uint_eq(v.rows[0].ninputs, 2);
    tj_profile_view_free(&v);
    close_all();
    temp_close();
}
END_TEST

START_TEST(names_in_files) {
    temp_open();
    TJ_ASSERT_OK(trace_context_create(NULL, &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "a \"b\"\\\n\xC3\xA4", NULL, &region));
    run_shape(region, 2, 2);
    TJ_ASSERT_OK(trace_profile_save(region, path));
    ck_assert_ptr_nonnull(strstr(get(), "region \"a \\x22b\\x22\\x5C\\x0A\\xC3\\xA4\"\n"));
    TJ_ASSERT_OK(trace_profile_load(region, path));
    close_all();
    open_all(NULL);
    TJ_ASSERT_STATUS(trace_profile_load(region, path), TRACE_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "line 2: it is of another region"));
    close_all();
    temp_close();
}
END_TEST

#define GOOD "tracejit-profile 1\nregion \"model\"\ncount 2 0:f32[2,5] 3:i64[]\ncount 1\nother 4\nend 2\n"

// Files that aren't as they should be: a status, the line, and nothing taken over.
START_TEST(bad_files) {
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "line 1"},
        {"tracejit", "line 1: it is no profile"},
        {"tracejit-profile 2\n", "line 1: a version other than 1"},
        {"tracejit-profile 99999999999999999999\n", "line 1: a number is too large"},
        {"tracejit-profile 1\nregion \"model", "line 2"},
        {"tracejit-profile 1\nregion \"model\\q\"\n", "line 2: an escape"},
        {"tracejit-profile 1\nregion \"models\"\n", "line 2: it is of another region"},
        {"tracejit-profile 1\nregion \"model\\x00\"\n", "line 2: it is of another region"},
        {"tracejit-profile 1\nregion \"model\"\ncount 0 0:f32[1]\nother 0\nend 1\n", "line 3: a count of zero"},
        {"tracejit-profile 1\nregion \"model\"\ncount -1 0:f32[1]\n", "line 3: a number is missing"},
        {"tracejit-profile 1\nregion \"model\"\ncount 18446744073709551616 0:f32[1]\n",
         "line 3: a number is too large"},
        {"tracejit-profile 1\nregion \"model\"\ncount 1 256:f32[1]\n", "line 3: a number is too large"},
        {"tracejit-profile 1\nregion \"model\"\ncount 1 0:f31[1]\n", "line 3: a dtype that there is none of"},
        {"tracejit-profile 1\nregion \"model\"\ncount 1 0:f32[1,2,3,4,5,6,7,8,9]\n", "line 3: more than 8 dims"},
        {"tracejit-profile 1\nregion \"model\"\ncount 1 0:f32[9223372036854775808]\n", "line 3: a number is too large"},
        {"tracejit-profile 1\nregion \"model\"\ncount 1 0:f32[4611686018427387904,4]\n",
         "line 3: the size of a shape overflows"},
        {"tracejit-profile 1\nregion \"model\"\ncount 1 1:f32[1] 0:f32[1]\n", "line 3: the inputs do not ascend"},
        {"tracejit-profile 1\nregion \"model\"\ncount 1 0:f32[1] x\n", "line 3: a number is missing"},
        {"tracejit-profile 1\nregion \"model\"\ncount 1 0:f32[1]x\n", "line 3: more on the line"},
        {"tracejit-profile 1\nregion \"model\"\ncount 1 0:f32[01]\n", "line 3"},
        {GOOD "more", "line 7: there is more behind the end"},
        {"tracejit-profile 1\nregion \"model\"\nother 4\nend 1\n", "lines are missing"},
    };
    temp_open();
    open_all(NULL);
    run_shape(region, 3, 3);
    struct tj_profile_view v;
    for (size_t i = 0; i < TJ_COUNT(bad); i++) {
        put(bad[i].text);
        tj_status st = trace_profile_load(region, path);
        ck_assert_msg(st == TRACE_ERR_ARGUMENT, "%zu: %s", i, tj_status_name(st));
        ck_assert_msg(strstr(trace_last_error(ctx), bad[i].words) != NULL, "%zu: %s", i, trace_last_error(ctx));
    }
    // Cut anywhere, or with any byte changed to another.
    char text[] = GOOD;
    for (size_t n = 0; n + 1 < sizeof text; n++) {
        char c = text[n];
        text[n] = '\0';
        put(text);
        TJ_ASSERT_STATUS(trace_profile_load(region, path), TRACE_ERR_ARGUMENT);
        text[n] = c;
        if (c < '0' || c > '9') { // another digit may be another count
            text[n] = '\x01';
            put(text);
            TJ_ASSERT_STATUS(trace_profile_load(region, path), TRACE_ERR_ARGUMENT);
            text[n] = c;
        }
    }
    ck_assert(tj_profile_read(region, &v));
    ck_assert_uint_eq(v.total, 1);
    tj_profile_view_free(&v);
    put(GOOD);
    TJ_ASSERT_OK(trace_profile_load(region, path));
    ck_assert(tj_profile_read(region, &v));
    ck_assert_uint_eq(v.total, 8);
    tj_profile_view_free(&v);
    TJ_ASSERT_STATUS(trace_profile_load(region, dir), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_profile_load(region, "/nonexistent/x"), TRACE_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "No such file"));
    TJ_ASSERT_STATUS(trace_profile_load(region, NULL), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_profile_load(NULL, path), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_profile_save(region, "/nonexistent/x"), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_profile_save(region, dir), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_profile_save(NULL, path), TRACE_ERR_ARGUMENT);
    FILE *f = fopen(path, "w"); // far too large
    ck_assert_int_eq(fseek(f, 5 << 20, SEEK_SET), 0);
    fputc('x', f);
    fclose(f);
    TJ_ASSERT_STATUS(trace_profile_load(region, path), TRACE_ERR_ARGUMENT);
    close_all();
    char temp[80];
    snprintf(temp, sizeof temp, "%s.", dir);
    temp_close();
}
END_TEST

// ---- refused allocations -------------------------------------------------------------------------------------------

// Each allocation of a run that counts, a warm-up, a save and a load is refused once: a status, and the next run right.
// The compiler's own are refused in test_faults.c.
START_TEST(refused_allocations) {
    temp_open();
    ck_assert_int_eq(setenv("TRACEJIT_NO", "jit", 1), 0);
    size_t sites = 0;
    for (size_t at = 0;; at++) {
        open_all(NULL);
        trace_tensor *w = random_tensor((const int64_t[]){16, 6}, 2, 3), *y = NULL, *z;
        (void)breaking(region, 4, 6, w, &y);
        trace_release(y);
        tj_test_fail_at(at);
        trace_shape s = {0, 2, {9, 6}};
        tj_status st = trace_warmup(region, &s, 1), saved = trace_profile_save(region, path);
        tj_status loaded = saved ? TRACE_OK : trace_profile_load(region, path);
        bool refused = tj_test_failed();
        ck_assert(st == TRACE_OK || st == TRACE_ERR_MEMORY);
        ck_assert(saved == TRACE_OK || saved == TRACE_ERR_MEMORY);
        ck_assert(loaded == TRACE_OK || loaded == TRACE_ERR_MEMORY);
        trace_region *plain;
        TJ_ASSERT_OK(trace_region_create(ctx, "plain", NULL, &plain));
        double got = breaking(region, 9, 6, w, &y), want = breaking(plain, 9, 6, w, &z);
        ck_assert(got == want);
        same_values("refused", y, z);
        trace_release(y);
        trace_release(z);
        trace_release(w);
        trace_region_release(plain);
        close_all();
        sites = at;
        if (!refused)
            break;
    }
    ck_assert_uint_gt(sites, 20);
    ck_assert_int_eq(unsetenv("TRACEJIT_NO"), 0);
    temp_close();
}
END_TEST

TJ_TEST_MAIN("warmup", shapes_follow, same_shapes, random_programs, breaks_follow, loops_follow, bad_shapes, far_misfit,
             after_placeholders, in_background, background_shutdown, in_a_child, histogram, histogram_is_bounded,
             replays_count, threads, save_and_load, names_in_files, bad_files, refused_allocations)
