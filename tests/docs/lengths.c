/* tests/docs/lengths.c: sentences of many lengths, and plans that are exact. */
#include "pitfall.h"

/* --- */
static trace_tensor *encode(trace_tensor *x, trace_tensor *w) { /* x [length, 16] */
    trace_tensor *h = trace_gelu(trace_linear(x, w, TRACE_NONE), TRACE_GELU_NONE);
    return trace_mean(h, TRACE_DIMS(0), false);
}

static trace_region *open_encoder(void) {
    return open_region_with("encode", TRACE_REGION_OPTIONS(.dynamic = TRACE_DYNAMIC_OFF));
}
/* --- */

int main(void) {
    trace_region *r = open_encoder();
    trace_tensor *w = filled(8, 16);
    static const int64_t lengths[] = {12, 7, 31, 9, 1, 18};
    for (int i = 0; i < 6; i++) {
        trace_tensor *x = filled(lengths[i], 16), *y = NULL;
        if (trace_begin(r, TRACE_ARGS(x)))
            y = encode(x, w);
        must(trace_end(r, &y, 1));
        trace_release(x);
        trace_release(y);
    }
    report(r, "encode");
    return 0;
}
