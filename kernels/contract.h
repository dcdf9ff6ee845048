// kernels/contract.h: matmul, convolution, attention and row copies as a plan sees them: create, bind tiles, pack, run.
//
// A contraction is made once a step from the recorded sizes (constants or hints): they choose the algorithm and the
// tiles, never what is right: every extent is read again from the views of each run. A contraction is immutable once
// its tiles are bound and may run on any number of threads at once.
//
// Numbers (docs/semantics): every element of a MATMUL or CONV2D is one fma chain over ascending k (CONV2D: ascending
// (c, kh, kw); taps in the padding add 0 * w like all others) from 0; K beyond TJ_KBLOCK goes in blocks of that size,
// each a chain from 0, added in order; the bias is added last. So the bits depend on nothing but the operands.
#ifndef TJ_KERNELS_CONTRACT_H
#define TJ_KERNELS_CONTRACT_H
#include "../jit/module.h"
#include "../jit/program.h"
#include "../lib/threads.h"

// A tensor of one run: p is its element 0 (offset applied), strides in elements.
struct tj_view {
    unsigned char *p;
    uint8_t dtype, rank;
    int64_t dims[TJ_MAX_RANK], strides[TJ_MAX_RANK];
};

struct tj_contract;

// A contraction for a step of any kind but LOOP. Reads of `st` only what decides code: kind, flags, dtypes, ranks,
// extents (constants or hints), conv, dim, and whether there is an epilogue; keeps no pointer into st or x. threads:
// what a run may use at most. TRACE_OK, MEMORY, or COMPILE for what it can't do (with an error text).
tj_status tj_contract_create(const struct tj_step *st, const struct tj_exprs *x, const struct tj_cpu *cpu, int threads,
                             struct tj_contract **out);
void tj_contract_free(struct tj_contract *c); // NULL is fine
// The micro-kernels it wants: writes the first cap, returns how many there are (at most TJ_CONTRACT_TILES; 0 for steps
// that need none). All must be bound before the first run.
#define TJ_CONTRACT_TILES 4
size_t tj_contract_tiles(const struct tj_contract *c, struct tj_gemm_tile *tiles, size_t cap);
void tj_contract_bind(struct tj_contract *c, size_t i, const void *code);

// Prepacked weights: operand b of a MATMUL, w (operand b too) of a CONV2D. pack_bytes is 0 where the step has no use
// for a packed form. Packing runs on the calling thread. Two packings of views with equal dims, strides and dtype hold
// the same bytes if their layout keys are equal. dst: TJ_ALIGN-aligned.
size_t tj_contract_pack_bytes(const struct tj_contract *c, const struct tj_view *w);
uint64_t tj_contract_pack_layout(const struct tj_contract *c, const struct tj_view *w);
void tj_contract_pack(const struct tj_contract *c, const struct tj_view *w, void *dst);

bool tj_view_empty(const struct tj_view *v);

struct tj_contract_args {
    struct tj_view out, a, b, c, d; // as in tj_step; those the step does not have are ignored
    const void *packed;             // b in packed form, or NULL: packed into the workspace
    double scale;                   // SDPA
    unsigned char *workspace;       // tj_contract_workspace() bytes, TJ_ALIGN-aligned
    struct tj_pool *pool;           // may be NULL when threads is 1
    int threads;                    // at most this many slots
    // Called for parts of the result that are finished, each element once, by several threads at once but never by two
    // with the same slot (0 <= slot < threads). Rows are the linear index over all dims of out but the last. NULL:
    // none.
    void (*epilogue)(void *arg, int slot, int64_t row0, int64_t row1, int64_t col0, int64_t col1);
    void *epilogue_arg;
    bool epilogue_rows_whole;  // the epilogue needs whole rows: col0 = 0, col1 = extent
    bool epilogue_of_nothing;  // the result is empty, and the epilogue has something to store for its rows
    struct tj_data_error *err; // INDEX_COPY: where an index out of range is reported
    tj_ref node;               // with this node
};
// Bytes a run with these arguments needs (workspace is not read; packed, threads and the views' dims and strides are).
// False: the size overflows.
bool tj_contract_workspace(const struct tj_contract *c, const struct tj_contract_args *args, size_t *bytes);
// Runs it. Nothing in it can fail; it allocates nothing.
void tj_contract_run(const struct tj_contract *c, const struct tj_contract_args *args);
#endif
