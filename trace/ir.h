// trace/ir.h: recorded ops: nodes, their attributes, leaves, parameters; all flat arrays of one trace.
//
// A trace is a list of fixed-size nodes in program order, operands before users. Everything that decides what code is
// generated lives in the keyed arrays (nodes, dims, attrs, operands), which are compared with memcmp to confirm a cache
// hit: they hold no pointer and no padding, and two recordings of the same ops give the same bytes. What changes from
// run to run without changing code (scalar values, leaf tensors, source lines) lives in the unkeyed arrays.
#ifndef TJ_TRACE_IR_H
#define TJ_TRACE_IR_H
#include "../lib/base.h"

typedef uint32_t tj_ref; // node index; TJ_NIL = none
#define TJ_NIL UINT32_MAX

enum tj_op {
#define TJ_OP(NAME, ...) TJ_OP_##NAME,
#include "ops.def"
#undef TJ_OP
    TJ_OP_COUNT
};
enum tj_op_class { TJ_SOURCE, TJ_POINTWISE, TJ_REDUCE, TJ_ROW, TJ_VIEW, TJ_MOVE, TJ_CONTRACT, TJ_POOL, TJ_LOOP };
enum tj_numeric { TJ_EXACT, TJ_REDUCTION, TJ_CONTRACTION };
enum tj_dtype_rule { TJ_RULE_SAME, TJ_RULE_FLOAT, TJ_RULE_BOOL, TJ_RULE_OWN };
enum { TJ_FLAG_0 = 0, TJ_FLAG_C = 1, TJ_FLAG_N = 2 };
struct tj_op_info {
    const char *name;
    int8_t nin;
    uint8_t cls, numeric, rule, flags;
    const char *doc;
};
extern const struct tj_op_info tj_ops[TJ_OP_COUNT];

struct tj_node {
    uint16_t op;    // enum tj_op
    uint8_t dtype;  // enum trace_dtype of the result
    uint8_t nattr;  // 8-byte words of attributes
    uint32_t shape; // offset into dims: dims[shape] = rank, then the extents. Equal shapes have equal offsets.
    uint32_t nin;   // operand count
    uint32_t attr;  // offset into attrs of the op's attribute struct; 0 when nattr is 0
    tj_ref in[4];   // operands; with nin > 4, in[0] is an offset into operands and the rest is 0. Unused: 0
};
_Static_assert(sizeof(struct tj_node) == 32, "nodes are hashed and compared as bytes");

// ---- attributes: one struct an op, int64 fields only, zeroed before filling ----------------------------------------
struct tj_attr_leaf {
    int64_t index;
}; // LEAF
struct tj_attr_param {
    int64_t index;
}; // SCALAR: index into params
struct tj_attr_reduce {
    int64_t mask, keepdim, correction;
}; // REDUCE: bit d of mask = dim d is reduced
struct tj_attr_dim {
    int64_t dim;
}; // SOFTMAX, LOG_SOFTMAX, CAT, GATHER, INDEX_SELECT, INDEX_COPY; slot of REPEAT_IN, REPEAT_OUT
struct tj_attr_norm {
    int64_t ndim;
}; // LAYER_NORM, RMS_NORM: normalised trailing dims
struct tj_attr_perm {
    int64_t perm[TJ_MAX_RANK];
}; // PERMUTE (unused: 0)
struct tj_attr_slice {
    int64_t dim, step;
}; // SLICE: step >= 1
struct tj_attr_diagonal {
    int64_t d0, d1;
};
struct tj_attr_unfold {
    int64_t dim, size, step;
};
struct tj_attr_strides {
    int64_t stride[TJ_MAX_RANK];
};
struct tj_attr_mask {
    int64_t mask;
}; // FLIP
struct tj_attr_pad {
    int64_t mode, lo[TJ_MAX_RANK], hi[TJ_MAX_RANK];
}; // mode first: traces that differ in the rest are alike (dynamic.h)
struct tj_attr_bias {
    int64_t has_bias;
}; // LINEAR
struct tj_attr_conv {
    int64_t has_bias, stride[2], padding[2], dilation[2], groups;
};
struct tj_attr_sdpa {
    int64_t has_mask, causal, gqa;
}; // causal: key j visible to query i iff j <= i (top-left)
struct tj_attr_pool {
    int64_t kernel[2], stride[2], padding[2], dilation[2], ceil_mode, include_pad, divisor;
};

// A scalar value, stored in the node's dtype's compute class: floats as double already rounded to the dtype, integers
// and bool as int64.
union tj_scalar {
    double f;
    int64_t i;
};
struct tj_param {
    union tj_scalar v;
    uint8_t dtype;
};

struct tj_loc {
    const char *file;
    int32_t line;
    int32_t call; // the op as the host called it, which may be made of others; 0: like the node (tj_call)
};                // host source place; file may be NULL
#define TJ_LOC(file, line) ((struct tj_loc){(file), (line), 0})
// Names of calls are literals of the library: kept as distances, since a place is written for each op.
int32_t tj_call(const char *literal);
const char *tj_call_of(struct tj_loc loc, const char *otherwise);

// Layout of a leaf: two bits a dim (dim 0 in the low bits), extents of 1 count as packed.
enum { TJ_LAY_PACKED, TJ_LAY_BROADCAST, TJ_LAY_UNIT, TJ_LAY_STRIDED };
// PACKED: stride = extent*stride of the next dim (1 for the last); BROADCAST: 0; UNIT: 1 but not packed; else STRIDED.
typedef uint16_t tj_layout; // 0 = contiguous
tj_layout tj_layout_of(const int64_t *dims, const int64_t *strides, size_t rank);

// A tensor from outside as this trace uses it. Keyed part first; the tensor itself is not keyed.
struct tj_leaf_key {
    uint8_t dtype, rank;
    tj_layout layout;
    uint32_t shape; // as tj_node.shape
    uint16_t flags; // TJ_LEAF_*
    uint16_t none;  // 0
    uint32_t group; // leaves that may share memory, one of them written, have equal nonzero groups
    uint32_t input; // index among the declared inputs + 1, or 0: captured
};
_Static_assert(sizeof(struct tj_leaf_key) == 20, "keyed as bytes");
enum {
    TJ_LEAF_WRITTEN = 1,  // the trace writes its memory
    TJ_LEAF_VOLATILE = 2, // borrowed memory the host may change between runs: never prepacked
    TJ_LEAF_CARRIED = 4,  // computed by an earlier segment of the same run
};
struct tj_leaf {
    struct trace_tensor *tensor; // borrowed for the run: content and place as captured
    struct trace_tensor *source; // the host's handle it was captured from; NULL when there is none
};

struct tj_trace {
    // keyed
    struct tj_node *nodes;
    uint32_t nnodes, capnodes;
    int64_t *dims;
    uint32_t ndims, capdims;
    int64_t *attrs;
    uint32_t nattrs, capattrs; // word 0 is unused
    tj_ref *operands;
    uint32_t noperands, capoperands;
    struct tj_leaf_key *leafkeys;
    uint32_t nleaves, capleafkeys;
    // not keyed
    struct tj_leaf *leaves;
    uint32_t capleaves;
    struct tj_param *params;
    uint32_t nparams, capparams;
    struct tj_loc *locs;
    uint32_t caplocs; // one a node
    uint32_t *shapetab;
    uint32_t capshapetab, nshapes; // hash table over dims: offset + 1, 0 = empty
};

static inline const tj_ref *tj_node_in(const struct tj_trace *t, const struct tj_node *n) {
    return n->nin > 4 ? t->operands + n->in[0] : n->in;
}
static inline size_t tj_shape_rank(const struct tj_trace *t, uint32_t shape) { return (size_t)t->dims[shape]; }
static inline const int64_t *tj_shape_dims(const struct tj_trace *t, uint32_t shape) { return t->dims + shape + 1; }
static inline const void *tj_node_attr(const struct tj_trace *t, const struct tj_node *n) { return t->attrs + n->attr; }
const char *tj_call_name(const struct tj_trace *t, tj_ref n); // node n as the host called it, for messages

void tj_trace_init(struct tj_trace *t);
void tj_trace_reset(struct tj_trace *t); // forgets the content, keeps the memory
void tj_trace_free(struct tj_trace *t);
// Shape interning inside a trace; UINT32_MAX on out of memory.
uint32_t tj_trace_shape(struct tj_trace *t, const int64_t *dims, size_t rank);
// Appends without interning; TJ_NIL on out of memory. attr: n8 words, copied.
tj_ref tj_trace_append(struct tj_trace *t, enum tj_op op, tj_dtype d, uint32_t shape, const tj_ref *in, size_t nin,
                       const void *attr, size_t n8, struct tj_loc loc);
bool tj_trace_equal(const struct tj_trace *a, const struct tj_trace *b); // keyed parts only
uint64_t tj_trace_hash(const struct tj_trace *t);                        // keyed parts only
bool tj_trace_copy(struct tj_trace *dst,
                   const struct tj_trace *src); // dst freshly initialised; leaf tensors are not copied
// Checks every rule above and of ops.def (operand order, dtypes, shapes); writes what is wrong to err. Debug builds and
// tests.
bool tj_trace_verify(const struct tj_trace *t, char *err, size_t cap);
struct tj_strbuf;
void tj_trace_dump(const struct tj_trace *t, const tj_ref *outs, size_t nouts, struct tj_strbuf *sb);
#endif
