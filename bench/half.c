/* half: one row and few over f16 and bf16 weights against f32 in one run: a decoder is bound by the bytes of its
 * weights, so 16 bits should take about half the time, and never longer. One JSON object a row.
 *
 *   half [PART...]     linear, matmul, attention, conv; all without names. HALF_THREADS: threads of the context, else 1
 *
 * Weights are the library's (packed once) or wrapped memory, which is read anew each run. `cold` rows walk over so many
 * weights in turn that none is still in the cache.
 */
#include "rows.h"

enum { ROUNDS = 7, RUNS = 8, COPIES = 24 };
static const enum trace_dtype dtypes[3] = {TRACE_F32, TRACE_F16, TRACE_BF16};
struct shape {
    const char *name;
    T *(*body)(T **t);
    int64_t dims[3][4];
    size_t rank, operands;
};

static T *linear_row(T **t) { return trace_linear(t[0], t[1], TRACE_NONE); }
static T *matmul_row(T **t) { return trace_matmul(t[0], t[1]); }
static T *conv_row(T **t) {
    static const int64_t pad[2] = {1, 1};
    return trace_conv2d(t[0], t[1], TRACE_NONE, NULL, pad, NULL, 1);
}
static T *attention_row(T **t) {
    return trace_scaled_dot_product_attention(t[0], t[1], t[2], TRACE_NONE, false, 0, false);
}

/* Memory of this many bytes of which every 16 are a small number in each dtype. */
static void *numbers(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes))
        die("memory", strerror(errno));
    for (size_t i = 0; i < bytes / 2; i++)
        ((uint16_t *)p)[i] = (uint16_t)(0x3800 + i % 64);
    return p;
}

struct set {
    trace_region *region;
    T *t[3];
    void *data[3];
};

static void open_set(trace_context *ctx, const struct shape *s, enum trace_dtype d, bool wrapped, struct set *o) {
    memset(o, 0, sizeof *o);
    if (trace_region_create(ctx, s->name, NULL, &o->region))
        die("region", trace_last_error(ctx));
    for (size_t k = 0; k < s->operands; k++) {
        size_t n = d == TRACE_F32 ? 4 : 2;
        for (size_t i = 0; i < s->rank; i++)
            n *= (size_t)s->dims[k][i];
        o->data[k] = numbers(n);
        o->t[k] = wrapped && k ? trace_wrap(ctx, d, o->data[k], s->dims[k], s->rank)
                               : trace_from(ctx, d, o->data[k], s->dims[k], s->rank);
        if (!o->t[k])
            die("tensor", trace_last_error(ctx));
    }
}

static void close_set(struct set *o) {
    for (int k = 0; k < 3; k++) {
        trace_release(o->t[k]);
        free(o->data[k]);
    }
    trace_region_release(o->region);
}

static double once(trace_context *ctx, const struct shape *s, struct set *o) {
    T *y = NULL;
    double start = now();
    if (trace_begin(o->region, o->t, s->operands))
        y = s->body(o->t);
    if (trace_end(o->region, &y, 1))
        die(s->name, trace_last_error(ctx));
    double took = now() - start;
    trace_release(y);
    return took;
}

/* The dtypes take turns, so that what else the machine does falls on all of them; best of each. */
static void row(const struct shape *s, int64_t rows, bool wrapped, bool cold) {
    trace_context *ctx;
    const char *threads = getenv("HALF_THREADS");
    const int copies = cold ? COPIES : 1;
    static struct set sets[3][COPIES];
    double best[3] = {1e9, 1e9, 1e9};
    trace_stats stats = {.size = sizeof stats};
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = threads ? atoi(threads) : 1), &ctx))
        die("context", trace_last_error(NULL));
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < copies; i++) {
            open_set(ctx, s, dtypes[d], wrapped, &sets[d][i]);
            once(ctx, s, &sets[d][i]);
        }
    for (int k = 0; k < ROUNDS; k++)
        for (int d = 0; d < 3; d++)
            for (int i = 0; i < (cold ? copies : RUNS); i++)
                best[d] = fmin(best[d], once(ctx, s, &sets[d][i % copies]));
    trace_context_stats(ctx, &stats);
    printf("{\"workload\": \"%s\", \"rows\": %lld, \"weights\": \"%s\", \"caches\": \"%s\", \"f32_us\": %.1f, "
           "\"f16_us\": %.1f, \"bf16_us\": %.1f, \"f16_of_f32\": %.2f, \"bf16_of_f32\": %.2f, \"packed_mb\": %.1f, "
           "\"goal\": 1.2, \"met\": %s}\n",
           s->name, (long long)rows, wrapped ? "wrapped" : "packed", cold ? "cold" : "warm", best[0] * 1e6,
           best[1] * 1e6, best[2] * 1e6, best[1] / best[0], best[2] / best[0], (double)stats.bytes_packed * 1e-6,
           fmax(best[1], best[2]) <= 1.2 * best[0] ? "true" : "false");
    fflush(stdout);
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < copies; i++)
            close_set(&sets[d][i]);
    trace_context_release(ctx);
}

static const int64_t few[] = {1, 2, 4, 8, 64};

static void rows_of(struct shape s, int dim) {
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++) {
        s.dims[0][dim] = few[i];
        row(&s, few[i], false, false);
        row(&s, few[i], true, false);
        if (few[i] == 1)
            row(&s, 1, false, true);
    }
}

static void linear_part(void) {
    rows_of((struct shape){"linear_2048", linear_row, {{1, 2048}, {2048, 2048}}, 2, 2}, 0);
    row(&(struct shape){"linear_768_3072", linear_row, {{1, 768}, {3072, 768}}, 2, 2}, 1, false, false);
    row(&(struct shape){"linear_4096", linear_row, {{1, 4096}, {4096, 4096}}, 2, 2}, 1, false, false);
}
static void matmul_part(void) {
    rows_of((struct shape){"matmul_2048", matmul_row, {{1, 2048}, {2048, 2048}}, 2, 2}, 0);
}
static void attention_part(void) {
    rows_of(
        (struct shape){"attention_2048_keys", attention_row, {{1, 8, 1, 64}, {1, 8, 2048, 64}, {1, 8, 2048, 64}}, 4, 3},
        2);
}
static void conv_part(void) {
    struct shape s = {"conv_64_64_3x3", conv_row, {{1, 64, 14, 14}, {64, 64, 3, 3}}, 4, 2};
    row(&s, 1, false, false);
    row(&s, 1, true, false);
}

int main(int argc, char **argv) {
    static const struct part parts[] = {{"linear", linear_part, true},
                                        {"matmul", matmul_part, true},
                                        {"attention", attention_part, true},
                                        {"conv", conv_part, true}};
    run_parts(parts, sizeof parts / sizeof parts[0], argc, argv);
    return 0;
}
