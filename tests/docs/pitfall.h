/* tests/docs/pitfall.h: what the programs of docs/breaks.md and docs/shapes.md share. */
#include <stdio.h>
#include <stdlib.h>
#include <tracejit.h>

static trace_context *ctx;

static inline void must(enum trace_status s) {
    if (s == TRACE_OK)
        return;
    fprintf(stderr, "%s: %s\n", trace_status_name(s), trace_last_error(NULL));
    exit(1);
}

static inline trace_region *open_region_with(const char *name, const trace_region_options *options) {
    trace_region *r;
    if (!ctx)
        must(trace_context_create(NULL, &ctx));
    must(trace_region_create(ctx, name, options, &r));
    return r;
}

static inline trace_region *open_region(const char *name) { return open_region_with(name, NULL); }

/* A tensor of rows x cols with values from -1 to 1; rows 0: of cols alone. */
static inline trace_tensor *filled(int64_t rows, int64_t cols) {
    float v[4096];
    int64_t n = (rows ? rows : 1) * cols;
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)((i * i * 5 + i * 37) % 64) / 32 - 1;
    trace_tensor *t =
        rows ? trace_from(ctx, TRACE_F32, v, TRACE_DIMS(rows, cols)) : trace_from(ctx, TRACE_F32, v, TRACE_DIMS(cols));
    if (!t)
        must(TRACE_ERR_ARGUMENT);
    return t;
}

static inline void report(const trace_region *r, const char *name) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    fprintf(stderr, "%s: %llu runs, %llu graph breaks, %llu plans, %llu kernels run, %llu bytes moved\n", name,
            (unsigned long long)s.runs, (unsigned long long)s.breaks, (unsigned long long)s.graphs,
            (unsigned long long)s.launches, (unsigned long long)s.bytes_moved);
}
