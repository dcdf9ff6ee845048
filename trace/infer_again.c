// trace/infer_again.c: shape inference over a recorded trace, with other extents of its leaves.
//
// Node by node in program order. Most results follow from their operands. Extents that the host gave as arguments are
// guessed, the likeliest first; when a later op doesn't fit, the latest guess that it depends on is changed, and the
// nodes from there on are inferred again.
#include <stdio.h>

#include "record.h"
#include "warmup.h"

#define OPTIONS 16     // shapes tried for one node
#define CANDIDATES 8   // values tried for one extent
#define TRIES 512      // guesses changed in all
#define LOOK_BACK 1024 // nodes before an op whose extents the host may have asked for

struct guess {
    tj_ref node;
    uint32_t pick, n;
};
struct again {
    const struct tj_trace *t;
    const int64_t *leaf;
    const struct tj_extent *map;
    size_t nmap;
    int64_t *dims; // TJ_MAX_RANK a node: the new extents
    struct guess *guesses;
    uint32_t nguesses, capguesses;
    uint8_t *mark; // ancestors of a node that doesn't fit
};
struct side {
    size_t rank;
    const int64_t *was, *now;
};

static struct side side(const struct again *a, tj_ref n) {
    return (struct side){tj_shape_rank(a->t, a->t->nodes[n].shape), tj_shape_dims(a->t, a->t->nodes[n].shape),
                         a->dims + (size_t)n * TJ_MAX_RANK};
}

static bool is_scalar(const struct again *a, tj_ref n) { return a->t->nodes[n].op == TJ_OP_SCALAR; }

static bool is_reshape(const struct tj_node *n) { return n->op == TJ_OP_RESHAPE || n->op == TJ_OP_RESHAPE_COPY; }

static bool unchanged(const struct side *s) { return tj_same(s->was, s->now, s->rank * sizeof *s->was); }

// ---- what an extent given by the host may become -------------------------------------------------------------------

struct values {
    int64_t v[CANDIDATES];
    uint32_t n;
};

static void offer(struct values *c, int64_t v) {
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->v[i] == v)
            return;
    }
    if (v >= 0 && c->n < CANDIDATES)
        c->v[c->n++] = v;
}

// What an extent of an input has become.
static void offer_equal(const struct again *a, struct values *c, int64_t was) {
    for (size_t i = 0; i < a->nmap; i++) {
        if (a->map[i].from == was && a->map[i].to != was)
            offer(c, a->map[i].to);
    }
}

// What an extent of a value recorded before node n has become.
static void offer_seen(const struct again *a, struct values *c, int64_t was, tj_ref n) {
    for (uint32_t back = 1; back <= n && back <= LOOK_BACK; back++) {
        struct side s = side(a, n - back);
        for (size_t d = 0; d < s.rank; d++) {
            if (s.was[d] == was && s.now[d] != was)
                offer(c, s.now[d]);
        }
    }
}

// Products and ratios of extents, one of which changes; multiples and parts of one that does.
static void offer_derived(const struct again *a, struct values *c, int64_t was) {
    int64_t f, t;
    for (size_t i = 0; i < a->nmap; i++) {
        for (size_t k = 0; k < a->nmap; k++) {
            const struct tj_extent *x = &a->map[i], *y = &a->map[k];
            if (i == k || x->from < 2 || y->from < 2 || (x->from == x->to && y->from == y->to))
                continue;
            if (i < k && tj_size_mul(x->from, y->from, &f) && tj_size_mul(x->to, y->to, &t)) {
                if (f == was)
                    offer(c, t);
                for (size_t l = k + 1; l < a->nmap; l++) {
                    int64_t f3, t3;
                    if (a->map[l].from > 1 && tj_size_mul(f, a->map[l].from, &f3) && f3 == was &&
                        tj_size_mul(t, a->map[l].to, &t3))
                        offer(c, t3);
                }
            }
            if (x->from % y->from == 0 && x->from / y->from == was && y->to && x->to % y->to == 0)
                offer(c, x->to / y->to);
        }
    }
    for (size_t i = 0; i < a->nmap; i++) {
        const struct tj_extent *x = &a->map[i];
        if (x->from == x->to || x->from < 2 || was < 2)
            continue;
        if (was % x->from == 0 && tj_size_mul(x->to, was / x->from, &t))
            offer(c, t);
        if (x->from % was == 0 && x->to % (x->from / was) == 0)
            offer(c, x->to / (x->from / was));
    }
}

static struct values values(const struct again *a, int64_t was, tj_ref n) {
    struct values c = {.n = 0};
    offer_equal(a, &c, was);
    offer_seen(a, &c, was, n);
    offer(&c, was);
    offer_derived(a, &c, was);
    return c;
}

// ---- nodes with extents given by the host: the shapes to try -------------------------------------------------------

typedef int64_t shape_options[OPTIONS][TJ_MAX_RANK];

// One more dim: every shape so far with every value.
static uint32_t spread(int64_t (*opt)[TJ_MAX_RANK], uint32_t n, size_t dim, const struct values *c) {
    uint32_t k = 0;
    shape_options next;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < c->n && k < OPTIONS; j++, k++) {
            memcpy(next[k], opt[i], sizeof next[k]);
            next[k][dim] = c->v[j];
        }
    }
    memcpy(opt, next, k * sizeof *opt);
    return k;
}

static uint32_t expand_options(const struct again *a, tj_ref i, const struct side *o, const struct side *x,
                               int64_t (*opt)[TJ_MAX_RANK]) {
    uint32_t n = 1;
    for (size_t d = 0; d < o->rank; d++) {
        struct values c = {.n = 0};
        size_t shift = o->rank - x->rank;
        int64_t now = d >= shift ? x->now[d - shift] : 1;
        if (d >= shift && (x->was[d - shift] != 1 || now != 1 || o->was[d] == 1)) {
            offer(&c, now);
            if (now == 1 && x->was[d - shift] != 1) { // an extent that has become 1 may grow to what it was meant to be
                struct values more = values(a, o->was[d], i);
                for (uint32_t k = 0; k < more.n; k++)
                    offer(&c, more.v[k]);
            }
        } else {
            c = values(a, o->was[d], i);
        }
        n = spread(opt, n, d, &c);
    }
    return n;
}

static uint32_t slice_options(const struct again *a, tj_ref i, const struct tj_node *node, const struct side *o,
                              const struct side *x, int64_t (*opt)[TJ_MAX_RANK]) {
    const struct tj_trace *t = a->t;
    const struct tj_attr_slice *at = tj_node_attr(t, node);
    int64_t start = t->params[((const struct tj_attr_param *)tj_node_attr(t, &t->nodes[node->in[1]]))->index].v.i;
    int64_t was = x->was[at->dim], now = x->now[at->dim], length = o->was[at->dim];
    bool ends = length && start + (length - 1) * at->step >= was - at->step;
    struct values c = {.n = 0}, fit = {.n = 0};
    if (length == 1)
        offer(&c, 1);
    if (length == was)
        offer(&c, now);
    offer_equal(a, &c, length);
    if (now != was && ends && (start <= length || length == was - 1) && start < now)
        offer(&c, (now - start - 1) / at->step + 1); // up to the end
    if (now != was && at->step == 1 && start == 0 && length == was - 1)
        offer(&c, now - 1);
    offer_seen(a, &c, length, i);
    offer(&c, length);
    if (now != was && ends && start < now)
        offer(&c, (now - start - 1) / at->step + 1);
    if (now != was && at->step == 1)
        offer(&c, now - (was - length));
    offer_derived(a, &c, length);
    for (uint32_t k = 0; k < c.n; k++) { // only those that some start leaves room for
        if (c.v[k] == 0 || (c.v[k] - 1 <= (INT64_MAX - 1) / at->step && (c.v[k] - 1) * at->step < now))
            offer(&fit, c.v[k]);
    }
    memcpy(opt[0], x->now, x->rank * sizeof **opt);
    return fit.n ? spread(opt, 1, (size_t)at->dim, &fit) : 0;
}

// Values of dims j0 to j1 whose product is `want`: first the likely values, then one dim takes up what is left.
static uint32_t split_group(const struct again *a, tj_ref i, const int64_t *was, size_t j0, size_t j1, int64_t want,
                            int64_t (*got)[TJ_MAX_RANK]) {
    struct values c[TJ_MAX_RANK];
    uint32_t pick[TJ_MAX_RANK] = {0}, n = 0;
    size_t w = j1 - j0;
    for (size_t j = 0; j < w; j++)
        c[j] = values(a, was[j0 + j], i);
    for (uint32_t turn = 0; turn < 4096 && n < OPTIONS / 2; turn++) {
        int64_t p = 1;
        for (size_t j = 0; j < w; j++) {
            if (!tj_size_mul(p, c[j].v[pick[j]], &p))
                p = -1;
            if (p < 0)
                break;
        }
        if (p == want) {
            for (size_t j = 0; j < w; j++)
                got[n][j] = c[j].v[pick[j]];
            n++;
        }
        size_t j = w;
        while (j > 0 && ++pick[j - 1] == c[j - 1].n)
            pick[--j] = 0;
        if (j == 0)
            break;
    }
    for (size_t j = 0; j < w && n < OPTIONS; j++) {
        int64_t rest = 1;
        for (size_t k = 0; k < w && rest > 0; k++) {
            if (k != j && !tj_size_mul(rest, was[j0 + k], &rest))
                rest = 0;
        }
        if (rest < 1 || want % rest)
            continue;
        for (size_t k = 0; k < w; k++)
            got[n][k] = k == j ? want / rest : was[j0 + k];
        bool other = true;
        for (uint32_t k = 0; k < n && other; k++)
            other = memcmp(got[k], got[n], w * sizeof **got) != 0;
        n += other;
    }
    return n;
}

// Dims of operand and result are taken in groups of equal numbers of elements, as views take them.
static uint32_t reshape_options(const struct again *a, tj_ref node, const struct side *o, const struct side *x,
                                int64_t (*opt)[TJ_MAX_RANK]) {
    uint32_t n = 1;
    bool empty = false;
    for (size_t i = 0; i < x->rank; i++)
        empty |= x->was[i] == 0;
    for (size_t i = 0, j = 0; n && (i < x->rank || j < o->rank);) {
        size_t i0 = i, j0 = j;
        int64_t p = 1, q = 1, want = 1;
        if (empty) {
            i = x->rank;
            j = o->rank;
        } else {
            if (i < x->rank)
                p = x->was[i++];
            if (j < o->rank)
                q = o->was[j++];
            while (p != q) {
                if (p < q ? i == x->rank : j == o->rank)
                    return 0; // can't be: the products of all are equal
                if (p < q)
                    p *= x->was[i++];
                else
                    q *= o->was[j++];
            }
        }
        bool rest_in = true, rest_out = true; // dims of 1 behind the last group belong to it
        for (size_t k = i; k < x->rank; k++)
            rest_in &= x->was[k] == 1;
        for (size_t k = j; k < o->rank; k++)
            rest_out &= o->was[k] == 1;
        if (rest_in && rest_out && (j == o->rank || i == x->rank)) {
            i = x->rank;
            j = o->rank;
        }
        bool same = true;
        for (size_t k = i0; k < i; k++) {
            same &= x->was[k] == x->now[k];
            if (!tj_size_mul(want, x->now[k], &want))
                return 0;
        }
        shape_options got, next;
        uint32_t m = 1, k = 0;
        if (same)
            memcpy(got[0], o->was + j0, (j - j0) * sizeof **got);
        else if (j == j0)
            m = want == 1;
        else if (j == j0 + 1)
            got[0][0] = want;
        else
            m = split_group(a, node, o->was, j0, j, want, got);
        for (uint32_t u = 0; u < n; u++) {
            for (uint32_t v = 0; v < m && k < OPTIONS; v++, k++) {
                memcpy(next[k], opt[u], sizeof next[k]);
                memcpy(next[k] + j0, got[v], (j - j0) * sizeof **got);
            }
        }
        memcpy(opt, next, k * sizeof *opt);
        n = k;
    }
    return n;
}

// ---- results that follow from their operands -----------------------------------------------------------------------

// NULL: `to` is the shape. Else why the operands don't fit.
static const char *pointwise(const struct again *a, const struct tj_node *node, size_t rank, int64_t *to) {
    const tj_ref *in = tj_node_in(a->t, node);
    for (size_t d = 0; d < rank; d++)
        to[d] = 1;
    for (uint32_t k = 0; k < node->nin; k++) {
        struct side s = side(a, in[k]);
        for (size_t d = 0; d < s.rank; d++) {
            int64_t *r = &to[rank - s.rank + d];
            if (*r != s.now[d] && *r != 1 && s.now[d] != 1)
                return "the shapes do not broadcast";
            *r = *r == 1 ? s.now[d] : *r;
        }
    }
    struct side x = side(a, in[0]);
    if (node->op == TJ_OP_BATCH_NORM && !tj_same(to, x.now, rank * sizeof *to))
        return "the statistics do not fit the input";
    return NULL;
}

static const char *reduce(const struct again *a, const struct tj_node *node, int64_t *to) {
    const struct tj_attr_reduce *at = tj_node_attr(a->t, node);
    struct side x = side(a, node->in[0]);
    bool selects =
        node->op == TJ_OP_AMAX || node->op == TJ_OP_AMIN || node->op == TJ_OP_ARGMAX || node->op == TJ_OP_ARGMIN;
    size_t k = 0;
    for (size_t d = 0; d < x.rank; d++) {
        bool reduced = at->mask >> d & 1;
        if (reduced && selects && x.now[d] == 0)
            return "an empty dim has no largest or smallest element";
        if (!reduced || at->keepdim)
            to[k++] = reduced ? 1 : x.now[d];
    }
    return NULL;
}

static const char *norm(const struct again *a, const struct tj_node *node, int64_t *to) {
    struct side x = side(a, node->in[0]);
    memcpy(to, x.now, x.rank * sizeof *to);
    if (node->op != TJ_OP_LAYER_NORM && node->op != TJ_OP_RMS_NORM)
        return NULL;
    for (uint32_t k = 1; k + 1 < node->nin; k++) {
        struct side w = side(a, node->in[k]);
        if (!is_scalar(a, node->in[k]) &&
            (w.rank > x.rank || !tj_same(w.now, x.now + x.rank - w.rank, w.rank * sizeof *to)))
            return "the weights do not fit the normalised dims";
    }
    return NULL;
}

static const char *view(const struct again *a, const struct tj_node *node, size_t rank, int64_t *to) {
    const void *attr = tj_node_attr(a->t, node);
    struct side x = side(a, node->in[0]);
    switch (node->op) {
    case TJ_OP_PERMUTE:
        for (size_t d = 0; d < rank; d++)
            to[d] = x.now[((const struct tj_attr_perm *)attr)->perm[d]];
        return NULL;
    case TJ_OP_DIAGONAL: {
        const struct tj_attr_diagonal *at = attr;
        const struct tj_attr_param *p = tj_node_attr(a->t, &a->t->nodes[node->in[1]]);
        int64_t off = a->t->params[p->index].v.i, m = x.now[at->d0], n = x.now[at->d1];
        int64_t rows = off < 0 ? (off < -m ? 0 : m + off) : m, cols = off > 0 ? (off > n ? 0 : n - off) : n;
        size_t k = 0;
        for (size_t d = 0; d < x.rank; d++) {
            if ((int64_t)d != at->d0 && (int64_t)d != at->d1)
                to[k++] = x.now[d];
        }
        to[k] = rows < cols ? rows : cols;
        return NULL;
    }
    case TJ_OP_UNFOLD: {
        const struct tj_attr_unfold *at = attr;
        memcpy(to, x.now, x.rank * sizeof *to);
        if (at->size > x.now[at->dim])
            return "the window is larger than the dim";
        to[at->dim] = (x.now[at->dim] - at->size) / at->step + 1;
        to[x.rank] = at->size;
        return NULL;
    }
    default: // AS_STRIDED
        memcpy(to, tj_shape_dims(a->t, node->shape), rank * sizeof *to);
        return unchanged(&x) ? NULL : "strides that the host gave can't be known for other shapes";
    }
}

static const char *move(const struct again *a, const struct tj_node *node, int64_t *to) {
    const tj_ref *in = tj_node_in(a->t, node);
    const void *attr = tj_node_attr(a->t, node);
    struct side x = side(a, in[0]), y = node->nin > 1 ? side(a, in[1]) : x;
    memcpy(to, x.now, x.rank * sizeof *to);
    int64_t dim = 0;
    switch (node->op) {
    case TJ_OP_CAT:
        dim = ((const struct tj_attr_dim *)attr)->dim;
        for (uint32_t k = 1; k < node->nin; k++) {
            struct side s = side(a, in[k]);
            for (size_t d = 0; d < x.rank; d++) {
                if ((int64_t)d != dim && s.now[d] != x.now[d])
                    return "extents differ in a dim that is not joined";
            }
            if (!tj_size_add(to[dim], s.now[dim], &to[dim]))
                return "the size overflows";
        }
        return NULL;
    case TJ_OP_PAD: {
        const struct tj_attr_pad *at = attr;
        for (size_t d = 0; d < x.rank; d++) {
            int64_t e = x.now[d], lo = at->lo[d], hi = at->hi[d];
            if (at->mode != TRACE_PAD_CONSTANT && (lo || hi) &&
                (at->mode == TRACE_PAD_REFLECT ? lo >= e || hi >= e : e == 0))
                return "the amounts are too large for the dim";
            if ((lo < 0 && lo < -e) || (hi < 0 && hi < -e) || __builtin_add_overflow(e, lo, &e) ||
                __builtin_add_overflow(e, hi, &e) || e < 0)
                return "the amounts do not fit the dim";
            to[d] = e;
        }
        return NULL;
    }
    case TJ_OP_GATHER:
        dim = ((const struct tj_attr_dim *)attr)->dim;
        for (size_t d = 0; d < x.rank; d++) {
            if ((int64_t)d != dim && y.now[d] > x.now[d])
                return "the index is larger than the operand";
        }
        memcpy(to, y.now, y.rank * sizeof *to);
        return NULL;
    case TJ_OP_INDEX_SELECT: to[((const struct tj_attr_dim *)attr)->dim] = y.now[0]; return NULL;
    case TJ_OP_INDEX_COPY: {
        struct side s = side(a, in[2]);
        dim = ((const struct tj_attr_dim *)attr)->dim;
        for (size_t d = 0; d < x.rank; d++) {
            if (s.now[d] != ((int64_t)d == dim ? y.now[0] : x.now[d]))
                return "the source does not fit index and destination";
        }
        return NULL;
    }
    case TJ_OP_UPDATE: {
        struct side s = side(a, in[2]);
        return tj_same(s.now, y.now, y.rank * sizeof *to) ? NULL
                                                          : "the value does not fit the memory that it is written to";
    }
    default: return NULL; // FLIP, COPY
    }
}

static const char *contract(const struct again *a, const struct tj_node *node, size_t rank, int64_t *to) {
    const tj_ref *in = tj_node_in(a->t, node);
    const void *attr = tj_node_attr(a->t, node);
    struct side x = side(a, in[0]), w = side(a, in[1]), b = side(a, in[2]);
    size_t rt, bad;
    switch (node->op) {
    case TJ_OP_MATMUL:
        if (x.now[x.rank - 1] != w.now[w.rank - 2])
            return "the inner extents differ";
        if (!tj_broadcast(x.now, x.rank - 2, w.now, w.rank - 2, to, &rt, &bad))
            return "the batch dims do not broadcast";
        to[rank - 2] = x.now[x.rank - 2];
        to[rank - 1] = w.now[w.rank - 1];
        return NULL;
    case TJ_OP_LINEAR:
        memcpy(to, x.now, x.rank * sizeof *to);
        if (x.now[x.rank - 1] != w.now[1])
            return "the inner extents differ";
        if (!is_scalar(a, in[2]) && b.now[0] != w.now[0])
            return "the bias does not fit the weight";
        to[rank - 1] = w.now[0];
        return NULL;
    case TJ_OP_CONV2D: {
        const struct tj_attr_conv *at = attr;
        if (x.now[1] % at->groups || w.now[0] % at->groups || w.now[1] != x.now[1] / at->groups)
            return "the channels do not fit the weight";
        if (!is_scalar(a, in[2]) && b.now[0] != w.now[0])
            return "the bias does not fit the weight";
        to[0] = x.now[0];
        to[1] = w.now[0];
        for (size_t i = 0; i < 2; i++) {
            to[2 + i] = tj_positions(x.now[2 + i], w.now[2 + i], at->stride[i], at->padding[i], at->dilation[i], false);
            if (to[2 + i] < 0)
                return "the kernel does not fit the input";
        }
        return NULL;
    }
    default: { // SDPA
        const struct tj_attr_sdpa *at = attr;
        struct side v = b, m = side(a, in[3]);
        size_t r = x.rank;
        if (x.now[r - 1] != w.now[r - 1] || w.now[r - 2] != v.now[r - 2])
            return "query, key and value do not fit";
        for (size_t d = 0; d + 2 < r; d++) {
            bool heads = at->gqa && d + 3 == r;
            if (w.now[d] != v.now[d] || (heads ? w.now[d] < 1 || x.now[d] % w.now[d] : x.now[d] != w.now[d]))
                return "the leading dims of query, key and value differ";
        }
        for (size_t d = 0; at->has_mask && d < m.rank; d++) {
            size_t to_dim = r - m.rank + d;
            int64_t want = to_dim == r - 1 ? w.now[r - 2] : x.now[to_dim];
            if (m.now[d] != 1 && m.now[d] != want)
                return "the mask does not broadcast to the scores";
        }
        memcpy(to, x.now, r * sizeof *to);
        to[r - 1] = v.now[r - 1];
        return NULL;
    }
    }
}

static const char *pool(const struct again *a, const struct tj_node *node, size_t rank, int64_t *to) {
    const struct tj_attr_pool *at = tj_node_attr(a->t, node);
    struct side x = side(a, node->in[0]);
    memcpy(to, x.now, rank * sizeof *to);
    for (size_t i = 0; i < 2; i++) {
        int64_t *e = &to[rank - 2 + i];
        *e = tj_positions(*e, at->kernel[i], at->stride[i], at->padding[i], at->dilation[i], at->ceil_mode);
        if (*e < 0)
            return "the window does not fit the input";
    }
    return NULL;
}

// What a loop carries has one shape.
static const char *loop(const struct again *a, const struct tj_node *node, size_t rank, int64_t *to) {
    const tj_ref *in = tj_node_in(a->t, node);
    int64_t slot = node->op == TJ_OP_REPEAT_IN ? 0 : 1 + ((const struct tj_attr_dim *)tj_node_attr(a->t, node))->dim;
    struct side x = side(a, in[slot]);
    memcpy(to, x.now, rank * sizeof *to);
    if (node->op == TJ_OP_REPEAT_IN)
        return NULL;
    struct side next = side(a, in[slot + (node->nin - 1) / 2]);
    return tj_same(next.now, x.now, rank * sizeof *to) ? NULL : "a carried value would change its shape";
}

// ---- the walk ------------------------------------------------------------------------------------------------------

static bool guess(struct again *a, tj_ref i, uint32_t n, uint32_t *pick) {
    if (a->nguesses && a->guesses[a->nguesses - 1].node == i) {
        *pick = a->guesses[a->nguesses - 1].pick;
        return true;
    }
    *pick = 0;
    if (n < 2)
        return true;
    if (!tj_grow((void **)&a->guesses, &a->capguesses, a->nguesses + 1, sizeof *a->guesses))
        return false;
    a->guesses[a->nguesses++] = (struct guess){i, 0, n};
    return true;
}

// The shape of node i. NULL: in a->dims. "": out of memory. Else why not.
static const char *infer(struct again *a, tj_ref i) {
    const struct tj_node *node = &a->t->nodes[i];
    struct side o = side(a, i);
    int64_t *to = a->dims + (size_t)i * TJ_MAX_RANK, numel;
    shape_options opt = {{0}};
    uint32_t n = 0, pick;
    size_t bytes;
    const char *why = NULL;
    if (node->op == TJ_OP_LEAF) {
        const struct tj_attr_leaf *l = tj_node_attr(a->t, node);
        memcpy(to, a->leaf + (size_t)l->index * TJ_MAX_RANK, o.rank * sizeof *to);
    } else if (node->op == TJ_OP_ARANGE || is_reshape(node) || node->op == TJ_OP_EXPAND || node->op == TJ_OP_SLICE) {
        if (node->op == TJ_OP_ARANGE) {
            struct values c = values(a, o.was[0], i);
            n = spread(opt, 1, 0, &c);
        } else {
            struct side x = side(a, node->in[0]);
            n = is_reshape(node)           ? reshape_options(a, i, &o, &x, opt)
                : node->op == TJ_OP_EXPAND ? expand_options(a, i, &o, &x, opt)
                                           : slice_options(a, i, node, &o, &x, opt);
        }
        if (!n)
            return node->op == TJ_OP_SLICE ? "no length fits the dim" : "no shape fits the number of elements";
        if (!guess(a, i, n, &pick))
            return "";
        memcpy(to, opt[pick], o.rank * sizeof *to);
    } else {
        switch (tj_ops[node->op].cls) {
        case TJ_SOURCE: break; // SCALAR: 0-d
        case TJ_POINTWISE: why = pointwise(a, node, o.rank, to); break;
        case TJ_REDUCE: why = reduce(a, node, to); break;
        case TJ_ROW: why = norm(a, node, to); break;
        case TJ_VIEW: why = view(a, node, o.rank, to); break;
        case TJ_MOVE: why = move(a, node, to); break;
        case TJ_CONTRACT: why = contract(a, node, o.rank, to); break;
        case TJ_LOOP: why = loop(a, node, o.rank, to); break;
        default: why = pool(a, node, o.rank, to); break;
        }
    }
    if (!why && (!tj_numel(to, o.rank, &numel) || !tj_tensor_bytes((tj_dtype)node->dtype, numel, &bytes)))
        why = "the size overflows";
    return why;
}

// The latest guess that node i depends on and that can be changed is changed; false: there is none.
static bool change_guess(struct again *a, tj_ref i, tj_ref *from) {
    memset(a->mark, 0, i + 1);
    a->mark[i] = 1;
    for (tj_ref n = i + 1; n-- > 0;) {
        const tj_ref *in = tj_node_in(a->t, &a->t->nodes[n]);
        for (uint32_t k = 0; a->mark[n] && k < a->t->nodes[n].nin; k++)
            a->mark[in[k]] = 1;
    }
    while (a->nguesses) {
        struct guess *g = &a->guesses[a->nguesses - 1];
        if (g->node <= i && a->mark[g->node] && g->pick + 1 < g->n) {
            g->pick++;
            *from = g->node;
            return true;
        }
        a->nguesses--;
    }
    return false;
}

static const char *op_text(const struct tj_trace *t, tj_ref n, char *buf, size_t cap) {
    const struct tj_loc *l = &t->locs[n];
    (void)(l->file ? snprintf(buf, cap, "%s (%.200s:%d)", tj_call_name(t, n), l->file, (int)l->line)
                   : snprintf(buf, cap, "%s", tj_call_name(t, n)));
    return buf;
}

// The message of the first op that didn't fit: its operands as they would be, and as they were.
static void complain(const struct again *a, tj_ref i, const char *why, char *text, size_t cap) {
    const struct tj_node *node = &a->t->nodes[i];
    const tj_ref *in = tj_node_in(a->t, node);
    char op[260], one[TJ_DIMS_TEXT];
    char now[2 * TJ_DIMS_TEXT + 8] = "", was[2 * TJ_DIMS_TEXT + 8] = "";
    for (uint32_t k = 0, n = 0; k < node->nin && n < 2; k++) {
        if (is_scalar(a, in[k]))
            continue;
        struct side s = side(a, in[k]);
        size_t at = strlen(now), was_at = strlen(was);
        (void)snprintf(now + at, sizeof now - at, "%s%s", n ? " and " : "",
                       tj_dims_text(one, sizeof one, s.now, s.rank));
        (void)snprintf(was + was_at, sizeof was - was_at, "%s%s", n ? " and " : "",
                       tj_dims_text(one, sizeof one, s.was, s.rank));
        n++;
    }
    (void)snprintf(text, cap, "%s: %s: operands would be %s; recorded: %s", op_text(a->t, i, op, sizeof op), why,
                   now[0] ? now : "none", was[0] ? was : "none");
}

static tj_status walk(struct again *a) {
    char text[TJ_ERROR_MAX] = "";
    uint32_t tries = 0;
    for (tj_ref i = 0; i < a->t->nnodes;) {
        const char *why = infer(a, i);
        if (!why) {
            i++;
            continue;
        }
        if (!why[0])
            return tj_fail(TRACE_ERR_MEMORY, "out of memory while shapes are inferred");
        if (!text[0])
            complain(a, i, why, text, sizeof text);
        if (++tries > TRIES || !change_guess(a, i, &i))
            return tj_fail(TRACE_ERR_SHAPE, "%s", text);
    }
    return TRACE_OK;
}

// ---- the trace of the new shapes -----------------------------------------------------------------------------------

// Layout classes that the recorder would find for these extents.
static tj_layout layout_of(tj_layout l, const int64_t *dims, size_t rank) {
    for (size_t d = 0; d < rank; d++) {
        if (dims[d] == 0)
            return 0;
        if (dims[d] == 1)
            l &= (tj_layout) ~(3u << 2 * d);
    }
    return l;
}

static bool build(const struct again *a, struct tj_trace *out, tj_ref *at) {
    const struct tj_trace *t = a->t;
    uint32_t most = 4;
    for (tj_ref i = 0; i < t->nnodes; i++)
        most = t->nodes[i].nin > most ? t->nodes[i].nin : most;
    tj_ref *in = tj_malloc(most * sizeof *in);
    bool ok = in && tj_grow((void **)&out->leafkeys, &out->capleafkeys, t->nleaves, sizeof *out->leafkeys) &&
              tj_grow((void **)&out->leaves, &out->capleaves, t->nleaves, sizeof *out->leaves) &&
              tj_grow((void **)&out->params, &out->capparams, t->nparams, sizeof *out->params);
    if (ok && t->nleaves) {
        memcpy(out->leafkeys, t->leafkeys, t->nleaves * sizeof *out->leafkeys);
        memset(out->leaves, 0, t->nleaves * sizeof *out->leaves);
    }
    if (ok && t->nparams)
        memcpy(out->params, t->params, t->nparams * sizeof *out->params);
    out->nleaves = ok ? t->nleaves : 0;
    out->nparams = ok ? t->nparams : 0;
    for (tj_ref i = 0; ok && i < t->nnodes; i++) {
        const struct tj_node *node = &t->nodes[i];
        const tj_ref *was = tj_node_in(t, node);
        struct side o = side(a, i);
        int64_t attr[UINT8_MAX];
        if (node->nattr)
            memcpy(attr, t->attrs + node->attr, node->nattr * sizeof *attr);
        for (uint32_t k = 0; k < node->nin; k++)
            in[k] = at[was[k]];
        if (is_reshape(node) || node->op == TJ_OP_EXPAND) { // not recorded when it changes nothing
            struct side x = side(a, was[0]);
            if (t->nodes[was[0]].op != TJ_OP_SCALAR && x.rank == o.rank &&
                tj_same(x.now, o.now, o.rank * sizeof *o.now)) {
                at[i] = in[0];
                continue;
            }
        }
        if (node->op == TJ_OP_SLICE) {
            struct tj_attr_slice *s = (void *)attr;
            struct tj_param *p =
                &out->params[((const struct tj_attr_param *)tj_node_attr(t, &t->nodes[was[1]]))->index];
            int64_t n = o.now[s->dim], room = side(a, was[0]).now[s->dim] - (n ? (n - 1) * s->step + 1 : 0);
            if (n <= 1)
                s->step = 1;
            p->v.i = p->v.i < room ? p->v.i : room; // only a hint
        }
        uint32_t shape = tj_trace_shape(out, o.now, o.rank);
        ok = shape != UINT32_MAX;
        if (ok && node->op == TJ_OP_LEAF) {
            struct tj_leaf_key *k = &out->leafkeys[((const struct tj_attr_leaf *)(void *)attr)->index];
            k->shape = shape;
            k->layout = layout_of(k->layout, o.now, o.rank);
        }
        at[i] = !ok ? TJ_NIL
                    : tj_trace_append(out, (enum tj_op)node->op, (tj_dtype)node->dtype, shape, in, node->nin, attr,
                                      node->nattr, t->locs[i]);
        ok = at[i] != TJ_NIL;
    }
    tj_free(in);
    return ok;
}

tj_status tj_trace_again(const struct tj_trace *t, const int64_t *dims, const struct tj_extent *map, size_t nmap,
                         struct tj_trace *out, tj_ref *at) {
    struct again a = {.t = t, .leaf = dims, .map = map, .nmap = nmap};
    a.dims = tj_calloc(t->nnodes ? t->nnodes : 1, TJ_MAX_RANK * sizeof *a.dims);
    a.mark = tj_malloc(t->nnodes);
    tj_status st = a.dims && a.mark ? walk(&a) : tj_fail(TRACE_ERR_MEMORY, "out of memory while shapes are inferred");
    if (!st && !build(&a, out, at))
        st = tj_fail(TRACE_ERR_MEMORY, "out of memory while shapes are inferred");
    if (st)
        tj_trace_free(out);
    tj_free(a.dims);
    tj_free(a.mark);
    tj_free(a.guesses);
    return st;
}
