/* tests/docs/handle.c: a condition on a handle, which is never NULL here. */
#include "pitfall.h"

/* --- */
static trace_tensor *clip(trace_tensor *x) {
    if (trace_gt_f(trace_amax(x, TRACE_SCALAR, false), 100)) /* always true: it tests the pointer */
        return trace_mul_f(x, 0);
    return x;
}
/* --- */

int main(void) {
    trace_region *r = open_region("clip");
    trace_tensor *x = filled(1, 4), *y = NULL;
    float v[4];
    if (trace_begin(r, TRACE_ARGS(x)))
        y = clip(x);
    must(trace_end(r, &y, 1));
    must(trace_read(y, v, sizeof v));
    fprintf(stderr, "%g %g %g %g\n", (double)v[0], (double)v[1], (double)v[2], (double)v[3]);
    return 0;
}
