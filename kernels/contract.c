// kernels/contract.c: contractions: choice of tiles, dispatch over the kinds, parallel items, tiles with what hangs
// over.
#include "contract_impl.h"

#include <math.h>

typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double f64x2 __attribute__((vector_size(16), aligned(8), may_alias));

// ---- choice of tiles ----------------------------------------------------------------------------------------------

static void add_tile(struct tj_contract *c, int mr, int nv, int flags) {
    c->tiles[c->ntiles++] = (struct tj_gemm_tile){
        .dtype = c->dtype, .b = c->bdtype, .mr = (uint8_t)mr, .nv = (uint8_t)nv, .flags = (uint8_t)flags};
    c->nr = nv * c->width;
}

// Tiles of `high` and of 4 rows, or one of the two where it covers m alone.
static void add_tiles(struct tj_contract *c, int64_t m, int high, int nv, int flags) {
    bool low = m <= 16 && m % 4 == 0 && m % high != 0;
    if (m > 4 && !low) {
        add_tile(c, high, nv, flags);
    }
    if (low || m <= 4 || m % high != 0) {
        add_tile(c, 4, nv, flags);
    }
}

// m rows, n columns as far as the hints know. Each unit costs milliseconds to compile, so two heights at most; together
// they cover any m with little waste. The registers decide the shapes: accumulators, one row of B, one A.
static void choose_tiles(struct tj_contract *c, enum tj_cpu_level level, int64_t m, int64_t n, int flags) {
    int64_t vectors = n <= 0 ? 1 : (n + c->width - 1) / c->width;
    if (level == TJ_CPU_AVX512) {
        if (m <= 2 && vectors >= 4) {
            add_tile(c, m <= 1 ? 1 : 2, 8, flags);
        } else if (vectors <= 2 || m == 8) {
            add_tiles(c, m, 8, vectors == 1 ? 1 : 2, flags);
        } else {
            add_tiles(c, m, 6, 4, flags);
        }
    } else if (level == TJ_CPU_AVX2) {
        if (m <= 1 && vectors >= 4) {
            add_tile(c, 1, 8, flags);
        } else if (m == 2 && vectors >= 3) {
            add_tile(c, 2, 6, flags);
        } else if (vectors == 1) {
            add_tiles(c, m, 8, 1, flags);
        } else if ((m == 4 || m == 8 || m == 3) && vectors >= 3 && !(flags & TJ_TILE_OFFSETS)) {
            add_tile(c, 4, 3, flags);
        } else {
            add_tiles(c, m, 6, 2, flags);
        }
    } else {
        // A multiply needs a register for its result.
        add_tile(c, m <= 1 ? 1 : 4, m <= 1 && vectors >= 4 ? 8 : vectors == 1 ? 1 : 2, flags);
    }
}

static int64_t hint(const struct tj_exprs *x, tj_ex e) { return tj_ex_hint(x, e); }

// What the tiles are chosen for: a symbolic extent may become anything, so for one that wants both heights.
static int64_t rows_hint(const struct tj_exprs *x, const struct tj_geom *g, int from, int to) {
    enum { ANY = 97 };
    int64_t m = 1;
    for (int d = from; d < to; d++) {
        if (!tj_ex_is_const(x, g->dims[d])) {
            return ANY;
        }
        if (!tj_size_mul(m, hint(x, g->dims[d]), &m)) {
            return INT64_MAX;
        }
    }
    return m;
}
static int64_t cols_hint(const struct tj_exprs *x, tj_ex e) {
    int64_t n = hint(x, e);
    return tj_ex_is_const(x, e) || n > 64 ? n : 64;
}

static bool has_f16(enum tj_cpu_level level) {
#if defined(__x86_64__)
    return level >= TJ_CPU_AVX2;
#else
    (void)level;
    return true;
#endif
}

static bool choose(struct tj_contract *c, const struct tj_step *st, const struct tj_exprs *x, enum tj_cpu_level level) {
    if (c->dtype != TRACE_F32 && c->dtype != TRACE_F64) {
        return false; // integers are lowered to loops
    }
    // Tiles widen b where an instruction does it; what else has 16 bits is widened for them.
    if (st->kind == TJ_STEP_MATMUL && (st->b.dtype == TRACE_BF16 || (st->b.dtype == TRACE_F16 && has_f16(level)))) {
        c->bdtype = st->b.dtype;
        c->bsize = 2;
    }
    c->width = tj_gemm_width(level, c->dtype);
    const int r = st->out.rank;
    if (st->kind == TJ_STEP_MATMUL && r >= 2) {
        bool shared = true; // b has no batch of its own: rows of all batches are one matrix
        for (int d = 0; d < r - 2; d++) {
            shared &= tj_ex_known(x, st->b.strides[d], 0) || tj_ex_known(x, st->out.dims[d], 1);
        }
        choose_tiles(c, level, rows_hint(x, &st->out, shared ? 0 : r - 2, r - 1), cols_hint(x, st->out.dims[r - 1]), 0);
    } else if (st->kind == TJ_STEP_CONV2D && r == 4) {
        int64_t o = rows_hint(x, &st->out, 1, 2), g = st->conv.groups;
        int64_t pixels = rows_hint(x, &st->out, 2, 4);
        choose_tiles(c, level, g > 0 ? o / g : o, pixels, TJ_TILE_OFFSETS);
    } else if (st->kind == TJ_STEP_SDPA && r >= 2) {
        choose_tiles(c, level, rows_hint(x, &st->out, r - 2, r - 1), cols_hint(x, st->out.dims[r - 1]), 0);
    } else {
        return false;
    }
    // A piece of a panel stays in the first two caches while the tiles of a block of rows pass over it.
    c->kchunk = TJ_KBLOCK;
    while (c->tiles[0].mr > 2 && c->kchunk > 128 && c->kchunk * c->nr * c->bsize > 48 * 1024) {
        c->kchunk /= 2;
    }
    return true;
}

tj_status tj_contract_create(const struct tj_step *st, const struct tj_exprs *x, const struct tj_cpu *cpu, int threads,
                             struct tj_contract **out) {
    *out = NULL;
    struct tj_contract *c = tj_calloc(1, sizeof *c);
    if (!c) {
        return tj_fail(TRACE_ERR_MEMORY, "no memory for a contraction");
    }
    c->kind = st->kind;
    c->dtype = st->out.dtype;
    c->rank = st->out.rank;
    c->size = (int)tj_elem_bytes(c->dtype);
    c->bdtype = c->dtype;
    c->bsize = c->size;
    c->has_bias = st->has_bias;
    c->causal = st->causal;
    c->gqa = st->gqa;
    c->has_mask = st->has_mask;
    c->threads = threads < 1 ? 1 : threads;
    c->wide = cpu->level >= TJ_CPU_AVX2;
    c->conv = st->conv;
    c->dim = st->dim;
    c->l2 = cpu->l2 ? cpu->l2 : 512 * 1024;
    c->kchunk = TJ_KBLOCK;
    if (st->kind != TJ_STEP_INDEX_COPY && st->kind != TJ_STEP_COPY && !choose(c, st, x, cpu->level)) {
        tj_free(c);
        return tj_fail(TRACE_ERR_COMPILE, "no contraction of kind %d for dtype %s, rank %d", st->kind,
                       tj_dtypes[st->out.dtype].name, st->out.rank);
    }
    *out = c;
    return TRACE_OK;
}

void tj_contract_free(struct tj_contract *c) { tj_free(c); }

size_t tj_contract_tiles(const struct tj_contract *c, struct tj_gemm_tile *tiles, size_t cap) {
    for (uint32_t i = 0; i < c->ntiles && i < cap; i++) {
        tiles[i] = c->tiles[i];
    }
    return c->ntiles;
}

void tj_contract_bind(struct tj_contract *c, size_t i, const void *code) {
    memcpy(&c->fn[i], &code, sizeof code); // ISO C has no conversion from object to function pointers
}

// ---- dispatch -------------------------------------------------------------------------------------------------------

size_t tj_contract_pack_bytes(const struct tj_contract *c, const struct tj_view *w) {
    return c->kind == TJ_STEP_MATMUL   ? tj_matmul_pack_bytes(c, w)
           : c->kind == TJ_STEP_CONV2D ? tj_conv2d_pack_bytes(c, w)
                                       : 0;
}

uint64_t tj_contract_pack_layout(const struct tj_contract *c, const struct tj_view *w) {
    return (uint64_t)c->kind << 48 | (uint64_t)w->rank << 40 | (uint64_t)c->dtype << 32 | (uint32_t)c->nr;
}

void tj_contract_pack(const struct tj_contract *c, const struct tj_view *w, void *dst) {
    if (c->kind == TJ_STEP_MATMUL) {
        tj_matmul_pack(c, w, dst);
    } else if (c->kind == TJ_STEP_CONV2D) {
        tj_conv2d_pack(c, w, dst);
    }
}

// A result whose last dim is not dense is computed into the workspace and copied.
static bool out_dense(const struct tj_contract *c, const struct tj_view *out) {
    int r = out->rank;
    if (r && out->dims[r - 1] > 1 && out->strides[r - 1] != 1) {
        return false;
    }
    return c->kind != TJ_STEP_CONV2D || out->dims[2] <= 1 || out->strides[2] == out->dims[3];
}

static bool workspace(const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes) {
    switch (c->kind) {
    case TJ_STEP_MATMUL: return tj_matmul_workspace(c, a, bytes);
    case TJ_STEP_CONV2D: return tj_conv2d_workspace(c, a, bytes);
    case TJ_STEP_SDPA: return tj_attention_workspace(c, a, bytes);
    default: *bytes = 0; return true;
    }
}

static void dense_args(const struct tj_contract_args *a, struct tj_contract_args *dense) {
    *dense = *a;
    tj_contiguous_strides(a->out.dims, a->out.rank, dense->out.strides);
    dense->epilogue = NULL;
}

static bool contracts(const struct tj_contract *c) { return c->kind != TJ_STEP_COPY && c->kind != TJ_STEP_INDEX_COPY; }

bool tj_contract_workspace(const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes) {
    *bytes = 0;
    if (!contracts(c) || tj_view_empty(&a->out)) {
        return true;
    }
    if (out_dense(c, &a->out)) {
        return workspace(c, a, bytes);
    }
    struct tj_contract_args dense;
    size_t at;
    int64_t n;
    dense_args(a, &dense);
    return workspace(c, &dense, bytes) && tj_numel(a->out.dims, a->out.rank, &n) && tj_space(bytes, n, c->size, &at);
}

struct finish {
    const struct tj_contract *c;
    const struct tj_contract_args *a;
    struct tj_view from;
    int64_t rows, block, cols;
};

static void finish_item(void *ctx, int slot, int64_t item) {
    const struct finish *f = ctx;
    int64_t r0 = item * f->block, r1 = r0 + f->block < f->rows ? r0 + f->block : f->rows;
    tj_copy_rows(&f->a->out, &f->from, f->c->size, r0, r1);
    if (f->a->epilogue) {
        f->a->epilogue(f->a->epilogue_arg, slot, r0, r1, 0, f->cols);
    }
}

static void run(const struct tj_contract *c, const struct tj_contract_args *a) {
    switch (c->kind) {
    case TJ_STEP_MATMUL: tj_matmul_run(c, a); break;
    case TJ_STEP_CONV2D: tj_conv2d_run(c, a); break;
    case TJ_STEP_SDPA: tj_attention_run(c, a); break;
    case TJ_STEP_INDEX_COPY: tj_index_copy_run(c, a); break;
    case TJ_STEP_COPY: tj_copy_run(c, a); break;
    default: break;
    }
}

void tj_contract_run(const struct tj_contract *c, const struct tj_contract_args *a) {
    if (tj_view_empty(&a->out)) {
        if (a->epilogue_of_nothing) {
            a->epilogue(a->epilogue_arg, 0, 0, tj_view_count(&a->out, a->out.rank - 1), 0, 0);
        }
        return;
    }
    if (!contracts(c) || out_dense(c, &a->out)) {
        run(c, a);
        return;
    }
    struct tj_contract_args dense;
    size_t at = 0, bytes = 0;
    dense_args(a, &dense);
    int64_t rows = tj_view_count(&a->out, a->out.rank - 1), cols = a->out.dims[a->out.rank - 1];
    (void)workspace(c, &dense, &bytes); // it fitted when the workspace was sized
    (void)tj_space(&bytes, rows * cols, c->size, &at);
    dense.out.p = a->workspace + at;
    run(c, &dense);
    struct finish f = {.c = c, .a = a, .from = dense.out, .rows = rows, .cols = cols};
    f.block = 1 + 16384 / (cols > 0 ? cols : 1);
    tj_items(a, tj_slots(a, (double)rows * (double)cols * 8), (rows + f.block - 1) / f.block, finish_item, &f);
}

// ---- parallel items -------------------------------------------------------------------------------------------------

struct items {
    void (*body)(void *ctx, int slot, int64_t item);
    void *ctx;
    int64_t n;
    _Atomic int64_t next;
};

static void take_items(void *arg, size_t slot) {
    struct items *p = arg;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n) {
            return;
        }
        p->body(p->ctx, (int)slot, i);
    }
}

void tj_items(const struct tj_contract_args *a, int slots, int64_t n, void (*body)(void *ctx, int slot, int64_t item),
              void *ctx) {
    if (slots > n) {
        slots = (int)n;
    }
    if (slots <= 1 || !a->pool) {
        for (int64_t i = 0; i < n; i++) {
            body(ctx, 0, i);
        }
        return;
    }
    struct items p = {.body = body, .ctx = ctx, .n = n};
    atomic_init(&p.next, 0);
    tj_pool_run(a->pool, (size_t)slots, take_items, &p);
}

int tj_slots(const struct tj_contract_args *a, double work) {
    // 2^19 multiply-adds take about 10 us on one core: less is not worth a second thread.
    int slots = a->threads > 1 ? a->threads : 1;
    double worth = work / (1 << 18);
    return worth < 2 ? 1 : worth < slots ? (int)worth : slots;
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

int tj_tile_height(const struct tj_contract *c, int64_t left, uint32_t *tile) {
    int h0 = c->tiles[0].mr, h1 = c->ntiles > 1 ? c->tiles[1].mr : 0;
    *tile = 0;
    if (!h1 || left >= 2 * h0) {
        return h0;
    }
    // Fewest rows computed; of equal ones, most of the higher tile.
    int64_t best = INT64_MAX, tall = 0;
    for (int64_t n0 = 2; n0 >= 0; n0--) {
        int64_t more = left - n0 * h0;
        int64_t all = n0 * h0 + (more > 0 ? (more + h1 - 1) / h1 * h1 : 0);
        if (all < best) {
            best = all;
            tall = n0;
        }
    }
    *tile = tall ? 0 : 1;
    return tall ? h0 : h1;
}

// c += the rows of a buffer.
#define ADD_TILE(type, vec, lanes)                                                                                     \
    for (int m = 0; m < rows; m++) {                                                                                   \
        type *to = (type *)((unsigned char *)g->c + m * g->ldc);                                                       \
        const type *from = (const type *)(const void *)buffer + m * nr;                                                \
        for (int n = 0; n < nr; n += (lanes)) {                                                                        \
            *(vec *)(to + n) += *(const vec *)(from + n);                                                              \
        }                                                                                                              \
    }

void tj_tile_run(const struct tj_contract *c, uint32_t tile, struct tj_gemm_args *g) {
    if (g->mode != TJ_TILE_ADD) {
        c->fn[tile](g);
        return;
    }
    _Alignas(64) unsigned char buffer[64 * 64];
    const int rows = c->tiles[tile].mr, nr = c->nr;
    struct tj_gemm_args own = *g;
    own.c = buffer;
    own.ldc = nr * c->size;
    own.mode = TJ_TILE_SET;
    c->fn[tile](&own);
    switch (c->dtype) {
    case TRACE_F32: ADD_TILE(float, f32x4, 4) break;
    default: ADD_TILE(double, f64x2, 2) break;
    }
}

void tj_block_run(const struct tj_contract *c, const struct tj_block *b) {
    _Alignas(64) unsigned char buffer[64 * 64]; // tiles have at most 64 vectors of 64 bytes
    const bool whole = b->cols0 == 0 && b->cols1 == c->nr;
    struct tj_gemm_args g;
    g.b = b->b;
    g.offsets = b->offsets;
    g.k = b->k;
    g.mode = b->mode;
    for (int64_t m = 0; m < b->rows;) {
        uint32_t t;
        int h = tj_tile_height(c, b->rows - m, &t);
        int have = b->rows - m < h ? (int)(b->rows - m) : h;
        const unsigned char *a = b->a + m * b->lda;
        for (int i = 0; i < h; i++) {
            g.a[i] = a + (i < have ? i : have - 1) * b->lda;
        }
        unsigned char *out = b->c + m * b->ldc;
        if (whole && have == h) {
            g.c = out;
            g.ldc = b->ldc;
            tj_tile_run(c, t, &g);
        } else {
            const size_t skip = (size_t)(b->cols0 * c->size), bytes = (size_t)((b->cols1 - b->cols0) * c->size);
            g.c = buffer;
            g.ldc = c->nr * c->size;
            if (b->mode != TJ_TILE_SET) {
                memset(buffer, 0, (size_t)(h * g.ldc));
                for (int i = 0; i < have; i++) {
                    memcpy(buffer + i * g.ldc + skip, out + i * b->ldc + (int64_t)skip, bytes);
                }
            }
            tj_tile_run(c, t, &g);
            for (int i = 0; i < have; i++) {
                memcpy(out + i * b->ldc + (int64_t)skip, buffer + i * g.ldc + skip, bytes);
            }
        }
        m += have;
    }
}

// ---- bias -----------------------------------------------------------------------------------------------------------

#define ADD_ROWS(type, vec, lanes)                                                                                     \
    for (int64_t m = 0; m < rows; m++) {                                                                               \
        type *y = (type *)(out + m * ldc);                                                                             \
        const type *v = (const type *)b;                                                                               \
        int64_t n = 0;                                                                                                 \
        for (; sbias == 1 && n + (lanes) <= cols; n += (lanes)) {                                                      \
            *(vec *)(y + n) += *(const vec *)(v + n);                                                                  \
        }                                                                                                              \
        for (; n < cols; n++) {                                                                                        \
            y[n] += v[n * sbias];                                                                                      \
        }                                                                                                              \
    }

static void add_piece(const struct tj_contract *c, unsigned char *out, int64_t ldc, int64_t rows, int64_t cols,
                      const unsigned char *b, int64_t sbias) {
    switch (c->dtype) {
    case TRACE_F32: ADD_ROWS(float, f32x4, 4) break;
    default: ADD_ROWS(double, f64x2, 2) break;
    }
}

void tj_add_row(const struct tj_contract *c, unsigned char *to, const unsigned char *from, int64_t n) {
    add_piece(c, to, 0, 1, n, from, 1);
}

void tj_add_bias(const struct tj_contract *c, unsigned char *out, int64_t ldc, int64_t rows, int64_t j0, int64_t j1,
                 const struct tj_view *bias) {
    const int64_t s = bias->strides[0];
    if (!tj_is_half(bias->dtype)) {
        add_piece(c, out, ldc, rows, j1 - j0, bias->p + j0 * s * c->size, s);
        return;
    }
    enum { PIECE = 512 };
    float wide[PIECE];
    for (int64_t j = j0; j < j1; j += PIECE) {
        int64_t n = j1 - j < PIECE ? j1 - j : PIECE;
        tj_pack_rows((unsigned char *)wide, bias->p + j * s * 2, 1, n, 0, s, bias->dtype, c->wide);
        add_piece(c, out + (j - j0) * c->size, ldc, rows, n, (const unsigned char *)wide, 1);
    }
}

void tj_add_one(const struct tj_contract *c, unsigned char *out, int64_t n, const struct tj_view *bias, int64_t at) {
    const unsigned char *value = bias->p + at * bias->strides[0] * (int64_t)tj_elem_bytes((tj_dtype)bias->dtype);
    int64_t i = 0;
    if (c->dtype == TRACE_F32) {
        float *y = (float *)out, v;
        if (tj_is_half(bias->dtype)) {
            tj_widen(&v, value, 1, bias->dtype, c->wide);
        } else {
            v = *(const float *)value;
        }
        for (; i + 4 <= n; i += 4) {
            *(f32x4 *)(y + i) += (f32x4){v, v, v, v};
        }
        for (; i < n; i++) {
            y[i] += v;
        }
    } else {
        double *y = (double *)out, v = *(const double *)value;
        for (; i < n; i++) {
            y[i] += v;
        }
    }
}

// ---- views ----------------------------------------------------------------------------------------------------------

bool tj_view_empty(const struct tj_view *v) {
    for (int d = 0; d < v->rank; d++) {
        if (v->dims[d] == 0) {
            return true;
        }
    }
    return false;
}

int64_t tj_view_at(const struct tj_view *v, int n, int64_t index, int size) {
    int64_t at = 0;
    for (int d = n - 1; d >= 0; d--) {
        at += index % v->dims[d] * v->strides[d];
        index /= v->dims[d];
    }
    return at * size;
}

int64_t tj_view_count(const struct tj_view *v, int n) {
    int64_t count = 1;
    for (int d = 0; d < n; d++) {
        count *= v->dims[d];
    }
    return count;
}

bool tj_space(size_t *total, int64_t n, int64_t each, size_t *at) {
    int64_t bytes, sum;
    if (*total > INT64_MAX || !tj_size_mul(n, each, &bytes) || !tj_size_add((int64_t)*total, bytes, &sum) ||
        !tj_size_add(sum, TJ_ALIGN - 1, &sum)) {
        return false;
    }
    *at = *total;
    *total = (size_t)sum / TJ_ALIGN * TJ_ALIGN;
    return true;
}
