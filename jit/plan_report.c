// jit/plan_report.c: what reports tell of a plan: its kernels, what they move and took, their code, and why values have
// memory of their own.
#include <stdio.h>

#include "../lib/arena.h"
#include "../lib/strbuf.h"
#include "cpu_backend.h"
#include "lower.h"

struct sizes { // of a run, or of the recorded shapes, which expressions keep as hints
    const struct tj_exprs *x;
    const int64_t *vals; // NULL: the hints
};
static uint64_t size(const struct sizes *s, tj_ex e) {
    int64_t v = s->vals ? s->vals[e] : tj_ex_hint(s->x, e);
    return v > 0 ? (uint64_t)v : 0;
}

static double loop_flops(const struct sizes *s, const struct tj_loop *l, bool *f64) {
    const struct tj_kernel *k = l->kernel;
    double rows = (double)size(s, l->rows), cols = (double)size(s, l->cols);
    double reduced = (double)size(s, l->row_elems), total = 0;
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
    return total;
}

static double geom_elems(const struct sizes *s, const struct tj_geom *g) {
    double n = 1;
    for (uint32_t d = 0; d < g->rank; d++)
        n *= (double)size(s, g->dims[d]);
    return n;
}

static uint64_t step_flops(const struct sizes *s, const struct tj_step *st, bool *f64) {
    double n = st->loop.kernel ? loop_flops(s, &st->loop, f64) : 0, out;
    switch (st->kind) {
    case TJ_STEP_MATMUL: n += 2 * geom_elems(s, &st->out) * (double)size(s, st->a.dims[st->a.rank - 1]); break;
    case TJ_STEP_CONV2D: // an element of out takes a filter: channels of a group, rows, columns
        out = geom_elems(s, &st->out);
        n += 2 * out * geom_elems(s, &st->b) / (double)(size(s, st->b.dims[0]) ? size(s, st->b.dims[0]) : 1);
        break;
    case TJ_STEP_SDPA: // two products and a softmax of [.., L, S]
        out = geom_elems(s, &st->out) * (double)size(s, st->b.dims[st->b.rank - 2]);
        n += 4 * out +
             10 * out / (double)(size(s, st->a.dims[st->a.rank - 1]) ? size(s, st->a.dims[st->a.rank - 1]) : 1);
        break;
    default: return n < 1e18 ? (uint64_t)n : (uint64_t)1e18;
    }
    *f64 = *f64 || st->out.dtype == TRACE_F64;
    return n < 1e18 ? (uint64_t)n : (uint64_t)1e18;
}

void tj_step_work(const struct tj_program *g, const struct tj_step *st, const int64_t *vals, struct tj_step_work *out) {
    struct sizes s = {&g->exprs, vals};
    out->f64 = false;
    out->read = size(&s, st->bytes_read);
    out->written = size(&s, st->bytes_written);
    out->flops = step_flops(&s, st, &out->f64);
}

tj_status tj_plan_report(const struct tj_plan *p, struct tj_arena *a, struct tj_plan_report *out) {
    static const char *const kinds[] = {"loop", "matmul", "conv2d", "attention", "index_copy", "copy", "repeat"};
    static const char *const loops[] = {"pointwise", "rows", "columns"};
    const struct tj_program *g = tj_plan_program(p);
    struct sizes s = {&g->exprs, NULL};
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
        struct tj_step_work work;
        struct tj_step_time time;
        tj_step_work(g, st, NULL, &work);
        tj_plan_times(p, i, &time);
        k->f64 = work.f64;
        k->bytes_read = work.read;
        k->bytes_written = work.written;
        k->flops = work.flops;
        k->packed = tj_plan_step_packed(p, i);
        k->runs = time.runs;
        k->best_ns = time.best_ns;
        k->total_ns = time.total_ns;
        k->timed_bytes = time.bytes;
        k->timed_flops = time.flops;
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
        k->bytes = size(&s, b->elems) * tj_elem_bytes((tj_dtype)b->dtype);
    }
    return TRACE_OK;
}

bool tj_plan_extent(const struct tj_plan *p, tj_ref node, uint32_t dim, char *buf, size_t cap) {
    const struct tj_program *g = tj_plan_program(p);
    if (!g->extents || g->extent_at[node] + dim >= g->nextents)
        return false;
    tj_ex e = g->extents[g->extent_at[node] + dim];
    if (e == TJ_EX_NONE || tj_ex_is_const(&g->exprs, e))
        return false;
    tj_ex_print(&g->exprs, e, buf, cap);
    return true;
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
        *text = tj_plan_program(p)->steps[kernel].repeat ? "; a counted loop: the code is that of its body's kernels\n"
                                                         : "; written by hand (kernels/), nothing is generated\n";
        return TRACE_OK;
    }
    for (size_t i = 0; i < n; i++)
        (void)snprintf(units[i].symbol, sizeof units[i].symbol,
                       i || units[0].kind == TJ_UNIT_GEMM ? "tile_%zu" : "kernel", i);
    struct tj_jit *jit = tj_plan_jit(p);
    struct tj_compile_result res;
    memset(&res, 0, sizeof res);
    tj_status s = tj_jit_compile(jit, units, n, TJ_WANT_TEXT, &res);
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
