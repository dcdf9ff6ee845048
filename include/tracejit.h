/* tracejit.h: record tensor operations, compile them into fused kernels at run time, run them.
 *
 *   trace_context *ctx;  trace_region *r;
 *   trace_context_create(NULL, &ctx);
 *   trace_region_create(ctx, "model", NULL, &r);
 *   trace_tensor *x = trace_wrap_const(ctx, TRACE_F32, data, TRACE_DIMS(8, 512)), *y = NULL;
 *   if (trace_begin(r, TRACE_ARGS(x))) y = trace_relu(trace_linear(x, w, b));
 *   if (trace_end(r, &y, 1)) puts(trace_last_error(ctx));
 *
 * Threads: a context, a region and a tensor may be used from any thread at any time. A region is begun and ended on one
 * thread; what is recorded between the two belongs to that thread.
 *
 * Handles: outside a region every op runs at once and returns a handle the caller owns (trace_release). Inside a region
 * an op returns a recorded value; it ends with the run and needs no release, and using it later is TRACE_ERR_DEAD.
 *
 * Errors: a function that returns a handle returns NULL on failure, and an op given NULL returns NULL, so that a chain
 * of ops carries the first error to trace_end, which returns its status. trace_last_error has the text. Nothing aborts.
 */
#ifndef TRACEJIT_H
#define TRACEJIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRACE_VERSION_MAJOR 0
#define TRACE_VERSION_MINOR 1
#define TRACE_VERSION_PATCH 0

#if defined(__GNUC__)
#define TRACE_API __attribute__((visibility("default")))
#define TRACE_MUST_CHECK __attribute__((warn_unused_result))
#else
#define TRACE_API
#define TRACE_MUST_CHECK
#endif
/* Where an op was called: the last two arguments of every _at function. Bindings pass their script's name and line, or
 * NULL, 0. The string is copied when it has to outlive the run. */
#define TRACE_HERE __FILE__, __LINE__

/* Device, caches, options. */
typedef struct trace_context trace_context;
/* A named stretch of host code: options, compiled plans, counters. */
typedef struct trace_region trace_region;
/* A plan with its workspace, pinned to certain tensors: no check, allocation, lock or system call in a run. */
typedef struct trace_bound trace_bound;
/* A counted handle to a tensor, or, inside a region, a recorded value. */
typedef struct trace_tensor trace_tensor;

/* Values never change; new ones are added at the end. */
enum trace_status {
    TRACE_OK = 0,
    TRACE_ERR_ARGUMENT,    /* an argument that no tensor would make right */
    TRACE_ERR_SHAPE,       /* shapes do not fit, a size overflows */
    TRACE_ERR_DTYPE,       /* dtype the op does not take */
    TRACE_ERR_MEMORY,      /* out of memory */
    TRACE_ERR_BREAK,       /* a value was read back in a fullgraph region */
    TRACE_ERR_STATE,       /* wrong order of calls: begin without end, value not there yet */
    TRACE_ERR_DEAD,        /* a recorded value used after its run, or after its release */
    TRACE_ERR_UNAVAILABLE, /* device or compiler missing */
    TRACE_ERR_COMPILE,     /* the compiler failed */
    TRACE_ERR_DEVICE,      /* data error inside a kernel: index out of range, integer division by zero */
    TRACE_ERR_BUDGET,      /* a limit of the options was reached */
    TRACE_ERR_BUSY,        /* in use, or not ready yet */
    TRACE_ERR_TIMEOUT,
    TRACE_ERR_SHUTDOWN /* the context was shut down */
};
enum trace_dtype { TRACE_BOOL, TRACE_U8, TRACE_I32, TRACE_I64, TRACE_F16, TRACE_BF16, TRACE_F32, TRACE_F64 };
enum trace_device { TRACE_DEVICE_CPU, TRACE_DEVICE_CUDA, TRACE_DEVICE_AUTO };
/* RECORD: the body runs each time and is recorded anew. REPLAY: the body is skipped once two runs over inputs alike
 * have recorded the same (an input that was the same tensor in both, which the body may have captured as well, has to
 * be that tensor until a run over another one has recorded the same). EAGER: ops run at once, the region only ends
 * their lifetime. */
enum trace_mode { TRACE_MODE_RECORD, TRACE_MODE_REPLAY, TRACE_MODE_EAGER };
/* Which extents of plans are symbols, so that one plan serves many shapes. AUTO: the first plan is exact; an extent of
 * an input, or an argument of an op that gives one, that is seen with a second value is a symbol from then on. OFF: a
 * plan for each combination of shapes. ON: all extents of the declared inputs from the first plan on. Results have the
 * same bits in each. */
enum trace_dynamic { TRACE_DYNAMIC_AUTO, TRACE_DYNAMIC_OFF, TRACE_DYNAMIC_ON };
/* FAST allows contraction across ops and folding that changes rounding; what it allows need not be done, and this
 * version does none of it. */
enum trace_math { TRACE_MATH_STRICT, TRACE_MATH_FAST };
/* What a run of a background region does while its plan is being compiled. AUTO: runs in the interpreter when that is
 * estimated to take less than the compile, else waits. FAIL: TRACE_ERR_BUSY at once. */
enum trace_policy { TRACE_POLICY_AUTO, TRACE_POLICY_WAIT, TRACE_POLICY_INTERPRET, TRACE_POLICY_FAIL };
/* Least precision of matmul operands that is asked for. This version always computes f32 products in f32. */
enum trace_precision { TRACE_PRECISION_F32, TRACE_PRECISION_TF32, TRACE_PRECISION_BF16, TRACE_PRECISION_F16 };
/* Flags of trace_tensor_desc. READONLY: writing is an error. STABLE: the host changes the memory only with
 * trace_modified, so weights may be repacked. PLACEHOLDER: no data; a run over one compiles and runs nothing. */
enum trace_wrap { TRACE_WRAP_READONLY = 1, TRACE_WRAP_STABLE = 2, TRACE_WRAP_PLACEHOLDER = 4 };
enum trace_event_kind {
    TRACE_EVENT_COMPILE,
    TRACE_EVENT_RECOMPILE,
    TRACE_EVENT_BREAK,
    TRACE_EVENT_EVICT,
    TRACE_EVENT_FALLBACK,
    TRACE_EVENT_LINT,
    TRACE_EVENT_REPLAY, /* runs of a REPLAY region can't be skipped, or one that was skipped was stale */
    TRACE_EVENT_CHECK,  /* a checked run differs from the interpreter; where: the op that is wrong */
    TRACE_EVENT_BUDGET  /* a budget is used up, or nearly; from, to: used, allowed */
};
enum trace_buckets { TRACE_BUCKETS_POWERS, TRACE_BUCKETS_LIST, TRACE_BUCKETS_LEARNED };
/* What a budget limits. CODE_BYTES and GRAPHS: of the plans kept; the others: since it was created. */
enum trace_budget {
    TRACE_BUDGET_COMPILES,
    TRACE_BUDGET_COMPILE_MS,
    TRACE_BUDGET_CODE_BYTES,
    TRACE_BUDGET_GRAPHS,
    TRACE_BUDGET_KERNELS
};
/* What happens when a budget is used up. WIDEN: the last plan that fits gets symbols for all extents of the inputs;
 * after that cold plans are dropped where that helps, else the run fails. EVICT: cold plans are dropped. INTERPRET:
 * runs without a plan go through the interpreter. FAIL: they end with TRACE_ERR_BUDGET. */
enum trace_budget_policy { TRACE_BUDGET_WIDEN, TRACE_BUDGET_EVICT, TRACE_BUDGET_INTERPRET, TRACE_BUDGET_FAIL };
enum trace_format { TRACE_FORMAT_TEXT, TRACE_FORMAT_JSON, TRACE_FORMAT_PROMETHEUS, TRACE_FORMAT_HTML };
enum { TRACE_GELU_NONE, TRACE_GELU_TANH };
enum { TRACE_PAD_CONSTANT, TRACE_PAD_REFLECT, TRACE_PAD_REPLICATE };
enum { TRACE_REDUCTION_NONE, TRACE_REDUCTION_MEAN, TRACE_REDUCTION_SUM };

/* An optional tensor argument that is absent. NULL is never "absent": it is an earlier error. */
#ifdef __cplusplus
#define TRACE_NONE (reinterpret_cast<trace_tensor *>(static_cast<intptr_t>(-1)))
#else
#define TRACE_NONE ((trace_tensor *)(intptr_t)-1)
#endif
/* As the dim of argmax, argmin, squeeze: over all dims. */
#define TRACE_ALL_DIMS INT64_MIN
/* Largest rank of a tensor. */
#define TRACE_MAX_RANK 8
#ifndef __cplusplus
/* (pointer, count) pairs: trace_sum(x, TRACE_DIMS(-1), true), trace_begin(r, TRACE_ARGS(x, pos)). */
#define TRACE_DIMS(...) ((const int64_t[]){__VA_ARGS__}), (sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define TRACE_ARGS(...)                                                                                                \
    ((trace_tensor *const[]){__VA_ARGS__}), (sizeof((trace_tensor *const[]){__VA_ARGS__}) / sizeof(trace_tensor *))
#endif
/* The empty list: a 0-d shape, or "all dims" of a reduction. */
#ifdef __cplusplus
#define TRACE_SCALAR nullptr, static_cast<size_t>(0)
#else
#define TRACE_SCALAR NULL, (size_t)0
#endif

/* ---- options, events, statistics: sized structs; zero is the default -------------------------------------------- */

/* What happened, on the thread that caused it, with no lock held. Strings live during the call. Callbacks (this one,
 * parallel_for, alloc, code_map and so on, `done`) may call the library: the thread has no open run in them, so what
 * they begin is their own, what they leave open is abandoned, and the status, text and errno of the call that they
 * interrupt stay as they are. They may release what the host holds. They may not throw or longjmp. */
typedef struct trace_event {
    size_t size;
    enum trace_event_kind kind;
    const char *region; /* name of the region, "" outside one */
    const char *where;  /* "file:line" of the host code concerned, "" when unknown */
    const char *what;   /* one sentence: what happened, why, what to write instead */
    int input, dim;     /* RECOMPILE: input (declared first, then captured) and dim that differ, or -1 */
    int64_t from, to;   /* RECOMPILE: the old and the new value of that extent or guard */
    double ms;          /* time it cost */
} trace_event;

typedef struct trace_context_options {
    size_t size; /* sizeof(trace_context_options); the macro below fills it */
    enum trace_device device;
    int device_index;
    int threads; /* threads a run may use, the caller's included; 0: processors this process may use */
    /* Runs body(arg, i) for every i < n, in any order, on any threads, and returns when all are done. NULL: own pool.
     */
    void (*parallel_for)(void *user, size_t n, void (*body)(void *arg, size_t i), void *arg);
    void *parallel_user;
    /* Memory of tensors and workspaces: aligned as asked, NULL on failure. Both or none. */
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *p, size_t bytes);
    void *alloc_user;
    void (*on_event)(void *user, const trace_event *e);
    void *event_user;
    void *stream;        /* CUDA: the CUstream to use */
    size_t memory_limit; /* bytes of tensors and workspaces; 0: none */
    size_t code_limit;   /* bytes of compiled code kept; 0: 256 MB */
    /* Memory of compiled code, all three or none, called from any thread. map: `bytes` (whole pages) of page-aligned
     * writable memory, NULL on failure; seal: makes it executable and no longer writable, 0 on success; unmap. */
    void *(*code_map)(void *user, size_t bytes);
    int (*code_seal)(void *user, void *p, size_t bytes);
    void (*code_unmap)(void *user, void *p, size_t bytes);
    void *code_user;
} trace_context_options;

typedef struct trace_region_options {
    size_t size;
    enum trace_mode mode;
    bool fullgraph;        /* a readback is an error instead of a graph break */
    bool background;       /* compile off the calling thread */
    bool nested_is_error;  /* begin inside another region is TRACE_ERR_STATE instead of an inlined scope */
    int dynamic;           /* enum trace_dynamic */
    int threads;           /* at most this many threads a run; 0: the context's */
    int math;              /* enum trace_math */
    int matmul_precision;  /* enum trace_precision */
    uint32_t max_graphs;   /* plans kept; 0: 64 */
    uint32_t replay_check; /* REPLAY: record every Nth run again and compare; 0: off */
    int background_policy; /* enum trace_policy: what a run does while its plan is compiled in the background */
    bool check;            /* every plan run also goes through the interpreter; a difference is TRACE_ERR_COMPILE */
} trace_region_options;

typedef struct trace_bind_options {
    size_t size;
    void *memory;        /* workspace of trace_region_workspace bytes, 64-aligned, the host's; NULL: the library's */
    size_t memory_bytes; /* of memory */
    bool use_pool;       /* bound runs may use the context's threads; default: the calling thread alone */
} trace_bind_options;

/* Counters since creation; each is read atomically, no consistency between them is promised. */
typedef struct trace_stats {
    size_t size;
    uint64_t runs;            /* trace_end calls that succeeded */
    uint64_t records;         /* bodies recorded */
    uint64_t replays;         /* bodies skipped */
    uint64_t hits, misses;    /* segments that found their plan; that did not */
    uint64_t graphs;          /* plans made */
    uint64_t kernels;         /* kernels compiled (equal kernels are shared and counted once) */
    uint64_t recompiles;      /* plans made after the first one of a region or segment */
    uint64_t breaks;          /* graph breaks */
    uint64_t evictions;       /* plans dropped by a limit */
    uint64_t errors;          /* failed runs */
    uint64_t nested;          /* regions inlined into another */
    uint64_t launches;        /* kernels run */
    uint64_t interpreted_ops; /* ops that ran in the interpreter */
    uint64_t eager_ops;       /* ops that ran outside a recording region */
    uint64_t ops_recorded;    /* ops recorded */
    uint64_t record_ns, schedule_ns, emit_ns, codegen_ns, run_ns, worst_run_ns;
    uint64_t bytes_live;  /* tensors and workspaces now */
    uint64_t bytes_moved; /* read and written by kernels, estimated from their shapes */
    uint64_t bytes_code, bytes_packed;
    uint64_t fused_away;     /* ops without a kernel of their own, over all plans made */
    uint64_t padding_bytes;  /* by which buckets rounded workspaces of runs up */
    uint64_t checks;         /* plan runs compared with the interpreter */
    uint64_t check_failures; /* of these, those that differed */
    uint64_t bucket_bytes;   /* workspace that runs with buckets used, padding included: padding_bytes of it in percent
                                is their waste */
    uint64_t bytes_kept;     /* released memory that is kept for the next tensors and workspaces; not in bytes_live */
    uint64_t bytes_idle;     /* of bytes_live: workspaces that no run uses now */
    uint64_t packed_copies;  /* repacked copies of weights now, of bytes_packed bytes */
    uint64_t packed_dropped; /* copies that made room for others of the same tensor */
    uint64_t packed_refused; /* operands that were used as they lie, as there was no room for a copy */
    uint64_t bytes_trimmed;  /* given back by trace_context_trim */
    uint64_t plans;          /* plans kept now */
    uint64_t recordings;     /* recordings of replay mode kept now */
    uint64_t break_records;  /* what is known of the ops before graph breaks: records kept now */
    uint64_t break_places;   /* places of graph breaks and unused conditions told apart */
} trace_stats;

typedef struct trace_tensor_desc {
    size_t size;
    enum trace_dtype dtype;
    const int64_t *dims, *strides; /* elements; strides NULL: row-major contiguous; strides may be 0, not negative */
    size_t rank;
    void *data;
    int flags;                /* enum trace_wrap */
    void (*done)(void *user); /* called once, on any thread, when the library no longer uses data; may be NULL */
    void *user;
} trace_tensor_desc;

#ifndef __cplusplus
#define TRACE_CONTEXT_OPTIONS(...) (&(const trace_context_options){.size = sizeof(trace_context_options), __VA_ARGS__})
#define TRACE_REGION_OPTIONS(...) (&(const trace_region_options){.size = sizeof(trace_region_options), __VA_ARGS__})
#define TRACE_BIND_OPTIONS(...) (&(const trace_bind_options){.size = sizeof(trace_bind_options), __VA_ARGS__})
#define TRACE_TENSOR_DESC(...) (&(const trace_tensor_desc){.size = sizeof(trace_tensor_desc), __VA_ARGS__})
#endif

/* ---- library and context ---------------------------------------------------------------------------------------- */

/* "0.1.0" of the library that is loaded. */
TRACE_API const char *trace_version(void);
TRACE_API const char *trace_status_name(enum trace_status s); /* "TRACE_ERR_SHAPE" */
TRACE_API const char *trace_dtype_name(enum trace_dtype d);   /* "f32" */
/* options NULL: the defaults. On failure *ctx is NULL and trace_last_error(NULL) tells why. The environment
 * (TRACEJIT_*, docs/environment.md) is read here, once. The caller owns *ctx. */
TRACE_API enum trace_status trace_context_create(const trace_context_options *options, trace_context **ctx);
/* Refuses new runs (TRACE_ERR_SHUTDOWN), cancels queued compiles, waits for runs in flight and for the compile under
 * way, and ends the compile thread; TRACE_ERR_TIMEOUT when some remain. timeout_ms < 0: no limit. */
TRACE_API enum trace_status trace_context_shutdown(trace_context *ctx, int timeout_ms);
/* Drops the caller's reference. The context goes when its last region and tensor have gone too. NULL is fine. */
TRACE_API void trace_context_release(trace_context *ctx);
/* Text of the calling thread's last failure, valid until its next one; "" when none. ctx may be NULL. */
TRACE_API const char *trace_last_error(const trace_context *ctx);
/* One line: device, feature level, threads, compiler. Valid as long as the context. */
TRACE_API const char *trace_context_describe(const trace_context *ctx);
/* stats->size must be set; at most that many bytes are written. */
TRACE_API void trace_context_stats(const trace_context *ctx, trace_stats *stats);
/* Gives back what the context keeps for later and nothing uses now: memory of released tensors, workspaces between
 * runs, repacked copies of weights, code of plans that were dropped, arrays of run objects. All of it is made again
 * when it is needed: the next run of a plan allocates, and packs its weights. Returns the bytes that went to the system
 * (or to the allocator of the options). Nothing that the host holds, no plan and no bound plan is touched; results stay
 * the same. Without this call a workspace that runs need less than half of shrinks after 64 of them, one that no run
 * has used for some hundred runs goes, and under memory_limit all of it goes before a run fails. Any thread, at any
 * time. */
TRACE_API size_t trace_context_trim(trace_context *ctx);
/* Report as text. Like snprintf: writes at most cap bytes with the NUL, *need (may be NULL) gets the length without
 * it; TRACE_ERR_MEMORY when cap was too small (counters grow between two calls: ask for some more). */
TRACE_API enum trace_status trace_context_report(const trace_context *ctx, enum trace_format f, char *buf, size_t cap,
                                                 size_t *need);

/* Why the library did what it did with a region: its plans with the reason each was made, their kernels with ops, bytes
 * moved and saved, time and share of the machine's ceiling, what has memory and why, breaks, recompiles. Formats: TEXT,
 * JSON, HTML (one self-contained page, with the generated code); PROMETHEUS is TRACE_ERR_ARGUMENT. buf, cap and need as
 * for trace_context_report, whose HTML is this page over all regions. The first call measures the machine's ceilings
 * (some tens of milliseconds), the first HTML compiles the kernels once more for their text. Any thread, also while
 * runs are open. Errors: TRACE_ERR_ARGUMENT, MEMORY. */
TRACE_API enum trace_status trace_explain(const trace_region *r, enum trace_format f, char *buf, size_t cap,
                                          size_t *need);
/* on: runs of r from now on time each of their kernels, for trace_explain; a run then takes some clock readings a
 * kernel longer. Bound runs are never timed. Any thread. */
TRACE_API enum trace_status trace_region_profile(trace_region *r, bool on);

/* Writes what happens in the context to a file, as Chrome trace events (JSON; ui.perfetto.dev opens it): runs,
 * recording, segments, kernels, compiles with their parts, breaks, recompiles and other events, with thread, region and
 * host line. The file is valid JSON at any time; the last events are there after stop, or when the context goes. Events
 * that found no room are counted in it. Bound runs are not in it. TRACEJIT_TIMELINE=file starts one when a context is
 * created. Any thread. Errors: start: TRACE_ERR_ARGUMENT (NULL, or a file that can't be written), STATE (one is being
 * written), MEMORY; stop: STATE (none is), ARGUMENT (the last events can't be written). */
TRACE_API enum trace_status trace_timeline_start(trace_context *ctx, const char *path);
TRACE_API enum trace_status trace_timeline_stop(trace_context *ctx);

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

/* Making tensors. dims: rank extents, each at least 0 (TRACE_DIMS, or TRACE_SCALAR for 0-d). The caller owns the
 * handle. NULL and an error text on failure: TRACE_ERR_ARGUMENT, DTYPE, SHAPE (rank above TRACE_MAX_RANK, negative
 * extent, overflow) or MEMORY. from: copies data in (row-major). */
TRACE_API trace_tensor *trace_from(trace_context *ctx, enum trace_dtype d, const void *data, const int64_t *dims,
                                   size_t rank);
/* Borrows memory for reading and writing: it must live until the handle and every run that used it are gone. The
 * memory is read at each run, so the host may change it between runs. */
TRACE_API trace_tensor *trace_wrap(trace_context *ctx, enum trace_dtype d, void *data, const int64_t *dims,
                                   size_t rank);
/* The same for reading only: ops that would write it fail. */
TRACE_API trace_tensor *trace_wrap_const(trace_context *ctx, enum trace_dtype d, const void *data, const int64_t *dims,
                                         size_t rank);
/* The same with strides, flags and a `done` callback (called once when the library's last use has ended; not when this
 * fails). desc is read during the call only. */
TRACE_API trace_tensor *trace_wrap_desc(trace_context *ctx, const trace_tensor_desc *desc);
/* DLPack (github.com/dmlc/dlpack, ABI version 1 without the versioned struct): import takes the managed tensor over
 * (its deleter is called when the last user has gone; on failure it stays the caller's), flags: TRACE_WRAP_READONLY,
 * TRACE_WRAP_STABLE; export holds a reference until the consumer calls the deleter (TRACE_ERR_BUSY: a
 * live bound plan has packed the tensor, and wouldn't see what the consumer writes). NULL and an error text on failure.
 * CPU tensors only; dtypes bool, u8, i32, i64, f16, bf16, f32, f64. */
struct DLManagedTensor;
TRACE_API trace_tensor *trace_from_dlpack(trace_context *ctx, struct DLManagedTensor *m, int flags);
TRACE_API struct DLManagedTensor *trace_to_dlpack(trace_tensor *t);
/* Shape and dtype without data: a run with one among its inputs compiles and runs nothing. */
TRACE_API trace_tensor *trace_placeholder(trace_context *ctx, enum trace_dtype d, const int64_t *dims, size_t rank);
/* One more reference; returns t. Inside a region, of a recorded value: one more count of that value. In an eager scope
 * what an op returned is the scope's until its end: a retain is to be balanced by a release, there or later. */
TRACE_API trace_tensor *trace_retain(trace_tensor *t);
/* Drops a reference. NULL is fine. Of a recorded value: the host has ended it; ops recorded already keep it. */
TRACE_API void trace_release(trace_tensor *t);
/* Queries; of recorded values too. Failures give -1 and an error text. dim may be negative. */
TRACE_API int trace_rank(const trace_tensor *t);
TRACE_API int64_t trace_size(const trace_tensor *t, int64_t dim);
TRACE_API int64_t trace_stride(const trace_tensor *t, int64_t dim); /* elements */
TRACE_API int64_t trace_numel(const trace_tensor *t);
TRACE_API int trace_dtype_of(const trace_tensor *t); /* enum trace_dtype, or -1 */
/* Replaces the whole content, row-major; bytes must match. Seen by every later use; runs in flight keep the old one.
 * While a run is open on this thread that uses t, a graph break where need be. TRACE_ERR_BUSY: wrapped memory that
 * another thread's run reads, or a weight that a bound plan has packed. */
TRACE_API enum trace_status trace_write(trace_tensor *t, const void *src, size_t bytes);
/* The host has changed wrapped memory promised STABLE (between runs). TRACE_ERR_BUSY as for trace_write. */
TRACE_API enum trace_status trace_modified(trace_tensor *t);
/* Readbacks. Of a tensor: no effect on recording. Of a recorded value: a graph break. read: copies out row-major,
 * bytes must match. data: pointer to a contiguous tensor, valid while the handle is held and unwritten (of a recorded
 * value: until the run ends). item: the only element, converted; on failure 0 or NaN. */
TRACE_MUST_CHECK TRACE_API enum trace_status trace_read_at(trace_tensor *t, void *dst, size_t bytes, const char *file,
                                                           int line);
TRACE_MUST_CHECK TRACE_API enum trace_status trace_data_at(trace_tensor *t, const void **data, const char *file,
                                                           int line);
TRACE_MUST_CHECK TRACE_API enum trace_status trace_item_i64_at(trace_tensor *t, int64_t *v, const char *file, int line);
TRACE_MUST_CHECK TRACE_API enum trace_status trace_item_f64_at(trace_tensor *t, double *v, const char *file, int line);
/* Prints name, shape, dtype and values to stderr; of a recorded value: a graph break. */
TRACE_API enum trace_status trace_print_at(trace_tensor *t, const char *name, const char *file, int line);
/* Deferred forms: no break. item_later: the value becomes an extra output; returns an owned handle that trace_item_*,
 * trace_read take after trace_end (before: TRACE_ERR_STATE). print_later: printed when the run ends, in program order.
 */
TRACE_API trace_tensor *trace_item_later_at(trace_tensor *t, const char *file, int line);
TRACE_API enum trace_status trace_print_later_at(trace_tensor *t, const char *name, const char *file, int line);

/* ---- regions ---------------------------------------------------------------------------------------------------- */

/* name is copied; NULL: "unnamed". options NULL: the defaults. The caller owns *r, which keeps the context. */
TRACE_API enum trace_status trace_region_create(trace_context *ctx, const char *name,
                                                const trace_region_options *options, trace_region **r);
/* Drops the caller's region: runs open in it end as they would, bound plans stay. Waits for a background compile of it.
 * NULL is fine. */
TRACE_API void trace_region_release(trace_region *r);
/* As trace_context_stats, of this region alone. */
TRACE_API void trace_region_stats(const trace_region *r, trace_stats *stats);
/* Opens a run. in: the declared inputs (n of them, held for the run). true: run the body. false: skip it; trace_end
 * still has to be called and tells why. Inside another region of the context: an inlined scope. Inside a region of
 * another context: a run of its own; what belongs to that context goes on being recorded there, and an op over tensors
 * of a context without an open run runs at once. No op takes operands of two contexts (TRACE_ERR_ARGUMENT). */
TRACE_API bool trace_begin_at(trace_region *r, trace_tensor *const *in, size_t n, const char *file, int line);
/* Compiles or finds the plan, runs it, and replaces each out[i] (a recorded value, or a tensor) by an owned handle of
 * the result; on failure all are NULL. In an inlined scope outputs stay recorded values. */
TRACE_MUST_CHECK TRACE_API enum trace_status trace_end_at(trace_region *r, trace_tensor **out, size_t n,
                                                          const char *file, int line);
/* Drops the innermost open run of r on this thread, and what is open inside it: early return, exception, longjmp.
 * Nothing if there is none; a run that a callback interrupts isn't open in the callback. */
TRACE_API void trace_abandon(trace_region *r);
/* Ends the run by binding it instead of running it: compiles (or finds the plan), pins exactly the tensors used, checks
 * everything there is to check, runs nothing. Needs a region body without a readback; results only by trace_copy_ and
 * other in-place ops. *b is NULL on failure; the caller owns it. */
TRACE_MUST_CHECK TRACE_API enum trace_status trace_end_bind_at(trace_region *r, const trace_bind_options *o,
                                                               trace_bound **b, const char *file, int line);
/* Runs a bound plan on the tensors it is pinned to. One caller at a time for each bound plan. No allocation, lock,
 * system call, check or event; nothing in it blocks. */
TRACE_API enum trace_status trace_bound_run(trace_bound *b);
/* Lets go of the tensors. Not while a run of it is under way. NULL is fine. */
TRACE_API void trace_bound_release(trace_bound *b);
/* Bytes of workspace the region's last bound (or, before one, last compiled) plan needs; 0 when there is none yet. */
TRACE_API size_t trace_region_workspace(const trace_region *r);
/* Declares the bounds (inclusive) of a dim of a declared input, before the region's first run (afterwards:
 * TRACE_ERR_STATE). Declared again, the later bounds count. An extent outside them is
 * TRACE_ERR_SHAPE at trace_begin. */
TRACE_API enum trace_status trace_region_dynamic(trace_region *r, int input, int dim, int64_t min, int64_t max);
/* Buckets of an input's dim, before the first run: the dim is a symbol, and each bucket has a plan whose workspaces are
 * laid out for its largest size, so that sizes within it neither compile nor allocate. Ops still compute the logical
 * extents alone: nothing reads padding, results are those of exact plans and have their exact size. POWERS: 1, 2, 4,
 * ... (sizes NULL). LIST: these sizes, ascending; a run beyond the last one is TRACE_ERR_SHAPE, a declared bound beyond
 * it TRACE_ERR_ARGUMENT. LEARNED: powers of two until 64 runs were seen (or a profile was loaded), then the at most n
 * (0: 4) sizes that waste least (sizes NULL). At most 8 dims of a region. stats: padding_bytes, bucket_bytes. Errors:
 * TRACE_ERR_ARGUMENT (no such input or dim, a list that isn't positive and ascending, TRACE_DYNAMIC_OFF), STATE after
 * the first run, MEMORY. */
TRACE_API enum trace_status trace_region_buckets(trace_region *r, int input, int dim, enum trace_buckets kind,
                                                 const int64_t *sizes, size_t n);
/* Limits what a region (a context: all its regions and single ops together) compiles and keeps, from now on. limit: at
 * least 1, or -1: none. Each decision is a TRACE_EVENT_BUDGET. Runs that have their plan are never touched. Any thread.
 * TRACE_ERR_ARGUMENT: NULL, no such budget or policy, another limit, or EVICT of what dropping plans doesn't give back.
 */
TRACE_API enum trace_status trace_region_budget(trace_region *r, enum trace_budget what, int64_t limit,
                                                enum trace_budget_policy policy);
TRACE_API enum trace_status trace_context_budget(trace_context *ctx, enum trace_budget what, int64_t limit,
                                                 enum trace_budget_policy policy);
/* Shape of a declared input of a region. */
typedef struct trace_shape {
    int input, rank;
    int64_t dims[TRACE_MAX_RANK];
} trace_shape;
/* Makes the plan that a run over inputs of these shapes will ask for (queues it, when the region is `background`); runs
 * nothing and touches no tensor. Inputs not named have the shape of the youngest recording, the last run that had to
 * make a plan; captured tensors keep theirs. Shapes of results follow from the ops; an extent that the body gave to an
 * op (reshape, expand, narrow, arange) and that equals a recorded extent of an input or of a value recorded before, or
 * a product or ratio of extents of inputs, is taken to follow it: so record with extents that differ from each other. A
 * wrong guess costs the plan, never a value.
 * Any thread. TRACE_ERR_STATE before the first recording; TRACE_ERR_ARGUMENT: unknown or repeated input;
 * TRACE_ERR_SHAPE: other rank, negative extent, overflow, outside the bounds of trace_region_dynamic, or shapes that an
 * op of the recording does not take (the text has op, line and both shapes). Nothing is made then. */
TRACE_API enum trace_status trace_warmup(trace_region *r, const trace_shape *shapes, size_t n);
/* Writes how often the region's runs had which shapes (the 256 most frequent combinations) to a text file, which is
 * replaced as a whole or not at all. TRACE_ERR_ARGUMENT: the file can't be written; the text has the reason. */
TRACE_API enum trace_status trace_profile_save(trace_region *r, const char *path);
/* Adds the counts of such a file, of a region of the same name, to the region's, and makes the plans of the most
 * frequent combinations (at most 8, at most half of max_graphs) as trace_warmup does: now, or at the end of the first
 * recording. TRACE_ERR_ARGUMENT: the file can't be read or is no such file; the text has the line, nothing is added. */
TRACE_API enum trace_status trace_profile_load(trace_region *r, const char *path);
/* Waits until no plan of the region is being compiled in the background; TRACE_ERR_TIMEOUT, or the first compile error
 * since the last call (the interpreter runs that graph). timeout_ms < 0: no limit. */
TRACE_API enum trace_status trace_wait_ready(trace_region *r, int timeout_ms);
/* Asks the region's runs in flight to stop between kernels: their trace_end returns TRACE_ERR_SHUTDOWN. */
TRACE_API void trace_region_cancel(trace_region *r);
/* Whether the calling thread's open run has failed: for the heads of loops that a readback steers. */
TRACE_API bool trace_failed(const trace_context *ctx);

/* ---- ops: names and argument meanings follow ATen -----------------------------------------------------------------
 * Each op exists as trace_x(...) and as trace_x_at(..., file, line); the macro of the plain name passes the host's
 * place. Define TRACE_NO_MACROS to have the functions only: no macro of a lower-case name is left. dims may be
 * negative. dtypes promote as in PyTorch: a tensor of rank > 0 outranks a 0-d one of the same kind, and those outrank a
 * scalar (_f: double, _i: int64_t). */
#define TRACE_OP(name, ...)                                                                                            \
    TRACE_API trace_tensor *trace_##name(__VA_ARGS__);                                                                 \
    TRACE_API trace_tensor *trace_##name##_at(__VA_ARGS__, const char *file, int line)

/* pointwise, one operand: result of the shape of x; integers become f32 where the function is not integral */
/* -x */
TRACE_OP(neg, trace_tensor *x);
/* |x| */
TRACE_OP(abs, trace_tensor *x);
/* -1, 0 or 1 */
TRACE_OP(sign, trace_tensor *x);
/* floor, ceil, trunc (toward zero), round: integers unchanged */
TRACE_OP(floor, trace_tensor *x);
TRACE_OP(ceil, trace_tensor *x);
TRACE_OP(trunc, trace_tensor *x);
/* ties to even */
TRACE_OP(round, trace_tensor *x);
/* x - trunc(x) */
TRACE_OP(frac, trace_tensor *x);
/* 1/x */
TRACE_OP(reciprocal, trace_tensor *x);
/* x*x */
TRACE_OP(square, trace_tensor *x);
TRACE_OP(sqrt, trace_tensor *x);
/* 1/sqrt(x) */
TRACE_OP(rsqrt, trace_tensor *x);
TRACE_OP(exp, trace_tensor *x);
/* natural */
TRACE_OP(log, trace_tensor *x);
TRACE_OP(sin, trace_tensor *x);
TRACE_OP(cos, trace_tensor *x);
TRACE_OP(tanh, trace_tensor *x);
TRACE_OP(erf, trace_tensor *x);
/* 1/(1 + e^-x) */
TRACE_OP(sigmoid, trace_tensor *x);
/* max(x, 0); NaN stays */
TRACE_OP(relu, trace_tensor *x);
/* min(max(x, 0), 6) */
TRACE_OP(relu6, trace_tensor *x);
/* x sigmoid(x) */
TRACE_OP(silu, trace_tensor *x);
/* bool */
TRACE_OP(logical_not, trace_tensor *x);
/* integers, bool */
TRACE_OP(bitwise_not, trace_tensor *x);
/* bool */
TRACE_OP(isnan, trace_tensor *x);
/* bool */
TRACE_OP(isinf, trace_tensor *x);
/* TRACE_GELU_NONE (erf) or TRACE_GELU_TANH */
TRACE_OP(gelu, trace_tensor *x, int approximate);
/* log1p(exp(beta x))/beta, x above threshold; ATen defaults: 1, 20 */
TRACE_OP(softplus, trace_tensor *x, double beta, double threshold);
/* conversion; float to integer truncates, saturates, NaN gives 0; the same dtype returns the same value */
TRACE_OP(to, trace_tensor *x, enum trace_dtype dtype);

/* pointwise, two operands: broadcast, promote */
TRACE_OP(add, trace_tensor *a, trace_tensor *b);
TRACE_OP(add_f, trace_tensor *a, double s);
TRACE_OP(add_i, trace_tensor *a, int64_t s);
TRACE_OP(sub, trace_tensor *a, trace_tensor *b);
TRACE_OP(sub_f, trace_tensor *a, double s);
TRACE_OP(sub_i, trace_tensor *a, int64_t s);
TRACE_OP(mul, trace_tensor *a, trace_tensor *b);
TRACE_OP(mul_f, trace_tensor *a, double s);
TRACE_OP(mul_i, trace_tensor *a, int64_t s);
/* true division; integers give f32 */
TRACE_OP(div, trace_tensor *a, trace_tensor *b);
TRACE_OP(div_f, trace_tensor *a, double s);
TRACE_OP(div_i, trace_tensor *a, int64_t s);
/* toward minus infinity */
TRACE_OP(floor_divide, trace_tensor *a, trace_tensor *b);
TRACE_OP(floor_divide_f, trace_tensor *a, double s);
TRACE_OP(floor_divide_i, trace_tensor *a, int64_t s);
/* sign of b */
TRACE_OP(remainder, trace_tensor *a, trace_tensor *b);
TRACE_OP(remainder_f, trace_tensor *a, double s);
TRACE_OP(remainder_i, trace_tensor *a, int64_t s);
/* sign of a */
TRACE_OP(fmod, trace_tensor *a, trace_tensor *b);
TRACE_OP(fmod_f, trace_tensor *a, double s);
TRACE_OP(fmod_i, trace_tensor *a, int64_t s);
/* C's pow; integers wrap, and an integer base takes no negative exponent but for 1 and -1 (TRACE_ERR_DEVICE) */
TRACE_OP(pow, trace_tensor *a, trace_tensor *b);
TRACE_OP(pow_f, trace_tensor *a, double s);
TRACE_OP(pow_i, trace_tensor *a, int64_t s);
/* NaN if either is */
TRACE_OP(maximum, trace_tensor *a, trace_tensor *b);
TRACE_OP(minimum, trace_tensor *a, trace_tensor *b);
/* bool */
TRACE_OP(eq, trace_tensor *a, trace_tensor *b);
TRACE_OP(eq_f, trace_tensor *a, double s);
TRACE_OP(eq_i, trace_tensor *a, int64_t s);
TRACE_OP(ne, trace_tensor *a, trace_tensor *b);
TRACE_OP(ne_f, trace_tensor *a, double s);
TRACE_OP(ne_i, trace_tensor *a, int64_t s);
TRACE_OP(lt, trace_tensor *a, trace_tensor *b);
TRACE_OP(lt_f, trace_tensor *a, double s);
TRACE_OP(lt_i, trace_tensor *a, int64_t s);
TRACE_OP(le, trace_tensor *a, trace_tensor *b);
TRACE_OP(le_f, trace_tensor *a, double s);
TRACE_OP(le_i, trace_tensor *a, int64_t s);
TRACE_OP(gt, trace_tensor *a, trace_tensor *b);
TRACE_OP(gt_f, trace_tensor *a, double s);
TRACE_OP(gt_i, trace_tensor *a, int64_t s);
TRACE_OP(ge, trace_tensor *a, trace_tensor *b);
TRACE_OP(ge_f, trace_tensor *a, double s);
TRACE_OP(ge_i, trace_tensor *a, int64_t s);
/* bool */
TRACE_OP(logical_and, trace_tensor *a, trace_tensor *b);
TRACE_OP(logical_or, trace_tensor *a, trace_tensor *b);
TRACE_OP(logical_xor, trace_tensor *a, trace_tensor *b);
/* integers, bool */
TRACE_OP(bitwise_and, trace_tensor *a, trace_tensor *b);
TRACE_OP(bitwise_and_i, trace_tensor *a, int64_t s);
TRACE_OP(bitwise_or, trace_tensor *a, trace_tensor *b);
TRACE_OP(bitwise_or_i, trace_tensor *a, int64_t s);
TRACE_OP(bitwise_xor, trace_tensor *a, trace_tensor *b);
TRACE_OP(bitwise_xor_i, trace_tensor *a, int64_t s);
/* s - a */
TRACE_OP(rsub_f, trace_tensor *a, double s);
TRACE_OP(rsub_i, trace_tensor *a, int64_t s);
/* condition: bool */
TRACE_OP(where, trace_tensor *condition, trace_tensor *a, trace_tensor *b);
TRACE_OP(where_f, trace_tensor *condition, trace_tensor *a, double s);
TRACE_OP(where_i, trace_tensor *condition, trace_tensor *a, int64_t s);
/* s where mask, else x */
TRACE_OP(masked_fill_f, trace_tensor *x, trace_tensor *mask, double s);
TRACE_OP(masked_fill_i, trace_tensor *x, trace_tensor *mask, int64_t s);
/* either bound may be TRACE_NONE; NaN bounds give NaN */
TRACE_OP(clamp, trace_tensor *x, trace_tensor *lo, trace_tensor *hi);
/* -INFINITY, INFINITY: no bound */
TRACE_OP(clamp_f, trace_tensor *x, double lo, double hi);
/* INT64_MIN, INT64_MAX: no bound */
TRACE_OP(clamp_i, trace_tensor *x, int64_t lo, int64_t hi);

/* in place: write their first operand (any view of memory) and return it, with no new reference */
TRACE_OP(add_, trace_tensor *a, trace_tensor *b);
TRACE_OP(add_f_, trace_tensor *a, double s);
TRACE_OP(add_i_, trace_tensor *a, int64_t s);
TRACE_OP(sub_, trace_tensor *a, trace_tensor *b);
TRACE_OP(sub_f_, trace_tensor *a, double s);
TRACE_OP(sub_i_, trace_tensor *a, int64_t s);
TRACE_OP(mul_, trace_tensor *a, trace_tensor *b);
TRACE_OP(mul_f_, trace_tensor *a, double s);
TRACE_OP(mul_i_, trace_tensor *a, int64_t s);
TRACE_OP(div_, trace_tensor *a, trace_tensor *b);
TRACE_OP(div_f_, trace_tensor *a, double s);
TRACE_OP(div_i_, trace_tensor *a, int64_t s);
/* src is broadcast and converted */
TRACE_OP(copy_, trace_tensor *dst, trace_tensor *src);
TRACE_OP(fill_f_, trace_tensor *x, double s);
TRACE_OP(fill_i_, trace_tensor *x, int64_t s);
/* rows index[k] of dim become src row k; index: 1-d i64; a repeated index: the last wins */
TRACE_OP(index_copy_, trace_tensor *dst, int64_t dim, trace_tensor *index, trace_tensor *src);

/* reductions: over dims (TRACE_SCALAR: all), which go, or stay with extent 1 (keepdim) */
/* integers and bool give i64 */
TRACE_OP(sum, trace_tensor *x, const int64_t *dims, size_t n, bool keepdim);
/* floats */
TRACE_OP(mean, trace_tensor *x, const int64_t *dims, size_t n, bool keepdim);
/* floats; divides by max(0, count - correction) */
TRACE_OP(var, trace_tensor *x, const int64_t *dims, size_t n, int64_t correction, bool keepdim);
/* NaN wins; an empty reduction is an error */
TRACE_OP(amax, trace_tensor *x, const int64_t *dims, size_t n, bool keepdim);
TRACE_OP(amin, trace_tensor *x, const int64_t *dims, size_t n, bool keepdim);
/* bool (u8 for u8) */
TRACE_OP(any, trace_tensor *x, const int64_t *dims, size_t n, bool keepdim);
TRACE_OP(all, trace_tensor *x, const int64_t *dims, size_t n, bool keepdim);
/* i64, first of equals, NaN wins; dim may be TRACE_ALL_DIMS */
TRACE_OP(argmax, trace_tensor *x, int64_t dim, bool keepdim);
TRACE_OP(argmin, trace_tensor *x, int64_t dim, bool keepdim);
/* floats; along dim, shape of x */
TRACE_OP(softmax, trace_tensor *x, int64_t dim);
TRACE_OP(log_softmax, trace_tensor *x, int64_t dim);
/* over the last n dims, whose extents are shape; weight, bias of that shape or TRACE_NONE */
TRACE_OP(layer_norm, trace_tensor *x, const int64_t *shape, size_t n, trace_tensor *weight, trace_tensor *bias,
         double eps);
/* over the dims of weight, the last dim if TRACE_NONE */
TRACE_OP(rms_norm, trace_tensor *x, trace_tensor *weight, double eps);
/* inference form, channel dim 1; weight, bias [C] or TRACE_NONE */
TRACE_OP(batch_norm, trace_tensor *x, trace_tensor *weight, trace_tensor *bias, trace_tensor *running_mean,
         trace_tensor *running_var, double eps);
/* x [N, C, ...] logits, target [N, ...] i64; weight [C] or TRACE_NONE; TRACE_REDUCTION_* (NONE: shape of target, else
 * 0-d); ATen defaults: MEAN, -100, 0 */
TRACE_OP(cross_entropy, trace_tensor *x, trace_tensor *target, trace_tensor *weight, int reduction,
         int64_t ignore_index, double label_smoothing);

/* views: share memory with x where x is memory; never copy, reshape excepted */
/* one extent may be -1; a view where the strides allow, else a copy */
TRACE_OP(reshape, trace_tensor *x, const int64_t *dims, size_t n);
/* dims start_dim to end_dim (inclusive) become one */
TRACE_OP(flatten, trace_tensor *x, int64_t start_dim, int64_t end_dim);
/* dim i of the result is dim dims[i] of x; n is the rank */
TRACE_OP(permute, trace_tensor *x, const int64_t *dims, size_t n);
TRACE_OP(transpose, trace_tensor *x, int64_t d0, int64_t d1);
/* extents of 1 grow, new dims come first; -1 keeps an extent */
TRACE_OP(expand, trace_tensor *x, const int64_t *dims, size_t n);
/* elements start to start + length of dim */
TRACE_OP(narrow, trace_tensor *x, int64_t dim, int64_t start, int64_t length);
/* dim is removed */
TRACE_OP(select, trace_tensor *x, int64_t dim, int64_t index);
/* start and end clamp as in Python; step >= 1 */
TRACE_OP(slice, trace_tensor *x, int64_t dim, int64_t start, int64_t end, int64_t step);
/* a dim of extent 1 goes (any other stays); dim may be TRACE_ALL_DIMS */
TRACE_OP(squeeze, trace_tensor *x, int64_t dim);
/* a dim of extent 1 comes before dim */
TRACE_OP(unsqueeze, trace_tensor *x, int64_t dim);
/* over the memory of x; strides and offset in elements, at least 0, within that memory */
TRACE_OP(as_strided, trace_tensor *x, const int64_t *dims, const int64_t *strides, size_t n, int64_t offset);
/* of dims d0, d1, as a last dim; offset > 0: above the main one */
TRACE_OP(diagonal, trace_tensor *x, int64_t offset, int64_t d0, int64_t d1);
/* windows of size along dim, step apart, as a last dim */
TRACE_OP(unfold, trace_tensor *x, int64_t dim, int64_t size, int64_t step);

/* moves: fresh tensors */
/* reversed along each of dims */
TRACE_OP(flip, trace_tensor *x, const int64_t *dims, size_t n);
/* x itself if it is contiguous */
TRACE_OP(contiguous, trace_tensor *x);
/* always a copy, row-major */
TRACE_OP(clone, trace_tensor *x);
/* n >= 1 tensors, promoted; TRACE_ARGS gives (ts, n). cat: along dim, other extents equal; stack: along a new dim */
TRACE_OP(cat, trace_tensor *const *ts, size_t n, int64_t dim);
TRACE_OP(stack, trace_tensor *const *ts, size_t n, int64_t dim);
/* n amounts: pairs (before, after) from the last dim on; negative crops (constant mode); TRACE_PAD_*; value: constant
 * mode's */
TRACE_OP(pad, trace_tensor *x, const int64_t *pad, size_t n, int mode, double value);
/* index: i64, rank of x, of no larger extents in the other dims; the result has its shape. Out of range here and below:
 * TRACE_ERR_DEVICE */
TRACE_OP(gather, trace_tensor *x, int64_t dim, trace_tensor *index);
/* index: 1-d i64 */
TRACE_OP(index_select, trace_tensor *x, int64_t dim, trace_tensor *index);
/* weight [V, D], index i64 of any shape [...]: [..., D] */
TRACE_OP(embedding, trace_tensor *weight, trace_tensor *index);

/* matrix products, convolution, attention, pooling, recurrent cells */
/* [.., M, K] x [.., K, N], batch dims broadcast; vectors as in torch.matmul; operands of one dtype, not bool */
TRACE_OP(matmul, trace_tensor *a, trace_tensor *b);
/* [B, M, K] x [B, K, N] */
TRACE_OP(bmm, trace_tensor *a, trace_tensor *b);
/* x [.., K], weight [N, K], bias [N] or TRACE_NONE: [.., N] */
TRACE_OP(linear, trace_tensor *x, trace_tensor *weight, trace_tensor *bias);
/* x [N, C, H, W] or [C, H, W], weight [O, C/groups, KH, KW], bias [O] or TRACE_NONE; stride, padding, dilation: pairs
 * (height, width), NULL: 1, 0, 1 */
TRACE_OP(conv2d, trace_tensor *x, trace_tensor *weight, trace_tensor *bias, const int64_t *stride,
         const int64_t *padding, const int64_t *dilation, int64_t groups);
/* q [.., L, E], k [.., S, E], v [.., S, Ev]: [.., L, Ev]; with enable_gqa the heads (dim -3) of k and v divide those of
 * q. mask bool (true: attend) or of the dtype of q, broadcastable to [.., L, S], or TRACE_NONE; not with is_causal,
 * where query i sees keys 0 to i. scale 0: 1/sqrt(E). Keys not seen (false, -inf, causal) have no part in a result, NaN
 * as they may be. A row with nothing to attend to gives 0 */
TRACE_OP(scaled_dot_product_attention, trace_tensor *q, trace_tensor *k, trace_tensor *v, trace_tensor *mask,
         bool is_causal, double scale, bool enable_gqa);
/* x [N, C, H, W] or [C, H, W]; pairs (height, width), NULL: stride kernel, padding 0, dilation 1; padding at most half
 * the kernel */
TRACE_OP(max_pool2d, trace_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
         const int64_t *dilation, bool ceil_mode);
/* the same for averages of floats; divisor_override 0: none */
TRACE_OP(avg_pool2d, trace_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
         bool ceil_mode, bool count_include_pad, int64_t divisor_override);
/* x [B, I], h [B, H] (or without B), weights [3H, I], [3H, H] (reset, update, new), biases [3H] or TRACE_NONE: [B, H]
 */
TRACE_OP(gru_cell, trace_tensor *x, trace_tensor *h, trace_tensor *w_ih, trace_tensor *w_hh, trace_tensor *b_ih,
         trace_tensor *b_hh);

/* sources: shape dims, n extents (TRACE_SCALAR: 0-d); arange: start, start + step, ... before end */
TRACE_OP(arange, trace_context *ctx, int64_t start, int64_t end, int64_t step, enum trace_dtype dtype);
TRACE_OP(full_f, trace_context *ctx, const int64_t *dims, size_t n, double value, enum trace_dtype dtype);
TRACE_OP(full_i, trace_context *ctx, const int64_t *dims, size_t n, int64_t value, enum trace_dtype dtype);
TRACE_OP(zeros, trace_context *ctx, const int64_t *dims, size_t n, enum trace_dtype dtype);
TRACE_OP(ones, trace_context *ctx, const int64_t *dims, size_t n, enum trace_dtype dtype);

/* A counted loop, recorded once and run `times` times (0 or more: a parameter as scalars are, another count compiles
 * nothing). carried[i], in: the value before the first turn; out: what the body uses for it. The host computes the next
 * values from those and puts them into carried[i] (dtype and shape as at the start); trace_repeat_end makes of them the
 * values after the last turn, with no turn the first ones. Handles are replaced, not released.
 *
 *     trace_tensor *h = trace_zeros(ctx, TRACE_DIMS(1, 64), TRACE_F32);
 *     trace_repeat(steps, &h, 1);
 *     h = trace_gru_cell(x, h, w_ih, w_hh, b_ih, b_hh);
 *     trace_repeat_end(&h, 1);
 *
 * What doesn't depend on a carried value is computed once, before the loop. In the body nothing can be read back
 * (TRACE_ERR_BREAK) and no tensor from outside written (TRACE_ERR_STATE): carry it. Values that change with the turns
 * end with the loop (TRACE_ERR_DEAD). Loops nest, 8 deep, and carry up to 64 values. Outside a region, and in an eager
 * one, the body is recorded all the same and runs at trace_repeat_end; the results are owned. Failures also return from
 * trace_end, as those of ops do; carried is all NULL then. */
TRACE_API enum trace_status trace_repeat_at(int64_t times, trace_tensor **carried, size_t n, const char *file,
                                            int line);
TRACE_API enum trace_status trace_repeat_end_at(trace_tensor **carried, size_t n, const char *file, int line);

/* Splits along dim into pieces of split_size (the last may be smaller), or into at most chunks pieces. n handles are
 * written to out; n must be the number of pieces. */
TRACE_API enum trace_status trace_split_at(trace_tensor *x, int64_t split_size, int64_t dim, trace_tensor **out,
                                           size_t n, const char *file, int line);
TRACE_API enum trace_status trace_chunk_at(trace_tensor *x, int64_t chunks, int64_t dim, trace_tensor **out, size_t n,
                                           const char *file, int line);
#undef TRACE_OP

#ifndef TRACE_NO_MACROS
/* Names with no function behind them: called with another number of arguments they are left as they stand, so that a
 * host's own trace_begin(name) or log->trace_print(text) stays the host's. For one with the same number define
 * TRACE_NO_MACROS, and call the _at forms with TRACE_HERE. */
#define TRACE_SEVENTH_(a, b, c, d, e, f, g, ...) g
#define TRACE_WITH_1_(...) TRACE_SEVENTH_(__VA_ARGS__, 0, 0, 0, 0, 0, 1, 0)
#define TRACE_WITH_2_(...) TRACE_SEVENTH_(__VA_ARGS__, 0, 0, 0, 0, 1, 0, 0)
#define TRACE_WITH_3_(...) TRACE_SEVENTH_(__VA_ARGS__, 0, 0, 0, 1, 0, 0, 0)
#define TRACE_WITH_5_(...) TRACE_SEVENTH_(__VA_ARGS__, 0, 1, 0, 0, 0, 0, 0)
#define TRACE_CALL_(with, name, ...) TRACE_CALL2_(with, name, __VA_ARGS__)
#define TRACE_CALL2_(with, name, ...) TRACE_CALL_##with##_(name, __VA_ARGS__)
#define TRACE_CALL_1_(name, ...) name##_at(__VA_ARGS__, TRACE_HERE)
#define TRACE_CALL_0_(name, ...) name(__VA_ARGS__)
#define trace_read(...) TRACE_CALL_(TRACE_WITH_3_(__VA_ARGS__), trace_read, __VA_ARGS__)
#define trace_data(...) TRACE_CALL_(TRACE_WITH_2_(__VA_ARGS__), trace_data, __VA_ARGS__)
#define trace_item_i64(...) TRACE_CALL_(TRACE_WITH_2_(__VA_ARGS__), trace_item_i64, __VA_ARGS__)
#define trace_item_f64(...) TRACE_CALL_(TRACE_WITH_2_(__VA_ARGS__), trace_item_f64, __VA_ARGS__)
#define trace_print(...) TRACE_CALL_(TRACE_WITH_2_(__VA_ARGS__), trace_print, __VA_ARGS__)
#define trace_item_later(...) TRACE_CALL_(TRACE_WITH_1_(__VA_ARGS__), trace_item_later, __VA_ARGS__)
#define trace_print_later(...) TRACE_CALL_(TRACE_WITH_2_(__VA_ARGS__), trace_print_later, __VA_ARGS__)
#define trace_begin(...) TRACE_CALL_(TRACE_WITH_3_(__VA_ARGS__), trace_begin, __VA_ARGS__)
#define trace_end(...) TRACE_CALL_(TRACE_WITH_3_(__VA_ARGS__), trace_end, __VA_ARGS__)
#define trace_end_bind(...) TRACE_CALL_(TRACE_WITH_3_(__VA_ARGS__), trace_end_bind, __VA_ARGS__)
#define trace_repeat(...) TRACE_CALL_(TRACE_WITH_3_(__VA_ARGS__), trace_repeat, __VA_ARGS__)
#define trace_repeat_end(...) TRACE_CALL_(TRACE_WITH_2_(__VA_ARGS__), trace_repeat_end, __VA_ARGS__)
#define trace_split(...) TRACE_CALL_(TRACE_WITH_5_(__VA_ARGS__), trace_split, __VA_ARGS__)
#define trace_chunk(...) TRACE_CALL_(TRACE_WITH_5_(__VA_ARGS__), trace_chunk, __VA_ARGS__)
/* ops: each also exists as a function */
#define trace_neg(...) trace_neg_at(__VA_ARGS__, TRACE_HERE)
#define trace_abs(...) trace_abs_at(__VA_ARGS__, TRACE_HERE)
#define trace_sign(...) trace_sign_at(__VA_ARGS__, TRACE_HERE)
#define trace_floor(...) trace_floor_at(__VA_ARGS__, TRACE_HERE)
#define trace_ceil(...) trace_ceil_at(__VA_ARGS__, TRACE_HERE)
#define trace_trunc(...) trace_trunc_at(__VA_ARGS__, TRACE_HERE)
#define trace_round(...) trace_round_at(__VA_ARGS__, TRACE_HERE)
#define trace_frac(...) trace_frac_at(__VA_ARGS__, TRACE_HERE)
#define trace_reciprocal(...) trace_reciprocal_at(__VA_ARGS__, TRACE_HERE)
#define trace_square(...) trace_square_at(__VA_ARGS__, TRACE_HERE)
#define trace_sqrt(...) trace_sqrt_at(__VA_ARGS__, TRACE_HERE)
#define trace_rsqrt(...) trace_rsqrt_at(__VA_ARGS__, TRACE_HERE)
#define trace_exp(...) trace_exp_at(__VA_ARGS__, TRACE_HERE)
#define trace_log(...) trace_log_at(__VA_ARGS__, TRACE_HERE)
#define trace_sin(...) trace_sin_at(__VA_ARGS__, TRACE_HERE)
#define trace_cos(...) trace_cos_at(__VA_ARGS__, TRACE_HERE)
#define trace_tanh(...) trace_tanh_at(__VA_ARGS__, TRACE_HERE)
#define trace_erf(...) trace_erf_at(__VA_ARGS__, TRACE_HERE)
#define trace_sigmoid(...) trace_sigmoid_at(__VA_ARGS__, TRACE_HERE)
#define trace_relu(...) trace_relu_at(__VA_ARGS__, TRACE_HERE)
#define trace_relu6(...) trace_relu6_at(__VA_ARGS__, TRACE_HERE)
#define trace_silu(...) trace_silu_at(__VA_ARGS__, TRACE_HERE)
#define trace_logical_not(...) trace_logical_not_at(__VA_ARGS__, TRACE_HERE)
#define trace_bitwise_not(...) trace_bitwise_not_at(__VA_ARGS__, TRACE_HERE)
#define trace_isnan(...) trace_isnan_at(__VA_ARGS__, TRACE_HERE)
#define trace_isinf(...) trace_isinf_at(__VA_ARGS__, TRACE_HERE)
#define trace_gelu(...) trace_gelu_at(__VA_ARGS__, TRACE_HERE)
#define trace_softplus(...) trace_softplus_at(__VA_ARGS__, TRACE_HERE)
#define trace_to(...) trace_to_at(__VA_ARGS__, TRACE_HERE)
#define trace_add(...) trace_add_at(__VA_ARGS__, TRACE_HERE)
#define trace_add_f(...) trace_add_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_add_i(...) trace_add_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_sub(...) trace_sub_at(__VA_ARGS__, TRACE_HERE)
#define trace_sub_f(...) trace_sub_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_sub_i(...) trace_sub_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_mul(...) trace_mul_at(__VA_ARGS__, TRACE_HERE)
#define trace_mul_f(...) trace_mul_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_mul_i(...) trace_mul_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_div(...) trace_div_at(__VA_ARGS__, TRACE_HERE)
#define trace_div_f(...) trace_div_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_div_i(...) trace_div_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_floor_divide(...) trace_floor_divide_at(__VA_ARGS__, TRACE_HERE)
#define trace_floor_divide_f(...) trace_floor_divide_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_floor_divide_i(...) trace_floor_divide_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_remainder(...) trace_remainder_at(__VA_ARGS__, TRACE_HERE)
#define trace_remainder_f(...) trace_remainder_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_remainder_i(...) trace_remainder_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_fmod(...) trace_fmod_at(__VA_ARGS__, TRACE_HERE)
#define trace_fmod_f(...) trace_fmod_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_fmod_i(...) trace_fmod_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_pow(...) trace_pow_at(__VA_ARGS__, TRACE_HERE)
#define trace_pow_f(...) trace_pow_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_pow_i(...) trace_pow_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_maximum(...) trace_maximum_at(__VA_ARGS__, TRACE_HERE)
#define trace_minimum(...) trace_minimum_at(__VA_ARGS__, TRACE_HERE)
#define trace_eq(...) trace_eq_at(__VA_ARGS__, TRACE_HERE)
#define trace_eq_f(...) trace_eq_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_eq_i(...) trace_eq_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_ne(...) trace_ne_at(__VA_ARGS__, TRACE_HERE)
#define trace_ne_f(...) trace_ne_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_ne_i(...) trace_ne_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_lt(...) trace_lt_at(__VA_ARGS__, TRACE_HERE)
#define trace_lt_f(...) trace_lt_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_lt_i(...) trace_lt_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_le(...) trace_le_at(__VA_ARGS__, TRACE_HERE)
#define trace_le_f(...) trace_le_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_le_i(...) trace_le_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_gt(...) trace_gt_at(__VA_ARGS__, TRACE_HERE)
#define trace_gt_f(...) trace_gt_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_gt_i(...) trace_gt_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_ge(...) trace_ge_at(__VA_ARGS__, TRACE_HERE)
#define trace_ge_f(...) trace_ge_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_ge_i(...) trace_ge_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_logical_and(...) trace_logical_and_at(__VA_ARGS__, TRACE_HERE)
#define trace_logical_or(...) trace_logical_or_at(__VA_ARGS__, TRACE_HERE)
#define trace_logical_xor(...) trace_logical_xor_at(__VA_ARGS__, TRACE_HERE)
#define trace_bitwise_and(...) trace_bitwise_and_at(__VA_ARGS__, TRACE_HERE)
#define trace_bitwise_and_i(...) trace_bitwise_and_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_bitwise_or(...) trace_bitwise_or_at(__VA_ARGS__, TRACE_HERE)
#define trace_bitwise_or_i(...) trace_bitwise_or_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_bitwise_xor(...) trace_bitwise_xor_at(__VA_ARGS__, TRACE_HERE)
#define trace_bitwise_xor_i(...) trace_bitwise_xor_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_rsub_f(...) trace_rsub_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_rsub_i(...) trace_rsub_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_where(...) trace_where_at(__VA_ARGS__, TRACE_HERE)
#define trace_where_f(...) trace_where_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_where_i(...) trace_where_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_masked_fill_f(...) trace_masked_fill_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_masked_fill_i(...) trace_masked_fill_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_clamp(...) trace_clamp_at(__VA_ARGS__, TRACE_HERE)
#define trace_clamp_f(...) trace_clamp_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_clamp_i(...) trace_clamp_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_add_(...) trace_add__at(__VA_ARGS__, TRACE_HERE)
#define trace_add_f_(...) trace_add_f__at(__VA_ARGS__, TRACE_HERE)
#define trace_add_i_(...) trace_add_i__at(__VA_ARGS__, TRACE_HERE)
#define trace_sub_(...) trace_sub__at(__VA_ARGS__, TRACE_HERE)
#define trace_sub_f_(...) trace_sub_f__at(__VA_ARGS__, TRACE_HERE)
#define trace_sub_i_(...) trace_sub_i__at(__VA_ARGS__, TRACE_HERE)
#define trace_mul_(...) trace_mul__at(__VA_ARGS__, TRACE_HERE)
#define trace_mul_f_(...) trace_mul_f__at(__VA_ARGS__, TRACE_HERE)
#define trace_mul_i_(...) trace_mul_i__at(__VA_ARGS__, TRACE_HERE)
#define trace_div_(...) trace_div__at(__VA_ARGS__, TRACE_HERE)
#define trace_div_f_(...) trace_div_f__at(__VA_ARGS__, TRACE_HERE)
#define trace_div_i_(...) trace_div_i__at(__VA_ARGS__, TRACE_HERE)
#define trace_copy_(...) trace_copy__at(__VA_ARGS__, TRACE_HERE)
#define trace_fill_f_(...) trace_fill_f__at(__VA_ARGS__, TRACE_HERE)
#define trace_fill_i_(...) trace_fill_i__at(__VA_ARGS__, TRACE_HERE)
#define trace_index_copy_(...) trace_index_copy__at(__VA_ARGS__, TRACE_HERE)
#define trace_sum(...) trace_sum_at(__VA_ARGS__, TRACE_HERE)
#define trace_mean(...) trace_mean_at(__VA_ARGS__, TRACE_HERE)
#define trace_var(...) trace_var_at(__VA_ARGS__, TRACE_HERE)
#define trace_amax(...) trace_amax_at(__VA_ARGS__, TRACE_HERE)
#define trace_amin(...) trace_amin_at(__VA_ARGS__, TRACE_HERE)
#define trace_any(...) trace_any_at(__VA_ARGS__, TRACE_HERE)
#define trace_all(...) trace_all_at(__VA_ARGS__, TRACE_HERE)
#define trace_argmax(...) trace_argmax_at(__VA_ARGS__, TRACE_HERE)
#define trace_argmin(...) trace_argmin_at(__VA_ARGS__, TRACE_HERE)
#define trace_softmax(...) trace_softmax_at(__VA_ARGS__, TRACE_HERE)
#define trace_log_softmax(...) trace_log_softmax_at(__VA_ARGS__, TRACE_HERE)
#define trace_layer_norm(...) trace_layer_norm_at(__VA_ARGS__, TRACE_HERE)
#define trace_rms_norm(...) trace_rms_norm_at(__VA_ARGS__, TRACE_HERE)
#define trace_batch_norm(...) trace_batch_norm_at(__VA_ARGS__, TRACE_HERE)
#define trace_cross_entropy(...) trace_cross_entropy_at(__VA_ARGS__, TRACE_HERE)
#define trace_reshape(...) trace_reshape_at(__VA_ARGS__, TRACE_HERE)
#define trace_flatten(...) trace_flatten_at(__VA_ARGS__, TRACE_HERE)
#define trace_permute(...) trace_permute_at(__VA_ARGS__, TRACE_HERE)
#define trace_transpose(...) trace_transpose_at(__VA_ARGS__, TRACE_HERE)
#define trace_expand(...) trace_expand_at(__VA_ARGS__, TRACE_HERE)
#define trace_narrow(...) trace_narrow_at(__VA_ARGS__, TRACE_HERE)
#define trace_select(...) trace_select_at(__VA_ARGS__, TRACE_HERE)
#define trace_slice(...) trace_slice_at(__VA_ARGS__, TRACE_HERE)
#define trace_squeeze(...) trace_squeeze_at(__VA_ARGS__, TRACE_HERE)
#define trace_unsqueeze(...) trace_unsqueeze_at(__VA_ARGS__, TRACE_HERE)
#define trace_as_strided(...) trace_as_strided_at(__VA_ARGS__, TRACE_HERE)
#define trace_diagonal(...) trace_diagonal_at(__VA_ARGS__, TRACE_HERE)
#define trace_unfold(...) trace_unfold_at(__VA_ARGS__, TRACE_HERE)
#define trace_flip(...) trace_flip_at(__VA_ARGS__, TRACE_HERE)
#define trace_contiguous(...) trace_contiguous_at(__VA_ARGS__, TRACE_HERE)
#define trace_clone(...) trace_clone_at(__VA_ARGS__, TRACE_HERE)
#define trace_cat(...) trace_cat_at(__VA_ARGS__, TRACE_HERE)
#define trace_stack(...) trace_stack_at(__VA_ARGS__, TRACE_HERE)
#define trace_pad(...) trace_pad_at(__VA_ARGS__, TRACE_HERE)
#define trace_gather(...) trace_gather_at(__VA_ARGS__, TRACE_HERE)
#define trace_index_select(...) trace_index_select_at(__VA_ARGS__, TRACE_HERE)
#define trace_embedding(...) trace_embedding_at(__VA_ARGS__, TRACE_HERE)
#define trace_matmul(...) trace_matmul_at(__VA_ARGS__, TRACE_HERE)
#define trace_bmm(...) trace_bmm_at(__VA_ARGS__, TRACE_HERE)
#define trace_linear(...) trace_linear_at(__VA_ARGS__, TRACE_HERE)
#define trace_conv2d(...) trace_conv2d_at(__VA_ARGS__, TRACE_HERE)
#define trace_scaled_dot_product_attention(...) trace_scaled_dot_product_attention_at(__VA_ARGS__, TRACE_HERE)
#define trace_max_pool2d(...) trace_max_pool2d_at(__VA_ARGS__, TRACE_HERE)
#define trace_avg_pool2d(...) trace_avg_pool2d_at(__VA_ARGS__, TRACE_HERE)
#define trace_gru_cell(...) trace_gru_cell_at(__VA_ARGS__, TRACE_HERE)
#define trace_arange(...) trace_arange_at(__VA_ARGS__, TRACE_HERE)
#define trace_full_f(...) trace_full_f_at(__VA_ARGS__, TRACE_HERE)
#define trace_full_i(...) trace_full_i_at(__VA_ARGS__, TRACE_HERE)
#define trace_zeros(...) trace_zeros_at(__VA_ARGS__, TRACE_HERE)
#define trace_ones(...) trace_ones_at(__VA_ARGS__, TRACE_HERE)
#endif

#ifdef __cplusplus
}
#endif
#endif
