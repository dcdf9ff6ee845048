// trace/record_point.c: recording of pointwise ops, and of those that write in place.
#define TRACE_NO_MACROS
#include <math.h>

#include "record.h"

// Which dtypes a pointwise op takes.
enum domain {
    ANY,
    NOBOOL, // bool is an error
    FLOATS, // integers and bool become f32
    INTS    // integers and bool; floats are an error
};
static const uint32_t quick_mask[] = {[ANY] = 0xFF, [NOBOOL] = 0xFE, [FLOATS] = 0xF0, [INTS] = 0x0F};

static const uint8_t domains[TJ_OP_COUNT] = {
    [TJ_OP_NEG] = NOBOOL,       [TJ_OP_ABS] = NOBOOL,          [TJ_OP_FLOOR] = NOBOOL,     [TJ_OP_CEIL] = NOBOOL,
    [TJ_OP_TRUNC] = NOBOOL,     [TJ_OP_ROUND] = NOBOOL,        [TJ_OP_FRAC] = FLOATS,      [TJ_OP_RECIPROCAL] = FLOATS,
    [TJ_OP_SQUARE] = NOBOOL,    [TJ_OP_SQRT] = FLOATS,         [TJ_OP_RSQRT] = FLOATS,     [TJ_OP_EXP] = FLOATS,
    [TJ_OP_LOG] = FLOATS,       [TJ_OP_SIN] = FLOATS,          [TJ_OP_COS] = FLOATS,       [TJ_OP_TANH] = FLOATS,
    [TJ_OP_ERF] = FLOATS,       [TJ_OP_SIGMOID] = FLOATS,      [TJ_OP_RELU] = NOBOOL,      [TJ_OP_GELU] = FLOATS,
    [TJ_OP_GELU_TANH] = FLOATS, [TJ_OP_SILU] = FLOATS,         [TJ_OP_BITWISE_NOT] = INTS, [TJ_OP_SUB] = NOBOOL,
    [TJ_OP_DIV] = FLOATS,       [TJ_OP_FLOOR_DIVIDE] = NOBOOL, [TJ_OP_REMAINDER] = NOBOOL, [TJ_OP_FMOD] = NOBOOL,
    [TJ_OP_POW] = NOBOOL,       [TJ_OP_BITWISE_AND] = INTS,    [TJ_OP_BITWISE_OR] = INTS,  [TJ_OP_BITWISE_XOR] = INTS,
    [TJ_OP_CLAMP] = NOBOOL,     [TJ_OP_SOFTPLUS] = FLOATS,     [TJ_OP_CUBE] = NOBOOL,      [TJ_OP_RSQUARE] = FLOATS};

#define NO_BOOL "not of bool; convert with trace_to, or use the logical ops"

// The dtype an op computes in, of operands that promote to d; false: not with that.
static bool compute_dtype(struct tj_rec *q, enum tj_op op, tj_dtype d, tj_dtype *out) {
    *out = d;
    switch ((enum domain)domains[op]) {
    case NOBOOL:
        if (d == TRACE_BOOL) {
            tj_op_fail(TRACE_ERR_DTYPE, q->op, q->loc, NO_BOOL);
            return false;
        }
        break;
    case FLOATS:
        if (!tj_is_float(d)) {
            *out = TRACE_F32;
        }
        break;
    case INTS:
        if (tj_is_float(d)) {
            tj_op_fail(TRACE_ERR_DTYPE, q->op, q->loc, "not of %s; integers and bool only", tj_dtypes[d].name);
            return false;
        }
        break;
    case ANY: break;
    }
    return true;
}

static tj_dtype result_dtype(enum tj_op op, tj_dtype d) { return tj_ops[op].rule == TJ_RULE_BOOL ? TRACE_BOOL : d; }

tj_ref tj_rec_unary(struct tj_rec *q, enum tj_op op, tj_ref a) {
    tj_dtype d;
    if (a == TJ_NIL || !compute_dtype(q, op, tj_rec_dtype(q, a), &d)) {
        return TJ_NIL;
    }
    a = tj_rec_cast(q, a, d);
    return tj_rec_like(q, op, result_dtype(op, d), a, &a, 1);
}

// a and b have their common dtype already.
static tj_ref binary_of(struct tj_rec *q, enum tj_op op, tj_ref a, tj_ref b) {
    int64_t dims[TJ_MAX_RANK];
    size_t rank;
    if (a == TJ_NIL || b == TJ_NIL) {
        return TJ_NIL;
    }
    tj_dtype d = result_dtype(op, tj_rec_dtype(q, a));
    tj_ref in[2] = {a, b};
    if (tj_rec_node(q, a)->shape == tj_rec_node(q, b)->shape) {
        return tj_rec_like(q, op, d, a, in, 2);
    }
    return tj_rec_broadcast(q, a, b, dims, &rank) ? tj_rec_op(q, op, d, dims, rank, in, 2, NULL, 0, TJ_PART) : TJ_NIL;
}

tj_ref tj_rec_binary(struct tj_rec *q, enum tj_op op, tj_ref a, tj_ref b) {
    if (a == TJ_NIL || b == TJ_NIL) {
        return TJ_NIL;
    }
    struct tj_typing t = {-1, -1, TJ_NO_SCALAR};
    tj_dtype d;
    tj_typing_add(&t, tj_rec_dtype(q, a), tj_rec_rank(q, a));
    tj_typing_add(&t, tj_rec_dtype(q, b), tj_rec_rank(q, b));
    if (op == TJ_OP_SUB && (tj_rec_dtype(q, a) == TRACE_BOOL || tj_rec_dtype(q, b) == TRACE_BOOL)) {
        return tj_rec_fail(q, TRACE_ERR_DTYPE, NO_BOOL);
    }
    if (!compute_dtype(q, op, tj_typing_result(&t), &d)) {
        return TJ_NIL;
    }
    int64_t dims[TJ_MAX_RANK];
    size_t rank;
    if (!tj_rec_broadcast(q, a, b, dims, &rank)) { // before the casts: the message has the host's shapes
        return TJ_NIL;
    }
    a = tj_rec_cast(q, a, d);
    b = tj_rec_cast(q, b, d);
    return binary_of(q, op, a, b);
}

static trace_tensor *unary(enum tj_op op, const char *name, trace_tensor *a, const char *file, int line) {
    bool done;
    trace_tensor *h = tj_quick1(op, quick_mask[domains[op]], a, TJ_LOC(file, line), &done);
    struct tj_rec q;
    if (done) {
        return h;
    }
    return tj_rec_begin(&q, name, file, line, &a, 1) ? tj_rec_end(&q, tj_rec_unary(&q, op, tj_rec_in(&q, a))) : NULL;
}

static trace_tensor *binary(enum tj_op op, trace_tensor *a, trace_tensor *b, const char *file, int line) {
    bool done;
    trace_tensor *h = tj_quick2(op, quick_mask[domains[op]], a, b, TJ_LOC(file, line), &done), *both[2] = {a, b};
    struct tj_rec q;
    if (done) {
        return h;
    }
    if (!tj_rec_begin(&q, tj_ops[op].name, file, line, both, 2)) {
        return NULL;
    }
    tj_ref x = tj_rec_in(&q, a), y = x == TJ_NIL ? TJ_NIL : tj_rec_in(&q, b);
    return tj_rec_end(&q, tj_rec_binary(&q, op, x, y));
}

// ---- with a scalar --------------------------------------------------------------------------------------

struct scalar {
    enum tj_scalar_kind kind;
    double f;
    int64_t i;
};
#define SF(v) ((struct scalar){TJ_SCALAR_FLOAT, (v), 0})
#define SI(v) ((struct scalar){TJ_SCALAR_INT, 0, (v)})

static tj_ref scalar_node(struct tj_rec *q, tj_dtype d, struct scalar s) {
    return s.kind == TJ_SCALAR_FLOAT ? tj_rec_scalar_f(q, d, s.f) : tj_rec_scalar_i(q, d, s.i);
}

// Result type of a with a scalar.
static tj_dtype typed(struct tj_rec *q, tj_ref a, struct scalar s) {
    struct tj_typing t = {-1, -1, s.kind};
    tj_typing_add(&t, tj_rec_dtype(q, a), tj_rec_rank(q, a));
    return tj_typing_result(&t);
}

static tj_ref ones_like(struct tj_rec *q, tj_ref a, tj_dtype d) {
    int64_t dims[TJ_MAX_RANK];
    size_t rank = tj_rec_rank(q, a);
    memcpy(dims, tj_rec_dims(q, a), rank * sizeof *dims);
    tj_ref one = tj_rec_scalar_i(q, d, 1);
    return tj_rec_op(q, TJ_OP_EXPAND, d, dims, rank, &one, 1, NULL, 0, TJ_OWNED);
}

// The exponents that are ops of their own; the exponent is part of the op then, not a parameter.
static tj_ref power(struct tj_rec *q, tj_ref a, struct scalar s) {
    tj_dtype d;
    if (a == TJ_NIL || !compute_dtype(q, TJ_OP_POW, typed(q, a, s), &d)) {
        return TJ_NIL;
    }
    a = tj_rec_cast(q, a, d);
    if (a == TJ_NIL) {
        return TJ_NIL;
    }
    double e = s.kind == TJ_SCALAR_FLOAT ? s.f : (double)s.i;
    bool fl = tj_is_float(d);
    enum tj_op op = e == 2            ? TJ_OP_SQUARE
                    : e == 3          ? TJ_OP_CUBE
                    : fl && e == 0.5  ? TJ_OP_SQRT
                    : fl && e == -0.5 ? TJ_OP_RSQRT
                    : fl && e == -1   ? TJ_OP_RECIPROCAL
                    : fl && e == -2   ? TJ_OP_RSQUARE
                                      : TJ_OP_POW;
    if (op != TJ_OP_POW) {
        return tj_rec_unary(q, op, a);
    }
    if (e == 0) {
        return ones_like(q, a, d);
    }
    if (e == 1) {
        return a;
    }
    if (!fl && s.i < 0) {
        return tj_rec_fail(q, TRACE_ERR_ARGUMENT,
                           "integers to negative integer powers (%lld) are not allowed; convert "
                           "with trace_to(x, TRACE_F32)",
                           (long long)s.i);
    }
    if (!fl && !tj_scalar_fits(d, s.i)) {
        return tj_rec_fail(q, TRACE_ERR_ARGUMENT, "exponent %lld does not fit %s", (long long)s.i, tj_dtypes[d].name);
    }
    return binary_of(q, TJ_OP_POW, a, scalar_node(q, d, s));
}

static tj_ref with_scalar(struct tj_rec *q, enum tj_op op, tj_ref a, struct scalar s, bool swap) {
    tj_dtype d;
    if (a == TJ_NIL || (op == TJ_OP_SUB && tj_rec_dtype(q, a) == TRACE_BOOL)) {
        return a == TJ_NIL ? a : tj_rec_fail(q, TRACE_ERR_DTYPE, NO_BOOL);
    }
    if (op == TJ_OP_POW) {
        return power(q, a, s);
    }
    if (!compute_dtype(q, op, typed(q, a, s), &d)) {
        return TJ_NIL;
    }
    // A comparison with an integer that the dtype can't hold would wrap it.
    if (tj_ops[op].rule == TJ_RULE_BOOL && s.kind == TJ_SCALAR_INT && !tj_scalar_fits(d, s.i)) {
        d = TRACE_I64;
    }
    a = tj_rec_cast(q, a, d);
    tj_ref b = a == TJ_NIL ? a : scalar_node(q, d, s);
    return swap ? binary_of(q, op, b, a) : binary_of(q, op, a, b);
}

static trace_tensor *scalar_op(enum tj_op op, const char *name, trace_tensor *a, struct scalar s, bool swap,
                               const char *file, int line) {
    struct tj_rec q;
    bool done = false;
    trace_tensor *h = op == TJ_OP_POW ? NULL
                                      : tj_quick_scalar(op, quick_mask[domains[op]], a, s.kind == TJ_SCALAR_FLOAT, s.f,
                                                        s.i, swap, TJ_LOC(file, line), &done);
    if (done) {
        return h;
    }
    return tj_rec_begin(&q, name, file, line, &a, 1) ? tj_rec_end(&q, with_scalar(&q, op, tj_rec_in(&q, a), s, swap))
                                                     : NULL;
}

#define UNARY(name, NAME)                                                                                              \
    trace_tensor *trace_##name##_at(trace_tensor *x, const char *file, int line) {                                     \
        return unary(TJ_OP_##NAME, #name, x, file, line);                                                              \
    }                                                                                                                  \
    trace_tensor *trace_##name(trace_tensor *x) { return trace_##name##_at(x, NULL, 0); }
#define BINARY(name, NAME)                                                                                             \
    trace_tensor *trace_##name##_at(trace_tensor *a, trace_tensor *b, const char *file, int line) {                    \
        return binary(TJ_OP_##NAME, a, b, file, line);                                                                 \
    }                                                                                                                  \
    trace_tensor *trace_##name(trace_tensor *a, trace_tensor *b) { return trace_##name##_at(a, b, NULL, 0); }
#define WITH_F(name, fn, NAME, swap)                                                                                   \
    trace_tensor *trace_##fn##_at(trace_tensor *a, double s, const char *file, int line) {                             \
        return scalar_op(TJ_OP_##NAME, #name, a, SF(s), swap, file, line);                                             \
    }                                                                                                                  \
    trace_tensor *trace_##fn(trace_tensor *a, double s) { return trace_##fn##_at(a, s, NULL, 0); }
#define WITH_I(name, fn, NAME, swap)                                                                                   \
    trace_tensor *trace_##fn##_at(trace_tensor *a, int64_t s, const char *file, int line) {                            \
        return scalar_op(TJ_OP_##NAME, #name, a, SI(s), swap, file, line);                                             \
    }                                                                                                                  \
    trace_tensor *trace_##fn(trace_tensor *a, int64_t s) { return trace_##fn##_at(a, s, NULL, 0); }
#define BOTH(name, NAME) BINARY(name, NAME) WITH_F(name, name##_f, NAME, false) WITH_I(name, name##_i, NAME, false)

UNARY(neg, NEG)
UNARY(abs, ABS)
UNARY(sign, SIGN)
UNARY(floor, FLOOR)
UNARY(ceil, CEIL)
UNARY(trunc, TRUNC)
UNARY(round, ROUND)
UNARY(frac, FRAC)
UNARY(reciprocal, RECIPROCAL)
UNARY(sqrt, SQRT)
UNARY(rsqrt, RSQRT)
UNARY(exp, EXP)
UNARY(log, LOG)
UNARY(sin, SIN)
UNARY(cos, COS)
UNARY(tanh, TANH)
UNARY(erf, ERF)
UNARY(sigmoid, SIGMOID)
UNARY(relu, RELU)
UNARY(silu, SILU)
UNARY(logical_not, LOGICAL_NOT)
UNARY(bitwise_not, BITWISE_NOT)
UNARY(isnan, ISNAN)
UNARY(isinf, ISINF)
BOTH(add, ADD)
BOTH(sub, SUB)
BOTH(mul, MUL)
BOTH(div, DIV)
BOTH(floor_divide, FLOOR_DIVIDE)
BOTH(remainder, REMAINDER)
BOTH(fmod, FMOD)
BOTH(pow, POW)
BOTH(eq, EQ)
BOTH(ne, NE)
BOTH(lt, LT)
BOTH(le, LE)
BOTH(gt, GT)
BOTH(ge, GE)
BINARY(maximum, MAXIMUM)
BINARY(minimum, MINIMUM)
BINARY(logical_and, LOGICAL_AND)
BINARY(logical_or, LOGICAL_OR)
BINARY(logical_xor, LOGICAL_XOR)
BINARY(bitwise_and, BITWISE_AND)
BINARY(bitwise_or, BITWISE_OR)
BINARY(bitwise_xor, BITWISE_XOR)
WITH_I(bitwise_and, bitwise_and_i, BITWISE_AND, false)
WITH_I(bitwise_or, bitwise_or_i, BITWISE_OR, false)
WITH_I(bitwise_xor, bitwise_xor_i, BITWISE_XOR, false)
WITH_F(rsub, rsub_f, SUB, true)
WITH_I(rsub, rsub_i, SUB, true)

// bool squares to i64, as x*x with promotion of the power does
trace_tensor *trace_square_at(trace_tensor *x, const char *file, int line) {
    bool done;
    trace_tensor *h = tj_quick1(TJ_OP_SQUARE, quick_mask[NOBOOL], x, TJ_LOC(file, line), &done);
    struct tj_rec q;
    if (done) {
        return h;
    }
    return tj_rec_begin(&q, "square", file, line, &x, 1) ? tj_rec_end(&q, power(&q, tj_rec_in(&q, x), SI(2))) : NULL;
}
trace_tensor *trace_square(trace_tensor *x) { return trace_square_at(x, NULL, 0); }

trace_tensor *trace_gelu_at(trace_tensor *x, int approximate, const char *file, int line) {
    struct tj_rec q;
    if (approximate == TRACE_GELU_NONE || approximate == TRACE_GELU_TANH) {
        return unary(approximate == TRACE_GELU_TANH ? TJ_OP_GELU_TANH : TJ_OP_GELU, "gelu", x, file, line);
    }
    if (!tj_rec_begin(&q, "gelu", file, line, &x, 1)) {
        return NULL;
    }
    return tj_rec_end(&q, tj_rec_fail(&q, TRACE_ERR_ARGUMENT,
                                      "approximate is %d; use TRACE_GELU_NONE or "
                                      "TRACE_GELU_TANH",
                                      approximate));
}
trace_tensor *trace_gelu(trace_tensor *x, int approximate) { return trace_gelu_at(x, approximate, NULL, 0); }

trace_tensor *trace_softplus_at(trace_tensor *x, double beta, double threshold, const char *file, int line) {
    struct tj_rec q;
    if (!tj_rec_begin(&q, "softplus", file, line, &x, 1)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x);
    tj_dtype d;
    if (a == TJ_NIL || !compute_dtype(&q, TJ_OP_SOFTPLUS, tj_rec_dtype(&q, a), &d)) {
        return tj_rec_end(&q, TJ_NIL);
    }
    a = tj_rec_cast(&q, a, d);
    tj_ref b = tj_rec_scalar_f(&q, d, beta), c = tj_rec_scalar_f(&q, d, threshold);
    return tj_rec_end(&q, tj_rec_like(&q, TJ_OP_SOFTPLUS, d, a, (tj_ref[]){a, b, c}, 3));
}
trace_tensor *trace_softplus(trace_tensor *x, double beta, double threshold) {
    return trace_softplus_at(x, beta, threshold, NULL, 0);
}

trace_tensor *trace_to_at(trace_tensor *x, enum trace_dtype dtype, const char *file, int line) {
    struct tj_rec q;
    if (!tj_rec_begin(&q, "to", file, line, &x, 1)) {
        return NULL;
    }
    if (!tj_dtype_valid((int)dtype)) {
        return tj_rec_end(&q,
                          tj_rec_fail(&q, TRACE_ERR_DTYPE, "%d is no dtype; use TRACE_F32 and the like", (int)dtype));
    }
    tj_ref a = tj_rec_mem(&q, x);
    if (a == TJ_NIL || tj_rec_dtype(&q, a) == dtype) {
        return tj_rec_end_view(&q, a);
    }
    return tj_rec_end(&q, tj_rec_cast(&q, tj_rec_in(&q, x), dtype));
}
trace_tensor *trace_to(trace_tensor *x, enum trace_dtype dtype) { return trace_to_at(x, dtype, NULL, 0); }

// ---- where, clamp -----------------------------------------------------------------------------------------

// c is bool, a and b have dtype d.
static tj_ref where_of(struct tj_rec *q, tj_ref c, tj_ref a, tj_ref b, tj_dtype d) {
    int64_t dims[TJ_MAX_RANK], all[TJ_MAX_RANK];
    size_t rank, rall, bad;
    if (c == TJ_NIL || a == TJ_NIL || b == TJ_NIL || !tj_rec_broadcast(q, a, b, dims, &rank)) {
        return TJ_NIL;
    }
    if (!tj_broadcast(tj_rec_dims(q, c), tj_rec_rank(q, c), dims, rank, all, &rall, &bad)) {
        char tc[TJ_DIMS_TEXT], tv[TJ_DIMS_TEXT];
        return tj_rec_fail(q, TRACE_ERR_SHAPE,
                           "condition %s and values %s do not broadcast; make the extents equal or "
                           "1 (unsqueeze, expand)",
                           tj_dims_text(tc, sizeof tc, tj_rec_dims(q, c), tj_rec_rank(q, c)),
                           tj_dims_text(tv, sizeof tv, dims, rank));
    }
    return tj_rec_op(q, TJ_OP_WHERE, d, all, rall, (tj_ref[]){c, a, b}, 3, NULL, 0, TJ_PART);
}

static tj_ref condition(struct tj_rec *q, trace_tensor *t) {
    tj_ref c = tj_rec_in(q, t);
    if (c != TJ_NIL && tj_rec_dtype(q, c) != TRACE_BOOL) {
        return tj_rec_fail(q, TRACE_ERR_DTYPE, "the condition is %s; make it bool (a comparison, or trace_to)",
                           tj_dtypes[tj_rec_dtype(q, c)].name);
    }
    return c;
}

trace_tensor *trace_where_at(trace_tensor *condition_, trace_tensor *a, trace_tensor *b, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[3] = {condition_, a, b};
    if (!tj_rec_begin(&q, "where", file, line, all, 3)) {
        return NULL;
    }
    tj_ref c = condition(&q, condition_), x = c == TJ_NIL ? c : tj_rec_in(&q, a),
           y = x == TJ_NIL ? x : tj_rec_in(&q, b);
    if (y == TJ_NIL) {
        return tj_rec_end(&q, TJ_NIL);
    }
    struct tj_typing t = {-1, -1, TJ_NO_SCALAR};
    tj_typing_add(&t, tj_rec_dtype(&q, x), tj_rec_rank(&q, x));
    tj_typing_add(&t, tj_rec_dtype(&q, y), tj_rec_rank(&q, y));
    tj_dtype d = tj_typing_result(&t);
    x = tj_rec_cast(&q, x, d);
    y = tj_rec_cast(&q, y, d);
    return tj_rec_end(&q, where_of(&q, c, x, y, d));
}
trace_tensor *trace_where(trace_tensor *condition_, trace_tensor *a, trace_tensor *b) {
    return trace_where_at(condition_, a, b, NULL, 0);
}

static trace_tensor *where_scalar(trace_tensor *c, trace_tensor *a, struct scalar s, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *both[2] = {c, a};
    if (!tj_rec_begin(&q, "where", file, line, both, 2)) {
        return NULL;
    }
    tj_ref m = condition(&q, c), x = m == TJ_NIL ? m : tj_rec_in(&q, a);
    if (x == TJ_NIL) {
        return tj_rec_end(&q, TJ_NIL);
    }
    tj_dtype d = typed(&q, x, s);
    x = tj_rec_cast(&q, x, d);
    return tj_rec_end(&q, where_of(&q, m, x, scalar_node(&q, d, s), d));
}

static trace_tensor *masked_fill(trace_tensor *x, trace_tensor *mask, struct scalar s, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *both[2] = {x, mask};
    if (!tj_rec_begin(&q, "masked_fill", file, line, both, 2)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x), m = a == TJ_NIL ? a : condition(&q, mask);
    if (m == TJ_NIL) {
        return tj_rec_end(&q, TJ_NIL);
    }
    tj_dtype d = tj_rec_dtype(&q, a); // keeps the dtype of x, whatever the scalar
    return tj_rec_end(&q, where_of(&q, m, scalar_node(&q, d, s), a, d));
}

trace_tensor *trace_where_f_at(trace_tensor *condition_, trace_tensor *a, double s, const char *file, int line) {
    return where_scalar(condition_, a, SF(s), file, line);
}
trace_tensor *trace_where_f(trace_tensor *condition_, trace_tensor *a, double s) {
    return trace_where_f_at(condition_, a, s, NULL, 0);
}
trace_tensor *trace_where_i_at(trace_tensor *condition_, trace_tensor *a, int64_t s, const char *file, int line) {
    return where_scalar(condition_, a, SI(s), file, line);
}
trace_tensor *trace_where_i(trace_tensor *condition_, trace_tensor *a, int64_t s) {
    return trace_where_i_at(condition_, a, s, NULL, 0);
}
trace_tensor *trace_masked_fill_f_at(trace_tensor *x, trace_tensor *mask, double s, const char *file, int line) {
    return masked_fill(x, mask, SF(s), file, line);
}
trace_tensor *trace_masked_fill_f(trace_tensor *x, trace_tensor *mask, double s) {
    return trace_masked_fill_f_at(x, mask, s, NULL, 0);
}
trace_tensor *trace_masked_fill_i_at(trace_tensor *x, trace_tensor *mask, int64_t s, const char *file, int line) {
    return masked_fill(x, mask, SI(s), file, line);
}
trace_tensor *trace_masked_fill_i(trace_tensor *x, trace_tensor *mask, int64_t s) {
    return trace_masked_fill_i_at(x, mask, s, NULL, 0);
}

// Bounds have dtype d already.
static tj_ref clamp_of(struct tj_rec *q, tj_ref a, tj_ref lo, tj_ref hi, tj_dtype d) {
    int64_t dims[TJ_MAX_RANK], all[TJ_MAX_RANK];
    size_t rank, rall, bad;
    if (a == TJ_NIL || lo == TJ_NIL || hi == TJ_NIL || !tj_rec_broadcast(q, a, lo, dims, &rank)) {
        return TJ_NIL;
    }
    if (!tj_broadcast(dims, rank, tj_rec_dims(q, hi), tj_rec_rank(q, hi), all, &rall, &bad)) {
        (void)tj_rec_broadcast(q, a, hi, all, &rall);
        return tj_rec_fail(q, TRACE_ERR_SHAPE,
                           "the bounds do not broadcast; make the extents equal or 1 (unsqueeze, "
                           "expand)");
    }
    return tj_rec_op(q, TJ_OP_CLAMP, d, all, rall, (tj_ref[]){a, lo, hi}, 3, NULL, 0, TJ_PART);
}

// A bound that isn't there.
static tj_ref no_bound(struct tj_rec *q, tj_dtype d, bool low) {
    return tj_is_float(d) ? tj_rec_scalar_f(q, d, low ? -INFINITY : INFINITY)
                          : tj_rec_scalar(q, d, tj_scalar_convert_f(d, low ? -INFINITY : INFINITY));
}

trace_tensor *trace_clamp_at(trace_tensor *x, trace_tensor *lo, trace_tensor *hi, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[3] = {x, lo, hi};
    if (!tj_rec_begin(&q, "clamp", file, line, all, 3)) {
        return NULL;
    }
    if (lo == TRACE_NONE && hi == TRACE_NONE) {
        return tj_rec_end(&q, tj_rec_fail(&q, TRACE_ERR_ARGUMENT, "both bounds are TRACE_NONE; give one"));
    }
    tj_ref in[3] = {tj_rec_in(&q, x), TJ_NIL, TJ_NIL};
    struct tj_typing t = {-1, -1, TJ_NO_SCALAR};
    tj_dtype d;
    for (size_t i = 0; i < 3; i++) {
        if (i && all[i] == TRACE_NONE) {
            continue;
        }
        in[i] = i ? tj_rec_in(&q, all[i]) : in[i];
        if (in[i] == TJ_NIL) {
            return tj_rec_end(&q, TJ_NIL);
        }
        tj_typing_add(&t, tj_rec_dtype(&q, in[i]), tj_rec_rank(&q, in[i]));
    }
    if (!compute_dtype(&q, TJ_OP_CLAMP, tj_typing_result(&t), &d)) {
        return tj_rec_end(&q, TJ_NIL);
    }
    for (size_t i = 0; i < 3; i++) {
        in[i] = in[i] == TJ_NIL ? no_bound(&q, d, i == 1) : tj_rec_cast(&q, in[i], d);
    }
    return tj_rec_end(&q, clamp_of(&q, in[0], in[1], in[2], d));
}
trace_tensor *trace_clamp(trace_tensor *x, trace_tensor *lo, trace_tensor *hi) {
    return trace_clamp_at(x, lo, hi, NULL, 0);
}

trace_tensor *trace_clamp_f_at(trace_tensor *x, double lo, double hi, const char *file, int line) {
    struct tj_rec q;
    if (!tj_rec_begin(&q, "clamp", file, line, &x, 1)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x);
    tj_dtype d;
    if (a == TJ_NIL || !compute_dtype(&q, TJ_OP_CLAMP, typed(&q, a, SF(lo)), &d)) {
        return tj_rec_end(&q, TJ_NIL);
    }
    a = tj_rec_cast(&q, a, d);
    tj_ref l = tj_rec_scalar_f(&q, d, lo), h = tj_rec_scalar_f(&q, d, hi);
    return tj_rec_end(&q, clamp_of(&q, a, l, h, d));
}
trace_tensor *trace_clamp_f(trace_tensor *x, double lo, double hi) { return trace_clamp_f_at(x, lo, hi, NULL, 0); }

static tj_ref bound(struct tj_rec *q, tj_dtype d, int64_t v) {
    if (v == INT64_MIN || v == INT64_MAX) {
        return no_bound(q, d, v < 0);
    }
    if (tj_is_float(d)) {
        return tj_rec_scalar_i(q, d, v);
    }
    // A bound outside the dtype's range bounds like the nearest value in it.
    int64_t lo = d == TRACE_U8 ? 0 : d == TRACE_I32 ? INT32_MIN : INT64_MIN;
    int64_t hi = d == TRACE_U8 ? 255 : d == TRACE_I32 ? INT32_MAX : INT64_MAX;
    return tj_rec_scalar_i(q, d, v < lo ? lo : v > hi ? hi : v);
}

static tj_ref clamp_int(struct tj_rec *q, tj_ref a, int64_t lo, int64_t hi) {
    tj_dtype d;
    if (a == TJ_NIL || !compute_dtype(q, TJ_OP_CLAMP, typed(q, a, SI(lo)), &d)) {
        return TJ_NIL;
    }
    a = tj_rec_cast(q, a, d);
    tj_ref l = bound(q, d, lo), h = bound(q, d, hi);
    return clamp_of(q, a, l, h, d);
}

trace_tensor *trace_clamp_i_at(trace_tensor *x, int64_t lo, int64_t hi, const char *file, int line) {
    struct tj_rec q;
    return tj_rec_begin(&q, "clamp", file, line, &x, 1) ? tj_rec_end(&q, clamp_int(&q, tj_rec_in(&q, x), lo, hi))
                                                        : NULL;
}
trace_tensor *trace_clamp_i(trace_tensor *x, int64_t lo, int64_t hi) { return trace_clamp_i_at(x, lo, hi, NULL, 0); }

trace_tensor *trace_relu6_at(trace_tensor *x, const char *file, int line) {
    struct tj_rec q;
    if (!tj_rec_begin(&q, "relu6", file, line, &x, 1)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x);
    if (a != TJ_NIL && tj_rec_dtype(&q, a) == TRACE_BOOL) {
        return tj_rec_end(&q, tj_rec_fail(&q, TRACE_ERR_DTYPE, "not of bool; convert with trace_to"));
    }
    return tj_rec_end(&q, clamp_int(&q, a, 0, 6));
}
trace_tensor *trace_relu6(trace_tensor *x) { return trace_relu6_at(x, NULL, 0); }

// ---- in place -----------------------------------------------------------------------------------------------

// Whether a result of dtype from may be stored as to (copy_ and fill_ convert anything).
static bool castable(struct tj_rec *q, tj_dtype from, tj_dtype to) {
    if ((tj_is_float(from) && !tj_is_float(to)) || (from != TRACE_BOOL && to == TRACE_BOOL)) {
        tj_op_fail(TRACE_ERR_DTYPE, q->op, q->loc,
                   "the result is %s and can't be stored as %s; convert with trace_to, "
                   "or use the form that gives a new value",
                   tj_dtypes[from].name, tj_dtypes[to].name);
        return false;
    }
    return true;
}

static bool store(struct tj_rec *q, tj_ref target, tj_ref v) {
    if (target == TJ_NIL || v == TJ_NIL || !castable(q, tj_rec_dtype(q, v), tj_rec_dtype(q, target))) {
        return false;
    }
    if (tj_rec_node(q, v)->shape != tj_rec_node(q, target)->shape) {
        char tt[TJ_DIMS_TEXT], tv[TJ_DIMS_TEXT];
        tj_op_fail(TRACE_ERR_SHAPE, q->op, q->loc, "a destination of shape %s can't hold the broadcast shape %s",
                   tj_dims_text(tt, sizeof tt, tj_rec_dims(q, target), tj_rec_rank(q, target)),
                   tj_dims_text(tv, sizeof tv, tj_rec_dims(q, v), tj_rec_rank(q, v)));
        return false;
    }
    return tj_rec_write(q, target, tj_rec_cast(q, v, tj_rec_dtype(q, target)));
}

static trace_tensor *binary_(enum tj_op op, const char *name, trace_tensor *a, trace_tensor *b, const char *file,
                             int line) {
    struct tj_rec q;
    trace_tensor *both[2] = {a, b};
    if (!tj_rec_begin(&q, name, file, line, both, 2)) {
        return NULL;
    }
    tj_ref x = tj_rec_target(&q, a), y = x == TJ_NIL ? x : tj_rec_in(&q, b);
    if (y != TJ_NIL) { // capturing b may have made x a view of a larger leaf
        x = tj_rec_mem(&q, a);
    }
    tj_ref v = y == TJ_NIL ? y : tj_rec_binary(&q, op, x, y);
    return tj_rec_end_inplace(&q, a, store(&q, x, v));
}

static trace_tensor *scalar_(enum tj_op op, const char *name, trace_tensor *a, struct scalar s, const char *file,
                             int line) {
    struct tj_rec q;
    if (!tj_rec_begin(&q, name, file, line, &a, 1)) {
        return NULL;
    }
    tj_ref x = tj_rec_target(&q, a), v = x == TJ_NIL ? x : with_scalar(&q, op, x, s, false);
    return tj_rec_end_inplace(&q, a, store(&q, x, v));
}

#define INPLACE(name, NAME)                                                                                            \
    trace_tensor *trace_##name##__at(trace_tensor *a, trace_tensor *b, const char *file, int line) {                   \
        return binary_(TJ_OP_##NAME, #name "_", a, b, file, line);                                                     \
    }                                                                                                                  \
    trace_tensor *trace_##name##_(trace_tensor *a, trace_tensor *b) { return trace_##name##__at(a, b, NULL, 0); }      \
    trace_tensor *trace_##name##_f__at(trace_tensor *a, double s, const char *file, int line) {                        \
        return scalar_(TJ_OP_##NAME, #name "_", a, SF(s), file, line);                                                 \
    }                                                                                                                  \
    trace_tensor *trace_##name##_f_(trace_tensor *a, double s) { return trace_##name##_f__at(a, s, NULL, 0); }         \
    trace_tensor *trace_##name##_i__at(trace_tensor *a, int64_t s, const char *file, int line) {                       \
        return scalar_(TJ_OP_##NAME, #name "_", a, SI(s), file, line);                                                 \
    }                                                                                                                  \
    trace_tensor *trace_##name##_i_(trace_tensor *a, int64_t s) { return trace_##name##_i__at(a, s, NULL, 0); }
INPLACE(add, ADD)
INPLACE(sub, SUB)
INPLACE(mul, MUL)
INPLACE(div, DIV)

// Where node n lies, as a tensor. none: stands for the memory of computed values.
static void tensor_of(struct tj_rec *q, tj_ref n, struct tj_storage *none, struct trace_tensor *t, tj_ref *root) {
    struct tj_place v;
    tj_value_place(q->r, n, &v, root);
    *t = (struct trace_tensor){.dtype = (uint8_t)tj_rec_dtype(q, n), .rank = (uint8_t)v.rank, .offset = v.offset};
    memcpy(t->dims, v.dims, sizeof t->dims);
    memcpy(t->strides, v.strides, sizeof t->strides);
    (void)tj_numel(t->dims, t->rank, &t->numel);
    t->layout = tj_layout_of(t->dims, t->strides, t->rank);
    t->st = v.tensor ? v.tensor->st : none;
}

// Whether source and destination share memory other than element with equal element.
static enum tj_sharing copy_overlaps(struct tj_rec *q, tj_ref dst, tj_ref src) {
    struct trace_tensor x, y;
    struct tj_storage none = {0};
    tj_ref rx, ry;
    tensor_of(q, dst, &none, &x, &rx);
    tensor_of(q, src, &none, &y, &ry);
    if (rx != ry && (x.st == &none || y.st == &none)) {
        return TJ_APART;
    }
    enum tj_sharing s = tj_tensors_share(&x, &y);
    bool same =
        s != TJ_APART && x.rank == y.rank && x.dtype == y.dtype && tj_tensor_span(&x).lo == tj_tensor_span(&y).lo;
    for (size_t i = 0; same && i < x.rank; i++) {
        same = x.dims[i] == y.dims[i] && (x.dims[i] == 1 || x.strides[i] == y.strides[i]);
    }
    return same ? TJ_APART : s;
}

trace_tensor *trace_copy__at(trace_tensor *dst, trace_tensor *src, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *both[2] = {dst, src};
    if (!tj_rec_begin(&q, "copy_", file, line, both, 2)) {
        return NULL;
    }
    tj_ref x = tj_rec_target(&q, dst), y = x == TJ_NIL ? x : tj_rec_in(&q, src);
    if (y == TJ_NIL) {
        return tj_rec_end_inplace(&q, dst, false);
    }
    x = tj_rec_mem(&q, dst);
    enum tj_sharing shared = copy_overlaps(&q, x, y);
    if (shared != TJ_APART) {
        char a[TJ_DIMS_TEXT], b[TJ_DIMS_TEXT];
        tj_op_fail(TRACE_ERR_ARGUMENT, q.op, q.loc, "source %s and destination %s %s; copy from a clone of the source",
                   tj_dims_text(a, sizeof a, tj_rec_dims(&q, y), tj_rec_rank(&q, y)),
                   tj_dims_text(b, sizeof b, tj_rec_dims(&q, x), tj_rec_rank(&q, x)),
                   shared == TJ_SHARED ? "partly overlap"
                                       : "lie between each other, and their strides are too tangled to tell that "
                                         "they don't overlap");
        return tj_rec_end_inplace(&q, dst, false);
    }
    int64_t dims[TJ_MAX_RANK];
    size_t rank = tj_rec_rank(&q, x);
    memcpy(dims, tj_rec_dims(&q, x), rank * sizeof *dims);
    tj_ref v = tj_rec_cast(&q, y, tj_rec_dtype(&q, x));
    v = v == TJ_NIL ? v : tj_rec_expand(&q, v, dims, rank);
    return tj_rec_end_inplace(&q, dst, v != TJ_NIL && tj_rec_write(&q, x, v));
}
trace_tensor *trace_copy_(trace_tensor *dst, trace_tensor *src) { return trace_copy__at(dst, src, NULL, 0); }

static trace_tensor *fill_(trace_tensor *t, struct scalar s, const char *file, int line) {
    struct tj_rec q;
    if (!tj_rec_begin(&q, "fill_", file, line, &t, 1)) {
        return NULL;
    }
    tj_ref x = tj_rec_target(&q, t);
    if (x == TJ_NIL) {
        return tj_rec_end_inplace(&q, t, false);
    }
    int64_t dims[TJ_MAX_RANK];
    size_t rank = tj_rec_rank(&q, x);
    memcpy(dims, tj_rec_dims(&q, x), rank * sizeof *dims);
    tj_dtype d = tj_rec_dtype(&q, x);
    tj_ref v = scalar_node(&q, d, s);
    v = v == TJ_NIL ? v : tj_rec_expand(&q, v, dims, rank);
    return tj_rec_end_inplace(&q, t, v != TJ_NIL && tj_rec_write(&q, x, v));
}
trace_tensor *trace_fill_f__at(trace_tensor *x, double s, const char *file, int line) {
    return fill_(x, SF(s), file, line);
}
trace_tensor *trace_fill_f_(trace_tensor *x, double s) { return trace_fill_f__at(x, s, NULL, 0); }
trace_tensor *trace_fill_i__at(trace_tensor *x, int64_t s, const char *file, int line) {
    return fill_(x, SI(s), file, line);
}
trace_tensor *trace_fill_i_(trace_tensor *x, int64_t s) { return trace_fill_i__at(x, s, NULL, 0); }
