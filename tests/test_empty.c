// tests/test_empty.c: extents of 0, and of 2^62 beside one of 0: right shapes, the identities of reductions over
// nothing, no element looked at, in every way of running; and strides of any size where only one element lies along
// them.
#include "tj_test.h"

typedef trace_tensor T;
#define BIG ((int64_t)1 << 62)
#define OK(e) TJ_ASSERT_OK(e)

static trace_context *ctx;
static const float some[64];
static const int64_t numbers[64];

static T *host(enum trace_dtype d, const int64_t *dims, size_t rank) {
    int64_t n = 1;
    for (size_t i = 0; i < rank; i++)
        n = dims[i] ? n * dims[i] : 0;
    return trace_from(ctx, d, n ? (d == TRACE_I64 ? (const void *)numbers : (const void *)some) : NULL, dims, rank);
}
#define E(...) host(TRACE_F32, TRACE_DIMS(__VA_ARGS__))
#define EI(...) host(TRACE_I64, TRACE_DIMS(__VA_ARGS__))
#define F(...) trace_full_f(ctx, TRACE_DIMS(__VA_ARGS__), 0.5, TRACE_F32)
#define D(t, ...) trace_full_i(ctx, TRACE_DIMS(__VA_ARGS__), 1, t)
#define ALL TRACE_SCALAR, false

// Values of an extent b: the shape there has to be where b is 0, and what every element has to be; NONE: not said.
#define NONE 77
#define SCENES(X)                                                                                                      \
    X(sum_all, "[]", 0, trace_sum(E(3, b), ALL))                                                                       \
    X(sum_rows, "[3]", 0, trace_sum(trace_exp(E(3, b)), TRACE_DIMS(1), false))                                         \
    X(sum_columns, "[1, 3]", 0, trace_sum(trace_exp(E(b, 3)), TRACE_DIMS(0), true))                                    \
    X(sum_of_bools, "[2]", 0, trace_sum(trace_gt_f(E(2, b), 0), TRACE_DIMS(1), false))                                 \
    X(sum_apart, "[2]", 0, trace_sum(E(3, 2, b), TRACE_DIMS(0, 2), false))                                             \
    X(sum_plus, "[3]", 2, trace_add_f(trace_sum(trace_exp(E(b, 3)), TRACE_DIMS(0), false), 2))                         \
    X(mean, "[2]", NAN, trace_mean(trace_exp(E(2, b)), TRACE_DIMS(1), false))                                          \
    X(mean_f16, "[2]", NAN, trace_mean(trace_to(E(2, b), TRACE_F16), TRACE_DIMS(1), false))                            \
    X(var, "[2]", NAN, trace_var(trace_exp(E(b, 2)), TRACE_DIMS(0), 1, false))                                         \
    X(any, "[2]", 0, trace_any(trace_gt_f(E(2, b), 0), TRACE_DIMS(1), false))                                          \
    X(all, "[2]", 1, trace_all(trace_gt_f(E(2, b), 0), TRACE_DIMS(1), false))                                          \
    X(softmax_in, "[2, 0]", NONE, trace_softmax(E(2, b), 1))                                                           \
    X(softmax_out, "[0, 4]", NONE, trace_softmax(E(b, 4), 1))                                                          \
    X(log_softmax, "[0, 3]", NONE, trace_log_softmax(trace_mul_f(E(b, 3), 2), 0))                                      \
    X(layer_norm, "[2, 0]", NONE, trace_layer_norm(E(2, b), TRACE_DIMS(b), TRACE_NONE, TRACE_NONE, 1e-5))              \
    X(rms_norm, "[0, 4]", NONE, trace_rms_norm(E(b, 4), F(4), 1e-5))                                                   \
    X(softmax_then_sum, "[3]", 0, trace_sum(trace_softmax(E(3, b), 1), TRACE_DIMS(1), false))                          \
    X(matmul_k, "[2, 3]", 0, trace_matmul(E(2, b), E(b, 3)))                                                           \
    X(matmul_k_relu, "[2, 3]", 1.5, trace_add_f(trace_relu(trace_matmul(E(2, b), E(b, 3))), 1.5))                      \
    X(matmul_k_f64, "[2, 3]", 0, trace_matmul(D(TRACE_F64, 2, b), D(TRACE_F64, b, 3)))                                 \
    X(matmul_k_f16, "[2, 3]", 0, trace_matmul(D(TRACE_F16, 2, b), D(TRACE_F16, b, 3)))                                 \
    X(matmul_k_i32, "[2, 3]", 0, trace_matmul(D(TRACE_I32, 2, b), D(TRACE_I32, b, 3)))                                 \
    X(matmul_k_u8, "[4, 2, 3]", 0, trace_matmul(D(TRACE_U8, 4, 2, b), D(TRACE_U8, b, 3)))                              \
    X(matmul_m, "[0, 3]", NONE, trace_matmul(E(b, 2), E(2, 3)))                                                        \
    X(matmul_batch, "[0, 4, 3]", NONE, trace_matmul(E(b, 4, 2), E(2, 3)))                                              \
    X(matmul_rows_sum, "[3]", 0, trace_sum(trace_matmul(E(3, 2), E(2, b)), TRACE_DIMS(1), false))                      \
    X(matmul_rows_norm, "[3]", NAN,                                                                                    \
      trace_mean(trace_square(trace_linear(E(3, 2), E(b, 2), TRACE_NONE)), TRACE_DIMS(1), false))                      \
    X(matmul_columns_sum, "[3]", 0, trace_sum(trace_relu(trace_matmul(E(b, 2), E(2, 3))), TRACE_DIMS(0), false))       \
    X(linear_k, "[2, 3]", 0.5, trace_linear(E(2, b), E(3, b), F(3)))                                                   \
    X(linear_k_i64, "[2, 3]", 1, trace_linear(D(TRACE_I64, 2, b), D(TRACE_I64, 3, b), D(TRACE_I64, 3)))                \
    X(linear_k_gelu, "[2, 3]", 0.5, trace_relu(trace_linear(E(2, b), E(3, b), F(3))))                                  \
    X(conv_batch, "[0, 2, 2, 2]", NONE, trace_conv2d(E(b, 1, 3, 3), F(2, 1, 2, 2), F(2), NULL, NULL, NULL, 1))         \
    X(conv_channels, "[1, 2, 2, 2]", 0.5, trace_conv2d(E(1, b, 3, 3), E(2, b, 2, 2), F(2), NULL, NULL, NULL, 1))       \
    X(conv_results, "[1, 0, 2, 2]", NONE, trace_conv2d(E(1, 2, 3, 3), E(b, 2, 2, 2), TRACE_NONE, NULL, NULL, NULL, 1)) \
    X(conv_relu, "[1, 2, 3, 3]", 1.5,                                                                                  \
      trace_add_f(trace_relu(trace_conv2d(E(1, b, 3, 3), E(2, b, 1, 1), F(2), NULL, NULL, NULL, 1)), 1))               \
    X(attention_keys, "[2, 3, 4]", b ? NONE : 0,                                                                       \
      trace_scaled_dot_product_attention(F(2, 3, 4), F(2, b, 4), F(2, b, 4), TRACE_NONE, false, 0, false))             \
    X(attention_queries, "[2, 0, 4]", NONE,                                                                            \
      trace_scaled_dot_product_attention(F(2, b, 4), F(2, 3, 4), F(2, 3, 4), TRACE_NONE, true, 0, false))              \
    X(attention_width, "[2, 3, 4]", 0.5,                                                                               \
      trace_scaled_dot_product_attention(F(2, 3, b), F(2, 5, b), F(2, 5, 4), TRACE_NONE, false, 1, false))             \
    X(attention_mask, "[2, 3, 4]", b ? NONE : 0,                                                                       \
      trace_scaled_dot_product_attention(F(2, 3, 4), F(2, b, 4), F(2, b, 4), trace_gt_f(F(3, b), 0), false, 0, false)) \
    X(max_pool, "[0, 2, 2]", NONE, trace_max_pool2d(E(b, 4, 4), TRACE_2(2), NULL, NULL, NULL, false))                  \
    X(avg_pool, "[2, 0, 2, 2]", NONE, trace_avg_pool2d(E(2, b, 4, 4), TRACE_2(3), NULL, TRACE_2(1), true, false, 0))   \
    X(avg_pool_of_padding, "[1, 2, 1, 5]", 0,                                                                          \
      trace_avg_pool2d(E(1, 2, b, 4), TRACE_2(2), TRACE_2(1), TRACE_2(1), true, false, 0))                             \
    X(avg_pool_more, "[1, 1, 1]", 0, trace_avg_pool2d(E(1, b, b), TRACE_2(4), TRACE_2(1), TRACE_2(2), true, false, 0)) \
    X(max_pool_of_padding, "[1, 2, 1, 5]", -INFINITY,                                                                  \
      trace_max_pool2d(E(1, 2, b, 4), TRACE_2(2), TRACE_2(1), TRACE_2(1), NULL, false))                                \
    X(embedding, "[2, 0, 4]", NONE, trace_embedding(F(5, 4), EI(2, b)))                                                \
    X(embedding_wide, "[2, 3, 0]", NONE, trace_embedding(E(5, b), EI(2, 3)))                                           \
    X(gather, "[2, 0]", NONE, trace_gather(trace_exp(F(2, 5)), 1, EI(2, b)))                                           \
    X(cross_entropy, "[]", NAN, trace_cross_entropy(F(b, 5), EI(b), TRACE_NONE, TRACE_REDUCTION_MEAN, -100, 0))        \
    X(no_index, "[0, 4]", NONE, trace_index_select(F(3, 4), 0, trace_narrow(D(TRACE_I64, 9), 0, 0, b)))                \
    X(cat_front, "[3, 2]", NONE, trace_cat(TRACE_ARGS(trace_exp(E(b, 2)), F(3, 2)), 0))                                \
    X(cat_nothing, "[0, 2]", NONE, trace_cat(TRACE_ARGS(trace_exp(E(b, 2)), E(b, 2)), 0))                              \
    X(cat_middle, "[2, 3]", 0.5, trace_cat(TRACE_ARGS(F(2, 1), E(2, b), F(2, 2)), 1))                                  \
    X(pad, "[2, 3]", 7, trace_pad(trace_exp(E(2, b)), TRACE_DIMS(1, 2), TRACE_PAD_CONSTANT, 7))                        \
    X(pad_rows, "[3, 2]", 3, trace_pad(E(b, 2), TRACE_DIMS(0, 0, 2, 1), TRACE_PAD_CONSTANT, 3))                        \
    X(flatten, "[0]", NONE, trace_exp(trace_flatten(E(2, b, 3), 0, -1)))                                               \
    X(reshape, "[0, 2]", NONE, trace_reshape(trace_exp(E(4, b)), TRACE_DIMS(2 * b, 2)))                                \
    X(reshape_sum, "[2]", 0,                                                                                           \
      trace_sum(trace_reshape(trace_exp(E(4, b, 3)), TRACE_DIMS(2, 6 * b)), TRACE_DIMS(1), false))                     \
    X(turned, "[0]", NONE, trace_add_f(trace_flatten(trace_transpose(E(b, 2, 3), 0, 2), 0, -1), 1))                    \
    X(flip, "[2, 0]", NONE, trace_flip(E(2, b), TRACE_DIMS(0, 1)))                                                     \
    X(unfold, "[0, 3, 3]", NONE, trace_exp(trace_unfold(E(b, 7), 1, 3, 2)))                                            \
    X(diagonal, "[]", 0, trace_sum(trace_diagonal(trace_exp(E(3, b)), 0, 0, 1), ALL))                                  \
    X(expand_sum, "[3]", 0, trace_sum(trace_expand(trace_exp(F(3, 1)), TRACE_DIMS(3, b)), TRACE_DIMS(1), false))       \
    X(arange_sum, "[]", 0, trace_sum(trace_arange(ctx, 0, b, 1, TRACE_F32), ALL))                                      \
    X(one_hot, "[0, 4]", NONE,                                                                                         \
      trace_to(trace_eq(trace_unsqueeze(EI(b), 1), trace_arange(ctx, 0, 4, 1, TRACE_I64)), TRACE_F32))                 \
    X(argmax, "[0]", NONE, trace_argmax(trace_exp(E(b, 3)), 1, false))                                                 \
    X(amax, "[0]", NONE, trace_amax(trace_exp(E(b, 3)), TRACE_DIMS(1), false))                                         \
    X(gru, "[0, 3]", NONE, trace_gru_cell(E(b, 2), E(b, 3), E(9, 2), E(9, 3), TRACE_NONE, TRACE_NONE))                 \
    X(division_by_nothing, "[]", 0,                                                                                    \
      trace_sum(trace_floor_divide(D(TRACE_I32, b), trace_mul_i(D(TRACE_I32, b), 0 + (b > 0))), ALL))                  \
    X(written, "[3, 2]", 0.5, written(b))                                                                              \
    X(written_rows, "[3, 2]", 0.5, written_rows(b))                                                                    \
    X(looped, "[]", 3, looped(b))                                                                                      \
    X(looped_rows, "[0, 2]", NONE, looped_rows(b))
#define TRACE_2(n) ((const int64_t[]){n, n})

static T *written(int64_t b) {
    T *x = trace_clone(F(3, 2)), *part = trace_narrow(x, 0, b ? 0 : 3, b ? 1 : 0);
    trace_mul_f_(part, 4);
    trace_copy_(part, trace_exp(part));
    trace_fill_f_(part, 9);
    return b ? F(3, 2) : x;
}
static T *written_rows(int64_t b) {
    T *x = trace_clone(F(3, 2));
    b = b > 3 ? 3 : b;
    trace_index_copy_(x, 0, trace_narrow(trace_full_i(ctx, TRACE_DIMS(9), b ? 1 : 999, TRACE_I64), 0, 0, b), F(b, 2));
    return x;
}
static T *looped(int64_t b) {
    T *v[2] = {trace_sum(E(2, b), ALL), E(2, b)};
    trace_repeat(3, v, 2);
    v[0] = trace_add_f(trace_add(v[0], trace_sum(v[1], ALL)), 1);
    v[1] = trace_mul_f(v[1], 0);
    trace_repeat_end(v, 2);
    return v[0];
}
static T *looped_rows(int64_t b) {
    T *v = E(b, 2);
    trace_repeat(2, &v, 1);
    v = trace_softmax(v, 1);
    trace_repeat_end(&v, 1);
    return v;
}
#define DEFINE(name, shape, w, ...)                                                                                    \
    static T *scene_##name(int64_t b) { return __VA_ARGS__; }                                                          \
    static double want_##name(int64_t b) { return (void)b, w; }
SCENES(DEFINE)
static const struct scene {
    const char *name, *shape; // where b is 0
    T *(*f)(int64_t);
    double (*want)(int64_t);
} scenes[] = {
#define LIST(name, shape, w, ...) {#name, shape, scene_##name, want_##name},
    SCENES(LIST)};

static void check(const char *name, const char *how, T *y, const char *want_shape, double want) {
    char shape[64];
    double v[64];
    size_t n = (size_t)snprintf(shape, sizeof shape, "[");
    for (int d = 0; d < trace_rank(y); d++)
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%d", d ? ", " : "", (int)trace_size(y, d));
    (void)snprintf(shape + n, sizeof shape - n, "]");
    ck_assert_msg(!strcmp(shape, want_shape), "%s, %s: %s, not %s", name, how, shape, want_shape);
    T *wide = trace_to(y, TRACE_F64);
    ck_assert(wide && trace_numel(y) <= 64);
    OK(trace_read(wide, v, (size_t)trace_numel(y) * 8)); // 0 bytes where there is nothing
    trace_release(wide);
    for (int64_t i = 0; want != NONE && i < trace_numel(y); i++)
        ck_assert_msg(v[i] == want || (isnan(v[i]) && isnan(want)), "%s, %s: element %d is %g, not %g", name, how,
                      (int)i, v[i], want);
}

// Every scene with these extents one after the other.
static void run_scenes(const char *switches, enum trace_mode mode, int dynamic, const int64_t *extents, size_t n) {
    char how[160];
    ck_assert(setenv("TRACEJIT_NO", switches, 1) == 0);
    OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = tj_test_quiet), &ctx));
    for (size_t s = 0; s < TJ_COUNT(scenes); s++) {
        trace_region *r;
        OK(trace_region_create(ctx, scenes[s].name, TRACE_REGION_OPTIONS(.mode = mode, .dynamic = dynamic), &r));
        for (size_t k = 0; k < n; k++) {
            T *y = NULL;
            (void)snprintf(how, sizeof how, "without '%s', mode %d, dynamic %d, run %zu of extent %d", switches,
                           (int)mode, dynamic, k, (int)extents[k]);
            if (trace_begin(r, NULL, 0))
                y = scenes[s].f(extents[k]);
            tj_status st = trace_end(r, &y, 1);
            ck_assert_msg(st == TRACE_OK, "%s, %s: %s", scenes[s].name, how, trace_last_error(ctx));
            if (extents[k] == 0)
                check(scenes[s].name, how, y, scenes[s].shape, scenes[s].want(0));
            trace_release(y);
        }
        trace_region_release(r);
    }
    trace_context_release(ctx);
}

START_TEST(exact) {
    static const char *const off[] = {"", "jit", "fuse,epilogue", "simplify"};
    for (size_t k = 0; k < TJ_COUNT(off); k++)
        run_scenes(off[k], TRACE_MODE_RECORD, TRACE_DYNAMIC_OFF, (const int64_t[]){0}, 1);
}
END_TEST
START_TEST(op_by_op) { run_scenes("", TRACE_MODE_EAGER, TRACE_DYNAMIC_AUTO, (const int64_t[]){0}, 1); }
END_TEST
START_TEST(between_sizes) { run_scenes("", TRACE_MODE_RECORD, TRACE_DYNAMIC_AUTO, (const int64_t[]){3, 0, 4, 0}, 4); }
END_TEST

// The extent as that of inputs, so that a plan made for others serves it, and the other way round. Indices and divisors
// `bad` are out of range where b is 0: looking at one would be an error.
struct inputs {
    T *x, *y, *i, *bad, *divisor, *w, *wide; // [b, 2], [2, b], i64 [b], i64 [2], i32 [1], [2, 2], [2, 3, b]
};
#define ONE(t) trace_expand(trace_narrow(t, 0, 0, 1), TRACE_DIMS(trace_size(in->x, 0)))
#define SYMBOLIC(X)                                                                                                    \
    X(sums, "[2]", 0, trace_sum(trace_exp(in->y), TRACE_DIMS(1), false))                                               \
    X(columns, "[1, 2]", NAN, trace_mean(trace_mul(in->x, in->x), TRACE_DIMS(0), true))                                \
    X(vars, "[2]", NAN, trace_var(trace_exp(in->y), TRACE_DIMS(1), 0, false))                                          \
    X(softmax, "[2, 0]", NONE, trace_softmax(trace_mul_f(in->y, 3), 1))                                                \
    X(product, "[2, 2]", 1, trace_add_f(trace_relu(trace_matmul(in->y, in->x)), 1))                                    \
    X(rows_of_product, "[2]", 0, trace_sum(trace_exp(trace_matmul(in->w, in->y)), TRACE_DIMS(1), false))               \
    X(mean_of_product, "[2]", NAN, trace_mean(trace_relu(trace_matmul(in->w, in->y)), TRACE_DIMS(1), false))           \
    X(linear_k, "[2, 2]", 0, trace_linear(in->y, in->y, TRACE_NONE))                                                   \
    X(ints, "[2, 2]", 0, trace_matmul(trace_to(in->y, TRACE_I32), trace_to(in->x, TRACE_I32)))                         \
    X(keys, "[2, 2]", 0, trace_scaled_dot_product_attention(in->w, in->x, in->x, TRACE_NONE, false, 0, false))         \
    X(padded, "[2, 3]", 7, trace_pad(trace_exp(in->y), TRACE_DIMS(1, 2), TRACE_PAD_CONSTANT, 7))                       \
    X(joined, "[2, 2]", 0.125, trace_cat(TRACE_ARGS(in->y, trace_mul_f(in->w, 0.25), in->y), 1))                       \
    X(pooled, "[2, 2, 1]", 0,                                                                                          \
      trace_avg_pool2d(trace_reshape(in->wide, TRACE_DIMS(2, 3, -1 + (trace_numel(in->wide) == 0))), TRACE_2(2),       \
                       TRACE_2(2), TRACE_2(1), false, false, 0))                                                       \
    X(apart, "[3]", 0, trace_sum(trace_exp(in->wide), TRACE_DIMS(0, 2), false))                                        \
    X(turned, "[0]", NONE, trace_add_f(trace_flatten(trace_transpose(in->x, 0, 1), 0, -1), 1))                         \
    X(picked, "[0, 2]", NONE, trace_index_select(in->w, 0, in->i))                                                     \
    X(unlooked, "[2]", 0, trace_sum(trace_index_select(in->w, 0, ONE(in->bad)), TRACE_DIMS(0), false))                 \
    X(unlooked_rows, "[2, 2]", 0, trace_sum(trace_index_select(in->wide, 1, in->bad), TRACE_DIMS(2), false))           \
    X(unlooked_lines, "[2]", 0,                                                                                        \
      trace_sum(trace_exp(trace_index_select(in->wide, 1, in->bad)), TRACE_DIMS(1, 2), false))                         \
    X(unlooked_any, "[2]", 0,                                                                                          \
      trace_any(trace_gt_f(trace_index_select(in->wide, 1, in->bad), 9), TRACE_DIMS(1, 2), false))                     \
    X(undivided, "[2]", 0,                                                                                             \
      trace_sum(trace_floor_divide(trace_to(in->y, TRACE_I32), in->divisor), TRACE_DIMS(1), false))                    \
    X(undivided_rows, "[2]", 0,                                                                                        \
      trace_sum(trace_remainder(trace_to(in->y, TRACE_I32), trace_expand(in->divisor, TRACE_DIMS(2, 1))),              \
                TRACE_DIMS(1), false))
#undef DEFINE
#undef LIST
#define DEFINE(name, shape, w, ...)                                                                                    \
    static T *symbolic_##name(const struct inputs *in) { return __VA_ARGS__; }
SYMBOLIC(DEFINE)
static const struct {
    const char *name, *shape;
    double want;
    T *(*f)(const struct inputs *);
} symbolic[] = {
#define LIST(name, shape, w, ...) {#name, shape, w, symbolic_##name},
    SYMBOLIC(LIST)};

static const int64_t orders[][5] = {{3, 0, 4, 0, 7}, {0, 3, 0, 5, 0}, {0, 0, 1, 6, 0}, {70, 66, 0, 65, 1}};

static void run_symbolic(enum trace_mode mode, int dynamic, bool buckets) {
    char how[120];
    for (size_t s = 0; s < TJ_COUNT(symbolic) * TJ_COUNT(orders); s++) {
        size_t c = s / TJ_COUNT(orders), o = s % TJ_COUNT(orders);
        trace_region *r;
        OK(trace_region_create(ctx, symbolic[c].name, TRACE_REGION_OPTIONS(.mode = mode, .dynamic = dynamic), &r));
        if (buckets)
            OK(trace_region_buckets(r, 0, 0, TRACE_BUCKETS_POWERS, NULL, 0));
        for (size_t k = 0; k < TJ_COUNT(orders[o]); k++) {
            int64_t b = orders[o][k];
            struct inputs in = {E(b, 2), E(2, b), EI(b), D(TRACE_I64, 2), D(TRACE_I32, 1), F(2, 2), E(2, 3, b)};
            T *y = NULL, *all[] = {in.x, in.y, in.i, in.bad, in.divisor, in.w, in.wide};
            if (!b) {
                trace_fill_i_(in.bad, 999);
                trace_fill_i_(in.divisor, 0);
            }
            if (trace_begin(r, all, TJ_COUNT(all)))
                y = symbolic[c].f(&in);
            tj_status st = trace_end(r, &y, 1);
            (void)snprintf(how, sizeof how, "mode %d, dynamic %d, order %zu, run %zu of extent %d", (int)mode, dynamic,
                           o, k, (int)b);
            ck_assert_msg(st == TRACE_OK, "%s, %s: %s", symbolic[c].name, how, trace_last_error(ctx));
            if (!b)
                check(symbolic[c].name, how, y, symbolic[c].shape, symbolic[c].want);
            trace_release(y);
            for (size_t i = 0; i < TJ_COUNT(all); i++)
                trace_release(all[i]);
        }
        trace_region_release(r);
    }
}

START_TEST(symbols) {
    OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = tj_test_quiet), &ctx));
    run_symbolic(TRACE_MODE_RECORD, TRACE_DYNAMIC_AUTO, false);
    run_symbolic(TRACE_MODE_RECORD, TRACE_DYNAMIC_ON, false);
    run_symbolic(TRACE_MODE_RECORD, TRACE_DYNAMIC_AUTO, true);
    run_symbolic(TRACE_MODE_REPLAY, TRACE_DYNAMIC_AUTO, false);
    trace_context_release(ctx);
}
END_TEST

// A bound plan over memory without elements: the sum of nothing and what stands beside it, each run anew.
START_TEST(bound) {
    OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = tj_test_quiet), &ctx));
    for (int b = 0; tj_test_compiler() && b < 2; b++) {
        T *x = E(3, 0), *y = E(0, 2), *sum = F(3), *product = F(3, 2), *none = E(0);
        trace_region *r;
        trace_bound *plan = NULL;
        float v[6];
        OK(trace_region_create(ctx, "bound", TRACE_REGION_OPTIONS(.dynamic = b ? TRACE_DYNAMIC_ON : 0), &r));
        if (trace_begin(r, TRACE_ARGS(x, y, sum, product, none))) {
            trace_add_(sum, trace_sum(trace_exp(x), TRACE_DIMS(1), false));
            trace_copy_(product, trace_add_f(trace_matmul(x, y), 2));
            trace_copy_(none, trace_exp(trace_flatten(x, 0, -1)));
        }
        OK(trace_end_bind(r, NULL, &plan));
        for (int k = 0; k < 3; k++)
            OK(trace_bound_run(plan));
        OK(trace_read(sum, v, 12));
        ck_assert(v[0] == 0.5f && v[2] == 0.5f);
        OK(trace_read(product, v, 24));
        ck_assert(v[0] == 2 && v[5] == 2);
        trace_bound_release(plan);
        trace_region_release(r);
        T *all[] = {x, y, sum, product, none};
        for (size_t i = 0; i < TJ_COUNT(all); i++)
            trace_release(all[i]);
    }
    trace_context_release(ctx);
}
END_TEST

// Readbacks of what is empty, and of what came from it.
START_TEST(read_back) {
    OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = tj_test_quiet), &ctx));
    for (int dynamic = 0; dynamic < 3; dynamic++) {
        trace_region *r;
        OK(trace_region_create(ctx, "read", TRACE_REGION_OPTIONS(.dynamic = dynamic), &r));
        for (int k = 0; k < 3; k++) {
            T *x = E(2, k == 1 ? 5 : 0), *y = NULL, *later = NULL;
            double sum = -1, mean = -1;
            float none = 5;
            if (trace_begin(r, TRACE_ARGS(x))) {
                T *e = trace_exp(x), *flat = trace_flatten(e, 0, -1);
                OK(trace_item_f64(trace_sum(e, ALL), &sum));
                OK(trace_item_f64(trace_mean(flat, ALL), &mean));
                if (k != 1)
                    OK(trace_read(flat, &none, 0));
                later = trace_item_later(trace_sum(flat, ALL));
                y = trace_add_f(flat, sum);
            }
            OK(trace_end(r, &y, 1));
            ck_assert(k == 1 ? sum == 10 && mean == 1 : sum == 0 && isnan(mean) && none == 5);
            ck_assert(trace_numel(y) == (k == 1 ? 10 : 0));
            OK(trace_item_f64(later, &sum));
            ck_assert(sum == (k == 1 ? 10 : 0));
            trace_release(later);
            trace_release(y);
            trace_release(x);
        }
        trace_region_release(r);
    }
    trace_context_release(ctx);
}
END_TEST

// ---- extents of 2^62 ----------------------------------------------------------------------------------------------

// x is [0, 2^62], y [2^62, 0]: nothing is to be computed. What needs 2^62 results is refused.
#define HUGE_OPS(X)                                                                                                    \
    X(0, trace_log_softmax(x, 0))                                                                                      \
    X(1, trace_softmax(x, 1))                                                                                          \
    X(2, trace_softmax(y, 0))                                                                                          \
    X(3, trace_softmax(y, 1))                                                                                          \
    X(4, trace_sum(x, TRACE_DIMS(1), false))                                                                           \
    X(5, trace_sum(y, TRACE_DIMS(0), true))                                                                            \
    X(6, trace_sum(x, ALL))                                                                                            \
    X(7, trace_mean(y, ALL))                                                                                           \
    X(8, trace_var(x, TRACE_DIMS(1), 1, false))                                                                        \
    X(9, trace_any(trace_gt_f(y, 0), TRACE_DIMS(0), false))                                                            \
    X(10, trace_amax(x, TRACE_DIMS(1), false))                                                                         \
    X(11, trace_argmax(x, 1, false))                                                                                   \
    X(12, trace_rms_norm(x, TRACE_NONE, 1e-5))                                                                         \
    X(13, trace_layer_norm(y, TRACE_DIMS(0), TRACE_NONE, TRACE_NONE, 1e-5))                                            \
    X(14, trace_exp(trace_add(y, trace_transpose(x, 0, 1))))                                                           \
    X(15, trace_clone(trace_transpose(y, 0, 1)))                                                                       \
    X(16, trace_cat(TRACE_ARGS(x, x), 0))                                                                              \
    X(17, trace_stack(TRACE_ARGS(trace_narrow(x, 1, 5, 3), trace_narrow(x, 1, BIG - 3, 3)), 2))                        \
    X(18, trace_flip(x, TRACE_DIMS(1)))                                                                                \
    X(19, trace_matmul(x, y))                                                                                          \
    X(20, trace_relu(trace_matmul(y, E(0, 3))))                                                                        \
    X(21, trace_linear(x, trace_narrow(x, 0, 0, 0), TRACE_NONE))                                                       \
    X(22, trace_scaled_dot_product_attention(E(0, 0), y, y, TRACE_NONE, false, 1, false))                              \
    X(23, trace_scaled_dot_product_attention(y, E(3, 0), E(3, 0), TRACE_NONE, true, 1, false))                         \
    X(24, trace_conv2d(host(TRACE_F32, TRACE_DIMS(0, 1, BIG / 8, 4)), F(2, 1, 3, 3), TRACE_NONE, NULL, NULL, NULL, 1)) \
    X(25, trace_max_pool2d(host(TRACE_F32, TRACE_DIMS(0, BIG / 8, 4)), TRACE_2(2), NULL, NULL, NULL, false))           \
    X(26, trace_pad(x, TRACE_DIMS(1, 2), TRACE_PAD_CONSTANT, 0))                                                       \
    X(27, trace_pad(x, TRACE_DIMS(1, 2), TRACE_PAD_REPLICATE, 0))                                                      \
    X(28, trace_fill_f_(x, 1) ? trace_retain(x) : NULL)                                                                \
    X(29, trace_softmax(trace_reshape(x, TRACE_DIMS(2, 0, BIG / 2)), 2))                                               \
    X(30, trace_flatten(trace_exp(trace_reshape(y, TRACE_DIMS(4, BIG / 4, 0))), 1, 2))                                 \
    X(31, trace_index_select(x, 0, trace_arange(ctx, 0, 0, 1, TRACE_I64)))                                             \
    X(32, trace_index_select(x, 1, D(TRACE_I64, 3)))                                                                   \
    X(33, trace_gather(x, 1, EI(0, 7)))                                                                                \
    X(34, trace_unfold(x, 1, BIG - 1, 1))                                                                              \
    X(35, trace_exp(trace_unfold(x, 1, 3, BIG)))                                                                       \
    X(36, trace_exp(trace_slice(x, 1, 2, BIG, BIG / 2)))                                                               \
    X(37, trace_diagonal(x, 5, 0, 1))                                                                                  \
    X(38, trace_select(x, 1, BIG - 1))                                                                                 \
    X(39, trace_cross_entropy(trace_narrow(y, 1, 0, 0), EI(BIG), TRACE_NONE, TRACE_REDUCTION_SUM, -100, 0))            \
    X(40, trace_expand(trace_narrow(x, 1, 0, 1), TRACE_DIMS(0, BIG)))
#undef DEFINE
#undef LIST
#define DEFINE(k, ...)                                                                                                 \
    static T *huge_##k(T *x, T *y) { return (void)x, (void)y, __VA_ARGS__; }
HUGE_OPS(DEFINE)
static const struct {
    const char *what;
    T *(*f)(T *, T *);
} huge[] = {
#define LIST(k, ...) {#__VA_ARGS__, huge_##k},
    HUGE_OPS(LIST)};

// how: 0 op by op, 1 a plan of its own, 2 symbols.
static void run_huge(const char *switches, int how) {
    ck_assert(setenv("TRACEJIT_NO", switches, 1) == 0);
    OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = tj_test_quiet, .memory_limit = 1 << 26), &ctx));
    for (size_t k = 0; k < TJ_COUNT(huge); k++) {
        T *x = host(TRACE_F32, TRACE_DIMS(0, BIG)), *y = host(TRACE_F32, TRACE_DIMS(BIG, 0)), *z = NULL;
        tj_status st = TRACE_OK;
        if (how) {
            trace_region *r;
            OK(trace_region_create(
                ctx, "huge", TRACE_REGION_OPTIONS(.dynamic = how == 2 ? TRACE_DYNAMIC_ON : TRACE_DYNAMIC_OFF), &r));
            if (trace_begin(r, TRACE_ARGS(x, y)))
                z = huge[k].f(x, y);
            st = trace_end(r, &z, 1);
            trace_region_release(r);
        } else {
            z = huge[k].f(x, y);
        }
        ck_assert_msg((z && !st) || *trace_last_error(ctx), "%s: neither a result nor an error", huge[k].what);
        ck_assert_msg(!z || trace_numel(z) < 64, "%s has elements", huge[k].what);
        ck_assert_msg(!strstr(trace_last_error(ctx), "internal") && !strstr(trace_last_error(ctx), "while compiling"),
                      "%s: %s", huge[k].what, trace_last_error(ctx));
        trace_release(z);
        trace_release(x);
        trace_release(y);
    }
    trace_context_release(ctx);
}
START_TEST(huge_extents) {
    run_huge("", 0);
    run_huge("jit", 1);
    run_huge("", 1);
    run_huge("", 2);
}
END_TEST

// A dim of extent 1 may have any stride.
START_TEST(huge_strides) {
    for (int interpreted = 0; interpreted < 2; interpreted++) {
        ck_assert(setenv("TRACEJIT_NO", interpreted ? "jit" : "", 1) == 0);
        OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = tj_test_quiet), &ctx));
        for (int dynamic = 0; dynamic < 3; dynamic++) {
            double d[6] = {1, 2, 3, 4, 5, 6}, v[6], sum;
            const int64_t dims[] = {1, 3, 1, 2}, strides[] = {BIG, 2, BIG, 1};
            T *x = trace_wrap_desc(
                ctx, TRACE_TENSOR_DESC(.dtype = TRACE_F64, .dims = dims, .strides = strides, .rank = 4, .data = d));
            T *out[4] = {NULL};
            trace_region *r;
            OK(trace_region_create(ctx, "strides", TRACE_REGION_OPTIONS(.dynamic = dynamic), &r));
            if (trace_begin(r, TRACE_ARGS(x))) {
                out[0] = trace_sum(x, ALL);
                out[1] = trace_clone(trace_reshape(trace_transpose(x, 1, 3), TRACE_DIMS(2, 3)));
                out[2] = trace_matmul(x, trace_transpose(x, 2, 3));
                trace_mul_f_(trace_narrow(trace_narrow(x, 0, 1, 0), 2, 1, 0), 5);
                trace_add_f_(trace_slice(x, 2, 0, 1, BIG), 1);
                out[3] = trace_diagonal(x, 0, 0, 2);
            }
            OK(trace_end(r, out, 4));
            OK(trace_item_f64(out[0], &sum));
            ck_assert(sum == 21);
            OK(trace_read(out[1], v, sizeof v));
            ck_assert(v[0] == 1 && v[1] == 3 && v[3] == 2 && v[5] == 6);
            OK(trace_read(out[2], v, 3 * sizeof *v));
            ck_assert(v[0] == 5 && v[1] == 25 && v[2] == 61);
            OK(trace_read(out[3], v, sizeof v));
            ck_assert(v[0] == 2 && v[5] == 7 && d[5] == 7);
            OK(trace_read(x, v, sizeof v));
            ck_assert(v[0] == 2 && v[4] == 6);
            for (int i = 0; i < 4; i++)
                trace_release(out[i]);
            trace_region_release(r);
            trace_release(x);
        }
        trace_context_release(ctx);
    }
}
END_TEST

TJ_TEST_MAIN("empty", exact, op_by_op, between_sizes, symbols, bound, read_back, huge_extents, huge_strides)
