// trace/bind.c: bound plans: what a run recorded, pinned to its tensors, to be run without a check.
//
// A bound plan holds its tensors and their storages, so nothing it touches can go or move: trace_write to a pinned
// storage writes in place, and what it has a packed copy of can't be written. All that a run of it does is to set the
// floating-point environment and to call kernels.
#include "record.h"
#include "region.h"

struct pin {
    struct tj_storage *st;       // a reference
    struct trace_tensor *source; // the host's handle, a reference; NULL: memory that several handles cover
    bool written, packed;
};
struct trace_bound {
    struct tj_bound_plan *plan;
    void (*run)(struct tj_bound_plan *plan);
    struct tj_data_error err;    // of the last run
    struct tj_entry *entry;      // a reference: its trace names ops and lines
    struct trace_region *region; // a reference
    bool host_pool;              // it runs on the host's parallel_for
    uint32_t npins;
    struct pin pins[];
};

static tj_status check_options(const trace_bind_options *o, trace_bind_options *opt) {
    memset(opt, 0, sizeof *opt);
    tj_status s = o ? tj_options_copy(opt, sizeof *opt, o, "trace_bind_options") : TRACE_OK;
    if (s)
        return s;
    if (!opt->memory && opt->memory_bytes)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_end_bind: memory_bytes is %zu and memory is NULL", opt->memory_bytes);
    if ((uintptr_t)opt->memory % TJ_ALIGN)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_end_bind: the workspace at %p is not aligned to %d bytes",
                       opt->memory, TJ_ALIGN);
    return TRACE_OK;
}

static tj_status check_run(struct tj_box *b, struct tj_loc loc) {
    struct tj_run *run = &b->run;
    char where[300];
    if (run->eager)
        return run->region->opt.mode == TRACE_MODE_EAGER
                   ? tj_op_fail(TRACE_ERR_STATE, "trace_end_bind", loc, "the region is eager, its ops have run already")
                   : tj_op_fail(TRACE_ERR_UNAVAILABLE, "trace_end_bind", loc, "TRACEJIT_DISABLE is set");
    if (b->flushes || run->broke)
        return tj_op_fail(TRACE_ERR_BREAK, "trace_end_bind", loc,
                          "the body has a graph break: %s (%s) needed a value; a bound plan runs as a whole",
                          b->broke_call ? b->broke_call : "a readback",
                          tj_loc_text(b->broke_at, where, sizeof where)[0] ? where : "place unknown");
    if (b->ndeferred)
        return tj_op_fail(TRACE_ERR_BREAK, "trace_end_bind", loc,
                          "%s (%s) reads a value back; a bound plan's results come by trace_copy_ alone",
                          b->deferred[0].print ? "trace_print_later" : "trace_item_later",
                          tj_loc_text(b->deferred[0].loc, where, sizeof where)[0] ? where : "place unknown");
    if (run->compile_only)
        return tj_op_fail(TRACE_ERR_STATE, "trace_end_bind", loc,
                          "a placeholder is among the tensors: there is no memory to bind to");
    return TRACE_OK;
}

// The host's handle that leaf i of the segment was captured from.
static struct trace_tensor *source_of(const struct tj_box *b, const struct tj_trace *t, uint32_t i) {
    const struct tj_trace *all = &b->run.trace;
    if (t->leaves[i].source)
        return t->leaves[i].source;
    for (uint32_t k = 0; k < all->nleaves; k++) {
        if (all->leaves[k].tensor == t->leaves[i].tensor)
            return all->leaves[k].source;
    }
    return NULL;
}

static bool group_written(const struct tj_trace *t, uint32_t i) {
    if (t->leafkeys[i].flags & TJ_LEAF_WRITTEN)
        return true;
    for (uint32_t k = 0; k < t->nleaves && t->leafkeys[i].group; k++) {
        if (t->leafkeys[k].group == t->leafkeys[i].group && t->leafkeys[k].flags & TJ_LEAF_WRITTEN)
            return true;
    }
    return false;
}

static void unpin(trace_context *ctx, struct trace_bound *p) {
    tj_lock(&ctx->lock);
    for (uint32_t i = 0; i < p->npins; i++) {
        struct tj_storage *st = p->pins[i].st;
        if (p->pins[i].written) {
            (void)atomic_fetch_add(&st->version, 1); // packed copies made before are out of date
            (void)atomic_fetch_sub(&st->pins_written, 1);
        }
        if (p->pins[i].packed)
            (void)atomic_fetch_sub(&st->pins_packed, 1);
        (void)atomic_fetch_sub(&st->pins, 1);
    }
    tj_unlock(&ctx->lock);
    for (uint32_t i = 0; i < p->npins; i++) {
        tj_storage_drop(p->pins[i].st);
        if (p->pins[i].source)
            tj_tensor_drop(p->pins[i].source);
    }
    p->npins = 0;
}

// Takes hold of the storages of the segment's leaves. The lock orders it against trace_write, which may be about to
// give a tensor other memory, and against other binds.
static tj_status pin(struct tj_box *b, const struct tj_trace *t, struct trace_bound *p, struct tj_loc loc) {
    trace_context *ctx = b->run.ctx;
    bool moved = false, packed = false;
    tj_lock(&ctx->lock);
    for (uint32_t i = 0; i < t->nleaves && !moved && !packed; i++) {
        struct tj_storage *st = t->leaves[i].tensor->st;
        struct trace_tensor *source = source_of(b, t, i);
        bool written = group_written(t, i);
        moved = source && __atomic_load_n(&source->st, __ATOMIC_RELAXED) != st;
        packed = written && atomic_load(&st->pins_packed);
        if (moved || packed)
            break;
        p->pins[p->npins++] = (struct pin){.st = st, .source = source, .written = written};
        (void)atomic_fetch_add_explicit(&st->refs, 1, memory_order_relaxed);
        if (source)
            (void)atomic_fetch_add_explicit(&source->refs, 1, memory_order_relaxed);
        (void)atomic_fetch_add(&st->pins, 1);
        if (written) {
            (void)atomic_fetch_add(&st->pins_written, 1);
            (void)atomic_fetch_add(&st->version, 1);
        }
    }
    tj_unlock(&ctx->lock);
    if (moved)
        return tj_op_fail(TRACE_ERR_STATE, "trace_end_bind", loc,
                          "a tensor was given new content (trace_write) after ops that read the old one were recorded");
    if (packed)
        return tj_op_fail(TRACE_ERR_BUSY, "trace_end_bind", loc,
                          "the body writes a tensor of which another live bound plan has a packed copy; release that "
                          "one before, or write outside of both");
    return TRACE_OK;
}

// What the plan has packed must not change from now on.
static tj_status pin_packed(trace_context *ctx, struct trace_bound *p, const bool *packed, struct tj_loc loc) {
    tj_status s = TRACE_OK;
    tj_lock(&ctx->lock);
    for (uint32_t i = 0; i < p->npins && !s; i++) {
        if (!packed[i])
            continue;
        if (atomic_load(&p->pins[i].st->pins_written)) {
            s = TRACE_ERR_BUSY;
        } else {
            p->pins[i].packed = true;
            (void)atomic_fetch_add(&p->pins[i].st->pins_packed, 1);
        }
    }
    tj_unlock(&ctx->lock);
    return s ? tj_op_fail(s, "trace_end_bind", loc, "a weight is written by a plan bound meanwhile") : TRACE_OK;
}

static tj_status no_plan(struct tj_box *b, struct tj_loc loc) {
    trace_context *ctx = b->run.ctx;
    if (!tj_context_backend(ctx, b->run.region))
        return tj_op_fail(TRACE_ERR_UNAVAILABLE, "trace_end_bind", loc, "no compiler: %s", ctx->backend_why);
    if (!ctx->backend->bind)
        return tj_op_fail(TRACE_ERR_UNAVAILABLE, "trace_end_bind", loc, "the %s backend has no bound plans",
                          ctx->backend->name);
    return tj_op_fail(TRACE_ERR_COMPILE, "trace_end_bind", loc,
                      "the graph could not be compiled (the fallback event has the reason), and the interpreter "
                      "allocates");
}

tj_status tj_bind(struct tj_box *b, const trace_bind_options *o, trace_bound **out, struct tj_loc loc) {
    struct trace_region *r = b->run.region;
    trace_context *ctx = r->ctx;
    trace_bind_options opt;
    struct tj_segment seg;
    struct tj_entry *e;
    uint32_t nwrites;
    tj_status s = check_options(o, &opt);
    if (!s)
        s = check_run(b, loc);
    if (!s && !tj_pending_writes(b, &nwrites))
        s = tj_fail(TRACE_ERR_MEMORY, "trace_end_bind: out of memory");
    if (!s && !nwrites)
        s = tj_op_fail(TRACE_ERR_ARGUMENT, "trace_end_bind", loc,
                       "the body writes nothing: results of a bound plan come by trace_copy_ and other in-place ops");
    struct tj_site site = {loc, "end", true, NULL, false};
    if (!s)
        s = tj_break_plan(b, 0, nwrites, &site, &seg, &e);
    for (int i = 0; i < 3 && r->opt.background && (s == TRACE_ERR_BUSY || (!s && !e)); i++) { // a bind waits
        (void)trace_wait_ready(r, -1); // a compile that failed is told by what follows
        s = tj_break_plan(b, 0, nwrites, &site, &seg, &e);
    }
    if (!s && !e && r->opt.background)
        s = tj_fail(TRACE_ERR_BUSY, "trace_end_bind: the plan is being compiled in the background");
    if (s)
        return s;
    if (!e || !e->plan || !ctx->backend->bind)
        return no_plan(b, loc);
    if (tj_checks(r) && (s = tj_check_bind(b, &seg, e)))
        return s;
    uint32_t n = seg.trace->nleaves;
    struct trace_bound *p = tj_calloc(1, sizeof *p + n * sizeof p->pins[0]);
    bool *packed = tj_calloc(n, sizeof *packed);
    if (!p || !packed) {
        tj_free(p);
        tj_free(packed);
        return tj_fail(TRACE_ERR_MEMORY, "trace_end_bind: out of memory");
    }
    struct tj_run_args args = {
        .ctx = ctx, .trace = seg.trace, .leaves = seg.trace->leaves, .params = seg.trace->params, .err = &p->err};
    struct tj_bind ask = {opt.memory, opt.memory_bytes, opt.use_pool, 0, packed};
    s = pin(b, seg.trace, p, loc);
    if (!s) {
        s = ctx->backend->bind(e->plan, &args, &ask, &p->plan);
        // Known even when it was too small: the host can try again.
        if (ask.need)
            atomic_store(&r->bound_bytes, ask.need);
    }
    if (!s)
        s = pin_packed(ctx, p, packed, loc);
    tj_free(packed);
    if (s) {
        if (p->plan)
            ctx->backend->bound_release(p->plan);
        unpin(ctx, p);
        tj_free(p);
        return s;
    }
    p->run = ctx->backend->bound_run;
    p->host_pool = opt.use_pool && ctx->opt.parallel_for;
    p->entry = e;
    p->region = r;
    (void)atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    (void)atomic_fetch_add(&r->refs, 1);
    *out = p;
    return TRACE_OK;
}

tj_status trace_bound_run(trace_bound *b) {
    if (TJ_UNLIKELY(!b))
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_bound_run: the bound plan is NULL");
    if (TJ_UNLIKELY(atomic_load_explicit(&tj_replay_regions, memory_order_relaxed)))
        tj_host_effect("trace_bound_run", TJ_LOC(NULL, 0));
    tj_fpenv env;
    tj_fpenv_enter(&env);
    b->run(b->plan);
    tj_fpenv_leave(&env);
    char fault[200];
    if (TJ_UNLIKELY(b->host_pool) && tj_pool_fault(fault, sizeof fault))
        return tj_fail(TRACE_ERR_STATE, "%s", fault);
    if (TJ_LIKELY(!atomic_load_explicit(&b->err.set, memory_order_acquire)))
        return TRACE_OK;
    tj_status s = tj_segment_error(&b->entry->seg, &b->err);
    atomic_store(&b->err.set, 0);
    return s;
}

void trace_bound_release(trace_bound *b) {
    if (!b)
        return;
    struct trace_region *r = b->region;
    r->ctx->backend->bound_release(b->plan);
    unpin(r->ctx, b);
    tj_entry_put(b->entry);
    tj_free(b);
    tj_region_drop(r);
}

size_t trace_region_workspace(const trace_region *region) {
    if (!region)
        return 0;
    trace_region *r = (trace_region *)(uintptr_t)region; // atomics are read through non-const pointers
    size_t n = atomic_load(&r->bound_bytes);
    return n ? n : atomic_load(&r->plan_bytes);
}
