// trace/interp_move.c: the interpreter's ops that only place elements: copies, cat, pad, gather and their like.
#include "interp.h"

static void flip(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_mask *a = tj_node_attr(it->t, tj_inode(it, n));
    struct tj_iview out = tj_iview_of(it, n), x = tj_iview_of(it, tj_iin(it, n, 0));
    for (size_t d = 0; d < x.rank; d++) {
        if (x.dims[d] == 0) {
            return;
        }
        if (a->mask >> d & 1) {
            x.p += (x.dims[d] - 1) * x.st[d];
            x.st[d] = -x.st[d];
        }
    }
    tj_icopy(&out, &x);
}

static void cat(const struct tj_interp *it, tj_ref n) {
    const struct tj_node *node = tj_inode(it, n);
    const struct tj_attr_dim *a = tj_node_attr(it->t, node);
    struct tj_iview out = tj_iview_of(it, n);
    for (uint32_t k = 0; k < node->nin; k++) {
        struct tj_iview x = tj_iview_of(it, tj_iin(it, n, k)), part = out;
        memcpy(part.dims, x.dims, sizeof part.dims);
        tj_icopy(&part, &x);
        if (out.p) {
            out.p += x.dims[a->dim] * out.st[a->dim];
        }
    }
}

// Place in the operand of coordinate c of a padded dim; -1: outside.
static int64_t padded(int64_t c, int64_t extent, int64_t mode) {
    if (c >= 0 && c < extent) {
        return c;
    }
    switch (mode) {
    case TRACE_PAD_REPLICATE: return extent == 0 ? -1 : (c < 0 ? 0 : extent - 1);
    case TRACE_PAD_REFLECT: c = c < 0 ? -c : 2 * (extent - 1) - c; return c >= 0 && c < extent ? c : -1;
    default: return -1;
    }
}

static void pad(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_pad *a = tj_node_attr(it->t, tj_inode(it, n));
    struct tj_iview out = tj_iview_of(it, n), x = tj_iview_of(it, tj_iin(it, n, 0)),
                    v = tj_iview_of(it, tj_iin(it, n, 1));
    int64_t at[TJ_MAX_RANK] = {0}, numel;
    size_t r = out.rank;
    if (!tj_numel(out.dims, r, &numel)) {
        return;
    }
    for (int64_t i = 0; i < numel; i++) {
        unsigned char *to = out.p;
        const unsigned char *from = x.p;
        for (size_t d = 0; d < r; d++) {
            to += at[d] * out.st[d];
            int64_t c = padded(at[d] - a->lo[d], x.dims[d], a->mode);
            from = c < 0 || !from ? NULL : from + c * x.st[d];
        }
        tj_icopy_one(out.dtype, to, from ? from : v.p);
        for (size_t d = r; d-- > 0 && ++at[d] == out.dims[d];) {
            at[d] = 0;
        }
    }
}

static void gather(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_dim *a = tj_node_attr(it->t, tj_inode(it, n));
    struct tj_iview v[3] = {tj_iview_of(it, n), tj_iview_of(it, tj_iin(it, n, 1)), tj_iview_of(it, tj_iin(it, n, 0))};
    int64_t extent = v[2].rank ? v[2].dims[a->dim] : 1, st = v[2].rank ? v[2].st[a->dim] : 0;
    if (v[2].rank) {
        v[2].st[a->dim] = 0; // the walk leaves that dim at 0
    }
    struct tj_walk w;
    tj_walk_init(&w, v[0].dims, v[0].rank, v, 3);
    for (; tj_walk_run(&w, 1) > 0; tj_walk_advance(&w, 1)) {
        int64_t i;
        memcpy(&i, w.p[1], sizeof i);
        if (i < 0 || i >= extent) {
            tj_idata_error(it, n, TJ_DATA_INDEX, i, extent);
            memset(w.p[0], 0, tj_elem_bytes(v[0].dtype));
            continue;
        }
        tj_icopy_one(v[0].dtype, w.p[0], w.p[2] + i * st);
    }
}

static void index_select(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_dim *a = tj_node_attr(it->t, tj_inode(it, n));
    struct tj_iview out = tj_iview_of(it, n), x = tj_iview_of(it, tj_iin(it, n, 0)),
                    idx = tj_iview_of(it, tj_iin(it, n, 1));
    int64_t extent = x.rank ? x.dims[a->dim] : 1, st = x.rank ? x.st[a->dim] : 0;
    int64_t rows = out.rank ? out.dims[a->dim] : 1, to = out.rank ? out.st[a->dim] : 0, step = idx.rank ? idx.st[0] : 0;
    static const unsigned char zero[8];
    int64_t numel;
    if (!tj_numel(out.dims, out.rank, &numel) || numel == 0) {
        return;
    }
    for (int64_t k = 0; k < rows; k++) {
        struct tj_iview row = out, from = x;
        int64_t i;
        memcpy(&i, idx.p + k * step, sizeof i);
        if (out.rank) {
            row.p += k * to;
            row.dims[a->dim] = 1;
        }
        if (i >= 0 && i < extent) {
            from.p += i * st;
        } else {
            tj_idata_error(it, n, TJ_DATA_INDEX, i, extent);
            from.p = (unsigned char *)(uintptr_t)zero; // read only
            memset(from.st, 0, sizeof from.st);
        }
        tj_icopy(&row, &from);
    }
}

static void index_copy(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_dim *a = tj_node_attr(it->t, tj_inode(it, n));
    struct tj_iview out = tj_iview_of(it, n), x = tj_iview_of(it, tj_iin(it, n, 0)),
                    idx = tj_iview_of(it, tj_iin(it, n, 1));
    struct tj_iview src = tj_iview_of(it, tj_iin(it, n, 2));
    tj_icopy(&out, &x);
    int64_t extent = out.rank ? out.dims[a->dim] : 1, rows = idx.rank ? idx.dims[0] : 1, numel;
    if (!tj_numel(src.dims, src.rank, &numel) || numel == 0) {
        return;
    }
    for (int64_t k = 0; k < rows; k++) { // ascending: the last of a repeated index wins
        int64_t i;
        memcpy(&i, idx.p + k * (idx.rank ? idx.st[0] : 0), sizeof i);
        if (i < 0 || i >= extent) {
            tj_idata_error(it, n, TJ_DATA_INDEX, i, extent);
            continue;
        }
        struct tj_iview row = out, from = src;
        if (out.rank) {
            row.p += i * out.st[a->dim];
            row.dims[a->dim] = 1;
        }
        if (src.rank) {
            from.p += k * src.st[a->dim];
        }
        tj_icopy(&row, &from);
    }
}

// Views that strides can't express: the operand's elements in row-major order.
static void reshape(const struct tj_interp *it, tj_ref n) {
    struct tj_iview out = tj_iview_of(it, n), x = tj_iview_of(it, tj_iin(it, n, 0));
    memcpy(out.dims, x.dims, sizeof out.dims);
    out.rank = x.rank;
    int64_t st[TJ_MAX_RANK];
    tj_contiguous_strides(x.dims, x.rank, st);
    for (size_t d = 0; d < x.rank; d++) {
        out.st[d] = tj_stride_times(st[d], (int64_t)tj_elem_bytes(out.dtype));
    }
    tj_icopy(&out, &x);
}

static void as_strided(const struct tj_interp *it, tj_ref n) {
    const struct tj_attr_strides *a = tj_node_attr(it->t, tj_inode(it, n));
    struct tj_iview out = tj_iview_of(it, n), x = tj_iview_of(it, tj_iin(it, n, 0)),
                    o = tj_iview_of(it, tj_iin(it, n, 1));
    int64_t offset = tj_iload_i64(o.dtype, o.p), at[TJ_MAX_RANK] = {0}, numel;
    if (!tj_numel(out.dims, out.rank, &numel)) {
        return;
    }
    for (int64_t i = 0; i < numel; i++) {
        int64_t place = offset;
        unsigned char *to = out.p;
        const unsigned char *from = x.p;
        for (size_t d = 0; d < out.rank; d++) {
            place += at[d] * a->stride[d];
            to += at[d] * out.st[d];
        }
        for (size_t d = x.rank; d-- > 0;) { // row-major place to coordinates
            from += place % x.dims[d] * x.st[d];
            place /= x.dims[d];
        }
        tj_icopy_one(out.dtype, to, from);
        for (size_t d = out.rank; d-- > 0 && ++at[d] == out.dims[d];) {
            at[d] = 0;
        }
    }
}

void tj_interp_move(const struct tj_interp *it, tj_ref n) {
    switch (tj_inode(it, n)->op) {
    case TJ_OP_FLIP: flip(it, n); break;
    case TJ_OP_CAT: cat(it, n); break;
    case TJ_OP_PAD: pad(it, n); break;
    case TJ_OP_GATHER: gather(it, n); break;
    case TJ_OP_INDEX_SELECT: index_select(it, n); break;
    case TJ_OP_INDEX_COPY: index_copy(it, n); break;
    case TJ_OP_AS_STRIDED: as_strided(it, n); break;
    default: reshape(it, n); break; // RESHAPE, RESHAPE_COPY, COPY
    }
}
