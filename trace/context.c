// trace/context.c: creation, shutdown and end of a context.
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "timeline.h"

#define VERSION_TEXT2(a, b, c) #a "." #b "." #c
#define VERSION_TEXT(a, b, c) VERSION_TEXT2(a, b, c)
#define CODE_LIMIT ((size_t)256 << 20)
#define MAX_THREADS 1024
#define LEAKS_LOGGED 20

const char *trace_version(void) { return VERSION_TEXT(TRACE_VERSION_MAJOR, TRACE_VERSION_MINOR, TRACE_VERSION_PATCH); }
const char *trace_status_name(enum trace_status s) { return tj_status_name(s); }
const char *trace_dtype_name(enum trace_dtype d) {
    return tj_dtype_valid((int)d) ? tj_dtypes[d].name : "unknown dtype";
}
const char *trace_last_error(const trace_context *ctx) {
    (void)ctx; // errors belong to threads
    return tj_last_error();
}

// Copies a sized struct of the caller over zeroed defaults; false when it has fields this library doesn't know.
static bool sized_copy(void *dst, size_t size, const void *src, size_t given) {
    const unsigned char *p = src;
    for (size_t i = size; i < given; i++) {
        if (p[i])
            return false;
    }
    memcpy(dst, src, given < size ? given : size);
    return true;
}

tj_status tj_options_copy(void *dst, size_t size, const void *src, const char *what) {
    size_t given;
    memcpy(&given, src, sizeof given);
    if (given < sizeof given)
        return tj_fail(TRACE_ERR_ARGUMENT, "%s: size is %zu: set it to sizeof(%s), or use the macro that does", what,
                       given, what);
    if (given > (size_t)1 << 16)
        return tj_fail(TRACE_ERR_ARGUMENT, "%s: size is %zu, which no version has", what, given);
    if (!sized_copy(dst, size, src, given))
        return tj_fail(TRACE_ERR_ARGUMENT,
                       "%s: size is %zu and fields beyond the %zu bytes that this library (%s) knows are set", what,
                       given, size, trace_version());
    return TRACE_OK;
}

static tj_status check_options(const trace_context_options *o) {
    if ((int)o->device < TRACE_DEVICE_CPU || o->device > TRACE_DEVICE_AUTO)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_create: device %d is none", (int)o->device);
    if (o->device == TRACE_DEVICE_CUDA)
        return tj_fail(
            TRACE_ERR_UNAVAILABLE,
            "trace_context_create: this build has no CUDA backend; use TRACE_DEVICE_CPU or TRACE_DEVICE_AUTO");
    if (o->device_index < 0 || (o->device == TRACE_DEVICE_CPU && o->device_index > 0))
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_create: device_index %d: there is one CPU device, 0",
                       o->device_index);
    if (o->threads < 0 || o->threads > MAX_THREADS)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_create: threads is %d, not 0 (all) to %d", o->threads,
                       MAX_THREADS);
    if (!o->alloc != !o->free)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_create: alloc and free go together; only one is set");
    if (!o->code_map != !o->code_seal || !o->code_map != !o->code_unmap)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_create: code_map, code_seal and code_unmap go together");
    return TRACE_OK;
}

static void context_free(trace_context *ctx) {
    tj_background_free(ctx);
    if (ctx->eager)
        tj_region_drop(ctx->eager);
    if (ctx->backend_state && ctx->backend->destroy)
        ctx->backend->destroy(ctx->backend_state);
    tj_buffers_free(ctx);
    if (ctx->pool)
        tj_pool_destroy(ctx->pool);
    tj_timeline_free(ctx);
    tj_free(atomic_load(&ctx->ceiling));
    tj_free(ctx);
}

static void host_loop(void *user, size_t n, void (*body)(void *arg, size_t i), void *arg) {
    trace_context *ctx = user;
    struct tj_callout c;
    tj_callout_enter(&c);
    ctx->opt.parallel_for(ctx->opt.parallel_user, n, body, arg);
    tj_callout_leave(&c);
}

tj_status trace_context_create(const trace_context_options *options, trace_context **out) {
    if (!out)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_create: no place for the context (NULL)");
    *out = NULL;
    trace_context_options opt = {0};
    if (options) {
        tj_status s = tj_options_copy(&opt, sizeof opt, options, "trace_context_options");
        if (s)
            return s;
    }
    opt.size = sizeof opt;
    tj_status s = check_options(&opt);
    if (s)
        return s;
    if (!opt.code_limit)
        opt.code_limit = CODE_LIMIT;
    trace_context *ctx = tj_calloc(1, sizeof *ctx);
    if (!ctx)
        return tj_fail(TRACE_ERR_MEMORY, "trace_context_create: out of memory");
    atomic_init(&ctx->refs, 1);
    ctx->opt = opt;
    ctx->backend = &tj_backend_cpu;
    tj_env_read(&ctx->env);
    tj_cpu_detect(ctx->env.cpu, &ctx->cpu);
    int threads = tj_env_off(&ctx->env, TJ_KILL_THREADS) ? 1 : opt.threads;
    ctx->pool = tj_pool_create(threads, opt.parallel_for ? host_loop : NULL, ctx);
    if (!ctx->pool) {
        context_free(ctx);
        return tj_fail(TRACE_ERR_MEMORY, "trace_context_create: out of memory for the thread pool");
    }
    s = tj_region_new(ctx, "", NULL, true, &ctx->eager);
    if (s) {
        context_free(ctx);
        return s;
    }
    (void)snprintf(ctx->describe, sizeof ctx->describe, "cpu, %s, %s, %d thread%s, compiler: %s",
                   ctx->cpu.name[0] ? ctx->cpu.name : "unknown processor", tj_cpu_level_name(ctx->cpu.level),
                   tj_pool_threads(ctx->pool), tj_pool_threads(ctx->pool) == 1 ? "" : "s",
                   tj_env_off(&ctx->env, TJ_KILL_JIT)    ? "off (TRACEJIT_NO=jit)"
                   : !strcmp(ctx->backend->name, "none") ? "none in this build"
                                                         : "LLVM, loaded at the first miss");
    if (opt.device == TRACE_DEVICE_AUTO)
        tj_event(ctx, NULL, TRACE_EVENT_FALLBACK, TJ_LOC(NULL, 0), -1, -1, 0, 0, 0,
                 "device AUTO: this build has no CUDA backend; the CPU is used");
    tj_timeline_environment(ctx);
    *out = ctx;
    return TRACE_OK;
}

// Links to the next are stored last and at once, those to the previous follow from them.
static void repair_lists(trace_context *ctx) {
    struct trace_tensor *last = NULL;
    for (struct trace_tensor *t = ctx->tensors; t; last = t, t = t->next)
        t->prev = last;
    struct trace_region *before = NULL;
    for (struct trace_region *r = ctx->regions; r; before = r, r = r->next) {
        struct tj_box *box = NULL;
        r->prev = before;
        for (struct tj_box *b = r->extra; b; box = b, b = b->next_extra)
            b->prev_extra = box;
    }
}

void tj_context_lock(trace_context *ctx) {
    (void)tj_lock(&ctx->lock);
    if (TJ_UNLIKELY(ctx->lists_process != tj_process())) {
        if (ctx->lists_process)
            repair_lists(ctx);
        ctx->lists_process = tj_process();
    }
}

void tj_context_retain(trace_context *ctx) { (void)atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed); }

void tj_context_release(trace_context *ctx) {
    if (atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel) == 1)
        context_free(ctx);
}

// Handles the host still holds. They keep the context alive and may be released later, so this is a log line and no
// error.
static void report_leaks(trace_context *ctx) {
    if (!tj_env_logs(&ctx->env, TJ_LOG_MEMORY))
        return;
    struct leak {
        char where[160];
        const char *op;
        int64_t numel;
        uint8_t dtype;
    } leaks[LEAKS_LOGGED];
    size_t n = 0;
    tj_lock(&ctx->lock);
    for (struct trace_tensor *t = ctx->tensors; t; t = t->next, n++) {
        if (n >= LEAKS_LOGGED)
            continue;
        leaks[n].op = t->op ? t->op : "tensor";
        leaks[n].numel = t->numel;
        leaks[n].dtype = t->dtype;
        (void)tj_loc_text(t->loc, leaks[n].where, sizeof leaks[n].where);
    }
    tj_unlock(&ctx->lock);
    if (n)
        tj_log(&ctx->env, TJ_LOG_MEMORY, "context released with %zu live tensor handle%s", n, n == 1 ? "" : "s");
    for (size_t i = 0; i < n && i < LEAKS_LOGGED; i++)
        tj_log(&ctx->env, TJ_LOG_MEMORY, "  %s (%s): %s, %lld elements", leaks[i].op,
               leaks[i].where[0] ? leaks[i].where : "place unknown", tj_dtypes[leaks[i].dtype].name,
               (long long)leaks[i].numel);
    if (n > LEAKS_LOGGED)
        tj_log(&ctx->env, TJ_LOG_MEMORY, "  and %zu more", n - LEAKS_LOGGED);
}

void trace_context_release(trace_context *ctx) {
    if (!ctx)
        return;
    report_leaks(ctx);
    tj_timeline_flush(ctx); // whatever keeps the context
    tj_context_release(ctx);
}

static bool region_active(struct trace_region *r) {
    for (size_t i = 0; i < TJ_SLOTS; i++) {
        struct tj_box *b = atomic_load(&r->slots[i]);
        if (b && atomic_load(&b->state) != TJ_BOX_IDLE && atomic_load(&b->process) == tj_process())
            return true;
    }
    for (const struct tj_box *b = r->extra; b; b = b->next_extra) {
        if (b->process == tj_process())
            return true;
    }
    return false; // runs of threads that fork left behind don't count
}

tj_status trace_context_shutdown(trace_context *ctx, int timeout_ms) {
    if (!ctx)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_shutdown: NULL context");
    if (tj_thread_inside(ctx))
        return tj_fail(TRACE_ERR_STATE, "trace_context_shutdown: called inside a run, which it would wait for");
    if (tj_background_here(ctx))
        return tj_fail(TRACE_ERR_STATE,
                       "trace_context_shutdown: called in an event of a background compile, which it would wait for");
    // A begin marks its run object active, then looks at `shut`; here the other way round: one of the two sees the
    // other.
    atomic_store(&ctx->shut, true);
    uint64_t end = timeout_ms < 0 ? TJ_FOREVER : tj_now_ns() + (uint64_t)timeout_ms * 1000000u;
    tj_background_cancel(ctx);
    for (;;) {
        bool busy = false;
        tj_lock(&ctx->lock);
        for (struct trace_region *r = ctx->regions; r && !busy; r = r->next)
            busy = region_active(r);
        busy = busy || region_active(ctx->eager);
        tj_unlock(&ctx->lock);
        if (!busy)
            return tj_background_join(ctx, end)
                       ? TRACE_OK
                       : tj_fail(TRACE_ERR_TIMEOUT,
                                 "trace_context_shutdown: a plan was still being compiled after %d ms", timeout_ms);
        if (tj_now_ns() >= end)
            return tj_fail(TRACE_ERR_TIMEOUT, "trace_context_shutdown: runs were still open after %d ms", timeout_ms);
        struct timespec nap = {0, 200000};
        (void)nanosleep(&nap, NULL);
    }
}

const char *trace_context_describe(const trace_context *ctx) { return ctx ? ctx->describe : ""; }

// ---- threads that can't be started ---------------------------------------------------------------------------------

void tj_context_threadless(trace_context *ctx, const struct trace_region *r, const char *why) {
    if (!atomic_exchange(&ctx->threadless, true)) {
        atomic_store(&ctx->threadless_for, 0);
        tj_event(ctx, r, TRACE_EVENT_FALLBACK, TJ_LOC(NULL, 0), -1, -1, 0, 0, 0,
                 "the interpreter runs what can't be compiled now: %s", why);
    }
}

// Each attempt costs the schedule of a graph.
bool tj_context_no_thread(trace_context *ctx) {
    if (!atomic_load_explicit(&ctx->threadless, memory_order_relaxed))
        return false;
    uint32_t n = atomic_fetch_add(&ctx->threadless_for, 1) + 1;
    return n & (n - 1) && n % 64;
}

void tj_context_pool_short(trace_context *ctx, const struct trace_region *r) {
    int missing = tj_pool_missing(ctx->pool), all = tj_pool_threads(ctx->pool);
    if (missing && !atomic_exchange(&ctx->pool_reported, true))
        tj_event(ctx, r, TRACE_EVENT_FALLBACK, TJ_LOC(NULL, 0), -1, -1, 0, 0, 0,
                 "%d of %d threads can't be started; runs use %d until they can", missing, all, all - missing);
}

// ---- the compiler ---------------------------------------------------------------------------------------------------

// Started once however many threads ask, with no lock held meanwhile.
bool tj_context_backend(trace_context *ctx, struct trace_region *r) {
    int state = atomic_load_explicit(&ctx->eager->backend, memory_order_acquire);
    if (TJ_LIKELY(state == TJ_BACKEND_READY))
        return true;
    if (state == TJ_BACKEND_NONE)
        return false;
    struct tj_cache *c = &ctx->eager->cache;
    bool mine = false;
    tj_lock(&c->lock);
    while ((state = atomic_load(&ctx->eager->backend)) == TJ_BACKEND_STARTING &&
           ctx->eager->backend_process == tj_process())
        tj_cond_wait(&c->ready, &c->lock, TJ_FOREVER);
    if (state == TJ_BACKEND_UNTRIED || state == TJ_BACKEND_STARTING) {
        mine = true;
        ctx->eager->backend_process = tj_process();
        atomic_store(&ctx->eager->backend, TJ_BACKEND_STARTING);
    }
    tj_unlock(&c->lock);
    if (!mine)
        return state == TJ_BACKEND_READY;

    void *backend = NULL;
    uint64_t t0 = tj_now_ns();
    bool off = tj_env_off(&ctx->env, TJ_KILL_JIT);
    int saved = errno; // of loading the compiler
    tj_status s = off ? TRACE_ERR_UNAVAILABLE : ctx->backend->create(ctx, &backend);
    errno = saved;
    if (s)
        (void)snprintf(ctx->backend_why, sizeof ctx->backend_why, "%s",
                       off ? "switched off by TRACEJIT_NO=jit" : tj_last_error());
    tj_lock(&c->lock);
    ctx->backend_state = s ? NULL : backend;
    // Out of memory, or of threads, may pass: the next miss tries again.
    state = !s ? TJ_BACKEND_READY : s == TRACE_ERR_MEMORY || s == TRACE_ERR_BUSY ? TJ_BACKEND_UNTRIED : TJ_BACKEND_NONE;
    atomic_store_explicit(&ctx->eager->backend, state, memory_order_release);
    tj_cond_wake(&c->ready);
    tj_unlock(&c->lock);
    if (s == TRACE_ERR_BUSY)
        tj_context_threadless(ctx, r, ctx->backend_why);
    else if (s && !atomic_exchange(&ctx->fallback_reported, true))
        tj_event(ctx, r, TRACE_EVENT_FALLBACK, TJ_LOC(NULL, 0), -1, -1, 0, 0, (double)(tj_now_ns() - t0) / 1e6,
                 "no compiler, the interpreter runs everything: %s", ctx->backend_why);
    return !s;
}
