// jit/emit_llvm.c: builder wrappers: types, constants, control flow, memory, conversions of 16-bit floats.
#include "emit_llvm.h"

#include <stdio.h>

// ---- types and constants ------------------------------------------------------------------------------------------

unsigned tj_e_lanes(tj_lv v) {
    tj_lt t = LLVMTypeOf(v);
    return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMGetVectorSize(t) : 0;
}

tj_lt tj_e_type(struct tj_emit *e, tj_lt elem, unsigned lanes) {
    (void)e;
    return lanes ? LLVMVectorType(elem, lanes) : elem;
}

tj_lt tj_e_as(struct tj_emit *e, tj_lv like, tj_lt elem) { return tj_e_type(e, elem, tj_e_lanes(like)); }

tj_lt tj_e_value_type(struct tj_emit *e, uint8_t dtype) {
    switch (dtype) {
    case TRACE_BOOL: return e->i1;
    case TRACE_U8: return e->i8;
    case TRACE_I32: return e->i32;
    case TRACE_I64: return e->i64;
    case TRACE_F64: return e->f64;
    default: return e->f32;
    }
}

tj_lt tj_e_memory_type(struct tj_emit *e, uint8_t dtype) {
    switch (dtype) {
    case TRACE_BOOL: return e->i8;
    case TRACE_F16:
    case TRACE_BF16: return e->i16;
    default: return tj_e_value_type(e, dtype);
    }
}

static tj_lv spread(tj_lt t, tj_lv c) {
    if (LLVMGetTypeKind(t) != LLVMVectorTypeKind) {
        return c;
    }
    tj_lv lane[64];
    unsigned n = LLVMGetVectorSize(t);
    for (unsigned i = 0; i < n; i++) {
        lane[i] = c;
    }
    return LLVMConstVector(lane, n);
}

static tj_lt scalar_of(tj_lt t) { return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMGetElementType(t) : t; }

tj_lv tj_e_int(tj_lt t, int64_t v) {
    tj_lt s = scalar_of(t);
    unsigned bits = LLVMGetIntTypeWidth(s);
    uint64_t u = bits < 64 ? (uint64_t)v & ((UINT64_C(1) << bits) - 1) : (uint64_t)v;
    return spread(t, LLVMConstInt(s, u, 0));
}

tj_lv tj_e_float(tj_lt t, double v) { return spread(t, LLVMConstReal(scalar_of(t), v)); }
tj_lv tj_e_i64(struct tj_emit *e, int64_t v) { return LLVMConstInt(e->i64, (unsigned long long)v, 0); }
tj_lv tj_e_i32(struct tj_emit *e, int32_t v) { return LLVMConstInt(e->i32, (uint32_t)v, 0); }

tj_lv tj_e_iota(struct tj_emit *e, tj_lt elem, unsigned lanes) {
    (void)e;
    tj_lv lane[64];
    for (unsigned i = 0; i < lanes; i++) {
        lane[i] = LLVMConstInt(elem, i, 0);
    }
    return LLVMConstVector(lane, lanes);
}

tj_lv tj_e_splat(LLVMBuilderRef b, tj_lv scalar, unsigned lanes) {
    if (!lanes) {
        return scalar;
    }
    tj_lt t = LLVMVectorType(LLVMTypeOf(scalar), lanes);
    if (LLVMIsConstant(scalar)) {
        return spread(t, scalar);
    }
    tj_lt i32 = LLVMInt32TypeInContext(LLVMGetTypeContext(t));
    tj_lv one = LLVMBuildInsertElement(b, LLVMGetPoison(t), scalar, LLVMConstInt(i32, 0, 0), "");
    return LLVMBuildShuffleVector(b, one, LLVMGetPoison(t), LLVMConstNull(LLVMVectorType(i32, lanes)), "");
}

// ---- functions, blocks, loops -------------------------------------------------------------------------------------

tj_lv tj_e_function(struct tj_emit *e, const char *name, tj_lt type, bool external) {
    tj_lv f = LLVMAddFunction(e->module, name, type);
    LLVMSetLinkage(f, external ? LLVMExternalLinkage : LLVMInternalLinkage);
    for (unsigned i = 0; i < e->nattrs; i++) {
        LLVMAddAttributeAtIndex(f, LLVMAttributeFunctionIndex, e->attrs[i]);
    }
    e->fn = f;
    tj_lb entry = tj_e_block(e, "entry"), start = tj_e_block(e, "start");
    // The entry block is filled through e->eb until the function ends; its branch is there from the start.
    LLVMPositionBuilderAtEnd(e->eb, entry);
    tj_lv br = LLVMBuildBr(e->eb, start);
    LLVMPositionBuilderBefore(e->eb, br);
    tj_e_at(e, start);
    return f;
}

void tj_e_function_end(struct tj_emit *e) {
    LLVMClearInsertionPosition(e->b);
    LLVMClearInsertionPosition(e->eb);
}

tj_lv tj_e_nested(struct tj_emit *e, struct tj_nested *n, const char *name, tj_lt type) {
    tj_lv have = LLVMGetNamedFunction(e->module, name);
    if (have) {
        return have;
    }
    *n = (struct tj_nested){e->b, e->eb, e->fn};
    e->b = LLVMCreateBuilderInContext(e->ctx);
    e->eb = LLVMCreateBuilderInContext(e->ctx);
    (void)tj_e_function(e, name, type, false);
    return NULL;
}

tj_lv tj_e_nested_end(struct tj_emit *e, struct tj_nested *n) {
    tj_lv f = e->fn;
    LLVMBuildRetVoid(e->b);
    tj_e_function_end(e);
    LLVMDisposeBuilder(e->b);
    LLVMDisposeBuilder(e->eb);
    e->b = n->b;
    e->eb = n->eb;
    e->fn = n->fn;
    return f;
}

tj_lv tj_e_invoke(struct tj_emit *e, tj_lv fn, tj_lv *args, unsigned n) {
    return LLVMBuildCall2(e->b, LLVMGlobalGetValueType(fn), fn, args, n, "");
}

tj_lb tj_e_block(struct tj_emit *e, const char *name) { return LLVMAppendBasicBlockInContext(e->ctx, e->fn, name); }
void tj_e_at(struct tj_emit *e, tj_lb block) { LLVMPositionBuilderAtEnd(e->b, block); }
tj_lb tj_e_here(struct tj_emit *e) { return LLVMGetInsertBlock(e->b); }

tj_lv tj_e_alloca(struct tj_emit *e, tj_lt t, unsigned align, const char *name) {
    tj_lv p = LLVMBuildAlloca(e->eb, t, name);
    LLVMSetAlignment(p, align);
    return p;
}

tj_lv tj_e_call(struct tj_emit *e, const char *intrinsic, tj_lt *over, unsigned nover, tj_lv *args, unsigned n) {
    unsigned id = LLVMLookupIntrinsicID(intrinsic, strlen(intrinsic));
    tj_lv f = LLVMGetIntrinsicDeclaration(e->module, id, over, nover);
    return LLVMBuildCall2(e->b, LLVMIntrinsicGetType(e->ctx, id, over, nover), f, args, n, "");
}

void tj_e_loop(struct tj_emit *e, struct tj_loop_state *l, tj_lv start, tj_lv end, tj_lv step, const char *name) {
    *l = (struct tj_loop_state){.pre = tj_e_here(e), .end = end, .step = step};
    l->head = tj_e_block(e, name);
    l->exit = tj_e_block(e, "");
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, start, end, ""), l->head, l->exit);
    tj_e_at(e, l->head);
    l->i = LLVMBuildPhi(e->b, e->i64, "");
    LLVMAddIncoming(l->i, &start, &l->pre, 1);
}

void tj_e_loop_end(struct tj_emit *e, struct tj_loop_state *l) {
    tj_lv next = LLVMBuildNSWAdd(e->b, l->i, l->step, "");
    tj_lb latch = tj_e_here(e);
    LLVMAddIncoming(l->i, &next, &latch, 1);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, next, l->end, ""), l->head, l->exit);
    LLVMMoveBasicBlockAfter(l->exit, latch);
    tj_e_at(e, l->exit);
}

void tj_e_if(struct tj_emit *e, struct tj_if_state *s, tj_lv c, bool likely_set, bool likely) {
    *s = (struct tj_if_state){.then = tj_e_block(e, ""), .other = tj_e_block(e, "")};
    s->exit = NULL;
    tj_lv br = LLVMBuildCondBr(e->b, c, s->then, s->other);
    s->from[1] = tj_e_here(e);
    if (likely_set) {
        tj_lv w[] = {LLVMMDStringInContext(e->ctx, "branch_weights", 14), tj_e_i32(e, likely ? 1000 : 1),
                     tj_e_i32(e, likely ? 1 : 1000)};
        LLVMSetMetadata(br, LLVMGetMDKindIDInContext(e->ctx, "prof", 4), LLVMMDNodeInContext(e->ctx, w, 3));
    }
    tj_e_at(e, s->then);
}

void tj_e_else(struct tj_emit *e, struct tj_if_state *s) {
    s->exit = tj_e_block(e, "");
    s->from[0] = tj_e_here(e);
    LLVMBuildBr(e->b, s->exit);
    tj_e_at(e, s->other);
}

void tj_e_end(struct tj_emit *e, struct tj_if_state *s) {
    tj_lb here = tj_e_here(e);
    if (s->exit) {
        s->from[1] = here;
        LLVMBuildBr(e->b, s->exit);
    } else {
        s->from[0] = here;
        s->exit = s->other;
        LLVMBuildBr(e->b, s->exit);
    }
    tj_e_at(e, s->exit);
}

tj_lv tj_e_phi2(struct tj_emit *e, struct tj_if_state *s, tj_lv a, tj_lv b) {
    tj_lv phi = LLVMBuildPhi(e->b, LLVMTypeOf(a), "");
    LLVMAddIncoming(phi, (tj_lv[]){a, b}, s->from, 2);
    return phi;
}

// ---- memory and lanes ---------------------------------------------------------------------------------------------

tj_lv tj_e_gep(struct tj_emit *e, tj_lt elem, tj_lv p, tj_lv i) { return LLVMBuildGEP2(e->b, elem, p, &i, 1, ""); }

tj_lv tj_e_load(struct tj_emit *e, tj_lt t, tj_lv p, unsigned align) {
    tj_lv v = LLVMBuildLoad2(e->b, t, p, "");
    LLVMSetAlignment(v, align);
    return v;
}

void tj_e_store(struct tj_emit *e, tj_lv v, tj_lv p, unsigned align) {
    LLVMSetAlignment(LLVMBuildStore(e->b, v, p), align);
}

// The alignment is an argument of the intrinsics in older releases of LLVM, an attribute in newer ones.
static tj_lv masked(struct tj_emit *e, const char *name, tj_lt t, tj_lv *args, unsigned n, unsigned at,
                    unsigned align) {
    tj_lt over[] = {t, e->ptr};
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    tj_lv f = LLVMGetIntrinsicDeclaration(e->module, id, over, 2);
    if (LLVMCountParams(f) == n) {
        tj_lv call = LLVMBuildCall2(e->b, LLVMIntrinsicGetType(e->ctx, id, over, 2), f, args, n, "");
        LLVMSetInstrParamAlignment(call, at, align);
        return call;
    }
    tj_lv full[5];
    for (unsigned i = 0, j = 0; i <= n; i++) {
        full[i] = i == at ? tj_e_i32(e, (int32_t)align) : args[j++];
    }
    return LLVMBuildCall2(e->b, LLVMIntrinsicGetType(e->ctx, id, over, 2), f, full, n + 1, "");
}

tj_lv tj_e_masked_load(struct tj_emit *e, tj_lt t, tj_lv p, unsigned align, tj_lv mask) {
    tj_lv args[] = {p, mask, LLVMConstNull(t)};
    return masked(e, "llvm.masked.load", t, args, 3, 1, align);
}

void tj_e_masked_store(struct tj_emit *e, tj_lv v, tj_lv p, unsigned align, tj_lv mask) {
    tj_lv args[] = {v, p, mask};
    (void)masked(e, "llvm.masked.store", LLVMTypeOf(v), args, 3, 2, align);
}

tj_lv tj_e_shuffle(struct tj_emit *e, tj_lv a, tj_lv b, const int *index, unsigned n) {
    tj_lv lane[64];
    for (unsigned i = 0; i < n; i++) {
        lane[i] = index[i] < 0 ? LLVMGetPoison(e->i32) : tj_e_i32(e, index[i]);
    }
    return LLVMBuildShuffleVector(e->b, a, b, LLVMConstVector(lane, n), "");
}

tj_lv tj_e_any(struct tj_emit *e, tj_lv mask) {
    unsigned n = tj_e_lanes(mask);
    if (!n) {
        return mask;
    }
    tj_lt t = LLVMIntTypeInContext(e->ctx, n);
    return LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildBitCast(e->b, mask, t, ""), LLVMConstNull(t), "");
}

tj_lv tj_e_all(struct tj_emit *e, tj_lv mask) {
    unsigned n = tj_e_lanes(mask);
    if (!n) {
        return mask;
    }
    tj_lt t = LLVMIntTypeInContext(e->ctx, n);
    return LLVMBuildICmp(e->b, LLVMIntEQ, LLVMBuildBitCast(e->b, mask, t, ""), LLVMConstAllOnes(t), "");
}

// ---- arithmetic ---------------------------------------------------------------------------------------------------

tj_lv tj_e_unary(struct tj_emit *e, const char *intrinsic, tj_lv x) {
    tj_lt t = LLVMTypeOf(x);
    return tj_e_call(e, intrinsic, &t, 1, &x, 1);
}

tj_lv tj_e_binary(struct tj_emit *e, const char *intrinsic, tj_lv x, tj_lv y) {
    tj_lt t = LLVMTypeOf(x);
    tj_lv args[] = {x, y};
    return tj_e_call(e, intrinsic, &t, 1, args, 2);
}

tj_lv tj_e_fma(struct tj_emit *e, tj_lv a, tj_lv b, tj_lv c) {
    tj_lt t = LLVMTypeOf(a);
    tj_lv args[] = {a, b, c};
    return tj_e_call(e, "llvm.fma", &t, 1, args, 3);
}

tj_lv tj_e_bits(struct tj_emit *e, tj_lv x) {
    tj_lt s = scalar_of(LLVMTypeOf(x));
    return LLVMBuildBitCast(e->b, x, tj_e_as(e, x, s == e->f64 ? e->i64 : s == e->half ? e->i16 : e->i32), "");
}

tj_lv tj_e_unbits(struct tj_emit *e, tj_lv x) {
    tj_lt s = scalar_of(LLVMTypeOf(x));
    return LLVMBuildBitCast(e->b, x, tj_e_as(e, x, s == e->i64 ? e->f64 : s == e->i16 ? e->half : e->f32), "");
}

tj_lv tj_e_half_from(struct tj_emit *e, tj_lv x) {
    if (e->f16c) {
        return tj_e_bits(e, LLVMBuildFPTrunc(e->b, x, tj_e_as(e, x, e->half), ""));
    }
    // Normal results: round to nearest even on the bits. Subnormal ones: an addition that puts the rounding point where
    // it belongs does the rounding.
    LLVMBuilderRef b = e->b;
    tj_lt ti = tj_e_as(e, x, e->i32), tf = LLVMTypeOf(x);
    tj_lv u = tj_e_bits(e, x);
    tj_lv sign = LLVMBuildAnd(b, u, tj_e_int(ti, 0x80000000), "");
    tj_lv a = LLVMBuildXor(b, u, sign, "");
    tj_lv odd = LLVMBuildAnd(b, LLVMBuildLShr(b, a, tj_e_int(ti, 13), ""), tj_e_int(ti, 1), "");
    tj_lv norm =
        LLVMBuildAdd(b, LLVMBuildAdd(b, a, tj_e_int(ti, (int64_t)(((uint32_t)(15 - 127) << 23) + 0xfff)), ""), odd, "");
    norm = LLVMBuildLShr(b, norm, tj_e_int(ti, 13), "");
    tj_lv magic = tj_e_float(tf, 0.5);
    tj_lv sub = tj_e_bits(e, LLVMBuildFAdd(b, tj_e_unbits(e, a), magic, ""));
    sub = LLVMBuildSub(b, sub, tj_e_int(ti, 126 << 23), "");
    tj_lv small = LLVMBuildICmp(b, LLVMIntULT, a, tj_e_int(ti, 113 << 23), "");
    tj_lv big = LLVMBuildICmp(b, LLVMIntUGE, a, tj_e_int(ti, (127 + 16) << 23), "");
    tj_lv nan = LLVMBuildICmp(b, LLVMIntUGT, a, tj_e_int(ti, 0x7f800000), "");
    tj_lv payload = LLVMBuildOr(b, LLVMBuildLShr(b, a, tj_e_int(ti, 13), ""), tj_e_int(ti, 0x7e00), "");
    payload = LLVMBuildAnd(b, payload, tj_e_int(ti, 0x7fff), "");
    tj_lv huge = LLVMBuildSelect(b, nan, payload, tj_e_int(ti, 0x7c00), "");
    tj_lv r = LLVMBuildSelect(b, small, sub, LLVMBuildSelect(b, big, huge, norm, ""), "");
    r = LLVMBuildOr(b, r, LLVMBuildLShr(b, sign, tj_e_int(ti, 16), ""), "");
    return LLVMBuildTrunc(b, r, tj_e_as(e, x, e->i16), "");
}

tj_lv tj_e_half_to(struct tj_emit *e, tj_lv bits) {
    if (e->f16c) {
        return LLVMBuildFPExt(e->b, tj_e_unbits(e, bits), tj_e_as(e, bits, e->f32), "");
    }
    LLVMBuilderRef b = e->b;
    tj_lt ti = tj_e_as(e, bits, e->i32), tf = tj_e_as(e, bits, e->f32);
    tj_lv h = LLVMBuildZExt(b, bits, ti, "");
    tj_lv sign = LLVMBuildShl(b, LLVMBuildAnd(b, h, tj_e_int(ti, 0x8000), ""), tj_e_int(ti, 16), "");
    tj_lv m = LLVMBuildShl(b, LLVMBuildAnd(b, h, tj_e_int(ti, 0x7fff), ""), tj_e_int(ti, 13), "");
    // Scaling by 2^112 moves the exponent and makes subnormals normal; infinities and NaN get their exponent back.
    tj_lv f = tj_e_bits(e, LLVMBuildFMul(b, tj_e_unbits(e, m), tj_e_float(tf, 0x1p112), ""));
    tj_lv special = LLVMBuildICmp(b, LLVMIntUGE, m, tj_e_int(ti, 0x7c00 << 13), "");
    tj_lv quiet = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntUGT, m, tj_e_int(ti, 0x7c00 << 13), ""),
                                  tj_e_int(ti, 0x7fc00000), tj_e_int(ti, 0x7f800000), "");
    f = LLVMBuildSelect(b, special, LLVMBuildOr(b, m, quiet, ""), f, "");
    return tj_e_unbits(e, LLVMBuildOr(b, f, sign, ""));
}

tj_lv tj_e_bf16_from(struct tj_emit *e, tj_lv x) {
    LLVMBuilderRef b = e->b;
    tj_lt ti = tj_e_as(e, x, e->i32);
    tj_lv u = tj_e_bits(e, x);
    tj_lv odd = LLVMBuildAnd(b, LLVMBuildLShr(b, u, tj_e_int(ti, 16), ""), tj_e_int(ti, 1), "");
    tj_lv r = LLVMBuildAdd(b, LLVMBuildAdd(b, u, tj_e_int(ti, 0x7fff), ""), odd, "");
    tj_lv nan = LLVMBuildFCmp(b, LLVMRealUNO, x, x, "");
    r = LLVMBuildSelect(b, nan, LLVMBuildOr(b, u, tj_e_int(ti, 0x400000), ""), r, "");
    return LLVMBuildTrunc(b, LLVMBuildLShr(b, r, tj_e_int(ti, 16), ""), tj_e_as(e, x, e->i16), "");
}

tj_lv tj_e_bf16_to(struct tj_emit *e, tj_lv bits) {
    tj_lt ti = tj_e_as(e, bits, e->i32);
    return tj_e_unbits(e, LLVMBuildShl(e->b, LLVMBuildZExt(e->b, bits, ti, ""), tj_e_int(ti, 16), ""));
}
