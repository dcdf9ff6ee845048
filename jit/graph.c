// jit/graph.c: from trace to graph: reachability, extents as expressions, composite ops taken apart.
#include "graph.h"

#include <stdlib.h>

// ---- making nodes -------------------------------------------------------------------------------------------------

static tj_ref add(struct tj_graph *g, tj_ref trace, int op, tj_dtype d, const tj_ex *dims, size_t rank,
                  const tj_ref *in, size_t nin, const void *attr, size_t nattr) {
    struct tj_gnode n = {.op = (uint16_t)op,
                         .dtype = (uint8_t)d,
                         .rank = (uint8_t)rank,
                         .nin = (uint32_t)nin,
                         .in = in,
                         .dims = dims,
                         .attr = attr,
                         .nattr = (uint32_t)nattr,
                         .trace = trace};
    return tj_g_add(g, &n);
}

#define WORDS(s) (sizeof(s) / 8)
#define NODE(r) (&g->nodes[r])

// ---- extents that are equal ---------------------------------------------------------------------------------------

// What e stands for, as far as is known: a constant where there is one.
static tj_ex canon(const struct tj_graph *g, tj_ex e) {
    tj_ex is = e;
    while (is < g->nreplaced && g->replaced[is] != is) {
        is = g->replaced[is];
    }
    while (e != is) { // the next one who asks comes there at once
        tj_ex next = g->replaced[e];
        g->replaced[e] = is;
        e = next;
    }
    return is;
}

static bool replace(struct tj_graph *g, tj_ex e, tj_ex by) {
    if (!tj_grow((void **)&g->replaced, &g->capreplaced, e + 1, sizeof *g->replaced)) {
        return false;
    }
    for (; g->nreplaced <= e; g->nreplaced++) {
        g->replaced[g->nreplaced] = g->nreplaced;
    }
    g->replaced[e] = by;
    return true;
}

// Records that a and b are the same number. fact: they are in every trace of these ops; else a guard.
static void equate(struct tj_graph *g, tj_ex a, tj_ex b, tj_ref node, bool fact) {
    a = canon(g, a);
    b = canon(g, b);
    if (a == b) {
        return;
    }
    if (tj_ex_hint(g->x, a) != tj_ex_hint(g->x, b)) {
        (void)tj_fail(TRACE_ERR_COMPILE, "internal: extents %lld and %lld of %s are no equals",
                      (long long)tj_ex_hint(g->x, a), (long long)tj_ex_hint(g->x, b), tj_call_name(g->t, node));
        g->failed = g->wrong = true;
        return;
    }
    // The larger index is replaced by the smaller, so replacing ends; constants stay.
    bool swap = tj_ex_is_const(g->x, b) || (!tj_ex_is_const(g->x, a) && b < a);
    if (!tj_grow((void **)&g->equal, &g->capequal, g->nequal + 1, sizeof *g->equal) ||
        !replace(g, swap ? a : b, swap ? b : a)) {
        g->failed = true;
        return;
    }
    g->equal[g->nequal].a = swap ? b : a;
    g->equal[g->nequal].b = swap ? a : b;
    g->equal[g->nequal].fact = fact;
    g->equal[g->nequal++].node = node;
    g->again = true;
}

// Two extents must be equal at run time; returns one of them.
static tj_ex same(struct tj_graph *g, tj_ex a, tj_ex b, tj_ref node) {
    if (a != b) {
        equate(g, a, b, node, false);
    }
    return canon(g, a);
}

// Extent of two that are broadcast: where only one of them is 1, that is part of the plan.
static tj_ex meet(struct tj_graph *g, tj_ex a, tj_ex b, tj_ref node) {
    if (a == b || b == 1) {
        return a;
    }
    if (a == 1) {
        return b;
    }
    int64_t ha = tj_ex_hint(g->x, a), hb = tj_ex_hint(g->x, b);
    if (ha != hb && ha == 1) {
        (void)same(g, a, 1, node);
        return b;
    }
    if (ha != hb && hb == 1) {
        (void)same(g, b, 1, node);
        return a;
    }
    return same(g, a, b, node);
}

static tj_ex leaf_extent(struct tj_graph *g, uint32_t leaf, uint32_t dim, int64_t value) {
    const struct tj_dynamic *dyn = g->seg->dyn;
    if (!dyn || !(dyn->leaf[leaf] >> dim & 1)) {
        return tj_ex_const(g->x, value);
    }
    return canon(g, tj_ex_sym(g->x, TJ_EX_EXTENT, leaf, dim, value));
}

// Whether an extent that is an argument of node r is to be a symbol: it has been seen to vary, or could follow a symbol
// that has the same value.
static bool varies(const struct tj_graph *g, tj_ref r, size_t d, int64_t value) {
    const struct tj_dynamic *dyn = g->seg->dyn;
    if (!dyn) {
        return false;
    }
    if (dyn->arg[r] >> d & 1) {
        return true;
    }
    uint32_t low = 0, high = dyn->args && value > 1 ? g->nsizes : 0;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (g->sizes[mid] == value) {
            return true;
        }
        if (g->sizes[mid] < value) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return false;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// The values that symbols of leaves have, for `varies`.
static void keep_sizes(struct tj_graph *g) {
    const struct tj_dynamic *dyn = g->seg->dyn;
    uint32_t n = 0;
    g->sizes = TJ_ARENA_NEW(g->arena, int64_t, (size_t)g->t->nleaves * TJ_MAX_RANK + 1);
    for (uint32_t i = 0; !g->arena->failed && i < g->t->nleaves; i++) {
        const int64_t *dims = tj_shape_dims(g->t, g->t->leafkeys[i].shape);
        for (uint32_t k = 0; k < g->t->leafkeys[i].rank; k++) {
            if (dyn->leaf[i] >> k & 1 && !(n && g->sizes[n - 1] == dims[k])) {
                g->sizes[n++] = dims[k];
            }
        }
    }
    if (n) {
        qsort(g->sizes, n, sizeof *g->sizes, by_size);
    }
    g->nsizes = n;
}

static tj_ex argument(struct tj_graph *g, tj_ref r, size_t d, int64_t value) {
    return varies(g, r, d, value) ? canon(g, tj_ex_sym(g->x, TJ_EX_ARG, r, (uint32_t)d, value))
                                  : tj_ex_const(g->x, value);
}

tj_ex tj_g_same(struct tj_graph *g, tj_ex a, tj_ex b, tj_ref node) { return same(g, a, b, node); }

bool tj_g_meet(struct tj_graph *g, tj_ex a, tj_ex b, tj_ref node) {
    if (tj_g_equal(g, a, b)) {
        return true;
    }
    if (tj_ex_hint(g->x, a) != tj_ex_hint(g->x, b) || !tj_ex_of_shapes(g->x, a) || !tj_ex_of_shapes(g->x, b)) {
        return false;
    }
    (void)same(g, a, b, node);
    return true;
}

static size_t broadcast(struct tj_graph *g, tj_ref trace, const tj_ref *in, size_t nin, tj_ex *dims) {
    size_t rank = 0;
    for (size_t i = 0; i < nin; i++) {
        rank = NODE(in[i])->rank > rank ? NODE(in[i])->rank : rank;
    }
    for (size_t d = 0; d < rank; d++) {
        tj_ex e = 1;
        for (size_t i = 0; i < nin; i++) {
            size_t r = NODE(in[i])->rank;
            if (d + r >= rank) {
                e = meet(g, e, NODE(in[i])->dims[d + r - rank], trace);
            }
        }
        dims[d] = e;
    }
    return rank;
}

static tj_ref pw(struct tj_graph *g, tj_ref trace, enum tj_op op, tj_dtype d, size_t nin, tj_ref a, tj_ref b,
                 tj_ref c) {
    tj_ex dims[TJ_G_RANK];
    tj_ref in[3] = {a, b, c};
    size_t rank = broadcast(g, trace, in, nin, dims);
    return add(g, trace, op, d, dims, rank, in, nin, NULL, 0);
}
static tj_ref un(struct tj_graph *g, tj_ref trace, enum tj_op op, tj_ref a) {
    return pw(g, trace, op, (tj_dtype)NODE(a)->dtype, 1, a, 0, 0);
}
static tj_ref bin(struct tj_graph *g, tj_ref trace, enum tj_op op, tj_ref a, tj_ref b) {
    return pw(g, trace, op, (tj_dtype)NODE(a)->dtype, 2, a, b, 0);
}
static tj_ref cast(struct tj_graph *g, tj_ref trace, tj_ref a, tj_dtype d) {
    return NODE(a)->dtype == d ? a : pw(g, trace, TJ_OP_CAST, d, 1, a, 0, 0);
}
static tj_ref extent(struct tj_graph *g, tj_ref trace, tj_ex e) {
    struct tj_gnode n = {.op = TJ_G_EXTENT, .dtype = TRACE_I64, .ex = e, .trace = trace};
    return tj_g_add(g, &n);
}
static tj_ref reshape(struct tj_graph *g, tj_ref trace, tj_ref a, const tj_ex *dims, size_t rank) {
    return add(g, trace, TJ_OP_RESHAPE, (tj_dtype)NODE(a)->dtype, dims, rank, &a, 1, NULL, 0);
}

// A reduction. SUM's order counts elements in row-major order of the reduced dims, so dims that don't lie together are
// brought together by a copy, unless the vector dim stays outside (columns) or whole vectors keep the order anyway.
static tj_ref reduce(struct tj_graph *g, tj_ref trace, enum tj_op op, tj_dtype d, tj_ref x, int64_t mask,
                     bool keepdim) {
    size_t rank = NODE(x)->rank, out = 0;
    tj_ex dims[TJ_G_RANK], kept[TJ_G_RANK];
    bool open = false, apart = false; // a reduced dim was seen; a kept one after it and then another reduced one
    bool gap = false;
    for (size_t i = 0; i < rank; i++) {
        bool r = mask >> i & 1;
        if (!r || keepdim) {
            kept[out++] = r ? 1 : NODE(x)->dims[i];
        }
        if (NODE(x)->dims[i] != 1) {
            apart = apart || (r && gap);
            gap = gap || (!r && open);
            open = open || r;
        }
    }
    // Is the innermost dim reduced, and is its run not of whole vectors?
    bool inner = false;
    int64_t run = 1;
    bool constant = true;
    for (size_t i = rank; i-- > 0;) {
        if (NODE(x)->dims[i] == 1) {
            continue;
        }
        if (!(mask >> i & 1)) {
            break;
        }
        inner = true;
        constant = constant && tj_ex_is_const(g->x, NODE(x)->dims[i]) &&
                   tj_size_mul(run, tj_ex_hint(g->x, NODE(x)->dims[i]), &run);
    }
    if (op == TJ_OP_SUM && apart && inner && !(constant && run % 64 == 0)) {
        struct tj_attr_perm p = {{0}};
        size_t n = 0, nkept = 0;
        for (size_t i = 0; i < rank; i++) {
            if (!(mask >> i & 1)) {
                dims[n] = NODE(x)->dims[i];
                p.perm[n++] = (int64_t)i;
            }
        }
        nkept = n;
        for (size_t i = 0; i < rank; i++) {
            if (mask >> i & 1) {
                dims[n] = NODE(x)->dims[i];
                p.perm[n++] = (int64_t)i;
            }
        }
        tj_ref y = add(g, trace, TJ_OP_PERMUTE, (tj_dtype)NODE(x)->dtype, dims, rank, &x, 1, &p, WORDS(p));
        struct tj_gnode c = {.op = TJ_OP_COPY,
                             .dtype = NODE(x)->dtype,
                             .rank = (uint8_t)rank,
                             .flags = TJ_GF_FORCE,
                             .nin = 1,
                             .in = &y,
                             .dims = dims,
                             .trace = trace};
        y = tj_g_add(g, &c);
        struct tj_attr_reduce r = {.mask = (((int64_t)1 << rank) - 1) & ~(((int64_t)1 << nkept) - 1)};
        y = add(g, trace, op, d, dims, nkept, &y, 1, &r, WORDS(r));
        return reshape(g, trace, y, kept, out);
    }
    struct tj_attr_reduce r = {.mask = mask, .keepdim = keepdim};
    return add(g, trace, op, d, kept, out, &x, 1, &r, WORDS(r));
}

static tj_ex product(struct tj_graph *g, tj_ref x, int64_t mask) {
    tj_ex n = 1;
    for (int i = 0; i < NODE(x)->rank; i++) {
        if (mask >> i & 1) {
            n = tj_ex_bin(g->x, TJ_EX_MUL, n, NODE(x)->dims[i]);
        }
    }
    return n;
}

static tj_ref mean(struct tj_graph *g, tj_ref trace, tj_ref x, int64_t mask, bool keepdim) {
    tj_dtype d = (tj_dtype)NODE(x)->dtype;
    tj_ref n = cast(g, trace, extent(g, trace, product(g, x, mask)), d);
    return bin(g, trace, TJ_OP_DIV, reduce(g, trace, TJ_OP_SUM, d, x, mask, keepdim), n);
}

// Sum over the masked dims of (x - mean)^2; the mean is kept in *m (dims of extent 1).
static tj_ref squares(struct tj_graph *g, tj_ref trace, tj_ref x, int64_t mask, bool keepdim, tj_ref *diff) {
    tj_ref m = mean(g, trace, x, mask, true);
    *diff = bin(g, trace, TJ_OP_SUB, x, m);
    tj_ref sq = bin(g, trace, TJ_OP_MUL, *diff, *diff);
    return reduce(g, trace, TJ_OP_SUM, (tj_dtype)NODE(x)->dtype, sq, mask, keepdim);
}

// ---- extents ------------------------------------------------------------------------------------------------------

static tj_ex ex2(struct tj_graph *g, enum tj_ex_op op, tj_ex a, tj_ex b) { return tj_ex_bin(g->x, op, a, b); }
static tj_ex con(struct tj_graph *g, int64_t v) { return tj_ex_const(g->x, v); }

// Extent of a window op's result.
static tj_ex windows(struct tj_graph *g, tj_ex in, tj_ex kernel, int64_t stride, int64_t pad, int64_t dil,
                     bool ceil_mode) {
    tj_ex reach = ex2(g, TJ_EX_ADD, ex2(g, TJ_EX_MUL, ex2(g, TJ_EX_SUB, kernel, 1), con(g, dil)), 1);
    tj_ex span = ex2(g, TJ_EX_SUB, ex2(g, TJ_EX_ADD, in, con(g, 2 * pad)), reach);
    if (!ceil_mode) {
        return ex2(g, TJ_EX_ADD, ex2(g, TJ_EX_DIV, span, con(g, stride)), 1);
    }
    tj_ex up = ex2(g, TJ_EX_ADD, ex2(g, TJ_EX_DIV, ex2(g, TJ_EX_ADD, span, con(g, stride - 1)), con(g, stride)), 1);
    // No window starts beyond the right border.
    tj_ex start = ex2(g, TJ_EX_DIV, ex2(g, TJ_EX_ADD, in, con(g, pad - 1)), con(g, stride));
    return ex2(g, TJ_EX_MIN, up, ex2(g, TJ_EX_ADD, start, 1));
}

// The amounts of a PAD: constants, or symbols where they have been seen to vary.
static void padding(struct tj_graph *g, tj_ref r, struct tj_attr_padding *out) {
    const struct tj_node *n = &g->t->nodes[r];
    const struct tj_attr_pad *p = tj_node_attr(g->t, n);
    *out = (struct tj_attr_padding){.mode = p->mode};
    for (uint32_t d = 0; d < TJ_MAX_RANK; d++) {
        bool symbol = g->seg->dyn && g->seg->dyn->arg[r] >> d & 1;
        out->lo[d] = symbol ? canon(g, tj_ex_sym(g->x, TJ_EX_ATTR, r, 1 + d, p->lo[d])) : con(g, p->lo[d]);
        out->hi[d] =
            symbol ? canon(g, tj_ex_sym(g->x, TJ_EX_ATTR, r, 1 + TJ_MAX_RANK + d, p->hi[d])) : con(g, p->hi[d]);
    }
}

// Amounts that are constants of the program, for look-ups.
static void keep_amounts(struct tj_graph *g) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->t->nnodes; i++) {
        n += g->t->nodes[i].op == TJ_OP_PAD ? 2 * TJ_MAX_RANK : 0;
    }
    g->p->amounts = TJ_ARENA_NEW(g->arena, struct tj_amount, n + 1);
    for (uint32_t i = 0; i < g->t->nnodes && !g->arena->failed; i++) {
        for (uint32_t k = 0; g->t->nodes[i].op == TJ_OP_PAD && k < 2 * TJ_MAX_RANK; k++) {
            if (!(g->seg->dyn->arg[i] >> k % TJ_MAX_RANK & 1)) {
                g->p->amounts[g->p->namounts++] =
                    (struct tj_amount){i, 1 + k, g->t->attrs[g->t->nodes[i].attr + 1 + k]};
            }
        }
    }
}

// Extents from..to of a reshape's result, out of `whole` elements. Where one argument is open it follows from the rest;
// several become symbols. What is guessed here from values is checked when a plan is looked up.
static void regroup(struct tj_graph *g, tj_ref r, tj_ex whole, size_t from, size_t to, const int64_t *rec,
                    tj_ex *dims) {
    bool open[TJ_G_RANK] = {false};
    tj_ex rest = whole;
    size_t nopen = 0, last = to;
    for (size_t d = from; d < to; d++) {
        dims[d] = con(g, rec[d]);
        open[d] = varies(g, r, d, rec[d]) || (g->seg->dyn->args && !tj_ex_is_const(g->x, whole) && rec[d] > 1);
        nopen += open[d];
    }
    // Arguments that nobody has seen vary: a factor of the whole that has their value and is not likely another's, or a
    // constant.
    for (size_t k = 0; k < 2 * (to - from); k++) {
        size_t d = from + k % (to - from);
        bool seen = g->seg->dyn->arg[r] >> d & 1;
        tj_ex f = open[d] && seen == (k < to - from) ? tj_ex_factor(g->x, rest, rec[d]) : 0;
        if (f) {
            rest = ex2(g, TJ_EX_DIV, rest, f);
        }
        if (f && !seen) {
            dims[d] = f;
            open[d] = false;
            nopen--;
        }
    }
    int64_t coef = tj_ex_coefficient(g->x, rest);
    for (size_t d = to; d-- > from && nopen > (size_t)!tj_ex_is_const(g->x, rest);) {
        if (open[d] && !(g->seg->dyn->arg[r] >> d & 1) && rec[d] && coef % rec[d] == 0) {
            coef /= rec[d];
            open[d] = false;
            nopen--;
        }
    }
    tj_ex known = 1, product = 1;
    for (size_t d = from; d < to; d++) {
        if (open[d] && nopen > 1) {
            dims[d] = canon(g, tj_ex_sym(g->x, TJ_EX_ARG, r, (uint32_t)d, rec[d]));
        } else if (open[d]) {
            last = d;
            continue;
        }
        known = ex2(g, TJ_EX_MUL, known, dims[d]);
    }
    if (last < to && !(tj_ex_hint(g->x, known) > 0 && tj_ex_exact_div(g->x, whole, known, &dims[last]))) {
        dims[last] = tj_ex_sym(g->x, TJ_EX_ARG, r, (uint32_t)last, rec[last]);
    }
    for (size_t d = from; d < to; d++) {
        dims[d] = canon(g, dims[d]);
        product = ex2(g, TJ_EX_MUL, product, dims[d]);
    }
    equate(g, whole, product, r, nopen > 0);
}

// A reshape: dims that stay the same at the front and at the back, the rest anew.
static void reshape_extents(struct tj_graph *g, tj_ref r, const struct tj_gnode *a, const int64_t *rec, size_t rank,
                            tj_ex *dims) {
    size_t i = 0, j = 0;
    for (; i < rank && i < a->rank && rec[i] == tj_ex_hint(g->x, a->dims[i]); i++) {
        dims[i] = a->dims[i];
    }
    for (; j + i < rank && j + i < a->rank && rec[rank - 1 - j] == tj_ex_hint(g->x, a->dims[a->rank - 1 - j]); j++) {
        dims[rank - 1 - j] = a->dims[a->rank - 1 - j];
    }
    int64_t left = 1, right = 1;
    bool huge = false;
    for (size_t d = i; d < a->rank - j; d++) {
        huge |= __builtin_mul_overflow(left, tj_ex_hint(g->x, a->dims[d]), &left);
    }
    for (size_t d = i; d < rank - j; d++) {
        huge |= __builtin_mul_overflow(right, rec[d], &right);
    }
    if (left != right || huge) { // nothing has all kinds of shapes
        i = j = 0;
    }
    tj_ex whole = 1;
    for (size_t d = i; d < a->rank - j; d++) {
        whole = ex2(g, TJ_EX_MUL, whole, a->dims[d]);
    }
    if (i + j + 1 == rank) { // the rest is merged into one
        dims[i] = canon(g, whole);
    } else {
        regroup(g, r, whole, i, rank - j, rec, dims);
    }
}

// Extents of a node of a symbolic segment by the rule of its op.
static void extents(struct tj_graph *g, tj_ref r, const tj_ref *in, tj_ex *dims) {
    const struct tj_node *n = &g->t->nodes[r];
    size_t rank = tj_shape_rank(g->t, n->shape);
    const int64_t *rec = tj_shape_dims(g->t, n->shape);
    const void *attr = tj_node_attr(g->t, n);
    for (size_t d = 0; d < rank; d++) {
        dims[d] = con(g, rec[d]);
    }
    if (!g->seg->dyn) {
        return;
    }
    const struct tj_gnode *a = n->nin ? NODE(in[0]) : NULL, *b = n->nin > 1 ? NODE(in[1]) : NULL;
    switch (tj_ops[n->op].cls) {
    case TJ_SOURCE:
        if (n->op == TJ_OP_LEAF) {
            uint32_t leaf = (uint32_t)((const struct tj_attr_leaf *)attr)->index;
            for (uint32_t d = 0; d < rank; d++) {
                dims[d] = leaf_extent(g, leaf, d, rec[d]);
            }
        } else if (n->op == TJ_OP_ARANGE) {
            dims[0] = argument(g, r, 0, rec[0]);
        }
        return;
    case TJ_POINTWISE: broadcast(g, r, in, n->nin, dims); return;
    case TJ_REDUCE: {
        const struct tj_attr_reduce *p = attr;
        size_t out = 0;
        for (size_t d = 0; d < a->rank; d++) {
            bool red = p->mask >> d & 1;
            if (!red || p->keepdim) {
                dims[out++] = red ? 1 : a->dims[d];
            }
        }
        return;
    }
    case TJ_ROW:
        for (size_t d = 0; d < rank; d++) {
            dims[d] = a->dims[d];
        }
        for (size_t i = 1; i < n->nin; i++) { // weights agree with the normalised dims
            const struct tj_gnode *w = NODE(in[i]);
            for (size_t d = 0; d < w->rank; d++) {
                dims[rank - w->rank + d] = meet(g, dims[rank - w->rank + d], w->dims[d], r);
            }
        }
        return;
    case TJ_VIEW:
        if (n->op == TJ_OP_PERMUTE) {
            for (size_t d = 0; d < rank; d++) {
                dims[d] = a->dims[((const struct tj_attr_perm *)attr)->perm[d]];
            }
            return;
        }
        if (n->op == TJ_OP_RESHAPE) {
            reshape_extents(g, r, a, rec, rank, dims);
            return;
        }
        if (n->op == TJ_OP_EXPAND || n->op == TJ_OP_SLICE) {
            for (size_t d = 0; d < rank; d++) {
                bool has = d + a->rank >= rank;
                tj_ex e = has ? a->dims[d + a->rank - rank] : 1;
                if (has && tj_ex_hint(g->x, e) == rec[d]) {
                    dims[d] = e;
                    continue;
                }
                if (n->op == TJ_OP_EXPAND) {
                    (void)meet(g, e, con(g, rec[d]), r); // it grows: it is 1
                }
                dims[d] = argument(g, r, d, rec[d]);
            }
            return;
        }
        if (n->op == TJ_OP_UNFOLD) {
            const struct tj_attr_unfold *p = attr;
            for (size_t d = 0; d + 1 < rank; d++) {
                dims[d] =
                    (int64_t)d != p->dim ? a->dims[d] : windows(g, a->dims[d], con(g, p->size), p->step, 0, 1, false);
            }
            return;
        }
        if (n->op == TJ_OP_DIAGONAL) {
            const struct tj_attr_diagonal *p = attr;
            size_t out = 0;
            for (size_t d = 0; d < a->rank; d++) {
                if ((int64_t)d != p->d0 && (int64_t)d != p->d1) {
                    dims[out++] = a->dims[d];
                }
            }
            dims[out] = argument(g, r, out, rec[out]);
            return;
        }
        for (size_t d = 0; d < rank; d++) {
            dims[d] = argument(g, r, d, rec[d]);
        }
        return;
    case TJ_MOVE:
        switch (n->op) {
        case TJ_OP_RESHAPE_COPY: reshape_extents(g, r, a, rec, rank, dims); return;
        case TJ_OP_CAT: {
            size_t dim = (size_t)((const struct tj_attr_dim *)attr)->dim;
            for (size_t d = 0; d < rank; d++) {
                dims[d] = a->dims[d];
                for (size_t i = 1; i < n->nin; i++) {
                    tj_ex e = NODE(in[i])->dims[d];
                    dims[d] = d == dim ? ex2(g, TJ_EX_ADD, dims[d], e) : same(g, dims[d], e, r);
                }
            }
            return;
        }
        case TJ_OP_PAD: {
            struct tj_attr_padding p;
            padding(g, r, &p);
            for (size_t d = 0; d < rank; d++) {
                dims[d] = ex2(g, TJ_EX_ADD, ex2(g, TJ_EX_ADD, a->dims[d], (tj_ex)p.lo[d]), (tj_ex)p.hi[d]);
            }
            return;
        }
        case TJ_OP_GATHER:
            for (size_t d = 0; d < rank; d++) {
                dims[d] = b->dims[d];
            }
            return;
        case TJ_OP_INDEX_SELECT:
            for (size_t d = 0; d < rank; d++) {
                dims[d] = (int64_t)d == ((const struct tj_attr_dim *)attr)->dim ? b->dims[0] : a->dims[d];
            }
            return;
        case TJ_OP_INDEX_COPY: {
            const struct tj_gnode *src = NODE(in[2]);
            int64_t dim = ((const struct tj_attr_dim *)attr)->dim;
            for (size_t d = 0; d < rank; d++) {
                dims[d] = (int64_t)d == dim ? a->dims[d] : same(g, a->dims[d], src->dims[d], r);
            }
            if (rank) {
                same(g, b->dims[0], src->dims[dim], r);
            }
            return;
        }
        case TJ_OP_UPDATE: {
            const struct tj_gnode *v = NODE(in[2]);
            for (size_t d = 0; d < v->rank; d++) {
                same(g, v->dims[d], b->dims[d], r);
            }
        }
            // fallthrough
        default:
            for (size_t d = 0; d < rank; d++) {
                dims[d] = a->dims[d];
            }
            return;
        }
    case TJ_CONTRACT: {
        const struct tj_gnode *c = n->nin > 2 ? NODE(in[2]) : NULL;
        if (n->op == TJ_OP_MATMUL) {
            tj_ex e[2];
            size_t ra = a->rank, rb = b->rank;
            for (size_t d = 0; d + 2 < rank; d++) {
                e[0] = d + ra >= rank ? a->dims[d + ra - rank] : 1;
                e[1] = d + rb >= rank ? b->dims[d + rb - rank] : 1;
                dims[d] = meet(g, e[0], e[1], r);
            }
            same(g, a->dims[ra - 1], b->dims[rb - 2], r);
            dims[rank - 2] = a->dims[ra - 2];
            dims[rank - 1] = b->dims[rb - 1];
        } else if (n->op == TJ_OP_LINEAR) {
            for (size_t d = 0; d + 1 < rank; d++) {
                dims[d] = a->dims[d];
            }
            dims[rank - 1] = b->dims[0];
            same(g, a->dims[rank - 1], b->dims[1], r);
            if (c->rank) {
                same(g, c->dims[0], b->dims[0], r);
            }
        } else if (n->op == TJ_OP_CONV2D) {
            const struct tj_attr_conv *p = attr;
            dims[0] = a->dims[0];
            dims[1] = b->dims[0];
            same(g, a->dims[1], ex2(g, TJ_EX_MUL, b->dims[1], con(g, p->groups)), r);
            for (int d = 0; d < 2; d++) {
                dims[2 + d] =
                    windows(g, a->dims[2 + d], b->dims[2 + d], p->stride[d], p->padding[d], p->dilation[d], 0);
            }
            if (c->rank) {
                same(g, c->dims[0], b->dims[0], r);
            }
        } else { // SDPA
            for (size_t d = 0; d + 1 < rank; d++) {
                dims[d] = a->dims[d];
            }
            dims[rank - 1] = c->dims[rank - 1];
            same(g, a->dims[rank - 1], b->dims[rank - 1], r);
            for (size_t d = 0; d + 1 < rank; d++) {
                same(g, b->dims[d], c->dims[d], r);
            }
            bool gqa = ((const struct tj_attr_sdpa *)attr)->gqa;
            for (size_t d = 0; d + 2 < rank; d++) {
                if (!gqa || d + 3 != rank) {
                    dims[d] = meet(g, dims[d], b->dims[d], r);
                }
            }
            const struct tj_gnode *m = NODE(in[3]); // broadcast to [.., L, S]
            for (size_t d = 0; d < m->rank; d++) {
                size_t at = d + rank - m->rank;
                (void)meet(g, at + 1 == rank ? b->dims[rank - 2] : dims[at], m->dims[d], r);
            }
        }
        return;
    }
    case TJ_POOL: {
        const struct tj_attr_pool *p = attr;
        for (size_t d = 0; d + 2 < rank; d++) {
            dims[d] = a->dims[d];
        }
        for (size_t d = 0; d < 2; d++) {
            int64_t dil = n->op == TJ_OP_MAX_POOL2D ? p->dilation[d] : 1;
            dims[rank - 2 + d] =
                windows(g, a->dims[rank - 2 + d], con(g, p->kernel[d]), p->stride[d], p->padding[d], dil, p->ceil_mode);
        }
        return;
    }
    default: return;
    }
}

// ---- ops taken apart ----------------------------------------------------------------------------------------------

static tj_ref softmax(struct tj_graph *g, tj_ref r, tj_ref x, int64_t dim, bool logarithm) {
    int64_t mask = (int64_t)1 << dim;
    tj_dtype d = (tj_dtype)NODE(x)->dtype;
    tj_ref m = reduce(g, r, TJ_OP_AMAX, d, x, mask, true);
    tj_ref diff = bin(g, r, TJ_OP_SUB, x, m);
    tj_ref e = un(g, r, TJ_OP_EXP, diff);
    tj_ref s = reduce(g, r, TJ_OP_SUM, d, e, mask, true);
    return logarithm ? bin(g, r, TJ_OP_SUB, diff, un(g, r, TJ_OP_LOG, s)) : bin(g, r, TJ_OP_DIV, e, s);
}

static int64_t trailing(const struct tj_graph *g, tj_ref x, int64_t ndim) {
    int64_t rank = NODE(x)->rank, mask = 0;
    for (int64_t d = rank - ndim; d < rank; d++) {
        mask |= (int64_t)1 << d;
    }
    return mask;
}

// Integer product: multiply and sum over [.., M, N, K], wrapping.
static tj_ref int_matmul(struct tj_graph *g, tj_ref r, tj_ref a, tj_ref b, bool transposed) {
    tj_ex dims[TJ_G_RANK];
    tj_dtype d = (tj_dtype)NODE(a)->dtype;
    size_t ra = NODE(a)->rank, rb = NODE(b)->rank;
    if (!transposed) {
        struct tj_attr_perm p = {{0}};
        for (size_t i = 0; i < rb; i++) {
            size_t from = i + 2 < rb ? i : i + 1 == rb ? rb - 2 : rb - 1;
            p.perm[i] = (int64_t)from;
            dims[i] = NODE(b)->dims[from];
        }
        b = add(g, r, TJ_OP_PERMUTE, d, dims, rb, &b, 1, &p, WORDS(p));
    }
    // [.., M, K] -> [.., M, 1, K] and [.., N, K] -> [.., 1, N, K]
    for (size_t i = 0; i < ra; i++) {
        dims[i + (i + 1 == ra)] = NODE(a)->dims[i];
    }
    dims[ra - 1] = 1;
    a = reshape(g, r, a, dims, ra + 1);
    for (size_t i = 0; i < rb; i++) {
        dims[i + (i + 2 >= rb)] = NODE(b)->dims[i];
    }
    dims[rb - 2] = 1;
    b = reshape(g, r, b, dims, rb + 1);
    tj_ref m = bin(g, r, TJ_OP_MUL, a, b);
    return reduce(g, r, TJ_OP_SUM, d, m, (int64_t)1 << (NODE(m)->rank - 1), false);
}

// x with as much around its last two dims as windows reach over; what is added doesn't count.
static tj_ref margin(struct tj_graph *g, tj_ref r, tj_ref x, const struct tj_attr_pool *p, const tj_ex *out, bool max) {
    size_t rank = NODE(x)->rank;
    struct tj_attr_padding a = {.mode = max ? TJ_G_PAD_LEAST : TJ_G_PAD_ZERO};
    tj_ex dims[TJ_G_RANK];
    bool none = true;
    memcpy(dims, NODE(x)->dims, rank * sizeof *dims);
    for (size_t k = 0; k < 2; k++) {
        size_t d = rank - 2 + k;
        tj_ex last = ex2(g, TJ_EX_MUL, ex2(g, TJ_EX_SUB, out[d], 1), con(g, p->stride[k]));
        tj_ex end = ex2(g, TJ_EX_ADD, last, con(g, (p->kernel[k] - 1) * p->dilation[k] + 1 - p->padding[k]));
        a.lo[d] = con(g, p->padding[k]);
        a.hi[d] = ex2(g, TJ_EX_MAX, 0, ex2(g, TJ_EX_SUB, end, dims[d]));
        none = none && a.lo[d] == 0 && a.hi[d] == 0;
        dims[d] = ex2(g, TJ_EX_ADD, ex2(g, TJ_EX_ADD, dims[d], (tj_ex)a.lo[d]), (tj_ex)a.hi[d]);
    }
    if (none) {
        return x;
    }
    struct tj_gnode n = {.op = TJ_OP_PAD,
                         .dtype = NODE(x)->dtype,
                         .rank = (uint8_t)rank,
                         .flags = TJ_GF_FORCE,
                         .nin = 1,
                         .in = &x,
                         .dims = dims,
                         .attr = &a,
                         .nattr = WORDS(a),
                         .trace = r};
    return tj_g_add(g, &n);
}

// The windows of height (k is 0) or width of an x that had `rank` dims, as a new last dim; `out` of them.
static tj_ref slide(struct tj_graph *g, tj_ref r, tj_ref x, const struct tj_attr_pool *p, size_t rank, size_t k,
                    tj_ex out) {
    size_t n = NODE(x)->rank, d = rank - 2 + k;
    tj_ex dims[TJ_G_RANK];
    struct tj_attr_unfold u = {(int64_t)d, (p->kernel[k] - 1) * p->dilation[k] + 1, p->stride[k]};
    memcpy(dims, NODE(x)->dims, n * sizeof *dims);
    dims[d] = out;
    dims[n] = con(g, u.size);
    struct tj_gnode w = {.op = TJ_OP_UNFOLD,
                         .dtype = NODE(x)->dtype,
                         .rank = (uint8_t)(n + 1),
                         .flags = TJ_GF_MANY,
                         .nin = 1,
                         .in = &x,
                         .dims = dims,
                         .attr = &u,
                         .nattr = WORDS(u),
                         .trace = r};
    x = tj_g_add(g, &w);
    if (p->dilation[k] == 1) {
        return x;
    }
    struct tj_attr_slice s = {(int64_t)n, p->dilation[k]};
    tj_ref in[2] = {x, extent(g, r, 0)};
    dims[n] = con(g, p->kernel[k]);
    w.op = TJ_OP_SLICE;
    w.nin = 2;
    w.in = in;
    w.attr = &s;
    w.nattr = WORDS(s);
    return tj_g_add(g, &w);
}

// Windows of many taps are loops of a kernel. The largest element is found along rows first, then down columns; a sum
// goes over both, row by row.
static tj_ref wide_windows(struct tj_graph *g, tj_ref r, tj_ref x, const struct tj_attr_pool *p, const tj_ex *out,
                           bool max) {
    tj_dtype d = (tj_dtype)NODE(x)->dtype;
    size_t rank = NODE(x)->rank;
    x = margin(g, r, x, p, out, max);
    if (!max) {
        struct tj_attr_reduce a = {.mask = (int64_t)3 << rank};
        x = slide(g, r, slide(g, r, x, p, rank, 0, out[rank - 2]), p, rank, 1, out[rank - 1]);
        return add(g, r, TJ_G_CHAIN, d, out, rank, &x, 1, &a, WORDS(a));
    }
    for (size_t k = 2; k-- > 0;) {
        tj_ex dims[TJ_G_RANK];
        struct tj_attr_reduce a = {.mask = (int64_t)1 << rank};
        x = slide(g, r, x, p, rank, k, out[rank - 2 + k]);
        memcpy(dims, NODE(x)->dims, rank * sizeof *dims);
        struct tj_gnode n = {.op = TJ_OP_AMAX,
                             .dtype = (uint8_t)d,
                             .rank = (uint8_t)rank,
                             .flags = k ? TJ_GF_FORCE : 0,
                             .nin = 1,
                             .in = &x,
                             .dims = dims,
                             .attr = &a,
                             .nattr = WORDS(a),
                             .trace = r};
        x = tj_g_add(g, &n);
    }
    return x;
}

static tj_ref pool(struct tj_graph *g, tj_ref r, tj_ref x, const struct tj_attr_pool *p, const tj_ex *dims, bool max) {
    enum { FEW = 16 }; // taps that are written out
    tj_dtype d = (tj_dtype)NODE(x)->dtype;
    size_t rank = NODE(x)->rank;
    struct tj_attr_taps taps = {.pool = *p, .max = max};
    if (!max) {
        taps.pool.dilation[0] = taps.pool.dilation[1] = 1;
    }
    taps.guarded = p->padding[0] || p->padding[1] || p->ceil_mode;
    int64_t total = INT64_MAX;
    (void)tj_size_mul(p->kernel[0], p->kernel[1], &total);
    tj_ref acc = total > FEW ? wide_windows(g, r, x, &taps.pool, dims, max)
                             : add(g, r, TJ_G_TAPS, d, dims, rank, &x, 1, &taps, WORDS(taps));
    if (max) {
        return acc;
    }
    tj_ref count;
    if (p->divisor) {
        count = extent(g, r, con(g, p->divisor));
    } else if (!taps.guarded || (p->include_pad && !p->ceil_mode)) {
        count = extent(g, r, con(g, total));
    } else {
        taps.h = NODE(x)->dims[rank - 2];
        taps.w = NODE(x)->dims[rank - 1];
        count = add(g, r, TJ_G_COUNT, TRACE_I64, dims + rank - 2, 2, NULL, 0, &taps, WORDS(taps));
    }
    return bin(g, r, TJ_OP_DIV, acc, cast(g, r, count, d));
}

// An operand before it was widened from 16 bits, which contractions do as they read: x of cast(x), view(x) of
// view(cast(x)). Memory that is written stays behind the cast, which reads it where it stands.
static tj_ref narrow(struct tj_graph *g, tj_ref n, int depth) {
    struct tj_gnode d = *NODE(n);
    if (!g->simplify || d.dtype != TRACE_F32 || depth > 8) {
        return n;
    }
    if (d.op == TJ_OP_CAST) {
        tj_ref x = d.in[0], base = x;
        while (tj_g_view(NODE(base)->op)) {
            base = NODE(base)->in[0];
        }
        bool kept = g->mutates && (NODE(base)->op == TJ_OP_LEAF || NODE(base)->op == TJ_OP_UPDATE);
        if (kept && NODE(base)->op == TJ_OP_LEAF) {
            const struct tj_attr_leaf *leaf = NODE(base)->attr;
            const struct tj_leaf_key *k = &g->t->leafkeys[leaf->index];
            kept = (k->flags & TJ_LEAF_WRITTEN) || k->group;
        }
        return tj_is_half(NODE(x)->dtype) && !kept ? x : n;
    }
    if (!tj_g_view(d.op) || d.nin > 4) {
        return n;
    }
    tj_ref in[4], x = narrow(g, d.in[0], depth + 1);
    if (x == d.in[0] || g->failed) {
        return n;
    }
    memcpy(in, d.in, d.nin * sizeof *in);
    in[0] = x;
    d.in = in;
    d.dtype = NODE(x)->dtype;
    return tj_g_add(g, &d);
}

static tj_ref contraction(struct tj_graph *g, tj_ref r, const tj_ref *in, const tj_ex *dims) {
    const struct tj_node *n = &g->t->nodes[r];
    size_t rank = tj_shape_rank(g->t, n->shape);
    tj_dtype d = (tj_dtype)n->dtype, c = tj_compute_dtype(n->dtype);
    const void *attr = tj_node_attr(g->t, n);
    if (!tj_is_float(d) && (n->op == TJ_OP_MATMUL || n->op == TJ_OP_LINEAR)) {
        tj_ref y = int_matmul(g, r, in[0], in[1], n->op == TJ_OP_LINEAR);
        if (n->op == TJ_OP_LINEAR && ((const struct tj_attr_bias *)attr)->has_bias) {
            y = bin(g, r, TJ_OP_ADD, y, in[2]);
        }
        return y;
    }
    tj_ref args[5];
    for (uint32_t i = 0; i < n->nin; i++) {
        bool mask = n->op == TJ_OP_SDPA && i == 3; // is read as bool or as the scores are
        args[i] = mask             ? NODE(in[i])->dtype == TRACE_BOOL ? in[i] : cast(g, r, in[i], c)
                              : c != TRACE_F32 ? in[i]
                                   : narrow(g, in[i], 0);
    }
    // Scalars stand for absent operands and for SDPA's scale; casts of scalars would hide the parameter.
    for (uint32_t i = 0; i < n->nin; i++) {
        args[i] = NODE(in[i])->op == TJ_OP_SCALAR ? in[i] : args[i];
    }
    return cast(g, r, add(g, r, n->op, c, dims, rank, args, n->nin, attr, n->nattr), d);
}

static tj_ref make(struct tj_graph *g, tj_ref r, const tj_ref *in) {
    const struct tj_node *n = &g->t->nodes[r];
    size_t rank = tj_shape_rank(g->t, n->shape);
    tj_dtype d = (tj_dtype)n->dtype, c = tj_compute_dtype(n->dtype);
    const void *attr = tj_node_attr(g->t, n);
    tj_ex dims[TJ_G_RANK];
    extents(g, r, in, dims);
    if (g->x->failed || g->arena->failed || g->failed) {
        g->failed = true;
        return 0;
    }
    for (size_t i = 0; i < rank; i++) { // the rules above against what the recorder inferred
        if (tj_ex_hint(g->x, dims[i]) != tj_shape_dims(g->t, n->shape)[i]) {
            (void)tj_fail(TRACE_ERR_COMPILE, "internal: extent %zu of %s has the wrong expression", i,
                          tj_ops[n->op].name);
            g->failed = g->wrong = true;
            return 0;
        }
        dims[i] = canon(g, dims[i]);
        if (g->p->extents) {
            g->p->extents[g->p->extent_at[r] + i] = dims[i];
        }
    }
    switch (n->op) {
    case TJ_OP_LEAF: {
        const struct tj_leaf_key *k = &g->t->leafkeys[((const struct tj_attr_leaf *)attr)->index];
        struct tj_gnode l = {.op = n->op,
                             .dtype = n->dtype,
                             .rank = (uint8_t)rank,
                             .dims = dims,
                             .attr = attr,
                             .nattr = n->nattr,
                             .trace = r,
                             .flags = k->group ? TJ_GF_NOCSE : 0};
        return tj_g_add(g, &l);
    }
    case TJ_OP_SCALAR: {
        struct tj_gnode s = {.op = n->op, .dtype = n->dtype, .attr = attr, .nattr = n->nattr, .trace = r};
        uint32_t p = (uint32_t)((const struct tj_attr_param *)attr)->index;
        if (d == TRACE_I64) {
            s.ex = tj_ex_sym(g->x, TJ_EX_PARAM, p, 0, g->t->params[p].v.i);
        }
        return tj_g_add(g, &s);
    }
    case TJ_OP_UPDATE: // no element is written: the old content
        if (NODE(in[2])->op == TJ_G_NOTHING || tj_g_nothing(NODE(in[2])->dims, NODE(in[2])->rank)) {
            return in[0];
        }
        return add(g, r, n->op, d, dims, rank, in, n->nin, attr, n->nattr);
    case TJ_OP_CAT: { // of the pieces that have elements
        tj_ref *some = TJ_ARENA_NEW(g->arena, tj_ref, n->nin);
        uint32_t kept = 0;
        for (uint32_t i = 0; some && i < n->nin; i++) {
            if (!tj_g_nothing(NODE(in[i])->dims, NODE(in[i])->rank)) {
                some[kept++] = in[i];
            }
        }
        g->failed = g->failed || !some;
        return add(g, r, n->op, d, dims, rank, kept ? some : in, kept ? kept : n->nin, attr, n->nattr);
    }
    case TJ_OP_RESHAPE_COPY: {
        // A copy only where that shows: what it was made of, or the copy itself, is memory that is written.
        tj_ref x = reshape(g, r, in[0], dims, rank);
        return g->written[r] || (g->mutates && tj_g_memory(g, x)) ? add(g, r, TJ_OP_COPY, d, dims, rank, &x, 1, NULL, 0)
                                                                  : x;
    }
    case TJ_OP_PAD: {
        struct tj_attr_padding p;
        padding(g, r, &p);
        return add(g, r, n->op, d, dims, rank, in, n->nin, &p, WORDS(p));
    }
    case TJ_OP_SUM: {
        const struct tj_attr_reduce *p = attr;
        return cast(g, r, reduce(g, r, TJ_OP_SUM, c, cast(g, r, in[0], c), p->mask, p->keepdim), d);
    }
    case TJ_OP_MEAN: {
        const struct tj_attr_reduce *p = attr;
        return cast(g, r, mean(g, r, cast(g, r, in[0], c), p->mask, p->keepdim), d);
    }
    case TJ_OP_VAR: {
        const struct tj_attr_reduce *p = attr;
        tj_ref x = cast(g, r, in[0], c), diff;
        tj_ref s = squares(g, r, x, p->mask, p->keepdim, &diff);
        tj_ex e = ex2(g, TJ_EX_MAX, 0, ex2(g, TJ_EX_SUB, product(g, x, p->mask), con(g, p->correction)));
        return cast(g, r, bin(g, r, TJ_OP_DIV, s, cast(g, r, extent(g, r, e), c)), d);
    }
    case TJ_OP_AMAX:
    case TJ_OP_AMIN:
    case TJ_OP_ARGMAX:
    case TJ_OP_ARGMIN:
    case TJ_OP_ANY:
    case TJ_OP_ALL: {
        const struct tj_attr_reduce *p = attr;
        return reduce(g, r, (enum tj_op)n->op, d, in[0], p->mask, p->keepdim);
    }
    case TJ_OP_SOFTMAX:
    case TJ_OP_LOG_SOFTMAX:
        return cast(
            g, r,
            rank == 0
                ? softmax(g, r, cast(g, r, reshape(g, r, in[0], (tj_ex[]){1}, 1), c), 0, n->op != TJ_OP_SOFTMAX)
                : softmax(g, r, cast(g, r, in[0], c), ((const struct tj_attr_dim *)attr)->dim, n->op != TJ_OP_SOFTMAX),
            d);
    case TJ_OP_LAYER_NORM: {
        tj_ref x = cast(g, r, in[0], c), diff;
        int64_t mask = trailing(g, x, ((const struct tj_attr_norm *)attr)->ndim);
        tj_ref s = squares(g, r, x, mask, true, &diff);
        tj_ref var = bin(g, r, TJ_OP_DIV, s, cast(g, r, extent(g, r, product(g, x, mask)), c));
        tj_ref inv = un(g, r, TJ_OP_RSQRT, bin(g, r, TJ_OP_ADD, var, cast(g, r, in[3], c)));
        tj_ref y = bin(g, r, TJ_OP_MUL, bin(g, r, TJ_OP_MUL, diff, inv), cast(g, r, in[1], c));
        return cast(g, r, bin(g, r, TJ_OP_ADD, y, cast(g, r, in[2], c)), d);
    }
    case TJ_OP_RMS_NORM: {
        tj_ref x = cast(g, r, in[0], c);
        int64_t mask = trailing(g, x, ((const struct tj_attr_norm *)attr)->ndim);
        tj_ref ms = mean(g, r, bin(g, r, TJ_OP_MUL, x, x), mask, true);
        tj_ref inv = un(g, r, TJ_OP_RSQRT, bin(g, r, TJ_OP_ADD, ms, cast(g, r, in[2], c)));
        return cast(g, r, bin(g, r, TJ_OP_MUL, bin(g, r, TJ_OP_MUL, x, inv), cast(g, r, in[1], c)), d);
    }
    case TJ_OP_MAX_POOL2D: return pool(g, r, in[0], attr, dims, true);
    case TJ_OP_AVG_POOL2D: return cast(g, r, pool(g, r, cast(g, r, in[0], c), attr, dims, false), d);
    case TJ_OP_MATMUL:
    case TJ_OP_LINEAR:
    case TJ_OP_CONV2D:
    case TJ_OP_SDPA: return contraction(g, r, in, dims);
    case TJ_OP_ARANGE: {
        // Computed in i64 or f64 (the dtype of its operands), then cast.
        tj_dtype wide = (tj_dtype)NODE(in[0])->dtype;
        return cast(g, r, add(g, r, TJ_OP_ARANGE, wide, dims, rank, in, n->nin, NULL, 0), d);
    }
    default: return add(g, r, n->op, d, dims, rank, in, n->nin, attr, n->nattr);
    }
}

bool tj_g_equal(const struct tj_graph *g, tj_ex a, tj_ex b) { return a == b || canon(g, a) == canon(g, b); }

bool tj_g_nothing(const tj_ex *dims, size_t rank) {
    for (size_t d = 0; d < rank; d++) {
        if (dims[d] == 0) {
            return true;
        }
    }
    return false;
}

tj_ex tj_g_elems(struct tj_graph *g, tj_ref n) {
    const struct tj_gnode *d = NODE(n);
    tj_ex e = tj_g_nothing(d->dims, d->rank) ? 0 : 1;
    for (size_t j = 0; e && j < d->rank; j++) {
        e = tj_ex_bin(g->x, TJ_EX_MUL, e, d->dims[j]);
    }
    return e;
}

int64_t tj_g_numel_hint(const struct tj_graph *g, tj_ref n) {
    int64_t e = 1;
    for (int d = 0; d < g->nodes[n].rank; d++) {
        int64_t v = tj_ex_hint(g->x, g->nodes[n].dims[d]);
        if (v == 0) {
            return 0;
        }
        if (__builtin_mul_overflow(e, v, &e)) {
            e = INT64_MAX;
        }
    }
    return e;
}

static tj_status out_of_memory(void) { return tj_fail(TRACE_ERR_MEMORY, "out of memory while compiling"); }

static tj_status build_once(struct tj_graph *g) {
    const struct tj_trace *t = g->t;
    uint8_t *reached = tj_calloc(t->nnodes ? t->nnodes : 1, 1);
    if (!reached) {
        return out_of_memory();
    }
    for (uint32_t i = 0; i < g->seg->nouts; i++) {
        reached[g->seg->outs[i]] = 1;
    }
    for (uint32_t i = 0; i < g->seg->nwrites; i++) {
        reached[g->seg->writes[i]] = 1;
    }
    for (uint32_t i = t->nnodes; i-- > 0;) {
        const struct tj_node *n = &t->nodes[i];
        const tj_ref *in = tj_node_in(t, n);
        if (reached[i] && n->op == TJ_OP_REPEAT_OUT) { // what is in the loop is not part of this graph
            tj_status s = tj_g_loop_needs(g, i, reached);
            if (s) {
                tj_free(reached);
                return s;
            }
            continue;
        }
        for (uint32_t j = 0; reached[i] && j < n->nin; j++) {
            reached[in[j]] = 1;
        }
        if (reached[i] && n->op == TJ_OP_UPDATE) {
            g->written[in[0]] = g->mutates = true;
        }
    }
    tj_ref *in = NULL;
    uint32_t cap = 0;
    for (uint32_t i = 0; i < t->nnodes && !g->failed; i++) {
        g->map[i] = TJ_NIL;
        if (!reached[i]) {
            continue;
        }
        const struct tj_node *n = &t->nodes[i];
        const tj_ref *from = tj_node_in(t, n);
        if (!tj_grow((void **)&in, &cap, n->nin + 1, sizeof *in)) {
            g->failed = true;
            break;
        }
        if (n->op == TJ_OP_REPEAT_OUT) {
            g->map[i] = tj_g_loop(g, i);
            continue;
        }
        for (uint32_t j = 0; j < n->nin; j++) {
            in[j] = g->map[from[j]];
        }
        g->map[i] = make(g, i, in);
    }
    tj_free(in);
    tj_free(reached);
    if (g->failed) {
        return g->wrong ? TRACE_ERR_COMPILE : out_of_memory();
    }
    for (uint32_t i = 0; i < g->seg->nouts; i++) {
        g->outs[i] = g->map[g->seg->outs[i]];
    }
    for (uint32_t i = 0; i < g->seg->nwrites; i++) {
        g->writes[i] = g->map[g->seg->writes[i]];
    }
    return TRACE_OK;
}

// The symbols that bucketed extents have become.
static tj_status keep_capacities(struct tj_graph *g) {
    g->p->caps = TJ_ARENA_NEW(g->arena, struct tj_bucket, g->seg->ncaps + 1);
    if (g->arena->failed) {
        return out_of_memory();
    }
    for (uint32_t i = 0; g->seg->dyn && i < g->seg->ncaps; i++) {
        const struct tj_capacity *c = &g->seg->caps[i];
        int64_t size = tj_shape_dims(g->t, g->t->leafkeys[c->leaf].shape)[c->dim];
        tj_ex e = leaf_extent(g, c->leaf, c->dim, size);
        if (g->x->nodes[e].op == TJ_EX_EXTENT || g->x->nodes[e].op == TJ_EX_ARG) {
            g->p->caps[g->p->ncaps++] = (struct tj_bucket){e, c->size};
        }
    }
    return g->x->failed ? out_of_memory() : TRACE_OK;
}

tj_status tj_graph_build(struct tj_graph *g) {
    uint32_t n = g->t->nnodes ? g->t->nnodes : 1;
    g->map = TJ_ARENA_NEW(g->arena, tj_ref, n);
    g->written = TJ_ARENA_NEW(g->arena, bool, n);
    g->outs = TJ_ARENA_NEW(g->arena, tj_ref, g->seg->nouts + 1);
    g->writes = TJ_ARENA_NEW(g->arena, tj_ref, g->seg->nwrites + 1);
    if (g->seg->dyn) {
        uint32_t at = 0;
        g->p->extent_at = TJ_ARENA_NEW(g->arena, uint32_t, n);
        for (uint32_t i = 0; !g->arena->failed && i < g->t->nnodes; i++) {
            g->p->extent_at[i] = at;
            at += (uint32_t)tj_shape_rank(g->t, g->t->nodes[i].shape);
        }
        g->p->extents = TJ_ARENA_NEW(g->arena, tj_ex, at + 1);
        g->p->nextents = at;
        keep_amounts(g);
        keep_sizes(g);
    }
    if (g->arena->failed) {
        return out_of_memory();
    }
    // Extents found equal are one symbol in the next try; each try finds new ones or ends.
    for (int tries = 0; tries < 64; tries++) {
        g->again = false;
        g->n = 0;
        for (uint32_t i = 0; i < g->p->nextents; i++) {
            g->p->extents[i] = TJ_EX_NONE;
        }
        if (g->tablesize) {
            memset(g->table, 0, g->tablesize * sizeof *g->table);
        }
        tj_status s = build_once(g);
        if (s || !g->again) {
            return s ? s : keep_capacities(g);
        }
    }
    return tj_fail(TRACE_ERR_COMPILE, "internal: equal extents come to no end");
}

void tj_graph_free(struct tj_graph *g) {
    tj_free(g->nodes);
    tj_free(g->table);
    tj_free(g->equal);
    tj_free(g->replaced);
    g->nodes = NULL;
    g->table = NULL;
    g->equal = NULL;
    g->replaced = NULL;
}
