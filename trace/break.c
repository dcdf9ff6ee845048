// trace/break.c: graph breaks: which part of a run's trace has to run now, what is kept of it, and what is recorded on.
//
// At a break the ancestors of the read value and the writes before it run; the rest stays recorded. What runs is
// extracted into a trace of its own, renumbered in program order, whose leaves are the run's leaves and the values that
// earlier breaks stored. It is keyed on that content alone, so the turns of a loop share plans.
//
// Which values are stored: the first time some content is met, every one that the host or a recorded op could still ask
// for. The run then tells which of them were used; from its end on only those are stored, by a plan made there and
// then. A value that wasn't stored and is asked for after all is computed again, from leaves that are unchanged by
// construction, and joins the stored set of later runs. Always stored are values made from memory that this break
// overwrites, and from ordered ops. Contractions and borrowed memory need no such rule: a contraction has the same bits
// in every plan, and borrowed memory doesn't change within a run but by trace_write, which is a break itself.
#include <stdio.h>

#include "record.h"
#include "repeat.h"
#include "timeline.h"

enum {
    MARK_EXECUTED = 1,   // an earlier segment computed it
    MARK_NEED = 2,       // of this segment
    MARK_LIVE = 4,       // somebody may ask for it later
    MARK_HOST = 8,       // the host itself may
    MARK_TAINT = 16,     // made from memory that this segment overwrites
    MARK_SEEN = 32,      // its operands are marked
    MARK_COPY = 64,      // stored, and an op of this segment writes into a copy of it
    MARK_RAW = 128,      // would be tainted if earlier breaks had stored nothing
    MARK_OUT = 256,      // among box->outs
    MARK_WRITE = 512,    // among box->writes
    MARK_GONE = 1024,    // of a leaf: its memory is overwritten,
    MARK_BY_HOST = 2048, // by the host
    MARK_ASKED = 4096,   // of a leaf: these two are known. Of others: whether they live is
    MARK_LATER = 8192,   // a deferred form asks for it
    MARK_TEMP = 0xFFFF & ~(MARK_EXECUTED | MARK_LATER)
};

// ---- helpers --------------------------------------------------------------------------------------------------------

static bool is_source(const struct tj_node *n) { return n->op == TJ_OP_LEAF || n->op == TJ_OP_SCALAR; }
static bool is_view(const struct tj_node *n) { return tj_ops[n->op].cls == TJ_VIEW; }
static bool is_ordered(const struct tj_node *n) {
    return tj_ops[n->op].flags & TJ_FLAG_N && tj_ops[n->op].cls != TJ_SOURCE;
}

struct trace_tensor *tj_root_tensor(const struct tj_run *run, tj_ref n) {
    tj_ref root = tj_value_root(run, n);
    const struct tj_node *node = &run->trace.nodes[root];
    if (node->op != TJ_OP_LEAF)
        return NULL;
    const struct tj_attr_leaf *a = tj_node_attr(&run->trace, node);
    return run->trace.leaves[a->index].tensor;
}

bool tj_break_grow(struct tj_box *b) {
    uint32_t n = b->run.trace.nnodes;
    if (!tj_grow((void **)&b->mark, &b->capmark, n, sizeof *b->mark) ||
        !tj_grow((void **)&b->origin, &b->caporigin, n, sizeof *b->origin) ||
        !tj_grow((void **)&b->map, &b->capmap, n, sizeof *b->map))
        return false;
    if (n > b->nmark) {
        memset(b->mark + b->nmark, 0, (n - b->nmark) * sizeof *b->mark);
        memset(b->origin + b->nmark, 0, (n - b->nmark) * sizeof *b->origin);
        memset(b->map + b->nmark, 0, (n - b->nmark) * sizeof *b->map);
        b->nmark = n;
    }
    return true;
}

void tj_break_reset(struct tj_box *b) {
    for (uint32_t i = 0; i < b->ninstances; i++) {
        tj_learned_put(b->instances[i].record);
        tj_entry_put(b->instances[i].entry);
    }
    b->ninstances = b->nmusts = b->nmark = b->nused = b->nuses = b->nneed = b->nlater = 0;
    b->touched = false;
}

bool tj_pending_writes(struct tj_box *b, uint32_t *n) {
    struct tj_run *run = &b->run;
    *n = 0;
    if (TJ_LIKELY(!run->written))
        return true;
    uint32_t all = tj_run_writes(run, NULL, 0);
    if (!tj_grow((void **)&b->writes, &b->capwrites, all, sizeof *b->writes))
        return false;
    all = tj_run_writes(run, b->writes, all);
    for (uint32_t i = 0; i < all; i++) {
        if (run->values[b->writes[i]].state == TJ_V_PENDING)
            b->writes[(*n)++] = b->writes[i];
    }
    return true;
}

// A write changed the content of every written leaf.
static void bump_versions(struct tj_box *b, const tj_ref *writes, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct trace_tensor *t = tj_root_tensor(&b->run, writes[i]);
        if (t)
            (void)atomic_fetch_add_explicit(&t->st->version, 1, memory_order_release);
    }
}

void tj_segment_fill(struct tj_box *b, struct tj_segment *s, const struct tj_trace *t, const tj_ref *outs,
                     uint32_t nouts, const tj_ref *writes, uint32_t nwrites) {
    const struct trace_region *r = b->run.region;
    *s = (struct tj_segment){.trace = t,
                             .outs = outs,
                             .nouts = nouts,
                             .writes = writes,
                             .nwrites = nwrites,
                             .name = r->hidden ? "eager" : r->name,
                             .threads = r->opt.threads,
                             .math = (uint8_t)r->opt.math,
                             .precision = (uint8_t)r->opt.matmul_precision,
                             .symbolic =
                                 b->run.ctx->backend->serves && (r->hidden || r->opt.dynamic != TRACE_DYNAMIC_OFF)};
    if (TJ_UNLIKELY(r->nbuckets))
        tj_bucket_fill(b, s);
}

// ---- what is used of what was stored --------------------------------------------------------------------------------

static void mark_used(struct tj_box *b, tj_ref n) {
    if (n >= b->nmark || !b->origin[n].instance)
        return;
    struct tj_learned *l = b->instances[b->origin[n].instance - 1].record;
    tj_ref sub = b->origin[n].sub;
    uint64_t bit = (uint64_t)1 << sub % 64;
    if (atomic_load_explicit(&l->used[sub / 64], memory_order_relaxed) & bit)
        return;
    (void)atomic_fetch_or_explicit(&l->used[sub / 64], bit, memory_order_relaxed);
    b->touched = true;
}

void tj_break_used(struct tj_box *b, tj_ref n) { mark_used(b, n); }

// ---- extraction -----------------------------------------------------------------------------------------------------

// Notes that node i has marks.
static bool list(struct tj_box *b, tj_ref i) {
    if (!tj_grow((void **)&b->need, &b->capneed, b->nneed + 1, sizeof *b->need))
        return false;
    b->need[b->nneed++] = i;
    return true;
}

static bool reach(struct tj_box *b, tj_ref i) {
    if (b->mark[i] & MARK_NEED)
        return true;
    b->mark[i] |= MARK_NEED;
    return list(b, i);
}

// The other results of the loop that REPEAT_OUT i belongs to stand next to it.
static bool need_loop(struct tj_box *b, tj_ref i) {
    const struct tj_trace *t = &b->run.trace;
    const struct tj_node *n = &t->nodes[i];
    tj_ref from = i - (tj_ref)t->attrs[n->attr];
    for (tj_ref k = from; k < from + (n->nin - 1) / 2; k++) {
        if (b->mark[k] & MARK_NEED || b->run.values[k].state == TJ_V_STORED)
            continue;
        b->mark[k] |= MARK_SEEN;
        if (!reach(b, k))
            return false;
    }
    return true;
}

// Adds what the values in refs are computed from to box->need: down to leaves and stored values. Values computed by an
// earlier segment and not stored are computed again. False: out of memory.
static bool need(struct tj_box *b, const tj_ref *refs, uint32_t n) {
    const struct tj_run *run = &b->run;
    uint32_t at = b->nneed;
    for (uint32_t i = 0; i < n; i++) {
        if (b->mark[refs[i]] & MARK_EXECUTED)
            mark_used(b, refs[i]);
        if (!reach(b, refs[i]))
            return false;
    }
    for (; at < b->nneed; at++) {
        tj_ref i = b->need[at];
        if (b->mark[i] & MARK_SEEN)
            continue;
        b->mark[i] |= MARK_SEEN;
        const struct tj_node *node = &run->trace.nodes[i];
        if (run->values[i].state == TJ_V_STORED) {
            mark_used(b, i);
            continue;
        }
        const tj_ref *in = tj_node_in(&run->trace, node);
        if (node->op == TJ_OP_REPEAT_OUT && !need_loop(b, i)) // it runs as a whole: all that it carries is there then
            return false;
        if (node->op == TJ_OP_UPDATE && run->values[in[0]].state == TJ_V_STORED && !tj_root_tensor(run, i))
            b->mark[in[0]] |= MARK_COPY;
        for (uint32_t k = 0; k < node->nin; k++) {
            // Where computing again begins, storing would have spared it.
            if (!(b->mark[i] & MARK_EXECUTED) && (b->mark[in[k]] & MARK_EXECUTED))
                mark_used(b, in[k]);
            if (!reach(b, in[k]))
                return false;
        }
    }
    return true;
}

static void sort_refs(tj_ref *a, uint32_t n) {
    for (uint32_t gap = n / 2; gap; gap /= 2) {
        for (uint32_t i = gap; i < n; i++) {
            tj_ref v = a[i];
            uint32_t k = i;
            for (; k >= gap && a[k - gap] > v; k -= gap)
                a[k] = a[k - gap];
            a[k] = v;
        }
    }
}

// Puts box->need in program order; the work is that of the segment, wherever it lies in the run.
static void order(struct tj_box *b) {
    tj_ref low = TJ_NIL, top = 0;
    for (uint32_t i = 0; i < b->nneed; i++) {
        low = b->need[i] < low ? b->need[i] : low;
        top = b->need[i] > top ? b->need[i] : top;
    }
    if (b->nneed && top - low < 8 * b->nneed) {
        uint32_t n = 0;
        for (tj_ref i = low; i <= top; i++) {
            if (b->mark[i] & MARK_NEED)
                b->need[n++] = i;
        }
        return;
    }
    sort_refs(b->need, b->nneed);
}

static void unmark(struct tj_box *b) {
    for (uint32_t i = 0; i < b->nneed; i++)
        b->mark[b->need[i]] &= (uint16_t)~MARK_TEMP;
    b->nneed = 0;
}

static tj_ref add_leaf(struct tj_box *b, struct trace_tensor *t, struct tj_leaf_key key, uint32_t shape,
                       struct tj_loc loc) {
    struct tj_trace *s = &b->sub;
    struct tj_attr_leaf a = {s->nleaves};
    if (!tj_grow((void **)&s->leafkeys, &s->capleafkeys, s->nleaves + 1, sizeof *s->leafkeys) ||
        !tj_grow((void **)&s->leaves, &s->capleaves, s->nleaves + 1, sizeof *s->leaves))
        return TJ_NIL;
    key.shape = shape;
    s->leafkeys[s->nleaves] = key;
    s->leaves[s->nleaves] = (struct tj_leaf){.tensor = t};
    tj_ref n = tj_trace_append(s, TJ_OP_LEAF, (tj_dtype)key.dtype, shape, NULL, 0, &a, sizeof a / 8, loc);
    if (n != TJ_NIL)
        s->nleaves++;
    return n;
}

// Node i of the run in the extracted trace.
static tj_ref emit(struct tj_box *b, tj_ref i) {
    const struct tj_run *run = &b->run;
    const struct tj_trace *t = &run->trace;
    struct tj_trace *s = &b->sub;
    const struct tj_node *n = &t->nodes[i];
    struct tj_loc loc = t->locs[i];
    uint32_t shape = tj_trace_shape(s, tj_shape_dims(t, n->shape), tj_shape_rank(t, n->shape));
    if (shape == UINT32_MAX)
        return TJ_NIL;
    if (run->values[i].state == TJ_V_STORED) {
        struct trace_tensor *x = run->values[i].tensor;
        struct tj_leaf_key key = {.dtype = x->dtype, .rank = x->rank, .layout = x->layout, .flags = TJ_LEAF_CARRIED};
        tj_ref root = tj_value_root(run, i);
        if (t->nodes[root].op == TJ_OP_LEAF) { // a write that ran: the memory of the leaf
            const struct tj_attr_leaf *a = tj_node_attr(t, &t->nodes[root]);
            key = t->leafkeys[a->index];
            key.flags &= (uint16_t)~TJ_LEAF_WRITTEN;
        }
        tj_ref leaf = add_leaf(b, x, key, shape, loc);
        // An UPDATE writes a leaf in place. A stored value is never written: others read it.
        if (leaf != TJ_NIL && b->mark[i] & MARK_COPY)
            leaf = tj_trace_append(s, TJ_OP_COPY, (tj_dtype)n->dtype, shape, &leaf, 1, NULL, 0, loc);
        return leaf;
    }
    if (n->op == TJ_OP_LEAF) {
        const struct tj_attr_leaf *a = tj_node_attr(t, n);
        struct tj_leaf_key key = t->leafkeys[a->index];
        key.flags &= (uint16_t)~TJ_LEAF_WRITTEN;
        return add_leaf(b, t->leaves[a->index].tensor, key, shape, loc);
    }
    if (n->op == TJ_OP_SCALAR) {
        const struct tj_attr_param *a = tj_node_attr(t, n);
        struct tj_attr_param own = {s->nparams};
        if (!tj_grow((void **)&s->params, &s->capparams, s->nparams + 1, sizeof *s->params))
            return TJ_NIL;
        s->params[s->nparams] = t->params[a->index];
        tj_ref k = tj_trace_append(s, TJ_OP_SCALAR, (tj_dtype)n->dtype, shape, NULL, 0, &own, sizeof own / 8, loc);
        if (k != TJ_NIL)
            s->nparams++;
        return k;
    }
    const tj_ref *in = tj_node_in(t, n);
    tj_ref few[4], *own = few;
    if (n->nin > 4) {
        if (!tj_grow((void **)&b->stored, &b->capstored, n->nin, sizeof *b->stored))
            return TJ_NIL;
        own = b->stored;
    }
    for (uint32_t k = 0; k < n->nin; k++)
        own[k] = b->map[in[k]];
    return tj_trace_append(s, (enum tj_op)n->op, (tj_dtype)n->dtype, shape, own, n->nin,
                           n->nattr ? tj_node_attr(t, n) : NULL, n->nattr, loc);
}

// The leaf of sub that a write ends in.
static uint32_t written_leaf(const struct tj_trace *s, tj_ref w) {
    while (s->nodes[w].op != TJ_OP_LEAF && s->nodes[w].nin)
        w = tj_node_in(s, &s->nodes[w])[0];
    if (s->nodes[w].op != TJ_OP_LEAF)
        return UINT32_MAX;
    const struct tj_attr_leaf *a = tj_node_attr(s, &s->nodes[w]);
    return (uint32_t)a->index;
}

// Flags and groups of the leaves as this segment uses them.
static bool key_leaves(struct tj_box *b, const tj_ref *writes, uint32_t nwrites) {
    struct tj_trace *s = &b->sub;
    for (uint32_t i = 0; i < nwrites; i++) {
        uint32_t l = written_leaf(s, b->map[writes[i]]);
        if (l != UINT32_MAX)
            s->leafkeys[l].flags |= TJ_LEAF_WRITTEN;
    }
    // A group counts if one of its leaves is written here; groups are numbered as they come.
    uint32_t groups = b->run.rec ? b->run.rec->groups : 0, next = 0;
    if (!groups)
        return true;
    if (!tj_grow((void **)&b->groups, &b->capgroups, groups + 1, sizeof *b->groups))
        return false;
    memset(b->groups, 0, (groups + 1) * sizeof *b->groups);
    for (uint32_t i = 0; i < s->nleaves; i++) {
        if (s->leafkeys[i].group && s->leafkeys[i].flags & TJ_LEAF_WRITTEN)
            b->groups[s->leafkeys[i].group] = UINT32_MAX;
    }
    for (uint32_t i = 0; i < s->nleaves; i++) {
        uint32_t *name = &b->groups[s->leafkeys[i].group];
        if (*name == UINT32_MAX)
            *name = ++next;
        s->leafkeys[i].group = *name;
    }
    return true;
}

// Copies the nodes of box->need to box->sub.
static bool extract(struct tj_box *b, const tj_ref *writes, uint32_t nwrites) {
    tj_trace_reset(&b->sub);
    for (uint32_t k = 0; k < b->nneed; k++) {
        tj_ref i = b->need[k];
        b->map[i] = emit(b, i);
        if (b->map[i] == TJ_NIL)
            return false;
    }
    return key_leaves(b, writes, nwrites);
}

static bool map_refs(struct tj_box *b, tj_ref **dst, uint32_t *cap, const tj_ref *src, uint32_t n) {
    if (!tj_grow((void **)dst, cap, n, sizeof **dst))
        return false;
    for (uint32_t i = 0; i < n; i++)
        (*dst)[i] = b->map[src[i]];
    return true;
}

static bool new_outs(struct tj_box *b, const struct tj_trace *t, const tj_ref *outs, uint32_t n,
                     struct trace_tensor **to) {
    for (uint32_t i = 0; i < n; i++) {
        const struct tj_node *node = &t->nodes[outs[i]];
        to[i] = tj_tensor_new(b->run.ctx, (tj_dtype)node->dtype, tj_shape_dims(t, node->shape),
                              tj_shape_rank(t, node->shape), tj_call_name(t, outs[i]), t->locs[outs[i]]);
        if (!to[i]) {
            while (i-- > 0) {
                trace_release(to[i]);
                to[i] = NULL;
            }
            return false;
        }
    }
    return true;
}

static bool placeholder_outs(struct tj_box *b, const struct tj_trace *t, const tj_ref *outs, uint32_t n,
                             struct trace_tensor **to) {
    for (uint32_t i = 0; i < n; i++) {
        const struct tj_node *node = &t->nodes[outs[i]];
        to[i] = trace_placeholder(b->run.ctx, (enum trace_dtype)node->dtype, tj_shape_dims(t, node->shape),
                                  tj_shape_rank(t, node->shape));
        if (!to[i]) {
            while (i-- > 0) {
                trace_release(to[i]);
                to[i] = NULL;
            }
            return false;
        }
    }
    return true;
}

// ---- the last segment -----------------------------------------------------------------------------------------------

tj_status tj_break_plan(struct tj_box *b, uint32_t nouts, uint32_t nwrites, const struct tj_site *site,
                        struct tj_segment *seg, struct tj_entry **e) {
    struct tj_run *run = &b->run;
    *e = NULL;
    if (TJ_LIKELY(!run->broke && !b->rolled)) {
        tj_segment_fill(b, seg, &run->trace, b->outs, nouts, b->writes, nwrites);
    } else {
        if (!tj_break_grow(b))
            return tj_fail(TRACE_ERR_MEMORY, "trace_end: out of memory");
        bool ok = need(b, b->outs, nouts) && need(b, b->writes, nwrites);
        order(b);
        ok = ok && extract(b, b->writes, nwrites) && map_refs(b, &b->subouts, &b->capsubouts, b->outs, nouts) &&
             map_refs(b, &b->subwrites, &b->capsubwrites, b->writes, nwrites);
        unmark(b);
        if (!ok)
            return tj_fail(TRACE_ERR_MEMORY, "trace_end: out of memory for the last segment");
        tj_segment_fill(b, seg, &b->sub, b->subouts, nouts, b->subwrites, nwrites);
    }
    return !run->region->hidden || tj_context_backend(run->ctx, run->region) ? tj_segment_plan(b, seg, site, false, e)
                                                                             : TRACE_OK;
}

// Whether the writes may happen: a live bound plan may read a packed copy of the memory.
static tj_status check_writes(struct tj_box *b, const tj_ref *writes, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const struct trace_tensor *t = tj_root_tensor(&b->run, writes[i]);
        char node[300];
        if (t && TJ_UNLIKELY(atomic_load_explicit(&t->st->pins_packed, memory_order_acquire)))
            return tj_fail(TRACE_ERR_BUSY,
                           "%s writes a tensor of which a live bound plan has a packed copy; release "
                           "the bound plan, run, bind again",
                           tj_op_text(&b->run.trace, writes[i], node, sizeof node));
    }
    return TRACE_OK;
}

tj_status tj_break_finish(struct tj_box *b, uint32_t nouts, uint32_t nwrites, const struct tj_site *site, bool run_it,
                          struct trace_tensor **outt) {
    struct tj_segment seg;
    struct tj_entry *e;
    tj_status st = tj_break_plan(b, nouts, nwrites, site, &seg, &e);
    if (st)
        return st;
    b->ended = e;
    st = check_writes(b, b->writes, nwrites);
    if (TJ_UNLIKELY(st))
        return st;
    if (!run_it)
        return placeholder_outs(b, seg.trace, seg.outs, nouts, outt) ? TRACE_OK : tj_last_status();
    if (!new_outs(b, seg.trace, seg.outs, nouts, outt))
        return tj_last_status();
    st = tj_segment_run(b, &seg, e, outt);
    if (TJ_UNLIKELY(nwrites))
        bump_versions(b, b->writes, nwrites);
    if (TJ_UNLIKELY(st)) {
        for (uint32_t i = 0; i < nouts; i++) {
            trace_release(outt[i]);
            outt[i] = NULL;
        }
    }
    return st;
}

// ---- which values live on -------------------------------------------------------------------------------------------

// What the host may still ask for: its handles, resolved to the current content of their memory, and deferred forms.
static void mark_host(struct tj_box *b) {
    const struct tj_run *run = &b->run;
    for (tj_ref i = 0; i < b->nmark; i++) {
        const struct tj_value *v = &run->values[i];
        if (!v->count || v->ended || v->state == TJ_V_DEAD)
            continue;
        tj_ref root = tj_value_root(run, i), latest = run->values[root].latest;
        b->mark[latest != root && latest != TJ_NIL ? latest : i] |= MARK_HOST;
    }
    for (uint32_t i = 0; i < b->ndeferred; i++)
        b->mark[b->deferred[i].node] |= MARK_HOST;
    // A view is asked for through what it is a view of.
    for (tj_ref i = b->nmark; i-- > 0;) {
        const struct tj_node *n = &run->trace.nodes[i];
        if (b->mark[i] & MARK_HOST && is_view(n) && run->values[i].state != TJ_V_STORED)
            b->mark[tj_node_in(&run->trace, n)[0]] |= MARK_HOST;
    }
}

// What the host or an op that stays recorded may ask for. MARK_NEED: what runs now.
static void mark_live(struct tj_box *b) {
    const struct tj_run *run = &b->run;
    for (tj_ref i = b->nmark; i-- > 0;) {
        if (b->mark[i] & MARK_HOST)
            b->mark[i] |= MARK_LIVE;
        if (!(b->mark[i] & MARK_LIVE) || run->values[i].state == TJ_V_STORED)
            continue;
        const struct tj_node *n = &run->trace.nodes[i];
        if (!is_view(n) && b->mark[i] & (MARK_EXECUTED | MARK_NEED))
            continue;
        const tj_ref *in = tj_node_in(&run->trace, n);
        for (uint32_t k = 0; k < n->nin; k++)
            b->mark[in[k]] |= MARK_LIVE;
    }
}

// Notes who uses which value, of the nodes recorded since it was asked last, and which nodes are of one memory.
static bool note_uses(struct tj_box *b) {
    const struct tj_run *run = &b->run;
    const struct tj_trace *t = &run->trace;
    uint32_t n = b->nmark;
    b->nlater = b->nlater < b->ndeferred ? b->nlater : b->ndeferred;
    for (; b->nlater < b->ndeferred; b->nlater++)
        b->mark[b->deferred[b->nlater].node] |= MARK_LATER;
    if (!tj_grow((void **)&b->first_use, &b->capfirst_use, n, sizeof *b->first_use) ||
        !tj_grow((void **)&b->last_use, &b->caplast_use, n, sizeof *b->last_use) ||
        !tj_grow((void **)&b->same_root, &b->capsame_root, n, sizeof *b->same_root) ||
        !tj_grow((void **)&b->last_root, &b->caplast_root, n, sizeof *b->last_root))
        return false;
    for (; b->nused < n; b->nused++) {
        tj_ref i = b->nused, root = tj_value_root(run, i);
        const tj_ref *in = tj_node_in(t, &t->nodes[i]);
        uint32_t nin = t->nodes[i].nin;
        if (!tj_grow((void **)&b->uses, &b->capuses, b->nuses + nin, sizeof *b->uses))
            return false;
        b->first_use[i] = b->last_use[i] = 0;
        b->same_root[i] = TJ_NIL;
        b->last_root[i] = i;
        if (root < i) {
            b->same_root[b->last_root[root]] = i;
            b->last_root[root] = i;
        }
        for (uint32_t k = 0; k < nin; k++) {
            b->uses[b->nuses] = (struct tj_use){i, 0};
            if (b->last_use[in[k]])
                b->uses[b->last_use[in[k]] - 1].next = b->nuses + 1;
            else
                b->first_use[in[k]] = b->nuses + 1;
            b->last_use[in[k]] = ++b->nuses;
        }
    }
    return true;
}

static bool held(const struct tj_value *v) { return v->count && !v->ended && v->state != TJ_V_DEAD; }

// Whether the host itself may ask for value i, other than through a view of it.
static bool host_asks(const struct tj_box *b, tj_ref i) {
    const struct tj_run *run = &b->run;
    tj_ref root = tj_value_root(run, i), latest = run->values[root].latest;
    bool superseded = latest != root && latest != TJ_NIL;
    if (!superseded && held(&run->values[i]))
        return true;
    for (tj_ref k = root; superseded && latest == i && k != TJ_NIL; k = b->same_root[k]) {
        if (held(&run->values[k]))
            return true;
    }
    return b->mark[i] & MARK_LATER;
}

// As mark_host and mark_live tell of all values, for value i alone: from it to its users, until one is found that the
// host may ask for. What is found on the way stays known for this break.
enum answer { NO, YES, LOST /* out of memory */ };
static enum answer lives(struct tj_box *b, tj_ref i) {
    const struct tj_run *run = &b->run;
    uint32_t n = 0;
    if (b->mark[i] & MARK_ASKED)
        return b->mark[i] & MARK_LIVE ? YES : NO;
    for (tj_ref k = i;;) {
        // k is new on the path: answered at once, or its users are.
        if (!list(b, k) || !tj_grow((void **)&b->path, &b->cappath, n + 2, sizeof *b->path))
            return LOST;
        b->mark[k] |= MARK_ASKED;
        bool yes = host_asks(b, k);
        b->path[n++] = k;
        b->path[n++] = yes ? 0 : b->first_use[k];
        tj_ref down = TJ_NIL;
        while (n && !yes && down == TJ_NIL) {
            uint32_t use = b->path[n - 1];
            if (!use) {
                n -= 2;
                continue;
            }
            tj_ref u = b->uses[use - 1].user;
            b->path[n - 1] = b->uses[use - 1].next;
            if (run->values[u].state == TJ_V_STORED ||
                (!is_view(&run->trace.nodes[u]) && b->mark[u] & (MARK_EXECUTED | MARK_NEED)))
                continue;
            if (b->mark[u] & MARK_ASKED)
                yes = b->mark[u] & MARK_LIVE;
            else
                down = u;
        }
        if (yes) {
            for (; n; n -= 2)
                b->mark[b->path[n - 2]] |= MARK_LIVE;
            return YES;
        }
        if (!n)
            return NO;
        k = down;
    }
}

// Whether the memory of leaf `root` is overwritten (MARK_GONE): by one of the pending writes, or by the host, which is
// about to write `about`. groups: bits of the groups that pending writes reach.
static uint16_t overwritten(struct tj_box *b, tj_ref root, const struct trace_tensor *about) {
    const struct tj_trace *t = &b->run.trace;
    uint16_t *m = &b->mark[root];
    if (*m & MARK_ASKED)
        return *m;
    const struct tj_attr_leaf *a = tj_node_attr(t, &t->nodes[root]);
    uint32_t group = t->leafkeys[a->index].group;
    const struct trace_tensor *x = t->leaves[a->index].tensor;
    *m |= MARK_ASKED;
    if (about && (x->st == about->st || tj_tensors_overlap(x, about)))
        *m |= MARK_GONE | MARK_BY_HOST;
    if (group && b->groups[group])
        *m |= MARK_GONE;
    return *m;
}

// What was made from memory that is overwritten; the final contents that the writes leave there excepted.
static bool mark_taint(struct tj_box *b, const tj_ref *writes, uint32_t nwrites, const struct trace_tensor *about) {
    const struct tj_run *run = &b->run;
    const struct tj_trace *t = &run->trace;
    uint32_t groups = run->rec ? run->rec->groups : 0;
    if (!tj_grow((void **)&b->groups, &b->capgroups, groups + 1, sizeof *b->groups))
        return false;
    memset(b->groups, 0, (groups + 1) * sizeof *b->groups);
    for (uint32_t i = 0; i < nwrites; i++) {
        tj_ref root = tj_value_root(run, writes[i]);
        const struct tj_attr_leaf *a = tj_node_attr(t, &t->nodes[root]);
        b->mark[root] |= MARK_GONE;
        b->groups[t->leafkeys[a->index].group] = 1;
    }
    for (tj_ref i = 0; i < b->nmark; i++) {
        tj_ref root = tj_value_root(run, i);
        uint16_t gone = t->nodes[root].op == TJ_OP_LEAF ? overwritten(b, root, about) : 0;
        if (gone & MARK_GONE) {
            if (gone & MARK_BY_HOST || !(b->mark[i] & MARK_WRITE))
                b->mark[i] |= MARK_TAINT | MARK_RAW;
            continue;
        }
        const struct tj_node *n = &t->nodes[i];
        const tj_ref *in = tj_node_in(t, n);
        uint16_t m = 0;
        for (uint32_t k = 0; k < n->nin; k++)
            m |= b->mark[in[k]];
        b->mark[i] |= m & (run->values[i].state == TJ_V_STORED ? MARK_RAW : MARK_TAINT | MARK_RAW);
    }
    return true;
}

// A value that is only safe from the writes because an earlier break stored it, while everything was stored, counts as
// used: had it not been stored, it would have to be computed again now.
static void use_saved(struct tj_box *b) {
    const struct tj_run *run = &b->run;
    for (tj_ref i = b->nmark; i-- > 0;) {
        uint16_t m = b->mark[i];
        if (!(m & MARK_RAW) || m & MARK_TAINT || !(m & (MARK_HOST | MARK_SEEN)))
            continue;
        if (run->values[i].state == TJ_V_STORED) {
            mark_used(b, i);
            continue;
        }
        const struct tj_node *n = &run->trace.nodes[i];
        const tj_ref *in = tj_node_in(&run->trace, n);
        for (uint32_t k = 0; k < n->nin; k++)
            b->mark[in[k]] |= MARK_SEEN;
    }
    for (tj_ref i = 0; i < b->nmark; i++)
        b->mark[i] &= (uint16_t)~MARK_SEEN;
}

// ---- a break --------------------------------------------------------------------------------------------------------

struct flush {
    tj_ref target;                    // TJ_NIL: none
    const struct trace_tensor *about; // the host is going to write it, or NULL
    uint32_t nwrites;                 // box->writes
    bool all;                         // all nodes of the run may have marks
    uint32_t nouts; // box->outs: target, musts, then the others stored, all ascending behind the target
    uint32_t nmust;
};

static bool add(struct tj_box *b, struct flush *f, tj_ref n) {
    if (b->mark[n] & MARK_OUT)
        return true;
    if (!tj_grow((void **)&b->outs, &b->capouts, f->nouts + 1, sizeof *b->outs))
        return false;
    b->outs[f->nouts++] = n;
    b->mark[n] |= MARK_OUT;
    return true;
}

static bool storable(const struct tj_box *b, tj_ref i) {
    const struct tj_node *n = &b->run.trace.nodes[i];
    // Contents of memory from outside are that memory, or are gone: what was made of them can be stored.
    return !is_source(n) && !is_view(n) && b->run.values[i].state == TJ_V_PENDING && !tj_root_tensor(&b->run, i);
}

// Values that must be kept: later code may ask for them, and they can't be computed again.
static bool add_musts(struct tj_box *b, struct flush *f) {
    if (!f->nwrites && !f->about)
        return true;
    f->all = true;
    mark_host(b);
    if (!mark_taint(b, b->writes, f->nwrites, f->about))
        return false;
    use_saved(b);
    for (tj_ref i = 0; i < b->nmark; i++) {
        if ((b->mark[i] & (MARK_HOST | MARK_TAINT)) == (MARK_HOST | MARK_TAINT) && storable(b, i) &&
            !(b->mark[i] & MARK_WRITE) && !add(b, f, i))
            return false;
    }
    return true;
}

static bool add_ordered(struct tj_box *b, struct flush *f) {
    for (uint32_t k = 0; k < b->nneed; k++) {
        tj_ref i = b->need[k];
        if (is_ordered(&b->run.trace.nodes[i]) && storable(b, i) && !add(b, f, i))
            return false;
    }
    return true;
}

// The values to store besides those that must be: all that live while learning, then those that were used.
static bool add_stored(struct tj_box *b, struct flush *f, const struct tj_learned *l) {
    bool learning = atomic_load_explicit(&l->learning, memory_order_relaxed);
    if (learning && f->all)
        mark_live(b);
    if (learning && !f->all && !note_uses(b))
        return false;
    for (uint32_t k = 0, n = b->nneed; k < n; k++) { // looking for those that live adds to the list
        tj_ref i = b->need[k];
        if (!storable(b, i) || b->mark[i] & MARK_WRITE)
            continue;
        tj_ref sub = b->map[i];
        bool used = atomic_load_explicit(&l->used[sub / 64], memory_order_relaxed) >> sub % 64 & 1;
        bool keep = used || (learning && f->all && b->mark[i] & MARK_LIVE);
        if (!keep && learning && !f->all) {
            enum answer a = lives(b, i);
            if (a == LOST)
                return false;
            keep = a == YES;
        }
        if (keep && !add(b, f, i))
            return false;
    }
    return true;
}

// Index + 1 of this break's instance; equal ones of a loop share it. 0: out of memory.
static uint32_t instance(struct tj_box *b, struct tj_learned *l, struct tj_entry *e, const struct flush *f) {
    uint32_t first = f->target != TJ_NIL;
    for (uint32_t back = 1; back <= 8 && back <= b->ninstances; back++) {
        struct tj_instance *o = &b->instances[b->ninstances - back];
        if (o->record != l || o->entry != e || o->nmust != f->nmust)
            continue;
        bool same = true;
        for (uint32_t k = 0; k < f->nmust && same; k++)
            same = b->musts[o->must + k] == b->map[b->outs[first + k]];
        if (same)
            return b->ninstances - back + 1;
    }
    if (!tj_grow((void **)&b->instances, &b->capinstances, b->ninstances + 1, sizeof *b->instances) ||
        !tj_grow((void **)&b->musts, &b->capmusts, b->nmusts + f->nmust, sizeof *b->musts))
        return 0;
    struct tj_instance *in = &b->instances[b->ninstances++];
    (void)atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    if (e)
        (void)atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    *in = (struct tj_instance){l, e, b->nmusts, f->nmust, f->target};
    for (uint32_t k = 0; k < f->nmust; k++)
        b->musts[b->nmusts++] = b->map[b->outs[first + k]];
    return b->ninstances;
}

// Results are in place: values become stored, written leaves have their new content.
static void commit(struct tj_box *b, const struct flush *f, uint32_t inst) {
    struct tj_run *run = &b->run;
    for (uint32_t k = 0; k < b->nneed; k++) {
        tj_ref i = b->need[k];
        const struct tj_node *n = &run->trace.nodes[i];
        if (!(b->mark[i] & MARK_NEED) || is_source(n) || is_view(n) || run->values[i].state != TJ_V_PENDING)
            continue;
        b->mark[i] |= MARK_EXECUTED;
        b->origin[i] = (struct tj_origin){inst, b->map[i]};
    }
    for (uint32_t i = 0; i < f->nouts; i++) {
        struct tj_value *v = &run->values[b->outs[i]];
        v->state = TJ_V_STORED;
        v->tensor = b->outt[i]; // takes over the reference
        b->mark[b->outs[i]] |= MARK_EXECUTED;
        b->outt[i] = NULL;
    }
    for (uint32_t i = 0; i < f->nwrites; i++) {
        struct tj_value *v = &run->values[b->writes[i]];
        v->tensor = trace_retain(tj_root_tensor(run, b->writes[i]));
        v->state = TJ_V_STORED;
        b->origin[b->writes[i]].instance = 0;
    }
}

// Runs the segment that a break needs. target: the value read, or TJ_NIL. about: what the host writes next, or NULL.
static tj_status flush(struct tj_box *b, tj_ref target, const struct trace_tensor *about, const struct tj_site *site) {
    struct tj_run *run = &b->run;
    struct flush f = {.target = target, .about = about};
    struct tj_segment seg;
    struct tj_entry *e = NULL;
    struct tj_learned *l = NULL;
    tj_status st = TRACE_ERR_MEMORY;
    uint32_t inst = 0;
    if (!tj_break_grow(b) || !tj_pending_writes(b, &f.nwrites))
        goto memory;
    for (uint32_t i = 0; i < f.nwrites; i++)
        b->mark[b->writes[i]] |= MARK_WRITE;
    if (target != TJ_NIL && !add(b, &f, target))
        goto memory;
    uint32_t first = f.nouts;
    if (!add_musts(b, &f))
        goto memory;
    if (!need(b, b->outs, f.nouts) || !need(b, b->writes, f.nwrites))
        goto memory;
    order(b);
    if (!b->nneed) { // nothing is recorded that had to run
        st = TRACE_OK;
        goto out;
    }
    if (!add_ordered(b, &f))
        goto memory;
    sort_refs(b->outs + first, f.nouts - first);
    f.nmust = f.nouts - first;
    if (!extract(b, b->writes, f.nwrites) || !map_refs(b, &b->subwrites, &b->capsubwrites, b->writes, f.nwrites))
        goto memory;
    l = tj_learned_get(run->region, &b->sub, target == TJ_NIL ? TJ_NIL : b->map[target], b->subwrites, f.nwrites);
    if (!l || !add_stored(b, &f, l))
        goto memory;
    sort_refs(b->outs + first + f.nmust, f.nouts - first - f.nmust);
    if (!map_refs(b, &b->subouts, &b->capsubouts, b->outs, f.nouts) ||
        !tj_grow((void **)&b->outt, &b->capoutt, f.nouts, sizeof *b->outt))
        goto memory;
    // The signature's outs ascend, so that the plan of the same set is the same.
    tj_segment_fill(b, &seg, &b->sub, b->subouts, f.nouts, b->subwrites, f.nwrites);
    st = tj_segment_plan(b, &seg, site, false, &e);
    if (st)
        goto out;
    inst = instance(b, l, e, &f);
    st = check_writes(b, b->writes, f.nwrites);
    if (st)
        goto out;
    st = TRACE_ERR_MEMORY;
    if (!inst)
        goto memory;
    if (!new_outs(b, seg.trace, seg.outs, f.nouts, b->outt))
        goto out;
    st = tj_segment_run(b, &seg, e, b->outt);
    if (f.nwrites)
        bump_versions(b, b->writes, f.nwrites);
    run->broke = true;
    b->flushes++;
    if (st) {
        for (uint32_t i = 0; i < f.nouts; i++)
            trace_release(b->outt[i]);
        goto out;
    }
    commit(b, &f, inst);
    if (atomic_load_explicit(&l->learning, memory_order_relaxed))
        b->touched = true;
    run->fresh_from = run->trace.nnodes;
    goto out;
memory:
    (void)tj_fail(TRACE_ERR_MEMORY, "out of memory at a graph break");
out:
    tj_learned_put(l);
    for (uint32_t i = 0; i < f.nouts; i++)
        b->mark[b->outs[i]] &= (uint16_t)~MARK_TEMP;
    for (uint32_t i = 0; i < f.nwrites && b->nmark; i++)
        b->mark[b->writes[i]] &= (uint16_t)~MARK_TEMP;
    for (tj_ref i = 0; f.all && i < b->nmark; i++)
        b->mark[i] &= (uint16_t)~MARK_TEMP;
    unmark(b);
    return st;
}

// ---- learning -------------------------------------------------------------------------------------------------------

// False: the plan that stores less is left out, as the budget is used up; later runs go on to store everything, for
// which there is one.
static bool learn(struct tj_box *b, const struct tj_instance *in) {
    struct tj_learned *l = in->record;
    if (!in->entry)
        return true;
    uint32_t n = 0;
    struct tj_trace t = in->entry->trace; // a shallow copy: only its leaves differ
    struct tj_leaf *leaves = NULL;
    // outs: target, musts, then what was used, as flush orders them
    if (!tj_grow((void **)&b->subouts, &b->capsubouts, l->trace.nnodes, sizeof *b->subouts))
        return true;
    if (l->target != TJ_NIL)
        b->subouts[n++] = l->target;
    for (uint32_t i = 0; i < in->nmust; i++)
        b->subouts[n++] = b->musts[in->must + i];
    uint32_t fixed = n, must = fixed - in->nmust;
    for (tj_ref i = 0; i < l->trace.nnodes && n < l->trace.nnodes; i++) {
        if (!(atomic_load_explicit(&l->used[i / 64], memory_order_relaxed) >> i % 64 & 1))
            continue;
        while (must < fixed && b->subouts[must] < i) // they ascend
            must++;
        if (i != l->target && !(must < fixed && b->subouts[must] == i))
            b->subouts[n++] = i;
    }
    struct tj_segment s;
    tj_status st = TRACE_OK;
    tj_segment_fill(b, &s, &t, b->subouts, n, l->writes, l->nwrites);
    if (!(n == in->entry->seg.nouts && !memcmp(b->subouts, in->entry->seg.outs, n * sizeof(tj_ref))) &&
        tj_shadow_leaves(&t, &leaves)) {
        t.leaves = leaves;
        struct tj_entry *e;
        struct tj_site site = {TJ_LOC(NULL, 0), "end", false, in->entry, false};
        st = tj_segment_plan(b, &s, &site, true, &e); // when memory is out the next run tries, and tells
    }
    tj_free(leaves);
    return st != TRACE_ERR_BUDGET;
}

void tj_break_learn(struct tj_box *b) {
    if (!b->touched)
        return;
    if (!tj_budget_open(b->run.region))
        return;
    bool all = true;
    for (uint32_t i = 0; i < b->ninstances && all; i++)
        all = learn(b, &b->instances[i]);
    for (uint32_t i = 0; i < b->ninstances && all; i++)
        atomic_store_explicit(&b->instances[i].record->learning, false, memory_order_relaxed);
}

// ---- reports --------------------------------------------------------------------------------------------------------

static const char *remedy(const char *kind) {
    if (!strcmp(kind, "print"))
        return "use trace_print_later, or print after trace_end";
    if (!strcmp(kind, "write"))
        return "write between runs, or record trace_copy_ instead of trace_write";
    if (!strcmp(kind, "item"))
        return "read it after trace_end, choose with trace_where or a mask, pad to a fixed size, or use trace_item_later";
    return "make it an output and read it after trace_end, or choose with trace_where or a mask";
}

static void report(struct tj_box *b, tj_ref n, const struct tj_site *site, const char *call, uint64_t ns) {
    struct tj_run *run = &b->run;
    struct trace_region *r = run->region;
    bool fresh;
    TJ_BUMP(&b->count, breaks, 1);
    struct tj_break_site *s = tj_break_site_get(r, site->loc, site->kind, false, &fresh);
    if (!s)
        return;
    (void)atomic_fetch_add_explicit(&s->count, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&s->ns, ns, memory_order_relaxed);
    if (!fresh)
        return;
    char node[300] = "memory that recorded ops read or write";
    if (n != TJ_NIL)
        (void)tj_op_text(&run->trace, n, node, sizeof node);
    char *op = tj_strdup(call), *made = tj_strdup(node), *what = tj_strdup(remedy(site->kind));
    tj_lock(&r->cache.lock);
    s->op = op, s->made = made, s->remedy = what;
    tj_unlock(&r->cache.lock);
    tj_event(r->ctx, r, TRACE_EVENT_BREAK, site->loc, -1, -1, 0, 0, (double)ns / 1e6,
             "%s needs %s, so the graph ends here; %s", call, node, remedy(site->kind));
}

static tj_status fullgraph_error(struct tj_box *b, tj_ref n, const struct tj_scope *sc, const struct tj_site *site,
                                 const char *call) {
    char node[300] = "recorded ops to run", where[300];
    if (n != TJ_NIL)
        (void)tj_op_text(&b->run.trace, n, node, sizeof node);
    (void)tj_loc_text(site->loc, where, sizeof where);
    (void)tj_fail(TRACE_ERR_BREAK, "region '%s' is fullgraph: %s (%s) needs %s; %s", sc->region->name, call,
                  where[0] ? where : "place unknown", node, remedy(site->kind));
    b->run.failed = TRACE_ERR_BREAK;
    (void)snprintf(b->run.error, sizeof b->run.error, "%s", tj_last_error());
    return TRACE_ERR_BREAK;
}

// A graph break: runs what is needed for value n (TJ_NIL: only the writes).
tj_status tj_graph_break(struct tj_box *b, tj_ref n, const struct trace_tensor *about, const struct tj_site *site,
                         const char *call) {
    struct tj_run *run = &b->run;
    for (uint32_t i = 0; i < run->nscopes; i++) {
        if (run->scopes[i].fullgraph)
            return fullgraph_error(b, n, &run->scopes[i], site, call);
    }
    if (TJ_UNLIKELY(run->nloops))
        return tj_repeat_readback(run, call, site->loc);
    if (run->compile_only)
        return tj_op_fail(TRACE_ERR_STATE, call, site->loc,
                          "the run has a placeholder among its inputs: it compiles only, there is no value to read");
    uint64_t t0 = tj_now_ns();
    uint32_t flushes = b->flushes;
    tj_status st = flush(b, n, about, site);
    if (st) {
        if (!run->failed) {
            run->failed = st;
            (void)snprintf(run->error, sizeof run->error, "%s", tj_last_error());
        }
        return st;
    }
    if (b->flushes != flushes && !b->broke_call) {
        b->broke_at = site->loc;
        b->broke_call = call;
    }
    if (b->flushes != flushes) {
        report(b, n, site, call, tj_now_ns() - t0);
        tj_timeline_add(run->ctx, t0, 0,
                        &(struct tj_timeline_event){.category = "break",
                                                    .name = "graph break",
                                                    .region = run->region,
                                                    .where = site->loc,
                                                    .what = remedy(site->kind)});
    }
    return TRACE_OK;
}

// Whether pending writes of the run reach the memory of tensor t.
bool tj_written_here(struct tj_box *b, const struct trace_tensor *t) {
    uint32_t n;
    if (!tj_pending_writes(b, &n))
        return true;
    for (uint32_t i = 0; i < n; i++) {
        const struct trace_tensor *w = tj_root_tensor(&b->run, b->writes[i]);
        if (w && (w->st == t->st || tj_tensors_overlap(w, t)))
            return true;
    }
    return false;
}

tj_status tj_break_for_write(struct tj_run *run, struct trace_tensor *t, struct tj_loc loc) {
    struct tj_box *b = tj_box_of(run);
    if (run->failed)
        return tj_fail(run->failed, "%s", run->error);
    if (run->eager || run->compile_only)
        return TRACE_OK;
    struct tj_site site = {loc, "write", b->flushes == 0, NULL, false};
    return tj_graph_break(b, TJ_NIL, t, &site, "trace_write");
}

// ---- lint -----------------------------------------------------------------------------------------------------------

void tj_break_lint(struct tj_box *b, uint32_t nouts) {
    struct tj_run *run = &b->run;
    const struct tj_trace *t = &run->trace;
    if (!tj_break_grow(b))
        return; // only a hint is lost
    for (tj_ref i = 0; i < t->nnodes; i++) {
        const tj_ref *in = tj_node_in(t, &t->nodes[i]);
        for (uint32_t k = 0; k < t->nodes[i].nin; k++)
            b->mark[in[k]] |= MARK_SEEN;
    }
    for (uint32_t i = 0; i < nouts; i++)
        b->mark[b->outs[i]] |= MARK_SEEN;
    for (tj_ref i = 0; i < t->nnodes; i++) {
        const struct tj_value *v = &run->values[i];
        int64_t n;
        if (b->mark[i] & MARK_SEEN || t->nodes[i].dtype != TRACE_BOOL || !v->count || v->state != TJ_V_PENDING ||
            is_source(&t->nodes[i]) || tj_root_tensor(run, i) ||
            !tj_numel(tj_shape_dims(t, t->nodes[i].shape), tj_shape_rank(t, t->nodes[i].shape), &n) || n != 1)
            continue;
        bool fresh;
        if (!tj_break_site_get(run->region, t->locs[i], "lint", true, &fresh) || !fresh)
            continue;
        tj_event(
            run->ctx, run->region, TRACE_EVENT_LINT, t->locs[i], -1, -1, 0, 0, 0,
            "the bool that %s makes is never used: probably `if (handle)`, which tests the handle and is always true; "
            "read it with trace_item_i64, or choose with trace_where",
            tj_call_name(t, i));
    }
    for (tj_ref i = 0; i < b->nmark; i++)
        b->mark[i] &= (uint16_t)~MARK_TEMP;
}
