// trace/interp.h: inside of the interpreter: values, typed loads and stores, walks over strided elements.
#ifndef TJ_TRACE_INTERP_H
#define TJ_TRACE_INTERP_H
#include "backend.h"
#include "math.h"

// Where a node's value lies. Planning fills everything but p; p is known once all memory is there.
struct tj_ival {
    unsigned char *p;             // element 0
    int64_t offset;               // bytes from the owner's memory to element 0
    int64_t strides[TJ_MAX_RANK]; // elements; may be negative inside one op only
    uint32_t owner;               // index into interp.owners
    uint32_t next;                // next value in the same memory, or TJ_NIL
    uint32_t last;                // position of the last use; TJ_NIL: a result of the segment
    tj_ref root;                  // of an UPDATE: the node below all updates of its memory; else the node
    bool needed;
    unsigned char scalar[8]; // memory of a SCALAR
};
struct tj_interp {
    const struct tj_segment *seg;
    const struct tj_trace *t;
    const struct tj_run_args *args;
    const tj_ref *origin;   // body of a loop: its nodes -> those of the segment that runs; else NULL
    struct tj_ival *vals;   // one a node
    unsigned char *scratch; // largest need of any op
};

// A value as an op sees it.
struct tj_iview {
    unsigned char *p;
    tj_dtype dtype;
    size_t rank;
    int64_t dims[TJ_MAX_RANK];
    int64_t st[TJ_MAX_RANK]; // bytes
};
struct tj_iview tj_iview_of(const struct tj_interp *it, tj_ref n);
// The same broadcast to dims, aligned at the last dim.
struct tj_iview tj_iview_expand(const struct tj_iview *v, const int64_t *dims, size_t rank);
static inline const struct tj_node *tj_inode(const struct tj_interp *it, tj_ref n) { return &it->t->nodes[n]; }
static inline tj_ref tj_iin(const struct tj_interp *it, tj_ref n, uint32_t k) {
    return tj_node_in(it->t, &it->t->nodes[n])[k];
}

// ---- typed access: values are computed as float (f16, bf16, f32), double, or int64 (integers, bool) ----------------

enum tj_iclass { TJ_I_FLOAT, TJ_I_DOUBLE, TJ_I_INT };
static inline enum tj_iclass tj_iclass_of(tj_dtype d) {
    return d == TRACE_F64 ? TJ_I_DOUBLE : (tj_is_float(d) ? TJ_I_FLOAT : TJ_I_INT);
}
#define TJ_CHUNK 256
union tj_chunk {
    float f[TJ_CHUNK];
    double d[TJ_CHUNK];
    int64_t i[TJ_CHUNK];
};
// n elements `stride` bytes apart to or from an array of the dtype's class. Stores round and wrap.
void tj_iload(tj_dtype d, const unsigned char *p, int64_t stride, int64_t n, void *dst);
void tj_istore(tj_dtype d, unsigned char *p, int64_t stride, int64_t n, const void *src);
double tj_iload_f64(tj_dtype d, const unsigned char *p); // one element of any dtype
int64_t tj_iload_i64(tj_dtype d, const unsigned char *p);
void tj_istore_scalar(tj_dtype d, unsigned char *p, union tj_scalar v);

// ---- walks ---------------------------------------------------------------------------------------------------------

// Row-major walk over up to 8 arrays of one shape. Dims that lie behind each other in all arrays are merged first.
#define TJ_WALK 8
struct tj_walk {
    size_t rank, narrays;
    int64_t dims[TJ_MAX_RANK], st[TJ_WALK][TJ_MAX_RANK], at[TJ_MAX_RANK];
    unsigned char *p[TJ_WALK];
    int64_t left; // elements not visited
};
void tj_walk_init(struct tj_walk *w, const int64_t *dims, size_t rank, const struct tj_iview *arrays, size_t n);
// Length of the longest straight run from here, at most max; 0 at the end. The arrays' addresses are in w->p, the
// distance of neighbours in a run is tj_walk_stride.
int64_t tj_walk_run(const struct tj_walk *w, int64_t max);
static inline int64_t tj_walk_stride(const struct tj_walk *w, size_t array) { return w->st[array][w->rank - 1]; }
void tj_walk_advance(struct tj_walk *w, int64_t n); // n: at most what tj_walk_run gave
// Next n elements of array 0 (n at most w->left) into a typed array.
void tj_walk_read(struct tj_walk *w, tj_dtype d, int64_t n, void *dst);
void tj_walk_write(struct tj_walk *w, tj_dtype d, int64_t n, const void *src);

// One element; a bool becomes 0 or 1.
static inline void tj_icopy_one(tj_dtype d, unsigned char *to, const unsigned char *from) {
    if (d == TRACE_BOOL) {
        *to = *from != 0;
    } else {
        memcpy(to, from, tj_elem_bytes(d));
    }
}
// Copies elements between views of equal shape and dtype.
void tj_icopy(const struct tj_iview *dst, const struct tj_iview *src);
// Records the run's first data error.
void tj_idata_error(const struct tj_interp *it, tj_ref node, int kind, int64_t index, int64_t extent);

// ---- views as arithmetic on extents and strides --------------------------------------------------------------------

struct tj_igeom {
    size_t rank;
    int64_t dims[TJ_MAX_RANK], strides[TJ_MAX_RANK]; // elements
    int64_t offset;                                  // elements
};
// Applies the VIEW node n to g; false when the result can't be expressed by strides (then the elements are copied).
bool tj_igeom_view(const struct tj_interp *it, tj_ref n, struct tj_igeom *g);

// ---- ops, by class. Operands and result lie in it->vals; the result is written whole. ------------------------------

size_t tj_interp_scratch(const struct tj_interp *it, tj_ref n); // bytes
void tj_interp_pointwise(const struct tj_interp *it, tj_ref n);
void tj_interp_cast(const struct tj_interp *it, tj_ref n);
void tj_interp_arange(const struct tj_interp *it, tj_ref n);
void tj_interp_reduce(const struct tj_interp *it, tj_ref n);
void tj_interp_row(const struct tj_interp *it, tj_ref n);
void tj_interp_move(const struct tj_interp *it, tj_ref n); // not UPDATE
void tj_interp_contract(const struct tj_interp *it, tj_ref n);
void tj_interp_pool(const struct tj_interp *it, tj_ref n);
#endif
