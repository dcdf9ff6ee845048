// trace/tensor.h: tensors and the storage behind them.
#ifndef TJ_TRACE_TENSOR_H
#define TJ_TRACE_TENSOR_H
#include "ir.h"
#include <stdatomic.h>

enum {
    TJ_ST_OWNED = 1,       // memory is the library's
    TJ_ST_READONLY = 2,    // writing is an error
    TJ_ST_STABLE = 4,      // changes only through the library or trace_modified: may be prepacked
    TJ_ST_PLACEHOLDER = 8, // no memory
};
// Memory shared by the tensors that view it.
struct tj_storage {
    atomic_int refs;
    uint32_t flags;           // TJ_ST_*
    trace_context *ctx;       // holds a reference
    unsigned char *data;      // NULL for a placeholder and for zero bytes
    size_t bytes;             // allocated (owned) or spanned (borrowed)
    atomic_int pins;          // live bound plans over it: trace_write writes in place
    atomic_int pins_written;  // of these, those that write it
    atomic_int pins_packed;   // of these, those that have a packed copy: writing is TRACE_ERR_BUSY
    atomic_int exports;       // handed out through DLPack now: the consumer may write it, trace_write writes in place
    _Atomic uint64_t readers; // low half: runs in flight that read it; high half: the process they are of
    _Atomic uint64_t version; // one more with every write; packed weights are keyed on it
    void (*done)(void *user); // borrowed memory: told once when the last user has gone
    void *user;
    _Atomic(void *)
        packed; // jit's repacked copies (struct tj_packed_set), freed with the storage by ctx->backend->packed_free
};
// The public handle. Always at least 8-aligned, so bit 0 tells recorded values apart.
struct trace_tensor {
    atomic_int refs;
    uint64_t id; // of its context: no other tensor has had it
    uint8_t dtype, rank;
    tj_layout layout; // class of strides, kept with dims
    uint32_t state;   // TJ_T_*
    int64_t numel;
    int64_t offset; // elements from storage->data
    int64_t dims[TJ_MAX_RANK], strides[TJ_MAX_RANK];
    struct tj_storage *st;            // holds a reference; NULL while deferred
    const char *op;                   // who made it ("from", "add"), for leak reports
    struct tj_loc loc;                // where
    struct trace_tensor *prev, *next; // live list of the context
    trace_context *ctx;               // holds a reference
    atomic_int guard;                 // short spin lock over st: trace_write may install another storage
    bool internal;                    // the library's own: not in the live list
    _Atomic uint32_t pooled;          // where the eager scope that made it holds it
};
enum { TJ_T_READY, TJ_T_DEFERRED /* item_later before the end of its run */, TJ_T_FAILED };

static inline void *tj_tensor_data(const struct trace_tensor *t) {
    return t->st->data ? t->st->data + t->offset * (int64_t)tj_elem_bytes((tj_dtype)t->dtype) : NULL;
}
// Makes of a zeroed t the internal twin of a tensor: its dtype, shape and strides over another storage, at offset 0.
static inline void tj_tensor_like(struct trace_tensor *t, const struct trace_tensor *of, struct tj_storage *st) {
    atomic_init(&t->refs, 1);
    t->dtype = of->dtype;
    t->rank = of->rank;
    t->layout = of->layout;
    t->numel = of->numel;
    memcpy(t->dims, of->dims, sizeof t->dims);
    memcpy(t->strides, of->strides, sizeof t->strides);
    t->st = st;
    t->internal = true;
}
static inline bool tj_is_value(const trace_tensor *t) { return (uintptr_t)t & 1; } // recorded value (or TRACE_NONE)
// Fresh contiguous tensor with uninitialised memory of its own; NULL and an error on failure. Storage memory comes from
// the context's cache of released buffers when one fits.
struct trace_tensor *tj_tensor_new(trace_context *ctx, tj_dtype d, const int64_t *dims, size_t rank, const char *op,
                                   struct tj_loc loc);
// A view: shares st (takes a reference of its own).
struct trace_tensor *tj_tensor_view(struct tj_storage *st, tj_dtype d, const int64_t *dims, const int64_t *strides,
                                    size_t rank, int64_t offset, const char *op, struct tj_loc loc);
// Another handle of what t is; of a deferred one the same.
struct trace_tensor *tj_tensor_again(struct trace_tensor *t, const char *op, struct tj_loc loc);
// No storage yet (state TJ_T_DEFERRED); tj_tensor_fulfil gives it src's storage and place, or FAILED when src is NULL.
struct trace_tensor *tj_tensor_deferred(trace_context *ctx, tj_dtype d, const int64_t *dims, size_t rank,
                                        const char *op, struct tj_loc loc);
void tj_tensor_fulfil(struct trace_tensor *t, struct trace_tensor *src);
// The storage t has now, with a reference of the caller's; dropped with tj_storage_drop.
struct tj_storage *tj_tensor_storage(struct trace_tensor *t);
void tj_storage_drop(struct tj_storage *st);
// Whether two tensors have a byte in common (trace/overlap.c). Found exactly but for geometries of many dims whose
// strides don't follow each other.
enum tj_sharing { TJ_APART, TJ_SHARED, TJ_UNDECIDED };
enum tj_sharing tj_tensors_share(const struct trace_tensor *a, const struct trace_tensor *b);
static inline bool tj_tensors_overlap(const struct trace_tensor *a, const struct trace_tensor *b) {
    return tj_tensors_share(a, b) != TJ_APART;
}
// Bytes from the first to the last one of its elements; of a placeholder they count from address 0.
struct tj_span {
    uintptr_t lo, hi;
};
struct tj_span tj_tensor_span(const struct trace_tensor *t);
// Copies between any two layouts of equal shape and dtype (plain loops); bools become 0 and 1.
void tj_copy_strided(void *dst, const int64_t *dst_strides, const void *src, const int64_t *src_strides,
                     const int64_t *dims, size_t rank, tj_dtype dtype);
#endif
