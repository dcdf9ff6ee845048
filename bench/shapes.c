/* shapes: what varying shapes cost. One JSON object a row.
 *
 *   shapes [PART...]   varlen_64, random_shapes, symbolic_vs_exact; all three without names
 *
 *   varlen_64          MiniLM (6 layers of 384, 12 heads, 1536), batch 4, 64 random lengths from 1 to 256: all calls
 *                      with their compiles, each again right after, and the difference
 *   varlen_64_off      the same with exact plans only
 *   random_shapes      10,000 runs of a small model over 4 inputs of random extents, then 5,000 with extents 0 and 1:
 *                      plans, kernels, bytes of code, resident memory
 *   symbolic_vs_exact  regions whose extents are symbols against exact ones: ratios of 21 interleaved repeats. on:
 *                      symbols from the first run; auto: symbols since a second shape; other: symbols, first run over
 *                      another shape
 *
 * SHAPES_REPEATS sets the repeats. SHAPES_ROW: the one row of symbolic_vs_exact. BENCH_THREADS=N: threads. Exit status
 * 1: a count, a size or a result is wrong; what took too long is told ("met": false) and changes no status.
 */
#include "rows.h"

static int failures;

static bool expect(bool ok, const char *row, const char *what, double got, double limit) {
    if (!ok) {
        fprintf(stderr, "shapes: FAILED: %s: %s: %g, limit %g\n", row, what, got, limit);
        failures++;
    }
    return ok;
}

static long repeats(long otherwise) {
    const char *s = getenv("SHAPES_REPEATS");
    long n = s ? strtol(s, NULL, 10) : otherwise;
    return n > 0 && n < 1000 ? n : otherwise;
}

/* ---- recompiles, by what they say ----------------------------------------------------------------------------- */

enum { MAX_REASONS = 64 };
static struct {
    char what[300];
    int64_t from, to;
    int input, dim;
} reasons[MAX_REASONS];
static size_t nreasons, recompiles;

static void on_event(void *user, const trace_event *e) {
    (void)user;
    if (e->kind != TRACE_EVENT_RECOMPILE)
        return;
    recompiles++;
    for (size_t i = 0; i < nreasons; i++)
        if (!strcmp(reasons[i].what, e->what))
            return;
    if (nreasons == MAX_REASONS)
        return;
    snprintf(reasons[nreasons].what, sizeof reasons[0].what, "%s", e->what);
    reasons[nreasons].input = e->input, reasons[nreasons].dim = e->dim;
    reasons[nreasons].from = e->from, reasons[nreasons++].to = e->to;
}

static void print_reasons(const char *row) {
    for (size_t i = 0; i < nreasons; i++)
        printf("{\"workload\": \"%s\", \"recompile\": \"%s\"}\n", row, reasons[i].what);
}

static void open_work(struct work *w, const char *name, int dynamic) {
    memset(w, 0, sizeof *w);
    const char *s = getenv("BENCH_THREADS");
    nreasons = recompiles = 0;
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = s ? atoi(s) : 0, .on_event = on_event), &w->ctx))
        die("context", trace_last_error(NULL));
    if (trace_region_create(w->ctx, name, TRACE_REGION_OPTIONS(.dynamic = dynamic), &w->region))
        die("region", trace_last_error(w->ctx));
}

static void close_work(struct work *w) {
    for (size_t i = 0; i < w->n; i++) {
        trace_release(w->t[i]);
        free(w->data[i]);
    }
    trace_region_release(w->region);
    trace_context_release(w->ctx);
}

static trace_stats stats_of(const trace_region *r) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    return s;
}

/* Median; v is sorted. */
static double median(double *v, size_t n) {
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

/* ---- varlen_64 ------------------------------------------------------------------------------------------------ */

enum {
    D = 384,
    HEADS = 12,
    FF = 1536,
    LAYERS = 6,
    VOCAB = 30522,
    POSITIONS = 512,
    BATCH = 4,
    LENGTH = 256,
    CALLS = 64
};
enum { LAYER_TENSORS = 12 };

static void layer_weights(struct work *w) {
    WEIGHT(w, 0.05, 3 * D, D);
    WEIGHT(w, 0.02, 3 * D);
    WEIGHT(w, 0.05, D, D);
    WEIGHT(w, 0.02, D);
    WEIGHT(w, 1, D);
    WEIGHT(w, 0.02, D);
    WEIGHT(w, 0.05, FF, D);
    WEIGHT(w, 0.02, FF);
    WEIGHT(w, 0.05, D, FF);
    WEIGHT(w, 0.02, D);
    WEIGHT(w, 1, D);
    WEIGHT(w, 0.02, D);
}

/* A layer of BERT over x [b, s, D]; mask broadcasts to [b, HEADS, s, s]. */
static T *layer(T **p, T *x, T *mask) {
    int64_t b = trace_size(x, 0), s = trace_size(x, 1);
    T *qkv = trace_reshape(trace_linear(x, p[0], p[1]), TRACE_DIMS(b, s, 3, HEADS, D / HEADS));
    T *q = trace_transpose(trace_select(qkv, 2, 0), 1, 2), *k = trace_transpose(trace_select(qkv, 2, 1), 1, 2);
    T *v = trace_transpose(trace_select(qkv, 2, 2), 1, 2);
    T *a = trace_scaled_dot_product_attention(q, k, v, mask, false, 0, false);
    a = trace_linear(trace_reshape(trace_transpose(a, 1, 2), TRACE_DIMS(b, s, D)), p[2], p[3]);
    x = trace_layer_norm(trace_add(x, a), TRACE_DIMS(D), p[4], p[5], 1e-12);
    T *f = trace_gelu(trace_linear(x, p[6], p[7]), TRACE_GELU_NONE);
    return trace_layer_norm(trace_add(x, trace_linear(f, p[8], p[9])), TRACE_DIMS(D), p[10], p[11], 1e-12);
}

/* ids [b, s], keep [b, s]; weights w: embeddings of words and positions, their norm, the layers. */
static T *minilm(T **w, T *ids, T *keep) {
    int64_t b = trace_size(ids, 0), s = trace_size(ids, 1);
    T *x = trace_add(trace_embedding(w[0], ids), trace_narrow(w[1], 0, 0, s));
    x = trace_layer_norm(x, TRACE_DIMS(D), w[2], w[3], 1e-12);
    T *mask = trace_reshape(keep, TRACE_DIMS(b, 1, 1, s));
    for (int i = 0; i < LAYERS; i++)
        x = layer(w + 4 + i * LAYER_TENSORS, x, mask);
    T *m = trace_to(trace_unsqueeze(keep, -1), TRACE_F32);
    T *sum = trace_sum(trace_mul(x, m), TRACE_DIMS(1), false);
    T *y = trace_div(sum, trace_clamp_f(trace_sum(m, TRACE_DIMS(1), false), 1e-9, INFINITY));
    T *norm = trace_sqrt(trace_sum(trace_square(y), TRACE_DIMS(-1), true));
    return trace_div(y, trace_clamp_f(norm, 1e-12, INFINITY));
}

/* Seconds of a call with its readback; the results are checked for length 1. */
static double minilm_call(struct work *w, const int64_t *ids, const uint8_t *keep, int length) {
    static float y[BATCH * D];
    T *ti = trace_wrap_const(w->ctx, TRACE_I64, ids, TRACE_DIMS(BATCH, length));
    T *tk = trace_wrap_const(w->ctx, TRACE_BOOL, keep, TRACE_DIMS(BATCH, length)), *out = NULL;
    double start = now();
    if (trace_begin(w->region, TRACE_ARGS(ti, tk)))
        out = minilm(w->t, ti, tk);
    if (trace_end(w->region, &out, 1) || trace_read(out, y, sizeof y))
        die("varlen_64", trace_last_error(w->ctx));
    double took = now() - start;
    for (int b = 0; b < BATCH; b++) {
        double square = 0;
        for (int c = 0; c < D; c++)
            square += (double)y[b * D + c] * y[b * D + c];
        expect(fabs(square - 1) < 1e-4, "varlen_64", "squared length of a result", square, 1);
    }
    trace_release(out), trace_release(ti), trace_release(tk);
    return took;
}

/* The steady call of a length follows its first one at once, so that both see the same machine. */
static void varlen(const char *name, int dynamic) {
    enum { MOST = 21 };
    static int64_t ids[BATCH * LENGTH];
    static uint8_t keep[BATCH * LENGTH];
    double total = 0, steady = 0, worst = 0, compiling = 0;
    struct work w;
    open_work(&w, name, dynamic);
    WEIGHT(&w, 0.05, VOCAB, D);
    WEIGHT(&w, 0.05, POSITIONS, D);
    WEIGHT(&w, 1, D);
    WEIGHT(&w, 0.02, D);
    for (int i = 0; i < LAYERS; i++)
        layer_weights(&w);
    uint64_t seed = 1;
    for (int i = 0; i < BATCH * LENGTH; i++) {
        ids[i] = (int64_t)(uniform(&seed) * VOCAB);
        keep[i] = i % 7 != 5;
    }
    long n = repeats(1) < MOST ? repeats(1) : MOST;
    int shortest = LENGTH, missed = 0;
    for (int i = 0; i < CALLS; i++) {
        double again[MOST], drawn = uniform(&seed);
        int length = i == CALLS / 2 ? 1 : 1 + (int)(drawn * LENGTH); /* 1, which is the odd one, is in it */
        uint64_t misses = stats_of(w.region).misses;
        double first = minilm_call(&w, ids, keep, length);
        bool miss = stats_of(w.region).misses > misses;
        for (long k = 0; k < n; k++)
            again[k] = minilm_call(&w, ids, keep, length);
        double m = median(again, (size_t)n);
        total += first, steady += m;
        missed += miss, compiling += miss ? first - m : 0;
        worst = fmax(worst, first);
        shortest = length < shortest ? length : shortest;
    }
    trace_stats s = stats_of(w.region);
    print_reasons(name);
    printf("{\"workload\": \"%s\", \"total_s\": %.4f, \"steady_s\": %.4f, \"total_minus_steady_s\": %.4f, "
           "\"calls_that_compiled\": %d, \"these_minus_steady_s\": %.4f, \"worst_call_s\": %.4f, \"plans\": %llu, "
           "\"kernels\": %llu, \"code_bytes\": %llu, \"shortest\": %d, \"met\": %s}\n",
           name, total, steady, total - steady, missed, compiling, worst, (unsigned long long)s.graphs,
           (unsigned long long)s.kernels, (unsigned long long)s.bytes_code, shortest,
           s.graphs <= 3 && total - steady <= 0.5 ? "true" : "false");
    fflush(stdout);
    if (dynamic != TRACE_DYNAMIC_OFF)
        expect(s.graphs <= 3, name, "plans", (double)s.graphs, 3);
    close_work(&w);
}

/* ---- random_shapes -------------------------------------------------------------------------------------------- */

enum { MOST_EXTENT = 512, THIN = 4 };
static float pool[MOST_EXTENT * MOST_EXTENT + 4096];

/* Extents: n, k, p; whether a and d have one row, and b one element, instead. */
struct extents {
    int64_t n, k, p;
    bool one_a, one_b, one_d;
};

/* a [n, k], b [k], c [k, THIN], d [n, p] -> relu(a * b) c + the mean of each row of d: [n, THIN]; sums of tanh(d)'s
 * columns. */
static void small_model(T **in, T **out) {
    T *h = trace_relu(trace_mul(in[0], in[1]));
    out[0] = trace_add(trace_matmul(h, in[2]), trace_mean(in[3], TRACE_DIMS(1), true));
    out[1] = trace_sum(trace_tanh(in[3]), TRACE_DIMS(0), false);
}

/* The largest error of the results over its tolerance. */
static double small_model_error(const float *data[4], struct extents e, const float *y, const float *sums) {
    double worst = 0;
    int64_t rows = e.one_a && e.one_d ? 1 : e.n, drows = e.one_d ? 1 : e.n;
    for (int64_t i = 0; i < rows; i++) {
        double mean = 0, about = 0;
        const float *a = data[0] + (e.one_a ? 0 : i * e.k), *d = data[3] + (e.one_d ? 0 : i * e.p);
        for (int64_t j = 0; j < e.p; j++)
            mean += d[j], about += fabs(d[j]);
        mean /= (double)e.p, about /= (double)e.p;
        for (int64_t t = 0; t < THIN; t++) {
            double want = mean, size = about;
            for (int64_t j = 0; j < e.k; j++) {
                double h = (double)a[j] * data[1][e.one_b ? 0 : j], term = h > 0 ? h * data[2][j * THIN + t] : 0;
                want += term, size += fabs(term);
            }
            double got = y[i * THIN + t];
            if (isnan(want) && isnan(got)) /* the mean of nothing */
                continue;
            double off = fabs(got - want) / (1e-30 + size * 512 * 0x1p-24);
            worst = isnan(off) ? 1e30 : fmax(worst, off);
        }
    }
    for (int64_t j = 0; j < e.p; j++) {
        double want = 0;
        for (int64_t i = 0; i < drows; i++)
            want += tanh(data[3][i * e.p + j]);
        double off = fabs(sums[j] - want) / (1e-6 * (1 + (double)drows));
        worst = isnan(off) ? 1e30 : fmax(worst, off);
    }
    return worst;
}

static void small_run(struct work *w, struct extents e, bool check) {
    const float *data[4] = {pool + 5, pool + 77, pool + 1023, pool + 2051};
    const int64_t dims[4][2] = {
        {e.one_a ? 1 : e.n, e.k}, {e.one_b ? 1 : e.k, 0}, {e.k, THIN}, {e.one_d ? 1 : e.n, e.p}};
    static const size_t rank[4] = {2, 1, 2, 2};
    T *in[4], *out[2] = {NULL, NULL};
    for (int i = 0; i < 4; i++)
        if (!(in[i] = trace_wrap_const(w->ctx, TRACE_F32, data[i], dims[i], rank[i])))
            die("random_shapes", trace_last_error(w->ctx));
    if (trace_begin(w->region, in, 4))
        small_model(in, out);
    if (trace_end(w->region, out, 2))
        die("random_shapes", trace_last_error(w->ctx));
    if (check) {
        static float y[MOST_EXTENT * THIN], sums[MOST_EXTENT];
        size_t rows = (size_t)(e.one_a && e.one_d ? 1 : e.n);
        if (trace_read(out[0], y, rows * THIN * 4) || trace_read(out[1], sums, (size_t)e.p * 4))
            die("random_shapes", trace_last_error(w->ctx));
        double error = small_model_error(data, e, y, sums);
        if (!expect(error <= 1, "random_shapes", "error over tolerance", error, 1))
            fprintf(stderr, "n %lld k %lld p %lld, one %d %d %d\n", (long long)e.n, (long long)e.k, (long long)e.p,
                    e.one_a, e.one_b, e.one_d);
    }
    for (int i = 0; i < 4; i++)
        trace_release(in[i]);
    trace_release(out[0]), trace_release(out[1]);
}

static int64_t any_extent(uint64_t *at) { return 2 + (int64_t)(uniform(at) * (MOST_EXTENT - 1)); }
static int64_t odd_extent(uint64_t *at) {
    double u = uniform(at);
    return u < 0.15 ? 0 : u < 0.3 ? 1 : any_extent(at);
}

static void random_shapes(void) {
    enum { RUNS = 10000, EARLY = 1000, ODD_RUNS = 5000 };
    struct work w;
    open_work(&w, "random_shapes", TRACE_DYNAMIC_AUTO);
    uint64_t seed = 7, at = 11;
    for (size_t i = 0; i < sizeof pool / sizeof *pool; i++)
        pool[i] = (float)(2 * uniform(&seed) - 1);
    trace_stats early = {0};
    long early_kb = 0;
    double start = now();
    for (int i = 0; i < RUNS; i++) {
        struct extents e = {any_extent(&at), any_extent(&at), any_extent(&at), false, false, false};
        small_run(&w, e, i < 20 || i % 100 == 99);
        if (i + 1 == EARLY) {
            early = stats_of(w.region);
            early_kb = resident_kb();
        }
    }
    double took = now() - start;
    trace_stats s = stats_of(w.region);
    long kb = resident_kb();
    print_reasons("random_shapes");
    printf("{\"workload\": \"random_shapes\", \"runs\": %d, \"us_per_run\": %.1f, \"plans\": %llu, \"kernels\": %llu, "
           "\"code_bytes\": %llu, \"kernels_early\": %llu, \"code_bytes_early\": %llu, \"resident_kb_early\": %ld, "
           "\"resident_kb\": %ld, \"hits\": %llu}\n",
           RUNS, took / RUNS * 1e6, (unsigned long long)s.graphs, (unsigned long long)s.kernels,
           (unsigned long long)s.bytes_code, (unsigned long long)early.kernels, (unsigned long long)early.bytes_code,
           early_kb, kb, (unsigned long long)s.hits);
    expect(s.graphs <= 4, "random_shapes", "plans", (double)s.graphs, 4);
    expect(s.kernels == early.kernels, "random_shapes", "kernels", (double)s.kernels, (double)early.kernels);
    expect(s.bytes_code == early.bytes_code, "random_shapes", "bytes of code", (double)s.bytes_code,
           (double)early.bytes_code);
    expect(kb <= early_kb + 2048, "random_shapes", "resident kB", (double)kb, (double)early_kb + 2048);

    uint64_t plans = s.graphs;
    nreasons = recompiles = 0;
    for (int i = 0; i < ODD_RUNS; i++) {
        struct extents e = {odd_extent(&at), odd_extent(&at), odd_extent(&at), false, false, false};
        if (i >= ODD_RUNS / 2) { /* extents of 1 that meet others, too */
            double u = uniform(&at);
            e.one_a = u < 0.2, e.one_b = u >= 0.1 && u < 0.3, e.one_d = u >= 0.2 && u < 0.4;
        }
        small_run(&w, e, i < 200 || i % 10 == 9);
    }
    s = stats_of(w.region);
    print_reasons("random_shapes_0_1");
    printf("{\"workload\": \"random_shapes_0_1\", \"runs\": %d, \"more_plans\": %llu, \"guards_reported\": %zu, "
           "\"kernels\": %llu, \"code_bytes\": %llu, \"resident_kb\": %ld}\n",
           ODD_RUNS, (unsigned long long)(s.graphs - plans), nreasons, (unsigned long long)s.kernels,
           (unsigned long long)s.bytes_code, resident_kb());
    fflush(stdout);
    expect(s.graphs - plans <= nreasons, "random_shapes_0_1", "more plans than guards reported",
           (double)(s.graphs - plans), (double)nreasons);
    expect(s.graphs - plans <= 8, "random_shapes_0_1", "more plans", (double)(s.graphs - plans), 8);
    close_work(&w);
}

/* ---- symbolic_vs_exact ---------------------------------------------------------------------------------------- */

static void tiny_rows_setup(struct work *w) {
    INPUT(w, 8, 8);
    WEIGHT(w, 1, 8);
    WEIGHT(w, 1, 8);
}
static void matmul_both_setup(struct work *w) {
    INPUT(w, 512, 512);
    INPUT(w, 512, 512);
}
static void tails_setup(struct work *w) {
    INPUT(w, 509, 511);
    WEIGHT(w, 1, 511, 513);
}
static void tails_both_setup(struct work *w) {
    INPUT(w, 509, 511);
    INPUT(w, 511, 513);
}
static void layer_setup(struct work *w) {
    static uint8_t keep[4 * 128];
    INPUT(w, 4, 128, D);
    for (size_t i = 0; i < sizeof keep; i++)
        keep[i] = i % 7 != 3;
    if (!(w->t[w->n++] = trace_from(w->ctx, TRACE_BOOL, keep, TRACE_DIMS(4, 128))))
        die("tensor", trace_last_error(w->ctx));
    w->ninputs = w->n;
    layer_weights(w);
}
static T *layer_body(struct work *w) {
    T *keep = w->t[1];
    return layer(w->t + 2, w->t[0], trace_reshape(keep, TRACE_DIMS(trace_size(keep, 0), 1, 1, trace_size(keep, 1))));
}

/* Rows with the shapes that their inputs have in the first run of "auto" and "other". */
static const struct pair {
    const char *name;
    void (*setup)(struct work *w);
    T *(*body)(struct work *w);
    int64_t other[2][5]; /* rank, extents */
    double goal;
} pairs[] = {
    {"tiny_rows", tiny_rows_setup, tiny_body, {{2, 5, 8}}, 1.05},
    {"pointwise", pointwise_setup, pointwise_body, {{1, 1000}}, 1.05},
    {"bias_gelu_res_ln", ln_setup, ln_body, {{2, 100, LN_COLS}, {2, 100, LN_COLS}}, 1.05},
    {"masked_softmax", softmax_setup, softmax_body, {{4, 2, SM_HEADS, 72, 72}, {2, 72, 72}}, 1.05},
    {"mlp_8x512", mlp_setup, mlp_body, {{2, 3, MLP_D}}, 1.05},
    {"matmul_512", matmul_512_setup, matmul_body, {{2, 100, 512}}, 1.05},
    {"matmul_512_inputs", matmul_both_setup, matmul_body, {{2, 100, 200}, {2, 200, 300}}, 1.05},
    {"matmul_tails", tails_setup, matmul_body, {{2, 33, 511}}, 1.10},
    {"matmul_tails_inputs", tails_both_setup, matmul_body, {{2, 33, 200}, {2, 200, 300}}, 1.10},
    {"digits_64", digits_setup, digits_body, {{4, 5, 1, 8, 8}}, 1.05},
    {"layer_4x128", layer_setup, layer_body, {{3, 2, 50, D}, {2, 2, 50}}, 1.05},
};

enum { EXACT, ON, AUTO, OTHER, SIDES, MOST_REPEATS = 201 };
static const char *const side_name[SIDES] = {"exact", "on", "auto", "other"};

static T *pair_call(const struct pair *p, struct work *w) {
    T *y = NULL;
    if (trace_begin(w->region, w->t, w->ninputs))
        y = p->body(w);
    if (trace_end(w->region, &y, 1))
        die(p->name, trace_last_error(w->ctx));
    return y;
}

/* A run over inputs of the other shapes. */
static void other_call(const struct pair *p, struct work *w) {
    T *mine[2] = {0}, *kept[2];
    static uint8_t ones[1 << 16];
    memset(ones, 1, sizeof ones);
    for (size_t i = 0; i < w->ninputs; i++) {
        const int64_t *o = p->other[i];
        enum trace_dtype dtype = (enum trace_dtype)trace_dtype_of(w->t[i]);
        kept[i] = w->t[i];
        mine[i] = trace_from(w->ctx, dtype, dtype == TRACE_BOOL ? (const void *)ones : (const void *)w->data[i], o + 1,
                             (size_t)o[0]);
        if (!mine[i])
            die(p->name, trace_last_error(w->ctx));
        w->t[i] = mine[i];
    }
    trace_release(pair_call(p, w));
    for (size_t i = 0; i < w->ninputs; i++) {
        trace_release(mine[i]);
        w->t[i] = kept[i];
    }
}

/* The best of some calls in milliseconds. */
static double pair_block(const struct pair *p, struct work *w, int calls) {
    double best = INFINITY;
    for (int i = 0; i < calls; i++) {
        double start = now();
        T *y = pair_call(p, w);
        best = fmin(best, now() - start);
        trace_release(y);
    }
    return best * 1e3;
}

static void compare(const struct pair *p) {
    static double ms[SIDES][MOST_REPEATS], ratio[MOST_REPEATS];
    struct work w;
    trace_region *r[SIDES];
    T *want = NULL;
    long turns = repeats(21) < MOST_REPEATS ? repeats(21) : MOST_REPEATS;
    open_work(&w, p->name, TRACE_DYNAMIC_OFF);
    p->setup(&w);
    r[EXACT] = w.region;
    for (int s = ON; s < SIDES; s++)
        if (trace_region_create(w.ctx, side_name[s],
                                TRACE_REGION_OPTIONS(.dynamic = s == AUTO ? TRACE_DYNAMIC_AUTO : TRACE_DYNAMIC_ON),
                                &r[s]))
            die("region", trace_last_error(w.ctx));
    for (int s = 0; s < SIDES; s++) {
        w.region = r[s];
        if (s == AUTO || s == OTHER)
            other_call(p, &w);
        T *y = pair_call(p, &w);
        if (want) {
            const void *a, *b;
            if (trace_data(want, &a) || trace_data(y, &b))
                die(p->name, trace_last_error(w.ctx));
            expect(!memcmp(a, b, (size_t)trace_numel(y) * 4), p->name, "bits differ from the exact plan's", s, 0);
            trace_release(y);
        } else {
            want = y;
        }
        trace_stats st = stats_of(r[s]);
        expect(st.graphs == (s == AUTO ? 2 : 1), p->name, "plans", (double)st.graphs, s == AUTO ? 2 : 1);
        pair_block(p, &w, 3);
    }
    w.region = r[EXACT];
    double once = pair_block(p, &w, 5);
    int calls = (int)(20 / once) + 3;
    for (long k = 0; k < turns; k++)
        for (int s = 0; s < SIDES; s++) {
            int side = (int)((k + s) % SIDES);
            w.region = r[side];
            ms[side][k] = pair_block(p, &w, calls);
        }
    printf("{\"workload\": \"symbolic_vs_exact\", \"row\": \"%s\"", p->name);
    bool met = true;
    for (int s = ON; s < SIDES; s++) {
        for (long k = 0; k < turns; k++)
            ratio[k] = ms[s][k] / ms[EXACT][k];
        double m = median(ratio, (size_t)turns);
        printf(", \"%s\": %.3f, \"%s_p25\": %.3f, \"%s_p75\": %.3f", side_name[s], m, side_name[s], ratio[turns / 4],
               side_name[s], ratio[turns * 3 / 4]);
        met &= m <= p->goal;
    }
    printf(", \"exact_ms\": %.4f, \"kernels\": %llu, \"goal\": %.2f, \"met\": %s}\n", median(ms[EXACT], (size_t)turns),
           (unsigned long long)stats_of(r[EXACT]).kernels, p->goal, met ? "true" : "false");
    fflush(stdout);
    trace_release(want);
    w.region = r[EXACT];
    for (int s = ON; s < SIDES; s++)
        trace_region_release(r[s]);
    close_work(&w);
}

static void symbolic_vs_exact(void) {
    const char *only = getenv("SHAPES_ROW");
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (!only || !strcmp(only, pairs[i].name))
            compare(&pairs[i]);
}

static void varlen_auto(void) { varlen("varlen_64", TRACE_DYNAMIC_AUTO); }
static void varlen_off(void) { varlen("varlen_64_off", TRACE_DYNAMIC_OFF); }

int main(int argc, char **argv) {
    static const struct part parts[] = {{"random_shapes", random_shapes, true},
                                        {"symbolic_vs_exact", symbolic_vs_exact, true},
                                        {"varlen_64", varlen_auto, true},
                                        {"varlen_64_off", varlen_off, false}};
    run_parts(parts, sizeof parts / sizeof parts[0], argc, argv);
    return failures != 0;
}
