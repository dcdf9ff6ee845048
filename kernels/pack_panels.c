// kernels/pack_panels.c: copies matrices into the forms that tiles read: panels of columns, rows with unit stride.
#include "contract_impl.h"

typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));

// dst[i*ld + j] = src[j*ls + i] for a 4 x 4 block of 4-byte elements.
static inline void transpose4(float *dst, int64_t ld, const float *src, int64_t ls) {
    f32x4 r0 = *(const f32x4 *)src, r1 = *(const f32x4 *)(src + ls);
    f32x4 r2 = *(const f32x4 *)(src + 2 * ls), r3 = *(const f32x4 *)(src + 3 * ls);
    f32x4 t0 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), t1 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    f32x4 t2 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5), t3 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    *(f32x4 *)dst = __builtin_shufflevector(t0, t2, 0, 1, 4, 5);
    *(f32x4 *)(dst + ld) = __builtin_shufflevector(t0, t2, 2, 3, 6, 7);
    *(f32x4 *)(dst + 2 * ld) = __builtin_shufflevector(t1, t3, 0, 1, 4, 5);
    *(f32x4 *)(dst + 3 * ld) = __builtin_shufflevector(t1, t3, 2, 3, 6, 7);
}

// dst[i*ld + j] = src[i*si + j*sj], i < n, j < m.
#define MOVE(type)                                                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        for (int64_t j = 0; j < m; j++) {                                                                              \
            ((type *)dst)[i * ld + j] = ((const type *)src)[i * si + j * sj];                                          \
        }                                                                                                              \
    }

static void move_elements(unsigned char *dst, int64_t ld, const unsigned char *src, int64_t si, int64_t sj, int64_t n,
                          int64_t m, int size) {
    if (size == 4) {
        MOVE(uint32_t)
    } else {
        MOVE(uint64_t)
    }
}

static void move_block(unsigned char *dst, int64_t ld, const unsigned char *src, int64_t si, int64_t sj, int64_t n,
                       int64_t m, int size) {
    if (sj == 1 || m == 1) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(dst + i * ld * size, src + i * si * size, (size_t)(m * size));
        }
        return;
    }
    if (size != 4 || si != 1) {
        move_elements(dst, ld, src, si, sj, n, m, size);
        return;
    }
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        int64_t j = 0;
        for (; j + 4 <= m; j += 4) {
            transpose4((float *)dst + i * ld + j, ld, (const float *)src + i + j * sj, sj);
        }
        move_elements(dst + (i * ld + j) * 4, ld, src + (i + j * sj) * 4, 1, sj, 4, m - j, 4);
    }
    move_elements(dst + i * ld * 4, ld, src + i * 4, 1, sj, n - i, m, 4);
}

void tj_pack_panels(unsigned char *dst, const unsigned char *b, int64_t k, int64_t n, int64_t sk, int64_t sn, int nr,
                    int size, int64_t p0, int64_t p1) {
    for (int64_t p = p0; p < p1; p++) {
        unsigned char *panel = dst + p * k * nr * size;
        int64_t have = n - p * nr < nr ? n - p * nr : nr;
        move_block(panel, nr, b + p * nr * sn * size, sk, sn, k, have, size);
        for (int64_t i = 0; i < k && have < nr; i++) {
            memset(panel + (i * nr + have) * size, 0, (size_t)((nr - have) * size));
        }
    }
}

void tj_pack_rows(unsigned char *dst, const unsigned char *a, int64_t rows, int64_t k, int64_t sm, int64_t sk,
                  int size) {
    for (int64_t k0 = 0; k0 < k; k0 += 256) { // in pieces that stay in the first cache on both sides
        int64_t n = k - k0 < 256 ? k - k0 : 256;
        move_block(dst + k0 * size, k, a + k0 * sk * size, sm, sk, rows, n, size);
    }
}
