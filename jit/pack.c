// jit/pack.c: repacked copies of weights, kept with the storage they were made from.
#include "cpu_backend.h"

struct tj_packed {
    struct tj_packed *next;   // list of the storage
    atomic_int refs;          // one for the list, one a run that uses it
    trace_context *ctx;       // for the allocator; the storage keeps it alive
    uint64_t layout, version; // form (tj_contract_pack_layout) and content
    int64_t offset;           // where the view begins in the storage
    struct tj_view view;      // its geometry; p unused
    void *data;
    size_t bytes;
};

const void *tj_packed_data(const struct tj_packed *p) { return p->data; }

void tj_pack_put(struct tj_packed *p) {
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
        return;
    (void)atomic_fetch_sub_explicit(&p->ctx->count.bytes_packed, p->bytes, memory_order_relaxed);
    tj_buffer_free(p->ctx, p->data, p->bytes);
    tj_free(p);
}

static void drop_chain(struct tj_packed *p) {
    while (p) {
        struct tj_packed *next = p->next;
        tj_pack_put(p);
        p = next;
    }
}

void tj_pack_free_all(struct tj_storage *st) { drop_chain(atomic_exchange(&st->packed, NULL)); }

static bool same_view(const struct tj_view *a, const struct tj_view *b) {
    return a->rank == b->rank && a->dtype == b->dtype && !memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) &&
           !memcmp(a->strides, b->strides, a->rank * sizeof *a->strides);
}

// Current copy of that form and geometry, with a reference, or NULL. Copies of older versions are unlinked into *stale.
static struct tj_packed *lookup(struct tj_storage *st, uint64_t layout, uint64_t version, const struct tj_view *w,
                                int64_t offset, struct tj_packed **stale) {
    struct tj_packed *head = atomic_load(&st->packed), **p = &head, *found = NULL;
    while (*p) {
        struct tj_packed *e = *p;
        if (e->version < version) {
            *p = e->next;
            e->next = *stale;
            *stale = e;
            continue;
        }
        if (e->version == version && e->layout == layout && e->offset == offset && same_view(&e->view, w))
            found = e;
        p = &e->next;
    }
    atomic_store(&st->packed, head);
    if (found)
        (void)atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
    return found;
}

tj_status tj_pack_get(struct tj_jit *jit, struct tj_storage *st, const struct tj_contract *c, const struct tj_view *w,
                      int64_t offset, struct tj_packed **out) {
    uint64_t layout = tj_contract_pack_layout(c, w), version = atomic_load(&st->version);
    struct tj_packed *stale = NULL, *fresh = NULL;
    tj_lock(&jit->pack_lock);
    *out = lookup(st, layout, version, w, offset, &stale);
    tj_unlock(&jit->pack_lock);
    if (!*out) {
        size_t bytes = tj_contract_pack_bytes(c, w);
        fresh = tj_calloc(1, sizeof *fresh);
        void *data = fresh ? tj_buffer_alloc(jit->ctx, bytes) : NULL;
        if (!data) {
            tj_free(fresh);
            drop_chain(stale);
            return tj_fail(TRACE_ERR_MEMORY, "out of memory for %zu bytes of packed weights", bytes);
        }
        *fresh = (struct tj_packed){.ctx = jit->ctx,
                                    .layout = layout,
                                    .version = version,
                                    .offset = offset,
                                    .view = *w,
                                    .data = data,
                                    .bytes = bytes};
        atomic_init(&fresh->refs, 1);
        (void)TJ_COUNT_UP(&jit->ctx->count, bytes_packed, bytes);
        tj_contract_pack(c, w, data);
        // Two threads may pack the same weight at once; the second one's copy is dropped.
        tj_lock(&jit->pack_lock);
        *out = lookup(st, layout, version, w, offset, &stale);
        if (!*out) {
            fresh->next = atomic_load(&st->packed);
            atomic_store(&st->packed, fresh);
            (void)atomic_fetch_add_explicit(&fresh->refs, 1, memory_order_relaxed);
            *out = fresh;
            fresh = NULL;
        }
        tj_unlock(&jit->pack_lock);
        tj_pack_put(fresh);
    }
    drop_chain(stale);
    return TRACE_OK;
}
