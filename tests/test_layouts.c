// tests/test_layouts.c: elements moved into other layouts, by what an index says where they come from: every small
// inner extent, element size and direction, compiled, interpreted, with symbolic extents, and computed on the way.
// Pools of many taps, which are loops over windows.
#include "../trace/context.h"
#include "tj_test.h"

enum mode { JIT, SYMBOLS, INTERPRETER, THREADS, MODES };
static trace_context *ctx;
static trace_region *region;
static void start(enum mode m) {
    (void)setenv("TRACEJIT_NO", m == INTERPRETER ? "jit" : "", 1);
    TJ_ASSERT_OK(
        trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = m == THREADS ? 4 : 1, .on_event = tj_test_quiet), &ctx));
    TJ_ASSERT_OK(trace_region_create(
        ctx, "layouts", TRACE_REGION_OPTIONS(.dynamic = m == SYMBOLS ? TRACE_DYNAMIC_ON : TRACE_DYNAMIC_OFF), &region));
}
static void finish(void) {
    trace_region_release(region);
    ck_assert_ptr_null(ctx->tensors);
    trace_context_release(ctx);
}

static const enum trace_dtype kinds[] = {TRACE_U8, TRACE_F16, TRACE_F32, TRACE_F64, TRACE_BOOL, TRACE_I64};
// Bytes that are values of the dtype like any others, and no NaN.
static void fill(unsigned char *p, size_t n, enum trace_dtype d) {
    size_t w = tj_elem_bytes((tj_dtype)d);
    for (size_t i = 0; i < n; i++) {
        uint64_t v = i * 2654435761u + 12345;
        float f = (float)(v % 100003) / 7;
        double g = (double)(v % 1000003) / 3;
        uint16_t h = (uint16_t)(v % 0x7c00);
        int64_t k = (int64_t)(v ^ v << 21);
        unsigned char b = d == TRACE_BOOL ? v >> 3 & 1 : (unsigned char)(v >> 3);
        memcpy(p + i * w,
               d == TRACE_F32   ? (void *)&f
               : d == TRACE_F64 ? (void *)&g
               : w == 2         ? (void *)&h
               : w == 8         ? (void *)&k
                                : &b,
               w);
    }
}

// Result [i, j, k] of a permuted [..]: one run with a clone, compared element by element.
static void permuted(enum trace_dtype d, const int64_t *dims, const int64_t *perm) {
    size_t w = tj_elem_bytes((tj_dtype)d), n = (size_t)(dims[0] * dims[1] * dims[2]);
    unsigned char *x = malloc(n * w), *y = malloc(n * w);
    ck_assert(x && y);
    fill(x, n, d);
    int64_t stride[3] = {dims[1] * dims[2], dims[2], 1};
    trace_tensor *t = trace_from(ctx, d, x, dims, 3), *r = NULL;
    if (trace_begin(region, TRACE_ARGS(t)))
        r = trace_clone(trace_permute(t, perm, 3));
    ck_assert_msg(!trace_end(region, &r, 1), "%s", trace_last_error(ctx));
    TJ_ASSERT_OK(trace_read(r, y, n * w));
    size_t at = 0;
    for (int64_t i = 0; i < dims[perm[0]]; i++)
        for (int64_t j = 0; j < dims[perm[1]]; j++)
            for (int64_t k = 0; k < dims[perm[2]]; k++, at++) {
                size_t from = (size_t)(i * stride[perm[0]] + j * stride[perm[1]] + k * stride[perm[2]]);
                ck_assert_msg(!memcmp(y + at * w, x + from * w, w), "%s [%d %d %d] by %d %d %d: element %zu",
                              tj_dtypes[d].name, (int)dims[0], (int)dims[1], (int)dims[2], (int)perm[0], (int)perm[1],
                              (int)perm[2], at);
            }
    trace_release(r);
    trace_release(t);
    free(x);
    free(y);
}
START_TEST(permutations) {
    static const int64_t perms[][3] = {{2, 0, 1}, {1, 2, 0}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}};
    static const int64_t shapes[][3] = {{2, 5, 7},  {17, 9, 2},  {3, 33, 29}, {31, 37, 3}, {4, 70, 3},  {67, 5, 4},
                                        {5, 41, 6}, {19, 23, 7}, {8, 16, 64}, {64, 8, 8},  {9, 130, 9}, {3, 1, 200}};
    start((enum mode)_i);
    for (size_t k = 0; k < TJ_COUNT(kinds); k++)
        for (size_t s = 0; s < TJ_COUNT(shapes); s++)
            permuted(kinds[k], shapes[s], perms[(s + k) % TJ_COUNT(perms)]);
    for (size_t s = 0; s < TJ_COUNT(shapes) && _i == JIT; s++)
        for (size_t p = 0; p < TJ_COUNT(perms); p++)
            permuted(s & 1 ? TRACE_U8 : TRACE_F32, shapes[s], perms[p]);
    permuted(TRACE_F32, (const int64_t[]){3, 300, 310}, perms[1]); // for several threads
    permuted(TRACE_U8, (const int64_t[]){600, 210, 3}, perms[0]);
    finish();
}
END_TEST

// y[i] of n floats is f(i).
static void expect(trace_tensor *y, size_t n, float (*f)(size_t i), const char *what) {
    float *v = malloc(n * sizeof *v);
    ck_assert_ptr_nonnull(v);
    TJ_ASSERT_OK(trace_read(y, v, n * sizeof *v));
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(v[i] == f(i), "%s: element %zu is %g, not %g", what, i, (double)v[i], (double)f(i));
    free(v);
    trace_release(y);
}

enum { H = 37, W = 53, N = H * W };
static unsigned char image[N * 4];
static float planes[N * 4];
static float of_image(size_t i) { return (float)image[i % N * 3 + i / N] * 0.5f - (float)(i / N); }
static float pixel(size_t i) { return planes[i % 3 * N + i / 3] * 2; }
static float pair(size_t i) { return i % 2 ? planes[N + i / 2] + 1 : planes[i / 2]; }
static float triple(size_t i) { return planes[i % 3 * N + i / 3]; }
static float sines(size_t i) { return i % 2 ? (float)(i / 2 % 2) : planes[i / 2]; }
static float biased(size_t i) { return planes[i] + (float)(i % 3); }
static float dropped(size_t i) { return planes[i / 3 * 4 + i % 3]; }
static float added(size_t i) { return i % 4 == 3 ? 1 : planes[i / 4 * 3 + i % 4]; }
static float twice(size_t i) { return planes[i % N * 3 + i / N] + planes[i]; }
static float reversed(size_t i) { return planes[(N - 1 - i / 3) * 3 + i % 3]; }

START_TEST(on_the_way) {
    start((enum mode)_i);
    for (size_t i = 0; i < N * 4; i++) {
        image[i] = (unsigned char)(i * 7 + i / 100);
        planes[i] = (float)(i * 31 % 1009);
    }
    static const float steps[] = {0, 1, 2};
    trace_tensor *x = trace_from(ctx, TRACE_U8, image, TRACE_DIMS(H, W, 3));
    trace_tensor *p = trace_from(ctx, TRACE_F32, planes, TRACE_DIMS(3, H, W));
    trace_tensor *q = trace_from(ctx, TRACE_F32, planes, TRACE_DIMS(H, W, 3));
    trace_tensor *a = trace_from(ctx, TRACE_F32, planes, TRACE_DIMS(H, W, 4));
    trace_tensor *s = trace_from(ctx, TRACE_F32, steps, TRACE_DIMS(3)), *o[9] = {0};
    for (int turn = 0; turn < 2; turn++) {
        if (trace_begin(region, TRACE_ARGS(x, p, q, a, s))) {
            trace_tensor *v = trace_mul_f(trace_to(x, TRACE_F32), 0.5);
            o[0] = trace_clone(trace_permute(trace_sub(v, s), TRACE_DIMS(2, 0, 1)));
            o[1] = trace_mul_f(trace_permute(p, TRACE_DIMS(1, 2, 0)), 2);
            trace_tensor *r0 = trace_select(p, 0, 0), *r1 = trace_select(p, 0, 1), *r2 = trace_select(p, 0, 2);
            o[2] = trace_stack(TRACE_ARGS(r0, trace_add_f(r1, 1)), 2);
            o[3] = trace_stack(TRACE_ARGS(r0, r1, r2), -1);
            o[4] = trace_add(q, s);
            o[5] = trace_clone(trace_narrow(a, 2, 0, 3));
            o[6] = trace_cat(TRACE_ARGS(q, trace_ones(ctx, TRACE_DIMS(H, W, 1), TRACE_F32)), 2);
            o[7] = trace_add(trace_permute(q, TRACE_DIMS(2, 0, 1)), p);
            o[8] = trace_flip(q, TRACE_DIMS(0, 1));
        }
        ck_assert_msg(!trace_end(region, o, 9), "%s", trace_last_error(ctx));
        expect(o[0], N * 3, of_image, "bytes to planes");
        expect(o[1], N * 3, pixel, "planes to pixels");
        expect(o[2], N * 2, pair, "pairs");
        expect(o[3], N * 3, triple, "triples");
        expect(o[4], N * 3, biased, "bias of few channels");
        expect(o[5], N * 3, dropped, "three channels of four");
        expect(o[6], N * 4, added, "a fourth channel");
        expect(o[7], N * 3, twice, "pixels and planes");
        expect(o[8], N * 3, reversed, "pixels from the last");
    }
    // What costs much is computed once for each of the pair.
    trace_tensor *y = NULL;
    if (trace_begin(region, TRACE_ARGS(p))) {
        trace_tensor *odd = trace_remainder_f(trace_arange(ctx, 0, N, 1, TRACE_F32), 2), *e = odd;
        for (int i = 0; i < 3; i++)
            e = trace_round(trace_log(trace_exp(e)));
        y = trace_stack(TRACE_ARGS(trace_reshape(trace_select(p, 0, 0), TRACE_DIMS(N)), e), 1);
    }
    ck_assert_msg(!trace_end(region, &y, 1), "%s", trace_last_error(ctx));
    expect(y, N * 2, sines, "dear pairs");
    trace_release(x);
    trace_release(p);
    trace_release(q);
    trace_release(a);
    trace_release(s);
    finish();
}
END_TEST

// In place: pixels of an image, its planes through a view, and elements of pairs.
START_TEST(in_place) {
    start((enum mode)_i);
    float want[N * 3];
    for (size_t i = 0; i < N * 3; i++)
        planes[i] = (float)(i * 31 % 1009);
    for (size_t i = 0; i < N * 3; i++) // += [0, 1, 2] a pixel, then the first channel += the second
        want[i] = planes[i] + (float)(i % 3);
    for (size_t i = 0; i < N; i++)
        want[3 * i] += want[3 * i + 1];
    static const float steps[] = {0, 1, 2};
    trace_tensor *q = trace_from(ctx, TRACE_F32, planes, TRACE_DIMS(H, W, 3));
    trace_tensor *s = trace_from(ctx, TRACE_F32, steps, TRACE_DIMS(3));
    if (trace_begin(region, TRACE_ARGS(q, s))) {
        trace_add_(q, s);
        trace_add_(trace_select(q, 2, 0), trace_select(q, 2, 1));
    }
    ck_assert_msg(!trace_end(region, NULL, 0), "%s", trace_last_error(ctx));
    float got[N * 3];
    TJ_ASSERT_OK(trace_read(q, got, sizeof got));
    for (size_t i = 0; i < N * 3; i++)
        ck_assert_msg(got[i] == want[i], "element %zu", i);
    trace_release(q);
    trace_release(s);
    finish();
}
END_TEST

// ---- windows of many taps -------------------------------------------------------------------------------------------

struct window {
    int64_t k[2], stride[2], pad[2], dilation[2];
    bool ceil, include;
    int64_t divisor;
};
enum { PC = 2, PH = 23, PW = 70 };
static float plane[PC * PH * PW];
// The pool's result at (c, i, j): the definition, tap by tap. Averages add in f32, row by row.
static float pooled(const struct window *w, bool max, int64_t c, int64_t i, int64_t j) {
    const int64_t ext[2] = {PH, PW}, at[2] = {i, j};
    int64_t start[2], covered = 1, inside = 1;
    float best = -INFINITY, sum = 0;
    for (int d = 0; d < 2; d++) {
        int64_t end, in = 0;
        start[d] = at[d] * w->stride[d] - w->pad[d];
        end = start[d] + w->k[d] < ext[d] + w->pad[d] ? start[d] + w->k[d] : ext[d] + w->pad[d];
        covered *= end - start[d];
        for (int64_t t = 0; t < w->k[d]; t++)
            in += start[d] + t >= 0 && start[d] + t < ext[d];
        inside *= in;
    }
    for (int64_t t = 0; t < w->k[0] * w->k[1]; t++) {
        int64_t y = start[0] + t / w->k[1] * (max ? w->dilation[0] : 1);
        int64_t x = start[1] + t % w->k[1] * (max ? w->dilation[1] : 1);
        if (y < 0 || y >= PH || x < 0 || x >= PW)
            continue;
        float v = plane[(c * PH + y) * PW + x];
        best = isnan(best) || isnan(v) ? NAN : v > best ? v : best;
        sum += v;
    }
    return max ? best : sum / (float)(w->divisor ? w->divisor : w->include ? covered : inside);
}
static void one_pool(const struct window *w, bool max) {
    trace_tensor *x = trace_from(ctx, TRACE_F32, plane, TRACE_DIMS(1, PC, PH, PW)), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        trace_tensor *twice = trace_mul_f(x, 1);
        y = max ? trace_max_pool2d(twice, w->k, w->stride, w->pad, w->dilation, w->ceil)
                : trace_avg_pool2d(twice, w->k, w->stride, w->pad, w->ceil, w->include, w->divisor);
    }
    ck_assert_msg(!trace_end(region, &y, 1), "%s", trace_last_error(ctx));
    int64_t oh = trace_size(y, 2), ow = trace_size(y, 3);
    float *v = malloc((size_t)(PC * oh * ow) * sizeof *v);
    ck_assert_ptr_nonnull(v);
    TJ_ASSERT_OK(trace_read(y, v, (size_t)(PC * oh * ow) * sizeof *v));
    for (int64_t i = 0; i < PC * oh * ow; i++) {
        float want = pooled(w, max, i / (oh * ow), i / ow % oh, i % ow);
        ck_assert_msg(v[i] == want || (isnan(v[i]) && isnan(want)), "%s %dx%d, element %d of [%d, %d]: %a, not %a",
                      max ? "max" : "avg", (int)w->k[0], (int)w->k[1], (int)i, (int)oh, (int)ow, (double)v[i],
                      (double)want);
    }
    free(v);
    trace_release(x);
    trace_release(y);
}
START_TEST(pools) {
    static const struct window windows[] = {
        {{5, 5}, {1, 1}, {2, 2}, {1, 1}, false, true, 0},     {{7, 3}, {2, 3}, {3, 1}, {1, 1}, false, false, 0},
        {{9, 9}, {3, 2}, {4, 3}, {1, 1}, true, true, 0},      {{6, 8}, {4, 5}, {3, 4}, {1, 1}, true, false, 0},
        {{5, 4}, {1, 2}, {2, 1}, {3, 2}, false, true, 7},     {{4, 11}, {2, 1}, {0, 5}, {2, 3}, true, true, 3},
        {{23, 61}, {1, 1}, {11, 30}, {1, 1}, false, true, 0}, {{23, 70}, {1, 1}, {0, 0}, {1, 1}, false, true, 0},
        {{1, 33}, {1, 2}, {0, 16}, {1, 1}, false, false, 0},  {{19, 1}, {3, 1}, {9, 0}, {1, 1}, true, false, 0},
        {{2, 2}, {2, 2}, {0, 0}, {1, 1}, false, true, 0},     {{3, 3}, {2, 2}, {1, 1}, {1, 1}, true, false, 0},
        {{4, 4}, {1, 3}, {2, 2}, {2, 2}, false, true, 0}};
    start((enum mode)_i);
    for (size_t i = 0; i < PC * PH * PW; i++)
        plane[i] = (float)((i * 31) % 97) / 7 - 9;
    for (size_t i = 0; i < TJ_COUNT(windows); i++)
        for (int max = 0; max < 2; max++)
            one_pool(&windows[i], max);
    for (size_t i = 0; i < 40; i++) // and what doesn't compare
        plane[i * 79 % (PC * PH * PW)] = i % 4 == 0 ? NAN : i % 4 == 1 ? -INFINITY : i % 4 == 2 ? -0.0f : INFINITY;
    for (size_t i = 0; i < TJ_COUNT(windows); i += 2)
        one_pool(&windows[i], true);
    finish();
}
END_TEST

// Other dtypes: integers pad with their least, f16 rounds once.
START_TEST(pooled_dtypes) {
    enum { E = 12 };
    start((enum mode)_i);
    unsigned char u[E * E], gu[E * E];
    int32_t k[E * E], gk[E * E];
    uint16_t h[E * E], gh[E * E];
    for (int i = 0; i < E * E; i++) {
        u[i] = (unsigned char)(i * 37 % 200);
        k[i] = -1000 - i * 37 % 101;
        h[i] = (uint16_t)(0x3c00 + (i & 1)); // 1 or 1 + 2^-10
    }
    trace_tensor *a = trace_from(ctx, TRACE_U8, u, TRACE_DIMS(1, E, E)), *o[3] = {0};
    trace_tensor *b = trace_from(ctx, TRACE_I32, k, TRACE_DIMS(1, E, E));
    trace_tensor *c = trace_from(ctx, TRACE_F16, h, TRACE_DIMS(1, E, E));
    const int64_t size[2] = {5, 5}, one[2] = {1, 1}, pad[2] = {2, 2};
    if (trace_begin(region, TRACE_ARGS(a, b, c))) {
        o[0] = trace_max_pool2d(a, size, one, pad, one, false);
        o[1] = trace_max_pool2d(b, size, one, pad, one, false);
        o[2] = trace_avg_pool2d(c, size, one, pad, false, false, 0);
    }
    ck_assert_msg(!trace_end(region, o, 3), "%s", trace_last_error(ctx));
    TJ_ASSERT_OK(trace_read(o[0], gu, sizeof gu));
    TJ_ASSERT_OK(trace_read(o[1], gk, sizeof gk));
    TJ_ASSERT_OK(trace_read(o[2], gh, sizeof gh));
    for (int i = 0; i < E * E; i++) {
        unsigned char mu = 0;
        int32_t mk = INT32_MIN, n = 0, odd = 0;
        for (int y = i / E - 2; y <= i / E + 2; y++)
            for (int x = i % E - 2; x <= i % E + 2; x++)
                if (y >= 0 && y < E && x >= 0 && x < E) {
                    mu = u[y * E + x] > mu ? u[y * E + x] : mu;
                    mk = k[y * E + x] > mk ? k[y * E + x] : mk;
                    odd += h[y * E + x] & 1;
                    n++;
                }
        ck_assert_msg(gu[i] == mu && gk[i] == mk, "element %d: %d %d", i, gu[i], gk[i]);
        // 1 + odd / n * 2^-10, rounded to 2^-10: half goes to even
        ck_assert_msg(gh[i] == 0x3c00 + (2 * odd > n), "element %d: %x, %d of %d", i, gh[i], odd, n);
    }
    for (int i = 0; i < 3; i++)
        trace_release(o[i]);
    trace_release(a);
    trace_release(b);
    trace_release(c);
    finish();
}
END_TEST

TJ_TEST_MAIN_TURNS("layouts", {permutations, MODES}, {on_the_way, MODES}, {in_place, MODES}, {pools, MODES},
                   {pooled_dtypes, MODES})
