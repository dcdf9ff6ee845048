/* The smallest program: y = relu(x * w + 1), recorded, compiled and run. */
#include <stdio.h>
#include <tracejit.h>

int main(void) {
    const float xs[] = {-3, -1, 0, 1, 3, 5}, ws[] = {1, 2, 3};
    float ys[6];
    trace_context *ctx = NULL;
    trace_region *region = NULL;
    if (trace_context_create(NULL, &ctx) || trace_region_create(ctx, "hello", NULL, &region)) {
        fprintf(stderr, "%s\n", trace_last_error(ctx));
        return 1;
    }
    trace_tensor *x = trace_wrap_const(ctx, TRACE_F32, xs, TRACE_DIMS(2, 3));
    trace_tensor *w = trace_from(ctx, TRACE_F32, ws, TRACE_DIMS(3));
    enum trace_status st = TRACE_OK;
    for (int run = 0; run < 3 && st == TRACE_OK; run++) { /* the first run compiles, the others find the plan */
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_relu(trace_add_f(trace_mul(x, w), 1));
        st = trace_end(region, &y, 1);
        if (st == TRACE_OK)
            st = trace_read(y, ys, sizeof ys);
        trace_release(y);
    }
    trace_stats stats = {.size = sizeof stats};
    trace_region_stats(region, &stats);
    if (st == TRACE_OK) {
        for (int i = 0; i < 6; i++)
            printf("%g ", (double)ys[i]);
        printf("\n%llu runs, %llu hits, %llu kernel\n", (unsigned long long)stats.runs, (unsigned long long)stats.hits,
               (unsigned long long)stats.kernels);
    } else {
        fprintf(stderr, "%s\n", trace_last_error(ctx));
    }
    trace_release(w);
    trace_release(x);
    trace_region_release(region);
    trace_context_release(ctx);
    return st != TRACE_OK || ys[5] != 16;
}
