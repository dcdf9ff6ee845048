// jit/backend_none.c: the compiler that is not there: a build with LLVM=no runs everything in the interpreter.
#include "../trace/backend.h"

static tj_status none_create(trace_context *ctx, void **state) {
    (void)ctx;
    *state = NULL;
    return tj_fail(TRACE_ERR_UNAVAILABLE, "this build has no compiler (LLVM=no); programs run in the interpreter");
}

// Entries without a plan serve by their symbols alone; there are no plans to ask.
static bool none_serves(const struct tj_plan *plan, const struct tj_trace *trace, struct tj_guard_miss *why) {
    (void)plan, (void)trace, (void)why;
    return false;
}

const struct tj_backend tj_backend_cpu = {.name = "none", .create = none_create, .serves = none_serves};
