// trace/backend.h: what the trace layer asks of a compiler and of the interpreter. jit/ implements it; trace/ never
// includes jit/.
#ifndef TJ_TRACE_BACKEND_H
#define TJ_TRACE_BACKEND_H
#include "tensor.h"

// Which extents of a segment are symbols rather than constants, so that its plan serves other sizes.
struct tj_dynamic {
    uint8_t *leaf; // one a leaf: bit d = extent of dim d
    uint8_t *arg;  // one a node: bit d = extent d of its result is an argument of the op, and varies
    bool args;     // arguments whose value is that of a symbol may vary, too, though nobody has seen it
};
// Why a symbolic plan doesn't serve a trace: an extent it has fixed, or two it needs to be equal.
struct tj_guard_miss {
    tj_ref node; // of both traces, whose extent or demand it is
    int dim;     // its dim; -1: extents that the op needs to be equal
    int64_t want, have;
    char text[120];  // the plan's expression: "x0.1*4"
    char other[120]; // of extents that the op needs to be equal: the other's
};
// Size that a run is prepared for where its extent of a leaf's dim is smaller.
struct tj_capacity {
    uint32_t leaf, dim;
    int64_t size;
};
// A stretch of recorded ops to run as a whole. `outs` are values to store into fresh contiguous tensors. `writes` are
// the last UPDATE of every written memory whose root is a leaf: their effect on the leaf's memory is the result. Order
// contract: a kernel that reads a leaf's old content runs before the one that overwrites it.
struct tj_segment {
    const struct tj_trace *trace;
    const tj_ref *outs;
    uint32_t nouts;
    const tj_ref *writes;
    uint32_t nwrites;
    const char *name;             // region name, for dumps and kernel names
    int threads;                  // at most this many; 0: the pool's
    uint8_t math;                 // enum trace_math
    uint8_t precision;            // enum trace_precision
    bool symbolic;                // a plan with symbolic extents may serve it
    const struct tj_dynamic *dyn; // to compile: the symbols; NULL: every extent is a constant of the plan
    const struct tj_capacity *caps;
    uint32_t ncaps;
};
// First data error of a run. Kernels set it with one compare-exchange on `set`.
struct tj_data_error {
    _Atomic uint32_t set;  // 0, 1 claimed, 2 filled
    tj_ref node;           // node of the segment's trace
    int32_t kind;          // TJ_DATA_*
    int64_t index, extent; // offending value, and the extent it had to be under (0 for division)
};
enum { TJ_DATA_INDEX, TJ_DATA_DIVISION, TJ_DATA_POWER };
struct tj_run_args {
    trace_context *ctx;
    const struct tj_trace *trace;     // of this run: extents that are arguments of ops
    const struct tj_inlined *inlined; // where the nodes of a loop's body are in it (repeat.h); NULL: no body
    const struct tj_leaf *leaves;     // as in the segment's trace, tensors of this run
    const struct tj_param *params;
    struct trace_tensor *const *outs; // fresh contiguous tensors, one an out
    struct tj_data_error *err;
    uint64_t *launches, *bytes_moved, *interpreted; // run statistics, added to
    uint64_t *padding,
        *bucketed;             // of workspaces with capacities: bytes beyond the run's sizes, and in all. May be NULL
    const atomic_bool *cancel; // looked at between steps; true: the run ends with TRACE_ERR_SHUTDOWN. May be NULL
    const struct tj_watch *watch; // NULL in a steady run
};
// Looked at by run when a region is profiled or a timeline is written: `step` is called after every step with its
// times (tj_now_ns); measure: the plan keeps them for its report.
struct tj_watch {
    bool measure;
    void (*step)(void *arg, const char *kernel, tj_ref node, uint64_t from_ns, uint64_t to_ns); // may be NULL
    void *arg;
};
struct tj_bound_plan; // a plan, a workspace and the addresses of certain tensors
struct tj_bind {
    void *memory;  // workspace, TJ_ALIGN-aligned; NULL: the context's memory
    size_t bytes;  // of it
    bool use_pool; // runs may use the context's threads
    size_t need;   // out: bytes of workspace, set also when `bytes` is too small
    bool *packed;  // out, one a leaf: runs read a packed copy of it
};
struct tj_plan; // compiled segment: immutable, counted, runs on any number of threads at once
struct tj_plan_info {
    uint32_t ops, kernels, new_kernels, fused_away;
    uint64_t bytes_code, bytes_workspace, bytes_moved; // moved: a run's reads and writes, from shapes
    uint64_t schedule_ns, emit_ns, codegen_ns;
};
// Why a value of a plan has memory of its own instead of being computed where it is used.
enum tj_kept {
    TJ_KEPT_NONE,
    TJ_KEPT_OUTPUT,      // a result of the segment
    TJ_KEPT_WRITTEN,     // an in-place op writes it
    TJ_KEPT_OPERAND,     // a contraction, or rows put in place, read it from memory
    TJ_KEPT_TILE,        // a contraction's result whose rows the fused kernel takes while they are in cache
    TJ_KEPT_CONTRACTION, // a contraction's result that the user can't take over row by row
    TJ_KEPT_USERS,       // has a second user, and costs more to compute again than to store
    TJ_KEPT_ORDER,       // what it reads is overwritten before its user runs
    TJ_KEPT_SIZE,        // its user's kernel would get too large
    TJ_KEPT_COST,        // each element is wanted many times by its user
    TJ_KEPT_ROWS,        // a reduction over other rows than its user's kernel has
    TJ_KEPT_INDEX,       // its user's index order can't be expressed in its own
    TJ_KEPT_PLACES,      // dear, and its user wants it at two different places
    TJ_KEPT_KIND,        // an op that no kernel computes on the way
    TJ_KEPT_OFF,         // fusion is switched off
    TJ_KEPT_WHYS
};
const char *tj_kept_word(unsigned why); // "second user" (trace/explain.c)
const char *tj_kept_text(unsigned why); // a sentence about it
struct tj_kernel_report {               // one step of a plan
    const char *kind, *name;            // literal; as in the schedule
    tj_ref node;                        // trace node of its result
    const tj_ref *ops;                  // trace nodes computed in it, ascending
    uint32_t nops;
    bool f64;                                   // it computes in f64
    uint64_t bytes_read, bytes_written, flops;  // of a run over the recorded shapes; flops are estimated
    uint64_t packed;                            // bytes of a repacked copy of its weight; 0: it has none
    uint64_t runs, total_ns;                    // of watched runs
    uint64_t best_ns, timed_bytes, timed_flops; // the best of those that moved most, and what they did
};
struct tj_kept_report { // one value with memory of its own
    tj_ref node, user;  // user: the op that wanted it there, or TJ_NIL
    uint8_t why;        // enum tj_kept
    int32_t out;        // number of the output it is, or -1
    uint64_t bytes;
};
struct tj_plan_report { // in the arena given, names and ops in the plan
    struct tj_kernel_report *kernels;
    uint32_t nkernels;
    struct tj_kept_report *kept;
    uint32_t nkept;
};
struct tj_arena;
struct tj_backend {
    const char *name;
    // State of one context; TRACE_ERR_UNAVAILABLE when the compiler is missing (programs then run in the interpreter).
    tj_status (*create)(trace_context *ctx, void **state);
    void (*destroy)(void *state);
    tj_status (*compile)(void *state, const struct tj_segment *seg, struct tj_plan **plan, struct tj_plan_info *info);
    // All allocations happen before the first launch; a failure of those leaves leaves untouched.
    tj_status (*run)(struct tj_plan *plan, const struct tj_run_args *args);
    // Symbolic plans: whether the plan serves a trace alike (tj_trace_alike) to the one it was made from. why: the
    // first guard that doesn't hold; NULL: nobody asks.
    bool (*serves)(const struct tj_plan *plan, const struct tj_trace *trace, struct tj_guard_miss *why);
    void (*release)(struct tj_plan *plan);
    // Resolves a run over these arguments (no outs; args->err has to stay) for good. run: nothing but kernels; reads
    // none of the tensors' handles. bind NULL: the backend has none.
    tj_status (*bind)(struct tj_plan *plan, const struct tj_run_args *args, struct tj_bind *o,
                      struct tj_bound_plan **b);
    void (*bound_run)(struct tj_bound_plan *b);
    void (*bound_release)(struct tj_bound_plan *b);
    void (*packed_free)(struct tj_storage *st);
    // Drops what no run uses now and can be made again: enum tj_idle_kind; bytes given back to the system. NULL: there
    // is nothing of the kind. idle: bytes of workspaces that no run uses now.
    size_t (*drop_idle)(void *state, int kind);
    size_t (*idle)(void *state);
    void (*describe)(const struct tj_plan *plan,
                     struct tj_strbuf *sb); // schedule as text: kernels, their ops and host lines
    // What a plan's kernels are, move and took; NULL: the backend can't tell.
    tj_status (*report)(const struct tj_plan *plan, struct tj_arena *a, struct tj_plan_report *out);
    // The expression that an extent of a node's result has in a symbolic plan: "x0.1*4" (x0.1: dim 1 of leaf 0).
    // False: it's a constant. NULL: all are.
    bool (*extent)(const struct tj_plan *plan, tj_ref node, uint32_t dim, char *buf, size_t cap);
    // Assembly of a kernel, compiled again for it at the first call; valid as long as the plan. NULL: none.
    tj_status (*code)(struct tj_plan *plan, uint32_t kernel, const char **text);
    void (*compiler_name)(void *state, char *buf, size_t cap); // "LLVM 22.1.8, avx2", or why there is none
};
enum tj_idle_kind { TJ_IDLE_WORKSPACES, TJ_IDLE_PACKED, TJ_IDLE_CODE };
extern const struct tj_backend tj_backend_cpu; // jit/backend_cpu.c, or jit/backend_none.c

// The compiler-free tier: runs the segment op by op. Same contract as run.
tj_status tj_interp_run(const struct tj_segment *seg, const struct tj_run_args *args);
#endif
