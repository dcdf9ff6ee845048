/* bench/rows.h: what the benchmarks share: the models of the rows, their inputs and weights, the clock, the peak of
 * this machine. */
#ifndef BENCH_ROWS_H
#define BENCH_ROWS_H
#include "../include/tracejit.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef trace_tensor T;
enum { MAX_TENSORS = 96 };

struct work {
    trace_context *ctx;
    trace_region *region;
    T *t[MAX_TENSORS];        /* inputs first, then weights */
    float *data[MAX_TENSORS]; /* what they hold; NULL for the mask */
    size_t count[MAX_TENSORS];
    size_t n, ninputs;
};

static inline void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* Resident memory of this process. */
static inline long resident_kb(void) {
    long pages = 0, dummy = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f)
        return 0;
    if (fscanf(f, "%ld %ld", &dummy, &pages) != 2)
        pages = 0;
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* What a program measures; the names are its arguments. */
struct part {
    const char *name;
    void (*run)(void);
    bool by_default;
};
static inline void run_parts(const struct part *parts, size_t n, int argc, char **argv) {
    for (int k = 1; k < argc; k++) {
        bool known = false;
        for (size_t i = 0; i < n; i++)
            known |= !strcmp(argv[k], parts[i].name);
        if (!known)
            die(argv[k], "no such part");
    }
    for (size_t i = 0; i < n; i++) {
        bool wanted = argc < 2 && parts[i].by_default;
        for (int k = 1; k < argc; k++)
            wanted |= !strcmp(argv[k], parts[i].name);
        if (wanted)
            parts[i].run();
    }
}

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- data ----------------------------------------------------------------------------------------------------- */

/* Normal values, the same in every process: splitmix64 and Box-Muller. */
static inline double uniform(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
}

static inline void add_tensor(struct work *w, bool input, double scale, const int64_t *dims, size_t rank) {
    uint64_t seed = 1000 + w->n;
    size_t count = 1;
    for (size_t i = 0; i < rank; i++)
        count *= (size_t)dims[i];
    float *v = malloc(count * sizeof *v);
    if (!v)
        die("memory", strerror(errno));
    for (size_t i = 0; i < count; i += 2) {
        double r = sqrt(-2 * log(uniform(&seed))) * scale, a = 6.283185307179586 * uniform(&seed);
        v[i] = (float)(r * cos(a));
        if (i + 1 < count)
            v[i + 1] = (float)(r * sin(a));
    }
    w->data[w->n] = v;
    w->count[w->n] = count;
    if (!(w->t[w->n++] = trace_from(w->ctx, TRACE_F32, v, dims, rank)))
        die("tensor", trace_last_error(w->ctx));
    if (input)
        w->ninputs = w->n;
}
#define INPUT(w, ...) add_tensor(w, true, 1, TRACE_DIMS(__VA_ARGS__))
#define WEIGHT(w, scale, ...) add_tensor(w, false, scale, TRACE_DIMS(__VA_ARGS__))

static inline void tiny_setup(struct work *w) {
    INPUT(w, 8, 8);
    WEIGHT(w, 1, 8, 8);
    WEIGHT(w, 1, 8);
}

static inline T *tiny_body(struct work *w) { return trace_relu(trace_add(trace_mul(w->t[0], w->t[1]), w->t[2])); }

static inline void pointwise_setup(struct work *w) { INPUT(w, 1 << 20); }

static inline void pointwise_24_setup(struct work *w) { INPUT(w, 1 << 24); }

static inline T *pointwise_body(struct work *w) {
    T *x = w->t[0];
    T *g = trace_gelu(trace_add_f(trace_mul_f(x, 1.5), 0.5), TRACE_GELU_TANH);
    return trace_add(trace_mul(g, trace_sigmoid(x)), trace_clamp_f(x, -1, 1));
}

enum { LN_ROWS = 512, LN_COLS = 1024 };

static inline void ln_setup(struct work *w) {
    INPUT(w, LN_ROWS, LN_COLS);
    INPUT(w, LN_ROWS, LN_COLS);
    WEIGHT(w, 1, LN_COLS);
    WEIGHT(w, 1, LN_COLS);
    WEIGHT(w, 1, LN_COLS);
}

static inline T *ln_body(struct work *w) {
    T *x = trace_add(trace_gelu(trace_add(w->t[0], w->t[2]), TRACE_GELU_TANH), w->t[1]);
    return trace_layer_norm(x, TRACE_DIMS(LN_COLS), w->t[3], w->t[4], 1e-5);
}

enum { SM_HEADS = 12, SM = 256 };

static inline void softmax_setup(struct work *w) {
    static uint8_t keep[SM * SM];
    INPUT(w, 1, SM_HEADS, SM, SM);
    for (int i = 0; i < SM * SM; i++)
        keep[i] = i % SM <= i / SM;
    if (!(w->t[w->n++] = trace_from(w->ctx, TRACE_BOOL, keep, TRACE_DIMS(SM, SM))))
        die("tensor", trace_last_error(w->ctx));
    w->ninputs = w->n;
}

static inline T *softmax_body(struct work *w) {
    return trace_softmax(trace_where_f(w->t[1], trace_mul_f(w->t[0], 0.125), -INFINITY), -1);
}

enum { MLP_B = 8, MLP_D = 512, MLP_H = 2048, MLP_DEPTH = 3 };

static inline void mlp_setup(struct work *w) {
    INPUT(w, MLP_B, MLP_D);
    for (int i = 0; i < MLP_DEPTH; i++) {
        WEIGHT(w, 0.03, MLP_H, MLP_D);
        WEIGHT(w, 0.03, MLP_H);
        WEIGHT(w, 0.015, MLP_D, MLP_H);
        WEIGHT(w, 0.015, MLP_D);
    }
}

static inline T *mlp_body(struct work *w) {
    T *x = w->t[0];
    for (int i = 0; i < MLP_DEPTH; i++) {
        T **p = &w->t[1 + 4 * i];
        x = trace_linear(trace_gelu(trace_linear(x, p[0], p[1]), TRACE_GELU_TANH), p[2], p[3]);
    }
    return x;
}

static inline void matmul_512_setup(struct work *w) {
    INPUT(w, 512, 512);
    WEIGHT(w, 1, 512, 512);
}

static inline T *matmul_body(struct work *w) { return trace_matmul(w->t[0], w->t[1]); }

/* The digits example's network with made-up weights, batch 64. */
static inline void digits_setup(struct work *w) {
    INPUT(w, 64, 1, 8, 8);
    WEIGHT(w, 0.3, 16, 1, 3, 3);
    WEIGHT(w, 0.1, 16);
    WEIGHT(w, 0.08, 32, 16, 3, 3);
    WEIGHT(w, 0.1, 32);
    WEIGHT(w, 0.05, 64, 512);
    WEIGHT(w, 0.1, 64);
    WEIGHT(w, 0.1, 10, 64);
    WEIGHT(w, 0.1, 10);
}

static inline T *digits_body(struct work *w) {
    static const int64_t one[2] = {1, 1}, two[2] = {2, 2};
    T **p = w->t, *x = trace_relu(trace_conv2d(p[0], p[1], p[2], NULL, one, NULL, 1));
    x = trace_max_pool2d(trace_relu(trace_conv2d(x, p[3], p[4], NULL, one, NULL, 1)), two, NULL, NULL, NULL, false);
    return trace_linear(trace_relu(trace_linear(trace_flatten(x, 1, -1), p[5], p[6])), p[7], p[8]);
}

/* ---- ceilings of this machine, measured in this run ----------------------------------------------------------- */

/* 12 independent chains of multiply-adds; returns the multiply-adds done. chains is there so that nothing is dropped.
 */
enum { CHAINS = 12 };
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static inline double fma_512(long turns, float *sink) {
    __m512 a[CHAINS], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < CHAINS; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (long t = 0; t < turns; t++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            a[i] = _mm512_fmadd_ps(a[i], x, y);
    for (int i = 0; i < CHAINS; i++)
        *sink += _mm512_reduce_add_ps(a[i]);
    return 16.0 * CHAINS * (double)turns;
}
__attribute__((target("avx2,fma"))) static inline double fma_256(long turns, float *sink) {
    __m256 a[CHAINS], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < CHAINS; i++)
        a[i] = _mm256_set1_ps((float)i);
    for (long t = 0; t < turns; t++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            a[i] = _mm256_fmadd_ps(a[i], x, y);
    for (int i = 0; i < CHAINS; i++)
        *sink += _mm256_cvtss_f32(a[i]);
    return 8.0 * CHAINS * (double)turns;
}
#elif defined(__aarch64__)
static inline double fma_neon(long turns, float *sink) {
    float32x4_t a[CHAINS], x = vdupq_n_f32(0.999f);
    for (int i = 0; i < CHAINS; i++)
        a[i] = vdupq_n_f32((float)i);
    for (long t = 0; t < turns; t++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            a[i] = vfmaq_f32(x, a[i], x);
    for (int i = 0; i < CHAINS; i++)
        *sink += vaddvq_f32(a[i]);
    return 4.0 * CHAINS * (double)turns;
}
#endif

/* Multiply-adds done; 0 when this file knows no way to do many. */
static inline double multiply_adds(long turns, float *sink) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f")                                 ? fma_512(turns, sink)
           : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? fma_256(turns, sink)
                                                                             : 0;
#elif defined(__aarch64__)
    return fma_neon(turns, sink);
#else
    return turns * 0.0f * *sink;
#endif
}

/* f32 GFLOP/s of one thread at best, or 0 when this file knows no way to tell. */
static inline double peak_gflops(void) {
    double best = 0;
    static volatile float keep;
    for (int i = 0; i < 10; i++) {
        float sink = 0;
        double start = now(), ops = multiply_adds(2000000, &sink);
        best = fmax(best, 2 * ops / (now() - start) * 1e-9);
        keep = sink;
    }
    (void)keep;
    return best;
}

static inline int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
#endif
