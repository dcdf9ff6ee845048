/* tests/docs/grow_fixed.c: a cache with room for all steps. */
#include "pitfall.h"

enum { STEPS = 8, WIDTH = 16 };

/* --- */
static void step(trace_tensor *x, trace_tensor *cache, trace_tensor *pos) { /* cache [STEPS, WIDTH], pos [1] */
    trace_index_copy_(cache, 0, pos, x);
}

static trace_tensor *attend(trace_tensor *x, trace_tensor *cache, trace_tensor *pos) {
    trace_tensor *row = trace_arange(ctx, 0, STEPS, 1, TRACE_I64);
    trace_tensor *seen = trace_unsqueeze(trace_le(row, pos), 0); /* the rows that have been written */
    return trace_scaled_dot_product_attention(x, cache, cache, seen, false, 0, false);
}
/* --- */

int main(void) {
    trace_region *r = open_region("step");
    trace_tensor *cache = trace_zeros(ctx, TRACE_DIMS(STEPS, WIDTH), TRACE_F32), *x = filled(1, WIDTH);
    trace_tensor *pos = trace_zeros(ctx, TRACE_DIMS(1), TRACE_I64);
    for (int64_t i = 0; i < STEPS; i++) {
        trace_tensor *y = NULL;
        must(trace_write(pos, &i, sizeof i));
        if (trace_begin(r, TRACE_ARGS(x, cache, pos))) {
            step(x, cache, pos);
            y = attend(x, cache, pos);
        }
        must(trace_end(r, &y, 1));
        trace_release(y);
    }
    report(r, "step");
    return 0;
}
