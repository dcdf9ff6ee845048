// jit/program.h: a scheduled segment: buffers, steps in order, argument expressions. Schedule writes it, the plan runs
// it.
#ifndef TJ_JIT_PROGRAM_H
#define TJ_JIT_PROGRAM_H
#include "expr.h"
#include "kernel.h"

enum tj_buf_kind { TJ_BUF_LEAF, TJ_BUF_OUT, TJ_BUF_TEMP };
struct tj_buf {
    uint8_t kind; // enum tj_buf_kind
    uint8_t dtype;
    uint32_t index; // LEAF: leaf number; OUT: output number
    tj_ex elems;    // TEMP: number of elements (contiguous)
    tj_ref node;    // value it holds first, for dumps
    uint8_t why;    // OUT, TEMP: enum tj_kept
    tj_ref user;    // trace node that wanted it there, or TJ_NIL
};
// Tensor geometry as a step sees it: strides in elements, offset in elements, all expressions.
struct tj_geom {
    uint32_t buf;
    uint8_t dtype, rank;
    tj_ex offset;
    tj_ex dims[TJ_MAX_RANK], strides[TJ_MAX_RANK];
};
struct tj_scalar_arg {
    uint8_t is_const, dtype;
    int64_t param;
    union tj_scalar value;
}; // param: index of the run's parameter
// A fused loop nest.
struct tj_loop {
    struct tj_kernel *kernel;    // in the program's arena; the plan swaps in the shared compiled one
    uint32_t *bufs;              // nbufs
    tj_ex *ivals;                // nivals ([0]=0, [1]=1)
    struct tj_scalar_arg *svals; // nsvals
    tj_ref *sites;               // nsites: trace nodes of error sites
    tj_ex rows, cols;            // launch box; cols 1 for ROWS
    tj_ex row_elems;             // ROWS, COLS: elements reduced a row
    double cost;                 // estimated ns of one element (all passes), for the threading decision
};
enum tj_step_kind {
    TJ_STEP_LOOP,
    TJ_STEP_MATMUL,
    TJ_STEP_CONV2D,
    TJ_STEP_SDPA,
    TJ_STEP_INDEX_COPY,
    TJ_STEP_COPY,
    TJ_STEP_REPEAT
};
// A counted loop: its body is a program of its own, run once a turn.
struct tj_body;
struct tj_repeat {
    struct tj_body *body;  // the program's
    struct tj_geom *init;  // one a carried value: its memory before the first turn, contiguous
    struct tj_geom *value; // one a leaf of the body, of those computed before the loop: contiguous
    uint32_t *out;         // one a carried value: buffer of the last one
};
struct tj_loop_body {
    struct tj_body *body;
    tj_ref node; // of the graph, once made
    bool made;
};
struct tj_step {
    uint8_t kind; // enum tj_step_kind
    uint8_t has_bias, causal, gqa, has_mask;
    uint8_t weight_stable; // MATMUL, CONV2D: operand b/w is a leaf that may be prepacked (not volatile, not written)
    struct tj_loop loop;   // LOOP; or the epilogue of a MATMUL/CONV2D (kernel NULL: none)
    struct tj_geom out;    // MATMUL, CONV2D, SDPA: result; INDEX_COPY, COPY: destination
    struct tj_geom a, b, c,
        d;       // MATMUL: a [.., M, K], b [.., K, N] (batch dims already expanded to out's, stride 0 where
                 // broadcast; linear's weight comes as the transposed view), c bias [N].
                 // CONV2D: x, w, bias. SDPA: q, k, v, mask expanded to [.., L, S].
                 // INDEX_COPY: out = destination in place, a = index, b = source. COPY: a = source.
    int64_t dim; // INDEX_COPY
    struct tj_attr_conv conv;
    struct tj_scalar_arg scale; // SDPA
    struct tj_repeat *repeat;   // REPEAT, else NULL
    tj_ref node;                // trace node: host line, error site
    const char *name;           // for dumps and perf maps
    uint32_t *reads, *writes;   // buffers, for the memory planner (nreads, nwrites); epilogue's included
    uint32_t nreads, nwrites;
    tj_ref *ops; // trace nodes computed in it, ascending
    uint32_t nops;
    tj_ex bytes_read, bytes_written; // of one run
};
// A guard of a symbolic program: the two expressions must be equal at run time.
struct tj_guard {
    tj_ex a, b;
    tj_ref node;
};
// A word of a node's attributes that traces served may not change.
struct tj_amount {
    tj_ref node;
    uint32_t word;
    int64_t value;
};
// A symbol and the capacity of its bucket.
struct tj_bucket {
    tj_ex symbol;
    int64_t size;
};
struct tj_program {
    struct tj_arena arena; // owns everything below
    struct tj_exprs exprs;
    struct tj_buf *bufs;
    uint32_t nbufs;
    struct tj_step *steps;
    uint32_t nsteps;
    struct tj_guard *guards;
    uint32_t nguards;
    // Symbolic programs: the extents of every node of the trace that is needed, else TJ_EX_NONE; those of a node begin
    // at extent_at. A trace that the program serves has these extents.
    tj_ex *extents;
    uint32_t *extent_at, nextents;
    struct tj_bucket *caps; // sizes that workspaces are laid out for
    uint32_t ncaps;
    struct tj_amount *amounts; // that are constants of the program
    uint32_t namounts;
    struct tj_loop_body *bodies; // of its loops
    uint32_t nbodies, capbodies;
    uint32_t nouts, nops, nfused; // nfused: recorded ops without a step of their own
    tj_ex bytes_moved;            // of one run
};
// Epilogue protocol: a MATMUL/CONV2D step with an epilogue stores its f32/f64 result rows into `out` (a TEMP or the
// final buffer), and after every finished block of rows calls the epilogue's kernel on it while it is in cache. The
// epilogue's kernel has kind POINTWISE or ROWS; its rows are the linear index over all dims of out but the last;
// columns the last dim. A POINTWISE one after a CONV2D goes by planes: rows are the linear index over (image, channel),
// columns the pixels.

struct tj_cpu;
struct tj_env;
struct tj_segment;
// Graph building, simplification, scheduling, lowering: seg -> program. TRACE_OK or MEMORY/COMPILE with an error text.
tj_status tj_program_build(const struct tj_segment *seg, const struct tj_env *env, const struct tj_cpu *cpu,
                           struct tj_program **out);
void tj_program_free(struct tj_program *p);
void tj_program_dump(const struct tj_program *p, const struct tj_trace *t, struct tj_strbuf *sb);
#endif
