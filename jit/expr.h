// jit/expr.h: extents, strides and offsets of a plan as expressions over symbols; constants are the special case.
//
// Symbols are read from the leaves and parameters of a run; expressions are hash-consed, operands before users, and
// folded when made: an expression without a symbol is a constant. A plan evaluates all of them in one forward pass.
#ifndef TJ_JIT_EXPR_H
#define TJ_JIT_EXPR_H
#include "../lib/arena.h"
#include "../trace/ir.h"

typedef uint32_t tj_ex; // index into the table. 0 is the constant 0, 1 the constant 1.
#define TJ_EX_NONE UINT32_MAX
// A value beyond int64, as the strides of an empty tensor may have: times 0 it is 0, else it stays what it is. No
// buffer has that size and no guard holds for it.
#define TJ_EX_HUGE INT64_MAX
enum tj_ex_op {
    TJ_EX_CONST,  // value
    TJ_EX_EXTENT, // extent of dim b of leaf a
    TJ_EX_STRIDE, // stride in elements of dim b of leaf a
    TJ_EX_PARAM,  // integer parameter a
    TJ_EX_ARG,    // extent of dim b of node a, where it is an argument of the op
    TJ_EX_ATTR,   // word b of the attributes of node a, an amount that shapes its result
    TJ_EX_ADD,
    TJ_EX_SUB,
    TJ_EX_MUL,
    TJ_EX_DIV, // floor division by a positive; by 0: 0, as extents of nothing are
    TJ_EX_MAX,
    TJ_EX_MIN,
};
struct tj_ex_node {
    uint8_t op;
    bool run; // depends on strides or parameters, which only a run knows: no guard of a look-up
    uint32_t a, b;
    int64_t value; /* CONST: value; else the value at the recorded sizes (hint) */
};
struct tj_exprs {
    struct tj_ex_node *nodes;
    uint32_t n, cap;
    uint32_t *table;
    uint32_t tablesize;
    bool failed; // out of memory; checked once at the end
};
void tj_exprs_init(struct tj_exprs *x);
void tj_exprs_free(struct tj_exprs *x);
tj_ex tj_ex_const(struct tj_exprs *x, int64_t v);
tj_ex tj_ex_sym(struct tj_exprs *x, enum tj_ex_op op, uint32_t a, uint32_t b, int64_t hint);
tj_ex tj_ex_bin(struct tj_exprs *x, enum tj_ex_op op, tj_ex a, tj_ex b);
static inline bool tj_ex_is_const(const struct tj_exprs *x, tj_ex e) { return x->nodes[e].op == TJ_EX_CONST; }
static inline int64_t tj_ex_hint(const struct tj_exprs *x, tj_ex e) { return x->nodes[e].value; }
static inline bool tj_ex_known(const struct tj_exprs *x, tj_ex e, int64_t v) {
    return tj_ex_is_const(x, e) && x->nodes[e].value == v;
}
bool tj_ex_exact_div(struct tj_exprs *x, tj_ex a, tj_ex b, tj_ex *q); // a/b where b*(a/b) == a by algebra
static inline bool tj_ex_of_shapes(const struct tj_exprs *x, tj_ex e) { return !x->nodes[e].run; }
// A factor of product e that has this value at the recorded sizes; 0: none. The constant factor of e.
tj_ex tj_ex_factor(const struct tj_exprs *x, tj_ex e, int64_t value);
int64_t tj_ex_coefficient(const struct tj_exprs *x, tj_ex e);
void tj_ex_print(const struct tj_exprs *x, tj_ex e, char *buf, size_t cap); // "x0.1*4"
// Evaluates all n nodes into out[]; false: divides by a negative.
struct tj_run_args;
bool tj_exprs_eval(const struct tj_exprs *x, const struct tj_run_args *args, int64_t *out);
// Whether that would give `vals` again: all that is not computed from others is the same.
bool tj_exprs_same(const struct tj_exprs *x, const struct tj_run_args *args, const int64_t *vals);
// The same after symbols in out[] have been given other values.
bool tj_exprs_again(const struct tj_exprs *x, int64_t *out);
// The first n nodes with extents from a trace, for guards; strides and parameters, which occur in none, are 0.
// inlined: of a loop's body in that trace; NULL: the expressions are of the trace itself.
struct tj_inlined;
bool tj_exprs_eval_shapes(const struct tj_exprs *x, uint32_t n, const struct tj_trace *t,
                          const struct tj_inlined *inlined, int64_t *out);
#endif
