// trace/ir.c: the op table and the arrays of a trace: shapes, nodes, comparing, hashing, copying, dumping.
#include "ir.h"

#include "../lib/hash.h"
#include "../lib/strbuf.h"

#define SOURCE TJ_SOURCE
#define POINTWISE TJ_POINTWISE
#define REDUCE TJ_REDUCE
#define ROW TJ_ROW
#define VIEW TJ_VIEW
#define MOVE TJ_MOVE
#define CONTRACT TJ_CONTRACT
#define POOL TJ_POOL
#define LOOP TJ_LOOP
#define EXACT TJ_EXACT
#define REDUCTION TJ_REDUCTION
#define CONTRACTION TJ_CONTRACTION
#define SAME TJ_RULE_SAME
#define FLOAT TJ_RULE_FLOAT
#define BOOL TJ_RULE_BOOL
#define OWN TJ_RULE_OWN
#define N TJ_FLAG_N
#define C TJ_FLAG_C
const struct tj_op_info tj_ops[TJ_OP_COUNT] = {
#define TJ_OP(NAME, name, nin, cls, numeric, rule, flags, doc) {#name, nin, cls, numeric, rule, flags, doc},
#include "ops.def"
#undef TJ_OP
};
#undef SOURCE
#undef POINTWISE
#undef REDUCE
#undef ROW
#undef VIEW
#undef MOVE
#undef CONTRACT
#undef POOL
#undef LOOP
#undef EXACT
#undef REDUCTION
#undef CONTRACTION
#undef SAME
#undef FLOAT
#undef BOOL
#undef OWN
#undef N
#undef C

// Where distances count from.
static const char anchor[] = "";

int32_t tj_call(const char *literal) {
    int64_t d = (int64_t)((uintptr_t)literal - (uintptr_t)anchor);
    return d == (int32_t)d ? (int32_t)d : 0;
}

const char *tj_call_of(struct tj_loc loc, const char *otherwise) {
    return loc.call ? (const char *)((uintptr_t)anchor + (uintptr_t)(int64_t)loc.call) : otherwise;
}

const char *tj_call_name(const struct tj_trace *t, tj_ref n) {
    return tj_call_of(t->locs[n], tj_ops[t->nodes[n].op].name);
}

void tj_trace_init(struct tj_trace *t) { memset(t, 0, sizeof *t); }

void tj_trace_reset(struct tj_trace *t) {
    t->nnodes = t->ndims = t->nattrs = t->noperands = t->nleaves = t->nparams = t->nshapes = 0;
    if (t->shapetab) {
        memset(t->shapetab, 0, t->capshapetab * sizeof *t->shapetab);
    }
}

void tj_trace_free(struct tj_trace *t) {
    tj_free(t->nodes);
    tj_free(t->dims);
    tj_free(t->attrs);
    tj_free(t->operands);
    tj_free(t->leafkeys);
    tj_free(t->leaves);
    tj_free(t->params);
    tj_free(t->locs);
    tj_free(t->shapetab);
    tj_trace_init(t);
}

// ---- shapes -----------------------------------------------------------------------------------

static uint64_t shape_hash(const int64_t *dims, size_t rank) {
    uint64_t h = rank;
    for (size_t i = 0; i < rank; i++) {
        h = tj_hash_mix(h, (uint64_t)dims[i]);
    }
    return h;
}

static bool shapes_rehash(struct tj_trace *t) {
    uint32_t cap = t->capshapetab ? t->capshapetab * 2 : 32;
    uint32_t *tab = tj_calloc(cap, sizeof *tab);
    if (!tab) {
        return false;
    }
    for (uint32_t i = 0; i < t->capshapetab; i++) {
        uint32_t e = t->shapetab[i];
        if (e) {
            uint64_t h = shape_hash(t->dims + e, (size_t)t->dims[e - 1]);
            while (tab[h & (cap - 1)]) {
                h++;
            }
            tab[h & (cap - 1)] = e;
        }
    }
    tj_free(t->shapetab);
    t->shapetab = tab;
    t->capshapetab = cap;
    return true;
}

uint32_t tj_trace_shape(struct tj_trace *t, const int64_t *dims, size_t rank) {
    if (t->nshapes * 2 >= t->capshapetab && !shapes_rehash(t)) {
        return UINT32_MAX;
    }
    uint64_t h = shape_hash(dims, rank);
    uint32_t mask = t->capshapetab - 1;
    for (;; h++) {
        uint32_t e = t->shapetab[h & mask];
        if (!e) {
            break;
        }
        if ((size_t)t->dims[e - 1] == rank && (rank == 0 || !memcmp(t->dims + e, dims, rank * sizeof *dims))) {
            return e - 1;
        }
    }
    uint32_t at = t->ndims;
    if (at > UINT32_MAX - 16 || !tj_grow((void **)&t->dims, &t->capdims, at + 1 + (uint32_t)rank, sizeof *t->dims)) {
        return UINT32_MAX;
    }
    t->dims[at] = (int64_t)rank;
    if (rank) {
        memcpy(t->dims + at + 1, dims, rank * sizeof *dims);
    }
    t->ndims = at + 1 + (uint32_t)rank;
    t->nshapes++;
    t->shapetab[h & mask] = at + 1;
    return at;
}

// ---- nodes ------------------------------------------------------------------------------------

tj_ref tj_trace_append(struct tj_trace *t, enum tj_op op, tj_dtype d, uint32_t shape, const tj_ref *in, size_t nin,
                       const void *attr, size_t n8, struct tj_loc loc) {
    uint32_t n = t->nnodes;
    if (n >= TJ_NIL - 1 || nin > UINT32_MAX / 2 ||
        !tj_grow((void **)&t->nodes, &t->capnodes, n + 1, sizeof *t->nodes) ||
        !tj_grow((void **)&t->locs, &t->caplocs, n + 1, sizeof *t->locs)) {
        return TJ_NIL;
    }
    struct tj_node node = {(uint16_t)op, (uint8_t)d, (uint8_t)n8, shape, (uint32_t)nin, 0, {0, 0, 0, 0}};
    if (nin > 4) {
        uint32_t at = t->noperands;
        if (at > UINT32_MAX - nin ||
            !tj_grow((void **)&t->operands, &t->capoperands, at + (uint32_t)nin, sizeof *t->operands)) {
            return TJ_NIL;
        }
        memcpy(t->operands + at, in, nin * sizeof *in);
        node.in[0] = at;
    } else if (nin) {
        memcpy(node.in, in, nin * sizeof *in);
    }
    if (n8) {
        uint32_t at = t->nattrs ? t->nattrs : 1;
        if (at > UINT32_MAX - 256 || !tj_grow((void **)&t->attrs, &t->capattrs, at + (uint32_t)n8, sizeof *t->attrs)) {
            return TJ_NIL;
        }
        t->attrs[0] = 0;
        memcpy(t->attrs + at, attr, n8 * sizeof *t->attrs);
        node.attr = at;
        t->nattrs = at + (uint32_t)n8;
    }
    if (nin > 4) {
        t->noperands += (uint32_t)nin;
    }
    t->nodes[n] = node;
    t->locs[n] = loc;
    t->nnodes = n + 1;
    return n;
}

// ---- comparing, hashing, copying ----------------------------------------------------------------

static bool same(const void *a, const void *b, uint32_t na, uint32_t nb, size_t size) {
    return na == nb && (na == 0 || !memcmp(a, b, na * size));
}

bool tj_trace_equal(const struct tj_trace *a, const struct tj_trace *b) {
    return same(a->nodes, b->nodes, a->nnodes, b->nnodes, sizeof *a->nodes) &&
           same(a->dims, b->dims, a->ndims, b->ndims, sizeof *a->dims) &&
           same(a->attrs, b->attrs, a->nattrs, b->nattrs, sizeof *a->attrs) &&
           same(a->operands, b->operands, a->noperands, b->noperands, sizeof *a->operands) &&
           same(a->leafkeys, b->leafkeys, a->nleaves, b->nleaves, sizeof *a->leafkeys);
}

uint64_t tj_trace_hash(const struct tj_trace *t) {
    if (tj_hash_collide) {
        return 0;
    }
    uint64_t h = tj_hash_bytes(t->nodes, t->nnodes * sizeof *t->nodes, 0x7ACE);
    h = tj_hash_bytes(t->dims, t->ndims * sizeof *t->dims, h);
    h = tj_hash_bytes(t->attrs, t->nattrs * sizeof *t->attrs, h);
    h = tj_hash_bytes(t->operands, t->noperands * sizeof *t->operands, h);
    return tj_hash_bytes(t->leafkeys, t->nleaves * sizeof *t->leafkeys, h);
}

static bool copy_array(void **dst, uint32_t *cap, const void *src, uint32_t n, size_t size) {
    if (!tj_grow(dst, cap, n, size)) {
        return false;
    }
    if (n) {
        memcpy(*dst, src, n * size);
    }
    return true;
}

bool tj_trace_copy(struct tj_trace *dst, const struct tj_trace *src) {
    bool ok =
        copy_array((void **)&dst->nodes, &dst->capnodes, src->nodes, src->nnodes, sizeof *src->nodes) &&
        copy_array((void **)&dst->dims, &dst->capdims, src->dims, src->ndims, sizeof *src->dims) &&
        copy_array((void **)&dst->attrs, &dst->capattrs, src->attrs, src->nattrs, sizeof *src->attrs) &&
        copy_array((void **)&dst->operands, &dst->capoperands, src->operands, src->noperands, sizeof *src->operands) &&
        copy_array((void **)&dst->leafkeys, &dst->capleafkeys, src->leafkeys, src->nleaves, sizeof *src->leafkeys) &&
        tj_grow((void **)&dst->leaves, &dst->capleaves, src->nleaves, sizeof *dst->leaves) &&
        copy_array((void **)&dst->params, &dst->capparams, src->params, src->nparams, sizeof *src->params) &&
        copy_array((void **)&dst->locs, &dst->caplocs, src->locs, src->nnodes, sizeof *src->locs);
    if (ok && src->nshapes) {
        tj_free(dst->shapetab);
        dst->shapetab = tj_malloc(src->capshapetab * sizeof *dst->shapetab);
        ok = dst->shapetab != NULL;
        if (ok) {
            memcpy(dst->shapetab, src->shapetab, src->capshapetab * sizeof *dst->shapetab);
            dst->capshapetab = src->capshapetab;
        }
    }
    if (!ok) {
        tj_trace_free(dst);
        return false;
    }
    if (src->nleaves) {
        memset(dst->leaves, 0, src->nleaves * sizeof *dst->leaves);
    }
    dst->nnodes = src->nnodes;
    dst->ndims = src->ndims;
    dst->nattrs = src->nattrs;
    dst->noperands = src->noperands;
    dst->nleaves = src->nleaves;
    dst->nparams = src->nparams;
    dst->nshapes = src->nshapes;
    return true;
}

tj_layout tj_layout_of(const int64_t *dims, const int64_t *strides, size_t rank) {
    tj_layout l = 0;
    int64_t packed = 1; // stride that continues the dims to the right; -1: none does
    for (size_t i = rank; i-- > 0;) {
        if (dims[i] == 0) {
            return 0; // no elements: any strides are contiguous
        }
        unsigned c = TJ_LAY_PACKED;
        if (dims[i] != 1) {
            c = strides[i] == packed ? TJ_LAY_PACKED
                : strides[i] == 0    ? TJ_LAY_BROADCAST
                : strides[i] == 1    ? TJ_LAY_UNIT
                                     : TJ_LAY_STRIDED;
            packed = tj_size_mul(strides[i], dims[i], &packed) ? packed : -1;
        }
        l |= (tj_layout)(c << 2 * i);
    }
    return l;
}

// ---- dump ---------------------------------------------------------------------------------------

static void dump_attrs(const struct tj_trace *t, const struct tj_node *n, struct tj_strbuf *sb) {
    const int64_t *a = tj_node_attr(t, n);
    switch (n->op) {
    case TJ_OP_LEAF: {
        const struct tj_leaf_key *k = &t->leafkeys[a[0]];
        tj_sb_printf(sb, " #%lld", (long long)a[0]);
        if (k->input) {
            tj_sb_printf(sb, " input=%u", k->input - 1);
        }
        if (k->layout) {
            tj_sb_printf(sb, " layout=%x", (unsigned)k->layout);
        }
        tj_sb_puts(sb, k->flags & TJ_LEAF_WRITTEN ? " written" : "");
        tj_sb_puts(sb, k->flags & TJ_LEAF_VOLATILE ? " volatile" : "");
        tj_sb_puts(sb, k->flags & TJ_LEAF_CARRIED ? " carried" : "");
        if (k->group) {
            tj_sb_printf(sb, " group=%u", (unsigned)k->group);
        }
        break;
    }
    case TJ_OP_SCALAR: {
        const struct tj_param *p = &t->params[a[0]];
        if (tj_is_float((tj_dtype)p->dtype)) {
            tj_sb_printf(sb, " %.9g", p->v.f);
        } else {
            tj_sb_printf(sb, " %lld", (long long)p->v.i);
        }
        break;
    }
    default:
        if (n->nattr) {
            tj_sb_puts(sb, " {");
            for (unsigned i = 0; i < n->nattr; i++) {
                tj_sb_printf(sb, "%s%lld", i ? " " : "", (long long)a[i]);
            }
            tj_sb_puts(sb, "}");
        }
    }
}

void tj_trace_dump(const struct tj_trace *t, const tj_ref *outs, size_t nouts, struct tj_strbuf *sb) {
    for (uint32_t i = 0; i < t->nnodes; i++) {
        const struct tj_node *n = &t->nodes[i];
        const tj_ref *in = tj_node_in(t, n);
        tj_sb_printf(sb, "%%%u = %s%s %s", i, tj_ops[n->op].name, n->op == TJ_OP_RESHAPE_COPY ? " (copied)" : "",
                     tj_dtypes[n->dtype].name);
        tj_sb_dims(sb, tj_shape_dims(t, n->shape), tj_shape_rank(t, n->shape));
        for (uint32_t k = 0; k < n->nin; k++) {
            tj_sb_printf(sb, " %%%u", in[k]);
        }
        dump_attrs(t, n, sb);
        const struct tj_loc *l = &t->locs[i];
        if (l->file) {
            tj_sb_printf(sb, "  ; %s:%d", l->file, (int)l->line);
        }
        tj_sb_puts(sb, "\n");
    }
    if (nouts) {
        tj_sb_puts(sb, "out");
        for (size_t i = 0; i < nouts; i++) {
            tj_sb_printf(sb, " %%%u", outs[i]);
        }
        tj_sb_puts(sb, "\n");
    }
}
