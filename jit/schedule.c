// jit/schedule.c: which values get memory, which kernel computes what, and in which order (see graph.h).
#include "lower.h"

enum {
    BUDGET = 220,      // instructions a cone aims to stay under
    MAX_INS = 1200,    // instructions lowering may make
    CODE = 600,        // LLVM instructions a cone aims to stay under: some 20 ms of code generation
    LOOPS = 60,        // of these, what a kernel has around its values
    MAX_INPUTS = 22,   // buffers a cone aims to stay under
    CHEAP = 2,         // cost up to which a value is computed again rather than stored
    ABSORB_SPAN = 4096 // nodes between a root and a further output of its kernel
};

#define HAS(n, f) (s->flags[n] & (f))

// ---- preparing ----------------------------------------------------------------------------------------------------

static uint32_t own_cost(const struct tj_gnode *d) {
    switch (d->op) {
    case TJ_OP_GATHER:
    case TJ_OP_INDEX_SELECT:
    case TJ_OP_PAD: return 8;
    case TJ_OP_CAT: return 4 * d->nin;
    case TJ_G_RESULT:
    case TJ_G_TAPS: return 1000;
    case TJ_OP_COPY:
    case TJ_OP_FLIP: return 1;
    default: return tj_g_pointwise(d->op) ? tj_op_cost(d->op) : tj_g_reduce(d->op) || tj_g_contract(d->op) ? 1000 : 0;
    }
}

// Instructions a node becomes, roughly.
static uint32_t size_of(const struct tj_gnode *d) {
    bool half = d->dtype == TRACE_F16 || d->dtype == TRACE_BF16;
    switch (d->op) {
    case TJ_G_TAPS: {
        const struct tj_attr_taps *a = d->attr;
        return (uint32_t)(a->pool.kernel[0] * a->pool.kernel[1]) * (a->guarded ? 10 : 2);
    }
    case TJ_OP_CAT: return 7 * d->nin;
    case TJ_OP_GATHER:
    case TJ_OP_INDEX_SELECT:
    case TJ_OP_PAD: return 12;
    default: return tj_g_view(d->op) ? 0 : half ? 2 : 1;
    }
}

// LLVM instructions a node becomes, roughly: what code generation takes is proportional to them, at some 30 us each.
static uint32_t code_of(const struct tj_gnode *d) {
    bool whole = !tj_is_float((tj_dtype)d->dtype);
    uint32_t n;
    switch (d->op) {
    case TJ_OP_EXP: n = 26; break;
    case TJ_OP_SIGMOID: n = 30; break;
    case TJ_OP_TANH: n = 34; break;
    case TJ_OP_LOG:
    case TJ_OP_SILU: n = 36; break;
    case TJ_OP_SIN:
    case TJ_OP_COS:
    case TJ_OP_ERF:
    case TJ_OP_GELU:
    case TJ_OP_GELU_TANH: n = 45; break;
    case TJ_OP_SOFTPLUS: n = 70; break;
    case TJ_OP_POW: n = 78; break;
    case TJ_OP_FMOD:
    case TJ_OP_REMAINDER:
    case TJ_OP_FLOOR_DIVIDE: n = whole ? 100 : 28; break;
    default: return tj_g_reduce(d->op) ? 125 : size_of(d);
    }
    return d->dtype == TRACE_F64 ? n + n / 2 : n;
}

static bool inlines(uint16_t op) {
    if (op == TJ_OP_INDEX_COPY || op == TJ_OP_UPDATE || op == TJ_OP_LEAF || op == TJ_G_REPEAT || op == TJ_G_RESULT) {
        return false;
    }
    return op >= TJ_OP_COUNT || !tj_g_contract(op);
}

static bool fill_leaves(struct tj_sched *s) {
    const struct tj_trace *t = s->g->t;
    for (uint32_t i = 0; i < t->nleaves; i++) {
        s->leafbuf[i] = TJ_NOBUF;
        s->leafcls[i] = t->leafkeys[i].group ? t->nleaves + t->leafkeys[i].group : i;
    }
    return true;
}

static bool leaf_geom(struct tj_sched *s, tj_ref n, struct tj_geom *g) {
    const struct tj_gnode *d = TJ_NODE(s, n);
    uint32_t leaf = (uint32_t)((const struct tj_attr_leaf *)d->attr)->index;
    const struct tj_leaf_key *k = &s->g->t->leafkeys[leaf];
    tj_ex elems = 1;
    *g = (struct tj_geom){.dtype = d->dtype, .rank = d->rank};
    tj_ex next = 1; // packed stride of the dim at hand
    for (uint32_t j = d->rank; j-- > 0;) {
        elems = tj_ex_bin(s->x, TJ_EX_MUL, elems, d->dims[j]);
        g->dims[j] = d->dims[j];
        switch (k->layout >> (2 * j) & 3) {
        case TJ_LAY_PACKED: g->strides[j] = next; break;
        case TJ_LAY_BROADCAST: g->strides[j] = 0; break;
        case TJ_LAY_UNIT: g->strides[j] = 1; break;
        default: {
            const struct trace_tensor *x = s->g->t->leaves ? s->g->t->leaves[leaf].tensor : NULL;
            g->strides[j] = tj_ex_sym(s->x, TJ_EX_STRIDE, leaf, j, x ? x->strides[j] : tj_ex_hint(s->x, next) + 1);
        }
        }
        if (d->dims[j] != 1) {
            next = tj_ex_bin(s->x, TJ_EX_MUL, g->strides[j], d->dims[j]);
        } else {
            g->strides[j] = 0;
        }
    }
    if (s->leafbuf[leaf] == TJ_NOBUF) {
        s->leafbuf[leaf] = tj_s_new_buf(s, TJ_BUF_LEAF, d->dtype, leaf, elems, d->trace);
    }
    g->buf = s->leafbuf[leaf];
    s->cls[n] = s->leafcls[leaf];
    return s->status == TRACE_OK;
}

// Times of the writes to leaf memory, by hazard class.
static bool note_writes(struct tj_sched *s) {
    struct tj_arena *a = s->g->arena;
    uint32_t ncls = 0;
    for (uint32_t i = 0; i < s->g->t->nleaves; i++) {
        ncls = s->leafcls[i] >= ncls ? s->leafcls[i] + 1 : ncls;
    }
    s->wtimes = TJ_ARENA_NEW(a, uint32_t, s->nwtimes + 1);
    s->wtime_at = TJ_ARENA_NEW(a, uint32_t, ncls + 2);
    if (a->failed) {
        return false;
    }
    uint32_t *at = s->wtime_at + 1; // counted one further on, so that filling leaves the starts behind
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t i = 0; i < s->n; i++) {
            if (!HAS(i, TJ_S_LIVE) || TJ_NODE(s, i)->op != TJ_OP_UPDATE || !s->alias[i]) {
                continue;
            }
            if (fill) {
                s->wtimes[at[s->cls[i]]++] = i;
            } else {
                at[s->cls[i] + 1]++;
            }
        }
        for (uint32_t i = 0; !fill && i < ncls; i++) {
            at[i + 1] += at[i];
        }
    }
    return true;
}

// Liveness, users, memory of leaves and of views of them, writes, deadlines, costs.
static bool prepare(struct tj_sched *s) {
    struct tj_graph *g = s->g;
    struct tj_arena *a = g->arena;
    uint32_t n = s->n;
    for (uint32_t i = 0; i < g->seg->nouts; i++) {
        s->flags[g->outs[i]] |= TJ_S_LIVE;
    }
    for (uint32_t i = 0; i < g->seg->nwrites; i++) {
        s->flags[g->writes[i]] |= TJ_S_LIVE;
    }
    uint32_t edges = 0;
    for (uint32_t i = n; i-- > 0;) {
        const struct tj_gnode *d = TJ_NODE(s, i);
        for (uint32_t j = 0; HAS(i, TJ_S_LIVE) && j < d->nin; j++) {
            s->flags[d->in[j]] |= TJ_S_LIVE;
            s->user_at[d->in[j] + 1]++;
            edges++;
        }
    }
    s->users = TJ_ARENA_NEW(a, uint32_t, edges + 1);
    uint32_t *at = TJ_ARENA_NEW(a, uint32_t, n + 1);
    if (a->failed) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        s->user_at[i + 1] += s->user_at[i];
        at[i] = s->user_at[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct tj_gnode *d = TJ_NODE(s, i);
        for (uint32_t j = 0; HAS(i, TJ_S_LIVE) && j < d->nin; j++) {
            s->users[at[d->in[j]]++] = i;
        }
    }
    if (!fill_leaves(s)) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        tj_ref v = TJ_NODE(s, i)->op == TJ_OP_UPDATE && HAS(i, TJ_S_LIVE) ? TJ_NODE(s, i)->in[2] : i;
        for (; v != i && tj_g_view(TJ_NODE(s, v)->op) && !s->through[v]; v = TJ_NODE(s, v)->in[0]) {
            s->through[v] = true;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct tj_gnode *d = TJ_NODE(s, i);
        s->buf[i] = s->cls[i] = TJ_NOBUF;
        s->deadline[i] = TJ_NEVER;
        s->lineage[i] = d->op == TJ_OP_UPDATE ? s->lineage[d->in[0]] : i;
        if (!HAS(i, TJ_S_LIVE)) {
            continue;
        }
        if (d->flags & TJ_GF_FORCE) {
            s->flags[i] |= TJ_S_FORCE;
        }
        if (d->op == TJ_OP_LEAF) {
            s->alias[i] = TJ_ARENA_NEW(a, struct tj_geom, 1);
            if (!s->alias[i] || !leaf_geom(s, i, s->alias[i])) {
                return false;
            }
        } else if (d->op == TJ_OP_UPDATE && s->alias[d->in[0]]) {
            s->alias[i] = s->alias[d->in[0]];
            s->cls[i] = s->cls[d->in[0]];
            s->nwtimes++;
        } else if (tj_g_view(d->op) && s->alias[d->in[0]]) {
            struct tj_geom v;
            if (tj_s_view_geom(s, s->alias[d->in[0]], i, &v)) {
                s->alias[i] = TJ_ARENA_NEW(a, struct tj_geom, 1);
                if (!s->alias[i]) {
                    return false;
                }
                *s->alias[i] = v;
                s->cls[i] = s->cls[d->in[0]];
            }
        }
    }
    if (!note_writes(s)) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct tj_gnode *d = TJ_NODE(s, i);
        if (!HAS(i, TJ_S_LIVE) || s->alias[i]) {
            continue;
        }
        uint32_t cost = own_cost(d);
        bool rowish = tj_g_reduce(d->op);
        for (uint32_t j = 0; j < d->nin; j++) {
            tj_ref o = d->in[j];
            uint32_t dead = s->alias[o] ? (s->cls[o] == TJ_NOBUF ? TJ_NEVER : tj_s_next_write(s, s->cls[o], i))
                            : inlines(TJ_NODE(s, o)->op) ? s->deadline[o]
                                                         : TJ_NEVER;
            s->deadline[i] = dead < s->deadline[i] ? dead : s->deadline[i];
            cost += s->dupcost[o] >= 1000 ? 0 : s->dupcost[o];
            rowish = rowish || (HAS(o, TJ_S_ROWISH) && tj_g_numel_hint(s->g, o) == tj_g_numel_hint(s->g, i));
        }
        s->dupcost[i] = (uint16_t)(cost > 1000 ? 1000 : cost);
        if (rowish && inlines(d->op)) {
            s->flags[i] |= TJ_S_ROWISH;
        }
    }
    return !a->failed;
}

// ---- cones --------------------------------------------------------------------------------------------------------

static bool push(struct tj_sched *s, tj_ref n) {
    if (s->seen[n] == s->stamp) {
        return true;
    }
    s->seen[n] = s->stamp;
    if (!tj_grow((void **)&s->heap, &s->capheap, s->nheap + 1, sizeof *s->heap)) {
        (void)tj_s_memory(s);
        return false;
    }
    uint32_t i = s->nheap++;
    for (; i > 0 && s->heap[(i - 1) / 2] < n; i = (i - 1) / 2) {
        s->heap[i] = s->heap[(i - 1) / 2];
    }
    s->heap[i] = n;
    return true;
}

static tj_ref pop(struct tj_sched *s) {
    tj_ref top = s->heap[0], last = s->heap[--s->nheap];
    uint32_t i = 0;
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= s->nheap) {
            break;
        }
        if (c + 1 < s->nheap && s->heap[c + 1] > s->heap[c]) {
            c++;
        }
        if (s->heap[c] <= last) {
            break;
        }
        s->heap[i] = s->heap[c];
        i = c;
    }
    if (s->nheap) {
        s->heap[i] = last;
    }
    return top;
}

// Users of n at times up to t.
static uint32_t users_until(const struct tj_sched *s, tj_ref n, uint32_t t) {
    uint32_t low = s->user_at[n], high = s->user_at[n + 1];
    while (low < high) { // they ascend
        uint32_t mid = low + (high - low) / 2;
        if (s->users[mid] <= t) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low - s->user_at[n];
}

// Whether the users of n are all in the cone and only there; *later: the others all run after time t. (A member that
// was taken in though it has other users may be computed again elsewhere, earlier: it is not `sole`.) A root stored at
// the place of a user (time t) counts that user as inside, if it uses the root once. Members don't run after t, so it
// takes no look at each user to tell.
static bool users_inside(const struct tj_sched *s, tj_ref n, tj_ref v, uint32_t t, bool *later) {
    uint32_t until = users_until(s, n, t), in = s->within_job[n] == s->stamp ? s->within[n] : 0;
    if (n == v && until && s->users[s->user_at[n] + until - 1] == t) {
        in++;
    }
    *later = in == until;
    return *later && until == s->user_at[n + 1] - s->user_at[n];
}

// Member u uses its operands in the cone and nowhere else.
static void count_uses(struct tj_sched *s, tj_ref u) {
    const struct tj_gnode *d = TJ_NODE(s, u);
    for (uint32_t i = 0; i < d->nin; i++) {
        if (s->within_job[d->in[i]] != s->stamp) {
            s->within_job[d->in[i]] = s->stamp;
            s->within[d->in[i]] = 0;
        }
        s->within[d->in[i]]++;
    }
}

static uint32_t reduced_extents(const struct tj_sched *s, tj_ref n, tj_ex *ext) {
    const struct tj_gnode *x = TJ_NODE(s, TJ_NODE(s, n)->in[0]);
    int64_t mask = ((const struct tj_attr_reduce *)TJ_NODE(s, n)->attr)->mask;
    uint32_t k = 0;
    for (int j = 0; j < x->rank; j++) {
        if (mask >> j & 1 && x->dims[j] != 1) {
            ext[k++] = x->dims[j];
        }
    }
    return k;
}

// Whether a reduction joins the kernel of root v.
static bool reduction_joins(struct tj_sched *s, tj_ref n, tj_ref v) {
    tj_ex ext[TJ_G_RANK];
    uint32_t k = reduced_extents(s, n, ext);
    int64_t rows = tj_g_numel_hint(s->g, n), full = tj_g_numel_hint(s->g, TJ_NODE(s, n)->in[0]);
    if (s->redset) {
        return k == s->nred && memcmp(ext, s->redext, k * sizeof *ext) == 0 && rows == s->rows;
    }
    int64_t root = tj_g_numel_hint(s->g, v);
    if (n == v || root == rows) {
        s->row_root = true;
    } else if (root == full && !(rows < 8 && full / (rows ? rows : 1) >= 32768)) {
        s->row_root = false; // few long rows are better reduced by several threads first
    } else {
        return false;
    }
    s->redset = true;
    s->nred = k;
    memcpy(s->redext, ext, k * sizeof *ext);
    s->rows = rows;
    s->full = full;
    return true;
}

static bool refuse(struct tj_sched *s, enum tj_kept why) {
    s->refused = (uint8_t)why;
    return false;
}

// Decides for a candidate, with the reason when it stays outside. t: time of the kernel, v: its root.
static bool joins(struct tj_sched *s, tj_ref n, tj_ref v, uint32_t t, bool epi) {
    const struct tj_gnode *d = TJ_NODE(s, n), *r = TJ_NODE(s, v);
    bool own = n == v && t == n, later, inside = users_inside(s, n, v, t, &later);
    s->refused = TJ_KEPT_KIND;
    if (own) {
        return inlines(d->op) && (!tj_g_reduce(d->op) || reduction_joins(s, n, v));
    }
    if (HAS(n, TJ_S_FORCE | TJ_S_DONE)) {
        return refuse(s, s->force_why[n] ? s->force_why[n] : TJ_KEPT_INDEX);
    }
    if (s->noinline_[n] == s->job && !(d->flags & TJ_GF_MANY)) { // windows of windows
        return refuse(s, TJ_KEPT_COST);
    }
    if (s->deadline[n] < t) {
        return refuse(s, TJ_KEPT_ORDER);
    }
    int64_t numel = tj_g_numel_hint(s->g, n), root = tj_g_numel_hint(s->g, v), domain = s->redset ? s->full : root;
    if (tj_g_contract(d->op)) {
        if (!epi || s->epi != TJ_NIL || d->op == TJ_OP_SDPA || HAS(n, TJ_S_NOEPI) || !later || s->deadline[n] <= t ||
            numel != domain || !s->g->fuse || tj_env_off(s->env, TJ_KILL_EPILOGUE)) {
            return refuse(s, !s->g->fuse || tj_env_off(s->env, TJ_KILL_EPILOGUE) ? TJ_KEPT_OFF
                             : !later                                            ? TJ_KEPT_USERS
                             : s->deadline[n] <= t                               ? TJ_KEPT_ORDER
                                                                                 : TJ_KEPT_CONTRACTION);
        }
        s->epi = n;
        return true;
    }
    if (!inlines(d->op)) {
        return false;
    }
    bool count = d->op == TJ_OP_CAST && TJ_NODE(s, d->in[0])->op == TJ_G_EXTENT;
    if (!s->g->fuse && d->trace != r->trace && !tj_g_view(d->op) && !count) {
        return refuse(s, TJ_KEPT_OFF);
    }
    if (tj_g_view(d->op)) { // free; but not when it is wanted in memory anyway
        if (HAS(n, TJ_S_NEED)) {
            return false;
        }
        return true;
    }
    s->refused = TJ_KEPT_USERS;
    bool store = HAS(n, TJ_S_NEED);
    if (!inside || store) {
        bool cheap = s->dupcost[n] <= CHEAP && !store && !tj_g_reduce(d->op);
        bool absorb = later && !HAS(n, TJ_S_NOABS) && t - n < ABSORB_SPAN && s->g->fuse &&
                      (numel == domain || numel == root || (s->redset && numel == s->rows));
        if (!cheap && !absorb) {
            return false;
        }
        if (!cheap && !store && !inside) {
            // Users outside run later and have been seen: they computed it themselves. Nothing to store.
            if (s->dupcost[n] > 4 * CHEAP) {
                return false;
            }
        }
    }
    if (tj_g_reduce(d->op)) {
        s->refused = TJ_KEPT_ROWS;
        return reduction_joins(s, n, v);
    }
    // Computed for every element though it has fewer: only when that costs little.
    if (numel < domain && numel > 1 && s->dupcost[n] > CHEAP && !(s->redset && numel == s->rows) &&
        !(!s->redset && HAS(n, TJ_S_ROWISH))) {
        return refuse(s, TJ_KEPT_COST);
    }
    return true;
}

// Grows the cone of v. False: out of memory.
static bool grow_cone(struct tj_sched *s, tj_ref v, uint32_t t, uint32_t budget, bool epi) {
    s->stamp++;
    s->nheap = s->nmembers = 0;
    s->redset = s->row_root = false;
    s->nred = 0;
    s->epi = TJ_NIL;
    uint32_t size = 0, inputs = 0, code = LOOPS;
    if (!push(s, v)) {
        return false;
    }
    while (s->nheap) {
        tj_ref n = pop(s);
        const struct tj_gnode *d = TJ_NODE(s, n);
        if (d->op == TJ_OP_SCALAR || d->op == TJ_G_EXTENT || d->op == TJ_G_NOTHING) {
            continue;
        }
        bool full =
            n != v && (size + size_of(d) > budget || code + code_of(d) > CODE || inputs + s->nheap > MAX_INPUTS);
        s->refused = TJ_KEPT_SIZE;
        if (tj_is_alias(s, n) || (s->alias[n] && n == v) || full || !joins(s, n, v, t, epi)) {
            s->why[n] = s->refused;
            s->why_job[n] = s->job;
            inputs++;
            continue;
        }
        bool later;
        s->incone[n] = s->stamp;
        if (n == s->epi) { // it reads memory
            inputs++;
            continue;
        }
        if ((n == v && t == n) || users_inside(s, n, v, t, &later) || later) {
            count_uses(s, n);
        }
        if (!tj_grow((void **)&s->members, &s->capmembers, s->nmembers + 1, sizeof *s->members)) {
            (void)tj_s_memory(s);
            return false;
        }
        s->members[s->nmembers++] = n;
        size += size_of(d);
        code += code_of(d);
        for (uint32_t i = 0; i < d->nin; i++) {
            if ((d->op == TJ_G_TAPS || d->flags & TJ_GF_MANY || (tj_g_view(d->op) && s->noinline_[n] == s->job)) &&
                i == 0) {
                s->noinline_[d->in[0]] = s->job; // each element is wanted many times
            }
            if (!push(s, d->in[i])) {
                return false;
            }
        }
    }
    return true;
}

// ---- kernels ------------------------------------------------------------------------------------------------------

// Whether a value at map m is computed once for each of its elements, in an order that can be stored.
static bool covers(struct tj_lower *l, tj_ref n, const struct tj_map *m) {
    const struct tj_gnode *d = TJ_NODE(l->s, n);
    struct tj_ixd flat = {0};
    tj_ex stride = 1, want = 1;
    if (m->mask != TJ_LNONE) {
        return false;
    }
    for (int j = d->rank; j-- > 0;) {
        if (m->d[j].nind) {
            return false;
        }
        tj_lo_add_scaled(l, &flat, &m->d[j], stride);
        stride = tj_lo_bin(l, TJ_EX_MUL, stride, d->dims[j]);
    }
    bool used[TJ_KDIMS] = {0};
    for (;;) {
        uint32_t k = 0;
        while (k < l->niter && (used[k] || flat.coef[k] != want)) {
            k++;
        }
        if (k == l->niter) {
            break;
        }
        used[k] = true;
        want = tj_lo_bin(l, TJ_EX_MUL, want, l->ext[k]);
    }
    for (uint32_t k = 0; k < l->niter; k++) {
        if (!used[k] && (flat.coef[k] || !l->red[k])) {
            return false;
        }
    }
    return flat.off == 0 && want == stride;
}

// Stores the further outputs of the cone. False: one of them can't be (it is flagged, the cone is grown again).
static bool store_outputs(struct tj_sched *s, struct tj_lower *l, tj_ref v, uint32_t t, tj_ref *stored,
                          uint32_t *nstored, uint32_t cap) {
    for (uint32_t i = 0; i < s->nmembers; i++) {
        tj_ref p = s->members[i];
        if ((p == v && t == p) || !HAS(p, TJ_S_NEED) || HAS(p, TJ_S_DONE) || s->memo[p] == 0) {
            continue;
        }
        bool done = false;
        for (uint32_t e = s->memo[p]; e && !done && *nstored < cap; e = l->memo[e - 1].next) {
            struct tj_memo m = l->memo[e - 1];
            if (covers(l, p, m.map)) {
                struct tj_geom g;
                tj_s_buffer_geom(s, p, tj_s_buffer(s, p), &g);
                l->trace = TJ_NODE(s, p)->trace;
                tj_lo_store(l, &g, m.map, m.value, (tj_dtype)g.dtype);
                stored[(*nstored)++] = p;
                done = true;
            }
        }
        if (!done) {
            s->flags[p] |= TJ_S_NOABS;
            return false;
        }
    }
    return true;
}

static bool same_access(const struct tj_la *a, const struct tj_la *b) {
    return a->buf == b->buf && a->off == b->off && a->nind == 0 && b->nind == 0 &&
           memcmp(a->coef, b->coef, sizeof a->coef) == 0;
}

// Whether what the kernel loads from the memory it stores to is only the very element it stores.
static bool in_place_ok(const struct tj_sched *s, const struct tj_lower *l, uint32_t buf, uint32_t store, bool *loads) {
    uint32_t cls = tj_s_buf_class(s, buf);
    *loads = false;
    for (uint32_t i = 0; i < l->nins; i++) {
        const struct tj_li *in = &l->ins[i];
        if (in->op != TJ_KOP_LOAD || tj_s_buf_class(s, l->acc[in->imm].buf) != cls) {
            continue;
        }
        *loads = true;
        if (!same_access(&l->acc[in->imm], &l->acc[store])) {
            return false;
        }
    }
    return true;
}

static bool streams(const struct tj_sched *s, const struct tj_loop *loop) {
    const struct tj_kernel *k = loop->kernel;
    if (k->kind != TJ_K_POINTWISE || tj_env_off(s->env, TJ_KILL_STREAM)) {
        return false;
    }
    double bytes = 0, cache = s->cpu && s->cpu->l3 ? (double)s->cpu->l3 : (double)(32 << 20);
    double n = (double)tj_ex_hint(s->x, loop->rows) * (double)tj_ex_hint(s->x, loop->cols);
    bool stores = false;
    for (uint32_t i = 0; i < k->nins; i++) {
        const struct tj_kins *in = &k->ins[i];
        if (in->op != TJ_KOP_LOAD && in->op != TJ_KOP_STORE) {
            continue;
        }
        const struct tj_kaccess *a = &k->access[in->imm];
        bytes += a->vec == TJ_VEC_ZERO ? 0 : n * (double)tj_elem_bytes((tj_dtype)a->dtype);
        if (in->op == TJ_KOP_STORE) {
            stores = true;
            if (a->vec != TJ_VEC_UNIT || in->in[1] != TJ_KNONE || s->bufs[loop->bufs[a->buf]].kind == TJ_BUF_LEAF) {
                return false;
            }
        }
    }
    return stores && bytes > cache;
}

static bool fail(struct tj_sched *s, tj_ref v, const char *why) {
    if (s->status == TRACE_OK) {
        const struct tj_gnode *d = TJ_NODE(s, v);
        s->status =
            tj_fail(TRACE_ERR_COMPILE, "%s: %s", d->trace != TJ_NIL ? tj_call_name(s->g->t, d->trace) : "an op", why);
    }
    return false;
}

// One kernel: value v, at time t, stored to dst (its shape). user: node at whose place the store happens, or TJ_NIL.
static bool kernel(struct tj_sched *s, tj_ref v, uint32_t t, const struct tj_geom *dst, tj_ref user) {
    struct tj_lower *l = s->lower;
    enum { MAX_STORED = 12 };
    tj_ref stored[MAX_STORED];
    uint32_t budget = BUDGET, nstored = 0;
    bool own = t == v, epi = own || tj_s_buf_class(s, dst->buf) < UINT32_MAX / 2, share = true;
    struct tj_loop loop;
    if (tj_g_nothing(TJ_NODE(s, v)->dims, TJ_NODE(s, v)->rank)) {
        return true; // its memory has no element
    }
    s->job++;
    for (uint32_t tries = 0;; tries++) {
        if (tries > 600) {
            return fail(s, v, "no schedule found");
        }
        if (!grow_cone(s, v, t, budget, epi)) {
            return false;
        }
        bool again = false;
        for (uint32_t i = 0; !s->redset && i < s->nmembers; i++) {
            tj_ref n = s->members[i]; // taken in as row values, but the reduction stayed outside
            if (HAS(n, TJ_S_ROWISH) && n != v && s->dupcost[n] > CHEAP && tj_g_numel_hint(s->g, n) > 1 &&
                tj_g_numel_hint(s->g, n) < tj_g_numel_hint(s->g, v)) {
                s->noinline_[n] = s->job;
                again = true;
            }
        }
        if (again) {
            continue;
        }
        // Iteration space.
        const struct tj_gnode *d = TJ_NODE(s, v);
        l->nbase = 0;
        for (int j = 0; j < d->rank; j++) {
            if (d->dims[j] != 1 && l->nbase < TJ_KDIMS) {
                l->nfac[l->nbase] = 1;
                l->fac[l->nbase++][0] = d->dims[j];
            }
        }
        uint32_t npar = l->nbase;
        for (uint32_t j = 0; s->row_root && j < s->nred; j++) {
            if (l->nbase == TJ_KDIMS) {
                return fail(s, v, "too many dims");
            }
            l->nfac[l->nbase] = 1;
            l->fac[l->nbase++][0] = s->redext[j];
        }
        l->epi = s->epi;
        bool sharing = false;
        if (s->epi != TJ_NIL) {
            // The result goes straight into the root's memory when nobody else wants it.
            bool later;
            sharing = share && own && s->buf[s->epi] == TJ_NOBUF && !HAS(s->epi, TJ_S_NEED) &&
                      TJ_NODE(s, s->epi)->dtype == dst->dtype && users_inside(s, s->epi, v, t, &later);
            s->demand = TJ_KEPT_TILE;
            s->demand_by = d->trace;
            l->epi_buf = sharing ? dst->buf : tj_s_buffer(s, s->epi);
            s->demand = 0;
            if (s->status) {
                return false;
            }
        }
        l->limit = MAX_INS;
        bool keep = false;
        for (uint32_t splits = 0; splits <= TJ_KDIMS; splits++) {
            tj_lo_reset(l, keep);
            keep = true;
            l->redset = s->row_root;
            for (uint32_t b = 0; b < l->nbase; b++) {
                for (uint32_t f = 0; f < l->nfac[b]; f++) {
                    l->red[l->first[b] + f] = b >= npar;
                }
            }
            struct tj_map *m = tj_lo_map(l, NULL, d->rank);
            if (!m) {
                break;
            }
            tj_lo_identity(l, v, m);
            uint32_t value = s->alias[v] && own ? tj_lo_load(l, s->alias[v], m) : tj_lo_value(l, v, m);
            if (!l->stop) {
                l->trace = d->trace;
                tj_lo_store(l, dst, m, value, (tj_dtype)dst->dtype);
            }
            if (l->stop != TJ_L_SPLIT) {
                break;
            }
        }
        uint32_t store = 0;
        nstored = 0;
        if (!l->stop) {
            store = (uint32_t)l->ins[l->nins - 1].imm;
            if (!store_outputs(s, l, v, t, stored, &nstored, MAX_STORED)) {
                continue;
            }
        }
        bool loads = false;
        if (!l->stop && !in_place_ok(s, l, dst->buf, store, &loads)) {
            if (sharing) {
                share = false;
                continue;
            }
            tj_lo_force(l, v, TJ_KEPT_ORDER);
        }
        if (!l->stop && tj_arrange(l, &dst->buf, loads ? 1 : 0, &loop)) {
            if (sharing) {
                s->buf[s->epi] = dst->buf;
            }
            break;
        }
        if (s->status) {
            return false;
        }
        switch (l->stop) {
        case TJ_L_FORCE:
            if (l->stop_node == s->epi) {
                s->flags[s->epi] |= TJ_S_NOEPI;
            } else if ((l->stop_node == v && own) || HAS(l->stop_node, TJ_S_FORCE)) {
                return fail(s, l->stop_node, "cannot be lowered");
            } else {
                s->flags[l->stop_node] |= TJ_S_FORCE;
                s->force_why[l->stop_node] = l->stop_why;
            }
            break;
        case TJ_L_TOOBIG:
            if (budget <= 2) {
                return fail(s, v, "kernel too large");
            }
            budget /= 2;
            break;
        case TJ_L_SPLIT: return fail(s, v, "too many dims");
        default: (void)tj_s_memory(s); return false;
        }
    }
    tj_s_ops_start(s);
    for (uint32_t i = 0; i < s->nmembers; i++) {
        if (s->memo[s->members[i]]) { // what lowering had no use for isn't computed
            tj_s_ops_add(s, TJ_NODE(s, s->members[i])->trace);
        }
    }
    for (uint32_t i = 0; i < nstored; i++) {
        s->flags[stored[i]] |= TJ_S_DONE;
    }
    if (s->epi != TJ_NIL) {
        s->flags[s->epi] |= TJ_S_DONE;
        return tj_s_contraction(s, s->epi, &loop);
    }
    loop.kernel->stream = streams(s, &loop);
    struct tj_step *st = tj_s_step(s, TJ_STEP_LOOP, TJ_NODE(s, user == TJ_NIL ? v : user)->trace);
    if (!st) {
        return false;
    }
    st->loop = loop;
    st->name = loop.kernel->name;
    return tj_s_step_done(s, st);
}

// ---- nodes, from the last to the first ----------------------------------------------------------------------------

static bool update(struct tj_sched *s, tj_ref u) {
    tj_s_ops_start(s);
    const struct tj_gnode *d = TJ_NODE(s, u);
    tj_ref mem = d->in[0], v = d->in[1], view = d->in[2];
    struct tj_geom dst;
    const struct tj_gnode *c = TJ_NODE(s, v);
    bool later, ok, fresh = false, whole = view == mem, computed = !s->alias[u];
    s->stamp++;
    s->epi = TJ_NIL;
    bool rows = c->op == TJ_OP_INDEX_COPY && c->in[0] == view && !HAS(v, TJ_S_NEED | TJ_S_FORCE) &&
                users_inside(s, v, v, u, &later); // index_copy in place: the other rows stay
    whole = whole && !rows;
    if (computed) {
        if (!HAS(u, TJ_S_NEED)) {
            return true;
        }
        s->demand = TJ_KEPT_WRITTEN;
        s->demand_by = d->trace;
        uint32_t b = tj_s_buffer(s, u);
        s->demand = 0;
        fresh = s->buf[mem] == TJ_NOBUF && !HAS(mem, TJ_S_DONE);
        if (fresh) { // nobody wants the old content later: it is made where the new one goes
            s->buf[mem] = b;
            s->flags[mem] |= whole ? 0 : TJ_S_NEED;
        }
        if (!tj_s_geom_in(s, view, s->lineage[mem], b, &dst)) {
            return fail(s, u, "view of written memory has no strides");
        }
    } else if (s->alias[view]) {
        dst = *s->alias[view];
    } else {
        return fail(s, u, "view of written memory has no strides");
    }
    s->flags[u] |= TJ_S_DONE;
    if (rows) {
        for (int i = 1; i < 3; i++) { // read before it is overwritten
            tj_ref o = c->in[i];
            if (s->alias[o] && s->cls[o] != TJ_NOBUF && s->cls[o] == s->cls[u]) {
                s->flags[o] |= TJ_S_FORCE;
                s->force_why[o] = TJ_KEPT_ORDER;
            }
        }
        ok = tj_s_index_copy(s, v, &dst, c->in[1], c->in[2]);
    } else {
        ok = kernel(s, v, u, &dst, u);
    }
    if (ok && computed && !whole && !fresh) {
        struct tj_geom all;
        tj_s_buffer_geom(s, u, s->buf[u], &all);
        ok = kernel(s, mem, u, &all, TJ_NIL);
    }
    return ok && !s->status;
}

// Pieces straight to their places.
static bool cat_root(struct tj_sched *s, tj_ref n, const struct tj_geom *dst) {
    const struct tj_gnode *d = TJ_NODE(s, n);
    int64_t dim = ((const struct tj_attr_dim *)d->attr)->dim;
    tj_ex at = dst->offset;
    for (uint32_t i = 0; i < d->nin; i++) {
        const struct tj_gnode *p = TJ_NODE(s, d->in[i]);
        struct tj_geom g = *dst;
        g.offset = at;
        for (int j = 0; j < g.rank; j++) {
            g.dims[j] = p->dims[j];
        }
        // A dim of extent 1 has no stride in dst; a piece never has more.
        at = tj_ex_bin(s->x, TJ_EX_ADD, at, tj_ex_bin(s->x, TJ_EX_MUL, dst->strides[dim], p->dims[dim]));
        if (!kernel(s, d->in[i], n, &g, n)) {
            return false;
        }
    }
    return true;
}

// A cat of few single elements: pieces of their own would be stored an element here and there. One kernel computes all
// of them for each, so what costs much gets memory first.
static bool interleaves(struct tj_sched *s, tj_ref n) {
    enum { MOST = 8, DEAR = 24 };
    const struct tj_gnode *d = TJ_NODE(s, n);
    tj_ex run = 1;
    for (int j = (int)((const struct tj_attr_dim *)d->attr)->dim + 1; j < d->rank; j++) {
        run = tj_ex_bin(s->x, TJ_EX_MUL, run, d->dims[j]);
    }
    bool single = run == 1 && d->nin <= MOST;
    for (uint32_t i = 0; i < d->nin && single; i++) {
        single = TJ_NODE(s, d->in[i])->dims[((const struct tj_attr_dim *)d->attr)->dim] == 1;
    }
    for (uint32_t i = 0; i < d->nin && single; i++) {
        s->flags[d->in[i]] |= s->dupcost[d->in[i]] > DEAR ? TJ_S_FORCE : 0;
    }
    return single;
}

static bool root(struct tj_sched *s, tj_ref n) {
    const struct tj_gnode *d = TJ_NODE(s, n);
    tj_s_ops_start(s);
    uint32_t buf = tj_s_buffer(s, n);
    struct tj_geom dst;
    s->flags[n] |= TJ_S_DONE;
    if (tj_g_contract(d->op)) {
        return tj_s_contraction(s, n, NULL);
    }
    if (d->op == TJ_G_RESULT) {
        return true; // the loop puts it there
    }
    tj_s_buffer_geom(s, n, buf, &dst);
    if (d->op == TJ_OP_INDEX_COPY) {
        return tj_s_index_copy(s, n, &dst, d->in[1], d->in[2]) && kernel(s, d->in[0], n, &dst, n);
    }
    if (d->op == TJ_OP_RESHAPE && !s->alias[n]) {
        // The operand is made right here, when it has no memory of its own.
        tj_ref c = d->in[0];
        uint16_t op = TJ_NODE(s, c)->op;
        if (!s->alias[c] && s->buf[c] == TJ_NOBUF && !tj_g_view(op) && op != TJ_OP_SCALAR && op != TJ_G_EXTENT) {
            s->buf[c] = buf;
            s->flags[c] |= TJ_S_NEED;
            return true;
        }
    }
    if (d->op == TJ_OP_CAT && d->nin > 1 && !interleaves(s, n)) {
        return cat_root(s, n, &dst);
    }
    return kernel(s, n, n, &dst, TJ_NIL);
}

// An output beyond the first of its node, or of leaf memory.
struct extra {
    tj_ref node;
    uint32_t out;
    uint32_t next; // of the same node, index + 1
};
static bool copy_out(struct tj_sched *s, const struct extra *e, uint32_t time) {
    struct tj_geom g;
    const struct tj_gnode *d = TJ_NODE(s, e->node);
    uint32_t buf = tj_s_new_buf(s, TJ_BUF_OUT, d->dtype, e->out, tj_g_elems(s->g, e->node), d->trace);
    tj_s_buffer_geom(s, e->node, buf, &g);
    return !s->status && kernel(s, e->node, time, &g, TJ_NIL);
}

static bool schedule(struct tj_sched *s) {
    struct tj_graph *g = s->g;
    struct extra *extra = TJ_ARENA_NEW(g->arena, struct extra, g->seg->nouts + 1);
    uint32_t nextra = 0;
    if (!extra || !prepare(s)) {
        return false;
    }
    for (uint32_t i = 0; i < g->seg->nouts; i++) {
        tj_ref n = g->outs[i];
        const struct tj_gnode *d = TJ_NODE(s, n);
        if (s->alias[n] || s->buf[n] != TJ_NOBUF) {
            extra[nextra++] = (struct extra){n, i, 0};
            continue;
        }
        s->buf[n] = tj_s_new_buf(s, TJ_BUF_OUT, d->dtype, i, tj_g_elems(g, n), d->trace);
        s->flags[n] |= TJ_S_NEED | TJ_S_OUT;
    }
    // Copies at the end, but those of memory that is overwritten later: chains by node, in rising order.
    uint32_t *kept = TJ_ARENA_NEW(g->arena, uint32_t, nextra ? s->n : 1);
    if (!kept) {
        return false;
    }
    for (uint32_t i = nextra; i-- > 0;) {
        tj_ref n = extra[i].node;
        if (s->alias[n] && tj_s_next_write(s, s->cls[n], n) != TJ_NEVER) {
            extra[i].next = kept[n];
            kept[n] = i + 1;
            extra[i].node = TJ_NIL;
        }
    }
    for (uint32_t i = 0; i < nextra; i++) {
        if (extra[i].node != TJ_NIL && !copy_out(s, &extra[i], TJ_NEVER - 1)) {
            return false;
        }
    }
    for (tj_ref n = s->n; n-- > 0;) {
        if (!HAS(n, TJ_S_LIVE)) {
            continue;
        }
        for (uint32_t i = nextra ? kept[n] : 0; i; i = extra[i - 1].next) {
            extra[i - 1].node = n;
            if (!copy_out(s, &extra[i - 1], n)) {
                return false;
            }
        }
        if (TJ_NODE(s, n)->op == TJ_G_REPEAT) {
            if (!tj_s_repeat(s, n)) {
                return false;
            }
            continue;
        }
        if (TJ_NODE(s, n)->op == TJ_OP_UPDATE) {
            // A copy of the new content, where its users could not read it in place, comes after the write.
            if ((s->alias[n] && HAS(n, TJ_S_NEED) && !root(s, n)) || !update(s, n)) {
                return false;
            }
            continue;
        }
        if (HAS(n, TJ_S_NEED) && !HAS(n, TJ_S_DONE) && !root(s, n)) {
            return false;
        }
        if (s->status) {
            return false;
        }
    }
    return true;
}

// Bytes a step reads and writes: what each access spans.
static void count_bytes(struct tj_sched *s, struct tj_step *st) {
    struct tj_exprs *x = s->x;
    st->bytes_read = st->bytes_written = 0;
    const struct tj_loop *l = &st->loop;
    for (uint32_t i = 0; l->kernel && i < l->kernel->nins; i++) {
        const struct tj_kins *in = &l->kernel->ins[i];
        if (in->op != TJ_KOP_LOAD && in->op != TJ_KOP_STORE) {
            continue;
        }
        const struct tj_kaccess *a = &l->kernel->access[in->imm];
        if (st->kind != TJ_STEP_LOOP && l->bufs[a->buf] == st->out.buf) {
            continue; // an epilogue takes the result from the cache; its memory is counted once, below
        }
        tj_ex e = tj_ex_const(x, (int64_t)tj_elem_bytes((tj_dtype)a->dtype));
        for (uint32_t d = 0; d < l->kernel->ndims; d++) {
            if (a->stride[d] || a->nindirect) {
                e = tj_ex_bin(x, TJ_EX_MUL, e, l->ivals[l->kernel->extent[d]]);
            }
        }
        tj_ex *total = in->op == TJ_KOP_LOAD ? &st->bytes_read : &st->bytes_written;
        *total = tj_ex_bin(x, TJ_EX_ADD, *total, e);
    }
    const struct tj_geom *g[5] = {&st->out, &st->a, &st->b, st->has_bias || st->kind == TJ_STEP_SDPA ? &st->c : NULL,
                                  st->has_mask ? &st->d : NULL};
    for (uint32_t i = 0; st->kind != TJ_STEP_LOOP && !st->repeat && i < 5; i++) {
        if (!g[i] || (i == 2 && st->kind == TJ_STEP_COPY)) {
            continue;
        }
        const struct tj_geom *of = i == 0 && st->kind == TJ_STEP_INDEX_COPY ? g[2] : g[i];
        tj_ex e = tj_ex_const(x, (int64_t)tj_elem_bytes((tj_dtype)of->dtype));
        for (uint32_t d = 0; d < of->rank; d++) {
            if (of->strides[d]) {
                e = tj_ex_bin(x, TJ_EX_MUL, e, of->dims[d]);
            }
        }
        tj_ex *total = i == 0 ? &st->bytes_written : &st->bytes_read;
        *total = tj_ex_bin(x, TJ_EX_ADD, *total, e);
    }
}

static bool finish(struct tj_sched *s) {
    struct tj_program *p = s->p;
    const struct tj_graph *g = s->g;
    p->bufs = TJ_ARENA_NEW(&p->arena, struct tj_buf, s->nbufs + 1);
    p->steps = TJ_ARENA_NEW(&p->arena, struct tj_step, s->nsteps + 1);
    p->guards = TJ_ARENA_NEW(&p->arena, struct tj_guard, g->nequal + 1);
    if (p->arena.failed) {
        return false;
    }
    if (s->nbufs) {
        memcpy(p->bufs, s->bufs, s->nbufs * sizeof *s->bufs);
    }
    p->nbufs = s->nbufs;
    p->nsteps = s->nsteps;
    tj_ex total = 0;
    for (uint32_t i = 0; i < s->nsteps; i++) {
        p->steps[i] = s->steps[s->nsteps - 1 - i];
        count_bytes(s, &p->steps[i]);
        total = tj_ex_bin(s->x, TJ_EX_ADD, total, p->steps[i].bytes_read);
        total = tj_ex_bin(s->x, TJ_EX_ADD, total, p->steps[i].bytes_written);
    }
    p->bytes_moved = total;
    for (uint32_t i = 0; i < g->nequal; i++) {
        if (!g->equal[i].fact) {
            p->guards[p->nguards++] = (struct tj_guard){g->equal[i].a, g->equal[i].b, g->equal[i].node};
        }
    }
    p->nouts = g->seg->nouts;
    for (uint32_t i = 0; i < g->t->nnodes; i++) {
        uint8_t cls = tj_ops[g->t->nodes[i].op].cls;
        p->nops += g->map[i] != TJ_NIL && cls != TJ_SOURCE && cls != TJ_LOOP;
    }
    p->nfused = p->nops > p->nsteps ? p->nops - p->nsteps : 0;
    return true;
}

tj_status tj_schedule(struct tj_graph *g, const struct tj_env *env, const struct tj_cpu *cpu) {
    struct tj_lower lower = {.epi = TJ_NIL};
    struct tj_sched sched = {.g = g, .x = g->x, .p = g->p, .env = env, .cpu = cpu, .n = g->n, .lower = &lower},
                    *s = &sched;
    lower.s = s;
    struct tj_arena *a = g->arena;
    uint32_t n = s->n + 1, leaves = g->t->nleaves + 1;
    s->flags = TJ_ARENA_NEW(a, uint8_t, n);
    s->user_at = TJ_ARENA_NEW(a, uint32_t, n + 1);
    s->buf = TJ_ARENA_NEW(a, uint32_t, n);
    s->deadline = TJ_ARENA_NEW(a, uint32_t, n);
    s->cls = TJ_ARENA_NEW(a, uint32_t, n);
    s->dupcost = TJ_ARENA_NEW(a, uint16_t, n);
    s->alias = TJ_ARENA_NEW(a, struct tj_geom *, n);
    s->through = TJ_ARENA_NEW(a, bool, n);
    s->lineage = TJ_ARENA_NEW(a, tj_ref, n);
    s->incone = TJ_ARENA_NEW(a, uint32_t, n);
    s->seen = TJ_ARENA_NEW(a, uint32_t, n);
    s->within = TJ_ARENA_NEW(a, uint32_t, n);
    s->within_job = TJ_ARENA_NEW(a, uint32_t, n);
    s->noinline_ = TJ_ARENA_NEW(a, uint32_t, n);
    s->memo = TJ_ARENA_NEW(a, uint32_t, n);
    s->why = TJ_ARENA_NEW(a, uint8_t, n);
    s->force_why = TJ_ARENA_NEW(a, uint8_t, n);
    s->why_job = TJ_ARENA_NEW(a, uint32_t, n);
    s->op_job = TJ_ARENA_NEW(a, uint32_t, g->t->nnodes + 1);
    s->leafbuf = TJ_ARENA_NEW(a, uint32_t, leaves);
    s->leafcls = TJ_ARENA_NEW(a, uint32_t, leaves);
    bool ok = !a->failed && schedule(s) && finish(s);
    if (!ok && s->status == TRACE_OK) {
        (void)tj_s_memory(s);
    }
    if (s->status == TRACE_OK && (g->x->failed || a->failed)) {
        (void)tj_s_memory(s);
    }
    tj_arena_free(&lower.tmp);
    tj_free(lower.ins);
    tj_free(lower.acc);
    tj_free(lower.svals);
    tj_free(lower.sites);
    tj_free(lower.memo);
    tj_free(s->steps);
    tj_free(s->bufs);
    tj_free(s->heap);
    tj_free(s->chain);
    tj_free(s->members);
    tj_free(s->ops);
    return s->status;
}
