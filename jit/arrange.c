// jit/arrange.c: lowered instructions -> kernel: order and collapse of dims, rows or columns, levels, passes, caching.
#include "lower.h"

#include <stdio.h>

struct dim { // of the kernel: one or more iteration dims that go as one
    tj_ex ext;
    uint32_t k; // innermost iteration dim: its coefficients are the dim's
    bool red;
};
struct arrange {
    struct tj_lower *l;
    struct tj_arena *arena;
    struct tj_exprs *x;
    uint32_t n; // instructions
    bool *live; // reached from stores and checks
    bool *full;
    uint8_t *pass; // earliest
    bool *liveacc;
    struct dim d[TJ_KDIMS + 1];
    uint32_t nd;
    // output
    struct tj_kernel *k;
    struct tj_kins *out;
    struct tj_loc *locs;
    uint32_t nout, capout;
    uint16_t *row_at; // output instruction of a row value
    uint16_t *home;   // of a FULL value: where it was computed first
    uint16_t *dup;    // where it is in the current pass
    uint8_t *dup_pass;
    uint16_t *accmap;
    tj_ex *ivals;
    uint8_t *roles;
    uint32_t nivals, capivals;
    uint32_t *bufs;
    uint32_t nbufs;
    struct tj_scalar_arg *svals;
    uint32_t nsvals, nsites;
    tj_ref *sites;
    uint8_t npasses;
    bool cache; // row buffers are possible
    bool overflow;
};
enum { MAX_BUFS = 64, MAX_PASSES = 200, CACHE_COST = 6 };

uint32_t tj_op_cost(uint32_t op) {
    switch (op) {
    case TJ_OP_EXP:
    case TJ_OP_LOG:
    case TJ_OP_SIN:
    case TJ_OP_COS:
    case TJ_OP_TANH:
    case TJ_OP_ERF:
    case TJ_OP_SIGMOID:
    case TJ_OP_GELU:
    case TJ_OP_GELU_TANH:
    case TJ_OP_SILU:
    case TJ_OP_POW:
    case TJ_OP_SOFTPLUS:
    case TJ_OP_FMOD:
    case TJ_OP_REMAINDER: return 12;
    case TJ_OP_DIV:
    case TJ_OP_SQRT:
    case TJ_OP_RSQRT:
    case TJ_OP_FLOOR_DIVIDE:
    case TJ_OP_RECIPROCAL:
    case TJ_OP_RSQUARE:
    case TJ_OP_BATCH_NORM: return 5;
    default: return 1;
    }
}

static uint16_t own_cost(const struct tj_li *in) {
    // Never FULL, so that counting always gets on.
    bool argument = in->op == TJ_KOP_CONST || in->op == TJ_KOP_SVAL || in->op == TJ_KOP_IVAL;
    return argument ? 0 : (uint16_t)tj_op_cost(in->op);
}

static bool accesses(const struct tj_li *in) {
    return in->op == TJ_KOP_LOAD || in->op == TJ_KOP_STORE || in->op == TJ_KOP_COORD;
}

static void mark_live(struct arrange *a) {
    uint32_t v[8];
    for (uint32_t i = a->n; i-- > 0;) {
        const struct tj_li *in = &a->l->ins[i];
        a->live[i] = a->live[i] || in->op == TJ_KOP_STORE || in->op == TJ_KOP_CHECK;
        if (!a->live[i]) {
            continue;
        }
        for (uint32_t j = tj_lo_operands(a->l, i, v); j-- > 0;) {
            a->live[v[j]] = true;
        }
        if (accesses(in)) {
            a->liveacc[in->imm] = true;
        }
    }
}

// ---- dims ---------------------------------------------------------------------------------------------------------

static tj_ex coef(const struct arrange *a, uint32_t acc, const struct dim *d) {
    return d->k == UINT32_MAX ? 0 : a->l->acc[acc].coef[d->k];
}

static bool merges(struct arrange *a, const struct dim *outer, const struct dim *inner) {
    if (outer->red != inner->red) {
        return false;
    }
    for (uint32_t i = 0; i < a->l->nacc; i++) {
        if (a->liveacc[i] && coef(a, i, outer) != tj_ex_bin(a->x, TJ_EX_MUL, coef(a, i, inner), inner->ext)) {
            return false;
        }
    }
    return true;
}

// Merges neighbours in d[from, to) and returns the new end.
static uint32_t collapse(struct arrange *a, struct dim *d, uint32_t from, uint32_t to) {
    uint32_t n = from;
    for (uint32_t i = from; i < to; i++) {
        if (n > from && merges(a, &d[n - 1], &d[i])) {
            d[n - 1].ext = tj_ex_bin(a->x, TJ_EX_MUL, d[n - 1].ext, d[i].ext);
            d[n - 1].k = d[i].k;
        } else {
            d[n++] = d[i];
        }
    }
    return n;
}

static int64_t hint(const struct arrange *a, tj_ex e) { return tj_ex_hint(a->x, e); }

static int64_t total(const struct arrange *a, bool red) {
    int64_t n = 1;
    for (uint32_t i = 0; i < a->nd; i++) {
        if (a->d[i].red == red && __builtin_mul_overflow(n, hint(a, a->d[i].ext), &n)) {
            return INT64_MAX;
        }
    }
    return n;
}

// Element accesses that run along d: unit stride counts for, other strides against.
static int unit_score(const struct arrange *a, const struct dim *d) {
    int score = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct tj_li *in = &a->l->ins[i];
        if (!a->live[i] || !a->full[i] || (in->op != TJ_KOP_LOAD && in->op != TJ_KOP_STORE)) {
            continue;
        }
        tj_ex c = coef(a, (uint32_t)in->imm, d);
        score += c == 1 ? 2 : c == 0 ? 0 : -2;
    }
    return score;
}

static bool only_sums_care(const struct arrange *a) {
    for (uint32_t i = 0; i < a->n; i++) {
        const struct tj_li *in = &a->l->ins[i];
        if (a->live[i] && in->op == TJ_KOP_REDUCE && in->imm == TJ_RED_SUM && tj_is_float((tj_dtype)in->dtype)) {
            return false;
        }
    }
    return true;
}

// Elements that are added one after the other, down a column.
static bool chains(const struct arrange *a) {
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->live[i] && a->l->ins[i].op == TJ_KOP_REDUCE && a->l->ins[i].imm == TJ_RED_CHAIN) {
            return true;
        }
    }
    return false;
}

// Windows that slide along p are reduced along q: some load has unit stride along both.
static bool slides(const struct arrange *a, const struct dim *p, const struct dim *q) {
    for (uint32_t i = 0; i < a->n; i++) {
        const struct tj_li *in = &a->l->ins[i];
        if (a->live[i] && in->op == TJ_KOP_LOAD && coef(a, (uint32_t)in->imm, p) == 1 &&
            coef(a, (uint32_t)in->imm, q) == 1) {
            return true;
        }
    }
    return false;
}

// The order of the elements of a sum can't be kept over these dims: a value to materialise, so that they collapse.
static bool force_operand(struct arrange *a) {
    struct tj_sched *s = a->l->s;
    tj_ref last = TJ_NIL;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct tj_li *in = &a->l->ins[i];
        if (!a->live[i] || in->op != TJ_KOP_REDUCE || in->imm != TJ_RED_SUM) {
            continue;
        }
        last = in->value;
        tj_ref o = TJ_NODE(s, last)->in[0];
        bool inside = s->incone[o] == s->stamp || tj_is_alias(s, o);
        if (inside && !(s->flags[o] & TJ_S_FORCE) && TJ_NODE(s, o)->op != TJ_OP_SCALAR) {
            tj_lo_stop(a->l, TJ_L_FORCE, o);
            return true;
        }
    }
    (void)last;
    return false;
}

// Accesses that may be turned, as far as lowering knows: loads and stores of affine addresses without masks.
static bool turnable(const struct arrange *a, uint32_t i) {
    const struct tj_li *in = &a->l->ins[i];
    return a->live[i] &&
           ((in->op == TJ_KOP_LOAD && in->in[0] == TJ_LNONE) || (in->op == TJ_KOP_STORE && in->in[1] == TJ_LNONE)) &&
           a->l->acc[in->imm].nind == 0;
}

// Bytes an element that pass with unit stride along dim u; `v`, if any: that stride along it.
static int64_t unit_bytes(const struct arrange *a, const struct dim *u, const struct dim *v) {
    int64_t n = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        if (turnable(a, i) && coef(a, (uint32_t)a->l->ins[i].imm, u) == 1 &&
            (!v || coef(a, (uint32_t)a->l->ins[i].imm, v) > 1)) {
            n += (int64_t)tj_elem_bytes((tj_dtype)a->l->acc[a->l->ins[i].imm].dtype);
        }
    }
    return n;
}

// A store with unit stride along d that can't be turned.
static bool rigid_store(const struct arrange *a, const struct dim *d) {
    for (uint32_t i = 0; i < a->n; i++) {
        const struct tj_li *in = &a->l->ins[i];
        if (in->op == TJ_KOP_STORE && !turnable(a, i) && coef(a, (uint32_t)in->imm, d) == 1) {
            return true;
        }
    }
    return false;
}

static void move_to(struct dim *d, uint32_t from, uint32_t to) {
    struct dim x = d[from];
    memmove(&d[from], &d[from + 1], (to - from) * sizeof *d);
    d[to] = x;
}

// The last dim becomes the vector dim. One too short for that makes way for the dim that most accesses run along; then
// the dim along which most of what strides has unit stride goes next to it, so that it can be turned.
static void turn_dims(const struct arrange *a, struct dim *d, uint32_t n) {
    enum { SHORT = 16, LONG = 256 };
    if (n < 2) {
        return;
    }
    if (hint(a, d[n - 1].ext) < SHORT && unit_bytes(a, &d[n - 1], NULL) && !rigid_store(a, &d[n - 1])) {
        uint32_t best = UINT32_MAX;
        int64_t most = -1;
        for (uint32_t i = 0; i + 1 < n; i++) {
            int64_t b = unit_bytes(a, &d[i], NULL);
            if (hint(a, d[i].ext) >= SHORT && b >= most) {
                best = i;
                most = b;
            }
        }
        if (best != UINT32_MAX) {
            move_to(d, best, n - 1);
        }
    }
    uint32_t best = UINT32_MAX;
    int64_t most = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        int64_t b = unit_bytes(a, &d[i], &d[n - 1]);
        if (b && b >= most) {
            best = i;
            most = b;
        }
    }
    if (best == UINT32_MAX) {
        return;
    }
    move_to(d, best, n - 2);
    // Rows had better be long.
    int64_t row = hint(a, d[n - 1].ext), other = hint(a, d[n - 2].ext);
    if (row < LONG && other / 2 > row && unit_bytes(a, &d[n - 1], &d[n - 2]) && !rigid_store(a, &d[n - 2])) {
        move_to(d, n - 2, n - 1);
    }
}

// Order, kind and collapse. Sets k->kind, ndims, npar and d[].
static bool choose_dims(struct arrange *a, bool reduces) {
    struct tj_lower *l = a->l;
    struct tj_kernel *k = a->k;
    struct dim par[TJ_KDIMS], red[TJ_KDIMS + 1];
    uint32_t np = 0, nr = 0;
    for (uint32_t i = 0; i < l->niter; i++) {
        struct dim d = {l->ext[i], i, l->red[i]};
        if (d.red) {
            red[nr++] = d;
        } else {
            par[np++] = d;
        }
    }
    if (l->epi != TJ_NIL) {
        // Rows are the result's leading dims in order, columns its last dim; the pixels of a plane after a convolution.
        const struct tj_gnode *c = TJ_NODE(l->s, l->epi);
        tj_ex last = c->dims[c->rank - 1];
        if (c->op == TJ_OP_CONV2D && !reduces) {
            last = tj_ex_bin(a->x, TJ_EX_MUL, c->dims[c->rank - 2], last);
        }
        bool ok = last != 1;
        if (reduces) {
            nr = collapse(a, red, 0, nr);
            ok = ok && nr == 1 && red[0].ext == last;
            np = collapse(a, par, 0, np);
        } else {
            uint32_t at = np;
            tj_ex e = 1;
            while (at > 0 && e != last) {
                e = tj_ex_bin(a->x, TJ_EX_MUL, e, par[--at].ext);
            }
            ok = ok && e == last && collapse(a, par, at, np) == at + 1;
            if (ok) {
                uint32_t lead = collapse(a, par, 0, at);
                par[lead] = par[at];
                np = lead + 1;
            }
        }
        // The result's own access must be the identity over these dims.
        for (uint32_t i = 0; ok && i < l->nacc; i++) {
            if (!a->liveacc[i] || l->acc[i].buf != l->epi_buf) {
                continue;
            }
            tj_ex want = 1;
            for (uint32_t j = nr; j-- > 0;) {
                ok = ok && coef(a, i, &red[j]) == want;
                want = tj_ex_bin(a->x, TJ_EX_MUL, want, red[j].ext);
            }
            for (uint32_t j = np; j-- > 0;) {
                ok = ok && coef(a, i, &par[j]) == want;
                want = tj_ex_bin(a->x, TJ_EX_MUL, want, par[j].ext);
            }
            ok = ok && l->acc[i].off == 0 && l->acc[i].nind == 0;
        }
        if (!ok) {
            tj_lo_stop(l, TJ_L_FORCE, l->epi);
            return false;
        }
    }
    if (!reduces) {
        if (l->epi == TJ_NIL) {
            // Stores decide the order: by falling stride of the last one.
            for (uint32_t i = a->n; i-- > 0;) {
                if (l->ins[i].op != TJ_KOP_STORE) {
                    continue;
                }
                uint32_t acc = (uint32_t)l->ins[i].imm;
                for (uint32_t j = 1; j < np; j++) {
                    struct dim d = par[j];
                    uint32_t at = j;
                    for (; at > 0 && hint(a, coef(a, acc, &par[at - 1])) < hint(a, coef(a, acc, &d)); at--) {
                        par[at] = par[at - 1];
                    }
                    par[at] = d;
                }
                break;
            }
            np = collapse(a, par, 0, np);
            turn_dims(a, par, np);
        }
        if (np == 0) {
            par[np++] = (struct dim){1, UINT32_MAX, false};
        }
        memcpy(a->d, par, np * sizeof *par);
        a->nd = np;
        k->kind = TJ_K_POINTWISE;
        k->npar = k->ndims = (uint8_t)np;
        return true;
    }
    bool chain = chains(a);
    if (chain && l->epi != TJ_NIL) {
        tj_lo_stop(l, TJ_L_FORCE, l->epi);
        return false;
    }
    nr = collapse(a, red, 0, nr);
    if (l->epi == TJ_NIL) {
        np = collapse(a, par, 0, np);
    }
    if (np == 0 && chain) {
        par[np++] = (struct dim){1, UINT32_MAX, false};
    }
    if (nr == 0) {
        red[nr++] = (struct dim){1, UINT32_MAX, true};
    }
    memcpy(a->d, par, np * sizeof *par);
    memcpy(a->d + np, red, nr * sizeof *red);
    a->nd = np + nr;
    int64_t rows = total(a, false), elems = total(a, true);
    uint32_t best = UINT32_MAX;
    int best_score = 0;
    for (uint32_t i = 0; i < np; i++) {
        int s = unit_score(a, &par[i]);
        if (best == UINT32_MAX || s >= best_score) {
            best = i;
            best_score = s;
        }
    }
    int row_score = unit_score(a, &red[nr - 1]);
    bool cols = best != UINT32_MAX && best_score > row_score && hint(a, par[best].ext) > 1;
    cols = cols || (best != UINT32_MAX && elems <= 8 && rows >= 64 && nr == 1);
    cols = cols || chain || (best != UINT32_MAX && best_score == row_score && slides(a, &par[best], &red[nr - 1]));
    if (l->epi != TJ_NIL) {
        cols = false;
    }
    if (!cols && nr > 1 && !only_sums_care(a)) {
        // Several reduced dims, innermost along the vector: whole groups of 64 keep the order.
        tj_ex inner = red[nr - 1].ext;
        if (!(tj_ex_is_const(a->x, inner) && hint(a, inner) % 64 == 0)) {
            if (force_operand(a)) {
                return false;
            }
            cols = best != UINT32_MAX;
        }
    }
    if (cols) {
        struct dim v = par[best];
        memmove(&par[best], &par[best + 1], (np - best - 1) * sizeof *par);
        np = collapse(a, par, 0, np - 1);
        memcpy(a->d, par, np * sizeof *par);
        memcpy(a->d + np, red, nr * sizeof *red);
        a->d[np + nr] = v;
        a->nd = np + nr + 1;
        k->kind = TJ_K_COLS;
    } else {
        k->kind = TJ_K_ROWS;
        a->cache = nr == 1;
    }
    k->npar = (uint8_t)np;
    k->ndims = (uint8_t)a->nd;
    return true;
}

// ---- levels and passes --------------------------------------------------------------------------------------------

static void levels(struct arrange *a) {
    struct tj_lower *l = a->l;
    uint32_t v[8];
    for (uint32_t i = 0; i < a->n; i++) {
        const struct tj_li *in = &l->ins[i];
        bool full = false;
        uint32_t pass = 0, nv = tj_lo_operands(l, i, v);
        if (accesses(in)) {
            for (uint32_t k = 0; k < l->niter; k++) {
                full = full || (l->red[k] && l->acc[in->imm].coef[k]);
            }
        }
        for (uint32_t j = 0; j < nv; j++) {
            full = full || a->full[v[j]];
            uint32_t p = a->pass[v[j]] + (l->ins[v[j]].op == TJ_KOP_REDUCE);
            pass = p > pass ? p : pass;
        }
        a->full[i] = full && in->op != TJ_KOP_REDUCE;
        a->pass[i] = (uint8_t)(pass > MAX_PASSES ? MAX_PASSES : pass);
    }
}

// ---- output -------------------------------------------------------------------------------------------------------

// An integer argument. Arguments are shared within a role only: two extents that happen to be equal must not make
// another kernel than two that are not.
enum role { STRIDE, OFFSET = TJ_KDIMS, INDIRECT, VALUE, EXTENT };
static uint16_t ival(struct arrange *a, tj_ex e, unsigned role) {
    if (e <= 1) {
        return (uint16_t)e;
    }
    for (uint32_t i = 2; i < a->nivals; i++) {
        if (a->ivals[i] == e && a->roles[i] == role && role < EXTENT) {
            return (uint16_t)i;
        }
    }
    if (a->nivals >= a->capivals) {
        a->overflow = true;
        return 0;
    }
    a->ivals[a->nivals] = e;
    a->roles[a->nivals] = (uint8_t)role;
    return (uint16_t)a->nivals++;
}

static uint16_t put(struct arrange *a, const struct tj_kins *in, tj_ref node) {
    if (a->nout >= a->capout) {
        a->overflow = true;
        return 0;
    }
    a->out[a->nout] = *in;
    const struct tj_trace *t = a->l->s->g->t;
    a->locs[a->nout] = node != TJ_NIL && t->locs ? t->locs[node] : (struct tj_loc){0};
    return (uint16_t)a->nout++;
}

static uint16_t need(struct arrange *a, uint32_t i, uint32_t pass);

// Kernel argument of a program's buffer.
static uint16_t buffer(struct arrange *a, uint32_t buf) {
    uint32_t b = 0;
    while (b < a->nbufs && a->bufs[b] != buf) {
        b++;
    }
    if (b == MAX_BUFS) {
        a->overflow = true;
        return 0;
    }
    if (b == a->nbufs) {
        a->bufs[a->nbufs++] = buf;
    }
    return (uint16_t)b;
}

static uint16_t access_out(struct arrange *a, uint32_t acc, uint32_t pass, bool memory_access) {
    const struct tj_la *s = &a->l->acc[acc];
    struct tj_kaccess o = {0};
    o.dtype = s->dtype;
    o.offset = ival(a, s->off, OFFSET);
    for (uint32_t i = 0; i < a->nd; i++) {
        o.stride[i] = ival(a, coef(a, acc, &a->d[i]), STRIDE + i);
    }
    o.nindirect = (uint8_t)s->nind;
    for (uint32_t i = 0; i < s->nind; i++) {
        o.ind_value[i] = need(a, s->ind[i], pass);
        o.ind_stride[i] = ival(a, s->indc[i], INDIRECT);
    }
    o.buf = memory_access ? buffer(a, s->buf) : 0;
    for (uint32_t i = 0; i < a->k->naccess; i++) {
        if (memcmp(&a->k->access[i], &o, sizeof o) == 0) {
            return (uint16_t)i;
        }
    }
    a->k->access[a->k->naccess] = o;
    return a->k->naccess++;
}

static uint16_t instruction(struct arrange *a, uint32_t i, uint32_t pass, bool full) {
    const struct tj_li *in = &a->l->ins[i];
    struct tj_kins o = {
        .op = in->op, .dtype = in->dtype, .level = full ? TJ_FULL : TJ_ROWLEVEL, .pass = (uint8_t)pass, .imm = in->imm};
    for (int j = 0; j < 6; j++) {
        o.in[j] = in->in[j] == TJ_LNONE ? TJ_KNONE : need(a, in->in[j], pass);
    }
    switch (in->op) {
    case TJ_KOP_IVAL: o.imm = ival(a, (tj_ex)in->imm, VALUE); break;
    case TJ_KOP_SVAL:
        for (o.imm = 0; o.imm < a->nsvals; o.imm++) {
            if (memcmp(&a->svals[o.imm], &a->l->svals[in->imm], sizeof *a->svals) == 0) {
                break;
            }
        }
        if (o.imm == a->nsvals) {
            a->svals[a->nsvals++] = a->l->svals[in->imm];
        }
        break;
    case TJ_KOP_LOAD:
    case TJ_KOP_STORE:
    case TJ_KOP_COORD: o.imm = access_out(a, (uint32_t)in->imm, pass, in->op != TJ_KOP_COORD); break;
    case TJ_KOP_CHECK: {
        uint32_t site = 0;
        while (site < a->nsites && a->sites[site] != a->l->sites[in->imm & 0xffffff]) {
            site++;
        }
        if (site == a->nsites) {
            a->sites[a->nsites++] = a->l->sites[in->imm & 0xffffff];
        }
        o.imm = (in->imm & ~(int64_t)0xffffff) | site;
        break;
    }
    default: break;
    }
    return put(a, &o, in->node);
}

// Cost of computing a FULL value again now, what has a row buffer being cheap; stops counting above the limit.
static uint32_t cost_again(const struct arrange *a, uint32_t i, uint32_t sofar) {
    uint32_t v[8], cost = sofar + own_cost(&a->l->ins[i]);
    for (uint32_t j = 0, n = tj_lo_operands(a->l, i, v); j < n && cost <= CACHE_COST; j++) {
        if (!a->full[v[j]]) {
            continue;
        }
        bool kept = a->home[v[j]] != TJ_KNONE && a->out[a->home[v[j]]].flags & TJ_KF_CACHE;
        cost = kept ? cost + 1 : cost_again(a, v[j], cost);
    }
    return cost;
}

// Output instruction that holds value i in a pass.
static uint16_t need(struct arrange *a, uint32_t i, uint32_t pass) {
    if (!a->full[i]) {
        if (a->row_at[i] == TJ_KNONE) {
            a->row_at[i] = instruction(a, i, a->pass[i], a->k->kind == TJ_K_POINTWISE);
        }
        return a->row_at[i];
    }
    if (a->dup[i] != TJ_KNONE && a->dup_pass[i] == pass) {
        return a->dup[i];
    }
    if (a->home[i] != TJ_KNONE && a->cache && cost_again(a, i, 0) > CACHE_COST && a->l->ins[i].dtype != TRACE_BOOL) {
        a->out[a->home[i]].flags |= TJ_KF_CACHE;
        a->dup[i] = a->home[i];
        a->dup_pass[i] = (uint8_t)pass;
        return a->home[i];
    }
    uint16_t o = instruction(a, i, pass, true);
    if (a->home[i] == TJ_KNONE) {
        a->home[i] = o;
    }
    a->dup[i] = o;
    a->dup_pass[i] = (uint8_t)pass;
    return o;
}

static double cost_ns(const struct arrange *a) {
    static const double access_ns[] = {0.02, 0.12, 0.8, 0.25};
    double ns = 0;
    for (uint32_t i = 0; i < a->nout; i++) {
        const struct tj_kins *in = &a->out[i];
        if (in->level != TJ_FULL && in->op != TJ_KOP_REDUCE) {
            continue;
        }
        double w = in->dtype == TRACE_F64 || in->dtype == TRACE_I64 ? 2 : 1;
        switch (in->op) {
        case TJ_KOP_CONST:
        case TJ_KOP_SVAL:
        case TJ_KOP_IVAL:
        case TJ_KOP_COORD: break;
        case TJ_KOP_LOAD:
        case TJ_KOP_STORE:
            ns +=
                access_ns[a->k->access[in->imm].vec] * (double)tj_elem_bytes((tj_dtype)a->k->access[in->imm].dtype) / 4;
            break;
        default: {
            struct tj_li li = {.op = in->op};
            uint16_t c = own_cost(&li);
            ns += w * (c >= 12 ? 0.5 : c >= 5 ? 0.2 : 0.04);
        }
        }
    }
    return ns;
}

static const char *kernel_name(struct arrange *a) {
    char buf[96];
    const struct tj_segment *seg = a->l->s->g->seg;
    size_t n = (size_t)snprintf(buf, sizeof buf, "%.24s", seg->name ? seg->name : "op");
    uint16_t last = UINT16_MAX;
    for (uint32_t i = 0; i < a->nout && n < sizeof buf - 16; i++) {
        uint16_t op = a->out[i].op;
        const char *s = op == TJ_KOP_REDUCE ? "reduce" : op < TJ_OP_COUNT && op != TJ_OP_CAST ? tj_ops[op].name : NULL;
        if (s && op != last) {
            n += (size_t)snprintf(buf + n, sizeof buf - n, ".%.14s", s);
            last = op;
        }
    }
    if (last == UINT16_MAX) {
        (void)snprintf(buf + n, sizeof buf - n, ".copy");
    }
    return tj_arena_strdup(a->arena, buf);
}

static bool memory(struct arrange *a) {
    tj_lo_stop(a->l, TJ_L_MEMORY, TJ_NIL);
    return false;
}

static bool hazard(const struct arrange *a, uint32_t buf, const uint32_t *bufs, uint32_t n) {
    (void)a;
    for (uint32_t i = 0; i < n; i++) {
        if (bufs[i] == buf) {
            return true;
        }
    }
    return false;
}

static void emit_all(struct arrange *a, const uint32_t *hazard_bufs, uint32_t nhazard) {
    struct tj_lower *l = a->l;
    // Passes of stores and checks; stores into memory that is read as well come last.
    uint32_t npasses = 1;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct tj_li *in = &l->ins[i];
        if (a->live[i] &&
            (in->op == TJ_KOP_REDUCE || (a->full[i] && (in->op == TJ_KOP_STORE || in->op == TJ_KOP_CHECK))) &&
            a->pass[i] + 1u > npasses) {
            npasses = a->pass[i] + 1u;
        }
    }
    a->npasses = (uint8_t)npasses;
    for (uint32_t p = 0; p <= npasses && !a->overflow; p++) {
        for (uint32_t i = 0; i < a->n; i++) { // row values that are ready now
            const struct tj_li *in = &l->ins[i];
            if (a->live[i] && !a->full[i] && in->op != TJ_KOP_REDUCE && in->op != TJ_KOP_STORE && a->pass[i] == p) {
                (void)need(a, i, p);
            }
        }
        if (p == npasses) {
            break;
        }
        for (uint32_t i = 0; i < a->n; i++) {
            const struct tj_li *in = &l->ins[i];
            if (!a->live[i]) {
                continue;
            }
            if (in->op == TJ_KOP_REDUCE && a->pass[i] == p) {
                uint32_t v = in->in[0];
                uint16_t o = need(a, v, p);
                if (!a->full[v]) { // a row value is reduced: the same for every element
                    struct tj_kins lift = {.op = TJ_OP_CAST,
                                           .dtype = l->ins[v].dtype,
                                           .level = TJ_FULL,
                                           .pass = (uint8_t)p,
                                           .in = {o, TJ_KNONE, TJ_KNONE, TJ_KNONE, TJ_KNONE, TJ_KNONE}};
                    o = put(a, &lift, in->node);
                }
                struct tj_kins r = {.op = in->op,
                                    .dtype = in->dtype,
                                    .level = TJ_ROWLEVEL,
                                    .pass = (uint8_t)p,
                                    .imm = in->imm,
                                    .in = {o, TJ_KNONE, TJ_KNONE, TJ_KNONE, TJ_KNONE, TJ_KNONE}};
                a->row_at[i] = put(a, &r, in->node);
            } else if (in->op == TJ_KOP_CHECK && a->full[i] && a->pass[i] == p) {
                (void)need(a, i, p);
            }
        }
        // All values before any store.
        for (int stores = 0; stores < 2; stores++) {
            for (uint32_t i = 0; i < a->n; i++) {
                const struct tj_li *in = &l->ins[i];
                if (in->op != TJ_KOP_STORE || !a->full[i]) {
                    continue;
                }
                bool last = hazard(a, l->acc[in->imm].buf, hazard_bufs, nhazard);
                if ((last ? npasses - 1 : a->pass[i]) != p) {
                    continue;
                }
                if (stores) {
                    (void)need(a, i, p);
                } else {
                    uint32_t v[8];
                    for (uint32_t j = 0, nv = tj_lo_operands(l, i, v); j < nv; j++) {
                        (void)need(a, v[j], p);
                    }
                }
            }
        }
    }
    // Stores of row values, once a row, after everything.
    for (uint32_t i = 0; i < a->n; i++) {
        if (l->ins[i].op == TJ_KOP_STORE && !a->full[i]) {
            if (a->k->kind != TJ_K_POINTWISE) {
                a->pass[i] = (uint8_t)npasses;
            }
            (void)need(a, i, npasses);
        }
    }
}

// Strided accesses that go through transposed tiles, see jit/kernel.h.
static void mark_turned(struct arrange *a) {
    struct tj_kernel *k = a->k;
    uint32_t turned = 0;
    for (uint32_t x = 0; x < k->naccess && k->kind == TJ_K_POINTWISE && a->nd > 1 && turned < TJ_TURNED_MAX; x++) {
        struct tj_kaccess *c = &k->access[x];
        bool ok = c->vec == TJ_VEC_STRIDED && !c->nindirect && c->stride[a->nd - 2] == 1;
        for (uint32_t i = 0; i < a->nout && ok; i++) {
            const struct tj_kins *in = &a->out[i];
            if (in->op == TJ_KOP_COORD || in->op == TJ_KOP_LOAD || in->op == TJ_KOP_STORE) {
                ok = in->imm != x || (in->op != TJ_KOP_COORD && in->in[in->op == TJ_KOP_STORE] == TJ_KNONE);
            }
        }
        if (ok) {
            c->vec = TJ_VEC_TURNED;
            turned++;
        }
    }
}

static bool fill_loop(struct arrange *a, struct tj_loop *out) {
    struct tj_kernel *k = a->k;
    uint32_t vdim = a->nd - 1;
    // Which values differ along the vector dim.
    bool *varies = TJ_ARENA_NEW(a->arena, bool, a->nout + 1);
    if (!varies) {
        return memory(a);
    }
    for (uint32_t i = 0; i < a->nout; i++) {
        const struct tj_kins *in = &a->out[i];
        for (int j = 0; j < 6; j++) {
            varies[i] = varies[i] || (in->in[j] != TJ_KNONE && varies[in->in[j]]);
        }
        if (in->op == TJ_KOP_REDUCE && k->kind == TJ_K_ROWS) {
            varies[i] = false;
        }
        if (in->op == TJ_KOP_LOAD || in->op == TJ_KOP_COORD || in->op == TJ_KOP_STORE) {
            struct tj_kaccess *x = &k->access[in->imm];
            uint16_t s = x->stride[vdim];
            x->vec = s == 0 ? TJ_VEC_ZERO : s == 1 ? TJ_VEC_UNIT : TJ_VEC_STRIDED;
            for (int j = 0; j < x->nindirect; j++) {
                if (varies[x->ind_value[j]]) {
                    x->vec = TJ_VEC_STRIDED;
                }
            }
            varies[i] = varies[i] || x->vec != TJ_VEC_ZERO;
        }
    }
    mark_turned(a);
    k->npasses = a->npasses;
    for (uint32_t i = 0; i < a->nd; i++) {
        k->extent[i] = ival(a, a->d[i].ext, EXTENT);
    }
    k->nins = (uint16_t)a->nout;
    k->nbufs = (uint16_t)a->nbufs;
    k->nsvals = (uint16_t)a->nsvals;
    k->nsites = (uint16_t)a->nsites;
    k->ins = a->out;
    k->locs = a->locs;
    k->nivals = (uint16_t)a->nivals;
    out->rows = out->cols = out->row_elems = 1;
    for (uint32_t i = 0; i < a->nd; i++) {
        tj_ex *e = a->d[i].red ? &out->row_elems : i == vdim && k->kind != TJ_K_ROWS ? &out->cols : &out->rows;
        *e = tj_ex_bin(a->x, TJ_EX_MUL, *e, a->d[i].ext);
    }
    uint32_t nreduce = 0;
    bool plain = k->npasses == 1;
    for (uint32_t i = 0; i < a->nout; i++) {
        const struct tj_kins *in = &a->out[i];
        nreduce += in->op == TJ_KOP_REDUCE;
        plain = plain && !(in->op == TJ_KOP_REDUCE && (in->imm == TJ_RED_ARGMAX || in->imm == TJ_RED_ARGMIN)) &&
                !(in->op == TJ_KOP_STORE && in->level == TJ_FULL);
    }
    k->split = k->kind == TJ_K_ROWS && plain && nreduce == 1 && a->cache && a->l->epi == TJ_NIL &&
               hint(a, out->rows) <= 8 && hint(a, out->row_elems) >= 32768;
    out->kernel = k;
    out->bufs = a->bufs;
    out->ivals = a->ivals;
    out->svals = a->svals;
    out->sites = a->sites;
    out->cost = cost_ns(a);
    k->name = kernel_name(a);
    return a->arena->failed ? memory(a) : true;
}

bool tj_arrange(struct tj_lower *l, const uint32_t *hazard_bufs, uint32_t nhazard, struct tj_loop *out) {
    struct arrange s = {.l = l, .arena = &l->s->p->arena, .x = l->s->x, .n = l->nins}, *a = &s;
    bool reduces = false;
    a->live = TJ_ARENA_NEW(&l->tmp, bool, a->n + 1);
    a->full = TJ_ARENA_NEW(&l->tmp, bool, a->n + 1);
    a->pass = TJ_ARENA_NEW(&l->tmp, uint8_t, a->n + 1);
    a->liveacc = TJ_ARENA_NEW(&l->tmp, bool, l->nacc + 1);
    a->row_at = TJ_ARENA_NEW(&l->tmp, uint16_t, a->n + 1);
    a->home = TJ_ARENA_NEW(&l->tmp, uint16_t, a->n + 1);
    a->dup = TJ_ARENA_NEW(&l->tmp, uint16_t, a->n + 1);
    a->dup_pass = TJ_ARENA_NEW(&l->tmp, uint8_t, a->n + 1);
    a->k = TJ_ARENA_NEW(a->arena, struct tj_kernel, 1);
    if (l->tmp.failed || !a->k) {
        return memory(a);
    }
    mark_live(a);
    levels(a);
    for (uint32_t i = 0; i < a->n; i++) {
        reduces = reduces || (a->live[i] && l->ins[i].op == TJ_KOP_REDUCE);
        a->row_at[i] = a->home[i] = a->dup[i] = TJ_KNONE;
    }
    if (!reduces) {
        memset(a->full, 0, a->n); // one level: everything goes through row_at
    }
    if (!choose_dims(a, reduces)) {
        return false;
    }
    // Recomputing in every pass is bounded by the passes there can be.
    uint32_t cap = (a->n + 8) * 4;
    a->capout = cap > 4000 ? 4000 : cap;
    a->capivals = l->nacc * (TJ_KDIMS + 4) + a->n + TJ_KDIMS + 8;
    a->out = TJ_ARENA_NEW(&l->tmp, struct tj_kins, a->capout);
    a->locs = TJ_ARENA_NEW(&l->tmp, struct tj_loc, a->capout);
    a->ivals = TJ_ARENA_NEW(&l->tmp, tj_ex, a->capivals);
    a->roles = TJ_ARENA_NEW(&l->tmp, uint8_t, a->capivals);
    a->k->access = TJ_ARENA_NEW(&l->tmp, struct tj_kaccess, a->capout);
    a->svals = TJ_ARENA_NEW(a->arena, struct tj_scalar_arg, l->nsvals + 1);
    a->sites = TJ_ARENA_NEW(a->arena, tj_ref, l->nsites + 1);
    a->bufs = TJ_ARENA_NEW(a->arena, uint32_t, MAX_BUFS);
    if (l->tmp.failed || a->arena->failed) {
        return memory(a);
    }
    a->ivals[0] = 0;
    a->ivals[1] = 1;
    a->nivals = 2;
    a->cache = a->cache && total(a, true) <= 65536;
    bool row_cache = a->cache;
    emit_all(a, hazard_bufs, nhazard);
    if (a->overflow) {
        tj_lo_stop(l, TJ_L_TOOBIG, TJ_NIL);
        return false;
    }
    a->cache = row_cache || (a->k->kind == TJ_K_ROWS && a->nd == a->k->npar + 1u);
    if (!fill_loop(a, out)) {
        return false;
    }
    // What stays goes to the program's arena.
    struct tj_kernel *k = a->k;
    struct tj_kins *ins = TJ_ARENA_NEW(a->arena, struct tj_kins, k->nins + 1u);
    struct tj_loc *locs = TJ_ARENA_NEW(a->arena, struct tj_loc, k->nins + 1u);
    struct tj_kaccess *acc = TJ_ARENA_NEW(a->arena, struct tj_kaccess, k->naccess + 1u);
    tj_ex *ivals = TJ_ARENA_NEW(a->arena, tj_ex, k->nivals);
    if (a->arena->failed) {
        return memory(a);
    }
    memcpy(ins, k->ins, k->nins * sizeof *ins);
    memcpy(locs, k->locs, k->nins * sizeof *locs);
    memcpy(acc, k->access, k->naccess * sizeof *acc);
    memcpy(ivals, a->ivals, k->nivals * sizeof *ivals);
    k->ins = ins;
    k->locs = locs;
    k->access = acc;
    out->ivals = ivals;
    return true;
}
