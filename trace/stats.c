// trace/stats.c: counters of contexts and regions, read while others run.
#include "region.h"

void tj_stats_add(struct tj_counters *to, struct tj_counters *from) {
#define X(f) (void)TJ_COUNT_UP(to, f, atomic_load_explicit(&from->f, memory_order_relaxed));
    uint64_t worst = atomic_load_explicit(&to->worst_run_ns, memory_order_relaxed);
    TJ_STATS(X)
    uint64_t w = atomic_load_explicit(&from->worst_run_ns, memory_order_relaxed); // a maximum, not a sum
    atomic_store_explicit(&to->worst_run_ns, w > worst ? w : worst, memory_order_relaxed);
#undef X
}

void tj_stats_sum(struct trace_region *r, struct tj_counters *sum) {
    tj_stats_add(sum, &r->count);
    for (size_t i = 0; i < TJ_SLOTS; i++) {
        struct tj_box *b = atomic_load_explicit(&r->slots[i], memory_order_acquire);
        if (b)
            tj_stats_add(sum, &b->count);
    }
}

// What the region keeps now.
static void add_kept(struct trace_region *r, struct tj_counters *sum) {
    struct tj_cache *c = &r->cache;
    tj_lock(&c->lock);
    (void)TJ_COUNT_UP(sum, plans, c->n);
    (void)TJ_COUNT_UP(sum, recordings, r->recordings.n);
    (void)TJ_COUNT_UP(sum, break_records, c->nrecords);
    (void)TJ_COUNT_UP(sum, break_places, c->nsites);
    tj_unlock(&c->lock);
}

// From a pair of readings far apart, so that it needs no calibration at start.
static uint64_t ticks_to_ns(const struct trace_region *r, uint64_t ticks) {
    uint64_t dt = tj_ticks() - r->born_ticks, dn = tj_now_ns() - r->born_ns;
    if (!dt || !ticks)
        return 0;
    return (uint64_t)((unsigned __int128)ticks * dn / dt);
}

static void fill(const struct trace_region *clock, struct tj_counters *c, trace_stats *out) {
    size_t size = out->size < sizeof *out ? out->size : sizeof *out;
    trace_stats s = {.size = out->size};
#define X(f) s.f = atomic_load_explicit(&c->f, memory_order_relaxed);
    TJ_STATS(X)
#undef X
    s.record_ns = ticks_to_ns(clock, s.record_ns);
    s.run_ns = ticks_to_ns(clock, s.run_ns);
    s.worst_run_ns = ticks_to_ns(clock, s.worst_run_ns);
    memcpy(out, &s, size);
    if (out->size > sizeof *out)
        memset((char *)out + sizeof *out, 0, out->size - sizeof *out);
}

static void nothing(trace_stats *stats) {
    size_t size = stats->size;
    memset((char *)stats + sizeof size, 0, size - sizeof size);
}

void tj_region_stats_locked(struct trace_region *r, trace_stats *stats) {
    struct tj_counters sum;
    memset(&sum, 0, sizeof sum);
    tj_stats_sum(r, &sum);
    add_kept(r, &sum);
    atomic_store_explicit(&sum.bytes_code, atomic_load(&r->cache.code), memory_order_relaxed);
    fill(r, &sum, stats);
}

void tj_context_stats_locked(trace_context *ctx, trace_stats *stats) {
    struct tj_counters sum;
    memset(&sum, 0, sizeof sum);
    tj_stats_add(&sum, &ctx->count);
    uint64_t code = atomic_load(&ctx->eager->cache.code);
    for (struct trace_region *r = ctx->regions; r; r = r->next) {
        tj_stats_sum(r, &sum);
        add_kept(r, &sum);
        code += atomic_load(&r->cache.code);
    }
    tj_stats_sum(ctx->eager, &sum);
    add_kept(ctx->eager, &sum);
    atomic_store_explicit(&sum.bytes_code, code, memory_order_relaxed);
    atomic_store_explicit(&sum.bytes_kept, tj_buffers_kept(ctx), memory_order_relaxed);
    atomic_store_explicit(&sum.bytes_idle, tj_idle_bytes(ctx), memory_order_relaxed);
    fill(ctx->eager, &sum, stats);
}

void trace_region_stats(const trace_region *region, trace_stats *stats) {
    if (!stats || stats->size < sizeof stats->size)
        return;
    if (!region) {
        nothing(stats);
        return;
    }
    trace_region *r = (trace_region *)(uintptr_t)region; // atomics are read through non-const pointers
    tj_lock(&r->ctx->lock);
    tj_region_stats_locked(r, stats);
    tj_unlock(&r->ctx->lock);
}

void trace_context_stats(const trace_context *context, trace_stats *stats) {
    if (!stats || stats->size < sizeof stats->size)
        return;
    if (!context) {
        nothing(stats);
        return;
    }
    trace_context *ctx = (trace_context *)(uintptr_t)context;
    tj_lock(&ctx->lock);
    tj_context_stats_locked(ctx, stats);
    tj_unlock(&ctx->lock);
}
