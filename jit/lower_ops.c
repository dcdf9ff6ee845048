// jit/lower_ops.c: ops that move elements: flip, cat, pad, gather, pooling taps, arange, as masks and indirect loads.
#include <math.h>

#include "lower.h"

static uint32_t op2(struct tj_lower *l, int op, tj_dtype d, uint32_t a, uint32_t b) {
    return tj_lo_emit(l, op, d, a, b, TJ_LNONE, 0);
}
static uint32_t ci(struct tj_lower *l, int64_t v) { return tj_lo_const(l, TRACE_I64, 0, v); }

// value where cond, else 0 (a masked load already gives it).
static uint32_t or_zero(struct tj_lower *l, uint32_t cond, uint32_t v) {
    if (l->stop || l->ins[v].op == TJ_KOP_LOAD) {
        return v;
    }
    tj_dtype d = (tj_dtype)l->ins[v].dtype;
    return tj_lo_emit(l, TJ_OP_WHERE, d, cond, v, tj_lo_const(l, d, 0, 0), 0);
}

static uint32_t flip(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_gnode *f = TJ_NODE(l->s, n);
    int64_t mask = ((const struct tj_attr_mask *)f->attr)->mask;
    struct tj_map *r = tj_lo_map(l, m, m->rank);
    if (!r) {
        return TJ_LNONE;
    }
    tj_ex minus = tj_ex_const(l->s->x, -1);
    for (uint32_t j = 0; j < m->rank; j++) {
        if (mask >> j & 1 && f->dims[j] != 1) {
            r->d[j].off = tj_lo_bin(l, TJ_EX_SUB, f->dims[j], 1);
            tj_lo_add_scaled(l, &r->d[j], &m->d[j], minus);
        } else {
            r->d[j] = m->d[j];
        }
    }
    return tj_lo_value(l, f->in[0], r);
}

static uint32_t cat(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_gnode *c = TJ_NODE(l->s, n);
    uint32_t dim = (uint32_t)((const struct tj_attr_dim *)c->attr)->dim;
    uint32_t i = tj_lo_coord(l, &m->d[dim]), result = TJ_LNONE;
    tj_dtype d = tj_compute_dtype(c->dtype);
    tj_ex start = 0;
    for (uint32_t k = 0; k < c->nin && !l->stop; k++) {
        tj_ref o = c->in[k];
        const struct tj_gnode *p = TJ_NODE(l->s, o);
        tj_ex end = tj_lo_bin(l, TJ_EX_ADD, start, p->dims[dim]);
        l->trace = c->trace;
        uint32_t below = k + 1 < c->nin ? op2(l, TJ_OP_LT, TRACE_BOOL, i, tj_lo_ival(l, end)) : TJ_LNONE;
        uint32_t above = k ? op2(l, TJ_OP_GE, TRACE_BOOL, i, tj_lo_ival(l, start)) : TJ_LNONE;
        uint32_t here = below == TJ_LNONE ? above : tj_lo_and(l, above, below);
        struct tj_map *r = tj_lo_map(l, m, m->rank);
        if (!r) {
            return TJ_LNONE;
        }
        memcpy(r->d, m->d, m->rank * sizeof *m->d);
        r->mask = tj_lo_and(l, m->mask, here);
        if (p->dims[dim] == 1) {
            memset(&r->d[dim], 0, sizeof r->d[dim]);
        } else {
            r->d[dim].off = tj_lo_bin(l, TJ_EX_SUB, r->d[dim].off, start);
        }
        uint32_t v = tj_lo_value(l, o, r);
        l->trace = c->trace;
        result = result == TJ_LNONE ? v : tj_lo_emit(l, TJ_OP_WHERE, d, here, v, result, 0);
        start = end;
    }
    return result;
}

static uint32_t least(struct tj_lower *l, tj_dtype d) {
    return tj_lo_const(l, d, -INFINITY, d == TRACE_I32 ? INT32_MIN : d == TRACE_I64 ? INT64_MIN : 0);
}

static uint32_t pad(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_gnode *p = TJ_NODE(l->s, n);
    const struct tj_attr_padding *a = p->attr;
    const struct tj_exprs *ex = l->s->x;
    tj_ref x = p->in[0];
    const struct tj_gnode *s = TJ_NODE(l->s, x);
    tj_dtype d = tj_compute_dtype(p->dtype);
    struct tj_map *r = tj_lo_map(l, m, m->rank);
    if (!r) {
        return TJ_LNONE;
    }
    uint32_t inside = TJ_LNONE;
    for (uint32_t j = 0; j < m->rank && !l->stop; j++) {
        tj_ex e = s->dims[j], before = (tj_ex)a->lo[j], after = (tj_ex)a->hi[j];
        bool below = !tj_ex_is_const(ex, before) || tj_ex_hint(ex, before) > 0; // coordinates may lie outside
        bool above = !tj_ex_is_const(ex, after) || tj_ex_hint(ex, after) > 0;
        r->d[j] = m->d[j];
        r->d[j].off = tj_lo_bin(l, TJ_EX_SUB, r->d[j].off, before);
        if (!below && !above) {
            continue;
        }
        uint32_t i = tj_lo_coord(l, &r->d[j]), last = tj_lo_ival(l, tj_lo_bin(l, TJ_EX_SUB, e, 1));
        if (a->mode == TRACE_PAD_CONSTANT || p->nin == 1) {
            uint32_t lo = below ? op2(l, TJ_OP_GE, TRACE_BOOL, i, ci(l, 0)) : TJ_LNONE;
            uint32_t hi = above ? op2(l, TJ_OP_LT, TRACE_BOOL, i, tj_lo_ival(l, e)) : TJ_LNONE;
            lo = lo == TJ_LNONE ? hi : tj_lo_and(l, hi, lo);
            inside = tj_lo_and(l, inside, lo);
            continue;
        }
        if (a->mode == TRACE_PAD_REPLICATE) {
            i = op2(l, TJ_OP_MINIMUM, TRACE_I64, op2(l, TJ_OP_MAXIMUM, TRACE_I64, i, ci(l, 0)), last);
        } else { // reflect, without the border: |i|, then last - |last - i|
            i = tj_lo_emit(l, TJ_OP_ABS, TRACE_I64, i, TJ_LNONE, TJ_LNONE, 0);
            uint32_t over = op2(l, TJ_OP_SUB, TRACE_I64, last, i);
            over = tj_lo_emit(l, TJ_OP_ABS, TRACE_I64, over, TJ_LNONE, TJ_LNONE, 0);
            i = op2(l, TJ_OP_SUB, TRACE_I64, last, over);
        }
        memset(&r->d[j], 0, sizeof r->d[j]);
        r->d[j].nind = 1;
        r->d[j].ind[0] = i;
        r->d[j].indc[0] = 1;
    }
    for (uint32_t j = 0; j < m->rank; j++) {
        if (s->dims[j] == 1) {
            memset(&r->d[j], 0, sizeof r->d[j]);
        }
    }
    r->mask = inside == TJ_LNONE ? m->mask : tj_lo_and(l, m->mask, inside);
    uint32_t v = tj_lo_value(l, x, r);
    if (inside == TJ_LNONE || l->stop) {
        return v;
    }
    if (a->mode == TJ_G_PAD_ZERO) {
        return or_zero(l, inside, v);
    }
    const struct tj_map *none = tj_lo_map(l, m, 0);
    uint32_t fill = a->mode == TJ_G_PAD_LEAST ? least(l, d) : none ? tj_lo_value(l, p->in[1], none) : TJ_LNONE;
    l->trace = p->trace;
    return tj_lo_emit(l, TJ_OP_WHERE, d, inside, v, fill, 0);
}

// GATHER and INDEX_SELECT.
static uint32_t gather(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_gnode *g = TJ_NODE(l->s, n);
    uint32_t dim = (uint32_t)((const struct tj_attr_dim *)g->attr)->dim;
    tj_ref x = g->in[0], idx = g->in[1];
    tj_ex e = TJ_NODE(l->s, x)->dims[dim];
    const struct tj_map *im = m;
    if (g->op == TJ_OP_INDEX_SELECT || TJ_NODE(l->s, idx)->rank != m->rank) {
        struct tj_map *one = tj_lo_map(l, m, TJ_NODE(l->s, idx)->rank);
        if (!one) {
            return TJ_LNONE;
        }
        if (one->rank && TJ_NODE(l->s, idx)->dims[0] != 1) {
            one->d[0] = m->d[dim];
        }
        im = one;
    }
    uint32_t i = tj_lo_value(l, idx, im);
    l->trace = g->trace;
    uint32_t lo = op2(l, TJ_OP_GE, TRACE_BOOL, i, ci(l, 0)), ext = tj_lo_ival(l, e);
    uint32_t ok = tj_lo_and(l, lo, op2(l, TJ_OP_LT, TRACE_BOOL, i, ext));
    tj_lo_check(l, n, TJ_DATA_INDEX, ok, i, ext, m->mask);
    struct tj_map *r = tj_lo_map(l, m, m->rank);
    if (!r) {
        return TJ_LNONE;
    }
    memcpy(r->d, m->d, m->rank * sizeof *m->d);
    memset(&r->d[dim], 0, sizeof r->d[dim]);
    r->d[dim].nind = 1;
    r->d[dim].ind[0] = i;
    r->d[dim].indc[0] = 1;
    for (uint32_t j = 0; j < m->rank; j++) {
        if (j != dim && TJ_NODE(l->s, x)->dims[j] == 1) {
            memset(&r->d[j], 0, sizeof r->d[j]);
        }
    }
    r->mask = tj_lo_and(l, m->mask, ok);
    uint32_t v = tj_lo_value(l, x, r);
    l->trace = g->trace;
    return or_zero(l, ok, v);
}

static uint32_t arange(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_gnode *a = TJ_NODE(l->s, n);
    const struct tj_map *none = tj_lo_map(l, NULL, 0);
    tj_dtype d = (tj_dtype)a->dtype;
    if (!none) {
        return TJ_LNONE;
    }
    uint32_t start = tj_lo_value(l, a->in[0], none), step = tj_lo_value(l, a->in[1], none);
    l->trace = a->trace;
    uint32_t i = tj_lo_coord(l, &m->d[0]);
    if (d != TRACE_I64) {
        i = tj_lo_emit(l, TJ_OP_CAST, d, i, TJ_LNONE, TJ_LNONE, 0);
    }
    return op2(l, TJ_OP_ADD, d, start, op2(l, TJ_OP_MUL, d, i, step));
}

// The taps of a pooling window, in row-major order. Averages start from 0, so that taps in the padding add nothing.
static uint32_t taps(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_gnode *t = TJ_NODE(l->s, n);
    const struct tj_attr_taps *a = t->attr;
    const struct tj_gnode *x = TJ_NODE(l->s, t->in[0]);
    tj_dtype d = tj_compute_dtype(t->dtype);
    uint32_t h = (uint32_t)x->rank - 2, acc = TJ_LNONE;
    struct tj_exprs *e = l->s->x;
    if (!a->max) {
        acc = tj_lo_const(l, d, 0, 0);
    }
    for (int64_t k = 0; k < a->pool.kernel[0] * a->pool.kernel[1] && !l->stop; k++) {
        int64_t at[2] = {k / a->pool.kernel[1], k % a->pool.kernel[1]};
        struct tj_map *r = tj_lo_map(l, m, m->rank);
        if (!r) {
            return TJ_LNONE;
        }
        memcpy(r->d, m->d, m->rank * sizeof *m->d);
        uint32_t ok = TJ_LNONE;
        l->trace = t->trace;
        for (uint32_t j = 0; j < 2; j++) {
            struct tj_ixd *c = &r->d[h + j];
            memset(c, 0, sizeof *c);
            int64_t off = at[j] * a->pool.dilation[j] - a->pool.padding[j];
            c->off = tj_ex_const(e, off);
            tj_lo_add_scaled(l, c, &m->d[h + j], tj_ex_const(e, a->pool.stride[j]));
            if (a->guarded) {
                uint32_t i = tj_lo_coord(l, c);
                if (off < 0) {
                    ok = tj_lo_and(l, ok, op2(l, TJ_OP_GE, TRACE_BOOL, i, ci(l, 0)));
                }
                ok = tj_lo_and(l, ok, op2(l, TJ_OP_LT, TRACE_BOOL, i, tj_lo_ival(l, x->dims[h + j])));
            }
            if (x->dims[h + j] == 1) {
                memset(c, 0, sizeof *c);
            }
        }
        r->mask = ok == TJ_LNONE ? m->mask : tj_lo_and(l, m->mask, ok);
        uint32_t v = tj_lo_value(l, t->in[0], r);
        l->trace = t->trace;
        if (a->max) {
            if (acc == TJ_LNONE && ok != TJ_LNONE) {
                v = tj_lo_emit(l, TJ_OP_WHERE, d, ok, v, least(l, d), 0);
                acc = v;
            } else if (acc == TJ_LNONE) {
                acc = v;
            } else {
                uint32_t larger =
                    d == TRACE_BOOL ? op2(l, TJ_OP_LOGICAL_OR, d, acc, v) : op2(l, TJ_OP_MAXIMUM, d, acc, v);
                acc = ok == TJ_LNONE ? larger : tj_lo_emit(l, TJ_OP_WHERE, d, ok, larger, acc, 0);
            }
        } else {
            acc = op2(l, TJ_OP_ADD, d, acc, ok == TJ_LNONE ? v : or_zero(l, ok, v));
        }
    }
    return acc;
}

// Elements an average window of output (oh, ow) divides by, as PyTorch counts them.
static uint32_t count(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_attr_taps *a = TJ_NODE(l->s, n)->attr;
    struct tj_exprs *e = l->s->x;
    uint32_t product = TJ_LNONE;
    for (uint32_t j = 0; j < 2; j++) {
        tj_ex in = (tj_ex)(j ? a->w : a->h);
        int64_t p = a->pool.padding[j];
        struct tj_ixd c = {.off = tj_ex_const(e, -p)};
        tj_lo_add_scaled(l, &c, &m->d[j], tj_ex_const(e, a->pool.stride[j]));
        uint32_t start = tj_lo_coord(l, &c);
        uint32_t end = op2(l, TJ_OP_ADD, TRACE_I64, start, ci(l, a->pool.kernel[j]));
        uint32_t limit = tj_lo_ival(l, a->pool.include_pad ? tj_lo_bin(l, TJ_EX_ADD, in, tj_ex_const(e, p)) : in);
        end = op2(l, TJ_OP_MINIMUM, TRACE_I64, end, limit);
        if (!a->pool.include_pad) {
            start = op2(l, TJ_OP_MAXIMUM, TRACE_I64, start, ci(l, 0));
        }
        uint32_t span = op2(l, TJ_OP_SUB, TRACE_I64, end, start);
        product = product == TJ_LNONE ? span : op2(l, TJ_OP_MUL, TRACE_I64, product, span);
    }
    return op2(l, TJ_OP_MAXIMUM, TRACE_I64, product, ci(l, 1)); // a window of an empty plane sums to 0
}

uint32_t tj_lo_move(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    switch (TJ_NODE(l->s, n)->op) {
    case TJ_OP_COPY: return tj_lo_value(l, TJ_NODE(l->s, n)->in[0], m);
    case TJ_OP_FLIP: return flip(l, n, m);
    case TJ_OP_CAT: return cat(l, n, m);
    case TJ_OP_PAD: return pad(l, n, m);
    case TJ_OP_GATHER:
    case TJ_OP_INDEX_SELECT: return gather(l, n, m);
    case TJ_OP_ARANGE: return arange(l, n, m);
    case TJ_G_TAPS: return taps(l, n, m);
    case TJ_G_COUNT: return count(l, n, m);
    default: tj_lo_stop(l, TJ_L_FORCE, n); return TJ_LNONE;
    }
}
