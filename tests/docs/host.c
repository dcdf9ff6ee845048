/* tests/docs/host.c: a host that changes one thing after the other. */
#include "pitfall.h"

static float pixels[32 * 64], taps[2][9] = {{0, 1, 0, 1, 4, 1, 0, 1, 0}, {1, 1, 1, 1, 1, 1, 1, 1, 1}};

/* --- */
static trace_tensor *model(trace_tensor *frames, trace_tensor *w, double gain) { /* frames [n, h, w] */
    int64_t n = trace_size(frames, 0), height = trace_size(frames, 1), width = trace_size(frames, 2);
    trace_tensor *x = trace_reshape(frames, TRACE_DIMS(n, 1, height, width));
    static const int64_t same[2] = {1, 1};
    x = trace_mul_f(trace_conv2d(x, w, TRACE_NONE, NULL, same, NULL, 1), gain);
    return trace_mean(trace_reshape(x, TRACE_DIMS(n, height * width)), TRACE_DIMS(1), false);
}

static void run(trace_region *r, const char *what, int64_t n, int64_t height, int64_t width, int64_t stride, int set,
                double gain) {
    trace_tensor *w = trace_from(ctx, TRACE_F32, taps[set], TRACE_DIMS(1, 1, 3, 3)), *y = NULL;
    const int64_t dims[] = {n, height, width}, strides[] = {height * stride, stride, 1};
    trace_tensor *frames = trace_wrap_desc(
        ctx, TRACE_TENSOR_DESC(.dtype = TRACE_F32, .rank = 3, .dims = dims, .strides = strides, .data = pixels));
    fprintf(stderr, "%s\n", what);
    if (trace_begin(r, TRACE_ARGS(frames)))
        y = model(frames, w, gain);
    must(trace_end(r, &y, 1));
    trace_release(frames);
    trace_release(w);
    trace_release(y);
}

static void host(trace_region *r) {
    run(r, "first", 2, 8, 10, 16, 0, 1);
    run(r, "another scalar", 2, 8, 10, 16, 0, 0.5);
    run(r, "another weight", 2, 8, 10, 16, 1, 0.5);
    run(r, "another stride", 2, 8, 10, 24, 1, 0.5);
    run(r, "another batch", 3, 8, 10, 24, 1, 0.5);
    run(r, "another batch again", 4, 8, 10, 24, 1, 0.5);
    run(r, "another frame size", 3, 9, 14, 24, 1, 0.5);
    run(r, "another frame size again", 5, 6, 20, 32, 0, 0.25);
    run(r, "another frame size again", 1, 12, 7, 12, 0, 0.25);
}
/* --- */

int main(void) {
    trace_region *r = open_region("host");
    for (int i = 0; i < 32 * 64; i++)
        pixels[i] = (float)(i % 23) / 23;
    host(r);
    report(r, "host");
    return 0;
}
