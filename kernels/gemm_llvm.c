// kernels/gemm_llvm.c: emits matmul micro-kernels: explicit vectors, accumulators in registers, one straight loop over
// k.
#include "gemm_llvm.h"

#include <stdio.h>

#include "../jit/emit_llvm.h"

enum {
    TILE_MAX = 64, // accumulators a tile may have
    UNROLL = 2     // steps of one turn of the loop
};

struct emit {
    LLVMContextRef ctx;
    LLVMBuilderRef b;
    LLVMModuleRef module;
    LLVMTypeRef i64, i8, ptr, elem, vec;
    LLVMValueRef fn, args;
    int mr, nv, width, size; // size: bytes of an element
    uint8_t bdtype;          // of B
    int bsize;
    struct tj_emit widen; // of what conversions need
    bool refetch;         // the last vector of B is read again by each row
    bool fma, offsets, packed;
};

static LLVMValueRef num(struct emit *e, int64_t v) { return LLVMConstInt(e->i64, (unsigned long long)v, 1); }

static LLVMValueRef at(struct emit *e, LLVMValueRef p, LLVMValueRef bytes) {
    return LLVMBuildGEP2(e->b, e->i8, p, &bytes, 1, "");
}

static LLVMValueRef field(struct emit *e, size_t offset, LLVMTypeRef type, const char *name) {
    return LLVMBuildLoad2(e->b, type, at(e, e->args, num(e, (int64_t)offset)), name);
}

static LLVMValueRef vec_load(struct emit *e, LLVMValueRef p) {
    LLVMValueRef v = LLVMBuildLoad2(e->b, e->vec, p, "");
    LLVMSetAlignment(v, (unsigned)e->size);
    return v;
}

// A vector of B, widened.
static LLVMValueRef b_load(struct emit *e, LLVMValueRef p) {
    if (e->bsize == e->size) {
        return vec_load(e, p);
    }
    LLVMValueRef v = LLVMBuildLoad2(e->b, LLVMVectorType(e->widen.i16, (unsigned)e->width), p, "");
    LLVMSetAlignment(v, (unsigned)e->bsize);
    return e->bdtype == TRACE_F16 ? tj_e_half_to(&e->widen, v) : tj_e_bf16_to(&e->widen, v);
}

static void vec_store(struct emit *e, LLVMValueRef v, LLVMValueRef p) {
    LLVMSetAlignment(LLVMBuildStore(e->b, v, p), (unsigned)e->size);
}

static LLVMValueRef splat(struct emit *e, LLVMValueRef x) {
    LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
    LLVMValueRef undef = LLVMGetPoison(e->vec);
    LLVMValueRef one = LLVMBuildInsertElement(e->b, undef, x, LLVMConstInt(i32, 0, 0), "");
    return LLVMBuildShuffleVector(e->b, one, undef, LLVMConstNull(LLVMVectorType(i32, (unsigned)e->width)), "");
}

static LLVMValueRef intrinsic(struct emit *e, const char *name, LLVMTypeRef over, LLVMValueRef *args, unsigned n) {
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    LLVMValueRef f = LLVMGetIntrinsicDeclaration(e->module, id, &over, 1);
    return LLVMBuildCall2(e->b, LLVMIntrinsicGetType(e->ctx, id, &over, 1), f, args, n, "");
}

static LLVMValueRef mul_add(struct emit *e, LLVMValueRef x, LLVMValueRef y, LLVMValueRef z) {
    if (!e->fma) {
        return LLVMBuildFAdd(e->b, LLVMBuildFMul(e->b, x, y, ""), z, "");
    }
    LLVMValueRef v[] = {x, y, z};
    return intrinsic(e, "llvm.fma", e->vec, v, 3);
}

// Keeps the loads after it from being moved before it.
static void load_fence(struct emit *e) {
    LLVMTypeRef type = LLVMFunctionType(LLVMVoidTypeInContext(e->ctx), NULL, 0, 0);
    LLVMValueRef f = LLVMGetInlineAsm(type, "", 0, "~{memory}", 9, 1, 0, LLVMInlineAsmDialectATT, 0);
    LLVMBuildCall2(e->b, type, f, NULL, 0, "");
}

static LLVMBasicBlockRef block(struct emit *e, const char *name) {
    return LLVMAppendBasicBlockInContext(e->ctx, e->fn, name);
}

// Address of vector j of C's row m.
static LLVMValueRef c_at(struct emit *e, LLVMValueRef c, LLVMValueRef ldc, int m, int j) {
    LLVMValueRef row = m ? at(e, c, LLVMBuildMul(e->b, ldc, num(e, m), "")) : c;
    return at(e, row, num(e, (int64_t)j * e->width * e->size));
}

// Values the steps of a loop work on.
struct state {
    LLVMValueRef acc[TILE_MAX];
    LLVMValueRef k, kb; // k so far; byte offset of B's row k (NULL with an offset table)
};

// Pointers of the arguments, loaded once.
struct operands {
    LLVMValueRef a[TJ_TILE_ROWS];
    LLVMValueRef b[TJ_TILE_ROWS]; // equal, but unknown to be: see emit_step
    LLVMValueRef offsets;
};

// A(m, k + u) as a scalar.
static LLVMValueRef a_load(struct emit *e, const struct operands *o, const struct state *s, int u, int m) {
    LLVMValueRef k = s->k, p;
    if (e->packed) {
        p = at(e, at(e, o->a[0], LLVMBuildMul(e->b, k, num(e, (int64_t)e->mr * e->size), "")),
               num(e, (int64_t)(u * e->mr + m) * e->size));
    } else {
        p = at(e, LLVMBuildGEP2(e->b, e->elem, o->a[m], &k, 1, ""), num(e, (int64_t)u * e->size));
    }
    LLVMValueRef x = LLVMBuildLoad2(e->b, e->elem, p, "");
    LLVMSetAlignment(x, (unsigned)e->size);
    return x;
}

// One k: acc(m, n) = fma(A(m, k), B(k, n), acc(m, n)).
//
// Where the accumulators leave too few registers for B, the last vector of B is not kept: each row reads it again as
// the memory operand of its fma, through a pointer of its own so that the loads are not merged. That is also fewer
// instructions, which counts where another thread shares the core.
static void emit_step(struct emit *e, const struct operands *o, struct state *s, int u) {
    const int vec = e->width * e->bsize;
    LLVMValueRef ku = u ? LLVMBuildAdd(e->b, s->k, num(e, u), "") : s->k;
    LLVMValueRef brow[TJ_TILE_ROWS], bv[TILE_MAX];
    for (int m = 0; m < (e->refetch ? e->mr : 1); m++) {
        brow[m] = e->offsets ? at(e, o->b[m],
                                  LLVMBuildLoad2(e->b, e->i64, LLVMBuildGEP2(e->b, e->i64, o->offsets, &ku, 1, ""), ""))
                             : at(e, at(e, o->b[m], s->kb), num(e, (int64_t)u * e->nv * vec));
    }
    const int kept = e->refetch ? e->nv - 1 : e->nv;
    if (e->mr < e->nv) { // few rows: hold A, walk B
        LLVMValueRef av[TJ_TILE_ROWS];
        for (int m = 0; m < e->mr; m++) {
            av[m] = splat(e, a_load(e, o, s, u, m));
        }
        for (int j = 0; j < e->nv; j++) {
            LLVMValueRef y = b_load(e, at(e, brow[0], num(e, (int64_t)j * vec)));
            for (int m = 0; m < e->mr; m++) {
                s->acc[m * e->nv + j] = mul_add(e, av[m], y, s->acc[m * e->nv + j]);
            }
        }
        return;
    }
    for (int j = 0; j < kept; j++) {
        bv[j] = b_load(e, at(e, brow[0], num(e, (int64_t)j * vec)));
    }
    for (int m = 0; m < e->mr; m++) {
        LLVMValueRef av = splat(e, a_load(e, o, s, u, m));
        for (int j = 0; j < e->nv; j++) {
            LLVMValueRef y = j < kept ? bv[j] : vec_load(e, at(e, brow[m], num(e, (int64_t)j * vec)));
            s->acc[m * e->nv + j] = mul_add(e, av, y, s->acc[m * e->nv + j]);
        }
    }
}

static void advance(struct emit *e, struct state *s, int steps) {
    s->k = LLVMBuildAdd(e->b, s->k, num(e, steps), "");
    if (!e->offsets) {
        s->kb = LLVMBuildAdd(e->b, s->kb, num(e, (int64_t)steps * e->nv * e->width * e->bsize), "");
    }
}

// Phis of every value of a state, with no incoming edges yet.
static void phis(struct emit *e, struct state *s) {
    for (int i = 0; i < e->mr * e->nv; i++) {
        s->acc[i] = LLVMBuildPhi(e->b, e->vec, "");
    }
    s->k = LLVMBuildPhi(e->b, e->i64, "k");
    s->kb = e->offsets ? NULL : LLVMBuildPhi(e->b, e->i64, "kb");
}

static void incoming(struct emit *e, struct state *phi, struct state *from, LLVMBasicBlockRef in) {
    for (int i = 0; i < e->mr * e->nv; i++) {
        LLVMAddIncoming(phi->acc[i], &from->acc[i], &in, 1);
    }
    LLVMAddIncoming(phi->k, &from->k, &in, 1);
    if (phi->kb) {
        LLVMAddIncoming(phi->kb, &from->kb, &in, 1);
    }
}

static void emit_body(struct emit *e) {
    const int n = e->mr * e->nv;
    LLVMBasicBlockRef entry = block(e, "entry"), from_c = block(e, "from_c"), start = block(e, "start");
    LLVMBasicBlockRef loop = block(e, "loop"), rest = block(e, "rest"), odd = block(e, "odd"), done = block(e, "done");
    LLVMValueRef zero = LLVMConstNull(e->vec);
    struct operands o = {0};
    struct state init = {0}, body, tail, out;

    LLVMPositionBuilderAtEnd(e->b, entry);
    for (int m = 0; m < (e->packed ? 1 : e->mr); m++) {
        o.a[m] = field(e, offsetof(struct tj_gemm_args, a) + (size_t)m * sizeof(void *), e->ptr, "a");
    }
    for (int m = 0; m < (e->refetch ? e->mr : 1); m++) {
        o.b[m] = field(e, offsetof(struct tj_gemm_args, b), e->ptr, "b");
        LLVMSetVolatile(o.b[m], m > 0);
    }
    LLVMValueRef c = field(e, offsetof(struct tj_gemm_args, c), e->ptr, "c");
    LLVMValueRef ldc = field(e, offsetof(struct tj_gemm_args, ldc), e->i64, "ldc");
    LLVMValueRef k = field(e, offsetof(struct tj_gemm_args, k), e->i64, "k");
    LLVMValueRef mode = field(e, offsetof(struct tj_gemm_args, mode), e->i64, "mode");
    if (e->offsets) {
        o.offsets = field(e, offsetof(struct tj_gemm_args, offsets), e->ptr, "offsets");
    }
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, mode, num(e, TJ_TILE_CHAIN), ""), from_c, start);

    LLVMValueRef first[TILE_MAX];
    LLVMPositionBuilderAtEnd(e->b, from_c);
    for (int i = 0; i < n; i++) {
        first[i] = vec_load(e, c_at(e, c, ldc, i / e->nv, i % e->nv));
    }
    LLVMBuildBr(e->b, start);

    LLVMPositionBuilderAtEnd(e->b, start);
    for (int i = 0; i < n; i++) {
        init.acc[i] = LLVMBuildPhi(e->b, e->vec, "");
        LLVMAddIncoming(init.acc[i], (LLVMValueRef[]){zero, first[i]}, (LLVMBasicBlockRef[]){entry, from_c}, 2);
    }
    init.k = init.kb = num(e, 0);
    LLVMValueRef pairs = LLVMBuildAnd(e->b, k, num(e, -UNROLL), "");
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSGT, pairs, num(e, 0), ""), loop, rest);

    LLVMPositionBuilderAtEnd(e->b, loop);
    phis(e, &body);
    incoming(e, &body, &init, start);
    struct state next = body;
    for (int u = 0; u < UNROLL; u++) {
        if (u && e->refetch) {
            load_fence(e);
        }
        emit_step(e, &o, &next, u);
    }
    advance(e, &next, UNROLL);
    incoming(e, &body, &next, loop);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, next.k, pairs, ""), loop, rest);

    LLVMPositionBuilderAtEnd(e->b, rest);
    phis(e, &tail);
    incoming(e, &tail, &init, start);
    incoming(e, &tail, &next, loop);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, tail.k, k, ""), odd, done);

    LLVMPositionBuilderAtEnd(e->b, odd);
    struct state last = tail;
    emit_step(e, &o, &last, 0);
    LLVMBuildBr(e->b, done);

    LLVMPositionBuilderAtEnd(e->b, done);
    for (int i = 0; i < n; i++) {
        out.acc[i] = LLVMBuildPhi(e->b, e->vec, "");
        LLVMAddIncoming(out.acc[i], (LLVMValueRef[]){tail.acc[i], last.acc[i]}, (LLVMBasicBlockRef[]){rest, odd}, 2);
    }
    for (int i = 0; i < n; i++) {
        vec_store(e, out.acc[i], c_at(e, c, ldc, i / e->nv, i % e->nv));
    }
    LLVMBuildRetVoid(e->b);
}

LLVMValueRef tj_emit_gemm(LLVMModuleRef module, const struct tj_gemm_tile *tile, enum tj_cpu_level level,
                          const char *symbol, char *err, size_t cap) {
    const bool half = tile->b == TRACE_F16 || tile->b == TRACE_BF16;
    bool known =
        tile->dtype == TRACE_F32 ? half || tile->b == TRACE_F32 : tile->dtype == TRACE_F64 && tile->b == TRACE_F64;
    if (!known || !tile->mr || !tile->nv || tile->mr > TJ_TILE_ROWS || tile->mr * tile->nv > TILE_MAX) {
        snprintf(err, cap, "no matmul tile of dtype %d, %d rows, %d vectors", tile->dtype, tile->mr, tile->nv);
        return NULL;
    }
    struct emit e = {.ctx = LLVMGetModuleContext(module), .module = module};
    e.i64 = LLVMInt64TypeInContext(e.ctx);
    e.i8 = LLVMInt8TypeInContext(e.ctx);
    e.ptr = LLVMPointerTypeInContext(e.ctx, 0);
    e.elem = tile->dtype == TRACE_F32 ? LLVMFloatTypeInContext(e.ctx) : LLVMDoubleTypeInContext(e.ctx);
    e.mr = tile->mr;
    e.nv = tile->nv;
    e.width = tj_gemm_width(level, tile->dtype);
    e.size = tile->dtype == TRACE_F32 ? 4 : 8; // tj_elem_bytes would pull the library's tables into the module
    e.vec = LLVMVectorType(e.elem, (unsigned)e.width);
    e.bdtype = tile->b;
    e.bsize = half ? 2 : e.size;
#if defined(__aarch64__)
    e.fma = true;
#else
    e.fma = level != TJ_CPU_PORTABLE;
#endif
    e.offsets = tile->flags & TJ_TILE_OFFSETS;
    e.packed = tile->a_packed;
    // Sixteen registers, and what is left of them holds one A. AVX-512 has 32.
    e.refetch = level == TJ_CPU_AVX2 && !e.offsets && !half && e.mr >= e.nv && e.mr * e.nv + e.nv == 15;
    e.fn =
        LLVMAddFunction(module, symbol, LLVMFunctionType(LLVMVoidTypeInContext(e.ctx), (LLVMTypeRef[]){e.ptr}, 1, 0));
    e.args = LLVMGetParam(e.fn, 0);
    e.b = LLVMCreateBuilderInContext(e.ctx);
    e.widen = (struct tj_emit){.ctx = e.ctx,
                               .module = module,
                               .b = e.b,
                               .i16 = LLVMInt16TypeInContext(e.ctx),
                               .i32 = LLVMInt32TypeInContext(e.ctx),
                               .f32 = LLVMFloatTypeInContext(e.ctx),
                               .half = LLVMHalfTypeInContext(e.ctx),
                               .f16c = e.fma}; // one level brings both
    emit_body(&e);
    LLVMDisposeBuilder(e.b);
    return e.fn;
}
