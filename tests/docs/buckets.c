/* tests/docs/buckets.c: workspaces laid out for a bucket of sizes. */
#include "pitfall.h"

static void attend(trace_region *r, int64_t length) {
    trace_tensor *x = filled(length, 16), *y = NULL;
    if (trace_begin(r, TRACE_ARGS(x))) {
        trace_tensor *scores = trace_softmax(trace_matmul(trace_relu(x), trace_transpose(trace_tanh(x), 0, 1)), -1);
        y = trace_matmul(scores, trace_exp(x));
    }
    must(trace_end(r, &y, 1));
    trace_release(x);
    trace_release(y);
}

/* --- */
static void lengths_in_buckets(void) {
    trace_region *r = open_region("attend");
    must(trace_region_buckets(r, 0, 0, TRACE_BUCKETS_LIST, (const int64_t[]){32, 128}, 2));
    static const int64_t lengths[] = {20, 31, 7, 100, 128, 90, 12};
    for (int i = 0; i < 7; i++)
        attend(r, lengths[i]);
    trace_stats s = {.size = sizeof s};
    trace_region_stats(r, &s);
    fprintf(stderr, "%d plans, %s than half of the workspace is padding\n", (int)s.graphs,
            2 * s.padding_bytes > s.bucket_bytes ? "more" : "less");
    trace_region_release(r);
}
/* --- */

int main(void) {
    lengths_in_buckets();
    return 0;
}
