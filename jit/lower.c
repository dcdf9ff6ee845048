// jit/lower.c: values of graph nodes at index maps -> instructions over the kernel's iteration dims.
#include "lower.h"

// ---- emitting -----------------------------------------------------------------------------------------------------

void tj_lo_stop(struct tj_lower *l, int why, tj_ref node) {
    if (l->stop == TJ_L_OK) {
        l->stop_why = l->stop_why ? l->stop_why : TJ_KEPT_INDEX;
        l->stop = why;
        l->stop_node = node;
    }
}

void tj_lo_force(struct tj_lower *l, tj_ref node, enum tj_kept why) {
    if (l->stop == TJ_L_OK) {
        l->stop_why = (uint8_t)why;
        tj_lo_stop(l, TJ_L_FORCE, node);
    }
}

static uint32_t put(struct tj_lower *l, const struct tj_li *in) {
    if (l->stop) {
        return TJ_LNONE;
    }
    // Leaves of the expression (constants, loads) are found again; the rest is shared by the memo of nodes.
    bool share = in->op == TJ_KOP_CONST || in->op == TJ_KOP_SVAL || in->op == TJ_KOP_IVAL || in->op == TJ_KOP_COORD ||
                 in->op == TJ_KOP_LOAD;
    for (uint32_t i = 0; share && i < l->nins; i++) {
        const struct tj_li *o = &l->ins[i];
        if (o->op == in->op && o->dtype == in->dtype && o->imm == in->imm && o->in[0] == in->in[0]) {
            return i;
        }
    }
    if (l->nins >= l->limit) {
        tj_lo_stop(l, TJ_L_TOOBIG, TJ_NIL);
        return TJ_LNONE;
    }
    if (!tj_grow((void **)&l->ins, &l->capins, l->nins + 1, sizeof *l->ins)) {
        tj_lo_stop(l, TJ_L_MEMORY, TJ_NIL);
        return TJ_LNONE;
    }
    l->ins[l->nins] = *in;
    l->ins[l->nins].node = l->trace;
    return l->nins++;
}

uint32_t tj_lo_emit(struct tj_lower *l, int op, tj_dtype d, uint32_t a, uint32_t b, uint32_t c, int64_t imm) {
    struct tj_li in = {
        .op = (uint16_t)op, .dtype = (uint8_t)d, .in = {a, b, c, TJ_LNONE, TJ_LNONE, TJ_LNONE}, .imm = imm};
    return put(l, &in);
}

uint32_t tj_lo_const(struct tj_lower *l, tj_dtype d, double f, int64_t i) {
    int64_t imm = i;
    if (tj_is_float(d)) {
        memcpy(&imm, &f, sizeof imm);
    }
    return tj_lo_emit(l, TJ_KOP_CONST, d, TJ_LNONE, TJ_LNONE, TJ_LNONE, imm);
}

// Extents are arguments of a kernel even where the plan knows them, so that it serves other sizes too.
uint32_t tj_lo_ival(struct tj_lower *l, tj_ex e) {
    if (e <= 1) {
        return tj_lo_const(l, TRACE_I64, 0, (int64_t)e);
    }
    return tj_lo_emit(l, TJ_KOP_IVAL, TRACE_I64, TJ_LNONE, TJ_LNONE, TJ_LNONE, (int64_t)e);
}

static uint32_t access_of(struct tj_lower *l, const struct tj_la *a) {
    for (uint32_t i = 0; i < l->nacc; i++) {
        if (memcmp(&l->acc[i], a, sizeof *a) == 0) {
            return i;
        }
    }
    if (!tj_grow((void **)&l->acc, &l->capacc, l->nacc + 1, sizeof *l->acc)) {
        tj_lo_stop(l, TJ_L_MEMORY, TJ_NIL);
        return 0;
    }
    l->acc[l->nacc] = *a;
    return l->nacc++;
}

static void blank_access(struct tj_la *a) {
    memset(a, 0, sizeof *a); // padding too: accesses are compared as bytes
}

uint32_t tj_lo_and(struct tj_lower *l, uint32_t mask, uint32_t cond) {
    if (mask == TJ_LNONE) {
        return cond;
    }
    return cond == TJ_LNONE ? mask : tj_lo_emit(l, TJ_OP_LOGICAL_AND, TRACE_BOOL, mask, cond, TJ_LNONE, 0);
}

void tj_lo_add_scaled(struct tj_lower *l, struct tj_ixd *to, const struct tj_ixd *x, tj_ex scale) {
    if (scale == 0) {
        return;
    }
    to->off = tj_lo_bin(l, TJ_EX_ADD, to->off, tj_lo_bin(l, TJ_EX_MUL, x->off, scale));
    for (uint32_t k = 0; k < l->niter; k++) {
        if (x->coef[k]) {
            to->coef[k] = tj_lo_bin(l, TJ_EX_ADD, to->coef[k], tj_lo_bin(l, TJ_EX_MUL, x->coef[k], scale));
        }
    }
    for (uint32_t i = 0; i < x->nind; i++) {
        tj_ex c = tj_lo_bin(l, TJ_EX_MUL, x->indc[i], scale);
        if (to->nind < 2) {
            to->ind[to->nind] = x->ind[i];
            to->indc[to->nind++] = c;
            continue;
        }
        // A third indirect term: the last one becomes a sum.
        uint32_t a = tj_lo_emit(l, TJ_OP_MUL, TRACE_I64, to->ind[1], tj_lo_ival(l, to->indc[1]), TJ_LNONE, 0);
        uint32_t b = tj_lo_emit(l, TJ_OP_MUL, TRACE_I64, x->ind[i], tj_lo_ival(l, c), TJ_LNONE, 0);
        to->ind[1] = tj_lo_emit(l, TJ_OP_ADD, TRACE_I64, a, b, TJ_LNONE, 0);
        to->indc[1] = 1;
    }
}

uint32_t tj_lo_coord(struct tj_lower *l, const struct tj_ixd *x) {
    bool affine = false;
    for (uint32_t k = 0; k < l->niter; k++) {
        affine = affine || x->coef[k];
    }
    uint32_t v = TJ_LNONE;
    if (affine) {
        struct tj_la a;
        blank_access(&a);
        a.off = x->off;
        memcpy(a.coef, x->coef, sizeof a.coef);
        v = tj_lo_emit(l, TJ_KOP_COORD, TRACE_I64, TJ_LNONE, TJ_LNONE, TJ_LNONE, access_of(l, &a));
    } else if (x->off || !x->nind) {
        v = tj_lo_ival(l, x->off);
    }
    for (uint32_t i = 0; i < x->nind; i++) {
        uint32_t t = x->ind[i];
        if (x->indc[i] != 1) {
            t = tj_lo_emit(l, TJ_OP_MUL, TRACE_I64, t, tj_lo_ival(l, x->indc[i]), TJ_LNONE, 0);
        }
        v = v == TJ_LNONE ? t : tj_lo_emit(l, TJ_OP_ADD, TRACE_I64, v, t, TJ_LNONE, 0);
    }
    return v;
}

static uint32_t geom_access(struct tj_lower *l, const struct tj_geom *g, const struct tj_map *m) {
    struct tj_ixd sum = {.off = g->offset};
    for (uint32_t j = 0; j < g->rank; j++) {
        tj_lo_add_scaled(l, &sum, &m->d[j], g->strides[j]);
    }
    struct tj_la a;
    blank_access(&a);
    a.buf = g->buf;
    a.dtype = g->dtype;
    a.off = sum.off;
    memcpy(a.coef, sum.coef, sizeof a.coef);
    for (uint32_t i = 0; i < sum.nind; i++) {
        if (sum.indc[i]) {
            a.ind[a.nind] = sum.ind[i];
            a.indc[a.nind++] = sum.indc[i];
        }
    }
    return access_of(l, &a);
}

uint32_t tj_lo_load(struct tj_lower *l, const struct tj_geom *g, const struct tj_map *m) {
    uint32_t a = geom_access(l, g, m);
    return tj_lo_emit(l, TJ_KOP_LOAD, tj_compute_dtype(g->dtype), m->mask, TJ_LNONE, TJ_LNONE, a);
}

void tj_lo_store(struct tj_lower *l, const struct tj_geom *g, const struct tj_map *m, uint32_t value, tj_dtype d) {
    (void)d;
    uint32_t a = geom_access(l, g, m);
    (void)tj_lo_emit(l, TJ_KOP_STORE, 0, value, m->mask, TJ_LNONE, a);
}

// Operands of instruction i, those through its access included.
uint32_t tj_lo_operands(const struct tj_lower *l, uint32_t i, uint32_t *v) {
    const struct tj_li *in = &l->ins[i];
    uint32_t n = 0;
    for (int j = 0; j < 6; j++) {
        if (in->in[j] != TJ_LNONE) {
            v[n++] = in->in[j];
        }
    }
    if (in->op == TJ_KOP_LOAD || in->op == TJ_KOP_STORE || in->op == TJ_KOP_COORD) {
        const struct tj_la *a = &l->acc[in->imm];
        for (uint32_t j = 0; j < a->nind; j++) {
            v[n++] = a->ind[j];
        }
    }
    return n;
}

// Whether a value differs along the reduced dims.
static bool varies(struct tj_lower *l, uint32_t value) {
    bool *full = TJ_ARENA_NEW(&l->tmp, bool, l->nins + 1);
    uint32_t v[8];
    if (!full) {
        tj_lo_stop(l, TJ_L_MEMORY, TJ_NIL);
        return true;
    }
    for (uint32_t i = 0; i <= value; i++) {
        const struct tj_li *in = &l->ins[i];
        bool access = in->op == TJ_KOP_LOAD || in->op == TJ_KOP_COORD;
        for (uint32_t k = 0; access && k < l->niter; k++) {
            full[i] = full[i] || (l->red[k] && l->acc[in->imm].coef[k]);
        }
        for (uint32_t j = tj_lo_operands(l, i, v); j-- > 0 && in->op != TJ_KOP_REDUCE;) {
            full[i] = full[i] || full[v[j]];
        }
    }
    return full[value];
}

// A check of node n that is the same for all reduced elements is made once a row, also where the row has no element:
// not if that is because n has none.
static uint32_t where_elements(struct tj_lower *l, tj_ref n, uint32_t cond, uint32_t mask) {
    tj_ex elems = tj_g_elems(l->s->g, n);
    if (!l->reducing || l->stop || tj_ex_is_const(l->s->x, elems) || varies(l, cond) ||
        (mask != TJ_LNONE && varies(l, mask))) {
        return mask;
    }
    uint32_t none = tj_lo_const(l, TRACE_I64, 0, 0);
    return tj_lo_and(l, mask, tj_lo_emit(l, TJ_OP_GT, TRACE_BOOL, tj_lo_ival(l, elems), none, TJ_LNONE, 0));
}

void tj_lo_check(struct tj_lower *l, tj_ref n, int kind, uint32_t cond, uint32_t value, uint32_t ext, uint32_t mask) {
    uint32_t site = 0;
    while (site < l->nsites && l->sites[site] != l->trace) {
        site++;
    }
    if (site == l->nsites) {
        if (!tj_grow((void **)&l->sites, &l->capsites, l->nsites + 1, sizeof *l->sites)) {
            tj_lo_stop(l, TJ_L_MEMORY, TJ_NIL);
            return;
        }
        l->sites[l->nsites++] = l->trace;
    }
    mask = where_elements(l, n, cond, mask);
    struct tj_li in = {
        .op = TJ_KOP_CHECK, .in = {cond, value, ext, mask, TJ_LNONE, TJ_LNONE}, .imm = (int64_t)kind << 24 | site};
    (void)put(l, &in);
}

// ---- maps ---------------------------------------------------------------------------------------------------------

struct tj_map *tj_lo_map(struct tj_lower *l, const struct tj_map *like, uint32_t rank) {
    struct tj_map *m = TJ_ARENA_NEW(&l->tmp, struct tj_map, 1);
    if (!m) {
        tj_lo_stop(l, TJ_L_MEMORY, TJ_NIL);
        return NULL;
    }
    m->mask = like ? like->mask : TJ_LNONE;
    m->rank = rank;
    return m;
}

// Coordinate of base dim b.
static void base_index(const struct tj_lower *l, uint32_t b, struct tj_ixd *d) {
    tj_ex c = 1;
    for (uint32_t f = l->nfac[b]; f-- > 0;) {
        d->coef[l->first[b] + f] = c;
        c = tj_ex_bin(l->s->x, TJ_EX_MUL, c, l->fac[b][f]);
    }
}

void tj_lo_identity(struct tj_lower *l, tj_ref n, struct tj_map *m) {
    const struct tj_gnode *d = TJ_NODE(l->s, n);
    uint32_t b = 0;
    for (uint32_t j = 0; j < d->rank; j++) {
        if (d->dims[j] != 1) {
            base_index(l, b++, &m->d[j]);
        }
    }
}

// x = q*by + r with 0 <= r < by. False: stopped (a dim to split), or not expressible.
static bool div_mod(struct tj_lower *l, const struct tj_ixd *x, tj_ex by, struct tj_ixd *q, struct tj_ixd *r) {
    struct tj_exprs *e = l->s->x;
    *q = (struct tj_ixd){0};
    *r = (struct tj_ixd){0};
    uint32_t rest[TJ_KDIMS], n = 0;
    for (uint32_t i = 0; i < x->nind; i++) {
        tj_ex c;
        if (!tj_ex_exact_div(e, x->indc[i], by, &c)) {
            return false;
        }
        q->ind[q->nind] = x->ind[i];
        q->indc[q->nind++] = c;
    }
    for (uint32_t k = 0; k < l->niter; k++) {
        if (x->coef[k] == 0 || tj_ex_exact_div(e, x->coef[k], by, &q->coef[k])) {
            continue;
        }
        q->coef[k] = 0;
        r->coef[k] = x->coef[k];
        uint32_t at = n++;
        while (at > 0 && tj_ex_hint(e, x->coef[rest[at - 1]]) > tj_ex_hint(e, x->coef[k])) {
            rest[at] = rest[at - 1];
            at--;
        }
        rest[at] = k;
    }
    if (!tj_ex_exact_div(e, x->off, by, &q->off)) {
        if (!tj_ex_is_const(e, x->off) || !tj_ex_is_const(e, by) || tj_ex_hint(e, x->off) < 0 || by == 0) {
            return false;
        }
        q->off = tj_ex_const(e, tj_ex_hint(e, x->off) / tj_ex_hint(e, by));
        r->off = tj_ex_const(e, tj_ex_hint(e, x->off) % tj_ex_hint(e, by));
    }
    if (n == 0) {
        return true;
    }
    // Is the rest below `by`?
    bool constant = tj_ex_is_const(e, by), chain = r->off == 0;
    int64_t top = tj_ex_hint(e, r->off);
    tj_ex reach = 0;
    for (uint32_t i = 0; i < n; i++) {
        tj_ex c = r->coef[rest[i]], w = l->ext[rest[i]];
        int64_t span;
        constant = constant && tj_ex_is_const(e, c) && tj_ex_is_const(e, w) && tj_ex_hint(e, c) > 0 &&
                   !__builtin_mul_overflow(tj_ex_hint(e, c), tj_ex_hint(e, w) - 1, &span) &&
                   !__builtin_add_overflow(top, span, &top);
        chain = chain && (i == 0 || c == reach);
        reach = tj_lo_bin(l, TJ_EX_MUL, c, w);
    }
    if ((constant && top < tj_ex_hint(e, by)) || (chain && reach == by)) {
        return true;
    }
    // Split the widest iteration dim so that its inner part fits.
    uint32_t k = rest[n - 1];
    tj_ex inner, outer;
    if (r->off == 0 && tj_ex_exact_div(e, by, r->coef[k], &inner) && tj_ex_exact_div(e, l->ext[k], inner, &outer) &&
        inner != 1 && outer != 1 && l->niter < TJ_KDIMS) {
        tj_lo_stop(l, TJ_L_SPLIT, TJ_NIL);
        l->split_iter = k;
        l->split_by = inner;
        l->split_outer = outer;
    }
    return false;
}

// Map of the operand of a RESHAPE, or NULL when it isn't affine (or stopped).
static const struct tj_map *reshape_map(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_gnode *o = TJ_NODE(l->s, n), *s = TJ_NODE(l->s, o->in[0]);
    struct tj_map *r = tj_lo_map(l, m, s->rank);
    if (!r) {
        return NULL;
    }
    // Runs of dims with equal products are independent of each other.
    int i = 0, j = 0;
    while (i < s->rank || j < o->rank) {
        int i0 = i, j0 = j;
        tj_ex ps = i < s->rank ? s->dims[i++] : 1, po = j < o->rank ? o->dims[j++] : 1;
        while (!tj_g_equal(l->s->g, ps, po)) {
            bool more_s = i < s->rank, more_o = j < o->rank;
            if (!more_s && !more_o) {
                break; // what is left on both sides is equal, as the whole is
            }
            if (more_s && (!more_o || tj_ex_hint(l->s->x, ps) <= tj_ex_hint(l->s->x, po))) {
                ps = tj_lo_bin(l, TJ_EX_MUL, ps, s->dims[i++]);
            } else {
                po = tj_lo_bin(l, TJ_EX_MUL, po, o->dims[j++]);
            }
        }
        if (i == i0 || j == j0) {
            continue; // ones only
        }
        struct tj_ixd lin = {0};
        tj_ex w = 1;
        for (int k = j; k-- > j0;) {
            tj_lo_add_scaled(l, &lin, &m->d[k], w);
            w = tj_lo_bin(l, TJ_EX_MUL, w, o->dims[k]);
        }
        // Peel off source dims from the last; the first that is not 1 takes what is left.
        for (int k = i; k-- > i0;) {
            if (s->dims[k] == 1) {
                continue;
            }
            bool firstdim = true;
            for (int f = i0; f < k; f++) {
                firstdim = firstdim && s->dims[f] == 1;
            }
            if (firstdim) {
                r->d[k] = lin;
                break;
            }
            struct tj_ixd q;
            if (!div_mod(l, &lin, s->dims[k], &q, &r->d[k])) {
                return NULL;
            }
            lin = q;
        }
    }
    return r;
}

// Map of operand i of a pointwise node.
static const struct tj_map *operand_map(struct tj_lower *l, tj_ref n, tj_ref o, const struct tj_map *m) {
    const struct tj_gnode *a = TJ_NODE(l->s, n), *b = TJ_NODE(l->s, o);
    bool equal = a->rank == b->rank;
    for (int j = 0; equal && j < a->rank; j++) {
        equal = a->dims[j] == b->dims[j] || b->dims[j] != 1;
    }
    if (equal) {
        return m;
    }
    struct tj_map *r = tj_lo_map(l, m, b->rank);
    for (int j = 0; r && j < b->rank; j++) {
        if (b->dims[j] != 1) {
            r->d[j] = m->d[a->rank - b->rank + j];
        }
    }
    return r;
}

// Map of the operand of a view other than RESHAPE and AS_STRIDED.
static const struct tj_map *view_map(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_gnode *v = TJ_NODE(l->s, n), *s = TJ_NODE(l->s, v->in[0]);
    struct tj_map *r = tj_lo_map(l, m, s->rank);
    if (!r) {
        return NULL;
    }
    switch (v->op) {
    case TJ_OP_PERMUTE:
        for (int j = 0; j < v->rank; j++) {
            r->d[((const struct tj_attr_perm *)v->attr)->perm[j]] = m->d[j];
        }
        break;
    case TJ_OP_EXPAND:
        for (int j = 0; j < s->rank; j++) {
            if (s->dims[j] != 1) {
                r->d[j] = m->d[v->rank - s->rank + j];
            }
        }
        break;
    case TJ_OP_SLICE: {
        const struct tj_attr_slice *a = v->attr;
        for (int j = 0; j < s->rank; j++) {
            if (j == a->dim) {
                r->d[j].off = TJ_NODE(l->s, v->in[1])->ex;
                tj_lo_add_scaled(l, &r->d[j], &m->d[j], tj_ex_const(l->s->x, a->step));
            } else {
                r->d[j] = m->d[j];
            }
        }
        break;
    }
    case TJ_OP_DIAGONAL: {
        const struct tj_attr_diagonal *a = v->attr;
        tj_ex off = TJ_NODE(l->s, v->in[1])->ex, k = 0;
        for (int j = 0, o = 0; j < s->rank; j++) {
            if (j == a->d0 || j == a->d1) {
                k = j == a->d0 ? tj_lo_bin(l, TJ_EX_SUB, 0, off) : off;
                r->d[j].off = tj_lo_bin(l, TJ_EX_MAX, 0, k);
                tj_lo_add_scaled(l, &r->d[j], &m->d[v->rank - 1], 1);
            } else {
                r->d[j] = m->d[o++];
            }
        }
        break;
    }
    case TJ_OP_UNFOLD: {
        const struct tj_attr_unfold *a = v->attr;
        for (int j = 0; j < s->rank; j++) {
            if (j == a->dim) {
                tj_lo_add_scaled(l, &r->d[j], &m->d[j], tj_ex_const(l->s->x, a->step));
                tj_lo_add_scaled(l, &r->d[j], &m->d[v->rank - 1], 1);
            } else {
                r->d[j] = m->d[j];
            }
        }
        break;
    }
    default: return NULL;
    }
    for (int j = 0; j < s->rank; j++) { // extent 1: one way to write coordinate 0
        if (s->dims[j] == 1 && v->op != TJ_OP_SLICE && v->op != TJ_OP_DIAGONAL) {
            memset(&r->d[j], 0, sizeof r->d[j]);
        }
    }
    return r;
}

// ---- values -------------------------------------------------------------------------------------------------------

// From memory: of the leaf it lies in, or of the buffer it is demanded into.
static uint32_t load_node(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    struct tj_sched *s = l->s;
    if (tj_is_alias(s, n)) {
        return tj_lo_load(l, s->alias[n], m);
    }
    uint32_t buf = n == l->epi ? l->epi_buf : tj_s_buffer(s, n);
    struct tj_geom g;
    tj_s_buffer_geom(s, n, buf, &g);
    return tj_lo_load(l, &g, m);
}

static uint32_t scalar(struct tj_lower *l, tj_ref n) {
    struct tj_scalar_arg a;
    tj_s_scalar(l->s, n, &a);
    uint32_t i = 0;
    while (i < l->nsvals && memcmp(&l->svals[i], &a, sizeof a) != 0) {
        i++;
    }
    if (i == l->nsvals) {
        if (!tj_grow((void **)&l->svals, &l->capsvals, l->nsvals + 1, sizeof *l->svals)) {
            tj_lo_stop(l, TJ_L_MEMORY, TJ_NIL);
            return TJ_LNONE;
        }
        l->svals[l->nsvals++] = a;
    }
    return tj_lo_emit(l, TJ_KOP_SVAL, tj_compute_dtype(a.dtype), TJ_LNONE, TJ_LNONE, TJ_LNONE, i);
}

static uint32_t reduction(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    struct tj_sched *s = l->s;
    const struct tj_gnode *r = TJ_NODE(s, n), *x = TJ_NODE(s, r->in[0]);
    const struct tj_attr_reduce *a = r->attr;
    bool used[TJ_KDIMS] = {0}, ok = m->mask == TJ_LNONE;
    for (uint32_t j = 0; j < m->rank; j++) {
        ok = ok && m->d[j].nind == 0;
        for (uint32_t k = 0; k < l->niter; k++) {
            used[k] = used[k] || m->d[j].coef[k];
        }
    }
    bool red[TJ_KDIMS];
    int64_t rows = 1;
    for (uint32_t k = 0; k < l->niter; k++) {
        red[k] = l->redset ? l->red[k] : !used[k];
        ok = ok && !(red[k] && used[k]);
        if (!red[k] && __builtin_mul_overflow(rows, tj_ex_hint(s->x, l->ext[k]), &rows)) {
            ok = false;
        }
    }
    ok = ok && rows == tj_g_numel_hint(s->g, n); // each row once
    struct tj_map *xm = tj_lo_map(l, m, x->rank);
    if (!xm) {
        return TJ_LNONE;
    }
    uint32_t k = 0;
    for (int j = 0, o = 0; ok && j < x->rank; j++) {
        if (!(a->mask >> j & 1)) {
            xm->d[j] = m->d[o++];
            continue;
        }
        o += a->keepdim ? 1 : 0;
        if (x->dims[j] == 1) {
            continue;
        }
        // The next reduced iteration dims together have this extent.
        uint32_t ks[TJ_KDIMS], nk = 0;
        tj_ex e = 1;
        while (e != x->dims[j]) {
            while (k < l->niter && !red[k]) {
                k++;
            }
            if (k == l->niter) {
                ok = false;
                break;
            }
            e = tj_lo_bin(l, TJ_EX_MUL, e, l->ext[k]);
            ks[nk++] = k++;
        }
        tj_ex c = 1;
        while (ok && nk > 0) {
            nk--;
            xm->d[j].coef[ks[nk]] = c;
            c = tj_lo_bin(l, TJ_EX_MUL, c, l->ext[ks[nk]]);
        }
    }
    for (; ok && k < l->niter; k++) {
        ok = !red[k];
    }
    if (!ok) {
        tj_lo_force(l, n, TJ_KEPT_ROWS);
        return TJ_LNONE;
    }
    l->redset = true;
    memcpy(l->red, red, sizeof red);
    l->reducing++;
    uint32_t v = tj_lo_value(l, r->in[0], xm);
    l->reducing--;
    l->trace = r->trace;
    bool boolean = r->dtype == TRACE_BOOL;
    int64_t kind;
    switch (r->op) {
    case TJ_OP_SUM: kind = TJ_RED_SUM; break;
    case TJ_G_CHAIN: kind = TJ_RED_CHAIN; break;
    case TJ_OP_AMAX: kind = boolean ? TJ_RED_ANY : TJ_RED_MAX; break;
    case TJ_OP_AMIN: kind = boolean ? TJ_RED_ALL : TJ_RED_MIN; break;
    case TJ_OP_ANY: kind = TJ_RED_ANY; break;
    case TJ_OP_ALL: kind = TJ_RED_ALL; break;
    case TJ_OP_ARGMAX: kind = TJ_RED_ARGMAX; break;
    default: kind = TJ_RED_ARGMIN;
    }
    v = tj_lo_emit(l, TJ_KOP_REDUCE, tj_compute_dtype(r->dtype), v, TJ_LNONE, TJ_LNONE, kind);
    if (v != TJ_LNONE) {
        l->ins[v].value = n;
    }
    return v;
}

// Ops whose f16 or bf16 result is exact when the operands are.
static bool exact16(uint16_t op) {
    switch (op) {
    case TJ_OP_NEG:
    case TJ_OP_ABS:
    case TJ_OP_SIGN:
    case TJ_OP_FLOOR:
    case TJ_OP_CEIL:
    case TJ_OP_TRUNC:
    case TJ_OP_ROUND:
    case TJ_OP_RELU:
    case TJ_OP_MAXIMUM:
    case TJ_OP_MINIMUM:
    case TJ_OP_WHERE:
    case TJ_OP_CLAMP: return true;
    default: return false;
    }
}

static uint32_t round_to(struct tj_lower *l, uint32_t v, uint8_t d) {
    return d == TRACE_F16 || d == TRACE_BF16 ? tj_lo_emit(l, TJ_KOP_ROUND, TRACE_F32, v, TJ_LNONE, TJ_LNONE, d) : v;
}

// Data errors of integer division and powers.
static void integer_checks(struct tj_lower *l, tj_ref n, uint16_t op, tj_dtype d, const uint32_t *v, uint32_t mask) {
    if (tj_is_float(d) || l->stop) {
        return;
    }
    uint32_t b = v[1];
    if (op == TJ_OP_FLOOR_DIVIDE || op == TJ_OP_REMAINDER || op == TJ_OP_FMOD) {
        uint32_t ok = tj_lo_emit(l, TJ_OP_NE, TRACE_BOOL, b, tj_lo_const(l, d, 0, 0), TJ_LNONE, 0);
        uint32_t wide = d == TRACE_I64 ? b : tj_lo_emit(l, TJ_OP_CAST, TRACE_I64, b, TJ_LNONE, TJ_LNONE, 0);
        tj_lo_check(l, n, TJ_DATA_DIVISION, ok, wide, TJ_LNONE, mask);
    } else if (op == TJ_OP_POW && d != TRACE_U8 && d != TRACE_BOOL) {
        uint32_t ok = tj_lo_emit(l, TJ_OP_GE, TRACE_BOOL, b, tj_lo_const(l, d, 0, 0), TJ_LNONE, 0);
        for (int64_t one = -1; one <= 1; one += 2) {
            uint32_t c = tj_lo_emit(l, TJ_OP_EQ, TRACE_BOOL, v[0], tj_lo_const(l, d, 0, one), TJ_LNONE, 0);
            ok = tj_lo_emit(l, TJ_OP_LOGICAL_OR, TRACE_BOOL, ok, c, TJ_LNONE, 0);
        }
        uint32_t wide = d == TRACE_I64 ? b : tj_lo_emit(l, TJ_OP_CAST, TRACE_I64, b, TJ_LNONE, TJ_LNONE, 0);
        tj_lo_check(l, n, TJ_DATA_POWER, ok, wide, TJ_LNONE, mask);
    }
}

static uint32_t pointwise(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    uint32_t v[6] = {TJ_LNONE, TJ_LNONE, TJ_LNONE, TJ_LNONE, TJ_LNONE, TJ_LNONE};
    uint32_t nin = TJ_NODE(l->s, n)->nin;
    for (uint32_t i = 0; i < nin && i < 6; i++) {
        tj_ref o = TJ_NODE(l->s, n)->in[i];
        const struct tj_map *om = operand_map(l, n, o, m);
        v[i] = om ? tj_lo_value(l, o, om) : TJ_LNONE;
        if (l->stop) {
            return TJ_LNONE;
        }
    }
    const struct tj_gnode *p = TJ_NODE(l->s, n);
    l->trace = p->trace;
    tj_dtype d = (tj_dtype)p->dtype, from = (tj_dtype)TJ_NODE(l->s, p->in[p->op == TJ_OP_WHERE])->dtype;
    uint16_t op = p->op;
    if (op == TJ_OP_CAST) {
        if (from == d) {
            return v[0];
        }
        tj_dtype c = tj_compute_dtype(d);
        if (tj_compute_dtype(from) != c) {
            v[0] = tj_lo_emit(l, TJ_OP_CAST, c, v[0], TJ_LNONE, TJ_LNONE, 0);
        }
        return round_to(l, v[0], (uint8_t)d);
    }
    integer_checks(l, n, op, from, v, m->mask);
    if (from == TRACE_BOOL) { // arithmetic of bool is logic
        op = op == TJ_OP_ADD || op == TJ_OP_MAXIMUM || op == TJ_OP_BITWISE_OR    ? TJ_OP_LOGICAL_OR
             : op == TJ_OP_MUL || op == TJ_OP_MINIMUM || op == TJ_OP_BITWISE_AND ? TJ_OP_LOGICAL_AND
             : op == TJ_OP_BITWISE_XOR || op == TJ_OP_NE                         ? TJ_OP_LOGICAL_XOR
             : op == TJ_OP_BITWISE_NOT                                           ? TJ_OP_LOGICAL_NOT
                                                                                 : op;
    }
    struct tj_li in = {.op = op, .dtype = (uint8_t)tj_compute_dtype((uint8_t)d)};
    memcpy(in.in, v, sizeof v);
    uint32_t r = put(l, &in);
    return exact16(p->op) ? r : round_to(l, r, (uint8_t)d);
}

static uint32_t find(const struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    for (uint32_t i = l->s->memo[n]; i; i = l->memo[i - 1].next) {
        const struct tj_map *o = l->memo[i - 1].map;
        if (o == m || (o->mask == m->mask && memcmp(o->d, m->d, m->rank * sizeof *m->d) == 0)) {
            return l->memo[i - 1].value;
        }
    }
    return TJ_LNONE;
}

uint32_t tj_lo_value(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    enum { DEPTH = 400, DEAR = 6 };
    struct tj_sched *s = l->s;
    if (l->stop) {
        return TJ_LNONE;
    }
    uint32_t v = find(l, n, m);
    if (v != TJ_LNONE) {
        return v;
    }
    const struct tj_gnode *d = TJ_NODE(s, n);
    l->trace = d->trace;
    if (l->depth >= DEPTH && s->incone[n] == s->stamp) { // what is loaded goes no deeper
        tj_lo_force(l, n, TJ_KEPT_SIZE);
        return TJ_LNONE;
    }
    if (s->memo[n] && s->dupcost[n] > DEAR && s->incone[n] == s->stamp && tj_g_numel_hint(s->g, n) > 1 &&
        !tj_g_view(d->op) && n != l->epi) {
        tj_lo_force(l, n, TJ_KEPT_PLACES);
        return TJ_LNONE;
    }
    l->depth++;
    if (d->op == TJ_OP_SCALAR) {
        v = scalar(l, n);
    } else if (d->op == TJ_G_EXTENT) {
        v = tj_lo_ival(l, d->ex);
    } else if (d->op == TJ_G_NOTHING) {
        v = tj_lo_const(l, tj_compute_dtype(d->dtype), 0, 0); // no element is ever asked for
    } else if (s->incone[n] != s->stamp || n == l->epi) {
        v = load_node(l, n, m);
    } else if (tj_g_pointwise(d->op)) {
        v = pointwise(l, n, m);
    } else if (tj_g_reduce(d->op)) {
        v = reduction(l, n, m);
    } else if (d->op == TJ_OP_RESHAPE || d->op == TJ_OP_AS_STRIDED) {
        // Over memory the strides may do what the map can't.
        tj_ref src = d->in[0];
        struct tj_geom sg, g;
        bool done = false;
        if (s->incone[src] != s->stamp && TJ_NODE(s, src)->op != TJ_OP_SCALAR) {
            if (tj_is_alias(s, src)) {
                sg = *s->alias[src];
            } else {
                tj_s_buffer_geom(s, src, tj_s_buffer(s, src), &sg);
            }
            if (tj_s_view_geom(s, &sg, n, &g)) {
                v = tj_lo_load(l, &g, m);
                done = true;
            }
        }
        if (!done) {
            const struct tj_map *r = d->op == TJ_OP_RESHAPE ? reshape_map(l, n, m) : NULL;
            if (r) {
                v = tj_lo_value(l, src, r);
            } else {
                tj_lo_stop(l, TJ_L_FORCE, src);
            }
        }
    } else if (tj_g_view(d->op)) {
        const struct tj_map *r = view_map(l, n, m);
        v = r ? tj_lo_value(l, d->in[0], r) : TJ_LNONE;
    } else {
        v = tj_lo_move(l, n, m);
    }
    l->depth--;
    if (l->stop || v == TJ_LNONE) {
        tj_lo_stop(l, TJ_L_FORCE, n);
        return TJ_LNONE;
    }
    if (!tj_grow((void **)&l->memo, &l->capmemo, l->nmemo + 1, sizeof *l->memo)) {
        tj_lo_stop(l, TJ_L_MEMORY, TJ_NIL);
        return TJ_LNONE;
    }
    l->memo[l->nmemo] = (struct tj_memo){n, m, v, s->memo[n]};
    s->memo[n] = ++l->nmemo;
    return v;
}

// Starts over. The base dims are set by the caller unless splits are kept.
void tj_lo_reset(struct tj_lower *l, bool keep_splits) {
    for (uint32_t i = 0; i < l->nmemo; i++) {
        l->s->memo[l->memo[i].node] = 0;
    }
    tj_arena_free(&l->tmp);
    l->nmemo = l->nins = l->nacc = l->nsvals = l->nsites = l->depth = 0;
    l->redset = false;
    l->reducing = 0;
    memset(l->red, 0, sizeof l->red);
    if (keep_splits && l->stop == TJ_L_SPLIT) {
        for (uint32_t b = 0; b < l->nbase; b++) {
            uint32_t k = l->split_iter - l->first[b];
            if (l->split_iter < l->first[b] || k >= l->nfac[b]) {
                continue;
            }
            memmove(&l->fac[b][k + 2], &l->fac[b][k + 1], (l->nfac[b] - k - 1) * sizeof l->fac[b][0]);
            l->fac[b][k] = l->split_outer;
            l->fac[b][k + 1] = l->split_by;
            l->nfac[b]++;
            break;
        }
    }
    l->niter = 0;
    l->stop_why = 0;
    for (uint32_t b = 0; b < l->nbase; b++) {
        l->first[b] = l->niter;
        for (uint32_t f = 0; f < l->nfac[b]; f++) {
            l->ext[l->niter++] = l->fac[b][f];
        }
    }
    l->stop = TJ_L_OK;
}
