// kernels/contract_impl.h: what the files of kernels/ share: a contraction, its tiles, parallel items, packed panels.
#ifndef TJ_KERNELS_CONTRACT_IMPL_H
#define TJ_KERNELS_CONTRACT_IMPL_H
#include <stdatomic.h>

#include "../lib/coefs.h"
#include "contract.h"
#include "gemm.h"

// Immutable once the tiles are bound.
struct tj_contract {
    uint8_t kind, dtype, rank; // enum tj_step_kind; operands; rank of the result
    bool has_bias, causal, gqa, has_mask;
    bool wide;      // the processor has AVX2: C code of that level may run
    int width, nr;  // elements of a vector; columns of a tile
    int size;       // bytes of an element
    uint8_t bdtype; // of panels; MATMUL: b's where tiles widen it, else dtype
    int bsize;      // bytes of an element of a panel
    int threads;
    int64_t kchunk; // steps of k a pass over a block of rows does: panel pieces stay in the caches
    uint32_t ntiles;
    struct tj_gemm_tile tiles[TJ_CONTRACT_TILES]; // heights descending
    tj_gemm_fn fn[TJ_CONTRACT_TILES];
    struct tj_attr_conv conv;
    int64_t dim;
    size_t l2;
};

// ---- parallel items -----------------------------------------------------------------------------------------------

// Runs body(ctx, slot, item) for every item < n on at most `slots` threads; items are handed out one at a time.
void tj_items(const struct tj_contract_args *a, int slots, int64_t n, void (*body)(void *ctx, int slot, int64_t item),
              void *ctx);
// Slots worth using for this much work (multiply-adds, or elements moved times what one of them costs more).
int tj_slots(const struct tj_contract_args *a, double work);

// ---- tiles --------------------------------------------------------------------------------------------------------

// A block of C: rows of A times panels of B.
struct tj_block {
    const unsigned char *a; // element (row 0, k 0); unit k stride
    int64_t lda;            // bytes between rows
    const unsigned char *b; // panel's k 0; or what the offsets start from
    const int64_t *offsets; // NULL: packed panel
    unsigned char *c;       // element (row 0, column 0 of the panel)
    int64_t ldc;            // bytes between rows
    int64_t rows, k;
    int cols0, cols1; // columns of the panel that are stored; 0, nr: all
    int64_t mode;     // enum tj_tile_mode
};
// One tile; TJ_TILE_ADD goes through a buffer.
void tj_tile_run(const struct tj_contract *c, uint32_t tile, struct tj_gemm_args *g);
// All rows of one panel. Rows and columns that hang over go through a buffer.
void tj_block_run(const struct tj_contract *c, const struct tj_block *b);
int tj_tile_height(const struct tj_contract *c, int64_t left,
                   uint32_t *tile); // of the next tile when `left` rows are left

// ---- packing --------------------------------------------------------------------------------------------------------

// Panels [p0, p1) of a K x N operand: panel p has B(k, p*nr + j) at dst[(p*K + k)*nr + j], zeros beyond N. From f16 and
// bf16 to f32 it widens; else both dtypes are the same.
void tj_pack_panels(const struct tj_contract *c, unsigned char *dst, uint8_t to, const unsigned char *b, uint8_t from,
                    int64_t k, int64_t n, int64_t sk, int64_t sn, int64_t p0, int64_t p1);
// rows x k elements with any strides to rows of k, row-major; f16 and bf16 become f32.
void tj_pack_rows(unsigned char *dst, const unsigned char *a, int64_t rows, int64_t k, int64_t sm, int64_t sk,
                  uint8_t dtype, bool wide);
// n values of f16 or bf16 as f32. wide: the processor has AVX2.
void tj_widen(float *dst, const void *src, int64_t n, uint8_t dtype, bool wide);

// ---- few rows -------------------------------------------------------------------------------------------------------

// c(m, j) = fma(a(m, k), b(k, j), c(m, j)) over ascending k, from 0 or on from c: a tile's chain, over rows of b that
// are read where they are, f32, f16 or bf16. Strides in elements; the columns are dense.
struct tj_axpy {
    const float *a;
    const void *b;
    float *c;
    int64_t lda, ldb, ldc, rows, cols, k;
    bool chain;
    uint8_t dtype; // of b
};
enum { TJ_AXPY_STEPS = 8 };                      // of k that a call does at once
bool tj_axpy_works(const struct tj_contract *c); // the processor has what it is made of, and the chain is of f32
void tj_axpy(const struct tj_axpy *x);

// ---- views ----------------------------------------------------------------------------------------------------------

// Bytes from element 0 to the element `index` (row-major) of the leading `n` dims.
int64_t tj_view_at(const struct tj_view *v, int n, int64_t index, int size);
// Product of the leading n extents.
int64_t tj_view_count(const struct tj_view *v, int n);
// Grows a workspace by `bytes`, TJ_ALIGN-aligned; *at: where they start. False: overflow.
bool tj_space(size_t *total, int64_t n, int64_t each, size_t *at);

// c[j] += bias over columns [j0, j1) of `rows` rows, from element j0 of the bias, a vector.
void tj_add_bias(const struct tj_contract *c, unsigned char *out, int64_t ldc, int64_t rows, int64_t j0, int64_t j1,
                 const struct tj_view *bias);
void tj_add_row(const struct tj_contract *c, unsigned char *to, const unsigned char *from, int64_t n); // dense
// Adds element i of the bias to n consecutive elements.
void tj_add_one(const struct tj_contract *c, unsigned char *out, int64_t n, const struct tj_view *bias, int64_t i);

// ---- the kinds ------------------------------------------------------------------------------------------------------

bool tj_matmul_workspace(const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes);
void tj_matmul_run(const struct tj_contract *c, const struct tj_contract_args *a);
size_t tj_matmul_pack_bytes(const struct tj_contract *c, const struct tj_view *w);
void tj_matmul_pack(const struct tj_contract *c, const struct tj_view *w, void *dst);
size_t tj_conv2d_pack_bytes(const struct tj_contract *c, const struct tj_view *w);
void tj_conv2d_pack(const struct tj_contract *c, const struct tj_view *w, void *dst);
bool tj_conv2d_workspace(const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes);
void tj_conv2d_run(const struct tj_contract *c, const struct tj_contract_args *a);
bool tj_attention_workspace(const struct tj_contract *c, const struct tj_contract_args *a, size_t *bytes);
void tj_attention_run(const struct tj_contract *c, const struct tj_contract_args *a);
void tj_copy_run(const struct tj_contract *c, const struct tj_contract_args *a);
void tj_index_copy_run(const struct tj_contract *c, const struct tj_contract_args *a);
// Elements of src to dst, same extents, any strides, bools as 0 and 1: rows [r0, r1) of the linear index over all dims
// but the last.
void tj_copy_rows(const struct tj_view *dst, const struct tj_view *src, int size, int64_t r0, int64_t r1);

// The weight of a key that a query doesn't see: -0, which no exponential gives.
#define TJ_UNSEEN_F32 UINT32_C(0x80000000)
#define TJ_UNSEEN_F64 UINT64_C(0x8000000000000000)
static inline bool tj_unseen_f32(float weight) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return bits == TJ_UNSEEN_F32;
}
static inline bool tj_unseen_f64(double weight) {
    uint64_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return bits == TJ_UNSEEN_F64;
}

// e^x of differences to a row's maximum and attention's rows; compiled for the level at hand.
struct tj_softmax_row {
    float *x; // scores in, exp(x - max) out; -0 where nothing is seen
    int64_t n;
    float scale;
    const unsigned char *mask; // NULL, bool or float; added, or hiding where false or -inf
    int64_t smask;             // elements
    uint8_t mask_dtype;
};
float tj_softmax_f32(const struct tj_softmax_row *r, bool wide); // sum; 0: everything is hidden
// x[j] = q . k_j for j < n, rows of k ldk elements apart; y = sum of p[j] * v_j of keys seen. Dense vectors of e, ev
// elements; k and v of f32, f16 or bf16, widened as they are read.
void tj_dots(float *x, const float *q, const void *k, int64_t ldk, int64_t n, int64_t e, uint8_t dtype, bool wide);
void tj_mix(float *y, const float *p, const void *v, int64_t ldv, int64_t n, int64_t ev, uint8_t dtype, bool wide);
#endif
