// jit/plan_report.c: what reports tell of a plan: its kernels, what they move and took, their code, and why values have
// memory of their own.
#include <stdio.h>

#include "../lib/arena.h"
#include "../lib/strbuf.h"
#include "cpu_backend.h"
#include "lower.h"

// Sizes are those of the recorded shapes, which expressions keep as hints; a product of them may not fit.
static uint64_t hint(const struct tj_exprs *x, tj_ex e) {
    int64_t v = tj_ex_hint(x, e);
    return v > 0 ? (uint64_t)v : 0;
}

static uint64_t loop_flops(const struct tj_program *g, const struct tj_loop *l, bool *f64) {
    const struct tj_kernel *k = l->kernel;
    double rows = (double)hint(&g->exprs, l->rows), cols = (double)hint(&g->exprs, l->cols);
    double reduced = (double)hint(&g->exprs, l->row_elems), total = 0;
    for (uint32_t i = 0; i < k->nins; i++) {
        const struct tj_kins *in = &k->ins[i];
        bool arithmetic =
            (in->op < TJ_OP_COUNT && in->op != TJ_OP_CAST) || in->op == TJ_KOP_REDUCE || in->op == TJ_KOP_FMA;
        if (!arithmetic || !tj_is_float((tj_dtype)in->dtype))
            continue;
        bool full = in->level == TJ_FULL || in->op == TJ_KOP_REDUCE;
        double times = k->kind == TJ_K_POINTWISE ? rows * cols
                       : k->kind == TJ_K_ROWS    ? rows * (full ? reduced : 1)
                                                 : rows * cols * (full ? reduced : 1);
        total += times * (in->op < TJ_OP_COUNT ? (double)tj_op_cost(in->op) : in->op == TJ_KOP_FMA ? 2 : 1);
        *f64 = *f64 || in->dtype == TRACE_F64;
    }
    return total < 1e18 ? (uint64_t)total : (uint64_t)1e18;
}

static double geom_elems(const struct tj_exprs *x, const struct tj_geom *g) {
    double n = 1;
    for (uint32_t d = 0; d < g->rank; d++)
        n *= (double)hint(x, g->dims[d]);
    return n;
}

static uint64_t step_flops(const struct tj_program *g, const struct tj_step *st, bool *f64) {
    const struct tj_exprs *x = &g->exprs;
    double n = st->loop.kernel ? (double)loop_flops(g, &st->loop, f64) : 0, out;
    switch (st->kind) {
    case TJ_STEP_MATMUL: n += 2 * geom_elems(x, &st->out) * (double)hint(x, st->a.dims[st->a.rank - 1]); break;
    case TJ_STEP_CONV2D: // an element of out takes a filter: channels of a group, rows, columns
        out = geom_elems(x, &st->out);
        n += 2 * out * geom_elems(x, &st->b) / (double)(hint(x, st->b.dims[0]) ? hint(x, st->b.dims[0]) : 1);
        break;
    case TJ_STEP_SDPA: // two products and a softmax of [.., L, S]
        out = geom_elems(x, &st->out) * (double)hint(x, st->b.dims[st->b.rank - 2]);
        n += 4 * out +
             10 * out / (double)(hint(x, st->a.dims[st->a.rank - 1]) ? hint(x, st->a.dims[st->a.rank - 1]) : 1);
        break;
    default: return n < 1e18 ? (uint64_t)n : (uint64_t)1e18;
    }
    *f64 = *f64 || st->out.dtype == TRACE_F64;
    return n < 1e18 ? (uint64_t)n : (uint64_t)1e18;
}

tj_status tj_plan_report(const struct tj_plan *p, struct tj_arena *a, struct tj_plan_report *out) {
    static const char *const kinds[] = {"loop", "matmul", "conv2d", "attention", "index_copy", "copy"};
    static const char *const loops[] = {"pointwise", "rows", "columns"};
    const struct tj_program *g = tj_plan_program(p);
    const struct tj_step_notes *notes = tj_plan_notes(p);
    *out = (struct tj_plan_report){.nkernels = g->nsteps};
    out->kernels = TJ_ARENA_NEW(a, struct tj_kernel_report, g->nsteps + 1);
    out->kept = TJ_ARENA_NEW(a, struct tj_kept_report, g->nbufs + 1);
    if (a->failed)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for a report");
    for (uint32_t i = 0; i < g->nsteps; i++) {
        const struct tj_step *st = &g->steps[i];
        struct tj_kernel_report *k = &out->kernels[i];
        k->kind = st->kind == TJ_STEP_LOOP ? loops[st->loop.kernel->kind] : kinds[st->kind];
        k->name = st->name ? st->name : k->kind;
        k->node = st->node;
        k->ops = st->ops;
        k->nops = st->nops;
        k->bytes_read = hint(&g->exprs, st->bytes_read);
        k->bytes_written = hint(&g->exprs, st->bytes_written);
        k->flops = step_flops(g, st, &k->f64);
        k->runs = atomic_load_explicit(&notes[i].runs, memory_order_relaxed);
        k->best_ns = atomic_load_explicit(&notes[i].best_ns, memory_order_relaxed);
        k->total_ns = atomic_load_explicit(&notes[i].total_ns, memory_order_relaxed);
    }
    for (uint32_t i = 0; i < g->nbufs; i++) {
        const struct tj_buf *b = &g->bufs[i];
        if (b->kind == TJ_BUF_LEAF)
            continue;
        uint32_t at = out->nkept++; // buffers are made from the last op to the first
        for (; at > 0 && out->kept[at - 1].node > b->node; at--)
            out->kept[at] = out->kept[at - 1];
        struct tj_kept_report *k = &out->kept[at];
        k->node = b->node;
        k->user = b->user;
        k->why = b->why;
        k->out = b->kind == TJ_BUF_OUT ? (int32_t)b->index : -1;
        k->bytes = hint(&g->exprs, b->elems) * tj_elem_bytes((tj_dtype)b->dtype);
    }
    return TRACE_OK;
}

// Compiled again by itself, with text: that of steady compiles is never made.
tj_status tj_plan_code(struct tj_plan *p, uint32_t kernel, const char **text) {
    struct tj_step_notes *notes = tj_plan_notes(p);
    *text = NULL;
    if (kernel >= tj_plan_program(p)->nsteps)
        return tj_fail(TRACE_ERR_ARGUMENT, "kernel %u: the plan has %u", kernel, tj_plan_program(p)->nsteps);
    char *have = atomic_load(&notes[kernel].code);
    if (have) {
        *text = have;
        return TRACE_OK;
    }
    struct tj_unit units[1 + TJ_CONTRACT_TILES];
    memset(units, 0, sizeof units);
    size_t n = tj_plan_step_units(p, kernel, units);
    if (!n) {
        *text = "; written by hand (kernels/), nothing is generated\n";
        return TRACE_OK;
    }
    for (size_t i = 0; i < n; i++)
        (void)snprintf(units[i].symbol, sizeof units[i].symbol,
                       i || units[0].kind == TJ_UNIT_GEMM ? "tile_%zu" : "kernel", i);
    struct tj_jit *jit = tj_plan_jit(p);
    struct tj_compile_result res;
    memset(&res, 0, sizeof res);
    tj_status s = jit->api->compile(jit->compiler, units, n, TJ_WANT_TEXT, &res);
    if (!s)
        tj_exec_unmap(&res.code);
    tj_free(res.ir);
    if (s || !res.asm_text) {
        tj_free(res.asm_text);
        return tj_fail(s ? s : TRACE_ERR_MEMORY, "the kernel's code can't be shown: %s",
                       res.error[0] ? res.error : "no text");
    }
    char *none = NULL;
    if (atomic_compare_exchange_strong(&notes[kernel].code, &none, res.asm_text)) {
        *text = res.asm_text;
    } else { // another thread asked, too
        tj_free(res.asm_text);
        *text = none;
    }
    return TRACE_OK;
}
