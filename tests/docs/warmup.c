/* tests/docs/warmup.c: a server that compiles while its first clients wait. */
#include "pitfall.h"

/* --- */
static void answer(trace_region *r, trace_tensor *w, int64_t requests, int64_t width) {
    trace_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    trace_tensor *x = filled(requests, width), *y = NULL;
    trace_region_stats(r, &before);
    if (trace_begin(r, TRACE_ARGS(x)))
        y = trace_softmax(trace_linear(x, w, TRACE_NONE), -1);
    must(trace_end(r, &y, 1));
    trace_region_stats(r, &after);
    fprintf(stderr, "batch of %lld: %s\n", (long long)requests,
            after.misses > before.misses ? "waited for the compiler" : "served at once");
    trace_release(x);
    trace_release(y);
}
/* --- */

int main(void) {
    trace_region *r = open_region("model");
    trace_tensor *w = filled(8, 16);
    static const int64_t batches[] = {3, 8, 32, 8, 3};
    for (int i = 0; i < 5; i++)
        answer(r, w, batches[i], 16);
    return 0;
}
