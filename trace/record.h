// trace/record.h: what the files of the recorder share: the run's tables, finding operands, appending ops.
#ifndef TJ_TRACE_RECORD_H
#define TJ_TRACE_RECORD_H
#include "context.h"

// ---- tables of a run --------------------------------------------------------------------------

struct tj_intern_slot {
    uint32_t stamp; // low half of the run's generation: slots of earlier runs count as empty
    tj_ref node;
};
struct tj_leaf_slot {
    struct trace_tensor *tensor;
    uint32_t stamp;
    tj_ref node;
};
struct tj_record {
    struct tj_intern_slot *intern;
    uint32_t internsize, ninterned;
    struct tj_leaf_slot *leaftab;
    uint32_t leaftabsize, nleafslots;
    tj_ref *leafnodes; // node of each leaf of the trace
    uint32_t capleafnodes;
    struct trace_tensor **snaps; // the leaf's tensor as it was captured; kept from run to run
    uint32_t capsnaps, nsnaps;
    tj_ref *chain; // scratch: views between a value and its memory; room for all views of the trace
    uint32_t capchain, nviews;
    struct tj_known_place *places; // of views (record_mem.c), or NULL
    uint32_t scalar_shape;         // the 0-d shape in the trace, once known
    bool scalar_known;
    uint32_t groups;             // groups of overlapping leaves made so far
    struct tj_member *groupof;   // one a leaf
    struct tj_leaf_index *index; // by memory (trace/record_find.c); NULL: never asked for
    tj_ref *written;             // leaves that were written, and may have content that hasn't run
    uint32_t *joined;            // scratch: leaves that become views of one
    uint32_t capgroupof, capwritten, nwritten, capjoined;
};
struct tj_member {        // leaves + 1; 0: none
    uint32_t first, next; // first of the leaves that are views of this one; next view of the same
};

// What an op is recorded with. r is NULL when it can't be: the op returns NULL.
struct tj_rec {
    struct tj_run *r;
    const char *op;
    struct tj_loc loc;
    bool eager;          // r is a run of this op alone
    bool away;           // r is open, but not the innermost run
    struct tj_run *back; // that one
};

// Opens recording of an op over the given operands (TRACE_NONE ones are skipped); false: the op returns NULL.
bool tj_rec_begin(struct tj_rec *q, const char *op, const char *file, int line, trace_tensor *const *ts, size_t n);
// The same with an explicit context, for ops without operands.
bool tj_rec_begin_ctx(struct tj_rec *q, const char *op, const char *file, int line, trace_context *ctx);
// Closes it: the handle of node n (TJ_NIL: failed).
trace_tensor *tj_rec_end(struct tj_rec *q, tj_ref n);
// Of an op that gives memory it was given: views, conversions to the same dtype.
trace_tensor *tj_rec_end_view(struct tj_rec *q, tj_ref n);
trace_tensor *tj_rec_end_inplace(struct tj_rec *q, trace_tensor *target, bool ok);
// Operand t: its node now. TJ_NIL: failed.
tj_ref tj_rec_in(struct tj_rec *q, trace_tensor *t);
// The same where memory matters (views, writes): never the node that a repeated op was merged with.
static inline tj_ref tj_rec_mem(struct tj_rec *q, trace_tensor *t) { return tj_resolve(q->r, t, q->op, q->loc); }
tj_ref tj_rec_raw(struct tj_rec *q, trace_tensor *t); // not resolved to the current content of its memory
tj_ref tj_leaf_known(const struct tj_run *run, const trace_tensor *t); // TJ_NIL: not captured yet
// Without inference, when operands have one dtype, in the mask `dtypes`, and the shape of one is the result's. done
// false: not so.
trace_tensor *tj_quick1(enum tj_op op, uint32_t dtypes, trace_tensor *a, struct tj_loc loc, bool *done);
trace_tensor *tj_quick2(enum tj_op op, uint32_t dtypes, trace_tensor *a, trace_tensor *b, struct tj_loc loc,
                        bool *done);
trace_tensor *tj_quick_scalar(enum tj_op op, uint32_t dtypes, trace_tensor *a, bool is_float, double f, int64_t i,
                              bool swap, struct tj_loc loc, bool *done);

// ---- nodes --------------------------------------------------------------------------------------

static inline const struct tj_node *tj_rec_node(const struct tj_rec *q, tj_ref n) { return &q->r->trace.nodes[n]; }
static inline tj_dtype tj_rec_dtype(const struct tj_rec *q, tj_ref n) { return (tj_dtype)tj_rec_node(q, n)->dtype; }
static inline size_t tj_rec_rank(const struct tj_rec *q, tj_ref n) {
    return tj_shape_rank(&q->r->trace, tj_rec_node(q, n)->shape);
}
static inline const int64_t *tj_rec_dims(const struct tj_rec *q, tj_ref n) { // valid until the next node
    return tj_shape_dims(&q->r->trace, tj_rec_node(q, n)->shape);
}
// Fails with the op's name and place; TJ_NIL.
#define tj_rec_fail(q, st, ...) (tj_op_fail((st), (q)->op, (q)->loc, __VA_ARGS__), TJ_NIL)
tj_ref tj_rec_oom(struct tj_rec *q);

enum tj_fresh {
    TJ_PART,  // inside a composite: merged with an equal node; a view of its operand when it is a view op
    TJ_OWNED, // content of its own even when it is a view op (full)
};
// Appends (or finds) a node. Attributes: one zeroed struct of int64 fields.
tj_ref tj_rec_op(struct tj_rec *q, enum tj_op op, tj_dtype d, const int64_t *dims, size_t rank, const tj_ref *in,
                 size_t nin, const void *attr, size_t bytes, enum tj_fresh fresh);
// The same with the shape of node `like`.
tj_ref tj_rec_like(struct tj_rec *q, enum tj_op op, tj_dtype d, tj_ref like, const tj_ref *in, size_t nin);
tj_ref tj_rec_again(struct tj_run *run, tj_ref n, tj_ref on);          // view n, its first operand replaced
tj_ref tj_rec_scalar(struct tj_rec *q, tj_dtype d, union tj_scalar v); // v already of dtype d
tj_ref tj_rec_scalar_f(struct tj_rec *q, tj_dtype d, double v);        // converted and rounded to d
tj_ref tj_rec_scalar_i(struct tj_rec *q, tj_dtype d, int64_t v);       // converted; integers wrap
tj_ref tj_rec_cast(struct tj_rec *q, tj_ref n, tj_dtype d);            // n itself when it has that dtype
tj_ref tj_rec_expand(struct tj_rec *q, tj_ref n, const int64_t *dims, size_t rank);
tj_ref tj_rec_reshape(struct tj_rec *q, tj_ref n, const int64_t *dims, size_t rank); // a view where strides allow
tj_ref tj_rec_slice(struct tj_rec *q, tj_ref n, int64_t dim, int64_t start, int64_t length, int64_t step);
tj_ref tj_rec_permute(struct tj_rec *q, tj_ref n, const int64_t *perm);
tj_ref tj_rec_transpose(struct tj_rec *q, tj_ref n, size_t a, size_t b);
// Shape of two operands broadcast together, or a failure that names both.
bool tj_rec_broadcast(struct tj_rec *q, tj_ref a, tj_ref b, int64_t *dims, size_t *rank);
// One of the two-operand ops over nodes: promotes, broadcasts.
tj_ref tj_rec_binary(struct tj_rec *q, enum tj_op op, tj_ref a, tj_ref b);
tj_ref tj_rec_unary(struct tj_rec *q, enum tj_op op, tj_ref a);
tj_ref tj_rec_reduce(struct tj_rec *q, enum tj_op op, tj_ref x, int64_t mask, bool keepdim, int64_t correction);

// ---- shapes and dtypes (trace/infer.c) ------------------------------------------------------------

double tj_round_to(tj_dtype d, double v); // to the nearest value of a float dtype
union tj_scalar tj_scalar_convert_f(tj_dtype d, double v);
union tj_scalar tj_scalar_convert_i(tj_dtype d, int64_t v);
bool tj_scalar_fits(tj_dtype d, int64_t v); // an integer dtype holds v
tj_dtype tj_promote(tj_dtype a, tj_dtype b);
// PyTorch's result type: tensors of rank > 0, else 0-d tensors, else scalars decide inside a category.
enum tj_scalar_kind { TJ_NO_SCALAR, TJ_SCALAR_INT, TJ_SCALAR_FLOAT };
struct tj_typing {
    int dim, zero; // promoted dtypes so far, -1: none
    enum tj_scalar_kind scalar;
};
void tj_typing_add(struct tj_typing *t, tj_dtype d, size_t rank);
tj_dtype tj_typing_result(const struct tj_typing *t);
// False when some dim fits neither; *bad is its number counted from the right.
bool tj_broadcast(const int64_t *a, size_t ra, const int64_t *b, size_t rb, int64_t *out, size_t *rout, size_t *bad);
// Strides of the reshaped tensor when it can be a view.
bool tj_reshape_strides(const int64_t *dims, const int64_t *strides, size_t rank, const int64_t *to, size_t torank,
                        int64_t *out);
// Number of window positions along one dim; -1: the window doesn't fit or a number is out of range (trace/record_nn.c).
int64_t tj_positions(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode);
// A mask of dims from the host's list: all when it is empty, none twice.
bool tj_rec_dims_mask(struct tj_rec *q, const int64_t *dims, size_t n, size_t rank, int64_t *mask);
// "[2, 3]" into buf, for messages.
const char *tj_dims_text(char *buf, size_t cap, const int64_t *dims, size_t rank);
#define TJ_DIMS_TEXT 200
// Normalises a dim that may be negative; false: an error was set.
bool tj_rec_dim(struct tj_rec *q, int64_t dim, size_t rank, size_t *out);
// Checks a shape given by the host: rank, negative extents, overflow.
bool tj_rec_shape(struct tj_rec *q, const int64_t *dims, size_t rank, tj_dtype d);

// ---- memory (trace/record_mem.c) ------------------------------------------------------------------

// Where a value lies in its root's memory (elements): a computed root is contiguous.
void tj_value_place(struct tj_run *run, tj_ref n, struct tj_place *v, tj_ref *root);
bool tj_value_packed(struct tj_run *run, tj_ref n);
// The memory a value belongs to.
static inline tj_ref tj_value_root(const struct tj_run *r, tj_ref n) {
    tj_ref root = r->values[n].root;
    while (r->values[root].root != root) {
        root = r->values[root].root;
    }
    return root;
}
// n's view chain on the current content of its memory. TJ_NIL: failed.
tj_ref tj_value_current(struct tj_run *run, tj_ref n);
// The node that an in-place op on t changes, after all checks. TJ_NIL: an error was set.
tj_ref tj_rec_target(struct tj_rec *q, trace_tensor *t);
// Makes `v` (already of the target's shape and dtype) the content of the memory that target selects.
bool tj_rec_write(struct tj_rec *q, tj_ref target, tj_ref v);
// Whether in-place ops may write target; false: an error was set.
bool tj_rec_writable(struct tj_rec *q, tj_ref target);
// The 1-d memory behind leaf root `leaf`, as a leaf that the old one becomes a view of. TJ_NIL: failed.
tj_ref tj_leaf_base(struct tj_rec *q, tj_ref leaf);
// trace/record_find.c: leaves by memory. Those of which a byte may be t's, in the order of their addresses, until visit
// returns false; false: out of memory. Bases stand for the leaves that are views of them.
typedef bool tj_leaf_visit(void *user, uint32_t leaf);
bool tj_leaves_over(struct tj_run *run, const struct trace_tensor *t, tj_leaf_visit *visit, void *user);
void tj_leaves_remove(struct tj_run *run, uint32_t leaf); // is a view of a base now
void tj_leaves_restore(struct tj_run *run, uint32_t leaf);
// All leaves of a storage: the first one + 1, the next; 0: none.
bool tj_leaves_of(struct tj_run *run, const struct tj_storage *st, uint32_t *first);
uint32_t tj_leaves_next(const struct tj_run *run, uint32_t at);
void tj_leaves_forget(struct tj_record *rec); // what is known may be wrong
void tj_leaves_regroup(struct tj_run *run);   // after a rollback: members of bases that are left
void tj_leaves_free(struct tj_record *rec);
// trace_write of t, over st, while run is open on this thread: what uses its memory, and what follows the change.
// False: out of memory.
struct tj_uses {
    uint32_t n;   // leaves over st
    bool written; // one of them is written
    bool others;  // leaves over other storages share memory with t
};
bool tj_run_uses(struct tj_run *run, const struct trace_tensor *t, struct tj_storage *st, struct tj_uses *u);
bool tj_run_moved(struct tj_run *run, struct trace_tensor *t, const struct tj_storage *old);
// After a rollback to nnodes nodes: what trace_write gave tensors of earlier leaves isn't undone, they are captured
// again. Out of memory: the run has failed.
void tj_run_moved_again(struct tj_run *run, uint32_t nnodes);
void tj_tensor_drop(struct trace_tensor *t); // trace_release of a tensor, whatever scope is open
struct tj_storage *tj_storage_borrow(trace_context *ctx, uint32_t flags); // without memory yet
// One more run in flight reads st; process: the one it entered in.
void tj_reader_enter(struct tj_storage *st);
void tj_reader_leave(struct tj_storage *st, uint32_t process);
tj_ref tj_append_value(struct tj_run *run, enum tj_op op, tj_dtype d, uint32_t shape, const tj_ref *in, size_t nin,
                       const void *attr, size_t n8, struct tj_loc loc, tj_ref root);
#endif
