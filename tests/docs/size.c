/* tests/docs/size.c: an extent that depends on data. */
#include "pitfall.h"

/* --- */
static trace_tensor *pool(trace_tensor *x, trace_tensor *lengths) {
    int64_t n;
    if (trace_item_i64(trace_amax(lengths, TRACE_SCALAR, false), &n)) /* how many rows count */
        return NULL;
    return trace_mean(trace_tanh(trace_narrow(x, 0, 0, n)), TRACE_DIMS(0), false);
}
/* --- */

int main(void) {
    trace_region *r = open_region("pool");
    trace_tensor *x = filled(16, 8);
    for (int64_t n = 5; n < 8; n++) {
        trace_tensor *lengths = trace_from(ctx, TRACE_I64, &n, TRACE_DIMS(1)), *y = NULL;
        if (trace_begin(r, TRACE_ARGS(x, lengths)))
            y = pool(x, lengths);
        must(trace_end(r, &y, 1));
        trace_release(lengths);
        trace_release(y);
    }
    report(r, "pool");
    return 0;
}
