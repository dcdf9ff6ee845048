/* tests/docs/symbols.c: what symbolic plans cover, and what they say. */
#include "pitfall.h"

static trace_region *r;

static void run(int64_t rows, int64_t cols, int64_t weight_rows, int64_t from) {
    trace_tensor *x = filled(rows, cols), *w = filled(weight_rows, cols), *y = NULL;
    trace_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    trace_region_stats(r, &before);
    if (trace_begin(r, TRACE_ARGS(x, w))) {
        y = trace_relu(trace_matmul(x, trace_transpose(w, 0, 1)));    /* [rows, weight_rows] */
        y = trace_cat(TRACE_ARGS(y, trace_narrow(y, 1, from, 2)), 1); /* [rows, weight_rows + 2] */
        y = trace_reshape(y, TRACE_DIMS(trace_size(y, 0) * trace_size(y, 1)));
    }
    must(trace_end(r, &y, 1));
    trace_region_stats(r, &after);
    fprintf(stderr, "x [%d, %d], w [%d, %d]: %s\n", (int)rows, (int)cols, (int)weight_rows, (int)cols,
            after.graphs > before.graphs ? "a new plan" : "has its plan");
    trace_release(x);
    trace_release(w);
    trace_release(y);
}

int main(void) {
    r = open_region("symbols");
    run(6, 16, 6, 1);  /* exact: 6, 16 and 6 are constants of the plan */
    run(6, 16, 6, 3);  /* the start of a narrow is a parameter */
    run(9, 16, 6, 1);  /* rows of x vary: a symbol. That they equalled those of w is no tie */
    run(25, 16, 6, 0); /* any size */
    run(1, 16, 6, 0);
    run(9, 16, 5, 0); /* rows of w vary, too */
    run(4, 16, 11, 0);
    run(4, 32, 11, 0); /* columns of both: one extent, since the product demands it */
    run(3, 7, 4, 1);
    return 0;
}
