// trace/interp_point.c: pointwise ops, casts and arange of the interpreter.
#include "interp.h"

// Operands of one stretch of elements, all of one class but WHERE's condition.
struct args {
    const struct tj_interp *it;
    tj_ref node;
    tj_dtype dtype; // of the operands (of the values of WHERE)
    int64_t n;
    union tj_chunk *in; // up to six
    union tj_chunk *out;
};

#define UNARY(member, expr)                                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        x = a->in[0].member[i];                                                                                        \
        a->out->member[i] = (expr);                                                                                    \
    }                                                                                                                  \
    return true
#define BINARY(member, expr)                                                                                           \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        x = a->in[0].member[i];                                                                                        \
        y = a->in[1].member[i];                                                                                        \
        a->out->member[i] = (expr);                                                                                    \
    }                                                                                                                  \
    return true
#define TERNARY(member, expr)                                                                                          \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        x = a->in[0].member[i];                                                                                        \
        y = a->in[1].member[i];                                                                                        \
        z = a->in[2].member[i];                                                                                        \
        a->out->member[i] = (expr);                                                                                    \
    }                                                                                                                  \
    return true
// Result bool: int64 whatever the operands' class.
#define TEST1(member, expr)                                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        x = a->in[0].member[i];                                                                                        \
        a->out->i[i] = (expr);                                                                                         \
    }                                                                                                                  \
    return true
#define TEST2(member, expr)                                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        x = a->in[0].member[i];                                                                                        \
        y = a->in[1].member[i];                                                                                        \
        a->out->i[i] = (expr);                                                                                         \
    }                                                                                                                  \
    return true
#define COMPARISONS(member)                                                                                            \
    case TJ_OP_LOGICAL_NOT: TEST1(member, x == 0);                                                                     \
    case TJ_OP_EQ: TEST2(member, x == y);                                                                              \
    case TJ_OP_NE: TEST2(member, x != y);                                                                              \
    case TJ_OP_LT: TEST2(member, x < y);                                                                               \
    case TJ_OP_LE: TEST2(member, x <= y);                                                                              \
    case TJ_OP_GT: TEST2(member, x > y);                                                                               \
    case TJ_OP_GE: TEST2(member, x >= y);                                                                              \
    case TJ_OP_LOGICAL_AND: TEST2(member, (x != 0) & (y != 0));                                                        \
    case TJ_OP_LOGICAL_OR: TEST2(member, (x != 0) | (y != 0));                                                         \
    case TJ_OP_LOGICAL_XOR: TEST2(member, (x != 0) ^ (y != 0))

static bool float_op(enum tj_op op, const struct args *a) {
    int64_t n = a->n;
    float x, y, z;
    switch (op) {
    case TJ_OP_NEG: UNARY(f, -x);
    case TJ_OP_ABS: UNARY(f, tj_abs_f32(x));
    case TJ_OP_SIGN: UNARY(f, tj_sign_f32(x));
    case TJ_OP_FLOOR: UNARY(f, floorf(x));
    case TJ_OP_CEIL: UNARY(f, ceilf(x));
    case TJ_OP_TRUNC: UNARY(f, truncf(x));
    case TJ_OP_ROUND: UNARY(f, rintf(x));
    case TJ_OP_FRAC: UNARY(f, tj_frac_f32(x));
    case TJ_OP_RECIPROCAL: UNARY(f, 1.0f / x);
    case TJ_OP_SQUARE: UNARY(f, x * x);
    case TJ_OP_CUBE: UNARY(f, (x * x) * x);
    case TJ_OP_RSQUARE: UNARY(f, 1.0f / (x * x));
    case TJ_OP_SQRT: UNARY(f, sqrtf(x));
    case TJ_OP_RSQRT: UNARY(f, 1.0f / sqrtf(x));
    case TJ_OP_EXP: UNARY(f, tj_exp_f32(x));
    case TJ_OP_LOG: UNARY(f, tj_log_f32(x));
    case TJ_OP_SIN: UNARY(f, tj_sin_f32(x));
    case TJ_OP_COS: UNARY(f, tj_cos_f32(x));
    case TJ_OP_TANH: UNARY(f, tj_tanh_f32(x));
    case TJ_OP_ERF: UNARY(f, tj_erf_f32(x));
    case TJ_OP_SIGMOID: UNARY(f, tj_sigmoid_f32(x));
    case TJ_OP_RELU: UNARY(f, tj_relu_f32(x));
    case TJ_OP_GELU: UNARY(f, tj_gelu_f32(x));
    case TJ_OP_GELU_TANH: UNARY(f, tj_gelu_tanh_f32(x));
    case TJ_OP_SILU: UNARY(f, tj_silu_f32(x));
    case TJ_OP_ISNAN: TEST1(f, x != x);
    case TJ_OP_ISINF: TEST1(f, tj_abs_f32(x) == INFINITY);
    case TJ_OP_ADD: BINARY(f, x + y);
    case TJ_OP_SUB: BINARY(f, x - y);
    case TJ_OP_MUL: BINARY(f, x * y);
    case TJ_OP_DIV: BINARY(f, x / y);
    case TJ_OP_FLOOR_DIVIDE: BINARY(f, tj_floor_divide_f32(x, y));
    case TJ_OP_REMAINDER: BINARY(f, tj_remainder_f32(x, y));
    case TJ_OP_FMOD: BINARY(f, fmodf(x, y));
    case TJ_OP_POW: BINARY(f, tj_pow_f32(x, y));
    case TJ_OP_MAXIMUM: BINARY(f, tj_max_f32(x, y));
    case TJ_OP_MINIMUM: BINARY(f, tj_min_f32(x, y));
    case TJ_OP_CLAMP: TERNARY(f, tj_min_f32(tj_max_f32(x, y), z));
    case TJ_OP_SOFTPLUS: TERNARY(f, tj_softplus_f32(x, y, z));
    case TJ_OP_BATCH_NORM:
        for (int64_t i = 0; i < n; i++) {
            float r = 1.0f / sqrtf(a->in[2].f[i] + a->in[5].f[i]);
            float d = (a->in[0].f[i] - a->in[1].f[i]) * r;
            float w = d * a->in[3].f[i];
            a->out->f[i] = w + a->in[4].f[i];
        }
        return true;
        COMPARISONS(f);
    default: return false;
    }
}

static bool double_op(enum tj_op op, const struct args *a) {
    int64_t n = a->n;
    double x, y, z;
    switch (op) {
    case TJ_OP_NEG: UNARY(d, -x);
    case TJ_OP_ABS: UNARY(d, tj_abs_f64(x));
    case TJ_OP_SIGN: UNARY(d, tj_sign_f64(x));
    case TJ_OP_FLOOR: UNARY(d, floor(x));
    case TJ_OP_CEIL: UNARY(d, ceil(x));
    case TJ_OP_TRUNC: UNARY(d, trunc(x));
    case TJ_OP_ROUND: UNARY(d, rint(x));
    case TJ_OP_FRAC: UNARY(d, tj_frac_f64(x));
    case TJ_OP_RECIPROCAL: UNARY(d, 1.0 / x);
    case TJ_OP_SQUARE: UNARY(d, x * x);
    case TJ_OP_CUBE: UNARY(d, (x * x) * x);
    case TJ_OP_RSQUARE: UNARY(d, 1.0 / (x * x));
    case TJ_OP_SQRT: UNARY(d, sqrt(x));
    case TJ_OP_RSQRT: UNARY(d, 1.0 / sqrt(x));
    case TJ_OP_EXP: UNARY(d, exp(x));
    case TJ_OP_LOG: UNARY(d, log(x));
    case TJ_OP_SIN: UNARY(d, sin(x));
    case TJ_OP_COS: UNARY(d, cos(x));
    case TJ_OP_TANH: UNARY(d, tanh(x));
    case TJ_OP_ERF: UNARY(d, erf(x));
    case TJ_OP_SIGMOID: UNARY(d, tj_sigmoid_f64(x));
    case TJ_OP_RELU: UNARY(d, tj_relu_f64(x));
    case TJ_OP_GELU: UNARY(d, tj_gelu_f64(x));
    case TJ_OP_GELU_TANH: UNARY(d, tj_gelu_tanh_f64(x));
    case TJ_OP_SILU: UNARY(d, tj_silu_f64(x));
    case TJ_OP_ISNAN: TEST1(d, x != x);
    case TJ_OP_ISINF: TEST1(d, tj_abs_f64(x) == (double)INFINITY);
    case TJ_OP_ADD: BINARY(d, x + y);
    case TJ_OP_SUB: BINARY(d, x - y);
    case TJ_OP_MUL: BINARY(d, x * y);
    case TJ_OP_DIV: BINARY(d, x / y);
    case TJ_OP_FLOOR_DIVIDE: BINARY(d, tj_floor_divide_f64(x, y));
    case TJ_OP_REMAINDER: BINARY(d, tj_remainder_f64(x, y));
    case TJ_OP_FMOD: BINARY(d, fmod(x, y));
    case TJ_OP_POW: BINARY(d, pow(x, y));
    case TJ_OP_MAXIMUM: BINARY(d, tj_max_f64(x, y));
    case TJ_OP_MINIMUM: BINARY(d, tj_min_f64(x, y));
    case TJ_OP_CLAMP: TERNARY(d, tj_min_f64(tj_max_f64(x, y), z));
    case TJ_OP_SOFTPLUS: TERNARY(d, tj_softplus_f64(x, y, z));
    case TJ_OP_BATCH_NORM:
        for (int64_t i = 0; i < n; i++) {
            double r = 1.0 / sqrt(a->in[2].d[i] + a->in[5].d[i]);
            double d = (a->in[0].d[i] - a->in[1].d[i]) * r;
            double w = d * a->in[3].d[i];
            a->out->d[i] = w + a->in[4].d[i];
        }
        return true;
        COMPARISONS(d);
    default: return false;
    }
}

static int64_t divide(const struct args *a, enum tj_op op, int64_t x, int64_t y) {
    if (y == 0) {
        tj_idata_error(a->it, a->node, TJ_DATA_DIVISION, 0, 0);
        return 0;
    }
    switch (op) {
    case TJ_OP_FLOOR_DIVIDE: return tj_floor_divide_i64(x, y);
    case TJ_OP_REMAINDER: return tj_remainder_i64(x, y);
    default: return tj_fmod_i64(x, y);
    }
}

static int64_t power(const struct args *a, int64_t x, int64_t y) {
    if (y >= 0) {
        return tj_pow_i64(x, y);
    }
    if (x == 1 || x == -1) {
        return x == 1 || y % 2 == 0 ? 1 : -1;
    }
    tj_idata_error(a->it, a->node, TJ_DATA_POWER, y, 0);
    return 0;
}

#define WRAP(expr) ((int64_t)(expr))
#define U(v) ((uint64_t)(v))

// Narrow integers are computed here and wrap when they are stored. A bool is 0 or 1.
static bool int_op(enum tj_op op, const struct args *a) {
    int64_t n = a->n, x, y, z;
    bool b = a->dtype == TRACE_BOOL;
    switch (op) {
    case TJ_OP_NEG: UNARY(i, WRAP(0u - U(x)));
    case TJ_OP_ABS: UNARY(i, x < 0 ? WRAP(0u - U(x)) : x);
    case TJ_OP_SIGN: UNARY(i, (x > 0) - (x < 0));
    case TJ_OP_FLOOR:
    case TJ_OP_CEIL:
    case TJ_OP_TRUNC:
    case TJ_OP_ROUND: UNARY(i, x);
    case TJ_OP_SQUARE: UNARY(i, WRAP(U(x) * U(x)));
    case TJ_OP_CUBE: UNARY(i, WRAP(U(x) * U(x) * U(x)));
    case TJ_OP_RELU: UNARY(i, x > 0 ? x : 0);
    case TJ_OP_BITWISE_NOT: UNARY(i, b ? !x : ~x);
    case TJ_OP_ISNAN:
    case TJ_OP_ISINF: TEST1(i, x != x);
    case TJ_OP_ADD: BINARY(i, b ? (x | y) : WRAP(U(x) + U(y)));
    case TJ_OP_SUB: BINARY(i, WRAP(U(x) - U(y)));
    case TJ_OP_MUL: BINARY(i, WRAP(U(x) * U(y)));
    case TJ_OP_FLOOR_DIVIDE:
    case TJ_OP_REMAINDER:
    case TJ_OP_FMOD: BINARY(i, divide(a, op, x, y));
    case TJ_OP_POW: BINARY(i, power(a, x, y));
    case TJ_OP_MAXIMUM: BINARY(i, x > y ? x : y);
    case TJ_OP_MINIMUM: BINARY(i, x < y ? x : y);
    case TJ_OP_BITWISE_AND: BINARY(i, x & y);
    case TJ_OP_BITWISE_OR: BINARY(i, x | y);
    case TJ_OP_BITWISE_XOR: BINARY(i, x ^ y);
    case TJ_OP_CLAMP: TERNARY(i, (x > y ? x : y) < z ? (x > y ? x : y) : z); COMPARISONS(i);
    default: return false;
    }
}

static void where(const struct args *a, enum tj_iclass cls) {
    for (int64_t i = 0; i < a->n; i++) {
        bool c = a->in[0].i[i] != 0;
        switch (cls) {
        case TJ_I_FLOAT: a->out->f[i] = c ? a->in[1].f[i] : a->in[2].f[i]; break;
        case TJ_I_DOUBLE: a->out->d[i] = c ? a->in[1].d[i] : a->in[2].d[i]; break;
        default: a->out->i[i] = c ? a->in[1].i[i] : a->in[2].i[i]; break;
        }
    }
}

#define OPERANDS 6

void tj_interp_pointwise(const struct tj_interp *it, tj_ref n) {
    const struct tj_node *d = tj_inode(it, n);
    struct tj_iview v[1 + OPERANDS];
    tj_dtype dtype[1 + OPERANDS];
    union tj_chunk in[OPERANDS], out;
    uint32_t nin = d->nin;
    v[0] = tj_iview_of(it, n);
    dtype[0] = v[0].dtype;
    for (uint32_t k = 0; k < nin; k++) {
        struct tj_iview o = tj_iview_of(it, tj_iin(it, n, k));
        v[1 + k] = tj_iview_expand(&o, v[0].dims, v[0].rank);
        dtype[1 + k] = o.dtype;
    }
    struct args a = {.it = it, .node = n, .dtype = dtype[d->op == TJ_OP_WHERE ? 2 : 1], .in = in, .out = &out};
    enum tj_iclass cls = tj_iclass_of(a.dtype);
    struct tj_walk w;
    tj_walk_init(&w, v[0].dims, v[0].rank, v, 1 + nin);
    while ((a.n = tj_walk_run(&w, TJ_CHUNK)) > 0) {
        for (uint32_t k = 0; k < nin; k++) {
            tj_iload(dtype[1 + k], w.p[1 + k], tj_walk_stride(&w, 1 + k), a.n, &in[k]);
        }
        if (d->op == TJ_OP_WHERE) {
            where(&a, cls);
        } else if (cls == TJ_I_FLOAT) {
            float_op((enum tj_op)d->op, &a);
        } else if (cls == TJ_I_DOUBLE) {
            double_op((enum tj_op)d->op, &a);
        } else {
            int_op((enum tj_op)d->op, &a);
        }
        tj_istore(dtype[0], w.p[0], tj_walk_stride(&w, 0), a.n, &out);
        tj_walk_advance(&w, a.n);
    }
}

// ---- casts ---------------------------------------------------------------------------------------------------------

static int64_t saturate(tj_dtype to, double x) {
    switch (to) {
    case TRACE_BOOL: return x != 0.0; // NaN is not zero
    case TRACE_U8: return tj_f64_to_u8(x);
    case TRACE_I32: return tj_f64_to_i32(x);
    default: return tj_f64_to_i64(x);
    }
}

// Values of class `from` become values of the class of `to`; storing narrows them further.
static void convert(enum tj_iclass from, tj_dtype to, int64_t n, const union tj_chunk *in, union tj_chunk *out) {
    enum tj_iclass cls = tj_iclass_of(to);
    for (int64_t i = 0; i < n; i++) {
        if (cls == TJ_I_INT) {
            int64_t x;
            switch (from) {
            case TJ_I_FLOAT: x = saturate(to, (double)in->f[i]); break;
            case TJ_I_DOUBLE: x = saturate(to, in->d[i]); break;
            default: x = in->i[i]; break; // wraps, or is tested against zero, when stored
            }
            out->i[i] = x;
        } else if (cls == TJ_I_DOUBLE) {
            out->d[i] = from == TJ_I_FLOAT ? (double)in->f[i] : (from == TJ_I_DOUBLE ? in->d[i] : (double)in->i[i]);
        } else {
            out->f[i] = from == TJ_I_FLOAT ? in->f[i] : (from == TJ_I_DOUBLE ? (float)in->d[i] : (float)in->i[i]);
        }
    }
}

void tj_interp_cast(const struct tj_interp *it, tj_ref n) {
    struct tj_iview v[2] = {tj_iview_of(it, n), tj_iview_of(it, tj_iin(it, n, 0))};
    v[1] = tj_iview_expand(&v[1], v[0].dims, v[0].rank);
    union tj_chunk in, out;
    struct tj_walk w;
    tj_walk_init(&w, v[0].dims, v[0].rank, v, 2);
    for (int64_t m; (m = tj_walk_run(&w, TJ_CHUNK)) > 0; tj_walk_advance(&w, m)) {
        tj_iload(v[1].dtype, w.p[1], tj_walk_stride(&w, 1), m, &in);
        convert(tj_iclass_of(v[1].dtype), v[0].dtype, m, &in, &out);
        tj_istore(v[0].dtype, w.p[0], tj_walk_stride(&w, 0), m, &out);
    }
}

void tj_interp_arange(const struct tj_interp *it, tj_ref n) {
    struct tj_iview v = tj_iview_of(it, n), s = tj_iview_of(it, tj_iin(it, n, 0)),
                    e = tj_iview_of(it, tj_iin(it, n, 1));
    bool real = s.dtype == TRACE_F64;
    double fstart = tj_iload_f64(s.dtype, s.p), fstep = tj_iload_f64(e.dtype, e.p);
    int64_t start = tj_iload_i64(s.dtype, s.p), step = tj_iload_i64(e.dtype, e.p);
    union tj_chunk in, out;
    for (int64_t i = 0; i < v.dims[0];) {
        int64_t m = v.dims[0] - i < TJ_CHUNK ? v.dims[0] - i : TJ_CHUNK;
        for (int64_t k = 0; k < m; k++) {
            if (real) {
                in.d[k] = fstart + (double)(i + k) * fstep;
            } else {
                in.i[k] = (int64_t)((uint64_t)start + (uint64_t)(i + k) * (uint64_t)step);
            }
        }
        convert(real ? TJ_I_DOUBLE : TJ_I_INT, v.dtype, m, &in, &out);
        tj_istore(v.dtype, v.p + i * v.st[0], v.st[0], m, &out);
        i += m;
    }
}
