// trace/check_find.c: which op of a checked run is to blame for a difference.
//
// The segment is compiled once more with every value as a result, and run on copies. Each op is then done by the
// interpreter from the plan's own operands and compared with the plan's own result: the first one that differs is wrong
// by itself. When none is, and the run's results are those of this plan, they differ by what contractions may differ
// by. Else an op is wrong only in the kernels of the plan that ran: plans that end at one op are compared with the
// values known by then, until the first is found whose operands are all right.
#include <math.h>
#include <stdio.h>

#include "check.h"
#include "record.h"

#define MORE 16 // nodes, and operands in lists, added to the trace for one contraction

struct find {
    struct tj_check *c;
    trace_context *ctx;
    const struct tj_trace *t;
    bool *needed;                 // one a node
    bool *turning;                // one a node: differs from turn to turn of a loop
    uint32_t *at;                 // node -> index into `asked`, or UINT32_MAX
    tj_ref *asked;                // nodes whose values the plan gives
    struct trace_tensor **values; // of these
    uint32_t nasked;
    // the trace whose nodes become leaves as soon as they are known
    struct tj_trace known;
    struct tj_leaf *leaves;
    tj_ref *list;    // scratch: ancestors of a node
    uint8_t *differ; // scratch: what is known of them: 0 nothing, 1 the same, 2 different
};

static tj_status no_memory(void) { return tj_fail(TRACE_ERR_MEMORY, "out of memory for looking for the op to blame"); }

static bool is_view(const struct tj_trace *t, tj_ref n) { return tj_ops[t->nodes[n].op].cls == TJ_VIEW; }
static bool is_source(const struct tj_trace *t, tj_ref n) { return tj_ops[t->nodes[n].op].cls == TJ_SOURCE; }
static bool soft(const struct tj_trace *t, tj_ref n) {
    return tj_ops[t->nodes[n].op].numeric == TJ_CONTRACTION && tj_is_float((tj_dtype)t->nodes[n].dtype);
}
// Counted loops (trace/repeat.h): what depends on a carried value has no value of its own behind the loop.
static bool loop_op(const struct tj_trace *t, tj_ref n, const char *name) {
    return !strcmp(tj_ops[t->nodes[n].op].name, name);
}
// The view that an UPDATE writes through is only geometry.
static uint32_t operands(const struct tj_node *n) { return n->op == TJ_OP_UPDATE ? 2 : n->nin; }

static void mark_operands(const struct tj_trace *t, bool *mark) {
    for (tj_ref n = t->nnodes; n-- > 0;) {
        const tj_ref *in = tj_node_in(t, &t->nodes[n]);
        for (uint32_t k = 0; mark[n] && k < operands(&t->nodes[n]); k++)
            mark[in[k]] = true;
    }
}

static struct trace_tensor *value_new(const struct find *f, tj_ref n, tj_dtype d) {
    uint32_t s = f->t->nodes[n].shape;
    return tj_tensor_new(f->ctx, d, tj_shape_dims(f->t, s), tj_shape_rank(f->t, s), "check", TJ_LOC(NULL, 0));
}

// ---- plans on copies ------------------------------------------------------------------------------------------------

static tj_status run_plan(struct find *f, const tj_ref *outs, uint32_t n, struct trace_tensor *const *values,
                          bool writes) {
    struct tj_segment seg = *f->c->seg;
    struct tj_plan *plan = NULL;
    struct tj_plan_info info;
    struct tj_shadow own = {0};
    struct tj_data_error err;
    uint64_t unused = 0;
    memset(&err, 0, sizeof err);
    memset(&info, 0, sizeof info);
    seg.outs = outs;
    seg.nouts = n;
    seg.nwrites = writes ? seg.nwrites : 0;
    seg.symbolic = false;
    seg.dyn = NULL;
    seg.name = "check";
    tj_status st = f->ctx->backend->compile(f->ctx->backend_state, &seg, &plan, &info);
    if (st)
        return st;
    st = tj_shadow_make(f->ctx, f->c->seg, f->c->before.leaves, &own);
    struct tj_run_args args = *f->c->args;
    args.leaves = own.leaves;
    args.outs = values;
    args.err = &err;
    args.launches = args.bytes_moved = args.interpreted = &unused;
    if (!st)
        st = f->ctx->backend->run(plan, &args);
    f->ctx->backend->release(plan);
    tj_shadow_free(f->ctx, &own);
    return st;
}

static void ask(struct find *f, tj_ref n) {
    if (f->at[n] != UINT32_MAX)
        return;
    f->at[n] = f->nasked;
    f->asked[f->nasked++] = n;
}

static tj_status get_values(struct find *f) {
    const struct tj_segment *s = f->c->seg;
    for (tj_ref n = 0; n < f->t->nnodes; n++) { // in program order
        bool out = false;
        for (uint32_t i = 0; i < s->nouts; i++)
            out |= s->outs[i] == n;
        if (f->needed[n] && !f->turning[n] && (out || (!is_source(f->t, n) && !is_view(f->t, n))))
            ask(f, n);
    }
    for (uint32_t i = 0; i < f->nasked; i++) {
        f->values[i] = value_new(f, f->asked[i], (tj_dtype)f->t->nodes[f->asked[i]].dtype);
        if (!f->values[i])
            return TRACE_ERR_MEMORY;
    }
    return run_plan(f, f->asked, f->nasked, f->values, true);
}

// ---- one op by the interpreter --------------------------------------------------------------------------------------

static tj_status make_known(struct find *f) {
    const struct tj_trace *t = f->t;
    struct tj_trace *k = &f->known;
    *k = *t; // shapes, parameters and lines are shared
    k->nodes = tj_malloc((t->nnodes + MORE) * sizeof *k->nodes);
    k->attrs = tj_malloc((t->nattrs + t->nnodes + 1) * sizeof *k->attrs);
    k->operands = tj_malloc((t->noperands + MORE) * sizeof *k->operands);
    f->leaves = tj_malloc((t->nleaves + t->nnodes + 1) * sizeof *f->leaves);
    if (!k->nodes || !k->attrs || !k->operands || !f->leaves)
        return no_memory();
    memcpy(k->nodes, t->nodes, t->nnodes * sizeof *k->nodes);
    if (t->nattrs)
        memcpy(k->attrs, t->attrs, t->nattrs * sizeof *k->attrs);
    if (t->noperands)
        memcpy(k->operands, t->operands, t->noperands * sizeof *k->operands);
    for (tj_ref n = 0; n < t->nnodes; n++)
        k->attrs[t->nattrs + n] = t->nleaves + n;
    for (uint32_t i = 0; i < t->nleaves; i++)
        f->leaves[i] = f->c->before.leaves[i];
    return TRACE_OK;
}

// From now on the value of n is the plan's.
static void set_known(struct find *f, tj_ref n, struct trace_tensor *value) {
    struct tj_node *d = &f->known.nodes[n];
    *d = (struct tj_node){.op = TJ_OP_LEAF, .dtype = d->dtype, .nattr = 1, .shape = d->shape, .attr = f->t->nattrs + n};
    f->leaves[f->t->nleaves + n] = (struct tj_leaf){value, NULL};
}

static tj_status interpret(struct find *f, const tj_ref *outs, uint32_t n, struct trace_tensor *const *values) {
    struct tj_segment seg = *f->c->seg;
    struct tj_data_error err;
    uint64_t unused = 0;
    memset(&err, 0, sizeof err);
    seg.trace = &f->known;
    seg.outs = outs;
    seg.nouts = n;
    seg.nwrites = 0;
    struct tj_run_args args = *f->c->args;
    args.leaves = f->leaves;
    args.outs = values;
    args.err = &err;
    args.launches = args.bytes_moved = args.interpreted = &unused;
    return tj_interp_run(&seg, &args);
}

// An UPDATE of a leaf is done in place: its memory is a copy then.
static tj_status exact_op(struct find *f, tj_ref n, struct trace_tensor *want) {
    const struct tj_node *d = &f->known.nodes[n];
    if (d->op != TJ_OP_UPDATE)
        return interpret(f, &n, 1, &want);
    tj_ref memory = d->in[0];
    const struct tj_node *m = &f->known.nodes[memory];
    if (m->op != TJ_OP_LEAF)
        return interpret(f, &n, 1, &want);
    struct tj_leaf *leaf = &f->leaves[((const struct tj_attr_leaf *)tj_node_attr(&f->known, m))->index], was = *leaf;
    const struct trace_tensor *x = was.tensor;
    struct trace_tensor *copy = value_new(f, memory, (tj_dtype)m->dtype);
    if (!copy)
        return TRACE_ERR_MEMORY;
    if (x->numel)
        tj_copy_strided(tj_tensor_data(copy), copy->strides, tj_tensor_data(x), x->strides, x->dims, x->rank,
                        (tj_dtype)x->dtype);
    leaf->tensor = copy;
    tj_status st = interpret(f, &n, 1, &want);
    *leaf = was;
    tj_tensor_drop(copy);
    return st;
}

// ---- contractions ---------------------------------------------------------------------------------------------------

static tj_ref add_node(struct find *f, struct tj_node node) {
    f->known.nodes[f->known.nnodes] = node;
    return f->known.nnodes++;
}

static tj_ref widened(struct find *f, tj_ref n) {
    const struct tj_node *d = &f->known.nodes[n];
    if (d->dtype == TRACE_F64 || !tj_is_float((tj_dtype)d->dtype))
        return n;
    return add_node(f, (struct tj_node){.op = TJ_OP_CAST, .dtype = TRACE_F64, .shape = d->shape, .nin = 1, .in = {n}});
}

static tj_ref magnitude(struct find *f, tj_ref n) {
    const struct tj_node *d = &f->known.nodes[n];
    return add_node(f, (struct tj_node){.op = TJ_OP_ABS, .dtype = TRACE_F64, .shape = d->shape, .nin = 1, .in = {n}});
}

static int64_t extent(const struct find *f, tj_ref n, int from_end) {
    uint32_t s = f->known.nodes[n].shape;
    size_t rank = tj_shape_rank(f->t, s);
    return rank >= (size_t)from_end ? tj_shape_dims(f->t, s)[rank - (size_t)from_end] : 1;
}

// Products added for one element.
static double terms(const struct find *f, tj_ref n) {
    const tj_ref *in = tj_node_in(&f->known, &f->known.nodes[n]);
    if (f->known.nodes[n].op != TJ_OP_CONV2D)
        return (double)extent(f, in[0], 1);
    return (double)extent(f, in[1], 1) * (double)extent(f, in[1], 2) * (double)extent(f, in[1], 3);
}

// Length of the longest row, of its finite elements.
static double longest_row(const struct trace_tensor *t) {
    int64_t n = t->rank ? t->dims[t->rank - 1] : 1;
    double best = 0;
    for (int64_t i = 0; n && i < t->numel; i += n) {
        double sum = 0;
        for (int64_t k = 0; k < n; k++) {
            double v = tj_check_float(t, i + k);
            sum += isfinite(v) ? v * v : 0;
        }
        best = sum > best ? sum : best;
    }
    return sqrt(best);
}

static double largest(const struct trace_tensor *t) {
    double best = 0;
    for (int64_t i = 0; i < t->numel; i++) {
        double v = fabs(tj_check_float(t, i));
        best = isfinite(v) && v > best ? v : best;
    }
    return best;
}

struct bound {
    double relative; // to the sum of the magnitudes of the products
    double rounding; // of the result, relative to it
    double tiny;     // of the smallest numbers
    double limit, result_limit;
};

static struct bound bound_of(tj_dtype d) {
    bool wide = d == TRACE_F64;
    struct bound b = {
        .relative = ldexp(1, wide ? -52 : -24), .limit = wide ? 1e308 : 3e38, .result_limit = wide ? 1e308 : 3.4e38};
    b.rounding = ldexp(1, wide ? -52 : d == TRACE_F16 ? -11 : d == TRACE_BF16 ? -8 : -24) * 1.01;
    b.tiny = ldexp(1, wide ? -1070 : d == TRACE_F16 ? -24 : d == TRACE_BF16 ? -133 : -145);
    if (d == TRACE_F16)
        b.result_limit = 65000;
    return b;
}

// got: the plan's; sum: of exact products, in f64; of: of their magnitudes.
static bool within(double got, double sum, double of, const struct bound *b) {
    if (got == sum || (isnan(got) && isnan(sum)))
        return true;
    if (!isfinite(of))
        return b->limit > 1e300 && !isfinite(sum);
    if (of > b->limit)
        return true; // an intermediate result may have overflowed
    double off = b->relative * of + b->rounding * fabs(sum) + b->tiny;
    if (isinf(got) && fabs(sum) + off >= b->result_limit)
        return signbit(got) == signbit(sum);
    return fabs(got - sum) <= off;
}

// How far the terms of a contraction's sum may be off, relative to their magnitudes.
static void widen_bound(struct find *f, tj_ref n, struct trace_tensor *const *values, uint32_t nvalues,
                        struct bound *b) {
    const struct tj_node *d = &f->t->nodes[n];
    const tj_ref *in = tj_node_in(f->t, d);
    double u = b->relative;
    b->relative = (terms(f, n) + 4) * u;
    if (d->op != TJ_OP_SDPA)
        return;
    // Scores are sums too; an error of theirs is a relative one of the weights, and these are divided by their sum.
    const struct tj_node *scale = &f->t->nodes[in[4]];
    double s = 1;
    if (scale->op == TJ_OP_SCALAR)
        s = fabs(f->c->args->params[((const struct tj_attr_param *)tj_node_attr(f->t, scale))->index].v.f);
    if (s == 0) // as by default
        s = 1 / sqrt(terms(f, n));
    double scores = s * longest_row(values[2]) * longest_row(values[3]);
    double off = (terms(f, n) + 4) * u * scores + (nvalues > 4 ? 2 * u * (largest(values[4]) + scores) : 0);
    b->relative = expm1(2 * off) + ((double)extent(f, in[1], 2) + 32) * u;
}

// A contraction of the plan against the same in f64. *same: within the error that a sum of its length may have.
static tj_status soft_op(struct find *f, tj_ref n, const struct trace_tensor *got, bool *same,
                         struct tj_difference *diff) {
    struct tj_trace *k = &f->known;
    uint32_t nodes = k->nnodes, nouts = 2, list = f->t->noperands;
    struct tj_node d = k->nodes[n], sum, sizes;
    struct trace_tensor *values[5] = {NULL};
    tj_ref in[MORE], magnitudes[MORE], outs[5];
    memcpy(in, tj_node_in(k, &d), d.nin * sizeof *in);
    bool attention = d.op == TJ_OP_SDPA;
    for (uint32_t i = 0; i < d.nin; i++)
        in[i] = widened(f, in[i]);
    for (uint32_t i = 0; i < d.nin; i++) // of attention: only the values that are averaged
        magnitudes[i] = !attention || i == 2 ? magnitude(f, in[i]) : in[i];
    d.dtype = TRACE_F64;
    sum = sizes = d;
    if (d.nin > 4) {
        memcpy(k->operands + list, in, d.nin * sizeof *in);
        memcpy(k->operands + list + d.nin, magnitudes, d.nin * sizeof *in);
        sum.in[0] = list;
        sizes.in[0] = list + d.nin;
    } else {
        memcpy(sum.in, in, d.nin * sizeof *in);
        memcpy(sizes.in, magnitudes, d.nin * sizeof *in);
    }
    outs[0] = add_node(f, sum);
    outs[1] = add_node(f, sizes);
    if (attention) {
        outs[nouts++] = in[0];
        outs[nouts++] = in[1];
        if (k->nodes[in[3]].dtype == TRACE_F64)
            outs[nouts++] = in[3];
    }
    tj_status st = TRACE_OK;
    for (uint32_t i = 0; i < nouts && !st; i++) {
        uint32_t s = k->nodes[outs[i]].shape;
        values[i] =
            tj_tensor_new(f->ctx, TRACE_F64, tj_shape_dims(f->t, s), tj_shape_rank(f->t, s), "check", TJ_LOC(NULL, 0));
        st = values[i] ? TRACE_OK : TRACE_ERR_MEMORY;
    }
    if (!st)
        st = interpret(f, outs, nouts, values);
    if (!st) {
        struct bound b = bound_of((tj_dtype)f->t->nodes[n].dtype);
        widen_bound(f, n, values, nouts, &b);
        *same = true;
        for (int64_t i = 0; i < got->numel && *same; i++) {
            if (within(tj_check_float(got, i), tj_check_float(values[0], i), tj_check_float(values[1], i), &b))
                continue;
            *same = false;
            diff->index = i;
            (void)snprintf(diff->got, sizeof diff->got, "%.9g", tj_check_float(got, i));
            (void)snprintf(diff->want, sizeof diff->want, "%.9g", tj_check_float(values[0], i));
        }
    }
    k->nnodes = nodes;
    for (uint32_t i = 0; i < nouts; i++) {
        if (values[i])
            tj_tensor_drop(values[i]);
    }
    return st;
}

// ---- op by op -------------------------------------------------------------------------------------------------------

// Whether a loop has contractions in its body.
static bool soft_loop(const struct find *f, tj_ref n) {
    if (!loop_op(f->t, n, "repeat_out"))
        return false;
    for (tj_ref k = 0; k < n; k++) {
        if (f->turning[k] && soft(f->t, k))
            return true;
    }
    return false;
}

// A loop is judged as a whole. What its contractions may differ by goes through every turn, for which there is no
// bound: alike in the first digits has to do.
static bool alike(const struct trace_tensor *got, const struct trace_tensor *want) {
    if (!tj_is_float((tj_dtype)want->dtype))
        return true;
    double most = largest(want);
    for (int64_t i = 0; i < want->numel; i++) {
        double x = tj_check_float(got, i), y = tj_check_float(want, i);
        if (x != y && !(isnan(x) && isnan(y)) && !(fabs(x - y) <= 1e-2 * most))
            return false;
    }
    return true;
}

static tj_status one_op(struct find *f, tj_ref n, bool *same, struct tj_difference *diff) {
    const struct trace_tensor *got = f->values[f->at[n]];
    if (soft(f->t, n))
        return soft_op(f, n, got, same, diff);
    struct trace_tensor *want = value_new(f, n, (tj_dtype)f->t->nodes[n].dtype);
    if (!want)
        return TRACE_ERR_MEMORY;
    tj_status st = exact_op(f, n, want);
    if (!st)
        *same = tj_check_same(got, want, diff) || (soft_loop(f, n) && alike(got, want));
    tj_tensor_drop(want);
    return st;
}

// The first op that is wrong by itself, or TJ_NIL.
static tj_status each_op(struct find *f, tj_ref *blame, struct tj_difference *diff) {
    *blame = TJ_NIL;
    for (uint32_t i = 0; i < f->nasked; i++) {
        tj_ref n = f->asked[i];
        bool same = true;
        tj_status st = one_op(f, n, &same, diff);
        if (st)
            return st;
        if (!same) {
            *blame = n;
            return TRACE_OK;
        }
        if (!is_view(f->t, n))
            set_known(f, n, f->values[i]);
    }
    return TRACE_OK;
}

// ---- what is wrong only among others --------------------------------------------------------------------------------

// Results of the run that aren't those of the plan whose ops are all right; TJ_NIL: none.
static tj_ref other_result(const struct find *f, struct tj_difference *diff) {
    const struct tj_check *c = f->c;
    const struct tj_leaf *leaves = c->apart ? c->own.leaves : c->args->leaves;
    for (uint32_t i = 0; i < c->seg->nouts; i++) {
        if (!tj_check_same(c->args->outs[i], f->values[f->at[c->seg->outs[i]]], diff))
            return c->seg->outs[i];
    }
    for (uint32_t i = 0; i < c->seg->nwrites; i++) {
        uint32_t k = tj_check_leaf(f->t, c->seg->writes[i]);
        if (k != UINT32_MAX && !tj_check_same(leaves[k].tensor, f->values[f->at[c->seg->writes[i]]], diff))
            return c->seg->writes[i];
    }
    return TJ_NIL;
}

// Whether a plan that ends at n gives another value of it.
static tj_status ends_wrong(struct find *f, tj_ref n, bool *wrong, struct tj_difference *diff) {
    if (f->differ[n] == 1) {
        *wrong = false;
        return TRACE_OK;
    }
    struct trace_tensor *value = value_new(f, n, (tj_dtype)f->t->nodes[n].dtype);
    if (!value)
        return TRACE_ERR_MEMORY;
    tj_status st = run_plan(f, &n, 1, &value, false);
    if (!st) {
        *wrong = !tj_check_same(value, f->values[f->at[n]], diff);
        f->differ[n] = *wrong ? 2 : 1;
    }
    tj_tensor_drop(value);
    return st;
}

// The first op before `last` at which a plan that ends there goes wrong. Starts by halving, then goes on to operands.
static tj_status first_among(struct find *f, tj_ref last, struct tj_blame *b) {
    uint32_t n = 0, lo = 0, hi;
    bool *mark = f->needed, wrong;
    struct tj_difference diff;
    memset(mark, 0, f->t->nnodes);
    mark[last] = true;
    mark_operands(f->t, mark);
    for (uint32_t i = 0; i < f->nasked; i++) {
        if (mark[f->asked[i]])
            f->list[n++] = f->asked[i];
    }
    tj_status st = ends_wrong(f, last, &wrong, &diff);
    if (st || !wrong) {
        (void)snprintf(b->note, sizeof b->note, "%s",
                       st ? tj_last_error() : "the op alone, and a plan that ends at it, are right");
        return st;
    }
    b->diff = diff;
    b->how = TJ_BLAME_FUSED;
    for (hi = n - 1; lo < hi && !st;) {
        uint32_t mid = (lo + hi) / 2;
        st = ends_wrong(f, f->list[mid], &wrong, &diff);
        if (!st && wrong) {
            b->node = f->list[mid];
            b->diff = diff;
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    bool found = true;
    while (found && !st) {
        found = false;
        memset(mark, 0, f->t->nnodes);
        mark[b->node] = true;
        mark_operands(f->t, mark);
        for (uint32_t i = 0; i < f->nasked && f->asked[i] < b->node && !found && !st; i++) {
            tj_ref m = f->asked[i];
            if (!mark[m] || f->differ[m] == 1)
                continue;
            st = ends_wrong(f, m, &found, &diff);
            if (!st && found) {
                b->node = m;
                b->diff = diff;
            }
        }
    }
    return st;
}

// ---- the search -----------------------------------------------------------------------------------------------------

static tj_status find_open(struct find *f) {
    uint32_t n = f->t->nnodes + 1;
    f->needed = tj_calloc(n, sizeof *f->needed);
    f->turning = tj_calloc(n, sizeof *f->turning);
    f->at = tj_malloc(n * sizeof *f->at);
    f->asked = tj_malloc(n * sizeof *f->asked);
    f->values = tj_calloc(n, sizeof *f->values);
    f->list = tj_malloc(n * sizeof *f->list);
    f->differ = tj_calloc(n, 1);
    if (!f->needed || !f->turning || !f->at || !f->asked || !f->values || !f->list || !f->differ)
        return no_memory();
    for (uint32_t i = 0; i < n; i++)
        f->at[i] = UINT32_MAX;
    for (uint32_t i = 0; i < f->c->seg->nouts; i++)
        f->needed[f->c->seg->outs[i]] = true;
    for (uint32_t i = 0; i < f->c->seg->nwrites; i++)
        f->needed[f->c->seg->writes[i]] = true;
    mark_operands(f->t, f->needed);
    // The first carried value that each node depends on, or TJ_NIL. Loops nest: what an inner loop's result owes to a
    // loop around it begins before its own carried values.
    tj_ref *turns = tj_malloc(n * sizeof *turns);
    if (!turns)
        return no_memory();
    for (tj_ref i = 0; i < f->t->nnodes; i++) {
        const tj_ref *in = tj_node_in(f->t, &f->t->nodes[i]);
        tj_ref low = loop_op(f->t, i, "repeat_in") ? i : TJ_NIL;
        for (uint32_t k = 0; k < f->t->nodes[i].nin; k++)
            low = turns[in[k]] < low ? turns[in[k]] : low;
        if (loop_op(f->t, i, "repeat_out"))
            low = low < in[1] ? low : TJ_NIL;
        turns[i] = low;
        f->turning[i] = low != TJ_NIL;
    }
    tj_free(turns);
    return make_known(f);
}

static void find_close(struct find *f) {
    for (uint32_t i = 0; i < f->nasked; i++) {
        if (f->values[i])
            tj_tensor_drop(f->values[i]);
    }
    tj_free(f->needed);
    tj_free(f->turning);
    tj_free(f->at);
    tj_free(f->asked);
    tj_free(f->values);
    tj_free(f->list);
    tj_free(f->differ);
    tj_free(f->known.nodes);
    tj_free(f->known.attrs);
    tj_free(f->known.operands);
    tj_free(f->leaves);
}

static bool behind_contraction(const struct find *f, tj_ref first) {
    bool *mark = tj_calloc(f->t->nnodes, sizeof *mark), found = mark == NULL;
    if (mark) {
        mark[first] = true;
        mark_operands(f->t, mark);
    }
    for (tj_ref n = 0; n < f->t->nnodes && mark && !found; n++)
        found = mark[n] && soft(f->t, n);
    tj_free(mark);
    return found;
}

bool tj_check_find(struct tj_check *c, tj_ref first, const struct tj_difference *d, struct tj_blame *b) {
    struct find f = {.c = c, .ctx = c->box->run.ctx, .t = c->seg->trace};
    *b = (struct tj_blame){.node = first, .diff = *d};
    tj_ref blame = TJ_NIL;
    bool judged = false;
    tj_status st = find_open(&f);
    if (!st)
        st = get_values(&f);
    if (!st)
        st = each_op(&f, &blame, &b->diff);
    if (!st && blame != TJ_NIL) {
        b->node = blame;
        b->how = TJ_BLAME_OP;
        judged = true;
    } else if (!st) {
        struct tj_difference diff;
        tj_ref other = other_result(&f, &diff);
        judged = other != TJ_NIL || !behind_contraction(&f, first);
        if (other != TJ_NIL) {
            b->node = other;
            b->diff = diff;
            st = first_among(&f, other, b);
        } else {
            b->diff = *d;
        }
    }
    if (st)
        (void)snprintf(b->note, sizeof b->note, "the ops before it could not be compared (%.200s)", tj_last_error());
    find_close(&f);
    return st || judged;
}
