// trace/region_out.c: how a run ends well: outputs, deferred forms, the last segment.
#include <stdio.h>

#include "record.h"
#include "region.h"
#include "warmup.h"

// What becomes of out[i].
#define OUT_HANDLE UINT32_MAX // its handle is made already; else an index into box->outs

static bool reserve(struct tj_box *b, size_t n) {
    uint32_t need = (uint32_t)n;
    if (n > UINT32_MAX / 2 || !tj_grow((void **)&b->outs, &b->capouts, need, sizeof *b->outs) ||
        !tj_grow((void **)&b->outmap, &b->capoutmap, need, sizeof *b->outmap) ||
        !tj_grow((void **)&b->handles, &b->caphandles, need, sizeof *b->handles) ||
        !tj_grow((void **)&b->outt, &b->capoutt, need, sizeof *b->outt)) {
        (void)tj_fail(TRACE_ERR_MEMORY, "trace_end: out of memory for %zu outputs", n);
        return false;
    }
    return true;
}

// Index of value n among the computed outputs; added when new. TJ_NIL: out of memory.
static uint32_t add_out(struct tj_box *b, uint32_t *nouts, tj_ref n) {
    enum { FEW = 8 };
    if (*nouts < FEW) {
        for (uint32_t i = 0; i < *nouts; i++) {
            if (b->outs[i] == n)
                return i;
        }
    } else { // map tells where it would be; what it holds of other uses tells nothing wrong
        if (!tj_break_grow(b))
            return TJ_NIL;
        for (uint32_t i = 0; *nouts == FEW && i < FEW; i++)
            b->map[b->outs[i]] = i;
        if (b->map[n] < *nouts && b->outs[b->map[n]] == n)
            return b->map[n];
        b->map[n] = *nouts;
    }
    b->outs[*nouts] = n;
    return (*nouts)++;
}

// A value whose content is kept already, as a handle of the caller's; NULL: it has to be computed. An error sets *st.
static struct trace_tensor *kept_handle(struct tj_box *b, tj_ref n, struct tj_loc loc, tj_status *st) {
    struct tj_run *run = &b->run;
    struct tj_place v;
    if (tj_value_view(run, n, &v)) {
        if (v.source)
            return trace_retain(v.source);
        if (!(v.tensor->st->flags & TJ_ST_OWNED))
            return NULL; // borrowed memory may go: a copy
        struct trace_tensor *t = tj_tensor_view(v.tensor->st, (tj_dtype)v.tensor->dtype, v.dims, v.strides, v.rank,
                                                v.offset, tj_call_name(&run->trace, n), run->trace.locs[n]);
        if (!t)
            *st = tj_last_status();
        return t;
    }
    (void)loc;
    if (run->values[n].state == TJ_V_STORED) {
        tj_break_used(b, n);
        return trace_retain(run->values[n].tensor);
    }
    return NULL;
}

// Sorts the outputs into handles made here and values to compute.
static tj_status sort_outs(struct tj_box *b, trace_tensor *const *out, size_t n, struct tj_loc loc, uint32_t *nouts) {
    struct tj_run *run = &b->run;
    for (size_t i = 0; i < n; i++)
        b->handles[i] = NULL;
    for (size_t i = 0; i < n; i++) {
        struct trace_tensor *t = out[i];
        b->outmap[i] = OUT_HANDLE;
        if (!t && b->scope_failed)
            return tj_fail(b->scope_status, "%s", b->scope_error);
        if (!t || t == TRACE_NONE)
            return tj_op_fail(TRACE_ERR_ARGUMENT, "trace_end", loc, "output %zu is %s", i, t ? "TRACE_NONE" : "NULL");
        if (!tj_is_value(t)) {
            if (t->ctx != run->ctx)
                return tj_op_fail(TRACE_ERR_ARGUMENT, "trace_end", loc, "output %zu is a tensor of another context", i);
            b->handles[i] = trace_retain(t);
            continue;
        }
        tj_ref ref = tj_resolve(run, t, "trace_end", loc);
        if (ref == TJ_NIL)
            return run->failed ? run->failed : tj_last_status();
        tj_status st = TRACE_OK;
        if (!run->compile_only)
            b->handles[i] = kept_handle(b, ref, loc, &st);
        if (st)
            return st;
        if (b->handles[i])
            continue;
        b->outmap[i] = add_out(b, nouts, ref);
        if (b->outmap[i] == TJ_NIL)
            return tj_fail(TRACE_ERR_MEMORY, "trace_end: out of memory for %zu outputs", n);
    }
    return TRACE_OK;
}

static void drop_handles(struct tj_box *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        trace_release(b->handles[i]);
        b->handles[i] = NULL;
    }
}

// Values of the deferred forms: outmap[n + i] for form i.
static tj_status sort_deferred(struct tj_box *b, size_t n, uint32_t *nouts) {
    for (uint32_t i = 0; i < b->ndeferred; i++) {
        tj_ref ref = b->deferred[i].node;
        b->outmap[n + i] = OUT_HANDLE;
        if (b->run.values[ref].state == TJ_V_STORED) {
            tj_break_used(b, ref);
            b->deferred[i].tensor = trace_retain(b->run.values[ref].tensor);
        } else {
            b->outmap[n + i] = add_out(b, nouts, ref);
            if (b->outmap[n + i] == TJ_NIL)
                return tj_fail(TRACE_ERR_MEMORY, "trace_end: out of memory for %u deferred reads", b->ndeferred);
        }
    }
    return TRACE_OK;
}

static void finish_deferred(struct tj_box *b, size_t n) {
    for (uint32_t i = 0; i < b->ndeferred; i++) {
        struct tj_deferred *d = &b->deferred[i];
        if (b->outmap[n + i] != OUT_HANDLE)
            d->tensor = trace_retain(b->outt[b->outmap[n + i]]);
        if (d->print) {
            if (!b->run.compile_only)
                tj_print_tensor(d->tensor, d->name);
        } else {
            tj_tensor_fulfil(d->later, d->tensor);
            trace_release(d->later);
            d->later = NULL;
        }
        trace_release(d->tensor);
        tj_free(d->name);
        d->name = NULL;
        d->tensor = NULL;
    }
    b->ndeferred = 0;
}

tj_status tj_finish(struct tj_box *b, trace_tensor **out, size_t n, struct tj_loc loc) {
    struct tj_run *run = &b->run;
    uint32_t nouts = 0, nwrites;
    size_t all = n + b->ndeferred;
    if (!reserve(b, all))
        return TRACE_ERR_MEMORY;
    tj_status st = sort_outs(b, out, n, loc, &nouts);
    if (!st && TJ_UNLIKELY(b->ndeferred))
        st = sort_deferred(b, n, &nouts);
    if (!st && TJ_UNLIKELY(b->note)) {
        if (b->ndeferred) {
            b->later = b->deferred[0].print ? "trace_print_later" : "trace_item_later";
            b->later_at = b->deferred[0].loc;
        }
        tj_replay_outs(b, out, n, b->outmap);
    }
    if (!st && !tj_pending_writes(b, &nwrites))
        st = tj_fail(TRACE_ERR_MEMORY, "trace_end: out of memory");
    if (!st && (nouts || nwrites)) {
        struct tj_site site = {loc, "end", b->flushes == 0, NULL, false};
        st = tj_break_finish(b, nouts, nwrites, &site, !run->compile_only, b->outt);
    }
    if (TJ_UNLIKELY(st)) {
        drop_handles(b, n);
        return st;
    }
    if (TJ_UNLIKELY(b->missed))
        tj_break_lint(b, nouts);
    for (size_t i = 0; i < n; i++) {
        out[i] = b->outmap[i] == OUT_HANDLE ? b->handles[i] : trace_retain(b->outt[b->outmap[i]]);
        b->handles[i] = NULL;
    }
    if (TJ_UNLIKELY(b->ndeferred))
        finish_deferred(b, n);
    for (uint32_t i = 0; i < nouts; i++)
        trace_release(b->outt[i]);
    if (TJ_UNLIKELY(b->note))
        tj_replay_note(b);
    if (TJ_UNLIKELY(b->missed))
        tj_warm_keep(b, nouts, nwrites);
    // Plans for the next runs. The outputs are right whatever comes of it.
    if (TJ_UNLIKELY(b->ninstances))
        tj_break_learn(b);
    if (TJ_UNLIKELY(atomic_load_explicit(&run->region->warm_pending, memory_order_relaxed)))
        tj_warm_pending(b);
    return TRACE_OK;
}

tj_status tj_finish_eager(struct tj_box *b, trace_tensor **out, size_t n, struct tj_loc loc) {
    struct tj_run *run = &b->run;
    for (size_t i = 0; i < n; i++) {
        struct trace_tensor *t = out[i];
        if (!t && b->scope_failed)
            return tj_fail(b->scope_status, "%s", b->scope_error);
        if (!t || tj_is_value(t))
            return tj_op_fail(TRACE_ERR_ARGUMENT, "trace_end", loc, "output %zu is %s", i,
                              !t                ? "NULL"
                              : t == TRACE_NONE ? "TRACE_NONE"
                                                : "a recorded value of a run that is over");
        if (t->ctx != run->ctx)
            return tj_op_fail(TRACE_ERR_ARGUMENT, "trace_end", loc, "output %zu is a tensor of another context", i);
    }
    for (size_t i = 0; i < n; i++)
        out[i] = trace_retain(out[i]); // the scope's own references go with it
    return TRACE_OK;
}
