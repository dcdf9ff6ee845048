// tests/test_fuzz_empty.c: random graphs over extents of 0 and 1, through every way of running them.
//
// A graph is a function of its seed and of two sizes, which are 0 or 1 more often than not. For several sizes one after
// the other the interpreter's results are what must come, bit for bit (any NaN equals any NaN), from: a plan of its
// own, op by op, a region whose plans become symbolic (dynamic auto or on, with or without buckets), one that replays,
// and a bound plan. Ops are drawn so that nothing is refused when it is recorded, where that can be told from shapes; a
// refusal has to be the same everywhere.
//
//     FUZZ_SEED=7 FUZZ_COUNT=100000 build/release/tests/test_fuzz_empty
#include "../trace/backend.h"
#include "tj_test.h"

#include <stdarg.h>

typedef trace_tensor T;
enum { MAX_POOL = 48, MAX_OUT = 3, NIN = 8, LARGEST = 1024, VARIANTS = 4 };
enum way { INTERP, EXACT, SINGLE, EAGER, SYMBOLIC, REPLAY, BOUND, WAYS };
static const char *const way_name[WAYS] = {"interpreter", "exact", "single-op", "eager", "symbolic", "replay", "bound"};
static trace_context *contexts[3]; // interpreter, fused, single-op
static int failed_at;              // variant of the last difference

struct outcome {
    enum trace_status status;
    char error[256];
    size_t nout;
    struct {
        int dtype, rank;
        int64_t dims[TRACE_MAX_RANK];
        size_t bytes;
        unsigned char data[LARGEST * 8];
    } out[MAX_OUT];
    unsigned char inputs[NIN][LARGEST * 8];
    double item;
};
struct gen {
    uint64_t rng;
    T *pool[MAX_POOL];
    size_t n;
    trace_context *ctx;
    int64_t m, k; // sizes
    bool breaks;
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
    if (!t)
        g->stop = true;
    else if (trace_numel(t) <= LARGEST && trace_rank(t) <= 5 && g->n < MAX_POOL)
        g->pool[g->n++] = t;
}

static bool is_float(T *t) { return trace_dtype_of(t) >= TRACE_F16; }
static int64_t ext(T *t, int d) { return trace_size(t, d); }

static T *pick(struct gen *g, size_t *at) {
    *at = draw(g, (uint32_t)g->n);
    return g->pool[*at];
}
static T *pick_float(struct gen *g, size_t *at) {
    T *t = pick(g, at);
    return is_float(t) ? t : trace_to(t, TRACE_F32);
}
// One of at least `rank` dims, the last `same` of which have the extents of like.
static T *pick_like(struct gen *g, T *like, int rank, int same, size_t *at) {
    for (int tries = 0; tries < 10; tries++) {
        T *t = pick(g, at);
        bool ok = trace_rank(t) >= rank && trace_rank(t) >= same;
        for (int d = 1; ok && d <= same; d++)
            ok = ext(t, -d) == ext(like, -d);
        if (ok)
            return t;
    }
    return NULL;
}
static T *partner(struct gen *g, T *a, size_t *at) {
    for (int tries = 0; tries < 10; tries++) {
        T *b = pick(g, at);
        bool ok = true;
        for (int d = 1; d <= trace_rank(a) && d <= trace_rank(b); d++)
            ok = ok && (ext(a, -d) == ext(b, -d) || ext(a, -d) == 1 || ext(b, -d) == 1);
        if (ok)
            return b;
    }
    return NULL;
}

static void step_point(struct gen *g) {
    size_t a, b;
    T *x = pick(g, &a), *y = partner(g, x, &b);
    int k = (int)draw(g, 14);
    bool ints = !is_float(x) && trace_dtype_of(x) != TRACE_BOOL;
    say(g, "point %d(v%zu, v%zu)", k, a, y ? b : a);
    y = y ? y : x;
    switch (k) {
    case 0: push(g, trace_exp(x)); break;
    case 1: push(g, trace_relu(x)); break;
    case 2: push(g, trace_add(x, y)); break;
    case 3: push(g, trace_mul(x, y)); break;
    case 4: push(g, trace_div(x, y)); break;
    case 5: push(g, trace_maximum(x, y)); break;
    case 6: push(g, trace_gt(x, y)); break;
    case 7: push(g, trace_where(trace_lt_f(x, 0.5), x, y)); break;
    case 8: push(g, trace_to(x, (enum trace_dtype)draw(g, 8))); break;
    case 9: push(g, trace_mul_f(x, 0.5)); break;
    case 10: push(g, ints ? trace_floor_divide_i(x, 3) : trace_tanh(x)); break;
    case 11: push(g, trace_add_i(x, 1)); break;
    case 12: push(g, trace_clamp_f(x, -1, 1)); break;
    default: push(g, trace_isnan(x)); break;
    }
}

static void step_reduce(struct gen *g) {
    size_t a;
    T *x = pick(g, &a);
    int rank = trace_rank(x), k = (int)draw(g, 12);
    int64_t dims[5], count = 1;
    size_t n = 0;
    for (int d = 0; d < rank; d++)
        if (draw(g, 2)) {
            dims[n++] = d;
            count *= ext(x, d);
        }
    count = n ? count : trace_numel(x);
    bool keep = draw(g, 2), one = rank && n;
    if (count == 0 && (k == 3 || k == 4)) // an extreme of nothing is refused
        k = 0;
    if ((k == 1 || k == 2) && !is_float(x))
        x = trace_to(x, TRACE_F32);
    int64_t at = one ? dims[0] : TRACE_ALL_DIMS;
    if (k >= 7 && k <= 8 && (one ? ext(x, (int)at) : trace_numel(x)) == 0)
        k = 5;
    say(g, "reduce %d(v%zu, %zu dims, first %lld, keep %d)", k, a, n, n ? (long long)dims[0] : -1, keep);
    switch (k) {
    case 0: push(g, trace_sum(x, dims, n, keep)); break;
    case 1: push(g, trace_mean(x, dims, n, keep)); break;
    case 2: push(g, trace_var(x, dims, n, draw(g, 2), keep)); break;
    case 3: push(g, trace_amax(x, dims, n, keep)); break;
    case 4: push(g, trace_amin(x, dims, n, keep)); break;
    case 5: push(g, trace_any(x, dims, n, keep)); break;
    case 6: push(g, trace_all(x, dims, n, keep)); break;
    case 7: push(g, trace_argmax(x, at, one && keep)); break;
    case 8: push(g, trace_argmin(x, at, one && keep)); break;
    case 9: // the difference to the sum: what is reduced and what it is used for in one kernel
        x = trace_mul_f(is_float(x) ? x : trace_to(x, TRACE_F32), 0.5);
        push(g, trace_sub(x, trace_sum(x, dims, n, true)));
        break;
    default: push(g, trace_add_i(trace_sum(trace_mul(x, x), dims, n, keep), 1)); break;
    }
}

static void step_row(struct gen *g) {
    size_t a;
    T *x = pick_float(g, &a);
    int rank = trace_rank(x), k = (int)draw(g, 5);
    if (rank < 1)
        return;
    int64_t dim = draw(g, (uint32_t)rank), last[2] = {rank > 1 ? ext(x, -2) : 1, ext(x, -1)};
    say(g, "row op %d(v%zu, dim %lld)", k, a, (long long)dim);
    switch (k) {
    case 0: push(g, trace_softmax(x, dim)); break;
    case 1: push(g, trace_log_softmax(x, dim)); break;
    case 2: push(g, trace_layer_norm(x, TRACE_DIMS(last[1]), TRACE_NONE, TRACE_NONE, 1e-5)); break;
    case 3:
        if (rank > 1)
            push(g, trace_layer_norm(x, last, 2, TRACE_NONE, TRACE_NONE, 1e-5));
        break;
    default: push(g, trace_rms_norm(x, TRACE_NONE, 1e-5)); break;
    }
}

// Another shape of as many elements, which for none may be many a shape.
static void step_reshape(struct gen *g) {
    size_t a;
    T *x = pick(g, &a);
    int64_t dims[4], left = trace_numel(x);
    size_t rank = draw(g, 4);
    if (left == 0) {
        rank = rank ? rank : 1;
        for (size_t d = 0; d < rank; d++)
            dims[d] = (int64_t[]){0, 1, 2, 3, g->m, g->k, 6 * g->m}[draw(g, 7)];
        bool none = false;
        for (size_t d = 0; d < rank; d++)
            none = none || dims[d] == 0;
        if (!none)
            dims[draw(g, (uint32_t)rank)] = 0;
    } else {
        for (size_t d = 0; d < rank; d++) {
            int64_t f = (int64_t[]){1, 2, 3, g->m, g->k, left}[draw(g, 6)];
            dims[d] = d + 1 == rank ? left : f > 0 && left % f == 0 ? f : 1;
            left /= dims[d];
        }
        if (left != 1)
            return;
    }
    say(g, "reshape(v%zu, %zu dims)", a, rank);
    push(g, trace_reshape(x, dims, rank));
}

static void step_view(struct gen *g) {
    size_t a;
    T *x = pick(g, &a);
    int rank = trace_rank(x), k = (int)draw(g, 12);
    if (rank < 1)
        return;
    int64_t d = draw(g, (uint32_t)rank), e = draw(g, (uint32_t)rank), size = ext(x, (int)d);
    say(g, "view %d(v%zu, dims %lld %lld)", k, a, (long long)d, (long long)e);
    switch (k) {
    case 0: push(g, trace_transpose(x, d, e)); break;
    case 1: push(g, trace_flatten(x, d < e ? d : e, d < e ? e : d)); break;
    case 2: push(g, trace_unsqueeze(x, d)); break;
    case 3: push(g, trace_flip(x, TRACE_DIMS(d))); break;
    case 4: push(g, trace_narrow(x, d, draw(g, (uint32_t)size + 1), 0)); break;
    case 5: {
        int64_t start = draw(g, (uint32_t)size + 1);
        push(g, trace_narrow(x, d, start, draw(g, (uint32_t)(size - start) + 1)));
        break;
    }
    case 6: push(g, trace_slice(x, d, draw(g, 3), size, 1 + draw(g, 3))); break;
    case 7:
        if (size > 0)
            push(g, trace_select(x, d, draw(g, (uint32_t)size)));
        break;
    case 8: {
        int64_t dims[6] = {draw(g, 2) ? g->m : draw(g, 3), -1, -1, -1, -1, -1};
        if (rank < 4)
            push(g, trace_expand(draw(g, 2) ? trace_unsqueeze(x, 0) : x, dims, (size_t)rank + 1));
        break;
    }
    case 9:
        if (rank >= 2 && d != e)
            push(g, trace_diagonal(x, (int64_t)draw(g, 3) - 1, d, e));
        break;
    case 10:
        if (size >= 1 && rank < 4)
            push(g, trace_unfold(x, d, 1 + draw(g, size > 1 ? 2 : 1), 1 + draw(g, 2)));
        break;
    default: push(g, trace_clone(x)); break;
    }
}

static void step_move(struct gen *g) {
    size_t a, b;
    T *x = pick(g, &a), *index = g->pool[0], *y; // index: i64 [5], values 0 to 2
    int rank = trace_rank(x), k = (int)draw(g, 10);
    if (rank < 1)
        return;
    int64_t d = draw(g, (uint32_t)rank), size = ext(x, (int)d), some = size >= 3 ? draw(g, 6) : 0;
    say(g, "move %d(v%zu, dim %lld)", k, a, (long long)d);
    switch (k) {
    case 0: push(g, trace_cat(TRACE_ARGS(x, trace_narrow(x, d, 0, 0), x), d)); break;
    case 1: push(g, trace_cat(TRACE_ARGS(trace_narrow(x, d, size, 0), x), d)); break;
    case 2: push(g, trace_stack(TRACE_ARGS(x, x), d)); break;
    case 3:
        push(g, trace_pad(x, (int64_t[]){1, draw(g, 2), 0, draw(g, 2)}, rank > 1 ? 4 : 2, TRACE_PAD_CONSTANT, 3));
        break;
    case 4:
        if (ext(x, -1) > 1)
            push(g, trace_pad(x, TRACE_DIMS(1, 1), draw(g, 2) ? TRACE_PAD_REPLICATE : TRACE_PAD_REFLECT, 0));
        break;
    case 5: push(g, trace_index_select(x, d, trace_narrow(index, 0, 0, some))); break;
    case 6: { // no index is looked at where there is none: these are out of range
        T *bad = trace_add_i(trace_narrow(index, 0, 0, 0), 1000);
        push(g, trace_index_select(x, d, bad));
        break;
    }
    case 7:
        y = pick_like(g, x, 2, 0, &b);
        if (y && trace_rank(y) == 2 && ext(y, 0) >= 3)
            push(g, trace_embedding(y, trace_reshape(trace_narrow(index, 0, 0, some), TRACE_DIMS(1, some))));
        break;
    case 8: { // an index that every row shares
        int64_t dims[5], n = size ? draw(g, 3) : 0;
        for (int j = 0; j < rank; j++)
            dims[j] = j == d ? n : ext(x, j);
        push(g, trace_gather(x, d, trace_full_i(g->ctx, dims, (size_t)rank, size > 1, TRACE_I64)));
        break;
    }
    default:
        y = pick_like(g, x, rank, rank, &b);
        if (y && trace_rank(y) == rank && trace_dtype_of(x) == trace_dtype_of(y))
            push(g, trace_cat(TRACE_ARGS(x, y, x), d));
        break;
    }
}

static void step_contract(struct gen *g) {
    size_t a, b;
    T *x = pick(g, &a), *w;
    int k = (int)draw(g, 6);
    if (trace_rank(x) < 2 || trace_dtype_of(x) == TRACE_BOOL)
        return;
    bool f32 = trace_dtype_of(x) == TRACE_F32;
    switch (k) {
    case 0:
        say(g, "matmul(v%zu, its transpose)", a);
        push(g, trace_matmul(x, trace_transpose(x, -1, -2)));
        return;
    case 1:
        w = pick_like(g, x, 2, 1, &b);
        if (!w || trace_rank(w) != 2 || trace_dtype_of(w) != trace_dtype_of(x))
            return;
        say(g, "relu(linear(v%zu, v%zu))", a, b);
        push(g, trace_relu(trace_linear(x, w, draw(g, 2) ? TRACE_NONE : trace_sum(w, TRACE_DIMS(1), false))));
        return;
    case 2:
    case 3: // over an inner extent of 0
        say(g, "matmul of nothing(v%zu)", a);
        w = trace_narrow(x, -1, 0, k == 2 ? 0 : ext(x, -1) > 0);
        w = trace_matmul(w, trace_transpose(w, -1, -2));
        push(g, draw(g, 2) ? trace_add_i(w, 2) : w);
        return;
    case 4:
        if (trace_rank(x) != 4 || !f32)
            return;
        say(g, "conv2d(v%zu)", a);
        w = trace_full_f(g->ctx, TRACE_DIMS(draw(g, 3), ext(x, 1), 1, 1), 0.5, TRACE_F32);
        w = trace_conv2d(x, w, TRACE_NONE, NULL, draw(g, 2) ? (int64_t[]){1, 1} : NULL, NULL, 1);
        push(g, draw(g, 2) ? trace_relu(w) : w);
        return;
    default: { // one key, whose weight is 1, or none: nothing is rounded
        if (!f32)
            return;
        int64_t keys = ext(x, -2) > 0 ? draw(g, 2) : 0;
        say(g, "attention(v%zu, %lld keys)", a, (long long)keys);
        w = trace_narrow(x, -2, 0, keys);
        push(g, trace_scaled_dot_product_attention(x, w, w, TRACE_NONE, draw(g, 2), 0, false));
    }
    }
}

static void step_pool(struct gen *g) {
    size_t a;
    T *x = pick(g, &a);
    if (trace_rank(x) < 3 || trace_rank(x) > 4 || trace_dtype_of(x) != TRACE_F32 || ext(x, -1) < 2 || ext(x, -2) < 2)
        return;
    const int64_t two[2] = {2, 2}, one[2] = {1, 1};
    int k = (int)draw(g, 2);
    say(g, "pool %d(v%zu)", k, a);
    push(g, k ? trace_max_pool2d(x, two, one, one, NULL, false) : trace_avg_pool2d(x, two, two, one, true, false, 0));
}

static void step_write(struct gen *g) {
    size_t a = 1 + draw(g, NIN - 1), b;
    T *x = g->pool[a], *y;
    int k = (int)draw(g, 7), rank = trace_rank(x);
    int64_t size = rank ? ext(x, 0) : 1;
    say(g, "in place %d on v%zu", k, a);
    switch (k) {
    case 0: g->stop |= !trace_add_i_(x, 1); break;
    case 1: g->stop |= rank && !trace_mul_i_(trace_narrow(x, 0, size, 0), 2); break;
    case 2: g->stop |= rank && !trace_fill_i_(trace_slice(x, -1, 0, ext(x, -1), 2), 3); break;
    case 3:
        y = pick_like(g, x, 0, rank, &b);
        g->stop |= y && trace_rank(y) == rank && !trace_copy_(x, trace_clone(y));
        break;
    case 4: {
        T *none = trace_narrow(g->pool[0], 0, 0, 0), *src = rank ? trace_mul_i(trace_narrow(x, 0, 0, 0), 1) : NULL;
        g->stop |= rank && !trace_index_copy_(x, 0, none, src);
        break;
    }
    case 5:
        if (rank && size >= 3)
            g->stop |=
                !trace_index_copy_(x, 0, trace_narrow(g->pool[0], 0, 0, 3), trace_mul_i(trace_narrow(x, 0, 0, 3), 2));
        break;
    default:
        g->stop |=
            rank && !trace_copy_(trace_narrow(x, 0, 0, size / 2), trace_mul_i(trace_narrow(x, 0, 0, size / 2), 2));
        break;
    }
}

static void step_loop(struct gen *g) {
    size_t a;
    T *x = pick_float(g, &a), *v[2] = {x, trace_sum(x, TRACE_SCALAR, false)};
    int turns = (int)draw(g, 3);
    say(g, "loop of %d over v%zu", turns, a);
    if (trace_repeat(turns, v, 2)) {
        g->stop = true;
        return;
    }
    v[0] = trace_add_f(v[0], 0.5);
    v[1] = trace_add(v[1], trace_sum(v[0], TRACE_SCALAR, false));
    if (trace_repeat_end(v, 2)) {
        g->stop = true;
        return;
    }
    push(g, v[0]);
    push(g, v[1]);
}

static void step_item(struct gen *g) {
    size_t a;
    T *x = pick(g, &a);
    double v;
    if (!g->breaks)
        return;
    say(g, "item(sum(v%zu))", a);
    if (trace_item_f64(trace_to(trace_sum(x, TRACE_SCALAR, false), TRACE_F64), &v))
        g->stop = true;
    else
        g->o->item = v;
}

static void body(struct gen *g, int steps) {
    typedef void step(struct gen *);
    static step *const all[] = {step_point,    step_point,   step_point, step_point, step_reduce,
                                step_reduce,   step_row,     step_view,  step_view,  step_view,
                                step_reshape,  step_reshape, step_move,  step_move,  step_contract,
                                step_contract, step_pool,    step_write, step_write, step_reduce};
    for (int i = 0; i < steps && !g->stop; i++) {
        uint32_t k = draw(g, 20 * TJ_COUNT(all));
        if (k < 6)
            step_item(g);
        else if (k < 10)
            step_loop(g);
        else
            all[k % TJ_COUNT(all)](g);
    }
}

static const size_t widths[] = {1, 1, 4, 8, 2, 2, 4, 8};

static size_t make_input(int i, uint64_t *r, int64_t m, int64_t k, int64_t *dims, size_t *rank, enum trace_dtype *d,
                         unsigned char *data) {
    static const enum trace_dtype dtypes[NIN] = {TRACE_I64, TRACE_F32, TRACE_F32, TRACE_F32,
                                                 TRACE_I32, TRACE_F16, TRACE_F32, TRACE_F64};
    const int64_t shapes[NIN][4] = {{5}, {m, k}, {k}, {2, m, 3, k}, {m, 1}, {3, m, k}, {4, k}, {k, m}};
    const size_t ranks[NIN] = {1, 2, 1, 4, 2, 3, 2, 2};
    size_t count = 1;
    for (size_t j = 0; j < ranks[i]; j++)
        count *= (size_t)(dims[j] = shapes[i][j]);
    *rank = ranks[i];
    *d = dtypes[i];
    for (size_t e = 0; e < count; e++) {
        int v = (int)(tj_test_random(r) % 9) - 4;
        float f = (float)v * 0.75f;
        double f64 = (double)v * 1.25;
        int64_t i64 = (v + 4) % 3;
        int32_t i32 = v;
        const uint16_t f16 = (uint16_t)(v < 0 ? 0xB800 : v == 0 ? 0x8000 : 0x3C00 + 64 * v);
        const void *from = *d == TRACE_I64   ? (void *)&i64
                           : *d == TRACE_I32 ? (void *)&i32
                           : *d == TRACE_F64 ? (void *)&f64
                           : *d == TRACE_F16 ? (const void *)&f16
                                             : (void *)&f;
        memcpy(data + e * widths[*d], from, widths[*d]);
    }
    return count * widths[*d];
}

static void size_of_variant(uint64_t seed, int variant, int64_t *m, int64_t *k) {
    static const int64_t sizes[] = {0, 0, 0, 1, 1, 2, 3, 5, 8, 0};
    uint64_t r = seed * 1009 + (uint64_t)variant * 31;
    *m = sizes[tj_test_random(&r) % TJ_COUNT(sizes)];
    *k = sizes[tj_test_random(&r) % TJ_COUNT(sizes)];
}

static void take(T *t, int *dtype, int *rank, int64_t *dims, size_t *bytes, unsigned char *data) {
    *dtype = trace_dtype_of(t);
    *rank = trace_rank(t);
    for (int d = 0; d < *rank; d++)
        dims[d] = trace_size(t, d);
    *bytes = (size_t)trace_numel(t) * widths[*dtype];
    ck_assert(trace_read(t, data, *bytes) == TRACE_OK);
}

// region: to run in, or NULL: a new one. want: what comes out, for a bound plan.
static void run_one(enum way way, trace_region *region, uint64_t seed, int variant, int steps, struct outcome *o,
                    const struct outcome *want, FILE *log) {
    static unsigned char data[LARGEST * 8];
    trace_context *ctx = contexts[way == INTERP ? 0 : way == SINGLE ? 2 : 1];
    trace_region *r = region;
    struct gen g = {.rng = seed, .ctx = ctx, .o = o, .log = log, .breaks = seed % 3 == 0 && way != BOUND};
    T *inputs[NIN], *outs[MAX_OUT] = {0}, *to[MAX_OUT] = {0};
    size_t bytes[NIN], nout = 1 + seed % MAX_OUT;
    uint64_t values = seed * 77 + 1;
    trace_bound *bound = NULL;
    memset(o, 0, sizeof *o);
    size_of_variant(seed, variant, &g.m, &g.k);
    ck_assert(r || trace_region_create(ctx, "empty",
                                       TRACE_REGION_OPTIONS(.mode = way == EAGER ? TRACE_MODE_EAGER : TRACE_MODE_RECORD,
                                                            .dynamic = TRACE_DYNAMIC_OFF),
                                       &r) == TRACE_OK);
    for (int i = 0; i < NIN; i++) {
        int64_t dims[4];
        size_t rank;
        enum trace_dtype d;
        bytes[i] = make_input(i, &values, g.m, g.k, dims, &rank, &d, data);
        inputs[i] = trace_from(ctx, d, bytes[i] ? data : NULL, dims, rank);
        ck_assert(inputs[i]);
    }
    for (size_t i = 0; want && way == BOUND && i < nout; i++)
        to[i] = trace_zeros(ctx, want->out[i].dims, (size_t)want->out[i].rank, (enum trace_dtype)want->out[i].dtype);
    if (trace_begin(r, inputs, NIN)) {
        for (int i = 0; i < NIN; i++)
            g.pool[g.n++] = inputs[i];
        body(&g, steps);
        for (size_t i = 0; i < nout; i++) {
            size_t at = i == 0 ? g.n - 1 : draw(&g, (uint32_t)g.n);
            if (log)
                (void)fprintf(log, "    out %zu = v%zu\n", i, at);
            outs[i] = g.pool[at];
            if (way == BOUND && !g.stop)
                (void)trace_copy_(to[i], outs[i]);
        }
    }
    if (way == BOUND) {
        memset(outs, 0, sizeof outs);
        o->status = trace_end_bind(r, NULL, &bound);
        o->status = o->status ? o->status : trace_bound_run(bound);
    } else {
        o->status = trace_end(r, outs, nout);
    }
    if (o->status)
        (void)snprintf(o->error, sizeof o->error, "%s", trace_last_error(ctx));
    o->nout = o->status ? 0 : nout;
    for (size_t i = 0; i < o->nout; i++)
        take(way == BOUND ? to[i] : outs[i], &o->out[i].dtype, &o->out[i].rank, o->out[i].dims, &o->out[i].bytes,
             o->out[i].data);
    trace_bound_release(bound);
    for (size_t i = 0; i < MAX_OUT; i++) {
        trace_release(outs[i]);
        trace_release(to[i]);
    }
    for (int i = 0; i < NIN; i++) {
        ck_assert(trace_read(inputs[i], o->inputs[i], bytes[i]) == TRACE_OK);
        trace_release(inputs[i]);
    }
    if (!region)
        trace_region_release(r);
}

static bool same_bits(int dtype, const unsigned char *a, const unsigned char *b, size_t bytes) {
    size_t size = widths[dtype];
    for (size_t i = 0; i + size <= bytes; i += size) {
        uint64_t x = 0, y = 0;
        memcpy(&x, a + i, size);
        memcpy(&y, b + i, size);
        uint64_t inf = dtype == TRACE_F64   ? 0x7FF0000000000000u
                       : dtype == TRACE_F32 ? 0x7F800000u
                       : dtype == TRACE_F16 ? 0x7C00u
                                            : 0x7F80u,
                 mask = dtype == TRACE_F64   ? INT64_MAX
                        : dtype == TRACE_F32 ? 0x7FFFFFFFu
                                             : 0x7FFFu;
        if (x != y && (dtype < TRACE_F16 || (x & mask) <= inf || (y & mask) <= inf))
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
    if (!same_bits(TRACE_F64, (const void *)&a->item, (const void *)&b->item, 8)) {
        (void)snprintf(buf, cap, "the scalar read back: %g against %g", a->item, b->item);
        return buf;
    }
    for (size_t i = 0; i < a->nout; i++)
        if (a->out[i].dtype != b->out[i].dtype || a->out[i].bytes != b->out[i].bytes ||
            a->out[i].rank != b->out[i].rank ||
            memcmp(a->out[i].dims, b->out[i].dims, (size_t)a->out[i].rank * sizeof(int64_t)) ||
            !same_bits(a->out[i].dtype, a->out[i].data, b->out[i].data, a->out[i].bytes)) {
            (void)snprintf(buf, cap, "output %zu", i);
            return buf;
        }
    for (int i = 0; i < NIN; i++)
        if (memcmp(a->inputs[i], b->inputs[i], sizeof a->inputs[i])) {
            (void)snprintf(buf, cap, "content of input %d after the run", i);
            return buf;
        }
    return NULL;
}

static const char *check_run(enum way way, trace_region *r, uint64_t seed, int variant, int steps,
                             const struct outcome *want, char *buf, size_t cap) {
    static struct outcome got;
    char what[700];
    int64_t m, k;
    run_one(way, r, seed, variant, steps, &got, want, NULL);
    if (!differ(want, &got, what, sizeof what))
        return NULL;
    failed_at = variant;
    size_of_variant(seed, variant, &m, &k);
    (void)snprintf(buf, cap, "%s, sizes %d (%lld, %lld): %s", way_name[way], variant, (long long)m, (long long)k, what);
    return buf;
}

// The first difference between the interpreter and the other ways, over all sizes; NULL: none.
static const char *check(uint64_t seed, int steps, char *buf, size_t cap) {
    static struct outcome want;
    trace_region *symbolic, *replay;
    const char *bad = NULL;
    ck_assert(trace_region_create(contexts[1], "symbolic",
                                  TRACE_REGION_OPTIONS(.dynamic = seed % 2 ? TRACE_DYNAMIC_AUTO : TRACE_DYNAMIC_ON),
                                  &symbolic) == TRACE_OK);
    ck_assert(trace_region_create(contexts[1], "replay", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_REPLAY), &replay) ==
              TRACE_OK);
    if (seed % 5 == 0)
        ck_assert(trace_region_buckets(symbolic, 1, 0, TRACE_BUCKETS_POWERS, NULL, 0) == TRACE_OK);
    for (int v = 0; v < VARIANTS && !bad; v++) {
        run_one(INTERP, NULL, seed, v, steps, &want, NULL, NULL);
        bad = check_run(EXACT, NULL, seed, v, steps, &want, buf, cap);
        if (!bad && v == 0)
            bad = check_run(EAGER, NULL, seed, v, steps, &want, buf, cap);
        if (!bad && v == 1)
            bad = check_run(SINGLE, NULL, seed, v, steps, &want, buf, cap);
        for (int again = 0; again < 2 && !bad; again++)
            bad = check_run(SYMBOLIC, symbolic, seed, v, steps, &want, buf, cap);
        for (int again = 0; again < 2 && !bad && v < 2; again++)
            bad = check_run(REPLAY, replay, seed, v, steps, &want, buf, cap);
        if (!bad && !want.status && seed % 3 && v == 2 && tj_test_compiler())
            bad = check_run(BOUND, NULL, seed, v, steps, &want, buf, cap);
    }
    trace_region_release(symbolic);
    trace_region_release(replay);
    return bad;
}

static uint64_t env_number(const char *name, uint64_t otherwise) {
    const char *s = getenv(name);
    return s ? strtoull(s, NULL, 10) : otherwise;
}

START_TEST(empty_graphs) {
    static const char *const off[3] = {"jit", "", "fuse,epilogue"};
    static struct outcome o;
    for (int i = 0; i < 3; i++) {
        ck_assert(setenv("TRACEJIT_NO", off[i], 1) == 0);
        ck_assert_msg(trace_context_create(NULL, &contexts[i]) == TRACE_OK, "%s", trace_last_error(NULL));
    }
    uint64_t seed = env_number("FUZZ_SEED", 1), count = env_number("FUZZ_COUNT", 40), refused = 0;
    int steps = (int)env_number("FUZZ_STEPS", 14), failures = 0;
    char why[900], shorter[900];
    for (uint64_t s = seed; s < seed + count && failures < 5; s++) {
        if (getenv("FUZZ_VERBOSE"))
            (void)fprintf(stderr, "seed %llu\n", (unsigned long long)s);
        if (!check(s, steps, why, sizeof why))
            continue;
        int n = 1;
        while (n < steps && !check(s, n, shorter, sizeof shorter))
            n++;
        (void)fprintf(stderr, "seed %llu: %s\n  shortest failing prefix, %d steps: %s\n", (unsigned long long)s, why, n,
                      n < steps ? shorter : why);
        run_one(INTERP, NULL, s, failed_at, n, &o, NULL, stderr);
        failures++;
    }
    for (uint64_t s = seed; s < seed + count && s < seed + 40; s++) { // most graphs have to run to their end
        run_one(INTERP, NULL, s, 0, steps, &o, NULL, NULL);
        refused += o.status != TRACE_OK;
        if (getenv("FUZZ_VERBOSE") && o.status)
            (void)fprintf(stderr, "seed %llu refused: %s\n", (unsigned long long)s, o.error);
    }
    ck_assert_msg(refused * 4 <= count || refused <= 10, "%llu graphs are refused", (unsigned long long)refused);
    for (int i = 0; i < 3; i++)
        trace_context_release(contexts[i]);
    ck_assert_msg(failures == 0, "%d graphs differ", failures);
}
END_TEST

TJ_TEST_MAIN("fuzz_empty", empty_graphs)
