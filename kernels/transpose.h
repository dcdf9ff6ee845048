// kernels/transpose.h: matrices of elements of 1, 2, 4 and 8 bytes put down by columns; loop kernels call it for tiles.
#ifndef TJ_KERNELS_TRANSPOSE_H
#define TJ_KERNELS_TRANSPOSE_H
#include "../lib/cpu.h"

// dst[c * dst_stride + r] = src[r * src_stride + c] for r < rows, c < cols. Strides count elements and may be negative
// on the side that is read; the two sides don't overlap. Pointers are aligned to elements.
typedef void (*tj_transpose_fn)(void *dst, int64_t dst_stride, const void *src, int64_t src_stride, int64_t rows,
                                int64_t cols);
// For elements of 1 << log2_bytes bytes, at most 8, on a machine of this level. tile: one of the sides is small and in
// cache; otherwise both may be of any size.
tj_transpose_fn tj_transpose_for(enum tj_cpu_level level, unsigned log2_bytes, bool tile);
#endif
