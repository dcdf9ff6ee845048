// tests/test_badinput.c: what a host may do wrong: each a status and a text that names op, shapes, line and remedy; no
// leak; the next run is right.
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>

#include "../trace/context.h"
#include "tj_test.h"

static trace_context *ctx, *other;
static trace_region *region, *inner;
static trace_tensor *x, *y4, *ids, *flags, *half, *empty, *scalar, *r8, *image, *foreign, *fixed, *thin, *state;

static float data[256];
static trace_tensor *zeros(enum trace_dtype d, const int64_t *dims, size_t rank) {
    static const uint64_t none[256];
    trace_tensor *t = trace_from(ctx, d, none, dims, rank);
    ck_assert_msg(t != NULL, "%s", trace_last_error(ctx));
    return t;
}
static void quiet(void *user, const trace_event *e) { (void)user, (void)e; }
static void open_all(void) {
    for (int i = 0; i < 256; i++)
        data[i] = (float)i;
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = quiet), &ctx));
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = quiet), &other));
    TJ_ASSERT_OK(trace_region_create(ctx, "bad", NULL, &region));
    TJ_ASSERT_OK(trace_region_create(ctx, "inner", NULL, &inner));
    x = trace_from(ctx, TRACE_F32, data, TRACE_DIMS(2, 3));
    y4 = zeros(TRACE_F32, TRACE_DIMS(4));
    ids = zeros(TRACE_I64, TRACE_DIMS(2));
    flags = zeros(TRACE_BOOL, TRACE_DIMS(2, 3));
    half = zeros(TRACE_F16, TRACE_DIMS(2, 3));
    empty = zeros(TRACE_F32, TRACE_DIMS(2, 0));
    scalar = zeros(TRACE_F32, TRACE_SCALAR);
    r8 = zeros(TRACE_F32, TRACE_DIMS(1, 1, 1, 1, 1, 1, 1, 1));
    image = zeros(TRACE_F32, TRACE_DIMS(1, 4, 5, 5));
    foreign = trace_from(other, TRACE_F32, data, TRACE_DIMS(2, 3));
    fixed = trace_wrap_const(ctx, TRACE_F32, data, TRACE_DIMS(2, 3));
    thin = trace_expand(scalar, TRACE_DIMS(INT64_C(1) << 40));
    state = zeros(TRACE_F32, TRACE_DIMS(1));
    ck_assert(x && foreign && fixed && thin);
}
static void close_all(void) {
    trace_tensor *all[] = {x, y4, ids, flags, half, empty, scalar, r8, image, foreign, fixed, thin, state};
    for (size_t i = 0; i < TJ_COUNT(all); i++)
        trace_release(all[i]);
    trace_region_release(inner);
    trace_region_release(region);
    trace_context *both[] = {ctx, other};
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_null(both[i]->tensors);
        ck_assert_ptr_null(both[i]->regions);
        ck_assert_int_eq(atomic_load(&both[i]->refs), 1);
        trace_context_release(both[i]);
    }
}
static size_t handles(void) {
    size_t n = 0;
    for (trace_context *c = ctx; c; c = c == ctx ? other : NULL) {
        tj_lock(&c->lock);
        for (struct trace_tensor *t = c->tensors; t; t = t->next)
            n++;
        tj_unlock(&c->lock);
    }
    return n;
}
// A run that has to be right whatever was done before.
static void right(void) {
    trace_tensor *y = NULL;
    float got[6];
    ck_assert(!trace_failed(ctx));
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_add_f(trace_mul_f(x, 2), 1);
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    TJ_ASSERT_OK(trace_read(y, got, sizeof got));
    for (int i = 0; i < 6; i++)
        ck_assert(got[i] == (float)(2 * i + 1));
    trace_release(y);
}

// The thread's last error has the status, this file's name, and each of the texts.
static void has_texts(int line, bool place, tj_status want, tj_status st, const char *const *parts) {
    const char *text = trace_last_error(ctx);
    ck_assert_msg(st == want, "line %d: %s, not %s: %s", line, tj_status_name(st), tj_status_name(want), text);
    ck_assert_msg(tj_last_status() == want, "line %d: last status %s", line, tj_status_name(tj_last_status()));
    ck_assert_msg(!place || strstr(text, "test_badinput.c:") != NULL, "line %d: no place in \"%s\"", line, text);
    for (; *parts; parts++)
        ck_assert_msg(strstr(text, *parts) != NULL, "line %d: no \"%s\" in \"%s\"", line, *parts, text);
}
#define PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})
// An op, inside a region and outside one.
#define BAD(want, expr, ...)                                                                                           \
    do {                                                                                                               \
        size_t before_ = handles();                                                                                    \
        trace_tensor *v_ = y4;                                                                                         \
        if (trace_begin(region, TRACE_ARGS(x)))                                                                        \
            v_ = (expr);                                                                                               \
        ck_assert_msg(v_ == NULL, "line %d: no failure inside", __LINE__);                                             \
        has_texts(__LINE__, true, want, trace_end(region, &v_, 1), PARTS("region 'bad'", __VA_ARGS__));                \
        ck_assert_uint_eq(handles(), before_);                                                                         \
        v_ = (expr);                                                                                                   \
        ck_assert_msg(v_ == NULL, "line %d: no failure outside", __LINE__);                                            \
        has_texts(__LINE__, true, want, want, PARTS(__VA_ARGS__));                                                     \
        ck_assert_uint_eq(handles(), before_);                                                                         \
        right();                                                                                                       \
    } while (0)
// A call that returns a status. place: the text has the host's line.
#define CALL(want, place, expr, ...)                                                                                   \
    do {                                                                                                               \
        size_t before_ = handles();                                                                                    \
        has_texts(__LINE__, place, want, (expr), PARTS(__VA_ARGS__));                                                  \
        ck_assert_uint_eq(handles(), before_);                                                                         \
    } while (0)
// A call that returns a handle, or a number below 0.
#define NONE(want, place, expr, ...)                                                                                   \
    do {                                                                                                               \
        size_t before_ = handles();                                                                                    \
        ck_assert((expr) == NULL);                                                                                     \
        has_texts(__LINE__, place, want, want, PARTS(__VA_ARGS__));                                                    \
        ck_assert_uint_eq(handles(), before_);                                                                         \
    } while (0)
#define MINUS(want, expr, ...)                                                                                         \
    do {                                                                                                               \
        ck_assert((expr) < 0);                                                                                         \
        has_texts(__LINE__, false, want, want, PARTS(__VA_ARGS__));                                                    \
    } while (0)
#define ARG TRACE_ERR_ARGUMENT
#define SHAPE TRACE_ERR_SHAPE
#define DTYPE TRACE_ERR_DTYPE
#define STATE TRACE_ERR_STATE
#define DEAD TRACE_ERR_DEAD

// ---- NULL -----------------------------------------------------------------------------------------------------------

static void *null_first(void *arg) { // a thread without any earlier failure
    (void)arg;
    ck_assert_str_eq(trace_last_error(ctx), "");
    NONE(ARG, true, trace_add(x, NULL), "add (", "NULL", "TRACE_NONE");
    return NULL;
}
START_TEST(null_handles) {
    open_all();
    pthread_t t;
    ck_assert(!pthread_create(&t, NULL, null_first, NULL) && !pthread_join(t, NULL));
    double v;
    int64_t i;
    const void *p;
    trace_tensor *out = NULL;
    trace_stats none = {0};
    // an old failure isn't taken for this one's cause
    ck_assert_ptr_null(trace_softmax(x, 7));
    if (trace_begin(region, TRACE_ARGS(x)))
        out = trace_add(trace_neg(x), NULL);
    CALL(ARG, true, trace_end(region, &out, 1), "add (", "an operand is NULL", "TRACE_NONE", "last failure: softmax");
    if (trace_begin(region, TRACE_ARGS(x)))
        out = trace_cat(TRACE_ARGS(x, NULL), 0);
    CALL(ARG, true, trace_end(region, &out, 1), "cat (", "NULL");
    // the first error is the one that counts
    if (trace_begin(region, TRACE_ARGS(x)))
        out = trace_relu(trace_add(trace_softmax(x, 9), x));
    CALL(ARG, true, trace_end(region, &out, 1), "softmax (", "dim 9");
    // a tensor made inside that failed
    if (trace_begin(region, TRACE_ARGS(x)))
        out = trace_add(x, trace_from(ctx, TRACE_F32, data, TRACE_DIMS(-1)));
    CALL(SHAPE, false, trace_end(region, &out, 1), "from", "extent -1", "negative");
    ck_assert(!trace_begin(region, TRACE_ARGS(x, NULL)));
    CALL(ARG, true, trace_end(region, &out, 1), "trace_begin (", "input 1", "NULL");
    ck_assert(!trace_begin(region, NULL, 2));
    CALL(ARG, false, trace_end(region, &out, 1), "inputs", "NULL");
    ck_assert(!trace_begin(NULL, TRACE_ARGS(x)));
    ck_assert_int_eq(tj_last_status(), ARG);
    CALL(ARG, true, trace_end(NULL, &out, 1), "trace_end", "NULL");
    if (trace_begin(region, TRACE_ARGS(x)))
        out = trace_neg(x);
    CALL(ARG, true, trace_end(region, NULL, 1), "trace_end (", "outputs", "NULL");
    right();
    CALL(ARG, true, trace_item_f64(x, NULL), "trace_item_f64", "NULL");
    CALL(ARG, true, trace_item_i64(x, NULL), "trace_item_i64", "NULL");
    CALL(ARG, true, trace_read(x, NULL, 24), "trace_read", "NULL");
    CALL(ARG, true, trace_data(x, NULL), "trace_data", "NULL");
    ck_assert(trace_item_f64(NULL, &v) != TRACE_OK && isnan(v));
    ck_assert(trace_item_i64(NULL, &i) != TRACE_OK && i == 0);
    ck_assert(trace_data(NULL, &p) != TRACE_OK && !p);
    ck_assert(trace_print(NULL, "x") != TRACE_OK && trace_print_later(NULL, "x") != TRACE_OK);
    ck_assert_ptr_null(trace_item_later(NULL));
    CALL(ARG, true, trace_item_f64(TRACE_NONE, &v), "TRACE_NONE");
    CALL(ARG, true, trace_print(TRACE_NONE, NULL), "TRACE_NONE");
    ck_assert(trace_write(NULL, data, 4) != TRACE_OK && trace_modified(NULL) != TRACE_OK);
    CALL(ARG, false, trace_write(TRACE_NONE, data, 4), "write");
    CALL(ARG, false, trace_write(x, NULL, 24), "write", "NULL");
    CALL(ARG, false, trace_modified(TRACE_NONE), "modified");
    MINUS(ARG, trace_rank(TRACE_NONE), "rank", "TRACE_NONE");
    ck_assert(trace_rank(NULL) == -1 && trace_size(NULL, 0) == -1 && trace_stride(NULL, 0) == -1);
    ck_assert(trace_numel(NULL) == -1 && trace_dtype_of(NULL) == -1 && trace_dtype_of(TRACE_NONE) == -1);
    ck_assert(!trace_retain(NULL) && trace_retain(TRACE_NONE) == TRACE_NONE);
    trace_release(NULL), trace_release(TRACE_NONE);
    NONE(ARG, false, trace_from(NULL, TRACE_F32, data, TRACE_DIMS(1)), "from", "context is NULL");
    NONE(ARG, false, trace_from(ctx, TRACE_F32, NULL, TRACE_DIMS(1)), "from", "data is NULL", "trace_placeholder");
    NONE(ARG, false, trace_from(ctx, TRACE_F32, data, NULL, 2), "from", "dims is NULL", "TRACE_SCALAR");
    NONE(ARG, false, trace_wrap(ctx, TRACE_F32, NULL, TRACE_DIMS(1)), "wrap", "data is NULL", "trace_placeholder");
    NONE(ARG, false, trace_wrap_desc(ctx, NULL), "wrap_desc", "NULL", "TRACE_TENSOR_DESC");
    NONE(ARG, true, trace_full_f(NULL, TRACE_DIMS(1), 1, TRACE_F32), "full", "context is NULL");
    BAD(ARG, trace_reshape(x, NULL, 2), "reshape (", "NULL");
    BAD(ARG, trace_permute(x, NULL, 2), "permute (", "NULL");
    BAD(ARG, trace_cat(NULL, 2, 0), "cat (", "NULL");
    BAD(ARG, trace_sum(x, NULL, 1, false), "sum (", "NULL");
    BAD(ARG, trace_add(TRACE_NONE, x), "add (", "TRACE_NONE where a tensor is needed");
    BAD(ARG, trace_linear(x, TRACE_NONE, TRACE_NONE), "linear (", "TRACE_NONE");
    CALL(ARG, true, trace_split(x, 1, 0, NULL, 2), "split (", "NULL");
    CALL(ARG, false, trace_context_create(NULL, NULL), "trace_context_create", "NULL");
    CALL(ARG, false, trace_region_create(NULL, "r", NULL, NULL), "trace_region_create", "NULL");
    CALL(ARG, false, trace_context_shutdown(NULL, 0), "NULL");
    trace_context_stats(NULL, NULL), trace_context_stats(ctx, &none), trace_region_stats(NULL, &none);
    ck_assert(trace_context_report(NULL, TRACE_FORMAT_TEXT, NULL, 0, NULL) == ARG);
    ck_assert(trace_context_report(ctx, (enum trace_format)77, NULL, 0, NULL) == ARG);
    ck_assert_str_eq(trace_context_describe(NULL), "");
    trace_abandon(NULL), trace_abandon(region);
    trace_region_release(NULL), trace_context_release(NULL);
    ck_assert(!trace_failed(NULL));
    right();
    close_all();
}
END_TEST

// ---- dtypes, shapes -------------------------------------------------------------------------------------------------

START_TEST(wrong_dtypes) {
    open_all();
    BAD(DTYPE, trace_where(x, x, x), "where (", "condition is f32", "make it bool");
    BAD(DTYPE, trace_matmul(x, half), "matmul (", "f32", "f16", "trace_to");
    BAD(DTYPE, trace_mean(ids, TRACE_SCALAR, false), "mean (", "i64");
    BAD(DTYPE, trace_bitwise_or(x, x), "bitwise_or (", "f32");
    BAD(DTYPE, trace_neg(flags), "neg (", "bool");
    BAD(DTYPE, trace_gather(x, 0, x), "gather (", "index is f32", "i64");
    BAD(DTYPE, trace_embedding(x, x), "embedding (", "f32", "i64");
    BAD(DTYPE, trace_to(x, (enum trace_dtype) - 3), "to (", "-3 is no dtype");
    BAD(DTYPE, trace_full_f(ctx, TRACE_DIMS(1), 1, (enum trace_dtype)99), "99 is no dtype");
    NONE(DTYPE, false, trace_from(ctx, (enum trace_dtype)99, data, TRACE_DIMS(1)), "from", "99 is no dtype",
         "TRACE_F32");
    BAD(DTYPE, trace_add_f_(ids, 1.5), "add_ (", "i64");
    BAD(DTYPE, trace_sub_(flags, flags), "sub_ (", "not of bool", "logical");
    BAD(DTYPE, trace_masked_fill_f(x, x, 1), "masked_fill", "f32", "bool");
    CALL(ARG, false, trace_write(x, data, 8), "write", "8 bytes", "f32[2, 3]", "24");
    CALL(ARG, true, trace_read(x, data, 8), "trace_read (", "8 bytes", "f32[2, 3]", "24");
    close_all();
}
END_TEST

START_TEST(shapes_that_do_not_fit) {
    open_all();
    BAD(SHAPE, trace_add(x, y4), "add (", "[2, 3] and [4]", "dim 1 is 3 against 4", "unsqueeze");
    BAD(SHAPE, trace_where(flags, x, y4), "where (", "[2, 3] and [4]");
    BAD(SHAPE, trace_matmul(x, x), "matmul (", "[2, 3]", "inner extents 3 and 2 differ");
    BAD(SHAPE, trace_linear(x, y4, TRACE_NONE), "linear (", "[2, 3]", "[4]", "[N, K]");
    BAD(SHAPE, trace_cat(TRACE_ARGS(x, y4), 0), "cat (", "[2, 3]", "[4]");
    BAD(SHAPE, trace_stack(TRACE_ARGS(x, y4), 0), "stack (", "[2, 3]", "[4]");
    BAD(SHAPE, trace_copy_(state, x), "copy_ (", "[1]", "[2, 3]");
    BAD(SHAPE, trace_expand(x, TRACE_DIMS(5, 3)), "expand (", "[2, 3]", "[5, 3]");
    BAD(SHAPE, trace_reshape(x, TRACE_DIMS(4, 2)), "reshape (", "[2, 3] of 6 elements", "[4, 2]");
    BAD(SHAPE, trace_conv2d(image, image, TRACE_NONE, NULL, NULL, NULL, 3), "conv2d (", "groups 3");
    BAD(SHAPE, trace_amax(empty, TRACE_SCALAR, false), "amax (", "[2, 0]", "empty");
    double v;
    CALL(SHAPE, true, trace_item_f64(x, &v), "trace_item_f64 (", "[2, 3]", "trace_read");
    trace_tensor *out = NULL; // of a recorded value it fails the run
    if (trace_begin(region, TRACE_ARGS(x))) {
        out = trace_neg(x);
        CALL(SHAPE, true, trace_item_f64(out, &v), "trace_item_f64 (", "[2, 3]", "trace_read");
        ck_assert(isnan(v) && trace_failed(ctx));
        ck_assert_ptr_null(trace_neg(out));
    }
    CALL(SHAPE, true, trace_end(region, &out, 1), "trace_item_f64 (");
    ck_assert_ptr_null(out);
    right();
    close_all();
}
END_TEST

START_TEST(rank_over_the_limit) {
    open_all();
    static const int64_t ones[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    NONE(SHAPE, false, trace_from(ctx, TRACE_F32, data, ones, 9), "from", "rank 9", "at most 8");
    NONE(SHAPE, false, trace_placeholder(ctx, TRACE_F32, ones, SIZE_MAX), "placeholder", "at most 8");
    NONE(SHAPE, false, trace_wrap(ctx, TRACE_F32, data, ones, 12), "wrap", "rank 12", "at most 8");
    BAD(SHAPE, trace_reshape(scalar, ones, 9), "reshape (", "rank 9", "at most 8");
    BAD(SHAPE, trace_reshape(scalar, ones, SIZE_MAX), "reshape (", "at most 8");
    BAD(SHAPE, trace_expand(scalar, ones, 9), "expand (", "rank 9", "at most 8");
    BAD(SHAPE, trace_full_f(ctx, ones, 9, 1, TRACE_F32), "full", "rank 9", "at most 8");
    BAD(SHAPE, trace_unsqueeze(r8, 0), "unsqueeze (", "rank 9", "at most 8");
    BAD(SHAPE, trace_stack(TRACE_ARGS(r8, r8), 0), "stack (", "rank 9", "at most 8");
    BAD(SHAPE, trace_unfold(r8, 0, 1, 1), "unfold (", "rank 9", "at most 8");
    BAD(SHAPE, trace_as_strided(x, ones, ones, 9, 0), "as_strided (", "at most 8");
    trace_tensor *many = zeros(TRACE_I64, ones, 8);
    BAD(SHAPE, trace_embedding(x, many), "embedding (", "rank 9", "at most 8");
    trace_release(many);
    BAD(ARG, trace_sum(r8, ones, 12, false), "sum (", "dim 1 is given twice");
    BAD(ARG, trace_permute(r8, ones, 12), "permute (", "12 dims given for rank 8");
    BAD(ARG, trace_flip(r8, ones, SIZE_MAX), "flip (", "twice");
    close_all();
}
END_TEST

#define HUGE (INT64_C(1) << 40)
START_TEST(sizes_that_overflow) {
    open_all();
    NONE(SHAPE, false, trace_from(ctx, TRACE_F32, data, TRACE_DIMS(INT64_MAX, 2)), "from", "overflows");
    NONE(SHAPE, false, trace_wrap(ctx, TRACE_F64, data, TRACE_DIMS(INT64_MAX)), "wrap", "overflows");
    NONE(SHAPE, false, trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(0, HUGE, HUGE)), "placeholder", "overflows");
    NONE(TRACE_ERR_MEMORY, false, trace_from(ctx, TRACE_U8, data, TRACE_DIMS(INT64_MAX / 2)), "out of memory");
    NONE(SHAPE, false,
         trace_wrap_desc(ctx, TRACE_TENSOR_DESC(.dtype = TRACE_F32, .dims = (const int64_t[]){3, 3}, .rank = 2,
                                                .strides = (const int64_t[]){INT64_MAX / 2, 1}, .data = data)),
         "wrap_desc", "strides");
    BAD(SHAPE, trace_zeros(ctx, TRACE_DIMS(INT64_MAX, INT64_MAX), TRACE_F32), "overflows");
    BAD(SHAPE, trace_expand(scalar, TRACE_DIMS(HUGE, HUGE)), "expand (", "overflows");
    BAD(SHAPE, trace_expand(scalar, TRACE_DIMS(INT64_MAX / 2)), "expand (", "overflows"); // bytes only
    trace_tensor *row = trace_unsqueeze(thin, 0), *col = trace_unsqueeze(thin, 1),
                 *deep = trace_expand(x, TRACE_DIMS(INT64_C(1) << 58, 2, 3)), *id = trace_narrow(ids, 0, 0, 1),
                 *many = trace_expand(id, TRACE_DIMS(64)), *large = trace_expand(scalar, TRACE_DIMS(HUGE * 4096));
    BAD(SHAPE, trace_add(row, col), "add (", "overflows");
    BAD(SHAPE, trace_matmul(col, row), "matmul (", "overflows");
    BAD(SHAPE, trace_index_select(deep, 1, many), "index_select (", "overflows");
    BAD(SHAPE, trace_scaled_dot_product_attention(col, col, row, TRACE_NONE, false, 0, false),
        "scaled_dot_product_attention (");
    // a size that fits, and no memory that large
    trace_tensor *out = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        out = trace_clone(large);
    CALL(TRACE_ERR_MEMORY, true, trace_end(region, &out, 1), "region 'bad'", "out of memory");
    ck_assert_ptr_null(out);
    NONE(TRACE_ERR_MEMORY, true, trace_clone(large), "clone (", "out of memory");
    right();
    trace_release(row), trace_release(col), trace_release(deep), trace_release(id), trace_release(many);
    trace_release(large);
    BAD(SHAPE, trace_pad(x, (const int64_t[]){INT64_MAX, INT64_MAX}, 2, TRACE_PAD_CONSTANT, 0), "pad (");
    BAD(SHAPE, trace_pad(x, (const int64_t[]){INT64_MIN, 0}, 2, TRACE_PAD_CONSTANT, 0), "pad (");
    BAD(SHAPE, trace_arange(ctx, INT64_MIN, INT64_MAX, 1, TRACE_I64), "arange (", "overflows");
    BAD(SHAPE, trace_unfold(thin, 0, HUGE / 2, 1), "unfold (", "overflows");
    BAD(ARG, trace_narrow(x, 0, INT64_MAX, 1), "narrow (", "do not fit extent 2");
    BAD(ARG, trace_narrow(x, 0, 1, INT64_MAX), "narrow (", "extent 2");
    BAD(ARG, trace_as_strided(x, (const int64_t[]){3}, (const int64_t[]){INT64_MAX}, 1, 0), "as_strided (", "outside");
    BAD(ARG, trace_as_strided(x, (const int64_t[]){3}, (const int64_t[]){1}, 1, INT64_MAX), "as_strided (", "outside");
    BAD(SHAPE, trace_conv2d(image, image, TRACE_NONE, NULL, (const int64_t[]){INT64_MAX, INT64_MAX}, NULL, 1),
        "conv2d (");
    BAD(SHAPE, trace_conv2d(image, image, TRACE_NONE, NULL, NULL, (const int64_t[]){INT64_MAX, 1}, 1), "conv2d (");
    BAD(SHAPE,
        trace_max_pool2d(image, (const int64_t[]){INT64_MAX, 1}, NULL, (const int64_t[]){INT64_MAX / 2, 0}, NULL,
                         false),
        "max_pool2d (");
    // extreme arguments that are legal
    trace_tensor *s = trace_slice(x, 0, INT64_MIN, INT64_MAX, INT64_MAX), *d = trace_diagonal(x, INT64_MAX, 0, 1);
    ck_assert(trace_size(s, 0) == 1 && trace_size(d, 0) == 0);
    trace_release(s), trace_release(d);
    d = trace_diagonal(x, INT64_MIN, 0, 1);
    ck_assert(d && trace_size(d, 0) == 0);
    trace_release(d);
    close_all();
}
END_TEST

START_TEST(negative_extents) {
    open_all();
    NONE(SHAPE, false, trace_from(ctx, TRACE_F32, data, TRACE_DIMS(2, -1)), "from", "[2, -1]", "extent -1 of dim 1",
         "negative");
    NONE(SHAPE, false, trace_wrap(ctx, TRACE_F32, data, TRACE_DIMS(INT64_MIN)), "wrap", "negative");
    NONE(SHAPE, false,
         trace_wrap_desc(ctx, TRACE_TENSOR_DESC(.dtype = TRACE_F32, .dims = (const int64_t[]){3}, .rank = 1,
                                                .strides = (const int64_t[]){-1}, .data = data)),
         "wrap_desc", "stride -1 of dim 0 is negative", "trace_flip");
    BAD(SHAPE, trace_zeros(ctx, TRACE_DIMS(-4), TRACE_F32), "zeros (", "extent -4 of dim 0 is negative");
    BAD(SHAPE, trace_reshape(x, TRACE_DIMS(-2, -3)), "reshape (", "[2, 3]", "-2");
    BAD(SHAPE, trace_expand(x, TRACE_DIMS(-7, 3)), "expand (", "-7");
    BAD(ARG, trace_narrow(x, 0, 0, -1), "narrow (", "length -1");
    BAD(ARG, trace_unfold(x, 0, -1, 1), "unfold (", "size -1");
    BAD(ARG, trace_unfold(x, 0, 1, 0), "unfold (", "step 0");
    BAD(ARG, trace_slice(x, 0, 0, 2, -1), "slice (", "step -1", "trace_flip");
    BAD(SHAPE, trace_conv2d(image, image, TRACE_NONE, (const int64_t[]){-1, 1}, NULL, NULL, 1), "conv2d (",
        "stride -1");
    BAD(SHAPE, trace_conv2d(image, image, TRACE_NONE, NULL, (const int64_t[]){-1, 1}, NULL, 1), "conv2d (",
        "padding -1");
    BAD(SHAPE, trace_conv2d(image, image, TRACE_NONE, NULL, NULL, NULL, -1), "conv2d (", "groups -1");
    BAD(SHAPE, trace_avg_pool2d(image, (const int64_t[]){0, 0}, NULL, NULL, false, true, 0), "avg_pool2d (",
        "kernel 0");
    BAD(ARG, trace_arange(ctx, 0, 5, -1, TRACE_I64), "arange (", "from 0 to 5 by -1");
    trace_tensor *piece[2] = {x, x};
    CALL(ARG, true, trace_split(x, -1, 0, piece, 2), "split (", "-1");
    ck_assert(!piece[0] && !piece[1]);
    CALL(ARG, true, trace_split(x, 1, 0, piece, 1), "split (", "2");
    CALL(ARG, true, trace_chunk(x, 0, 0, piece, 2), "chunk (", "0");
    close_all();
}
END_TEST

START_TEST(out_of_range) {
    open_all();
    BAD(ARG, trace_sum(x, TRACE_DIMS(2), false), "sum (", "dim 2", "out of range for rank 2");
    BAD(ARG, trace_softmax(x, -3), "softmax (", "dim -3", "rank 2");
    BAD(ARG, trace_softmax(scalar, 1), "softmax (", "dim 1");
    BAD(ARG, trace_transpose(x, 0, INT64_MIN), "transpose (", "out of range");
    BAD(ARG, trace_argmax(x, INT64_MAX, false), "argmax (", "out of range");
    BAD(ARG, trace_unsqueeze(x, 4), "unsqueeze (", "dim 4");
    BAD(ARG, trace_flatten(x, 1, 0), "flatten (");
    BAD(ARG, trace_select(x, 0, 2), "select (", "index 2 is out of range for extent 2 of dim 0");
    BAD(ARG, trace_select(x, 0, -3), "select (", "index -3");
    BAD(ARG, trace_narrow(x, 1, 2, 2), "narrow (", "start 2, length 2", "extent 3 of dim 1");
    BAD(ARG, trace_cat(TRACE_ARGS(x, x), 2), "cat (", "dim 2");
    BAD(ARG, trace_stack(TRACE_ARGS(x, x), 3), "stack (", "dim 3");
    BAD(ARG, trace_gelu(x, -1), "gelu (", "approximate is -1");
    BAD(ARG, trace_pad(x, (const int64_t[]){1, 1}, 2, 9, 0), "pad (", "mode 9");
    MINUS(ARG, trace_size(x, 2), "size", "dim 2 is out of range for rank 2");
    MINUS(ARG, trace_stride(x, INT64_MIN), "stride", "out of range");
    // found while running: the run's error, told by trace_end; the elements are 0
    const int64_t wrong[2] = {1, 7};
    trace_tensor *i = trace_from(ctx, TRACE_I64, wrong, TRACE_DIMS(2));
    size_t before = handles();
    for (int op = 0; op < 5; op++) {
        trace_tensor *out = NULL;
        if (trace_begin(region, TRACE_ARGS(x, i))) {
            out = op == 0   ? trace_index_select(x, 0, i)
                  : op == 1 ? trace_embedding(x, i)
                  : op == 2 ? trace_gather(x, 1, trace_reshape(i, TRACE_DIMS(2, 1)))
                  : op == 3 ? trace_index_copy_(trace_clone(x), 0, i, x)
                            : trace_floor_divide(i, trace_sub(i, i));
        }
        CALL(TRACE_ERR_DEVICE, true, trace_end(region, &out, 1),
             op < 4 ? "index 7 is out of range for" : "division by zero");
        ck_assert_ptr_null(out);
        ck_assert_uint_eq(handles(), before);
        right();
    }
    NONE(TRACE_ERR_DEVICE, true, trace_index_select(x, 0, i), "index_select (", "index 7 is out of range for 2");
    trace_release(i);
    close_all();
}
END_TEST

// ---- the order of calls ---------------------------------------------------------------------------------------------

static void *left_open(void *arg) { // a thread that ends with a run open
    (void)arg;
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    return NULL;
}
static void *end_elsewhere(void *arg) {
    trace_tensor *out = arg;
    CALL(STATE, true, trace_end(region, &out, 1), "region 'bad'", "not begun on this thread",
         "test_badinput.c:", "another thread");
    return NULL;
}
START_TEST(order_of_calls) {
    open_all();
    trace_tensor *out = x, *z;
    // end without begin
    CALL(STATE, true, trace_end(region, &out, 1), "trace_end (", "region 'bad'", "was not begun");
    ck_assert_ptr_null(out);
    right();
    // begin without end: of an inner one, an outer one's end closes both
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    ck_assert(trace_begin(inner, TRACE_ARGS(x)));
    out = trace_neg(x);
    trace_add_f_(state, 1);
    CALL(STATE, true, trace_end(region, &out, 1), "trace_end (", "region 'inner'", "is open", "end or abandon");
    ck_assert_ptr_null(out);
    CALL(STATE, true, trace_end(inner, &out, 1), "was not begun");
    float v = 9;
    TJ_ASSERT_OK(trace_read(state, &v, sizeof v));
    ck_assert(v == 0); // nothing of it ran
    right();
    // the same region twice is an inlined scope; one end is missing
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    out = trace_neg(x);
    TJ_ASSERT_OK(trace_end(region, &out, 1));
    TJ_ASSERT_OK(trace_end(region, &out, 1));
    trace_release(out);
    CALL(STATE, true, trace_end(region, &out, 1), "was not begun");
    right();
    // ended on another thread
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    pthread_t t;
    ck_assert(!pthread_create(&t, NULL, end_elsewhere, trace_neg(x)) && !pthread_join(t, NULL));
    out = trace_relu(x);
    TJ_ASSERT_OK(trace_end(region, &out, 1));
    trace_release(out);
    // destroyed and shut down inside
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    CALL(STATE, false, trace_context_shutdown(ctx, 0), "inside a run");
    trace_abandon(inner); // not open: nothing
    out = trace_neg(x);
    trace_abandon(region);
    CALL(STATE, true, trace_end(region, &out, 1), "was not begun");
    right();
    // abandoned over and over, at any depth
    for (int i = 0; i < 200; i++) {
        ck_assert(trace_begin(region, TRACE_ARGS(x)));
        z = trace_neg(x);
        trace_add_f_(state, 1);
        for (int k = 0; k < i % 5; k++) {
            ck_assert(trace_begin(k & 1 ? region : inner, TRACE_ARGS(z)));
            z = trace_exp(z);
        }
        trace_tensor *later = trace_item_later(trace_select(trace_flatten(z, 0, -1), 0, 0));
        trace_abandon(region);
        while (tj_current)
            trace_abandon(region);
        double d;
        ck_assert_int_eq(trace_item_f64(later, &d), STATE);
        trace_release(later);
    }
    TJ_ASSERT_OK(trace_read(state, &v, sizeof v));
    ck_assert(v == 0);
    right();
    // a thread that is gone: its run stays open, others go on
    ck_assert(!pthread_create(&t, NULL, left_open, NULL) && !pthread_join(t, NULL));
    right();
    CALL(TRACE_ERR_TIMEOUT, false, trace_context_shutdown(ctx, 1), "1 ms");
    CALL(TRACE_ERR_SHUTDOWN, false, trace_region_create(ctx, "late", NULL, &(trace_region *){NULL}), "shut down");
    ck_assert(!trace_begin(region, TRACE_ARGS(x)));
    CALL(TRACE_ERR_SHUTDOWN, false, trace_end(region, &out, 1), "region 'bad'", "shut down");
    NONE(TRACE_ERR_SHUTDOWN, true, trace_neg(x), "neg (", "shut down");
    // everything is released all the same; what the lost run holds stays
    trace_tensor *all[] = {x, y4, ids, flags, half, empty, scalar, r8, image, foreign, fixed, thin, state};
    for (size_t i = 0; i < TJ_COUNT(all); i++)
        trace_release(all[i]);
    trace_region_release(inner), trace_region_release(region);
    trace_context_release(other);
}
END_TEST

// A region released while it is open, outermost or inlined, and its tensors with it.
START_TEST(released_inside) {
    open_all();
    for (int depth = 0; depth < 3; depth++) {
        trace_region *r[2];
        for (int i = 0; i < 2; i++)
            TJ_ASSERT_OK(trace_region_create(ctx, i ? "b" : "a", NULL, &r[i]));
        trace_tensor *in = trace_from(ctx, TRACE_F32, data, TRACE_DIMS(2, 3)), *out = NULL;
        ck_assert(trace_begin(r[0], TRACE_ARGS(in)));
        ck_assert(trace_begin(r[1], TRACE_ARGS(in)));
        out = trace_neg(in);
        trace_release(in); // the run holds it
        if (depth != 1)
            trace_region_release(r[1]);
        if (depth != 0)
            trace_region_release(r[0]);
        if (depth == 2) { // a failure names the region
            out = trace_softmax(out, 5);
            CALL(ARG, true, trace_end(r[1], &out, 1), "region 'b'", "dim 5");
            out = trace_relu(x);
        } else {
            TJ_ASSERT_OK(trace_end(r[1], &out, 1));
        }
        TJ_ASSERT_OK(trace_end(r[0], &out, 1));
        float got[6];
        TJ_ASSERT_OK(trace_read(out, got, sizeof got));
        ck_assert(got[1] == (depth == 2 ? 1 : -1));
        trace_release(out);
        if (depth == 1)
            trace_region_release(r[1]);
        if (depth == 0)
            trace_region_release(r[0]);
    }
    close_all();
}
END_TEST

// ---- handles --------------------------------------------------------------------------------------------------------

START_TEST(another_context) {
    open_all();
    BAD(ARG, trace_add(x, foreign), "add (", "another context", "trace_read and trace_from");
    BAD(ARG, trace_cat(TRACE_ARGS(x, foreign), 0), "cat (", "another context");
    BAD(ARG, trace_copy_(foreign, x), "copy_ (", "another context");
    ck_assert(!trace_begin(region, TRACE_ARGS(foreign)));
    trace_tensor *out = foreign;
    CALL(ARG, true, trace_end(region, &out, 1), "another context");
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    out = foreign;
    CALL(ARG, true, trace_end(region, &out, 1), "trace_end (", "output 0", "another context");
    ck_assert_ptr_null(out);
    right();
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    trace_tensor *theirs = trace_zeros(other, TRACE_DIMS(2), TRACE_F32); // at once, and owned
    ck_assert(theirs);
    ck_assert_ptr_null(trace_add(trace_neg(x), theirs));
    trace_release(theirs);
    CALL(ARG, true, trace_end(region, NULL, 0), "add (", "another context");
    // its region inside one of ours, over a value of ours
    trace_region *r;
    TJ_ASSERT_OK(trace_region_create(other, "theirs", NULL, &r));
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    trace_tensor *ours = trace_neg(x);
    ck_assert(!trace_begin(r, TRACE_ARGS(ours)));
    CALL(ARG, true, trace_end(r, NULL, 0), "region 'theirs'", "recorded value of region", "another context");
    trace_abandon(region);
    right();
    trace_region_release(r);
    // reading it is no effect on what is recorded
    ck_assert(trace_begin(region, TRACE_ARGS(x)));
    float got[6];
    TJ_ASSERT_OK(trace_read(foreign, got, sizeof got));
    TJ_ASSERT_OK(trace_write(foreign, data, sizeof got));
    out = trace_neg(x);
    TJ_ASSERT_OK(trace_end(region, &out, 1));
    trace_release(out);
    close_all();
}
END_TEST

static void *stale_elsewhere(void *arg) {
    NONE(DEAD, true, trace_neg(arg), "neg (", "another thread", "trace_end");
    trace_release(arg);
    ck_assert_ptr_null(trace_retain(arg));
    trace_tensor *out = arg;
    trace_region *r;
    TJ_ASSERT_OK(trace_region_create(ctx, "theirs", NULL, &r));
    ck_assert(trace_begin(r, TRACE_ARGS(x)));
    CALL(DEAD, true, trace_end(r, &out, 1), "trace_end (", "another run");
    trace_region_release(r);
    return NULL;
}
START_TEST(stale_handles) {
    open_all();
    trace_tensor *old = NULL, *out = NULL, *lost = NULL;
    double v;
    const void *p;
    float got[6];
    if (trace_begin(region, TRACE_ARGS(x))) {
        old = trace_exp(x);
        out = trace_neg(old);
        pthread_t t;
        ck_assert(!pthread_create(&t, NULL, stale_elsewhere, old) && !pthread_join(t, NULL));
    }
    TJ_ASSERT_OK(trace_end(region, &out, 1));
    trace_release(out);
    BAD(DEAD, trace_neg(old), "neg (", "trace_end");
    BAD(DEAD, trace_add(x, old), "add (", "trace_end");
    BAD(DEAD, trace_add_(old, x), "add_ (", "trace_end");
    BAD(DEAD, trace_cat(TRACE_ARGS(x, old), 0), "cat (", "trace_end");
    CALL(DEAD, true, trace_item_f64(old, &v), "trace_item_f64 (", "after its run", "trace_end");
    CALL(DEAD, true, trace_read(old, got, sizeof got), "trace_read (");
    CALL(DEAD, true, trace_data(old, &p), "trace_data (");
    CALL(DEAD, true, trace_print(old, "old"), "trace_print (");
    NONE(DEAD, true, trace_item_later(old), "trace_item_later (");
    CALL(ARG, false, trace_write(old, data, 24), "write", "recorded value", "trace_copy_");
    NONE(DEAD, false, trace_retain(old), "retain", "trace_end");
    MINUS(DEAD, trace_rank(old), "rank", "has ended");
    MINUS(DEAD, trace_size(old, 0), "size", "has ended");
    MINUS(DEAD, trace_stride(old, 0), "stride", "has ended");
    MINUS(DEAD, trace_numel(old), "numel", "has ended");
    MINUS(DEAD, trace_dtype_of(old), "dtype_of", "has ended");
    trace_release(old), trace_release(old);
    ck_assert(!trace_begin(region, TRACE_ARGS(old)));
    CALL(DEAD, true, trace_end(region, NULL, 0), "trace_begin (");
    right();
    // released inside, then used: the op and line that made it are named
    if (trace_begin(region, TRACE_ARGS(x))) {
        old = trace_exp(x);
        trace_release(old);
        out = trace_neg(old);
        ck_assert_ptr_null(out);
    }
    CALL(DEAD, true, trace_end(region, &out, 1), "neg (", "the value of exp (", "was released", "retain it before");
    // dropped with an inner region that failed
    if (trace_begin(region, TRACE_ARGS(x))) {
        if (trace_begin(inner, TRACE_ARGS(x)))
            lost = trace_exp(x), (void)trace_softmax(lost, 8);
        CALL(ARG, true, trace_end(inner, &out, 1), "region 'inner'", "dim 8");
        out = trace_neg(lost);
        ck_assert_ptr_null(out);
    }
    CALL(DEAD, true, trace_end(region, &out, 1), "neg (", "exp (", "failed inner region");
    // handles nobody made
    const uintptr_t made_up[] = {1, 3, 5, 0xFFFF, UINTPTR_MAX - 2, (uintptr_t)old ^ 1u << 20, (uintptr_t)old ^ 2};
    for (size_t i = 0; i < TJ_COUNT(made_up); i++) {
        trace_tensor *h = (trace_tensor *)(made_up[i] | 1);
        BAD(DEAD, trace_neg(h), "neg (");
        ck_assert(trace_numel(h) == -1 && !trace_retain(h));
        trace_release(h);
    }
    // a deferred value before its time
    trace_tensor *later = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        later = trace_item_later(trace_sum(x, TRACE_SCALAR, false));
        CALL(STATE, true, trace_item_f64(later, &v), "trace_item_f64 (", "trace_end", "trace_item_later");
        CALL(STATE, false, trace_write(later, data, 4), "write", "no content yet");
        out = trace_neg(later);
        ck_assert_ptr_null(out);
    }
    CALL(STATE, true, trace_end(region, &out, 1), "neg (", "trace_item_later");
    CALL(STATE, true, trace_item_f64(later, &v), "failed");
    BAD(STATE, trace_neg(later), "neg (", "its run failed");
    trace_release(later);
    right();
    close_all();
}
END_TEST

START_TEST(outputs_that_are_not_traced) {
    open_all();
    trace_tensor *old = NULL, *out[3] = {NULL, NULL, NULL};
    if (trace_begin(region, TRACE_ARGS(x)))
        old = trace_exp(x);
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    trace_tensor *const bad[] = {NULL, TRACE_NONE, old, foreign};
    static const struct {
        tj_status status;
        const char *text;
    } want[] = {{ARG, " is NULL"}, {ARG, " is TRACE_NONE"}, {DEAD, "trace_end"}, {ARG, "another context"}};
    size_t before = handles();
    for (size_t i = 0; i < TJ_COUNT(bad); i++) {
        for (int nested = 0; nested < 2; nested++) {
            trace_region *r = nested ? inner : region;
            if (nested)
                ck_assert(trace_begin(region, TRACE_ARGS(x)));
            if (trace_begin(r, TRACE_ARGS(x))) {
                out[0] = trace_neg(x);
                out[1] = bad[i];
                out[2] = x;
                trace_add_f_(state, 1);
            }
            CALL(want[i].status, true, trace_end(r, out, 3), "trace_end (", want[i].text);
            ck_assert(!out[0] && !out[1] && !out[2]);
            if (nested)
                TJ_ASSERT_OK(trace_end(region, NULL, 0));
            ck_assert_uint_eq(handles(), before);
            float v = 9;
            TJ_ASSERT_OK(trace_read(state, &v, sizeof v));
            ck_assert(v == 0);
            right();
        }
    }
    // a tensor that no op touched is an output like any other
    if (trace_begin(region, TRACE_ARGS(x)))
        out[0] = y4;
    TJ_ASSERT_OK(trace_end(region, out, 1));
    ck_assert(out[0] == y4);
    trace_release(out[0]);
    close_all();
}
END_TEST

// ---- memory that may not be written, placeholders, options ----------------------------------------------------------

START_TEST(memory_and_options) {
    open_all();
    BAD(ARG, trace_add_f_(fixed, 1), "add_ (", "read-only");
    BAD(ARG, trace_copy_(fixed, x), "copy_ (", "read-only");
    BAD(ARG, trace_fill_f_(thin, 1), "fill_ (", "single memory location", "clone");
    CALL(ARG, false, trace_write(fixed, data, 24), "write", "read-only", "trace_wrap");
    CALL(ARG, false, trace_write(thin, data, 4 * HUGE), "write", "broadcast", "clone");
    CALL(ARG, false, trace_modified(x), "modified", "trace_write");
    trace_tensor *p = trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(2, 3)), *out = NULL;
    double v;
    NONE(STATE, true, trace_neg(p), "neg", "placeholder");
    CALL(STATE, false, trace_write(p, data, 24), "write", "placeholder");
    if (trace_begin(region, TRACE_ARGS(p))) {
        out = trace_sum(p, TRACE_SCALAR, false);
        CALL(STATE, true, trace_item_f64(out, &v), "trace_item_f64 (", "placeholder");
    }
    CALL(STATE, true, trace_end(region, &out, 1), "placeholder");
    if (trace_begin(region, TRACE_ARGS(p)))
        out = trace_neg(p);
    TJ_ASSERT_OK(trace_end(region, &out, 1));
    CALL(STATE, true, trace_read(out, data, 24), "trace_read (", "placeholder");
    trace_release(out), trace_release(p);
    right();

    trace_context *c = ctx;
    trace_region *r = region;
    unsigned char big[sizeof(trace_context_options) + 64];
    trace_context_options o = {.size = sizeof o, .threads = -1};
    CALL(ARG, false, trace_context_create(&o, &c), "threads is -1");
    ck_assert_ptr_null(c);
    o = (trace_context_options){.size = 0};
    CALL(ARG, false, trace_context_create(&o, &c), "size is 0", "sizeof(trace_context_options)");
    memset(big, 0, sizeof big);
    ((trace_context_options *)(void *)big)->size = sizeof big;
    TJ_ASSERT_OK(trace_context_create((const trace_context_options *)(const void *)big, &c)); // zeros are the defaults
    trace_context_release(c);
    big[sizeof(trace_context_options) + 3] = 1;
    CALL(ARG, false, trace_context_create((const trace_context_options *)(const void *)big, &c), "are set");
    CALL(TRACE_ERR_UNAVAILABLE, false, trace_context_create(TRACE_CONTEXT_OPTIONS(.device = TRACE_DEVICE_CUDA), &c),
         "CUDA", "TRACE_DEVICE_CPU");
    CALL(ARG, false, trace_region_create(ctx, "r", TRACE_REGION_OPTIONS(.mode = (enum trace_mode)9), &r), "mode 9");
    ck_assert_ptr_null(r);
    CALL(ARG, false, trace_region_create(ctx, "r", TRACE_REGION_OPTIONS(.dynamic = -1), &r), "dynamic -1");
    CALL(ARG, false, trace_region_create(ctx, "r", TRACE_REGION_OPTIONS(.matmul_precision = 9), &r), "precision 9");
    trace_tensor_desc d = {.size = sizeof d, .dtype = TRACE_F32, .data = data, .flags = 64};
    NONE(ARG, false, trace_wrap_desc(ctx, &d), "wrap_desc", "flags 0x40");
    d.size = 3;
    NONE(ARG, false, trace_wrap_desc(ctx, &d), "wrap_desc", "size", "TRACE_TENSOR_DESC");
    right();
    close_all();
}
END_TEST

// fullgraph: the readback fails at once and again at the end, with what to do instead.
START_TEST(fullgraph_breaks) {
    open_all();
    trace_region *r;
    TJ_ASSERT_OK(trace_region_create(ctx, "whole", TRACE_REGION_OPTIONS(.fullgraph = true), &r));
    trace_tensor *out = NULL;
    double v = 1;
    if (trace_begin(r, TRACE_ARGS(x))) {
        out = trace_sum(x, TRACE_SCALAR, false);
        CALL(TRACE_ERR_BREAK, true, trace_item_f64(out, &v), "region 'whole'", "fullgraph", "trace_item_f64", "sum (",
             "trace_end");
        ck_assert(isnan(v) && trace_failed(ctx));
    }
    CALL(TRACE_ERR_BREAK, true, trace_end(r, &out, 1), "region 'whole'", "fullgraph");
    ck_assert_ptr_null(out);
    right();
    trace_region_release(r);
    close_all();
}
END_TEST

TJ_TEST_MAIN("badinput", null_handles, wrong_dtypes, shapes_that_do_not_fit, rank_over_the_limit, sizes_that_overflow,
             negative_extents, out_of_range, order_of_calls, released_inside, another_context, stale_handles,
             outputs_that_are_not_traced, memory_and_options, fullgraph_breaks)
