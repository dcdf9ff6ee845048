// trace/reason.c: why a plan doesn't serve a segment: the first guard that differs, in words and numbers.
#include "reason.h"

#include <stdio.h>

#include "repeats.h"

static const char *layout_word(tj_layout l, size_t rank) {
    if (!l)
        return "contiguous";
    for (size_t i = 0; i < rank; i++) {
        if ((l >> 2 * i & 3) == TJ_LAY_BROADCAST)
            return "broadcast";
    }
    if (rank >= 3 && (l >> 2 & 3) == TJ_LAY_UNIT)
        return "channels-last";
    return "strided";
}

// "input 0" or "captured tensor 2", and its number for the event: declared ones first.
static int leaf_name(const struct tj_trace *t, uint32_t i, uint32_t declared, char *buf, size_t cap) {
    if (t->leafkeys[i].input) {
        (void)snprintf(buf, cap, "input %u", t->leafkeys[i].input - 1);
        return (int)t->leafkeys[i].input - 1;
    }
    int captured = 0;
    for (uint32_t k = 0; k < i; k++)
        captured += !t->leafkeys[k].input;
    (void)snprintf(buf, cap,
                   t->leafkeys[i].flags & TJ_LEAF_CARRIED ? "value %d kept across the break" : "captured tensor %d",
                   captured);
    return (int)declared + captured;
}

// First guard of a leaf that differs; false: none.
static bool leaf_differs(const struct tj_trace *old, const struct tj_trace *new, uint32_t i, uint32_t declared,
                         struct tj_recompile *r) {
    const struct tj_leaf_key *a = &old->leafkeys[i], *b = &new->leafkeys[i];
    char name[64];
    int number = leaf_name(new, i, declared, name, sizeof name);
    r->input = number;
    r->dim = -1;
    if (a->dtype != b->dtype) {
        r->from = a->dtype, r->to = b->dtype;
        (void)snprintf(r->text, sizeof r->text, "%s: dtype %s became %s", name, tj_dtypes[a->dtype].name,
                       tj_dtypes[b->dtype].name);
        return true;
    }
    if (a->rank != b->rank) {
        r->from = a->rank, r->to = b->rank;
        (void)snprintf(r->text, sizeof r->text, "%s: rank %d became %d", name, a->rank, b->rank);
        return true;
    }
    const int64_t *x = tj_shape_dims(old, a->shape), *y = tj_shape_dims(new, b->shape);
    for (int d = 0; d < b->rank; d++) {
        if (x[d] == y[d])
            continue;
        r->dim = d, r->from = x[d], r->to = y[d];
        (void)snprintf(r->text, sizeof r->text, "%s: extent of dim %d was %lld, is %lld", name, d, (long long)x[d],
                       (long long)y[d]);
        return true;
    }
    if (a->layout != b->layout) {
        r->from = a->layout, r->to = b->layout;
        (void)snprintf(r->text, sizeof r->text, "%s: layout was %s, is %s", name, layout_word(a->layout, a->rank),
                       layout_word(b->layout, b->rank));
        return true;
    }
    if (a->group != b->group) {
        r->from = a->group, r->to = b->group;
        (void)snprintf(r->text, sizeof r->text,
                       b->group ? "%s: shares memory with another tensor, one of them written"
                                : "%s: shares no memory any more",
                       name);
        return true;
    }
    if (a->flags != b->flags) {
        r->from = a->flags, r->to = b->flags;
        (void)snprintf(r->text, sizeof r->text, "%s: %s", name,
                       (a->flags ^ b->flags) & TJ_LEAF_WRITTEN    ? "written by the ops, or no longer"
                       : (a->flags ^ b->flags) & TJ_LEAF_VOLATILE ? "memory is borrowed, or no longer"
                                                                  : "computed by an earlier segment, or no longer");
        return true;
    }
    if (a->input != b->input) {
        r->from = (int64_t)a->input - 1, r->to = (int64_t)b->input - 1;
        (void)snprintf(r->text, sizeof r->text, "%s: was declared as another input, or captured", name);
        return true;
    }
    return false;
}

// Nodes alike up to shapes.
static bool same_op(const struct tj_trace *a, const struct tj_trace *b, uint32_t i) {
    const struct tj_node *x = &a->nodes[i], *y = &b->nodes[i];
    return x->op == y->op && x->nin == y->nin && !memcmp(tj_node_in(a, x), tj_node_in(b, y), x->nin * sizeof(tj_ref));
}

uint32_t tj_common_ops(const struct tj_trace *a, const struct tj_trace *b) {
    uint32_t n = a->nnodes < b->nnodes ? a->nnodes : b->nnodes, i = 0;
    while (i < n && same_op(a, b, i))
        i++;
    return i;
}

// How far the leaves of two traces are apart: what differs, dtype and rank counting more.
uint32_t tj_leaf_distance(const struct tj_trace *a, const struct tj_trace *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->nleaves && i < b->nleaves; i++) {
        const struct tj_leaf_key *x = &a->leafkeys[i], *y = &b->leafkeys[i];
        n += 16u * (x->dtype != y->dtype) + (x->layout != y->layout) + (x->flags != y->flags) + (x->group != y->group);
        if (x->rank != y->rank) {
            n += 8;
            continue;
        }
        const int64_t *dx = tj_shape_dims(a, x->shape), *dy = tj_shape_dims(b, y->shape);
        for (int d = 0; d < x->rank; d++)
            n += dx[d] != dy[d];
    }
    return n;
}

// A guard of a symbolic plan that a segment with trace `t` misses.
static void explain_guard(const struct tj_trace *t, const struct tj_guard_miss *miss, uint32_t declared,
                          struct tj_recompile *r) {
    char name[260], x[180], y[180];
    const struct tj_node *n = &t->nodes[miss->node];
    long long want = miss->want, have = miss->have;
    bool constant = !miss->text[strspn(miss->text, "0123456789")];
    r->dim = miss->dim, r->from = miss->want, r->to = miss->have;
    if (n->op == TJ_OP_LEAF)
        r->input = leaf_name(t, (uint32_t)((const struct tj_attr_leaf *)tj_node_attr(t, n))->index, declared, name,
                             sizeof name);
    else
        (void)tj_op_text(t, miss->node, name, sizeof name);
    if (miss->dim < 0) {
        (void)tj_symbol_text(t, miss->text, x, sizeof x);
        (void)tj_symbol_text(t, miss->other, y, sizeof y);
        if (constant)
            (void)snprintf(r->text, sizeof r->text, "guard of %s: %s has to be %lld in that graph, is %lld", name, y,
                           want, have);
        else
            (void)snprintf(r->text, sizeof r->text,
                           "guard of %s: %s and %s have to be equal in that graph, are %lld and "
                           "%lld",
                           name, x, y, want, have);
    } else if (n->op == TJ_OP_PAD) {
        r->varies = true;
        (void)snprintf(r->text, sizeof r->text, "argument of %s: padding of dim %d was %lld, is %lld", name, miss->dim,
                       want, have);
    } else if (constant) {
        r->varies = true;
        (void)snprintf(r->text, sizeof r->text, "%s%s: extent of dim %d was %lld, is %lld",
                       n->op == TJ_OP_LEAF ? "" : "shape argument of ", name, miss->dim, want, have);
    } else {
        (void)snprintf(r->text, sizeof r->text, "%s: extent of dim %d equals %s in that graph (%lld), is %lld", name,
                       miss->dim, tj_symbol_text(t, miss->text, x, sizeof x), want, have);
    }
}

// Why `old` doesn't serve a segment with trace `new`.
void tj_reason_find(const struct tj_entry *old, const struct tj_segment *s, uint32_t declared, struct tj_recompile *r) {
    const struct tj_trace *a = &old->trace, *b = s->trace;
    char x[260], y[260];
    *r = (struct tj_recompile){.input = -1, .dim = -1};
    for (uint32_t i = 0; i < s->ncaps && i < old->seg.ncaps; i++) {
        const struct tj_capacity *p = &old->seg.caps[i], *q = &s->caps[i];
        char name[64];
        if (p->size == q->size || !tj_trace_alike(a, b))
            continue;
        r->input = leaf_name(b, q->leaf, declared, name, sizeof name);
        r->dim = (int)q->dim, r->from = p->size, r->to = q->size;
        (void)snprintf(r->text, sizeof r->text, "%s: the bucket of dim %d was %lld, is %lld", name, r->dim,
                       (long long)p->size, (long long)q->size);
        return;
    }
    struct tj_guard_miss miss = {.node = TJ_NIL}; // stays so when memory is what is missing
    if (old->symbolic && old->plan && tj_relatives(old, s) && !old->ctx->backend->serves(old->plan, b, &miss) &&
        miss.node < b->nnodes) {
        explain_guard(b, &miss, declared, r);
        return;
    }
    uint32_t same = tj_common_ops(a, b);
    struct tj_repeats loop;
    if ((same < a->nnodes || same < b->nnodes) && tj_repeats_find(a, b, &loop)) {
        r->from = loop.from, r->to = loop.to;
        (void)snprintf(
            r->text, sizeof r->text,
            "the ops at %s were recorded %lld times, are now %lld times (a host loop? trace_repeat makes the "
            "count a parameter)",
            loop.where, (long long)loop.from, (long long)loop.to);
        return;
    }
    if (same < a->nnodes || same < b->nnodes) {
        if (same < a->nnodes && same < b->nnodes)
            (void)snprintf(r->text, sizeof r->text, "recorded ops differ: %s instead of %s",
                           tj_op_text(b, same, x, sizeof x), tj_op_text(a, same, y, sizeof y));
        else if (same < b->nnodes)
            (void)snprintf(r->text, sizeof r->text, "recorded ops differ: %u more, from %s on", b->nnodes - same,
                           tj_op_text(b, same, x, sizeof x));
        else
            (void)snprintf(r->text, sizeof r->text, "recorded ops differ: %u fewer, without %s", a->nnodes - same,
                           tj_op_text(a, same, x, sizeof x));
        return;
    }
    for (uint32_t i = 0; i < a->nleaves && i < b->nleaves; i++) {
        if (leaf_differs(a, b, i, declared, r))
            return;
    }
    *r = (struct tj_recompile){.input = -1, .dim = -1};
    for (uint32_t i = 0; i < b->nnodes; i++) {
        const struct tj_node *m = &a->nodes[i], *n = &b->nodes[i];
        if (m->dtype != n->dtype) {
            r->from = m->dtype, r->to = n->dtype;
            (void)snprintf(r->text, sizeof r->text, "dtype of %s: %s became %s", tj_op_text(b, i, x, sizeof x),
                           tj_dtypes[m->dtype].name, tj_dtypes[n->dtype].name);
            return;
        }
        const int64_t *p = a->attrs + m->attr, *q = b->attrs + n->attr;
        for (uint32_t k = 0; k < n->nattr && k < m->nattr; k++) {
            if (p[k] == q[k])
                continue;
            r->from = p[k], r->to = q[k];
            (void)snprintf(r->text, sizeof r->text, "argument of %s: attribute %u was %lld, is %lld",
                           tj_op_text(b, i, x, sizeof x), k, (long long)p[k], (long long)q[k]);
            return;
        }
        size_t ra = tj_shape_rank(a, m->shape), rb = tj_shape_rank(b, n->shape);
        const int64_t *da = tj_shape_dims(a, m->shape), *db = tj_shape_dims(b, n->shape);
        for (size_t d = 0; ra == rb && d < rb; d++) {
            if (da[d] == db[d])
                continue;
            r->dim = (int)d, r->from = da[d], r->to = db[d];
            (void)snprintf(r->text, sizeof r->text, "shape argument of %s: extent of dim %zu was %lld, is %lld",
                           tj_op_text(b, i, x, sizeof x), d, (long long)da[d], (long long)db[d]);
            return;
        }
    }
    if (!tj_same_refs(old->seg.outs, old->seg.nouts, s->outs, s->nouts))
        (void)snprintf(r->text, sizeof r->text, "other outputs are asked for: %u instead of %u", s->nouts,
                       old->seg.nouts);
    else if (!tj_same_refs(old->seg.writes, old->seg.nwrites, s->writes, s->nwrites))
        (void)snprintf(r->text, sizeof r->text, "other tensors are written: %u instead of %u", s->nwrites,
                       old->seg.nwrites);
    else
        (void)snprintf(r->text, sizeof r->text, "equal extents have become different ones, or the other way round");
}
