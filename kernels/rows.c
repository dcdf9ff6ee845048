// kernels/rows.c: strided copies: COPY steps, rows put in place by index, results that are not dense.
#include "contract_impl.h"

static void copy_row(unsigned char *d, int64_t sd, const unsigned char *s, int64_t ss, int64_t n, int size,
                     bool truth) {
    if (truth) {
        for (int64_t i = 0; i < n; i++) {
            d[i * sd] = s[i * ss] != 0;
        }
        return;
    }
    if (sd == 1 && ss == 1) {
        memcpy(d, s, (size_t)(n * size));
        return;
    }
    switch (size) {
    case 1:
        for (int64_t i = 0; i < n; i++) {
            d[i * sd] = s[i * ss];
        }
        break;
    case 2:
        for (int64_t i = 0; i < n; i++) {
            memcpy(d + i * sd * 2, s + i * ss * 2, 2);
        }
        break;
    case 4:
        for (int64_t i = 0; i < n; i++) {
            memcpy(d + i * sd * 4, s + i * ss * 4, 4);
        }
        break;
    default:
        for (int64_t i = 0; i < n; i++) {
            memcpy(d + i * sd * 8, s + i * ss * 8, 8);
        }
        break;
    }
}

void tj_copy_rows(const struct tj_view *dst, const struct tj_view *src, int size, int64_t r0, int64_t r1) {
    const int last = dst->rank - 1;
    const int64_t n = dst->rank ? dst->dims[last] : 1;
    const int64_t sd = dst->rank ? dst->strides[last] : 1, ss = dst->rank ? src->strides[last] : 1;
    for (int64_t r = r0; r < r1; r++) {
        copy_row(dst->p + tj_view_at(dst, last, r, size), sd, src->p + tj_view_at(src, last, r, size), ss, n, size,
                 size == 1 && dst->dtype == TRACE_BOOL);
    }
}

struct copy {
    const struct tj_contract *c;
    const struct tj_contract_args *a;
    struct tj_view dst, src;
    int64_t rows, block;
};

static void copy_item(void *ctx, int slot, int64_t item) {
    const struct copy *p = ctx;
    (void)slot;
    int64_t r0 = item * p->block, r1 = r0 + p->block < p->rows ? r0 + p->block : p->rows;
    tj_copy_rows(&p->dst, &p->src, p->c->size, r0, r1);
}

static void copy_views(const struct tj_contract *c, const struct tj_contract_args *a, const struct tj_view *dst,
                       const struct tj_view *src) {
    struct copy p = {.c = c, .a = a, .dst = *dst, .src = *src};
    int64_t cols = dst->rank ? dst->dims[dst->rank - 1] : 1;
    p.rows = tj_view_count(dst, dst->rank ? dst->rank - 1 : 0);
    p.block = 1 + 16384 / (cols > 0 ? cols : 1);
    tj_items(a, tj_slots(a, (double)p.rows * (double)cols * 4), (p.rows + p.block - 1) / p.block, copy_item, &p);
}

void tj_copy_run(const struct tj_contract *c, const struct tj_contract_args *a) { copy_views(c, a, &a->out, &a->a); }

void tj_index_copy_run(const struct tj_contract *c, const struct tj_contract_args *a) {
    const int d = (int)c->dim;
    const int64_t extent = a->out.dims[d], n = a->a.dims[0];
    if (tj_view_empty(&a->b)) {
        return;
    }
    // One index after the other, so that the last of equal ones wins; the slab of one index is copied in parallel.
    for (int64_t k = 0; k < n; k++) {
        int64_t row;
        memcpy(&row, a->a.p + k * a->a.strides[0] * 8, sizeof row);
        if (row < 0 || row >= extent) {
            uint32_t none = 0;
            if (a->err && atomic_compare_exchange_strong(&a->err->set, &none, 1)) {
                a->err->node = a->node;
                a->err->kind = TJ_DATA_INDEX;
                a->err->index = row;
                a->err->extent = extent;
                atomic_store(&a->err->set, 2);
            }
            continue;
        }
        struct tj_view dst = a->out, src = a->b;
        dst.p += row * dst.strides[d] * c->size;
        src.p += k * src.strides[d] * c->size;
        dst.dims[d] = src.dims[d] = 1;
        copy_views(c, a, &dst, &src);
    }
}
