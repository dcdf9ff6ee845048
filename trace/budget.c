// trace/budget.c: limits of what a region or a context may compile and keep, and what happens when one is reached.
#include "budget.h"

#include "region.h"

static const struct {
    const char *name;
    int64_t unit;
    bool kept; // dropping plans gives it back
} kinds[TJ_BUDGETS] = {[TRACE_BUDGET_COMPILES] = {"compiles", 1, false},
                       [TRACE_BUDGET_COMPILE_MS] = {"ms of compiling", 1000000, false},
                       [TRACE_BUDGET_CODE_BYTES] = {"bytes of code", 1, true},
                       [TRACE_BUDGET_GRAPHS] = {"graphs", 1, true},
                       [TRACE_BUDGET_KERNELS] = {"kernels", 1, false}};

const char *tj_budget_name(int what) { return kinds[what].name; }

static int64_t load(const _Atomic int64_t *v) { return atomic_load_explicit(v, memory_order_relaxed); }

// Under WIDEN the last compile that fits, or the last quarter of a budget that is used up in pieces, is made for all
// sizes.
static bool nearly(int what, int64_t used, int64_t limit) {
    return what == TRACE_BUDGET_COMPILES || what == TRACE_BUDGET_GRAPHS ? used + 1 >= limit : used >= limit - limit / 4;
}

// What budget i answers, with `used` of it used.
static enum tj_verdict judge(const struct tj_budget *b, int i, int64_t used) {
    int64_t limit = load(&b->limit[i]);
    int policy = atomic_load_explicit(&b->policy[i], memory_order_relaxed);
    if (!limit)
        return TJ_ALLOWED;
    if (used >= limit && !(kinds[i].kept && (policy == TRACE_BUDGET_WIDEN || policy == TRACE_BUDGET_EVICT)))
        return policy == TRACE_BUDGET_INTERPRET ? TJ_INTERPRET : TJ_REFUSED;
    return policy == TRACE_BUDGET_WIDEN && nearly(i, used, limit) ? TJ_WIDE : TJ_ALLOWED;
}

// One compile and one graph more, reserved before the answer so that two threads don't get the same one.
static void ask(struct tj_budget *b, bool context, struct tj_budget_answer *out) {
    for (int i = 0; i < TJ_BUDGETS; i++) {
        bool reserve = i == TRACE_BUDGET_COMPILES || i == TRACE_BUDGET_GRAPHS;
        int64_t used = atomic_fetch_add_explicit(&b->used[i], reserve, memory_order_relaxed);
        enum tj_verdict v = judge(b, i, used);
        if (v > out->verdict)
            *out = (struct tj_budget_answer){v,    i, context, used / kinds[i].unit, load(&b->limit[i]) / kinds[i].unit,
                                             false};
    }
}

bool tj_budget_open(const struct trace_region *r) {
    bool open = true;
    for (int i = 0; i < TJ_BUDGETS; i++)
        open = open && judge(&r->budget, i, load(&r->budget.used[i])) < TJ_INTERPRET &&
               judge(&r->ctx->budget, i, load(&r->ctx->budget.used[i])) < TJ_INTERPRET;
    return open;
}

static void add(struct trace_region *r, int what, int64_t n) {
    (void)atomic_fetch_add_explicit(&r->budget.used[what], n, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&r->ctx->budget.used[what], n, memory_order_relaxed);
}

void tj_budget_ask(struct trace_region *r, struct tj_budget_answer *out) {
    *out = (struct tj_budget_answer){.verdict = TJ_ALLOWED, .what = -1};
    ask(&r->budget, false, out);
    ask(&r->ctx->budget, true, out);
    if (out->verdict >= TJ_INTERPRET)
        tj_budget_return(r);
}

void tj_budget_return(struct trace_region *r) {
    add(r, TRACE_BUDGET_COMPILES, -1);
    add(r, TRACE_BUDGET_GRAPHS, -1);
}

void tj_budget_made(struct trace_region *r, uint64_t ns, uint32_t kernels, uint64_t code) {
    add(r, TRACE_BUDGET_COMPILE_MS, (int64_t)ns);
    add(r, TRACE_BUDGET_KERNELS, kernels);
    add(r, TRACE_BUDGET_CODE_BYTES, (int64_t)code);
}

void tj_budget_dropped(struct trace_region *r, uint64_t code) {
    add(r, TRACE_BUDGET_GRAPHS, -1);
    add(r, TRACE_BUDGET_CODE_BYTES, -(int64_t)code);
}

void tj_budget_gone(struct trace_region *r) {
    for (int i = 0; i < TJ_BUDGETS; i++) {
        if (kinds[i].kept)
            (void)atomic_fetch_sub_explicit(&r->ctx->budget.used[i], load(&r->budget.used[i]), memory_order_relaxed);
    }
}

bool tj_budget_exceeded(const struct tj_budget *b, int *what) {
    for (int i = 0; i < TJ_BUDGETS; i++) {
        int64_t limit = load(&b->limit[i]);
        if (kinds[i].kept && limit && load(&b->used[i]) > limit) {
            *what = i;
            return true;
        }
    }
    return false;
}

void tj_budget_tell(struct trace_region *r, const struct tj_budget_answer *a, const char *site) {
    struct tj_budget *b = a->context ? &r->ctx->budget : &r->budget;
    const char *whose = a->context ? "context" : "region", *name = kinds[a->what].name;
    struct tj_loc none = TJ_LOC(NULL, 0);
    uint32_t bit = 1u << a->what;
    if (a->verdict == TJ_REFUSED)
        (void)tj_fail(TRACE_ERR_BUDGET,
                      "region '%s' (%s): the %s's budget of %lld %s is used up; raise it%s, or let runs without a "
                      "plan be interpreted",
                      r->name, site, whose, (long long)a->limit, name,
                      a->extents ? ", make extents symbolic (trace_region_dynamic, TRACE_DYNAMIC_ON)" : "");
    else if (a->verdict == TJ_INTERPRET && atomic_fetch_or_explicit(&b->told, bit, memory_order_relaxed) & bit)
        return; // each of these runs would tell it
    tj_event(r->ctx, r, TRACE_EVENT_BUDGET, none, -1, -1, a->used, a->limit, 0,
             "the %s's budget of %lld %s (%lld used) %s (%s)", whose, (long long)a->limit, name, (long long)a->used,
             a->verdict == TJ_WIDE        ? "comes to its end: the next graph has all extents of its inputs symbolic"
             : a->verdict == TJ_INTERPRET ? "is used up: runs without a plan go through the interpreter"
                                          : "is used up: the run fails",
             site);
}

// ---- public ---------------------------------------------------------------------------------------------------------

static tj_status set(const char *call, struct tj_budget *b, enum trace_budget what, int64_t limit,
                     enum trace_budget_policy policy) {
    if ((unsigned)what >= TJ_BUDGETS)
        return tj_fail(TRACE_ERR_ARGUMENT, "%s: budget %d is none", call, (int)what);
    if ((unsigned)policy > TRACE_BUDGET_FAIL)
        return tj_fail(TRACE_ERR_ARGUMENT, "%s: policy %d is none", call, (int)policy);
    if (limit == 0 || limit < -1 || limit > INT64_MAX / kinds[what].unit)
        return tj_fail(TRACE_ERR_ARGUMENT,
                       "%s: a budget of %lld %s: want at least 1, or -1 for none (TRACEJIT_NO=jit compiles nothing)",
                       call, (long long)limit, kinds[what].name);
    if (policy == TRACE_BUDGET_EVICT && !kinds[what].kept)
        return tj_fail(TRACE_ERR_ARGUMENT, "%s: dropping plans gives no %s back; take another policy", call,
                       kinds[what].name);
    atomic_store(&b->policy[what], (uint8_t)policy);
    atomic_store(&b->limit[what], limit < 0 ? 0 : limit * kinds[what].unit);
    atomic_store(&b->told, 0);
    return TRACE_OK;
}

enum trace_status trace_region_budget(trace_region *r, enum trace_budget what, int64_t limit,
                                      enum trace_budget_policy policy) {
    return r ? set("trace_region_budget", &r->budget, what, limit, policy)
             : tj_fail(TRACE_ERR_ARGUMENT, "trace_region_budget: NULL region");
}

enum trace_status trace_context_budget(trace_context *ctx, enum trace_budget what, int64_t limit,
                                       enum trace_budget_policy policy) {
    return ctx ? set("trace_context_budget", &ctx->budget, what, limit, policy)
               : tj_fail(TRACE_ERR_ARGUMENT, "trace_context_budget: NULL context");
}
