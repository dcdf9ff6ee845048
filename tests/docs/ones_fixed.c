/* tests/docs/ones_fixed.c: an extent of 1 made as large as what it meets. */
#include "pitfall.h"

/* --- */
static trace_tensor *scale(trace_tensor *x, trace_tensor *gain) { /* x [n, 16]; gain [m, 1] */
    int64_t n = trace_size(x, 0), m = trace_size(gain, 0);
    trace_tensor *row = trace_arange(ctx, 0, n, 1, TRACE_I64);
    return trace_mul(x, trace_index_select(gain, 0, trace_remainder_i(row, m)));
}
/* --- */

int main(void) {
    trace_region *r = open_region("scale");
    static const int64_t rows[][2] = {{4, 4}, {6, 6}, {9, 1}, {1, 1}, {5, 1}, {7, 7}}; /* of x, of gain */
    for (int i = 0; i < 6; i++) {
        trace_tensor *x = filled(rows[i][0], 16), *gain = filled(rows[i][1], 1);
        trace_tensor *y = NULL;
        if (trace_begin(r, TRACE_ARGS(x, gain)))
            y = scale(x, gain);
        must(trace_end(r, &y, 1));
        trace_release(x);
        trace_release(gain);
        trace_release(y);
    }
    report(r, "scale");
    return 0;
}
