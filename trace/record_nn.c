// trace/record_nn.c: recording of matrix products, convolution, attention, pooling and recurrent cells.
#define TRACE_NO_MACROS
#include <math.h>

#include "record.h"

#define FAIL(...) return tj_rec_end(&q, tj_rec_fail(&q, __VA_ARGS__))
#define TEXT(buf, dims, rank) tj_dims_text((buf), sizeof(buf), (dims), (rank))
#define NODE_TEXT(buf, n) TEXT(buf, tj_rec_dims(&q, n), tj_rec_rank(&q, n))
#define STOP return tj_rec_end(&q, TJ_NIL)

static void dims_of(const struct tj_rec *q, tj_ref n, int64_t *dims, size_t *rank) {
    *rank = tj_rec_rank(q, n);
    memcpy(dims, tj_rec_dims(q, n), *rank * sizeof *dims);
}

static bool one_dtype(struct tj_rec *q, tj_ref a, tj_ref b, const char *na, const char *nb) {
    tj_dtype x = tj_rec_dtype(q, a), y = tj_rec_dtype(q, b);
    if (x != y) {
        tj_op_fail(TRACE_ERR_DTYPE, q->op, q->loc, "%s is %s, %s %s; convert one with trace_to", na, tj_dtypes[x].name,
                   nb, tj_dtypes[y].name);
    }
    return x == y;
}

static bool not_bool(struct tj_rec *q, tj_ref a) {
    if (tj_rec_dtype(q, a) == TRACE_BOOL) {
        tj_op_fail(TRACE_ERR_DTYPE, q->op, q->loc, "not of bool; convert with trace_to");
        return false;
    }
    return true;
}

static bool need_float(struct tj_rec *q, tj_ref n) {
    tj_dtype d = tj_rec_dtype(q, n);
    if (!tj_is_float(d)) {
        tj_op_fail(TRACE_ERR_DTYPE, q->op, q->loc, "not of %s; floats only, convert with trace_to", tj_dtypes[d].name);
    }
    return tj_is_float(d);
}

// ---- products -------------------------------------------------------------------------------------------------

static trace_tensor *matmul(const char *name, trace_tensor *ta, trace_tensor *tb, bool batches, const char *file,
                            int line) {
    struct tj_rec q;
    trace_tensor *both[2] = {ta, tb};
    if (!tj_rec_begin(&q, name, file, line, both, 2)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, ta), b = a == TJ_NIL ? a : tj_rec_in(&q, tb);
    if (b == TJ_NIL) {
        STOP;
    }
    int64_t da[TJ_MAX_RANK], db[TJ_MAX_RANK], to[TJ_MAX_RANK + 2];
    size_t ra, rb, rt, bad;
    char t1[TJ_DIMS_TEXT], t2[TJ_DIMS_TEXT];
    dims_of(&q, a, da, &ra);
    dims_of(&q, b, db, &rb);
    if (batches ? ra != 3 || rb != 3 || da[0] != db[0] : ra == 0 || rb == 0) {
        FAIL(TRACE_ERR_SHAPE, "shapes %s and %s; %s", NODE_TEXT(t1, a), NODE_TEXT(t2, b),
             batches ? "both are rank 3 with equal batches (trace_matmul broadcasts)"
                     : "0-d tensors have no product; use trace_mul");
    }
    if (!one_dtype(&q, a, b, "the first operand", "the second") || !not_bool(&q, a)) {
        STOP;
    }
    bool row = ra == 1, col = rb == 1;
    if (row) { // [K] counts as [1, K] and [K, 1]; the dim goes again below
        da[1] = da[0];
        da[0] = 1;
        ra = 2;
    }
    if (col) {
        db[1] = 1;
        rb = 2;
    }
    if (da[ra - 1] != db[rb - 2]) {
        FAIL(TRACE_ERR_SHAPE, "shapes %s and %s: the inner extents %lld and %lld differ", NODE_TEXT(t1, a),
             NODE_TEXT(t2, b), (long long)da[ra - 1], (long long)db[rb - 2]);
    }
    if (!tj_broadcast(da, ra - 2, db, rb - 2, to, &rt, &bad)) {
        FAIL(TRACE_ERR_SHAPE, "batch dims of %s and %s do not broadcast; make them equal or 1 (unsqueeze, expand)",
             NODE_TEXT(t1, a), NODE_TEXT(t2, b));
    }
    a = row ? tj_rec_reshape(&q, a, da, ra) : a;
    b = col ? tj_rec_reshape(&q, b, db, rb) : b;
    if (a == TJ_NIL || b == TJ_NIL) {
        STOP;
    }
    to[rt] = da[ra - 2];
    to[rt + 1] = db[rb - 1];
    tj_ref n = tj_rec_op(&q, TJ_OP_MATMUL, tj_rec_dtype(&q, a), to, rt + 2, (tj_ref[]){a, b}, 2, NULL, 0, TJ_PART);
    if (n != TJ_NIL && (row || col)) {
        if (row) {
            to[rt] = to[rt + 1];
        }
        n = tj_rec_reshape(&q, n, to, rt + 2 - row - col);
    }
    return tj_rec_end(&q, n);
}
trace_tensor *trace_matmul_at(trace_tensor *a, trace_tensor *b, const char *file, int line) {
    return matmul("matmul", a, b, false, file, line);
}
trace_tensor *trace_matmul(trace_tensor *a, trace_tensor *b) { return trace_matmul_at(a, b, NULL, 0); }
trace_tensor *trace_bmm_at(trace_tensor *a, trace_tensor *b, const char *file, int line) {
    return matmul("bmm", a, b, true, file, line);
}
trace_tensor *trace_bmm(trace_tensor *a, trace_tensor *b) { return trace_bmm_at(a, b, NULL, 0); }

// bias: TJ_NIL when absent.
static tj_ref linear(struct tj_rec *q, tj_ref x, tj_ref w, tj_ref bias) {
    int64_t dx[TJ_MAX_RANK], dw[TJ_MAX_RANK];
    size_t rx, rw;
    char t1[TJ_DIMS_TEXT], t2[TJ_DIMS_TEXT];
    dims_of(q, x, dx, &rx);
    dims_of(q, w, dw, &rw);
    if (rx == 0 || rw != 2 || dx[rx - 1] != dw[1]) {
        return tj_rec_fail(q, TRACE_ERR_SHAPE, "input %s and weight %s; they are [.., K] and [N, K]",
                           tj_dims_text(t1, sizeof t1, dx, rx), tj_dims_text(t2, sizeof t2, dw, rw));
    }
    if (!one_dtype(q, x, w, "the input", "the weight") || !not_bool(q, x)) {
        return TJ_NIL;
    }
    tj_dtype d = tj_rec_dtype(q, x);
    struct tj_attr_bias attr = {bias != TJ_NIL};
    if (bias == TJ_NIL) {
        bias = tj_rec_scalar_i(q, d, 0);
    } else if (tj_rec_rank(q, bias) != 1 || tj_rec_dims(q, bias)[0] != dw[0]) {
        return tj_rec_fail(q, TRACE_ERR_SHAPE, "bias %s; for weight %s it has %lld elements",
                           tj_dims_text(t1, sizeof t1, tj_rec_dims(q, bias), tj_rec_rank(q, bias)),
                           tj_dims_text(t2, sizeof t2, dw, rw), (long long)dw[0]);
    } else if (!one_dtype(q, x, bias, "the input", "the bias")) {
        return TJ_NIL;
    }
    dx[rx - 1] = dw[0];
    return tj_rec_op(q, TJ_OP_LINEAR, d, dx, rx, (tj_ref[]){x, w, bias}, 3, &attr, sizeof attr, TJ_PART);
}

// An optional operand: TJ_NIL when absent; false: failed.
static bool optional(struct tj_rec *q, trace_tensor *t, tj_ref *out) {
    *out = TJ_NIL;
    return t == TRACE_NONE || (*out = tj_rec_in(q, t)) != TJ_NIL;
}

trace_tensor *trace_linear_at(trace_tensor *x, trace_tensor *weight, trace_tensor *bias, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[3] = {x, weight, bias};
    if (!tj_rec_begin(&q, "linear", file, line, all, 3)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x), w = a == TJ_NIL ? a : tj_rec_in(&q, weight), b;
    if (w == TJ_NIL || !optional(&q, bias, &b)) {
        STOP;
    }
    return tj_rec_end(&q, linear(&q, a, w, b));
}
trace_tensor *trace_linear(trace_tensor *x, trace_tensor *weight, trace_tensor *bias) {
    return trace_linear_at(x, weight, bias, NULL, 0);
}

// ---- windows ----------------------------------------------------------------------------------------------------

static void pair(const int64_t *p, int64_t absent, int64_t *out) {
    out[0] = p ? p[0] : absent;
    out[1] = p ? p[1] : absent;
}

int64_t tj_positions(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode) {
    int64_t room, reach;
    if (in < 0 || kernel < 1 || stride < 1 || padding < 0 || dilation < 1 ||
        __builtin_mul_overflow(padding, 2, &room) || __builtin_add_overflow(room, in, &room) ||
        __builtin_mul_overflow(dilation, kernel - 1, &reach) || reach == INT64_MAX || room < reach + 1) {
        return -1;
    }
    room -= reach + 1;
    int64_t n = room / stride + 1;
    if (ceil_mode && room % stride && n <= (in + padding - 1) / stride) {
        n++; // one more, unless it would start past the input and its left padding
    }
    return n;
}

trace_tensor *trace_conv2d_at(trace_tensor *x, trace_tensor *weight, trace_tensor *bias, const int64_t *stride,
                              const int64_t *padding, const int64_t *dilation, int64_t groups, const char *file,
                              int line) {
    struct tj_rec q;
    trace_tensor *all[3] = {x, weight, bias};
    if (!tj_rec_begin(&q, "conv2d", file, line, all, 3)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x), w = a == TJ_NIL ? a : tj_rec_in(&q, weight), b;
    if (w == TJ_NIL || !optional(&q, bias, &b)) {
        STOP;
    }
    struct tj_attr_conv at = {b != TJ_NIL, {0}, {0}, {0}, groups};
    pair(stride, 1, at.stride);
    pair(padding, 0, at.padding);
    pair(dilation, 1, at.dilation);
    int64_t dx[TJ_MAX_RANK], dw[TJ_MAX_RANK];
    size_t rx, rw;
    char t1[TJ_DIMS_TEXT], t2[TJ_DIMS_TEXT];
    dims_of(&q, a, dx, &rx);
    dims_of(&q, w, dw, &rw);
    bool single = rx == 3;
    if ((rx != 4 && !single) || rw != 4) {
        FAIL(TRACE_ERR_SHAPE, "input %s and weight %s; they are [N, C, H, W] (or [C, H, W]) and [O, C/groups, KH, KW]",
             NODE_TEXT(t1, a), NODE_TEXT(t2, w));
    }
    if (single) {
        memmove(dx + 1, dx, 3 * sizeof *dx);
        dx[0] = 1;
    }
    if (groups < 1 || dx[1] % groups || dw[0] % groups || dw[1] != dx[1] / groups) {
        FAIL(TRACE_ERR_SHAPE,
             "input %s, weight %s, groups %lld: groups has to divide the channels and the outputs, and "
             "the weight's dim 1 be channels/groups",
             NODE_TEXT(t1, a), NODE_TEXT(t2, w), (long long)groups);
    }
    if (!need_float(&q, a) || !one_dtype(&q, a, w, "the input", "the weight")) {
        STOP;
    }
    int64_t to[4] = {dx[0], dw[0], 0, 0};
    for (size_t i = 0; i < 2; i++) {
        to[2 + i] = tj_positions(dx[2 + i], dw[2 + i], at.stride[i], at.padding[i], at.dilation[i], false);
        if (to[2 + i] < 0) {
            FAIL(TRACE_ERR_SHAPE,
                 "input %s, weight %s, stride %lld, padding %lld, dilation %lld: the kernel does not fit "
                 "dim %zu (stride and dilation at least 1, padding at least 0)",
                 NODE_TEXT(t1, a), NODE_TEXT(t2, w), (long long)at.stride[i], (long long)at.padding[i],
                 (long long)at.dilation[i], (single ? 1 : 2) + i);
        }
    }
    tj_dtype d = tj_rec_dtype(&q, a);
    if (b == TJ_NIL) {
        b = tj_rec_scalar_i(&q, d, 0);
    } else if (tj_rec_rank(&q, b) != 1 || tj_rec_dims(&q, b)[0] != dw[0]) {
        FAIL(TRACE_ERR_SHAPE, "bias %s; for weight %s it has %lld elements",
             tj_dims_text(t1, sizeof t1, tj_rec_dims(&q, b), tj_rec_rank(&q, b)), NODE_TEXT(t2, w), (long long)dw[0]);
    } else if (!one_dtype(&q, a, b, "the input", "the bias")) {
        STOP;
    }
    a = single ? tj_rec_reshape(&q, a, dx, 4) : a;
    tj_ref n = tj_rec_op(&q, TJ_OP_CONV2D, d, to, 4, (tj_ref[]){a, w, b}, 3, &at, sizeof at, TJ_PART);
    return tj_rec_end(&q, n != TJ_NIL && single ? tj_rec_reshape(&q, n, to + 1, 3) : n);
}
trace_tensor *trace_conv2d(trace_tensor *x, trace_tensor *weight, trace_tensor *bias, const int64_t *stride,
                           const int64_t *padding, const int64_t *dilation, int64_t groups) {
    return trace_conv2d_at(x, weight, bias, stride, padding, dilation, groups, NULL, 0);
}

static tj_ref pool(struct tj_rec *q, enum tj_op op, tj_ref a, struct tj_attr_pool *at, const int64_t *kernel,
                   const int64_t *stride, const int64_t *padding, const int64_t *dilation) {
    int64_t dims[TJ_MAX_RANK];
    size_t rank;
    char t1[TJ_DIMS_TEXT];
    dims_of(q, a, dims, &rank);
    if (rank != 3 && rank != 4) {
        return tj_rec_fail(q, TRACE_ERR_SHAPE, "input %s; it is [N, C, H, W] or [C, H, W]", TEXT(t1, dims, rank));
    }
    if (!kernel) {
        return tj_rec_fail(q, TRACE_ERR_ARGUMENT, "kernel is NULL; give {height, width}");
    }
    pair(kernel, 0, at->kernel);
    pair(stride ? stride : kernel, 1, at->stride);
    pair(padding, 0, at->padding);
    pair(dilation, 1, at->dilation);
    for (size_t i = 0; i < 2; i++) {
        int64_t *e = &dims[rank - 2 + i], in = *e;
        *e = at->padding[i] > at->kernel[i] / 2
                 ? -1
                 : tj_positions(in, at->kernel[i], at->stride[i], at->padding[i], at->dilation[i], at->ceil_mode);
        if (*e < 0) {
            return tj_rec_fail(q, TRACE_ERR_SHAPE,
                               "input %s, kernel %lld, stride %lld, padding %lld, dilation %lld do not "
                               "fit dim %zu (padding at most half the kernel)",
                               TEXT(t1, tj_rec_dims(q, a), rank), (long long)at->kernel[i], (long long)at->stride[i],
                               (long long)at->padding[i], (long long)at->dilation[i], rank - 2 + i);
        }
    }
    return tj_rec_op(q, op, tj_rec_dtype(q, a), dims, rank, &a, 1, at, sizeof *at, TJ_PART);
}

trace_tensor *trace_max_pool2d_at(trace_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                                  const int64_t *dilation, bool ceil_mode, const char *file, int line) {
    struct tj_rec q;
    if (!tj_rec_begin(&q, "max_pool2d", file, line, &x, 1)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x);
    struct tj_attr_pool at = {.ceil_mode = ceil_mode};
    if (a == TJ_NIL || !not_bool(&q, a)) {
        STOP;
    }
    return tj_rec_end(&q, pool(&q, TJ_OP_MAX_POOL2D, a, &at, kernel, stride, padding, dilation));
}
trace_tensor *trace_max_pool2d(trace_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                               const int64_t *dilation, bool ceil_mode) {
    return trace_max_pool2d_at(x, kernel, stride, padding, dilation, ceil_mode, NULL, 0);
}

trace_tensor *trace_avg_pool2d_at(trace_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                                  bool ceil_mode, bool count_include_pad, int64_t divisor_override, const char *file,
                                  int line) {
    struct tj_rec q;
    if (!tj_rec_begin(&q, "avg_pool2d", file, line, &x, 1)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x);
    struct tj_attr_pool at = {.ceil_mode = ceil_mode, .include_pad = count_include_pad, .divisor = divisor_override};
    if (a == TJ_NIL || !need_float(&q, a)) {
        STOP;
    }
    return tj_rec_end(&q, pool(&q, TJ_OP_AVG_POOL2D, a, &at, kernel, stride, padding, NULL));
}
trace_tensor *trace_avg_pool2d(trace_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                               bool ceil_mode, bool count_include_pad, int64_t divisor_override) {
    return trace_avg_pool2d_at(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override, NULL, 0);
}

// ---- attention ----------------------------------------------------------------------------------------------------

trace_tensor *trace_scaled_dot_product_attention_at(trace_tensor *tq, trace_tensor *tk, trace_tensor *tv,
                                                    trace_tensor *mask, bool is_causal, double scale, bool enable_gqa,
                                                    const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[4] = {tq, tk, tv, mask};
    if (!tj_rec_begin(&q, "scaled_dot_product_attention", file, line, all, 4)) {
        return NULL;
    }
    tj_ref in[5], m;
    int64_t dims[3][TJ_MAX_RANK];
    size_t rank[3], bad;
    char text[3][TJ_DIMS_TEXT];
#define QKV TEXT(text[0], dims[0], rank[0]), TEXT(text[1], dims[1], rank[1]), TEXT(text[2], dims[2], rank[2])
    for (size_t i = 0; i < 3; i++) {
        in[i] = tj_rec_in(&q, all[i]);
        if (in[i] == TJ_NIL) {
            STOP;
        }
        dims_of(&q, in[i], dims[i], &rank[i]);
    }
    if (!need_float(&q, in[0]) || !one_dtype(&q, in[0], in[1], "the query", "the key") ||
        !one_dtype(&q, in[0], in[2], "the query", "the value") || !optional(&q, mask, &m)) {
        STOP;
    }
    size_t r = rank[0];
    if (r < 2 || rank[1] < 2 || rank[2] < 2 || dims[0][r - 1] != dims[1][rank[1] - 1] ||
        dims[1][rank[1] - 2] != dims[2][rank[2] - 2]) {
        FAIL(TRACE_ERR_SHAPE, "query %s, key %s, value %s; they are [.., L, E], [.., S, E] and [.., S, Ev]", QKV);
    }
    // Batch dims: equal, or broadcast; with gqa the heads (dim -3) of key and value divide those of the query.
    int64_t batch[TJ_MAX_RANK], all_batch[TJ_MAX_RANK];
    size_t nb, nall, heads = enable_gqa ? 1 : 0;
    if (enable_gqa) {
        int64_t hq = r >= 3 ? dims[0][r - 3] : 0;
        if (r < 3 || rank[1] != r || rank[2] != r || dims[1][r - 3] < 1 || dims[1][r - 3] != dims[2][r - 3] ||
            hq % dims[1][r - 3]) {
            FAIL(TRACE_ERR_SHAPE,
                 "query %s, key %s, value %s: with enable_gqa the heads (dim -3) of key and value are "
                 "equal and divide the query's",
                 QKV);
        }
    }
    bool ok = tj_broadcast(dims[0], r - 2 - heads, dims[1], rank[1] - 2 - heads, batch, &nb, &bad) &&
              tj_broadcast(batch, nb, dims[2], rank[2] - 2 - heads, all_batch, &nall, &bad);
    if (!ok || nall + heads + 2 > TJ_MAX_RANK) {
        FAIL(TRACE_ERR_SHAPE, "query %s, key %s, value %s: the leading dims do not broadcast; make them equal or 1",
             QKV);
    }
    for (size_t i = 0; i < 3; i++) {
        size_t tail = 2 + heads;
        int64_t to[TJ_MAX_RANK];
        memcpy(to, all_batch, nall * sizeof *to);
        memcpy(to + nall, dims[i] + rank[i] - tail, tail * sizeof *to);
        rank[i] = nall + tail;
        memcpy(dims[i], to, rank[i] * sizeof *to);
        in[i] = tj_rec_expand(&q, in[i], to, rank[i]);
        if (in[i] == TJ_NIL) {
            STOP;
        }
    }
    r = rank[0];
    tj_dtype d = tj_rec_dtype(&q, in[0]);
    struct tj_attr_sdpa at = {m != TJ_NIL, is_causal, enable_gqa};
    if (m != TJ_NIL && is_causal) {
        FAIL(TRACE_ERR_ARGUMENT, "a mask and is_causal together; put the causal part into the mask");
    }
    if (m != TJ_NIL) {
        int64_t want[TJ_MAX_RANK], out[TJ_MAX_RANK];
        size_t ro;
        char t4[TJ_DIMS_TEXT], t5[TJ_DIMS_TEXT];
        memcpy(want, dims[0], r * sizeof *want);
        want[r - 1] = dims[1][r - 2];
        if (!tj_broadcast(tj_rec_dims(&q, m), tj_rec_rank(&q, m), want, r, out, &ro, &bad) || ro != r ||
            memcmp(out, want, r * sizeof *want)) {
            FAIL(TRACE_ERR_SHAPE, "mask %s does not broadcast to %s",
                 tj_dims_text(t4, sizeof t4, tj_rec_dims(&q, m), tj_rec_rank(&q, m)),
                 tj_dims_text(t5, sizeof t5, want, r));
        }
        if (tj_rec_dtype(&q, m) != TRACE_BOOL && tj_rec_dtype(&q, m) != d) {
            FAIL(TRACE_ERR_DTYPE, "mask is %s; make it bool or %s (trace_to)", tj_dtypes[tj_rec_dtype(&q, m)].name,
                 tj_dtypes[d].name);
        }
    }
    in[3] = m != TJ_NIL ? m : tj_rec_scalar_i(&q, d, 0);
    in[4] = in[3] == TJ_NIL ? TJ_NIL
                            : tj_rec_scalar_f(&q, (tj_dtype)tj_dtypes[d].compute,
                                              scale != 0 ? scale : tj_inverse_root((double)dims[0][r - 1]));
    dims[0][r - 1] = dims[2][r - 1];
    return tj_rec_end(&q, tj_rec_op(&q, TJ_OP_SDPA, d, dims[0], r, in, 5, &at, sizeof at, TJ_PART));
}
#undef QKV
trace_tensor *trace_scaled_dot_product_attention(trace_tensor *q, trace_tensor *k, trace_tensor *v, trace_tensor *mask,
                                                 bool is_causal, double scale, bool enable_gqa) {
    return trace_scaled_dot_product_attention_at(q, k, v, mask, is_causal, scale, enable_gqa, NULL, 0);
}

// ---- recurrent cells ------------------------------------------------------------------------------------------------

trace_tensor *trace_gru_cell_at(trace_tensor *x, trace_tensor *h, trace_tensor *w_ih, trace_tensor *w_hh,
                                trace_tensor *b_ih, trace_tensor *b_hh, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[6] = {x, h, w_ih, w_hh, b_ih, b_hh};
    tj_ref in[6];
    if (!tj_rec_begin(&q, "gru_cell", file, line, all, 6)) {
        return NULL;
    }
    for (size_t i = 0; i < 6; i++) {
        if (i < 4 ? (in[i] = tj_rec_in(&q, all[i])) == TJ_NIL : !optional(&q, all[i], &in[i])) {
            STOP;
        }
    }
    char text[4][TJ_DIMS_TEXT];
    const int64_t *d[4];
    for (size_t i = 0; i < 4; i++) {
        d[i] = tj_rec_dims(&q, in[i]);
    }
    size_t r = tj_rec_rank(&q, in[0]);
    bool ok = (r == 1 || r == 2) && tj_rec_rank(&q, in[1]) == r && tj_rec_rank(&q, in[2]) == 2 &&
              tj_rec_rank(&q, in[3]) == 2 && (r == 1 || d[0][0] == d[1][0]);
    int64_t hidden = ok ? d[1][r - 1] : 0, rows = 0;
    ok = ok && tj_size_mul(hidden, 3, &rows) && d[2][0] == rows && d[3][0] == rows && d[3][1] == hidden &&
         d[2][1] == d[0][r - 1];
    if (!ok) {
        FAIL(TRACE_ERR_SHAPE, "input %s, hidden %s, weights %s and %s; they are [B, I], [B, H], [3H, I] and [3H, H]",
             NODE_TEXT(text[0], in[0]), NODE_TEXT(text[1], in[1]), NODE_TEXT(text[2], in[2]),
             NODE_TEXT(text[3], in[3]));
    }
    if (!need_float(&q, in[0])) {
        STOP;
    }
    tj_ref gi = linear(&q, in[0], in[2], in[4]), gh = gi == TJ_NIL ? gi : linear(&q, in[1], in[3], in[5]);
    tj_ref i3[3], h3[3];
    for (size_t k = 0; k < 3; k++) {
        i3[k] = gh == TJ_NIL ? gh : tj_rec_slice(&q, gi, (int64_t)r - 1, (int64_t)k * hidden, hidden, 1);
        h3[k] = i3[k] == TJ_NIL ? i3[k] : tj_rec_slice(&q, gh, (int64_t)r - 1, (int64_t)k * hidden, hidden, 1);
        if (h3[k] == TJ_NIL) {
            STOP;
        }
    }
    // In ATen's order: h' = (h - n)*z + n.
    tj_ref reset = tj_rec_unary(&q, TJ_OP_SIGMOID, tj_rec_binary(&q, TJ_OP_ADD, h3[0], i3[0]));
    tj_ref update = tj_rec_unary(&q, TJ_OP_SIGMOID, tj_rec_binary(&q, TJ_OP_ADD, h3[1], i3[1]));
    tj_ref fresh = tj_rec_binary(&q, TJ_OP_ADD, i3[2], tj_rec_binary(&q, TJ_OP_MUL, h3[2], reset));
    fresh = tj_rec_unary(&q, TJ_OP_TANH, fresh);
    tj_ref keep = tj_rec_binary(&q, TJ_OP_MUL, tj_rec_binary(&q, TJ_OP_SUB, in[1], fresh), update);
    return tj_rec_end(&q, tj_rec_binary(&q, TJ_OP_ADD, keep, fresh));
}
trace_tensor *trace_gru_cell(trace_tensor *x, trace_tensor *h, trace_tensor *w_ih, trace_tensor *w_hh,
                             trace_tensor *b_ih, trace_tensor *b_hh) {
    return trace_gru_cell_at(x, h, w_ih, w_hh, b_ih, b_hh, NULL, 0);
}
