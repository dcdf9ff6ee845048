// trace/record_find.c: the leaves of a run by the memory that they lie in, made when a write first asks.
//
// Two tables over the leaves: a tree by address (a treap, each node knowing the largest end below it) of those that are
// memory of their own, and chains by storage of all. Both are filled up to the last leaf when they are asked.
#include "record.h"

#include "../lib/hash.h"

// Indices are those of leaves + 1; 0: none.
struct entry {
    struct tj_span at;
    uintptr_t most;             // largest end of the subtree
    uint32_t below[2], storage; // children; next leaf of the same storage
    uint32_t rank;              // heap order of the treap
    bool in;                    // is in the tree
};
struct store {
    const struct tj_storage *st;
    uint32_t first;
};
struct tj_leaf_index {
    struct entry *e;
    uint32_t cap, n, root; // n: leaves entered
    struct store *stores;
    uint32_t nstores, size; // size: power of two
};

// A placeholder's memory is nowhere: it stands where its storage lies, which is its own.
static struct tj_span span_of(const struct trace_tensor *t) {
    struct tj_span s = tj_tensor_span(t);
    if (TJ_UNLIKELY(!t->st->data)) {
        s.lo += (uintptr_t)t->st;
        s.hi += (uintptr_t)t->st;
    }
    return s;
}

static void refresh(struct entry *e, uint32_t i) {
    e[i].most = e[i].at.hi;
    for (int k = 0; k < 2; k++) {
        uint32_t c = e[i].below[k];
        e[i].most = c && e[c].most > e[i].most ? e[c].most : e[i].most;
    }
}

// Cuts tree i into those before leaf `at` and the rest.
static void cut(struct entry *e, uint32_t i, uint32_t at, uint32_t *left, uint32_t *right) {
    if (!i) {
        *left = *right = 0;
    } else if (e[i].at.lo < e[at].at.lo || (e[i].at.lo == e[at].at.lo && i < at)) {
        cut(e, e[i].below[1], at, &e[i].below[1], right);
        *left = i;
        refresh(e, i);
    } else {
        cut(e, e[i].below[0], at, left, &e[i].below[0]);
        *right = i;
        refresh(e, i);
    }
}

static uint32_t put(struct entry *e, uint32_t i, uint32_t at) {
    if (!i || e[at].rank > e[i].rank) {
        cut(e, i, at, &e[at].below[0], &e[at].below[1]);
        refresh(e, at);
        return at;
    }
    int side = e[i].at.lo < e[at].at.lo || (e[i].at.lo == e[at].at.lo && i < at);
    e[i].below[side] = put(e, e[i].below[side], at);
    refresh(e, i);
    return i;
}

static uint32_t merge(struct entry *e, uint32_t a, uint32_t b) {
    if (!a || !b) {
        return a ? a : b;
    }
    if (e[a].rank > e[b].rank) {
        e[a].below[1] = merge(e, e[a].below[1], b);
        refresh(e, a);
        return a;
    }
    e[b].below[0] = merge(e, a, e[b].below[0]);
    refresh(e, b);
    return b;
}

static uint32_t take(struct entry *e, uint32_t i, uint32_t at) {
    if (i == at) {
        return merge(e, e[i].below[0], e[i].below[1]);
    }
    int side = e[i].at.lo < e[at].at.lo || (e[i].at.lo == e[at].at.lo && i < at);
    e[i].below[side] = take(e, e[i].below[side], at);
    refresh(e, i);
    return i;
}

static struct store *store_of(const struct tj_leaf_index *x, const struct tj_storage *st) {
    uint64_t h = tj_hash_mix((uintptr_t)st, 3);
    while (x->stores[h & (x->size - 1)].st && x->stores[h & (x->size - 1)].st != st) {
        h++;
    }
    return &x->stores[h & (x->size - 1)];
}

static bool grow_stores(struct tj_leaf_index *x) {
    struct store *old = x->stores;
    uint32_t n = x->size;
    struct store *more = tj_calloc(n ? n * 2 : 64, sizeof *more);
    if (!more) {
        return false;
    }
    x->stores = more;
    x->size = n ? n * 2 : 64;
    for (uint32_t i = 0; i < n; i++) {
        if (old[i].st) {
            *store_of(x, old[i].st) = old[i];
        }
    }
    tj_free(old);
    return true;
}

// Enters the leaves that came since. NULL: out of memory.
static struct tj_leaf_index *filled(struct tj_run *run) {
    struct tj_record *rec = run->rec;
    struct tj_leaf_index *x = rec->index;
    if (!x && !(x = rec->index = tj_calloc(1, sizeof *x))) {
        return NULL;
    }
    uint32_t n = run->trace.nleaves;
    if (x->n == n) {
        return x;
    }
    if (!tj_grow((void **)&x->e, &x->cap, n + 1, sizeof *x->e)) {
        return NULL;
    }
    for (; x->n < n; x->n++) {
        uint32_t i = x->n + 1;
        const struct trace_tensor *t = run->trace.leaves[x->n].tensor;
        const struct tj_value *v = &run->values[rec->leafnodes[x->n]];
        if (x->nstores * 2 >= x->size && !grow_stores(x)) {
            return NULL;
        }
        struct store *s = store_of(x, t->st);
        x->nstores += !s->st;
        x->e[i] =
            (struct entry){.at = span_of(t), .storage = s->st ? s->first : 0, .rank = (uint32_t)tj_hash_mix(i, 5)};
        *s = (struct store){t->st, i};
        if (t->numel && !v->rebased && v->state != TJ_V_DEAD) {
            x->e[i].in = true;
            x->root = put(x->e, x->root, i);
        }
    }
    return x;
}

void tj_leaves_forget(struct tj_record *rec) {
    struct tj_leaf_index *x = rec->index;
    if (x && x->n) {
        x->n = x->root = x->nstores = 0;
        memset(x->stores, 0, x->size * sizeof *x->stores);
    }
}

void tj_leaves_regroup(struct tj_run *run) {
    struct tj_record *rec = run->rec;
    struct tj_trace *t = &run->trace;
    for (uint32_t i = 0; i < t->nleaves; i++) {
        rec->groupof[i] = (struct tj_member){0, 0};
    }
    for (uint32_t i = 0; i < t->nleaves; i++) {
        const struct tj_value *v = &run->values[rec->leafnodes[i]];
        if (v->rebased && v->state != TJ_V_DEAD) { // latest: its view of the base
            const struct tj_node *base = &t->nodes[t->nodes[v->latest].in[0]];
            struct tj_member *of = &rec->groupof[t->attrs[base->attr]];
            rec->groupof[i].next = of->first;
            of->first = i + 1;
        }
    }
    for (uint32_t i = 0; i < t->nleaves; i++) {
        if (!rec->groupof[i].first && !run->values[rec->leafnodes[i]].rebased) {
            t->leafkeys[i].group = 0;
        }
    }
}

void tj_leaves_free(struct tj_record *rec) {
    if (rec->index) {
        tj_free(rec->index->e);
        tj_free(rec->index->stores);
        tj_free(rec->index);
        rec->index = NULL;
    }
}

static bool walk(const struct entry *e, uint32_t i, struct tj_span at, tj_leaf_visit *visit, void *user) {
    for (; i && e[i].most > at.lo; i = e[i].below[1]) {
        if (!walk(e, e[i].below[0], at, visit, user)) {
            return false;
        }
        if (e[i].at.lo >= at.hi) {
            return true;
        }
        if (e[i].at.hi > at.lo && !visit(user, i - 1)) {
            return false;
        }
    }
    return true;
}

bool tj_leaves_over(struct tj_run *run, const struct trace_tensor *t, tj_leaf_visit *visit, void *user) {
    struct tj_leaf_index *x = filled(run);
    if (!x) {
        return false;
    }
    (void)walk(x->e, x->root, span_of(t), visit, user);
    return true;
}

void tj_leaves_remove(struct tj_run *run, uint32_t leaf) {
    struct tj_leaf_index *x = run->rec->index;
    uint32_t i = leaf + 1;
    if (x && leaf < x->n && x->e[i].in) {
        x->e[i].in = false;
        x->root = take(x->e, x->root, i);
    }
}

void tj_leaves_restore(struct tj_run *run, uint32_t leaf) {
    struct tj_leaf_index *x = run->rec->index;
    uint32_t i = leaf + 1;
    if (x && leaf < x->n && !x->e[i].in) {
        x->e[i].in = true;
        x->e[i].below[0] = x->e[i].below[1] = 0;
        x->root = put(x->e, x->root, i);
    }
}

bool tj_leaves_of(struct tj_run *run, const struct tj_storage *st, uint32_t *first) {
    struct tj_leaf_index *x = filled(run);
    *first = 0;
    if (x && x->size) {
        const struct store *s = store_of(x, st);
        *first = s->st ? s->first : 0;
    }
    return x != NULL;
}

uint32_t tj_leaves_next(const struct tj_run *run, uint32_t at) { return run->rec->index->e[at].storage; }
