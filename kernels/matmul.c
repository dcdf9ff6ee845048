// kernels/matmul.c: MATMUL steps: batches, blocks of rows and panels, operands packed where tiles can't read them.
//
//   items          one (batch, block of rows, range of panels); each calls the epilogue for what it finished
//     sub-block    rows whose results stay in the second cache
//       chunk of k a panel piece stays in the first two caches while the rows pass over it
//         panel    all tiles of the sub-block's rows
#include "contract_impl.h"

// What a run with these views does; computed alike for sizing and running.
struct matmul {
    const struct tj_contract *c;
    const struct tj_contract_args *a;
    int batch_dims; // of a, b, out that are left after merging; one batch is m x n
    int64_t m, n, k, batches;
    int64_t sam, sak, sbk, sbn, som; // strides in elements
    struct tj_view bb;               // b with batch dims that broadcast made 1: its distinct matrices
    int64_t bcount, panels;          // distinct matrices of b; panels of one
    bool copy_a;                     // rows of A don't have unit stride, or are to be widened
    int asize, ssize;                // bytes of an element of A and B as they come
    bool fuse;                       // each panel of b is needed by one item only, which packs pieces as it goes
    int64_t piece;                   // steps of k of such a piece
    bool across;                     // its rows lie apart: go along them, not down a panel
    bool direct;                     // ... and few rows read them where they are
    int slots;
    int64_t block, sub; // rows of an item and of a sub-block
    int64_t per;        // panels of an item
    int64_t row_blocks, col_blocks;
    size_t at_b, at_a, at_e; // in the workspace: panels, rows of A, sums of a later block of k
    int64_t ebytes;
    const unsigned char *packed;
};

enum {
    PIECE_BYTES = 16 * 1024, // half of a first cache, and A's and C's beside it
    DIRECT_ROWS = 4
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Batch dims of b that broadcast hold one matrix.
static struct tj_view distinct(const struct tj_view *b) {
    struct tj_view v = *b;
    for (int d = 0; d < v.rank - 2; d++) {
        if (v.strides[d] == 0 && v.dims[d] > 1) {
            v.dims[d] = 1;
        }
    }
    return v;
}

static bool plan(struct matmul *p, const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes) {
    const struct tj_view *out = &a->out;
    int last = out->rank - 2; // dim of M
    *p = (struct matmul){.c = c, .a = a, .n = out->dims[last + 1], .k = a->b.dims[last]};
    p->bb = distinct(&a->b);
    p->m = out->dims[last];
    p->sam = a->a.strides[last];
    p->som = out->strides[last];
    p->sak = a->a.strides[last + 1];
    p->sbk = a->b.strides[last];
    p->sbn = a->b.strides[last + 1];
    p->batch_dims = last;
    // Rows of batches that share b are rows of one matrix, where their addresses go on evenly.
    while (p->batch_dims > 0) {
        int d = p->batch_dims - 1;
        int64_t n = out->dims[d];
        if (n > 1) {
            if (a->b.strides[d] != 0) {
                break;
            }
            if (p->m == 1) {
                p->sam = a->a.strides[d];
                p->som = out->strides[d];
            } else if (a->a.strides[d] != p->m * p->sam || out->strides[d] != p->m * p->som) {
                break;
            }
            p->m *= n;
        }
        p->batch_dims = d;
    }
    p->batches = tj_view_count(out, p->batch_dims);
    p->bcount = tj_view_count(&p->bb, p->batch_dims);
    p->panels = ceil_div(p->n, c->nr);
    p->asize = tj_is_half(a->a.dtype) ? 2 : c->size;
    p->ssize = (int)tj_elem_bytes((tj_dtype)a->b.dtype);
    p->copy_a = (p->sak != 1 && p->k > 1) || p->asize != c->size;
    p->slots = tj_slots(a, (double)p->batches * (double)p->m * (double)p->n * (double)p->k);

    // Sub-blocks: C's rows and A's in half the second cache, whole tiles.
    int64_t row_bytes = (p->n + (p->k < c->kchunk ? p->k : c->kchunk)) * c->size;
    int64_t high = c->tiles[0].mr, sub = (int64_t)c->l2 / 2 / (row_bytes > 0 ? row_bytes : 1);
    sub = sub > 96 ? 96 : sub < 2 * high ? 2 * high : sub;
    p->sub = sub / high * high;
    p->block = p->sub;
    p->row_blocks = ceil_div(p->m, p->block);
    // As many blocks for every thread. Few rows stay together where there are columns to share: blocks of one or two
    // tiles read all of B each, and differ in height.
    bool few = p->m < 4 * high * p->slots && p->panels >= 2 * p->slots;
    if (p->slots > 1 && p->batches == 1 && p->row_blocks % p->slots && !few) {
        int64_t even = ceil_div(p->row_blocks, p->slots) * p->slots;
        p->block = ceil_div(ceil_div(p->m, even), high) * high;
        p->row_blocks = ceil_div(p->m, p->block);
    }
    p->col_blocks = 1;
    p->per = p->panels;
    int64_t items = p->batches * p->row_blocks;
    if (p->slots > 1 && items < 4 * p->slots) {
        // Too few items to share evenly: lower blocks first, as long as a block reads each panel for several tiles.
        int64_t want = 2 * p->slots, by_rows = ceil_div(want, p->batches);
        int64_t block = ceil_div(ceil_div(p->m, by_rows), high) * high;
        if (block >= 4 * high) {
            p->block = block < p->sub ? block : p->sub;
            p->row_blocks = ceil_div(p->m, p->block);
            items = p->batches * p->row_blocks;
        }
        if (items < want && p->panels > 1) {
            int64_t cols = ceil_div(want, items);
            p->per = ceil_div(p->panels, cols < p->panels ? cols : p->panels);
            p->col_blocks = ceil_div(p->panels, p->per);
        }
    }
    p->fuse = !a->packed && p->row_blocks == 1 && p->bcount == p->batches;
    p->across = p->sbk > p->sbn;
    p->piece = PIECE_BYTES / (c->nr * c->bsize) / 64 * 64;
    p->direct = p->fuse && p->m <= DIRECT_ROWS && p->sbn == 1 && tj_axpy_works(c);
    p->piece = p->direct ? TJ_AXPY_STEPS : p->across || p->piece < 64 ? 64 : p->piece;
    int64_t panel_elems, all;
    if (!a->packed && (!tj_size_mul(p->fuse ? c->nr : p->panels * c->nr, p->fuse ? p->piece : p->k, &panel_elems) ||
                       !tj_size_mul(panel_elems, p->fuse ? p->slots : p->bcount, &all) ||
                       !tj_space(bytes, all, c->bsize, &p->at_b))) {
        return false;
    }
    if (p->fuse && p->k > TJ_KBLOCK &&
        (!tj_size_mul(p->block, p->per * c->nr, &p->ebytes) || !tj_size_mul(p->ebytes, c->size, &p->ebytes) ||
         !tj_space(bytes, p->slots, p->ebytes, &p->at_e))) {
        return false;
    }
    if (p->copy_a && (!tj_size_mul(p->slots, p->block, &all) || !tj_size_mul(all, p->k, &all) ||
                      !tj_space(bytes, all, c->size, &p->at_a))) {
        return false;
    }
    return true;
}

bool tj_matmul_workspace(const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes) {
    struct matmul p;
    *bytes = 0;
    return plan(&p, c, a, bytes);
}

// ---- packing --------------------------------------------------------------------------------------------------------

size_t tj_matmul_pack_bytes(const struct tj_contract *c, const struct tj_view *w) {
    struct tj_view v = distinct(w);
    int64_t k = v.dims[v.rank - 2], panels = ceil_div(v.dims[v.rank - 1], c->nr), n, elems;
    size_t bytes = 0, at;
    bool ok = tj_numel(v.dims, v.rank - 2u, &n) && tj_size_mul(panels * c->nr, k, &elems) &&
              tj_size_mul(elems, n, &elems) && tj_space(&bytes, elems, c->bsize, &at);
    return ok ? bytes : 0;
}

void tj_matmul_pack(const struct tj_contract *c, const struct tj_view *w, void *dst) {
    struct tj_view v = distinct(w);
    const int r = v.rank;
    int64_t k = v.dims[r - 2], n = v.dims[r - 1], panels = ceil_div(n, c->nr), count = tj_view_count(&v, r - 2);
    for (int64_t i = 0; i < count; i++) {
        tj_pack_panels(c, (unsigned char *)dst + i * panels * k * c->nr * c->bsize, c->bdtype,
                       v.p + tj_view_at(&v, r - 2, i, (int)tj_elem_bytes((tj_dtype)v.dtype)), v.dtype, k, n,
                       v.strides[r - 2], v.strides[r - 1], 0, panels);
    }
}

enum { PACK_PANELS = 4 }; // panels one item packs

static void pack_item(void *ctx, int slot, int64_t item) {
    const struct matmul *p = ctx;
    (void)slot;
    int64_t groups = ceil_div(p->panels, PACK_PANELS), i = item / groups, p0 = item % groups * PACK_PANELS;
    int64_t p1 = p0 + PACK_PANELS < p->panels ? p0 + PACK_PANELS : p->panels;
    const struct tj_contract *c = p->c;
    tj_pack_panels(c, p->a->workspace + p->at_b + i * p->panels * p->k * c->nr * c->bsize, c->bdtype,
                   p->bb.p + tj_view_at(&p->bb, p->batch_dims, i, p->ssize), p->bb.dtype, p->k, p->n, p->sbk, p->sbn,
                   p0, p1);
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

// Which of b's distinct matrices batch i uses.
static int64_t b_index(const struct matmul *p, int64_t i) {
    int64_t index = 0, scale = 1;
    for (int d = p->batch_dims - 1; d >= 0; d--) {
        int64_t n = p->a->out.dims[d], at = i % n;
        i /= n;
        if (p->bb.dims[d] > 1) {
            index += at * scale;
            scale *= p->bb.dims[d];
        }
    }
    return index;
}

// One chunk of k, from k0, of one panel: rows of A at am, the panel's row k0 at b, C's first column at c.
static void chunk(const struct matmul *p, struct tj_block *t, const unsigned char *am, const unsigned char *b,
                  unsigned char *c, int64_t q, int64_t k0, int64_t k1) {
    const int nr = p->c->nr;
    t->a = am + k0 * p->c->size;
    t->b = b;
    t->c = c;
    t->k = k1 - k0;
    t->mode = k0 == 0 ? TJ_TILE_SET : k0 < TJ_KBLOCK ? TJ_TILE_CHAIN : TJ_TILE_ADD;
    t->cols1 = p->n - q * nr < nr ? (int)(p->n - q * nr) : nr;
    tj_block_run(p->c, t);
}

// One piece of k, [k0, k1), of panel q, which is packed first. Later blocks of k are chains of their own from 0, in
// `sums`, which are added once they are whole.
static void piece(const struct matmul *p, struct tj_block *t, const unsigned char *am, const unsigned char *b,
                  unsigned char *panel, unsigned char *out, unsigned char *sums, int64_t q, int64_t k0, int64_t k1) {
    const struct tj_contract *c = p->c;
    const int64_t n = p->n - q * c->nr, ldc = t->ldc;
    tj_pack_panels(c, panel, c->bdtype, b + (k0 * p->sbk + q * c->nr * p->sbn) * p->ssize, p->bb.dtype, k1 - k0, n,
                   p->sbk, p->sbn, 0, 1);
    t->a = am + k0 * c->size;
    t->b = panel;
    t->c = k0 < TJ_KBLOCK ? out : sums;
    t->ldc = k0 < TJ_KBLOCK ? ldc : c->nr * c->size;
    t->k = k1 - k0;
    t->mode = k0 % TJ_KBLOCK ? TJ_TILE_CHAIN : TJ_TILE_SET;
    t->cols1 = n < c->nr ? (int)n : c->nr;
    tj_block_run(c, t);
    for (int64_t m = 0; k0 >= TJ_KBLOCK && (k1 == p->k || k1 % TJ_KBLOCK == 0) && m < t->rows; m++) {
        tj_add_row(c, out + m * ldc, sums + m * t->ldc, t->cols1);
    }
    t->ldc = ldc;
}

// The same for all columns [n0, n1) of an item at once, from b as it is.
static void stretch(const struct matmul *p, struct tj_block *t, const unsigned char *am, const unsigned char *b,
                    unsigned char *out, unsigned char *sums, int64_t n0, int64_t n1, int64_t k0, int64_t k1) {
    const struct tj_contract *c = p->c;
    const bool first = k0 < TJ_KBLOCK;
    const int64_t ld = first ? t->ldc : (n1 - n0) * c->size;
    struct tj_axpy x = {.a = (const float *)(const void *)am + k0,
                        .lda = t->lda / c->size,
                        .b = b + (k0 * p->sbk + n0) * p->ssize,
                        .ldb = p->sbk,
                        .c = (float *)(void *)(first ? out : sums),
                        .ldc = ld / c->size,
                        .rows = t->rows,
                        .cols = n1 - n0,
                        .k = k1 - k0,
                        .chain = k0 % TJ_KBLOCK != 0,
                        .dtype = p->bb.dtype};
    tj_axpy(&x);
    for (int64_t m = 0; !first && (k1 == p->k || k1 % TJ_KBLOCK == 0) && m < t->rows; m++) {
        tj_add_row(c, out + m * t->ldc, sums + m * ld, n1 - n0);
    }
}

// Panels [p0, p1) of b, piece by piece.
static void pieces(const struct matmul *p, struct tj_block *t, const unsigned char *am, const unsigned char *b,
                   int slot, unsigned char *out, int64_t p0, int64_t p1) {
    const struct tj_contract *c = p->c;
    const int64_t width = c->nr * c->size, outer = p->across ? 1 : p1 - p0;
    unsigned char *panel = p->a->workspace + p->at_b + (int64_t)slot * p->piece * c->nr * c->bsize;
    unsigned char *sums = p->a->workspace + p->at_e + slot * p->ebytes;
    for (int64_t g = 0; g < outer; g++) {
        int64_t k0 = 0, q0 = p->across ? p0 : p0 + g, q1 = p->across ? p1 : q0 + 1;
        do { // once for k = 0: zeros
            int64_t k1 = k0 + p->piece < p->k ? k0 + p->piece : p->k;
            if (p->direct) {
                stretch(p, t, am, b, out + p0 * width, sums, p0 * c->nr, p1 * c->nr < p->n ? p1 * c->nr : p->n, k0, k1);
            }
            for (int64_t q = q0; q < q1 && !p->direct; q++) {
                piece(p, t, am, b, panel, out + q * width, sums + (q - p0) * width * p->block, q, k0, k1);
            }
            k0 = k1;
        } while (k0 < p->k);
    }
}

// Where the chunk that starts at k0 ends. A later K block is one chain from 0 before it is added: it can't be cut.
static int64_t chunk_end(const struct matmul *p, int64_t k0) {
    int64_t k1 = k0 + (k0 < TJ_KBLOCK ? p->c->kchunk : TJ_KBLOCK);
    return k1 < p->k ? k1 : p->k;
}

static void matmul_item(void *ctx, int slot, int64_t item) {
    const struct matmul *p = ctx;
    const struct tj_contract *c = p->c;
    const struct tj_contract_args *a = p->a;
    const int size = c->size, bsize = c->bsize, nr = c->nr;
    int64_t col = item % p->col_blocks, rest = item / p->col_blocks;
    int64_t batch = rest / p->row_blocks, m0 = rest % p->row_blocks * p->block;
    int64_t m1 = m0 + p->block < p->m ? m0 + p->block : p->m;
    int64_t p0 = col * p->per, p1 = p0 + p->per < p->panels ? p0 + p->per : p->panels;
    int64_t n0 = p0 * nr, n1 = p1 * nr < p->n ? p1 * nr : p->n;

    unsigned char *out = a->out.p + (tj_view_at(&a->out, p->batch_dims, batch, size) + m0 * p->som * size);
    const unsigned char *am = a->a.p + tj_view_at(&a->a, p->batch_dims, batch, p->asize) + m0 * p->sam * p->asize;
    struct tj_block t = {.lda = p->sam * size, .ldc = p->som * size, .rows = m1 - m0};
    if (p->copy_a) {
        unsigned char *copy = a->workspace + p->at_a + (int64_t)slot * p->block * p->k * size;
        tj_pack_rows(copy, am, t.rows, p->k, p->sam, p->sak, a->a.dtype, c->wide);
        am = copy;
        t.lda = p->k * size;
    }
    if (p->fuse) {
        const unsigned char *b = p->bb.p + tj_view_at(&p->bb, p->batch_dims, b_index(p, batch), p->ssize);
        pieces(p, &t, am, b, slot, out, p0, p1);
    } else {
        const unsigned char *b = p->packed + b_index(p, batch) * p->panels * p->k * nr * bsize;
        int64_t k0 = 0, k1;
        do {
            k1 = chunk_end(p, k0);
            for (int64_t q = p0; q < p1; q++) {
                chunk(p, &t, am, b + (q * p->k + k0) * nr * bsize, out + q * nr * size, q, k0, k1);
            }
            k0 = k1;
        } while (k0 < p->k);
    }
    if (c->has_bias) {
        tj_add_bias(c, out + n0 * size, t.ldc, t.rows, n0, n1, &a->c);
    }
    if (a->epilogue && (p->col_blocks == 1 || !a->epilogue_rows_whole)) {
        a->epilogue(a->epilogue_arg, slot, batch * p->m + m0, batch * p->m + m1, n0, n1);
    }
}

static void rows_item(void *ctx, int slot, int64_t item) {
    const struct matmul *p = ctx;
    int64_t batch = item / p->row_blocks, m0 = item % p->row_blocks * p->block;
    int64_t m1 = m0 + p->block < p->m ? m0 + p->block : p->m;
    p->a->epilogue(p->a->epilogue_arg, slot, batch * p->m + m0, batch * p->m + m1, 0, p->n);
}

void tj_matmul_run(const struct tj_contract *c, const struct tj_contract_args *a) {
    struct matmul p;
    size_t bytes = 0;
    (void)plan(&p, c, a, &bytes); // it fitted when the workspace was sized
    p.packed = a->packed;
    if (!p.packed && !p.fuse) {
        p.packed = a->workspace + p.at_b;
        double work = (double)p.bcount * (double)p.panels * c->nr * (double)p.k * 8;
        tj_items(a, tj_slots(a, work), p.bcount * ceil_div(p.panels, PACK_PANELS), pack_item, &p);
    }
    tj_items(a, p.slots, p.batches * p.row_blocks * p.col_blocks, matmul_item, &p);
    if (a->epilogue && p.col_blocks > 1 && a->epilogue_rows_whole) {
        // Few rows here: lower blocks, so that every thread gets some.
        p.block = ceil_div(p.block, 2 * p.slots);
        p.row_blocks = ceil_div(p.m, p.block);
        tj_items(a, p.slots, p.batches * p.row_blocks, rows_item, &p);
    }
}
