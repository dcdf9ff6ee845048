// jit/reduce_llvm.c: reductions of loop kernels, in the order that jit/kernel.h lays down.
//
// Partials live in memory: 64 of them a reduction, vector after vector, so that the code does not depend on the width
// of a register. In COLS kernels each partial is a vector of columns.
#include <math.h>
#include <stdio.h>

#include "../lib/coefs.h"
#include "loop_llvm.h"

struct pair {
    tj_lv v, i; // value; index of ARGMAX and ARGMIN, else NULL
};

static bool columns(const struct gen *g) { return g->k->kind == TJ_K_COLS; }
static unsigned cols(const struct gen *g) { return columns(g) ? g->lanes : 0; } // lanes of one partial
static bool several(const struct gen *g) { return !columns(g) && g->k->ndims - g->k->npar > 1; }
// Partials in use: where the order doesn't matter two vectors do.
static unsigned slots(const struct gen *g, const struct reduction *r) {
    if (r->kind == TJ_RED_CHAIN) {
        return 1;
    }
    if (r->tree) {
        return TJ_RED_PARTIALS;
    }
    // Columns: enough for one not to wait for the other.
    return columns(g) ? 4 : g->lanes < TJ_RED_PARTIALS / 2 ? 2 * g->lanes : TJ_RED_PARTIALS;
}
// Partials of several uncollapsed dims are not aligned with vectors where the order matters.
static bool unaligned(const struct gen *g, const struct reduction *r) { return r->tree && several(g); }

static tj_lv identity(const struct reduction *r, tj_lt t, bool neutral) {
    bool low = r->kind == TJ_RED_MAX || r->kind == TJ_RED_ARGMAX,
         high = r->kind == TJ_RED_MIN || r->kind == TJ_RED_ARGMIN;
    if (r->cls == 'F') {
        // Adding -0 leaves every value as it is; partials start at +0.
        return tj_e_float(t, low ? -INFINITY : high ? INFINITY : neutral ? -0.0 : 0.0);
    }
    if (r->kind == TJ_RED_ALL || (r->cls == 'B' && high)) {
        return tj_e_int(t, 1);
    }
    unsigned bits = LLVMGetIntTypeWidth(r->memory);
    if (r->cls == 'I' && (low || high)) {
        int64_t max = bits == 64 ? INT64_MAX : (INT64_C(1) << (bits - 1)) - 1;
        return tj_e_int(t, high ? max : -max - 1);
    }
    return tj_e_int(t, r->cls == 'U' && high ? -1 : 0);
}

static struct pair combine(struct gen *g, const struct reduction *r, struct pair a, struct pair b) {
    struct tj_emit *e = g->e;
    LLVMBuilderRef w = e->b;
    bool max = r->kind == TJ_RED_MAX || r->kind == TJ_RED_ARGMAX;
    if (r->arg) {
        tj_lv better, same;
        if (r->cls == 'F') {
            tj_lv na = LLVMBuildFCmp(w, LLVMRealUNO, a.v, a.v, ""), nb = LLVMBuildFCmp(w, LLVMRealUNO, b.v, b.v, "");
            better = LLVMBuildFCmp(w, max ? LLVMRealOGT : LLVMRealOLT, b.v, a.v, "");
            better = LLVMBuildOr(w, better, LLVMBuildAnd(w, nb, LLVMBuildNot(w, na, ""), ""), "");
            same = LLVMBuildOr(w, LLVMBuildFCmp(w, LLVMRealOEQ, a.v, b.v, ""), LLVMBuildAnd(w, na, nb, ""), "");
        } else {
            LLVMIntPredicate p = r->cls == 'I' ? (max ? LLVMIntSGT : LLVMIntSLT) : (max ? LLVMIntUGT : LLVMIntULT);
            better = LLVMBuildICmp(w, p, b.v, a.v, "");
            same = LLVMBuildICmp(w, LLVMIntEQ, b.v, a.v, "");
        }
        tj_lv take = LLVMBuildOr(w, better, LLVMBuildAnd(w, same, LLVMBuildICmp(w, LLVMIntSLT, b.i, a.i, ""), ""), "");
        return (struct pair){LLVMBuildSelect(w, take, b.v, a.v, ""), LLVMBuildSelect(w, take, b.i, a.i, "")};
    }
    switch (r->kind) {
    case TJ_RED_SUM:
    case TJ_RED_CHAIN:
        return (struct pair){r->cls == 'F' ? LLVMBuildFAdd(w, a.v, b.v, "") : LLVMBuildAdd(w, a.v, b.v, ""), NULL};
    case TJ_RED_ANY: return (struct pair){LLVMBuildOr(w, a.v, b.v, ""), NULL};
    case TJ_RED_ALL: return (struct pair){LLVMBuildAnd(w, a.v, b.v, ""), NULL};
    default: break;
    }
    if (r->cls == 'F') {
        return (struct pair){tj_e_extreme(e, a.v, b.v, max), NULL};
    }
    const char *name = r->cls == 'I' ? (max ? "llvm.smax" : "llvm.smin") : (max ? "llvm.umax" : "llvm.umin");
    return (struct pair){tj_e_binary(e, name, a.v, b.v), NULL};
}

void tj_l_red_prepare(struct gen *g) {
    struct tj_emit *e = g->e;
    const struct tj_kernel *k = g->k;
    unsigned n = 0;
    for (unsigned i = 0; i < k->nins; i++) {
        if (k->ins[i].op != TJ_KOP_REDUCE || !g->needed[i]) {
            continue;
        }
        struct reduction *r = &g->red[n];
        uint8_t dtype = k->ins[k->ins[i].in[0]].dtype;
        *r = (struct reduction){.ins = i, .kind = (uint8_t)k->ins[i].imm};
        r->cls = dtype == TRACE_BOOL                        ? 'B'
                 : dtype == TRACE_U8                        ? 'U'
                 : dtype == TRACE_I32 || dtype == TRACE_I64 ? 'I'
                                                            : 'F';
        r->arg = r->kind == TJ_RED_ARGMAX || r->kind == TJ_RED_ARGMIN;
        r->tree = r->kind == TJ_RED_SUM && r->cls == 'F';
        r->elem = tj_e_value_type(e, dtype);
        r->memory = r->cls == 'B' ? e->i8 : r->elem;
        tj_lt t = tj_e_type(e, r->memory, cols(g));
        r->result = tj_e_alloca(e, t, 64, "result");
        r->depth = tj_e_alloca(e, e->i64, 8, "depth");
        if (r->arg) {
            r->result_index = tj_e_alloca(e, tj_e_type(e, e->i64, cols(g)), 64, "result_index");
        }
        if (columns(g)) {
            LLVMBuilderRef b = e->b;
            e->b = e->eb; // holds for the whole call
            r->part = tj_e_gep(e, e->i8, g->scratch, tj_e_i64(e, (int64_t)n * TJ_COLS_PARTIALS));
            r->index = tj_e_gep(e, e->i8, r->part, tj_e_i64(e, TJ_COLS_PARTIALS / 3));
            r->stack = tj_e_gep(e, e->i8, r->part, tj_e_i64(e, TJ_COLS_PARTIALS / 3 * 2));
            e->b = b;
        } else {
            r->part = tj_e_alloca(e, LLVMArrayType2(r->memory, TJ_RED_PARTIALS), 64, "part");
            r->index = r->arg ? tj_e_alloca(e, LLVMArrayType2(e->i64, TJ_RED_PARTIALS), 64, "index") : NULL;
            r->stack = r->tree ? tj_e_alloca(e, LLVMArrayType2(r->memory, 64), 64, "stack") : NULL;
        }
        n++;
    }
    g->nred = n;
}

static bool here(const struct gen *g, const struct reduction *r) { return g->k->ins[r->ins].pass == g->pass; }

// Vectors that hold the 64 partials of a row; slots of columns hold one vector each.
static tj_lt slot_type(struct gen *g, tj_lt elem) { return tj_e_type(g->e, elem, g->lanes); }
static tj_lv slot(struct gen *g, const struct reduction *r, tj_lv i, bool index) {
    tj_lt t = index ? g->e->i64 : r->memory;
    return tj_e_gep(g->e, columns(g) ? slot_type(g, t) : t, index ? r->index : r->part, i);
}
static struct pair load_slot(struct gen *g, const struct reduction *r, tj_lv i) {
    struct pair p = {tj_e_load(g->e, slot_type(g, r->memory), slot(g, r, i, false), 4), NULL};
    if (r->arg) {
        p.i = tj_e_load(g->e, slot_type(g, g->e->i64), slot(g, r, i, true), 8);
    }
    return p;
}
static void store_slot(struct gen *g, const struct reduction *r, tj_lv i, struct pair p) {
    tj_lv st = LLVMBuildStore(g->e->b, p.v, slot(g, r, i, false));
    LLVMSetAlignment(st, 4);
    if (r->arg) {
        // Volatile, or a load, select and store of one place become a masked store, slow and not forwarded to the next
        // load.
        LLVMSetVolatile(st, 1);
        st = LLVMBuildStore(g->e->b, p.i, slot(g, r, i, true));
        LLVMSetAlignment(st, 8);
        LLVMSetVolatile(st, 1);
    }
}

static tj_lv smaller(struct gen *g, tj_lv a, tj_lv b) { return tj_e_binary(g->e, "llvm.smin", a, b); }

static void start(struct gen *g, const struct reduction *r, tj_lv count) {
    struct tj_emit *e = g->e;
    struct pair id = {identity(r, slot_type(g, r->memory), false),
                      r->arg ? tj_e_int(slot_type(g, e->i64), INT64_MAX) : NULL};
    if (columns(g)) {
        struct tj_loop_state l;
        tj_lv n = tj_e_binary(e, "llvm.smax", smaller(g, count, tj_e_i64(e, slots(g, r))), tj_e_i64(e, 1));
        tj_e_loop(e, &l, tj_e_i64(e, 0), n, tj_e_i64(e, 1), "start");
        store_slot(g, r, l.i, id);
        tj_e_loop_end(e, &l);
        return;
    }
    for (unsigned i = 0; i < slots(g, r); i += g->lanes) {
        store_slot(g, r, tj_e_i64(e, i), id);
    }
}

void tj_l_red_start(struct gen *g, bool tree, tj_lv count) {
    for (unsigned n = 0; n < g->nred; n++) {
        if (here(g, &g->red[n]) && g->red[n].tree == tree) {
            start(g, &g->red[n], count);
        }
    }
}

// ---- joining ------------------------------------------------------------------------------------------------------

static tj_lv take(struct gen *g, tj_lv v, unsigned from, unsigned n) {
    int index[64];
    for (unsigned i = 0; i < n; i++) {
        index[i] = (int)(from + i);
    }
    return tj_e_shuffle(g->e, v, LLVMGetPoison(LLVMTypeOf(v)), index, n);
}

// The partials by halving; count: elements there were (columns: the others were never written).
static struct pair join(struct gen *g, const struct reduction *r, tj_lv count) {
    struct tj_emit *e = g->e;
    if (columns(g) && slots(g, r) == 1) {
        return load_slot(g, r, tj_e_i64(e, 0));
    }
    if (columns(g)) {
        tj_lv filled0 = smaller(g, count, tj_e_i64(e, slots(g, r)));
        tj_lb pre = tj_e_here(e), head = tj_e_block(e, "halve"), exit = tj_e_block(e, "");
        LLVMBuildBr(e->b, head);
        tj_e_at(e, head);
        tj_lv half = LLVMBuildPhi(e->b, e->i64, ""), filled = LLVMBuildPhi(e->b, e->i64, "");
        tj_lv m = smaller(g, half, LLVMBuildSub(e->b, filled, half, ""));
        struct tj_loop_state l;
        tj_e_loop(e, &l, tj_e_i64(e, 0), m, tj_e_i64(e, 1), "join");
        struct pair a = load_slot(g, r, l.i), b = load_slot(g, r, LLVMBuildAdd(e->b, l.i, half, ""));
        store_slot(g, r, l.i, combine(g, r, a, b));
        tj_e_loop_end(e, &l);
        tj_lv half1 = LLVMBuildLShr(e->b, half, tj_e_i64(e, 1), ""), filled1 = smaller(g, filled, half);
        tj_lb latch = tj_e_here(e);
        LLVMAddIncoming(half, (tj_lv[]){tj_e_i64(e, slots(g, r) / 2), half1}, (tj_lb[]){pre, latch}, 2);
        LLVMAddIncoming(filled, (tj_lv[]){filled0, filled1}, (tj_lb[]){pre, latch}, 2);
        LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntNE, half1, tj_e_i64(e, 0), ""), head, exit);
        tj_e_at(e, exit);
        return load_slot(g, r, tj_e_i64(e, 0));
    }
    struct pair v[TJ_RED_PARTIALS];
    unsigned n = slots(g, r) / g->lanes;
    for (unsigned i = 0; i < n; i++) {
        v[i] = load_slot(g, r, tj_e_i64(e, i * g->lanes));
    }
    for (; n > 1; n /= 2) {
        for (unsigned i = 0; i < n / 2; i++) {
            v[i] = combine(g, r, v[i], v[i + n / 2]);
        }
    }
    struct pair p = v[0];
    for (unsigned h = g->lanes / 2; h >= 1; h /= 2) {
        struct pair lo = {take(g, p.v, 0, h), r->arg ? take(g, p.i, 0, h) : NULL};
        struct pair hi = {take(g, p.v, h, h), r->arg ? take(g, p.i, h, h) : NULL};
        p = combine(g, r, lo, hi);
    }
    p.v = LLVMBuildExtractElement(e->b, p.v, tj_e_i32(e, 0), "");
    p.i = r->arg ? LLVMBuildExtractElement(e->b, p.i, tj_e_i32(e, 0), "") : NULL;
    return p;
}

// ---- the stack of blocks ------------------------------------------------------------------------------------------

static tj_lt whole_type(struct gen *g, const struct reduction *r) { return tj_e_type(g->e, r->memory, cols(g)); }
static tj_lv stack_at(struct gen *g, const struct reduction *r, tj_lv i) {
    return tj_e_gep(g->e, whole_type(g, r), r->stack, i);
}
static tj_lv stack_load(struct gen *g, const struct reduction *r, tj_lv i) {
    return tj_e_load(g->e, whole_type(g, r), stack_at(g, r, i), 4);
}

// The code of both is shared by the kernels of a module: void(ptr stack, ptr depth, i64 block, ptr value) and void(ptr
// stack, ptr depth, ptr result), named by the type of a value.
static tj_lv stack_function(struct gen *g, const struct reduction *r, struct tj_nested *n, const char *what) {
    struct tj_emit *e = g->e;
    char name[64];
    (void)snprintf(name, sizeof name, "tj_%s_%s_%u", what, r->elem == e->f64 ? "f64" : "f32", cols(g));
    tj_lt p[] = {e->ptr, e->ptr, e->i64, e->ptr};
    return tj_e_nested(e, n, name, LLVMFunctionType(e->none, p, 4, 0));
}

// The value in *result joins what the trailing ones of the block's number say, then goes on the stack.
static tj_lv push_function(struct gen *g, const struct reduction *r) {
    struct tj_emit *e = g->e;
    struct tj_nested outer;
    tj_lv f = stack_function(g, r, &outer, "push");
    if (f) {
        return f;
    }
    struct reduction in = *r; // the function's own
    in.stack = LLVMGetParam(e->fn, 0);
    LLVMBuilderRef w = e->b;
    tj_lv depth = LLVMGetParam(e->fn, 1), t = tj_e_load(e, whole_type(g, r), LLVMGetParam(e->fn, 3), 4);
    tj_lv d0 = tj_e_load(e, e->i64, depth, 8);
    tj_lb pre = tj_e_here(e), head = tj_e_block(e, "push"), merge = tj_e_block(e, ""), exit = tj_e_block(e, "");
    LLVMBuildBr(w, head);
    tj_e_at(e, head);
    tj_lv v = LLVMBuildPhi(w, LLVMTypeOf(t), ""), b = LLVMBuildPhi(w, e->i64, ""), d = LLVMBuildPhi(w, e->i64, "");
    tj_lv odd = LLVMBuildICmp(w, LLVMIntNE, LLVMBuildAnd(w, b, tj_e_i64(e, 1), ""), tj_e_i64(e, 0), "");
    LLVMBuildCondBr(w, odd, merge, exit);
    tj_e_at(e, merge);
    tj_lv d1 = LLVMBuildSub(w, d, tj_e_i64(e, 1), "");
    tj_lv v1 = combine(g, r, (struct pair){stack_load(g, &in, d1), NULL}, (struct pair){v, NULL}).v;
    tj_lv b1 = LLVMBuildLShr(w, b, tj_e_i64(e, 1), "");
    LLVMBuildBr(w, head);
    LLVMAddIncoming(v, (tj_lv[]){t, v1}, (tj_lb[]){pre, merge}, 2);
    LLVMAddIncoming(b, (tj_lv[]){LLVMGetParam(e->fn, 2), b1}, (tj_lb[]){pre, merge}, 2);
    LLVMAddIncoming(d, (tj_lv[]){d0, d1}, (tj_lb[]){pre, merge}, 2);
    tj_e_at(e, exit);
    tj_e_store(e, v, stack_at(g, &in, d), 4);
    tj_e_store(e, LLVMBuildAdd(w, d, tj_e_i64(e, 1), ""), depth, 8);
    return tj_e_nested_end(e, &outer);
}

// What remains merges from the top down, into *result; an empty stack leaves it.
static tj_lv pop_function(struct gen *g, const struct reduction *r) {
    struct tj_emit *e = g->e;
    struct tj_nested outer;
    tj_lv f = stack_function(g, r, &outer, "pop");
    if (f) {
        return f;
    }
    struct reduction in = *r;
    in.stack = LLVMGetParam(e->fn, 0);
    LLVMBuilderRef w = e->b;
    tj_lv result = LLVMGetParam(e->fn, 3);
    tj_lv top = LLVMBuildSub(w, tj_e_load(e, e->i64, LLVMGetParam(e->fn, 1), 8), tj_e_i64(e, 1), "");
    struct tj_if_state s;
    tj_e_if(e, &s, LLVMBuildICmp(w, LLVMIntSGE, top, tj_e_i64(e, 0), ""), true, true);
    tj_e_store(e, stack_load(g, &in, top), result, 4);
    struct tj_loop_state l;
    tj_e_loop(e, &l, tj_e_i64(e, 0), top, tj_e_i64(e, 1), "pop");
    tj_lv at = LLVMBuildSub(w, LLVMBuildSub(w, top, tj_e_i64(e, 1), ""), l.i, "");
    tj_lv v = tj_e_load(e, whole_type(g, r), result, 4);
    v = combine(g, r, (struct pair){stack_load(g, &in, at), NULL}, (struct pair){v, NULL}).v;
    tj_e_store(e, v, result, 4);
    tj_e_loop_end(e, &l);
    tj_e_end(e, &s);
    return tj_e_nested_end(e, &outer);
}

static void push(struct gen *g, const struct reduction *r, tj_lv block, tj_lv t) {
    tj_lv f = push_function(g, r), args[] = {r->stack, r->depth, block, r->result};
    tj_e_store(g->e, t, r->result, 4);
    (void)tj_e_invoke(g->e, f, args, 4);
}

static void pop_all(struct gen *g, const struct reduction *r) {
    tj_lv f = pop_function(g, r), args[] = {r->stack, r->depth, tj_e_i64(g->e, 0), r->result};
    (void)tj_e_invoke(g->e, f, args, 4);
}

// ---- the body's share ---------------------------------------------------------------------------------------------

static struct reduction *of(struct gen *g, unsigned i) {
    for (unsigned n = 0; n < g->nred; n++) {
        if (g->red[n].ins == i) {
            return &g->red[n];
        }
    }
    return NULL;
}

static void flush(struct gen *g, const struct reduction *r, tj_lv block) { push(g, r, block, join(g, r, NULL).v); }

void tj_l_red_add(struct gen *g, unsigned i) {
    struct tj_emit *e = g->e;
    LLVMBuilderRef w = e->b;
    const struct reduction *r = of(g, i);
    struct pair x = {tj_l_vector(g, g->k->ins[i].in[0]), NULL};
    if (r->cls == 'B') {
        x.v = LLVMBuildZExt(w, x.v, slot_type(g, r->memory), "");
    }
    if (unaligned(g, r)) {
        tj_lv buf = tj_e_alloca(e, LLVMTypeOf(x.v), 64, "");
        tj_e_store(e, x.v, buf, 64);
        struct tj_loop_state l;
        tj_e_loop(e, &l, tj_e_i64(e, 0), g->tail ? g->left : tj_e_i64(e, g->lanes), tj_e_i64(e, 1), "lane");
        tj_lv number = LLVMBuildAdd(w, g->number, l.i, "");
        tj_lv p = tj_e_gep(e, r->memory, r->part, LLVMBuildAnd(w, number, tj_e_i64(e, TJ_RED_PARTIALS - 1), ""));
        struct pair sum = combine(g, r, (struct pair){tj_e_load(e, r->memory, p, 4), NULL},
                                  (struct pair){tj_e_load(e, r->memory, tj_e_gep(e, r->memory, buf, l.i), 4), NULL});
        tj_e_store(e, sum.v, p, 4);
        tj_lv last = LLVMBuildAnd(w, number, tj_e_i64(e, TJ_RED_BLOCK - 1), "");
        struct tj_if_state s;
        tj_e_if(e, &s, LLVMBuildICmp(w, LLVMIntEQ, last, tj_e_i64(e, TJ_RED_BLOCK - 1), ""), true, false);
        flush(g, r, LLVMBuildUDiv(w, number, tj_e_i64(e, TJ_RED_BLOCK), ""));
        start(g, r, NULL);
        tj_e_end(e, &s);
        tj_e_loop_end(e, &l);
        return;
    }
    tj_lv at = LLVMBuildAnd(w, columns(g) ? g->number : g->j, tj_e_i64(e, slots(g, r) - 1), "");
    if (!columns(g) && g->tail) {
        x.v = LLVMBuildSelect(w, g->tail, x.v, identity(r, LLVMTypeOf(x.v), true), "");
    }
    if (r->arg) {
        x.i = tj_e_splat(w, g->number, g->lanes);
        if (!columns(g)) {
            x.i = LLVMBuildAdd(w, x.i, tj_e_iota(e, e->i64, g->lanes), "");
            if (g->tail) {
                x.i = LLVMBuildSelect(w, g->tail, x.i, tj_e_int(LLVMTypeOf(x.i), INT64_MAX), "");
            }
        }
    }
    store_slot(g, r, at, combine(g, r, load_slot(g, r, at), x));
}

// ---- blocks and results -------------------------------------------------------------------------------------------

void tj_l_red_block(struct gen *g, tj_lv block, tj_lv more, tj_lv count) {
    struct tj_emit *e = g->e;
    for (unsigned n = 0; n < g->nred; n++) {
        struct reduction *r = &g->red[n];
        if (!here(g, r) || !r->tree) {
            continue;
        }
        tj_lv t = join(g, r, count).v;
        tj_e_store(e, t, r->result, 4);
        struct tj_if_state s;
        tj_e_if(e, &s, more, true, false);
        push(g, r, block, t);
        tj_e_end(e, &s);
    }
}

static void set_value(struct gen *g, struct reduction *r, tj_lv v) {
    struct tj_emit *e = g->e;
    if (r->cls == 'B' && !r->arg) {
        v = LLVMBuildICmp(e->b, LLVMIntNE, v, LLVMConstNull(LLVMTypeOf(v)), "");
    }
    if (columns(g)) {
        g->vals[r->ins] = (struct value){.v = v};
    } else {
        g->vals[r->ins] = (struct value){.s = v, .v = g->splat[r->ins] ? tj_e_splat(e->b, v, g->lanes) : NULL};
    }
}

void tj_l_red_finish(struct gen *g, tj_lv more, tj_lv count) {
    struct tj_emit *e = g->e;
    for (unsigned n = 0; n < g->nred; n++) {
        struct reduction *r = &g->red[n];
        if (!here(g, r)) {
            continue;
        }
        if (!r->tree) {
            struct pair p = join(g, r, count);
            set_value(g, r, r->arg ? p.i : p.v);
            continue;
        }
        struct tj_if_state s;
        if (unaligned(g, r)) {
            tj_lv total = tj_e_load(e, e->i64, g->counter, 8);
            tj_lv rest = LLVMBuildAnd(e->b, total, tj_e_i64(e, TJ_RED_BLOCK - 1), "");
            tj_e_if(e, &s, LLVMBuildICmp(e->b, LLVMIntNE, rest, tj_e_i64(e, 0), ""), false, false);
            flush(g, r, LLVMBuildUDiv(e->b, total, tj_e_i64(e, TJ_RED_BLOCK), ""));
            tj_e_end(e, &s);
            pop_all(g, r);
        } else {
            tj_e_if(e, &s, more, true, false);
            pop_all(g, r);
            tj_e_end(e, &s);
        }
        set_value(g, r, tj_e_load(e, whole_type(g, r), r->result, 4));
    }
}

// The result of no elements, and an empty stack.
void tj_l_red_reset(struct gen *g) {
    for (unsigned n = 0; n < g->nred; n++) {
        struct reduction *r = &g->red[n];
        if (here(g, r) && r->tree) {
            tj_e_store(g->e, identity(r, whole_type(g, r), false), r->result, 4);
            tj_e_store(g->e, tj_e_i64(g->e, 0), r->depth, 8);
        }
    }
}

// ---- split kernels ------------------------------------------------------------------------------------------------

static tj_lv partial_at(struct gen *g, tj_lv i) {
    struct tj_emit *e = g->e;
    tj_lv p = tj_e_load(e, e->ptr, tj_e_gep(e, e->i8, g->args, tj_e_i64(e, offsetof(struct tj_kargs, partials))), 8);
    return tj_e_gep(e, e->i64, p, i);
}

void tj_l_red_partial(struct gen *g) {
    const struct reduction *r = &g->red[0];
    tj_e_store(g->e, join(g, r, NULL).v, partial_at(g, g->row), 8);
}

void tj_l_red_gather(struct gen *g, tj_lv blocks) {
    struct tj_emit *e = g->e;
    struct reduction *r = &g->red[0];
    tj_e_store(e, identity(r, r->memory, false), r->result, 4);
    tj_e_store(e, tj_e_i64(e, 0), r->depth, 8);
    tj_lv first = LLVMBuildMul(e->b, g->row, blocks, "");
    struct tj_loop_state l;
    tj_e_loop(e, &l, tj_e_i64(e, 0), blocks, tj_e_i64(e, 1), "blocks");
    tj_lv t = tj_e_load(e, r->memory, partial_at(g, LLVMBuildAdd(e->b, first, l.i, "")), 8);
    if (r->tree) {
        push(g, r, l.i, t);
    } else {
        struct pair have = {tj_e_load(e, r->memory, r->result, 4), NULL}, more = {t, NULL};
        tj_e_store(e, combine(g, r, have, more).v, r->result, 4);
    }
    tj_e_loop_end(e, &l);
    if (r->tree) {
        pop_all(g, r);
    }
    set_value(g, r, tj_e_load(e, r->memory, r->result, 4));
}
