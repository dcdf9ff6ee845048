// tests/test_odd.c: legal and unlikely: nothing in them, rank 8, thousands of ops, operands, outputs and scopes; the
// same bits compiled and interpreted.
#include <errno.h>
#include <pthread.h>

#include "../trace/context.h"
#include "tj_test.h"

enum tier { JIT, INTERPRETER, TIERS };
static trace_context *ctx;
static trace_region *region;
static int events;
static void on_event(void *user, const trace_event *e) { // asks for everything a callback may ask for
    char text[2000];
    size_t need;
    trace_stats s = {.size = sizeof s};
    ck_assert_ptr_eq(user, &events);
    events++;
    trace_context_stats(ctx, &s);
    if (region)
        trace_region_stats(region, &s);
    (void)trace_context_report(ctx, TRACE_FORMAT_JSON, text, sizeof text, &need);
    ck_assert(trace_context_describe(ctx)[0] && trace_last_error(ctx) && e->what && e->where && e->region);
    errno = 4711; // a callback may do anything to it
}
static void start(enum tier t) {
    (void)setenv("TRACEJIT_NO", t == JIT ? "" : "jit", 1);
    TJ_ASSERT_OK(
        trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 2, .on_event = on_event, .event_user = &events), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "odd", NULL, &region));
}
static void finish(void) {
    trace_region_release(region);
    region = NULL;
    ck_assert_ptr_null(ctx->tensors);
    ck_assert_ptr_null(ctx->regions);
    ck_assert_int_eq(atomic_load(&ctx->refs), 1);
    trace_context_release(ctx);
}
static trace_tensor *make(enum trace_dtype d, const int64_t *dims, size_t rank) {
    static unsigned char bytes[1 << 16];
    int64_t n;
    ck_assert(tj_numel(dims, rank, &n) && n <= 8192);
    for (int64_t i = 0; i < n; i++) {
        float f = (float)((i * 5 + 2) % 13) / 4 - 1;
        int64_t k = (i * 3 + 1) % 4;
        if (d == TRACE_F32)
            memcpy(bytes + i * 4, &f, 4);
        else if (d == TRACE_I64)
            memcpy(bytes + i * 8, &k, 8);
        else
            bytes[i] = (unsigned char)(k & 1);
    }
    trace_tensor *t = trace_from(ctx, d, bytes, dims, rank);
    ck_assert_ptr_nonnull(t);
    return t;
}
static size_t bytes_of(trace_tensor *t) { return (size_t)trace_numel(t) * tj_elem_bytes((tj_dtype)trace_dtype_of(t)); }

// ---- nothing in them ------------------------------------------------------------------------------------------------

enum { ROOM = 4096, OUTS = 80 };
struct result {
    int n, rank[OUTS];
    int64_t dims[OUTS][TJ_MAX_RANK];
    size_t bytes[OUTS];
    unsigned char data[OUTS][ROOM];
};
static void take(struct result *r, trace_tensor **out, int n) {
    r->n = n;
    for (int i = 0; i < n; i++) {
        r->rank[i] = trace_rank(out[i]);
        for (int d = 0; d < r->rank[i]; d++)
            r->dims[i][d] = trace_size(out[i], d);
        r->bytes[i] = bytes_of(out[i]);
        ck_assert_uint_le(r->bytes[i], ROOM);
        TJ_ASSERT_OK(trace_read(out[i], r->data[i], r->bytes[i]));
        trace_release(out[i]);
    }
}
static void same_results(const struct result *a, const struct result *b, const char *what) {
    ck_assert_int_eq(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        ck_assert_msg(a->rank[i] == b->rank[i] && !memcmp(a->dims[i], b->dims[i], sizeof a->dims[i]), "op %d: %s", i,
                      what);
        ck_assert_msg(!memcmp(a->data[i], b->data[i], a->bytes[i]), "op %d: %s", i, what);
    }
}
// Ops over tensors with an extent of 0, or their result has one. One run an op, then all in one.
static int empties(trace_tensor *const *in, trace_tensor **o) {
    trace_tensor *e = in[0], *x = in[1], *i = in[2], *f = in[3], *w = in[4], *b = in[5], *s = in[6], *img = in[7];
    int n = 0; // e [0, 3], x [2, 3], i i64[0], f bool[0, 3], w [3, 3], b [3], s [], img [0, 3, 4, 4]
    o[n++] = trace_neg(e);
    o[n++] = trace_add(e, b);
    o[n++] = trace_where(f, e, s);
    o[n++] = trace_softmax(e, 0);
    o[n++] = trace_softmax(e, 1);
    o[n++] = trace_log_softmax(trace_transpose(e, 0, 1), -1);
    o[n++] = trace_sum(e, TRACE_SCALAR, false);
    o[n++] = trace_sum(e, TRACE_DIMS(0), true);
    o[n++] = trace_mean(e, TRACE_DIMS(0), false);
    o[n++] = trace_mean(e, TRACE_DIMS(1), false);
    o[n++] = trace_var(e, TRACE_DIMS(0), 1, false);
    o[n++] = trace_amax(e, TRACE_DIMS(1), false);
    o[n++] = trace_argmax(e, 1, false);
    o[n++] = trace_any(f, TRACE_DIMS(0), false);
    o[n++] = trace_all(f, TRACE_DIMS(0), false);
    o[n++] = trace_layer_norm(e, TRACE_DIMS(3), b, b, 1e-5);
    o[n++] = trace_rms_norm(e, b, 1e-5);
    o[n++] = trace_matmul(e, w);
    o[n++] = trace_matmul(trace_transpose(e, 0, 1), e); // [3, 3] of sums over nothing
    o[n++] = trace_matmul(trace_narrow(x, 0, 0, 0), w);
    o[n++] = trace_linear(e, w, b);
    o[n++] = trace_linear(trace_narrow(x, 1, 0, 0), trace_narrow(w, 1, 0, 0), b); // bias alone
    o[n++] = trace_cat(TRACE_ARGS(e, x, e), 0);
    o[n++] = trace_stack(TRACE_ARGS(e, e), 1);
    o[n++] = trace_pad(e, (const int64_t[]){1, 1, 1, 1}, 4, TRACE_PAD_CONSTANT, 2);
    o[n++] = trace_pad(x, (const int64_t[]){-1, -2}, 2, TRACE_PAD_CONSTANT, 2);
    o[n++] = trace_index_select(x, 0, i);
    o[n++] = trace_embedding(w, i);
    o[n++] = trace_gather(x, 0, trace_narrow(trace_unsqueeze(trace_expand(i, TRACE_DIMS(0)), 1), 1, 0, 1));
    o[n++] = trace_flip(e, TRACE_DIMS(0, 1));
    o[n++] = trace_reshape(e, TRACE_DIMS(3, 0, 7));
    o[n++] = trace_expand(trace_unsqueeze(e, 0), TRACE_DIMS(4, -1, -1));
    o[n++] = trace_unfold(x, 1, 0, 1);
    o[n++] = trace_diagonal(x, 7, 0, 1);
    o[n++] = trace_slice(x, 1, 2, 1, 1);
    o[n++] = trace_arange(ctx, 3, 3, 1, TRACE_F32);
    o[n++] = trace_zeros(ctx, TRACE_DIMS(0), TRACE_I32);
    o[n++] = trace_conv2d(img, trace_reshape(trace_expand(w, TRACE_DIMS(2, 3, 3)), TRACE_DIMS(2, 3, 1, 3)), TRACE_NONE,
                          NULL, NULL, NULL, 1);
    o[n++] = trace_max_pool2d(img, (const int64_t[]){2, 2}, NULL, NULL, NULL, false);
    o[n++] = trace_avg_pool2d(img, (const int64_t[]){2, 2}, NULL, NULL, false, true, 0);
    o[n++] = trace_batch_norm(img, b, b, b, trace_abs(b), 1e-5);
    o[n++] = trace_scaled_dot_product_attention(x, e, e, TRACE_NONE, false, 0, false); // no keys: 0
    o[n++] = trace_scaled_dot_product_attention(e, x, x, TRACE_NONE, true, 0, false);
    o[n++] = trace_cross_entropy(e, i, TRACE_NONE, TRACE_REDUCTION_NONE, -100, 0);
    o[n++] = trace_cross_entropy(e, i, TRACE_NONE, TRACE_REDUCTION_MEAN, -100, 0);
    return n;
}

static void empties_in(enum tier t, enum trace_mode mode, struct result *r) {
    start(t);
    trace_region *g;
    TJ_ASSERT_OK(trace_region_create(ctx, "empties", TRACE_REGION_OPTIONS(.mode = mode), &g));
    trace_tensor *in[] = {make(TRACE_F32, TRACE_DIMS(0, 3)), make(TRACE_F32, TRACE_DIMS(2, 3)),
                          make(TRACE_I64, TRACE_DIMS(0)),    make(TRACE_BOOL, TRACE_DIMS(0, 3)),
                          make(TRACE_F32, TRACE_DIMS(3, 3)), make(TRACE_F32, TRACE_DIMS(3)),
                          make(TRACE_F32, TRACE_SCALAR),     make(TRACE_F32, TRACE_DIMS(0, 3, 4, 4))};
    trace_tensor *out[OUTS] = {0};
    int n = 0;
    if (trace_begin(g, in, TJ_COUNT(in)))
        n = empties(in, out);
    for (int i = 0; i < n; i++)
        ck_assert_msg(out[i] != NULL, "op %d: %s", i, trace_last_error(ctx));
    TJ_ASSERT_OK(trace_end(g, out, (size_t)n));
    take(r, out, n);
    // in place, on nothing
    trace_tensor *e = in[0];
    if (trace_begin(g, in, TJ_COUNT(in))) {
        ck_assert(trace_add_(e, in[5]) && trace_fill_f_(e, 3) && trace_copy_(e, in[5]));
        ck_assert(trace_index_copy_(in[4], 0, in[2], e));
        ck_assert(trace_print_later(e, "nothing") == TRACE_OK);
    }
    TJ_ASSERT_OK(trace_end(g, NULL, 0));
    const void *p;
    TJ_ASSERT_OK(trace_data(e, &p));
    TJ_ASSERT_OK(trace_read(e, NULL, 0));
    TJ_ASSERT_OK(trace_write(e, NULL, 0));
    ck_assert_ptr_nonnull(p);
    for (size_t i = 0; i < TJ_COUNT(in); i++)
        trace_release(in[i]);
    trace_region_release(g);
    finish();
}
START_TEST(nothing_in_them) {
    static struct result a, b, c;
    empties_in(INTERPRETER, TRACE_MODE_RECORD, &a);
    empties_in(JIT, TRACE_MODE_RECORD, &b);
    empties_in(JIT, TRACE_MODE_EAGER, &c);
    same_results(&a, &b, "compiled");
    same_results(&a, &c, "alone");
    float v;
    memcpy(&v, a.data[6], 4); // the sum over nothing
    ck_assert(v == 0);
    memcpy(&v, a.data[8], 4); // the mean over nothing
    ck_assert(isnan(v));
}
END_TEST

// ---- one, and eight dims --------------------------------------------------------------------------------------------

static int dims_of_all_kinds(trace_tensor *const *in, trace_tensor **o) {
    trace_tensor *s = in[0], *t = in[1], *u = in[2]; // s [], t [1, 2, 1, 3, 2, 1, 2, 2], u [2, 1, 2, 1, 1, 3, 1, 2]
    int n = 0;
    o[n++] = trace_add(s, s);
    o[n++] = trace_sum(s, TRACE_SCALAR, true);
    o[n++] = trace_softmax(s, 0);
    o[n++] = trace_argmax(s, TRACE_ALL_DIMS, false);
    o[n++] = trace_sum(s, TRACE_DIMS(-1), false);
    o[n++] = trace_reshape(s, TRACE_DIMS(1, 1, 1, 1, 1, 1, 1, 1));
    o[n++] = trace_add(t, u); // [2, 2, 2, 3, 2, 3, 2, 2]
    o[n++] = trace_sum(trace_mul(t, u), TRACE_DIMS(0, 2, 4, 6), true);
    o[n++] = trace_mean(t, TRACE_DIMS(1, 3, 7), false);
    o[n++] = trace_softmax(trace_sub(u, s), 5);
    o[n++] = trace_permute(t, TRACE_DIMS(7, 6, 5, 4, 3, 2, 1, 0));
    o[n++] = trace_exp(trace_permute(t, TRACE_DIMS(7, 1, 5, 3, 4, 2, 6, 0)));
    o[n++] = trace_cat(TRACE_ARGS(t, t, t), 3);
    o[n++] = trace_flip(t, TRACE_DIMS(1, 3, 6));
    o[n++] = trace_amax(t, TRACE_DIMS(4), false);
    o[n++] = trace_layer_norm(t, TRACE_DIMS(2, 2), TRACE_NONE, TRACE_NONE, 1e-5);
    o[n++] = trace_pad(t, (const int64_t[]){1, 0, 0, 1, 1, 1}, 6, TRACE_PAD_REPLICATE, 0);
    o[n++] = trace_matmul(t, trace_transpose(t, -1, -2));
    return n;
}
static void dims_in(enum tier t, enum trace_mode mode, struct result *r) {
    start(t);
    trace_region *g;
    TJ_ASSERT_OK(trace_region_create(ctx, "dims", TRACE_REGION_OPTIONS(.mode = mode), &g));
    trace_tensor *in[] = {make(TRACE_F32, TRACE_SCALAR), make(TRACE_F32, TRACE_DIMS(1, 2, 1, 3, 2, 1, 2, 2)),
                          make(TRACE_F32, TRACE_DIMS(2, 1, 2, 1, 1, 3, 1, 2))};
    trace_tensor *out[OUTS] = {0};
    int n = 0;
    if (trace_begin(g, in, TJ_COUNT(in)))
        n = dims_of_all_kinds(in, out);
    for (int i = 0; i < n; i++)
        ck_assert_msg(out[i] != NULL, "op %d: %s", i, trace_last_error(ctx));
    TJ_ASSERT_OK(trace_end(g, out, (size_t)n));
    take(r, out, n);
    for (size_t i = 0; i < TJ_COUNT(in); i++)
        trace_release(in[i]);
    trace_region_release(g);
    finish();
}
START_TEST(one_and_eight_dims) {
    static struct result a, b, c;
    dims_in(INTERPRETER, TRACE_MODE_RECORD, &a);
    dims_in(JIT, TRACE_MODE_RECORD, &b);
    dims_in(JIT, TRACE_MODE_EAGER, &c);
    same_results(&a, &b, "compiled");
    same_results(&a, &c, "alone");
}
END_TEST

// ---- thousands ------------------------------------------------------------------------------------------------------

START_TEST(long_chain) { // one fused kernel would be enormous: it has to be cut, not to take minutes
    start((enum tier)_i);
    trace_tensor *x = make(TRACE_F32, TRACE_DIMS(3)), *y = NULL;
    float in[3], got[3];
    TJ_ASSERT_OK(trace_read(x, in, sizeof in));
    for (int again = 0; again < 2; again++) {
        if (trace_begin(region, TRACE_ARGS(x))) {
            y = x;
            for (int i = 0; i < 20000; i++)
                y = i & 1 ? trace_mul_f(y, 1.0009765625) : trace_add_f(y, 0.001);
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        TJ_ASSERT_OK(trace_read(y, got, sizeof got));
        trace_release(y);
        for (int k = 0; k < 3; k++) {
            float v = in[k];
            for (int i = 0; i < 20000; i++)
                v = i & 1 ? v * 1.0009765625f : v + 0.001f;
            ck_assert_msg(v == got[k], "%.9g is not %.9g", (double)got[k], (double)v);
        }
    }
    trace_release(x);
    finish();
}
END_TEST

START_TEST(many_operands) {
    enum { MANY = 5000 };
    start((enum tier)_i);
    trace_tensor *x[4], **list = calloc(MANY, sizeof *list), *y = NULL;
    ck_assert_ptr_nonnull(list);
    for (int i = 0; i < 4; i++)
        x[i] = make(TRACE_F32, TRACE_DIMS(i, 2)); // the first has nothing
    float *got = malloc(MANY * 16), v[6];
    ck_assert_ptr_nonnull(got);
    for (int leaves = 0; leaves < 2; leaves++) {
        if (trace_begin(region, x, 4)) {
            for (int i = 0; i < MANY; i++)
                list[i] = leaves ? x[i % 4] : trace_add_f(x[i % 4], i);
            y = trace_cat(list, MANY, 0);
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert_int_eq(trace_size(y, 0), MANY / 4 * 6);
        TJ_ASSERT_OK(trace_read(y, got, MANY / 4 * 6 * 8));
        TJ_ASSERT_OK(trace_read(x[3], v, sizeof v));
        ck_assert(got[12 * 100 + 6] == (leaves ? v[0] : v[0] + 403));
        trace_release(y);
    }
    for (int i = 0; i < 4; i++)
        trace_release(x[i]);
    free(list), free(got);
    finish();
}
END_TEST

START_TEST(many_outputs) {
    enum { MANY = 2000 };
    start((enum tier)_i);
    trace_tensor *x = make(TRACE_F32, TRACE_DIMS(4)), **out = calloc(MANY, sizeof *out);
    ck_assert_ptr_nonnull(out);
    if (trace_begin(region, TRACE_ARGS(x))) {
        for (int i = 0; i < MANY; i++) // some twice, some views, some the input
            out[i] = i % 5 == 4   ? out[i - 1]
                     : i % 5 == 3 ? trace_narrow(out[i - 1], 0, 1, 2)
                     : i % 5 == 2 ? trace_mul_f(x, i)
                     : i % 5 == 1 ? x
                                  : trace_select(x, 0, 2);
    }
    TJ_ASSERT_OK(trace_end(region, out, MANY));
    float v[4], w[4];
    TJ_ASSERT_OK(trace_read(x, v, sizeof v));
    for (int i = 0; i < MANY; i++) {
        TJ_ASSERT_OK(trace_read(out[i], w, bytes_of(out[i])));
        int made = i - i % 5 + 2;
        ck_assert(w[0] == (i % 5 >= 3   ? v[1] * (float)made
                           : i % 5 == 2 ? v[0] * (float)made
                           : i % 5 == 1 ? v[0]
                                        : v[2]));
        trace_release(out[i]);
    }
    trace_release(x);
    free(out);
    finish();
}
END_TEST

// ---- scopes ---------------------------------------------------------------------------------------------------------

static trace_tensor *recursive(trace_tensor *x, int depth) { // the same region, and a readback at the bottom
    trace_tensor *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        y = trace_add_f(x, 1);
        double v;
        if (depth == 0)
            ck_assert(trace_item_f64(trace_sum(y, TRACE_SCALAR, false), &v) == TRACE_OK);
        else
            y = recursive(y, depth - 1);
    }
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    return y;
}
START_TEST(deep_scopes) {
    start((enum tier)_i);
    trace_tensor *x = make(TRACE_F32, TRACE_DIMS(2)), *y;
    float v[2], w[2];
    TJ_ASSERT_OK(trace_read(x, v, sizeof v));
    for (int again = 0; again < 2; again++) {
        y = recursive(x, 999);
        TJ_ASSERT_OK(trace_read(y, w, sizeof w));
        float want = v[0];
        for (int i = 0; i < 1000; i++)
            want += 1;
        ck_assert(w[0] == want);
        trace_release(y);
    }
    trace_stats s = {.size = sizeof s};
    trace_region_stats(region, &s);
    ck_assert_uint_eq(s.nested, 2 * 999);
    ck_assert_uint_eq(s.runs, 2);
    trace_release(x);
    finish();
}
END_TEST

// ---- outputs and inputs in unlikely places --------------------------------------------------------------------------

START_TEST(places) {
    start((enum tier)_i);
    trace_tensor *x = make(TRACE_F32, TRACE_DIMS(2, 3)), *s = make(TRACE_F32, TRACE_DIMS(3)), *o[8] = {0};
    float v[6], w[3], g[8][6] = {{0}};
    TJ_ASSERT_OK(trace_read(x, v, sizeof v));
    TJ_ASSERT_OK(trace_read(s, w, sizeof w));
    // the same input declared three times; released inside; an input that is written is an output, and its view, too
    if (trace_begin(region, TRACE_ARGS(x, s, x, x))) {
        o[0] = trace_transpose(x, 0, 1); // of what is written below: shares memory
        o[1] = trace_clone(o[0]);        // as it is now
        trace_add_f_(x, 10);
        o[2] = x;
        trace_tensor *sum = trace_add(x, s);
        o[3] = trace_narrow(sum, 1, 0, 2);
        o[4] = trace_expand(trace_select(sum, 0, 0), TRACE_DIMS(2, 3));
        o[5] = o[3];
        o[6] = trace_retain(sum);
        trace_release(sum);
        o[7] = trace_add_f_(trace_clone(s), 1);
        trace_retain(x);
        trace_release(x);
    }
    TJ_ASSERT_OK(trace_end(region, o, 8));
    for (int i = 0; i < 8; i++)
        TJ_ASSERT_OK(trace_read(o[i], g[i], bytes_of(o[i])));
    ck_assert(g[0][1] == v[3] + 10 && g[1][1] == v[3] && g[2][4] == v[4] + 10 && g[3][2] == v[3] + 10 + w[0]);
    ck_assert(g[4][5] == v[2] + 10 + w[2] && g[5][3] == g[3][3] && g[6][5] == v[5] + 10 + w[2] && g[7][1] == w[1] + 1);
    ck_assert(o[2] == x && trace_stride(o[0], 0) == 1);
    for (int i = 0; i < 8; i++)
        trace_release(o[i]);
    // every handle the host has is gone while the run goes on
    trace_tensor *y = make(TRACE_F32, TRACE_DIMS(3)), *z = NULL, *kept;
    double d;
    if (trace_begin(region, TRACE_ARGS(x, y))) {
        z = trace_mul(y, s);
        kept = trace_mul_f(z, 2);
        trace_release(y);
        ck_assert(trace_item_f64(trace_sum(kept, TRACE_SCALAR, false), &d) == TRACE_OK);
        trace_release(kept);
        z = trace_sub(z, trace_clone(s));
        trace_release(x), trace_release(s);
    }
    TJ_ASSERT_OK(trace_end(region, &z, 1));
    TJ_ASSERT_OK(trace_read(z, g[0], 12));
    ck_assert(g[0][1] == w[1] * w[1] - w[1]); // y has the values of s
    trace_release(z);
    finish();
}
END_TEST

// ---- errno, callbacks -----------------------------------------------------------------------------------------------

#define KEEPS(expr)                                                                                                    \
    do {                                                                                                               \
        errno = 77;                                                                                                    \
        expr;                                                                                                          \
        ck_assert_msg(errno == 77, "%s: errno is %d", #expr, errno);                                                   \
    } while (0)
START_TEST(errno_is_the_hosts) {
    start((enum tier)_i);
    trace_tensor *x = NULL, *y = NULL, *z = NULL, *l = NULL;
    char text[4000];
    double d;
    size_t need;
    const float v[3] = {1, 2, 3};
    int before = events;
    KEEPS(x = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(3)));
    for (int again = 0; again < 2; again++) {
        KEEPS((void)trace_begin(region, TRACE_ARGS(x)));
        KEEPS(y = trace_exp(x));
        KEEPS(l = trace_item_later(trace_amax(y, TRACE_SCALAR, false)));
        KEEPS(d = trace_item_f64(trace_sum(y, TRACE_SCALAR, false), &d)); // a break, and a compile
        KEEPS(y = trace_sub(y, x));
        KEEPS(d = trace_end(region, &y, 1));
        ck_assert_ptr_nonnull(y);
        KEEPS(z = trace_neg(x)); // a compile of a single op
        KEEPS(d = trace_item_f64(l, &d));
        trace_release(y), trace_release(z), trace_release(l);
    }
    KEEPS((void)!trace_softmax(x, 9)); // a failure
    KEEPS(z = trace_from(ctx, TRACE_U8, v, TRACE_DIMS(INT64_MAX / 4)));
    ck_assert_ptr_null(z);
    KEEPS((void)trace_context_report(ctx, TRACE_FORMAT_TEXT, text, sizeof text, &need));
    KEEPS((void)trace_print(x, "x"));
    ck_assert_int_gt(events, before);
    trace_region *r = NULL;
    KEEPS((void)trace_region_create(ctx, "r", NULL, &r));
    KEEPS(trace_region_release(r));
    KEEPS(trace_release(x));
    finish();
    trace_context *c = NULL;
    KEEPS((void)trace_context_create(NULL, &c));
    KEEPS(trace_context_release(c));
}
END_TEST

// ---- threads --------------------------------------------------------------------------------------------------------

enum { THREADS = 8, TURNS = 40 };
static void *worker(void *arg) {
    int id = (int)(intptr_t)arg;
    for (int turn = 0; turn < TURNS; turn++) {
        int n = 1 + (turn * 3 + id) % 7;
        trace_tensor *x = trace_full_f(ctx, TRACE_DIMS(n, id + 1), id, TRACE_F32), *y = NULL, *z = NULL;
        double d = 0, e = 0;
        if (trace_begin(region, TRACE_ARGS(x))) {
            trace_tensor *h = trace_add_f(trace_mul_f(x, 2), 1);
            y = trace_sum(h, TRACE_DIMS(1), false);
            if (turn % 4 == 0 && n == 1)
                ck_assert(trace_item_f64(y, &d) == TRACE_OK);
            if (turn % 9 == 8)
                y = trace_softmax(y, 5); // fails
            else
                z = trace_amax(y, TRACE_SCALAR, false);
        }
        trace_tensor *out[2] = {y, z};
        tj_status s = trace_end(region, out, 2);
        if (turn % 9 == 8) {
            ck_assert(s == TRACE_ERR_ARGUMENT && !out[0] && !out[1] && strstr(trace_last_error(ctx), "dim 5"));
        } else {
            ck_assert_msg(s == TRACE_OK, "%s", trace_last_error(ctx));
            ck_assert(trace_item_f64(out[1], &e) == TRACE_OK && e == (2.0 * id + 1) * (id + 1));
        }
        trace_release(out[0]), trace_release(out[1]), trace_release(x);
    }
    return NULL;
}
static void no_event(void *user, const trace_event *e) { (void)user, (void)e; }
START_TEST(eight_threads) {
    (void)setenv("TRACEJIT_NO", _i == JIT ? "" : "jit", 1);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 2, .on_event = no_event), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "eight", TRACE_REGION_OPTIONS(.max_graphs = 20), &region)); // evicts, too
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        ck_assert(!pthread_create(&t[i], NULL, worker, (void *)(intptr_t)i));
    char text[20000];
    size_t need;
    for (int i = 0; i < 50; i++) {
        trace_stats s = {.size = sizeof s};
        trace_region_stats(region, &s);
        trace_context_stats(ctx, &s);
        (void)trace_context_report(ctx, TRACE_FORMAT_TEXT, text, sizeof text, &need);
    }
    for (int i = 0; i < THREADS; i++)
        ck_assert(!pthread_join(t[i], NULL));
    trace_stats s = {.size = sizeof s};
    trace_region_stats(region, &s);
    int fails = 0;
    for (int i = 0; i < TURNS; i++)
        fails += i % 9 == 8;
    ck_assert_uint_eq(s.runs, THREADS * (TURNS - (unsigned)fails));
    ck_assert_uint_eq(s.errors, THREADS * (unsigned)fails);
    finish();
}
END_TEST

TJ_TEST_MAIN_TURNS("odd", {nothing_in_them, 1}, {one_and_eight_dims, 1}, {long_chain, TIERS}, {many_operands, TIERS},
                   {many_outputs, TIERS}, {deep_scopes, TIERS}, {places, TIERS}, {errno_is_the_hosts, TIERS},
                   {eight_threads, TIERS})
