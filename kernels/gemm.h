// kernels/gemm.h: the contract of a matmul micro-kernel (tile), between the drivers in C and the emitter.
//
// A tile computes mr rows of nr = nv * width columns of C. With acc(m, n) the value it starts from,
//     for k = 0 .. K-1:  acc(m, n) = fma(A(m, k), B(k, n), acc(m, n))
// one chain an element over ascending k. A(m, k) is element k of the row at a[m], or, a_packed, element k*mr + m at
// a[0]. B(k, n) is element k*nr + n at b (a packed panel), or, with TJ_TILE_OFFSETS, element n at b + offsets[k]. C(m,
// n) is element n at c + m*ldc. B in f16 or bf16 is widened as it is read, which is exact. All nr columns are read and
// written: the drivers pad B, and send what hangs over through a buffer. Several rows of A may be the same.
//
// Without fused multiply-add in the instruction set (the portable level of x86) each step is a multiply and an add.
#ifndef TJ_KERNELS_GEMM_H
#define TJ_KERNELS_GEMM_H
#include "../jit/module.h"

enum {
    TJ_TILE_OFFSETS = 1, // B rows through an offset table
};
// How accumulators start. A chain may be cut anywhere by SET, then CHAIN: the bits stay the same.
enum tj_tile_mode {
    TJ_TILE_SET,   // from 0
    TJ_TILE_CHAIN, // from C
    TJ_TILE_ADD,   // the drivers only, never asked of a tile: from 0, the result is added to C
};
#define TJ_TILE_ROWS 16
struct tj_gemm_args {
    const void *a[TJ_TILE_ROWS]; // rows, pointers of their own so that the code has them in registers
    const void *b;
    void *c;
    const int64_t *offsets; // TJ_TILE_OFFSETS: bytes, one a k
    int64_t ldc;            // bytes
    int64_t k;              // may be 0
    int64_t mode;           // enum tj_tile_mode
};
typedef void (*tj_gemm_fn)(const struct tj_gemm_args *g);

// Elements of a vector of this dtype at a feature level.
static inline int tj_gemm_width(enum tj_cpu_level level, tj_dtype d) {
    int bytes = level == TJ_CPU_AVX512 ? 64 : level == TJ_CPU_AVX2 ? 32 : 16;
    return bytes / (int)tj_elem_bytes(d);
}
#endif
