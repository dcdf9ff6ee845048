// trace/interp_mem.c: what the interpreter's ops stand on: typed access, strided walks, views as arithmetic.
#include "interp.h"

// ---- typed access --------------------------------------------------------------------------------------------------

#define LOAD(ctype, expr)                                                                                              \
    for (int64_t i = 0; i < n; i++, p += stride) {                                                                     \
        ctype x;                                                                                                       \
        memcpy(&x, p, sizeof x);                                                                                       \
        to[i] = (expr);                                                                                                \
    }                                                                                                                  \
    break

void tj_iload(tj_dtype d, const unsigned char *p, int64_t stride, int64_t n, void *dst) {
    switch (d) {
    case TRACE_F16: {
        float *to = dst;
        LOAD(uint16_t, tj_f16_to_f32(x));
    }
    case TRACE_BF16: {
        float *to = dst;
        LOAD(uint16_t, tj_bf16_to_f32(x));
    }
    case TRACE_F32: {
        float *to = dst;
        LOAD(float, x);
    }
    case TRACE_F64: {
        double *to = dst;
        LOAD(double, x);
    }
    case TRACE_BOOL: {
        int64_t *to = dst;
        LOAD(uint8_t, x != 0);
    }
    case TRACE_U8: {
        int64_t *to = dst;
        LOAD(uint8_t, x);
    }
    case TRACE_I32: {
        int64_t *to = dst;
        LOAD(int32_t, x);
    }
    case TRACE_I64: {
        int64_t *to = dst;
        LOAD(int64_t, x);
    }
    }
}

#define STORE(ctype, expr)                                                                                             \
    for (int64_t i = 0; i < n; i++, p += stride) {                                                                     \
        ctype x = (expr);                                                                                              \
        memcpy(p, &x, sizeof x);                                                                                       \
    }                                                                                                                  \
    break

void tj_istore(tj_dtype d, unsigned char *p, int64_t stride, int64_t n, const void *src) {
    switch (d) {
    case TRACE_F16: {
        const float *from = src;
        STORE(uint16_t, tj_f32_to_f16(from[i]));
    }
    case TRACE_BF16: {
        const float *from = src;
        STORE(uint16_t, tj_f32_to_bf16(from[i]));
    }
    case TRACE_F32: {
        const float *from = src;
        STORE(float, from[i]);
    }
    case TRACE_F64: {
        const double *from = src;
        STORE(double, from[i]);
    }
    case TRACE_BOOL: {
        const int64_t *from = src;
        STORE(uint8_t, from[i] != 0);
    }
    case TRACE_U8: {
        const int64_t *from = src;
        STORE(uint8_t, (uint8_t)from[i]);
    }
    case TRACE_I32: {
        const int64_t *from = src;
        STORE(int32_t, (int32_t)(uint32_t)(uint64_t)from[i]);
    }
    case TRACE_I64: {
        const int64_t *from = src;
        STORE(int64_t, from[i]);
    }
    }
}

double tj_iload_f64(tj_dtype d, const unsigned char *p) {
    union tj_chunk v;
    tj_iload(d, p, 0, 1, &v);
    switch (tj_iclass_of(d)) {
    case TJ_I_FLOAT: return (double)v.f[0];
    case TJ_I_DOUBLE: return v.d[0];
    default: return (double)v.i[0];
    }
}

int64_t tj_iload_i64(tj_dtype d, const unsigned char *p) {
    union tj_chunk v;
    tj_iload(d, p, 0, 1, &v);
    switch (tj_iclass_of(d)) {
    case TJ_I_FLOAT: return tj_f64_to_i64((double)v.f[0]);
    case TJ_I_DOUBLE: return tj_f64_to_i64(v.d[0]);
    default: return v.i[0];
    }
}

void tj_istore_scalar(tj_dtype d, unsigned char *p, union tj_scalar v) {
    union tj_chunk c;
    switch (tj_iclass_of(d)) {
    case TJ_I_FLOAT: c.f[0] = (float)v.f; break;
    case TJ_I_DOUBLE: c.d[0] = v.f; break;
    default: c.i[0] = v.i; break;
    }
    tj_istore(d, p, 0, 1, &c);
}

// ---- values and walks ----------------------------------------------------------------------------------------------

struct tj_iview tj_iview_of(const struct tj_interp *it, tj_ref n) {
    const struct tj_node *d = &it->t->nodes[n];
    struct tj_iview v = {.p = it->vals[n].p, .dtype = (tj_dtype)d->dtype, .rank = tj_shape_rank(it->t, d->shape)};
    const int64_t *dims = tj_shape_dims(it->t, d->shape);
    for (size_t k = 0; k < v.rank; k++) {
        v.dims[k] = dims[k];
        v.st[k] = tj_stride_times(it->vals[n].strides[k], (int64_t)tj_elem_bytes(v.dtype));
    }
    return v;
}

struct tj_iview tj_iview_expand(const struct tj_iview *v, const int64_t *dims, size_t rank) {
    struct tj_iview e = {.p = v->p, .dtype = v->dtype, .rank = rank};
    for (size_t k = 0; k < rank; k++) {
        e.dims[k] = dims[k];
        if (k + v->rank >= rank) {
            size_t from = k + v->rank - rank;
            e.st[k] = v->dims[from] == 1 ? 0 : v->st[from];
        }
    }
    return e;
}

void tj_walk_init(struct tj_walk *w, const int64_t *dims, size_t rank, const struct tj_iview *arrays, size_t n) {
    *w = (struct tj_walk){.narrays = n, .left = 1};
    for (size_t a = 0; a < n; a++) {
        w->p[a] = arrays[a].p;
    }
    for (size_t d = 0; d < rank; d++) {
        if (dims[d] == 0) {
            w->left = 0;
            w->rank = 1;
            return;
        }
    }
    for (size_t d = 0; d < rank; d++) {
        w->left *= dims[d];
        if (dims[d] == 1) {
            continue;
        }
        bool merge = w->rank > 0;
        for (size_t a = 0; merge && a < n; a++) {
            merge = w->st[a][w->rank - 1] == arrays[a].st[d] * dims[d];
        }
        if (merge) {
            w->rank--;
        }
        w->dims[w->rank] = merge ? w->dims[w->rank] * dims[d] : dims[d];
        for (size_t a = 0; a < n; a++) {
            w->st[a][w->rank] = arrays[a].st[d];
        }
        w->rank++;
    }
    if (w->rank == 0) {
        w->rank = 1;
        w->dims[0] = 1;
    }
}

int64_t tj_walk_run(const struct tj_walk *w, int64_t max) {
    if (w->left == 0) {
        return 0;
    }
    int64_t n = w->dims[w->rank - 1] - w->at[w->rank - 1];
    return n < max ? n : max;
}

void tj_walk_advance(struct tj_walk *w, int64_t n) {
    size_t d = w->rank - 1;
    w->left -= n;
    w->at[d] += n;
    for (size_t a = 0; a < w->narrays; a++) {
        w->p[a] += n * w->st[a][d];
    }
    while (w->at[d] == w->dims[d] && d > 0 && w->left) {
        for (size_t a = 0; a < w->narrays; a++) {
            w->p[a] += w->st[a][d - 1] - w->dims[d] * w->st[a][d];
        }
        w->at[d--] = 0;
        w->at[d]++;
    }
}

static size_t class_bytes(tj_dtype d) { return tj_iclass_of(d) == TJ_I_FLOAT ? sizeof(float) : sizeof(double); }

void tj_walk_read(struct tj_walk *w, tj_dtype d, int64_t n, void *dst) {
    unsigned char *to = dst;
    while (n > 0) {
        int64_t run = tj_walk_run(w, n);
        tj_iload(d, w->p[0], tj_walk_stride(w, 0), run, to);
        tj_walk_advance(w, run);
        to += (size_t)run * class_bytes(d);
        n -= run;
    }
}

void tj_walk_write(struct tj_walk *w, tj_dtype d, int64_t n, const void *src) {
    const unsigned char *from = src;
    while (n > 0) {
        int64_t run = tj_walk_run(w, n);
        tj_istore(d, w->p[0], tj_walk_stride(w, 0), run, from);
        tj_walk_advance(w, run);
        from += (size_t)run * class_bytes(d);
        n -= run;
    }
}

#define COPY_RUN(bytes)                                                                                                \
    for (int64_t i = 0; i < n; i++, d += ds, s += ss) {                                                                \
        memcpy(d, s, bytes);                                                                                           \
    }                                                                                                                  \
    break

void tj_icopy(const struct tj_iview *dst, const struct tj_iview *src) {
    struct tj_iview both[2] = {*dst, *src};
    struct tj_walk w;
    size_t elem = tj_elem_bytes(dst->dtype);
    tj_walk_init(&w, dst->dims, dst->rank, both, 2);
    for (int64_t n; (n = tj_walk_run(&w, INT64_MAX)) > 0; tj_walk_advance(&w, n)) {
        unsigned char *d = w.p[0];
        const unsigned char *s = w.p[1];
        int64_t ds = tj_walk_stride(&w, 0), ss = tj_walk_stride(&w, 1);
        if (dst->dtype == TRACE_BOOL) {
            if (ds == 1 && ss == 1) {
                tj_copy_bools(d, s, (size_t)n);
                continue;
            }
            for (int64_t i = 0; i < n; i++, d += ds, s += ss) {
                tj_icopy_one(TRACE_BOOL, d, s);
            }
            continue;
        }
        if (ds == (int64_t)elem && ss == (int64_t)elem) {
            memmove(d, s, (size_t)n * elem); // an in-place write of a value onto itself is legal
            continue;
        }
        switch (elem) {
        case 1: COPY_RUN(1);
        case 2: COPY_RUN(2);
        case 4: COPY_RUN(4);
        default: COPY_RUN(8);
        }
    }
}

void tj_idata_error(const struct tj_interp *it, tj_ref node, int kind, int64_t index, int64_t extent) {
    struct tj_data_error *e = it->args->err;
    uint32_t none = 0;
    if (!e || !atomic_compare_exchange_strong(&e->set, &none, 1u)) {
        return;
    }
    e->node = it->origin ? it->origin[node] : node;
    e->kind = kind;
    e->index = index;
    e->extent = extent;
    atomic_store(&e->set, 2u);
}

// ---- views ---------------------------------------------------------------------------------------------------------

// Value of a SCALAR i64 operand: it comes from the run's parameters, so that planning knows it too.
static int64_t integer(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_param *a = tj_node_attr(it->t, &it->t->nodes[n]);
    return it->args->params[a->index].v.i;
}

// Strides of g's elements under new extents: dims that lie behind each other are taken together and cut anew.
static bool reshape(struct tj_igeom *g, const int64_t *dims, size_t rank) {
    int64_t st[TJ_MAX_RANK], want = 1;
    for (size_t d = 0; d < rank; d++) {
        want *= dims[d];
    }
    if (want == 0) { // no element: any strides do
        tj_contiguous_strides(dims, rank, st);
        goto done;
    }
    size_t to = rank;
    for (size_t from = g->rank; from-- > 0;) {
        // grow a group [from, end) of operand dims that lie behind each other
        int64_t base = 0, group = 1;
        bool open = false;
        for (;; from--) {
            if (g->dims[from] != 1) {
                if (!open) {
                    base = g->strides[from];
                    open = true;
                }
                group *= g->dims[from];
            }
            if (from == 0) {
                break;
            }
            bool joins = !open || g->dims[from - 1] == 1 || g->strides[from - 1] == group * base;
            if (!joins) {
                break;
            }
        }
        int64_t n = 1, s = base;
        while (to > 0 && (n < group || dims[to - 1] == 1)) {
            to--;
            st[to] = s;
            s *= dims[to];
            n *= dims[to];
        }
        if (n != group) {
            return false;
        }
    }
    while (to > 0) { // leading ones
        st[--to] = 1;
    }
done:
    memcpy(g->strides, st, rank * sizeof *st);
    memcpy(g->dims, dims, rank * sizeof *dims);
    g->rank = rank;
    return true;
}

static bool contiguous(const struct tj_igeom *g) {
    int64_t s = 1;
    for (size_t d = g->rank; d-- > 0;) {
        if (g->dims[d] == 0) {
            return true;
        }
        if (g->dims[d] != 1 && g->strides[d] != s) {
            return false;
        }
        s *= g->dims[d];
    }
    return true;
}

bool tj_igeom_view(const struct tj_interp *it, tj_ref n, struct tj_igeom *g) {
    const struct tj_node *node = &it->t->nodes[n];
    const tj_ref *in = tj_node_in(it->t, node);
    size_t rank = tj_shape_rank(it->t, node->shape);
    const int64_t *dims = tj_shape_dims(it->t, node->shape);
    struct tj_igeom o = *g;
    int64_t numel;
    bool some = tj_numel(dims, rank, &numel) && numel > 0; // else no address is made of an offset
    switch (node->op) {
    case TJ_OP_RESHAPE: return reshape(g, dims, rank);
    case TJ_OP_PERMUTE: {
        const struct tj_attr_perm *a = tj_node_attr(it->t, node);
        for (size_t d = 0; d < rank; d++) {
            g->strides[d] = o.strides[a->perm[d]];
        }
        break;
    }
    case TJ_OP_EXPAND:
        for (size_t d = 0; d < rank; d++) {
            g->strides[d] = 0;
            if (d + o.rank >= rank) {
                size_t from = d + o.rank - rank;
                g->strides[d] = o.dims[from] == dims[d] ? o.strides[from] : 0;
            }
        }
        break;
    case TJ_OP_SLICE: {
        const struct tj_attr_slice *a = tj_node_attr(it->t, node);
        if (some) { // an empty slice may start past the end
            g->offset += integer(it, in[1]) * o.strides[a->dim];
        }
        g->strides[a->dim] = tj_stride_times(g->strides[a->dim], a->step);
        break;
    }
    case TJ_OP_DIAGONAL: {
        const struct tj_attr_diagonal *a = tj_node_attr(it->t, node);
        int64_t off = integer(it, in[1]);
        if (some) {
            g->offset += off >= 0 ? off * o.strides[a->d1] : -off * o.strides[a->d0];
        }
        size_t k = 0;
        for (size_t d = 0; d < o.rank; d++) {
            if ((int64_t)d != a->d0 && (int64_t)d != a->d1) {
                g->strides[k++] = o.strides[d];
            }
        }
        g->strides[k] = dims[rank - 1] > 1 ? o.strides[a->d0] + o.strides[a->d1] : 0;
        break;
    }
    case TJ_OP_UNFOLD: {
        const struct tj_attr_unfold *a = tj_node_attr(it->t, node);
        g->strides[a->dim] = tj_stride_times(g->strides[a->dim], a->step);
        g->strides[rank - 1] = o.strides[a->dim];
        break;
    }
    case TJ_OP_AS_STRIDED: {
        const struct tj_attr_strides *a = tj_node_attr(it->t, node);
        if (!contiguous(g)) {
            return false;
        }
        memcpy(g->strides, a->stride, rank * sizeof *g->strides);
        if (some) {
            g->offset += integer(it, in[1]);
        }
        break;
    }
    default: return false;
    }
    g->rank = rank;
    memcpy(g->dims, dims, rank * sizeof *dims);
    return true;
}
