// jit/expr.c: hash-consed integer expressions in polynomial normal form.
//
// Sums and products are kept as sorted polynomials over atoms (symbols, DIV, MAX, MIN), so that expressions that are
// equal by algebra have equal indices: "stride == extent * inner stride" is an integer compare.
#include "expr.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "../lib/hash.h"
#include "../trace/repeat.h"

enum { MAX_TERMS = 16, MAX_FACTORS = 8 };
struct term {
    int64_t coef;
    uint32_t nf;
    tj_ex f[MAX_FACTORS]; // ascending
};
struct poly {
    uint32_t n;
    struct term t[MAX_TERMS];
};

static uint64_t hash_node(uint8_t op, uint32_t a, uint32_t b, int64_t v) {
    return tj_hash_mix(tj_hash_mix(op, (uint64_t)a << 32 | b), (uint64_t)v);
}

static tj_ex intern(struct tj_exprs *x, uint8_t op, uint32_t a, uint32_t b, int64_t value) {
    int64_t key = op == TJ_EX_CONST ? value : 0;
    if (x->n * 2 >= x->tablesize) {
        uint32_t size = x->tablesize ? x->tablesize * 2 : 256;
        uint32_t *table = tj_calloc(size, sizeof *table);
        if (!table) {
            x->failed = true;
            return 0;
        }
        for (uint32_t i = 0; i < x->n; i++) {
            const struct tj_ex_node *e = &x->nodes[i];
            uint32_t h = (uint32_t)hash_node(e->op, e->a, e->b, e->op == TJ_EX_CONST ? e->value : 0) & (size - 1);
            while (table[h]) {
                h = (h + 1) & (size - 1);
            }
            table[h] = i + 1;
        }
        tj_free(x->table);
        x->table = table;
        x->tablesize = size;
    }
    uint32_t h = (uint32_t)hash_node(op, a, b, key) & (x->tablesize - 1);
    for (; x->table[h]; h = (h + 1) & (x->tablesize - 1)) {
        const struct tj_ex_node *e = &x->nodes[x->table[h] - 1];
        if (e->op == op && e->a == a && e->b == b && (op != TJ_EX_CONST || e->value == value)) {
            return x->table[h] - 1;
        }
    }
    if (!tj_grow((void **)&x->nodes, &x->cap, x->n + 1, sizeof *x->nodes)) {
        x->failed = true;
        return 0;
    }
    bool run = op == TJ_EX_STRIDE || op == TJ_EX_PARAM || (op >= TJ_EX_ADD && (x->nodes[a].run || x->nodes[b].run));
    x->nodes[x->n] = (struct tj_ex_node){op, run, a, b, value};
    x->table[h] = x->n + 1;
    return x->n++;
}

void tj_exprs_init(struct tj_exprs *x) {
    *x = (struct tj_exprs){0};
    intern(x, TJ_EX_CONST, 0, 0, 0);
    intern(x, TJ_EX_CONST, 0, 0, 1);
}

void tj_exprs_free(struct tj_exprs *x) {
    tj_free(x->nodes);
    tj_free(x->table);
    *x = (struct tj_exprs){0};
}

tj_ex tj_ex_const(struct tj_exprs *x, int64_t v) { return x->n < 2 ? 0 : intern(x, TJ_EX_CONST, 0, 0, v); }

tj_ex tj_ex_sym(struct tj_exprs *x, enum tj_ex_op op, uint32_t a, uint32_t b, int64_t hint) {
    return x->n < 2 ? 0 : intern(x, (uint8_t)op, a, b, hint);
}

// floor(a / b), b > 0
static bool floor_div(int64_t a, int64_t b, int64_t *out) {
    if (b == 0) {
        *out = 0;
        return true;
    }
    if (b < 0) {
        return false;
    }
    *out = a / b - (a % b < 0);
    return true;
}

static bool huge(int64_t *out) {
    *out = TJ_EX_HUGE;
    return true;
}

static bool apply(uint8_t op, int64_t a, int64_t b, int64_t *out) {
    if (TJ_UNLIKELY(a == TJ_EX_HUGE || b == TJ_EX_HUGE)) {
        *out = op == TJ_EX_MUL && (a == 0 || b == 0) ? 0 : TJ_EX_HUGE;
        return true;
    }
    switch (op) {
    case TJ_EX_ADD: return !__builtin_add_overflow(a, b, out) || huge(out);
    case TJ_EX_SUB: return !__builtin_sub_overflow(a, b, out) || huge(out);
    case TJ_EX_MUL: return !__builtin_mul_overflow(a, b, out) || huge(out);
    case TJ_EX_DIV: return floor_div(a, b, out);
    case TJ_EX_MAX: *out = a > b ? a : b; return true;
    case TJ_EX_MIN: *out = a < b ? a : b; return true;
    default: return false;
    }
}

static tj_ex raw(struct tj_exprs *x, uint8_t op, tj_ex a, tj_ex b) {
    int64_t hint = 0;
    if (!apply(op, x->nodes[a].value, x->nodes[b].value, &hint)) {
        x->failed = true;
    }
    return intern(x, op, a, b, hint);
}

static bool read_term(const struct tj_exprs *x, tj_ex e, struct term *t) {
    *t = (struct term){.coef = 1};
    while (x->nodes[e].op == TJ_EX_MUL) {
        if (t->nf == MAX_FACTORS) {
            return false;
        }
        t->f[t->nf++] = x->nodes[e].b;
        e = x->nodes[e].a;
    }
    if (x->nodes[e].op == TJ_EX_CONST) {
        t->coef = x->nodes[e].value;
    } else {
        if (t->nf == MAX_FACTORS) {
            return false;
        }
        t->f[t->nf++] = e;
    }
    for (uint32_t i = 0; i < t->nf / 2; i++) { // chains are built ascending, so they were read descending
        tj_ex s = t->f[i];
        t->f[i] = t->f[t->nf - 1 - i];
        t->f[t->nf - 1 - i] = s;
    }
    return true;
}

static bool read_poly(const struct tj_exprs *x, tj_ex e, struct poly *p) {
    p->n = 0;
    while (x->nodes[e].op == TJ_EX_ADD) {
        if (p->n == MAX_TERMS || !read_term(x, x->nodes[e].b, &p->t[p->n])) {
            return false;
        }
        p->n++;
        e = x->nodes[e].a;
    }
    if (p->n == MAX_TERMS || !read_term(x, e, &p->t[p->n])) {
        return false;
    }
    p->n++;
    return true;
}

static int compare_terms(const void *va, const void *vb) {
    const struct term *a = va, *b = vb;
    if (a->nf != b->nf) {
        return a->nf < b->nf ? -1 : 1;
    }
    for (uint32_t i = 0; i < a->nf; i++) {
        if (a->f[i] != b->f[i]) {
            return a->f[i] < b->f[i] ? -1 : 1;
        }
    }
    return 0;
}

static tj_ex write_term(struct tj_exprs *x, const struct term *t) {
    if (t->nf == 0) {
        return tj_ex_const(x, t->coef);
    }
    tj_ex e;
    uint32_t i = 0;
    if (t->coef == 1) {
        e = t->f[i++];
    } else {
        e = tj_ex_const(x, t->coef);
    }
    for (; i < t->nf; i++) {
        e = raw(x, TJ_EX_MUL, e, t->f[i]);
    }
    return e;
}

static tj_ex write_poly(struct tj_exprs *x, struct poly *p) {
    qsort(p->t, p->n, sizeof *p->t, compare_terms);
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        if (n && compare_terms(&p->t[n - 1], &p->t[i]) == 0) {
            if (__builtin_add_overflow(p->t[n - 1].coef, p->t[i].coef, &p->t[n - 1].coef)) {
                x->failed = true;
            }
        } else {
            p->t[n++] = p->t[i];
        }
        if (p->t[n - 1].coef == 0) {
            n--;
        }
    }
    if (n == 0) {
        return 0;
    }
    tj_ex e = write_term(x, &p->t[n - 1]);
    for (uint32_t i = n - 1; i-- > 0;) {
        e = raw(x, TJ_EX_ADD, e, write_term(x, &p->t[i]));
    }
    return e;
}

static bool mul_terms(const struct term *a, const struct term *b, struct term *out) {
    if (a->nf + b->nf > MAX_FACTORS || __builtin_mul_overflow(a->coef, b->coef, &out->coef)) {
        return false;
    }
    uint32_t i = 0, j = 0;
    out->nf = 0;
    while (i < a->nf || j < b->nf) {
        bool left = j == b->nf || (i < a->nf && a->f[i] <= b->f[j]);
        out->f[out->nf++] = left ? a->f[i++] : b->f[j++];
    }
    return true;
}

// a /= b where that is exact; a is undefined otherwise.
static bool div_term(struct term *a, const struct term *b) {
    uint32_t j = 0, n = 0;
    if (a->coef % b->coef) {
        return false;
    }
    for (uint32_t i = 0; i < a->nf; i++) {
        if (j < b->nf && a->f[i] == b->f[j]) {
            j++;
        } else {
            a->f[n++] = a->f[i];
        }
    }
    a->nf = n;
    a->coef /= b->coef;
    return j == b->nf;
}

tj_ex tj_ex_factor(const struct tj_exprs *x, tj_ex e, int64_t value) {
    struct poly p;
    if (!read_poly(x, e, &p) || p.n != 1) {
        return 0;
    }
    for (uint32_t i = 0; i < p.t[0].nf; i++) {
        if (x->nodes[p.t[0].f[i]].value == value) {
            return p.t[0].f[i];
        }
    }
    return 0;
}

int64_t tj_ex_coefficient(const struct tj_exprs *x, tj_ex e) {
    struct poly p;
    return read_poly(x, e, &p) && p.n == 1 ? p.t[0].coef : 1;
}

tj_ex tj_ex_bin(struct tj_exprs *x, enum tj_ex_op op, tj_ex a, tj_ex b) {
    if (x->n < 2) {
        return 0;
    }
    if (tj_ex_is_const(x, a) && tj_ex_is_const(x, b)) {
        int64_t v = 0;
        if (!apply((uint8_t)op, x->nodes[a].value, x->nodes[b].value, &v)) {
            x->failed = true;
        }
        return tj_ex_const(x, v);
    }
    struct poly pa, pb;
    switch (op) {
    case TJ_EX_ADD:
    case TJ_EX_SUB:
        if (b == 0) {
            return a;
        }
        if (op == TJ_EX_ADD && a == 0) {
            return b;
        }
        if (!read_poly(x, a, &pa) || !read_poly(x, b, &pb) || pa.n + pb.n > MAX_TERMS) {
            return raw(x, (uint8_t)op, a, b);
        }
        for (uint32_t i = 0; i < pb.n; i++) {
            if (op == TJ_EX_SUB) {
                if (pb.t[i].coef == INT64_MIN) {
                    return raw(x, (uint8_t)op, a, b);
                }
                pb.t[i].coef = -pb.t[i].coef;
            }
            pa.t[pa.n++] = pb.t[i];
        }
        return write_poly(x, &pa);
    case TJ_EX_MUL:
        if (a == 0 || b == 0) {
            return 0;
        }
        if (a == 1 || b == 1) {
            return a == 1 ? b : a;
        }
        if (read_poly(x, a, &pa) && read_poly(x, b, &pb) && pa.n * pb.n <= MAX_TERMS) {
            struct poly p = {0};
            bool ok = true;
            for (uint32_t i = 0; ok && i < pa.n; i++) {
                for (uint32_t j = 0; ok && j < pb.n; j++) {
                    ok = mul_terms(&pa.t[i], &pb.t[j], &p.t[p.n++]);
                }
            }
            if (ok) {
                return write_poly(x, &p);
            }
        }
        // Opaque product: as an ADD of nothing it stays an atom for later polynomials only if it isn't read as a chain,
        // which read_term bounds by MAX_FACTORS.
        return raw(x, (uint8_t)op, a < b ? a : b, a < b ? b : a);
    case TJ_EX_DIV:
        if (b == 1) {
            return a;
        }
        if (a == 0) {
            return 0;
        }
        // Exact division of every term by a product.
        if (read_poly(x, a, &pa) && read_poly(x, b, &pb) && pb.n == 1) {
            const struct term *tb = &pb.t[0];
            bool ok = tb->coef > 0;
            for (uint32_t i = 0; ok && i < pa.n; i++) {
                ok = div_term(&pa.t[i], tb);
            }
            if (ok) {
                return write_poly(x, &pa);
            }
        }
        return raw(x, (uint8_t)op, a, b);
    default:
        if (a == b) {
            return a;
        }
        return raw(x, (uint8_t)op, a < b ? a : b, a < b ? b : a);
    }
}

bool tj_ex_exact_div(struct tj_exprs *x, tj_ex a, tj_ex b, tj_ex *q) {
    if (b == 0) {
        return false;
    }
    if (a == 0 || b == 1) {
        *q = a;
        return true;
    }
    if (tj_ex_is_const(x, a) && tj_ex_is_const(x, b)) {
        int64_t va = tj_ex_hint(x, a), vb = tj_ex_hint(x, b);
        if (va % vb) {
            return false;
        }
        *q = tj_ex_const(x, va / vb);
        return true;
    }
    if (tj_ex_known(x, b, 0) || tj_ex_hint(x, b) <= 0) {
        return false;
    }
    *q = tj_ex_bin(x, TJ_EX_DIV, a, b);
    return tj_ex_bin(x, TJ_EX_MUL, *q, b) == a;
}

static void print(const struct tj_exprs *x, tj_ex e, char *buf, size_t cap, size_t *n, int depth) {
    const struct tj_ex_node *d = &x->nodes[e];
    static const char *const names[] = {"", "", "", "", "", "", "+", "-", "*", "/", "max", "min"};
#define PUT(...)                                                                                                       \
    do {                                                                                                               \
        int w = snprintf(*n < cap ? buf + *n : NULL, *n < cap ? cap - *n : 0, __VA_ARGS__);                            \
        *n += w > 0 ? (size_t)w : 0;                                                                                   \
    } while (0)
    if (depth > 64) {
        PUT("..");
        return;
    }
    switch (d->op) {
    case TJ_EX_CONST: PUT("%" PRId64, d->value); break;
    case TJ_EX_EXTENT: PUT("x%u.%u", d->a, d->b); break;
    case TJ_EX_STRIDE: PUT("x%u.s%u", d->a, d->b); break;
    case TJ_EX_PARAM: PUT("p%u", d->a); break;
    case TJ_EX_ARG: PUT("n%u.%u", d->a, d->b); break;
    case TJ_EX_ATTR: PUT("n%u.a%u", d->a, d->b); break;
    case TJ_EX_MAX:
    case TJ_EX_MIN:
        PUT("%s(", names[d->op]);
        print(x, d->a, buf, cap, n, depth + 1);
        PUT(",");
        print(x, d->b, buf, cap, n, depth + 1);
        PUT(")");
        break;
    default: {
        bool sum = d->op == TJ_EX_ADD || d->op == TJ_EX_SUB;
        if (sum && depth) {
            PUT("(");
        }
        print(x, d->a, buf, cap, n, sum ? depth : depth + 1);
        PUT("%s", names[d->op]);
        print(x, d->b, buf, cap, n, depth + 1);
        if (sum && depth) {
            PUT(")");
        }
    }
    }
#undef PUT
}

void tj_ex_print(const struct tj_exprs *x, tj_ex e, char *buf, size_t cap) {
    size_t n = 0;
    if (cap) {
        buf[0] = '\0';
    }
    print(x, e, buf, cap, &n, 0);
}

// Symbols and constants come before TJ_EX_ADD, what is computed from others after it.
static inline bool computed(const struct tj_ex_node *e) { return e->op >= TJ_EX_ADD; }

// A symbol that is part of what was recorded: an argument of an op, or an amount among its attributes.
static inline int64_t recorded(const struct tj_ex_node *e, const struct tj_trace *t, const struct tj_inlined *in) {
    const struct tj_node *n = &t->nodes[tj_inlined_node(in, e->a)];
    return e->op == TJ_EX_ARG ? tj_shape_dims(t, n->shape)[e->b] : t->attrs[n->attr + e->b];
}

// The value of a symbol or constant in a run.
static inline int64_t given(const struct tj_ex_node *e, const struct tj_run_args *args) {
    switch (e->op) {
    case TJ_EX_CONST: return e->value;
    case TJ_EX_EXTENT: return args->leaves[e->a].tensor->dims[e->b];
    case TJ_EX_STRIDE: return args->leaves[e->a].tensor->strides[e->b];
    case TJ_EX_PARAM: return args->params[e->a].v.i;
    default: return recorded(e, args->trace, args->inlined);
    }
}

bool tj_exprs_eval(const struct tj_exprs *x, const struct tj_run_args *args, int64_t *out) {
    for (uint32_t i = 0; i < x->n; i++) {
        const struct tj_ex_node *e = &x->nodes[i];
        if (!computed(e)) {
            out[i] = given(e, args);
        } else if (!apply(e->op, out[e->a], out[e->b], &out[i])) {
            return false;
        }
    }
    return true;
}

bool tj_exprs_same(const struct tj_exprs *x, const struct tj_run_args *args, const int64_t *vals) {
    for (uint32_t i = 0; i < x->n; i++) {
        const struct tj_ex_node *e = &x->nodes[i];
        if (e->op != TJ_EX_CONST && !computed(e) && given(e, args) != vals[i]) {
            return false;
        }
    }
    return true;
}

// Shape of a leaf.
static uint32_t leaf_shape(const struct tj_trace *t, const struct tj_inlined *in, uint32_t leaf) {
    return in ? t->nodes[tj_inlined_node(in->around, in->body->leaves[leaf].node)].shape : t->leafkeys[leaf].shape;
}

bool tj_exprs_eval_shapes(const struct tj_exprs *x, uint32_t n, const struct tj_trace *t,
                          const struct tj_inlined *inlined, int64_t *out) {
    for (uint32_t i = 0; i < n; i++) {
        const struct tj_ex_node *e = &x->nodes[i];
        switch (e->op) {
        case TJ_EX_CONST: out[i] = e->value; break;
        case TJ_EX_EXTENT: out[i] = tj_shape_dims(t, leaf_shape(t, inlined, e->a))[e->b]; break;
        case TJ_EX_STRIDE:
        case TJ_EX_PARAM: out[i] = 0; break;
        case TJ_EX_ARG:
        case TJ_EX_ATTR: out[i] = recorded(e, t, inlined); break;
        default:
            if (!apply(e->op, out[e->a], out[e->b], &out[i])) {
                return false;
            }
        }
    }
    return true;
}

bool tj_exprs_again(const struct tj_exprs *x, int64_t *out) {
    for (uint32_t i = 0; i < x->n; i++) {
        const struct tj_ex_node *e = &x->nodes[i];
        if (computed(e) && !apply(e->op, out[e->a], out[e->b], &out[i])) {
            return false;
        }
    }
    return true;
}
