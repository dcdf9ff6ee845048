/* tests/docs/list.c: the host reads each step's choice, and keeps all states in a list that grows. */
#include "pitfall.h"
enum { STEPS = 6, WIDTH = 16 };

/* --- */
static trace_tensor *decode(trace_tensor *state, trace_tensor *w, int64_t *tokens) {
    trace_tensor *all = state; /* [1, WIDTH], then [2, WIDTH], ... */
    for (int i = 0; i < STEPS; i++) {
        state = trace_tanh(trace_linear(trace_mean(all, TRACE_DIMS(0), true), w, TRACE_NONE));
        if (trace_item_i64(trace_argmax(state, 1, false), &tokens[i]))
            return NULL;
        all = trace_cat(TRACE_ARGS(all, state), 0);
    }
    return all;
}
/* --- */

int main(void) {
    trace_region *r = open_region("decode");
    trace_tensor *s = filled(1, WIDTH), *w = filled(WIDTH, WIDTH), *y = NULL;
    int64_t tokens[STEPS];
    if (trace_begin(r, TRACE_ARGS(s)))
        y = decode(s, w, tokens);
    must(trace_end(r, &y, 1));
    for (int i = 0; i < STEPS; i++)
        fprintf(stderr, "%lld ", (long long)tokens[i]);
    fprintf(stderr, "\n");
    report(r, "decode");
    return 0;
}
