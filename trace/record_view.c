// trace/record_view.c: recording of views, of ops that move elements, and of sources.
#define TRACE_NO_MACROS
#include <math.h>

#include "record.h"

// ---- views over nodes ---------------------------------------------------------------------------------

static void dims_of(const struct tj_rec *q, tj_ref n, int64_t *dims, size_t *rank) {
    *rank = tj_rec_rank(q, n);
    memcpy(dims, tj_rec_dims(q, n), *rank * sizeof *dims);
}

static bool same_dims(const struct tj_rec *q, tj_ref n, const int64_t *dims, size_t rank) {
    return tj_rec_rank(q, n) == rank && (rank == 0 || !memcmp(tj_rec_dims(q, n), dims, rank * sizeof *dims));
}

tj_ref tj_rec_expand(struct tj_rec *q, tj_ref n, const int64_t *dims, size_t rank) {
    if (n == TJ_NIL || same_dims(q, n, dims, rank)) {
        return n;
    }
    const int64_t *have = tj_rec_dims(q, n);
    size_t r = tj_rec_rank(q, n);
    bool ok = r <= rank;
    for (size_t i = 0; ok && i < r; i++) {
        ok = have[i] == dims[rank - r + i] || have[i] == 1;
    }
    if (!ok) {
        char a[TJ_DIMS_TEXT], b[TJ_DIMS_TEXT];
        return tj_rec_fail(q, TRACE_ERR_SHAPE,
                           "shape %s does not expand to %s; only extents of 1 grow, and new dims "
                           "come first",
                           tj_dims_text(a, sizeof a, have, r), tj_dims_text(b, sizeof b, dims, rank));
    }
    return tj_rec_op(q, TJ_OP_EXPAND, tj_rec_dtype(q, n), dims, rank, &n, 1, NULL, 0, TJ_PART);
}

tj_ref tj_rec_reshape(struct tj_rec *q, tj_ref n, const int64_t *dims, size_t rank) {
    if (n == TJ_NIL || same_dims(q, n, dims, rank)) {
        return n;
    }
    bool view = tj_value_packed(q->r, n);
    if (!view) {
        struct tj_place v;
        tj_ref root;
        int64_t strides[TJ_MAX_RANK];
        tj_value_place(q->r, n, &v, &root);
        view = rank <= TJ_MAX_RANK && tj_reshape_strides(v.dims, v.strides, v.rank, dims, rank, strides);
    }
    return tj_rec_op(q, view ? TJ_OP_RESHAPE : TJ_OP_RESHAPE_COPY, tj_rec_dtype(q, n), dims, rank, &n, 1, NULL, 0,
                     TJ_PART);
}

tj_ref tj_rec_permute(struct tj_rec *q, tj_ref n, const int64_t *perm) {
    if (n == TJ_NIL) {
        return n;
    }
    struct tj_attr_perm attr = {{0}};
    int64_t dims[TJ_MAX_RANK], have[TJ_MAX_RANK];
    size_t rank;
    bool moved = false;
    dims_of(q, n, have, &rank);
    for (size_t i = 0; i < rank; i++) {
        attr.perm[i] = perm[i];
        dims[i] = have[perm[i]];
        moved |= perm[i] != (int64_t)i;
    }
    return moved ? tj_rec_op(q, TJ_OP_PERMUTE, tj_rec_dtype(q, n), dims, rank, &n, 1, &attr, sizeof attr, TJ_PART) : n;
}

tj_ref tj_rec_transpose(struct tj_rec *q, tj_ref n, size_t a, size_t b) {
    int64_t perm[TJ_MAX_RANK];
    for (size_t i = 0; i < TJ_MAX_RANK; i++) {
        perm[i] = (int64_t)(i == a ? b : i == b ? a : i);
    }
    return tj_rec_permute(q, n, perm);
}

tj_ref tj_rec_slice(struct tj_rec *q, tj_ref n, int64_t dim, int64_t start, int64_t length, int64_t step) {
    if (n == TJ_NIL) {
        return n;
    }
    int64_t dims[TJ_MAX_RANK];
    size_t rank;
    dims_of(q, n, dims, &rank);
    dims[dim] = length;
    struct tj_attr_slice attr = {dim, step};
    tj_ref in[2] = {n, tj_rec_scalar_i(q, TRACE_I64, start)};
    return tj_rec_op(q, TJ_OP_SLICE, tj_rec_dtype(q, n), dims, rank, in, 2, &attr, sizeof attr, TJ_PART);
}

static tj_ref drop_dim(struct tj_rec *q, tj_ref n, size_t dim) {
    int64_t dims[TJ_MAX_RANK];
    size_t rank;
    if (n == TJ_NIL) {
        return n;
    }
    dims_of(q, n, dims, &rank);
    memmove(dims + dim, dims + dim + 1, (rank - dim - 1) * sizeof *dims);
    return tj_rec_reshape(q, n, dims, rank - 1);
}

// ---- public views ---------------------------------------------------------------------------------------

#define VIEW_BEGIN(name)                                                                                               \
    struct tj_rec q;                                                                                                   \
    if (!tj_rec_begin(&q, name, file, line, &x, 1)) {                                                                  \
        return NULL;                                                                                                   \
    }                                                                                                                  \
    tj_ref n = tj_rec_mem(&q, x);                                                                                      \
    if (n == TJ_NIL) {                                                                                                 \
        return tj_rec_end(&q, TJ_NIL);                                                                                 \
    }                                                                                                                  \
    int64_t have[TJ_MAX_RANK];                                                                                         \
    size_t rank;                                                                                                       \
    dims_of(&q, n, have, &rank)
#define FAIL(...) return tj_rec_end(&q, tj_rec_fail(&q, __VA_ARGS__))
#define TEXT(buf, dims, rank) tj_dims_text((buf), sizeof(buf), (dims), (rank))
#define STOP return tj_rec_end(&q, TJ_NIL)

trace_tensor *trace_reshape_at(trace_tensor *x, const int64_t *dims, size_t n_, const char *file, int line) {
    VIEW_BEGIN("reshape");
    int64_t to[TJ_MAX_RANK], numel, known = 1, want;
    char a[TJ_DIMS_TEXT], b[TJ_DIMS_TEXT];
    size_t open = n_;
    if (n_ > TJ_MAX_RANK || (n_ && !dims)) {
        (void)tj_rec_shape(&q, dims, n_, tj_rec_dtype(&q, n));
        STOP;
    }
    (void)tj_numel(have, rank, &numel);
    for (size_t i = 0; i < n_; i++) {
        to[i] = dims[i];
        if (dims[i] == -1) {
            if (open < n_) {
                FAIL(TRACE_ERR_SHAPE, "shape %s has more than one -1", TEXT(b, dims, n_));
            }
            open = i;
        } else if (!tj_size_mul(known, dims[i], &known)) {
            FAIL(TRACE_ERR_SHAPE, "shape %s to %s: extents must be at least 0 (one may be -1) and not overflow",
                 TEXT(a, have, rank), TEXT(b, dims, n_));
        }
    }
    if (open < n_) {
        if (known == 0 || numel % known) {
            FAIL(TRACE_ERR_SHAPE, "shape %s of %lld elements does not fit %s: -1 has no value", TEXT(a, have, rank),
                 (long long)numel, TEXT(b, dims, n_));
        }
        to[open] = numel / known;
    }
    if (!tj_rec_shape(&q, to, n_, tj_rec_dtype(&q, n))) {
        STOP;
    }
    (void)tj_numel(to, n_, &want);
    if (want != numel) {
        FAIL(TRACE_ERR_SHAPE, "shape %s of %lld elements does not fit %s; the number of elements must stay the same",
             TEXT(a, have, rank), (long long)numel, TEXT(b, dims, n_));
    }
    return tj_rec_end_view(&q, tj_rec_reshape(&q, n, to, n_));
}
trace_tensor *trace_reshape(trace_tensor *x, const int64_t *dims, size_t n) {
    return trace_reshape_at(x, dims, n, NULL, 0);
}

trace_tensor *trace_flatten_at(trace_tensor *x, int64_t start_dim, int64_t end_dim, const char *file, int line) {
    VIEW_BEGIN("flatten");
    size_t s, e, k = 0;
    if (!tj_rec_dim(&q, start_dim, rank, &s) || !tj_rec_dim(&q, end_dim, rank, &e)) {
        STOP;
    }
    if (s > e) {
        FAIL(TRACE_ERR_ARGUMENT, "start_dim %zu is after end_dim %zu", s, e);
    }
    int64_t to[TJ_MAX_RANK + 1];
    for (size_t i = 0; i < s; i++) {
        to[k++] = have[i];
    }
    to[k] = 1;
    for (size_t i = s; i <= e && i < rank; i++) {
        to[k] *= have[i];
    }
    k++;
    for (size_t i = e + 1; i < rank; i++) {
        to[k++] = have[i];
    }
    return tj_rec_end_view(&q, tj_rec_reshape(&q, n, to, k));
}
trace_tensor *trace_flatten(trace_tensor *x, int64_t start_dim, int64_t end_dim) {
    return trace_flatten_at(x, start_dim, end_dim, NULL, 0);
}

trace_tensor *trace_permute_at(trace_tensor *x, const int64_t *dims, size_t n_, const char *file, int line) {
    VIEW_BEGIN("permute");
    int64_t perm[TJ_MAX_RANK], seen;
    if (n_ != rank) {
        FAIL(TRACE_ERR_ARGUMENT, "%zu dims given for rank %zu; name each dim once", n_, rank);
    }
    if (n_ && !tj_rec_dims_mask(&q, dims, n_, rank, &seen)) {
        STOP;
    }
    for (size_t i = 0; i < rank; i++) {
        perm[i] = dims[i] < 0 ? dims[i] + (int64_t)rank : dims[i];
    }
    return tj_rec_end_view(&q, tj_rec_permute(&q, n, perm));
}
trace_tensor *trace_permute(trace_tensor *x, const int64_t *dims, size_t n) {
    return trace_permute_at(x, dims, n, NULL, 0);
}

trace_tensor *trace_transpose_at(trace_tensor *x, int64_t d0, int64_t d1, const char *file, int line) {
    VIEW_BEGIN("transpose");
    size_t a, b;
    if (!tj_rec_dim(&q, d0, rank, &a) || !tj_rec_dim(&q, d1, rank, &b)) {
        STOP;
    }
    return tj_rec_end_view(&q, tj_rec_transpose(&q, n, a, b));
}
trace_tensor *trace_transpose(trace_tensor *x, int64_t d0, int64_t d1) {
    return trace_transpose_at(x, d0, d1, NULL, 0);
}

trace_tensor *trace_expand_at(trace_tensor *x, const int64_t *dims, size_t n_, const char *file, int line) {
    VIEW_BEGIN("expand");
    int64_t to[TJ_MAX_RANK];
    char text[TJ_DIMS_TEXT];
    if (n_ > TJ_MAX_RANK || (n_ && !dims)) {
        (void)tj_rec_shape(&q, dims, n_, tj_rec_dtype(&q, n));
        STOP;
    }
    for (size_t i = 0; i < n_; i++) {
        size_t right = n_ - i;
        to[i] = dims[i];
        if (dims[i] == -1) {
            if (right > rank) {
                FAIL(TRACE_ERR_SHAPE, "-1 in the new leading dim %zu of %s; give its extent", i,
                     tj_dims_text(text, sizeof text, dims, n_));
            }
            to[i] = have[rank - right];
        }
    }
    return tj_rec_end_view(&q, tj_rec_shape(&q, to, n_, tj_rec_dtype(&q, n)) ? tj_rec_expand(&q, n, to, n_) : TJ_NIL);
}
trace_tensor *trace_expand(trace_tensor *x, const int64_t *dims, size_t n) {
    return trace_expand_at(x, dims, n, NULL, 0);
}

static bool not_0d(struct tj_rec *q, size_t rank) {
    if (rank == 0) {
        tj_op_fail(TRACE_ERR_SHAPE, q->op, q->loc, "not of a 0-d tensor; unsqueeze it first");
    }
    return rank != 0;
}

static trace_tensor *narrow(const char *name, trace_tensor *x, int64_t dim, int64_t start, int64_t length,
                            const char *file, int line) {
    VIEW_BEGIN(name);
    size_t d;
    if (!not_0d(&q, rank) || !tj_rec_dim(&q, dim, rank, &d)) {
        STOP;
    }
    int64_t from = start < 0 && start >= -have[d] ? start + have[d] : start;
    if (from < 0 || from > have[d] || length < 0 || length > have[d] - from) {
        FAIL(TRACE_ERR_ARGUMENT, "start %lld, length %lld do not fit extent %lld of dim %zu", (long long)start,
             (long long)length, (long long)have[d], d);
    }
    return tj_rec_end_view(&q, tj_rec_slice(&q, n, (int64_t)d, from, length, 1));
}
trace_tensor *trace_narrow_at(trace_tensor *x, int64_t dim, int64_t start, int64_t length, const char *file, int line) {
    return narrow("narrow", x, dim, start, length, file, line);
}
trace_tensor *trace_narrow(trace_tensor *x, int64_t dim, int64_t start, int64_t length) {
    return trace_narrow_at(x, dim, start, length, NULL, 0);
}

trace_tensor *trace_select_at(trace_tensor *x, int64_t dim, int64_t index, const char *file, int line) {
    VIEW_BEGIN("select");
    size_t d;
    if (!not_0d(&q, rank) || !tj_rec_dim(&q, dim, rank, &d)) {
        STOP;
    }
    int64_t i = index < 0 && index >= -have[d] ? index + have[d] : index;
    if (i < 0 || i >= have[d]) {
        FAIL(TRACE_ERR_ARGUMENT, "index %lld is out of range for extent %lld of dim %zu", (long long)index,
             (long long)have[d], d);
    }
    return tj_rec_end_view(&q, drop_dim(&q, tj_rec_slice(&q, n, (int64_t)d, i, 1, 1), d));
}
trace_tensor *trace_select(trace_tensor *x, int64_t dim, int64_t index) {
    return trace_select_at(x, dim, index, NULL, 0);
}

trace_tensor *trace_slice_at(trace_tensor *x, int64_t dim, int64_t start, int64_t end, int64_t step, const char *file,
                             int line) {
    VIEW_BEGIN("slice");
    size_t d;
    if (!not_0d(&q, rank) || !tj_rec_dim(&q, dim, rank, &d)) {
        STOP;
    }
    if (step < 1) {
        FAIL(TRACE_ERR_ARGUMENT, "step %lld; it must be at least 1 (trace_flip reverses)", (long long)step);
    }
    int64_t e = have[d];
    int64_t from = start < 0 ? (start < -e ? 0 : start + e) : start > e ? e : start;
    int64_t to = end < 0 ? (end < -e ? 0 : end + e) : end > e ? e : end;
    int64_t length = to > from ? (to - from - 1) / step + 1 : 0;
    if (length <= 1) {
        step = 1; // what a stride can't show shall not tell two traces apart
    }
    return tj_rec_end_view(&q, tj_rec_slice(&q, n, (int64_t)d, from, length, step));
}
trace_tensor *trace_slice(trace_tensor *x, int64_t dim, int64_t start, int64_t end, int64_t step) {
    return trace_slice_at(x, dim, start, end, step, NULL, 0);
}

trace_tensor *trace_squeeze_at(trace_tensor *x, int64_t dim, const char *file, int line) {
    VIEW_BEGIN("squeeze");
    size_t d = 0, k = 0;
    int64_t to[TJ_MAX_RANK];
    if (dim != TRACE_ALL_DIMS && !tj_rec_dim(&q, dim, rank, &d)) {
        STOP;
    }
    for (size_t i = 0; i < rank; i++) {
        if (have[i] != 1 || (dim != TRACE_ALL_DIMS && i != d)) {
            to[k++] = have[i];
        }
    }
    return tj_rec_end_view(&q, tj_rec_reshape(&q, n, to, k));
}
trace_tensor *trace_squeeze(trace_tensor *x, int64_t dim) { return trace_squeeze_at(x, dim, NULL, 0); }

trace_tensor *trace_unsqueeze_at(trace_tensor *x, int64_t dim, const char *file, int line) {
    VIEW_BEGIN("unsqueeze");
    size_t d;
    int64_t to[TJ_MAX_RANK + 1];
    if (!tj_rec_dim(&q, dim, rank + 1, &d)) {
        STOP;
    }
    memcpy(to, have, d * sizeof *to);
    to[d] = 1;
    memcpy(to + d + 1, have + d, (rank - d) * sizeof *to);
    return tj_rec_end_view(&q, tj_rec_shape(&q, to, rank + 1, tj_rec_dtype(&q, n)) ? tj_rec_reshape(&q, n, to, rank + 1)
                                                                                   : TJ_NIL);
}
trace_tensor *trace_unsqueeze(trace_tensor *x, int64_t dim) { return trace_unsqueeze_at(x, dim, NULL, 0); }

// The memory of x: of a computed value its own elements, of a tensor from outside the whole storage, so that the offset
// counts from the storage's first element as in ATen.
trace_tensor *trace_as_strided_at(trace_tensor *x, const int64_t *dims, const int64_t *strides, size_t n_,
                                  int64_t offset, const char *file, int line) {
    VIEW_BEGIN("as_strided");
    tj_dtype d = tj_rec_dtype(&q, n);
    struct tj_place v;
    tj_ref root;
    if (!tj_rec_shape(&q, dims, n_, d)) {
        STOP;
    }
    if (n_ && !strides) {
        FAIL(TRACE_ERR_ARGUMENT, "strides is NULL");
    }
    int64_t numel, last = offset, far;
    struct tj_attr_strides attr = {{0}};
    (void)tj_numel(dims, n_, &numel);
    for (size_t i = 0; i < n_; i++) {
        attr.stride[i] = strides[i];
        if (strides[i] < 0) {
            FAIL(TRACE_ERR_ARGUMENT, "stride %lld of dim %zu is negative", (long long)strides[i], i);
        }
        if (numel && (!tj_size_mul(dims[i] - 1, strides[i], &far) || !tj_size_add(last, far, &last))) {
            last = INT64_MAX;
        }
    }
    tj_value_place(q.r, n, &v, &root);
    int64_t elems, from = 0; // memory that may be reached, and where the root lies in it
    bool whole = tj_value_packed(q.r, root);
    (void)tj_numel(tj_rec_dims(&q, root), tj_rec_rank(&q, root), &elems);
    if (v.tensor) {
        from = v.tensor->offset;
        int64_t all = (int64_t)(v.tensor->st->bytes / tj_elem_bytes(d));
        if (offset < 0 || (numel && last >= all)) {
            FAIL(TRACE_ERR_ARGUMENT, "offset %lld and the strides reach outside the %lld elements of the memory",
                 (long long)offset, (long long)all);
        }
        whole &= offset >= from && (!numel || last < from + elems);
        if (!whole) { // beyond the leaf: it and the view become views of the storage
            tj_ref base = tj_rec_node(&q, root)->op == TJ_OP_LEAF ? tj_leaf_base(&q, root) : TJ_NIL;
            if (base == TJ_NIL) {
                STOP;
            }
            root = base;
            from = q.r->trace
                       .leaves[((const struct tj_attr_leaf *)tj_node_attr(&q.r->trace, tj_rec_node(&q, base)))->index]
                       .tensor->offset;
        }
    } else if (offset < 0 || (numel && last >= elems)) {
        FAIL(TRACE_ERR_ARGUMENT, "offset %lld and the strides reach outside the %lld elements of the memory",
             (long long)offset, (long long)elems);
    }
    tj_ref now = tj_value_current(q.r, root);
    tj_ref in[2] = {now, now == TJ_NIL ? now : tj_rec_scalar_i(&q, TRACE_I64, numel ? offset - from : 0)};
    return tj_rec_end_view(&q, tj_rec_op(&q, TJ_OP_AS_STRIDED, d, dims, n_, in, 2, &attr, sizeof attr, TJ_PART));
}
trace_tensor *trace_as_strided(trace_tensor *x, const int64_t *dims, const int64_t *strides, size_t n, int64_t offset) {
    return trace_as_strided_at(x, dims, strides, n, offset, NULL, 0);
}

trace_tensor *trace_diagonal_at(trace_tensor *x, int64_t offset, int64_t d0, int64_t d1, const char *file, int line) {
    VIEW_BEGIN("diagonal");
    size_t a, b, k = 0;
    if (rank < 2) {
        FAIL(TRACE_ERR_SHAPE, "rank %zu; it takes two dims", rank);
    }
    if (!tj_rec_dim(&q, d0, rank, &a) || !tj_rec_dim(&q, d1, rank, &b)) {
        STOP;
    }
    if (a == b) {
        FAIL(TRACE_ERR_ARGUMENT, "both dims are %zu; give two", a);
    }
    int64_t to[TJ_MAX_RANK];
    int64_t rows = offset < 0 ? (offset < -have[a] ? 0 : have[a] + offset) : have[a];
    int64_t cols = offset > 0 ? (offset > have[b] ? 0 : have[b] - offset) : have[b];
    for (size_t i = 0; i < rank; i++) {
        if (i != a && i != b) {
            to[k++] = have[i];
        }
    }
    to[k++] = rows < cols ? rows : cols;
    struct tj_attr_diagonal attr = {(int64_t)a, (int64_t)b};
    tj_ref in[2] = {n, tj_rec_scalar_i(&q, TRACE_I64, to[k - 1] ? offset : 0)};
    return tj_rec_end_view(
        &q, tj_rec_op(&q, TJ_OP_DIAGONAL, tj_rec_dtype(&q, n), to, k, in, 2, &attr, sizeof attr, TJ_PART));
}
trace_tensor *trace_diagonal(trace_tensor *x, int64_t offset, int64_t d0, int64_t d1) {
    return trace_diagonal_at(x, offset, d0, d1, NULL, 0);
}

trace_tensor *trace_unfold_at(trace_tensor *x, int64_t dim, int64_t size, int64_t step, const char *file, int line) {
    VIEW_BEGIN("unfold");
    size_t d;
    if (!not_0d(&q, rank) || !tj_rec_dim(&q, dim, rank, &d)) {
        STOP;
    }
    if (size < 0 || size > have[d] || step < 1) {
        FAIL(TRACE_ERR_ARGUMENT,
             "size %lld, step %lld do not fit extent %lld of dim %zu; size must be 0 to the extent, "
             "step at least 1",
             (long long)size, (long long)step, (long long)have[d], d);
    }
    int64_t to[TJ_MAX_RANK + 1];
    memcpy(to, have, rank * sizeof *to);
    to[d] = (have[d] - size) / step + 1;
    to[rank] = size;
    struct tj_attr_unfold attr = {(int64_t)d, size, step};
    return tj_rec_end_view(
        &q, tj_rec_op(&q, TJ_OP_UNFOLD, tj_rec_dtype(&q, n), to, rank + 1, &n, 1, &attr, sizeof attr, TJ_PART));
}
trace_tensor *trace_unfold(trace_tensor *x, int64_t dim, int64_t size, int64_t step) {
    return trace_unfold_at(x, dim, size, step, NULL, 0);
}

static tj_status pieces(const char *name, trace_tensor *x, int64_t each, int64_t dim, trace_tensor **out, size_t n,
                        const char *file, int line) {
    int64_t extent = trace_size(x, dim), count = extent > 0 ? (extent - 1) / each + 1 : 1;
    if (!out) {
        return tj_op_fail(TRACE_ERR_ARGUMENT, name, TJ_LOC(file, line), "out is NULL; give room for %lld handles",
                          (long long)count);
    }
    if ((uint64_t)count != n) {
        return tj_op_fail(TRACE_ERR_ARGUMENT, name, TJ_LOC(file, line), "room for %zu pieces, there are %lld", n,
                          (long long)count);
    }
    for (size_t i = 0; i < n; i++) {
        int64_t start = (int64_t)i * each, left = extent - start;
        out[i] = narrow(name, x, dim, start, left < each ? left : each, file, line);
        if (!out[i]) {
            while (i > 0) {
                trace_release(out[--i]);
            }
            memset(out, 0, n * sizeof *out);
            return tj_last_status() ? tj_last_status() : TRACE_ERR_ARGUMENT;
        }
    }
    return TRACE_OK;
}

static tj_status split_of(const char *name, trace_tensor *x, int64_t size, int64_t chunks, int64_t dim,
                          trace_tensor **out, size_t n, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct tj_run *run = tj_current;
    for (size_t i = 0; out && i < n; i++) {
        out[i] = NULL;
    }
    if (run && !run->eager && run->failed) {
        return run->failed;
    }
    if (!x && !run && tj_last_status()) {
        return tj_last_status(); // the NULL came of that failure, whose text stays
    }
    if (size < 1 && chunks < 1) {
        return tj_op_fail(TRACE_ERR_ARGUMENT, name, loc, "%s %lld; it must be at least 1",
                          name[0] == 's' ? "split_size" : "chunks", (long long)(name[0] == 's' ? size : chunks));
    }
    int64_t extent = trace_size(x, dim);
    if (extent < 0) {
        tj_status s = x && tj_last_status() ? tj_last_status() : TRACE_ERR_ARGUMENT;
        char text[TJ_ERROR_MAX];
        const char *why = x ? tj_last_error() : "an operand is NULL", *inner = "size: ";
        size_t skip = strncmp(why, inner, strlen(inner)) ? 0 : strlen(inner); // the host called split
        memcpy(text, why + skip, strlen(why + skip) + 1);
        return tj_op_fail(s, name, loc, "%s", text);
    }
    if (chunks) {
        size = extent ? (extent - 1) / chunks + 1 : 1;
    }
    return pieces(name, x, size, dim, out, n, file, line);
}

static tj_status split(const char *name, trace_tensor *x, int64_t size, int64_t chunks, int64_t dim, trace_tensor **out,
                       size_t n, const char *file, int line) {
    struct tj_run *back = tj_run_go(x, TJ_LOC(file, line));
    tj_status st = split_of(name, x, size, chunks, dim, out, n, file, line);
    (void)tj_run_switch(back);
    return st;
}

tj_status trace_split_at(trace_tensor *x, int64_t split_size, int64_t dim, trace_tensor **out, size_t n,
                         const char *file, int line) {
    return split("split", x, split_size, 0, dim, out, n, file, line);
}

tj_status trace_chunk_at(trace_tensor *x, int64_t chunks, int64_t dim, trace_tensor **out, size_t n, const char *file,
                         int line) {
    return split("chunk", x, 0, chunks, dim, out, n, file, line);
}

// ---- moves ------------------------------------------------------------------------------------------------

trace_tensor *trace_flip_at(trace_tensor *x, const int64_t *dims, size_t n_, const char *file, int line) {
    VIEW_BEGIN("flip");
    struct tj_attr_mask attr = {0};
    if (n_ && !tj_rec_dims_mask(&q, dims, n_, rank, &attr.mask)) {
        STOP;
    }
    n = tj_rec_in(&q, x);
    if (attr.mask == 0 || n == TJ_NIL) {
        return tj_rec_end(&q, tj_rec_like(&q, TJ_OP_COPY, tj_rec_dtype(&q, n), n, &n, 1));
    }
    return tj_rec_end(&q,
                      tj_rec_op(&q, TJ_OP_FLIP, tj_rec_dtype(&q, n), have, rank, &n, 1, &attr, sizeof attr, TJ_PART));
}
trace_tensor *trace_flip(trace_tensor *x, const int64_t *dims, size_t n) { return trace_flip_at(x, dims, n, NULL, 0); }

trace_tensor *trace_contiguous_at(trace_tensor *x, const char *file, int line) {
    VIEW_BEGIN("contiguous");
    if (tj_value_packed(q.r, n)) {
        return tj_rec_end_view(&q, n);
    }
    return tj_rec_end(&q, tj_rec_like(&q, TJ_OP_COPY, tj_rec_dtype(&q, n), n, &n, 1));
}
trace_tensor *trace_contiguous(trace_tensor *x) { return trace_contiguous_at(x, NULL, 0); }

trace_tensor *trace_clone_at(trace_tensor *x, const char *file, int line) {
    struct tj_rec q;
    if (!tj_rec_begin(&q, "clone", file, line, &x, 1)) {
        return NULL;
    }
    tj_ref n = tj_rec_in(&q, x);
    return tj_rec_end(&q, n == TJ_NIL ? n : tj_rec_like(&q, TJ_OP_COPY, tj_rec_dtype(&q, n), n, &n, 1));
}
trace_tensor *trace_clone(trace_tensor *x) { return trace_clone_at(x, NULL, 0); }

enum { CAT_FEW = 32 };

static trace_tensor *cat(const char *name, trace_tensor *const *ts, size_t n, int64_t dim, bool stack, const char *file,
                         int line) {
    struct tj_rec q;
    tj_ref few[CAT_FEW], *in = few, out = TJ_NIL;
    struct tj_typing ty = {-1, -1, TJ_NO_SCALAR};
    int64_t dims[TJ_MAX_RANK + 1], total = 0;
    size_t rank = 0, d = 0, k = 0, first = 0;
    char a[TJ_DIMS_TEXT], b[TJ_DIMS_TEXT];
    if (!ts || n == 0 || n > UINT32_MAX / 8) {
        tj_op_fail(TRACE_ERR_ARGUMENT, name, TJ_LOC(file, line), "%s; give at least one",
                   n > UINT32_MAX / 8 ? "too many tensors"
                   : n                ? "the list of tensors is NULL"
                                      : "no tensors");
        return NULL;
    }
    if (!tj_rec_begin(&q, name, file, line, ts, n)) {
        return NULL;
    }
    if (n > CAT_FEW && !(in = tj_malloc(n * sizeof *in))) {
        return tj_rec_end(&q, tj_rec_oom(&q));
    }
    for (size_t i = 0; i < n; i++) {
        tj_ref x = tj_rec_in(&q, ts[i]);
        if (x == TJ_NIL) {
            goto done;
        }
        size_t r = tj_rec_rank(&q, x);
        const int64_t *xd = tj_rec_dims(&q, x);
        tj_typing_add(&ty, tj_rec_dtype(&q, x), r);
        if (!stack && r == 1 && xd[0] == 0 && n > 1) {
            continue; // an empty 1-d tensor fits anything, as in ATen
        }
        if (k == 0) {
            first = i;
            rank = r;
            memcpy(dims, xd, r * sizeof *dims);
            if ((!stack && r == 0) || !tj_rec_dim(&q, dim, r + stack, &d)) {
                if (!stack && r == 0) {
                    tj_op_fail(TRACE_ERR_SHAPE, q.op, q.loc, "0-d tensors have no dim to join; use trace_stack");
                }
                goto done;
            }
        } else {
            bool fits = r == rank;
            for (size_t j = 0; fits && j < r; j++) {
                fits = xd[j] == dims[j] || (!stack && j == d);
            }
            if (!fits) {
                tj_op_fail(TRACE_ERR_SHAPE, q.op, q.loc, "tensor %zu is %s, tensor %zu %s; %s", first,
                           tj_dims_text(a, sizeof a, dims, rank), i, tj_dims_text(b, sizeof b, xd, r),
                           stack ? "all must have one shape" : "all extents but that of the joined dim must be equal");
                goto done;
            }
        }
        if (!stack && !tj_size_add(total, xd[d], &total)) {
            tj_op_fail(TRACE_ERR_SHAPE, q.op, q.loc, "the size of the result overflows");
            goto done;
        }
        in[k++] = x;
    }
    tj_dtype dt = tj_typing_result(&ty);
    if (k == 0) { // all of them empty
        int64_t zero = 0;
        if (!tj_rec_dim(&q, dim, 1, &d)) {
            goto done;
        }
        tj_ref s = tj_rec_scalar_i(&q, dt, 0);
        out = tj_rec_op(&q, TJ_OP_EXPAND, dt, &zero, 1, &s, 1, NULL, 0, TJ_OWNED);
        goto done;
    }
    if (stack) {
        memmove(dims + d + 1, dims + d, (rank - d) * sizeof *dims);
        dims[d] = 1;
        rank++;
        total = (int64_t)k;
        if (!tj_rec_shape(&q, dims, rank, dt)) {
            goto done;
        }
    }
    for (size_t i = 0; i < k; i++) {
        in[i] = tj_rec_cast(&q, in[i], dt);
        in[i] = stack && in[i] != TJ_NIL ? tj_rec_reshape(&q, in[i], dims, rank) : in[i];
        if (in[i] == TJ_NIL) {
            goto done;
        }
    }
    dims[d] = total;
    struct tj_attr_dim attr = {(int64_t)d};
    out = tj_rec_op(&q, TJ_OP_CAT, dt, dims, rank, in, k, &attr, sizeof attr, TJ_PART);
done:
    if (in != few) {
        tj_free(in);
    }
    return tj_rec_end(&q, out);
}
trace_tensor *trace_cat_at(trace_tensor *const *ts, size_t n, int64_t dim, const char *file, int line) {
    return cat("cat", ts, n, dim, false, file, line);
}
trace_tensor *trace_cat(trace_tensor *const *ts, size_t n, int64_t dim) { return trace_cat_at(ts, n, dim, NULL, 0); }
trace_tensor *trace_stack_at(trace_tensor *const *ts, size_t n, int64_t dim, const char *file, int line) {
    return cat("stack", ts, n, dim, true, file, line);
}
trace_tensor *trace_stack(trace_tensor *const *ts, size_t n, int64_t dim) {
    return trace_stack_at(ts, n, dim, NULL, 0);
}

trace_tensor *trace_pad_at(trace_tensor *x, const int64_t *pad, size_t n_, int mode, double value, const char *file,
                           int line) {
    VIEW_BEGIN("pad");
    struct tj_attr_pad attr = {mode, {0}, {0}};
    if (n_ % 2 || n_ / 2 > rank || (n_ && !pad)) {
        FAIL(TRACE_ERR_ARGUMENT, "%zu amounts for rank %zu; give (before, after) pairs, the last dim first", n_, rank);
    }
    if (mode != TRACE_PAD_CONSTANT && mode != TRACE_PAD_REFLECT && mode != TRACE_PAD_REPLICATE) {
        FAIL(TRACE_ERR_ARGUMENT, "mode %d; use TRACE_PAD_CONSTANT, _REFLECT or _REPLICATE", mode);
    }
    for (size_t i = 0; i < n_ / 2; i++) {
        size_t d = rank - 1 - i;
        int64_t lo = pad[2 * i], hi = pad[2 * i + 1], e = have[d];
        if (mode != TRACE_PAD_CONSTANT) {
            if (lo < 0 || hi < 0) {
                FAIL(TRACE_ERR_ARGUMENT, "negative amounts crop in constant mode only (dim %zu)", d);
            }
            if ((lo || hi) && (mode == TRACE_PAD_REFLECT ? lo >= e || hi >= e : e == 0)) {
                FAIL(TRACE_ERR_SHAPE, "amounts %lld, %lld are too large for extent %lld of dim %zu", (long long)lo,
                     (long long)hi, (long long)e, d);
            }
        }
        if (__builtin_add_overflow(e, lo, &e) || __builtin_add_overflow(e, hi, &e) || e < 0 ||
            (lo < 0 && lo < -have[d]) || (hi < 0 && hi < -have[d])) {
            FAIL(TRACE_ERR_SHAPE, "amounts %lld, %lld do not fit extent %lld of dim %zu", (long long)lo, (long long)hi,
                 (long long)have[d], d);
        }
        attr.lo[d] = lo;
        attr.hi[d] = hi;
        have[d] = e;
    }
    n = tj_rec_in(&q, x);
    tj_dtype dt = tj_rec_dtype(&q, n);
    tj_ref in[2] = {n, tj_rec_scalar_f(&q, dt, mode == TRACE_PAD_CONSTANT ? value : 0)};
    return tj_rec_end(&q, tj_rec_op(&q, TJ_OP_PAD, dt, have, rank, in, 2, &attr, sizeof attr, TJ_PART));
}
trace_tensor *trace_pad(trace_tensor *x, const int64_t *pad, size_t n, int mode, double value) {
    return trace_pad_at(x, pad, n, mode, value, NULL, 0);
}

// An index operand: i64, or i32 converted.
static tj_ref index_in(struct tj_rec *q, trace_tensor *t) {
    tj_ref n = tj_rec_in(q, t);
    if (n == TJ_NIL) {
        return n;
    }
    tj_dtype d = tj_rec_dtype(q, n);
    if (d != TRACE_I64 && d != TRACE_I32) {
        return tj_rec_fail(q, TRACE_ERR_DTYPE, "the index is %s; make it i64 (trace_to)", tj_dtypes[d].name);
    }
    return tj_rec_cast(q, n, TRACE_I64);
}

trace_tensor *trace_gather_at(trace_tensor *x, int64_t dim, trace_tensor *index, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *both[2] = {x, index};
    if (!tj_rec_begin(&q, "gather", file, line, both, 2)) {
        return NULL;
    }
    tj_ref n = tj_rec_in(&q, x), i = n == TJ_NIL ? n : index_in(&q, index);
    size_t d, rank, ri;
    int64_t have[TJ_MAX_RANK], di[TJ_MAX_RANK];
    if (i == TJ_NIL) {
        STOP;
    }
    dims_of(&q, n, have, &rank);
    dims_of(&q, i, di, &ri);
    if (!tj_rec_dim(&q, dim, rank, &d)) {
        STOP;
    }
    char a[TJ_DIMS_TEXT], b[TJ_DIMS_TEXT];
    bool fits = ri == rank;
    for (size_t k = 0; fits && k < rank; k++) {
        fits = k == d || di[k] <= have[k];
    }
    if (!fits) {
        FAIL(TRACE_ERR_SHAPE,
             "index %s does not fit %s in dim %zu; it has the same rank and no larger extents in the "
             "other dims",
             tj_dims_text(b, sizeof b, di, ri), tj_dims_text(a, sizeof a, have, rank), d);
    }
    if (rank == 0) { // one element: as 1-d
        int64_t one = 1;
        n = tj_rec_reshape(&q, n, &one, 1);
        i = tj_rec_reshape(&q, i, &one, 1);
        struct tj_attr_dim at = {0};
        tj_ref g = tj_rec_op(&q, TJ_OP_GATHER, n == TJ_NIL ? TRACE_F32 : tj_rec_dtype(&q, n), &one, 1, (tj_ref[]){n, i},
                             2, &at, sizeof at, TJ_PART);
        return tj_rec_end(&q, g == TJ_NIL ? g : tj_rec_reshape(&q, g, NULL, 0));
    }
    struct tj_attr_dim attr = {(int64_t)d};
    return tj_rec_end(
        &q, tj_rec_op(&q, TJ_OP_GATHER, tj_rec_dtype(&q, n), di, ri, (tj_ref[]){n, i}, 2, &attr, sizeof attr, TJ_PART));
}
trace_tensor *trace_gather(trace_tensor *x, int64_t dim, trace_tensor *index) {
    return trace_gather_at(x, dim, index, NULL, 0);
}

static tj_ref select_rows(struct tj_rec *q, tj_ref n, size_t d, tj_ref i) {
    int64_t have[TJ_MAX_RANK];
    size_t rank;
    if (n == TJ_NIL || i == TJ_NIL) {
        return TJ_NIL;
    }
    dims_of(q, n, have, &rank);
    have[d] = tj_rec_dims(q, i)[0];
    struct tj_attr_dim attr = {(int64_t)d};
    return tj_rec_op(q, TJ_OP_INDEX_SELECT, tj_rec_dtype(q, n), have, rank, (tj_ref[]){n, i}, 2, &attr, sizeof attr,
                     TJ_PART);
}

// A 1-d index; a 0-d one counts as one element.
static tj_ref index_1d(struct tj_rec *q, trace_tensor *t) {
    tj_ref i = index_in(q, t);
    char text[TJ_DIMS_TEXT];
    if (i == TJ_NIL || tj_rec_rank(q, i) == 1) {
        return i;
    }
    if (tj_rec_rank(q, i) == 0) {
        int64_t one = 1;
        return tj_rec_reshape(q, i, &one, 1);
    }
    return tj_rec_fail(q, TRACE_ERR_SHAPE, "index %s; make it 1-d (trace_flatten)",
                       tj_dims_text(text, sizeof text, tj_rec_dims(q, i), tj_rec_rank(q, i)));
}

trace_tensor *trace_index_select_at(trace_tensor *x, int64_t dim, trace_tensor *index, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *both[2] = {x, index};
    size_t d;
    if (!tj_rec_begin(&q, "index_select", file, line, both, 2)) {
        return NULL;
    }
    tj_ref n = tj_rec_in(&q, x), i = n == TJ_NIL ? n : index_1d(&q, index);
    if (i == TJ_NIL || !not_0d(&q, tj_rec_rank(&q, n)) || !tj_rec_dim(&q, dim, tj_rec_rank(&q, n), &d)) {
        STOP;
    }
    return tj_rec_end(&q, select_rows(&q, n, d, i));
}
trace_tensor *trace_index_select(trace_tensor *x, int64_t dim, trace_tensor *index) {
    return trace_index_select_at(x, dim, index, NULL, 0);
}

trace_tensor *trace_embedding_at(trace_tensor *weight, trace_tensor *index, const char *file, int line) {
    struct tj_rec q;
    trace_tensor *both[2] = {weight, index};
    if (!tj_rec_begin(&q, "embedding", file, line, both, 2)) {
        return NULL;
    }
    tj_ref w = tj_rec_in(&q, weight), i = w == TJ_NIL ? w : index_in(&q, index);
    char text[TJ_DIMS_TEXT];
    if (i == TJ_NIL) {
        STOP;
    }
    if (tj_rec_rank(&q, w) != 2) {
        FAIL(TRACE_ERR_SHAPE, "weight %s; it is [V, D]",
             tj_dims_text(text, sizeof text, tj_rec_dims(&q, w), tj_rec_rank(&q, w)));
    }
    int64_t dims[TJ_MAX_RANK + 1], all;
    size_t rank;
    dims_of(&q, i, dims, &rank);
    (void)tj_numel(dims, rank, &all);
    dims[rank] = tj_rec_dims(&q, w)[1];
    if (!tj_rec_shape(&q, dims, rank + 1, tj_rec_dtype(&q, w))) {
        STOP;
    }
    i = tj_rec_reshape(&q, i, &all, 1);
    tj_ref rows = select_rows(&q, w, 0, i);
    return tj_rec_end(&q, rows == TJ_NIL ? rows : tj_rec_reshape(&q, rows, dims, rank + 1));
}
trace_tensor *trace_embedding(trace_tensor *weight, trace_tensor *index) {
    return trace_embedding_at(weight, index, NULL, 0);
}

trace_tensor *trace_index_copy__at(trace_tensor *dst, int64_t dim, trace_tensor *index, trace_tensor *src,
                                   const char *file, int line) {
    struct tj_rec q;
    trace_tensor *all[3] = {dst, index, src};
    size_t d, rank;
    int64_t have[TJ_MAX_RANK];
    if (!tj_rec_begin(&q, "index_copy_", file, line, all, 3)) {
        return NULL;
    }
    tj_ref n = tj_rec_target(&q, dst), i = n == TJ_NIL ? n : index_1d(&q, index),
           s = i == TJ_NIL ? i : tj_rec_in(&q, src);
    if (s == TJ_NIL || !not_0d(&q, tj_rec_rank(&q, n)) || !tj_rec_dim(&q, dim, tj_rec_rank(&q, n), &d)) {
        return tj_rec_end_inplace(&q, dst, false);
    }
    n = tj_rec_mem(&q, dst);
    dims_of(&q, n, have, &rank);
    have[d] = tj_rec_dims(&q, i)[0];
    if (tj_rec_dtype(&q, s) != tj_rec_dtype(&q, n)) {
        tj_op_fail(TRACE_ERR_DTYPE, q.op, q.loc, "source is %s, destination %s; convert with trace_to",
                   tj_dtypes[tj_rec_dtype(&q, s)].name, tj_dtypes[tj_rec_dtype(&q, n)].name);
        return tj_rec_end_inplace(&q, dst, false);
    }
    if (!same_dims(&q, s, have, rank)) {
        char a[TJ_DIMS_TEXT], b[TJ_DIMS_TEXT];
        tj_op_fail(TRACE_ERR_SHAPE, q.op, q.loc, "source %s; for this index and destination it has to be %s",
                   tj_dims_text(a, sizeof a, tj_rec_dims(&q, s), tj_rec_rank(&q, s)),
                   tj_dims_text(b, sizeof b, have, rank));
        return tj_rec_end_inplace(&q, dst, false);
    }
    struct tj_attr_dim attr = {(int64_t)d};
    have[d] = tj_rec_dims(&q, n)[d];
    tj_ref v = tj_rec_op(&q, TJ_OP_INDEX_COPY, tj_rec_dtype(&q, n), have, rank, (tj_ref[]){n, i, s}, 3, &attr,
                         sizeof attr, TJ_PART);
    return tj_rec_end_inplace(&q, dst, v != TJ_NIL && tj_rec_write(&q, n, v));
}
trace_tensor *trace_index_copy_(trace_tensor *dst, int64_t dim, trace_tensor *index, trace_tensor *src) {
    return trace_index_copy__at(dst, dim, index, src, NULL, 0);
}

// ---- sources ------------------------------------------------------------------------------------------------

trace_tensor *trace_arange_at(trace_context *ctx, int64_t start, int64_t end, int64_t step, enum trace_dtype dtype,
                              const char *file, int line) {
    struct tj_rec q;
    if (!tj_rec_begin_ctx(&q, "arange", file, line, ctx)) {
        return NULL;
    }
    if (!tj_dtype_valid((int)dtype) || dtype == TRACE_BOOL) {
        FAIL(TRACE_ERR_DTYPE, "dtype %d; use an integer or float dtype", (int)dtype);
    }
    if (step == 0 || (step > 0 ? end < start : end > start)) {
        FAIL(TRACE_ERR_ARGUMENT, "from %lld to %lld by %lld; the step has to lead from start to end", (long long)start,
             (long long)end, (long long)step);
    }
    uint64_t span = step > 0 ? (uint64_t)end - (uint64_t)start : (uint64_t)start - (uint64_t)end;
    uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, count = span / by + (span % by != 0);
    int64_t n = count > INT64_MAX ? INT64_MAX : (int64_t)count;
    if (!tj_rec_shape(&q, &n, 1, dtype)) {
        STOP;
    }
    tj_dtype at = tj_is_float(dtype) ? TRACE_F64 : TRACE_I64;
    tj_ref in[2];
    in[0] = tj_rec_scalar_i(&q, at, start);
    in[1] = in[0] == TJ_NIL ? TJ_NIL : tj_rec_scalar_i(&q, at, step);
    return tj_rec_end(&q, tj_rec_op(&q, TJ_OP_ARANGE, dtype, &n, 1, in, 2, NULL, 0, TJ_PART));
}
trace_tensor *trace_arange(trace_context *ctx, int64_t start, int64_t end, int64_t step, enum trace_dtype dtype) {
    return trace_arange_at(ctx, start, end, step, dtype, NULL, 0);
}

static trace_tensor *full(const char *name, trace_context *ctx, const int64_t *dims, size_t n, bool fl, double f,
                          int64_t i, enum trace_dtype dtype, const char *file, int line) {
    struct tj_rec q;
    if (!tj_rec_begin_ctx(&q, name, file, line, ctx)) {
        return NULL;
    }
    if (!tj_dtype_valid((int)dtype)) {
        FAIL(TRACE_ERR_DTYPE, "%d is no dtype; use TRACE_F32 and the like", (int)dtype);
    }
    if (!tj_rec_shape(&q, dims, n, dtype)) {
        STOP;
    }
    tj_ref s = fl ? tj_rec_scalar_f(&q, dtype, f) : tj_rec_scalar_i(&q, dtype, i);
    return tj_rec_end(&q, n == 0 ? s : tj_rec_op(&q, TJ_OP_EXPAND, dtype, dims, n, &s, 1, NULL, 0, TJ_OWNED));
}
trace_tensor *trace_full_f_at(trace_context *ctx, const int64_t *dims, size_t n, double value, enum trace_dtype dtype,
                              const char *file, int line) {
    return full("full", ctx, dims, n, true, value, 0, dtype, file, line);
}
trace_tensor *trace_full_f(trace_context *ctx, const int64_t *dims, size_t n, double value, enum trace_dtype dtype) {
    return trace_full_f_at(ctx, dims, n, value, dtype, NULL, 0);
}
trace_tensor *trace_full_i_at(trace_context *ctx, const int64_t *dims, size_t n, int64_t value, enum trace_dtype dtype,
                              const char *file, int line) {
    return full("full", ctx, dims, n, false, 0, value, dtype, file, line);
}
trace_tensor *trace_full_i(trace_context *ctx, const int64_t *dims, size_t n, int64_t value, enum trace_dtype dtype) {
    return trace_full_i_at(ctx, dims, n, value, dtype, NULL, 0);
}
trace_tensor *trace_zeros_at(trace_context *ctx, const int64_t *dims, size_t n, enum trace_dtype dtype,
                             const char *file, int line) {
    return full("zeros", ctx, dims, n, false, 0, 0, dtype, file, line);
}
trace_tensor *trace_zeros(trace_context *ctx, const int64_t *dims, size_t n, enum trace_dtype dtype) {
    return trace_zeros_at(ctx, dims, n, dtype, NULL, 0);
}
trace_tensor *trace_ones_at(trace_context *ctx, const int64_t *dims, size_t n, enum trace_dtype dtype, const char *file,
                            int line) {
    return full("ones", ctx, dims, n, false, 0, 1, dtype, file, line);
}
trace_tensor *trace_ones(trace_context *ctx, const int64_t *dims, size_t n, enum trace_dtype dtype) {
    return trace_ones_at(ctx, dims, n, dtype, NULL, 0);
}
