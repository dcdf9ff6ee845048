/* tests/docs/list_fixed.c: room for all states from the start; choices are read after the run. */
#include "pitfall.h"
enum { STEPS = 6, WIDTH = 16 };

/* --- */
static void decode(trace_tensor *sum, trace_tensor *count, trace_tensor *w, trace_tensor **state,
                   trace_tensor **token) {
    *state = trace_tanh(trace_linear(trace_div(sum, count), w, TRACE_NONE));
    *token = trace_argmax(*state, 1, false);
    trace_add_(sum, *state);
    trace_add_f_(count, 1);
}
/* --- */

int main(void) {
    trace_region *r = open_region("decode");
    float one = 1;
    trace_tensor *sum = filled(1, WIDTH), *w = filled(WIDTH, WIDTH), *out[2];
    trace_tensor *count = trace_from(ctx, TRACE_F32, &one, TRACE_SCALAR);
    for (int i = 0; i < STEPS; i++) {
        int64_t token;
        out[0] = out[1] = NULL;
        if (trace_begin(r, TRACE_ARGS(sum, count)))
            decode(sum, count, w, &out[0], &out[1]);
        must(trace_end(r, out, 2));
        must(trace_item_i64(out[1], &token)); /* of a tensor: no break */
        fprintf(stderr, "%lld ", (long long)token);
        trace_release(out[0]);
        trace_release(out[1]);
    }
    fprintf(stderr, "\n");
    report(r, "decode");
    return 0;
}
