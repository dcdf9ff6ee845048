// trace/cache.c: plan tables of a region: finding, making, evicting plans.
//
// A steady run finds its plan in its own run object (hints), compares the signature byte by byte, and touches no memory
// that other threads write. Otherwise the table is searched under a lock held for the search alone; a signature that
// nobody has met is entered as COMPILING, made without the lock, and whoever asks for it meanwhile waits for that.
#include <errno.h>
#include <stdio.h>

#include "../lib/hash.h"
#include "../lib/strbuf.h"
#include "reason.h"
#include "timeline.h"

#define LIKELY 256 // plans compared with a new one for the reason of its making
#define SITE_BUCKETS 512
#define RECORDS_A_GRAPH 4   // learned records kept a plan allowed
#define ATTEMPTS 3          // times a signature is tried whose maker failed for want of memory
#define SYMBOLIC_ATTEMPTS 4 // times a symbolic plan is looked for or made, before an exact one

// ---- table ----------------------------------------------------------------------------------------------------------

tj_status tj_cache_init(struct tj_cache *c, uint32_t max) {
    memset(c, 0, sizeof *c);
    c->max = max;
    c->nbuckets = 16;
    while (c->nbuckets < 2 * max && c->nbuckets < 1u << 20)
        c->nbuckets *= 2;
    c->buckets = tj_calloc(c->nbuckets, sizeof *c->buckets);
    c->families = tj_calloc(c->nbuckets, sizeof *c->families);
    c->records = tj_calloc(c->nbuckets, sizeof *c->records);
    if (c->buckets && c->families && c->records)
        return TRACE_OK;
    tj_free(c->buckets);
    tj_free(c->families);
    tj_free(c->records);
    return tj_fail(TRACE_ERR_MEMORY, "trace_region_create: out of memory for the plan table");
}

static void chain_relative(struct tj_cache *c, struct tj_entry *e) {
    struct tj_entry **family = &c->families[e->family & (c->nbuckets - 1)];
    if (!e->family) // nobody looks for relatives
        return;
    e->next_relative = *family;
    *family = e;
}

// Before ring and buckets are changed: in a child of fork, what a thread of the parent was changing is made whole. An
// entry is in the buckets or not, by one store; the ring is made from them anew (the old one may be freed). The lock is
// held.
static void make_whole(struct tj_cache *c) {
    if (TJ_LIKELY(c->process == tj_process()))
        return;
    bool forked = c->process != 0, ok = true;
    c->process = tj_process();
    if (!forked)
        return;
    c->ring = NULL;
    c->n = c->capring = c->hand = 0;
    memset(c->families, 0, c->nbuckets * sizeof *c->families);
    for (uint32_t i = 0; i < c->nbuckets; i++) {
        for (struct tj_entry *e = c->buckets[i]; e && ok; e = e->next) {
            chain_relative(c, e);
            ok = tj_grow((void **)&c->ring, &c->capring, c->n + 1, sizeof *c->ring);
            if (ok)
                c->ring[c->n++] = e;
        }
    }
    if (!ok) { // no memory: what was there is lost
        memset(c->buckets, 0, c->nbuckets * sizeof *c->buckets);
        memset(c->families, 0, c->nbuckets * sizeof *c->families);
        c->n = 0;
    }
}

static void entry_free(struct tj_entry *e) {
    if (e->plan)
        e->ctx->backend->release(e->plan);
    for (uint32_t i = 0; i < e->nfiles; i++)
        tj_free(e->files[i]);
    tj_free(e->files);
    tj_free(e->why);
    tj_free(e->where);
    tj_dynamic_free(&e->dyn);
    tj_trace_free(&e->trace);
    tj_free((void *)(uintptr_t)e->seg.outs);
    tj_free((void *)(uintptr_t)e->seg.writes);
    tj_free(e);
}

void tj_entry_put(struct tj_entry *e) {
    if (e && atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) == 1)
        entry_free(e);
}

static void learned_free(struct tj_learned *l) {
    tj_trace_free(&l->trace);
    tj_free(l->writes);
    tj_free((void *)(uintptr_t)l->used);
    tj_free(l);
}

void tj_learned_put(struct tj_learned *l) {
    if (l && atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) == 1)
        learned_free(l);
}

void tj_cache_free(struct tj_cache *c) {
    make_whole(c);
    for (uint32_t i = 0; i < c->n; i++)
        tj_entry_put(c->ring[i]);
    for (uint32_t i = 0; i < c->nbuckets; i++) {
        for (struct tj_learned *l = c->records[i], *next; l; l = next) {
            next = l->next;
            tj_learned_put(l);
        }
    }
    for (struct tj_break_site *s = c->sites, *next; s; s = next) {
        next = s->next;
        tj_free(s->where);
        tj_free(s->op);
        tj_free(s->made);
        tj_free(s->remedy);
        tj_free(s);
    }
    for (size_t i = 0; i < TJ_REASONS; i++) {
        tj_free(c->reasons[i].text);
        tj_free(c->reasons[i].where);
    }
    tj_free(c->sitetab);
    tj_free(c->ring);
    tj_free(c->buckets);
    tj_free(c->families);
    tj_free(c->records);
}

// ---- signatures -----------------------------------------------------------------------------------------------------

static uint64_t refs_hash(const tj_ref *a, uint32_t n, uint64_t h) { return tj_hash_bytes(a, n * sizeof *a, h); }

static uint64_t outs_hash(const struct tj_segment *s, uint64_t h) {
    for (uint32_t i = 0; i < s->ncaps; i++)
        h = tj_hash_mix(h, (uint64_t)s->caps[i].size);
    return refs_hash(s->writes, s->nwrites, refs_hash(s->outs, s->nouts, h));
}

static uint64_t segment_hash(const struct tj_segment *s) {
    return tj_hash_collide ? 0 : outs_hash(s, tj_trace_hash(s->trace));
}

static uint64_t family_hash(const struct tj_segment *s) {
    return !s->symbolic ? 0 : tj_hash_collide ? 1 : outs_hash(s, tj_trace_alike_hash(s->trace)) | 1;
}

bool tj_same_refs(const tj_ref *a, uint32_t na, const tj_ref *b, uint32_t nb) {
    return na == nb && (na == 0 || !memcmp(a, b, na * sizeof *a));
}

static bool same_outs(const struct tj_segment *a, const struct tj_segment *b) {
    if (a->ncaps != b->ncaps)
        return false;
    for (uint32_t i = 0; i < a->ncaps; i++) {
        if (a->caps[i].leaf != b->caps[i].leaf || a->caps[i].dim != b->caps[i].dim ||
            a->caps[i].size != b->caps[i].size)
            return false;
    }
    return tj_same_refs(a->outs, a->nouts, b->outs, b->nouts) &&
           tj_same_refs(a->writes, a->nwrites, b->writes, b->nwrites) && a->math == b->math &&
           a->precision == b->precision && a->threads == b->threads && a->symbolic == b->symbolic;
}

bool tj_relatives(const struct tj_entry *e, const struct tj_segment *s) {
    return same_outs(&e->seg, s) && tj_trace_alike(&e->trace, s->trace);
}

// Whether an entry (READY, if it is symbolic) serves the segment.
static bool matches(const struct tj_entry *e, const struct tj_segment *s) {
    if (!e->symbolic)
        return same_outs(&e->seg, s) && tj_trace_equal(&e->trace, s->trace);
    if (!tj_relatives(e, s) || atomic_load(&e->state) != TJ_E_READY)
        return false;
    if (!e->plan) // the interpreter serves all sizes
        return tj_dynamic_covers(&e->dyn, &e->trace, s->trace);
    return e->ctx->backend->serves(e->plan, s->trace, NULL);
}

// ---- places and relatives ------------------------------------------------------------------------------------------

static uint64_t site_key(const struct tj_site *s) {
    uint64_t h = tj_hash_bytes(s->kind, strlen(s->kind), s->first ? 1 : 2);
    // trace_end may be called in several places for one region: all are its end.
    if (strcmp(s->kind, "end") && s->loc.file)
        h = tj_hash_bytes(s->loc.file, strlen(s->loc.file), h + (uint64_t)s->loc.line);
    return h;
}

// The table's most similar READY entry of the same site, with a reference: of the LIKELY youngest, which are in the
// ring before the hand. Called with the lock held.
static struct tj_entry *nearest(struct tj_cache *c, uint64_t site, const struct tj_segment *s) {
    struct tj_entry *best = NULL;
    uint64_t best_score = 0;
    bool all_of_them = c->n <= LIKELY;
    for (uint32_t i = 0, n = all_of_them ? c->n : LIKELY, from = all_of_them ? 0 : c->hand + c->n - LIKELY; i < n;
         i++) {
        struct tj_entry *e = c->ring[(from + i) % c->n];
        if (e->site_key != site || atomic_load(&e->state) != TJ_E_READY)
            continue;
        uint64_t ops = tj_common_ops(&e->trace, s->trace);
        bool all = ops == e->trace.nnodes && ops == s->trace->nnodes;
        uint64_t score = all ? ((uint64_t)1 << 40) - tj_leaf_distance(&e->trace, s->trace) : ops + 1;
        if (all && e->symbolic && tj_relatives(e, s)) // its guard is the reason, not sizes it would take
            score += (uint64_t)1 << 41;
        if (score >= best_score) { // the youngest of equals
            best = e;
            best_score = score;
        }
    }
    if (best)
        (void)atomic_fetch_add_explicit(&best->refs, 1, memory_order_relaxed);
    return best;
}

// ---- eviction -------------------------------------------------------------------------------------------------------

static void unchain(struct tj_cache *c, struct tj_entry *e) {
    struct tj_entry **p = &c->buckets[e->hash & (c->nbuckets - 1)];
    while (*p && *p != e)
        p = &(*p)->next;
    if (*p)
        *p = e->next;
    p = &c->families[e->family & (c->nbuckets - 1)];
    while (e->family && *p && *p != e)
        p = &(*p)->next_relative;
    if (e->family && *p)
        *p = e->next_relative;
}

// Takes the coldest entry out of the ring and table: a clock hand halves the credit that hits gave, and stops at an
// entry without any. The lock is held. The table's reference is the caller's; NULL: all are being compiled.
static struct tj_entry *evict(struct tj_cache *c) {
    make_whole(c);
    for (uint32_t turns = 0; c->n && turns < 10 * c->n; turns++) {
        if (c->hand >= c->n)
            c->hand = 0;
        struct tj_entry *e = c->ring[c->hand];
        unsigned credit = atomic_load_explicit(&e->credit, memory_order_relaxed);
        if (atomic_load(&e->state) != TJ_E_READY || credit) {
            atomic_store_explicit(&e->credit, (uint8_t)(credit / 2), memory_order_relaxed);
            c->hand++;
            continue;
        }
        unchain(c, e);
        memmove(&c->ring[c->hand], &c->ring[c->hand + 1], (c->n - c->hand - 1) * sizeof *c->ring);
        c->n--;
        atomic_store(&e->evicted, true);
        (void)atomic_fetch_sub(&c->code, e->info.bytes_code);
        return e;
    }
    return NULL;
}

static void report_evicted(struct trace_region *r, struct tj_entry *e, const char *why) {
    (void)TJ_COUNT_UP(&r->count, evictions, 1);
    tj_budget_dropped(r, e->info.bytes_code);
    tj_event(r->ctx, r, TRACE_EVENT_EVICT, TJ_LOC(NULL, 0), -1, -1, (int64_t)e->info.bytes_code, 0, e->ms,
             "a plan of %u ops (%s, %llu hits) was dropped: %s", e->trace.nnodes, e->site,
             (unsigned long long)atomic_load_explicit(&e->hits, memory_order_relaxed), why);
    tj_region_forget(r, e);
    tj_entry_put(e);
}

// What has to go for the limits of the context: text into why. False: nothing. ctx->lock is held.
static bool over_limit(trace_context *ctx, int *what, char *why, size_t cap) {
    *what = TRACE_BUDGET_CODE_BYTES;
    (void)snprintf(why, cap, "code_limit of %zu bytes", ctx->opt.code_limit);
    if (atomic_load(&ctx->budget.used[TRACE_BUDGET_CODE_BYTES]) > (int64_t)ctx->opt.code_limit)
        return true;
    if (!tj_budget_exceeded(&ctx->budget, what))
        return false;
    (void)snprintf(why, cap, "the context's budget of %lld %s", (long long)atomic_load(&ctx->budget.limit[*what]),
                   tj_budget_name(*what));
    return true;
}

// Drops cold plans until r keeps its budget, then those of the region that holds most, until the context keeps its
// limits.
static void enforce_limits(struct trace_region *r, const struct tj_entry *keep) {
    trace_context *ctx = r->ctx;
    char why[120];
    for (unsigned rounds = 0; rounds < 100000; rounds++) {
        struct tj_entry *victim = NULL;
        struct trace_region *from = r;
        int what;
        tj_lock(&ctx->lock);
        if (tj_budget_exceeded(&r->budget, &what)) {
            (void)snprintf(why, sizeof why, "the region's budget of %lld %s",
                           (long long)atomic_load(&r->budget.limit[what]), tj_budget_name(what));
        } else if (over_limit(ctx, &what, why, sizeof why)) {
            int64_t most = 0; // of those that have a plan to spare and are not on their way out
            from = NULL;
            for (struct trace_region *o = ctx->eager; o; o = o == ctx->eager ? ctx->regions : o->next) {
                int64_t used = atomic_load(&o->budget.used[what]);
                if (atomic_load(&o->budget.used[TRACE_BUDGET_GRAPHS]) > 1 && atomic_load(&o->refs) > 0 &&
                    (!from || used > most)) {
                    most = used;
                    from = o;
                }
            }
        } else {
            from = NULL;
        }
        // A region whose last reference has gone is on its way out of the list, and its plans with it.
        if (from && !tj_region_retain_live(from))
            from = NULL;
        if (from) {
            tj_lock(&from->cache.lock);
            if (from->cache.n > 1)
                victim = evict(&from->cache);
            tj_unlock(&from->cache.lock);
        }
        tj_unlock(&ctx->lock);
        bool done = !victim || victim == keep;
        if (victim)
            report_evicted(from, victim, why);
        if (from)
            tj_region_drop(from);
        if (done)
            return;
    }
}

// ---- making plans ---------------------------------------------------------------------------------------------------

// The entry's own copies of file names: host code may be unloaded.
static bool own_files(struct tj_entry *e) {
    const char *seen = NULL, *copy = NULL;
    uint32_t cap = 0;
    for (uint32_t i = 0; i < e->trace.nnodes; i++) {
        const char *f = e->trace.locs[i].file;
        if (!f)
            continue;
        if (f != seen) {
            copy = NULL;
            for (uint32_t k = 0; k < e->nfiles && !copy; k++) {
                if (!strcmp(e->files[k], f))
                    copy = e->files[k];
            }
            if (!copy) {
                if (!tj_grow((void **)&e->files, &cap, e->nfiles + 1, sizeof *e->files))
                    return false;
                char *own = tj_strdup(f);
                if (!own)
                    return false;
                e->files[e->nfiles++] = own;
                copy = own;
            }
            seen = f;
        }
        e->trace.locs[i].file = copy;
    }
    return true;
}

static tj_ref *copy_refs(const tj_ref *a, uint32_t n) {
    tj_ref *p = tj_malloc(n * sizeof *p);
    if (p && n)
        memcpy(p, a, n * sizeof *p);
    return p;
}

static struct tj_entry *entry_new(struct tj_box *b, const struct tj_segment *s, const struct tj_site *site,
                                  bool trimmed, uint64_t hash, uint64_t family) {
    struct tj_entry *e = tj_calloc(1, sizeof *e);
    char where[64];
    if (!e)
        return NULL;
    tj_trace_init(&e->trace);
    atomic_init(&e->refs, 2); // the table's and the caller's
    atomic_init(&e->state, TJ_E_COMPILING);
    e->process = tj_process();
    e->maker = &tj_current;
    e->asked_ns = tj_now_ns();
    e->ctx = b->run.ctx;
    e->hash = hash;
    e->family = family;
    e->reason = (struct tj_recompile){.input = -1, .dim = -1};
    e->seg = *s;
    e->seg.dyn = NULL;
    e->seg.caps = e->caps;
    if (s->ncaps)
        memcpy(e->caps, s->caps, s->ncaps * sizeof *s->caps);
    e->seg.trace = &e->trace;
    e->seg.outs = copy_refs(s->outs, s->nouts);
    e->seg.writes = copy_refs(s->writes, s->nwrites);
    e->site_key = site->like ? site->like->site_key : site_key(site);
    e->declared = b->declared;
    e->trimmed = trimmed;
    if (site->like)
        memcpy(e->site, site->like->site, sizeof e->site);
    else if (!strcmp(site->kind, "end") || !site->loc.file)
        (void)snprintf(e->site, sizeof e->site, "%s", site->kind);
    else
        (void)snprintf(e->site, sizeof e->site, "%s at %s", site->kind, tj_loc_text(site->loc, where, sizeof where));
    if (!e->seg.outs || !e->seg.writes || !tj_trace_copy(&e->trace, s->trace) || !own_files(e) ||
        (family && !tj_dynamic_init(&e->dyn, s->trace))) {
        entry_free(e);
        return NULL;
    }
    return e;
}

static void dump_trace(struct trace_region *r, const struct tj_entry *e) {
    const struct tj_env *env = &r->ctx->env;
    if (!env->dump[0] && !tj_env_logs(env, TJ_LOG_TRACE))
        return;
    struct tj_strbuf sb = {0};
    tj_trace_dump(&e->trace, e->seg.outs, e->seg.nouts, &sb);
    char name[128];
    (void)snprintf(name, sizeof name, "%.80s-%u.trace.txt", r->hidden ? "eager" : r->name,
                   atomic_fetch_add_explicit(&r->serial, 1, memory_order_relaxed));
    if (sb.s) {
        tj_dump(env, name, sb.s, sb.n);
        tj_log(env, TJ_LOG_TRACE, "%s:\n%s", name, sb.s);
    }
    tj_sb_free(&sb);
}

// Why entry e was made, for its own report and the region's.
static void keep_reason(struct tj_cache *c, struct tj_entry *e, const struct tj_recompile *why, struct tj_loc loc) {
    char where[300];
    (void)tj_loc_text(loc, where, sizeof where);
    struct tj_reason fresh = {
        tj_strdup(why->text), tj_strdup(where), why->input, why->dim, why->from, why->to, e->ms, e->made_ns};
    char *text = tj_strdup(why->text), *place = tj_strdup(where);
    tj_lock(&c->lock);
    struct tj_reason *slot = &c->reasons[c->nreasons++ % TJ_REASONS], old = *slot;
    *slot = fresh;
    e->why = text;
    e->where = place;
    tj_unlock(&c->lock);
    tj_free(old.text);
    tj_free(old.where);
}

static void count_made(struct tj_counters *c, const struct tj_entry *e) {
    (void)TJ_COUNT_UP(c, graphs, 1);
    (void)TJ_COUNT_UP(c, kernels, e->info.new_kernels);
    (void)TJ_COUNT_UP(c, fused_away, e->info.fused_away);
    (void)TJ_COUNT_UP(c, schedule_ns, e->info.schedule_ns);
    (void)TJ_COUNT_UP(c, emit_ns, e->info.emit_ns);
    (void)TJ_COUNT_UP(c, codegen_ns, e->info.codegen_ns);
}

// Tells a new plan. similar: the entry that nearly served, or NULL.
static void report_made(struct trace_region *r, struct tj_counters *c, struct tj_entry *e, const struct tj_site *site,
                        const struct tj_entry *similar) {
    char ops[100];
    (void)snprintf(ops, sizeof ops, "%u ops in %u kernels", e->trace.nnodes - e->trace.nleaves - e->trace.nparams,
                   e->info.kernels);
    if (!e->plan)
        (void)snprintf(ops, sizeof ops, "%u ops, interpreted", e->trace.nnodes - e->trace.nleaves - e->trace.nparams);
    struct tj_recompile why = e->reason;
    if (e->symbolic && similar && (similar->symbolic ? why.varies : why.dim >= 0))
        (void)snprintf(why.text + strlen(why.text), sizeof why.text - strlen(why.text), "; a symbol from now on");
    if (site->ahead) {
        tj_event(r->ctx, r, TRACE_EVENT_COMPILE, site->loc, why.input, why.dim, why.from, why.to, e->ms,
                 "warm-up%s%s (%s): %s", why.text[0] ? ": " : "", why.text, e->site, ops);
        return;
    }
    if (!similar || e->trimmed) {
        tj_event(r->ctx, r, TRACE_EVENT_COMPILE, site->loc, -1, -1, 0, 0, e->ms, "%s (%s): %s",
                 r->hidden    ? "single op"
                 : e->trimmed ? "stores across the break only what was used"
                              : "first graph",
                 e->site, ops);
        return;
    }
    (void)TJ_COUNT_UP(c, recompiles, 1);
    keep_reason(&r->cache, e, &why, site->loc);
    tj_event(r->ctx, r, TRACE_EVENT_RECOMPILE, site->loc, why.input, why.dim, why.from, why.to, e->ms, "%s (%s): %s",
             why.text, e->site, ops);
}

// Compiles an entry that is in the table as COMPILING. The interpreter takes over where the compiler can't.
static tj_status compile(struct trace_region *r, struct tj_entry *e, const struct tj_leaf *leaves, char *text) {
    trace_context *ctx = r->ctx;
    tj_status st = TRACE_OK;
    uint64_t t0 = tj_now_ns();
    text[0] = '\0';
    if (tj_context_no_thread(ctx)) {
        st = TRACE_ERR_BUSY;
    } else if (tj_context_backend(ctx, r)) {
        // Only the maker reads leaves and parameters: hints of strides and values.
        struct tj_trace t = e->trace;
        struct tj_segment seg = e->seg;
        struct tj_plan *plan = NULL;
        struct tj_leaf *shadows = NULL;
        if (e->shadowed && !tj_shadow_leaves(&t, &shadows)) {
            (void)snprintf(text, TJ_ERROR_MAX, "out of memory for a plan");
            return TRACE_ERR_MEMORY;
        }
        t.leaves = shadows ? shadows : (struct tj_leaf *)(uintptr_t)leaves;
        seg.trace = &t;
        int saved = errno; // the compiler's own files and streams are no matter of the host's
        st = ctx->backend->compile(ctx->backend_state, &seg, &plan, &e->info);
        errno = saved;
        tj_free(shadows);
        if (!st) {
            e->plan = plan;
            atomic_store_explicit(&r->plan_bytes, e->info.bytes_workspace, memory_order_relaxed);
            uint32_t ops = t.nnodes - t.nleaves - t.nparams;
            uint64_t now = (tj_now_ns() - t0) / (ops ? ops : 1);
            uint64_t old = atomic_load_explicit(&ctx->compile_op_ns, memory_order_relaxed);
            if (e->info.new_kernels)
                atomic_store(&ctx->threadless, false);
            if (e->info.new_kernels)
                atomic_store_explicit(&ctx->compile_op_ns, old ? (3 * old + now) / 4 : now, memory_order_relaxed);
        } else {
            (void)snprintf(text, TJ_ERROR_MAX, "%s", tj_last_error());
            if (st == TRACE_ERR_BUSY)
                tj_context_threadless(ctx, r, text);
        }
    } else if (atomic_load(&ctx->threadless)) {
        st = TRACE_ERR_BUSY;
    }
    if (st == TRACE_ERR_BUSY && !text[0])
        (void)snprintf(text, TJ_ERROR_MAX, "region '%s': no thread can be started to compile on", r->name);
    e->made_ns = tj_now_ns();
    e->ms = (double)(e->made_ns - t0) / 1e6;
    return st;
}

// An entry for the segment, with a reference: ready, or being made and likely to serve it.
static struct tj_entry *find(struct tj_cache *c, const struct tj_segment *s, uint64_t hash, uint64_t family) {
    struct tj_entry *coming = NULL, *e = c->buckets[hash & (c->nbuckets - 1)];
    while (e && !(e->hash == hash && !e->symbolic && matches(e, s)))
        e = e->next;
    if (!e && family) {
        e = c->families[family & (c->nbuckets - 1)];
        while (e && !(e->family == family && e->symbolic && matches(e, s))) {
            if (!coming && e->family == family && e->symbolic && atomic_load(&e->state) == TJ_E_COMPILING &&
                tj_relatives(e, s) && tj_dynamic_covers(&e->dyn, &e->trace, s->trace))
                coming = e;
            e = e->next_relative;
        }
        e = e ? e : coming;
    }
    if (e)
        (void)atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    return e;
}

// ---- which extents become symbols -----------------------------------------------------------------------------------

static bool small_symbol(const struct tj_dynamic *d, const struct tj_trace *t) {
    for (uint32_t i = 0; i < t->nleaves; i++) {
        const int64_t *dims = tj_shape_dims(t, t->leafkeys[i].shape);
        for (uint32_t k = 0; k < t->leafkeys[i].rank; k++) {
            if (d->leaf[i] >> k & 1 && dims[k] < 2)
                return true;
        }
    }
    return false;
}

// Declared or all extents of declared inputs.
static void add_declared(struct tj_dynamic *d, const struct trace_region *r, const struct tj_trace *t, bool all) {
    for (uint32_t i = 0; i < t->nleaves; i++) {
        const struct tj_leaf_key *k = &t->leafkeys[i];
        if (all && (k->input || k->flags & TJ_LEAF_CARRIED)) {
            d->leaf[i] = (uint8_t)((1u << k->rank) - 1);
            d->args = true;
        }
        for (uint32_t n = 0; n < r->nbounds; n++) {
            if (k->input == r->bounds[n].input + 1 && r->bounds[n].dim < k->rank) {
                d->leaf[i] |= (uint8_t)(1u << r->bounds[n].dim);
                d->args = true;
            }
        }
    }
}

// Extents other than 1: what ops outside a region are compiled for.
static void add_all(struct tj_dynamic *d, const struct tj_trace *t) {
    for (uint32_t i = 0; i < t->nleaves + t->nnodes; i++) {
        uint32_t shape = i < t->nleaves ? t->leafkeys[i].shape : t->nodes[i - t->nleaves].shape;
        const int64_t *dims = tj_shape_dims(t, shape);
        bool counts = i < t->nleaves || tj_shape_is_argument(t->nodes[i - t->nleaves].op);
        for (size_t k = 0, rank = tj_shape_rank(t, shape); counts && k < rank; k++)
            d->leaf[i] |= (uint8_t)((dims[k] != 1) << k);
    }
}

// What of a new entry is symbolic: what is declared to be, and what has been seen with another value. A symbol whose
// size is 0 or 1 now is no good hint of how to compile it: the trace of a relative is taken, if there is one that no
// plan was made from yet. False: out of memory. The lock is held.
static bool choose_symbols(struct tj_cache *c, const struct trace_region *r, const struct tj_site *site, bool wide,
                           struct tj_entry *fresh) {
    struct tj_dynamic *d = &fresh->dyn;
    const struct tj_trace *t = &fresh->trace;
    const struct tj_entry *other = NULL;
    bool known = false;
    if (r->hidden)
        add_all(d, t);
    else
        add_declared(d, r, t, wide || r->opt.dynamic == TRACE_DYNAMIC_ON);
    for (uint32_t i = 0; i < fresh->seg.ncaps; i++) {
        d->leaf[fresh->caps[i].leaf] |= (uint8_t)(1u << fresh->caps[i].dim);
        d->args = true;
    }
    if (site->like && site->like->symbolic && tj_trace_alike(&site->like->trace, t))
        tj_dynamic_merge(d, &site->like->dyn, t);
    struct tj_entry *first = c->families[fresh->family & (c->nbuckets - 1)];
    for (struct tj_entry *e = first; e; e = e->next_relative) {
        if (e->family != fresh->family || !tj_relatives(e, &fresh->seg))
            continue;
        tj_dynamic_merge(d, &e->dyn, t);
        tj_dynamic_differ(d, &e->trace, t);
    }
    fresh->symbolic = tj_dynamic_any(d, t);
    if (!fresh->symbolic)
        return true;
    fresh->seg.dyn = d;
    for (struct tj_entry *e = first; e; e = e->next_relative) {
        if (e->family != fresh->family || !tj_relatives(e, &fresh->seg))
            continue;
        known |= e->symbolic && tj_dynamic_equal(&e->dyn, d, t);
        if (!small_symbol(d, &e->trace))
            other = e;
    }
    if (known || !other || !small_symbol(d, t))
        return true;
    struct tj_trace copy;
    tj_trace_init(&copy);
    if (!tj_trace_copy(&copy, &other->trace))
        return false;
    tj_trace_free(&fresh->trace);
    fresh->trace = copy;
    fresh->shadowed = true;
    return own_files(fresh);
}

static void unlink_entry(struct tj_cache *c, struct tj_entry *e) {
    make_whole(c);
    unchain(c, e);
    uint32_t i = 0;
    while (i < c->n && c->ring[i] != e)
        i++;
    if (i == c->n)
        return;
    memmove(&c->ring[i], &c->ring[i + 1], (c->n - i - 1) * sizeof *c->ring);
    c->n--;
    if (c->hand > i)
        c->hand--;
}

// What is asked of the table, and what it says beside the entry.
struct lookup {
    const struct tj_segment *s;
    const struct tj_site *site;
    bool trimmed; // made ahead of the runs that will ask for it
    bool wait;    // for an entry that is being made
    bool exact;   // without symbols
    uint64_t hash, family;
    bool made;                // the entry is new, and the caller's to compile
    bool interpret, left_out; // no entry, for the budget: the interpreter runs it; nobody needs it
    struct tj_entry *similar; // of a new one: what nearly served, with a reference, or NULL
};

// Finds the entry, or enters a new one; with a reference. NULL: the budget, or an error.
static struct tj_entry *find_or_enter(struct tj_box *b, struct lookup *q) {
    const struct tj_segment *s = q->s;
    uint64_t family = q->exact ? 0 : q->family;
    struct trace_region *r = b->run.region;
    struct tj_cache *c = &r->cache;
    struct tj_entry *fresh = NULL, *e, *victim = NULL;
    struct tj_budget_answer budget = {.verdict = TJ_ALLOWED, .what = -1};
    q->made = q->interpret = q->left_out = false;
    q->similar = NULL;
    for (;;) {
        tj_lock(&c->lock);
        e = find(c, s, q->hash, family);
        if (e || fresh)
            break;
        tj_unlock(&c->lock);
        fresh = entry_new(b, s, q->site, q->trimmed, q->hash, q->family);
        if (!fresh) {
            (void)tj_fail(TRACE_ERR_MEMORY, "region '%s': out of memory for a plan", r->name);
            return NULL;
        }
    }
    bool full = false;
    if (!e) {
        make_whole(c);
        uint32_t cap = c->capring;
        tj_budget_ask(r, &budget);
        if (budget.verdict == TJ_WIDE && !family)
            budget.verdict = TJ_ALLOWED; // TRACE_DYNAMIC_OFF: there is nothing to make symbolic
        if (budget.verdict >= TJ_INTERPRET) {
            for (uint32_t i = 0; i < c->n && !budget.extents && r->opt.dynamic != TRACE_DYNAMIC_ON; i++)
                budget.extents = !c->ring[i]->symbolic && tj_relatives(c->ring[i], s); // no plan for this one
        } else if (tj_grow((void **)&c->ring, &cap, c->n + 1, sizeof *c->ring) &&
                   (!family || choose_symbols(c, r, q->site, budget.verdict == TJ_WIDE, fresh))) {
            c->capring = cap;
            q->similar = r->hidden ? NULL : nearest(c, fresh->site_key, s);
            if (c->n >= c->max)
                victim = evict(c);
            // In the ring just behind the hand, so that it is looked at last.
            uint32_t at = c->hand < c->n ? c->hand : c->n;
            memmove(&c->ring[at + 1], &c->ring[at], (c->n - at) * sizeof *c->ring);
            c->ring[at] = fresh;
            c->n++;
            c->hand = at + 1;
            struct tj_entry **bucket = &c->buckets[q->hash & (c->nbuckets - 1)];
            fresh->next = *bucket;
            *bucket = fresh;
            chain_relative(c, fresh);
            e = fresh;
            fresh = NULL;
            q->made = true;
        } else {
            c->capring = cap;
            full = true;
            tj_budget_return(r);
        }
    } else {
        while (atomic_load(&e->state) == TJ_E_COMPILING) {
            if (e->process != tj_process()) { // a thread that fork left behind was making it
                e->shadowed |= e->symbolic;   // of other sizes than these, maybe
                e->process = tj_process();
                e->maker = &tj_current;
                q->made = true;
                break;
            }
            if (!q->wait || e->maker == &tj_current)
                break;
            tj_cond_wait(&c->ready, &c->lock, TJ_FOREVER);
        }
    }
    tj_unlock(&c->lock);
    if (fresh) {
        tj_entry_put(fresh);
        tj_entry_put(fresh);
    }
    if (victim) {
        char why[60];
        (void)snprintf(why, sizeof why, "max_graphs of %u", c->max);
        report_evicted(r, victim, why);
    }
    // A plan made ahead of later runs is left out; no run fails or is interpreted for that.
    bool optional = q->trimmed && !q->site->ahead && budget.verdict >= TJ_INTERPRET;
    if (budget.verdict && !optional)
        tj_budget_tell(r, &budget, q->site->kind);
    q->interpret = budget.verdict == TJ_INTERPRET && !optional;
    q->left_out = optional;
    if (full)
        (void)tj_fail(TRACE_ERR_MEMORY, "region '%s': out of memory for the plan table", r->name);
    return e;
}

// Publishes what compile() made of an entry.
static void publish(struct trace_region *r, struct tj_entry *e, tj_status st) {
    struct tj_cache *c = &r->cache;
    tj_lock(&c->lock);
    e->failed = st;
    if (st) { // first out of the table: a child of fork shall not find it dropped there
        unlink_entry(c, e);
        tj_budget_return(r);
    }
    atomic_store(&e->state, st ? TJ_E_DROPPED : TJ_E_READY);
    if (!st) {
        (void)atomic_fetch_add(&c->code, e->info.bytes_code);
        tj_budget_made(r, (uint64_t)(e->ms * 1e6), e->info.new_kernels, e->info.bytes_code);
    }
    tj_cond_wake(&c->ready);
    tj_unlock(&c->lock);
    if (st)
        tj_entry_put(e); // the table's
}

tj_status tj_entry_make(struct trace_region *r, struct tj_counters *count, struct tj_entry *e,
                        const struct tj_leaf *leaves, const struct tj_site *site, struct tj_entry *similar,
                        char *text) {
    tj_status st = compile(r, e, leaves, text);
    // All else the interpreter runs; what can't be compiled with symbols is tried without.
    // Without a thread it does so until there is one: such an entry isn't kept.
    bool lost = st == TRACE_ERR_MEMORY || st == TRACE_ERR_BUSY || (st && e->symbolic && !r->hidden);
    if (!lost)
        count_made(count, e);
    publish(r, e, lost ? st : TRACE_OK);
    if (lost) {
        if (st != TRACE_ERR_MEMORY && st != TRACE_ERR_BUSY)
            tj_event(r->ctx, r, TRACE_EVENT_FALLBACK, site->loc, -1, -1, 0, 0, e->ms,
                     "a graph with symbolic extents could not be compiled (%s), an exact one is made: %s", e->site,
                     text);
        return st;
    }
    if (st)
        tj_event(r->ctx, r, TRACE_EVENT_FALLBACK, site->loc, -1, -1, 0, 0, e->ms,
                 "a graph of %u ops (%s) could not be compiled, the interpreter runs it: %s", e->trace.nnodes, e->site,
                 text);
    dump_trace(r, e);
    report_made(r, count, e, site, similar);
    tj_timeline_compile(r, e, site->loc);
    enforce_limits(r, e);
    return st;
}

void tj_entry_cancel(struct trace_region *r, struct tj_entry *e, tj_status st) { publish(r, e, st); }

bool tj_entry_adopt(struct trace_region *r, struct tj_entry *e) {
    tj_lock(&r->cache.lock);
    bool mine = atomic_load(&e->state) == TJ_E_COMPILING && e->process != tj_process();
    if (mine)
        e->process = tj_process();
    tj_unlock(&r->cache.lock);
    return mine;
}

// What a run does whose plan is being compiled in the background. *e: the entry, or NULL: the interpreter.
static tj_status meanwhile(struct tj_box *b, const struct tj_segment *s, struct tj_entry *e, bool *interpret) {
    struct trace_region *r = b->run.region;
    int policy = r->opt.background_policy;
    *interpret = false;
    if (b->run.compile_only || tj_background_here(r->ctx) || policy == TRACE_POLICY_INTERPRET ||
        (policy == TRACE_POLICY_AUTO && tj_background_interpret(r->ctx, s))) {
        *interpret = true;
        return TRACE_OK;
    }
    if (policy == TRACE_POLICY_FAIL)
        return tj_fail(TRACE_ERR_BUSY,
                       "region '%s': not ready yet: its plan has been in the background compile for %.1f ms; show what "
                       "there is, or wait with trace_wait_ready",
                       r->name, (double)(tj_now_ns() - e->asked_ns) / 1e6);
    struct tj_cache *c = &r->cache;
    tj_lock(&c->lock);
    while (atomic_load(&e->state) == TJ_E_COMPILING && !atomic_load(&b->cancel))
        tj_cond_wait(&c->ready, &c->lock, TJ_FOREVER);
    tj_unlock(&c->lock);
    return TRACE_OK;
}

static void remember(struct tj_entry **slot, struct tj_entry *e) {
    if (*slot == e)
        return;
    (void)atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    tj_entry_put(*slot);
    *slot = e;
}

static struct tj_entry *hit(struct tj_box *b, struct tj_entry *e) {
    // A saturated entry is only read: hits of many threads don't contend for its line.
    unsigned credit = atomic_load_explicit(&e->credit, memory_order_relaxed);
    if (credit < TJ_CREDIT_MAX) {
        atomic_store_explicit(&e->credit, (uint8_t)(credit + 1), memory_order_relaxed);
        (void)atomic_fetch_add_explicit(&e->hits, 1, memory_order_relaxed);
    }
    TJ_BUMP(&b->count, hits, 1);
    return e;
}

// The box's hints hold the references of steady hits: *out borrows from them.
tj_status tj_segment_plan(struct tj_box *b, const struct tj_segment *s, const struct tj_site *site, bool trimmed,
                          struct tj_entry **out) {
    struct tj_entry **predict = &b->predict[b->segment < TJ_PREDICT ? b->segment : TJ_PREDICT - 1];
    struct tj_entry *e = *predict;
    if (TJ_LIKELY(e && !trimmed && !atomic_load_explicit(&e->evicted, memory_order_relaxed) && matches(e, s))) {
        *out = hit(b, e);
        return TRACE_OK;
    }
    uint64_t hash = segment_hash(s), family = 0;
    for (int symbolic = 0; symbolic < 1 + s->symbolic; symbolic++) {
        family = symbolic ? family_hash(s) : 0;
        e = b->hints[(symbolic ? family : hash) % TJ_HINTS];
        if (e && !trimmed && e->symbolic == symbolic && (symbolic ? e->family == family : e->hash == hash) &&
            !atomic_load_explicit(&e->evicted, memory_order_relaxed) && matches(e, s)) {
            remember(predict, e);
            *out = hit(b, e);
            return TRACE_OK;
        }
    }
    struct trace_region *r = b->run.region;
    bool background = r->opt.background && !r->hidden, counted = false;
    struct lookup q = {.s = s, .site = site, .trimmed = trimmed, .wait = !background, .hash = hash, .family = family};
    for (int attempt = 0;; attempt++) {
        e = find_or_enter(b, &q);
        if (!e && q.interpret) {
            if (!counted && !trimmed)
                TJ_BUMP(&b->count, misses, 1);
            *out = NULL;
            return TRACE_OK;
        }
        if (!e)
            return q.left_out ? TRACE_ERR_BUDGET : tj_last_status();
        if (q.made) {
            if (!trimmed && !counted)
                TJ_BUMP(&b->count, misses, 1);
            b->missed = counted = true;
            // Now, as the entry may be made from the trace of another one.
            if (q.similar && (!trimmed || site->ahead))
                tj_reason_find(q.similar, s, e->declared, &e->reason);
            if (!background || !tj_background_add(r, e, s, site, q.similar)) {
                char text[TJ_ERROR_MAX];
                tj_status st = tj_entry_make(r, &b->count, e, s->trace->leaves, site, q.similar, text);
                tj_entry_put(q.similar);
                if (st == TRACE_ERR_MEMORY) {
                    tj_entry_put(e);
                    return tj_fail(st, "%s", text);
                }
            }
        }
        if (atomic_load(&e->state) == TJ_E_COMPILING) {
            // Not in the background: a callback of this thread's own compile, which it can't wait for.
            bool interpret = trimmed || !background;
            tj_status st = interpret ? TRACE_OK : meanwhile(b, s, e, &interpret);
            if (st || interpret) {
                if (!counted && !trimmed)
                    TJ_BUMP(&b->count, misses, 1);
                tj_entry_put(e);
                *out = NULL;
                return st;
            }
        }
        if (atomic_load(&e->state) == TJ_E_READY) {
            if (e->symbolic && !matches(e, s)) { // made for other sizes, with a guard against these
                q.exact = attempt >= SYMBOLIC_ATTEMPTS;
                tj_entry_put(e);
                continue;
            }
            if (!trimmed && !q.made)
                (void)hit(b, e);
            break;
        }
        if (atomic_load(&b->cancel)) {
            tj_entry_put(e);
            return tj_fail(TRACE_ERR_SHUTDOWN, "region '%s': the run was cancelled", r->name);
        }
        tj_status failed = e->failed; // whoever was making it ran out of memory or threads, or was told not to
        tj_entry_put(e);
        if (failed == TRACE_ERR_BUSY) {
            *out = NULL;
            return trimmed && site->ahead
                       ? tj_fail(failed, "region '%s': no thread can be started to compile on; try again later",
                                 r->name)
                       : TRACE_OK;
        }
        if (failed == TRACE_ERR_SHUTDOWN)
            return tj_fail(failed, "region '%s': its compile was cancelled by the shutdown of the context", r->name);
        q.exact |= failed != TRACE_ERR_MEMORY; // what can't be compiled with symbols isn't tried so again
        if (failed == TRACE_ERR_MEMORY && attempt >= ATTEMPTS)
            return tj_fail(failed, "region '%s': out of memory for a plan", r->name);
    }
    if (trimmed) {
        tj_entry_put(e);
        *out = NULL;
        return TRACE_OK;
    }
    remember(&b->hints[(e->symbolic ? family : hash) % TJ_HINTS], e);
    remember(predict, e);
    tj_entry_put(e);
    *out = e;
    return TRACE_OK;
}

// ---- running --------------------------------------------------------------------------------------------------------

tj_status tj_segment_error(const struct tj_segment *s, const struct tj_data_error *err) {
    char node[300];
    (void)tj_op_text(s->trace, err->node, node, sizeof node);
    switch (err->kind) {
    case TJ_DATA_INDEX:
        return tj_fail(TRACE_ERR_DEVICE, "%s: index %lld is out of range for %lld", node, (long long)err->index,
                       (long long)err->extent);
    case TJ_DATA_DIVISION: return tj_fail(TRACE_ERR_DEVICE, "%s: integer division by zero", node);
    default:
        return tj_fail(TRACE_ERR_DEVICE, "%s: integer to the negative power %lld has no integer value", node,
                       (long long)err->index);
    }
}

tj_status tj_segment_run(struct tj_box *b, const struct tj_segment *s, struct tj_entry *e,
                         struct trace_tensor *const *outs) {
    trace_context *ctx = b->run.ctx;
    struct tj_data_error err;
    memset(&err, 0, sizeof err);
    uint64_t launches = 0, moved = 0, interpreted = 0, padding = 0, bucketed = 0;
    struct tj_run_args args = {.ctx = ctx,
                               .trace = s->trace,
                               .leaves = s->trace->leaves,
                               .params = s->trace->params,
                               .outs = outs,
                               .err = &err,
                               .launches = &launches,
                               .bytes_moved = &moved,
                               .interpreted = &interpreted,
                               .padding = &padding,
                               .bucketed = &bucketed,
                               .cancel = &b->cancel};
    struct tj_watching watch;
    if (TJ_UNLIKELY(tj_watched(b)))
        args.watch = tj_watch_start(b, s, &watch);
    if (TJ_UNLIKELY(atomic_load_explicit(&b->cancel, memory_order_relaxed)))
        return tj_fail(TRACE_ERR_SHUTDOWN, "region '%s': the run was cancelled", b->run.region->name);
    tj_fpenv env;
    struct tj_run *open = tj_current, *around = tj_executing;
    tj_executing = &b->run;
    tj_current = NULL;
    uint64_t t0 = tj_ticks();
    tj_fpenv_enter(&env);
    tj_status st = !e || !e->plan                          ? tj_interp_run(s, &args)
                   : TJ_UNLIKELY(tj_checks(b->run.region)) ? tj_check_run(b, s, e, &args)
                                                           : ctx->backend->run(e->plan, &args);
    tj_fpenv_leave(&env);
    tj_current = open;
    tj_executing = around;
    if (TJ_UNLIKELY(args.watch != NULL))
        tj_watch_end(&watch, e);
    if (TJ_UNLIKELY(tj_pool_missing(ctx->pool)))
        tj_context_pool_short(ctx, b->run.region);
    b->ran += tj_ticks() - t0;
    b->segment++;
    TJ_BUMP(&b->count, launches, launches);
    TJ_BUMP(&b->count, bytes_moved, moved);
    if (interpreted)
        TJ_BUMP(&b->count, interpreted_ops, interpreted);
    if (bucketed) {
        TJ_BUMP(&b->count, padding_bytes, padding);
        TJ_BUMP(&b->count, bucket_bytes, bucketed);
    }
    char fault[200];
    if (TJ_UNLIKELY(ctx->opt.parallel_for && tj_pool_fault(fault, sizeof fault)) && !st)
        st = tj_fail(TRACE_ERR_STATE, "%s", fault);
    if (TJ_UNLIKELY(!st && atomic_load_explicit(&err.set, memory_order_acquire)))
        st = tj_segment_error(s, &err);
    return st;
}

// ---- what is learned at breaks --------------------------------------------------------------------------------------

static uint64_t learned_hash(const struct tj_trace *t, tj_ref target, const tj_ref *writes, uint32_t nwrites) {
    if (tj_hash_collide)
        return 0;
    return refs_hash(writes, nwrites, tj_hash_mix(tj_trace_alike_hash(t), target));
}

static struct tj_learned *find_learned(struct tj_cache *c, uint64_t hash, const struct tj_trace *t, tj_ref target,
                                       const tj_ref *writes, uint32_t nwrites) {
    for (struct tj_learned *l = c->records[hash & (c->nbuckets - 1)]; l; l = l->next) {
        if (l->hash == hash && l->target == target && tj_same_refs(l->writes, l->nwrites, writes, nwrites) &&
            tj_trace_alike(&l->trace, t)) {
            (void)atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
            return l;
        }
    }
    return NULL;
}

// Drops the oldest record of the next chain that has one. The lock is held.
static void drop_learned(struct tj_cache *c, uint32_t from) {
    for (uint32_t i = 0; i < c->nbuckets; i++) {
        struct tj_learned **p = &c->records[(from + 1 + i) & (c->nbuckets - 1)];
        if (!*p)
            continue;
        while ((*p)->next)
            p = &(*p)->next; // chains grow at the front
        struct tj_learned *old = *p;
        *p = NULL;
        c->nrecords--;
        tj_learned_put(old);
        return;
    }
}

struct tj_learned *tj_learned_get(struct trace_region *r, const struct tj_trace *t, tj_ref target, const tj_ref *writes,
                                  uint32_t nwrites) {
    struct tj_cache *c = &r->cache;
    uint64_t hash = learned_hash(t, target, writes, nwrites);
    tj_lock(&c->lock);
    struct tj_learned *l = find_learned(c, hash, t, target, writes, nwrites);
    tj_unlock(&c->lock);
    if (l)
        return l;
    struct tj_learned *fresh = tj_calloc(1, sizeof *fresh);
    if (!fresh)
        return NULL;
    tj_trace_init(&fresh->trace);
    atomic_init(&fresh->refs, 2);
    atomic_init(&fresh->learning, true);
    fresh->hash = hash;
    fresh->target = target;
    fresh->writes = copy_refs(writes, nwrites);
    fresh->nwrites = nwrites;
    fresh->used = tj_calloc(t->nnodes / 64 + 1, sizeof *fresh->used);
    if (!fresh->writes || !fresh->used || !tj_trace_copy(&fresh->trace, t)) {
        learned_free(fresh);
        return NULL;
    }
    // Host file names may go; the copy isn't read for them.
    for (uint32_t i = 0; i < fresh->trace.nnodes; i++)
        fresh->trace.locs[i] = TJ_LOC(NULL, 0);
    tj_lock(&c->lock);
    l = find_learned(c, hash, t, target, writes, nwrites);
    if (!l) {
        struct tj_learned **bucket = &c->records[hash & (c->nbuckets - 1)];
        if (c->nrecords >= RECORDS_A_GRAPH * c->max)
            drop_learned(c, (uint32_t)hash);
        fresh->next = *bucket;
        *bucket = fresh;
        c->nrecords++;
        l = fresh;
        fresh = NULL;
    }
    tj_unlock(&c->lock);
    if (fresh)
        learned_free(fresh);
    return l;
}

// A new site, entered when it has its strings. The lock is held.
static struct tj_break_site *site_new(struct tj_cache *c, const char *where, const char *kind, uint64_t key,
                                      bool lint) {
    struct tj_break_site *s = tj_calloc(1, sizeof *s);
    if (!c->sitetab)
        c->sitetab = tj_calloc(SITE_BUCKETS, sizeof(struct tj_break_site *));
    char *own = s && c->sitetab ? tj_strdup(where) : NULL;
    if (!own) {
        tj_free(s);
        return NULL;
    }
    s->where = own;
    s->kind = kind;
    s->key = key;
    s->lint = lint;
    s->next = c->sites;
    c->sites = s;
    c->nsites++;
    return s;
}

// Runs hold sites without a reference, so none goes: places beyond the bound share one.
struct tj_break_site *tj_break_site_get(struct trace_region *r, struct tj_loc loc, const char *kind, bool lint,
                                        bool *fresh) {
    struct tj_cache *c = &r->cache;
    char where[300];
    (void)tj_loc_text(loc, where, sizeof where);
    uint64_t key = tj_hash_bytes(where, strlen(where), tj_hash_bytes(kind, strlen(kind), lint));
    *fresh = false;
    tj_lock(&c->lock);
    struct tj_break_site *s = c->sitetab ? c->sitetab[key % SITE_BUCKETS] : NULL;
    while (s && !(s->key == key && s->lint == lint && !strcmp(s->kind, kind) && !strcmp(s->where, where)))
        s = s->chain;
    if (!s && c->nsites < TJ_SITES) {
        s = site_new(c, where, kind, key, lint);
        if (s) {
            s->chain = c->sitetab[key % SITE_BUCKETS];
            c->sitetab[key % SITE_BUCKETS] = s;
            *fresh = true;
        }
    } else if (!s && !lint) {
        s = c->others;
        if (!s && (s = c->others = site_new(c, "other places", kind, key, false)))
            *fresh = true;
    }
    tj_unlock(&c->lock);
    return s;
}
