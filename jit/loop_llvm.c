// jit/loop_llvm.c: emits loop kernels (jit/kernel.h): analysis of an instruction's place, loops, passes, row ends.
#include <stdio.h>

#include "../lib/coefs.h"
#include "loop_llvm.h"

enum {
    // Weight of a body (see tj_l_weight()) from which one copy serves whole vectors and tail; with masks it runs
    // slower.
    SHARE_ABOVE = 20,
    SHARE_MASKED_ABOVE = 40,
};

// ---- values -------------------------------------------------------------------------------------------------------

tj_lv tj_l_ival(struct gen *g, unsigned i) {
    if (i < 2) {
        return tj_e_i64(g->e, i);
    }
    return g->ival[i];
}

tj_lv tj_l_scalar(struct gen *g, unsigned i) { return g->vals[i].s; }

tj_lv tj_l_vector(struct gen *g, unsigned i) {
    if (g->varies[i] || g->vals[i].v) {
        return g->vals[i].v;
    }
    return tj_e_splat(g->e->b, g->vals[i].s, g->lanes); // a place where the splat isn't kept
}

tj_lv tj_l_live(struct gen *g, tj_lv mask) {
    if (!mask) {
        return g->tail;
    }
    if (!tj_e_lanes(mask)) {
        mask = tj_e_splat(g->e->b, mask, g->lanes);
    }
    return g->tail ? LLVMBuildAnd(g->e->b, mask, g->tail, "") : mask;
}

// void tj_check(args, site, index, extent): records the first data error of a run.
static tj_lv check_function(struct tj_emit *e) {
    static const char name[] = "tj_check";
    tj_lt params[] = {e->ptr, e->i64, e->i64, e->i64};
    struct tj_nested outer;
    tj_lv f = tj_e_nested(e, &outer, name, LLVMFunctionType(e->none, params, 4, 0));
    if (f) {
        return f;
    }
    f = e->fn;
    unsigned cold = LLVMGetEnumAttributeKindForName("cold", 4);
    LLVMAddAttributeAtIndex(f, LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->ctx, cold, 0));
    tj_lv args = LLVMGetParam(f, 0), site = LLVMGetParam(f, 1);
    tj_lv err = tj_e_load(e, e->ptr, tj_e_gep(e, e->i8, args, tj_e_i64(e, offsetof(struct tj_kargs, err))), 8);
    tj_lv set = tj_e_gep(e, e->i8, err, tj_e_i64(e, offsetof(struct tj_data_error, set)));
    tj_lv won = LLVMBuildAtomicCmpXchg(e->b, set, tj_e_i32(e, 0), tj_e_i32(e, 1), LLVMAtomicOrderingAcquireRelease,
                                       LLVMAtomicOrderingAcquire, 0);
    struct tj_if_state s;
    tj_e_if(e, &s, LLVMBuildExtractValue(e->b, won, 1, ""), false, false);
    tj_lv sites = tj_e_load(e, e->ptr, tj_e_gep(e, e->i8, args, tj_e_i64(e, offsetof(struct tj_kargs, sites))), 8);
    tj_lv number = LLVMBuildAnd(e->b, site, tj_e_i64(e, 0xffffff), "");
    tj_lv kind = LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, site, tj_e_i64(e, 24), ""), e->i32, "");
    tj_e_store(e, tj_e_load(e, e->i32, tj_e_gep(e, e->i32, sites, number), 4),
               tj_e_gep(e, e->i8, err, tj_e_i64(e, offsetof(struct tj_data_error, node))), 4);
    tj_e_store(e, kind, tj_e_gep(e, e->i8, err, tj_e_i64(e, offsetof(struct tj_data_error, kind))), 4);
    tj_e_store(e, LLVMGetParam(f, 2), tj_e_gep(e, e->i8, err, tj_e_i64(e, offsetof(struct tj_data_error, index))), 8);
    tj_e_store(e, LLVMGetParam(f, 3), tj_e_gep(e, e->i8, err, tj_e_i64(e, offsetof(struct tj_data_error, extent))), 8);
    tj_lv done = LLVMBuildStore(e->b, tj_e_i32(e, 2), set);
    LLVMSetOrdering(done, LLVMAtomicOrderingRelease);
    LLVMSetAlignment(done, 4);
    tj_e_end(e, &s);
    return tj_e_nested_end(e, &outer);
}

static tj_lv lane_of(struct gen *g, unsigned i, tj_lv lane) {
    return g->varies[i] ? LLVMBuildExtractElement(g->e->b, g->vals[i].v, lane, "") : tj_l_scalar(g, i);
}

static void check(struct gen *g, unsigned i) {
    struct tj_emit *e = g->e;
    const struct tj_kins *s = &g->k->ins[i];
    tj_lv bad, lane = NULL;
    if (g->varies[i]) {
        bad = tj_l_live(g, LLVMBuildNot(e->b, tj_l_vector(g, s->in[0]), ""));
        bad = s->in[3] != TJ_KNONE ? LLVMBuildAnd(e->b, bad, tj_l_vector(g, s->in[3]), "") : bad;
    } else {
        bad = LLVMBuildNot(e->b, tj_l_scalar(g, s->in[0]), "");
        bad = s->in[3] != TJ_KNONE ? LLVMBuildAnd(e->b, bad, tj_l_scalar(g, s->in[3]), "") : bad;
    }
    tj_lv f = check_function(e);
    struct tj_if_state c;
    tj_e_if(e, &c, tj_e_any(e, bad), true, false);
    if (g->varies[i]) {
        tj_lt t = LLVMIntTypeInContext(e->ctx, g->lanes);
        tj_lv args[] = {LLVMBuildBitCast(e->b, bad, t, ""), LLVMConstInt(e->i1, 1, 0)};
        lane = LLVMBuildZExt(e->b, tj_e_call(e, "llvm.cttz", &t, 1, args, 2), e->i32, "");
    }
    tj_lv call[] = {g->args, tj_e_i64(e, s->imm), lane_of(g, s->in[1], lane),
                    s->in[2] == TJ_KNONE ? tj_e_i64(e, 0) : lane_of(g, s->in[2], lane)};
    (void)tj_e_invoke(e, f, call, 4);
    tj_e_end(e, &c);
}

static tj_lv scalar_argument(struct gen *g, const struct tj_kins *s) {
    struct tj_emit *e = g->e;
    tj_lv p = tj_e_gep(e, e->i64, g->svals, tj_e_i64(e, s->imm));
    switch (s->dtype) {
    case TRACE_F64: return tj_e_load(e, e->f64, p, 8);
    case TRACE_F16:
    case TRACE_BF16:
    case TRACE_F32: return LLVMBuildFPTrunc(e->b, tj_e_load(e, e->f64, p, 8), e->f32, "");
    case TRACE_I64: return tj_e_load(e, e->i64, p, 8);
    case TRACE_BOOL: return LLVMBuildICmp(e->b, LLVMIntNE, tj_e_load(e, e->i64, p, 8), tj_e_i64(e, 0), "");
    default: return LLVMBuildTrunc(e->b, tj_e_load(e, e->i64, p, 8), tj_e_value_type(e, s->dtype), "");
    }
}

static tj_lv constant(struct gen *g, const struct tj_kins *s) {
    tj_lt t = tj_e_value_type(g->e, s->dtype);
    switch (s->dtype) {
    case TRACE_F64:
    case TRACE_F32:
    case TRACE_F16:
    case TRACE_BF16: {
        double v;
        memcpy(&v, &s->imm, 8);
        return tj_e_float(t, v);
    }
    case TRACE_BOOL: return tj_e_int(t, s->imm != 0);
    default: return tj_e_int(t, s->imm);
    }
}

static tj_lv cache_at(struct gen *g, unsigned i) {
    struct tj_emit *e = g->e;
    int64_t n = g->k->ndims ? (int64_t)g->cache[i] : 0;
    tj_lv row = tj_l_ival(g, g->k->extent[g->vdim]);
    row = LLVMBuildAnd(e->b, LLVMBuildAdd(e->b, row, tj_e_i64(e, TJ_ROW_PAD - 1), ""), tj_e_i64(e, -TJ_ROW_PAD), "");
    tj_lv off = LLVMBuildMul(e->b, row, tj_e_i64(e, n * TJ_ROW_ELEM), "");
    tj_lt m = tj_e_memory_type(
        e, g->k->ins[i].dtype == TRACE_F16 || g->k->ins[i].dtype == TRACE_BF16 ? TRACE_F32 : g->k->ins[i].dtype);
    return tj_e_gep(e, m, tj_e_gep(e, e->i8, g->scratch, off), g->j);
}

static void cache_store(struct gen *g, unsigned i) {
    struct tj_emit *e = g->e;
    tj_lv v = tj_l_vector(g, i);
    if (g->k->ins[i].dtype == TRACE_BOOL) {
        v = tj_l_to_memory(g, v, TRACE_BOOL);
    }
    tj_e_store(e, v, cache_at(g, i), 4);
}

static void cache_load(struct gen *g, unsigned i) {
    struct tj_emit *e = g->e;
    uint8_t dtype = g->k->ins[i].dtype;
    tj_lt m = dtype == TRACE_BOOL ? e->i8 : tj_e_value_type(e, dtype);
    tj_lv v = tj_e_load(e, tj_e_type(e, m, g->lanes), cache_at(g, i), 4);
    g->vals[i] = (struct value){.v = dtype == TRACE_BOOL ? tj_l_from_memory(g, v, dtype) : v};
}

static tj_lv bounded(struct gen *g, unsigned i);

void tj_l_emit(struct gen *g, unsigned i) {
    struct tj_emit *e = g->e;
    const struct tj_kins *s = &g->k->ins[i];
    tj_lv v = NULL;
    switch (s->op) {
    case TJ_KOP_CONST: v = constant(g, s); break;
    case TJ_KOP_SVAL: v = scalar_argument(g, s); break;
    case TJ_KOP_IVAL: v = tj_l_ival(g, (unsigned)s->imm); break;
    case TJ_KOP_COORD: v = tj_l_coordinate(g, i); break;
    case TJ_KOP_LOAD: v = tj_l_load(g, i); break;
    case TJ_KOP_STORE: tj_l_store(g, i); return;
    case TJ_KOP_CHECK: check(g, i); return;
    case TJ_KOP_REDUCE: tj_l_red_add(g, i); return;
    default: {
        if (g->bounds[i].lo || g->bounds[i].hi) {
            v = bounded(g, i);
            break;
        }
        tj_lv in[6];
        for (unsigned n = 0; n < 6; n++) {
            in[n] = s->in[n] == TJ_KNONE ? NULL : g->varies[i] ? tj_l_vector(g, s->in[n]) : tj_l_scalar(g, s->in[n]);
        }
        v = tj_e_pointwise(e, g->k, i, in, g->args);
    }
    }
    if (g->varies[i]) {
        g->vals[i] = (struct value){.v = v};
    } else {
        g->vals[i] = (struct value){.s = v, .v = g->splat[i] ? tj_e_splat(e->b, v, g->lanes) : NULL};
    }
}

// ---- clamps between scalars ---------------------------------------------------------------------------------------

// The operand of a maximum or minimum that is a scalar; -1: none, or both.
static int scalar_side(const struct gen *g, const struct tj_kins *s) {
    bool a = g->varies[s->in[0]], b = g->varies[s->in[1]];
    return a == b ? -1 : a ? 1 : 0;
}

// Makes the bounds of instruction i if all of them are known once `at` and `ready` are through.
static void make_bounds(struct gen *g, unsigned i, enum place at, unsigned ready) {
    struct tj_emit *e = g->e;
    LLVMBuilderRef w = e->b;
    const struct tj_kins *s = &g->k->ins[i];
    bool both = s->op == TJ_OP_CLAMP;
    if ((!both && s->op != TJ_OP_MAXIMUM && s->op != TJ_OP_MINIMUM) || !g->needed[i] || !g->varies[i] ||
        !tj_is_float((tj_dtype)g->k->ins[s->in[0]].dtype)) {
        return;
    }
    int side = both ? -1 : scalar_side(g, s);
    tj_kv lo = both ? s->in[1] : s->op == TJ_OP_MAXIMUM && side >= 0 ? s->in[side] : TJ_KNONE;
    tj_kv hi = both ? s->in[2] : s->op == TJ_OP_MINIMUM && side >= 0 ? s->in[side] : TJ_KNONE;
    unsigned last = 0, when = 0;
    for (int n = 0; n < 2; n++) {
        tj_kv v = n ? hi : lo;
        if (v != TJ_KNONE) {
            if (g->varies[v] || tj_l_inner(g, v)) {
                return;
            }
            last = g->place[v] > last ? g->place[v] : last;
            when = g->ready[v] > when ? g->ready[v] : when;
        }
    }
    if ((lo == TJ_KNONE && hi == TJ_KNONE) || last != at || when != ready) {
        return;
    }
    bool f64 = g->k->ins[s->in[0]].dtype == TRACE_F64;
    tj_lt t = f64 ? e->i64 : e->i32;
    int64_t sign = f64 ? INT64_MIN : (int64_t)0x80000000;
    tj_lv all = LLVMConstAllOnes(t), none = LLVMConstNull(t), and_mask = all, or_mask = none;
    if (lo != TJ_KNONE) {
        tj_lv x = tj_l_scalar(g, lo), zero = LLVMBuildICmp(w, LLVMIntEQ, tj_e_bits(e, x), none, "");
        and_mask = LLVMBuildSelect(w, zero, tj_e_int(t, ~sign), all, ""); // max(-0, +0) is +0
        or_mask = LLVMBuildSelect(w, LLVMBuildFCmp(w, LLVMRealUNO, x, x, ""), all, none, "");
        g->bounds[i].lo = tj_e_splat(w, x, g->lanes);
    }
    if (hi != TJ_KNONE) {
        tj_lv x = tj_l_scalar(g, hi), zero = LLVMBuildICmp(w, LLVMIntEQ, tj_e_bits(e, x), tj_e_int(t, sign), "");
        tj_lv m = LLVMBuildSelect(w, zero, tj_e_int(t, sign), none, ""); // min(+0, -0) is -0
        or_mask = LLVMBuildOr(w, or_mask, m, "");
        or_mask = LLVMBuildSelect(w, LLVMBuildFCmp(w, LLVMRealUNO, x, x, ""), all, or_mask, "");
        g->bounds[i].hi = tj_e_splat(w, x, g->lanes);
    }
    g->bounds[i].and_mask = tj_e_splat(w, and_mask, g->lanes);
    g->bounds[i].or_mask = tj_e_splat(w, or_mask, g->lanes);
}

static tj_lv bounded(struct gen *g, unsigned i) {
    struct tj_emit *e = g->e;
    LLVMBuilderRef w = e->b;
    const struct tj_kins *s = &g->k->ins[i];
    const struct bounds *k = &g->bounds[i];
    int side = s->op == TJ_OP_CLAMP ? 1 : scalar_side(g, s);
    tj_lv x = tj_l_vector(g, s->in[side == 0 ? 1 : 0]);
    if (k->lo) {
        x = LLVMBuildSelect(w, LLVMBuildFCmp(w, LLVMRealOGT, k->lo, x, ""), k->lo, x, "");
        x = tj_e_unbits(e, LLVMBuildAnd(w, tj_e_bits(e, x), k->and_mask, ""));
    }
    if (k->hi) {
        x = LLVMBuildSelect(w, LLVMBuildFCmp(w, LLVMRealOLT, k->hi, x, ""), k->hi, x, "");
    }
    return tj_e_unbits(e, LLVMBuildOr(w, tj_e_bits(e, x), k->or_mask, ""));
}

// Instructions of a place outside the passes that can be computed after `ready` of them.
void tj_l_stage(struct gen *g, enum place at, unsigned ready) {
    for (unsigned i = 0; i < g->k->nins; i++) {
        unsigned op = g->k->ins[i].op;
        if (g->place[i] == at && g->ready[i] == ready && g->needed[i] && op != TJ_KOP_REDUCE &&
            !(g->phase == FIRST && op == TJ_KOP_STORE)) { // the second phase stores what is a row's
            tj_l_emit(g, i);
        }
    }
    for (unsigned i = 0; i < g->k->nins; i++) {
        make_bounds(g, i, at, ready);
    }
}

// Pointers of the accesses that inner places use, as far as they are known at this place.
void tj_l_bases(struct gen *g, enum place at) {
    for (unsigned a = 0; a < g->k->naccess; a++) {
        if (g->acc[a].used && !g->acc[a].turned) {
            g->acc[a].base = tj_l_base(g, a, at);
            g->acc[a].level = (uint8_t)at;
        }
    }
}

// ---- bodies -------------------------------------------------------------------------------------------------------

static uint8_t need(const struct gen *g, unsigned i) { return g->need[(size_t)g->pass * g->k->nins + i]; }

static void body(struct gen *g, enum place at) {
    for (unsigned i = 0; i < g->k->nins; i++) {
        uint8_t n = need(g, i);
        if (!n || (g->place[i] != at && !(at == AT_BODY && g->k->ins[i].op == TJ_KOP_REDUCE))) {
            continue;
        }
        if (n & 2) {
            cache_load(g, i);
            continue;
        }
        tj_l_emit(g, i);
        if (n & 4) {
            cache_store(g, i);
        }
    }
}

static void set_tail(struct gen *g, tj_lv left) {
    struct tj_emit *e = g->e;
    g->left = left;
    tj_lv n = tj_e_splat(e->b, LLVMBuildTrunc(e->b, left, e->i32, ""), g->lanes);
    g->tail = LLVMBuildICmp(e->b, LLVMIntSLT, tj_e_iota(e, e->i32, g->lanes), n, "");
}

static void clear_tail(struct gen *g) { g->tail = g->left = NULL; }

// Unmasked accesses of consecutive elements go through staging buffers at a row's end.
static void find_staged(struct gen *g) {
    for (unsigned a = 0; a < g->k->naccess; a++) {
        g->acc[a].in = g->acc[a].out = false;
        g->acc[a].ptr = g->acc[a].real = NULL;
    }
    for (unsigned i = 0; i < g->k->nins; i++) {
        const struct tj_kins *s = &g->k->ins[i];
        if (!(need(g, i) & 1) || g->place[i] != AT_BODY || g->acc[tj_l_has_access(s->op) ? s->imm : 0].gather) {
            continue;
        }
        bool unit = tj_l_has_access(s->op) && (g->k->access[s->imm].stride[g->vdim] == 1 || g->acc[s->imm].turned);
        if (s->op == TJ_KOP_LOAD && unit && s->in[0] == TJ_KNONE) {
            g->acc[s->imm].in = true;
        } else if (s->op == TJ_KOP_STORE && unit && s->in[1] == TJ_KNONE) {
            g->acc[s->imm].out = true;
        }
    }
}

static bool wants_mask(const struct gen *g) {
    for (unsigned i = 0; i < g->k->nins; i++) {
        const struct tj_kins *s = &g->k->ins[i];
        if (!(need(g, i) & 1) || (g->place[i] != AT_BODY && s->op != TJ_KOP_REDUCE)) {
            continue;
        }
        if (s->op == TJ_KOP_REDUCE || s->op == TJ_KOP_CHECK ||
            ((s->op == TJ_KOP_LOAD || s->op == TJ_KOP_STORE) && !(g->acc[s->imm].in || g->acc[s->imm].out))) {
            return true;
        }
        if ((s->op == TJ_KOP_LOAD && s->in[0] != TJ_KNONE) || (s->op == TJ_KOP_STORE && s->in[1] != TJ_KNONE)) {
            return true;
        }
    }
    return false;
}

// masks: a tail of its own, where masked moves need no staging.
static void stage_all(struct gen *g, tj_lv at, bool out, bool masks) {
    for (unsigned a = 0; a < g->k->naccess; a++) {
        if (masks && tj_l_masks(g, g->k->access[a].dtype)) {
            continue;
        }
        if (out && g->acc[a].out) {
            tj_l_stage_out(g, a, at);
        } else if (!out && g->acc[a].in) {
            tj_l_stage_in(g, a, at);
        }
    }
}

static tj_lv staged_pointer(struct gen *g, unsigned a, tj_lv at) {
    return tj_e_gep(g->e, tj_e_memory_type(g->e, g->k->access[a].dtype), g->acc[a].stage,
                    LLVMBuildNeg(g->e->b, at, ""));
}

static tj_lv base_number(struct gen *g, tj_lv line) { return line ? LLVMBuildAdd(g->e->b, line, g->j, "") : g->j; }

// The body twice: whole vectors, then the tail.
static void vectors_split(struct gen *g, tj_lv lo, tj_lv main_end, tj_lv hi, tj_lv line) {
    struct tj_emit *e = g->e;
    struct tj_loop_state l;
    tj_e_loop(e, &l, lo, main_end, tj_e_i64(e, g->lanes), "body");
    g->j = l.i;
    g->number = base_number(g, line);
    body(g, AT_BODY);
    tj_e_loop_end(e, &l);
    struct tj_if_state s;
    tj_e_if(e, &s, LLVMBuildICmp(e->b, LLVMIntSLT, main_end, hi, ""), false, false);
    set_tail(g, LLVMBuildSub(e->b, hi, main_end, ""));
    stage_all(g, main_end, false, true);
    for (unsigned a = 0; a < g->k->naccess; a++) {
        if (g->acc[a].in || g->acc[a].out) {
            g->acc[a].ptr = tj_l_masks(g, g->k->access[a].dtype) ? NULL : staged_pointer(g, a, main_end);
        }
    }
    g->j = main_end;
    g->number = base_number(g, line);
    tj_lv direct = g->direct;
    g->direct = NULL;
    body(g, AT_BODY);
    g->direct = direct;
    stage_all(g, main_end, true, true);
    clear_tail(g);
    tj_e_end(e, &s);
}

// One body in a loop that runs over whole vectors, then, pointed at the staging buffers, once more for the tail.
static void vectors_shared(struct gen *g, tj_lv lo, tj_lv main_end, tj_lv hi, tj_lv line) {
    struct tj_emit *e = g->e;
    LLVMBuilderRef w = e->b;
    tj_lb pre = tj_e_here(e), rest = tj_e_block(e, "rest"), fill = tj_e_block(e, "fill"), head = tj_e_block(e, "body");
    tj_lb after = tj_e_block(e, "after"), drain = tj_e_block(e, "drain"), done = tj_e_block(e, "done");
    LLVMBuildCondBr(w, LLVMBuildICmp(w, LLVMIntSLT, lo, main_end, ""), head, rest);
    tj_e_at(e, rest);
    LLVMBuildCondBr(w, LLVMBuildICmp(w, LLVMIntSLT, main_end, hi, ""), fill, done);
    tj_e_at(e, fill);
    set_tail(g, LLVMBuildSub(w, hi, main_end, ""));
    stage_all(g, main_end, false, false);
    unsigned n = g->k->naccess;
    for (unsigned a = 0; a < n; a++) {
        if (g->acc[a].in || g->acc[a].out) {
            g->acc[a].ptr = staged_pointer(g, a, main_end);
        }
    }
    tj_lv fill_end = LLVMBuildAdd(w, main_end, tj_e_i64(e, g->lanes), "");
    clear_tail(g);
    tj_lb filled = tj_e_here(e);
    LLVMBuildBr(w, head);

    tj_e_at(e, head);
    g->j = LLVMBuildPhi(w, e->i64, "");
    tj_lv end = LLVMBuildPhi(w, e->i64, ""), tail = LLVMBuildPhi(w, e->i1, "");
    tj_lb from[] = {pre, filled};
    LLVMAddIncoming(g->j, (tj_lv[]){lo, main_end}, from, 2);
    LLVMAddIncoming(end, (tj_lv[]){main_end, fill_end}, from, 2);
    LLVMAddIncoming(tail, (tj_lv[]){LLVMConstInt(e->i1, 0, 0), LLVMConstInt(e->i1, 1, 0)}, from, 2);
    for (unsigned a = 0; a < n; a++) {
        if (g->acc[a].in || g->acc[a].out) {
            tj_lv phi = LLVMBuildPhi(w, e->ptr, "");
            LLVMAddIncoming(phi, (tj_lv[]){g->acc[a].real, g->acc[a].ptr}, from, 2);
            g->acc[a].ptr = phi;
        }
    }
    tj_lv direct = g->direct;
    if (direct) {
        g->direct = LLVMBuildAnd(w, direct, LLVMBuildNot(w, tail, ""), "");
    }
    g->number = base_number(g, line);
    if (wants_mask(g)) {
        set_tail(g, tj_e_binary(e, "llvm.smin", LLVMBuildSub(w, hi, g->j, ""), tj_e_i64(e, g->lanes)));
    }
    body(g, AT_BODY);
    clear_tail(g);
    g->direct = direct;
    tj_lv next = LLVMBuildAdd(w, g->j, tj_e_i64(e, g->lanes), "");
    tj_lb latch = tj_e_here(e);
    LLVMAddIncoming(g->j, &next, &latch, 1);
    LLVMAddIncoming(end, &end, &latch, 1);
    LLVMAddIncoming(tail, &tail, &latch, 1);
    for (unsigned a = 0; a < n; a++) {
        if (g->acc[a].in || g->acc[a].out) {
            LLVMAddIncoming(g->acc[a].ptr, &g->acc[a].ptr, &latch, 1);
        }
    }
    LLVMBuildCondBr(w, LLVMBuildICmp(w, LLVMIntSLT, next, end, ""), head, after);
    tj_e_at(e, after);
    LLVMBuildCondBr(w, tail, drain, rest);
    tj_e_at(e, drain);
    set_tail(g, LLVMBuildSub(w, hi, main_end, ""));
    stage_all(g, main_end, true, false);
    clear_tail(g);
    LLVMBuildBr(w, done);
    tj_e_at(e, done);
}

// Whether every streamed store of this row starts where aligned vectors do.
static tj_lv aligned(struct gen *g, tj_lv lo) {
    struct tj_emit *e = g->e;
    tj_lv bits = NULL;
    for (unsigned a = 0; a < g->k->naccess; a++) {
        if (g->acc[a].out) {
            tj_lv p = tj_e_gep(e, tj_e_memory_type(e, g->k->access[a].dtype), g->acc[a].real, lo);
            p = LLVMBuildPtrToInt(e->b, p, e->i64, "");
            bits = bits ? LLVMBuildOr(e->b, bits, p, "") : p;
        }
    }
    if (!bits) {
        return NULL;
    }
    bits = LLVMBuildAnd(e->b, bits, tj_e_i64(e, 63), "");
    return LLVMBuildICmp(e->b, LLVMIntEQ, bits, tj_e_i64(e, 0), "");
}

static void vectors(struct gen *g, tj_lv lo, tj_lv hi, tj_lv line) {
    struct tj_emit *e = g->e;
    find_staged(g);
    for (unsigned a = 0; a < g->k->naccess; a++) {
        struct access *acc = &g->acc[a];
        if (acc->in || acc->out) {
            acc->real = acc->ptr = acc->turned ? tj_l_tile_at(g, a) : tj_l_address(g, a, false);
            if (!acc->stage) {
                acc->stage =
                    tj_e_alloca(e, tj_e_type(e, tj_e_memory_type(e, g->k->access[a].dtype), g->lanes), 64, "stage");
            }
        }
    }
    g->direct = g->k->stream && g->k->kind == TJ_K_POINTWISE && e->x86 ? aligned(g, lo) : NULL;
    tj_lv n = LLVMBuildAnd(e->b, LLVMBuildSub(e->b, hi, lo, ""), tj_e_i64(e, -(int64_t)g->lanes), "");
    tj_lv main_end = LLVMBuildAdd(e->b, lo, n, "");
    if (tj_l_weight(g, g->pass) > (wants_mask(g) ? SHARE_MASKED_ABOVE : SHARE_ABOVE)) {
        vectors_shared(g, lo, main_end, hi, line);
    } else {
        vectors_split(g, lo, main_end, hi, line);
    }
    g->direct = NULL;
    for (unsigned a = 0; a < g->k->naccess; a++) {
        g->acc[a].ptr = g->acc[a].real = NULL;
    }
}

// ---- coordinates --------------------------------------------------------------------------------------------------

// Dims [from, to) of a linear index in variables, the last fastest.
static void coords_make(struct gen *g, unsigned from, unsigned to) {
    for (unsigned d = from; d < to; d++) {
        g->var[d] = tj_e_alloca(g->e, g->e->i64, 8, "coord");
    }
}

// index: NULL for 0, which may be outside of extents of 0.
static void coords_set(struct gen *g, unsigned from, unsigned to, tj_lv index) {
    struct tj_emit *e = g->e;
    for (unsigned d = to; d-- > from;) {
        if (!index) {
            tj_e_store(e, tj_e_i64(e, 0), g->var[d], 8);
            continue;
        }
        tj_lv ext = tj_l_ival(g, g->k->extent[d]);
        if (d == from) {
            tj_e_store(e, index, g->var[d], 8);
        } else {
            tj_lv q = LLVMBuildUDiv(e->b, index, ext, "");
            tj_e_store(e, LLVMBuildSub(e->b, index, LLVMBuildMul(e->b, q, ext, ""), ""), g->var[d], 8);
            index = q;
        }
    }
}

static void coords_load(struct gen *g, unsigned from, unsigned to) {
    for (unsigned d = from; d < to; d++) {
        g->coord[d] = tj_e_load(g->e, g->e->i64, g->var[d], 8);
    }
}

static void coords_next(struct gen *g, unsigned from, unsigned to) {
    struct tj_emit *e = g->e;
    tj_lv carry = tj_e_i64(e, 1);
    for (unsigned d = to; d-- > from;) {
        tj_lv c = LLVMBuildAdd(e->b, tj_e_load(e, e->i64, g->var[d], 8), carry, "");
        tj_lv over = LLVMBuildICmp(e->b, LLVMIntEQ, c, tj_l_ival(g, g->k->extent[d]), "");
        if (d > from) {
            c = LLVMBuildSelect(e->b, over, tj_e_i64(e, 0), c, "");
            carry = LLVMBuildZExt(e->b, over, e->i64, "");
        }
        tj_e_store(e, c, g->var[d], 8);
    }
}

static tj_lv product(struct gen *g, unsigned from, unsigned to) {
    tj_lv n = tj_e_i64(g->e, 1);
    for (unsigned d = from; d < to; d++) {
        n = LLVMBuildMul(g->e->b, n, tj_l_ival(g, g->k->extent[d]), "");
    }
    return n;
}

// ---- passes -------------------------------------------------------------------------------------------------------

static bool pass_has(const struct gen *g, bool tree) {
    for (unsigned n = 0; n < g->nred; n++) {
        if (g->k->ins[g->red[n].ins].pass == g->pass && (!tree || g->red[n].tree)) {
            return true;
        }
    }
    return false;
}

static bool pass_needs(const struct gen *g) {
    for (unsigned i = 0; i < g->k->nins; i++) {
        if (need(g, i)) {
            return true;
        }
    }
    return false;
}

// A block loop around whatever walks the elements [from, to) of the row.
static tj_lv block_loop(struct gen *g, struct tj_loop_state *l, tj_lv n) {
    struct tj_emit *e = g->e;
    tj_e_loop(e, l, tj_e_i64(e, 0), n, tj_e_i64(e, TJ_RED_BLOCK), "block");
    tj_lv end = LLVMBuildAdd(e->b, l->i, tj_e_i64(e, TJ_RED_BLOCK), "");
    return tj_e_binary(e, "llvm.smin", end, n);
}

static void rows_pass(struct gen *g) {
    struct tj_emit *e = g->e;
    const struct tj_kernel *k = g->k;
    tj_lv n = tj_l_ival(g, k->extent[g->vdim]);
    bool tree = pass_has(g, true), several = k->ndims - k->npar > 1;
    tj_l_red_reset(g);
    tj_l_red_start(g, false, n);
    tj_lv more = LLVMBuildICmp(e->b, LLVMIntSGT, n, tj_e_i64(e, TJ_RED_BLOCK), "");
    if (several) {
        unsigned last = k->ndims - 1;
        // Lines without elements are none: what a line needs is not looked at.
        tj_lv lines = product(g, k->npar, last), none = LLVMBuildICmp(e->b, LLVMIntEQ, n, tj_e_i64(e, 0), "");
        lines = LLVMBuildSelect(e->b, none, n, lines, "");
        tj_l_red_start(g, true, n);
        coords_set(g, k->npar, last, NULL);
        tj_e_store(e, tj_e_i64(e, 0), g->counter, 8);
        struct tj_loop_state l;
        tj_e_loop(e, &l, tj_e_i64(e, 0), lines, tj_e_i64(e, 1), "line");
        coords_load(g, k->npar, last);
        tj_lv seen = tj_e_load(e, e->i64, g->counter, 8);
        body(g, AT_MID);
        vectors(g, tj_e_i64(e, 0), n, seen);
        tj_e_store(e, LLVMBuildAdd(e->b, seen, n, ""), g->counter, 8);
        coords_next(g, k->npar, last);
        tj_e_loop_end(e, &l);
    } else if (tree) {
        struct tj_loop_state l;
        tj_lv end = block_loop(g, &l, n);
        tj_l_red_start(g, true, n);
        vectors(g, l.i, end, NULL);
        tj_l_red_block(g, LLVMBuildUDiv(e->b, l.i, tj_e_i64(e, TJ_RED_BLOCK), ""), more, n);
        tj_e_loop_end(e, &l);
    } else {
        vectors(g, tj_e_i64(e, 0), n, NULL);
    }
    tj_l_red_finish(g, more, n);
}

// Elements [lo, hi) of the reduced dims for one vector of columns.
static void column_elements(struct gen *g, tj_lv lo, tj_lv hi) {
    struct tj_emit *e = g->e;
    const struct tj_kernel *k = g->k;
    unsigned first = k->npar, last = k->ndims - 1;
    struct tj_loop_state l;
    tj_e_loop(e, &l, lo, hi, tj_e_i64(e, 1), "element");
    g->number = l.i;
    if (last - first == 1) {
        g->coord[first] = l.i;
    } else {
        coords_load(g, first, last);
    }
    body(g, AT_BODY);
    if (last - first > 1) {
        coords_next(g, first, last);
    }
    tj_e_loop_end(e, &l);
}

static void cols_pass(struct gen *g, tj_lv n) {
    struct tj_emit *e = g->e;
    const struct tj_kernel *k = g->k;
    bool tree = pass_has(g, true);
    tj_l_red_reset(g);
    tj_l_red_start(g, false, n);
    if (k->ndims - 1 - k->npar > 1) {
        coords_set(g, k->npar, k->ndims - 1u, NULL);
    }
    tj_lv more = LLVMBuildICmp(e->b, LLVMIntSGT, n, tj_e_i64(e, TJ_RED_BLOCK), "");
    if (tree) {
        struct tj_loop_state l;
        tj_lv end = block_loop(g, &l, n), count = LLVMBuildSub(e->b, end, l.i, "");
        tj_l_red_start(g, true, count);
        column_elements(g, l.i, end);
        tj_l_red_block(g, LLVMBuildUDiv(e->b, l.i, tj_e_i64(e, TJ_RED_BLOCK), ""), more, count);
        tj_e_loop_end(e, &l);
    } else {
        column_elements(g, tj_e_i64(e, 0), n);
    }
    tj_l_red_finish(g, more, n);
}

static void passes(struct gen *g, tj_lv count) {
    const struct tj_kernel *k = g->k;
    enum place outer = k->kind == TJ_K_COLS ? AT_MID : AT_ROW;
    unsigned npasses = k->npasses ? k->npasses : 1;
    for (unsigned p = 0; p < npasses; p++) {
        g->pass = p;
        if (!(g->phase == SECOND && p == 0) && pass_needs(g)) {
            if (k->kind == TJ_K_COLS) {
                cols_pass(g, count);
            } else {
                rows_pass(g);
            }
        }
        tj_l_stage(g, outer, p + 1);
    }
}

// ---- kernels ------------------------------------------------------------------------------------------------------

static void row_body(struct gen *g) {
    struct tj_emit *e = g->e;
    const struct tj_kernel *k = g->k;
    tj_l_stage(g, AT_ROW, 0);
    tj_l_bases(g, AT_ROW);
    if (k->kind == TJ_K_POINTWISE) {
        g->pass = 0;
        vectors(g, g->col0, g->col1, NULL);
    } else if (k->kind == TJ_K_ROWS) {
        passes(g, NULL);
    } else {
        tj_lv n = product(g, k->npar, k->ndims - 1u);
        struct tj_loop_state l;
        tj_e_loop(e, &l, g->col0, g->col1, tj_e_i64(e, g->lanes), "columns");
        g->j = l.i;
        set_tail(g, tj_e_binary(e, "llvm.smin", LLVMBuildSub(e->b, g->col1, l.i, ""), tj_e_i64(e, g->lanes)));
        tj_l_stage(g, AT_MID, 0);
        passes(g, n);
        clear_tail(g);
        tj_e_loop_end(e, &l);
    }
    for (unsigned a = 0; a < k->naccess; a++) {
        g->acc[a].base = NULL;
    }
}

// First phase of a split kernel: a row index stands for a block of a row.
static void block_body(struct gen *g) {
    struct tj_emit *e = g->e;
    tj_lv n = tj_l_ival(g, g->k->extent[g->vdim]), size = tj_e_i64(e, TJ_RED_BLOCK);
    tj_lv blocks = LLVMBuildUDiv(e->b, LLVMBuildAdd(e->b, n, tj_e_i64(e, TJ_RED_BLOCK - 1), ""), size, "");
    tj_lv row = LLVMBuildUDiv(e->b, g->row, blocks, "");
    tj_lv block = LLVMBuildSub(e->b, g->row, LLVMBuildMul(e->b, row, blocks, ""), "");
    tj_l_coords(g, row);
    tj_l_stage(g, AT_ROW, 0);
    tj_l_bases(g, AT_ROW);
    g->pass = 0;
    tj_lv lo = LLVMBuildMul(e->b, block, size, "");
    tj_lv hi = tj_e_binary(e, "llvm.smin", LLVMBuildAdd(e->b, lo, size, ""), n);
    tj_l_red_start(g, false, n);
    tj_l_red_start(g, true, n);
    vectors(g, lo, hi, NULL);
    tj_l_red_partial(g);
    for (unsigned a = 0; a < g->k->naccess; a++) {
        g->acc[a].base = NULL;
    }
}

// The row's own dims; the variables are there if they are several.
void tj_l_coords(struct gen *g, tj_lv row) {
    if (g->nrow == 1) {
        g->coord[0] = row;
    } else if (g->nrow) {
        coords_set(g, 0, g->nrow, row);
        coords_load(g, 0, g->nrow);
    }
}

void tj_l_rows(struct gen *g) {
    struct tj_emit *e = g->e;
    if (g->nrow > 1) {
        coords_set(g, 0, g->nrow, g->row0);
    }
    struct tj_loop_state l;
    tj_e_loop(e, &l, g->row0, g->row1, tj_e_i64(e, 1), "row");
    g->row = l.i;
    if (g->nrow == 1) {
        g->coord[0] = l.i;
    } else {
        coords_load(g, 0, g->nrow);
    }
    if (g->phase == SECOND) {
        g->pass = 0;
        tj_lv n = LLVMBuildAdd(e->b, tj_l_ival(g, g->k->extent[g->vdim]), tj_e_i64(e, TJ_RED_BLOCK - 1), "");
        tj_l_red_gather(g, LLVMBuildUDiv(e->b, n, tj_e_i64(e, TJ_RED_BLOCK), ""));
    }
    row_body(g);
    if (g->nrow > 1) {
        coords_next(g, 0, g->nrow);
    }
    tj_e_loop_end(e, &l);
}

// Rows that lie behind one another in every buffer are one long row: when the strides say so, whole rows [row0, row1)
// become columns of row 0, which the code that follows treats like any others. Short rows then run at full speed.
static void flatten(struct gen *g) {
    struct tj_emit *e = g->e;
    LLVMBuilderRef w = e->b;
    const struct tj_kernel *k = g->k;
    if (k->kind != TJ_K_POINTWISE || k->ndims < 2) {
        return;
    }
    for (unsigned i = 0; i < k->nins; i++) {
        const struct tj_kins *s = &k->ins[i];
        if (!g->needed[i] || !tj_l_has_access(s->op)) {
            continue;
        }
        const struct tj_kaccess *a = &k->access[s->imm];
        bool unit = a->stride[g->vdim] == 1, fixed = true;
        for (unsigned d = 0; d < k->ndims; d++) {
            fixed = fixed && !a->stride[d];
            unit = unit && a->stride[d];
        }
        if (s->op == TJ_KOP_COORD || a->nindirect || !(unit || fixed)) {
            return;
        }
    }
    tj_lv ext = tj_l_ival(g, k->extent[g->vdim]), size = ext;
    tj_lv flat = LLVMBuildICmp(w, LLVMIntEQ, g->col0, tj_e_i64(e, 0), "");
    flat = LLVMBuildAnd(w, flat, LLVMBuildICmp(w, LLVMIntEQ, g->col1, ext, ""), "");
    for (unsigned d = g->nrow; d-- > 0;) {
        for (unsigned a = 0, seen = 0; a < k->naccess; a++) {
            unsigned st = k->access[a].stride[d];
            if (k->access[a].stride[g->vdim] == 1 && st != seen) { // equal indices in a row are compared once
                flat = LLVMBuildAnd(w, flat, LLVMBuildICmp(w, LLVMIntEQ, tj_l_ival(g, st), size, ""), "");
                seen = st;
            }
        }
        size = d ? LLVMBuildMul(w, size, tj_l_ival(g, k->extent[d]), "") : size;
    }
    tj_lv lo = LLVMBuildMul(w, g->row0, ext, ""), hi = LLVMBuildMul(w, g->row1, ext, "");
    g->col0 = LLVMBuildSelect(w, flat, lo, g->col0, "");
    g->col1 = LLVMBuildSelect(w, flat, hi, g->col1, "");
    g->row0 = LLVMBuildSelect(w, flat, tj_e_i64(e, 0), g->row0, "");
    g->row1 = LLVMBuildSelect(w, flat, tj_e_i64(e, 1), g->row1, "");
}

static void load_arguments(struct gen *g) {
    struct tj_emit *e = g->e;
    const struct tj_kernel *k = g->k;
    LLVMBuilderRef b = e->b;
    e->b = e->eb;
#define FIELD(name) tj_e_load(e, e->ptr, tj_e_gep(e, e->i8, g->args, tj_e_i64(e, offsetof(struct tj_kargs, name))), 8)
    tj_lv bufs = FIELD(bufs), ivals = FIELD(ivals);
    g->svals = FIELD(svals);
    g->scratch = FIELD(scratch);
#undef FIELD
    for (unsigned i = 0; i < k->nbufs; i++) {
        g->buf[i] = tj_e_load(e, e->ptr, tj_e_gep(e, e->ptr, bufs, tj_e_i64(e, i)), 8);
    }
    for (unsigned i = 2; i < k->nivals; i++) {
        g->ival[i] = tj_e_load(e, e->i64, tj_e_gep(e, e->i64, ivals, tj_e_i64(e, i)), 8);
    }
    g->zero = tj_e_alloca(e, e->i64, 8, "zero");
    tj_e_store(e, tj_e_i64(e, 0), g->zero, 8);
    e->b = b;
}

static void function(struct gen *g, const char *symbol) {
    struct tj_emit *e = g->e;
    const struct tj_kernel *k = g->k;
    tj_lt params[] = {e->ptr, e->i64, e->i64, e->i64, e->i64};
    tj_lv f = tj_e_function(e, symbol, LLVMFunctionType(e->none, params, 5, 0), true);
    g->args = LLVMGetParam(f, 0);
    g->row0 = LLVMGetParam(f, 1);
    g->row1 = LLVMGetParam(f, 2);
    g->col0 = LLVMGetParam(f, 3);
    g->col1 = LLVMGetParam(f, 4);
    load_arguments(g);
    tj_l_red_prepare(g);
    unsigned last = k->ndims - 1u;
    if (g->nrow > 1) {
        coords_make(g, 0, g->nrow);
    }
    if (k->kind != TJ_K_POINTWISE && last - k->npar > (k->kind == TJ_K_COLS ? 1u : 0u)) {
        coords_make(g, k->npar, last);
        g->counter = tj_e_alloca(e, e->i64, 8, "counter");
    }
    tj_lv some = LLVMBuildICmp(e->b, LLVMIntSLT, g->row0, g->row1, "");
    if (k->kind != TJ_K_ROWS) {
        some = LLVMBuildAnd(e->b, some, LLVMBuildICmp(e->b, LLVMIntSLT, g->col0, g->col1, ""), "");
    }
    struct tj_if_state s;
    tj_e_if(e, &s, some, true, true);
    flatten(g);
    tj_l_stage(g, AT_ENTRY, 0);
    if (g->phase == FIRST) {
        struct tj_loop_state l;
        tj_e_loop(e, &l, g->row0, g->row1, tj_e_i64(e, 1), "row");
        g->row = l.i;
        block_body(g);
        tj_e_loop_end(e, &l);
    } else if (tj_l_wants_tiles(g)) {
        tj_l_tiles(g);
    } else {
        tj_l_rows(g);
    }
    if (k->stream && e->x86) {
        tj_e_call(e, "llvm.x86.sse.sfence", NULL, 0, NULL, 0);
    }
    tj_e_end(e, &s);
    LLVMBuildRetVoid(e->b);
    tj_e_function_end(e);
}

// Two registers a value: chains of dependent operations overlap, and loops cost half.
static unsigned choose_lanes(const struct gen *g) {
    const struct tj_kernel *k = g->k;
    if (k->kind == TJ_K_COLS) {
        return 16;
    }
    bool wide = true;
    for (unsigned i = 0; i < k->nins; i++) {
        wide = wide &&
               !(tj_l_inner(g, i) && g->needed[i] && (k->ins[i].dtype == TRACE_I64 || k->ins[i].dtype == TRACE_F64));
        wide = wide && !(tj_l_has_access(k->ins[i].op) && g->acc[k->ins[i].imm].gather);
    }
    return wide && g->e->width < 32 ? 2 * g->e->width : g->e->width;
}

static tj_status emit_phase(struct tj_emit *e, const struct tj_kernel *k, enum phase phase, const char *symbol) {
    unsigned npasses = k->npasses ? k->npasses : 1;
    size_t n = k->nins + 1u;
    size_t bytes =
        n * (sizeof(struct value) + sizeof(struct bounds) + sizeof(int) + sizeof(struct reduction) + 5 + npasses) +
        (k->naccess + 1u) * sizeof(struct access) + (k->nivals + k->nbufs + 4u) * sizeof(tj_lv) + 256;
    char *p = e->host->alloc(bytes);
    if (!p) {
        return TRACE_ERR_MEMORY;
    }
    memset(p, 0, bytes);
    char *at = p;
#define PART(field, count) (g.field = (void *)at, at += sizeof(*g.field) * (count), at += (size_t)(-(intptr_t)at & 7))
    struct gen g = {.e = e, .k = k, .phase = phase, .vdim = k->ndims - 1u};
    g.nrow = k->kind == TJ_K_POINTWISE ? k->ndims - 1u : k->npar;
    PART(vals, n);
    PART(bounds, n);
    PART(red, n);
    PART(acc, k->naccess + 1u);
    PART(ival, k->nivals + 2u);
    PART(buf, k->nbufs + 1u);
    PART(cache, n);
    PART(place, n);
    PART(ready, n);
    PART(varies, n);
    PART(needed, n);
    PART(splat, n);
    PART(need, n * npasses);
#undef PART
    tj_status st = tj_l_analyse(&g);
    if (!st) {
        g.lanes = choose_lanes(&g);
        if (phase != WHOLE) {
            const struct tj_kins *r = NULL;
            for (unsigned i = 0; i < k->nins; i++) {
                r = k->ins[i].op == TJ_KOP_REDUCE && g.needed[i] ? r ? &k->ins[0] : &k->ins[i] : r;
            }
            if (!r || r->op != TJ_KOP_REDUCE || r->pass || r->imm == TJ_RED_ARGMAX || r->imm == TJ_RED_ARGMIN ||
                k->ndims - k->npar != 1) {
                st = tj_l_refuse(&g, "split kernels have one reduction, of one dim", 0);
            }
        }
    }
    if (!st) {
        function(&g, symbol);
    }
    e->host->free(p);
    return st;
}

tj_status tj_emit_loop(struct tj_emit *e, const struct tj_kernel *k, const char *symbol) {
    bool cols = k->kind == TJ_K_COLS;
    if (k->kind > TJ_K_COLS || k->ndims < 1 || k->ndims > TJ_KDIMS || !k->nins ||
        (k->kind != TJ_K_POINTWISE && k->npar + (cols ? 2 : 1) > k->ndims)) {
        (void)snprintf(e->err, e->cap, "kernel %s: kind and dims", k->name ? k->name : "");
        return TRACE_ERR_COMPILE;
    }
    if (!(k->kind == TJ_K_ROWS && k->split)) {
        return emit_phase(e, k, WHOLE, symbol);
    }
    char second[80];
    (void)snprintf(second, sizeof second, "%s.2", symbol);
    tj_status st = emit_phase(e, k, FIRST, symbol);
    return st ? st : emit_phase(e, k, SECOND, second);
}
