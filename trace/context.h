// trace/context.h: context, region and run: what the public objects hold.
#ifndef TJ_TRACE_CONTEXT_H
#define TJ_TRACE_CONTEXT_H
#include "../lib/cpu.h"
#include "../lib/log.h"
#include "../lib/threads.h"
#include "backend.h"
#include "budget.h"

// clang-format off
#define TJ_STATS(X) \
    X(runs) X(records) X(replays) X(hits) X(misses) X(graphs) X(kernels) X(recompiles) X(breaks) X(evictions) \
    X(errors) X(nested) X(launches) X(interpreted_ops) X(eager_ops) X(ops_recorded) X(record_ns) X(schedule_ns) \
    X(emit_ns) X(codegen_ns) X(run_ns) X(worst_run_ns) X(bytes_live) X(bytes_moved) X(bytes_code) X(bytes_packed) \
    X(fused_away) X(padding_bytes) X(checks) X(check_failures) X(bucket_bytes) \
    X(bytes_kept) X(bytes_idle) X(packed_copies) X(packed_dropped) X(packed_refused) X(bytes_trimmed) \
    X(plans) X(recordings) X(break_records) X(break_places)
// clang-format on
struct tj_counters {
#define X(f) _Atomic uint64_t f;
    TJ_STATS(X)
#undef X
};
#define TJ_COUNT_UP(c, f, n) atomic_fetch_add_explicit(&(c)->f, (n), memory_order_relaxed)

struct trace_context {
    atomic_int refs;           // user handle, regions, tensors, storages
    trace_context_options opt; // as given, defaults filled
    struct tj_env env;
    struct tj_cpu cpu;
    struct tj_pool *pool;
    tj_mutex lock;                // guards the lists below; never held while compiling or running
    struct trace_tensor *tensors; // live handles, for the leak report
    uint64_t tensor_ids;          // given so far
    struct trace_region *regions; // live regions, for reports
    struct trace_region *eager;   // hidden region of single-op runs
    const struct tj_backend *backend;
    void *backend_state;   // NULL when the compiler is unavailable
    char backend_why[256]; // why it is unavailable
    atomic_bool fallback_reported;
    atomic_bool pool_reported;
    atomic_bool threadless;          // no thread could be started to compile on, when it was tried last
    _Atomic uint32_t threadless_for; // graphs that should have been compiled since
    atomic_bool shut;
    struct tj_counters count;
    struct tj_budget budget;
    char describe[256];
    _Atomic(struct tj_background *) background; // compiles off the calling thread (trace/background.c); NULL until one
    _Atomic uint64_t compile_op_ns;             // time a compile took an op, lately; 0: none yet
    _Atomic(struct tj_timeline *) timeline;     // made at its first start (trace/timeline.c)
    atomic_bool timeline_on;                    // it is being written
    _Atomic(struct tj_ceiling *) ceiling;       // what the machine can do; NULL until a report asks for it
    struct tj_buffer_cache *buffers;            // released tensor memory and handles, reused (trace/tensor.c)
    uint32_t lists_process;                     // in which the lists were changed last. Under the lock
};
// Takes ctx->lock to change the lists. In a child of fork they are made whole first: a thread of the parent may have
// been in the middle of a change. Who only walks them takes the lock itself.
void tj_context_lock(trace_context *ctx);
// Memory of tensors and workspaces through the host's allocator; counted in bytes_live; NULL + error on failure.
void *tj_buffer_alloc(trace_context *ctx, size_t bytes);
// The same for what can be done without: NULL, and no error, where it doesn't fit.
void *tj_buffer_try(trace_context *ctx, size_t bytes);
void tj_buffer_free(trace_context *ctx, void *p, size_t bytes);
void tj_buffer_release(trace_context *ctx, void *p, size_t bytes); // for good: not kept for the next one
void tj_context_retain(trace_context *ctx);
static inline bool tj_timeline_on(const trace_context *ctx) {
    return atomic_load_explicit(&ctx->timeline_on, memory_order_relaxed);
}
// Sends an event: counters, log line, callback. where may be {NULL,0}.
void tj_event(trace_context *ctx, const struct trace_region *r, enum trace_event_kind kind, struct tj_loc where,
              int input, int dim, int64_t from, int64_t to, double ms, const char *fmt, ...) TJ_PRINTF(10, 11);

// ---- runs: one pass of a thread through a region ------------------------------------------------------------------

enum tj_value_state { TJ_V_PENDING, TJ_V_STORED /* result kept in a tensor */, TJ_V_DEAD /* rolled back */ };
struct tj_value {
    uint8_t state;    // enum tj_value_state
    bool ended;       // host released it: not stored at a break
    bool packed : 1;  // its strides are known to be row-major (recorder)
    bool alias : 1;   // a COPY that only gives a repeated op a handle of its own (recorder)
    bool looped : 1;  // changed with the turns of a loop that is over
    bool listed : 1;  // leaf that is among the run's written ones (recorder)
    bool rebased : 1; // leaf whose memory is part of another leaf's: latest is its view of that one (recorder)
    uint32_t count;   // host references
    struct trace_tensor *tensor; // STORED: holds a reference
    tj_ref root;   // memory this value aliases: a LEAF or a computed value; itself when it owns its content
    tj_ref latest; // of a root: the value with its current content (UPDATE), itself when never written
};
#define TJ_LOOPS 8    // loops open inside each other at most
struct tj_open_loop { // between trace_repeat and trace_repeat_end
    struct tj_loc loc;
    tj_ref mark;  // nodes before it; its REPEAT_INs follow
    tj_ref times; // SCALAR
    uint32_t n;   // carried values
    uint32_t nscopes;
};
struct tj_run {
    struct trace_region *region; // outermost
    trace_context *ctx;
    uint64_t generation;   // in every handle of this run
    uint32_t process;      // in which it was opened: in a child of fork it is another's
    struct tj_trace trace; // everything recorded in this run
    struct tj_value *values;
    uint32_t capvalues;       // one a node
    struct tj_record *rec;    // the recorder's tables (trace/record.c): interned nodes, leaves
    tj_ref fresh_from;        // nodes before it are not merged with; trace/region.c sets it to nnodes at a break
    bool written;             // some memory was written: handles resolve to the current content
    bool broke;               // a break has run part of the trace
    bool eager;               // TRACE_MODE_EAGER scope: ops run at once
    const char *host_call;    // first call of the run that reads or writes on the host's side, or NULL
    struct tj_loc host_at;    // where it was
    bool compile_only;        // a placeholder is among the inputs
    tj_status failed;         // first error; later ops return NULL
    char error[TJ_ERROR_MAX]; // its text
    uint64_t failures;        // tj_failures when it began: later ones are the run's own
    struct tj_loc begin;
    uint64_t begin_ns;
    struct tj_open_loop loops[TJ_LOOPS]; // open loops, outermost first (trace/repeat.c)
    uint32_t nloops;
    bool loose;            // holds a loop outside regions
    struct tj_run *outer;  // innermost one when it was opened, and again when it has ended; NULL: none
    struct tj_run *around; // single-op run: the eager scope it belongs to, or NULL
    struct tj_scope *scopes;
    uint32_t nscopes, capscopes; // open begins, outermost first (trace/region.c)
    struct tj_run *next;         // free list of the region
    void *extra;                 // trace/region.c's own per-run state
};
// The calling thread's innermost open run, or NULL. While plans and callbacks of the host run it's NULL, so that what
// those begin is a run of its own, and the run is in tj_executing.
extern _Thread_local struct tj_run *tj_current;
extern _Thread_local struct tj_run *tj_executing;
// A thread has one open run a context at most, and those of several contexts lie inside each other. find: that of ctx.
// of: the one that a handle belongs to, NULL: none; of a value that belongs to none, the innermost.
struct tj_run *tj_run_find(const trace_context *ctx);
struct tj_run *tj_run_of_other(const trace_tensor *t);
static inline struct tj_run *tj_run_of(const trace_tensor *t) {
    struct tj_run *run = tj_current;
    if (!run || !t)
        return run;
    bool own = tj_is_value(t) ? (uint64_t)(uintptr_t)t >> 25 == run->generation : t->ctx == run->ctx;
    return TJ_LIKELY(own) ? run : tj_run_of_other(t);
}
// Work of another context begins inside run (NULL: none), which replays would miss.
void tj_run_foreign(struct tj_run *run, struct tj_loc loc);
// A call about t is made with its run as the current one; then that returned is made the current one again.
struct tj_run *tj_run_go(const trace_tensor *t, struct tj_loc loc);
static inline struct tj_run *tj_run_switch(struct tj_run *to) {
    struct tj_run *back = tj_current;
    tj_current = to;
    return back;
}
// The thread's last failure was one of ctx: when that isn't the context of the open run, a NULL that comes of it is no
// error of that run.
void tj_failed_in(const trace_context *ctx);
bool tj_failed_elsewhere(void); // whether it was such a failure
void tj_run_abandon_all(void);  // ends whatever runs are open

// ---- calls out to the host (trace/callout.c) ----------------------------------------------------------------------
// An event, its parallel_for, its allocator, the end of wrapped memory: enter before the call, leave after it. In
// between the thread has no open run, and its errors, errno and unended runs are the callback's own.
struct tj_callout {
    struct tj_run *current, *executing;
    uint32_t depth;
    int saved_errno;
    struct tj_error error;
};
void tj_callout_enter(struct tj_callout *c);
void tj_callout_leave(const struct tj_callout *c);
// Whether callbacks were left by an exception or a longjmp: then the run they interrupted is the current one again.
// frame: of the caller of a public function.
bool tj_callout_recover(const void *frame);
bool tj_thread_inside(const trace_context *ctx); // this thread has a run of ctx open, or is in a callback of one

// A call of the host that has an effect of its own, or gives a value: a run that skips the body would miss it.
static inline void tj_host_effect(const char *call, struct tj_loc loc) {
    if (tj_current && !tj_current->host_call) {
        tj_current->host_call = call;
        tj_current->host_at = loc;
    }
}

// Handles of recorded values: bit 0 = 1, bits 1..24 node index + 1, bits 25..63 generation. Never all ones.
static inline trace_tensor *tj_handle(const struct tj_run *r, tj_ref n) {
    return (trace_tensor *)(uintptr_t)(1u | (uint64_t)(n + 1) << 1 | r->generation << 25);
}
#define TJ_MAX_NODES ((1u << 24) - 4)

// Fails the current run (keeps the first error) or, outside one, just the calling thread. The text names op and place:
// "<op> (<file>:<line>): <message>". Returns st.
tj_status tj_op_fail(tj_status st, const char *op, struct tj_loc loc, const char *fmt, ...) TJ_PRINTF(4, 5);

// ---- between record (trace/record*.c) and region (trace/region*.c) ------------------------------------------------

// The node a handle stands for in the current run, resolved to the current content of its memory; a real tensor becomes
// (or is found as) a leaf. TJ_NIL with the error set when the handle is NULL, stale, of another context, or failed.
tj_ref tj_resolve(struct tj_run *run, trace_tensor *t, const char *op, struct tj_loc loc);
tj_ref tj_leaf_of(struct tj_run *run, struct trace_tensor *t, uint32_t input); // input: declared index + 1 or 0
// Memory roots written so far whose root is a leaf: fills refs of their latest UPDATE (at most cap), returns how many.
uint32_t tj_run_writes(struct tj_run *run, tj_ref *out, uint32_t cap);
// Where a recorded value lies when it is a view of memory from outside (a leaf itself included): tensor is the leaf's,
// offset and strides in elements of its storage. False when the value is computed. The content there is the value's
// once the writes of the run have been executed.
struct tj_place {
    struct trace_tensor *tensor; // of the leaf: holds storage and dtype
    struct trace_tensor *source; // the handle it was captured from when the value is that whole tensor, else NULL
    size_t rank;
    int64_t offset, dims[TJ_MAX_RANK], strides[TJ_MAX_RANK];
};
bool tj_value_view(struct tj_run *run, tj_ref n, struct tj_place *v);
// A failed inner scope: nodes from nnodes on are dead, writes among them undone.
void tj_run_rollback(struct tj_run *run, uint32_t nnodes);
// Starts recording a single op outside a region: a temporary run on ctx->eager; tj_eager_end executes it and returns
// the owned tensor of `result` (or, for in-place ops, target itself); both are called by the recorder around each op.
struct tj_run *tj_eager_begin(trace_context *ctx, const char *op, struct tj_loc loc);
trace_tensor *tj_eager_end(struct tj_run *run, trace_tensor *result, trace_tensor *inplace_target);
// In trace/record*.c. reset: forgets what an earlier run left in trace, values and intern table, keeps the memory;
// called with the new generation set. drop: gives back what the run holds (leaf tensors, stored values). free: frees
// the arrays.
void tj_run_reset(struct tj_run *run);
void tj_run_drop(struct tj_run *run);
void tj_run_free(struct tj_run *run);
// The same for several results at once; out: NULL on failure.
tj_status tj_eager_end_all(struct tj_run *run, const tj_ref *results, size_t n, trace_tensor **out);
// In trace/break.c. Before the host replaces the content of t in place while a run is open: when recorded ops that have
// not run yet read or write its memory, runs them (a graph break of kind "write"). TRACE_OK: t may be written now.
tj_status tj_break_for_write(struct tj_run *run, struct trace_tensor *t, struct tj_loc loc);
// In trace/eager.c. trace_retain and trace_release of a real tensor while an eager scope is open. What the scope holds
// for its end is the host's until then: a release without a retain before it is of that reference, which the scope
// gives up and the caller then drops.
void tj_eager_retained(struct tj_run *run, const struct trace_tensor *t);
void tj_eager_released(struct tj_run *run, const struct trace_tensor *t);
// Drops the run of an op that will never end; returns the run around it, or NULL.
struct tj_run *tj_eager_abandon(struct tj_run *run);
// In trace/context.c: drops a reference that the library itself took with tj_context_retain.
void tj_context_release(trace_context *ctx);
// In trace/tensor.c: frees released buffers and handles kept for reuse; ctx->buffers may be NULL. trim: while the
// context is in use; all, or what is beyond the slack and what is live now; gives the bytes. kept: of such buffers.
void tj_buffers_free(trace_context *ctx);
size_t tj_buffers_trim(trace_context *ctx, bool all);
size_t tj_buffers_kept(trace_context *ctx);
// In trace/trim.c: drops what the backend holds and no run uses now (enum tj_idle_kind), and tells the bytes of it.
size_t tj_idle_drop(trace_context *ctx, int kind);
size_t tj_idle_bytes(trace_context *ctx);
// In trace/region.c: tj_current, tj_op_fail.
#endif
