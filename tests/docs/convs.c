/* tests/docs/convs.c: many small convolutions, one a run. */
#include "pitfall.h"

enum { TILES = 16, SIDE = 12 };

/* --- */
static void filter(trace_region *r, const float *tiles, trace_tensor *w) {
    for (int i = 0; i < TILES; i++) {
        trace_tensor *x = trace_wrap_const(ctx, TRACE_F32, tiles + i * SIDE * SIDE, TRACE_DIMS(1, 1, SIDE, SIDE));
        trace_tensor *y = NULL;
        if (trace_begin(r, TRACE_ARGS(x)))
            y = trace_relu(trace_conv2d(x, w, TRACE_NONE, NULL, NULL, NULL, 1));
        must(trace_end(r, &y, 1));
        trace_release(x);
        trace_release(y);
    }
}
/* --- */

int main(void) {
    trace_region *r = open_region("tile");
    static float values[TILES * SIDE * SIDE], weight[4 * 9];
    for (int i = 0; i < TILES * SIDE * SIDE; i++)
        values[i] = (float)(i % 17) / 17;
    for (int i = 0; i < 4 * 9; i++)
        weight[i] = (float)(i % 5) / 5;
    trace_tensor *w = trace_from(ctx, TRACE_F32, weight, TRACE_DIMS(4, 1, 3, 3));
    filter(r, values, w);
    report(r, "tile");
    return 0;
}
