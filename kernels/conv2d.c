// kernels/conv2d.c: CONV2D steps without materialised columns: a tile is output channels times flattened output pixels.
//
// The planes an image's group reads are copied once into a padded buffer, split by stride phase, in which every tap
// (c, kh, kw) of consecutive output pixels is a run of consecutive elements:
//
//     padded row y = oy*sh + kh*dh  ->  plane (c, phase y % sh, phase x % sw), row oy + kh*dh / sh, column likewise
//
// Pixels count over rows of that buffer (width wq >= ow), so pixel n of tap k is at plane + offsets[k] + n for all n at
// once; the few lanes between ow and wq are computed and dropped. Weights are read as they are: row o is the tile's A
// row in (c, kh, kw) order. With stride 1 and no padding the image itself serves as the buffer. Images of f16 and bf16
// are widened on the way into the buffer; weights of these into rows of f32, which are kept where the weights are
// stable.
#include "contract_impl.h"

struct conv {
    const struct tj_contract *c;
    const struct tj_contract_args *a;
    int64_t images, groups, ci, co; // channels of a group, in and out
    int64_t h, w, kh, kw, oh, ow;
    int64_t sh, sw, ph, pw, dh, dw;
    int64_t k;      // ci * kh * kw
    int64_t hq, wq; // extents of a phase plane
    int64_t plane;  // elements of one channel's planes, all phases
    int64_t lanes;  // pixels computed: (oh - 1) * wq + ow
    bool direct;    // the image is its own buffer
    bool copy_w;
    bool by_rows; // a tile stays within a row of pixels, since rows are whole tiles or nearly
    int slots;
    int64_t o_block, y_block; // an item: output channels times output rows
    int64_t o_blocks, y_blocks;
    size_t at_w, at_x, at_k; // weights, buffers, offsets in the workspace
    const unsigned char *weights;
    int64_t ldw; // bytes between weight rows
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of an item, about `rows`: enough pixels for several tiles, and the choice near it that fills its last tile best.
static int64_t row_block(const struct conv *p, int64_t rows) {
    const int nr = p->c->nr;
    int64_t least = ceil_div(8 * nr, p->wq), best = 0;
    double best_waste = 2;
    rows = rows < least ? least : rows;
    for (int64_t y = rows; y <= rows + rows / 2 && y < p->oh; y++) {
        int64_t lanes = (y - 1) * p->wq + p->ow;
        double waste = (double)(ceil_div(lanes, nr) * nr) / (double)lanes;
        if (waste < best_waste) {
            best_waste = waste;
            best = y;
        }
    }
    return best ? best : p->oh;
}

static bool plan(struct conv *p, const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes) {
    const struct tj_attr_conv *t = &c->conv;
    const struct tj_view *x = &a->a, *w = &a->b;
    *p = (struct conv){.c = c,
                       .a = a,
                       .images = a->out.dims[0],
                       .groups = t->groups,
                       .ci = w->dims[1],
                       .co = w->dims[0] / t->groups,
                       .h = x->dims[2],
                       .w = x->dims[3],
                       .kh = w->dims[2],
                       .kw = w->dims[3],
                       .oh = a->out.dims[2],
                       .ow = a->out.dims[3],
                       .sh = t->stride[0],
                       .sw = t->stride[1],
                       .ph = t->padding[0],
                       .pw = t->padding[1],
                       .dh = t->dilation[0],
                       .dw = t->dilation[1]};
    bool ok = tj_size_mul(p->ci * p->kh, p->kw, &p->k);
    p->direct = x->dtype == c->dtype && p->sh == 1 && p->sw == 1 && p->ph == 0 && p->pw == 0 &&
                (x->strides[3] == 1 || p->w == 1) && (x->strides[2] == p->w || p->h == 1);
    if (p->direct) {
        p->hq = p->h;
        p->wq = p->w;
    } else {
        int64_t reach_h, reach_w;
        ok = ok && tj_size_mul(p->kh > 0 ? p->kh - 1 : 0, p->dh, &reach_h) &&
             tj_size_mul(p->kw > 0 ? p->kw - 1 : 0, p->dw, &reach_w);
        if (!ok) {
            return false;
        }
        p->hq = p->oh + reach_h / p->sh;
        p->wq = p->ow + reach_w / p->sw;
    }
    int64_t phases = p->direct ? 1 : p->sh * p->sw, all;
    ok = ok && tj_size_mul(p->hq, p->wq, &p->plane) && tj_size_mul(p->plane, phases, &p->plane) &&
         tj_size_mul(p->oh - 1, p->wq, &p->lanes) && tj_size_add(p->lanes, p->ow, &p->lanes);
    if (!ok) {
        return false;
    }
    p->by_rows = ceil_div(p->ow, c->nr) * c->nr <= p->wq;
    double work = (double)p->images * (double)p->groups * (double)p->co * (double)p->lanes * (double)p->k;
    p->slots = tj_slots(a, work);
    // Items: all rows and channels of an image's group unless that is too little to share, or too much for the cache.
    const int high = c->tiles[0].mr;
    int64_t want = p->slots > 1 ? 2 * p->slots : 1, items = p->images * p->groups;
    int64_t per = ceil_div(want, items);
    int64_t cap = (int64_t)c->l2 / 4 / c->size; // elements of a result that an epilogue should find near
    p->o_block = p->co;
    p->y_block = p->oh;
    if (a->epilogue && p->oh * p->ow > cap / p->co) {
        p->y_block = row_block(p, cap / p->co / p->ow);
    }
    int64_t have = ceil_div(p->co, p->o_block) * ceil_div(p->oh, p->y_block);
    if (have < per) {
        int64_t o = ceil_div(ceil_div(p->co, ceil_div(per, have)), high) * high;
        p->o_block = o < p->o_block ? o : p->o_block;
        have = ceil_div(p->co, p->o_block) * ceil_div(p->oh, p->y_block);
    }
    if (have < per && p->y_block * p->wq >= 8 * c->nr) {
        p->y_block = row_block(p, ceil_div(p->y_block, ceil_div(per, have)));
    }
    p->o_blocks = ceil_div(p->co, p->o_block);
    p->y_blocks = ceil_div(p->oh, p->y_block);

    const struct tj_view *v = w;
    p->copy_w = !a->packed && (v->dtype != c->dtype ||
                               !((v->strides[3] == 1 || p->kw == 1) && (v->strides[2] == p->kw || p->kh == 1) &&
                                 (v->strides[1] == p->kh * p->kw || p->ci == 1)));
    if (p->copy_w && (!tj_size_mul(w->dims[0], p->k, &all) || !tj_space(bytes, all, c->size, &p->at_w))) {
        return false;
    }
    if (!tj_space(bytes, p->k, 8, &p->at_k)) {
        return false;
    }
    // Tiles read up to nr lanes past the last pixel.
    if (!p->direct || p->lanes < c->nr) {
        p->direct = false;
        int64_t channels;
        if (!tj_size_mul(p->images * p->groups, p->ci, &channels) || !tj_size_mul(channels, p->plane, &all) ||
            !tj_size_add(all, c->nr, &all) || !tj_space(bytes, all, c->size, &p->at_x)) {
            return false;
        }
    }
    return true;
}

bool tj_conv2d_workspace(const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes) {
    struct conv p;
    *bytes = 0;
    return plan(&p, c, a, bytes);
}

// ---- input ----------------------------------------------------------------------------------------------------------

// Columns of one phase: dst[q] = padded row's element q*sw + px, q < wq.
#define PHASE_ROW(type)                                                                                                \
    for (int64_t q = 0; q < p->wq; q++) {                                                                              \
        int64_t x = q * p->sw + px - p->pw;                                                                            \
        ((type *)dst)[q] = x >= 0 && x < p->w ? ((const type *)src)[x * sx] : 0;                                       \
    }

static void phase_row(const struct conv *p, unsigned char *dst, const unsigned char *src, int64_t sx, int64_t px) {
    const int size = p->c->size;
    if (p->sw == 1 && sx == 1) {
        int64_t left = p->pw < p->wq ? p->pw : p->wq, mid = p->wq - left < p->w ? p->wq - left : p->w;
        memset(dst, 0, (size_t)(left * size));
        memcpy(dst + left * size, src, (size_t)(mid * size));
        memset(dst + (left + mid) * size, 0, (size_t)((p->wq - left - mid) * size));
    } else if (size == 4) {
        PHASE_ROW(uint32_t)
    } else {
        PHASE_ROW(uint64_t)
    }
}

// The same from 16 bits to f32.
static void phase_row_wide(const struct conv *p, float *dst, const unsigned char *src, int64_t sx, int64_t px) {
    const uint8_t dtype = p->a->a.dtype;
    if (p->sw == 1 && sx == 1) {
        int64_t left = p->pw < p->wq ? p->pw : p->wq, mid = p->wq - left < p->w ? p->wq - left : p->w;
        memset(dst, 0, (size_t)left * sizeof *dst);
        tj_widen(dst + left, src, mid, dtype, p->c->wide);
        memset(dst + left + mid, 0, (size_t)(p->wq - left - mid) * sizeof *dst);
        return;
    }
    enum { PIECE = 256 };
    uint16_t piece[PIECE];
    for (int64_t q0 = 0; q0 < p->wq; q0 += PIECE) {
        int64_t n = p->wq - q0 < PIECE ? p->wq - q0 : PIECE;
        for (int64_t q = 0; q < n; q++) {
            int64_t x = (q0 + q) * p->sw + px - p->pw;
            piece[q] = x >= 0 && x < p->w ? ((const uint16_t *)(const void *)src)[x * sx] : 0;
        }
        tj_widen(dst + q0, piece, n, dtype, p->c->wide);
    }
}

static void plane_item(void *ctx, int slot, int64_t item) {
    const struct conv *p = ctx;
    const struct tj_view *x = &p->a->a;
    const int size = p->c->size, from = (int)tj_elem_bytes((tj_dtype)x->dtype);
    (void)slot;
    const unsigned char *src = p->a->a.p + tj_view_at(x, 2, item, from);
    unsigned char *dst = p->a->workspace + p->at_x + item * p->plane * size;
    for (int64_t py = 0; py < p->sh; py++) {
        for (int64_t px = 0; px < p->sw; px++) {
            for (int64_t q = 0; q < p->hq; q++, dst += p->wq * size) {
                int64_t y = q * p->sh + py - p->ph;
                const unsigned char *row = src + y * x->strides[2] * from;
                if (y < 0 || y >= p->h) {
                    memset(dst, 0, (size_t)(p->wq * size));
                } else if (from != size) {
                    phase_row_wide(p, (float *)(void *)dst, row, x->strides[3], px);
                } else {
                    phase_row(p, dst, row, x->strides[3], px);
                }
            }
        }
    }
}

static void fill_offsets(const struct conv *p, int64_t *k) {
    const int64_t channel = p->direct ? p->a->a.strides[1] : p->plane, phase = p->hq * p->wq;
    for (int64_t c = 0; c < p->ci; c++) {
        for (int64_t y = 0; y < p->kh; y++) {
            for (int64_t x = 0; x < p->kw; x++) {
                int64_t ty = y * p->dh, tx = x * p->dw, at = c * channel;
                if (p->direct) {
                    at += ty * p->wq + tx;
                } else {
                    at += (ty % p->sh * p->sw + tx % p->sw) * phase + ty / p->sh * p->wq + tx / p->sw;
                }
                *k++ = at * p->c->size;
            }
        }
    }
}

// Row o of w in (c, kh, kw) order, as tiles read it.
static void weight_row(const struct tj_contract *c, const struct tj_view *w, int64_t o, unsigned char *dst) {
    const int64_t ci = w->dims[1], kh = w->dims[2], kw = w->dims[3];
    const int size = (int)tj_elem_bytes((tj_dtype)w->dtype);
    const bool dense =
        (w->strides[3] == 1 || kw == 1) && (w->strides[2] == kw || kh == 1) && (w->strides[1] == kh * kw || ci == 1);
    struct tj_view src = *w, to = src;
    src.p += o * src.strides[0] * size;
    if (dense) {
        tj_pack_rows(dst, src.p, 1, ci * kh * kw, 0, 1, w->dtype, c->wide);
        return;
    }
    if (size == c->size) {
        src.dims[0] = to.dims[0] = 1;
        tj_contiguous_strides(to.dims, 4, to.strides);
        to.p = dst;
        tj_copy_rows(&to, &src, size, 0, ci * kh);
        return;
    }
    for (int64_t i = 0; i < ci * kh; i++) {
        tj_pack_rows(dst + i * kw * c->size, src.p + (i / kh * w->strides[1] + i % kh * w->strides[2]) * size, 1, kw, 0,
                     w->strides[3], w->dtype, c->wide);
    }
}

static void weight_item(void *ctx, int slot, int64_t o) {
    const struct conv *p = ctx;
    (void)slot;
    weight_row(p->c, &p->a->b, o, p->a->workspace + p->at_w + o * p->k * p->c->size);
}

size_t tj_conv2d_pack_bytes(const struct tj_contract *c, const struct tj_view *w) {
    int64_t n;
    size_t bytes = 0, at;
    if (w->dtype == c->dtype || !tj_numel(w->dims, w->rank, &n) || !tj_space(&bytes, n, c->size, &at)) {
        return 0; // weights are read as they are
    }
    return bytes;
}

void tj_conv2d_pack(const struct tj_contract *c, const struct tj_view *w, void *dst) {
    const int64_t row = w->dims[1] * w->dims[2] * w->dims[3] * c->size;
    for (int64_t o = 0; o < w->dims[0]; o++) {
        weight_row(c, w, o, (unsigned char *)dst + o * row);
    }
}

// ---- output ---------------------------------------------------------------------------------------------------------

// Lanes [n0, n1) of `rows` channels from a buffer of rows of ld bytes (whose column 0 is lane at) to the result, where
// rows of pixels lie together.
static void store_lanes(const struct conv *p, unsigned char *out, int64_t ldo, const unsigned char *buffer, int64_t ld,
                        int64_t at, int64_t n0, int64_t n1, int64_t rows) {
    const int size = p->c->size;
    for (int64_t y = n0 / p->wq; y * p->wq < n1; y++) {
        int64_t from = y * p->wq > n0 ? y * p->wq : n0, to = y * p->wq + p->ow < n1 ? y * p->wq + p->ow : n1;
        int64_t bytes = (to - from) * size;
        unsigned char *d = out + (y * p->ow + from - y * p->wq) * size;
        const unsigned char *s = buffer + (from - at) * size;
        for (int64_t m = 0; m < rows && bytes > 0; m++, d += ldo, s += ld) {
            int64_t i = 0; // a few vectors each: a call of memcpy would take longer
            for (; i + 16 <= bytes; i += 16) {
                memcpy(d + i, s + i, 16);
            }
            for (; i < bytes; i += 4) {
                memcpy(d + i, s + i, 4);
            }
        }
    }
}

static void conv_item(void *ctx, int slot, int64_t item) {
    const struct conv *p = ctx;
    const struct tj_contract *c = p->c;
    const struct tj_contract_args *a = p->a;
    const int size = c->size, nr = c->nr;
    _Alignas(64) unsigned char buffer[64 * 64];
    int64_t yb = item % p->y_blocks, rest = item / p->y_blocks;
    int64_t ob = rest % p->o_blocks, ig = rest / p->o_blocks, image = ig / p->groups, group = ig % p->groups;
    int64_t o0 = ob * p->o_block, o1 = o0 + p->o_block < p->co ? o0 + p->o_block : p->co;
    int64_t y0 = yb * p->y_block, y1 = y0 + p->y_block < p->oh ? y0 + p->y_block : p->oh;
    int64_t n0 = y0 * p->wq, n1 = (y1 - 1) * p->wq + p->ow;
    const unsigned char *x = p->direct ? a->a.p + (image * a->a.strides[0] + group * p->ci * a->a.strides[1]) * size
                                       : a->workspace + p->at_x + (image * p->groups + group) * p->ci * p->plane * size;
    const int64_t *offsets = (const int64_t *)(const void *)(a->workspace + p->at_k);
    int64_t o_all = group * p->co; // channels of the groups before
    unsigned char *out = a->out.p + (image * a->out.strides[0] + o_all * a->out.strides[1]) * size;
    const int64_t ldo = a->out.strides[1] * size;

    for (int64_t n = n0, next; n < n1; n = next) {
        // The last tile of an image that is read in place ends where the image ends.
        int64_t at = p->direct && n + nr > p->lanes ? p->lanes - nr : n;
        int64_t row = n / p->wq, end = p->by_rows ? row * p->wq + p->ow : n1;
        next = n + nr;
        if (next >= end) {
            next = p->by_rows ? (row + 1) * p->wq : n1;
        } else {
            end = next;
        }
        bool straight = (p->wq == p->ow || p->by_rows) && at == n && end == n + nr;
        for (int64_t o = o0; o < o1;) {
            uint32_t tile;
            int h = tj_tile_height(c, o1 - o, &tile), have = o1 - o < h ? (int)(o1 - o) : h;
            struct tj_gemm_args g;
            bool whole = straight && have == h;
            g.c = whole ? out + o * ldo + (n - row * (p->wq - p->ow)) * size : buffer;
            g.ldc = whole ? ldo : nr * size;
            g.b = x + at * size;
            int64_t k0 = 0;
            do {
                g.k = p->k - k0 < TJ_KBLOCK ? p->k - k0 : TJ_KBLOCK;
                g.offsets = offsets + k0;
                g.mode = k0 ? TJ_TILE_ADD : TJ_TILE_SET;
                for (int i = 0; i < h; i++) {
                    g.a[i] = p->weights + (o_all + o + (i < have ? i : have - 1)) * p->ldw + k0 * size;
                }
                tj_tile_run(c, tile, &g);
                k0 += TJ_KBLOCK;
            } while (k0 < p->k);
            if (!whole) {
                store_lanes(p, out + o * ldo, ldo, buffer, nr * size, at, n, end, have);
            }
            o += have;
        }
    }
    for (int64_t o = o0; o < o1 && c->has_bias; o++) {
        tj_add_one(c, out + o * ldo + y0 * p->ow * size, (y1 - y0) * p->ow, &a->c, o_all + o);
    }
    if (a->epilogue) {
        int64_t channel = image * p->groups * p->co + o_all;
        if (y0 == 0 && y1 == p->oh) {
            a->epilogue(a->epilogue_arg, slot, (channel + o0) * p->oh, (channel + o1) * p->oh, 0, p->ow);
        } else {
            for (int64_t o = o0; o < o1; o++) {
                a->epilogue(a->epilogue_arg, slot, (channel + o) * p->oh + y0, (channel + o) * p->oh + y1, 0, p->ow);
            }
        }
    }
}

void tj_conv2d_run(const struct tj_contract *c, const struct tj_contract_args *a) {
    struct conv p;
    size_t bytes = 0;
    (void)plan(&p, c, a, &bytes); // it fitted when the workspace was sized
    p.weights = a->packed ? a->packed : a->b.p;
    p.ldw = (a->packed ? p.k : a->b.strides[0]) * c->size;
    if (p.copy_w) {
        p.weights = a->workspace + p.at_w;
        p.ldw = p.k * c->size;
        tj_items(a, tj_slots(a, (double)a->b.dims[0] * (double)p.k * 8), a->b.dims[0], weight_item, &p);
    }
    fill_offsets(&p, (int64_t *)(void *)(a->workspace + p.at_k));
    if (!p.direct) {
        int64_t planes = p.images * p.groups * p.ci;
        memset(a->workspace + p.at_x + planes * p.plane * c->size, 0, (size_t)(c->nr * c->size));
        tj_items(a, tj_slots(a, (double)planes * (double)p.plane * 8), planes, plane_item, &p);
    }
    tj_items(a, p.slots, p.images * p.groups * p.o_blocks * p.y_blocks, conv_item, &p);
}
