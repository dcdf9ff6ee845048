// jit/kernel.h: a fused loop nest, independent of the target: what lowering produces and every emitter reads.
//
// A kernel iterates over `ndims` dims. Its instructions are in SSA form in execution order, operands before users.
//
//   POINTWISE   all dims parallel; the last dim is the vector dim. One pass.
//   ROWS        dims [0, npar) parallel, the rest reduced, the last one (reduced) is the vector dim. Instructions have
//   a
//               level: ROW values do not depend on the reduced dims and are computed once a row, FULL values are
//               computed for every element. A REDUCE takes a FULL value and gives a ROW value. FULL instructions carry
//               the pass they are computed in (a pass is one walk over the reduced dims); a REDUCE of pass p may be
//               used by ROW instructions and by FULL ones of passes > p. A FULL value used in a later pass than it was
//               computed in is either flagged CACHE (kept in a row buffer of the kernel's scratch, valid when the
//               reduced dims collapsed to one) or computed again by a duplicate instruction; lowering decides, the
//               emitter obeys.
//   COLS        dims [0, npar) parallel, then the reduced dims, then the last dim: parallel and the vector dim. Levels
//   and
//               passes as for ROWS, with a "row" being a vector of columns. No CACHE.
//
// Reduction order (contract, docs/semantics): elements count in row-major order over the reduced dims; element i goes
// to partial i mod 64 of block i / 4096; partials start at the identity, and join by halving (p[j] + p[j+32], then 16,
// ..., 1); blocks join as a balanced binary tree by number: a stack of partial results, where after block b trailing
// ones of b+1 merge as left + right, and what remains at the end merges from the top down (right-most first). MAX, MIN,
// ANY, ALL, ARGMAX, ARGMIN may use any order (their result does not depend on it). CHAIN (COLS kernels only) adds one
// element after the other to +0.
//
// Values have a dtype; f16 and bf16 values are held as f32: loads widen, stores narrow exactly, and lowering puts a
// ROUND after every op that has to round. Integer ops wrap. bool values are i1.
//
// Accesses: address (elements) = offset + sum over dims of coord*stride + sum over indirect terms value*stride. Strides
// and offsets are indices into the integer arguments, where ivals[0] is always 0 and ivals[1] always 1: a stride index
// of 0 or 1 is baked into the code, everything else is a run-time argument. `vec` says what the stride of the vector
// dim is. Where it is TURNED (POINTWISE kernels, accesses without indirect terms of loads and stores without masks), a
// tile of rows and columns is transposed into a buffer before the rows are computed, or out of it afterwards, so that
// both sides are gone through in vectors.
//
// What lowering promises beyond that: npar is ndims in POINTWISE kernels; row values that are reduced are lifted by a
// FULL CAST to their own dtype; all loads of a pass come before its stores, and memory that is read as well as stored
// to is stored to in the last pass, only at the very elements read; a CHECK stands before every integer division or
// power that may fail, and the instruction itself gives 0 there without trapping. Integer arguments are shared within a
// role (offset, stride of one dim, value), never because two extents happen to be equal.
//
// Nothing here depends on extents unless `baked` says so: equal kernels serve any size. The keyed content of a kernel
// is the serialised form of everything but `name` and `locs`.
#ifndef TJ_JIT_KERNEL_H
#define TJ_JIT_KERNEL_H
#include "../trace/backend.h"
#include "../trace/ir.h"

#define TJ_KDIMS 12
typedef uint16_t tj_kv; // instruction index; TJ_KNONE = absent
#define TJ_KNONE UINT16_MAX

enum tj_kernel_kind { TJ_K_POINTWISE, TJ_K_ROWS, TJ_K_COLS };
// Kernel instructions: every POINTWISE op of ops.def (TJ_OP_x: operands a, b, c, d, e, f; compute dtype = dtype of its
// operands; BATCH_NORM included), TJ_OP_CAST, and:
enum tj_kop {
    TJ_KOP_CONST = TJ_OP_COUNT, // imm: bits of `dtype` (f32/f64 values as double bits, integers as int64)
    TJ_KOP_SVAL,                // scalar argument imm of `dtype` (svals[imm])
    TJ_KOP_IVAL,                // integer argument imm (ivals[imm]) as i64
    TJ_KOP_COORD,               // i64: access[imm] used as an affine form: offset + sum coord*stride
    TJ_KOP_LOAD,                // access[imm]; a: mask (bool) or KNONE; masked-off lanes read nothing and give 0
    TJ_KOP_STORE,               // access[imm]; a: value, b: mask or KNONE. ROW-level stores are executed once a row
    TJ_KOP_ROUND,               // a (f32) rounded to f16/bf16 (imm: enum trace_dtype) and back
    TJ_KOP_REDUCE,              // a: FULL value; imm: enum tj_reduce; result dtype: SUM in dtype of a; ARG: i64
    TJ_KOP_CHECK, // a: condition, b: offending i64 value, c: extent (i64) or KNONE, d: mask of lanes that count or
                  // KNONE; imm: kind<<24 | error site. Where false (and mask), sets the run's data error. No value.
    TJ_KOP_FMA,   // a*b + c, one rounding (decomposed norms use it where their definition says so)
    TJ_KOP_END
};
enum tj_reduce {
    TJ_RED_SUM,
    TJ_RED_MAX,
    TJ_RED_MIN,
    TJ_RED_ANY,
    TJ_RED_ALL,
    TJ_RED_ARGMAX,
    TJ_RED_ARGMIN,
    TJ_RED_CHAIN
};
enum tj_level { TJ_FULL, TJ_ROWLEVEL };
enum { TJ_KF_CACHE = 1 };
struct tj_kins {
    uint16_t op;   // TJ_OP_* or TJ_KOP_*
    uint8_t dtype; // of the value; CHECK, STORE: 0
    uint8_t level; // enum tj_level (POINTWISE kernels: FULL)
    uint8_t pass;  // FULL: the pass it is computed in; REDUCE: the pass it accumulates in; other ROW values: the number
                   // of passes that must be over before it
    uint8_t flags; // TJ_KF_*
    tj_kv in[6];   // operands a..f; unused: KNONE
    uint16_t pad;
    int64_t imm;
};
enum { TJ_VEC_ZERO, TJ_VEC_UNIT, TJ_VEC_STRIDED, TJ_VEC_TURNED };
enum { TJ_TURNED_MAX = 6 }; // accesses of a kernel
struct tj_kaccess {
    uint16_t buf;  // buffer argument (LOAD, STORE)
    uint8_t dtype; // of the memory
    uint8_t vec;   // TJ_VEC_*: stride of the vector dim is 0, 1, other (or an indirect term varies along it), or other
                   // and the one of the dim before it 1: goes through tiles that are transposed
    uint16_t offset;           // ival
    uint16_t stride[TJ_KDIMS]; // ivals
    uint8_t nindirect, pad;
    tj_kv ind_value[2];     // i64 values
    uint16_t ind_stride[2]; // ivals
};
struct tj_kernel {
    // keyed
    uint8_t kind;        // enum tj_kernel_kind
    uint8_t ndims, npar; // npar: leading parallel dims
    uint8_t npasses;
    uint8_t stream; // store past the caches (unit-stride, TJ_ALIGN-aligned stores of POINTWISE kernels)
    uint8_t split;  // ROWS with one REDUCE and one row's work worth several threads: emitted in two phases, see below
    uint16_t nins, naccess, nbufs, nivals, nsvals, nsites;
    uint16_t extent[TJ_KDIMS]; // ival index of every dim's extent
    struct tj_kins *ins;
    struct tj_kaccess *access;
    // not keyed
    const char *name;    // readable: region and op names
    struct tj_loc *locs; // one an instruction: host line, for dumps
};

// ---- what an emitted kernel looks like to its caller --------------------------------------------------------------

// Arguments of one launch; all threads share it.
struct tj_kargs {
    unsigned char *const *bufs; // element 0 of every buffer argument
    const int64_t *ivals;
    const union tj_scalar *svals; // floats as double, integers and bool as int64
    struct tj_data_error *err;
    const uint32_t *sites;      // trace node of every error site
    unsigned char *scratch;     // this thread's, tj_kernel_scratch() bytes, TJ_ALIGN-aligned; NULL if none needed
    unsigned char *partials;    // split kernels: one partial result (8 bytes) a row and block
    const void *const *helpers; // C functions by enum tj_helper (scalar libm, exact remainder, transposes)
};
// Runs rows [row0, row1) x columns [col0, col1).
//  POINTWISE: rows = linear index over dims [0, ndims-1), columns = the vector dim.
//  ROWS: rows = linear index over [0, npar); columns ignored. COLS: rows = linear index over [0, npar), columns = last
//  dim. split kernels (the REDUCE is not ARGMAX or ARGMIN), phase 1: rows = linear index over rows*blocks (block
//  fastest; blocks of 4096 elements of the collapsed reduced dim): writes partials. Phase 2 (a second function): rows
//  as for ROWS: joins the partials, does the rest.
typedef void (*tj_kernel_fn)(const struct tj_kargs *a, int64_t row0, int64_t row1, int64_t col0, int64_t col1);
struct tj_kernel_code {
    tj_kernel_fn fn, fn2; /* fn2: phase 2 of split kernels, else NULL */
};

enum tj_helper {
    TJ_H_FMODF,
    TJ_H_FMOD,
    TJ_H_POW,
    TJ_H_EXP,
    TJ_H_LOG,
    TJ_H_SIN,
    TJ_H_COS,
    TJ_H_TANH,
    TJ_H_ERF,
    TJ_H_LOG1P,
    TJ_H_TURN,                     // four: kernels/transpose.h for elements of 1, 2, 4, 8 bytes, of tiles
    TJ_H_TURN_ALL = TJ_H_TURN + 4, // of any size
    TJ_HELPERS = TJ_H_TURN_ALL + 4
}; // double f(double) or double f(double, double) from libm, but FMODF: float f(float, float), and TURN

// Bytes of scratch a thread needs for a kernel whose reduced row has `row_elems` elements (cached values, partials):
// what tj_kernel_scratch returns. Layout: a row buffer for every CACHE instruction, in order: row_elems rounded up to
// TJ_ROW_PAD (emitted code stores whole vectors), TJ_ROW_ELEM bytes each; then, in COLS kernels, TJ_COLS_PARTIALS bytes
// for every REDUCE: 64 partials, their indices (ARGMAX, ARGMIN), and the stack of blocks, each of 16 lanes of 8 bytes.
enum { TJ_ROW_PAD = 64, TJ_ROW_ELEM = 8, TJ_COLS_PARTIALS = 3 * 64 * 16 * 8 };
size_t tj_kernel_scratch(const struct tj_kernel *k, int64_t row_elems);
uint64_t tj_kernel_hash(const struct tj_kernel *k);
bool tj_kernel_equal(const struct tj_kernel *a, const struct tj_kernel *b);
struct tj_kernel *tj_kernel_copy(const struct tj_kernel *k); // one tj_malloc block; NULL on failure
bool tj_kernel_turns(const struct tj_kernel *k);             // has TURNED accesses: cut by columns where that can be
bool tj_kernel_verify(const struct tj_kernel *k, char *err, size_t cap);
void tj_kernel_dump(const struct tj_kernel *k, struct tj_strbuf *sb);
#endif
