// trace/explain.c: gathers what trace_explain tells: plans with their kernels, breaks, recompiles.
#include "explain.h"

#include <stdio.h>

// ---- words ----------------------------------------------------------------------------------------------------------

static const struct {
    const char *word, *text;
} kept[TJ_KEPT_WHYS] = {
    [TJ_KEPT_NONE] = {"unknown", "no reason was noted"},
    [TJ_KEPT_OUTPUT] = {"output", "a result of the segment, or kept for what comes after the break"},
    [TJ_KEPT_WRITTEN] = {"in-place write", "an in-place op writes into it"},
    [TJ_KEPT_OPERAND] = {"operand",
                         "matrix products, convolutions, attention and index_copy read operands from memory"},
    [TJ_KEPT_TILE] = {"tile", "the fused kernel takes its rows while they are in cache"},
    [TJ_KEPT_CONTRACTION] =
        {"contraction", "the result of a contraction can be taken over row by row by one kernel of its shape only"},
    [TJ_KEPT_USERS] = {"second user", "another user needs it too, and computing it again would cost more"},
    [TJ_KEPT_ORDER] = {"order of writes", "memory it reads is overwritten before its user runs"},
    [TJ_KEPT_SIZE] = {"size", "the kernel of its user would have too many instructions or inputs"},
    [TJ_KEPT_COST] = {"cost", "its user wants each element many times, so computing it there would cost more"},
    [TJ_KEPT_ROWS] = {"other rows", "a reduction over other rows than its user's kernel has"},
    [TJ_KEPT_INDEX] = {"index order", "its user walks it in an order that no index map expresses"},
    [TJ_KEPT_PLACES] = {"two places", "it is dear, and its user wants it at two different places"},
    [TJ_KEPT_KIND] = {"kind of op", "an op that no kernel computes on the way"},
    [TJ_KEPT_OFF] = {"switched off", "fusion is off (TRACEJIT_NO=fuse or epilogue, or TRACEJIT_DISABLE)"},
};
const char *tj_kept_word(unsigned why) { return kept[why < TJ_KEPT_WHYS ? why : 0].word; }
const char *tj_kept_text(unsigned why) { return kept[why < TJ_KEPT_WHYS ? why : 0].text; }

void tj_explain_kept(const struct tj_trace *t, const struct tj_kept_report *k, char *buf, size_t cap) {
    char user[300];
    if (k->user < t->nnodes && k->why != TJ_KEPT_OUTPUT)
        (void)snprintf(buf, cap, "%s: for %s; %s", tj_kept_word(k->why), tj_op_text(t, k->user, user, sizeof user),
                       tj_kept_text(k->why));
    else
        (void)snprintf(buf, cap, "%s: %s", tj_kept_word(k->why), tj_kept_text(k->why));
}

bool tj_explain_extent(const struct tj_explain_plan *p, tj_ref n, uint32_t dim, char *buf, size_t cap) {
    const struct tj_entry *e = p->entry;
    return e->plan && e->ctx->backend->extent && e->ctx->backend->extent(e->plan, n, dim, buf, cap);
}

const char *tj_explain_type(const struct tj_explain_plan *p, tj_ref n, char *buf, size_t cap) {
    const struct tj_trace *t = &p->entry->trace;
    const struct tj_node *d = &t->nodes[n];
    const int64_t *dims = tj_shape_dims(t, d->shape);
    size_t rank = tj_shape_rank(t, d->shape), at = (size_t)snprintf(buf, cap, "%s[", tj_dtypes[d->dtype].name);
    for (size_t i = 0; i < rank && at < cap; i++) {
        char symbol[80];
        bool symbolic = tj_explain_extent(p, n, (uint32_t)i, symbol, sizeof symbol);
        at += (size_t)snprintf(buf + at, cap - at, "%s%s%s%lld", i ? ", " : "", symbolic ? symbol : "",
                               symbolic ? "=" : "", (long long)dims[i]);
    }
    if (at < cap)
        (void)snprintf(buf + at, cap - at, "]");
    return buf;
}

uint64_t tj_explain_bytes(const struct tj_trace *t, tj_ref n) {
    const struct tj_node *d = &t->nodes[n];
    int64_t numel;
    size_t bytes;
    if (!tj_numel(tj_shape_dims(t, d->shape), tj_shape_rank(t, d->shape), &numel) ||
        !tj_tensor_bytes((tj_dtype)d->dtype, numel, &bytes))
        return 0;
    return bytes;
}

bool tj_explain_is_op(const struct tj_trace *t, tj_ref n) { return tj_ops[t->nodes[n].op].cls != TJ_SOURCE; }

const char *tj_explain_leaf(const struct tj_trace *t, uint32_t leaf, char *buf, size_t cap) {
    const struct tj_leaf_key *k = &t->leafkeys[leaf];
    uint32_t number = 0;
    if (k->input) {
        (void)snprintf(buf, cap, "input %u", k->input - 1);
        return buf;
    }
    for (uint32_t i = 0; i < leaf; i++)
        number += !t->leafkeys[i].input;
    (void)snprintf(buf, cap, k->flags & TJ_LEAF_CARRIED ? "value %u kept across the break" : "captured tensor %u",
                   number);
    return buf;
}

const char *tj_explain_quantity(uint64_t n, const char *unit, char *buf, size_t cap) {
    static const char *const steps[] = {"", "k", "M", "G", "T", "P"};
    double v = (double)n;
    size_t s = 0;
    for (; v >= 1000 && s + 1 < TJ_COUNT(steps); s++)
        v /= 1000;
    (void)snprintf(buf, cap, s && v < 100 ? "%.1f %s%s" : "%.0f %s%s", v, steps[s], unit);
    return buf;
}

const char *tj_explain_time(double ns, char *buf, size_t cap) {
    if (ns < 1e3)
        (void)snprintf(buf, cap, "%.0f ns", ns);
    else if (ns < 1e6)
        (void)snprintf(buf, cap, "%.*f us", ns < 1e5 ? 1 : 0, ns / 1e3);
    else
        (void)snprintf(buf, cap, "%.*f ms", ns < 1e8 ? 1 : 0, ns / 1e6);
    return buf;
}

// ---- gathering ------------------------------------------------------------------------------------------------------

#define SMALL_NS 25000.0 // kernels that take less aren't spread over threads

static const struct tj_ceiling *ceiling(trace_context *ctx) {
    const struct tj_ceiling *c = atomic_load_explicit(&ctx->ceiling, memory_order_acquire);
    if (c)
        return c;
    struct tj_ceiling *fresh = tj_malloc(sizeof *fresh), *none = NULL;
    if (!fresh || !tj_ceiling_measure(ctx->pool, &ctx->cpu, fresh)) {
        tj_free(fresh);
        return NULL;
    }
    if (!atomic_compare_exchange_strong(&ctx->ceiling, &none, fresh)) { // another thread asked, too
        tj_free(fresh);
        return none;
    }
    return fresh;
}

// Bytes of intermediates that the kernel computes on the way: written once, read by each of its users there.
static uint64_t saved(const struct tj_explain_plan *p, const struct tj_kernel_report *k, uint32_t number) {
    const struct tj_trace *t = &p->entry->trace;
    uint64_t total = 0;
    for (uint32_t i = 0; i < k->nops; i++) {
        tj_ref n = k->ops[i];
        if (p->kept_of[n] == UINT32_MAX && tj_ops[t->nodes[n].op].cls != TJ_VIEW && p->kernel_of[n] == number)
            total += tj_explain_bytes(t, n);
        const tj_ref *in = tj_node_in(t, &t->nodes[n]);
        for (uint32_t a = 0; a < t->nodes[n].nin; a++) {
            tj_ref o = in[a];
            while (tj_ops[t->nodes[o].op].cls == TJ_VIEW) // looks at what it is a view of
                o = tj_node_in(t, &t->nodes[o])[0];
            bool here = tj_explain_is_op(t, o) && p->kept_of[o] == UINT32_MAX && p->kernel_of[o] != UINT32_MAX;
            if (here && tj_ops[t->nodes[n].op].cls != TJ_VIEW)
                total += tj_explain_bytes(t, o);
        }
    }
    return total;
}

static void ideal(const struct tj_ceiling *c, struct tj_explain_kernel *k) {
    if (!c)
        return;
    uint64_t bytes = k->r->runs ? k->r->timed_bytes : k->r->bytes_read + k->r->bytes_written;
    uint64_t flops = k->r->runs ? k->r->timed_flops : k->r->flops;
    for (int all = 0; all < 2; all++) {
        double memory = (double)bytes / tj_ceiling_copy(c, bytes, all);
        double compute = (double)flops / (c->fma[all] * (k->r->f64 ? 0.5 : 1));
        k->compute = compute > memory;
        k->ideal_ns = k->compute ? compute : memory;
        k->all_threads = all && c->threads > 1;
        if (k->ideal_ns < SMALL_NS)
            return;
    }
}

enum { CODE_PLANS = 4 }; // of a region whose code is shown

static uint64_t timed(const struct tj_explain_plan *p) { return p->report.nkernels ? p->report.kernels[0].runs : 0; }

bool tj_explain_hot(const struct tj_explain_region *g, uint32_t plan, uint32_t n) {
    const struct tj_explain_plan *p = &g->plans[plan];
    uint32_t hotter = 0;
    for (uint32_t i = 0; i < g->nplans; i++) {
        const struct tj_explain_plan *o = &g->plans[i];
        bool alike = timed(o) == timed(p);
        hotter += timed(o) > timed(p) || (alike && (o->hits > p->hits || (o->hits == p->hits && i < plan)));
    }
    return hotter < n;
}

static tj_status gather_code(struct tj_explain *x, struct tj_explain_plan *p) {
    const struct tj_backend *b = x->ctx->backend;
    for (uint32_t i = 0; b->code && i < p->report.nkernels; i++) {
        if (!b->code(p->entry->plan, i, &p->kernels[i].code))
            continue;
        p->kernels[i].no_code = tj_arena_strdup(&x->arena, tj_last_error());
        p->kernels[i].code = NULL;
    }
    return x->arena.failed ? TRACE_ERR_MEMORY : TRACE_OK;
}

static tj_status gather_plan(struct tj_explain *x, struct tj_explain_plan *p) {
    struct tj_entry *e = p->entry;
    const struct tj_backend *b = x->ctx->backend;
    const struct tj_trace *t = &e->trace;
    p->kernel_of = TJ_ARENA_NEW(&x->arena, uint32_t, t->nnodes + 1);
    p->kept_of = TJ_ARENA_NEW(&x->arena, uint32_t, t->nnodes + 1);
    if (x->arena.failed)
        return TRACE_ERR_MEMORY;
    for (uint32_t i = 0; i < t->nnodes; i++)
        p->kernel_of[i] = p->kept_of[i] = UINT32_MAX;
    if (!e->plan || !b->report)
        return TRACE_OK;
    tj_status st = b->report(e->plan, &x->arena, &p->report);
    if (st)
        return st;
    p->reported = true;
    p->kernels = TJ_ARENA_NEW(&x->arena, struct tj_explain_kernel, p->report.nkernels + 1);
    if (x->arena.failed)
        return TRACE_ERR_MEMORY;
    for (uint32_t i = 0; i < p->report.nkept; i++) {
        if (p->report.kept[i].node < t->nnodes)
            p->kept_of[p->report.kept[i].node] = i;
    }
    for (uint32_t i = p->report.nkernels; i-- > 0;) {
        const struct tj_kernel_report *k = &p->report.kernels[i];
        for (uint32_t o = 0; o < k->nops; o++)
            p->kernel_of[k->ops[o]] = i;
    }
    for (uint32_t i = 0; i < p->report.nkernels; i++) {
        p->kernels[i].r = &p->report.kernels[i];
        p->kernels[i].saved = saved(p, p->kernels[i].r, i);
        ideal(x->ceiling, &p->kernels[i]);
    }
    return x->arena.failed ? TRACE_ERR_MEMORY : TRACE_OK;
}

static const char *keep(struct tj_explain *x, const char *s) { return s ? tj_arena_strdup(&x->arena, s) : NULL; }

static double since(const struct trace_region *r, uint64_t ns) {
    return ns > r->born_ns ? (double)(ns - r->born_ns) / 1e6 : 0;
}

// What is in the region's table now, copied under its lock; plans by reference.
static void gather_table(struct tj_explain *x, struct tj_explain_region *g) {
    struct tj_cache *c = &g->region->cache;
    tj_lock(&c->lock);
    uint32_t sites = 0;
    for (const struct tj_break_site *b = c->sites; b; b = b->next)
        sites++;
    g->plans = TJ_ARENA_NEW(&x->arena, struct tj_explain_plan, c->n + 1);
    g->breaks = TJ_ARENA_NEW(&x->arena, struct tj_explain_break, sites + 1);
    g->recompiles = TJ_ARENA_NEW(&x->arena, struct tj_explain_recompile, TJ_REASONS);
    for (uint32_t i = 0; !x->arena.failed && i < c->n; i++) {
        struct tj_entry *e = c->ring[i];
        if (atomic_load(&e->state) != TJ_E_READY)
            continue;
        (void)atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
        // The ring is a clock's; here they are in the order they were made.
        uint32_t at = g->nplans++;
        for (; at > 0 && g->plans[at - 1].entry->made_ns > e->made_ns; at--)
            g->plans[at] = g->plans[at - 1];
        g->plans[at] = (struct tj_explain_plan){.entry = e,
                                                .hits = atomic_load_explicit(&e->hits, memory_order_relaxed),
                                                .why = keep(x, e->why),
                                                .where = keep(x, e->where),
                                                .at_ms = since(g->region, e->made_ns)};
    }
    for (uint32_t i = 0; i < g->nplans; i++)
        g->plans[i].number = i;
    for (const struct tj_break_site *b = c->sites; !x->arena.failed && b; b = b->next) {
        struct tj_explain_break *o = &g->breaks[sites - 1 - g->nbreaks++]; // the list has the latest first
        *o = (struct tj_explain_break){.kind = b->kind,
                                       .where = keep(x, b->where),
                                       .op = keep(x, b->op ? b->op : b->kind),
                                       .made = keep(x, b->made),
                                       .remedy = keep(x, b->remedy ? b->remedy : "read it after trace_end"),
                                       .count = atomic_load_explicit(&b->count, memory_order_relaxed),
                                       .ns = atomic_load_explicit(&b->ns, memory_order_relaxed),
                                       .lint = b->lint};
    }
    g->recompiles_before = c->nreasons > TJ_REASONS ? c->nreasons - TJ_REASONS : 0;
    for (uint64_t i = g->recompiles_before; !x->arena.failed && i < c->nreasons; i++) {
        const struct tj_reason *q = &c->reasons[i % TJ_REASONS];
        g->recompiles[g->nrecompiles++] =
            (struct tj_explain_recompile){.text = keep(x, q->text ? q->text : "reason lost, out of memory"),
                                          .where = keep(x, q->where),
                                          .input = q->input,
                                          .dim = q->dim,
                                          .from = q->from,
                                          .to = q->to,
                                          .ms = q->ms,
                                          .at_ms = since(g->region, q->at_ns)};
    }
    tj_unlock(&c->lock);
}

// A reference to a region of the context's list, unless its last one is just going.
static bool hold(struct trace_region *r) {
    int n = atomic_load(&r->refs);
    while (n > 0 && !atomic_compare_exchange_weak(&r->refs, &n, n + 1))
        continue;
    return n > 0;
}

static tj_status gather(trace_context *ctx, struct trace_region *r, bool code, struct tj_explain *x) {
    x->ceiling = ceiling(ctx);
    tj_lock(&ctx->lock);
    uint32_t n = r ? 1 : 0;
    for (struct trace_region *i = ctx->regions; !r && i; i = i->next)
        n++;
    x->regions = TJ_ARENA_NEW(&x->arena, struct tj_explain_region, n + 1);
    if (!x->arena.failed && r) {
        x->regions[x->nregions++].region = r;
    } else if (!x->arena.failed) {
        for (struct trace_region *i = ctx->regions; i; i = i->next) {
            if (hold(i)) {
                x->regions[x->nregions].held = true;
                x->regions[x->nregions++].region = i;
            }
        }
        for (uint32_t i = 0; i < x->nregions / 2; i++) { // the list has the youngest first
            struct tj_explain_region swap = x->regions[i];
            x->regions[i] = x->regions[x->nregions - 1 - i];
            x->regions[x->nregions - 1 - i] = swap;
        }
        x->stats = (trace_stats){.size = sizeof x->stats};
        tj_context_stats_locked(ctx, &x->stats);
    }
    for (uint32_t i = 0; i < x->nregions; i++) {
        x->regions[i].stats = (trace_stats){.size = sizeof(trace_stats)};
        tj_region_stats_locked(x->regions[i].region, &x->regions[i].stats);
        x->regions[i].profiled = atomic_load_explicit(&x->regions[i].region->profiled, memory_order_relaxed);
    }
    tj_compiler_text(ctx, x->compiler, sizeof x->compiler);
    tj_unlock(&ctx->lock);
    for (uint32_t i = 0; i < x->nregions; i++) {
        gather_table(x, &x->regions[i]);
        if (!tj_profile_read(x->regions[i].region, &x->regions[i].shapes))
            return TRACE_ERR_MEMORY;
    }
    tj_status st = x->arena.failed ? TRACE_ERR_MEMORY : TRACE_OK;
    for (uint32_t i = 0; !st && i < x->nregions; i++) {
        struct tj_explain_region *g = &x->regions[i];
        for (uint32_t p = 0; !st && p < g->nplans; p++)
            st = gather_plan(x, &g->plans[p]);
        for (uint32_t p = 0; !st && code && p < g->nplans; p++) {
            if (tj_explain_hot(g, p, CODE_PLANS))
                st = gather_code(x, &g->plans[p]);
        }
    }
    return st;
}

tj_status tj_explain_gather(trace_context *ctx, struct trace_region *r, bool code, struct tj_explain *x) {
    *x = (struct tj_explain){.ctx = ctx, .whole_context = !r};
    tj_status st = gather(ctx, r, code, x);
    return st ? tj_fail(st, "out of memory for a report") : TRACE_OK;
}

void tj_explain_free(struct tj_explain *x) {
    for (uint32_t i = 0; i < x->nregions; i++) {
        for (uint32_t p = 0; p < x->regions[i].nplans; p++)
            tj_entry_put(x->regions[i].plans[p].entry);
        tj_profile_view_free(&x->regions[i].shapes);
        if (x->regions[i].held)
            tj_region_drop(x->regions[i].region);
    }
    tj_arena_free(&x->arena);
}

tj_status tj_report_out(struct tj_strbuf *sb, const char *call, char *buf, size_t cap, size_t *need) {
    if (sb->failed) {
        tj_sb_free(sb);
        return tj_fail(TRACE_ERR_MEMORY, "%s: out of memory", call);
    }
    size_t wanted = sb->n, n = wanted < cap ? wanted : cap ? cap - 1 : 0;
    if (need)
        *need = wanted;
    if (n)
        memcpy(buf, sb->s, n);
    if (cap)
        buf[n] = '\0';
    tj_sb_free(sb);
    if (wanted >= cap)
        return tj_fail(TRACE_ERR_MEMORY, "%s: %zu bytes of room, %zu are needed", call, cap, wanted + 1);
    return TRACE_OK;
}

tj_status trace_region_profile(trace_region *r, bool on) {
    if (!r)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_profile: the region is NULL");
    atomic_store_explicit(&r->profiled, on, memory_order_relaxed);
    return TRACE_OK;
}
