// tests/test_record.c: recording: dtypes, shapes, interning, handles, memory, messages, buffers.
#include "../lib/hash.h"
#include "../lib/strbuf.h"
#include "../trace/record.h"
#include "tj_test.h"

static trace_context *ctx;
static trace_region *region;

static void open_all(void) {
    TJ_ASSERT_OK(trace_context_create(NULL, &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "test", NULL, &region));
}

static void close_all(void) {
    trace_stats s = {.size = sizeof s};
    trace_context_stats(ctx, &s);
    ck_assert_uint_eq(s.bytes_live, 0);
    ck_assert_ptr_null(ctx->tensors);
    trace_region_release(region);
    trace_context_release(ctx);
}

static trace_tensor *tensor(enum trace_dtype d, const int64_t *dims, size_t rank) {
    static const double zeros[4096];
    trace_tensor *t = trace_from(ctx, d, zeros, dims, rank);
    ck_assert_ptr_nonnull(t);
    return t;
}

// The trace so far, without places: what is recorded, not from where.
static char *dumped(void) {
    static char text[16384];
    struct tj_strbuf sb = {0};
    char err[256];
    ck_assert_msg(tj_trace_verify(&tj_current->trace, err, sizeof err), "%s", err);
    tj_trace_dump(&tj_current->trace, NULL, 0, &sb);
    ck_assert_ptr_nonnull(sb.s);
    size_t n = 0;
    for (const char *p = sb.s; *p && n < sizeof text - 1; p++) {
        if (p[0] == ' ' && p[1] == ' ' && p[2] == ';') {
            p = strchr(p, '\n');
        }
        text[n++] = *p;
    }
    text[n] = '\0';
    tj_sb_free(&sb);
    return text;
}

#define RECORDING(...)                                                                                                 \
    for (bool once = trace_begin(region, TRACE_ARGS(__VA_ARGS__)); once; once = false, trace_abandon(region))
#define DUMPS(want) ck_assert_str_eq(dumped(), want)

// ---- dtypes -----------------------------------------------------------------------------------------

enum {
    BO = TRACE_BOOL,
    U8 = TRACE_U8,
    I3 = TRACE_I32,
    I6 = TRACE_I64,
    F1 = TRACE_F16,
    B1 = TRACE_BF16,
    F3 = TRACE_F32,
    F6 = TRACE_F64,
    ER = -1
};
static const char *name_of(int d) { return d < 0 ? "an error" : tj_dtypes[d].name; }

// What PyTorch's result_type gives for two tensors of rank 1.
START_TEST(promotes_like_pytorch) {
    static const int want[8][8] = {{BO, U8, I3, I6, F1, B1, F3, F6}, {U8, U8, I3, I6, F1, B1, F3, F6},
                                   {I3, I3, I3, I6, F1, B1, F3, F6}, {I6, I6, I6, I6, F1, B1, F3, F6},
                                   {F1, F1, F1, F1, F1, F3, F3, F6}, {B1, B1, B1, B1, F3, B1, F3, F6},
                                   {F3, F3, F3, F3, F3, F3, F3, F6}, {F6, F6, F6, F6, F6, F6, F6, F6}};
    // the second one is 0-d: it counts only when its kind is higher
    static const int zero[8][8] = {{BO, U8, I3, I6, F1, B1, F3, F6}, {U8, U8, U8, U8, F1, B1, F3, F6},
                                   {I3, I3, I3, I3, F1, B1, F3, F6}, {I6, I6, I6, I6, F1, B1, F3, F6},
                                   {F1, F1, F1, F1, F1, F1, F1, F1}, {B1, B1, B1, B1, B1, B1, B1, B1},
                                   {F3, F3, F3, F3, F3, F3, F3, F3}, {F6, F6, F6, F6, F6, F6, F6, F6}};
    open_all();
    for (int a = 0; a < 8; a++) {
        for (int b = 0; b < 8; b++) {
            trace_tensor *x = tensor((enum trace_dtype)a, TRACE_DIMS(3)),
                         *y = tensor((enum trace_dtype)b, TRACE_DIMS(3));
            trace_tensor *s = tensor((enum trace_dtype)b, TRACE_SCALAR);
            RECORDING(x, y, s) {
                int got = trace_dtype_of(trace_add(x, y));
                ck_assert_msg(got == want[a][b], "%s + %s is %s", name_of(a), name_of(b), name_of(got));
                got = trace_dtype_of(trace_add(x, s));
                ck_assert_msg(got == zero[a][b], "%s + 0-d %s is %s", name_of(a), name_of(b), name_of(got));
                got = trace_dtype_of(trace_lt(x, y));
                ck_assert_int_eq(got, BO);
                got = trace_dtype_of(trace_div(x, y));
                ck_assert_int_eq(got, want[a][b] < F1 ? F3 : want[a][b]);
                (void)dumped();
            }
            trace_release(x);
            trace_release(y);
            trace_release(s);
        }
    }
    close_all();
}
END_TEST

START_TEST(dtypes_of_single_ops) {
    // of bool, u8, i32, i64, f16, bf16, f32, f64
    static const struct {
        const char *name;
        trace_tensor *(*fn)(trace_tensor *);
        int want[8];
    } unary[] = {
        {"neg", trace_neg, {ER, U8, I3, I6, F1, B1, F3, F6}},
        {"abs", trace_abs, {ER, U8, I3, I6, F1, B1, F3, F6}},
        {"sign", trace_sign, {BO, U8, I3, I6, F1, B1, F3, F6}},
        {"floor", trace_floor, {ER, U8, I3, I6, F1, B1, F3, F6}},
        {"round", trace_round, {ER, U8, I3, I6, F1, B1, F3, F6}},
        {"frac", trace_frac, {F3, F3, F3, F3, F1, B1, F3, F6}},
        {"square", trace_square, {I6, U8, I3, I6, F1, B1, F3, F6}},
        {"relu", trace_relu, {ER, U8, I3, I6, F1, B1, F3, F6}},
        {"relu6", trace_relu6, {ER, U8, I3, I6, F1, B1, F3, F6}},
        {"reciprocal", trace_reciprocal, {F3, F3, F3, F3, F1, B1, F3, F6}},
        {"exp", trace_exp, {F3, F3, F3, F3, F1, B1, F3, F6}},
        {"sigmoid", trace_sigmoid, {F3, F3, F3, F3, F1, B1, F3, F6}},
        {"bitwise_not", trace_bitwise_not, {BO, U8, I3, I6, ER, ER, ER, ER}},
        {"isnan", trace_isnan, {BO, BO, BO, BO, BO, BO, BO, BO}},
        {"logical_not", trace_logical_not, {BO, BO, BO, BO, BO, BO, BO, BO}},
    };
    open_all();
    for (size_t i = 0; i < TJ_COUNT(unary); i++) {
        for (int d = 0; d < 8; d++) {
            trace_tensor *x = tensor((enum trace_dtype)d, TRACE_DIMS(2, 2));
            RECORDING(x) {
                trace_tensor *y = unary[i].fn(x);
                int got = y ? trace_dtype_of(y) : -1;
                ck_assert_msg(got == unary[i].want[d], "%s of %s is %s", unary[i].name, name_of(d), name_of(got));
            }
            trace_release(x);
        }
    }
#define EACH(text, expr, ...)                                                                                          \
    do {                                                                                                               \
        static const int want_[8] = {__VA_ARGS__};                                                                     \
        for (int d = 0; d < 8; d++) {                                                                                  \
            trace_tensor *x = tensor((enum trace_dtype)d, TRACE_DIMS(2, 2));                                           \
            RECORDING(x) {                                                                                             \
                trace_tensor *y = (expr);                                                                              \
                int got = y ? trace_dtype_of(y) : -1;                                                                  \
                ck_assert_msg(got == want_[d], "%s of %s is %s", text, name_of(d), name_of(got));                      \
                (void)dumped();                                                                                        \
            }                                                                                                          \
            trace_release(x);                                                                                          \
        }                                                                                                              \
    } while (0)
    EACH("x + 1", trace_add_i(x, 1), I6, U8, I3, I6, F1, B1, F3, F6);
    EACH("x + 1.0", trace_add_f(x, 1), F3, F3, F3, F3, F1, B1, F3, F6);
    EACH("x / 2", trace_div_i(x, 2), F3, F3, F3, F3, F1, B1, F3, F6);
    EACH("x - 1", trace_sub_i(x, 1), ER, U8, I3, I6, F1, B1, F3, F6);
    EACH("1 - x", trace_rsub_i(x, 1), ER, U8, I3, I6, F1, B1, F3, F6);
    EACH("x - x", trace_sub(x, x), ER, U8, I3, I6, F1, B1, F3, F6);
    EACH("x % 2", trace_remainder_i(x, 2), I6, U8, I3, I6, F1, B1, F3, F6);
    EACH("x % x", trace_remainder(x, x), ER, U8, I3, I6, F1, B1, F3, F6);
    EACH("x // x", trace_floor_divide(x, x), ER, U8, I3, I6, F1, B1, F3, F6);
    EACH("max(x, x)", trace_maximum(x, x), BO, U8, I3, I6, F1, B1, F3, F6);
    EACH("x ** x", trace_pow(x, x), ER, U8, I3, I6, F1, B1, F3, F6);
    EACH("x ** 2", trace_pow_i(x, 2), I6, U8, I3, I6, F1, B1, F3, F6);
    EACH("x ** 0", trace_pow_i(x, 0), I6, U8, I3, I6, F1, B1, F3, F6);
    EACH("x ** 3.0", trace_pow_f(x, 3), F3, F3, F3, F3, F1, B1, F3, F6);
    EACH("x ** -1", trace_pow_i(x, -1), ER, ER, ER, ER, F1, B1, F3, F6);
    EACH("x > 1", trace_gt_i(x, 1), BO, BO, BO, BO, BO, BO, BO, BO);
    EACH("x & 1", trace_bitwise_and_i(x, 1), I6, U8, I3, I6, ER, ER, ER, ER);
    EACH("clamp(0, 1)", trace_clamp_i(x, 0, 1), I6, U8, I3, I6, F1, B1, F3, F6);
    EACH("clamp(0., 1.)", trace_clamp_f(x, 0, 1), F3, F3, F3, F3, F1, B1, F3, F6);
    EACH("sum", trace_sum(x, TRACE_SCALAR, false), I6, I6, I6, I6, F1, B1, F3, F6);
    EACH("mean", trace_mean(x, TRACE_SCALAR, false), ER, ER, ER, ER, F1, B1, F3, F6);
    EACH("var", trace_var(x, TRACE_SCALAR, 1, false), ER, ER, ER, ER, F1, B1, F3, F6);
    EACH("amax", trace_amax(x, TRACE_SCALAR, false), BO, U8, I3, I6, F1, B1, F3, F6);
    EACH("any", trace_any(x, TRACE_SCALAR, false), BO, U8, BO, BO, BO, BO, BO, BO);
    EACH("argmax", trace_argmax(x, -1, false), I6, I6, I6, I6, I6, I6, I6, I6);
    EACH("softmax", trace_softmax(x, -1), ER, ER, ER, ER, F1, B1, F3, F6);
    EACH("matmul", trace_matmul(x, x), ER, U8, I3, I6, F1, B1, F3, F6);
    EACH("add_ 1", trace_add_i_(x, 1), ER, U8, I3, I6, F1, B1, F3, F6);
    EACH("add_ 1.0", trace_add_f_(x, 1), ER, ER, ER, ER, F1, B1, F3, F6);
    EACH("div_ 2", trace_div_i_(x, 2), ER, ER, ER, ER, F1, B1, F3, F6);
    EACH("fill_ 2.5", trace_fill_f_(x, 2.5), BO, U8, I3, I6, F1, B1, F3, F6);
    close_all();
}
END_TEST

START_TEST(scalars_round_once) {
    static const struct {
        tj_dtype d;
        double in, out;
    } f[] = {{TRACE_F32, 0.1, 0x1.99999ap-4},   {TRACE_F16, 0.1, 0x1.998p-4},       {TRACE_BF16, 0.1, 0x1.9ap-4},
             {TRACE_F16, 65519, 65504},         {TRACE_F16, 65520, INFINITY},       {TRACE_F16, -1e30, -INFINITY},
             {TRACE_F16, 0x1p-25, 0},           {TRACE_F16, 0x1.8p-25, 0x1p-24},    {TRACE_F16, 0x1.004p0, 0x1.004p0},
             {TRACE_F16, 0x1.002p0, 1},         {TRACE_F16, 0x1.006p0, 0x1.008p0},  {TRACE_F32, 1e-46, 0},
             {TRACE_F32, 0x1.8p-149, 0x1p-148}, {TRACE_F32, 3.5e38, INFINITY},      {TRACE_BF16, 0x1.01p0, 1},
             {TRACE_BF16, 0x1.03p0, 0x1.04p0},  {TRACE_BF16, 0x1.ffp127, INFINITY}, {TRACE_F64, 0.1, 0.1}};
    for (size_t i = 0; i < TJ_COUNT(f); i++) {
        double got = tj_round_to(f[i].d, f[i].in);
        ck_assert_msg(got == f[i].out, "%s(%a) is %a, not %a", tj_dtypes[f[i].d].name, f[i].in, got, f[i].out);
    }
    ck_assert(isnan(tj_round_to(TRACE_F16, NAN)) && signbit(tj_round_to(TRACE_BF16, -0.0)));
    for (int i = 0; i < 200000; i++) { // the fast way against the compiler's
        uint64_t bits = (uint64_t)i * 0x9E3779B97F4A7C15u;
        bits = (bits & ~((uint64_t)0x7FF << 52)) | (uint64_t)(800 + i % 400) << 52;
        double v;
        memcpy(&v, &bits, sizeof v);
        ck_assert(tj_round_to(TRACE_F32, v) == (double)(float)v);
    }
    ck_assert_int_eq(tj_scalar_convert_f(TRACE_I32, 3e9).i, INT32_MAX);
    ck_assert_int_eq(tj_scalar_convert_f(TRACE_U8, -1.5).i, 0);
    ck_assert_int_eq(tj_scalar_convert_f(TRACE_I64, NAN).i, 0);
    ck_assert_int_eq(tj_scalar_convert_f(TRACE_I64, 1e30).i, INT64_MAX);
    ck_assert_int_eq(tj_scalar_convert_f(TRACE_BOOL, NAN).i, 1);
    ck_assert_int_eq(tj_scalar_convert_i(TRACE_U8, 300).i, 44);
    ck_assert_int_eq(tj_scalar_convert_i(TRACE_I32, (int64_t)1 << 31).i, INT32_MIN);
    ck_assert(tj_scalar_convert_i(TRACE_F32, INT64_MAX).f == 0x1p63);
    ck_assert(tj_scalar_convert_i(TRACE_F32, ((int64_t)1 << 60) + ((int64_t)1 << 36) + 1).f == 0x1.000002p60);
}
END_TEST

// ---- what is recorded -----------------------------------------------------------------------------------

START_TEST(records_golden_text) {
    open_all();
    trace_tensor *x = tensor(TRACE_F32, TRACE_DIMS(2, 3)), *b = tensor(TRACE_F16, TRACE_DIMS(3));
    RECORDING(x, b) {
        trace_tensor *y = trace_add(x, b);
        y = trace_mul_f(y, 0.1);
        (void)trace_sum(y, TRACE_DIMS(-1), true);
        (void)trace_select(y, 0, 1);
        DUMPS("%0 = leaf f32[2, 3] #0 input=0\n"
              "%1 = leaf f16[3] #1 input=1\n"
              "%2 = cast f32[3] %1\n"
              "%3 = add f32[2, 3] %0 %2\n"
              "%4 = scalar f32[] 0.100000001\n"
              "%5 = mul f32[2, 3] %3 %4\n"
              "%6 = sum f32[2, 1] %5 {2 1 0}\n"
              "%7 = scalar i64[] 1\n"
              "%8 = slice f32[1, 3] %5 %7 {0 1}\n"
              "%9 = reshape f32[3] %8\n");
    }
    RECORDING(x) { // exponents that are ops of their own
        (void)trace_pow_f(x, 2);
        (void)trace_pow_f(x, 3);
        (void)trace_pow_f(x, 0.5);
        (void)trace_pow_f(x, -0.5);
        (void)trace_pow_i(x, -1);
        (void)trace_pow_f(x, -2);
        (void)trace_pow_f(x, 1);
        (void)trace_pow_f(x, 0);
        (void)trace_pow_f(x, 1.5);
        DUMPS("%0 = leaf f32[2, 3] #0 input=0\n"
              "%1 = square f32[2, 3] %0\n"
              "%2 = cube f32[2, 3] %0\n"
              "%3 = sqrt f32[2, 3] %0\n"
              "%4 = rsqrt f32[2, 3] %0\n"
              "%5 = reciprocal f32[2, 3] %0\n"
              "%6 = rsquare f32[2, 3] %0\n"
              "%7 = copy f32[2, 3] %0\n"
              "%8 = scalar f32[] 1\n"
              "%9 = expand f32[2, 3] %8\n"
              "%10 = scalar f32[] 1.5\n"
              "%11 = pow f32[2, 3] %0 %10\n");
    }
    trace_release(x);
    trace_release(b);
    close_all();
}
END_TEST

START_TEST(equal_ops_merge_and_scalars_do_not) {
    open_all();
    trace_tensor *x = tensor(TRACE_F32, TRACE_DIMS(4));
    for (int collide = 0; collide < 2; collide++) {
        tj_hash_collide = collide;
        RECORDING(x) {
            trace_tensor *a = trace_exp(x), *b = trace_exp(x);
            ck_assert_ptr_ne(a, b); // a handle of its own for each: one may be written
            (void)trace_add(a, b);
            (void)trace_add_f(a, 1);
            (void)trace_add_f(a, 1);
            DUMPS("%0 = leaf f32[4] #0 input=0\n"
                  "%1 = exp f32[4] %0\n"
                  "%2 = copy f32[4] %1\n"
                  "%3 = add f32[4] %1 %1\n"
                  "%4 = scalar f32[] 1\n"
                  "%5 = add f32[4] %1 %4\n"
                  "%6 = scalar f32[] 1\n"
                  "%7 = add f32[4] %1 %6\n");
            // and the write reaches one of them only
            trace_add_i_(b, 1);
            tj_ref na = tj_resolve(tj_current, a, "test", TJ_LOC(NULL, 0)),
                   nb = tj_resolve(tj_current, b, "test", TJ_LOC(NULL, 0));
            ck_assert_uint_eq(na, 1);
            ck_assert_int_eq(tj_current->trace.nodes[nb].op, TJ_OP_UPDATE);
            trace_tensor *c = trace_exp(x); // once more, after a write to one
            ck_assert_uint_ne(tj_resolve(tj_current, c, "test", TJ_LOC(NULL, 0)), nb);
        }
    }
    tj_hash_collide = false;
    // Many nodes, so that the table grows, all found again.
    RECORDING(x) {
        trace_tensor *y = x, *z = x;
        for (int i = 0; i < 2000; i++) {
            y = trace_neg(y);
        }
        uint32_t n = tj_current->trace.nnodes;
        for (int i = 0; i < 2000; i++) {
            z = trace_neg(z);
        }
        ck_assert_uint_eq(tj_current->trace.nnodes, n + 2000); // the second handles, no second ops
        for (uint32_t i = n; i < n + 2000; i++) {
            ck_assert_int_eq(tj_current->trace.nodes[i].op, TJ_OP_COPY);
        }
    }
    trace_release(x);
    close_all();
}
END_TEST

static struct tj_trace *twice(trace_tensor *x, trace_tensor *w, struct tj_trace *copy, float s, int64_t start) {
    RECORDING(x) {
        trace_tensor *y = trace_mul_f(trace_linear(x, w, TRACE_NONE), s);
        y = trace_narrow(y, 0, start, 2);
        (void)trace_cat(TRACE_ARGS(y, y, y, y, y, y), 1);
        tj_trace_init(copy);
        ck_assert(tj_trace_copy(copy, &tj_current->trace));
    }
    return copy;
}

START_TEST(same_bytes_for_the_same_ops) {
    open_all();
    trace_tensor *x = tensor(TRACE_F32, TRACE_DIMS(5, 3)), *w = tensor(TRACE_F32, TRACE_DIMS(4, 3)),
                 *v = tensor(TRACE_F32, TRACE_DIMS(4, 3)), *u = tensor(TRACE_F32, TRACE_DIMS(6, 3));
    struct tj_trace a, b, c;
    (void)twice(x, w, &a, 2, 0);
    (void)twice(x, v, &b, 3, 1); // other weights, scalar, start: the same trace
    (void)twice(u, v, &c, 3, 1);
    ck_assert(tj_trace_equal(&a, &b) && tj_trace_hash(&a) == tj_trace_hash(&b));
    ck_assert(!tj_trace_equal(&a, &c) && tj_trace_hash(&a) != tj_trace_hash(&c));
    ck_assert(tj_trace_shape(&a, (const int64_t[]){5, 3}, 2) == a.nodes[0].shape);
    tj_trace_free(&a);
    tj_trace_free(&b);
    tj_trace_free(&c);
    trace_release(x);
    trace_release(w);
    trace_release(v);
    trace_release(u);
    close_all();
}
END_TEST

START_TEST(layouts_have_classes) {
    ck_assert_uint_eq(tj_layout_of((int64_t[]){2, 3}, (int64_t[]){3, 1}, 2), 0);
    ck_assert_uint_eq(tj_layout_of((int64_t[]){2, 1, 3}, (int64_t[]){3, 77, 1}, 3), 0);
    ck_assert_uint_eq(tj_layout_of((int64_t[]){2, 3}, (int64_t[]){1, 2}, 2), TJ_LAY_UNIT | TJ_LAY_STRIDED << 2);
    ck_assert_uint_eq(tj_layout_of((int64_t[]){2, 3}, (int64_t[]){0, 1}, 2), TJ_LAY_BROADCAST);
    ck_assert_uint_eq(tj_layout_of((int64_t[]){2, 3}, (int64_t[]){9, 1}, 2), TJ_LAY_STRIDED);
    ck_assert_uint_eq(tj_layout_of((int64_t[]){0, 3}, (int64_t[]){9, 5}, 2), 0);
    ck_assert_uint_eq(tj_layout_of(NULL, NULL, 0), 0);
    int64_t out[4];
    ck_assert(tj_reshape_strides((int64_t[]){4, 6}, (int64_t[]){12, 2}, 2, (int64_t[]){2, 2, 6}, 3, out));
    ck_assert(out[0] == 24 && out[1] == 12 && out[2] == 2);
    ck_assert(tj_reshape_strides((int64_t[]){4, 6}, (int64_t[]){12, 2}, 2, (int64_t[]){24}, 1, out) && out[0] == 2);
    ck_assert(!tj_reshape_strides((int64_t[]){4, 6}, (int64_t[]){1, 4}, 2, (int64_t[]){24}, 1, out));
    ck_assert(tj_reshape_strides((int64_t[]){1}, (int64_t[]){7}, 1, NULL, 0, out));
}
END_TEST

// ---- memory -----------------------------------------------------------------------------------------------

START_TEST(writes_become_updates) {
    open_all();
    trace_tensor *x = tensor(TRACE_F32, TRACE_DIMS(4));
    RECORDING(x) {
        trace_tensor *old = trace_narrow(x, 0, 1, 2);
        ck_assert_ptr_eq(trace_add_i_(old, 1), old);
        (void)trace_neg(x); // sees the write through the view
        trace_mul_i_(x, 3);
        (void)trace_neg(old); // sees the write through the root
        DUMPS("%0 = leaf f32[4] #0 input=0 written\n"
              "%1 = scalar i64[] 1\n"
              "%2 = slice f32[2] %0 %1 {0 1}\n"
              "%3 = scalar f32[] 1\n"
              "%4 = add f32[2] %2 %3\n"
              "%5 = update f32[4] %0 %4 %2\n"
              "%6 = neg f32[4] %5\n"
              "%7 = scalar f32[] 3\n"
              "%8 = mul f32[4] %5 %7\n"
              "%9 = update f32[4] %5 %8 %5\n"
              "%10 = slice f32[2] %9 %1 {0 1}\n"
              "%11 = neg f32[2] %10\n");
        tj_ref w[2];
        ck_assert_uint_eq(tj_run_writes(tj_current, w, 2), 1);
        ck_assert_uint_eq(w[0], 9);
        // Undone as by a failed inner scope, in two steps.
        tj_run_rollback(tj_current, 7);
        ck_assert_uint_eq(tj_run_writes(tj_current, w, 2), 1);
        ck_assert_uint_eq(w[0], 5);
        tj_run_rollback(tj_current, 5);
        ck_assert_uint_eq(tj_run_writes(tj_current, w, 2), 0);
        trace_fill_f_(x, 7);
        trace_tensor *r = trace_reshape(trace_transpose(trace_reshape(x, TRACE_DIMS(2, 2)), 0, 1), TRACE_DIMS(4));
        ck_assert_int_eq(trace_stride(r, 0), 1); // a copying reshape has memory of its own
        trace_add_i_(r, 1);
        ck_assert_uint_eq(tj_run_writes(tj_current, w, 2), 1);
    }
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(overlapping_leaves_share_a_base) {
    open_all();
    trace_tensor *base = tensor(TRACE_F32, TRACE_DIMS(6));
    trace_tensor *x = trace_narrow(base, 0, 0, 3), *y = trace_narrow(base, 0, 1, 3), *e = trace_slice(base, 0, 0, 6, 2),
                 *o = trace_slice(base, 0, 1, 6, 2);
    ck_assert(tj_tensors_overlap(x, y) && !tj_tensors_overlap(e, o) && tj_tensors_overlap(e, x));
    RECORDING(x, y) {
        trace_mul_i_(x, 2);
        (void)trace_neg(y);
        DUMPS("%0 = leaf f32[3] #0 input=0 written group=1\n"
              "%1 = leaf f32[3] #1 input=1 group=1\n"
              "%2 = scalar f32[] 2\n"
              "%3 = mul f32[3] %0 %2\n"
              "%4 = leaf f32[4] #2 written group=1\n"
              "%5 = scalar i64[] 0\n"
              "%6 = as_strided f32[3] %4 %5 {1 0 0 0 0 0 0 0}\n"
              "%7 = scalar i64[] 1\n"
              "%8 = as_strided f32[3] %4 %7 {1 0 0 0 0 0 0 0}\n"
              "%9 = update f32[4] %4 %3 %6\n"
              "%10 = as_strided f32[3] %9 %7 {1 0 0 0 0 0 0 0}\n"
              "%11 = neg f32[3] %10\n");
    }
    RECORDING(x) { // found out later: what was written so far becomes part of the base
        trace_mul_i_(x, 2);
        (void)trace_neg(y);
        trace_add_i_(y, 1);
        (void)trace_neg(x);
        (void)dumped();
        tj_ref w[2];
        ck_assert_uint_eq(tj_run_writes(tj_current, w, 2), 1);
        ck_assert_int_eq(tj_current->trace.nodes[tj_current->trace.nodes[w[0]].in[0]].op, TJ_OP_UPDATE);
    }
    RECORDING(x, y) { // a write that is undone leaves nothing behind, and the next one looks again
        uint32_t mark = tj_current->trace.nnodes;
        trace_mul_i_(x, 2);
        tj_run_rollback(tj_current, mark);
        tj_ref w[2];
        ck_assert_uint_eq(tj_run_writes(tj_current, w, 2), 0);
        ck_assert_uint_eq(tj_resolve(tj_current, y, "test", TJ_LOC(NULL, 0)), 1);
        ck_assert_uint_eq(tj_current->trace.leafkeys[0].flags, 0);
        trace_mul_i_(x, 2);
        ck_assert_uint_eq(tj_run_writes(tj_current, w, 2), 1);
        tj_ref at = tj_resolve(tj_current, y, "test", TJ_LOC(NULL, 0));
        ck_assert_int_eq(tj_current->trace.nodes[at].op, TJ_OP_AS_STRIDED);
    }
    RECORDING(e, o) { // elements in turn: nothing shared
        trace_mul_i_(e, 2);
        trace_mul_i_(o, 3);
        tj_ref w[2];
        ck_assert_uint_eq(tj_run_writes(tj_current, w, 2), 2);
        ck_assert_uint_eq(tj_current->trace.leafkeys[0].group, 0);
    }
    static int32_t memory[8];
    trace_tensor *i = trace_wrap(ctx, TRACE_I32, memory, TRACE_DIMS(4)),
                 *f = trace_wrap(ctx, TRACE_F32, memory + 1, TRACE_DIMS(4)),
                 *k = trace_wrap(ctx, TRACE_I32, memory + 2, TRACE_DIMS(4));
    RECORDING(i, k) { // two wraps of one memory
        trace_add_i_(i, 1);
        (void)trace_neg(k);
        ck_assert_int_eq(tj_current->trace.leafkeys[2].flags, TJ_LEAF_WRITTEN | TJ_LEAF_VOLATILE);
        ck_assert_int_eq(tj_current->trace.leaves[2].tensor->numel, 6);
    }
    RECORDING(i, f) {
        ck_assert_ptr_null(trace_add_i_(i, 1));
        ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "also used as i32 and f32"));
    }
    trace_release(i);
    trace_release(f);
    trace_release(k);
    trace_release(base);
    trace_release(x);
    trace_release(y);
    trace_release(e);
    trace_release(o);
    close_all();
}
END_TEST

START_TEST(views_know_their_place) {
    open_all();
    trace_tensor *x = tensor(TRACE_F32, TRACE_DIMS(4, 6));
    RECORDING(x) {
        struct tj_place v;
        trace_tensor *t = trace_slice(trace_transpose(trace_narrow(x, 0, 1, 3), 0, 1), 0, 1, 6, 2);
        ck_assert(tj_value_view(tj_current, tj_resolve(tj_current, t, "test", TJ_LOC(NULL, 0)), &v));
        ck_assert(v.offset == 7 && v.dims[0] == 3 && v.dims[1] == 3 && v.strides[0] == 2 && v.strides[1] == 6 &&
                  !v.source);
        ck_assert_int_eq(trace_stride(t, 0), 2);
        t = trace_diagonal(x, 2, 0, 1);
        ck_assert(tj_value_view(tj_current, tj_resolve(tj_current, t, "test", TJ_LOC(NULL, 0)), &v));
        ck_assert(v.offset == 2 && v.dims[0] == 4 && v.strides[0] == 7);
        t = trace_unfold(x, 1, 3, 2);
        ck_assert(tj_value_view(tj_current, tj_resolve(tj_current, t, "test", TJ_LOC(NULL, 0)), &v));
        ck_assert(v.rank == 3 && v.dims[1] == 2 && v.strides[1] == 2 && v.dims[2] == 3 && v.strides[2] == 1);
        t = trace_expand(trace_unsqueeze(x, 0), TRACE_DIMS(5, -1, -1));
        ck_assert_int_eq(trace_stride(t, 0), 0);
        t = trace_as_strided(trace_narrow(x, 0, 2, 1), (const int64_t[]){2, 2}, (const int64_t[]){6, 1}, 2, 3);
        ck_assert(tj_value_view(tj_current, tj_resolve(tj_current, t, "test", TJ_LOC(NULL, 0)), &v));
        ck_assert(v.offset == 3 && v.strides[0] == 6 && v.strides[1] == 1); // counted from the start of the memory
    }
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(host_writes_while_recording) {
    open_all();
    float a[2] = {1, 2}, b[2] = {10, 20}, got[2];
    trace_tensor *x = trace_from(ctx, TRACE_F32, a, TRACE_DIMS(2)), *view = trace_narrow(x, 0, 0, 1),
                 *y[2] = {NULL, NULL};
    if (trace_begin(region, TRACE_ARGS(x))) {
        y[0] = trace_neg(x);
        TJ_ASSERT_OK(trace_write(x, b, sizeof b));
        y[1] = trace_neg(x);
    }
    TJ_ASSERT_OK(trace_end(region, y, 2));
    TJ_ASSERT_OK(trace_read(y[0], got, sizeof got)); // what was recorded keeps the old content
    ck_assert(got[0] == -1 && got[1] == -2);
    TJ_ASSERT_OK(trace_read(y[1], got, sizeof got));
    ck_assert(got[0] == -10 && got[1] == -20);
    TJ_ASSERT_OK(trace_read(view, got, sizeof *got)); // views follow
    ck_assert(got[0] == 10);
    trace_release(y[0]);
    trace_release(y[1]);
    trace_release(view);
    trace_release(x);
    static float memory[2] = {1, 2}; // wrapped: a break of kind write
    x = trace_wrap(ctx, TRACE_F32, memory, TRACE_DIMS(2));
    if (trace_begin(region, TRACE_ARGS(x))) {
        y[0] = trace_neg(x);
        TJ_ASSERT_OK(trace_write(x, b, sizeof b));
        y[1] = trace_neg(x);
    }
    TJ_ASSERT_OK(trace_end(region, y, 2));
    TJ_ASSERT_OK(trace_read(y[0], got, sizeof got));
    ck_assert(got[0] == -1 && got[1] == -2);
    TJ_ASSERT_OK(trace_read(y[1], got, sizeof got));
    ck_assert(got[0] == -10 && got[1] == -20 && memory[0] == 10);
    trace_release(y[0]);
    trace_release(y[1]);
    trace_release(x);
    close_all();
}
END_TEST

// A run sees all of a write or nothing of it.
enum { SHARED = 512 };
static trace_tensor *shared;
static atomic_bool stop;
static atomic_int torn, seen;

static void *reads(void *arg) {
    (void)arg;
    static const float zeros[SHARED];
    trace_tensor *x = trace_from(ctx, TRACE_F32, zeros, TRACE_DIMS(SHARED));
    float got[SHARED];
    while (!atomic_load(&stop)) {
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            y = trace_add(x, shared);
        }
        if (trace_end(region, &y, 1) || trace_read(y, got, sizeof got)) {
            atomic_fetch_add(&torn, 1);
            break;
        }
        for (int i = 1; i < SHARED; i++) {
            atomic_fetch_add(&torn, got[i] != got[0]);
        }
        atomic_fetch_add(&seen, 1);
        trace_release(y);
    }
    trace_release(x);
    return NULL;
}

START_TEST(writes_are_seen_whole) {
    open_all();
    float v[SHARED] = {0};
    pthread_t threads[2];
    shared = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(SHARED));
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, reads, NULL), 0);
    }
    for (int k = 1; k < 2000 || atomic_load(&seen) < 200; k++) {
        for (int i = 0; i < SHARED; i++) {
            v[i] = (float)k;
        }
        TJ_ASSERT_OK(trace_write(shared, v, sizeof v));
        ck_assert_int_eq(atomic_load(&torn), 0);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    ck_assert_int_eq(atomic_load(&torn), 0);
    trace_release(shared);
    close_all();
}
END_TEST

// ---- handles ----------------------------------------------------------------------------------------------

START_TEST(handles_are_counted_and_die) {
    open_all();
    trace_tensor *x = tensor(TRACE_F32, TRACE_DIMS(2)), *kept = NULL;
    RECORDING(x) {
        trace_tensor *y = trace_neg(x);
        kept = y;
        ck_assert_ptr_eq(trace_retain(y), y);
        trace_release(y);
        ck_assert_ptr_nonnull(trace_exp(y));
        ck_assert_ptr_eq(trace_to(y, TRACE_F32), y); // the same value, one more count
        trace_release(y);
        ck_assert_int_eq(trace_rank(y), 1);
        trace_release(y);
        ck_assert_int_eq(trace_rank(y), -1);
        ck_assert_ptr_null(trace_exp(y));
        ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "the value of neg ("));
        ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "was released"));
        ck_assert(trace_failed(ctx));
    }
    RECORDING(x) { // of another run
        ck_assert_ptr_null(trace_exp(kept));
        ck_assert_int_eq(tj_last_status(), TRACE_ERR_DEAD);
    }
    ck_assert_ptr_null(trace_exp(kept)); // outside any
    ck_assert_int_eq(tj_last_status(), TRACE_ERR_DEAD);
    ck_assert_ptr_null(trace_retain(kept));
    trace_release(kept);
    trace_release(NULL);
    trace_release(TRACE_NONE);
    trace_release(x);
    close_all();
}
END_TEST

// ---- bad input ----------------------------------------------------------------------------------------------

// expr fails, and its message has the words.
#define FAILS(status, expr, ...)                                                                                       \
    do {                                                                                                               \
        static const char *const words_[] = {__VA_ARGS__};                                                             \
        trace_tensor *got_ = NULL;                                                                                     \
        RECORDING(x) {                                                                                                 \
            got_ = (expr);                                                                                             \
            ck_assert_msg(!got_, "%s gave a value", #expr);                                                            \
            ck_assert_msg(tj_last_status() == (status), "%s: %s: %s", #expr, tj_status_name(tj_last_status()),         \
                          trace_last_error(ctx));                                                                      \
            for (size_t i_ = 0; i_ < TJ_COUNT(words_); i_++) {                                                         \
                ck_assert_msg(strstr(trace_last_error(ctx), words_[i_]) != NULL, "%s: '%s' is not in: %s", #expr,      \
                              words_[i_], trace_last_error(ctx));                                                      \
            }                                                                                                          \
            ck_assert(trace_failed(ctx));                                                                              \
            ck_assert_ptr_null(trace_neg(x)); /* the run has failed */                                                 \
        }                                                                                                              \
    } while (0)
#define SHAPE TRACE_ERR_SHAPE
#define ARG TRACE_ERR_ARGUMENT
#define DTYPE TRACE_ERR_DTYPE

START_TEST(bad_input_is_named) {
    open_all();
    trace_context *other;
    TJ_ASSERT_OK(trace_context_create(NULL, &other));
    float one = 1;
    trace_tensor *x = tensor(TRACE_F32, TRACE_DIMS(2, 3)), *y = tensor(TRACE_F32, TRACE_DIMS(4)),
                 *i = tensor(TRACE_I64, TRACE_DIMS(2)), *b = tensor(TRACE_BOOL, TRACE_DIMS(2, 3)),
                 *h = tensor(TRACE_F16, TRACE_DIMS(3)), *e = tensor(TRACE_F32, TRACE_DIMS(2, 0)),
                 *z = tensor(TRACE_F32, TRACE_SCALAR), *r8 = tensor(TRACE_F32, TRACE_DIMS(1, 1, 1, 1, 1, 1, 1, 1)),
                 *foreign = trace_from(other, TRACE_F32, &one, TRACE_SCALAR),
                 *fixed = trace_wrap_const(ctx, TRACE_F32, &one, TRACE_DIMS(1)),
                 *img = tensor(TRACE_F32, TRACE_DIMS(1, 4, 5, 5)), *wide = trace_expand(z, TRACE_DIMS(3));
    FAILS(SHAPE, trace_add(x, y), "add (", "test_record.c:", "shapes [2, 3] and [4]", "dim 1 is 3 against 4",
          "unsqueeze");
    FAILS(SHAPE, trace_where(b, x, y), "where (", "[2, 3] and [4]");
    FAILS(DTYPE, trace_where(x, x, x), "condition is f32", "make it bool");
    FAILS(DTYPE, trace_neg(b), "neg (", "not of bool");
    FAILS(DTYPE, trace_bitwise_and(x, x), "not of f32");
    FAILS(DTYPE, trace_mean(i, TRACE_SCALAR, false), "not of i64");
    FAILS(DTYPE, trace_to(x, (enum trace_dtype)99), "99 is no dtype");
    FAILS(DTYPE, trace_matmul(x, trace_to(x, TRACE_F16)), "f32", "f16", "trace_to");
    FAILS(ARG, trace_sum(x, TRACE_DIMS(2), false), "sum (", "dim 2 is out of range for rank 2");
    FAILS(ARG, trace_sum(x, TRACE_DIMS(0, -2), false), "dim 0 is given twice");
    FAILS(SHAPE, trace_amax(e, TRACE_DIMS(1), false), "dim 1 of [2, 0] is empty");
    FAILS(ARG, trace_softmax(x, 5), "dim 5 is out of range");
    FAILS(SHAPE, trace_reshape(x, TRACE_DIMS(4, 2)), "[2, 3] of 6 elements", "[4, 2]");
    FAILS(SHAPE, trace_reshape(x, TRACE_DIMS(-1, -1)), "more than one -1");
    FAILS(SHAPE, trace_reshape(x, TRACE_DIMS(-1, 4)), "-1 has no value");
    FAILS(SHAPE, trace_reshape(x, TRACE_DIMS(-2, -3)), "at least 0");
    FAILS(SHAPE, trace_reshape(x, TRACE_DIMS(1, 1, 1, 1, 1, 1, 1, 1, 6)), "rank 9", "at most 8");
    FAILS(SHAPE, trace_unsqueeze(r8, 0), "rank 9");
    FAILS(ARG, trace_permute(x, TRACE_DIMS(0)), "1 dims given for rank 2");
    FAILS(ARG, trace_permute(x, TRACE_DIMS(0, 0)), "given twice");
    FAILS(SHAPE, trace_expand(x, TRACE_DIMS(4, 3)), "[2, 3] does not expand to [4, 3]");
    FAILS(SHAPE, trace_expand(x, TRACE_DIMS(-1, 2, 3)), "-1 in the new leading dim 0");
    FAILS(ARG, trace_narrow(x, 1, 2, 2), "narrow (", "start 2, length 2", "extent 3 of dim 1");
    FAILS(ARG, trace_narrow(x, 1, 0, -1), "length -1");
    FAILS(ARG, trace_select(x, 0, 2), "index 2 is out of range for extent 2 of dim 0");
    FAILS(SHAPE, trace_select(z, 0, 0), "0-d");
    FAILS(ARG, trace_slice(x, 0, 0, 2, 0), "step 0", "at least 1");
    FAILS(ARG, trace_diagonal(x, 0, 1, -1), "both dims are 1");
    FAILS(ARG, trace_unfold(x, 1, 4, 1), "size 4", "extent 3");
    FAILS(ARG, trace_as_strided(x, (const int64_t[]){2, 2}, (const int64_t[]){3, 3}, 2, 1), "outside the 6 elements");
    FAILS(ARG, trace_as_strided(x, (const int64_t[]){2}, (const int64_t[]){-1}, 1, 1), "negative");
    FAILS(SHAPE, trace_cat(TRACE_ARGS(x, y), 0), "tensor 0 is [2, 3], tensor 1 [4]");
    FAILS(SHAPE, trace_stack(TRACE_ARGS(x, e), 0), "[2, 3]", "[2, 0]", "one shape");
    FAILS(SHAPE, trace_cat(TRACE_ARGS(z, z), 0), "trace_stack");
    FAILS(ARG, trace_cat(NULL, 0, 0), "at least one");
    FAILS(ARG, trace_pad(x, (const int64_t[]){1}, 1, TRACE_PAD_CONSTANT, 0), "1 amounts");
    FAILS(SHAPE, trace_pad(x, (const int64_t[]){-4, 0}, 2, TRACE_PAD_CONSTANT, 0), "do not fit extent 3");
    FAILS(SHAPE, trace_pad(x, (const int64_t[]){3, 0}, 2, TRACE_PAD_REFLECT, 0), "too large for extent 3");
    FAILS(ARG, trace_pad(x, (const int64_t[]){1, 0}, 2, 7, 0), "mode 7");
    FAILS(DTYPE, trace_gather(x, 0, x), "index is f32", "i64");
    FAILS(SHAPE, trace_gather(x, 0, i), "index [2] does not fit [2, 3]");
    FAILS(SHAPE, trace_index_select(x, 0, trace_reshape(i, TRACE_DIMS(1, 2))), "1-d");
    FAILS(SHAPE, trace_embedding(y, i), "weight [4]", "[V, D]");
    FAILS(SHAPE, trace_matmul(x, x), "inner extents 3 and 2 differ");
    FAILS(SHAPE, trace_matmul(x, z), "0-d");
    FAILS(SHAPE, trace_bmm(x, x), "rank 3");
    FAILS(SHAPE, trace_linear(x, y, TRACE_NONE), "input [2, 3] and weight [4]", "[N, K]");
    FAILS(SHAPE, trace_linear(x, x, y), "bias [4]", "2 elements");
    FAILS(SHAPE, trace_conv2d(x, img, TRACE_NONE, NULL, NULL, NULL, 1), "[N, C, H, W]");
    FAILS(SHAPE, trace_conv2d(img, img, TRACE_NONE, NULL, NULL, NULL, 3), "groups 3");
    FAILS(SHAPE, trace_conv2d(img, img, TRACE_NONE, NULL, NULL, (const int64_t[]){2, 2}, 1), "does not fit dim 2");
    FAILS(SHAPE, trace_conv2d(img, img, TRACE_NONE, (const int64_t[]){0, 1}, NULL, NULL, 1), "stride 0");
    FAILS(SHAPE, trace_max_pool2d(img, (const int64_t[]){2, 2}, NULL, (const int64_t[]){2, 2}, NULL, false),
          "padding 2", "half");
    FAILS(ARG, trace_avg_pool2d(img, NULL, NULL, NULL, false, true, 0), "kernel is NULL");
    FAILS(SHAPE, trace_scaled_dot_product_attention(x, x, y, TRACE_NONE, false, 0, false), "query [2, 3]", "value [4]");
    FAILS(ARG, trace_scaled_dot_product_attention(x, x, x, b, true, 0, false), "is_causal");
    FAILS(SHAPE, trace_scaled_dot_product_attention(x, x, x, b, false, 0, false),
          "mask [2, 3] does not broadcast to [2, 2]");
    FAILS(SHAPE, trace_layer_norm(x, TRACE_DIMS(2), TRACE_NONE, TRACE_NONE, 1e-5), "[2]",
          "end of the input's shape [2, 3]");
    FAILS(DTYPE, trace_layer_norm(x, TRACE_DIMS(3), h, TRACE_NONE, 1e-5), "weight is f16");
    FAILS(SHAPE, trace_batch_norm(x, y, y, y, y, 1e-5), "running_mean is [4], it has to be [3]");
    FAILS(ARG, trace_batch_norm(x, y, y, TRACE_NONE, y, 1e-5), "running_mean is TRACE_NONE");
    FAILS(SHAPE, trace_cross_entropy(x, x, TRACE_NONE, TRACE_REDUCTION_MEAN, -100, 0), "[N, C, ...]");
    FAILS(ARG, trace_cross_entropy(x, i, TRACE_NONE, 9, -100, 0), "reduction 9");
    FAILS(ARG, trace_cross_entropy(x, i, TRACE_NONE, 1, -100, 2), "label_smoothing 2");
    FAILS(SHAPE, trace_gru_cell(x, x, x, x, TRACE_NONE, TRACE_NONE), "[3H, I]");
    FAILS(ARG, trace_gelu(x, 3), "approximate is 3");
    FAILS(ARG, trace_clamp(x, TRACE_NONE, TRACE_NONE), "both bounds");
    FAILS(ARG, trace_pow_i(i, -2), "negative integer powers (-2)");
    FAILS(ARG, trace_arange(ctx, 0, 5, -1, TRACE_F32), "from 0 to 5 by -1");
    FAILS(ARG, trace_arange(ctx, 0, 5, 0, TRACE_F32), "by 0");
    FAILS(SHAPE, trace_full_f(ctx, TRACE_DIMS(-1), 1, TRACE_F32), "extent -1 of dim 0 is negative");
    FAILS(SHAPE, trace_zeros(ctx, TRACE_DIMS(INT64_MAX, INT64_MAX), TRACE_F32), "overflows");
    FAILS(ARG, trace_add(x, foreign), "another context");
    FAILS(ARG, trace_add(x, TRACE_NONE), "TRACE_NONE where a tensor is needed");
    FAILS(ARG, trace_add_i_(fixed, 1), "add_ (", "read-only", "trace_wrap");
    FAILS(ARG, trace_fill_f_(wide, 1), "single memory location", "clone");
    FAILS(ARG, trace_add_f_(trace_expand(x, TRACE_DIMS(2, 2, 3)), 1), "single memory location");
    FAILS(ARG, trace_add_f_(trace_unfold(x, 1, 2, 1), 1), "single memory location");
    FAILS(ARG, trace_copy_(trace_narrow(y, 0, 1, 3), trace_narrow(y, 0, 0, 3)), "partly overlap", "clone");
    FAILS(SHAPE, trace_copy_(y, x), "[2, 3] does not expand to [4]");
    FAILS(SHAPE, trace_add_(h, trace_to(x, TRACE_F16)), "[3] can't hold the broadcast shape [2, 3]");
    FAILS(DTYPE, trace_add_f_(i, 1.5), "result is f32 and can't be stored as i64");
    FAILS(DTYPE, trace_index_copy_(x, 0, i, trace_to(x, TRACE_F16)), "source is f16, destination f32");
    FAILS(SHAPE, trace_index_copy_(x, 1, i, x), "source [2, 3]", "it has to be [2, 2]");

    // NULL carries the first error on, and no later message replaces it.
    RECORDING(x) {
        trace_tensor *bad = trace_add(x, y);
        char text[TJ_ERROR_MAX];
        strcpy(text, trace_last_error(ctx));
        ck_assert_ptr_null(trace_linear(bad, x, TRACE_NONE));
        ck_assert_str_eq(trace_last_error(ctx), text);
    }
    // Outside a region as well.
    ck_assert_ptr_null(trace_add(x, y));
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "do not broadcast"));
    ck_assert_ptr_null(trace_neg(NULL));
    trace_tensor *parts[2];
    TJ_ASSERT_STATUS(trace_split(y, 2, 0, parts, 1), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_split(y, 0, 0, parts, 2), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_split(y, 2, 3, parts, 2), TRACE_ERR_ARGUMENT);

    // Tensors.
    ck_assert_ptr_null(trace_from(NULL, TRACE_F32, &one, TRACE_SCALAR));
    ck_assert_ptr_null(trace_from(ctx, (enum trace_dtype) - 1, &one, TRACE_SCALAR));
    ck_assert_ptr_null(trace_from(ctx, TRACE_F32, NULL, TRACE_DIMS(2)));
    ck_assert_ptr_null(trace_from(ctx, TRACE_F32, &one, TRACE_DIMS(-1)));
    ck_assert_ptr_null(trace_from(ctx, TRACE_F32, &one, TRACE_DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1)));
    ck_assert_ptr_null(trace_from(ctx, TRACE_F32, &one, TRACE_DIMS((int64_t)1 << 40, (int64_t)1 << 40)));
    ck_assert_ptr_null(trace_wrap_desc(ctx, NULL));
    ck_assert_ptr_null(trace_wrap_desc(ctx, &(trace_tensor_desc){.dtype = TRACE_F32}));
    ck_assert_ptr_null(
        trace_wrap_desc(ctx, TRACE_TENSOR_DESC(.dtype = TRACE_F32, .dims = (const int64_t[]){2}, .rank = 1,
                                               .strides = (const int64_t[]){-1}, .data = &one)));
    ck_assert_ptr_null(trace_wrap_desc(ctx, TRACE_TENSOR_DESC(.dtype = TRACE_F32, .data = &one, .flags = 64)));
    TJ_ASSERT_STATUS(trace_write(x, &one, sizeof one), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_write(fixed, &one, sizeof one), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_modified(x), TRACE_ERR_ARGUMENT);
    ck_assert_int_eq(trace_size(x, 2), -1);
    ck_assert_int_eq(trace_rank(TRACE_NONE), -1);
    trace_tensor *all[] = {x, y, i, b, h, e, z, r8, foreign, fixed, img, wide};
    for (size_t k = 0; k < TJ_COUNT(all); k++) {
        trace_release(all[k]);
    }
    trace_context_release(other);
    close_all();
}
END_TEST

// ---- buffers --------------------------------------------------------------------------------------------------

static size_t allocations;
static bool counting(size_t bytes) {
    (void)bytes;
    allocations++;
    return true;
}
static size_t fail_at;
static bool failing(size_t bytes) {
    (void)bytes;
    return ++allocations != fail_at;
}

START_TEST(steady_loops_allocate_nothing) {
    open_all();
    trace_tensor *x = tensor(TRACE_F32, TRACE_DIMS(16, 16));
    for (int i = 0; i < 200; i++) {
        if (i == 100) {
            allocations = 0;
            tj_alloc_hook = counting;
        }
        trace_tensor *t = tj_tensor_new(ctx, TRACE_F32, x->dims, x->rank, "test", TJ_LOC(NULL, 0)),
                     *v = tj_tensor_view(t->st, TRACE_F32, t->dims, t->strides, 2, 0, "test", TJ_LOC(NULL, 0));
        trace_release(t);
        trace_release(v);
        RECORDING(x) {
            trace_tensor *y = x;
            for (int k = 0; k < 20; k++) {
                y = trace_mul_f(trace_add(trace_exp(y), x), 0.5);
            }
            y = trace_reshape(trace_narrow(y, 0, 1, 4), TRACE_DIMS(-1));
            trace_add_i_(x, 1);
            (void)trace_softmax(y, 0);
        }
    }
    tj_alloc_hook = NULL;
    ck_assert_uint_eq(allocations, 0);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(buffers_are_bounded_and_limited) {
    trace_stats s = {.size = sizeof s};
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.memory_limit = 1 << 20), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "test", NULL, &region));
    for (int64_t n = 1; n < 250000; n = n * 5 / 4 + 1) { // more sizes in turn than the limit would hold at once
        trace_tensor *t = tj_tensor_new(ctx, TRACE_F32, &n, 1, "test", TJ_LOC(NULL, 0));
        ck_assert_msg(t != NULL, "%s", trace_last_error(ctx));
        ck_assert_uint_eq((uintptr_t)tj_tensor_data(t) % TJ_ALIGN, 0);
        memset(tj_tensor_data(t), 0xA5, (size_t)n * 4);
        trace_context_stats(ctx, &s);
        ck_assert(s.bytes_live >= (uint64_t)n * 4 && s.bytes_live <= (uint64_t)n * 5 + 64);
        trace_release(t);
    }
    int64_t n = 1 << 19;
    ck_assert_ptr_null(tj_tensor_new(ctx, TRACE_F32, &n, 1, "test", TJ_LOC(NULL, 0)));
    ck_assert_int_eq(tj_last_status(), TRACE_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "memory_limit"));
    close_all();
}
END_TEST

static int done_calls;
static void done(void *user) { *(int *)user += 1; }

START_TEST(borrowed_memory_is_given_back_once) {
    open_all();
    static float memory[4];
    trace_tensor *t = trace_wrap_desc(ctx, TRACE_TENSOR_DESC(.dtype = TRACE_F32, .dims = (const int64_t[]){2, 2},
                                                             .rank = 2, .strides = (const int64_t[]){1, 2},
                                                             .data = memory, .done = done, .user = &done_calls));
    trace_tensor *v = trace_select(t, 0, 1);
    ck_assert_ptr_nonnull(v);
    ck_assert_ptr_eq(tj_tensor_data(v), memory + 1); // a view outside a region shares it
    RECORDING(v) {
        trace_release(t);
        trace_release(v);
        ck_assert_int_eq(done_calls, 0); // the run holds it
    }
    ck_assert_int_eq(done_calls, 1);
    close_all();
}
END_TEST

START_TEST(every_allocation_may_fail) {
    open_all();
    trace_tensor *x = tensor(TRACE_F32, TRACE_DIMS(4, 4)), *v = trace_narrow(x, 0, 1, 2), *w = trace_narrow(x, 0, 0, 2);
    bool ended = false;
    for (fail_at = 1; !ended; fail_at++) {
        ck_assert_uint_lt(fail_at, 200);
        trace_region *fresh;
        TJ_ASSERT_OK(trace_region_create(ctx, "fresh", NULL, &fresh));
        allocations = 0;
        tj_alloc_hook = failing;
        bool open = trace_begin(fresh, TRACE_ARGS(x));
        trace_tensor *y = open ? trace_mul_f(trace_add(trace_exp(v), w), 0.5) : NULL;
        y = y ? trace_add_i_(v, 1) : NULL;
        y = y ? trace_cat(TRACE_ARGS(v, v, v, v, v, v, w), 0) : NULL;
        y = y ? trace_linear(y, x, TRACE_NONE) : NULL;
        y = y ? trace_neg(w) : NULL;
        tj_alloc_hook = NULL;
        ended = allocations < fail_at;
        if (!ended && open) {
            ck_assert_msg(!y && tj_last_status() == TRACE_ERR_MEMORY, "allocation %zu: %s", fail_at,
                          trace_last_error(ctx));
        }
        trace_abandon(fresh);
        trace_region_release(fresh);
    }
    trace_release(x);
    trace_release(v);
    trace_release(w);
    close_all();
}
END_TEST

TJ_TEST_MAIN("record", promotes_like_pytorch, dtypes_of_single_ops, scalars_round_once, records_golden_text,
             equal_ops_merge_and_scalars_do_not, same_bytes_for_the_same_ops, layouts_have_classes,
             writes_become_updates, overlapping_leaves_share_a_base, views_know_their_place,
             host_writes_while_recording, writes_are_seen_whole, handles_are_counted_and_die, bad_input_is_named,
             steady_loops_allocate_nothing, buffers_are_bounded_and_limited, borrowed_memory_is_given_back_once,
             every_allocation_may_fail)
