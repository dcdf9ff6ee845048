// trace/interp_contract.c: matrix products, convolution, attention and pooling of the interpreter.
#include "interp.h"

// ---- matmul, linear ------------------------------------------------------------------------------------------------

#define TILE 64
// Columns [0, cols) of one row of a product: an fma chain over ascending k an element, long k in blocks. a: k elements
// astep apart, b: rows bk apart, elements bn apart. Each b row is read as a stretch, so one column tile at a time.
#define PRODUCT(T, NAME, FMA)                                                                                          \
    static void NAME(tj_dtype d, const unsigned char *a, int64_t astep, const unsigned char *b, int64_t bk,            \
                     int64_t bn, int64_t k, int64_t cols, T *total) {                                                  \
        for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += TJ_KBLOCK) {                                                     \
            T acc[TILE] = {0}, row[TILE], x;                                                                           \
            for (int64_t i = k0; i < k && i < k0 + TJ_KBLOCK; i++) {                                                   \
                tj_iload(d, a + i * astep, 0, 1, &x);                                                                  \
                tj_iload(d, b + i * bk, bn, cols, row);                                                                \
                for (int64_t j = 0; j < cols; j++) {                                                                   \
                    acc[j] = FMA(x, row[j], acc[j]);                                                                   \
                }                                                                                                      \
            }                                                                                                          \
            for (int64_t j = 0; j < cols; j++) {                                                                       \
                total[j] = k0 == 0 ? acc[j] : total[j] + acc[j];                                                       \
            }                                                                                                          \
        }                                                                                                              \
    }
#define WRAPPING(a, b, c) ((uint64_t)(a) * (uint64_t)(b) + (uint64_t)(c))
#define BOOLEAN(a, b, c) (((a) & (b)) | (c))
PRODUCT(float, product_float, fmaf)
PRODUCT(double, product_double, fma)

// Integers wrap; bool: or of ands.
static void product_int(tj_dtype d, const unsigned char *a, int64_t astep, const unsigned char *b, int64_t bk,
                        int64_t bn, int64_t k, int64_t cols, int64_t *total) {
    int64_t row[TILE], x;
    memset(total, 0, sizeof(int64_t) * (size_t)cols);
    for (int64_t i = 0; i < k; i++) {
        tj_iload(d, a + i * astep, 0, 1, &x);
        tj_iload(d, b + i * bk, bn, cols, row);
        for (int64_t j = 0; j < cols; j++) {
            total[j] = d == TRACE_BOOL ? BOOLEAN(x, row[j], total[j]) : (int64_t)WRAPPING(x, row[j], total[j]);
        }
    }
}

static void add_bias(tj_dtype d, const unsigned char *p, int64_t step, int64_t n, union tj_chunk *v) {
    union tj_chunk b;
    tj_iload(d, p, step, n, &b);
    for (int64_t i = 0; i < n; i++) {
        switch (tj_iclass_of(d)) {
        case TJ_I_FLOAT: v->f[i] = v->f[i] + b.f[i]; break;
        case TJ_I_DOUBLE: v->d[i] = v->d[i] + b.d[i]; break;
        default: v->i[i] = (int64_t)((uint64_t)v->i[i] + (uint64_t)b.i[i]); break;
        }
    }
}

// out [.., M, N] = a [.., M, K] x b [.., K, N], batch dims already those of out.
static void product(const struct tj_iview *out, const struct tj_iview *a, const struct tj_iview *b,
                    const struct tj_iview *bias) {
    struct tj_iview all[3] = {*out, *a, *b};
    size_t r = out->rank;
    int64_t m = out->dims[r - 2], n = out->dims[r - 1], k = a->dims[r - 1];
    struct tj_walk w;
    tj_walk_init(&w, out->dims, r - 2, all, 3);
    for (; tj_walk_run(&w, 1) > 0; tj_walk_advance(&w, 1)) {
        for (int64_t i = 0; i < m; i++) {
            for (int64_t j = 0; j < n; j += TILE) {
                union tj_chunk v;
                int64_t cols = n - j < TILE ? n - j : TILE;
                const unsigned char *pa = w.p[1] ? w.p[1] + i * a->st[r - 2] : NULL;
                const unsigned char *pb = w.p[2] ? w.p[2] + j * b->st[r - 1] : NULL;
                int64_t as = a->st[r - 1], bk = b->st[r - 2], bn = b->st[r - 1];
                switch (tj_iclass_of(out->dtype)) {
                case TJ_I_FLOAT: product_float(a->dtype, pa, as, pb, bk, bn, k, cols, v.f); break;
                case TJ_I_DOUBLE: product_double(a->dtype, pa, as, pb, bk, bn, k, cols, v.d); break;
                default: product_int(a->dtype, pa, as, pb, bk, bn, k, cols, v.i); break;
                }
                if (bias) {
                    int64_t step = bias->rank ? bias->st[bias->rank - 1] : 0;
                    add_bias(bias->dtype, bias->p + j * step, step, cols, &v);
                }
                tj_istore(out->dtype, w.p[0] + i * out->st[r - 2] + j * out->st[r - 1], out->st[r - 1], cols, &v);
            }
        }
    }
}

// The same operand with its batch dims broadcast to those of out; the last two dims stay.
static struct tj_iview batched(const struct tj_iview *v, const struct tj_iview *out) {
    int64_t dims[TJ_MAX_RANK];
    memcpy(dims, out->dims, sizeof dims);
    for (size_t d = 1; d <= 2; d++) {
        dims[out->rank - d] = v->dims[v->rank - d];
    }
    struct tj_iview e = tj_iview_expand(v, dims, out->rank);
    for (size_t d = 1; d <= 2; d++) {
        e.st[out->rank - d] = v->st[v->rank - d];
    }
    return e;
}

static void matmul(const struct tj_interp *it, tj_ref n) {
    struct tj_iview out = tj_iview_of(it, n), a = tj_iview_of(it, tj_iin(it, n, 0)),
                    b = tj_iview_of(it, tj_iin(it, n, 1));
    a = batched(&a, &out);
    b = batched(&b, &out);
    product(&out, &a, &b, NULL);
}

static void linear(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_bias *attr = tj_node_attr(it->t, tj_inode(it, n));
    struct tj_iview out = tj_iview_of(it, n), x = tj_iview_of(it, tj_iin(it, n, 0)),
                    w = tj_iview_of(it, tj_iin(it, n, 1));
    struct tj_iview bias = tj_iview_of(it, tj_iin(it, n, 2));
    struct tj_iview *views[2] = {&out, &x};
    for (int k = 0; k < 2; k++) { // a vector is a row; rank 1 or 8 both fit then
        if (views[k]->rank == 1) {
            views[k]->dims[1] = views[k]->dims[0];
            views[k]->st[1] = views[k]->st[0];
            views[k]->dims[0] = 1;
            views[k]->st[0] = 0;
            views[k]->rank = 2;
        }
    }
    struct tj_iview t = w; // [K, N]
    t.dims[0] = w.dims[1];
    t.dims[1] = w.dims[0];
    t.st[0] = w.st[1];
    t.st[1] = w.st[0];
    t = batched(&t, &out);
    product(&out, &x, &t, attr->has_bias ? &bias : NULL);
}

// ---- convolution ---------------------------------------------------------------------------------------------------

#define CONV(T, NAME, FMA)                                                                                             \
    static T NAME(const struct tj_iview *x, const struct tj_iview *w, const struct tj_attr_conv *a,                    \
                  const unsigned char *px, const unsigned char *pw, int64_t oh, int64_t ow) {                          \
        T total = 0, acc = 0, u, v;                                                                                    \
        int64_t k = 0;                                                                                                 \
        for (int64_t c = 0; c < w->dims[1]; c++) {                                                                     \
            for (int64_t i = 0; i < w->dims[2]; i++) {                                                                 \
                int64_t h = oh * a->stride[0] - a->padding[0] + i * a->dilation[0];                                    \
                for (int64_t j = 0; j < w->dims[3]; j++, k++) {                                                        \
                    int64_t q = ow * a->stride[1] - a->padding[1] + j * a->dilation[1];                                \
                    if (k > 0 && k % TJ_KBLOCK == 0) {                                                                 \
                        total = k == TJ_KBLOCK ? acc : (T)(total + acc);                                               \
                        acc = 0;                                                                                       \
                    }                                                                                                  \
                    u = 0;                                                                                             \
                    if (h >= 0 && h < x->dims[2] && q >= 0 && q < x->dims[3]) {                                        \
                        tj_iload(x->dtype, px + c * x->st[1] + h * x->st[2] + q * x->st[3], 0, 1, &u);                 \
                    }                                                                                                  \
                    tj_iload(w->dtype, pw + c * w->st[1] + i * w->st[2] + j * w->st[3], 0, 1, &v);                     \
                    acc = FMA(u, v, acc);                                                                              \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        return k > TJ_KBLOCK ? (T)(total + acc) : acc;                                                                 \
    }
CONV(float, conv_float, fmaf)
CONV(double, conv_double, fma)
CONV(uint64_t, conv_int, WRAPPING)

// An fma chain over ascending (c, kh, kw) an element, in blocks as for matmul; taps in the padding are 0 * w.
static void conv2d(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_conv *a = tj_node_attr(it->t, tj_inode(it, n));
    struct tj_iview out = tj_iview_of(it, n), x = tj_iview_of(it, tj_iin(it, n, 0)),
                    w = tj_iview_of(it, tj_iin(it, n, 1));
    struct tj_iview b = tj_iview_of(it, tj_iin(it, n, 2));
    int64_t per = a->groups > 0 ? w.dims[0] / a->groups : w.dims[0];
    for (int64_t i = 0; i < out.dims[0]; i++) {
        for (int64_t o = 0; o < out.dims[1]; o++) {
            const unsigned char *px = x.p ? x.p + i * x.st[0] + o / per * w.dims[1] * x.st[1] : NULL;
            const unsigned char *pw = w.p ? w.p + o * w.st[0] : NULL;
            for (int64_t h = 0; h < out.dims[2]; h++) {
                for (int64_t q = 0; q < out.dims[3]; q++) {
                    union tj_chunk v;
                    switch (tj_iclass_of(out.dtype)) {
                    case TJ_I_FLOAT: v.f[0] = conv_float(&x, &w, a, px, pw, h, q); break;
                    case TJ_I_DOUBLE: v.d[0] = conv_double(&x, &w, a, px, pw, h, q); break;
                    default: v.i[0] = (int64_t)conv_int(&x, &w, a, px, pw, h, q); break;
                    }
                    if (a->has_bias) {
                        add_bias(b.dtype, b.p + o * (b.rank ? b.st[0] : 0), 0, 1, &v);
                    }
                    tj_istore(out.dtype, out.p + i * out.st[0] + o * out.st[1] + h * out.st[2] + q * out.st[3], 0, 1,
                              &v);
                }
            }
        }
    }
}

// ---- attention -----------------------------------------------------------------------------------------------------

// The weight of a score this far from the largest; -0: a key that isn't seen.
static float weight_f32(float d) { return d == -INFINITY ? -0.0f : d < TJ_WEIGHT_LOW ? 0.0f : tj_exp_f32(d); }
static double weight_f64(double d) { return d == -(double)INFINITY ? -0.0 : exp(d); }

// One query row: scores of the keys that it may see, softmax with the largest taken off, weighted sum of values divided
// by the sum of weights at the end. Nothing to see, or only scores of -inf: 0.
#define ATTEND(T, NAME, FMA, EXP)                                                                                      \
    static void NAME(const struct tj_iview *out, const struct tj_iview *q, const struct tj_iview *k,                   \
                     const struct tj_iview *v, const struct tj_iview *mask, bool causal, int64_t row, T scale,         \
                     T *score) {                                                                                       \
        size_t r = out->rank;                                                                                          \
        int64_t keys = k->dims[r - 2], e = q->dims[r - 1], ev = v->dims[r - 1];                                        \
        T top = -(T)INFINITY, sum = 0, a, b;                                                                           \
        for (int64_t j = 0; j < keys; j++) {                                                                           \
            bool seen = !causal || j <= row;                                                                           \
            score[j] = -(T)INFINITY;                                                                                   \
            if (seen && mask && mask->dtype == TRACE_BOOL) {                                                           \
                seen = mask->p[row * mask->st[r - 2] + j * mask->st[r - 1]] != 0;                                      \
            }                                                                                                          \
            if (!seen) {                                                                                               \
                continue;                                                                                              \
            }                                                                                                          \
            T s = 0;                                                                                                   \
            for (int64_t i = 0; i < e; i++) {                                                                          \
                tj_iload(q->dtype, q->p + row * q->st[r - 2] + i * q->st[r - 1], 0, 1, &a);                            \
                tj_iload(k->dtype, k->p + j * k->st[r - 2] + i * k->st[r - 1], 0, 1, &b);                              \
                s = FMA(a, b, s);                                                                                      \
            }                                                                                                          \
            s = s * scale;                                                                                             \
            if (mask && mask->dtype != TRACE_BOOL) {                                                                   \
                tj_iload(mask->dtype, mask->p + row * mask->st[r - 2] + j * mask->st[r - 1], 0, 1, &a);                \
                s = a == -(T)INFINITY ? a : s + a;                                                                     \
            }                                                                                                          \
            score[j] = s;                                                                                              \
            top = s > top || s != s ? s : top;                                                                         \
        }                                                                                                              \
        for (int64_t j = 0; j < keys; j++) { /* a NaN score makes top NaN, and then all weights */                     \
            score[j] = top == -(T)INFINITY ? 0 : EXP(score[j] - top); /* -0: not seen */                               \
            sum += score[j];                                                                                           \
        }                                                                                                              \
        for (int64_t i = 0; i < ev; i++) {                                                                             \
            T s = 0;                                                                                                   \
            for (int64_t j = 0; j < keys; j++) {                                                                       \
                if (score[j] != 0 || !signbit(score[j])) { /* a key that isn't seen may hold anything */               \
                    tj_iload(v->dtype, v->p + j * v->st[r - 2] + i * v->st[r - 1], 0, 1, &b);                          \
                    s = FMA(score[j], b, s);                                                                           \
                }                                                                                                      \
            }                                                                                                          \
            s = sum == 0 ? 0 : s / sum;                                                                                \
            tj_istore(out->dtype, out->p + row * out->st[r - 2] + i * out->st[r - 1], 0, 1, &s);                       \
        }                                                                                                              \
    }
ATTEND(float, attend_float, fmaf, weight_f32)
ATTEND(double, attend_double, fma, weight_f64)

static void sdpa(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_sdpa *a = tj_node_attr(it->t, tj_inode(it, n));
    struct tj_iview out = tj_iview_of(it, n), q = tj_iview_of(it, tj_iin(it, n, 0)),
                    k = tj_iview_of(it, tj_iin(it, n, 1));
    struct tj_iview v = tj_iview_of(it, tj_iin(it, n, 2)), m = tj_iview_of(it, tj_iin(it, n, 3));
    struct tj_iview s = tj_iview_of(it, tj_iin(it, n, 4));
    size_t r = out.rank;
    int64_t rows = out.dims[r - 2], keys = k.dims[k.rank - 2], e = q.dims[q.rank - 1];
    double scale = tj_iload_f64(s.dtype, s.p);
    if (scale == 0.0) {
        scale = 1.0 / sqrt((double)e);
    }
    int64_t qheads = r > 2 ? out.dims[r - 3] : 1;
    int64_t kheads = a->gqa && k.rank > 2 && k.dims[k.rank - 3] > 0 ? k.dims[k.rank - 3] : qheads;
    if (a->gqa && k.rank > 2) { // heads are walked below: query head h uses key head h / (qheads / kheads)
        k.dims[k.rank - 3] = v.dims[v.rank - 3] = 1;
    }
    int64_t kst = a->gqa && k.rank > 2 ? k.st[k.rank - 3] : 0, vst = a->gqa && v.rank > 2 ? v.st[v.rank - 3] : 0;
    q = batched(&q, &out);
    k = batched(&k, &out);
    v = batched(&v, &out);
    if (a->has_mask) {
        int64_t dims[TJ_MAX_RANK];
        memcpy(dims, out.dims, sizeof dims);
        dims[r - 1] = keys;
        m = tj_iview_expand(&m, dims, r);
    } else {
        m = (struct tj_iview){.p = out.p, .rank = r, .dtype = TRACE_BOOL}; // never read
    }
    struct tj_iview all[5] = {out, q, k, v, m};
    struct tj_walk w;
    int64_t batch = 0;
    tj_walk_init(&w, out.dims, r - 2, all, 5);
    for (; tj_walk_run(&w, 1) > 0; tj_walk_advance(&w, 1), batch++) {
        int64_t head = batch % qheads / (kheads > 0 && qheads >= kheads ? qheads / kheads : 1);
        for (size_t i = 0; i < 5; i++) {
            all[i].p = w.p[i];
        }
        if (all[2].p) {
            all[2].p += head * kst;
        }
        if (all[3].p) {
            all[3].p += head * vst;
        }
        for (int64_t i = 0; i < rows; i++) {
            const struct tj_iview *mask = a->has_mask ? &all[4] : NULL;
            if (tj_iclass_of(out.dtype) == TJ_I_DOUBLE) {
                attend_double(&all[0], &all[1], &all[2], &all[3], mask, a->causal != 0, i, scale,
                              (double *)(void *)it->scratch);
            } else {
                attend_float(&all[0], &all[1], &all[2], &all[3], mask, a->causal != 0, i, (float)scale,
                             (float *)(void *)it->scratch);
            }
        }
    }
}

size_t tj_interp_scratch(const struct tj_interp *it, tj_ref n) {
    if (tj_inode(it, n)->op != TJ_OP_SDPA) {
        return 0;
    }
    const struct tj_node *k = tj_inode(it, tj_iin(it, n, 1)), *out = tj_inode(it, n);
    const int64_t *dims = tj_shape_dims(it->t, k->shape);
    int64_t numel;
    if (tj_numel(tj_shape_dims(it->t, out->shape), tj_shape_rank(it->t, out->shape), &numel) && numel == 0) {
        return 0;
    }
    return ((size_t)dims[tj_shape_rank(it->t, k->shape) - 2] + 1) * sizeof(double); // one row of scores
}

void tj_interp_contract(const struct tj_interp *it, tj_ref n) {
    switch (tj_inode(it, n)->op) {
    case TJ_OP_MATMUL: matmul(it, n); break;
    case TJ_OP_LINEAR: linear(it, n); break;
    case TJ_OP_CONV2D: conv2d(it, n); break;
    default: sdpa(it, n); break;
    }
}

// ---- pooling -------------------------------------------------------------------------------------------------------

// The window of one result, padding taken off: taps i in [lo, hi) of each dim.
struct window {
    int64_t lo[2], hi[2];
};

static int64_t smallest_int(tj_dtype d) { return d == TRACE_I32 ? INT32_MIN : (d == TRACE_I64 ? INT64_MIN : 0); }

#define POOL(T, NAME, MAX, LOWEST, DIVIDE)                                                                             \
    static T NAME(const struct tj_iview *x, const struct tj_attr_pool *a, const unsigned char *p,                      \
                  const int64_t *start, const struct window *w, bool max, int64_t divisor) {                           \
        T acc = max ? (LOWEST) : 0, v;                                                                                 \
        for (int64_t i = w->lo[0]; i < w->hi[0]; i++) {                                                                \
            for (int64_t j = w->lo[1]; j < w->hi[1]; j++) {                                                            \
                int64_t h = start[0] + i * a->dilation[0], q = start[1] + j * a->dilation[1];                          \
                tj_iload(x->dtype, p + h * x->st[x->rank - 2] + q * x->st[x->rank - 1], 0, 1, &v);                     \
                acc = max ? MAX(acc, v) : acc + v;                                                                     \
            }                                                                                                          \
        }                                                                                                              \
        bool empty = w->lo[0] >= w->hi[0] || w->lo[1] >= w->hi[1];                                                     \
        return max || empty ? acc : DIVIDE;                                                                            \
    }
#define INT_MAX_OF(a, b) ((a) > (b) ? (a) : (b))
POOL(float, pool_float, tj_max_f32, -INFINITY, acc / (float)divisor)
POOL(double, pool_double, tj_max_f64, -(double)INFINITY, acc / (double)divisor)
POOL(int64_t, pool_int, INT_MAX_OF, smallest_int(x->dtype), divisor ? acc / divisor : 0)

void tj_interp_pool(const struct tj_interp *it, tj_ref n) {
    const struct tj_node *node = tj_inode(it, n);
    struct tj_attr_pool attr = *(const struct tj_attr_pool *)tj_node_attr(it->t, node), *a = &attr;
    for (size_t d = 0; d < 2; d++) {
        a->dilation[d] = a->dilation[d] > 0 ? a->dilation[d] : 1; // average pooling has none
    }
    struct tj_iview v[2] = {tj_iview_of(it, n), tj_iview_of(it, tj_iin(it, n, 0))};
    size_t r = v[0].rank;
    bool max = node->op == TJ_OP_MAX_POOL2D;
    struct tj_walk planes;
    tj_walk_init(&planes, v[0].dims, r - 2, v, 2);
    for (; tj_walk_run(&planes, 1) > 0; tj_walk_advance(&planes, 1)) {
        int64_t at[2];
        for (at[0] = 0; at[0] < v[0].dims[r - 2]; at[0]++) {
            for (at[1] = 0; at[1] < v[0].dims[r - 1]; at[1]++) {
                struct window w;
                int64_t start[2], count = 1, padded = 1;
                for (size_t d = 0; d < 2; d++) {
                    int64_t extent = v[1].dims[r - 2 + d], dil = a->dilation[d];
                    start[d] = at[d] * a->stride[d] - a->padding[d];
                    w.lo[d] = start[d] < 0 ? (-start[d] + dil - 1) / dil : 0;
                    int64_t room = extent - start[d] > 0 ? (extent - start[d] + dil - 1) / dil : 0;
                    w.hi[d] = room < a->kernel[d] ? room : a->kernel[d];
                    // a window that hangs over the padded input (ceil_mode) counts up to the padding's end only
                    int64_t end = start[d] + a->kernel[d], limit = extent + a->padding[d];
                    padded *= (end < limit ? end : limit) - start[d];
                    count *= w.hi[d] > w.lo[d] ? w.hi[d] - w.lo[d] : 0;
                }
                int64_t divisor = a->divisor ? a->divisor : (a->include_pad ? padded : count);
                union tj_chunk c;
                switch (tj_iclass_of(v[0].dtype)) {
                case TJ_I_FLOAT: c.f[0] = pool_float(&v[1], a, planes.p[1], start, &w, max, divisor); break;
                case TJ_I_DOUBLE: c.d[0] = pool_double(&v[1], a, planes.p[1], start, &w, max, divisor); break;
                default: c.i[0] = pool_int(&v[1], a, planes.p[1], start, &w, max, divisor); break;
                }
                tj_istore(v[0].dtype, planes.p[0] + at[0] * v[0].st[r - 2] + at[1] * v[0].st[r - 1], 0, 1, &c);
            }
        }
    }
}
