// trace/callout.c: calls out to the host: events, parallel_for, allocators, the ends of wrapped memory.
//
// A callback may leave by an exception or a longjmp, past everything here. So what trace_abandon needs then is kept
// with the thread, not on its stack, and a callback that has been left is told by the stack: whoever abandons is called
// from further up than the callback was.
#include <errno.h>

#include "region.h"

#define KEPT 16 // callouts inside each other that are remembered; deeper ones can't be left but by returning

static _Thread_local struct {
    uint32_t depth;
    struct {
        uintptr_t frame; // of what called the host
        struct tj_run *run;
    } at[KEPT];
} out;

__attribute__((noinline)) void tj_callout_enter(struct tj_callout *c) {
    c->current = tj_current;
    c->executing = tj_executing;
    c->depth = out.depth;
    c->saved_errno = errno;
    tj_error_save(&c->error);
    if (tj_current)
        tj_executing = tj_current;
    if (out.depth < KEPT) {
        out.at[out.depth].frame = (uintptr_t)__builtin_frame_address(0);
        out.at[out.depth].run = tj_executing;
    }
    out.depth++;
    tj_current = NULL; // what the host calls isn't recorded
}

void tj_callout_leave(const struct tj_callout *c) {
    tj_run_abandon_all(); // begun in the callback, and never ended
    out.depth = c->depth;
    tj_current = c->current;
    tj_executing = c->executing;
    tj_error_restore(&c->error);
    errno = c->saved_errno;
}

bool tj_callout_recover(const void *frame) {
    bool left = false;
    // Stacks grow down: a frame below that of the callout is one of the callback's.
    while (out.depth && out.depth <= KEPT && (uintptr_t)frame > out.at[out.depth - 1].frame) {
        tj_run_abandon_all();
        tj_current = out.at[--out.depth].run;
        tj_executing = NULL;
        left = true;
    }
    if (left && out.depth) // that one is still under way
        tj_executing = out.at[out.depth - 1].run;
    return left;
}

static bool inside(struct tj_run *run, const trace_context *ctx) {
    struct tj_run *back = tj_run_switch(run);
    bool in = tj_run_find(ctx) != NULL;
    (void)tj_run_switch(back);
    return in;
}

bool tj_thread_inside(const trace_context *ctx) {
    bool in = inside(tj_current, ctx) || inside(tj_executing, ctx);
    for (uint32_t i = 0; !in && i < out.depth && i < KEPT; i++)
        in = inside(out.at[i].run, ctx);
    return in;
}
