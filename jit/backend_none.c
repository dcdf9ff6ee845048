// jit/backend_none.c: the compiler that is not there: a build with LLVM=no runs everything in the interpreter.
#include "../trace/backend.h"

static tj_status none_create(trace_context *ctx, void **state) {
    (void)ctx;
    *state = NULL;
    return tj_fail(TRACE_ERR_UNAVAILABLE, "this build has no compiler (LLVM=no); programs run in the interpreter");
}

const struct tj_backend tj_backend_cpu = {.name = "none", .create = none_create};
