// trace/infer.c: promotion, scalar conversion, broadcasting and view strides: what an op's result looks like.
#include <math.h>
#include <stdio.h>

#include "record.h"

// ---- scalars --------------------------------------------------------------------------------------

// By hand, so that the host's rounding mode has no say.
double tj_round_to(tj_dtype d, double v) {
    static const struct {
        int digits, emin;
        double max;
    } formats[] = {[TRACE_F16] = {11, -14, 65504.0},
                   [TRACE_BF16] = {8, -126, 0x1.fep127},
                   [TRACE_F32] = {24, -126, 0x1.fffffep127}};
    if (d == TRACE_F64 || v == 0) {
        return v;
    }
    // The common case: normal before and after, rounded in the bits.
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7FF) - 1023, drop = 53 - formats[d].digits;
    if (exponent >= formats[d].emin && exponent < -formats[d].emin + 1) { // one below the largest exponent
        bits += ((uint64_t)1 << (drop - 1)) - 1 + (bits >> drop & 1);
        bits &= ~(((uint64_t)1 << drop) - 1);
        memcpy(&v, &bits, sizeof v);
        return v;
    }
    if (!isfinite(v)) {
        return v;
    }
    int e = ilogb(v), emin = formats[d].emin;
    int shift = (e < emin ? emin : e) - (formats[d].digits - 1);
    double t = fabs(ldexp(v, -shift)), f = floor(t), rest = t - f; // exact
    if (rest > 0.5 || (rest == 0.5 && fmod(f, 2) != 0)) {
        f += 1;
    }
    f = ldexp(f, shift);
    return copysign(f > formats[d].max ? INFINITY : f, v);
}

union tj_scalar tj_scalar_convert_f(tj_dtype d, double v) {
    union tj_scalar s;
    switch (d) {
    case TRACE_BOOL: s.i = v != 0; break;
    case TRACE_U8: s.i = !(v > 0) ? 0 : v >= 255 ? 255 : (int64_t)v; break;
    case TRACE_I32: s.i = isnan(v) ? 0 : v <= INT32_MIN ? INT32_MIN : v >= INT32_MAX ? INT32_MAX : (int64_t)v; break;
    case TRACE_I64: s.i = isnan(v) ? 0 : v <= -0x1p63 ? INT64_MIN : v >= 0x1p63 ? INT64_MAX : (int64_t)v; break;
    default: s.f = tj_round_to(d, v); break;
    }
    return s;
}

union tj_scalar tj_scalar_convert_i(tj_dtype d, int64_t v) {
    union tj_scalar s;
    switch (d) {
    case TRACE_BOOL: s.i = v != 0; break;
    case TRACE_U8: s.i = (uint8_t)v; break;
    case TRACE_I32: s.i = (int32_t)(uint32_t)(uint64_t)v; break;
    case TRACE_I64: s.i = v; break;
    case TRACE_F64: s.f = (double)v; break;
    default: {
        // Beyond 2^53 a double can't hold v: fold what it would lose into a sticky bit far below any rounding point.
        uint64_t m = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
        if (m >> 53) {
            m = (m & ~(uint64_t)0xFFF) | ((m & 0xFFF) ? 0x800 : 0);
        }
        double a = tj_round_to(d, (double)m);
        s.f = v < 0 ? -a : a;
        break;
    }
    }
    return s;
}

bool tj_scalar_fits(tj_dtype d, int64_t v) {
    switch (d) {
    case TRACE_BOOL: return v == 0 || v == 1;
    case TRACE_U8: return v >= 0 && v <= 255;
    case TRACE_I32: return v >= INT32_MIN && v <= INT32_MAX;
    default: return true;
    }
}

// ---- promotion ------------------------------------------------------------------------------------

tj_dtype tj_promote(tj_dtype a, tj_dtype b) {
    if (a == b) {
        return a;
    }
    if ((a == TRACE_F16 && b == TRACE_BF16) || (a == TRACE_BF16 && b == TRACE_F16)) {
        return TRACE_F32;
    }
    // The enum is in promotion order: bool, u8, i32, i64, f16 | bf16, f32, f64.
    return a > b ? a : b;
}

void tj_typing_add(struct tj_typing *t, tj_dtype d, size_t rank) {
    int *slot = rank ? &t->dim : &t->zero;
    *slot = *slot < 0 ? (int)d : (int)tj_promote((tj_dtype)*slot, d);
}

static int combine(int higher, int lower) {
    if (higher < 0 || lower < 0) {
        return higher < 0 ? lower : higher;
    }
    if (tj_is_float((tj_dtype)higher)) {
        return higher;
    }
    if (higher == TRACE_BOOL || tj_is_float((tj_dtype)lower)) {
        return (int)tj_promote((tj_dtype)higher, (tj_dtype)lower);
    }
    return higher;
}

tj_dtype tj_typing_result(const struct tj_typing *t) {
    int scalar = t->scalar == TJ_SCALAR_INT ? TRACE_I64 : t->scalar == TJ_SCALAR_FLOAT ? TRACE_F32 : -1;
    return (tj_dtype)combine(t->dim, combine(t->zero, scalar));
}

// ---- shapes ---------------------------------------------------------------------------------------

bool tj_broadcast(const int64_t *a, size_t ra, const int64_t *b, size_t rb, int64_t *out, size_t *rout, size_t *bad) {
    size_t r = ra > rb ? ra : rb;
    for (size_t i = 1; i <= r; i++) {
        int64_t x = i <= ra ? a[ra - i] : 1, y = i <= rb ? b[rb - i] : 1;
        if (x != y && x != 1 && y != 1) {
            *bad = i;
            return false;
        }
        out[r - i] = x == 1 ? y : x;
    }
    *rout = r;
    return true;
}

bool tj_reshape_strides(const int64_t *dims, const int64_t *strides, size_t rank, const int64_t *to, size_t torank,
                        int64_t *out) {
    int64_t numel;
    if (!tj_numel(dims, rank, &numel)) {
        return false;
    }
    if (numel == 0) {
        tj_contiguous_strides(to, torank, out);
        return true;
    }
    // From the right: the largest run of dims with one stride (a chunk) has to be the product of some new dims.
    size_t j = torank;
    int64_t chunk = 1, base = rank ? strides[rank - 1] : 1, taken = 1;
    for (size_t i = rank; i-- > 0;) {
        chunk *= dims[i];
        int64_t next;
        if (i > 0 && (dims[i - 1] == 1 || (!__builtin_mul_overflow(chunk, base, &next) && strides[i - 1] == next))) {
            continue;
        }
        while (j > 0 && (taken < chunk || to[j - 1] == 1)) {
            out[j - 1] = tj_stride_times(taken, base);
            taken *= to[j - 1];
            j--;
        }
        if (taken != chunk) {
            return false;
        }
        if (i > 0) {
            chunk = taken = 1;
            base = strides[i - 1];
        }
    }
    while (j > 0) { // a 0-d tensor gets dims of 1
        j--;
        if (to[j] != 1) {
            return false;
        }
        out[j] = tj_stride_times(taken, base);
    }
    return true;
}

const char *tj_dims_text(char *buf, size_t cap, const int64_t *dims, size_t rank) {
    size_t n = 0;
    buf[n++] = '[';
    for (size_t i = 0; i < rank && n + 24 < cap; i++) {
        n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? ", " : "", (long long)dims[i]);
    }
    buf[n++] = ']';
    buf[n] = '\0';
    return buf;
}

bool tj_rec_dim(struct tj_rec *q, int64_t dim, size_t rank, size_t *out) {
    int64_t r = rank ? (int64_t)rank : 1; // a 0-d tensor takes dim 0 and -1
    if (dim < -r || dim >= r) {
        tj_op_fail(TRACE_ERR_ARGUMENT, q->op, q->loc, "dim %lld is out of range for rank %zu; use %lld to %lld",
                   (long long)dim, rank, (long long)-r, (long long)(r - 1));
        return false;
    }
    *out = (size_t)(dim < 0 ? dim + r : dim);
    return true;
}

bool tj_rec_shape(struct tj_rec *q, const int64_t *dims, size_t rank, tj_dtype d) {
    char text[TJ_DIMS_TEXT];
    int64_t numel;
    size_t bytes;
    if (rank > TJ_MAX_RANK) {
        tj_op_fail(TRACE_ERR_SHAPE, q->op, q->loc, "rank %zu of the result; at most %d dims are supported", rank,
                   TJ_MAX_RANK);
        return false;
    }
    if (rank && !dims) {
        tj_op_fail(TRACE_ERR_ARGUMENT, q->op, q->loc, "dims is NULL with %zu dims; a 0-d shape is TRACE_SCALAR", rank);
        return false;
    }
    for (size_t i = 0; i < rank; i++) {
        if (dims[i] < 0) {
            tj_op_fail(TRACE_ERR_SHAPE, q->op, q->loc, "shape %s: extent %lld of dim %zu is negative",
                       tj_dims_text(text, sizeof text, dims, rank), (long long)dims[i], i);
            return false;
        }
    }
    if (!tj_numel(dims, rank, &numel) || !tj_tensor_bytes(d, numel, &bytes)) {
        tj_op_fail(TRACE_ERR_SHAPE, q->op, q->loc, "shape %s of %s: its size overflows",
                   tj_dims_text(text, sizeof text, dims, rank), tj_dtypes[d].name);
        return false;
    }
    return true;
}

bool tj_rec_broadcast(struct tj_rec *q, tj_ref a, tj_ref b, int64_t *dims, size_t *rank) {
    const int64_t *da = tj_rec_dims(q, a), *db = tj_rec_dims(q, b);
    size_t ra = tj_rec_rank(q, a), rb = tj_rec_rank(q, b), bad;
    if (tj_broadcast(da, ra, db, rb, dims, rank, &bad)) {
        return true;
    }
    char ta[TJ_DIMS_TEXT], tb[TJ_DIMS_TEXT];
    tj_op_fail(
        TRACE_ERR_SHAPE, q->op, q->loc,
        "shapes %s and %s do not broadcast: dim %zu is %lld against %lld; make them equal or 1 (unsqueeze, expand)",
        tj_dims_text(ta, sizeof ta, da, ra), tj_dims_text(tb, sizeof tb, db, rb), (ra > rb ? ra : rb) - bad,
        (long long)da[ra - bad], (long long)db[rb - bad]);
    return false;
}

bool tj_rec_dims_mask(struct tj_rec *q, const int64_t *dims, size_t n, size_t rank, int64_t *mask) {
    *mask = 0;
    if (n == 0) {
        *mask = ((int64_t)1 << rank) - 1;
        return true;
    }
    if (!dims) {
        tj_op_fail(TRACE_ERR_ARGUMENT, q->op, q->loc, "dims is NULL with %zu dims; all dims are TRACE_SCALAR", n);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        size_t d;
        if (!tj_rec_dim(q, dims[i], rank, &d)) {
            return false;
        }
        if (*mask >> d & 1) {
            tj_op_fail(TRACE_ERR_ARGUMENT, q->op, q->loc, "dim %zu is given twice", d);
            return false;
        }
        *mask |= (int64_t)1 << d;
    }
    if (rank == 0) {
        *mask = 0;
    }
    return true;
}
