// tests/test_dynamic.c: symbolic extents: how many graphs changing shapes make, what guards say, the same bits as exact
// plans.
#include "../trace/backend.h"
#include "tj_test.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

typedef trace_tensor T;
static trace_context *ctx;
static struct {
    int recompiles, fallbacks, input, dim;
    int64_t from, to;
    int budgets;
    char what[600], budget[600];
} last;

static pthread_mutex_t last_lock = PTHREAD_MUTEX_INITIALIZER;
static void note(const trace_event *e) {
    last.fallbacks += e->kind == TRACE_EVENT_FALLBACK;
    if (e->kind == TRACE_EVENT_BUDGET) {
        last.budgets++;
        (void)snprintf(last.budget, sizeof last.budget, "%s", e->what);
    }
    if (e->kind != TRACE_EVENT_RECOMPILE)
        return;
    last.recompiles++;
    last.input = e->input, last.dim = e->dim, last.from = e->from, last.to = e->to;
    (void)snprintf(last.what, sizeof last.what, "%s", e->what);
}

static void on_event(void *user, const trace_event *e) {
    (void)user;
    pthread_mutex_lock(&last_lock);
    note(e);
    pthread_mutex_unlock(&last_lock);
}

static void open_context(void) {
    memset(&last, 0, sizeof last);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = on_event), &ctx));
}
#define NO_JIT (!strcmp(tj_backend_cpu.name, "none"))

static T *tensor(uint64_t seed, const int64_t *dims, size_t rank) {
    int64_t n = 1;
    for (size_t i = 0; i < rank; i++)
        n *= dims[i];
    float *v = malloc((size_t)n * sizeof *v + 1);
    ck_assert_ptr_nonnull(v);
    for (int64_t i = 0; i < n; i++)
        v[i] = tj_test_uniform(&seed);
    T *t = trace_from(ctx, TRACE_F32, v, dims, rank);
    free(v);
    ck_assert_ptr_nonnull(t);
    return t;
}
#define TENSOR(seed, ...)                                                                                              \
    tensor((seed), (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

// ---- models ---------------------------------------------------------------------------------------------------------

enum { D = 24, HEADS = 3, FF = 40 };
struct weights {
    T *qkv, *qkv_b, *o, *up, *down, *ln, *pos;
};
static void load(struct weights *w) {
    w->qkv = TENSOR(1, 3 * D, D);
    w->qkv_b = TENSOR(2, 3 * D);
    w->o = TENSOR(3, D, D);
    w->up = TENSOR(4, FF, D);
    w->down = TENSOR(5, D, FF);
    w->ln = TENSOR(6, D);
    w->pos = TENSOR(7, 512, D);
}
static void unload(struct weights *w) {
    T *all[] = {w->qkv, w->qkv_b, w->o, w->up, w->down, w->ln, w->pos};
    for (size_t i = 0; i < TJ_COUNT(all); i++)
        trace_release(all[i]);
}

// A transformer layer over x [B, S, D] with sizes taken by trace_size, positions and masked mean pooling.
static T *transformer(const struct weights *w, T *x, T *mask) {
    int64_t b = trace_size(x, 0), s = trace_size(x, 1);
    x = trace_add(x, trace_narrow(w->pos, 0, 0, s));
    T *h = trace_layer_norm(x, TRACE_DIMS(D), w->ln, TRACE_NONE, 1e-5);
    T *qkv = trace_reshape(trace_linear(trace_reshape(h, TRACE_DIMS(b * s, D)), w->qkv, w->qkv_b),
                           TRACE_DIMS(b, s, 3, HEADS, D / HEADS));
    T *q = trace_transpose(trace_select(qkv, 2, 0), 1, 2), *k = trace_transpose(trace_select(qkv, 2, 1), 1, 2);
    T *v = trace_transpose(trace_select(qkv, 2, 2), 1, 2);
    T *m = trace_reshape(trace_gt_f(mask, -0.9), TRACE_DIMS(b, 1, 1, s));
    T *a = trace_scaled_dot_product_attention(q, k, v, m, false, 0, false);
    a = trace_reshape(trace_transpose(a, 1, 2), TRACE_DIMS(b, s, D));
    x = trace_add(x, trace_linear(a, w->o, TRACE_NONE));
    T *f = trace_linear(trace_gelu(trace_linear(x, w->up, TRACE_NONE), TRACE_GELU_TANH), w->down, TRACE_NONE);
    x = trace_add(x, f);
    return trace_mean(trace_cat(TRACE_ARGS(x, trace_narrow(x, 1, 0, 1)), 1), TRACE_DIMS(1), false);
}

// Softmax and a sum by hand: attention taken apart.
static T *attention(const struct weights *w, T *x, T *mask) {
    T *s = trace_mul_f(trace_matmul(x, trace_transpose(x, 1, 2)), 0.25);
    s = trace_add(s, trace_unsqueeze(mask, 1));
    T *y = trace_matmul(trace_softmax(s, -1), x);
    return trace_add(trace_rms_norm(y, w->ln, 1e-6), trace_mean(y, TRACE_DIMS(1), true));
}

// Sizes that the host computes: padded to a multiple of 16, masked by position, shifted, cut, unfolded.
static T *computed_sizes(const struct weights *w, T *x, T *mask) {
    int64_t b = trace_size(x, 0), s = trace_size(x, 1), up = (s + 15) / 16 * 16;
    T *p = trace_pad(x, TRACE_DIMS(0, 0, 0, up - s), TRACE_PAD_CONSTANT, 0.5);
    T *at = trace_to(trace_arange(ctx, 0, up, 1, TRACE_I64), TRACE_F32);
    T *in = trace_reshape(trace_lt_f(at, (double)s), TRACE_DIMS(1, up, 1));
    T *z = trace_where(in, p, trace_full_f(ctx, TRACE_DIMS(b, up, D), -1, TRACE_F32));
    T *shifted = trace_add(trace_narrow(z, 1, 1, up - 1), trace_narrow(z, 1, 0, up - 1));
    T *windows = trace_sum(trace_unfold(shifted, 1, 3, 2), TRACE_DIMS(-1), false);
    T *m = trace_expand(trace_unsqueeze(mask, -1), TRACE_DIMS(b, s, D));
    T *y = trace_cat(TRACE_ARGS(windows, trace_mul(x, m), trace_flip(x, TRACE_DIMS(1))), 1);
    return trace_softmax(trace_mul(y, w->ln), 1);
}

typedef T *model_fn(const struct weights *, T *, T *);

static T *run(trace_region *r, model_fn *f, const struct weights *w, int64_t b, int64_t s) {
    T *x = TENSOR((uint64_t)(b * 1000 + s), b, s, D), *mask = TENSOR((uint64_t)(b + s), b, s), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x, mask)))
        y = f(w, x, mask);
    TJ_ASSERT_OK(trace_end(r, &y, 1));
    trace_release(x), trace_release(mask);
    return y;
}
static void same(T *a, T *b, int64_t batch, int64_t length) {
    size_t n = (size_t)trace_numel(a) * 4;
    ck_assert_int_eq(trace_numel(a), trace_numel(b));
    const void *p, *q;
    TJ_ASSERT_OK(trace_data(a, &p));
    TJ_ASSERT_OK(trace_data(b, &q));
    ck_assert_msg(!n || !memcmp(p, q, n), "batch %lld, length %lld differ", (long long)batch, (long long)length);
    trace_release(a), trace_release(b);
}
static uint64_t graphs(const trace_region *r) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    return s.graphs;
}
static trace_region *region(const char *name, int dynamic) {
    trace_region *r;
    TJ_ASSERT_OK(trace_region_create(ctx, name, TRACE_REGION_OPTIONS(.dynamic = dynamic), &r));
    return r;
}

static const struct {
    int64_t b, s;
} sizes[] = {{2, 5},  {3, 9},  {4, 9}, {1, 9}, {3, 1},  {1, 1},   {2, 64}, {7, 33},
             {16, 3}, {5, 16}, {0, 7}, {8, 8}, {24, 3}, {3, 128}, {2, 5},  {9, 9}};

static void check_model(model_fn *f, int dynamic, bool declared, uint64_t most) {
    struct weights w;
    open_context();
    load(&w);
    trace_region *exact = region("exact", TRACE_DYNAMIC_OFF), *r = region("dynamic", dynamic);
    if (declared) {
        for (int i = 0; i < 2; i++) {
            TJ_ASSERT_OK(trace_region_dynamic(r, i, 0, 0, 64));
            TJ_ASSERT_OK(trace_region_dynamic(r, i, 1, 1, 512));
        }
    }
    for (size_t i = 0; i < TJ_COUNT(sizes); i++)
        same(run(r, f, &w, sizes[i].b, sizes[i].s), run(exact, f, &w, sizes[i].b, sizes[i].s), sizes[i].b, sizes[i].s);
    if (!NO_JIT) {
        ck_assert_msg(graphs(r) <= most, "%llu graphs: %s", (unsigned long long)graphs(r), last.what);
        ck_assert_int_eq(last.fallbacks, 0);
        ck_assert_uint_eq(graphs(exact), TJ_COUNT(sizes) - 1);
    }
    trace_region_release(exact), trace_region_release(r);
    unload(&w);
    trace_context_release(ctx);
}

START_TEST(transformer_auto) { check_model(transformer, TRACE_DYNAMIC_AUTO, false, 3); }
END_TEST
START_TEST(transformer_on) { check_model(transformer, TRACE_DYNAMIC_ON, false, 2); }
END_TEST
START_TEST(transformer_declared) { check_model(transformer, TRACE_DYNAMIC_AUTO, true, 2); }
END_TEST
START_TEST(attention_auto) { check_model(attention, TRACE_DYNAMIC_AUTO, false, 3); }
END_TEST
START_TEST(computed_auto) { check_model(computed_sizes, TRACE_DYNAMIC_AUTO, false, 3); }
END_TEST
START_TEST(computed_on) { check_model(computed_sizes, TRACE_DYNAMIC_ON, false, 4); }
END_TEST
START_TEST(attention_declared) { check_model(attention, TRACE_DYNAMIC_AUTO, true, 2); }
END_TEST

// ---- budgets --------------------------------------------------------------------------------------------------------

// x [n, m] -> softmax over the columns; another length each call.
static tj_status soft(trace_region *r, int64_t n, int64_t m) {
    T *x = TENSOR(3, n, m), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x)))
        y = trace_softmax(x, 1);
    tj_status st = trace_end(r, &y, 1);
    if (!st) {
        float v[4096];
        double sum = 0;
        TJ_ASSERT_OK(trace_read(y, v, (size_t)(n * m) * 4));
        for (int64_t i = 0; i < m; i++)
            sum += v[i];
        ck_assert(fabs(sum - 1) < 1e-5);
    }
    trace_release(x), trace_release(y);
    return st;
}
static trace_stats stats(const trace_region *r) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    return s;
}

START_TEST(budget_widens_then_fails) {
    open_context();
    trace_region *r = region("soft", TRACE_DYNAMIC_OFF);
    TJ_ASSERT_OK(trace_region_budget(r, TRACE_BUDGET_COMPILES, 3, TRACE_BUDGET_FAIL));
    for (int i = 0; i < 3; i++)
        TJ_ASSERT_OK(soft(r, 4, 5 + i));
    TJ_ASSERT_STATUS(soft(r, 4, 9), TRACE_ERR_BUDGET);
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "budget of 3 compiles is used up"));
    ck_assert_ptr_nonnull(strstr(last.budget, "the run fails"));
    TJ_ASSERT_OK(soft(r, 4, 6)); // what has its plan runs
    ck_assert_uint_eq(stats(r).graphs, 3);
    trace_region_release(r);
    // auto: the second plan already takes all columns; rows stay exact until the last plan makes them symbols
    r = region("wide", TRACE_DYNAMIC_AUTO);
    TJ_ASSERT_OK(trace_region_budget(r, TRACE_BUDGET_COMPILES, 2, TRACE_BUDGET_WIDEN));
    for (int i = 0; i < 20; i++)
        TJ_ASSERT_OK(soft(r, 4 + i / 10 * i, 5 + i));
    ck_assert_uint_eq(stats(r).graphs, 2);
    ck_assert_ptr_nonnull(strstr(last.budget, "comes to its end"));
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

START_TEST(budget_interprets) {
    open_context();
    trace_region *r = region("soft", TRACE_DYNAMIC_OFF);
    TJ_ASSERT_OK(trace_context_budget(ctx, TRACE_BUDGET_COMPILES, 2, TRACE_BUDGET_INTERPRET));
    for (int i = 0; i < 6; i++)
        TJ_ASSERT_OK(soft(r, 3, 5 + i));
    ck_assert_uint_eq(stats(r).graphs, 2);
    ck_assert_uint_eq(stats(r).misses, 6);
    ck_assert(NO_JIT || stats(r).interpreted_ops == 4);
    ck_assert_int_eq(last.budgets, 1);
    TJ_ASSERT_OK(trace_context_budget(ctx, TRACE_BUDGET_COMPILES, -1, TRACE_BUDGET_INTERPRET));
    TJ_ASSERT_OK(soft(r, 3, 9));
    ck_assert_uint_eq(stats(r).graphs, 3);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

START_TEST(budget_evicts) {
    open_context();
    trace_region *a = region("a", TRACE_DYNAMIC_OFF), *b = region("b", TRACE_DYNAMIC_OFF);
    TJ_ASSERT_OK(trace_region_budget(a, TRACE_BUDGET_GRAPHS, 4, TRACE_BUDGET_EVICT));
    TJ_ASSERT_OK(trace_context_budget(ctx, TRACE_BUDGET_GRAPHS, 6, TRACE_BUDGET_EVICT));
    for (int i = 0; i < 12; i++) {
        TJ_ASSERT_OK(soft(a, 3, 5 + i));
        TJ_ASSERT_OK(soft(a, 3, 5)); // hot
        TJ_ASSERT_OK(soft(b, 2, 5 + i));
    }
    ck_assert_uint_eq(stats(a).graphs, 12);
    ck_assert_uint_eq(stats(a).evictions + stats(b).evictions, 24 - 6);
    ck_assert_uint_ge(stats(a).evictions, 8);
    trace_region_release(b); // its plans count no more
    for (int i = 0; i < 2; i++)
        TJ_ASSERT_OK(soft(a, 7, 5 + i));
    ck_assert(NO_JIT || stats(a).bytes_code > 0);
    trace_region_release(a);
    trace_context_release(ctx);
}
END_TEST

// Plans made ahead of later runs are left out when the budget is used up: nobody's run fails for them.
START_TEST(budget_and_plans_ahead) {
    open_context();
    trace_region *r = region("breaks", TRACE_DYNAMIC_OFF);
    TJ_ASSERT_OK(trace_region_budget(r, TRACE_BUDGET_COMPILES, 2, TRACE_BUDGET_FAIL));
    for (int i = 0; i < 4; i++) {
        T *x = TENSOR(3, 4, 8), *y = NULL;
        double v;
        if (trace_begin(r, TRACE_ARGS(x))) {
            T *a = trace_exp(x), *b = trace_tanh(x); // a is used after the break, b is not
            TJ_ASSERT_OK(trace_item_f64(trace_sum(trace_add(a, b), TRACE_SCALAR, false), &v));
            y = trace_mul_f(a, 2);
        }
        TJ_ASSERT_OK(trace_end(r, &y, 1));
        trace_release(x), trace_release(y);
    }
    ck_assert_msg(!last.budgets, "%s", last.budget);
    ck_assert_uint_eq(stats(r).graphs, 2);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// Threads of several regions don't get the same last compile.
static trace_region *each[8];
static void *one_soft(void *arg) {
    tj_status st = soft(each[(intptr_t)arg], 3, 5);
    return st && st != TRACE_ERR_BUDGET ? "another failure" : NULL;
}
START_TEST(budget_of_many_regions) {
    open_context();
    TJ_ASSERT_OK(trace_context_budget(ctx, TRACE_BUDGET_COMPILES, 3, TRACE_BUDGET_FAIL));
    pthread_t t[8];
    uint64_t made = 0;
    for (intptr_t i = 0; i < 8; i++)
        each[i] = region("each", TRACE_DYNAMIC_OFF);
    for (intptr_t i = 0; i < 8; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, one_soft, (void *)i), 0);
    for (int i = 0; i < 8; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        ck_assert_msg(!bad, "%s", (const char *)bad);
        made += stats(each[i]).graphs;
        trace_region_release(each[i]);
    }
    ck_assert_uint_eq(made, 3);
    trace_context_release(ctx);
}
END_TEST

START_TEST(budget_misuse) {
    open_context();
    trace_region *r = region("soft", TRACE_DYNAMIC_OFF);
    TJ_ASSERT_STATUS(trace_region_budget(r, TRACE_BUDGET_GRAPHS, 0, TRACE_BUDGET_FAIL), TRACE_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "a budget of 0 graphs"));
    TJ_ASSERT_STATUS(trace_region_budget(r, TRACE_BUDGET_GRAPHS, -2, TRACE_BUDGET_FAIL), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_budget(r, TRACE_BUDGET_COMPILE_MS, INT64_MAX, TRACE_BUDGET_FAIL), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_budget(r, (enum trace_budget)77, 1, TRACE_BUDGET_FAIL), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_budget(r, TRACE_BUDGET_GRAPHS, 1, (enum trace_budget_policy)9), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_budget(r, TRACE_BUDGET_COMPILES, 5, TRACE_BUDGET_EVICT), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_budget(NULL, TRACE_BUDGET_COMPILES, 5, TRACE_BUDGET_FAIL), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_context_budget(NULL, TRACE_BUDGET_COMPILES, 5, TRACE_BUDGET_FAIL), TRACE_ERR_ARGUMENT);
    for (int i = 0; i < 8; i++)
        TJ_ASSERT_OK(soft(r, 4, 5 + i)); // nothing of it stuck
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// ---- reasons --------------------------------------------------------------------------------------------------------

static void scale(trace_region *r, int64_t rows, int64_t gains, int64_t cols) {
    T *x = TENSOR(1, rows, cols), *gain = TENSOR(2, gains, 1), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x, gain)))
        y = trace_mul(x, gain);
    TJ_ASSERT_OK(trace_end(r, &y, 1));
    trace_release(x), trace_release(gain), trace_release(y);
}

START_TEST(reasons_name_symbols_and_ops) {
    open_context();
    trace_region *r = region("scale", TRACE_DYNAMIC_AUTO);
    scale(r, 4, 4, 8);
    scale(r, 6, 6, 8);
    ck_assert_ptr_nonnull(strstr(last.what, "input 0: extent of dim 0 was 4, is 6; a symbol from now on"));
    scale(r, 6, 6, 9); // a constant of a symbolic plan
    ck_assert_ptr_nonnull(strstr(last.what, "input 0: extent of dim 1 was 8, is 9"));
    ck_assert(NO_JIT || strstr(last.what, "; a symbol from now on"));
    ck_assert(last.input == 0 && last.dim == 1 && last.from == 8 && last.to == 9);
    scale(r, 9, 1, 9);
    if (!NO_JIT) {
        ck_assert_ptr_nonnull(strstr(last.what, "guard of mul ("));
        ck_assert_ptr_nonnull(strstr(last.what, "dim 0 of input 0 and dim 0 of input 1 have to be equal"));
        ck_assert(last.from == 9 && last.to == 1);
        ck_assert_uint_eq(graphs(r), 4);
    }
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// A plan for sizes that make poor hints is compiled from an older trace; the reason is the run's all the same.
START_TEST(reasons_are_of_the_run) {
    open_context();
    trace_region *r = region("scale", TRACE_DYNAMIC_AUTO);
    scale(r, 5, 5, 8);
    scale(r, 1, 1, 8);
    ck_assert_msg(strstr(last.what, "input 0: extent of dim 0 was 5, is 1; a symbol from now on") != NULL, "%s",
                  last.what);
    ck_assert(last.input == 0 && last.dim == 0 && last.from == 5 && last.to == 1);
    scale(r, 7, 7, 8);
    ck_assert_uint_eq(graphs(r), 2);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// What can't be compiled with symbols is tried without, once, and then interpreted.
static atomic_int seals;
static void *map_pages(void *user, size_t bytes) {
    (void)user;
    return aligned_alloc(4096, bytes);
}
static int refuse_seal(void *user, void *p, size_t bytes) {
    (void)user, (void)p, (void)bytes;
    atomic_fetch_add(&seals, 1);
    return -1;
}
static void unmap_pages(void *user, void *p, size_t bytes) {
    (void)user, (void)bytes;
    free(p);
}
START_TEST(symbols_without_executable_memory) {
    memset(&last, 0, sizeof last);
    atomic_store(&seals, 0);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = on_event, .code_map = map_pages,
                                                            .code_seal = refuse_seal, .code_unmap = unmap_pages),
                                      &ctx));
    trace_region *r = region("scale", TRACE_DYNAMIC_ON);
    scale(r, 4, 4, 8);
    scale(r, 4, 4, 8);
    ck_assert_int_gt(last.fallbacks, 0);
    ck_assert_int_le(atomic_load(&seals), 2);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// Exact plans can't be widened, and nobody says that they were.
START_TEST(budget_widens_no_exact_plans) {
    open_context();
    trace_region *r = region("soft", TRACE_DYNAMIC_OFF);
    TJ_ASSERT_OK(trace_region_budget(r, TRACE_BUDGET_COMPILES, 2, TRACE_BUDGET_WIDEN));
    for (int i = 0; i < 2; i++)
        TJ_ASSERT_OK(soft(r, 4, 5 + i));
    ck_assert_int_eq(last.budgets, 0);
    TJ_ASSERT_STATUS(soft(r, 4, 9), TRACE_ERR_BUDGET);
    ck_assert_ptr_nonnull(strstr(last.budget, "the run fails"));
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// ---- buckets --------------------------------------------------------------------------------------------------------

static void check_buckets(enum trace_buckets kind, const int64_t *list, size_t n, uint64_t most) {
    struct weights w;
    open_context();
    load(&w);
    trace_region *exact = region("exact", TRACE_DYNAMIC_OFF), *r = region("buckets", TRACE_DYNAMIC_AUTO);
    for (int i = 0; i < 2; i++)
        TJ_ASSERT_OK(trace_region_buckets(r, i, 1, kind, list, n));
    uint64_t seed = 5;
    for (int i = 0; i < 40; i++) {
        int64_t b = 2 + i % 3, s = 1 + (int64_t)(tj_test_random(&seed) % 120);
        same(run(r, transformer, &w, b, s), run(exact, transformer, &w, b, s), b, s);
    }
    trace_stats st = {.size = sizeof st};
    trace_region_stats(r, &st);
    if (!NO_JIT) {
        ck_assert_msg(st.graphs <= most, "%llu graphs: %s", (unsigned long long)st.graphs, last.what);
        ck_assert_int_eq(last.fallbacks, 0);
        ck_assert_uint_gt(st.padding_bytes, 0);
        ck_assert_uint_lt(st.padding_bytes, st.bucket_bytes);
        trace_region_stats(exact, &st);
        ck_assert_uint_eq(st.bucket_bytes, 0);
    }
    trace_region_release(exact), trace_region_release(r);
    unload(&w);
    trace_context_release(ctx);
}
// The batch becomes a symbol with its second value: a plan more.
START_TEST(buckets_of_powers) { check_buckets(TRACE_BUCKETS_POWERS, NULL, 0, 2 * 8); }
END_TEST
START_TEST(buckets_of_a_list) { check_buckets(TRACE_BUCKETS_LIST, (const int64_t[]){32, 128}, 2, 2 * 2); }
END_TEST

// Sizes within a bucket neither compile nor allocate once its workspace is there.
static size_t allocated;
static void *count_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    allocated += bytes >= 4096;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}
static void count_free(void *user, void *p, size_t bytes) {
    (void)user, (void)bytes;
    free(p);
}
START_TEST(bucket_workspaces_stay) {
    if (NO_JIT)
        return;
    TJ_ASSERT_OK(
        trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .alloc = count_alloc, .free = count_free), &ctx));
    trace_region *r = region("buckets", TRACE_DYNAMIC_AUTO);
    TJ_ASSERT_OK(trace_region_buckets(r, 0, 0, TRACE_BUCKETS_LIST, (const int64_t[]){64}, 1));
    T *out = TENSOR(1, 8), *xs[65];
    for (int64_t n = 1; n <= 64; n++)
        xs[n] = TENSOR(2, n, 256);
    for (int64_t n = 1; n <= 64; n++) {
        T *x = xs[n];
        size_t before = allocated;
        if (trace_begin(r, TRACE_ARGS(x)))
            (void)trace_copy_(
                out, trace_expand(trace_sum(trace_softmax(trace_matmul(x, trace_transpose(trace_relu(x), 0, 1)), 0),
                                            TRACE_SCALAR, false),
                                  TRACE_DIMS(8)));
        TJ_ASSERT_OK(trace_end(r, NULL, 0));
        ck_assert_msg(n == 1 || allocated == before, "%zu blocks for %lld rows", allocated - before, (long long)n);
        trace_release(x);
    }
    ck_assert_uint_eq(graphs(r), 1);
    trace_release(out);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// A bucket that there is no room for is no reason to fail a run that fits.
START_TEST(buckets_beyond_memory) {
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .memory_limit = 64 << 20), &ctx));
    for (int big = 0; big < 2; big++) {
        trace_region *r = region("buckets", TRACE_DYNAMIC_AUTO);
        const int64_t list[] = {16, big ? INT64_MAX / 2 : (int64_t)1 << 22};
        TJ_ASSERT_OK(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_LIST, list, 2));
        for (int i = 0; i < 3; i++) {
            T *x = TENSOR(2, 24, 40), *y = NULL;
            if (trace_begin(r, TRACE_ARGS(x)))
                y = trace_matmul(trace_relu(x), trace_softmax(trace_transpose(trace_exp(x), 0, 1), 0));
            TJ_ASSERT_OK(trace_end(r, &y, 1));
            trace_release(x), trace_release(y);
        }
        trace_region_release(r);
    }
    trace_context_release(ctx);
}
END_TEST

START_TEST(learned_buckets) {
    open_context();
    trace_region *r = region("learned", TRACE_DYNAMIC_AUTO);
    TJ_ASSERT_OK(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_LEARNED, NULL, 2));
    for (int i = 0; i < 200; i++)
        TJ_ASSERT_OK(soft(r, 3, i % 2 ? 5 : 100 + i % 4));
    uint64_t before = graphs(r);
    trace_stats a = stats(r);
    for (int i = 0; i < 20; i++)
        TJ_ASSERT_OK(soft(r, 3, i % 2 ? 5 : 100 + i % 4));
    ck_assert_uint_eq(graphs(r), before);
    ck_assert(NO_JIT || graphs(r) <= 4); // two powers of two, then the two learned
    ck_assert_uint_le(stats(r).padding_bytes - a.padding_bytes, stats(r).bucket_bytes - a.bucket_bytes);
    static char text[1 << 20];
    static const char *const says[] = {
        "buckets of dim 1 of input 0: up to 5 in 110 runs, up to 102 in 110 runs; 0.9% of",
        "\"sizes\":[{\"size\":5,\"runs\":110},{\"size\":102,\"runs\":110}]", NULL,
        "Buckets of dim 1 of input 0: 0.9% padding"};
    for (int f = TRACE_FORMAT_TEXT; f <= TRACE_FORMAT_HTML; f++) {
        if (says[f]) {
            TJ_ASSERT_OK(trace_explain(r, (enum trace_format)f, text, sizeof text, NULL));
            ck_assert_msg(strstr(text, says[f]) != NULL, "%s", text);
        }
    }
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

START_TEST(bucket_misuse) {
    open_context();
    trace_region *r = region("soft", TRACE_DYNAMIC_AUTO), *off = region("off", TRACE_DYNAMIC_OFF);
    static const int64_t down[] = {8, 4}, zero[] = {0, 4}, list[] = {8, 16};
    TJ_ASSERT_STATUS(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_LIST, down, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_LIST, zero, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_LIST, NULL, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_POWERS, list, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_buckets(r, -1, 1, TRACE_BUCKETS_POWERS, NULL, 0), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_buckets(r, 0, 9, TRACE_BUCKETS_POWERS, NULL, 0), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_LEARNED, NULL, 99), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_buckets(NULL, 0, 1, TRACE_BUCKETS_POWERS, NULL, 0), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_region_buckets(off, 0, 1, TRACE_BUCKETS_POWERS, NULL, 0), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_OK(trace_region_dynamic(r, 0, 1, 1, 100));
    TJ_ASSERT_STATUS(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_LIST, list, 2), TRACE_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "the last bucket of dim 1 of input 0 is 16"));
    TJ_ASSERT_OK(trace_region_dynamic(r, 0, 1, 1, 16));
    TJ_ASSERT_OK(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_LIST, list, 2));
    TJ_ASSERT_OK(soft(r, 2, 11));
    TJ_ASSERT_STATUS(soft(r, 2, 17), TRACE_ERR_SHAPE);
    TJ_ASSERT_STATUS(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_POWERS, NULL, 0), TRACE_ERR_STATE);
    trace_region *only = region("only", TRACE_DYNAMIC_AUTO);
    TJ_ASSERT_OK(trace_region_buckets(only, 0, 1, TRACE_BUCKETS_LIST, list, 2));
    TJ_ASSERT_STATUS(soft(only, 2, 17), TRACE_ERR_SHAPE);
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "beyond its last bucket"));
    TJ_ASSERT_OK(soft(only, 2, 16));
    trace_region_release(r), trace_region_release(off), trace_region_release(only);
    trace_context_release(ctx);
}
END_TEST

static int allocs_left; // -1: any number
static void *limited_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    if (!allocs_left)
        return NULL;
    allocs_left -= allocs_left > 0;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}
static void limited_free(void *user, void *p, size_t bytes) {
    (void)user, (void)bytes;
    free(p);
}

// A run that finds no memory for larger sizes leaves nothing of them behind: the next one over the same sizes, or over
// the ones before, is right.
START_TEST(run_without_memory_then_again) {
    struct weights w;
    allocs_left = -1;
    TJ_ASSERT_OK(
        trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .alloc = limited_alloc, .free = limited_free), &ctx));
    load(&w);
    trace_region *exact = region("exact", TRACE_DYNAMIC_OFF), *r = region("dynamic", TRACE_DYNAMIC_ON);
    same(run(r, transformer, &w, 2, 5), run(exact, transformer, &w, 2, 5), 2, 5);
    for (int64_t s = 30; s <= 240; s *= 2) { // a larger workspace each time
        T *x = TENSOR(1, 3, s, D), *mask = TENSOR(2, 3, s), *y = NULL;
        if (trace_begin(r, TRACE_ARGS(x, mask)))
            y = transformer(&w, x, mask);
        allocs_left = 0;
        tj_status st = trace_end(r, &y, 1);
        allocs_left = -1;
        trace_release(x), trace_release(mask), trace_release(y);
        TJ_ASSERT_STATUS(st, TRACE_ERR_MEMORY);
        if (s == 60)
            same(run(r, transformer, &w, 2, 5), run(exact, transformer, &w, 2, 5), 2, 5);
        same(run(r, transformer, &w, 3, s), run(exact, transformer, &w, 3, s), 3, s);
        same(run(r, transformer, &w, 3, s), run(exact, transformer, &w, 3, s), 3, s);
        same(run(r, transformer, &w, 2, 5), run(exact, transformer, &w, 2, 5), 2, 5);
    }
    trace_region_release(exact), trace_region_release(r);
    unload(&w);
    trace_context_release(ctx);
}
END_TEST

// ---- threads --------------------------------------------------------------------------------------------------------

enum { MIXED_THREADS = 16, MIXED_RUNS = 12 };
static trace_region *mixed;
static T *mixed_w;
static T *mix(T *x) { return trace_softmax(trace_relu(trace_linear(trace_mul_f(x, 2), mixed_w, TRACE_NONE)), 0); }
static void *mixed_thread(void *arg) {
    uint64_t seed = (uint64_t)(intptr_t)arg + 1;
    for (int i = 0; i < MIXED_RUNS; i++) {
        int64_t n = 1 + (int64_t)(tj_test_random(&seed) % 40);
        T *x = TENSOR(seed, n, D), *y = NULL;
        if (trace_begin(mixed, TRACE_ARGS(x)))
            y = mix(x);
        if (trace_end(mixed, &y, 1))
            return "a run failed";
        T *z = mix(x); // op by op
        const void *p, *q;
        if (!z || trace_data(y, &p) || trace_data(z, &q) || memcmp(p, q, (size_t)trace_numel(y) * 4))
            return "results differ";
        trace_release(x), trace_release(y), trace_release(z);
    }
    return NULL;
}
// One begins with a shape, all others with others: an exact graph, then one with a symbol that all wait for.
START_TEST(threads_with_mixed_shapes) {
    open_context();
    mixed_w = TENSOR(9, 8, D);
    mixed = region("mixed", TRACE_DYNAMIC_AUTO);
    pthread_t t[MIXED_THREADS];
    for (intptr_t i = 0; i < MIXED_THREADS; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, mixed_thread, (void *)i), 0);
    for (int i = 0; i < MIXED_THREADS; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        ck_assert_msg(!bad, "%s: %s", (const char *)bad, trace_last_error(ctx));
    }
    trace_stats s = {.size = sizeof s};
    trace_region_stats(mixed, &s);
    ck_assert_uint_eq(s.runs, MIXED_THREADS * MIXED_RUNS);
    ck_assert_msg(NO_JIT || s.graphs == 2, "%llu graphs: %s", (unsigned long long)s.graphs, last.what);
    trace_release(mixed_w);
    trace_region_release(mixed);
    trace_context_release(ctx);
}
END_TEST

// A write through a view of memory that another input shares: one plan serves all sizes.
static T *flat_write(T *x, T *y, int64_t n) {
    trace_add_f_(trace_reshape(x, TRACE_DIMS(n * 4)), 1);
    return trace_mul_f(y, 2);
}
static T *split_write(T *x, T *y, int64_t n) {
    trace_add_f_(trace_reshape(x, TRACE_DIMS(n * 2, 2)), 1);
    return trace_mul_f(y, 2);
}
static T *part_write(T *x, T *y, int64_t n) {
    trace_add_f_(trace_narrow(trace_reshape(x, TRACE_DIMS(n * 4)), 0, 0, n), 1);
    return trace_mul_f(y, 2);
}
static T *column_write(T *x, T *y, int64_t n) {
    (void)n;
    trace_add_f_(trace_select(x, 1, 1), 1);
    return trace_mul_f(y, 2);
}
START_TEST(written_views) {
    static T *(*const bodies[])(T * x, T * y, int64_t n) = {flat_write, split_write, part_write, column_write};
    open_context();
    for (size_t k = 0; k < TJ_COUNT(bodies); k++) {
        for (int mode = 0; mode < 2; mode++) {
            trace_region *r;
            TJ_ASSERT_OK(
                trace_region_create(ctx, "views", TRACE_REGION_OPTIONS(.dynamic = mode ? TRACE_DYNAMIC_ON : 0), &r));
            for (int64_t n = 3; n < 20; n++) {
                float d[80], v[80];
                for (int i = 0; i < 4 * n; i++)
                    d[i] = (float)i;
                T *x = trace_wrap(ctx, TRACE_F32, d, TRACE_DIMS(n, 4)),
                  *y = trace_wrap(ctx, TRACE_F32, d, TRACE_DIMS(n * 4)), *o = NULL;
                if (trace_begin(r, TRACE_ARGS(x, y)))
                    o = bodies[k](x, y, n);
                TJ_ASSERT_OK(trace_end(r, &o, 1));
                TJ_ASSERT_OK(trace_read(o, v, (size_t)n * 16));
                for (int i = 0; i < 4 * n; i++) {
                    float want = (float)i + (float)(k == 2 ? i < n : k == 3 ? i % 4 == 1 : 1);
                    ck_assert(d[i] == want && v[i] == 2 * want);
                }
                trace_release(o);
                trace_release(x);
                trace_release(y);
            }
            trace_stats st = {.size = sizeof st};
            trace_region_stats(r, &st);
            ck_assert_msg(NO_JIT || (st.graphs <= 2 && !st.interpreted_ops), "case %zu: %d plans", k, (int)st.graphs);
            trace_region_release(r);
        }
    }
    trace_context_release(ctx);
}
END_TEST

// Symbols are recommended where they would have spared the compile, and only there.
START_TEST(advice) {
    open_context();
    for (int k = 0; k < (NO_JIT ? 2 : 3);
         k++) { // other extents; other ops; other extents where all are symbols, but for a guard
        trace_region *r;
        TJ_ASSERT_OK(trace_region_create(
            ctx, "advice", TRACE_REGION_OPTIONS(.dynamic = k == 2 ? TRACE_DYNAMIC_ON : TRACE_DYNAMIC_OFF), &r));
        TJ_ASSERT_OK(trace_region_budget(r, TRACE_BUDGET_COMPILES, 1, TRACE_BUDGET_FAIL));
        enum trace_status st = TRACE_OK;
        for (int i = 0; i < 2; i++) {
            float v[8] = {0};
            T *x = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(k == 0 ? 4 + i : 4)),
              *w = trace_from(ctx, TRACE_F32, v,
                              TRACE_DIMS(k == 2 && i ? 1
                                         : k == 0    ? 4 + i
                                                     : 4)),
              *y = NULL;
            if (trace_begin(r, TRACE_ARGS(x, w)))
                y = k == 1 && i ? trace_mul(x, w) : trace_add(x, w);
            st = trace_end(r, &y, 1);
            trace_release(y);
            trace_release(x);
            trace_release(w);
        }
        TJ_ASSERT_STATUS(st, TRACE_ERR_BUDGET);
        ck_assert_msg((strstr(trace_last_error(ctx), "make extents symbolic") != NULL) == (k == 0), "case %d: %s", k,
                      trace_last_error(ctx));
        trace_region_release(r);
    }
    trace_context_release(ctx);
}
END_TEST

TJ_TEST_MAIN("dynamic", reasons_are_of_the_run, symbols_without_executable_memory, budget_and_plans_ahead,
             budget_of_many_regions, buckets_beyond_memory, threads_with_mixed_shapes, buckets_of_powers,
             buckets_of_a_list, bucket_workspaces_stay, learned_buckets, bucket_misuse, run_without_memory_then_again,
             reasons_name_symbols_and_ops, budget_widens_no_exact_plans, budget_widens_then_fails, budget_interprets,
             budget_evicts, budget_misuse, transformer_auto, transformer_on, transformer_declared, computed_auto,
             computed_on, attention_auto, attention_declared, written_views, advice)
