// trace/check.c: checked runs: a plan and the interpreter over the same tensors, compared element by element.
//
// The interpreter goes first, on copies of what the segment writes, so that all it needs is there before the plan is
// launched. Values are to have the same bits in every tier, contractions excepted: where one is among the operands of
// what differs, check_find.c compares op by op, each from the plan's own operands. So no tolerance is handed down, and
// a comparison or an index behind a near tie is judged by what it was given. When an op is to blame, the tensors get
// what the interpreter made of them, and the run fails with the op, its line, the element and both values.
#include <stdio.h>

#include "check.h"
#include "math.h"
#include "record.h"

// ---- memory that is written -----------------------------------------------------------------------------------------

static bool copied(const struct tj_trace *t, uint32_t i) {
    const struct tj_leaf_key *k = &t->leafkeys[i];
    if (k->flags & TJ_LEAF_WRITTEN)
        return true;
    for (uint32_t j = 0; k->group && j < t->nleaves; j++) {
        if (t->leafkeys[j].group == k->group && t->leafkeys[j].flags & TJ_LEAF_WRITTEN)
            return true;
    }
    return false;
}

// The bytes that a tensor's elements lie in; none: 0.
static size_t span(const struct trace_tensor *x, const unsigned char **from) {
    size_t elem = tj_elem_bytes((tj_dtype)x->dtype), last = 0;
    *from = tj_tensor_data(x);
    if (!x->numel || !*from)
        return 0;
    for (size_t d = 0; d < x->rank; d++)
        last += (size_t)(x->dims[d] - 1) * (size_t)x->strides[d];
    return (last + 1) * elem;
}

static void merge(struct tj_shadow *s, const unsigned char *from, size_t bytes) {
    for (uint32_t i = 0; i < s->nranges;) {
        struct tj_shadow_range *r = &s->ranges[i];
        if (from >= r->from + r->bytes || r->from >= from + bytes) {
            i++;
            continue;
        }
        const unsigned char *lo = from < r->from ? from : r->from;
        const unsigned char *hi = from + bytes > r->from + r->bytes ? from + bytes : r->from + r->bytes;
        from = lo;
        bytes = (size_t)(hi - lo);
        *r = s->ranges[--s->nranges];
        i = 0;
    }
    s->ranges[s->nranges++] = (struct tj_shadow_range){.from = from, .bytes = bytes};
}

static void redirect(struct tj_shadow *s, uint32_t i, const struct trace_tensor *x) {
    struct trace_tensor *y = &s->tensors[i];
    struct tj_storage *st = &s->storages[i];
    const unsigned char *from;
    size_t bytes = span(x, &from);
    tj_tensor_like(y, x, st);
    y->ctx = x->ctx;
    atomic_init(&st->refs, 1);
    st->ctx = x->ctx;
    st->bytes = bytes;
    for (uint32_t k = 0; k < s->nranges && bytes; k++) {
        const struct tj_shadow_range *r = &s->ranges[k];
        if (from >= r->from && from < r->from + r->bytes)
            st->data = r->at + (from - r->from);
    }
    s->leaves[i] = (struct tj_leaf){y, NULL};
}

tj_status tj_shadow_make(trace_context *ctx, const struct tj_segment *s, const struct tj_leaf *leaves,
                         struct tj_shadow *out) {
    const struct tj_trace *t = s->trace;
    uint32_t n = t->nleaves ? t->nleaves : 1;
    memset(out, 0, sizeof *out);
    out->leaves = tj_calloc(n, sizeof *out->leaves);
    out->tensors = tj_calloc(n, sizeof *out->tensors);
    out->storages = tj_calloc(n, sizeof *out->storages);
    out->ranges = tj_calloc(n, sizeof *out->ranges);
    out->nleaves = t->nleaves;
    if (!out->leaves || !out->tensors || !out->storages || !out->ranges)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for checking a run");
    for (uint32_t i = 0; i < t->nleaves; i++) {
        const unsigned char *from;
        size_t bytes = copied(t, i) ? span(leaves[i].tensor, &from) : 0;
        if (bytes)
            merge(out, from, bytes);
    }
    for (uint32_t k = 0; k < out->nranges; k++) { // as far from a multiple of TJ_ALIGN as the original
        struct tj_shadow_range *r = &out->ranges[k];
        r->mem = tj_buffer_alloc(ctx, r->bytes + TJ_ALIGN);
        if (!r->mem)
            return TRACE_ERR_MEMORY;
        r->at = r->mem + (uintptr_t)r->from % TJ_ALIGN;
    }
    for (uint32_t i = 0; i < t->nleaves; i++) {
        out->leaves[i] = leaves[i];
        if (copied(t, i))
            redirect(out, i, leaves[i].tensor);
    }
    tj_shadow_copy(out, leaves);
    return TRACE_OK;
}

// Only the elements: what lies between them may be another thread's.
void tj_shadow_copy(struct tj_shadow *to, const struct tj_leaf *from) {
    for (uint32_t i = 0; i < to->nleaves; i++) {
        const struct trace_tensor *x = &to->tensors[i], *y = from[i].tensor;
        if (x->st && x->numel)
            tj_copy_strided(tj_tensor_data(x), x->strides, tj_tensor_data(y), y->strides, x->dims, x->rank,
                            (tj_dtype)x->dtype);
    }
}

void tj_shadow_free(trace_context *ctx, struct tj_shadow *s) {
    for (uint32_t i = 0; i < s->nleaves && s->storages; i++) {
        if (atomic_load(&s->storages[i].packed) && ctx->backend->packed_free)
            ctx->backend->packed_free(&s->storages[i]);
    }
    for (uint32_t k = 0; k < s->nranges; k++) {
        if (s->ranges[k].mem)
            tj_buffer_free(ctx, s->ranges[k].mem, s->ranges[k].bytes + TJ_ALIGN);
    }
    tj_free(s->ranges);
    tj_free(s->storages);
    tj_free(s->tensors);
    tj_free(s->leaves);
    memset(s, 0, sizeof *s);
}

// ---- comparing ------------------------------------------------------------------------------------------------------

static uint64_t bits_of(const unsigned char *p, size_t elem) {
    uint64_t v = 0;
    memcpy(&v, p, elem); // little-endian, as every machine there are kernels for
    return v;
}

static bool is_nan(tj_dtype d, uint64_t v) {
    switch (d) {
    case TRACE_F16: return (v & 0x7fff) > 0x7c00;
    case TRACE_BF16: return (v & 0x7fff) > 0x7f80;
    case TRACE_F32: return (v & 0x7fffffff) > 0x7f800000;
    case TRACE_F64: return (v & INT64_MAX) > UINT64_C(0x7ff0000000000000);
    default: return false;
    }
}

static double to_double(tj_dtype d, uint64_t v) {
    if (d == TRACE_F64) {
        double x;
        memcpy(&x, &v, 8);
        return x;
    }
    if (d == TRACE_F16)
        return (double)tj_f16_to_f32((uint16_t)v);
    if (d == TRACE_BF16)
        return (double)tj_bf16_to_f32((uint16_t)v);
    float f;
    memcpy(&f, &v, 4);
    return (double)f;
}

void tj_check_text(tj_dtype d, const void *p, char *buf, size_t cap) {
    uint64_t v = bits_of(p, tj_elem_bytes(d));
    switch (d) {
    case TRACE_BOOL: (void)snprintf(buf, cap, "%s", v ? "true" : "false"); break;
    case TRACE_U8: (void)snprintf(buf, cap, "%u", (unsigned)v); break;
    case TRACE_I32: (void)snprintf(buf, cap, "%d", (int)(int32_t)v); break;
    case TRACE_I64: (void)snprintf(buf, cap, "%lld", (long long)v); break;
    default: (void)snprintf(buf, cap, d == TRACE_F64 ? "%.17g" : "%.9g", to_double(d, v)); break;
    }
}

double tj_check_float(const struct trace_tensor *t, int64_t i) {
    size_t elem = tj_elem_bytes((tj_dtype)t->dtype);
    return to_double((tj_dtype)t->dtype, bits_of((const unsigned char *)tj_tensor_data(t) + (size_t)i * elem, elem));
}

bool tj_check_same(const struct trace_tensor *got, const struct trace_tensor *want, struct tj_difference *diff) {
    tj_dtype d = (tj_dtype)want->dtype;
    size_t elem = tj_elem_bytes(d), rank = want->rank;
    const unsigned char *a = tj_tensor_data(got), *b = tj_tensor_data(want);
    int64_t at[TJ_MAX_RANK] = {0};
    for (int64_t i = 0; i < want->numel; i++) {
        uint64_t x = bits_of(a, elem), y = bits_of(b, elem);
        if (d == TRACE_BOOL) // memory of the host's may hold other bytes, where nothing was written
            x = x != 0, y = y != 0;
        if (TJ_UNLIKELY(x != y) && !(is_nan(d, x) && is_nan(d, y))) {
            diff->index = i;
            tj_check_text(d, a, diff->got, sizeof diff->got);
            tj_check_text(d, b, diff->want, sizeof diff->want);
            return false;
        }
        for (size_t k = rank; k-- > 0;) {
            if (want->dims[k] == 1)
                continue;
            if (++at[k] < want->dims[k]) {
                a += got->strides[k] * (int64_t)elem;
                b += want->strides[k] * (int64_t)elem;
                break;
            }
            at[k] = 0;
            a -= (got->dims[k] - 1) * got->strides[k] * (int64_t)elem;
            b -= (want->dims[k] - 1) * want->strides[k] * (int64_t)elem;
        }
    }
    return true;
}

uint32_t tj_check_leaf(const struct tj_trace *t, tj_ref n) {
    while (t->nodes[n].op == TJ_OP_UPDATE)
        n = tj_node_in(t, &t->nodes[n])[0];
    if (t->nodes[n].op != TJ_OP_LEAF)
        return UINT32_MAX;
    return (uint32_t)((const struct tj_attr_leaf *)tj_node_attr(t, &t->nodes[n]))->index;
}

// The first value that differs; TJ_NIL: none.
static tj_ref first_difference(const struct tj_check *c, const struct tj_leaf *leaves, struct tj_difference *d) {
    for (uint32_t i = 0; i < c->seg->nouts; i++) {
        if (!tj_check_same(c->args->outs[i], c->outs[i], d))
            return c->seg->outs[i];
    }
    for (uint32_t i = 0; i < c->seg->nwrites; i++) {
        uint32_t k = tj_check_leaf(c->seg->trace, c->seg->writes[i]);
        if (k != UINT32_MAX && !tj_check_same(leaves[k].tensor, c->interp.leaves[k].tensor, d))
            return c->seg->writes[i];
    }
    return TJ_NIL;
}

// ---- reporting ------------------------------------------------------------------------------------------------------

// Copies what the interpreter made over what the plan made.
static void correct(struct tj_check *c) {
    for (uint32_t i = 0; i < c->seg->nouts; i++) {
        const struct trace_tensor *x = c->args->outs[i], *y = c->outs[i];
        if (x->numel)
            tj_copy_strided(tj_tensor_data(x), x->strides, tj_tensor_data(y), y->strides, x->dims, x->rank,
                            (tj_dtype)x->dtype);
    }
    for (uint32_t i = 0; i < c->interp.nleaves && !c->apart; i++) {
        const struct trace_tensor *x = c->args->leaves[i].tensor, *y = &c->interp.tensors[i];
        if (y->st && y->numel)
            tj_copy_strided(tj_tensor_data(x), x->strides, tj_tensor_data(y), y->strides, x->dims, x->rank,
                            (tj_dtype)x->dtype);
    }
}

static tj_status report(struct tj_check *c, tj_ref node, const char *text) {
    struct trace_region *r = c->box->run.region;
    struct tj_loc loc = node < c->seg->trace->nnodes ? c->seg->trace->locs[node] : TJ_LOC(NULL, 0);
    TJ_BUMP(&c->box->count, check_failures, 1);
    tj_event(r->ctx, r, TRACE_EVENT_CHECK, loc, -1, -1, 0, 0, 0, "%s", text);
    return tj_fail(TRACE_ERR_COMPILE, "check failed: %s", text);
}

static tj_status differs(struct tj_check *c, tj_ref first, const struct tj_blame *b) {
    const struct tj_trace *t = c->seg->trace;
    char node[300], shape[TJ_DIMS_TEXT], seen[300], text[TJ_ERROR_MAX];
    const struct tj_node *n = &t->nodes[b->node];
    bool same = first == b->node;
    static const char *const how[] = {" differs", " is wrong", " is wrong in the kernel it is fused into"};
    (void)snprintf(text, sizeof text, "%s%s: element %lld of its result %s %s is %s, the interpreter's is %s%s%s%s%s",
                   tj_op_text(t, b->node, node, sizeof node), how[b->how], (long long)b->diff.index,
                   tj_dtypes[n->dtype].name,
                   tj_dims_text(shape, sizeof shape, tj_shape_dims(t, n->shape), tj_shape_rank(t, n->shape)),
                   b->diff.got, b->diff.want, same ? "" : "; seen in ",
                   same ? "" : tj_op_text(t, first, seen, sizeof seen), b->note[0] ? "; " : "", b->note);
    return report(c, b->node, text);
}

// One of the two has a data error and the other one hasn't.
static tj_status errors_differ(struct tj_check *c, bool ours) {
    const struct tj_data_error *err = ours ? c->args->err : &c->theirs;
    char text[TJ_ERROR_MAX];
    tj_ref node = err->node;
    (void)tj_segment_error(c->seg, err);
    (void)snprintf(text, sizeof text, "%s; the %s", tj_last_error(),
                   ours ? "interpreter has no such error" : "plan has not reported this");
    if (ours)
        atomic_store(&c->args->err->set, 0); // the run fails with the check
    return report(c, node, text);
}

// ---- a run ----------------------------------------------------------------------------------------------------------

static void close_check(struct tj_check *c) {
    trace_context *ctx = c->box->run.ctx;
    for (uint32_t i = 0; i < c->seg->nouts && c->outs; i++) {
        if (c->outs[i])
            tj_tensor_drop(c->outs[i]);
    }
    tj_free(c->outs);
    tj_shadow_free(ctx, &c->own);
    tj_shadow_free(ctx, &c->interp);
    tj_shadow_free(ctx, &c->before);
}

static tj_status open_check(struct tj_check *c) {
    trace_context *ctx = c->box->run.ctx;
    const struct tj_segment *s = c->seg;
    c->outs = tj_calloc(s->nouts ? s->nouts : 1, sizeof *c->outs);
    if (!c->outs)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for checking a run");
    tj_status st = tj_shadow_make(ctx, s, c->args->leaves, &c->before);
    if (!st)
        st = tj_shadow_make(ctx, s, c->args->leaves, &c->interp);
    if (!st && c->apart)
        st = tj_shadow_make(ctx, s, c->args->leaves, &c->own);
    for (uint32_t i = 0; i < s->nouts && !st; i++) {
        const struct trace_tensor *x = c->args->outs[i];
        c->outs[i] = tj_tensor_new(ctx, (tj_dtype)x->dtype, x->dims, x->rank, "check", TJ_LOC(NULL, 0));
        if (!c->outs[i])
            st = tj_last_status();
    }
    return st;
}

// The plan has run, over `leaves`.
static tj_status compare(struct tj_check *c, const struct tj_leaf *leaves) {
    bool ours = atomic_load_explicit(&c->args->err->set, memory_order_acquire);
    bool theirs = atomic_load_explicit(&c->theirs.set, memory_order_acquire);
    TJ_BUMP(&c->box->count, checks, 1);
    if (ours != theirs) {
        correct(c);
        return errors_differ(c, ours);
    }
    if (ours)
        return TRACE_OK; // of several errors either may have reported another one; the values are undefined
    struct tj_difference d;
    tj_ref first = first_difference(c, leaves, &d);
    struct tj_blame b;
    if (first == TJ_NIL || !tj_check_find(c, first, &d, &b))
        return TRACE_OK;
    correct(c);
    return differs(c, first, &b);
}

static tj_status check(struct tj_check *c) {
    trace_context *ctx = c->box->run.ctx;
    tj_status st = open_check(c);
    if (st)
        return st;
    struct tj_run_args args = *c->args;
    uint64_t unused = 0;
    args.leaves = c->interp.leaves;
    args.outs = c->outs;
    args.err = &c->theirs;
    args.launches = args.bytes_moved = args.interpreted = &unused;
    st = tj_interp_run(c->seg, &args);
    if (st)
        return st;
    args = *c->args;
    if (c->apart)
        args.leaves = c->own.leaves;
    st = ctx->backend->run(c->entry->plan, &args);
    return st ? st : compare(c, args.leaves);
}

tj_status tj_check_run(struct tj_box *b, const struct tj_segment *s, struct tj_entry *e,
                       const struct tj_run_args *args) {
    struct tj_check c = {.box = b, .seg = s, .entry = e, .args = args};
    tj_status st = check(&c);
    close_check(&c);
    return st;
}

tj_status tj_check_bind(struct tj_box *b, const struct tj_segment *s, struct tj_entry *e) {
    struct tj_data_error err;
    memset(&err, 0, sizeof err);
    uint64_t launches = 0, moved = 0, interpreted = 0;
    struct tj_run_args args = {.ctx = b->run.ctx,
                               .trace = s->trace,
                               .leaves = s->trace->leaves,
                               .params = s->trace->params,
                               .err = &err,
                               .launches = &launches,
                               .bytes_moved = &moved,
                               .interpreted = &interpreted,
                               .cancel = &b->cancel};
    struct tj_check c = {.box = b, .seg = s, .entry = e, .args = &args, .apart = true};
    struct tj_run *open = tj_current, *around = tj_executing; // as in tj_segment_run: the host's callbacks may run
    tj_executing = &b->run;
    tj_current = NULL;
    tj_fpenv env;
    tj_fpenv_enter(&env);
    tj_status st = check(&c);
    tj_fpenv_leave(&env);
    tj_current = open;
    tj_executing = around;
    close_check(&c);
    return st;
}
