// trace/background.c: compiles off the calling thread: a queue and one thread a context.
//
// A job holds what a compile reads: the entry it makes, and the strides of the leaves as they were. The thread starts
// with the first job. In a child of fork it's gone: the first call that looks at the queue there starts anew, with the
// job that was being compiled first.
#include <fenv.h>
#include <stdio.h>

#include "region.h"

struct job {
    struct job *next;
    struct trace_region *region;      // holds a reference
    struct tj_entry *entry, *similar; // hold references
    struct tj_site site;              // its file is `file`
    char *file;
    struct trace_tensor *tensors; // shapes and strides of the leaves
    struct tj_leaf *leaves;
    bool done; // the references are given back
};
struct tj_background {
    tj_mutex lock;
    tj_cond changed; // a job came or went
    struct job *first, *running;
    bool started, stop, orphan, closed;
    bool told;        // that there can't be a thread
    uint32_t process; // whose thread it is
    pthread_t thread;
    trace_context *ctx;
};

static void job_free(struct job *j) {
    if (!j->done) {
        tj_entry_put(j->similar);
        tj_entry_put(j->entry);
        tj_region_drop(j->region);
    }
    tj_free(j->file);
    tj_free(j->tensors);
    tj_free(j->leaves);
    tj_free(j);
}

static void *work(void *arg) {
    struct tj_background *bg = arg;
    (void)pthread_setname_np(pthread_self(), "tracejit-bg");
    (void)fesetenv(FE_DFL_ENV); // a thread starts with its creator's
    tj_lock(&bg->lock);
    for (;;) {
        while (!bg->first && !bg->stop)
            tj_cond_wait(&bg->changed, &bg->lock, TJ_FOREVER);
        if (bg->stop)
            break;
        struct job *j = bg->running = bg->first;
        bg->first = j->next;
        tj_unlock(&bg->lock);
        char text[TJ_ERROR_MAX];
        tj_status st = tj_entry_make(j->region, &j->region->count, j->entry, j->leaves, &j->site, j->similar, text);
        tj_lock(&bg->lock);
        if (st && !j->region->background_failed) {
            j->region->background_failed = st;
            (void)snprintf(j->region->background_error, sizeof j->region->background_error, "%s", text);
        }
        j->done = true;
        tj_unlock(&bg->lock);
        tj_entry_put(j->similar);
        tj_entry_put(j->entry);
        tj_region_drop(j->region); // the last one when the host released the region inside a callback of this thread
        if (bg->orphan) {          // and with it the context
            job_free(j);
            tj_free(bg);
            return NULL;
        }
        tj_lock(&bg->lock);
        bg->running = NULL;
        tj_cond_wake(&bg->changed);
        job_free(j);
    }
    tj_unlock(&bg->lock);
    return NULL;
}

// The lock is held.
static bool start(struct tj_background *bg) {
    if (bg->started)
        return true;
    bg->started = !tj_thread_start(&bg->thread, 0, false, work, bg);
    return bg->started;
}

// In a child of fork: what the parent's thread was to do is done here. The lock is held.
static void adopt(struct tj_background *bg) {
    if (TJ_LIKELY(bg->process == tj_process()))
        return;
    bg->process = tj_process();
    bg->started = bg->stop = false;
    struct job *was = bg->running, **p = &bg->first;
    bg->running = NULL;
    if (was && !was->done) {
        was->next = bg->first;
        bg->first = was;
    }
    while (*p) {
        struct job *j = *p;
        if (tj_entry_adopt(j->region, j->entry)) {
            p = &j->next;
            continue;
        }
        *p = j->next; // another thread of the child makes it, or it's made. What the job holds is lost: it may be held
                      // by the thread that is gone
        j->next = NULL;
    }
    if (bg->first && !start(bg)) {
        while (bg->first) {
            struct job *j = bg->first;
            bg->first = j->next;
            tj_entry_cancel(j->region, j->entry, TRACE_ERR_MEMORY);
        }
    }
}

static struct tj_background *background(trace_context *ctx) {
    struct tj_background *bg = atomic_load_explicit(&ctx->background, memory_order_acquire);
    if (bg)
        return bg;
    bg = tj_calloc(1, sizeof *bg);
    if (!bg)
        return NULL;
    bg->process = tj_process();
    bg->ctx = ctx;
    struct tj_background *other = NULL;
    if (!atomic_compare_exchange_strong(&ctx->background, &other, bg)) {
        tj_free(bg);
        bg = other;
    }
    return bg;
}

static bool copy_leaves(struct job *j, const struct tj_trace *t) {
    static struct tj_storage none = {.flags = TJ_ST_PLACEHOLDER};
    uint32_t n = t->nleaves ? t->nleaves : 1;
    j->tensors = tj_calloc(n, sizeof *j->tensors);
    j->leaves = tj_calloc(n, sizeof *j->leaves);
    if (!j->tensors || !j->leaves)
        return false;
    for (uint32_t i = 0; i < t->nleaves; i++) {
        tj_tensor_like(&j->tensors[i], t->leaves[i].tensor, &none);
        j->tensors[i].offset = t->leaves[i].tensor->offset;
        j->leaves[i].tensor = &j->tensors[i];
    }
    return true;
}

bool tj_background_add(struct trace_region *r, struct tj_entry *e, const struct tj_segment *s,
                       const struct tj_site *site, struct tj_entry *similar) {
    struct tj_background *bg = background(r->ctx);
    struct job *j = bg ? tj_calloc(1, sizeof *j) : NULL;
    if (!j)
        return false;
    j->done = true; // holds nothing yet
    j->site = (struct tj_site){TJ_LOC(NULL, site->loc.line), site->kind, site->first, NULL, site->ahead};
    if (site->loc.file)
        j->site.loc.file = j->file = tj_strdup(site->loc.file);
    if (!copy_leaves(j, s->trace) || (site->loc.file && !j->file)) {
        job_free(j);
        return false;
    }
    tj_lock(&bg->lock);
    adopt(bg);
    bool closed = bg->closed || r->released, tell = false;
    if (closed || !start(bg)) {
        tell = !closed && !bg->told;
        bg->told |= tell;
        tj_unlock(&bg->lock);
        job_free(j);
        if (tell)
            tj_event(r->ctx, r, TRACE_EVENT_FALLBACK, site->loc, -1, -1, 0, 0, 0,
                     "no thread can be started to compile in the background; plans are made on the calling thread");
        return false;
    }
    bg->told = false;
    j->done = false;
    j->region = r;
    (void)atomic_fetch_add(&r->refs, 1);
    j->entry = e;
    (void)atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    j->similar = similar;
    struct job **p = &bg->first;
    while (*p)
        p = &(*p)->next;
    *p = j;
    tj_cond_wake(&bg->changed);
    tj_unlock(&bg->lock);
    return true;
}

static bool pending(const struct tj_background *bg, const struct trace_region *r) {
    if (bg->running && (!r || bg->running->region == r))
        return true;
    for (const struct job *j = bg->first; j; j = j->next) {
        if (!r || j->region == r)
            return true;
    }
    return false;
}

static bool on_it(const struct tj_background *bg) { return bg->started && pthread_equal(bg->thread, pthread_self()); }

bool tj_background_here(trace_context *ctx) {
    struct tj_background *bg = atomic_load_explicit(&ctx->background, memory_order_acquire);
    if (!bg)
        return false;
    tj_lock(&bg->lock);
    bool here = on_it(bg);
    tj_unlock(&bg->lock);
    return here;
}

// Takes the queued jobs of r (NULL: all) off; the caller cancels them without the lock.
static struct job *take(struct tj_background *bg, const struct trace_region *r) {
    struct job *out = NULL, **p = &bg->first;
    while (*p) {
        struct job *j = *p;
        if (r && j->region != r) {
            p = &j->next;
            continue;
        }
        *p = j->next;
        j->next = out;
        out = j;
    }
    return out;
}

static void cancel(struct job *j, struct tj_background *bg) {
    while (j) {
        struct job *next = j->next;
        tj_entry_cancel(j->region, j->entry, TRACE_ERR_SHUTDOWN);
        tj_lock(&bg->lock);
        if (!j->region->background_failed) {
            j->region->background_failed = TRACE_ERR_SHUTDOWN;
            (void)snprintf(j->region->background_error, sizeof j->region->background_error,
                           "region '%s': its compile was cancelled by the shutdown of the context", j->region->name);
        }
        tj_unlock(&bg->lock);
        job_free(j);
        j = next;
    }
}

void tj_background_forget(struct trace_region *r) {
    struct tj_background *bg = atomic_load_explicit(&r->ctx->background, memory_order_acquire);
    if (!bg || !r->opt.background)
        return;
    tj_lock(&bg->lock);
    adopt(bg);
    r->released = true;
    struct job *gone = take(bg, r);
    tj_unlock(&bg->lock);
    cancel(gone, bg);
    tj_lock(&bg->lock);
    while (!on_it(bg) && pending(bg, r))
        tj_cond_wait(&bg->changed, &bg->lock, TJ_FOREVER);
    tj_unlock(&bg->lock);
}

void tj_background_cancel(trace_context *ctx) {
    struct tj_background *bg = background(ctx);
    if (!bg)
        return;
    tj_lock(&bg->lock);
    adopt(bg);
    bg->closed = true;
    struct job *gone = take(bg, NULL);
    tj_unlock(&bg->lock);
    cancel(gone, bg);
}

// Ends the thread; false: it was still compiling at time `end`.
bool tj_background_join(trace_context *ctx, uint64_t end) {
    struct tj_background *bg = atomic_load_explicit(&ctx->background, memory_order_acquire);
    if (!bg)
        return true;
    tj_lock(&bg->lock);
    adopt(bg);
    while (pending(bg, NULL)) {
        uint64_t now = tj_now_ns();
        if (now >= end) {
            tj_unlock(&bg->lock);
            return false;
        }
        tj_cond_wait(&bg->changed, &bg->lock, end == TJ_FOREVER ? TJ_FOREVER : end - now);
    }
    bool join = bg->started;
    pthread_t thread = bg->thread;
    bg->started = false;
    bg->stop = true;
    tj_cond_wake(&bg->changed);
    tj_unlock(&bg->lock);
    if (join)
        (void)pthread_join(thread, NULL);
    return true;
}

// The context goes: no region is left, so no job is.
void tj_background_free(trace_context *ctx) {
    struct tj_background *bg = atomic_load_explicit(&ctx->background, memory_order_acquire);
    if (!bg)
        return;
    if (bg->process == tj_process() && on_it(bg)) {
        bg->orphan = true; // the thread frees it
        (void)pthread_detach(bg->thread);
        return;
    }
    if (bg->process == tj_process())
        (void)tj_background_join(ctx, TJ_FOREVER);
    tj_free(bg);
}

enum trace_status trace_wait_ready(trace_region *r, int timeout_ms) {
    if (!r)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_wait_ready: NULL region");
    struct tj_background *bg = atomic_load_explicit(&r->ctx->background, memory_order_acquire);
    if (!bg)
        return TRACE_OK;
    uint64_t end = timeout_ms < 0 ? TJ_FOREVER : tj_now_ns() + (uint64_t)timeout_ms * 1000000u;
    tj_lock(&bg->lock);
    adopt(bg);
    if (on_it(bg)) {
        tj_unlock(&bg->lock);
        return tj_fail(TRACE_ERR_STATE, "trace_wait_ready: called in an event of the compile, which it would wait for");
    }
    bool late = false;
    while (!late && pending(bg, r)) {
        uint64_t now = tj_now_ns();
        late = now >= end;
        if (!late)
            tj_cond_wait(&bg->changed, &bg->lock, end == TJ_FOREVER ? TJ_FOREVER : end - now);
    }
    char text[TJ_ERROR_MAX];
    tj_status st = late ? TRACE_ERR_TIMEOUT : r->background_failed;
    (void)snprintf(text, sizeof text, "%s", r->background_error);
    if (!late)
        r->background_failed = TRACE_OK; // told once
    tj_unlock(&bg->lock);
    if (late)
        return tj_fail(st, "region '%s': plans are still being compiled after %d ms", r->name, timeout_ms);
    return st ? tj_fail(st, "%s", text) : TRACE_OK;
}

// ---- what to do meanwhile -------------------------------------------------------------------------------------------

#define NS_ELEMENT 4.0  // of the interpreter: an element of a pointwise op, a reduction or a move
#define NS_MULTIPLY 1.5 // one multiply and add of a contraction
#define NS_COMPILE 3e6  // of a compile without ops
#define NS_COMPILE_OP 1e6

static double node_numel(const struct tj_trace *t, tj_ref n) {
    const int64_t *d = tj_shape_dims(t, t->nodes[n].shape);
    double numel = 1;
    for (size_t i = 0; i < tj_shape_rank(t, t->nodes[n].shape); i++)
        numel *= (double)d[i];
    return numel;
}

static double last_dim(const struct tj_trace *t, tj_ref n) {
    size_t rank = tj_shape_rank(t, t->nodes[n].shape);
    return rank ? (double)tj_shape_dims(t, t->nodes[n].shape)[rank - 1] : 1;
}

// Nanoseconds that the interpreter is estimated to need for the segment.
static double interpreted_ns(const struct tj_segment *s) {
    const struct tj_trace *t = s->trace;
    double ns = 0;
    for (tj_ref i = 0; i < t->nnodes; i++) {
        const struct tj_node *n = &t->nodes[i];
        const tj_ref *in = tj_node_in(t, n);
        double out = node_numel(t, i);
        switch (tj_ops[n->op].cls) {
        case TJ_SOURCE:
        case TJ_VIEW: ns += 50; break;
        case TJ_CONTRACT:
            if (n->op == TJ_OP_CONV2D)
                ns +=
                    NS_MULTIPLY * out * node_numel(t, in[1]) /
                    (double)(tj_shape_dims(t, t->nodes[in[1]].shape)[0] > 0 ? tj_shape_dims(t, t->nodes[in[1]].shape)[0]
                                                                            : 1);
            else if (n->op == TJ_OP_SDPA)
                ns += NS_MULTIPLY * 2 * out * (last_dim(t, in[1]) > 0 ? node_numel(t, in[1]) / last_dim(t, in[1]) : 1);
            else
                ns += NS_MULTIPLY * out * last_dim(t, in[0]);
            break;
        default: {
            double most = out;
            for (uint32_t k = 0; k < n->nin; k++) {
                double v = node_numel(t, in[k]);
                most = v > most ? v : most;
            }
            ns += 100 + NS_ELEMENT * most;
        }
        }
    }
    return ns;
}

bool tj_background_interpret(trace_context *ctx, const struct tj_segment *s) {
    uint64_t known = atomic_load_explicit(&ctx->compile_op_ns, memory_order_relaxed);
    uint32_t ops = s->trace->nnodes - s->trace->nleaves - s->trace->nparams;
    double compile = known ? (double)known * ops : NS_COMPILE + NS_COMPILE_OP * ops;
    return interpreted_ns(s) < compile;
}
