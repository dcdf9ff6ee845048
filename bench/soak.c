/* soak: what must stay flat. 1,000,000 runs of a region: resident memory and calls of malloc; 1,000 distinct shapes:
 * memory bounded and the hot plan still hit; the host process untouched: signal handlers, floating-point environment,
 * locale, environment. Prints a line a check and exits with 1 when one fails. */
#include <fenv.h>
#include <locale.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"

static int failures;

static void check(bool ok, const char *what, double a, double b) {
    printf("%-4s %-58s %.6g %.6g\n", ok ? "ok" : "FAIL", what, a, b);
    failures += !ok;
}

/* Bytes and blocks malloc has handed out and not got back. */
static size_t in_use(void) { return mallinfo2().uordblks; }

static trace_tensor *model(trace_tensor *x, trace_tensor *w, trace_tensor *b) {
    return trace_softmax(trace_relu(trace_add(trace_mul(x, w), b)), -1);
}

static bool run(trace_region *r, trace_tensor *x, trace_tensor *w, trace_tensor *b) {
    trace_tensor *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x)))
        y = model(x, w, b);
    bool ok = trace_end(r, &y, 1) == TRACE_OK;
    trace_release(y);
    return ok;
}

struct host {
    struct sigaction actions[NSIG];
    sigset_t mask;
    int round;
    char locale[64];
    char *path;
};

static void look(struct host *h) {
    memset(h, 0, sizeof *h);
    for (int s = 1; s < NSIG; s++)
        (void)sigaction(s, NULL, &h->actions[s]);
    (void)sigprocmask(SIG_SETMASK, NULL, &h->mask);
    h->round = fegetround();
    (void)snprintf(h->locale, sizeof h->locale, "%s", setlocale(LC_ALL, NULL));
    h->path = getenv("PATH");
}

static bool same(const struct host *a, const struct host *b) {
    for (int s = 1; s < NSIG; s++)
        if (a->actions[s].sa_handler != b->actions[s].sa_handler || a->actions[s].sa_flags != b->actions[s].sa_flags)
            return false;
    return !memcmp(&a->mask, &b->mask, sizeof a->mask) && a->round == b->round && !strcmp(a->locale, b->locale) &&
           a->path == b->path;
}

int main(int argc, char **argv) {
    long runs = argc > 1 ? atol(argv[1]) : 1000000;
    struct host before, after;
    static float data[64 * 64];
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        data[i] = (float)(i % 17) / 17 - 0.5f;
    (void)setvbuf(stdout, NULL, _IONBF, 0);
    (void)fesetround(FE_UPWARD);
    (void)feclearexcept(FE_ALL_EXCEPT);
    look(&before);
    trace_context *ctx = NULL;
    trace_region *r = NULL;
    if (trace_context_create(NULL, &ctx) || trace_region_create(ctx, "soak", NULL, &r)) {
        fprintf(stderr, "%s\n", trace_last_error(NULL));
        return 1;
    }
    trace_tensor *x = trace_wrap_const(ctx, TRACE_F32, data, TRACE_DIMS(8, 8));
    trace_tensor *w = trace_from(ctx, TRACE_F32, data, TRACE_DIMS(8, 8)),
                 *b = trace_from(ctx, TRACE_F32, data, TRACE_DIMS(8));
    bool ok = true;
    for (int i = 0; i < 1000 && ok; i++)
        ok = run(r, x, w, b);
    if (!ok)
        fprintf(stderr, "%s\n", trace_last_error(ctx));
    long rss = resident_kb();
    size_t used = in_use();
    for (long i = 0; i < runs && ok; i++)
        ok = run(r, x, w, b);
    size_t used_after = in_use();
    check(ok, "steady runs succeed", (double)runs, 0);
    check(used_after == used, "steady runs: bytes malloc has out, before and after", (double)used, (double)used_after);
    check(resident_kb() <= rss + 256, "steady runs: resident kB, before and after", (double)rss, (double)resident_kb());

    trace_stats s = {.size = sizeof s};
    long rss_shapes = 0;
    for (int n = 1; n <= 1000 && ok; n++) {
        trace_tensor *v = trace_wrap_const(ctx, TRACE_F32, data, TRACE_DIMS(n, 4));
        trace_tensor *v4 = trace_wrap_const(ctx, TRACE_F32, data, TRACE_DIMS(4));
        ok = run(r, v, v4, v4);
        trace_release(v);
        trace_release(v4);
        if (n % 4 == 0)
            ok = ok && run(r, x, w, b); /* keeps the hot plan hot */
        if (n == 300)
            rss_shapes = resident_kb();
    }
    trace_region_stats(r, &s);
    uint64_t graphs = s.graphs;
    check(ok, "1,000 shapes run", 1000, 0);
    check(resident_kb() <= rss_shapes + 4096, "1,000 shapes: resident kB at 300 and at the end", (double)rss_shapes,
          (double)resident_kb());
    ok = run(r, x, w, b);
    trace_region_stats(r, &s);
    check(ok && s.graphs == graphs, "the hot plan is still there: plans made before and after", (double)graphs,
          (double)s.graphs);
    printf("     kernels compiled %llu, plans %llu, evictions %llu\n", (unsigned long long)s.kernels,
           (unsigned long long)s.graphs, (unsigned long long)s.evictions);

    (void)feclearexcept(FE_ALL_EXCEPT);
    ok = run(r, x, w, b);
    check(ok && !fetestexcept(FE_ALL_EXCEPT), "a run leaves no floating-point exception flag", 0, 0);
    trace_release(x);
    trace_release(w);
    trace_release(b);
    trace_region_release(r);
    trace_context_release(ctx);
    look(&after);
    check(same(&before, &after), "signal handlers and mask, rounding, locale, environment as before", 0, 0);
    return failures != 0;
}
