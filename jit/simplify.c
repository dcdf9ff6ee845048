// jit/simplify.c: what happens to a node before it joins the graph: exact algebra, view composition, CSE.
//
// Everything here keeps every bit under IEEE rules and reads no parameter's value. Rewrites look only at operands,
// which are already in their final form, so one pass in program order is enough.
#include "graph.h"

#include "../lib/hash.h"

static bool same_dims(const struct tj_gnode *a, const struct tj_gnode *b) {
    return a->rank == b->rank && (!a->rank || memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0);
}

// Whether converting `from` to `mid` keeps every value.
static bool widens(uint8_t from, uint8_t mid) {
    if (from == mid) {
        return true;
    }
    switch (from) {
    case TRACE_BOOL: return true;
    case TRACE_U8: return mid != TRACE_BOOL; // 255 is exact in f16 and bf16
    case TRACE_I32: return mid == TRACE_I64 || mid == TRACE_F64;
    case TRACE_F16:
    case TRACE_BF16: return mid == TRACE_F32 || mid == TRACE_F64;
    case TRACE_F32: return mid == TRACE_F64;
    default: return false;
    }
}

// Whether converting by way of `mid` gives what converting to `to` at once gives: the first step loses nothing, and the
// second means the same from either dtype. It doesn't where an integer becomes narrower: integers wrap, floats
// saturate.
static bool passes(uint8_t from, uint8_t mid, uint8_t to) {
    bool narrows = from == TRACE_I32 && to == TRACE_U8;
    return widens(from, mid) && !(narrows && tj_is_float((tj_dtype)mid));
}

// A value whose memory is nobody else's, so that a copy of it is itself.
static bool fresh(const struct tj_graph *g, tj_ref n) {
    uint16_t op = g->nodes[n].op;
    return op != TJ_OP_LEAF && op != TJ_OP_UPDATE && !tj_g_view(op) && !(g->nodes[n].flags & TJ_GF_FORCE);
}

static bool written(const struct tj_graph *g, tj_ref n) {
    return g->nodes[n].trace != TJ_NIL && g->written[g->nodes[n].trace];
}

bool tj_g_memory(const struct tj_graph *g, tj_ref n) {
    while (tj_g_view(g->nodes[n].op)) {
        n = g->nodes[n].in[0];
    }
    return g->nodes[n].op == TJ_OP_LEAF || g->nodes[n].op == TJ_OP_UPDATE;
}

// Returns a node that n equals, or TJ_NIL after possibly changing n (and its attribute, in *perm).
static tj_ref rewrite(const struct tj_graph *g, struct tj_gnode *n, tj_ref *in, struct tj_attr_perm *perm) {
    const struct tj_gnode *a = n->nin ? &g->nodes[in[0]] : NULL;
    switch (n->op) {
    case TJ_OP_CAST:
        if (a->dtype == n->dtype) {
            return in[0];
        }
        if (a->op == TJ_OP_CAST && passes(g->nodes[a->in[0]].dtype, a->dtype, n->dtype)) {
            in[0] = a->in[0];
            if (g->nodes[in[0]].dtype == n->dtype) {
                return in[0];
            }
        }
        return TJ_NIL;
    case TJ_OP_NEG:
    case TJ_OP_BITWISE_NOT: return a->op == n->op ? a->in[0] : TJ_NIL;
    case TJ_OP_LOGICAL_NOT: return a->op == n->op && g->nodes[a->in[0]].dtype == TRACE_BOOL ? a->in[0] : TJ_NIL;
    case TJ_OP_ABS:
    case TJ_OP_RELU:
    case TJ_OP_FLOOR:
    case TJ_OP_CEIL:
    case TJ_OP_TRUNC:
    case TJ_OP_ROUND: return a->op == n->op ? in[0] : TJ_NIL;
    case TJ_OP_WHERE: return in[1] == in[2] && same_dims(&g->nodes[in[1]], n) ? in[1] : TJ_NIL;
    case TJ_OP_LOGICAL_AND:
    case TJ_OP_LOGICAL_OR:
    case TJ_OP_BITWISE_AND:
    case TJ_OP_BITWISE_OR:
    case TJ_OP_MAXIMUM:
    case TJ_OP_MINIMUM:
        return in[0] == in[1] && a->dtype == n->dtype && (n->op != TJ_OP_LOGICAL_AND || a->dtype == TRACE_BOOL) &&
                       (n->op != TJ_OP_LOGICAL_OR || a->dtype == TRACE_BOOL)
                   ? in[0]
                   : TJ_NIL;
    case TJ_OP_RESHAPE:
        while (g->nodes[in[0]].op == TJ_OP_RESHAPE && !written(g, in[0])) {
            in[0] = g->nodes[in[0]].in[0];
        }
        return same_dims(&g->nodes[in[0]], n) ? in[0] : TJ_NIL;
    case TJ_OP_EXPAND:
        if (same_dims(a, n)) {
            return in[0];
        }
        if (a->op == TJ_OP_EXPAND && !written(g, in[0])) { // (views of memory stay views of that)
            in[0] = a->in[0];
        }
        return TJ_NIL;
    case TJ_OP_PERMUTE: {
        const struct tj_attr_perm *p = n->attr;
        if (a->op == TJ_OP_PERMUTE) {
            const struct tj_attr_perm *q = a->attr;
            *perm = (struct tj_attr_perm){{0}};
            for (int i = 0; i < n->rank; i++) {
                perm->perm[i] = q->perm[p->perm[i]];
            }
            n->attr = p = perm;
            in[0] = a->in[0];
        }
        for (int i = 0; i < n->rank; i++) {
            if (p->perm[i] != i) {
                return TJ_NIL;
            }
        }
        return in[0];
    }
    case TJ_OP_COPY: return fresh(g, in[0]) && !written(g, in[0]) && !(n->flags & TJ_GF_FORCE) ? in[0] : TJ_NIL;
    default: return TJ_NIL;
    }
}

static uint64_t hash(const struct tj_gnode *n) {
    uint64_t h =
        tj_hash_mix((uint64_t)n->op << 32 | (uint64_t)n->dtype << 16 | n->rank, (uint64_t)n->ex << 32 | n->flags);
    h = tj_hash_bytes(n->dims, n->rank * sizeof *n->dims, h);
    h = tj_hash_bytes(n->in, n->nin * sizeof *n->in, h);
    return n->nattr ? tj_hash_bytes(n->attr, n->nattr * 8u, h) : h;
}

static bool equal(const struct tj_gnode *a, const struct tj_gnode *b) {
    return a->op == b->op && a->dtype == b->dtype && a->flags == b->flags && a->nin == b->nin && a->ex == b->ex &&
           a->nattr == b->nattr && same_dims(a, b) && (!a->nin || memcmp(a->in, b->in, a->nin * sizeof *a->in) == 0) &&
           (!a->nattr || memcmp(a->attr, b->attr, a->nattr * 8u) == 0);
}

static bool grow_table(struct tj_graph *g) {
    uint32_t size = g->tablesize ? g->tablesize * 2 : 512;
    uint32_t *table = tj_calloc(size, sizeof *table);
    if (!table) {
        return false;
    }
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t h = (uint32_t)hash(&g->nodes[i]) & (size - 1);
        while (table[h]) {
            h = (h + 1) & (size - 1);
        }
        table[h] = i + 1;
    }
    tj_free(g->table);
    g->table = table;
    g->tablesize = size;
    return true;
}

// Whether a value has no element, whatever sizes a run has. What a loop carries stays the loop's.
static bool nothing(const struct tj_graph *g, const struct tj_gnode *n) {
    switch (n->op) {
    case TJ_OP_UPDATE:
    case TJ_G_REPEAT:
    case TJ_G_RESULT:
    case TJ_G_NOTHING: return false;
    default: return tj_g_nothing(n->dims, n->rank) || (tj_g_view(n->op) && g->nodes[n->in[0]].op == TJ_G_NOTHING);
    }
}

tj_ref tj_g_add(struct tj_graph *g, const struct tj_gnode *given) {
    enum { SMALL = 8 };
    struct tj_gnode n = *given;
    if (nothing(g, given)) { // needs no operand: no index is looked at, no extent divided by
        n = (struct tj_gnode){.op = TJ_G_NOTHING, .dtype = n.dtype, .rank = n.rank, .dims = n.dims, .trace = n.trace};
        given = &n;
    }
    struct tj_attr_perm perm;
    tj_ref small[SMALL], *in = small;
    if (n.nin > SMALL) {
        in = TJ_ARENA_NEW(g->arena, tj_ref, n.nin);
        if (!in) {
            g->failed = true;
            return 0;
        }
    }
    if (n.nin) {
        memcpy(in, n.in, n.nin * sizeof *in);
    }
    bool cse = g->simplify && n.op != TJ_OP_UPDATE && n.op != TJ_OP_LEAF;
    for (uint32_t i = 0; i < n.nin; i++) {
        uint8_t f = g->nodes[in[i]].flags & TJ_GF_NOCSE;
        cse = cse && !f;
        if (f && i == 0 && tj_g_view(n.op)) {
            n.flags |= TJ_GF_NOCSE;
        }
    }
    n.in = in;
    if (g->simplify) {
        // Commutative operands in one order, so that equal nodes look equal.
        if (n.op < TJ_OP_COUNT && tj_ops[n.op].flags & TJ_FLAG_C && n.nin == 2 && in[0] > in[1] &&
            !tj_is_float((tj_dtype)g->nodes[in[0]].dtype)) {
            tj_ref s = in[0];
            in[0] = in[1];
            in[1] = s;
        }
        tj_ref r = rewrite(g, &n, in, &perm);
        // Memory that is written has its content read where the op stands: no reading it past that.
        bool late = g->mutates && n.nin && !tj_g_view(n.op) && tj_g_memory(g, r == TJ_NIL ? in[0] : r);
        if (late && (r != TJ_NIL || in[0] != given->in[0])) {
            memcpy(in, given->in, n.nin * sizeof *in);
            n.attr = given->attr;
            r = TJ_NIL;
        }
        if (r != TJ_NIL) {
            return r;
        }
    }
    if ((g->n + 1) * 2 > g->tablesize && !grow_table(g)) {
        g->failed = true;
        return 0;
    }
    uint32_t h = (uint32_t)hash(&n) & (g->tablesize - 1);
    for (; g->table[h]; h = (h + 1) & (g->tablesize - 1)) {
        if (cse && equal(&g->nodes[g->table[h] - 1], &n)) {
            return g->table[h] - 1;
        }
    }
    if (!tj_grow((void **)&g->nodes, &g->cap, g->n + 1, sizeof *g->nodes)) {
        g->failed = true;
        return 0;
    }
    if (in == small && n.nin) {
        tj_ref *own = TJ_ARENA_NEW(g->arena, tj_ref, n.nin);
        if (own) {
            memcpy(own, small, n.nin * sizeof *own);
        }
        n.in = own;
    }
    if (n.rank) {
        tj_ex *dims = TJ_ARENA_NEW(g->arena, tj_ex, n.rank);
        if (dims) {
            memcpy(dims, n.dims, n.rank * sizeof *dims);
        }
        n.dims = dims;
    }
    if (n.nattr) {
        int64_t *attr = TJ_ARENA_NEW(g->arena, int64_t, n.nattr);
        if (attr) {
            memcpy(attr, n.attr, n.nattr * 8u);
        }
        n.attr = attr;
    }
    if (g->arena->failed) {
        g->failed = true;
        return 0;
    }
    g->nodes[g->n] = n;
    g->table[h] = g->n + 1;
    return g->n++;
}

tj_ref tj_g_scalar_index(const struct tj_graph *g, tj_ref n) {
    if (g->nodes[n].op != TJ_OP_SCALAR) {
        return TJ_NIL;
    }
    return (tj_ref)((const struct tj_attr_param *)g->nodes[n].attr)->index;
}
