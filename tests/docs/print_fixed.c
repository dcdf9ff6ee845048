/* tests/docs/print_fixed.c: printed when the run ends. */
#include "pitfall.h"

/* --- */
static trace_tensor *model(trace_tensor *x, trace_tensor *w) {
    trace_tensor *h = trace_linear(x, w, TRACE_NONE);
    trace_print_later(h, "h");
    return trace_sigmoid(h);
}
/* --- */

int main(void) {
    trace_region *r = open_region("model");
    trace_tensor *x = filled(1, 4), *w = filled(3, 4), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x)))
        y = model(x, w);
    must(trace_end(r, &y, 1));
    report(r, "model");
    return 0;
}
