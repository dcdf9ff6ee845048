/* tests/docs/write_fixed.c: the write is recorded like any op. */
#include "pitfall.h"

/* --- */
static trace_tensor *filter(trace_tensor *frame, trace_tensor *gain, trace_tensor *next) {
    trace_tensor *a = trace_mul(frame, gain);
    trace_copy_(gain, next);
    return trace_add(a, trace_mul(frame, gain));
}
/* --- */

int main(void) {
    trace_region *r = open_region("filter");
    static float memory[4] = {1, 1, 1, 1};
    const float gains[4] = {2, 2, 2, 2};
    trace_tensor *frame = filled(2, 4), *gain = trace_wrap(ctx, TRACE_F32, memory, TRACE_DIMS(4)), *y = NULL;
    trace_tensor *next = trace_from(ctx, TRACE_F32, gains, TRACE_DIMS(4));
    if (trace_begin(r, TRACE_ARGS(frame, next)))
        y = filter(frame, gain, next);
    must(trace_end(r, &y, 1));
    report(r, "filter");
    return 0;
}
