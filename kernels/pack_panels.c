// kernels/pack_panels.c: copies matrices into the forms that tiles read: panels of columns, rows with unit stride.
#include "contract_impl.h"

typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint16_t u16x8 __attribute__((vector_size(16), aligned(2), may_alias));

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

#define PAIRS(a, b)                                                                                                    \
    __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11), __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

// The same for an 8 x 8 block of 2-byte elements: three rounds of taking rows four apart together.
static inline void transpose8(uint16_t *dst, int64_t ld, const uint16_t *src, int64_t ls) {
    u16x8 r[8];
    for (int i = 0; i < 8; i++) {
        r[i] = *(const u16x8 *)(src + i * ls);
    }
    _Pragma("GCC unroll 3") for (int round = 0; round < 3; round++) {
        u16x8 t[8] = {PAIRS(r[0], r[4]), PAIRS(r[1], r[5]), PAIRS(r[2], r[6]), PAIRS(r[3], r[7])};
        memcpy(r, t, sizeof r);
    }
    for (int i = 0; i < 8; i++) {
        *(u16x8 *)(dst + i * ld) = r[i];
    }
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
    if (size == 2) {
        MOVE(uint16_t)
    } else if (size == 4) {
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
    if (size > 4 || si != 1) {
        move_elements(dst, ld, src, si, sj, n, m, size);
        return;
    }
    // Down a few rows of src at a time, as far as what is written stays in the first cache.
    enum { DOWN = 128 };
    const int64_t step = size == 2 ? 8 : 4, n1 = n / step * step, m1 = m / step * step;
    for (int64_t i0 = 0; i0 < n1; i0 += DOWN) {
        const int64_t i1 = i0 + DOWN < n1 ? i0 + DOWN : n1;
        for (int64_t j = 0; j < m1; j += step) {
            for (int64_t r = 0; r < step;
                 r++) { // of the rows after these: too many streams for the processor to foresee
                for (int64_t i = i0; i < i1 && j + step + r < m1; i += 64 / size) {
                    __builtin_prefetch(src + (i + (j + step + r) * sj) * size);
                }
            }
            for (int64_t i = i0; i < i1; i += step) {
                if (size == 2) {
                    transpose8((uint16_t *)dst + i * ld + j, ld, (const uint16_t *)src + i + j * sj, sj);
                } else {
                    transpose4((float *)dst + i * ld + j, ld, (const float *)src + i + j * sj, sj);
                }
            }
        }
    }
    move_elements(dst + m1 * size, ld, src + m1 * sj * size, 1, sj, n1, m - m1, size);
    move_elements(dst + n1 * ld * size, ld, src + n1 * size, 1, sj, n - n1, m, size);
}

static void move_panel(unsigned char *panel, const unsigned char *b, int64_t k, int64_t n, int64_t sk, int64_t sn,
                       int nr, int size) {
    int64_t have = n < nr ? n : nr;
    move_block(panel, nr, b, sk, sn, k, have, size);
    for (int64_t i = 0; i < k && have < nr; i++) {
        memset(panel + (i * nr + have) * size, 0, (size_t)((nr - have) * size));
    }
}

void tj_pack_panels(const struct tj_contract *c, unsigned char *dst, uint8_t to, const unsigned char *b, uint8_t from,
                    int64_t k, int64_t n, int64_t sk, int64_t sn, int64_t p0, int64_t p1) {
    enum { ROWS = 32, COLS = 16 * 8 }; // the widest tile
    const int nr = c->nr, size = (int)tj_elem_bytes((tj_dtype)from), wide = (int)tj_elem_bytes((tj_dtype)to);
    for (int64_t p = p0; p < p1; p++) {
        const unsigned char *src = b + p * nr * sn * size;
        if (from == to) {
            move_panel(dst + p * k * nr * size, src, k, n - p * nr, sk, sn, nr, size);
            continue;
        }
        uint16_t piece[ROWS * COLS];
        for (int64_t k0 = 0; k0 < k; k0 += ROWS) {
            int64_t rows = k - k0 < ROWS ? k - k0 : ROWS;
            move_panel((unsigned char *)piece, src + k0 * sk * size, rows, n - p * nr, sk, sn, nr, size);
            tj_widen((float *)(void *)(dst + (p * k + k0) * nr * wide), piece, rows * nr, from, c->wide);
        }
    }
}

// As many rows as are read side by side go through a piece that stays in the first cache.
static void widen_rows(float *dst, const unsigned char *a, int64_t rows, int64_t k, int64_t sm, int64_t sk,
                       uint8_t dtype, bool wide) {
    enum { ROWS = 8, COLS = 256 };
    uint16_t piece[ROWS * COLS];
    for (int64_t m = 0; m < rows; m += ROWS) {
        int64_t high = rows - m < ROWS ? rows - m : ROWS;
        for (int64_t k0 = 0; k0 < k; k0 += COLS) {
            int64_t n = k - k0 < COLS ? k - k0 : COLS;
            const unsigned char *from = a + (m * sm + k0 * sk) * 2;
            bool dense = sk == 1 || k == 1;
            if (!dense) {
                move_block((unsigned char *)piece, COLS, from, sm, sk, high, n, 2);
            }
            for (int64_t i = 0; i < high; i++) {
                tj_widen(dst + (m + i) * k + k0, dense ? from + i * sm * 2 : (const void *)(piece + i * COLS), n, dtype,
                         wide);
            }
        }
    }
}

void tj_pack_rows(unsigned char *dst, const unsigned char *a, int64_t rows, int64_t k, int64_t sm, int64_t sk,
                  uint8_t dtype, bool wide) {
    const int size = (int)tj_elem_bytes(dtype);
    if (tj_is_half(dtype)) {
        widen_rows((float *)(void *)dst, a, rows, k, sm, sk, dtype, wide);
        return;
    }
    for (int64_t k0 = 0; k0 < k; k0 += 256) { // in pieces that stay in the first cache on both sides
        int64_t n = k - k0 < 256 ? k - k0 : 256;
        move_block(dst + k0 * size, k, a + k0 * sk * size, sm, sk, rows, n, size);
    }
}
