// tests/test_bind.c: bound plans: results, pins, workspaces, misuse, and that a run of one does nothing but compute.
#include <errno.h>
#include <fenv.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../include/tracejit.h"
#include "tj_test.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

// ---- what must not be called: counted while `watching` --------------------------------------------------------------

static _Thread_local volatile bool watching; // volatile: gcc takes it that malloc reads none of our variables
static atomic_int calls;

#ifndef SANITIZED
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
static void seen(void) {
    if (watching)
        atomic_fetch_add(&calls, 1);
}
void *malloc(size_t n) { return seen(), __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return seen(), __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return seen(), __libc_realloc(p, n); }
void free(void *p) { seen(), __libc_free(p); }
void *memalign(size_t a, size_t n);
void *memalign(size_t a, size_t n) { return seen(), __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { return seen(), __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) {
    seen();
    return (*p = __libc_memalign(a, n)) ? 0 : ENOMEM;
}
#endif

// Any system call of this thread from now on but exit_group ends the process; false: the system has no such filter.
#ifndef SANITIZED
static bool forbid_calls(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog prog = {TJ_COUNT(code), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}
#endif

// ---- the model: a layer, a recurrent cell with its state in place, a reduction --------------------------------------

enum { IN = 48, HID = 64 };
struct model {
    trace_context *ctx;
    trace_region *region;
    trace_tensor *w, *b, *wih, *whh;
    float x[IN], y[HID];
    trace_tensor *tx, *ty, *h;
};

static trace_tensor *made_up(trace_context *ctx, uint64_t seed, int64_t rows, int64_t cols) {
    float *v = malloc((size_t)(rows * cols) * sizeof *v);
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = tj_test_uniform(&seed) * 0.2f;
    trace_tensor *t = trace_from(ctx, TRACE_F32, v, (const int64_t[]){rows, cols}, cols == 1 ? 1 : 2);
    free(v);
    ck_assert_ptr_nonnull(t);
    return t;
}

static void open_model(struct model *m, trace_region_options opt) {
    static const float zero[HID] = {0};
    opt.size = sizeof opt;
    memset(m, 0, sizeof *m);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 2), &m->ctx));
    TJ_ASSERT_OK(trace_region_create(m->ctx, "model", &opt, &m->region));
    uint64_t seed = 7;
    for (int i = 0; i < IN; i++)
        m->x[i] = tj_test_uniform(&seed);
    m->w = made_up(m->ctx, 1, HID, IN);
    m->b = made_up(m->ctx, 2, HID, 1);
    m->wih = made_up(m->ctx, 3, 3 * HID, HID);
    m->whh = made_up(m->ctx, 4, 3 * HID, HID);
    m->tx = trace_wrap_const(m->ctx, TRACE_F32, m->x, TRACE_DIMS(1, IN));
    m->ty = trace_wrap(m->ctx, TRACE_F32, m->y, TRACE_DIMS(1, HID));
    m->h = trace_from(m->ctx, TRACE_F32, zero, TRACE_DIMS(1, HID));
}
static void release_tensors(struct model *m) {
    trace_release(m->w), trace_release(m->b), trace_release(m->wih), trace_release(m->whh);
    trace_release(m->tx), trace_release(m->ty), trace_release(m->h);
}
static void close_model(struct model *m) {
    release_tensors(m);
    trace_region_release(m->region);
    trace_context_release(m->ctx);
}
static void body(struct model *m) {
    trace_tensor *x = trace_tanh(trace_linear(m->tx, m->w, m->b));
    trace_tensor *h = trace_gru_cell(x, m->h, m->wih, m->whh, TRACE_NONE, TRACE_NONE);
    trace_copy_(m->h, h);
    trace_copy_(m->ty, trace_softmax(trace_mul_f(h, 3), -1));
}
static void step(struct model *m) { // one run that isn't bound
    if (trace_begin(m->region, TRACE_ARGS(m->tx, m->ty, m->h)))
        body(m);
    TJ_ASSERT_OK(trace_end(m->region, NULL, 0));
}
static tj_status bind_with(struct model *m, const trace_bind_options *o, trace_bound **b) {
    if (trace_begin(m->region, TRACE_ARGS(m->tx, m->ty, m->h)))
        body(m);
    return trace_end_bind(m->region, o, b);
}
static bool compiler(struct model *m) { return !strstr(trace_context_describe(m->ctx), "compiler: none"); }
static bool text_has(struct model *m, const char *part) { return strstr(trace_last_error(m->ctx), part) != NULL; }

#define NEEDS_COMPILER(m)                                                                                              \
    if (!compiler(m)) {                                                                                                \
        close_model(m);                                                                                                \
        return;                                                                                                        \
    }

START_TEST(same_bits) {
    struct model a, b;
    trace_bound *p;
    open_model(&a, (trace_region_options){0});
    open_model(&b, (trace_region_options){0});
    if (!compiler(&a)) {
        close_model(&b);
        close_model(&a);
        return;
    }
    TJ_ASSERT_OK(bind_with(&b, NULL, &p));
    for (int i = 0; i < HID; i++)
        ck_assert(b.y[i] == 0); // nothing has run
    for (int k = 0; k < 5; k++) {
        a.x[3] = b.x[3] = (float)k;
        step(&a);
        TJ_ASSERT_OK(trace_bound_run(p));
        TJ_ASSERT_BITS(b.y, a.y, sizeof a.y);
    }
    float ha[HID], hb[HID];
    TJ_ASSERT_OK(trace_read(a.h, ha, sizeof ha));
    TJ_ASSERT_OK(trace_read(b.h, hb, sizeof hb));
    TJ_ASSERT_BITS(hb, ha, sizeof ha);
    // one plan for bound and other runs, and the state stays one
    step(&a), step(&b);
    TJ_ASSERT_BITS(b.y, a.y, sizeof a.y);
    trace_stats s = {.size = sizeof s};
    trace_region_stats(b.region, &s);
    ck_assert_uint_eq(s.graphs, 1);
    trace_bound_release(p);
    close_model(&a);
    close_model(&b);
}
END_TEST

START_TEST(pool) {
    struct model a, b;
    trace_bound *p;
    open_model(&a, (trace_region_options){0});
    open_model(&b, (trace_region_options){0});
    if (compiler(&a)) {
        TJ_ASSERT_OK(bind_with(&b, TRACE_BIND_OPTIONS(.use_pool = true), &p));
        for (int k = 0; k < 3; k++) {
            step(&a);
            TJ_ASSERT_OK(trace_bound_run(p));
            TJ_ASSERT_BITS(b.y, a.y, sizeof a.y);
        }
        trace_bound_release(p);
    }
    close_model(&a);
    close_model(&b);
}
END_TEST

START_TEST(large_steps) { // rows worth several threads, a split reduction, with and without the pool
    struct model m;
    open_model(&m, (trace_region_options){0});
    NEEDS_COMPILER(&m);
    enum { N = 1 << 20 };
    float *v = malloc(N * sizeof *v), sums[3] = {0};
    uint64_t seed = 11;
    for (int i = 0; i < N; i++)
        v[i] = tj_test_uniform(&seed);
    trace_tensor *x = trace_wrap_const(m.ctx, TRACE_F32, v, TRACE_DIMS(N));
    trace_tensor *z = trace_from(m.ctx, TRACE_F32, v, TRACE_DIMS(N));
    for (int k = 0; k < 3; k++) {
        trace_tensor *out = trace_wrap(m.ctx, TRACE_F32, &sums[k], TRACE_SCALAR);
        trace_bound *p = NULL;
        if (trace_begin(m.region, TRACE_ARGS(x, z, out))) {
            trace_tensor *y = trace_mul(trace_exp(x), x);
            trace_copy_(z, y);
            trace_copy_(out, trace_sum(y, NULL, 0, false));
        }
        if (k == 0) {
            TJ_ASSERT_OK(trace_end(m.region, NULL, 0));
        } else {
            TJ_ASSERT_OK(trace_end_bind(m.region, TRACE_BIND_OPTIONS(.use_pool = k == 2), &p));
            TJ_ASSERT_OK(trace_bound_run(p));
        }
        trace_bound_release(p);
        trace_release(out);
    }
    TJ_ASSERT_BITS(&sums[1], &sums[0], sizeof(float));
    TJ_ASSERT_BITS(&sums[2], &sums[0], sizeof(float));
    trace_release(x);
    trace_release(z);
    free(v);
    close_model(&m);
}
END_TEST

START_TEST(workspace) {
    struct model m;
    trace_bound *p = (trace_bound *)&m, *q;
    open_model(&m, (trace_region_options){0});
    ck_assert_uint_eq(trace_region_workspace(m.region), 0);
    ck_assert_uint_eq(trace_region_workspace(NULL), 0);
    NEEDS_COMPILER(&m);
    step(&m);
    size_t need = trace_region_workspace(m.region); // of the plan compiled
    ck_assert_uint_gt(need, 0);
    unsigned char *memory = aligned_alloc(64, need + 128);
    // misaligned, too small, announced and missing, another size of the options
    TJ_ASSERT_STATUS(bind_with(&m, TRACE_BIND_OPTIONS(.memory = memory + 8, .memory_bytes = need), &p),
                     TRACE_ERR_ARGUMENT);
    ck_assert_ptr_null(p);
    ck_assert_msg(text_has(&m, "aligned"), "%s", trace_last_error(m.ctx));
    TJ_ASSERT_STATUS(bind_with(&m, TRACE_BIND_OPTIONS(.memory = memory, .memory_bytes = 1), &p), TRACE_ERR_ARGUMENT);
    ck_assert_msg(text_has(&m, "needs"), "%s", trace_last_error(m.ctx));
    ck_assert_uint_eq(trace_region_workspace(m.region), need);
    TJ_ASSERT_STATUS(bind_with(&m, TRACE_BIND_OPTIONS(.memory_bytes = need), &p), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(bind_with(&m, &(trace_bind_options){.size = 3}, &p), TRACE_ERR_ARGUMENT);
    // exactly what it said, and not a byte beyond
    memset(memory, 0xA5, need + 128);
    TJ_ASSERT_OK(bind_with(&m, TRACE_BIND_OPTIONS(.memory = memory + 64, .memory_bytes = need), &p));
    TJ_ASSERT_OK(bind_with(&m, NULL, &q));
    TJ_ASSERT_OK(trace_bound_run(p));
    for (int i = 0; i < 64; i++)
        ck_assert(memory[i] == 0xA5 && memory[64 + need + (size_t)i] == 0xA5);
    trace_bound_release(p);
    trace_bound_release(q);
    memset(memory, 0, need); // it is the host's again
    free(memory);
    close_model(&m);
}
END_TEST

// What a bound plan writes can be set between runs; a weight it has packed can't, until it goes.
START_TEST(writes) {
    struct model m;
    trace_bound *p;
    static float zero[HID], w[HID * IN];
    open_model(&m, (trace_region_options){0});
    NEEDS_COMPILER(&m);
    TJ_ASSERT_OK(bind_with(&m, NULL, &p));
    TJ_ASSERT_OK(trace_bound_run(p));
    float first[HID];
    memcpy(first, m.y, sizeof first);
    TJ_ASSERT_OK(trace_bound_run(p));
    ck_assert(memcmp(first, m.y, sizeof first) != 0);
    TJ_ASSERT_OK(trace_write(m.h, zero, sizeof zero)); // reset: the same memory
    TJ_ASSERT_OK(trace_bound_run(p));
    TJ_ASSERT_BITS(m.y, first, sizeof first);
    trace_tensor *b2 = trace_from(m.ctx, TRACE_F32, zero, TRACE_DIMS(HID));
    TJ_ASSERT_OK(trace_write(m.b, zero, sizeof zero)); // read, not packed: seen by the next run
    TJ_ASSERT_OK(trace_bound_run(p));
    ck_assert(memcmp(first, m.y, sizeof first) != 0);
    tj_status s = trace_write(m.w, w, sizeof w);
    trace_stats st = {.size = sizeof st};
    trace_context_stats(m.ctx, &st);
    if (st.bytes_packed) {
        TJ_ASSERT_STATUS(s, TRACE_ERR_BUSY);
        ck_assert_msg(text_has(&m, "bound plan"), "%s", trace_last_error(m.ctx));
        trace_tensor *z = trace_from(m.ctx, TRACE_F32, w, TRACE_DIMS(HID, IN));
        ck_assert(!trace_copy_(m.w, z) && text_has(&m, "bound plan")); // as an op
        trace_release(z);
    }
    trace_bound_release(p);
    TJ_ASSERT_OK(trace_write(m.w, w, sizeof w));
    trace_release(b2);
    close_model(&m);
}
END_TEST

// A matrix that one bound plan writes is not packed by others, bound or not; one that is packed is written by none.
START_TEST(written_weight) {
    struct model m;
    enum { N = 64 };
    static float one[N * N], y[N * N], y2[N * N];
    trace_bound *set, *use;
    open_model(&m, (trace_region_options){0});
    NEEDS_COMPILER(&m);
    trace_tensor *w = made_up(m.ctx, 5, N, N), *src = trace_wrap(m.ctx, TRACE_F32, one, TRACE_DIMS(N, N));
    trace_tensor *x = made_up(m.ctx, 6, N, N), *out = trace_wrap(m.ctx, TRACE_F32, y, TRACE_DIMS(N, N));
    trace_tensor *out2 = trace_wrap(m.ctx, TRACE_F32, y2, TRACE_DIMS(N, N));
    if (trace_begin(m.region, TRACE_ARGS(w, src)))
        trace_copy_(w, trace_mul_f(src, 2));
    TJ_ASSERT_OK(trace_end_bind(m.region, NULL, &set));
    if (trace_begin(m.region, TRACE_ARGS(x, out)))
        trace_copy_(out, trace_linear(x, w, TRACE_NONE));
    TJ_ASSERT_OK(trace_end_bind(m.region, NULL, &use));
    for (int k = 1; k < 4; k++) {
        for (int i = 0; i < N * N; i++)
            one[i] = (float)(k * (i % 5));
        TJ_ASSERT_OK(trace_bound_run(set));
        TJ_ASSERT_OK(trace_bound_run(use));
        if (trace_begin(m.region, TRACE_ARGS(x, out2)))
            trace_copy_(out2, trace_linear(x, w, TRACE_NONE));
        TJ_ASSERT_OK(trace_end(m.region, NULL, 0));
        TJ_ASSERT_BITS(y2, y, sizeof y);
        ck_assert(y[1] != 0);
    }
    trace_bound_release(set);
    trace_bound_release(use);
    if (trace_begin(m.region, TRACE_ARGS(x, out)))
        trace_copy_(out, trace_linear(x, w, TRACE_NONE));
    TJ_ASSERT_OK(trace_end_bind(m.region, NULL, &use));
    TJ_ASSERT_OK(trace_bound_run(use));
    TJ_ASSERT_BITS(y, y2, sizeof y); // and now it may be packed
    trace_stats st = {.size = sizeof st};
    trace_context_stats(m.ctx, &st);
    if (trace_begin(m.region, TRACE_ARGS(w, src)))
        trace_copy_(w, trace_mul_f(src, 2));
    tj_status s = trace_end_bind(m.region, NULL, &set);
    ck_assert_int_eq(s, st.bytes_packed ? TRACE_ERR_BUSY : TRACE_OK);
    trace_bound_release(set);
    trace_bound_release(use);
    trace_release(w), trace_release(src), trace_release(x), trace_release(out), trace_release(out2);
    close_model(&m);
}
END_TEST

START_TEST(misuse) {
    struct model m;
    trace_bound *p;
    double v;
    open_model(&m, (trace_region_options){0});
    TJ_ASSERT_STATUS(trace_bound_run(NULL), TRACE_ERR_ARGUMENT);
    trace_bound_release(NULL);
    TJ_ASSERT_STATUS(trace_end_bind(NULL, NULL, &p), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_end_bind(m.region, NULL, &p), TRACE_ERR_STATE); // no begin
    ck_assert(trace_begin(m.region, TRACE_ARGS(m.tx)));
    TJ_ASSERT_STATUS(trace_end_bind(m.region, NULL, NULL), TRACE_ERR_ARGUMENT);
    // a break
    ck_assert(trace_begin(m.region, TRACE_ARGS(m.tx, m.ty, m.h)));
    TJ_ASSERT_OK(trace_item_f64_at(trace_sum(m.tx, NULL, 0, false), &v, "model.c", 12));
    body(&m);
    TJ_ASSERT_STATUS(trace_end_bind(m.region, NULL, &p), TRACE_ERR_BREAK);
    ck_assert_ptr_null(p);
    ck_assert_msg(text_has(&m, "model.c:12") && text_has(&m, "trace_item_f64"), "%s", trace_last_error(m.ctx));
    // a value read later
    ck_assert(trace_begin(m.region, TRACE_ARGS(m.tx, m.ty, m.h)));
    trace_tensor *later = trace_item_later(trace_sum(m.tx, NULL, 0, false));
    body(&m);
    TJ_ASSERT_STATUS(trace_end_bind(m.region, NULL, &p), TRACE_ERR_BREAK);
    trace_release(later);
    // nothing written, a failed op, a placeholder, an inlined region
    ck_assert(trace_begin(m.region, TRACE_ARGS(m.tx)));
    (void)trace_relu(m.tx);
    TJ_ASSERT_STATUS(trace_end_bind(m.region, NULL, &p), TRACE_ERR_ARGUMENT);
    ck_assert_msg(text_has(&m, "trace_copy_"), "%s", trace_last_error(m.ctx));
    ck_assert(trace_begin(m.region, TRACE_ARGS(m.tx)));
    trace_copy_(m.ty, trace_add(m.tx, m.w));
    TJ_ASSERT_STATUS(trace_end_bind(m.region, NULL, &p), TRACE_ERR_SHAPE);
    trace_tensor *hole = trace_placeholder(m.ctx, TRACE_F32, TRACE_DIMS(1, HID));
    ck_assert(trace_begin(m.region, TRACE_ARGS(hole)));
    trace_copy_(m.ty, trace_relu(hole));
    TJ_ASSERT_STATUS(trace_end_bind(m.region, NULL, &p), TRACE_ERR_STATE);
    trace_release(hole);
    trace_region *outer;
    TJ_ASSERT_OK(trace_region_create(m.ctx, "outer", NULL, &outer));
    ck_assert(trace_begin(outer, NULL, 0));
    TJ_ASSERT_STATUS(bind_with(&m, NULL, &p), TRACE_ERR_STATE);
    ck_assert_msg(text_has(&m, "outer"), "%s", trace_last_error(m.ctx));
    TJ_ASSERT_OK(trace_end(outer, NULL, 0)); // goes on without it
    trace_region_release(outer);
    float zero[HID] = {0}, h[HID];
    TJ_ASSERT_OK(trace_read(m.h, h, sizeof h));
    TJ_ASSERT_BITS(h, zero, sizeof h); // none of these has run the body
    // content replaced while recording
    float x2[IN] = {0};
    trace_tensor *x = trace_from(m.ctx, TRACE_F32, x2, TRACE_DIMS(1, IN));
    trace_tensor *to = trace_from(m.ctx, TRACE_F32, x2, TRACE_DIMS(1, IN));
    ck_assert(trace_begin(m.region, TRACE_ARGS(x)));
    trace_copy_(to, trace_relu(x));
    TJ_ASSERT_OK(trace_write(x, x2, sizeof x2));
    tj_status s = trace_end_bind(m.region, NULL, &p);
    ck_assert_int_eq(s, compiler(&m) ? TRACE_ERR_STATE : TRACE_ERR_UNAVAILABLE);
    trace_release(x), trace_release(to);
    close_model(&m);
}
END_TEST

START_TEST(fullgraph_and_eager) {
    struct model m;
    trace_bound *p;
    double v;
    open_model(&m, (trace_region_options){.fullgraph = true});
    ck_assert(trace_begin(m.region, TRACE_ARGS(m.tx)));
    TJ_ASSERT_STATUS(trace_item_f64(trace_sum(m.tx, NULL, 0, false), &v), TRACE_ERR_BREAK);
    TJ_ASSERT_STATUS(trace_end_bind(m.region, NULL, &p), TRACE_ERR_BREAK);
    close_model(&m);
    open_model(&m, (trace_region_options){.mode = TRACE_MODE_EAGER});
    ck_assert(trace_begin(m.region, TRACE_ARGS(m.tx)));
    TJ_ASSERT_STATUS(trace_end_bind(m.region, NULL, &p), TRACE_ERR_STATE);
    close_model(&m);
}
END_TEST

START_TEST(no_compiler) {
    struct model m;
    trace_bound *p = (trace_bound *)&m;
    setenv("TRACEJIT_NO", "jit", 1);
    open_model(&m, (trace_region_options){0});
    unsetenv("TRACEJIT_NO");
    TJ_ASSERT_STATUS(bind_with(&m, NULL, &p), TRACE_ERR_UNAVAILABLE);
    ck_assert_ptr_null(p);
    ck_assert_msg(text_has(&m, "no compiler"), "%s", trace_last_error(m.ctx));
    step(&m); // which the interpreter runs
    close_model(&m);
}
END_TEST

// TRACEJIT_NO=reuse takes more workspace and gives the same bits; TRACEJIT_LOG=fusion has a line a kernel.
START_TEST(reuse_and_fusion) {
    enum { N = 64, CHAIN = 6 };
    size_t bytes[2];
    float x[N], y[2][N];
    char text[4096] = "";
    for (int i = 0; i < N; i++)
        x[i] = (float)i / N;
    for (int apart = 0; apart < 2; apart++) {
        trace_context *ctx;
        trace_region *r;
        setenv("TRACEJIT_NO", apart ? "reuse" : "", 1);
        setenv("TRACEJIT_LOG", "fusion", 1);
        TJ_ASSERT_OK(trace_context_create(NULL, &ctx));
        unsetenv("TRACEJIT_NO");
        unsetenv("TRACEJIT_LOG");
        TJ_ASSERT_OK(trace_region_create(ctx, "chain", NULL, &r));
        trace_tensor *tx = trace_from(ctx, TRACE_F32, x, TRACE_DIMS(1, N)), *w = made_up(ctx, 5, N, N), *v = tx;
        FILE *tmp = tmpfile();
        ck_assert(tmp != NULL);
        int keep = dup(2);
        ck_assert_int_ge(dup2(fileno(tmp), 2), 0);
        if (trace_begin(r, TRACE_ARGS(tx))) {
            for (int i = 0; i < CHAIN; i++)
                v = trace_matmul(v, w);
            v = trace_relu(v);
        }
        tj_status s = trace_end(r, &v, 1);
        ck_assert_int_ge(dup2(keep, 2), 0);
        (void)close(keep);
        TJ_ASSERT_OK(s);
        rewind(tmp);
        text[fread(text, 1, sizeof text - 1, tmp)] = '\0';
        (void)fclose(tmp);
        TJ_ASSERT_OK(trace_read(v, y[apart], sizeof y[apart]));
        bytes[apart] = trace_region_workspace(r);
        bool none = strstr(trace_context_describe(ctx), "compiler: none") != NULL;
        trace_release(v), trace_release(tx), trace_release(w);
        trace_region_release(r);
        trace_context_release(ctx);
        if (none)
            return;
        ck_assert_msg(strstr(text, "chain: 7 ops in") && strstr(text, "kernel 0: ") && strstr(text, "relu") &&
                          strstr(text, "test_bind.c:"),
                      "%s", text);
    }
    ck_assert_uint_gt(bytes[1], bytes[0]);
    TJ_ASSERT_BITS(y[0], y[1], sizeof y[0]);
}
END_TEST

// Everything a bound plan needs stays as long as it does.
START_TEST(release_order) {
    for (int order = 0; order < 4; order++) {
        struct model m;
        trace_bound *p;
        open_model(&m, (trace_region_options){0});
        NEEDS_COMPILER(&m);
        TJ_ASSERT_OK(bind_with(&m, NULL, &p));
        if (order & 1)
            release_tensors(&m);
        if (order & 2) {
            trace_region_release(m.region);
            TJ_ASSERT_OK(trace_context_shutdown(m.ctx, 100));
            trace_context_release(m.ctx);
        }
        TJ_ASSERT_OK(trace_bound_run(p));
        ck_assert(m.y[0] > 0 && m.y[0] < 1);
        trace_bound_release(p);
        if (!(order & 1))
            release_tensors(&m);
        if (!(order & 2)) {
            trace_region_release(m.region);
            trace_context_release(m.ctx);
        }
    }
}
END_TEST

START_TEST(data_errors) {
    struct model m;
    trace_bound *p;
    open_model(&m, (trace_region_options){0});
    NEEDS_COMPILER(&m);
    float table[8] = {0, 1, 2, 3, 4, 5, 6, 7}, out[2] = {0};
    int64_t index[2] = {1, 3};
    trace_tensor *t = trace_from(m.ctx, TRACE_F32, table, TRACE_DIMS(8, 1));
    trace_tensor *i = trace_wrap(m.ctx, TRACE_I64, index, TRACE_DIMS(2));
    trace_tensor *o = trace_wrap(m.ctx, TRACE_F32, out, TRACE_DIMS(2, 1));
    if (trace_begin(m.region, TRACE_ARGS(i, o)))
        trace_copy_(o, trace_embedding_at(t, i, "gather.c", 5));
    TJ_ASSERT_OK(trace_end_bind(m.region, NULL, &p));
    TJ_ASSERT_OK(trace_bound_run(p));
    ck_assert(out[0] == 1 && out[1] == 3);
    index[1] = 8;
    TJ_ASSERT_STATUS(trace_bound_run(p), TRACE_ERR_DEVICE);
    ck_assert_msg(text_has(&m, "gather.c:5"), "%s", trace_last_error(m.ctx));
    index[1] = 7;
    TJ_ASSERT_OK(trace_bound_run(p));
    ck_assert(out[1] == 7);
    trace_bound_release(p);
    trace_release(t), trace_release(i), trace_release(o);
    close_model(&m);
}
END_TEST

START_TEST(rounding) { // the caller's floating-point environment has no influence, and stays
    struct model a, b;
    trace_bound *p;
    open_model(&a, (trace_region_options){0});
    open_model(&b, (trace_region_options){0});
    if (compiler(&a)) {
        step(&a);
        TJ_ASSERT_OK(bind_with(&b, NULL, &p));
        fesetround(FE_UPWARD);
        errno = 77;
        TJ_ASSERT_OK(trace_bound_run(p));
        ck_assert_int_eq(errno, 77);
        ck_assert_int_eq(fegetround(), FE_UPWARD);
        fesetround(FE_TONEAREST);
        TJ_ASSERT_BITS(b.y, a.y, sizeof a.y);
        trace_bound_release(p);
    }
    close_model(&a);
    close_model(&b);
}
END_TEST

// No allocation is seen by the allocator that this program puts in libc's place, and no system call (futex, mmap,
// clone or any other) by a filter that would end the process.
START_TEST(nothing_but_kernels) {
    struct model m;
    trace_bound *p;
    open_model(&m, (trace_region_options){0});
    NEEDS_COMPILER(&m);
    TJ_ASSERT_OK(bind_with(&m, NULL, &p));
#ifndef SANITIZED
    atomic_store(&calls, 0);
    watching = true;
    void *volatile some = malloc(1); // volatile: gcc would drop the pair
    free(some);
    watching = false;
    ck_assert_int_eq(atomic_load(&calls), 2); // the counters do count
    atomic_store(&calls, 0);
#endif
    watching = true;
    tj_status s = TRACE_OK;
    for (int i = 0; i < 10000 && !s; i++)
        s = trace_bound_run(p);
    watching = false;
    TJ_ASSERT_OK(s);
    ck_assert_int_eq(atomic_load(&calls), 0);
#ifndef SANITIZED // a sanitizer makes calls of its own
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        if (!forbid_calls())
            _exit(77);
        for (int i = 0; i < 10000 && !s; i++)
            s = trace_bound_run(p);
        _exit(s ? 1 : 0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "killed by signal %d: a system call", WTERMSIG(status));
    if (WEXITSTATUS(status) == 77)
        fprintf(stderr, "no seccomp filter here: system calls were not watched\n");
    else
        ck_assert_int_eq(WEXITSTATUS(status), 0);
    // The filter does end who makes one.
    child = fork();
    if (child == 0) {
        if (!forbid_calls())
            _exit(77);
        (void)syscall(SYS_getpid);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(!WIFEXITED(status) || WEXITSTATUS(status) == 77);
#endif
    trace_bound_release(p);
    close_model(&m);
}
END_TEST

// Channels: a bound plan each, one plan and one packed copy of the weights for all; each runs on its thread.
enum { CHANNELS = 4 };
static void *run_channel(void *arg) {
    for (int i = 0; i < 500; i++)
        if (trace_bound_run(arg))
            return arg;
    return NULL;
}
START_TEST(channels) {
    struct model m;
    open_model(&m, (trace_region_options){0});
    NEEDS_COMPILER(&m);
    static float y[CHANNELS][HID], zero[HID];
    trace_tensor *h[CHANNELS], *ty[CHANNELS];
    trace_bound *p[CHANNELS];
    pthread_t t[CHANNELS];
    uint64_t packed = 0;
    for (int k = 0; k < CHANNELS; k++) {
        trace_tensor *was[2] = {m.h, m.ty};
        m.h = h[k] = trace_from(m.ctx, TRACE_F32, zero, TRACE_DIMS(1, HID));
        m.ty = ty[k] = trace_wrap(m.ctx, TRACE_F32, y[k], TRACE_DIMS(1, HID));
        TJ_ASSERT_OK(bind_with(&m, NULL, &p[k]));
        m.h = was[0], m.ty = was[1];
        trace_stats s = {.size = sizeof s};
        trace_context_stats(m.ctx, &s);
        if (k)
            ck_assert_uint_eq(s.bytes_packed, packed);
        packed = s.bytes_packed;
        trace_region_stats(m.region, &s);
        ck_assert_uint_eq(s.graphs, 1);
    }
    for (int k = 0; k < CHANNELS; k++)
        ck_assert_int_eq(pthread_create(&t[k], NULL, run_channel, p[k]), 0);
    for (int k = 0; k < CHANNELS; k++) {
        void *failed;
        pthread_join(t[k], &failed);
        ck_assert_ptr_null(failed);
        if (k)
            TJ_ASSERT_BITS(y[k], y[0], sizeof y[0]);
        trace_bound_release(p[k]);
        trace_release(h[k]), trace_release(ty[k]);
    }
    close_model(&m);
}
END_TEST

// Every allocation of a bind may fail: a status, nothing pinned, nothing lost, the next one is right.
START_TEST(out_of_memory) {
    struct model m;
    trace_bound *p;
    float first[HID], zero[HID] = {0};
    static float w[HID * IN];
    open_model(&m, (trace_region_options){0});
    NEEDS_COMPILER(&m);
    step(&m);
    memcpy(first, m.y, sizeof first);
    TJ_ASSERT_OK(trace_write(m.h, zero, sizeof zero));
    TJ_ASSERT_OK(trace_read(m.w, w, sizeof w));
    size_t k = 0;
    for (;; k++) {
        tj_test_fail_at(k);
        tj_status s = bind_with(&m, NULL, &p);
        if (!tj_test_failed()) {
            TJ_ASSERT_OK(s);
            break;
        }
        if (s) {
            ck_assert_ptr_null(p);
            TJ_ASSERT_STATUS(s, TRACE_ERR_MEMORY);
            TJ_ASSERT_OK(trace_write(m.w, w, sizeof w)); // not pinned
        } else {
            trace_bound_release(p);
        }
    }
    ck_assert_uint_gt(k, 2);
    TJ_ASSERT_OK(trace_bound_run(p));
    TJ_ASSERT_BITS(m.y, first, sizeof first);
    trace_bound_release(p);
    close_model(&m);
}
END_TEST

TJ_TEST_MAIN("bind", same_bits, pool, large_steps, workspace, writes, written_weight, misuse, fullgraph_and_eager,
             no_compiler, reuse_and_fusion, release_order, data_errors, rounding, nothing_but_kernels, channels,
             out_of_memory)
