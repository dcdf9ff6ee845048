// trace/record.c: from a call of an op to nodes of the open run: operands, interning, handles, the life of a run's
// tables.
#include "record.h"

#include "../lib/hash.h"
#include "region.h"

// ---- the run's tables -------------------------------------------------------------------------------

static struct tj_record *record_of(struct tj_run *run) {
    if (TJ_UNLIKELY(!run->rec)) {
        run->rec = tj_calloc(1, sizeof *run->rec);
    }
    return run->rec;
}

void tj_run_reset(struct tj_run *run) {
    tj_trace_reset(&run->trace);
    run->written = false;
    run->fresh_from = 0;
    if (run->rec) {
        run->rec->ninterned = run->rec->nleafslots = run->rec->nviews = 0;
        run->rec->groups = run->rec->nwritten = 0;
        tj_leaves_forget(run->rec);
        run->rec->scalar_known = false;
    }
}

void tj_run_drop(struct tj_run *run) {
    struct tj_record *rec = run->rec;
    for (uint32_t i = 0; rec && i < rec->nsnaps; i++) {
        struct trace_tensor *s = rec->snaps[i];
        tj_reader_leave(s->st, run->process);
        tj_storage_drop(s->st);
        s->st = NULL;
        if (run->trace.leaves[i].source) {
            tj_tensor_drop(run->trace.leaves[i].source);
        }
        run->trace.leaves[i] = (struct tj_leaf){NULL, NULL};
    }
    if (rec) {
        rec->nsnaps = 0;
    }
    for (uint32_t i = 0; i < run->trace.nnodes; i++) {
        if (run->values[i].tensor) {
            tj_tensor_drop(run->values[i].tensor);
            run->values[i].tensor = NULL;
        }
    }
}

void tj_run_free(struct tj_run *run) {
    struct tj_record *rec = run->rec;
    tj_run_drop(run);
    tj_trace_free(&run->trace);
    tj_free(run->values);
    run->values = NULL;
    run->capvalues = 0;
    if (rec) {
        for (uint32_t i = 0; i < rec->capsnaps; i++) {
            tj_free(rec->snaps[i]);
        }
        tj_free(rec->snaps);
        tj_free(rec->intern);
        tj_free(rec->leaftab);
        tj_free(rec->leafnodes);
        tj_free(rec->chain);
        tj_free(rec->places);
        tj_free(rec->groupof);
        tj_free(rec->written);
        tj_free(rec->joined);
        tj_leaves_free(rec);
        tj_free(rec);
        run->rec = NULL;
    }
}

void tj_run_rollback(struct tj_run *run, uint32_t nnodes) {
    bool moved = false;
    for (uint32_t i = nnodes; i < run->trace.nnodes; i++) {
        run->values[i].state = TJ_V_DEAD;
    }
    for (uint32_t i = 0; i < nnodes; i++) {
        struct tj_value *v = &run->values[i];
        bool leaf = run->trace.nodes[i].op == TJ_OP_LEAF;
        struct tj_leaf_key *key = leaf ? &run->trace.leafkeys[run->trace.attrs[run->trace.nodes[i].attr]] : NULL;
        if (v->rebased && v->latest >= nnodes) { // its group is undone: back to the last write of its own
            v->rebased = false;
            v->latest = i;
            for (uint32_t k = i + 1; k < nnodes; k++) {
                if (run->trace.nodes[k].op == TJ_OP_UPDATE && run->values[k].root == i) {
                    v->latest = k;
                }
            }
        }
        while (v->latest >= nnodes) {
            const struct tj_node *n = &run->trace.nodes[v->latest];
            moved |= leaf && n->op == TJ_OP_LEAF;
            v->latest = n->op == TJ_OP_UPDATE ? n->in[0] : i;
        }
        if (leaf && v->latest == i) { // so that the next write looks for overlaps again
            key->flags &= (uint16_t)~TJ_LEAF_WRITTEN;
        }
    }
    if (run->rec) {
        tj_leaves_forget(run->rec);
        tj_leaves_regroup(run);
    }
    if (moved) {
        tj_run_moved_again(run, nnodes);
    }
}

// ---- appending and interning --------------------------------------------------------------------------

tj_ref tj_append_value(struct tj_run *run, enum tj_op op, tj_dtype d, uint32_t shape, const tj_ref *in, size_t nin,
                       const void *attr, size_t n8, struct tj_loc loc, tj_ref root) {
    uint32_t n = run->trace.nnodes;
    if (n >= TJ_MAX_NODES) {
        tj_op_fail(TRACE_ERR_BUDGET, tj_ops[op].name, loc, "more than %u ops in one run; end the region earlier",
                   TJ_MAX_NODES);
        return TJ_NIL;
    }
    if (!tj_grow((void **)&run->values, &run->capvalues, n + 1, sizeof *run->values) ||
        tj_trace_append(&run->trace, op, d, shape, in, nin, attr, n8, loc) == TJ_NIL) {
        tj_op_fail(TRACE_ERR_MEMORY, tj_ops[op].name, loc, "out of memory while recording");
        return TJ_NIL;
    }
    run->values[n] = (struct tj_value){.state = TJ_V_PENDING,
                                       .packed = root == TJ_NIL && op != TJ_OP_LEAF,
                                       .root = root == TJ_NIL ? n : root,
                                       .latest = n};
    return n;
}

// The same without attributes and with at most four operands, when there is room.
static inline tj_ref append_plain(struct tj_run *run, const struct tj_node *key, const int64_t *attr, tj_ref root,
                                  struct tj_loc loc) {
    struct tj_trace *t = &run->trace;
    uint32_t n = t->nnodes;
    if (TJ_UNLIKELY(n >= t->capnodes || n >= t->caplocs || n >= run->capvalues || n >= TJ_MAX_NODES || key->nin > 4 ||
                    key->nattr)) {
        return tj_append_value(run, (enum tj_op)key->op, (tj_dtype)key->dtype, key->shape, key->in, key->nin, attr,
                               key->nattr, loc, root);
    }
    t->nodes[n] = *key;
    t->locs[n] = loc;
    run->values[n] = (struct tj_value){
        .state = TJ_V_PENDING, .packed = root == TJ_NIL, .root = root == TJ_NIL ? n : root, .latest = n};
    t->nnodes = n + 1;
    return n;
}

static inline uint64_t node_hash(const struct tj_node *n, const tj_ref *in, const int64_t *attr) {
    if (TJ_UNLIKELY(tj_hash_collide)) {
        return 0;
    }
    uint64_t h = tj_hash_mix((uint64_t)n->op << 48 ^ (uint64_t)n->dtype << 40 ^ n->shape, n->nin);
    for (uint32_t i = 0; i < n->nin; i++) {
        h = tj_hash_mix(h, in[i]);
    }
    for (uint32_t i = 0; i < n->nattr; i++) {
        h = tj_hash_mix(h, (uint64_t)attr[i]);
    }
    return h;
}

static bool intern_grow(struct tj_run *run, struct tj_record *rec) {
    uint32_t size = rec->internsize ? rec->internsize * 2 : 256, stamp = (uint32_t)run->generation;
    struct tj_intern_slot *tab = tj_malloc(size * sizeof *tab);
    if (!tab) {
        return false;
    }
    for (uint32_t i = 0; i < size; i++) {
        tab[i] = (struct tj_intern_slot){stamp ^ 0x80000000u, 0};
    }
    for (uint32_t i = 0; i < rec->internsize; i++) {
        struct tj_intern_slot s = rec->intern[i];
        if (s.stamp == stamp && s.node < run->trace.nnodes) {
            const struct tj_node *n = &run->trace.nodes[s.node];
            uint64_t h = node_hash(n, tj_node_in(&run->trace, n), tj_node_attr(&run->trace, n));
            while (tab[h & (size - 1)].stamp == stamp) {
                h++;
            }
            tab[h & (size - 1)] = s;
        }
    }
    tj_free(rec->intern);
    rec->intern = tab;
    rec->internsize = size;
    return true;
}

// Finds an equal node or appends one. view: aliases the memory of its first operand. *found: it was there.
static inline tj_ref intern(struct tj_run *run, const struct tj_node *key, const tj_ref *in, const int64_t *attr,
                            bool view, struct tj_loc loc, bool *found) {
    struct tj_record *rec = record_of(run);
    *found = false;
    if (!rec || (rec->ninterned * 2 >= rec->internsize && !intern_grow(run, rec))) {
        tj_op_fail(TRACE_ERR_MEMORY, tj_ops[key->op].name, loc, "out of memory while recording");
        return TJ_NIL;
    }
    const struct tj_trace *t = &run->trace;
    uint32_t mask = rec->internsize - 1, stamp = (uint32_t)run->generation;
    uint64_t h = node_hash(key, in, attr);
    for (;; h++) {
        struct tj_intern_slot s = rec->intern[h & mask];
        if (s.stamp != stamp || s.node >= t->nnodes) {
            break;
        }
        const struct tj_node *n = &t->nodes[s.node];
        const struct tj_value *v = &run->values[s.node];
        if (n->op == key->op && n->dtype == key->dtype && n->nattr == key->nattr && n->shape == key->shape &&
            n->nin == key->nin && s.node >= run->fresh_from && v->state != TJ_V_DEAD && view == (v->root != s.node) &&
            !memcmp(tj_node_in(t, n), in, n->nin * sizeof *in) &&
            (n->nattr == 0 || !memcmp(t->attrs + n->attr, attr, n->nattr * sizeof *attr))) {
            *found = true;
            return s.node;
        }
    }
    tj_ref root = TJ_NIL;
    if (view) { // room for the chain of views, so that following one can't fail
        root = run->values[in[0]].root;
        if (!tj_grow((void **)&rec->chain, &rec->capchain, rec->nviews + 1, sizeof *rec->chain)) {
            tj_op_fail(TRACE_ERR_MEMORY, tj_ops[key->op].name, loc, "out of memory while recording");
            return TJ_NIL;
        }
        rec->nviews++;
    }
    tj_ref n = key->nin > 4 ? tj_append_value(run, (enum tj_op)key->op, (tj_dtype)key->dtype, key->shape, in, key->nin,
                                              attr, key->nattr, loc, root)
                            : append_plain(run, key, attr, root, loc);
    if (TJ_LIKELY(n != TJ_NIL)) {
        rec->intern[h & mask] = (struct tj_intern_slot){stamp, n};
        rec->ninterned++;
    }
    return n;
}

static tj_ref emit(struct tj_run *run, enum tj_op op, tj_dtype d, uint32_t shape, const tj_ref *in, size_t nin,
                   const void *attr, size_t bytes, bool view, struct tj_loc loc) {
    struct tj_node key = {(uint16_t)op, (uint8_t)d, (uint8_t)(bytes / 8), shape, (uint32_t)nin, 0, {0, 0, 0, 0}};
    bool found;
    if (nin <= 4 && nin) {
        memcpy(key.in, in, nin * sizeof *in);
    }
    if (op == TJ_OP_COPY || op == TJ_OP_RESHAPE_COPY || op == TJ_OP_UPDATE || (tj_ops[op].flags & TJ_FLAG_N)) {
        return tj_append_value(run, op, d, shape, in, nin, attr, bytes / 8, loc, TJ_NIL);
    }
    tj_ref n = intern(run, &key, in, attr, view, loc, &found);
    if (n != TJ_NIL && view && !found && op == TJ_OP_RESHAPE) {
        run->values[n].packed = run->values[in[0]].packed;
    }
    return n;
}

tj_ref tj_rec_oom(struct tj_rec *q) { return tj_rec_fail(q, TRACE_ERR_MEMORY, "out of memory while recording"); }

tj_ref tj_rec_op(struct tj_rec *q, enum tj_op op, tj_dtype d, const int64_t *dims, size_t rank, const tj_ref *in,
                 size_t nin, const void *attr, size_t bytes, enum tj_fresh fresh) {
    for (size_t i = 0; i < nin; i++) {
        if (in[i] == TJ_NIL) {
            return TJ_NIL;
        }
    }
    if (!tj_rec_shape(q, dims, rank, d)) {
        return TJ_NIL;
    }
    uint32_t shape = tj_trace_shape(&q->r->trace, dims, rank);
    if (shape == UINT32_MAX) {
        return tj_rec_oom(q);
    }
    return emit(q->r, op, d, shape, in, nin, attr, bytes, tj_ops[op].cls == TJ_VIEW && fresh == TJ_PART, q->loc);
}

tj_ref tj_rec_like(struct tj_rec *q, enum tj_op op, tj_dtype d, tj_ref like, const tj_ref *in, size_t nin) {
    if (like == TJ_NIL) {
        return TJ_NIL;
    }
    for (size_t i = 0; i < nin; i++) {
        if (in[i] == TJ_NIL) {
            return TJ_NIL;
        }
    }
    return emit(q->r, op, d, tj_rec_node(q, like)->shape, in, nin, NULL, 0, false, q->loc);
}

tj_ref tj_rec_again(struct tj_run *run, tj_ref n, tj_ref on) {
    struct tj_trace *t = &run->trace;
    struct tj_node key = t->nodes[n];
    tj_ref in[4];
    int64_t attr[32];
    bool found;
    key.in[0] = on; // views have at most two operands
    memcpy(in, key.in, sizeof in);
    memcpy(attr, t->attrs + key.attr, key.nattr * sizeof *attr);
    key.attr = 0;
    tj_ref m = intern(run, &key, in, attr, true, t->locs[n], &found);
    if (m != TJ_NIL && !found) {
        run->values[m].packed = run->values[n].packed;
    }
    return m;
}

static tj_ref scalar_node(struct tj_run *run, tj_dtype d, union tj_scalar v, struct tj_loc loc) {
    struct tj_trace *t = &run->trace;
    struct tj_record *rec = record_of(run);
    struct tj_attr_param attr = {t->nparams};
    if (rec && t->nshapes && rec->scalar_shape < t->ndims && t->dims[rec->scalar_shape] == 0 && rec->scalar_known) {
        // the 0-d shape is known
    } else if (!rec || (rec->scalar_shape = tj_trace_shape(t, NULL, 0)) == UINT32_MAX) {
        return TJ_NIL;
    } else {
        rec->scalar_known = true;
    }
    if (t->nparams >= t->capparams && !tj_grow((void **)&t->params, &t->capparams, t->nparams + 1, sizeof *t->params)) {
        return TJ_NIL;
    }
    uint32_t n = t->nnodes, at = t->nattrs;
    if (TJ_LIKELY(n < t->capnodes && n < t->caplocs && n < run->capvalues && at && at < t->capattrs &&
                  n < TJ_MAX_NODES)) {
        t->attrs[at] = attr.index;
        t->nattrs = at + 1;
        t->nodes[n] = (struct tj_node){TJ_OP_SCALAR, (uint8_t)d, 1, rec->scalar_shape, 0, at, {0, 0, 0, 0}};
        t->locs[n] = loc;
        run->values[n] = (struct tj_value){.state = TJ_V_PENDING, .packed = true, .root = n, .latest = n};
        t->nnodes = n + 1;
    } else {
        n = tj_append_value(run, TJ_OP_SCALAR, d, rec->scalar_shape, NULL, 0, &attr, 1, loc, TJ_NIL);
        if (n == TJ_NIL) {
            return n;
        }
    }
    memset(&t->params[t->nparams], 0, sizeof *t->params);
    t->params[t->nparams].v = v;
    t->params[t->nparams].dtype = (uint8_t)d;
    t->nparams++;
    return n;
}

tj_ref tj_rec_scalar(struct tj_rec *q, tj_dtype d, union tj_scalar v) {
    tj_ref n = scalar_node(q->r, d, v, q->loc);
    return n == TJ_NIL && !q->r->failed ? tj_rec_oom(q) : n;
}

tj_ref tj_rec_scalar_f(struct tj_rec *q, tj_dtype d, double v) {
    return tj_rec_scalar(q, d, tj_scalar_convert_f(d, v));
}
tj_ref tj_rec_scalar_i(struct tj_rec *q, tj_dtype d, int64_t v) {
    return tj_rec_scalar(q, d, tj_scalar_convert_i(d, v));
}

tj_ref tj_rec_cast(struct tj_rec *q, tj_ref n, tj_dtype d) {
    return n == TJ_NIL || tj_rec_dtype(q, n) == d ? n : tj_rec_like(q, TJ_OP_CAST, d, n, &n, 1);
}

// ---- operands and results -------------------------------------------------------------------------------

static tj_ref dead(struct tj_run *run, tj_ref n, const char *op, struct tj_loc loc) {
    if (n != TJ_NIL && n < run->trace.nnodes) {
        const struct tj_loc *l = &run->trace.locs[n];
        if (run->values[n].looped) {
            tj_op_fail(TRACE_ERR_DEAD, op, loc,
                       "the value of %s (%s:%d) changes with the turns of a loop that is over; carry it: put it into "
                       "trace_repeat's array",
                       tj_call_name(&run->trace, n), l->file ? l->file : "?", (int)l->line);
            return TJ_NIL;
        }
        tj_op_fail(TRACE_ERR_DEAD, op, loc, "the value of %s (%s:%d) was %s; retain it before, or record it again",
                   tj_call_name(&run->trace, n), l->file ? l->file : "?", (int)l->line,
                   run->values[n].state == TJ_V_DEAD ? "dropped with a failed inner region" : "released");
    } else {
        tj_op_fail(TRACE_ERR_DEAD, op, loc,
                   "a recorded value of another run; values end with their run, keep what "
                   "trace_end returns");
    }
    return TJ_NIL;
}

// An operand of another context than the run's. t: a tensor, or a value that a run around it has recorded.
static tj_ref foreign_operand(const char *op, trace_tensor *t, struct tj_loc loc) {
    const struct tj_run *of = tj_is_value(t) ? tj_run_of(t) : NULL;
    if (of)
        tj_op_fail(TRACE_ERR_ARGUMENT, op, loc,
                   "an operand is a recorded value of region '%s', of another context; end that region, then copy the "
                   "result with trace_read and trace_from",
                   of->region->name);
    else
        tj_op_fail(TRACE_ERR_ARGUMENT, op, loc,
                   "an operand belongs to another context; copy it with trace_read and "
                   "trace_from");
    return TJ_NIL;
}

// An operand that is NULL: the first error is the one to tell.
static tj_ref null_operand(struct tj_run *run, const char *op, struct tj_loc loc) {
    if (run && run->failed) {
        return TJ_NIL;
    }
    if (tj_last_status() == TRACE_OK) {
        tj_op_fail(TRACE_ERR_ARGUMENT, op, loc, "an operand is NULL; an absent optional one is TRACE_NONE");
    } else if (run && run->failures == tj_failures()) { // that error is older than the run
        tj_op_fail(TRACE_ERR_ARGUMENT, op, loc,
                   "an operand is NULL; an absent optional one is TRACE_NONE. This thread's last failure: %s",
                   tj_last_error());
    } else if (run) {
        run->failed = tj_last_status();
        strncpy(run->error, tj_last_error(), sizeof run->error - 1);
        run->error[sizeof run->error - 1] = '\0';
    }
    return TJ_NIL;
}

// The node of a handle, not resolved to the current content of its memory.
static tj_ref raw_node(struct tj_run *run, trace_tensor *t, const char *op, struct tj_loc loc) {
    if (!t) {
        return null_operand(run, op, loc);
    }
    if (t == TRACE_NONE) {
        tj_op_fail(TRACE_ERR_ARGUMENT, op, loc, "TRACE_NONE where a tensor is needed");
        return TJ_NIL;
    }
    if (tj_is_value(t)) {
        uint64_t h = (uint64_t)(uintptr_t)t;
        tj_ref n = (tj_ref)(h >> 1 & 0xFFFFFF) - 1;
        if (h >> 25 != run->generation || n >= run->trace.nnodes) {
            const struct tj_run *of = tj_run_of(t);
            return of && of->generation == h >> 25 ? foreign_operand(op, t, loc) : dead(run, TJ_NIL, op, loc);
        }
        if (run->values[n].state == TJ_V_DEAD || run->values[n].ended) {
            return dead(run, n, op, loc);
        }
        return n;
    }
    if (t->ctx != run->ctx) {
        return foreign_operand(op, t, loc);
    }
    if (t->state != TJ_T_READY) {
        tj_op_fail(TRACE_ERR_STATE, op, loc,
                   t->state == TJ_T_DEFERRED ? "an operand of trace_item_later has no content before its run ends"
                                             : "an operand of trace_item_later has no content: its run failed");
        return TJ_NIL;
    }
    return tj_leaf_of(run, t, 0);
}

tj_ref tj_resolve(struct tj_run *run, trace_tensor *t, const char *op, struct tj_loc loc) {
    tj_ref n = raw_node(run, t, op, loc);
    return n == TJ_NIL || !run->written ? n : tj_value_current(run, n);
}

tj_ref tj_rec_raw(struct tj_rec *q, trace_tensor *t) { return raw_node(q->r, t, q->op, q->loc); }

tj_ref tj_rec_in(struct tj_rec *q, trace_tensor *t) {
    tj_ref n = tj_resolve(q->r, t, q->op, q->loc);
    if (n != TJ_NIL && q->r->values[n].alias) {
        tj_ref of = q->r->trace.nodes[n].in[0];
        // Once ended, only the alias is sure to be kept over a break; and it keeps content that a write overwrites.
        if (!q->r->values[of].ended && q->r->trace.nodes[tj_value_root(q->r, of)].op != TJ_OP_LEAF) {
            return of;
        }
    }
    return n;
}

static bool open_eager(struct tj_rec *q, trace_context *ctx) {
    q->r = tj_eager_begin(ctx, q->op, q->loc);
    q->eager = true;
    return q->r != NULL;
}

// The context that all operands belong to; NULL: several, or unknown.
static trace_context *home_of(trace_tensor *const *ts, size_t n) {
    trace_context *ctx = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!ts[i] || ts[i] == TRACE_NONE) {
            continue;
        }
        struct tj_run *of = tj_is_value(ts[i]) ? tj_run_of(ts[i]) : NULL;
        if (tj_is_value(ts[i]) && of->generation != (uint64_t)(uintptr_t)ts[i] >> 25) {
            return NULL;
        }
        trace_context *c = of ? of->ctx : ts[i]->ctx;
        if (ctx && ctx != c) {
            return NULL;
        }
        ctx = c;
    }
    return ctx;
}

// An op of another context than that of the innermost run: recorded by a run around it, or run at once.
static bool go_home(struct tj_rec *q, trace_context *ctx) {
    struct tj_run *run = tj_run_find(ctx);
    if (!run || run->eager) {
        return open_eager(q, ctx);
    }
    if (run->failed) {
        return false;
    }
    q->r = run;
    q->away = true;
    q->back = tj_run_switch(run);
    return true;
}

static inline bool belongs(const struct tj_run *run, const trace_tensor *t) {
    return t == TRACE_NONE || (tj_is_value(t) ? (uint64_t)(uintptr_t)t >> 25 == run->generation : t->ctx == run->ctx);
}

bool tj_rec_begin(struct tj_rec *q, const char *op, const char *file, int line, trace_tensor *const *ts, size_t n) {
    struct tj_run *run = tj_current;
    *q = (struct tj_rec){run, op, {file, line, tj_call(op)}, false, false, NULL};
    if (TJ_UNLIKELY(run && n && (!ts[0] || !belongs(run, ts[0])))) {
        trace_context *home = home_of(ts, n);
        bool null = false, all = true;
        for (size_t i = 0; i < n; i++) {
            null = null || !ts[i];
            all = all && (!ts[i] || ts[i] == TRACE_NONE);
        }
        if (null && all && tj_failed_elsewhere()) { // of that context, by all that is known
            return false;
        }
        if (home && home != run->ctx) {
            if (null) { // an error of that context's, not of this run
                struct tj_run *of = tj_run_find(home), *back = tj_run_switch(of);
                (void)null_operand(of && !of->eager ? of : NULL, op, q->loc);
                (void)tj_run_switch(back);
                tj_failed_in(home);
                return false;
            }
            return go_home(q, home);
        }
    }
    if (run && !run->eager) {
        return run->failed == TRACE_OK;
    }
    trace_context *ctx = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!ts[i]) {
            (void)null_operand(NULL, op, q->loc);
            return false;
        }
        if (ts[i] != TRACE_NONE && tj_is_value(ts[i])) {
            tj_op_fail(TRACE_ERR_DEAD, op, q->loc,
                       "a recorded value of a run that is over or of another thread; keep "
                       "what trace_end returns");
            return false;
        }
        if (!ctx && ts[i] != TRACE_NONE) {
            ctx = ts[i]->ctx;
        }
    }
    if (!ctx) {
        tj_op_fail(TRACE_ERR_ARGUMENT, op, q->loc, "TRACE_NONE where a tensor is needed");
        return false;
    }
    return open_eager(q, ctx);
}

bool tj_rec_begin_ctx(struct tj_rec *q, const char *op, const char *file, int line, trace_context *ctx) {
    struct tj_run *run = tj_current;
    *q = (struct tj_rec){run, op, {file, line, tj_call(op)}, false, false, NULL};
    if (run && ctx && ctx != run->ctx) {
        return go_home(q, ctx);
    }
    if (run && run->failed && !run->eager) {
        return false;
    }
    if (!ctx) {
        tj_op_fail(TRACE_ERR_ARGUMENT, op, q->loc, "the context is NULL");
        return false;
    }
    return (run && !run->eager) || open_eager(q, ctx);
}

// A handle of its own for a result whose node already stands for another handle's memory, or for memory from outside.
static tj_ref own_handle(struct tj_run *run, tj_ref n, struct tj_loc loc) {
    const struct tj_node *node = &run->trace.nodes[n];
    tj_ref m = tj_append_value(run, TJ_OP_COPY, (tj_dtype)node->dtype, node->shape, &n, 1, NULL, 0, loc, TJ_NIL);
    if (m != TJ_NIL) {
        run->values[m].alias = true;
    }
    return m;
}

static inline trace_tensor *fresh_handle(struct tj_run *run, tj_ref n, struct tj_loc loc) {
    const struct tj_value *v = &run->values[n];
    if (TJ_UNLIKELY(v->root != n || v->latest != n || v->count || v->ended || run->trace.nodes[n].op == TJ_OP_LEAF)) {
        n = own_handle(run, n, loc);
        if (n == TJ_NIL) {
            return NULL;
        }
    }
    run->values[n].count = 1;
    return tj_handle(run, n);
}

// The result of an op. target: of one in place.
static inline trace_tensor *finish(struct tj_rec *q, trace_tensor *h, trace_tensor *target) {
    if (q->eager) {
        return tj_eager_end(q->r, h, target);
    }
    if (TJ_UNLIKELY(q->away)) {
        tj_current = q->back;
        q->away = false;
    }
    return target ? target : h;
}

trace_tensor *tj_rec_end(struct tj_rec *q, tj_ref n) {
    return finish(q, n == TJ_NIL ? NULL : fresh_handle(q->r, n, q->loc), NULL);
}

trace_tensor *tj_rec_end_view(struct tj_rec *q, tj_ref n) {
    trace_tensor *h = NULL;
    if (n != TJ_NIL) {
        struct tj_value *v = &q->r->values[n];
        v->count++;
        v->ended = false;
        h = tj_handle(q->r, n);
    }
    return finish(q, h, NULL);
}

trace_tensor *tj_rec_end_inplace(struct tj_rec *q, trace_tensor *target, bool ok) {
    return finish(q, NULL, ok ? target : NULL);
}

// ---- the common case: operands recorded in this run, equal in shape and dtype ------------------------------

static inline tj_ref quick(const struct tj_run *run, const trace_tensor *t) {
    uint64_t h = (uint64_t)(uintptr_t)t;
    tj_ref n = (tj_ref)(h >> 1 & 0xFFFFFF) - 1;
    if (!(h & 1)) {
        n = tj_leaf_known(run, t);
        if (n == TJ_NIL) {
            return n;
        }
    } else if (h >> 25 != run->generation || n >= run->trace.nnodes) {
        return TJ_NIL;
    }
    const struct tj_value *v = &run->values[n];
    if (v->state == TJ_V_DEAD || v->ended || v->alias || (run->written && run->values[v->root].latest != v->root)) {
        return TJ_NIL;
    }
    return n;
}

static inline struct tj_run *quick_run(void) {
    struct tj_run *run = tj_current;
    return run && !run->failed && !run->eager ? run : NULL;
}

trace_tensor *tj_quick1(enum tj_op op, uint32_t dtypes, trace_tensor *a, struct tj_loc loc, bool *done) {
    struct tj_run *run = quick_run();
    tj_ref x;
    *done = false;
    if (!run || (x = quick(run, a)) == TJ_NIL) {
        return NULL;
    }
    struct tj_node key = run->trace.nodes[x];
    if (!(dtypes >> key.dtype & 1)) {
        return NULL;
    }
    key = (struct tj_node){(uint16_t)op, tj_ops[op].rule == TJ_RULE_BOOL ? TRACE_BOOL : key.dtype, 0, key.shape, 1, 0,
                           {x, 0, 0, 0}};
    *done = true;
    bool found;
    tj_ref n = intern(run, &key, key.in, NULL, false, loc, &found);
    return n == TJ_NIL ? NULL : fresh_handle(run, n, loc);
}

// Whether `part` broadcasts to exactly `whole`.
static bool covers(const struct tj_trace *t, uint32_t whole, uint32_t part) {
    size_t nw = tj_shape_rank(t, whole), np = tj_shape_rank(t, part);
    const int64_t *w = tj_shape_dims(t, whole), *p = tj_shape_dims(t, part);
    if (np > nw) {
        return false;
    }
    for (size_t i = 0; i < np; i++) {
        if (p[i] != w[nw - np + i] && p[i] != 1) {
            return false;
        }
    }
    return true;
}

trace_tensor *tj_quick2(enum tj_op op, uint32_t dtypes, trace_tensor *a, trace_tensor *b, struct tj_loc loc,
                        bool *done) {
    struct tj_run *run = quick_run();
    tj_ref x, y;
    *done = false;
    if (!run || (x = quick(run, a)) == TJ_NIL || (y = quick(run, b)) == TJ_NIL) {
        return NULL;
    }
    const struct tj_node *nx = &run->trace.nodes[x], *ny = &run->trace.nodes[y];
    uint32_t shape = nx->shape;
    if (nx->dtype != ny->dtype || !(dtypes >> nx->dtype & 1)) {
        return NULL;
    }
    if (shape != ny->shape && !covers(&run->trace, shape, ny->shape)) {
        shape = ny->shape;
        if (!covers(&run->trace, shape, nx->shape)) {
            return NULL;
        }
    }
    struct tj_node key = {(uint16_t)op, tj_ops[op].rule == TJ_RULE_BOOL ? TRACE_BOOL : nx->dtype, 0, shape, 2, 0,
                          {x, y, 0, 0}};
    *done = true;
    bool found;
    tj_ref n = intern(run, &key, key.in, NULL, false, loc, &found);
    return n == TJ_NIL ? NULL : fresh_handle(run, n, loc);
}

trace_tensor *tj_quick_scalar(enum tj_op op, uint32_t dtypes, trace_tensor *a, bool is_float, double f, int64_t i,
                              bool swap, struct tj_loc loc, bool *done) {
    struct tj_run *run = quick_run();
    tj_ref x;
    *done = false;
    if (!run || (x = quick(run, a)) == TJ_NIL) {
        return NULL;
    }
    tj_dtype d = (tj_dtype)run->trace.nodes[x].dtype;
    bool fl = tj_is_float(d);
    if (!(dtypes >> d & 1) || (!fl && (is_float || !tj_scalar_fits(d, i) || d == TRACE_BOOL))) {
        return NULL;
    }
    *done = true;
    uint32_t shape = run->trace.nodes[x].shape;
    tj_ref s = scalar_node(run, d, is_float ? tj_scalar_convert_f(d, f) : tj_scalar_convert_i(d, i), loc), n = TJ_NIL;
    if (s != TJ_NIL) { // new, so the op is new too
        struct tj_node key = {(uint16_t)op,
                              (uint8_t)(tj_ops[op].rule == TJ_RULE_BOOL ? TRACE_BOOL : d),
                              0,
                              shape,
                              2,
                              0,
                              {swap ? s : x, swap ? x : s, 0, 0}};
        n = append_plain(run, &key, NULL, TJ_NIL, loc);
    }
    if (n == TJ_NIL) {
        if (!run->failed) {
            tj_op_fail(TRACE_ERR_MEMORY, tj_ops[op].name, loc, "out of memory while recording");
        }
        return NULL;
    }
    run->values[n].count = 1;
    return tj_handle(run, n);
}
