// trace/repeat.h: counted loops: how a trace holds them, and their bodies as segments.
//
// A loop is recorded in line: a REPEAT_IN for every carried value, then the ops of the body, then a REPEAT_OUT for
// every carried value. The operands of each REPEAT_OUT are the number of turns (SCALAR i64), all REPEAT_INs of the
// loop, and all next values; the first REPEAT_IN names the loop. What depends on a REPEAT_IN of the loop changes with
// the turns and is used by nothing behind the loop but its REPEAT_OUTs; all else that was recorded in the body is the
// same in every turn, and is computed once, outside.
#ifndef TJ_TRACE_REPEAT_H
#define TJ_TRACE_REPEAT_H
#include "backend.h"

struct tj_run;

#define TJ_LOOP_CARRIED 64 // values a loop carries at most

// A REPEAT_OUT's operands.
static inline uint32_t tj_loop_carried(const struct tj_node *out) { return (out->nin - 1) / 2; }
static inline tj_ref tj_loop_times(const struct tj_trace *t, const struct tj_node *out) {
    return tj_node_in(t, out)[0];
}
static inline const tj_ref *tj_loop_ins(const struct tj_trace *t, const struct tj_node *out) {
    return tj_node_in(t, out) + 1;
}
static inline const tj_ref *tj_loop_next(const struct tj_trace *t, const struct tj_node *out) {
    return tj_node_in(t, out) + 1 + tj_loop_carried(out);
}

enum tj_body_kind {
    TJ_BODY_CARRIED, // index: slot
    TJ_BODY_LEAF,    // index: leaf of the outer trace
    TJ_BODY_VALUE,   // index: node of the outer trace, computed before the loop
};
struct tj_body_leaf {
    enum tj_body_kind kind;
    uint32_t index;
    tj_ref node; // of the outer trace
};
// The body of a loop as a segment of its own: one turn. Its outs are the next values in order of the slots; parameters
// have the numbers that they have in the outer trace.
struct tj_body {
    struct tj_trace trace;
    struct tj_segment seg;
    tj_ref *outs;
    struct tj_body_leaf *leaves; // one a leaf of trace
    tj_ref *origin;              // node of trace -> node of the outer one
    uint32_t n, caporigin, capleaves;
    tj_ref *init;          // node of the outer trace, one a slot
    uint32_t *leafof;      // slot -> leaf of trace; UINT32_MAX: the body doesn't read it
    uint32_t times;        // parameter
    tj_ref out;            // the REPEAT_OUT it was taken at
    struct tj_dynamic dyn; // extents that are symbols of the body's plan, chosen by the one around it; leaf NULL: none
};
// Where the nodes of a body are in the trace that a run recorded: around: of the loop around it; NULL: that trace.
struct tj_inlined {
    const struct tj_body *body;
    const struct tj_inlined *around;
};
static inline tj_ref tj_inlined_node(const struct tj_inlined *in, tj_ref n) {
    for (; in; in = in->around)
        n = in->body->origin[n];
    return n;
}
// Takes the body of the loop that REPEAT_OUT `out` of the segment's trace ends. Leaves have the outer trace's tensors
// where it has some.
tj_status tj_body_take(const struct tj_segment *seg, tj_ref out, struct tj_body **body);
void tj_body_free(struct tj_body *b); // NULL is fine

// Drops the loops above `n` open ones (a failed inner scope, the end of a run).
void tj_repeat_drop(struct tj_run *run, uint32_t n);
// Where a run's scope ends: fails the run when a loop begun in it is open. from: loops open when it began.
void tj_repeat_check(struct tj_run *run, uint32_t from, const char *call, struct tj_loc loc);
// Why nothing can be read back now; TRACE_OK: no loop is open.
tj_status tj_repeat_readback(struct tj_run *run, const char *call, struct tj_loc loc);
// The same of a write to memory that was there before the innermost open loop; root: its root.
bool tj_repeat_writable(struct tj_run *run, tj_ref root, const char *op, struct tj_loc loc);
// Ends the run that a loop outside regions is recorded in, if that is open on this thread.
void tj_repeat_abandon(void);
#endif
