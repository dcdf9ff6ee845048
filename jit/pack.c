// jit/pack.c: repacked copies of weights, kept with the storage they were made from.
//
// A storage has a set of them: a table by form and place, and an order by last use. A set stays within a multiple of
// its storage's size. What finds no room is used as it lies, until its place is asked for again while it is still among
// the latest that were missed: then the longest unused make room. So a window that slides over a weight packs a bounded
// part of it, and weights that are used again and again are packed. Under memory pressure copies in nobody's hands go
// first.
#include "cpu_backend.h"

#include "../lib/hash.h"

#define SET_SHARE 3     // bytes of packed copies a byte of the storage
#define SET_LEAST 16384 // or so many, if that is more
#define MISSED 16       // places remembered that found no room

struct tj_packed {
    struct tj_packed *chain;         // of its bucket
    struct tj_packed *newer, *older; // of the set, by last use
    atomic_int refs;                 // one for the set, one a run that uses it
    uint32_t process;                // that fills it
    bool ready;                      // it is filled. Under the lock
    trace_context *ctx;              // for the allocator; the storage keeps it alive
    uint64_t hash, layout;           // layout: form (tj_contract_pack_layout)
    int64_t offset;                  // where the view begins in the storage
    struct tj_view view;             // its geometry; p unused
    void *data;
    size_t bytes;
};
// Copies of one storage, all of one version; under the lock of its tj_jit.
struct tj_packed_set {
    struct tj_packed_set *next, **link; // of the context's; link: what points here
    struct tj_jit *jit;
    uint32_t epoch;   // of the context, when this was last changed
    uint64_t version; // content that the copies are of
    struct tj_packed **buckets, *newest, *oldest;
    uint32_t nbuckets, n; // nbuckets: power of two
    size_t bytes, limit;  // headers included
    uint64_t missed[MISSED];
    uint32_t nmissed;
};

const void *tj_packed_data(const struct tj_packed *p) { return p->data; }

void tj_pack_put(struct tj_packed *p) {
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
        return;
    (void)atomic_fetch_sub_explicit(&p->ctx->count.bytes_packed, p->bytes, memory_order_relaxed);
    (void)atomic_fetch_sub_explicit(&p->ctx->count.packed_copies, 1, memory_order_relaxed);
    tj_buffer_free(p->ctx, p->data, p->bytes);
    tj_free(p);
}

static size_t cost(const struct tj_packed *e) { return e->bytes + sizeof *e; }

// Unlinked entries, linked by chain.
static void drop_chain(struct tj_packed *p) {
    while (p) {
        struct tj_packed *next = p->chain;
        tj_pack_put(p);
        p = next;
    }
}

// ---- sets; the lock is held -----------------------------------------------------------------------------------------

// In a child of fork the sets may be in the middle of a change by a thread of the parent: what they held is lost.
static void lock_sets(struct tj_jit *jit) {
    if (TJ_LIKELY(!tj_lock(&jit->pack_lock)))
        return;
    jit->pack_epoch++;
    struct tj_packed_set **link = &jit->packed;
    for (struct tj_packed_set *s = *link; s; link = &s->next, s = s->next)
        s->link = link;
}

static void make_whole(struct tj_packed_set *s) {
    if (TJ_LIKELY(s->epoch == s->jit->pack_epoch))
        return;
    s->epoch = s->jit->pack_epoch;
    memset(s->buckets, 0, s->nbuckets * sizeof *s->buckets);
    s->newest = s->oldest = NULL;
    s->n = 0;
    s->bytes = 0;
}

static void push_newest(struct tj_packed_set *s, struct tj_packed *e) {
    e->newer = NULL;
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

static void pull(struct tj_packed_set *s, struct tj_packed *e) {
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
}

// Takes e out of the set, onto *gone; the set's reference goes with it.
static void unlink_copy(struct tj_packed_set *s, struct tj_packed *e, struct tj_packed **gone) {
    struct tj_packed **p = &s->buckets[e->hash & (s->nbuckets - 1)];
    while (*p != e)
        p = &(*p)->chain;
    *p = e->chain;
    pull(s, e);
    s->bytes -= cost(e);
    s->n--;
    e->chain = *gone;
    *gone = e;
}

static void insert(struct tj_packed_set *s, struct tj_packed *e) {
    if (s->n >= s->nbuckets) {
        uint32_t more = s->nbuckets * 2;
        struct tj_packed **buckets = tj_calloc(more, sizeof(struct tj_packed *));
        for (struct tj_packed *o = buckets ? s->newest : NULL; o; o = o->older) {
            struct tj_packed **p = &buckets[o->hash & (more - 1)];
            o->chain = *p;
            *p = o;
        }
        if (buckets) { // without memory for it the chains get longer
            tj_free(s->buckets);
            s->buckets = buckets;
            s->nbuckets = more;
        }
    }
    struct tj_packed **p = &s->buckets[e->hash & (s->nbuckets - 1)];
    e->chain = *p;
    *p = e;
    push_newest(s, e);
    s->bytes += cost(e);
    s->n++;
}

// The set of a storage, for its content `version`; copies of older contents go to *gone. NULL: no memory.
static struct tj_packed_set *set_of(struct tj_jit *jit, struct tj_storage *st, uint64_t version,
                                    struct tj_packed **gone) {
    struct tj_packed_set *s = atomic_load_explicit(&st->packed, memory_order_relaxed);
    if (!s) {
        s = tj_calloc(1, sizeof *s);
        struct tj_packed **buckets = s ? tj_calloc(4, sizeof(struct tj_packed *)) : NULL;
        if (!buckets) {
            tj_free(s);
            return NULL;
        }
        s->jit = jit;
        s->epoch = jit->pack_epoch;
        s->buckets = buckets;
        s->nbuckets = 4;
        s->version = version;
        s->limit = st->bytes < SIZE_MAX / SET_SHARE ? st->bytes * SET_SHARE : SIZE_MAX;
        s->limit = s->limit > SET_LEAST ? s->limit : SET_LEAST;
        s->next = jit->packed;
        s->link = &jit->packed;
        if (s->next)
            s->next->link = &s->next;
        jit->packed = s;
        atomic_store(&st->packed, s);
    }
    make_whole(s);
    if (s->version != version) {
        while (s->oldest)
            unlink_copy(s, s->oldest, gone);
        s->version = version;
    }
    return s;
}

static bool same_view(const struct tj_view *a, const struct tj_view *b) {
    return a->rank == b->rank && a->dtype == b->dtype && !memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) &&
           !memcmp(a->strides, b->strides, a->rank * sizeof *a->strides);
}

static uint64_t place_hash(uint64_t layout, const struct tj_view *w, int64_t offset) {
    uint64_t h = tj_hash_mix(layout, (uint64_t)offset);
    if (tj_hash_collide)
        return 0;
    for (size_t d = 0; d < w->rank; d++)
        h = tj_hash_mix(h ^ (uint64_t)w->strides[d], (uint64_t)w->dims[d]);
    return h;
}

// The copy of that form and place, or NULL; waits for one that is being filled.
static struct tj_packed *lookup(struct tj_packed_set *s, uint64_t hash, uint64_t layout, const struct tj_view *w,
                                int64_t offset, bool *filling) {
    struct tj_packed *e = s->buckets[hash & (s->nbuckets - 1)];
    while (e && !(e->hash == hash && e->layout == layout && e->offset == offset && same_view(&e->view, w)))
        e = e->chain;
    *filling = e && !e->ready && e->process == tj_process();
    return e;
}

// Whether a copy of `bytes` more may be made; makes room for it when its place was missed before.
static bool admit(struct tj_packed_set *s, uint64_t hash, size_t bytes, bool must, struct tj_packed **gone) {
    size_t more = bytes + sizeof(struct tj_packed);
    if (!s->n || must || (more <= s->limit && s->bytes <= s->limit - more))
        return true;
    for (uint32_t i = 0; i < MISSED && i < s->nmissed; i++) {
        if (s->missed[i] != hash)
            continue;
        s->missed[i] = s->missed[--s->nmissed % MISSED];
        while (s->oldest && s->bytes + more > s->limit) {
            unlink_copy(s, s->oldest, gone);
            (void)TJ_COUNT_UP(&s->jit->ctx->count, packed_dropped, 1);
        }
        return true;
    }
    s->missed[s->nmissed++ % MISSED] = hash;
    return false;
}

// ---- for plans ------------------------------------------------------------------------------------------------------

static struct tj_packed *copy_new(struct tj_jit *jit, size_t bytes) {
    struct tj_packed *e = tj_calloc(1, sizeof *e);
    void *data = e ? tj_buffer_try(jit->ctx, bytes) : NULL;
    if (!data) {
        tj_free(e);
        return NULL;
    }
    atomic_init(&e->refs, 1);
    e->ctx = jit->ctx;
    e->process = tj_process();
    e->data = data;
    e->bytes = bytes;
    (void)TJ_COUNT_UP(&jit->ctx->count, bytes_packed, bytes);
    (void)TJ_COUNT_UP(&jit->ctx->count, packed_copies, 1);
    return e;
}

struct tj_packed *tj_pack_get(struct tj_jit *jit, struct tj_storage *st, const struct tj_contract *c,
                              const struct tj_view *w, int64_t offset, bool must) {
    uint64_t layout = tj_contract_pack_layout(c, w), hash = place_hash(layout, w, offset);
    struct tj_packed *gone = NULL, *found = NULL, *fresh = NULL;
    struct tj_packed_set *s;
    bool filling = false;
    size_t bytes = 0;
    for (;;) {
        lock_sets(jit);
        s = set_of(jit, st, atomic_load(&st->version), &gone);
        found = s ? lookup(s, hash, layout, w, offset, &filling) : NULL;
        if (found && !found->ready && !filling) { // a thread that fork left behind was filling it
            unlink_copy(s, found, &gone);
            found = NULL;
        }
        if (found && filling) {
            tj_cond_wait(&jit->pack_done, &jit->pack_lock, TJ_FOREVER);
            tj_unlock(&jit->pack_lock); // everything may be different now
            continue;
        }
        if (found || fresh || !s)
            break;
        bytes = tj_contract_pack_bytes(c, w);
        bool ok = admit(s, hash, bytes, must, &gone);
        tj_unlock(&jit->pack_lock);
        if (!ok)
            (void)TJ_COUNT_UP(&jit->ctx->count, packed_refused, 1);
        fresh = ok ? copy_new(jit, bytes) : NULL;
        if (!fresh) {
            drop_chain(gone);
            return NULL;
        }
    }
    if (found) {
        (void)atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
        if (s->newest != found) {
            pull(s, found);
            push_newest(s, found);
        }
    } else if (s) {
        fresh->hash = hash;
        fresh->layout = layout;
        fresh->offset = offset;
        fresh->view = *w;
        insert(s, fresh);
        (void)atomic_fetch_add_explicit(&fresh->refs, 1, memory_order_relaxed);
    }
    tj_unlock(&jit->pack_lock);
    if (!found && s) {
        tj_contract_pack(c, w, fresh->data);
        lock_sets(jit);
        fresh->ready = true;
        tj_cond_wake(&jit->pack_done);
        tj_unlock(&jit->pack_lock);
        found = fresh;
        fresh = NULL;
    }
    tj_pack_put(fresh);
    drop_chain(gone);
    return found;
}

void tj_pack_free_all(struct tj_storage *st) {
    struct tj_packed_set *s = atomic_exchange(&st->packed, NULL);
    struct tj_packed *gone = NULL;
    if (!s)
        return;
    struct tj_jit *jit = s->jit;
    lock_sets(jit);
    make_whole(s);
    while (s->oldest)
        unlink_copy(s, s->oldest, &gone);
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    tj_unlock(&jit->pack_lock);
    drop_chain(gone);
    tj_free(s->buckets);
    tj_free(s);
}

void tj_pack_trim(struct tj_jit *jit) {
    struct tj_packed *gone = NULL;
    lock_sets(jit);
    for (struct tj_packed_set *s = jit->packed; s; s = s->next) {
        make_whole(s);
        for (struct tj_packed *e = s->oldest, *newer; e; e = newer) {
            newer = e->newer;
            if (atomic_load_explicit(&e->refs, memory_order_acquire) == 1)
                unlink_copy(s, e, &gone);
        }
    }
    tj_unlock(&jit->pack_lock);
    drop_chain(gone);
}
