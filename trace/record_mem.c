// trace/record_mem.c: leaves, views and writes: which memory a value lies in, and what its content is now.
#include "record.h"
#include "repeat.h"

#include "../lib/hash.h"

// ---- leaves -----------------------------------------------------------------------------------------

static bool leaftab_grow(struct tj_run *run, struct tj_record *rec) {
    uint32_t size = rec->leaftabsize ? rec->leaftabsize * 2 : 32, stamp = (uint32_t)run->generation;
    struct tj_leaf_slot *tab = tj_malloc(size * sizeof *tab);
    if (!tab) {
        return false;
    }
    for (uint32_t i = 0; i < size; i++) {
        tab[i] = (struct tj_leaf_slot){NULL, stamp ^ 0x80000000u, 0};
    }
    for (uint32_t i = 0; i < rec->leaftabsize; i++) {
        struct tj_leaf_slot s = rec->leaftab[i];
        if (s.stamp == stamp && s.node < run->trace.nnodes) {
            uint64_t h = tj_hash_mix((uintptr_t)s.tensor, 1);
            while (tab[h & (size - 1)].stamp == stamp) {
                h++;
            }
            tab[h & (size - 1)] = s;
        }
    }
    tj_free(rec->leaftab);
    rec->leaftab = tab;
    rec->leaftabsize = size;
    return true;
}

// Appends a LEAF over a snapshot that has its place filled in; st: a reference and a reader, taken over.
static tj_ref leaf_new(struct tj_run *run, const struct trace_tensor *like, struct tj_storage *st,
                       struct trace_tensor *source, uint32_t input, struct tj_loc loc) {
    struct tj_record *rec = run->rec;
    struct tj_trace *t = &run->trace;
    uint32_t i = t->nleaves;
    uint32_t shape = tj_trace_shape(t, like->dims, like->rank), had = rec->capsnaps;
    bool ok = shape != UINT32_MAX && tj_grow((void **)&rec->snaps, &rec->capsnaps, i + 1, sizeof *rec->snaps);
    if (ok && rec->capsnaps > had) {
        memset(rec->snaps + had, 0, (rec->capsnaps - had) * sizeof *rec->snaps);
    }
    ok = ok && (rec->snaps[i] || (rec->snaps[i] = tj_malloc(sizeof **rec->snaps))) &&
         tj_grow((void **)&rec->leafnodes, &rec->capleafnodes, i + 1, sizeof *rec->leafnodes) &&
         tj_grow((void **)&t->leafkeys, &t->capleafkeys, i + 1, sizeof *t->leafkeys) &&
         tj_grow((void **)&t->leaves, &t->capleaves, i + 1, sizeof *t->leaves);
    struct tj_attr_leaf attr = {i};
    tj_ref n = TJ_NIL;
    if (!ok) {
        tj_op_fail(TRACE_ERR_MEMORY, tj_call_of(loc, "leaf"), loc, "out of memory while recording");
    } else {
        n = tj_append_value(run, TJ_OP_LEAF, (tj_dtype)like->dtype, shape, NULL, 0, &attr, 1, loc, TJ_NIL);
    }
    if (n == TJ_NIL) {
        tj_reader_leave(st, run->process);
        tj_storage_drop(st);
        return TJ_NIL;
    }
    struct trace_tensor *s = rec->snaps[i];
    *s = (struct trace_tensor){.dtype = like->dtype,
                               .rank = like->rank,
                               .layout = like->layout,
                               .numel = like->numel,
                               .offset = like->offset,
                               .st = st,
                               .op = like->op,
                               .loc = like->loc,
                               .ctx = run->ctx,
                               .internal = true};
    atomic_init(&s->refs, 1);
    memcpy(s->dims, like->dims, sizeof s->dims);
    memcpy(s->strides, like->strides, sizeof s->strides);
    t->leaves[i] = (struct tj_leaf){s, source};
    if (source) {
        (void)atomic_fetch_add_explicit(&source->refs, 1, memory_order_relaxed);
    }
    memset(&t->leafkeys[i], 0, sizeof *t->leafkeys);
    t->leafkeys[i].dtype = like->dtype;
    t->leafkeys[i].rank = like->rank;
    t->leafkeys[i].layout = like->layout;
    t->leafkeys[i].shape = shape;
    t->leafkeys[i].flags = st->flags & (TJ_ST_OWNED | TJ_ST_STABLE) ? 0 : TJ_LEAF_VOLATILE;
    t->leafkeys[i].input = input;
    t->nleaves = rec->nsnaps = i + 1;
    rec->leafnodes[i] = n;
    run->values[n].packed = like->layout == 0;
    run->compile_only |= (st->flags & TJ_ST_PLACEHOLDER) != 0;
    return n;
}

static uint32_t leaf_index(const struct tj_run *run, tj_ref n) {
    return (uint32_t)((const struct tj_attr_leaf *)tj_node_attr(&run->trace, &run->trace.nodes[n]))->index;
}
static struct trace_tensor *leaf_tensor(const struct tj_run *run, tj_ref n) {
    return run->trace.leaves[leaf_index(run, n)].tensor;
}

static tj_ref join(struct tj_run *run, tj_ref a, tj_ref b, bool whole, const char *op, struct tj_loc loc);

tj_ref tj_leaf_known(const struct tj_run *run, const trace_tensor *t) {
    const struct tj_record *rec = run->rec;
    if (!t || t == TRACE_NONE || !rec || !rec->leaftabsize) {
        return TJ_NIL;
    }
    uint32_t mask = rec->leaftabsize - 1, stamp = (uint32_t)run->generation;
    for (uint64_t h = tj_hash_mix((uintptr_t)t, 1);; h++) {
        const struct tj_leaf_slot *s = &rec->leaftab[h & mask];
        if (s->stamp != stamp || s->node >= run->trace.nnodes) {
            return TJ_NIL;
        }
        if (s->tensor == t) {
            return leaf_tensor(run, s->node)->st == __atomic_load_n(&t->st, __ATOMIC_RELAXED) &&
                           run->values[s->node].state != TJ_V_DEAD
                       ? s->node
                       : TJ_NIL;
        }
    }
}

tj_ref tj_leaf_of(struct tj_run *run, struct trace_tensor *t, uint32_t input) {
    struct tj_record *rec = run->rec;
    uint32_t stamp = (uint32_t)run->generation;
    uint64_t h = tj_hash_mix((uintptr_t)t, 1);
    struct tj_loc loc = t->loc;
    if (TJ_UNLIKELY(!rec)) {
        rec = run->rec = tj_calloc(1, sizeof *rec);
    }
    if (!rec || (rec->nleafslots * 2 >= rec->leaftabsize && !leaftab_grow(run, rec))) {
        tj_op_fail(TRACE_ERR_MEMORY, tj_call_of(loc, "leaf"), loc, "out of memory while recording");
        return TJ_NIL;
    }
    uint32_t mask = rec->leaftabsize - 1;
    struct tj_leaf_slot *s;
    for (;; h++) {
        s = &rec->leaftab[h & mask];
        if (s->stamp != stamp || s->node >= run->trace.nnodes) {
            break;
        }
        if (s->tensor == t) {
            // trace_write may have given t other memory since, and a failed inner scope may have dropped the node.
            if (leaf_tensor(run, s->node)->st == __atomic_load_n(&t->st, __ATOMIC_RELAXED) &&
                run->values[s->node].state != TJ_V_DEAD) {
                return s->node;
            }
            break;
        }
    }
    struct tj_storage *st = tj_tensor_storage(t);
    if (!st) {
        tj_op_fail(TRACE_ERR_STATE, tj_call_of(loc, "leaf"), loc, "the tensor has no content before its run ends");
        return TJ_NIL;
    }
    tj_reader_enter(st);
    tj_ref n = leaf_new(run, t, st, t, input, TJ_LOC(NULL, 0));
    if (n == TJ_NIL) {
        return TJ_NIL;
    }
    if (s->stamp != stamp) {
        rec->nleafslots++;
    }
    *s = (struct tj_leaf_slot){t, stamp, n};
    // Memory that the run has written may be this leaf's too.
    struct trace_tensor *snap = leaf_tensor(run, n);
    for (uint32_t i = 0; run->written && i < run->trace.nleaves; i++) {
        tj_ref m = rec->leafnodes[i];
        if (m != n && !run->values[m].rebased && run->values[m].state != TJ_V_DEAD &&
            (run->trace.leafkeys[i].flags & TJ_LEAF_WRITTEN) && tj_tensors_overlap(snap, run->trace.leaves[i].tensor) &&
            join(run, m, n, false, tj_call_of(loc, "leaf"), loc) == TJ_NIL) {
            return TJ_NIL;
        }
    }
    return n;
}

// ---- places -----------------------------------------------------------------------------------------

static int64_t param_of(const struct tj_trace *t, tj_ref scalar) {
    return t->params[((const struct tj_attr_param *)tj_node_attr(t, &t->nodes[scalar]))->index].v.i;
}

// Puts the views between n and its memory on the chain, last one first; gives the node below them.
static tj_ref unwind(struct tj_run *run, tj_ref n, uint32_t *count) {
    const struct tj_trace *t = &run->trace;
    struct tj_record *rec = run->rec;
    while (tj_ops[t->nodes[n].op].cls == TJ_VIEW && run->values[n].root != n) {
        rec->chain[(*count)++] = n;
        n = t->nodes[n].in[0];
    }
    return n;
}

// Without one, an offset leads nowhere, and may be any number.
static bool has_elements(const int64_t *dims, size_t rank) {
    for (size_t i = 0; i < rank; i++) {
        if (dims[i] == 0) {
            return false;
        }
    }
    return true;
}

static void apply_view(const struct tj_trace *t, const struct tj_node *n, struct tj_place *v) {
    const int64_t *dims = tj_shape_dims(t, n->shape);
    size_t rank = tj_shape_rank(t, n->shape);
    const void *attr = tj_node_attr(t, n);
    int64_t strides[TJ_MAX_RANK] = {0};
    switch (n->op) {
    case TJ_OP_RESHAPE: (void)tj_reshape_strides(v->dims, v->strides, v->rank, dims, rank, strides); break;
    case TJ_OP_PERMUTE:
        for (size_t i = 0; i < rank; i++) {
            strides[i] = v->strides[((const struct tj_attr_perm *)attr)->perm[i]];
        }
        break;
    case TJ_OP_EXPAND:
        for (size_t i = 0; i < v->rank; i++) {
            size_t to = rank - v->rank + i;
            strides[to] = v->dims[i] == dims[to] ? v->strides[i] : 0;
        }
        break;
    case TJ_OP_SLICE: {
        const struct tj_attr_slice *a = attr;
        memcpy(strides, v->strides, sizeof strides);
        v->offset += has_elements(dims, rank) ? param_of(t, n->in[1]) * strides[a->dim] : 0;
        strides[a->dim] = tj_stride_times(strides[a->dim], a->step);
        break;
    }
    case TJ_OP_DIAGONAL: {
        const struct tj_attr_diagonal *a = attr;
        int64_t off = has_elements(dims, rank) ? param_of(t, n->in[1]) : 0;
        v->offset += off >= 0 ? off * v->strides[a->d1] : -off * v->strides[a->d0];
        size_t k = 0;
        for (size_t i = 0; i < v->rank; i++) {
            if ((int64_t)i != a->d0 && (int64_t)i != a->d1) {
                strides[k++] = v->strides[i];
            }
        }
        strides[k] = dims[rank - 1] > 1 ? v->strides[a->d0] + v->strides[a->d1] : 0;
        break;
    }
    case TJ_OP_UNFOLD: {
        const struct tj_attr_unfold *a = attr;
        memcpy(strides, v->strides, sizeof strides);
        if (rank == v->rank + 1) {
            strides[rank - 1] = v->strides[a->dim];
        }
        strides[a->dim] = tj_stride_times(strides[a->dim], a->step);
        break;
    }
    case TJ_OP_AS_STRIDED:
        v->offset += has_elements(dims, rank) ? param_of(t, n->in[1]) : 0;
        memcpy(strides, ((const struct tj_attr_strides *)attr)->stride, sizeof strides);
        break;
    default: break;
    }
    v->rank = rank;
    memcpy(v->dims, dims, rank * sizeof *dims);
    memcpy(v->strides, strides, sizeof strides);
}

// Where views far from their memory lie, so that a chain of them isn't followed to its end for each. What is kept holds
// as long as the value below the views does: its root, and the tensor of that.
enum { PLACES = 64, NEAR = 8 };
struct tj_known_place {
    uint64_t generation; // of the run
    tj_ref node, base;   // the view; what is below the views
    tj_ref root;         // that `base` had
    struct tj_place place;
};

static const struct tj_known_place *known_place(const struct tj_run *run, tj_ref n) {
    const struct tj_known_place *k = run->rec->places ? &run->rec->places[n % PLACES] : NULL;
    if (!k || k->generation != run->generation || k->node != n || run->values[k->base].root != k->root)
        return NULL;
    const struct tj_node *root = &run->trace.nodes[k->root];
    return root->op != TJ_OP_LEAF || run->trace.leaves[leaf_index(run, k->root)].tensor == k->place.tensor ? k : NULL;
}

static void know_place(struct tj_run *run, tj_ref n, tj_ref base, const struct tj_place *v) {
    struct tj_record *rec = run->rec;
    if (!rec->places)
        rec->places = tj_calloc(PLACES, sizeof *rec->places);
    if (rec->places) // else the chain is followed again
        rec->places[n % PLACES] = (struct tj_known_place){run->generation, n, base, run->values[base].root, *v};
}

void tj_value_place(struct tj_run *run, tj_ref n, struct tj_place *v, tj_ref *root) {
    const struct tj_trace *t = &run->trace;
    struct tj_record *rec = run->rec;
    const struct tj_known_place *known = NULL;
    uint32_t count = 0;
    tj_ref base = n;
    while (tj_ops[t->nodes[base].op].cls == TJ_VIEW && run->values[base].root != base &&
           !(count >= NEAR && (known = known_place(run, base)))) {
        rec->chain[count++] = base;
        base = t->nodes[base].in[0];
    }
    uint32_t far = count;
    if (known) {
        *v = known->place;
        base = known->base;
    } else {
        memset(v, 0, sizeof *v);
        tj_ref r = run->values[base].root;
        const struct tj_node *node = &t->nodes[r];
        v->rank = tj_shape_rank(t, node->shape);
        memcpy(v->dims, tj_shape_dims(t, node->shape), v->rank * sizeof *v->dims);
        if (node->op == TJ_OP_LEAF) {
            const struct tj_leaf *l = &t->leaves[leaf_index(run, r)];
            v->tensor = l->tensor;
            v->source = count ? NULL : l->source;
            v->offset = l->tensor->offset;
            memcpy(v->strides, l->tensor->strides, sizeof v->strides);
        } else {
            tj_contiguous_strides(v->dims, v->rank, v->strides);
        }
    }
    while (count) {
        apply_view(t, &t->nodes[rec->chain[--count]], v);
    }
    if (far >= NEAR) {
        know_place(run, n, base, v);
    }
    *root = tj_value_root(run, base);
}

bool tj_value_packed(struct tj_run *run, tj_ref n) {
    if (run->values[n].packed) {
        return true;
    }
    struct tj_place v;
    tj_ref root;
    tj_value_place(run, n, &v, &root);
    run->values[n].packed = tj_layout_of(v.dims, v.strides, v.rank) == 0;
    return run->values[n].packed;
}

bool tj_value_view(struct tj_run *run, tj_ref n, struct tj_place *v) {
    tj_ref root;
    tj_value_place(run, n, v, &root);
    return v->tensor != NULL;
}

tj_ref tj_value_current(struct tj_run *run, tj_ref n) {
    uint32_t count = 0;
    bool changed = false;
    tj_ref x = n, memory = run->values[n].root;
    if (run->values[memory].root == memory && run->values[memory].latest == memory) {
        return n; // never written
    }
    for (;;) {
        x = unwind(run, x, &count);
        tj_ref r = run->values[x].root, now = run->values[r].latest;
        if (now == x) {
            break;
        }
        changed = true;
        x = now; // of a rebased leaf: its view of the base; else the content, which may be another leaf's
        if (!run->values[r].rebased && run->values[now].root == r) {
            break;
        }
    }
    if (!changed) {
        return n;
    }
    while (count && x != TJ_NIL) {
        x = tj_rec_again(run, run->rec->chain[--count], x);
    }
    return x;
}

// ---- leaves that share memory -------------------------------------------------------------------------

struct range {
    uintptr_t lo, hi; // bytes; of placeholders: from their storage's start
};

static struct range range_of(const struct trace_tensor *t) {
    uintptr_t lo = (uintptr_t)t->st->data + (uintptr_t)t->offset * tj_elem_bytes((tj_dtype)t->dtype);
    int64_t n = t->numel ? 1 : 0;
    for (size_t i = 0; n && i < t->rank; i++) {
        n += (t->dims[i] - 1) * t->strides[i];
    }
    return (struct range){lo, lo + (uintptr_t)n * tj_elem_bytes((tj_dtype)t->dtype)};
}

static bool touches(const struct trace_tensor *t, struct range r, const struct tj_storage *st) {
    if (!t->numel || !t->st->data != !st->data || (!st->data && t->st != st)) {
        return false;
    }
    struct range x = range_of(t);
    return x.lo < r.hi && r.lo < x.hi;
}

// A storage over borrowed memory that several wrapped tensors cover; their leaves keep it alive.
static struct tj_storage *cover(struct tj_run *run, const struct tj_storage *like, struct range r) {
    struct tj_storage *st = tj_storage_borrow(run->ctx, like->flags & ~(uint32_t)(TJ_ST_OWNED | TJ_ST_READONLY));
    if (st) {
        st->data = (unsigned char *)r.lo;
        st->bytes = r.hi - r.lo;
    }
    return st;
}

// Expresses the overlapping leaves a and b (and all that touch the memory between their ends) as views of one 1-d leaf.
// whole: over the whole storage of a (b is a). Gives the base.
static tj_ref join(struct tj_run *run, tj_ref a, tj_ref b, bool whole, const char *op, struct tj_loc loc) {
    struct tj_record *rec = run->rec;
    struct tj_trace *t = &run->trace;
    const struct trace_tensor *ta = leaf_tensor(run, a);
    struct range r = range_of(ta), rb = range_of(leaf_tensor(run, b));
    tj_dtype d = (tj_dtype)ta->dtype;
    uintptr_t elem = tj_elem_bytes(d);
    if (whole) {
        r = (struct range){(uintptr_t)ta->st->data, (uintptr_t)ta->st->data + ta->st->bytes};
    }
    r.lo = rb.lo < r.lo ? rb.lo : r.lo;
    r.hi = rb.hi > r.hi ? rb.hi : r.hi;
    bool one_storage = true, grew = true;
    while (grew) { // leaves captured in between may reach further
        grew = false;
        for (uint32_t i = 0; i < t->nleaves; i++) {
            const struct trace_tensor *m = t->leaves[i].tensor;
            const struct tj_value *v = &run->values[rec->leafnodes[i]];
            if (v->rebased || v->state == TJ_V_DEAD || !touches(m, r, ta->st)) {
                continue;
            }
            struct range x = range_of(m);
            grew |= x.lo < r.lo || x.hi > r.hi;
            r.lo = x.lo < r.lo ? x.lo : r.lo;
            r.hi = x.hi > r.hi ? x.hi : r.hi;
            one_storage &= m->st == ta->st;
            if (m->dtype != d || (x.lo - r.lo) % elem) {
                tj_op_fail(TRACE_ERR_ARGUMENT, op, loc,
                           "memory that the region writes is also used as %s and %s%s; "
                           "copy one of them first",
                           tj_dtypes[d].name, tj_dtypes[m->dtype].name,
                           m->dtype == d ? ", shifted by part of an element" : "");
                return TJ_NIL;
            }
        }
    }
    int64_t elems = (int64_t)((r.hi - r.lo) / elem);
    // The base: a member that is just that, or a new leaf.
    tj_ref base = TJ_NIL;
    uint16_t flags = 0;
    for (uint32_t i = 0; i < t->nleaves; i++) {
        const struct trace_tensor *m = t->leaves[i].tensor;
        const struct tj_value *v = &run->values[rec->leafnodes[i]];
        if (!v->rebased && v->state != TJ_V_DEAD && touches(m, r, ta->st)) {
            flags |= t->leafkeys[i].flags & (TJ_LEAF_WRITTEN | TJ_LEAF_VOLATILE);
            if (base == TJ_NIL && m->rank == 1 && m->layout == 0 && m->numel == elems) {
                base = rec->leafnodes[i];
            }
        }
    }
    if (base == TJ_NIL) {
        struct tj_storage *st = ta->st;
        if (one_storage) {
            (void)atomic_fetch_add_explicit(&st->refs, 1, memory_order_relaxed);
        } else if (!(st = cover(run, st, r))) {
            tj_op_fail(TRACE_ERR_MEMORY, op, loc, "out of memory while recording");
            return TJ_NIL;
        }
        tj_reader_enter(st);
        struct trace_tensor like = {.dtype = (uint8_t)d,
                                    .rank = 1,
                                    .numel = elems,
                                    .offset = (int64_t)((r.lo - (uintptr_t)st->data) / elem),
                                    .dims = {elems},
                                    .strides = {1},
                                    .op = "base"};
        base = leaf_new(run, &like, st, NULL, 0, TJ_LOC(NULL, 0));
        if (base == TJ_NIL) {
            return TJ_NIL;
        }
    }
    uint16_t group = ++rec->groups;
    t->leafkeys[leaf_index(run, base)].flags |= flags;
    t->leafkeys[leaf_index(run, base)].group = group;
    struct tj_rec q = {.r = run, .op = op, .loc = loc};
    struct range rbase = range_of(leaf_tensor(run, base));
    uint32_t n = t->nleaves;
    for (uint32_t i = 0; i < n; i++) {
        tj_ref m = rec->leafnodes[i];
        const struct trace_tensor *s = t->leaves[i].tensor;
        if (m == base || run->values[m].state == TJ_V_DEAD || !touches(s, r, ta->st)) {
            continue;
        }
        t->leafkeys[i].group = group;
        if (run->values[m].rebased) {
            continue; // follows through the base it had
        }
        struct tj_attr_strides attr = {{0}};
        memcpy(attr.stride, s->strides, s->rank * sizeof *s->strides);
        tj_ref in[2] = {base, tj_rec_scalar_i(&q, TRACE_I64, (int64_t)((range_of(s).lo - rbase.lo) / elem))};
        tj_ref view = tj_rec_op(&q, TJ_OP_AS_STRIDED, d, s->dims, s->rank, in, 2, &attr, sizeof attr, TJ_PART);
        if (view == TJ_NIL) {
            return TJ_NIL;
        }
        tj_ref content = run->values[m].latest;
        run->values[m].rebased = true;
        run->values[m].latest = view;
        if (content != m) { // written before: that content is part of the base's now
            tj_ref at = tj_value_current(run, view), cur = run->values[base].latest;
            tj_ref up[3] = {cur, content, at};
            const struct tj_node *bn = &t->nodes[base];
            tj_ref u =
                at == TJ_NIL ? TJ_NIL : tj_append_value(run, TJ_OP_UPDATE, d, bn->shape, up, 3, NULL, 0, loc, base);
            if (u == TJ_NIL) {
                return TJ_NIL;
            }
            run->values[base].latest = u;
        }
    }
    run->written = true; // handles of members resolve to the base from here on
    return base;
}

tj_ref tj_leaf_base(struct tj_rec *q, tj_ref leaf) { return join(q->r, leaf, leaf, true, q->op, q->loc); }

// ---- writes -------------------------------------------------------------------------------------------

// First write of the run to a leaf: others may read the same memory.
static bool claim(struct tj_rec *q, tj_ref leaf) {
    struct tj_run *run = q->r;
    struct tj_leaf_key *keys = run->trace.leafkeys;
    uint32_t self = leaf_index(run, leaf);
    if (keys[self].flags & TJ_LEAF_WRITTEN) {
        return true;
    }
    keys[self].flags |= TJ_LEAF_WRITTEN;
    const struct trace_tensor *s = run->trace.leaves[self].tensor;
    for (uint32_t i = 0; i < run->trace.nleaves; i++) {
        tj_ref m = run->rec->leafnodes[i];
        if (i != self && !run->values[m].rebased && run->values[m].state != TJ_V_DEAD &&
            tj_tensors_overlap(s, run->trace.leaves[i].tensor)) {
            return join(run, leaf, m, false, q->op, q->loc) != TJ_NIL;
        }
    }
    return true;
}

bool tj_rec_writable(struct tj_rec *q, tj_ref target) {
    struct tj_place v;
    tj_ref root;
    char text[TJ_DIMS_TEXT];
    tj_value_place(q->r, target, &v, &root);
    if (v.tensor && (v.tensor->st->flags & TJ_ST_READONLY)) {
        tj_op_fail(TRACE_ERR_ARGUMENT, q->op, q->loc,
                   "writes memory that was wrapped read-only (%s%s); wrap it with "
                   "trace_wrap, or use the form that gives a new value",
                   tj_dtypes[v.tensor->dtype].name, tj_dims_text(text, sizeof text, v.dims, v.rank));
        return false;
    }
    // Dims from the smallest stride on: each has to step over all the elements of those before it.
    bool used[TJ_MAX_RANK] = {false};
    int64_t reach = 1, numel;
    if (!tj_numel(v.dims, v.rank, &numel) || numel == 0) {
        return true;
    }
    for (size_t k = 0; k < v.rank; k++) {
        size_t least = v.rank;
        for (size_t i = 0; i < v.rank; i++) {
            if (!used[i] && v.dims[i] > 1 && (least == v.rank || v.strides[i] < v.strides[least])) {
                least = i;
            }
        }
        if (least == v.rank) {
            break;
        }
        if (v.strides[least] < reach) {
            tj_op_fail(TRACE_ERR_ARGUMENT, q->op, q->loc,
                       "unsupported operation: some elements of the destination %s "
                       "refer to a single memory location; clone it first",
                       tj_dims_text(text, sizeof text, v.dims, v.rank));
            return false;
        }
        used[least] = true;
        reach += (v.dims[least] - 1) * v.strides[least];
    }
    return true;
}

tj_ref tj_rec_target(struct tj_rec *q, trace_tensor *t) {
    tj_ref raw = tj_rec_raw(q, t); // its own flags count, even when its memory is part of another leaf's by now
    if (raw == TJ_NIL || !tj_rec_writable(q, raw)) {
        return TJ_NIL;
    }
    return q->r->written ? tj_value_current(q->r, raw) : raw;
}

bool tj_rec_write(struct tj_rec *q, tj_ref target, tj_ref v) {
    struct tj_run *run = q->r;
    if (target == TJ_NIL || v == TJ_NIL) {
        return false;
    }
    tj_ref root = tj_value_root(run, target);
    if (TJ_UNLIKELY(run->nloops) && !tj_repeat_writable(run, root, q->op, q->loc)) {
        return false;
    }
    if (run->trace.nodes[root].op == TJ_OP_LEAF) {
        if (!claim(q, root)) {
            return false;
        }
        target = tj_value_current(run, target);
        if (target == TJ_NIL) {
            return false;
        }
        root = tj_value_root(run, target);
        run->trace.leafkeys[leaf_index(run, root)].flags |= TJ_LEAF_WRITTEN;
    }
    const struct tj_node *n = &run->trace.nodes[root];
    tj_ref in[3] = {run->values[root].latest, v, target};
    tj_ref u = tj_append_value(run, TJ_OP_UPDATE, (tj_dtype)n->dtype, n->shape, in, 3, NULL, 0, q->loc, root);
    if (u == TJ_NIL) {
        return false;
    }
    run->values[root].latest = u;
    run->written = true;
    return true;
}

uint32_t tj_run_writes(struct tj_run *run, tj_ref *out, uint32_t cap) {
    uint32_t k = 0;
    for (uint32_t i = 0; run->written && i < run->trace.nleaves; i++) {
        tj_ref n = run->rec->leafnodes[i];
        const struct tj_value *v = &run->values[n];
        if (!v->rebased && v->state != TJ_V_DEAD && run->trace.nodes[v->latest].op == TJ_OP_UPDATE &&
            run->values[v->latest].root == n) {
            if (k < cap) {
                out[k] = v->latest;
            }
            k++;
        }
    }
    return k;
}

// ---- trace_write while a run is open --------------------------------------------------------------------

uint32_t tj_run_uses(const struct tj_run *run, const struct tj_storage *st, bool *written) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < run->trace.nleaves; i++) {
        const struct trace_tensor *t = run->trace.leaves[i].tensor;
        if (t && t->st == st) {
            n++;
            *written |= (run->trace.leafkeys[i].flags & TJ_LEAF_WRITTEN) != 0;
        }
    }
    return n;
}

// Leaf i's handle has other memory by now, with its content.
static bool follow(struct tj_run *run, uint32_t i) {
    struct trace_tensor *source = run->trace.leaves[i].source;
    tj_ref was = run->rec->leafnodes[i];
    if (!source || run->values[was].rebased || run->values[was].state == TJ_V_DEAD) {
        return true;
    }
    tj_ref now = tj_leaf_of(run, source, 0);
    if (now == TJ_NIL) {
        return false;
    }
    run->values[was].latest = now;
    run->written = true;
    return true;
}

bool tj_run_moved(struct tj_run *run, struct trace_tensor *t, const struct tj_storage *old) {
    run->fresh_from = run->trace.nnodes; // what was computed from the old content is no longer what its operands give
    if (__atomic_load_n(&t->st, __ATOMIC_RELAXED) == old) {
        return true; // changed in place: leaves read the new content
    }
    uint32_t n = run->trace.nleaves;
    for (uint32_t i = 0; i < n; i++) {
        if (run->trace.leaves[i].tensor->st == old && !follow(run, i)) {
            return false;
        }
    }
    return true;
}

void tj_run_moved_again(struct tj_run *run, uint32_t nnodes) {
    uint32_t n = run->trace.nleaves;
    for (uint32_t i = 0; i < n; i++) {
        const struct tj_leaf *l = &run->trace.leaves[i];
        tj_ref node = run->rec->leafnodes[i];
        if (node < nnodes && run->values[node].latest == node && l->source &&
            l->tensor->st != __atomic_load_n(&l->source->st, __ATOMIC_RELAXED) && !follow(run, i)) {
            return;
        }
    }
}
