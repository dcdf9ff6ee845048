// jit/plan.c: a compiled segment: made from a program, then run any number of times on any number of threads.
//
// A plan is immutable. What a run needs of its own (workspace, argument tables) is an instance; finished runs give
// theirs back to the plan's list, so a steady run allocates nothing and one plan serves several threads at once.
#include <stdio.h>

#include "../lib/strbuf.h"
#include "../trace/repeat.h"
#include "plan.h"

#define MAX_TASKS 64        // slots of scratch a step may need
#define PARALLEL_NS 25000.0 // estimated work below which a step stays on one thread
#define IDLE_MIN 16         // instances a plan keeps for its next runs, or two a thread of the pool where that is more
#define SPLIT_BLOCK 4096    // elements of one block of a split reduction (jit/kernel.h)
#define LEAN_RUNS 64        // runs that need at most half of a workspace, until it shrinks to what they need
#define LEAN_BYTES 262144   // smaller workspaces stay as they are
#define SWEEP_RUNS 64       // runs of a plan until some plans are looked at
#define SWEEP_PLANS 32      // so many
#define OLD 2               // rounds in which nobody used it: a workspace goes

// ---- compile --------------------------------------------------------------------------------------------------------

void tj_instance_free(struct tj_plan *p, struct tj_plan_instance *in) {
    if (!in)
        return;
    for (uint32_t i = 0; p->loops && i < p->prog->nsteps; i++)
        tj_turns_free(p, i, in->turns[i]);
    if (in->ws && in->ws_bytes)
        tj_buffer_free(p->jit->ctx, in->ws, in->ws_bytes);
    tj_free(in);
}

static void lock_plans(struct tj_jit *jit) {
    if (TJ_LIKELY(!tj_lock(&jit->plans_lock)))
        return;
    struct tj_plan **link = &jit->plans; // a thread that fork left behind was changing them
    for (struct tj_plan *p = *link; p; link = &p->next, p = p->next)
        p->link = link;
    jit->sweep = NULL;
}

static void list_plan(struct tj_plan *p) {
    struct tj_jit *jit = p->jit;
    lock_plans(jit);
    p->next = jit->plans;
    p->link = &jit->plans;
    if (p->next)
        p->next->link = &p->next;
    jit->plans = p;
    tj_unlock(&jit->plans_lock);
}

static void plan_free(struct tj_plan *p) {
    if (p->link) {
        lock_plans(p->jit);
        if (p->jit->sweep == p)
            p->jit->sweep = p->next;
        *p->link = p->next;
        if (p->next)
            p->next->link = p->link;
        tj_unlock(&p->jit->plans_lock);
    }
    for (struct tj_plan_instance *i = p->idle, *n; i; i = n) {
        n = i->next;
        tj_instance_free(p, i);
    }
    if (p->steps) {
        for (uint32_t s = 0; s < p->prog->nsteps; s++) {
            tj_kcache_put(p->jit->kernels, p->steps[s].loop);
            for (size_t t = 0; t < p->steps[s].ntiles; t++)
                tj_kcache_put(p->jit->kernels, p->steps[s].tiles[t]);
            tj_contract_free(p->steps[s].contract);
            tj_plan_release(p->steps[s].body);
        }
    }
    for (uint32_t s = 0; p->notes && s < p->prog->nsteps; s++)
        tj_free(atomic_load(&p->notes[s].code));
    tj_free(p->notes);
    tj_free(p->steps);
    tj_free(p->first);
    if (p->prog)
        tj_program_free(p->prog);
    tj_free(p->text);
    tj_free(p);
}

void tj_plan_release(struct tj_plan *p) {
    if (p && atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) == 1)
        plan_free(p);
}

// The leaf whose memory operand b of a contraction is, if it may be prepacked.
static uint32_t weight_leaf(const struct tj_program *g, const struct tj_step *st) {
    if (!st->weight_stable || (st->kind != TJ_STEP_MATMUL && st->kind != TJ_STEP_CONV2D))
        return UINT32_MAX;
    const struct tj_buf *b = &g->bufs[st->b.buf];
    return b->kind == TJ_BUF_LEAF ? b->index : UINT32_MAX;
}

size_t tj_plan_step_units(const struct tj_plan *p, uint32_t i, struct tj_unit *units) {
    size_t n = 0;
    if (p->prog->steps[i].loop.kernel) {
        units[n].kind = TJ_UNIT_LOOP;
        units[n++].loop = p->prog->steps[i].loop.kernel;
    }
    if (p->steps[i].contract) {
        struct tj_gemm_tile tiles[TJ_CONTRACT_TILES];
        memset(tiles, 0, sizeof tiles);
        size_t count = tj_contract_tiles(p->steps[i].contract, tiles, TJ_CONTRACT_TILES);
        for (size_t t = 0; t < count; t++) {
            units[n].kind = TJ_UNIT_GEMM;
            units[n++].gemm = tiles[t];
        }
    }
    return n;
}

uint64_t tj_plan_step_packed(const struct tj_plan *p, uint32_t i) {
    const struct tj_geom *b = &p->prog->steps[i].b;
    const struct tj_exprs *x = &p->prog->exprs;
    struct tj_view w = {.dtype = b->dtype, .rank = b->rank};
    if (p->steps[i].weight_leaf == UINT32_MAX || tj_env_off(&p->jit->ctx->env, TJ_KILL_PREPACK))
        return 0;
    for (size_t d = 0; d < b->rank; d++) {
        w.dims[d] = tj_ex_hint(x, b->dims[d]);
        w.strides[d] = tj_ex_hint(x, b->strides[d]);
    }
    return tj_contract_pack_bytes(p->steps[i].contract, &w);
}

const struct tj_program *tj_plan_program(const struct tj_plan *p) { return p->prog; }
struct tj_step_notes *tj_plan_notes(const struct tj_plan *p) {
    return p->notes;
}
struct tj_jit *tj_plan_jit(const struct tj_plan *p) {
    return p->jit;
}

void tj_plan_times(const struct tj_plan *p, uint32_t i, struct tj_step_time *out) {
    struct tj_plan *q = (struct tj_plan *)(uintptr_t)p; // only its lock changes
    (void)tj_lock(&q->lock);
    *out = p->notes[i].time;
    tj_unlock(&q->lock);
}

// Asks the cache for everything the steps need, all that is missing in one compile.
static tj_status get_code(struct tj_plan *p, const struct tj_segment *seg) {
    const struct tj_program *g = p->prog;
    size_t n = 0, cap = (size_t)g->nsteps * (1 + TJ_CONTRACT_TILES) + 1;
    struct tj_unit *units = tj_calloc(cap, sizeof *units);
    struct tj_kentry **entries = tj_calloc(cap, sizeof *entries);
    tj_status s = TRACE_OK;
    if (!units || !entries) {
        s = tj_fail(TRACE_ERR_MEMORY, "out of memory for a plan of %u steps", g->nsteps);
        goto out;
    }
    for (uint32_t i = 0; i < g->nsteps; i++) {
        size_t mine = tj_plan_step_units(p, i, units + n);
        p->steps[i].ntiles = mine - (g->steps[i].loop.kernel != NULL);
        if (p->jit->ctx->env.perf && !s)
            s = tj_perf_label(seg, &g->steps[i], units + n, mine);
        n += mine;
    }
    struct tj_kcache_stats st = {0};
    if (!s)
        s = tj_kcache_get(p->jit->kernels, units, n, entries, &st);
    p->info.new_kernels += st.compiled;
    p->info.emit_ns += st.emit_ns;
    p->info.codegen_ns += st.codegen_ns;
    p->info.bytes_code += st.code_bytes;
    n = 0;
    for (uint32_t i = 0; i < g->nsteps; i++) {
        struct tj_plan_step *ps = &p->steps[i];
        if (s) {
            ps->ntiles = 0;
            continue;
        }
        if (g->steps[i].loop.kernel) {
            ps->loop = entries[n++];
            ps->code = tj_kentry_code(ps->loop);
        }
        for (size_t t = 0; t < ps->ntiles; t++) {
            ps->tiles[t] = entries[n++];
            struct tj_kernel_code code = tj_kentry_code(ps->tiles[t]);
            const void *fn;
            memcpy(&fn, &code.fn, sizeof fn);
            tj_contract_bind(ps->contract, t, fn);
        }
    }
out:
    for (n = 0; n < cap && units; n++)
        tj_free((void *)(uintptr_t)units[n].label);
    tj_free(units);
    tj_free(entries);
    return s;
}

// First and last step of every temporary buffer; offsets of the steps' tables in an instance.
static tj_status prepare(struct tj_plan *p) {
    struct tj_program *g = p->prog;
    size_t nb = g->nbufs ? g->nbufs : 1;
    p->first = tj_calloc(nb * 3, sizeof *p->first);
    p->steps = tj_calloc(g->nsteps ? g->nsteps : 1, sizeof *p->steps);
    p->notes = tj_calloc(g->nsteps ? g->nsteps : 1, sizeof *p->notes);
    if (!p->first || !p->steps || !p->notes)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for a plan of %u steps", g->nsteps);
    p->last = p->first + nb;
    p->order = p->last + nb;
    for (uint32_t b = 0; b < g->nbufs; b++)
        p->first[b] = UINT32_MAX;
    for (uint32_t i = 0; i < g->nsteps; i++) {
        struct tj_step *st = &g->steps[i];
        struct tj_plan_step *ps = &p->steps[i];
        for (uint32_t k = 0; k < st->nreads + st->nwrites; k++) {
            uint32_t b = k < st->nreads ? st->reads[k] : st->writes[k - st->nreads];
            if (p->first[b] == UINT32_MAX)
                p->first[b] = i;
            p->last[b] = i;
        }
        ps->weight_leaf = weight_leaf(g, st);
        ps->ivals = p->nivals;
        ps->bufs = p->nbufargs;
        ps->svals = p->nsvals;
        if (st->loop.kernel) {
            p->nivals += st->loop.kernel->nivals;
            p->nbufargs += st->loop.kernel->nbufs;
            p->nsvals += st->loop.kernel->nsvals;
            for (uint32_t k = 0; k < st->loop.kernel->nivals; k++)
                ps->dynamic |= !tj_ex_is_const(&g->exprs, st->loop.ivals[k]);
        }
        if (st->kind == TJ_STEP_REPEAT) {
            p->loops = true;
            tj_status s = tj_turns_compile(p->jit, st->repeat, &ps->body, &p->info);
            if (s)
                return s;
        } else if (st->kind != TJ_STEP_LOOP) {
            int threads = p->threads ? p->threads : tj_pool_threads(p->jit->ctx->pool);
            tj_status s = tj_contract_create(st, &g->exprs, &p->jit->ctx->cpu, threads, &ps->contract);
            if (s)
                return s;
        }
    }
    bool apart = tj_env_off(&p->jit->ctx->env, TJ_KILL_REUSE); // all live all the time: none shares memory
    for (uint32_t b = 0; b < g->nbufs; b++)
        if (apart || p->first[b] == UINT32_MAX) {
            p->first[b] = 0;
            p->last[b] = apart ? g->nsteps : 0;
        }
    for (uint32_t e = 0; e < g->exprs.n; e++)
        p->dynamic |= !tj_ex_is_const(&g->exprs, e);
    return TRACE_OK;
}

// One line a step: what became one kernel, and the host line of its result.
static void log_fusion(const struct tj_jit *jit, const struct tj_segment *seg, const struct tj_program *g) {
    const struct tj_env *env = &jit->ctx->env;
    if (!tj_env_logs(env, TJ_LOG_FUSION))
        return;
    tj_log(env, TJ_LOG_FUSION, "%s: %u ops in %u kernels", seg->name ? seg->name : "eager", g->nops, g->nsteps);
    for (uint32_t i = 0; i < g->nsteps; i++) {
        const struct tj_step *st = &g->steps[i];
        const char *behind = st->kind != TJ_STEP_LOOP && st->loop.kernel ? st->loop.kernel->name : NULL;
        const struct tj_loc *loc = st->node < seg->trace->nnodes ? &seg->trace->locs[st->node] : NULL;
        tj_log(env, TJ_LOG_FUSION, "  kernel %u: %s%s%s (%s:%d)", i, st->name ? st->name : "?",
               behind ? ", and behind it " : "", behind ? behind : "", loc && loc->file ? loc->file : "?",
               loc ? (int)loc->line : 0);
    }
    for (uint32_t b = 0; b < g->nbufs; b++) {
        char node[200], user[200];
        const struct tj_buf *k = &g->bufs[b];
        if (k->kind != TJ_BUF_TEMP || k->why == TJ_KEPT_NONE)
            continue;
        (void)tj_op_text(seg->trace, k->node, node, sizeof node);
        bool by = k->user < seg->trace->nnodes;
        tj_log(env, TJ_LOG_FUSION, "  in memory: %s, for %s: %s (%s)", node,
               by ? tj_op_text(seg->trace, k->user, user, sizeof user) : "a later op", tj_kept_word(k->why),
               tj_kept_text(k->why));
    }
}

// Bytes of workspace a bound plan over the recorded tensors needs, weights packed where they may be.
static size_t bound_workspace(struct tj_plan *p, const struct tj_segment *seg);
static uint32_t shape_exprs(const struct tj_program *g);

tj_status tj_plan_compile(void *state, const struct tj_segment *seg, struct tj_plan **out, struct tj_plan_info *info) {
    struct tj_jit *jit = state;
    *out = NULL;
    struct tj_plan *p = tj_calloc(1, sizeof *p);
    if (!p)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for a plan");
    atomic_init(&p->refs, 1);
    p->jit = jit;
    p->threads = tj_env_off(&jit->ctx->env, TJ_KILL_THREADS) ? 1 : seg->threads;
    uint64_t t0 = tj_now_ns();
    tj_status s = tj_program_build(seg, &jit->ctx->env, &jit->ctx->cpu, &p->prog);
    if (!s)
        s = prepare(p);
    p->info.schedule_ns = tj_now_ns() - t0 - p->info.emit_ns - p->info.codegen_ns; // those are of the bodies of loops
    if (!s)
        s = get_code(p, seg);
    if (!s) {
        p->nshape = shape_exprs(p->prog);
        struct tj_strbuf sb = {0};
        tj_program_dump(p->prog, seg->trace, &sb);
        for (uint32_t i = 0; p->loops && i < p->prog->nsteps; i++) {
            if (!p->steps[i].body)
                continue;
            tj_sb_printf(&sb, "step %u, a turn:\n", i);
            tj_plan_describe(p->steps[i].body, &sb);
        }
        p->text = sb.s;
        log_fusion(jit, seg, p->prog);
        if (sb.s && jit->ctx->env.dump[0]) {
            char name[128];
            (void)snprintf(name, sizeof name, "%s-%u.program.txt", seg->name ? seg->name : "eager",
                           atomic_fetch_add(&jit->dump_serial, 1));
            tj_dump(&jit->ctx->env, name, sb.s, sb.n);
        }
        p->info.ops += p->prog->nops;
        p->info.kernels += p->prog->nsteps - p->prog->nbodies;
        p->info.fused_away += p->prog->nfused;
        p->info.bytes_workspace = bound_workspace(p, seg);
        p->info.bytes_moved = (uint64_t)tj_ex_hint(&p->prog->exprs, p->prog->bytes_moved);
        *info = p->info;
        list_plan(p);
        *out = p;
        return TRACE_OK;
    }
    plan_free(p);
    return s;
}

void tj_plan_describe(const struct tj_plan *p, struct tj_strbuf *sb) { tj_sb_puts(sb, p->text ? p->text : ""); }

// ---- symbolic plans: does this one serve a trace? -------------------------------------------------------------------

static bool missed(const struct tj_plan *p, struct tj_guard_miss *why, tj_ref node, int dim, tj_ex e, int64_t want,
                   int64_t have) {
    if (why) {
        *why = (struct tj_guard_miss){.node = node, .dim = dim, .want = want, .have = have};
        tj_ex_print(&p->prog->exprs, e, why->text, sizeof why->text);
    }
    return false;
}

bool tj_plan_serves(const struct tj_plan *p, const struct tj_trace *t, struct tj_guard_miss *why) {
    return tj_plan_fits(p, t, NULL, why);
}

// Every extent of the trace is what the plan computes from its symbols, and what the ops need to be equal is; so in the
// bodies of loops.
bool tj_plan_fits(const struct tj_plan *p, const struct tj_trace *t, const struct tj_inlined *inlined,
                  struct tj_guard_miss *why) {
    const struct tj_program *g = p->prog;
    const struct tj_exprs *x = &g->exprs;
    if (!g->extents)
        return false;
    int64_t small[256], *v = p->nshape <= TJ_COUNT(small) ? small : tj_malloc(p->nshape * sizeof *v);
    if (!v)
        return false;
    bool ok = tj_exprs_eval_shapes(x, p->nshape, t, inlined, v);
    // First, since they know the op that demands it; to the extents, one of two that are equal is a mere copy.
    for (uint32_t i = 0; ok && i < g->nguards; i++) {
        const struct tj_guard *q = &g->guards[i];
        if (v[q->a] == v[q->b] && v[q->a] != TJ_EX_HUGE)
            continue;
        ok = missed(p, why, tj_inlined_node(inlined, q->node), -1, q->a, v[q->a], v[q->b]);
        if (why)
            tj_ex_print(x, q->b, why->other, sizeof why->other);
    }
    for (uint32_t i = 0; ok && i < (inlined ? inlined->body->trace.nnodes : t->nnodes); i++) {
        tj_ref n = tj_inlined_node(inlined, i);
        const int64_t *dims = tj_shape_dims(t, t->nodes[n].shape);
        const tj_ex *e = g->extents + g->extent_at[i];
        for (size_t d = 0, rank = tj_shape_rank(t, t->nodes[n].shape); ok && d < rank; d++) {
            if (e[d] != TJ_EX_NONE && v[e[d]] != dims[d])
                ok = missed(p, why, n, (int)d, e[d], v[e[d]], dims[d]);
        }
    }
    for (uint32_t i = 0; ok && i < g->namounts; i++) {
        const struct tj_amount *m = &g->amounts[i];
        tj_ref n = tj_inlined_node(inlined, m->node);
        int64_t have = t->attrs[t->nodes[n].attr + m->word];
        if (have != m->value)
            ok = missed(p, why, n, (int)(m->word - 1) % TJ_MAX_RANK, 0, m->value, have);
    }
    for (uint32_t i = 0; ok && p->loops && i < g->nsteps; i++)
        ok = !p->steps[i].body || tj_turns_fit(p, i, t, inlined, why);
    if (v != small)
        tj_free(v);
    return ok;
}

// Expressions that extents and guards are made of come first: nothing behind them is evaluated for a look-up.
static uint32_t shape_exprs(const struct tj_program *g) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->nextents; i++)
        if (g->extents[i] != TJ_EX_NONE && g->extents[i] >= n)
            n = g->extents[i] + 1;
    for (uint32_t i = 0; i < g->nguards; i++) {
        n = g->guards[i].a >= n ? g->guards[i].a + 1 : n;
        n = g->guards[i].b >= n ? g->guards[i].b + 1 : n;
    }
    return n;
}

// ---- instances ------------------------------------------------------------------------------------------------------

static int plan_threads(const struct tj_plan *p) {
    int n = tj_pool_threads(p->jit->ctx->pool);
    if (p->threads && p->threads < n)
        n = p->threads;
    return n < MAX_TASKS ? n : MAX_TASKS;
}

struct tj_plan_instance *tj_instance_new(const struct tj_plan *p, struct tj_pool *pool, int threads) {
    const struct tj_program *g = p->prog;
    size_t n = tj_round_up(sizeof(struct tj_plan_instance));
    size_t vals = n, ivals = vals + g->exprs.n * (g->ncaps ? 16 : 8), bufs = ivals + p->nivals * 8u,
           svals = bufs + p->nbufargs * 8u;
    size_t base = svals + p->nsvals * 8u, bytes = base + g->nbufs * 8u, offset = bytes + g->nbufs * 8u;
    size_t packed = offset + g->nbufs * 8u, turns = packed + g->nsteps * 8u, had = turns + g->nsteps * 8u;
    size_t end = had + g->nsteps;
    unsigned char *m = tj_calloc(1, end);
    if (!m)
        return NULL;
    struct tj_plan_instance *i = (struct tj_plan_instance *)(void *)m;
    i->threads = threads;
    i->vals = (int64_t *)(void *)(m + vals);
    i->caps = g->ncaps ? i->vals + g->exprs.n : NULL;
    i->ivals = (int64_t *)(void *)(m + ivals);
    i->bufs = (unsigned char **)(void *)(m + bufs);
    i->svals = (union tj_scalar *)(void *)(m + svals);
    i->base = (unsigned char **)(void *)(m + base);
    i->bytes = (size_t *)(void *)(m + bytes);
    i->offset = (size_t *)(void *)(m + offset);
    i->packed = (struct tj_packed **)(void *)(m + packed);
    i->had = (bool *)(m + had);
    i->turns = (struct tj_turns **)(void *)(m + turns);
    i->pool = pool;
    return i;
}

static void view_of(const struct tj_plan_instance *in, const struct tj_geom *geom, struct tj_view *v) {
    v->dtype = geom->dtype;
    v->rank = geom->rank;
    unsigned char *base = in->base[geom->buf];
    bool empty = false;
    for (size_t d = 0; d < geom->rank; d++) {
        v->dims[d] = in->vals[geom->dims[d]];
        v->strides[d] = v->dims[d] > 1 ? in->vals[geom->strides[d]] : 0;
        empty |= v->dims[d] == 0;
    }
    if (base && !empty) // else the offset may be anywhere
        base += in->vals[geom->offset] * (int64_t)tj_elem_bytes((tj_dtype)geom->dtype);
    v->p = base;
}

// How a loop is cut into tasks: by rows, or by columns where there are too few rows.
struct cut {
    int tasks;
    bool by_cols;
    int64_t rows, cols, step; // step: rows or columns a task
};

static struct cut cut_loop(int threads, const struct tj_loop *l, const int64_t *vals, int64_t rows) {
    struct cut c = {.tasks = 1, .rows = rows, .cols = vals[l->cols]};
    double work = (double)rows * (double)c.cols * l->cost;
    if (l->kernel->kind == TJ_K_ROWS)
        work = (double)vals[l->rows] * (double)vals[l->row_elems] * l->cost;
    if (l->kernel->kind == TJ_K_COLS)
        work *= (double)vals[l->row_elems];
    if (threads > 1 && work > PARALLEL_NS) {
        // Twice as many tasks as threads: a thread the system takes away holds up less.
        int want = work > 8 * PARALLEL_NS ? threads * 2 : threads;
        if (want > MAX_TASKS)
            want = MAX_TASKS;
        bool wide = l->kernel->kind != TJ_K_ROWS && c.cols >= 64 * (int64_t)want;
        if (rows >= want && !(wide && tj_kernel_turns(l->kernel)))
            c.tasks = want;
        else if (wide) {
            c.tasks = want;
            c.by_cols = true;
        } else if (rows > 1)
            c.tasks = (int)rows;
    }
    int64_t n = c.by_cols ? c.cols : rows;
    c.step = c.tasks == 1 ? n : n / c.tasks + (n % c.tasks != 0); // a division costs as much as a small kernel
    if (c.by_cols)
        c.step = (c.step + 63) / 64 * 64; // columns start on cache lines, whatever the dtype
    if (c.step < 1)
        c.step = 1;
    return c;
}

static int64_t split_blocks(int64_t row_elems) { return row_elems / SPLIT_BLOCK + (row_elems % SPLIT_BLOCK != 0); }

// Elements of a row; where there is no row to run they may be any number, and need no room.
static int64_t row_elems_of(const struct tj_plan_instance *in, const struct tj_loop *l) {
    return in->vals[l->rows] == 0 || in->vals[l->cols] == 0 ? 0 : in->vals[l->row_elems];
}

// Tasks of a step at most: each has scratch of its own.
static size_t scratch_slots(const struct tj_plan_instance *in) {
    int tasks = in->threads > 1 ? in->threads * 2 : 1;
    return (size_t)(tasks < MAX_TASKS ? tasks : MAX_TASKS);
}

// Own workspace of a step: scratch a task, partial results, or what a contraction asks for.
static bool step_workspace(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, size_t *bytes) {
    const struct tj_step *st = &p->prog->steps[i];
    size_t n = 0;
    if (st->loop.kernel) {
        int64_t elems = row_elems_of(in, &st->loop);
        size_t scratch = tj_round_up(tj_kernel_scratch(st->loop.kernel, elems));
        if (scratch > SIZE_MAX / 2 / (MAX_TASKS * 2))
            return false;
        n += scratch * scratch_slots(in);
        if (st->loop.kernel->split) {
            int64_t parts;
            if (!tj_size_mul(in->vals[st->loop.rows], split_blocks(elems), &parts) || !tj_size_mul(parts, 8, &parts))
                return false;
            n += tj_round_up((size_t)parts);
        }
    }
    if (p->steps[i].contract) {
        struct tj_contract_args a = {.threads = in->threads,
                                     .packed = p->steps[i].weight_leaf != UINT32_MAX ? in->packed[i] : NULL};
        view_of(in, &st->out, &a.out);
        view_of(in, &st->a, &a.a);
        view_of(in, &st->b, &a.b);
        view_of(in, &st->c, &a.c);
        view_of(in, &st->d, &a.d);
        if (st->loop.kernel)
            a.epilogue_rows_whole = st->loop.kernel->kind != TJ_K_POINTWISE;
        size_t want;
        if (!tj_contract_workspace(p->steps[i].contract, &a, &want) || want > SIZE_MAX / 4)
            return false;
        n += tj_round_up(want);
    }
    if (p->steps[i].body) {
        size_t want;
        if (tj_turns_place(p, i, in, &want) || want > SIZE_MAX / 4)
            return false;
        n += tj_round_up(want);
    }
    *bytes = n;
    return true;
}

// Evaluates sizes and finds the memory of leaves and outputs.
tj_status tj_instance_sizes(const struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args) {
    const struct tj_program *g = p->prog;
    in->same = in->known && tj_exprs_same(&g->exprs, args, in->vals);
    if (!in->same && (p->dynamic || !in->filled)) {
        in->known = false; // until tj_instance_fill: a run may fail on the way there
        in->placed &= !p->dynamic;
        if (!tj_exprs_eval(&g->exprs, args, in->vals))
            return tj_fail(TRACE_ERR_SHAPE, "an extent or offset of the run overflows");
    }
    for (uint32_t i = 0; i < g->nguards && !in->same; i++)
        if (in->vals[g->guards[i].a] != in->vals[g->guards[i].b])
            return tj_fail(TRACE_ERR_SHAPE, "extents %lld and %lld have to be equal",
                           (long long)in->vals[g->guards[i].a], (long long)in->vals[g->guards[i].b]);
    for (uint32_t b = 0; b < g->nbufs; b++) {
        const struct tj_buf *buf = &g->bufs[b];
        if (buf->kind == TJ_BUF_LEAF)
            in->base[b] = tj_tensor_data(args->leaves[buf->index].tensor);
        else if (buf->kind == TJ_BUF_OUT)
            in->base[b] = tj_tensor_data(args->outs[buf->index]);
    }
    for (uint32_t i = 0; p->loops && i < g->nsteps; i++) {
        tj_status s = p->steps[i].body ? tj_turns_sizes(p, i, in, args) : TRACE_OK;
        if (s)
            return s;
    }
    return TRACE_OK;
}

// Finds or makes the packed copies of weights; what finds no room is used as it lies.
void tj_instance_pack(const struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args) {
    const struct tj_program *g = p->prog;
    for (uint32_t i = 0; i < g->nsteps; i++) { // weights first: whether they are packed decides workspaces
        struct tj_plan_step *ps = &p->steps[i];
        if (ps->weight_leaf == UINT32_MAX || tj_env_off(&p->jit->ctx->env, TJ_KILL_PREPACK))
            continue;
        struct tj_storage *st = args->leaves[ps->weight_leaf].tensor->st;
        // A bound plan writes it, or a DLPack consumer may, and doesn't tell: no copy would stay right.
        if (atomic_load_explicit(&st->pins_written, memory_order_acquire) ||
            atomic_load_explicit(&st->exports, memory_order_acquire))
            continue;
        struct tj_view w;
        view_of(in, &g->steps[i].b, &w);
        if (!w.p || !tj_contract_pack_bytes(ps->contract, &w))
            continue;
        int64_t offset = (int64_t)(w.p - st->data) / (int64_t)tj_elem_bytes((tj_dtype)w.dtype);
        in->packed[i] = tj_pack_get(p->jit, st, ps->contract, &w, offset, in->bound);
    }
}

// Values of all expressions with bucketed symbols at their capacity; false: one overflows.
static bool capacities(const struct tj_plan *p, struct tj_plan_instance *in) {
    const struct tj_program *g = p->prog;
    memcpy(in->caps, in->vals, g->exprs.n * sizeof *in->caps);
    for (uint32_t i = 0; i < g->ncaps; i++)
        if (g->caps[i].size > in->caps[g->caps[i].symbol])
            in->caps[g->caps[i].symbol] = g->caps[i].size;
    return tj_exprs_again(&g->exprs, in->caps);
}

// Places temporaries and the steps' own workspaces; *want: bytes in all.
tj_status tj_instance_place(const struct tj_plan *p, struct tj_plan_instance *in, size_t *want) {
    const struct tj_program *g = p->prog;
    uint32_t scratch_small[64], *order = g->nbufs <= 64 ? scratch_small : tj_malloc(g->nbufs * sizeof *order);
    if (!order)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for a run");
    size_t total = 0, step_max = 0, small = 0, tight = 0;
    bool ok = true, roomy = in->caps && !in->tight && capacities(p, in);
    in->padding = 0;
    for (uint32_t b = 0; b < g->nbufs && ok; b++) {
        in->bytes[b] = 0;
        if (g->bufs[b].kind != TJ_BUF_TEMP)
            continue;
        ok = tj_tensor_bytes((tj_dtype)g->bufs[b].dtype, in->vals[g->bufs[b].elems], &in->bytes[b]);
    }
    ok = ok && (!roomy || tj_memplan(g->nbufs, in->bytes, p->first, p->last, in->offset, &tight, order));
    for (uint32_t b = 0; b < g->nbufs && ok && roomy; b++) {
        size_t room = 0;
        if (g->bufs[b].kind == TJ_BUF_TEMP &&
            tj_tensor_bytes((tj_dtype)g->bufs[b].dtype, in->caps[g->bufs[b].elems], &room) && room > in->bytes[b])
            in->bytes[b] = room;
    }
    ok = ok && tj_memplan(g->nbufs, in->bytes, p->first, p->last, in->offset, &total, order);
    if (order != scratch_small)
        tj_free(order);
    for (uint32_t i = 0; i < g->nsteps && ok; i++) {
        size_t n;
        ok = step_workspace(p, i, in, &n);
        if (ok && n > step_max)
            step_max = n;
    }
    small = step_max;
    if (roomy) { // what the steps would want at their capacity; loops lay out their own
        int64_t *vals = in->vals;
        in->vals = in->caps;
        for (uint32_t i = 0; i < g->nsteps && ok; i++) {
            size_t n;
            if (g->steps[i].kind != TJ_STEP_REPEAT && step_workspace(p, i, in, &n) && n > step_max)
                step_max = n;
        }
        in->vals = vals;
    }
    if (roomy && (!ok || total > SIZE_MAX / 4)) {
        in->tight = true;
        return tj_instance_place(p, in, want);
    }
    if (!ok || total > SIZE_MAX / 4)
        return tj_fail(TRACE_ERR_SHAPE, "the workspace of the run overflows");
    in->step_ws = tj_round_up(total);
    *want = in->step_ws + step_max;
    in->want = *want;
    if (roomy && *want > tj_round_up(tight) + small)
        in->padding = *want - tj_round_up(tight) - small;
    for (uint32_t i = 0; i < g->nsteps; i++)
        in->had[i] = in->packed[i] != NULL;
    return TRACE_OK;
}

void tj_instance_bufs(const struct tj_plan *p, struct tj_plan_instance *in) {
    for (uint32_t i = 0; i < p->prog->nsteps; i++) {
        const struct tj_loop *l = &p->prog->steps[i].loop;
        unsigned char **to = in->bufs + p->steps[i].bufs;
        for (uint32_t k = 0; l->kernel && k < l->kernel->nbufs; k++)
            to[k] = in->base[l->bufs[k]];
    }
}

// Fills the steps' tables: everything is known.
void tj_instance_fill(const struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args) {
    const struct tj_program *g = p->prog;
    for (uint32_t b = 0; b < g->nbufs; b++)
        if (g->bufs[b].kind == TJ_BUF_TEMP)
            in->base[b] = in->ws + in->offset[b];
    for (uint32_t i = 0; i < g->nsteps; i++) {
        const struct tj_loop *l = &g->steps[i].loop;
        const struct tj_plan_step *ps = &p->steps[i];
        if (ps->body)
            tj_turns_fill(p, i, in);
        if (!l->kernel)
            continue;
        if ((ps->dynamic && !in->same) || !in->filled)
            for (uint32_t k = 0; k < l->kernel->nivals; k++)
                in->ivals[ps->ivals + k] = in->vals[l->ivals[k]];
        for (uint32_t k = 0; k < l->kernel->nsvals; k++)
            in->svals[ps->svals + k] = l->svals[k].is_const ? l->svals[k].value : args->params[l->svals[k].param].v;
    }
    tj_instance_bufs(p, in);
    in->filled = true;
    in->known = p->dynamic && !p->loops; // what a loop's turns need is not among the values
}

// tj_buffer_alloc has told why: a limit of the context, or no memory.
static tj_status no_workspace(size_t want) {
    char why[TJ_ERROR_MAX];
    (void)snprintf(why, sizeof why, "%s", tj_last_error());
    return tj_fail(TRACE_ERR_MEMORY, "no workspace of %zu bytes: %s", want, why);
}

// What is packed decides what a step needs, and a written weight is packed no more.
bool tj_instance_moved(const struct tj_plan *p, const struct tj_plan_instance *in) {
    bool moved = !in->placed || (p->dynamic && !in->same);
    for (uint32_t i = 0; i < p->prog->nsteps; i++)
        moved |= in->had[i] != (in->packed[i] != NULL) || (p->steps[i].body && tj_turns_moved(p, i, in));
    return moved;
}

// Everything of a run that can fail, before the first kernel.
static tj_status instance_prepare(struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args) {
    tj_status s = tj_instance_sizes(p, in, args);
    if (s)
        return s;
    tj_instance_pack(p, in, args);
    if (tj_instance_moved(p, in)) {
        size_t want;
        in->placed = false; // also where the workspace can't be had
        s = tj_instance_place(p, in, &want);
        if (s)
            return s;
        size_t take = want > in->floor ? want : in->floor;
        unsigned char *ws = want > in->ws_bytes ? tj_buffer_alloc(p->jit->ctx, take) : in->ws;
        if (want > in->ws_bytes && !ws && take > want) {
            take = want;
            ws = tj_buffer_alloc(p->jit->ctx, take);
        }
        if (want > in->ws_bytes && !ws && in->caps && !in->tight) { // without the bucket's room the run may fit
            in->tight = true;
            tj_instance_unpack(p, in); // which is done again
            return instance_prepare(p, in, args);
        }
        if (want > in->ws_bytes) {
            if (!ws)
                return no_workspace(want);
            if (in->ws)
                tj_buffer_free(p->jit->ctx, in->ws, in->ws_bytes);
            in->ws = ws;
            in->ws_bytes = take;
        }
        in->placed = true;
    }
    tj_instance_fill(p, in, args);
    return TRACE_OK;
}

static struct tj_plan_instance *instance_take(struct tj_plan *p) {
    tj_lock(&p->lock);
    struct tj_plan_instance *i = p->idle;
    if (i) {
        p->idle = i->next;
        p->nidle--;
    }
    tj_unlock(&p->lock);
    return i ? i : tj_instance_new(p, p->jit->ctx->pool, plan_threads(p));
}

void tj_instance_unpack(const struct tj_plan *p, struct tj_plan_instance *in) {
    for (uint32_t i = 0; i < p->prog->nsteps; i++) {
        tj_pack_put(in->packed[i]);
        in->packed[i] = NULL;
        if (p->steps[i].body)
            tj_turns_unpack(p, i, in);
    }
}

// A large run doesn't keep its workspace for ever.
static void shrink(const struct tj_plan *p, struct tj_plan_instance *in) {
    if (in->want > in->ws_bytes / 2 || in->ws_bytes < LEAN_BYTES) {
        in->lean = 0;
        in->most = 0;
        return;
    }
    in->most = in->want > in->most ? in->want : in->most;
    if (++in->lean < LEAN_RUNS)
        return;
    tj_buffer_release(p->jit->ctx, in->ws, in->ws_bytes);
    in->ws = NULL;
    in->ws_bytes = 0;
    in->placed = false;
    in->floor = in->most;
    in->lean = 0;
    in->most = 0;
}

static bool retain_live(struct tj_plan *p) {
    int n = atomic_load(&p->refs);
    while (n > 0 && !atomic_compare_exchange_weak(&p->refs, &n, n + 1))
        continue;
    return n > 0; // else it is on its way out
}

// Takes off a plan's instances that no run uses now: all, or those with a workspace worth it that none has used since
// `round`. Each holds the plan then. The lock of the plans is held.
static void take_idle(struct tj_plan *p, bool all, uint32_t round, struct tj_plan_instance **gone) {
    tj_lock(&p->lock);
    for (struct tj_plan_instance **at = &p->idle; *at;) {
        struct tj_plan_instance *in = *at;
        if ((!all && ((int32_t)(in->round - round) > 0 || in->ws_bytes < LEAN_BYTES)) || !retain_live(p)) {
            at = &in->next;
            continue;
        }
        *at = in->next;
        p->nidle--;
        in->of = p;
        in->next = *gone;
        *gone = in;
    }
    tj_unlock(&p->lock);
}

// With no lock held: the host's allocator may call the library.
static size_t drop_instances(struct tj_plan_instance *in) {
    size_t bytes = 0;
    for (struct tj_plan_instance *next; in; in = next) {
        struct tj_plan *p = in->of;
        next = in->next;
        bytes += in->ws_bytes;
        tj_buffer_release(p->jit->ctx, in->ws, in->ws_bytes);
        in->ws = NULL;
        tj_instance_free(p, in);
        tj_plan_release(p);
    }
    return bytes;
}

// Looks at some plans, the next ones each time: what no run has used for two rounds goes.
static void sweep(struct tj_jit *jit) {
    struct tj_plan_instance *gone = NULL;
    lock_plans(jit);
    for (int i = 0; i < SWEEP_PLANS; i++) {
        struct tj_plan *p = jit->sweep ? jit->sweep : jit->plans;
        if (!p)
            break;
        take_idle(p, false, atomic_load_explicit(&jit->round, memory_order_relaxed) - OLD, &gone);
        jit->sweep = p->next;
        if (!jit->sweep) {
            (void)atomic_fetch_add_explicit(&jit->round, 1, memory_order_relaxed);
            break;
        }
    }
    tj_unlock(&jit->plans_lock);
    (void)drop_instances(gone);
}

size_t tj_plans_trim(struct tj_jit *jit) {
    struct tj_plan_instance *gone = NULL;
    lock_plans(jit);
    for (struct tj_plan *p = jit->plans; p; p = p->next)
        take_idle(p, true, 0, &gone);
    tj_unlock(&jit->plans_lock);
    return drop_instances(gone);
}

size_t tj_plans_idle(struct tj_jit *jit) {
    size_t bytes = 0;
    lock_plans(jit);
    for (struct tj_plan *p = jit->plans; p; p = p->next) {
        tj_lock(&p->lock);
        for (const struct tj_plan_instance *in = p->idle; in; in = in->next)
            bytes += in->ws_bytes;
        tj_unlock(&p->lock);
    }
    tj_unlock(&jit->plans_lock);
    return bytes;
}

static void instance_give(struct tj_plan *p, struct tj_plan_instance *in) {
    struct tj_jit *jit = p->jit;
    tj_instance_unpack(p, in);
    shrink(p, in);
    in->round = atomic_load_explicit(&jit->round, memory_order_relaxed);
    int most = 2 * tj_pool_threads(jit->ctx->pool);
    tj_lock(&p->lock);
    bool due = ++p->runs % SWEEP_RUNS == 0;
    if (p->nidle < (most > IDLE_MIN ? most : IDLE_MIN)) {
        in->next = p->idle;
        p->idle = in;
        p->nidle++;
        in = NULL;
    }
    tj_unlock(&p->lock);
    tj_instance_free(p, in);
    if (TJ_UNLIKELY(due))
        sweep(jit);
}

// ---- run ------------------------------------------------------------------------------------------------------------

struct loop_run {
    struct tj_kargs args;
    tj_kernel_fn fn;
    struct cut cut;
    unsigned char *scratch; // of task 0
    size_t scratch_bytes;
    int64_t lines; // epilogue over planes of a convolution: lines of one; else 0
};

static void loop_task(void *arg, size_t i) {
    const struct loop_run *r = arg;
    struct tj_kargs a = r->args;
    a.scratch = r->scratch_bytes ? r->scratch + i * r->scratch_bytes : NULL;
    int64_t lo = (int64_t)i * r->cut.step, n = r->cut.by_cols ? r->cut.cols : r->cut.rows;
    int64_t hi = lo + r->cut.step < n ? lo + r->cut.step : n;
    if (lo >= hi)
        return;
    if (r->cut.by_cols)
        r->fn(&a, 0, r->cut.rows, lo, hi);
    else
        r->fn(&a, lo, hi, 0, r->cut.cols);
}

static void loop_launch(const struct tj_plan_instance *in, struct loop_run *r, const struct tj_loop *l, int64_t rows) {
    r->cut = cut_loop(in->threads, l, in->vals, rows);
    if (r->cut.tasks > 1)
        tj_pool_run(in->pool, (size_t)r->cut.tasks, loop_task, r);
    else
        loop_task(r, 0);
}

static void loop_setup(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, const struct tj_run_args *args,
                       struct loop_run *r) {
    const struct tj_loop *l = &p->prog->steps[i].loop;
    const struct tj_plan_step *ps = &p->steps[i];
    r->args = (struct tj_kargs){.bufs = in->bufs + ps->bufs,
                                .ivals = in->ivals + ps->ivals,
                                .svals = in->svals + ps->svals,
                                .err = args->err,
                                .sites = l->sites,
                                .helpers = p->jit->helpers};
    r->fn = ps->code.fn;
    r->scratch_bytes = tj_round_up(tj_kernel_scratch(l->kernel, row_elems_of(in, l)));
    r->scratch = in->ws + in->step_ws;
}

// Whether a kernel stores something for a row, be there elements in it or not.
static bool stores_rows(const struct tj_kernel *k) {
    for (uint32_t i = 0; i < k->nins; i++)
        if (k->ins[i].op == TJ_KOP_STORE && k->ins[i].level == TJ_ROWLEVEL)
            return true;
    return false;
}

// Rows to run: rows without elements may be many, and nothing comes of them.
static int64_t rows_of(const struct tj_plan_instance *in, const struct tj_loop *l) {
    bool idle = l->kernel->kind != TJ_K_POINTWISE && in->vals[l->row_elems] == 0 && !stores_rows(l->kernel);
    return idle ? 0 : in->vals[l->rows];
}

static void run_loop(struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, const struct tj_run_args *args) {
    const struct tj_loop *l = &p->prog->steps[i].loop;
    struct loop_run r;
    loop_setup(p, i, in, args, &r);
    int64_t rows = rows_of(in, l);
    if (!l->kernel->split) {
        loop_launch(in, &r, l, rows);
        return;
    }
    r.args.partials = r.scratch + r.scratch_bytes * scratch_slots(in);
    loop_launch(in, &r, l, rows * split_blocks(row_elems_of(in, l)));
    r.fn = p->steps[i].code.fn2;
    r.cut = (struct cut){.tasks = 1, .rows = rows, .cols = 1, .step = rows > 0 ? rows : 1};
    loop_task(&r, 0);
}

// A part of a contraction's result is finished: the fused pointwise or row kernel takes it while it is in cache.
static void epilogue(void *arg, int slot, int64_t row0, int64_t row1, int64_t col0, int64_t col1) {
    const struct loop_run *r = arg;
    struct tj_kargs a = r->args;
    a.scratch = r->scratch_bytes ? r->scratch + (size_t)slot * r->scratch_bytes : NULL;
    if (!r->lines) {
        r->fn(&a, row0, row1, col0, col1);
        return;
    }
    // The kernel's rows are planes of `lines` lines, its columns the pixels of one: whole planes in one call.
    for (int64_t row = row0; row < row1;) {
        int64_t plane = row / r->lines, y = row % r->lines, whole = (row1 - row) / r->lines;
        if (y == 0 && whole) {
            r->fn(&a, plane, plane + whole, 0, r->lines * col1);
            row += whole * r->lines;
        } else {
            int64_t end = r->lines - y < row1 - row ? r->lines : y + row1 - row;
            r->fn(&a, plane, plane + 1, y * col1, end * col1);
            row += end - y;
        }
    }
}

// Arguments of a contraction; r: its epilogue's.
static void contract_setup(const struct tj_plan *p, uint32_t i, struct tj_plan_instance *in,
                           const struct tj_run_args *args, struct loop_run *r, struct tj_contract_args *a) {
    const struct tj_step *st = &p->prog->steps[i];
    size_t used = 0;
    *a = (struct tj_contract_args){.pool = in->pool,
                                   .threads = in->threads,
                                   .packed = in->packed[i] ? tj_packed_data(in->packed[i]) : NULL,
                                   .err = args->err,
                                   .node = st->node};
    view_of(in, &st->out, &a->out);
    view_of(in, &st->a, &a->a);
    view_of(in, &st->b, &a->b);
    view_of(in, &st->c, &a->c);
    view_of(in, &st->d, &a->d);
    if (st->kind == TJ_STEP_SDPA)
        a->scale = st->scale.is_const ? st->scale.value.f : args->params[st->scale.param].v.f;
    if (st->loop.kernel) {
        loop_setup(p, i, in, args, r);
        used = r->scratch_bytes * scratch_slots(in);
        r->lines = st->kind == TJ_STEP_CONV2D && st->loop.kernel->kind == TJ_K_POINTWISE ? a->out.dims[2] : 0;
        a->epilogue = epilogue;
        a->epilogue_arg = r;
        a->epilogue_rows_whole = st->loop.kernel->kind != TJ_K_POINTWISE;
        a->epilogue_of_nothing = tj_view_empty(&a->out) && stores_rows(st->loop.kernel);
    }
    a->workspace = in->ws + in->step_ws + used;
}

static void run_contract(struct tj_plan *p, uint32_t i, struct tj_plan_instance *in, const struct tj_run_args *args) {
    struct loop_run r;
    struct tj_contract_args a;
    contract_setup(p, i, in, args, &r, &a);
    tj_contract_run(p->steps[i].contract, &a);
}

// The step that began at t0 is over. Of runs over several sizes those with most to do are kept.
static void watched(struct tj_plan *p, uint32_t i, const struct tj_plan_instance *in, const struct tj_watch *w,
                    uint64_t t0) {
    uint64_t now = tj_now_ns();
    if (w->measure) {
        struct tj_step_work work;
        tj_step_work(p->prog, &p->prog->steps[i], in->vals, &work);
        uint64_t ns = now > t0 ? now - t0 : 1;
        (void)tj_lock(&p->lock);
        struct tj_step_time *n = &p->notes[i].time;
        uint64_t bytes = work.read + work.written;
        if (!n->runs || bytes > n->bytes || (bytes == n->bytes && ns < n->best_ns)) {
            n->best_ns = ns;
            n->bytes = bytes;
            n->flops = work.flops;
        }
        n->total_ns += ns;
        n->runs++;
        tj_unlock(&p->lock);
    }
    if (w->step)
        w->step(w->arg, p->prog->steps[i].name, p->prog->steps[i].node, t0, now);
}

tj_status tj_plan_steps(struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args) {
    tj_status s = TRACE_OK;
    uint32_t i = 0, loops = 0;
    for (; i < p->prog->nsteps && !s; i++) {
        if (args->cancel && TJ_UNLIKELY(atomic_load_explicit(args->cancel, memory_order_relaxed))) {
            s = tj_fail(TRACE_ERR_SHUTDOWN, "the run was cancelled after %u of %u steps", i, p->prog->nsteps);
            break;
        }
        uint64_t t0 = TJ_UNLIKELY(args->watch != NULL) ? tj_now_ns() : 0;
        if (p->prog->steps[i].kind == TJ_STEP_LOOP)
            run_loop(p, i, in, args);
        else if (TJ_UNLIKELY(p->prog->steps[i].kind == TJ_STEP_REPEAT)) {
            s = tj_turns_run(p, i, in, args);
            loops++; // not a launch: its kernels are
        } else
            run_contract(p, i, in, args);
        if (TJ_UNLIKELY(args->watch != NULL))
            watched(p, i, in, args->watch, t0);
    }
    if (args->launches)
        *args->launches += i - loops;
    if (args->bytes_moved)
        *args->bytes_moved += (uint64_t)in->vals[p->prog->bytes_moved];
    return s;
}

tj_status tj_plan_run(struct tj_plan *p, const struct tj_run_args *args) {
    struct tj_plan_instance *in = instance_take(p);
    if (!in)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for a run");
    tj_status s = instance_prepare(p, in, args);
    if (!s)
        s = tj_plan_steps(p, in, args);
    if (!s && in->caps && args->padding) {
        *args->padding += in->padding;
        *args->bucketed += in->want;
    }
    instance_give(p, in);
    return s;
}

bool tj_instance_guess(const struct tj_plan *p, struct tj_plan_instance *in, const struct tj_run_args *args) {
    in->known = false;
    if (!tj_exprs_eval(&p->prog->exprs, args, in->vals))
        return false;
    for (uint32_t i = 0; i < p->prog->nsteps; i++) {
        struct tj_view w;
        if (p->steps[i].body && !tj_turns_guess(p, i, in, args))
            return false;
        if (p->steps[i].weight_leaf == UINT32_MAX || tj_env_off(&p->jit->ctx->env, TJ_KILL_PREPACK))
            continue;
        view_of(in, &p->prog->steps[i].b, &w);
        if (tj_contract_pack_bytes(p->steps[i].contract, &w))
            in->packed[i] = (struct tj_packed *)(void *)in; // as if
    }
    return true;
}

static size_t bound_workspace(struct tj_plan *p, const struct tj_segment *seg) {
    for (uint32_t i = 0; i < seg->trace->nleaves; i++)
        if (!seg->trace->leaves[i].tensor) // the body of a loop: what is carried has no memory yet
            return 0;
    struct tj_run_args args = {.trace = seg->trace, .leaves = seg->trace->leaves, .params = seg->trace->params};
    struct tj_plan_instance *in = tj_instance_new(p, NULL, 1);
    size_t want = 0;
    if (in && tj_instance_guess(p, in, &args) && tj_instance_place(p, in, &want))
        want = 0;
    tj_instance_free(p, in);
    return want;
}

// ---- bound plans ----------------------------------------------------------------------------------------------------

// A step with everything resolved: a launch is a call through a pointer.
struct bound_step {
    struct loop_run loop; // LOOP, or the epilogue
    tj_kernel_fn fn2;     // second phase of a split reduction, or NULL
    struct cut cut2;
    bool turns;                   // a counted loop
    struct tj_contract *contract; // NULL: a loop
    struct tj_contract_args args;
};
struct tj_bound_plan {
    struct tj_plan *plan; // a reference
    struct tj_plan_instance *in;
    struct tj_pool *pool; // NULL: the calling thread alone
    bool own_memory;
    struct tj_run_args args; // of counted loops
    uint32_t nsteps;
    struct bound_step steps[];
};

static void bound_loop(struct tj_bound_plan *b, uint32_t i, const struct tj_run_args *args) {
    const struct tj_loop *l = &b->plan->prog->steps[i].loop;
    struct bound_step *s = &b->steps[i];
    struct tj_plan_instance *in = b->in;
    loop_setup(b->plan, i, in, args, &s->loop);
    int64_t rows = rows_of(in, l);
    if (l->kernel->split) {
        s->loop.args.partials = s->loop.scratch + s->loop.scratch_bytes * scratch_slots(in);
        s->fn2 = b->plan->steps[i].code.fn2;
        s->cut2 = (struct cut){.tasks = 1, .rows = rows, .cols = 1, .step = rows > 0 ? rows : 1};
        rows *= split_blocks(row_elems_of(in, l));
    }
    s->loop.cut = cut_loop(in->threads, l, in->vals, rows);
    if (s->loop.cut.tasks == 1) // launched without a task around it
        s->loop.args.scratch = s->loop.scratch_bytes ? s->loop.scratch : NULL;
}

void tj_bound_plan_free(struct tj_bound_plan *b) {
    if (!b)
        return;
    struct tj_plan *p = b->plan;
    if (b->in) {
        tj_instance_unpack(p, b->in);
        if (!b->own_memory)
            b->in->ws = NULL;
        tj_instance_free(p, b->in);
    }
    tj_free(b);
    tj_plan_release(p);
}

tj_status tj_plan_bind(struct tj_plan *p, const struct tj_run_args *args, struct tj_bind *o,
                       struct tj_bound_plan **out) {
    const struct tj_program *g = p->prog;
    *out = NULL;
    struct tj_bound_plan *b = tj_calloc(1, sizeof *b + g->nsteps * sizeof b->steps[0]);
    struct tj_plan_instance *in = b ? tj_instance_new(p, NULL, o->use_pool ? plan_threads(p) : 1) : NULL;
    if (!in) {
        tj_free(b);
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for a bound plan");
    }
    (void)atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    b->plan = p;
    b->in = in;
    in->bound = true;
    b->nsteps = g->nsteps;
    b->pool = in->pool = in->threads > 1 ? p->jit->ctx->pool : NULL;
    b->args.err = args->err; // loops look at it later; what else they need is theirs
    size_t want = 0;
    tj_status s = tj_instance_sizes(p, in, args);
    if (!s) {
        tj_instance_pack(p, in, args);
        s = tj_instance_place(p, in, &want);
    }
    o->need = want;
    if (!s && want && o->memory && o->bytes < want)
        s = tj_fail(TRACE_ERR_ARGUMENT, "the workspace given has %zu bytes and the plan needs %zu", o->bytes, want);
    if (!s && want) {
        in->ws = o->memory;
        if (!in->ws) {
            in->ws = tj_buffer_alloc(p->jit->ctx, want);
            in->ws_bytes = want;
            b->own_memory = in->ws != NULL;
        }
        if (!in->ws)
            s = no_workspace(want);
    }
    if (s) {
        tj_bound_plan_free(b);
        return s;
    }
    if (want)
        memset(in->ws, 0, want); // its pages are there when the first run comes
    tj_instance_fill(p, in, args);
    for (uint32_t i = 0; i < g->nsteps; i++) {
        const struct tj_step *st = &g->steps[i];
        b->steps[i].contract = p->steps[i].contract;
        if (st->kind == TJ_STEP_REPEAT) {
            b->steps[i].turns = true;
            tj_turns_packed(p, i, in, o->packed);
        } else if (st->kind != TJ_STEP_LOOP) {
            contract_setup(p, i, in, args, &b->steps[i].loop, &b->steps[i].args);
            if (in->packed[i])
                o->packed[p->steps[i].weight_leaf] = true;
        } else {
            bound_loop(b, i, args);
        }
    }
    *out = b;
    return TRACE_OK;
}

void tj_bound_plan_run(struct tj_bound_plan *b) {
    for (uint32_t i = 0; i < b->nsteps; i++) {
        struct bound_step *s = &b->steps[i];
        if (s->contract) {
            tj_contract_run(s->contract, &s->args);
            continue;
        }
        if (s->turns) {
            (void)tj_turns_run(b->plan, i, b->in, &b->args); // nothing in it can fail
            continue;
        }
        if (s->loop.cut.tasks == 1)
            s->loop.fn(&s->loop.args, 0, s->loop.cut.rows, 0, s->loop.cut.cols);
        else
            tj_pool_run(b->pool, (size_t)s->loop.cut.tasks, loop_task, &s->loop);
        if (s->fn2)
            s->fn2(&s->loop.args, 0, s->cut2.rows, 0, 1);
    }
}
