/* tests/docs/warmup_fixed.c: plans for the typical shapes are made before the first client comes. */
#include "pitfall.h"

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
static void warm(trace_region *r, trace_tensor *w) {
    answer(r, w, 2, 16); /* one recording; over placeholders it would run nothing */
    static const int64_t batches[] = {3, 8, 32};
    for (int i = 0; i < 3; i++) {
        trace_shape s = {.input = 0, .rank = 2, .dims = {batches[i], 16}};
        must(trace_warmup(r, &s, 1));
    }
}
/* --- */

int main(void) {
    trace_region *r = open_region("model");
    trace_tensor *w = filled(8, 16);
    static const int64_t batches[] = {3, 8, 32, 8, 3};
    warm(r, w);
    for (int i = 0; i < 5; i++)
        answer(r, w, batches[i], 16);
    return 0;
}
