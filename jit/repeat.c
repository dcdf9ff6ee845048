// jit/repeat.c: counted loops in a graph and in a schedule: one opaque step whose body is a plan of its own.
//
// In the graph a loop is a REPEAT node over what it begins with and what its body takes from outside, and a RESULT node
// for every carried value, whose extents are those of the first one. In a symbolic segment the body's plan has symbols
// of its own: the extents of its leaves that are no constants here. They are read from the same trace, and what the
// body needs to be equal is checked with it (tj_plan_serves).
#include "../trace/repeat.h"
#include "../trace/dynamic.h"

#include "lower.h"

static struct tj_loop_body *find(const struct tj_graph *g, tj_ref out) {
    tj_ref first = tj_loop_ins(g->t, &g->t->nodes[out])[0];
    for (uint32_t i = 0; i < g->p->nbodies; i++) {
        const struct tj_body *b = g->p->bodies[i].body;
        if (tj_loop_ins(g->t, &g->t->nodes[b->out])[0] == first) {
            return &g->p->bodies[i];
        }
    }
    return NULL;
}

tj_status tj_g_loop_needs(struct tj_graph *g, tj_ref out, uint8_t *reached) {
    struct tj_loop_body *l = find(g, out);
    if (!l) {
        struct tj_program *p = g->p;
        if (!tj_grow((void **)&p->bodies, &p->capbodies, p->nbodies + 1, sizeof *p->bodies)) {
            return tj_fail(TRACE_ERR_MEMORY, "out of memory while compiling");
        }
        l = &p->bodies[p->nbodies];
        tj_status s = tj_body_take(g->seg, out, &l->body);
        if (s) {
            return s;
        }
        p->nbodies++;
    }
    l->made = false;
    for (uint32_t i = 0; i < l->body->n; i++) {
        reached[l->body->init[i]] = 1;
    }
    for (uint32_t i = 0; i < l->body->trace.nleaves; i++) {
        if (l->body->leaves[i].kind != TJ_BODY_CARRIED) {
            reached[l->body->leaves[i].node] = 1;
        }
    }
    return TRACE_OK;
}

// The symbols of the body's plan.
static bool choose_symbols(struct tj_graph *g, struct tj_body *b) {
    const struct tj_dynamic *dyn = g->seg->dyn;
    if (!dyn) {
        return true;
    }
    if (!b->dyn.leaf && !tj_dynamic_init(&b->dyn, &b->trace)) {
        return false;
    }
    for (uint32_t i = 0; i < b->trace.nleaves; i++) {
        const struct tj_body_leaf *l = &b->leaves[i];
        const struct tj_gnode *x = &g->nodes[g->map[l->kind == TJ_BODY_CARRIED ? b->init[l->index] : l->node]];
        b->dyn.leaf[i] = 0;
        for (uint32_t d = 0; d < x->rank; d++) {
            b->dyn.leaf[i] |= (uint8_t)(!tj_ex_is_const(g->x, x->dims[d]) << d);
        }
    }
    for (uint32_t i = 0; i < b->trace.nnodes; i++) {
        b->dyn.arg[i] = dyn->arg[b->origin[i]];
    }
    b->dyn.args = dyn->args;
    b->seg.dyn = &b->dyn;
    return true;
}

// The REPEAT node: operands are the first values, then what the leaves of the body stand for.
static bool make_loop(struct tj_graph *g, tj_ref out, struct tj_loop_body *l) {
    struct tj_body *b = l->body;
    uint32_t n = 0;
    tj_ref *in = TJ_ARENA_NEW(g->arena, tj_ref, b->n + b->trace.nleaves + 1);
    if (!in) {
        return false;
    }
    for (uint32_t i = 0; i < b->n; i++) {
        in[n++] = g->map[b->init[i]];
    }
    for (uint32_t i = 0; i < b->trace.nleaves; i++) {
        if (b->leaves[i].kind != TJ_BODY_CARRIED) {
            in[n++] = g->map[b->leaves[i].node];
        }
    }
    if (!choose_symbols(g, b)) {
        return false;
    }
    struct tj_attr_dim which = {l - g->p->bodies};
    struct tj_gnode r = {.op = TJ_G_REPEAT,
                         .dtype = TRACE_I64,
                         .nin = n,
                         .in = in,
                         .attr = &which,
                         .nattr = 1,
                         .flags = TJ_GF_NOCSE,
                         .trace = out};
    l->node = tj_g_add(g, &r);
    l->made = !g->failed;
    return l->made;
}

tj_ref tj_g_loop(struct tj_graph *g, tj_ref out) {
    const struct tj_node *n = &g->t->nodes[out];
    struct tj_loop_body *l = find(g, out);
    if (!l->made && !make_loop(g, out, l)) {
        g->failed = true;
        return 0;
    }
    size_t rank = tj_shape_rank(g->t, n->shape);
    tj_ex dims[TJ_G_RANK];
    tj_ref first = l->body->init[((const struct tj_attr_dim *)tj_node_attr(g->t, n))->dim];
    for (size_t d = 0; d < rank; d++) { // a loop carries one shape
        dims[d] = g->nodes[g->map[first]].dims[d];
        if (g->p->extents) {
            g->p->extents[g->p->extent_at[out] + d] = dims[d];
        }
    }
    struct tj_gnode r = {.op = TJ_G_RESULT,
                         .dtype = n->dtype,
                         .rank = (uint8_t)rank,
                         .nin = 1,
                         .in = &l->node,
                         .dims = dims,
                         .attr = tj_node_attr(g->t, n),
                         .nattr = 1,
                         .trace = out};
    return tj_g_add(g, &r);
}

// Contiguous memory of an operand: its own where that is so, else a copy.
static void memory_of(struct tj_sched *s, tj_ref n, struct tj_geom *out) {
    if (tj_is_alias(s, n)) {
        if (tj_s_contiguous(s, s->alias[n])) {
            *out = *s->alias[n];
            return;
        }
        s->flags[n] |= TJ_S_FORCE;
    }
    tj_s_buffer_geom(s, n, tj_s_buffer(s, n), out);
}

bool tj_s_repeat(struct tj_sched *s, tj_ref n) {
    const struct tj_gnode *d = TJ_NODE(s, n);
    struct tj_program *p = s->p;
    const struct tj_body *b = p->bodies[((const struct tj_attr_dim *)d->attr)->dim].body;
    struct tj_repeat *r = TJ_ARENA_NEW(&p->arena, struct tj_repeat, 1);
    struct tj_geom *geoms = TJ_ARENA_NEW(&p->arena, struct tj_geom, b->n + b->trace.nleaves + 1);
    uint32_t *out = TJ_ARENA_NEW(&p->arena, uint32_t, b->n);
    struct tj_step *st = r && geoms && out ? tj_s_step(s, TJ_STEP_REPEAT, d->trace) : NULL;
    if (!st) {
        (void)tj_s_memory(s);
        return false;
    }
    uint32_t at = (uint32_t)(s->nsteps - 1);
    *r = (struct tj_repeat){.body = p->bodies[((const struct tj_attr_dim *)d->attr)->dim].body,
                            .init = geoms,
                            .value = geoms + b->n,
                            .out = out};
    for (uint32_t i = 0; i < b->n; i++) {
        memory_of(s, d->in[i], &r->init[i]);
        out[i] = TJ_NOBUF;
    }
    uint32_t k = b->n;
    for (uint32_t i = 0; i < b->trace.nleaves; i++) {
        if (b->leaves[i].kind == TJ_BODY_VALUE) {
            memory_of(s, d->in[k], &r->value[i]);
        }
        k += b->leaves[i].kind != TJ_BODY_CARRIED;
    }
    // Results that are wanted have their buffers, as their users come later; the others need some too.
    for (uint32_t i = s->user_at[n]; i < s->user_at[n + 1]; i++) {
        tj_ref u = s->users[i];
        out[((const struct tj_attr_dim *)TJ_NODE(s, u)->attr)->dim] = s->buf[u];
    }
    for (uint32_t i = 0; i < b->n && !s->status; i++) {
        if (out[i] != TJ_NOBUF) {
            continue;
        }
        const struct tj_gnode *x = TJ_NODE(s, d->in[i]);
        out[i] = tj_s_new_buf(s, TJ_BUF_TEMP, x->dtype, 0, tj_g_elems(s->g, d->in[i]), d->trace);
    }
    if (s->status) {
        return false;
    }
    st = &s->steps[at];
    st->repeat = r;
    st->name = "repeat";
    return tj_s_step_done(s, st);
}
