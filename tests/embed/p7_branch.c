/* tests/embed/p7_branch.c: data-dependent branches: always wrong, slow, right. */
#include "embed.h"
enum { N = 100 };

/* WRONG, and C compiles it without a word: tests the handle, not the value. Lint: "never used". */
static trace_tensor *clip_wrong(trace_tensor *x) {
    if (trace_gt_f(trace_amax(x, TRACE_DIMS(0), false), 1.0))
        return trace_mul_f(x, 0.5);
    return x;
}
/* BREAK: right value, two segments, one wait a run; an error under fullgraph */
static trace_tensor *clip_break(trace_tensor *x) {
    double m = 0;
    if (trace_item_f64(trace_amax(x, TRACE_DIMS(0), false), &m))
        return NULL; /* must be checked: steers the host */
    return m > 1.0 ? trace_mul_f(x, 0.5) : trace_mul_f(x, 1);
}
/* WHERE: one kernel, no wait */
static trace_tensor *clip_where(trace_tensor *x) {
    trace_tensor *big = trace_gt_f(trace_amax(x, TRACE_DIMS(0), true), 1.0);
    return trace_where(big, trace_mul_f(x, 0.5), x);
}
/* LOOP: without the check of the status, `done` stays 0 after an error and the loop never ends */
static trace_tensor *relax(trace_tensor *x) {
    for (int i = 0; i < 100; i++) {
        double step = 0;
        trace_tensor *n = trace_mul_f(x, 0.9);
        if (trace_item_f64(trace_amax(trace_sub(x, n), TRACE_DIMS(0), false), &step))
            return NULL;
        x = n;
        if (step < 1e-3)
            break;
    }
    return x;
}
static enum trace_status run(trace_region *r, trace_tensor *(*body)(trace_tensor *), trace_tensor *x, float *out) {
    trace_tensor *y = NULL;
    if (trace_begin(r, &x, 1))
        y = body(x);
    enum trace_status st = trace_end(r, &y, 1);
    if (!st)
        st = trace_read(y, out, N * sizeof *out);
    trace_release(y);
    return st;
}

static atomic_int lints, breaks;
static void on_event(void *user, const trace_event *e) {
    (void)user;
    if (e->kind == TRACE_EVENT_LINT)
        atomic_fetch_add(&lints, 1);
    if (e->kind == TRACE_EVENT_BREAK)
        atomic_fetch_add(&breaks, 1);
}
typedef trace_tensor *(*body)(trace_tensor *);
static const body bodies[4] = {clip_wrong, clip_break, clip_where, relax};

int main(void) {
    trace_context *ctx[2];
    trace_region *r[2][4], *full;
    static float got[N], want[N], data[2][N];
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = on_event), &ctx[0]) || embed_reference(&ctx[1]) ||
        trace_region_create(ctx[0], "full", TRACE_REGION_OPTIONS(.fullgraph = true), &full))
        return fprintf(stderr, "%s\n", trace_last_error(NULL)), 1;
    static const char *const names[4] = {"wrong", "break", "where", "relax"};
    for (int c = 0; c < 2; c++) {
        for (int i = 0; i < 4; i++)
            CHECK(!trace_region_create(ctx[c], names[i], NULL, &r[c][i]), "region");
    }
    uint64_t seed = 3;
    for (int i = 0; i < N; i++) {
        data[0][i] = embed_random(&seed); /* nothing above 1 */
        data[1][i] = 3 * data[0][i];
    }
    for (int turn = 0; turn < 6; turn++) {
        const float *d = data[turn % 2];
        trace_tensor *x[2] = {trace_from(ctx[0], TRACE_F32, d, TRACE_DIMS(N)),
                              trace_from(ctx[1], TRACE_F32, d, TRACE_DIMS(N))};
        for (int i = 0; i < 4; i++) {
            CHECK(!run(r[0][i], bodies[i], x[0], got) && !run(r[1][i], bodies[i], x[1], want), "%s", names[i]);
            CHECK(embed_near(got, want, N, 1e-6f), "%s", names[i]);
            float first = i == 0 || (i < 3 && turn % 2) ? d[7] * 0.5f : d[7];
            if (i < 3)
                CHECK(got[7] == first, "%s: %g, not %g", names[i], (double)got[7], (double)first);
        }
        CHECK(run(full, clip_break, x[0], got) == TRACE_ERR_BREAK, "fullgraph");
        CHECK(strstr(trace_last_error(ctx[0]), "fullgraph") != NULL, "text");
        CHECK(!run(full, clip_where, x[0], got), "fullgraph without a break");
        trace_release(x[0]);
        trace_release(x[1]);
    }
    trace_stats s[4];
    for (int i = 0; i < 4; i++)
        s[i] = embed_stats(r[0][i]);
    CHECK(atomic_load(&lints) == 1, "the wrong branch is reported once, not %d times", atomic_load(&lints));
    CHECK(s[0].breaks == 0 && s[2].breaks == 0 && s[2].graphs == 1, "where needs no break");
    CHECK(s[1].breaks == 6, "a break a run: %llu", (unsigned long long)s[1].breaks);
    CHECK(s[3].breaks > 100 && s[3].graphs < 12, "turns share plans: %llu breaks, %llu graphs",
          (unsigned long long)s[3].breaks, (unsigned long long)s[3].graphs);
    CHECK(atomic_load(&breaks) == 2, "each site is reported once, not %d", atomic_load(&breaks));
    for (int c = 0; c < 2; c++) {
        for (int i = 0; i < 4; i++)
            trace_region_release(r[c][i]);
    }
    trace_region_release(full);
    trace_context_release(ctx[0]);
    trace_context_release(ctx[1]);
    return EMBED_RESULT();
}
