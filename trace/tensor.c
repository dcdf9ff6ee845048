// trace/tensor.c: tensors, their storages, and the cache of released memory.
#include "tensor.h"

#include <sched.h>

#include "record.h"

// ---- buffers ------------------------------------------------------------------------------------
// Released memory is kept in size classes (eight steps a power of two) so that a steady loop allocates nothing. Kept
// bytes stay under the larger of a fixed slack and the recent peak of live bytes, the larger of those of the last two
// windows; beyond it the longest unused go first.

struct free_buffer {                   // lies in the released memory itself
    struct free_buffer *next, *prev;   // of its class
    struct free_buffer *newer, *older; // of all
    size_t bytes;
};
enum { CLASSES = 8 * 60, KEPT_HANDLES = 4096 };
#define KEPT_SLACK ((size_t)64 << 20)
#define WINDOW 256 // buffers released, over which a peak of live bytes counts

struct tj_buffer_cache {
    tj_mutex lock;
    struct free_buffer *classes[CLASSES];
    struct free_buffer *newest, *oldest;
    size_t kept;
    size_t peak, before;          // of live bytes, in this window and the one before it
    uint32_t frees;               // in this window
    struct trace_tensor *tensors; // linked by next
    struct tj_storage *storages;  // linked by data
    uint32_t ntensors, nstorages;
};

static struct tj_buffer_cache *cache_of(trace_context *ctx) {
    struct tj_buffer_cache *c = __atomic_load_n(&ctx->buffers, __ATOMIC_ACQUIRE);
    if (TJ_LIKELY(c != NULL)) {
        return c;
    }
    c = tj_calloc(1, sizeof *c);
    if (!c) {
        return NULL;
    }
    struct tj_buffer_cache *other = NULL;
    if (!__atomic_compare_exchange_n(&ctx->buffers, &other, c, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        tj_free(c);
        c = other;
    }
    return c;
}

// A thread that fork left behind in here may have unlinked half: what was kept is given up.
static void lock_cache(struct tj_buffer_cache *c) {
    if (TJ_UNLIKELY(tj_lock(&c->lock))) {
        memset(c->classes, 0, sizeof c->classes);
        c->newest = c->oldest = NULL;
        c->tensors = NULL;
        c->storages = NULL;
        c->kept = 0;
        c->ntensors = c->nstorages = 0;
    }
}

// Class of a size and the bytes its members have. False: too large.
static bool class_of(size_t bytes, unsigned *cls, size_t *rounded) {
    if (bytes > PTRDIFF_MAX / 2) {
        return false;
    }
    bytes = bytes < TJ_ALIGN ? TJ_ALIGN : (bytes + TJ_ALIGN - 1) & ~(size_t)(TJ_ALIGN - 1);
    unsigned e = 63u - (unsigned)__builtin_clzll(bytes); // at least 6
    size_t step = e < 9 ? TJ_ALIGN : (size_t)1 << (e - 3);
    bytes = (bytes + step - 1) & ~(step - 1);
    e = 63u - (unsigned)__builtin_clzll(bytes);
    *cls = (e - 6) * 8 + (unsigned)((bytes >> (e - 3)) & 7);
    *rounded = bytes;
    return true;
}

static void *raw_alloc(trace_context *ctx, size_t bytes) {
    if (!ctx->opt.alloc) {
        return tj_aligned_alloc(bytes);
    }
    struct tj_callout c;
    tj_callout_enter(&c);
    void *p = ctx->opt.alloc(ctx->opt.alloc_user, bytes, TJ_ALIGN);
    tj_callout_leave(&c);
    return p;
}

static void raw_free(trace_context *ctx, void *p, size_t bytes) {
    if (!ctx->opt.alloc) {
        tj_aligned_free(p);
        return;
    }
    struct tj_callout c;
    tj_callout_enter(&c);
    ctx->opt.free(ctx->opt.alloc_user, p, bytes);
    tj_callout_leave(&c);
}

static void unlink_buffer(struct tj_buffer_cache *c, struct free_buffer *b, unsigned cls) {
    *(b->prev ? &b->prev->next : &c->classes[cls]) = b->next;
    if (b->next) {
        b->next->prev = b->prev;
    }
    *(b->newer ? &b->newer->older : &c->newest) = b->older;
    *(b->older ? &b->older->newer : &c->oldest) = b->newer;
    c->kept -= b->bytes;
}

// Takes the longest unused buffers off until at most `most` bytes are kept; a chain linked by next.
static struct free_buffer *trim(struct tj_buffer_cache *c, size_t most) {
    struct free_buffer *out = NULL;
    while (c->kept > most) {
        struct free_buffer *b = c->oldest;
        unsigned cls;
        size_t rounded;
        if (!class_of(b->bytes, &cls, &rounded)) {
            break;
        }
        unlink_buffer(c, b, cls);
        b->next = out;
        out = b;
    }
    return out;
}

static void free_chain(trace_context *ctx, struct free_buffer *b) {
    while (b) {
        struct free_buffer *next = b->next;
        raw_free(ctx, b, b->bytes);
        b = next;
    }
}

// Counts `size` bytes more as live; false: the limit.
static bool reserve(trace_context *ctx, size_t size, uint64_t *live) {
    *live = TJ_COUNT_UP(&ctx->count, bytes_live, size) + size;
    if (TJ_LIKELY(!ctx->opt.memory_limit || *live <= ctx->opt.memory_limit)) {
        return true;
    }
    atomic_fetch_sub_explicit(&ctx->count.bytes_live, size, memory_order_relaxed);
    return false;
}

// Memory of a class, from what is kept or the system; NULL: there is none. It is counted already.
static void *take(trace_context *ctx, struct tj_buffer_cache *c, unsigned cls, size_t size, uint64_t live) {
    struct free_buffer *drop = NULL;
    size_t limit = ctx->opt.memory_limit;
    lock_cache(c);
    if (live > c->peak) {
        c->peak = live;
    }
    struct free_buffer *b = c->classes[cls];
    if (b) {
        unlink_buffer(c, b, cls);
    }
    if (limit && live + c->kept > limit) {
        drop = trim(c, live < limit ? limit - live : 0);
    }
    tj_unlock(&c->lock);
    free_chain(ctx, drop);
    if (b) {
        return b;
    }
    void *p = raw_alloc(ctx, size);
    if (!p) { // what is kept may be what is missing
        lock_cache(c);
        drop = trim(c, 0);
        tj_unlock(&c->lock);
        if (drop) {
            free_chain(ctx, drop);
            p = raw_alloc(ctx, size);
        }
    }
    return p;
}

void *tj_buffer_alloc(trace_context *ctx, size_t bytes) {
    unsigned cls;
    size_t size;
    struct tj_buffer_cache *c = cache_of(ctx);
    if (!c || !class_of(bytes, &cls, &size)) {
        tj_fail(TRACE_ERR_MEMORY, "out of memory: %zu bytes", bytes);
        return NULL;
    }
    // What lies idle is given back rather than failing: workspaces first, then packed copies.
    for (int stage = 0;; stage++) {
        uint64_t live;
        bool room = reserve(ctx, size, &live);
        void *p = room ? take(ctx, c, cls, size, live) : NULL;
        if (TJ_LIKELY(p != NULL)) {
            return p;
        }
        if (room) {
            atomic_fetch_sub_explicit(&ctx->count.bytes_live, size, memory_order_relaxed);
        }
        if (stage <= TJ_IDLE_PACKED) {
            (void)tj_idle_drop(ctx, stage);
            continue;
        }
        if (room) {
            tj_fail(TRACE_ERR_MEMORY, "out of memory: %zu bytes", bytes);
        } else {
            tj_fail(TRACE_ERR_MEMORY,
                    "memory_limit of %zu bytes reached: %zu more wanted, %llu in use; release tensors or "
                    "raise the limit",
                    ctx->opt.memory_limit, size, (unsigned long long)atomic_load(&ctx->count.bytes_live));
        }
        return NULL;
    }
}

void *tj_buffer_try(trace_context *ctx, size_t bytes) {
    unsigned cls;
    size_t size;
    uint64_t live;
    struct tj_buffer_cache *c = cache_of(ctx);
    if (!c || !class_of(bytes, &cls, &size) || !reserve(ctx, size, &live)) {
        return NULL;
    }
    void *p = take(ctx, c, cls, size, live);
    if (!p) {
        atomic_fetch_sub_explicit(&ctx->count.bytes_live, size, memory_order_relaxed);
    }
    return p;
}

// What may be kept now. The lock is held.
static size_t most_kept(const struct tj_buffer_cache *c) {
    size_t peak = c->peak > c->before ? c->peak : c->before;
    return peak > KEPT_SLACK ? peak : KEPT_SLACK;
}

void tj_buffer_free(trace_context *ctx, void *p, size_t bytes) {
    unsigned cls;
    size_t size;
    if (!p || !class_of(bytes, &cls, &size)) {
        return;
    }
    uint64_t live = atomic_fetch_sub_explicit(&ctx->count.bytes_live, size, memory_order_relaxed) - size;
    struct tj_buffer_cache *c = ctx->buffers;
    if (!c) {
        raw_free(ctx, p, size);
        return;
    }
    struct free_buffer *b = p, *drop;
    b->bytes = size;
    b->prev = b->newer = NULL;
    lock_cache(c);
    b->next = c->classes[cls];
    if (b->next) {
        b->next->prev = b;
    }
    c->classes[cls] = b;
    b->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = b;
    c->newest = b;
    c->kept += size;
    if (++c->frees >= WINDOW) { // a peak long ago keeps nothing for ever
        c->frees = 0;
        c->before = c->peak;
        c->peak = (size_t)live;
    }
    drop = trim(c, most_kept(c));
    tj_unlock(&c->lock);
    free_chain(ctx, drop);
}

void tj_buffer_release(trace_context *ctx, void *p, size_t bytes) {
    unsigned cls;
    size_t size;
    if (p && class_of(bytes, &cls, &size)) {
        atomic_fetch_sub_explicit(&ctx->count.bytes_live, size, memory_order_relaxed);
        raw_free(ctx, p, size);
    }
}

size_t tj_buffers_kept(trace_context *ctx) {
    struct tj_buffer_cache *c = __atomic_load_n(&ctx->buffers, __ATOMIC_ACQUIRE);
    if (!c) {
        return 0;
    }
    lock_cache(c);
    size_t kept = c->kept;
    tj_unlock(&c->lock);
    return kept;
}

// Handles kept for reuse; their bytes.
static size_t free_handles(struct trace_tensor *t, struct tj_storage *st) {
    size_t bytes = 0;
    while (t) {
        struct trace_tensor *next = t->next;
        bytes += sizeof *t;
        tj_free(t);
        t = next;
    }
    while (st) {
        struct tj_storage *next = (struct tj_storage *)(void *)st->data;
        bytes += sizeof *st;
        tj_free(st);
        st = next;
    }
    return bytes;
}

size_t tj_buffers_trim(trace_context *ctx, bool all) {
    struct tj_buffer_cache *c = __atomic_load_n(&ctx->buffers, __ATOMIC_ACQUIRE);
    struct trace_tensor *tensors = NULL;
    struct tj_storage *storages = NULL;
    if (!c) {
        return 0;
    }
    lock_cache(c);
    size_t kept = c->kept;
    c->peak = c->before = (size_t)atomic_load_explicit(&ctx->count.bytes_live, memory_order_relaxed);
    c->frees = 0;
    struct free_buffer *drop = trim(c, all ? 0 : most_kept(c));
    if (all) {
        tensors = c->tensors;
        storages = c->storages;
        c->tensors = NULL;
        c->storages = NULL;
        c->ntensors = c->nstorages = 0;
    }
    kept -= c->kept;
    tj_unlock(&c->lock);
    free_chain(ctx, drop);
    return kept + free_handles(tensors, storages);
}

void tj_buffers_free(trace_context *ctx) {
    struct tj_buffer_cache *c = ctx->buffers;
    if (!c) {
        return;
    }
    free_chain(ctx, trim(c, 0));
    (void)free_handles(c->tensors, c->storages);
    tj_free(c);
    ctx->buffers = NULL;
}

// ---- storages -----------------------------------------------------------------------------------

static struct tj_storage *storage_new(trace_context *ctx, uint32_t flags) {
    struct tj_buffer_cache *c = cache_of(ctx);
    struct tj_storage *st = NULL;
    if (c) {
        lock_cache(c);
        st = c->storages;
        if (st) {
            c->storages = (struct tj_storage *)(void *)st->data;
            c->nstorages--;
        }
        tj_unlock(&c->lock);
    }
    if (!st) {
        st = tj_malloc(sizeof *st);
    }
    if (!st) {
        tj_fail(TRACE_ERR_MEMORY, "out of memory");
        return NULL;
    }
    memset(st, 0, sizeof *st);
    atomic_init(&st->refs, 1);
    st->flags = flags;
    st->ctx = ctx;
    tj_context_retain(ctx);
    return st;
}

struct tj_storage *tj_storage_borrow(trace_context *ctx, uint32_t flags) {
    return storage_new(ctx, flags);
}

void tj_storage_drop(struct tj_storage *st) {
    if (!st || atomic_fetch_sub_explicit(&st->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    trace_context *ctx = st->ctx;
    if (atomic_load_explicit(&st->packed, memory_order_relaxed) && ctx->backend && ctx->backend->packed_free) {
        ctx->backend->packed_free(st);
    }
    if (st->flags & TJ_ST_OWNED) {
        tj_buffer_free(ctx, st->data, st->bytes);
    }
    if (st->done) {
        struct tj_callout call;
        tj_callout_enter(&call);
        st->done(st->user);
        tj_callout_leave(&call);
    }
    struct tj_buffer_cache *c = ctx->buffers;
    bool keep = false;
    if (c) {
        lock_cache(c);
        keep = c->nstorages < KEPT_HANDLES;
        if (keep) {
            st->data = (unsigned char *)c->storages;
            c->storages = st;
            c->nstorages++;
        }
        tj_unlock(&c->lock);
    }
    if (!keep) {
        tj_free(st);
    }
    tj_context_release(ctx);
}

// Low half of a storage's `readers`. A run counts in its own process only: what fork left behind neither reads nor
// writes any more.
#define WRITER ((uint64_t)1 << 31) // trace_write is copying
static uint64_t this_process(void) { return (uint64_t)tj_process() << 32; }

void tj_reader_enter(struct tj_storage *st) {
    uint64_t r = atomic_load_explicit(&st->readers, memory_order_relaxed), mine = this_process();
    for (;;) {
        uint64_t now = TJ_LIKELY((r ^ mine) >> 32 == 0) ? r : mine;
        if (now & WRITER) {
            (void)sched_yield();
            r = atomic_load_explicit(&st->readers, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak_explicit(&st->readers, &r, now + 1, memory_order_acquire,
                                                         memory_order_relaxed)) {
            return;
        }
    }
}

void tj_reader_leave(struct tj_storage *st, uint32_t process) {
    if (TJ_LIKELY(process == tj_process())) {
        atomic_fetch_sub_explicit(&st->readers, 1, memory_order_release);
    }
}

// Holds st alone when it has `want` readers. False: it has more, or another writer (*writing).
static bool writer_enter(struct tj_storage *st, uint32_t want, bool *writing) {
    uint64_t r = atomic_load(&st->readers), mine = this_process();
    for (;;) {
        uint64_t now = (r ^ mine) >> 32 == 0 ? r : mine;
        *writing = now & WRITER;
        if ((uint32_t)now != want) {
            return false;
        }
        if (atomic_compare_exchange_weak(&st->readers, &r, now | WRITER)) {
            return true;
        }
    }
}

static void writer_leave(struct tj_storage *st) { (void)atomic_fetch_sub(&st->readers, WRITER); }

// ---- tensors ------------------------------------------------------------------------------------

static void guard(struct trace_tensor *t) {
    int is = 0, mine = (int)tj_process();
    while (!atomic_compare_exchange_weak_explicit(&t->guard, &is, mine, memory_order_acquire, memory_order_relaxed)) {
        if (is && is != mine) {
            continue; // held by a thread that fork left behind: taken over
        }
        is = 0;
        (void)sched_yield();
    }
}
static void unguard(struct trace_tensor *t) { atomic_store_explicit(&t->guard, 0, memory_order_release); }

struct tj_storage *tj_tensor_storage(struct trace_tensor *t) {
    guard(t);
    struct tj_storage *st = t->st;
    if (st) {
        atomic_fetch_add_explicit(&st->refs, 1, memory_order_relaxed);
    }
    unguard(t);
    return st;
}

// st: the reference given is taken over, also on failure; NULL: none yet.
static struct trace_tensor *tensor_new(trace_context *ctx, struct tj_storage *st, tj_dtype d, const int64_t *dims,
                                       const int64_t *strides, size_t rank, int64_t offset, const char *op,
                                       struct tj_loc loc) {
    struct tj_buffer_cache *c = cache_of(ctx);
    struct trace_tensor *t = NULL;
    if (c) {
        lock_cache(c);
        t = c->tensors;
        if (t) {
            c->tensors = t->next;
            c->ntensors--;
        }
        tj_unlock(&c->lock);
    }
    if (!t) {
        t = tj_malloc(sizeof *t);
    }
    if (!t) {
        tj_storage_drop(st);
        tj_fail(TRACE_ERR_MEMORY, "out of memory");
        return NULL;
    }
    memset(t, 0, sizeof *t);
    atomic_init(&t->refs, 1);
    t->dtype = (uint8_t)d;
    t->rank = (uint8_t)rank;
    t->state = st ? TJ_T_READY : TJ_T_DEFERRED;
    t->offset = offset;
    if (rank) {
        memcpy(t->dims, dims, rank * sizeof *dims);
    }
    if (strides) {
        memcpy(t->strides, strides, rank * sizeof *strides);
    } else {
        tj_contiguous_strides(dims, rank, t->strides);
    }
    (void)tj_numel(t->dims, rank, &t->numel);
    t->layout = strides ? tj_layout_of(t->dims, t->strides, rank) : 0;
    t->st = st;
    t->op = op ? op : "";
    t->loc = loc;
    t->ctx = ctx;
    tj_context_retain(ctx);
    tj_context_lock(ctx);
    t->id = ++ctx->tensor_ids;
    t->next = ctx->tensors;
    if (t->next) {
        t->next->prev = t;
    }
    ctx->tensors = t;
    tj_unlock(&ctx->lock);
    return t;
}

void tj_tensor_drop(struct trace_tensor *t) {
    if (t->internal || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    trace_context *ctx = t->ctx;
    tj_context_lock(ctx);
    *(t->prev ? &t->prev->next : &ctx->tensors) = t->next;
    if (t->next) {
        t->next->prev = t->prev;
    }
    tj_unlock(&ctx->lock);
    tj_storage_drop(t->st);
    t->st = NULL;
    struct tj_buffer_cache *c = ctx->buffers;
    bool keep = false;
    if (c) {
        lock_cache(c);
        keep = c->ntensors < KEPT_HANDLES;
        if (keep) {
            t->next = c->tensors;
            c->tensors = t;
            c->ntensors++;
        }
        tj_unlock(&c->lock);
    }
    if (!keep) {
        tj_free(t);
    }
    tj_context_release(ctx);
}

struct trace_tensor *tj_tensor_new(trace_context *ctx, tj_dtype d, const int64_t *dims, size_t rank, const char *op,
                                   struct tj_loc loc) {
    int64_t numel;
    size_t bytes;
    if (rank > TJ_MAX_RANK || !tj_numel(dims, rank, &numel) || !tj_tensor_bytes(d, numel, &bytes)) {
        tj_fail(TRACE_ERR_SHAPE, "%s: the size of the tensor overflows", op ? op : "tensor");
        return NULL;
    }
    struct tj_storage *st = storage_new(ctx, TJ_ST_OWNED | TJ_ST_STABLE);
    if (!st) {
        return NULL;
    }
    if (bytes) {
        st->data = tj_buffer_alloc(ctx, bytes);
        st->bytes = st->data ? bytes : 0;
        if (!st->data) {
            st->flags = 0;
            tj_storage_drop(st);
            return NULL;
        }
    }
    return tensor_new(ctx, st, d, dims, NULL, rank, 0, op, loc);
}

struct trace_tensor *tj_tensor_view(struct tj_storage *st, tj_dtype d, const int64_t *dims, const int64_t *strides,
                                    size_t rank, int64_t offset, const char *op, struct tj_loc loc) {
    atomic_fetch_add_explicit(&st->refs, 1, memory_order_relaxed);
    return tensor_new(st->ctx, st, d, dims, strides, rank, offset, op, loc);
}

struct trace_tensor *tj_tensor_again(struct trace_tensor *t, const char *op, struct tj_loc loc) {
    struct tj_storage *st = tj_tensor_storage(t);
    if (!st) {
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
        return t;
    }
    return tensor_new(t->ctx, st, (tj_dtype)t->dtype, t->dims, t->strides, t->rank, t->offset, op, loc);
}

struct trace_tensor *tj_tensor_deferred(trace_context *ctx, tj_dtype d, const int64_t *dims, size_t rank,
                                        const char *op, struct tj_loc loc) {
    return tensor_new(ctx, NULL, d, dims, NULL, rank, 0, op, loc);
}

void tj_tensor_fulfil(struct trace_tensor *t, struct trace_tensor *src) {
    struct tj_storage *st = src ? tj_tensor_storage(src) : NULL;
    guard(t);
    if (st) {
        memcpy(t->strides, src->strides, sizeof t->strides);
        t->offset = src->offset;
        t->layout = src->layout;
        t->st = st;
    }
    t->state = st ? TJ_T_READY : TJ_T_FAILED;
    unguard(t);
}

void tj_copy_strided(void *dst, const int64_t *dst_strides, const void *src, const int64_t *src_strides,
                     const int64_t *dims, size_t rank, tj_dtype dtype) {
    int64_t numel;
    if (!tj_numel(dims, rank, &numel) || numel == 0) {
        return;
    }
    // Trailing dims that are contiguous on both sides are copied as one run.
    size_t outer = rank;
    int64_t run = 1;
    while (outer > 0 && (dims[outer - 1] == 1 || (dst_strides[outer - 1] == run && src_strides[outer - 1] == run))) {
        run *= dims[--outer];
    }
    int64_t at[TJ_MAX_RANK] = {0};
    unsigned char *d = dst;
    const unsigned char *s = src;
    int64_t e = (int64_t)tj_elem_bytes(dtype);
    for (;;) {
        if (dtype == TRACE_BOOL) {
            tj_copy_bools(d, s, (size_t)run);
        } else {
            memcpy(d, s, (size_t)(run * e));
        }
        size_t i = outer;
        while (i > 0) {
            i--;
            if (++at[i] < dims[i]) {
                d += dst_strides[i] * e;
                s += src_strides[i] * e;
                break;
            }
            d -= dst_strides[i] * (dims[i] - 1) * e;
            s -= src_strides[i] * (dims[i] - 1) * e;
            at[i] = 0;
            if (i == 0) {
                return;
            }
        }
        if (outer == 0) {
            return;
        }
    }
}

// ---- public: making -------------------------------------------------------------------------------

static bool check_new(const char *op, trace_context *ctx, int d, const int64_t *dims, size_t rank, int64_t *numel,
                      size_t *bytes) {
    char text[TJ_DIMS_TEXT];
    if (!ctx) {
        tj_fail(TRACE_ERR_ARGUMENT, "%s: the context is NULL", op);
    } else if (!tj_dtype_valid(d)) {
        tj_fail(TRACE_ERR_DTYPE, "%s: %d is no dtype; use TRACE_F32 and the like", op, d);
    } else if (rank > TJ_MAX_RANK) {
        tj_fail(TRACE_ERR_SHAPE, "%s: rank %zu; at most %d dims are supported", op, rank, TJ_MAX_RANK);
    } else if (rank && !dims) {
        tj_fail(TRACE_ERR_ARGUMENT, "%s: dims is NULL with rank %zu; a 0-d shape is TRACE_SCALAR", op, rank);
    } else {
        for (size_t i = 0; i < rank; i++) {
            if (dims[i] < 0) {
                tj_fail(TRACE_ERR_SHAPE, "%s: shape %s: extent %lld of dim %zu is negative", op,
                        tj_dims_text(text, sizeof text, dims, rank), (long long)dims[i], i);
                return false;
            }
        }
        if (tj_numel(dims, rank, numel) && tj_tensor_bytes((tj_dtype)d, *numel, bytes)) {
            return true;
        }
        tj_fail(TRACE_ERR_SHAPE, "%s: shape %s: its size overflows", op, tj_dims_text(text, sizeof text, dims, rank));
    }
    return false;
}

static trace_tensor *from(trace_context *ctx, enum trace_dtype d, const void *data, const int64_t *dims, size_t rank) {
    int64_t numel;
    size_t bytes;
    if (!check_new("from", ctx, (int)d, dims, rank, &numel, &bytes)) {
        return NULL;
    }
    if (!data && bytes) {
        tj_fail(TRACE_ERR_ARGUMENT, "from: data is NULL; a tensor without data is trace_placeholder");
        return NULL;
    }
    struct trace_tensor *t = tj_tensor_new(ctx, d, dims, rank, "from", TJ_LOC(NULL, 0));
    if (t && bytes && d == TRACE_BOOL) {
        tj_copy_bools(tj_tensor_data(t), data, bytes);
    } else if (t && bytes) {
        memcpy(tj_tensor_data(t), data, bytes);
    }
    return t;
}

trace_tensor *trace_from(trace_context *ctx, enum trace_dtype d, const void *data, const int64_t *dims, size_t rank) {
    trace_tensor *t = from(ctx, d, data, dims, rank);
    if (!t) {
        tj_failed_in(ctx);
    }
    return t;
}

static trace_tensor *wrapped(const char *op, trace_context *ctx, const trace_tensor_desc *k) {
    int64_t numel, last = 0;
    size_t bytes;
    if (!check_new(op, ctx, (int)k->dtype, k->dims, k->rank, &numel, &bytes)) {
        return NULL;
    }
    if (k->flags & ~(TRACE_WRAP_READONLY | TRACE_WRAP_STABLE | TRACE_WRAP_PLACEHOLDER)) {
        tj_fail(TRACE_ERR_ARGUMENT, "%s: unknown bits in flags %#x", op, (unsigned)k->flags);
        return NULL;
    }
    bool placeholder = k->flags & TRACE_WRAP_PLACEHOLDER;
    if (!k->data && numel && !placeholder) {
        tj_fail(TRACE_ERR_ARGUMENT, "%s: data is NULL; a tensor without data is trace_placeholder", op);
        return NULL;
    }
    for (size_t i = 0; k->strides && i < k->rank; i++) {
        int64_t far = 0;
        if (k->strides[i] < 0) {
            tj_fail(TRACE_ERR_SHAPE,
                    "%s: stride %lld of dim %zu is negative; wrap the memory as it lies and use trace_flip", op,
                    (long long)k->strides[i], i);
            return NULL;
        }
        if (numel && (!tj_size_mul(k->dims[i] - 1, k->strides[i], &far) || !tj_size_add(last, far, &last))) {
            tj_fail(TRACE_ERR_SHAPE, "%s: the strides reach past any memory", op);
            return NULL;
        }
    }
    if (numel && k->strides && (last == INT64_MAX || !tj_tensor_bytes(k->dtype, last + 1, &bytes))) {
        tj_fail(TRACE_ERR_SHAPE, "%s: the strides reach past any memory", op);
        return NULL;
    }
    uint32_t flags = (k->flags & TRACE_WRAP_READONLY ? TJ_ST_READONLY : 0) |
                     (k->flags & TRACE_WRAP_STABLE ? TJ_ST_STABLE : 0) | (placeholder ? TJ_ST_PLACEHOLDER : 0);
    struct tj_storage *st = storage_new(ctx, flags);
    if (!st) {
        return NULL;
    }
    st->data = placeholder ? NULL : k->data;
    st->bytes = numel ? bytes : 0;
    struct trace_tensor *t = tensor_new(ctx, st, k->dtype, k->dims, k->strides, k->rank, 0, op, TJ_LOC(NULL, 0));
    if (t) { // on failure the memory stays the caller's: done isn't called
        st->done = k->done;
        st->user = k->user;
    }
    return t;
}

static trace_tensor *wrap(const char *op, trace_context *ctx, const trace_tensor_desc *k) {
    trace_tensor *t = wrapped(op, ctx, k);
    if (!t) {
        tj_failed_in(ctx);
    }
    return t;
}

trace_tensor *trace_wrap(trace_context *ctx, enum trace_dtype d, void *data, const int64_t *dims, size_t rank) {
    return wrap("wrap", ctx, &(const trace_tensor_desc){.dtype = d, .dims = dims, .rank = rank, .data = data});
}

trace_tensor *trace_wrap_const(trace_context *ctx, enum trace_dtype d, const void *data, const int64_t *dims,
                               size_t rank) {
    union { // the memory is never written: READONLY
        const void *in;
        void *out;
    } p = {data};
    return wrap("wrap_const", ctx,
                &(const trace_tensor_desc){
                    .dtype = d, .dims = dims, .rank = rank, .data = p.out, .flags = TRACE_WRAP_READONLY});
}

trace_tensor *trace_wrap_desc(trace_context *ctx, const trace_tensor_desc *desc) {
    if (!desc || desc->size < sizeof *desc) {
        tj_fail(TRACE_ERR_ARGUMENT, "wrap_desc: desc is NULL or its size isn't set; use TRACE_TENSOR_DESC(...)");
        return NULL;
    }
    for (size_t i = sizeof *desc; i < desc->size; i++) {
        if (((const unsigned char *)desc)[i]) {
            tj_fail(TRACE_ERR_ARGUMENT, "wrap_desc: desc has fields that this version of the library doesn't know");
            return NULL;
        }
    }
    return wrap("wrap_desc", ctx, desc);
}

trace_tensor *trace_placeholder(trace_context *ctx, enum trace_dtype d, const int64_t *dims, size_t rank) {
    return wrap("placeholder", ctx,
                &(const trace_tensor_desc){.dtype = d, .dims = dims, .rank = rank, .flags = TRACE_WRAP_PLACEHOLDER});
}

// ---- public: references and queries ---------------------------------------------------------------

// The node of a recorded value's handle in this thread's run of it; TJ_NIL and an error when it is stale.
static tj_ref value_of(struct tj_run *run, const trace_tensor *t, const char *op) {
    uint64_t h = (uint64_t)(uintptr_t)t;
    if (run && h >> 25 == run->generation) {
        tj_ref n = (tj_ref)(h >> 1 & 0xFFFFFF) - 1;
        if (n < run->trace.nnodes && run->values[n].state != TJ_V_DEAD && !run->values[n].ended) {
            return n;
        }
    }
    tj_fail(TRACE_ERR_DEAD,
            "%s: the recorded value has ended; values live until trace_end or trace_release, keep "
            "what trace_end returns",
            op);
    return TJ_NIL;
}

trace_tensor *trace_retain(trace_tensor *t) {
    if (!t || t == TRACE_NONE) {
        return t;
    }
    struct tj_run *run = tj_run_of(t);
    if (tj_is_value(t)) {
        tj_ref n = value_of(run, t, "retain");
        if (n == TJ_NIL) {
            return NULL;
        }
        run->values[n].count++;
        return t;
    }
    if (run && (run->eager || run->loose)) {
        tj_eager_retained(run, t);
    }
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void trace_release(trace_tensor *t) {
    if (!t || t == TRACE_NONE) {
        return;
    }
    struct tj_run *run = tj_run_of(t);
    if (!tj_is_value(t)) {
        if (run && (run->eager || run->loose)) {
            tj_eager_released(run, t);
        }
        tj_tensor_drop(t);
        return;
    }
    // A value whose run is over has nothing left to release.
    uint64_t h = (uint64_t)(uintptr_t)t;
    tj_ref n = (tj_ref)(h >> 1 & 0xFFFFFF) - 1;
    if (run && h >> 25 == run->generation && n < run->trace.nnodes) {
        struct tj_value *v = &run->values[n];
        if (v->count && --v->count == 0) {
            v->ended = true;
        }
    }
}

// rank, dims, dtype of a tensor or recorded value.
static bool describe(const trace_tensor *t, const char *op, size_t *rank, const int64_t **dims, tj_dtype *d) {
    if (!t) {
        return false; // an earlier error, whose text stays
    }
    if (t == TRACE_NONE) {
        tj_fail(TRACE_ERR_ARGUMENT, "%s: TRACE_NONE is no tensor", op);
        return false;
    }
    if (tj_is_value(t)) {
        struct tj_run *run = tj_run_of(t);
        tj_ref n = value_of(run, t, op);
        if (n == TJ_NIL) {
            return false;
        }
        const struct tj_trace *tr = &run->trace;
        *rank = tj_shape_rank(tr, tr->nodes[n].shape);
        *dims = tj_shape_dims(tr, tr->nodes[n].shape);
        *d = (tj_dtype)tr->nodes[n].dtype;
    } else {
        *rank = t->rank;
        *dims = t->dims;
        *d = (tj_dtype)t->dtype;
    }
    return true;
}

static bool query_dim(const char *op, int64_t dim, size_t rank, size_t *out) {
    int64_t r = (int64_t)rank;
    if (dim < -r || dim >= r) {
        tj_fail(TRACE_ERR_ARGUMENT, "%s: dim %lld is out of range for rank %zu", op, (long long)dim, rank);
        return false;
    }
    *out = (size_t)(dim < 0 ? dim + r : dim);
    return true;
}

int trace_rank(const trace_tensor *t) {
    size_t rank;
    const int64_t *dims;
    tj_dtype d;
    return describe(t, "rank", &rank, &dims, &d) ? (int)rank : -1;
}

int64_t trace_size(const trace_tensor *t, int64_t dim) {
    size_t rank, i;
    const int64_t *dims;
    tj_dtype d;
    return describe(t, "size", &rank, &dims, &d) && query_dim("size", dim, rank, &i) ? dims[i] : -1;
}

int64_t trace_stride(const trace_tensor *t, int64_t dim) {
    size_t rank, i;
    const int64_t *dims;
    tj_dtype d;
    if (!describe(t, "stride", &rank, &dims, &d) || !query_dim("stride", dim, rank, &i)) {
        return -1;
    }
    if (!tj_is_value(t)) {
        return t->strides[i];
    }
    struct tj_place v;
    struct tj_run *run = tj_run_of(t);
    tj_ref root, n = value_of(run, t, "stride");
    if (n == TJ_NIL) {
        return -1;
    }
    tj_value_place(run, n, &v, &root);
    return v.strides[i];
}

int64_t trace_numel(const trace_tensor *t) {
    size_t rank;
    const int64_t *dims;
    tj_dtype d;
    int64_t n;
    return describe(t, "numel", &rank, &dims, &d) && tj_numel(dims, rank, &n) ? n : -1;
}

int trace_dtype_of(const trace_tensor *t) {
    size_t rank;
    const int64_t *dims;
    tj_dtype d;
    return describe(t, "dtype_of", &rank, &dims, &d) ? (int)d : -1;
}

// ---- public: writing --------------------------------------------------------------------------------

static bool ready(trace_tensor *t, const char *op, tj_status *st) {
    if (!t) {
        *st = tj_last_status() ? tj_last_status() : tj_fail(TRACE_ERR_ARGUMENT, "%s: the tensor is NULL", op);
    } else if (tj_is_value(t)) {
        *st = tj_fail(TRACE_ERR_ARGUMENT, "%s: not of a recorded value; write to a tensor, or record trace_copy_", op);
    } else if (t->state != TJ_T_READY) {
        *st = tj_fail(TRACE_ERR_STATE, "%s: the tensor has no content yet; its run hasn't ended", op);
    } else {
        return true;
    }
    return false;
}

static void fill(struct trace_tensor *t, unsigned char *memory, const void *src) {
    int64_t strides[TJ_MAX_RANK];
    tj_dtype d = (tj_dtype)t->dtype;
    tj_contiguous_strides(t->dims, t->rank, strides);
    tj_copy_strided(memory + t->offset * (int64_t)tj_elem_bytes(d), t->strides, src, strides, t->dims, t->rank, d);
}

// Gives every tensor on `old` a new storage with t's part replaced; runs that captured the old one keep it.
static tj_status replace(struct trace_tensor *t, struct tj_storage *old, const void *src) {
    trace_context *ctx = t->ctx;
    struct tj_storage *st = storage_new(ctx, old->flags);
    if (!st) {
        return TRACE_ERR_MEMORY;
    }
    st->data = tj_buffer_alloc(ctx, old->bytes);
    if (!st->data) {
        st->flags = 0;
        tj_storage_drop(st);
        return TRACE_ERR_MEMORY;
    }
    st->bytes = old->bytes;
    size_t own;
    if (t->layout || !tj_tensor_bytes((tj_dtype)t->dtype, t->numel, &own) || own != old->bytes) {
        memcpy(st->data, old->data, old->bytes);
    }
    fill(t, st->data, src);
    atomic_store(&st->version, atomic_load(&old->version) + 1);
    int moved = 0;
    tj_lock(&ctx->lock);
    // Another writer may have been here, or a bound plan that reads this very memory.
    bool mine = t->st == old && !atomic_load(&old->pins);
    for (struct trace_tensor *u = mine ? ctx->tensors : NULL; u; u = u->next) {
        guard(u);
        if (u->st == old) {
            __atomic_store_n(&u->st, st, __ATOMIC_RELAXED); // leaf look-ups compare it without the guard
            atomic_fetch_add_explicit(&st->refs, 1, memory_order_relaxed);
            moved++;
        }
        unguard(u);
    }
    tj_unlock(&ctx->lock);
    for (int i = 0; i < moved; i++) {
        tj_storage_drop(old);
    }
    tj_storage_drop(st);
    return mine ? TRACE_OK : TRACE_ERR_BUSY;
}

tj_status trace_write(trace_tensor *t, const void *src, size_t bytes) {
    tj_status s;
    size_t want;
    char text[TJ_DIMS_TEXT];
    if (!ready(t, "write", &s)) {
        return s;
    }
    (void)tj_tensor_bytes((tj_dtype)t->dtype, t->numel, &want);
    if (bytes != want) {
        return tj_fail(TRACE_ERR_ARGUMENT, "write: %zu bytes given, %s%s has %zu", bytes, tj_dtypes[t->dtype].name,
                       tj_dims_text(text, sizeof text, t->dims, t->rank), want);
    }
    if (!src && want) {
        return tj_fail(TRACE_ERR_ARGUMENT, "write: src is NULL");
    }
    struct tj_storage *first = tj_tensor_storage(t); // another thread's write may replace it at any time
    uint32_t flags = first->flags;
    tj_storage_drop(first);
    if (flags & TJ_ST_READONLY) {
        return tj_fail(TRACE_ERR_ARGUMENT, "write: the memory was wrapped read-only; wrap it with trace_wrap");
    }
    if (flags & TJ_ST_PLACEHOLDER) {
        return tj_fail(TRACE_ERR_STATE, "write: a placeholder has no memory");
    }
    for (size_t i = 0; i < t->rank; i++) {
        if (t->strides[i] == 0 && t->dims[i] > 1 && t->numel) {
            return tj_fail(TRACE_ERR_ARGUMENT,
                           "write: dim %zu of %s is broadcast, its elements share memory; write "
                           "to a clone",
                           i, tj_dims_text(text, sizeof text, t->dims, t->rank));
        }
    }
    if (!want) {
        return TRACE_OK;
    }
    tj_host_effect("trace_write", TJ_LOC(NULL, 0));
    struct tj_run *run = tj_run_of(t);
    for (;;) {
        struct tj_storage *st = tj_tensor_storage(t);
        bool owned = st->flags & TJ_ST_OWNED;
        struct tj_uses uses = {.n = 0};
        // By a live bound plan, or a DLPack consumer, which read this memory and no other.
        bool pinned = atomic_load(&st->pins) > 0 || atomic_load(&st->exports) > 0;
        if (atomic_load(&st->pins_packed)) {
            tj_storage_drop(st);
            return tj_fail(TRACE_ERR_BUSY, "write: a live bound plan has a packed copy of this tensor; release the "
                                           "bound plan, write, bind again");
        }
        if (run && !tj_run_uses(run, t, st, &uses)) {
            tj_storage_drop(st);
            return TRACE_ERR_MEMORY;
        }
        if (uses.others ||
            (uses.n && (uses.written || !owned || pinned))) { // what is recorded has to run before the memory changes
            tj_fpenv env;
            struct tj_run *back = tj_run_switch(run);
            tj_fpenv_enter(&env);
            s = tj_break_for_write(run, t, TJ_LOC(NULL, 0));
            tj_fpenv_leave(&env);
            (void)tj_run_switch(back);
            if (s != TRACE_OK) {
                tj_storage_drop(st);
                return s;
            }
        }
        bool fresh = owned && !pinned, writing = false; // may be given other memory
        uint32_t own = fresh || !run || run->process != tj_process() ? 0 : uses.n;
        if (!(fresh && uses.n) && writer_enter(st, own, &writing)) {
            fill(t, st->data, src);
            atomic_fetch_add(&st->version, 1);
            writer_leave(st);
            s = TRACE_OK;
        } else if (pinned) { // runs that read it meanwhile are the host's race
            fill(t, st->data, src);
            atomic_fetch_add(&st->version, 1);
            s = TRACE_OK;
        } else if (owned) {
            s = writing ? TRACE_ERR_BUSY : replace(t, st, src);
        } else {
            tj_storage_drop(st);
            return tj_fail(TRACE_ERR_BUSY,
                           "write: wrapped memory that a run on another thread reads; write between runs");
        }
        if (s == TRACE_OK && (uses.n || uses.others) && !tj_run_moved(run, t, st)) {
            s = TRACE_ERR_MEMORY;
        }
        tj_storage_drop(st);
        if (s != TRACE_ERR_BUSY) {
            return s;
        }
        (void)sched_yield(); // another writer was faster: once more
    }
}

tj_status trace_modified(trace_tensor *t) {
    tj_status s;
    if (!ready(t, "modified", &s)) {
        return s;
    }
    tj_host_effect("trace_modified", TJ_LOC(NULL, 0));
    struct tj_storage *st = tj_tensor_storage(t);
    if (st->flags & TJ_ST_OWNED) {
        s = tj_fail(TRACE_ERR_ARGUMENT, "modified: the memory is the library's; change it with trace_write");
    } else if (atomic_load(&st->pins_packed)) {
        s = tj_fail(TRACE_ERR_BUSY, "modified: a live bound plan has a packed copy of this tensor; release the bound "
                                    "plan, then bind again");
    } else {
        atomic_fetch_add(&st->version, 1);
        s = TRACE_OK;
    }
    tj_storage_drop(st);
    return s;
}
