/* tests/docs/size_fixed.c: all rows, those that do not count masked. */
#include "pitfall.h"

/* --- */
static trace_tensor *pool(trace_tensor *x, trace_tensor *lengths) {
    trace_tensor *n = trace_amax(lengths, TRACE_SCALAR, false);
    trace_tensor *row = trace_arange(ctx, 0, trace_size(x, 0), 1, TRACE_I64);
    trace_tensor *counts = trace_unsqueeze(trace_lt(row, n), 1);
    trace_tensor *sum =
        trace_sum(trace_where(counts, trace_tanh(x), trace_zeros(ctx, TRACE_SCALAR, TRACE_F32)), TRACE_DIMS(0), false);
    return trace_div(sum, trace_to(n, TRACE_F32));
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
