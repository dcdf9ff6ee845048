// tests/program_eval.c: reference evaluator of programs: instructions one element at a time, reductions in the
// documented order, contractions as plain loops.
#define tj_interp_pointwise program_eval_pointwise
#define tj_interp_cast program_eval_cast
#define tj_interp_arange program_eval_arange
#include "program_eval.h"
#include "../trace/interp.h"
#include "../trace/interp_point.c"

union val {
    float f;
    double d;
    int64_t i;
};
struct eval {
    const struct tj_program *p;
    const struct tj_run_args *args;
    const int64_t *x;     // expressions
    unsigned char **base; // buffers
    int64_t *lo, *hi;     // elements that may be touched
    tj_status st;
};

static tj_status bad(struct eval *e, const char *what, int64_t at) {
    if (e->st == TRACE_OK) {
        e->st = tj_fail(TRACE_ERR_STATE, "program_eval: %s (%lld)", what, (long long)at);
    }
    return e->st;
}

static union val load(tj_dtype d, const unsigned char *p) {
    union val v = {.i = 0};
    union tj_chunk c;
    tj_iload(d, p, 0, 1, &c);
    switch (tj_iclass_of(d)) {
    case TJ_I_FLOAT: v.f = c.f[0]; break;
    case TJ_I_DOUBLE: v.d = c.d[0]; break;
    default: v.i = c.i[0]; break;
    }
    return v;
}

static void store(tj_dtype d, unsigned char *p, union val v) {
    union tj_chunk c;
    switch (tj_iclass_of(d)) {
    case TJ_I_FLOAT: c.f[0] = v.f; break;
    case TJ_I_DOUBLE: c.d[0] = v.d; break;
    default: c.i[0] = v.i; break;
    }
    tj_istore(d, p, 0, 1, &c);
}

// Values of narrow integers are kept wrapped.
static union val wrap(tj_dtype d, union val v) {
    switch (d) {
    case TRACE_BOOL: v.i = v.i != 0; break;
    case TRACE_U8: v.i = (uint8_t)v.i; break;
    case TRACE_I32: v.i = (int32_t)v.i; break;
    default: break;
    }
    return v;
}

static void put_chunk(union tj_chunk *c, tj_dtype d, union val v) {
    switch (tj_iclass_of(d)) {
    case TJ_I_FLOAT: c->f[0] = v.f; break;
    case TJ_I_DOUBLE: c->d[0] = v.d; break;
    default: c->i[0] = v.i; break;
    }
}
static union val get_chunk(const union tj_chunk *c, tj_dtype d) {
    union val v = {.i = 0};
    switch (tj_iclass_of(d)) {
    case TJ_I_FLOAT: v.f = c->f[0]; break;
    case TJ_I_DOUBLE: v.d = c->d[0]; break;
    default: v.i = c->i[0]; break;
    }
    return wrap(d, v);
}

struct row {
    struct eval *e;
    const struct tj_loop *l;
    const struct tj_kernel *k;
    int64_t coord[TJ_KDIMS];
    int64_t elem, elems;
    unsigned pass;
    union val *v, *kept; // kept: [nins][elems]
};

static union val operand(const struct row *r, tj_kv i) {
    const struct tj_kins *in = &r->k->ins[i];
    if (r->k->kind != TJ_K_POINTWISE && in->level == TJ_FULL && in->pass < r->pass) {
        return r->kept[(int64_t)i * r->elems + r->elem];
    }
    return r->v[i];
}

static int64_t address(const struct row *r, const struct tj_kaccess *a, bool raw) {
    int64_t at = r->e->x[r->l->ivals[a->offset]];
    for (int d = 0; d < r->k->ndims; d++) {
        at += r->coord[d] * r->e->x[r->l->ivals[a->stride[d]]];
    }
    for (int d = 0; d < a->nindirect; d++) {
        at += operand(r, a->ind_value[d]).i * r->e->x[r->l->ivals[a->ind_stride[d]]];
    }
    if (!raw) {
        uint32_t b = r->l->bufs[a->buf];
        if (at < r->e->lo[b] || at >= r->e->hi[b]) {
            (void)bad(r->e, "access outside a buffer", at);
            return INT64_MIN;
        }
    }
    return at;
}

static void execute(struct row *r, tj_kv i) {
    const struct tj_kins *in = &r->k->ins[i];
    union val v = {.i = 0};
    tj_dtype d = (tj_dtype)in->dtype;
    switch (in->op) {
    case TJ_KOP_CONST: {
        double x;
        memcpy(&x, &in->imm, sizeof x);
        if (d == TRACE_F32) {
            v.f = (float)x;
        } else if (d == TRACE_F64) {
            v.d = x;
        } else {
            v.i = in->imm;
        }
        break;
    }
    case TJ_KOP_SVAL: {
        const struct tj_scalar_arg *s = &r->l->svals[in->imm];
        union tj_scalar x = s->is_const ? s->value : r->e->args->params[s->param].v;
        if (d == TRACE_F32) {
            v.f = (float)x.f;
        } else if (d == TRACE_F64) {
            v.d = x.f;
        } else {
            v.i = x.i;
        }
        break;
    }
    case TJ_KOP_IVAL: v.i = r->e->x[r->l->ivals[in->imm]]; break;
    case TJ_KOP_COORD: v.i = address(r, &r->k->access[in->imm], true); break;
    case TJ_KOP_LOAD: {
        const struct tj_kaccess *a = &r->k->access[in->imm];
        if (in->in[0] == TJ_KNONE || operand(r, in->in[0]).i) {
            int64_t at = address(r, a, false);
            if (at != INT64_MIN) {
                v = load((tj_dtype)a->dtype,
                         r->e->base[r->l->bufs[a->buf]] + at * (int64_t)tj_elem_bytes((tj_dtype)a->dtype));
            }
        }
        break;
    }
    case TJ_KOP_STORE: {
        const struct tj_kaccess *a = &r->k->access[in->imm];
        if (in->in[1] == TJ_KNONE || operand(r, in->in[1]).i) {
            int64_t at = address(r, a, false);
            if (at != INT64_MIN) {
                store((tj_dtype)a->dtype,
                      r->e->base[r->l->bufs[a->buf]] + at * (int64_t)tj_elem_bytes((tj_dtype)a->dtype),
                      operand(r, in->in[0]));
            }
        }
        return;
    }
    case TJ_KOP_ROUND: {
        unsigned char m[8];
        store((tj_dtype)in->imm, m, operand(r, in->in[0]));
        v = load((tj_dtype)in->imm, m);
        break;
    }
    case TJ_KOP_CHECK: {
        bool counts = in->in[3] == TJ_KNONE || operand(r, in->in[3]).i;
        if (counts && !operand(r, in->in[0]).i && r->e->args->err && !r->e->args->err->set) {
            struct tj_data_error *err = r->e->args->err;
            err->set = 2;
            err->node = r->l->sites[in->imm & 0xffffff];
            err->kind = (int32_t)(in->imm >> 24);
            err->index = operand(r, in->in[1]).i;
            err->extent = in->in[2] == TJ_KNONE ? 0 : operand(r, in->in[2]).i;
        }
        return;
    }
    case TJ_OP_CAST: {
        tj_dtype from = (tj_dtype)r->k->ins[in->in[0]].dtype;
        union tj_chunk c, o;
        put_chunk(&c, from, operand(r, in->in[0]));
        convert(tj_iclass_of(from), d, 1, &c, &o);
        v = get_chunk(&o, d);
        break;
    }
    default: {
        union tj_chunk c[OPERANDS], o;
        struct tj_data_error ignored = {0};
        struct tj_run_args none = {.err = &ignored};
        struct tj_interp it = {.args = &none};
        tj_dtype from = (tj_dtype)r->k->ins[in->in[in->op == TJ_OP_WHERE]].dtype;
        for (int j = 0; j < OPERANDS && in->in[j] != TJ_KNONE; j++) {
            put_chunk(&c[j], (tj_dtype)r->k->ins[in->in[j]].dtype, operand(r, in->in[j]));
        }
        struct args a = {.it = &it, .dtype = from, .n = 1, .in = c, .out = &o};
        bool ok = true;
        if (in->op == TJ_OP_WHERE) {
            where(&a, tj_iclass_of(from));
        } else if (tj_iclass_of(from) == TJ_I_FLOAT) {
            ok = float_op((enum tj_op)in->op, &a);
        } else if (tj_iclass_of(from) == TJ_I_DOUBLE) {
            ok = double_op((enum tj_op)in->op, &a);
        } else {
            ok = int_op((enum tj_op)in->op, &a);
        }
        if (!ok) {
            (void)bad(r->e, "instruction", in->op);
        }
        v = get_chunk(&o, d);
    }
    }
    r->v[i] = v;
}

static union val plus(tj_dtype d, union val a, union val b) {
    switch (tj_iclass_of(d)) {
    case TJ_I_FLOAT: a.f += b.f; break;
    case TJ_I_DOUBLE: a.d += b.d; break;
    default: a.i = (int64_t)((uint64_t)a.i + (uint64_t)b.i); break;
    }
    return wrap(d, a);
}

static union val sum(tj_dtype d, const union val *x, int64_t n) {
    union val stack[64], zero = {.i = 0};
    int depth = 0;
    for (int64_t at = 0, block = 0; at < n; at += 4096, block++) {
        union val part[64];
        memset(part, 0, sizeof part);
        for (int64_t i = at; i < n && i < at + 4096; i++) {
            part[(i - at) % 64] = plus(d, part[(i - at) % 64], x[i]);
        }
        for (int half = 32; half > 0; half /= 2) {
            for (int i = 0; i < half; i++) {
                part[i] = plus(d, part[i], part[i + half]);
            }
        }
        stack[depth++] = part[0];
        for (int64_t b = block; b & 1; b >>= 1, depth--) {
            stack[depth - 2] = plus(d, stack[depth - 2], stack[depth - 1]);
        }
    }
    for (; depth > 1; depth--) {
        stack[depth - 2] = plus(d, stack[depth - 2], stack[depth - 1]);
    }
    return depth ? stack[0] : zero;
}

static double as_double(tj_dtype d, union val v) {
    return tj_iclass_of(d) == TJ_I_FLOAT ? (double)v.f : tj_iclass_of(d) == TJ_I_DOUBLE ? v.d : (double)v.i;
}

static union val reduce(int kind, tj_dtype d, const union val *x, int64_t n) {
    union val r = {.i = 0};
    bool integer = tj_iclass_of(d) == TJ_I_INT;
    int64_t best = 0;
    switch (kind) {
    case TJ_RED_SUM: return sum(d, x, n);
    case TJ_RED_CHAIN:
        for (int64_t i = 0; i < n; i++) {
            r = plus(d, r, x[i]);
        }
        return r;
    case TJ_RED_ANY:
    case TJ_RED_ALL:
        r.i = kind == TJ_RED_ALL;
        for (int64_t i = 0; i < n; i++) {
            r.i = kind == TJ_RED_ANY ? (r.i || x[i].i) : (r.i && x[i].i);
        }
        return r;
    default: break;
    }
    bool max = kind == TJ_RED_MAX || kind == TJ_RED_ARGMAX;
    union tj_chunk c[2], o;
    struct args a = {.dtype = d, .n = 1, .in = c, .out = &o};
    r = n ? x[0] : r;
    for (int64_t i = 1; i < n; i++) {
        double b = as_double(d, x[best]), y = as_double(d, x[i]);
        bool better = integer ? (max ? x[i].i > x[best].i : x[i].i < x[best].i) : max ? y > b : y < b;
        if (better || (!integer && y != y && b == b)) {
            best = i;
        }
        put_chunk(&c[0], d, r);
        put_chunk(&c[1], d, x[i]);
        enum tj_op op = max ? TJ_OP_MAXIMUM : TJ_OP_MINIMUM;
        (void)(tj_iclass_of(d) == TJ_I_FLOAT    ? float_op(op, &a)
               : tj_iclass_of(d) == TJ_I_DOUBLE ? double_op(op, &a)
                                                : int_op(op, &a));
        r = get_chunk(&o, d);
    }
    if (kind == TJ_RED_ARGMAX || kind == TJ_RED_ARGMIN) {
        r.i = best;
    }
    return r;
}

// Steps coord over dims [from, to) in row-major order; false after the last.
static bool step(int64_t *coord, const int64_t *ext, int from, int to) {
    for (int d = to; d-- > from;) {
        if (++coord[d] < ext[d]) {
            return true;
        }
        coord[d] = 0;
    }
    return false;
}

static void one_row(struct row *r, const int64_t *ext) {
    const struct tj_kernel *k = r->k;
    if (k->kind == TJ_K_POINTWISE) {
        for (tj_kv i = 0; i < k->nins && !r->e->st; i++) {
            execute(r, i);
        }
        return;
    }
    int from = k->npar, to = k->ndims - (k->kind == TJ_K_COLS);
    for (r->pass = 0; r->pass <= k->npasses && !r->e->st; r->pass++) {
        for (tj_kv i = 0; i < k->nins; i++) {
            if (k->ins[i].level == TJ_ROWLEVEL && k->ins[i].op != TJ_KOP_REDUCE && k->ins[i].pass == r->pass) {
                execute(r, i);
            }
        }
        memset(r->coord + from, 0, (size_t)(to - from) * sizeof *r->coord);
        for (r->elem = 0; r->elem < r->elems && r->pass < k->npasses; r->elem++) {
            for (tj_kv i = 0; i < k->nins && !r->e->st; i++) {
                const struct tj_kins *in = &k->ins[i];
                if (in->level == TJ_FULL && in->pass == r->pass) {
                    execute(r, i);
                    r->kept[(int64_t)i * r->elems + r->elem] = r->v[i];
                } else if (in->op == TJ_KOP_REDUCE && in->pass == r->pass) {
                    r->kept[(int64_t)i * r->elems + r->elem] = operand(r, in->in[0]);
                }
            }
            (void)step(r->coord, ext, from, to);
        }
        for (tj_kv i = 0; i < k->nins; i++) {
            const struct tj_kins *in = &k->ins[i];
            if (in->op == TJ_KOP_REDUCE && in->pass == r->pass && r->pass < k->npasses) {
                r->v[i] =
                    reduce((int)in->imm, (tj_dtype)k->ins[in->in[0]].dtype, r->kept + (int64_t)i * r->elems, r->elems);
            }
        }
    }
}

static void run_loop(struct eval *e, const struct tj_loop *l) {
    const struct tj_kernel *k = l->kernel;
    char err[256];
    if (!tj_kernel_verify(k, err, sizeof err)) {
        e->st = tj_fail(TRACE_ERR_STATE, "program_eval: kernel %s: %s", k->name, err);
        return;
    }
    int64_t ext[TJ_KDIMS], n = 1, elems = 1;
    struct row r = {.e = e, .l = l, .k = k};
    for (int d = 0; d < k->ndims; d++) {
        ext[d] = e->x[l->ivals[k->extent[d]]];
        bool red = k->kind != TJ_K_POINTWISE && d >= k->npar && d < k->ndims - (k->kind == TJ_K_COLS);
        *(red ? &elems : &n) *= ext[d];
    }
    if (n != e->x[l->rows] * e->x[l->cols] || elems != e->x[l->row_elems]) {
        (void)bad(e, "launch box", n);
        return;
    }
    r.elems = elems;
    r.v = tj_calloc(k->nins + 1u, sizeof *r.v);
    r.kept = tj_calloc((size_t)k->nins * (size_t)(elems ? elems : 1) + 1, sizeof *r.kept);
    int last = k->ndims - 1;
    for (int64_t i = 0; i < n && !e->st; i++) {
        int64_t at = i;
        if (k->kind == TJ_K_COLS) { // columns fastest
            r.coord[last] = at % ext[last];
            at /= ext[last];
        }
        for (int d = (k->kind == TJ_K_POINTWISE ? k->ndims : k->npar); d-- > 0;) {
            r.coord[d] = at % ext[d];
            at /= ext[d];
        }
        one_row(&r, ext);
    }
    tj_free(r.v);
    tj_free(r.kept);
}

// ---- contractions -------------------------------------------------------------------------------------------------

static unsigned char *at(struct eval *e, const struct tj_geom *g, const int64_t *i) {
    int64_t o = e->x[g->offset];
    for (int d = 0; d < g->rank; d++) {
        o += i[d] * e->x[g->strides[d]];
    }
    if (o < e->lo[g->buf] || o >= e->hi[g->buf]) {
        (void)bad(e, "operand outside its buffer", o);
        return e->base[g->buf];
    }
    return e->base[g->buf] + o * (int64_t)tj_elem_bytes((tj_dtype)g->dtype);
}
static double num(struct eval *e, const struct tj_geom *g, const int64_t *i) {
    return tj_iload_f64((tj_dtype)g->dtype, at(e, g, i));
}
static void set(struct eval *e, const struct tj_geom *g, const int64_t *i, double v) {
    tj_istore_scalar((tj_dtype)g->dtype, at(e, g, i), (union tj_scalar){.f = v});
}
static bool extents(struct eval *e, const struct tj_geom *g, int64_t *ext) {
    bool any = true;
    for (int d = 0; d < g->rank; d++) {
        ext[d] = e->x[g->dims[d]];
        any = any && ext[d] > 0;
    }
    return any;
}

static void matmul(struct eval *e, const struct tj_step *s) {
    int64_t ext[TJ_MAX_RANK], i[TJ_MAX_RANK] = {0}, K = e->x[s->a.dims[s->a.rank - 1]];
    int r = s->out.rank;
    if (!extents(e, &s->out, ext)) {
        return;
    }
    if (s->a.rank != r || s->b.rank != r) {
        (void)bad(e, "matmul ranks", s->b.rank);
        return;
    }
    for (int d = 0; d + 2 < r; d++) {
        if (e->x[s->a.dims[d]] != ext[d] || e->x[s->b.dims[d]] != ext[d]) {
            (void)bad(e, "matmul batch", d);
        }
    }
    do {
        int64_t a[TJ_MAX_RANK], b[TJ_MAX_RANK];
        memcpy(a, i, sizeof a);
        memcpy(b, i, sizeof b);
        double acc = 0;
        for (int64_t k = 0; k < K; k++) {
            a[r - 1] = b[r - 2] = k;
            acc += num(e, &s->a, a) * num(e, &s->b, b);
        }
        if (s->has_bias) {
            acc += num(e, &s->c, &i[r - 1]);
        }
        set(e, &s->out, i, acc);
    } while (step(i, ext, 0, r) && !e->st);
}

static void conv(struct eval *e, const struct tj_step *s) {
    const struct tj_attr_conv *c = &s->conv;
    int64_t ext[TJ_MAX_RANK], i[TJ_MAX_RANK] = {0}, x[TJ_MAX_RANK], w[TJ_MAX_RANK];
    if (!extents(e, &s->out, ext) || !extents(e, &s->a, x) || !extents(e, &s->b, w)) {
        return;
    }
    do {
        double acc = 0;
        int64_t group = i[1] / (w[0] / c->groups);
        for (int64_t k = 0; k < w[1]; k++) {
            for (int64_t h = 0; h < w[2]; h++) {
                for (int64_t v = 0; v < w[3]; v++) {
                    int64_t xi[4] = {i[0], group * w[1] + k, i[2] * c->stride[0] + h * c->dilation[0] - c->padding[0],
                                     i[3] * c->stride[1] + v * c->dilation[1] - c->padding[1]};
                    if (xi[2] >= 0 && xi[2] < x[2] && xi[3] >= 0 && xi[3] < x[3]) {
                        acc += num(e, &s->a, xi) * num(e, &s->b, (int64_t[4]){i[1], k, h, v});
                    }
                }
            }
        }
        if (s->has_bias) {
            acc += num(e, &s->c, &i[1]);
        }
        set(e, &s->out, i, acc);
    } while (step(i, ext, 0, 4) && !e->st);
}

static void sdpa(struct eval *e, const struct tj_step *s) {
    int r = s->out.rank;
    int64_t ext[TJ_MAX_RANK], i[TJ_MAX_RANK] = {0}, S = e->x[s->b.dims[r - 2]], E = e->x[s->a.dims[r - 1]];
    if (!extents(e, &s->out, ext)) {
        return;
    }
    double *p = tj_calloc((size_t)S + 1, sizeof *p),
           scale = s->scale.is_const ? s->scale.value.f : e->args->params[s->scale.param].v.f;
    scale = scale == 0 ? 1 / sqrt((double)E) : scale;
    do {
        int64_t q[TJ_MAX_RANK], k[TJ_MAX_RANK];
        memcpy(q, i, sizeof q);
        memcpy(k, i, sizeof k);
        if (s->gqa) {
            k[r - 3] = i[r - 3] / (ext[r - 3] / e->x[s->b.dims[r - 3]]);
        }
        double max = -INFINITY, total = 0, acc = 0;
        for (int64_t j = 0; j < S; j++) {
            double dot = 0;
            for (int64_t c = 0; c < E; c++) {
                q[r - 1] = k[r - 1] = c;
                k[r - 2] = j;
                dot += num(e, &s->a, q) * num(e, &s->b, k);
            }
            p[j] = dot * scale;
            if (s->has_mask) {
                int64_t m[TJ_MAX_RANK];
                memcpy(m, i, sizeof m);
                m[r - 1] = j;
                double v = num(e, &s->d, m);
                p[j] = s->d.dtype == TRACE_BOOL ? (v != 0 ? p[j] : -INFINITY) : p[j] + v;
            }
            p[j] = s->causal && j > i[r - 2] ? -INFINITY : p[j];
            max = p[j] > max ? p[j] : max;
        }
        for (int64_t j = 0; j < S; j++) {
            p[j] = max == -INFINITY ? 0 : exp(p[j] - max);
            total += p[j];
        }
        for (int64_t j = 0; j < S; j++) {
            k[r - 2] = j;
            k[r - 1] = i[r - 1];
            acc += total > 0 ? p[j] / total * num(e, &s->c, k) : 0;
        }
        set(e, &s->out, i, acc);
    } while (step(i, ext, 0, r) && !e->st);
    tj_free(p);
}

static void index_copy(struct eval *e, const struct tj_step *s) {
    int64_t ext[TJ_MAX_RANK], i[TJ_MAX_RANK] = {0}, dst[TJ_MAX_RANK];
    if (!extents(e, &s->b, ext)) {
        return;
    }
    do {
        memcpy(dst, i, sizeof dst);
        int64_t row = tj_iload_i64(TRACE_I64, at(e, &s->a, &i[s->dim])), n = e->x[s->out.dims[s->dim]];
        dst[s->dim] = row;
        if (row < 0 || row >= n) {
            if (e->args->err && !e->args->err->set) {
                *e->args->err =
                    (struct tj_data_error){.set = 2, .node = s->node, .kind = TJ_DATA_INDEX, .index = row, .extent = n};
            }
        } else {
            memcpy(at(e, &s->out, dst), at(e, &s->b, i), tj_elem_bytes((tj_dtype)s->out.dtype));
        }
    } while (step(i, ext, 0, s->b.rank) && !e->st);
}

tj_status program_eval(const struct tj_program *p, const struct tj_run_args *args) {
    struct eval e = {.p = p, .args = args};
    int64_t *x = tj_calloc(p->exprs.n, sizeof *x);
    e.base = tj_calloc(p->nbufs + 1, sizeof *e.base);
    e.lo = tj_calloc(p->nbufs + 1, sizeof *e.lo);
    e.hi = tj_calloc(p->nbufs + 1, sizeof *e.hi);
    e.x = x;
    if (!tj_exprs_eval(&p->exprs, args, x)) {
        (void)bad(&e, "expressions overflow", 0);
    }
    for (uint32_t i = 0; i < p->nguards; i++) {
        if (x[p->guards[i].a] != x[p->guards[i].b]) {
            (void)bad(&e, "guard", x[p->guards[i].a]);
        }
    }
    for (uint32_t i = 0; i < p->nbufs && !e.st; i++) {
        const struct tj_buf *b = &p->bufs[i];
        e.hi[i] = x[b->elems];
        if (b->kind == TJ_BUF_TEMP) {
            size_t n = (size_t)e.hi[i] * tj_elem_bytes((tj_dtype)b->dtype) + 1;
            e.base[i] = tj_malloc(n);
            memset(e.base[i], 0xA5, n);
            continue;
        }
        const struct trace_tensor *t = b->kind == TJ_BUF_OUT ? args->outs[b->index] : args->leaves[b->index].tensor;
        e.base[i] = tj_tensor_data(t);
        if (b->kind == TJ_BUF_LEAF) { // what the tensor's geometry reaches
            int64_t top = 1;
            for (int d = 0; d < t->rank; d++) {
                top += (t->dims[d] - 1) * t->strides[d];
            }
            e.hi[i] = t->numel ? top : 0;
        }
    }
    for (uint32_t i = 0; i < p->nsteps && !e.st; i++) {
        const struct tj_step *s = &p->steps[i];
        switch (s->kind) {
        case TJ_STEP_MATMUL: matmul(&e, s); break;
        case TJ_STEP_CONV2D: conv(&e, s); break;
        case TJ_STEP_SDPA: sdpa(&e, s); break;
        case TJ_STEP_INDEX_COPY: index_copy(&e, s); break;
        default: break;
        }
        if (s->loop.kernel && !e.st) {
            run_loop(&e, &s->loop);
        }
    }
    for (uint32_t i = 0; i < p->nbufs; i++) {
        if (p->bufs[i].kind == TJ_BUF_TEMP) {
            tj_free(e.base[i]);
        }
    }
    tj_free(x);
    tj_free(e.base);
    tj_free(e.lo);
    tj_free(e.hi);
    return e.st;
}
