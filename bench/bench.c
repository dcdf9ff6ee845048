/* bench: times the CPU workloads and prints one JSON object a row.
 *
 *   bench [ROW...]     checks each row against a float64 reference, then times it; all rows without names
 *   bench --list       names of the rows
 *   bench --serve      takes "time ROW MILLISECONDS" lines on standard input, answers each with one JSON object: for
 * race.py bench --first ROW  seconds of the first call in this process, compile included, after context and weights are
 * made
 *
 * record is the cost of recording an op; tiny_again and long_again (64 ops) are replays and bound runs on 8x8 tensors.
 * Fields: ms is the median of single calls with its quartiles p25_ms and p75_ms; wall_us the time of one call among
 * many back to back; first_call_s the median first call of three new processes. TRACEJIT_THREADS sets the threads as
 * for any program; BENCH_THREADS=N does so for this one. Rows named _1t use one thread.
 */
#include "rows.h"

struct row {
    const char *name;
    int threads; /* 0: the context's */
    void (*setup)(struct work *w);
    T *(*body)(struct work *w);
    double (*error)(struct work *w, const float *y); /* largest error over its tolerance: at most 1 is right */
    int64_t outputs;                                 /* elements of the result */
    double flop, bytes;                              /* of one call; 0: not told */
};

static double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/* |got - want| over a tolerance. */
static double off(double got, double want, double rel, double abs) {
    double e = fabs(got - want) / (abs + rel * fabs(want));
    return isnan(e) ? 1e30 : e;
}

/* ---- the rows ------------------------------------------------------------------------------------------------- */

static double tiny_error(struct work *w, const float *y) {
    double worst = 0;
    for (int i = 0; i < 64; i++) {
        float m = w->data[0][i] * w->data[1][i], want = m + w->data[2][i % 8];
        worst = fmax(worst, off(y[i], want > 0 ? want : 0, 0, 1e-30));
    }
    return worst;
}

static double pointwise_error(struct work *w, const float *y) {
    double worst = 0;
    for (size_t i = 0; i < w->count[0]; i++) {
        double x = w->data[0][i];
        double want = gelu_tanh(x * 1.5 + 0.5) / (1 + exp(-x)) + fmin(1, fmax(-1, x));
        worst = fmax(worst, off(y[i], want, 2e-6, 4e-6));
    }
    return worst;
}

static T *axpb_body(struct work *w) { return trace_add_f(trace_mul_f(w->t[0], 1.5), 0.5); }
static double axpb_error(struct work *w, const float *y) {
    double worst = 0;
    for (size_t i = 0; i < w->count[0]; i++) {
        float m = w->data[0][i] * 1.5f; /* rounds twice: no contraction across ops */
        worst = fmax(worst, off(y[i], m + 0.5f, 0, 1e-30));
    }
    return worst;
}

static double ln_error(struct work *w, const float *y) {
    double worst = 0, row[LN_COLS];
    for (int r = 0; r < LN_ROWS; r++) {
        double sum = 0, square = 0;
        for (int c = 0; c < LN_COLS; c++) {
            int i = r * LN_COLS + c;
            row[c] = gelu_tanh((double)w->data[0][i] + w->data[2][c]) + w->data[1][i];
            sum += row[c];
        }
        for (int c = 0; c < LN_COLS; c++)
            square += (row[c] - sum / LN_COLS) * (row[c] - sum / LN_COLS);
        double scale = 1 / sqrt(square / LN_COLS + 1e-5);
        for (int c = 0; c < LN_COLS; c++)
            worst = fmax(worst, off(y[r * LN_COLS + c],
                                    (row[c] - sum / LN_COLS) * scale * w->data[3][c] + w->data[4][c], 4e-6, 2e-5));
    }
    return worst;
}

static double softmax_error(struct work *w, const float *y) {
    double worst = 0;
    for (int r = 0; r < SM_HEADS * SM; r++) {
        const float *x = w->data[0] + (size_t)r * SM;
        double max = -INFINITY, sum = 0;
        int n = r % SM + 1;
        for (int c = 0; c < n; c++)
            max = fmax(max, x[c] * 0.125);
        for (int c = 0; c < n; c++)
            sum += exp(x[c] * 0.125 - max);
        for (int c = 0; c < SM; c++)
            worst =
                fmax(worst, off(y[(size_t)r * SM + (size_t)c], c < n ? exp(x[c] * 0.125 - max) / sum : 0, 4e-6, 1e-30));
    }
    return worst;
}

/* y [m, n] = x [m, k] wt [n, k]^T + b, in float64; result rows are the caller's. */
static void linear64(const double *x, const float *wt, const float *b, double *y, int m, int n, int k) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double s = b ? b[j] : 0;
            for (int p = 0; p < k; p++)
                s += x[i * k + p] * wt[(size_t)j * (size_t)k + (size_t)p];
            y[i * n + j] = s;
        }
}

static double mlp_error(struct work *w, const float *y) {
    static double x[MLP_B * MLP_D], h[MLP_B * MLP_H];
    double worst = 0;
    for (int i = 0; i < MLP_B * MLP_D; i++)
        x[i] = w->data[0][i];
    for (int i = 0; i < MLP_DEPTH; i++) {
        float **p = &w->data[1 + 4 * i];
        linear64(x, p[0], p[1], h, MLP_B, MLP_H, MLP_D);
        for (int k = 0; k < MLP_B * MLP_H; k++)
            h[k] = gelu_tanh(h[k]);
        linear64(h, p[2], p[3], x, MLP_B, MLP_D, MLP_H);
    }
    for (int i = 0; i < MLP_B * MLP_D; i++)
        worst = fmax(worst, off(y[i], x[i], 1e-4, 2e-5));
    return worst;
}

static double matmul_512_error(struct work *w, const float *y) {
    double worst = 0;
    for (int i = 0; i < 512; i += 7)
        for (int j = 0; j < 512; j++) {
            double s = 0, m = 0;
            for (int k = 0; k < 512; k++) {
                double t = (double)w->data[0][i * 512 + k] * w->data[1][k * 512 + j];
                s += t, m += fabs(t);
            }
            worst = fmax(worst, off(y[i * 512 + j], s, 0, m * 512 * 0x1p-24));
        }
    return worst;
}
enum { LIN_M = 8, LIN_N = 2048, LIN_K = 512 };
static void linear_setup(struct work *w) {
    INPUT(w, LIN_M, LIN_K);
    WEIGHT(w, 1, LIN_N, LIN_K);
}
static T *linear_body(struct work *w) { return trace_linear(w->t[0], w->t[1], TRACE_NONE); }
static double linear_error(struct work *w, const float *y) {
    static double x[LIN_M * LIN_K], want[LIN_M * LIN_N];
    double worst = 0;
    for (int i = 0; i < LIN_M * LIN_K; i++)
        x[i] = w->data[0][i];
    linear64(x, w->data[1], NULL, want, LIN_M, LIN_N, LIN_K);
    for (int i = 0; i < LIN_M * LIN_N; i++)
        worst = fmax(worst, off(y[i], want[i], 0, 1e-3));
    return worst;
}

/* 3x3 convolution with padding 1 of an 8x8 image, then relu. */
static void conv64(const double *x, const float *wt, const float *b, double *y, int in, int out) {
    for (int o = 0; o < out; o++)
        for (int r = 0; r < 8; r++)
            for (int c = 0; c < 8; c++) {
                double s = b[o];
                for (int i = 0; i < in; i++)
                    for (int k = 0; k < 9; k++) {
                        int rr = r + k / 3 - 1, cc = c + k % 3 - 1;
                        if (rr >= 0 && rr < 8 && cc >= 0 && cc < 8)
                            s += x[i * 64 + rr * 8 + cc] * wt[(o * in + i) * 9 + k];
                    }
                y[o * 64 + r * 8 + c] = s > 0 ? s : 0;
            }
}
static double digits_error(struct work *w, const float *y) {
    double worst = 0, image[64], a[16 * 64], b[32 * 64], pooled[512], h[64], out[10];
    for (int n = 0; n < 64; n++) {
        for (int i = 0; i < 64; i++)
            image[i] = w->data[0][n * 64 + i];
        conv64(image, w->data[1], w->data[2], a, 1, 16);
        conv64(a, w->data[3], w->data[4], b, 16, 32);
        for (int i = 0; i < 512; i++) {
            const double *q = b + i / 16 * 64 + i % 16 / 4 * 16 + i % 4 * 2;
            pooled[i] = fmax(fmax(q[0], q[1]), fmax(q[8], q[9]));
        }
        linear64(pooled, w->data[5], w->data[6], h, 1, 64, 512);
        for (int i = 0; i < 64; i++)
            h[i] = h[i] > 0 ? h[i] : 0;
        linear64(h, w->data[7], w->data[8], out, 1, 10, 64);
        for (int i = 0; i < 10; i++)
            worst = fmax(worst, off(y[n * 10 + i], out[i], 1e-5, 1e-5));
    }
    return worst;
}

static const struct row rows[] = {
    {"tiny", 0, tiny_setup, tiny_body, tiny_error, 64, 0, 0},
    {"pointwise", 0, pointwise_setup, pointwise_body, pointwise_error, 1 << 20, 0, 8.0 * (1 << 20)},
    {"pointwise_24", 0, pointwise_24_setup, pointwise_body, pointwise_error, 1 << 24, 0, 8.0 * (1 << 24)},
    {"axpb_24", 0, pointwise_24_setup, axpb_body, axpb_error, 1 << 24, 0, 8.0 * (1 << 24)},
    {"bias_gelu_res_ln", 0, ln_setup, ln_body, ln_error, LN_ROWS *LN_COLS, 0, 12.0 * LN_ROWS *LN_COLS},
    {"masked_softmax", 0, softmax_setup, softmax_body, softmax_error, SM_HEADS *SM *SM, 0, 8.0 * SM_HEADS *SM *SM},
    {"mlp_8x512", 0, mlp_setup, mlp_body, mlp_error, MLP_B *MLP_D, 4.0 * MLP_DEPTH *MLP_B *MLP_D *MLP_H, 0},
    {"matmul_512_1t", 1, matmul_512_setup, matmul_body, matmul_512_error, 512 * 512, 2.0 * 512 * 512 * 512, 0},
    {"linear_8x2048x512_1t", 1, linear_setup, linear_body, linear_error, LIN_M *LIN_N, 2.0 * LIN_M *LIN_N *LIN_K, 0},
    {"digits_64", 0, digits_setup, digits_body, digits_error, 640, 0, 0},
};
enum { NROWS = sizeof rows / sizeof rows[0] };

struct copy_part {
    float *to;
    const float *from;
    size_t n;
    pthread_barrier_t *barrier;
    int turns;
};
static void *copy_thread(void *arg) {
    struct copy_part *p = arg;
    for (int i = 0; i < p->turns; i++) {
        pthread_barrier_wait(p->barrier);
        memcpy(p->to, p->from, p->n * sizeof(float));
        pthread_barrier_wait(p->barrier);
    }
    return NULL;
}

static int bench_threads(void) {
    const char *s = getenv("BENCH_THREADS");
    long n = s ? strtol(s, NULL, 10) : sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < 1024 ? (int)n : 1;
}

/* Median milliseconds of a plain copy of 2^24 floats, on as many threads as the rows use. */
static double copy_ms(void) {
    enum { TURNS = 31 };
    size_t n = (size_t)1 << 24, threads = (size_t)bench_threads();
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
    pthread_t *id = calloc(threads, sizeof *id);
    struct copy_part *parts = calloc(threads, sizeof *parts);
    pthread_barrier_t barrier;
    double ms[TURNS];
    if (!a || !b || !id || !parts || pthread_barrier_init(&barrier, NULL, (unsigned)threads))
        die("copy", "out of memory");
    memset(a, 1, n * sizeof *a);
    memset(b, 1, n * sizeof *b);
    for (size_t i = 0; i < threads; i++) {
        size_t from = n / threads * i;
        parts[i] = (struct copy_part){b + from, a + from, n / threads, &barrier, TURNS};
        if (i && pthread_create(&id[i], NULL, copy_thread, &parts[i]))
            die("copy", "no thread");
    }
    for (int i = 0; i < TURNS; i++) {
        pthread_barrier_wait(&barrier);
        double start = now();
        memcpy(parts[0].to, parts[0].from, parts[0].n * sizeof(float));
        pthread_barrier_wait(&barrier);
        ms[i] = (now() - start) * 1e3;
    }
    for (size_t i = 1; i < threads; i++)
        pthread_join(id[i], NULL);
    pthread_barrier_destroy(&barrier);
    free(parts);
    free(id);
    free(b);
    free(a);
    qsort(ms, TURNS, sizeof ms[0], by_value);
    return ms[TURNS / 2];
}

/* ---- timing --------------------------------------------------------------------------------------------------- */

static void open_row(const struct row *row, struct work *w) {
    memset(w, 0, sizeof *w);
    const char *s = getenv("BENCH_THREADS");
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = s ? bench_threads() : 0), &w->ctx) != TRACE_OK)
        die("context", trace_last_error(NULL));
    if (trace_region_create(w->ctx, row->name, TRACE_REGION_OPTIONS(.threads = row->threads), &w->region) != TRACE_OK)
        die("region", trace_last_error(w->ctx));
    row->setup(w);
}

static void close_row(struct work *w) {
    for (size_t i = 0; i < w->n; i++) {
        trace_release(w->t[i]);
        free(w->data[i]);
    }
    trace_region_release(w->region);
    trace_context_release(w->ctx);
}

static T *call(const struct row *row, struct work *w) {
    T *y = NULL;
    if (trace_begin(w->region, w->t, w->ninputs))
        y = row->body(w);
    if (trace_end(w->region, &y, 1) != TRACE_OK)
        die(row->name, trace_last_error(w->ctx));
    return y;
}

/* The first call, a check of its result and of a second one's. */
static void check(const struct row *row, struct work *w) {
    size_t bytes = (size_t)row->outputs * sizeof(float);
    float *y = malloc(bytes);
    if (!y)
        die(row->name, "out of memory");
    for (int i = 0; i < 2; i++) {
        T *t = call(row, w);
        if (trace_read(t, y, bytes) != TRACE_OK)
            die(row->name, trace_last_error(w->ctx));
        trace_release(t);
        double e = row->error(w, y);
        if (!(e <= 1)) {
            fprintf(stderr, "bench: %s: wrong result, %g times the tolerance\n", row->name, e);
            exit(1);
        }
    }
    free(y);
}

struct timing {
    double p25_ms, ms, p75_ms, wall_us;
};
static struct timing measure(const struct row *row, struct work *w, double budget_ms) {
    enum { MOST = 20000 };
    double *ms = malloc(MOST * sizeof *ms), start, end;
    int n = 0;
    if (!ms)
        die(row->name, "out of memory");
    for (int i = 0; i < 3; i++)
        trace_release(call(row, w));
    for (double until = now() + budget_ms * 1e-3; (now() < until && n < MOST) || n < 5; n++) {
        start = now();
        T *y = call(row, w);
        end = now();
        trace_release(y);
        ms[n] = (end - start) * 1e3;
    }
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    struct timing t = {ms[n / 4], ms[n / 2], ms[n * 3 / 4], 0};
    double wall[7];
    int calls = t.ms > 0 && budget_ms / t.ms < 5000 ? (int)(budget_ms / t.ms / 7) + 3 : 700;
    for (int k = 0; k < 7; k++) {
        start = now();
        for (int i = 0; i < calls; i++)
            trace_release(call(row, w));
        wall[k] = (now() - start) / calls * 1e6;
    }
    qsort(wall, 7, sizeof wall[0], by_value);
    t.wall_us = wall[3];
    free(ms);
    return t;
}

static double first_call(const struct row *row) {
    struct work w;
    open_row(row, &w);
    double start = now();
    T *y = call(row, &w);
    double took = now() - start;
    trace_release(y);
    close_row(&w);
    return took;
}

/* Median first call of three new processes. */
static double first_call_elsewhere(const struct row *row) {
    double s[3] = {0};
    char self[500], command[700];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return NAN;
    self[n] = 0;
    snprintf(command, sizeof command, "'%s' --first %s", self, row->name);
    for (int i = 0; i < 3; i++) {
        FILE *p = popen(command, "r");
        if (!p || fscanf(p, "%lf", &s[i]) != 1)
            s[i] = NAN;
        if (p && pclose(p) != 0)
            s[i] = NAN;
    }
    qsort(s, 3, sizeof s[0], by_value);
    return s[1];
}

/* Nanoseconds to record one op again, and of a whole run of 200 ops on 8x8 tensors. */
static void record_cost(void) {
    enum { OPS = 200, TURNS = 501 };
    static double record[TURNS];
    struct work w;
    open_row(&rows[0], &w);
    for (int i = -20; i < TURNS; i++) {
        double start = now(), end = start;
        T *y = w.t[0];
        if (trace_begin(w.region, w.t, 1)) {
            start = now();
            for (int k = 0; k < OPS / 4; k++)
                y = trace_relu(trace_add(trace_mul_f(trace_mul(y, w.t[1]), 0.5 + 1.0 / (k + 1)), w.t[2]));
            end = now();
        }
        if (trace_end(w.region, &y, 1) != TRACE_OK)
            die("record", trace_last_error(w.ctx));
        trace_release(y);
        if (i >= 0)
            record[i] = (end - start) / OPS * 1e9;
    }
    qsort(record, TURNS, sizeof record[0], by_value);
    printf("{\"workload\": \"record\", \"ns_per_op\": %.1f, \"p25\": %.1f, \"p75\": %.1f}\n", record[TURNS / 2],
           record[TURNS / 4], record[TURNS * 3 / 4]);
    close_row(&w);
}

/* ---- replays and bound plans ---------------------------------------------------------------------------------- */

enum { LONG_OPS = 64 };
static T *long_body(struct work *w) {
    T *y = w->t[0];
    for (int k = 0; k < LONG_OPS / 4; k++)
        y = trace_relu(trace_add(trace_mul_f(trace_mul(y, w->t[1]), 0.5 + 1.0 / (k + 1)), w->t[2]));
    return y;
}

/* Microseconds of one call, median of many short stretches; the best is printed beside it. */
struct cost {
    double us, best;
};
static struct cost cost_of(void (*one)(void *), void *arg) {
    enum { STRETCHES = 301, CALLS = 1000 }; /* shorter than a time slice */
    double us[STRETCHES];
    for (int i = 0; i < 100; i++)
        one(arg);
    for (int k = 0; k < STRETCHES; k++) {
        double start = now();
        for (int i = 0; i < CALLS; i++)
            one(arg);
        us[k] = (now() - start) / CALLS * 1e6;
    }
    qsort(us, STRETCHES, sizeof us[0], by_value);
    return (struct cost){us[STRETCHES / 2], us[0]};
}

struct again {
    struct work w;
    T *(*body)(struct work *w);
    trace_bound *bound;
};
static void replay_once(void *arg) {
    struct again *a = arg;
    T *y = NULL;
    if (trace_begin(a->w.region, a->w.t, a->w.ninputs))
        y = a->body(&a->w);
    if (trace_end(a->w.region, &y, 1) != TRACE_OK)
        die("replay", trace_last_error(a->w.ctx));
    trace_release(y);
}
static void bound_once(void *arg) {
    if (trace_bound_run(((struct again *)arg)->bound) != TRACE_OK)
        die("bound", trace_last_error(NULL));
}

/* The same body replayed and bound; what a replay takes longer than its kernels is told. */
static void again_cost(const char *name, T *(*body)(struct work *w)) {
    struct again a = {.body = body};
    float result[64] = {0};
    open_row(&rows[0], &a.w);
    trace_region *plain = a.w.region;
    T *out = trace_wrap(a.w.ctx, TRACE_F32, result, TRACE_DIMS(8, 8));
    if (trace_begin(plain, a.w.t, a.w.ninputs))
        trace_copy_(out, body(&a.w));
    if (trace_end_bind(plain, NULL, &a.bound) != TRACE_OK)
        die(name, trace_last_error(a.w.ctx));
    struct cost bound = cost_of(bound_once, &a);
    if (trace_region_create(a.w.ctx, name, TRACE_REGION_OPTIONS(.mode = TRACE_MODE_REPLAY), &a.w.region) != TRACE_OK)
        die("region", trace_last_error(a.w.ctx));
    struct cost replay = cost_of(replay_once, &a);
    T *y = NULL;
    if (trace_begin(a.w.region, a.w.t, a.w.ninputs))
        die(name, "the body was not skipped");
    float want[64];
    if (trace_end(a.w.region, &y, 1) != TRACE_OK || trace_read(y, want, sizeof want) != TRACE_OK)
        die(name, trace_last_error(a.w.ctx));
    if (memcmp(want, result, sizeof want))
        die(name, "a replay and a bound run differ");
    trace_release(y);
    printf("{\"workload\": \"%s\", \"replay_us\": %.4g, \"replay_best_us\": %.4g, \"bound_us\": %.4g, "
           "\"bound_best_us\": %.4g, \"replay_over_bound_us\": %.4g}\n",
           name, replay.us, replay.best, bound.us, bound.best, replay.us - bound.us);
    fflush(stdout);
    trace_bound_release(a.bound);
    trace_release(out);
    trace_region_release(plain);
    close_row(&a.w);
}
static void tiny_again(void) { again_cost("tiny_again", tiny_body); }
static void long_again(void) { again_cost("long_again", long_body); }

static const struct {
    const char *name;
    void (*print)(void);
} extras[] = {{"record", record_cost}, {"tiny_again", tiny_again}, {"long_again", long_again}};
enum { NEXTRAS = sizeof extras / sizeof extras[0] };

static bool is_extra(const char *name) {
    for (size_t i = 0; i < NEXTRAS; i++)
        if (!strcmp(extras[i].name, name))
            return true;
    return false;
}

static void print_timing(const struct row *row, struct work *w, struct timing t) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(w->region, &s);
    printf("{\"workload\": \"%s\", \"ms\": %.6g, \"p25_ms\": %.6g, \"p75_ms\": %.6g, \"wall_us\": %.6g, \"ops\": %llu, "
           "\"launches\": %llu, \"graphs\": %llu",
           row->name, t.ms, t.p25_ms, t.p75_ms, t.wall_us, (unsigned long long)(s.runs ? s.ops_recorded / s.runs : 0),
           (unsigned long long)(s.runs ? s.launches / s.runs : 0), (unsigned long long)s.graphs);
}

static const struct row *find_row(const char *name) {
    for (size_t i = 0; i < NROWS; i++)
        if (!strcmp(rows[i].name, name))
            return &rows[i];
    return NULL;
}

static void bench_row(const struct row *row, double peak) {
    struct work w;
    open_row(row, &w);
    check(row, &w);
    struct timing t = measure(row, &w, 700);
    print_timing(row, &w, t);
    if (row->flop > 0) {
        double gflops = row->flop / t.ms * 1e-6;
        printf(", \"gflops\": %.4g", gflops);
        if (row->threads == 1 && peak > 0)
            printf(", \"peak_gflops\": %.4g, \"of_peak\": %.3f", peak, gflops / peak);
    }
    if (row->bytes > 0)
        printf(", \"gb_s\": %.4g", row->bytes / t.ms * 1e-6);
    if (!strcmp(row->name, "axpb_24")) {
        double copy = copy_ms();
        printf(", \"copy_ms\": %.6g, \"of_copy\": %.3f", copy, t.ms / copy);
    }
    close_row(&w);
    printf(", \"first_call_s\": %.4g}\n", first_call_elsewhere(row));
    fflush(stdout);
}

/* One row is open at a time, checked when it is opened. */
static int serve(void) {
    char line[200], name[100];
    double budget;
    struct work w;
    const struct row *open = NULL;
    while (fgets(line, sizeof line, stdin)) {
        const struct row *row = NULL;
        if (!strncmp(line, "quit", 4))
            break;
        if (!strncmp(line, "peak", 4)) {
            printf("{\"peak_gflops\": %.4g}\n", peak_gflops());
        } else if (!strncmp(line, "copy", 4)) {
            printf("{\"copy_ms\": %.6g}\n", copy_ms());
        } else if (sscanf(line, "first %99s", name) == 1 && (row = find_row(name))) {
            printf("{\"first_call_s\": %.6g}\n", first_call_elsewhere(row));
        } else if (sscanf(line, "time %99s %lf", name, &budget) == 2 && (row = find_row(name))) {
            if (row != open) {
                if (open)
                    close_row(&w);
                open_row(open = row, &w);
                check(row, &w);
            }
            print_timing(row, &w, measure(row, &w, budget));
            printf("}\n");
        } else {
            printf("{\"error\": \"unknown command\"}\n");
        }
        fflush(stdout);
    }
    if (open)
        close_row(&w);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--serve"))
        return serve();
    if (argc == 2 && !strcmp(argv[1], "--list")) {
        for (size_t i = 0; i < NROWS; i++)
            printf("%s%s\n", rows[i].name, rows[i].threads == 1 ? " 1" : "");
        return 0;
    }
    if (argc == 3 && !strcmp(argv[1], "--first")) {
        const struct row *row = find_row(argv[2]);
        if (!row)
            die(argv[2], "no such row");
        printf("%.6g\n", first_call(row));
        return 0;
    }
    for (int k = 1; k < argc; k++)
        if (!find_row(argv[k]) && !is_extra(argv[k]))
            die(argv[k], "no such row");
    double peak = peak_gflops();
    printf("{\"peak_gflops\": %.4g, \"threads\": %d}\n", peak, bench_threads());
    for (size_t i = 0; i < (size_t)NROWS + NEXTRAS; i++) {
        const char *name = i < NROWS ? rows[i].name : extras[i - NROWS].name;
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++)
            wanted |= !strcmp(argv[k], name);
        if (wanted && i < NROWS)
            bench_row(&rows[i], peak);
        if (wanted && i >= NROWS)
            extras[i - NROWS].print();
    }
    return 0;
}
