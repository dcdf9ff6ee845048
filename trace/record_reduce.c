// trace/record_reduce.c: recording of reductions, softmax, norms and cross entropy.
#define TRACE_NO_MACROS
#include "record.h"

#define FAIL(...) return tj_rec_end(&q, tj_rec_fail(&q, __VA_ARGS__))
#define STOP return tj_rec_end(&q, TJ_NIL)

static bool need_float(struct tj_rec *q, tj_ref n) {
    tj_dtype d = tj_rec_dtype(q, n);
    if (!tj_is_float(d)) {
        tj_op_fail(TRACE_ERR_DTYPE, q->op, q->loc, "not of %s; floats only, convert with trace_to", tj_dtypes[d].name);
    }
    return tj_is_float(d);
}

tj_ref tj_rec_reduce(struct tj_rec *q, enum tj_op op, tj_ref x, int64_t mask, bool keepdim, int64_t correction) {
    if (x == TJ_NIL) {
        return x;
    }
    tj_dtype d = tj_rec_dtype(q, x), out = d, in = d, after;
    switch (op) {
    case TJ_OP_SUM: in = out = tj_is_float(d) ? d : TRACE_I64; break;
    case TJ_OP_MEAN:
    case TJ_OP_VAR:
        if (!need_float(q, x)) {
            return TJ_NIL;
        }
        break;
    case TJ_OP_ARGMAX:
    case TJ_OP_ARGMIN:
        in = d == TRACE_BOOL ? TRACE_U8 : d;
        out = TRACE_I64;
        break;
    case TJ_OP_ANY:
    case TJ_OP_ALL: in = out = TRACE_BOOL; break;
    default: break;
    }
    after = (op == TJ_OP_ANY || op == TJ_OP_ALL) && d == TRACE_U8 ? TRACE_U8 : out;
    const int64_t *have = tj_rec_dims(q, x);
    size_t rank = tj_rec_rank(q, x), k = 0;
    int64_t dims[TJ_MAX_RANK];
    char text[TJ_DIMS_TEXT];
    bool selects = op == TJ_OP_AMAX || op == TJ_OP_AMIN || op == TJ_OP_ARGMAX || op == TJ_OP_ARGMIN;
    for (size_t i = 0; i < rank; i++) {
        bool reduced = mask >> i & 1;
        if (reduced && selects && have[i] == 0) {
            return tj_rec_fail(q, TRACE_ERR_SHAPE, "dim %zu of %s is empty and has no %s element", i,
                               tj_dims_text(text, sizeof text, have, rank),
                               op == TJ_OP_AMAX || op == TJ_OP_ARGMAX ? "largest" : "smallest");
        }
        if (!reduced || keepdim) {
            dims[k++] = reduced ? 1 : have[i];
        }
    }
    struct tj_attr_reduce attr = {mask, keepdim, correction};
    x = tj_rec_cast(q, x, in);
    tj_ref r = tj_rec_op(q, op, out, dims, k, &x, 1, &attr, sizeof attr, TJ_PART);
    return tj_rec_cast(q, r, after);
}

static trace_tensor *reduce(enum tj_op op, trace_tensor *x, const int64_t *dims, size_t n, bool keepdim,
                            int64_t correction, const char *file, int line) {
    struct tj_rec q;
    int64_t mask;
    if (!tj_rec_begin(&q, tj_ops[op].name, file, line, &x, 1)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x);
    if (a == TJ_NIL || !tj_rec_dims_mask(&q, dims, n, tj_rec_rank(&q, a), &mask)) {
        STOP;
    }
    return tj_rec_end(&q, tj_rec_reduce(&q, op, a, mask, keepdim, correction));
}

#define REDUCE(name, NAME)                                                                                             \
    trace_tensor *trace_##name##_at(trace_tensor *x, const int64_t *dims, size_t n, bool keepdim, const char *file,    \
                                    int line) {                                                                        \
        return reduce(TJ_OP_##NAME, x, dims, n, keepdim, 0, file, line);                                               \
    }                                                                                                                  \
    trace_tensor *trace_##name(trace_tensor *x, const int64_t *dims, size_t n, bool keepdim) {                         \
        return trace_##name##_at(x, dims, n, keepdim, NULL, 0);                                                        \
    }
#define ARG(name, NAME)                                                                                                \
    trace_tensor *trace_##name##_at(trace_tensor *x, int64_t dim, bool keepdim, const char *file, int line) {          \
        return reduce(TJ_OP_##NAME, x, &dim, dim != TRACE_ALL_DIMS, keepdim, 0, file, line);                           \
    }                                                                                                                  \
    trace_tensor *trace_##name(trace_tensor *x, int64_t dim, bool keepdim) {                                           \
        return trace_##name##_at(x, dim, keepdim, NULL, 0);                                                            \
    }
REDUCE(sum, SUM)
REDUCE(mean, MEAN)
REDUCE(amax, AMAX)
REDUCE(amin, AMIN)
REDUCE(any, ANY)
REDUCE(all, ALL)
ARG(argmax, ARGMAX)
ARG(argmin, ARGMIN)

trace_tensor *trace_var_at(trace_tensor *x, const int64_t *dims, size_t n, int64_t correction, bool keepdim,
                           const char *file, int line) {
    return reduce(TJ_OP_VAR, x, dims, n, keepdim, correction, file, line);
}
trace_tensor *trace_var(trace_tensor *x, const int64_t *dims, size_t n, int64_t correction, bool keepdim) {
    return trace_var_at(x, dims, n, correction, keepdim, NULL, 0);
}

// ---- rows ---------------------------------------------------------------------------------------------------

static tj_ref softmax_of(struct tj_rec *q, enum tj_op op, tj_ref x, size_t dim) {
    int64_t dims[TJ_MAX_RANK];
    size_t rank = tj_rec_rank(q, x);
    memcpy(dims, tj_rec_dims(q, x), rank * sizeof *dims);
    struct tj_attr_dim attr = {(int64_t)dim};
    if (rank == 0) { // one element: as a row of one
        int64_t one = 1;
        tj_ref row = tj_rec_reshape(q, x, &one, 1);
        row =
            row == TJ_NIL ? row : tj_rec_op(q, op, tj_rec_dtype(q, row), &one, 1, &row, 1, &attr, sizeof attr, TJ_PART);
        return row == TJ_NIL ? row : tj_rec_reshape(q, row, NULL, 0);
    }
    return tj_rec_op(q, op, tj_rec_dtype(q, x), dims, rank, &x, 1, &attr, sizeof attr, TJ_PART);
}

static trace_tensor *softmax(enum tj_op op, trace_tensor *x, int64_t dim, const char *file, int line) {
    struct tj_rec q;
    size_t d;
    if (!tj_rec_begin(&q, tj_ops[op].name, file, line, &x, 1)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x);
    if (a == TJ_NIL || !need_float(&q, a) || !tj_rec_dim(&q, dim, tj_rec_rank(&q, a), &d)) {
        STOP;
    }
    return tj_rec_end(&q, softmax_of(&q, op, a, d));
}
trace_tensor *trace_softmax_at(trace_tensor *x, int64_t dim, const char *file, int line) {
    return softmax(TJ_OP_SOFTMAX, x, dim, file, line);
}
trace_tensor *trace_softmax(trace_tensor *x, int64_t dim) { return trace_softmax_at(x, dim, NULL, 0); }
trace_tensor *trace_log_softmax_at(trace_tensor *x, int64_t dim, const char *file, int line) {
    return softmax(TJ_OP_LOG_SOFTMAX, x, dim, file, line);
}
trace_tensor *trace_log_softmax(trace_tensor *x, int64_t dim) { return trace_log_softmax_at(x, dim, NULL, 0); }

// An affine parameter of a norm: of the given shape and dtype; absent: a scalar.
static tj_ref param(struct tj_rec *q, trace_tensor *t, const char *what, const int64_t *dims, size_t rank, tj_dtype d,
                    double absent) {
    if (t == TRACE_NONE) {
        return tj_rec_scalar_f(q, d, absent);
    }
    tj_ref n = tj_rec_in(q, t);
    if (n == TJ_NIL) {
        return n;
    }
    char a[TJ_DIMS_TEXT], b[TJ_DIMS_TEXT];
    if (tj_rec_rank(q, n) != rank || (rank && memcmp(tj_rec_dims(q, n), dims, rank * sizeof *dims))) {
        return tj_rec_fail(q, TRACE_ERR_SHAPE, "%s is %s, it has to be %s", what,
                           tj_dims_text(a, sizeof a, tj_rec_dims(q, n), tj_rec_rank(q, n)),
                           tj_dims_text(b, sizeof b, dims, rank));
    }
    if (tj_rec_dtype(q, n) != d) {
        return tj_rec_fail(q, TRACE_ERR_DTYPE, "%s is %s, the input %s; convert one with trace_to", what,
                           tj_dtypes[tj_rec_dtype(q, n)].name, tj_dtypes[d].name);
    }
    return n;
}

trace_tensor *trace_layer_norm_at(trace_tensor *x, const int64_t *shape, size_t n, trace_tensor *weight,
                                  trace_tensor *bias, double eps, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[3] = {x, weight, bias};
    if (!tj_rec_begin(&q, "layer_norm", file, line, all, 3)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x);
    if (a == TJ_NIL || !need_float(&q, a)) {
        STOP;
    }
    int64_t dims[TJ_MAX_RANK], tail[TJ_MAX_RANK];
    size_t rank = tj_rec_rank(&q, a);
    char t1[TJ_DIMS_TEXT], t2[TJ_DIMS_TEXT];
    memcpy(dims, tj_rec_dims(&q, a), rank * sizeof *dims);
    if (n == 0 || n > rank || !shape || memcmp(dims + rank - n, shape, n * sizeof *shape)) {
        FAIL(TRACE_ERR_SHAPE, "normalised shape %s is not the end of the input's shape %s",
             shape && n <= TJ_MAX_RANK ? tj_dims_text(t1, sizeof t1, shape, n) : "[]",
             tj_dims_text(t2, sizeof t2, dims, rank));
    }
    memcpy(tail, dims + rank - n, n * sizeof *tail);
    tj_dtype d = tj_rec_dtype(&q, a);
    tj_ref in[4] = {a, TJ_NIL, TJ_NIL, TJ_NIL};
    in[1] = param(&q, weight, "weight", tail, n, d, 1);
    in[2] = in[1] == TJ_NIL ? TJ_NIL : param(&q, bias, "bias", tail, n, d, 0);
    in[3] = in[2] == TJ_NIL ? TJ_NIL : tj_rec_scalar_f(&q, (tj_dtype)tj_dtypes[d].compute, eps);
    struct tj_attr_norm attr = {(int64_t)n};
    return tj_rec_end(&q, tj_rec_op(&q, TJ_OP_LAYER_NORM, d, dims, rank, in, 4, &attr, sizeof attr, TJ_PART));
}
trace_tensor *trace_layer_norm(trace_tensor *x, const int64_t *shape, size_t n, trace_tensor *weight,
                               trace_tensor *bias, double eps) {
    return trace_layer_norm_at(x, shape, n, weight, bias, eps, NULL, 0);
}

trace_tensor *trace_rms_norm_at(trace_tensor *x, trace_tensor *weight, double eps, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[2] = {x, weight};
    if (!tj_rec_begin(&q, "rms_norm", file, line, all, 2)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x), w = TJ_NIL;
    if (a == TJ_NIL || !need_float(&q, a)) {
        STOP;
    }
    int64_t dims[TJ_MAX_RANK];
    size_t rank = tj_rec_rank(&q, a), n = 1;
    char t1[TJ_DIMS_TEXT];
    memcpy(dims, tj_rec_dims(&q, a), rank * sizeof *dims);
    if (weight != TRACE_NONE) {
        w = tj_rec_in(&q, weight);
        if (w == TJ_NIL) {
            STOP;
        }
        n = tj_rec_rank(&q, w);
    }
    if (n == 0 || n > rank) {
        FAIL(TRACE_ERR_SHAPE, "it normalises the last %zu dims of %s; give it that many (and at least one)", n,
             tj_dims_text(t1, sizeof t1, dims, rank));
    }
    tj_dtype d = tj_rec_dtype(&q, a);
    tj_ref in[3] = {a, param(&q, weight, "weight", dims + rank - n, n, d, 1), TJ_NIL};
    in[2] = in[1] == TJ_NIL ? TJ_NIL : tj_rec_scalar_f(&q, (tj_dtype)tj_dtypes[d].compute, eps);
    struct tj_attr_norm attr = {(int64_t)n};
    return tj_rec_end(&q, tj_rec_op(&q, TJ_OP_RMS_NORM, d, dims, rank, in, 3, &attr, sizeof attr, TJ_PART));
}
trace_tensor *trace_rms_norm(trace_tensor *x, trace_tensor *weight, double eps) {
    return trace_rms_norm_at(x, weight, eps, NULL, 0);
}

trace_tensor *trace_batch_norm_at(trace_tensor *x, trace_tensor *weight, trace_tensor *bias, trace_tensor *running_mean,
                                  trace_tensor *running_var, double eps, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[5] = {x, running_mean, running_var, weight, bias};
    static const char *const names[5] = {"", "running_mean", "running_var", "weight", "bias"};
    if (!tj_rec_begin(&q, "batch_norm", file, line, all, 5)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x), in[6] = {a, TJ_NIL, TJ_NIL, TJ_NIL, TJ_NIL, TJ_NIL};
    if (a == TJ_NIL || !need_float(&q, a)) {
        STOP;
    }
    int64_t dims[TJ_MAX_RANK], wide[TJ_MAX_RANK];
    size_t rank = tj_rec_rank(&q, a);
    char t1[TJ_DIMS_TEXT];
    memcpy(dims, tj_rec_dims(&q, a), rank * sizeof *dims);
    if (rank < 2) {
        FAIL(TRACE_ERR_SHAPE, "input %s; channels are dim 1, so it has at least two",
             tj_dims_text(t1, sizeof t1, dims, rank));
    }
    for (size_t i = 0; i < rank - 1; i++) {
        wide[i] = i ? 1 : dims[1]; // [C, 1, ...] aligns with dim 1
    }
    tj_dtype d = tj_rec_dtype(&q, a);
    for (size_t i = 1; i < 5; i++) {
        if (i < 3 && all[i] == TRACE_NONE) {
            FAIL(TRACE_ERR_ARGUMENT, "%s is TRACE_NONE; inference needs it", names[i]);
        }
        in[i] = param(&q, all[i], names[i], dims + 1, 1, d, i == 3 ? 1 : 0);
        if (in[i] != TJ_NIL && all[i] != TRACE_NONE && rank > 2) {
            in[i] = tj_rec_reshape(&q, in[i], wide, rank - 1);
        }
        if (in[i] == TJ_NIL) {
            STOP;
        }
    }
    in[5] = tj_rec_scalar_f(&q, (tj_dtype)tj_dtypes[d].compute, eps);
    return tj_rec_end(&q, tj_rec_op(&q, TJ_OP_BATCH_NORM, d, dims, rank, in, 6, NULL, 0, TJ_PART));
}
trace_tensor *trace_batch_norm(trace_tensor *x, trace_tensor *weight, trace_tensor *bias, trace_tensor *running_mean,
                               trace_tensor *running_var, double eps) {
    return trace_batch_norm_at(x, weight, bias, running_mean, running_var, eps, NULL, 0);
}

// ---- cross entropy --------------------------------------------------------------------------------------------

static tj_ref mul_f(struct tj_rec *q, tj_ref a, double s) {
    return a == TJ_NIL ? a : tj_rec_binary(q, TJ_OP_MUL, a, tj_rec_scalar_f(q, tj_rec_dtype(q, a), s));
}

static tj_ref total(struct tj_rec *q, tj_ref a) {
    return a == TJ_NIL ? a : tj_rec_reduce(q, TJ_OP_SUM, a, ((int64_t)1 << tj_rec_rank(q, a)) - 1, false, 0);
}

// 0 where an element is ignored.
static tj_ref mask_out(struct tj_rec *q, tj_ref ignored, tj_ref v) {
    if (v == TJ_NIL) {
        return v;
    }
    tj_dtype d = tj_rec_dtype(q, v);
    tj_ref zero = tj_rec_scalar_f(q, d, 0);
    return tj_rec_like(q, TJ_OP_WHERE, d, ignored, (tj_ref[]){ignored, zero, v}, 3);
}

trace_tensor *trace_cross_entropy_at(trace_tensor *x, trace_tensor *target, trace_tensor *weight, int reduction,
                                     int64_t ignore_index, double label_smoothing, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[3] = {x, target, weight};
    if (!tj_rec_begin(&q, "cross_entropy", file, line, all, 3)) {
        return NULL;
    }
    tj_ref a = tj_rec_in(&q, x), t = a == TJ_NIL ? a : tj_rec_in(&q, target);
    if (t == TJ_NIL || !need_float(&q, a)) {
        STOP;
    }
    int64_t dims[TJ_MAX_RANK], td[TJ_MAX_RANK], one[TJ_MAX_RANK], n;
    size_t rank = tj_rec_rank(&q, a), rt = tj_rec_rank(&q, t), c = rank > 1 ? 1 : 0, k = 0;
    char t1[TJ_DIMS_TEXT], t2[TJ_DIMS_TEXT];
    memcpy(dims, tj_rec_dims(&q, a), rank * sizeof *dims);
    memcpy(td, tj_rec_dims(&q, t), rt * sizeof *td);
    bool fits = rank > 0 && rt == rank - 1;
    for (size_t i = 0; fits && i < rank; i++) {
        one[i] = i == c ? 1 : dims[i];
        if (i != c) {
            fits = td[k++] == dims[i];
        }
    }
    if (!fits) {
        FAIL(TRACE_ERR_SHAPE, "input %s and target %s; they are [N, C, ...] and [N, ...]",
             tj_dims_text(t1, sizeof t1, dims, rank), tj_dims_text(t2, sizeof t2, td, rt));
    }
    if (tj_rec_dtype(&q, t) != TRACE_I64) {
        FAIL(TRACE_ERR_DTYPE, "target is %s; make it i64 (trace_to)", tj_dtypes[tj_rec_dtype(&q, t)].name);
    }
    if (reduction != TRACE_REDUCTION_NONE && reduction != TRACE_REDUCTION_MEAN && reduction != TRACE_REDUCTION_SUM) {
        FAIL(TRACE_ERR_ARGUMENT, "reduction %d; use TRACE_REDUCTION_NONE, _MEAN or _SUM", reduction);
    }
    if (!(label_smoothing >= 0 && label_smoothing <= 1)) {
        FAIL(TRACE_ERR_ARGUMENT, "label_smoothing %g; it is from 0 to 1", label_smoothing);
    }
    tj_dtype d = tj_rec_dtype(&q, a);
    tj_ref w = TJ_NIL;
    if (weight != TRACE_NONE && (w = param(&q, weight, "weight", dims + c, 1, d, 1)) == TJ_NIL) {
        STOP;
    }
    (void)tj_numel(td, rt, &n);
    // An ignored target may be any number: it looks up class 0 and is masked out.
    tj_ref ign = tj_rec_binary(&q, TJ_OP_EQ, t, tj_rec_scalar_i(&q, TRACE_I64, ignore_index));
    tj_ref zero = tj_rec_scalar_i(&q, TRACE_I64, 0);
    tj_ref safe = ign == TJ_NIL ? ign : tj_rec_like(&q, TJ_OP_WHERE, TRACE_I64, t, (tj_ref[]){ign, zero, t}, 3);
    tj_ref logp = safe == TJ_NIL ? safe : softmax_of(&q, TJ_OP_LOG_SOFTMAX, a, c);
    if (logp == TJ_NIL) {
        STOP;
    }
    struct tj_attr_dim at = {(int64_t)c};
    tj_ref index = tj_rec_reshape(&q, safe, one, rank);
    tj_ref nll = tj_rec_op(&q, TJ_OP_GATHER, d, one, rank, (tj_ref[]){logp, index}, 2, &at, sizeof at, TJ_PART);
    nll = nll == TJ_NIL ? nll : tj_rec_reshape(&q, nll, td, rt);
    nll = tj_rec_unary(&q, TJ_OP_NEG, nll);
    tj_ref wt = TJ_NIL; // weight of each element, 0 where ignored
    if (w != TJ_NIL) {
        struct tj_attr_dim first = {0};
        tj_ref flat = tj_rec_reshape(&q, safe, &n, 1);
        wt = tj_rec_op(&q, TJ_OP_INDEX_SELECT, d, &n, 1, (tj_ref[]){w, flat}, 2, &first, sizeof first, TJ_PART);
        wt = wt == TJ_NIL ? wt : mask_out(&q, ign, tj_rec_reshape(&q, wt, td, rt));
        nll = wt == TJ_NIL ? wt : tj_rec_binary(&q, TJ_OP_MUL, nll, wt);
    }
    nll = mask_out(&q, ign, nll);
    tj_ref smooth = TJ_NIL;
    if (label_smoothing > 0) {
        tj_ref lw = logp;
        if (w != TJ_NIL) {
            int64_t wide[TJ_MAX_RANK] = {dims[c], 1, 1, 1, 1, 1, 1, 1};
            tj_ref wr = rank > 2 ? tj_rec_reshape(&q, w, wide, rank - 1) : w;
            lw = wr == TJ_NIL ? wr : tj_rec_binary(&q, TJ_OP_MUL, logp, wr);
        }
        smooth = tj_rec_unary(&q, TJ_OP_NEG, tj_rec_reduce(&q, TJ_OP_SUM, lw, (int64_t)1 << c, false, 0));
        smooth = mask_out(&q, ign, smooth);
        if (smooth == TJ_NIL) {
            STOP;
        }
    }
    if (nll == TJ_NIL) {
        STOP;
    }
    if (reduction != TRACE_REDUCTION_NONE) {
        nll = total(&q, nll);
        smooth = label_smoothing > 0 ? total(&q, smooth) : TJ_NIL;
    }
    if (reduction == TRACE_REDUCTION_MEAN) {
        tj_ref count =
            wt != TJ_NIL ? total(&q, wt) : tj_rec_cast(&q, total(&q, tj_rec_unary(&q, TJ_OP_LOGICAL_NOT, ign)), d);
        nll = tj_rec_binary(&q, TJ_OP_DIV, nll, count);
        smooth = label_smoothing > 0 ? tj_rec_binary(&q, TJ_OP_DIV, smooth, count) : TJ_NIL;
    }
    if (label_smoothing > 0) {
        tj_ref s = mul_f(&q, smooth, tj_quotient(label_smoothing, (double)dims[c]));
        nll = tj_rec_binary(&q, TJ_OP_ADD, s, mul_f(&q, nll, 1 - label_smoothing));
    }
    return tj_rec_end(&q, nll);
}
trace_tensor *trace_cross_entropy(trace_tensor *x, trace_tensor *target, trace_tensor *weight, int reduction,
                                  int64_t ignore_index, double label_smoothing) {
    return trace_cross_entropy_at(x, target, weight, reduction, ignore_index, label_smoothing, NULL, 0);
}
