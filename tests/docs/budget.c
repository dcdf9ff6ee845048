/* tests/docs/budget.c: what happens when a budget is used up. */
#include "pitfall.h"

static enum trace_status run(trace_region *r, int64_t rows, int64_t cols) {
    trace_tensor *x = filled(rows, cols), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x)))
        y = trace_softmax(x, -1);
    enum trace_status s = trace_end(r, &y, 1);
    trace_release(x);
    trace_release(y);
    return s;
}

static void try_shapes(trace_region *r, const char *name) {
    static const int64_t sizes[][2] = {{4, 8}, {4, 9}, {5, 10}, {4, 8}};
    for (int i = 0; i < 4; i++) {
        if (run(r, sizes[i][0], sizes[i][1]))
            fprintf(stderr, "%s: [%d, %d]: %s\n", name, (int)sizes[i][0], (int)sizes[i][1], trace_last_error(ctx));
    }
    report(r, name);
}

/* --- */
static void budgets(void) {
    const trace_region_options *exact = TRACE_REGION_OPTIONS(.dynamic = TRACE_DYNAMIC_OFF);
    trace_region *r = open_region_with("fails", exact);
    must(trace_region_budget(r, TRACE_BUDGET_COMPILES, 2, TRACE_BUDGET_FAIL));
    try_shapes(r, "fails");
    r = open_region_with("interprets", exact);
    must(trace_region_budget(r, TRACE_BUDGET_COMPILES, 2, TRACE_BUDGET_INTERPRET));
    try_shapes(r, "interprets");
    r = open_region_with("evicts", exact);
    must(trace_region_budget(r, TRACE_BUDGET_GRAPHS, 2, TRACE_BUDGET_EVICT));
    try_shapes(r, "evicts");
    r = open_region("widens");
    must(trace_region_budget(r, TRACE_BUDGET_COMPILES, 2, TRACE_BUDGET_WIDEN));
    try_shapes(r, "widens");
}
/* --- */

int main(void) {
    trace_region_release(open_region("none")); /* makes the context */
    budgets();
    return 0;
}
