// tests/test_faults.c: allocations that fail, one after the other, at every site; compilers that fail.
//
// A scene is what a host does in one go. Each is run with its allocation k refused (alone, and with all later ones),
// for k = 0, 1, ... until none is refused. Whatever happens: a status and a text, no leak, state tensors as they were,
// and the next run in the same context is right. In both tiers, and op by op.
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "../lib/execmem.h"
#include "../trace/context.h"
#include "tj_test.h"

// ---- blocks in use: a sanitizer finds leaks itself, elsewhere they are counted --------------------------------------

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
static atomic_long in_use;
#if defined(__GLIBC__) && !defined(SANITIZED)
#pragma GCC visibility push(default) // for the compiler module and the C library itself, too
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);
static void *counted(void *p) {
    if (p)
        (void)atomic_fetch_add(&in_use, 1);
    return p;
}
void *malloc(size_t n) { return counted(__libc_malloc(n)); }
void *calloc(size_t n, size_t size) { return counted(__libc_calloc(n, size)); }
void *realloc(void *p, size_t n) { return p ? __libc_realloc(p, n) : malloc(n); }
void *memalign(size_t align, size_t n);
void *memalign(size_t align, size_t n) { return counted(__libc_memalign(align, n)); }
void *aligned_alloc(size_t align, size_t n) { return memalign(align, n); }
int posix_memalign(void **out, size_t align, size_t n) {
    void *p = memalign(align, n);
    if (p)
        *out = p;
    return p ? 0 : 12; // ENOMEM
}
void free(void *p) {
    if (p)
        (void)atomic_fetch_sub(&in_use, 1);
    __libc_free(p);
}
#pragma GCC visibility pop
#endif

// ---- refusing -------------------------------------------------------------------------------------------------------

static atomic_size_t asked;
static size_t refuse_at; // the allocation refused
static bool refuse_on;   // and all later ones
static bool refusing(size_t bytes) {
    (void)bytes;
    size_t k = atomic_fetch_add(&asked, 1);
    return !(k == refuse_at || (refuse_on && k > refuse_at));
}

// ---- a world: a context with tensors, and what a scene gives --------------------------------------------------------

enum tier { JIT, INTERPRETER, OP_BY_OP };
enum { N = 8, RESULTS = 64 };
struct world {
    trace_context *ctx;
    trace_region *region, *inner;
    trace_tensor *x, *w, *b, *s, *out, *index, *image, *taps; // s: state, counts the runs that ended well
    float memory[2 * N];
    float result[RESULTS];
    char error[TJ_ERROR_MAX]; // of the scene, where it goes on after the failure
};
static void set_tier(enum tier t) {
    (void)setenv("TRACEJIT_NO", t == JIT ? "" : "jit", 1);
    (void)setenv("TRACEJIT_DISABLE", t == OP_BY_OP ? "1" : "0", 1);
}
static trace_tensor *floats(trace_context *ctx, const int64_t *dims, size_t rank) {
    float v[256];
    int64_t n;
    ck_assert(tj_numel(dims, rank, &n) && n <= 256);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)((i * 7 + 3) % 11) / 8 - 0.5f;
    return trace_from(ctx, TRACE_F32, v, dims, rank);
}
static trace_context *shared; // kept from world to world, so that its kernels are compiled once; NULL: each has its own
static void quiet(void *user, const trace_event *e) { (void)user, (void)e; }
static tj_status world_make(struct world *w) {
    memset(w, 0, sizeof *w);
    const int64_t rows[2] = {2, 5};
    const float zero = 0;
    tj_status s = TRACE_OK;
    w->ctx = shared;
    if (!shared)
        s = trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = quiet), &w->ctx);
    if (!s)
        s = trace_region_create(w->ctx, "scene", NULL, &w->region);
    if (!s)
        s = trace_region_create(w->ctx, "inner", NULL, &w->inner);
    if (s)
        return s;
    bool ok = (w->x = floats(w->ctx, TRACE_DIMS(2, N))) && (w->w = floats(w->ctx, TRACE_DIMS(N, N))) &&
              (w->b = floats(w->ctx, TRACE_DIMS(N))) && (w->s = trace_from(w->ctx, TRACE_F32, &zero, TRACE_DIMS(1))) &&
              (w->out = trace_wrap(w->ctx, TRACE_F32, w->memory, TRACE_DIMS(2, N))) &&
              (w->index = trace_from(w->ctx, TRACE_I64, rows, TRACE_DIMS(2))) &&
              (w->image = floats(w->ctx, TRACE_DIMS(1, 2, 5, 5))) && (w->taps = floats(w->ctx, TRACE_DIMS(3, 2, 3, 3)));
    return ok ? TRACE_OK : tj_last_status();
}
static void world_end(struct world *w) {
    trace_tensor *all[] = {w->x, w->w, w->b, w->s, w->out, w->index, w->image, w->taps};
    for (size_t i = 0; i < TJ_COUNT(all); i++)
        trace_release(all[i]);
    trace_region_release(w->inner);
    trace_region_release(w->region);
    if (w->ctx) {
        ck_assert_ptr_null(w->ctx->tensors);
        ck_assert_ptr_null(w->ctx->regions);
        ck_assert_int_eq(atomic_load(&w->ctx->refs), 1);
    }
    if (!shared)
        trace_context_release(w->ctx);
}
// Copies an output into the results and releases it.
static tj_status take(struct world *w, trace_tensor *y, size_t *at) {
    size_t n = y ? (size_t)trace_numel(y) : 0;
    ck_assert(*at + n <= RESULTS);
    tj_status s = trace_read(y, w->result + *at, n * sizeof(float));
    *at += n;
    trace_release(y);
    return s;
}

// ---- scenes ---------------------------------------------------------------------------------------------------------

// Contraction with packed weights, pointwise, rows, reductions, a copy into host memory, state, a view as output.
static tj_status network(struct world *w) {
    trace_tensor *y[3] = {0};
    size_t at = 0;
    if (trace_begin(w->region, TRACE_ARGS(w->x))) {
        trace_tensor *h = trace_gelu(trace_linear(w->x, w->w, w->b), TRACE_GELU_NONE);
        h = trace_layer_norm(trace_add(h, w->x), TRACE_DIMS(N), w->b, TRACE_NONE, 1e-5);
        trace_copy_(w->out, trace_softmax(h, -1));
        trace_add_f_(w->s, 1);
        y[0] = trace_sum(h, TRACE_DIMS(1), false);
        y[1] = trace_narrow(w->x, 1, 2, 3);
        y[2] = trace_mul_f(h, 0.5);
    }
    tj_status s = trace_end(w->region, y, 3);
    for (int i = 0; i < 3 && !s; i++)
        s = take(w, y[i], &at);
    if (!s)
        memcpy(w->result + at, w->memory, sizeof w->memory);
    return s;
}

// A break in a loop: what ran before a failure has run, so state is written behind it only.
static tj_status looping(struct world *w) {
    trace_tensor *y = NULL;
    size_t at = 0;
    if (trace_begin(w->region, TRACE_ARGS(w->x))) {
        trace_tensor *h = trace_mul_f(w->x, 0.5);
        double v = 1;
        for (int i = 0; i < 3 && !trace_failed(w->ctx); i++) {
            h = trace_sub(h, trace_tanh(h));
            if (trace_item_f64(trace_amax(h, TRACE_SCALAR, false), &v))
                break;
        }
        y = trace_add_f(h, v);
        trace_add_f_(w->s, 1);
    }
    tj_status s = trace_end(w->region, &y, 1);
    return s ? s : take(w, y, &at);
}

// Deferred forms, an inlined region, values released early, list operands.
static tj_status nested(struct world *w) {
    trace_tensor *y = NULL, *later = NULL;
    size_t at = 0;
    if (trace_begin(w->region, TRACE_ARGS(w->x))) {
        trace_tensor *h = trace_relu(w->x), *z = NULL;
        if (trace_begin(w->inner, TRACE_ARGS(h))) {
            z = trace_cat(TRACE_ARGS(h, h, w->x, h, w->x, h), 1);
            z = trace_mean(z, TRACE_DIMS(1), true);
        }
        (void)!trace_end(w->inner, &z, 1);
        later = trace_item_later(trace_sum(z, TRACE_SCALAR, false));
        y = trace_mul(h, z);
        trace_release(h);
        trace_add_f_(w->s, 1);
    }
    tj_status s = trace_end(w->region, &y, 1), st;
    if (!s)
        s = take(w, y, &at);
    if (!s)
        s = take(w, later, &at);
    else if (later) {
        (void)snprintf(w->error, sizeof w->error, "%s", trace_last_error(w->ctx));
        st = trace_read(later, w->result, sizeof(float)); // the deferred value says that it never came
        ck_assert(st != TRACE_OK || w->ctx->env.disable);
        trace_release(later);
    }
    return s;
}

// Memory ops: index_copy, pad, stack, a write through a view, overlapping leaves, indices.
static tj_status moves(struct world *w) {
    trace_tensor *y[2] = {0};
    size_t at = 0;
    trace_tensor *half = trace_narrow(w->out, 1, 0, 4);
    tj_status s = half ? TRACE_OK : tj_last_status();
    if (s)
        return s;
    if (trace_begin(w->region, TRACE_ARGS(w->x, half))) {
        trace_copy_(w->out, w->x);
        trace_tensor *r = trace_index_select(w->w, 0, w->index);
        trace_fill_f_(trace_select(half, 0, 1), 3);
        trace_tensor *k = trace_clone(w->w);
        trace_index_copy_(k, 0, w->index, trace_neg(r));
        y[0] = trace_sum(trace_pad(k, (const int64_t[]){1, 1}, 2, TRACE_PAD_CONSTANT, 2), TRACE_DIMS(1), false);
        y[1] = trace_amax(trace_stack(TRACE_ARGS(r, trace_flip(r, TRACE_DIMS(1))), 0), TRACE_DIMS(0), false);
        trace_add_f_(w->s, 1);
    }
    s = trace_end(w->region, y, 2);
    for (int i = 0; i < 2 && !s; i++)
        s = take(w, y[i], &at);
    trace_release(half);
    return s;
}

// Convolution, pooling, attention.
static tj_status contractions(struct world *w) {
    trace_tensor *y[2] = {0};
    size_t at = 0;
    if (trace_begin(w->region, TRACE_ARGS(w->image))) {
        trace_tensor *c = trace_conv2d(w->image, w->taps, TRACE_NONE, NULL, (const int64_t[]){1, 1}, NULL, 1);
        y[0] = trace_max_pool2d(trace_relu(c), (const int64_t[]){2, 2}, NULL, NULL, NULL, false);
        y[1] = trace_scaled_dot_product_attention(w->x, w->w, w->w, TRACE_NONE, true, 0, false);
        trace_add_f_(w->s, 1);
    }
    tj_status s = trace_end(w->region, y, 2);
    for (int i = 0; i < 2 && !s; i++)
        s = take(w, y[i], &at);
    return s;
}

// Outside a region.
static tj_status single_ops(struct world *w) {
    size_t at = 0;
    trace_tensor *a = trace_mul_f(w->x, 2), *b = trace_add(a, w->b), *c = trace_sum(b, TRACE_DIMS(0), true);
    trace_tensor *d = trace_matmul(b, w->w), *pieces[4] = {0};
    tj_status s = a && b && c && d ? TRACE_OK : tj_last_status();
    if (!s)
        s = trace_split(b, 2, 1, pieces, 4);
    if (!s)
        s = take(w, trace_retain(c), &at);
    if (!s)
        s = take(w, trace_retain(pieces[3]), &at);
    if (!s)
        s = take(w, trace_retain(d), &at);
    for (int i = 0; i < 4; i++)
        trace_release(pieces[i]);
    trace_release(a), trace_release(b), trace_release(c), trace_release(d);
    if (!s && !trace_add_f_(w->s, 1))
        s = tj_last_status();
    return s;
}

// Reports, and replacing the content of a tensor while a run holds it.
static tj_status reports(struct world *w) {
    char text[16384];
    size_t need = 0;
    tj_status s = network(w);
    for (int f = TRACE_FORMAT_TEXT; f <= TRACE_FORMAT_PROMETHEUS && !s; f++)
        s = trace_context_report(w->ctx, (enum trace_format)f, text, sizeof text, &need);
    return s;
}

// One kernel, so that each site of a compile from nothing can be tried.
static tj_status small(struct world *w) {
    trace_tensor *y = NULL;
    size_t at = 0;
    if (trace_begin(w->region, TRACE_ARGS(w->x))) {
        y = trace_relu(w->x);
        trace_add_f_(w->s, 1);
    }
    tj_status s = trace_end(w->region, &y, 1);
    return s ? s : take(w, y, &at);
}

// Weights that the host replaces between two runs: packed copies of the old ones go, whatever fails.
static tj_status rewritten(struct world *w) {
    float fresh[N * N];
    size_t at = 0;
    tj_status s = TRACE_OK;
    for (int run = 0; run < 2 && !s; run++) {
        trace_tensor *y = NULL;
        for (int i = 0; i < N * N; i++)
            fresh[i] = (float)(i % (5 + run));
        s = trace_write(w->w, fresh, sizeof fresh);
        if (s)
            return s;
        if (trace_begin(w->region, TRACE_ARGS(w->x))) {
            y = trace_linear(w->x, w->w, w->b);
            if (run)
                trace_add_f_(w->s, 1);
        }
        s = trace_end(w->region, &y, 1);
        if (!s)
            s = take(w, y, &at);
    }
    return s;
}

// A recording that is replayed: its third run skips the body.
static tj_status replayed(struct world *w) {
    trace_region *r;
    size_t at = 0;
    tj_status s = trace_region_create(w->ctx, "replayed", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_REPLAY), &r);
    for (int run = 0; run < 3 && !s; run++) {
        trace_tensor *y = NULL;
        if (trace_begin(r, TRACE_ARGS(w->x))) {
            y = trace_sum(trace_mul(w->x, w->b), TRACE_DIMS(1), false);
            trace_copy_(w->out, w->x);
        }
        s = trace_end(r, &y, 1);
        if (!s)
            s = take(w, y, &at);
    }
    trace_region_release(r);
    if (!s && !trace_add_f_(w->s, 1))
        s = tj_last_status();
    return s;
}

// Bound once, run twice.
static tj_status bound(struct world *w) {
    trace_bound *b = NULL;
    if (trace_begin(w->region, TRACE_ARGS(w->x))) {
        trace_copy_(w->out, trace_softmax(trace_linear(w->x, w->w, w->b), -1));
        trace_add_f_(w->s, 0.5);
    }
    tj_status s = trace_end_bind(w->region, NULL, &b);
    for (int run = 0; run < 2 && !s; run++)
        s = trace_bound_run(b);
    trace_bound_release(b);
    if (!s)
        memcpy(w->result, w->memory, sizeof w->memory);
    return s;
}

struct scene {
    const char *name;
    tj_status (*body)(struct world *w);
};
static const struct scene scenes[] = {
    {"network", network},           {"looping", looping},       {"nested", nested},   {"moves", moves},
    {"contractions", contractions}, {"single_ops", single_ops}, {"reports", reports}, {"small", small},
    {"rewritten", rewritten},       {"replayed", replayed},     {"bound", bound}};

static float state(struct world *w) {
    float v = NAN;
    TJ_ASSERT_OK(trace_read(w->s, &v, sizeof v));
    return v;
}

// One turn: allocation k refused. True when none was.
static bool turn(enum tier tier, const struct scene *sc, size_t k, bool on, const float *want) {
    struct world w;
    TJ_ASSERT_OK(world_make(&w));
    atomic_store(&asked, 0);
    refuse_at = k;
    refuse_on = on;
    tj_alloc_hook = refusing;
    tj_status s = sc->body(&w);
    tj_alloc_hook = NULL;
    bool refused = atomic_load(&asked) > k;
    if (!w.error[0])
        (void)snprintf(w.error, sizeof w.error, "%s", trace_last_error(w.ctx));
    float had = state(&w);
    if (s) {
        ck_assert_msg(refused, "%s: %s: %s", sc->name, tj_status_name(s), w.error);
        ck_assert_msg(s == TRACE_ERR_MEMORY, "%s, allocation %zu: %s: %s", sc->name, k, tj_status_name(s), w.error);
        ck_assert_msg(strstr(w.error, "memory") != NULL, "%s, allocation %zu: %s", sc->name, k, w.error);
        ck_assert_msg(had == 0 || sc->body == reports || tier == OP_BY_OP, "%s, allocation %zu: state is %g", sc->name,
                      k, (double)had);
    } else {
        ck_assert_msg(had == 1, "%s, allocation %zu: state is %g", sc->name, k, (double)had);
        TJ_ASSERT_BITS(w.result, want, sizeof w.result);
    }
    ck_assert(!trace_failed(w.ctx));
    memset(w.result, 0, sizeof w.result);
    memset(w.memory, 0, sizeof w.memory);
    s = sc->body(&w); // the next run is right
    ck_assert_msg(s == TRACE_OK, "%s, after allocation %zu: %s: %s", sc->name, k, tj_status_name(s),
                  trace_last_error(w.ctx));
    ck_assert_msg(state(&w) == had + 1, "%s, after allocation %zu: state %g", sc->name, k, (double)state(&w));
    TJ_ASSERT_BITS(w.result, want, sizeof w.result);
    world_end(&w);
    return !refused;
}

// stride: every how manieth allocation is refused.
static void each_site(enum tier tier, const struct scene *sc, size_t stride) {
    struct world w;
    float want[RESULTS];
    set_tier(tier);
    if (sc->body == bound && (tier != JIT || !strcmp(tj_backend_cpu.name, "none")))
        return;                            // needs a compiler
    for (int warm = 0; warm < 3; warm++) { // what C library, compiler and context keep for good
        TJ_ASSERT_OK(world_make(&w));
        TJ_ASSERT_OK(sc->body(&w));
        memcpy(want, w.result, sizeof want);
        world_end(&w);
    }
    (void)turn(tier, sc, 0, false, want);
    (void)turn(tier, sc, SIZE_MAX, false, want);
    for (int on = 0; on < 2; on++) {
        size_t k = 0;
        for (;; k += stride * (on ? 3 : 1)) { // with all later ones refused, the first decides mostly
            bool done = false;
            long more = 1;
            for (int again = 0; again < 4 && more > 0; again++) { // the C library keeps a thread's block or two: once
                long before = atomic_load(&in_use);
                done = turn(tier, sc, k, on, want);
                more = atomic_load(&in_use) - before;
            }
            ck_assert_msg(more <= 0, "%s, allocation %zu: %ld blocks leak", sc->name, k, more);
            if (done)
                break;
        }
        if (tier == JIT && !shared && stride == 1 && !on)
            printf("note: allocation sites of a compile from nothing: %zu\n", k);
        // What a shared context has made already asks for nothing, and so does a small run of the interpreter.
        ck_assert(k > 0 || shared || !strcmp(tj_backend_cpu.name, "none"));
    }
}

START_TEST(interpreted) { each_site(INTERPRETER, &scenes[_i], 1); }
END_TEST
static trace_context *make_shared(enum tier tier) {
    trace_context *ctx;
    set_tier(tier);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = quiet), &ctx));
    return ctx;
}
// Every site of making plans; the kernels are there from the first time on.
START_TEST(compiled) {
    shared = make_shared(JIT);
    each_site(JIT, &scenes[_i], 1);
    trace_context_release(shared);
    shared = NULL;
}
END_TEST
// The compiler included, from a context of its own on.
START_TEST(compiled_afresh) {
    trace_context *loaded = make_shared(JIT); // keeps the compiler in the process
    float one = 1;
    trace_tensor *t = trace_from(loaded, TRACE_F32, &one, TRACE_SCALAR), *u = trace_neg(t);
    ck_assert_ptr_nonnull(u);
    trace_release(t), trace_release(u);
    each_site(JIT, &scenes[_i], scenes[_i].body == small ? 1 : 17);
    trace_context_release(loaded);
}
END_TEST
START_TEST(op_by_op) { each_site(OP_BY_OP, &scenes[_i], 1); }
END_TEST

// Creating contexts, regions, tensors.
START_TEST(creation) {
    set_tier(INTERPRETER);
    struct world w;
    TJ_ASSERT_OK(world_make(&w));
    world_end(&w);
    for (int on = 0; on < 2; on++) {
        bool refused = true;
        for (size_t k = 0; refused; k++) {
            long before = atomic_load(&in_use);
            atomic_store(&asked, 0);
            refuse_at = k;
            refuse_on = on;
            tj_alloc_hook = refusing;
            tj_status s = world_make(&w);
            tj_alloc_hook = NULL;
            refused = atomic_load(&asked) > k;
            ck_assert_msg(s == TRACE_OK || (refused && s == TRACE_ERR_MEMORY), "allocation %zu: %s: %s", k,
                          tj_status_name(s), trace_last_error(NULL));
            ck_assert(s == TRACE_OK || strlen(trace_last_error(NULL)) > 0);
            world_end(&w);
            ck_assert_int_le(atomic_load(&in_use), before);
        }
    }
}
END_TEST

// ---- each part of a run by itself -----------------------------------------------------------------------------------

// Only one part is refused memory, at each of its sites, and the sites are counted: what comes before and after it
// works.
enum part { CREATE, RECORD, COMPILE, RUN, REPORT, PARTS };
static const char *const part_names[PARTS] = {"create", "record", "compile", "run", "report"};
static void begin_part(enum part now, enum part refused, size_t k) {
    atomic_store(&asked, 0);
    refuse_at = k;
    refuse_on = false;
    tj_alloc_hook = now == refused ? refusing : NULL;
}
// True when an allocation was refused.
static bool end_part(enum part now, enum part refused) {
    tj_alloc_hook = NULL;
    return now == refused && atomic_load(&asked) > refuse_at;
}
static tj_status reads_all(struct world *w, trace_tensor *const *y) { // all ways there are
    size_t at = 0;
    const void *data;
    double v;
    tj_status s = trace_data(y[0], &data);
    if (!s)
        s = trace_print(y[0], "y");
    for (int i = 0; i < 2 && !s; i++)
        s = take(w, trace_retain(y[i]), &at);
    if (!s && !isnan((double)w->result[0])) {
        trace_tensor *one = trace_amax(y[0], TRACE_SCALAR, false);
        s = one ? trace_item_f64(one, &v) : tj_last_status();
        trace_release(one);
    }
    return s;
}
// One life; the status of the refused part, or of what failed though nothing was refused in it.
static tj_status parts(struct world *w, enum part refused, size_t k, bool *hit) {
    static char text[32768];
    size_t need;
    *hit = false;
    begin_part(CREATE, refused, k);
    tj_status s = world_make(w);
    *hit |= end_part(CREATE, refused);
    trace_tensor *held[3][2] = {{NULL}};
    for (int run = 0; run < 3 && !s; run++) { // the first compiles; the last one is right, whatever failed
        trace_tensor **y = held[run];         // kept, so that the next run finds no memory to use again
        bool last = run == 2;
        begin_part(RECORD, last ? PARTS : refused, k);
        if (trace_begin(w->region, TRACE_ARGS(w->x))) {
            trace_tensor *h = trace_gelu(trace_linear(w->x, w->w, w->b), TRACE_GELU_NONE);
            trace_add_f_(w->s, 1);
            y[0] = trace_softmax(trace_cat(TRACE_ARGS(h, w->x, h), 0), -1);
            y[1] = trace_sum(trace_pad(h, (const int64_t[]){1, 1}, 2, TRACE_PAD_CONSTANT, 2), TRACE_DIMS(1), true);
        }
        *hit |= end_part(RECORD, refused);
        begin_part(run ? RUN : COMPILE, last ? PARTS : refused, k);
        tj_status st = trace_end(w->region, y, 2);
        st = st ? st : reads_all(w, y);
        bool here = end_part(run ? RUN : COMPILE, last ? PARTS : refused);
        *hit |= here;
        ck_assert_msg(!st || (!last && *hit), "run %d, %s at %zu: %s: %s", run, part_names[refused], k,
                      tj_status_name(st), trace_last_error(NULL));
        ck_assert_msg(!st || st == TRACE_ERR_MEMORY, "run %d, %s at %zu: %s: %s", run, part_names[refused], k,
                      tj_status_name(st), trace_last_error(NULL));
    }
    for (int f = TRACE_FORMAT_TEXT; f <= TRACE_FORMAT_PROMETHEUS && !s; f++) {
        begin_part(REPORT, refused, k);
        s = trace_context_report(w->ctx, (enum trace_format)f, text, sizeof text, &need);
        (void)trace_context_describe(w->ctx);
        *hit |= end_part(REPORT, refused);
        if (s)
            TJ_ASSERT_OK(trace_context_report(w->ctx, (enum trace_format)f, text, sizeof text, &need));
    }
    for (int run = 0; run < 3; run++)
        trace_release(held[run][0]), trace_release(held[run][1]);
    return s;
}
START_TEST(sites_of_each_part) { // _i: the tier
    set_tier((enum tier)_i);
    int err = dup(2), null = open("/dev/null", O_WRONLY);
    ck_assert(err >= 0 && null >= 0);
    dup2(null, 2); // what is printed
    struct world w;
    float want[RESULTS];
    bool hit;
    size_t sites[PARTS];
    for (int warm = 0; warm < 3; warm++) {
        TJ_ASSERT_OK(parts(&w, PARTS, 0, &hit));
        memcpy(want, w.result, sizeof want);
        world_end(&w);
    }
    for (enum part p = CREATE; p < PARTS; p++) {
        hit = true;
        if (p == RECORD && _i == JIT) { // kernels are there from now on: `compiled_afresh` has the sites of making them
            shared = make_shared(JIT);
            for (int warm = 0; warm < 2; warm++) {
                TJ_ASSERT_OK(parts(&w, PARTS, 0, &hit));
                world_end(&w);
            }
            hit = true;
        }
        if (p == RUN && shared) { // with memory of its own to ask for
            trace_context_release(shared);
            shared = NULL;
        }
        for (size_t k = 0; hit; k++) {
            long more = 1;
            for (int again = 0; again < 4 && more > 0; again++) {
                long before = atomic_load(&in_use);
                tj_status s = parts(&w, p, k, &hit);
                ck_assert_msg(s == TRACE_OK || (hit && s == TRACE_ERR_MEMORY), "%s at %zu: %s: %s", part_names[p], k,
                              tj_status_name(s), trace_last_error(NULL));
                if (p != CREATE)
                    TJ_ASSERT_BITS(w.result, want, sizeof want);
                world_end(&w);
                more = atomic_load(&in_use) - before;
            }
            ck_assert_msg(more <= 0, "%s at %zu: %ld blocks leak", part_names[p], k, more);
            sites[p] = k;
        }
    }
    dup2(err, 2);
    close(err), close(null);
    static const char *const tiers[] = {"compiled", "interpreted", "op by op"};
    printf("note: allocation sites, %s: create %zu, record %zu, compile %zu, run %zu, report %zu\n", tiers[_i],
           sites[CREATE], sites[RECORD], sites[COMPILE], sites[RUN], sites[REPORT]);
    ck_assert(sites[CREATE] && sites[REPORT] && sites[RECORD] && (sites[RUN] || _i == OP_BY_OP));
}
END_TEST

// ---- the host's allocator refuses -----------------------------------------------------------------------------------

static int host_left;
static long host_held;
static void *host_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    void *p;
    if (host_left == 0 || posix_memalign(&p, align, bytes))
        return NULL;
    host_left -= host_left > 0;
    host_held += (long)bytes;
    return p;
}
static void host_free(void *user, void *p, size_t bytes) {
    (void)user;
    host_held -= (long)bytes;
    free(p);
}
START_TEST(host_allocator) {
    enum tier tier = _i ? JIT : INTERPRETER;
    set_tier(tier);
    bool done = false;
    for (int n = 0; !done; n++) {
        ck_assert_int_lt(n, 60);
        trace_context *ctx;
        trace_region *r;
        host_left = -1;
        TJ_ASSERT_OK(trace_context_create(
            TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = quiet, .alloc = host_alloc, .free = host_free), &ctx));
        TJ_ASSERT_OK(trace_region_create(ctx, "host", NULL, &r));
        trace_tensor *x = floats(ctx, TRACE_DIMS(2, N)), *w = floats(ctx, TRACE_DIMS(N, N)), *y[2];
        for (int again = 0; again < 2; again++) {
            host_left = again ? -1 : n;
            y[0] = y[1] = NULL;
            if (trace_begin(r, TRACE_ARGS(x))) {
                y[0] = trace_softmax(trace_matmul(trace_relu(x), w), -1);
                y[1] = trace_matmul(y[0], trace_transpose(y[0], 0, 1));
            }
            tj_status s = trace_end(r, y, 2);
            if (again)
                TJ_ASSERT_OK(s);
            else
                done = s == TRACE_OK;
            if (s) {
                ck_assert_int_eq(s, TRACE_ERR_MEMORY);
                ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "out of memory"));
            }
            trace_release(y[0]), trace_release(y[1]);
        }
        trace_release(x), trace_release(w);
        trace_region_release(r);
        trace_context_release(ctx);
        ck_assert_int_eq(host_held, 0);
    }
}
END_TEST

// memory_limit: a status that says so; releasing helps.
START_TEST(limit) {
    trace_context *ctx;
    trace_region *r;
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .memory_limit = 64 << 10), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "limited", NULL, &r));
    trace_tensor *x = trace_zeros(ctx, TRACE_DIMS(1024), TRACE_F32), *big = NULL, *y = NULL;
    ck_assert_ptr_nonnull(x);
    if (trace_begin(r, TRACE_ARGS(x)))
        y = trace_expand(x, TRACE_DIMS(64, 1024)), y = trace_exp(y);
    TJ_ASSERT_STATUS(trace_end(r, &y, 1), TRACE_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "memory_limit of 65536 bytes"));
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "release tensors or raise the limit"));
    big = trace_zeros(ctx, TRACE_DIMS(14, 1024), TRACE_F32);
    ck_assert_ptr_nonnull(big);
    trace_tensor *more = trace_neg(big);
    ck_assert_ptr_null(more);
    ck_assert_int_eq(tj_last_status(), TRACE_ERR_MEMORY);
    trace_release(big);
    if (trace_begin(r, TRACE_ARGS(x)))
        y = trace_exp(x);
    TJ_ASSERT_OK(trace_end(r, &y, 1));
    trace_release(x), trace_release(y);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// What a run needs is known before any memory is there: warmed up by placeholders, in a context that has no room for
// the workspace itself, which the host then brings along.
START_TEST(needs_known_before) {
    if (!strcmp(tj_backend_cpu.name, "none")) {
        return; // the interpreter has no plan whose needs could be known
    }
    set_tier(JIT);
    enum { M = 192 };
    trace_context *ctx;
    trace_region *r;
    TJ_ASSERT_OK(
        trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .memory_limit = 64 << 10, .on_event = quiet), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "needs", NULL, &r));
    ck_assert_uint_eq(trace_region_workspace(r), 0);
    float *data = malloc(3 * M * M * sizeof *data), *in = data, *out = data + M * M, *want = data + 2 * M * M;
    ck_assert_ptr_nonnull(data);
    for (int i = 0; i < M * M; i++)
        in[i] = (float)(i % 7) / 8;
    trace_stats s = {.size = sizeof s};
    trace_bound *b = NULL;
    size_t need = 0;
    for (int real = 0; real < 2; real++) {
        trace_tensor *x = real ? trace_wrap_const(ctx, TRACE_F32, in, TRACE_DIMS(M, M))
                               : trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(M, M));
        trace_tensor *y = real ? trace_wrap(ctx, TRACE_F32, out, TRACE_DIMS(M, M))
                               : trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(M, M));
        ck_assert(x && y);
        for (int how = 0; how < (real ? 3 : 1); how++) { // as a run: no room; with a byte too few; as asked
            unsigned char *memory = NULL;
            if (trace_begin(r, TRACE_ARGS(x, y))) {
                trace_tensor *h = trace_matmul(trace_softmax(x, 0), x);
                trace_copy_(y, trace_matmul(trace_softmax(h, 0), h));
            }
            if (how == 0) {
                TJ_ASSERT_STATUS(trace_end(r, NULL, 0), real && need ? TRACE_ERR_MEMORY : TRACE_OK);
                trace_context_stats(ctx, &s);
                need = trace_region_workspace(r);
                if (real && need)
                    ck_assert_msg(strstr(trace_last_error(ctx), "memory_limit of 65536 bytes") != NULL, "%s",
                                  trace_last_error(ctx));
                if (!strcmp(ctx->backend->name, "none"))
                    break;
                ck_assert_msg(need > (64 << 10), "%zu bytes", need);
                ck_assert_uint_eq(s.bytes_live, 0); // nothing was made
                continue;
            }
            ck_assert_int_eq(posix_memalign((void **)&memory, 64, need), 0);
            tj_status st =
                trace_end_bind(r, TRACE_BIND_OPTIONS(.memory = memory, .memory_bytes = how == 1 ? need - 1 : need), &b);
            TJ_ASSERT_STATUS(st, how == 1 ? TRACE_ERR_ARGUMENT : TRACE_OK);
            if (how == 2) {
                TJ_ASSERT_OK(trace_bound_run(b));
                trace_context_stats(ctx, &s);
                ck_assert_uint_eq(s.bytes_live, 0);
                memcpy(want, out, M * M * sizeof *out);
                TJ_ASSERT_OK(trace_bound_run(b));
                TJ_ASSERT_BITS(out, want, M * M * sizeof *out);
                ck_assert(out[M] > 0);
                trace_bound_release(b);
            }
            free(memory);
        }
        trace_release(x), trace_release(y);
    }
    free(data);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// ---- compilers that fail --------------------------------------------------------------------------------------------

static int fallbacks;
static char told[600];
static void on_event(void *user, const trace_event *e) {
    (void)user;
    if (e->kind == TRACE_EVENT_FALLBACK) {
        fallbacks++;
        (void)snprintf(told, sizeof told, "%s", e->what);
    }
}
// Several regions, shapes and single ops: all right, in the interpreter; told `times`.
static void without_compiler(int times, const char *why) {
    trace_context *ctx;
    trace_region *r[2];
    fallbacks = 0;
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = on_event), &ctx));
    for (int i = 0; i < 2; i++)
        TJ_ASSERT_OK(trace_region_create(ctx, i ? "second" : "first", NULL, &r[i]));
    for (int n = 1; n < 6; n++) {
        trace_tensor *x = trace_full_f(ctx, TRACE_DIMS(n, 3), n, TRACE_F32), *y = NULL;
        ck_assert_msg(x != NULL, "%s", trace_last_error(ctx));
        float v[15];
        if (trace_begin(r[n & 1], TRACE_ARGS(x)))
            y = trace_add_f(trace_mul(x, x), 1);
        TJ_ASSERT_OK(trace_end(r[n & 1], &y, 1));
        TJ_ASSERT_OK(trace_read(y, v, (size_t)n * 12));
        for (int i = 0; i < 3 * n; i++)
            ck_assert(v[i] == (float)(n * n + 1));
        trace_release(x), trace_release(y);
    }
    trace_stats s = {.size = sizeof s};
    trace_context_stats(ctx, &s);
    ck_assert_uint_eq(s.kernels, 0);
    ck_assert_uint_gt(s.interpreted_ops, 0);
    ck_assert_uint_eq(s.errors, 0);
    bool none = !strcmp(ctx->backend->name, "none"); // LLVM=no has its own reason
    ck_assert_msg(fallbacks == times && (strstr(told, why) || (none && strstr(told, "no compiler"))),
                  "told %d times: %s", fallbacks, told);
    for (int i = 0; i < 2; i++)
        trace_region_release(r[i]);
    trace_context_release(ctx);
}
static void with_module(const char *path, const char *why) {
    char *old = getenv("TRACEJIT_LLVM");
    old = old ? strdup(old) : NULL;
    set_tier(JIT);
    (void)setenv("TRACEJIT_LLVM", path, 1);
    without_compiler(1, why);
    if (old)
        (void)setenv("TRACEJIT_LLVM", old, 1);
    else
        (void)unsetenv("TRACEJIT_LLVM");
    free(old);
}
START_TEST(no_module) { with_module("/nonexistent/libtracejit-llvm.so", "/nonexistent/libtracejit-llvm.so"); }
END_TEST
START_TEST(wrong_module) { // a library, but none of ours
    with_module("libm.so.6", "is not a tracejit compiler module");
}
END_TEST
START_TEST(forbidden_memory) {
    set_tier(JIT);
    tj_exec_forbid = true;
    without_compiler(1, "the system forbids executable memory");
    tj_exec_forbid = false;
}
END_TEST
START_TEST(switched_off) {
    set_tier(INTERPRETER);
    without_compiler(1, "TRACEJIT_NO=jit");
}
END_TEST

// Executable memory is forbidden after some plans were made: those go on, new ones are interpreted; threads all get
// results.
START_TEST(forbidden_later) {
    set_tier(JIT);
    trace_context *ctx;
    trace_region *r;
    fallbacks = 0;
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = on_event), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "later", NULL, &r));
    for (int i = 0; i < 4; i++) {
        tj_exec_forbid = i >= 1;
        trace_tensor *x = floats(ctx, TRACE_DIMS(2, 3)), *y = NULL;
        if (trace_begin(r, TRACE_ARGS(x)))
            y = i < 2 ? trace_neg(x) : trace_neg(trace_sum(x, TRACE_DIMS(1), true));
        TJ_ASSERT_OK(trace_end(r, &y, 1));
        float got[6], in[6];
        TJ_ASSERT_OK(trace_read(x, in, sizeof in));
        TJ_ASSERT_OK(trace_read(y, got, (size_t)trace_numel(y) * 4));
        ck_assert(got[0] == (i < 2 ? -in[0] : -(in[0] + in[1] + in[2])));
        trace_release(x), trace_release(y);
    }
    tj_exec_forbid = false;
    ck_assert_msg(fallbacks == 1, "told %d times", fallbacks);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// Memory comes back: the compiler that could not start for want of it is tried again.
START_TEST(memory_comes_back) {
    set_tier(JIT);
    struct world w;
    TJ_ASSERT_OK(world_make(&w));
    if (!strcmp(w.ctx->backend->name, "none")) { // LLVM=no
        world_end(&w);
        return;
    }
    atomic_store(&asked, 0);
    refuse_at = 0;
    refuse_on = true;
    tj_alloc_hook = refusing;
    TJ_ASSERT_STATUS(network(&w), TRACE_ERR_MEMORY);
    tj_alloc_hook = NULL;
    TJ_ASSERT_OK(network(&w));
    trace_stats s = {.size = sizeof s};
    trace_context_stats(w.ctx, &s);
    ck_assert_uint_gt(s.kernels, 0);
    ck_assert_uint_eq(s.interpreted_ops, 0);
    world_end(&w);
}
END_TEST

TJ_TEST_MAIN_TURNS("faults", {creation, 1}, {sites_of_each_part, 3}, {interpreted, TJ_COUNT(scenes)},
                   {op_by_op, TJ_COUNT(scenes)}, {compiled, TJ_COUNT(scenes)}, {compiled_afresh, TJ_COUNT(scenes)},
                   {host_allocator, 2}, {limit, 1}, {needs_known_before, 1}, {no_module, 1}, {wrong_module, 1},
                   {forbidden_memory, 1}, {switched_off, 1}, {forbidden_later, 1}, {memory_comes_back, 1})
