// tests/test_program.c: graph, scheduling and lowering without a compiler: programs run in the reference evaluator.
//
// Random traces go through the interpreter and through programs (fused, unfused, unsimplified, symbolic); results must
// be the same bits, but for contractions, whose order differs.
#include "../jit/program.h"
#include "../lib/cpu.h"
#include "../lib/log.h"
#include "../lib/strbuf.h"
#include "../trace/dynamic.h"
#include "../trace/interp.h"
#include "program_eval.h"
#include "tj_test.h"

// ---- traces by hand -----------------------------------------------------------------------------------------------

enum { MAX_LEAVES = 64, MAX_OUTS = 32 };
struct world {
    struct tj_trace t;
    struct trace_tensor tensors[MAX_LEAVES];
    struct tj_storage st[MAX_LEAVES];
    unsigned char *initial[MAX_LEAVES];
    size_t bytes[MAX_LEAVES];
    tj_ref outs[MAX_OUTS], writes[MAX_OUTS];
    uint32_t nouts, nwrites;
    bool loose[1 << 16]; // value depends on a contraction
    uint64_t rng;
};

static uint32_t rnd(struct world *w, uint32_t n) {
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return n ? (uint32_t)(w->rng >> 33) % n : 0;
}

static void world_init(struct world *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    tj_trace_init(&w->t);
    w->rng = seed * 77 + 5;
    for (int i = 0; i < 5; i++) {
        rnd(w, 2);
    }
}
static void world_free(struct world *w) {
    for (uint32_t i = 0; i < w->t.nleaves; i++) {
        free(w->initial[i]);
        free(w->st[i].data);
    }
    tj_trace_free(&w->t);
}

static const int64_t *dims_of(struct world *w, tj_ref n) { return tj_shape_dims(&w->t, w->t.nodes[n].shape); }
static size_t rank_of(struct world *w, tj_ref n) { return tj_shape_rank(&w->t, w->t.nodes[n].shape); }
static tj_dtype dtype_of(struct world *w, tj_ref n) { return (tj_dtype)w->t.nodes[n].dtype; }
static int64_t numel_of(struct world *w, tj_ref n) {
    int64_t e = 1;
    (void)tj_numel(dims_of(w, n), rank_of(w, n), &e);
    return e;
}

static tj_ref node(struct world *w, enum tj_op op, tj_dtype d, const int64_t *dims, size_t rank, const tj_ref *in,
                   size_t nin, const void *attr, size_t bytes) {
    int64_t copy[TJ_MAX_RANK + 1];
    if (rank) {
        memcpy(copy, dims, rank * sizeof *dims);
    }
    tj_ref ins[16];
    if (nin) {
        memcpy(ins, in, nin * sizeof *in);
    }
    tj_ref r = tj_trace_append(&w->t, op, d, tj_trace_shape(&w->t, copy, rank), ins, nin, attr, bytes / 8,
                               TJ_LOC("test.c", (int32_t)w->t.nnodes));
    ck_assert_uint_ne(r, TJ_NIL);
    for (size_t i = 0; i < nin; i++) {
        w->loose[r] = w->loose[r] || w->loose[ins[i]];
    }
    w->loose[r] = w->loose[r] || tj_ops[op].cls == TJ_CONTRACT;
    return r;
}
#define ATTR(a) &(a), sizeof(a)
#define NOATTR NULL, 0

static tj_ref scalar(struct world *w, tj_dtype d, double f, int64_t i) {
    ck_assert(tj_grow((void **)&w->t.params, &w->t.capparams, w->t.nparams + 1, sizeof *w->t.params));
    struct tj_param *p = &w->t.params[w->t.nparams];
    memset(p, 0, sizeof *p);
    p->dtype = (uint8_t)d;
    if (tj_is_float(d)) {
        unsigned char m[8];
        tj_istore_scalar(d, m, (union tj_scalar){.f = f});
        p->v.f = tj_iload_f64(d, m);
    } else {
        p->v.i = i;
    }
    struct tj_attr_param a = {w->t.nparams++};
    return node(w, TJ_OP_SCALAR, d, NULL, 0, NULL, 0, ATTR(a));
}

// layout: 0 contiguous, 1 strided (padded rows), 2 transposed, 3 broadcast in dim 0
static tj_ref leaf(struct world *w, tj_dtype d, const int64_t *dims, size_t rank, int layout, int64_t top) {
    uint32_t i = w->t.nleaves;
    ck_assert(tj_grow((void **)&w->t.leafkeys, &w->t.capleafkeys, i + 1, sizeof *w->t.leafkeys));
    ck_assert(tj_grow((void **)&w->t.leaves, &w->t.capleaves, i + 1, sizeof *w->t.leaves));
    struct trace_tensor *t = &w->tensors[i];
    memset(t, 0, sizeof *t);
    t->dtype = (uint8_t)d;
    t->rank = (uint8_t)rank;
    memcpy(t->dims, dims, rank * sizeof *dims);
    tj_contiguous_strides(dims, rank, t->strides);
    if (layout == 1) {
        for (size_t k = rank; k-- > 1;) {
            t->strides[k - 1] = t->strides[k] * (dims[k] ? dims[k] : 1) + (k == 1 ? 3 : rank > 2);
        }
    } else if (layout == 2 && rank >= 2) {
        int64_t s = 1;
        for (size_t k = 0; k < rank; k++) {
            t->strides[k] = s;
            s *= dims[k];
        }
    } else if (layout == 3 && rank) {
        t->strides[0] = 0;
    }
    t->numel = 1;
    int64_t span = 1;
    for (size_t k = 0; k < rank; k++) {
        t->numel *= dims[k];
        span += dims[k] ? (dims[k] - 1) * t->strides[k] : 0;
    }
    size_t e = tj_elem_bytes(d);
    t->st = &w->st[i];
    w->bytes[i] = (size_t)span * e;
    w->st[i].data = malloc(w->bytes[i] + 1);
    w->initial[i] = malloc(w->bytes[i] + 1);
    w->st[i].bytes = w->bytes[i];
    for (int64_t k = 0; k < span; k++) {
        unsigned char *p = w->initial[i] + (size_t)k * e;
        if (tj_is_float(d)) {
            tj_istore_scalar(d, p, (union tj_scalar){.f = ((double)rnd(w, 4001) - 2000) / 700});
        } else {
            tj_istore_scalar(d, p,
                             (union tj_scalar){.i = top ? (int64_t)rnd(w, (uint32_t)top)
                                                        : (int64_t)rnd(w, 21) - (d == TRACE_U8 ? 0 : 10)});
        }
    }
    w->t.leafkeys[i] = (struct tj_leaf_key){.dtype = (uint8_t)d, .rank = (uint8_t)rank};
    w->t.leafkeys[i].layout = tj_layout_of(t->dims, t->strides, rank);
    w->t.leafkeys[i].shape = tj_trace_shape(&w->t, dims, rank);
    w->t.leaves[i].tensor = t;
    w->t.nleaves++;
    struct tj_attr_leaf a = {i};
    return node(w, TJ_OP_LEAF, d, dims, rank, NULL, 0, ATTR(a));
}

static tj_ref un(struct world *w, enum tj_op op, tj_ref a) {
    return node(w, op, dtype_of(w, a), dims_of(w, a), rank_of(w, a), &a, 1, NOATTR);
}
static tj_ref cast(struct world *w, tj_ref a, tj_dtype d) {
    return dtype_of(w, a) == d ? a : node(w, TJ_OP_CAST, d, dims_of(w, a), rank_of(w, a), &a, 1, NOATTR);
}
// Broadcastable operands; false when they are not.
static bool shapes(struct world *w, tj_ref a, tj_ref b, int64_t *dims, size_t *rank) {
    size_t ra = rank_of(w, a), rb = rank_of(w, b), r = ra > rb ? ra : rb;
    for (size_t d = 0; d < r; d++) {
        int64_t x = d + ra >= r ? dims_of(w, a)[d + ra - r] : 1, y = d + rb >= r ? dims_of(w, b)[d + rb - r] : 1;
        if (x != y && x != 1 && y != 1) {
            return false;
        }
        dims[d] = x == 1 ? y : x;
    }
    *rank = r;
    return true;
}
static tj_ref bin(struct world *w, enum tj_op op, tj_ref a, tj_ref b) {
    int64_t dims[TJ_MAX_RANK];
    size_t rank;
    if (!shapes(w, a, b, dims, &rank)) {
        return TJ_NIL;
    }
    tj_ref in[2] = {a, cast(w, b, dtype_of(w, a))};
    tj_dtype d = tj_ops[op].rule == TJ_RULE_BOOL ? TRACE_BOOL : dtype_of(w, a);
    return node(w, op, d, dims, rank, in, 2, NOATTR);
}
static tj_ref permute(struct world *w, tj_ref a, const int64_t *perm) {
    struct tj_attr_perm p = {{0}};
    int64_t dims[TJ_MAX_RANK];
    for (size_t i = 0; i < rank_of(w, a); i++) {
        p.perm[i] = perm[i];
        dims[i] = dims_of(w, a)[perm[i]];
    }
    return node(w, TJ_OP_PERMUTE, dtype_of(w, a), dims, rank_of(w, a), &a, 1, ATTR(p));
}
static tj_ref slice(struct world *w, tj_ref a, size_t dim, int64_t start, int64_t len, int64_t step) {
    int64_t dims[TJ_MAX_RANK];
    memcpy(dims, dims_of(w, a), rank_of(w, a) * sizeof *dims);
    dims[dim] = len;
    struct tj_attr_slice s = {(int64_t)dim, step};
    tj_ref in[2] = {a, scalar(w, TRACE_I64, 0, start)};
    return node(w, TJ_OP_SLICE, dtype_of(w, a), dims, rank_of(w, a), in, 2, ATTR(s));
}
static tj_ref reduce(struct world *w, enum tj_op op, tj_ref a, int64_t mask, bool keep) {
    int64_t dims[TJ_MAX_RANK];
    size_t n = 0;
    for (size_t d = 0; d < rank_of(w, a); d++) {
        bool r = mask >> d & 1;
        if (!r || keep) {
            dims[n++] = r ? 1 : dims_of(w, a)[d];
        }
    }
    struct tj_attr_reduce at = {mask, keep, op == TJ_OP_VAR};
    tj_dtype d = op == TJ_OP_ARGMAX || op == TJ_OP_ARGMIN ? TRACE_I64 : dtype_of(w, a);
    return node(w, op, d, dims, n, &a, 1, ATTR(at));
}
static tj_ref reshape(struct world *w, tj_ref a, const int64_t *dims, size_t rank) {
    return node(w, TJ_OP_RESHAPE, dtype_of(w, a), dims, rank, &a, 1, NOATTR);
}

// ---- running both ways --------------------------------------------------------------------------------------------

struct result {
    unsigned char *outs[MAX_OUTS], *leaves[MAX_LEAVES];
    uint32_t error;
    tj_ref error_node;
};
static void result_free(struct world *w, struct result *r) {
    for (uint32_t i = 0; i < w->nouts; i++) {
        free(r->outs[i]);
    }
    for (uint32_t i = 0; i < w->t.nleaves; i++) {
        free(r->leaves[i]);
    }
}
static size_t out_bytes(struct world *w, uint32_t i) {
    return (size_t)numel_of(w, w->outs[i]) * tj_elem_bytes(dtype_of(w, w->outs[i]));
}

static void dump(struct world *w, const struct tj_program *p) {
    struct tj_strbuf sb = {0};
    tj_trace_dump(&w->t, w->outs, w->nouts, &sb);
    if (p) {
        tj_program_dump(p, &w->t, &sb);
    }
    fprintf(stderr, "%s\n", sb.s ? sb.s : "");
    tj_sb_free(&sb);
}

static void run(struct world *w, const struct tj_segment *seg, const struct tj_program *p, struct result *r) {
    struct trace_tensor outs[MAX_OUTS], *ptr[MAX_OUTS];
    struct tj_storage st[MAX_OUTS];
    struct tj_data_error err = {0};
    uint64_t counts[3] = {0};
    memset(outs, 0, sizeof outs);
    memset(st, 0, sizeof st);
    memset(r, 0, sizeof *r);
    for (uint32_t i = 0; i < w->nouts; i++) {
        struct trace_tensor *t = ptr[i] = &outs[i];
        t->dtype = (uint8_t)dtype_of(w, w->outs[i]);
        t->rank = (uint8_t)rank_of(w, w->outs[i]);
        memcpy(t->dims, dims_of(w, w->outs[i]), t->rank * sizeof *t->dims);
        tj_contiguous_strides(t->dims, t->rank, t->strides);
        t->numel = numel_of(w, w->outs[i]);
        t->st = &st[i];
        r->outs[i] = calloc(1, out_bytes(w, i) + 1);
        st[i].data = r->outs[i];
        st[i].bytes = out_bytes(w, i);
    }
    for (uint32_t i = 0; i < w->t.nleaves; i++) {
        memcpy(w->st[i].data, w->initial[i], w->bytes[i]);
    }
    static trace_context *ctx; // the interpreter's workspace comes from it
    if (!ctx) {
        ck_assert_int_eq(trace_context_create(NULL, &ctx), TRACE_OK);
    }
    struct tj_run_args args = {.ctx = ctx,
                               .trace = &w->t,
                               .leaves = w->t.leaves,
                               .params = w->t.params,
                               .outs = ptr,
                               .err = &err,
                               .launches = &counts[0],
                               .bytes_moved = &counts[1],
                               .interpreted = &counts[2]};
    tj_status s = p ? program_eval(p, &args) : tj_interp_run(seg, &args);
    if (s) {
        dump(w, p);
    }
    ck_assert_msg(s == TRACE_OK, "%s", tj_last_error());
    for (uint32_t i = 0; i < w->t.nleaves; i++) {
        r->leaves[i] = malloc(w->bytes[i] + 1);
        memcpy(r->leaves[i], w->st[i].data, w->bytes[i]);
    }
    r->error = err.set != 0;
    r->error_node = err.node;
}

static bool close_enough(double a, double b, double rel) {
    return a == b || (a != a && b != b) || fabs(a - b) <= rel * (1 + fabs(a) + fabs(b));
}

static bool compare(tj_dtype d, const unsigned char *a, const unsigned char *b, size_t bytes, bool loose,
                    size_t *where) {
    size_t e = tj_elem_bytes(d);
    for (size_t i = 0; i < bytes / e; i++) {
        if (!memcmp(a + i * e, b + i * e, e)) {
            continue;
        }
        double x = tj_is_float(d) ? tj_iload_f64(d, a + i * e) : (double)tj_iload_i64(d, a + i * e);
        double y = tj_is_float(d) ? tj_iload_f64(d, b + i * e) : (double)tj_iload_i64(d, b + i * e);
        double rel = d == TRACE_F64 || d == TRACE_F32 ? 3e-4 : 2e-2; // an f64 may come from an f32
        if ((x != x && y != y) || (loose && tj_is_float(d) && close_enough(x, y, rel))) {
            continue;
        }
        *where = i;
        return false;
    }
    return true;
}

enum {
    FUSED = 0,
    SINGLE = 1u << TJ_KILL_FUSE,
    PLAIN = 1u << TJ_KILL_SIMPLIFY,
    NO_EPILOGUE = 1u << TJ_KILL_EPILOGUE,
    SYMBOLIC = 1u << 30
};

static struct tj_program *build(struct world *w, uint32_t how, struct tj_segment *seg) {
    static struct tj_env env;
    static struct tj_cpu cpu;
    memset(&env, 0, sizeof env);
    env.kill = how & ~(uint32_t)SYMBOLIC;
    *seg = (struct tj_segment){
        .trace = &w->t, .outs = w->outs, .nouts = w->nouts, .writes = w->writes, .nwrites = w->nwrites, .name = "test"};
    if (how & SYMBOLIC) { // all extents but ones
        static struct tj_dynamic dyn;
        tj_dynamic_free(&dyn);
        ck_assert(tj_dynamic_init(&dyn, &w->t));
        for (uint32_t i = 0; i < w->t.nleaves + w->t.nnodes; i++) {
            uint32_t shape = i < w->t.nleaves ? w->t.leafkeys[i].shape : w->t.nodes[i - w->t.nleaves].shape;
            bool counts = i < w->t.nleaves || tj_shape_is_argument(w->t.nodes[i - w->t.nleaves].op);
            for (size_t d = 0; counts && d < tj_shape_rank(&w->t, shape); d++)
                dyn.leaf[i] |= (uint8_t)((tj_shape_dims(&w->t, shape)[d] != 1) << d);
        }
        seg->dyn = &dyn;
    }
    struct tj_program *p;
    tj_status s = tj_program_build(seg, &env, &cpu, &p);
    if (s) {
        dump(w, NULL);
        fprintf(stderr, "how %x\n", how);
    }
    ck_assert_msg(s == TRACE_OK, "%s", tj_last_error());
    return p;
}

static uint32_t check_how(struct world *w, uint32_t how, uint64_t seed) {
    struct tj_segment seg;
    struct tj_program *p = build(w, how, &seg);
    struct result a, b;
    run(w, &seg, NULL, &a);
    if (getenv("DUMP")) {
        dump(w, p);
    }
    run(w, &seg, p, &b);
    size_t at = 0;
    for (uint32_t i = 0; i < w->nouts; i++) {
        if (!compare(dtype_of(w, w->outs[i]), a.outs[i], b.outs[i], out_bytes(w, i), w->loose[w->outs[i]], &at)) {
            dump(w, p);
            ck_abort_msg("seed %llu how %x: out %u differs at %zu", (unsigned long long)seed, how, i, at);
        }
    }
    for (uint32_t i = 0; i < w->t.nleaves; i++) {
        bool loose = false;
        for (uint32_t k = 0; k < w->nwrites; k++) {
            loose = loose || w->loose[w->writes[k]];
        }
        if (!compare(dtype_of(w, 0) == TRACE_F32 ? (tj_dtype)w->t.leafkeys[i].dtype : (tj_dtype)w->t.leafkeys[i].dtype,
                     a.leaves[i], b.leaves[i], w->bytes[i], loose, &at)) {
            dump(w, p);
            ck_abort_msg("seed %llu how %x: leaf %u differs at %zu", (unsigned long long)seed, how, i, at);
        }
    }
    if (b.error && !a.error) {
        dump(w, p);
        ck_abort_msg("seed %llu how %x: error at node %u, none in the interpreter", (unsigned long long)seed, how,
                     b.error_node);
    }
    uint32_t n = p->nsteps;
    result_free(w, &a);
    result_free(w, &b);
    tj_program_free(p);
    return n;
}
static void check(struct world *w, uint64_t seed) {
    static const uint32_t hows[] = {FUSED, SINGLE, PLAIN, NO_EPILOGUE, SYMBOLIC};
    for (size_t i = 0; i < TJ_COUNT(hows); i++) {
        check_how(w, hows[i], seed);
    }
}
static void out(struct world *w, tj_ref n) { w->outs[w->nouts++] = n; }

// ---- random graphs ------------------------------------------------------------------------------------------------

static void random_dims(struct world *w, int64_t *dims, size_t *rank) {
    static const int64_t sizes[] = {1, 2, 3, 4, 6, 2, 3, 5, 1, 8, 70};
    *rank = 1 + rnd(w, 4);
    int64_t n = 1;
    for (size_t i = 0; i < *rank; i++) {
        dims[i] = sizes[rnd(w, n > 60 ? 5 : TJ_COUNT(sizes))];
        n *= dims[i];
    }
}

struct pool {
    tj_ref v[256];
    uint32_t n;
};
static tj_ref pick(struct world *w, const struct pool *p) {
    uint32_t recent = p->n < 6 ? p->n : 6;
    return rnd(w, 3) ? p->v[p->n - 1 - rnd(w, recent)] : p->v[rnd(w, p->n)];
}

// One more op over the pool's values; TJ_NIL when the draw does not fit.
static tj_ref grow(struct world *w, struct pool *p) {
    tj_ref a = pick(w, p), b = pick(w, p);
    tj_dtype d = dtype_of(w, a);
    size_t rank = rank_of(w, a);
    int64_t dims[TJ_MAX_RANK + 1];
    memcpy(dims, dims_of(w, a), rank * sizeof *dims);
    bool fl = tj_is_float(d);
    switch (rnd(w, 34)) {
    case 0:
    case 1: {
        static const enum tj_op f[] = {TJ_OP_NEG,  TJ_OP_ABS,    TJ_OP_TANH, TJ_OP_RELU, TJ_OP_SIGMOID,
                                       TJ_OP_GELU, TJ_OP_SQUARE, TJ_OP_SIGN, TJ_OP_EXP};
        static const enum tj_op i[] = {TJ_OP_ABS, TJ_OP_SIGN, TJ_OP_RELU, TJ_OP_SQUARE};
        if (d == TRACE_BOOL) {
            return node(w, TJ_OP_LOGICAL_NOT, TRACE_BOOL, dims, rank, &a, 1, NOATTR);
        }
        return un(w, fl ? f[rnd(w, TJ_COUNT(f))] : i[rnd(w, TJ_COUNT(i))], a);
    }
    case 2:
    case 3:
    case 4:
    case 5: {
        static const enum tj_op f[] = {TJ_OP_ADD,     TJ_OP_SUB, TJ_OP_MUL, TJ_OP_MAXIMUM,
                                       TJ_OP_MINIMUM, TJ_OP_DIV, TJ_OP_LT,  TJ_OP_GE};
        static const enum tj_op i[] = {TJ_OP_ADD, TJ_OP_MUL, TJ_OP_MAXIMUM, TJ_OP_LT, TJ_OP_EQ, TJ_OP_FLOOR_DIVIDE};
        static const enum tj_op l[] = {TJ_OP_ADD, TJ_OP_LOGICAL_XOR, TJ_OP_MUL, TJ_OP_EQ};
        return bin(w,
                   fl                ? f[rnd(w, TJ_COUNT(f))]
                   : d == TRACE_BOOL ? l[rnd(w, TJ_COUNT(l))]
                                     : i[rnd(w, TJ_COUNT(i))],
                   a, b);
    }
    case 6: {
        static const tj_dtype to[] = {TRACE_F32,  TRACE_F64,  TRACE_I32, TRACE_I64, TRACE_F16,
                                      TRACE_BF16, TRACE_BOOL, TRACE_U8,  TRACE_F32};
        return cast(w, a, to[rnd(w, TJ_COUNT(to))]);
    }
    case 7: {
        tj_ref c = cast(w, b, TRACE_BOOL);
        size_t r;
        if (!shapes(w, a, c, dims, &r)) {
            return TJ_NIL;
        }
        tj_ref in[3] = {c, a, scalar(w, d, 0.25, 1)};
        return node(w, TJ_OP_WHERE, d, dims, r, in, 3, NOATTR);
    }
    case 8:
    case 9:
    case 10: {
        static const enum tj_op ops[] = {TJ_OP_SUM,  TJ_OP_MEAN,   TJ_OP_VAR, TJ_OP_AMAX,
                                         TJ_OP_AMIN, TJ_OP_ARGMAX, TJ_OP_SUM};
        enum tj_op op = ops[rnd(w, TJ_COUNT(ops))];
        if (!rank || numel_of(w, a) == 0) {
            return TJ_NIL;
        }
        if (op == TJ_OP_SUM && !fl) {
            a = cast(w, a, TRACE_I64);
        } else if ((op == TJ_OP_MEAN || op == TJ_OP_VAR) && !fl) {
            a = cast(w, a, TRACE_F32);
        } else if (d == TRACE_BOOL) {
            op = rnd(w, 2) ? TJ_OP_ANY : TJ_OP_ALL;
        }
        int64_t mask = 1 + rnd(w, (1u << rank) - 1);
        return reduce(w, op, a, mask, rnd(w, 2));
    }
    case 11: {
        if (!fl || !rank) {
            return TJ_NIL;
        }
        struct tj_attr_dim at = {rnd(w, (uint32_t)rank)};
        return node(w, rnd(w, 2) ? TJ_OP_SOFTMAX : TJ_OP_LOG_SOFTMAX, d, dims, rank, &a, 1, ATTR(at));
    }
    case 12: {
        if (!fl || !rank) {
            return TJ_NIL;
        }
        struct tj_attr_norm at = {1 + rnd(w, (uint32_t)rank)};
        size_t first = rank - (size_t)at.ndim;
        tj_ref wt = leaf(w, d, dims + first, (size_t)at.ndim, 0, 0), e = scalar(w, d, 1e-3, 0);
        if (rnd(w, 2)) {
            tj_ref in[4] = {a, wt, leaf(w, d, dims + first, (size_t)at.ndim, 0, 0), e};
            return node(w, TJ_OP_LAYER_NORM, d, dims, rank, in, 4, ATTR(at));
        }
        tj_ref in[3] = {a, wt, e};
        return node(w, TJ_OP_RMS_NORM, d, dims, rank, in, 3, ATTR(at));
    }
    case 13:
    case 14: { // reshape: merge or split
        if (rank >= 2 && rnd(w, 2)) {
            size_t k = rnd(w, (uint32_t)rank - 1);
            dims[k] *= dims[k + 1];
            memmove(dims + k + 1, dims + k + 2, (rank - k - 2) * sizeof *dims);
            return reshape(w, a, dims, rank - 1);
        }
        if (rank && rank < 5) {
            size_t k = rnd(w, (uint32_t)rank);
            for (int64_t f = 2; f < 8; f++) {
                if (dims[k] % f == 0 && dims[k] > f) {
                    memmove(dims + k + 1, dims + k, (rank - k) * sizeof *dims);
                    dims[k] /= f;
                    dims[k + 1] = f;
                    return reshape(w, a, dims, rank + 1);
                }
            }
            memmove(dims + k + 1, dims + k, (rank - k) * sizeof *dims);
            dims[k] = 1;
            return reshape(w, a, dims, rank + 1);
        }
        int64_t all = numel_of(w, a);
        return reshape(w, a, &all, 1);
    }
    case 15:
    case 16: {
        int64_t perm[TJ_MAX_RANK];
        for (size_t i = 0; i < rank; i++) {
            size_t j = rnd(w, (uint32_t)i + 1);
            perm[i] = perm[j];
            perm[j] = (int64_t)i;
        }
        return permute(w, a, perm);
    }
    case 17: {
        bool any = false;
        for (size_t i = 0; i < rank; i++) {
            if (dims[i] == 1) {
                dims[i] = 3;
                any = true;
            }
        }
        if (!any && rank < 5 && numel_of(w, a) < 600) {
            memmove(dims + 1, dims, rank * sizeof *dims);
            dims[0] = 2;
            rank++;
        } else if (!any || numel_of(w, a) > 600) {
            return TJ_NIL;
        }
        return node(w, TJ_OP_EXPAND, d, dims, rank, &a, 1, NOATTR);
    }
    case 18:
    case 19: {
        size_t k = rank ? rnd(w, (uint32_t)rank) : 0;
        if (!rank || dims[k] < 2) {
            return TJ_NIL;
        }
        int64_t step = 1 + rnd(w, 2), start = rnd(w, (uint32_t)dims[k]), most = (dims[k] - start + step - 1) / step;
        return slice(w, a, k, start, 1 + rnd(w, (uint32_t)most), step);
    }
    case 20: {
        if (rank < 2) {
            return TJ_NIL;
        }
        struct tj_attr_diagonal at = {rnd(w, (uint32_t)rank), 0};
        at.d1 = (at.d0 + 1) % (int64_t)rank;
        int64_t off = (int64_t)rnd(w, 3) - 1, h = dims[at.d0], v = dims[at.d1], len;
        len = off >= 0 ? (h < v - off ? h : v - off) : (h + off < v ? h + off : v);
        if (len < 1) {
            return TJ_NIL;
        }
        size_t n = 0;
        for (size_t i = 0; i < rank; i++) {
            if ((int64_t)i != at.d0 && (int64_t)i != at.d1) {
                dims[n++] = dims[i];
            }
        }
        dims[n++] = len;
        tj_ref in[2] = {a, scalar(w, TRACE_I64, 0, off)};
        return node(w, TJ_OP_DIAGONAL, d, dims, n, in, 2, ATTR(at));
    }
    case 21: {
        size_t k = rank ? rnd(w, (uint32_t)rank) : 0;
        if (!rank || dims[k] < 3 || rank > 4) {
            return TJ_NIL;
        }
        struct tj_attr_unfold at = {(int64_t)k, 2, 1 + rnd(w, 2)};
        dims[rank] = at.size;
        dims[k] = (dims[k] - at.size) / at.step + 1;
        return node(w, TJ_OP_UNFOLD, d, dims, rank + 1, &a, 1, ATTR(at));
    }
    case 22: {
        struct tj_attr_mask at = {1 + rnd(w, rank ? (1u << rank) - 1 : 1)};
        return rank ? node(w, TJ_OP_FLIP, d, dims, rank, &a, 1, ATTR(at)) : TJ_NIL;
    }
    case 23: return node(w, TJ_OP_COPY, d, dims, rank, &a, 1, NOATTR);
    case 24: {
        if (!rank) {
            return TJ_NIL;
        }
        size_t k = rnd(w, (uint32_t)rank);
        tj_ref in[3] = {a, cast(w, un(w, d == TRACE_BOOL ? TJ_OP_BITWISE_NOT : TJ_OP_ABS, a), d), a};
        size_t n = 2 + rnd(w, 2);
        dims[k] *= (int64_t)n;
        struct tj_attr_dim at = {(int64_t)k};
        return numel_of(w, a) < 1000 ? node(w, TJ_OP_CAT, d, dims, rank, in, n, ATTR(at)) : TJ_NIL;
    }
    case 25:
    case 26: {
        if (!rank) {
            return TJ_NIL;
        }
        struct tj_attr_pad at = {.mode = rnd(w, 3)};
        for (size_t i = 0; i < rank; i++) {
            int64_t most = dims[i] > 2 ? 2 : dims[i] - 1;
            at.lo[i] = rnd(w, (uint32_t)most + 1);
            at.hi[i] = rnd(w, (uint32_t)most + 1);
            if (at.mode == TRACE_PAD_CONSTANT && dims[i] > 3 && rnd(w, 3) == 0) {
                at.lo[i] = -1;
            }
            dims[i] += at.lo[i] + at.hi[i];
        }
        tj_ref in[2] = {a, scalar(w, d, -1.5, 1)};
        return node(w, TJ_OP_PAD, d, dims, rank, in, 2, ATTR(at));
    }
    case 27: {
        if (!rank) {
            return TJ_NIL;
        }
        struct tj_attr_dim at = {rnd(w, (uint32_t)rank)};
        int64_t n = dims[at.dim];
        if (rnd(w, 2)) {
            dims[at.dim] = 1 + rnd(w, 5);
            tj_ref in[2] = {a, leaf(w, TRACE_I64, dims, rank, 0, n)};
            return node(w, TJ_OP_GATHER, d, dims, rank, in, 2, ATTR(at));
        }
        dims[at.dim] = 1 + rnd(w, 5);
        tj_ref in[2] = {a, leaf(w, TRACE_I64, &dims[at.dim], 1, 0, n)};
        return node(w, TJ_OP_INDEX_SELECT, d, dims, rank, in, 2, ATTR(at));
    }
    case 28: {
        if (!rank) {
            return TJ_NIL;
        }
        struct tj_attr_dim at = {rnd(w, (uint32_t)rank)};
        int64_t n = dims[at.dim], m = 1 + rnd(w, 3), src[TJ_MAX_RANK];
        memcpy(src, dims, sizeof src);
        src[at.dim] = m;
        tj_ref in[3] = {a, leaf(w, TRACE_I64, &m, 1, 0, n), leaf(w, d, src, rank, 0, d == TRACE_BOOL ? 2 : 0)};
        return node(w, TJ_OP_INDEX_COPY, d, dims, rank, in, 3, ATTR(at));
    }
    case 29: { // linear with an activation
        if (d != TRACE_F32 || !rank) {
            return TJ_NIL;
        }
        int64_t wd[2] = {1 + rnd(w, 9), dims[rank - 1]};
        struct tj_attr_bias at = {rnd(w, 2)};
        tj_ref in[3] = {a, leaf(w, d, wd, 2, rnd(w, 2) ? 0 : 2, 0),
                        at.has_bias ? leaf(w, d, wd, 1, 0, 0) : scalar(w, d, 0, 0)};
        dims[rank - 1] = wd[0];
        tj_ref y = node(w, TJ_OP_LINEAR, d, dims, rank, in, 3, ATTR(at));
        return rnd(w, 2) ? un(w, TJ_OP_GELU, y) : y;
    }
    case 30: {
        if (rank < 2 || (d != TRACE_F32 && d != TRACE_F64 && d != TRACE_I32 && d != TRACE_F16)) {
            return TJ_NIL;
        }
        int64_t perm[TJ_MAX_RANK];
        for (size_t i = 0; i < rank; i++) {
            perm[i] = (int64_t)i;
        }
        perm[rank - 1] = (int64_t)rank - 2;
        perm[rank - 2] = (int64_t)rank - 1;
        tj_ref in[2] = {a, permute(w, a, perm)};
        dims[rank - 1] = dims[rank - 2];
        return node(w, TJ_OP_MATMUL, d, dims, rank, in, 2, NOATTR);
    }
    case 31: {
        if (rank != 4 || !fl || dims[2] < 2 || dims[3] < 2) {
            return TJ_NIL;
        }
        struct tj_attr_pool at = {.kernel = {2, 2}, .stride = {1 + rnd(w, 2), 1 + rnd(w, 2)}, .dilation = {1, 1}};
        at.padding[0] = rnd(w, 2);
        at.padding[1] = rnd(w, 2);
        at.include_pad = rnd(w, 2);
        for (int i = 0; i < 2; i++) {
            dims[2 + i] = (dims[2 + i] + 2 * at.padding[i] - 2) / at.stride[i] + 1;
        }
        return node(w, rnd(w, 2) ? TJ_OP_MAX_POOL2D : TJ_OP_AVG_POOL2D, d, dims, rank, &a, 1, ATTR(at));
    }
    case 32: {
        if (!rank || dims[0] < 2) {
            return TJ_NIL;
        }
        tj_ref in[2] = {scalar(w, TRACE_I64, 0, 3), scalar(w, TRACE_I64, 0, -2)};
        tj_ref r = node(w, TJ_OP_ARANGE, TRACE_F32, &dims[rank - 1], 1, in, 2, NOATTR);
        return bin(w, TJ_OP_ADD, r, a);
    }
    default: return TJ_NIL;
    }
}

// An in-place write of a value into (a view of) a memory of the pool. mem: index into the pool of its current content.
static void write_some(struct world *w, struct pool *p, uint32_t k, uint32_t *written) {
    tj_ref mem = p->v[k], view = mem;
    size_t rank = rank_of(w, mem);
    if (rank && dims_of(w, mem)[0] > 1 && rnd(w, 2)) {
        int64_t n = dims_of(w, mem)[0];
        int64_t start = rnd(w, (uint32_t)n);
        view = slice(w, mem, 0, start, 1 + rnd(w, (uint32_t)(n - start)), 1);
    }
    tj_ref v;
    tj_dtype d = dtype_of(w, mem);
    if (rnd(w, 4) == 0 && rank) {
        struct tj_attr_dim at = {0};
        int64_t src[TJ_MAX_RANK], m = 1 + rnd(w, 2);
        memcpy(src, dims_of(w, view), rank * sizeof *src);
        int64_t n = src[0];
        src[0] = m;
        tj_ref in[3] = {view, leaf(w, TRACE_I64, &m, 1, 0, n), leaf(w, d, src, rank, 0, d == TRACE_BOOL ? 2 : 0)};
        v = node(w, TJ_OP_INDEX_COPY, d, dims_of(w, view), rank, in, 3, ATTR(at));
    } else {
        tj_ref o = pick(w, p);
        int64_t dims[TJ_MAX_RANK];
        size_t r;
        v = d != TRACE_BOOL && shapes(w, view, o, dims, &r) && r == rank &&
                    !memcmp(dims, dims_of(w, view), r * sizeof *dims)
                ? bin(w, TJ_OP_ADD, view, o)
                : node(w, TJ_OP_EXPAND, d, dims_of(w, view), rank, (tj_ref[]){scalar(w, d, 2.5, 1)}, 1, NOATTR);
        if (rank && rnd(w, 3) == 0) {
            struct tj_attr_mask at = {1};
            v = node(w, TJ_OP_FLIP, d, dims_of(w, view), rank, &v, 1, ATTR(at));
        }
    }
    tj_ref in[3] = {mem, v, view};
    tj_ref u = node(w, TJ_OP_UPDATE, d, dims_of(w, mem), rank, in, 3, NOATTR);
    p->v[k] = u; // later uses see the new content
    written[k] = 1;
}

static bool memory_root(struct world *w, tj_ref n) {
    uint16_t op = w->t.nodes[n].op;
    return op == TJ_OP_LEAF || op == TJ_OP_UPDATE || (tj_ops[op].cls != TJ_VIEW && op != TJ_OP_SCALAR);
}
static bool leaf_root(struct world *w, tj_ref n) {
    while (w->t.nodes[n].op == TJ_OP_UPDATE) {
        n = w->t.nodes[n].in[0];
    }
    return w->t.nodes[n].op == TJ_OP_LEAF;
}

static void random_graph(struct world *w, uint64_t seed, bool writes) {
    struct pool p = {.n = 0};
    uint32_t written[256] = {0};
    static const tj_dtype first[] = {TRACE_F32,  TRACE_F32, TRACE_F64, TRACE_I32,
                                     TRACE_BF16, TRACE_F16, TRACE_I64, TRACE_F32};
    world_init(w, seed);
    uint32_t nleaves = 1 + rnd(w, 3);
    int64_t dims[TJ_MAX_RANK];
    size_t rank;
    random_dims(w, dims, &rank);
    for (uint32_t i = 0; i < nleaves; i++) {
        if (rnd(w, 2)) {
            random_dims(w, dims, &rank);
        }
        int layout = (int)rnd(w, 6);
        p.v[p.n++] = leaf(w, first[rnd(w, TJ_COUNT(first))], dims, rank,
                          layout > 3              ? 0
                          : writes && layout == 3 ? 0
                                                  : layout,
                          0);
    }
    uint32_t steps = 3 + rnd(w, 18);
    for (uint32_t i = 0, tries = 0; i < steps && tries < 300; tries++) {
        if (writes && rnd(w, 5) == 0) {
            uint32_t k = rnd(w, p.n);
            if (memory_root(w, p.v[k]) && numel_of(w, p.v[k])) {
                // Views of the old content are not used any more.
                tj_ref old = p.v[k];
                write_some(w, &p, k, written);
                for (uint32_t j = 0; j < p.n; j++) {
                    if (p.v[j] == old || tj_ops[w->t.nodes[p.v[j]].op].cls == TJ_VIEW) {
                        p.v[j] = p.v[k];
                        written[j] = 1;
                    }
                }
            }
            continue;
        }
        if (w->t.nleaves > MAX_LEAVES - 6 || p.n > 200) {
            break;
        }
        tj_ref n = grow(w, &p);
        if (n != TJ_NIL && numel_of(w, n) <= 4000 && rank_of(w, n) <= 6) {
            p.v[p.n++] = n;
            i++;
        }
    }
    for (uint32_t i = p.n; i-- > 0 && w->nouts < 6;) {
        if (i + 1 == p.n || rnd(w, 4) == 0) {
            out(w, p.v[i]);
        }
    }
    for (uint32_t i = 0; i < p.n && w->nwrites < MAX_OUTS; i++) {
        bool twice = false;
        for (uint32_t j = 0; j < w->nwrites; j++) {
            twice = twice || w->writes[j] == p.v[i];
        }
        if (written[i] && !twice && leaf_root(w, p.v[i]) && w->t.nodes[p.v[i]].op == TJ_OP_UPDATE) {
            w->writes[w->nwrites++] = p.v[i];
        }
    }
}

static void random_run(uint64_t from, uint64_t n, bool writes) {
    static struct world w;
    const char *only = getenv("SEED");
    for (uint64_t s = from; s < from + n; s++) {
        if (only && strtoull(only, NULL, 10) != s) {
            continue;
        }
        random_graph(&w, s, writes);
        if (getenv("VERBOSE")) {
            fprintf(stderr, "seed %llu\n", (unsigned long long)s);
        }
        check(&w, s);
        world_free(&w);
    }
}

START_TEST(random_graphs) {
    const char *n = getenv("COUNT");
    random_run(1, n ? strtoull(n, NULL, 10) : 1000, false);
}
END_TEST
START_TEST(random_writes) {
    const char *n = getenv("COUNT");
    random_run(1000001, n ? strtoull(n, NULL, 10) : 1000, true);
}
END_TEST

START_TEST(norm_is_one_kernel) {
    static struct world w;
    int64_t dims[3] = {1, 1, 70};
    for (int k = 0; k < 3; k++) {
        world_init(&w, 1);
        struct tj_attr_norm at = {1};
        dims[1] = 1 + k;
        tj_ref x = leaf(&w, TRACE_F32, dims, 3, 0, 0);
        tj_ref in[4] = {x, leaf(&w, TRACE_F32, dims + 2, 1, 0, 0), leaf(&w, TRACE_F32, dims + 2, 1, 0, 0),
                        scalar(&w, TRACE_F32, 1e-3, 0)};
        out(&w, node(&w, TJ_OP_LAYER_NORM, TRACE_F32, dims, 3, in, 4, ATTR(at)));
        ck_assert_uint_eq(check_how(&w, FUSED, 0), 1);
        world_free(&w);
    }
}
END_TEST

// ---- what fuses ---------------------------------------------------------------------------------------------------

static tj_ref f32(struct world *w, size_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t dims[4] = {a, b, c, d};
    return leaf(w, TRACE_F32, dims, rank, 0, 0);
}
static tj_ref layer_norm(struct world *w, tj_ref x) {
    size_t r = rank_of(w, x);
    int64_t n = dims_of(w, x)[r - 1];
    struct tj_attr_norm at = {1};
    tj_ref in[4] = {x, f32(w, 1, n, 0, 0, 0), f32(w, 1, n, 0, 0, 0), scalar(w, TRACE_F32, 1e-3, 0)};
    return node(w, TJ_OP_LAYER_NORM, TRACE_F32, dims_of(w, x), r, in, 4, ATTR(at));
}
static tj_ref linear(struct world *w, tj_ref x, int64_t n) {
    size_t r = rank_of(w, x);
    int64_t dims[TJ_MAX_RANK];
    memcpy(dims, dims_of(w, x), r * sizeof *dims);
    struct tj_attr_bias at = {1};
    tj_ref in[3] = {x, f32(w, 2, n, dims[r - 1], 0, 0), f32(w, 1, n, 0, 0, 0)};
    dims[r - 1] = n;
    return node(w, TJ_OP_LINEAR, TRACE_F32, dims, r, in, 3, ATTR(at));
}

// Builds, checks against the interpreter, and gives the number of steps; *cached, *epilogues: of its kernels.
static uint32_t steps(struct world *w, uint32_t *cached, uint32_t *epilogues) {
    struct tj_segment seg;
    check(w, 0);
    struct tj_program *p = build(w, FUSED, &seg);
    uint32_t n = p->nsteps;
    *cached = *epilogues = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct tj_step *st = &p->steps[i];
        *epilogues += st->kind != TJ_STEP_LOOP && st->loop.kernel;
        for (uint32_t k = 0; st->loop.kernel && k < st->loop.kernel->nins; k++) {
            *cached += st->loop.kernel->ins[k].flags & TJ_KF_CACHE;
        }
    }
    if (getenv("DUMP")) {
        dump(w, p);
    }
    tj_program_free(p);
    world_free(w);
    return n;
}
static struct world W;
static uint32_t cached, epilogues;

START_TEST(bias_gelu_residual_norm) {
    world_init(&W, 3);
    tj_ref x = f32(&W, 2, 6, 96, 0, 0), b = f32(&W, 1, 96, 0, 0, 0), r = f32(&W, 2, 6, 96, 0, 0);
    out(&W, layer_norm(&W, bin(&W, TJ_OP_ADD, un(&W, TJ_OP_GELU, bin(&W, TJ_OP_ADD, x, b)), r)));
    ck_assert_uint_eq(steps(&W, &cached, &epilogues), 1);
    ck_assert_uint_eq(cached, 1); // the sum of gelu and residual, and nothing else
}
END_TEST

START_TEST(masked_softmax) {
    world_init(&W, 4);
    tj_ref x = f32(&W, 4, 1, 2, 5, 70), q = f32(&W, 2, 5, 70, 0, 0);
    tj_ref mask = cast(&W, q, TRACE_BOOL), y = bin(&W, TJ_OP_MUL, x, scalar(&W, TRACE_F32, 0.125, 0));
    tj_ref in[3] = {mask, y, scalar(&W, TRACE_F32, -1e9, 0)};
    y = node(&W, TJ_OP_WHERE, TRACE_F32, dims_of(&W, x), 4, in, 3, NOATTR);
    struct tj_attr_dim at = {3};
    out(&W, node(&W, TJ_OP_SOFTMAX, TRACE_F32, dims_of(&W, x), 4, &y, 1, ATTR(at)));
    ck_assert_uint_eq(steps(&W, &cached, &epilogues), 1);
    ck_assert_uint_eq(cached, 1);
}
END_TEST

START_TEST(mlp_epilogues) {
    world_init(&W, 5);
    tj_ref x = f32(&W, 2, 8, 16, 0, 0);
    x = un(&W, TJ_OP_GELU, linear(&W, x, 40));
    x = un(&W, TJ_OP_RELU, linear(&W, x, 24));
    out(&W, linear(&W, x, 7));
    ck_assert_uint_eq(steps(&W, &cached, &epilogues), 3);
    ck_assert_uint_eq(epilogues, 2);
}
END_TEST

// A transformer block's skeleton: residual sums are stored and normalised by the epilogue that makes them.
START_TEST(residual_blocks) {
    world_init(&W, 6);
    tj_ref x = f32(&W, 3, 2, 5, 24, 0), h = bin(&W, TJ_OP_ADD, x, linear(&W, layer_norm(&W, x), 24));
    tj_ref m = linear(&W, un(&W, TJ_OP_GELU, linear(&W, layer_norm(&W, h), 96)), 24);
    out(&W, bin(&W, TJ_OP_ADD, h, m));
    ck_assert_uint_eq(steps(&W, &cached, &epilogues), 4);
    ck_assert_uint_eq(epilogues, 3);
}
END_TEST

START_TEST(heads_need_no_copy) {
    world_init(&W, 7);
    tj_ref x = f32(&W, 3, 2, 5, 24, 0), h[3];
    static const int64_t split[4] = {2, 5, 3, 8}, merged[3] = {2, 5, 24}, perm[4] = {0, 2, 1, 3},
                         back[4] = {0, 2, 1, 3};
    for (int i = 0; i < 3; i++) {
        h[i] = permute(&W, reshape(&W, linear(&W, x, 24), split, 4), perm);
    }
    tj_ref in[5] = {h[0], h[1], h[2], scalar(&W, TRACE_F32, 0, 0), scalar(&W, TRACE_F32, 0.35, 0)};
    struct tj_attr_sdpa at = {.causal = 1};
    tj_ref y = node(&W, TJ_OP_SDPA, TRACE_F32, dims_of(&W, h[0]), 4, in, 5, ATTR(at));
    out(&W, linear(&W, reshape(&W, permute(&W, y, back), merged, 3), 24));
    ck_assert_uint_eq(steps(&W, &cached, &epilogues), 6); // 3 linear, sdpa, merging the heads, linear
}
END_TEST

START_TEST(convolution_block) {
    world_init(&W, 8);
    tj_ref x = f32(&W, 4, 2, 3, 8, 8), y = x;
    for (int i = 0; i < 2; i++) {
        struct tj_attr_conv at = {.has_bias = 1, .stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}, .groups = 1};
        tj_ref in[3] = {y, f32(&W, 4, 3, 3, 3, 3), f32(&W, 1, 3, 0, 0, 0)};
        y = node(&W, TJ_OP_CONV2D, TRACE_F32, dims_of(&W, x), 4, in, 3, ATTR(at));
        y = un(&W, TJ_OP_RELU, y);
    }
    y = bin(&W, TJ_OP_ADD, y, x);
    struct tj_attr_pool at = {.kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}};
    int64_t half[4] = {2, 3, 4, 4};
    out(&W, node(&W, TJ_OP_MAX_POOL2D, TRACE_F32, half, 4, &y, 1, ATTR(at)));
    ck_assert_uint_eq(steps(&W, &cached, &epilogues), 3);
    ck_assert_uint_eq(epilogues, 2);
}
END_TEST

START_TEST(embedding_norm) {
    world_init(&W, 9);
    int64_t n = 12, dims[2] = {12, 24};
    tj_ref table = f32(&W, 2, 30, 24, 0, 0), idx = leaf(&W, TRACE_I64, &n, 1, 0, 30), pos = f32(&W, 2, 12, 24, 0, 0);
    struct tj_attr_dim at = {0};
    tj_ref in[2] = {table, idx};
    tj_ref e = node(&W, TJ_OP_INDEX_SELECT, TRACE_F32, dims, 2, in, 2, ATTR(at));
    out(&W, layer_norm(&W, bin(&W, TJ_OP_ADD, e, pos)));
    ck_assert_uint_eq(steps(&W, &cached, &epilogues), 1);
}
END_TEST

START_TEST(cache_rows_in_place) {
    world_init(&W, 10);
    int64_t one = 1, dims[4] = {1, 2, 16, 4}, row[4] = {1, 2, 1, 4};
    tj_ref kv = leaf(&W, TRACE_F32, dims, 4, 0, 0), pos = leaf(&W, TRACE_I64, &one, 1, 0, 16);
    tj_ref k = un(&W, TJ_OP_TANH, leaf(&W, TRACE_F32, row, 4, 0, 0));
    struct tj_attr_dim at = {2};
    tj_ref in[3] = {kv, pos, k};
    tj_ref c = node(&W, TJ_OP_INDEX_COPY, TRACE_F32, dims, 4, in, 3, ATTR(at));
    tj_ref up[3] = {kv, c, kv};
    W.writes[W.nwrites++] = node(&W, TJ_OP_UPDATE, TRACE_F32, dims, 4, up, 3, NOATTR);
    ck_assert_uint_eq(steps(&W, &cached, &epilogues), 2); // tanh, and its rows into place
}
END_TEST

START_TEST(long_sum_is_split) {
    struct tj_segment seg;
    world_init(&W, 11);
    tj_ref x = f32(&W, 2, 40, 5000, 0, 0), s = reduce(&W, TJ_OP_MEAN, bin(&W, TJ_OP_MUL, x, x), 3, false);
    out(&W, bin(&W, TJ_OP_DIV, x, s));
    check(&W, 0);
    struct tj_program *p = build(&W, FUSED, &seg);
    ck_assert_uint_eq(p->nsteps, 2);
    ck_assert_uint_eq(p->steps[0].loop.kernel->split, 1);
    tj_program_free(p);
    world_free(&W);
}
END_TEST

// Schedules as text against files; TJ_GOLDEN_UPDATE=1 writes them anew.
static void golden(struct world *w, const char *name, uint32_t how) {
    struct tj_segment seg;
    struct tj_program *p = build(w, how, &seg);
    struct tj_strbuf sb = {0};
    char path[256];
    static char want[1 << 16];
    tj_program_dump(p, &w->t, &sb);
    ck_assert(sb.s && !sb.failed);
    (void)snprintf(path, sizeof path, "tests/golden/%s.txt", name);
    if (getenv("TJ_GOLDEN_UPDATE")) {
        FILE *f = fopen(path, "w");
        ck_assert_ptr_nonnull(f);
        ck_assert_uint_eq(fwrite(sb.s, 1, sb.n, f), sb.n);
        ck_assert_int_eq(fclose(f), 0);
    } else {
        FILE *f = fopen(path, "r");
        ck_assert_msg(f != NULL, "%s: run from the top folder", path);
        size_t n = fread(want, 1, sizeof want - 1, f);
        (void)fclose(f);
        want[n] = '\0';
        ck_assert_msg(n == sb.n && !memcmp(want, sb.s, n), "%s differs:\n%s", path, sb.s);
    }
    tj_sb_free(&sb);
    tj_program_free(p);
}
START_TEST(golden_dumps) {
    world_init(&W, 3);
    tj_ref x = f32(&W, 2, 6, 96, 0, 0), b = f32(&W, 1, 96, 0, 0, 0), r = f32(&W, 2, 6, 96, 0, 0);
    out(&W, layer_norm(&W, bin(&W, TJ_OP_ADD, un(&W, TJ_OP_GELU, bin(&W, TJ_OP_ADD, x, b)), r)));
    golden(&W, "program_norm", FUSED);
    golden(&W, "program_norm_symbolic", SYMBOLIC);
    world_free(&W);
    world_init(&W, 5);
    x = f32(&W, 3, 2, 4, 16, 0);
    x = bin(&W, TJ_OP_ADD, linear(&W, un(&W, TJ_OP_GELU, linear(&W, x, 40)), 16), x);
    out(&W, reduce(&W, TJ_OP_AMAX, x, 2, false));
    out(&W, x);
    golden(&W, "program_mlp", FUSED);
    golden(&W, "program_mlp_single", SINGLE);
    world_free(&W);
}
END_TEST

// 20,000 ops: about linear time, no deep recursion.
START_TEST(long_chain) {
    world_init(&W, 12);
    int64_t dims[2] = {3, 4}, perm[2] = {1, 0};
    tj_ref x = leaf(&W, TRACE_F32, dims, 2, 0, 0), b = leaf(&W, TRACE_F32, dims, 2, 0, 0), y = x;
    for (int i = 0; i < 20000; i++) {
        int64_t *d = i % 2 ? dims : (int64_t[2]){4, 3};
        if (i % 5 == 4) {
            y = permute(&W, permute(&W, y, perm), perm);
        }
        (void)d;
        tj_ref in[2] = {y, b};
        tj_ref r = tj_trace_append(&W.t, i % 3 ? TJ_OP_ADD : TJ_OP_SUB, TRACE_F32, W.t.nodes[y].shape, in, 2, NULL, 0,
                                   (struct tj_loc){0});
        y = r;
    }
    out(&W, y);
    W.loose[0] = false;
    check_how(&W, FUSED, 0);
    check_how(&W, SINGLE, 0);
    world_free(&W);
}
END_TEST

// Every allocation may fail.
static uint64_t allowed;
static bool limited(size_t bytes) {
    (void)bytes;
    return allowed ? allowed-- > 1 : true;
}
START_TEST(allocation_failures) {
    static struct tj_env env;
    static struct tj_cpu cpu;
    for (uint64_t seed = 1; seed < 12; seed++) {
        random_graph(&W, seed, seed & 1);
        struct tj_segment seg = {
            .trace = &W.t, .outs = W.outs, .nouts = W.nouts, .writes = W.writes, .nwrites = W.nwrites, .name = "t"};
        bool done = false;
        for (uint64_t n = 2; !done; n++) {
            struct tj_program *p = NULL;
            allowed = n;
            tj_alloc_hook = limited;
            tj_status s = tj_program_build(&seg, &env, &cpu, &p);
            done = allowed > 1;
            tj_alloc_hook = NULL;
            ck_assert_msg(s == (done ? TRACE_OK : TRACE_ERR_MEMORY) || s == TRACE_OK, "%s", tj_last_error());
            ck_assert(s == TRACE_OK ? p != NULL : p == NULL);
            tj_program_free(p);
        }
        world_free(&W);
    }
}
END_TEST

TJ_TEST_MAIN("program", random_graphs, random_writes, norm_is_one_kernel, bias_gelu_residual_norm, masked_softmax,
             mlp_epilogues, residual_blocks, heads_need_no_copy, convolution_block, embedding_norm, cache_rows_in_place,
             long_sum_is_split, golden_dumps, long_chain, allocation_failures)
