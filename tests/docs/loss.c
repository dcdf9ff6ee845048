/* tests/docs/loss.c: model and loss in regions of their own, one after the other. */
#include "pitfall.h"

/* --- */
static void step(trace_region *model, trace_region *loss, trace_tensor *x, trace_tensor *want, float *value) {
    trace_tensor *y = NULL, *l = NULL;
    if (trace_begin(model, TRACE_ARGS(x)))
        y = trace_tanh(trace_mul_f(x, 2));
    must(trace_end(model, &y, 1)); /* y is written to memory here ... */
    if (trace_begin(loss, TRACE_ARGS(y, want)))
        l = trace_mean(trace_square(trace_sub(y, want)), TRACE_SCALAR, false);
    must(trace_end(loss, &l, 1)); /* ... and read again here */
    must(trace_read(l, value, sizeof *value));
    trace_release(y);
    trace_release(l);
}
/* --- */

int main(void) {
    trace_region *model = open_region("model"), *loss = open_region("loss");
    trace_tensor *x = filled(32, 64), *want = filled(32, 64);
    float value = 0;
    for (int i = 0; i < 10; i++)
        step(model, loss, x, want, &value);
    fprintf(stderr, "loss %.4f\n", (double)value);
    report(model, "model");
    report(loss, "loss");
    return 0;
}
