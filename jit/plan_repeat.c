// jit/plan_repeat.c: loops in a plan: the body is a plan of its own, whose instance lies in that of the plan around it.
//
// A turn reads the carried values from one set of buffers and leaves the next ones in another: the results' own and a
// second one in the step's workspace, so chosen that the last turn ends in the results'. The first turn reads the first
// values where they are. From turn to turn only addresses change.
#include "../trace/repeat.h"

#include "plan.h"

struct tj_turns {
    struct tj_plan_instance *in;  // of the body
    struct trace_tensor *tensors; // one a leaf of the body, then one a carried value: what a turn makes
    struct tj_storage *storages;
    struct tj_leaf *leaves;
    struct trace_tensor **outs;
    struct tj_param *params;
    struct tj_run_args args;
    struct tj_inlined inlined;  // of the body in the trace of a run
    uint32_t *leafbuf, *outbuf; // buffers of the body: one a leaf; one a carried value. UINT32_MAX: it has none
    uint32_t *outer;            // one a leaf that is one of the plan around it: its buffer there
    unsigned char **at[3];      // one a carried value: first, and the two it alternates between
    size_t *bytes;              // of a carried value
    size_t own;                 // bytes of the second set
};

// ---- compile --------------------------------------------------------------------------------------------------------

// Error sites and lines of a body's plan in nodes of the trace around it.
static void name_nodes(struct tj_plan *p, const tj_ref *origin) {
    for (uint32_t i = 0; i < p->prog->nsteps; i++) {
        struct tj_step *st = &p->prog->steps[i];
        st->node = origin[st->node];
        for (uint32_t k = 0; st->loop.kernel && k < st->loop.kernel->nsites; k++)
            st->loop.sites[k] = origin[st->loop.sites[k]];
        if (p->steps[i].body)
            name_nodes(p->steps[i].body, origin);
    }
}

tj_status tj_turns_compile(struct tj_jit *jit, const struct tj_repeat *r, struct tj_plan **body,
                           struct tj_plan_info *info) {
    struct tj_plan_info of = {0};
    tj_status s = tj_plan_compile(jit, &r->body->seg, body, &of);
    if (s)
        return s;
    name_nodes(*body, r->body->origin);
    info->ops += of.ops;
    info->kernels += of.kernels;
    info->new_kernels += of.new_kernels;
    info->fused_away += of.fused_away;
    info->bytes_code += of.bytes_code;
    info->emit_ns += of.emit_ns;
    info->codegen_ns += of.codegen_ns;
    return TRACE_OK;
}

bool tj_turns_fit(const struct tj_plan *p, uint32_t i, const struct tj_trace *t, const struct tj_inlined *inlined,
                  struct tj_guard_miss *why) {
    struct tj_inlined in = {p->prog->steps[i].repeat->body, inlined};
    return tj_plan_fits(p->steps[i].body, t, &in, why);
}

// ---- in an instance -------------------------------------------------------------------------------------------------

void tj_turns_free(const struct tj_plan *p, uint32_t i, struct tj_turns *t) {
    if (!t)
        return;
    tj_instance_free(p->steps[i].body, t->in);
    tj_free(t->tensors);
    tj_free(t->storages);
    tj_free(t->leaves);
    tj_free((void *)t->outs);
    tj_free(t->params);
    tj_free(t->leafbuf);
    tj_free((void *)t->at[0]);
    tj_free(t->bytes);
    tj_free(t);
}

// The tensor that stands for a leaf of the body, or for a next value, in a run whose trace is `tr`. False: too large.
static bool shadow(struct tj_turns *t, uint32_t i, const struct tj_trace *tr, const struct tj_node *n) {
    struct trace_tensor *x = &t->tensors[i];
    x->dtype = n->dtype;
    x->rank = (uint8_t)tj_shape_rank(tr, n->shape);
    memcpy(x->dims, tj_shape_dims(tr, n->shape), x->rank * sizeof *x->dims);
    x->st = &t->storages[i];
    x->internal = true;
    tj_contiguous_strides(x->dims, x->rank, x->strides);
    return tj_numel(x->dims, x->rank, &x->numel);
}

static struct tj_turns *turns_new(const struct tj_plan *p, uint32_t i, const struct tj_plan_instance *in) {
    const struct tj_repeat *r = p->prog->steps[i].repeat;
    const struct tj_body *b = r->body;
    const struct tj_plan *body = p->steps[i].body;
    uint32_t nl = b->trace.nleaves, n = b->n;
    struct tj_turns *t = tj_calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->in = tj_instance_new(body, in->pool, in->threads);
    t->tensors = tj_calloc(nl + n, sizeof *t->tensors);
    t->storages = tj_calloc(nl + n, sizeof *t->storages);
    t->leaves = tj_calloc(nl + 1, sizeof *t->leaves);
    t->outs = tj_calloc(n, sizeof(struct trace_tensor *));
    t->params = tj_calloc(b->trace.nparams + 1, sizeof *t->params);
    t->leafbuf = tj_calloc(2 * nl + n, sizeof *t->leafbuf);
    t->at[0] = tj_calloc(3 * n, sizeof(unsigned char *));
    t->bytes = tj_calloc(n, sizeof *t->bytes);
    if (!t->in || !t->tensors || !t->storages || !t->leaves || !t->outs || !t->params || !t->leafbuf || !t->at[0] ||
        !t->bytes) {
        tj_turns_free(p, i, t);
        return NULL;
    }
    t->outbuf = t->leafbuf + nl;
    t->at[1] = t->at[0] + n;
    t->at[2] = t->at[1] + n;
    t->outer = t->outbuf + n;
    memset(t->leafbuf, 0xFF, (2 * nl + n) * sizeof *t->leafbuf);
    for (uint32_t k = 0; k < nl; k++) {
        for (uint32_t m = 0; m < p->prog->nbufs && b->leaves[k].kind == TJ_BODY_LEAF; m++) {
            if (p->prog->bufs[m].kind == TJ_BUF_LEAF && p->prog->bufs[m].index == b->leaves[k].index)
                t->outer[k] = m;
        }
    }
    for (uint32_t k = 0; k < body->prog->nbufs; k++) {
        const struct tj_buf *buf = &body->prog->bufs[k];
        if (buf->kind == TJ_BUF_LEAF)
            t->leafbuf[buf->index] = k;
        else if (buf->kind == TJ_BUF_OUT)
            t->outbuf[buf->index] = k;
    }
    for (uint32_t k = 0; k < n; k++)
        t->outs[k] = &t->tensors[nl + k];
    return t;
}

// Arguments of the body's plan, as far as they are known before the workspace.
static tj_status turns_args(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in,
                            const struct tj_run_args *args) {
    const struct tj_body *b = p->prog->steps[i].repeat->body;
    struct tj_turns *t = in->turns[i];
    if (!t)
        t = in->turns[i] = turns_new(p, i, in);
    if (!t)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for a run");
    const struct tj_trace *tr = args->trace;
    bool ok = true;
    for (uint32_t k = 0; k < b->trace.nleaves && ok; k++) {
        t->leaves[k].tensor =
            b->leaves[k].kind == TJ_BODY_LEAF ? args->leaves[b->leaves[k].index].tensor : &t->tensors[k];
        if (b->leaves[k].kind != TJ_BODY_LEAF)
            ok = shadow(t, k, tr, &tr->nodes[tj_inlined_node(args->inlined, b->leaves[k].node)]);
    }
    t->inlined = (struct tj_inlined){b, args->inlined};
    for (uint32_t k = 0; k < b->n && ok; k++)
        ok = shadow(t, b->trace.nleaves + k, tr, &tr->nodes[tj_inlined_node(&t->inlined, b->outs[k])]);
    if (!ok)
        return tj_fail(TRACE_ERR_SHAPE, "the workspace of the run overflows");
    if (b->trace.nparams)
        memcpy(t->params, args->params, b->trace.nparams * sizeof *t->params);
    t->args = *args;
    t->args.inlined = &t->inlined;
    t->args.leaves = t->leaves;
    t->args.params = t->params;
    t->args.outs = t->outs;
    t->own = 0;
    for (uint32_t k = 0; k < b->n; k++) {
        if (!tj_tensor_bytes((tj_dtype)t->outs[k]->dtype, t->outs[k]->numel, &t->bytes[k]) ||
            t->bytes[k] > SIZE_MAX / 4 - t->own)
            return tj_fail(TRACE_ERR_SHAPE, "the workspace of the run overflows");
        t->own += tj_round_up(t->bytes[k]);
    }
    return TRACE_OK;
}

tj_status tj_turns_sizes(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in,
                         const struct tj_run_args *args) {
    tj_status s = turns_args(p, i, in, args);
    if (!s)
        s = tj_instance_sizes(p->steps[i].body, in->turns[i]->in, &in->turns[i]->args);
    if (!s)
        tj_instance_pack(p->steps[i].body, in->turns[i]->in, &in->turns[i]->args);
    return s;
}

bool tj_turns_guess(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, const struct tj_run_args *args) {
    return !turns_args(p, i, in, args) && tj_instance_guess(p->steps[i].body, in->turns[i]->in, &in->turns[i]->args);
}

bool tj_turns_moved(const struct tj_plan *p, uint32_t i, const struct tj_plan_instance *in) {
    return tj_instance_moved(p->steps[i].body, in->turns[i]->in);
}

tj_status tj_turns_place(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, size_t *want) {
    struct tj_turns *t = in->turns[i];
    size_t n;
    tj_status s = tj_instance_place(p->steps[i].body, t->in, &n);
    t->in->placed = !s;
    *want = t->own + n;
    return s;
}

void tj_turns_fill(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in) {
    struct tj_turns *t = in->turns[i];
    unsigned char *ws = in->ws + in->step_ws;
    for (uint32_t k = 0; k < p->prog->steps[i].repeat->body->n; k++) {
        t->at[2][k] = ws;
        ws += tj_round_up(t->bytes[k]);
    }
    t->in->ws = ws; // the plan's around it
    tj_instance_fill(p->steps[i].body, t->in, &t->args);
}

void tj_turns_unpack(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in) {
    if (in->turns[i])
        tj_instance_unpack(p->steps[i].body, in->turns[i]->in);
}

// Loops around a body, innermost first.
struct around {
    const struct around *next;
    const struct tj_body *body;
};

static void packed_in(const struct tj_plan *p, const struct tj_plan_instance *in, const struct around *of,
                      bool *packed) {
    for (uint32_t i = 0; i < p->prog->nsteps; i++) {
        if (p->steps[i].body) {
            struct around a = {of, p->prog->steps[i].repeat->body};
            packed_in(p->steps[i].body, in->turns[i]->in, &a, packed);
        }
        if (!in->packed[i])
            continue;
        uint32_t leaf = p->steps[i].weight_leaf;
        for (const struct around *a = of; a; a = a->next)
            leaf = a->body->leaves[leaf].index;
        packed[leaf] = true;
    }
}

void tj_turns_packed(const struct tj_plan *p, uint32_t i, const struct tj_plan_instance *in, bool *packed) {
    struct around a = {NULL, p->prog->steps[i].repeat->body};
    packed_in(p->steps[i].body, in->turns[i]->in, &a, packed);
}

static unsigned char *address(const struct tj_plan_instance *in, const struct tj_geom *g) {
    unsigned char *base = in->base[g->buf];
    return base ? base + in->vals[g->offset] * (int64_t)tj_elem_bytes((tj_dtype)g->dtype) : NULL;
}

tj_status tj_turns_run(struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, const struct tj_run_args *args) {
    const struct tj_repeat *r = p->prog->steps[i].repeat;
    const struct tj_body *b = r->body;
    struct tj_plan *body = p->steps[i].body;
    struct tj_turns *t = in->turns[i];
    int64_t turns = t->params[b->times].v.i;
    for (uint32_t k = 0; k < b->n; k++) {
        t->at[0][k] = address(in, &r->init[k]);
        t->at[1][k] = in->base[r->out[k]];
        if (turns || !t->bytes[k])
            continue;
        if (r->init[k].dtype == TRACE_BOOL)
            tj_copy_bools(t->at[1][k], t->at[0][k], t->bytes[k]);
        else
            memcpy(t->at[1][k], t->at[0][k], t->bytes[k]);
    }
    for (uint32_t k = 0; k < b->trace.nleaves; k++) {
        if (t->leafbuf[k] == UINT32_MAX)
            continue;
        if (b->leaves[k].kind == TJ_BODY_VALUE)
            t->in->base[t->leafbuf[k]] = address(in, &r->value[k]);
        else if (t->outer[k] != UINT32_MAX) // in a loop it moves from turn to turn
            t->in->base[t->leafbuf[k]] = in->base[t->outer[k]];
    }
    t->args.launches = args->launches;
    t->args.bytes_moved = args->bytes_moved;
    t->args.cancel = args->cancel;
    t->args.err = args->err;
    unsigned char **from = t->at[0], **to = t->at[turns % 2 ? 1 : 2];
    for (int64_t turn = 0; turn < turns; turn++) {
        for (uint32_t k = 0; k < b->n; k++) {
            if (b->leafof[k] != UINT32_MAX && t->leafbuf[b->leafof[k]] != UINT32_MAX)
                t->in->base[t->leafbuf[b->leafof[k]]] = from[k];
            if (t->outbuf[k] != UINT32_MAX)
                t->in->base[t->outbuf[k]] = to[k];
        }
        tj_instance_bufs(body, t->in);
        tj_status s = tj_plan_steps(body, t->in, &t->args);
        if (s)
            return s;
        from = to;
        to = to == t->at[1] ? t->at[2] : t->at[1];
    }
    return TRACE_OK;
}
