/* tests/docs/grow.c: a cache that grows by a row a step. */
#include "pitfall.h"

enum { STEPS = 8, WIDTH = 16 };

/* --- */
static trace_tensor *step(trace_tensor *x, trace_tensor *cache) { /* the new cache; the old one is done with */
    return trace_cat(TRACE_ARGS(cache, x), 0);
}

static trace_tensor *attend(trace_tensor *x, trace_tensor *cache) {
    return trace_scaled_dot_product_attention(x, cache, cache, TRACE_NONE, false, 0, false);
}
/* --- */

int main(void) {
    trace_region *r = open_region("step");
    trace_tensor *cache = filled(1, WIDTH), *x = filled(1, WIDTH);
    for (int i = 0; i < STEPS; i++) {
        trace_tensor *out[2] = {NULL, NULL};
        if (trace_begin(r, TRACE_ARGS(x, cache))) {
            out[0] = step(x, cache);
            out[1] = attend(x, out[0]);
        }
        must(trace_end(r, out, 2));
        trace_release(cache);
        trace_release(out[1]);
        cache = out[0];
    }
    report(r, "step");
    return 0;
}
