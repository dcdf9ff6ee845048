/* tests/docs/small_fixed.c: one region around the small functions, which stay as they are. */
#include "pitfall.h"

/* --- */
static trace_tensor *scale(trace_region *r, trace_tensor *x) {
    trace_tensor *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x))) /* inlined: records into the region around it */
        y = trace_add_f(trace_mul_f(x, 0.5), 0.25);
    must(trace_end(r, &y, 1));
    return y;
}

static trace_tensor *layers(trace_region *whole, trace_region *r, trace_tensor *x) {
    trace_tensor *y = x;
    if (trace_begin(whole, TRACE_ARGS(x))) {
        for (int i = 0; i < 8; i++)
            y = scale(r, y);
    }
    must(trace_end(whole, &y, 1));
    return y;
}
/* --- */

int main(void) {
    trace_region *whole = open_region("layers"), *r = open_region("scale");
    trace_tensor *x = filled(64, 64), *y;
    for (int i = 0; i < 3; i++) {
        y = layers(whole, r, x);
        trace_release(y);
    }
    report(whole, "layers");
    return 0;
}
