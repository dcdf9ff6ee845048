/* tests/docs/branch.c: a branch on a value. */
#include "pitfall.h"

/* --- */
static trace_tensor *clip(trace_tensor *x) {
    double norm;
    if (trace_item_f64(trace_sqrt(trace_sum(trace_square(x), TRACE_SCALAR, false)), &norm))
        return NULL;
    if (norm > 1)
        return trace_mul_f(x, 1 / norm);
    return trace_mul_f(x, 1);
}
/* --- */

int main(void) {
    trace_region *r = open_region("clip");
    trace_tensor *x = filled(4, 8), *y;
    for (int i = 0; i < 3; i++) {
        y = NULL;
        if (trace_begin(r, TRACE_ARGS(x)))
            y = clip(x);
        must(trace_end(r, &y, 1));
        trace_release(y);
    }
    report(r, "clip");
    return 0;
}
