// trace/repeats.c: whether two recordings differ in how often a loop of the host ran.
//
// Ops are compared by kind and line. Leaves are left out: a weight is captured by the first turn that uses it. What is
// the same in every turn is recorded by the first turn alone, so that turn may be longer than the others; the ops that
// one trace has more are whole turns all the same, though they may begin in the middle of one.
#include "repeats.h"

#include <stdio.h>

struct list {
    const struct tj_trace *t;
    tj_ref *ops;
    uint32_t n;
};

static bool make(struct list *l, const struct tj_trace *t) {
    l->t = t;
    l->n = 0;
    l->ops = tj_malloc((t->nnodes + 1u) * sizeof *l->ops);
    for (uint32_t i = 0; l->ops && i < t->nnodes; i++) {
        if (t->nodes[i].op != TJ_OP_LEAF)
            l->ops[l->n++] = i;
    }
    return l->ops != NULL;
}

static bool same_file(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

static bool same(const struct list *a, uint32_t i, const struct list *b, uint32_t j) {
    const struct tj_node *x = &a->t->nodes[a->ops[i]], *y = &b->t->nodes[b->ops[j]];
    const struct tj_loc *p = &a->t->locs[a->ops[i]], *q = &b->t->locs[b->ops[j]];
    return x->op == y->op && x->dtype == y->dtype && p->line == q->line && same_file(p->file, q->file);
}

// Length of the shortest stretch that ops [from, from + n) repeat as a whole; 0: out of memory.
static uint32_t period(const struct list *l, uint32_t from, uint32_t n) {
    uint32_t *border = tj_malloc(n * sizeof *border); // of each beginning: its longest proper one that is an end too
    if (!border)
        return 0;
    border[0] = 0;
    for (uint32_t i = 1, k = 0; i < n; i++) {
        while (k && !same(l, from + i, l, from + k))
            k = border[k - 1];
        k += same(l, from + i, l, from + k);
        border[i] = k;
    }
    uint32_t p = n - border[n - 1];
    tj_free(border);
    return n % p ? n : p;
}

static int64_t count(const struct list *l, const struct list *of, uint32_t at) {
    int64_t n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        n += same(l, i, of, at);
    return n;
}

static void lines(const struct list *l, uint32_t from, uint32_t n, char *buf, size_t cap) {
    const struct tj_loc *lo = NULL, *hi = NULL;
    bool one = true;
    for (uint32_t i = from; i < from + n; i++) {
        const struct tj_loc *x = &l->t->locs[l->ops[i]];
        if (!x->file)
            continue;
        one = one && (!lo || same_file(lo->file, x->file));
        lo = !lo || (one && x->line < lo->line) ? x : lo;
        hi = !hi || !one || x->line > hi->line ? x : hi;
    }
    if (!lo)
        (void)snprintf(buf, cap, "places unknown");
    else if (!one)
        (void)snprintf(buf, cap, "%.90s:%d to %.90s:%d", lo->file, (int)lo->line, hi->file, (int)hi->line);
    else if (lo->line == hi->line)
        (void)snprintf(buf, cap, "%.200s:%d", lo->file, (int)lo->line);
    else
        (void)snprintf(buf, cap, "%.200s:%d-%d", lo->file, (int)lo->line, (int)hi->line);
}

// b has more ops than a.
static bool find(const struct list *a, const struct list *b, int64_t *few, int64_t *many, char *where, size_t cap) {
    uint32_t extra = b->n - a->n, at = 0;
    while (at < a->n && same(a, at, b, at))
        at++;
    for (uint32_t i = at; i < a->n; i++) {
        if (!same(a, i, b, i + extra))
            return false;
    }
    uint32_t p = period(b, at, extra);
    if (!p)
        return false;
    // How often: by an op that a turn has once.
    uint32_t anchor = at + p;
    for (uint32_t i = at + p; i-- > at && anchor == at + p;) {
        uint32_t times = 0;
        for (uint32_t k = at; k < at + p && times < 2; k++)
            times += same(b, i, b, k);
        if (times == 1 && tj_ops[b->t->nodes[b->ops[i]].op].cls != TJ_SOURCE)
            anchor = i;
    }
    if (anchor == at + p)
        return false;
    *few = count(a, b, anchor);
    *many = count(b, b, anchor);
    if (*many < 2 || *many - *few != extra / p)
        return false; // not a loop: ops that stand there once
    lines(b, at, p, where, cap);
    return true;
}

bool tj_repeats_find(const struct tj_trace *old, const struct tj_trace *now, struct tj_repeats *out) {
    struct list a = {.ops = NULL}, b = {.ops = NULL};
    bool ok = make(&a, old) && make(&b, now) && a.n != b.n;
    if (ok && a.n < b.n)
        ok = find(&a, &b, &out->from, &out->to, out->where, sizeof out->where);
    else if (ok)
        ok = find(&b, &a, &out->to, &out->from, out->where, sizeof out->where);
    tj_free(a.ops);
    tj_free(b.ops);
    return ok;
}
