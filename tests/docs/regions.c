/* tests/docs/regions.c: a region for each request. */
#include "pitfall.h"

/* --- */
static void request(int64_t length) {
    trace_region *r = open_region("model"); /* has no plan yet, and takes its plans with it */
    trace_tensor *x = filled(length, 8), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x)))
        y = trace_softmax(trace_mul_f(x, 2), -1);
    must(trace_end(r, &y, 1));
    trace_release(x);
    trace_release(y);
    trace_region_release(r);
}
/* --- */

int main(void) {
    static const int64_t lengths[] = {5, 9, 5, 12, 9, 7};
    trace_region_release(open_region("none")); /* makes the context */
    for (int i = 0; i < 6; i++)
        request(lengths[i]);
    trace_stats s = {.size = sizeof s};
    trace_context_stats(ctx, &s);
    fprintf(stderr, "all regions: %llu runs, %llu plans\n", (unsigned long long)s.runs, (unsigned long long)s.graphs);
    return 0;
}
