/* tests/docs/write.c: the host writes a tensor in the middle of a region that uses it. */
#include "pitfall.h"

/* --- */
static trace_tensor *filter(trace_tensor *frame, trace_tensor *gain, const float *gains) {
    trace_tensor *a = trace_mul(frame, gain);
    if (trace_write(gain, gains, 4 * sizeof *gains)) /* a has to be computed before: it reads the old gain */
        return NULL;
    return trace_add(a, trace_mul(frame, gain));
}
/* --- */

int main(void) {
    trace_region *r = open_region("filter");
    static float memory[4] = {1, 1, 1, 1};
    const float gains[4] = {2, 2, 2, 2};
    trace_tensor *frame = filled(2, 4), *gain = trace_wrap(ctx, TRACE_F32, memory, TRACE_DIMS(4)), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(frame)))
        y = filter(frame, gain, gains);
    must(trace_end(r, &y, 1));
    report(r, "filter");
    return 0;
}
