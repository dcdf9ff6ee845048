// tests/test_fuzz_mem.c: random programs over shared memory: several handles of one memory, overlapping and disjoint
// parts, fields of structs, views; written in place, copied, read back, looped over; recorded, replayed, bound, in
// buckets.
//
// A program is a sequence of runs of one region; each step of a body is drawn from the seed and the shapes it meets, so
// that every way of running it does the same. The reference runs each op at once (an eager region in the interpreter);
// recorded and interpreted, op by op, and compiled runs have to leave the same results, scalars and memory, bit for
// bit. A failing program loses the runs and steps that it fails without, and is printed.
//
//     FUZZ_SEED=7 FUZZ_COUNT=100000 build/release/test_fuzz_mem
#include "../trace/backend.h"
#include "tj_test.h"

#include <stdarg.h>

typedef trace_tensor T;
enum { ROWS = 4, MOST = 34, MAX_POOL = 40, MAX_OUT = 3, MAX_RUNS = 7, MAX_STEPS = 24, NITEMS = 64 };
enum impl { EAGER, INTERP, SINGLE, FUSED, IMPLS };
static const char *const impl_env[IMPLS] = {"jit", "jit", "fuse,epilogue", ""};
static const char *const impl_name[IMPLS] = {"op by op at once", "interpreted", "single-op", "compiled"};
static trace_context *contexts[IMPLS];

// How the compiled runs are made.
enum mode { RECORD_OFF, RECORD_AUTO, RECORD_ON, REPLAY, BUCKETS, BOUND, MODES };
static const char *const mode_name[MODES] = {"exact", "auto", "symbolic", "replay", "buckets", "bound"};

struct record { // one of an array of structs
    float x, y;
    int32_t k;
    unsigned char flag, more[3];
};
// Memory that a program works on, and what it read.
struct world {
    float plain[12 * MOST], steady[ROWS * MOST];
    struct record records[ROWS * MOST], others[ROWS * MOST];
    double items[NITEMS];
    size_t nitems;
    bool replayed;
    enum trace_status status;
    char error[300];
    struct {
        int dtype;
        size_t bytes;
        unsigned char data[16 * MOST * 8];
    } out[MAX_OUT];
    size_t nout;
    float owned[ROWS * MOST], host[16 * MOST];
};
struct program {
    uint64_t seed;
    int mode, runs, steps, declared;
    bool quiet;              // nothing in the body that only a recording can do: readbacks, writes by the host
    bool same_body;          // in each run
    uint32_t drop[MAX_RUNS]; // steps left out, a bit each
};
enum { T_WHOLE, T_AGAIN, T_OVER, T_APART, T_X, T_Y, T_K, T_FLAG, T_OWNED, T_PART, T_TURNED, T_LEFT, T_RIGHT, TENSORS };
struct gen {
    uint64_t rng;
    const struct program *p;
    struct world *w;
    trace_context *ctx;
    FILE *log;
    T *pool[MAX_POOL], *handles[TENSORS];
    size_t name[MAX_POOL], n; // of values in the listing; n: the place of this step's value
    int64_t cols;
    bool stop, bound;
};

static uint32_t draw(struct gen *g, uint32_t n) { return (uint32_t)(tj_test_random(&g->rng) % n); }
static __attribute__((format(printf, 2, 3))) void say(struct gen *g, const char *fmt, ...) {
    if (!g->log)
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)fputs("    ", g->log);
    (void)vfprintf(g->log, fmt, ap);
    (void)fputs(";\n", g->log);
    va_end(ap);
}
#define SAY_NEW(g, fmt, ...) say(g, "T *v%zu = " fmt, (g)->n, __VA_ARGS__)

// ---- memory ---------------------------------------------------------------------------------------------------------

static double number(uint64_t *rng) { return (double)(int)(tj_test_random(rng) % 41) / 4 - 5; }

static void fill_records(struct record *r, size_t n, uint64_t *rng) {
    for (size_t i = 0; i < n; i++, r++) {
        memset(r, 0x5A, sizeof *r);
        r->x = (float)number(rng);
        r->y = tj_test_random(rng) % 9 ? (float)number(rng) : -0.0f;
        r->k = (int32_t)(tj_test_random(rng) % 9) - 4;
        r->flag = (unsigned char)(tj_test_random(rng) % 4);
    }
}

static void fill_world(struct world *w, uint64_t seed) {
    uint64_t rng = seed * 31 + 3;
    for (size_t i = 0; i < TJ_COUNT(w->plain); i++)
        w->plain[i] = (float)number(&rng);
    for (size_t i = 0; i < TJ_COUNT(w->steady); i++)
        w->steady[i] = (float)number(&rng);
    fill_records(w->records, TJ_COUNT(w->records), &rng);
    fill_records(w->others, TJ_COUNT(w->others), &rng);
}

static T *wrap(struct gen *g, enum trace_dtype d, void *data, int64_t stride) {
    const int64_t dims[2] = {ROWS, g->cols}, strides[2] = {stride * g->cols, stride};
    T *t = trace_wrap_desc(g->ctx,
                           TRACE_TENSOR_DESC(.dtype = d, .dims = dims, .strides = strides, .rank = 2, .data = data));
    ck_assert_msg(t != NULL, "%s", trace_last_error(g->ctx));
    return t;
}

// again: where the second handle of the first memory lies this time.
static void open_tensors(struct gen *g, int64_t again) {
    struct world *w = g->w;
    T **h = g->handles;
    int64_t n = g->cols;
    h[T_WHOLE] = wrap(g, TRACE_F32, w->plain, 1);
    h[T_AGAIN] = wrap(g, TRACE_F32, w->plain + again, 1);
    h[T_OVER] = wrap(g, TRACE_F32, w->plain + 2 * n, 1);
    h[T_APART] = wrap(g, TRACE_F32, w->plain + 6 * n, 1);
    h[T_X] = wrap(g, TRACE_F32, &w->records->x, 4);
    h[T_Y] = wrap(g, TRACE_F32, &w->records->y, 4);
    struct record *mixed = g->p->seed % 4 ? w->others : w->records; // fields of other dtypes in the same structs?
    h[T_K] = wrap(g, TRACE_I32, &mixed->k, 4);
    h[T_FLAG] = wrap(g, TRACE_BOOL, &(g->p->seed % 3 ? mixed : w->records)->flag, sizeof(struct record));
    h[T_OWNED] = trace_from(g->ctx, TRACE_F32, w->steady, TRACE_DIMS(ROWS, n));
    h[T_PART] = trace_narrow(h[T_OWNED], 0, 1, 2);
    h[T_TURNED] = trace_transpose(h[T_OWNED], 0, 1);
    h[T_LEFT] = trace_narrow(h[T_APART], 1, 0, n / 2);
    h[T_RIGHT] = trace_narrow(h[T_APART], 1, n / 2, n - n / 2);
    for (int i = 0; i < TENSORS; i++)
        ck_assert_msg(h[i] != NULL, "tensor %d: %s", i, trace_last_error(g->ctx));
}

static void close_tensors(struct gen *g) {
    for (int i = 0; i < TENSORS; i++) {
        trace_release(g->handles[i]);
        g->handles[i] = NULL;
    }
}

// ---- steps ----------------------------------------------------------------------------------------------------------

static void push(struct gen *g, T *t) {
    if (!t) {
        g->stop = true;
        return;
    }
    if (trace_numel(t) > 16 * MOST)
        return;
    g->pool[g->n] = t;
    g->name[g->n] = g->n;
}
static size_t pick(struct gen *g) { return draw(g, (uint32_t)g->n); }
static bool is_f32(const T *t) { return trace_dtype_of(t) == TRACE_F32; }
static size_t pick_f32(struct gen *g) {
    for (int i = 0; i < 8; i++) {
        size_t a = pick(g);
        if (is_f32(g->pool[a]))
            return a;
    }
    return T_WHOLE;
}
static bool alike(const T *a, const T *b) {
    if (trace_rank(a) != trace_rank(b))
        return false;
    for (int d = 0; d < trace_rank(a); d++)
        if (trace_size(a, d) != trace_size(b, d))
            return false;
    return true;
}
static bool partner(struct gen *g, size_t a, size_t *b) {
    for (int i = 0; i < 10; i++) {
        *b = pick_f32(g);
        if (alike(g->pool[a], g->pool[*b]))
            return true;
    }
    return false;
}

static void step_compute(struct gen *g) {
    size_t a = pick_f32(g), b;
    T *x = g->pool[a];
    double v = number(&g->rng);
    switch (draw(g, 8)) {
    case 0: SAY_NEW(g, "trace_add_f(v%zu, %g)", g->name[a], v), push(g, trace_add_f(x, v)); break;
    case 1: SAY_NEW(g, "trace_mul_f(v%zu, 0.5)", g->name[a]), push(g, trace_mul_f(x, 0.5)); break;
    case 2: SAY_NEW(g, "trace_relu(v%zu)", g->name[a]), push(g, trace_relu(x)); break;
    case 3:
    case 4:
        if (partner(g, a, &b))
            SAY_NEW(g, "trace_sub(v%zu, v%zu)", g->name[a], g->name[b]), push(g, trace_sub(x, g->pool[b]));
        break;
    case 5:
        if (partner(g, a, &b) && alike(x, g->pool[T_FLAG]))
            SAY_NEW(g, "trace_where(v%d, v%zu, v%zu)", T_FLAG, g->name[a], g->name[b]),
                push(g, trace_where(g->pool[T_FLAG], x, g->pool[b]));
        break;
    case 6: SAY_NEW(g, "trace_to(v%d, TRACE_F32)", T_K), push(g, trace_to(g->pool[T_K], TRACE_F32)); break;
    default:
        if (trace_rank(x) > 0)
            SAY_NEW(g, "trace_sum(v%zu, TRACE_DIMS(0), true)", g->name[a]), push(g, trace_sum(x, TRACE_DIMS(0), true));
    }
}

static void step_view(struct gen *g) {
    size_t a = pick(g);
    T *x = g->pool[a];
    int rank = trace_rank(x);
    if (rank < 1)
        return;
    long long d = draw(g, (uint32_t)rank), size = trace_size(x, d), start = size ? draw(g, (uint32_t)size) : 0;
    long long left = size - start, len = left ? draw(g, (uint32_t)left + 1) : 0;
    switch (draw(g, 7)) {
    case 0:
        SAY_NEW(g, "trace_transpose(v%zu, 0, %d)", g->name[a], rank - 1), push(g, trace_transpose(x, 0, rank - 1));
        break;
    case 1:
        SAY_NEW(g, "trace_narrow(v%zu, %lld, %lld, %lld)", g->name[a], d, start, len),
            push(g, trace_narrow(x, d, start, len));
        break;
    case 2:
        SAY_NEW(g, "trace_slice(v%zu, %lld, %lld, %lld, 2)", g->name[a], d, start % 2, size),
            push(g, trace_slice(x, d, start % 2 < size ? start % 2 : 0, size, 2));
        break;
    case 3:
        SAY_NEW(g, "trace_reshape(v%zu, TRACE_DIMS(%lld))", g->name[a], (long long)trace_numel(x)),
            push(g, trace_reshape(x, TRACE_DIMS(trace_numel(x))));
        break;
    case 4:
        if (size > 0 && rank > 1)
            SAY_NEW(g, "trace_select(v%zu, %lld, %lld)", g->name[a], d, start), push(g, trace_select(x, d, start));
        break;
    case 5:
        SAY_NEW(g, "trace_unsqueeze(v%zu, %lld)", g->name[a], d), push(g, rank < 4 ? trace_unsqueeze(x, d) : x);
        break;
    default:
        if (trace_numel(x) == ROWS * g->cols)
            SAY_NEW(g, "trace_reshape(v%zu, TRACE_DIMS(%d, %lld))", g->name[a], ROWS, (long long)g->cols),
                push(g, trace_reshape(x, TRACE_DIMS(ROWS, g->cols)));
    }
}

static void step_copy(struct gen *g) {
    size_t a = pick(g), b;
    T *x = g->pool[a];
    int rank = trace_rank(x);
    switch (draw(g, 5)) {
    case 0: SAY_NEW(g, "trace_clone(v%zu)", g->name[a]), push(g, trace_clone(x)); break;
    case 1: SAY_NEW(g, "trace_contiguous(v%zu)", g->name[a]), push(g, trace_contiguous(x)); break;
    case 2:
        if (rank == 2) // copies where the strides allow no view
            SAY_NEW(g, "trace_reshape(trace_transpose(v%zu, 0, 1), TRACE_DIMS(%lld))", g->name[a],
                    (long long)trace_numel(x)),
                push(g, trace_reshape(trace_transpose(x, 0, 1), TRACE_DIMS(trace_numel(x))));
        break;
    case 3:
        if (rank > 0)
            SAY_NEW(g, "trace_flip(v%zu, TRACE_DIMS(0))", g->name[a]), push(g, trace_flip(x, TRACE_DIMS(0)));
        break;
    default:
        if (is_f32(x) && partner(g, a, &b) && rank > 0)
            SAY_NEW(g, "trace_cat(TRACE_ARGS(v%zu, v%zu), 0)", g->name[a], g->name[b]),
                push(g, trace_cat(TRACE_ARGS(x, g->pool[b]), 0));
    }
}

static void step_write(struct gen *g) {
    size_t a = draw(g, 3) ? pick_f32(g) : draw(g, TENSORS), b;
    T *x = g->pool[a], *done = x;
    double v = number(&g->rng);
    if (trace_dtype_of(x) == TRACE_BOOL) {
        say(g, "trace_copy_(v%zu, trace_logical_not(v%zu))", g->name[a], g->name[a]);
        done = trace_copy_(x, trace_logical_not(x));
    } else if (!is_f32(x)) {
        say(g, "trace_add_i_(v%zu, 3)", g->name[a]);
        done = trace_add_i_(x, 3);
    } else {
        switch (draw(g, 6)) {
        case 0: say(g, "trace_add_f_(v%zu, %g)", g->name[a], v), done = trace_add_f_(x, v); break;
        case 1: say(g, "trace_mul_f_(v%zu, 0.5)", g->name[a]), done = trace_mul_f_(x, 0.5); break;
        case 2: say(g, "trace_fill_f_(v%zu, %g)", g->name[a], v), done = trace_fill_f_(x, v); break;
        case 3:
            if (partner(g, a, &b))
                say(g, "trace_copy_(v%zu, trace_clone(v%zu))", g->name[a], g->name[b]),
                    done = trace_copy_(x, trace_clone(g->pool[b]));
            break;
        case 4:
            if (partner(g, a, &b))
                say(g, "trace_sub_(v%zu, v%zu)", g->name[a], g->name[b]), done = trace_sub_(x, g->pool[b]);
            break;
        default:
            if (partner(g, a, &b))
                say(g, "trace_copy_(v%zu, trace_mul_f(v%zu, -1))", g->name[a], g->name[b]),
                    done = trace_copy_(x, trace_mul_f(g->pool[b], -1));
        }
    }
    g->stop = !done;
}

static void step_loop(struct gen *g) {
    size_t a = pick_f32(g), b;
    if (!partner(g, a, &b))
        return;
    int turns = (int)draw(g, 4);
    T *h = g->pool[a];
    SAY_NEW(
        g,
        "v%zu; trace_repeat(%d, &v%zu, 1); v%zu = trace_add(trace_mul_f(v%zu, 0.5), v%zu); trace_repeat_end(&v%zu, 1)",
        a, turns, g->n, g->n, g->n, b, g->n);
    if (trace_repeat(turns, &h, 1))
        g->stop = true;
    h = trace_add(trace_mul_f(h, 0.5), g->pool[b]);
    if (trace_repeat_end(&h, 1))
        g->stop = true;
    push(g, g->stop ? NULL : h);
}

static void step_host(struct gen *g) {
    size_t a = pick_f32(g);
    T *x = g->pool[a];
    struct world *w = g->w;
    switch (draw(g, 4)) {
    case 0:
    case 1: {
        double v = 0;
        say(g, "trace_item_f64(trace_sum(v%zu, TRACE_SCALAR, false), &v)", g->name[a]);
        if (trace_item_f64(trace_sum(x, TRACE_SCALAR, false), &v))
            g->stop = true;
        if (w->nitems < NITEMS)
            w->items[w->nitems++] = v;
        break;
    }
    case 2: {
        size_t bytes = (size_t)trace_numel(x) * 4;
        say(g, "trace_read(v%zu, host, %zu)", g->name[a], bytes);
        if (bytes <= sizeof w->host && trace_read(x, w->host, bytes))
            g->stop = true;
        break;
    }
    default: {
        float data[ROWS * MOST];
        for (int64_t i = 0; i < ROWS * g->cols; i++)
            data[i] = (float)number(&g->rng);
        say(g, "trace_write(v%d, data, %zu)", T_OWNED, (size_t)(ROWS * g->cols) * 4);
        if (trace_write(g->handles[T_OWNED], data, (size_t)(ROWS * g->cols) * 4))
            g->stop = true;
    }
    }
}

static void body(struct gen *g, int run) {
    const struct program *p = g->p;
    for (size_t i = 0; i < TENSORS; i++) {
        g->pool[i] = g->handles[i];
        g->name[i] = i;
    }
    // Each step has a place for its value; where it has none, or is left out, a tensor stands there.
    for (int s = 0; s < p->steps && !g->stop; s++) {
        g->n = TENSORS + (size_t)s;
        g->name[g->n] = (size_t)s % TENSORS;
        g->pool[g->n] = g->handles[g->name[g->n]];
        g->rng = p->seed * 1000003 + (uint64_t)(p->same_body ? 0 : run) * 977 + (uint64_t)s * 13 + 5;
        uint32_t k = draw(g, 20);
        if (p->drop[run] >> s & 1)
            continue;
        if (k < 5)
            step_compute(g);
        else if (k < 9)
            step_view(g);
        else if (k < 12)
            step_copy(g);
        else if (k < 17)
            step_write(g);
        else if (k < 18)
            step_loop(g);
        else if (!p->quiet)
            step_host(g);
    }
    g->n = TENSORS + (size_t)p->steps;
    if (p->mode == BOUND && !g->stop) { // has to write something
        say(g, "trace_add_f_(v%d, 1)", T_APART);
        g->stop = !trace_add_f_(g->handles[T_APART], 1);
    }
}

// ---- programs -------------------------------------------------------------------------------------------------------

// Whether extents, and where the second handle lies, change in this run. Replays come after runs that were alike, and
// a replayed body sees other tensors only where they are declared.
static bool moves(const struct program *p, int run) {
    return p->mode == BOUND ? false : p->mode == REPLAY ? run >= 5 && p->declared == TENSORS : p->seed % 3 != 0;
}

static int64_t cols_of(const struct program *p, int run) {
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 8, 17, 33};
    uint64_t rng = p->seed * 7 + (moves(p, run) ? (uint64_t)run : 0);
    return sizes[tj_test_random(&rng) % TJ_COUNT(sizes)];
}

// The host changes memory between runs.
static void between(struct gen *g, int run) {
    g->rng = g->p->seed * 17 + (uint64_t)run;
    struct world *w = g->w;
    if (draw(g, 2)) {
        w->plain[draw(g, (uint32_t)(1 + 4 * g->cols))] = (float)number(&g->rng);
        w->records[draw(g, (uint32_t)(1 + 3 * g->cols))].x = 9;
    }
    if (draw(g, 3) == 0) {
        float data[ROWS * MOST];
        for (int64_t i = 0; i < ROWS * g->cols; i++)
            data[i] = (float)number(&g->rng);
        say(g, "trace_write(v%d, data, %zu)", T_OWNED, (size_t)(ROWS * g->cols) * 4);
        ck_assert_msg(trace_write(g->handles[T_OWNED], data, (size_t)(ROWS * g->cols) * 4) == TRACE_OK, "%s",
                      trace_last_error(g->ctx));
    }
}

static void keep_outputs(struct gen *g, T **outs) {
    struct world *w = g->w;
    static const size_t widths[] = {1, 1, 4, 8, 2, 2, 4, 8};
    for (size_t i = 0; i < w->nout; i++) {
        w->out[i].dtype = trace_dtype_of(outs[i]);
        w->out[i].bytes = (size_t)trace_numel(outs[i]) * widths[w->out[i].dtype];
        ck_assert(w->out[i].bytes <= sizeof w->out[i].data);
        ck_assert_msg(trace_read(outs[i], w->out[i].data, w->out[i].bytes) == TRACE_OK, "%s", trace_last_error(g->ctx));
        trace_release(outs[i]);
    }
}

static trace_region *open_region(const struct program *p, enum impl impl) {
    static const int dynamic[MODES] = {[RECORD_OFF] = TRACE_DYNAMIC_OFF, [RECORD_ON] = TRACE_DYNAMIC_ON};
    trace_region *r;
    bool own = impl == FUSED;
    int mode = impl == EAGER ? TRACE_MODE_EAGER : own && p->mode == REPLAY ? TRACE_MODE_REPLAY : TRACE_MODE_RECORD;
    ck_assert(trace_region_create(contexts[impl], "fuzz",
                                  TRACE_REGION_OPTIONS(.mode = mode, .dynamic = own ? dynamic[p->mode] : 0),
                                  &r) == TRACE_OK);
    if (own && p->mode == BUCKETS && p->declared)
        ck_assert_msg(trace_region_buckets(r, 0, 1, TRACE_BUCKETS_POWERS, NULL, 0) == TRACE_OK, "%s",
                      trace_last_error(contexts[impl]));
    return r;
}

// One run; the world has its results. false: it failed.
static bool one_run(struct gen *g, trace_region *r, int run, trace_bound **bound) {
    struct world *w = g->w;
    const struct program *p = g->p;
    T *outs[MAX_OUT] = {0};
    w->nout = p->mode == BOUND ? 0 : 1 + p->seed % MAX_OUT;
    w->nitems = 0;
    memset(w->host, 0, sizeof w->host);
    bool recorded = false;
    if (*bound) {
        w->status = trace_bound_run(*bound);
    } else {
        recorded = trace_begin(r, g->handles, (size_t)p->declared);
        if (recorded) {
            body(g, run);
            for (size_t i = 0; i < w->nout && !g->stop; i++) {
                g->rng = p->seed * 5 + i + (uint64_t)(p->same_body ? 0 : run) * 3;
                size_t at = i ? pick(g) : g->n - 1;
                say(g, "outs[%zu] = v%zu", i, g->name[at]);
                outs[i] = g->pool[at];
            }
        }
        w->status = g->bound ? trace_end_bind(r, NULL, bound) : trace_end(r, outs, w->nout);
        if (!w->status && g->bound)
            w->status = trace_bound_run(*bound);
    }
    w->replayed = !recorded;
    g->stop = false;
    (void)snprintf(w->error, sizeof w->error, "%s", w->status ? trace_last_error(g->ctx) : "");
    if (w->status)
        return false;
    keep_outputs(g, outs);
    ck_assert(trace_read(g->handles[T_OWNED], w->owned, (size_t)(ROWS * g->cols) * 4) == TRACE_OK);
    return true;
}

static bool same_floats(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], 4) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

static uint64_t refused;

// What differs between a world and the reference, or NULL.
static const char *differ(const struct world *a, const struct world *b, int64_t cols, char *buf, size_t cap) {
    const char *what = NULL;
    if (a->status == TRACE_ERR_ARGUMENT && strstr(a->error, "copy one of them first")) {
        refused++; // memory that overlaps in ways that recording doesn't follow: said so, and nothing was written
        return NULL;
    }
    if (a->status != b->status) {
        (void)snprintf(buf, cap, "status %s (%s), wanted %s (%s)", trace_status_name(a->status), a->error,
                       trace_status_name(b->status), b->error);
        return buf;
    }
    if (a->status)
        return NULL;
    for (size_t i = 0; i < a->nout && !what; i++) {
        bool same = a->out[i].dtype == b->out[i].dtype && a->out[i].bytes == b->out[i].bytes;
        if (same && a->out[i].dtype == TRACE_F32)
            same = same_floats((const float *)(const void *)a->out[i].data, (const float *)(const void *)b->out[i].data,
                               a->out[i].bytes / 4);
        else if (same)
            same = !memcmp(a->out[i].data, b->out[i].data, a->out[i].bytes);
        if (!same) {
            (void)snprintf(buf, cap, "output %zu", i);
            return buf;
        }
    }
    for (size_t i = 0; i < 2 * TJ_COUNT(a->records) && !what; i++) {
        const struct record *x = i % 2 ? &a->records[i / 2] : &a->others[i / 2],
                            *y = i % 2 ? &b->records[i / 2] : &b->others[i / 2];
        if (!same_floats(&x->x, &y->x, 2) || memcmp(&x->k, &y->k, sizeof *x - 2 * sizeof(float)))
            what = "the structs";
    }
    if (!what && !same_floats(a->plain, b->plain, TJ_COUNT(a->plain)))
        what = "wrapped memory";
    if (!what && !same_floats(a->owned, b->owned, (size_t)(ROWS * cols)))
        what = "the owned tensor";
    if (!what && !a->replayed && !same_floats(a->host, b->host, TJ_COUNT(a->host)))
        what = "what was read";
    if (!what && !a->replayed && (a->nitems != b->nitems || memcmp(a->items, b->items, a->nitems * sizeof *a->items)))
        what = "scalars read";
    if (what)
        (void)snprintf(buf, cap, "%s", what);
    return what ? buf : NULL;
}

// Where the second handle of the plain memory begins: the same, overlapping, or apart.
static int64_t again_at(const struct program *p, int run, int64_t cols) {
    uint64_t rng = p->seed * 23 + (moves(p, run) || (p->seed % 2 && p->mode != REPLAY) ? (uint64_t)run : 0);
    const int64_t places[] = {0, cols, 3, 4 * cols, 8 * cols};
    return places[tj_test_random(&rng) % 5];
}

// The first difference, or NULL; log: the program is printed as the reference runs it.
static const char *check(const struct program *p, FILE *log, char *buf, size_t cap) {
    static struct world worlds[IMPLS];
    struct gen gens[IMPLS];
    trace_region *r[IMPLS];
    trace_bound *bound[IMPLS] = {0};
    const char *bad = NULL;
    char what[700];
    memset(worlds, 0, sizeof worlds);
    for (int i = 0; i < IMPLS; i++) {
        fill_world(&worlds[i], p->seed);
        r[i] = open_region(p, (enum impl)i);
        gens[i] = (struct gen){.p = p,
                               .w = &worlds[i],
                               .ctx = contexts[i],
                               .log = i ? NULL : log,
                               .bound = i == FUSED && p->mode == BOUND};
    }
    int64_t before = -1, place = -1;
    for (int run = 0; run < p->runs && !bad; run++) {
        int64_t cols = cols_of(p, run), again = again_at(p, run, cols);
        bool fresh = cols != before || (again != place && p->mode != BOUND), failed = false;
        if (log)
            (void)fprintf(log, "  // run %d, %s: [%d, %lld]; v%d begins at %lld of v%d\n", run, mode_name[p->mode],
                          ROWS, (long long)cols, T_AGAIN, (long long)(p->mode == BOUND && run ? place : again),
                          T_WHOLE);
        for (int i = 0; i < IMPLS; i++) {
            gens[i].cols = cols;
            if (fresh && run)
                close_tensors(&gens[i]);
            if (fresh)
                open_tensors(&gens[i], again);
            else
                between(&gens[i], run);
            failed |= !one_run(&gens[i], r[i], run, &bound[i]);
            if (i && !bad && differ(&worlds[i], &worlds[0], cols, what, sizeof what)) {
                (void)snprintf(buf, cap, "run %d, %s (%s)%s: %s", run, impl_name[i], mode_name[p->mode],
                               worlds[i].replayed ? ", not recorded" : "", what);
                bad = buf;
            }
        }
        place = fresh ? again : place;
        before = cols;
        if (failed)
            break; // what had run of it differs
    }
    for (int i = 0; i < IMPLS; i++) {
        trace_bound_release(bound[i]);
        close_tensors(&gens[i]);
        trace_region_release(r[i]);
    }
    return bad;
}

// Leaves out runs, then steps, as long as it fails.
static void shorten(struct program *p) {
    char why[800];
    struct program q = *p;
    while (q.runs > 1 && (q.runs--, check(&q, NULL, why, sizeof why)))
        *p = q;
    for (int again = 0; again < 2; again++)
        for (int run = 0; run < p->runs; run++)
            for (int s = p->steps - 1; s >= 0; s--) {
                q = *p;
                if (q.drop[run] >> s & 1)
                    continue;
                for (int k = q.same_body ? 0 : run; k <= (q.same_body ? q.runs - 1 : run); k++)
                    q.drop[k] |= 1u << s;
                if (check(&q, NULL, why, sizeof why))
                    *p = q;
            }
}

static uint64_t env_number(const char *name, uint64_t otherwise) {
    const char *s = getenv(name);
    return s ? strtoull(s, NULL, 10) : otherwise;
}

START_TEST(shared_memory) {
    for (int i = 0; i < IMPLS; i++) {
        ck_assert(setenv("TRACEJIT_NO", impl_env[i], 1) == 0);
        trace_context_options o = {.size = sizeof o, .on_event = tj_test_quiet};
        ck_assert_msg(trace_context_create(&o, &contexts[i]) == TRACE_OK, "%s", trace_last_error(NULL));
    }
    uint64_t seed = env_number("FUZZ_SEED", 1), count = env_number("FUZZ_COUNT", 120);
    int failures = 0;
    char why[800];
    for (uint64_t s = seed; s < seed + count && failures < 4; s++) {
        uint64_t rng = s;
        struct program p = {.seed = s, .mode = (int)(tj_test_random(&rng) % MODES)};
        if (p.mode == BOUND && !tj_test_compiler()) // nothing can be bound
            p.mode = RECORD_AUTO;
        p.runs = p.mode == REPLAY ? MAX_RUNS : 2 + (int)(tj_test_random(&rng) % 4);
        p.steps = 4 + (int)(tj_test_random(&rng) % (MAX_STEPS - 3));
        p.declared = (int)(tj_test_random(&rng) % (TENSORS + 1));
        if (p.mode == REPLAY && s % 2)
            p.declared = TENSORS;
        p.quiet = p.mode == BOUND || (p.mode == REPLAY && tj_test_random(&rng) % 4);
        p.same_body = p.mode == REPLAY || p.mode == BOUND || tj_test_random(&rng) % 3;
        if (!check(&p, NULL, why, sizeof why))
            continue;
        failures++;
        shorten(&p);
        (void)check(&p, NULL, why, sizeof why);
        (void)fprintf(stderr, "seed %llu: %s; the first %d of v0 to v%d are declared inputs\n", (unsigned long long)s,
                      why, p.declared, TENSORS - 1);
        (void)check(&p, stderr, why, sizeof why);
    }
    if (getenv("FUZZ_COUNT"))
        printf("%llu runs refused\n", (unsigned long long)refused);
    trace_stats st = {.size = sizeof st};
    trace_context_stats(contexts[FUSED], &st);
    bool compiler = strcmp(tj_backend_cpu.name, "none");
    ck_assert_msg(getenv("FUZZ_COUNT") || failures || !compiler ||
                      (st.interpreted_ops * 20 < st.ops_recorded && st.replays > 0 && st.breaks > 0),
                  "%llu ops interpreted, %llu replays, %llu breaks", (unsigned long long)st.interpreted_ops,
                  (unsigned long long)st.replays, (unsigned long long)st.breaks);
    for (int i = 0; i < IMPLS; i++)
        trace_context_release(contexts[i]);
    ck_assert_msg(failures == 0, "%d programs differ", failures);
}
END_TEST

TJ_TEST_MAIN("fuzz_mem", shared_memory)
