// jit/lower.h: scheduling and lowering state, shared by schedule*.c, lower*.c and arrange.c.
#ifndef TJ_JIT_LOWER_H
#define TJ_JIT_LOWER_H
#include "graph.h"

#define TJ_NOBUF UINT32_MAX
#define TJ_NEVER UINT32_MAX // time after everything

// ---- scheduling ---------------------------------------------------------------------------------------------------

enum {
    TJ_S_LIVE = 1,    // reachable from outs and writes
    TJ_S_NEED = 2,    // must be in memory
    TJ_S_DONE = 4,    // its store is scheduled
    TJ_S_FORCE = 8,   // never inlined; a view of memory: copied
    TJ_S_NOABS = 16,  // not an additional output of a user's kernel
    TJ_S_NOEPI = 32,  // no epilogue
    TJ_S_ROWISH = 64, // a reduction, or pointwise in the shape of one
    TJ_S_OUT = 128,   // an output
};
struct tj_sched {
    struct tj_graph *g;
    struct tj_exprs *x;
    struct tj_program *p;
    const struct tj_env *env;
    const struct tj_cpu *cpu;
    uint32_t n;                // nodes
    uint8_t *flags;            // TJ_S_*
    uint32_t *user_at, *users; // users of node i: users[user_at[i] .. user_at[i+1])
    uint32_t *buf;             // buffer of a computed value, TJ_NOBUF: none yet
    uint32_t *deadline;        // last time at which it may be computed inline
    uint32_t *cls;             // memory nodes and their views: hazard class of the leaf, TJ_NOBUF: not leaf memory
    uint16_t *dupcost;         // instructions (transcendentals count more) to compute it again from memory
    struct tj_geom **alias;    // geometry in leaf memory
    bool *through;             // views that writes go through: their strides may need guards
    uint32_t *incone;          // stamp: member of the current cone
    uint32_t *within;          // uses by members whose users are members too, or run later; of stamp within_job
    uint32_t *within_job;      // stamp
    tj_ref *lineage;           // root value whose memory an UPDATE chain writes; of others: themselves
    uint32_t *seen;            // stamp: was a candidate of the current cone
    uint32_t *noinline_;       // job: not inlined in this kernel
    uint32_t job;
    uint32_t *memo; // first memo entry + 1 of the kernel being lowered
    uint32_t stamp;
    uint32_t *leafbuf;           // buffer of a leaf
    uint32_t *leafcls;           // hazard class of a leaf
    uint32_t *wtimes, *wtime_at; // writes to leaf memory, by time: those of class c are wtimes[wtime_at[c]] on
    uint32_t nwtimes;
    struct tj_step *steps;
    uint32_t nsteps, capsteps; // in falling order
    struct tj_buf *bufs;
    uint32_t nbufs, capbufs;
    uint32_t *heap;
    uint32_t nheap, capheap;
    tj_ref *chain; // views between an operand and memory
    uint32_t capchain;
    uint32_t *members;
    uint32_t nmembers, capmembers;
    struct tj_lower *lower; // reused
    // For reports: why candidates stayed outside of a cone (enum tj_kept).
    uint8_t *why, *force_why; // of the kernel why_job; of TJ_S_FORCE
    uint32_t *why_job;
    uint8_t refused;         // by joins
    uint8_t demand;          // what the caller of tj_s_buffer wants memory for, 0: what the cone says
    tj_ref demand_by;        // trace node
    uint32_t *op_job;        // trace node: is in ops of the kernel op_stamp
    uint32_t op_stamp, nops; // trace nodes of the step being made
    tj_ref *ops;
    uint32_t capops;
    // The current cone.
    bool redset;   // it reduces; extents of the reduced dims other than 1, in order
    bool row_root; // its root is a row value
    tj_ex redext[TJ_G_RANK];
    uint32_t nred;
    int64_t rows, full; // hints: row values, elements
    tj_ref epi;         // contraction it is the epilogue of, or TJ_NIL
    tj_status status;
};
#define TJ_NODE(s, r) (&(s)->g->nodes[r])
static inline bool tj_is_alias(const struct tj_sched *s, tj_ref n) {
    return s->alias[n] && !(s->flags[n] & TJ_S_FORCE);
}

tj_status tj_schedule(struct tj_graph *g, const struct tj_env *env, const struct tj_cpu *cpu); // fills g->p
tj_status tj_s_memory(struct tj_sched *s); // sets and returns the status
// schedule_steps.c
uint32_t tj_s_next_write(const struct tj_sched *s, uint32_t cls, uint32_t after); // first write at a time > after
uint32_t tj_s_buffer(struct tj_sched *s, tj_ref n);                               // demands memory for a computed value
void tj_s_buffer_geom(struct tj_sched *s, tj_ref n, uint32_t buf, struct tj_geom *out); // contiguous, shape of n
bool tj_s_view_geom(struct tj_sched *s, const struct tj_geom *in, tj_ref view, struct tj_geom *out);
void tj_s_geom(struct tj_sched *s, tj_ref n, struct tj_geom *out); // of an operand; demands memory where needed
// As above, but the memory of `lineage` (root of in-place writes) is in `buf`; false: not expressible.
bool tj_s_geom_in(struct tj_sched *s, tj_ref n, tj_ref lineage, uint32_t buf, struct tj_geom *out);
// Work of a pointwise op per element, in units of an addition: what is worth storing rather than computing again.
uint32_t tj_op_cost(uint32_t op);
bool tj_s_contraction(struct tj_sched *s, tj_ref c, struct tj_loop *epilogue);
bool tj_s_index_copy(struct tj_sched *s, tj_ref n, const struct tj_geom *dst, tj_ref index, tj_ref src);
struct tj_step *tj_s_step(struct tj_sched *s, uint8_t kind, tj_ref node);
void tj_s_ops_start(struct tj_sched *s); // trace nodes that the next step computes, for reports
void tj_s_ops_add(struct tj_sched *s, tj_ref trace);
bool tj_s_step_done(struct tj_sched *s, struct tj_step *st); // fills reads and writes
uint32_t tj_s_new_buf(struct tj_sched *s, uint8_t kind, uint8_t dtype, uint32_t index, tj_ex elems, tj_ref node);
uint32_t tj_s_buf_class(const struct tj_sched *s, uint32_t buf); // buffers of equal class may share memory
bool tj_s_contiguous(struct tj_sched *s, const struct tj_geom *g);
bool tj_s_repeat(struct tj_sched *s, tj_ref n); // repeat.c: the step of a loop
void tj_s_scalar(const struct tj_sched *s, tj_ref n, struct tj_scalar_arg *out);

// ---- lowering -----------------------------------------------------------------------------------------------------

// One coordinate of a node in terms of the kernel's iteration dims.
struct tj_ixd {
    tj_ex off;
    tj_ex coef[TJ_KDIMS];
    uint32_t nind;
    tj_ex indc[2];
    uint32_t ind[2]; // instructions of dtype i64
};
struct tj_map {
    uint32_t mask; // instruction: lanes that count, or TJ_LNONE
    uint32_t rank;
    struct tj_ixd d[TJ_G_RANK];
};
#define TJ_LNONE UINT32_MAX
struct tj_li { // instruction before arranging; operands are 32-bit
    uint16_t op;
    uint8_t dtype;
    uint32_t in[6];
    int64_t imm;  // IVAL: expression; SVAL: scalar; LOAD, STORE, COORD: access; CHECK: kind<<24 | site
    tj_ref node;  // trace node
    tj_ref value; // REDUCE: graph node
};
struct tj_la { // access before arranging
    uint32_t buf;
    uint8_t dtype;
    tj_ex off, coef[TJ_KDIMS];
    uint32_t nind, ind[2];
    tj_ex indc[2];
};
struct tj_memo {
    tj_ref node;
    const struct tj_map *map;
    uint32_t value, next;
};
struct tj_lower {
    struct tj_sched *s;
    struct tj_arena tmp; // maps
    // Iteration space. Base dims: the root's dims other than 1, then the reduced ones of a kernel whose root is a row
    // value. Each base dim is split into one or more iteration dims.
    uint32_t nbase, nfac[TJ_KDIMS];
    tj_ex fac[TJ_KDIMS][TJ_KDIMS];
    uint32_t niter, first[TJ_KDIMS]; // first iteration dim of a base dim
    tj_ex ext[TJ_KDIMS];
    bool red[TJ_KDIMS];
    bool redset;
    uint32_t reducing; // operands of reductions being lowered, one in another
    struct tj_li *ins;
    uint32_t nins, capins;
    struct tj_la *acc;
    uint32_t nacc, capacc;
    struct tj_scalar_arg *svals;
    uint32_t nsvals, capsvals;
    tj_ref *sites;
    uint32_t nsites, capsites;
    struct tj_memo *memo;
    uint32_t nmemo, capmemo;
    uint32_t limit;   // instructions
    tj_ref epi;       // contraction whose epilogue this is, or TJ_NIL
    uint32_t epi_buf; // its buffer
    tj_ref trace;     // trace node being lowered
    uint32_t depth;
    // Why lowering stopped: a node to materialise, dims to split, or no memory.
    enum { TJ_L_OK, TJ_L_FORCE, TJ_L_SPLIT, TJ_L_MEMORY, TJ_L_TOOBIG } stop;
    tj_ref stop_node;
    uint8_t stop_why; // FORCE: enum tj_kept
    uint32_t split_iter;
    tj_ex split_by; // extent of the inner part
    tj_ex split_outer;
};
// lower.c
void tj_lo_reset(struct tj_lower *l, bool keep_splits);
uint32_t tj_lo_value(struct tj_lower *l, tj_ref n, const struct tj_map *m); // instruction, TJ_LNONE when stopped
uint32_t tj_lo_emit(struct tj_lower *l, int op, tj_dtype d, uint32_t a, uint32_t b, uint32_t c, int64_t imm);
uint32_t tj_lo_const(struct tj_lower *l, tj_dtype d, double f, int64_t i);
uint32_t tj_lo_ival(struct tj_lower *l, tj_ex e);
uint32_t tj_lo_coord(struct tj_lower *l, const struct tj_ixd *x);           // a coordinate as an i64 value
uint32_t tj_lo_operands(const struct tj_lower *l, uint32_t i, uint32_t *v); // of instruction i, at most 8
uint32_t tj_lo_load(struct tj_lower *l, const struct tj_geom *g, const struct tj_map *m);
void tj_lo_store(struct tj_lower *l, const struct tj_geom *g, const struct tj_map *m, uint32_t value, tj_dtype d);
uint32_t tj_lo_and(struct tj_lower *l, uint32_t mask, uint32_t cond); // mask may be TJ_LNONE
void tj_lo_stop(struct tj_lower *l, int why, tj_ref node);
void tj_lo_force(struct tj_lower *l, tj_ref node, enum tj_kept why); // TJ_L_FORCE with its reason
struct tj_map *tj_lo_map(struct tj_lower *l, const struct tj_map *like, uint32_t rank);
void tj_lo_add_scaled(struct tj_lower *l, struct tj_ixd *to, const struct tj_ixd *x, tj_ex scale);
void tj_lo_identity(struct tj_lower *l, tj_ref n, struct tj_map *m); // root's own coordinates
void tj_lo_check(struct tj_lower *l, tj_ref n, int kind, uint32_t cond, uint32_t value, uint32_t ext, uint32_t mask);
// lower_ops.c: MOVE, POOL and SOURCE ops.
uint32_t tj_lo_move(struct tj_lower *l, tj_ref n, const struct tj_map *m);
// arrange.c: to a kernel. False: stopped (l->stop), or out of memory.
bool tj_arrange(struct tj_lower *l, const uint32_t *hazard_bufs, uint32_t nhazard, struct tj_loop *out);
static inline tj_ex tj_lo_bin(struct tj_lower *l, enum tj_ex_op op, tj_ex a, tj_ex b) {
    return tj_ex_bin(l->s->x, op, a, b);
}
#endif
