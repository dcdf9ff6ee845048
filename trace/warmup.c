// trace/warmup.c: plans ahead of runs: the youngest recording of a region, and making its plans for other shapes.
//
// Kept are the segments of the last run that had to make a plan: their traces, what is stored of them, and which values
// of one are leaves of a later one. For other shapes of the declared inputs the extents of the first segment's results
// are inferred, those that go on become leaves of the next, and so on; then every segment's plan is made where a run
// would look for it. What a break stores was learned by the runs; the records of the new shapes take it over.
#include "warmup.h"

#include <stdio.h>

#include "profile.h"
#include "record.h"

#define TYPICAL 8 // combinations of a loaded profile that plans are made for

struct link {
    uint32_t segment; // that computed the leaf's value; NONE: not known
    tj_ref node;      // of that segment's trace
};
#define NONE UINT32_MAX
struct kept {
    const struct tj_trace *trace; // of the entry, the record, or `own`
    struct tj_entry *entry;       // its plan: a reference, or NULL
    struct tj_learned *record;    // of a break: a reference; NULL: the run's last segment
    struct tj_trace own;
    char **files; // of the places in own
    uint32_t nfiles;
    tj_ref *outs, *writes; // last segment: what it stores; a break: outs are what it must store
    uint32_t nouts, nwrites;
    bool first;
    struct link *links; // one a leaf
};
struct tj_warm {
    atomic_int refs;
    uint32_t declared; // inputs
    uint32_t nsegments;
    struct kept *segments;
    struct tj_profile_shape *inputs; // of each declared input; rank 255: none of its own
    int64_t *dims;                   // TJ_MAX_RANK an input
};
#define NO_SHAPE UINT8_MAX

// ---- keeping a recording -------------------------------------------------------------------------------------------

static void warm_put(struct tj_warm *w) {
    if (!w || atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < w->nsegments; i++) {
        struct kept *k = &w->segments[i];
        tj_entry_put(k->entry);
        tj_learned_put(k->record);
        tj_trace_free(&k->own);
        for (uint32_t f = 0; f < k->nfiles; f++)
            tj_free(k->files[f]);
        tj_free((void *)k->files);
        tj_free(k->outs);
        tj_free(k->writes);
        tj_free(k->links);
    }
    tj_free(w->segments);
    tj_free(w->inputs);
    tj_free(w->dims);
    tj_free(w);
}

void tj_warm_free(struct trace_region *r) {
    warm_put(r->warm);
    r->warm = NULL;
}

static struct tj_warm *warm_get(struct trace_region *r) {
    tj_profile_lock(&r->profile);
    struct tj_warm *w = r->warm;
    if (w)
        (void)atomic_fetch_add_explicit(&w->refs, 1, memory_order_relaxed);
    tj_unlock(&r->profile.lock);
    return w;
}

static bool copy_refs(tj_ref **dst, uint32_t *n, const tj_ref *src, uint32_t count) {
    *dst = tj_malloc(count * sizeof **dst);
    if (*dst && count)
        memcpy(*dst, src, count * sizeof **dst);
    *n = *dst ? count : 0;
    return *dst != NULL;
}

static bool own_trace(struct kept *k, const struct tj_trace *t) {
    uint32_t cap = 0;
    tj_trace_init(&k->own);
    if (!tj_trace_copy(&k->own, t))
        return false;
    for (tj_ref i = 0; i < t->nnodes; i++) {
        const char *f = k->own.locs[i].file, *copy = NULL;
        for (uint32_t s = 0; f && !copy && s < k->nfiles; s++)
            copy = strcmp(k->files[s], f) ? NULL : k->files[s];
        if (f && !copy) {
            k->own.locs[i].file = NULL;
            if (!tj_grow((void **)&k->files, &cap, k->nfiles + 1, sizeof(char *)) ||
                !(k->files[k->nfiles] = tj_strdup(f))) {
                for (; i < t->nnodes; i++)
                    k->own.locs[i].file = NULL;
                return false;
            }
            copy = k->files[k->nfiles++];
        }
        k->own.locs[i].file = copy;
    }
    k->trace = &k->own;
    return true;
}

// t is what was recorded: a plan may have been made from a recording of other extents.
static bool keep_trace(struct kept *k, struct tj_entry *e, const struct tj_trace *t) {
    if (e) {
        (void)atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
        k->entry = e;
    }
    if (e && tj_trace_equal(&e->trace, t)) {
        k->trace = &e->trace;
        return true;
    }
    return own_trace(k, t);
}

// Finds, for every leaf of segment k that an earlier segment computed, its value there. seed: nodes of the run that the
// segment's nodes stand for, as far as known, NIL else; room for its nodes.
static bool link_leaves(struct tj_box *b, struct tj_warm *w, uint32_t k, tj_ref *seed) {
    const struct tj_run *run = &b->run;
    const struct tj_trace *s = w->segments[k].trace, *t = &run->trace;
    struct link *links = w->segments[k].links = tj_calloc(s->nleaves ? s->nleaves : 1, sizeof *links);
    if (!links)
        return false;
    for (tj_ref i = s->nnodes; i-- > 0;) {
        tj_ref r = seed[i];
        const struct tj_node *n = &s->nodes[i];
        if (n->op == TJ_OP_LEAF) {
            struct link *l = &links[((const struct tj_attr_leaf *)tj_node_attr(s, n))->index];
            *l = (struct link){NONE, 0};
            if (r == TJ_NIL)
                continue;
            if (r < b->nmark && b->origin[r].instance)
                *l = (struct link){b->origin[r].instance - 1, b->origin[r].sub};
            for (uint32_t j = 0; l->segment == NONE && j < b->ninstances; j++) { // a view that was read
                if (b->instances[j].target == r)
                    *l = (struct link){j, b->instances[j].record->target};
            }
            if (l->segment >= k)
                l->segment = NONE;
            continue;
        }
        if (r == TJ_NIL)
            continue;
        const struct tj_node *m = &t->nodes[r];
        const tj_ref *in = tj_node_in(s, n), *of = tj_node_in(t, m);
        bool computed = r >= b->nmark || b->origin[r].instance == k + 1 || run->values[r].state != TJ_V_STORED ||
                        k == b->ninstances;
        if (n->op == TJ_OP_COPY && (m->op != TJ_OP_COPY || !computed)) { // of a stored value that the segment writes to
            seed[in[0]] = r;
            continue;
        }
        for (uint32_t j = 0; n->op == m->op && n->nin == m->nin && j < n->nin; j++) {
            if (seed[in[j]] == TJ_NIL)
                seed[in[j]] = of[j];
        }
    }
    return true;
}

static bool keep_break(struct tj_box *b, struct tj_warm *w, uint32_t i) {
    const struct tj_instance *in = &b->instances[i];
    struct kept *k = &w->segments[i];
    (void)atomic_fetch_add_explicit(&in->record->refs, 1, memory_order_relaxed);
    k->record = in->record;
    k->first = i == 0;
    if (in->entry && tj_trace_equal(&in->entry->trace, &in->record->trace)) {
        if (!keep_trace(k, in->entry, &in->record->trace))
            return false;
    } else {
        k->trace = &in->record->trace;
    }
    tj_ref *seed = tj_malloc(k->trace->nnodes * sizeof *seed);
    if (!seed || !copy_refs(&k->outs, &k->nouts, b->musts + in->must, in->nmust)) {
        tj_free(seed);
        return false;
    }
    for (tj_ref n = 0; n < k->trace->nnodes; n++)
        seed[n] = TJ_NIL;
    if (in->record->target != TJ_NIL)
        seed[in->record->target] = in->target;
    for (tj_ref r = 0; r < b->nmark; r++) {
        if (b->origin[r].instance == i + 1 && seed[b->origin[r].sub] == TJ_NIL)
            seed[b->origin[r].sub] = r;
    }
    bool ok = link_leaves(b, w, i, seed);
    tj_free(seed);
    return ok;
}

static bool keep_last(struct tj_box *b, struct tj_warm *w, uint32_t nouts, uint32_t nwrites) {
    struct kept *k = &w->segments[b->ninstances];
    bool whole = !b->run.broke && !b->rolled;
    const struct tj_trace *t = whole ? &b->run.trace : &b->sub;
    const tj_ref *outs = whole ? b->outs : b->subouts, *writes = whole ? b->writes : b->subwrites;
    k->first = b->flushes == 0;
    tj_ref *seed = tj_malloc(t->nnodes * sizeof *seed);
    bool ok = seed && keep_trace(k, b->ended, t) && copy_refs(&k->outs, &k->nouts, outs, nouts) &&
              copy_refs(&k->writes, &k->nwrites, writes, nwrites);
    if (ok) {
        for (tj_ref n = 0; n < t->nnodes; n++)
            seed[n] = TJ_NIL;
        for (uint32_t i = 0; i < nouts; i++)
            seed[outs[i]] = b->outs[i];
        for (uint32_t i = 0; i < nwrites; i++)
            seed[writes[i]] = b->writes[i];
        ok = link_leaves(b, w, b->ninstances, seed);
    }
    tj_free(seed);
    return ok;
}

static bool keep_inputs(const struct tj_box *b, struct tj_warm *w) {
    const struct tj_trace *t = &b->run.trace;
    uint32_t n = w->declared = b->declared;
    w->inputs = tj_calloc(n ? n : 1, sizeof *w->inputs);
    w->dims = tj_calloc(n ? n : 1, TJ_MAX_RANK * sizeof *w->dims);
    if (!w->inputs || !w->dims)
        return false;
    for (uint32_t i = 0; i < n; i++)
        w->inputs[i] = (struct tj_profile_shape){i, 0, NO_SHAPE, w->dims + (size_t)i * TJ_MAX_RANK};
    for (uint32_t i = 0; i < t->nleaves && t->leafkeys[i].input; i++) {
        const struct tj_leaf_key *l = &t->leafkeys[i];
        if (l->input > n)
            continue;
        w->inputs[l->input - 1].dtype = l->dtype;
        w->inputs[l->input - 1].rank = l->rank;
        memcpy(w->dims + (size_t)(l->input - 1) * TJ_MAX_RANK, tj_shape_dims(t, l->shape), l->rank * sizeof *w->dims);
    }
    return true;
}

void tj_warm_keep(struct tj_box *b, uint32_t nouts, uint32_t nwrites) {
    struct trace_region *r = b->run.region;
    uint32_t n = b->ninstances + (nouts || nwrites);
    struct tj_warm *w = r->hidden || !n ? NULL : tj_calloc(1, sizeof *w);
    if (!w)
        return; // the one before stays
    atomic_init(&w->refs, 1);
    w->segments = tj_calloc(n, sizeof *w->segments);
    bool ok = w->segments && keep_inputs(b, w);
    w->nsegments = ok ? n : 0;
    for (uint32_t i = 0; ok && i < b->ninstances; i++)
        ok = keep_break(b, w, i);
    if (ok && (nouts || nwrites))
        ok = keep_last(b, w, nouts, nwrites);
    if (ok) {
        tj_profile_lock(&r->profile);
        struct tj_warm *old = r->warm;
        r->warm = w;
        tj_unlock(&r->profile.lock);
        w = old;
    }
    warm_put(w);
}

// ---- other shapes --------------------------------------------------------------------------------------------------

// A segment for the new shapes.
struct ahead {
    bool there; // its leaves' shapes are known
    struct tj_trace trace;
    tj_ref *at; // node of the recording -> node here
};

static const char *region_text(const struct trace_region *r, char *buf, size_t cap) {
    (void)snprintf(buf, cap, "region '%s'", r->name);
    return buf;
}

// Shapes of segment k's leaves; false: those of a value kept across a break aren't known.
static bool leaf_dims(const struct tj_warm *w, const struct ahead *a, uint32_t k, const int64_t *inputs, int64_t *dims,
                      bool *shared) {
    const struct tj_trace *t = w->segments[k].trace;
    for (uint32_t i = 0; i < t->nleaves; i++) {
        const struct tj_leaf_key *key = &t->leafkeys[i];
        const int64_t *d = tj_shape_dims(t, key->shape), *was = d;
        const struct link *l = &w->segments[k].links[i];
        if (key->input && key->input <= w->declared) {
            d = inputs + (size_t)(key->input - 1) * TJ_MAX_RANK;
        } else if (key->flags & TJ_LEAF_CARRIED) {
            if (l->segment == NONE || !a[l->segment].there)
                return false;
            const struct tj_trace *from = &a[l->segment].trace;
            const struct tj_node *n = &from->nodes[a[l->segment].at[l->node]];
            if (tj_shape_rank(from, n->shape) != key->rank)
                return false;
            d = tj_shape_dims(from, n->shape);
        }
        *shared |= key->group && !tj_same(d, was, key->rank * sizeof *d);
        if (key->rank)
            memcpy(dims + (size_t)i * TJ_MAX_RANK, d, key->rank * sizeof *d);
    }
    return true;
}

// Infers what the segments record over inputs of these shapes.
static tj_status infer(struct trace_region *r, const struct tj_warm *w, const int64_t *inputs, struct ahead *a) {
    size_t nmap = 0;
    struct tj_extent *map = tj_malloc((size_t)w->declared * TJ_MAX_RANK * sizeof *map);
    tj_status st = map ? TRACE_OK : TRACE_ERR_MEMORY;
    bool some = false;
    for (uint32_t i = 0; !st && i < w->declared; i++) {
        for (uint32_t d = 0; w->inputs[i].rank != NO_SHAPE && d < w->inputs[i].rank; d++)
            map[nmap++] = (struct tj_extent){w->inputs[i].dims[d], inputs[(size_t)i * TJ_MAX_RANK + d]};
    }
    for (uint32_t k = 0; !st && k < w->nsegments; k++) {
        const struct tj_trace *t = w->segments[k].trace;
        int64_t *dims = tj_malloc(t->nleaves * TJ_MAX_RANK * sizeof *dims);
        bool shared = false;
        a[k].at = tj_malloc(t->nnodes * sizeof *a[k].at);
        if (!dims || !a[k].at) {
            st = TRACE_ERR_MEMORY;
        } else if (leaf_dims(w, a, k, inputs, dims, &shared)) {
            if (shared)
                st = tj_fail(TRACE_ERR_SHAPE,
                             "region '%s': trace_warmup: an input shares memory with another tensor, and the region "
                             "writes it; warm up with placeholders through the body (trace_placeholder)",
                             r->name);
            else
                st = tj_trace_again(t, dims, map, nmap, &a[k].trace, a[k].at);
            a[k].there = !st;
            some |= !st;
            if (st && !shared) {
                char text[TJ_ERROR_MAX], name[200];
                (void)snprintf(text, sizeof text, "%s", tj_last_error());
                (void)tj_fail(st, "%s: trace_warmup: %s", region_text(r, name, sizeof name), text);
            }
        }
        tj_free(dims);
    }
    if (st == TRACE_ERR_MEMORY)
        (void)tj_fail(st, "region '%s': trace_warmup: out of memory", r->name);
    if (!st && !some)
        st =
            tj_fail(TRACE_ERR_STATE,
                    "region '%s': trace_warmup: the shapes of its recording can't be followed across its graph breaks; "
                    "warm up with placeholders through the body (trace_placeholder)",
                    r->name);
    tj_free(map);
    return st;
}

static void add_once(tj_ref *a, uint32_t *n, tj_ref v) {
    for (uint32_t i = 0; i < *n; i++) {
        if (a[i] == v)
            return;
    }
    a[(*n)++] = v;
}

// Makes the plan of one segment, as a run that comes to it would ask for it.
static tj_status plan(struct tj_box *b, const struct kept *k, struct ahead *a) {
    struct trace_region *r = b->run.region;
    struct tj_learned *from = k->record, *to = NULL;
    const tj_ref *writes = from ? from->writes : k->writes;
    uint32_t nwrites = from ? from->nwrites : k->nwrites, n = 0, nw = 0;
    tj_ref *outs = tj_malloc((k->nouts + k->trace->nnodes + 1) * sizeof *outs);
    tj_ref *ws = tj_malloc(nwrites * sizeof *ws);
    tj_status st = TRACE_ERR_MEMORY;
    struct tj_leaf *leaves = NULL;
    bool asked = false;
    if (!outs || !ws)
        goto out;
    for (uint32_t i = 0; i < nwrites; i++)
        ws[nw++] = a->at[writes[i]];
    if (from) { // the order of a break: what is read, what must be stored, what is used later
        tj_ref target = from->target == TJ_NIL ? TJ_NIL : a->at[from->target];
        to = tj_learned_get(r, &a->trace, target, ws, nw);
        if (!to)
            goto out;
        if (target != TJ_NIL)
            outs[n++] = target;
    }
    for (uint32_t i = 0; i < k->nouts; i++)
        add_once(outs, &n, a->at[k->outs[i]]);
    for (tj_ref i = 0; from && i < k->trace->nnodes; i++) {
        if (!(atomic_load_explicit(&from->used[i / 64], memory_order_relaxed) >> i % 64 & 1))
            continue;
        add_once(outs, &n, a->at[i]);
        (void)atomic_fetch_or_explicit(&to->used[a->at[i] / 64], (uint64_t)1 << a->at[i] % 64, memory_order_relaxed);
    }
    if (to)
        atomic_store_explicit(&to->learning, false, memory_order_relaxed);
    if (!tj_shadow_leaves(&a->trace, &leaves))
        goto out;
    struct tj_leaf *had = a->trace.leaves;
    a->trace.leaves = leaves;
    struct tj_segment s;
    struct tj_site site = {.kind = "end", .first = k->first, .like = k->entry, .ahead = true};
    struct tj_entry *e;
    tj_segment_fill(b, &s, &a->trace, outs, n, ws, nw);
    st = tj_segment_plan(b, &s, &site, true, &e);
    a->trace.leaves = had;
    asked = true;
out:
    if (!asked)
        (void)tj_fail(st, "region '%s': trace_warmup: out of memory", r->name);
    tj_learned_put(to);
    tj_free(outs);
    tj_free(ws);
    tj_free(leaves);
    return st;
}

// inputs: TJ_MAX_RANK extents a declared input.
static tj_status warm(struct tj_box *b, const struct tj_warm *w, const int64_t *inputs) {
    struct ahead *a = tj_calloc(w->nsegments, sizeof *a);
    if (!a)
        return tj_fail(TRACE_ERR_MEMORY, "trace_warmup: out of memory");
    tj_status st = infer(b->run.region, w, inputs, a);
    for (uint32_t k = 0; !st && k < w->nsegments; k++) {
        if (a[k].there)
            st = plan(b, &w->segments[k], &a[k]);
    }
    for (uint32_t k = 0; k < w->nsegments; k++) {
        tj_trace_free(&a[k].trace);
        tj_free(a[k].at);
    }
    tj_free(a);
    return st;
}

// ---- shapes that the host names ------------------------------------------------------------------------------------

static tj_status check_shape(const struct trace_region *r, const struct tj_warm *w, const trace_shape *s,
                             int64_t *inputs, bool *named) {
    char text[TJ_DIMS_TEXT];
    if (s->input < 0 || (uint32_t)s->input >= w->declared)
        return tj_fail(TRACE_ERR_ARGUMENT, "region '%s': trace_warmup: input %d is none; the recording has %u", r->name,
                       s->input, w->declared);
    const struct tj_profile_shape *was = &w->inputs[s->input];
    if (was->rank == NO_SHAPE)
        return tj_fail(TRACE_ERR_ARGUMENT,
                       "region '%s': trace_warmup: input %d was the same tensor as an earlier input when it was "
                       "recorded, and has no shape of its own",
                       r->name, s->input);
    if (named[s->input])
        return tj_fail(TRACE_ERR_ARGUMENT, "region '%s': trace_warmup: input %d is named twice", r->name, s->input);
    named[s->input] = true;
    if (s->rank != was->rank)
        return tj_fail(TRACE_ERR_SHAPE, "region '%s': trace_warmup: input %d has rank %d, but was recorded as %s",
                       r->name, s->input, s->rank, tj_dims_text(text, sizeof text, was->dims, was->rank));
    int64_t numel;
    size_t bytes;
    for (int d = 0; d < s->rank; d++) {
        if (s->dims[d] < 0)
            return tj_fail(TRACE_ERR_SHAPE, "region '%s': trace_warmup: input %d: extent %lld of dim %d is negative",
                           r->name, s->input, (long long)s->dims[d], d);
    }
    if (!tj_numel(s->dims, (size_t)s->rank, &numel) || !tj_tensor_bytes((tj_dtype)was->dtype, numel, &bytes))
        return tj_fail(TRACE_ERR_SHAPE, "region '%s': trace_warmup: input %d: the size of %s%s overflows", r->name,
                       s->input, tj_dtypes[was->dtype].name, tj_dims_text(text, sizeof text, s->dims, (size_t)s->rank));
    if (s->rank)
        memcpy(inputs + (size_t)s->input * TJ_MAX_RANK, s->dims, (size_t)s->rank * sizeof *inputs);
    return TRACE_OK;
}

// The declared bounds that the shapes are outside of, or NULL.
static const struct tj_bound_dim *outside(const struct trace_region *r, const struct tj_warm *w,
                                          const int64_t *inputs) {
    for (uint32_t i = 0; i < r->nbounds; i++) { // fixed since the first run
        const struct tj_bound_dim *d = &r->bounds[i];
        if (d->input >= w->declared || w->inputs[d->input].rank == NO_SHAPE || d->dim >= w->inputs[d->input].rank)
            continue;
        int64_t v = inputs[(size_t)d->input * TJ_MAX_RANK + d->dim];
        if (v < d->min || v > d->max)
            return d;
    }
    return NULL;
}

static tj_status check_bounds(const struct trace_region *r, const struct tj_warm *w, const int64_t *inputs) {
    const struct tj_bound_dim *d = outside(r, w, inputs);
    return !d ? TRACE_OK
              : tj_fail(
                    TRACE_ERR_SHAPE,
                    "region '%s': trace_warmup: dim %u of input %u is %lld, outside the declared bounds %lld to %lld",
                    r->name, d->dim, d->input, (long long)inputs[(size_t)d->input * TJ_MAX_RANK + d->dim],
                    (long long)d->min, (long long)d->max);
}

enum trace_status trace_warmup(trace_region *r, const trace_shape *shapes, size_t n) {
    if (!r)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_warmup: NULL region");
    if (n && !shapes)
        return tj_fail(TRACE_ERR_ARGUMENT, "region '%s': trace_warmup: %zu shapes announced, but their array is NULL",
                       r->name, n);
    if (r->opt.mode == TRACE_MODE_EAGER || r->ctx->env.disable)
        return tj_fail(TRACE_ERR_STATE,
                       "region '%s': trace_warmup: its ops run one by one, there is nothing to compile", r->name);
    struct tj_warm *w = warm_get(r);
    if (!w)
        return tj_fail(TRACE_ERR_STATE,
                       "region '%s': trace_warmup needs a recording: run the body once, or over placeholders "
                       "(trace_placeholder), which compiles and runs nothing",
                       r->name);
    size_t bytes = (size_t)w->declared * TJ_MAX_RANK * sizeof(int64_t);
    int64_t *inputs = tj_malloc(bytes);
    bool *named = tj_calloc(w->declared ? w->declared : 1, sizeof *named);
    tj_status st = TRACE_OK;
    struct tj_box *b = NULL;
    if (!inputs || !named) {
        st = tj_fail(TRACE_ERR_MEMORY, "region '%s': trace_warmup: out of memory", r->name);
    } else {
        memcpy(inputs, w->dims, bytes);
        for (size_t i = 0; !st && i < n; i++)
            st = check_shape(r, w, &shapes[i], inputs, named);
        if (!st)
            st = check_bounds(r, w, inputs);
    }
    if (!st && !(b = tj_run_open(r))) // counts what is made; waited for by a shutdown
        st = tj_last_status();
    if (!st) {
        b->declared = w->declared;
        st = warm(b, w, inputs);
    }
    if (b)
        tj_box_give(b);
    tj_free(inputs);
    tj_free(named);
    warm_put(w);
    return st;
}

// ---- the typical shapes of a profile -------------------------------------------------------------------------------

// The shapes of a combination as those of the recording's inputs; false: it's of other ranks or dtypes.
static bool row_shapes(const struct trace_region *r, const struct tj_warm *w, const struct tj_profile_combination *row,
                       int64_t *inputs) {
    uint32_t shapes = 0;
    for (uint32_t i = 0; i < w->declared; i++)
        shapes += w->inputs[i].rank != NO_SHAPE;
    if (row->ninputs != shapes)
        return false;
    for (uint32_t i = 0; i < row->ninputs; i++) {
        const struct tj_profile_shape *s = &row->inputs[i];
        if (s->input >= w->declared || w->inputs[s->input].rank != s->rank || w->inputs[s->input].dtype != s->dtype)
            return false;
        memcpy(inputs + (size_t)s->input * TJ_MAX_RANK, s->dims, s->rank * sizeof *inputs);
    }
    return !outside(r, w, inputs);
}

static tj_status warm_typical(struct tj_box *b, const struct tj_warm *w) {
    struct trace_region *r = b->run.region;
    struct tj_profile_view v;
    uint32_t most = r->opt.max_graphs / 2, made = 0;
    most = most < 1 ? 1 : most < TYPICAL ? most : TYPICAL;
    int64_t *inputs = tj_malloc((size_t)w->declared * TJ_MAX_RANK * sizeof *inputs);
    tj_status st = inputs && tj_profile_read(r, &v) ? TRACE_OK : TRACE_ERR_MEMORY;
    if (!inputs)
        (void)tj_fail(st, "region '%s': out of memory for the shapes of its profile", r->name);
    for (uint32_t i = 0; !st && i < v.n && made < most; i++) {
        if (!row_shapes(r, w, &v.rows[i], inputs))
            continue;
        st = warm(b, w, inputs);
        if (st == TRACE_ERR_SHAPE || st == TRACE_ERR_STATE) // the model of that profile was another one
            st = TRACE_OK;
        else
            made++;
    }
    if (inputs)
        tj_profile_view_free(&v);
    tj_free(inputs);
    return st;
}

void tj_warm_pending(struct tj_box *b) {
    struct trace_region *r = b->run.region;
    struct tj_warm *w = warm_get(r);
    if (!w)
        return;
    if (atomic_exchange(&r->warm_pending, false))
        (void)warm_typical(b, w); // a plan that could not be made is made by the run that needs it, and that run tells
    warm_put(w);
}

tj_status tj_warm_loaded(struct trace_region *r) {
    struct tj_warm *w = warm_get(r);
    atomic_store(&r->warm_pending, true);
    if (!w)
        return TRACE_OK;
    tj_status st = TRACE_OK;
    struct tj_box *b = tj_run_open(r);
    if (!b)
        st = tj_last_status();
    else {
        b->declared = w->declared;
        if (atomic_exchange(&r->warm_pending, false))
            st = warm_typical(b, w);
        tj_box_give(b);
    }
    warm_put(w);
    return st;
}
