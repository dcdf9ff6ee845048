/* audio: latency of bound runs of a model as in tests/embed/p4_audio (two GRU layers between two linear ones), one
 * realtime thread.
 *
 *   audio [RUNS [SAMPLES HIDDEN]]   10000000 runs over 120 samples with layers of 96, without arguments
 *
 * Prints one JSON object: median, percentiles and the worst of the single runs, how many took longer than three times
 * the median, how many of those the system took the processor away in (involuntary context switches of the thread, and
 * of all processors the steal time of the whole stretch). Between the clock readings there is nothing but
 * trace_bound_run. control_*: the same of plain multiply-adds in registers that take about as long, one after every
 * tenth run: what the machine does to any program. Exit status 1: the 99.99th percentile is above three times the
 * median.
 */
#include "rows.h"

#include <sys/mman.h>
#include <sys/resource.h>

enum { MOST = 4096, LAYERS = 2, WEIGHTS = 4 + 4 * LAYERS };

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static long switches(void) {
    struct rusage u;
    return getrusage(RUSAGE_THREAD, &u) ? 0 : u.ru_nivcsw;
}

/* Milliseconds that a hypervisor gave to others, of all processors; -1: not told. */
static double steal_ms(void) {
    unsigned long long v[8] = {0};
    FILE *f = fopen("/proc/stat", "r");
    int n =
        f ? fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7)
          : 0;
    if (f)
        fclose(f);
    return n == 8 ? (double)v[7] * 1000 / (double)sysconf(_SC_CLK_TCK) : -1;
}

static T *weight(trace_context *ctx, uint64_t seed, double scale, int64_t rows, int64_t cols) {
    size_t n = (size_t)(rows * cols);
    float *v = malloc(n * sizeof *v);
    if (!v)
        die("audio", "memory");
    for (size_t i = 0; i < n; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        v[i] = (float)(((double)((z ^ z >> 31) >> 11) * 0x1p-52 - 1) * scale);
    }
    T *t = trace_from(ctx, TRACE_F32, v, (const int64_t[]){rows, cols}, cols == 1 ? 1 : 2);
    if (!t)
        die("weights", trace_last_error(NULL));
    free(v);
    return t;
}

static int by_ns(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    long runs = argc > 1 ? strtol(argv[1], NULL, 10) : 10000000;
    static float in[MOST], out[MOST], zero[MOST];
    const int64_t frame = argc > 3 ? strtol(argv[2], NULL, 10) : 120,
                  hidden = argc > 3 ? strtol(argv[3], NULL, 10) : 96;
    trace_context *ctx;
    trace_region *region;
    trace_bound *bound;
    T *w[WEIGHTS], *h[LAYERS];
    if (runs < 100 || frame < 1 || frame > MOST || hidden < 1 || hidden > MOST)
        die("audio", "at least 100 runs, 1 to 4096 samples");
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx) ||
        trace_region_create(ctx, "denoise", TRACE_REGION_OPTIONS(.fullgraph = true), &region))
        die("context", trace_last_error(NULL));
    w[0] = weight(ctx, 1, 0.08, hidden, frame), w[1] = weight(ctx, 2, 0.1, hidden, 1);
    w[2] = weight(ctx, 3, 0.1, frame, hidden), w[3] = weight(ctx, 4, 0.5, frame, 1);
    for (int i = 0; i < LAYERS; i++) {
        for (int k = 0; k < 2; k++) {
            w[4 + 4 * i + k] = weight(ctx, (uint64_t)(10 + 4 * i + k), 0.1, 3 * hidden, hidden);
            w[6 + 4 * i + k] = weight(ctx, (uint64_t)(12 + 4 * i + k), 0.1, 3 * hidden, 1);
        }
        if (!(h[i] = trace_from(ctx, TRACE_F32, zero, TRACE_DIMS(1, hidden))))
            die("audio", "state");
    }
    T *ti = trace_wrap_const(ctx, TRACE_F32, in, TRACE_DIMS(1, frame));
    T *to = trace_wrap(ctx, TRACE_F32, out, TRACE_DIMS(1, frame));
    if (trace_begin(region, TRACE_ARGS(ti, to, h[0], h[1]))) {
        T *x = trace_tanh(trace_linear(ti, w[0], w[1]));
        for (int i = 0; i < LAYERS; i++) {
            T **p = w + 4 + 4 * i;
            x = trace_gru_cell(x, h[i], p[0], p[1], p[2], p[3]);
            trace_copy_(h[i], x);
        }
        trace_copy_(to, trace_mul(ti, trace_sigmoid(trace_linear(x, w[2], w[3]))));
    }
    if (trace_end_bind(region, NULL, &bound))
        die("bind", trace_last_error(NULL));
    uint32_t *ns = malloc((size_t)runs * sizeof *ns), worst = 0;
    if (!ns)
        die("audio", "memory for the times");
    memset(ns, 0, (size_t)runs * sizeof *ns);
    uint32_t *plain = calloc((size_t)runs / 10 + 1, sizeof *plain);
    long nplain = 0, turns = 0;
    float sink = 0;
    if (!plain)
        die("audio", "memory for the times");
    memset(plain, 1, ((size_t)runs / 10 + 1) * sizeof *plain); /* no page of it is new later on */
    (void)mlockall(MCL_CURRENT); /* what a realtime host does; without the right to it: as it is */
    long slow_runs = 0, slow_switched = 0, worst_switches = 0, first = 0;
    uint64_t limit = UINT32_MAX;
    for (int i = 0; i < 1000; i++)
        if (trace_bound_run(bound))
            die("run", trace_last_error(NULL));
    double steal = steal_ms();
    first = switches();
    long seen = first;
    for (long i = 0; i < runs; i++) {
        in[i % frame] = (float)(i % 7) * 0.1f;
        uint64_t t0 = now_ns();
        enum trace_status s = trace_bound_run(bound);
        uint64_t t = now_ns() - t0;
        if (s)
            die("run", trace_last_error(NULL));
        ns[i] = t < UINT32_MAX ? (uint32_t)t : UINT32_MAX;
        if (i == 1000) { /* a first idea of the median */
            uint32_t some[1000];
            memcpy(some, ns, sizeof some);
            qsort(some, 1000, sizeof some[0], by_ns);
            limit = 3 * (uint64_t)some[500];
            uint64_t fastest = UINT64_MAX;
            for (int k = 0; k < 20; k++) {
                t0 = now_ns();
                multiply_adds(10000, &sink);
                uint64_t took = now_ns() - t0;
                fastest = took < fastest ? took : fastest;
            }
            turns = fastest ? (long)(10000 * (uint64_t)some[500] / fastest) + 1 : 1;
        }
        if (t > limit || ns[i] > worst) { /* rare: asked outside of the time taken */
            long all = switches();
            slow_runs += t > limit;
            slow_switched += t > limit && all != seen;
            if (ns[i] > worst) {
                worst = ns[i];
                worst_switches = all - seen;
            }
            seen = all;
        } else if (i % 1024 == 0) {
            seen = switches();
        }
        if (turns && i % 10 == 9) {
            t0 = now_ns();
            multiply_adds(turns, &sink);
            t = now_ns() - t0;
            plain[nplain++] = t < UINT32_MAX ? (uint32_t)t : UINT32_MAX;
        }
    }
    long all = switches() - first;
    steal = steal_ms() - steal;
    if (!isfinite(out[0]) || !isfinite(sink))
        die("audio", "result");
    qsort(ns, (size_t)runs, sizeof *ns, by_ns);
    double median = ns[runs / 2], p9999 = ns[(size_t)((double)runs * 0.9999)];
    qsort(plain, (size_t)nplain, sizeof *plain, by_ns);
    double c50 = nplain ? plain[nplain / 2] : 0, c999 = nplain ? plain[(size_t)((double)nplain * 0.999)] : 0;
    double c9999 = nplain ? plain[(size_t)((double)nplain * 0.9999)] : 0;
    double p99 = ns[(size_t)((double)runs * 0.99)], p999 = ns[(size_t)((double)runs * 0.999)];
    printf("{\"workload\": \"audio_bound\", \"runs\": %ld, \"p50_us\": %.3f, \"p99_us\": %.3f, \"p999_us\": %.3f, "
           "\"p9999_us\": %.3f, \"p9999_of_median\": %.2f, \"worst_us\": %.1f, \"worst_switches\": %ld, "
           "\"slow_runs\": %ld, \"slow_with_switch\": %ld, \"involuntary_switches\": %ld, \"steal_ms\": %.0f, "
           "\"workspace\": %zu, \"control_p50_us\": %.3f, \"control_p999_us\": %.3f, \"control_p9999_us\": %.3f, "
           "\"control_p9999_of_median\": %.2f, \"control_worst_us\": %.1f}\n",
           runs, median / 1e3, p99 / 1e3, p999 / 1e3, p9999 / 1e3, p9999 / median, worst / 1e3, worst_switches,
           slow_runs, slow_switched, all, steal, trace_region_workspace(region), c50 / 1e3, c999 / 1e3, c9999 / 1e3,
           c50 > 0 ? c9999 / c50 : 0, nplain ? plain[nplain - 1] / 1e3 : 0.0);
    trace_bound_release(bound);
    for (int i = 0; i < WEIGHTS; i++)
        trace_release(w[i]);
    trace_release(h[0]), trace_release(h[1]), trace_release(ti), trace_release(to);
    trace_region_release(region);
    trace_context_release(ctx);
    free(plain);
    free(ns);
    return p9999 > 3 * median;
}
