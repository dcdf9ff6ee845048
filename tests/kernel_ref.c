// tests/kernel_ref.c: see kernel_ref.h.
#include "kernel_ref.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../trace/math.h"

// ---- building kernels -----------------------------------------------------------------------------------------------

void kb_init(struct kb *b, enum tj_kernel_kind kind, int ndims, int npar, int npasses, const int64_t *extents) {
    memset(b, 0, sizeof *b);
    b->k.kind = (uint8_t)kind;
    b->k.ndims = (uint8_t)ndims;
    b->k.npar = (uint8_t)npar;
    b->k.npasses = (uint8_t)npasses;
    b->k.ins = b->ins;
    b->k.access = b->acc;
    b->k.name = "test";
    b->ivals[1] = 1;
    b->k.nivals = 2;
    for (int d = 0; d < ndims; d++) {
        b->k.extent[d] = b->k.nivals;
        b->ivals[b->k.nivals++] = extents[d];
    }
}
uint16_t kb_ival(struct kb *b, int64_t v) {
    if (v == 0 || v == 1) {
        return (uint16_t)v;
    }
    b->ivals[b->k.nivals] = v;
    return b->k.nivals++;
}
tj_kv kb_add(struct kb *b, int op, int dtype, int64_t imm, int nin, ...) {
    struct tj_kins *s = &b->ins[b->k.nins];
    *s = (struct tj_kins){.op = (uint16_t)op, .dtype = (uint8_t)dtype, .pass = b->pass, .level = b->level, .imm = imm};
    va_list ap;
    va_start(ap, nin);
    for (int i = 0; i < 6; i++) {
        s->in[i] = i < nin ? (tj_kv)va_arg(ap, int) : TJ_KNONE;
    }
    va_end(ap);
    return b->k.nins++;
}
// A value as it is to be used in the current pass: what an earlier pass computed is computed again unless it was kept.
tj_kv kb_again(struct kb *b, tj_kv v) {
    if (v == TJ_KNONE) {
        return v;
    }
    struct tj_kins *s = &b->ins[v];
    if (s->level == TJ_ROWLEVEL || s->pass == b->pass || s->flags & TJ_KF_CACHE) {
        return v;
    }
    struct tj_kins copy = *s;
    copy.pass = b->pass;
    for (int i = 0; i < 6; i++) {
        copy.in[i] = kb_again(b, copy.in[i]);
    }
    b->ins[b->k.nins] = copy;
    return b->k.nins++;
}
size_t kb_width(int dtype) { return tj_elem_bytes((tj_dtype)dtype); }

// A buffer of `elems` elements that ends at an unreadable page.
int kb_buffer(struct kb *b, int dtype, int64_t elems) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)elems * kb_width(dtype);
    size_t body = (bytes + page - 1) / page * page + page;
    struct buffer *f = &b->buf[b->k.nbufs];
    f->map_bytes = body + page;
    f->map = mmap(NULL, f->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(f->map != MAP_FAILED, "mmap");
    MUST(!mprotect(f->map + body, page, PROT_NONE), "mprotect");
    f->bytes = bytes;
    f->p = f->map + body - bytes;
    memset(f->map, 0xa5, body - bytes); // a guard below, checked
    b->buf_dtype[b->k.nbufs] = (uint8_t)dtype;
    return b->k.nbufs++;
}
bool kb_guard_intact(const struct buffer *f) {
    for (const unsigned char *p = f->p - 1; p >= f->map && p > f->p - 4096; p--) {
        if (*p != 0xa5) {
            return false;
        }
    }
    return true;
}
void kb_free(struct kb *b) {
    for (int i = 0; i < b->k.nbufs; i++) {
        munmap(b->buf[i].map, b->buf[i].map_bytes);
    }
}
// Access over all dims with the given strides.
int kb_access(struct kb *b, int buf, const int64_t *strides, int64_t offset) {
    struct tj_kaccess *a = &b->acc[b->k.naccess];
    memset(a, 0, sizeof *a);
    a->buf = (uint16_t)buf;
    a->dtype = buf >= 0 ? b->buf_dtype[buf] : TRACE_I64;
    a->offset = kb_ival(b, offset);
    for (int d = 0; d < b->k.ndims; d++) {
        a->stride[d] = kb_ival(b, strides[d]);
    }
    int64_t v = strides[b->k.ndims - 1];
    a->vec = v == 0 ? TJ_VEC_ZERO : v == 1 ? TJ_VEC_UNIT : TJ_VEC_STRIDED;
    return b->k.naccess++;
}
int64_t kb_extent(const struct kb *b, int d) { return b->ivals[b->k.extent[d]]; }
void kb_contiguous(const struct kb *b, int64_t *strides) {
    int64_t s = 1;
    for (int d = b->k.ndims; d-- > 0;) {
        strides[d] = s;
        s *= kb_extent(b, d);
    }
}
int64_t kb_elements(const struct kb *b) {
    int64_t n = 1;
    for (int d = 0; d < b->k.ndims; d++) {
        n *= kb_extent(b, d);
    }
    return n;
}
int kb_compute(int dtype) { return dtype == TRACE_F16 || dtype == TRACE_BF16 ? TRACE_F32 : dtype; }
// Contiguous input of all dims.
tj_kv kb_input(struct kb *b, int dtype) {
    int64_t st[TJ_KDIMS];
    kb_contiguous(b, st);
    int buf = kb_buffer(b, dtype, kb_elements(b));
    return kb_add(b, TJ_KOP_LOAD, dtype, kb_access(b, buf, st, 0), 0);
}
tj_kv kb_output(struct kb *b, int dtype, tj_kv v) {
    int64_t st[TJ_KDIMS];
    kb_contiguous(b, st);
    int buf = kb_buffer(b, dtype, kb_elements(b));
    return kb_add(b, TJ_KOP_STORE, 0, kb_access(b, buf, st, 0), 1, v);
}
static tj_kv kb_row(struct kb *b, tj_kv v) { // the same for all rows
    if (b->k.kind != TJ_K_POINTWISE) {
        b->ins[v].level = TJ_ROWLEVEL;
        b->ins[v].pass = 0;
    }
    return v;
}
tj_kv kb_const(struct kb *b, int dtype, double v) {
    int64_t imm = (int64_t)v;
    if (tj_is_float((tj_dtype)dtype)) {
        memcpy(&imm, &v, 8);
    }
    return kb_row(b, kb_add(b, TJ_KOP_CONST, dtype, imm, 0));
}
tj_kv kb_sval(struct kb *b, int dtype, double v) {
    b->svals[b->k.nsvals] = (union tj_scalar){.i = (int64_t)v};
    if (tj_is_float((tj_dtype)dtype)) {
        b->svals[b->k.nsvals].f = dtype == TRACE_F64 ? v : (double)(float)v;
    }
    return kb_row(b, kb_add(b, TJ_KOP_SVAL, dtype, b->k.nsvals++, 0));
}

// ---- scalar evaluation ----------------------------------------------------------------------------------------------

int kb_class(int dtype) { return dtype == TRACE_F64 ? 'd' : tj_is_float((tj_dtype)dtype) ? 'f' : 'i'; }
static int64_t wrap(int dtype, int64_t v) {
    return dtype == TRACE_I32 ? (int32_t)v : dtype == TRACE_U8 ? (uint8_t)v : dtype == TRACE_BOOL ? v != 0 : v;
}
struct sv kb_load_value(const unsigned char *p, int dtype) {
    struct sv v = {.known = true};
    switch (dtype) {
    case TRACE_BOOL: v.i = *p != 0; break;
    case TRACE_U8: v.i = *p; break;
    case TRACE_I32: v.i = *(const int32_t *)p; break;
    case TRACE_I64: memcpy(&v.i, p, 8); break;
    case TRACE_F16: v.f = tj_f16_to_f32(*(const uint16_t *)p); break;
    case TRACE_BF16: v.f = tj_bf16_to_f32(*(const uint16_t *)p); break;
    case TRACE_F32: memcpy(&v.f, p, 4); break;
    default: memcpy(&v.d, p, 8);
    }
    return v;
}
void kb_store_value(unsigned char *p, int dtype, struct sv v) {
    uint16_t h;
    int32_t w;
    switch (dtype) {
    case TRACE_BOOL: *p = v.i != 0; break;
    case TRACE_U8: *p = (unsigned char)v.i; break;
    case TRACE_I32:
        w = (int32_t)v.i;
        memcpy(p, &w, 4);
        break;
    case TRACE_I64: memcpy(p, &v.i, 8); break;
    case TRACE_F16:
        h = tj_f32_to_f16(v.f);
        memcpy(p, &h, 2);
        break;
    case TRACE_BF16:
        h = tj_f32_to_bf16(v.f);
        memcpy(p, &h, 2);
        break;
    case TRACE_F32: memcpy(p, &v.f, 4); break;
    default: memcpy(p, &v.d, 8);
    }
}

static bool float_fn(int op, float x, float y, float z, float *r) {
    switch (op) {
    case TJ_OP_NEG: *r = -x; return true;
    case TJ_OP_ABS: *r = tj_abs_f32(x); return true;
    case TJ_OP_SIGN: *r = tj_sign_f32(x); return true;
    case TJ_OP_FLOOR: *r = floorf(x); return true;
    case TJ_OP_CEIL: *r = ceilf(x); return true;
    case TJ_OP_TRUNC: *r = truncf(x); return true;
    case TJ_OP_ROUND: *r = rintf(x); return true;
    case TJ_OP_FRAC: *r = tj_frac_f32(x); return true;
    case TJ_OP_RECIPROCAL: *r = 1.0f / x; return true;
    case TJ_OP_SQUARE: *r = x * x; return true;
    case TJ_OP_CUBE: *r = (x * x) * x; return true;
    case TJ_OP_RSQUARE: *r = 1.0f / (x * x); return true;
    case TJ_OP_SQRT: *r = sqrtf(x); return true;
    case TJ_OP_RSQRT: *r = 1.0f / sqrtf(x); return true;
    case TJ_OP_EXP: *r = tj_exp_f32(x); return true;
    case TJ_OP_LOG: *r = tj_log_f32(x); return true;
    case TJ_OP_SIN: *r = tj_sin_f32(x); return true;
    case TJ_OP_COS: *r = tj_cos_f32(x); return true;
    case TJ_OP_TANH: *r = tj_tanh_f32(x); return true;
    case TJ_OP_ERF: *r = tj_erf_f32(x); return true;
    case TJ_OP_SIGMOID: *r = tj_sigmoid_f32(x); return true;
    case TJ_OP_RELU: *r = tj_relu_f32(x); return true;
    case TJ_OP_GELU: *r = tj_gelu_f32(x); return true;
    case TJ_OP_GELU_TANH: *r = tj_gelu_tanh_f32(x); return true;
    case TJ_OP_SILU: *r = tj_silu_f32(x); return true;
    case TJ_OP_ADD: *r = x + y; return true;
    case TJ_OP_SUB: *r = x - y; return true;
    case TJ_OP_MUL: *r = x * y; return true;
    case TJ_OP_DIV: *r = x / y; return true;
    case TJ_OP_FLOOR_DIVIDE: *r = tj_floor_divide_f32(x, y); return true;
    case TJ_OP_REMAINDER: *r = tj_remainder_f32(x, y); return true;
    case TJ_OP_FMOD: *r = fmodf(x, y); return true;
    case TJ_OP_POW: *r = tj_pow_f32(x, y); return true;
    case TJ_OP_MAXIMUM: *r = tj_max_f32(x, y); return true;
    case TJ_OP_MINIMUM: *r = tj_min_f32(x, y); return true;
    case TJ_OP_CLAMP: *r = tj_min_f32(tj_max_f32(x, y), z); return true;
    case TJ_OP_SOFTPLUS: *r = tj_softplus_f32(x, y, z); return true;
    case TJ_KOP_FMA: *r = fmaf(x, y, z); return true;
    default: return false;
    }
}
static bool double_fn(int op, double x, double y, double z, double *r) {
    switch (op) {
    case TJ_OP_NEG: *r = -x; return true;
    case TJ_OP_ABS: *r = tj_abs_f64(x); return true;
    case TJ_OP_SIGN: *r = tj_sign_f64(x); return true;
    case TJ_OP_FLOOR: *r = floor(x); return true;
    case TJ_OP_CEIL: *r = ceil(x); return true;
    case TJ_OP_TRUNC: *r = trunc(x); return true;
    case TJ_OP_ROUND: *r = rint(x); return true;
    case TJ_OP_FRAC: *r = tj_frac_f64(x); return true;
    case TJ_OP_RECIPROCAL: *r = 1.0 / x; return true;
    case TJ_OP_SQUARE: *r = x * x; return true;
    case TJ_OP_CUBE: *r = (x * x) * x; return true;
    case TJ_OP_RSQUARE: *r = 1.0 / (x * x); return true;
    case TJ_OP_SQRT: *r = sqrt(x); return true;
    case TJ_OP_RSQRT: *r = 1.0 / sqrt(x); return true;
    case TJ_OP_EXP: *r = exp(x); return true;
    case TJ_OP_LOG: *r = log(x); return true;
    case TJ_OP_SIN: *r = sin(x); return true;
    case TJ_OP_COS: *r = cos(x); return true;
    case TJ_OP_TANH: *r = tanh(x); return true;
    case TJ_OP_ERF: *r = erf(x); return true;
    case TJ_OP_SIGMOID: *r = tj_sigmoid_f64(x); return true;
    case TJ_OP_RELU: *r = tj_relu_f64(x); return true;
    case TJ_OP_GELU: *r = tj_gelu_f64(x); return true;
    case TJ_OP_GELU_TANH: *r = tj_gelu_tanh_f64(x); return true;
    case TJ_OP_SILU: *r = tj_silu_f64(x); return true;
    case TJ_OP_ADD: *r = x + y; return true;
    case TJ_OP_SUB: *r = x - y; return true;
    case TJ_OP_MUL: *r = x * y; return true;
    case TJ_OP_DIV: *r = x / y; return true;
    case TJ_OP_FLOOR_DIVIDE: *r = tj_floor_divide_f64(x, y); return true;
    case TJ_OP_REMAINDER: *r = tj_remainder_f64(x, y); return true;
    case TJ_OP_FMOD: *r = fmod(x, y); return true;
    case TJ_OP_POW: *r = pow(x, y); return true;
    case TJ_OP_MAXIMUM: *r = tj_max_f64(x, y); return true;
    case TJ_OP_MINIMUM: *r = tj_min_f64(x, y); return true;
    case TJ_OP_CLAMP: *r = tj_min_f64(tj_max_f64(x, y), z); return true;
    case TJ_OP_SOFTPLUS: *r = tj_softplus_f64(x, y, z); return true;
    case TJ_KOP_FMA: *r = fma(x, y, z); return true;
    default: return false;
    }
}
static int64_t int_pow(int64_t x, int64_t y) {
    if (y < 0) {
        return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    }
    return tj_pow_i64(x, y);
}
static bool int_fn(int op, int dtype, int64_t x, int64_t y, int64_t z, int64_t *r) {
    uint64_t a = (uint64_t)x, b = (uint64_t)y;
    bool flag = dtype == TRACE_BOOL;
    switch (op) {
    case TJ_OP_NEG: *r = (int64_t)(0 - a); return true;
    case TJ_OP_ABS: *r = x < 0 ? (int64_t)(0 - a) : x; return true;
    case TJ_OP_SIGN: *r = (x > 0) - (x < 0); return true;
    case TJ_OP_FLOOR:
    case TJ_OP_CEIL:
    case TJ_OP_TRUNC:
    case TJ_OP_ROUND: *r = x; return true;
    case TJ_OP_SQUARE: *r = (int64_t)(a * a); return true;
    case TJ_OP_CUBE: *r = (int64_t)(a * a * a); return true;
    case TJ_OP_RELU: *r = x > 0 ? x : 0; return true;
    case TJ_OP_BITWISE_NOT: *r = flag ? !x : ~x; return true;
    case TJ_OP_ADD: *r = flag ? x | y : (int64_t)(a + b); return true;
    case TJ_OP_SUB: *r = (int64_t)(a - b); return true;
    case TJ_OP_MUL: *r = (int64_t)(a * b); return true;
    case TJ_OP_FLOOR_DIVIDE: *r = y ? tj_floor_divide_i64(x, y) : 0; return true;
    case TJ_OP_REMAINDER: *r = y ? tj_remainder_i64(x, y) : 0; return true;
    case TJ_OP_FMOD: *r = y ? tj_fmod_i64(x, y) : 0; return true;
    case TJ_OP_POW: *r = int_pow(x, y); return true;
    case TJ_OP_MAXIMUM: *r = x > y ? x : y; return true;
    case TJ_OP_MINIMUM: *r = x < y ? x : y; return true;
    case TJ_OP_CLAMP:
        x = x > y ? x : y;
        *r = x < z ? x : z;
        return true;
    case TJ_OP_BITWISE_AND: *r = x & y; return true;
    case TJ_OP_BITWISE_OR: *r = x | y; return true;
    case TJ_OP_BITWISE_XOR: *r = x ^ y; return true;
    default: return false;
    }
}
static double as_double(struct sv v, int c) { return c == 'd' ? v.d : c == 'f' ? (double)v.f : (double)v.i; }
static bool truth(struct sv v, int c) { return c == 'd' ? v.d != 0 : c == 'f' ? v.f != 0 : v.i != 0; }

static struct sv ref_cast(struct sv x, int from, int to) {
    struct sv r = {.known = true};
    int c = kb_class(from);
    switch (to) {
    case TRACE_BOOL: r.i = truth(x, c); break;
    case TRACE_U8: r.i = c == 'i' ? (uint8_t)x.i : tj_f64_to_u8(as_double(x, c)); break;
    case TRACE_I32: r.i = c == 'i' ? (int32_t)x.i : tj_f64_to_i32(as_double(x, c)); break;
    case TRACE_I64: r.i = c == 'i' ? x.i : tj_f64_to_i64(as_double(x, c)); break;
    case TRACE_F64: r.d = as_double(x, c); break;
    default:
        r.f = c == 'd' ? (float)x.d : c == 'f' ? x.f : (float)x.i;
        r.f = to == TRACE_F16    ? tj_f16_to_f32(tj_f32_to_f16(r.f))
              : to == TRACE_BF16 ? tj_bf16_to_f32(tj_f32_to_bf16(r.f))
                                 : r.f;
    }
    return r;
}

static int64_t ref_address(struct ref *s, const struct tj_kaccess *a) {
    const int64_t *iv = s->b->ivals;
    int64_t at = iv[a->offset];
    for (int d = 0; d < s->b->k.ndims; d++) {
        at += s->coord[d] * iv[a->stride[d]];
    }
    for (int i = 0; i < a->nindirect; i++) {
        at += s->v[a->ind_value[i]].i * iv[a->ind_stride[i]];
    }
    return at;
}

static struct sv ref_op(struct ref *s, const struct tj_kins *in) {
    struct tj_kins *ins = s->b->ins;
    struct sv a = in->in[0] == TJ_KNONE ? (struct sv){0} : s->v[in->in[0]];
    struct sv b = in->in[1] == TJ_KNONE ? (struct sv){0} : s->v[in->in[1]];
    struct sv c = in->in[2] == TJ_KNONE ? (struct sv){0} : s->v[in->in[2]];
    int from = in->in[0] == TJ_KNONE ? in->dtype : ins[in->in[0]].dtype, k = kb_class(from);
    struct sv r = {.known = true};
    double x = as_double(a, k), y = as_double(b, k);
    bool lt = k == 'i' ? a.i < b.i : x < y, eq = k == 'i' ? a.i == b.i : x == y, gt = k == 'i' ? a.i > b.i : x > y;
    switch (in->op) {
    case TJ_KOP_CONST:
        r.i = in->imm;
        memcpy(&r.d, &in->imm, 8);
        r.f = (float)r.d;
        return r;
    case TJ_KOP_SVAL:
        r.i = s->b->svals[in->imm].i;
        r.d = s->b->svals[in->imm].f;
        r.f = (float)r.d;
        return r;
    case TJ_KOP_IVAL: r.i = s->b->ivals[in->imm]; return r;
    case TJ_KOP_COORD: r.i = ref_address(s, &s->b->acc[in->imm]); return r;
    case TJ_KOP_LOAD: {
        const struct tj_kaccess *m = &s->b->acc[in->imm];
        if (in->in[0] != TJ_KNONE && !a.i) {
            return r;
        }
        return kb_load_value(s->bufs[m->buf] + ref_address(s, m) * (int64_t)kb_width(m->dtype), m->dtype);
    }
    case TJ_KOP_ROUND: return ref_cast(a, TRACE_F32, (int)in->imm);
    case TJ_OP_CAST: return ref_cast(a, from, in->dtype);
    case TJ_OP_WHERE: return a.i ? b : c;
    case TJ_OP_EQ: r.i = eq; return r;
    case TJ_OP_NE: r.i = !eq; return r;
    case TJ_OP_LT: r.i = lt; return r;
    case TJ_OP_LE: r.i = lt || eq; return r;
    case TJ_OP_GT: r.i = gt; return r;
    case TJ_OP_GE: r.i = gt || eq; return r;
    case TJ_OP_LOGICAL_NOT: r.i = !truth(a, k); return r;
    case TJ_OP_LOGICAL_AND: r.i = truth(a, k) && truth(b, k); return r;
    case TJ_OP_LOGICAL_OR: r.i = truth(a, k) || truth(b, k); return r;
    case TJ_OP_LOGICAL_XOR: r.i = truth(a, k) != truth(b, k); return r;
    case TJ_OP_ISNAN: r.i = k != 'i' && x != x; return r;
    case TJ_OP_ISINF: r.i = k != 'i' && fabs(x) == (double)INFINITY; return r;
    case TJ_OP_BATCH_NORM: {
        float f[6];
        for (int i = 0; i < 6; i++) {
            f[i] = s->v[in->in[i]].f;
        }
        float q = (f[0] - f[1]) * (1.0f / sqrtf(f[2] + f[5]));
        q = q * f[3];
        r.f = q + f[4];
        return r;
    }
    default: break;
    }
    bool ok = k == 'f'   ? float_fn(in->op, a.f, b.f, c.f, &r.f)
              : k == 'd' ? double_fn(in->op, a.d, b.d, c.d, &r.d)
                         : int_fn(in->op, from, a.i, b.i, c.i, &r.i);
    MUST(ok, "the test can't evaluate op %d", in->op);
    r.i = k == 'i' ? wrap(from, r.i) : r.i;
    return r;
}

// Evaluates everything that can be at the current coordinates; `rows_only` where a row has no elements to stand on.
static void ref_eval(struct ref *s, bool rows_only) {
    for (int i = 0; i < s->b->k.nins; i++) {
        const struct tj_kins *in = &s->b->ins[i];
        s->v[i].known = false;
        if (rows_only && in->level == TJ_FULL) {
            continue;
        }
        if (in->op == TJ_KOP_REDUCE) {
            s->v[i] = s->reduced[i];
            continue;
        }
        bool known = true;
        for (int n = 0; n < 6; n++) {
            known = known && (in->in[n] == TJ_KNONE || s->v[in->in[n]].known);
        }
        if (in->op == TJ_KOP_LOAD || in->op == TJ_KOP_COORD || in->op == TJ_KOP_STORE) {
            for (int n = 0; n < s->b->acc[in->imm].nindirect; n++) {
                known = known && s->v[s->b->acc[in->imm].ind_value[n]].known;
            }
        }
        if (!known) {
            continue;
        }
        if (in->op == TJ_KOP_STORE || in->op == TJ_KOP_CHECK) {
            s->v[i].known = true;
        } else {
            s->v[i] = ref_op(s, in);
        }
    }
}
static void ref_store(struct ref *s, int i) {
    const struct tj_kins *in = &s->b->ins[i];
    const struct tj_kaccess *a = &s->b->acc[in->imm];
    if (in->in[1] == TJ_KNONE || s->v[in->in[1]].i) {
        kb_store_value(s->bufs[a->buf] + ref_address(s, a) * (int64_t)kb_width(a->dtype), a->dtype, s->v[in->in[0]]);
    }
}
static void ref_check(struct ref *s, int i) {
    const struct tj_kins *in = &s->b->ins[i];
    bool counts = in->in[3] == TJ_KNONE || s->v[in->in[3]].i;
    if (counts && !s->v[in->in[0]].i && !s->error) {
        s->error = true;
        s->error_index = s->v[in->in[1]].i;
    }
}

// Sum of n values in the documented order.
#define ORDERED(T, name)                                                                                               \
    static T name(const T *x, int64_t n) {                                                                             \
        T stack[64], p[64];                                                                                            \
        int depth = 0;                                                                                                 \
        for (int64_t b = 0; b * 4096 < n; b++) {                                                                       \
            int64_t m = n - b * 4096 < 4096 ? n - b * 4096 : 4096;                                                     \
            for (int i = 0; i < 64; i++) {                                                                             \
                p[i] = 0;                                                                                              \
            }                                                                                                          \
            for (int64_t i = 0; i < m; i++) {                                                                          \
                p[i % 64] = p[i % 64] + x[b * 4096 + i];                                                               \
            }                                                                                                          \
            for (int h = 32; h; h /= 2) {                                                                              \
                for (int i = 0; i < h; i++) {                                                                          \
                    p[i] = p[i] + p[i + h];                                                                            \
                }                                                                                                      \
            }                                                                                                          \
            T t = p[0];                                                                                                \
            for (int64_t k = b; k & 1; k >>= 1) {                                                                      \
                t = stack[--depth] + t;                                                                                \
            }                                                                                                          \
            stack[depth++] = t;                                                                                        \
        }                                                                                                              \
        T r = depth ? stack[--depth] : 0;                                                                              \
        while (depth) {                                                                                                \
            r = stack[--depth] + r;                                                                                    \
        }                                                                                                              \
        return r;                                                                                                      \
    }
ORDERED(float, sum_f)
ORDERED(double, sum_d)

static struct sv ref_reduce(const struct sv *x, int64_t n, int kind, int dtype) {
    struct sv r = {.known = true};
    int c = kb_class(dtype);
    if (kind == TJ_RED_SUM) {
        float *f = malloc((size_t)n * sizeof *f + 1);
        double *d = malloc((size_t)n * sizeof *d + 1);
        for (int64_t i = 0; i < n; i++) {
            f[i] = x[i].f;
            d[i] = x[i].d;
            r.i = wrap(dtype, (int64_t)((uint64_t)r.i + (uint64_t)x[i].i));
        }
        r.f = sum_f(f, n);
        r.d = sum_d(d, n);
        free(f);
        free(d);
        return r;
    }
    if (kind == TJ_RED_CHAIN) {
        r.f = 0;
        r.d = 0;
        for (int64_t i = 0; i < n; i++) {
            r.f += x[i].f;
            r.d += x[i].d;
            r.i = wrap(dtype, (int64_t)((uint64_t)r.i + (uint64_t)x[i].i));
        }
        return r;
    }
    if (kind == TJ_RED_ANY || kind == TJ_RED_ALL) {
        r.i = kind == TJ_RED_ALL;
        for (int64_t i = 0; i < n; i++) {
            r.i = kind == TJ_RED_ALL ? r.i && x[i].i : r.i || x[i].i;
        }
        return r;
    }
    bool max = kind == TJ_RED_MAX || kind == TJ_RED_ARGMAX, arg = kind == TJ_RED_ARGMAX || kind == TJ_RED_ARGMIN;
    int64_t best = 0;
    r = x[0];
    for (int64_t i = 1; i < n; i++) {
        double p = as_double(x[best], c), q = as_double(x[i], c);
        bool better =
            c == 'i' ? (max ? x[i].i > x[best].i : x[i].i < x[best].i) : (max ? q > p : q < p) || (q != q && p == p);
        best = better && !(c != 'i' && p != p) ? i : best;
        r.f = max ? tj_max_f32(r.f, x[i].f) : tj_min_f32(r.f, x[i].f);
        r.d = max ? tj_max_f64(r.d, x[i].d) : tj_min_f64(r.d, x[i].d);
    }
    r.i = c == 'i' && !arg ? x[best].i : r.i;
    r.i = arg ? best : r.i;
    return r;
}

static void unravel(struct ref *s, int from, int to, int64_t index) {
    for (int d = to; d-- > from;) {
        s->coord[d] = index % kb_extent(s->b, d);
        index /= kb_extent(s->b, d);
    }
}

// Runs the whole kernel on bufs.
void kb_evaluate(struct ref *s) {
    const struct tj_kernel *k = &s->b->k;
    int nd = k->ndims, red0 = k->kind == TJ_K_POINTWISE ? nd : k->npar, red1 = k->kind == TJ_K_COLS ? nd - 1 : nd;
    int64_t outer = 1, inner = 1, cols = k->kind == TJ_K_COLS ? kb_extent(s->b, nd - 1) : 1;
    for (int d = 0; d < nd; d++) {
        if (d >= red0 && d < red1) {
            inner *= kb_extent(s->b, d);
        } else if (!(k->kind == TJ_K_COLS && d == nd - 1)) {
            outer *= kb_extent(s->b, d);
        }
    }
    struct sv *list = malloc((size_t)inner * sizeof *list + 1);
    for (int64_t o = 0; o < outer * cols; o++) {
        unravel(s, 0, red0 < nd ? red0 : nd, o / cols);
        if (k->kind == TJ_K_COLS) {
            s->coord[nd - 1] = o % cols;
        }
        memset(s->reduced, 0, sizeof s->reduced);
        for (int p = 0; p < (k->npasses ? k->npasses : 1); p++) {
            for (int64_t e = 0; e < inner; e++) {
                unravel(s, red0, red1, e);
                ref_eval(s, false);
                for (int i = 0; i < k->nins; i++) {
                    const struct tj_kins *in = &s->b->ins[i];
                    if (in->level == TJ_FULL && in->pass == p && in->op == TJ_KOP_STORE) {
                        ref_store(s, i);
                    } else if (in->pass == p && in->op == TJ_KOP_CHECK) {
                        ref_check(s, i);
                    }
                }
            }
            struct sv done[MAX_INS];
            for (int i = 0; i < k->nins; i++) {
                const struct tj_kins *in = &s->b->ins[i];
                if (in->op != TJ_KOP_REDUCE || in->pass != p) {
                    continue;
                }
                for (int64_t e = 0; e < inner; e++) {
                    unravel(s, red0, red1, e);
                    ref_eval(s, false);
                    list[e] = s->v[in->in[0]];
                }
                done[i] = ref_reduce(list, inner, (int)in->imm, s->b->ins[in->in[0]].dtype);
            }
            for (int i = 0; i < k->nins; i++) {
                if (s->b->ins[i].op == TJ_KOP_REDUCE && s->b->ins[i].pass == p) {
                    s->reduced[i] = done[i];
                }
            }
        }
        ref_eval(s, inner == 0);
        for (int i = 0; i < k->nins; i++) {
            if (s->b->ins[i].level == TJ_ROWLEVEL && s->b->ins[i].op == TJ_KOP_STORE) {
                ref_store(s, i);
            }
        }
    }
    free(list);
}
