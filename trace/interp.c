// trace/interp.c: the compiler-free tier: plans where values lie, allocates, then runs the segment op by op.
//
// A run has two halves. Planning walks the needed nodes in program order and decides the memory of each value: a leaf's
// own, a result tensor's, or a slot that is taken again after the last use; views only add an offset and strides. All
// slots are allocated before the first op runs, so running out of memory leaves every tensor untouched.
#include "interp.h"
#include "../lib/threads.h"
#include "context.h"
#include "repeat.h"

enum { OWN_UNUSED, OWN_LEAF, OWN_OUT, OWN_SCALAR, OWN_SLOT };
// A stretch of memory that values lie in. The first nnodes belong to the nodes of equal number.
struct owner {
    unsigned char *mem; // LEAF, OUT, SCALAR: known from the start
    size_t bytes;
    uint32_t first, last; // positions of the op that fills it and of the last use; last TJ_NIL: kept to the end
    uint32_t slot;
    uint32_t values; // values lying here, linked by tj_ival.next
    uint32_t next;   // next owner with the same last
    uint8_t kind;
};
struct slot {
    unsigned char *mem;
    size_t bytes;
    uint32_t next; // free one of its class, or TJ_NIL
};
enum { SIZE_CLASSES = 65 };
// Before node `at` overwrites its memory, the value of `node` moves to memory of its own.
struct save {
    uint32_t at, node;
    struct tj_ival old, kept;
};
struct loop;
struct plan {
    struct tj_interp it;
    struct loop *loops; // that it runs
    struct owner *owners;
    uint32_t nowners;
    struct slot *slots;
    uint32_t nslots;
    uint32_t free[SIZE_CLASSES]; // slots, while they are assigned
    struct save *saves;
    uint32_t nsaves;
    void *tables; // the memory of all arrays here, from the context's buffers: a steady run allocates nothing
    size_t table_bytes;
    uint32_t *expire; // one a node: owners whose last use it is
    uint32_t *extra;  // one a node: owner of a temporary copy (UPDATE's source), or TJ_NIL
    size_t scratch;
};

// A loop: a plan of its body over tensors of its own. Carried values lie in `in`; a turn's results are copied there.
struct loop {
    struct loop *next;
    tj_ref first; // its first REPEAT_IN
    struct tj_body *body;
    struct plan sub;
    struct trace_tensor *tensors; // one a leaf of the body, then one a result of a turn
    struct tj_storage *storages;
    struct tj_leaf *leaves;
    struct trace_tensor **outs;
    struct tj_run_args args;
    unsigned char **in; // one a slot
    size_t *bytes;
    unsigned char *mem;
    size_t mem_bytes;
    bool planned, ran;
};

static tj_status no_memory(void) { return tj_fail(TRACE_ERR_MEMORY, "interpreter: out of memory"); }

static const struct tj_node *node_of(const struct plan *p, tj_ref n) { return &p->it.t->nodes[n]; }
static bool is_view(const struct plan *p, tj_ref n) { return tj_ops[node_of(p, n)->op].cls == TJ_VIEW; }

// ---- which nodes, and until when -----------------------------------------------------------------------------------

// The view that an UPDATE writes through is only geometry: no value of it is needed.
static uint32_t value_operands(const struct tj_node *n) { return n->op == TJ_OP_UPDATE ? 2 : n->nin; }

static void use(struct plan *p, tj_ref o, uint32_t at) {
    struct tj_ival *v = &p->it.vals[o];
    v->needed = true;
    if (v->last < at) {
        v->last = at; // users come in descending order: the first one seen is the last use
    }
}

static struct loop *loop_of(const struct plan *p, tj_ref out) {
    struct loop *l = p->loops;
    while (l && l->first != tj_loop_ins(p->it.t, node_of(p, out))[0]) {
        l = l->next;
    }
    return l;
}

// A loop uses what it begins with and what its body takes from outside; the body's nodes are its own.
static tj_status need_loop(struct plan *p, tj_ref out) {
    struct loop *l = loop_of(p, out);
    if (l) {
        return TRACE_OK; // by a later result
    }
    l = tj_calloc(1, sizeof *l);
    if (!l) {
        return no_memory();
    }
    l->next = p->loops;
    p->loops = l;
    l->first = tj_loop_ins(p->it.t, node_of(p, out))[0];
    tj_status st = tj_body_take(p->it.seg, out, &l->body);
    if (st != TRACE_OK) {
        return st;
    }
    for (uint32_t i = 0; p->it.origin && i < l->body->trace.nnodes; i++) {
        l->body->origin[i] = p->it.origin[l->body->origin[i]];
    }
    for (uint32_t i = 0; i < l->body->n; i++) {
        use(p, l->body->init[i], out);
    }
    for (uint32_t i = 0; i < l->body->trace.nleaves; i++) {
        if (l->body->leaves[i].kind != TJ_BODY_CARRIED) {
            use(p, l->body->leaves[i].node, out);
        }
    }
    return TRACE_OK;
}

static tj_status mark_needed(struct plan *p) {
    const struct tj_trace *t = p->it.t;
    struct tj_ival *v = p->it.vals;
    for (uint32_t i = 0; i < p->it.seg->nouts; i++) {
        v[p->it.seg->outs[i]].needed = true;
        v[p->it.seg->outs[i]].last = TJ_NIL;
    }
    for (uint32_t i = 0; i < p->it.seg->nwrites; i++) {
        v[p->it.seg->writes[i]].needed = true;
    }
    for (uint32_t n = t->nnodes; n-- > 0;) {
        if (!v[n].needed) {
            continue;
        }
        if (t->nodes[n].op == TJ_OP_REPEAT_OUT) {
            tj_status st = need_loop(p, n);
            if (st != TRACE_OK) {
                return st;
            }
            continue;
        }
        const tj_ref *in = tj_node_in(t, &t->nodes[n]);
        for (uint32_t k = 0; k < value_operands(&t->nodes[n]); k++) {
            use(p, in[k], n);
        }
    }
    return TRACE_OK;
}

// ---- owners and slots ----------------------------------------------------------------------------------------------

static void owner_add_value(struct plan *p, uint32_t o, tj_ref n) {
    struct tj_ival *v = &p->it.vals[n];
    struct owner *w = &p->owners[o];
    v->owner = o;
    v->next = w->values;
    w->values = n;
    if (w->last < v->last) {
        w->last = v->last;
    }
}

static uint32_t owner_extra(struct plan *p, size_t bytes, uint32_t first, uint32_t last) {
    p->owners[p->nowners] = (struct owner){
        .bytes = bytes, .first = first, .last = last, .values = TJ_NIL, .next = TJ_NIL, .kind = OWN_SLOT};
    return p->nowners++;
}

static bool node_bytes(const struct plan *p, tj_ref n, size_t *bytes) {
    const struct tj_node *d = node_of(p, n);
    int64_t numel;
    return tj_numel(tj_shape_dims(p->it.t, d->shape), tj_shape_rank(p->it.t, d->shape), &numel) &&
           tj_tensor_bytes((tj_dtype)d->dtype, numel, bytes);
}

// The node's value is contiguous in memory of its own.
static tj_status own_fresh(struct plan *p, tj_ref n) {
    const struct tj_node *d = node_of(p, n);
    struct owner *o = &p->owners[n];
    struct tj_ival *v = &p->it.vals[n];
    if (!node_bytes(p, n, &o->bytes)) {
        return tj_fail(TRACE_ERR_SHAPE, "%s: size overflows", tj_ops[d->op].name);
    }
    o->kind = OWN_SLOT;
    o->first = n;
    v->offset = 0;
    tj_contiguous_strides(tj_shape_dims(p->it.t, d->shape), tj_shape_rank(p->it.t, d->shape), v->strides);
    owner_add_value(p, n, n);
    return TRACE_OK;
}

static void geom_of_value(const struct plan *p, tj_ref n, struct tj_igeom *g) {
    const struct tj_node *d = node_of(p, n);
    g->rank = tj_shape_rank(p->it.t, d->shape);
    memcpy(g->dims, tj_shape_dims(p->it.t, d->shape), g->rank * sizeof(int64_t));
    memcpy(g->strides, p->it.vals[n].strides, sizeof g->strides);
    g->offset = 0;
}

// Memory that UPDATE writes: the node below all earlier updates of it.
static tj_ref root_of(const struct plan *p, tj_ref n) { return p->it.vals[n].root; }

// Geometry of UPDATE node n's view relative to the memory of its operand 0, whose strides are given: the views between
// operand 2 and the memory, applied from the bottom.
static tj_status update_geometry(const struct plan *p, tj_ref n, const int64_t *strides, struct tj_igeom *g) {
    tj_ref root = root_of(p, tj_iin(&p->it, n, 0));
    tj_ref chain[64], *c = chain, *heap = NULL;
    uint32_t len = 0, cap = 64;
    tj_status st = TRACE_OK;
    for (tj_ref v = tj_iin(&p->it, n, 2); v != root && is_view(p, v); v = tj_iin(&p->it, v, 0)) {
        if (len == cap) {
            uint32_t want = cap * 2;
            tj_ref *more = tj_realloc(heap, want * sizeof *more);
            if (!more) {
                tj_free(heap);
                return no_memory();
            }
            if (!heap) {
                memcpy(more, chain, sizeof chain);
            }
            heap = c = more;
            cap = want;
        }
        c[len++] = v;
    }
    geom_of_value(p, tj_iin(&p->it, n, 0), g);
    memcpy(g->strides, strides, sizeof g->strides);
    while (len && st == TRACE_OK) {
        if (!tj_igeom_view(&p->it, c[--len], g)) {
            st = tj_fail(TRACE_ERR_SHAPE, "in-place write through %s: not a view of the memory's layout",
                         tj_ops[node_of(p, c[len])->op].name);
        }
    }
    tj_free(heap);
    return st;
}

// Bytes from element 0 that a geometry reaches; false: no element.
static bool geom_span(const struct tj_igeom *g, size_t elem, int64_t *lo, int64_t *hi) {
    *lo = *hi = g->offset;
    for (size_t d = 0; d < g->rank; d++) {
        if (g->dims[d] == 0) {
            return false;
        }
    }
    for (size_t d = 0; d < g->rank; d++) {
        int64_t far = (g->dims[d] - 1) * g->strides[d];
        *(far < 0 ? lo : hi) += far;
    }
    *lo *= (int64_t)elem;
    *hi = (*hi + 1) * (int64_t)elem;
    return true;
}

// Whether the source of UPDATE n may lie where it writes (g: relative to the value of operand 0), other than element on
// element.
static bool source_overlaps(const struct plan *p, tj_ref n, const struct tj_ival *dst, const struct tj_igeom *g) {
    tj_ref s = tj_iin(&p->it, n, 1);
    const struct tj_ival *src = &p->it.vals[s];
    const struct owner *a = &p->owners[src->owner], *b = &p->owners[dst->owner];
    size_t elem = tj_elem_bytes((tj_dtype)node_of(p, n)->dtype);
    if (src->owner != dst->owner && (a->kind != OWN_LEAF || b->kind != OWN_LEAF)) {
        return false;
    }
    struct tj_igeom h;
    geom_of_value(p, s, &h);
    int64_t lo, hi, slo, shi;
    if (!geom_span(g, elem, &lo, &hi) || !geom_span(&h, elem, &slo, &shi)) {
        return false;
    }
    const unsigned char *am = a->kind == OWN_LEAF ? a->mem : NULL, *bm = b->kind == OWN_LEAF ? b->mem : NULL;
    uintptr_t from = (uintptr_t)am + (uintptr_t)src->offset, to = (uintptr_t)bm + (uintptr_t)dst->offset;
    bool same = from == to + (uintptr_t)(g->offset * (int64_t)elem) && h.rank == g->rank &&
                !memcmp(h.strides, g->strides, g->rank * sizeof(int64_t));
    return !same && from + (uintptr_t)slo < to + (uintptr_t)hi && to + (uintptr_t)lo < from + (uintptr_t)shi;
}

// Values that lie in the memory which node n is about to overwrite, and are used later, move out.
static tj_status save_readers(struct plan *p, tj_ref n, uint32_t owner) {
    for (uint32_t v = p->owners[owner].values, next; v != TJ_NIL; v = next) {
        struct tj_ival *val = &p->it.vals[v];
        next = val->next;
        if (val->last <= n) {
            continue; // nor is it when later nodes write
        }
        size_t bytes;
        if (!node_bytes(p, v, &bytes)) {
            return tj_fail(TRACE_ERR_SHAPE, "%s: size overflows", tj_ops[node_of(p, v)->op].name);
        }
        uint32_t o = owner_extra(p, bytes, n, val->last);
        struct save *s = &p->saves[p->nsaves++];
        *s = (struct save){.at = n, .node = v, .old = *val};
        const struct tj_node *d = node_of(p, v);
        val->offset = 0;
        tj_contiguous_strides(tj_shape_dims(p->it.t, d->shape), tj_shape_rank(p->it.t, d->shape), val->strides);
        owner_add_value(p, o, v);
        s->kept = *val;
    }
    p->owners[owner].values = TJ_NIL;
    return TRACE_OK;
}

static tj_status plan_update(struct plan *p, tj_ref n) {
    tj_ref dst = tj_iin(&p->it, n, 0);
    struct tj_ival *v = &p->it.vals[n], was = p->it.vals[dst]; // (saving may move dst itself)
    const struct owner *o = &p->owners[was.owner];
    bool in_place = o->kind == OWN_LEAF && node_of(p, root_of(p, dst))->op == TJ_OP_LEAF;
    tj_status st;
    if (in_place) {
        st = save_readers(p, n, was.owner);
        if (st != TRACE_OK) {
            return st;
        }
    } else {
        // A computed memory is changed in place when nobody reads its old content any more, else it is copied.
        struct tj_igeom g;
        geom_of_value(p, dst, &g);
        int64_t want[TJ_MAX_RANK];
        tj_contiguous_strides(g.dims, g.rank, want);
        in_place = o->kind == OWN_SLOT && o->last == n && was.offset == 0 &&
                   !memcmp(want, was.strides, g.rank * sizeof(int64_t));
    }
    if (in_place) {
        v->offset = was.offset;
        memcpy(v->strides, was.strides, sizeof v->strides);
        owner_add_value(p, was.owner, n);
    } else if ((st = own_fresh(p, n)) != TRACE_OK) {
        return st;
    }
    struct tj_igeom g;
    st = update_geometry(p, n, v->strides, &g);
    if (st == TRACE_OK && source_overlaps(p, n, v, &g)) {
        size_t bytes;
        if (!node_bytes(p, tj_iin(&p->it, n, 1), &bytes)) {
            return tj_fail(TRACE_ERR_SHAPE, "size overflows");
        }
        p->extra[n] = owner_extra(p, bytes, n, n);
    }
    return st;
}

static tj_status plan_leaf(struct plan *p, tj_ref n) {
    const struct tj_attr_leaf *a = tj_node_attr(p->it.t, node_of(p, n));
    const struct trace_tensor *x = p->it.args->leaves[a->index].tensor;
    struct owner *o = &p->owners[n];
    struct tj_ival *v = &p->it.vals[n];
    if (!x || !x->st) {
        return tj_fail(TRACE_ERR_STATE, "leaf %lld has no value yet", (long long)a->index);
    }
    if (!x->st->data && x->numel) {
        return tj_fail(TRACE_ERR_STATE, "leaf %lld is a placeholder", (long long)a->index);
    }
    o->kind = OWN_LEAF;
    o->mem = tj_tensor_data(x);
    o->first = n;
    v->offset = 0;
    memcpy(v->strides, x->strides, sizeof v->strides);
    owner_add_value(p, n, n);
    return TRACE_OK;
}

static tj_status plan_all(struct plan *p);

static size_t rounded(size_t n) { return (n + TJ_ALIGN - 1) & ~(size_t)(TJ_ALIGN - 1); }

// A tensor over memory that is known later.
static void shadow(struct loop *l, uint32_t i, const struct tj_trace *t, const struct tj_node *n) {
    struct trace_tensor *x = &l->tensors[i];
    x->dtype = n->dtype;
    x->rank = (uint8_t)tj_shape_rank(t, n->shape);
    memcpy(x->dims, tj_shape_dims(t, n->shape), x->rank * sizeof *x->dims);
    (void)tj_numel(x->dims, x->rank, &x->numel);
    tj_contiguous_strides(x->dims, x->rank, x->strides);
    x->st = &l->storages[i];
    x->st->data = (unsigned char *)x;
    x->internal = true;
}

static tj_status plan_loop(struct plan *p, struct loop *l) {
    const struct tj_body *b = l->body;
    uint32_t nl = b->trace.nleaves, n = b->n;
    l->tensors = tj_calloc(nl + n, sizeof *l->tensors);
    l->storages = tj_calloc(nl + n, sizeof *l->storages);
    l->leaves = tj_calloc(nl + 1, sizeof *l->leaves);
    l->outs = tj_calloc(n, sizeof(struct trace_tensor *));
    l->in = tj_calloc(n, sizeof(unsigned char *));
    l->bytes = tj_calloc(n, sizeof *l->bytes);
    if (!l->tensors || !l->storages || !l->leaves || !l->outs || !l->in || !l->bytes) {
        return no_memory();
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!node_bytes(p, b->init[i], &l->bytes[i]) || l->bytes[i] > (SIZE_MAX / 4 - l->mem_bytes) / 2) {
            return tj_fail(TRACE_ERR_SHAPE, "repeat: size overflows");
        }
        l->mem_bytes += 2 * rounded(l->bytes[i] ? l->bytes[i] : 1);
    }
    l->mem = tj_buffer_alloc(p->it.args->ctx, l->mem_bytes);
    if (!l->mem) {
        return TRACE_ERR_MEMORY;
    }
    unsigned char *at = l->mem;
    for (uint32_t i = 0; i < n; i++) {
        l->in[i] = at;
        at += rounded(l->bytes[i] ? l->bytes[i] : 1);
        shadow(l, nl + i, p->it.t, node_of(p, b->init[i]));
        l->storages[nl + i].data = at;
        at += rounded(l->bytes[i] ? l->bytes[i] : 1);
        l->outs[i] = &l->tensors[nl + i];
    }
    for (uint32_t i = 0; i < nl; i++) {
        const struct tj_body_leaf *f = &b->leaves[i];
        l->leaves[i].tensor = &l->tensors[i];
        if (f->kind == TJ_BODY_LEAF) {
            l->leaves[i].tensor = p->it.args->leaves[f->index].tensor;
        } else if (f->kind == TJ_BODY_CARRIED) {
            shadow(l, i, p->it.t, node_of(p, b->init[f->index]));
            l->storages[i].data = l->in[f->index];
        } else {
            shadow(l, i, p->it.t, node_of(p, f->index));
            memcpy(l->tensors[i].strides, p->it.vals[f->index].strides, sizeof l->tensors[i].strides);
        }
    }
    l->args = *p->it.args;
    l->args.trace = &b->trace;
    l->args.leaves = l->leaves;
    l->args.outs = l->outs;
    l->sub.it = (struct tj_interp){.seg = &b->seg, .t = &b->trace, .args = &l->args, .origin = b->origin};
    l->planned = true;
    return plan_all(&l->sub);
}

static tj_status plan_node(struct plan *p, tj_ref n) {
    const struct tj_node *d = node_of(p, n);
    p->it.vals[n].root = d->op == TJ_OP_UPDATE ? root_of(p, tj_iin(&p->it, n, 0)) : n;
    if (d->op == TJ_OP_REPEAT_OUT) {
        struct loop *l = loop_of(p, n);
        tj_status st = l->planned ? TRACE_OK : plan_loop(p, l);
        return st != TRACE_OK ? st : own_fresh(p, n);
    }
    struct tj_ival *v = &p->it.vals[n];
    if (d->op == TJ_OP_LEAF) {
        return plan_leaf(p, n);
    }
    if (d->op == TJ_OP_SCALAR) {
        const struct tj_attr_param *a = tj_node_attr(p->it.t, d);
        tj_istore_scalar((tj_dtype)d->dtype, v->scalar, p->it.args->params[a->index].v);
        p->owners[n].kind = OWN_SCALAR;
        p->owners[n].mem = v->scalar;
        owner_add_value(p, n, n);
        return TRACE_OK;
    }
    if (d->op == TJ_OP_UPDATE) {
        return plan_update(p, n);
    }
    if (tj_ops[d->op].cls == TJ_VIEW) {
        tj_ref in = tj_iin(&p->it, n, 0);
        struct tj_igeom g;
        geom_of_value(p, in, &g);
        if (tj_igeom_view(&p->it, n, &g)) {
            const struct tj_ival *from = &p->it.vals[in];
            v->offset = from->offset + g.offset * (int64_t)tj_elem_bytes((tj_dtype)d->dtype);
            memcpy(v->strides, g.strides, sizeof v->strides);
            owner_add_value(p, from->owner, n);
            return TRACE_OK;
        }
    }
    size_t need = tj_interp_scratch(&p->it, n);
    if (need > p->scratch) {
        p->scratch = need;
    }
    return own_fresh(p, n);
}

// Free slots are kept by the number of bits of their size.
static uint32_t size_class(size_t bytes) { return bytes ? 64 - (uint32_t)__builtin_clzll(bytes) : 0; }

static void slot_free(struct plan *p, uint32_t i) {
    uint32_t *first = &p->free[size_class(p->slots[i].bytes)];
    p->slots[i].next = *first;
    *first = i;
}

static uint32_t slot_pop(uint32_t *first, const struct slot *slots) {
    uint32_t i = *first;
    *first = slots[i].next;
    return i;
}

// A free slot that is large enough: a small one of those, if it is found soon.
static void slot_take(struct plan *p, struct owner *o) {
    enum { TRIES = 8 };
    uint32_t cls = size_class(o->bytes), best = TJ_NIL, *at = &p->free[cls];
    for (uint32_t i = 0; i < TRIES && *at != TJ_NIL && best == TJ_NIL; i++) {
        if (p->slots[*at].bytes >= o->bytes)
            best = slot_pop(at, p->slots);
        else
            at = &p->slots[*at].next;
    }
    for (uint32_t k = cls + 1; k < SIZE_CLASSES && best == TJ_NIL; k++) {
        if (p->free[k] != TJ_NIL)
            best = slot_pop(&p->free[k], p->slots);
    }
    for (uint32_t k = cls + 1; k-- > 0 && best == TJ_NIL;) {
        if (p->free[k] != TJ_NIL) { // nothing is allocated yet: a free slot may still grow
            best = slot_pop(&p->free[k], p->slots);
            if (p->slots[best].bytes < o->bytes)
                p->slots[best].bytes = o->bytes;
        }
    }
    if (best == TJ_NIL) {
        best = p->nslots++;
        p->slots[best] = (struct slot){.bytes = o->bytes};
    }
    o->slot = best;
}

// Results that an op computes afresh are computed in the caller's tensors.
static void place_outs(struct plan *p) {
    for (uint32_t i = 0; i < p->it.seg->nouts; i++) {
        tj_ref n = p->it.seg->outs[i];
        struct owner *o = &p->owners[p->it.vals[n].owner];
        if (p->it.vals[n].owner == n && o->kind == OWN_SLOT) {
            o->kind = OWN_OUT;
            o->mem = tj_tensor_data(p->it.args->outs[i]);
        }
    }
}

static void assign_slots(struct plan *p) {
    uint32_t nnodes = p->it.t->nnodes;
    for (uint32_t n = 0; n < nnodes; n++) {
        p->expire[n] = TJ_NIL;
    }
    for (uint32_t i = 0; i < SIZE_CLASSES; i++) {
        p->free[i] = TJ_NIL;
    }
    // extra owners come in the order of their first position
    uint32_t extra = nnodes;
    for (uint32_t n = 0; n < nnodes; n++) {
        for (uint32_t turn = 0;; turn++) {
            uint32_t o = n;
            if (turn > 0) {
                if (extra >= p->nowners || p->owners[extra].first != n) {
                    break;
                }
                o = extra++;
            }
            struct owner *w = &p->owners[o];
            if (w->kind != OWN_SLOT || !p->it.vals[n].needed) {
                continue;
            }
            slot_take(p, w);
            if (w->last != TJ_NIL) {
                uint32_t last = w->last < n ? n : w->last;
                w->next = p->expire[last];
                p->expire[last] = o;
            }
        }
        for (uint32_t o = p->expire[n]; o != TJ_NIL; o = p->owners[o].next) {
            slot_free(p, p->owners[o].slot);
        }
    }
}

static tj_status allocate(struct plan *p) {
    for (uint32_t i = 0; i < p->nslots; i++) {
        p->slots[i].mem = tj_buffer_alloc(p->it.args->ctx, p->slots[i].bytes ? p->slots[i].bytes : 1);
        if (!p->slots[i].mem) {
            return TRACE_ERR_MEMORY;
        }
    }
    if (p->scratch) {
        p->it.scratch = tj_buffer_alloc(p->it.args->ctx, p->scratch);
        if (!p->it.scratch) {
            return TRACE_ERR_MEMORY;
        }
    }
    for (uint32_t o = 0; o < p->nowners; o++) {
        if (p->owners[o].kind == OWN_SLOT) {
            // owners of nodes that turned out not to be needed have no slot
            p->owners[o].mem = o >= p->it.t->nnodes || p->it.vals[o].needed ? p->slots[p->owners[o].slot].mem : NULL;
        }
    }
    return TRACE_OK;
}

static void place(struct plan *p, struct tj_ival *v) {
    unsigned char *mem = p->owners[v->owner].mem;
    v->p = mem ? mem + v->offset : NULL;
}

// ---- running -------------------------------------------------------------------------------------------------------

static void run_update(const struct plan *p, tj_ref n) {
    const struct tj_interp *it = &p->it;
    tj_ref dst = tj_iin(it, n, 0), src = tj_iin(it, n, 1);
    struct tj_iview to = tj_iview_of(it, n), old = tj_iview_of(it, dst), from = tj_iview_of(it, src);
    if (it->vals[n].owner == n) { // not in place
        tj_icopy(&to, &old);
    }
    struct tj_igeom g;
    if (update_geometry(p, n, it->vals[n].strides, &g) != TRACE_OK) {
        return; // planning has made sure that this works
    }
    int64_t elem = (int64_t)tj_elem_bytes(to.dtype);
    if (p->extra[n] != TJ_NIL) {
        struct tj_iview copy = from;
        copy.p = p->owners[p->extra[n]].mem;
        int64_t st[TJ_MAX_RANK];
        tj_contiguous_strides(from.dims, from.rank, st);
        for (size_t d = 0; d < from.rank; d++) {
            copy.st[d] = tj_stride_times(st[d], elem);
        }
        tj_icopy(&copy, &from);
        from = copy;
    }
    struct tj_iview part = {.p = to.p + g.offset * elem, .dtype = to.dtype, .rank = g.rank};
    for (size_t d = 0; d < g.rank; d++) {
        part.dims[d] = g.dims[d];
        part.st[d] = tj_stride_times(g.strides[d], elem);
    }
    from = tj_iview_expand(&from, part.dims, part.rank);
    tj_icopy(&part, &from);
}

static void run_node(const struct plan *p, tj_ref n) {
    const struct tj_interp *it = &p->it;
    const struct tj_node *d = node_of(p, n);
    int64_t numel;
    if (tj_numel(tj_shape_dims(it->t, d->shape), tj_shape_rank(it->t, d->shape), &numel) && numel == 0) {
        return; // nothing to compute or to look at, however large its other extents
    }
    switch (tj_ops[d->op].cls) {
    case TJ_SOURCE:
        if (d->op == TJ_OP_ARANGE) {
            tj_interp_arange(it, n);
        }
        break;
    case TJ_POINTWISE:
        if (d->op == TJ_OP_CAST) {
            tj_interp_cast(it, n);
        } else {
            tj_interp_pointwise(it, n);
        }
        break;
    case TJ_REDUCE: tj_interp_reduce(it, n); break;
    case TJ_ROW: tj_interp_row(it, n); break;
    case TJ_MOVE:
        if (d->op == TJ_OP_UPDATE) {
            run_update(p, n);
        } else {
            tj_interp_move(it, n);
        }
        break;
    case TJ_CONTRACT: tj_interp_contract(it, n); break;
    case TJ_POOL: tj_interp_pool(it, n); break;
    case TJ_VIEW: // not expressible by strides: RESHAPE, AS_STRIDED of scattered memory. The operand's elements in
                  // row-major order are the result's (RESHAPE), or the memory it indexes (AS_STRIDED).
    default: tj_interp_move(it, n); break;
    }
}

// Whether the node does work of its own.
static bool runs(const struct plan *p, tj_ref n) {
    const struct tj_node *d = node_of(p, n);
    if (d->op == TJ_OP_LEAF || d->op == TJ_OP_SCALAR) {
        return false;
    }
    return !is_view(p, n) || p->it.vals[n].owner == n;
}

static tj_status execute(struct plan *p);

static tj_status run_loop(struct plan *p, struct loop *l) {
    const struct tj_body *b = l->body;
    for (uint32_t i = 0; i < b->n; i++) {
        struct tj_iview from = tj_iview_of(&p->it, b->init[i]), to = from;
        int64_t st[TJ_MAX_RANK];
        tj_contiguous_strides(to.dims, to.rank, st);
        for (size_t d = 0; d < to.rank; d++) {
            to.st[d] = tj_stride_times(st[d], (int64_t)tj_elem_bytes(to.dtype));
        }
        to.p = l->in[i];
        tj_icopy(&to, &from);
    }
    for (uint32_t n = 0; n < b->trace.nnodes; n++) {
        const struct tj_node *d = &b->trace.nodes[n];
        const struct tj_body_leaf *f = d->op == TJ_OP_LEAF ? &b->leaves[b->trace.attrs[d->attr]] : NULL;
        if (f && f->kind != TJ_BODY_CARRIED) {
            l->sub.owners[n].mem = p->it.vals[f->node].p;
        }
    }
    tj_status st = TRACE_OK;
    int64_t turns = p->it.args->params[b->times].v.i;
    for (int64_t t = 0; t < turns && st == TRACE_OK; t++) {
        st = execute(&l->sub);
        for (uint32_t i = 0; i < b->n && st == TRACE_OK; i++) {
            memcpy(l->in[i], l->outs[i]->st->data, l->bytes[i]);
        }
    }
    l->ran = true;
    return st;
}

// A result of a loop, which runs for the first of them.
static tj_status run_result(struct plan *p, tj_ref n) {
    struct loop *l = loop_of(p, n);
    tj_status st = l->ran ? TRACE_OK : run_loop(p, l);
    if (st == TRACE_OK) {
        struct tj_iview to = tj_iview_of(&p->it, n), from = to; // both contiguous
        from.p = l->in[((const struct tj_attr_dim *)tj_node_attr(p->it.t, node_of(p, n)))->dim];
        tj_icopy(&to, &from);
    }
    return st;
}

static tj_status execute(struct plan *p) {
    struct tj_interp *it = &p->it;
    uint32_t nnodes = it->t->nnodes, save = 0;
    uint64_t ops = 0, moved = 0;
    for (struct loop *l = p->loops; l; l = l->next) {
        l->ran = false;
    }
    for (uint32_t i = p->nsaves; i-- > 0;) { // of an earlier turn
        it->vals[p->saves[i].node] = p->saves[i].old;
    }
    for (uint32_t n = 0; n < nnodes; n++) {
        if (it->vals[n].needed) {
            place(p, &it->vals[n]);
        }
    }
    for (uint32_t n = 0; n < nnodes; n++) {
        for (; save < p->nsaves && p->saves[save].at == n; save++) {
            struct save *s = &p->saves[save];
            struct tj_iview from = tj_iview_of(it, s->node);
            it->vals[s->node] = s->kept;
            place(p, &it->vals[s->node]);
            struct tj_iview to = tj_iview_of(it, s->node);
            tj_icopy(&to, &from);
        }
        if (!it->vals[n].needed || !runs(p, n)) {
            continue;
        }
        if (it->args->cancel && atomic_load_explicit(it->args->cancel, memory_order_relaxed)) {
            return tj_fail(TRACE_ERR_SHUTDOWN, "the run was cancelled");
        }
        if (node_of(p, n)->op == TJ_OP_REPEAT_OUT) {
            tj_status st = run_result(p, n);
            if (st != TRACE_OK) {
                return st;
            }
            continue;
        }
        run_node(p, n);
        ops++;
        size_t bytes;
        moved += node_bytes(p, n, &bytes) ? bytes : 0;
        for (uint32_t k = 0; k < value_operands(node_of(p, n)); k++) {
            moved += node_bytes(p, tj_iin(it, n, k), &bytes) ? bytes : 0;
        }
    }
    for (uint32_t i = 0; i < it->seg->nouts; i++) {
        struct tj_iview from = tj_iview_of(it, it->seg->outs[i]), to = from;
        const struct trace_tensor *x = it->args->outs[i];
        to.p = tj_tensor_data(x);
        for (size_t d = 0; d < to.rank; d++) {
            to.st[d] = tj_stride_times(x->strides[d], (int64_t)tj_elem_bytes(to.dtype));
        }
        if (to.p != from.p) {
            tj_icopy(&to, &from);
        }
    }
    if (it->args->launches) {
        *it->args->launches += ops;
    }
    if (it->args->interpreted) {
        *it->args->interpreted += ops;
    }
    if (it->args->bytes_moved) {
        *it->args->bytes_moved += moved;
    }
    return TRACE_OK;
}

// Each value moves out at most once, and each UPDATE copies its source at most once: that bounds all arrays.
static tj_status make_tables(struct plan *p) {
    const struct tj_trace *t = p->it.t;
    size_t nodes = t->nnodes, updates = 0;
    for (uint32_t n = 0; n < t->nnodes; n++) {
        updates += t->nodes[n].op == TJ_OP_UPDATE;
    }
    size_t saves = updates ? nodes : 0, owners = nodes + saves + updates;
    size_t bytes = nodes * (sizeof *p->it.vals + sizeof *p->expire + sizeof *p->extra) +
                   owners * (sizeof *p->owners + sizeof *p->slots) + saves * sizeof *p->saves;
    p->table_bytes = bytes ? bytes : 1;
    p->tables = tj_buffer_alloc(p->it.args->ctx, p->table_bytes);
    if (!p->tables) {
        return TRACE_ERR_MEMORY;
    }
    memset(p->tables, 0, p->table_bytes);
    unsigned char *at = p->tables; // those of 8-byte alignment first
    p->it.vals = (void *)at;
    at += nodes * sizeof *p->it.vals;
    p->owners = (void *)at;
    at += owners * sizeof *p->owners;
    p->slots = (void *)at;
    at += owners * sizeof *p->slots;
    p->saves = (void *)at;
    at += saves * sizeof *p->saves;
    p->expire = (void *)at;
    at += nodes * sizeof *p->expire;
    p->extra = (void *)at;
    return TRACE_OK;
}

static tj_status plan_all(struct plan *p) {
    uint32_t nnodes = p->it.t->nnodes;
    tj_status made = make_tables(p);
    if (made != TRACE_OK) {
        return made;
    }
    p->nowners = nnodes;
    for (uint32_t n = 0; n < nnodes; n++) {
        p->owners[n] = (struct owner){.values = TJ_NIL, .next = TJ_NIL, .first = n};
        p->extra[n] = TJ_NIL;
        p->it.vals[n].owner = n;
        p->it.vals[n].next = TJ_NIL;
    }
    tj_status st = mark_needed(p);
    if (st != TRACE_OK) {
        return st;
    }
    for (uint32_t n = 0; n < nnodes; n++) {
        st = p->it.vals[n].needed ? plan_node(p, n) : TRACE_OK;
        if (st != TRACE_OK) {
            return st;
        }
    }
    place_outs(p);
    for (uint32_t i = p->nsaves; i-- > 0;) { // values lie where they were until their save runs
        p->it.vals[p->saves[i].node] = p->saves[i].old;
    }
    assign_slots(p);
    return allocate(p);
}

static void plan_free(struct plan *p) {
    trace_context *ctx = p->it.args->ctx;
    for (struct loop *l = p->loops, *next; l; l = next) {
        next = l->next;
        if (l->planned) {
            plan_free(&l->sub);
        }
        if (l->mem) {
            tj_buffer_free(ctx, l->mem, l->mem_bytes);
        }
        tj_body_free(l->body);
        tj_free(l->tensors);
        tj_free(l->storages);
        tj_free(l->leaves);
        tj_free((void *)l->outs);
        tj_free((void *)l->in);
        tj_free(l->bytes);
        tj_free(l);
    }
    for (uint32_t i = 0; i < p->nslots; i++) {
        if (p->slots[i].mem) {
            tj_buffer_free(ctx, p->slots[i].mem, p->slots[i].bytes ? p->slots[i].bytes : 1);
        }
    }
    if (p->it.scratch) {
        tj_buffer_free(ctx, p->it.scratch, p->scratch);
    }
    if (p->tables) {
        tj_buffer_free(ctx, p->tables, p->table_bytes);
    }
}

tj_status tj_interp_run(const struct tj_segment *seg, const struct tj_run_args *args) {
    struct plan p = {.it = {.seg = seg, .t = seg->trace, .args = args}};
    tj_status st = plan_all(&p);
    if (st == TRACE_OK) {
        tj_fpenv env;
        tj_fpenv_enter(&env);
        st = execute(&p);
        tj_fpenv_leave(&env);
    }
    plan_free(&p);
    return st;
}
