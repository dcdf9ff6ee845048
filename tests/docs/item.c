/* tests/docs/item.c: a value read in the middle of the model. */
#include "pitfall.h"

/* --- */
static trace_tensor *model(trace_tensor *x, trace_tensor *w) {
    trace_tensor *h = trace_relu(trace_linear(x, w, TRACE_NONE));
    double top;
    if (trace_item_f64(trace_amax(h, TRACE_SCALAR, false), &top)) /* waits for all of the above */
        return NULL;
    return trace_softmax(trace_mul_f(h, 1 / (top + 1e-6)), -1);
}
/* --- */

int main(void) {
    trace_region *r = open_region("model");
    trace_tensor *x = filled(8, 16), *w = filled(32, 16), *y;
    for (int i = 0; i < 3; i++) {
        y = NULL;
        if (trace_begin(r, TRACE_ARGS(x)))
            y = model(x, w);
        must(trace_end(r, &y, 1));
        trace_release(y);
    }
    report(r, "model");
    return 0;
}
