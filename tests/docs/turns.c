/* tests/docs/turns.c: a loop of the host whose count changes from run to run. */
#include "pitfall.h"

/* --- */
static void refine(trace_region *r, trace_tensor *x, trace_tensor *w, int turns) {
    trace_tensor *h = x;
    if (trace_begin(r, TRACE_ARGS(x)))
        for (int i = 0; i < turns; i++)
            h = trace_tanh(trace_add(trace_matmul(h, w), x));
    must(trace_end(r, &h, 1));
    trace_release(h);
}
/* --- */

int main(void) {
    trace_region *r = open_region("refine");
    trace_tensor *x = filled(4, 8), *w = filled(8, 8);
    for (int turns = 3; turns <= 7; turns += 2)
        refine(r, x, w, turns);
    report(r, "refine");
    return 0;
}
