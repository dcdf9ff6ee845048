// trace/repeat.c: counted loops: recording them, and taking the body of one as a segment of its own.
#include "repeat.h"

#include <stdio.h>

#include "dynamic.h"
#include "record.h"
#include "region.h"

// A loop outside regions that could not begin: its end tells why.
static _Thread_local struct {
    tj_status status;
    const struct tj_run *run; // open then, and its loops
    uint32_t nloops;
    char text[TJ_ERROR_MAX];
} refused;

// ---- state of a run -------------------------------------------------------------------------------------------------

void tj_repeat_drop(struct tj_run *run, uint32_t n) {
    if (run->nloops > n)
        run->nloops = n;
}

void tj_repeat_check(struct tj_run *run, uint32_t from, const char *call, struct tj_loc loc) {
    char where[300];
    if (run->failed || run->nloops <= from)
        return;
    (void)tj_loc_text(loc, where, sizeof where);
    (void)tj_op_fail(TRACE_ERR_STATE, "trace_repeat", run->loops[run->nloops - 1].loc,
                     "the loop is still open at %s (%s); end its body with trace_repeat_end", call,
                     where[0] ? where : "place unknown");
}

tj_status tj_repeat_readback(struct tj_run *run, const char *call, struct tj_loc loc) {
    char where[300];
    if (!run->nloops)
        return TRACE_OK;
    (void)tj_loc_text(run->loops[run->nloops - 1].loc, where, sizeof where);
    return tj_op_fail(
        TRACE_ERR_BREAK, call, loc,
        "needs a value inside the body of a loop (trace_repeat, %s), which is recorded once and has none; "
        "carry it and read it after trace_repeat_end, choose with trace_where, or use a loop of the host",
        where[0] ? where : "place unknown");
}

bool tj_repeat_writable(struct tj_run *run, tj_ref root, const char *op, struct tj_loc loc) {
    if (!run->nloops)
        return true;
    const struct tj_open_loop *l = &run->loops[run->nloops - 1];
    if (root >= l->mark && run->trace.nodes[root].op != TJ_OP_LEAF)
        return true;
    char where[300];
    (void)tj_loc_text(l->loc, where, sizeof where);
    (void)tj_op_fail(
        TRACE_ERR_STATE, op, loc,
        "writes a tensor from outside the loop (trace_repeat, %s); carry it, and write it with trace_copy_ "
        "after trace_repeat_end",
        where[0] ? where : "place unknown");
    return false;
}

void tj_repeat_abandon(void) {
    struct tj_run *run = tj_current;
    if (!run || !run->loose)
        return;
    (void)tj_op_fail(TRACE_ERR_STATE, "trace_repeat", run->loops[0].loc,
                     "the loop has no trace_repeat_end; end its body before the region");
    (void)tj_eager_end(run, NULL, NULL);
}

// ---- recording ------------------------------------------------------------------------------------------------------

static void clear(trace_tensor **carried, size_t n) {
    for (size_t i = 0; carried && i < n && i < TJ_LOOP_CARRIED; i++)
        carried[i] = NULL;
}

// What a call that failed returns.
static tj_status failed(trace_tensor **carried, size_t n) {
    clear(carried, n);
    return tj_current && tj_current->failed ? tj_current->failed
           : tj_last_status()               ? tj_last_status()
                                            : TRACE_ERR_STATE;
}

// Lets regions be inlined into a run that has no scope of its own.
static bool open_loose(struct tj_run *run, struct tj_loc loc) {
    if (!tj_grow((void **)&run->scopes, &run->capscopes, 1, sizeof *run->scopes))
        return false;
    run->scopes[0] = (struct tj_scope){
        .region = run->region, .begin = loc, .resume = run->outer, .resume_at = tj_run_top(run->outer)};
    run->nscopes = 1;
    run->loose = true;
    return true;
}

static bool begin(struct tj_rec *q, int64_t times, trace_tensor **carried, size_t n) {
    struct tj_run *run = q->r;
    tj_ref init[TJ_LOOP_CARRIED];
    if (run->nloops == TJ_LOOPS) {
        (void)tj_rec_fail(q, TRACE_ERR_BUDGET, "more than %d loops open inside each other", TJ_LOOPS);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        init[i] = tj_rec_in(q, carried[i]);
        if (init[i] == TJ_NIL)
            return false;
    }
    tj_ref turns = tj_rec_scalar_i(q, TRACE_I64, times);
    if (turns == TJ_NIL)
        return false;
    struct tj_open_loop l = {q->loc, run->trace.nnodes, turns, (uint32_t)n, run->nscopes};
    for (size_t i = 0; i < n; i++) {
        const struct tj_node *x = tj_rec_node(q, init[i]);
        struct tj_attr_dim slot = {(int64_t)i};
        tj_ref in =
            tj_append_value(run, TJ_OP_REPEAT_IN, (tj_dtype)x->dtype, x->shape, &init[i], 1, &slot, 1, q->loc, TJ_NIL);
        if (in == TJ_NIL)
            return false;
    }
    struct tj_rec plain = *q;
    plain.eager = false;
    for (size_t i = 0; i < n; i++)
        carried[i] = tj_rec_end(&plain, l.mark + (tj_ref)i);
    run->loops[run->nloops++] = l;
    return true;
}

static tj_status repeat(int64_t times, trace_tensor **carried, size_t n, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct tj_rec q = {.loc = loc};
    if (tj_current && tj_current->failed && !tj_current->eager)
        return failed(carried, n);
    if (!carried || n == 0)
        (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_repeat", loc,
                         n ? "the array of carried values is NULL"
                           : "nothing is carried: a loop gives what it carries, and only that");
    else if (n > TJ_LOOP_CARRIED)
        (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_repeat", loc, "%zu carried values, more than %d", n,
                         TJ_LOOP_CARRIED);
    else if (times < 0)
        (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_repeat", loc, "%lld turns; want 0 or more", (long long)times);
    else if (tj_rec_begin(&q, "trace_repeat", file, line, carried, n)) {
        bool ok = !q.eager || open_loose(q.r, loc);
        if (!ok)
            (void)tj_rec_oom(&q);
        if (ok && begin(&q, times, carried, n))
            return TRACE_OK;
        if (q.eager) {
            tj_repeat_drop(q.r, 0);
            q.r->loose = false;
            (void)tj_eager_end(q.r, NULL, NULL);
        }
    }
    return failed(carried, n);
}

// A loop over values of another context than the open run's is a run of its own, as it is outside regions.
tj_status trace_repeat_at(int64_t times, trace_tensor **carried, size_t n, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct tj_run *back = carried && n ? tj_run_go(carried[0], loc) : tj_current, *home = tj_current;
    tj_status st = TRACE_OK;
    refused.status = TRACE_OK;
    if (home != back && home && !home->eager) {
        st =
            tj_fail(TRACE_ERR_STATE,
                    "trace_repeat (%s:%d): the values carried are of region '%s'; end region '%s', of another context, "
                    "before",
                    file ? file : "?", line, home->region->name, back->region->name);
        clear(carried, n);
    } else {
        st = repeat(times, carried, n, file, line);
    }
    if (!st && tj_current != home) { // opened by it
        struct tj_scope *own = &tj_current->scopes[0];
        tj_current->outer = own->resume = back;
        own->resume_at = tj_run_top(back);
        return TRACE_OK;
    }
    tj_current = back;
    if (st && (!back || home != back)) {
        tj_failed_in(home ? home->ctx : NULL);
        refused.status = st;
        refused.run = back;
        refused.nloops = back ? back->nloops : 0;
        (void)snprintf(refused.text, sizeof refused.text, "%s", tj_last_error());
    }
    return st;
}

// Next values of the loop as nodes; false: an error was set.
static bool take_next(struct tj_rec *q, const struct tj_open_loop *l, trace_tensor *const *carried, tj_ref *next) {
    struct tj_run *run = q->r;
    char a[TJ_DIMS_TEXT], b[TJ_DIMS_TEXT];
    for (uint32_t i = 0; i < l->n; i++) {
        if (!carried[i] && !run->failed && (!tj_last_status() || run->failures == tj_failures())) {
            (void)tj_rec_fail(q, TRACE_ERR_ARGUMENT, "the next value %u is NULL", i);
            return false;
        }
        next[i] = tj_rec_in(q, carried[i]);
        if (next[i] == TJ_NIL)
            return false;
        const struct tj_node *was = tj_rec_node(q, l->mark + i), *is = tj_rec_node(q, next[i]);
        const int64_t *dw = tj_rec_dims(q, l->mark + i), *di = tj_rec_dims(q, next[i]);
        if (was->dtype != is->dtype) {
            (void)tj_rec_fail(q, TRACE_ERR_DTYPE,
                              "carried value %u begins as %s, its next value is %s; convert it with trace_to", i,
                              tj_dtypes[was->dtype].name, tj_dtypes[is->dtype].name);
            return false;
        }
        if (was->shape != is->shape) {
            (void)tj_rec_fail(q, TRACE_ERR_SHAPE,
                              "carried value %u begins as %s, its next value is %s; a loop carries one shape", i,
                              tj_dims_text(a, sizeof a, dw, tj_rec_rank(q, l->mark + i)),
                              tj_dims_text(b, sizeof b, di, tj_rec_rank(q, next[i])));
            return false;
        }
    }
    return true;
}

// Values that change with the turns end with the loop. False: out of memory.
static bool end_values(struct tj_run *run, const struct tj_open_loop *l, uint32_t end) {
    const struct tj_trace *t = &run->trace;
    uint8_t *turns = tj_calloc(end - l->mark, 1);
    if (!turns)
        return false;
    for (uint32_t i = l->mark; i < end; i++) {
        const tj_ref *in = tj_node_in(t, &t->nodes[i]);
        bool v = i < l->mark + l->n;
        for (uint32_t k = 0; k < t->nodes[i].nin && !v; k++)
            v = in[k] >= l->mark && turns[in[k] - l->mark];
        turns[i - l->mark] = v;
    }
    for (uint32_t i = l->mark; i < end; i++) {
        tj_ref latest = run->values[tj_value_root(run, i)].latest; // of memory that the body made and changed
        if (turns[i - l->mark] || (latest >= l->mark && latest < end && turns[latest - l->mark])) {
            run->values[i].state = TJ_V_DEAD;
            run->values[i].looped = true;
        }
    }
    tj_free(turns);
    return true;
}

tj_status trace_repeat_end_at(trace_tensor **carried, size_t n, const char *file, int line) {
    struct tj_run *run = tj_current;
    struct tj_loc loc = TJ_LOC(file, line);
    struct tj_rec q = {.r = run, .op = "trace_repeat_end", .loc = loc};
    char where[300];
    if (refused.status && refused.run == run && refused.nloops == (run ? run->nloops : 0)) {
        tj_status st = tj_fail(refused.status, "%s", refused.text);
        refused.status = TRACE_OK;
        clear(carried, n);
        return st;
    }
    if (!run || !run->nloops) {
        if (!run || !run->failed)
            (void)tj_op_fail(TRACE_ERR_STATE, "trace_repeat_end", loc, "no loop is open: trace_repeat begins one");
        return failed(carried, n);
    }
    const struct tj_open_loop l = run->loops[run->nloops - 1];
    tj_ref ops[1 + 2 * TJ_LOOP_CARRIED], out[TJ_LOOP_CARRIED];
    (void)tj_loc_text(l.loc, where, sizeof where);
    if (!run->failed && l.nscopes != run->nscopes)
        (void)tj_rec_fail(&q, TRACE_ERR_STATE,
                          "the loop was begun (%s) outside the region '%s' that is open now; end the region first",
                          where, run->scopes[run->nscopes - 1].region->name);
    else if (!run->failed && (!carried || n != l.n))
        (void)tj_rec_fail(&q, TRACE_ERR_ARGUMENT, "%zu next values for a loop (%s) that carries %u", carried ? n : 0,
                          where, l.n);
    bool ok = !run->failed && take_next(&q, &l, carried, ops + 1 + l.n);
    ops[0] = l.times;
    for (uint32_t i = 0; i < l.n; i++)
        ops[1 + i] = l.mark + i;
    uint32_t end = run->trace.nnodes;
    for (uint32_t i = 0; ok && i < l.n; i++) {
        const struct tj_node x = run->trace.nodes[l.mark + i];
        struct tj_attr_dim slot = {i};
        out[i] =
            tj_append_value(run, TJ_OP_REPEAT_OUT, (tj_dtype)x.dtype, x.shape, ops, 1 + 2 * l.n, &slot, 1, loc, TJ_NIL);
        ok = out[i] != TJ_NIL;
    }
    if (ok && !end_values(run, &l, end)) {
        (void)tj_rec_oom(&q);
        ok = false;
    }
    if (l.nscopes == run->nscopes)
        run->nloops--;
    if (run->loose && !run->nloops) {
        run->loose = false;
        if (!ok)
            (void)tj_eager_end(run, NULL, NULL);
        else if (tj_eager_end_all(run, out, l.n, carried) == TRACE_OK)
            return TRACE_OK;
        return failed(carried, n);
    }
    for (uint32_t i = 0; ok && i < l.n; i++)
        carried[i] = tj_rec_end(&q, out[i]);
    return ok ? TRACE_OK : failed(carried, n);
}

// ---- the body as a segment ------------------------------------------------------------------------------------------

enum {
    TURNS = 1,  // changes with the turns, or belongs to a loop inside that does
    NEEDED = 2, // for the next values
    COPIED = 4, // an op of the body writes into a copy of it
};
struct taking {
    const struct tj_segment *seg;
    const struct tj_trace *t;
    const struct tj_node *out;
    struct tj_body *b;
    uint8_t *mark; // a node of t
    tj_ref *map;
    tj_ref low; // first REPEAT_IN
    tj_ref end; // the REPEAT_OUT
};

// Marks what changes with the turns. A loop inside moves as a whole.
static void mark_turns(struct taking *k) {
    const struct tj_trace *t = k->t;
    const tj_ref *ins = tj_loop_ins(t, k->out);
    for (uint32_t i = 0; i < tj_loop_carried(k->out); i++)
        k->mark[ins[i]] |= TURNS;
    for (bool again = true; again;) {
        again = false;
        for (tj_ref i = k->low; i < k->end; i++) {
            const struct tj_node *n = &t->nodes[i];
            const tj_ref *in = tj_node_in(t, n);
            for (uint32_t j = 0; j < n->nin && !(k->mark[i] & TURNS); j++)
                k->mark[i] |= k->mark[in[j]] & TURNS;
            if (n->op != TJ_OP_REPEAT_OUT || !(k->mark[i] & TURNS))
                continue;
            const tj_ref *inner = tj_loop_ins(t, n);
            for (uint32_t j = 0; j < tj_loop_carried(n); j++) {
                again = again || !(k->mark[inner[j]] & TURNS);
                k->mark[inner[j]] |= TURNS;
            }
        }
    }
}

// Whether the body has a node of its own for n: it changes, or costs nothing.
static bool inside(const struct taking *k, tj_ref n) {
    const struct tj_node *node = &k->t->nodes[n];
    return k->mark[n] & TURNS || node->op == TJ_OP_SCALAR || tj_ops[node->op].cls == TJ_VIEW;
}

static bool is_in(const struct taking *k, tj_ref n) {
    const struct tj_node *node = &k->t->nodes[n];
    if (node->op != TJ_OP_REPEAT_IN)
        return false;
    const tj_ref *ins = tj_loop_ins(k->t, k->out);
    uint32_t slot = (uint32_t)k->t->attrs[node->attr];
    return slot < tj_loop_carried(k->out) && ins[slot] == n;
}

static void mark_needed(struct taking *k) {
    const struct tj_trace *t = k->t;
    const tj_ref *next = tj_loop_next(t, k->out);
    for (uint32_t i = 0; i < tj_loop_carried(k->out); i++)
        k->mark[next[i]] |= NEEDED;
    for (tj_ref i = k->end; i-- > 0;) {
        const struct tj_node *n = &t->nodes[i];
        if (!(k->mark[i] & NEEDED) || !inside(k, i) || is_in(k, i))
            continue;
        const tj_ref *in = tj_node_in(t, n);
        for (uint32_t j = 0; j < n->nin; j++)
            k->mark[in[j]] |= NEEDED;
        if (n->op == TJ_OP_UPDATE)
            k->mark[in[0]] |= COPIED;
    }
}

static tj_ref add_leaf(struct taking *k, tj_ref n, uint32_t shape, enum tj_body_kind kind, uint32_t index) {
    struct tj_trace *s = &k->b->trace;
    const struct tj_node *node = &k->t->nodes[n];
    struct tj_attr_leaf a = {s->nleaves};
    struct tj_leaf_key key = {
        .dtype = node->dtype, .rank = (uint8_t)tj_shape_rank(k->t, node->shape), .flags = TJ_LEAF_CARRIED};
    struct tj_leaf leaf = {NULL, NULL};
    if (kind == TJ_BODY_LEAF && index < k->t->nleaves) { // else a value that a checked run knows
        key = k->t->leafkeys[index];
        if (k->t->leaves)
            leaf.tensor = k->t->leaves[index].tensor;
    }
    key.shape = shape;
    key.input = 0;
    if (!tj_grow((void **)&s->leafkeys, &s->capleafkeys, s->nleaves + 1, sizeof *s->leafkeys) ||
        !tj_grow((void **)&s->leaves, &s->capleaves, s->nleaves + 1, sizeof *s->leaves) ||
        !tj_grow((void **)&k->b->leaves, &k->b->capleaves, s->nleaves + 1, sizeof *k->b->leaves))
        return TJ_NIL;
    s->leafkeys[s->nleaves] = key;
    s->leaves[s->nleaves] = leaf;
    k->b->leaves[s->nleaves] = (struct tj_body_leaf){kind, index, n};
    if (kind == TJ_BODY_CARRIED)
        k->b->leafof[index] = s->nleaves;
    tj_ref r = tj_trace_append(s, TJ_OP_LEAF, (tj_dtype)key.dtype, shape, NULL, 0, &a, 1, k->t->locs[n]);
    if (r != TJ_NIL)
        s->nleaves++;
    return r;
}

static tj_ref emit(struct taking *k, tj_ref n, tj_ref **ops, uint32_t *capops) {
    const struct tj_trace *t = k->t;
    const struct tj_node *node = &t->nodes[n];
    struct tj_trace *s = &k->b->trace;
    uint32_t shape = tj_trace_shape(s, tj_shape_dims(t, node->shape), tj_shape_rank(t, node->shape));
    if (shape == UINT32_MAX)
        return TJ_NIL;
    bool in = is_in(k, n);
    if (in || !inside(k, n)) {
        tj_ref leaf = in                       ? add_leaf(k, n, shape, TJ_BODY_CARRIED, (uint32_t)t->attrs[node->attr])
                      : node->op == TJ_OP_LEAF ? add_leaf(k, n, shape, TJ_BODY_LEAF, (uint32_t)t->attrs[node->attr])
                                               : add_leaf(k, n, shape, TJ_BODY_VALUE, n);
        if (leaf != TJ_NIL && k->mark[n] & COPIED)
            leaf = tj_trace_append(s, TJ_OP_COPY, (tj_dtype)node->dtype, shape, &leaf, 1, NULL, 0, t->locs[n]);
        return leaf;
    }
    const tj_ref *from = tj_node_in(t, node);
    if (!tj_grow((void **)ops, capops, node->nin + 1, sizeof **ops))
        return TJ_NIL;
    for (uint32_t i = 0; i < node->nin; i++)
        (*ops)[i] = k->map[from[i]];
    return tj_trace_append(s, (enum tj_op)node->op, (tj_dtype)node->dtype, shape, *ops, node->nin,
                           node->nattr ? tj_node_attr(t, node) : NULL, node->nattr, t->locs[n]);
}

static bool take(struct taking *k) {
    struct tj_body *b = k->b;
    const struct tj_trace *t = k->t;
    uint32_t n = tj_loop_carried(k->out), cap = 0, had = 0;
    tj_ref *ops = NULL;
    b->n = n;
    b->outs = tj_calloc(n, sizeof *b->outs);
    b->init = tj_calloc(n, sizeof *b->init);
    b->leafof = tj_calloc(n, sizeof *b->leafof);
    bool ok = b->outs && b->init && b->leafof &&
              tj_grow((void **)&b->trace.params, &b->trace.capparams, t->nparams, sizeof *t->params);
    for (uint32_t i = 0; i < n && ok; i++) {
        b->leafof[i] = UINT32_MAX;
        b->init[i] = tj_node_in(t, &t->nodes[tj_loop_ins(t, k->out)[i]])[0];
    }
    if (ok && t->nparams)
        memcpy(b->trace.params, t->params, t->nparams * sizeof *t->params);
    b->trace.nparams = t->nparams;
    b->times = (uint32_t)t->attrs[t->nodes[tj_loop_times(t, k->out)].attr];
    for (tj_ref i = 0; i < k->end && ok; i++) {
        if (!(k->mark[i] & NEEDED))
            continue;
        k->map[i] = emit(k, i, &ops, &cap);
        ok = k->map[i] != TJ_NIL && tj_grow((void **)&b->origin, &b->caporigin, b->trace.nnodes, sizeof *b->origin);
        for (; ok && had < b->trace.nnodes; had++)
            b->origin[had] = i;
    }
    tj_free(ops);
    for (uint32_t i = 0; i < n && ok; i++)
        b->outs[i] = k->map[tj_loop_next(t, k->out)[i]];
    return ok;
}

tj_status tj_body_take(const struct tj_segment *seg, tj_ref out, struct tj_body **body) {
    const struct tj_trace *t = seg->trace;
    struct taking k = {.seg = seg, .t = t, .out = &t->nodes[out], .end = out};
    k.low = tj_loop_ins(t, k.out)[0];
    k.b = tj_calloc(1, sizeof *k.b);
    k.mark = tj_calloc(out + 1u, 1);
    k.map = tj_malloc((out + 1u) * sizeof *k.map);
    bool ok = k.b && k.mark && k.map;
    if (k.b)
        tj_trace_init(&k.b->trace);
    if (ok) {
        mark_turns(&k);
        mark_needed(&k);
        ok = take(&k);
    }
    tj_free(k.mark);
    tj_free(k.map);
    if (!ok) {
        tj_body_free(k.b);
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for the body of a loop");
    }
    k.b->out = out;
    k.b->seg = *seg;
    k.b->seg.trace = &k.b->trace;
    k.b->seg.outs = k.b->outs;
    k.b->seg.nouts = k.b->n;
    k.b->seg.writes = NULL;
    k.b->seg.nwrites = 0;
    k.b->seg.symbolic = false;
    k.b->seg.dyn = NULL;
    *body = k.b;
    return TRACE_OK;
}

void tj_body_free(struct tj_body *b) {
    if (!b)
        return;
    tj_dynamic_free(&b->dyn);
    tj_trace_free(&b->trace);
    tj_free(b->outs);
    tj_free(b->init);
    tj_free(b->leafof);
    tj_free(b->leaves);
    tj_free(b->origin);
    tj_free(b);
}
