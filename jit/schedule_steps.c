// jit/schedule_steps.c: geometry of operands, buffers, and the steps that are not loops.
#include "../trace/repeat.h"

#include "lower.h"

// ---- buffers ------------------------------------------------------------------------------------------------------

tj_status tj_s_memory(struct tj_sched *s) {
    if (s->status == TRACE_OK) {
        s->status = tj_fail(TRACE_ERR_MEMORY, "out of memory while compiling");
    }
    return s->status;
}

uint32_t tj_s_new_buf(struct tj_sched *s, uint8_t kind, uint8_t dtype, uint32_t index, tj_ex elems, tj_ref node) {
    if (!tj_grow((void **)&s->bufs, &s->capbufs, s->nbufs + 1, sizeof *s->bufs)) {
        (void)tj_s_memory(s);
        return 0;
    }
    s->bufs[s->nbufs] = (struct tj_buf){.kind = kind,
                                        .dtype = dtype,
                                        .index = index,
                                        .elems = elems,
                                        .node = node,
                                        .why = kind == TJ_BUF_OUT ? TJ_KEPT_OUTPUT : TJ_KEPT_NONE,
                                        .user = TJ_NIL};
    return s->nbufs++;
}

// Why a value gets memory now, and the op that wants it.
static void note_why(const struct tj_sched *s, tj_ref n, struct tj_buf *b) {
    b->why = s->demand ? s->demand : s->why_job[n] == s->job ? s->why[n] : TJ_KEPT_NONE;
    b->user = s->demand ? s->demand_by : TJ_NIL;
    for (uint32_t i = s->user_at[n]; b->user == TJ_NIL && i < s->user_at[n + 1]; i++) {
        if (s->incone[s->users[i]] == s->stamp) {
            b->user = TJ_NODE(s, s->users[i])->trace;
        }
    }
}

uint32_t tj_s_buffer(struct tj_sched *s, tj_ref n) {
    s->flags[n] |= TJ_S_NEED;
    if (s->buf[n] == TJ_NOBUF) {
        const struct tj_gnode *d = TJ_NODE(s, n);
        s->buf[n] = tj_s_new_buf(s, TJ_BUF_TEMP, d->dtype, 0, tj_g_elems(s->g, n), d->trace);
        if (s->status == TRACE_OK) {
            note_why(s, n, &s->bufs[s->buf[n]]);
        }
    }
    return s->buf[n];
}

void tj_s_buffer_geom(struct tj_sched *s, tj_ref n, uint32_t buf, struct tj_geom *out) {
    const struct tj_gnode *d = TJ_NODE(s, n);
    *out = (struct tj_geom){.buf = buf, .dtype = d->dtype, .rank = d->rank};
    tj_ex stride = tj_g_nothing(d->dims, d->rank) ? 0 : 1; // no element: the other extents may be huge
    for (int j = d->rank; j-- > 0;) {
        out->dims[j] = d->dims[j];
        out->strides[j] = d->dims[j] == 1 ? 0 : stride;
        stride = tj_ex_bin(s->x, TJ_EX_MUL, stride, d->dims[j]);
    }
}

uint32_t tj_s_buf_class(const struct tj_sched *s, uint32_t buf) {
    const struct tj_buf *b = &s->bufs[buf];
    return b->kind == TJ_BUF_LEAF ? s->leafcls[b->index] : UINT32_MAX / 2 + buf;
}

uint32_t tj_s_next_write(const struct tj_sched *s, uint32_t cls, uint32_t after) {
    uint32_t low = s->wtime_at[cls], high = s->wtime_at[cls + 1], end = high;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (s->wtimes[mid] <= after) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < end ? s->wtimes[low] : TJ_NEVER;
}

void tj_s_scalar(const struct tj_sched *s, tj_ref n, struct tj_scalar_arg *out) {
    memset(out, 0, sizeof *out);
    out->dtype = TJ_NODE(s, n)->dtype;
    out->param = (int64_t)tj_g_scalar_index(s->g, n);
}

// ---- geometry -----------------------------------------------------------------------------------------------------

bool tj_s_contiguous(struct tj_sched *s, const struct tj_geom *g) {
    tj_ex stride = 1;
    for (int j = g->rank; j-- > 0;) {
        if (g->dims[j] != 1 && g->strides[j] != stride) {
            return false;
        }
        stride = tj_ex_bin(s->x, TJ_EX_MUL, stride, g->dims[j]);
    }
    return true;
}

// A view that is written through has strides in every trace (else it was recorded as a copy, which is another op).
// Where extents alone don't tell that, it is a guard; where it hangs on strides of memory from outside, the record is
// trusted.
static bool reshape_geom(struct tj_sched *s, const struct tj_geom *in, tj_ref view, struct tj_geom *out) {
    const struct tj_gnode *v = TJ_NODE(s, view);
    int i = 0, j = 0;
    for (int k = 0; k < v->rank; k++) {
        out->strides[k] = 0;
    }
    while (i < in->rank || j < v->rank) {
        int i0 = i, j0 = j;
        tj_ex pi = i < in->rank ? in->dims[i++] : 1, pj = j < v->rank ? v->dims[j++] : 1;
        while (!tj_g_equal(s->g, pi, pj)) {
            bool mi = i < in->rank, mj = j < v->rank;
            if (!mi && !mj) {
                break; // what is left on both sides is equal, as the whole is
            }
            if (mi && (!mj || tj_ex_hint(s->x, pi) <= tj_ex_hint(s->x, pj))) {
                pi = tj_ex_bin(s->x, TJ_EX_MUL, pi, in->dims[i++]);
            } else {
                pj = tj_ex_bin(s->x, TJ_EX_MUL, pj, v->dims[j++]);
            }
        }
        // The run must be one contiguous stretch of some stride.
        tj_ex stride = TJ_NIL, next = 0;
        for (int k = i; k-- > i0;) {
            if (in->dims[k] == 1) {
                continue;
            }
            bool run = !tj_ex_of_shapes(s->x, in->strides[k]) || !tj_ex_of_shapes(s->x, next);
            if (stride != TJ_NIL && in->strides[k] != next &&
                !(s->through[view] && (run || tj_g_meet(s->g, in->strides[k], next, v->trace)))) {
                return false;
            }
            stride = stride == TJ_NIL ? in->strides[k] : stride;
            next = tj_ex_bin(s->x, TJ_EX_MUL, in->strides[k], in->dims[k]);
        }
        stride = stride == TJ_NIL ? 1 : stride;
        for (int k = j; k-- > j0;) {
            out->strides[k] = v->dims[k] == 1 ? 0 : stride;
            stride = tj_ex_bin(s->x, TJ_EX_MUL, stride, v->dims[k]);
        }
    }
    return true;
}

bool tj_s_view_geom(struct tj_sched *s, const struct tj_geom *in, tj_ref view, struct tj_geom *out) {
    const struct tj_gnode *v = TJ_NODE(s, view);
    struct tj_geom g = {.buf = in->buf, .dtype = in->dtype, .rank = v->rank, .offset = in->offset};
    if (v->rank > TJ_MAX_RANK) {
        return false;
    }
    if (v->rank) {
        memcpy(g.dims, v->dims, v->rank * sizeof *v->dims);
    }
    struct tj_exprs *x = s->x;
#define TIMES(a, b) tj_ex_bin(x, TJ_EX_MUL, (a), (b))
#define PLUS(a, b) tj_ex_bin(x, TJ_EX_ADD, (a), (b))
    switch (v->op) {
    case TJ_OP_RESHAPE:
        if (!reshape_geom(s, in, view, &g)) {
            return false;
        }
        break;
    case TJ_OP_PERMUTE:
        for (int j = 0; j < v->rank; j++) {
            g.strides[j] = in->strides[((const struct tj_attr_perm *)v->attr)->perm[j]];
        }
        break;
    case TJ_OP_EXPAND:
        for (int j = 0; j < v->rank; j++) {
            int from = j + in->rank - v->rank;
            g.strides[j] = from < 0 || in->dims[from] == 1 ? 0 : in->strides[from];
        }
        break;
    case TJ_OP_SLICE: {
        const struct tj_attr_slice *a = v->attr;
        memcpy(g.strides, in->strides, sizeof g.strides);
        g.offset = PLUS(g.offset, TIMES(TJ_NODE(s, v->in[1])->ex, in->strides[a->dim]));
        g.strides[a->dim] = TIMES(in->strides[a->dim], tj_ex_const(x, a->step));
        break;
    }
    case TJ_OP_DIAGONAL: {
        const struct tj_attr_diagonal *a = v->attr;
        tj_ex off = TJ_NODE(s, v->in[1])->ex, minus = tj_ex_bin(x, TJ_EX_SUB, 0, off);
        int o = 0;
        for (int j = 0; j < in->rank; j++) {
            if (j != a->d0 && j != a->d1) {
                g.strides[o++] = in->strides[j];
            }
        }
        g.strides[v->rank - 1] = PLUS(in->strides[a->d0], in->strides[a->d1]);
        g.offset = PLUS(g.offset, TIMES(tj_ex_bin(x, TJ_EX_MAX, 0, minus), in->strides[a->d0]));
        g.offset = PLUS(g.offset, TIMES(tj_ex_bin(x, TJ_EX_MAX, 0, off), in->strides[a->d1]));
        break;
    }
    case TJ_OP_UNFOLD: {
        const struct tj_attr_unfold *a = v->attr;
        memcpy(g.strides, in->strides, sizeof g.strides);
        g.strides[a->dim] = TIMES(in->strides[a->dim], tj_ex_const(x, a->step));
        g.strides[v->rank - 1] = in->strides[a->dim];
        break;
    }
    case TJ_OP_AS_STRIDED: {
        const struct tj_attr_strides *a = v->attr;
        if (!tj_s_contiguous(s, in)) {
            return false;
        }
        for (int j = 0; j < v->rank; j++) {
            g.strides[j] = tj_ex_const(x, a->stride[j]);
        }
        g.offset = PLUS(g.offset, TJ_NODE(s, v->in[1])->ex);
        break;
    }
    default: return false;
    }
#undef TIMES
#undef PLUS
    for (int j = 0; j < g.rank; j++) {
        if (g.dims[j] == 1) {
            g.strides[j] = 0;
        }
    }
    *out = g;
    return true;
}

// Views between n and memory, nearest last; of an operand CHAIN at most, what lies below is made.
enum { CHAIN = 64 };
static tj_ref descend(struct tj_sched *s, tj_ref n, tj_ref lineage, uint32_t *nchain) {
    *nchain = 0;
    while (tj_g_view(TJ_NODE(s, n)->op) && n != lineage &&
           (lineage != TJ_NIL ||
            (*nchain < CHAIN && !tj_is_alias(s, n) && s->buf[n] == TJ_NOBUF && !(s->flags[n] & TJ_S_FORCE)))) {
        if (!tj_grow((void **)&s->chain, &s->capchain, *nchain + 1, sizeof *s->chain)) {
            (void)tj_s_memory(s);
            return n;
        }
        s->chain[(*nchain)++] = n;
        n = TJ_NODE(s, n)->in[0];
    }
    return n;
}

void tj_s_geom(struct tj_sched *s, tj_ref n, struct tj_geom *out) {
    uint32_t nchain;
    tj_ref base = descend(s, n, TJ_NIL, &nchain);
    const tj_ref *chain = s->chain;
    if (tj_is_alias(s, base)) {
        *out = *s->alias[base];
    } else {
        // Where the views don't turn out as strides, the value they show is made instead of what they look at.
        struct tj_geom g;
        tj_s_buffer_geom(s, base, 0, &g);
        for (uint32_t i = nchain; i-- > 0;) {
            if (!tj_s_view_geom(s, &g, chain[i], &g)) {
                base = chain[i];
                nchain = i;
                tj_s_buffer_geom(s, base, 0, &g);
            }
        }
        tj_s_buffer_geom(s, base, tj_s_buffer(s, base), out);
    }
    while (nchain-- > 0) {
        if (!tj_s_view_geom(s, out, chain[nchain], out)) {
            tj_s_buffer_geom(s, chain[nchain], tj_s_buffer(s, chain[nchain]), out);
        }
    }
}

bool tj_s_geom_in(struct tj_sched *s, tj_ref n, tj_ref lineage, uint32_t buf, struct tj_geom *out) {
    uint32_t nchain;
    tj_ref base = descend(s, n, lineage, &nchain);
    const tj_ref *chain = s->chain;
    if (s->lineage[base] != lineage) {
        return false;
    }
    tj_s_buffer_geom(s, lineage, buf, out);
    while (nchain-- > 0) {
        if (!tj_s_view_geom(s, out, chain[nchain], out)) {
            return false;
        }
    }
    return true;
}

// ---- steps --------------------------------------------------------------------------------------------------------

struct tj_step *tj_s_step(struct tj_sched *s, uint8_t kind, tj_ref node) {
    if (!tj_grow((void **)&s->steps, &s->capsteps, s->nsteps + 1, sizeof *s->steps)) {
        (void)tj_s_memory(s);
        return NULL;
    }
    struct tj_step *st = &s->steps[s->nsteps++];
    memset(st, 0, sizeof *st);
    st->kind = kind;
    st->node = node;
    return st;
}

void tj_s_ops_start(struct tj_sched *s) {
    s->op_stamp++;
    s->nops = 0;
}

void tj_s_ops_add(struct tj_sched *s, tj_ref trace) {
    if (trace >= s->g->t->nnodes || s->op_job[trace] == s->op_stamp) {
        return;
    }
    s->op_job[trace] = s->op_stamp;
    if (!tj_grow((void **)&s->ops, &s->capops, s->nops + 1, sizeof *s->ops)) {
        (void)tj_s_memory(s);
        return;
    }
    uint32_t i = s->nops++; // members come in falling order, nearly: the place is found at once
    for (; i > 0 && s->ops[i - 1] < trace; i--) {
        s->ops[i] = s->ops[i - 1];
    }
    s->ops[i] = trace;
}

// The step's own copy of the ops noted.
static bool take_ops(struct tj_sched *s, struct tj_step *st) {
    tj_s_ops_add(s, st->node);
    st->ops = TJ_ARENA_NEW(&s->p->arena, tj_ref, s->nops + 1);
    if (!st->ops || s->status) {
        (void)tj_s_memory(s);
        return false;
    }
    for (uint32_t i = 0; i < s->nops; i++) {
        st->ops[i] = s->ops[s->nops - 1 - i];
    }
    st->nops = s->nops;
    tj_s_ops_start(s);
    return true;
}

static void note(uint32_t *list, uint32_t *n, uint32_t buf) {
    for (uint32_t i = 0; i < *n; i++) {
        if (list[i] == buf) {
            return;
        }
    }
    list[(*n)++] = buf;
}

bool tj_s_step_done(struct tj_sched *s, struct tj_step *st) {
    const struct tj_kernel *k = st->loop.kernel;
    const struct tj_repeat *r = st->repeat;
    uint32_t cap = 8 + (k ? 2u * k->nbufs : 0) + (r ? r->body->n + r->body->trace.nleaves : 0);
    st->reads = TJ_ARENA_NEW(&s->p->arena, uint32_t, cap);
    st->writes = TJ_ARENA_NEW(&s->p->arena, uint32_t, cap);
    if (!st->reads || !st->writes || !take_ops(s, st)) {
        (void)tj_s_memory(s);
        return false;
    }
    for (uint32_t i = 0; r && i < r->body->n; i++) {
        note(st->reads, &st->nreads, r->init[i].buf);
        note(st->writes, &st->nwrites, r->out[i]);
    }
    for (uint32_t i = 0; r && i < r->body->trace.nleaves; i++) {
        if (r->body->leaves[i].kind == TJ_BODY_VALUE) {
            note(st->reads, &st->nreads, r->value[i].buf);
        }
    }
    if (st->kind != TJ_STEP_LOOP && !r) {
        note(st->writes, &st->nwrites, st->out.buf);
        note(st->reads, &st->nreads, st->a.buf);
        if (st->kind != TJ_STEP_COPY) {
            note(st->reads, &st->nreads, st->b.buf);
        }
        if (st->kind == TJ_STEP_INDEX_COPY) {
            note(st->reads, &st->nreads, st->out.buf);
        }
        if (st->has_bias || st->kind == TJ_STEP_SDPA) {
            note(st->reads, &st->nreads, st->c.buf);
        }
        if (st->has_mask) {
            note(st->reads, &st->nreads, st->d.buf);
        }
    }
    for (uint32_t i = 0; k && i < k->nins; i++) {
        const struct tj_kins *in = &k->ins[i];
        if (in->op == TJ_KOP_LOAD) {
            note(st->reads, &st->nreads, st->loop.bufs[k->access[in->imm].buf]);
        } else if (in->op == TJ_KOP_STORE) {
            note(st->writes, &st->nwrites, st->loop.bufs[k->access[in->imm].buf]);
        }
    }
    return true;
}

bool tj_s_index_copy(struct tj_sched *s, tj_ref n, const struct tj_geom *dst, tj_ref index, tj_ref src) {
    struct tj_geom a, b;
    s->demand = TJ_KEPT_OPERAND;
    s->demand_by = TJ_NODE(s, n)->trace;
    tj_s_geom(s, index, &a);
    tj_s_geom(s, src, &b);
    s->demand = 0;
    struct tj_step *st = tj_s_step(s, TJ_STEP_INDEX_COPY, TJ_NODE(s, n)->trace);
    if (!st) {
        return false;
    }
    st->out = *dst;
    st->a = a;
    st->b = b;
    st->dim = ((const struct tj_attr_dim *)TJ_NODE(s, n)->attr)->dim;
    st->name = "index_copy";
    return tj_s_step_done(s, st);
}

// Joins the leading dims of a and out into one row dim where their strides allow.
static void join_rows(struct tj_sched *s, struct tj_geom *out, struct tj_geom *a) {
    while (out->rank > 2) {
        uint32_t m = out->rank - 2u, b = m - 1;
        tj_ex ao = a->dims[m] == 1 ? 0 : tj_ex_bin(s->x, TJ_EX_MUL, a->strides[m], a->dims[m]);
        bool one = a->dims[b] == 1 || a->dims[m] == 1;
        if (!one && a->strides[b] != ao) {
            return;
        }
        struct tj_geom *both[2] = {out, a};
        for (int i = 0; i < 2; i++) {
            struct tj_geom *g = both[i];
            tj_ex stride = g->dims[m] == 1 ? g->strides[b] : g->strides[m];
            g->dims[b] = tj_ex_bin(s->x, TJ_EX_MUL, g->dims[b], g->dims[m]);
            g->strides[b] = stride;
            g->dims[m] = g->dims[m + 1];
            g->strides[m] = g->strides[m + 1];
            g->rank--;
        }
    }
}

static void to_rank(struct tj_geom *g, uint32_t rank) {
    while (g->rank < rank) {
        memmove(&g->dims[1], &g->dims[0], g->rank * sizeof g->dims[0]);
        memmove(&g->strides[1], &g->strides[0], g->rank * sizeof g->strides[0]);
        g->dims[0] = 1;
        g->strides[0] = 0;
        g->rank++;
    }
}

// Expands batch dims (all but the last `keep`) to those of `like`.
static void expand_batch(struct tj_geom *g, const struct tj_geom *like, uint32_t keep) {
    to_rank(g, like->rank);
    for (uint32_t j = 0; j + keep < g->rank; j++) {
        if (g->dims[j] == 1) {
            g->strides[j] = 0;
        }
        g->dims[j] = like->dims[j];
    }
}

// A leaf the plan may keep packed: the host changes it only through the library, and this trace not at all.
static bool stable(const struct tj_sched *s, const struct tj_geom *g) {
    const struct tj_buf *b = &s->bufs[g->buf];
    if (b->kind != TJ_BUF_LEAF) {
        return false;
    }
    const struct tj_leaf_key *k = &s->g->t->leafkeys[b->index];
    return !(k->flags & (TJ_LEAF_VOLATILE | TJ_LEAF_WRITTEN | TJ_LEAF_CARRIED)) && !k->group;
}

bool tj_s_contraction(struct tj_sched *s, tj_ref n, struct tj_loop *epilogue) {
    const struct tj_gnode *c = TJ_NODE(s, n);
    struct tj_geom g[5];
    uint32_t out = tj_s_buffer(s, n);
    uint8_t kind = c->op == TJ_OP_CONV2D ? TJ_STEP_CONV2D : c->op == TJ_OP_SDPA ? TJ_STEP_SDPA : TJ_STEP_MATMUL;
    bool scalar[5] = {0};
    s->demand = TJ_KEPT_OPERAND;
    s->demand_by = c->trace;
    for (uint32_t i = 0; i < c->nin; i++) {
        scalar[i] = TJ_NODE(s, c->in[i])->op == TJ_OP_SCALAR;
        if (!scalar[i]) {
            tj_s_geom(s, c->in[i], &g[i]);
        }
    }
    s->demand = 0;
    tj_s_ops_add(s, c->trace);
    struct tj_step *st = s->status ? NULL : tj_s_step(s, kind, c->trace);
    if (!st) {
        return false;
    }
    tj_s_buffer_geom(s, n, out, &st->out);
    st->a = g[0];
    st->b = g[1];
    st->name = tj_ops[c->op].name;
    if (epilogue) {
        st->loop = *epilogue;
    }
    switch (c->op) {
    case TJ_OP_LINEAR: {
        st->b.dims[0] = g[1].dims[1];
        st->b.dims[1] = g[1].dims[0];
        st->b.strides[0] = g[1].strides[1];
        st->b.strides[1] = g[1].strides[0];
        st->has_bias = ((const struct tj_attr_bias *)c->attr)->has_bias && !scalar[2];
        if (st->has_bias) {
            st->c = g[2];
        }
        to_rank(&st->a, 2);
        to_rank(&st->out, 2);
        join_rows(s, &st->out, &st->a);
        expand_batch(&st->b, &st->out, 2);
        break;
    }
    case TJ_OP_MATMUL: {
        bool shared = true; // one b for all batches
        for (uint32_t j = 0; j + 2 < g[1].rank; j++) {
            shared = shared && g[1].dims[j] == 1;
        }
        expand_batch(&st->a, &st->out, 2);
        if (shared) {
            uint32_t drop = st->b.rank - 2u;
            memmove(st->b.dims, st->b.dims + drop, 2 * sizeof *st->b.dims);
            memmove(st->b.strides, st->b.strides + drop, 2 * sizeof *st->b.strides);
            st->b.rank = 2;
            join_rows(s, &st->out, &st->a);
        }
        expand_batch(&st->b, &st->out, 2);
        break;
    }
    case TJ_OP_CONV2D:
        st->conv = *(const struct tj_attr_conv *)c->attr;
        st->has_bias = st->conv.has_bias && !scalar[2];
        if (st->has_bias) {
            st->c = g[2];
        }
        break;
    default: {
        const struct tj_attr_sdpa *a = c->attr;
        st->causal = a->causal != 0;
        st->gqa = a->gqa != 0;
        st->c = g[2];
        if (!st->gqa) {
            expand_batch(&st->b, &st->a, 2);
            expand_batch(&st->c, &st->a, 2);
        }
        st->has_mask = a->has_mask && !scalar[3];
        if (st->has_mask) {
            struct tj_geom like = st->a; // [.., L, S]
            like.dims[like.rank - 1] = st->b.dims[st->b.rank - 2];
            st->d = g[3];
            expand_batch(&st->d, &like, 0);
        }
        tj_s_scalar(s, c->in[4], &st->scale);
    }
    }
    st->weight_stable = (kind == TJ_STEP_MATMUL || kind == TJ_STEP_CONV2D) && stable(s, &st->b);
    return tj_s_step_done(s, st);
}
