// jit/loop_llvm.h: what the files that emit loop kernels share: the state of one kernel's function being built.
//
// Places, outermost first: ENTRY once a call, ROW once a row, MID, BODY. MID is a line of the innermost dim in ROWS
// kernels with several reduced dims, and a vector of columns in COLS kernels. An instruction is emitted at the
// outermost place where its operands and coordinates are known; it is a scalar there unless it varies along the vector
// dim.
#ifndef TJ_JIT_LOOP_LLVM_H
#define TJ_JIT_LOOP_LLVM_H
#include "emit_llvm.h"

enum place { AT_ENTRY, AT_ROW, AT_MID, AT_BODY };
enum phase { WHOLE, FIRST, SECOND }; // of split kernels: FIRST writes partials, SECOND joins them

struct value {
    tj_lv s, v; // scalar; vector (of a scalar: its splat, made where first needed)
};
// Bounds of a clamp (or of a maximum or minimum) that don't vary along the vector dim, as vectors made once: with their
// rare cases (NaN, zeros) in two masks, a machine's max and min do.
struct bounds {
    tj_lv lo, hi; // NULL: none
    tj_lv and_mask, or_mask;
};
struct access {
    tj_lv base;      // pointer with the terms known at `level`; NULL: none computed
    uint8_t level;   // place of base
    uint8_t used;    // some instruction of MID or BODY uses it
    bool gather;     // lanes lie anywhere
    bool turned;     // transposed tile by tile: unit stride in `tile`
    tj_lv tile;      // its buffer
    bool in, out;    // goes through a staging buffer in the pass being emitted: read, written
    tj_lv stage;     // the buffer, one vector
    tj_lv real, ptr; // element 0 of the vector dim: in memory; what the body uses
};
struct reduction {
    unsigned ins;
    uint8_t kind;             // enum tj_reduce
    uint8_t cls;              // of the operand: B bool, U unsigned, I signed, F float
    bool tree, arg;           // tree: the order matters (float sums)
    tj_lt elem, memory;       // value and its form in the partials
    tj_lv part, index, stack; // 64 partials, their indices (arg), stack of blocks
    tj_lv depth, result;      // variables: entries on the stack; the reduced value
    tj_lv result_index;
};

struct gen {
    struct tj_emit *e;
    const struct tj_kernel *k;
    enum phase phase;
    unsigned lanes, vdim, nrow; // lanes of a vector; the vector dim; dims a row index stands for
    bool shared;                // one body serves whole vectors and the tail
    // analysis
    uint8_t *place, *ready;        // ready: passes that must be over
    bool *varies, *needed, *splat; // along the vector dim; by a store or check; used as a vector
    uint8_t *need;                 // [npasses][nins]: 1 computed in the pass, 2 read from its row buffer
    int *cache;                    // number of the row buffer, -1: none
    struct value *vals;
    struct bounds *bounds; // of CLAMP, MAXIMUM, MINIMUM; lo and hi NULL: not made
    struct access *acc;
    struct reduction *red;
    unsigned nred;
    // run-time values
    tj_lv args, row0, row1, col0, col1;
    tj_lv *ival, *buf;
    tj_lv svals, scratch, zero; // zero: memory that holds zeros, read by lanes that must not read
    tj_lv coord[TJ_KDIMS], var[TJ_KDIMS];
    tj_lv row;     // index of the row
    tj_lv j;       // coordinate of lane 0 along the vector dim
    tj_lv number;  // number of the element of lane 0 in its row (ROWS), of the element (COLS)
    tj_lv tail;    // lanes that exist; NULL: all
    tj_lv left;    // how many, when tail is set
    tj_lv direct;  // i1: stores go past the caches; NULL: none
    tj_lv counter; // variable: elements seen (ROWS with several reduced dims)
    unsigned pass;
    // The tile that is being computed, of kernels with turned accesses: its first row and column, elements from row to
    // row in the buffers.
    tj_lv tile_row, tile_col, tile_stride;
};

// analyse_llvm.c
tj_status tj_l_refuse(struct gen *g, const char *what, unsigned i); // TRACE_ERR_COMPILE with a text
bool tj_l_has_access(unsigned op);
bool tj_l_inner(const struct gen *g, unsigned i);      // computed, or read again, in each pass that needs it
unsigned tj_l_weight(const struct gen *g, unsigned p); // rough number of machine instructions of a pass's body
tj_status tj_l_analyse(struct gen *g);                 // places, needs, splats

// loop_llvm.c
tj_lv tj_l_ival(struct gen *g, unsigned i);
tj_lv tj_l_scalar(struct gen *g, unsigned i);
tj_lv tj_l_vector(struct gen *g, unsigned i);
tj_lv tj_l_live(struct gen *g, tj_lv mask); // mask (scalar, vector or NULL) and the lanes that exist; NULL: all lanes
void tj_l_emit(struct gen *g, unsigned i);  // one instruction, here
void tj_l_stage(struct gen *g, enum place at, unsigned ready);
void tj_l_bases(struct gen *g, enum place at);
// Vectors [lo, hi) of the vector dim: the body of the pass, the tail masked or staged.
void tj_l_vectors(struct gen *g, tj_lv lo, tj_lv hi);

void tj_l_rows(struct gen *g);              // rows [row0, row1), columns [col0, col1)
void tj_l_coords(struct gen *g, tj_lv row); // coordinates of a row

// tile_llvm.c
bool tj_l_wants_tiles(const struct gen *g);
void tj_l_tiles(struct gen *g);                // as tj_l_rows, in tiles
tj_lv tj_l_tile_at(struct gen *g, unsigned a); // column 0 of the current row in the buffer of a turned access

// access_llvm.c
enum place tj_l_dim_place(const struct gen *g, unsigned d);
tj_lv tj_l_address(struct gen *g, unsigned a, bool lane0); // lane0: with the term of the vector dim
tj_lv tj_l_base(struct gen *g, unsigned a, enum place at); // its part that is known at a place
tj_lv tj_l_load(struct gen *g, unsigned i);
void tj_l_store(struct gen *g, unsigned i);
tj_lv tj_l_coordinate(struct gen *g, unsigned i);
tj_lv tj_l_from_memory(struct gen *g, tj_lv v, uint8_t dtype);
tj_lv tj_l_to_memory(struct gen *g, tj_lv v, uint8_t dtype);
bool tj_l_masks(const struct gen *g, uint8_t dtype); // the level has masked moves for the dtype
void tj_l_stage_in(struct gen *g, unsigned a, tj_lv at);
void tj_l_stage_out(struct gen *g, unsigned a, tj_lv at);

// reduce_llvm.c
void tj_l_red_prepare(struct gen *g);                       // finds the reductions, makes their memory
void tj_l_red_reset(struct gen *g);                         // no blocks yet
void tj_l_red_start(struct gen *g, bool tree, tj_lv count); // partials to the identity (count: elements to come, COLS)
void tj_l_red_add(struct gen *g, unsigned i);               // the body's values of REDUCE i
void tj_l_red_block(struct gen *g, tj_lv block, tj_lv more,
                    tj_lv count);                             // a block is over; more: i1, the row has several
void tj_l_red_finish(struct gen *g, tj_lv more, tj_lv count); // results into vals
void tj_l_red_partial(struct gen *g);                         // split kernels, first phase: stores the block's partial
void tj_l_red_gather(struct gen *g, tj_lv blocks);            // second phase: joins them
#endif
