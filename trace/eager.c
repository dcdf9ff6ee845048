// trace/eager.c: single-op runs: what an op does outside a region, and in an eager scope.
#include <stdio.h>

#include "record.h"
#include "region.h"

// A run of the hidden region holds one op. Its plan has symbolic extents, so that one serves many shapes. It keeps the
// context: a callback may release the last other reference.
struct tj_run *tj_eager_begin(trace_context *ctx, const char *op, struct tj_loc loc) {
    struct tj_run *around = tj_current ? tj_run_find(ctx) : NULL;
    struct tj_box *b = tj_run_open(ctx->eager);
    if (!b) {
        struct tj_run *back = tj_run_switch(around);
        (void)tj_op_fail(tj_last_status(), op, loc,
                         tj_last_status() == TRACE_ERR_SHUTDOWN ? "the context was shut down"
                                                                : "out of memory for a run");
        tj_current = back;
        tj_failed_in(ctx);
        return NULL;
    }
    tj_context_retain(ctx);
    b->run.around = around;
    b->run.outer = tj_current;
    if (!around)
        tj_run_foreign(tj_current, loc);
    b->op = op;
    b->run.begin = loc;
    tj_current = &b->run;
    return &b->run;
}

static void close_run(struct tj_box *b) {
    trace_context *ctx = b->run.ctx;
    tj_current = b->run.outer;
    tj_run_drop(&b->run);
    tj_box_give(b);
    tj_context_release(ctx);
}

struct tj_run *tj_eager_abandon(struct tj_run *run) {
    close_run(tj_box_of(run));
    return tj_current;
}

// ---- handles of eager scopes ----------------------------------------------------------------------------------------

static bool pool_add(struct tj_run *run, struct trace_tensor *t) {
    struct tj_box *b = tj_box_of(run);
    if (!tj_grow((void **)&b->pool, &b->cappool, b->npool + 1, sizeof *b->pool))
        return false;
    atomic_store_explicit(&t->pooled, b->npool, memory_order_relaxed);
    b->pool[b->npool++] = (struct tj_pooled){t, 0};
    return true;
}

// The place where the scope of run holds t. A handle is in one scope at most, and its place with it.
static struct tj_pooled *pooled(struct tj_run *run, const struct trace_tensor *t) {
    struct tj_run *scope = run->loose ? run->around : run; // a loop: the scope is around it
    struct tj_box *b = scope ? tj_box_of(scope) : NULL;
    uint32_t at = atomic_load_explicit(&t->pooled, memory_order_relaxed);
    return b && at < b->npool && b->pool[at].tensor == t ? &b->pool[at] : NULL;
}

void tj_eager_retained(struct tj_run *run, const struct trace_tensor *t) {
    struct tj_pooled *p = pooled(run, t);
    if (p)
        p->retained++;
}

void tj_eager_released(struct tj_run *run, const struct trace_tensor *t) {
    struct tj_pooled *p = pooled(run, t);
    if (!p)
        return;
    if (p->retained && atomic_load(&t->refs) > 1) {
        p->retained--;
        return;
    }
    struct tj_box *b = tj_box_of(run->loose ? run->around : run);
    *p = b->pool[--b->npool];
    atomic_store_explicit(&p->tensor->pooled, (uint32_t)(p - b->pool), memory_order_relaxed);
}

bool tj_eager_outs(struct tj_run *run, trace_tensor **out, size_t n, uint32_t from, struct tj_loc loc) {
    for (size_t i = 0; i < n; i++) {
        const struct tj_pooled *p = pooled(run, out[i]);
        bool own = p && p - tj_box_of(run)->pool >= (ptrdiff_t)from;
        for (size_t j = 0; j < i && own; j++)
            own = out[j] != out[i];
        struct trace_tensor *t = own ? out[i] : tj_tensor_again(out[i], "trace_end", loc);
        if (!t)
            return false;
        if (!own && !pool_add(run, t)) {
            tj_tensor_drop(t);
            (void)tj_fail(TRACE_ERR_MEMORY, "trace_end: out of memory");
            return false;
        }
        out[i] = t;
    }
    return true;
}

// ---- ends of ops ----------------------------------------------------------------------------------------------------

// The op has failed: the eager scope around it has, too.
static trace_tensor *fail(struct tj_box *b) {
    struct tj_run *run = &b->run, *outer = run->around;
    trace_context *ctx = run->ctx;
    tj_status st = run->failed ? run->failed : tj_last_status() ? tj_last_status() : TRACE_ERR_STATE;
    if (!run->failed) { // making or running its plan failed: named like an error of recording
        char text[TJ_ERROR_MAX], where[300];
        size_t n = strlen(b->op);
        (void)snprintf(text, sizeof text, "%s", tj_last_error());
        if (strncmp(text, b->op, n) || (text[n] != ' ' && text[n] != ':')) {
            (void)tj_loc_text(b->run.begin, where, sizeof where);
            (void)tj_fail(st, where[0] ? "%s (%s): %s" : "%s%s: %s", b->op, where, text);
        }
    }
    if (outer && !outer->failed) {
        outer->failed = st;
        (void)snprintf(outer->error, sizeof outer->error, "%s", run->failed ? run->error : tj_last_error());
    }
    if (run->failed)
        (void)tj_fail(st, "%s", run->error);
    TJ_BUMP(&b->count, errors, 1);
    close_run(b);
    tj_failed_in(ctx);
    return NULL;
}

static tj_status refuse_placeholder(struct tj_box *b) {
    return tj_op_fail(TRACE_ERR_STATE, b->op, b->run.begin,
                      "an operand is a placeholder, which has no content; placeholders are inputs of regions");
}

// The error of a run of the plan names the op, but the text should be one as recorded ops have.
static tj_status run_plan(struct tj_box *b, tj_ref n, uint32_t nwrites, struct trace_tensor **out) {
    uint32_t nouts = n != TJ_NIL;
    struct tj_site site = {b->run.begin, "end", true, NULL, false};
    if (nouts) {
        if (!tj_grow((void **)&b->outs, &b->capouts, 1, sizeof *b->outs))
            return tj_fail(TRACE_ERR_MEMORY, "out of memory");
        b->outs[0] = n;
    }
    return tj_break_finish(b, nouts, nwrites, &site, true, out);
}

static trace_tensor *run_op(struct tj_run *run, trace_tensor *result, trace_tensor *inplace_target) {
    struct tj_box *b = tj_box_of(run);
    struct trace_tensor *out = NULL;
    uint32_t nwrites;
    if (run->failed || (!result && !inplace_target))
        return fail(b);
    if (run->compile_only && refuse_placeholder(b))
        return fail(b);
    if (!tj_pending_writes(b, &nwrites)) {
        (void)tj_fail(TRACE_ERR_MEMORY, "out of memory");
        return fail(b);
    }
    TJ_BUMP(&b->count, eager_ops, 1);
    if (inplace_target) {
        if (nwrites && run_plan(b, TJ_NIL, nwrites, NULL))
            return fail(b);
        close_run(b);
        return inplace_target;
    }
    if (!tj_is_value(result)) {
        out = run->around ? tj_tensor_again(result, b->op, run->begin) : trace_retain(result);
        if (!out)
            return fail(b);
    } else {
        tj_ref n = (tj_ref)((uint64_t)(uintptr_t)result >> 1 & 0xFFFFFF) - 1;
        struct tj_place v;
        if (!tj_value_view(run, n, &v)) {
            if (run_plan(b, n, nwrites, &out))
                return fail(b);
        } else if (v.source && !run->around) {
            out = trace_retain(v.source);
        } else {
            out = tj_tensor_view(v.tensor->st, (tj_dtype)v.tensor->dtype, v.dims, v.strides, v.rank, v.offset,
                                 tj_call_name(&run->trace, n), run->begin);
            if (!out)
                return fail(b);
        }
    }
    if (run->around && !pool_add(run->around, out)) {
        tj_tensor_drop(out);
        (void)tj_op_fail(TRACE_ERR_MEMORY, b->op, run->begin, "out of memory");
        return fail(b);
    }
    out->loc = out->loc.file ? out->loc : run->begin;
    close_run(b);
    return out;
}

trace_tensor *tj_eager_end(struct tj_run *run, trace_tensor *result, trace_tensor *inplace_target) {
    tj_fpenv env;
    tj_fpenv_enter(&env);
    trace_tensor *out = run_op(run, result, inplace_target);
    tj_fpenv_leave(&env);
    return out;
}

tj_status tj_eager_end_all(struct tj_run *run, const tj_ref *results, size_t n, trace_tensor **out) {
    struct tj_box *b = tj_box_of(run);
    struct tj_box *scope = run->around ? tj_box_of(run->around) : NULL;
    struct tj_site site = {.loc = b->run.begin, .kind = "end", .first = true};
    tj_status st = TRACE_OK;
    bool ok = tj_grow((void **)&b->outs, &b->capouts, (uint32_t)n, sizeof *b->outs) &&
              (!scope || tj_grow((void **)&scope->pool, &scope->cappool, scope->npool + (uint32_t)n, sizeof *b->pool));
    if (!ok)
        st = tj_fail(TRACE_ERR_MEMORY, "out of memory");
    else if (run->compile_only)
        st = refuse_placeholder(b);
    if (!st) {
        memcpy(b->outs, results, n * sizeof *results);
        tj_fpenv env;
        tj_fpenv_enter(&env);
        st = tj_break_finish(b, (uint32_t)n, 0, &site, true, out);
        tj_fpenv_leave(&env);
    }
    if (st) {
        for (size_t i = 0; i < n; i++)
            out[i] = NULL;
        (void)fail(b);
        return st;
    }
    TJ_BUMP(&b->count, eager_ops, 1);
    for (size_t i = 0; i < n; i++) {
        if (scope)
            (void)pool_add(run->around, out[i]); // there is room
        out[i]->loc = run->begin;
    }
    close_run(b);
    return TRACE_OK;
}
