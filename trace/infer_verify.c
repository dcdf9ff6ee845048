// trace/infer_verify.c: checks a trace against the rules of ir.h and ops.def.
#include <stdarg.h>
#include <stdio.h>

#include "ir.h"

struct check {
    const struct tj_trace *t;
    char *err;
    size_t cap;
    uint32_t node;
};

static bool bad(const struct check *c, const char *fmt, ...) TJ_PRINTF(2, 3);
static bool bad(const struct check *c, const char *fmt, ...) {
    if (c->cap) {
        int n = c->node < c->t->nnodes
                    ? snprintf(c->err, c->cap, "%%%u (%s): ", c->node,
                               c->t->nodes[c->node].op < TJ_OP_COUNT ? tj_ops[c->t->nodes[c->node].op].name : "?")
                    : 0;
        if (n >= 0 && (size_t)n < c->cap) {
            va_list ap;
            va_start(ap, fmt);
            (void)vsnprintf(c->err + n, c->cap - (size_t)n, fmt, ap);
            va_end(ap);
        }
    }
    return false;
}

static bool shape_ok(const struct tj_trace *t, uint32_t shape) {
    int64_t n;
    return shape < t->ndims && t->dims[shape] >= 0 && t->dims[shape] <= TJ_MAX_RANK &&
           (uint64_t)shape + 1 + (uint64_t)t->dims[shape] <= t->ndims &&
           tj_numel(t->dims + shape + 1, (size_t)t->dims[shape], &n);
}

static size_t attr_words(enum tj_op op) {
    switch (op) {
    case TJ_OP_LEAF:
    case TJ_OP_SCALAR:
    case TJ_OP_SOFTMAX:
    case TJ_OP_LOG_SOFTMAX:
    case TJ_OP_CAT:
    case TJ_OP_GATHER:
    case TJ_OP_INDEX_SELECT:
    case TJ_OP_INDEX_COPY:
    case TJ_OP_LAYER_NORM:
    case TJ_OP_RMS_NORM:
    case TJ_OP_FLIP:
    case TJ_OP_LINEAR:
    case TJ_OP_REPEAT_IN:
    case TJ_OP_REPEAT_OUT: return 1;
    case TJ_OP_SUM:
    case TJ_OP_MEAN:
    case TJ_OP_VAR:
    case TJ_OP_AMAX:
    case TJ_OP_AMIN:
    case TJ_OP_ARGMAX:
    case TJ_OP_ARGMIN:
    case TJ_OP_ANY:
    case TJ_OP_ALL: return sizeof(struct tj_attr_reduce) / 8;
    case TJ_OP_PERMUTE: return sizeof(struct tj_attr_perm) / 8;
    case TJ_OP_SLICE: return sizeof(struct tj_attr_slice) / 8;
    case TJ_OP_DIAGONAL: return sizeof(struct tj_attr_diagonal) / 8;
    case TJ_OP_UNFOLD: return sizeof(struct tj_attr_unfold) / 8;
    case TJ_OP_AS_STRIDED: return sizeof(struct tj_attr_strides) / 8;
    case TJ_OP_PAD: return sizeof(struct tj_attr_pad) / 8;
    case TJ_OP_CONV2D: return sizeof(struct tj_attr_conv) / 8;
    case TJ_OP_SDPA: return sizeof(struct tj_attr_sdpa) / 8;
    case TJ_OP_MAX_POOL2D:
    case TJ_OP_AVG_POOL2D: return sizeof(struct tj_attr_pool) / 8;
    default: return 0;
    }
}

struct side {
    const struct tj_node *n;
    size_t rank;
    const int64_t *dims;
    int64_t numel;
};

static struct side side(const struct tj_trace *t, tj_ref r) {
    struct side s = {&t->nodes[r], tj_shape_rank(t, t->nodes[r].shape), tj_shape_dims(t, t->nodes[r].shape), 0};
    (void)tj_numel(s.dims, s.rank, &s.numel);
    return s;
}

static bool fits(const struct side *small, const struct side *big) { // broadcasts to
    if (small->rank > big->rank) {
        return false;
    }
    for (size_t i = 1; i <= small->rank; i++) {
        int64_t a = small->dims[small->rank - i], b = big->dims[big->rank - i];
        if (a != b && a != 1) {
            return false;
        }
    }
    return true;
}

static bool equal_dims(const struct side *a, const struct side *b) {
    return a->rank == b->rank && (a->rank == 0 || !memcmp(a->dims, b->dims, a->rank * sizeof *a->dims));
}

// A SCALAR may stand where a tensor is optional, and keeps the precision of eps and scale.
static bool is_scalar(const struct side *s) { return s->n->op == TJ_OP_SCALAR; }

static bool dtypes_ok(const struct check *c, const struct side *o, const struct side *in, uint32_t nin) {
    enum tj_op op = (enum tj_op)o->n->op;
    bool same = tj_ops[op].rule == TJ_RULE_SAME || tj_ops[op].rule == TJ_RULE_FLOAT;
    if (tj_ops[op].rule == TJ_RULE_FLOAT && !tj_is_float((tj_dtype)o->n->dtype)) {
        return bad(c, "result is %s, not a float", tj_dtypes[o->n->dtype].name);
    }
    if (tj_ops[op].rule == TJ_RULE_BOOL && o->n->dtype != TRACE_BOOL) {
        return bad(c, "result is %s, not bool", tj_dtypes[o->n->dtype].name);
    }
    for (uint32_t i = 0; i < nin; i++) {
        uint8_t d = in[i].n->dtype, want = o->n->dtype;
        bool eps = (op == TJ_OP_LAYER_NORM && i == 3) || (op == TJ_OP_RMS_NORM && i == 2) ||
                   (op == TJ_OP_BATCH_NORM && i == 5) || (op == TJ_OP_SDPA && i == 4);
        bool index = (op == TJ_OP_SLICE || op == TJ_OP_DIAGONAL || op == TJ_OP_AS_STRIDED || op == TJ_OP_GATHER ||
                      op == TJ_OP_INDEX_SELECT || op == TJ_OP_INDEX_COPY) &&
                     i == 1;
        if (index) {
            want = TRACE_I64;
        } else if (eps) {
            want = tj_dtypes[want].compute;
        } else if ((op == TJ_OP_WHERE && i == 0) || op == TJ_OP_ANY || op == TJ_OP_ALL) {
            want = TRACE_BOOL;
        } else if (op == TJ_OP_SDPA && i == 3 && d == TRACE_BOOL) {
            want = TRACE_BOOL;
        } else if (tj_ops[op].rule == TJ_RULE_BOOL) {
            want = in[0].n->dtype;
        } else if (op == TJ_OP_ARANGE) {
            want = tj_is_float((tj_dtype)want) ? TRACE_F64 : TRACE_I64;
        } else if (!same && op != TJ_OP_WHERE && op != TJ_OP_SUM && op != TJ_OP_GATHER && op != TJ_OP_INDEX_SELECT &&
                   op != TJ_OP_INDEX_COPY) {
            continue;
        }
        if (d != want) {
            return bad(c, "operand %u is %s, not %s", i, tj_dtypes[d].name, tj_dtypes[want].name);
        }
    }
    return true;
}

static bool shapes_ok(const struct check *c, const struct side *o, const struct side *in, uint32_t nin) {
    const struct tj_trace *t = c->t;
    const void *attr = tj_node_attr(t, o->n);
    enum tj_op op = (enum tj_op)o->n->op;
    switch (tj_ops[op].cls) {
    case TJ_POINTWISE: {
        bool grown[TJ_MAX_RANK] = {false};
        for (uint32_t i = 0; i < nin; i++) {
            if (!fits(&in[i], o)) {
                return bad(c, "operand %u does not broadcast to the result", i);
            }
            for (size_t k = 1; k <= in[i].rank; k++) {
                grown[o->rank - k] |= in[i].dims[in[i].rank - k] == o->dims[o->rank - k];
            }
        }
        for (size_t k = 0; k < o->rank; k++) {
            if (!grown[k] && o->dims[k] != 1) {
                return bad(c, "no operand has extent %lld of dim %zu", (long long)o->dims[k], k);
            }
        }
        return true;
    }
    case TJ_REDUCE: {
        const struct tj_attr_reduce *a = attr;
        size_t k = 0;
        for (size_t i = 0; i < in[0].rank; i++) {
            bool r = a->mask >> i & 1;
            if (!r || a->keepdim) {
                if (k >= o->rank || o->dims[k++] != (r ? 1 : in[0].dims[i])) {
                    return bad(c, "shape is not that of the operand without the reduced dims");
                }
            }
        }
        return (k == o->rank && !(a->mask >> in[0].rank)) || bad(c, "rank or mask do not fit the operand");
    }
    case TJ_ROW: return equal_dims(o, &in[0]) || bad(c, "shape is not the operand's");
    case TJ_VIEW:
        if (op == TJ_OP_RESHAPE && o->numel != in[0].numel) {
            return bad(c, "%lld elements of %lld", (long long)o->numel, (long long)in[0].numel);
        }
        if (op == TJ_OP_EXPAND && !fits(&in[0], o)) {
            return bad(c, "the operand does not expand to the shape");
        }
        if (op == TJ_OP_PERMUTE) {
            const struct tj_attr_perm *a = attr;
            unsigned seen = 0;
            for (size_t i = 0; i < o->rank; i++) {
                if (a->perm[i] < 0 || a->perm[i] >= (int64_t)in[0].rank || o->dims[i] != in[0].dims[a->perm[i]]) {
                    return bad(c, "dim %zu is not dim %lld of the operand", i, (long long)a->perm[i]);
                }
                seen |= 1u << a->perm[i];
            }
            return seen == (1u << in[0].rank) - 1 || bad(c, "perm is no permutation");
        }
        if (op == TJ_OP_SLICE) {
            const struct tj_attr_slice *a = attr;
            bool ok = a->dim >= 0 && a->dim < (int64_t)in[0].rank && a->step >= 1 && o->rank == in[0].rank &&
                      is_scalar(&in[1]);
            if (ok) {
                int64_t start = t->params[((const struct tj_attr_param *)tj_node_attr(t, in[1].n))->index].v.i;
                int64_t n = o->dims[a->dim];
                ok = start >= 0 && start <= in[0].dims[a->dim] &&
                     (n == 0 || (n - 1) * a->step + start < in[0].dims[a->dim]);
            }
            return ok || bad(c, "the slice reaches outside the operand");
        }
        return true;
    case TJ_MOVE:
        if (op == TJ_OP_UPDATE) {
            return (equal_dims(o, &in[0]) && equal_dims(&in[1], &in[2])) || bad(c, "shapes of memory, value and view");
        }
        if (op == TJ_OP_RESHAPE_COPY && o->numel != in[0].numel) {
            return bad(c, "%lld elements of %lld", (long long)o->numel, (long long)in[0].numel);
        }
        if (op == TJ_OP_COPY || op == TJ_OP_FLIP || op == TJ_OP_INDEX_COPY) {
            return equal_dims(o, &in[0]) || bad(c, "shape is not the operand's");
        }
        if (op == TJ_OP_GATHER) {
            return equal_dims(o, &in[1]) || bad(c, "shape is not the index's");
        }
        return true;
    case TJ_CONTRACT:
        if (op == TJ_OP_MATMUL && (in[0].rank < 2 || in[1].rank < 2 || o->rank < 2 ||
                                   in[0].dims[in[0].rank - 1] != in[1].dims[in[1].rank - 2] ||
                                   o->dims[o->rank - 2] != in[0].dims[in[0].rank - 2] ||
                                   o->dims[o->rank - 1] != in[1].dims[in[1].rank - 1])) {
            return bad(c, "inner or outer extents do not fit");
        }
        if (op == TJ_OP_LINEAR && (in[1].rank != 2 || in[0].rank < 1 || in[0].dims[in[0].rank - 1] != in[1].dims[1] ||
                                   o->dims[o->rank - 1] != in[1].dims[0])) {
            return bad(c, "inner or outer extents do not fit");
        }
        return true;
    case TJ_LOOP:
        if (op == TJ_OP_REPEAT_IN) {
            return (equal_dims(o, &in[0]) && o->n->dtype == in[0].n->dtype) || bad(c, "not what is carried");
        }
        return (nin % 2 && is_scalar(&in[0])) || bad(c, "no number of turns");
    default: return true;
    }
}

bool tj_trace_verify(const struct tj_trace *t, char *err, size_t cap) {
    struct check c = {t, err, cap, TJ_NIL};
    if (cap) {
        err[0] = '\0';
    }
    for (uint32_t i = 0; i < t->nleaves; i++) {
        const struct tj_leaf_key *k = &t->leafkeys[i];
        if (!tj_dtype_valid(k->dtype) || !shape_ok(t, k->shape) || tj_shape_rank(t, k->shape) != k->rank) {
            return bad(&c, "leaf %u: dtype, rank or shape", i);
        }
    }
    for (uint32_t i = 0; i < t->nnodes; i++) {
        const struct tj_node *n = &t->nodes[i];
        c.node = i;
        if (n->op >= TJ_OP_COUNT || !tj_dtype_valid(n->dtype) || !shape_ok(t, n->shape)) {
            return bad(&c, "op, dtype or shape");
        }
        if (tj_ops[n->op].nin >= 0 ? n->nin != (uint32_t)tj_ops[n->op].nin : n->nin == 0) {
            return bad(&c, "%u operands", n->nin);
        }
        if (n->nin > 4 &&
            (n->in[0] > t->noperands || n->nin > t->noperands - n->in[0] || n->in[1] || n->in[2] || n->in[3])) {
            return bad(&c, "operand list");
        }
        for (uint32_t k = n->nin; n->nin <= 4 && k < 4; k++) {
            if (n->in[k]) {
                return bad(&c, "unused operand %u is not 0", k);
            }
        }
        if (n->nattr != attr_words((enum tj_op)n->op) ||
            (n->nattr ? n->attr == 0 || n->attr + n->nattr > t->nattrs : n->attr != 0)) {
            return bad(&c, "%u words of attributes at %u", (unsigned)n->nattr, n->attr);
        }
        const tj_ref *in = tj_node_in(t, n);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (in[k] >= i) {
                return bad(&c, "operand %u is %%%u, not before it", k, in[k]);
            }
        }
        if (n->op == TJ_OP_LEAF || n->op == TJ_OP_SCALAR) {
            int64_t at = t->attrs[n->attr];
            bool leaf = n->op == TJ_OP_LEAF;
            if (at < 0 || at >= (leaf ? t->nleaves : t->nparams) ||
                (leaf ? t->leafkeys[at].dtype != n->dtype || t->leafkeys[at].shape != n->shape
                      : t->params[at].dtype != n->dtype || tj_shape_rank(t, n->shape) != 0)) {
                return bad(&c, "index %lld, its dtype or shape", (long long)at);
            }
            continue;
        }
        // Long lists (cat) have operands of one kind: enough to look at them one by one.
        struct side o = side(t, i), few[8];
        if (n->nin <= 8) {
            for (uint32_t k = 0; k < n->nin; k++) {
                few[k] = side(t, in[k]);
            }
            if (!dtypes_ok(&c, &o, few, n->nin) || !shapes_ok(&c, &o, few, n->nin)) {
                return false;
            }
        }
        if (n->op == TJ_OP_CAT) {
            int64_t dim = ((const struct tj_attr_dim *)tj_node_attr(t, n))->dim, sum = 0;
            if (dim < 0 || dim >= (int64_t)o.rank) {
                return bad(&c, "dim %lld", (long long)dim);
            }
            for (uint32_t k = 0; k < n->nin; k++) {
                struct side s = side(t, in[k]);
                if (s.rank != o.rank || s.n->dtype != n->dtype) {
                    return bad(&c, "operand %u has another rank or dtype", k);
                }
                sum += s.dims[dim];
                for (size_t d = 0; d < o.rank; d++) {
                    if ((int64_t)d != dim && s.dims[d] != o.dims[d]) {
                        return bad(&c, "operand %u has another extent in dim %zu", k, d);
                    }
                }
            }
            if (sum != o.dims[dim]) {
                return bad(&c, "extents sum to %lld, not %lld", (long long)sum, (long long)o.dims[dim]);
            }
        }
    }
    return true;
}
