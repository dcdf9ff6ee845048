/* tests/docs/branch_fixed.c: both sides are recorded, the value chooses. */
#include "pitfall.h"

/* --- */
static trace_tensor *clip(trace_tensor *x) {
    trace_tensor *norm = trace_sqrt(trace_sum(trace_square(x), TRACE_SCALAR, false));
    return trace_where(trace_gt_f(norm, 1), trace_div(x, norm), x);
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
