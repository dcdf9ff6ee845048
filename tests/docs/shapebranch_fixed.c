/* tests/docs/shapebranch_fixed.c: both sides of a branch on a shape, chosen in the graph. */
#include "pitfall.h"

/* --- */
static trace_tensor *scores(trace_tensor *x) {
    trace_tensor *y = trace_softmax(x, -1);
    trace_tensor *many = trace_gt_i(trace_full_i(ctx, TRACE_SCALAR, trace_size(x, 0), TRACE_I64), 8);
    return trace_where(many, trace_sub(y, trace_mean(y, TRACE_DIMS(0), true)), y);
}
/* --- */

int main(void) {
    trace_region *r = open_region("scores");
    static const int64_t rows[] = {5, 12, 7, 30, 8, 9};
    for (int i = 0; i < 6; i++) {
        trace_tensor *x = filled(rows[i], 6), *y = NULL;
        if (trace_begin(r, TRACE_ARGS(x)))
            y = scores(x);
        must(trace_end(r, &y, 1));
        trace_release(x);
        trace_release(y);
    }
    report(r, "scores");
    return 0;
}
