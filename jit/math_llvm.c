// jit/math_llvm.c: the f32 functions of trace/math.h as IR, operation by operation: same order, same operands, same
// bits.
#include <math.h>

#include "../lib/coefs.h"
#include "emit_llvm.h"

struct fn {
    struct tj_emit *e;
    LLVMBuilderRef b;
    tj_lt tf, ti;
};

static tj_lv num(struct fn *m, double v) { return tj_e_float(m->tf, v); }
static tj_lv word(struct fn *m, uint32_t v) { return tj_e_int(m->ti, v); }
static tj_lv add(struct fn *m, tj_lv x, tj_lv y) { return LLVMBuildFAdd(m->b, x, y, ""); }
static tj_lv sub(struct fn *m, tj_lv x, tj_lv y) { return LLVMBuildFSub(m->b, x, y, ""); }
static tj_lv mul(struct fn *m, tj_lv x, tj_lv y) { return LLVMBuildFMul(m->b, x, y, ""); }
static tj_lv quo(struct fn *m, tj_lv x, tj_lv y) { return LLVMBuildFDiv(m->b, x, y, ""); }
static tj_lv neg(struct fn *m, tj_lv x) { return LLVMBuildFNeg(m->b, x, ""); }
static tj_lv fma_(struct fn *m, tj_lv x, tj_lv y, tj_lv z) { return tj_e_fma(m->e, x, y, z); }
static tj_lv fabs_(struct fn *m, tj_lv x) { return tj_e_unary(m->e, "llvm.fabs", x); }
static tj_lv cmp(struct fn *m, LLVMRealPredicate p, tj_lv x, tj_lv y) { return LLVMBuildFCmp(m->b, p, x, y, ""); }
static tj_lv sel(struct fn *m, tj_lv c, tj_lv x, tj_lv y) { return LLVMBuildSelect(m->b, c, x, y, ""); }
static tj_lv bits(struct fn *m, tj_lv x) { return tj_e_bits(m->e, x); }
static tj_lv unbits(struct fn *m, tj_lv x) { return tj_e_unbits(m->e, x); }
static tj_lv shl(struct fn *m, tj_lv x, unsigned n) { return LLVMBuildShl(m->b, x, word(m, n), ""); }
static tj_lv shr(struct fn *m, tj_lv x, unsigned n) { return LLVMBuildLShr(m->b, x, word(m, n), ""); }
// x > top ? top : x
static tj_lv cap(struct fn *m, tj_lv x, double top) {
    return sel(m, cmp(m, LLVMRealOGT, x, num(m, top)), num(m, top), x);
}
// x < 0 ? a : b
static tj_lv if_negative(struct fn *m, tj_lv x, tj_lv a, tj_lv b) {
    return sel(m, cmp(m, LLVMRealOLT, x, num(m, 0)), a, b);
}
static tj_lv with_sign(struct fn *m, tj_lv y, tj_lv x) {
    return unbits(m, LLVMBuildOr(m->b, bits(m, y), LLVMBuildAnd(m->b, bits(m, x), word(m, 0x80000000u), ""), ""));
}
// c[0] x^(n-1) + ... + c[n-1], by Horner's rule
static tj_lv poly(struct fn *m, tj_lv x, const double *c, unsigned n) {
    tj_lv p = fma_(m, num(m, c[0]), x, num(m, c[1]));
    for (unsigned i = 2; i < n; i++) {
        p = fma_(m, p, x, num(m, c[i]));
    }
    return p;
}

static const double exp_poly[] = {TJ_EXP_C4, TJ_EXP_C3, TJ_EXP_C2, TJ_EXP_C1, TJ_EXP_C0, 1.0, 1.0};

// r of tj_exp_split and its kin: a less its nearest multiple of ln 2; *t holds that multiple in its low bits.
static tj_lv exp_reduce(struct fn *m, tj_lv a, double magic, tj_lv *t) {
    *t = fma_(m, a, num(m, TJ_LOG2E), num(m, magic));
    tj_lv n = sub(m, *t, num(m, magic));
    tj_lv r = fma_(m, n, num(m, -TJ_LN2_HI), a);
    return fma_(m, n, num(m, -TJ_LN2_LO), r);
}

struct parts {
    tj_lv p, s1, s2;
};
static struct parts exp_split(struct fn *m, tj_lv a, tj_lv lo) {
    tj_lv t, r = exp_reduce(m, a, TJ_EXP_MAGIC, &t);
    if (lo) {
        r = add(m, r, lo);
    }
    tj_lv p = poly(m, r, exp_poly, 7);
    tj_lv b = bits(m, t), h = shr(m, b, 1);
    return (struct parts){p, unbits(m, shl(m, h, 23)), unbits(m, shl(m, LLVMBuildSub(m->b, b, h, ""), 23))};
}
static tj_lv scaled(struct fn *m, struct parts k) { return mul(m, mul(m, k.p, k.s1), k.s2); }

static tj_lv exp_mid(struct fn *m, tj_lv a) {
    tj_lv t, r = exp_reduce(m, a, TJ_EXP_MAGIC1, &t);
    return mul(m, poly(m, r, exp_poly, 7), unbits(m, shl(m, bits(m, t), 23)));
}

static tj_lv exp_f32(struct fn *m, tj_lv x) {
    tj_lv a = cap(m, x, TJ_EXP_HI);
    a = sel(m, cmp(m, LLVMRealOLT, a, num(m, TJ_EXP_LO)), num(m, TJ_EXP_LO), a);
    return scaled(m, exp_split(m, a, NULL));
}

static tj_lv log_tail(struct fn *m, tj_lv f, tj_lv s) {
    static const double c[] = {TJ_LOG_C7, TJ_LOG_C6, TJ_LOG_C5, TJ_LOG_C4, TJ_LOG_C3, TJ_LOG_C2, TJ_LOG_C1, TJ_LOG_C0};
    return mul(m, mul(m, poly(m, f, c, 8), f), s);
}

// log from the exponent e and f = m - 1
static tj_lv log_join(struct fn *m, tj_lv e, tj_lv f) {
    tj_lv s = mul(m, f, f);
    tj_lv y = log_tail(m, f, s);
    y = fma_(m, e, num(m, TJ_LN2_LO), y);
    y = fma_(m, num(m, -0.5), s, y);
    y = add(m, f, y);
    return fma_(m, e, num(m, TJ_LN2_HI), y);
}

static tj_lv log_f32(struct fn *m, tj_lv x) {
    tj_lv tiny = cmp(m, LLVMRealOLT, x, num(m, 0x1p-126));
    tj_lv xn = sel(m, tiny, mul(m, x, num(m, 0x1p23)), x);
    tj_lv e0 = sel(m, tiny, num(m, -23), num(m, 0));
    tj_lv b = LLVMBuildSub(m->b, bits(m, xn), word(m, TJ_SQRTHALF_BITS), "");
    tj_lv e = add(m, LLVMBuildSIToFP(m->b, LLVMBuildAShr(m->b, b, word(m, 23), ""), m->tf, ""), e0);
    tj_lv mant = LLVMBuildAdd(m->b, LLVMBuildAnd(m->b, b, word(m, 0x7fffff), ""), word(m, TJ_SQRTHALF_BITS), "");
    tj_lv y = log_join(m, e, sub(m, unbits(m, mant), num(m, 1)));
    y = sel(m, cmp(m, LLVMRealOLT, x, num(m, INFINITY)), y, x);
    y = if_negative(m, x, num(m, NAN), y);
    return sel(m, cmp(m, LLVMRealOEQ, x, num(m, 0)), num(m, -INFINITY), y);
}

static tj_lv log1p_small(struct fn *m, tj_lv t) {
    tj_lv big = cmp(m, LLVMRealOGT, t, num(m, TJ_SQRT2M1));
    tj_lv h = mul(m, sub(m, t, num(m, 1)), num(m, 0.5));
    return log_join(m, sel(m, big, num(m, 1), num(m, 0)), sel(m, big, h, t));
}

static tj_lv tanh_f32(struct fn *m, tj_lv x) {
    static const double c[] = {TJ_TANH_C4, TJ_TANH_C3, TJ_TANH_C2, TJ_TANH_C1, TJ_TANH_C0};
    tj_lv z = fabs_(m, x), s = mul(m, z, z);
    tj_lv small = fma_(m, mul(m, poly(m, s, c, 5), s), z, z);
    tj_lv a = cap(m, z, TJ_TANH_MAX), ex = exp_mid(m, add(m, a, a));
    tj_lv large = sub(m, num(m, 1), quo(m, num(m, 2), add(m, ex, num(m, 1))));
    return with_sign(m, sel(m, cmp(m, LLVMRealOLT, z, num(m, TJ_TANH_SPLIT)), small, large), x);
}

static tj_lv sigmoid_f32(struct fn *m, tj_lv x) {
    tj_lv a = cap(m, fabs_(m, x), -TJ_EXP_LO);
    tj_lv e = scaled(m, exp_split(m, neg(m, a), NULL));
    tj_lv z = quo(m, num(m, 1), add(m, num(m, 1), e));
    tj_lv d = fma_(m, neg(m, z), e, sub(m, num(m, 1), z));
    z = fma_(m, z, d, z);
    return if_negative(m, x, mul(m, e, z), z);
}

static tj_lv silu_tail(struct fn *m, tj_lv x, tj_lv a, tj_lv v, tj_lv vlo) {
    struct parts k = exp_split(m, neg(m, v), vlo ? neg(m, vlo) : NULL);
    tj_lv e = scaled(m, k);
    tj_lv q = quo(m, mul(m, a, k.p), add(m, num(m, 1), e));
    q = mul(m, mul(m, q, k.s1), k.s2);
    return sub(m, if_negative(m, x, num(m, -0.0), x), q);
}

static tj_lv silu_f32(struct fn *m, tj_lv x) {
    tj_lv a = cap(m, fabs_(m, x), TJ_SILU_MAX);
    return silu_tail(m, x, a, a, NULL);
}

static tj_lv gelu_tanh_f32(struct fn *m, tj_lv x) {
    tj_lv c1 = num(m, TJ_GELUT_C1), c3 = num(m, TJ_GELUT_C3);
    tj_lv a = cap(m, fabs_(m, x), TJ_GELU_TANH_MAX);
    tj_lv h = mul(m, a, a), hl = fma_(m, a, a, neg(m, h));
    tj_lv w = fma_(m, c3, h, c1);
    tj_lv d = sub(m, w, c1);
    tj_lv wl = fma_(m, c3, h, neg(m, d));
    wl = fma_(m, c3, hl, wl);
    wl = fma_(m, num(m, TJ_GELUT_C3L), h, wl);
    wl = add(m, wl, num(m, TJ_GELUT_C1L));
    tj_lv v = mul(m, a, w), vl = fma_(m, a, w, neg(m, v));
    vl = fma_(m, a, wl, vl);
    return silu_tail(m, x, a, v, vl);
}

static tj_lv erf_f32(struct fn *m, tj_lv x) {
    static const double ca[] = {TJ_ERF_A5, TJ_ERF_A4, TJ_ERF_A3, TJ_ERF_A2, TJ_ERF_A1, TJ_ERF_A0};
    static const double cb[] = {TJ_ERF_B5, TJ_ERF_B4, TJ_ERF_B3, TJ_ERF_B2, TJ_ERF_B1, TJ_ERF_B0};
    tj_lv s = mul(m, x, x);
    tj_lv small = fma_(m, x, poly(m, s, ca, 6), x);
    tj_lv z = fabs_(m, x), a = cap(m, z, TJ_ERF_MAX);
    tj_lv na = neg(m, a), g = fma_(m, na, poly(m, a, cb, 6), na);
    tj_lv large = with_sign(m, sub(m, num(m, 1), exp_mid(m, g)), x);
    return sel(m, cmp(m, LLVMRealOLT, z, num(m, TJ_ERF_SPLIT)), small, large);
}

static tj_lv gelu_f32(struct fn *m, tj_lv x) {
    static const double c[] = {TJ_GELU_R9, TJ_GELU_R8, TJ_GELU_R7, TJ_GELU_R6, TJ_GELU_R5,
                               TJ_GELU_R4, TJ_GELU_R3, TJ_GELU_R2, TJ_GELU_R1, TJ_GELU_R0};
    tj_lv a = cap(m, fabs_(m, x), TJ_GELU_MAX);
    tj_lv h = mul(m, a, a), hl = fma_(m, a, a, neg(m, h)), half = num(m, -0.5);
    struct parts k = exp_split(m, mul(m, half, h), mul(m, half, hl));
    tj_lv t = quo(m, num(m, 1), fma_(m, a, num(m, TJ_GELU_K), num(m, 1)));
    tj_lv w = mul(m, a, t);
    tj_lv q = mul(m, mul(m, poly(m, w, c, 10), w), k.p);
    q = mul(m, mul(m, q, k.s1), k.s2);
    return sub(m, if_negative(m, x, num(m, -0.0), x), q);
}

static tj_lv softplus_f32(struct fn *m, tj_lv x, tj_lv beta, tj_lv threshold) {
    tj_lv y = mul(m, x, beta);
    tj_lv a = cap(m, fabs_(m, y), -TJ_EXP_LO);
    tj_lv e = scaled(m, exp_split(m, neg(m, a), NULL));
    tj_lv r = quo(m, add(m, if_negative(m, y, num(m, 0), y), log1p_small(m, e)), beta);
    return sel(m, cmp(m, LLVMRealOGT, y, threshold), x, r);
}

// ---- sin, cos -----------------------------------------------------------------------------------------------------

// The reduction of huge arguments, a function of the module: void(ptr z, ptr r, ptr q, i64 lanes), rewrites r and q of
// the lanes that aren't below TJ_TRIG_MAX. It runs for such arguments only, a lane at a time.
static tj_lv slow_function(struct tj_emit *e) {
    static const char name[] = "tj_trig_slow";
    static const uint32_t words[8] = TJ_2_PI_WORDS;
    tj_lt p[] = {e->ptr, e->ptr, e->ptr, e->i64};
    struct tj_nested outer;
    tj_lv f = tj_e_nested(e, &outer, name, LLVMFunctionType(e->none, p, 4, 0)), lane[8];
    if (f) {
        return f;
    }
    f = e->fn;
    for (unsigned i = 0; i < 8; i++) {
        lane[i] = LLVMConstInt(e->i32, words[i], 0);
    }
    tj_lv table = LLVMAddGlobal(e->module, LLVMArrayType2(e->i32, 8), "tj_2_pi");
    LLVMSetInitializer(table, LLVMConstArray2(e->i32, lane, 8));
    LLVMSetGlobalConstant(table, 1);
    LLVMSetLinkage(table, LLVMInternalLinkage);
    LLVMBuilderRef c = e->b;
    struct tj_loop_state l;
    tj_e_loop(e, &l, tj_e_i64(e, 0), LLVMGetParam(f, 3), tj_e_i64(e, 1), "lane");
    tj_lv z = tj_e_load(e, e->f32, tj_e_gep(e, e->f32, LLVMGetParam(f, 0), l.i), 4);
    struct tj_if_state s;
    tj_e_if(e, &s, LLVMBuildFCmp(c, LLVMRealUGE, z, tj_e_float(e->f32, TJ_TRIG_MAX), ""), false, false);
    tj_lv bz = tj_e_bits(e, z);
    tj_lv ex = LLVMBuildSub(c, LLVMBuildLShr(c, bz, tj_e_i32(e, 23), ""), tj_e_i32(e, 126), "");
    tj_lv m = LLVMBuildOr(c, LLVMBuildShl(c, bz, tj_e_i32(e, 8), ""), LLVMConstInt(e->i32, 0x80000000u, 0), "");
    m = LLVMBuildZExt(c, m, e->i64, "");
    tj_lv i = LLVMBuildLShr(c, ex, tj_e_i32(e, 5), "");
    tj_lv sh = LLVMBuildZExt(c, LLVMBuildAnd(c, ex, tj_e_i32(e, 31), ""), e->i64, "");
    tj_lv w[4], part[3], n32 = tj_e_i64(e, 32);
    for (int k = 0; k < 4; k++) {
        tj_lv at = LLVMBuildAnd(c, LLVMBuildAdd(c, i, tj_e_i32(e, k), ""), tj_e_i32(e, 7), "");
        tj_lv v = tj_e_load(e, e->i32, tj_e_gep(e, e->i32, table, LLVMBuildZExt(c, at, e->i64, "")), 4);
        w[k] = LLVMBuildZExt(c, v, e->i64, "");
    }
    for (int k = 0; k < 3; k++) {
        tj_lv pair = LLVMBuildOr(c, LLVMBuildShl(c, w[k], n32, ""), w[k + 1], "");
        part[k] = LLVMBuildLShr(c, LLVMBuildShl(c, pair, sh, ""), n32, "");
    }
    tj_lv sum = LLVMBuildLShr(c, LLVMBuildMul(c, m, part[2], ""), n32, "");
    sum = LLVMBuildAdd(c, sum, LLVMBuildMul(c, m, part[1], ""), "");
    sum = LLVMBuildAdd(c, sum, LLVMBuildShl(c, LLVMBuildMul(c, m, part[0], ""), n32, ""), "");
    tj_lv half = LLVMBuildAdd(c, sum, tj_e_i64(e, 0x2000000000000000), "");
    tj_lv q = LLVMBuildTrunc(c, LLVMBuildLShr(c, half, tj_e_i64(e, 62), ""), e->i32, "");
    tj_lv rest = LLVMBuildSIToFP(c, LLVMBuildShl(c, sum, tj_e_i64(e, 2), ""), e->f64, "");
    tj_lv r = LLVMBuildFPTrunc(c, LLVMBuildFMul(c, rest, tj_e_float(e->f64, TJ_PIO2_M64), ""), e->f32, "");
    tj_lv finite = LLVMBuildFCmp(c, LLVMRealOLT, z, tj_e_float(e->f32, INFINITY), "");
    r = LLVMBuildSelect(c, finite, r, LLVMBuildFSub(c, z, z, ""), "");
    tj_e_store(e, r, tj_e_gep(e, e->f32, LLVMGetParam(f, 1), l.i), 4);
    tj_e_store(e, q, tj_e_gep(e, e->i32, LLVMGetParam(f, 2), l.i), 4);
    tj_e_end(e, &s);
    tj_e_loop_end(e, &l);
    return tj_e_nested_end(e, &outer);
}

static tj_lv trig(struct fn *m, tj_lv x, bool cosine) {
    struct tj_emit *e = m->e;
    tj_lv z = fabs_(m, x);
    tj_lv t = fma_(m, z, num(m, TJ_2_PI), num(m, TJ_TRIG_MAGIC));
    tj_lv n = sub(m, t, num(m, TJ_TRIG_MAGIC));
    tj_lv r = fma_(m, n, num(m, -TJ_PIO2_1), z);
    r = fma_(m, n, num(m, -TJ_PIO2_2), r);
    r = fma_(m, n, num(m, -TJ_PIO2_3), r);
    tj_lv q = bits(m, t);
    tj_lv slow = slow_function(e);
    tj_lv big = tj_e_any(e, cmp(m, LLVMRealUGE, z, num(m, TJ_TRIG_MAX)));
    tj_lv zb = tj_e_alloca(e, m->tf, 64, ""), rb = tj_e_alloca(e, m->tf, 64, ""), qb = tj_e_alloca(e, m->ti, 64, "");
    struct tj_if_state s;
    tj_e_if(e, &s, big, true, false);
    tj_e_store(e, z, zb, 4);
    tj_e_store(e, r, rb, 4);
    tj_e_store(e, q, qb, 4);
    unsigned lanes = tj_e_lanes(x);
    tj_lv args[] = {zb, rb, qb, tj_e_i64(e, lanes ? lanes : 1)};
    (void)tj_e_invoke(e, slow, args, 4);
    tj_lv r2 = tj_e_load(e, m->tf, rb, 4), q2 = tj_e_load(e, m->ti, qb, 4);
    tj_e_end(e, &s);
    r = tj_e_phi2(e, &s, r2, r);
    q = tj_e_phi2(e, &s, q2, q);
    tj_lv sign = LLVMBuildAnd(m->b, bits(m, x), word(m, 0x80000000u), "");
    if (cosine) {
        q = LLVMBuildAdd(m->b, q, word(m, 1), "");
    }
    tj_lv sq = mul(m, r, r);
    static const double cs[] = {TJ_SIN_C2, TJ_SIN_C1, TJ_SIN_C0};
    static const double cc[] = {TJ_COS_C2, TJ_COS_C1, TJ_COS_C0, -0.5, 1.0};
    tj_lv a = fma_(m, poly(m, sq, cs, 3), mul(m, r, sq), r);
    tj_lv c = poly(m, sq, cc, 5);
    tj_lv even = LLVMBuildICmp(m->b, LLVMIntEQ, LLVMBuildAnd(m->b, q, word(m, 1), ""), word(m, 0), "");
    tj_lv y = bits(m, sel(m, even, a, c));
    y = LLVMBuildXor(m->b, y, shl(m, LLVMBuildAnd(m->b, q, word(m, 2), ""), 30), "");
    return unbits(m, cosine ? y : LLVMBuildXor(m->b, y, sign, ""));
}

// ---- pow ----------------------------------------------------------------------------------------------------------

static tj_lv pow_f32(struct fn *m, tj_lv x, tj_lv y) {
    struct tj_emit *e = m->e;
    LLVMBuilderRef b = m->b;
    tj_lv z = fabs_(m, x), sx = LLVMBuildAnd(b, bits(m, x), word(m, 0x80000000u), "");
    struct fn d = {.e = e, .b = b, .tf = tj_e_as(e, x, e->f64), .ti = tj_e_as(e, x, e->i64)};
    tj_lv xd = LLVMBuildFPExt(b, z, d.tf, "");
    tj_lv bx = LLVMBuildSub(b, bits(&d, xd), tj_e_int(d.ti, (int64_t)TJ_SQRTHALF_BITS64), "");
    tj_lv eb = LLVMBuildLShr(b, LLVMBuildAdd(b, bx, tj_e_int(d.ti, INT64_MIN), ""), tj_e_int(d.ti, 52), "");
    tj_lv ex =
        sub(&d, unbits(&d, LLVMBuildOr(b, eb, tj_e_int(d.ti, 0x4330000000000000), "")), num(&d, 0x1p52 + 2048.0));
    tj_lv mant = LLVMBuildAnd(b, bx, tj_e_int(d.ti, 0xfffffffffffff), "");
    mant = unbits(&d, LLVMBuildAdd(b, mant, tj_e_int(d.ti, (int64_t)TJ_SQRTHALF_BITS64), ""));
    tj_lv s = quo(&d, sub(&d, mant, num(&d, 1)), add(&d, mant, num(&d, 1)));
    tj_lv u = mul(&d, s, s);
    static const double cl[] = {TJ_POW_L5, TJ_POW_L4, TJ_POW_L3, TJ_POW_L2, TJ_POW_L1, TJ_POW_L0};
    tj_lv l = fma_(&d, poly(&d, u, cl, 6), s, ex);
    l = sel(&d, cmp(&d, LLVMRealOLT, xd, num(&d, INFINITY)), l, xd);
    l = sel(&d, cmp(&d, LLVMRealOEQ, xd, num(&d, 0)), num(&d, -INFINITY), l);
    tj_lv t = mul(&d, LLVMBuildFPExt(b, y, d.tf, ""), l);
    t = cap(&d, t, TJ_POW_MAX);
    t = sel(&d, cmp(&d, LLVMRealOLT, t, num(&d, -TJ_POW_MAX)), num(&d, -TJ_POW_MAX), t);
    tj_lv k = add(&d, t, num(&d, TJ_POW_MAGIC));
    tj_lv f = sub(&d, t, sub(&d, k, num(&d, TJ_POW_MAGIC)));
    static const double ce[] = {TJ_POW_E7, TJ_POW_E6, TJ_POW_E5, TJ_POW_E4, TJ_POW_E3, TJ_POW_E2, TJ_POW_E1, TJ_POW_E0};
    tj_lv p = poly(&d, f, ce, 8);
    tj_lv scale = unbits(&d, LLVMBuildShl(b, bits(&d, k), tj_e_int(d.ti, 52), ""));
    tj_lv r = LLVMBuildFPTrunc(b, mul(&d, p, scale), m->tf, "");
    tj_lv whole = cmp(m, LLVMRealOEQ, tj_e_unary(e, "llvm.trunc", y), y);
    tj_lv yh = mul(m, y, num(m, 0.5));
    tj_lv odd = LLVMBuildAnd(b, whole, cmp(m, LLVMRealUNE, tj_e_unary(e, "llvm.trunc", yh), yh), "");
    r = unbits(m, LLVMBuildOr(b, bits(m, r), sel(m, odd, sx, word(m, 0)), ""));
    tj_lv undefined = LLVMBuildAnd(b, cmp(m, LLVMRealOLT, x, num(m, 0)), cmp(m, LLVMRealOLT, z, num(m, INFINITY)), "");
    undefined = LLVMBuildAnd(b, undefined, LLVMBuildNot(b, whole, ""), "");
    undefined = LLVMBuildAnd(b, undefined, cmp(m, LLVMRealOEQ, y, y), "");
    r = sel(m, undefined, num(m, NAN), r);
    tj_lv one =
        LLVMBuildAnd(b, cmp(m, LLVMRealOEQ, x, num(m, -1)), cmp(m, LLVMRealOEQ, fabs_(m, y), num(m, INFINITY)), "");
    one = LLVMBuildOr(b, one, cmp(m, LLVMRealOEQ, y, num(m, 0)), "");
    one = LLVMBuildOr(b, one, cmp(m, LLVMRealOEQ, x, num(m, 1)), "");
    return sel(m, one, num(m, 1), r);
}

tj_lv tj_e_math(struct tj_emit *e, unsigned op, tj_lv a, tj_lv b, tj_lv c) {
    struct fn m = {.e = e, .b = e->b, .tf = LLVMTypeOf(a), .ti = tj_e_as(e, a, e->i32)};
    switch (op) {
    case TJ_OP_EXP: return exp_f32(&m, a);
    case TJ_OP_LOG: return log_f32(&m, a);
    case TJ_OP_SIN: return trig(&m, a, false);
    case TJ_OP_COS: return trig(&m, a, true);
    case TJ_OP_TANH: return tanh_f32(&m, a);
    case TJ_OP_ERF: return erf_f32(&m, a);
    case TJ_OP_SIGMOID: return sigmoid_f32(&m, a);
    case TJ_OP_SILU: return silu_f32(&m, a);
    case TJ_OP_GELU: return gelu_f32(&m, a);
    case TJ_OP_GELU_TANH: return gelu_tanh_f32(&m, a);
    case TJ_OP_SOFTPLUS: return softplus_f32(&m, a, b, c);
    case TJ_OP_POW: return pow_f32(&m, a, b);
    default: return NULL;
    }
}
