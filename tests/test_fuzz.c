// tests/test_fuzz.c: random graphs through the three implementations: interpreter, single-op kernels, fused kernels.
//
// A graph is a function of its seed: the generator draws ops and looks only at shapes and dtypes, so that every
// implementation records the same ops. Results, contents of written inputs and read-back scalars have to agree bit for
// bit (any NaN equals any NaN): pointwise ops, moves and reductions by contract, and matmul, linear and conv2d because
// the interpreter adds in the same order. A failing graph is cut to its shortest failing prefix and printed.
//
// The same graphs over inputs of changing extents go through one region, whose plans become symbolic.
//
//     FUZZ_SEED=7 FUZZ_COUNT=100000 build/release/tests/test_fuzz
#include "../trace/backend.h"
#include "tj_test.h"

#include <stdarg.h>

typedef trace_tensor T;
enum { MAX_POOL = 64, MAX_OUT = 4, NIN = 7 };
enum impl { INTERP, SINGLE, FUSED, IMPLS };
static const char *const impl_env[IMPLS] = {"jit", "fuse,epilogue", ""};
static const char *const impl_name[IMPLS] = {"interpreter", "single-op", "fused"};

struct input {
    enum trace_dtype dtype;
    size_t rank, bytes;
    int64_t dims[4];
    unsigned char data[4096];
};
struct outcome {
    enum trace_status status;
    char error[256];
    size_t nout;
    struct {
        int dtype, rank;
        int64_t dims[TRACE_MAX_RANK];
        size_t bytes;
        unsigned char *data;
    } out[MAX_OUT];
    unsigned char inputs[NIN][4096];
    double items[8];
    size_t nitems;
};
struct gen {
    uint64_t rng;
    T *pool[MAX_POOL];
    size_t n;
    trace_context *ctx;
    FILE *log;
    struct outcome *o;
    bool stop;
};

static uint32_t draw(struct gen *g, uint32_t n) { return (uint32_t)(tj_test_random(&g->rng) % n); }

static __attribute__((format(printf, 2, 3))) void say(struct gen *g, const char *fmt, ...) {
    if (!g->log)
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)fprintf(g->log, "    v%zu = ", g->n);
    (void)vfprintf(g->log, fmt, ap);
    (void)fputc('\n', g->log);
    va_end(ap);
}

static void push(struct gen *g, T *t) {
    if (!t) {
        g->stop = true;
        return;
    }
    int64_t n = trace_numel(t);
    if (n > 4096)
        return; // keeps graphs small
    if (g->n < MAX_POOL)
        g->pool[g->n++] = t;
}

static size_t pick(struct gen *g) { return draw(g, (uint32_t)g->n); }
static bool is_float(T *t) { return trace_dtype_of(t) >= TRACE_F16; }
static bool is_f32(T *t) { return trace_dtype_of(t) == TRACE_F32; }

// A value of a float dtype made from the pool.
static T *pick_float(struct gen *g, size_t *at) {
    *at = pick(g);
    T *t = g->pool[*at];
    return is_float(t) ? t : trace_to(t, TRACE_F32);
}

static bool fits(T *a, T *b) { // broadcast
    int ra = trace_rank(a), rb = trace_rank(b);
    for (int i = 1; i <= ra && i <= rb; i++) {
        int64_t x = trace_size(a, -i), y = trace_size(b, -i);
        if (x != y && x != 1 && y != 1)
            return false;
    }
    return true;
}

static T *partner(struct gen *g, T *a, size_t *at) {
    for (int tries = 0; tries < 12; tries++) {
        *at = pick(g);
        if (fits(a, g->pool[*at]))
            return g->pool[*at];
    }
    return NULL;
}

typedef T *unary_fn(T *);
typedef T *binary_fn(T *, T *);
#define TRACE_U(n)                                                                                                     \
    { #n, trace_##n }
static T *u_gelu(T *x) { return trace_gelu(x, TRACE_GELU_NONE); }
static T *u_gelu_tanh(T *x) { return trace_gelu(x, TRACE_GELU_TANH); }
static T *u_softplus(T *x) { return trace_softplus(x, 1, 20); }
static const struct {
    const char *name;
    unary_fn *fn;
} floats[] = {TRACE_U(sqrt),
              TRACE_U(rsqrt),
              TRACE_U(exp),
              TRACE_U(log),
              TRACE_U(sin),
              TRACE_U(cos),
              TRACE_U(tanh),
              TRACE_U(erf),
              TRACE_U(sigmoid),
              TRACE_U(silu),
              TRACE_U(reciprocal),
              TRACE_U(frac),
              {"gelu", u_gelu},
              {"gelu_tanh", u_gelu_tanh},
              {"softplus", u_softplus}},
  anys[] = {TRACE_U(relu),  TRACE_U(logical_not), TRACE_U(isnan),  TRACE_U(isinf), TRACE_U(floor), TRACE_U(ceil),
            TRACE_U(trunc), TRACE_U(round),       TRACE_U(square), TRACE_U(abs),   TRACE_U(neg),   TRACE_U(sign)};
static const struct {
    const char *name;
    binary_fn *fn;
} binaries[] = {TRACE_U(add),     TRACE_U(sub), TRACE_U(mul),         TRACE_U(div),        TRACE_U(maximum),
                TRACE_U(minimum), TRACE_U(eq),  TRACE_U(ne),          TRACE_U(lt),         TRACE_U(le),
                TRACE_U(gt),      TRACE_U(ge),  TRACE_U(logical_and), TRACE_U(logical_or), TRACE_U(logical_xor),
                TRACE_U(add),     TRACE_U(mul)};
#undef TRACE_U

static void step_unary(struct gen *g) {
    size_t a;
    if (draw(g, 2)) {
        T *x = pick_float(g, &a);
        size_t k = draw(g, (uint32_t)TJ_COUNT(floats));
        say(g, "%s(v%zu)", floats[k].name, a);
        push(g, floats[k].fn(x));
    } else {
        a = pick(g);
        size_t k = draw(g, (uint32_t)TJ_COUNT(anys));
        if (trace_dtype_of(g->pool[a]) == TRACE_BOOL && k >= 4)
            k = 1;
        say(g, "%s(v%zu)", anys[k].name, a);
        push(g, anys[k].fn(g->pool[a]));
    }
}

static void step_binary(struct gen *g) {
    size_t a = pick(g), b;
    T *x = g->pool[a], *y = partner(g, x, &b);
    size_t k = draw(g, (uint32_t)TJ_COUNT(binaries));
    if (!y)
        return;
    if (k == 1 && trace_dtype_of(x) == TRACE_BOOL && trace_dtype_of(y) == TRACE_BOOL)
        k = 0;
    say(g, "%s(v%zu, v%zu)", binaries[k].name, a, b);
    push(g, binaries[k].fn(x, y));
}

static void step_scalar(struct gen *g) {
    size_t a = pick(g);
    T *x = g->pool[a];
    double s = (double)(int)draw(g, 9) / 2 - 2;
    int k = (int)draw(g, 7);
    if (trace_dtype_of(x) == TRACE_BOOL && k == 1)
        k = 0;
    say(g, "scalar op %d(v%zu, %g)", k, a, s);
    switch (k) {
    case 0: push(g, trace_add_f(x, s)); break;
    case 1: push(g, trace_sub_i(x, (int64_t)s)); break;
    case 2: push(g, trace_mul_f(x, s)); break;
    case 3: push(g, trace_div_f(x, s)); break;
    case 4: push(g, trace_gt_f(x, s)); break;
    case 5: push(g, trace_clamp_f(x, s - 1, s + 1)); break;
    default: push(g, trace_pow_f(is_float(x) ? x : trace_to(x, TRACE_F32), s)); break;
    }
}

static void step_reduce(struct gen *g) {
    size_t a = pick(g);
    T *x = g->pool[a];
    int rank = trace_rank(x), k = (int)draw(g, 9);
    int64_t dims[4];
    size_t n = 0;
    for (int d = 0; d < rank && d < 4; d++)
        if (draw(g, 2))
            dims[n++] = d;
    bool keep = draw(g, 2);
    if (trace_numel(x) == 0 && k >= 3)
        k = 0;
    if (k <= 4 && k != 0 && !is_float(x))
        x = trace_to(x, TRACE_F32);
    say(g, "reduce %d(v%zu, %zu dims, first %lld, keep %d)", k, a, n, n ? (long long)dims[0] : -1, keep);
    switch (k) {
    case 0: push(g, trace_sum(x, dims, n, keep)); break;
    case 1: push(g, trace_mean(x, dims, n, keep)); break;
    case 2: push(g, trace_var(x, dims, n, 1, keep)); break;
    case 3: push(g, trace_amax(x, dims, n, keep)); break;
    case 4: push(g, trace_amin(x, dims, n, keep)); break;
    case 5: push(g, trace_any(x, dims, n, keep)); break;
    case 6: push(g, trace_all(x, dims, n, keep)); break;
    case 7: push(g, trace_argmax(x, rank && n ? dims[0] : TRACE_ALL_DIMS, rank && n ? keep : false)); break;
    default: push(g, trace_argmin(x, rank && n ? dims[0] : TRACE_ALL_DIMS, rank && n ? keep : false)); break;
    }
}

static void step_row(struct gen *g) {
    size_t a;
    T *x = pick_float(g, &a);
    int rank = trace_rank(x), k = (int)draw(g, 4);
    if (rank < 1)
        return;
    int64_t dim = draw(g, (uint32_t)rank), last = trace_size(x, -1);
    say(g, "row op %d(v%zu, dim %lld)", k, a, (long long)dim);
    if (k == 0)
        push(g, trace_softmax(x, dim));
    else if (k == 1)
        push(g, trace_log_softmax(x, dim));
    else if (k == 2)
        push(g, trace_layer_norm(x, TRACE_DIMS(last), TRACE_NONE, TRACE_NONE, 1e-5));
    else
        push(g, trace_rms_norm(x, TRACE_NONE, 1e-5));
}

static void step_view(struct gen *g) {
    size_t a = pick(g);
    T *x = g->pool[a];
    int rank = trace_rank(x), k = (int)draw(g, 10);
    if (rank < 1)
        return;
    int64_t d = draw(g, (uint32_t)rank), e = draw(g, (uint32_t)rank), size = trace_size(x, d);
    say(g, "view %d(v%zu, dims %lld %lld)", k, a, (long long)d, (long long)e);
    switch (k) {
    case 0: push(g, trace_transpose(x, d, e)); break;
    case 1: push(g, trace_reshape(x, TRACE_DIMS(-1))); break;
    case 2: push(g, trace_unsqueeze(x, d)); break;
    case 3: push(g, trace_flip(x, TRACE_DIMS(d))); break;
    case 4:
        if (size > 1)
            push(g, trace_narrow(x, d, draw(g, (uint32_t)size), 1));
        break;
    case 5:
        if (size > 2)
            push(g, trace_slice(x, d, 1, size, 2));
        break;
    case 6:
        if (size > 0)
            push(g, trace_select(x, d, draw(g, (uint32_t)size)));
        break;
    case 7:
        if (rank < 4)
            push(g, trace_expand(trace_unsqueeze(x, 0), (int64_t[]){3, -1, -1, -1, -1}, (size_t)rank + 1));
        break;
    case 8:
        if (rank >= 2 && d != e)
            push(g, trace_diagonal(x, 0, d, e));
        break;
    default:
        if (size >= 2 && rank < 4)
            push(g, trace_unfold(x, d, 2, 1));
        break;
    }
}

static void step_move(struct gen *g) {
    size_t a = pick(g), b;
    T *x = g->pool[a];
    int rank = trace_rank(x), k = (int)draw(g, 6);
    if (rank < 1)
        return;
    int64_t d = draw(g, (uint32_t)rank);
    say(g, "move %d(v%zu, dim %lld)", k, a, (long long)d);
    T *index = g->pool[0]; // i64 [5], values 0..2
    switch (k) {
    case 0: push(g, trace_cat(TRACE_ARGS(x, x), d)); break;
    case 1: push(g, trace_pad(x, TRACE_DIMS(1, 2), TRACE_PAD_CONSTANT, 3)); break;
    case 2:
        if (trace_size(x, d) >= 3)
            push(g, trace_index_select(x, d, index));
        break;
    case 3: {
        T *y = partner(g, x, &b), *c = y ? trace_gt_f(y, 0) : NULL;
        if (y)
            push(g, trace_where(c, x, y));
        break;
    }
    case 4: push(g, trace_to(x, (enum trace_dtype)draw(g, 8))); break;
    default:
        if (trace_size(x, -1) > 0)
            push(g, trace_pad(x, TRACE_DIMS(2, 1), TRACE_PAD_REPLICATE, 0));
        break;
    }
}

static void step_contract(struct gen *g) {
    size_t a = pick(g), b;
    T *x = g->pool[a];
    if (trace_rank(x) < 2 || !is_f32(x))
        return;
    int64_t m = trace_size(x, -2), k = trace_size(x, -1);
    if (m * k > 512)
        return;
    if (draw(g, 2)) {
        say(g, "matmul(v%zu, its transpose)", a);
        push(g, trace_matmul(x, trace_transpose(x, -1, -2)));
        return;
    }
    for (int tries = 0; tries < 8; tries++) {
        b = pick(g);
        T *w = g->pool[b];
        if (trace_rank(w) != 2 || !is_f32(w) || trace_size(w, 1) != k)
            continue;
        say(g, "relu(linear(v%zu, v%zu))", a, b);
        push(g, trace_relu(trace_linear(x, w, TRACE_NONE)));
        return;
    }
}

static void step_pool(struct gen *g) {
    size_t a = pick(g);
    T *x = g->pool[a];
    if (trace_rank(x) < 3 || trace_rank(x) > 4 || !is_f32(x) || trace_size(x, -1) < 2 || trace_size(x, -2) < 2)
        return;
    const int64_t two[2] = {2, 2}, one[2] = {1, 1};
    int k = (int)draw(g, 2);
    say(g, "pool %d(v%zu)", k, a);
    push(g, k ? trace_max_pool2d(x, two, one, one, NULL, false) : trace_avg_pool2d(x, two, two, one, true, false, 0));
}

static void step_write(struct gen *g) {
    size_t a = 1 + draw(g, NIN - 1), b; // an input
    T *x = g->pool[a];
    int k = (int)draw(g, 4);
    if (trace_dtype_of(x) == TRACE_BOOL)
        return;
    say(g, "in place %d on v%zu", k, a);
    if (k == 0) {
        if (!trace_add_f_(x, is_float(x) ? 0.5 : 1.0))
            g->stop = true;
    } else if (k == 1) {
        T *y = partner(g, x, &b);
        if (!y || trace_rank(y) > trace_rank(x))
            return;
        for (int i = 1; i <= trace_rank(y); i++)
            if (trace_size(y, -i) != trace_size(x, -i) && trace_size(y, -i) != 1)
                return;
        if (!trace_copy_(x, trace_clone(y)))
            g->stop = true;
    } else if (k == 2 && trace_rank(x) >= 1 && trace_size(x, 0) > 1) {
        if (!trace_mul_i_(trace_narrow(x, 0, 1, 1), 2))
            g->stop = true;
    } else if (k == 3 && trace_rank(x) >= 1 && trace_size(x, -1) > 2) {
        if (!trace_fill_i_(trace_slice(x, -1, 0, trace_size(x, -1), 2), 3))
            g->stop = true;
    }
}

static void step_item(struct gen *g) {
    size_t a = pick(g);
    T *x = g->pool[a];
    if (g->o->nitems >= TJ_COUNT(g->o->items) || trace_numel(x) == 0)
        return;
    if (!is_float(x))
        x = trace_to(x, TRACE_F64);
    say(g, "item(amax(v%zu))", a);
    double v;
    if (trace_item_f64(trace_amax(x, TRACE_SCALAR, false), &v)) {
        g->stop = true;
        return;
    }
    g->o->items[g->o->nitems++] = v;
}

static void body(struct gen *g, int steps) {
    for (int i = 0; i < steps && !g->stop; i++) {
        uint32_t k = draw(g, 34);
        if (k < 8)
            step_unary(g);
        else if (k < 14)
            step_binary(g);
        else if (k < 17)
            step_scalar(g);
        else if (k < 20)
            step_reduce(g);
        else if (k < 22)
            step_row(g);
        else if (k < 26)
            step_view(g);
        else if (k < 29)
            step_move(g);
        else if (k < 30)
            step_contract(g);
        else if (k < 31)
            step_pool(g);
        else if (k < 33)
            step_write(g);
        else if (draw(g, 3) == 0)
            step_item(g);
    }
}

// sizes: 0, or which other extents the inputs have.
static void make_inputs(uint64_t seed, int sizes, struct input *in) {
    static const enum trace_dtype dtypes[NIN] = {TRACE_I64, TRACE_F32,  TRACE_F32, TRACE_F32,
                                                 TRACE_I32, TRACE_BF16, TRACE_F32};
    uint64_t r = seed * 77 + 1;
    int64_t m = 1 + (int64_t)(tj_test_random(&r) % 6), n = 1 + (int64_t)(tj_test_random(&r) % 20);
    if (tj_test_random(&r) % 16 == 0)
        n = 70;
    uint64_t other = seed * 1009 + (uint64_t)sizes;
    if (sizes) {
        m = 2 + (int64_t)(tj_test_random(&other) % 7);
        n = 2 + (int64_t)(tj_test_random(&other) % (sizes % 3 ? 12 : 80));
    }
    if (sizes % 7 == 5)
        *(tj_test_random(&other) % 2 ? &m : &n) = (int64_t)(tj_test_random(&other) % 2);
    const int64_t dims[NIN][4] = {{5}, {m, n}, {n}, {2, 3, 5, 6}, {m, 1}, {3, m, n}, {4, n}};
    const size_t ranks[NIN] = {1, 2, 1, 4, 2, 3, 2};
    for (int i = 0; i < NIN; i++) {
        in[i].dtype = dtypes[i];
        in[i].rank = ranks[i];
        memcpy(in[i].dims, dims[i], sizeof in[i].dims);
        size_t count = 1;
        for (size_t d = 0; d < ranks[i]; d++)
            count *= (size_t)dims[i][d];
        for (size_t e = 0; e < count; e++) {
            float f = tj_test_uniform(&r) * 3;
            if (tj_test_random(&r) % 40 == 0)
                f = (float)(1 - (int)(tj_test_random(&r) % 3)) / 0.0f; // inf, NaN, -inf
            if (tj_test_random(&r) % 40 == 0)
                f = -0.0f;
            uint32_t bits;
            memcpy(&bits, &f, 4);
            if (dtypes[i] == TRACE_I64)
                ((int64_t *)(void *)in[i].data)[e] = (int64_t)(tj_test_random(&r) % 3);
            else if (dtypes[i] == TRACE_I32)
                ((int32_t *)(void *)in[i].data)[e] = (int32_t)(tj_test_random(&r) % 11) - 5;
            else if (dtypes[i] == TRACE_BF16)
                ((uint16_t *)(void *)in[i].data)[e] = (uint16_t)(bits >> 16);
            else
                ((float *)(void *)in[i].data)[e] = f;
        }
        in[i].bytes = count * (dtypes[i] == TRACE_I64 ? 8 : dtypes[i] == TRACE_BF16 ? 2 : 4);
    }
}

// region: to run in, or NULL: a new one.
static void run_one(trace_context *ctx, trace_region *region, uint64_t seed, int sizes, int steps, struct outcome *o,
                    FILE *log) {
    struct input *in = calloc(NIN, sizeof *in);
    trace_region *r = region;
    struct gen g = {.rng = seed, .ctx = ctx, .o = o, .log = log};
    T *inputs[NIN], *outs[MAX_OUT] = {0};
    memset(o, 0, sizeof *o);
    ck_assert(in);
    make_inputs(seed, sizes, in);
    ck_assert(r || trace_region_create(ctx, "fuzz", NULL, &r) == TRACE_OK);
    for (int i = 0; i < NIN; i++) {
        inputs[i] = trace_from(ctx, in[i].dtype, in[i].data, in[i].dims, in[i].rank);
        ck_assert(inputs[i]);
    }
    size_t nout = 1 + seed % MAX_OUT;
    if (trace_begin(r, inputs, NIN)) {
        for (int i = 0; i < NIN; i++)
            g.pool[g.n++] = inputs[i];
        body(&g, steps);
        for (size_t i = 0; i < nout; i++) {
            size_t at = i == 0 ? g.n - 1 : pick(&g);
            if (log)
                (void)fprintf(log, "    out %zu = v%zu\n", i, at);
            outs[i] = g.pool[at];
        }
    }
    o->status = trace_end(r, outs, nout);
    if (o->status)
        (void)snprintf(o->error, sizeof o->error, "%s", trace_last_error(ctx));
    o->nout = o->status ? 0 : nout;
    for (size_t i = 0; i < o->nout; i++) {
        o->out[i].dtype = trace_dtype_of(outs[i]);
        o->out[i].rank = trace_rank(outs[i]);
        for (int d = 0; d < o->out[i].rank; d++)
            o->out[i].dims[d] = trace_size(outs[i], d);
        static const size_t widths[] = {1, 1, 4, 8, 2, 2, 4, 8};
        o->out[i].bytes = (size_t)trace_numel(outs[i]) * widths[o->out[i].dtype];
        o->out[i].data = malloc(o->out[i].bytes + 1);
        ck_assert(o->out[i].data && trace_read(outs[i], o->out[i].data, o->out[i].bytes) == TRACE_OK);
        trace_release(outs[i]);
    }
    for (int i = 0; i < NIN; i++) {
        ck_assert(trace_read(inputs[i], o->inputs[i], in[i].bytes) == TRACE_OK);
        trace_release(inputs[i]);
    }
    if (!region)
        trace_region_release(r);
    free(in);
}

static void outcome_free(struct outcome *o) {
    for (size_t i = 0; i < o->nout; i++)
        free(o->out[i].data);
}

static bool same_bits(int dtype, const unsigned char *a, const unsigned char *b, size_t bytes) {
    size_t size = dtype == TRACE_F64 ? 8 : dtype == TRACE_F32 ? 4 : dtype == TRACE_F16 || dtype == TRACE_BF16 ? 2 : 1;
    for (size_t i = 0; i + size <= bytes; i += size) {
        if (!memcmp(a + i, b + i, size))
            continue;
        uint64_t x = 0, y = 0, inf = 0, mask = 0;
        memcpy(&x, a + i, size);
        memcpy(&y, b + i, size);
        if (dtype == TRACE_F64)
            inf = 0x7FF0000000000000u, mask = INT64_MAX;
        if (dtype == TRACE_F32)
            inf = 0x7F800000u, mask = 0x7FFFFFFFu;
        if (dtype == TRACE_F16)
            inf = 0x7C00u, mask = 0x7FFFu;
        if (dtype == TRACE_BF16)
            inf = 0x7F80u, mask = 0x7FFFu;
        if (!inf || (x & mask) <= inf || (y & mask) <= inf)
            return false;
    }
    return true;
}

// What differs, or NULL.
static const char *differ(const struct outcome *a, const struct outcome *b, char *buf, size_t cap) {
    if (a->status != b->status) {
        (void)snprintf(buf, cap, "status %s (%s) against %s (%s)", trace_status_name(a->status), a->error,
                       trace_status_name(b->status), b->error);
        return buf;
    }
    if (a->status)
        return NULL;
    if (a->nitems != b->nitems ||
        !same_bits(TRACE_F64, (const void *)a->items, (const void *)b->items, a->nitems * 8)) {
        (void)snprintf(buf, cap, "scalars read back");
        return buf;
    }
    for (size_t i = 0; i < a->nout; i++) {
        if (a->out[i].dtype != b->out[i].dtype || a->out[i].bytes != b->out[i].bytes ||
            !same_bits(a->out[i].dtype, a->out[i].data, b->out[i].data, a->out[i].bytes)) {
            (void)snprintf(buf, cap, "output %zu", i);
            return buf;
        }
    }
    for (int i = 0; i < NIN; i++) {
        int dtype = i == 5 ? TRACE_BF16 : i == 0 || i == 4 ? TRACE_I32 : TRACE_F32;
        if (!same_bits(dtype, a->inputs[i], b->inputs[i], sizeof a->inputs[i])) {
            (void)snprintf(buf, cap, "content of input %d after the run", i);
            return buf;
        }
    }
    return NULL;
}

static trace_context *contexts[IMPLS];

// The first difference between implementations, twice with the fused one (its second run hits the cache); NULL: none.
static const char *check(uint64_t seed, int steps, char *buf, size_t cap) {
    struct outcome o[IMPLS];
    char what[700];
    const char *bad = NULL;
    for (int i = 0; i < IMPLS; i++)
        run_one(contexts[i], NULL, seed, 0, steps, &o[i], NULL);
    for (int i = 1; i < IMPLS && !bad; i++) {
        if (!differ(&o[0], &o[i], what, sizeof what))
            continue;
        (void)snprintf(buf, cap, "%s differs from %s: %s", impl_name[i], impl_name[0], what);
        bad = buf;
    }
    for (int i = 0; i < IMPLS; i++)
        outcome_free(&o[i]);
    return bad;
}

static uint64_t env_number(const char *name, uint64_t otherwise) {
    const char *s = getenv(name);
    return s ? strtoull(s, NULL, 10) : otherwise;
}

// The first difference between the interpreter and one region over changing extents; NULL: none.
static const char *check_sizes(uint64_t seed, int dynamic, int steps, int variants, char *buf, size_t cap) {
    trace_region *r;
    const char *bad = NULL;
    char what[700];
    ck_assert(trace_region_create(contexts[FUSED], "sizes", TRACE_REGION_OPTIONS(.dynamic = dynamic), &r) == TRACE_OK);
    for (int v = 0; v < variants && !bad; v++) {
        struct outcome a, b;
        run_one(contexts[INTERP], NULL, seed, v, steps, &a, NULL);
        run_one(contexts[FUSED], r, seed, v, steps, &b, NULL);
        if (differ(&a, &b, what, sizeof what)) {
            (void)snprintf(buf, cap, "dynamic %d, sizes %d: %s", dynamic, v, what);
            bad = buf;
        }
        outcome_free(&a);
        outcome_free(&b);
    }
    trace_region_release(r);
    return bad;
}

START_TEST(changing_extents) {
    for (int i = 0; i < IMPLS; i++) {
        ck_assert(setenv("TRACEJIT_NO", impl_env[i], 1) == 0);
        ck_assert_msg(trace_context_create(NULL, &contexts[i]) == TRACE_OK, "%s", trace_last_error(NULL));
    }
    uint64_t seed = env_number("FUZZ_SEED", 1), count = env_number("FUZZ_COUNT", 150) / 3;
    int steps = (int)env_number("FUZZ_STEPS", 12), failures = 0;
    char why[800], shorter[800];
    for (uint64_t s = seed; s < seed + count && failures < 5; s++) {
        int dynamic = s % 2 ? TRACE_DYNAMIC_AUTO : TRACE_DYNAMIC_ON;
        if (!check_sizes(s, dynamic, steps, 8, why, sizeof why))
            continue;
        int n = 1;
        while (n < steps && !check_sizes(s, dynamic, n, 8, shorter, sizeof shorter))
            n++;
        (void)fprintf(stderr, "seed %llu: %s\n  shortest failing prefix, %d steps: %s\n", (unsigned long long)s, why, n,
                      n < steps ? shorter : why);
        struct outcome o;
        run_one(contexts[INTERP], NULL, s, 0, n, &o, stderr);
        outcome_free(&o);
        failures++;
    }
    trace_stats st = {.size = sizeof st};
    trace_context_stats(contexts[FUSED], &st);
    if (getenv("FUZZ_COUNT"))
        printf("%llu graphs for %llu runs\n", (unsigned long long)st.graphs, (unsigned long long)st.runs);
    ck_assert(!strcmp(tj_backend_cpu.name, "none") || st.interpreted_ops == 0);
    for (int i = 0; i < IMPLS; i++)
        trace_context_release(contexts[i]);
    ck_assert_msg(failures == 0, "%d graphs differ", failures);
}
END_TEST

START_TEST(random_graphs) {
    for (int i = 0; i < IMPLS; i++) {
        ck_assert(setenv("TRACEJIT_NO", impl_env[i], 1) == 0);
        ck_assert_msg(trace_context_create(NULL, &contexts[i]) == TRACE_OK, "%s", trace_last_error(NULL));
    }
    uint64_t seed = env_number("FUZZ_SEED", 1), count = env_number("FUZZ_COUNT", 150);
    int steps = (int)env_number("FUZZ_STEPS", 18), failures = 0;
    char why[800], shorter[800];
    for (uint64_t s = seed; s < seed + count; s++) {
        if (!check(s, steps, why, sizeof why))
            continue;
        int n = 1;
        while (n < steps && !check(s, n, shorter, sizeof shorter))
            n++;
        (void)fprintf(stderr, "seed %llu: %s\n  shortest failing prefix, %d steps: %s\n", (unsigned long long)s, why, n,
                      n < steps ? shorter : why);
        struct outcome o;
        run_one(contexts[INTERP], NULL, s, 0, n, &o, stderr);
        outcome_free(&o);
        if (++failures >= 5)
            break;
    }
    for (int i = SINGLE; i < IMPLS && strcmp(tj_backend_cpu.name, "none"); i++) { // none: a build without a compiler
        trace_stats st = {.size = sizeof st};
        trace_context_stats(contexts[i], &st);
        ck_assert_msg(st.kernels > 0 && st.interpreted_ops == 0, "%s: %llu kernels, %llu interpreted ops", impl_name[i],
                      (unsigned long long)st.kernels, (unsigned long long)st.interpreted_ops);
    }
    for (int i = 0; i < IMPLS; i++)
        trace_context_release(contexts[i]);
    ck_assert_msg(failures == 0, "%d graphs differ", failures);
}
END_TEST

TJ_TEST_MAIN("fuzz", random_graphs, changing_extents)
