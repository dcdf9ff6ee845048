// trace/region.c: regions and their runs: begin, end, nesting, abandon, errors.
#include <stdarg.h>
#include <stdio.h>

#include "profile.h"
#include "record.h"
#include "repeat.h"
#include "timeline.h"
#include "warmup.h"

_Thread_local struct tj_run *tj_current, *tj_executing;

// A begin that could not even open a run: trace_end tells why.
static _Thread_local struct {
    const struct trace_region *region;
    tj_status status;
} refused;

// ---- errors ---------------------------------------------------------------------------------------------------------

tj_status tj_op_fail(tj_status st, const char *op, struct tj_loc loc, const char *fmt, ...) {
    struct tj_run *run = tj_current;
    if (run && run->failed)
        return run->failed; // the first error stays
    char text[TJ_ERROR_MAX], where[300];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0)
        text[0] = '\0';
    va_end(ap);
    (void)tj_loc_text(loc, where, sizeof where);
    if (where[0])
        (void)tj_fail(st, "%s (%s): %s", op, where, text);
    else
        (void)tj_fail(st, "%s: %s", op, text);
    if (run) {
        run->failed = st;
        (void)snprintf(run->error, sizeof run->error, "%s", tj_last_error());
    }
    return st;
}

// Makes the thread's last error the run's.
static tj_status run_error(struct tj_run *run) {
    if (!run->failed) {
        run->failed = tj_last_status() ? tj_last_status() : TRACE_ERR_STATE;
        (void)snprintf(run->error, sizeof run->error, "%s", tj_last_error());
    }
    return run->failed;
}

// The error of a run as trace_end reports it.
static tj_status report_error(const struct trace_region *r, struct tj_loc begin, tj_status st, const char *text) {
    char where[300];
    (void)tj_loc_text(begin, where, sizeof where);
    if (!strncmp(text, "region '", 8))
        return tj_fail(st, "%s", text);
    if (where[0])
        return tj_fail(st, "region '%s' (%s): %s", r->name, where, text);
    return tj_fail(st, "region '%s': %s", r->name, text);
}

// ---- runs inside each other ----------------------------------------------------------------------------------------

// The scope that was the innermost one when *run's scope *at was begun; false: none was.
static bool step_out(struct tj_run **run, uint32_t *at) {
    struct tj_run *r = *run;
    if (r->nscopes) {
        *run = r->scopes[*at].resume;
        *at = r->scopes[*at].resume_at;
    } else { // of an op alone
        *run = r->outer;
        *at = tj_run_top(r->outer);
    }
    return *run != NULL;
}

struct tj_run *tj_run_find(const trace_context *ctx) {
    struct tj_run *run = tj_current;
    uint32_t at = tj_run_top(run);
    while (run && run->ctx != ctx && step_out(&run, &at))
        continue;
    return run;
}

struct tj_run *tj_run_of_other(const trace_tensor *t) {
    if (t == TRACE_NONE)
        return tj_current;
    if (!tj_is_value(t))
        return tj_run_find(t->ctx);
    struct tj_run *run = tj_current;
    uint32_t at = tj_run_top(run);
    while (run && run->generation != (uint64_t)(uintptr_t)t >> 25 && step_out(&run, &at))
        continue;
    return run ? run : tj_current;
}

static _Thread_local uint64_t foreign; // tj_failures of the last failure in another context; 0: none

void tj_failed_in(const trace_context *ctx) {
    if (ctx && tj_current && tj_current->ctx != ctx)
        foreign = tj_failures();
}

bool tj_failed_elsewhere(void) { return foreign && foreign == tj_failures(); }

void tj_run_foreign(struct tj_run *run, struct tj_loc loc) {
    if (run && !run->host_call) {
        run->host_call = "an op or a region of another context";
        run->host_at = loc;
    }
}

struct tj_run *tj_run_go(const trace_tensor *t, struct tj_loc loc) {
    struct tj_run *back = tj_run_switch(tj_run_of(t));
    if (TJ_UNLIKELY(back != tj_current))
        tj_run_foreign(back, loc);
    return back;
}

// ---- generations ----------------------------------------------------------------------------------------------------

#define GENERATION_BITS 39
#define GENERATION_BLOCK 4096
static _Atomic uint64_t generations;
static _Atomic uint32_t threads_seen;
static _Thread_local struct {
    uint64_t next, end; // generations left of this thread's block
    uint32_t slot;      // number of the thread + 1
} mine;

static uint64_t next_generation(void) {
    if (mine.next == mine.end) {
        mine.next = atomic_fetch_add_explicit(&generations, GENERATION_BLOCK, memory_order_relaxed);
        mine.end = mine.next + GENERATION_BLOCK;
    }
    return mine.next++ & (((uint64_t)1 << GENERATION_BITS) - 1);
}

static uint32_t thread_slot(void) {
    if (!mine.slot)
        mine.slot = atomic_fetch_add_explicit(&threads_seen, 1, memory_order_relaxed) % TJ_SLOTS + 1;
    return mine.slot - 1;
}

// ---- run objects ----------------------------------------------------------------------------------------------------

// Frees the arrays of an idle run object; its next run begins with none.
static void box_clear(struct tj_box *b) {
#define DROP(array, cap) (tj_free((void *)b->array), b->array = NULL, b->cap = 0)
    for (size_t i = 0; i < TJ_HINTS; i++) {
        tj_entry_put(b->hints[i]);
        b->hints[i] = NULL;
    }
    for (size_t i = 0; i < TJ_PREDICT; i++) {
        tj_entry_put(b->predict[i]);
        b->predict[i] = NULL;
    }
    tj_run_free(&b->run);
    tj_trace_free(&b->sub);
    DROP(run.scopes, run.capscopes);
    DROP(outs, capouts);
    DROP(writes, capwrites);
    DROP(subouts, capsubouts);
    DROP(subwrites, capsubwrites);
    DROP(stored, capstored);
    DROP(outt, capoutt);
    DROP(outmap, capoutmap);
    DROP(handles, caphandles);
    DROP(map, capmap);
    DROP(mark, capmark);
    DROP(need, capneed);
    DROP(path, cappath);
    DROP(uses, capuses);
    DROP(first_use, capfirst_use);
    DROP(last_use, caplast_use);
    DROP(same_root, capsame_root);
    DROP(last_root, caplast_root);
    DROP(origin, caporigin);
    DROP(groups, capgroups);
    DROP(instances, capinstances);
    DROP(musts, capmusts);
    DROP(deferred, capdeferred);
    DROP(pool, cappool);
    tj_replay_box_clear(b);
#undef DROP
    b->lean = 0;
}

static void box_free(struct tj_box *b) {
    box_clear(b);
    tj_replay_box_free(b);
    tj_profile_box_free(b);
    tj_free(b);
}

static struct tj_box *box_new(struct trace_region *r) {
    struct tj_box *b = tj_calloc(1, sizeof *b);
    if (!b) {
        (void)tj_fail(TRACE_ERR_MEMORY, "region '%s': out of memory for a run", r->name);
        return NULL;
    }
    tj_trace_init(&b->run.trace);
    tj_trace_init(&b->sub);
    b->run.extra = b;
    b->run.region = r;
    b->run.ctx = r->ctx;
    atomic_init(&b->state, TJ_BOX_ACTIVE);
    return b;
}

struct tj_box *tj_box_take(struct trace_region *r) {
    uint32_t first = thread_slot();
    struct tj_box *b = NULL;
    for (uint32_t k = 0; k < TJ_SLOTS; k++) {
        _Atomic(struct tj_box *) *slot = &r->slots[(first + k) % TJ_SLOTS];
        b = atomic_load_explicit(slot, memory_order_acquire);
        if (!b) {
            struct tj_box *none = NULL;
            b = box_new(r);
            if (!b)
                return NULL;
            b->pooled = true;
            if (atomic_compare_exchange_strong(slot, &none, b))
                goto taken;
            box_free(b);
            b = none;
        }
        int idle = TJ_BOX_IDLE;
        if (atomic_compare_exchange_strong(&b->state, &idle, TJ_BOX_ACTIVE))
            goto taken;
    }
    b = box_new(r); // more threads than slots
    if (!b)
        return NULL;
    (void)atomic_fetch_add(&r->refs, 1);
    tj_context_lock(r->ctx);
    b->next_extra = r->extra;
    if (r->extra)
        r->extra->prev_extra = b;
    r->extra = b;
    atomic_store(&b->process, tj_process());
    tj_unlock(&r->ctx->lock);
taken:
    atomic_store_explicit(&b->process, tj_process(), memory_order_relaxed);
    b->run.process = tj_process();
    b->run.generation = next_generation();
    return b;
}

void tj_box_give(struct tj_box *b) {
    struct trace_region *r = b->run.region;
    if (b->pooled && TJ_LIKELY(atomic_exchange(&b->state, TJ_BOX_IDLE) != TJ_BOX_ORPHAN))
        return;
    // The region was released meanwhile, or has no slot for it: its totals go to the region, which may go next.
    tj_context_lock(r->ctx);
    tj_stats_add(&r->count, &b->count);
    for (size_t i = 0; b->pooled && i < TJ_SLOTS; i++) {
        if (atomic_load(&r->slots[i]) == b)
            atomic_store(&r->slots[i], NULL);
    }
    if (!b->pooled) {
        *(b->prev_extra ? &b->prev_extra->next_extra : &r->extra) = b->next_extra;
        if (b->next_extra)
            b->next_extra->prev_extra = b->prev_extra;
    }
    tj_unlock(&r->ctx->lock);
    box_free(b);
    tj_region_drop(r);
}

// An idle run object in the caller's hands, given back by tj_box_give; NULL: it's in use, or there is none.
static struct tj_box *take_idle(struct trace_region *r, uint32_t slot) {
    struct tj_box *b = atomic_load_explicit(&r->slots[slot], memory_order_acquire);
    int idle = TJ_BOX_IDLE;
    if (!b || !atomic_compare_exchange_strong(&b->state, &idle, TJ_BOX_ACTIVE))
        return NULL;
    atomic_store_explicit(&b->process, tj_process(), memory_order_relaxed);
    b->run.process = tj_process();
    return b;
}

void tj_region_trim(struct trace_region *r) {
    for (uint32_t i = 0; i < TJ_SLOTS; i++) {
        struct tj_box *b = take_idle(r, i);
        if (!b)
            continue;
        box_clear(b);
        tj_box_give(b);
    }
}

void tj_region_forget(struct trace_region *r, const struct tj_entry *e) {
    if (r->opt.mode == TRACE_MODE_REPLAY)
        tj_replay_forget(r, e);
    for (uint32_t i = 0; i < TJ_SLOTS; i++) {
        struct tj_box *b = take_idle(r, i);
        if (!b)
            continue;
        for (size_t k = 0; k < TJ_HINTS + TJ_PREDICT; k++) {
            struct tj_entry **hint = k < TJ_HINTS ? &b->hints[k] : &b->predict[k - TJ_HINTS];
            if (*hint != e)
                continue;
            tj_entry_put(*hint);
            *hint = NULL;
        }
        tj_replay_box_forget(b, e);
        tj_box_give(b);
    }
}

// ---- regions --------------------------------------------------------------------------------------------------------

#define DEFAULT_GRAPHS 64
#define EAGER_GRAPHS 512
#define MAX_GRAPHS (1u << 20)
#define MAX_INPUT 65535
#define LARGE_TRACE 16384 // nodes that a run object keeps room for, whatever its runs need
#define LEAN_RUNS 64      // runs that need at most a quarter of more, until it is given up

tj_status tj_region_new(trace_context *ctx, const char *name, const trace_region_options *opt, bool hidden,
                        struct trace_region **out) {
    struct trace_region *r = tj_calloc(1, sizeof *r);
    char *copy = r ? tj_strdup(name) : NULL;
    if (!copy) {
        tj_free(r);
        return tj_fail(TRACE_ERR_MEMORY, "trace_region_create: out of memory");
    }
    if (opt)
        r->opt = *opt;
    if (!r->opt.max_graphs)
        r->opt.max_graphs = hidden ? EAGER_GRAPHS : DEFAULT_GRAPHS;
    tj_status s = tj_cache_init(&r->cache, r->opt.max_graphs);
    if (s) {
        tj_free(copy);
        tj_free(r);
        return s;
    }
    atomic_init(&r->refs, 1);
    r->ctx = ctx;
    r->name = copy;
    r->hidden = hidden;
    r->born_ticks = tj_ticks();
    r->born_ns = tj_now_ns();
    (void)atomic_fetch_add(&tj_replay_regions, r->opt.mode == TRACE_MODE_REPLAY);
    if (!hidden) {
        tj_context_retain(ctx);
        tj_context_lock(ctx);
        r->next = ctx->regions;
        if (r->next)
            r->next->prev = r;
        ctx->regions = r;
        tj_unlock(&ctx->lock);
    }
    *out = r;
    return TRACE_OK;
}

static tj_status check_options(const trace_region_options *o) {
    if ((int)o->mode < TRACE_MODE_RECORD || o->mode > TRACE_MODE_EAGER)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_create: mode %d is none", (int)o->mode);
    if (o->dynamic < TRACE_DYNAMIC_AUTO || o->dynamic > TRACE_DYNAMIC_ON)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_create: dynamic %d is none", o->dynamic);
    if (o->math < TRACE_MATH_STRICT || o->math > TRACE_MATH_FAST)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_create: math %d is none", o->math);
    if (o->matmul_precision < TRACE_PRECISION_F32 || o->matmul_precision > TRACE_PRECISION_F16)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_create: matmul_precision %d is none", o->matmul_precision);
    if (o->threads < 0)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_create: threads is %d; 0 is the context's", o->threads);
    if (o->background_policy < TRACE_POLICY_AUTO || o->background_policy > TRACE_POLICY_FAIL)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_create: background_policy %d is none", o->background_policy);
    if (o->max_graphs > MAX_GRAPHS)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_create: max_graphs is %u, above %u", (unsigned)o->max_graphs,
                       MAX_GRAPHS);
    return TRACE_OK;
}

tj_status trace_region_create(trace_context *ctx, const char *name, const trace_region_options *options,
                              trace_region **out) {
    if (!out)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_create: no place for the region (NULL)");
    *out = NULL;
    if (!ctx)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_create: NULL context");
    trace_region_options opt = {0};
    if (options) {
        tj_status s = tj_options_copy(&opt, sizeof opt, options, "trace_region_options");
        if (!s)
            s = check_options(&opt);
        if (s)
            return s;
    }
    opt.size = sizeof opt;
    if (atomic_load(&ctx->shut))
        return tj_fail(TRACE_ERR_SHUTDOWN, "trace_region_create: the context was shut down");
    return tj_region_new(ctx, name ? name : "unnamed", &opt, false, out);
}

bool tj_region_retain_live(struct trace_region *r) {
    int n = atomic_load(&r->refs);
    while (n > 0 && !atomic_compare_exchange_weak(&r->refs, &n, n + 1))
        continue;
    return n > 0;
}

void tj_region_drop(struct trace_region *r) {
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
        return;
    trace_context *ctx = r->ctx;
    if (!r->hidden) {
        tj_context_lock(ctx);
        tj_stats_sum(r, &ctx->count);
        if (r->prev)
            r->prev->next = r->next;
        else
            ctx->regions = r->next;
        if (r->next)
            r->next->prev = r->prev;
        tj_budget_gone(r); // no limit counts plans of a region that isn't listed
        tj_unlock(&ctx->lock);
    }
    for (size_t i = 0; i < TJ_SLOTS; i++) {
        struct tj_box *b = atomic_load(&r->slots[i]);
        if (b)
            box_free(b);
    }
    tj_replay_region_free(r);
    tj_warm_free(r);
    tj_profile_free(r);
    tj_cache_free(&r->cache);
    tj_free(r->bounds);
    tj_bucket_free(r);
    bool hidden = r->hidden;
    (void)atomic_fetch_sub(&tj_replay_regions, r->opt.mode == TRACE_MODE_REPLAY);
    tj_free(r->name);
    tj_free(r);
    if (!hidden) {
        (void)tj_buffers_trim(ctx, false); // what it needed at most counts no more
        tj_context_release(ctx);
    }
}

void trace_region_release(trace_region *r) {
    if (!r)
        return;
    tj_background_forget(r);
    // Open runs become the owners: each drops a reference when it ends.
    for (size_t i = 0; i < TJ_SLOTS; i++) {
        struct tj_box *b = atomic_load(&r->slots[i]);
        if (!b)
            continue;
        (void)atomic_fetch_add(&r->refs, 1);
        if (atomic_exchange(&b->state, TJ_BOX_ORPHAN) == TJ_BOX_IDLE) {
            atomic_store(&b->state, TJ_BOX_IDLE); // a bound plan may keep the region: no run of it is open
            (void)atomic_fetch_sub(&r->refs, 1);
        }
    }
    tj_region_drop(r);
}

// ---- opening --------------------------------------------------------------------------------------------------------

static void text_of(struct tj_scope *sc, tj_status st) {
    sc->skipped = true;
    sc->status = st;
    sc->text = tj_strdup(tj_last_error());
}

static bool push_scope(struct tj_box *b, struct trace_region *r, struct tj_loc loc) {
    struct tj_run *run = &b->run;
    if (!tj_grow((void **)&run->scopes, &run->capscopes, run->nscopes + 1, sizeof *run->scopes)) {
        (void)tj_fail(TRACE_ERR_MEMORY, "trace_begin: out of memory");
        return false;
    }
    uint32_t at = tj_run_top(tj_current);
    if (run->nscopes) // an inlined region may be released before its end; the outermost one is kept by its run object
        (void)atomic_fetch_add(&r->refs, 1);
    run->scopes[run->nscopes++] = (struct tj_scope){.region = r,
                                                    .begin = loc,
                                                    .resume = tj_current,
                                                    .resume_at = at,
                                                    .fullgraph = r->opt.fullgraph,
                                                    .mark = run->trace.nnodes,
                                                    .ndeferred = b->ndeferred,
                                                    .npool = b->npool,
                                                    .nloops = run->nloops,
                                                    .flushes = b->flushes};
    return true;
}

// Extents within the bounds of trace_region_dynamic.
static bool check_bounds(struct trace_region *r, trace_tensor *const *in, size_t n, struct tj_loc loc) {
    for (uint32_t i = 0; i < r->nbounds; i++) {
        const struct tj_bound_dim *d = &r->bounds[i];
        int rank = d->input < n ? trace_rank(in[d->input]) : -1;
        int64_t is = rank > (int)d->dim ? trace_size(in[d->input], d->dim) : -1;
        if (d->input >= n)
            (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_begin", loc,
                             "bounds are declared for input %u, but there are %zu inputs", d->input, n);
        else if (rank <= (int)d->dim)
            (void)tj_op_fail(TRACE_ERR_SHAPE, "trace_begin", loc,
                             "input %u has rank %d, but bounds are declared for its dim %u", d->input, rank, d->dim);
        else if (is < d->min || is > d->max)
            (void)tj_op_fail(TRACE_ERR_SHAPE, "trace_begin", loc,
                             "dim %u of input %u is %lld, outside the declared bounds %lld to %lld", d->dim, d->input,
                             (long long)is, (long long)d->min, (long long)d->max);
        else
            continue;
        return false;
    }
    return true;
}

// Declared inputs. An inlined scope's inputs are operands like any other.
// Extents that a bucket covers.
static bool check_buckets(struct trace_region *r, trace_tensor *const *in, size_t n, struct tj_loc loc) {
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const struct tj_bucket_dim *d = &r->buckets[i];
        int rank = d->input < n ? trace_rank(in[d->input]) : -1;
        int64_t is = rank > (int)d->dim ? trace_size(in[d->input], d->dim) : -1;
        if (is < 0)
            (void)tj_op_fail(TRACE_ERR_SHAPE, "trace_begin", loc, "dim %u of input %u has buckets, but there is none",
                             d->dim, d->input);
        else if (!tj_bucket_covers(d, is))
            (void)tj_op_fail(TRACE_ERR_SHAPE, "trace_begin", loc,
                             "dim %u of input %u is %lld, beyond its last bucket; add a larger one", d->dim, d->input,
                             (long long)is);
        else
            continue;
        return false;
    }
    return true;
}

static bool take_inputs(struct tj_box *b, struct trace_region *r, trace_tensor *const *in, size_t n, struct tj_loc loc,
                        bool outermost) {
    struct tj_run *run = &b->run;
    for (size_t i = 0; i < n; i++) {
        struct trace_tensor *t = in[i];
        if (!t && b->scope_failed) { // the NULL is an inlined scope's failure
            run->failed = b->scope_status;
            (void)snprintf(run->error, sizeof run->error, "%s", b->scope_error);
            return false;
        }
        if (!t || t == TRACE_NONE) {
            bool failed = !t && tj_last_status() != TRACE_OK; // what should have made it, probably
            (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_begin", loc, "input %zu of region '%s' is %s%s%s", i, r->name,
                             t ? "TRACE_NONE" : "NULL", failed ? "; this thread's last failure: " : "",
                             failed ? tj_last_error() : "");
            return false;
        }
        if (run->eager) {
            if (tj_is_value(t)) {
                (void)tj_op_fail(TRACE_ERR_DEAD, "trace_begin", loc,
                                 "input %zu is a recorded value of a run that is over", i);
                return false;
            }
            continue;
        }
        tj_ref ref = outermost && !tj_is_value(t) && t->ctx == run->ctx ? tj_leaf_of(run, t, (uint32_t)i + 1)
                                                                        : tj_resolve(run, t, "trace_begin", loc);
        if (ref == TJ_NIL) {
            (void)run_error(run);
            return false;
        }
    }
    return (TJ_LIKELY(!r->nbounds) || check_bounds(r, in, n, loc)) &&
           (TJ_LIKELY(!r->nbuckets) || check_buckets(r, in, n, loc));
}

// Inlines a region into the open run of its context, which need not be the innermost one.
static bool begin_inner(struct tj_run *run, struct trace_region *r, trace_tensor *const *in, size_t n,
                        struct tj_loc loc) {
    struct tj_box *b = tj_box_of(run);
    char outer[300];
    if (!push_scope(b, r, loc))
        return (void)run_error(run), false;
    tj_current = run;
    struct tj_scope *sc = &run->scopes[run->nscopes - 1];
    struct trace_region *o = run->region;
    (void)tj_loc_text(run->begin, outer, sizeof outer);
    if (run->failed) { // the outer run has failed: nothing to record
        sc->skipped = true;
        sc->status = run->failed;
        return false;
    }
    if (r->opt.nested_is_error || o->opt.nested_is_error) {
        text_of(sc, tj_fail(TRACE_ERR_STATE, "region '%s': begun inside region '%s' (%s), and nested_is_error is set",
                            r->name, o->name, outer));
        return false;
    }
    TJ_BUMP(&b->count, nested, 1);
    (void)take_inputs(b, r, in, n, loc, false);
    return !run->failed;
}

static const char *refusal(tj_status s) {
    return s == TRACE_ERR_SHUTDOWN ? "the context was shut down; no run can begin" : "out of memory for a run";
}

static bool refuse(const struct trace_region *r, tj_status s) {
    refused.region = r;
    refused.status = tj_fail(s, "region '%s': %s", r->name, refusal(s));
    return false;
}

static void reset_box(struct tj_box *b) {
    struct tj_run *run = &b->run;
    run->failed = TRACE_OK;
    run->error[0] = '\0';
    run->written = run->broke = run->eager = run->compile_only = false;
    run->fresh_from = 0;
    run->failures = tj_failures();
    run->nscopes = run->nloops = 0;
    run->loose = false;
    b->segment = b->flushes = b->declared = 0;
    b->ran = 0;
    b->rolled = b->scope_failed = b->missed = false;
    b->broke_call = b->later = run->host_call = NULL;
    b->ended = NULL;
    b->note = false;
    run->outer = run->around = NULL;
    atomic_store_explicit(&b->cancel, false, memory_order_relaxed);
    tj_run_reset(run);
}

struct tj_box *tj_run_open(struct trace_region *r) {
    struct tj_box *b = tj_box_take(r);
    if (!b) {
        (void)refuse(r, TRACE_ERR_MEMORY);
        return NULL;
    }
    if (TJ_UNLIKELY(atomic_load(&r->ctx->shut))) {
        tj_box_give(b);
        (void)refuse(r, TRACE_ERR_SHUTDOWN);
        return NULL;
    }
    reset_box(b);
    return b;
}

bool trace_begin_at(trace_region *r, trace_tensor *const *in, size_t n, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    refused.region = NULL;
    if (!r) {
        (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_begin", loc, "the region is NULL");
        return false;
    }
    struct tj_run *around = TJ_UNLIKELY(tj_current != NULL) ? tj_run_find(r->ctx) : NULL, *outer = tj_current;
    if (n && !in) {
        n = 0;
        tj_current = around; // no error of another context's run
        (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_begin", loc, "inputs announced, but their array is NULL");
        tj_current = outer;
        if (!around) {
            refused.region = r;
            refused.status = TRACE_ERR_ARGUMENT;
            return false;
        }
    }
    if (TJ_UNLIKELY(!atomic_load_explicit(&r->begun, memory_order_relaxed)))
        atomic_store(&r->begun, true);
    if (around)
        return begin_inner(around, r, in, n, loc);
    struct tj_box *b = tj_run_open(r);
    if (!b)
        return false;
    struct tj_run *run = &b->run;
    run->outer = outer;
    tj_run_foreign(outer, loc);
    run->begin = loc;
    run->begin_ns = tj_ticks();
    b->begun_ns = TJ_UNLIKELY(tj_timeline_on(r->ctx)) ? tj_now_ns() : 0;
    run->eager = r->opt.mode == TRACE_MODE_EAGER || r->ctx->env.disable;
    b->declared = (uint32_t)n;
    atomic_store_explicit(&b->begin_file, file, memory_order_relaxed);
    atomic_store_explicit(&b->begin_line, line, memory_order_relaxed);
    if (!push_scope(b, r, loc)) {
        tj_run_drop(run);
        tj_box_give(b);
        return refuse(r, TRACE_ERR_MEMORY);
    }
    tj_current = run;
    if (r->opt.mode == TRACE_MODE_REPLAY && !run->eager && tj_replay_begin(b, in, n))
        return false;
    return take_inputs(b, r, in, n, loc, true);
}

enum trace_status trace_region_dynamic(trace_region *r, int input, int dim, int64_t min, int64_t max) {
    if (!r)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_dynamic: NULL region");
    if (input < 0 || input > MAX_INPUT)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_dynamic: region '%s': input %d is none", r->name, input);
    if (dim < 0 || dim >= TJ_MAX_RANK)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_dynamic: region '%s': dim %d is not in 0 to %d", r->name, dim,
                       TJ_MAX_RANK - 1);
    if (min < 0 || min > max)
        return tj_fail(TRACE_ERR_ARGUMENT,
                       "trace_region_dynamic: region '%s': bounds %lld to %lld: want 0 <= min <= max", r->name,
                       (long long)min, (long long)max);
    if (atomic_load(&r->begun))
        return tj_fail(TRACE_ERR_STATE, "trace_region_dynamic: region '%s' has begun already; declare bounds before",
                       r->name);
    tj_lock(&r->ctx->lock);
    uint32_t i = 0;
    while (i < r->nbounds && (r->bounds[i].input != (uint32_t)input || r->bounds[i].dim != (uint32_t)dim))
        i++;
    bool ok = tj_grow((void **)&r->bounds, &r->capbounds, i + 1, sizeof *r->bounds);
    if (ok) { // declared again: the later bounds count
        r->bounds[i] = (struct tj_bound_dim){(uint32_t)input, (uint32_t)dim, min, max};
        r->nbounds = i < r->nbounds ? r->nbounds : i + 1;
    }
    tj_unlock(&r->ctx->lock);
    return ok ? TRACE_OK : tj_fail(TRACE_ERR_MEMORY, "trace_region_dynamic: out of memory");
}

void trace_region_cancel(trace_region *r) {
    if (!r)
        return;
    tj_lock(&r->ctx->lock);
    for (size_t i = 0; i < TJ_SLOTS; i++) {
        struct tj_box *b = atomic_load(&r->slots[i]);
        if (b && atomic_load(&b->state) != TJ_BOX_IDLE)
            atomic_store(&b->cancel, true);
    }
    for (struct tj_box *b = r->extra; b; b = b->next_extra)
        atomic_store(&b->cancel, true);
    tj_unlock(&r->ctx->lock);
    tj_lock(&r->cache.lock); // those that wait for a compile
    tj_cond_wake(&r->cache.ready);
    tj_unlock(&r->cache.lock);
}

bool trace_failed(const trace_context *ctx) {
    const struct tj_run *run = ctx ? tj_run_find(ctx) : tj_current;
    if (!run)
        return false;
    const struct tj_box *b = run->extra;
    return (run->failed && !b->replay) || (run->nscopes && run->scopes[run->nscopes - 1].skipped);
}

// ---- closing --------------------------------------------------------------------------------------------------------

static void drop_deferred(struct tj_box *b, uint32_t from) {
    for (uint32_t i = from; i < b->ndeferred; i++) {
        struct tj_deferred *d = &b->deferred[i];
        if (d->later) {
            tj_tensor_fulfil(d->later, NULL); // FAILED, unless it was fulfilled before
            trace_release(d->later);
        }
        trace_release(d->tensor);
        tj_free(d->name);
    }
    b->ndeferred = from;
}

static void drop_pool(struct tj_box *b, uint32_t from) {
    while (b->npool > from)
        tj_tensor_drop(b->pool[--b->npool].tensor);
}

// Forgets the innermost scope of several.
static void pop_inner(struct tj_run *run) {
    struct tj_scope *sc = &run->scopes[--run->nscopes];
    tj_current = sc->resume;
    tj_free(sc->text);
    tj_region_drop(sc->region);
}

// Ends a run, whatever its state. What was open around it is the current one afterwards.
static void close_run(struct tj_box *b) {
    struct tj_run *run = &b->run;
    while (run->nscopes > 1)
        pop_inner(run);
    run->nscopes = 0;
    tj_current = run->outer;
    if (b->replay)
        tj_replay_drop(b);
    if (TJ_UNLIKELY(b->ndeferred))
        drop_deferred(b, 0);
    if (TJ_UNLIKELY(b->npool))
        drop_pool(b, 0);
    if (TJ_UNLIKELY(b->nmark || b->ninstances))
        tj_break_reset(b);
    tj_run_drop(run);
    atomic_store_explicit(&b->begin_file, NULL, memory_order_relaxed);
    atomic_store_explicit(&b->begin_line, 0, memory_order_relaxed);
    if (TJ_UNLIKELY(run->trace.capnodes > LARGE_TRACE)) { // a large run doesn't keep its arrays for ever
        b->lean = run->trace.nnodes > run->trace.capnodes / 4 ? 0 : b->lean + 1;
        if (b->lean >= LEAN_RUNS)
            box_clear(b);
    }
    tj_box_give(b);
}

static void clear_outs(trace_tensor **out, size_t n) {
    for (size_t i = 0; out && i < n; i++)
        out[i] = NULL;
}

// Undoes what was recorded since a scope began.
static void roll_back(struct tj_box *b, const struct tj_scope *sc) {
    struct tj_run *run = &b->run;
    if (!run->eager && run->trace.nnodes > sc->mark) {
        tj_run_rollback(run, sc->mark);
        b->rolled = true;
    }
    tj_repeat_drop(run, sc->nloops);
    drop_deferred(b, sc->ndeferred);
    drop_pool(b, sc->npool);
}

// Pops the innermost scope after a failure. What a break has run already can't be undone: then the run has failed.
static void fail_scope(struct tj_box *b, tj_status st, const char *text) {
    struct tj_run *run = &b->run;
    struct tj_scope sc = run->scopes[run->nscopes - 1];
    if (!sc.skipped && b->flushes == sc.flushes) {
        run->failed = TRACE_OK; // (going back may fail in turn)
        run->error[0] = '\0';
        roll_back(b, &sc);
        b->scope_failed = true;
        b->scope_status = st;
        (void)snprintf(b->scope_error, sizeof b->scope_error, "%s", text);
    } else if (!sc.skipped && !run->failed) {
        run->failed = st;
        (void)snprintf(run->error, sizeof run->error, "%s", text);
    } else if (sc.skipped && !run->failed) {
        b->scope_failed = true;
        b->scope_status = st;
        (void)snprintf(b->scope_error, sizeof b->scope_error, "%s", text);
    }
    pop_inner(run);
}

static tj_status end_inner(struct tj_box *b, trace_tensor **out, size_t n, struct tj_loc loc) {
    struct tj_run *run = &b->run;
    struct tj_scope *sc = &run->scopes[run->nscopes - 1];
    struct trace_region *r = sc->region;
    if (sc->skipped) {
        tj_status st = sc->status;
        (void)tj_fail(st, "%s", sc->text ? sc->text : run->failed ? run->error : "the enclosing run has failed");
        fail_scope(b, st, tj_last_error());
        clear_outs(out, n);
        return st;
    }
    tj_repeat_check(run, sc->nloops, "trace_end", loc);
    for (size_t i = 0; i < n && !run->failed; i++) {
        if (!out[i] || out[i] == TRACE_NONE)
            (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_end", loc, "output %zu of region '%s' is %s", i, r->name,
                             out[i] ? "TRACE_NONE" : "NULL");
        else if (run->eager)
            continue;
        else if (tj_resolve(run, out[i], "trace_end", loc) == TJ_NIL)
            (void)run_error(run);
    }
    if (run->eager && !run->failed && !tj_eager_outs(run, out, n, sc->npool, loc))
        (void)run_error(run);
    if (run->failed) {
        tj_status st = report_error(r, sc->begin, run->failed, run->error);
        fail_scope(b, st, tj_last_error());
        clear_outs(out, n);
        return st;
    }
    // Each output is a reference of the caller's, as it is when the region runs alone: values made before the scope,
    // and those named twice, get one more. Where there are many, map tells where one might have been named.
    bool many = n > 8 && n < UINT32_MAX && !run->eager && tj_break_grow(b);
    for (size_t i = 0; !run->eager && i < n; i++) {
        bool more = !tj_is_value(out[i]);
        tj_ref ref = more ? 0 : (tj_ref)((uint64_t)(uintptr_t)out[i] >> 1 & 0xFFFFFF) - 1;
        if (!more)
            more = ref < sc->mark;
        if (many && !more) {
            more = b->map[ref] < i && out[b->map[ref]] == out[i];
            b->map[ref] = more ? b->map[ref] : (uint32_t)i;
        }
        for (size_t j = 0; j < i && !more && !many; j++)
            more = out[j] == out[i];
        if (more)
            out[i] = trace_retain(out[i]);
    }
    pop_inner(run);
    return TRACE_OK;
}

// "(also) begun at gen.c:12 by another thread", or "".
static const char *begun_elsewhere(struct trace_region *r, char *buf, size_t cap) {
    buf[0] = '\0';
    for (size_t i = 0; i < TJ_SLOTS; i++) {
        struct tj_box *b = atomic_load_explicit(&r->slots[i], memory_order_acquire);
        if (!b || atomic_load(&b->state) == TJ_BOX_IDLE)
            continue;
        const char *file = atomic_load_explicit(&b->begin_file, memory_order_relaxed);
        int line = atomic_load_explicit(&b->begin_line, memory_order_relaxed);
        if (file)
            (void)snprintf(buf, cap, "; it was begun at %s:%d on another thread, which has to end it", file, line);
        else
            (void)snprintf(buf, cap, "; another thread has begun it, and has to end it");
    }
    return buf;
}

// The innermost open scope of r; false: there is none.
static bool find_scope(const struct trace_region *r, struct tj_run **run, uint32_t *at) {
    *run = tj_current;
    *at = tj_run_top(tj_current);
    while (*run && !((*run)->nscopes && (*run)->scopes[*at].region == r)) {
        if (!step_out(run, at))
            return false;
    }
    return *run != NULL;
}

// Ends a scope and what is open inside it, and with the outermost one its run.
static void unwind(struct tj_run *run, uint32_t at, const char *text) {
    for (bool last = false; !last && tj_current;) {
        struct tj_run *top = tj_current;
        last = top == run && tj_run_top(top) == at;
        if (top->nscopes > 1)
            fail_scope(tj_box_of(top), TRACE_ERR_STATE, text);
        else if (top->loose)
            tj_repeat_abandon();
        else if (top->region->hidden)
            (void)tj_eager_abandon(top);
        else
            close_run(tj_box_of(top));
    }
}

void tj_run_abandon_all(void) {
    while (tj_current)
        unwind(tj_current, tj_run_top(tj_current), "the inner region was abandoned");
}

// trace_end of a region that isn't the innermost open one.
static tj_status end_mismatch(struct trace_region *r, struct tj_loc loc) {
    char where[300], other[400], begun[300], text[TJ_ERROR_MAX];
    (void)tj_loc_text(loc, where, sizeof where);
    struct tj_run *run;
    uint32_t at;
    if (!find_scope(r, &run, &at))
        return tj_fail(TRACE_ERR_STATE, "trace_end (%s): region '%s' was not begun on this thread%s", where, r->name,
                       begun_elsewhere(r, other, sizeof other));
    // Scopes inside it were never ended: an early return, probably. They go with it.
    const struct tj_scope *top = &tj_current->scopes[tj_run_top(tj_current)];
    tj_status st =
        tj_fail(TRACE_ERR_STATE,
                "trace_end (%s): region '%s' ends while region '%s' (%s) inside it is open; end or abandon that", where,
                r->name, top->region->name, tj_loc_text(top->begin, begun, sizeof begun));
    if (at == 0)
        TJ_BUMP(&tj_box_of(run)->count, errors, 1);
    (void)snprintf(text, sizeof text, "%s", tj_last_error());
    unwind(run, at, text);
    return tj_fail(st, "%s", text);
}

void trace_abandon(trace_region *r) {
    struct tj_run *run;
    uint32_t at;
    if (!r)
        return;
    if (TJ_UNLIKELY(tj_callout_recover(__builtin_frame_address(0)))) {
        while (tj_current && tj_current->region->hidden && !tj_current->loose) // an op alone that a callback has left
            (void)tj_eager_abandon(tj_current);
    }
    if (find_scope(r, &run, &at))
        unwind(run, at, "the inner region was abandoned");
    else if (tj_current && tj_current->loose) // a loop outside regions
        tj_repeat_abandon();
}

// Ends a run that failed with st, or before.
static tj_status close_failed(struct tj_box *b, tj_status st) {
    struct tj_run *run = &b->run;
    struct trace_region *r = run->region;
    TJ_BUMP(&b->count, errors, 1);
    // Fails with the run's first error; prefixed so that it says which region.
    st = run->failed ? report_error(r, run->begin, run->failed, run->error)
                     : report_error(r, run->begin, st, tj_last_error());
    char text[TJ_ERROR_MAX];
    trace_context *ctx = r->ctx;
    (void)snprintf(text, sizeof text, "%s", tj_last_error());
    close_run(b);
    st = tj_fail(st, "%s", text);
    tj_failed_in(ctx);
    return st;
}

static void count_run(struct tj_box *b, bool replay, uint64_t recorded) {
    struct tj_counters *c = &b->count;
    const struct tj_trace *t = &b->run.trace;
    TJ_BUMP(c, runs, 1);
    if (replay)
        TJ_BUMP(c, replays, 1);
    else
        TJ_BUMP(c, records, 1);
    if (t->nnodes)
        TJ_BUMP(c, ops_recorded, t->nnodes - t->nleaves - t->nparams);
    if (!replay)
        TJ_BUMP(c, record_ns, recorded);
    if (b->ran) {
        TJ_BUMP(c, run_ns, b->ran);
        if (b->ran > atomic_load_explicit(&c->worst_run_ns, memory_order_relaxed))
            atomic_store_explicit(&c->worst_run_ns, b->ran, memory_order_relaxed);
    }
}

tj_status trace_end_at(trace_region *r, trace_tensor **out, size_t n, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct tj_run *run = tj_current;
    if (TJ_UNLIKELY(run && run->loose && run->nscopes == 1)) {
        tj_repeat_abandon();
        run = tj_current;
    }
    if (TJ_UNLIKELY(!r || !run || !run->nscopes || run->scopes[run->nscopes - 1].region != r || (n && !out))) {
        tj_status st;
        if (!r)
            st = tj_fail(TRACE_ERR_ARGUMENT, "trace_end (%s:%d): the region is NULL", file ? file : "?", line);
        else if (refused.region == r)
            st = refused.status == TRACE_ERR_ARGUMENT
                     ? tj_fail(TRACE_ERR_ARGUMENT, "region '%s': inputs announced, but their array is NULL", r->name)
                     : tj_fail(refused.status, "region '%s': %s", r->name, refusal(refused.status));
        else if (run && run->nscopes && run->scopes[run->nscopes - 1].region == r) {
            (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_end", loc, "outputs announced, but their array is NULL");
            return trace_end_at(r, NULL, 0, file, line);
        } else
            st = end_mismatch(r, loc);
        refused.region = NULL;
        clear_outs(out, n);
        return st;
    }
    struct tj_box *b = tj_box_of(run);
    if (run->nscopes > 1)
        return end_inner(b, out, n, loc);
    if (TJ_UNLIKELY(run->nloops))
        tj_repeat_check(run, 0, "trace_end", loc);
    uint64_t begin = run->begin_ns, before = b->ran, now = tj_ticks();
    uint64_t ended = TJ_UNLIKELY(b->begun_ns) ? tj_now_ns() : 0;
    bool replay = b->replay != NULL;
    tj_status st = run->failed;
    tj_fpenv env; // estimates and times are computed, too, and the caller's may trap
    tj_fpenv_enter(&env);
    if (replay)
        st = tj_replay_end(b, out, n, loc);
    else if (TJ_LIKELY(!st))
        st = run->eager ? tj_finish_eager(b, out, n, loc) : tj_finish(b, out, n, loc);
    tj_fpenv_leave(&env);
    if (TJ_UNLIKELY(ended))
        tj_timeline_run(b, ended, loc, !st ? NULL : run->failed ? run->error : tj_last_error());
    if (TJ_UNLIKELY(st)) {
        clear_outs(out, n);
        return close_failed(b, st);
    }
    count_run(b, replay, now - begin - before);
    if (TJ_LIKELY(!run->eager && !run->compile_only))
        tj_profile_run(b, replay ? tj_replay_trace(b->replay) : &run->trace);
    close_run(b);
    return TRACE_OK;
}

tj_status trace_end_bind_at(trace_region *r, const trace_bind_options *o, trace_bound **out, const char *file,
                            int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct tj_run *run = tj_current;
    if (out)
        *out = NULL;
    if (!r || !run || !run->nscopes || run->scopes[run->nscopes - 1].region != r)
        return trace_end_at(r, NULL, 0, file, line); // which tells what is wrong
    struct tj_box *b = tj_box_of(run);
    if (!out)
        (void)tj_op_fail(TRACE_ERR_ARGUMENT, "trace_end_bind", loc, "no place for the bound plan (NULL)");
    else if (run->nscopes > 1)
        (void)tj_op_fail(TRACE_ERR_STATE, "trace_end_bind", loc,
                         "region '%s' is inlined into an open run of region '%s'; bind it outside of that", r->name,
                         run->region->name);
    else if (b->replay) {
        run->failed = TRACE_OK; // tells what happened, not what ops of a replay are told
        tj_replay_drop(b);
        (void)tj_op_fail(TRACE_ERR_STATE, "trace_end_bind", loc,
                         "the run is a replay, nothing was recorded; bind in a region of TRACE_MODE_RECORD");
    }
    if (run->nscopes > 1)
        return end_inner(b, NULL, 0, loc);
    tj_repeat_check(run, 0, "trace_end_bind", loc);
    uint64_t begin = run->begin_ns, now = tj_ticks();
    tj_status st = run->failed;
    tj_fpenv env;
    tj_fpenv_enter(&env);
    if (!st)
        st = tj_bind(b, o, out, loc);
    tj_fpenv_leave(&env);
    if (st)
        return close_failed(b, st);
    TJ_BUMP(&b->count, records, 1);
    TJ_BUMP(&b->count, ops_recorded, run->trace.nnodes - run->trace.nleaves - run->trace.nparams);
    TJ_BUMP(&b->count, record_ns, now - begin);
    close_run(b);
    return TRACE_OK;
}
