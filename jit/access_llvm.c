// jit/access_llvm.c: loads and stores of loop kernels: addresses, masks, gathers, scatters, staging of row ends.
#include "loop_llvm.h"

enum { PREFETCH_ROWS = 12 };

static bool value_is(unsigned ival, unsigned v) { return ival == v; } // ivals 0 and 1 hold 0 and 1

enum place tj_l_dim_place(const struct gen *g, unsigned d) {
    const struct tj_kernel *k = g->k;
    if (d < g->nrow) {
        return AT_ROW;
    }
    if (k->kind == TJ_K_COLS) {
        return d == g->vdim ? AT_MID : AT_BODY;
    }
    return d == g->vdim ? AT_BODY : AT_MID;
}

static bool indirect_in_base(const struct gen *g, tj_kv v) {
    return g->place[v] <= AT_ROW && !g->ready[v] && !g->varies[v];
}

static tj_lv times(struct gen *g, tj_lv x, unsigned stride) {
    if (value_is(stride, 1)) {
        return x;
    }
    return LLVMBuildNSWMul(g->e->b, x, tj_l_ival(g, stride), "");
}

static tj_lv plus(struct gen *g, tj_lv x, tj_lv y) { return x ? LLVMBuildNSWAdd(g->e->b, x, y, "") : y; }

tj_lv tj_l_base(struct gen *g, unsigned a, enum place at) {
    const struct tj_kaccess *s = &g->k->access[a];
    tj_lv off = value_is(s->offset, 0) ? NULL : tj_l_ival(g, s->offset);
    for (unsigned d = 0; d < g->k->ndims; d++) {
        if (!value_is(s->stride[d], 0) && d != g->vdim && tj_l_dim_place(g, d) <= at) {
            off = plus(g, off, times(g, g->coord[d], s->stride[d]));
        }
    }
    for (unsigned i = 0; i < s->nindirect; i++) {
        if (!value_is(s->ind_stride[i], 0) && indirect_in_base(g, s->ind_value[i])) {
            off = plus(g, off, times(g, tj_l_scalar(g, s->ind_value[i]), s->ind_stride[i]));
        }
    }
    return off ? tj_e_gep(g->e, tj_e_memory_type(g->e, s->dtype), g->buf[s->buf], off) : g->buf[s->buf];
}

tj_lv tj_l_address(struct gen *g, unsigned a, bool lane0) {
    const struct tj_kaccess *s = &g->k->access[a];
    struct access *acc = &g->acc[a];
    struct tj_emit *e = g->e;
    tj_lv off = NULL, p = acc->base ? acc->base : g->buf[s->buf];
    if (!acc->base && !value_is(s->offset, 0)) {
        off = tj_l_ival(g, s->offset);
    }
    for (unsigned d = 0; d < g->k->ndims; d++) {
        if (value_is(s->stride[d], 0) || (acc->base && tj_l_dim_place(g, d) <= acc->level && d != g->vdim)) {
            continue;
        }
        if (d == g->vdim) {
            if (lane0) {
                off = plus(g, off, times(g, g->j, s->stride[d]));
            }
        } else {
            off = plus(g, off, times(g, g->coord[d], s->stride[d]));
        }
    }
    for (unsigned i = 0; i < s->nindirect; i++) {
        tj_kv v = s->ind_value[i];
        if (value_is(s->ind_stride[i], 0) || g->varies[v] || (acc->base && indirect_in_base(g, v))) {
            continue;
        }
        off = plus(g, off, times(g, tj_l_scalar(g, v), s->ind_stride[i]));
    }
    return off ? tj_e_gep(e, tj_e_memory_type(e, s->dtype), p, off) : p;
}

// The affine form of a COORD.
tj_lv tj_l_coordinate(struct gen *g, unsigned i) {
    const struct tj_kaccess *s = &g->k->access[g->k->ins[i].imm];
    struct tj_emit *e = g->e;
    tj_lv v = value_is(s->offset, 0) ? NULL : tj_l_ival(g, s->offset);
    for (unsigned d = 0; d < g->k->ndims; d++) {
        if (!value_is(s->stride[d], 0)) {
            v = plus(g, v, times(g, d == g->vdim ? g->j : g->coord[d], s->stride[d]));
        }
    }
    for (unsigned d = 0; d < s->nindirect; d++) {
        if (!value_is(s->ind_stride[d], 0) && !g->varies[s->ind_value[d]]) {
            v = plus(g, v, times(g, tj_l_scalar(g, s->ind_value[d]), s->ind_stride[d]));
        }
    }
    v = v ? v : tj_e_i64(e, 0);
    if (!g->varies[i]) {
        return v;
    }
    v = tj_e_splat(e->b, v, g->lanes);
    unsigned st = s->stride[g->vdim];
    if (!value_is(st, 0)) {
        tj_lv iota = tj_e_iota(e, e->i64, g->lanes);
        v = LLVMBuildAdd(
            e->b, v,
            value_is(st, 1) ? iota : LLVMBuildMul(e->b, iota, tj_e_splat(e->b, tj_l_ival(g, st), g->lanes), ""), "");
    }
    for (unsigned d = 0; d < s->nindirect; d++) {
        if (g->varies[s->ind_value[d]]) {
            tj_lv x = tj_l_vector(g, s->ind_value[d]);
            v = LLVMBuildAdd(e->b, v,
                             LLVMBuildMul(e->b, x, tj_e_splat(e->b, tj_l_ival(g, s->ind_stride[d]), g->lanes), ""), "");
        }
    }
    return v;
}

// ---- forms in memory ----------------------------------------------------------------------------------------------

tj_lv tj_l_from_memory(struct gen *g, tj_lv v, uint8_t dtype) {
    switch (dtype) {
    case TRACE_BOOL: return LLVMBuildICmp(g->e->b, LLVMIntNE, v, LLVMConstNull(LLVMTypeOf(v)), "");
    case TRACE_F16: return tj_e_half_to(g->e, v);
    case TRACE_BF16: return tj_e_bf16_to(g->e, v);
    default: return v;
    }
}

tj_lv tj_l_to_memory(struct gen *g, tj_lv v, uint8_t dtype) {
    switch (dtype) {
    case TRACE_BOOL: return LLVMBuildZExt(g->e->b, v, tj_e_as(g->e, v, g->e->i8), "");
    case TRACE_F16: return tj_e_half_from(g->e, v);
    case TRACE_BF16: return tj_e_bf16_from(g->e, v);
    default: return v;
    }
}

static unsigned bytes_of(uint8_t dtype) {
    switch (dtype) {
    case TRACE_BOOL:
    case TRACE_U8: return 1;
    case TRACE_F16:
    case TRACE_BF16: return 2;
    case TRACE_I64:
    case TRACE_F64: return 8;
    default: return 4;
    }
}

bool tj_l_masks(const struct gen *g, uint8_t dtype) {
    return g->e->level == TJ_CPU_AVX512 || (g->e->level == TJ_CPU_AVX2 && bytes_of(dtype) >= 4);
}

static tj_lv spill(struct gen *g, tj_lv v) {
    tj_lv p = tj_e_alloca(g->e, LLVMTypeOf(v), 64, "");
    tj_e_store(g->e, v, p, 64);
    return p;
}

// Runs a loop over the lanes set in mask (bytes in memory), or all below `count`; returns the lane index, s and l open.
struct lanes {
    struct tj_loop_state l;
    struct tj_if_state s;
    bool test;
};
static void lanes_open(struct gen *g, struct lanes *n, tj_lv mask) {
    struct tj_emit *e = g->e;
    tj_lv bytes = mask ? spill(g, LLVMBuildZExt(e->b, mask, tj_e_as(e, mask, e->i8), "")) : NULL;
    tj_e_loop(e, &n->l, tj_e_i64(e, 0), tj_e_i64(e, g->lanes), tj_e_i64(e, 1), "lane");
    n->test = mask;
    if (mask) {
        tj_lv m = tj_e_load(e, e->i8, tj_e_gep(e, e->i8, bytes, n->l.i), 1);
        tj_e_if(e, &n->s, LLVMBuildICmp(e->b, LLVMIntNE, m, LLVMConstNull(e->i8), ""), false, false);
    }
}
static void lanes_close(struct gen *g, struct lanes *n) {
    if (n->test) {
        tj_e_end(g->e, &n->s);
    }
    tj_e_loop_end(g->e, &n->l);
}

// Consecutive elements at p where the mask is set, 0 elsewhere.
static tj_lv masked_load(struct gen *g, tj_lv p, uint8_t dtype, tj_lv mask) {
    struct tj_emit *e = g->e;
    tj_lt m = tj_e_memory_type(e, dtype), t = tj_e_type(e, m, g->lanes);
    if (tj_l_masks(g, dtype)) {
        return tj_e_masked_load(e, t, p, bytes_of(dtype), mask);
    }
    struct tj_if_state s;
    tj_e_if(e, &s, tj_e_all(e, mask), true, true);
    tj_lv whole = tj_e_load(e, t, p, bytes_of(dtype));
    tj_e_else(e, &s);
    tj_lv buf = spill(g, LLVMConstNull(t));
    struct lanes n;
    lanes_open(g, &n, mask);
    tj_e_store(e, tj_e_load(e, m, tj_e_gep(e, m, p, n.l.i), bytes_of(dtype)), tj_e_gep(e, m, buf, n.l.i),
               bytes_of(dtype));
    lanes_close(g, &n);
    tj_lv part = tj_e_load(e, t, buf, 64);
    tj_e_end(e, &s);
    return tj_e_phi2(e, &s, whole, part);
}

static void masked_store(struct gen *g, tj_lv v, tj_lv p, uint8_t dtype, tj_lv mask) {
    struct tj_emit *e = g->e;
    tj_lt m = tj_e_memory_type(e, dtype);
    if (tj_l_masks(g, dtype)) {
        tj_e_masked_store(e, v, p, bytes_of(dtype), mask);
        return;
    }
    struct tj_if_state s;
    tj_e_if(e, &s, tj_e_all(e, mask), true, true);
    tj_e_store(e, v, p, bytes_of(dtype));
    tj_e_else(e, &s);
    tj_lv buf = spill(g, v);
    struct lanes n;
    lanes_open(g, &n, mask);
    tj_e_store(e, tj_e_load(e, m, tj_e_gep(e, m, buf, n.l.i), bytes_of(dtype)), tj_e_gep(e, m, p, n.l.i),
               bytes_of(dtype));
    lanes_close(g, &n);
    tj_e_end(e, &s);
}

// Offsets of the lanes from lane 0's address, in elements; lanes 0..: i64 vector.
static tj_lv lane_offsets(struct gen *g, const struct tj_kaccess *s) {
    struct tj_emit *e = g->e;
    unsigned st = s->stride[g->vdim];
    tj_lv off = NULL;
    if (!value_is(st, 0)) {
        off = tj_e_iota(e, e->i64, g->lanes);
        if (!value_is(st, 1)) {
            off = LLVMBuildMul(e->b, off, tj_e_splat(e->b, tj_l_ival(g, st), g->lanes), "");
        }
    }
    for (unsigned i = 0; i < s->nindirect; i++) {
        if (g->varies[s->ind_value[i]] && !value_is(s->ind_stride[i], 0)) {
            tj_lv v = tj_l_vector(g, s->ind_value[i]);
            if (!value_is(s->ind_stride[i], 1)) {
                v = LLVMBuildMul(e->b, v, tj_e_splat(e->b, tj_l_ival(g, s->ind_stride[i]), g->lanes), "");
            }
            off = off ? LLVMBuildAdd(e->b, off, v, "") : v;
        }
    }
    return off ? off : LLVMConstNull(LLVMVectorType(e->i64, g->lanes));
}

static bool varying_indirect(const struct gen *g, const struct tj_kaccess *s) {
    for (unsigned i = 0; i < s->nindirect; i++) {
        if (g->varies[s->ind_value[i]] && !value_is(s->ind_stride[i], 0)) {
            return true;
        }
    }
    return false;
}

// Lane by lane. Lanes that must not read read zeros.
static tj_lv gather(struct gen *g, unsigned a, tj_lv mask) {
    struct tj_emit *e = g->e;
    const struct tj_kaccess *s = &g->k->access[a];
    tj_lt m = tj_e_memory_type(e, s->dtype), t = tj_e_type(e, m, g->lanes);
    tj_lv p = tj_l_address(g, a, true), v = LLVMGetPoison(t);
    if (!mask && !varying_indirect(g, s)) {
        tj_lv step = tj_l_ival(g, s->stride[g->vdim]);
        for (unsigned l = 0; l < g->lanes; l++) {
            p = l ? tj_e_gep(e, m, p, step) : p;
            v = LLVMBuildInsertElement(e->b, v, tj_e_load(e, m, p, bytes_of(s->dtype)), tj_e_i32(e, (int32_t)l), "");
        }
        return v;
    }
    tj_lv off = lane_offsets(g, s);
    tj_lv ptrs = LLVMBuildGEP2(e->b, m, p, &off, 1, "");
    if (mask) {
        ptrs = LLVMBuildSelect(e->b, mask, ptrs, tj_e_splat(e->b, g->zero, g->lanes), "");
    }
    for (unsigned l = 0; l < g->lanes; l++) {
        tj_lv lane = LLVMBuildExtractElement(e->b, ptrs, tj_e_i32(e, (int32_t)l), "");
        v = LLVMBuildInsertElement(e->b, v, tj_e_load(e, m, lane, bytes_of(s->dtype)), tj_e_i32(e, (int32_t)l), "");
    }
    return v;
}

// Walking down columns the processor doesn't foresee the next pages.
static void prefetch(struct gen *g, const struct tj_kaccess *s, tj_lv p) {
    struct tj_emit *e = g->e;
    unsigned st = s->stride[g->vdim - 1];
    if (value_is(st, 0)) {
        return;
    }
    tj_lv ahead = tj_e_gep(e, tj_e_memory_type(e, s->dtype), p,
                           LLVMBuildMul(e->b, tj_l_ival(g, st), tj_e_i64(e, PREFETCH_ROWS), ""));
    tj_lv args[] = {ahead, tj_e_i32(e, 0), tj_e_i32(e, 3), tj_e_i32(e, 1)};
    (void)tj_e_call(e, "llvm.prefetch", &e->ptr, 1, args, 4);
}

tj_lv tj_l_load(struct gen *g, unsigned i) {
    const struct tj_kins *ins = &g->k->ins[i];
    unsigned a = (unsigned)ins->imm;
    const struct tj_kaccess *s = &g->k->access[a];
    struct access *acc = &g->acc[a];
    struct tj_emit *e = g->e;
    tj_lt m = tj_e_memory_type(e, s->dtype), t = tj_e_type(e, m, g->lanes);
    unsigned bytes = bytes_of(s->dtype);
    bool masked = ins->in[0] != TJ_KNONE;
    tj_lv v;
    bool spread = value_is(s->stride[g->vdim], 0) && !varying_indirect(g, s); // one address for all lanes
    if (spread) {
        tj_lv p = tj_l_address(g, a, false);
        if (!masked) {
            return tj_l_from_memory(g, tj_e_load(e, m, p, bytes), s->dtype);
        }
        if (!g->varies[ins->in[0]]) {
            p = LLVMBuildSelect(e->b, tj_l_scalar(g, ins->in[0]), p, g->zero, "");
            return tj_l_from_memory(g, tj_e_load(e, m, p, bytes), s->dtype);
        }
        tj_lv live = tj_l_live(g, tj_l_vector(g, ins->in[0]));
        p = LLVMBuildSelect(e->b, tj_e_any(e, live), p, g->zero, "");
        v = tj_e_splat(e->b, tj_e_load(e, m, p, bytes), g->lanes);
        return tj_l_from_memory(g, LLVMBuildSelect(e->b, live, v, LLVMConstNull(t), ""), s->dtype);
    }
    if (acc->gather) {
        tj_lv live = tj_l_live(g, masked ? tj_l_vector(g, ins->in[0]) : NULL);
        return tj_l_from_memory(g, gather(g, a, live), s->dtype);
    }
    if (!masked) {
        tj_lv base = acc->ptr ? acc->ptr : acc->real;
        tj_lv p = base ? tj_e_gep(e, m, base, g->j) : tj_l_address(g, a, true);
        if (g->k->kind == TJ_K_COLS && g->place[i] == AT_BODY) {
            prefetch(g, s, p);
        }
        v = acc->ptr || !g->tail ? tj_e_load(e, t, p, bytes) : masked_load(g, p, s->dtype, g->tail);
        return tj_l_from_memory(g, v, s->dtype);
    }
    tj_lv p = tj_l_address(g, a, true);
    if (g->varies[ins->in[0]]) {
        return tj_l_from_memory(g, masked_load(g, p, s->dtype, tj_l_live(g, tj_l_vector(g, ins->in[0]))), s->dtype);
    }
    struct tj_if_state c;
    tj_e_if(e, &c, tj_l_scalar(g, ins->in[0]), false, false);
    tj_lv some = g->tail ? masked_load(g, p, s->dtype, g->tail) : tj_e_load(e, t, p, bytes);
    tj_e_end(e, &c);
    return tj_l_from_memory(g, tj_e_phi2(e, &c, some, LLVMConstNull(t)), s->dtype);
}

static void scatter(struct gen *g, unsigned a, tj_lv v, tj_lv mask) {
    struct tj_emit *e = g->e;
    const struct tj_kaccess *s = &g->k->access[a];
    tj_lt m = tj_e_memory_type(e, s->dtype);
    tj_lv p = tj_l_address(g, a, true);
    if (!mask && !varying_indirect(g, s)) {
        tj_lv step = tj_l_ival(g, s->stride[g->vdim]);
        for (unsigned l = 0; l < g->lanes; l++) {
            p = l ? tj_e_gep(e, m, p, step) : p;
            tj_e_store(e, LLVMBuildExtractElement(e->b, v, tj_e_i32(e, (int32_t)l), ""), p, bytes_of(s->dtype));
        }
        return;
    }
    tj_lv offsets = spill(g, lane_offsets(g, s)), values = spill(g, v);
    struct lanes n;
    lanes_open(g, &n, mask);
    tj_lv off = tj_e_load(e, e->i64, tj_e_gep(e, e->i64, offsets, n.l.i), 8);
    tj_lv lane = tj_e_load(e, m, tj_e_gep(e, m, values, n.l.i), bytes_of(s->dtype));
    tj_e_store(e, lane, tj_e_gep(e, m, p, off), bytes_of(s->dtype));
    lanes_close(g, &n);
}

static void past_caches(struct gen *g, tj_lv v, tj_lv p) {
    struct tj_emit *e = g->e;
    tj_lv st = LLVMBuildStore(e->b, v, p);
    LLVMSetAlignment(st, e->level == TJ_CPU_AVX512 ? 64 : e->level == TJ_CPU_AVX2 ? 32 : 16);
    tj_lv one = tj_e_i32(e, 1);
    LLVMSetMetadata(st, LLVMGetMDKindIDInContext(e->ctx, "nontemporal", 11), LLVMMDNodeInContext(e->ctx, &one, 1));
}

void tj_l_store(struct gen *g, unsigned i) {
    const struct tj_kins *ins = &g->k->ins[i];
    unsigned a = (unsigned)ins->imm;
    const struct tj_kaccess *s = &g->k->access[a];
    struct access *acc = &g->acc[a];
    struct tj_emit *e = g->e;
    tj_lt m = tj_e_memory_type(e, s->dtype);
    unsigned bytes = bytes_of(s->dtype);
    bool masked = ins->in[1] != TJ_KNONE;
    struct tj_if_state c;
    if (g->place[i] <= AT_ROW || (g->k->kind != TJ_K_COLS && g->place[i] == AT_MID)) { // one element
        tj_lv v = tj_l_to_memory(g, tj_l_scalar(g, ins->in[0]), s->dtype), p = tj_l_address(g, a, false);
        if (masked) {
            tj_e_if(e, &c, tj_l_scalar(g, ins->in[1]), false, false);
        }
        tj_e_store(e, v, p, bytes);
        if (masked) {
            tj_e_end(e, &c);
        }
        return;
    }
    tj_lv v = tj_l_to_memory(g, tj_l_vector(g, ins->in[0]), s->dtype);
    if (acc->gather) {
        scatter(g, a, v, tj_l_live(g, masked ? tj_l_vector(g, ins->in[1]) : NULL));
        return;
    }
    if (!masked && acc->ptr) {
        tj_lv p = tj_e_gep(e, m, acc->ptr, g->j);
        if (g->direct && (g->lanes * bytes) % (e->level == TJ_CPU_AVX512 ? 64
                                               : e->level == TJ_CPU_AVX2 ? 32
                                                                         : 16) ==
                             0) {
            tj_e_if(e, &c, g->direct, true, true);
            past_caches(g, v, p);
            tj_e_else(e, &c);
            tj_e_store(e, v, p, bytes);
            tj_e_end(e, &c);
            return;
        }
        tj_e_store(e, v, p, bytes);
        return;
    }
    tj_lv p = acc->real ? tj_e_gep(e, m, acc->real, g->j) : tj_l_address(g, a, true);
    if (masked && g->varies[ins->in[1]]) {
        masked_store(g, v, p, s->dtype, tj_l_live(g, tj_l_vector(g, ins->in[1])));
        return;
    }
    if (masked) {
        tj_e_if(e, &c, tj_l_scalar(g, ins->in[1]), false, false);
    }
    if (g->tail) {
        masked_store(g, v, p, s->dtype, g->tail);
    } else {
        tj_e_store(e, v, p, bytes);
    }
    if (masked) {
        tj_e_end(e, &c);
    }
}

// ---- staging ------------------------------------------------------------------------------------------------------

// The end of a row, elements [at, at + left), goes through a buffer of one vector, so that the body needs no masks.
void tj_l_stage_in(struct gen *g, unsigned a, tj_lv at) {
    struct tj_emit *e = g->e;
    uint8_t dtype = g->k->access[a].dtype;
    tj_lt m = tj_e_memory_type(e, dtype), t = tj_e_type(e, m, g->lanes);
    tj_lv p = tj_e_gep(e, m, g->acc[a].real, at);
    if (tj_l_masks(g, dtype)) {
        tj_e_store(e, tj_e_masked_load(e, t, p, bytes_of(dtype), g->tail), g->acc[a].stage, 64);
        return;
    }
    tj_e_store(e, LLVMConstNull(t), g->acc[a].stage, 64);
    struct tj_loop_state l;
    tj_e_loop(e, &l, tj_e_i64(e, 0), g->left, tj_e_i64(e, 1), "in");
    tj_lv v = tj_e_load(e, m, tj_e_gep(e, m, p, l.i), bytes_of(dtype));
    tj_e_store(e, v, tj_e_gep(e, m, g->acc[a].stage, l.i), bytes_of(dtype));
    tj_e_loop_end(e, &l);
}

void tj_l_stage_out(struct gen *g, unsigned a, tj_lv at) {
    struct tj_emit *e = g->e;
    uint8_t dtype = g->k->access[a].dtype;
    tj_lt m = tj_e_memory_type(e, dtype), t = tj_e_type(e, m, g->lanes);
    tj_lv p = tj_e_gep(e, m, g->acc[a].real, at);
    if (tj_l_masks(g, dtype)) {
        tj_e_masked_store(e, tj_e_load(e, t, g->acc[a].stage, 64), p, bytes_of(dtype), g->tail);
        return;
    }
    struct tj_loop_state l;
    tj_e_loop(e, &l, tj_e_i64(e, 0), g->left, tj_e_i64(e, 1), "out");
    tj_lv v = tj_e_load(e, m, tj_e_gep(e, m, g->acc[a].stage, l.i), bytes_of(dtype));
    tj_e_store(e, v, tj_e_gep(e, m, p, l.i), bytes_of(dtype));
    tj_e_loop_end(e, &l);
}
