// trace/dynamic.c: traces of the same ops over other extents: comparing them, and which extents become symbols.
#include "dynamic.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "../lib/hash.h"
#include "region.h"

// ---- alike ----------------------------------------------------------------------------------------------------------

// Leading words of a node's attributes that traces have to share to be alike; the rest are amounts that shape its
// result.
static size_t fixed_words(const struct tj_node *n) { return n->op == TJ_OP_PAD ? 1 : n->nattr; }

static bool alike_leaf(const struct tj_leaf_key *a, const struct tj_leaf_key *b) {
    return a->dtype == b->dtype && a->rank == b->rank && a->layout == b->layout && a->flags == b->flags &&
           a->group == b->group && a->input == b->input;
}

static uint16_t alike_op(const struct tj_node *n) { return n->op == TJ_OP_RESHAPE_COPY ? TJ_OP_RESHAPE : n->op; }

static tj_ref root_of(const struct tj_trace *t, tj_ref n, bool views) {
    while (t->nodes[n].op == TJ_OP_UPDATE || (views && tj_ops[t->nodes[n].op].cls == TJ_VIEW))
        n = tj_node_in(t, &t->nodes[n])[0];
    return n;
}

// Whether no write tells if reshape i of t is a view or a copy, which depends on extents of 1: neither its operand's
// memory nor its own is written.
static bool never_told(const struct tj_trace *t, tj_ref i) {
    tj_ref root = root_of(t, t->nodes[i].in[0], true);
    for (uint32_t k = 0; k < t->nnodes; k++) {
        if (t->nodes[k].op != TJ_OP_UPDATE)
            continue;
        tj_ref w = root_of(t, k, false);
        if (w == root || w == i || (t->nodes[w].op == TJ_OP_LEAF && t->nodes[root].op == TJ_OP_LEAF))
            return false;
    }
    return true;
}

bool tj_trace_alike(const struct tj_trace *a, const struct tj_trace *b) {
    if (a->nnodes != b->nnodes || a->nattrs != b->nattrs || a->noperands != b->noperands || a->nleaves != b->nleaves ||
        !tj_same(a->operands, b->operands, a->noperands * sizeof *a->operands))
        return false;
    for (uint32_t i = 0; i < a->nnodes; i++) {
        const struct tj_node *x = &a->nodes[i], *y = &b->nodes[i];
        if (alike_op(x) != alike_op(y) || x->dtype != y->dtype || x->nattr != y->nattr || x->nin != y->nin ||
            x->attr != y->attr || memcmp(x->in, y->in, sizeof x->in) || a->dims[x->shape] != b->dims[y->shape] ||
            (x->nattr && memcmp(a->attrs + x->attr, b->attrs + y->attr, fixed_words(x) * sizeof *a->attrs)))
            return false;
        if (x->op != y->op && !(never_told(a, i) && never_told(b, i)))
            return false;
    }
    for (uint32_t i = 0; i < a->nleaves; i++) {
        if (!alike_leaf(&a->leafkeys[i], &b->leafkeys[i]))
            return false;
    }
    return true;
}

uint64_t tj_trace_alike_hash(const struct tj_trace *t) {
    if (tj_hash_collide)
        return 0;
    uint64_t h = t->nnodes;
    for (uint32_t i = 0; i < t->nnodes; i++) {
        const struct tj_node *n = &t->nodes[i];
        h = tj_hash_mix(h, (uint64_t)alike_op(n) << 48 | (uint64_t)n->dtype << 40 | (uint64_t)n->nattr << 32 | n->nin);
        h = tj_hash_mix(h, (uint64_t)n->in[0] << 32 | n->in[1]);
        h = tj_hash_mix(h, (uint64_t)n->in[2] << 32 | (n->in[3] ^ (uint32_t)t->dims[n->shape] << 24));
        if (n->nattr)
            h = tj_hash_bytes(t->attrs + n->attr, fixed_words(n) * sizeof *t->attrs, h);
    }
    h = tj_hash_bytes(t->operands, t->noperands * sizeof *t->operands, h);
    for (uint32_t i = 0; i < t->nleaves; i++) {
        const struct tj_leaf_key *k = &t->leafkeys[i];
        h = tj_hash_mix(h, (uint64_t)k->dtype << 48 | (uint64_t)k->layout << 32 | (uint64_t)k->flags << 16 | k->group);
    }
    return h;
}

bool tj_shape_is_argument(uint16_t op) {
    return op == TJ_OP_RESHAPE || op == TJ_OP_RESHAPE_COPY || op == TJ_OP_EXPAND || op == TJ_OP_SLICE ||
           op == TJ_OP_AS_STRIDED || op == TJ_OP_ARANGE || op == TJ_OP_DIAGONAL;
}

static uint8_t differing(const struct tj_trace *a, uint32_t x, const struct tj_trace *b, uint32_t y) {
    const int64_t *p = tj_shape_dims(a, x), *q = tj_shape_dims(b, y);
    uint8_t mask = 0;
    for (size_t d = 0, rank = tj_shape_rank(a, x); d < rank; d++) {
        if (p[d] != q[d])
            mask |= (uint8_t)(1u << d);
    }
    return mask;
}

// Dims of a node's result whose extents differ as arguments: given as such, or by amounts added.
static uint8_t differing_arguments(const struct tj_trace *a, const struct tj_trace *b, uint32_t n) {
    if (tj_shape_is_argument(a->nodes[n].op))
        return differing(a, a->nodes[n].shape, b, b->nodes[n].shape);
    uint8_t mask = 0;
    if (a->nodes[n].op == TJ_OP_PAD) {
        const struct tj_attr_pad *p = tj_node_attr(a, &a->nodes[n]), *q = tj_node_attr(b, &b->nodes[n]);
        for (int d = 0; d < TJ_MAX_RANK; d++)
            mask |= (uint8_t)((p->lo[d] != q->lo[d] || p->hi[d] != q->hi[d]) << d);
    }
    return mask;
}

// ---- masks ----------------------------------------------------------------------------------------------------------

bool tj_dynamic_init(struct tj_dynamic *d, const struct tj_trace *t) {
    *d = (struct tj_dynamic){.leaf = tj_calloc(t->nleaves + t->nnodes + 1, 1)};
    if (!d->leaf)
        return false;
    d->arg = d->leaf + t->nleaves;
    return true;
}

void tj_dynamic_free(struct tj_dynamic *d) {
    tj_free(d->leaf);
    *d = (struct tj_dynamic){0};
}

bool tj_dynamic_any(const struct tj_dynamic *d, const struct tj_trace *t) {
    bool any = false;
    for (uint32_t i = 0; i < t->nleaves + t->nnodes; i++)
        any |= d->leaf[i] != 0;
    return any;
}

void tj_dynamic_differ(struct tj_dynamic *d, const struct tj_trace *a, const struct tj_trace *b) {
    for (uint32_t i = 0; i < a->nleaves; i++)
        d->leaf[i] |= differing(a, a->leafkeys[i].shape, b, b->leafkeys[i].shape);
    for (uint32_t i = 0; i < a->nnodes; i++)
        d->arg[i] |= differing_arguments(a, b, i);
}

void tj_dynamic_merge(struct tj_dynamic *d, const struct tj_dynamic *from, const struct tj_trace *t) {
    for (uint32_t i = 0; i < t->nleaves + t->nnodes; i++)
        d->leaf[i] |= from->leaf[i];
    d->args |= from->args;
}

bool tj_dynamic_equal(const struct tj_dynamic *a, const struct tj_dynamic *b, const struct tj_trace *t) {
    return a->args == b->args && !memcmp(a->leaf, b->leaf, t->nleaves + t->nnodes);
}

bool tj_dynamic_covers(const struct tj_dynamic *d, const struct tj_trace *a, const struct tj_trace *b) {
    for (uint32_t i = 0; i < a->nleaves; i++) {
        if (differing(a, a->leafkeys[i].shape, b, b->leafkeys[i].shape) & ~d->leaf[i])
            return false;
    }
    for (uint32_t i = 0; i < a->nnodes && !d->args; i++) {
        if (differing_arguments(a, b, i) & ~d->arg[i])
            return false;
    }
    return true;
}

// ---- text -----------------------------------------------------------------------------------------------------------

// "x0.1" is dim 1 of leaf 0, "n7.1" dim 1 of the result of node 7, "n7.a2" an amount of node 7.
static void put_symbol(const struct tj_trace *t, char kind, uint32_t i, uint32_t d, bool amount, char *buf,
                       size_t cap) {
    char op[260];
    uint32_t captured = 0;
    if (kind == 'n') {
        const char *name = i < t->nnodes ? tj_op_text(t, i, op, sizeof op) : "an op";
        if (amount)
            (void)snprintf(buf, cap, "an amount of %s", name);
        else
            (void)snprintf(buf, cap, "dim %u of %s", d, name);
        return;
    }
    for (uint32_t k = 0; k < i && k < t->nleaves; k++)
        captured += !t->leafkeys[k].input;
    if (i < t->nleaves && t->leafkeys[i].input)
        (void)snprintf(buf, cap, "dim %u of input %u", d, t->leafkeys[i].input - 1);
    else
        (void)snprintf(buf, cap, "dim %u of captured tensor %u", d, captured);
}

const char *tj_symbol_text(const struct tj_trace *t, const char *expr, char *buf, size_t cap) {
    size_t n = 0;
    buf[0] = '\0';
    for (const char *s = expr; *s && n + 1 < cap;) {
        char *end, word[320];
        uint32_t i = (uint32_t)strtoul(s + 1, &end, 10);
        bool symbol = (*s == 'x' || *s == 'n') && end > s + 1 && *end == '.', amount = symbol && end[1] == 'a';
        const char *from = end + 1 + amount;
        if (!symbol || !isdigit((unsigned char)*from)) {
            buf[n++] = *s++;
            buf[n] = '\0';
            continue;
        }
        put_symbol(t, *s, i, (uint32_t)strtoul(from, &end, 10), amount, word, sizeof word);
        bool alone = s == expr && !*end;
        (void)snprintf(buf + n, cap - n, alone ? "%s" : "(%s)", word);
        n += strlen(buf + n);
        s = end;
    }
    return buf;
}

// ---- leaves without memory ------------------------------------------------------------------------------------------

bool tj_shadow_leaves(const struct tj_trace *t, struct tj_leaf **leaves) {
    static struct tj_storage none = {.flags = TJ_ST_PLACEHOLDER};
    size_t n = t->nleaves ? t->nleaves : 1, head = (n * sizeof **leaves + 63) / 64 * 64;
    unsigned char *m = tj_calloc(1, head + n * sizeof(struct trace_tensor));
    if (!m)
        return false;
    struct trace_tensor *tensors = (struct trace_tensor *)(void *)(m + head);
    *leaves = (struct tj_leaf *)(void *)m;
    for (uint32_t i = 0; i < t->nleaves; i++) {
        const struct tj_leaf_key *k = &t->leafkeys[i];
        struct trace_tensor *x = &tensors[i];
        atomic_init(&x->refs, 1);
        x->dtype = k->dtype;
        x->rank = k->rank;
        x->layout = k->layout;
        x->st = &none;
        x->internal = true;
        memcpy(x->dims, tj_shape_dims(t, k->shape), k->rank * sizeof *x->dims);
        (void)tj_numel(x->dims, k->rank, &x->numel);
        int64_t packed = 1; // strides of that layout class
        for (int d = k->rank; d-- > 0;) {
            switch (k->layout >> 2 * d & 3) {
            case TJ_LAY_BROADCAST: x->strides[d] = 0; break;
            case TJ_LAY_UNIT: x->strides[d] = 1; break;
            case TJ_LAY_STRIDED: x->strides[d] = packed < 2 ? 3 : packed + 16; break;
            default: x->strides[d] = packed; break;
            }
            packed = tj_stride_times(x->strides[d], x->dims[d] > 0 ? x->dims[d] : 1);
        }
        (*leaves)[i].tensor = x;
    }
    return true;
}
