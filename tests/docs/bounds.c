/* tests/docs/bounds.c: extents that nobody declared vary one after the other. */
#include "pitfall.h"

/* --- */
static trace_region *open_model(void) { return open_region("model"); }
/* --- */

int main(void) {
    trace_region *r = open_model();
    static const int64_t sizes[][2] = {{4, 16}, {9, 16}, {9, 48}, {1, 48}};
    for (int i = 0; i < 4; i++) {
        trace_tensor *x = filled(sizes[i][0], sizes[i][1]), *y = NULL;
        if (trace_begin(r, TRACE_ARGS(x)))
            y = trace_layer_norm(x, TRACE_DIMS(sizes[i][1]), TRACE_NONE, TRACE_NONE, 1e-5);
        must(trace_end(r, &y, 1));
        trace_release(x);
        trace_release(y);
    }
    report(r, "model");
    return 0;
}
