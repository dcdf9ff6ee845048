// jit/pointwise_llvm.c: pointwise instructions as IR, for every dtype; what they mean is in ops.def and trace/math.h.
#include <math.h>

#include "../lib/coefs.h"
#include "emit_llvm.h"

enum { CLS_BOOL, CLS_UINT, CLS_INT, CLS_FLOAT };
static int class_of(uint8_t dtype) {
    switch (dtype) {
    case TRACE_BOOL: return CLS_BOOL;
    case TRACE_U8: return CLS_UINT;
    case TRACE_I32:
    case TRACE_I64: return CLS_INT;
    default: return CLS_FLOAT;
    }
}

static tj_lv zero(tj_lv x) { return LLVMConstNull(LLVMTypeOf(x)); }
static tj_lv real(tj_lv like, double v) { return tj_e_float(LLVMTypeOf(like), v); }
static tj_lv whole(tj_lv like, int64_t v) { return tj_e_int(LLVMTypeOf(like), v); }

// ---- functions of the C library, a lane at a time -----------------------------------------------------------------

static tj_lv helper(struct tj_emit *e, tj_lv args, enum tj_helper which, tj_lv x, tj_lv y) {
    unsigned n = tj_e_lanes(x);
    tj_lt t = n ? LLVMGetElementType(LLVMTypeOf(x)) : LLVMTypeOf(x);
    tj_lt params[] = {t, t};
    tj_lt ft = LLVMFunctionType(t, params, y ? 2 : 1, 0);
    tj_lv table = tj_e_load(e, e->ptr, tj_e_gep(e, e->i8, args, tj_e_i64(e, offsetof(struct tj_kargs, helpers))), 8);
    tj_lv f = tj_e_load(e, e->ptr, tj_e_gep(e, e->ptr, table, tj_e_i64(e, which)), 8);
    if (!n) {
        tj_lv a[] = {x, y};
        return LLVMBuildCall2(e->b, ft, f, a, y ? 2 : 1, "");
    }
    tj_lv bx = tj_e_alloca(e, LLVMTypeOf(x), 64, ""), by = y ? tj_e_alloca(e, LLVMTypeOf(y), 64, "") : NULL;
    tj_e_store(e, x, bx, 64);
    if (y) {
        tj_e_store(e, y, by, 64);
    }
    struct tj_loop_state l;
    tj_e_loop(e, &l, tj_e_i64(e, 0), tj_e_i64(e, n), tj_e_i64(e, 1), "lane");
    tj_lv px = tj_e_gep(e, t, bx, l.i);
    tj_lv a[] = {tj_e_load(e, t, px, 4), y ? tj_e_load(e, t, tj_e_gep(e, t, by, l.i), 4) : NULL};
    tj_e_store(e, LLVMBuildCall2(e->b, ft, f, a, y ? 2 : 1, ""), px, 4);
    tj_e_loop_end(e, &l);
    return tj_e_load(e, LLVMTypeOf(x), bx, 64);
}

// ---- floats -------------------------------------------------------------------------------------------------------

// The larger (smaller); NaN if either is; of equal ones the bits are and-ed (or-ed). Both orders of the machine's max
// give the same but where a NaN or two zeros meet, so and-ing them settles the zeros; a comparison settles NaN.
tj_lv tj_e_extreme(struct tj_emit *e, tj_lv a, tj_lv b, bool max) {
    LLVMBuilderRef w = e->b;
    LLVMRealPredicate p = max ? LLVMRealOGT : LLVMRealOLT;
    tj_lv x = tj_e_bits(e, LLVMBuildSelect(w, LLVMBuildFCmp(w, p, a, b, ""), a, b, ""));
    tj_lv y = tj_e_bits(e, LLVMBuildSelect(w, LLVMBuildFCmp(w, p, b, a, ""), b, a, ""));
    tj_lv nan = LLVMBuildSExt(w, LLVMBuildFCmp(w, LLVMRealUNO, a, b, ""), LLVMTypeOf(x), "");
    tj_lv r = max ? LLVMBuildAnd(w, x, y, "") : LLVMBuildOr(w, x, y, "");
    return tj_e_unbits(e, LLVMBuildOr(w, r, nan, ""));
}

static tj_lv remainder_float(struct tj_emit *e, tj_lv args, tj_lv a, tj_lv b, bool f64) {
    LLVMBuilderRef w = e->b;
    tj_lv m = helper(e, args, f64 ? TJ_H_FMOD : TJ_H_FMODF, a, b);
    tj_lv differ = LLVMBuildXor(w, LLVMBuildFCmp(w, LLVMRealOLT, m, zero(m), ""),
                                LLVMBuildFCmp(w, LLVMRealOLT, b, zero(b), ""), "");
    tj_lv move = LLVMBuildAnd(w, LLVMBuildFCmp(w, LLVMRealUNE, m, zero(m), ""), differ, "");
    return LLVMBuildSelect(w, move, LLVMBuildFAdd(w, m, b, ""), m, "");
}

static tj_lv floor_divide_float(struct tj_emit *e, tj_lv args, tj_lv a, tj_lv b, bool f64) {
    LLVMBuilderRef w = e->b;
    tj_lv q = LLVMBuildFDiv(w, a, b, "");
    tj_lv m = helper(e, args, f64 ? TJ_H_FMOD : TJ_H_FMODF, a, b);
    tj_lv d = LLVMBuildFDiv(w, LLVMBuildFSub(w, a, m, ""), b, "");
    tj_lv differ = LLVMBuildXor(w, LLVMBuildFCmp(w, LLVMRealOLT, m, zero(m), ""),
                                LLVMBuildFCmp(w, LLVMRealOLT, b, zero(b), ""), "");
    tj_lv down = LLVMBuildAnd(w, LLVMBuildFCmp(w, LLVMRealUNE, m, zero(m), ""), differ, "");
    d = LLVMBuildSelect(w, down, LLVMBuildFSub(w, d, real(d, 1), ""), d, "");
    tj_lv f = tj_e_unary(e, "llvm.floor", d);
    tj_lv up = LLVMBuildFCmp(w, LLVMRealOGT, LLVMBuildFSub(w, d, f, ""), real(d, 0.5), "");
    f = LLVMBuildSelect(w, up, LLVMBuildFAdd(w, f, real(f, 1), ""), f, "");
    tj_lv sign = tj_e_bits(e, q);
    sign = tj_e_unbits(e, LLVMBuildAnd(w, sign, whole(sign, f64 ? INT64_MIN : (int64_t)0x80000000), ""));
    f = LLVMBuildSelect(w, LLVMBuildFCmp(w, LLVMRealOEQ, d, zero(d), ""), sign, f, "");
    return LLVMBuildSelect(w, LLVMBuildFCmp(w, LLVMRealOEQ, b, zero(b), ""), q, f, "");
}

// The f64 functions of trace/math.h that are composed of others.
static tj_lv sigmoid_f64(struct tj_emit *e, tj_lv args, tj_lv x) {
    LLVMBuilderRef w = e->b;
    tj_lv ex = helper(e, args, TJ_H_EXP, LLVMBuildFNeg(w, tj_e_unary(e, "llvm.fabs", x), ""), NULL);
    tj_lv num = LLVMBuildSelect(w, LLVMBuildFCmp(w, LLVMRealOLT, x, zero(x), ""), ex, real(x, 1), "");
    return LLVMBuildFDiv(w, num, LLVMBuildFAdd(w, real(x, 1), ex, ""), "");
}

static tj_lv at_least(struct tj_emit *e, tj_lv x, double low) {
    return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, LLVMRealOLT, x, real(x, low), ""), real(x, low), x, "");
}

static tj_lv math_f64(struct tj_emit *e, tj_lv args, unsigned op, tj_lv const *in) {
    LLVMBuilderRef w = e->b;
    tj_lv x = in[0];
    switch (op) {
    case TJ_OP_EXP: return helper(e, args, TJ_H_EXP, x, NULL);
    case TJ_OP_LOG: return helper(e, args, TJ_H_LOG, x, NULL);
    case TJ_OP_SIN: return helper(e, args, TJ_H_SIN, x, NULL);
    case TJ_OP_COS: return helper(e, args, TJ_H_COS, x, NULL);
    case TJ_OP_TANH: return helper(e, args, TJ_H_TANH, x, NULL);
    case TJ_OP_ERF: return helper(e, args, TJ_H_ERF, x, NULL);
    case TJ_OP_POW: return helper(e, args, TJ_H_POW, x, in[1]);
    case TJ_OP_SIGMOID: return sigmoid_f64(e, args, x);
    case TJ_OP_SILU: {
        tj_lv a = at_least(e, x, -760);
        return LLVMBuildFMul(w, a, sigmoid_f64(e, args, a), "");
    }
    case TJ_OP_GELU: {
        tj_lv a = at_least(e, x, -40);
        tj_lv r = helper(e, args, TJ_H_ERF, LLVMBuildFMul(w, a, real(a, 0x1.6a09e667f3bcdp-1), ""), NULL);
        return LLVMBuildFMul(w, LLVMBuildFMul(w, a, real(a, 0.5), ""), LLVMBuildFAdd(w, real(a, 1), r, ""), "");
    }
    case TJ_OP_GELU_TANH: {
        tj_lv a = at_least(e, x, -40), h = LLVMBuildFMul(w, a, a, "");
        tj_lv v = LLVMBuildFMul(w, real(a, TJ_GELUT64_C3), h, "");
        v = LLVMBuildFMul(w, a, LLVMBuildFAdd(w, real(a, TJ_GELUT64_C1), v, ""), "");
        return LLVMBuildFMul(w, a, sigmoid_f64(e, args, v), "");
    }
    case TJ_OP_SOFTPLUS: {
        tj_lv y = LLVMBuildFMul(w, x, in[1], "");
        tj_lv base = LLVMBuildSelect(w, LLVMBuildFCmp(w, LLVMRealOLT, y, zero(y), ""), zero(y), y, "");
        tj_lv t = helper(e, args, TJ_H_EXP, LLVMBuildFNeg(w, tj_e_unary(e, "llvm.fabs", y), ""), NULL);
        t = helper(e, args, TJ_H_LOG1P, t, NULL);
        tj_lv r = LLVMBuildFDiv(w, LLVMBuildFAdd(w, base, t, ""), in[1], "");
        return LLVMBuildSelect(w, LLVMBuildFCmp(w, LLVMRealOGT, y, in[2], ""), x, r, "");
    }
    default: return NULL;
    }
}

static tj_lv pick(struct tj_emit *e, LLVMRealPredicate p, tj_lv x, double bound, tj_lv yes, tj_lv no) {
    return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, p, x, real(x, bound), ""), yes, no, "");
}

static tj_lv float_op(struct tj_emit *e, unsigned op, tj_lv const *in, tj_lv args, bool f64) {
    LLVMBuilderRef w = e->b;
    tj_lv a = in[0], b = in[1], c = in[2];
    switch (op) {
    case TJ_OP_NEG: return LLVMBuildFNeg(w, a, "");
    case TJ_OP_ABS: return tj_e_unary(e, "llvm.fabs", a);
    case TJ_OP_SIGN: return pick(e, LLVMRealOGT, a, 0, real(a, 1), pick(e, LLVMRealOLT, a, 0, real(a, -1), zero(a)));
    case TJ_OP_FLOOR: return tj_e_unary(e, "llvm.floor", a);
    case TJ_OP_CEIL: return tj_e_unary(e, "llvm.ceil", a);
    case TJ_OP_TRUNC: return tj_e_unary(e, "llvm.trunc", a);
    case TJ_OP_ROUND: return tj_e_unary(e, "llvm.roundeven", a);
    case TJ_OP_FRAC: return LLVMBuildFSub(w, a, tj_e_unary(e, "llvm.trunc", a), "");
    case TJ_OP_RECIPROCAL: return LLVMBuildFDiv(w, real(a, 1), a, "");
    case TJ_OP_SQUARE: return LLVMBuildFMul(w, a, a, "");
    case TJ_OP_CUBE: return LLVMBuildFMul(w, LLVMBuildFMul(w, a, a, ""), a, "");
    case TJ_OP_RSQUARE: return LLVMBuildFDiv(w, real(a, 1), LLVMBuildFMul(w, a, a, ""), "");
    case TJ_OP_SQRT: return tj_e_unary(e, "llvm.sqrt", a);
    case TJ_OP_RSQRT: return LLVMBuildFDiv(w, real(a, 1), tj_e_unary(e, "llvm.sqrt", a), "");
    case TJ_OP_RELU: return pick(e, LLVMRealOLE, a, 0, zero(a), a);
    case TJ_OP_ADD: return LLVMBuildFAdd(w, a, b, "");
    case TJ_OP_SUB: return LLVMBuildFSub(w, a, b, "");
    case TJ_OP_MUL: return LLVMBuildFMul(w, a, b, "");
    case TJ_OP_DIV: return LLVMBuildFDiv(w, a, b, "");
    case TJ_KOP_FMA: return tj_e_fma(e, a, b, c);
    case TJ_OP_FLOOR_DIVIDE: return floor_divide_float(e, args, a, b, f64);
    case TJ_OP_REMAINDER: return remainder_float(e, args, a, b, f64);
    case TJ_OP_FMOD: return helper(e, args, f64 ? TJ_H_FMOD : TJ_H_FMODF, a, b);
    case TJ_OP_MAXIMUM: return tj_e_extreme(e, a, b, true);
    case TJ_OP_MINIMUM: return tj_e_extreme(e, a, b, false);
    case TJ_OP_BATCH_NORM: {
        tj_lv s = tj_e_unary(e, "llvm.sqrt", LLVMBuildFAdd(w, c, in[5], ""));
        tj_lv r = LLVMBuildFMul(w, LLVMBuildFSub(w, a, b, ""), LLVMBuildFDiv(w, real(a, 1), s, ""), "");
        return LLVMBuildFAdd(w, LLVMBuildFMul(w, r, in[3], ""), in[4], "");
    }
    default: return f64 ? math_f64(e, args, op, in) : tj_e_math(e, op, a, b, c);
    }
}

// ---- integers -----------------------------------------------------------------------------------------------------

// Quotient toward zero and remainder; divisor 0 gives 0 and 0, minimum / -1 wraps. i32 and u8 divide in f64: exact.
static void divide(struct tj_emit *e, tj_lv a, tj_lv b, bool is_unsigned, tj_lv *quo, tj_lv *rem) {
    LLVMBuilderRef w = e->b;
    tj_lt t = LLVMTypeOf(a);
    tj_lv none = LLVMBuildICmp(w, LLVMIntEQ, b, zero(b), "");
    tj_lv minus = is_unsigned ? NULL : LLVMBuildICmp(w, LLVMIntEQ, b, whole(b, -1), "");
    tj_lv special = minus ? LLVMBuildOr(w, none, minus, "") : none;
    tj_lv d = LLVMBuildSelect(w, special, whole(b, 1), b, ""), q;
    tj_lt s = LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMGetElementType(t) : t;
    if (s == e->i64 || LLVMGetTypeKind(t) != LLVMVectorTypeKind) {
        q = is_unsigned ? LLVMBuildUDiv(w, a, d, "") : LLVMBuildSDiv(w, a, d, "");
    } else {
        tj_lt tf = tj_e_as(e, a, e->f64), ti = tj_e_as(e, a, e->i32);
        tj_lv x = is_unsigned ? LLVMBuildZExt(w, a, ti, "") : a, y = is_unsigned ? LLVMBuildZExt(w, d, ti, "") : d;
        q = LLVMBuildFDiv(w, LLVMBuildSIToFP(w, x, tf, ""), LLVMBuildSIToFP(w, y, tf, ""), "");
        q = LLVMBuildFPToSI(w, q, ti, "");
        q = is_unsigned ? LLVMBuildTrunc(w, q, t, "") : q;
    }
    if (minus) {
        q = LLVMBuildSelect(w, minus, LLVMBuildNeg(w, a, ""), q, "");
    }
    tj_lv r = LLVMBuildSub(w, a, LLVMBuildMul(w, q, b, ""), "");
    *quo = LLVMBuildSelect(w, none, zero(a), q, "");
    *rem = LLVMBuildSelect(w, none, zero(a), r, "");
}

// Base to an exponent by squaring. Negative exponents: 1 and -1 have powers, others give 0.
static tj_lv int_pow(struct tj_emit *e, tj_lv base, tj_lv ex, bool is_unsigned) {
    LLVMBuilderRef w = e->b;
    tj_lb pre = tj_e_here(e), head = tj_e_block(e, "pow"), exit = tj_e_block(e, "");
    LLVMBuildBr(w, head);
    tj_e_at(e, head);
    tj_lt t = LLVMTypeOf(base);
    tj_lv r = LLVMBuildPhi(w, t, ""), p = LLVMBuildPhi(w, t, ""), n = LLVMBuildPhi(w, t, "");
    tj_lv one = whole(base, 1);
    tj_lv odd = LLVMBuildICmp(w, LLVMIntNE, LLVMBuildAnd(w, n, one, ""), zero(n), "");
    tj_lv r1 = LLVMBuildSelect(w, odd, LLVMBuildMul(w, r, p, ""), r, "");
    tj_lv p1 = LLVMBuildMul(w, p, p, ""), n1 = LLVMBuildLShr(w, n, one, "");
    LLVMAddIncoming(r, (tj_lv[]){one, r1}, (tj_lb[]){pre, head}, 2);
    LLVMAddIncoming(p, (tj_lv[]){base, p1}, (tj_lb[]){pre, head}, 2);
    LLVMAddIncoming(n, (tj_lv[]){ex, n1}, (tj_lb[]){pre, head}, 2);
    LLVMBuildCondBr(w, tj_e_any(e, LLVMBuildICmp(w, LLVMIntNE, n1, zero(n1), "")), head, exit);
    tj_e_at(e, exit);
    if (is_unsigned) {
        return r1;
    }
    tj_lv parity = LLVMBuildICmp(w, LLVMIntNE, LLVMBuildAnd(w, ex, one, ""), zero(ex), "");
    tj_lv minus = LLVMBuildSelect(w, parity, whole(base, -1), one, "");
    tj_lv neg = LLVMBuildSelect(w, LLVMBuildICmp(w, LLVMIntEQ, base, whole(base, -1), ""), minus, zero(base), "");
    neg = LLVMBuildSelect(w, LLVMBuildICmp(w, LLVMIntEQ, base, one, ""), one, neg, "");
    return LLVMBuildSelect(w, LLVMBuildICmp(w, LLVMIntSLT, ex, zero(ex), ""), neg, r1, "");
}

static tj_lv int_op(struct tj_emit *e, unsigned op, tj_lv const *in, bool is_unsigned) {
    LLVMBuilderRef w = e->b;
    tj_lv a = in[0], b = in[1], q, r;
    switch (op) {
    case TJ_OP_NEG: return LLVMBuildNeg(w, a, "");
    case TJ_OP_ABS: {
        tj_lv neg = LLVMBuildICmp(w, LLVMIntSLT, a, zero(a), "");
        return is_unsigned ? a : LLVMBuildSelect(w, neg, LLVMBuildNeg(w, a, ""), a, "");
    }
    case TJ_OP_SIGN: {
        tj_lv pos = LLVMBuildZExt(w, LLVMBuildICmp(w, is_unsigned ? LLVMIntUGT : LLVMIntSGT, a, zero(a), ""),
                                  LLVMTypeOf(a), "");
        tj_lv neg = LLVMBuildSExt(w, LLVMBuildICmp(w, LLVMIntSLT, a, zero(a), ""), LLVMTypeOf(a), "");
        return is_unsigned ? pos : LLVMBuildOr(w, pos, neg, "");
    }
    case TJ_OP_FLOOR:
    case TJ_OP_CEIL:
    case TJ_OP_TRUNC:
    case TJ_OP_ROUND: return a;
    case TJ_OP_SQUARE: return LLVMBuildMul(w, a, a, "");
    case TJ_OP_CUBE: return LLVMBuildMul(w, LLVMBuildMul(w, a, a, ""), a, "");
    case TJ_OP_RELU: return is_unsigned ? a : tj_e_binary(e, "llvm.smax", a, zero(a));
    case TJ_OP_BITWISE_NOT: return LLVMBuildNot(w, a, "");
    case TJ_OP_ADD: return LLVMBuildAdd(w, a, b, "");
    case TJ_OP_SUB: return LLVMBuildSub(w, a, b, "");
    case TJ_OP_MUL: return LLVMBuildMul(w, a, b, "");
    case TJ_OP_MAXIMUM: return tj_e_binary(e, is_unsigned ? "llvm.umax" : "llvm.smax", a, b);
    case TJ_OP_MINIMUM: return tj_e_binary(e, is_unsigned ? "llvm.umin" : "llvm.smin", a, b);
    case TJ_OP_BITWISE_AND: return LLVMBuildAnd(w, a, b, "");
    case TJ_OP_BITWISE_OR: return LLVMBuildOr(w, a, b, "");
    case TJ_OP_BITWISE_XOR: return LLVMBuildXor(w, a, b, "");
    case TJ_OP_POW: return int_pow(e, a, b, is_unsigned);
    case TJ_OP_FMOD: divide(e, a, b, is_unsigned, &q, &r); return r;
    case TJ_OP_FLOOR_DIVIDE:
    case TJ_OP_REMAINDER: {
        divide(e, a, b, is_unsigned, &q, &r);
        if (is_unsigned) {
            return op == TJ_OP_REMAINDER ? r : q;
        }
        tj_lv differ = LLVMBuildICmp(w, LLVMIntSLT, LLVMBuildXor(w, r, b, ""), zero(r), "");
        tj_lv move = LLVMBuildAnd(w, LLVMBuildICmp(w, LLVMIntNE, r, zero(r), ""), differ, "");
        return op == TJ_OP_REMAINDER ? LLVMBuildSelect(w, move, LLVMBuildAdd(w, r, b, ""), r, "")
                                     : LLVMBuildAdd(w, q, LLVMBuildSExt(w, move, LLVMTypeOf(q), ""), "");
    }
    default: return NULL;
    }
}

static tj_lv bool_op(struct tj_emit *e, unsigned op, tj_lv const *in) {
    LLVMBuilderRef w = e->b;
    switch (op) {
    case TJ_OP_BITWISE_NOT: return LLVMBuildNot(w, in[0], "");
    case TJ_OP_ADD:
    case TJ_OP_MAXIMUM:
    case TJ_OP_BITWISE_OR: return LLVMBuildOr(w, in[0], in[1], "");
    case TJ_OP_MUL:
    case TJ_OP_MINIMUM:
    case TJ_OP_BITWISE_AND: return LLVMBuildAnd(w, in[0], in[1], "");
    case TJ_OP_BITWISE_XOR:
    case TJ_OP_SUB: return LLVMBuildXor(w, in[0], in[1], "");
    case TJ_OP_POW: return LLVMBuildOr(w, in[0], LLVMBuildNot(w, in[1], ""), "");
    case TJ_OP_ABS:
    case TJ_OP_SIGN:
    case TJ_OP_FLOOR:
    case TJ_OP_CEIL:
    case TJ_OP_TRUNC:
    case TJ_OP_ROUND:
    case TJ_OP_SQUARE:
    case TJ_OP_CUBE:
    case TJ_OP_RELU: return in[0];
    default: return NULL;
    }
}

// ---- casts, comparisons -------------------------------------------------------------------------------------------

static tj_lv truth(struct tj_emit *e, tj_lv x, int cls) {
    if (cls == CLS_BOOL) {
        return x;
    }
    return cls == CLS_FLOAT ? LLVMBuildFCmp(e->b, LLVMRealUNE, x, zero(x), "")
                            : LLVMBuildICmp(e->b, LLVMIntNE, x, zero(x), "");
}

static tj_lv round_to(struct tj_emit *e, tj_lv x, int dtype) {
    return dtype == TRACE_F16 ? tj_e_half_to(e, tj_e_half_from(e, x)) : tj_e_bf16_to(e, tj_e_bf16_from(e, x));
}

static tj_lv cast(struct tj_emit *e, tj_lv x, uint8_t from, uint8_t to) {
    LLVMBuilderRef w = e->b;
    int cf = class_of(from), ct = class_of(to);
    tj_lt t = tj_e_as(e, x, tj_e_value_type(e, to));
    if (to == TRACE_BOOL) {
        return truth(e, x, cf);
    }
    if (ct != CLS_FLOAT) {
        if (cf == CLS_FLOAT) {
            tj_lt over[] = {t, LLVMTypeOf(x)};
            return tj_e_call(e, ct == CLS_UINT ? "llvm.fptoui.sat" : "llvm.fptosi.sat", over, 2, &x, 1);
        }
        return LLVMBuildIntCast2(w, x, t, cf == CLS_INT, "");
    }
    tj_lv r = x;
    if (cf != CLS_FLOAT) {
        r = cf == CLS_INT ? LLVMBuildSIToFP(w, x, t, "") : LLVMBuildUIToFP(w, x, t, "");
    } else if (LLVMTypeOf(x) != t) {
        r = LLVMBuildFPCast(w, x, t, "");
    }
    return (to == TRACE_F16 || to == TRACE_BF16) && from != to ? round_to(e, r, to) : r;
}

static tj_lv compare(struct tj_emit *e, unsigned op, tj_lv a, tj_lv b, int cls) {
    static const LLVMRealPredicate real_pred[] = {LLVMRealOEQ, LLVMRealUNE, LLVMRealOLT,
                                                  LLVMRealOLE, LLVMRealOGT, LLVMRealOGE};
    static const LLVMIntPredicate signed_pred[] = {LLVMIntEQ,  LLVMIntNE,  LLVMIntSLT,
                                                   LLVMIntSLE, LLVMIntSGT, LLVMIntSGE};
    static const LLVMIntPredicate unsigned_pred[] = {LLVMIntEQ,  LLVMIntNE,  LLVMIntULT,
                                                     LLVMIntULE, LLVMIntUGT, LLVMIntUGE};
    static const unsigned ops[] = {TJ_OP_EQ, TJ_OP_NE, TJ_OP_LT, TJ_OP_LE, TJ_OP_GT, TJ_OP_GE};
    for (unsigned i = 0; i < TJ_COUNT(ops); i++) {
        if (ops[i] == op) {
            return cls == CLS_FLOAT ? LLVMBuildFCmp(e->b, real_pred[i], a, b, "")
                                    : LLVMBuildICmp(e->b, cls == CLS_INT ? signed_pred[i] : unsigned_pred[i], a, b, "");
        }
    }
    return NULL;
}

// min(max(x, lo), hi), NaN if any of the three is NaN. With lo and hi scalars, the rare cases (bounds that are NaN or
// zeros) go into bit masks made once: max and min alone then do, since they keep x where it is NaN or equal.
static tj_lv clamp(struct tj_emit *e, tj_lv x, tj_lv lo, tj_lv hi, int cls) {
    LLVMBuilderRef w = e->b;
    if (cls == CLS_BOOL) {
        return LLVMBuildAnd(w, LLVMBuildOr(w, x, lo, ""), hi, "");
    }
    if (cls != CLS_FLOAT) {
        tj_lv m = tj_e_binary(e, cls == CLS_UINT ? "llvm.umax" : "llvm.smax", x, lo);
        return tj_e_binary(e, cls == CLS_UINT ? "llvm.umin" : "llvm.smin", m, hi);
    }
    tj_lv r = tj_e_extreme(e, tj_e_extreme(e, x, lo, true), hi, false);
    return r;
}

tj_lv tj_e_pointwise(struct tj_emit *e, const struct tj_kernel *k, unsigned i, tj_lv const *in, tj_lv args) {
    LLVMBuilderRef w = e->b;
    const struct tj_kins *s = &k->ins[i];
    uint8_t from = s->in[0] == TJ_KNONE ? s->dtype : k->ins[s->in[0]].dtype; // dtype the operands have
    int cls = class_of(from);
    tj_lv a = in[0], b = in[1];
    switch (s->op) {
    case TJ_OP_CAST: return cast(e, a, from, s->dtype);
    case TJ_KOP_ROUND: {
        const struct tj_kins *def = &k->ins[s->in[0]];
        return def->op == TJ_OP_CAST && def->dtype == s->imm ? a : round_to(e, a, (int)s->imm);
    }
    case TJ_OP_WHERE: return LLVMBuildSelect(w, a, b, in[2], "");
    case TJ_OP_CLAMP: return clamp(e, a, b, in[2], cls);
    case TJ_OP_LOGICAL_NOT: return LLVMBuildNot(w, truth(e, a, cls), "");
    case TJ_OP_LOGICAL_AND: return LLVMBuildAnd(w, truth(e, a, cls), truth(e, b, cls), "");
    case TJ_OP_LOGICAL_OR: return LLVMBuildOr(w, truth(e, a, cls), truth(e, b, cls), "");
    case TJ_OP_LOGICAL_XOR: return LLVMBuildXor(w, truth(e, a, cls), truth(e, b, cls), "");
    case TJ_OP_ISNAN:
        return cls == CLS_FLOAT ? LLVMBuildFCmp(w, LLVMRealUNO, a, a, "") : LLVMConstNull(tj_e_as(e, a, e->i1));
    case TJ_OP_ISINF:
        return cls == CLS_FLOAT ? LLVMBuildFCmp(w, LLVMRealOEQ, tj_e_unary(e, "llvm.fabs", a), real(a, INFINITY), "")
                                : LLVMConstNull(tj_e_as(e, a, e->i1));
    case TJ_OP_EQ:
    case TJ_OP_NE:
    case TJ_OP_LT:
    case TJ_OP_LE:
    case TJ_OP_GT:
    case TJ_OP_GE: return compare(e, s->op, a, b, cls);
    default: break;
    }
    if (cls == CLS_FLOAT) {
        return float_op(e, s->op, in, args, from == TRACE_F64);
    }
    return cls == CLS_BOOL ? bool_op(e, s->op, in) : int_op(e, s->op, in, cls == CLS_UINT);
}
