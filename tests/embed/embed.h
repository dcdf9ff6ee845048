/* tests/embed/embed.h: what the embedding programs share: checks, made-up weights, a context without the compiler. */
#ifndef EMBED_H
#define EMBED_H
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tracejit.h"

static atomic_int embed_failures;
#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                                                 \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, " (last error: %s)\n", trace_last_error(NULL));                                            \
            atomic_fetch_add(&embed_failures, 1);                                                                      \
        }                                                                                                              \
    } while (0)
#define EMBED_RESULT() (atomic_load(&embed_failures) ? 1 : 0)

/* [-1, 1), the same on every machine */
static inline float embed_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (float)(int32_t)((z ^ z >> 31) >> 40) / 8388608.0f - 1.0f;
}
static inline trace_tensor *embed_weight(trace_context *ctx, uint64_t *seed, const int64_t *dims, size_t rank,
                                         float scale) {
    size_t n = 1;
    for (size_t i = 0; i < rank; i++)
        n *= (size_t)dims[i];
    float *v = malloc(n * sizeof *v);
    if (!v)
        return NULL;
    for (size_t i = 0; i < n; i++)
        v[i] = scale * embed_random(seed);
    trace_tensor *t = trace_from(ctx, TRACE_F32, v, dims, rank);
    free(v);
    return t;
}
static inline void embed_ignore(void *user, const trace_event *e) { (void)user, (void)e; }
/* The interpreter: what results are checked against. */
static inline enum trace_status embed_reference(trace_context **ctx) {
    setenv("TRACEJIT_NO", "jit", 1);
    enum trace_status st = trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = embed_ignore), ctx);
    unsetenv("TRACEJIT_NO");
    return st;
}
static inline bool embed_near(const float *a, const float *b, size_t n, float tolerance) {
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(a[i] - b[i]) <= tolerance * (1 + fabsf(b[i])))) {
            fprintf(stderr, "element %zu of %zu is %.9g, not %.9g\n", i, n, (double)a[i], (double)b[i]);
            return false;
        }
    }
    return true;
}
static inline trace_stats embed_stats(const trace_region *r) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    return s;
}
#endif
