/* tests/docs/ones.c: an extent of 1 that meets others. */
#include "pitfall.h"

/* --- */
static trace_tensor *scale(trace_tensor *x, trace_tensor *gain) { /* x [n, 16]; gain [n, 1], or [1, 1] for all rows */
    return trace_mul(x, gain);
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
