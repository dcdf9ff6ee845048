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
         tj_grow((void **)&rec->groupof, &rec->capgroupof, i + 1, sizeof *rec->groupof) &&
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
    rec->groupof[i] = (struct tj_member){0, 0};
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

static bool meet_written(struct tj_run *run, uint32_t leaf, struct tj_loc loc);
static bool set_content(struct tj_run *run, tj_ref root, tj_ref v, tj_ref view, struct tj_loc loc);

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
    uint32_t i = run->trace.nleaves;
    tj_ref n = leaf_new(run, t, st, t, input, TJ_LOC(NULL, 0));
    if (n == TJ_NIL) {
        return TJ_NIL;
    }
    if (s->stamp != stamp) {
        rec->nleafslots++;
    }
    *s = (struct tj_leaf_slot){t, stamp, n};
    // Memory that the run has written may be this leaf's too.
    return !run->written || meet_written(run, i, loc) ? n : TJ_NIL;
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
// Leaves that have a byte in common, one of them written, become views of one 1-d leaf, their base. It reaches from the
// first to the last of their bytes; leaves of the same dtype in between join them, others stay by themselves as long as
// they are apart from each member.

static const struct trace_tensor *tensor_at(const struct tj_run *run, uint32_t leaf) {
    return run->trace.leaves[leaf].tensor;
}

// Whether leaf i can be a view of the base of elements like x.
static bool fits(const struct tj_run *run, uint32_t i, const struct trace_tensor *x) {
    const struct trace_tensor *t = tensor_at(run, i);
    return t->dtype == x->dtype &&
           (tj_tensor_span(t).lo - tj_tensor_span(x).lo) % tj_elem_bytes((tj_dtype)x->dtype) == 0;
}

static bool one_memory(const struct trace_tensor *a, const struct trace_tensor *b) { // else addresses mean nothing
    return a->st == b->st || (a->st->data && b->st->data);
}

// Whether leaf i, which may be a base, has a byte in common with t: through its members.
static bool shares(const struct tj_run *run, uint32_t i, const struct trace_tensor *t) {
    const struct tj_record *rec = run->rec;
    bool base = false;
    for (uint32_t m = rec->groupof[i].first; m; m = rec->groupof[m - 1].next) {
        base = true;
        if (shares(run, m - 1, t)) {
            return true;
        }
    }
    // A base that was captured itself is a member, too.
    return (!base || run->trace.leaves[i].source) && tj_tensors_overlap(tensor_at(run, i), t);
}

// A storage over borrowed memory that several wrapped tensors cover; their leaves keep it alive.
static struct tj_storage *cover(struct tj_run *run, const struct tj_storage *like, struct tj_span r) {
    struct tj_storage *st = tj_storage_borrow(run->ctx, like->flags & ~(uint32_t)(TJ_ST_OWNED | TJ_ST_READONLY));
    if (st) {
        st->data = (unsigned char *)r.lo;
        st->bytes = r.hi - r.lo;
    }
    return st;
}

struct joining {
    struct tj_run *run;
    const struct trace_tensor *like; // a member
    struct tj_span r;                // of the members
    uint32_t n, odd;                 // rec->joined: members, then leaves that can't be
    bool one_storage, rest, failed;  // rest: those that can't be are looked for
};

static bool take_member(void *user, uint32_t i) {
    struct joining *j = user;
    struct tj_record *rec = j->run->rec;
    const struct trace_tensor *t = tensor_at(j->run, i);
    bool fit = fits(j->run, i, j->like);
    if (!one_memory(t, j->like) || fit == j->rest) {
        return true;
    }
    if (!tj_grow((void **)&rec->joined, &rec->capjoined, j->n + j->odd + 1, sizeof *rec->joined)) {
        j->failed = true;
        return false;
    }
    rec->joined[j->n + j->odd] = i;
    if (!fit) {
        j->odd++;
        return true;
    }
    j->n++;
    j->one_storage = j->one_storage && t->st == j->like->st;
    return true;
}

// Finds what lies between the ends of r, which grow with it. Members leave the index; the rest comes behind them.
static bool take_members(struct joining *j) {
    struct tj_record *rec = j->run->rec;
    for (uint32_t had = 0;; had = j->n) {
        struct trace_tensor hull = *j->like; // bytes from end to end
        hull.dtype = TRACE_U8;
        hull.rank = 1;
        hull.dims[0] = hull.numel = (int64_t)(j->r.hi - j->r.lo);
        hull.strides[0] = 1;
        hull.offset = (int64_t)(j->r.lo - (uintptr_t)hull.st->data);
        if (!tj_leaves_over(j->run, &hull, take_member, j) || j->failed) {
            return false;
        }
        for (uint32_t k = had; k < j->n; k++) {
            struct tj_span x = tj_tensor_span(tensor_at(j->run, rec->joined[k]));
            tj_leaves_remove(j->run, rec->joined[k]);
            j->r.lo = x.lo < j->r.lo ? x.lo : j->r.lo;
            j->r.hi = x.hi > j->r.hi ? x.hi : j->r.hi;
        }
        if (j->rest) {
            return true;
        }
        j->rest = j->n == had;
    }
}

// Leaves that can't be views of the base have to be apart from its members.
static bool apart_from_odd(const struct joining *j, const char *op, struct tj_loc loc) {
    const struct tj_run *run = j->run;
    for (uint32_t k = j->n; k < j->n + j->odd; k++) {
        const struct trace_tensor *odd = tensor_at(run, run->rec->joined[k]);
        for (uint32_t m = 0; m < j->n; m++) {
            if (!shares(run, run->rec->joined[m], odd)) {
                continue;
            }
            bool sure = tj_tensors_share(tensor_at(run, run->rec->joined[m]), odd) == TJ_SHARED;
            tj_op_fail(TRACE_ERR_ARGUMENT, op, loc,
                       "memory that the region writes is also used as %s and %s%s%s; copy one of them first",
                       tj_dtypes[j->like->dtype].name, tj_dtypes[odd->dtype].name,
                       odd->dtype == j->like->dtype ? ", shifted by part of an element" : "",
                       sure ? "" : ", or too tangled to tell that it isn't");
            return false;
        }
    }
    return true;
}

// The base: a member that is just that, or a new leaf.
static tj_ref base_of(struct joining *j, const char *op, struct tj_loc loc) {
    struct tj_run *run = j->run;
    struct tj_record *rec = run->rec;
    tj_dtype d = (tj_dtype)j->like->dtype;
    int64_t elems = (int64_t)((j->r.hi - j->r.lo) / tj_elem_bytes(d));
    for (uint32_t k = 0; k < j->n; k++) {
        const struct trace_tensor *m = tensor_at(run, rec->joined[k]);
        if (m->rank == 1 && m->layout == 0 && m->numel == elems) {
            tj_leaves_restore(run, rec->joined[k]);
            return rec->leafnodes[rec->joined[k]];
        }
    }
    struct tj_storage *st = j->like->st;
    if (j->one_storage) {
        (void)atomic_fetch_add_explicit(&st->refs, 1, memory_order_relaxed);
    } else if (!(st = cover(run, st, j->r))) {
        tj_op_fail(TRACE_ERR_MEMORY, op, loc, "out of memory while recording");
        return TJ_NIL;
    }
    tj_reader_enter(st);
    struct trace_tensor like = {.dtype = (uint8_t)d,
                                .rank = 1,
                                .numel = elems,
                                .offset = (int64_t)((j->r.lo - (uintptr_t)st->data) / tj_elem_bytes(d)),
                                .dims = {elems},
                                .strides = {1},
                                .op = "base"};
    return leaf_new(run, &like, st, NULL, 0, TJ_LOC(NULL, 0));
}

static void name_group(struct tj_run *run, uint32_t leaf, uint32_t group) {
    run->trace.leafkeys[leaf].group = group;
    for (uint32_t m = run->rec->groupof[leaf].first; m; m = run->rec->groupof[m - 1].next) {
        name_group(run, m - 1, group);
    }
}

// Makes leaf i a view of `base`, whose memory its own is part of.
static bool attach(struct tj_run *run, tj_ref base, uint32_t i, const char *op, struct tj_loc loc) {
    struct tj_record *rec = run->rec;
    struct tj_trace *t = &run->trace;
    const struct trace_tensor *s = tensor_at(run, i);
    uint32_t b = leaf_index(run, base);
    tj_ref m = rec->leafnodes[i];
    tj_dtype d = (tj_dtype)s->dtype;
    struct tj_rec q = {.r = run, .op = op, .loc = loc};
    struct tj_attr_strides attr = {{0}};
    for (size_t k = 0; k < s->rank; k++) {
        attr.stride[k] = s->dims[k] > 1 ? s->strides[k] : 1;
    }
    uintptr_t at = (tj_tensor_span(s).lo - tj_tensor_span(tensor_at(run, b)).lo) / tj_elem_bytes(d);
    tj_ref in[2] = {base, tj_rec_scalar_i(&q, TRACE_I64, (int64_t)at)};
    tj_ref view = tj_rec_op(&q, TJ_OP_AS_STRIDED, d, s->dims, s->rank, in, 2, &attr, sizeof attr, TJ_PART);
    if (view == TJ_NIL) {
        return false;
    }
    tj_leaves_remove(run, i);
    t->leafkeys[b].flags |= t->leafkeys[i].flags & (TJ_LEAF_WRITTEN | TJ_LEAF_VOLATILE);
    rec->groupof[i].next = rec->groupof[b].first;
    rec->groupof[b].first = i + 1;
    name_group(run, i, t->leafkeys[b].group);
    tj_ref content = run->values[m].latest;
    run->values[m].rebased = true;
    run->values[m].latest = view;
    if (content != m) { // written before: that content is part of the base's now
        tj_ref now = tj_value_current(run, view);
        return now != TJ_NIL && set_content(run, base, content, now, loc);
    }
    return true;
}

// Expresses leaf a, leaf b, which shares memory with it, and all that touch the memory between their ends as views of
// one 1-d leaf. whole: over the whole storage of a (b is a). Gives the base.
static tj_ref join(struct tj_run *run, uint32_t a, uint32_t b, bool whole, const char *op, struct tj_loc loc) {
    struct tj_record *rec = run->rec;
    const struct trace_tensor *ta = tensor_at(run, a);
    struct joining j = {.run = run, .like = ta, .r = tj_tensor_span(ta), .one_storage = true};
    struct tj_span rb = tj_tensor_span(tensor_at(run, b));
    if (!fits(run, b, ta)) { // found again below, and told of
        rb = j.r;
    } else if (whole) {
        rb = (struct tj_span){(uintptr_t)ta->st->data, (uintptr_t)ta->st->data + ta->st->bytes};
    }
    j.r.lo = rb.lo < j.r.lo ? rb.lo : j.r.lo;
    j.r.hi = rb.hi > j.r.hi ? rb.hi : j.r.hi;
    if (!take_members(&j)) {
        tj_op_fail(TRACE_ERR_MEMORY, op, loc, "out of memory while recording");
        return TJ_NIL;
    }
    tj_ref base = apart_from_odd(&j, op, loc) ? base_of(&j, op, loc) : TJ_NIL;
    if (base == TJ_NIL) {
        return TJ_NIL;
    }
    uint32_t at = leaf_index(run, base);
    if (!run->trace.leafkeys[at].group) {
        run->trace.leafkeys[at].group = ++rec->groups;
    }
    for (uint32_t k = 0; k < j.n; k++) {
        if (rec->joined[k] != at && !attach(run, base, rec->joined[k], op, loc)) {
            return TJ_NIL;
        }
    }
    run->written = true; // handles of members resolve to the base from here on
    return base;
}

tj_ref tj_leaf_base(struct tj_rec *q, tj_ref leaf) {
    uint32_t i = leaf_index(q->r, leaf);
    return join(q->r, i, i, true, q->op, q->loc);
}

// Looks for a leaf that shares memory with leaf `self`.
struct meeting {
    const struct tj_run *run;
    uint32_t self, other;
    bool written; // only one that the run has written
    bool found;
};

static bool meet(void *user, uint32_t i) {
    struct meeting *m = user;
    const struct tj_run *run = m->run;
    const struct trace_tensor *t = tensor_at(run, m->self);
    if (i == m->self || (m->written && !(run->trace.leafkeys[i].flags & TJ_LEAF_WRITTEN))) {
        return true;
    }
    // What lies in a base and fits is made a view of it, whatever the members are.
    bool in = run->rec->groupof[i].first && fits(run, i, t) && one_memory(tensor_at(run, i), t);
    if (in ? !tj_tensors_overlap(tensor_at(run, i), t) : !shares(run, i, t)) {
        return true;
    }
    m->other = i;
    m->found = true;
    return false;
}

// Leaf `self` is new: whether the run has written its memory. False: failed.
static bool meet_written(struct tj_run *run, uint32_t self, struct tj_loc loc) {
    struct meeting m = {.run = run, .self = self, .written = true};
    if (!tj_leaves_over(run, tensor_at(run, self), meet, &m)) {
        tj_op_fail(TRACE_ERR_MEMORY, "leaf", loc, "out of memory while recording");
        return false;
    }
    if (!m.found) {
        return true;
    }
    struct tj_span x = tj_tensor_span(tensor_at(run, self)), y = tj_tensor_span(tensor_at(run, m.other));
    if (run->rec->groupof[m.other].first && fits(run, self, tensor_at(run, m.other)) && x.lo >= y.lo && x.hi <= y.hi) {
        return attach(run, run->rec->leafnodes[m.other], self, "leaf", loc); // all else in there is attached already
    }
    return join(run, m.other, self, false, "leaf", loc) != TJ_NIL;
}

// ---- writes -------------------------------------------------------------------------------------------

// Appends the UPDATE that puts v at `view` into the memory of root.
static bool set_content(struct tj_run *run, tj_ref root, tj_ref v, tj_ref view, struct tj_loc loc) {
    const struct tj_node *n = &run->trace.nodes[root];
    struct tj_record *rec = run->rec;
    tj_ref in[3] = {run->values[root].latest, v, view};
    if (n->op == TJ_OP_LEAF && !run->values[root].listed) {
        if (!tj_grow((void **)&rec->written, &rec->capwritten, rec->nwritten + 1, sizeof *rec->written)) {
            tj_op_fail(TRACE_ERR_MEMORY, "update", loc, "out of memory while recording");
            return false;
        }
        rec->written[rec->nwritten++] = root;
        run->values[root].listed = true;
    }
    tj_ref u = tj_append_value(run, TJ_OP_UPDATE, (tj_dtype)n->dtype, n->shape, in, 3, NULL, 0, loc, root);
    if (u != TJ_NIL) {
        run->values[root].latest = u;
    }
    return u != TJ_NIL;
}

// First write of the run to a leaf: others may read the same memory.
static bool claim(struct tj_rec *q, tj_ref leaf) {
    struct tj_run *run = q->r;
    struct meeting m = {.run = run, .self = leaf_index(run, leaf)};
    uint16_t *flags = &run->trace.leafkeys[m.self].flags;
    if (*flags & TJ_LEAF_WRITTEN) {
        return true;
    }
    *flags |= TJ_LEAF_WRITTEN;
    if (!tj_leaves_over(run, tensor_at(run, m.self), meet, &m)) {
        (void)tj_rec_oom(q);
        return false;
    }
    return !m.found || join(run, m.self, m.other, false, q->op, q->loc) != TJ_NIL;
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
    if (!set_content(run, root, v, target, q->loc)) {
        return false;
    }
    run->written = true;
    return true;
}

// Leaves are written in any order, and nearly always in their own.
static void sort_refs(tj_ref *a, uint32_t n) {
    for (uint32_t gap = n / 2; gap; gap /= 2) {
        for (uint32_t i = gap; i < n; i++) {
            tj_ref v = a[i];
            uint32_t k = i;
            for (; k >= gap && a[k - gap] > v; k -= gap) {
                a[k] = a[k - gap];
            }
            a[k] = v;
        }
    }
}

uint32_t tj_run_writes(struct tj_run *run, tj_ref *out, uint32_t cap) {
    struct tj_record *rec = run->rec;
    uint32_t n = 0, k = 0;
    if (!run->written) {
        return 0;
    }
    for (uint32_t i = 0; i < rec->nwritten; i++) {
        tj_ref r = rec->written[i];
        struct tj_value *v = &run->values[r];
        if (v->state == TJ_V_DEAD || run->values[v->latest].state == TJ_V_STORED) { // a break has run it
            v->listed = false;
            continue;
        }
        rec->written[n++] = r;
    }
    rec->nwritten = n;
    for (uint32_t i = 1; i < n; i++) {
        if (rec->written[i] < rec->written[i - 1]) {
            sort_refs(rec->written, n);
            break;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct tj_value *v = &run->values[rec->written[i]];
        if (!v->rebased && run->trace.nodes[v->latest].op == TJ_OP_UPDATE &&
            run->values[v->latest].root == rec->written[i]) {
            if (k < cap) {
                out[k] = v->latest;
            }
            k++;
        }
    }
    return k;
}

// ---- trace_write while a run is open --------------------------------------------------------------------

struct others {
    const struct tj_run *run;
    const struct trace_tensor *t;
    const struct tj_storage *st;
    bool found;
};

static bool is_other(void *user, uint32_t i) {
    struct others *o = user;
    o->found = tensor_at(o->run, i)->st != o->st && shares(o->run, i, o->t);
    return !o->found;
}

bool tj_run_uses(struct tj_run *run, const struct trace_tensor *t, struct tj_storage *st, struct tj_uses *u) {
    uint32_t i;
    struct trace_tensor now = {.offset = t->offset}; // another thread may give t other memory
    struct others o = {run, &now, st, false};
    tj_tensor_like(&now, t, st);
    *u = (struct tj_uses){.n = 0};
    if (!run->trace.nleaves) {
        return true;
    }
    if (!tj_leaves_of(run, st, &i) || !tj_leaves_over(run, &now, is_other, &o)) {
        (void)tj_fail(TRACE_ERR_MEMORY, "write: out of memory");
        return false;
    }
    for (; i; i = tj_leaves_next(run, i)) {
        u->n++;
        u->written |= (run->trace.leafkeys[i - 1].flags & TJ_LEAF_WRITTEN) != 0;
    }
    u->others = o.found;
    return true;
}

// The handles that leaf i stands for have other memory by now, with its content: st.
static bool follow(struct tj_run *run, uint32_t i, struct tj_storage *st) {
    struct tj_leaf l = run->trace.leaves[i];
    tj_ref was = run->rec->leafnodes[i], now;
    if (run->values[was].rebased || run->values[was].state == TJ_V_DEAD || l.tensor->st == st) {
        return true; // (a view of a base follows with that)
    }
    if (l.source) {
        now = tj_leaf_of(run, l.source, 0);
    } else { // a base
        (void)atomic_fetch_add_explicit(&st->refs, 1, memory_order_relaxed);
        tj_reader_enter(st);
        now = leaf_new(run, l.tensor, st, NULL, 0, TJ_LOC(NULL, 0));
    }
    if (now == TJ_NIL) {
        return false;
    }
    run->values[was].latest = now;
    run->written = true;
    return true;
}

bool tj_run_moved(struct tj_run *run, struct trace_tensor *t, const struct tj_storage *old) {
    run->fresh_from = run->trace.nnodes; // what was computed from the old content is no longer what its operands give
    struct tj_storage *st = tj_tensor_storage(t);
    uint32_t i = 0;
    bool ok = st == old || tj_leaves_of(run, old, &i); // changed in place: leaves read the new content
    if (!ok) {
        (void)tj_fail(TRACE_ERR_MEMORY, "write: out of memory");
    }
    for (; i && ok; i = tj_leaves_next(run, i)) {
        ok = follow(run, i - 1, st);
    }
    tj_storage_drop(st);
    return ok;
}

void tj_run_moved_again(struct tj_run *run, uint32_t nnodes) {
    uint32_t n = run->trace.nleaves;
    for (uint32_t i = 0; i < n; i++) {
        struct trace_tensor *source = run->trace.leaves[i].source;
        tj_ref node = run->rec->leafnodes[i];
        for (uint32_t m = run->rec->groupof[i].first; m && !source; m = run->rec->groupof[m - 1].first) {
            source = run->trace.leaves[m - 1].source;
        }
        if (node >= nnodes || run->values[node].latest != node || !source) {
            continue;
        }
        struct tj_storage *st = tj_tensor_storage(source);
        bool borrowed = !(run->trace.leaves[i].tensor->st->flags & TJ_ST_OWNED); // (never moves)
        bool ok = borrowed || follow(run, i, st);
        tj_storage_drop(st);
        if (!ok) {
            return;
        }
    }
}
