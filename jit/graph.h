// jit/graph.h: the simplified segment, and what scheduling and lowering share.
//
// Pipeline of tj_program_build (all of it internal to jit/):
//
//   graph.c     trace -> graph. Nodes in program order, extents as expressions; composite ops are taken apart into
//               pointwise, reduce and view nodes (softmax, norms, mean, var, pooling in windows of taps), 16-bit
//               contractions give f32 and are followed by a cast. Every node goes through tj_g_add of
//   simplify.c  which rewrites it (exact algebra, view composition) and finds an equal earlier one (CSE); what nothing
//               reaches is never made, as the trace is marked from outs and writes first.
//   schedule.c  walks the graph backward. A value gets memory only when something demands it: an output, a write, an
//               operand of a contraction, or a kernel that could not inline it. "Time" of everything is a node index:
//               the kernel of root y runs at time y, the write UPDATE u at time u; steps are made in falling order and
//               reversed. So a value that reads memory directly may be inlined only at times before that memory's next
//               write: its deadline. Kernels are grown from their root by a cone (below).
//   lower.c     a cone -> instructions over iteration dims, with affine index maps. What a map cannot express (a
//   reshape
//               that merges dims it may not split, a reduction with another row domain, an expensive value wanted at
//               two different maps) makes the lowering fail with one node to materialise; the cone is then grown again.
//   lower_ops.c the moves: cat, pad, gather, pooling taps, arange, as masks and indirect loads.
//   arrange.c   order and collapse of dims, rows or columns, levels, passes, recompute or cache -> tj_kernel.
//   schedule_steps.c   contractions, in-place writes, index_copy, copies; geometry through views.
//   program.c   driver, dump, free.
//
// Cone of a root y at time t: candidates are popped by falling index, so all users of a popped node have been decided.
// It joins when its users are all inside, when it is cheap to compute again, or when it can be stored as one more
// output (all outside users run after t). REDUCE nodes join when they agree on the rows; a contraction may join as the
// producer of an epilogue.
//
// Index maps: coordinate of node dim j = off + sum over iteration dims of coef*coord + sum of indirect values*coef, all
// coefficients being expressions. Views transform maps; LOAD multiplies with strides.
#ifndef TJ_JIT_GRAPH_H
#define TJ_JIT_GRAPH_H
#include "../lib/cpu.h"
#include "../lib/log.h"
#include "../trace/backend.h"
#include "program.h"

// Ops a graph has beside those of ops.def.
enum tj_gop {
    TJ_G_EXTENT = TJ_KOP_END, // i64, 0-d: value of `ex`
    TJ_G_TAPS,                // in[0]: x [N, C, H, W]; struct tj_attr_taps: a pooling window of few taps
    TJ_G_CHAIN,               // a reduction (struct tj_attr_reduce) of the last dims: elements added in order, from 0
    TJ_G_REPEAT,  // a counted loop: first values, then what its body takes from outside; attr.dim: which of the
                  // program's
    TJ_G_RESULT,  // a carried value after it; attr.dim: slot
    TJ_G_COUNT,   // i64 [OH, OW]: elements an average window divides by; struct tj_attr_taps
    TJ_G_NOTHING, // a value that has no element whatever the run's sizes are; no operands
};
#define TJ_G_RANK (TJ_MAX_RANK + 1) // an integer product gets one dim more
struct tj_attr_taps {
    struct tj_attr_pool pool;
    int64_t max;
    int64_t guarded; // windows may reach over the border
    int64_t h, w;    // TJ_G_COUNT: extents of x as expressions (tj_ex)
};
enum {
    TJ_GF_FORCE = 1, // must be materialised
    TJ_GF_NOCSE = 2, // reads memory that others may write
    TJ_GF_MANY = 4,  // wants each element of its operand many times: that isn't computed inline
};
struct tj_gnode {
    uint16_t op; // TJ_OP_* or TJ_G_*
    uint8_t dtype, rank;
    uint8_t flags; // TJ_GF_*
    uint32_t nin;
    const tj_ref *in; // graph nodes
    const tj_ex *dims;
    const void *attr; // the op's attribute struct
    uint32_t nattr;   // its words
    tj_ref trace;     // trace node it comes from
    tj_ex ex;         // TJ_G_EXTENT, SCALAR of dtype i64: value
};
// PAD in a graph: amounts as expressions (tj_ex); without in[1], it pads with 0, or the least of the dtype.
enum { TJ_G_PAD_ZERO = 100, TJ_G_PAD_LEAST };
struct tj_attr_padding {
    int64_t mode, lo[TJ_MAX_RANK], hi[TJ_MAX_RANK];
};
struct tj_graph {
    const struct tj_segment *seg;
    const struct tj_trace *t;
    struct tj_program *p;
    struct tj_arena *arena; // the program's
    struct tj_exprs *x;     // the program's
    bool simplify, fuse;
    bool failed; // out of memory, or `wrong`
    bool wrong;  // an internal check failed (error text set)
    struct tj_gnode *nodes;
    uint32_t n, cap;
    tj_ref *map;                // trace node -> graph node, TJ_NIL: not reached
    uint32_t *table, tablesize; // CSE
    tj_ref *outs, *writes;      // graph nodes, as in seg
    bool mutates;               // some memory is written
    bool *written;              // graph node is operand 0 of an UPDATE (indexed by trace node)
    // Symbolic segments: extents found equal, b replaced by a, and whether that was news, so that the graph is made
    // again.
    struct {
        tj_ex a, b;
        tj_ref node; // that demands it
        bool fact;   // needs no guard
    } * equal;
    uint32_t nequal, capequal;
    tj_ex *replaced; // what stands for an expression; those from nreplaced on are themselves
    uint32_t nreplaced, capreplaced;
    int64_t *sizes; // that symbols of leaves have, rising
    uint32_t nsizes;
    bool again;
};
// graph.c
tj_status tj_graph_build(struct tj_graph *g);
void tj_graph_free(struct tj_graph *g);
bool tj_g_equal(const struct tj_graph *g, tj_ex a, tj_ex b);        // the same, or guarded to be
tj_ex tj_g_same(struct tj_graph *g, tj_ex a, tj_ex b, tj_ref node); // they have to be equal at run time; gives one
// The same where they are equal at the sizes at hand and shapes tell; false: they can't be.
bool tj_g_meet(struct tj_graph *g, tj_ex a, tj_ex b, tj_ref node);
int64_t tj_g_numel_hint(const struct tj_graph *g, tj_ref n);
tj_ex tj_g_elems(struct tj_graph *g, tj_ref n);    // elements; 0 also where other extents are huge
bool tj_g_nothing(const tj_ex *dims, size_t rank); // whether one of them is always 0
static inline tj_dtype tj_compute_dtype(uint8_t d) { return (tj_dtype)tj_dtypes[d].compute; }
static inline bool tj_g_is(const struct tj_graph *g, tj_ref n, int op) { return g->nodes[n].op == op; }
static inline bool tj_g_view(uint16_t op) { return op < TJ_OP_COUNT && tj_ops[op].cls == TJ_VIEW; }
static inline bool tj_g_pointwise(uint16_t op) { return op < TJ_OP_COUNT && tj_ops[op].cls == TJ_POINTWISE; }
static inline bool tj_g_reduce(uint16_t op) {
    return op == TJ_G_CHAIN || (op < TJ_OP_COUNT && tj_ops[op].cls == TJ_REDUCE);
}
static inline bool tj_g_contract(uint16_t op) { return op < TJ_OP_COUNT && tj_ops[op].cls == TJ_CONTRACT; }
// repeat.c: loops. needs: marks what the loop that REPEAT_OUT `out` ends takes from outside. loop: the node of `out`.
tj_status tj_g_loop_needs(struct tj_graph *g, tj_ref out, uint8_t *reached);
tj_ref tj_g_loop(struct tj_graph *g, tj_ref out);
// simplify.c: adds a node or finds the one that has its value. n->in, dims, attr need not outlive the call.
tj_ref tj_g_add(struct tj_graph *g, const struct tj_gnode *n);
bool tj_g_memory(const struct tj_graph *g, tj_ref n);         // a leaf, written memory, or a view of such
tj_ref tj_g_scalar_index(const struct tj_graph *g, tj_ref n); // param index of a SCALAR, TJ_NIL otherwise
#endif
