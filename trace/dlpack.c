// trace/dlpack.c: exchange of tensors with other frameworks in one process through DLPack structs.
#include "context.h"

// The stable part of the DLPack ABI (version 0.8, and the unversioned struct of 1.x), from its specification.
struct dl_device {
    int32_t type, id; // type 1: CPU
};
struct dl_dtype {
    uint8_t code, bits; // code: enum below
    uint16_t lanes;
};
struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t ndim;
    struct dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; // elements; NULL: row-major contiguous
    uint64_t byte_offset;
};
struct DLManagedTensor {
    struct dl_tensor t;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
};
enum { DL_CPU = 1 };
enum { DL_INT, DL_UINT, DL_FLOAT, DL_OPAQUE, DL_BFLOAT, DL_COMPLEX, DL_BOOL };

static const struct dl_dtype dtypes[] = {
    [TRACE_BOOL] = {DL_BOOL, 8, 1},  [TRACE_U8] = {DL_UINT, 8, 1},    [TRACE_I32] = {DL_INT, 32, 1},
    [TRACE_I64] = {DL_INT, 64, 1},   [TRACE_F16] = {DL_FLOAT, 16, 1}, [TRACE_BF16] = {DL_BFLOAT, 16, 1},
    [TRACE_F32] = {DL_FLOAT, 32, 1}, [TRACE_F64] = {DL_FLOAT, 64, 1},
};

// ---- import ---------------------------------------------------------------------------------------------------------

static void import_done(void *user) {
    struct DLManagedTensor *m = user;
    if (m->deleter) {
        m->deleter(m);
    }
}

trace_tensor *trace_from_dlpack(trace_context *ctx, struct DLManagedTensor *m, int flags) {
    if (!ctx || !m) {
        tj_fail(TRACE_ERR_ARGUMENT, "from_dlpack: the %s is NULL", ctx ? "managed tensor" : "context");
        return NULL;
    }
    const struct dl_tensor *t = &m->t;
    if (t->device.type != DL_CPU) {
        tj_fail(TRACE_ERR_ARGUMENT, "from_dlpack: the tensor is on a device of type %d, not the CPU (1); copy it there",
                (int)t->device.type);
        return NULL;
    }
    if (t->ndim < 0 || t->ndim > TJ_MAX_RANK) {
        tj_fail(TRACE_ERR_SHAPE, "from_dlpack: rank %d, at most %d", (int)t->ndim, TJ_MAX_RANK);
        return NULL;
    }
    size_t d = 0;
    while (d < TJ_COUNT(dtypes) && (dtypes[d].code != t->dtype.code || dtypes[d].bits != t->dtype.bits)) {
        d++;
    }
    if (d == TJ_COUNT(dtypes) || t->dtype.lanes != 1) {
        tj_fail(TRACE_ERR_DTYPE,
                "from_dlpack: dtype code %u of %u bits and %u lanes; convert it to one of bool, u8, i32, "
                "i64, f16, bf16, f32, f64",
                t->dtype.code, t->dtype.bits, t->dtype.lanes);
        return NULL;
    }
    if (flags & ~(TRACE_WRAP_READONLY | TRACE_WRAP_STABLE)) {
        tj_fail(TRACE_ERR_ARGUMENT, "from_dlpack: flags %#x; READONLY and STABLE are taken", (unsigned)flags);
        return NULL;
    }
    if (t->ndim && !t->shape) {
        tj_fail(TRACE_ERR_ARGUMENT, "from_dlpack: rank %d without a shape", (int)t->ndim);
        return NULL;
    }
    trace_tensor_desc desc = {.size = sizeof desc,
                              .dtype = (enum trace_dtype)d,
                              .dims = t->shape,
                              .strides = t->strides,
                              .rank = (size_t)t->ndim,
                              .data = t->data ? (unsigned char *)t->data + t->byte_offset : NULL,
                              .flags = flags,
                              .done = import_done,
                              .user = m};
    int64_t numel;
    static unsigned char nothing; // an empty tensor may come without memory
    if (!desc.data && tj_numel(desc.dims, desc.rank, &numel) && numel == 0) {
        desc.data = &nothing;
    }
    return trace_wrap_desc(ctx, &desc);
}

// ---- export ---------------------------------------------------------------------------------------------------------

struct export {
    struct DLManagedTensor m;
    struct tj_storage *st; // holds a reference
    int64_t shape[TJ_MAX_RANK], strides[TJ_MAX_RANK];
};

static void export_delete(struct DLManagedTensor *m) {
    struct export *e = m->manager_ctx;
    // What the consumer wrote is a new version: packed copies made before the export are stale.
    (void)atomic_fetch_add(&e->st->version, 1);
    (void)atomic_fetch_sub(&e->st->exports, 1);
    tj_storage_drop(e->st);
    tj_free(e);
}

struct DLManagedTensor *trace_to_dlpack(trace_tensor *t) {
    if (!t || t == TRACE_NONE || tj_is_value(t)) {
        tj_fail(t && t != TRACE_NONE ? TRACE_ERR_STATE : TRACE_ERR_ARGUMENT, "to_dlpack: %s",
                t && t != TRACE_NONE ? "a recorded value has no memory yet; export the output after trace_end"
                                     : "no tensor");
        return NULL;
    }
    if (t->state != TJ_T_READY) {
        tj_fail(TRACE_ERR_STATE, "to_dlpack: the value is not there before its run has ended");
        return NULL;
    }
    struct tj_storage *st = tj_tensor_storage(t);
    if (st->flags & (TJ_ST_PLACEHOLDER | TJ_ST_READONLY)) {
        tj_fail(TRACE_ERR_ARGUMENT, "to_dlpack: %s; export a clone of it",
                st->flags & TJ_ST_PLACEHOLDER ? "a placeholder has no memory"
                                              : "the memory is read-only, which DLPack can't promise");
        tj_storage_drop(st);
        return NULL;
    }
    if (atomic_load(&st->pins_packed)) { // the consumer may write it, and the plan wouldn't see
        tj_storage_drop(st);
        tj_fail(TRACE_ERR_BUSY, "to_dlpack: a live bound plan has a packed copy of this tensor, which its consumer may "
                                "write; release the bound plan first, or export a clone");
        return NULL;
    }
    tj_host_effect("trace_to_dlpack", TJ_LOC(NULL, 0));
    struct export *e = tj_calloc(1, sizeof *e);
    if (!e) {
        tj_storage_drop(st);
        tj_fail(TRACE_ERR_MEMORY, "to_dlpack: out of memory");
        return NULL;
    }
    e->st = st;
    memcpy(e->shape, t->dims, sizeof e->shape);
    memcpy(e->strides, t->strides, sizeof e->strides);
    e->m.t = (struct dl_tensor){.data = st->data,
                                .device = {DL_CPU, 0},
                                .ndim = t->rank,
                                .dtype = dtypes[t->dtype],
                                .shape = e->shape,
                                .strides = e->strides,
                                .byte_offset = (uint64_t)t->offset * tj_elem_bytes((tj_dtype)t->dtype)};
    e->m.manager_ctx = e;
    e->m.deleter = export_delete;
    (void)atomic_fetch_add(&st->exports, 1);
    return &e->m;
}
