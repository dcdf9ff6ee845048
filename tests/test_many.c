// tests/test_many.c: many of one thing in a run: breaks, outputs, users, writes, views, symbols, plans. Values are
// worked out here; each test runs compiled, op by op and interpreted.
#include "../jit/cpu_backend.h"
#include "op_call.h"
#include "tj_test.h"

typedef trace_tensor T;
enum { TIERS = 3, N = 1500 };
static const char *const tier_env[TIERS] = {"", "fuse,epilogue", "jit"};
static trace_context *ctx;
static int breaks_told;

static void on_event(void *user, const trace_event *e) {
    (void)user;
    breaks_told += e->kind == TRACE_EVENT_BREAK;
}

static void open_tier(int tier) {
    ck_assert(setenv("TRACEJIT_NO", tier_env[tier], 1) == 0);
    trace_context_options o = {.size = sizeof o, .on_event = on_event, .threads = 1};
    TJ_ASSERT_OK((tj_status)trace_context_create(&o, &ctx));
}

static trace_region *region(trace_region_options o) {
    trace_region *r;
    o.size = sizeof o;
    TJ_ASSERT_OK((tj_status)trace_region_create(ctx, "many", &o, &r));
    return r;
}

static T *ok(T *t) {
    ck_assert_msg(t != NULL, "%s", trace_last_error(NULL));
    return t;
}

static T *matrix(const float *v, int64_t a, int64_t b) { return ok(trace_from(ctx, TRACE_F32, v, TRACE_DIMS(a, b))); }

static void same(T *t, const float *want, size_t n) {
    static float got[4 * N];
    ck_assert_uint_le(n, 4 * N);
    TJ_ASSERT_OK((tj_status)trace_read(t, got, n * sizeof *got));
    TJ_ASSERT_BITS(got, want, n * sizeof *got);
}

static trace_stats stats(trace_region *r) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    return s;
}

// ---- breaks ---------------------------------------------------------------------------------------------------------

// What a break leaves behind is there later: held, held through a view, through an op that isn't run yet, through
// memory written since; and what nobody holds makes no difference. Later runs compile nothing more.
START_TEST(breaks) {
    open_tier(_i);
    trace_region *r = region((trace_region_options){0});
    T *x = matrix((const float[]){1, 2, 3, 4}, 2, 2), *later[3];
    uint64_t graphs = 0;
    for (int turn = 0; turn < 4; turn++) {
        T *out[5] = {0};
        breaks_told = 0;
        if (trace_begin(r, &x, 1)) {
            T *a = trace_mul_f(x, 2), *view = trace_transpose(trace_mul_f(x, 3), 0, 1), *gone = trace_mul_f(x, 5);
            T *open = trace_add_f(gone, 1), *written = trace_mul_f(x, 7), *y = x;
            (void)trace_add_f_(trace_narrow(written, 0, 1, 1), 10);
            trace_release(gone);
            for (int k = 0; k < 3; k++)
                later[k] = ok(trace_item_later(trace_select(trace_select(trace_mul_f(x, k + 11), 0, k / 2), 0, k % 2)));
            for (int i = 0; i < N; i++) {
                double v = 0;
                y = trace_add_f(y, 1);
                if (i % 3 == 0) {
                    T *was = y;
                    y = ok(trace_mul_f(y, 1));
                    trace_release(was);
                }
                TJ_ASSERT_OK((tj_status)trace_item_f64_at(trace_select(trace_select(y, 0, 1), 0, 0), &v, "host.c", i));
                ck_assert_double_eq(v, 3 + i + 1);
            }
            out[0] = trace_add(y, a);
            out[1] = trace_add_f(view, 0);
            out[2] = open;
            out[3] = written;
            out[4] = trace_mul(y, y);
        }
        TJ_ASSERT_OK((tj_status)trace_end(r, out, 5));
        same(out[0], (const float[]){N + 3, N + 6, N + 9, N + 12}, 4);
        same(out[1], (const float[]){3, 9, 6, 12}, 4);
        same(out[2], (const float[]){6, 11, 16, 21}, 4);
        same(out[3], (const float[]){7, 14, 31, 38}, 4);
        same(out[4],
             (const float[]){(N + 1.f) * (N + 1), (N + 2.f) * (N + 2), (N + 3.f) * (N + 3), (N + 4.f) * (N + 4)}, 4);
        for (int k = 0; k < 3; k++) {
            double v;
            TJ_ASSERT_OK((tj_status)trace_item_f64(later[k], &v));
            ck_assert_double_eq(v, (k + 11.) * (k + 1));
            trace_release(later[k]);
        }
        for (int i = 0; i < 5; i++)
            trace_release(out[i]);
        ck_assert_int_eq(breaks_told, turn ? 0 : 1025); // each place once, up to 1,024; the others as one
        if (turn == 1)
            graphs = stats(r).graphs;
    }
    ck_assert_uint_eq(stats(r).graphs, graphs);
    ck_assert_uint_eq(stats(r).breaks, 4 * N);
    trace_release(x);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// Breaks with writes to memory from outside between them: values made of an old content are kept.
START_TEST(written_breaks) {
    enum { TURNS = 150 };
    open_tier(_i);
    trace_region *r = region((trace_region_options){0});
    for (int turn = 0; turn < 3; turn++) {
        T *x = matrix((const float[]){1, 2}, 1, 2), *kept[TURNS], *y = NULL;
        float sum[2] = {0, 0};
        if (trace_begin(r, TRACE_ARGS(x))) {
            for (int i = 0; i < TURNS; i++) {
                double v = 0;
                kept[i] = trace_mul_f(x, 2);
                (void)trace_add_f_(x, 1);
                TJ_ASSERT_OK((tj_status)trace_item_f64(trace_select(trace_select(x, 0, 0), 0, 1), &v));
                ck_assert_double_eq(v, 2 + i + 1);
                sum[0] += 2 * (1.f + (float)i);
                sum[1] += 2 * (2.f + (float)i);
            }
            y = kept[0];
            for (int i = 1; i < TURNS; i++)
                y = trace_add(y, kept[i]);
        }
        TJ_ASSERT_OK((tj_status)trace_end(r, &y, 1));
        same(y, sum, 2);
        same(x, (const float[]){1 + TURNS, 2 + TURNS}, 2);
        trace_release(y);
        trace_release(x);
    }
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// ---- outputs --------------------------------------------------------------------------------------------------------

// Each place gets its own value, whichever are named twice; in a scope inside, too.
START_TEST(outputs) {
    open_tier(_i);
    trace_region *r = region((trace_region_options){0}), *inner = region((trace_region_options){0});
    T *x = matrix((const float[]){1, 2}, 1, 2), *out[N], *in[N];
    for (int turn = 0; turn < 2; turn++) {
        if (trace_begin(r, &x, 1)) {
            if (trace_begin(inner, &x, 1))
                for (int i = 0; i < N; i++)
                    in[i] = i % 7 == 6 ? in[i - 6] : i % 7 == 5 ? x : trace_mul_f(x, i);
            TJ_ASSERT_OK((tj_status)trace_end(inner, in, N));
            for (int i = 0; i < N; i++)
                out[i] = i % 11 == 10 ? out[i - 3] : i % 11 == 9 ? x : in[i];
            for (int i = 0; i < N; i++) // one reference each: as many as there are names
                if (i % 7 == 6)
                    trace_release(in[i]);
        }
        TJ_ASSERT_OK((tj_status)trace_end(r, out, N));
        float factor[N];
        for (int i = 0; i < N; i++)
            factor[i] = i % 7 == 6 ? (float)(i - 6) : i % 7 == 5 ? 1 : (float)i;
        for (int i = 0; i < N; i++) {
            float f = i % 11 == 10 ? factor[i - 3] : i % 11 == 9 ? 1 : factor[i];
            same(out[i], (const float[]){f, 2 * f}, 2);
        }
        for (int i = 0; i < N; i++)
            trace_release(out[i]);
    }
    trace_release(x);
    trace_region_release(inner);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// ---- users, writes, views -------------------------------------------------------------------------------------------

START_TEST(users) {
    open_tier(_i);
    trace_region *r = region((trace_region_options){0});
    T *x = matrix((const float[]){1, 2}, 1, 2), *y = NULL;
    if (trace_begin(r, &x, 1)) {
        T *used = trace_mul_f(x, 2), *rows = trace_sum(used, TRACE_DIMS(1), true);
        y = used;
        for (int i = 0; i < N; i++)
            y = trace_add(y, i % 100 == 99 ? trace_mul(used, rows) : used);
    }
    TJ_ASSERT_OK((tj_status)trace_end(r, &y, 1));
    same(y, (const float[]){2.f * (1 + N - N / 100) + 12.f * (N / 100), 4.f * (1 + N - N / 100) + 24.f * (N / 100)}, 2);
    trace_release(y);
    trace_release(x);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// Writes to the rows of a computed value, of memory from outside, and of both in turn; a copy taken on the way.
START_TEST(writes) {
    open_tier(_i);
    trace_region *r = region((trace_region_options){0});
    float v[2 * N], want[2 * N], half[2 * N];
    for (int i = 0; i < 2 * N; i++)
        v[i] = (float)i;
    for (int turn = 0; turn < 2; turn++) {
        T *x = matrix(v, N, 2), *out[2] = {0};
        if (trace_begin(r, &x, 1)) {
            out[0] = trace_mul_f(x, 2);
            for (int i = 0; i < N; i++) {
                (void)trace_add_f_(trace_narrow(out[0], 0, i, 1), 1);
                (void)trace_copy_(trace_narrow(x, 0, N - 1 - i, 1), trace_narrow(out[0], 0, i, 1));
                if (i == N / 2)
                    out[1] = trace_clone(x);
            }
        }
        TJ_ASSERT_OK((tj_status)trace_end(r, out, 2));
        for (int i = 0; i < 2 * N; i++)
            want[i] = 2 * v[i] + 1;
        same(out[0], want, 2 * N);
        for (int i = 0; i < N; i++)
            for (int k = 0; k < 2; k++) {
                want[2 * (N - 1 - i) + k] = 2 * v[2 * i + k] + 1;
                half[2 * (N - 1 - i) + k] = i <= N / 2 ? 2 * v[2 * i + k] + 1 : v[2 * (N - 1 - i) + k];
            }
        same(x, want, 2 * N);
        same(out[1], half, 2 * N);
        trace_release(out[0]);
        trace_release(out[1]);
        trace_release(x);
    }
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// Long chains of views: read, computed with on the way, written through.
START_TEST(views) {
    enum { LONG = 500 };
    open_tier(_i);
    trace_region *r = region((trace_region_options){0});
    float v[2 * LONG + 2], want[2 * LONG + 2];
    for (int i = 0; i < 2 * LONG + 2; i++)
        v[i] = (float)i;
    T *x = matrix(v, LONG + 1, 2), *small = matrix(v, 2, 3), *out[4] = {0};
    if (trace_begin(r, TRACE_ARGS(x, small))) {
        T *a = small, *b = small, *c = x, *computed = trace_mul_f(x, 3), *d = computed;
        for (int i = 0; i < LONG; i++) { // of [2, 3] one transpose a turn, by way of reshapes
            a = trace_transpose(trace_squeeze(trace_unsqueeze(a, 1), 1), 0, 1);
            b = trace_add_f(trace_transpose(b, 0, 1), 1);
            c = trace_narrow(c, 0, 1, LONG - i);
            d = trace_narrow(d, 0, 1, LONG - i);
        }
        (void)trace_add_f_(d, 1000);
        out[0] = trace_add_f(a, 0);
        out[1] = trace_transpose(trace_transpose(b, 0, 1), 0, 1);
        out[2] = trace_add_f(c, 0);
        out[3] = computed;
    }
    TJ_ASSERT_OK((tj_status)trace_end(r, out, 4));
    if (_i < 2 && tj_test_compiler())
        ck_assert_uint_eq(stats(r).interpreted_ops, 0);
    same(out[0], v, 6);
    same(out[1], (const float[]){LONG, LONG + 1, LONG + 2, LONG + 3, LONG + 4, LONG + 5}, 6);
    same(out[2], v + 2 * LONG, 2);
    for (int i = 0; i < 2 * LONG + 2; i++)
        want[i] = 3 * v[i] + (i >= 2 * LONG ? 1000.f : 0);
    same(out[3], want, 2 * LONG + 2);
    for (int i = 0; i < 4; i++)
        trace_release(out[i]);
    trace_release(x);
    trace_release(small);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// ---- extents and plans ----------------------------------------------------------------------------------------------

// Extents that are found equal one after the other, from the last to the first: one plan serves all sizes.
START_TEST(symbols) {
    enum { INPUTS = 300 };
    open_tier(_i);
    trace_region *r = region((trace_region_options){.dynamic = TRACE_DYNAMIC_ON});
    for (int turn = 0; turn < 4; turn++) {
        float v[16], want[16];
        T *in[INPUTS], *y = NULL;
        for (int i = 0; i < 16; i++) {
            v[i] = (float)i;
            want[i] = (float)i * INPUTS;
        }
        for (int i = 0; i < INPUTS; i++)
            in[i] = matrix(v, 3 + turn, 2);
        if (trace_begin(r, in, INPUTS)) {
            T *t[INPUTS];
            for (int i = 0; i < INPUTS; i++) // in this order, so that leaves are
                t[i] = trace_mul_f(in[i], 1);
            y = t[INPUTS - 1];
            for (int i = INPUTS - 1; i-- > 0;)
                y = trace_add(y, t[i]);
        }
        TJ_ASSERT_OK((tj_status)trace_end(r, &y, 1));
        same(y, want, 2 * (size_t)(3 + turn));
        trace_release(y);
        for (int i = 0; i < INPUTS; i++)
            trace_release(in[i]);
    }
    ck_assert_uint_eq(stats(r).graphs, 1);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// More plans than are compared for a reason: each is found again.
START_TEST(plans) {
    enum { PLANS = 600 };
    open_tier(2);
    trace_region *r = region((trace_region_options){.dynamic = TRACE_DYNAMIC_OFF, .max_graphs = PLANS});
    float v[PLANS] = {0};
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < PLANS; i++) {
            T *x = matrix(v, 1, i + 1), *y = NULL;
            if (trace_begin(r, &x, 1))
                y = trace_add_f(x, 1);
            TJ_ASSERT_OK((tj_status)trace_end(r, &y, 1));
            ck_assert_int_eq(trace_numel(y), i + 1);
            trace_release(y);
            trace_release(x);
        }
    trace_stats s = stats(r);
    ck_assert_uint_eq(s.misses, PLANS);
    ck_assert_uint_eq(s.hits, PLANS);
    ck_assert_uint_eq(s.recompiles, PLANS - 1);
    ck_assert_uint_eq(s.evictions, 0);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// A long chain of softmaxes is several kernels, with the bits of as many single ones.
START_TEST(kernel_size) {
    enum { CHAIN = 12 };
    float v[24], want[24];
    for (int i = 0; i < 24; i++)
        v[i] = (float)(i * 7 % 11) / 4;
    for (int tier = 1; tier >= 0; tier--) { // op by op tells what is right
        open_tier(tier);
        trace_region *r = region((trace_region_options){0});
        T *x = matrix(v, 2, 12), *y = NULL;
        if (trace_begin(r, &x, 1)) {
            y = x;
            for (int i = 0; i < CHAIN; i++)
                y = trace_softmax(trace_mul_f(y, 9), 1);
        }
        TJ_ASSERT_OK((tj_status)trace_end(r, &y, 1));
        if (tier)
            TJ_ASSERT_OK((tj_status)trace_read(y, want, sizeof want));
        else
            same(y, want, 24);
        if (!tier && tj_test_compiler()) {
            ck_assert_uint_ge(stats(r).launches, CHAIN / 2);
            ck_assert_uint_le(stats(r).launches, 2 * CHAIN);
        }
        trace_release(y);
        trace_release(x);
        trace_region_release(r);
        trace_context_release(ctx);
    }
}
END_TEST

// ---- temporaries ----------------------------------------------------------------------------------------------------

// The largest first, each at the lowest offset at which it meets none of those placed that live when it does.
START_TEST(places) {
    enum { MOST = 400 };
    for (uint32_t seed = 1; seed <= 60; seed++) {
        uint32_t x = seed, first[MOST], last[MOST], scratch[MOST], n = 1 + seed * 13 % MOST, steps = 1 + seed * 29 % 90;
        size_t bytes[MOST], offset[MOST], total = 0, top = 0;
        for (uint32_t i = 0; i < n; i++) {
            x = x * 1664525 + 1013904223;
            first[i] = x / 65536 % steps;
            last[i] = first[i] + x / 256 % (seed % 3 ? 6 : steps);
            bytes[i] = x / 1024 % 5 ? x / 4096 % (seed % 2 ? 4000 : 200) : 0;
        }
        ck_assert(tj_memplan(n, bytes, first, last, offset, &total, scratch));
        for (uint32_t k = 0; k < n; k++) {
            uint32_t b = scratch[k];
            size_t at = 0, size = (bytes[b] + TJ_ALIGN - 1) / TJ_ALIGN * TJ_ALIGN;
            ck_assert(k == 0 || bytes[scratch[k - 1]] >= bytes[b]);
            for (uint32_t j = 0; j < k; j++) {
                uint32_t o = scratch[j];
                size_t end = offset[o] + (bytes[o] + TJ_ALIGN - 1) / TJ_ALIGN * TJ_ALIGN;
                if (last[o] >= first[b] && last[b] >= first[o] && at < end && offset[o] < at + size) {
                    at = end;
                    j = UINT32_MAX; // from the start
                }
            }
            ck_assert_uint_eq(offset[b], at);
            top = at + size > top ? at + size : top;
        }
        ck_assert_uint_eq(total, top);
    }
}
END_TEST

TJ_TEST_MAIN_TURNS("many", {breaks, TIERS}, {written_breaks, TIERS}, {outputs, TIERS}, {users, TIERS}, {writes, TIERS},
                   {views, TIERS}, {symbols, TIERS}, {plans, 1}, {kernel_size, 1}, {places, 1})
