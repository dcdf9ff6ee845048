/* Calls a public op by its name. The plain functions are called, not the macros, so those are covered too. */
#define TRACE_NO_MACROS
#include "op_call.h"

#include <math.h>
#include <string.h>

typedef trace_tensor T;

/* ---- attributes -------------------------------------------------------------------------------------------------- */

const struct op_attr *op_attr_find(const struct op_args *a, const char *name) {
    for (size_t i = 0; i < a->nattr; i++)
        if (!strcmp(a->attr[i].name, name))
            return &a->attr[i];
    return NULL;
}

int64_t op_attr_i(const struct op_args *a, const char *name, int64_t otherwise) {
    const struct op_attr *at = op_attr_find(a, name);
    if (!at || !at->n)
        return otherwise;
    return at->kind == 'i' ? at->i[0] : (int64_t)at->f[0];
}

double op_attr_f(const struct op_args *a, const char *name, double otherwise) {
    const struct op_attr *at = op_attr_find(a, name);
    if (!at || !at->n)
        return otherwise;
    return at->kind == 'i' ? (double)at->i[0] : at->f[0];
}

static const int64_t *list(const struct op_args *a, const char *name, size_t *n) {
    const struct op_attr *at = op_attr_find(a, name);
    *n = at && at->kind == 'i' ? at->n : 0;
    return *n ? at->i : NULL;
}

/* Two values, one value for both, or NULL: the op's default. */
static const int64_t *pair(const struct op_args *a, const char *name, int64_t store[2]) {
    size_t n;
    const int64_t *v = list(a, name, &n);
    if (!n)
        return NULL;
    store[0] = v[0];
    store[1] = n > 1 ? v[1] : v[0];
    return store;
}

bool op_dtype(const char *name, enum trace_dtype *d) {
    for (int i = TRACE_BOOL; i <= TRACE_F64; i++)
        if (!strcmp(trace_dtype_name((enum trace_dtype)i), name)) {
            *d = (enum trace_dtype)i;
            return true;
        }
    return false;
}

static enum trace_dtype dtype_attr(const struct op_args *a) {
    const struct op_attr *at = op_attr_find(a, "dtype");
    enum trace_dtype d = TRACE_F32;
    if (at && at->kind == 's')
        (void)op_dtype(at->s, &d);
    return d;
}

static T *in(const struct op_args *a, size_t i) { return i < a->nin ? a->in[i] : TRACE_NONE; }

/* ---- ops with arguments of their own -------------------------------------------------------------------------- */

#define SPECIAL(name) static size_t call_##name(const struct op_args *a, T **out)
#define ONE(expr) return out[0] = (expr), 1

SPECIAL(gelu) {
    const struct op_attr *at = op_attr_find(a, "approximate");
    bool tanh_form = at && (at->kind == 's' ? !strcmp(at->s, "tanh") : at->n && at->i[0]);
    ONE(trace_gelu(in(a, 0), tanh_form ? TRACE_GELU_TANH : TRACE_GELU_NONE));
}
SPECIAL(softplus) { ONE(trace_softplus(in(a, 0), op_attr_f(a, "beta", 1), op_attr_f(a, "threshold", 20))); }
SPECIAL(to) { ONE(trace_to(in(a, 0), dtype_attr(a))); }
SPECIAL(where) {
    const struct op_attr *s = op_attr_find(a, "scalar");
    if (!s)
        ONE(trace_where(in(a, 0), in(a, 1), in(a, 2)));
    ONE(s->kind == 'i' ? trace_where_i(in(a, 0), in(a, 1), s->i[0]) : trace_where_f(in(a, 0), in(a, 1), s->f[0]));
}
SPECIAL(masked_fill) {
    const struct op_attr *s = op_attr_find(a, "scalar");
    if (!s)
        return 0;
    ONE(s->kind == 'i' ? trace_masked_fill_i(in(a, 0), in(a, 1), s->i[0])
                       : trace_masked_fill_f(in(a, 0), in(a, 1), s->f[0]));
}
SPECIAL(clamp) {
    const struct op_attr *lo = op_attr_find(a, "min"), *hi = op_attr_find(a, "max");
    if (!lo && !hi)
        ONE(trace_clamp(in(a, 0), in(a, 1), in(a, 2)));
    if ((!lo || lo->kind == 'i') && (!hi || hi->kind == 'i'))
        ONE(trace_clamp_i(in(a, 0), lo ? lo->i[0] : INT64_MIN, hi ? hi->i[0] : INT64_MAX));
    ONE(trace_clamp_f(in(a, 0), op_attr_f(a, "min", -INFINITY), op_attr_f(a, "max", INFINITY)));
}
SPECIAL(fill_) {
    const struct op_attr *s = op_attr_find(a, "scalar");
    if (!s)
        return 0;
    ONE(s->kind == 'i' ? trace_fill_i_(in(a, 0), s->i[0]) : trace_fill_f_(in(a, 0), s->f[0]));
}
SPECIAL(index_copy_) { ONE(trace_index_copy_(in(a, 0), op_attr_i(a, "dim", 0), in(a, 1), in(a, 2))); }
SPECIAL(var) {
    size_t n;
    const int64_t *d = list(a, "dims", &n);
    ONE(trace_var(in(a, 0), d, n, op_attr_i(a, "correction", 1), op_attr_i(a, "keepdim", 0) != 0));
}
SPECIAL(argmax) { ONE(trace_argmax(in(a, 0), op_attr_i(a, "dim", TRACE_ALL_DIMS), op_attr_i(a, "keepdim", 0) != 0)); }
SPECIAL(argmin) { ONE(trace_argmin(in(a, 0), op_attr_i(a, "dim", TRACE_ALL_DIMS), op_attr_i(a, "keepdim", 0) != 0)); }
SPECIAL(softmax) { ONE(trace_softmax(in(a, 0), op_attr_i(a, "dim", -1))); }
SPECIAL(log_softmax) { ONE(trace_log_softmax(in(a, 0), op_attr_i(a, "dim", -1))); }
SPECIAL(layer_norm) {
    size_t n;
    const int64_t *d = list(a, "normalized_shape", &n);
    ONE(trace_layer_norm(in(a, 0), d, n, in(a, 1), in(a, 2), op_attr_f(a, "eps", 1e-5)));
}
SPECIAL(rms_norm) { ONE(trace_rms_norm(in(a, 0), in(a, 1), op_attr_f(a, "eps", 1e-6))); }
/* operands x, mean, var, weight, bias */
SPECIAL(batch_norm) {
    ONE(trace_batch_norm(in(a, 0), in(a, 3), in(a, 4), in(a, 1), in(a, 2), op_attr_f(a, "eps", 1e-5)));
}
SPECIAL(cross_entropy) {
    ONE(trace_cross_entropy(in(a, 0), in(a, 1), in(a, 2), (int)op_attr_i(a, "reduction", TRACE_REDUCTION_MEAN),
                            op_attr_i(a, "ignore_index", -100), op_attr_f(a, "label_smoothing", 0)));
}
#define WITH_DIMS(name)                                                                                                \
    SPECIAL(name) {                                                                                                    \
        size_t n;                                                                                                      \
        const int64_t *d = list(a, "dims", &n);                                                                        \
        ONE(trace_##name(in(a, 0), d, n));                                                                             \
    }
WITH_DIMS(reshape)
WITH_DIMS(permute)
WITH_DIMS(expand)
WITH_DIMS(flip)
SPECIAL(flatten) { ONE(trace_flatten(in(a, 0), op_attr_i(a, "start_dim", 0), op_attr_i(a, "end_dim", -1))); }
SPECIAL(transpose) { ONE(trace_transpose(in(a, 0), op_attr_i(a, "dim0", 0), op_attr_i(a, "dim1", 1))); }
SPECIAL(narrow) {
    ONE(trace_narrow(in(a, 0), op_attr_i(a, "dim", 0), op_attr_i(a, "start", 0), op_attr_i(a, "length", 0)));
}
SPECIAL(select) { ONE(trace_select(in(a, 0), op_attr_i(a, "dim", 0), op_attr_i(a, "index", 0))); }
SPECIAL(slice) {
    ONE(trace_slice(in(a, 0), op_attr_i(a, "dim", 0), op_attr_i(a, "start", 0), op_attr_i(a, "end", INT64_MAX),
                    op_attr_i(a, "step", 1)));
}
SPECIAL(squeeze) { ONE(trace_squeeze(in(a, 0), op_attr_i(a, "dim", TRACE_ALL_DIMS))); }
SPECIAL(unsqueeze) { ONE(trace_unsqueeze(in(a, 0), op_attr_i(a, "dim", 0))); }
SPECIAL(as_strided) {
    size_t n, m;
    const int64_t *d = list(a, "dims", &n), *s = list(a, "strides", &m);
    if (n != m)
        return 0;
    ONE(trace_as_strided(in(a, 0), d, s, n, op_attr_i(a, "offset", 0)));
}
SPECIAL(diagonal) {
    ONE(trace_diagonal(in(a, 0), op_attr_i(a, "offset", 0), op_attr_i(a, "dim0", 0), op_attr_i(a, "dim1", 1)));
}
SPECIAL(unfold) {
    ONE(trace_unfold(in(a, 0), op_attr_i(a, "dim", 0), op_attr_i(a, "size", 1), op_attr_i(a, "step", 1)));
}
SPECIAL(cat) { ONE(trace_cat(a->in, a->nin, op_attr_i(a, "dim", 0))); }
SPECIAL(stack) { ONE(trace_stack(a->in, a->nin, op_attr_i(a, "dim", 0))); }
SPECIAL(pad) {
    size_t n;
    const int64_t *p = list(a, "pad", &n);
    const struct op_attr *m = op_attr_find(a, "mode");
    int mode = m && !strcmp(m->s, "reflect")     ? TRACE_PAD_REFLECT
               : m && !strcmp(m->s, "replicate") ? TRACE_PAD_REPLICATE
                                                 : TRACE_PAD_CONSTANT;
    ONE(trace_pad(in(a, 0), p, n, mode, op_attr_f(a, "value", 0)));
}
SPECIAL(gather) { ONE(trace_gather(in(a, 0), op_attr_i(a, "dim", 0), in(a, 1))); }
SPECIAL(index_select) { ONE(trace_index_select(in(a, 0), op_attr_i(a, "dim", 0), in(a, 1))); }
SPECIAL(linear) { ONE(trace_linear(in(a, 0), in(a, 1), in(a, 2))); }
SPECIAL(conv2d) {
    int64_t s[2], p[2], d[2];
    ONE(trace_conv2d(in(a, 0), in(a, 1), in(a, 2), pair(a, "stride", s), pair(a, "padding", p), pair(a, "dilation", d),
                     op_attr_i(a, "groups", 1)));
}
SPECIAL(scaled_dot_product_attention) {
    ONE(trace_scaled_dot_product_attention(in(a, 0), in(a, 1), in(a, 2), in(a, 3), op_attr_i(a, "is_causal", 0) != 0,
                                           op_attr_f(a, "scale", 0), op_attr_i(a, "gqa", 0) != 0));
}
SPECIAL(max_pool2d) {
    int64_t k[2], s[2], p[2], d[2];
    ONE(trace_max_pool2d(in(a, 0), pair(a, "kernel_size", k), pair(a, "stride", s), pair(a, "padding", p),
                         pair(a, "dilation", d), op_attr_i(a, "ceil_mode", 0) != 0));
}
SPECIAL(avg_pool2d) {
    int64_t k[2], s[2], p[2];
    ONE(trace_avg_pool2d(in(a, 0), pair(a, "kernel_size", k), pair(a, "stride", s), pair(a, "padding", p),
                         op_attr_i(a, "ceil_mode", 0) != 0, op_attr_i(a, "count_include_pad", 1) != 0,
                         op_attr_i(a, "divisor_override", 0)));
}
SPECIAL(gru_cell) { ONE(trace_gru_cell(in(a, 0), in(a, 1), in(a, 2), in(a, 3), in(a, 4), in(a, 5))); }
SPECIAL(arange) {
    ONE(trace_arange(a->ctx, op_attr_i(a, "start", 0), op_attr_i(a, "end", 0), op_attr_i(a, "step", 1), dtype_attr(a)));
}
SPECIAL(full) {
    size_t n;
    const int64_t *d = list(a, "dims", &n);
    const struct op_attr *v = op_attr_find(a, "value");
    if (!v)
        return 0;
    ONE(v->kind == 'i' ? trace_full_i(a->ctx, d, n, v->i[0], dtype_attr(a))
                       : trace_full_f(a->ctx, d, n, v->f[0], dtype_attr(a)));
}
SPECIAL(zeros) {
    size_t n;
    const int64_t *d = list(a, "dims", &n);
    ONE(trace_zeros(a->ctx, d, n, dtype_attr(a)));
}
SPECIAL(ones) {
    size_t n;
    const int64_t *d = list(a, "dims", &n);
    ONE(trace_ones(a->ctx, d, n, dtype_attr(a)));
}
/* Pieces of split and chunk: n pieces of each elements or fewer. */
static size_t pieces(const struct op_args *a, int64_t each, int64_t *dim) {
    *dim = op_attr_i(a, "dim", 0);
    int64_t n = trace_size(in(a, 0), *dim);
    if (n < 0 || each < 1 || (n + each - 1) / each > OP_MAX_OUT)
        return 0;
    return n ? (size_t)((n + each - 1) / each) : 1;
}
SPECIAL(split) {
    int64_t dim, each = op_attr_i(a, "split_size", 1);
    size_t n = pieces(a, each, &dim);
    if (n && trace_split_at(in(a, 0), each, dim, out, n, __FILE__, __LINE__) != TRACE_OK)
        memset(out, 0, n * sizeof *out);
    return n;
}
SPECIAL(chunk) {
    int64_t dim = op_attr_i(a, "dim", 0), chunks = op_attr_i(a, "chunks", 1), extent = trace_size(in(a, 0), dim);
    if (chunks < 1 || extent < 0)
        return 0;
    size_t n = pieces(a, extent ? (extent + chunks - 1) / chunks : 1, &dim);
    if (n && trace_chunk_at(in(a, 0), chunks, dim, out, n, __FILE__, __LINE__) != TRACE_OK)
        memset(out, 0, n * sizeof *out);
    return n;
}

/* ---- the table ------------------------------------------------------------------------------------------------ */

#define U(n)                                                                                                           \
    { .name = #n, .shape = OP_UNARY, .unary = trace_##n }
#define B(n)                                                                                                           \
    { .name = #n, .shape = OP_BINARY, .binary = trace_##n }
#define BFI(n)                                                                                                         \
    { .name = #n, .shape = OP_BINARY, .binary = trace_##n, .with_f = trace_##n##_f, .with_i = trace_##n##_i }
#define BFI_(n)                                                                                                        \
    { .name = #n "_", .shape = OP_BINARY, .binary = trace_##n##_, .with_f = trace_##n##_f_, .with_i = trace_##n##_i_ }
#define BI(n)                                                                                                          \
    { .name = #n, .shape = OP_BINARY, .binary = trace_##n, .with_i = trace_##n##_i }
#define R(n)                                                                                                           \
    { .name = #n, .shape = OP_REDUCE, .reduce = trace_##n }
#define S(n)                                                                                                           \
    { .name = #n, .shape = OP_SPECIAL, .special = call_##n }
const struct op_entry op_table[] = {
    U(neg),
    U(abs),
    U(sign),
    U(floor),
    U(ceil),
    U(trunc),
    U(round),
    U(frac),
    U(reciprocal),
    U(square),
    U(sqrt),
    U(rsqrt),
    U(exp),
    U(log),
    U(sin),
    U(cos),
    U(tanh),
    U(erf),
    U(sigmoid),
    U(relu),
    U(relu6),
    U(silu),
    U(logical_not),
    U(bitwise_not),
    U(isnan),
    U(isinf),
    U(contiguous),
    U(clone),
    BFI(add),
    BFI(sub),
    BFI(mul),
    BFI(div),
    BFI(floor_divide),
    BFI(remainder),
    BFI(fmod),
    BFI(pow),
    B(maximum),
    B(minimum),
    BFI(eq),
    BFI(ne),
    BFI(lt),
    BFI(le),
    BFI(gt),
    BFI(ge),
    B(logical_and),
    B(logical_or),
    B(logical_xor),
    BI(bitwise_and),
    BI(bitwise_or),
    BI(bitwise_xor),
    {.name = "rsub", .shape = OP_BINARY, .with_f = trace_rsub_f, .with_i = trace_rsub_i},
    BFI_(add),
    BFI_(sub),
    BFI_(mul),
    BFI_(div),
    B(copy_),
    B(matmul),
    B(bmm),
    B(embedding),
    R(sum),
    R(mean),
    R(amax),
    R(amin),
    R(any),
    R(all),
    S(gelu),
    S(softplus),
    S(to),
    S(where),
    S(masked_fill),
    S(clamp),
    S(fill_),
    S(index_copy_),
    S(var),
    S(argmax),
    S(argmin),
    S(softmax),
    S(log_softmax),
    S(layer_norm),
    S(rms_norm),
    S(batch_norm),
    S(cross_entropy),
    S(reshape),
    S(permute),
    S(expand),
    S(flip),
    S(flatten),
    S(transpose),
    S(narrow),
    S(select),
    S(slice),
    S(squeeze),
    S(unsqueeze),
    S(as_strided),
    S(diagonal),
    S(unfold),
    S(cat),
    S(stack),
    S(pad),
    S(gather),
    S(index_select),
    S(linear),
    S(conv2d),
    S(scaled_dot_product_attention),
    S(max_pool2d),
    S(avg_pool2d),
    S(gru_cell),
    S(arange),
    S(full),
    S(zeros),
    S(ones),
    S(split),
    S(chunk),
};
const size_t op_table_size = sizeof op_table / sizeof op_table[0];

const struct op_entry *op_find(const char *name) {
    for (size_t i = 0; i < op_table_size; i++)
        if (!strcmp(op_table[i].name, name))
            return &op_table[i];
    return NULL;
}

bool op_in_place(const char *name) {
    size_t n = strlen(name);
    return n && name[n - 1] == '_';
}

size_t op_call(const struct op_entry *e, const struct op_args *a, T *out[OP_MAX_OUT]) {
    const struct op_attr *s = op_attr_find(a, "scalar");
    size_t n;
    switch (e->shape) {
    case OP_UNARY: ONE(e->unary(in(a, 0)));
    case OP_BINARY:
        if (!s)
            return e->binary ? (out[0] = e->binary(in(a, 0), in(a, 1)), 1) : 0;
        if (s->kind == 'i')
            return e->with_i ? (out[0] = e->with_i(in(a, 0), s->i[0]), 1) : 0;
        return e->with_f ? (out[0] = e->with_f(in(a, 0), s->f[0]), 1) : 0;
    case OP_REDUCE: {
        const int64_t *d = list(a, "dims", &n);
        ONE(e->reduce(in(a, 0), d, n, op_attr_i(a, "keepdim", 0) != 0));
    }
    case OP_SPECIAL: return e->special(a, out);
    }
    return 0;
}

/* ---- elements ------------------------------------------------------------------------------------------------- */

size_t op_dtype_size(enum trace_dtype d) {
    switch (d) {
    case TRACE_BOOL:
    case TRACE_U8: return 1;
    case TRACE_F16:
    case TRACE_BF16: return 2;
    case TRACE_I32:
    case TRACE_F32: return 4;
    case TRACE_I64:
    case TRACE_F64: return 8;
    }
    return 0;
}

static double half_to_double(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? (double)NAN : (double)INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

/* Rounds to a float of mant fraction bits, exponents emin (smallest normal) to emax. */
static double round_to(double v, int mant, int emin, int emax) {
    if (v == 0 || !isfinite(v))
        return v;
    int e;
    (void)frexp(v, &e);
    e = e - 1 < emin ? emin : e - 1;
    double r = ldexp(nearbyint(ldexp(v, mant - e)), e - mant);
    return fabs(r) >= ldexp(1, emax + 1) ? copysign(INFINITY, v) : r;
}

static uint16_t double_to_half(double v) {
    uint16_t s = signbit(v) ? 0x8000 : 0;
    if (isnan(v))
        return 0x7e00;
    v = fabs(round_to(v, 10, -14, 15));
    if (isinf(v))
        return (uint16_t)(s | 0x7c00);
    if (v < ldexp(1, -14))
        return (uint16_t)(s | (uint16_t)ldexp(v, 24));
    int e;
    double m = frexp(v, &e);
    return (uint16_t)(s | (uint16_t)((e + 14) << 10) | ((uint16_t)ldexp(m, 11) & 1023));
}

double op_load(enum trace_dtype d, const void *p, size_t i) {
    uint32_t w;
    float f;
    switch (d) {
    case TRACE_BOOL:
    case TRACE_U8: return ((const uint8_t *)p)[i];
    case TRACE_I32: return ((const int32_t *)p)[i];
    case TRACE_I64: return (double)((const int64_t *)p)[i];
    case TRACE_F16: return half_to_double(((const uint16_t *)p)[i]);
    case TRACE_BF16:
        w = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &w, sizeof f);
        return f;
    case TRACE_F32: return ((const float *)p)[i];
    case TRACE_F64: return ((const double *)p)[i];
    }
    return 0;
}

void op_store(enum trace_dtype d, void *p, size_t i, double v) {
    float f;
    uint32_t w;
    switch (d) {
    case TRACE_BOOL: ((uint8_t *)p)[i] = v != 0; break;
    case TRACE_U8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case TRACE_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case TRACE_I64: ((int64_t *)p)[i] = (int64_t)v; break;
    case TRACE_F16: ((uint16_t *)p)[i] = double_to_half(v); break;
    case TRACE_BF16:
        f = isnan(v) ? NAN : (float)round_to(v, 7, -126, 127);
        memcpy(&w, &f, sizeof w);
        ((uint16_t *)p)[i] = (uint16_t)(w >> 16);
        break;
    case TRACE_F32: ((float *)p)[i] = (float)v; break;
    case TRACE_F64: ((double *)p)[i] = v; break;
    }
}
