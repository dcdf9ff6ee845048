// jit/program.c: from segment to program, and its text.
#include "graph.h"

#include <inttypes.h>
#include <stdio.h>

#include "../lib/strbuf.h"
#include "../trace/repeat.h"
#include "lower.h"

tj_status tj_program_build(const struct tj_segment *seg, const struct tj_env *env, const struct tj_cpu *cpu,
                           struct tj_program **out) {
    *out = NULL;
    struct tj_program *p = tj_calloc(1, sizeof *p);
    if (!p) {
        return tj_fail(TRACE_ERR_MEMORY, "out of memory while compiling");
    }
    tj_exprs_init(&p->exprs);
    bool single = env->disable || tj_env_off(env, TJ_KILL_FUSE);
    struct tj_graph g = {.seg = seg,
                         .t = seg->trace,
                         .p = p,
                         .arena = &p->arena,
                         .x = &p->exprs,
                         .simplify = !tj_env_off(env, TJ_KILL_SIMPLIFY),
                         .fuse = !single};
    tj_status s = tj_graph_build(&g);
    if (s == TRACE_OK) {
        s = tj_schedule(&g, env, cpu);
    }
    tj_graph_free(&g);
    if (s != TRACE_OK) {
        tj_program_free(p);
        return s;
    }
    *out = p;
    return TRACE_OK;
}

void tj_program_free(struct tj_program *p) {
    if (!p) {
        return;
    }
    for (uint32_t i = 0; i < p->nbodies; i++) {
        tj_body_free(p->bodies[i].body);
    }
    tj_free(p->bodies);
    tj_exprs_free(&p->exprs);
    tj_arena_free(&p->arena);
    tj_free(p);
}

static void put_ex(const struct tj_program *p, tj_ex e, struct tj_strbuf *sb) {
    char buf[160];
    tj_ex_print(&p->exprs, e, buf, sizeof buf);
    tj_sb_puts(sb, buf);
}

static void put_geom(const struct tj_program *p, const char *name, const struct tj_geom *g, struct tj_strbuf *sb) {
    tj_sb_printf(sb, " %s=b%u.%s[", name, g->buf, tj_dtypes[g->dtype].name);
    for (uint32_t i = 0; i < g->rank; i++) {
        tj_sb_puts(sb, i ? ", " : "");
        put_ex(p, g->dims[i], sb);
        tj_sb_puts(sb, ":");
        put_ex(p, g->strides[i], sb);
    }
    tj_sb_puts(sb, "]");
    if (g->offset) {
        tj_sb_puts(sb, "+");
        put_ex(p, g->offset, sb);
    }
}

static void put_loc(const struct tj_trace *t, tj_ref node, struct tj_strbuf *sb) {
    if (t && node < t->nnodes && t->locs && t->locs[node].file) {
        tj_sb_printf(sb, " (%s:%d)", t->locs[node].file, (int)t->locs[node].line);
    }
}

static void put_loop(const struct tj_program *p, const struct tj_loop *l, struct tj_strbuf *sb) {
    tj_sb_puts(sb, "  rows ");
    put_ex(p, l->rows, sb);
    tj_sb_puts(sb, " cols ");
    put_ex(p, l->cols, sb);
    tj_sb_puts(sb, " reduced ");
    put_ex(p, l->row_elems, sb);
    tj_sb_puts(sb, "; buffers");
    for (uint32_t i = 0; i < l->kernel->nbufs; i++) {
        tj_sb_printf(sb, " b%u", l->bufs[i]);
    }
    tj_sb_puts(sb, "; integers");
    for (uint32_t i = 2; i < l->kernel->nivals; i++) {
        tj_sb_printf(sb, " i%u=", i);
        put_ex(p, l->ivals[i], sb);
    }
    if (l->kernel->nsvals) {
        tj_sb_puts(sb, "; scalars");
    }
    for (uint32_t i = 0; i < l->kernel->nsvals; i++) {
        tj_sb_printf(sb, " s%u=p%" PRId64, i, l->svals[i].param);
    }
    tj_sb_puts(sb, "\n  ");
    tj_kernel_dump(l->kernel, sb);
}

void tj_program_dump(const struct tj_program *p, const struct tj_trace *t, struct tj_strbuf *sb) {
    static const char *const kinds[] = {"leaf", "out", "temp"};
    static const char *const steps[] = {"loop", "matmul", "conv2d", "sdpa", "index_copy", "copy", "repeat"};
    tj_sb_printf(sb, "program: %u ops, %u steps, %u fused away\n", p->nops, p->nsteps, p->nfused);
    for (uint32_t i = 0; i < p->nbufs; i++) {
        const struct tj_buf *b = &p->bufs[i];
        tj_sb_printf(sb, "b%u: %s", i, kinds[b->kind]);
        if (b->kind != TJ_BUF_TEMP) {
            tj_sb_printf(sb, " %u", b->index);
        }
        tj_sb_printf(sb, " %s[", tj_dtypes[b->dtype].name);
        put_ex(p, b->elems, sb);
        tj_sb_puts(sb, "]\n");
    }
    for (uint32_t i = 0; i < p->nguards; i++) {
        tj_sb_puts(sb, "guard ");
        put_ex(p, p->guards[i].a, sb);
        tj_sb_puts(sb, " == ");
        put_ex(p, p->guards[i].b, sb);
        put_loc(t, p->guards[i].node, sb);
        tj_sb_puts(sb, "\n");
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct tj_step *st = &p->steps[i];
        tj_sb_printf(sb, "step %u: %s %s", i, steps[st->kind], st->name ? st->name : "");
        put_loc(t, st->node, sb);
        if (st->kind == TJ_STEP_REPEAT) {
            tj_sb_printf(sb, " turns=p%u", st->repeat->body->times);
            for (uint32_t k = 0; k < st->repeat->body->n; k++) {
                put_geom(p, "in", &st->repeat->init[k], sb);
                tj_sb_printf(sb, " out=b%u", st->repeat->out[k]);
            }
        } else if (st->kind != TJ_STEP_LOOP) {
            put_geom(p, "out", &st->out, sb);
            put_geom(p, "a", &st->a, sb);
            if (st->kind != TJ_STEP_COPY) {
                put_geom(p, "b", &st->b, sb);
            }
            if (st->has_bias || st->kind == TJ_STEP_SDPA) {
                put_geom(p, "c", &st->c, sb);
            }
            if (st->has_mask) {
                put_geom(p, "d", &st->d, sb);
            }
            tj_sb_puts(sb, st->weight_stable ? " stable" : "");
            tj_sb_puts(sb, st->causal ? " causal" : "");
            if (st->kind == TJ_STEP_INDEX_COPY) {
                tj_sb_printf(sb, " dim %" PRId64, st->dim);
            }
        }
        tj_sb_puts(sb, "\n");
        if (st->loop.kernel) {
            put_loop(p, &st->loop, sb);
        }
    }
}
