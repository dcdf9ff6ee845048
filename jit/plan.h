// jit/plan.h: inside of compiled segments: what plan.c and plan_repeat.c share.
#ifndef TJ_JIT_PLAN_H
#define TJ_JIT_PLAN_H
#include "cpu_backend.h"

struct tj_plan_step {
    struct tj_kentry *loop; // LOOP: its kernel; else the epilogue's, or NULL
    struct tj_kernel_code code;
    struct tj_contract *contract;
    struct tj_kentry *tiles[TJ_CONTRACT_TILES];
    size_t ntiles;
    struct tj_plan *body; // REPEAT: one turn
    uint32_t weight_leaf; // leaf whose packed copy the step uses, or UINT32_MAX
    bool dynamic;         // some integer argument is not a constant
    // where the step's tables begin in an instance
    uint32_t ivals, bufs, svals;
};
struct tj_turns; // plan_repeat.c: a loop in an instance
struct tj_plan_instance {
    struct tj_plan_instance *next;
    struct tj_plan *of; // on its way out: whose it is, with a reference
    uint32_t round;     // of the context's plans when a run used it last
    uint32_t lean;      // runs since one needed more than half of ws_bytes
    size_t most, floor; // bytes that these needed at most; that are asked for at least
    int64_t *vals;      // one an expression
    int64_t *caps;      // the same with bucketed symbols at their capacity; NULL: no buckets
    uint64_t padding;   // bytes by which capacities have grown the workspace of `want` bytes
    uint64_t want;
    bool tight; // there is no room for capacities
    bool bound; // of a bound plan: weights are packed whatever it takes
    int64_t *ivals;
    unsigned char **bufs;
    union tj_scalar *svals;
    unsigned char **base;      // one a buffer
    size_t *bytes, *offset;    // one a buffer: size, place in the workspace
    struct tj_packed **packed; // one a step
    bool *had;                 // one a step: whether it was packed when the workspace was sized
    struct tj_turns **turns;   // one a step: of loops, else NULL
    unsigned char *ws;
    size_t ws_bytes; // allocated
    struct tj_pool *pool;
    int threads;    // slots a run with it may use at most
    size_t step_ws; // offset of the running step's own workspace
    bool placed;    // offsets are right for `bytes` (constant sizes: for good)
    bool filled;    // constant tables are filled
    bool known;     // all tables are right for `vals`
    bool same;      // this run's sizes are the last run's: known before, and vals didn't change
};
struct tj_plan {
    atomic_int refs;
    struct tj_jit *jit;
    struct tj_program *prog;
    struct tj_plan_step *steps;
    uint32_t *first, *last, *order; // per buffer: liveness; scratch for placement goes with the instance
    uint32_t nivals, nbufargs, nsvals;
    int threads;                 // 0: the pool's
    bool dynamic;                // some expression is not a constant
    bool loops;                  // some step is a counted loop
    uint32_t nshape;             // expressions that a look-up of a symbolic plan evaluates
    char *text;                  // schedule, for reports
    struct tj_step_notes *notes; // one a step
    struct tj_plan_info info;
    tj_mutex lock;                 // guards idle, nidle and runs
    struct tj_plan_instance *idle; // the last one used first
    int nidle;                     // length of idle
    uint32_t runs;                 // that have ended
    struct tj_plan *next, **link;  // of the context's plans; link: what points here. Under the lock of those
};

static inline size_t tj_round_up(size_t n) { return (n + TJ_ALIGN - 1) & ~(size_t)(TJ_ALIGN - 1); }

// ---- plan.c ---------------------------------------------------------------------------------------------------------

struct tj_plan_instance *tj_instance_new(const struct tj_plan *p, struct tj_pool *pool, int threads); // NULL: no memory
void tj_instance_free(struct tj_plan *p, struct tj_plan_instance *in);                                // NULL is fine
// In this order: sizes and the memory of leaves and outputs; packed weights; places (want: bytes of workspace), with
// the workspace set by the caller; the steps' tables.
tj_status tj_instance_sizes(const struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args);
void tj_instance_pack(const struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args);
bool tj_instance_moved(const struct tj_plan *p, const struct tj_plan_instance *in); // it has to be placed (again)
tj_status tj_instance_place(const struct tj_plan *p, struct tj_plan_instance *in, size_t *want);
void tj_instance_fill(const struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args);
void tj_instance_bufs(const struct tj_plan *p, struct tj_plan_instance *in); // of these only the addresses
void tj_instance_unpack(const struct tj_plan *p, struct tj_plan_instance *in);
// Sizes as a run over such arguments would have them, with all weights packed; their memory need not be there.
bool tj_instance_guess(const struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args);
// tj_plan_serves of a plan whose nodes are in the trace as `inlined` tells.
bool tj_plan_fits(const struct tj_plan *p, const struct tj_trace *t, const struct tj_inlined *inlined,
                  struct tj_guard_miss *why);
tj_status tj_plan_steps(struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args);

// ---- plan_repeat.c --------------------------------------------------------------------------------------------------

// Compiles the body of a loop; adds to info what that took and has.
tj_status tj_turns_compile(struct tj_jit *jit, const struct tj_repeat *r, struct tj_plan **body,
                           struct tj_plan_info *info);
// Whether the body of step i serves the trace, as tj_plan_fits.
bool tj_turns_fit(const struct tj_plan *p, uint32_t i, const struct tj_trace *t, const struct tj_inlined *inlined,
                  struct tj_guard_miss *why);
// The same steps as those of an instance, for step i.
tj_status tj_turns_sizes(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in,
                         const struct tj_run_args *args);
bool tj_turns_guess(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, const struct tj_run_args *args);
bool tj_turns_moved(const struct tj_plan *p, uint32_t i, const struct tj_plan_instance *in);
tj_status tj_turns_place(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, size_t *want);
void tj_turns_fill(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in);
void tj_turns_unpack(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in);
tj_status tj_turns_run(struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, const struct tj_run_args *args);
void tj_turns_packed(const struct tj_plan *p, uint32_t i, const struct tj_plan_instance *in,
                     bool *packed);                                          // one a leaf
void tj_turns_free(const struct tj_plan *p, uint32_t i, struct tj_turns *t); // NULL is fine
#endif
