// trace/trim.c: giving back what a context holds for later and doesn't use now.
#include "region.h"

// The backend's state, once it has started, or NULL.
static void *backend_state(trace_context *ctx) {
    if (!ctx->eager || atomic_load_explicit(&ctx->eager->backend, memory_order_acquire) != TJ_BACKEND_READY)
        return NULL;
    return ctx->backend_state;
}

size_t tj_idle_drop(trace_context *ctx, int kind) {
    void *state = ctx->backend->drop_idle ? backend_state(ctx) : NULL;
    return state ? ctx->backend->drop_idle(state, kind) : 0;
}

size_t tj_idle_bytes(trace_context *ctx) {
    void *state = ctx->backend->idle ? backend_state(ctx) : NULL;
    return state ? ctx->backend->idle(state) : 0;
}

// The next region after `after` (NULL: the first one), with a reference; `after` loses its.
static struct trace_region *next_region(trace_context *ctx, struct trace_region *after) {
    tj_lock(&ctx->lock);
    struct trace_region *r = after ? after->next : ctx->regions;
    while (r && !tj_region_retain_live(r))
        r = r->next;
    tj_unlock(&ctx->lock);
    if (after)
        tj_region_drop(after);
    return r;
}

size_t trace_context_trim(trace_context *ctx) {
    if (!ctx)
        return 0;
    tj_region_trim(ctx->eager);
    for (struct trace_region *r = next_region(ctx, NULL); r; r = next_region(ctx, r))
        tj_region_trim(r);
    size_t bytes = 0;
    for (int kind = TJ_IDLE_WORKSPACES; kind <= TJ_IDLE_CODE; kind++)
        bytes += tj_idle_drop(ctx, kind);
    bytes += tj_buffers_trim(ctx, true);
    (void)TJ_COUNT_UP(&ctx->count, bytes_trimmed, bytes);
    return bytes;
}
