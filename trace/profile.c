// trace/profile.c: counting the shapes that runs of a region had, and reading the counts.
//
// A row is a combination of shapes; what tells it is written once. A run object holds the rows of its latest runs with
// counts of its own, which are added to the row's under the region's lock when the place is needed for another row, the
// counts are read, or the run object goes.
#include "profile.h"

#include <stdlib.h>

#include "../lib/hash.h"

#define SEEN 16 // rows a run object counts by itself; a power of two

struct tj_profile_row {
    uint32_t refs;    // of the table and of run objects; under the lock
    atomic_bool gone; // merged into the others
    uint64_t hash;
    uint64_t count; // under the lock
    uint64_t total; // scratch: with what the run objects have counted
    uint32_t nwords;
    int64_t key[]; // an input after the other: its number, dtype and rank in one word, then its extents
};
struct seen {
    struct tj_profile_row *row;
    _Atomic uint64_t count; // not added to the row's yet; only the thread that has the box adds
};
struct tj_profile_box {
    struct tj_profile_box *prev, *next;
    struct tj_profile *profile;
    uint32_t epoch; // of the profile, when it was put on its list
    uint32_t last;
    struct seen seen[SEEN];
};

// ---- keys ----------------------------------------------------------------------------------------------------------

#define KEY_WORDS (TJ_PROFILE_INPUTS * (1 + TJ_MAX_RANK))

static int64_t head(uint32_t input, uint8_t dtype, uint8_t rank) {
    return (int64_t)((uint64_t)input << 16 | (uint64_t)dtype << 8 | rank);
}

static bool same_key(const struct tj_profile_row *row, const struct tj_trace *t) {
    const int64_t *k = row->key, *end = k + row->nwords;
    for (uint32_t i = 0; i < t->nleaves && t->leafkeys[i].input; i++) {
        const struct tj_leaf_key *l = &t->leafkeys[i];
        if (k == end || *k++ != head(l->input - 1, l->dtype, l->rank))
            return false;
        const int64_t *d = tj_shape_dims(t, l->shape);
        for (int j = 0; j < l->rank; j++) {
            if (*k++ != d[j])
                return false;
        }
    }
    return k == end;
}

static uint64_t hash_of(const struct tj_trace *t) {
    uint64_t h = 0x5EE4;
    for (uint32_t i = 0; i < t->nleaves && t->leafkeys[i].input; i++) {
        const struct tj_leaf_key *l = &t->leafkeys[i];
        h = tj_hash_mix(h, (uint64_t)head(l->input - 1, l->dtype, l->rank));
        const int64_t *d = tj_shape_dims(t, l->shape);
        for (int j = 0; j < l->rank; j++)
            h = tj_hash_mix(h, (uint64_t)d[j]);
    }
    return h;
}

static struct tj_profile_row *row_new(const int64_t *key, uint32_t nwords, uint64_t hash) {
    struct tj_profile_row *row = tj_calloc(1, sizeof *row + nwords * sizeof *row->key);
    if (row) {
        row->hash = hash;
        row->nwords = nwords;
        if (nwords)
            memcpy(row->key, key, nwords * sizeof *key);
    }
    return row;
}

static struct tj_profile_row *row_of(const struct tj_trace *t, uint64_t hash) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->nleaves && t->leafkeys[i].input; i++)
        n += 1u + t->leafkeys[i].rank;
    if (n > KEY_WORDS)
        return NULL;
    struct tj_profile_row *row = tj_calloc(1, sizeof *row + n * sizeof *row->key);
    if (!row)
        return NULL;
    row->hash = hash;
    for (uint32_t i = 0; i < t->nleaves && t->leafkeys[i].input; i++) {
        const struct tj_leaf_key *l = &t->leafkeys[i];
        row->key[row->nwords++] = head(l->input - 1, l->dtype, l->rank);
        if (l->rank)
            memcpy(row->key + row->nwords, tj_shape_dims(t, l->shape), l->rank * sizeof *row->key);
        row->nwords += l->rank;
    }
    return row;
}

// ---- the table; its lock is held -----------------------------------------------------------------------------------

static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

// Counts are lost that a thread which fork left behind was changing: the child starts anew.
void tj_profile_lock(struct tj_profile *p) {
    if (!tj_lock(&p->lock))
        return;
    p->n = 0;
    p->other = 0;
    p->boxes = NULL;
    p->epoch++;
}

static void row_drop(struct tj_profile_row *row) {
    if (row && --row->refs == 0)
        tj_free(row);
}

static void add_to(struct tj_profile *p, struct tj_profile_row *row, uint64_t n) {
    if (atomic_load_explicit(&row->gone, memory_order_relaxed))
        p->other = sum(p->other, n);
    else
        row->count = sum(row->count, n);
}

// What the run objects have counted, in the rows' `total`; gives what belongs to the others.
static uint64_t totals(struct tj_profile *p) {
    uint64_t other = p->other;
    for (uint32_t i = 0; i < p->n; i++)
        p->rows[i]->total = p->rows[i]->count;
    for (struct tj_profile_box *b = p->boxes; b; b = b->next) {
        for (uint32_t i = 0; i < SEEN; i++) {
            struct tj_profile_row *row = b->seen[i].row;
            if (!row)
                continue;
            uint64_t n = atomic_load_explicit(&b->seen[i].count, memory_order_relaxed);
            if (atomic_load_explicit(&row->gone, memory_order_relaxed))
                other = sum(other, n);
            else
                row->total = sum(row->total, n);
        }
    }
    return other;
}

// Enters a row, without a reference of the caller's; the coldest makes room.
static void enter(struct tj_profile *p, struct tj_profile_row *row) {
    uint32_t at = p->n;
    if (at == TJ_PROFILE_ROWS) {
        (void)totals(p);
        at = 0;
        for (uint32_t i = 1; i < p->n; i++) {
            if (p->rows[i]->total < p->rows[at]->total)
                at = i;
        }
        struct tj_profile_row *cold = p->rows[at];
        p->other = sum(p->other, cold->count);
        atomic_store_explicit(&cold->gone, true, memory_order_relaxed);
        row_drop(cold);
    }
    row->refs++;
    p->rows[at] = row;
    if (at == p->n)
        p->n++;
}

static struct tj_profile_row *find(const struct tj_profile *p, const struct tj_trace *t, uint64_t hash) {
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->rows[i]->hash == hash && same_key(p->rows[i], t))
            return p->rows[i];
    }
    return NULL;
}

// ---- counting ------------------------------------------------------------------------------------------------------

static void count_up(struct seen *s) {
    atomic_store_explicit(&s->count, atomic_load_explicit(&s->count, memory_order_relaxed) + 1, memory_order_relaxed);
}

static bool serves(const struct seen *s, const struct tj_trace *t) {
    return s->row && !atomic_load_explicit(&s->row->gone, memory_order_relaxed) && same_key(s->row, t);
}

void tj_profile_run(struct tj_box *b, const struct tj_trace *t) {
    struct tj_profile_box *pb = b->profile;
    if (TJ_LIKELY(pb && serves(&pb->seen[pb->last], t))) {
        count_up(&pb->seen[pb->last]);
        return;
    }
    uint64_t hash = hash_of(t);
    uint32_t at = (uint32_t)(hash % SEEN);
    if (pb && serves(&pb->seen[at], t)) {
        pb->last = at;
        count_up(&pb->seen[at]);
        return;
    }
    struct tj_profile *p = &b->run.region->profile;
    bool fresh_box = !pb && b->pooled; // others go with the run
    if (fresh_box)
        pb = tj_calloc(1, sizeof *pb);
    tj_profile_lock(p);
    struct tj_profile_row *row = find(p, t, hash);
    tj_unlock(&p->lock);
    struct tj_profile_row *made = row ? NULL : row_of(t, hash);
    tj_profile_lock(p);
    row = find(p, t, hash); // another thread may have entered it, or dropped it
    if (!row && made) {
        enter(p, made);
        row = made;
        made = NULL;
    }
    if (pb && (fresh_box || pb->epoch != p->epoch)) {
        pb->profile = p;
        pb->epoch = p->epoch;
        pb->prev = NULL;
        pb->next = p->boxes;
        if (pb->next)
            pb->next->prev = pb;
        p->boxes = pb;
        b->profile = pb;
    }
    if (!row) {
        p->other = sum(p->other, 1); // out of memory for it, or too many inputs
    } else if (!pb) {
        add_to(p, row, 1);
    } else {
        struct seen *s = &pb->seen[at];
        if (s->row) {
            add_to(p, s->row, atomic_load_explicit(&s->count, memory_order_relaxed));
            row_drop(s->row);
        }
        row->refs++;
        s->row = row;
        atomic_store_explicit(&s->count, 1, memory_order_relaxed);
        pb->last = at;
    }
    tj_unlock(&p->lock);
    tj_free(made);
}

void tj_profile_box_free(struct tj_box *b) {
    struct tj_profile_box *pb = b->profile;
    if (!pb)
        return;
    struct tj_profile *p = pb->profile;
    tj_profile_lock(p);
    for (uint32_t i = 0; i < SEEN; i++) {
        if (!pb->seen[i].row)
            continue;
        add_to(p, pb->seen[i].row, atomic_load_explicit(&pb->seen[i].count, memory_order_relaxed));
        row_drop(pb->seen[i].row);
    }
    if (pb->epoch == p->epoch) {
        *(pb->prev ? &pb->prev->next : &p->boxes) = pb->next;
        if (pb->next)
            pb->next->prev = pb->prev;
    }
    tj_unlock(&p->lock);
    tj_free(pb);
    b->profile = NULL;
}

// All run objects are gone.
void tj_profile_free(struct trace_region *r) {
    for (uint32_t i = 0; i < r->profile.n; i++)
        row_drop(r->profile.rows[i]);
    r->profile.n = 0;
}

// ---- reading -------------------------------------------------------------------------------------------------------

static int by_count(const void *a, const void *b) {
    const struct tj_profile_combination *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    // Any order will do that is the same each time.
    for (uint32_t i = 0; i < x->ninputs && i < y->ninputs; i++) {
        const struct tj_profile_shape *s = &x->inputs[i], *o = &y->inputs[i];
        if (s->rank != o->rank)
            return s->rank < o->rank ? -1 : 1;
        for (uint32_t d = 0; d < s->rank; d++) {
            if (s->dims[d] != o->dims[d])
                return s->dims[d] < o->dims[d] ? -1 : 1;
        }
    }
    return x->ninputs < y->ninputs ? -1 : x->ninputs > y->ninputs;
}

bool tj_profile_read(struct trace_region *r, struct tj_profile_view *v) {
    struct tj_profile *p = &r->profile;
    memset(v, 0, sizeof *v);
    tj_profile_lock(p);
    size_t words = 0, shapes = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct tj_profile_row *row = p->rows[i];
        words += row->nwords;
        for (uint32_t k = 0; k < row->nwords; k += 1u + (row->key[k] & 0xFF))
            shapes++;
    }
    char *m = tj_malloc(p->n * sizeof *v->rows + shapes * sizeof(struct tj_profile_shape) + words * sizeof(int64_t));
    if (!m) {
        tj_unlock(&p->lock);
        (void)tj_fail(TRACE_ERR_MEMORY, "region '%s': out of memory for its shapes", r->name);
        return false;
    }
    v->memory = m;
    v->rows = (void *)m;
    struct tj_profile_shape *shape = (void *)(m + p->n * sizeof *v->rows);
    int64_t *dims = (void *)(shape + shapes);
    v->other = v->total = totals(p);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct tj_profile_row *row = p->rows[i];
        if (!row->total)
            continue;
        struct tj_profile_combination *c = &v->rows[v->n++];
        *c = (struct tj_profile_combination){row->total, 0, shape};
        v->total = sum(v->total, row->total);
        for (uint32_t k = 0; k < row->nwords;) {
            uint64_t h = (uint64_t)row->key[k++];
            *shape = (struct tj_profile_shape){(uint32_t)(h >> 16), (uint8_t)(h >> 8), (uint8_t)h, dims};
            memcpy(dims, row->key + k, shape->rank * sizeof *dims);
            dims += shape->rank;
            k += shape->rank;
            shape++;
            c->ninputs++;
        }
    }
    tj_unlock(&p->lock);
    qsort(v->rows, v->n, sizeof *v->rows, by_count);
    return true;
}

void tj_profile_view_free(struct tj_profile_view *v) {
    tj_free(v->memory);
    memset(v, 0, sizeof *v);
}

static int by_value(const void *a, const void *b) {
    const struct tj_profile_value *x = a, *y = b;
    return x->value < y->value ? -1 : x->value > y->value;
}

int64_t tj_profile_values(const struct tj_profile_view *v, uint32_t input, uint32_t dim,
                          struct tj_profile_value **out) {
    struct tj_profile_value *a = *out = tj_malloc(v->n * sizeof *a);
    if (!a) {
        (void)tj_fail(TRACE_ERR_MEMORY, "out of memory for a histogram");
        return -1;
    }
    uint32_t n = 0, k = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct tj_profile_combination *c = &v->rows[i];
        for (uint32_t j = 0; j < c->ninputs; j++) {
            if (c->inputs[j].input == input && dim < c->inputs[j].rank)
                a[n++] = (struct tj_profile_value){c->inputs[j].dims[dim], c->count};
        }
    }
    qsort(a, n, sizeof *a, by_value);
    for (uint32_t i = 0; i < n; i++) {
        if (k && a[k - 1].value == a[i].value)
            a[k - 1].count = sum(a[k - 1].count, a[i].count);
        else
            a[k++] = a[i];
    }
    return k;
}

// ---- counts from a file --------------------------------------------------------------------------------------------

bool tj_profile_add(struct trace_region *r, const struct tj_profile_combination *rows, uint32_t n, uint64_t other) {
    struct tj_profile *p = &r->profile;
    struct tj_profile_row **made = tj_calloc(n ? n : 1, sizeof(struct tj_profile_row *));
    int64_t *key = tj_malloc(KEY_WORDS * sizeof *key);
    bool ok = made && key;
    for (uint32_t i = 0; ok && i < n; i++) {
        uint32_t words = 0;
        uint64_t hash = 0x5EE4; // as hash_of
        for (uint32_t j = 0; j < rows[i].ninputs; j++) {
            const struct tj_profile_shape *s = &rows[i].inputs[j];
            key[words++] = head(s->input, s->dtype, s->rank);
            for (uint32_t d = 0; d < s->rank; d++)
                key[words++] = s->dims[d];
        }
        for (uint32_t k = 0; k < words; k++)
            hash = tj_hash_mix(hash, (uint64_t)key[k]);
        made[i] = row_new(key, words, hash);
        ok = made[i] != NULL;
    }
    if (ok)
        tj_profile_lock(p);
    for (uint32_t i = 0; ok && i < n; i++) {
        struct tj_profile_row *row = NULL;
        for (uint32_t k = 0; k < p->n && !row; k++) {
            if (p->rows[k]->hash == made[i]->hash && p->rows[k]->nwords == made[i]->nwords &&
                tj_same(p->rows[k]->key, made[i]->key, made[i]->nwords * sizeof *key))
                row = p->rows[k];
        }
        if (!row) {
            enter(p, row = made[i]);
            made[i] = NULL;
        }
        row->count = sum(row->count, rows[i].count);
    }
    if (ok) {
        p->other = sum(p->other, other);
        tj_unlock(&p->lock);
    }
    for (uint32_t i = 0; made && i < n; i++)
        tj_free(made[i]);
    tj_free((void *)made);
    tj_free(key);
    if (!ok)
        (void)tj_fail(TRACE_ERR_MEMORY, "region '%s': out of memory for its shapes", r->name);
    return ok;
}
