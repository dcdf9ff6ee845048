/* tests/docs/small.c: every small function has a region of its own. */
#include "pitfall.h"

/* --- */
static trace_tensor *scale(trace_region *r, trace_tensor *x) {
    trace_tensor *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x)))
        y = trace_add_f(trace_mul_f(x, 0.5), 0.25);
    must(trace_end(r, &y, 1));
    return y;
}

static trace_tensor *layers(trace_region *r, trace_tensor *x) {
    trace_tensor *y = trace_retain(x);
    for (int i = 0; i < 8; i++) { /* 8 passes over memory */
        trace_tensor *next = scale(r, y);
        trace_release(y);
        y = next;
    }
    return y;
}
/* --- */

int main(void) {
    trace_region *r = open_region("scale");
    trace_tensor *x = filled(64, 64), *y;
    for (int i = 0; i < 3; i++) {
        y = layers(r, x);
        trace_release(y);
    }
    report(r, "scale");
    return 0;
}
