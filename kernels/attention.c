// kernels/attention.c: SDPA steps: per head and block of query rows, scores, softmax over whole rows, times the values.
//
// Keys (transposed) and values of a head are packed into panels once a run; then items, one a (head, block of rows):
//
//     scores = q k^T          tiles, into the thread's scratch
//     row by row: scale, mask, causal limit, exp(x - max), sum
//     out    = scores v       tiles; each row is divided by its sum
//
// A block has so few rows that its scores stay in the second cache. With causal, keys past the block's last row are
// never looked at. A row that sees no key is 0. Few queries (decoding) read keys and values where they are, once:
// packing them would cost more than it gives.
//
// What a query doesn't see can't reach it, whatever is there. Its weight is -0, so it counts for nothing as long as the
// value is finite; a row that comes out with a NaN is multiplied again, with zeros for the values that it doesn't see.
#include "contract_impl.h"

#include <math.h>

struct attention {
    const struct tj_contract *c;
    const struct tj_contract_args *a;
    int batch_dims;
    int64_t heads;       // query heads, all batch dims together
    int64_t l, s, e, ev; // queries, keys, their length, length of values
    struct tj_view k, v; // batch dims of extent 1 where they broadcast
    int64_t kheads, vheads;
    int64_t kpanels, vpanels;
    int64_t kbytes, vbytes; // of a packed head
    int64_t block, blocks;  // query rows of an item
    int64_t lds;            // elements of a scratch row of scores
    bool copy_q;
    int qsize, ksize, vsize; // bytes of an element as it comes; f16 and bf16 are widened as they are read
    bool few;                // no packing: dot products and weighted sums
    int slots;
    size_t at_k, at_v, at_s, at_q, at_z;
    int64_t sbytes, qbytes, zbytes; // scratch of a slot: scores, queries, a piece of a panel of values
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Batch dims as many as the result has: missing ones and those with stride 0 count 1.
static struct tj_view lead(const struct tj_view *v, int rank) {
    struct tj_view r = *v;
    int shift = rank - v->rank;
    r.rank = (uint8_t)rank;
    for (int d = 0; d < rank; d++) {
        bool there = d >= shift;
        r.dims[d] = there ? v->dims[d - shift] : 1;
        r.strides[d] = there ? v->strides[d - shift] : 0;
        if (d < rank - 2 && r.strides[d] == 0) {
            r.dims[d] = 1;
        }
    }
    return r;
}

static bool plan(struct attention *p, const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes) {
    const int r = a->out.rank;
    const int64_t nr = c->nr, size = c->size;
    *p = (struct attention){.c = c, .a = a, .batch_dims = r - 2};
    p->heads = tj_view_count(&a->out, r - 2);
    p->l = a->out.dims[r - 2];
    p->ev = a->out.dims[r - 1];
    p->e = a->a.dims[a->a.rank - 1];
    p->s = a->b.dims[a->b.rank - 2];
    p->k = lead(&a->b, r);
    p->v = lead(&a->c, r);
    p->kheads = tj_view_count(&p->k, r - 2);
    p->vheads = tj_view_count(&p->v, r - 2);
    p->kpanels = ceil_div(p->s, nr);
    p->vpanels = ceil_div(p->ev, nr);
    p->lds = p->kpanels * nr;
    p->qsize = (int)tj_elem_bytes((tj_dtype)a->a.dtype);
    p->ksize = (int)tj_elem_bytes((tj_dtype)a->b.dtype);
    p->vsize = (int)tj_elem_bytes((tj_dtype)a->c.dtype);
    p->copy_q = (a->a.strides[a->a.rank - 1] != 1 && p->e > 1) || p->qsize != c->size;
    p->slots = tj_slots(a, (double)p->heads * (double)p->l * (double)p->s * (double)(p->e + p->ev + 16));
    const int high = c->tiles[0].mr;
    int64_t fit = (int64_t)c->l2 / 2 / size / (p->lds > 0 ? p->lds : 1);
    // A function of extents and layout, as which bits come out depends on it.
    p->few = c->dtype == TRACE_F32 && p->l <= 8 && (p->k.strides[r - 1] == 1 || p->e <= 1) &&
             (p->v.strides[r - 1] == 1 || p->ev <= 1);
    int64_t most =
        p->heads * ceil_div(p->l, 48) < 16 ? 24 : 48; // few heads: smaller blocks, so that they can be shared
    p->block = fit > most ? most : fit < high ? high : fit;
    p->block = p->block / high * high > 0 ? p->block / high * high : high;
    p->block = p->block > p->l ? p->l : p->block;
    p->blocks = ceil_div(p->l, p->block);
    bool ok = tj_size_mul(p->kpanels * nr, p->e, &p->kbytes) && tj_size_mul(p->kbytes, size, &p->kbytes) &&
              tj_size_mul(p->vpanels * nr, p->s, &p->vbytes) && tj_size_mul(p->vbytes, size, &p->vbytes) &&
              tj_size_mul(p->block, p->lds, &p->sbytes) && tj_size_mul(p->sbytes, size, &p->sbytes);
    p->qbytes = p->copy_q ? p->block * p->e * size : 0;
    p->zbytes = p->few || !(c->causal || c->has_mask) ? 0 : (p->s < TJ_KBLOCK ? p->s : TJ_KBLOCK) * nr * size;
    return ok && tj_space(bytes, p->few ? 0 : p->kheads, p->kbytes, &p->at_k) &&
           tj_space(bytes, p->few ? 0 : p->vheads, p->vbytes, &p->at_v) &&
           tj_space(bytes, p->slots, p->sbytes, &p->at_s) && tj_space(bytes, p->slots, p->qbytes, &p->at_q) &&
           tj_space(bytes, p->slots, p->zbytes, &p->at_z);
}

bool tj_attention_workspace(const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes) {
    struct attention p;
    *bytes = 0;
    return plan(&p, c, a, bytes);
}

// Panels of one head: k x n elements from b on.
static void pack_head(const struct tj_contract *c, unsigned char *dst, const unsigned char *b, uint8_t dtype, int64_t k,
                      int64_t n, int64_t sk, int64_t sn) {
    tj_pack_panels(c, dst, c->dtype, b, dtype, k, n, sk, sn, 0, ceil_div(n, c->nr));
}

static void pack_item(void *ctx, int slot, int64_t item) {
    const struct attention *p = ctx;
    const int r = p->batch_dims + 2;
    (void)slot;
    if (item < p->kheads) {
        pack_head(p->c, p->a->workspace + p->at_k + item * p->kbytes, p->k.p + tj_view_at(&p->k, r - 2, item, p->ksize),
                  p->k.dtype, p->e, p->s, p->k.strides[r - 1], p->k.strides[r - 2]);
    } else {
        item -= p->kheads;
        pack_head(p->c, p->a->workspace + p->at_v + item * p->vbytes, p->v.p + tj_view_at(&p->v, r - 2, item, p->vsize),
                  p->v.dtype, p->s, p->ev, p->v.strides[r - 2], p->v.strides[r - 1]);
    }
}

// The head of k or v that query head `head` reads; grouped queries share one.
static int64_t other_head(const struct attention *p, const struct tj_view *kv, int64_t head) {
    int64_t index = 0, scale = 1;
    for (int d = p->batch_dims - 1; d >= 0; d--) {
        int64_t n = p->a->out.dims[d], at = head % n;
        head /= n;
        if (kv->dims[d] > 1) {
            index += at / (n / kv->dims[d]) * scale;
            scale *= kv->dims[d];
        }
    }
    return index;
}

// a (rows x k, rows of lda bytes) times the first k rows of packed panels, columns [0, n).
static void product(const struct tj_contract *c, const unsigned char *a, int64_t lda, const unsigned char *panels,
                    int64_t panel_k, unsigned char *out, int64_t ldc, int64_t rows, int64_t n, int64_t k) {
    struct tj_block t = {.lda = lda, .ldc = ldc, .rows = rows};
    for (int64_t q = 0; q * c->nr < n; q++) {
        t.cols1 = n - q * c->nr < c->nr ? (int)(n - q * c->nr) : c->nr;
        t.c = out + q * c->nr * c->size;
        int64_t k0 = 0;
        do {
            t.a = a + k0 * c->size;
            t.b = panels + (q * panel_k + k0) * c->nr * c->size;
            t.k = k - k0 < TJ_KBLOCK ? k - k0 : TJ_KBLOCK;
            t.mode = k0 ? TJ_TILE_ADD : TJ_TILE_SET;
            tj_block_run(c, &t);
            k0 += TJ_KBLOCK;
        } while (k0 < k);
    }
}

static double softmax_f64(double *x, int64_t n, double scale, const unsigned char *mask, int64_t smask, uint8_t dtype) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = x[i] * scale;
        if (mask && dtype == TRACE_BOOL) {
            v = mask[i * smask] ? v : -INFINITY;
        } else if (mask) {
            double m = ((const double *)(const void *)mask)[i * smask];
            v = m == -INFINITY ? -INFINITY : v + m;
        }
        x[i] = v;
        top = v > top ? v : top;
    }
    for (int64_t i = 0; i < n; i++) {
        double d = x[i] - top;
        x[i] = top == -INFINITY ? (x[i] != x[i] ? NAN : 0) : d == -INFINITY ? -0.0 : exp(d);
        sum += x[i];
    }
    return sum;
}

static bool has_nan(const struct tj_contract *c, const unsigned char *x, int64_t n) {
    int nan = 0;
    for (int64_t i = 0; i < n; i++) {
        nan |= c->dtype == TRACE_F32 ? ((const float *)(const void *)x)[i] != ((const float *)(const void *)x)[i]
                                     : ((const double *)(const void *)x)[i] != ((const double *)(const void *)x)[i];
    }
    return nan;
}

static bool unseen(const struct tj_contract *c, const unsigned char *weights, int64_t i) {
    return c->dtype == TRACE_F32 ? tj_unseen_f32(((const float *)(const void *)weights)[i])
                                 : tj_unseen_f64(((const double *)(const void *)weights)[i]);
}

// One row of product() over values, of which those that aren't seen count as 0, through a copy of each piece of a
// panel.
static void product_seen(const struct tj_contract *c, const unsigned char *weights, const unsigned char *panels,
                         int64_t panel_k, unsigned char *out, int64_t n, int64_t k, unsigned char *copy) {
    struct tj_block t = {.b = copy, .rows = 1};
    const int64_t line = (int64_t)c->nr * c->size;
    for (int64_t q = 0; q * c->nr < n; q++) {
        t.cols1 = n - q * c->nr < c->nr ? (int)(n - q * c->nr) : c->nr;
        t.c = out + q * line;
        for (int64_t k0 = 0; k0 < k; k0 += TJ_KBLOCK) {
            t.a = weights + k0 * c->size;
            t.k = k - k0 < TJ_KBLOCK ? k - k0 : TJ_KBLOCK;
            t.mode = k0 ? TJ_TILE_ADD : TJ_TILE_SET;
            for (int64_t i = 0; i < t.k; i++) {
                if (unseen(c, t.a, i)) {
                    memset(copy + i * line, 0, (size_t)line);
                } else {
                    memcpy(copy + i * line, panels + (q * panel_k + k0 + i) * line, (size_t)line);
                }
            }
            tj_block_run(c, &t);
        }
    }
}

// The keys [from, to) aren't seen.
static void hide(const struct tj_contract *c, unsigned char *weights, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        if (c->dtype == TRACE_F32) {
            ((float *)(void *)weights)[i] = -0.0f;
        } else {
            ((double *)(void *)weights)[i] = -0.0;
        }
    }
}

static void divide(const struct tj_contract *c, unsigned char *row, int64_t n, double sum) {
    for (int64_t i = 0; i < n; i++) {
        if (c->dtype == TRACE_F32) {
            float *y = (float *)(void *)row + i;
            *y = sum == 0 ? 0 : *y / (float)sum;
        } else {
            double *y = (double *)(void *)row + i;
            *y = sum == 0 ? 0 : *y / sum;
        }
    }
}

static void attention_item(void *ctx, int slot, int64_t item) {
    const struct attention *p = ctx;
    const struct tj_contract *c = p->c;
    const struct tj_contract_args *a = p->a;
    const int r = p->batch_dims + 2, size = c->size;
    const int64_t head = item / p->blocks, i0 = item % p->blocks * p->block;
    const int64_t i1 = i0 + p->block < p->l ? i0 + p->block : p->l, rows = i1 - i0;
    const int64_t s = c->causal && i1 < p->s ? i1 : p->s; // keys that some row of the block sees
    unsigned char *scores = a->workspace + p->at_s + slot * p->sbytes;
    unsigned char *out = a->out.p + tj_view_at(&a->out, r - 2, head, size) + i0 * a->out.strides[r - 2] * size;
    const int64_t ldo = a->out.strides[r - 2] * size, lds = p->lds * size;

    struct tj_view qv = lead(&a->a, r);
    const unsigned char *q = qv.p + i0 * qv.strides[r - 2] * p->qsize;
    int64_t ldq = qv.strides[r - 2] * p->qsize, rest = head;
    for (int d = r - 3; d >= 0; d--) {
        q += rest % a->out.dims[d] * qv.strides[d] * p->qsize;
        rest /= a->out.dims[d];
    }
    if (p->copy_q) {
        unsigned char *copy = a->workspace + p->at_q + slot * p->qbytes;
        tj_pack_rows(copy, q, rows, p->e, qv.strides[r - 2], qv.strides[r - 1], qv.dtype, c->wide);
        q = copy;
        ldq = p->e * size;
    }
    const int64_t kh = other_head(p, &p->k, head), vh = other_head(p, &p->v, head);
    if (p->few) {
        const unsigned char *k = p->k.p + tj_view_at(&p->k, r - 2, kh, p->ksize);
        for (int64_t i = 0; i < rows; i++) {
            tj_dots((float *)(void *)(scores + i * lds), (const float *)(const void *)(q + i * ldq), k,
                    p->k.strides[r - 2], s, p->e, p->k.dtype, c->wide);
        }
    } else {
        product(c, q, ldq, a->workspace + p->at_k + kh * p->kbytes, p->e, scores, lds, rows, s, p->e);
    }

    double sums[64];
    for (int64_t i = i0; i < i1; i++) {
        unsigned char *x = scores + (i - i0) * lds;
        const int64_t n = c->causal && i + 1 < s ? i + 1 : s;
        const unsigned char *mask = NULL;
        int64_t smask = 0;
        if (c->has_mask) {
            struct tj_view m = lead(&a->d, r);
            const int msize = (int)tj_elem_bytes(a->d.dtype);
            int64_t at = i * m.strides[r - 2];
            rest = head;
            for (int d = r - 3; d >= 0; d--) {
                at += rest % a->out.dims[d] * m.strides[d];
                rest /= a->out.dims[d];
            }
            mask = m.p + at * msize;
            smask = m.strides[r - 1];
        }
        if (c->dtype == TRACE_F32) {
            struct tj_softmax_row row = {.x = (float *)(void *)x,
                                         .n = n,
                                         .scale = (float)a->scale,
                                         .mask = mask,
                                         .smask = smask,
                                         .mask_dtype = a->d.dtype};
            sums[i - i0] = (double)tj_softmax_f32(&row, c->wide);
        } else {
            sums[i - i0] = softmax_f64((double *)(void *)x, n, a->scale, mask, smask, a->d.dtype);
        }
        hide(c, x, n, s);
    }
    if (p->few) {
        const unsigned char *v = p->v.p + tj_view_at(&p->v, r - 2, vh, p->vsize);
        for (int64_t i = 0; i < rows; i++) {
            tj_mix((float *)(void *)(out + i * ldo), (const float *)(const void *)(scores + i * lds), v,
                   p->v.strides[r - 2], s, p->ev, p->v.dtype, c->wide);
        }
    } else {
        const unsigned char *v = a->workspace + p->at_v + vh * p->vbytes;
        product(c, scores, lds, v, p->s, out, ldo, rows, p->ev, s);
        for (int64_t i = 0; p->zbytes && i < rows; i++) {
            if (has_nan(c, out + i * ldo, p->ev) && sums[i] == sums[i]) {
                product_seen(c, scores + i * lds, v, p->s, out + i * ldo, p->ev, s,
                             a->workspace + p->at_z + slot * p->zbytes);
            }
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        divide(c, out + i * ldo, p->ev, sums[i]);
    }
    if (a->epilogue) {
        a->epilogue(a->epilogue_arg, slot, head * p->l + i0, head * p->l + i1, 0, p->ev);
    }
}

void tj_attention_run(const struct tj_contract *c, const struct tj_contract_args *a) {
    struct attention p;
    size_t bytes = 0;
    (void)plan(&p, c, a, &bytes); // it fitted when the workspace was sized
    double work = ((double)p.kheads * (double)p.kbytes + (double)p.vheads * (double)p.vbytes) / c->size * 8;
    if (!p.few) {
        tj_items(a, tj_slots(a, work), p.kheads + p.vheads, pack_item, &p);
    }
    tj_items(a, p.slots, p.heads * p.blocks, attention_item, &p);
}
